"""Sends the heads of the books (hashes of the whole log) to participants, and collects their cosignatures.

Each request shows its client the newest head of the log, and the proof that it continues the last head that this client
has acknowledged (:mod:`hanse.ledger.witness`). Cosignatures are kept in ``cosigned.jsonl`` in the run directory, one
per line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanse.ledger.run_ledger import COSIGNED, open_ledger
from hanse.ledger.witness import Prover


@dataclass
class ShownHeads:
    """What clients were shown of the books, and what they have acknowledged.

    Attributes:
        run: the run directory. None: there are no books, and nothing is shown.

    Examples:
        >>> ShownHeads().to(3)
        {}
    """

    run: Path | None = None
    _prover: Prover | None = None
    _acknowledged: dict[int, int] = field(default_factory=dict)  # client -> transactions of the last head it has seen
    _signed: set[tuple[int, int]] = field(default_factory=set)  # (client, transactions) that were cosigned

    def to(self, client: int) -> dict[str, Any]:
        """Return what a request shows a client: the newest head and its proof.

        It is empty if there is no head yet.
        """
        if self._prover is None:
            if self.run is None or not (self.run / "config.toml").exists() or not (self.run / "ledger.json").exists():
                return {}
            self._prover = Prover(open_ledger(self.run))
        head = self._prover.head()
        if head is None or not head.signatures:
            return {}
        since = self._acknowledged.get(client, 0)
        return {"head": head.note(), "since": since, "proof": self._prover.proof(since)}

    def heard(self, client: int, shown: Mapping[str, Any], said: Mapping[str, Any]) -> bool:
        """Note what a client says of a head, and return whether it lacks a proof and must be asked again.

        Args:
            client: the client's id.
            shown: what the request had shown the client.
            said: the plain values of the client's answer: ``cosigned`` (its cosignature) or ``saw`` (the number of
                transactions in the last head that it has seen).
        """
        if self._prover is None or "head" not in shown:
            return False
        if "saw" in said:
            before, self._acknowledged[client] = self._acknowledged.get(client), int(said["saw"])
            return before != self._acknowledged[client]
        count = int(shown["head"].split("\n")[1])
        if said.get("cosigned") and (client, count) not in self._signed:
            self._acknowledged[client] = max(count, self._acknowledged.get(client, 0))
            self._signed.add((client, count))
            assert self.run is not None
            with (self.run / COSIGNED).open("a") as file:
                file.write(
                    json.dumps({"client": client, "head": shown["head"], "cosignature": said["cosigned"]}) + "\n"
                )
        return False
