"""What a run directory, or a participant's folder, remembers of the data of its run: ``data.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hanse.data.fingerprint import Fingerprint, differences
from hanse.errors import UserError
from hanse.files import write_whole

__all__ = ["DATA", "compare_data", "note_own_data", "write_data"]

DATA = "data.json"  # an entry for the start, and one for each time that other data were allowed


def write_data(folder: Path, round: int, data: Fingerprint, note: str = "") -> None:
    """Remember the data that the run is played with from ``round`` on; only its own user can read the file."""
    entry = {"round": round, "note": note, "data": {name: list(digests) for name, digests in data.items()}}
    write_whole(folder / DATA, json.dumps([*_entries(folder), entry]) + "\n", private=True)


def compare_data(folder: Path, data: Fingerprint, *, allowed: bool) -> str | None:
    """Return None if these are the data of the run, and else a note for its record.

    Raises UserError that says what differs, unless other data are ``allowed``. A run without a fingerprint (an older
    hanse began it, or its file is damaged) gets one.
    """
    entries = _entries(folder)
    if not entries:
        return f"{DATA}: there is no fingerprint of the data that this run began with; one is taken now"
    found = differences(entries[-1]["data"], data)
    if not found:
        return None
    what = "; ".join(found)
    if not allowed:
        raise UserError(
            f"{folder}: was played with other data; not the same now: {what}; give it the data that it had, or allow "
            f"others with 'hanse resume {folder} --other-data'"
        )
    return f"other data from here on, as allowed: {what}"


def note_own_data(folder: Path, round: int, data: Fingerprint) -> str | None:
    """Remember a participant's data, and return a line if they are not those of its rounds before.

    It goes on all the same: a participant's data are its own affair, and may grow.
    """
    entries = _entries(folder)
    changed = [name for name, now in data.items() if entries and list(entries[-1]["data"].get(name, [])) != list(now)]
    if entries and not changed:
        return None
    note = f"own data: from round {round} on the {' and '.join(changed)} samples are others" if changed else ""
    write_data(folder, round, data, note)
    return note or None


def _entries(folder: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads((folder / DATA).read_text())
    except (OSError, ValueError, RecursionError):
        return []
    sound = isinstance(found, list) and all(isinstance(e, dict) and isinstance(e.get("data"), dict) for e in found)
    return found if sound else []
