"""What all tests share. Properties are checked without a clock: a busy machine is no fault."""

import os
import re
import select
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from rotation import is_its_turn  # before any worker process starts

from hanse.base.wings import absent

settings.register_profile("hanse", deadline=None)
settings.load_profile("hanse")


def _skipped_without(report: Any, path: Path, wrong: str) -> Any:
    """Return the report of what failed, as skipped if its error says that a wing was deleted, or the papers."""
    # the line that failed is the last one that names a wing
    lost = "No module named 'hanse" in wrong and re.findall(r"hanse_papers|hanse[.]wings[.]\w+", str(report.longrepr))
    if report.failed and (lost or (absent() and absent() in wrong)):
        reason = f"Skipped: needs {lost[-1]}" if lost else f"Skipped: {wrong.splitlines()[0]}"
        report.outcome, report.longrepr = "skipped", (str(path), 0, reason)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Skip a module of tests that imports a wing that was deleted."""
    return _skipped_without(report := (yield), collector.path, str(report.longrepr))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """Skip a test that asks for a wing that was deleted."""
    return _skipped_without((yield), item.path, str(call.excinfo.value) if call.excinfo else "")


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
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a test stands in, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare a test that reads a report's text the drawing of its figures, which takes seconds."""

    def save(chart: Any, folder: Path) -> str:
        (folder / f"{chart.key}.png").touch()
        return "<svg/>"

    monkeypatch.setattr("hanse.reports.report.save", save)
    monkeypatch.setattr("hanse.reports.report.to_svg", lambda spec: "<svg/>")


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
