"""Listens to a Flower strategy, and keeps its rounds as a run of hanse: values, payments, books and the run directory.

Flower's ``Strategy.start`` calls ``configure_train``, ``aggregate_train`` and ``aggregate_evaluate`` of the strategy.
The block of a :class:`Valued` gets the strategy as a second object (:func:`_listened`): of a class derived from its
own, with the same attributes, whose methods of these names record what happens and call those of the first object. That
one is never changed, so a strategy that copies or saves itself there does so as its author wrote it. Before the next
round begins, and at the end of the block, a round is played with the mechanism of
:mod:`hanse.flower.valued.mechanism` and appended to the run directory.

Nothing here may affect the training. A round that cannot be valued is recorded with the reason, its *gap*. If the run
directory cannot be written, a warning says so and recording ends.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import wraps
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy
from torch import nn

from hanse.base.errors import MachineError, UserError, first_line
from hanse.base.factories import OBJECT
from hanse.base.files import MEMBERS, write_whole
from hanse.base.lock import Hold
from hanse.core.declared import MOST_METRICS
from hanse.core.part import Context
from hanse.core.port import ClientInfo, Roster, Trained
from hanse.core.recipe import Recipe
from hanse.core.table import Seats
from hanse.core.telling import describe
from hanse.data.federated import RemoteData
from hanse.data.frames import name_of
from hanse.federation.codec import WireError
from hanse.flower.arrays import ArrayLayout, own_copy
from hanse.flower.members import NAME, Hello, Members
from hanse.flower.nodes import arrays_of, content_of, numbers_of, samples_of
from hanse.flower.nodes import guarded as read_safely
from hanse.flower.valued.mechanism import Replies, WatchedRound, watching
from hanse.flower.valued.reaggregate import LEAST_S, Reaggregation
from hanse.flower.valued.worth import ByFunction, ByModule, Worth
from hanse.learning.engines import EngineChoice, make_engine
from hanse.learning.figures import accuracy_of, loss_name, loss_of
from hanse.learning.job import Problem
from hanse.learning.models import structure
from hanse.learning.process import untouched
from hanse.runs.checkpoint import LoopState
from hanse.runs.config import Experiment, ModelSection
from hanse.runs.experiment import settled
from hanse.runs.round import failed_round, first_state, play_round
from hanse.runs.round_record import RoundRecord
from hanse.runs.rundir import RunDir, claim_anew
from hanse.runs.sections import RunSection
from hanse.runs.server_judge import ServerJudge
from hanse.runs.setup import Session
from hanse.runs.testing import Figures

S = TypeVar("S", bound=Strategy)
LOG = logging.getLogger("hanse.valued")
LONGEST = 300  # the most characters of a recorded gap


def as_before() -> AbstractContextManager[None]:
    """Return a block in which user code may draw: the global random generators are restored after it."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return untouched(torch.device("cuda" if used else "cpu"))


