"""The federation with which a mechanism plays when clients are plain Flower apps.

:class:`PlainFederation` has the methods of :class:`hanse.core.port.Federation`. It turns training and test tasks into
the train and evaluate messages that Flower's own strategies send. It reads the replies by the names in :class:`Keys`.
Other questions are sent as messages of hanse, to apps that are wrapped by :func:`hanse.flower.speaks`.

Replies are untrusted input: whatever goes wrong while one is read becomes a refusal of that client with a reason.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from flwr.app import ConfigRecord, MessageType, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from hanse.core.declared import MOST_METRICS
from hanse.core.port import Closing, Reply, Request, Result, Roster, Task, Test, Tested, Train, Trained
from hanse.federation.check import one_line, room
from hanse.federation.codec import WireError, pack, unpack_reply
from hanse.flower.arrays import ArrayLayout, size_of
from hanse.flower.members import Members
from hanse.flower.message import QUERY, from_records, said_beside, to_records
from hanse.flower.nodes import answers, key_of
from hanse.flower.replies import arrays_of, content_of, guarded, metrics_of, numbers_of, samples_of
from hanse.learning.figures import accuracy_of, loss_of


@dataclass(frozen=True)
class Keys:
    """The names of records and metrics in an app's messages. The defaults are those of Flower's own strategies.

    Attributes:
        arrays: the record of arrays that is sent.
        config: the record of configuration values that is sent.
        weighted_by: the metric of a reply that holds the number of samples.
        loss: the metric of a training reply that holds the loss. Empty: the first metric with "loss" in its name, if
            any.

    Examples:
        >>> Keys(loss="train_loss")
        Keys(arrays='arrays', config='config', weighted_by='num-examples', loss='train_loss')
    """

    arrays: str = "arrays"
    config: str = "config"
    weighted_by: str = "num-examples"
    loss: str = ""


@dataclass
class PlainFederation:
    """The members that are online, with plain Flower apps behind them.

    Attributes:
        grid: Flower's connection to the nodes, or a :class:`hanse.flower.rehearsal.InProcessGrid`.
        members: the register of the nodes that take part.
        form: the app's arrays, as columns of a row.
        keys: the names of records and metrics.
        clients: how many clients there are.
        seed: the run's seed, for random draws of clients that answer questions.
        deadline_s: seconds that an exchange waits, unless the caller gives another number.
        train_config: values that travel with each train message, in addition to "server-round" (counted from 1).
        evaluate_config: values that travel with each evaluate message.
        round: the last round in which somebody was asked to train, from 0. -1: before the first.
        trained: the metrics of sound train replies, by Flower's number of the round.
        tested: the metrics of sound evaluate replies, by Flower's number of the round.

    Examples:
        The nodes of a plain Flower app are in this process. Here the app sends its arrays back:

        >>> import numpy as np
        >>> from flwr.app import Array, ArrayRecord
        >>> from hanse.flower.members import Hello
        >>> from hanse.flower.rehearsal import InProcessGrid
        >>> grid = InProcessGrid({100: lambda message, context: FlowerMessage(message.content, reply_to=message)})
        >>> members = Members()
        >>> members.register([(key_of(node), Hello(0, (), None)) for node in grid.get_nodes()])
        >>> form = ArrayLayout.of(ArrayRecord({"w": Array(np.zeros(2, np.float32))}))
        >>> PlainFederation(grid, members, form, Keys(), clients=1, seed=0, deadline_s=10.0).present(0).ids
        array([0])
    """

    grid: Grid
    members: Members
    form: ArrayLayout
    keys: Keys
    _: KW_ONLY
    clients: int
    seed: int
    deadline_s: float
    train_config: Mapping[str, Any] = field(default_factory=dict)
    evaluate_config: Mapping[str, Any] = field(default_factory=dict)
    round: int = field(default=-1, init=False)
    trained: dict[int, list[MetricRecord]] = field(default_factory=dict, init=False)
    tested: dict[int, list[MetricRecord]] = field(default_factory=dict, init=False)
    _samples: dict[int, int] = field(default_factory=dict, init=False)  # client -> what it last said it trained on

    def present(self, round: int) -> Roster:
        """Return the members that are online, by ascending id.

        A client's number of samples is the number that it reported when it last trained. Before that it is 1, because a
        plain app is not asked earlier.
        """
        here = self._nodes()
        known = sorted((m for m in self.members.by_key.values() if m.id in here), key=lambda m: m.id)
        return Roster(replace(m.info, num_samples=self._samples.get(m.id, 1)) for m in known)

    def _nodes(self) -> dict[int, int]:
        """Return Flower's ids of the members that are online, by client id."""
        online = {key_of(node): int(node.node_id) for node in self.grid.get_nodes()}
        return {m.id: online[m.key] for m in self.members.by_key.values() if m.key in online}

    def exchange(
        self, round: int, requests: Sequence[Request], deadline_s: float | None, closing: Closing | None
    ) -> Sequence[Reply]:
        """Send each request's tasks, and return the replies of the clients that answered all of theirs in time.

        A request may take several messages: one for each seat that trains, one for each test, and one for all other
        questions. If one of its answers is refused, the whole reply is refused.

        Args:
            round: the round's number, from 0.
            requests: one for each client. A client that is not online is left out.
            deadline_s: the most seconds to wait. None: ``self.deadline_s``.
            closing: not used. Rounds wait for everybody until the deadline.

        Returns:
            The replies, in the order of the requests.
        """
        nodes = self._nodes()
        if any(isinstance(task, Train) for r in requests for task in r.tasks):
            self.round = round
        due = [(r, tasks) for r in requests if r.client in nodes for tasks in _messages(r)]
        seconds = deadline_s or self.deadline_s
        messages = [self._message(round, r, tasks, nodes[r.client], seconds) for r, tasks in due]
        ids = list(self.grid.push_messages(messages)) if messages else []
        waiting = {name: out for name, out in zip(ids, zip(due, messages, strict=True), strict=False) if name}
        found: dict[int, dict[int, Result | str]] = {}  # by client, then by the task's id(): a result or a refusal
        down, up = Counter[int](), Counter[int]()
        for ((request, tasks), message), answer in answers(self.grid, waiting, seconds):
            said = guarded(self._read, round, request, tasks, answer)
            results = [said] * len(tasks) if isinstance(said, str) else said
            found.setdefault(request.client, {}).update(zip(map(id, tasks), results, strict=True))
            down[request.client] += _weight(message)
            if not isinstance(said, str):
                up[request.client] += _weight(answer)
        replies = [_put_together(r, found.get(r.client, {})) for r in requests]
        return [
            replace(reply, bytes_down=down[reply.client], bytes_up=up[reply.client])
            for reply in replies
            if reply is not None
        ]

    # ---- one message

    def _message(
        self, round: int, request: Request, tasks: tuple[Task, ...], node: int, seconds: float
    ) -> FlowerMessage:
        """Return the message that asks ``tasks`` of a request: one train or test task, or all of the others."""
        first = tasks[0]
        if _is_plain(first):
            assert isinstance(first, Train | Test)
            kind = MessageType.TRAIN if isinstance(first, Train) else MessageType.EVALUATE
            model = first.start if isinstance(first, Train) else first.model
            config = self.train_config if isinstance(first, Train) else self.evaluate_config
            number = round + 1 if isinstance(first, Train) else round  # a test follows its round
            content = RecordDict({
                self.keys.arrays: self.form.arrays(model),
                self.keys.config: ConfigRecord({**config, "server-round": number}),
            })  # fmt: skip
        else:
            kind, content = QUERY, self._question(round, Request(request.client, tasks))
        # Flower refuses a message that lives for no time at all
        life = max(1.0, seconds)
        return FlowerMessage(content, dst_node_id=node, message_type=kind, ttl=life, group_id=str(round + 1))

    def _question(self, round: int, request: Request) -> RecordDict:
        """Return questions as a message of hanse, with what the app needs to answer by its own evaluate function."""
        beside = {
            "round": round, "clients": self.clients, "seed": self.seed, "arrayrecord-key": self.keys.arrays,
            "configrecord-key": self.keys.config, "weighted-by-key": self.keys.weighted_by,
            "config": json.dumps({**self.evaluate_config, "server-round": round + 1}),
        }  # fmt: skip
        return self.form.into(to_records(pack(request), kind="request", **beside))

    def _read(
        self, round: int, request: Request, tasks: tuple[Task, ...], answer: FlowerMessage | Exception
    ) -> Sequence[Result | str]:
        """Return each task's result. This may raise anything, and :func:`guarded` turns that into a refusal."""
        content, first = content_of(answer, "its app"), tasks[0]
        if isinstance(first, Train):
            return [self._trained(round, request.client, first, content)]
        if isinstance(first, Test) and _is_plain(first):
            return [self._tested(round, first, content)]
        return self._said(request, tasks, content)

    def _trained(self, round: int, client: int, task: Train, content: RecordDict) -> Trained:
        """Return the result of a train task. Raises WireError for a reply that is not a sound update."""
        said, arrays = metrics_of(content), arrays_of(content)
        numbers, row = numbers_of(said), self.form.row(arrays)
        # an array more than were sent would be lost in the mix without a word
        if odd := sorted(set(arrays) - {*self.form.names, *self.form.fixed})[:3]:
            raise WireError(f"other arrays than those that were sent ({', '.join(odd)})"[:200])
        samples = self._samples_in(said)
        loss = numbers.get(self.keys.loss) if self.keys.loss else loss_of(numbers)
        if loss is None:
            raise WireError(f"its metrics have no {self.keys.loss!r}")
        self._samples[client] = int(samples)
        self.trained.setdefault(round + 1, []).append(said)
        finite = [(n, x) for n, x in numbers.items() if n != self.keys.weighted_by and math.isfinite(x)]
        metrics = dict(finite[:MOST_METRICS])
        return Trained(task.seat, row, samples, None if math.isnan(loss) else loss, 0, metrics=metrics)

    def _tested(self, round: int, task: Test, content: RecordDict) -> Tested:
        """Return the result of a test task. Raises WireError for a reply without a loss."""
        said = metrics_of(content)
        numbers = numbers_of(said)
        loss, accuracy, samples = loss_of(numbers), accuracy_of(numbers), self._samples_in(said)
        if math.isnan(loss):
            raise WireError("its metrics have no loss, which a test is recorded by")
        self.tested.setdefault(round, []).append(said)
        return Tested(task.name, loss, None if math.isnan(accuracy) else accuracy, int(samples))

    def _samples_in(self, metrics: MetricRecord) -> float:
        """Return the number of samples that a reply states. Raises WireError if there is none, or no such number."""
        found = samples_of(metrics, self.keys.weighted_by)
        if found is None:
            raise WireError(f"its metrics have no {self.keys.weighted_by!r}, the number of its samples")
        return found

    def _said(self, request: Request, tasks: tuple[Task, ...], content: RecordDict) -> Sequence[Result | str]:
        """Return the results of the questions that a wrapped app has answered. Raises WireError if it refuses."""
        message, values = from_records(content)
        beside = said_beside(values)
        if refused := beside.get("refused"):
            raise WireError(one_line(refused))
        reply = unpack_reply(message, room(Request(request.client, tasks)))
        if reply.refused is not None or len(reply.results) != len(tasks):
            raise WireError(one_line(reply.refused or f"{len(reply.results)} results for {len(tasks)} questions"))
        return reply.results


def _is_plain(task: Task) -> bool:
    """Say whether a train or evaluate message can ask this task.

    The test of a mixture cannot: the client makes that for itself from several models.
    """
    return isinstance(task, Train) or (isinstance(task, Test) and task.mixture is None)


def _messages(request: Request) -> list[tuple[Task, ...]]:
    """Return a request's tasks by the messages that ask them: each train or test task alone, all others together."""
    rest = tuple(task for task in request.tasks if not _is_plain(task))
    return [*((task,) for task in request.tasks if _is_plain(task)), *([rest] if rest else [])]


def _put_together(request: Request, found: Mapping[int, Result | str]) -> Reply | None:
    """Return the reply to a request; None if something of it was not answered."""
    said = [found.get(id(task)) for task in request.tasks]
    refused = next((one for one in said if isinstance(one, str)), None)
    if refused is not None:
        return Reply(request.client, refused=refused)
    results = tuple(one for one in said if one is not None and not isinstance(one, str))
    return Reply(request.client, results) if len(results) == len(said) else None


def _weight(message: FlowerMessage | Exception) -> int:
    """Return the bytes of all arrays in a message."""
    assert not isinstance(message, Exception)
    return sum(map(size_of, message.content.array_records.values()))
