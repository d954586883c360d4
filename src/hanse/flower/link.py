"""The exchange of a round over Flower: each client's request as a message, and its answer as a reply.

:class:`FlowerFederation` is the federation that the round loop uses when clients are nodes on a network. It has the
methods ``present`` and ``exchange`` of :class:`hanse.core.port.Federation`. It decides who may take part (with
:mod:`~hanse.flower.members` and :mod:`~hanse.flower.newcomers`) and sends each client its own request. It then
looks for answers at short intervals until all have come or the time is up.

Three things save time or traffic. A node keeps the last models that it was sent, so requests leave them out. A node
that has lost them says so, and gets all of them again. Receipts travel with requests. If a round need not wait for
everybody, messages stay open and are answered in a later round.

What nodes send is untrusted input. Whatever goes wrong while it is read becomes a refusal of that one client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, astuple, dataclass, field, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from hanse.core.port import Arrival, Call, Closing, Reply, Request, Roster, Train, Trained
from hanse.federation.check import HEADER, one_line, refusal, room
from hanse.federation.codec import Message, pack, unpack_reply
from hanse.federation.node import KEPT
from hanse.flower.members import Check, Member, Members, Orders, kind, majority
from hanse.flower.message import LARGEST, Beside, from_records, said_beside, to_records
from hanse.flower.newcomers import GONE, LOG, Newcomers
from hanse.flower.nodes import content_of, key_of, named, pause, pulled, read_safely, sent
from hanse.flower.receipts import Letters
from hanse.flower.witnesses import ShownHeads

AWAY = "its node was away meanwhile"
OUT = "its client may no longer take part"
HELPS = (
    "it is asked again once it says that it is there. If its log shows that it trains, federation.deadline_s is too "
    "short for it; if its log stands still, its owner starts it again"
)

PAUSE_S = 0.5  # seconds between two looks of a paused server at the operator's orders
LETTER_S = 60.0  # seconds that the run's end waits for the last receipts to be taken
# seconds that a message stays open where late updates are accepted; 12 hours is Flower's own default for a message
LASTING_S = 12 * 3600.0


@dataclass
class Open:
    """A message to a client that has not been answered yet.

    Attributes:
        round: the round in which the message was sent. -1: it is a letter after the last round.
        client: the client's id.
        message: the request as hanse packs it, with all of its models.
        request: what was asked. None: the message only carries receipts.
        node: Flower's id of the node that the message went to, and when that node last came online, as of the message.
        again: whether the message was sent a second time, with all models.
        away: whether the node has been offline since the message was sent.
        down: bytes sent for the message so far.
        letters: how many receipts travel with the message.
        shown: what the message shows of the books.
        told: how many of the bytes in ``down`` were already counted by an earlier round that ended without waiting.
            None: no round has counted any.

    Examples:
        >>> from hanse.core.port import Ask
        >>> request = Request(2, (Ask("stay", {}),))
        >>> one = Open(round=0, client=2, message=pack(request), request=request, down=100)
        >>> one.still().refused
        'no reply yet: the round does not wait for it'
    """

    round: int
    client: int
    message: Message
    request: Request | None = None
    node: tuple[int, str] = (0, "")
    again: bool = False
    away: bool = False
    down: int = 0
    letters: int = 0
    shown: dict[str, Any] = field(default_factory=dict)
    told: int | None = None

    def still(self) -> Reply:
        """Return a reply that says there is no answer yet, and count the bytes sent so far in this round."""
        self.told = self.down
        return Reply(
            self.client,
            refused="no reply yet: the round does not wait for it",
            bytes_down=self.down,
            arrival=Arrival(open=True),
        )

    def came(self, reply: Reply, size: int) -> Reply:
        """Return ``reply`` with its bytes on the wire.

        If a round has ended without waiting for this reply, the reply also names that round, and only bytes not yet
        counted are counted here.

        Args:
            reply: the answer, sound or refused.
            size: how many bytes came.
        """
        if self.told is not None:
            return replace(reply, bytes_down=self.down - self.told, bytes_up=size, arrival=Arrival(round=self.round))
        return replace(reply, bytes_down=self.down, bytes_up=size, arrival=None)


@dataclass
class FlowerFederation:
    """The members that are online, as the federation of a run.

    Attributes:
        grid: Flower's connection to the nodes, or a :class:`hanse.flower.in_process.InProcessGrid`.
        members: the register of participants.
        key: the operator's key, which signs every message to a node (:mod:`hanse.flower.signing`).
        deadline_s: how many seconds an exchange waits if the experiment sets no deadline. A dead node then loses its
            seat in the round, and does not end the run.
        capacity: for how many client ids the mechanism was built. Members with higher ids wait for another run. 0:
            there is no bound.
        half: whether models travel as 16-bit floats.
        orders: a function that returns the operator's orders so far (:class:`hanse.flower.members.Orders`).
        letters: receipts that participants have not acknowledged; they travel with the next request to each of them.
        shown: the heads of the books that go with each request.
        check: a function that returns why a participant's samples do not fit the experiment, or None if they do.
        agreement: the hash of the agreement that every request names.
        unsent: a function that returns the digest of the frozen parameters that a member is not sent.
        tells_leavers: whether expelled members are sent what waits for them at the end.
        leaves: takes a client's word that it leaves the run (:func:`hanse.flower.leave.take_leave`).
        asked: ids of the clients asked in the last exchange, ascending.
        newcomers: nodes that are online but not members yet, or no longer: those that are silent.
        online: the nodes that were online at the last look, by key.
        silent: clients whose node has let a deadline pass, and when that node had come online. They are asked nothing,
            so that nobody waits for them twice, until they have said again who they are or their node has come back.
    """

    grid: Grid
    members: Members
    key: Ed25519PrivateKey
    _: KW_ONLY
    deadline_s: float = 3600.0
    capacity: int = 0
    half: bool = False
    orders: Callable[[], Orders] = Orders
    letters: Letters = field(default_factory=Letters)
    shown: ShownHeads = field(default_factory=ShownHeads)
    check: Check = lambda said: None
    agreement: str = ""
    unsent: Callable[[Member], str] = lambda member: ""
    tells_leavers: bool = True
    leaves: Callable[[int, str], None] = lambda client, word: None
    asked: list[int] = field(default_factory=list, init=False)
    newcomers: Newcomers = field(init=False)
    online: dict[str, Any] = field(default_factory=dict, init=False)
    silent: dict[int, str] = field(default_factory=dict, init=False)
    _nodes: dict[int, tuple[int, str]] = field(default_factory=dict, init=False)  # client -> node, online since when
    _paused_s: float = field(default=0.0, init=False)
    _failed: set[int] = field(default_factory=set, init=False)  # nodes whose failure was logged
    _held: dict[int, list[str]] = field(default_factory=dict, init=False)  # client -> hashes it keeps, oldest first
    _open: dict[str, Open] = field(default_factory=dict, init=False)  # messages of earlier rounds, by Flower's id
    _lost: list[Reply] = field(default_factory=list, init=False)  # refusals of open training, for the next exchange

    def __post_init__(self) -> None:
        self.newcomers = Newcomers(self.grid, self.key, self.agreement)

    # ---- who is here

    def present(self, round: int) -> Roster:
        """Return the members that can be asked in this round: those online that no longer train for an earlier round.

        Newcomers that have introduced themselves are registered first. The call returns at once, unless the operator
        has ordered a pause, or nobody is online: a round is not played with nobody while the deadline lasts. It also
        gives up open messages of earlier rounds that can no longer be answered. There are
        two kinds: messages to a node that was offline while it should have trained (it can be asked again from the next
        round on), and messages to a client that may no longer take part. The next exchange reports these.
        """
        begun = self.clock()
        while not (here := self._looked()) and round >= 0 and self.clock() < begun + self.deadline_s:
            if not self.members.fitting(self.check):  # nobody can come
                break
            if self.clock() - begun < PAUSE_S:
                LOG.warning("round %d: no member is online; it waits for one", round)
            time.sleep(PAUSE_S)
        fitting = {m.id for m in self.members.fitting(self.check)}
        for name, one in list(self._open.items()):
            # a node that comes back at once is never seen offline: only the time at which it came online tells
            one.away |= self._nodes.get(one.client) != one.node
            if one.client not in fitting or (one.away and one.client in self._nodes):
                reason = AWAY if one.client in fitting else OUT
                self._lost.append(Reply(one.client, refused=reason, arrival=Arrival(round=self._open.pop(name).round)))
        busy = {one.client for one in self._open.values()} | {lost.client for lost in self._lost}
        return Roster(m.info for m in here if m.id not in busy)

    def _looked(self) -> list[Member]:
        """Return the members that are online and may take part, as of now."""
        self.look()
        self.admit()
        return self._here()

    def look(self) -> None:
        """See who is online, follow the operator's orders, and ask newcomers who they are.

        This returns at once, unless the operator has ordered a pause. Then it waits until the pause is over.
        """
        begun = time.monotonic()
        if (orders := self.orders()).paused is not None:
            LOG.warning("is paused (%s) until %s", one_line(orders.paused), orders.resume)
        while (orders := self.orders()).paused is not None:
            time.sleep(PAUSE_S)
        self._paused_s += time.monotonic() - begun
        self.members.expel(orders.expelled)
        self.online = {key_of(node): node for node in self.grid.get_nodes()}
        for member in [m for m in self.members.by_key.values() if m.key in self.online and m.id in self.silent]:
            if self._came(member) != self.silent[member.id]:  # it was started anew
                del self.silent[member.id]
        # expelled members and those who take part have nothing to introduce; a member whose data did not fit is asked
        # again, and so is one whose node is silent
        known = {m.key for m in self.members.by_key.values() if m.expelled is not None}
        known |= {m.key for m in self.members.fitting(self.check) if m.id not in self.silent}
        self.newcomers.meet({key: node for key, node in self.online.items() if key not in known})

    def clock(self) -> float:
        """Return a time in seconds that stands still during a pause."""
        return time.monotonic() - self._paused_s

    def admit(self) -> None:
        """Register the newcomers whose samples fit the experiment, and refuse the others with a reason.

        All members must have samples of the same kind. If there are no members yet, the most frequent kind among the
        newcomers counts. Ids follow the order that the newcomers state (their partition), and then their keys. They
        therefore do not depend on which node was faster.
        """
        said = dict(self.newcomers.said)
        for key, reason in [(k, r) for k, hello in said.items() if (r := self.check(hello)) is not None]:
            self.newcomers.refuse(key, reason)
            del said[key]
        new = sorted(said.items(), key=lambda item: (item[1].order, item[0]))
        like = majority(self.members.fitting(self.check)) or majority(hello for _, hello in new)
        for key, hello in new:
            if kind(hello) != like:
                self.newcomers.refuse(key, f"its samples are {kind(hello)}; those of the members are {like}")
        taken = [(key, hello) for key, hello in new if kind(hello) == like]
        self.members.register(taken, self.agreement)
        self.newcomers.forget(key for key, _ in taken)
        for key, _ in taken:
            self.silent.pop(self.members.by_key[key].id, None)

    def here(self) -> int:
        """Return how many members are online, as of the last look."""
        return len(self._here())

    def _here(self, members: Sequence[Member] | None = None) -> list[Member]:
        """Return those of the members, or of all that may take part, that are online, and note their nodes."""
        fitting = self.members.fitting(self.check) if members is None else members
        room = self.capacity or len(self.members.by_key)
        here = [m for m in fitting if m.key in self.online and m.id < room and m.id not in self.silent]
        self._nodes = {m.id: (int(self.online[m.key].node_id), self._came(m)) for m in here}
        return here

    def _came(self, member: Member) -> str:
        """Return when the node of a member that is online came online."""
        return str(getattr(self.online[member.key], "last_activated_at", ""))

    # ---- the exchange

    def exchange(self, call: Call) -> Sequence[Reply]:
        """Send each request to its client's node and return the replies that came in time.

        A node that has lost models that it should still have is sent its request a second time, now with all models.

        Args:
            call: what is asked. A client whose node is not online, or silent, is left out. Without a deadline of its
                own, ``self.deadline_s`` holds. Without ``closing`` it waits for everybody. Otherwise the exchange ends
                as soon as ``closing.enough`` sound replies are in, including those to rounds from ``closing.since`` on.
                Clients that are still training get a reply whose ``arrival`` is open. A later exchange returns their
                answers.

        Returns:
            The replies, sound or refused, in order of arrival. A client that did not answer in time has none.
        """
        seconds = call.deadline_s or self.deadline_s
        here = self._nodes.keys() - self.silent.keys()
        due = [Open(call.round, r.client, pack(r, half=self.half), r) for r in call.requests if r.client in here]
        self.asked = sorted(one.client for one in due)
        return self._collect(self._ask(due, seconds, call.closing), seconds, call.closing)

    def deliver(self) -> None:
        """Send the remaining receipts to the clients that are online, and wait for at most a minute.

        A client that has left gets its own, too, whatever was agreed since, unless these are withheld. Receipts of
        absent clients stay in the register of letters.
        """
        self.look()
        due = [m for m in self.members.by_key.values() if m.id in self.letters.waiting]
        due = [m for m in due if (self.tells_leavers if m.expelled is not None else self.check(m) is None)]
        left = [Open(-1, m.id, Message("null")) for m in self._here(due)]
        self._collect(self._ask(left, LETTER_S, None), LETTER_S, None)

    def _ask(self, due: Sequence[Open], seconds: float, closing: Closing | None) -> dict[str, Open]:
        """Send messages of one round and return them by Flower's ids of the messages. Those that Flower did not take
        are left out.

        With ``closing`` a message may still be answered long after ``seconds``.
        """
        members, records, by_node = self.members.by_id(), {}, {}
        for one in due:
            node, _ = one.node = self._nodes[one.client]
            by_node[node], records[node] = one, self._packed(one, members)
        life = max(1.0, seconds, 0.0 if closing is None else LASTING_S)
        names = sent(self.grid, self.key, records, life, str(due[0].round)) if due else {}
        return {name: by_node[node] for node, name in names.items()}

    def _packed(self, one: Open, members: Mapping[int, Member]) -> Any:
        """Return a message as Flower's records: without the models that the node keeps, with the client's receipts."""
        letters = self.letters.waiting.get(one.client, [])
        one.letters = len(letters)
        kind, to = "letter" if one.request is None else "request", members[one.client]
        values = {"kind": kind, "round": one.round, "client": one.client, "agreement": to.agreement or self.agreement}
        if unsent := self.unsent(to):
            values["unsent"] = unsent
        if letters:
            values["letter"] = "\n".join(letters)
        one.shown = self.shown.to(one.client)
        values |= one.shown
        message = one.message if one.again else one.message.without(set(self._held.get(one.client, ())))
        one.down += message.num_bytes
        return to_records(message, **values)

    def _collect(self, waiting: dict[str, Open], seconds: float, closing: Closing | None) -> list[Reply]:
        """Return the replies that come until all have answered, enough sound ones are in, or ``seconds`` are over."""
        # messages of earlier rounds; only where late updates are accepted
        old = {} if closing is None else self._open
        begun, sound, asked = time.monotonic(), 0, len(waiting)
        found, self._lost = ([], self._lost) if closing is None else (self._lost, [])
        while not _closed(closing, waiting, old, sound, alone=not asked and not found):
            for name, answer in pulled(self.grid, [*waiting, *old]):
                group = waiting if name in waiting else old
                one = group.pop(name, None)
                if one is None:
                    continue
                reply = self._heard(one, answer)
                if reply is None:  # it has lost models: once more, with all of them
                    # it has only what is left of the time
                    group |= self._ask([one], max(0.0, seconds - (time.monotonic() - begun)), closing)
                elif one.request is not None:
                    found.append(reply)
                    counts = closing is not None and one.round >= closing.since
                    sound += counts and refusal(one.request, reply) is None
            # while this waits anyway, newcomers' answers are heard too
            self.newcomers.poll()
            if _closed(closing, waiting, old, sound, alone=not asked and not found):
                break
            waited = time.monotonic() - begun
            if waited > seconds:
                break
            pause(waited)
        if closing is not None:
            self._open |= waiting
            found += [one.still() for one in waiting.values()]
        for one in waiting.values() if closing is None else ():
            self._missed(one, f"did not answer within {seconds:.0f} s")
        return found

    def _heard(self, one: Open, answer: FlowerMessage | Exception) -> Reply | None:
        """Return the reply in a node's answer, or a refusal; None if the node lacks models that it should keep."""
        # no more bytes than the tasks of this request can need, so that nobody fills the server's memory
        most = HEADER if one.request is None else min(LARGEST, sum(astuple(room(one.request))))
        opened = read_safely(self._opened, answer, most)
        self._warn(one, answer)
        if isinstance(opened, str):
            return one.came(Reply(one.client, refused=opened), 0)
        message, beside = opened
        if word := beside.get("leaves"):
            self.leaves(one.client, word)
        # an answer acknowledges the receipts that travelled with the question; a node that refused the message may not
        # have kept them, and is sent them again (it writes none twice)
        if not beside.get("refused") and "saw" not in beside:
            self.letters.delivered(one.client, one.letters)
        lacks = self.shown.heard(one.client, one.shown, beside) or bool(beside.get("missing"))
        if lacks and not one.again and one.client in self._nodes:
            one.again = True
            return None
        if one.request is None:
            return Reply(one.client)
        # which models the node keeps after this message: as it counts itself, the last KEPT, oldest first
        held = [h for h in self._held.get(one.client, []) if h not in one.message.arrays]
        self._held[one.client] = [*held, *one.message.arrays][-KEPT:]
        read = read_safely(self._read, one.round, one.request, message, beside)
        reply = Reply(one.client, refused=read) if isinstance(read, str) else read
        return one.came(reply, message.num_bytes)

    def _read(self, round: int, request: Request, message: Message, beside: Beside) -> Reply | str:
        """Return the reply in a message, or why it is refused.

        The message is untrusted: this may raise anything, and :func:`read_safely` turns that into a refusal.
        """
        if refused := beside.get("refused"):
            return one_line(refused)
        if beside.get("round") != round:
            return f"answer for round {beside.get('round')}"
        reply = unpack_reply(message, room(request))
        if reply.client != request.client:
            return "not a reply of this client"
        # a private row never leaves its client, which sends none: the row that the server has in its place stays as it
        # was
        starts = {t.seat: t.start for t in request.tasks if isinstance(t, Train) and t.private}
        results = tuple(
            replace(r, row=starts[r.seat]) if isinstance(r, Trained) and r.seat in starts else r for r in reply.results
        )
        return replace(reply, results=results)

    def _warn(self, one: Open, reply: FlowerMessage | Exception) -> None:
        """Log that a member's node has failed, at once and only once for each node. The round may wait for others for
        long.
        """
        if isinstance(reply, Exception) or not reply.has_error():
            return
        if reply.error.code in GONE:
            self._missed(one, "did not take its message in time")
        elif one.node[0] not in self._failed:
            self._failed.add(one.node[0])
            LOG.warning("%s: its node failed: %s", self.who(one.client), one_line(str(reply.error.reason)))

    def _missed(self, one: Open, what: str) -> None:
        """Ask a client nothing more for now, because its node let a request pass, and say what helps."""
        if one.request is not None and one.client not in self.silent:
            self.silent[one.client] = one.node[1]
            LOG.warning("%s: %s; %s", self.who(one.client), what, HELPS)

    def who(self, client: int) -> str:
        """Return a client in words: its number and name, its node's id, key and registered name."""
        member = self.members.by_id()[client]
        node = self.online.get(member.key)
        where = f"key {member.key}, not online" if node is None else named(member.key, node)
        return f"client {client} '{one_line(member.name)}', {where}"

    def _opened(self, reply: FlowerMessage | Exception, largest: int) -> tuple[Message, Beside]:
        """Return the message and the plain values in a node's answer.

        The answer is untrusted: this may raise anything, and :func:`read_safely` turns that into a refusal.
        """
        message, values = from_records(content_of(reply, "its node"), largest)
        return message, said_beside(values)


def _closed(
    closing: Closing | None, waiting: Mapping[str, Open], old: Mapping[str, Open], sound: int, *, alone: bool
) -> bool:
    """Say whether an exchange may end: everybody has answered, or enough of them soundly.

    Args:
        closing: what the round needs, or None.
        waiting: this round's messages that are open.
        old: earlier rounds' messages that are open.
        sound: how many sound replies are in that count.
        alone: whether nobody was asked in this round and nobody has answered. Earlier rounds' clients are then waited
            for, as there is nothing else to do.
    """
    if closing is not None and closing.enough is not None:
        if sound >= closing.enough:
            return True
        # too few are in, and a late reply would count
        if any(one.round >= closing.since for one in old.values()):
            return False
    return not waiting and not (alone and old)
