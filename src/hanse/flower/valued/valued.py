"""``hanse.valued``: values the clients' updates in a Flower app that has its own strategy.

:func:`valued` checks its arguments and returns a :class:`hanse.flower.valued.watch.Valued`, a context manager. Inside
its ``with`` block the app starts its own strategy as usual.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Strategy
from torch import nn

from hanse.base.errors import UserError, in_python
from hanse.base.lock import Hold
from hanse.core.part import Mechanism
from hanse.flower.valued.watch import S, Valued, as_before, averages
from hanse.flower.valued.worth import judge_of, why_no_slope
from hanse.mechanisms.fits import CLIENTS_GIVE, asking, unmet_needs
from hanse.runs.config import Experiment

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
            ("loss", "accuracy", "balanced", or a metric of hanse). None: the loss, else the accuracy. The name decides
            whether lower is better (:func:`hanse.learning.figures.less_is_better`: losses and errors).
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
    with as_before():
        worth = judge_of(validation, model, utility, target)
        slope = why_no_slope(worth)
        mechanism["value"] = method or ("path" if averages(strategy) and slope is None else "mixture")
        if payment is not None:
            mechanism["settle"] = payment
        with in_python(_as_argument):
            experiment = Experiment(
                data={"source": "object", "clients": clients}, mechanism=mechanism, clients={"grant": grant},
                run={"rounds": 0, "seed": seed},
            )  # fmt: skip
            _check(experiment.mechanism.built, slope)
    return Valued(strategy, experiment, worth, Hold(Path(out)), names or {}, overwrite)


# ---- what was asked for


def _flowers(strategy: Strategy) -> dict[str, bool | int | float | str]:
    """Return the parameters of Flower's own strategies that this one has, by name, where they are plain values. Other
    attributes are the user's and may be secrets.
    """
    kinds = [kind for kind in type(strategy).__mro__ if kind.__module__.split(".")[0] == "flwr"]
    known = {name for kind in kinds for name in inspect.signature(kind.__init__).parameters}  # type: ignore[misc]
    plain = {name: value for name, value in vars(strategy).items() if type(value) in (bool, int, float, str)}
    return {name: value for name, value in plain.items() if name in known}


def _as_argument(line: str) -> str:
    """Return a line about a setting of an experiment as one about the argument that it is here."""
    return re.sub("|".join(ARGUMENTS), lambda found: ARGUMENTS[found[0]], line, count=1)


def _check(built: Mechanism, slope: str | None) -> None:
    """Raise UserError for a value part or payment rule that such a run cannot have.

    Args:
        built: the mechanism with these parts.
        slope: why the judge has no loss with a gradient. None: it has one.
    """
    by_itself = {"slope", "server_gradient"}  # which the server has, if at all
    lacks = dict.fromkeys(CLIENTS_GIVE - by_itself, ", which a plain client app does not give")
    if slope is not None:
        lacks |= dict.fromkeys(by_itself, f": {slope}")
    lines = [lack.line for lack in unmet_needs(built, GIVEN, lacks)]
    if "settle" in asking(built):
        lines.append(
            f"payment: {type(built.settle).__name__} asks clients questions, which a plain client app does not answer: "
            "take a rule that goes by values, or hanse's own client app"
        )
    if lines:
        raise UserError(*lines)
