"""A mechanism of hanse instead of a Flower strategy, with an unchanged client app.

:func:`strategy` (as ``hanse.flower.strategy``) checks that a plain Flower app can do what the mechanism asks. It
returns a :class:`MechanismStrategy`. Its ``start`` has the arguments of a Flower strategy's ``start``. It waits for the
nodes, plays the rounds with the mechanism's selection, weights, values and payments, and returns Flower's ``Result``.

It has no ``configure_train`` and ``aggregate_train``. A mechanism may ask clients several times in a round and choose
by their answers who trains, and two calls per round are not enough for this.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from flwr.supercore import log
from torch import Tensor, nn

from hanse.base.errors import UserError
from hanse.base.factories import OBJECT
from hanse.base.files import MEMBERS, given_path
from hanse.base.lock import Hold
from hanse.base.plain_text import quantity
from hanse.core.part import Context, Judge, Mechanism
from hanse.core.telling import describe
from hanse.data.federated import RemoteData
from hanse.data.samples import Samples
from hanse.data.spec import OwnData
from hanse.federation.check import one_line
from hanse.federation.policy import Loyal
from hanse.flower.arrays import ArrayLayout, opened
from hanse.flower.existing_app.federation import Keys, PlainFederation
from hanse.flower.members import NAME, Hello, Members
from hanse.flower.nodes import gathered
from hanse.learning.by_function import FunctionEngine, FunctionJudge
from hanse.learning.figures import Figures, as_figures
from hanse.learning.job import Problem
from hanse.mechanisms.fits import CLIENTS_GIVE, WORDS, unmet_needs
from hanse.mechanisms.registry import word_of
from hanse.runs.config import Experiment
from hanse.runs.experiment import Observer, PlayedRun, play
from hanse.runs.rundir import claim_anew, clear
from hanse.runs.setup import Session

Evaluate = Callable[[ArrayRecord], Any]  # returns numbers by name, or one number
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]  # of the round's number in Flower, and the model

_INSTEAD = ": a plain train or evaluate function does not do that; hanse.flower.client_app does (docs/flower.md)"
_OTHERWISE = "or take a value part that needs no more than models, such as value='gtg'"
# what a plain app lacks of what hanse's own clients give, and what to do instead
APP_LACKS = {
    **dict.fromkeys(CLIENTS_GIVE - {"sizes", "weights"}, _INSTEAD),
    "gradients": f"{_INSTEAD}; {_OTHERWISE}",
    **dict.fromkeys(("slope", "server_gradient"), f": evaluate says only what a model is worth; {_OTHERWISE}"),
    "server_classes": ": evaluate says only what a model is worth",
}


def strategy(
    mechanism: str | Mapping[str, Any] | Mechanism,
    *,
    out: str | Path | None = None,
    evaluate: Evaluate | None = None,
    clients: int | None = None,
    test: bool = True,
    grant: float = 100.0,
    seed: int = 0,
    keys: Keys = Keys(),  # noqa: B008
    observers: Sequence[Observer] = (),
    overwrite: bool = False,
    **options: Any,
) -> MechanismStrategy:
    """Return a mechanism in the form of a Flower strategy. Start it with ``.start(grid, initial_arrays, num_rounds)``.

    Args:
        mechanism: the mechanism's name ("greedyfed"), a table as under ``[mechanism]`` in an experiment's file, or a
            :class:`hanse.core.part.Mechanism`.
        out: the run directory to create, for ``hanse report``, ``statement``, ``serve`` and ``ledger``. None: nothing
            is written.
        evaluate: a function ``evaluate(arrays)`` that scores a model on the server's own samples. It returns one number
            (higher is better), or numbers by name ("loss", "accuracy", ...). The name then decides whether lower is
            better (:func:`hanse.learning.figures.less_is_better`). Mechanisms that value updates need it.
        clients: how many nodes take part; ``start`` waits for them. None: those that are online once there are two.
        test: whether all nodes test the model after each round, by the app's evaluate function.
        grant: tokens that each client starts with, if the mechanism pays.
        seed: the seed of all random draws.
        keys: names of records and metrics, if they are not those of Flower's own strategies.
        observers: see every round (:class:`hanse.runs.experiment.Observer`).
        overwrite: whether a run in ``out`` may be replaced.
        options: the mechanism's options, such as ``clients_per_round=3``, if it is given by name.

    Raises:
        UserError: the mechanism or an option is wrong, or the mechanism needs something that a plain app cannot do. The
            message has a line for each mistake.

    Examples:
        >>> strategy("greedyfed", evaluate=lambda arrays: {"loss": 0.5}, clients_per_round=3).experiment.mechanism.name
        'greedyfed'
        >>> strategy("greedyfed", clients_per_round=3)
        Traceback (most recent call last):
        hanse.base.errors.UserError: mechanism.value: 'gtg' needs evaluate=..., a function that says what a model is
        worth
    """
    table = mechanism
    if isinstance(mechanism, str):
        table = {"name": mechanism, **options}
    elif options:
        raise UserError(f"{next(iter(options))}: give a mechanism's options with its name, or in its table")
    experiment = Experiment(mechanism=table, data={"source": OBJECT}, clients={"grant": grant}, run={"seed": seed})
    given = frozenset({"clients", "client_validation"})  # an app's evaluate function has the samples
    given |= {"validation"} if evaluate is not None else set()
    given |= {"losses"} if keys.loss else set()
    built = experiment.mechanism.built
    lines, train = [_in_flower(lack.line) for lack in unmet_needs(built, given, APP_LACKS)], built.train
    if any(block.initial == "different" for block in train.blocks(Context.tiny())):
        what = "clusters that start alike stay alike, and an app has one model to start from"
        lines.append(f"mechanism.train: {word_of(train, 'train')}: {what}{_INSTEAD}")
    if clients is not None and clients < 1:
        lines.append(f"clients: {clients}: must be at least 1")
    if lines:
        raise UserError(*lines)
    where = None if out is None else given_path("out", out)
    return MechanismStrategy(experiment, where, evaluate, clients, test, keys, tuple(observers), overwrite)


def _in_flower(line: str) -> str:
    """Return a line about something that is missing, with what to do about it in this call."""
    for need, instead in (
        ("validation", "evaluate=..., a function that says what a model is worth"),
        ("losses", 'each client\'s training loss: name its metric, as in keys=hanse.flower.Keys(loss="train_loss")'),
    ):
        line = line.replace(str(WORDS[need]), instead)
    return line


def _mixable(arrays: ArrayRecord) -> ArrayLayout:
    """Return the form of the arrays that training starts from.

    Raises:
        UserError: there are no real numbers to mix, or some are not finite.
    """
    form = ArrayLayout.of(arrays)
    if not form.layout.size:
        kinds = ", ".join(sorted({array.dtype for array in arrays.values()})) or "none"
        raise UserError(
            f"initial_arrays: arrays of {kinds}: hanse mixes real numbers; a model whose aggregate is no mean "
            "(trees) keeps its own strategy, and hanse.valued values it by aggregating again"
        )
    if not all(np.isfinite(opened(arrays[name])).all() for name in form.names):
        raise UserError("initial_arrays: have numbers that are not finite")
    return form


@dataclass
class MechanismStrategy:
    """A mechanism that is started like a Flower strategy; :func:`strategy` makes it.

    Attributes:
        experiment: the mechanism and its settings. ``start`` fills in data and rounds.
        run: the :class:`hanse.runs.played_run.PlayedRun` that ``start`` has played. It is None before that.

    The other fields are arguments of :func:`strategy`.
    """

    experiment: Experiment
    out: Path | None
    evaluate: Evaluate | None
    clients: int | None
    test: bool
    keys: Keys
    observers: tuple[Observer, ...]
    overwrite: bool
    run: PlayedRun | None = field(default=None, init=False)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Play the rounds, and return what a Flower strategy's ``start`` returns.

        Args:
            grid: Flower's connection to the nodes, or a :class:`hanse.flower.in_process.InProcessGrid`.
            initial_arrays: the model that training starts from.
            num_rounds: how many rounds, at least 1.
            timeout: how many seconds an exchange waits. Nodes that have not answered by then lose their seat in the
                round.
            train_config: values that travel with each train message.
            evaluate_config: values that travel with each evaluate message.
            evaluate_fn: a function ``evaluate_fn(round, arrays)`` that tests each round's model at the server. What it
                returns is recorded as the server's test.

        Returns:
            The first of the server's models, and the metrics of each round.

        Raises:
            UserError: raised before round 0 if the arrays cannot be mixed, there are fewer nodes than seats, or ``out``
                already holds a run.
        """
        if num_rounds < 1:
            raise UserError(f"num_rounds: {num_rounds}: must be at least 1")
        form, result = _mixable(initial_arrays), Result()
        # without a run directory the lock is taken on a folder that nobody else knows
        with tempfile.TemporaryDirectory(prefix="hanse-") as scratch, Hold(self.out or Path(scratch) / "run") as hold:
            if self.out is not None:
                claim_anew(hold, overwrite=self.overwrite)
            nodes = gathered(grid, self.clients)
            members = Members(None if self.out is None else self.out / MEMBERS)
            federation = PlainFederation(
                grid, members, form, self.keys, clients=len(nodes), deadline_s=timeout,
                train_config=dict(train_config or {}), evaluate_config=dict(evaluate_config or {}),
            )  # fmt: skip

            def tested(number: int, arrays: ArrayRecord) -> Figures:
                """Return the figures of ``evaluate_fn`` by name, and keep them for Flower's result."""
                if evaluate_fn is None or (said := evaluate_fn(number, arrays)) is None:
                    return {}
                result.evaluate_metrics_serverapp[number] = said
                return as_figures(said, "evaluate_fn")

            engine = FunctionEngine(lambda row: tested(federation.round + 1, form.arrays(row)))
            # in the place of the samples that evaluate_fn has
            tests = None if evaluate_fn is None else Samples(torch.zeros(1, 1), torch.zeros(1))
            session = self._session(federation, form, form.row(initial_arrays), num_rounds, engine, tests)
            if self.out is not None:
                if self.overwrite and hold.folder.exists():
                    clear(hold.folder)
                hold.folder.mkdir(parents=True, exist_ok=True)
                hold.take()
            # a plain app says nothing of its samples until it reports their number with its first update
            names = {key: str(getattr(node, "name", "") or f"node {node.node_id}") for key, node in nodes.items()}
            members.register([(key, Hello(0, (), None, name=one_line(name)[:NAME])) for key, name in names.items()])
            tested(0, initial_arrays)
            # RoundLog only has on_round
            observers = [cast(Observer, RoundLog(num_rounds)), *self.observers]
            self.run = play(session, observers, None if self.out is None else hold)
        if len(rows := self.run.table.shared):  # the first of the server's models
            result.arrays = form.arrays(self.run.table.rows[int(rows[0])])
        for records, found in (
            (federation.trained, result.train_metrics_clientapp),
            (federation.tested, result.evaluate_metrics_clientapp),
        ):
            for number, each in sorted(records.items()):
                found[number] = aggregated(each, self.keys.weighted_by)
        return result

    def _settled(self, clients: int, rounds: int) -> Experiment:
        """Return the experiment as it is recorded: with the number of clients and rounds, data and model marked as the
        app's.
        """
        data = self.experiment.data.model_copy(
            update={"clients": clients, "source": OwnData(OBJECT, object="a Flower app's own")}
        )
        run = self.experiment.run.model_copy(update={"rounds": rounds})
        model = type(self.experiment.model)(name=OBJECT, object="the arrays of a Flower app")
        return self.experiment.model_copy(update={"data": data, "run": run, "model": model})

    def _session(
        self,
        federation: PlainFederation,
        form: ArrayLayout,
        first: Tensor,
        rounds: int,
        engine: FunctionEngine,
        tests: Samples | None,
    ) -> Session:
        """Return what the round loop plays with.

        Raises:
            UserError: more seats a round were asked for than there are nodes.
        """
        mechanism, experiment, clients = self.experiment.mechanism.built, self.experiment, federation.clients
        seed = experiment.run.seed
        seats = getattr(mechanism.select, "clients_per_round", 1)
        if isinstance(seats, int) and seats > clients and "clients_per_round" in experiment.mechanism.table:
            here = quantity(clients, "node that is", "nodes that are")
            raise UserError(f"clients_per_round: {seats}: more than the {here} here")

        recipe, slots = experiment.train.recipe, mechanism.slots()
        context = Context(clients, rounds, seed, recipe, form.layout, lambda k: first.clone(), slots)
        evaluate = self.evaluate
        judge = FunctionJudge(evaluate and (lambda row: as_figures(evaluate(form.arrays(row)), "evaluate")))
        data = RemoteData(np.ones(clients, np.int64), (1,), None, None, tests)
        return Session(
            self._settled(clients, rounds),
            mechanism,
            federation,
            context,
            cast(Judge, judge),  # it has what mechanisms ask of one that needs no samples
            data,
            Problem(nn.Identity(), form.layout, "mse"),
            engine,
            torch.device("cpu"),
            torch.arange(clients if self.test else 0).numpy(),
            remote=True,
            about=describe(slots, {}, Loyal(), [], clients, seed),
        )


