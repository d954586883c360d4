"""After a restart of any process, in any order, healthy nodes take part in the next round."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import SubStatus
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as node
from flwr.supernode.nodestate import NodeStateFactory

from hanse.wings.operate import server_access


class SuperNode:
    """Flower's own loop of a SuperNode, whose app does its work while the loop sleeps."""

    def __init__(self) -> None:
        factory = NodeStateFactory(ObjectStoreFactory())
        self.state, self.store = factory.state(), factory.objectstore_factory.store()
        self.state.set_node_id(7)
        self.state.store_run(Run.create_empty(1))
        self.sent = list[tuple[str, bool]]()  # to which message each answer is, and whether it is an error
        self.work = list[Callable[[], None]]()

    def turn(self, number: int, app: Callable[[Message, int], None]) -> None:
        """Take a message and send what is there, as Flower's endless loop does."""
        content = RecordDict({"asked": ConfigRecord({"number": number})})
        message = Message(content, dst_node_id=7, message_type="query.hanse", group_id=str(number))
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}

        def confirm(*_: Any) -> None:
            [task] = self.state.get_tasks(order_by="pending_at", ascending=False, limit=1)
            self.state.claim_task(task.task_id)
            self.state.activate_task(task.task_id)
            app(message, task.task_id)

        run = node._pull_and_store_message(
            state=self.state, object_store=self.store, node_config={}, trusted_entities=None, get_run=None,
            receive=lambda: (message, get_object_tree(message)), get_fab=None,
            pull_object=lambda _, name: objects[name], confirm_message_received=confirm,
        )  # fmt: skip
        if run is not None:
            node._push_messages(state=self.state, object_store=self.store, send=self.send, push_object=lambda *_: None)

    def sleep(self, _: float) -> None:
        self.work.pop()()

    def answers(self, message: Message, task: int) -> None:
        def work() -> None:
            node._insert_message(Message(message.content, reply_to=message), self.state, self.store)
            self.state.finish_task(task, SubStatus.COMPLETED, "")

        self.work.append(work)

    def is_over(self, message: Message, task: int) -> None:
        """The app has answered when the SuperLink says that the run is over."""
        self.answers(message, task)
        self.sleep(0.0)
        raise RunNotRunningException

    def dies(self, message: Message, task: int) -> None:
        self.work += 2 * [lambda: self.state.finish_task(task, SubStatus.FAILED, "killed")]

    def send(self, answer: Message, *_: Any) -> tuple[set[str], str]:
        self.sent.append((answer.metadata.group_id, answer.has_error()))
        return set(), ""


def test_a_node_answers_each_message_whatever_became_of_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run_id", "node_id", "task_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1, raising=False)
    for name in ("_pull_and_store_message", "_push_messages"):
        monkeypatch.setattr(node, name, getattr(node, name))  # to be put back
    server_access.answer_in_turn()
    one = SuperNode()
    monkeypatch.setattr(node.time, "sleep", one.sleep)
    for number, app in enumerate([one.answers, one.is_over, one.answers, one.dies, one.answers]):
        one.turn(number, app)
    assert one.sent == [("0", False), ("1", False), ("2", False), ("3", True), ("4", False)]


@pytest.mark.parametrize(
    ("comes", "dies", "came", "lines"), [(12, 99, True, 2), (99, 17, False, 3), (999, 999, False, 19)]
)
def test_a_wait_says_every_five_seconds_what_for_and_ends(
    comes: float,
    dies: float,
    came: bool,
    lines: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    monkeypatch.setattr(server_access.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(server_access.time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    assert server_access.awaited("the SuperLink", lambda: now[0] >= comes, lambda: now[0] < dies, 100.0) == came
    assert capsys.readouterr().err.count("the SuperLink") == lines
