"""Who gains by joining a federation: compares each client's model, on its own test rows, with one trained alone.

:func:`who_gains` (``hanse.who_gains``) plays several mechanisms, and every client alone, on the same data, and returns
:class:`Joining`. Its verdict on a client is that of the client's statement
(:class:`hanse.reports.fits.Fit`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from hanse.base.errors import UserError, in_python
from hanse.base.factories import OBJECT, defaults, named_choice, whole_number
from hanse.base.files import given_path, table
from hanse.core.part import Mechanism, in_slots
from hanse.data.build import with_own
from hanse.data.dataset import Dataset
from hanse.data.encoding import Statistics
from hanse.data.frames import Features, is_frame, possible_clients
from hanse.data.kinds import Column
from hanse.data.labels import Labels
from hanse.data.units import Cut
from hanse.games.jackknife import FEW_SPLITS, SURE, split_error
from hanse.lab.job import Rounds
from hanse.learning.metrics import ACCURACY, MetricStyle
from hanse.learning.models import Factory
from hanse.reports.alone import ALONE
from hanse.reports.chart import Chart, Curve, Lines, slug
from hanse.reports.evaluations import progress as shown
from hanse.reports.facts import ClientFacts, RunOf, answer_of, paid_to_join
from hanse.reports.fits import finite_or_none
from hanse.reports.showing import Displayed, Picture, frame
from hanse.reports.words import Note, said
from hanse.runs import experiment as running
from hanse.runs.chance import NEAR_ALL, Guess
from hanse.runs.config import Experiment
from hanse.runs.observers import mostly_refused
from hanse.runs.run_record import RunRecord, load_run
from hanse.runs.sections import RunSection
from hanse.runs.setup import Own, build

if TYPE_CHECKING:
    import pandas as pd

_POINT = 0.01  # of a metric's range: what is surely less does not pay
_OF_SERVER = 0.2  # the share of rows that goes to the server, for mechanisms that judge updates on them


_NUMBER = re.compile(r"(?<!['\w.])\d[\d.,]*")  # a count; what stands in quotes is a name


@dataclass(frozen=True, eq=False, repr=False)
class Joining(Displayed):
    """Who gains by joining, by mechanism. The answer prints as a table, and a notebook also shows its picture.

    Attributes:
        gains: by mechanism, the facts of each client (:class:`hanse.reports.facts.ClientFacts`): what it has ``alone``
            and ``joined``, its ``gain`` and whether joining ``paid_to_join``. With several splits, the means of these.
        reading: the metric's name and how it is shown.
        splits: the number of splits of the data over which gains are averaged.
        played: sentences on the settings used, since other settings give other gains.
        notes: warnings and notes of the runs, such as data that may be meant otherwise than they were read.
        unit: what is drawn anew: "row", or the name of the units, such as "patient".
        means: by mechanism, the mean over all clients with a known gain, as a row of nobody. Its interval is of the
            spread over the splits; None with fewer than five.
    """

    gains: Mapping[str, tuple[ClientFacts, ...]]
    reading: MetricStyle
    splits: int = 1
    played: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unit: str = "row"
    means: Mapping[str, ClientFacts] = field(default_factory=dict)

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms that clients joined."""
        return tuple(self.gains)

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients."""
        return tuple(row.name for row in next(iter(self.gains.values())))

    def of(self, mechanism: str) -> tuple[ClientFacts, ...]:
        """Return the clients' facts by one mechanism. Raises UserError if that mechanism was not played."""
        if mechanism not in self.gains:
            raise UserError(f"mechanism: {mechanism!r}: is not among {', '.join(self.mechanisms)}")
        return self.gains[mechanism]

    def pays(self, mechanism: str) -> Literal["pays", "does not", "open"]:
        """Return whether joining pays, by the rule of ``docs/mechanisms/index.md``.

        It "pays" if the mean gain is surely above 0, and two of three clients are better off. It "does not" if the mean
        gain is surely below a point (of a metric without bounds: below 0). Else, and without an interval, it is "open".
        Raises UserError if that mechanism was not played.
        """
        better = [row.gain > 0 for row in self.of(mechanism) if row.gain is not None]
        mean = self.means.get(mechanism)
        if mean is None or mean.gain_low is None or mean.gain_high is None:
            return "open"
        if mean.gain_low > 0 and 3 * sum(better) >= 2 * len(better):
            return "pays"
        width = self.reading.within[1] - self.reading.within[0]
        return "does not" if mean.gain_high < (_POINT * width if np.isfinite(width) else 0.0) else "open"

    @cached_property
    def _counts(self) -> dict[str, tuple[int, int, int, float]]:
        """For each mechanism how many clients are surely better off, surely worse and neither, and the mean gain."""
        freedom = self.splits - 1 if self.splits >= FEW_SPLITS else math.inf
        told = iter(paid_to_join([row for own in self.gains.values() for row in own], freedom))
        counts = {}
        for name, own in self.gains.items():
            answers, gains = Counter(islice(told, len(own))), [row.gain for row in own if row.gain is not None]
            if gains:
                counts[name] = (answers["yes"], answers["no"], answers["even"], float(np.mean(gains)))
        return counts

    @property
    def verdict(self) -> tuple[Note, ...]:
        """Which mechanism is best, for how many clients it is, and in what it is ahead of the others."""
        counts = self._counts
        ahead = {name: up - down for name, (up, down, _, _) in counts.items()}
        best = max(counts, key=lambda name: (ahead[name], counts[name][3]), default=None)
        if best is None:
            return (Note("nobody_known", "warning"),)
        up, down, open_, _ = counts[best]
        fields = {"name": best, "n": len(self.clients), "up": up, "down": down, "open": open_,
                  "unsure": len(self.clients) - down}  # fmt: skip
        alike = {"many": len(self.mechanisms), "name": best, "alike": [*ahead.values()].count(ahead[best]) > 1}
        return (Note("who_gains", "note", fields), *[Note("ahead", "note", alike)] * (len(self.mechanisms) > 1))

    def sentences(self) -> Sequence[str]:
        """Return which mechanism is best, and for each one who gains, who loses, and for whom that is not clear.

        All these claims together hold with 95 % (:func:`hanse.reports.fits.surely`), so that fewer clients may be
        counted as sure than are by their own rows.
        """
        first, shown = " ".join(note.said for note in self.verdict), self.reading.show_difference
        each = [
            said("by_mechanism", name, *own[:3], shown(own[3]), self.reading, self.means.get(name), self.pays(name))
            for name, own in self._counts.items()
        ]
        for name in self.mechanisms:
            unknown = [row.name for row in self.of(name) if row.gain is None]
            unsure = [row.name for row in self.of(name) if row.gain is not None and row.gain_low is None]
            for code, who in (("not_measured", unknown), ("no_interval", unsure)):
                each += [said(code, name, who, len(who), len(self.clients))] if who else []
        known = [row.alone for own in self.gains.values() for row in own if row.alone is not None]
        alone = float(np.mean(known)) if known else -np.inf
        if self.reading.percent and not self.reading.less_is_better and alone >= NEAR_ALL:
            each.append(said("nothing_to_gain", self.reading.show(alone)))
        return [
            first,
            *self.notes,
            *each,
            said("what_gains_are", self.splits, self.unit, self.splits >= FEW_SPLITS),
            *self.played,
        ]

    def shown_table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return a row for each client: its metric alone, and its gain by each mechanism with the interval."""
        rows = []
        for i, client in enumerate(self.clients):
            own = [self.of(name)[i] for name in self.mechanisms]
            alone = "–" if own[0].alone is None else self.reading.show(own[0].alone)
            rows.append([client, alone, *map(self._told, own)])
        return ("", f"{self.reading.title} alone", *self.mechanisms), rows

    def _told(self, row: ClientFacts) -> str:
        if row.gain is None:
            return "–"
        words, ends = self.reading.show_difference(row.gain), (row.gain_low, row.gain_high)
        told = [self.reading.show_difference(end).removesuffix(" points") for end in ends if end is not None]
        return f"{words} ({' to '.join(told)})" if told else words

    def plot(self) -> Picture:
        """Return a picture of all clients' gains with their 95 % intervals, one colour per mechanism."""
        factor, many = self.reading.factor, len(self.mechanisms)
        lines = []
        for k, name in enumerate(self.mechanisms):
            own = self.of(name)
            x = np.arange(len(own)) + np.float64(0.5 * ((k + 0.5) / many - 0.5))  # next to each other
            gain, low, high = np.array([[r.gain, r.gain_low, r.gain_high] for r in own], np.float64).T * factor
            lines.append(Curve(name, x, gain, low, high, dots=True))
        unit = " (points)" if self.reading.percent else ""
        caption = said("gains_caption", self.reading.title)
        marks = Lines(tuple(lines), zero=True, whole=False, places=self.clients, named=True)
        axis = f"gain in {self.reading.title}{unit}"
        return Picture(Chart("who-gains", "", "Whom does joining pay?", caption, marks, y=axis))

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with a row for each client and mechanism: joined, alone, gain, low, high, samples, units.

        Raises:
            UserError: pandas is not installed.
        """
        rows = [
            {"client": row.name, "mechanism": name, "joined": row.joined, "alone": row.alone, "gain": row.gain,
             "low": row.gain_low, "high": row.gain_high, "samples": row.test_rows,
             "units": None if row.unit == "row" else row.units}
            for name, own in self.gains.items() for row in own
        ]  # fmt: skip
        return frame(rows, "client").astype(dict.fromkeys(("joined", "alone", "gain", "low", "high"), float))


def _as_arguments(line: str) -> str:
    """Return a message with the arguments of :func:`who_gains` in place of the experiment's settings they stand for."""
    keys = "target|features|prepare|statistics|client_column|group|time|cut|labels|min_samples"
    line = re.sub(rf"\bdata\.source\.({keys})\b", r"\1", line)
    line = line.replace("lower min_samples", "give hanse.data.as_dataset(..., min_samples=...) with a lower one")
    return line.replace("prepare = 'auto'", 'prepare="auto"').replace("client_column", "client")


