"""Watches a Flower strategy's rounds and keeps them as a run of hanse's: values, payments, books, the run directory.

Nothing here may reach the training: a round whose values cannot be had is recorded with the reason, its *gap*; if the
run directory itself cannot be written, a line says so and nothing more is kept.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import FedAvg, Strategy
from torch import nn

from hanse.base.errors import MachineError, UserError, first_line
from hanse.base.files import write_whole
from hanse.base.lock import Hold
from hanse.core.entry import TOKEN
from hanse.core.part import Context, Mechanism
from hanse.core.port import Roster, Tested, Trained
from hanse.core.recipe import Recipe
from hanse.core.table import Seats
from hanse.core.telling import describe
from hanse.data.federated import RemoteData
from hanse.data.fingerprint import fingerprint
from hanse.data.spec import OBJECT
from hanse.deployment.again import Again, NotAgain, copied, generators, same_generators
from hanse.deployment.arrays import Form
from hanse.deployment.members import Hello, Members
from hanse.deployment.watched import Replies, Watched, info, watching
from hanse.deployment.worth import ByClients, ByFunction, ByModule, NoWorthError, Worth
from hanse.learning.engines import EngineChoice, make_engine
from hanse.learning.job import Problem
from hanse.learning.models import structure
from hanse.rounds.judge import Judge
from hanse.rounds.round import LoopState, Played, Setup, failed_round, finish, first_state, play_round
from hanse.runs.config import Experiment, ModelSection, RunSection
from hanse.runs.record import RoundRecord
from hanse.runs.rundir import RunDir
from hanse.runs.testing import Figures, figures_of

LOG = logging.getLogger("hanse.valued")
LONGEST = 300  # characters of a gap that are recorded
LOST = "no reply"


@dataclass(frozen=True)
class Plan:
    """What a watched run is to be: its ``experiment``, how models are judged, where it goes, what nodes are called."""

    experiment: Experiment
    worth: Worth
    out: Path
    names: Mapping[int, str] = field(default_factory=dict)
    overwrite: bool = False

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism, which knows no round yet."""
        return self.experiment.mechanism.built


