"""What the tests of the whole repository share, and the script that makes the pages of results, as a module."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import has_ended, pytest_runtest_setup  # noqa: F401

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def pages() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("pages")
