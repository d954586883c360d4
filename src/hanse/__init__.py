"""Federated learning as an economy: who trains, whose model counts, what each contribution is worth, who pays whom.

:func:`run` plays an experiment (:class:`Experiment`, or a TOML file), :func:`resume` continues it, and :func:`load`
reads it from its directory. Each of these returns a :class:`Run`. :func:`facts` gives a run's numbers with their
errors, as tables, and notes on what they mean. :func:`who_gains` says which clients gain by joining,
on your own data. :func:`value` gives the values of models that were trained elsewhere, and :func:`shapley` those of the
players of any game. :func:`valued` gives values in a Flower app that has a strategy of its own. Answers show themselves
in a notebook. Mistakes in the input raise one :class:`UserError`, with a line for each.

Everything else is imported from its own module. For example, :mod:`hanse.core.part` has what a mechanism is made of.

Examples:
    A federation of four clients on handwritten digits, with GreedyFed choosing who trains. The table holds one row per
    model; GreedyFed has a single model.

    >>> import hanse
    >>> digits = {"source": "digits", "clients": 4}
    >>> result = hanse.run(hanse.Experiment(data=digits, mechanism="greedyfed", run={"rounds": 2}))
    >>> [line["round"] for line in result.metrics], len(result.table.rows)
    ([0, 1], 1)
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hanse.base.errors import UserError
    from hanse.flower.valued.valued import valued
    from hanse.lab.joining import who_gains
    from hanse.reports.facts import facts
    from hanse.reports.run import Run, load, resume, run
    from hanse.reports.valuing import shapley, value
    from hanse.runs.config import Experiment

__all__ = ["Experiment", "Run", "UserError", "facts", "load", "resume", "run", "shapley", "value", "valued",
           "who_gains"]  # fmt: skip
__version__ = "0.1.0"

# the module of each public name
_HOMES = {
    "Experiment": "hanse.runs.config",
    "Run": "hanse.reports.run",
    "UserError": "hanse.base.errors",
    "facts": "hanse.reports.facts",
    "load": "hanse.reports.run",
    "resume": "hanse.reports.run",
    "run": "hanse.reports.run",
    "shapley": "hanse.reports.valuing",
    "value": "hanse.reports.valuing",
    "valued": "hanse.flower.valued.valued",
    "who_gains": "hanse.lab.joining",
}


def __dir__() -> list[str]:
    """Return the public names, imported or not yet, for help and completion."""
    return [name for name in __all__ if name != "valued" or find_spec("flwr")]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so ``hanse --help`` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hanse' has no attribute '{name}'")
    if name == "valued":
        from hanse.base.errors import library

        library("flwr", "hanse.valued: needs Flower; pip install '.[flower]' in a clone of hanse")
    return getattr(import_module(_HOMES[name]), name)
