"""A participant's statement: what it gave, what it gained, what it is owed, and whether joining paid.

:func:`statement` makes one from a run directory. It puts together what can also be had by itself: the client's own
tests beside those of a model that it trains alone (:class:`Fit`), what its updates were worth (:func:`contributed`),
where its models went (:func:`models_of`), its books (:func:`money_of`), and the answer to whether joining paid
(:func:`verdict_of`). :func:`train_alone` plays the run of single clients that the comparison needs.

The sentences are read by participants who are not engineers. None of them claims more than the numbers allow: each says
how sure it is, or that this is not known. Rounds are numbered from 0, as in the records. The page is made by
:mod:`hanse.reports.statement_page`; ``docs/statement.md`` explains each figure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import lru_cache
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
from hanse.learning.intervals import difference, wilson
from hanse.learning.metrics import ACCURACY, Reading
from hanse.ledger.export import tokens
from hanse.ledger.place import reading, wrong_in
from hanse.ledger.store import Record
from hanse.reports.chart import Floats, Ints
from hanse.reports.contributions import (
    SURE,
    Errors,
    Standings,
    errors_of,
    in_words,
    lost_files,
    standings,
    without_values,
)
from hanse.runs.config import Experiment
from hanse.runs.names import client_names
from hanse.runs.record import RunRecord, load_run

if TYPE_CHECKING:
    from hanse.runs.experiment import Observer


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What a run did for one client, and the client for the run.

    Attributes:
        run: the name of the run directory.
        mechanism: the mechanism's name.
        seed: the run's seed.
        client: the client's number.
        label: what the client is called: its name, or its number.
        rounds: how many rounds were played.
        planned: how many were planned; more than ``rounds`` if the run is not finished.
        num_clients: how many clients the run has.
        names: whether the run allows its clients to be named to one another.
        verdict: whether joining paid, and why.
        fit: how good the client's model is, on its own test data.
        contributed: what its updates were worth.
        money: its books, in units (1 token is 1,000,000 units); None where nobody pays.
        models: where its models went, and what it got of others.
        told: sentences that the mechanism's parts have for participants, and one on what the experiment makes this
            client do, if it does anything.
        lost: sentences on files of rounds that are missing or were changed.
        doubts: sentences that stand first, if the run's model is at chance or its values mean little.
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
    lost: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


def statement(
    folder: str | Path, client: int, *, alone: str | Path | None = None, ledger_url: str | None = None
) -> Statement:
    """Return the statement of one client.

    Other clients are named in it only if the experiment says ``[clients] named = true``.

    Args:
        folder: the run directory. The run may still be going on.
        client: the client's number, from 0.
        alone: the directory of a run of the same experiment with every client by itself (the mechanism ``local``). None
            looks for one in ``folder/alone`` and beside ``folder``.
        ledger_url: where the books are, if not in the folder.

    Raises:
        UserError: there is no run or no such client, the ledger cannot be read, or ``alone`` is another experiment.

    Example:
        >>> import tempfile
        >>> import hanse
        >>> experiment = hanse.Experiment(
        ...     data={"clients": 3, "client_test": 0.2},
        ...     model={"name": "logistic"},
        ...     mechanism={"name": "fedavg", "clients_per_round": 3},
        ...     run={"rounds": 2},
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = hanse.run(experiment, out=f"{folder}/town")
        ...     first = statement(f"{folder}/town", 1)
        ...     _ = train_alone(Path(folder, "town"))
        ...     second = statement(f"{folder}/town", 1)
        >>> first.verdict.headline
        'Whether joining paid is not known'
        >>> second.verdict.headline  # two rounds are too few
        'Joining made no difference that could be measured'
        >>> second.models.answered, second.models.reached  # two updates, in models that both others were given
        (2, 2)
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
        lost=tuple(lost_files(run)),
        doubts=tuple(run.doubts),
    )


# ---- how good its model is, and how good one would be that it trains alone


HERE = "alone"  # the folder inside a run directory where --train-alone leaves its run
_SAME = ("data", "model", "train")  # what both runs must share, or the difference is not that of joining