class Valued(Generic[S]):
    """A strategy that is observed inside a ``with`` block, and the run that is kept of it; :func:`hanse.valued` makes
    it.

    Args:
        strategy: the app's strategy.
        experiment: the run's experiment, as in ``config.toml``.
        worth: what judges models.
        hold: the lock of the run directory.
        names: the nodes' names, by Flower's node id. Alternatively, the key of a value that nodes report, which becomes
            their name.
        overwrite: whether a run in the directory may be replaced.

    Attributes:
        listened: the strategy as the block gets it.
        members: the nodes that have come so far, as clients.
        again: makes aggregates again, in a process of its own.
        state: the loop's state after the last recorded round; None before the run directory exists.
        gaps: a line for each round without values, with the reason.
        rounds: how many rounds are planned. 0: not known.
        broken: whether recording was given up.
    """

    def __init__(
        self,
        strategy: S,
        experiment: Experiment,
        worth: Worth,
        hold: Hold,
        names: Mapping[int, str] | str,
        overwrite: bool,
    ) -> None:
        self.strategy, self.experiment, self.worth, self.hold = strategy, experiment, worth, hold
        self.names, self.overwrite = names, overwrite
        self.listened = self._listened()
        self.members, self.again, self.gaps = Members(), Reaggregation(), list[str]()
        self.state: LoopState | None = None
        self.rounds, self.broken = 0, False
        self._session: Session | None = None
        self._folder: RunDir | None = None
        self._nobody: WatchedRound | None = None  # a round to which nobody has come
        self._now: WatchedRound | None = None
        self._averages_few: bool | None = None  # whether a strategy of its own averages few replies as it does all
        self._said = dict[str, float]()
        self._number, self._begun = 0, 0.0

    def start(self, *given: Any, **more: Any) -> Any:
        """Raise UserError: start the strategy instead, inside the ``with`` block."""
        raise UserError("start: write 'with hanse.valued(...) as strategy:', and start the strategy inside it")

    def __enter__(self) -> S:
        """Return the strategy to start. Raises UserError if ``out`` is taken."""
        claim_anew(self.hold, overwrite=self.overwrite)
        return self.listened

    def __exit__(self, kind: type[BaseException] | None, wrong: object, trace: object) -> None:
        """Finish the run's record, also when an exception ends the block."""
        self._quietly(self.close)
        self.again.close()
        self.hold.release()
        if self.state is None and kind is None:
            LOG.warning("hanse: no round was seen: start what 'with hanse.valued(...) as strategy' gives")
        elif self.state is not None and (rounds := self.state.round):
            said = f"{rounds - len(self.gaps)} of {rounds} rounds have values"
            logging.getLogger("flwr").info("hanse: %s; see: hanse report %s", said, self.hold.folder)

    # ---- listening

    def _listened(self) -> S:
        """Return a second object of the strategy, with the same attributes, some of whose methods are heard.

        A copy of it, or what is read back after it was pickled, is the strategy's own kind again.
        """
        strategy, kind = self.strategy, type(self.strategy)
        heard: dict[str, Callable[..., Any]] = {  # before what the strategy itself has, or later sets
            "start": self._started, "configure_train": self._configured,
            "aggregate_train": self._aggregated, "aggregate_evaluate": self._evaluated,
        }  # fmt: skip
        members: dict[str, Any] = {
            "__getattribute__": lambda own, name: heard.get(name) or object.__getattribute__(own, name),
            "__copy__": lambda own: copy.copy(strategy),
            # read back, it is what the first object is read back as; cast only returns it
            "__reduce_ex__": lambda own, protocol: (cast, (None, strategy)),
        }
        made: S = object.__new__(type(kind.__name__, (kind,), members))
        made.__dict__ = vars(strategy)
        return made

    def _started(self, *given: Any, **more: Any) -> Any:
        """Call the strategy's ``start`` once the run directory is made; the server's evaluation is heard, too."""
        own, given = type(self.strategy).start, (self.listened, *given)
        try:
            said = inspect.signature(Strategy.start).bind(*given, **more)
        except TypeError:  # a start of the user's own, with other arguments
            return own(*given, **more)
        if callable(judge := said.arguments.get("evaluate_fn")):
            said.arguments["evaluate_fn"] = self._judging(judge)
        arrays, rounds = said.arguments["initial_arrays"], said.arguments.get("num_rounds")
        if isinstance(arrays, ArrayRecord) and isinstance(rounds, int | None):
            with as_before():
                self.begins(arrays, rounds)
        return own(*said.args, **said.kwargs)

    def _configured(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any) -> Any:
        """Call the strategy's ``configure_train``."""
        self._quietly(self.asks, server_round, arrays)
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        self._quietly(lambda: self.asked([message.metadata.dst_node_id for message in messages]))
        return messages

    def _aggregated(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Call the strategy's ``aggregate_train``."""
        heard = list(replies)
        self._quietly(self.comes, copy.deepcopy(heard))  # before the strategy may change them
        found = self.strategy.aggregate_train(server_round, heard)
        self._quietly(lambda: self.makes(*found))
        return found

    def _evaluated(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Call the strategy's ``aggregate_evaluate``."""
        found = self.strategy.aggregate_evaluate(server_round, replies)
        self._quietly(self.says, "evaluate", found)
        return found

    def _judging(self, judge: Callable[..., Any]) -> Callable[..., Any]:
        """Return the server's own evaluation, so that what it says is heard."""

        @wraps(judge)
        def heard(*given: Any, **more: Any) -> Any:
            found = judge(*given, **more)
            self._quietly(self.says, "server", found)
            return found

        return heard

    def _quietly(self, listen: Callable[..., None], *given: Any) -> None:
        """Call ``listen`` without any effect on the training.

        Generators and settings are restored. An exception ends the recording with a warning. Later calls then do
        nothing.
        """
        if self.broken:
            return
        try:
            with as_before():
                listen(*given)
        except Exception as wrong:
            self.broken = True
            line = str(wrong) if isinstance(wrong, UserError | MachineError) else first_line(wrong)
            LOG.warning("hanse: the run in %s is kept no further: %s", self.hold.folder, line)
            LOG.debug("where it was", exc_info=True)

    # ---- what the strategy tells

    def begins(self, arrays: ArrayRecord, rounds: int | None) -> None:
        """Make the run directory, unless it is there.

        Args:
            arrays: the initial arrays.
            rounds: how many rounds are planned, if that is known.

        Raises:
            UserError: the arrays cannot be valued. Nothing was sent to clients yet.
        """
        if self._session is not None:
            return
        self.rounds = rounds or 0
        worth = self.worth
        module = worth.problem.module if isinstance(worth, ByModule) else None
        form = ArrayLayout.of(arrays) if module is None else ArrayLayout.of_module(module, arrays)
        if isinstance(worth, ByFunction):  # a mistake in it is better found now than as a gap in each round
            worth.worth(arrays)
        self._nobody = WatchedRound(form, worth, Roster(), own_copy(arrays))
        self._make(self._nobody)

    def asks(self, number: int, arrays: ArrayRecord) -> None:
        """Take note that round ``number`` (from 1) begins with ``arrays``."""
        self.ends()  # of the round before
        self.begins(arrays, None)
        assert self._nobody is not None
        self._begun, self._number, self._said = time.perf_counter(), number, {}
        self._now = replace(self._nobody, before=own_copy(arrays))

    def asked(self, nodes: Iterable[int]) -> None:
        """Take note of the nodes that get training messages. New nodes become clients, in ascending order of ids."""
        if self._now is None:
            return
        new = sorted(node for node in set(nodes) if f"node {node}" not in self.members.by_key)
        given = self.names if isinstance(self.names, Mapping) else {}
        self.members.register([(f"node {node}", _hello(str(given.get(node, f"node {node}")))) for node in new])
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
        messages, records, trained = dict[int, Message](), dict[int, ArrayRecord](), dict[int, Trained]()
        refused = dict[int, str]()
        for reply in replies:
            node = reply.metadata.src_node_id
            self.asked([node])
            client, content = self._client(node), read_safely(content_of, reply, "the client")
            if isinstance(content, str):
                refused[client] = content
                continue
            if isinstance(self.names, str):
                self._named(node, content)
            read = read_safely(self._read, content, now.form)
            if client in messages:  # which of two answers the strategy takes is its own business: neither counts
                read = "it answered more than once"
                records.pop(client, None), trained.pop(client, None)
            messages.setdefault(client, reply)
            if isinstance(read, str):
                refused[client] = read
            else:
                records[client], trained[client] = read
        now.records, now.replies, now.refused, now.answered = records, trained, refused, list(messages)
        now.roster = self._roster(trained)
        if averages(self.strategy):  # the models of coalitions follow from the replies
            return
        try:
            seconds = max(LEAST_S, time.perf_counter() - self._begun)
            self.again.begin(self.strategy, self._number, messages, seconds)
            now.again = self.again
        except UserError as wrong:
            now.why_not = str(wrong)

    def _named(self, node: int, content: RecordDict) -> None:
        """Call a node what it reports of itself, if ``names`` is the key of it: a text, or a number after the key."""
        records: list[Any] = [*content.metric_records.values(), *content.config_records.values()]
        said = next((record[self.names] for record in records if self.names in record), None)
        if isinstance(said, int | float):
            said = f"{str(self.names).removesuffix('-id')} {said:g}"
        if isinstance(said, str):
            self.members.register([(f"node {node}", _hello(name_of(said)))])

    def makes(self, arrays: ArrayRecord | None, figures: object = None) -> None:
        """Take the strategy's aggregate of the replies, or None if it made none, and of their metrics."""
        if self._now is None:
            return
        self._now.made = None if arrays is None else own_copy(arrays)
        known = averages(self.strategy)
        average = self._now.averaged(known)
        if average and not known and self._averages_few is None:  # once: two aggregates are made again for it
            self._averages_few = self._now.averages_few()
        self._now.average = average and self._averages_few is not False
        self.says("train", figures)

    def says(self, who: str, figures: object) -> None:
        """Take the strategy's own figures of the round, from clients' training or evaluation, or from the server."""
        if self._now is None or not isinstance(figures, MetricRecord):
            return
        numbers = {name: x for name, x in numbers_of(figures).items() if math.isfinite(x) and len(name) <= NAME}
        self._said |= {f"strategy/{who}/{name}": x for name, x in list(numbers.items())[:MOST_METRICS]}
        if who == "server":
            found = {"test/loss": loss_of(numbers), "test/accuracy": accuracy_of(numbers)}
            self._said |= {name: x for name, x in found.items() if math.isfinite(x)}

    def ends(self) -> None:
        """Play the round for hanse's record, and append it to the run directory. Without a round, nothing is done."""
        now, self._now = self._now, None
        if now is None or self._session is None or self.state is None or self._folder is None:
            return
        record = self._played(now, self._session, self.state)
        if self._session.books:
            record = record.closed()
        self._folder.append(record.filed(), record.played.state)
        self.state = record.played.state

    def close(self) -> None:
        """Finish the record: end the open round, settle what is still open in the books, and close the run directory.

        A run directory without a single round is deleted.
        """
        self.ends()
        folder, session, state = self._folder, self._session, self.state
        self._folder = None
        if folder is None or session is None or state is None:
            return
        if folder.is_new:
            folder.discard()
            return
        if session.mechanism.settle is not None:
            last, posted, _ = settled(session, state)  # which asks nobody anything
            folder.owe(last.round, posted)
            folder.checkpoint(last)
            folder.receipts()
        if not self.rounds:  # only now is it known how many there were
            write_whole(folder.path / "config.toml", self._of_rounds(state.round).to_toml())
        folder.close()

    # ---- how it is kept

    def _roster(self, trained: Mapping[int, Trained]) -> Roster:
        """Return the clients that have come so far, with the samples that the replies of this round state."""
        samples = {client: int(one.num_samples) for client, one in trained.items()}
        known = self.members.by_id().values()
        return Roster(ClientInfo(m.id, m.name, m.key, samples.get(m.id, 0)) for m in known)

    def _client(self, node: int) -> int:
        """Return the client id of a node."""
        return self.members.by_key[f"node {node}"].id

    def _read(self, content: RecordDict, form: ArrayLayout) -> tuple[ArrayRecord, Trained]:
        """Return a reply's arrays and its update, of weight 0 if the reply does not say how many samples it has. Raises
        WireError for what is not a sound update.
        """
        arrays, said = own_copy(arrays_of(content)), next(iter(content.metric_records.values()), MetricRecord())
        by = getattr(self.strategy, "weighted_by_key", None) or "num-examples"
        weight = samples_of(said, by) or 0.0
        numbers = {name: x for name, x in numbers_of(said).items() if math.isfinite(x) and name != by}
        name = loss_name(numbers)
        loss = None if name is None else numbers.pop(name)
        told = [(key, x) for key, x in numbers.items() if len(key) <= NAME]
        row = form.row(arrays)
        if not bool(row.isfinite().all()):
            raise WireError("update has NaN or infinite entries")
        return arrays, Trained(0, row, weight, loss, 0, metrics=dict(told[:MOST_METRICS]))

    def _played(self, now: WatchedRound, session: Session, state: LoopState) -> RoundRecord:
        """Return the record of a round. Where its values, or all of it, cannot be had, its metric "gap" says why."""
        for client in set(now.asked) - now.replies.keys() - now.refused.keys():
            now.refused = {**now.refused, client: "no reply"}
        if not now.roster:  # nothing came back at all
            now.roster = self._roster({})
        begun, gap, played = time.perf_counter(), "", None
        room, came = self.experiment.data.clients, len(self.members.by_key)
        watched = watching(session.mechanism, now)
        session = replace(session, federation=Replies(now))
        for mechanism in (watched, replace(watched, value=None)):
            try:
                if came > room:
                    raise UserError(f"clients: {came} nodes have come, and there is room for {room}")
                played = played or play_round(replace(session, mechanism=mechanism), state)
            except Exception as wrong:
                said = str(wrong) if isinstance(wrong, UserError | WireError) else first_line(wrong)
                gap = gap or " ".join(said.split())
        if played is None:
            clients = np.array(sorted(now.asked), np.int64)
            played = failed_round(session, state, now.roster, Seats.at(clients, np.zeros_like(clients)), gap)
        if not gap and played.view.values is None and watched.value is not None:
            gap = "nobody replied soundly" if not len(played.view.trained) else "nothing was valued"
        # whatever became of the values, the next round starts from the strategy's own model
        after = replace(played.state, states={**state.states, **played.state.states})
        with suppress(WireError):  # it may have other shapes
            if now.made is not None:
                after = replace(after, table=replace(after.table, rows=now.form.row(now.made).unsqueeze(0)))
        seconds = {"play": time.perf_counter() - begun, "round": time.perf_counter() - self._begun}
        record = RoundRecord.of(replace(played, state=after), Figures(), seconds)
        record.metrics.update(self._said)
        if gap:
            record.metrics["gap"] = gap = gap[:LONGEST]
            self.gaps.append(f"round {self._number}: {gap}")
            LOG.warning("hanse: round %d: no values: %s", self._number, gap)
        return record

    def _of_rounds(self, rounds: int) -> Experiment:
        """Return the experiment with a number of rounds."""
        section = RunSection(**{**self.experiment.run.model_dump(), "rounds": rounds})
        return self.experiment.model_copy(update={"run": section})

    def _make(self, nobody: WatchedRound) -> None:
        """Make the session of the loop, its first state, and the run directory.

        Args:
            nobody: a round to which nobody has come, with the initial arrays.
        """
        worth, form, room, seed = self.worth, nobody.form, self.experiment.data.clients, self.experiment.run.seed
        if isinstance(worth, ByModule):
            samples, classes, problem, engine = worth.samples, worth.num_classes, worth.problem, worth.engine
            shape, module = tuple(samples.x.shape[1:]), type(problem.module).__name__
            digest = structure(problem.module)
        else:  # models are judged elsewhere, and the module is never run
            samples, classes, problem = None, None, Problem(nn.Identity(), form.layout)
            engine, shape, module = make_engine(EngineChoice("sequential", 1, 1), problem), (1,), "the app's arrays"
            shapes = repr(list(zip(form.names, map(tuple, form.layout.shapes), strict=True)))
            digest = hashlib.blake2b(shapes.encode(), digest_size=8).hexdigest()
        model = ModelSection(name=OBJECT, object=module, fingerprint=digest)
        self.experiment = self.experiment.model_copy(update={"model": model})
        experiment, mechanism = self._of_rounds(self.rounds), self.experiment.mechanism.built
        row, data = form.row(nobody.before), RemoteData.of([0] * room, shape, classes, samples)
        session = Session(
            experiment, mechanism, Replies(nobody),
            Context(room, self.rounds, seed, Recipe(), form.layout, lambda k: row.clone()),
            ServerJudge(problem, engine, samples, 1, classes), data, problem, engine, torch.device("cpu"),
            np.zeros(0, np.int64), remote=True,
            about=describe(watching(mechanism, nobody).slots(), {}, None, None, room, seed),
        )  # fmt: skip
        self._folder = RunDir.create(session, self.hold, overwrite=self.overwrite)
        self.members.path = self.hold.folder / MEMBERS
        self._session, self.state = session, first_state(session)


def _hello(name: str) -> Hello:
    """Return what a node is taken to say of itself: its name alone."""
    return Hello(0, (), None, name=name[:NAME])


def averages(strategy: Strategy) -> bool:
    """Return whether a strategy aggregates as Flower's FedAvg does."""
    return getattr(strategy.aggregate_train, "__func__", None) is FedAvg.aggregate_train
