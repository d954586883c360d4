"""The port's exchange on Flower: one message a client, different ones to different nodes, polled at short intervals."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, astuple, dataclass, field, replace
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from hanse.core.port import Reply, Request, Roster, Train, Trained
from hanse.deployment.members import Check, Member, Members, Orders, kind, majority
from hanse.deployment.message import LARGEST, Beside, from_records, said_beside, to_records
from hanse.deployment.newcomers import LOG, Newcomers, named, pulled, sent
from hanse.deployment.receipts import Letters
from hanse.federation.check import HEADER, one_line, reading, room
from hanse.federation.codec import Message, pack, unpack_reply
from hanse.federation.node import KEPT, Assignment

P = ParamSpec("P")
T = TypeVar("T")

POLL_S, SELDOM_S = 0.02, 0.5  # answers are looked for at intervals of a twentieth of the time waited, within these
PAUSE_S = 0.5  # how often a paused server looks whether it may go on
LETTER_S = 60.0  # the last letters are waited for no longer


@dataclass
class FlowerFederation:
    """All members that are online, behind the port. ``job(client, num_clients)`` is what a node must know of the run.

    ``deadline_s`` bounds a round where the experiment names none, so that a dead node costs its seat and not the run.
    ``orders`` says what the operator wants (nothing, if there is none). ``letters`` are receipts for clients: they
    travel with the next request to each. With ``half`` models travel as 16-bit floats. ``check`` says why samples do
    not belong to the experiment, if they do not.
    """

    grid: Grid
    members: Members
    job: Callable[[Member, int], Assignment]
    _: KW_ONLY
    deadline_s: float = 3600.0
    capacity: int = 0  # ids that the mechanism was built for; later newcomers wait for another run
    largest: int = LARGEST
    half: bool = False
    orders: Callable[[], Orders] = Orders
    letters: Letters = field(default_factory=Letters)
    check: Check = lambda said: None
    asked: list[int] = field(default_factory=list, init=False)  # the clients of the last exchange
    newcomers: Newcomers = field(init=False)
    online: dict[str, Any] = field(default_factory=dict, init=False)  # key -> node, as of the last look
    _nodes: dict[int, int] = field(default_factory=dict, init=False)  # client -> node that is online
    _failed: set[int] = field(default_factory=set, init=False)  # nodes whose failure was logged
    _held: dict[int, list[str]] = field(default_factory=dict, init=False)  # client -> hashes it keeps, oldest first

    def __post_init__(self) -> None:
        self.newcomers = Newcomers(self.grid)

    # ---- who is here

    def present(self, round: int) -> Roster:
        """Return the members that are online. Newcomers that have introduced themselves are taken in first; nobody is
        waited for, unless there is a pause.
        """
        self.look()
        self.admit()
        return Roster(m.info for m in self._here())

    def look(self) -> None:
        """See who is online, obey the operator, ask newcomers who they are. Waits while there is a pause."""
        while (orders := self.orders()).paused is not None:
            time.sleep(PAUSE_S)
        self.members.expel(orders.expelled)
        self.online = {self._key(node): node for node in self.grid.get_nodes()}
        known = {m.key for m in self.members.by_key.values() if m.expelled is not None}
        known |= {m.key for m in self.members.fitting(self.check)}
        self.newcomers.meet({key: node for key, node in self.online.items() if key not in known})

    def admit(self) -> None:
        """Register the newcomers whose samples are what the experiment needs; the others stay out, with the reason.

        Ids follow the order that they state (their partition), then the key.
        """
        said = dict(self.newcomers.said)
        for key, reason in [(k, r) for k, hello in said.items() if (r := self.check(hello)) is not None]:
            self.newcomers.refuse(key, reason)
            del said[key]
        new = sorted(said.items(), key=lambda item: (item[1].order, item[0]))
        like = majority(self.members.fitting(self.check)) or majority(hello for _, hello in new)
        for key, hello in new:
            if kind(hello) != like:
                self.newcomers.refuse(key, f"its samples are {kind(hello)}; the members have them {like}")
        taken = [(key, hello) for key, hello in new if kind(hello) == like]
        self.members.register(taken)
        self.newcomers.forget(key for key, _ in taken)

    def here(self) -> int:
        """Return how many members are online, as of the last look."""
        return len(self._here())

    def _here(self) -> list[Member]:
        fitting = self.members.fitting(self.check)
        room = self.capacity or len(self.members.by_key)
        here = [m for m in fitting if m.key in self.online and m.id < room]
        self._nodes = {m.id: int(self.online[m.key].node_id) for m in here}
        return here

    @staticmethod
    def _key(node: Any) -> str:
        public = bytes(getattr(node, "public_key", b"") or b"")
        return hashlib.sha256(public).hexdigest() if public else f"node-{node.node_id}"

    # ---- the exchange

    def exchange(
        self, round: int, requests: Sequence[Request], deadline_s: float | None, min_replies: int
    ) -> Sequence[Reply]:
        """Send each request to its node and return the replies that came in time; a second message only to nodes that
        have lost models which they should hold.
        """
        deadline = time.monotonic() + (deadline_s or self.deadline_s)
        packed = {r.client: pack(r, half=self.half) for r in requests if r.client in self._nodes}
        asked = {r.client: r for r in requests}
        replies, weights, again = [], dict.fromkeys(packed, 0), dict(packed)
        for resend in (False, True):
            due = {c: m if resend else m.without(set(self._held.get(c, ()))) for c, m in again.items()}
            again = {}
            for client, message in due.items():
                weights[client] += message.num_bytes
            heard = self._send(round, due, max(0.0, deadline - time.monotonic()), asked)
            for client, answer in heard.items():
                if isinstance(answer, str):
                    replies.append(Reply(client, refused=answer, bytes_down=weights[client]))
                    continue
                message, beside = answer
                if beside.get("missing") and not resend:
                    again[client] = packed[client]
                    continue
                self._remember(client, packed[client])
                read = _guarded(self._read, round, asked[client], message, beside)
                reply = Reply(client, refused=read) if isinstance(read, str) else read
                replies.append(replace(reply, bytes_down=weights[client], bytes_up=message.num_bytes))
            if not again:
                break
        return replies

    def deliver(self) -> None:
        """Send the letters that are left, each to its client if it is online; the others' stay where they are."""
        self.present(-1)
        left = [c for c in self.letters.waiting if c in self._nodes]
        self._send(-1, {c: Message("null") for c in left}, LETTER_S, kind="letter")

    def _send(
        self,
        round: int,
        messages: Mapping[int, Message],
        seconds: float,
        asked: Mapping[int, Request] = MappingProxyType({}),
        **more: Any,
    ) -> dict[int, Any]:
        records, client_of = {}, {}
        most: dict[int, int] = {}  # bytes that a node may answer
        members, self.asked = self.members.by_id(), sorted(messages)
        letters = {c: self.letters.waiting.get(c, [])[:] for c in messages}
        for client, message in messages.items():
            job = self.job(members[client], self.capacity or len(members))
            client_of[self._nodes[client]] = client
            values = {"kind": "request", "round": round, "job": job.to_json()} | more
            if letters[client]:
                values["letter"] = "\n".join(letters[client])
            records[self._nodes[client]] = to_records(message, **values)
            if client in asked:
                most[self._nodes[client]] = min(self.largest, sum(astuple(room(asked[client]))))
        heard = {client_of[node]: answer for node, answer in self._talk(records, seconds, str(round), most).items()}
        self.letters.delivered({c: len(letters[c]) for c, answer in heard.items() if not isinstance(answer, str)})
        return heard

    def _read(self, round: int, request: Request, message: Message, beside: Beside) -> Reply | str:
        """Return the reply in a message, which is untrusted input, or why there is none. May raise anything."""
        if refused := beside.get("refused"):
            return one_line(refused)
        if beside.get("round") != round:
            return f"answer for round {beside.get('round')}"
        reply = unpack_reply(message, room(request))
        if reply.client != request.client:
            return "not a reply of this client"
        starts = {t.seat: t.start for t in request.tasks if isinstance(t, Train) and t.private}
        results = tuple(
            replace(r, row=starts[r.seat]) if isinstance(r, Trained) and r.seat in starts else r for r in reply.results
        )
        return replace(reply, results=results)

    def _remember(self, client: int, message: Message) -> None:
        """Note what the node keeps now: the last models that it was sent, as it counts them."""
        held = [h for h in self._held.get(client, []) if h not in message.arrays]
        self._held[client] = [*held, *message.arrays][-KEPT:]

    def _talk(
        self, records: Mapping[int, Any], seconds: float, group: str, most: Mapping[int, int] = MappingProxyType({})
    ) -> dict[int, Any]:
        """Send records to nodes and return, by node, (message, what is beside it) or the reason why there is none.

        An answer of more bytes than ``most`` says for its node is refused unread.
        """
        if not records:
            return {}
        waiting = {name: node for node, name in sent(self.grid, records, max(1.0, seconds), group).items()}
        begun, found = time.monotonic(), {}
        while waiting:
            for name, reply in pulled(self.grid, list(waiting)):
                node = waiting.pop(name, None)
                if node is not None:
                    found[node] = _guarded(self._opened, reply, most.get(node, HEADER))
                    self._warn(node, reply)
            self.newcomers.poll()
            if waiting:
                waited = time.monotonic() - begun
                if waited > seconds:
                    break
                time.sleep(min(SELDOM_S, max(POLL_S, waited / 20)))
        return found

    def _warn(self, node: int, reply: FlowerMessage | Exception) -> None:
        """Name a member whose node failed at once, and once: its round may last long yet."""
        if isinstance(reply, Exception) or not reply.has_error() or node in self._failed:
            return
        self._failed.add(node)
        for key, one in self.online.items():
            if int(one.node_id) == node:
                LOG.warning("%s: its node failed: %s", named(key, one), one_line(str(reply.error.reason)))

    def _opened(self, reply: FlowerMessage | Exception, largest: int) -> tuple[Message, Beside] | str:
        """Return a message from a node, which is untrusted input, or why there is none. May raise anything."""
        if isinstance(reply, Exception):
            raise reply
        if reply.has_error():
            return one_line(f"its node failed: {reply.error.reason}")
        message, values = from_records(reply.content, largest)
        return message, said_beside(values)


def _guarded(read: Callable[P, T | str], *args: P.args, **more: P.kwargs) -> T | str:
    """The network's one guard: return what ``read`` returns; whatever a client's bytes make it raise is a refusal."""
    try:
        return read(*args, **more)
    except Exception as wrong:  # MemoryError and RecursionError too
        return reading(wrong)