@dataclass(frozen=True, kw_only=True)
class MainFit:
    """The run's main metric on a client's own test data. None means "not known" throughout.

    Attributes:
        reading: the metric: its name, its direction, and how it is shown.
        values: its value after each of the fit's rounds.
        error: the standard error of the last value from the draw of the test samples, by a jackknife over blocks.
        recorded: the 95 % interval of the last value that the client found by its samples (see
            :meth:`hanse.learning.metrics.Metric.interval`); None: there is none.
        gap: why there is no value at the end; "" if there is one.
        alone: the value of the model that the client trained by itself.
        alone_gap: why there is none.
        alone_recorded: the 95 % interval of that value that the client found by its samples; None: there is none.
        difference_error: the standard error of the difference of the two, measured on the same samples.
        correlation: that of the two values over the draw of the samples, by the same jackknife; 0: not known.
        blocks: of how many blocks of test samples the jackknife is.
    """

    reading: Reading
    values: tuple[float | None, ...]
    error: float | None = None
    recorded: tuple[float, float] | None = None
    gap: str = ""
    alone: float | None = None
    alone_gap: str = ""
    alone_recorded: tuple[float, float] | None = None
    difference_error: float | None = None
    correlation: float = 0.0
    blocks: int = 0

    @property
    def last(self) -> float | None:
        """The value at the last test; None if it is not known."""
        return self.values[-1]

    @property
    def difference(self) -> float | None:
        """The last value less that alone; None if one of them is not known."""
        return None if self.last is None or self.alone is None else self.last - self.alone

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the value: the recorded one, or Student's t around it, within the metric's bounds.

        None if its error is not known, or 0, which would claim certainty.
        """
        if self.recorded is not None or self.error == 0:
            return self.recorded
        around, (least, most) = self._around(self.last, self.error), self.reading.within
        return None if around is None else (max(around[0], least), min(around[1], most))

    @property
    def difference_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the difference; None if its error is not known.

        It is made of the recorded intervals of both values, or else Student's t around the difference.
        """
        if self.last is not None and self.alone is not None and self.recorded and self.alone_recorded:
            return difference(self.last, self.recorded, self.alone, self.alone_recorded, self.correlation)
        return self._around(self.difference, self.difference_error)

    @property
    def sign(self) -> int:
        """1 if the model is better than alone for all that the interval leaves open, -1 if it is worse, else 0."""
        between = self.difference_interval
        if between is None or between[0] <= 0 <= between[1]:
            return 0
        return 1 if (between[0] > 0) != self.reading.less_is_better else -1

    def _around(self, value: float | None, error: float | None) -> tuple[float, float] | None:
        """Return the 95 % interval around a value, by Student's t with one degree of freedom less than blocks."""
        if value is None or error is None or self.blocks < 2:
            return None
        half = float(stats.t.ppf(0.975, self.blocks - 1)) * error
        return value - half, value + half


@dataclass(frozen=True)
class Fit:
    """How good a client's model is on its own test data, and how good one is that it trains alone.

    The model is the one that the client held after a round, or the one that it had trained (``[eval] model``).

    Attributes:
        rounds: the rounds (from 0) after which the client tested; empty if it never did.
        accuracy: the accuracy after each of them, 0 to 1; None where there is none, as for a regression.
        loss: the loss after each of them.
        samples: how many test samples it has; None: not recorded.
        alone: the name of the folder with the run of single clients; None if there is no such run.
        alone_accuracy: the accuracy at the end of that run.
        alone_loss: the loss at the end of that run.
        alone_rounds: how many rounds that run has.
        how: why nothing is known of a test, or of a model alone, and how to find out; "" if both are known.
        loss_error: an upper bound of the standard error of the difference of the two losses, from their spread over the
            test samples; None: not recorded.
        main: the run's main metric, if the experiment names one (``[eval] metrics``). It is then judged in the place of
            accuracy and loss.

    Examples:
        >>> Fit(rounds=(0, 1), accuracy=(0.5, 0.75), loss=(1.0, 0.5), samples=40).last
        0.75
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
        """The accuracy at the last test, 0 to 1; None if there is none."""
        return self.accuracy[-1] if self.accuracy else None

    @property
    def last_loss(self) -> float | None:
        """The loss at the last test; None if there is none."""
        return self.loss[-1] if self.loss else None

    @property
    def difference_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the difference of the two accuracies, from Wilson's of each; None if it is not known.

        It is as if the two models erred independently. On the same samples they err together more often than not, which
        makes the true interval narrower.
        """
        ours, alone, n = self.last, self.alone_accuracy, self.samples
        return (
            None
            if ours is None or alone is None or not n
            else difference(ours, wilson(ours, n), alone, wilson(alone, n))
        )


def _fit_of(run: RunRecord, client: int, alone: Path | None = None) -> Fit:
    """Return a client's tests in a run, beside those of ``alone`` (or of a run that :func:`_find_alone` finds).

    Raises UserError for an ``alone`` that is no run of single clients on the same data with the same training.
    """
    tests = _tests(run, client)
    named = None if alone is None else _checked(run, load_run(alone))
    after = [int(m["round"]) for m in run.metrics if m.get("client/test_loss") is not None and m["round"] in run.lost]
    if after and (not tests or after[-1] > tests[-1].round):
        return Fit(how=f"its test after round {after[-1]} is lost: {run.lost[after[-1]]}")
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
    # an upper bound: as if the two models erred independently (see Fit.difference_interval)
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
    """Return the main metric over a client's tests; None if the experiment names no metric."""
    if not run.readings:
        return None
    values, last = tuple(test.main for test in tests), tests[-1]
    gap = last.gap or ("" if last.main is not None else "it is not recorded")
    error, blocks = _jackknife(last.without), len(last.without)
    return MainFit(reading=run.main, values=values, gap=gap, error=error, recorded=last.interval, blocks=blocks)


