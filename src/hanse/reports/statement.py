"""A participant's statement: what it gave, what it gained, what it is owed, and whether joining paid.

Rounds are numbered from 0, as in the records. How it looks as a page is in :mod:`hanse.reports.statement_page`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from hanse.base.errors import UserError
from hanse.base.files import read_toml, table
from hanse.core.entry import TOKEN, escrow
from hanse.core.entry import client as account_of
from hanse.games.jackknife import jackknife_errors
from hanse.learning.blocks import BLOCKS
from hanse.learning.metrics import ACCURACY, Reading
from hanse.ledger.export import tokens
from hanse.ledger.place import reading
from hanse.ledger.store import Record
from hanse.reports.chart import Floats, Ints
from hanse.reports.contributions import SURE, Errors, Standings, errors_of, in_words, standings, without_values
from hanse.runs.config import Experiment
from hanse.runs.names import client_names
from hanse.runs.record import RunRecord, load_run

if TYPE_CHECKING:
    from hanse.runs.experiment import Observer


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What a run did for one client and the client for it. Rounds are numbered from 0, as in the records; money is in
    units (1 token = 1,000,000), None where nobody pays.

    ``label`` is what the client is called; ``names``: the run allows to name other clients; ``told``: what the run's
    parts say to who takes part, and what the client itself does in it.
    """

    run: str
    mechanism: str
    seed: Any
    client: int
    label: str
    rounds: int
    planned: int
    num_clients: int
    names: bool
    verdict: JoiningVerdict
    fit: Fit
    contributed: Contributed
    money: Money | None
    models: Models
    told: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


def statement(
    folder: str | Path, client: int, *, alone: str | Path | None = None, ledger_url: str | None = None
) -> Statement:
    """Return the statement of ``client`` (its number) in the run directory ``folder``.

    ``alone`` is a run of the same experiment with every client by itself (the mechanism ``local``); without it, one is
    looked for in ``folder/alone`` and beside ``folder``. Other clients are named only if the run's ``[clients] named``
    is true. ``ledger_url``: where the books are, if not in the folder. Raises UserError: no run, no such client, a
    ledger that cannot be read, an ``alone`` that does not fit.
    """
    run = load_run(folder, ledger_url)
    if type(client) is not int or not 0 <= client < run.num_clients:
        raise UserError(f"--client {client}: no such client; this run has clients 0 to {run.num_clients - 1}")
    names = table(run.config, "clients").get("named") is True
    fit = _fit_of(run, client, None if alone is None else Path(alone))
    given = contributed(run, client)
    money = money_of(run.path, client, kinds=run.about.kinds, names=names, ledger_url=ledger_url)
    models = models_of(run, client, names=names)
    return Statement(
        run=run.name,
        mechanism=run.mechanism,
        seed=run.seeds[0],
        client=client,
        label=run.client_label(client),
        rounds=len(run.metrics),
        planned=run.rounds_planned if run.unfinished else len(run.metrics),
        num_clients=run.num_clients,
        names=names,
        verdict=verdict_of(fit, money, models),
        fit=fit,
        contributed=given,
        money=money,
        models=models,
        told=run.about.told_to(client),
    )


# ---- how good its model is, and how good one would be that it trains alone


HERE = "alone"  # the folder inside a run directory where --train-alone leaves its run
_SAME = ("data", "model", "train")  # what both runs must share, or the difference is not that of joining


