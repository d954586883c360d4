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
from mistaken import mistakes

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def decision() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("decision")


def rigged(decision: ModuleType, keeps: Mapping[str, tuple[float, float]], gain: float = 0.1) -> Any:
    """Kept runs of six splits, in which joining gains so much, and the two markets' best cheats so much by problem."""
    kept = object.__new__(decision.Kept)
    kept.settings = decision.read_settings()
    spread = np.linspace(-0.01, 0.01, 6)
    cells = {(p, name): decision.Cell(0.3) for p in kept.settings.problems for name in kept.settings.mechanisms}
    for (problem, (first, second)), name in product(keeps.items(), kept.settings.mechanisms):
        values = {"gain": gain + spread, "better": np.full(6, gain > 0, float), "worst": gain + spread}
        values |= {"keeps": (first if name == "ipfl" else second) + spread[::-1]}
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


@pytest.mark.parametrize(("gain", "lost"), [(0.1, False), (-0.001, False), (-0.1, True)])
def test_a_row_says_where_the_worst_off_member_surely_loses(decision: ModuleType, gain: float, lost: bool) -> None:
    kept = rigged(decision, {"loans": (0.0, 0.0)}, gain)
    assert decision.shown(kept, "loans", "ditto", "worst").endswith(" (loses)") == lost


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


def test_every_planned_run_is_an_experiment_and_a_cheats_shift_is_its_own(decision: ModuleType) -> None:
    settings = decision.read_settings()
    for of in product(settings.problems, settings.mechanisms):
        assert settings.job(*of, "honest", 3).experiment.data.seed == 3
    honest, cheat = (decision.work(settings.job("digits", "fedavg", p, 9), int, "") for p in ("honest", "update x50"))
    assert cheat["shift"] > 10 * honest["shift"] > 0
    assert (decision.people_of(cheat), len(cheat["main"])) == ([1], 8)


def test_the_pages_are_what_is_kept(decision: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(decision.MECHANISMS, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(decision, "MECHANISMS", tmp_path)
    assert decision.main(["--check"]) == 0
    page = tmp_path / "index.md"
    page.write_text(page.read_text().replace("Played: ", "Played: 1"))
    wrong = ["--check", "--only nobody", "--check --only ditto", "--pages --only ditto", "--again 0", "--again -3"]
    assert [decision.main(words.split()) for words in wrong] == [1, 2, 2, 2, 2, 2]


def test_settings_that_name_what_is_not_there_are_refused(decision: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    text = decision.SETTINGS.read_text().replace('"update x3"', '"update x4"').replace('["by_value",', '["by_valeu",')
    file.write_text(text)
    assert len(mistakes(decision.read_settings, file)) == 2