def _beside(main: MainFit, ours: _OwnTest, alone: _OwnTest, same: bool) -> MainFit:
    """Return the main metric with that of the client alone beside it.

    ``same`` says whether the run of single clients has the same metric. The error of the difference is known only if
    both runs have recorded what the metric is without each block of the same test samples.
    """
    if not same:
        return replace(main, alone_gap=f"the run of single clients has no {main.reading.title} ([eval] metrics)")
    paired = len(ours.without) == len(alone.without) and ours.samples == alone.samples
    error = _jackknife(ours.without - alone.without) if paired else None
    mine, other = _jackknife(ours.without), _jackknife(alone.without)
    both = (mine or 0.0) * (other or 0.0)
    correlation = 0.0
    if both and error is not None and mine is not None and other is not None:  # var(a - b) = var a + var b - 2 cov
        correlation = min(1.0, max(-1.0, (mine**2 + other**2 - error**2) / (2 * both)))
    return replace(
        main,
        alone=alone.main,
        alone_gap=alone.gap,
        alone_recorded=alone.interval,
        difference_error=error,
        correlation=correlation,
    )


def _jackknife(without: Floats) -> float | None:
    """Return the standard error of a figure from what it is ``without [B]`` each block; None if it is not known."""
    return _known(float(jackknife_errors(without)))


@dataclass(frozen=True)
class _OwnTest:
    """One test of one client on its own share, as :class:`hanse.runs.record.OwnTests` has it; None: not known."""

    round: int
    loss: float | None
    accuracy: float | None
    samples: int | None
    error: float | None
    main: float | None
    gap: str
    without: Floats
    interval: tuple[float, float] | None


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
        low, high = (_known(end) for end in tests.interval[i])
        between = None if low is None or high is None else (low, high)
        if loss is not None or accuracy is not None:
            number, gap = int(line["round"]), tests.gaps[i]
            found.append(_OwnTest(number, loss, accuracy, samples, error, main, gap, left, between))
    return found


def _known(number: float) -> float | None:
    """Return a number as a plain float; None for NaN and infinity, which stand for "not known" in arrays."""
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
        except UserError:  # damaged, or without a round: another run's fault must not cost this run its statement
            continue
    return None


