"""What each client's updates were worth, and how sure that is.

:func:`contribution` adds up the values of a group of runs, which :func:`contribution_charts` and
:func:`estimate_charts` draw. :class:`Standings` compares the sums of clients with one another. It says which clients
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

from hanse.base.streams import stream
from hanse.core.telling import Measure
from hanse.games.jackknife import SURE, interval_errors
from hanse.reports.chart import Bars, Chart, Curve, Floats, Ints, Lines, Series, slug
from hanse.reports.groups import SeedGroup
from hanse.reports.words import caption, said
from hanse.runs.run_record import RunRecord

# ---- how sure sums of values are


SURE_SHARE = 0.95
DRAWS = 4000  # of sums around those that were found, for intervals of their parts


@dataclass(frozen=True)
class Errors:
    """Standard errors of sums of values, by their two sources. Both arrays have the same shape ``[...]``.

    Attributes:
        sampling: from the sampling of coalitions. NaN: the values are exact, or no errors were recorded. Infinite: the
            values are estimates whose error is not known.
        drawn: from the draw of the validation samples. NaN: not recorded.
    """

    sampling: Floats
    drawn: Floats

    @property
    def total(self) -> Floats:
        """Both errors together, ``[...]``.

        Where one is missing it is the other alone. NaN if both are missing. NaN also if the sampling error is infinite,
        since the other error alone would then be taken for the whole.
        """
        unknown = np.isnan(self.sampling) & np.isnan(self.drawn) | np.isinf(self.sampling)
        sampling, drawn = (np.nan_to_num(one, posinf=0.0) for one in (self.sampling, self.drawn))
        both = np.sqrt(sampling**2 + drawn**2)
        return np.where(unknown, np.nan, both)

    @property
    def exact(self) -> bool:
        """Whether the values are exact on the validation samples, and nothing is known of other samples.

        Their error is then 0 throughout. This error is not shown, because it would be mistaken for certainty.
        """
        known = self.total[np.isfinite(self.total)]
        return bool(len(known)) and not known.any()


def errors_of(run: RunRecord, groups: Sequence[Ints], ends: Ints) -> Errors:
    """Return the errors of the summed values of groups of clients, as they grow over the rounds.

    Args:
        run: the run.
        groups: ``n`` arrays of clients' numbers. A client is in at most one of them.
        ends: ``[C]``, rounds (0-based, ascending) until which the values are summed.

    Returns:
        Errors of shape ``[n, C]``.
    """
    group_of = np.full(run.num_clients, -1, np.int64)
    for g, clients in enumerate(groups):
        group_of[clients] = g
    whose = (run, group_of, len(groups), ends)
    return Errors(_sampling(*whose), interval_errors(_without_block(*whose)))


def _sampling(run: RunRecord, group_of: Ints, count: int, ends: Ints) -> Floats:
    """Return the errors ``[n, C]`` of the summed values from the sampling of coalitions.

    ``group_of [N]`` is each client's group (-1: none), ``count`` the number of groups. NaN for a group none of whose
    values has an error; infinite from the first round on whose file was lost, if rounds record the error of the draw,
    or all files are lost.
    """
    seats = run.seats
    ours = (group_of[seats.client] >= 0) & np.isfinite(seats.value) & (seats.round <= ends[-1])
    some = ours & ~np.isnan(seats.error)
    squares, known = np.zeros((count, len(ends))), np.zeros(count, bool)
    group = group_of[seats.client[some]]
    np.add.at(squares, (group, np.searchsorted(ends, seats.round[some])), seats.error[some] ** 2)
    known[group] = True
    errors = np.where(known[:, None], np.sqrt(squares.cumsum(axis=1)), np.nan)
    # without the file of a round the error of the draw cannot be known, and this one alone would be taken for the whole
    valued = np.unique(seats.round[np.isfinite(seats.value) & (seats.round <= ends[-1])]).tolist()
    lost = [round for round in valued if round in run.lost]
    if lost and (run.without_block or len(lost) == len(valued)):
        errors[:, np.searchsorted(ends, lost[0]) :] = np.inf
    return errors


def _without_block(run: RunRecord, group_of: Ints, count: int, ends: Ints) -> Floats:
    """Return the sums of values until ``ends [C]`` with each block of the validation samples left out, ``[n, C, B]``.

    They are NaN from the first round on that has not recorded them: a sum with a round missing would be another sum.
    """
    blocks = max((without.shape[1] for _, without in run.without_block.values()), default=0)
    sums, known = np.zeros((count, len(ends), blocks)), np.ones(len(ends), bool)
    seats = run.seats
    valued = np.unique(seats.round[np.isfinite(seats.value) & (seats.round <= ends[-1])])
    for round in valued.tolist():
        column = int(np.searchsorted(ends, round))  # the first of ``ends`` that has this round in it
        clients, without = run.without_block.get(round, (np.zeros(0, np.int64), np.zeros((0, 0))))
        if without.shape[1] != blocks:
            known[column:] = False
            continue
        group = group_of[clients]
        np.add.at(sums[:, column], group[group >= 0], np.nan_to_num(without[group >= 0]))
    return np.where(known[:, None], sums.cumsum(axis=1), np.nan)


def fall(run: RunRecord) -> Floats | None:
    """Return by how much the validation loss fell in each round, ``[R]``, if the values are parts of this fall.

    Only path values are. None for other values. Also None if a round with values has not recorded it, or if a round's
    line is lost.
    """
    if [line["round"] for line in run.metrics] != list(range(len(run.metrics))):
        return None
    valued = [line for line in run.metrics if "value/sum" in line]
    known = [line.get("value/gain") for line in valued]
    if not valued or not all(isinstance(one, int | float) and np.isfinite(one) for one in known):
        return None
    return np.array([line.get("value/gain", 0.0) for line in run.metrics], np.float64)


def gained(run: RunRecord) -> float | None:
    """Return by how much the validation loss fell over the whole run (see :func:`fall`)."""
    by_round = fall(run)
    return None if by_round is None else float(by_round.sum())


def missed(run: RunRecord) -> tuple[Floats, Floats] | None:
    """Return how much worse the averages would be without each client, and the standard errors: ``[N]`` each.

    In each round the average of the others' updates is compared with the average of all (leave-one-out in averages), to
    first order in the step, along which path values have taken the gradient. With q_i a client's weight, v_i its value
    and v the sum of all values, that is (v_i - q_i v) / (1 - q_i): a client whose share of the fall is less than its
    weight is better left out. Training anew without it may say otherwise: this screens only.

    Args:
        run: the run.

    Returns:
        None if the values are no parts of one model's fall, some are not recorded without each block of validation
        samples, or have an error from sampling or noise.
    """
    if gained(run) is None or _many_models(run) or np.isfinite(run.seats.error).any():
        return None
    weight = np.array([seat.weight or 0.0 for seat in run.clients])
    sums, blocks = np.zeros(run.num_clients), list[Floats]()
    for round in np.unique(run.seats.round[np.isfinite(run.seats.value)]).tolist():
        at = np.flatnonzero((run.seats.round == round) & np.isfinite(run.seats.value))
        who, without = run.without_block.get(round, (np.zeros(0, np.int64), np.zeros((0, 0))))
        if without.shape[1] < 2 or not np.isin(run.seats.client[at], who).all():
            return None
        part = np.bincount(run.seats.client[at], weight[at], minlength=run.num_clients)
        every = np.zeros((run.num_clients, 1 + without.shape[1]))
        every[:, 0] = np.bincount(run.seats.client[at], run.seats.value[at], minlength=run.num_clients)
        np.add.at(every[:, 1:], who, np.nan_to_num(without))
        others = part.sum() - part
        lone = (part.sum() * every - part[:, None] * every.sum(axis=0)) / np.where(others > 0, others, np.inf)[:, None]
        sums += lone[:, 0]
        blocks.append(lone[:, 1:])
    if len({one.shape for one in blocks}) != 1:
        return None
    return sums, interval_errors(np.sum(blocks, axis=0))


def _many_models(run: RunRecord) -> bool:
    return any(isinstance(n := line.get("value/rows"), int | float) and n > 1 for line in run.metrics)


def fallen(run: RunRecord) -> str:
    """Return the name of what :func:`fall` measures the fall of: one model's validation loss, or that of several."""
    return "the validation losses of all models together" if _many_models(run) else "the validation loss"


