"""Whether this command runs an experiment, or only looks at one that somebody else ran.

An experiment's file is a program: its import paths name modules, and to import a module is to run it. Whoever runs an
experiment trusts its file. Whoever only looks at a run directory need not, so that nothing which the directory names is
imported then.

The mark that :func:`looking` sets is read in the one function that imports (:func:`hanse.base.errors.import_path`), so
it covers every way that leads there. A parameter passed down through configuration, set-up, registry and data could be
forgotten on one of these ways.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# what hanse itself writes into a run's config.toml: it plays nothing and calls nothing that its options name
OWN = frozenset({"hanse.deployment.valued.mechanism:flower"})
_LOOKING: ContextVar[bool] = ContextVar("hanse_looking", default=False)


@contextmanager
def looking(*, trust: bool = False) -> Iterator[None]:
    """Refuse import paths inside this block.

    Args:
        trust: the user allowed it (``--trust``): import paths work as usual.
    """
    mark = _LOOKING.set(not trust)
    try:
        yield
    finally:
        _LOOKING.reset(mark)


def is_looking() -> bool:
    """Say whether import paths are refused at this point."""
    return _LOOKING.get()


def own_modules() -> None:
    """Let import paths name modules of the current folder, for commands that run what lies there."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