@in_python(_as_arguments)
def who_gains(
    data: Any,
    *,
    target: Column | None = None,
    client: Column | None = None,
    features: Features | None = None,
    model: nn.Module | Factory | str | Mapping[str, Any] | None = None,
    mechanisms: Sequence[Any] | Mapping[str, Any] = (ALONE, "fedavg", "ditto"),
    metric: str | Mapping[str, Any] | Callable[..., float] | None = None,
    train: Mapping[str, Any] | None = None,
    alone: Mapping[str, Any] | None = None,
    rounds: int | None = None,
    test: float = 0.3,
    splits: int = 1,
    seed: int = 0,
    prepare: str | None = None,
    statistics: Statistics = "own",
    group: Column | None = None,
    time: Column | None = None,
    cut: Cut = "each_client",
    labels: Labels | None = None,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> Joining:
    """Return who gains by joining a federation: how much better each client's model is than one that it trains alone.

    Every client keeps a share of its rows for tests. Each mechanism trains on the same rows as every client alone. Both
    models of a client are tested on the client's own test rows. Whatever is not given here is as in :func:`hanse.run`,
    with one exception. Nobody needs a server's test set for this question, so the clients keep these rows (unless a
    mechanism judges updates on them).

    Args:
        data: whatever :func:`hanse.run` takes, such as a pandas DataFrame; or ``{"schema": ..., "files": [...]}``, as
            ``data.source`` of a rehearsal, where the schema also says which rows are kept for tests (not ``test``).
        target: the column to be predicted, if the data are a table.
        client: the column that names the client of each row, if the data are a table.
        features: the columns of features, if the data are a table. None: all other columns.
        model: a module or a function that makes one, as for :func:`hanse.run`, or the name of a model of hanse.
            None: the default of ``[model]``.
        mechanisms: names, tables with options, or mechanisms put together in Python. A dictionary gives them names.
            "local", every client alone, is always played.
        metric: the metric of the tests, such as "accuracy", "auc" or "rmse", or a function (``[eval] metrics``).
            None: accuracy, or the loss for regression.
        train: settings of ``[train]`` for all, such as ``{"lr": 0.05, "epochs": 2}``.
        alone: settings of ``[train]`` that differ for clients that train alone. Without its own weight decay a small
            client may overfit, and joining looks better than it is.
        rounds: how many rounds are played. None: the default of ``[run]``.
        test: the share of each client's rows that is kept for tests, above 0 and below 1.
        splits: how often to repeat everything with different test rows. Gains are averaged over the splits. From five
            on, intervals are of the spread over the splits, corrected for the rows that these share (Nadeau and Bengio
            2003). They then cover the draw of the trained rows, too. With fewer, or where all splits have the same
            gain, interval ends are averaged.
        seed: the seed of the first split. The seeds of the other splits follow from it.
        prepare: how a table's columns become numbers. "auto" fills gaps, scales numbers, and makes columns of words and
            dates. The alternative is the import path of a function that makes a scikit-learn transformer, such as a
            ``ColumnTransformer``. None: the columns are numbers already.
        statistics: on which rows ``prepare`` is fitted: each client's "own" rows, or the "pooled" rows of all clients.
        group: the column that says what each row is of, such as its patient. No unit is both trained and tested on, and
            intervals count units. "none": every row is a unit. Arrays have their units as ``(x, y, clients, units)``.
        time: the column that says when a row was observed. Later rows are never trained on.
        cut: with ``time``, whether every client's rows are divided by a date of their own, or all by one.
        labels: what labels are to be called that clients call otherwise; under a client's name for that client alone.
        out: a folder for the runs, for :func:`hanse.load` and ``hanse report``. None: they are not kept.
        progress: whether to show a bar on standard error. None: after 2 seconds, in a terminal or notebook.

    Returns:
        The gains by client and mechanism (:class:`hanse.lab.joining.Joining`).

    Raises:
        UserError: for the reasons of :func:`hanse.run`; if ``test`` or ``splits`` is out of range; if the data do not
            say to which client each row belongs (it is meaningless to ask whether joining pays made-up clients); or if
            they look like several rows of one person, and ``group`` is not given.

    Examples:
        Three shops. Bremen has few customers, and Kiel's are the opposite of the others':

        >>> import numpy as np
        >>> draw = np.random.default_rng(0)
        >>> shops = np.array(["Bremen"] * 150 + ["Visby"] * 700 + ["Kiel"] * 180)
        >>> x = draw.normal(size=(len(shops), 30))
        >>> y = (np.where(shops == "Kiel", -1, 1) * x.sum(axis=1) > 0).astype(int)
        >>> found = who_gains((x, y, shops), mechanisms=["fedavg"], model="logistic", rounds=10)
        >>> [(row.name, row.paid_to_join) for row in found.of("fedavg")]
        [('Bremen', 'yes'), ('Kiel', 'no'), ('Visby', 'even')]
    """
    rounds = RunSection().rounds if rounds is None else rounds
    if isinstance(test, bool) or not isinstance(test, int | float) or not 0 < test < 1:
        raise UserError(f"test: {test!r}: must be a share above 0 and below 1: without test rows nobody can compare")
    whole_number("splits", splits, 1)
    whole_number("rounds", rounds, 1)
    whole_number("seed", seed, 0)
    for name, options in (("train", train), ("alone", alone)):
        if not isinstance(options, Mapping | None):
            raise UserError(f"{name}: {options!r:.80}: must be a table of settings of [train], such as {{'lr': 0.05}}")
    called = _called(mechanisms)
    given: dict[str, Any] = {"target": target, "client_column": client, "features": features, "prepare": prepare}
    given |= {"statistics": statistics, "group": group, "time": time, "cut": cut, "labels": labels}
    source = {key: value for key, value in given.items() if value is not None}
    parts = [part for one in called.values() for part in Experiment(mechanism=one).mechanism.built.slots().items()]
    judged = any("validation" in in_slots(part.needs, [slot]) for slot, part in parts)  # on rows of the server
    source["test"] = _OF_SERVER if judged else 0.0
    by_schema = isinstance(data, Mapping) and "schema" in data and {*data} <= {"schema", "files", "sha256"}
    if by_schema:
        for_rows, usual = given | {"test": test, "splits": splits}, defaults(who_gains)
        if odd := [key.removesuffix("_column") for key, value in for_rows.items() if value != usual.get(key)]:
            raise UserError(*(f"{key}: the schema says it, and has one split; leave it out" for key in odd))
    own_data = None if by_schema else data
    source = dict(data) if by_schema else source
    dataset = _owned(own_data, source, target, client)
    withhold(dataset.doubt)
    named = metric if metric is not None else None if dataset.num_classes is None else ACCURACY.key
    called, kept = {ALONE: ALONE, **called}, {} if by_schema else {"client_test": test}
    own = Own(own_data, None if isinstance(model, str | Mapping) else model)

    def experiment(label: str, split: int) -> Experiment:
        return Experiment(
            data={"source": source, **kept, "seed": split},
            model=model if isinstance(model, str | Mapping) else {},
            mechanism=called[label],
            train={**(train or {}), **((alone or {}) if label == ALONE else {})},
            eval={"every": rounds} if named is None else {"every": rounds, "metrics": [named]},
            run={"rounds": rounds, "seed": split},
        )

    _check_all(list(called), lambda label: build(experiment(label, seed), own=own).engine.close())
    results, notes = list[dict[str, tuple[ClientFacts, ...]]](), list[str]()
    with ExitStack() as stack:
        folder = given_path("out", stack.enter_context(TemporaryDirectory()) if out is None else out)
        bar, played, most = stack.enter_context(shown(progress, "rounds")), count(1), splits * len(called) * rounds
        for split in range(splits):
            experiments = {label: experiment(label, seed + split) for label in called}
            place = folder if splits == 1 else folder / f"split-{split}"
            runs, more = _played(experiments, own, place, lambda label, _: bar(next(played), most, label))
            notes += _unlike(more, notes)
            alone_run = runs.pop(ALONE)
            for run in runs.values():
                withhold(run.about.doubt)
            results.append({label: RunOf(run, alone_run).clients for label, run in runs.items()})
        reading, unit = counted_in(alone_run)  # while the run's files are there
    told = settings_of([*runs.values()][-1], alone_run)
    found, means = dict[str, tuple[ClientFacts, ...]](), dict[str, ClientFacts]()
    for label in runs:
        each = [split[label] for split in results]
        found[label] = tuple(_mean(rows, test, reading) for rows in zip(*each, strict=True))
        known = [row.gain is not None for row in found[label]]
        means[label] = _mean([_of_all(rows, known) for rows in each], test, reading)
    notes = [*(_guessed(found, dataset) if reading == ACCURACY else []), *dict.fromkeys(notes)]
    return Joining(found, reading, splits, told, tuple(notes), unit, means)


def withhold(doubt: str) -> None:
    """Raise UserError if there is a doubt of what rows are."""
    if doubt:
        raise UserError(f"{doubt}: until then nobody can tell whether joining pays")


def _owned(data: Any, source: Mapping[str, Any], target: Column | None, client: Column | None) -> Dataset:
    """Return the data set. Raises UserError if it does not say which client a row belongs to."""
    if client is None and is_frame(data):
        columns = ", ".join(repr(c) for c in possible_clients(data, target)) or "no column that repeats"
        raise UserError(f"client: is needed for a table: the column with the client of each row; it could be {columns}")
    dataset = with_own(Experiment(data={"source": source}, mechanism=ALONE).data, data)[1]
    assert dataset is not None  # data were given, or with_own has refused them
    if dataset.client_of is None:
        raise UserError(f"data: {dataset.name}: do not say which client a row belongs to, so that nobody could join")
    if len(set(dataset.client_of.tolist())) < 2:
        raise UserError(f"data: {dataset.name}: has one client, who has nobody to join")
    return dataset


def _called(mechanisms: Any) -> dict[str, Any]:
    """Return the mechanisms that clients join by what they are called, without that of clients alone.

    Raises:
        UserError: there is none, or two are called alike.
    """
    if isinstance(mechanisms, str | Mechanism):
        mechanisms = [mechanisms]
    if isinstance(mechanisms, Mapping):
        pairs = [(str(name), one) for name, one in mechanisms.items()]
    elif isinstance(mechanisms, list | tuple):
        pairs = [(_name(one), one) for one in mechanisms]
    else:
        raise UserError(f"mechanisms: {mechanisms!r:.80}: must be a list of mechanisms, or a dictionary by name")
    joined = [(name, one) for name, one in pairs if _name(one) != ALONE]
    named_mechanisms = dict(joined)
    if len({ALONE, *named_mechanisms}) <= len(joined):
        raise UserError(f"mechanisms: two are called alike ('{ALONE}' is always one): name each in a dictionary")
    if not named_mechanisms:
        raise UserError(f"mechanisms: {mechanisms!r}: must have one besides '{ALONE}', which clients could join")
    return named_mechanisms


def _name(mechanism: Any) -> str:
    """Return a mechanism's name."""
    if isinstance(mechanism, Mapping):
        return str(mechanism.get("name"))
    return mechanism.name if isinstance(mechanism, Mechanism) else str(mechanism)


def _check_all(labels: Sequence[str], check: Callable[[str], None]) -> None:
    """Raise UserError if any of the mechanisms cannot be played, before the first one is."""
    lines = dict[str, list[str]]()
    for label in labels:
        try:
            check(label)
        except UserError as wrong:
            for line in wrong.lines:
                lines.setdefault(line, []).append(label)
    if lines:  # what is wrong with all is not said of each
        raise UserError(*(x if len(of) == len(labels) else f"{', '.join(of)}: {x}" for x, of in lines.items()))


def _played(
    experiments: Mapping[str, Experiment], own: Own, folder: Path, told: Callable[[str, int], None]
) -> tuple[dict[str, RunRecord], list[str]]:
    """Play every experiment, each in a directory of its own below ``folder``, and return the runs by label, and their
    warnings. ``told`` is given a run's label and 1 after each round.
    """
    found, notes = {}, list[str]()
    for k, (label, experiment) in enumerate(experiments.items()):
        place = folder / (slug(label) if label == ALONE else f"{k}-{slug(label)}")
        counts = Rounds(partial(told, label))
        run = running.run(experiment, data=own.data, model=own.model, out=place, observers=[counts])
        notes += [_as_arguments(line) for line in run.said if line.startswith("warning: ")]
        if lost := mostly_refused(run.clients, run.names):
            notes.append(f"warning: {label}: {'among others, ' if len(lost) > 1 else ''}{lost[0]}")
        found[label] = load_run(place)
    return found, notes


def _unlike(notes: Sequence[str], earlier: Sequence[str]) -> list[str]:
    """Return the notes of a split that differ from those of earlier ones in more than their counts."""
    told = {_NUMBER.sub("#", line) for line in earlier}
    return [line for line in notes if _NUMBER.sub("#", line) not in told]


def counted_in(run: RunRecord) -> tuple[MetricStyle, str]:
    """Return the metric in which gains are measured, and what is drawn anew for their intervals."""
    found = RunOf(run)
    return next((fit.reading for fit in found.fits.values() if fit.last is not None), run.main), found.unit


def _guessed(gains: Mapping[str, Sequence[ClientFacts]], dataset: Dataset) -> list[str]:
    """Return a warning if all models together, alone or joined, are no better than naming a client's usual class."""
    owners = np.asarray(dataset.client_of)
    rows = [torch.from_numpy(np.flatnonzero(owners == client)) for client in np.unique(owners)]
    own = [guess for one in rows if (guess := Guess.of(dataset.train.take(one))) is not None]
    most = float(np.average([guess.most for guess in own], weights=[guess.samples for guess in own]))
    rows_of_all = [row for own in gains.values() for row in own]
    tests = [row.test_rows or 1 for row in rows_of_all]
    figures = np.array([[row.joined, row.alone] for row in rows_of_all], np.float64)  # None: NaN
    best = max(np.average(figures, axis=0, weights=tests).tolist())
    return [said("guessed", most)] if best <= Guess(sum(tests), most, 0.0).bar else []


def settings_of(joined: RunRecord, alone: RunRecord) -> tuple[str, ...]:
    """Return sentences on what gains depend on besides the mechanism: model, training, rounds, test rows.

    Args:
        joined: the run of the federation.
        alone: the run of the clients alone.
    """
    config = {name: table(joined.config, name) for name in ("data", "model", "train", "run")}
    train, other = config["train"], table(alone.config, "train")
    unit = "steps" if train.get("steps") else "epochs"
    passes, kept = train.get(unit), config["data"].get("client_test", 0.0)
    model = named_choice(config["model"].get("name"), "?")
    played = ("" if model == OBJECT else model, len(joined.metrics), train.get("lr"), passes)
    told = [said("played_with", *played, unit.removesuffix("s") if passes == 1 else unit, kept)]
    apart = [f"{key} {value}" for key, value in other.items() if train.get(key) != value]
    told += [said("alone_with", apart)] if apart else []
    judged = any(line.get("client/test_accuracy") is not None for line in joined.metrics)  # a regression has none
    if not joined.readings and joined.main.percent and judged:
        told.append(said("wide_intervals", joined.main.key))
    return tuple(told)


def _of_all(rows: Sequence[ClientFacts], known: Sequence[bool]) -> ClientFacts:
    """Return the mean of one split's ``rows [n]`` by a mechanism over the ``known [n]`` clients, as a row of nobody."""
    own = np.array([[r.joined, r.alone, r.gain] for r, one in zip(rows, known, strict=True) if one], np.float64)
    joined, alone, gain = own.mean(axis=0).tolist() if len(own) else [None] * 3
    return ClientFacts(run="", client=-1, name="", unit=rows[0].unit, joined=joined, alone=alone, gain=gain)


def _mean(rows: Sequence[ClientFacts], test: float, reading: MetricStyle) -> ClientFacts:
    """Return the mean of one client's rows, or of all clients' means, over splits, of which each tests on the share
    ``test`` of the rows. None stays None.

    Its interval is that of the splits. If there are few, or all have the same gain, whose spread would claim certainty,
    it is the means of their intervals' ends.
    """
    if len(rows) == 1:
        return rows[0]
    first, names = rows[0], ("joined", "alone", "gain", "gain_low", "gain_high")
    numbers = np.array([[getattr(row, name) for name in names] for row in rows], np.float64)  # None: NaN
    joined, alone, gain, low, high = numbers.mean(axis=0).tolist()
    half = SURE * split_error(numbers[:, 2], test) if len(rows) >= FEW_SPLITS else 0.0
    if half > 1e-9 * (abs(joined) + abs(alone)):  # below it gains differ by rounding alone
        low, high = gain - half, gain + half
    joined, alone, gain, low, high = map(finite_or_none, (joined, alone, gain, low, high))
    return ClientFacts(
        run=first.run, client=first.client, name=first.name, unit=first.unit, units=first.units,
        test_rows=first.test_rows, honest=first.honest, metric=first.metric, joined=joined, alone=alone, gain=gain,
        gain_low=low, gain_high=high, paid_to_join=answer_of(reading, gain, low, high),
    )  # fmt: skip
