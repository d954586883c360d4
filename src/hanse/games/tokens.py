"""PI-FL's token manager: what clients pay for a tier's round, what comes back to them, and what providers earn.

Amounts are Python integers of the smallest unit. Every function conserves them to the last unit: what is paid in leaves
the pool again or stays in it (papers.md P7-P17: as printed, eqs (6)-(14) create and destroy tokens).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from fractions import Fraction

POOL = "pool"  # the tier's pool, as a place in movements
Place = int | str  # a client's id, or POOL
Movement = tuple[str, Place, Place, int]  # (equation, from, to, units)


def _number(name: str, value: float, low: float = -math.inf, high: float = math.inf) -> float:
    allowed = (
        "a finite number" if low == -math.inf else f"at least {low:g}" + (f", at most {high:g}" * (high < math.inf))
    )
    if not (math.isfinite(value) and low <= value <= high):
        raise ValueError(f"{name}: {value!r}: allowed: {allowed}")
    return float(value)


def _units(name: str, value: int) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{name}: {value!r}: allowed: a whole number of units, at least 0")
    return value


def utility(accuracy: float, best_accuracy: float) -> float:
    """Return a tier's relative improvement, PI-FL eq. (8): ``max(0, (accuracy - best) / best)``.

    With ``best_accuracy`` 0 the printed form divides by 0: 0 if ``accuracy`` is 0 too, else infinity, the full
    improvement (papers.md P12). Raises ValueError for accuracies that are negative or not finite.
    """
    now, best = _number("accuracy", accuracy, 0), _number("best_accuracy", best_accuracy, 0)
    if best == 0:
        return 0.0 if now == 0 else math.inf
    return max(0.0, (now - best) / best)  # PI-FL eq. (8)


def reimbursement_rate(accuracy: float, best_accuracy: float, eta: float, gamma: float) -> float:
    """Return the share of the pool that goes back to those who paid, PI-FL eqs (8) and (9), in ``[0, eta]``.

    The less a tier improved, the more: all of ``eta`` without improvement, nothing from a relative improvement of
    ``gamma`` on. With ``gamma`` 0 any improvement uses everything up (papers.md P13). Raises ValueError for ``eta`` or
    ``gamma`` outside ``[0, 1]`` and for accuracies that are negative or not finite.
    """
    most, full = _number("eta", eta, 0, 1), _number("gamma", gamma, 0, 1)
    delta = utility(accuracy, best_accuracy)
    if full == 0:
        return most if delta == 0 else 0.0
    return most * (full - min(full, delta)) / full  # PI-FL eq. (9)


def ranks(contributions: Mapping[int, float], participations: Mapping[int, float]) -> dict[int, int]:
    """Return each provider's rank, PI-FL eq. (12): n for the best of n, 1 for the last.

    Ordered by contribution, then by participation; of equals the lower id ranks higher (papers.md P16). Raises
    ValueError for a contribution or participation that is missing or not finite.
    """
    keys = {}
    for i in contributions:
        if i not in participations:
            raise ValueError(f"participations: no entry for client {i}; allowed: one for each provider")
        psi = _number(f"contributions[{i}]", contributions[i])
        keys[i] = (psi, _number(f"participations[{i}]", participations[i]), -i)
    return {i: rank for rank, i in enumerate(sorted(keys, key=keys.__getitem__), 1)}


def rank_rewards(pool: int, contributions: Mapping[int, float], participations: Mapping[int, float]) -> dict[int, int]:
    """Return what each provider earns of ``pool`` units, in proportion to its rank: PI-FL eqs (12)-(14).

    ``beta`` counts the providers (papers.md P15) and the pool is what reimbursement left (P17), so the rewards sum to
    it; without providers there are none. Units that do not divide go one by one to the largest remainders, of equals to
    the lower id. Raises ValueError as :func:`ranks` does, and for a pool that is no whole number of units.
    """
    pool = _units("pool", pool)
    alpha = ranks(contributions, participations)
    beta = len(alpha) * (len(alpha) + 1) // 2  # PI-FL eq. (13)
    rewards = {i: pool * rank // beta for i, rank in alpha.items()}  # PI-FL eq. (14)
    rest = pool - sum(rewards.values()) if alpha else 0
    for i in sorted(alpha, key=lambda i: (-(pool * alpha[i] % beta), i))[:rest]:
        rewards[i] += 1
    return {i: rewards[i] for i in contributions}


def settle_tier(
    *,
    payers: Collection[int],
    providers: Collection[int],
    price: int,
    accuracy: float,
    best_accuracy: float,
    eta: float,
    gamma: float,
    contributions: Mapping[int, float],
    participations: Mapping[int, float],
    pool: int = 0,
) -> list[Movement]:
    """Return one tier's movements of one round, PI-FL eqs (6)-(14), in the order of the equations.

    ``payers`` (selected bidders) pay ``price`` each into the tier's pool, which may hold ``pool`` units from before;
    the reimbursement returns to them in equal parts (units that do not divide: to the lower ids); ``providers`` (whose
    updates were mixed) share what is left by rank. What nobody can take stays in the pool (papers.md P9, P11, P14).
    Movements of 0 units are left out. Raises ValueError for what is not allowed.
    """
    price, pool = _units("price", price), _units("pool", pool)
    theta = reimbursement_rate(accuracy, best_accuracy, eta, gamma)
    paying, working = sorted(set(payers)), sorted(set(providers))
    if missing := [i for i in working if i not in contributions]:
        raise ValueError(f"contributions: no entry for client {missing[0]}; allowed: one for each provider")
    moved: list[Movement] = [("6", i, POOL, price) for i in paying]
    held = pool + price * len(paying)  # PI-FL eq. (7), read as P9: those pay who bid and were selected
    returned = round(Fraction(theta) * held) if paying else 0  # PI-FL eq. (10)
    part, odd = divmod(returned, len(paying)) if paying else (0, 0)
    moved += [("11", POOL, i, part + (place < odd)) for place, i in enumerate(paying)]
    earned = rank_rewards(held - returned, {i: contributions[i] for i in working}, participations)
    moved += [("14", POOL, i, units) for i, units in earned.items()]
    return [movement for movement in moved if movement[3]]


def settle_round(
    balances: Mapping[int, int],
    *,
    payers: Collection[int],
    providers: Collection[int],
    price: int,
    accuracy: float,
    best_accuracy: float,
    eta: float,
    gamma: float,
    contributions: Mapping[int, float],
    participations: Mapping[int, float],
    pool: int = 0,
) -> tuple[dict[int, int], list[Movement]]:
    """Return the balances after one tier's round and its movements (see :func:`settle_tier`).

    ``balances`` are the clients' units by id. Raises ValueError, and nothing has changed, for a payer whose balance is
    below ``price`` (there is no debt, papers.md P10), for a client without an account, and as :func:`settle_tier`.
    """
    price = _units("price", price)
    after = {i: _units(f"balances[{i}]", units) for i, units in balances.items()}
    for i in sorted({*payers, *providers}):
        if i not in after:
            raise ValueError(f"balances: no entry for client {i}; allowed: one for each payer and provider")
    for i in sorted(set(payers)):
        if after[i] < price:
            raise ValueError(f"balances[{i}]: {after[i]}: cannot pay the price of {price} units")
    moved = settle_tier(
        payers=payers,
        providers=providers,
        price=price,
        accuracy=accuracy,
        best_accuracy=best_accuracy,
        eta=eta,
        gamma=gamma,
        contributions=contributions,
        participations=participations,
        pool=pool,
    )
    for _, source, target, units in moved:
        if isinstance(source, int):
            after[source] -= units
        if isinstance(target, int):
            after[target] += units
    return after, moved
