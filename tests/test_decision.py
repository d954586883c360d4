"""The decision page: what is chosen is measured apart, the rule without a problem, and pages that are what is kept."""

import importlib
import shutil
from collections import Counter
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def decision() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("decision")


def rigged(decision: ModuleType, keeps: Mapping[str, tuple[float, float]]) -> Any:
    """Kept runs of six splits, in which joining gains, and the two markets' best cheats so much by problem."""
    kept = object.__new__(decision.Kept)
    kept.settings = decision.read_settings()
    spread = np.linspace(-0.01, 0.01, 6)
    cells = {(p, name): decision.Cell(0.3) for p in kept.settings.problems for name in kept.settings.mechanisms}
    for (problem, (first, second)), name in product(keeps.items(), kept.settings.mechanisms):
        keeps_of = (first if name == "ipfl" else second) + spread[::-1]
        values = {"gain": 0.1 + spread, "better": np.ones(6), "worst": 0.1 + spread, "keeps": keeps_of}
        cells[problem, name] = decision.Cell(0.3, values)
    kept.__dict__["cells"] = cells
    return kept


def test_what_is_chosen_on_one_half_is_measured_on_the_other(decision: ModuleType) -> None:
    lucky = np.array([[9.0, 0.0], [0.0, 1.0], [9.0, 0.0], [0.0, 1.0]])  # the even splits' best is the odd ones' worst
    found, columns = decision.crossed(lucky, np.nanargmax)
    assert (found.tolist(), columns) == ([0.0, 0.0, 0.0, 0.0], [1, 0])
    found, columns = decision.crossed(np.zeros((4, 3)), np.nanargmin)
    assert (found.tolist(), decision.either("abc", columns)) == ([0.0, 0.0, 0.0, 0.0], "any")  # not the first alone
    assert [decision.either("abcd", tied) for tied in ([2, 0], [2, 0, 1])] == ["c or a", "c or 2 others"]
    noise = np.random.default_rng(0).normal(size=(100, 200))
    assert abs(decision.crossed(noise, np.nanargmax)[0].mean()) < 0.2 < noise.mean(axis=0).max()


@pytest.mark.parametrize(
    ("one", "others", "hits", "chance"),
    [((0.5, 0.0), (0.5, 0.0), 5, 10 / 3), ((9.0, 0.0), (0.0, 0.5), 0, 2.0), ((0.03, 0.0), (0.0, 0.03), 5, 5.0)],
    ids=["one is best everywhere", "one problem is unlike the others, and decides them", "no difference that matters"],
)
def test_a_left_out_problem_is_decided_by_the_others(
    decision: ModuleType, one: tuple[float, float], others: tuple[float, float], hits: int, chance: float
) -> None:
    first, *rest = [name for name, of in decision.read_settings().problems.items() if of["cheated"]]
    kept = rigged(decision, {first: one, **dict.fromkeys(rest, others)})
    trade = next(need for need in kept.settings.given["needs"] if need["name"] == "trade")
    assert decision.left_out(kept, trade) == (hits, 5, pytest.approx(chance))
    assert decision.best_of(kept, trade, [first]) == "ipfl_posted"


def test_every_answer_to_the_questions_has_one_row(decision: ModuleType) -> None:
    kept = rigged(decision, {"loans": (0.0, 0.0)})  # joining pays there, and nothing else is played
    for text in ((decision.MECHANISMS / "index.md").read_text(), "\n".join(decision.advice(kept))):
        asks, found = "", Counter[tuple[str, str]]()
        for first, joining, take, *why in [one.split(" | ") for one in text.splitlines() if one.count("|") == 7][2:]:
            asks = first.strip("| ").lower() or asks
            found.update(product(asks.split("; "), decision.REGIMES if joining == "any" else joining.split(", ")))
            assert (
                why[take == "cannot say"] or take == "as above"
            )  # what the worst-off member gains, or why the page cannot say
        assert found == Counter(product((of["asks"].lower() for of in kept.settings.given["needs"]), decision.REGIMES))


def test_the_pages_are_what_is_kept(decision: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(decision.MECHANISMS, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(decision, "MECHANISMS", tmp_path)
    assert decision.main(["--check"]) == 0
    page = tmp_path / "index.md"
    page.write_text(page.read_text().replace("Played: ", "Played: 1"))
    wrong = ["--check", "--only nobody", "--check --only ditto", "--pages --only ditto", "--again 0", "--again -3"]
    assert [decision.main(words.split()) for words in wrong] == [1, 2, 2, 2, 2, 2]
