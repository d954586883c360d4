"""What the tests of the whole repository share, and the script that makes the pages of results, as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import has_ended, pytest_runtest_setup  # noqa: F401

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "benchmarks" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
