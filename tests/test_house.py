"""The figures of the house stay where CONTRIBUTING says they are."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

import hanse

PLACE = Path(__file__).parents[1] / "benchmarks" / "house.py"


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    spec = importlib.util.spec_from_file_location("house_figures", PLACE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    found: dict[str, float] = module.figures()
    return found


def test_every_public_name_says_what_it_is(figures: dict[str, float]) -> None:
    assert figures["public docstrings, %"] == 100
    assert figures["of those with arrays or amounts: with shapes or units, %"] >= 80


def test_most_files_are_short_and_nothing_is_said_twice(figures: dict[str, float]) -> None:
    assert figures["median file, lines of code"] < 120
    assert figures["repeated in mechanisms, %"] < 5


def test_rooms_are_few_and_imports_run_one_way(figures: dict[str, float]) -> None:
    assert figures["circles of modules"] == 0
    assert figures["upward arrows"] == 0
    assert figures["rooms"] <= 19


def test_no_function_is_long(figures: dict[str, float]) -> None:
    assert figures["longest function"] <= 60


def test_the_public_names_are_few_and_documented() -> None:
    reference = (PLACE.parents[1] / "docs" / "reference" / "run.md").read_text()
    known = ["Experiment", "Run", "UserError", "load", "resume", "run", "shapley", "value", "valued", "who_gains"]
    assert sorted(hanse.__all__) == known
    for name in hanse.__all__:
        assert re.search(rf"^::: hanse(\.\w+)+\.{name}$", reference, re.MULTILINE)
        assert getattr(hanse, name).__doc__
