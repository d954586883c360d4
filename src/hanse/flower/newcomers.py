"""Asks nodes that are online but not yet members who they are, and reads their answers; some are refused.

:class:`hanse.flower.link.FlowerFederation` uses :class:`Newcomers`. Everything happens in the background of the
rounds: nothing here waits for an answer. A node that does not answer is asked again, and its next answer is looked for
twice as long. One that was refused is asked again after a pause that doubles each time. A node whose app was repaired
therefore gets in without a restart.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message as FlowerMessage
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from hanse.federation.check import HEADER, one_line, reading
from hanse.federation.codec import Message, WireError
from hanse.flower.members import Hello
from hanse.flower.message import from_records, said_beside, to_records
from hanse.flower.nodes import named, pulled, sent

LOG = logging.getLogger("hanse.network")
LOG.addHandler(logging.NullHandler())
HELLO_S = 60.0  # seconds that the first answer is waited for; twice as long each time, or slow nodes never got in
FIRST_S, LAST_S = 5.0, 600.0  # seconds before a refused node is asked again: doubled each time, from first to last
SEEN_S = 1.0  # seconds between two looks for answers while the server waits for something else
# Flower's errors for a node that has gone: no fault of its app, so it is asked again without a line in the log
GONE = {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}
NOT_OURS = "No query function registered"  # what Flower says of a client app that has no 'hanse'


@dataclass
class _Asked:
    """A node that is not a member yet, and how far its introduction has come."""

    node: Any  # as Flower's grid describes it
    message: str | None = None  # the question that is out
    wait: float = HELLO_S  # how long its answer is waited for
    due: float = 0.0  # when to ask, or to give up the question that is out
    pause: float = FIRST_S
    hello: Hello | None = None
    refused: str | None = None


@dataclass
class Newcomers:
    """The nodes that are online but not members.

    They are kept by key, so that a node that returns is recognised.

    Attributes:
        grid: Flower's connection to the nodes, or a :class:`hanse.flower.in_process.InProcessGrid`.
        key: the operator's key, which signs the questions.
        agreement: the hash of the agreement that they must have signed.
        clock: a function that returns the time in seconds; tests replace it.
    """

    grid: Grid
    key: Ed25519PrivateKey
    agreement: str = ""
    clock: Callable[[], float] = time.monotonic
    _asked: dict[str, _Asked] = field(default_factory=dict, init=False)
    _here: frozenset[str] = field(default_factory=frozenset, init=False)
    _looked: float = field(default=float("-inf"), init=False)

    def meet(self, here: Mapping[str, Any]) -> None:
        """Ask newcomers who they are if it is time to ask them, and read the answers of those that have answered.

        Args:
            here: the newcomers that are online now, ``{key: node}``.
        """
        for key in self._here - set(here):  # who comes back is asked at once; why it was refused is not said again
            self._asked[key] = _Asked(None, refused=self._asked[key].refused)
        self._here = frozenset(here)
        for key, node in here.items():
            self._asked.setdefault(key, _Asked(node)).node = node
        now = self.clock()
        due = [one for one in map(self._asked.__getitem__, here) if not one.message and not one.hello]
        self._ask([one for one in due if now >= one.due], now)
        self.poll(0.0)

    def poll(self, every: float = SEEN_S) -> None:
        """Hear who has answered.

        Args:
            every: do nothing if the last look was less than this many seconds ago.
        """
        now = self.clock()
        out = {one.message: key for key in self._here if (one := self._asked[key]).message}
        if not out or now < self._looked + every:
            return
        self._looked = now
        for name, reply in pulled(self.grid, [name for name in out if name]):
            if isinstance(reply, Exception):
                self.refuse(out[name], f"its answer cannot be read: {type(reply).__name__}: {reply}")
            elif name in out:
                self._hear(out[name], reply)
        for one in map(self._asked.__getitem__, out.values()):
            if one.message and now >= one.due:  # it may be training: it is asked again soon
                one.message, one.due, one.wait = None, now + FIRST_S, min(2 * one.wait, LAST_S)

    @property
    def said(self) -> dict[str, Hello]:
        """The hellos of the newcomers that are neither registered nor refused yet, by key."""
        return {key: one.hello for key in sorted(self._here) if (one := self._asked[key]).hello}

    @property
    def pending(self) -> int:
        """The number of newcomers that have neither introduced themselves nor been refused."""
        return sum(not one.hello and one.refused is None for one in map(self._asked.__getitem__, self._here))

    @property
    def refused(self) -> dict[str, str]:
        """A line for each newcomer that is online and refused, by key: which node it is, and why."""
        return {
            key: f"{named(key, one.node)}: {one.refused}"
            for key in sorted(self._here)
            if (one := self._asked[key]).refused and not one.hello
        }

    def refuse(self, key: str, reason: str) -> None:
        """Keep a newcomer out, and ask it again after its pause.

        Args:
            key: the newcomer.
            reason: the reason, in one line. It is logged if it differs from the previous reason.
        """
        one = self._asked[key]
        reason = one_line(reason)
        if reason != one.refused:
            LOG.warning("%s: is kept out: %s", named(key, one.node), reason)
        one.hello, one.refused = None, reason
        self._again(one, self.clock())

    def forget(self, keys: Iterable[str]) -> None:
        """Stop asking these newcomers, which are members now."""
        for key in keys:
            del self._asked[key]
        self._here = self._here & set(self._asked)

    def _ask(self, due: list[_Asked], now: float) -> None:
        """Put the question to these nodes."""
        if not due:
            return
        said = {"kind": "hello", "agreement": self.agreement}
        questions = {int(one.node.node_id): to_records(Message("null"), **said) for one in due}
        ids = sent(self.grid, self.key, questions, max(one.wait for one in due), "hello")
        for one in due:
            one.message, one.due = ids.get(int(one.node.node_id)), now + one.wait
            if one.message is None:
                self._again(one, now)

    def _hear(self, key: str, reply: FlowerMessage) -> None:
        """Take in a node's answer: a hello, an error of its app, or anything else, which is refused."""
        one = self._asked[key]
        one.message = None
        if reply.has_error():
            failed = str(reply.error.reason)
            if reply.error.code in GONE:
                self._again(one, self.clock())
            elif NOT_OURS in failed:
                self.refuse(key, "its client app is not hanse's (hanse.flower.client_app makes one): " + failed)
            elif reply.error.code == ErrorCode.INVALID_FAB:
                self.refuse(key, "its owner has not agreed to this app ('hanse network join --agree FILE')")
            else:
                self.refuse(key, f"its node failed: {failed}")
            return
        try:
            said = said_beside(from_records(reply.content, HEADER)[1])
            if "refused" in said:
                raise WireError(f"its node refuses: {said['refused']}")
            one.hello = Hello.of(said.get("hello", ""))
        except Exception as wrong:  # of whatever class: it was raised by what a stranger sent
            self.refuse(key, reading(wrong))

    @staticmethod
    def _again(one: _Asked, now: float) -> None:
        """Note that a node is to be asked again, after a pause that is twice as long as the one before."""
        one.message, one.due, one.pause = None, now + one.pause, min(2 * one.pause, LAST_S)
