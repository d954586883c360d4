"""Selectors: golden instances, and GreedyFed's two phases."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hanse.games.hedge import choose_arm, update_arms
from hanse.mechanisms.select import Greedy, greedy, round_robin, rounds_to_meet_all
from hanse.mechanisms.select.by_loss import next_query_size
from hanse.mechanisms.select.by_value import softmax, ucb_scores, without_replacement
from hanse.mechanisms.select.set_aware import matching, sketch
from hanse.streams import stream

CASES = json.loads((Path(__file__).parents[1] / "golden" / "selection.json").read_text())["cases"]


def cases(rule: str) -> list[Any]:
    found = [pytest.param(c["in"], c["out"], id=c["name"]) for c in CASES if c["in"]["rule"] == rule]
    assert found
    return found


@pytest.mark.parametrize(("given", "want"), cases("greedy"))
def test_golden_greedy(given: dict, want: dict) -> None:
    assert greedy(np.array(given["sv"]), given["m"]).tolist() == want["selected"]


@pytest.mark.parametrize(("given", "want"), cases("round_robin"))
def test_golden_round_robin(given: dict, want: dict) -> None:
    order, m = np.array(given["order"]), given["m"]
    waiting = np.ones(len(order), bool)
    blocks = []
    while waiting.any():
        block = round_robin(order, waiting, m)
        blocks.append(block.tolist())
        waiting[block] = False
    assert blocks == want["blocks"]
    assert rounds_to_meet_all(len(order), m) == want["rounds"]


class FakeView:
    """As much of a view as a selector looks at."""

    def __init__(self, present: list[int], num_clients: int, round: int = 0) -> None:
        self.present = np.array(present)
        self.context = type("C", (), {"seed": 5, "num_clients": num_clients})()
        self.round = round

    def draw(self, purpose: str) -> np.random.Generator:
        return stream(5, purpose, round=self.round)


def state(values: list[float | None]) -> dict[str, Any]:
    known = np.array([v is not None for v in values])
    return {
        "sat": np.ones(len(values), np.int64),
        "counts": known.astype(np.int64),
        "cumulative": np.array([0.0 if v is None else v for v in values]),
    }


def choose(part: Greedy, view: FakeView, given: dict[str, Any]) -> list[int]:
    return part.decide(view, given).clients.tolist()  # type: ignore[arg-type]


def test_greedy_takes_the_largest_values_and_clients_without_one_last() -> None:
    given = state([0.1, None, 0.5, -0.2, 0.5])
    assert choose(Greedy(3), FakeView([0, 1, 2, 3, 4], 5), given) == [2, 4, 0]
    assert choose(Greedy(5), FakeView([0, 1, 2, 3, 4], 5), given) == [2, 4, 0, 3, 1]


def test_greedy_sees_present_clients_only() -> None:
    assert choose(Greedy(2), FakeView([0, 1, 3], 5), state([0.1, -1.0, 0.5, -0.2, 0.5])) == [0, 3]


def test_greedy_meets_a_late_joiner_before_it_exploits() -> None:
    given = state([0.1, 0.4, 0.5, -0.2, 0.3])
    given["sat"][3] = 0
    assert 3 in choose(Greedy(2), FakeView([0, 1, 2, 3, 4], 5), given)
    assert choose(Greedy(2), FakeView([0, 1, 2, 4], 5), given) == [2, 1]


def test_random_ties_are_drawn_anew_each_round_and_never_break_the_order() -> None:
    given = state([1.0] * 6 + [2.0])
    seen = {tuple(choose(Greedy(2, ties="random"), FakeView(list(range(7)), 7, r), given)) for r in range(40)}
    assert all(pair[0] == 6 for pair in seen)
    assert {pair[1] for pair in seen} == set(range(6))
    assert choose(Greedy(2), FakeView(list(range(7)), 7), given) == [6, 0]


def numbers(values: list[Any]) -> np.ndarray:
    return np.array([float(v) for v in values])


@pytest.mark.parametrize(("given", "want"), cases("ucb"))
def test_golden_ucb(given: dict, want: dict) -> None:
    scores = ucb_scores(np.array(given["sv"]), np.array(given["counts"]), given["t"], given["beta"])
    np.testing.assert_allclose(scores, numbers(want["scores"]), rtol=1e-12)
    assert greedy(scores, given["m"]).tolist() == want["selected"]


@pytest.mark.parametrize(("given", "want"), cases("sfedavg"))
def test_golden_s_fedavg(given: dict, want: dict) -> None:
    phi, sv = np.array(given["phi"]), np.array(given["sv"])
    last = given["selected_last"]
    phi[last] = given["alpha"] * phi[last] + given["beta"] * sv[last]
    np.testing.assert_allclose(phi, want["phi_next"], rtol=1e-12)
    probabilities = softmax(phi)
    np.testing.assert_allclose(probabilities, want["probabilities"], rtol=1e-11)
    draw, draws = np.random.default_rng(1), 20_000
    counts: dict[str, int] = {}
    for _ in range(draws):
        drawn = ",".join(map(str, sorted(without_replacement(probabilities, given["m"], draw).tolist())))
        counts[drawn] = counts.get(drawn, 0) + 1
    for members, p in want["set_probability"].items():
        slack = 5 * np.sqrt(p * max(0.0, 1 - p) / draws) + 1e-9
        assert abs(counts.get(members, 0) / draws - p) < slack


@pytest.mark.parametrize(("given", "want"), cases("power_of_choice"))
def test_golden_power_of_choice(given: dict, want: dict) -> None:
    candidates = np.sort(given["candidates"])
    best = greedy(np.array(given["losses"])[candidates], given["m"])
    assert candidates[best].tolist() == want["selected"]


@pytest.mark.parametrize(("given", "want"), cases("poc_query_sizes"))
def test_golden_query_sizes(given: dict, want: dict) -> None:
    size, sizes = given["n"], []
    for _ in range(given["rounds"]):
        size = next_query_size(size, given["m"], given["decay"])
        sizes.append(size)
    assert sizes == want["sizes"]


def test_sketches_are_linear_and_keep_inner_products_on_average() -> None:
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(3000, generator=draw), torch.randn(3000, generator=draw)
    both = torch.stack([a, b, 2 * a - 3 * b, a])
    found = [sketch(both, 64, seed) for seed in range(300)]
    np.testing.assert_allclose(found[0][2], 2 * found[0][0] - 3 * found[0][1], atol=1e-4)
    np.testing.assert_array_equal(found[0][0], found[0][3])
    products = np.array([f[0] @ f[2] for f in found])
    want = float(a @ (2 * a - 3 * b))
    assert abs(products.mean() - want) < 5 * products.std() / np.sqrt(300)


def test_matching_finds_the_combination_that_no_individual_hints_at() -> None:
    target = np.array([1.0, 1.0, 1.0, 0.0])
    rows = np.array([[0.9, 0.5, 0.2, 0.7], [5.0, 0, 0, 0], [0, 0.1, 0, 0], [0, 0, 2.0, 0], [-1, -1, -1, 0.0]])
    assert set(matching(rows[1:], target, 3).tolist()) == {0, 1, 2}
    assert len(matching(rows, target, 9)) == 5
    assert matching(np.zeros((2, 4)), target, 1).tolist() == [0]


def test_the_bandit_tries_every_arm_then_takes_what_paid_lately() -> None:
    draw = np.random.default_rng(0)
    sums, tries = np.zeros(2), np.zeros(2)
    pays = [1.0, 0.2]
    chosen = []
    for step in range(60):
        arm = choose_arm(sums, tries, 0.0 if step > 10 else 0.5, draw)
        chosen.append(arm)
        sums, tries = update_arms(sums, tries, arm, pays[arm] if step < 30 else 1.0 - pays[arm], 0.5)
    assert set(chosen[:2]) == {0, 1}
    assert chosen[12:30] == [0] * 18
    assert chosen[-20:] == [1] * 20
