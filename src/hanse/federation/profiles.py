"""Profiles of clients: their roles in the market, costs of sharing, and eagerness for data.

``[clients] profiles`` is the name of one of :data:`PROFILES`, a table with ``name`` and its options, or the import path
of a function ``(num_clients, rng, **options) -> sequence of mappings``. A profile is a mapping of plain values.
:func:`build_profiles` makes the profiles at the start of a run, and policies read each round's with :func:`at_round`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field

from hanse.base.errors import UserError, named, nearest
from hanse.base.factories import call
from hanse.base.streams import stream

Profile = Mapping[str, Any]
ROLES = ("trader", "buyer", "seller", "attacker")
# the most that anybody may declare, as a cost in tokens (which may also be infinite) or as an eagerness
MOST = 1e15
# iPFL Table 5: the roles of its twelve clients
TABLE_5 = (
    "seller", "buyer", "buyer", "trader", "trader", "seller",
    "trader", "seller", "buyer", "buyer", "seller", "attacker",
)  # fmt: skip


def build_profiles(given: str | Mapping[str, Any] | None, num_clients: int, seed: int) -> Sequence[Profile]:
    """Return one profile per client. If nothing is given, the profiles are empty.

    Args:
        given: what ``[clients] profiles`` says.
        num_clients: how many clients there are, N.
        seed: the seed of the random generator that the function gets.

    Raises:
        UserError: one line for each mistake.
    """
    if given is None:
        return [{}] * num_clients
    make, options = named(given, "clients.profiles", PROFILES)
    found = call(make, options, "clients.profiles", ["name"], (num_clients, stream(seed, "profiles")))
    if len(found) != num_clients:
        raise UserError(
            f"clients.profiles: {given}: {len(found)} profiles for {num_clients} clients: must be one for each"
        )
    if wrong := [f"clients.profiles: client {i}: {line}" for i, one in enumerate(found) for line in faults(one)]:
        raise UserError(*wrong)
    return [dict(profile) for profile in found]


def faults(profile: Profile) -> list[str]:
    """Return a line for each amount in a profile or its later changes with which policies cannot calculate."""
    later = profile.get("later", ())
    changes = [c for c in later if isinstance(c, Mapping)] if isinstance(later, list | tuple) else []
    return [
        f"{name}: {stage[name]!r}: must be a number from 0 to {MOST:g}{', or inf' if name == 'cost' else ''}"
        for stage in (profile, *changes)
        for name in ("cost", "eagerness", "most")
        if stage.get(name) is not None and amount(stage[name], infinite=name == "cost") is None
    ]


def at_round(profile: Profile, round: int) -> Profile:
    """Return a profile as it is in a round.

    ``later`` is a list of changes; each replaces entries from its ``round`` on.
    """
    now = {key: value for key, value in profile.items() if key != "later"}
    later = profile.get("later", ())
    # a client on a network writes its own profile, so anything may stand there
    changes = [
        change
        for change in (later if isinstance(later, list | tuple) else ())
        if isinstance(change, Mapping) and isinstance(change.get("round"), int)
    ]
    for change in sorted(changes, key=lambda change: change["round"]):
        if change["round"] <= round:
            now |= {key: value for key, value in change.items() if key != "round"}
    return now


def amount(value: object, *, infinite: bool = False) -> float | None:
    """Return a value as a float if it is a number from 0 to ``MOST``, else None.

    Args:
        value: anything; true and false do not count as numbers.
        infinite: whether infinity is allowed too.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if infinite and value == math.inf:
        return math.inf
    return float(value) if 0 <= value <= MOST else None


def _amount(value: float, infinite: bool = False) -> float:
    """Check an option that is an amount; a cost may be infinite: its owner does not sell."""
    if amount(value, infinite=infinite) is None:
        raise ValueError(f"must be a number from 0 to {MOST:g}{', or inf' * infinite}")
    return float(value)