def _checked(run: RunRecord, other: RunRecord) -> RunRecord:
    """Return ``other``, or raise UserError if it is no run of single clients that can be compared with ``run``."""
    if other.mechanism != "local":
        raise UserError(
            f"--alone {other.path}: its mechanism is '{other.mechanism}'; it must be 'local', every client by itself"
        )
    if apart := _differences(run.config, other.config):
        raise UserError(f"--alone {other.path}: is another experiment than {run.path}: {apart[0]}")
    return other


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return a line for each setting of the data, the model and the training in which two experiments differ.

    Where the files of the data lie makes no difference to the results and is not compared.
    """
    found = []
    for name in _SAME:
        a, b = ({k: v for k, v in table(c, name).items() if k not in ("path", "download")} for c in (ours, theirs))
        keys = [k for k in sorted({*a, *b}) if a.get(k) != b.get(k)]
        found += [f"{name}.{k} is {b.get(k)!r} there, {a.get(k)!r} here" for k in keys]
    return found


def _why_untested(run: RunRecord) -> str:
    """Return why a client has no test on its own data."""
    data = run.config.get("data", {})
    if data.get("client_test", 0) == 0 and data.get("client_test_from") not in ("equal", "classes"):
        return (
            "clients keep no test data of their own in this run, since [data] client_test is 0; a run with 0.25, for "
            "example, can tell"
        )
    return "the run has not tested this client on its own data; [eval] clients says how many clients are tested"


def _how(run: RunRecord, client: int) -> str:
    """Return how to learn what the client would have reached alone."""
    if run.mechanism == "local":
        return "in this run every client trains alone"
    if (run.path / "members.json").exists():
        return (
            "only the participant can find out how good a model of its own would be, since its data are not here. "
            "Train the same model on your own data alone, for as many steps, and compare on the same test data"
        )
    return (
        f"how good a model that it trains alone would be is not known yet: 'hanse statement DIR --client {client} "
        "--train-alone' plays the same experiment with every client alone"
    )


# ---- what its updates were worth


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round in which the client was asked to train, or in which its late update arrived. None: not known.

    Attributes:
        round: its number, from 0.
        value: what the client's update was worth; the sum if it had several seats.
        error: the standard error of the value, from the sampling of coalitions and the draw of the validation samples
            together.
        of: the sum of all clients' values in the round.
        share: the client's part of all values above zero, so that the shares of a round sum to 1. It is 0 if the
            client's own value is not above zero.
        weight: the weight that the update had in the model that it trained.
        late: how many rounds the update came after the one in which the client was asked.
        refused: why there was no usable update; None if there was one.
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
    """What a client's updates were worth over the run, by the mechanism's own measure.

    None means that nobody is valued in this run, that this client never was, or that it is not known.

    Attributes:
        rounds: the rounds in which the client was asked to train.
        value: the sum of its values over them.
        sampling: the standard error of that sum from the sampling of coalitions.
        drawn: its standard error from the draw of the validation samples.
        share: its part of the sums of all clients whose sum is above zero, 0 to 1. None also where values share out
            nothing, so that a part of their sum means nothing.
        place: its place among the ranked clients; 1 is the highest sum. None if fewer than two of its updates were
            valued.
        ranked: how many clients can be ranked: those of whom more than one update was valued.
        valued: of how many clients any update was valued.
        tied: the places of the clients that cannot be told apart from this one.
        share_interval: the 95 % interval of the share, from both errors together; None where that of the draw is not
            known.
        measure: what one value is called, such as "Shapley value".
        measured: a sentence on what it is.
        gaps: sentences on which rounds have no values, and why.
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
        """A sentence on the client's place, no surer than the errors allow; "" if it has no place."""
        if self.place is None:
            return ""
        many = f"the {self.ranked} clients with more than one valued update"
        told = f"By this sum it is number {self.place} of {many}."
        if not self.tied:
            return told
        if len(self.tied) == self.ranked - 1:
            others = "any of the others" if len(self.tied) > 1 else "the other"
        else:
            others = in_words(np.array(self.tied, np.int64), self.place)
        return f"{told} It cannot be told apart from {others}: the order among them may be chance."

    @property
    def error(self) -> float | None:
        """The standard error of ``value`` from both sources together; None if neither is known."""
        known = [e for e in (self.sampling, self.drawn) if e is not None]
        return math.hypot(*known) if known else None

    @property
    def exact(self) -> bool:
        """Whether the value is exact on the validation samples.

        It is if every group of updates was tried and nothing is recorded of other validation samples. The error is then
        0, which must not be shown as certainty.
        """
        return self.error == 0

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of ``value`` from both errors; None if the draw's is not known, or if the value is exact.

        The sampling of coalitions alone would make an interval that says nothing of other validation samples.
        """
        if self.value is None or self.error is None or self.drawn is None or self.exact:
            return None
        return self.value - SURE * self.error, self.value + SURE * self.error

    @property
    def sure(self) -> bool:
        """Whether the whole 95 % interval of ``value`` lies on one side of zero, or the value is exact and not zero."""
        if self.interval is None:
            return self.exact and self.value != 0
        return self.interval[0] > 0 or self.interval[1] < 0


def contributed(run: RunRecord, client: int) -> Contributed:
    """Return what a client's updates were worth, by the values that the mechanism measured.

    Args:
        run: the run, as :func:`hanse.runs.record.load_run` reads it.
        client: the client's number.
    """
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
    # an infinite sampling error means that it is not known; the other error alone would be taken for all of it
    drawn = None if np.isinf(errors.sampling[0, 0]) else _known(errors.drawn[0, 0])
    return Contributed(
        rounds=rounds,
        value=own,
        sampling=_known(errors.sampling[0, 0]),
        drawn=drawn,
        share=max(own, 0.0) / above if above > 0 and measure.share_out else None,
        place=ranked.place(client) if placed else None,
        ranked=len(ranked.clients),
        valued=len(valued),
        tied=tuple(ranked.tied_places(client).tolist()) if placed and ranked.known else None,
        share_interval=_interval(everybody, client) if measure.share_out and drawn is not None else None,
        measure=measure.name,
        measured=measure.sentence,
        gaps=tuple(without_values(run)),
    )


def _interval(sums: Standings, client: int) -> tuple[float, float] | None:
    """Return the 95 % interval of a client's part of all sums above zero, cut off at 0 and 1.

    None if its error is not known or the sums are exact: an interval of no width would claim certainty.
    """
    part, error = (float(numbers[sums.clients == client][0]) for numbers in sums.parts())
    if not math.isfinite(error) or error == 0:
        return None
    low, high = (min(1.0, max(0.0, part + side * SURE * error)) for side in (-1, 1))
    return low, high


def _positive_by_round(run: RunRecord, some: np.ndarray, played: int) -> Floats:
    """Return for each round the sum of the values above zero, ``[R]``; the seats of a client are added up first.

    ``some`` marks the seats that have a value, ``played`` is the number of rounds ``R``.
    """
    seats = run.seats
    width = run.num_clients
    key = seats.round[some] * width + seats.client[some]
    pairs, place = np.unique(key, return_inverse=True)
    values = np.bincount(place, weights=seats.value[some], minlength=len(pairs))
    found = np.bincount(pairs // width, weights=np.maximum(values, 0.0), minlength=played)
    return found.astype(np.float64)


def _sum(numbers: Floats) -> Floats:
    """Return the sum of the ``numbers`` that are not NaN; NaN if all are. An infinite one ("not known") stays so."""
    known = numbers[~np.isnan(numbers)]
    return np.asarray(known.sum() if len(known) else np.nan)


def _round(run: RunRecord, number: int, at: list[int], total: float, positive: float) -> Round:
    """Return one round of a client.

    ``at`` are the positions of its seats, ``total`` the sum of all values of the round, ``positive`` that of the values
    above zero.
    """
    seats = run.seats
    values = seats.value[at]
    # Sampling errors of several seats are independent and add as squares. Errors of the draw are not: the seats share
    # the validation samples, so these add as they are, which is the worst case.
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
_MADE = ("made_row", "made_of", "made_at")  # rows that an aggregation rule made itself, without weights in W


@dataclass(frozen=True)
class Models:
    """Where a client's models went, and what it got of others.

    Another client is *given* a model with this client's work in it if it is to start from that model next, trains on it
    in the next round, may choose among several of them at an auction, or has bought it in a market.

    Attributes:
        asked: in how many rounds the client was asked to train.
        answered: in how many of them an update of it was accepted. It may sit several times in a round.
        used: in how many of these it was mixed, with a weight other than 0, into a model that others hold as well.
        reached: how many other clients were given such a model at least once.
        deliveries: how many times in all, a client and a round being one.
        late: how many accepted updates came after their round.
        latest: by how many rounds the latest of them did.
        on_its_way: whether the client's last update had not come at the end.
        names: who was given such models and how often, most often first; None unless the run allows names.
        imported: in a market, how many models of others were delivered to it. None elsewhere.
        withheld: in how many rounds the models that it wanted were withheld because it did not pay. None elsewhere.
        utility: what the market was worth to it over the run, in tokens (iPFL eq. 1). None elsewhere.
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
    """Return where a client's models went, from the records of all rounds.

    Args:
        run: the run, as :func:`hanse.runs.record.load_run` reads it.
        client: the client's number.
        names: whether to name those who were given its models.
    """
    home: Ints = np.zeros(0, np.int64)
    answered, used = 0, 0
    got: Counter[int] = Counter()
    imported, withheld, utility, traded = 0, 0, 0.0, False
    waiting: Ints = np.zeros(0, np.int64)  # rows with its work, until the next round shows who trains on them
    before: set[int] = set()  # who was given a model in the round before, so that nobody counts twice for one model
    for line in run.metrics:
        record = run.arrays(int(line["round"]), only=(*_NEEDED, *_MADE))
        if "answered" not in record:
            continue
        # who starts from such a row in this round was sent it, even if it is not the row that this client holds
        seated = set(record["client"][np.isin(record["start"], waiting)].tolist()) - before - {client}
        got.update(seated)
        home = record.get("home", home)[: run.num_clients]  # a network has seats for clients that never came
        mine = np.flatnonzero(record["answered"] == client)  # columns of W that are its updates
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
            # rows that a market makes are others' centres, which stay with them: only what was sold went anywhere
            receivers = rows = importers
            imported, withheld, utility = imported + imports, withheld + unpaid, utility + worth
        elif traded:  # the last round of a market sells nothing: what it keeps for each client is that client's own
            receivers = rows = np.zeros(0, np.int64)
        used += bool(len(rows))
        before = set(receivers.tolist()) - {client}
        got.update(before)
        waiting = np.zeros(0, np.int64) if traded else rows.astype(np.int64)
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
    """Return the row that this client alone holds, if there is one: what is mixed into it goes to nobody else."""
    row = int(home[client]) if client < len(home) else -1
    return [row] if row >= 0 and int((home == row).sum()) == 1 else []


