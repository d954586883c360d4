"""How good each client's model is on its own test data, compared with one that it trains alone (:class:`Fit`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hanse.base.files import MEMBERS
from hanse.games.jackknife import SURE, jackknife_errors, t_quantile
from hanse.learning.intervals import BLOCKS, Interval, difference, wilson
from hanse.learning.metrics import ACCURACY, LOSS, MetricStyle
from hanse.reports.alone import THERE, by_python, find_alone
from hanse.reports.chart import Floats
from hanse.reports.groups import honest_of
from hanse.reports.paired import holm
from hanse.reports.words import Note
from hanse.runs.run_record import OwnTests, RunRecord

LEVEL = 0.95  # of intervals
FEW = 400  # test samples: with fewer, five points of accuracy may be chance


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How good a client's model is on its own test data, and how good one trained alone is. None: not known.

    The model is either the one that the client held after a round or the one that it had trained (``[eval] model``).

    Attributes:
        reading: the metric: the run's main one (``[eval] metrics``), else the accuracy, else the loss.
        round: the round (from 0) of the client's last test.
        last: the metric then.
        interval: its 95 % interval for the draw of the test samples.
        samples: how many test samples the client has.
        units: how many units, such as patients, these are of. None: each sample is one of its own.
        alone: the metric of the model that the client trained by itself.
        between: the 95 % interval of ``last`` minus ``alone``, for the draw of the test samples.
        beside: the name of the folder with the run of clients that train alone.
        beside_rounds: how many rounds that run has.
        why: why ``last`` or ``alone`` is not known, and how to learn it.

    Examples:
        >>> Fit(last=0.9, alone=0.8, between=(0.05, 0.15), samples=400).sign
        1
    """

    reading: MetricStyle = ACCURACY
    round: int | None = None
    last: float | None = None
    interval: Interval | None = None
    samples: int | None = None
    units: int | None = None
    alone: float | None = None
    between: Interval | None = None
    beside: str | None = None
    beside_rounds: int | None = None
    why: Note | None = None

    @property
    def counted(self) -> int | None:
        """How many units its interval counts: patients, or else samples."""
        return self.units or self.samples

    @property
    def difference(self) -> float | None:
        """``last`` minus ``alone``."""
        return None if self.last is None or self.alone is None else self.last - self.alone

    @property
    def sign(self) -> int | None:
        """1 if the model is better than alone over the whole interval, -1 if it is worse, else 0.

        It is also 0 if the digits that are shown show no difference, or if the interval is not known.
        """
        return side_of(self.reading, *self.gain)

    @property
    def alike(self) -> bool:
        """Whether the two are the same in the digits that are shown, and so are the ends of their interval."""
        return alike(self.reading, (self.difference, *(self.between or ())))

    @property
    def gain(self) -> tuple[float | None, float | None, float | None]:
        """By how much joining is better (above 0) or worse, and the ends of its 95 % interval."""
        gain, (low, high) = self.difference, self.between or (None, None)
        if not self.reading.less_is_better:
            return gain, low, high
        gain, low, high = (None if one is None else -one for one in (gain, high, low))
        return gain, low, high


def alike(reading: MetricStyle, differences: Sequence[float | None]) -> bool:
    """Say whether none of the differences of a metric shows in the digits that are shown."""
    return {reading.show_difference(abs(one or 0.0)) for one in differences} == {reading.show_difference(0.0)}


def side_of(reading: MetricStyle, gain: float | None, low: float | None, high: float | None) -> int | None:
    """Return 1 if a gain is above 0 over its whole 95 % interval, -1 if it is below, else 0; None: it is not known.

    It is also 0 if the digits that are shown show no difference, or if the interval is not known.
    """
    if gain is None:
        return None
    if low is None or high is None or alike(reading, (gain, low, high)):
        return 0
    return (low > 0) - (high < 0)


