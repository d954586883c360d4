"""Whether this command runs an experiment, or only looks at one that somebody else ran.

An experiment's file is a program: its import paths name modules, and to import a module is to run it. Whoever runs an
experiment trusts its file. Whoever only looks at a run directory need not, so that nothing which the directory names is
imported then.

A message is a program in the same way, where it names a model, a loss, a loop or a metric. A node resolves these names
inside :func:`from_message`, where an import path means what the participant's own app has listed, and nothing else.

The marks that :func:`looking` and :func:`from_message` set are read in the one function that imports
(:func:`hanse.base.errors.import_path`), so they cover every way that leads there. A parameter passed down through
configuration, set-up, registry and data could be forgotten on one of these ways.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# what hanse itself writes into a run's config.toml: it plays nothing and calls nothing that its options name
OWN = frozenset({"hanse.deployment.valued.mechanism:flower"})
_LOOKING: ContextVar[bool] = ContextVar("hanse_looking", default=False)
_OWN: ContextVar[Mapping[str, Callable[..., Any]] | None] = ContextVar("hanse_own", default=None)


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


@contextmanager
def from_message(own: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Inside this block import paths come from somebody's message: no module is imported for one.

    Args:
        own: what the paths may mean: objects of the participant's own app, by their import paths.
    """
    mark = _OWN.set(own)
    try:
        yield
    finally:
        _OWN.reset(mark)


def own_things() -> Mapping[str, Callable[..., Any]] | None:
    """Return what import paths may mean at this point; None where they are followed as usual."""
    return _OWN.get()


def own_modules() -> None:
    """Let import paths name modules of the current folder, for commands that run what lies there."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
