"""The client's half of each payload, by name, and the check that server and client both make of a payload.

A mechanism may send a *payload* with its training tasks (:mod:`hanse.core.port`). The server's half is a part of the
mechanism. The client's half is found here by its name, because no code is sent. :func:`register` adds one.
"""

from __future__ import annotations

from hanse.core.port import ClientHalf, Declaration, Payload, mismatch
from hanse.core.table import Layout
from hanse.learning.generator import FromGenerator

HALVES: dict[str, ClientHalf] = {FromGenerator.name: FromGenerator()}


def register(name: str, half: ClientHalf) -> None:
    """Register a client's half in this process.

    The server's process and every participant's must call it before training with such a payload.

    Args:
        name: the payload's name.
        half: the client's half, which uses the payload.

    Raises:
        ValueError: another half is registered under this name.
    """
    if HALVES.setdefault(name, half) != half:
        raise ValueError(f"payload {name!r}: a client's half of this name is registered already")


def half_of(name: str) -> ClientHalf:
    """Return the client's half of a payload.

    Raises:
        ValueError: no half is registered under this name.
    """
    if name not in HALVES:
        raise ValueError(f"payload {name!r:.40}: no client's half is registered for it; there are {', '.join(HALVES)}")
    return HALVES[name]


def declaration(payload: Payload) -> Declaration:
    """Return the tensors that a payload and its answer must have.

    Raises:
        ValueError: the payload's name is not registered, or its numbers do not match its half's declaration.
    """
    half = half_of(payload.name)
    if wrong := mismatch("number", payload.numbers, half.numbers):
        raise ValueError(f"payload '{payload.name}': {wrong}")
    return half.declares(payload.numbers)


def unsound(payload: Payload, layout: Layout) -> str | None:
    """Return why a payload must not be used to train a model of this layout, or None.

    The reason is one line that names the field.
    """
    try:
        declared = declaration(payload)
    except ValueError as wrong:
        return str(wrong)
    reason = mismatch("tensor", payload.tensors, declared.tensors) or half_of(payload.name).unfit(payload, layout)
    return None if reason is None else f"payload '{payload.name}': {reason}"