def surely(gains: Sequence[tuple[float, float, float]], freedom: float = math.inf) -> list[int]:
    """Return for each gain 1 if it is above 0, -1 if below, 0 if open, so that with 95 % none of these is wrong.

    A client's own 95 % interval errs in 5 % of all cases, and whoever counts those that do not touch 0 over many
    clients finds one sooner or later. So the clearest of n gains is tested at 5 % / n, the next one at 5 % / (n - 1),
    and so on until one is not clear (Holm 1979).

    Args:
        gains: each gain with the ends of its 95 % interval; NaN: not known.
        freedom: degrees of freedom of Student's t by which the intervals were made.

    Examples:
        >>> surely([(0.2, 0.1, 0.3), (-0.2, -0.39, -0.01), (0.1, -0.1, 0.3)])
        [1, 0, 0]
    """
    if not any(low > 0 or high < 0 for _, low, high in gains):
        return [0] * len(gains)
    from scipy.special import stdtr  # late: it takes longer to import than a short run

    near = [gain - (low if gain > 0 else high) for gain, low, high in gains]
    errors = [abs(gain / half) if half else math.inf * abs(gain) for (gain, *_), half in zip(gains, near, strict=True)]
    chances = [2 * float(stdtr(freedom, -t_quantile(freedom) * error)) for error in errors]
    known = [i for i, chance in enumerate(chances) if math.isfinite(chance)]
    signs = [0] * len(gains)
    for i, chance in zip(known, holm([chances[i] for i in known]), strict=True):
        signs[i] = 0 if chance > 1 - LEVEL else 1 if gains[i][0] > 0 else -1
    return signs


def fits_of(run: RunRecord, alone: RunRecord | None = None) -> dict[int, Fit]:
    """Return the fit of each client, by its last test in the run and its last one alone.

    A round's file that is lost is not replaced by an earlier round's: then nothing is known. Where rows look like
    several of one person and nobody says of what they are, no fit is compared with a model alone.

    Args:
        run: the run.
        alone: the run of clients that train alone. None: that which :func:`hanse.reports.alone.find_alone` finds.
    """
    asked = range(run.num_clients)
    ours, lost = _last_tests(run, asked)
    other = find_alone(run) if alone is None else alone
    unsaid = Note("units_unsaid", "warning") if run.about.doubt else None
    theirs = {} if other is None else _last_tests(other, asked)[0]
    found = {}
    for client in asked:
        test, beside = ours.get(client), theirs.get(client)
        if test is None:
            found[client] = Fit(why=lost or _why_untested(run))
        elif unsaid is not None:
            found[client] = replace(_fit(run, client, test), why=unsaid)
        elif other is None:
            found[client] = replace(_fit(run, client, test), why=_gap(test) or _why_not_alone(run, client))
        elif beside is None:
            untested = Note("alone_untested", "note", {"run": other.name, "client": client})
            found[client] = replace(_fit(run, client, test), why=untested)
        else:
            found[client] = _compared(_fit(run, client, test), test, beside, run, other)
    return found


def own_mean(run: RunRecord, reading: MetricStyle) -> float | None:
    """Return the mean over the honest clients of a metric on their own test units, each by its last test.

    Args:
        run: the run.
        reading: the accuracy, or the run's main metric.
    """
    honest = honest_of(run)
    tests = _last_tests(run, range(run.num_clients) if honest is None else honest.tolist())[0].values()
    known = [one for test in tests if (one := test.accuracy if reading == ACCURACY else test.main) is not None]
    means = known or run.series(f"client/test_{reading.key}")[1].tolist()[-1:]  # an app may tell the mean alone
    return float(np.mean(means)) if means else None


def history_of(run: RunRecord, client: int) -> tuple[MetricStyle, list[tuple[int, float]]]:
    """Return the metric of a client's :class:`Fit`, and its value after each round in which the client tested."""
    tests = [test for line in _tested(run) if (test := _test(run, line, client)) is not None]
    reading = _reading(run, tests[-1]) if tests else ACCURACY
    values = ((test.round, _figure(reading, test)) for test in tests)
    return reading, [(round, value) for round, value in values if value is not None]


# ---- one test


