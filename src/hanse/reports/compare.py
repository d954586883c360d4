"""Runs side by side: as plain rows, and as tables for a terminal, a report, LaTeX and Markdown.

:func:`run_row` returns a run's figures, :func:`difference_rows` the paired tests of each experiment against the first.
:func:`experiments_table` and :func:`differences_table` lay them out, :func:`as_text` writes them for other programs.
:func:`effective_round` and :func:`improvement` are GTFLAT's measure of speed; the papers' tables use them as well.
"""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hanse.base.errors import UserError, nearest
from hanse.base.files import table, write_csv
from hanse.base.plain_text import quantity
from hanse.data.fingerprint import begun_with
from hanse.learning.metrics import ACCURACY, LOSS, reading_of
from hanse.reports.chart import Floats, Ints
from hanse.reports.fits import own_mean
from hanse.reports.groups import SeedGroup, different_settings, group_runs
from hanse.reports.paired import holm, paired
from hanse.reports.text_table import TextTable
from hanse.reports.words import Note
from hanse.runs.run_record import RunRecord

# ---- how many rounds a run takes to be as good as another: GTFLAT's Definition 3 and eq. (13)


EPSILON = 5e-3
"""GTFLAT's tolerance: half a percent of accuracy."""


def effective_round(rounds: Ints, accuracy: Floats, target: float, epsilon: float = EPSILON) -> int | None:
    """Return the effective round R* of GTFLAT's Definition 3: how many rounds a run took to be as good as a target.

    Args:
        rounds: ``[n]``, how many rounds had been played at each test, ascending.
        accuracy: ``[n]``, at these tests, 0 to 1.
        target: the accuracy to reach.
        epsilon: how far below the target still counts.

    Returns:
        The rounds at the first test with at least ``target - epsilon``; None if there is none.

    Example:
        >>> accuracy = np.array([0.50, 0.70, 0.79, 0.81])
        >>> effective_round(np.array([5, 10, 15, 20]), accuracy, target=0.80, epsilon=0.01)
        15
    """
    # an accuracy is a fraction, whose last bits must not decide
    there = np.flatnonzero(accuracy >= target - epsilon - 1e-12)
    return int(rounds[there[0]]) if len(there) else None


def improvement(ours: float | None, theirs: float | None) -> float | None:
    """Return the effective round improvement ratio, GTFLAT eq. (13): ``(1 - ours / theirs) * 100``.

    Args:
        ours: our effective round. None: the target was never reached.
        theirs: the other run's effective round for the same target. None: it was never reached.

    Returns:
        How many percent fewer rounds we needed (negative: more rounds), or None if one of the two is None.

    Example:
        >>> improvement(ours=15, theirs=20)
        25.0
    """
    if ours is None or theirs is None or theirs == 0:
        return None
    return (1.0 - ours / theirs) * 100.0


# ---- rows


_ROUNDING = 1e-9  # sums of equal numbers in another order differ in their last bits: that is no spread
TESTED = ("test_accuracy", "best_accuracy", "test_loss", "test_mse", "client_accuracy")
EFFECTIVE = ("effective_round", "effective_round_improvement")
_COST = ("seconds_per_round", "virtual_seconds", "mb", "refused")
_LABELS = ("run", "kind", "mechanism", "rounds", "seed", "base", "figure")  # keys of rows that are no figures


def run_row(run: RunRecord) -> dict[str, Any]:
    """Return one run's row of :func:`as_text`, without its effective round."""
    seconds = run.series("time/round_s")[1]
    traffic = [run.series(key)[1] for key in ("bytes/down", "bytes/up")]
    return {
        "run": run.name,
        "kind": "run",
        "mechanism": run.mechanism,
        "rounds": len(run.metrics),
        "seed": run.seeds[0],
        **dict.fromkeys(TESTED),
        "seconds_per_round": float(np.median(seconds)) if len(seconds) else None,
        "mb": float(sum(t.sum() for t in traffic)) / 1e6 if any(len(t) for t in traffic) else None,
        "virtual_seconds": _last(run.series("clock_s")[1]),
        "refused": run.num_refused,
        **_tested(run),
    }


