"""``hanse.valued``: values the clients' updates in a Flower app that has its own strategy.

:func:`valued` checks its arguments and returns a :class:`Valued`, a context manager. Inside its ``with`` block the app
starts its own strategy as usual.

Flower's ``Strategy.start`` calls ``configure_train``, ``aggregate_train`` and ``aggregate_evaluate`` of the strategy.
The block of a :class:`Valued` gets the strategy as a second object (``listened``): of a class derived from its
own, with the same attributes, whose methods of these names record what happens and call those of the first object. That
one is never changed, so a strategy that copies or saves itself there does so as its author wrote it. Before the next
round begins, and at the end of the block, a round is played with the mechanism of
:mod:`hanse.flower.valued.mechanism` and appended to the run directory.

Nothing here may affect the training. A round that cannot be valued is recorded with the reason, its *gap*. If the run
directory cannot be written, a warning says so and recording ends.
"""

from __future__ import annotations

import copy
import inspect
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg, Strategy
from torch import nn

from hanse.base.errors import MachineError, UserError, first_line, in_python
from hanse.base.factories import OBJECT
from hanse.base.files import MEMBERS, given_path, write_whole
from hanse.base.lock import Hold
from hanse.base.plain_text import quantity
from hanse.core.declared import MOST_METRICS
from hanse.core.part import Context
from hanse.core.port import Reply, Request, Roster, Train, Trained
from hanse.core.recipe import Recipe
from hanse.core.table import Seats
from hanse.core.telling import describe
from hanse.data.federated import RemoteData
from hanse.data.frames import name_of
from hanse.federation.check import refusal
from hanse.federation.codec import WireError
from hanse.flower.arrays import ArrayLayout, own_copy
from hanse.flower.members import NAME, Hello, Members
from hanse.flower.nodes import arrays_of, content_of, numbers_of, read_safely, samples_of
from hanse.flower.valued.mechanism import OfReplies, ReplyJudge, WatchedRound
from hanse.flower.valued.reaggregate import LEAST_S, Reaggregation
from hanse.flower.valued.worth import ByModule, Worth, judge_of, why_no_slope
from hanse.learning.engines import make_engine
from hanse.learning.figures import accuracy_of, loss_name, loss_of
from hanse.learning.job import Problem
from hanse.learning.models import structure
from hanse.learning.process import untouched
from hanse.mechanisms.fits import CLIENTS_GIVE, unmet_needs
from hanse.runs.checkpoint import LoopState
from hanse.runs.config import Experiment, ModelSection
from hanse.runs.experiment import ended
from hanse.runs.round import failed_round, first_state, play_round
from hanse.runs.round_record import RoundRecord
from hanse.runs.rundir import RunDir, claim_anew
from hanse.runs.server_judge import ServerJudge
from hanse.runs.setup import REMOTE, Session
from hanse.runs.testing import Figures

S = TypeVar("S", bound=Strategy)
LOG = logging.getLogger("hanse.valued")
LONGEST = 300  # the most characters of a recorded gap
GIVEN = frozenset({"strategy", "validation", "values", "groups", "clients", "average"})  # needs that such a run meets
MECHANISM = "hanse.flower.valued.mechanism:flower"  # what the run's config.toml names
# settings of an experiment, and the arguments that they are here
ARGUMENTS = {
    "mechanism.value": "method",
    "mechanism.settle": "payment",
    "clients.grant": "grant",
    "data.clients": "clients",
    "run.seed": "seed",
}