@dataclass(frozen=True)
class OwnTest:
    """One test of one client on its own share (:class:`hanse.runs.run_record.OwnTests`). None: not known."""

    round: int
    loss: float | None
    accuracy: float | None
    samples: int | None
    error: float | None
    main: float | None
    gap: str
    without: Floats
    interval: Interval | None
    units: int | None = None

    @staticmethod
    def of(tests: OwnTests, i: int, round: int) -> OwnTest | None:
        """Return the test of the client at position ``i``; None if it has neither a loss nor an accuracy."""
        figures = (tests.loss[i], tests.accuracy[i], tests.error[i], tests.main[i], *tests.interval[i])
        loss, accuracy, error, main, low, high = map(finite_or_none, figures)
        if loss is None and accuracy is None:
            return None
        samples = None if tests.samples is None else int(tests.samples[i])
        units = None if tests.units is None else int(tests.units[i])
        blocks = next((count for count in (units, samples) if count is not None), BLOCKS)
        left = np.zeros(0) if tests.without is None else tests.without[i][:blocks]
        between = None if low is None or high is None else (low, high)
        return OwnTest(round, loss, accuracy, samples, error, main, str(tests.gaps[i]), left, between, units)


def _tested(run: RunRecord) -> list[int]:
    """Return the rounds after which clients tested."""
    return [int(line["round"]) for line in run.metrics if line.get("client/test_loss") is not None]


def _test(run: RunRecord, round: int, client: int) -> OwnTest | None:
    tests = run.own_tests(round)
    at = [] if tests is None else np.flatnonzero(tests.clients == client).tolist()
    return OwnTest.of(tests, at[0], round) if tests is not None and at else None


def _last_tests(run: RunRecord, clients: Collection[int]) -> tuple[dict[int, OwnTest], Note | None]:
    """Return the last test of each of these clients, and a note if the file of a later test of all others is lost."""
    found: dict[int, OwnTest] = {}
    for round in reversed(_tested(run)):
        if round in run.lost:
            return found, Note("test_lost", "warning", {"round": round, "why": run.lost[round]})
        tests = run.own_tests(round)
        for i, client in enumerate([] if tests is None else tests.clients.tolist()):
            if client in clients and client not in found and tests is not None:
                test = OwnTest.of(tests, i, round)
                found |= {} if test is None else {client: test}
        if len(found) == len(clients):
            break
    return found, None


def _reading(run: RunRecord, test: OwnTest) -> MetricStyle:
    return run.main if run.readings or test.accuracy is not None else LOSS


def _figure(reading: MetricStyle, test: OwnTest) -> float | None:
    return test.loss if reading == LOSS else test.main


def _gap(test: OwnTest) -> Note | None:
    return Note("no_metric", "note", {"gap": test.gap}) if test.gap else None


def _fit(run: RunRecord, client: int, test: OwnTest) -> Fit:
    """Return the fit of a client by its last test, without a model alone."""
    reading, member = _reading(run, test), run.members.get(client)
    samples = test.samples or (None if member is None else member.get("tests"))
    last = _figure(reading, test)
    interval = None
    if run.readings:
        interval = _interval(reading, last, test)
    elif reading == ACCURACY and last is not None and (test.units or samples):
        interval = wilson(last, test.units or samples or 0)
    return Fit(
        reading=reading,
        round=test.round,
        last=last,
        interval=interval,
        samples=samples,
        units=test.units,
        why=_gap(test),
    )


def _interval(reading: MetricStyle, value: float | None, test: OwnTest) -> Interval | None:
    """Return the interval that the client computed, or else Student's t around the value, within its bounds.

    None if the error is not known, or 0, because that would claim certainty.
    """
    error = _jackknife(test.without)
    if test.interval is not None or not error:
        return test.interval
    around, (least, most) = _around(value, error, len(test.without)), reading.within
    return None if around is None else (max(around[0], least), min(around[1], most))


