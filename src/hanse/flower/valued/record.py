"""Keeps a Flower strategy's rounds as a run of hanse: values, payments, books and the run directory.

:class:`Valued <hanse.flower.valued.valued.Valued>` tells a :class:`Watch` what the strategy does. At the end of
each round the watch plays it with the mechanism of :mod:`hanse.flower.valued.mechanism` and appends it to the run
directory. :class:`Plan` holds what the user has asked for.

Nothing here may affect the training, so all calls go through :func:`guarded`. A round that cannot be valued is recorded
with the reason, its *gap*. If the run directory cannot be written, a warning says so and recording ends.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy
from torch import nn

from hanse.base.errors import MachineError, UserError, first_line
from hanse.base.files import write_whole
from hanse.base.lock import Hold
from hanse.core.declared import MOST_METRICS
from hanse.core.part import Context, Mechanism
from hanse.core.port import Roster, Tested, Trained
from hanse.core.recipe import Recipe
from hanse.core.table import Seats
from hanse.core.telling import describe
from hanse.data.choices import OBJECT
from hanse.data.federated import RemoteData
from hanse.data.fingerprint import fingerprint
from hanse.data.frames import name_of
from hanse.federation.codec import WireError
from hanse.flower.arrays import Form, own_copy
from hanse.flower.members import Hello, Members
from hanse.flower.replies import arrays_of, content_of, numbers_of, samples_of
from hanse.flower.valued.mechanism import Replies, Watched, info, row_of, watching
from hanse.flower.valued.reaggregate import LEAST_S, Again, Child, NotAgain, pickled
from hanse.flower.valued.states import Kept, states
from hanse.flower.valued.worth import ByClients, ByFunction, ByModule, NoWorthError, Worth
from hanse.learning.engines import EngineChoice, make_engine
from hanse.learning.figures import accuracy_of, loss_name, loss_of
from hanse.learning.job import Problem
from hanse.learning.models import structure
from hanse.runs.config import Experiment, ModelSection, RunSection
from hanse.runs.judge import Judge
from hanse.runs.loop import settled
from hanse.runs.round import LoopState, Played, failed_round, first_state, play_round
from hanse.runs.round_record import RoundRecord
from hanse.runs.rundir import RunDir
from hanse.runs.session import Session
from hanse.runs.testing import Figures, figures_of

LOG = logging.getLogger("hanse.valued")
LONGEST = 300  # the most characters of a recorded gap
MOST_KEYS = 12  # of what clients report, in a warning
LOST = "no reply"  # the refusal of a client that was asked and has not answered


@dataclass(frozen=True)
class Plan:
    """The user's settings for a watched run.

    Attributes:
        experiment: the run's experiment, as in ``config.toml``.
        worth: what judges models.
        out: the run directory.
        names: the nodes' names, by Flower's node id. Alternatively, the key of a value that nodes report, which becomes
            their name.
        overwrite: whether a run in ``out`` may be replaced.

    Examples:
        >>> mechanism = {"name": "hanse.flower.valued.mechanism:flower"}
        >>> experiment = Experiment(mechanism=mechanism, data={"clients": 10})
        >>> plan = Plan(experiment, ByFunction(lambda arrays: float(arrays["w"].numpy().sum())), Path("run"))
        >>> plan.mechanism.name
        'flower'
    """

    experiment: Experiment
    worth: Worth
    out: Path
    names: Mapping[int, str] | str = field(default_factory=dict)
    overwrite: bool = False

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism, before any round."""
        return self.experiment.mechanism.built


