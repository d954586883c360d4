"""Wings: packages that add to the core, which does not know them; found by the entry points ``hanse.wings``.

A wing may add commands, and names of parts (models, data sources, behaviours) that an experiment's file can use. Each
entry point leads to a :class:`Wing`, which names what it adds by import paths, so nothing of a wing is imported before
it is used. hanse's own wings (:mod:`hanse.wings`) come by the same door as those of other packages: without them the
core works, and a name of theirs is one that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

GROUP = "hanse.wings"
# the kinds of names that the code looks up (:class:`Names`); another one would do nothing
KINDS = frozenset({"models", "sources", "source_options", "behaviours", "mechanisms", "settings", "sections", "guards"})
KINDS |= {"accounts", "amends", "forbids", "node_guards", "answers", "replays", "checks", "statements", "flower"}
KINDS |= {"select", "train", "weigh", "value", "settle", "deploy"}


@dataclass(frozen=True)
class Command:
    """A command that a wing adds to ``hanse``.

    Attributes:
        name: the word after ``hanse``, or "audit" and the word after it.
        target: the import path ``"package.module:name"`` of a function, or of a ``typer.Typer`` with its own commands.
        panel: the heading under which ``hanse --help`` lists it.
        plays: whether it runs an experiment's code. Other commands only look, and import nothing that files name.
    """

    name: str
    target: str
    panel: str
    plays: bool = False


@dataclass(frozen=True)
class Wing:
    """What a wing adds.

    Attributes:
        name: the wing's name, as ``hanse list`` shows it.
        commands: commands of ``hanse``.
        names: for each kind of part, import paths by the names that they get. In an experiment's file: "models",
            "sources", "source_options", "behaviours", "mechanisms", the slots "select" to "deploy", "settings" and
            "sections" (:mod:`hanse.runs.config`). By the core, under the names of settings and questions: "guards" and
            "accounts" (:mod:`hanse.runs.guards`), "amends" (:mod:`hanse.runs.rundir`), "forbids" (tables of what does
            not go together, :mod:`hanse.mechanisms.fits`), "node_guards" (:mod:`hanse.federation.node`), "answers"
            (:mod:`hanse.federation.local`), "replays" and "checks" (:mod:`hanse.runs.replay`),
            "statements" (:mod:`hanse.flower.receipts`); "flower": names of ``hanse.flower``.
    """

    name: str
    commands: tuple[Command, ...] = ()
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if odd := sorted(self.names.keys() - KINDS):
            raise ValueError(f"names: '{odd[0]}': no such kind; allowed: {', '.join(sorted(KINDS))}")


def target(path: str) -> Any:
    """Return the object at an import path that a wing names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


@cache
def _found() -> tuple[tuple[Wing, ...], str]:
    """Return what :func:`wings` and :func:`absent` do."""
    found, lost = [], dict[str, list[str]]()
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        package = point.dist.name if point.dist is not None else point.name
        try:
            found.append(point.load())
        except Exception as wrong:
            gone = isinstance(wrong, ModuleNotFoundError) and f"{point.module}.".startswith(f"{wrong.name}.")
            if not gone:
                wrong.add_note(f"raised by the wing '{point.name}'; without it: pip uninstall {package}")
                raise
            lost.setdefault(package, []).append(point.name)
    gets = "; wings not here: {} (pip install --force-reinstall --no-deps {})"
    return tuple(found), "".join(gets.format(", ".join(names), package) for package, names in lost.items())


def wings() -> tuple[Wing, ...]:
    """Return the wings that are installed, in the order of their names.

    An entry point whose package is not there is left out: hanse's own wings can be deleted from a checkout. Any other
    error of a wing's module is raised.
    """
    return _found()[0]


def absent() -> str:
    """Return how to get the wings that were deleted, for an error about an unknown name; "" if all are here."""
    return _found()[1]


class Names(Mapping[str, Any]):
    """Objects by name: the core's own, then those of the wings, which are imported when they are looked up.

    Attributes:
        own: the core's objects.

    Args:
        own: as the attribute.
        kind: the kind of part, a key of :attr:`Wing.names`.

    Examples:
        >>> numbers = Names({"one": 1}, "numbers")
        >>> numbers["one"], "two" in numbers, list(numbers)
        (1, False, ['one'])
    """

    def __init__(self, own: Mapping[str, Any], kind: str) -> None:
        self.own, self._kind = own, kind

    @property
    def added(self) -> dict[str, str]:
        """The import paths that wings add, by name. A name of the core's cannot be replaced."""
        said = [(name, path) for wing in wings() for name, path in wing.names.get(self._kind, {}).items()]
        return {name: path for name, path in said if name not in self.own}

    def __getitem__(self, name: str) -> Any:
        if name in self.own:
            return self.own[name]
        return target(self.added[name])

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from self.added

    def __len__(self) -> int:
        return len(self.own) + len(self.added)

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self.added
