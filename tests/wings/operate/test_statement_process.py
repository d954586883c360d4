"""Statements made in a process of their own, and kept while nothing changes."""

import asyncio
import json
from pathlib import Path

import pytest
from web_cases import Growing

from hanse.wings.operate.page import statements
from hanse.wings.operate.page.runs import ListedRun
from hanse.wings.operate.page.statements import NoStatementError, Statements


def test_a_statement_comes_from_another_process(tmp_path: Path) -> None:
    run = Growing(tmp_path / "run", money=True)
    run.round()
    found = ListedRun("x", "run", run.folder)

    async def play() -> tuple[bytes, str]:
        kept = Statements()
        text = await kept.get(found, 2, "json")
        with pytest.raises(NoStatementError) as missing:
            await kept.get(found, 9, "html")
        return text, str(missing.value)

    text, missing = asyncio.run(play())
    assert json.loads(text)["client"] == 2
    assert "clients 0 to 3" in missing


def test_a_process_that_fails_or_hangs_is_no_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements.sys, "executable", "/bin/false")

    async def play() -> str:
        with pytest.raises(NoStatementError) as wrong:
            await Statements().get(ListedRun("x", "run", tmp_path), 0, "html")
        return str(wrong.value)

    assert "log says" in asyncio.run(play())


def test_a_statement_is_kept_until_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Growing(tmp_path / "run")
    run.round()
    asked: list[int] = []

    async def make(folder: Path, client: int, form: str) -> bytes:
        asked.append(client)
        return b"%d" % len(asked)

    now = 0.0
    monkeypatch.setattr(statements, "_make", make)
    monkeypatch.setattr(statements.time, "monotonic", lambda: now)
    monkeypatch.setattr(statements, "KEPT", 2)
    kept, found = Statements(), ListedRun("x", "run", run.folder)

    def get(client: int) -> bytes:
        return asyncio.run(kept.get(found, client, "html"))

    assert [get(1), get(1), get(2)] == [b"1", b"1", b"2"]
    run.round()
    assert get(1) == b"1"  # the run goes on: not again before it is five seconds old
    now = 6.0
    assert get(1) == b"3"
    get(3)
    assert get(1) == b"3"
    assert get(2) == b"5"  # two are kept
