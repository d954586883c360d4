"""Records whether this command runs an experiment, or only looks at one that somebody else ran.

An experiment's file is a program: its import paths name modules, and importing a module runs it. Running an experiment
requires trusting its file. Looking at a run directory must not require trust, so nothing that the directory names is
then imported. A message that names a model, a loss, a loop or a metric is a program in the same sense. A node resolves
these names inside :func:`from_message`. There, import paths can only mean objects that the participant's own app lists.

Only one function imports, :func:`hanse.base.errors.import_path`. It reads the marks that :func:`looking` and
:func:`from_message` set, so no path through the code can bypass them. A parameter that is passed down could be
forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# what hanse itself writes into a run's config.toml: it plays nothing and calls nothing that its options name
OWN = frozenset({"hanse.flower.valued.mechanism:flower"})
_LOOKING: ContextVar[bool] = ContextVar("hanse_looking", default=False)
_OWN: ContextVar[Mapping[str, Callable[..., Any]] | None] = ContextVar("hanse_own", default=None)


@contextmanager
def looking(*, trust: bool = False) -> Iterator[None]:
    """Refuse import paths inside this block.

    Args:
        trust: whether the user allows import paths (``--trust``). They then work as usual.
    """
    mark = _LOOKING.set(not trust)
    try:
        yield
    finally:
        _LOOKING.reset(mark)


def is_looking() -> bool:
    """Return whether import paths are refused at this point."""
    return _LOOKING.get()


@contextmanager
def from_message(own: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Mark that import paths inside this block come from a message, so none is imported.

    Args:
        own: the objects of the participant's own app that paths may mean, by import path.
    """
    mark = _OWN.set(own)
    try:
        yield
    finally:
        _OWN.reset(mark)


def own_things() -> Mapping[str, Callable[..., Any]] | None:
    """Return the objects that import paths may mean at this point, or None if paths are followed as usual."""
    return _OWN.get()
