"""PI-FL's token manager: clients' payments for a tier's round, reimbursements, and providers' earnings.

:func:`settle_round` settles a tier's round on balances. :func:`settle_tier` returns only the movements. There are three
steps. Payers pay into the tier's pool, eqs (6)-(7). The less the tier improved, the more of the pool is returned to
them, eqs (8)-(11). The providers share the rest by rank, eqs (12)-(14).

Amounts are Python integers of the smallest unit, and none is lost: payments into the pool leave it again or stay there.
As printed, eqs (6)-(14) create and destroy tokens. docs/papers.md, P7-P17, has the readings under which they do not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from fractions import Fraction

POOL = "pool"  # the tier's pool, as a place in movements
Place = int | str  # a client's id, or POOL
Movement = tuple[str, Place, Place, int]  # (equation, from, to, units)


def _number(name: str, value: float, low: float = -math.inf, high: float = math.inf) -> float:
    """Return ``value`` as a float. Raises ValueError, naming it, unless it is finite and within the bounds."""
    allowed = (
        "a finite number" if low == -math.inf else f"at least {low:g}" + (f", at most {high:g}" * (high < math.inf))
    )
    if not (math.isfinite(value) and low <= value <= high):
        raise ValueError(f"{name}: {value!r}: allowed: {allowed}")
    return float(value)


def _units(name: str, value: int) -> int:
    """Return ``value``. Raises ValueError, naming it, unless it is a whole number of units of at least 0."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{name}: {value!r}: allowed: a whole number of units, at least 0")
    return value


def utility(accuracy: float, best_accuracy: float) -> float:
    """Return a tier's relative improvement, PI-FL eq. (8): ``max(0, (accuracy - best) / best)``.

    If ``best_accuracy`` is 0, the printed form divides by 0. Then the improvement is 0 if ``accuracy`` is also 0.
    Otherwise it is infinite, which counts as full (docs/papers.md, P12).

    Args:
        accuracy: the tier's accuracy after the round, at least 0.
        best_accuracy: the tier's best accuracy before the round.

    Raises:
        ValueError: accuracies that are negative or not finite.
    """
    now, best = _number("accuracy", accuracy, 0), _number("best_accuracy", best_accuracy, 0)
    if best == 0:
        return 0.0 if now == 0 else math.inf
    return max(0.0, (now - best) / best)  # PI-FL eq. (8)


def reimbursement_rate(accuracy: float, best_accuracy: float, eta: float, gamma: float) -> float:
    """Return the share of the pool that goes back to those who paid, PI-FL eqs (8) and (9), from 0 to ``eta``.

    Without improvement the share is ``eta``. It falls as the relative improvement grows, and is 0 from ``gamma`` on.

    Args:
        accuracy: the tier's accuracy after the round.
        best_accuracy: the tier's best accuracy before the round.
        eta: the largest rate, 0 to 1.
        gamma: the relative improvement from which nothing is reimbursed, 0 to 1. With 0 any improvement suffices
            (docs/papers.md, P13).

    Raises:
        ValueError: ``eta`` or ``gamma`` outside 0 to 1, or accuracies that are negative or not finite.
    """
    most, full = _number("eta", eta, 0, 1), _number("gamma", gamma, 0, 1)
    delta = utility(accuracy, best_accuracy)
    if full == 0:
        return most if delta == 0 else 0.0
    return most * (full - min(full, delta)) / full  # PI-FL eq. (9)


def ranks(contributions: Mapping[int, float], participations: Mapping[int, float]) -> dict[int, int]:
    """Return each provider's rank by client id, PI-FL eq. (12): n for the best of n providers, 1 for the last.

    Providers are ordered by contribution, then by participation. Among equals, the lower id ranks higher
    (docs/papers.md, P16).

    Args:
        contributions: what each provider was worth, by client id.
        participations: how often each provider took part, by client id, with one entry for each provider.

    Raises:
        ValueError: a contribution or participation that is missing or not finite.
    """
    keys = {}
    for i in contributions:
        if i not in participations:
            raise ValueError(f"participations: no entry for client {i}; allowed: one for each provider")
        psi = _number(f"contributions[{i}]", contributions[i])
        keys[i] = (psi, _number(f"participations[{i}]", participations[i]), -i)
    return {i: rank for rank, i in enumerate(sorted(keys, key=keys.__getitem__), 1)}


