"""The federation with which a mechanism plays when clients are plain Flower apps.

:class:`PlainFederation` has the methods of :class:`hanse.core.port.Federation`. It turns training and test tasks into
the train and evaluate messages that Flower's own strategies send. It reads the replies by the names in :class:`Keys`.
A plain app answers no other question.

Replies are untrusted input: whatever goes wrong while one is read becomes a refusal of that client with a reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from hanse.base.errors import UserError
from hanse.core.declared import MOST_METRICS
from hanse.core.port import Call, Reply, Result, Roster, Task, Test, Tested, Train, Trained
from hanse.federation.check import refusal
from hanse.federation.codec import WireError
from hanse.flower.arrays import ArrayLayout, size_of
from hanse.flower.members import Members
from hanse.flower.nodes import answers, arrays_of, content_of, key_of, metrics_of, numbers_of, read_safely, samples_of
from hanse.learning.figures import accuracy_of, loss_of

Said = tuple[Result, MetricRecord]  # the result of a task, and all that came with it


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
        grid: Flower's connection to the nodes, or a :class:`hanse.flower.in_process.InProcessGrid`.
        members: the register of the nodes that take part.
        form: the app's arrays, as columns of a row.
        keys: the names of records and metrics.
        clients: how many clients there are.
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
        >>> from hanse.flower.in_process import InProcessGrid
        >>> grid = InProcessGrid({100: lambda message, context: FlowerMessage(message.content, reply_to=message)})
        >>> members = Members()
        >>> members.register([(key_of(node), Hello(0, (), None)) for node in grid.get_nodes()])
        >>> form = ArrayLayout.of(ArrayRecord({"w": Array(np.zeros(2, np.float32))}))
        >>> PlainFederation(grid, members, form, Keys(), clients=1, deadline_s=10.0).present(0).ids
        array([0])
    """

    grid: Grid
    members: Members
    form: ArrayLayout
    keys: Keys
    _: KW_ONLY
    clients: int
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
        members = self.members.by_id()
        here = (members[client].info for client in sorted(self._nodes()))
        return Roster(replace(one, num_samples=self._samples.get(one.id, 1)) for one in here)

    def _nodes(self) -> dict[int, int]:
        """Return Flower's ids of the members that are online, by client id."""
        online = {key_of(node): int(node.node_id) for node in self.grid.get_nodes()}
        return {m.id: online[m.key] for m in self.members.by_key.values() if m.key in online}

    def exchange(self, call: Call) -> Sequence[Reply]:
        """Send each request's tasks, and return the replies of the clients that answered all of theirs in time.

        A request may take several messages: one for each seat that trains, and one for each test. If one of its answers
        is refused, the whole reply is refused.

        Args:
            call: what is asked. A client that is not online is left out. Rounds wait for everybody until the deadline,
                its own or else ``self.deadline_s``.

        Returns:
            The replies, in the order of the requests.
        """
        nodes, round, requests = self._nodes(), call.round, call.requests
        if any(isinstance(task, Train) for r in requests for task in r.tasks):
            self.round = round
        due = [(r.client, task) for r in requests if r.client in nodes for task in r.tasks]
        seconds = call.deadline_s or self.deadline_s
        messages = [self._message(round, task, nodes[client], seconds) for client, task in due]
        ids = list(self.grid.push_messages(messages)) if messages else []
        waiting = {name: out for name, out in zip(ids, zip(due, messages, strict=True), strict=False) if name}
        found: dict[tuple[int, int], Said | str] = {}  # by client and the task's id(): what came, or a refusal
        down, up = Counter[int](), Counter[int]()
        for ((client, task), message), answer in answers(self.grid, waiting, seconds):
            said = found[client, id(task)] = read_safely(self._read, client, task, answer)
            down[client] += _weight(message)
            if not isinstance(said, str):
                up[client] += _weight(answer)
        replies = []
        for request in requests:
            came = [found.get((request.client, id(task))) for task in request.tasks]
            wrong = next((one for one in came if isinstance(one, str)), None)
            sound = [one for one in came if isinstance(one, tuple)]
            if wrong is None and len(sound) < len(came):  # something of it was not answered
                continue
            results = () if wrong is not None else tuple(result for result, _ in sound)
            reply = Reply(request.client, results, wrong, bytes_down=down[request.client], bytes_up=up[request.client])
            replies.append(reply)
            if refusal(request, reply) is None:  # what the loop will refuse is in no figure
                for task, (_, metrics) in zip(request.tasks, sound, strict=True):
                    kind, number = (self.trained, round + 1) if isinstance(task, Train) else (self.tested, round)
                    kind.setdefault(number, []).append(metrics)
        return replies

    # ---- one message

    def _message(self, round: int, task: Task, node: int, seconds: float) -> FlowerMessage:
        """Return the message that asks for a training or a test. Raises UserError for a task that is neither, or the
        test of a mixture, which the client makes from several models.
        """
        if not (isinstance(task, Train) or (isinstance(task, Test) and task.mixture is None)):
            raise UserError(f"{type(task).__name__}: is asked of clients, and a plain app trains and evaluates only")
        kind = MessageType.TRAIN if isinstance(task, Train) else MessageType.EVALUATE
        model = task.start if isinstance(task, Train) else task.model
        config = self.train_config if isinstance(task, Train) else self.evaluate_config
        number = round + 1 if isinstance(task, Train) else round  # a test follows its round
        content = RecordDict({
            self.keys.arrays: self.form.arrays(model),
            self.keys.config: ConfigRecord({**config, "server-round": number}),
        })  # fmt: skip
        # Flower refuses a message that lives for no time at all
        life = max(1.0, seconds)
        return FlowerMessage(content, dst_node_id=node, message_type=kind, ttl=life, group_id=str(round + 1))

    def _read(self, client: int, task: Task, answer: FlowerMessage | Exception) -> Said:
        """Return what came of a task. This may raise anything, and :func:`read_safely` turns that into a refusal."""
        content = content_of(answer, "its app")
        metrics = metrics_of(content)
        if isinstance(task, Train):
            return self._trained(client, task, metrics, arrays_of(content)), metrics
        assert isinstance(task, Test)  # or it was not sent
        return self._tested(task, metrics), metrics

    def _trained(self, client: int, task: Train, said: MetricRecord, arrays: ArrayRecord) -> Trained:
        """Return the result of a train task. Raises WireError for a reply that is not a sound update."""
        numbers, row = numbers_of(said), self.form.row(arrays)
        # an array more than were sent would be lost in the mix without a word
        if odd := sorted(set(arrays) - {*self.form.names, *self.form.fixed})[:3]:
            raise WireError(f"other arrays than those that were sent ({', '.join(odd)})"[:200])
        samples = self._samples_in(said)
        loss = numbers.get(self.keys.loss) if self.keys.loss else loss_of(numbers)
        if loss is None:
            raise WireError(f"its metrics have no {self.keys.loss!r}")
        self._samples[client] = int(samples)
        finite = [(n, x) for n, x in numbers.items() if n != self.keys.weighted_by and math.isfinite(x)]
        metrics = dict(finite[:MOST_METRICS])
        return Trained(task.seat, row, samples, None if math.isnan(loss) else loss, 0, metrics=metrics)

    def _tested(self, task: Test, said: MetricRecord) -> Tested:
        """Return the result of a test task. Raises WireError for a reply without a loss."""
        numbers = numbers_of(said)
        loss, accuracy, samples = loss_of(numbers), accuracy_of(numbers), self._samples_in(said)
        if math.isnan(loss):
            raise WireError("its metrics have no loss, which a test is recorded by")
        return Tested(task.name, loss, None if math.isnan(accuracy) else accuracy, int(samples))

    def _samples_in(self, metrics: MetricRecord) -> float:
        """Return the number of samples that a reply states. Raises WireError if there is none, or no such number."""
        found = samples_of(metrics, self.keys.weighted_by)
        if found is None:
            raise WireError(f"its metrics have no {self.keys.weighted_by!r}, the number of its samples")
        return found


def _weight(message: FlowerMessage | Exception) -> int:
    """Return the bytes of all arrays in a message."""
    assert not isinstance(message, Exception)
    return sum(map(size_of, message.content.array_records.values()))
