"""A federation on Flower's records in this process in which one client is hostile: real server, real nodes."""

import io
import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from hostile import changed
from inprocess import KEY

import hanse
from hanse.core.part import Deployment
from hanse.data import build
from hanse.data.federated import FederatedData, RemoteData
from hanse.federation.node import Assignment, ClientData, Node, hello
from hanse.flower.link import FlowerFederation
from hanse.flower.members import Members
from hanse.flower.message import from_records, to_records
from hanse.runs.checkpoint import LoopState
from hanse.runs.round import Played, finish, first_state, play_round, port_of
from hanse.runs.round_record import METRICS, SEATS, RoundRecord
from hanse.runs.setup import build as session_of
from hanse.runs.setup import policy_of
from hanse.runs.testing import ask_tests

N = 4
LIAR = 1
SANE = 1e3  # no number of a small model that was trained is larger
Meddle = Callable[[RecordDict, Message], RecordDict]


class Nodes:
    """As much of Flower's grid as the link uses; nodes live as long as their run, and client ``LIAR`` is meddled
    with.
    """

    def __init__(self, data: FederatedData, job: Assignment, folder: Path, policy: Any) -> None:
        self.data, self.job, self.folder, self.policy = data, job, folder, policy
        self.nodes: dict[int, Node] = {}
        self.meddle: Meddle = lambda records, request: records
        self.replies: dict[str, Message] = {}
        self.kept: dict[int, dict[str, Any]] = {client: {} for client in range(N)}  # every model that was sent
        self.known: dict[tuple[int, str, str], RecordDict] = {}

    def get_nodes(self) -> Iterable[Any]:
        return [SimpleNamespace(node_id=100 + i, public_key=f"key {i}".encode()) for i in range(N)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            names.append(f"message {len(self.replies)} {id(message)}")
            client = message.metadata.dst_node_id - 100
            message.metadata.__dict__["_message_id"] = names[-1]
            self.kept[client].update(from_records(message.content)[0].arrays)
            asked = (client, str(message.content["hanse"].get("round")), str(message.content["hanse"]["header"]))
            if asked not in self.known:  # a round that is played again asks the same
                self.known[asked] = self._answer(client, message)
            records = self.known[asked]
            if client == LIAR:
                records = self.meddle(records, message)
            self.replies[names[-1]] = Message(records, reply_to=message)
        return names

    def pull_messages(self, names: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(name) for name in list(names) if name in self.replies]

    def _answer(self, client: int, message: Message) -> RecordDict:
        request, values = from_records(message.content)
        if values["kind"] == "hello":
            mine = ClientData.of(self.data, client)
            return to_records(request, hello=json.dumps(hello(mine) | {"order": client}))
        if client not in self.nodes:
            job, folder = replace(self.job, client=client), self.folder / str(client)
            self.nodes[client] = Node(ClientData.of(self.data, client), job, folder, self.policy)
            node, kept = self.nodes[client], self.kept[client]
            node._held = lambda: kept  # type: ignore[method-assign]
            node._keep = lambda arrays: None  # type: ignore[method-assign]
        return to_records(self.nodes[client].answer(int(values["round"]), request), round=values["round"])


class Arena:
    """One experiment with its server's side and its nodes."""

    def __init__(self, mechanism: Mapping[str, Any], folder: Path, **more: Any) -> None:
        sections: dict[str, Any] = {
            "data": {
                "clients": N,
                "partition": {"samples_per_client": 30},
                "client_test": 0.2,
                "client_validation": 0.2,
            },
            "model": {"name": "logistic"},
            "mechanism": dict(mechanism),
            "train": {"lr": 0.05, "epochs": 1},
            "engine": {"train": "sequential", "threads": 1, "device": "cpu"},
            "run": {"rounds": 6},
        }
        experiment = hanse.Experiment(**{**sections, **more})
        local = build(experiment.data)
        model, train = {"name": experiment.model.name, **experiment.model.options}, experiment.train.model_dump()
        job = Assignment("run", 0, experiment.data.clients, experiment.run.seed, model, train)
        self.grid = Nodes(local, job, folder, policy_of(experiment))
        self.federation = FlowerFederation(self.grid, Members(), KEY, deadline_s=60.0, capacity=N)  # type: ignore[arg-type]
        self.federation.present(-1)
        sizes = [m.num_samples for m in self.federation.members.by_key.values()]
        sets = (local.server_validation, local.server_test)
        self.data = RemoteData.of(sizes, local.input_shape, local.num_classes, *sets)
        self.world = session_of(experiment, self.data, federation=self.federation)
        self.setup = self.world
        self.lines: dict[str, list[str]] = {METRICS: [], SEATS: []}  # as a run directory has them

    def play(self, rounds: int, see: Callable[[Played], None], times: int = 1) -> LoopState:
        """Play a run of so many rounds with its tests and records, each round so many ``times`` from the same state: a
        sound one, which no client has poisoned. ``see`` gets each round.
        """
        after = first_state(self.setup)
        for step in range(rounds * times):
            if step % times == 0:
                before = after
                self.grid.known.clear()
            played = play_round(self.world, before)
            if float(played.state.table.rows.abs().max()) < SANE:
                after = played.state
            held = played.view.deployment or Deployment(played.state.home)
            tested = ask_tests(self.world, port_of(self.world, played.state).federation, played.state, held)
            record = RoundRecord.of(played, tested, {})
            self.lines[METRICS].append(json.dumps(record.metrics))
            self.lines[SEATS] += [json.dumps(line) for line in record.seats]
            np.savez(io.BytesIO(), **record.arrays)  # type: ignore[arg-type]
            see(played)
        return finish(self.world, after).state if self.setup.mechanism.settle is not None else after


def fuzzed(seed: int, name: str) -> tuple[Meddle, dict[str, Any]]:
    """Return what changes a hostile client's messages, all but one in eight, and what it did last."""
    draw, said = random.Random(f"{seed}/{name}"), {"messages": 0, "last": ""}

    def meddle(records: RecordDict, request: Message) -> RecordDict:
        if draw.random() < 1 / 8:
            return records
        said["messages"] += 1
        made, said["last"] = changed(draw, records)
        return made

    return meddle, said