def _tested(run: RunRecord) -> dict[str, float | None]:
    """Return the figures of a run's tests by column: of accuracy and the metrics that its experiment names, and its
    loss, which has a column of its own if ``[train] loss`` names another than the one that the data imply.
    """
    found: dict[str, float | None] = {}
    for reading in dict.fromkeys([ACCURACY, *run.readings]):
        values = run.series(f"test/{reading.key}")[1]
        if reading != LOSS:
            found[f"test_{reading.key}"] = _last(values)
        if reading != LOSS and reading in (ACCURACY, run.main):
            best = values.min if reading.less_is_better else values.max
            found[f"best_{reading.key}"] = float(best()) if len(values) else None
            found[f"client_{reading.key}"] = own_mean(run, reading)
    named = _loss_told(table(run.config, "train").get("loss"))
    usual = "test_mse" if found["test_accuracy"] is None else "test_loss"  # every other loss comes with an accuracy
    found[usual if named is None else f"test_loss: {named}"] = _last(run.series("test/loss")[1])
    return found


def _loss_told(given: str | Mapping[str, Any] | None) -> str | None:
    """Describe a ``[train] loss`` in words; None if it is the default."""
    if isinstance(given, str):
        given = {"name": given}
    if not isinstance(given, Mapping):
        return None
    name = str(given.get("name", "?")).rpartition(":")[2]
    options = ", ".join(f"{key} = {value}" for key, value in sorted(given.items()) if key != "name")
    return (f"{name} ({options})" if options else name) if options or name not in ("cross_entropy", "mse") else None


def _rows(runs: Sequence[RunRecord], groups: Sequence[SeedGroup], epsilon: float) -> list[dict[str, Any]]:
    """Return a row for each run, all with the same keys: its figures, and how fast it was beside the first experiment.

    Raises UserError if ``epsilon`` is out of range.
    """
    if not 0 <= epsilon < 1:
        raise UserError(f"--epsilon {epsilon}: must be at least 0 and below 1")
    first = {run.seeds: run for run in groups[0].runs}
    rows = [run_row(run) | _effective(run, first.get(run.seeds, groups[0].runs[0]), epsilon) for run in runs]
    every = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in every} for row in rows]


def _effective(run: RunRecord, base: RunRecord, epsilon: float) -> dict[str, float | None]:
    """Return a run's effective round for the base run's best value of the main metric, and the improvement ratio.

    Both are None if the runs have different main metrics.
    """
    played, theirs = base.series(f"test/{base.main.key}")
    rounds, ours = run.series(f"test/{run.main.key}")
    if not len(theirs) or not len(ours) or run.main != base.main:
        return dict.fromkeys(EFFECTIVE)
    if run.main.less_is_better:
        ours, theirs = -ours, -theirs  # so that the highest is the best
    target = float(theirs.max())
    reached = effective_round(rounds + 1, ours, target, epsilon)
    needed = effective_round(played + 1, theirs, target, epsilon)
    return dict(zip(EFFECTIVE, (reached, improvement(reached, needed)), strict=True))