@dataclass(frozen=True, kw_only=True)
class MainFit:
    """The run's main metric on a client's own test data: ``values`` after each of the fit's rounds (None: none), and at
    the end its standard ``error`` from the draw of the test samples; ``gap`` says why there is none.

    ``alone`` is that of the model that the client trained by itself, and ``difference_error`` the standard error of the
    difference, both models on the same samples, from ``blocks`` of them left out in turn. None: not known.
    """

    reading: Reading
    values: tuple[float | None, ...]
    error: float | None = None
    gap: str = ""
    alone: float | None = None
    alone_gap: str = ""
    difference_error: float | None = None
    blocks: int = 0

    @property
    def last(self) -> float | None:
        """The value at the last test."""
        return self.values[-1]

    @property
    def difference(self) -> float | None:
        """How much more the value is than alone."""
        return None if self.last is None or self.alone is None else self.last - self.alone

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the value (Student's t), within the metric's bounds; None if its error is not known."""
        around, (least, most) = self._around(self.last, self.error), self.reading.within
        return None if around is None else (max(around[0], least), min(around[1], most))

    @property
    def difference_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the difference; None if its error is not known."""
        return self._around(self.difference, self.difference_error)

    @property
    def sign(self) -> int:
        """1 if the model is better than alone for all that the interval leaves open, -1 if it is worse, else 0."""
        between = self.difference_interval
        if between is None or between[0] <= 0 <= between[1]:
            return 0
        return 1 if (between[0] > 0) != self.reading.less_is_better else -1

    def _around(self, value: float | None, error: float | None) -> tuple[float, float] | None:
        if value is None or error is None or self.blocks < 2:
            return None
        half = float(stats.t.ppf(0.975, self.blocks - 1)) * error
        return value - half, value + half


@dataclass(frozen=True)
class Fit:
    """A client's own test: the ``rounds`` (from 0) after which it tested, with ``accuracy`` and ``loss`` of the model
    that it held (or trained: ``[eval] model``), and ``samples`` it tested on (None: not recorded).

    ``main`` is the run's main metric, if the experiment names one (``[eval] metrics``): it is judged in their place.

    ``alone_accuracy`` and ``alone_loss`` are those of a model that it trained by itself, at the end of the run
    ``alone`` (its folder's name) after ``alone_rounds``; None if there is no such run, and then ``how`` says how to get
    one. ``error`` is the standard error of the difference of the accuracies, from the number of samples; ``loss_error``
    that of the difference of the losses, from their spread over the samples (None: not recorded).
    """

    rounds: tuple[int, ...] = ()
    accuracy: tuple[float | None, ...] = ()
    loss: tuple[float | None, ...] = ()
    samples: int | None = None
    alone: str | None = None
    alone_accuracy: float | None = None
    alone_loss: float | None = None
    alone_rounds: int | None = None
    how: str = ""
    loss_error: float | None = None
    main: MainFit | None = None

    @property
    def last(self) -> float | None:
        """The accuracy at the last test."""
        return self.accuracy[-1] if self.accuracy else None

    @property
    def last_loss(self) -> float | None:
        """The loss at the last test."""
        return self.loss[-1] if self.loss else None

    @property
    def error(self) -> float | None:
        """The standard error of the difference of two accuracies on the same samples, at most: as if the two models
        erred independently. None if something of it is not known.
        """
        if self.last is None or self.alone_accuracy is None or not self.samples:
            return None
        return math.sqrt(sum(p * (1 - p) for p in (self.last, self.alone_accuracy)) / self.samples)


def _fit_of(run: RunRecord, client: int, alone: Path | None = None) -> Fit:
    """Return a client's tests in a run, beside those of ``alone`` (or of a run that :func:`_find_alone` finds).

    Raises UserError for an ``alone`` that is no run of single clients on the same data with the same training.
    """
    tests = _tests(run, client)
    named = None if alone is None else _checked(run, load_run(alone))
    if not tests:
        return Fit(how=_why_untested(run))
    known = next((t.samples for t in reversed(tests) if t.samples), run.members.get(client, {}).get("tests"))
    rounds, accuracy, loss = zip(*((test.round, test.accuracy, test.loss) for test in tests), strict=True)
    fit = Fit(rounds, accuracy, loss, known, main=_main(run, tests))
    other = _find_alone(run) if named is None else named
    if other is None:
        return replace(fit, how=_how(run, client))
    theirs = _tests(other, client)
    if not theirs:
        return replace(fit, how=f"{other.name} did not test client {client} on its own data")
    ours, last = tests[-1], theirs[-1]
    # as if the two models erred independently: at most that, on the same samples
    error = None if ours.error is None or last.error is None else math.hypot(ours.error, last.error)
    return replace(
        fit,
        alone=other.name,
        alone_accuracy=last.accuracy,
        alone_loss=last.loss,
        alone_rounds=len(other.metrics),
        loss_error=error,
        main=None if fit.main is None else _beside(fit.main, ours, last, run.main == other.main),
    )


def _main(run: RunRecord, tests: Sequence[_OwnTest]) -> MainFit | None:
    """Return the main metric of a client's tests; None if the experiment names none."""
    if not run.readings:
        return None
    values, last = tuple(test.main for test in tests), tests[-1]
    gap = last.gap or ("" if last.main is not None else "it is not recorded")
    return MainFit(reading=run.main, values=values, gap=gap, error=_jackknife(last.without), blocks=len(last.without))


def _beside(main: MainFit, ours: _OwnTest, alone: _OwnTest, same: bool) -> MainFit:
    """Return the main metric with that of the client alone, if the run of single clients has the ``same`` one."""
    if not same:
        return replace(main, alone_gap=f"the run of single clients has no {main.reading.title} ([eval] metrics)")
    paired = len(ours.without) == len(alone.without) and ours.samples == alone.samples
    error = _jackknife(ours.without - alone.without) if paired else None
    return replace(main, alone=alone.main, alone_gap=alone.gap, difference_error=error)


def _jackknife(without: Floats) -> float | None:
    return _known(float(jackknife_errors(without)))


@dataclass(frozen=True)
class _OwnTest:
    """A client's test on its own share: see :class:`hanse.runs.record.OwnTests`; None: not known."""

    round: int
    loss: float | None
    accuracy: float | None
    samples: int | None
    error: float | None
    main: float | None
    gap: str
    without: Floats


def _tests(run: RunRecord, client: int) -> list[_OwnTest]:
    """Return every test of the client on its own share."""
    found = []
    for line in run.metrics:
        if line.get("client/test_loss") is None:
            continue
        tests = run.own_tests(int(line["round"]))
        at = [] if tests is None else np.flatnonzero(tests.clients == client).tolist()
        if tests is None or not at:
            continue
        [i] = at
        columns = (tests.loss, tests.accuracy, tests.error, tests.main)
        loss, accuracy, error, main = (_known(values[i]) for values in columns)
        samples = None if tests.samples is None else int(tests.samples[i])
        left = np.zeros(0) if tests.without is None else tests.without[i][: BLOCKS if samples is None else samples]
        if loss is not None or accuracy is not None:
            found.append(_OwnTest(int(line["round"]), loss, accuracy, samples, error, main, tests.gaps[i], left))
    return found


def _known(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


def _find_alone(run: RunRecord) -> RunRecord | None:
    """Return a finished run of the same clients by themselves: in the run directory's folder "alone", or beside it.

    It must have the same data, model and training, and at least one finished round; of several the first by name.
    """
    if run.mechanism == "local":
        return None
    beside = sorted(p for p in run.path.resolve().parent.iterdir() if p != run.path.resolve())
    for path in (run.path / HERE, *beside):
        if not (path / "config.toml").exists():
            continue
        try:
            given = read_toml(path / "config.toml")
            if table(given, "mechanism").get("name") == "local" and not _differences(run.config, given):
                return load_run(path)
        except UserError:  # damaged, or without a round: it does not stand in the way of this run's statement
            continue
    return None


def _checked(run: RunRecord, other: RunRecord) -> RunRecord:
    if other.mechanism != "local":
        raise UserError(
            f"--alone {other.path}: its mechanism is '{other.mechanism}'; it must be 'local', every client by itself"
        )
    if apart := _differences(run.config, other.config):
        raise UserError(f"--alone {other.path}: is another experiment than {run.path}: {apart[0]}")
    return other


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return what of two experiments' data, model and training differs, a line each."""
    found = []
    for name in _SAME:
        a, b = ({k: v for k, v in table(c, name).items() if k not in ("path", "download")} for c in (ours, theirs))
        keys = [k for k in sorted({*a, *b}) if a.get(k) != b.get(k)]
        found += [f"{name}.{k} is {b.get(k)!r} there, {a.get(k)!r} here" for k in keys]
    return found


def _why_untested(run: RunRecord) -> str:
    data = run.config.get("data", {})
    if data.get("client_test", 0) == 0 and data.get("client_test_from") not in ("equal", "classes"):
        none = "clients keep no test data of their own in this run"
        return f"{none}: [data] client_test is 0, and a run with 0.25, say, would know"
    return "the run has not tested this client on its own data: [eval] clients says how many are tested"


def _how(run: RunRecord, client: int) -> str:
    """Return how to learn what the client would have reached alone."""
    if run.mechanism == "local":
        return "in this run everyone is alone"
    if (run.path / "members.json").exists():
        return (
            "only the participant can tell: its data are not here. Train the same model on your own data alone, for as "
            "many steps, and compare on the same test data"
        )
    return (
        f"what it would be alone is not known yet: 'hanse statement DIR --client {client} --train-alone' plays the "
        "same experiment with everyone alone"
    )


# ---- what its updates were worth


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round in which the client was to train. ``value`` is what its update was worth (the sum over its seats), with
    its standard ``error`` from sampling and from the validation samples together, where known; ``of`` the sum of
    everybody's values in the round; ``share`` its part of all values above zero (0 if its own is not), so that a
    round's shares sum to 1; ``weight`` that its update had in the model that it trained. ``late`` is by how many
    rounds the update came after the one in which the client was asked. ``refused`` says why there is none of these.
    """

    round: int
    value: float | None
    error: float | None
    of: float | None
    share: float | None
    weight: float | None
    late: int
    refused: str | None


@dataclass(frozen=True, kw_only=True)
class Contributed:
    """The rounds, and their sums: ``value`` with its standard error from the ``sampling`` of coalitions and that from
    the draw of the validation samples (``drawn``), ``share`` of the sums above zero of all clients, and the client's
    ``place`` (1 is the highest value) among the ``ranked`` clients: those of whom more than one update was valued.
    None: nobody is valued in this run, this client never was, or too seldom to be ranked. ``valued``: how many are.

    ``tied`` are the places of those who cannot be told apart from it (None: not known), ``share_interval`` the 95 %
    interval of the share from both errors together (None: not known). ``measure`` is what a value is called,
    ``measured`` a sentence of what it is. ``gaps`` say which rounds have no values, and why.
    """

    rounds: tuple[Round, ...]
    value: float | None = None
    sampling: float | None = None
    drawn: float | None = None
    share: float | None = None
    place: int | None = None
    ranked: int = 0
    valued: int = 0
    tied: tuple[int, ...] | None = None
    share_interval: tuple[float, float] | None = None
    measure: str = "value"
    measured: str = ""
    gaps: tuple[str, ...] = ()

    @property
    def standing(self) -> str:
        """The client's place in a sentence, no surer than the errors allow; empty if it has none."""
        if self.place is None:
            return ""
        told = f"By this sum it is number {self.place} of the {self.ranked} clients of whom more than one update was "
        if not self.tied:
            return f"{told}valued."
        if len(self.tied) == self.ranked - 1:
            others = "any of the others" if len(self.tied) > 1 else "the other"
        else:
            others = in_words(np.array(self.tied, np.int64), self.place)
        return f"{told}valued; it cannot be told apart from {others}: that order may be chance."

    @property
    def error(self) -> float | None:
        """The standard error of ``value``, from both; None if neither is known."""
        known = [e for e in (self.sampling, self.drawn) if e is not None]
        return math.hypot(*known) if known else None

    @property
    def exact(self) -> bool:
        """Whether every group of updates was tried, and nothing is known of other validation samples."""
        return self.error == 0

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of ``value``, from both errors; None if neither is known, or the value is exact."""
        if self.value is None or self.error is None or self.exact:
            return None
        return self.value - SURE * self.error, self.value + SURE * self.error

    @property
    def sure(self) -> bool:
        """Whether the whole 95 % interval of ``value`` lies on one side of zero."""
        return self.value is not None and self.error is not None and abs(self.value) > SURE * self.error


def contributed(run: RunRecord, client: int) -> Contributed:
    """Return what a client gave to the run. Values are as the mechanism measured them."""
    seats = run.seats
    some = np.isfinite(seats.value)
    played = int(run.metrics[-1]["round"]) + 1
    sums = np.bincount(seats.round[some], weights=seats.value[some], minlength=played)
    positive = _positive_by_round(run, some, played)
    lines: dict[int, list[int]] = {}
    for at in np.flatnonzero(seats.client == client).tolist():
        lines.setdefault(int(seats.round[at]), []).append(at)
    rounds = tuple(_round(run, r, at, float(sums[r]), float(positive[r])) for r, at in sorted(lines.items()))
    mine = some & (seats.client == client)
    valued, updates = np.unique(seats.client[some], return_counts=True)
    if not mine.any():
        return Contributed(rounds=rounds, valued=len(valued), gaps=tuple(without_values(run)))
    totals = np.bincount(seats.client[some], weights=seats.value[some])[valued]
    own = float(totals[np.searchsorted(valued, client)])
    above = float(np.maximum(totals, 0.0).sum())
    errors = errors_of(run, [np.array([client])], np.array([played - 1]))
    everybody = standings([run], valued, played - 1)
    ranked = everybody.among(valued[updates > 1])
    placed, measure = client in ranked.clients, run.about.measure
    return Contributed(
        rounds=rounds,
        value=own,
        sampling=_known(errors.sampling[0, 0]),
        # beside an estimate of unknown error it would be taken for the whole of it
        drawn=None if np.isinf(errors.sampling[0, 0]) else _known(errors.drawn[0, 0]),
        share=max(own, 0.0) / above if above > 0 and measure.share_out else None,
        place=ranked.place(client) if placed else None,
        ranked=len(ranked.clients),
        valued=len(valued),
        tied=tuple(ranked.tied_places(client).tolist()) if placed and ranked.known else None,
        share_interval=_interval(everybody, client) if measure.share_out else None,
        measure=measure.name,
        measured=measure.sentence,
        gaps=tuple(without_values(run)),
    )


def _interval(sums: Standings, client: int) -> tuple[float, float] | None:
    """Return the 95 % interval of a client's part of all sums above zero, within 0 and 1; None if it is not known,
    or if the sums are exact.
    """
    part, error = (float(numbers[sums.clients == client][0]) for numbers in sums.parts())
    if not math.isfinite(error) or error == 0:  # 0: exact, which no interval says
        return None
    low, high = (min(1.0, max(0.0, part + side * SURE * error)) for side in (-1, 1))
    return low, high


def _positive_by_round(run: RunRecord, some: np.ndarray, played: int) -> Floats:
    """Return, for each round, the sum of the clients' values above zero, ``[R]``; a client's seats count together."""
    seats = run.seats
    width = run.num_clients
    key = seats.round[some] * width + seats.client[some]
    pairs, place = np.unique(key, return_inverse=True)
    values = np.bincount(place, weights=seats.value[some], minlength=len(pairs))
    found = np.bincount(pairs // width, weights=np.maximum(values, 0.0), minlength=played)
    return found.astype(np.float64)


def _sum(numbers: Floats) -> Floats:
    """Return the sum of what is known of ``numbers``; NaN if nothing is."""
    known = numbers[np.isfinite(numbers)]
    return np.asarray(known.sum() if len(known) else np.nan)


def _round(run: RunRecord, number: int, at: list[int], total: float, positive: float) -> Round:
    seats = run.seats
    values = seats.value[at]
    # of several seats in one round the errors of the draw may add up: they share the validation samples
    errors = Errors(np.sqrt(_sum(seats.error[at] ** 2)), _sum(seats.drawn[at])).total
    weights = [w for i in at if (w := run.clients[i].weight) is not None]
    reasons = [reason for i in at if (reason := run.clients[i].refused)]
    known = np.isfinite(values)
    value = float(values[known].sum()) if known.any() else None
    share = None if value is None or positive <= 0 else max(value, 0.0) / positive
    return Round(
        round=number,
        value=value,
        error=None if value is None else _known(float(errors)),
        of=total if value is not None else None,
        share=share,
        weight=float(sum(weights)) if weights else None,
        late=max(run.clients[i].staleness for i in at),
        refused=reasons[0] if reasons and len(reasons) == len(at) else None,
    )


# ---- where its models went, and what it got of others


_MARKET = ("market_client", "market_graph", "market_paid", "market_utility")
_NEEDED = ("client", "start", "answered", "home", "W_row", "W_column", "W_weight", "withheld", "bids", *_MARKET)
_MADE = ("made_row", "made_of", "made_at")  # rows that are no row of W


@dataclass(frozen=True)
class Models:
    """``asked`` rounds in which the client was to train, ``answered`` of them with an update that was accepted
    (``late`` of these after their round, by at most ``latest`` rounds; ``on_its_way``: the last one had not come at the
    end), and ``used`` of those with one that was mixed, with a weight other than 0, into a model that is not its own
    alone.
    ``reached`` other clients were given such a model at least once, ``deliveries`` times in all (a client and a round
    each): to start from next, to train on in the next round, to choose among at an auction, or sold by the market.
    ``names`` of those, with how often, most often first; None unless the run allows names.

    In a market: ``imported`` models of others that were delivered to it, and in how many rounds what it wanted was
    ``withheld`` because it did not pay; ``utility`` in tokens over the run. None elsewhere.
    """

    asked: int
    answered: int
    used: int
    reached: int
    deliveries: int
    _: KW_ONLY
    late: int = 0
    latest: int = 0
    on_its_way: bool = False
    names: tuple[tuple[str, int], ...] | None = None
    imported: int | None = None
    withheld: int | None = None
    utility: float | None = None


def models_of(run: RunRecord, client: int, *, names: bool = False) -> Models:
    """Return what the rounds' records say of a client's models."""
    home: Ints = np.zeros(0, np.int64)
    answered, used = 0, 0
    got: Counter[int] = Counter()
    imported, withheld, utility, traded = 0, 0, 0.0, False
    waiting: Ints = np.zeros(0, np.int64)  # rows with its work, until the next seats show who trains on
    before: set[int] = set()
    for line in run.metrics:
        record = run.arrays(int(line["round"]), only=(*_NEEDED, *_MADE))
        if "answered" not in record:
            continue
        # who is seated at such a row next was sent it, though it is not the row that it holds
        seated = set(record["client"][np.isin(record["start"], waiting)].tolist()) - before - {client}
        got.update(seated)
        home = record.get("home", home)[: run.num_clients]  # a network has seats for clients that never came
        mine = np.flatnonzero(record["answered"] == client)
        answered += bool(len(mine))
        rows = np.unique(record["W_row"][np.isin(record["W_column"], mine) & (record["W_weight"] != 0)])
        if "made_row" in record:
            rows = np.union1d(rows, record["made_row"][record["made_at"][np.isin(record["made_of"], mine)]])
        rows = rows[~np.isin(rows, [*_own(home, client), *record.get("withheld", ())])]
        receivers: Ints = np.flatnonzero(np.isin(home, rows)) if len(rows) else np.zeros(0, np.int64)
        if len(rows) and "bids" in record and line.get("present") == len(home):
            receivers = np.arange(len(home), dtype=np.int64)  # an auction shows all models to everyone who may bid
        if "market_graph" in record:
            traded = True
            importers, imports, unpaid, worth = _market(record, client)
            receivers = rows = importers  # rows of a market are others' centres: what was sold says it all
            imported, withheld, utility = imported + imports, withheld + unpaid, utility + worth
        used += bool(len(rows))
        before = set(receivers.tolist()) - {client}
        got.update(before)
        waiting = np.zeros(0, np.int64) if "market_graph" in record else rows.astype(np.int64)
    named = tuple((run.client_label(c), n) for c, n in sorted(got.items(), key=lambda item: (-item[1], item[0])))
    seats = [seat for seat in run.clients if seat.client == client]
    staleness = [seat.staleness for seat in seats if seat.staleness]
    return Models(
        len({seat.round - seat.staleness for seat in seats}),
        answered,
        used,
        len(got),
        got.total(),
        late=len(staleness),
        latest=max(staleness, default=0),
        on_its_way=bool(seats) and (seats[-1].round, client) in run.under_way,
        names=named if names else None,
        imported=imported if traded else None,
        withheld=withheld if traded else None,
        utility=utility if traded else None,
    )


def _own(home: Ints, client: int) -> list[int]:
    """Return the client's own row, if it holds one that nobody else does: what goes there stays with it."""
    row = int(home[client]) if client < len(home) else -1
    return [row] if row >= 0 and int((home == row).sum()) == 1 else []


def _market(record: dict[str, NDArray[np.generic]], client: int) -> tuple[Ints, int, bool, float]:
    """Return what a round's market did for a client: who imported its model ``[n]``, how many it imported, whether
    what it wanted was withheld, and its utility. An import that was not paid for was not delivered.
    """
    clients, graph = record["market_client"], np.asarray(record["market_graph"]) != 0
    paid = np.asarray(record["market_paid"], bool) if "market_paid" in record else np.ones(len(clients), bool)
    at = np.flatnonzero(clients == client)
    if not len(at):
        return np.zeros(0, np.int64), 0, False, 0.0
    i = int(at[0])
    delivered = graph & paid[:, None]
    importers = np.asarray(clients[delivered[:, i]], np.int64)
    worth = float(np.asarray(record["market_utility"], np.float64)[i])
    return importers, int(delivered[i].sum()), not paid[i] and bool(graph[i].any()), worth


# ---- what it was granted, paid and earned


@dataclass(frozen=True, kw_only=True)
class Posting:
    """One posting of the client's account or escrow. ``number`` is the transaction's in the ledger, ``round`` counts
    from 0, ``units`` are signed, ``holds`` is what both accounts hold together after the transaction. ``others`` names
    who else the transaction moves, where the run allows names.
    """

    number: int
    round: int
    step: str
    kind: str
    memo: str
    account: str
    units: int
    holds: int
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class PostingSum:
    """The sum of one kind of posting: units that came ``in`` and went ``out`` of the account, and the numbers of the
    transactions that made it. ``within``: between the client's own account and its escrow.
    """

    kind: str
    what: str
    received: int
    paid: int
    transactions: tuple[int, ...]
    within: bool = False


@dataclass(frozen=True, kw_only=True)
class Money:
    """A participant's books, in units: what it was ``granted``, what it ``received`` and ``paid`` beside that, what its
    account and its escrow hold now. ``head`` is the hash of the book's last transaction of ``count``.
    """

    book: str
    count: int
    head: str
    floor: int
    granted: int
    received: int
    paid: int
    balance: int
    escrow: int
    figures: tuple[PostingSum, ...]
    lines: tuple[Posting, ...]

    @property
    def net(self) -> int:
        """What taking part changed: all that came in less all that went out, the grant left aside."""
        return self.received - self.paid


def money_of(
    folder: Path,
    client: int,
    *,
    kinds: Mapping[str, str] | None = None,
    names: bool = False,
    ledger_url: str | None = None,
) -> Money | None:
    """Return the books of a client, or None if nobody pays in this run. ``kinds``: what the kinds of transactions are
    called on the page; one that is not there keeps its own name. Raises UserError for books that are not there or
    cannot be read.
    """
    if not (folder / "ledger.json").exists():
        return None
    mine, kept = account_of(client), escrow(client)
    with reading(folder, ledger_url) as ledger:
        # the rest is read of one moment: a run may be writing
        book = ledger.as_book()
        records = {r.number: r for name in (mine, kept) for r in ledger.history(name) if r.number <= book.count}
    called = client_names(folder) if names else None
    lines = _own_lines([records[n] for n in sorted(records)], client, called)
    figures = _figures(lines, kinds or {})
    outside = [f for f in figures if not f.within and f.kind != "grant"]
    return Money(
        book=ledger.book,
        count=book.count,
        head=book.head,
        floor=book.floor,
        granted=sum(f.received - f.paid for f in figures if f.kind == "grant"),
        received=sum(f.received for f in outside),
        paid=sum(f.paid for f in outside),
        balance=book.balance(mine),
        escrow=book.balance(kept),
        figures=figures,
        lines=lines,
    )


def _own_lines(records: Iterable[Record], client: int, called: Mapping[int, str] | None = None) -> tuple[Posting, ...]:
    """Return the postings of a client's two accounts among ``records`` (in order of their numbers); with the others of
    each transaction, and what they are ``called``, unless that is None.
    """

    def named(account: str) -> str:
        kind, _, number = account.partition("/")
        name = (called or {}).get(int(number)) if kind in ("client", "escrow") and number.isdecimal() else None
        return account if name is None else f"{account} ({name})"

    own = (account_of(client), escrow(client))
    found = [(r, name, units) for r in records for name, units in r.transaction.postings if name in own]
    holds = accumulate(units for _, _, units in found)
    return tuple(
        Posting(
            number=r.number,
            round=r.round,
            step=r.transaction.step,
            kind=r.transaction.kind,
            memo=r.transaction.memo,
            account=name,
            units=units,
            holds=held,
            others=tuple(dict.fromkeys(named(n) for n, _ in r.transaction.postings if n not in own))
            if called is not None
            else (),
        )
        for (r, name, units), held in zip(found, holds, strict=True)
    )


def _figures(lines: Sequence[Posting], kinds: Mapping[str, str]) -> tuple[PostingSum, ...]:
    """Return a figure a kind, in order of appearance. A bid is no expense before it wins a seat: movements between the
    two accounts are shown, and counted in no sum.
    """
    net = Counter[int]()  # of the two accounts together, by transaction
    for line in lines:
        net[line.number] += line.units
    found = []
    for kind in dict.fromkeys(line.kind for line in lines):
        here = [line for line in lines if line.kind == kind]
        within = not any(net[line.number] for line in here)
        counted = [line for line in here if line.account.startswith("client/")] if within else here
        found.append(
            PostingSum(
                kind,
                kinds.get(kind, kind),
                sum(line.units for line in counted if line.units > 0),
                -sum(line.units for line in counted if line.units < 0),
                tuple(dict.fromkeys(line.number for line in here)),
                within,
            )
        )
    return tuple(found)


# ---- whether joining paid, said no more surely than the numbers allow


Answer = Literal["yes", "no", "mixed", "even", "unknown"]
CLEAR = 2.0  # standard errors from which a difference of accuracies counts


@dataclass(frozen=True)
class JoiningVerdict:
    """The ``answer``, its ``headline`` and the reasons, a sentence each.

    Judged are the model against the one alone, and the tokens (a market's utility). "yes": at least one gained and
    none lost; "no": the other way round; "mixed": one gained and one lost; "even": nothing that the numbers can tell;
    "unknown": there is nothing to compare. Where the tokens alone decide, the
    headline says so.
    """

    answer: Answer
    headline: str
    reasons: tuple[str, ...]


_TOKENS_ONLY: dict[Answer, str] = {
    "yes": "In tokens joining paid; whether its model is better is not known",
    "no": "In tokens joining did not pay; whether its model is better is not known",
    "even": "In tokens joining made no difference; whether its model is better is not known",
}
_MODEL_EVEN: dict[Answer, str] = {
    "yes": "In tokens joining paid; its model is not clearly better or worse",
    "no": "In tokens joining did not pay; its model is not clearly better or worse",
}
_HEADLINES: dict[Answer, str] = {
    "yes": "Yes, joining paid",
    "no": "No, joining did not pay",
    "mixed": "It depends on what a token is worth to you",
    "even": "Joining made no difference that can be told",
    "unknown": "Whether joining paid is not known",
}


def verdict_of(fit: Fit, money: Money | None, models: Models) -> JoiningVerdict:
    """Return the answer from the model's accuracy against the one alone, and from what was traded or paid."""
    judged = (_model(fit), _economy(money, models))
    signs = [sign for sign, _ in judged if sign is not None]
    reasons = [reason for _, reason in judged if reason]
    if 1 in signs and -1 in signs:
        answer: Answer = "mixed"
        reasons += filter(None, [_rate(fit, money, models)])
    elif 1 in signs:
        answer = "yes"
    elif -1 in signs:
        answer = "no"
    else:
        answer = "even" if signs else "unknown"
    model = judged[0][0]
    headlines = _HEADLINES | (_TOKENS_ONLY if model is None else _MODEL_EVEN if model == 0 else {})
    return JoiningVerdict(answer, headlines[answer], tuple(reasons))


def _model(fit: Fit) -> tuple[int | None, str]:
    """Return 1, 0 or -1 for a better, equal or worse model than alone (None: not known), and the sentence."""
    if fit.last is None and fit.last_loss is None:
        return None, f"How good its model is, is not known: {fit.how}."
    if fit.main is not None:
        return _by_main(fit.main)
    ours, alone = fit.last, fit.alone_accuracy
    if ours is None or alone is None:
        return _loss(fit)
    points = 100 * (ours - alone)
    told = f"Its model gets {100 * ours:.1f} % of its own test data right; alone it would reach {100 * alone:.1f} %"
    error = fit.error
    if error is None:
        return (points > 0) - (points < 0), f"{told}. On how many samples is not recorded: it may be chance."
    if abs(points) <= CLEAR * 100 * error or points == 0:
        return 0, f"{told}. On {fit.samples} samples a difference of {points:+.1f} points may be chance."
    return (1 if points > 0 else -1), f"{told}: {points:+.1f} points, standard error at most {100 * error:.1f}."


def _by_main(main: MainFit) -> tuple[int | None, str]:
    """Return the same by the run's main metric, with the interval of the difference on the same test samples."""
    reading, last = main.reading, main.last
    if last is None:
        return None, f"Its model's {reading.title} on its own test data is not known: {main.gap}."
    sure = "" if main.interval is None else f" (95 % interval {' to '.join(map(reading.show, main.interval))})"
    told = f"Its model's {reading.title} on its own test data is {reading.show(last)}{sure}"
    if main.difference is None or main.alone is None:
        return None, f"{told}; what alone is not known{f': {main.alone_gap}' if main.alone_gap else ''}."
    told += f"; alone it would be {reading.show(main.alone)}{' (less is better)' if reading.less_is_better else ''}"
    between = main.difference_interval
    if between is None:
        return 0, f"{told}. How much of that is chance is not known, so that it decides nothing."
    low, high = map(reading.show_difference, between)
    said = f"with 95 % confidence the difference is between {low} and {high}"
    if low == high:  # nothing is left of it in the digits shown: as good as the same model
        return 0, f"{told}: the same, to the digits that are shown."
    if not main.sign:
        return 0, f"{told}. The two cannot be told apart: {said}."
    return main.sign, f"{told}: {reading.show_difference(main.difference)}, and {said}."


def _loss(fit: Fit) -> tuple[int | None, str]:
    if fit.last is not None and fit.alone is None:
        return None, f"Its model gets {100 * fit.last:.1f} % of its own test data right; what alone is not known."
    ours, alone = fit.last_loss, fit.alone_loss
    if ours is None or alone is None:
        return None, f"Its model's loss on its own test data is {ours:.4g}; what alone is not known." if ours else ""
    told = f"Its model's loss on its own test data is {ours:.4g}; alone it would be {alone:.4g} (less is better)."
    if fit.loss_error is None:
        return 0, f"{told} How much of that is chance is not known, so that it decides nothing."
    if abs(ours - alone) <= CLEAR * fit.loss_error:
        return 0, f"{told} A difference of {ours - alone:+.2g} may be chance (standard error {fit.loss_error:.2g})."
    return (1 if ours < alone else -1), f"{told} The difference has a standard error of at most {fit.loss_error:.2g}."


def _economy(money: Money | None, models: Models) -> tuple[int | None, str]:
    """Return the same for the market or the tokens; a market's utility has its payments in it already."""
    if models.utility is not None:
        u = models.utility
        told = f"By its own measure the market was worth {u:+.2f} tokens to it: gain, less the cost of sharing"
        told += " and the net payments." if money is not None else "."
        return (u > 0) - (u < 0), told
    if money is None:
        return None, "Nobody pays in this run."
    told = f"It received {tokens(money.received)} tokens and paid {tokens(money.paid)}, the grant aside"
    if money.escrow:
        told += f"; {tokens(money.escrow)} are held in escrow"
    net = money.net
    return (net > 0) - (net < 0), f"{told}: {'+' if net >= 0 else ''}{tokens(net)}."


def _rate(fit: Fit, money: Money | None, models: Models) -> str:
    """Return what one side cost in terms of the other, where both are numbers of the same kind for everybody."""
    reading = ACCURACY if fit.main is None else fit.main.reading
    ours, alone = (fit.last, fit.alone_accuracy) if fit.main is None else (fit.main.last, fit.main.alone)
    if ours is None or alone is None or (money is None and models.utility is None):
        return ""
    points = 100 * (ours - alone) * (-1 if reading.less_is_better else 1)
    worth = models.utility if models.utility is not None else money.net / TOKEN if money is not None else 0.0
    if worth * points >= 0:
        return ""
    per, step = abs(worth / points), "point" if reading.percent else "0.01"
    return (
        f"It paid {per:.3g} tokens for each {step} of {reading.title}."
        if points > 0
        else f"It earned {per:.3g} tokens for each {step} of {reading.title} that it gave up."
    )


# ---- the same experiment with every client by itself


def alone_experiment(experiment: Experiment) -> Experiment:
    """Return the same experiment with the mechanism ``local`` and honest clients: nothing is sent, so nobody cheats."""
    given = experiment.sections()
    keep = {name: given[name] for name in ("data", "model", "train", "eval")}
    engine = {"device": given["engine"]["device"], "precision": given["engine"]["precision"]}
    run = {name: given["run"][name] for name in ("rounds", "seed", "checkpoint_every")}
    return Experiment(**keep, mechanism={"name": "local"}, engine=engine, run=run)


def train_alone(folder: Path, observers: Sequence[Observer] = ()) -> Path:
    """Train every client of the run in ``folder`` by itself, into ``folder/alone``, and return that folder.

    It goes on with an unfinished one, and leaves a finished one as it is. Raises UserError: no run, or a federation on
    a network, whose data are not here.
    """
    from hanse.runs import experiment as running  # here: a statement that plays nothing does without

    if not (folder / "config.toml").is_file():
        raise UserError(f"{folder}: is not a run directory (it has no config.toml)")
    if (folder / "members.json").exists():
        raise UserError(
            f"--train-alone: the data of {folder} are with its participants, who can train alone themselves"
        )
    experiment = alone_experiment(Experiment.read(folder / "config.toml"))
    place = folder / HERE
    if (place / "config.toml").is_file():
        running.resume(place, observers=observers)
    else:
        running.run(experiment, out=place, observers=observers)
    return place
