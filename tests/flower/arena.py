"""A federation on Flower's records in this process in which one client is hostile: real server, real nodes."""

import io
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from hostile import changed
from inprocess import KEY, InProcessGrid

from hanse.core.part import Deployment
from hanse.data import build
from hanse.data.federated import RemoteData
from hanse.federation.node import Assignment, ClientData, Node, hello
from hanse.flower.link import FlowerFederation
from hanse.flower.members import Members
from hanse.flower.message import from_records, to_records
from hanse.runs.checkpoint import LoopState
from hanse.runs.rehearsal import small_experiment
from hanse.runs.round import Played, finish, first_state, play_round, port_of
from hanse.runs.round_record import METRICS, SEATS, RoundRecord
from hanse.runs.setup import build as session_of
from hanse.runs.setup import policy_of
from hanse.runs.testing import ask_tests

N = 4
LIAR = 1
SANE = 1e3  # no number of a small model that was trained is larger
Meddle = Callable[[RecordDict, Message], RecordDict]


class Honest:
    """A node that agreed to whatever it is asked: it plays a round any number of times, and keeps every model."""

    def __init__(self, mine: ClientData, job: Assignment, folder: Path, policy: Any) -> None:
        self.mine, self.node = mine, Node(mine, job, folder, policy)
        self.kept: dict[str, Any] = {}  # every model that was sent
        self.known: dict[tuple[Any, str], RecordDict] = {}
        self.node._held = lambda: self.kept  # type: ignore[method-assign]
        self.node._keep = lambda arrays: None  # type: ignore[method-assign]

    def __call__(self, message: Message, context: Any) -> Message:
        request, values = from_records(message.content)
        self.kept.update(request.arrays)
        if values["kind"] == "hello":
            said = hello(self.mine) | {"order": self.node.job.client}
            return Message(to_records(request, hello=json.dumps(said)), reply_to=message)
        asked = values["round"], request.header
        if asked not in self.known:  # a round that is played again asks the same
            self.known[asked] = to_records(self.node.answer(int(values["round"]), request), round=values["round"])
        return Message(self.known[asked], reply_to=message)


class Arena:
    """One experiment with its server's side and its nodes, of which ``meddle`` changes what client ``LIAR`` says."""

    def __init__(self, mechanism: Mapping[str, Any], folder: Path) -> None:
        experiment = small_experiment(mechanism, train={"lr": 0.05, "epochs": 1}, run={"rounds": 6})
        local, policy = build(experiment.data), policy_of(experiment)
        model, train = {"name": experiment.model.name, **experiment.model.options}, experiment.train.model_dump()
        jobs = [Assignment("run", i, N, experiment.run.seed, model, train) for i in range(N)]
        self.nodes = [Honest(ClientData.of(local, i), job, folder / str(i), policy) for i, job in enumerate(jobs)]
        self.meddle: Meddle = lambda records, request: records

        def answers(node: int, message: Message, reply: Message) -> Message:
            return Message(self.meddle(reply.content, message), reply_to=message) if node == 100 + LIAR else reply

        grid = InProcessGrid({100 + i: one for i, one in enumerate(self.nodes)}, answers)
        federation = FlowerFederation(grid, Members(), KEY, deadline_s=60.0, capacity=N)
        federation.present(-1)
        sizes = [m.num_samples for m in federation.members.by_key.values()]
        sets = (local.server_validation, local.server_test)
        data = RemoteData(np.array(sizes), local.input_shape, local.num_classes, *sets)
        self.world = session_of(experiment, data, federation=federation)
        self.lines: dict[str, list[str]] = {METRICS: [], SEATS: []}  # as a run directory has them

    def play(self, rounds: int, see: Callable[[Played], None], times: int = 1) -> LoopState:
        """Play a run of so many rounds with its tests and records, each round so many ``times`` from the same state: a
        sound one, which no client has poisoned. ``see`` gets each round.
        """
        after = first_state(self.world)
        for step in range(rounds * times):
            if step % times == 0:
                before = after
                for one in self.nodes:
                    one.known.clear()
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
        return finish(self.world, after).state if self.world.mechanism.settle is not None else after


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