# ---- which sums can be told apart, and how sure parts of the whole are


SUSPECT = 0.05
"""Of the fall of the loss: whose absence would surely have added more to averages is suspect. ``docs/report.md`` has
what it calls of seven kinds of clients. At 2 %, 4 of 12 owners of 30 % wrong labels would be suspect, too."""
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
        >>> standings.tied(0), standings.tied_places(0)
        (array([2]), array([2]))
    """

    clients: Ints
    totals: Floats
    sampling: Floats
    without: Floats

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
            The differences ``[n]`` and their standard errors ``[n]`` (NaN: not known). At the client itself both are 0.
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
        return self._ordered(client)[self._tied_at(client)]

    def tied_places(self, client: int) -> Ints:
        """Return the places of the clients in :meth:`tied`, ascending.

        The highest sum has place 1. Among equal sums, this client is placed first.
        """
        return np.asarray(1 + self._tied_at(client), np.int64)

    def _ordered(self, client: int) -> Ints:
        """Return the clients, the highest sum first; of equal sums ``client`` first and then the lower number."""
        order = np.lexsort((self.clients != client, -self.totals))  # stable: then by number
        return self.clients[order]

    def _tied_at(self, client: int) -> Ints:
        """Return the positions in :meth:`_ordered` of those that cannot be told apart from ``client``."""
        difference, error = self.differences(client)
        rounding = ROUNDING * float(np.abs(self.totals).max())
        apart = np.abs(difference) > np.maximum(SURE * error, rounding)  # an error of NaN makes this false
        tied = self.clients[~apart & (self.clients != client)]
        return np.flatnonzero(np.isin(self._ordered(client), tied))

    @property
    def apart(self) -> int:
        """How many pairs of clients can be told apart."""
        tied = sum(len(self.tied(client)) for client in self.clients.tolist()) // 2
        return len(self.clients) * (len(self.clients) - 1) // 2 - tied

    @property
    def pairs(self) -> dict[str, Any]:
        """How sure the order of the sums is: how many pairs there are, how many can be told apart, if that is known."""
        apart = self.apart if self.known else 0
        return {"pairs": len(self.clients) * (len(self.clients) - 1) // 2, "apart": apart, "known": self.known}

    def parts(self) -> Floats:
        """Return each client's part ``[n]`` of the sum of all that are above zero.

        It is below zero for a sum below zero, and NaN if no sum is above zero.
        """
        whole = float(np.maximum(self.totals, 0.0).sum())
        return self.totals / whole if whole > 0 else np.full(len(self.totals), np.nan)

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


MOST_CLIENTS = 300  # of whom every pair is compared
MOST_COLUMNS = 400  # points of a line
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
class Contribution:
    """What each client of one experiment was worth, highest sum first. With several seeds, these are means over them.

    Attributes:
        clients: ``[n]``, the numbers of the clients with at least one valued update.
        labels: the clients' names.
        seats: ``[n]``, how many of their updates were valued, over all seeds.
        rounds: ``[C]``, numbers of rounds played.
        running: ``[n, C]``, the sum of each client's values until then.
        spread: the standard errors of these sums by source, each ``[n, C]``.
        sums: the sums at the end, for comparing them with one another.
        measure: what one value is, as described by the part that measured it.
        missed: ``[n]``, how much worse averages would be without each (:func:`missed`). NaN: not known.
        missed_errors: ``[n]``, the standard errors.
        fall: by how much the loss fell. NaN: values are no parts of it.
    """

    clients: Ints
    labels: tuple[str, ...]
    seats: Ints
    rounds: Ints
    running: Floats
    spread: Errors
    sums: Standings
    measure: Measure
    missed: Floats
    missed_errors: Floats
    fall: float

    @cached_property
    def errors(self) -> Floats:
        """The standard error of each client's sum at the end, from both sources, ``[n]``; NaN if it is not known."""
        return np.asarray(self.spread.total[:, -1])

    @property
    def last(self) -> Errors:
        """The standard errors of each client's sum at the end by their sources, ``[n]`` each."""
        return Errors(self.spread.sampling[:, -1], self.spread.drawn[:, -1])

    @property
    def totals(self) -> Floats:
        """The sum of each client's values at the end, ``[n]``, descending."""
        return np.asarray(self.running[:, -1])

    @property
    def shares(self) -> Floats | None:
        """Each client's part of the total, ``[n]``.

        None if a sum is negative, because parts of a whole cannot be, or if values of this kind do not divide up
        anything.
        """
        totals = self.totals
        if not self.measure.share_out:
            return None
        return totals / totals.sum() if totals.sum() > 0 and totals.min() >= 0 else None

    @property
    def ranked(self) -> Standings:
        """The sums of the clients that can be ranked. One update says too little for a place."""
        return self.sums.among(self.clients[self.seats > 1])

    @property
    def suspect(self) -> NDArray[np.bool_]:
        """Whose updates clearly did harm (:func:`clearly_harmful`), or are clearly better left out of the averages.

        Nobody's, ``[n]``, if values only rank, or where one of the errors is not known: the other alone would be taken
        for the whole.
        """
        sure = np.isfinite(self.last.drawn) & ~np.isinf(self.last.sampling)
        bad = clearly_harmful(self.totals, self.errors, self.seats, by_chance(self.totals, self.measure))
        most = self.missed + SURE * self.missed_errors
        return np.asarray((bad & sure & (not self.measure.ranks)) | ((self.seats > 1) & (most < -SUSPECT * self.fall)))

    @property
    def suspects(self) -> list[str]:
        """The names of those (:attr:`suspect`)."""
        return [label for label, one in zip(self.labels, self.suspect.tolist(), strict=True) if one]


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
    clients = np.unique(np.concatenate([run.seats.client[np.isfinite(run.seats.value)] for run in runs]))
    played = min(int(run.metrics[-1]["round"]) + 1 for run in runs)
    ends = _ends_of_bins(played, MOST_COLUMNS)
    running = np.mean([_running(run, clients, ends) for run in runs], axis=0)
    samplings, withouts = [], []
    for run in runs:
        group_of = np.full(max(run.num_clients, int(clients.max()) + 1), -1, np.int64)
        group_of[clients] = np.arange(len(clients))
        samplings.append(_sampling(run, group_of, len(clients), ends))
        withouts.append(_without_block(run, group_of, len(clients), ends))
    # Runs of one split share its validation samples: their errors of the draw do not average out, those of sampling do.
    sampling = np.sqrt(np.mean(np.square(samplings), axis=0) / len(runs))
    drawn = np.mean([interval_errors(without) for without in withouts], axis=0)
    blocks = [without[:, -1] for without in withouts]
    same = len({one.shape for one in blocks}) == 1
    without = np.mean(blocks, axis=0) if same else np.zeros((len(clients), 0))
    sums = Standings(clients, running[:, -1], sampling[:, -1], without)
    seats = np.sum([_valued_seats(run, clients) for run in runs], axis=0)
    order = np.argsort(-running[:, -1], kind="stable")
    labels = tuple(runs[0].client_label(c) for c in clients[order].tolist())
    spread, measure = Errors(sampling[order], drawn[order]), runs[0].about.measure
    apart = [found for run in runs if (found := missed(run)) is not None]
    none = np.full((2, len(clients)), np.nan)
    lone = np.mean([[one[clients] for one in found] for found in apart], axis=0) if len(apart) == len(runs) else none
    lone, lone_errors = lone[:, order]
    fell = [np.nan if (one := gained(run)) is None else one for run in runs]
    return Contribution(
        clients[order], labels, seats[order], ends + 1, running[order], spread, sums, measure, lone,
        lone_errors, float(np.mean(fell)),
    )  # fmt: skip