@dataclass
class Watch:
    """A run that is being watched. The wrapped strategy calls :meth:`begins` once, and in each round :meth:`asks`,
    :meth:`comes`, :meth:`makes`, :meth:`tests` and :meth:`ends`; :meth:`close` when it is over.
    """

    plan: Plan
    strategy: Strategy
    hold: Hold
    members: Members = field(default_factory=Members)
    state: LoopState | None = None
    gaps: list[str] = field(default_factory=list)
    rounds: int = 0  # planned; 0: not known
    broken: bool = False  # nothing more can be kept
    _setup: Setup | None = None
    _folder: RunDir | None = None
    _form: Form | None = None
    _now: Watched | None = None
    _number: int = 0
    _tests: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    _figures: Figures = field(default_factory=Figures)
    _seconds: float = 0.0
    _begun: float = 0.0

    # ---- what the strategy tells

    def begins(self, arrays: ArrayRecord | None, rounds: int | None) -> None:
        """Make the run directory for these initial arrays. Raises UserError for what cannot be valued: nothing has
        begun yet.
        """
        self.rounds = self.rounds or rounds or 0
        if arrays is None or self._setup is not None:
            return
        with same_generators():
            worth = self.plan.worth
            module = worth.problem.module if isinstance(worth, ByModule) else None
            self._form = Form.of(arrays) if module is None else Form.of_module(module, arrays)
            if isinstance(worth, ByFunction):
                try:
                    worth.worth(arrays)  # a slip in it is better said now than in each round
                except NoWorthError as wrong:
                    raise UserError(f"{wrong} (tried on the initial arrays)") from None
            self._make(arrays, module)

    def asks(self, number: int, arrays: ArrayRecord) -> None:
        """Hear that a round begins from these arrays."""
        if self._now is not None:
            self.ends()
        self.begins(arrays, None)
        self._begun = time.perf_counter()
        assert self._form is not None
        self._number = number
        self._figures = Figures()
        self._now = Watched(self._form, self.plan.worth, Roster(), arrays.copy(), tests_before=self._tests)

    def asked(self, nodes: Iterable[int]) -> None:
        """Hear that nodes are sent training messages; new ones become clients, in the order of their ids."""
        if self._now is None:
            return
        new = sorted(node for node in set(nodes) if f"node {node}" not in self.members.by_key)
        hellos = [Hello(0, (), None, name=str(self.plan.names.get(node, f"node {node}"))[:80]) for node in new]
        self.members.register([(f"node {node}", hello) for node, hello in zip(new, hellos, strict=True)])
        self._now.asked = sorted({*self._now.asked, *map(self._client, nodes)})

    def comes(self, replies: Sequence[Message]) -> None:
        """Hear the replies, before the strategy sees them: it may change them."""
        now = self._now
        if now is None:
            return
        records: dict[int, ArrayRecord] = {}
        messages: dict[int, Message] = {}
        refused, trained, weights = dict(now.refused), {}, {}
        for reply in replies:
            node = reply.metadata.src_node_id
            self.asked([node])
            client = self._client(node)
            if reply.has_error():
                refused[client] = f"the client failed: {reply.error.reason or f'code {reply.error.code}'}"
                continue
            messages[client] = reply
            try:
                records[client], trained[client], weights[client] = self._read(reply, now.form)
            except UserError as wrong:
                refused[client] = str(wrong)
        now.records, now.replies, now.weights, now.refused = records, trained, weights, refused
        now.roster = Roster(
            info(m.id, int(m.key.split()[1]), m.name, weights.get(m.id, 0)) for m in self.members.by_id().values()
        )
        if _averages(self.strategy):
            now.average = True
            return
        try:
            now.again = Again(copied(self.strategy), self._number, messages, generators())
        except NotAgain as wrong:
            now.why_not = str(wrong)

    def makes(self, arrays: ArrayRecord | None) -> None:
        """Hear what the strategy made of the replies."""
        if self._now is None:
            return
        self._now.made = None if arrays is None else arrays.copy()
        if self._now.average and not self._now.averaged():
            self._now.average, self._now.why_not = False, "its aggregate is not the average of the replies"
        self._now.settled()

    def tests(self, replies: Sequence[Message]) -> None:
        """Hear the evaluate replies."""
        worth = self.plan.worth if isinstance(self.plan.worth, ByClients) else ByClients()
        found, tested = dict[int, tuple[float, float]](), dict[int, Tested]()
        for reply in replies:
            node = reply.metadata.src_node_id
            known = self.members.by_key.get(f"node {node}")
            if reply.has_error() or known is None or len(reply.content.metric_records) != 1:
                continue
            metrics = next(iter(reply.content.metric_records.values()))
            samples = _number(metrics.get(_weighted_by(self.strategy))) or 0.0
            value = worth.figure(metrics)
            if value is not None:
                found[known.id] = (value, samples)
            tested[known.id] = _tested(metrics, samples)
        if self._now is not None:
            self._now.tests = found
        self._tests = found
        sound = {c: one for c, one in tested.items() if one.loss is not None}
        if sound:
            self._figures = figures_of(np.array(sorted(sound)), [sound[c] for c in sorted(sound)], False, ())

    def ends(self) -> None:
        """Play the round that the strategy has played, and keep it."""
        now, self._now = self._now, None
        if now is None or self._setup is None or self.state is None or self._folder is None:
            return
        with same_generators():
            record = self._played(now, self._setup, self.state)
            self._folder.append(record)
            self._folder.checkpoint(record.played.state)
            self.state = record.played.state

    def close(self) -> None:
        """Settle what is open, and close the run directory; one without a round is deleted."""
        self.ends()
        folder, setup, state = self._folder, self._setup, self.state
        self._folder = None
        if folder is None or setup is None or state is None:
            return
        with same_generators():
            if folder.is_new:
                folder.discard()
                return
            if setup.mechanism.settle is not None:
                nobody = Watched(Form.of(ArrayRecord()), self.plan.worth, Roster(), ArrayRecord())
                last = finish(replace(setup, federation=Replies(nobody)), state)
                folder.owe(last.state.round, last.view.posted)
                folder.checkpoint(last.state)
                folder.receipts(last.state.round, last.state.book, last.view.posted)
            if not self.rounds:
                section = RunSection(**{**self.plan.experiment.run.model_dump(), "rounds": state.round})
                whole = self.plan.experiment.model_copy(update={"run": section, "model": self._model})
                write_whole(folder.path / "config.toml", whole.to_toml())
            folder.close()

    # ---- how it is kept

    def _client(self, node: int) -> int:
        return self.members.by_key[f"node {node}"].id

    def _read(self, reply: Message, form: Form) -> tuple[ArrayRecord, Trained, float]:
        """Return a reply's arrays, what hanse knows of it, and its weight. Raises UserError for what is no update."""
        content = reply.content
        if len(content.array_records) != 1:
            raise UserError(f"its reply has {len(content.array_records)} array records: must be one")
        arrays = next(iter(content.array_records.values())).copy()
        metrics: dict[str, Any] = dict(next(iter(content.metric_records.values()), {}))
        weight = _number(metrics.get(_weighted_by(self.strategy)))
        if weight is not None and weight < 0:
            raise UserError(f"its reply's {_weighted_by(self.strategy)!r} is {weight}: must be at least 0")
        loss = next((k for k, v in metrics.items() if "loss" in k.lower() and _number(v) is not None), None)
        counted = (loss, _weighted_by(self.strategy))
        told = {k: float(v) for k, v in metrics.items() if _number(v) is not None and k not in counted and len(k) <= 80}
        row = form.row(arrays, "its reply")
        one = Trained(
            0,
            row,
            weight or 0.0,
            None if loss is None else float(metrics[loss]),
            0,
            metrics=dict(list(told.items())[:20]),
        )
        return arrays, one, weight or 0.0

    def _played(self, now: Watched, setup: Setup, state: LoopState) -> RoundRecord:
        """Return the record of a round; one with a gap where its values, or all of it, cannot be had."""
        for client in now.asked:
            if client not in now.replies and client not in now.refused:
                now.refused = {**now.refused, client: LOST}
        begun, gap = time.perf_counter(), ""
        mechanism = watching(setup.mechanism, now)
        room = setup.context.num_clients
        try:
            if len(self.members.by_key) > room:
                raise NoWorthError(f"{len(self.members.by_key)} nodes came, more than clients={room} has room for")
            played = play_round(replace(setup, mechanism=mechanism, federation=Replies(now)), state)
        except Exception as wrong:
            gap = _line(wrong)
            played = self._without_values(now, setup, state, mechanism)
        if not gap and played.view.values is None and mechanism.value is not None:
            gap = "nobody replied soundly" if not len(played.view.trained) else "nothing was valued"
        after = self._really(now, played.state)
        played = replace(played, state=replace(after, states={**state.states, **after.states}))
        seconds = {"valued": time.perf_counter() - begun, "round": time.perf_counter() - self._begun}
        record = RoundRecord.of(played, self._figures, seconds)
        if gap:
            record.metrics["gap"] = gap
            self.gaps.append(f"round {self._number}: {gap}")
            LOG.warning("hanse: round %d: no values: %s", self._number, gap)
        return record

    def _without_values(self, now: Watched, setup: Setup, state: LoopState, mechanism: Mechanism) -> Played:
        """Return the round without values, or, if that cannot be had, one in which nothing happened."""
        bare = replace(mechanism, value=None)
        try:
            return play_round(replace(setup, mechanism=bare, federation=Replies(now)), state)
        except Exception as wrong:
            LOG.warning("hanse: round %d: nothing is recorded of it: %s", self._number, _line(wrong))

            clients = np.array(sorted(now.asked), np.int64)
            seats = Seats.at(clients, np.zeros(len(clients), np.int64))
            return failed_round(replace(setup, federation=Replies(now)), state, now.roster, seats, _line(wrong))

    def _really(self, now: Watched, state: LoopState) -> LoopState:
        """Return the state with the model that the strategy made, whatever hanse would have made."""
        if now.made is None:
            return state
        try:
            row = now.form.row(now.made, "the aggregate")
        except UserError:
            return state
        return replace(state, table=replace(state.table, rows=row.unsqueeze(0)))

    @property
    def _model(self) -> ModelSection:
        """What the config says of the model."""
        worth = self.plan.worth
        if isinstance(worth, ByModule):
            module = worth.problem.module
            return ModelSection(name=OBJECT, object=type(module).__name__, fingerprint=structure(module))
        assert self._form is not None
        names = repr(list(zip(self._form.names, map(tuple, self._form.layout.shapes), strict=True)))
        digest = hashlib.blake2b(names.encode(), digest_size=8).hexdigest()
        return ModelSection(name=OBJECT, object="the app's arrays", fingerprint=digest)

    def _make(self, arrays: ArrayRecord, module: nn.Module | None) -> None:
        """Make the setup, the first state and the run directory."""
        worth, form = self.plan.worth, self._form
        assert form is not None
        section = RunSection(**{**self.plan.experiment.run.model_dump(), "rounds": self.rounds})
        experiment = self.plan.experiment.model_copy(update={"model": self._model, "run": section})
        samples, classes = None, None
        shape: tuple[int, ...] = (1,)
        if isinstance(worth, ByModule):
            samples, classes, shape = worth.samples, worth.num_classes, tuple(worth.samples.x.shape[1:])
        room = experiment.data.clients
        data = RemoteData.of([0] * room, shape, classes, samples)
        if isinstance(worth, ByModule):
            problem, engine = worth.problem, worth.engine
        else:  # models are judged elsewhere, and the module is never run
            problem = Problem(nn.Identity(), form.layout)
            engine = make_engine(EngineChoice("sequential", 1, 1), problem)
        row = form.row(arrays, "initial arrays")
        context = Context(room, self.rounds, experiment.run.seed, Recipe(), form.layout, lambda k: row.clone())
        nobody = Watched(form, worth, Roster(), arrays)
        mechanism = self.plan.mechanism
        setup = Setup(
            mechanism, Replies(nobody), context, Judge(problem, engine, samples, 1, classes), data, problem, engine,
            torch.device("cpu"), np.zeros(0, np.int64), remote=True, grant=round(experiment.clients.grant * TOKEN),
            floor=round(experiment.ledger.floor * TOKEN),
        )  # fmt: skip
        about = describe(watching(mechanism, nobody).slots(), {}, None, None, room, experiment.run.seed)
        said: Mapping[str, Any] = {"input_shape": shape, "num_classes": classes}
        self._folder = RunDir.create(
            self.plan.out, experiment, self.hold, data=fingerprint(data), about=about, shape=said,
            overwrite=self.plan.overwrite, books=mechanism.settle is not None,
        )  # fmt: skip
        self.members.path = self.plan.out / "members.json"
        self._setup, self.state = setup, first_state(setup)


