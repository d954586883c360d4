"""Checks the bonds of proved sizes: each member has one, which is settled once, by a signature or when the run ends.

``hanse ledger verify`` and ``hanse audit`` use it. The book has each member's commitment and the audit's questions.
Anyone with the book and the experiment's ``sizes.auditors`` can therefore check an auditor's signature again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hanse.base.files import table
from hanse.core.entry import BOND, KEPT, MINT, RETURNED, TOKEN, Transaction, in_tokens
from hanse.data.commitment import SampleCommitment, attested
from hanse.runs.sections import ExitSection
from hanse.wings.evidence.proved_sizes import UNFINISHED, signature_fault
from hanse.wings.evidence.sections import SizesSection

_COMMITTED = re.compile(r"([1-9][0-9]*) samples, root ([0-9a-f]{64})")
_PASSED = re.compile(
    r"([1-9][0-9]*) leaves opened, seed ([0-9a-f]{64})(?:, auditor ([0-9a-f]{64}), signature ([0-9a-f]{128}))?"
)


@dataclass
class Bonds:
    """The bonds of proved sizes, as of a position in the book.

    Attributes:
        units: the amount of each bond, in units.
        leaves: how many leaves an audit opens.
        auditors: the auditors whose signatures count.
        held: what each client with a bond in escrow committed to.
        over: the clients whose bond is settled.
    """

    units: int
    leaves: int
    auditors: frozenset[str]
    held: dict[str, SampleCommitment] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)

    @staticmethod
    def of(config: Mapping[str, Any]) -> Bonds:
        """Return the state of a run's bonds before its first transaction; the run proves sizes."""
        section = SizesSection(**table(config, "sizes"))
        return Bonds(round(section.bond * TOKEN), section.leaves, frozenset(section.auditors))

    def left(self, client: int, agreed: ExitSection) -> int:
        """Return how many units of its bond a client gets back when it leaves, and settle the bond if it gets it."""
        if agreed.bond != "returned" or self.held.pop(str(client), None) is None:
            return 0
        self.over.add(str(client))
        return self.units

    def wrong(self, transaction: Transaction, ended: bool) -> str:
        """Return why this cannot be the next transaction of its client's bond, or "".

        Args:
            transaction: a bond that moves.
            ended: whether the transaction is dated after the last round, when bonds with an unfinished audit are
                returned.
        """
        number = transaction.step.rpartition("/")[2]
        own, kept = f"client/{number}", f"escrow/{number}"
        ways = {BOND: (own, kept), RETURNED: (kept, own), KEPT: (kept, MINT)}
        payer, payee = ways[transaction.kind]
        if transaction.postings != ((payer, -self.units), (payee, self.units)):
            return f"does not move a bond of {in_tokens(self.units)}"
        if transaction.kind == BOND:
            said = _COMMITTED.fullmatch(transaction.memo)
            if said is None or number in self.held or number in self.over:
                return "is no first commitment of this client to a size"
            self.held[number] = SampleCommitment(bytes.fromhex(said[2]), int(said[1]))
            return ""
        commitment = self.held.pop(number, None)
        if commitment is None:
            return "there is no bond of this client in escrow"
        self.over.add(number)
        if transaction.kind == KEPT or (ended and transaction.memo == UNFINISHED):
            return ""
        said = _PASSED.fullmatch(transaction.memo)
        if said is None or int(said[1]) != min(self.leaves, commitment.size):
            return "does not say which audit was passed"
        statement = attested(commitment, bytes.fromhex(said[2]), int(said[1]))
        return signature_fault(self.auditors, statement, said[3] or "", said[4] or "")
