"""The port's exchange on Flower: one message a client, different ones to different nodes, polled at short intervals."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, astuple, dataclass, field, replace
from typing import Any, ParamSpec, TypeVar

from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from hanse.core.port import Arrival, Closing, Reply, Request, Roster, Train, Trained
from hanse.deployment.members import Check, Member, Members, Orders, kind, majority
from hanse.deployment.message import LARGEST, Beside, from_records, said_beside, to_records
from hanse.deployment.newcomers import LOG, Newcomers, named, pulled, sent
from hanse.deployment.receipts import Letters
from hanse.federation.check import HEADER, one_line, reading, refusal, room
from hanse.federation.codec import Message, pack, unpack_reply
from hanse.federation.node import KEPT, Assignment

P = ParamSpec("P")
T = TypeVar("T")
AWAY = "its node was away meanwhile"
OUT = "its client may no longer take part"

POLL_S, SELDOM_S = 0.02, 0.5  # answers are looked for at intervals of a twentieth of the time waited, within these
PAUSE_S = 0.5  # how often a paused server looks whether it may go on
LETTER_S = 60.0  # the last letters are waited for no longer
LASTING_S = 12 * 3600.0  # so long a node may answer where late updates are heard: what Flower gives a message by itself


@dataclass
class Open:
    """A message to a client that is not answered yet: the ``round`` and what was asked (None: it is only a letter).

    ``again``: it was sent once more, with all models; ``away``: its node was not there at some time since; ``down``:
    the bytes that were sent; ``letters``: how many travel with it; ``told``: the bytes down that have been counted in
    the round that did not wait for it (None: it has not been given up in any).
    """

    round: int
    client: int
    message: Message
    request: Request | None = None
    node: int = 0
    again: bool = False
    away: bool = False
    down: int = 0
    letters: int = 0
    told: int | None = None

    def still(self) -> Reply:
        """Return that there is no answer yet; what was sent is counted now."""
        self.told = self.down
        return Reply(
            self.client,
            refused="no reply yet: the round does not wait for it",
            bytes_down=self.down,
            arrival=Arrival(open=True),
        )

    def came(self, reply: Reply, size: int) -> Reply:
        """Return the reply with its bytes; one to an earlier round, with that round and the bytes not counted yet."""
        if self.told is not None:
            return replace(reply, bytes_down=self.down - self.told, bytes_up=size, arrival=Arrival(round=self.round))
        return replace(reply, bytes_down=self.down, bytes_up=size, arrival=None)


def key_of(node: Any) -> str:
    """Return what a node is known by as long as it has its key: that key's hash; of one without a key its id."""
    public = bytes(getattr(node, "public_key", b"") or b"")
    return hashlib.sha256(public).hexdigest() if public else f"node-{node.node_id}"


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
    _open: dict[str, Open] = field(default_factory=dict, init=False)  # who still trains, by the id of the message
    _lost: list[Reply] = field(default_factory=list, init=False)  # that nothing comes of training that was open

    def __post_init__(self) -> None:
        self.newcomers = Newcomers(self.grid)

    # ---- who is here

    def present(self, round: int) -> Roster:
        """Return the members that are online and do not train still. Newcomers that have introduced themselves are
        taken in first; nobody is waited for, unless there is a pause.

        A node that was away while it should have trained is given up, and can be asked again a round after it is back.
        Nothing that a client sends counts once it may no longer take part.
        """
        self.look()
        self.admit()
        here, fitting = self._here(), {m.id for m in self.members.fitting(self.check)}
        for name, one in list(self._open.items()):
            one.away |= self._nodes.get(one.client) != one.node
            if one.client not in fitting or (one.away and one.client in self._nodes):
                reason = AWAY if one.client in fitting else OUT
                self._lost.append(Reply(one.client, refused=reason, arrival=Arrival(round=self._open.pop(name).round)))
        busy = {one.client for one in self._open.values()} | {lost.client for lost in self._lost}
        return Roster(m.info for m in here if m.id not in busy)

    def look(self) -> None:
        """See who is online, obey the operator, ask newcomers who they are. Waits while there is a pause."""
        while (orders := self.orders()).paused is not None:
            time.sleep(PAUSE_S)
        self.members.expel(orders.expelled)
        self.online = {key_of(node): node for node in self.grid.get_nodes()}
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

    # ---- the exchange

    def exchange(
        self, round: int, requests: Sequence[Request], deadline_s: float | None, closing: Closing | None
    ) -> Sequence[Reply]:
        """Send each request to its node and return the replies that came in time; a second message only to nodes that
        have lost models which they should hold.

        With ``closing`` it ends once enough sound replies are in, those to earlier rounds' training counted as it says.
        Who has not answered then is said to be open, and a later exchange returns its answer.
        """
        seconds = deadline_s or self.deadline_s
        due = [Open(round, r.client, pack(r, half=self.half), r) for r in requests if r.client in self._nodes]
        self.asked = sorted(one.client for one in due)
        return self._collect(self._ask(due, seconds, closing), seconds, closing)

    def deliver(self) -> None:
        """Send the letters that are left, each to its client if it is online; the others' stay where they are."""
        here = self.present(-1).ids.tolist()
        left = [Open(-1, c, Message("null")) for c in self.letters.waiting if c in here]
        self._collect(self._ask(left, LETTER_S, None), LETTER_S, None)

    def _ask(self, due: Sequence[Open], seconds: float, closing: Closing | None) -> dict[str, Open]:
        """Send messages of one round, and return what is open then, by the id of the message. With ``closing`` they may
        be answered long after ``seconds``.
        """
        members, records, by_node = self.members.by_id(), {}, {}
        for one in due:
            one.node = self._nodes[one.client]
            by_node[one.node], records[one.node] = one, self._packed(one, members)
        life = max(1.0, seconds, 0.0 if closing is None else LASTING_S)
        names = sent(self.grid, records, life, str(due[0].round)) if due else {}
        return {name: by_node[node] for node, name in names.items()}

    def _packed(self, one: Open, members: Mapping[int, Member]) -> Any:
        """Return a message as Flower's records, without the models that the node holds, with the client's letters."""
        job = self.job(members[one.client], self.capacity or len(members))
        letters = self.letters.waiting.get(one.client, [])[:]
        one.letters = len(letters)
        kind = "letter" if one.request is None else "request"
        values = {"kind": kind, "round": one.round, "job": job.to_json()}
        if letters:
            values["letter"] = "\n".join(letters)
        message = one.message if one.again else one.message.without(set(self._held.get(one.client, ())))
        one.down += message.num_bytes
        return to_records(message, **values)

    def _collect(self, waiting: dict[str, Open], seconds: float, closing: Closing | None) -> list[Reply]:
        """Return the replies that come until nobody is left to be waited for, enough are in, or the time is over."""
        old = {} if closing is None else self._open
        begun, sound, asked = time.monotonic(), 0, len(waiting)
        found = [] if closing is None else self._given_up()
        while not _closed(closing, waiting, old, sound, alone=not asked and not found):
            for name, answer in pulled(self.grid, [*waiting, *old]):
                group = waiting if name in waiting else old
                one = group.pop(name, None)
                if one is None:
                    continue
                reply = self._heard(one, answer)
                if reply is None:  # once more, with all of its models
                    one.again = True
                    group |= self._ask([one], max(0.0, seconds - (time.monotonic() - begun)), closing)
                elif one.request is not None:
                    found.append(reply)
                    sound += closing is not None and one.round >= closing.since and _sound(one.request, reply)
            self.newcomers.poll()
            if _closed(closing, waiting, old, sound, alone=not asked and not found):
                break
            waited = time.monotonic() - begun
            if waited > seconds:
                break
            time.sleep(min(SELDOM_S, max(POLL_S, waited / 20)))
        if closing is not None:
            self._open |= waiting
            found += [one.still() for one in waiting.values()]
        return found

    def _given_up(self) -> list[Reply]:
        """Return that nothing will come of training that was open, of nodes that were away or clients that are out."""
        found, self._lost = self._lost, []
        return found

    def _heard(self, one: Open, answer: FlowerMessage | Exception) -> Reply | None:
        """Return the reply in what a node sent, or why there is none; None if it lacks models that it should hold."""
        most = HEADER if one.request is None else min(self.largest, sum(astuple(room(one.request))))
        opened = _guarded(self._opened, answer, most)
        self._warn(one.node, answer)
        if isinstance(opened, str):
            return one.came(Reply(one.client, refused=opened), 0)
        message, beside = opened
        self.letters.delivered({one.client: one.letters})
        if one.request is None:
            return Reply(one.client)
        if beside.get("missing") and not one.again and one.client in self._nodes:
            return None
        self._remember(one.client, one.message)
        read = _guarded(self._read, one.round, one.request, message, beside)
        reply = Reply(one.client, refused=read) if isinstance(read, str) else read
        return one.came(reply, message.num_bytes)

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


def _closed(
    closing: Closing | None, waiting: Mapping[str, Open], old: Mapping[str, Open], sound: int, *, alone: bool
) -> bool:
    """Say whether an exchange need not go on: all have answered, or enough of them soundly.

    Who still trains from before is waited for where that counts and too few have come, and where there is nobody else
    to wait for (``alone``: nobody was asked, and nobody has answered).
    """
    if closing is not None and closing.enough is not None:
        if sound >= closing.enough:
            return True
        if any(one.round >= closing.since for one in old.values()):
            return False
    return not waiting and not (alone and old)


def _sound(request: Request, reply: Reply) -> bool:
    """Say whether a reply is what a training request asked for."""
    size = max((task.start.numel() for task in request.tasks if isinstance(task, Train)), default=0)
    return refusal(request, reply, size) is None


def _guarded(read: Callable[P, T | str], *args: P.args, **more: P.kwargs) -> T | str:
    """The network's one guard: return what ``read`` returns; whatever a client's bytes make it raise is a refusal."""
    try:
        return read(*args, **more)
    except Exception as wrong:  # MemoryError and RecursionError too
        return reading(wrong)