# ---- what it reports


@dataclass(frozen=True)
class RoundLog:
    """An observer that logs each round as Flower's own strategies do.

    Attributes:
        rounds: how many rounds are planned.

    Examples:
        >>> RoundLog(rounds=3).on_round({"round": 0, "answered": 4, "seats": 4, "test/accuracy": 0.5}, None)
    """

    rounds: int

    def on_round(self, metrics: Mapping[str, Any], played: Any) -> None:
        """Log a finished round: its test figures and how many seats answered, or why it failed."""
        figures = [f"{name} {x:.4g}" for name in ("test/loss", "test/accuracy") if (x := metrics.get(name)) is not None]
        answered = f"{metrics.get('answered', 0)} of {quantity(metrics.get('seats', 0), 'seat')} answered"
        said = [metrics["failed"]] if "failed" in metrics else [answered, *figures]
        log(INFO, "[ROUND %s/%s] %s", metrics["round"] + 1, self.rounds, ", ".join(said))


def aggregated(records: Sequence[MetricRecord], weighted_by: str) -> MetricRecord:
    """Return the metrics of a round's replies as one record of sample-weighted means, as Flower's strategies make them.

    Args:
        records: one for each reply. Only metrics that all of them have are kept.
        weighted_by: the metric that holds the number of samples.

    Returns:
        The means, or an empty record if the replies report no samples at all.
    """
    common = set.intersection(*(set(one) for one in records)) if records else set()
    alike = [RecordDict({"metrics": MetricRecord({k: v for k, v in one.items() if k in common})}) for one in records]
    if not sum(float(cast(float, one[weighted_by])) for one in records):
        return MetricRecord()
    return aggregate_metricrecords(alike, weighted_by)