@dataclass
class Watch:
    """A run that is being watched.

    The listener calls :meth:`begins` once. In each round it calls :meth:`asks`, :meth:`asked`, :meth:`comes`,
    :meth:`makes`, :meth:`tests` and :meth:`ends`, in this order. At the end it calls :meth:`close`.

    Attributes:
        plan: what the user has asked for.
        strategy: the strategy that is watched.
        hold: the lock of the run directory.
        members: the nodes that have come so far, as clients.
        state: the loop's state after the last recorded round; None before the run directory exists.
        gaps: a line for each round without values.
        rounds: how many rounds are planned. 0: not known.
        broken: whether recording was given up.
        child: the process in which the strategy aggregates again.
        kept: the object that undoes whatever user code changes in this process.
        judged: whether the server evaluates models itself, at the end of a round.

    Examples:
        A round of two clients, told by hand as :class:`hanse.flower.valued.valued.Valued` does it:

        >>> from flwr.app import Array
        >>> from hanse.flower.rehearsal import InProcessGrid
        >>> def model(*w):
        ...     return ArrayRecord({"w": Array(np.array(w, np.float32))})
        >>> def answer(message, context):
        ...     arrays = model(1, 0) if context.node_id == 100 else model(0, 1)
        ...     metrics = MetricRecord({"num-examples": 10, "train_loss": 0.5})
        ...     return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
        >>> grid, strategy = InProcessGrid({100: answer, 101: answer}), FedAvg()
        >>> mechanism = {"name": "hanse.flower.valued.mechanism:flower"}
        >>> experiment = Experiment(mechanism=mechanism, data={"clients": 10})
        >>> plan = Plan(experiment, ByFunction(lambda arrays: float(arrays["w"].numpy()[0])), Path("run"))
        >>> with Hold(plan.out) as hold:
        ...     watch = Watch(plan, strategy, hold)
        ...     watch.begins(model(0, 0), rounds=1)
        ...     watch.asks(1, model(0, 0))
        ...     watch.asked([100, 101])
        ...     question = RecordDict({"arrays": model(0, 0)})
        ...     messages = [Message(question, dst_node_id=node, message_type="train") for node in (100, 101)]
        ...     watch.comes(grid.send_and_receive(messages))
        ...     watch.makes(model(0.5, 0.5))
        ...     watch.tests([])
        ...     watch.ends()
        ...     watch.close()
        >>> watch.state.round, watch.gaps, (plan.out / "metrics.jsonl").exists()
        (1, [], True)
    """

    plan: Plan
    strategy: Strategy
    hold: Hold
    members: Members = field(default_factory=Members)
    state: LoopState | None = None
    gaps: list[str] = field(default_factory=list)
    rounds: int = 0
    broken: bool = False
    child: Child = field(default_factory=Child)
    kept: Kept = field(default_factory=Kept)
    judged: bool = False
    _setup: Session | None = None
    _folder: RunDir | None = None
    _form: Form | None = None
    _now: Watched | None = None
    _number: int = 0
    _tests: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    _figures: Figures = field(default_factory=Figures)
    _begun: float = 0.0
    _said: dict[str, float] = field(default_factory=dict)
    _keys: set[str] = field(default_factory=set)
    _warned: bool = False

    # ---- what the strategy tells

    def begins(self, arrays: ArrayRecord | None, rounds: int | None) -> None:
        """Make the run directory.

        Args:
            arrays: the initial arrays. None: they are not known until the first round.
            rounds: how many rounds are planned, if that is known.

        Raises:
            UserError: the arrays cannot be valued. Nothing was sent to clients yet.
        """
        self.rounds = self.rounds or rounds or 0
        if arrays is None or self._setup is not None:
            return
        worth = self.plan.worth
        module = worth.problem.module if isinstance(worth, ByModule) else None
        self._form = Form.of(arrays) if module is None else Form.of_module(module, arrays)
        if isinstance(worth, ByFunction):
            worth.first_worth(own_copy(arrays))  # a mistake in it is better found now than as a gap in each round
        self._make(arrays)

    def asks(self, number: int, arrays: ArrayRecord) -> None:
        """Take note that round ``number`` (from 1) begins with ``arrays``."""
        # the round before has had no evaluation, which would have ended it
        if self._now is not None:
            self.ends()
        self.begins(arrays, None)
        self._begun = time.perf_counter()
        assert self._form is not None
        self._number = number
        self._figures, self._said = Figures(), {}
        self._now = Watched(self._form, self.plan.worth, Roster(), own_copy(arrays), tests_before=self._tests)

    def asked(self, nodes: Iterable[int]) -> None:
        """Take note of the nodes that get training messages. New nodes become clients, in ascending order of ids."""
        if self._now is None:
            return
        new = sorted(node for node in set(nodes) if f"node {node}" not in self.members.by_key)
        given = self.plan.names if isinstance(self.plan.names, Mapping) else {}
        hellos = [_hello(str(given.get(node, f"node {node}"))) for node in new]
        self.members.register([(f"node {node}", hello) for node, hello in zip(new, hellos, strict=True)])
        self._now.asked = sorted({*self._now.asked, *map(self._client, nodes)})

    def comes(self, replies: Sequence[Message]) -> None:
        """Take the replies, before the strategy may change them.

        Sound replies are kept as updates, the others with the reason of their refusal. If the strategy might not
        average, it is pickled here. All repeated aggregates of a round together may take as long as the round has taken
        so far, or ``LEAST_S`` if that is longer.
        """
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
            try:
                content = content_of(reply, "the client")
            except WireError as wrong:
                refused[client] = str(wrong)
                continue
            said = _reported(content)
            self._keys |= said.keys()
            if isinstance(self.plan.names, str):
                self._named(node, said.get(self.plan.names), self.plan.names)
            try:
                # which of two answers the strategy takes is its own business, so that neither counts
                if client in messages:
                    raise UserError("it answered more than once")
                records[client], trained[client], weights[client] = self._read(content, now.form)
            except Exception as wrong:  # arrays of whatever kind and bytes
                refused[client] = str(wrong) if isinstance(wrong, UserError) else f"its reply: {first_line(wrong)}"
                for kept in (records, trained, weights):
                    kept.pop(client, None)
            messages.setdefault(client, reply)
        now.records, now.replies, now.weights, now.refused = records, trained, weights, refused
        now.answered, now.roster = list(messages), self._roster(weights)
        self._warn_of_names()
        if averages(self.strategy):
            now.average = True
            return
        if isinstance(now.worth, ByClients):  # which asks for no coalition's model
            return
        try:
            seconds = max(LEAST_S, time.perf_counter() - self._begun)
            now.again = Again(self.child, pickled(self.strategy), self._number, messages, states(), seconds)
        except NotAgain as wrong:
            now.why_not = str(wrong)

    def _warn_of_names(self) -> None:
        """Warn, once, if ``names`` is a key that none of the first replies has."""
        key = self.plan.names
        if not isinstance(key, str) or not self._keys or self._warned:
            return
        self._warned = True
        if key not in self._keys:
            told = ", ".join(f"{name!r:.80}" for name in sorted(self._keys)[:MOST_KEYS])
            LOG.warning("hanse: names: no client reports %r, so they are called by node id; they report %s", key, told)

    def _named(self, node: int, said: Any, key: str) -> None:
        """Call a node what it reports of itself. What another one is called already gets the node's id behind it."""
        if isinstance(said, bool) or not isinstance(said, str | int | float):
            return
        kind = key.removesuffix("id").rstrip("-_ ") or key
        name = name_of(said if isinstance(said, str) else f"{kind} {said:g}")
        own = self.members.by_key[f"node {node}"]
        if name in {one.name for one in self.members.by_key.values() if one is not own}:
            name = f"{name[:40]} (node {node})"
        if own.name != name:
            self.members.register([(own.key, _hello(name))])

    def says(self, who: str, figures: object) -> None:
        """Take the strategy's own figures of the round, from clients' training or evaluation, or from the server."""
        if self._now is None or not isinstance(figures, MetricRecord):
            return
        numbers = {name: x for name, x in numbers_of(figures).items() if math.isfinite(x) and len(name) <= 80}
        self._said |= {f"strategy/{who}/{name}": x for name, x in list(numbers.items())[:MOST_METRICS]}
        if who == "server":
            found = {"test/loss": loss_of(numbers), "test/accuracy": accuracy_of(numbers)}
            self._said |= {name: x for name, x in found.items() if math.isfinite(x)}

    def makes(self, arrays: ArrayRecord | None) -> None:
        """Take the strategy's aggregate of the replies, or None if it made none."""
        if self._now is None:
            return
        self._now.made = None if arrays is None else own_copy(arrays)
        self._now.settled()

    def tests(self, replies: Sequence[Message]) -> None:
        """Take the evaluate replies, which measure the gain of this round and of the next one."""
        worth = self.plan.worth if isinstance(self.plan.worth, ByClients) else ByClients()
        found, tested = dict[int, tuple[float, float]](), dict[int, Tested]()
        for reply in replies:
            node = reply.metadata.src_node_id
            known = self.members.by_key.get(f"node {node}")
            if reply.has_error() or known is None or len(reply.content.metric_records) != 1:
                continue
            try:
                numbers, samples = self._numbers(reply.content)
            except WireError:
                continue
            value = worth.figure(numbers)
            if value is not None:
                found[known.id] = (value, samples)
            tested[known.id] = _tested(numbers, samples)
        if self._now is not None:
            self._now.tests = found
        self._tests = found
        sound = {c: one for c, one in tested.items() if one.loss is not None}
        if sound:
            self._figures = figures_of(np.array(sorted(sound)), [sound[c] for c in sorted(sound)], False, ())

    def ends(self) -> None:
        """Play the round for hanse's record, and append it to the run directory."""
        now, self._now = self._now, None
        if now is None or self._setup is None or self.state is None or self._folder is None:
            return
        record = self._played(now, self._setup, self.state)
        if self._setup.books:
            record = record.closed()
        self._folder.append(record.packed())
        self._folder.checkpoint(record.played.state)
        self.state = record.played.state

    def close(self) -> None:
        """Finish the record: end the open round, settle what is still open in the books, and close the run directory.

        A run directory without a single round is deleted.
        """
        self.ends()
        folder, setup, state = self._folder, self._setup, self.state
        self._folder = None
        if folder is None or setup is None or state is None:
            return
        if folder.is_new:
            folder.discard()
            return
        if setup.mechanism.settle is not None:
            # the last settlement asks nobody anything
            nobody = Watched(Form.of(ArrayRecord()), self.plan.worth, Roster(), ArrayRecord())
            last, posted, _ = settled(replace(setup, federation=Replies(nobody)), state)
            folder.owe(last.round, posted)
            folder.checkpoint(last)
            folder.receipts()
        # only now is it known how many rounds there were
        if not self.rounds:
            section = RunSection(**{**self.plan.experiment.run.model_dump(), "rounds": state.round})
            whole = self.plan.experiment.model_copy(update={"run": section, "model": self._model})
            write_whole(folder.path / "config.toml", whole.to_toml())
        folder.close()

    # ---- how it is kept

    def _roster(self, weights: Mapping[int, float]) -> Roster:
        """Return the clients that have come so far, with the samples that the replies of this round state."""
        known = self.members.by_id().values()
        return Roster(info(m.id, int(m.key.split()[1]), m.name, weights.get(m.id, 0)) for m in known)

    def _client(self, node: int) -> int:
        """Return the client id of a node."""
        return self.members.by_key[f"node {node}"].id

    def _read(self, content: RecordDict, form: Form) -> tuple[ArrayRecord, Trained, float]:
        """Return a reply's arrays, its update, and its weight. Raises UserError for what is not a sound update."""
        try:
            arrays = own_copy(arrays_of(content))
        except WireError as wrong:
            raise UserError(f"its reply: {wrong}") from None
        try:
            numbers, weight = self._numbers(content)
        except WireError as wrong:
            raise UserError(f"its reply's {wrong}") from None
        name = loss_name(numbers)
        loss = None if name is None else numbers.pop(name)
        told = {k: v for k, v in numbers.items() if len(k) <= 80}
        row = row_of(form, arrays, "its reply")
        if not bool(row.isfinite().all()):
            raise UserError("update has NaN or infinite entries")
        one = Trained(0, row, weight, loss, 0, metrics=dict(list(told.items())[:MOST_METRICS]))
        return arrays, one, weight

    def _numbers(self, content: RecordDict) -> tuple[dict[str, float], float]:
        """Return the finite metrics of a reply, without the one that weights it; and that one, 0 if there is none.

        Raises:
            WireError: the weight is not a number of samples.
        """
        said, by = next(iter(content.metric_records.values()), MetricRecord()), _weighted_by(self.strategy)
        weight = samples_of(said, by) or 0.0
        return {name: x for name, x in numbers_of(said).items() if math.isfinite(x) and name != by}, weight

    def _played(self, now: Watched, setup: Session, state: LoopState) -> RoundRecord:
        """Return the record of a round. Where its values, or all of it, cannot be had, its metric "gap" says why."""
        for client in now.asked:
            if client not in now.replies and client not in now.refused:
                now.refused = {**now.refused, client: LOST}
        if not now.roster:  # nothing came back at all
            now.roster = self._roster({})
        begun, gap = time.perf_counter(), ""
        mechanism = watching(setup.mechanism, now)
        try:
            self._fits()
            played = play_round(replace(setup, mechanism=mechanism, federation=Replies(now)), state)
        except Exception as wrong:
            gap = _line(wrong)
            played = self._without_values(now, setup, state, mechanism)
        if not gap and played.view.values is None and mechanism.value is not None:
            gap = "nobody replied soundly" if not len(played.view.trained) else "nothing was valued"
        # whatever became of the values, the next round starts from the strategy's own model
        after = self._really(now, played.state)
        played = replace(played, state=replace(after, states={**state.states, **after.states}))
        seconds = {"play": time.perf_counter() - begun, "round": time.perf_counter() - self._begun}
        record = RoundRecord.of(played, self._figures, seconds)
        record.metrics.update(self._said)
        if gap:
            record.metrics["gap"] = gap
            self.gaps.append(f"round {self._number}: {gap}")
            LOG.warning("hanse: round %d: no values: %s", self._number, gap)
        return record

    def _fits(self) -> None:
        """Raise UserError if more nodes have come than there is room for."""
        room, came = self.plan.experiment.data.clients, len(self.members.by_key)
        if came > room:
            raise UserError(f"clients: {came} nodes have come, and there is room for {room}")

    def _without_values(self, now: Watched, setup: Session, state: LoopState, mechanism: Mechanism) -> Played:
        """Return the round without values; or, if that cannot be had either, one in which nothing happened."""
        bare = replace(mechanism, value=None)
        try:
            self._fits()
            return play_round(replace(setup, mechanism=bare, federation=Replies(now)), state)
        except Exception as wrong:
            LOG.warning("hanse: round %d: nothing is recorded of it: %s", self._number, _line(wrong))
            clients = np.array(sorted(now.asked), np.int64)
            seats = Seats.at(clients, np.zeros(len(clients), np.int64))
            return failed_round(replace(setup, federation=Replies(now)), state, now.roster, seats, _line(wrong))

    def _really(self, now: Watched, state: LoopState) -> LoopState:
        """Return the state with the model that the strategy has made, whatever hanse would have made of the replies."""
        if now.made is None:
            return state
        try:
            row = row_of(now.form, now.made, "the aggregate")
        except UserError:
            return state
        return replace(state, table=replace(state.table, rows=row.unsqueeze(0)))

    @property
    def _model(self) -> ModelSection:
        """What ``config.toml`` says of the model: its class, or the app's arrays, with a fingerprint of names and
        shapes.
        """
        worth = self.plan.worth
        if isinstance(worth, ByModule):
            module = worth.problem.module
            return ModelSection(name=OBJECT, object=type(module).__name__, fingerprint=structure(module))
        assert self._form is not None
        names = repr(list(zip(self._form.names, map(tuple, self._form.layout.shapes), strict=True)))
        digest = hashlib.blake2b(names.encode(), digest_size=8).hexdigest()
        return ModelSection(name=OBJECT, object="the app's arrays", fingerprint=digest)

    def _make(self, arrays: ArrayRecord) -> None:
        """Make the setup of the loop, its first state, and the run directory."""
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
        row = form.row(arrays)
        context = Context(room, self.rounds, experiment.run.seed, Recipe(), form.layout, lambda k: row.clone())
        nobody = Watched(form, worth, Roster(), own_copy(arrays))
        mechanism = self.plan.mechanism
        setup = Session(
            experiment, mechanism, Replies(nobody), context, Judge(problem, engine, samples, 1, classes), data,
            problem, engine, torch.device("cpu"), np.zeros(0, np.int64), remote=True,
        )  # fmt: skip
        about = describe(watching(mechanism, nobody).slots(), {}, None, None, room, experiment.run.seed)
        said: Mapping[str, Any] = {"input_shape": shape, "num_classes": classes}
        self._folder = RunDir.create(
            self.plan.out, experiment, self.hold, data=fingerprint(data), about=about, shape=said,
            overwrite=self.plan.overwrite, books=mechanism.settle is not None,
        )  # fmt: skip
        self.members.path = self.plan.out / "members.json"
        self._setup, self.state = setup, first_state(setup)


