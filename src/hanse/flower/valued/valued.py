"""``hanse.valued``: values the clients' updates in a Flower app that has its own strategy.

:func:`valued` checks its arguments and returns a :class:`Valued`, a context manager. Inside its ``with`` block the app
starts its own strategy as usual, and :class:`hanse.flower.valued.record.Watch` records what happens as a run.

Flower's ``Strategy.start`` calls ``configure_train``, ``aggregate_train``, ``configure_evaluate`` and
``aggregate_evaluate`` of the strategy. During the block, the strategy *object* therefore has attributes with these
names. They call its own methods and record what happens. Its class, its ``start`` and references to it do not change,
and ``super()`` inside it never sees these attributes. They are removed at the end of the block, and also while one of
the strategy's own methods runs. A strategy that copies or saves itself is therefore not affected.
"""

from __future__ import annotations

import copy
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import Strategy
from torch import nn

from hanse.base import toml
from hanse.base.errors import UserError
from hanse.base.lock import Hold
from hanse.core.calling import method_of
from hanse.flower.valued.mechanism import watching
from hanse.flower.valued.record import Plan, Watch, averages, guarded
from hanse.flower.valued.states import Kept
from hanse.flower.valued.worth import ByClients, ByFunction, ByModule, Worth, why_no_path
from hanse.mechanisms.fits import unmet_needs
from hanse.mechanisms.value import Path as PathValues
from hanse.runs.config import Experiment
from hanse.runs.rundir import claim_anew

S = TypeVar("S", bound=Strategy)
LISTENED = ("start", "configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")  # methods
GIVEN = frozenset({"strategy", "validation", "values", "groups", "clients"})  # needs of parts that such a run meets
MECHANISM = "hanse.flower.valued.mechanism:flower"  # what the run's config.toml names


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
            PyTorch or Hugging Face data set, or a ``DataLoader``. None: the change in the clients' own evaluations is
            divided among them, to first order.
        model: a torch module whose state the app's arrays hold. It is not changed.
        utility: the figure that counts. It is one that ``evaluate`` returns, or that clients report, or that hanse
            measures on ``model`` ("loss", "accuracy", "balanced", or a metric of hanse). None: the loss, else the
            accuracy. The name decides whether lower is better (:func:`hanse.learning.figures.less_is_better`: losses
            and errors).
        target: the name of the labels, if samples are dictionaries or a table.
        method: how values are computed, as in ``mechanism.value`` of an experiment: "path" (with ``model``, by its
            loss), "mixture", "exact", "gtg", "monte_carlo", "leave_one_out", "banzhaf", or a table with options. None:
            "path" if there is a ``model`` whose loss has a gradient and the strategy averages as Flower's FedAvg does;
            otherwise "mixture". If the strategy does not average, "mixture" is replaced by "exact" (up to 6 replies) or
            "gtg", which repeat the aggregation for each coalition. "path" then gives no values.
        payment: a payment rule, as in ``mechanism.settle``: its import path, or a table with options. It must not ask
            clients anything. None: nothing is paid.
        grant: with a payment rule, the tokens that a new client gets.
        names: the nodes' names, by Flower's node id. Alternatively, the key of a number or text that clients report
            with their arrays, such as "partition-id"; this becomes their name. None: their ids.
        clients: the largest number of different nodes, 1 to 1,000,000. Rounds with more nodes have no values.
        seed: the seed of hanse's own random draws. No other generator is changed.
        overwrite: whether an existing run in ``out`` may be deleted.

    Returns:
        The context manager. Entering it returns the strategy, to be started inside, and raises UserError if ``out`` is
            taken. ``start`` raises UserError, before anything is sent, if the initial arrays cannot be valued.

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
    if isinstance(strategy, type):
        raise UserError(f"strategy: the class {strategy.__name__}: must be an object, such as {strategy.__name__}()")
    if not isinstance(strategy, Strategy):
        raise UserError(f"strategy: {type(strategy).__name__}: must be a flwr.serverapp.strategy.Strategy")
    if not hasattr(strategy, "__dict__"):
        raise UserError(f"strategy: {type(strategy).__name__}: has __slots__, so nobody can listen to it")
    if not isinstance(out, str | os.PathLike) or not os.fspath(out):
        raise UserError(f"out: {out!r}: must be the path of a new folder")
    by_id = isinstance(names, Mapping) and all(isinstance(node, int) for node in names)
    if not (by_id or names is None or (isinstance(names, str) and names)):
        raise UserError(
            f"names: {names!r:.80}: must be what nodes are called, by node id, such as {{1234: 'Harvest'}}, or the "
            "name of what clients report of themselves, such as 'partition-id'"
        )
    if app := _app_around(Path(out)):
        said = f"out: {out}: lies in the Flower app {app}, whose files go to every node with the next flwr run"
        logging.getLogger("hanse.valued").warning("hanse: %s: take a folder outside the app", said)
    with Kept().as_before():
        worth = _worth(validation, model, utility, target)
        if method is None:
            method = "path" if averages(strategy) and why_no_path(worth) is None else "mixture"
        experiment = _experiment(strategy, worth, method, payment, grant, clients, seed)
    return Valued(strategy, Plan(experiment, worth, Path(out), names if names is not None else {}, overwrite))


