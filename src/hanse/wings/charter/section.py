"""``[charter]`` in an experiment: what the charter sets there, and what contradicts it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError, collected
from hanse.mechanisms.mechanism_table import part_table
from hanse.mechanisms.registry import build_mechanism
from hanse.runs.sections import ExitSection
from hanse.wings.charter.amendment import read
from hanse.wings.charter.charter import Charter


def sections_under(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment's sections with what its charter sets. Raises UserError where they contradict it."""
    given = sections["charter"]
    if isinstance(given, Mapping) and "file" in given:
        if others := sorted(given.keys() - {"file"}):
            raise UserError(f"charter.{others[0]}: stands beside charter.file: must be said in that file")
        charter = read(Path(str(given["file"])))
    else:
        charter = Charter.of(given)
    lines = list[str]()
    found = {**sections, "charter": charter.model_dump(mode="json", exclude_defaults=True)}
    of_leavers = None if charter.exit == ExitSection() else charter.exit.model_dump()
    agreed = {"vests": charter.vests, "members": charter.by_client, "exit": of_leavers}
    sees = {"told": "values" in charter.sees, "named": "names" in charter.sees}
    with collected(lines):
        found["clients"] = _agreed("clients", sections.get("clients", {}), {**agreed, **sees})
    with collected(lines):
        found["mechanism"] = _mechanism(sections.get("mechanism"), charter)
    if lines:
        raise UserError(*lines)
    return found


def _agreed(where: str, given: Any, wanted: Mapping[str, Any]) -> Any:
    """Return a section with what the charter says. Raises UserError for each key that says something else."""
    if not isinstance(given, Mapping):
        return given  # the schema says so
    if apart := [key for key, value in wanted.items() if given.get(key, value) != value]:
        said = "the charter has {!r}: must be the same, or left out"
        raise UserError(*(f"{where}.{key}: {given[key]!r}: {said.format(wanted[key])}" for key in apart))
    return {**given, **{key: value for key, value in wanted.items() if value is not None}}


def _mechanism(given: Any, charter: Charter) -> Any:
    """Return the mechanism's table, weighing as the charter says. Raises UserError."""
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        return given  # the schema says so
    built = build_mechanism({key: one for key, one in given.items() if key != "weigh"})

    def said(slot: str) -> dict[str, Any]:
        """Return the part in a slot as a table, without a name if there is none."""
        own, part = given.get(slot), getattr(built, slot)
        if isinstance(own, str | Mapping):
            return {"name": own} if isinstance(own, str) else dict(own)
        return {} if part is None else part_table(slot, part)

    weigh, value, settle = said("weigh"), said("value").get("name"), said("settle")
    capped = weigh if weigh.get("name") == "capped" else {"name": "capped", "of": weigh}
    wanted = {"cap": charter.cap, "weights": charter.weights, "clip": charter.length, "floor": charter.floor}
    found = {**given, "weigh": _agreed("mechanism.weigh", capped, wanted)}
    if settle.get("name") == "pot":
        found["settle"] = _agreed("mechanism.settle", settle, {"vests": charter.vests})
    if charter.floor and value not in (None, "path"):
        raise UserError(f"mechanism.value: '{value}': the charter's floor goes by path values: must be 'path' or none")
    return {**found, "value": "path"} if charter.floor and value is None else found
