"""What the built-in parts of a run would have said of themselves, for run directories from before they did.

Reports ask a run what its transactions and figures are called (:mod:`hanse.core.telling`). For a directory that does
not say, the built-in parts that its experiment names are asked again. Nothing is imported for it: parts and behaviours
that an import path names say nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hanse.base.errors import UserError
from hanse.base.factories import call
from hanse.base.files import table
from hanse.base.looking import looking
from hanse.core.telling import About, Said, Telling, describe
from hanse.federation.behaviour import BEHAVIOURS
from hanse.federation.policy import POLICIES
from hanse.mechanisms.registry import PARTS, SLOTS, build_mechanism


def older(config: Mapping[str, Any], num_clients: int, seed: object) -> About:
    """Return what the built-in parts, behaviours and policy that an experiment names say of themselves.

    Transactions have the names that any built-in payment rule gives them, whichever rule made them.

    Args:
        config: the run's ``config.toml``.
        num_clients: the number of its clients.
        seed: of the run; what is no whole number counts as 0.

    Raises:
        UserError: a behaviour or a policy has options that it cannot have.
    """
    with looking():
        given = table(config, "behaviour")
        behaviours = {
            name: call(BEHAVIOURS[name], options if isinstance(options, Mapping) else {}, f"behaviour.{name}")
            for name, options in given.items()
            if name in BEHAVIOURS
        }
        policy = table(config, "clients").get("policy")
        chosen = policy if isinstance(policy, Mapping) else {"name": policy}
        name, options = chosen.get("name"), {key: value for key, value in chosen.items() if key != "name"}
        made = call(POLICIES[name], options, "clients.policy") if isinstance(name, str) and name in POLICIES else None
        found = describe(built_in_parts(config), behaviours, made, None, num_clients, seed if type(seed) is int else 0)
    rules = [make().tells(frozenset({"settle"})) for make in PARTS["settle"].values()]
    kinds = {kind.kind: kind for telling in rules for kind in telling.kinds}
    worth = next(telling.worth for telling in rules if telling.worth is not None)
    general = Said("settle", "any", Telling(kinds=tuple(kinds.values()), worth=worth))
    return replace(found, parts=(*found.parts, general))


def built_in_parts(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the built-in parts of an experiment's mechanism, by slot; none if it cannot be built from its table alone.

    Args:
        config: the run's ``config.toml``.
    """
    given = table(config, "mechanism")
    if not isinstance(given.get("name"), str):
        return {}
    foreign = [slot for slot in SLOTS if slot in given and ":" in str(table(given, slot).get("name", given[slot]))]
    try:
        mechanism = build_mechanism({key: value for key, value in given.items() if key not in foreign})
    except (UserError, TypeError, ValueError):
        return {}
    return {slot: part for slot, part in mechanism.slots().items() if slot not in foreign}
