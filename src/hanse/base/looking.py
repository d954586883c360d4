"""Whether this command runs an experiment or only looks at one that somebody ran.

An experiment's file is a program: its import paths name modules, and to import a module is to run it. Who runs an
experiment trusts its file. Who only looks at a run directory need not, so nothing that the directory names is imported
then. One mark, asked in the one function that imports (:func:`hanse.base.errors.import_path`), covers every way that
leads there; a parameter through configuration, set-up, registry and data could be forgotten on one of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LOOKING: ContextVar[bool] = ContextVar("hanse_looking", default=False)


@contextmanager
def looking(*, trust: bool = False) -> Iterator[None]:
    """Refuse import paths inside, unless ``trust``: the user said that the run's files may be run."""
    mark = _LOOKING.set(not trust)
    try:
        yield
    finally:
        _LOOKING.reset(mark)


def is_looking() -> bool:
    """Say whether import paths are refused here."""
    return _LOOKING.get()


def own_modules() -> None:
    """Let import paths name modules of the current folder: for commands that run what is there."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
