"""How good a client's model is on its own test data, compared with one that it trains alone (:class:`ModelQuality`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hanse.base.errors import UserError
from hanse.base.files import read_toml, table
from hanse.games.jackknife import jackknife_errors, t_quantile
from hanse.learning.blocks import BLOCKS
from hanse.learning.intervals import difference, wilson
from hanse.learning.metrics import MetricStyle
from hanse.reports.alone import HERE, by_python
from hanse.reports.chart import Floats
from hanse.runs.recorded_seats import OwnTests
from hanse.runs.run_record import RunRecord, load_run

_SAME = ("data", "model", "train")  # what both runs must share, or the difference is not that of joining


@dataclass(frozen=True, kw_only=True)
class MainFit:
    """The run's main metric on a client's own test data. None means "not known" throughout.

    Attributes:
        reading: the metric: its name, its direction, and how it is shown.
        values: its value after each of the fit's rounds.
        error: the standard error of the last value from the draw of the test samples, by a jackknife over blocks.
        recorded: the last value's 95 % interval, as the client computed it (see
            :meth:`hanse.learning.metrics.Metric.interval`). None: there is none.
        gap: why there is no value at the end; "" if there is one.
        alone: the value of the model that the client trained by itself.
        alone_gap: why there is no value of that model.
        alone_recorded: the 95 % interval of the value alone, as the client computed it. None: there is none.
        difference_error: the standard error of the difference of the two, measured on the same samples.
        correlation: how the two values correlate over draws of the samples, by the same jackknife, corrected for few
            samples. 0: not known.
        blocks: the jackknife's number of blocks of test samples.
    """

    reading: MetricStyle
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
        """The value at the last test, or None if it is not known."""
        return self.values[-1]

    @property
    def difference(self) -> float | None:
        """The last value minus the value alone, or None if one of them is not known."""
        return None if self.last is None or self.alone is None else self.last - self.alone

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the value: the recorded one, or else Student's t around it, within the metric's bounds.

        None if its error is not known, or 0, because that would claim certainty.
        """
        if self.recorded is not None or self.error == 0:
            return self.recorded
        around, (least, most) = self._around(self.last, self.error), self.reading.within
        return None if around is None else (max(around[0], least), min(around[1], most))

    @property
    def difference_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the difference, or None if its error is not known.

        It is derived from the recorded intervals of both values. Without these, it is Student's t around the
        difference.
        """
        if self.last is not None and self.alone is not None and self.recorded and self.alone_recorded:
            return difference(self.last, self.recorded, self.alone, self.alone_recorded, self.correlation)
        return self._around(self.difference, self.difference_error)

    @property
    def sign(self) -> int:
        """1 if the model is better than alone over the whole interval, -1 if it is worse, else 0."""
        between = self.difference_interval
        if between is None or between[0] <= 0 <= between[1]:
            return 0
        return 1 if (between[0] > 0) != self.reading.less_is_better else -1

    def _around(self, value: float | None, error: float | None) -> tuple[float, float] | None:
        """Return the 95 % interval around a value, by Student's t with one degree of freedom less than blocks."""
        if value is None or error is None or self.blocks < 2:
            return None
        half = t_quantile(self.blocks - 1) * error
        return value - half, value + half