def _market(record: dict[str, NDArray[np.generic]], client: int) -> tuple[Ints, int, bool, float]:
    """Return what a round's market did for a client.

    These are who imported its model ``[n]``, how many models it imported, whether what it wanted was withheld, and its
    utility in tokens. An import that was not paid for was not delivered and does not count.
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
    """One line of the client's account or of its escrow.

    Attributes:
        number: the number of its transaction in the ledger.
        round: the round in which it was posted, from 0.
        step: the name of the transaction's step, which is unique in its round.
        kind: what kind of transaction it is, such as "grant" or "bid".
        memo: what it was for, in words.
        account: "client/N" or "escrow/N".
        units: the amount, above zero if the account received it (1 token is 1,000,000 units).
        holds: what account and escrow hold together after it, in units.
        others: the other accounts that the transaction moves; empty unless the run allows names.
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
    """The sum of all postings of one kind.

    Attributes:
        kind: the kind, as the ledger calls it.
        what: what it is called on the page.
        received: the units that came in.
        paid: the units that went out.
        transactions: the numbers of the transactions that make up the sum.
        within: whether they only move units between the client's own account and its escrow.
    """

    kind: str
    what: str
    received: int
    paid: int
    transactions: tuple[int, ...]
    within: bool = False


@dataclass(frozen=True, kw_only=True)
class Money:
    """A participant's books. Amounts are units; 1 token is 1,000,000 units.

    Attributes:
        book: the name of the book.
        count: how many transactions the book has.
        head: the hash of the last one, by which a receipt is held against the book.
        floor: the balance below which no account may fall.
        granted: what the mint gave it.
        received: what it received besides.
        paid: what it paid.
        balance: what its account holds.
        escrow: what is held in escrow for it.
        figures: the sums by kind, in order of appearance.
        lines: every posting.
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
        """What taking part brought or cost, in units: what was received less what was paid, without the grant."""
        return self.received - self.paid


def money_of(
    folder: Path,
    client: int,
    *,
    kinds: Mapping[str, str] | None = None,
    names: bool = False,
    ledger_url: str | None = None,
) -> Money | None:
    """Return the books of a client; None if nobody pays in this run.

    Args:
        folder: the run directory.
        client: the client's number.
        kinds: what kinds of transactions are called on the page; a kind without an entry keeps its own name.
        names: whether postings name the other accounts of their transactions.
        ledger_url: where the books are, if not in the folder.

    Raises:
        UserError: the books are missing, cannot be read or do not hold.
    """
    if not (folder / "ledger.json").exists():
        return None
    mine, kept = account_of(client), escrow(client)
    with reading(folder, ledger_url) as ledger:
        # the run may be posting meanwhile: what comes after this moment is left out, so that all sums agree
        book = ledger.as_book()
        records = {r.number: r for name in (mine, kept) for r in ledger.history(name) if r.number <= book.count}
    if wrong := _wrong_in(folder, ledger_url, book.head):
        raise UserError(
            f"{folder}: no statement of books that do not hold: {wrong} ('hanse ledger verify' checks them)"
        )
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


@lru_cache(maxsize=8)
def _wrong_in(folder: Path, ledger_url: str | None, head: str) -> str | None:
    """Return what is wrong with a run's books, None if they hold. Statements of many clients ask once for each head."""
    return wrong_in(folder, ledger_url)


