"""Builds a round's mix, the weights that make every new row of the table, from the parts' decisions.

Every row of the next table has exactly one writer. The order decides which:

1. every row keeps itself;
2. a row that only its own client trains (a private row, or one of a block with a row per client) becomes that client's
   update;
3. a server row that a group of seats trains becomes the weigh part's ``aggregate`` of that group;
4. each part that ``fills`` blocks gives their new rows in its ``weigh``, as weights or finished, and may add rows.

The loop calls :func:`proposed_mix` once a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from hanse.base.errors import PartError
from hanse.core.calling import States, called, check_aggregate, decide, guarded, method_of, name_of
from hanse.core.part import (
    FINISHED,
    Aggregate,
    Aggregated,
    Group,
    Mechanism,
    State,
    View,
    Weighed,
    WeighPart,
    in_slots,
)
from hanse.core.table import Floats, Ints, Made, Mix, Replace


def proposed_mix(mechanism: Mechanism, view: View, states: States) -> tuple[Mix, Sequence[Any], States]:
    """Return the mix of a round that has updates.

    Args:
        mechanism: the mechanism whose parts are asked.
        view: the round, with accepted updates.
        states: the states of all parts.

    Returns:
        Three results: the mix; the values that the weighing parts pass on to later parts; and the parts' states after
        these decisions.

    Raises:
        PartError: a part returned something invalid, or no part gives the new value of a row that a group trained.
    """
    groups = view.groups()
    own = _own_updates(view)
    aggregated, made, told, metrics = _aggregates(mechanism, view, states, groups)

    decisions: list[Weighed] = []
    for slot, part in writers(mechanism).items():
        standing = mechanism.standing(part)
        fills = in_slots(part.fills, standing)
        decision, states = decide(slot, part.weigh, view, states, standing[0], name="weigh", fills=fills)
        who, trained = name_of(slot, part.weigh, view), {group.row for group in groups}
        if "weigh" not in standing and (both := sorted(trained & _written(decision))):
            raise PartError(
                f"{who}: its weigh replaced row {both[0]}, which {type(mechanism.weigh).__name__} in the weigh slot "
                "makes: a row has one writer"
            )
        if (lone := sorted(trained & set(decision.finished))) and FINISHED not in in_slots(part.gives, standing):
            raise PartError(f"{who}: finished row {lone[0]}, which a group trains: must say gives = {{'{FINISHED}'}}")
        decisions.append(decision)

    # of two parts that fill one block the first is its writer, and has the last word
    replaced = [one for decision in reversed(decisions) for one in decision.replaced]
    written = {row for decision in decisions for row in _written(decision)}
    if told is None:
        _all_answered_for(mechanism, groups, {int(row) for one in own for row in one.rows} | written)
    # in the order of the module's docstring: a later change of a row undoes an earlier one
    mix = Mix.keeping(view.table, len(view.trained), view.home)
    mix = mix.changed(view.table, [*own, *aggregated]).with_made(made)
    mix = mix.changed(view.table, replaced, [one for decision in decisions for one in decision.added])
    mix = mix.with_made({row: one for decision in reversed(decisions) for row, one in decision.finished.items()})
    homes = [decision.home for decision in decisions if decision.home is not None]
    mix = replace(
        mix,
        home=homes[0] if homes else view.home,
        metrics={**metrics, **{name: x for decision in decisions for name, x in decision.metrics.items()}},
        refused=tuple(one for decision in decisions for one in decision.refused),
    )
    found = [value for decision in decisions for value in decision.found]
    return mix, found if told is None else [_but(told, written), *found], states


def _written(said: Weighed) -> set[int]:
    """Return the rows that a decision replaces or finishes."""
    return {int(row) for one in said.replaced for row in one.rows} | set(said.finished)


def _but(told: Aggregated, lost: Set[int]) -> Aggregated:
    """Return what was said of the groups' rows without those that a later ``weigh`` wrote."""
    said = {row: one for row, one in told.said.items() if row not in lost}
    return Aggregated(said, {row: rule for row, rule in told.again.items() if row not in lost})


def writers(mechanism: Mechanism) -> dict[str, WeighPart]:
    """Return the parts whose ``weigh`` is called, by the slot in which each fills blocks.

    The part in the weigh slot comes first. Parts in other slots are asked only for blocks that no earlier part fills.
    Another weigh part can therefore replace a mechanism's own weighing.
    """
    by_slot: dict[str, WeighPart] = {}
    filled: frozenset[str] = frozenset()
    for slot in ("weigh", *mechanism.parts()):
        part = mechanism.slots()[slot]
        mine = in_slots(part.fills, mechanism.standing(part))
        if mine - filled and not any(part is other for other in by_slot.values()):
            by_slot[slot], filled = cast(WeighPart, part), filled | mine
    return by_slot


