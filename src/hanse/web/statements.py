"""Participants' statements for the live page: made when asked for, kept while the run has no new round."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from hanse.base.errors import UserError
from hanse.base.looking import looking
from hanse.web.runs import ListedRun

log = logging.getLogger("hanse.web")

AT_ONCE = 2  # processes
WAIT_S = 120.0
KEPT = 32
YOUNG_S = 5.0  # a statement of a run that goes on is not made again before it is this old


class NoStatementError(Exception):
    """There is no such statement; the message says why, for the operator."""


@dataclass(frozen=True)
class _Made:
    text: bytes
    stamp: tuple[int, int]
    when: float


@dataclass(eq=False)
class Statements:
    """The statements that were asked for last, by run, client and form. ``ledger_url``: as for ``hanse statement``."""

    ledger_url: str | None = None
    _made: OrderedDict[tuple[str, int, str], _Made] = field(default_factory=OrderedDict)
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def get(self, found: ListedRun, client: int, form: str) -> bytes:
        """Return the statement as ``html`` or ``json``. Raises NoStatementError."""
        asked = (found.id, client, form)
        async with self._turns:
            stamp = _stamp(found.folder)
            made = self._made.get(asked)
            if made is None or (made.stamp != stamp and time.monotonic() - made.when > YOUNG_S):
                made = _Made(await _make(found.folder, client, form, self.ledger_url), stamp, time.monotonic())
                self._made[asked] = made
                if len(self._made) > KEPT:
                    self._made.popitem(last=False)
            self._made.move_to_end(asked)
            return made.text


def _stamp(folder: Path) -> tuple[int, int]:
    try:
        status = (folder / "metrics.jsonl").stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


async def _make(folder: Path, client: int, form: str, ledger_url: str | None) -> bytes:
    process = await asyncio.create_subprocess_exec(
        # -P: Python would put the current folder, which may be a stranger's, before its own modules
        sys.executable, "-P", "-m", "hanse.web.statements", str(folder), str(client), form, ledger_url or "",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        text, said = await asyncio.wait_for(process.communicate(), WAIT_S)
    except TimeoutError:
        raise NoStatementError(f"it took longer than {WAIT_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 2:
        raise NoStatementError(said.decode(errors="replace").strip())
    if process.returncode:
        log.error("a statement of %r failed: %s", str(folder), said.decode(errors="replace").strip())
        raise NoStatementError("it could not be made; the server's log says why")
    return text


def main(arguments: list[str]) -> int:
    """Print a statement (``FOLDER CLIENT html|json LEDGER_URL``); 2 and a line on standard error if there is none.

    A statement reads the whole run. In a process of its own, which runs this, it neither holds up the live page nor
    leaves its memory behind.
    """
    from hanse.reports.statement import statement
    from hanse.reports.statement_page import render

    folder, client, form, ledger_url = arguments
    try:
        with looking():
            made = statement(Path(folder), int(client), ledger_url=ledger_url or None)
        text = render(made) if form == "html" else json.dumps(made.as_json(), indent=1, allow_nan=False)
    except UserError as wrong:
        print(*wrong.lines, sep="\n", file=sys.stderr)
        return 2
    sys.stdout.buffer.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