def _own_lines(records: Iterable[Record], client: int, called: Mapping[int, str] | None = None) -> tuple[Posting, ...]:
    """Return the postings of a client's account and escrow among ``records``, which come in order of their numbers.

    ``called`` has the clients' names; with it the other accounts of each transaction are listed. None lists none.
    """

    def named(account: str) -> str:
        """Return an account with its owner's name behind it, if that is known."""
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
    """Return the sums of postings by kind, in order of appearance.

    Units that only move between the client's two accounts, as a bid does before it wins a seat, are no expense: such a
    kind is marked as ``within`` and shows what moved on the account itself.
    """
    net = Counter[int]()  # what each transaction changes of both accounts together
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
"""What the statement says of joining; :class:`JoiningVerdict` explains each."""
CLEAR = 2.0  # a difference of losses counts if it is more than this many standard errors
_UNSURE = "How much of the difference is chance is not known, so that it does not count."


@dataclass(frozen=True)
class JoiningVerdict:
    """Whether joining paid.

    Two things are judged: the client's model against the one that it trains alone, and its tokens (in a market its
    utility, which has the payments in it).

    Attributes:
        answer: "yes" if at least one of the two gained and none lost; "no" the other way round; "mixed" if one gained
            and the other lost; "even" if the numbers show no difference; "unknown" if there is nothing to compare.
        headline: the answer in a sentence. It says so where only the tokens decide.
        reasons: a sentence on each of the two and, if they disagree, one on what one cost in terms of the other.
    """

    answer: Answer
    headline: str
    reasons: tuple[str, ...]


