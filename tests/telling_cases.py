"""What the built-in parts that an experiment names say of themselves, for run directories that tests write by hand."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hanse.base.factories import call
from hanse.base.files import table
from hanse.base.imports import looking
from hanse.core.telling import About, PartDescription, Telling, describe
from hanse.federation.behaviour import BEHAVIOURS
from hanse.federation.policy import POLICIES
from hanse.mechanisms.registry import PARTS, built_in_parts


def built_in_words(config: Mapping[str, Any], num_clients: int, seed: object) -> About:
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
    general = PartDescription("settle", "any", Telling(kinds=tuple(kinds.values())))
    return replace(found, parts=(*found.parts, general))
