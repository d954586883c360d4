"""Three lines in any Flower app: what each client's update was worth, around the strategy that the app has.

How it is wrapped. Flower's ``Strategy.start`` calls ``configure_train``, ``aggregate_train``, ``configure_evaluate``
and ``aggregate_evaluate`` of the strategy itself. So for the life of a ``with`` block the strategy *object* gets
attributes of these names, which call its own methods and listen; they are gone at its end. Its class, its own ``start``
and references to it stay what they are, and ``super()`` inside it never meets them. While a method of its own works
they are taken off, so that a strategy which copies or saves itself finds itself as its author wrote it.
"""

from __future__ import annotations

import copy
import inspect
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import Strategy
from torch import nn

from hanse.base.errors import UserError
from hanse.base.lock import Hold
from hanse.core.calling import method_of
from hanse.deployment.valued.mechanism import watching
from hanse.deployment.valued.reaggregate import as_before
from hanse.deployment.valued.record import Plan, Watch, guarded
from hanse.deployment.valued.worth import ByClients, ByFunction, ByModule, Worth
from hanse.mechanisms.registry import unmet_needs
from hanse.runs.config import Experiment
from hanse.runs.rundir import claim_anew

S = TypeVar("S", bound=Strategy)
LISTENED = ("start", "configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
GIVEN = frozenset({"strategy", "validation", "values", "groups", "clients"})  # what parts of such a run can count on
MECHANISM = "hanse.deployment.valued.mechanism:flower"


def valued(
    strategy: S,
    *,
    out: str | Path,
    validation: Any = None,
    model: nn.Module | None = None,
    utility: str | None = None,
    target: str | None = None,
    method: str | Mapping[str, Any] = "mixture",
    payment: Any = None,
    grant: float = 100.0,
    names: Mapping[int, str] | None = None,
    clients: int = 1000,
    seed: int = 0,
    overwrite: bool = False,
) -> Valued[S]:
    """Return a context manager around a Flower strategy: it is trained with as ever, and every reply is valued.

    ``with hanse.valued(strategy, validation=evaluate, out="runs/x") as strategy: strategy.start(...)``

    Args:
        strategy: any strategy of Flower's Message API (``flwr.serverapp.strategy.Strategy``), the user's own too.
        out: the run directory that is made, which ``hanse report``, ``statement``, ``serve`` and ``ledger`` read.
        validation: what says what a model is worth: a function ``evaluate(arrays)`` that takes an ``ArrayRecord`` and
            returns a number, the more the better, or numbers by name; or, with ``model``, a validation set: ``(x, y)``,
            a PyTorch or Hugging Face data set, a ``DataLoader``. None: the clients' own evaluation, to first order.
        model: a torch module whose state dict the app's arrays are; it is not changed.
        utility: which figure counts: of those that ``evaluate`` returns, of those that clients report, or of a model
            ("loss", "accuracy", "balanced", or a metric of hanse). Default: the loss, else the accuracy. A name decides
            whether less is better (:func:`hanse.learning.figures.less_is_better`: losses and errors).
        target: the labels' name, where samples are dictionaries or a table.
        method: how values are found, as ``mechanism.value`` of an experiment: "mixture" (default), "exact", "gtg",
            "monte_carlo", "leave_one_out", "banzhaf", or a table with options. Where the strategy's aggregate is no
            average, "mixture" gives way to "exact" (up to 6 replies) or "gtg" on aggregates that are made again.
        payment: a payment rule, as ``mechanism.settle``: its import path, or a table with options. It must not ask
            clients anything.
        grant: with a payment rule, what a new client gets, in tokens.
        names: what nodes are called, by node id. Default: their ids.
        clients: the most nodes that may ever come; there are no values of rounds with more.
        seed: what is drawn at random follows from it; no other generator is touched.
        overwrite: whether a run that is in ``out`` is deleted.

    The training is the same as without it, bit for bit. What goes wrong in hanse's part is a named gap in the record,
    and a warning of the logger "hanse.valued". Raises UserError with a line for each wrong argument; entering it, if
    ``out`` is taken; and ``start``, before anything is sent, if the initial arrays cannot be valued.
    """
    if isinstance(strategy, type):
        raise UserError(f"strategy: the class {strategy.__name__}: must be an object, such as {strategy.__name__}()")
    if not isinstance(strategy, Strategy):
        raise UserError(f"strategy: {type(strategy).__name__}: must be a flwr.serverapp.strategy.Strategy")
    if not hasattr(strategy, "__dict__"):
        raise UserError(f"strategy: {type(strategy).__name__}: has __slots__, so nobody can listen to it")
    if not isinstance(out, str | os.PathLike) or not os.fspath(out):
        raise UserError(f"out: {out!r}: must be the path of a new folder")
    if not isinstance(names, Mapping | None) or not all(isinstance(node, int) for node in names or {}):
        raise UserError(f"names: {names!r:.80}: must be what nodes are called, by node id, such as {{1234: 'Harvest'}}")
    with as_before():
        worth = _worth(validation, model, utility, target)
    experiment = _experiment(strategy, method, payment, grant, clients, seed)
    return Valued(strategy, Plan(experiment, worth, Path(out), names or {}, overwrite))


class Valued(Generic[S]):
    """A strategy that is listened to inside a ``with`` block; see :func:`valued`."""

    def __init__(self, strategy: S, plan: Plan) -> None:
        self.strategy, self.plan = strategy, plan
        self._own: dict[str, Any] = {}  # attributes of the strategy's own under these names
        self._hold = Hold(plan.out)
        self._watch = Watch(plan, strategy, self._hold)

    @property
    def gaps(self) -> Sequence[str]:
        """What could not be valued, and why: a line for each round."""
        return tuple(self._watch.gaps)

    def start(self, *given: Any, **more: Any) -> Any:
        """Refuse: it is the strategy that starts. Raises UserError."""
        raise UserError("start: write 'with hanse.valued(...) as strategy:', and start the strategy inside it")

    def __enter__(self) -> S:
        """Listen from now on. Raises UserError if the run directory is taken, or the strategy is listened to."""
        mine = vars(self.strategy)
        if any(isinstance(mine.get(name), _Listening) for name in LISTENED):
            raise UserError("strategy: is in another 'with hanse.valued(...)' already")
        claim_anew(self._hold, overwrite=self.plan.overwrite)
        self._put_on()
        return self.strategy

    def __exit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the strategy as it was, and end the run's record."""
        self._take_off()
        watch = self._watch
        guarded(watch, watch.close)
        self._hold.release()
        if watch.state is not None and watch.state.round:
            rounds = watch.state.round
            said = f"{rounds - len(watch.gaps)} of {rounds} rounds have values"
            logging.getLogger("flwr").info("hanse: %s; see: hanse report %s", said, self.plan.out)

    # ---- listening

    def _put_on(self) -> None:
        mine = vars(self.strategy)
        self._own = {name: mine[name] for name in LISTENED if name in mine}
        mine.update({name: _Listening(self, name) for name in LISTENED})

    def _take_off(self) -> None:
        """Leave the strategy's own attributes; one that it gave itself in the meantime stays."""
        mine = vars(self.strategy)
        for name in LISTENED:
            if isinstance(mine.get(name), _Listening):
                del mine[name]
                if name in self._own:
                    mine[name] = self._own[name]

    @contextmanager
    def _bare(self) -> Iterator[None]:
        """Let nobody listen for a block, in which the strategy is as its author wrote it."""
        self._take_off()
        try:
            yield
        finally:
            self._put_on()

    def call(self, name: str, given: tuple[Any, ...], more: dict[str, Any]) -> Any:
        """Call a method of the strategy's own, and hear what goes in and comes out."""
        if name == "start":
            self._starts(given, more)
            return self._its_own(name)(*given, **more)
        if name == "configure_evaluate":
            return self._alone(name, given, more)
        return getattr(self, f"_{name}")(given, more)

    def _its_own(self, name: str) -> Any:
        """Return the strategy's own method."""
        return self._own.get(name) or partial(getattr(type(self.strategy), name), self.strategy)

    def _alone(self, name: str, given: tuple[Any, ...], more: dict[str, Any]) -> Any:
        """Call the strategy's own method while nobody listens."""
        with self._bare():
            return getattr(self.strategy, name)(*given, **more)

    def _given(self, name: str, given: tuple[Any, ...], more: dict[str, Any]) -> dict[str, Any]:
        """Return what a method is called with, by the names of its parameters, or else by Flower's (a wrapper's own are
        often ``*args``).
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

    def _starts(self, given: tuple[Any, ...], more: dict[str, Any]) -> None:
        said = self._given("start", given, more)
        arrays = next((v for v in (said.get("initial_arrays"), *said.values()) if isinstance(v, ArrayRecord)), None)
        rounds = said.get("num_rounds")
        self._watch.begins(arrays, rounds if isinstance(rounds, int) and rounds > 0 else None)

    def _configure_train(self, given: tuple[Any, ...], more: dict[str, Any]) -> Any:
        watch = self._watch
        said = self._given("configure_train", given, more)
        number, arrays = _of_type(int, said, "server_round"), _of_type(ArrayRecord, said, "arrays")
        guarded(watch, lambda: watch.asks(number or 0, arrays if arrays is not None else ArrayRecord()))
        return self._heard(self._alone("configure_train", given, more))

    def _asked(self, messages: Iterable[Message]) -> None:
        guarded(self._watch, lambda: self._watch.asked([message.metadata.dst_node_id for message in messages]))

    def _heard(self, messages: Iterable[Message]) -> Iterable[Message]:
        """Return the messages, heard: a list as it is, an iterator as one that is heard while it is read."""
        if isinstance(messages, Iterator):

            def passing() -> Iterator[Message]:
                for message in messages:
                    self._asked([message])
                    yield message

            return passing()
        self._asked(messages)
        return messages

    def _aggregate_train(self, given: tuple[Any, ...], more: dict[str, Any]) -> Any:
        watch = self._watch
        given, more, replies = _listed(given, more)

        def comes() -> None:
            with self._bare():  # a copy of the strategy is made, by its own ways of copying
                watch.comes(_copies(replies))

        guarded(watch, comes)
        found = self._alone("aggregate_train", given, more)
        guarded(watch, lambda: watch.makes(found[0] if isinstance(found, tuple) and found else None))
        return found

    def _aggregate_evaluate(self, given: tuple[Any, ...], more: dict[str, Any]) -> Any:
        watch = self._watch
        given, more, replies = _listed(given, more)
        guarded(watch, lambda: watch.tests(_copies(replies)))
        try:
            return self._alone("aggregate_evaluate", given, more)
        finally:
            guarded(watch, watch.ends)


class _Listening:
    """What stands in the place of a method while a strategy is listened to. A copy of it, or what is read of it when it
    was saved, is the strategy's own method again.
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
    """Return a call, and its replies as a list; an iterator, which can be read once, is replaced by another one."""
    replies = more["replies"] if "replies" in more else given[1] if len(given) > 1 else []
    if not isinstance(replies, Iterator):
        return given, more, list(replies)
    listed = list(replies)
    again = (message for message in listed)
    if "replies" in more:
        return given, {**more, "replies": again}, listed
    return (given[0], again, *given[2:]), more, listed


def _copies(replies: Sequence[Message]) -> list[Message]:
    """Return copies of the replies, whose records nobody else changes; the bytes of arrays are not copied."""
    return [copy.deepcopy(reply) for reply in replies]


T = TypeVar("T")


def _of_type(kind: type[T], said: Mapping[str, Any], name: str) -> T | None:
    """Return the argument of this name, or else the first of this type."""
    return next((v for v in (said.get(name), *said.values()) if isinstance(v, kind)), None)


# ---- what was asked for


def _worth(validation: Any, model: nn.Module | None, utility: str | None, target: str | None) -> Worth:
    """Return how models are judged. Raises UserError."""
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


def _experiment(
    strategy: Strategy, method: str | Mapping[str, Any], payment: Any, grant: float, clients: int, seed: int
) -> Experiment:
    """Return the run as an experiment's file says it. Raises UserError, a line for each mistake."""
    if isinstance(clients, bool) or not isinstance(clients, int) or not 1 <= clients <= 10**6:
        raise UserError(f"clients: {clients!r}: must be a whole number from 1 to 1000000")
    settings = {
        k: v for k, v in vars(strategy).items() if isinstance(v, bool | int | float | str) and not k.startswith("_")
    }
    mechanism: dict[str, Any] = {
        "name": MECHANISM, "strategy": type(strategy).__name__, "flower": version("flwr"), "settings": settings,
        "value": method,
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
    if built.value is not None and not hasattr(built.value, "solve"):
        lines.append(
            f"method: {type(built.value).__name__}: must be mixture, exact, gtg, monte_carlo, leave_one_out or banzhaf"
        )
    if lines:
        raise UserError(*lines)
    return experiment