# what the tokens, or the market's own count of them, say where the model says nothing
_ECONOMY: dict[Answer, str] = {
    "yes": "joining paid",
    "no": "joining did not pay",
    "even": "joining made no difference",
}
_UNKNOWN, _EVEN = "whether its model is better is not known", "its model is not clearly better or worse"
_HEADLINES: dict[Answer, str] = {
    "yes": "Yes, joining paid",
    "no": "No, joining did not pay",
    "mixed": "It depends on what a token is worth to you",
    "even": "Joining made no difference that could be measured",
    "unknown": "Whether joining paid is not known",
}


def verdict_of(fit: Fit, money: Money | None, models: Models) -> JoiningVerdict:
    """Return whether joining paid, judged by the model and by the tokens.

    Args:
        fit: the client's model beside the one alone.
        money: its books; None where nobody pays.
        models: what it got in a market, if there is one.

    Example:
        >>> models = Models(asked=10, answered=10, used=10, reached=3, deliveries=30)
        >>> for samples in (400, 30):  # 90 % against 80 %, by how many test samples
        ...     fit = Fit((9,), (0.9,), (0.4,), samples, alone="alone", alone_accuracy=0.8, alone_loss=0.6)
        ...     print(verdict_of(fit, None, models).headline)
        Yes, joining paid
        Joining made no difference that could be measured
    """
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
    return JoiningVerdict(answer, _headline(answer, judged[0][0], judged[1][0], money, models), tuple(reasons))


def _headline(answer: Answer, model: int | None, economy: int | None, money: Money | None, models: Models) -> str:
    """Return the answer in a sentence. Where the model does not decide it says so, and first what moved in a market."""
    undecided = economy is not None and answer in _ECONOMY and (model is None or (model == 0 and answer != "even"))
    if not undecided:
        return _HEADLINES[answer]
    rest = f"{_ECONOMY[answer]}; {_UNKNOWN if model is None else _EVEN}"
    if models.utility is None:
        return f"In tokens {rest}"
    if money is None:
        return f"By the market's own count {rest}"
    more, less = ("received", "paid") if money.net > 0 else ("paid", "received")
    moved = f"It {more} {tokens(abs(money.net))} tokens more than it {less}"
    return f"{moved if money.net else 'It paid as many tokens as it received'}; by the market's own count {rest}"


def _model(fit: Fit) -> tuple[int | None, str]:
    """Return how the model compares with the one alone, and the sentence that says so.

    The first is 1 for a better model, -1 for a worse one, 0 if it cannot be told, and None if there is nothing to
    compare.
    """
    if fit.last is None and fit.last_loss is None:
        return None, f"How good its model is, is not known: {fit.how}."
    if fit.main is not None:
        return _by_main(fit.main)
    ours, alone = fit.last, fit.alone_accuracy
    if ours is None or alone is None:
        return _loss(fit)
    points = 100 * (ours - alone)
    told = f"Its model gets {100 * ours:.1f} % of its own test data right; alone it would reach {100 * alone:.1f} %"
    between = fit.difference_interval
    if between is None:
        unsure = "The number of test samples is not recorded, so that the difference may be chance."
        return (points > 0) - (points < 0), f"{told}. {unsure}"
    if points == 0:
        return 0, f"{told}, so the two are the same."
    low, high = (100 * end for end in between)
    said = f"with 95 % confidence between {low:+.1f} and {high:+.1f}"
    if low <= 0 <= high:
        return 0, f"{told}. On {fit.samples} samples a difference of {points:+.1f} points may be chance ({said})."
    return (1 if points > 0 else -1), f"{told}: a difference of {points:+.1f} points, {said}."


def _by_main(main: MainFit) -> tuple[int | None, str]:
    """Return the same as :func:`_model`, judged by the run's main metric.

    Both models are tested on the same samples, so the error is that of the difference itself and not an upper bound.
    """
    reading, last = main.reading, main.last
    if last is None:
        return None, f"Its model's {reading.title} on its own test data is not known: {main.gap}."
    sure = "" if main.interval is None else f" (95 % interval {' to '.join(map(reading.show, main.interval))})"
    told = f"Its model's {reading.title} on its own test data is {reading.show(last)}{sure}"
    if main.difference is None or main.alone is None:
        return None, f"{told}; what it would be alone is not known{f': {main.alone_gap}' if main.alone_gap else ''}."
    told += f"; alone it would be {reading.show(main.alone)}{' (less is better)' if reading.less_is_better else ''}"
    between = main.difference_interval
    if between is None:
        return 0, f"{told}. {_UNSURE}"
    low, high = map(reading.show_difference, between)
    said = f"with 95 % confidence the difference is between {low} and {high}"
    if low == high == reading.show_difference(0.0):
        return 0, f"{told}: in these digits the two are the same."
    if not main.sign:
        return 0, f"{told}. The two cannot be told apart: {said}."
    return main.sign, f"{told}: {reading.show_difference(main.difference)}, and {said}."