class Valued(Generic[S]):
    """A strategy that is observed inside a ``with`` block; :func:`valued` makes it.

    Attributes:
        strategy: the app's strategy.
        plan: the settings of the run.
    """

    def __init__(self, strategy: S, plan: Plan) -> None:
        self.strategy, self.plan = strategy, plan
        # attributes that the strategy has itself under the listened names, put back at the end
        self._own: dict[str, Any] = {}
        self._hold = Hold(plan.out)
        self._watch = Watch(plan, strategy, self._hold)

    @property
    def gaps(self) -> Sequence[str]:
        """A line for each round that could not be valued, with the reason."""
        return tuple(self._watch.gaps)

    def start(self, *given: Any, **more: Any) -> Any:
        """Raise UserError: start the strategy instead, inside the ``with`` block."""
        raise UserError("start: write 'with hanse.valued(...) as strategy:', and start the strategy inside it")

    def __enter__(self) -> S:
        """Begin to listen, and return the strategy. Raises UserError if ``out`` is taken, or the strategy is listened
        to already.
        """
        mine = vars(self.strategy)
        if any(isinstance(mine.get(name), _Listening) for name in LISTENED):
            raise UserError("strategy: is in another 'with hanse.valued(...)' already")
        claim_anew(self._hold, overwrite=self.plan.overwrite)
        self._put_on()
        return self.strategy

    def __exit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening, and finish the run's record, also when an exception ends the block."""
        self._take_off()
        watch = self._watch
        guarded(watch, watch.close)
        watch.child.close()
        self._hold.release()
        if watch.state is not None and watch.state.round:
            rounds = watch.state.round
            said = f"{rounds - len(watch.gaps)} of {rounds} rounds have values"
            logging.getLogger("flwr").info("hanse: %s; see: hanse report %s", said, self.plan.out)

    # ---- listening

    def _put_on(self) -> None:
        """Give the strategy the attributes that listen."""
        mine = vars(self.strategy)
        self._own = {name: mine[name] for name in LISTENED if name in mine}
        mine.update({name: _Listening(self, name) for name in LISTENED})

    def _take_off(self) -> None:
        """Give the strategy its own attributes back. One that it has set in the meantime stays."""
        mine = vars(self.strategy)
        for name in LISTENED:
            if isinstance(mine.get(name), _Listening):
                del mine[name]
                if name in self._own:
                    mine[name] = self._own[name]

    @contextmanager
    def _bare(self) -> Iterator[None]:
        """Let nobody listen during a block, in which the strategy is as its author wrote it."""
        self._take_off()
        try:
            yield
        finally:
            self._put_on()

    def call(self, name: str, given: tuple[Any, ...], more: dict[str, Any]) -> Any:
        """Call one of the strategy's own methods, and observe its arguments and result.

        Args:
            name: the method, one of ``LISTENED``.
            given: the method's positional arguments.
            more: the method's keyword arguments.
        """
        if name == "start":
            given, more = self._starts(given, more)
            # start calls the listened methods, so that it must not run bare
            return self._its_own(name)(*given, **more)
        if name == "configure_evaluate":
            return self._alone(name, given, more)
        return getattr(self, f"_{name}")(given, more)

    def _its_own(self, name: str) -> Any:
        """Return the strategy's own method of this name."""
        return self._own.get(name) or partial(getattr(type(self.strategy), name), self.strategy)

    def _alone(self, name: str, given: tuple[Any, ...], more: dict[str, Any]) -> Any:
        """Call the strategy's own method while nobody listens."""
        with self._bare():
            return getattr(self.strategy, name)(*given, **more)

    def _given(self, name: str, given: tuple[Any, ...], more: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by the names of the method's parameters.

        The parameters of Flower's method count first. A wrapper of the user's often takes ``*args`` alone, which name
        nothing.
        """
        found: dict[str, Any] = {}
        for method in (partial(getattr(Strategy, name), None), self._its_own(name)):
            try:
                bound = inspect.signature(method).bind(*given, **more)
            except (TypeError, ValueError):
                continue
            bound.apply_defaults()
            found = {**bound.arguments, **found}
        return found or dict(more)

    def _starts(self, given: tuple[Any, ...], more: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Hear the start: the initial arrays and how many rounds are planned.

        Returns:
            Its arguments, in which the server's own evaluation is one that is heard.
        """
        said = self._given("start", given, more)
        # a start of the user's own may call its arguments otherwise
        arrays = next((v for v in (said.get("initial_arrays"), *said.values()) if isinstance(v, ArrayRecord)), None)
        rounds = said.get("num_rounds")
        with self._watch.kept.as_before():
            self._watch.begins(arrays, rounds if isinstance(rounds, int) and rounds > 0 else None)
        judge = said.get("evaluate_fn")
        if not callable(judge):
            return given, more
        self._watch.judged = True
        heard = self._judging(judge)
        again = {name: heard if one is judge else one for name, one in more.items()}
        return tuple(heard if one is judge else one for one in given), again

    def _judging(self, judge: Callable[..., Any]) -> Callable[..., Any]:
        """Return the server's own evaluation, which ends a round, so that what it says is heard."""
        watch = self._watch

        @wraps(judge)
        def heard(*given: Any, **more: Any) -> Any:
            try:
                found = judge(*given, **more)
                guarded(watch, lambda: watch.says("server", found))
            finally:
                guarded(watch, watch.ends)
            return found

        return heard

    def _configure_train(self, given: tuple[Any, ...], more: dict[str, Any]) -> Any:
        """Hear which round begins from which arrays, and who is asked."""
        watch = self._watch
        said = self._given("configure_train", given, more)
        number, arrays = _of_type(int, said, "server_round"), _of_type(ArrayRecord, said, "arrays")
        guarded(watch, lambda: watch.asks(number or 0, arrays if arrays is not None else ArrayRecord()))
        return self._heard(self._alone("configure_train", given, more))

    def _asked(self, messages: Iterable[Message]) -> None:
        """Hear to which nodes messages go."""
        guarded(self._watch, lambda: self._watch.asked([message.metadata.dst_node_id for message in messages]))

    def _heard(self, messages: Iterable[Message]) -> Iterable[Message]:
        """Return the messages, heard: a list at once, an iterator while the strategy reads it."""
        if isinstance(messages, Iterator):

            def passing() -> Iterator[Message]:
                for message in messages:
                    self._asked([message])
                    yield message

            return passing()
        self._asked(messages)
        return messages

    def _aggregate_train(self, given: tuple[Any, ...], more: dict[str, Any]) -> Any:
        """Hear the replies before the strategy may change them, and afterwards what it made of them."""
        watch = self._watch
        given, more, replies = _listed(given, more)

        def comes() -> None:
            with self._bare():  # the strategy is pickled, by its own ways
                watch.comes(_copies(replies))

        guarded(watch, comes)
        found = self._alone("aggregate_train", given, more)
        pair = found if isinstance(found, tuple) and found else (None,)
        guarded(watch, lambda: watch.makes(pair[0]))
        guarded(watch, lambda: watch.says("train", pair[-1]))
        return found

    def _aggregate_evaluate(self, given: tuple[Any, ...], more: dict[str, Any]) -> Any:
        """Hear the evaluate replies; the round ends here, also if the strategy's method raises."""
        watch = self._watch
        given, more, replies = _listed(given, more)
        guarded(watch, lambda: watch.tests(_copies(replies)))
        try:
            found = self._alone("aggregate_evaluate", given, more)
            guarded(watch, lambda: watch.says("evaluate", found))
            return found
        finally:
            if not watch.judged:
                guarded(watch, watch.ends)


class _Listening:
    """What stands in the place of a method while a strategy is listened to.

    A copy of it, or what is read back after it was pickled, is the strategy's own method again.
    """

    def __init__(self, valued: Valued[Any], name: str) -> None:
        self._valued, self._name = valued, name

    def __call__(self, *given: Any, **more: Any) -> Any:
        return self._valued.call(self._name, given, more)

    def __reduce__(self) -> Any:
        return partial, (getattr(type(self._valued.strategy), self._name), self._valued.strategy)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        own = self._valued.strategy
        return partial(getattr(type(own), self._name), memo.get(id(own), own))


def _listed(given: tuple[Any, ...], more: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], list[Message]]:
    """Return the arguments of a call and its replies as a list.

    An iterator can be read only once, so that the arguments then hold a new one over the same replies.
    """
    replies = more["replies"] if "replies" in more else given[1] if len(given) > 1 else []
    if not isinstance(replies, Iterator):
        return given, more, list(replies)
    listed = list(replies)
    again = (message for message in listed)
    if "replies" in more:
        return given, {**more, "replies": again}, listed
    return (given[0], again, *given[2:]), more, listed


