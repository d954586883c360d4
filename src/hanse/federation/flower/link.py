"""The port's exchange on Flower: one message a client, different ones to different nodes, polled at short intervals."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from hanse.federation.check import HEADER, one_line, reading, room
from hanse.federation.codec import Message, pack, unpack_reply
from hanse.federation.flower.members import Member, Members, checked
from hanse.federation.flower.message import LARGEST, Beside, from_records, said_beside, to_records
from hanse.federation.flower.operator import Orders
from hanse.federation.node import KEPT, Job
from hanse.federation.port import Reply, Request, Roster, Train, Trained

__all__ = ["FlowerFederation"]

P = ParamSpec("P")
T = TypeVar("T")

POLL_S, SELDOM_S = 0.02, 0.5  # answers are looked for at intervals of a twentieth of the time waited, within these
PAUSE_S = 0.5  # how often a paused server looks whether it may go on
LETTER_S = 60.0  # the last letters are waited for no longer
HELLO_S = 60.0  # a newcomer that has not introduced itself by then is asked again next round


@dataclass
class FlowerFederation:
    """All members that are online, behind the port. ``job(client, num_clients)`` is what a node must know of the run.

    ``deadline_s`` bounds a round where the experiment names none, so that a dead node costs its seat and not the run.
    ``orders`` says what the operator wants (nothing, if there is none). ``letters`` are receipts for clients: they
    travel with the next request to each. With ``half`` models travel as 16-bit floats.
    """

    grid: Grid
    members: Members
    job: Callable[[Member, int], Job]
    deadline_s: float = 3600.0
    capacity: int = 0  # ids that the mechanism was built for; later newcomers wait for another run
    largest: int = LARGEST
    half: bool = False
    orders: Callable[[], Orders] = Orders
    letters: dict[int, list[str]] = field(default_factory=dict)
    _nodes: dict[int, int] = field(default_factory=dict, init=False)  # client -> node that is online
    _held: dict[int, list[str]] = field(default_factory=dict, init=False)  # client -> hashes it keeps, oldest first

    # ---- who is here

    def present(self, round: int) -> Roster:
        """Return the members that are online; newcomers introduce themselves first. Waits while there is a pause."""
        while (orders := self.orders()).paused is not None:
            time.sleep(PAUSE_S)
        for client, reason in orders.expelled.items():
            self.members.expel(client, reason)
        online = {self._key(node): int(node.node_id) for node in self.grid.get_nodes()}
        strangers = {key: node for key, node in online.items() if key not in self.members.by_key}
        if strangers:
            self._introduce(strangers)
        room = self.capacity or len(self.members.by_key)
        known = sorted(self.members.by_key.values(), key=lambda m: m.id)
        here = [m for m in known if m.key in online and m.expelled is None and m.id < room]
        self._nodes = {m.id: online[m.key] for m in here}
        return Roster(m.info for m in here)

    @staticmethod
    def _key(node: Any) -> str:
        public = bytes(getattr(node, "public_key", b"") or b"")
        return hashlib.sha256(public).hexdigest() if public else f"node-{node.node_id}"

    def _introduce(self, strangers: Mapping[str, int]) -> None:
        """Ask newcomers who they are; ids follow the order that they state (their partition), then the key."""
        asked = {node: to_records(Message("null"), kind="hello") for node in strangers.values()}
        said: dict[str, Mapping[str, Any]] = {}
        key_of = {node: key for key, node in strangers.items()}
        for node, reply in self._talk(asked, HELLO_S, "hello").items():
            if isinstance(reply, str):
                continue
            try:
                said[key_of[node]] = checked(json.loads(str(reply[1].get("hello"))))
            except (ValueError, KeyError, TypeError):
                continue  # whoever cannot say this cannot take part; it is asked again next round
        self.members.register(sorted(said.items(), key=lambda item: (item[1]["order"], item[0])))

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
            sent = {c: m if resend else m.without(set(self._held.get(c, ()))) for c, m in again.items()}
            again = {}
            for client, message in sent.items():
                weights[client] += message.num_bytes
            heard = self._send(round, sent, max(0.0, deadline - time.monotonic()), asked)
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
        """Send the letters that are left, each to its client if it is online; who is not does without."""
        self.present(-1)
        left = {c: lines for c, lines in self.letters.items() if lines and c in self._nodes}
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
        sent: dict[int, int] = {}  # letters that go with it
        for client, message in messages.items():
            member = next(m for m in self.members.by_key.values() if m.id == client)
            job = self.job(member, self.capacity or len(self.members.by_key))
            client_of[self._nodes[client]] = client
            values = {"kind": "request", "round": round, "job": job.to_json()} | more
            sent[client] = len(self.letters.get(client, ()))
            if sent[client]:
                values["letter"] = "\n".join(self.letters[client])
            records[self._nodes[client]] = to_records(message, **values)
            if client in asked:
                most[self._nodes[client]] = min(self.largest, sum(astuple(room(asked[client]))))
        heard = {client_of[node]: answer for node, answer in self._talk(records, seconds, str(round), most).items()}
        for client, answer in heard.items():
            if not isinstance(answer, str) and sent[client]:
                del self.letters[client][: sent[client]]
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
        ttl = max(1.0, seconds)
        outgoing = [
            FlowerMessage(content=r, dst_node_id=node, message_type="query.hanse", ttl=ttl, group_id=group)
            for node, r in records.items()
        ]
        nodes = list(records)
        ids = [i or "" for i in self.grid.push_messages(outgoing)]
        waiting = {i: node for i, node in zip(ids, nodes, strict=False) if i}
        begun, found = time.monotonic(), {}
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    found[node] = _guarded(self._opened, reply, most.get(node, HEADER))
            if waiting:
                waited = time.monotonic() - begun
                if waited > seconds:
                    break
                time.sleep(min(SELDOM_S, max(POLL_S, waited / 20)))
        return found

    def _opened(self, reply: FlowerMessage, largest: int) -> tuple[Message, Beside] | str:
        """Return a message from a node, which is untrusted input, or why there is none. May raise anything."""
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