def _loss(fit: Fit) -> tuple[int | None, str]:
    """Return the same as :func:`_model` for a model without an accuracy, as of a regression, judged by its loss."""
    if fit.last is not None and fit.alone is None:
        right = f"Its model gets {100 * fit.last:.1f} % of its own test data right"
        return None, f"{right}; how much it would be alone is not known."
    ours, alone = fit.last_loss, fit.alone_loss
    if ours is None or alone is None:
        told = f"Its model's loss on its own test data is {ours:.4g}; what it would be alone is not known."
        return None, "" if ours is None else told
    told = f"Its model's loss on its own test data is {ours:.4g}; alone it would be {alone:.4g} (less is better)."
    if fit.loss_error is None:
        return 0, f"{told} {_UNSURE}"
    if abs(ours - alone) <= CLEAR * fit.loss_error:
        return 0, f"{told} A difference of {ours - alone:+.2g} may be chance (standard error {fit.loss_error:.2g})."
    return (1 if ours < alone else -1), f"{told} The difference has a standard error of at most {fit.loss_error:.2g}."


def _economy(money: Money | None, models: Models) -> tuple[int | None, str]:
    """Return the same as :func:`_model` for the market's utility, or for the tokens where there is no market.

    A market's utility has its payments in it already, so the two are not added up.
    """
    told, net = "Nobody pays in this run.", 0
    if money is not None:
        net = money.net
        told = f"Not counting its grant, it received {tokens(money.received)} tokens and paid {tokens(money.paid)}, "
        told += f"which makes {'+' if net >= 0 else ''}{tokens(net)}."
        told += f" Of its tokens {tokens(money.escrow)} are held in escrow." if money.escrow else ""
    if models.utility is None:
        return (None if money is None else (net > 0) - (net < 0)), told
    u = models.utility
    told += f" By the market's own count, joining was worth {u:+.2f} tokens to it: what it gained from others' models, "
    told += "less the cost of sharing its own" + (" and that net payment." if money is not None else ".")
    return (u > 0) - (u < 0), told


def _rate(fit: Fit, money: Money | None, models: Models) -> str:
    """Return a sentence on what a better model cost in tokens, or what was earned for a worse one.

    "" if one of the two is not known, or if both gained or both lost.
    """
    reading = ACCURACY if fit.main is None else fit.main.reading
    ours, alone = (fit.last, fit.alone_accuracy) if fit.main is None else (fit.main.last, fit.main.alone)
    if ours is None or alone is None or (money is None and models.utility is None):
        return ""
    points = 100 * (ours - alone) * (-1 if reading.less_is_better else 1)
    worth = models.utility if models.utility is not None else money.net / TOKEN if money is not None else 0.0
    if worth * points >= 0:
        return ""
    per, step = abs(worth / points), "point" if reading.percent else "0.01"
    what = f"{per:.3g} tokens{' of utility' if models.utility is not None else ''} for each {step} of {reading.title}"
    return f"It paid {what}." if points > 0 else f"It earned {what} that it gave up."


# ---- the same experiment with every client by itself


def alone_experiment(experiment: Experiment) -> Experiment:
    """Return the same experiment with every client by itself (the mechanism ``local``).

    Data, model, training, tests, rounds and seed stay. Behaviours are left out: a client that sends nothing has nobody
    to cheat.

    Args:
        experiment: the experiment that the clients joined.

    Examples:
        >>> joined = Experiment(mechanism="greedyfed", run={"rounds": 5})
        >>> alone = alone_experiment(joined)
        >>> alone.mechanism.name, alone.run.rounds
        ('local', 5)
    """
    given = experiment.sections()
    keep = {name: given[name] for name in ("data", "model", "train", "eval")}
    engine = {"device": given["engine"]["device"], "precision": given["engine"]["precision"]}
    run = {name: given["run"][name] for name in ("rounds", "seed", "checkpoint_every")}
    return Experiment(**keep, mechanism={"name": "local"}, engine=engine, run=run)


def train_alone(folder: Path, observers: Sequence[Observer] = ()) -> Path:
    """Train every client of a run by itself, and return the directory of that run, ``folder/alone``.

    If it is there already, an unfinished run is continued and a finished one stays as it is.

    Args:
        folder: the run directory of the federation.
        observers: watch the run, such as a progress bar.

    Raises:
        UserError: there is no run, or it was a federation on a network, whose data are with the participants.
    """
    from hanse.runs import experiment as running  # imported here, since most statements play nothing

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