def valued(
    strategy: S,
    *,
    out: str | Path,
    validation: Any = None,
    model: nn.Module | None = None,
    utility: str | None = None,
    target: str | None = None,
    method: str | Mapping[str, Any] | None = None,
    payment: Any = None,
    grant: float = 100.0,
    names: Mapping[int, str] | str | None = None,
    clients: int = 1000,
    seed: int = 0,
    overwrite: bool = False,
) -> Valued[S]:
    """Return a context manager in which a Flower strategy trains as usual, and each client's reply is valued.

    Training is the same as without it, bit for bit. An error in hanse's part becomes a gap in the record, with the
    reason, and a warning from the logger "hanse.valued".

    Args:
        strategy: any strategy of Flower's Message API (``flwr.serverapp.strategy.Strategy``), including your own.
        out: the run directory to create, for ``hanse report``, ``statement``, ``serve`` and ``ledger``.
        validation: what judges models. It is a function ``evaluate(arrays)`` of an ``ArrayRecord``, which returns a
            number (higher is better) or numbers by name. With ``model``, it is instead a validation set: ``(x, y)``, a
            PyTorch or Hugging Face data set, or a ``DataLoader``.
        model: a torch module whose state the app's arrays hold. It is not changed.
        utility: the figure that counts. It is one that ``evaluate`` returns, or that hanse measures on ``model``
            ("loss", "accuracy", "balanced", or a metric of hanse). None: the loss, else the accuracy, else the only
            number. The name decides whether lower is better (:func:`hanse.learning.figures.less_is_better`: losses and
            errors).
        target: the name of the labels, if samples are dictionaries or a table.
        method: how values are computed, as in ``mechanism.value`` of an experiment: "path" or "first_order" (with
            ``model``, by its loss), "mixture", "exact", "gtg", "monte_carlo", "leave_one_out", "banzhaf", or a table
            with options. None: "path" if there is a ``model`` whose loss has a gradient and the strategy averages as
            Flower's FedAvg does; otherwise "mixture". If the strategy does not average, "mixture" is replaced by
            "exact" (up to 6 replies) or "gtg", which repeat the aggregation for each coalition. "path" and
            "first_order" then give no values.
        payment: a payment rule, as in ``mechanism.settle``: its import path, or a table with options. It must not ask
            clients anything. None: nothing is paid.
        grant: with a payment rule, the tokens that a new client gets.
        names: the nodes' names, by Flower's node id. Alternatively, the key of a number or text that clients report
            with their arrays, such as "partition-id"; this becomes their name. None: their ids.
        clients: the largest number of different nodes. Rounds with more nodes have no values.
        seed: the seed of hanse's own random draws. Global generators are restored after each of hanse's steps, so a
            thread of your own that draws from them meanwhile may draw the same numbers again.
        overwrite: whether an existing run in ``out`` may be deleted.

    Returns:
        The context manager. Entering it returns the strategy as it is to be started inside, another object with the
            same attributes, and raises UserError if ``out`` is taken. Its ``start`` raises UserError, before anything
            is sent, if the initial arrays cannot be valued.

    Raises:
        UserError: arguments are wrong. There is a line for each.

    Examples:
        An app writes ``with hanse.valued(strategy, out="runs/x", validation=evaluate) as strategy:`` around its
        ``strategy.start(grid, arrays)``. This is one round of two clients without a network. The first client moves the
        model towards (1, 1). The second sends it back unchanged, which makes the average's step smaller:

        >>> import tempfile
        >>> from types import SimpleNamespace
        >>> import numpy as np
        >>> from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
        >>> from flwr.serverapp.strategy import FedAvg
        >>> from flwr.supercore.task_identity import TaskIdentity
        >>> import hanse
        >>> TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # Flower does this in a server app
        >>> def model(*w):
        ...     return ArrayRecord({"w": Array(np.array(w, np.float32))})
        >>> def evaluate(arrays):
        ...     return {"loss": float(((arrays["w"].numpy() - 1) ** 2).sum())}
        >>> def reply(message):
        ...     arrays = model(1, 0) if message.metadata.dst_node_id == 1 else model(0, 0)
        ...     metrics = MetricRecord({"num-examples": 10})
        ...     return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
        >>> with tempfile.TemporaryDirectory() as out:
        ...     with hanse.valued(FedAvg(), out=f"{out}/run", validation=evaluate, method="exact") as strategy:
        ...         grid = SimpleNamespace(get_node_ids=lambda: [1, 2])
        ...         messages = strategy.configure_train(1, model(0, 0), ConfigRecord(), grid)
        ...         _ = strategy.aggregate_train(1, map(reply, messages))
        ...     run = hanse.load(f"{out}/run", trust=True)
        >>> [(seat["client"], seat["value"]) for seat in run.clients]
        [(0, 0.875), (1, -0.125)]
    """
    if not isinstance(strategy, Strategy):
        kind = f"the class {strategy.__name__}" if isinstance(strategy, type) else type(strategy).__name__
        raise UserError(f"strategy: {kind}: must be an object of a flwr.serverapp.strategy.Strategy, such as FedAvg()")
    if not isinstance(out, str | os.PathLike) or not os.fspath(out):
        raise UserError(f"out: {out!r}: must be the path of a new folder")
    if not isinstance(names, Mapping | str | None):
        raise UserError(f"names: {names!r:.80}: must be names by node id, or what clients report, as 'partition-id'")
    mechanism: dict[str, Any] = {
        "name": MECHANISM, "strategy": type(strategy).__name__, "flower": version("flwr"),
        "settings": _flowers(strategy),
    }  # fmt: skip
    if isinstance(method, Mapping):
        utility = utility or method.get("utility")
    with as_before():
        worth = judge_of(validation, model, utility, target)
        slope = why_no_slope(worth)
        mechanism["value"] = method or ("path" if averages(strategy) and slope is None else "mixture")
        if payment is not None:
            mechanism["settle"] = payment
        # a line about a setting of an experiment, as one about the argument that it is here
        with in_python(lambda line: re.sub("|".join(ARGUMENTS), lambda found: ARGUMENTS[found[0]], line, count=1)):
            experiment = Experiment(
                data={"source": "object", "clients": clients}, mechanism=mechanism, clients={"grant": grant},
                run={"rounds": 0, "seed": seed},
            )  # fmt: skip
            on_server = "slope", "server_gradient"  # if at all
            lacks = dict.fromkeys(CLIENTS_GIVE.difference(on_server), ", which a plain client app does not give")
            lacks |= {} if slope is None else dict.fromkeys(on_server, f": {slope}")
            if lacking := unmet_needs(experiment.mechanism.built, GIVEN, lacks):
                raise UserError(*(lack.line for lack in lacking))
    return Valued(strategy, experiment, worth, Hold(given_path("out", out)), names or {}, overwrite)