def _own_updates(view: View) -> list[Replace]:
    """Return the replacements by which rows that only their own clients train become these clients' updates."""
    seats, count = view.trained.seats, len(view.trained)
    mine = np.flatnonzero(view.table.per_client(seats.target))
    return [Replace(seats.target[mine], np.eye(count)[mine])] if len(mine) else []


def _aggregates(
    mechanism: Mechanism, view: View, states: States, groups: Sequence[Group]
) -> tuple[list[Replace], dict[int, Made], Aggregated | None, dict[str, float]]:
    """Return what the groups' rows become by the weigh part's ``aggregate``.

    Returns:
        The rows that are weighted sums, the rows that are made otherwise, what the part said (None if it has no
        ``aggregate`` or there is no group), and the metrics, as means over the groups.
    """
    aggregate = method_of(mechanism.weigh, "aggregate")
    if aggregate is None or not groups:
        return [], {}, None, {}
    state = states[mechanism.standing(mechanism.weigh)[0]]
    value = mechanism.value
    accepted = in_slots(getattr(value, "accepts", frozenset()), ["value"])
    found: list[Replace] = []
    made: dict[int, Made] = {}
    aggregates: dict[int, Aggregate] = {}
    for group in groups:
        with called("weigh", aggregate, view, state) as who:
            aggregate_of_group: Aggregate = aggregate(group, state)
        with guarded(f"{who}: its aggregate returned"):
            check_aggregate(aggregate_of_group, group)
        if value is not None and (wanted := aggregate_of_group.beyond_weights) and accepted.isdisjoint(wanted):
            raise PartError(
                f"{who}: {type(value).__name__} in mechanism.value cannot value "
                f"what its aggregate returned: must accept {' or '.join(sorted(wanted))}"
            )
        aggregates[group.row] = aggregate_of_group
        if aggregate_of_group.row is not None:
            made[group.row] = Made(aggregate_of_group.row, group.at)
        elif aggregate_of_group.weights is not None:
            found.append(_row(view, group.row, group.at, aggregate_of_group.weights, aggregate_of_group.old))
    reapplied = [group for group in groups if aggregates[group.row].beyond_weights]
    again = {group.row: partial(_again, aggregate, group, state) for group in reapplied}
    return found, made, Aggregated(aggregates, again), _means(list(aggregates.values()))


def _again(aggregate: Callable[[Group, State], Aggregate], group: Group, state: State, members: Ints) -> Aggregate:
    """Return what a rule makes of some members of a group, with the state from before the round."""
    return aggregate(group.among(members), state)


def _means(said: Sequence[Aggregate]) -> dict[str, float]:
    """Return the mean of each metric over the groups that have it."""
    recorded = [one.metrics for one in said if one.metrics]
    if not recorded:
        return {}
    names = list(recorded[0])
    # groups may record different metrics: then each mean is over the groups that have it
    if any(list(one) != names for one in recorded):
        every = dict.fromkeys(name for one in recorded for name in one)
        return {name: float(np.mean([one[name] for one in recorded if name in one])) for name in every}
    means = np.mean([[one[name] for name in names] for one in recorded], axis=0).tolist()
    return dict(zip(names, means, strict=True))


def _row(view: View, row: int, at: Ints, weights: Floats, old: float) -> Replace:
    """Return the replacement of one row by the weighted updates at these positions and ``old`` times itself."""
    updates, models = np.zeros((1, len(view.trained))), None
    updates[0, at] = weights
    if old:
        models = np.zeros((1, view.table.size))
        models[0, row] = old
    return Replace(np.array([row]), updates, models)


def _all_answered_for(mechanism: Mechanism, groups: Sequence[Group], said: Set[int]) -> None:
    """Raise PartError if a group trained a row and nobody says what becomes of it."""
    if lost := [group.row for group in groups if group.row not in said]:
        raise PartError(
            f"the weigh part {type(mechanism.weigh).__name__} has no aggregate, and its weigh says nothing of row "
            f"{lost[0]} that {len(next(g for g in groups if g.row == lost[0]))} seats trained"
        )
