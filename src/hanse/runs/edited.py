"""The settings with which a run was played: which of them may change, and which were changed in ``config.toml``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from hanse.base import toml
from hanse.base.files import read_toml


def played_settings(folder: Path) -> str:
    """Return, as TOML, the settings with which a run's newest readable checkpoint was played; "" if none has them."""
    for path in sorted((folder / "checkpoints").glob("*.safetensors"), reverse=True):
        wrong = (SafetensorError, OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError)
        with suppress(*wrong), safe_open(path, "np") as file:
            return str(json.loads((file.metadata() or {})["notes"]).get("settings", ""))
    return ""


# how long a run lasts, and what else may change when it goes on: where it is played, and where its books and its data
# lie. Data have a fingerprint, and losses of privacy an account.
LENGTH = ("run.rounds", "run.target_accuracy", "run.max_seconds", "run.max_megabytes")
MAY_CHANGE = (*LENGTH, "run.checkpoint_every", "ledger.url", "engine", "data.source", "federation.deadline_s",
              "federation.private")  # fmt: skip
LEFT_OUT = "left out"


def edited_settings(path: Path) -> str:
    """Return a line on the first setting of ``config.toml`` that differs from the run's last checkpoint.

    It is "" if all settings are those with which the checkpoint was played, apart from those of :data:`MAY_CHANGE`, or
    if no checkpoint says.
    """
    played = played_settings(path)
    if not played:
        return ""
    with suppress(ValueError, RecursionError):  # settings that hanse did not write
        for key, old, new in differences(toml.loads(played), read_toml(path / "config.toml")):
            if not may_change(key):
                return f"config.toml was edited: {key} is {new}, and the rounds were played with {old}"
    return ""


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each setting that differs, in order, with both values as TOML, or :data:`LEFT_OUT`."""
    then, now = dict(toml.flat(before)), dict(toml.flat(after))
    for key in sorted(then.keys() | now.keys()):
        old, new = (LEFT_OUT if key not in one else toml.inline(one[key]) for one in (then, now))
        if old != new:
            yield key, old, new


def may_change(key: str, names: Sequence[str] = MAY_CHANGE) -> bool:
    """Say whether a setting is one of those that may change, or in a table that is."""
    return any(key == name or key.startswith(f"{name}.") for name in names)
