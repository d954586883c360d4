"""Run directories that grow round by round under a test's hand, without any learning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from telling_cases import built_in_words

from hanse.base.errors import UserError
from hanse.core.entry import MINT, TOKEN, Transaction, client
from hanse.core.telling import write_about
from hanse.ledger.store import Ledger
from hanse.reports.statement import render, statement
from hanse.wings.operate.page.statements import NoStatementError

CONFIG = """
[data]
source = "digits"
clients = {clients}
[mechanism]
name = "{mechanism}"
[run]
rounds = {planned}
seed = 7
"""


async def _made_here(folder: Path, client: int, form: str) -> bytes:
    try:
        made = statement(folder, client)
    except UserError as wrong:
        raise NoStatementError(str(wrong)) from None
    return (render(made) if form == "html" else json.dumps(made.as_json())).encode()


def at_once() -> Any:
    """Let statements be made in this process: starting another takes seconds, and one test does."""
    return patch("hanse.wings.operate.page.statements._make", _made_here)


class Growing:
    """A run directory to which rounds are added; with ``money`` every client has 100 tokens and pays the next one."""

    def __init__(
        self, folder: Path, *, clients: int = 4, planned: int = 10, money: bool = False, mechanism: str = "greedyfed"
    ) -> None:
        self.folder, self.clients, self.rounds = folder, clients, 0
        (folder / "rounds").mkdir(parents=True)
        (folder / "config.toml").write_text(CONFIG.format(clients=clients, planned=planned, mechanism=mechanism))
        write_about(folder, built_in_words({"mechanism": {"name": mechanism}}, clients, 7))
        (folder / "shape.json").write_text('{"input_shape": [1, 8, 8], "num_classes": 10}')
        (folder / "metrics.jsonl").touch()
        (folder / "clients.jsonl").touch()
        self.ledger = None
        if money:
            (folder / "ledger.json").write_text(json.dumps({"book": "town"}))
            self.ledger = Ledger.open(folder / "transactions.jsonl", book="town")
            grants = [
                Transaction(f"grant/{c}", "grant", ((MINT, -100 * TOKEN), (client(c), 100 * TOKEN)))
                for c in range(clients)
            ]
            self.ledger.post(0, grants)

    def round(self, seats: Sequence[dict[str, Any]] | None = None, **metrics: Any) -> None:
        """Add a round: its seats (default: all clients, worth their number in hundredths) and its metrics."""
        n = self.rounds
        if self.ledger is not None:
            pay = []
            for c in range(self.clients):
                lines = ((client(c), -TOKEN * (c + 1)), (client((c + 1) % self.clients), TOKEN * (c + 1)))
                pay.append(Transaction(f"market/{c}", "market", lines))
            self.ledger.post(n, pay)
        if seats is None:
            seats = [{"client": c, "start": 0, "value": c / 100, "samples": 10.0} for c in range(self.clients)]
        self.write("clients.jsonl", *({"round": n, **seat} for seat in seats))
        line = {
            "round": n,
            "test/accuracy": 1 - 1 / (n + 2),
            "train/loss": 1 / (n + 1),
            "time/round_s": 0.5,
            "refused": 0,
        }
        self.write("metrics.jsonl", line | metrics)
        self.rounds += 1

    def write(self, name: str, *lines: dict[str, Any]) -> None:
        with (self.folder / name).open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def cut(self, rounds: int) -> None:
        """Cut the line files back to ``rounds`` rounds, as a resumed run does."""
        for name in ("metrics.jsonl", "clients.jsonl"):
            lines = (self.folder / name).read_text().splitlines(keepends=True)
            (self.folder / name).write_text("".join(x for x in lines if json.loads(x)["round"] < rounds))
        self.rounds = rounds
