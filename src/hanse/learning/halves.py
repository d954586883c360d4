"""The client's halves by the name of their payload, and the check that both ends make before one is used."""

from __future__ import annotations

from hanse.core.payload import ClientHalf, Declaration, Payload, mismatch
from hanse.core.table import Layout
from hanse.learning.generator import FromGenerator

HALVES: dict[str, ClientHalf] = {FromGenerator.name: FromGenerator()}


def register(name: str, half: ClientHalf) -> None:
    """Make a client's half known, in the process of the server and of every participant that trains with it.

    A server can name only what a participant has registered itself: no code is fetched. Raises ValueError if the name
    is another one's.
    """
    if HALVES.setdefault(name, half) != half:
        raise ValueError(f"payload {name!r}: a client's half of this name is registered already")


def half_of(name: str) -> ClientHalf:
    """Return the client's half of a payload. Raises ValueError if there is none."""
    if name not in HALVES:
        raise ValueError(f"payload {name!r:.40}: no client's half is registered for it; there are {', '.join(HALVES)}")
    return HALVES[name]


def declaration(payload: Payload) -> Declaration:
    """Return what is declared for a payload. Raises ValueError if its name or its numbers are not."""
    half = half_of(payload.name)
    if wrong := mismatch("number", payload.numbers, half.numbers):
        raise ValueError(f"payload '{payload.name}': {wrong}")
    return half.declares(payload.numbers)


def unsound(payload: Payload, layout: Layout) -> str | None:
    """Return why a payload must not be used to train a model laid out so, or None: one line that names the field."""
    try:
        declared = declaration(payload)
    except ValueError as wrong:
        return str(wrong)
    reason = mismatch("tensor", payload.tensors, declared.tensors) or half_of(payload.name).unfit(payload, layout)
    return None if reason is None else f"payload '{payload.name}': {reason}"
