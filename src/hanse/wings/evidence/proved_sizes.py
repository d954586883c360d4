"""Proved sizes: members commit to their samples before they train, and are audited by a public draw.

:class:`ProvedSizes` runs alongside the parts of any mechanism. A new member commits to its distinct samples
(:mod:`hanse.data.commitment`) and puts up a bond. The root of the commitment is written into the book. The leaves that
it must open are drawn from a seed that nobody knew before. This seed is made of the book's head after all commitments
and, on a network, a number that the server draws then. If the audit succeeds, including the auditor's signature, the
bond is returned and the size counts from this round on. If not, the bond goes to the mint. A member that does not
answer gets the same questions again (``repeats``). Until it has proved its size, a member counts as having no samples.
So if the run ends before its questions are used up, its bond is returned.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.core.calling import States
from hanse.core.entry import BOND, KEPT, MINT, RETURNED, TOKEN, Transaction, escrow, in_tokens
from hanse.core.entry import client as account_of
from hanse.core.part import Context, Helper, Most, Now, Pause, State
from hanse.core.port import AuditSize, CommitSize, Request, Roster, SizeAudited, SizeCommitted
from hanse.core.table import Floats, Ints, Updates
from hanse.data.commitment import SampleCommitment, attested, drawn, misplaced, unpacked
from hanse.ledger.note import is_signature
from hanse.runs.guards import Guard

COMMIT, AUDIT = "size commitment", "size audit"  # the questions
UNKNOWN, COMMITTED, PROVED, FAILED = range(4)  # how a member stands
UNFINISHED = "the run ended before its audit did"


@dataclass(frozen=True)
class ProvedSamples:
    """Tells later parts what members committed to.

    Attributes:
        commitments: the commitment of each client whose size is proved.
        seeds: the seed with which it was audited, which is public.
    """

    commitments: Mapping[int, SampleCommitment]
    seeds: Mapping[int, bytes]


@dataclass(frozen=True)
class ProvedSizes(Helper):
    """Asks members to prove their sizes. The round calls it before all other parts.

    Attributes:
        leaves: how many leaves an audit opens (all, if there are fewer).
        bond: units held in escrow until the audit is passed.
        repeats: how often an unanswered question is asked again before it counts as failed.
        auditors: the public keys (Ed25519, hexadecimal) of those whose signatures count. Empty: a simulation, whose
            word is taken.
        spares: whether an audit waits for a member that is not there, whose bond comes back when the run ends
            (``clients.exit.bond``). Otherwise it fails like one that does not answer.
        fresh: whether seeds include a number that the server draws. Members then cannot try one commitment after
            another until they like the questions. Without it, runs are repeatable.
    """

    leaves: int = 30
    bond: int = 10_000_000
    repeats: int = 1
    auditors: frozenset[str] = frozenset()
    spares: bool = False
    fresh: bool = False

    def init(self, context: Context) -> State:
        """Return the state in which nobody has committed to anything."""
        n = context.num_clients
        hashes = np.zeros((n, 32), np.uint8)
        counts = np.zeros(n, np.int64)
        return {"root": hashes, "seed": hashes, "size": counts, "asked": counts, "standing": counts}

    def figures(self, state: State) -> dict[str, Floats]:
        """Return the proved sizes, ``[N]``, for the record."""
        return {"proved_samples": self.proved(state)}

    @staticmethod
    def proved(state: State) -> Floats:
        """Return the sizes that are proved, ``[N]``. All others are 0."""
        return np.where(state["standing"] == PROVED, state["size"], 0).astype(np.float64)

    def roster(self, roster: Roster, state: State) -> Roster:
        """Return the roster with everybody's samples limited to the proved number."""
        proved = self.proved(state)
        return Roster(replace(c, num_samples=min(c.num_samples, int(proved[c.id]))) for c in roster)

    def before(self, now: Now, state: State) -> State:
        """Ask new members for commitments and bonds, then audit all that have committed and were not audited yet."""
        return self._audited(now, self._committed(now, state))

    def received(self, updates: Updates, state: State) -> Updates:
        """Return updates of no more samples than were proved."""
        proved = self.proved(state)[updates.seats.client]
        return replace(updates, num_samples=np.minimum(updates.num_samples, proved))

    def _committed(self, now: Now, state: State) -> State:
        """Ask each present client that has not committed yet, and take commitments and bonds of those that can pay."""
        new = now.view.present[state["standing"][now.view.present] == UNKNOWN].tolist()
        now.ask([Request(c, (CommitSize(COMMIT),)) for c in new])
        after, posted, refused = _copied(state), list[Transaction](), list[tuple[int, str]]()
        for c in new:
            answer = now.view.answers.get((c, COMMIT))
            if not isinstance(answer, SizeCommitted):
                self._silent(after, c)
                if after["standing"][c] == FAILED:
                    refused.append((c, "did not commit to its samples"))
            elif answer.size == 0:
                after["standing"][c] = FAILED
                refused.append((c, "commits to no samples"))
            elif not now.view.book.can_pay(account_of(c), self.bond):
                refused.append((c, f"cannot pay the bond of {in_tokens(self.bond)} for its size"))
            else:
                paid = (account_of(c), -self.bond), (escrow(c), self.bond)
                posted.append(Transaction(f"{BOND}/{c}", BOND, paid, f"{answer.size} samples, root {answer.root}"))
                after["root"][c] = np.frombuffer(bytes.fromhex(answer.root), np.uint8)
                after["size"][c], after["asked"][c], after["standing"][c] = answer.size, 0, COMMITTED
        now.refuse(refused)
        now.post(posted)
        return after

    def _audited(self, now: Now, state: State) -> State:
        """Ask those who have committed, and judge their answers. Who passes gets its bond back; who fails, or has not
        answered to the last, loses it.
        """
        after, asked = _copied(state), list[Request]()
        entropy = secrets.token_bytes(16) if self.fresh else b""
        seed = hashlib.sha256(entropy + bytes.fromhex(now.view.book.head)).digest()
        audited = np.flatnonzero(state["standing"] == COMMITTED).tolist()
        for c in audited:
            if not after["seed"][c].any():  # an audit that is repeated asks the same
                after["seed"][c] = np.frombuffer(seed, np.uint8)
            if c in now.view.present:
                told, own = _commitment(after, c), after["seed"][c].tobytes()
                leaves = tuple(drawn(told, own, self.leaves))
                asked.append(Request(c, (AuditSize(AUDIT, told.root.hex(), told.size, own.hex(), leaves),)))
        now.ask(asked)
        posted, refused = list[Transaction](), list[tuple[int, str]]()
        for c in audited:
            if self.spares and c not in now.view.present:
                continue
            answer = now.view.answers.get((c, AUDIT))
            if isinstance(answer, SizeAudited):
                wrong = self._wrong(_commitment(after, c), after["seed"][c].tobytes(), answer)
                after["standing"][c] = FAILED if wrong else PROVED
            else:
                wrong = "the audit was not answered"
                self._silent(after, c)
            if after["standing"][c] == COMMITTED:
                continue  # it is asked again
            if wrong:
                refused.append((c, f"its size is not proved: {wrong}"))
                posted.append(_released(c, self.bond, MINT, KEPT, wrong))
            else:
                assert isinstance(answer, SizeAudited)
                posted.append(_released(c, self.bond, account_of(c), RETURNED, self._note(after, c, answer)))
        proved = np.flatnonzero(after["standing"] == PROVED).tolist()
        seeds = {c: after["seed"][c].tobytes() for c in proved}
        known = ProvedSamples({c: _commitment(after, c) for c in proved}, seeds)
        silent = (after["standing"] == COMMITTED) & (after["asked"] > state["asked"])  # in this very round
        last = np.flatnonzero(silent & (after["asked"] == self.repeats)).tolist()
        who = f"{', '.join(map(str, last[:9]))}{', ...' if len(last) > 9 else ''}"
        wait = [Pause(f"the next audit without an auditor's signature costs the bond of client {who}")] if last else []
        now.refuse(refused)
        now.count(self.roster(now.view.roster, after))
        now.post(posted)
        now.hand_on([known, *wait])
        return after

    def ended(self, now: Now, state: State) -> State:
        """Give back the bonds that are still in escrow after the last round; they prove nothing."""
        after = _copied(state)
        open_ = np.flatnonzero(after["standing"] == COMMITTED).tolist()
        after["standing"][open_] = FAILED
        now.post(_released(c, self.bond, account_of(c), RETURNED, UNFINISHED) for c in open_)
        return after

    def _note(self, state: State, client: int, said: SizeAudited) -> str:
        """Return what the book says of an audit that was passed: all that a signature needs to be checked again."""
        size, seed = int(state["size"][client]), state["seed"][client].tobytes().hex()
        note = f"{min(self.leaves, size)} leaves opened, seed {seed}"
        return f"{note}, auditor {said.auditor}, signature {said.signature}" if said.signature else note

    def _silent(self, after: dict[str, NDArray[np.int64]], client: int) -> None:
        """Count a question that was not answered; the last one fails."""
        after["asked"][client] += 1
        if after["asked"][client] > self.repeats:
            after["standing"][client] = FAILED

    def _wrong(self, told: SampleCommitment, seed: bytes, said: SizeAudited) -> str:
        """Return what is wrong with an answer to an audit, or ""."""
        leaves = drawn(told, seed, self.leaves)
        try:
            paths = unpacked(told.size, leaves, said.hashes.numpy())
        except ValueError as misfit:
            return str(misfit)
        if wrong := next(filter(None, (misplaced(told, i, path) for i, path in zip(leaves, paths, strict=True))), ""):
            return wrong
        return signature_fault(self.auditors, attested(told, seed, len(leaves)), said.auditor, said.signature)