def rank_rewards(pool: int, contributions: Mapping[int, float], participations: Mapping[int, float]) -> dict[int, int]:
    """Return what each provider earns, in units by client id, in proportion to its rank: PI-FL eqs (12)-(14).

    Only the providers are ranked (docs/papers.md, P15), and the rewards sum to ``pool``. Units that do not divide
    evenly go one by one to the largest remainders, and in a tie to the lower id.

    Args:
        pool: the units to share out, after the reimbursement (P17).
        contributions: as for :func:`ranks`. If empty, nobody earns anything.
        participations: as for :func:`ranks`.

    Raises:
        ValueError: a pool that is not a whole number of units, and as :func:`ranks` does.
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
    """Return the movements of one tier's round, PI-FL eqs (6)-(14), in the order of the equations.

    Amounts without a recipient stay in the pool (docs/papers.md, P9, P11, P14). Movements of 0 units are omitted.

    Args:
        payers: the selected bidders; each pays ``price``.
        providers: the clients whose updates were mixed.
        price: the price of a seat, in units.
        accuracy: the tier's accuracy after the round.
        best_accuracy: the tier's best accuracy before the round.
        eta: the largest share of the pool that is reimbursed, 0 to 1.
        gamma: the relative improvement from which on nothing is reimbursed, 0 to 1.
        contributions: what each provider was worth, by client id.
        participations: how often each provider took part, by client id.
        pool: the units that the tier's pool holds from before.

    Returns:
        ``(equation, from, to, units)`` for each movement. The places from and to are client ids and ``POOL``. The
        reimbursement is split equally among the payers. Units that do not divide evenly go to the lower ids.

    Raises:
        ValueError: an argument that is not allowed, or a provider without contribution or participation.
    """
    theta = reimbursement_rate(accuracy, best_accuracy, eta, gamma)
    held = _units("pool", pool) + _units("price", price) * len(set(payers))  # eq. (7), read as P9
    # a Fraction is the float's exact value: a float product would round amounts above 2^53
    returned = round(Fraction(theta) * held)  # PI-FL eq. (10)
    return share_out(payers, providers, price, returned, contributions, participations, pool)


def share_out(
    payers: Collection[int],
    providers: Collection[int],
    price: int,
    returned: int,
    contributions: Mapping[int, float],
    participations: Mapping[int, float],
    pool: int = 0,
) -> list[Movement]:
    """Return the movements of one tier's round for a given reimbursement, PI-FL eqs (6), (7), (11)-(14).

    Args:
        payers, providers, price, contributions, participations, pool: as for :func:`settle_tier`.
        returned: the units to reimburse to those who paid, eq. (10); nothing if nobody paid.

    Raises:
        ValueError: as :func:`settle_tier` does.
    """
    price, pool = _units("price", price), _units("pool", pool)
    paying, working = sorted(set(payers)), sorted(set(providers))
    if missing := [i for i in working if i not in contributions]:
        raise ValueError(f"contributions: no entry for client {missing[0]}; allowed: one for each provider")
    moved: list[Movement] = [("6", i, POOL, price) for i in paying]
    held = pool + price * len(paying)  # PI-FL eq. (7), read as P9: those pay who bid and were selected
    returned = _units("returned", returned) if paying else 0
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
    """Settle one tier's round: return the balances after it, and the movements of tokens.

    Args:
        balances: units by client id, with an entry for each payer and provider.
        payers: the selected bidders; each pays ``price``.
        providers: the clients whose updates were mixed.
        price: the price of a seat, in units.
        accuracy: the tier's accuracy after the round.
        best_accuracy: the tier's best accuracy before the round.
        eta: the largest share of the pool that is reimbursed, 0 to 1.
        gamma: the relative improvement from which on nothing is reimbursed, 0 to 1.
        contributions: what each provider was worth, by client id.
        participations: how often each provider took part, by client id.
        pool: the units that the tier's pool holds from before.

    Returns:
        The balances after the round, and the movements (see :func:`settle_tier`).

    Raises:
        ValueError: a payer cannot pay the price (there is no debt; docs/papers.md, P10), a client has no balance, or
            for the reasons of :func:`settle_tier`. Nothing has changed then.

    Examples:
        >>> balances, movements = settle_round(  # the accuracy grew by a tenth, half way to gamma
        ...     {0: 10, 1: 10, 2: 0}, payers=[0, 1], providers=[2], price=4, accuracy=0.55, best_accuracy=0.5,
        ...     eta=0.5, gamma=0.2, contributions={2: 1.0}, participations={2: 1},
        ... )
        >>> balances  # of the pool of 8 units a quarter goes back, and client 2 earns the rest
        {0: 7, 1: 7, 2: 6}
        >>> movements
        [('6', 0, 'pool', 4), ('6', 1, 'pool', 4), ('11', 'pool', 0, 1), ('11', 'pool', 1, 1), ('14', 'pool', 2, 6)]
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