Amount = Annotated[float, AfterValidator(_amount)]
Cost = Annotated[float, AfterValidator(partial(_amount, infinite=True))]
Range = Annotated[Sequence[Amount], Field(min_length=2, max_length=2)]  # the least and the most


def uniform(num_clients: int, rng: np.random.Generator, cost: Cost = 1.0, eagerness: Amount = 5e5) -> Sequence[Profile]:
    """Return a trader with the same cost (tokens) and eagerness for each client (iPFL section E.2: c = 1, K = 5e5).

    Args:
        num_clients: how many clients there are, N.
        rng: not used.
        cost: the cost of sharing a model, in tokens.
        eagerness: how much a client gains from more data.
    """
    return [{"role": "trader", "cost": cost, "eagerness": eagerness}] * num_clients


def roles(
    num_clients: int,
    rng: np.random.Generator,
    roles: Sequence[str] = TABLE_5,
    eagerness: Range = (3e5, 6e5),
    cost: Range = (0.5, 1.0),
) -> Sequence[Profile]:
    """Return traders, buyers, sellers and attackers, drawn as in iPFL's Table 6.

    Args:
        num_clients: how many clients there are, N.
        rng: the random generator that draws each client's eagerness and cost.
        roles: the role of each client, in order of id; repeated if there are more clients.
        eagerness: the range from which eagerness is drawn. Sellers and attackers have none.
        cost: the range in tokens from which a trader's cost is drawn. A buyer's cost is infinite (it does not sell),
            and the cost of the others is 0.

    Raises:
        UserError: an unknown role.
    """
    unknown = [role for role in roles if role not in ROLES]
    if not roles:
        raise UserError("clients.profiles.roles: []: must name at least one role")
    if unknown:
        raise UserError(
            *(f"clients.profiles.roles: {role!r}: no such role{nearest(str(role), ROLES)}" for role in unknown)
        )
    found = []
    for i in range(num_clients):
        role = roles[i % len(roles)]
        # one pair of draws for each client whatever its role, so changing one role leaves the others as they are
        K, c = rng.uniform(eagerness[0], eagerness[1]), rng.uniform(cost[0], cost[1])
        buys = role in ("trader", "buyer")
        price = math.inf if role == "buyer" else c if role == "trader" else 0.0
        found.append({"role": role, "cost": float(price), "eagerness": float(K) if buys else 0.0})
    return found


def listed(
    num_clients: int,
    rng: np.random.Generator,
    cost: Sequence[Cost] = (),
    eagerness: Sequence[Amount] = (),
    role: Sequence[str] = (),
    later: Sequence[Mapping[str, Any]] = (),
) -> Sequence[Profile]:
    """Return profiles from lists with one entry per client.

    Args:
        num_clients: how many clients there are, N.
        rng: not used.
        cost: the cost of each client in tokens, or empty.
        eagerness: the eagerness of each client, or empty.
        role: the role of each client, or empty.
        later: changes. Each has ``client``, ``round`` and what changes from that round on.

    Raises:
        UserError: a list of the wrong length, or a change without a client and a round.
    """
    found: list[dict[str, Any]] = [{} for _ in range(num_clients)]
    for name, values in (("cost", cost), ("eagerness", eagerness), ("role", role)):
        if values and len(values) != num_clients:
            raise UserError(
                f"clients.profiles.{name}: {len(values)} entries for {num_clients} clients: must be one for each"
            )
        for i, value in enumerate(values):
            found[i][name] = value
    for change in later:
        entry = dict(change)
        who = entry.pop("client", None)
        if not isinstance(who, int) or not 0 <= who < num_clients or not isinstance(entry.get("round"), int):
            raise UserError(
                f"clients.profiles.later: {dict(change)!r}: must have a client (0..{num_clients - 1}) and a round"
            )
        found[who].setdefault("later", []).append(entry)
    return found


PROFILES: Mapping[str, Callable[..., Sequence[Profile]]] = {"uniform": uniform, "roles": roles, "listed": listed}