def _copies(replies: Sequence[Message]) -> list[Message]:
    """Return copies of the replies, whose records nobody else changes. The bytes of their arrays are shared."""
    return [copy.deepcopy(reply) for reply in replies]


T = TypeVar("T")


def _of_type(kind: type[T], said: Mapping[str, Any], name: str) -> T | None:
    """Return the argument of this name if it is of the type ``kind``, else the first one that is; None if none is."""
    return next((v for v in (said.get(name), *said.values()) if isinstance(v, kind)), None)


# ---- what was asked for


def _app_around(folder: Path) -> Path | None:
    """Return the Flower app in whose folder a path lies, if there is one: ``flwr run`` sends all that is in it."""
    for place in folder.absolute().parents:
        file = place / "pyproject.toml"
        try:
            if file.is_file() and "app" in toml.loads(file.read_text("utf-8")).get("tool", {}).get("flwr", {}):
                return place
        except (OSError, ValueError):  # not ours to mend
            continue
    return None


def _worth(validation: Any, model: nn.Module | None, utility: str | None, target: str | None) -> Worth:
    """Return what judges models. Raises UserError for arguments that do not fit together."""
    if utility is not None and (not isinstance(utility, str) or not utility):
        raise UserError(f"utility: {utility!r}: must be a figure's name")
    if model is not None and not isinstance(model, nn.Module):
        raise UserError(f"model: {type(model).__name__}: must be a torch.nn.Module; of others give validation=evaluate")
    if validation is None:
        if model is not None:
            raise UserError("model: needs validation=, the samples that it is judged on")
        return ByClients(utility)
    if model is None:
        if not callable(validation) or isinstance(validation, type):
            raise UserError(
                f"validation: {type(validation).__name__}: must be a function evaluate(arrays), or, with "
                "model=, a torch module, a validation set"
            )
        return ByFunction(validation, utility)
    return ByModule.of(model, validation, utility, target)