def _group_rows(label: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows "mean" and "sd" of one experiment; nothing for a single run.

    Args:
        label: the experiment's label.
        rows: the rows of its runs. A figure that any of them lacks is None: a mean over fewer seeds would not be
            comparable with the others.
    """
    many = len(rows)
    if many < 2:
        return []
    shared = {"mechanism": rows[0]["mechanism"], "rounds": min(r["rounds"] for r in rows), "seed": None}
    found = []
    for kind, statistic in (("mean", np.mean), ("sd", partial(np.std, ddof=1))):
        numbers: dict[str, float | None] = {}
        for key in (key for key in rows[0] if key not in _LABELS):
            values = [r[key] for r in rows if r[key] is not None]
            numbers[key] = float(statistic(values)) if len(values) == many else None
        found.append({"run": f"{label} ({quantity(many, 'seed')})", "kind": kind, **shared, **numbers})
    return found


def with_baseline(groups: Sequence[SeedGroup], name: str | None) -> list[SeedGroup]:
    """Return the experiments with the baseline first.

    Args:
        groups: the experiments.
        name: the baseline's label, its mechanism if no other has it, or the name of one of its runs. None: the first.

    Raises:
        UserError: none of the experiments, or several, are called so.
    """
    if name is None:
        return list(groups)
    called = [group for group in groups if name == group.label]
    called = called or [g for g in groups if any(name in (run.name, str(run.path), run.mechanism) for run in g.runs)]
    if len(called) != 1:
        labels = [group.label for group in groups]
        many = quantity(len(called), "experiment is", "experiments are")
        what = f"{many} called so; allowed: {', '.join(labels)}" if called else ""
        raise UserError(f"--baseline: '{name}': {what or f'no such experiment{nearest(name, labels)}'}")
    return [*called, *(group for group in groups if group is not called[0])]


def difference_rows(groups: Sequence[SeedGroup]) -> list[dict[str, Any]]:
    """Return how each experiment differs from the first, over the seeds (of run and split) that both have.

    Pairing by seed removes the seed's effect on both experiments, which is often larger than their difference.

    Args:
        groups: the experiments. All others are compared with the first one.

    Returns:
        One row for each other experiment and each figure of tests that both have; none if they share fewer than two
        seeds. A row has ``kind`` ("difference"), ``run`` and ``base`` (labels), ``figure``, the fields of
        :class:`hanse.reports.paired.Paired` for the differences run less base, and ``p_holm``. The last is ``p``
        corrected for the number of experiments that are compared with the first (Holm). ``low``, ``high`` and both
        p-values are None where the difference is the same with every seed, which does not say how much seeds vary.
    """
    found, tested = [], [{run.seeds: _tested(run) for run in group.runs} for group in groups]
    named = dict.fromkeys(key for group in tested for run in group.values() for key in run)
    for figure in sorted(named, key=lambda key: TESTED.index(key) if key in TESTED else -1):
        by_seeds: list[dict[Hashable, float]] = [
            {seeds: float(of) for seeds, run in group.items() if (of := run.get(figure)) is not None}
            for group in tested
        ]
        base, rows = by_seeds[0], []
        for group, ours in zip(groups[1:], by_seeds[1:], strict=True):
            if (test := paired(ours, base)) is not None:
                names = {"kind": "difference", "run": group.label, "base": groups[0].label, "figure": figure}
                rows.append(names | asdict(test))
        same = [row["sd"] <= _ROUNDING * max(map(abs, base.values())) for row in rows]  # no if it is not a number
        varying = [row for row, equal in zip(rows, same, strict=True) if not equal]
        for row, corrected in zip(varying, holm([row["p"] for row in varying]), strict=True):
            row["p_holm"] = corrected
        unknown = dict.fromkeys(("low", "high", "p", "p_holm"))
        found += [row if "p_holm" in row else row | unknown for row in rows]
    return found


def _last(values: np.ndarray) -> float | None:
    """Return the last of the values; None if there are none."""
    return float(values[-1]) if len(values) else None


def cautions(groups: Sequence[SeedGroup]) -> list[Note]:
    """Return warnings about a comparison: the experiments' data or rounds differ, they have one seed each, or the seeds
    of one do not change who holds which rows, as tables that are divided already do not.

    Args:
        groups: the experiments.
    """
    held = {
        group.label: [run.path and begun_with(run.path) for run in group.runs]
        for group in groups
        if len(group.runs) > 1
    }
    fixed = [label for label, (first, *others) in held.items() if first and all(first == other for other in others)]
    one_split = [Note("one_split", "note", {"labels": fixed})] * bool(fixed)
    if len(groups) < 2:
        return one_split
    every = different_settings(groups)
    differing = {key: every[key] for key in every if key.startswith("data.") or key == "run.rounds"}
    named = {key: [textwrap.shorten(v, 40) for v in values] for key, values in list(differing.items())[:_MOST_NAMED]}
    fields = {"settings": named, "more": len(differing) - len(named)}
    found = [Note("settings_differ", "warning", fields)] if named else []
    if away := [group.label for group in groups if group.runs[0].members]:
        found.append(Note("data_elsewhere", "note", {"labels": away}))
    return found + one_split + [Note("one_seed", "warning")] * all(len(group.runs) == 1 for group in groups)


# ---- tables


_MOST_NAMED = 4  # settings in a line
_SURE = ("rounds", "mb", "seconds_per_round")  # their deviation over seeds says nothing of the mechanism


class Column(NamedTuple):
    """How a figure is shown: ``key`` in rows, heading ``title``, ``factor``, and ``digits``."""

    key: str
    title: str
    factor: float = 1.0
    digits: int = 0

    def cell(self, row: Mapping[str, Any], deviation: Mapping[str, Any] | None = None) -> str:
        """Return a row's number, with its ``deviation`` over the seeds if there is one; a dash for none.

        A mean of counts is not a count, and has a digit more. What is not 0 is not shown as 0.
        """
        value, sd = row.get(self.key), None if self.key in _SURE else (deviation or {}).get(self.key)
        if value is None:
            return "–"
        digits = self.digits if sd is None else max(self.digits, 1)
        told = self.told(value, digits)
        if value and not told.strip("-0."):
            told = f"{value * self.factor:.1g}"
        return told if sd is None else f"{told} ± {self.told(sd, digits)}"

    def told(self, value: float, digits: int, sign: str = "") -> str:
        """Return a number with so many digits after the point; if it has ten before it, as a loss that diverged may,
        three in all.
        """
        number = value * self.factor
        return f"{number:{sign}.3g}" if abs(number) >= 1e9 else f"{number:{sign},.{digits}f}"


_COLUMNS = {
    column.key: column
    for column in (
        Column("rounds", "rounds"),
        Column("test_loss", "test loss", 1.0, 3),
        Column("test_mse", "test MSE", 1.0, 4),
        Column("effective_round", "as good after"),
        Column("effective_round_improvement", "fewer %", 1.0, 1),
        Column("seconds_per_round", "seconds a round", 1.0, 3),
        Column("virtual_seconds", "virtual seconds in all", 1.0, 1),
        Column("mb", "MB in all", 1.0, 1),
        Column("refused", "refused"),
    )
}


def _column(key: str) -> Column:
    """Return the column of a figure: a usual one, or that of a metric or a loss (:func:`_tested`)."""
    if key in _COLUMNS:
        return _COLUMNS[key]
    who, _, name = key.partition("_")
    if name.startswith("loss: "):
        return Column(key, f"test {name}", 1.0, 4)
    reading = reading_of(name) or ACCURACY
    own = "" if reading == ACCURACY else f"{reading.title} "
    title = {"test": f"test {reading.title}", "best": f"best round {own}", "client": f"{own}at the clients"}[who]
    return Column(key, f"{title.strip()}{' %' if reading.percent else ''}", reading.factor, 2 if reading.percent else 4)


def _difference(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a paired difference: pairs, mean, 95 % interval and the three p-values."""
    column = _column(row["figure"])
    mean, low, high = (
        "" if row[key] is None else column.told(row[key], column.digits, "+") for key in ("mean", "low", "high")
    )
    tests = (("p", 2), ("p_holm", 2), ("p_sign_flip", 3))
    p = ("–" if row[key] is None else f"{row[key]:.{digits}g}" for key, digits in tests)
    between = f"{low} to {high}" if low else f"the same in all {row['pairs']}"
    return (str(row["pairs"]), mean, between, *p)


def experiments_table(groups: Sequence[SeedGroup], epsilon: float | None = None) -> TextTable:
    """Return one row for each experiment: mean ± sample standard deviation over its seeds.

    Args:
        groups: the experiments. Columns in which none of them has a number are left out.
        epsilon: as for :func:`as_text`, for the columns on speed. None: without these.

    Raises:
        UserError: ``epsilon`` is out of range.
    """
    of = [[run_row(run) for run in g.runs] if epsilon is None else _rows(g.runs, groups, epsilon) for g in groups]
    rows = [_group_rows(group.label, each) or each for group, each in zip(groups, of, strict=True)]
    every = [row for pair in rows for row in pair]
    usual = ("rounds", *TESTED, *EFFECTIVE, *_COST)
    own = dict.fromkeys(key for row in every for key in row if key not in (*usual, *_LABELS))
    some = [key for key in (*own, *usual) if any(row.get(key) is not None for row in every)]
    shown = [_column(key) for key in some if key != "refused" or any(row["refused"] for row in every)]
    body = [
        (group.label, str(len(group.runs)), *(column.cell(first, *sd[:1]) for column in shown))
        for group, (first, *sd) in zip(groups, rows, strict=True)
    ]
    return TextTable(("experiment", "seeds", *(column.title for column in shown)), tuple(body))


def differences_table(groups: Sequence[SeedGroup]) -> TextTable:
    """Return how each experiment differs from the first, by figure.

    Figures that the experiments name themselves come first. There are no rows if no experiment shares two seeds with
    the first.

    Args:
        groups: the experiments.
    """
    headings = ("difference", "seeds", "mean", "95 % interval", "p (t test)", "p (Holm)", "p (sign flips)")
    rows = difference_rows(groups)
    names = (f"{row['run']} – {row['base']}: {_column(row['figure']).title}" for row in rows)
    return TextTable(headings, tuple((name, *_difference(row)) for name, row in zip(names, rows, strict=True)))


# ---- the comparison in other forms


FORMS = ("json", "csv", "latex", "markdown")


def as_text(form: str, runs: Sequence[RunRecord], epsilon: float = EPSILON, baseline: str | None = None) -> str:
    """Return a comparison as one text.

    "latex" and "markdown" have the means of each experiment with their deviations. "json" and "csv" have all digits: a
    row for each run, two more ("mean", "sd") for each experiment with several seeds, and those of
    :func:`difference_rows`. All have the same keys, where None means "not recorded" or "never reached":

    * ``run``, ``mechanism``, ``seed``, ``rounds`` (finished ones), and ``kind``, which is "run", "mean", "sd" (the
      sample standard deviation over the seeds) or "difference".
    * ``test_accuracy``, on the server's test set; ``best_accuracy``, the highest of all tests; and ``client_accuracy``,
      the mean over the honest clients on their own test data. All of these are shares from 0 to 1, and come from the
      last test unless said otherwise. A regression has none.
    * ``test_loss`` (cross-entropy), or of a regression ``test_mse`` (mean squared error). If ``[train] loss`` names a
      loss, it has a column of its own instead, "test_loss: NAME".
    * ``test_METRIC`` for each of ``[eval] metrics``. The first of these also has ``best_METRIC`` and ``client_METRIC``.
    * ``seconds_per_round`` (median, wall clock); ``virtual_seconds``, on the clock of a simulation in which clients
      take time; ``mb`` (10^6 bytes in both directions over the whole run); and ``refused``, the number of refused
      updates without late ones.
    * ``effective_round``: how many rounds the run took to come within ``epsilon`` of the best accuracy of the baseline.
      If the baseline has a run with the same seeds, it is that run's best accuracy. ``effective_round_improvement``:
      how many percent fewer rounds than that experiment needed itself (GTFLAT eq. 13).

    Args:
        form: one of ``FORMS``.
        runs: the runs. Those that differ only in their seeds are one experiment.
        epsilon: how close an accuracy must come to the target of ``effective_round``. It is at least 0 and below 1.
        baseline: the experiment that the others are compared with (:func:`with_baseline`). None: the first.

    Raises:
        UserError: there is no such form, ``epsilon`` is out of range, or no experiment is the baseline.
    """
    if form not in FORMS:
        raise UserError(f"--format: '{form}': no such format{nearest(form, FORMS)}")
    groups = with_baseline(group_runs(runs), baseline)
    if form in ("latex", "markdown"):
        tables = [table for table in (experiments_table(groups, epsilon), differences_table(groups)) if table.rows]
        return "\n".join(table.latex() if form == "latex" else table.markdown() for table in tables)
    rows = _rows(runs, groups, epsilon)
    of = {id(run): row for run, row in zip(runs, rows, strict=True)}
    means = [row for group in groups for row in _group_rows(group.label, [of[id(run)] for run in group.runs])]
    every = [*rows, *means, *difference_rows(groups)]
    if form == "json":
        return json.dumps(every, indent=1) + "\n"
    out, keys = io.StringIO(), list(dict.fromkeys(key for row in every for key in row))
    write_csv(out, [keys, *(["" if row.get(key) is None else row[key] for key in keys] for row in every)])
    return out.getvalue()
