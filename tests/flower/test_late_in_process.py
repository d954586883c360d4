"""Nodes that answer late, die and come back, through Flower's records in one process."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import deployed
import numpy as np
import pytest
import torch
from flwr.app import Message
from inprocess import InProcessGrid, apps_of, play

import hanse
from hanse.flower.members import give
from hanse.flower.message import from_records, to_records
from hanse.runs.run_record import STILL

N = 5


class Slow(InProcessGrid):
    """What node c answers in round r is there only once messages of round ``later[c, r]`` were sent (None: never)."""

    def __init__(self, later: Mapping[tuple[int, int], int | None], *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.later, self.round, self.held = later, -1, dict[str, int | None]()
        self.restarts = dict[int, int]()

    def get_nodes(self) -> Iterable[Any]:
        nodes = list(super().get_nodes())
        for node in nodes:
            node.last_activated_at = f"start {self.restarts.get(node.node_id, 0)}"
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        names = list(super().push_messages(sent))
        for name, message in zip(names, sent, strict=True):
            config = message.content["hanse"]
            if config["kind"] == "request" and "Train" in str(config["header"]):
                self.round = max(self.round, int(config["round"]))
                place = (message.metadata.dst_node_id - 100, int(config["round"]))
                if place in self.later:
                    self.held[name] = self.later[place]
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        held = {name for name, until in self.held.items() if until is None or until > self.round}
        return super().pull_messages([name for name in message_ids if name not in held])


def experiment(rounds: int = 6, **federation: Any) -> hanse.Experiment:
    return deployed.experiment(
        rounds=rounds,
        data={"clients": N, "partition": {"samples_per_client": 30}, "client_test": 0.2},
        mechanism={"clients_per_round": N, "weigh": "by_staleness"},
        federation={"deadline_s": 900.0, **federation},  # a round that waited for it would be noticed
        eval={},
    )


def over_flower(
    exp: hanse.Experiment,
    folder: Path,
    later: Mapping[tuple[int, int], int | None],
    on_round: Callable[[Slow, int], None] = lambda grid, round: None,
    meddle: Callable[[int, Message, Message], Message | None] = lambda node, message, reply: reply,
) -> hanse.Run:
    grid = Slow(later, apps_of(exp, folder), meddle)

    class Each:
        def on_round(self, metrics: Any, played: Any) -> None:
            on_round(grid, metrics["round"])

    return play(grid, exp, folder / "run", Each())


LATER = {(2, 0): 3, (4, 1): 2, (3, 3): 9}


def staleness(run: hanse.Run) -> dict[tuple[int, int], int]:
    return {(line["client"], line["round"]): line["staleness"] for line in run.clients if "staleness" in line}


def test_late_updates_of_nodes_are_mixed_later(tmp_path: Path) -> None:
    run = over_flower(experiment(enough=3, late="next"), tmp_path, LATER)
    assert staleness(run) == {(4, 2): 1, (2, 3): 3}
    assert [m["present"] for m in run.metrics] == [5, 4, 3, 4, 4, 4]
    assert [m["answered"] for m in run.metrics] == [4, 3, 4, 4, 4, 4]
    assert [m["late/under_way"] for m in run.metrics] == [1, 2, 1, 1, 1, 1]
    assert not torch.equal(hanse.run(experiment()).table.rows, run.table.rows)


def test_a_dead_node_gets_no_task_until_it_is_back(tmp_path: Path) -> None:
    def power(grid: Slow, round: int) -> None:
        grid.online = set(grid.apps) - {102} if round in (2, 3) else set(grid.apps)

    run = over_flower(experiment(7, enough=4, late="next"), tmp_path, {(2, 1): None}, power)
    mine = {line["round"]: line.get("refused") for line in run.clients if line["client"] == 2}
    # it dies in round 1, is seen to be away in 3 and 4, back in 5, and is asked again in 6
    assert mine == {0: None, 1: STILL, 6: None}
    assert [m["present"] for m in run.metrics] == [5, 5, 4, 4, 4, 4, 5]
    assert [m["answered"] for m in run.metrics] == [5, 4, 4, 4, 4, 4, 5]
    assert [m["refused"] for m in run.metrics] == [0, 1, 0, 0, 0, 1, 0]
    with np.load(tmp_path / "run" / "rounds" / "00005.npz") as arrays:
        assert arrays["reason"].tolist() == ["its update of round 1: its node was away meanwhile"]


def test_a_node_that_restarts_before_it_is_missed_is_asked_again(tmp_path: Path) -> None:
    def restart(grid: Slow, round: int) -> None:
        grid.restarts[102] = int(round >= 2)  # it never was offline when the server looked

    run = over_flower(experiment(5, enough=4, late="next"), tmp_path, {(2, 1): None}, restart)
    mine = {line["round"]: line.get("refused") for line in run.clients if line["client"] == 2}
    assert mine == {0: None, 1: STILL, 4: None}
    assert reasons(tmp_path, 3) == [(2, "its update of round 1: its node was away meanwhile")]


def trains(node: int, message: Message) -> bool:
    """Say whether it is what client 2 is asked to train in round 1."""
    values = message.content["hanse"]
    wanted = (node, values.get("kind"), values.get("round")) == (102, "request", 1)
    return wanted and "Train" in str(values["header"])


def reasons(folder: Path, round: int) -> list[tuple[int, str]]:
    with np.load(folder / "run" / "rounds" / f"{round:05}.npz") as arrays:
        return list(zip(arrays["refused"].tolist(), arrays["reason"].tolist(), strict=True))


def test_the_late_update_of_an_expelled_client_is_not_mixed(tmp_path: Path) -> None:
    def expel(grid: Slow, round: int) -> None:
        if round == 1:
            give(tmp_path / "run", "expel", "cheats", 2)

    run = over_flower(experiment(5, enough=4, late="next"), tmp_path, {(2, 1): 3}, expel)
    assert staleness(run) == {}
    assert reasons(tmp_path, 2) == [(2, "its update of round 1: its client may no longer take part")]
    assert [m["late/under_way"] for m in run.metrics] == [0, 1, 0, 0, 0]


def test_what_was_under_way_when_the_server_was_restarted_is_recorded_as_lost(tmp_path: Path) -> None:
    def dies(grid: Slow, round: int) -> None:
        if round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        over_flower(experiment(4, enough=4, late="next"), tmp_path, {(2, 1): 3}, dies)
    run = over_flower(experiment(4, enough=4, late="next"), tmp_path, {})
    assert reasons(tmp_path, 2) == [(2, "its update of round 1: lost, the server was restarted")]
    assert [m["answered"] for m in run.metrics] == [5, 4, 5, 5]  # it is asked again
    assert [m["late/under_way"] for m in run.metrics] == [0, 1, 0, 0]


@pytest.mark.parametrize("lie", ["another round", "its own arrival"])
def test_a_node_does_not_say_when_its_answer_came(lie: str, tmp_path: Path) -> None:
    arrival = '"arrival":{"$kind":"Arrival","fields":{"seconds":0.0,"round":0,"open":true}}'

    def meddle(node: int, message: Message, reply: Message) -> Message:
        if not trains(node, message):
            return reply
        said, values = from_records(reply.content)
        if lie == "another round":
            return Message(to_records(said, round=2), reply_to=message)
        told = replace(said, header=said.header.replace('"arrival":null', arrival))
        assert told.header != said.header
        return Message(to_records(told, **values), reply_to=message)

    run = over_flower(experiment(4, enough=4, late="next"), tmp_path, {(2, 1): 2}, meddle=meddle)
    assert staleness(run) == {}
    [(client, reason)] = reasons(tmp_path, 2)
    assert client == 2
    why = "answer for round 2" if lie == "another round" else "'Arrival' is nothing that crosses the port"
    assert reason == f"its update of round 1: {why}"