def signature_fault(auditors: frozenset[str], statement: bytes, auditor: str, signature: str) -> str:
    """Return why an auditor's signature is invalid, or "". If no auditors are named, none is needed."""
    if not auditors:
        return ""
    if auditor not in auditors:
        return f"auditor '{auditor[:16]}': is not among those that the members named"
    if is_signature(statement, bytes.fromhex(signature), bytes.fromhex(auditor)):
        return ""
    return "the auditor's signature is not one of this commitment and these leaves"


def _commitment(state: State, client: int) -> SampleCommitment:
    """Return what a client committed to."""
    return SampleCommitment(state["root"][client].tobytes(), int(state["size"][client]))


def _copied(state: State) -> dict[str, NDArray[np.int64]]:
    """Return a copy whose arrays may be written into."""
    return {name: array.copy() for name, array in state.items()}


def _released(client: int, units: int, to: str, kind: str, memo: str) -> Transaction:
    """Return the transaction that moves a client's bond out of escrow."""
    return Transaction(f"{kind}/{client}", kind, ((escrow(client), -units), (to, units)), memo)


class SizesGuard(Guard):
    """Members that prove how many samples they have."""

    def provides(self) -> Mapping[str, str]:
        """Return that sizes are proved, that tokens move, and what a network lacks."""
        none = {f"sizes.{key}/none": f"sizes.{key}: {x}" for key, x in self.experiment.of_wing("sizes") if not x}
        return {"proved sizes": "", "tokens": "", **none}

    def settle(self, sizes: Ints | None) -> None:
        """Read the options. Raises UserError for a bond that nobody can pay."""
        said, clients = self.experiment.of_wing("sizes"), self.experiment.clients
        grant = clients.grant / clients.vests - self.experiment.ledger.floor
        if said.bond > grant:
            raise UserError(
                f"sizes.bond: {said.bond:g}: nobody can pay it: must be at most the grant of {grant:g} tokens"
            )
        bond, auditors, spares = round(said.bond * TOKEN), frozenset(said.auditors), clients.leaving.bond == "returned"
        proof = ProvedSizes(said.leaves, bond, said.repeats, auditors, spares, fresh=self.remote)
        self.helpers = {"sizes": proof}

    def questions(self) -> Sequence[tuple[str, Most]]:
        """Return that a member commits once in a round and is audited once, at most."""
        return ("CommitSize", Most()), ("AuditSize", Most())

    def leaves(self, client: int, states: States) -> tuple[int, States]:
        """Return the bond of an audit that is still open. The client's size is then not proved."""
        if states["sizes"]["standing"][client] != COMMITTED:
            return 0, states
        after = _copied(states["sizes"])
        after["standing"][client] = FAILED
        return round(self.experiment.of_wing("sizes").bond * TOKEN), {**states, "sizes": after}