def _compared(fit: Fit, ours: OwnTest, alone: OwnTest, run: RunRecord, other: RunRecord) -> Fit:
    """Return the fit with the last test of the client alone next to its own last one."""
    fit = replace(fit, beside=other.name, beside_rounds=len(other.metrics))
    if run.readings and run.main != other.main:
        return replace(fit, why=fit.why or Note("alone_no_metric", "note", {"metric": fit.reading.title}))
    figure = _figure(fit.reading, alone)
    if fit.last is None or figure is None:
        return replace(fit, alone=figure, why=fit.why or _gap(alone))
    if run.readings:
        between = _of_main(fit.reading, fit.last, ours, figure, alone)
    elif fit.reading == ACCURACY:
        # Where samples have units, each unit counts as one sample. Both models' errors are taken as independent. On
        # the same samples they usually err together, so the true interval is narrower.
        n = fit.counted
        between = difference(fit.last, wilson(fit.last, n), figure, wilson(figure, n)) if n else None
    else:  # an upper bound, in the same way
        half = None if ours.error is None or alone.error is None else SURE * math.hypot(ours.error, alone.error)
        between = None if half is None else (fit.last - figure - half, fit.last - figure + half)
    return replace(fit, alone=figure, between=between)


def _of_main(reading: MetricStyle, last: float, ours: OwnTest, figure: float, alone: OwnTest) -> Interval | None:
    """Return the interval of the difference of a main metric.

    It is derived from the recorded intervals of both values, or else Student's t around the difference. Its error is
    known only if both runs have recorded the metric without each block of the same test samples.
    """
    paired = len(ours.without) == len(alone.without) and ours.samples == alone.samples
    error = _jackknife(ours.without - alone.without) if paired else None
    if ours.interval and alone.interval:
        correlation = 0.0 if error is None else _correlation(reading, ours, alone, error)
        return difference(last, ours.interval, figure, alone.interval, correlation)
    return _around(last - figure, error, len(ours.without))


def _correlation(reading: MetricStyle, ours: OwnTest, alone: OwnTest, error: float) -> float:
    """Return the correlation of two values over draws of their common samples, from the error of their difference.

    On few samples a positive one is too high by chance: two models that are right on the same samples would have an
    interval without width. So that of a bounded figure is corrected for continuity, towards 0 (Newcombe 1998, method
    10, where both figures are shares of n samples, of which half a sample is taken from the covariance). That is so
    where samples have units, too: a share moves in steps of one sample, and the errors are already those of units.
    """
    mine, other = _jackknife(ours.without), _jackknife(alone.without)
    if not mine or not other:
        return 0.0
    found = (mine**2 + other**2 - error**2) / (2 * mine * other)  # var(a - b) = var a + var b - 2 cov
    (least, most), n = reading.within, ours.samples
    if found > 0 and n is not None and math.isfinite(most - least):
        found = max(0.0, found - 0.5 * (most - least) ** 2 / (n * (n - 1) * mine * other))
    return min(1.0, max(-1.0, found))


def _around(value: float | None, error: float | None, blocks: int) -> Interval | None:
    """Return the 95 % interval around a value, by Student's t with one degree of freedom less than blocks."""
    if value is None or error is None or blocks < 2:
        return None
    half = t_quantile(blocks - 1) * error
    return value - half, value + half


def _jackknife(without: Floats) -> float | None:
    """Return the standard error of a figure from what it is ``without [B]`` each block; None if it is not known."""
    return finite_or_none(float(jackknife_errors(without)))


def finite_or_none(number: float) -> float | None:
    """Return a number as a plain float. NaN and infinity, which stand for "not known" in arrays, become None."""
    return float(number) if np.isfinite(number) else None


# ---- why something is not known


def _why_untested(run: RunRecord) -> Note:
    """Return why a client has no test on its own data."""
    data = run.config.get("data", {})
    none_kept = data.get("client_test", 0) == 0 and data.get("client_test_from") not in ("equal", "classes")
    code = "untested_apart" if "source" not in data else "no_test_rows" if none_kept else "untested"
    return Note(code, "warning")


def _why_not_alone(run: RunRecord, client: int) -> Note:
    """Return why it is not known what the client would have reached alone."""
    if run.mechanism == "local":
        return Note("is_alone", "note")
    if run.has(MEMBERS):
        return Note("alone_apart", "warning", {"command": "" if run.in_app else THERE})
    command = by_python(run) or f"hanse statement DIR --client {client} --train-alone{run.trust}"
    return Note("not_alone", "warning", {"command": command})
