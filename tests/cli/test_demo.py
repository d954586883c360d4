"""The demo from start to end, with short runs: what it prints last, what it leaves, what it refuses to replace."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from hanse.base.errors import UserError
from hanse.cli import demo


@pytest.mark.slow
def test_one_story_that_ends_with_the_report_and_the_live_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "ROUNDS", 3)
    monkeypatch.setattr(demo, "MARKET_ROUNDS", 3)
    monkeypatch.setattr(demo, "VALUES_ROUNDS", 3)
    monkeypatch.setattr(demo, "NAMES", {name: demo.NAMES[name] for name in ("greedyfed", "local", "centralised")})
    written, out = io.StringIO(), tmp_path / "demo"
    demo.run_demo(out, 2, Console(file=written, width=80))
    text = written.getvalue()
    text, _, learned = text.rpartition("\n\n")
    assert max(map(len, [*text.splitlines()[:-4], *learned.splitlines()])) <= 80
    together, contributed, gain = re.split(r"^\d\. ", learned, flags=re.MULTILINE)[1:]
    assert re.match(r"Together they read \d+ % of new digits right \(GreedyFed\), each alone \d+ %\.", together)
    assert contributed.startswith("Valuing everybody: ")
    assert gain.startswith("The 7 who buy get ")
    *_, budgets = text.splitlines()[:-3]
    assert budgets == f"The budgets, with pictures: {out / 'values-report' / 'report.html'}"
    for models in ("60", "100", "200"):  # a row each, the smaller ones with how many of the best stay
        assert any(line.split()[1:2] == [models] for line in text.splitlines() if line.startswith("│"))
    last = text.splitlines()[-3:]
    assert last[0] == f"The market, with pictures: {out / 'market-report' / 'report.html'}"
    assert last[1] == f"The race, with pictures: {out / 'report.html'}"
    assert last[2].startswith("The live page of these runs: ")
    assert last[2].endswith(f"serve {out}")
    for page in (out / "report.html", out / "values-report" / "report.html", out / "market-report" / "report.html"):
        assert page.stat().st_size > 1_000_000
    bars = [line.partition("━")[0].strip() for line in text.splitlines() if "━ " in line and "/3" in line]
    assert bars[-2:] == ["the market", "each client alone"]
    assert len(bars) == 2 * 3 + 1 + 2  # one a run
    assert "95 % interval" in text
    assert text.count(" ± ") >= 3  # standard deviations of three systems over two seeds
    assert text.count("holds: ") == 13
    assert "FAILS" not in text
    (out / "mine").mkdir()
    with pytest.raises(UserError, match="'mine'"):
        demo.run_demo(out, 1, Console(file=io.StringIO()))
