"""How far a few members can move a model in one round under a charter: a bound, its proof, and attacks that try it.

**Setting.** The model is w, and member g has the mass x_g: its samples, its number of updates, or its fixed weight.
Weights are q_g = min(c, theta x_g), with the one theta for which they sum to T = min(1, c p), where p members have some
mass; inside a member they are split in fixed proportions. Update i has the step d_i, shortened to at most tau m, where
m is the median over members of their longest steps: e_i = d_i min(1, tau m / |d_i|). The new model is
w + sum_i q_i e_i. A set B of at most k members, fewer than half, sends other steps, claims other masses, or sends
nothing; marks (') are what becomes of it.

**Claim.** With K = min(1, k c), ``|w' - w*| <= K (tau h + D) + E``, where w* is the model if all are honest, h the
median if the longest steps of B were infinite, D = max_i |e_i| over the honest, and E what other lengths of the
others can do: with l the median if the steps of B were 0, and delta_i the larger of ``|min(|d_i|, tau l) - |e_i||`` and
``|min(|d_i|, tau h) - |e_i||``, it is the largest sum of members' weights, at most c each and 1 together, times the
largest delta_i of each member outside B.

**Proof.** Let Q, Q' <= K be the weight of B in both rounds.

1. The steps of B add at most Q' tau m' with m' <= h, since a median does not fall if values rise, and missing ones lie
   between 0 and infinity. Honest ones that are missing take away at most Q D.
2. The others' masses are what they were, so all their q_g move with theta in one direction, by
   ``|(T' - Q') - (T - Q)|`` together. If T' = T this is ``|Q' - Q|``. If T' < T, all of them are at the cap
   afterwards, and their sum rises by at most Q - Q'; if T' > T, all were at the cap, and it falls by at most Q' - Q.
   So it costs at most ``|Q' - Q| D``.
3. ``|e'_i - e_i| <= delta_i`` for l <= m' <= h, since both lie on one line from 0; with weights q'_i that is at most E.

Together: ``Q' tau h + Q D + |Q' - Q| D + E``. If Q' >= Q, the first three are Q' (tau h + D); if not, they are
Q' (tau h - D) + 2 Q D <= Q (tau h + D), as D <= tau m <= tau h. Both are at most K (tau h + D).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from hanse.core.book import Book
from hanse.core.part import Group, State
from hanse.core.table import Floats, Ints
from hanse.mechanisms.robust import lengths
from hanse.mechanisms.weigh import BySamples, UniformWeights
from hanse.runs.round import Played
from hanse.wings.charter.capped import Capped, longest, typical

FAR, MANY = 1e3, 1e6  # how far an attack goes beyond the honest step, and by how much it claims more samples
ROUNDING = 1e-5  # of the bound and of the model, which are float32


def bound(length: Floats, place: Ints, bad: Collection[int], cap: float, clip: float) -> float:
    """Return how far a set of members can move a round's model at most, away from where it would go if all were honest.

    With K = min(1, |bad| cap), h the median of lengths if theirs were infinite, D the longest honest step once it is
    clipped, and E what clipping the others otherwise can do, this is ``K (clip h + D) + E``. It holds if members weigh
    by samples, equally or by fixed weights. It is infinite where half of the members are bad.

    Args:
        length: ``[m]``, the honest updates' lengths.
        place: ``[m]``, the place of each update's member.
        bad: the places of the members that may send anything, claim any size, or be silent.
        cap: the most weight of a member.
        clip: the longest update, in units of the median over members.
    """
    most = longest(length, place)
    theirs = np.isin(np.arange(len(most)), [*bad])
    low, high = (clip * float(np.median(np.where(theirs, end, most))) for end in (0.0, np.inf))
    if not np.isfinite(high):
        return np.inf
    honest = np.minimum(length, clip * typical(length, place))
    apart = np.maximum(abs(np.minimum(length, low) - honest), abs(np.minimum(length, high) - honest))
    others = longest(np.where(theirs[place], 0.0, apart), place)
    weights = np.clip(1.0 - cap * np.arange(len(others)), 0.0, cap)  # the caps filled by those that move most
    return min(1.0, len(theirs.nonzero()[0]) * cap) * (high + float(honest.max())) + float(
        np.sort(others)[::-1] @ weights
    )


def attacks(group: Group, step: Any, bad: Ints) -> Iterator[Group]:
    """Yield a group after attacks by the updates at ``bad``: far against the honest ``step [P]``, with their own size,
    with a huge one, far along it, and silent.
    """
    trained = group.view.trained
    at = group.at[bad]
    for far, many in ((-FAR, 1.0), (-FAR, MANY), (FAR, MANY)):
        rows, samples = trained.rows.clone(), trained.num_samples.copy()
        rows[at] = group.old + far * step
        samples[at] *= many
        yield replace(group, view=replace(group.view, updates=replace(trained, rows=rows, num_samples=samples)))
    if len(bad) < len(group):
        yield group.among(np.setdiff1d(np.arange(len(group)), bad))


class Shift(NamedTuple):
    """How far members moved a round's model, and how far they could at most, in median lengths of its updates.

    Without a bound, ``bound`` is infinite.
    """

    shift: float
    bound: float
    who: str
    round: int


@dataclass
class Shifts:
    """Watches a run, and attacks each of its rounds beside it.

    Attributes:
        most: the largest set of members that attack together.
        found: by the number of members: the shift that came nearest to its bound; without bounds, the largest.
        books: the balances after each round.
    """

    most: int
    found: dict[int, Shift] = field(default_factory=dict)
    books: dict[int, Book] = field(default_factory=dict)
    _state: Mapping[str, State] = field(default_factory=dict)

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """Attack the round by every set of members. Raises AssertionError if one passes the bound."""
        part = played.view.context.slots["weigh"]
        assert isinstance(part, Capped)
        state = (self._state or {"weigh": part.init(played.view.context)})["weigh"]
        for group in played.view.groups():
            below = state["below"][played.view.trained.seats.client[group.at]] if part.floor else np.zeros(len(group))
            if not below.all():
                self._attacked(part, group.among(np.flatnonzero(below == 0)), state, metrics["round"])
        self._state, self.books[metrics["round"]] = played.state.states, played.state.book

    def _attacked(self, part: Capped, group: Group, state: State, round: int) -> None:
        """Attack a group's round."""
        members, place = part.places(group)
        length, width = lengths(group), group.num_parameters
        unit, honest = max(typical(length, place), 1e-300), group.made(part.aggregate(group, state))
        for count in range(1, min(self.most, len(members)) + 1):
            for bad in combinations(range(len(members)), count):
                limit = np.inf
                if part.clip is not None and isinstance(part.of, BySamples | UniformWeights):
                    limit = bound(length, place, bad, part.cap, part.clip)
                far = max(
                    float((attacked.made(part.aggregate(attacked, state)) - honest)[:width].double().norm())
                    for attacked in attacks(group, honest - group.old, np.flatnonzero(np.isin(place, bad)))
                )
                if far > limit * (1 + ROUNDING) + ROUNDING * float(group.old.norm()):
                    raise AssertionError(f"round {round}: members {bad} pass the bound {limit:.6g} by {far:.6g}")
                one = Shift(far / unit, limit / unit, ", ".join(members[k] for k in bad), round)
                self.found[count] = max(self.found.get(count, one), one, key=lambda s: (s.shift / s.bound, s.shift))