@contextmanager
def guarded(watch: Watch) -> Iterator[None]:
    """Let nothing of hanse's reach the training: what goes wrong with keeping the run ends the keeping, with a line."""
    if watch.broken:
        yield
        return
    try:
        with same_generators():
            yield
    except Exception as wrong:
        watch.broken = True
        line = str(wrong) if isinstance(wrong, UserError | MachineError) else first_line(wrong)
        LOG.warning("hanse: the run in %s is kept no further: %s", watch.plan.out, line)
        LOG.debug("where it was", exc_info=True)


def _averages(strategy: Strategy) -> bool:
    """Say whether a strategy's aggregate is Flower's own weighted average."""
    return type(strategy).aggregate_train is FedAvg.aggregate_train


def _weighted_by(strategy: Any) -> str:
    """Return the name of the metric by which a strategy, or the one that it wraps, weighs replies."""
    while not isinstance(getattr(strategy, "weighted_by_key", None), str):
        strategy = getattr(strategy, "strategy", None)
        if strategy is None:
            return "num-examples"
    found: str = strategy.weighted_by_key
    return found


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        return None
    return float(value)


def _tested(metrics: Mapping[str, Any], samples: float) -> Tested:
    """Return what a client's evaluation says of loss and accuracy, under whatever names."""
    numbers = {k.lower(): v for k, value in metrics.items() if (v := _number(value)) is not None}
    loss = next((v for k, v in numbers.items() if "loss" in k), None)
    right = next((v for k, v in numbers.items() if "acc" in k and 0 <= v <= 1), None)
    return Tested("test", loss, right, int(samples))


def _line(wrong: Exception) -> str:
    """Return why in one line."""
    plain = isinstance(wrong, NoWorthError | NotAgain | UserError)
    return " ".join((str(wrong) if plain else first_line(wrong)).split())[:LONGEST]
