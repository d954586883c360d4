"""Tests of this folder that build a language model need the extra ``llm``; CI installs it and says so."""

import importlib.util
import os

import pytest


@pytest.fixture(scope="session")
def llm() -> None:
    """Skip without the extra; where HANSE_TEST_LLM is set (CI), a missing extra is a failure."""
    missing = [name for name in ("transformers", "peft") if importlib.util.find_spec(name) is None]
    if missing and os.environ.get("HANSE_TEST_LLM"):
        pytest.fail(f"HANSE_TEST_LLM is set, but {', '.join(missing)} is not installed: pip install '.[llm]'")
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: pip install '.[llm]'")
