"""WEIGH by member: no member's updates weigh more than an agreed share, however many keys it has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hanse.base.errors import UserError
from hanse.base.factories import Rate, SomeShare, Weight
from hanse.base.plain_text import quantity
from hanse.core.part import Aggregate, Context, Group, Size, State, View, in_slots, set_words
from hanse.core.table import Floats, Ints
from hanse.mechanisms.fits import tried
from hanse.mechanisms.robust import OfRule, lengths, shortened
from hanse.mechanisms.value_sums import ValueSums, valued_seats

NO_REST = 1e-12  # a weight of the old row below this is rounding


@dataclass(frozen=True)
class Capped(OfRule):
    """Another rule's weights, with at most ``cap`` for the updates of one member. A member may have several clients.

    What a member has above the cap goes to the others, in proportion to their own weights, as far as their caps allow
    (:func:`water_filled`). The rest stays with the old model. A client's share within its member does not change.

    ``[clients] members`` says whose clients they are (:attr:`hanse.core.part.View.members`).

    Attributes:
        of: the rule whose weights are capped.
        cap: the most weight of one member, at least 1 / members.
        weights: fixed weights by member, in place of the members' sums of ``of``'s weights. Members that are not in a
            round are left out, and the other weights are scaled to the same sum; members without a weight get 0. None:
            weights are those of ``of``.
        clip: the longest change, in units of the median over members of their longest changes; longer ones are
            shortened to it, after the cap. None: changes may have any length.
        floor: whether a member's updates are left out for good once its values, summed over its clients and rounds,
            are below 0 by more than their 95 % interval. Use it with "path".

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> (group,) = rehearse("fedavg").groups
        >>> said = Capped(cap=0.25).aggregate(group, {})  # of four members
        >>> said.weights.round(2).tolist(), round(said.old, 6)
        ([0.25, 0.25, 0.25, 0.25], 0.0)
    """

    cap: SomeShare = 0.5
    weights: dict[str, Weight] | None = None
    clip: Rate | None = None
    floor: bool = False

    def __post_init__(self) -> None:
        """Take over the other rule's needs. Raises UserError if it makes no weights."""
        super().__post_init__()
        made = tried(self.of)
        if made is not None and made.weights is None:
            raise UserError(f"of: {type(self.of).__name__} makes a row without weights: must be a rule like 'samples'")
        if self.floor:
            set_words(self, needs=in_slots(self.needs, ["weigh"]) | {"values"})

    def init(self, context: Context) -> State:
        """Return the state in which nothing was worth anything."""
        nothing = ValueSums.nothing(context.num_clients).state()
        return {**nothing, "below": np.zeros(context.num_clients, bool)} if self.floor else {}

    def unfit(self, size: Size) -> list[str]:
        """Return a line if the members of a round could never have the whole weight."""
        most = min(size.seats, size.members)
        if most < 1 or self.cap * most >= 1 - NO_REST:
            return []
        train = quantity(most, "member trains", "members train")
        return [f"mechanism.weigh.cap: {self.cap:g}: {train} in a round: must be at least {1 / most:.6g}"]

    def places(self, group: Group) -> tuple[list[str], Ints]:
        """Return the members of a group, and the place ``[m]`` among them of each update's member.

        Late updates of clients that are not present are taken as those of one member, "".
        """
        of = group.view.members
        named = [of.get(client, "") for client in group.view.trained.seats.client[group.at].tolist()]
        members, place = np.unique(named, return_inverse=True)
        return members.tolist(), place

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights ``[m]``, and the old row's.

        Recorded: ``weigh/largest_member``, the most weight of a member; ``weigh/kept``, the weight of the old row;
        with ``clip`` also ``weigh/clipped``, the share of updates that were shortened, and ``weigh/norm``; with
        ``floor`` also ``weigh/below_floor``, the share of updates that were left out.
        """
        below = state["below"][group.view.trained.seats.client[group.at]] if self.floor else np.zeros(len(group), bool)
        found = {"weigh/below_floor": float(below.mean())} if self.floor else {}
        weights, standing = np.zeros(len(group)), np.flatnonzero(~below)
        if not len(standing):
            return Aggregate(weights, 1.0, found)
        group = group.among(standing) if below.any() else group
        said = self.of.aggregate(group, {})
        assert said.weights is not None  # see __post_init__
        members, place = self.places(group)
        own = np.bincount(place, said.weights).astype(np.float64)
        wanted = own
        if self.weights is not None:
            fixed = np.where(own > 0, [self.weights.get(name, 0.0) for name in members], 0.0)
            wanted = fixed * (own.sum() / fixed.sum() if fixed.sum() > 0 else 0.0)
        placed = water_filled(wanted, self.cap)
        mine = said.weights * np.divide(placed, own, out=np.zeros(len(own)), where=own > 0)[place]
        found |= said.metrics
        if self.clip is not None:
            length = lengths(group)
            norm = self.clip * typical(length, place)
            share = shortened(length, norm)
            found |= {"weigh/clipped": float((share < 1).mean()), "weigh/norm": norm}
            mine = mine * share
        old = said.old + float(said.weights.sum() - mine.sum())
        old = 0.0 if abs(old) < NO_REST else old
        weights[standing] = mine
        found |= {"weigh/largest_member": float(placed.max()), "weigh/kept": old}
        return Aggregate(weights, old, found, reapply=said.reapply)

    def learn(self, outcome: View, state: State) -> State:
        """Add the round's values to each client's, and note which members are below the floor."""
        if not self.floor or outcome.values is None:
            return state
        valued = ValueSums.of_round(*valued_seats(outcome), outcome.context.num_clients)
        sums = ValueSums.of(state).plus(valued)
        below = state["below"].copy()
        for member in set((of := outcome.members).values()):
            mine = [c for c, name in of.items() if name == member]
            below[mine] |= sums.of_all(np.array(mine)).sure()[0] < 0
        return {**sums.state(), "below": below}

    def figures(self, state: State) -> dict[str, Floats]:
        """Return which clients are below the floor, ``[N]``."""
        return {"below_floor": state["below"].astype(float)} if self.floor else {}


def water_filled(shares: Floats, cap: float) -> Floats:
    """Return the members' shares ``[g]`` with at most ``cap`` each, and the same sum if the caps allow it.

    What is above the cap goes to those below it, in proportion to their shares. A share of 0 stays 0.

    Examples:
        >>> water_filled(np.array([0.7, 0.2, 0.1]), 0.5).round(3).tolist()
        [0.5, 0.333, 0.167]
        >>> water_filled(np.array([0.7, 0.2, 0.1]), 0.3).tolist()  # a tenth cannot be placed
        [0.3, 0.3, 0.3]
    """
    total, full, filled = shares.sum(), np.zeros(len(shares), bool), shares
    while (over := ~full & (filled > cap)).any():
        full |= over
        rest = np.where(full, 0.0, shares)
        filled = np.where(full, cap, rest / (rest.sum() or 1.0) * (total - cap * full.sum()))
    return filled


def typical(length: Floats, place: Ints) -> float:
    """Return the median over members of the length of each member's longest update.

    A member has one vote, however many updates it sends.

    Args:
        length: ``[m]``, the updates' lengths.
        place: ``[m]``, the place of each update's member.
    """
    return float(np.median(longest(length, place)))


def longest(length: Floats, place: Ints) -> Floats:
    """Return the largest of the numbers ``[m]`` at each place; the places are 0 to the largest of ``place [m]``."""
    found = np.zeros(int(place.max()) + 1)
    np.maximum.at(found, place, length)
    return found
