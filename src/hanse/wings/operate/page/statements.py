"""Participants' statements for the live page: made on request, and kept until the run has a new round.

A statement reads the whole run. It is therefore made in a separate process (``python -m`` and this module), which
neither delays the live page nor keeps its memory. :class:`Statements` starts these processes, at most two at once.
"""

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
from hanse.base.import_trust import looking
from hanse.wings.operate.page.runs import ListedRun

log = logging.getLogger("hanse.wings.operate.page")

AT_ONCE = 2  # processes that make statements
WAIT_S = 120.0  # seconds that one may take
KEPT = 32  # statements that are kept, those that were asked for last
YOUNG_S = 5.0  # seconds before a statement is made again, though the run has a new round


class NoStatementError(Exception):
    """There is no such statement.

    The message says why. The message is for the operator: it may mention other participants.
    """


@dataclass(frozen=True)
class _Made:
    """A statement that was made: its text, the state of the run's metrics then, and the time."""

    text: bytes
    stamp: tuple[int, int]
    when: float


@dataclass(eq=False)
class Statements:
    """The statements that were asked for last."""

    _made: OrderedDict[tuple[str, int, str], _Made] = field(default_factory=OrderedDict)
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def get(self, found: ListedRun, client: int, form: str) -> bytes:
        """Return a statement, made again if the run has new rounds.

        Args:
            found: the run.
            client: the client's id.
            form: "html" or "json".

        Raises:
            NoStatementError: the statement cannot be made: there is no such client or round, or it took too long.
        """
        asked = (found.id, client, form)
        async with self._turns:
            stamp = _stamp(found.folder)
            made = self._made.get(asked)
            if made is None or (made.stamp != stamp and time.monotonic() - made.when > YOUNG_S):
                made = _Made(await _make(found.folder, client, form), stamp, time.monotonic())
                self._made[asked] = made
                if len(self._made) > KEPT:
                    self._made.popitem(last=False)
            self._made.move_to_end(asked)
            return made.text


def _stamp(folder: Path) -> tuple[int, int]:
    """Return a stamp that changes with each new round: time and size of the metrics."""
    try:
        status = (folder / "metrics.jsonl").stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


async def _make(folder: Path, client: int, form: str) -> bytes:
    """Return the statement made by a separate process. Raises NoStatementError if it fails."""
    process = await asyncio.create_subprocess_exec(
        # -P: Python would put the current folder, which may be a stranger's, before its own modules
        sys.executable, "-P", "-m", "hanse.wings.operate.page.statements", str(folder), str(client), form,
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
    """Print a statement, and return the exit code. If there is no statement, it is 2, with a line on standard error.

    Args:
        arguments: run directory, client id, and "html" or "json".
    """
    from hanse.reports.statement import render, statement

    folder, client, form = arguments
    try:
        with looking():
            made = statement(Path(folder), int(client))
        text = render(made) if form == "html" else json.dumps(made.as_json(), indent=1, allow_nan=False)
    except UserError as wrong:
        print(*wrong.lines, sep="\n", file=sys.stderr)
        return 2
    sys.stdout.buffer.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
