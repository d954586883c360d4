"""What ``hanse list`` prints: names by kind, and which part could replace which in a mechanism."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rich.table import Table as RichTable

from hanse.base.errors import UserError, nearest
from hanse.data.sources import GENERATED, SOURCES
from hanse.federation.behaviour import BEHAVIOURS
from hanse.federation.policy import POLICIES
from hanse.learning.models import MODELS
from hanse.mechanisms.registry import MECHANISMS, PARTS, SLOTS, unmet_needs


@dataclass(frozen=True)
class Combination:
    """One replaced part of one mechanism.

    Attributes:
        mechanism: the mechanism's name.
        slot: the decision whose part is replaced.
        part: the name of the part that replaces it.
        missing: what the part would lack, and with its name what another part would lack then; empty: it fits.
    """

    mechanism: str
    slot: str
    part: str
    missing: tuple[str, ...]


def combinations() -> Iterator[Combination]:
    """Yield every mechanism with every one part replaced, and the needs that nothing would meet then.

    The experiment is taken to have validation sets and a root set, a model that ends in a linear layer, and several
    clients (one for centralised training).
    """
    for name, make in MECHANISMS.items():
        own = make()
        given = {"losses", "validation", "client_validation", "head", "root"}
        given |= {"pooled" if name == "centralised" else "clients"}
        for slot in SLOTS:
            for part, make_part in PARTS[slot].items():
                # the mechanism has this part already
                if isinstance(make_part, type) and type(own.slots().get(slot)) is make_part:
                    continue
                changed = replace(own, **{slot: make_part()})
                lacks = unmet_needs(changed, frozenset(given))
                called = type(changed.slots()[slot]).__name__
                # the part itself is named beside its reasons; other parts may come to lack something through it
                says = (lack.reason if lack.part == called else f"{lack.part}: {lack.reason}" for lack in lacks)
                yield Combination(name, slot, part, tuple(says))


def name_table() -> RichTable:
    """Return a table of everything that has a name, by the key of the file that takes it."""
    table = RichTable("kind", "names (or an import path 'package.module:name')")
    table.add_row("mechanism.name", ", ".join(MECHANISMS))
    for slot, parts in PARTS.items():
        if parts:
            table.add_row(f"mechanism.{slot}", ", ".join(parts))
    table.add_row("data.source", ", ".join([*SOURCES, *GENERATED]))
    table.add_row("model.name", ", ".join(MODELS))
    table.add_row("behaviour", ", ".join(BEHAVIOURS))
    table.add_row("clients.policy", ", ".join(POLICIES))
    return table


def combination_table(mechanism: str | None = None) -> RichTable:
    """Return a table of which part can replace which, with the reason where it cannot.

    Args:
        mechanism: of this one; None: of all.

    Raises:
        UserError: there is no such mechanism.
    """
    if mechanism is not None and mechanism not in MECHANISMS:
        raise UserError(f"MECHANISM: '{mechanism}': no such mechanism{nearest(mechanism, MECHANISMS)}")
    table = RichTable("mechanism", "decision", "fits", "does not fit, because it needs")
    found = list(combinations())
    for name in MECHANISMS if mechanism is None else (mechanism,):
        for slot in SLOTS:
            here = [c for c in found if c.mechanism == name and c.slot == slot]
            if not here:
                continue
            fits = ", ".join(c.part for c in here if not c.missing)
            wrong: dict[str, list[str]] = {}
            for c in here:
                if c.missing:
                    wrong.setdefault("; ".join(c.missing), []).append(c.part)
            lines = (f"{', '.join(parts)}: {reason}" for reason, parts in wrong.items())
            table.add_row(name, slot, fits or "-", "\n".join(lines) or "-", end_section=slot == "deploy")
    return table
