"""Selectors: golden instances, and GreedyFed's two phases."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hanse.mechanisms.select import Greedy, greedy, round_robin, rounds_to_meet_all
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
