"""Newcomers decide nothing, stop nothing and are not waited for; members are what the register says."""

import hashlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flower_apps import plain_app
from flwr.app import ConfigRecord, Message, RecordDict
from inprocess import KEY, InProcessGrid, apps_of, play
from mistaken import mistakes
from test_flower_in_process import N, experiment, grid_of
from test_letters import After

import hanse
from hanse.core.port import Ask, Call, Request
from hanse.flower import newcomers
from hanse.flower.link import FlowerFederation
from hanse.flower.members import Members, Orders, give

SOUND = {"name": "A", "num_samples": 5, "input_shape": [1, 8, 8], "num_classes": 10, "profile": {"cost": 1}, "order": 7}


def key_of(node: int) -> str:
    return hashlib.sha256(f"key {node}".encode()).hexdigest()


def says(node: int, hello: Callable[[Message], str]) -> Callable[[int, Message, Message], Message | None]:
    """Return a meddler that lets a node introduce itself as ``hello`` says."""

    def meddle(at: int, message: Message, reply: Message) -> Message | None:
        if at != node or message.content["hanse"].get("kind") != "hello":
            return reply
        config = ConfigRecord({**dict(reply.content["hanse"]), "hello": hello(reply)})
        return Message(RecordDict({"hanse": config, "arrays": reply.content["arrays"]}), reply_to=message)

    return meddle


def lies(node: int, **fields: Any) -> Callable[[int, Message, Message], Message | None]:
    return says(node, lambda reply: json.dumps(json.loads(str(reply.content["hanse"]["hello"])) | fields))


def asked(grid: InProcessGrid, node: int) -> int:
    """Return how often a node was asked who it is."""
    return sum(to == node and m.content["hanse"].get("kind") == "hello" for to, m in grid.sent)


def run_with(grid: InProcessGrid, exp: hanse.Experiment, out: Path, members: int = N, *observers: Any) -> hanse.Run:
    return play(grid, exp, out, *observers, members=members, data=None)


def six(name: str = "fedavg", rounds: int = 2) -> hanse.Experiment:
    """Room for a sixth member."""
    sections = experiment(name, rounds=rounds).model_dump()
    return hanse.Experiment(**{**sections, "data": {**sections["data"], "clients": N + 1}})


def grid_of_six(folder: Path, **more: Any) -> InProcessGrid:
    return InProcessGrid(apps_of(six(), folder), **more)


# ---- what they say