@dataclass(frozen=True)
class ModelQuality:
    """How good a client's model is on its own test data, and how good a model trained alone is.

    The model is either the one that the client held after a round or the one that it had trained (``[eval] model``).

    Attributes:
        rounds: the rounds (from 0) after which the client tested. They are empty if it never did.
        accuracy: the accuracy after each of these rounds, 0 to 1. None: there is none, as in a regression.
        loss: the loss after each of them.
        samples: how many test samples the client has. None: not recorded.
        units: how many units, such as patients, these are of. None: each sample is one of its own.
        alone: the name of the folder with the run of clients that train alone. None: there is no such run.
        alone_accuracy: the accuracy at the end of that run.
        alone_loss: the loss at the end of that run.
        alone_rounds: how many rounds that run has.
        how: why there is no test, or no model trained alone, and how to get one; "" if both are known.
        loss_error: an upper bound of the standard error of the difference between the two losses, from the spread of
            the losses over the test samples. None: not recorded.
        main: the run's main metric, if the experiment names one (``[eval] metrics``). It is then judged in the place of
            accuracy and loss.

    Examples:
        >>> ModelQuality(rounds=(0, 1), accuracy=(0.5, 0.75), loss=(1.0, 0.5), samples=40).last
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
    units: int | None = None

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
        """The 95 % interval of the difference of the two accuracies.

        It comes from Wilson's interval of each, and is None if it is not known.

        Where samples have units, each unit counts as one sample. The two models' errors are treated as independent. On
        the same samples they usually err together, so the true interval is narrower.
        """
        ours, alone, n = self.last, self.alone_accuracy, self.units or self.samples
        return (
            None
            if ours is None or alone is None or not n
            else difference(ours, wilson(ours, n), alone, wilson(alone, n))
        )


def fit_of(run: RunRecord, client: int, alone: Path | None = None) -> ModelQuality:
    """Return a client's tests in a run, with those of ``alone`` (or of a run that :func:`find_alone` finds).

    Raises UserError if ``alone`` is not a run of clients alone on the same data with the same training.
    """
    tests = _tests(run, client)
    named = None if alone is None else _checked(run, load_run(alone))
    after = [int(m["round"]) for m in run.metrics if m.get("client/test_loss") is not None and m["round"] in run.lost]
    if after and (not tests or after[-1] > tests[-1].round):
        return ModelQuality(how=f"its test after round {after[-1]} is lost: {run.lost[after[-1]]}")
    if not tests:
        return ModelQuality(how=_why_untested(run))
    other = find_alone(run) if named is None else named
    fit = _fit(run, client, tests)
    if other is None:
        return replace(fit, how=_how(run, client))
    theirs = _tests(other, client)
    if not theirs:
        return replace(fit, how=f"{other.name} did not test client {client} on its own data")
    return _with_alone(fit, tests[-1], theirs[-1], run, other)


def fits_at_end(run: RunRecord, alone: RunRecord | None = None) -> dict[int, ModelQuality]:
    """Return the fits of all clients by number. Only the last test counts, since verdicts are made of it.

    Args:
        run: the run.
        alone: a run of clients that train alone. It is used if it has the same data, model and training. Otherwise such
            a run is looked for in the run's folder or next to it. Clients that it did not test have no comparison.
    """
    other = alone if alone is not None and not _differences(run.config, alone.config) else find_alone(run)
    theirs = {} if other is None else _last_tests(other)
    found = {}
    for client, test in _last_tests(run).items():
        fit = _fit(run, client, [test])
        beside = other is not None and client in theirs
        found[client] = _with_alone(fit, test, theirs[client], run, other) if beside and other is not None else fit
    return found


def _fit(run: RunRecord, client: int, tests: Sequence[_OwnTest]) -> ModelQuality:
    """Return the fit of a client by its tests, at least one, without a model alone."""
    member = run.members.get(client)
    known = next((t.samples for t in reversed(tests) if t.samples), None if member is None else member.get("tests"))
    rounds, accuracy, loss = zip(*((test.round, test.accuracy, test.loss) for test in tests), strict=True)
    return ModelQuality(rounds, accuracy, loss, known, main=_main(run, tests), units=tests[-1].units)


def _with_alone(fit: ModelQuality, ours: _OwnTest, last: _OwnTest, run: RunRecord, other: RunRecord) -> ModelQuality:
    """Return the fit with the last test of the client alone next to its own last one."""
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
    """Return the main metric with that of the client alone next to it.

    ``same`` says whether the run of clients alone has the same metric. The error of the difference is known only if
    both runs have recorded the metric without each block of the same test samples.
    """
    if not same:
        return replace(main, alone_gap=f"the run of single clients has no {main.reading.title} ([eval] metrics)")
    paired = len(ours.without) == len(alone.without) and ours.samples == alone.samples
    error = _jackknife(ours.without - alone.without) if paired else None
    return replace(
        main,
        alone=alone.main,
        alone_gap=alone.gap,
        alone_recorded=alone.interval,
        difference_error=error,
        correlation=0.0 if error is None else _correlation(main.reading, ours, alone, error),
    )


def _correlation(reading: MetricStyle, ours: _OwnTest, alone: _OwnTest, error: float) -> float:
    """Return the correlation of two values over draws of their common samples, from the error of their difference.

    On few samples a positive one is too high by chance: two models that are right on the same samples would have an
    interval without width. So that of a bounded figure is corrected for continuity, towards 0 (Newcombe 1998, method
    10, where both figures are shares of n samples, of which half a sample is taken from the covariance).
    """
    mine, other = _jackknife(ours.without), _jackknife(alone.without)
    if not mine or not other:
        return 0.0
    found = (mine**2 + other**2 - error**2) / (2 * mine * other)  # var(a - b) = var a + var b - 2 cov
    width = reading.within[1] - reading.within[0]
    n = ours.units or ours.samples
    if found > 0 and n is not None and math.isfinite(width):
        found = max(0.0, found - 0.5 * width**2 / (n * (n - 1) * mine * other))
    return min(1.0, max(-1.0, found))


def _jackknife(without: Floats) -> float | None:
    """Return the standard error of a figure from what it is ``without [B]`` each block; None if it is not known."""
    return finite_or_none(float(jackknife_errors(without)))


@dataclass(frozen=True)
class _OwnTest:
    """One test of one client on its own share (:class:`hanse.runs.recorded_seats.OwnTests`). None: not known."""

    round: int
    loss: float | None
    accuracy: float | None
    samples: int | None
    error: float | None
    main: float | None
    gap: str
    without: Floats
    interval: tuple[float, float] | None
    units: int | None = None


def _tests(run: RunRecord, client: int) -> list[_OwnTest]:
    """Return every test of the client on its own share."""
    found = []
    for line in run.metrics:
        if line.get("client/test_loss") is None:
            continue
        tests = run.own_tests(int(line["round"]))
        at = [] if tests is None else np.flatnonzero(tests.clients == client).tolist()
        if tests is not None and at and (test := _own_test(tests, at[0], int(line["round"]))) is not None:
            found.append(test)
    return found


def _last_tests(run: RunRecord) -> dict[int, _OwnTest]:
    """Return each client's results in the last round with recorded tests, by the client's number."""
    for line in reversed(run.metrics):
        round = int(line["round"])
        if line.get("client/test_loss") is not None and (tests := run.own_tests(round)) is not None:
            clients = tests.clients.tolist()
            rows = {client: _own_test(tests, i, round) for i, client in enumerate(clients)}
            return {client: row for client, row in rows.items() if row is not None}
    return {}


def _own_test(tests: OwnTests, i: int, round: int) -> _OwnTest | None:
    """Return the test of the client at position ``i``; None if it has neither a loss nor an accuracy."""
    columns = (tests.loss, tests.accuracy, tests.error, tests.main)
    loss, accuracy, error, main = (finite_or_none(values[i]) for values in columns)
    if loss is None and accuracy is None:
        return None
    samples = None if tests.samples is None else int(tests.samples[i])
    units = None if tests.units is None else int(tests.units[i])
    blocks = next((count for count in (units, samples) if count is not None), BLOCKS)
    left = np.zeros(0) if tests.without is None else tests.without[i][:blocks]
    low, high = (finite_or_none(end) for end in tests.interval[i])
    between = None if low is None or high is None else (low, high)
    return _OwnTest(round, loss, accuracy, samples, error, main, tests.gaps[i], left, between, units)


def finite_or_none(number: float) -> float | None:
    """Return a number as a plain float. NaN and infinity, which stand for "not known" in arrays, become None."""
    return float(number) if np.isfinite(number) else None


def find_alone(run: RunRecord) -> RunRecord | None:
    """Return a finished run of the same clients by themselves: from the folder "alone" of the run, or from next to it.

    It must have the same data, model and training, and at least one finished round. If it is next to the run, it must
    also have the same number of rounds. If there are several, the first by name is used.
    """
    if run.mechanism == "local":
        return None
    beside = sorted(p for p in run.path.resolve().parent.iterdir() if p != run.path.resolve())
    for path in (run.path / HERE, *beside):
        if not (path / "config.toml").exists():
            continue
        try:
            given = read_toml(path / "config.toml")
            # one that lies next to it by chance counts only if it trained for as long
            lasts = path.name == HERE or table(given, "run").get("rounds") == table(run.config, "run").get("rounds")
            if lasts and table(given, "mechanism").get("name") == "local" and not _differences(run.config, given):
                return load_run(path)
        except UserError:  # damaged, or without a round: another run's fault must not cost this run its statement
            continue
    return None


def _checked(run: RunRecord, other: RunRecord) -> RunRecord:
    """Return ``other``, or raise UserError if it is not a run of single clients that can be compared with ``run``."""
    if other.mechanism != "local":
        raise UserError(
            f"--alone {other.path}: its mechanism is '{other.mechanism}'; it must be 'local', every client by itself"
        )
    if apart := _differences(run.config, other.config):
        raise UserError(f"--alone {other.path}: is another experiment than {run.path}: {apart[0]}")
    return other


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return a line for each setting of the data, the model and the training in which two experiments differ.

    The location of the data's files does not affect the results and is not compared.
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
    if "source" not in data:
        return "no test of this client on its own data has come; its node, or the app, decides whether there is one"
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
            "It can train the same model on its own data alone, for as many steps, and compare on the same test data"
        )
    command = by_python(run) or f"hanse statement DIR --client {client} --train-alone"
    return (
        f"how good a model that it trains alone would be is not known yet: '{command}' plays the same experiment with "
        "every client alone"
    )