def _hello(name: str) -> Hello:
    """Return what a node is taken to say of itself: its name alone."""
    return Hello(0, (), None, name=name[:80])


def guarded(watch: Watch, listen: Callable[[], None]) -> None:
    """Call ``listen`` without any effect on the training.

    Generators and settings are restored. An exception ends the recording with a warning. Later calls then do nothing.
    """
    if watch.broken:
        return
    try:
        with watch.kept.as_before():
            listen()
    except Exception as wrong:
        watch.broken = True
        line = str(wrong) if isinstance(wrong, UserError | MachineError) else first_line(wrong)
        LOG.warning("hanse: the run in %s is kept no further: %s", watch.plan.out, line)
        LOG.debug("where it was", exc_info=True)


def averages(strategy: Strategy) -> bool:
    """Return whether a strategy aggregates as Flower's FedAvg does."""
    return type(strategy).aggregate_train is FedAvg.aggregate_train


def _reported(content: RecordDict) -> dict[str, Any]:
    """Return what a reply reports, by key: its configs and metrics. Of a key that comes twice the first counts."""
    records = (*content.config_records.values(), *content.metric_records.values())
    return {key: x for one in reversed(records) if isinstance(one, Mapping) for key, x in dict(one).items()}


def _weighted_by(strategy: Any) -> str:
    """Return the metric by which a strategy, or the one that it wraps (its attribute ``strategy``), weights replies."""
    while not isinstance(getattr(strategy, "weighted_by_key", None), str):
        strategy = getattr(strategy, "strategy", None)
        if strategy is None:
            return "num-examples"
    found: str = strategy.weighted_by_key
    return found


def _tested(numbers: Mapping[str, float], samples: float) -> Tested:
    """Return what a client's evaluation says of loss and accuracy, whatever it calls them."""
    loss, right = loss_of(numbers), accuracy_of(numbers)
    return Tested("test", None if math.isnan(loss) else loss, None if math.isnan(right) else right, int(samples))


def _line(wrong: Exception) -> str:
    """Return why something failed, in one line."""
    plain = isinstance(wrong, NoWorthError | NotAgain | UserError)
    return " ".join((str(wrong) if plain else first_line(wrong)).split())[:LONGEST]
