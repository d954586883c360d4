"""What each client's updates were worth, and how sure that is.

:func:`contribution` adds up the values of a group of runs, which :func:`contribution_charts` draws.
:class:`Standings` compares the sums of clients with one another. It says which clients
cannot be told apart, and how sure a client's part of the whole is.

**Errors.** A sum of values has two. *Sampling*: where not every group of updates was tried, a value is an estimate.
Rounds are sampled independently, so the variances of rounds add. *Draw*: values are measured on one validation set, and
another set would give other values. It is the same set in every round, so these errors do not average out. For each
block of samples, the sum of values without this block is added up over the rounds; the jackknife is taken of these sums
(:mod:`hanse.games.jackknife`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.files import table
from hanse.base.streams import stream
from hanse.core.telling import Measure
from hanse.games.jackknife import SURE, interval_errors, jackknife_errors
from hanse.reports.chart import Bars, Chart, Floats, Ints, Series, outermost, slug
from hanse.reports.digits import labelled
from hanse.reports.groups import SeedGroup
from hanse.reports.words import said
from hanse.runs.run_record import RunRecord

# ---- how sure sums of values are


SURE_SHARE = 0.95
DRAWS = 4000  # of sums around those that were found, for intervals of their parts


def both_errors(sampling: Floats, drawn: Floats) -> Floats:
    """Return the errors of sums of values from both sources, ``[...]``.

    Where one is missing it is the other alone. NaN if both are missing. NaN also if the sampling error is infinite,
    since the other error alone would then be taken for the whole.

    Args:
        sampling: ``[...]``, from the sampling of coalitions. NaN: the values are exact, or no errors were recorded.
            Infinite: the values are estimates whose error is not known.
        drawn: ``[...]``, from the draw of the validation samples. NaN: not recorded.
    """
    unknown = np.isnan(sampling) & np.isnan(drawn) | np.isinf(sampling)
    both = np.sqrt(np.nan_to_num(sampling, posinf=0.0) ** 2 + np.nan_to_num(drawn, posinf=0.0) ** 2)
    return np.where(unknown, np.nan, both)


def sums_of(run: RunRecord, clients: Ints, last: int | None = None) -> Standings:
    """Return the sums of the values of some clients.

    Args:
        run: the run.
        clients: ``[n]``, their numbers, ascending.
        last: the last round (0-based) that counts. None: all do.

    Returns:
        The sums. The sampling error of a client none of whose values has one is NaN. It is infinite if a valued round's
        file was lost, and rounds record the error of the draw, or all files are lost: without the file the error of the
        draw cannot be known, and this one would be taken for the whole.
    """
    seats, count = run.seats, len(clients)
    ours = np.isfinite(seats.value) & (seats.round <= (np.inf if last is None else last))
    valued = np.unique(seats.round[ours]).tolist()
    ours &= np.isin(seats.client, clients)
    some = ours & ~np.isnan(seats.error)
    at, of = (np.searchsorted(clients, seats.client[which]) for which in (ours, some))
    totals = np.bincount(at, seats.value[ours], minlength=count).astype(np.float64)
    squares = np.bincount(of, seats.error[some] ** 2, minlength=count)
    sampling = np.where(np.bincount(of, minlength=count) > 0, np.sqrt(squares), np.nan)
    lost = [round for round in valued if round in run.lost]
    if lost and (run.without_block or len(lost) == len(valued)):
        sampling[:] = np.inf
    return Standings(clients, totals, sampling, _without_block(run, clients, valued))


def _without_block(run: RunRecord, clients: Ints, valued: Sequence[int]) -> Floats:
    """Return the sums of the clients' values with each block of the validation samples left out, ``[n, B]``.

    ``valued`` are the rounds with values. NaN if one has not recorded them: a sum with a round missing would be another
    sum.
    """
    blocks = max((without.shape[1] for _, without in run.without_block.values()), default=0)
    sums = np.zeros((len(clients), blocks))
    for round in valued:
        who, without = run.without_block.get(round, (np.zeros(0, np.int64), np.zeros((0, 0))))
        if without.shape[1] != blocks:
            return np.full((len(clients), blocks), np.nan)
        ours = np.isin(who, clients)
        np.add.at(sums, np.searchsorted(clients, who[ours]), np.nan_to_num(without[ours]))
    return sums


def gained(run: RunRecord) -> float | None:
    """Return by how much the validation loss fell over the whole run, if the values are parts of this fall.

    Only path values are. None for other values. Also None if a round with values has not recorded it, or if a round's
    line is lost.
    """
    if [line["round"] for line in run.metrics] != list(range(len(run.metrics))):
        return None
    known = [line.get("value/gain") for line in run.metrics if "value/sum" in line]
    if not known or not all(isinstance(one, int | float) and np.isfinite(one) for one in known):
        return None
    return float(np.array([line.get("value/gain", 0.0) for line in run.metrics], np.float64).sum())


def missed(run: RunRecord) -> tuple[Floats, Floats] | None:
    """Return how much worse the averages would be without each client, and the standard errors: ``[3, N]`` each.

    In each round the average of the others' updates is compared with the average of all (leave-one-out in averages), to
    first order in the step, along which path values have taken the gradient. With q_i a client's part, v_i its value
    and v the sum of all values, that is (v_i - q_i v) / (1 - q_i): a client whose share of the fall is less than its
    part is better left out. Training anew without it may say otherwise: this screens only.

    Three parts are taken. The first is the client's weight. The second is its share of weight times samples where that
    is less: in an epoch a client with fewer samples takes fewer steps, so that until the model is trained an honest one
    adds less than its weight. Samples are what clients say: what is above MOST_WORK times the median does not count, or
    one client could say so many that nobody else had anything to do. The third is the part IDLE of the second.

    Args:
        run: the run.

    Returns:
        None if the values are no parts of one model's fall, some are not recorded without each block of validation
        samples, or have an error from sampling or noise.
    """
    if gained(run) is None or _many_models(run) or np.isfinite(run.seats.error).any():
        return None
    weight = np.array([seat.weight or 0.0 for seat in run.clients])
    train = table(run.config, "train")
    epochs = train.get("steps") is None and train.get("batches_per_epoch") is None
    samples = np.array([(seat.samples or 1.0) if epochs else 1.0 for seat in run.clients])
    total: Floats | None = None  # [3, N, 1 + B]: whole, and without each block of validation samples
    for round in np.unique(run.seats.round[np.isfinite(run.seats.value)]).tolist():
        at = np.flatnonzero((run.seats.round == round) & np.isfinite(run.seats.value))
        clients = run.seats.client[at]
        who, without = run.without_block.get(round, (np.zeros(0, np.int64), np.zeros((0, 0))))
        if without.shape[1] < 2 or not np.isin(clients, who).all():
            return None
        every = np.zeros((run.num_clients, 1 + without.shape[1]))
        every[:, 0] = np.bincount(clients, run.seats.value[at], minlength=run.num_clients)
        np.add.at(every[:, 1:], who, np.nan_to_num(without))
        part = np.bincount(clients, weight[at], minlength=run.num_clients)
        work = weight[at] * np.minimum(samples[at], MOST_WORK * np.median(samples[at]))
        done = np.bincount(clients, work, minlength=run.num_clients)
        due = np.minimum(part, part.sum() * done / (done.sum() or 1.0))
        parts = np.stack([part, due, IDLE * due])[:, :, None]
        others = part.sum() - parts
        lone = (part.sum() * every - parts * every.sum(axis=0)) / np.where(others > 0, others, np.inf)
        if total is not None and total.shape != lone.shape:
            return None
        total = lone if total is None else total + lone
    return None if total is None else (total[:, :, 0], interval_errors(total[:, :, 1:]))


def _many_models(run: RunRecord) -> bool:
    return any(isinstance(n := line.get("value/rows"), int | float) and n > 1 for line in run.metrics)


def fallen(run: RunRecord) -> str:
    """Return the name of what :func:`gained` measures the fall of: one model's validation loss, or that of several; ""
    where values, such as a cosine or a share of an accuracy, are no parts of such a fall.
    """
    if gained(run) is None:
        return ""
    return "the validation losses of all models together" if _many_models(run) else "the validation loss"


# ---- which sums can be told apart, and how sure parts of the whole are


SUSPECT = 0.05
"""Of the fall of the loss: whose absence would surely have added more to averages is suspect. ``docs/report.md`` has
what it calls of seven kinds of clients. At 2 %, 4 of 12 owners of 30 % wrong labels would be suspect, too."""
IDLE = 0.5
"""Whose part of the fall is surely below this part of what its work explains is not excused by its few samples. On
digits (4 to 6 clients of unlike size, 32 splits) 52 of 64 small idle clients are suspect, and 24 without it; either way
5 of 348 honest ones are."""
MOST_WORK = 30.0
ROUNDING = 1e-9  # a difference below this part of the largest sum is rounding, as of 0.1 + 0.2 and 0.3


@dataclass(frozen=True)
class Standings:
    """The sums of values of several clients, to be compared with one another.

    Two sums can be told apart if their difference is more than 1.96 of its standard errors from 0. Sampling errors are
    taken as independent, which is rough, since the values of one round come from the same coalitions. The validation
    samples are the same for all clients. The error of the draw is therefore taken of the difference itself: whatever
    another draw would do to both clients alike cancels out. Two clients may therefore be told apart although their
    intervals overlap.

    Attributes:
        clients: ``[n]``, the numbers of the clients, ascending.
        totals: ``[n]``, the sum of each client's values.
        sampling: ``[n]``, the standard errors of the sums from the sampling of coalitions. NaN means exact, or not
            known. Infinite means estimates whose error is not known.
        without: ``[n, B]``, the sums with each block of the validation samples left out. NaN, or ``B < 2``: not
            recorded.

    Examples:
        Clients 0 and 2 cannot be told apart:

        >>> sums, sampling = np.array([3.0, 1.0, 2.9]), np.array([0.1, 0.1, 0.1])
        >>> standings = Standings(np.array([0, 1, 2]), sums, sampling, np.full((3, 0), np.nan))
        >>> standings.tied(0), standings.reach(0)
        (array([2]), (1, 2))
    """

    clients: Ints
    totals: Floats
    sampling: Floats
    without: Floats

    @property
    def errors(self) -> Floats:
        """The errors of the sums, ``[n]``, 1.96 of which to either side are a 95 % interval; NaN: not known."""
        return both_errors(self.sampling, interval_errors(self.without))

    def among(self, clients: Ints) -> Standings:
        """Return the standings of those of ``clients`` that are in these standings, compared only with each other."""
        at = np.flatnonzero(np.isin(self.clients, clients))
        return Standings(self.clients[at], self.totals[at], self.sampling[at], self.without[at])

    @property
    def known(self) -> bool:
        """Whether anything is known of how sure the sums are. If not, nothing may be called clear, or tied.

        Errors of 0 say only that the sums are exact on the validation samples, and nothing of other samples.
        """
        return bool((np.isfinite(self.sampling) & (self.sampling > 0)).any()) or self._recorded

    @property
    def _recorded(self) -> bool:
        """Whether the sums without each block are known for all clients."""
        return self.without.shape[1] > 1 and bool(np.isfinite(self.without).all())

    def _at(self, client: int) -> int:
        """Return the position of a client."""
        return int(np.searchsorted(self.clients, client))

    def differences(self, client: int) -> tuple[Floats, Floats]:
        """Return by how much each sum is above that of one client, and how sure each difference is.

        Args:
            client: the client's number.

        Returns:
            The differences ``[n]`` and their errors ``[n]`` (as ``errors``). At the client itself both are 0.
        """
        at = self._at(client)
        drawn = interval_errors(self.without - self.without[at])
        own = self.sampling[at]
        unknown = np.isnan(drawn) & (np.isnan(self.sampling) | np.isnan(own)) | np.isinf(self.sampling) | np.isinf(own)
        sampling = sum(np.nan_to_num(one, posinf=0.0) ** 2 for one in (self.sampling, own))
        errors = np.where(unknown, np.nan, np.sqrt(sampling + np.nan_to_num(drawn) ** 2))
        errors[at] = 0.0
        return self.totals - self.totals[at], errors

    def place(self, client: int) -> int:
        """Return a client's place, 1 being the highest sum. Clients with equal sums have the same place."""
        return 1 + int((self.totals > self.totals[self._at(client)]).sum())

    def tied(self, client: int) -> Ints:
        """Return the clients that cannot be told apart from one client, the highest sum first.

        The difference of their sums is within 1.96 standard errors of 0, or its error is not known.
        """
        order = np.argsort(-self.totals, kind="stable")
        tied = (self._surely(client) == 0) & (self.clients != client)
        return np.asarray(self.clients[order][tied[order]], np.int64)

    def reach(self, client: int) -> tuple[int, int]:
        """Return the best and the worst place that a client may have: behind all that are surely above it, and before
        all that are surely below.
        """
        surely = self._surely(client)
        return 1 + int((surely > 0).sum()), len(surely) - int((surely < 0).sum())

    def _surely(self, client: int) -> Floats:
        """Return whose sum is surely above that of ``client`` (1) or below (-1), and whose cannot be told apart (0)."""
        difference, error = self.differences(client)
        rounding = ROUNDING * float(np.abs(self.totals).max())
        apart = np.abs(difference) > np.maximum(SURE * error, rounding)  # an error of NaN makes this false
        return np.where(apart, np.sign(difference), 0.0)

    @property
    def apart(self) -> int:
        """How many pairs of clients can be told apart."""
        return int(sum((self._surely(client) > 0).sum() for client in self.clients.tolist()))

    @property
    def pairs(self) -> dict[str, Any]:
        """How sure the order of the sums is: how many pairs there are, how many can be told apart, if that is known."""
        apart = self.apart if self.known else 0
        return {"pairs": len(self.clients) * (len(self.clients) - 1) // 2, "apart": apart, "known": self.known}

    def parts(self) -> Floats:
        """Return each client's part ``[n]`` of the sum of all that are above zero.

        It is below zero for a sum below zero, and NaN if no sum is above zero, beside the others' size.
        """
        whole, largest = float(np.maximum(self.totals, 0.0).sum()), float(np.abs(self.totals).max(initial=0.0))
        return self.totals / whole if whole > 1e-300 * largest else np.full(len(self.totals), np.nan)

    @property
    def uncertain(self) -> bool:
        """Whether parts have intervals: several share the sum, and no block of samples leaves nobody above zero."""
        wholes = np.maximum(self.without, 0.0).sum(axis=0)
        return int((self.totals > 0).sum()) > 1 and not (self._recorded and (wholes <= 0).any())

    def between(self) -> Floats:
        """Return 95 % intervals ``[n, 2]`` of each client's part of the total, in which sums below zero count as zero.

        NaN: not known.

        The intervals are percentiles over sums that are drawn around these sums by both errors. They therefore hold
        even where it is not sure whose sum is above zero. The stream of draws is always the same.

        Examples:
            Only client 0 is above zero, and nobody knows for sure:

            >>> one = Standings(np.arange(2), np.array([1.0, -0.5]), np.array([1.0, 1.0]), np.full((2, 0), np.nan))
            >>> one.between().round(1).tolist()
            [[0.0, 1.0], [0.0, 1.0]]
        """
        unknown = np.full((len(self.totals), 2), np.nan)
        if np.isinf(self.sampling).any() or (not self._recorded and not np.isfinite(self.sampling).all()):
            return unknown
        normal = stream(0, "intervals of parts").standard_normal
        sampled = np.nan_to_num(self.sampling) * normal((DRAWS, len(self.totals)))
        drawn: Floats = np.zeros_like(sampled)
        if self._recorded:
            apart = self.without - self.without.mean(axis=1, keepdims=True)
            length = np.linalg.norm(apart, axis=1, keepdims=True)
            scaled = apart * (interval_errors(self.without)[:, None] / np.where(length > 0, length, 1.0))
            drawn = normal((DRAWS, apart.shape[1])) @ scaled.T
        sums = np.maximum(self.totals + sampled + drawn, 0.0)
        whole = sums.sum(axis=1, keepdims=True)
        kept = (whole > 0).ravel()  # where nobody is above zero there are no parts
        if not kept.any():
            return unknown
        ends = [50 * (1 - SURE_SHARE), 50 * (1 + SURE_SHARE)]
        return np.asarray(np.percentile(sums[kept] / whole[kept], ends, axis=0).T)


# ---- sums and charts of values


_SECTION = "Who contributed"
_HIGHEST, _LOWEST = 12, 8  # clients of the picture, where there are more than that


def clearly_harmful(totals: Floats, errors: Floats, updates: Ints, chance: float = 0.0) -> NDArray[np.bool_]:
    """Return whose updates clearly did harm, ``[n]``: several were valued, and the sum's 95 % interval is below 0.

    Args:
        totals: ``[n]``, the sums of the clients' values.
        errors: ``[n]``, the standard errors of the sums. NaN: not known. 0: the sum is exact, and nothing is known of
            other validation samples. In both cases nobody is accused.
        updates: ``[n]``, how many updates were valued. One says too little.
        chance: from :func:`by_chance`.

    Example:
        >>> totals, errors, updates = np.array([-1.0] * 4), np.array([0.1, 0.9, 0.1, 0.0]), np.array([2, 2, 1, 2])
        >>> clearly_harmful(totals, errors, updates).tolist()
        [True, False, False, False]
        >>> clearly_harmful(totals, errors, updates, chance=0.6).any()
        np.False_
    """
    return np.asarray((errors > 0) & (totals + SURE * np.hypot(errors, chance) < 0) & (updates > 1))


def by_chance(totals: Floats, measure: Measure) -> float:
    """Return how much sums vary by chance because clients have different samples (a standard error).

    It is 0 for values that do not vary in this way.

    By leave-one-out, about half of the clients with similar data are below 0. In the game of averages, clients whose
    data are unlike the others' are often below 0, on any validation samples. The spread of the sums themselves measures
    it, as long as fewer than half of the clients are harmful. It is the median distance from the median; 1.48 of these
    are a standard deviation.

    Path values are not widened. On digits (20 clients, Dirichlet .1, .3 and 1, four seeds, with and without a label
    flipper), 11 of 462 honest sums are called harmful and 12 of 12 flippers; widened, 5 and 4.

    Args:
        totals: ``[n]``, the sums of all clients' values.
        measure: the description of what a value is.
    """
    if not measure.scatters:
        return 0.0
    return 1.4826 * float(np.median(np.abs(totals - np.median(totals))))


@dataclass(frozen=True)
class Contribution(Standings):
    """What each client of one experiment was worth. With several seeds, these are means over them.

    The clients are those with at least one valued update.

    Attributes:
        labels: the clients' names.
        seats: ``[n]``, how many of their updates were valued, over all seeds.
        drawn: ``[n]``, the standard errors of the sums from the draw of the validation samples.
        widened: ``[n]``, these with Student's factor for the blocks that they are from.
        measure: what one value is, as described by the part that measured it.
        missed: ``[n]``, how much worse averages would be without each (:func:`missed`). NaN: not known.
        missed_errors: ``[n]``, the standard errors.
        lacking: ``[2, n]``, the upper 95 % ends of :func:`missed` by work, and by the part IDLE of that.
        fall: by how much the loss fell. NaN: values are no parts of it.
        several: whether values are parts of the falls of several models, on the same samples: a model of some clients
            may get worse on everybody's because it gets better on theirs.
    """

    labels: tuple[str, ...]
    seats: Ints
    drawn: Floats
    widened: Floats
    measure: Measure
    missed: Floats
    missed_errors: Floats
    lacking: Floats
    fall: float
    several: bool

    @cached_property
    def errors(self) -> Floats:
        """The error of each client's sum from both sources, ``[n]``, 1.96 of which to either side are a 95 % interval.

        NaN: not known.
        """
        return both_errors(self.sampling, self.widened)

    @property
    def standard_errors(self) -> Floats:
        """The standard error of each client's sum from both sources, ``[n]``; NaN: not known."""
        return both_errors(self.sampling, self.drawn)

    @property
    def order(self) -> Ints:
        """The positions ``[n]`` from the highest sum to the lowest."""
        return np.argsort(-self.totals, kind="stable")

    @property
    def exact(self) -> bool:
        """Whether the sums are exact on the validation samples, and nothing is known of other samples.

        Their error is then 0 throughout. This error is not shown, because it would be mistaken for certainty.
        """
        known = self.errors[np.isfinite(self.errors)]
        return bool(len(known)) and not known.any()

    @property
    def ranked(self) -> Standings:
        """The sums of the clients that can be ranked. One update says too little for a place."""
        return self.among(self.clients[self.seats > 1])

    @property
    def suspect(self) -> NDArray[np.bool_]:
        """Whose updates clearly did harm (:func:`clearly_harmful`), or are clearly better left out of the averages.

        Nobody's, ``[n]``, if values only rank or are of ``several`` models, or where one of the errors is not known:
        the other alone would be taken for the whole.
        """
        sure = np.isfinite(self.drawn) & ~np.isinf(self.sampling)
        bad = clearly_harmful(self.totals, self.errors, self.seats, by_chance(self.totals, self.measure))
        much = -SUSPECT * abs(self.fall)
        idle = (self.missed + SURE * self.missed_errors < much) & (self.lacking[1] < 0)
        lacks = (self.lacking[0] < much) | idle
        return np.asarray((bad & sure & (not (self.measure.ranks or self.several))) | (lacks & (self.seats > 1)))

    @property
    def suspects(self) -> list[str]:
        """The names of those (:attr:`suspect`), the highest sum first."""
        return [self.labels[i] for i in self.order[self.suspect[self.order]].tolist()]


@lru_cache(maxsize=16)  # charts, summary and answers of one report ask for it
def contribution(group: SeedGroup) -> Contribution | None:
    """Return the values of each client added up over the rounds, or None if the runs recorded no values.

    Values are in the unit of the utility, usually the validation loss, so they may be summed over rounds.

    Args:
        group: the seeds of one experiment. Only those with the same clients are averaged.
    """
    runs = [run for run in group.same_clients if np.isfinite(run.seats.value).any()]
    if not runs:
        return None
    valued = np.concatenate([run.seats.client[np.isfinite(run.seats.value)] for run in runs])
    clients, seats = np.unique(valued, return_counts=True)
    last = min(int(run.metrics[-1]["round"]) for run in runs)
    found = [sums_of(run, clients, last) for run in runs]
    totals = np.mean([one.totals for one in found], axis=0)
    # Runs of one split share its validation samples: their errors of the draw do not average out, those of sampling do.
    sampling = np.sqrt(np.mean(np.square([one.sampling for one in found]), axis=0) / len(runs))
    drawn, widened = (np.mean([of(one.without) for one in found], axis=0) for of in (jackknife_errors, interval_errors))
    same = len({one.without.shape for one in found}) == 1
    without = np.mean([one.without for one in found], axis=0) if same else np.zeros((len(clients), 0))
    apart = [one for run in runs if (one := missed(run)) is not None]
    none = np.full((2, 3, len(clients)), np.nan)
    lone, errors = np.mean(apart, axis=0)[:, :, clients] if len(apart) == len(runs) else none
    fell = [np.nan if (lower := gained(run)) is None else lower for run in runs]
    return Contribution(
        clients,
        totals,
        sampling,
        without,
        labels=tuple(runs[0].client_label(client) for client in clients.tolist()),
        seats=seats,
        drawn=drawn,
        widened=widened,
        measure=runs[0].about.measure,
        missed=lone[0],
        missed_errors=errors[0],
        lacking=(lone + SURE * errors)[1:],
        fall=float(np.mean(fell)),
        several=any(map(_many_models, runs)),
    )


def contribution_charts(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return the charts on contributions, for every experiment that values updates.

    Args:
        groups: the experiments.
    """
    found = ((group, contribution(group)) for group in groups)
    return [picture_of(group, sums) for group, sums in found if sums is not None]


def picture_of(group: SeedGroup, found: Contribution) -> Chart:
    """Return the contributions as bars with 95 % intervals.

    Args:
        group: the experiment.
        found: its contributions.
    """
    count = len(found.clients)
    kept = found.order[outermost(count, _HIGHEST, _LOWEST)]
    single, suspect = found.seats[kept] == 1, found.suspect[kept]
    known = bool(np.isfinite(found.errors).any()) and not found.exact
    series = []
    kinds = (("contribution", ~single & ~suspect, 0), ("suspect", suspect, 1), ("one update only", single, 9))
    for name, mine, look in kinds:
        errors = np.where(mine, SURE * found.errors[kept], np.nan) if known else None
        if mine.any():
            series.append(Series(name, np.where(mine, found.totals[kept], np.nan), errors, look=look))
    labels = tuple(labelled(found.labels[i]) for i in kept.tolist())
    told = said("how_to_read", found.measure, known, count - len(kept), _HIGHEST, _LOWEST, found.exact)
    title = f"What each client contributed: {group.label}{group.seeds_text}"
    marks = Bars(labels, tuple(series), stacked=True)
    key = f"contribution-ranking-{slug(group.label)}"
    return Chart(key, _SECTION, title, told, marks, x=f"sum of its {found.measure.plural}")
