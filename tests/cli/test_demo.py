"""The demo from start to end, with short runs: what it leaves, and what it refuses to replace."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from hanse.base.errors import UserError
from hanse.cli import demo
from hanse.reports.report import check


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("here", [True, False])
def test_pages_that_agree_with_their_runs(here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "ROUNDS", 3)
    monkeypatch.setattr(demo, "is_here", lambda source: here)
    written, out = io.StringIO(), tmp_path / "demo"
    demo.run_demo(out, 2, Console(file=written, width=80))
    assert (demo.NO_HOSPITALS[:30] in written.getvalue()) != here
    first = out / "together-seed0"
    pages = [*sorted((first / "statements").iterdir()), out / "invoice.html"]
    assert [check([first], page) for page in pages] == [[]] * 5
    runs = [out / f"{name}-seed{seed}" for seed in (0, 1) for name in ("together", "alone")]
    assert check(runs, out / "report.html") == []
    (out / "mine").mkdir()
    with pytest.raises(UserError, match="'mine'"):
        demo.run_demo(out, 1, Console(file=io.StringIO()))