def _flowers(strategy: Strategy) -> dict[str, bool | int | float | str]:
    """Return the parameters of Flower's own strategies that this one has, by name, where they are plain values. Other
    attributes are the user's and may be secrets.
    """
    kinds = [kind for kind in type(strategy).__mro__ if kind.__module__.split(".")[0] == "flwr"]
    known = {name for kind in kinds for name in inspect.signature(kind.__init__).parameters}  # type: ignore[misc]
    plain = {name: value for name, value in vars(strategy).items() if type(value) in (bool, int, float, str)}
    return {name: value for name, value in plain.items() if name in known}


def _experiment(
    strategy: Strategy,
    worth: Worth,
    method: str | Mapping[str, Any],
    payment: Any,
    grant: float,
    clients: int,
    seed: int,
) -> Experiment:
    """Return the experiment that the run's ``config.toml`` describes.

    Raises:
        UserError: with a line for each wrong argument, under the name that it has in :func:`valued`.
    """
    if isinstance(clients, bool) or not isinstance(clients, int) or not 1 <= clients <= 10**6:
        raise UserError(f"clients: {clients!r}: must be a whole number from 1 to 1000000")
    mechanism: dict[str, Any] = {
        "name": MECHANISM, "strategy": type(strategy).__name__, "flower": version("flwr"),
        "settings": _flowers(strategy), "value": method,
    }  # fmt: skip
    if payment is not None:
        mechanism["settle"] = payment
    try:
        experiment = Experiment(
            data={"source": "object", "clients": clients}, mechanism=mechanism, clients={"grant": grant},
            run={"rounds": 0, "seed": seed},
        )  # fmt: skip
        built = experiment.mechanism.built
    except UserError as wrong:
        said = [
            ("mechanism.value", "method"),
            ("mechanism.settle", "payment"),
            ("clients.grant", "grant"),
            ("run.seed", "seed"),
        ]
        lines = list(wrong.lines)
        for key, name in said:
            lines = [line.replace(key, name, 1) if line.startswith(key) else line for line in lines]
        raise UserError(*lines) from None
    lines = [lack.line.replace("mechanism.settle", "payment", 1) for lack in unmet_needs(watching(built, None), GIVEN)]
    if built.settle is not None and method_of(built.settle, "asks") is not None:
        lines.append(
            f"payment: {type(built.settle).__name__} asks clients questions, which a plain client app does not answer: "
            "take a rule that goes by values, or hanse.flower.strategy"
        )
    if isinstance(built.value, PathValues):
        if built.value.novel:
            lines.append("method.novel: true: must be false: rounds are valued here each by itself")
        if (why := why_no_path(worth)) is not None:
            lines.append(f"method: 'path' {why}; 'mixture', 'exact' and 'gtg' take any model, function and utility")
    elif built.value is not None and not hasattr(built.value, "solve"):
        names = "mixture, exact, gtg, monte_carlo, leave_one_out, banzhaf or path"
        lines.append(f"method: {type(built.value).__name__}: must be {names}")
    if lines:
        raise UserError(*lines)
    return experiment
