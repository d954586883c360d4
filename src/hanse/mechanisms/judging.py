"""Decides who judges contributions if a mechanism leaves it open, and says so for the run."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

from hanse.core.part import Mechanism


def judged(table: Mapping[str, Any], mechanism: Mechanism, validation: Sized | None) -> dict[str, Any] | None:
    """Return a ``[mechanism]`` table that says who judges contributions, or None if the given table already does.

    A mechanism's own part "first_order_clients" becomes "first_order" where the server has a validation set. If the
    table names that part or gives it other options, it stays at the clients, with ``judges = "others"``.

    Args:
        table: the table as it was given.
        mechanism: the mechanism that was made from the table.
        validation: the server's validation samples, or None if it has none.
    """
    value, said = mechanism.value, table.get("value", {})
    if value is None:
        return None
    from hanse.mechanisms.value import FirstOrderAtClients  # late: few mechanisms value by it

    if not isinstance(value, FirstOrderAtClients) or value.judges != "auto":
        return None
    said = {"name": said} if isinstance(said, str) else dict(said)
    chosen: dict[str, Any] = said | {"judges": "others"}
    if said.keys() <= {"judges", "normalised"} and validation:
        chosen = {"name": "first_order", "normalised": value.normalised}
    return {**table, "value": chosen}


def who_judges(asked: Mechanism, mechanism: Mechanism) -> list[str]:
    """Return who judges the contributions that are paid for, with a warning if clients judge their own.

    Args:
        asked: the mechanism as it was asked for.
        mechanism: the mechanism that is played.
    """
    value = mechanism.value
    if value is None:
        return []
    from hanse.mechanisms.value import SELF_JUDGED, FirstOrder, FirstOrderAtClients

    if getattr(value, "judges", None) == "all":
        told = f"{SELF_JUDGED[0].lower()}{SELF_JUDGED[1:]} With 'others', or value = 'first_order', none can."
        return [f"warning: mechanism.value.judges: 'all': {told}"]
    if getattr(asked.value, "judges", None) != "auto" and mechanism.settle is None:
        return []
    if isinstance(value, FirstOrder):
        return ["the server's validation samples judge contributions: mechanism.value = 'first_order'"]
    if not isinstance(value, FirstOrderAtClients):
        return []
    return ["clients judge each other's contributions, in two halves: mechanism.value.judges = 'others'"]
