"""What all tests share. Properties are checked without a clock: a busy machine is no fault."""

import os
import re
import select
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from rotation import is_its_turn  # before any worker process starts

from hanse.base.wings import absent

settings.register_profile("hanse", deadline=None)
settings.load_profile("hanse")

PAPERS = "hanse-papers: pip install -e papers"


def _missing(package: str) -> bool:
    try:
        return find_spec(package) is None
    except ModuleNotFoundError:  # the package that it is in is missing
        return True


needs_papers = pytest.mark.skipif(_missing("hanse_papers"), reason=f"needs {PAPERS}")


def needs_wing(name: str) -> pytest.MarkDecorator:
    """Skip a test, with the wing's name, where the wing was deleted. Tests that import it are skipped without this."""
    return pytest.mark.skipif(_missing(f"hanse.wings.{name}"), reason=f"needs the wing {name}")


def _lacks(text: str) -> str | None:
    """Return what an error says is missing, if it is a wing that was deleted, or the papers."""
    if "No module named 'hanse_papers" in text:
        return f"needs {PAPERS}"
    if "No module named 'hanse.wings" in text:
        return "needs the wing " + ", ".join(dict.fromkeys(re.findall(r"hanse[.]wings[.](\w+)", text)))
    return text.splitlines()[0] if absent() and absent() in text else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, pytest.CollectReport]:
    """Skip a module of tests that imports what is missing."""
    report: pytest.CollectReport = yield
    if report.failed and (lost := _lacks(str(report.longrepr))):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {lost}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, pytest.TestReport]:
    """Skip a test that fails since it asks for what is missing."""
    report: pytest.TestReport = yield
    if report.failed and call.excinfo is not None and (lost := _lacks(str(call.excinfo.value))):
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: {lost}")
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to nightly runs what takes turns, unless it is its own; all tests of a commit have the same turn."""
    for item in items:
        mark = item.get_closest_marker("by_turns")
        if mark is not None and not is_its_turn(item.nodeid, *mark.args):
            item.add_marker(pytest.mark.nightly)


def pytest_runtest_setup() -> None:
    """Start each test with the same global seed, so that it draws the same numbers alone and after any others."""
    torch.manual_seed(0)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare a test that reads a report's text the drawing of its figures, which takes seconds."""

    def save(chart: Any, folder: Path) -> None:
        (folder / f"{chart.key}.png").touch()

    monkeypatch.setattr("hanse.reports.report.save", save)
    monkeypatch.setattr("hanse.reports.report.script", lambda: "")


@pytest.fixture
def has_ended() -> Callable[[int], bool]:
    """Wait for a process, ours or not, as long as a busy machine may take; say whether it has ended."""

    def waited(pid: int) -> bool:
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            return bool(select.select([process], [], [], 120)[0])
        finally:
            os.close(process)

    return waited