# ---- what was asked for


def _flowers(strategy: Strategy) -> dict[str, bool | int | float | str]:
    """Return the parameters of Flower's own strategies that this one has, by name, where they are plain values. Other
    attributes are the user's and may be secrets.
    """
    kinds = [kind for kind in type(strategy).__mro__ if kind.__module__.split(".")[0] == "flwr"]
    known = {name for kind in kinds for name in inspect.signature(kind.__init__).parameters}  # type: ignore[misc]
    plain = {name: value for name, value in vars(strategy).items() if type(value) in (bool, int, float, str)}
    return {name: value for name, value in plain.items() if name in known}


# ---- the strategy, watched


def as_before() -> AbstractContextManager[None]:
    """Return a block in which user code may draw: the global random generators are restored after it."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return untouched(torch.device("cuda" if used else "cpu"))


@dataclass
class Valued(Generic[S]):
    """A strategy that is observed inside a ``with`` block, and the run that is kept of it; :func:`hanse.valued` makes
    it.

    Attributes:
        strategy: the app's strategy.
        experiment: the run's experiment, as in ``config.toml``.
        worth: what judges models.
        hold: the lock of the run directory.
        names: the nodes' names, by Flower's node id. Alternatively, the key of a value that nodes report, which becomes
            their name.
        overwrite: whether a run in the directory may be replaced.
        listened: the strategy as the block gets it.
        members: the nodes that have come so far, as clients.
        again: makes aggregates again, in a process of its own.
        state: the loop's state after the last recorded round; None before the run directory exists.
        gaps: a line for each round without values, with the reason.
        rounds: how many rounds are planned. 0: not known.
        broken: whether recording was given up.
    """

    strategy: S
    experiment: Experiment
    worth: Worth
    hold: Hold
    names: Mapping[int, str] | str
    overwrite: bool
    members: Members = field(default_factory=Members, init=False)
    again: Reaggregation = field(default_factory=Reaggregation, init=False)
    state: LoopState | None = field(default=None, init=False)
    gaps: list[str] = field(default_factory=list, init=False)
    rounds: int = field(default=0, init=False)
    broken: bool = field(default=False, init=False)
    _session: Any = field(default=None, init=False)  # a Session, once the initial arrays are known
    _folder: RunDir | None = field(default=None, init=False)
    _now: WatchedRound | None = field(default=None, init=False)
    _averages: bool | None = field(default=None, init=False)  # whether the strategy averages few replies as it does all

    def __post_init__(self) -> None:
        """Make a second object of the strategy, with the same attributes, some of whose methods are heard.

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
        made.__dict__, self.listened = vars(strategy), made

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
            said = f"{rounds - len(self.gaps)} of {quantity(rounds, 'round')} have values"
            logging.getLogger("flwr").info("hanse: %s; see: hanse report %s", said, self.hold.folder)

    # ---- listening

    def _started(self, *given: Any, **more: Any) -> Any:
        """Call the strategy's ``start`` once the run directory is made; the server's evaluation is heard, too."""
        own, given = type(self.strategy).start, (self.listened, *given)
        try:
            said = inspect.signature(Strategy.start).bind(*given, **more)
        except TypeError:  # a start of the user's own, with other arguments
            return own(*given, **more)
        if callable(judge := said.arguments.get("evaluate_fn")):

            @wraps(judge)
            def heard(*given: Any, **more: Any) -> Any:
                found = judge(*given, **more)
                self._in_round(self.says, "server", found)
                return found

            said.arguments["evaluate_fn"] = heard
        arrays, rounds = said.arguments["initial_arrays"], said.arguments.get("num_rounds")
        if isinstance(arrays, ArrayRecord) and isinstance(rounds, int | None):
            with as_before():
                self.begins(arrays, rounds)
        return own(*said.args, **said.kwargs)

    def _configured(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any) -> Any:
        """Call the strategy's ``configure_train``."""
        self._quietly(self.asks, server_round, arrays)
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        self._in_round(self.asked, [message.metadata.dst_node_id for message in messages])
        return messages

    def _aggregated(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Call the strategy's ``aggregate_train``."""
        heard = list(replies)
        self._in_round(self.comes, copy.deepcopy(heard))  # before the strategy may change them
        found = self.strategy.aggregate_train(server_round, heard)
        self._in_round(self.makes, *found)
        return found

    def _evaluated(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Call the strategy's ``aggregate_evaluate``."""
        found = self.strategy.aggregate_evaluate(server_round, replies)
        self._in_round(self.says, "evaluate", found)
        return found

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

    def _in_round(self, listen: Callable[..., None], *given: Any) -> None:
        """Call ``listen`` with the round, if there is one, without any effect on the training."""
        if self._now is not None:
            self._quietly(listen, self._now, *given)

    # ---- what the strategy tells

    def begins(self, arrays: ArrayRecord, rounds: int | None) -> None:
        """Make the session of the loop, its first state, and the run directory, unless they are there.

        Args:
            arrays: the initial arrays.
            rounds: how many rounds are planned, if that is known.

        Raises:
            UserError: the arrays cannot be valued. Nothing was sent to clients yet.
        """
        if self._session is not None:
            return
        self.rounds, worth = rounds or 0, self.worth
        if isinstance(worth, ByModule):
            judge, module = worth.judge, worth.judge.problem.module
            form = ArrayLayout.of_module(module, arrays)
            model = ModelSection(name=OBJECT, object=type(module).__name__, fingerprint=structure(module))
        else:  # models are judged elsewhere, and the module is never run
            form = ArrayLayout.of(arrays)
            worth.worth(arrays)  # a mistake in it is better found now than as a gap in each round
            problem = Problem(nn.Identity(), form.layout)
            judge = ServerJudge(problem, make_engine(REMOTE, problem), None, 1)
            model = ModelSection(name=OBJECT, object="the app's arrays", fingerprint="")
        self.experiment = self.experiment.model_copy(update={"model": model})
        mechanism, room, seed = self.experiment.mechanism.built, self.experiment.data.clients, self.experiment.run.seed
        if mechanism.value is not None:
            mechanism = replace(mechanism, value=OfReplies(mechanism.value, worth))
        row, samples = form.row(arrays), judge.validation
        shape = (1,) if samples is None else tuple(samples.x.shape[1:])
        session = Session(
            self._of_rounds(self.rounds), mechanism, WatchedRound(form, worth, own_copy(arrays)),
            Context(room, self.rounds, seed, Recipe(), form.layout, lambda k: row.clone()), judge,
            RemoteData(np.zeros(room, np.int64), shape, judge.num_classes, samples), judge.problem, judge.engine,
            torch.device("cpu"), np.zeros(0, np.int64), remote=True,
            about=describe(mechanism.slots(), {}, None, None, room, seed),
        )  # fmt: skip
        self._folder = RunDir.create(session, self.hold, overwrite=self.overwrite)
        self.members.path = self.hold.folder / MEMBERS
        self._session, self.state = session, first_state(session)

    def _of_rounds(self, rounds: int) -> Experiment:
        """Return the experiment with a number of rounds."""
        run = self.experiment.run.model_copy(update={"rounds": rounds})
        return self.experiment.model_copy(update={"run": run})

    def asks(self, number: int, arrays: ArrayRecord) -> None:
        """Take note that round ``number`` (from 1) begins with ``arrays``."""
        self.ends()  # of the round before
        self.begins(arrays, None)
        self._now = WatchedRound(self._session.federation.form, self.worth, own_copy(arrays), number)

    def asked(self, now: WatchedRound, nodes: Sequence[int]) -> None:
        """Take note of the nodes that get training messages. New nodes become clients, in ascending order of ids."""
        new = sorted(node for node in set(nodes) if f"node {node}" not in self.members.by_key)
        given = self.names if isinstance(self.names, Mapping) else {}
        self.members.register([(f"node {node}", _hello(str(given.get(node, f"node {node}")))) for node in new])
        now.asked |= set(map(self._client, nodes))

    def _client(self, node: int) -> int:
        """Return the client id of a node."""
        return self.members.by_key[f"node {node}"].id

    def comes(self, now: WatchedRound, replies: Sequence[Message]) -> None:
        """Take the replies, before the strategy may change them.

        Sound replies are kept as updates, the others with the reason of their refusal. If the strategy might not
        average, it is pickled here. All repeated aggregates of a round together may take as long as the round has taken
        so far, or ``LEAST_S`` if that is longer.
        """
        self.asked(now, [reply.metadata.src_node_id for reply in replies])
        messages, asked = dict[int, Message](), Train(0, 0, torch.zeros(now.form.layout.size))
        for reply in replies:
            client, read = self._client(reply.metadata.src_node_id), read_safely(self._read, reply, now.form)
            if not isinstance(read, str):  # what the round would refuse
                read = refusal(Request(client, (asked,)), Reply(client, read[1:])) or read
            if client in messages:  # which of two answers the strategy takes is its own business: neither counts
                read = "it answered more than once"
                now.records.pop(client, None)
                now.replies.pop(client, None)
            if not reply.has_error():
                messages.setdefault(client, reply)
            if isinstance(read, str):
                now.refused[client] = read
            else:
                now.records[client], now.replies[client] = read
        now.answered = messages.keys()
        if not averages(self.strategy):  # otherwise the models of coalitions follow from the replies
            now.again, seconds = self.again, max(LEAST_S, time.perf_counter() - now.begun)
            self.again.begin(self.strategy, now.number, messages, seconds)

    def _read(self, reply: Message, form: ArrayLayout) -> tuple[ArrayRecord, Trained]:
        """Return a reply's arrays and its update, of weight 0 if the reply does not say how many samples it has. Raises
        WireError for what is not a sound update.

        The node is called what it reports of itself, if ``names`` is the key of it: a text, or a number after the key.
        """
        content = content_of(reply, "the client")
        if isinstance(self.names, str):
            records: list[Any] = [*content.metric_records.values(), *content.config_records.values()]
            told = next((record[self.names] for record in records if self.names in record), None)
            told = int(told) if isinstance(told, float) and told.is_integer() else told
            name = f"{self.names.removesuffix('-id')} {told}" if isinstance(told, int | float) else told
            if isinstance(name, str):
                self.members.register([(f"node {reply.metadata.src_node_id}", _hello(name_of(name)))])
        arrays, said = own_copy(arrays_of(content)), next(iter(content.metric_records.values()), MetricRecord())
        by = getattr(self.strategy, "weighted_by_key", None) or "num-examples"
        weight = samples_of(said, by) or 0.0
        numbers = {name: x for name, x in numbers_of(said).items() if math.isfinite(x) and name != by}
        named = loss_name(numbers)
        loss = None if named is None else numbers.pop(named)
        return arrays, Trained(0, form.row(arrays), weight, loss, 0, metrics=_short(numbers))

    def makes(self, now: WatchedRound, arrays: ArrayRecord | None, figures: object = None) -> None:
        """Take the strategy's aggregate of the replies, or None if it made none, and of their metrics."""
        now.made = None if arrays is None else own_copy(arrays)
        average, known = now.is_average(now.made, list(now.replies)), averages(self.strategy)
        if average and not known and self._averages is None:  # once: two aggregates are made again for it
            tells = not all(now.is_average(now.made, [client]) for client in now.replies)  # nothing if they are alike
            self._averages = now.averages_few() if tells else None
        now.average = average and (known or self._averages is True)
        self.says(now, "train", figures)

    def says(self, now: WatchedRound, who: str, figures: object) -> None:
        """Take the strategy's own figures of the round, from clients' training or evaluation, or from the server."""
        if not isinstance(figures, MetricRecord):
            return
        numbers = {name: x for name, x in numbers_of(figures).items() if math.isfinite(x)}
        now.said |= {f"strategy/{who}/{name}": x for name, x in _short(numbers).items()}
        if who == "server":
            found = {"test/loss": loss_of(numbers), "test/accuracy": accuracy_of(numbers)}
            now.said |= {name: x for name, x in found.items() if math.isfinite(x)}

    # ---- how it is kept

    def ends(self) -> None:
        """Play the round for hanse's record, and append it to the run directory. Without a round, nothing is done."""
        now, self._now = self._now, None
        if now is None or self._folder is None or self.state is None:
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
        folder, self._folder = self._folder, None
        if folder is None or self.state is None:
            return
        if folder.is_new:
            folder.discard()
            return
        ended(self._session, self.state, folder)  # which asks nobody anything
        if not self.rounds:  # only now is it known how many there were
            write_whole(folder.path / "config.toml", self._of_rounds(self.state.round).to_toml())
        folder.close()

    def _played(self, now: WatchedRound, session: Session, state: LoopState) -> RoundRecord:
        """Return the record of a round. Where its values, or all of it, cannot be had, its metric "gap" says why."""
        now.refused |= dict.fromkeys(now.asked - now.replies.keys() - now.refused.keys(), "no reply")
        samples = {client: int(one.num_samples) for client, one in now.replies.items()}
        known, room = self.members.by_id().values(), self.experiment.data.clients
        now.roster = Roster(replace(m.info, num_samples=samples.get(m.id, 0)) for m in known)
        begun, gap, played = time.perf_counter(), "", None
        session = replace(session, federation=now, judge=ReplyJudge.of(cast(ServerJudge, session.judge), now))
        for mechanism in (session.mechanism, replace(session.mechanism, value=None)):
            try:
                if len(known) > room:
                    came = quantity(len(known), "node has", "nodes have")
                    raise UserError(f"clients: {came} come, and there is room for {room}")
                played = played or play_round(replace(session, mechanism=mechanism), state)
            except Exception as wrong:
                said = str(wrong) if isinstance(wrong, UserError | WireError) else first_line(wrong)
                gap = gap or " ".join(said.split())
        if played is None:
            clients = np.array(sorted(now.asked), np.int64)
            played = failed_round(session, state, now.roster, Seats.at(clients, np.zeros_like(clients)), gap)
        if not gap and played.view.values is None and session.mechanism.value is not None:
            gap = "nobody replied soundly" if not len(played.view.trained) else "nothing was valued"
        # whatever became of the values, the next round starts from the strategy's own model
        after = replace(played.state, states={**state.states, **played.state.states})
        with suppress(WireError):  # it may have other shapes
            if now.made is not None:
                after = replace(after, table=replace(after.table, rows=now.form.row(now.made).unsqueeze(0)))
        seconds = {"play": time.perf_counter() - begun, "round": time.perf_counter() - now.begun}
        record = RoundRecord.of(replace(played, state=after), Figures(), seconds)
        record.metrics.update(now.said)
        if gap:
            record.metrics["gap"] = gap = gap[:LONGEST]
            self.gaps.append(f"round {now.number}: {gap}")
            LOG.warning("hanse: round %d: no values: %s", now.number, gap)
        return record


def _hello(name: str) -> Hello:
    """Return what a node is taken to say of itself: its name alone."""
    return Hello(0, (), None, name=name[:NAME])


def _short(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return as many numbers as a record has, without those of a long name."""
    return dict([(name, x) for name, x in numbers.items() if len(name) <= NAME][:MOST_METRICS])


def averages(strategy: Strategy) -> bool:
    """Return whether a strategy aggregates as Flower's FedAvg does."""
    return getattr(strategy.aggregate_train, "__func__", None) is FedAvg.aggregate_train