def test_a_liar_in_the_first_place_is_kept_out_and_the_others_play(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    exp = experiment("fedavg", rounds=1)
    grid = grid_of(exp, tmp_path, meddle=lies(100, num_classes=3, order=0))
    assert [m["present"] for m in run_with(grid, exp, tmp_path / "run").metrics] == [N - 1]
    register = Members.read(tmp_path / "run" / "members.json")
    assert {m.key: m.id for m in register.by_key.values()} == {key_of(101 + i): i for i in range(N - 1)}
    [line] = [r.getMessage() for r in caplog.records if "is kept out" in r.getMessage()]
    assert line.startswith(f"node 100 (key {key_of(100)}, registered as 'site-100'): is kept out: ")
    assert "with 3 classes; those of the members are of shape [1, 8, 8] with 10 classes" in line


def test_samples_are_compared_with_the_servers_own_whatever_most_nodes_say(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exp = experiment("fedavg", rounds=1)

    def three_lie(node: int, message: Message, reply: Message) -> Message | None:
        return lies(node, input_shape=[9])(node, message, reply) if node < 103 else reply

    run = play(grid_of(exp, tmp_path, meddle=three_lie), exp, tmp_path / "run")
    assert [m["present"] for m in run.metrics] == [2]
    lines = [r.getMessage() for r in caplog.records if "is kept out" in r.getMessage()]
    assert len(lines) == 3
    assert all("of shape [9] with 10 classes; the server's own are of shape [1, 8, 8]" in line for line in lines)


@pytest.mark.parametrize(
    "hello",
    [
        "", "null", "[]", "{", "5", "[" * 50_000, '{"num_samples": ' + "9" * 5_000 + "}", "{}",
        json.dumps(SOUND)[:-1] + ', "name": "' + "x" * 100_000 + '"}',
        *(
            json.dumps(SOUND | wrong)
            for wrong in (
                {"num_samples": -1}, {"num_samples": 2**53 + 1}, {"num_samples": 5.0}, {"num_samples": True},
                {"num_samples": "5"}, {"input_shape": [0]}, {"input_shape": [2**31 + 1]}, {"input_shape": [1] * 9},
                {"input_shape": 3}, {"input_shape": [3.0]}, {"num_classes": 0}, {"num_classes": "2"}, {"tests": -1},
                {"order": -1}, {"name": "x" * 81}, {"name": "\x1b[2J"}, {"name": None}, {"text": 1},
                {"profile": {"cost": float("nan")}}, {"profile": {"cost": [1]}}, {"profile": {"cost": 10**400}},
                {"profile": {str(i): 1 for i in range(101)}}, {"profile": {"x" * 81: 1}},
            )
        ),
    ],
)  # fmt: skip
def test_a_hello_out_of_bounds_is_refused_in_one_line_and_costs_nobody_else_anything(
    hello: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = grid_of(experiment("fedavg"), tmp_path, meddle=says(102, lambda reply: hello))
    federation = FlowerFederation(grid, Members(), KEY)
    assert federation.present(0).ids.tolist() == [0, 1, 2, 3]
    assert federation.present(0).ids.tolist() == [0, 1, 2, 3]
    [record] = caplog.records
    assert record.getMessage().startswith(f"node 102 (key {key_of(102)}, registered as 'site-102'): is kept out: ")
    assert "those of the members are" not in record.getMessage()  # it is refused for its form
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 500


def test_an_answer_that_flower_cannot_take_apart_is_its_senders_alone(tmp_path: Path) -> None:
    grid = grid_of(experiment("fedavg"), tmp_path)
    whole = grid.pull_messages

    def inflates(ids: Any) -> list[Message]:
        found = list(whole(ids))
        if any(reply.metadata.src_node_id == 102 for reply in found):
            grid.replies.update({reply.metadata.reply_to_message_id: reply for reply in found})
            raise ValueError("no such object type")
        return found

    def from_its_node(node: int, message: Message, reply: Message) -> Message:
        reply.metadata.__dict__["_src_node_id"] = node
        return reply

    grid.meddle, grid.pull_messages = from_its_node, inflates  # type: ignore[method-assign]
    federation = FlowerFederation(grid, Members(), KEY)
    assert federation.present(0).ids.tolist() == [0, 1, 2, 3]
    [reason] = federation.newcomers.refused.values()
    assert reason.endswith("its answer cannot be read: ValueError: no such object type")


# ---- when they are asked


def federation_of(grid: InProcessGrid) -> tuple[FlowerFederation, SimpleNamespace]:
    federation, clock = FlowerFederation(grid, Members(), KEY), SimpleNamespace(now=0.0)
    federation.newcomers.clock = lambda: clock.now
    return federation, clock


def asked_at(grid: InProcessGrid, federation: FlowerFederation, clock: SimpleNamespace, seconds: int) -> list[int]:
    """Return the seconds in which node 102 is asked who it is, while the others take part."""
    times = []
    for second in range(seconds):
        clock.now, before = float(second), asked(grid, 102)
        assert federation.present(0).ids.tolist() == [0, 1, 2, 3]
        if asked(grid, 102) > before:
            times.append(second)
    return times


def test_a_refused_newcomer_is_asked_again_after_growing_pauses_and_taken_once_it_is_sound(tmp_path: Path) -> None:
    grid = grid_of(experiment("fedavg"), tmp_path, meddle=says(102, lambda reply: "{"))
    federation, clock = federation_of(grid)
    times = asked_at(grid, federation, clock, 2000)
    assert times == [0, 5, 15, 35, 75, 155, 315, 635, 1235, 1835]  # 600 s at most
    grid.meddle = lambda node, message, reply: reply
    clock.now = 2435.0
    assert federation.present(0).ids.tolist() == [0, 1, 2, 3, 4]
    assert asked(grid, 102) == len(times) + 1
    assert [m.id for m in federation.members.by_key.values() if m.key == key_of(102)] == [4]  # the others kept theirs


def test_a_silent_newcomer_is_given_up_after_a_minute_then_two_and_asked_again(tmp_path: Path) -> None:
    grid = grid_of(experiment("fedavg"), tmp_path, meddle=lambda node, _, reply: None if node == 102 else reply)
    federation, clock = federation_of(grid)
    # it may be training: a minute at first, and then a pause of 5 s
    assert asked_at(grid, federation, clock, 1600) == [0, 65, 190, 435, 920, 1525]
    assert federation.newcomers.pending == 1


@pytest.mark.parametrize("started_anew", [False, True])
def test_nobody_waits_twice_for_a_silent_member_until_it_says_who_it_is_or_is_started_anew(
    started_anew: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [True]
    grid = grid_of(experiment("fedavg"), tmp_path, meddle=lambda node, _, reply: reply if all(answers) else None)
    federation, clock = federation_of(grid)
    requests = [Request(c, (Ask("stay", {}),)) for c in range(N)]

    def exchange() -> list[int]:
        federation.exchange(Call(0, requests, 0.01))
        return federation.asked

    present = lambda: federation.present(0).ids.tolist()  # noqa: E731
    everybody, federation.deadline_s = present(), 0.0
    answers[:] = [False]
    assert (exchange(), exchange(), present()) == (everybody, [], [])
    answers[:] = [True]
    if started_anew:
        for node in (nodes := list(grid.get_nodes())):
            node.last_activated_at = "later"
        monkeypatch.setattr(grid, "get_nodes", lambda: nodes)
    else:
        assert (present(), exchange()) == ([], [])  # its answer is still waited for
        clock.now = newcomers.HELLO_S
        assert present() == []
        clock.now += newcomers.FIRST_S
    assert (present(), exchange()) == (everybody, everybody)


def test_a_round_waits_while_no_member_is_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = grid_of(experiment("fedavg"), tmp_path)
    federation, _ = federation_of(grid)
    everybody, nodes, slept = federation.present(0).ids.tolist(), set(grid.online), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds if slept else 1e6)
        grid.online = nodes if len(slept) == 3 else set()

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: sum(slept))
    monkeypatch.setattr(federation, "orders", lambda: Orders(None if slept else "for longer than a round lasts"))
    grid.online = set()
    assert (federation.present(1).ids.tolist(), len(slept)) == (everybody, 3)
    grid.online, federation.deadline_s = set(), 0.0
    assert federation.present(2).ids.tolist() == []


def test_a_sound_newcomer_joins_the_run(tmp_path: Path) -> None:
    grid = grid_of_six(tmp_path)
    grid.online.discard(105)
    run = run_with(grid, six(rounds=3), tmp_path / "run", N, After(0, lambda: grid.online.add(105)))
    assert [m["present"] for m in run.metrics] == [N, N + 1, N + 1]


# ---- the start


def test_where_nobody_can_take_part_the_run_ends_with_the_reasons_at_once(tmp_path: Path) -> None:
    exp = experiment("fedavg")
    grid = grid_of(exp, tmp_path)
    grid.apps = dict.fromkeys(grid.apps, plain_app())  # which knows nothing of hanse
    first, *each = mistakes(play, grid, exp, tmp_path / "run", members=N, data=None, patience_s=600.0)
    assert first == "members: none of the 5 nodes that are here can take part"
    assert [line.partition(" (key")[0] for line in sorted(each)] == [f"node {100 + i}" for i in range(N)]
    assert all("'hanse'" in line for line in each)


def test_what_a_mechanism_lacks_at_the_server_is_said_before_members_are_waited_for(tmp_path: Path) -> None:
    exp = experiment("greedyfed")
    grid = grid_of(exp, tmp_path)
    lines = mistakes(play, grid, exp, tmp_path / "run", data=lambda: (None, None), patience_s=600.0)
    assert [line.partition(":")[0] for line in lines] == ["mechanism.value"]
    assert "load_server_data" in lines[0]
    assert grid.sent == []


# ---- the register, and those who are expelled


def member(node: int, number: int, **more: Any) -> dict[str, Any]:
    """A line of the register with no field that has a default."""
    sound = {"num_samples": 100, "input_shape": [1, 8, 8], "num_classes": 10, "tests": 20, "profile": {}}
    return {"id": number, "key": key_of(node), "name": f"participant {number}", **sound, **more}


def spoilt(run: Path, **lie: Any) -> None:
    """Write the register of a run that a liar with the number 0 has stopped."""
    run.mkdir()
    (run / "federation.json").write_text(json.dumps({"run": "0" * 32}) + "\n")
    lines = [member(105, 0, **lie), *(member(100 + i, i + 1) for i in range(N))]
    (run / "members.json").write_text(json.dumps(lines))


def test_an_expelled_member_is_not_compared_asked_or_counted_even_before_the_run_has_begun(tmp_path: Path) -> None:
    run = tmp_path / "run"
    spoilt(run, input_shape=[9])
    give(run, "expel", "lies", 0)  # there is no config.toml yet
    grid = grid_of_six(tmp_path, meddle=lies(105, input_shape=[9]))
    played = run_with(grid, six("pifl"), run, N + 1)  # all six were expected
    assert [m["present"] for m in played.metrics] == [N, N]
    assert sorted(a for a in played.book.balances if a.startswith("client/")) == [f"client/{i + 1}" for i in range(N)]
    assert -played.book.balance("mint") == N * 100 * 1_000_000
    assert asked(grid, 105) == 0
    assert all(to != 105 for to, _ in grid.sent)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "list: field required"),
        ('[{"id": 0}]', "num_samples: dict: field required"),
        (json.dumps([member(100, 0), member(101, 0)]), "a key or an id is there twice"),
        (json.dumps([member(100, 0, num_samples=10**30)]), "num_samples"),
    ],
)
def test_a_damaged_register_is_one_line_with_what_to_do(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "members.json"
    path.write_text(text)
    with pytest.raises(hanse.UserError, match="is not a register of members") as wrong:
        Members.read(path)
    [line] = wrong.value.lines
    assert line.startswith(str(path))
    assert said in line
    assert "put a copy of it back" in line


def test_a_damaged_line_of_orders_is_named(tmp_path: Path) -> None:
    (tmp_path / "operator.jsonl").write_text('{"order": "expel", "client": "x"}\n')
    with pytest.raises(hanse.UserError, match=r"operator\.jsonl"):
        Orders.read(tmp_path)