def _ends_of_bins(played: int, most: int) -> Ints:
    """Return the last round (0-based) of each of at most ``most`` bins of 1, 2, 5, 10, ... rounds."""
    step = next(s * 10**e for e in range(9) for s in (1, 2, 5) if played <= s * 10**e * most)
    ends = np.arange(step - 1, played, step, dtype=np.int64)
    return ends if len(ends) and ends[-1] == played - 1 else np.append(ends, played - 1)


def _running(run: RunRecord, clients: Ints, ends: Ints) -> Floats:
    """Return the sum of each client's values until each of the rounds ``ends [C]``, ``[n, C]``."""
    seats = run.seats
    some = np.isfinite(seats.value) & (seats.round <= ends[-1])
    added = np.zeros((len(clients), len(ends)))
    place = (np.searchsorted(clients, seats.client[some]), np.searchsorted(ends, seats.round[some]))
    np.add.at(added, place, seats.value[some])
    return added.cumsum(axis=1)


def _valued_seats(run: RunRecord, clients: Ints) -> Ints:
    """Return how many updates of each client were valued, ``[n]``."""
    valued = run.seats.client[np.isfinite(run.seats.value)]
    return np.asarray(np.bincount(valued, minlength=int(clients.max()) + 1)[clients])


def contribution_charts(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return the charts on contributions, for every experiment that values updates.

    These are all sums, and a few of them over the rounds.

    Args:
        groups: the experiments.
    """
    charts: list[Chart] = []
    for group in groups:
        found = contribution(group)
        if found is None:
            continue
        name, many = slug(group.label), group.seeds_text
        charts += [picture_of(group, found), _best_and_worst(group, found, name, many)]
    return charts


def picture_of(group: SeedGroup, found: Contribution) -> Chart:
    """Return the contributions as bars with 95 % intervals.

    Args:
        group: the experiment.
        found: its contributions.
    """
    count = len(found.clients)
    kept = ends(count, _HIGHEST, _LOWEST)
    single = found.seats[kept] == 1
    known = bool(np.isfinite(found.errors).any()) and not found.last.exact
    series = []
    for name, mine, look in (("contribution", ~single, 0), ("one update only", single, 9)):
        errors = np.where(mine, SURE * found.errors[kept], np.nan) if known else None
        if mine.any():
            series.append(Series(name, np.where(mine, found.totals[kept], np.nan), errors, look=look))
    labels = tuple(f"client {label}" if label[:1].isdecimal() else label for label in (found.labels[i] for i in kept))
    told = said("how_to_read", found.measure, known, count - len(kept), _HIGHEST, _LOWEST, found.last.exact)
    title = f"What each client contributed: {group.label}{group.seeds_text}"
    marks = Bars(labels, tuple(series), stacked=True)
    key = f"contribution-ranking-{slug(group.label)}"
    return Chart(key, _SECTION, title, told, marks, x=f"sum of its {found.measure.plural}")


def _best_and_worst(group: SeedGroup, found: Contribution, name: str, many: str) -> Chart:
    """Return the sums of a few clients as they grow over the rounds."""
    kept = ends(len(found.clients), 4, 3)
    x = found.rounds.astype(np.float64)
    spread = found.spread.total
    lines = tuple(_banded(f"client {found.labels[i]}", x, found.running[i], spread[i]) for i in kept)
    banded = any(line.low is not None for line in lines)
    told = caption("growth", len(kept) == len(found.clients), banded)
    title = f"Contribution over rounds: {group.label}{many}"
    marks = Lines(lines, zero=True)
    return Chart(f"contribution-rounds-{name}", _SECTION, title, told, marks, x="rounds played", y="value so far")


def _banded(name: str, x: Floats, y: Floats, error: Floats) -> Curve:
    """Return a line with the band of its 95 % intervals, if they are known for every point."""
    known = bool(np.isfinite(error).all() and error.any())  # exact values have no band
    return Curve(name, x, y, y - SURE * error, y + SURE * error) if known else Curve(name, x, y)


def ends(count: int, first: int, last: int) -> list[int]:
    """Return the first and the last of ``count`` positions, or all of them if there are no more than that."""
    if count <= first + last:
        return list(range(count))
    return [*range(first), *range(count - last, count)]
