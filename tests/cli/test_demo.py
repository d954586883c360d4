"""The demo from start to end, with short runs: what it leaves, and what it refuses to replace."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from hanse.base.errors import UserError
from hanse.cli import demo


@pytest.mark.slow
def test_one_story_that_leaves_three_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "ROUNDS", 3)
    monkeypatch.setattr(demo, "MARKET_ROUNDS", 3)
    monkeypatch.setattr(demo, "VALUES_ROUNDS", 3)
    monkeypatch.setattr(demo, "NAMES", {name: demo.NAMES[name] for name in ("greedyfed", "local", "centralised")})
    written, out = io.StringIO(), tmp_path / "demo"
    demo.run_demo(out, 2, Console(file=written, width=80))
    for page in (out / "report.html", out / "values-report" / "report.html", out / "market-report" / "report.html"):
        assert page.stat().st_size > 1_000_000
    assert "FAILS" not in written.getvalue()  # a check of the market's audit
    (out / "mine").mkdir()
    with pytest.raises(UserError, match="'mine'"):
        demo.run_demo(out, 1, Console(file=io.StringIO()))
