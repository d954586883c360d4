"""PI-FL's token manager: the golden rounds, and conservation to the last unit."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from games_cases import close, golden
from hypothesis import given
from hypothesis import strategies as st

from hanse.games import tokens

UNIT = 1_000_000
CASES = golden("pifl_tokens")
SOUND = [c for c in CASES if not c["out"].get("error")]


def units(amounts: dict[str, float]) -> dict[int, int]:
    return {int(i): round(a * UNIT) for i, a in amounts.items()}


def by_id(numbers: dict[str, Any]) -> dict[int, Any]:
    return {int(i): x for i, x in numbers.items()}


def settled(case: Any, **changes: Any) -> tuple[dict[int, int], list[tokens.Movement]]:
    i = case["in"]
    tier = {"payers": i["payers"], "providers": i["providers"], "price": round(i["tau_p"] * UNIT)}
    rates = {"accuracy": i["acc"], "best_accuracy": i["acc_max"], "eta": i["eta"], "gamma": i["gamma"]}
    did = {"contributions": by_id(i["psi"]), "participations": by_id(i["participation"])}
    return tokens.settle_round(units(i["tokens"]), **{**tier, **rates, **did, **changes})


@pytest.mark.parametrize("case", SOUND, ids=lambda c: c["name"])
def test_golden_rounds(case: Any) -> None:
    given_, out = case["in"], case["out"]
    after, moved = settled(case)
    for i, expected in units(out["tokens"]).items():
        assert abs(after[i] - expected) <= 2
    assert sum(after.values()) + round(out["pool_left"] * UNIT) == sum(units(given_["tokens"]).values())
    found = {(eq, str(a), str(b)): amount for eq, a, b, amount in moved}
    for eq, a, b, amount in out["ledger"]:
        assert abs(found.pop((eq, str(a), str(b)), 0) - amount * UNIT) <= 2
    assert not found
    delta = tokens.utility(given_["acc"], given_["acc_max"])
    assert delta == math.inf if out["delta"] == "inf" else close(delta, out["delta"], case["tol"])
    theta = tokens.reimbursement_rate(given_["acc"], given_["acc_max"], given_["eta"], given_["gamma"])
    assert close(theta, out["theta"], case["tol"])
    providers = given_["providers"]
    psi, omega = by_id(given_["psi"]), by_id(given_["participation"])
    assert tokens.ranks({i: psi[i] for i in providers}, omega) == by_id(out["ranks"])


def test_a_payer_that_cannot_pay_is_refused_and_nothing_changes() -> None:
    [case] = [c for c in CASES if c["out"].get("error")]
    balances = units(case["in"]["tokens"])
    with pytest.raises(ValueError, match=r"balances\[0\]: 4000000: cannot pay the price of 5000000 units"):
        settled(case)
    assert balances == units(case["in"]["tokens"])


def random_round(draw: random.Random) -> tuple[dict[int, int], dict[str, Any]]:
    n = draw.randint(1, 12)
    balances = {i: draw.randrange(0, 10**9) for i in range(n)}
    price = draw.choice([0, 1, draw.randrange(0, 10**8)])
    payers = [i for i in balances if balances[i] >= price and draw.random() < 0.6]
    tier = {"payers": payers, "providers": [i for i in balances if draw.random() < 0.6], "price": price}
    rates = {name: draw.choice([0.0, draw.random()]) for name in ("accuracy", "best_accuracy")}
    rates |= {name: draw.choice([0.0, 1.0, draw.random()]) for name in ("eta", "gamma")}
    contributions = {i: draw.choice([0.0, draw.gauss(0, 1)]) for i in range(n)}
    did = {"contributions": contributions, "participations": {i: draw.randrange(4) for i in range(n)}}
    return balances, {**tier, **rates, **did}


def test_random_rounds_conserve_every_unit() -> None:
    draw, carried = random.Random(6), 0
    for _ in range(2_000):
        balances, rest = random_round(draw)
        after, moved = tokens.settle_round(balances, **rest, pool=carried)
        into = sum(u for _, a, _, u in moved if a != tokens.POOL)
        out_of = sum(u for _, _, b, u in moved if b != tokens.POOL)
        left = carried + into - out_of
        assert left >= 0
        assert min(after.values()) >= 0
        assert sum(after.values()) + left == sum(balances.values()) + carried
        assert into == rest["price"] * len(rest["payers"])
        assert left == 0 or not rest["providers"]
        carried = left


@given(st.integers(0, 10**15), st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 50)), min_size=1, max_size=30))
def test_rewards_sum_to_the_pool_and_follow_the_ranks(pool: int, made: list[tuple[float, int]]) -> None:
    psi, omega = {i: p for i, (p, _) in enumerate(made)}, {i: o for i, (_, o) in enumerate(made)}
    rewards, rank = tokens.rank_rewards(pool, psi, omega), tokens.ranks(psi, omega)
    assert sum(rewards.values()) == pool
    assert sorted(rank.values()) == list(range(1, len(made) + 1))
    beta = len(made) * (len(made) + 1) / 2
    assert all(abs(rewards[i] - pool * rank[i] / beta) <= 1 for i in psi)


def test_who_provides_more_of_equal_work_ranks_higher_and_of_equals_the_lower_id() -> None:
    assert tokens.ranks({4: 0.5, 2: 0.5, 9: 0.1}, {4: 1, 2: 1, 9: 8}) == {9: 1, 4: 2, 2: 3}
    assert tokens.rank_rewards(10, {4: 0.5, 2: 0.5, 9: 0.1}, {4: 3, 2: 1, 9: 8}) == {4: 5, 2: 3, 9: 2}
    assert tokens.rank_rewards(100, {}, {}) == {}


def test_the_pool_of_a_tier_without_providers_is_carried_to_its_next_round() -> None:
    rates = {"price": 10, "accuracy": 0.5, "best_accuracy": 0.5, "eta": 0.5, "gamma": 0.1}
    given = {"payers": [0], "providers": [], "contributions": {}, "participations": {}, "pool": 6}
    _, moved = tokens.settle_round({0: 50, 1: 50}, **rates, **given)  # type: ignore[arg-type]
    assert moved == [("6", 0, "pool", 10), ("11", "pool", 0, 8)]
    nobody = {"payers": [], "providers": [1], "contributions": {1: 1.0}, "participations": {1: 1.0}}
    assert tokens.settle_tier(**rates, **nobody) == []  # a pool is empty unless told otherwise


@pytest.mark.parametrize(
    "changes",
    [{"eta": 1.5}, {"gamma": -0.1}, {"accuracy": math.nan}, {"best_accuracy": -1.0}, {"price": 1.0}, {"price": -1},
     {"pool": -3}, {"contributions": {0: 1.0, 1: math.inf, 2: 0.0}}, {"contributions": {0: 1.0}},
     {"participations": {0: 1}}],
)  # fmt: skip
def test_what_is_not_allowed(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(changes))}"):
        settled(SOUND[0], **changes)
    with pytest.raises(ValueError, match="balances: no entry for client 7"):
        settled(SOUND[0], payers=[7])


def test_without_a_gamma_any_improvement_is_enough() -> None:
    assert [tokens.reimbursement_rate(now, 0.5, 0.4, 0.0) for now in (0.4, 0.5, 0.6)] == [0.4, 0.4, 0.0]
