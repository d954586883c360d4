"""The messages between the server and the members of a group in the four steps of masking a sum.

* "keys": :class:`AskedKeys` says who is in the group. A member answers with :class:`MaskKeys`: fresh public keys,
  signed.
* "shares": :class:`AskedShares` has the keys of all members. A member answers with :class:`Shares` of its two secrets.
* "sum": :class:`AskedSum` has the shares that others made for a member. The member trains, and answers with
  :class:`Summed` and its update under masks.
* "open": :class:`AskedOpening` says whose updates are in the sum. It also has each of these members' signed word that
  it was given shares of the same members. A member answers with :class:`RevealedShares`, its share of one secret of
  each member.

Client ids are texts here, since they are keys of mappings. Both sides check incoming messages against these types.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from hanse.core.declared import Count, Declared, Digest, Samples
from hanse.core.port import Mask

COUNTS = 5
"""Words behind those of an update: samples, optimiser steps, loss, whether there is one, and 1 for the member."""
MOST = 63
"""The most members of a group."""
SEALED = 2 * (2 * 66 + 16)
"""Hexadecimal digits of two shares that are sealed together."""

Id = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,15})$")]
Clients = Annotated[list[Count] | tuple[Count, ...], Field(min_length=3, max_length=MOST)]
Sealed = Annotated[str, Field(pattern=f"^[0-9a-f]{{{SEALED}}}$")]
Share = Annotated[str, Field(pattern="^[0-9a-f]{132}$")]
Prints = Annotated[str, Field(pattern="^[0-9a-f]{128}$")]
Signature = Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


class AskedKeys(TypedDict):
    """The members of the group, how many must answer, and the hash of the common training task."""

    clients: Clients
    least: Annotated[int, Field(ge=3, le=MOST)]
    task: Digest


class MaskKeys(TypedDict):
    """A member's keys for one round.

    ``identity`` is the public key by which other members know the member. ``sealing`` and ``masking`` are fresh keys
    (X25519). ``seed`` is the SHA-256 of the seed of the member's own mask. ``signature`` is made with the identity's
    key under :func:`statement`.
    """

    identity: Digest
    sealing: Digest
    masking: Digest
    seed: Digest
    signature: Signature


class AskedShares(TypedDict):
    """The keys of the members that gave some, by id."""

    keys: Annotated[dict[Id, MaskKeys], Field(min_length=3, max_length=MOST)]


class Shares(TypedDict):
    """For each member, the sealed shares that are dealt to it, and the SHA-256 of each."""

    sealed: Annotated[dict[Id, Sealed], Field(max_length=MOST)]
    prints: Annotated[dict[Id, Prints], Field(max_length=MOST)]


class AskedSum(Shares):
    """The shares made for the member that is asked.

    ``sealed`` and ``prints`` are as in :class:`Shares`, but by the id of the member that made them.
    """


class Summed(TypedDict):
    """The number of samples behind the update, and the member's signature under :func:`masked_with`."""

    samples: Samples
    signature: Signature


class AskedOpening(TypedDict):
    """The members whose updates are in the sum, and by id what each of them signed in "sum"."""

    survivors: Clients
    signatures: Annotated[dict[Id, Signature], Field(max_length=MOST)]


class RevealedShares(TypedDict):
    """Shares of the seeds of the members whose updates are in the sum, and of the mask keys of the others."""

    seeds: Annotated[dict[Id, Share], Field(max_length=MOST)]
    keys: Annotated[dict[Id, Share], Field(max_length=MOST)]


ASKED: Mapping[str, Declared[Any]] = {
    "keys": Declared(AskedKeys),
    "shares": Declared(AskedShares),
    "sum": Declared(AskedSum),
    "open": Declared(AskedOpening),
}
SAID: Mapping[str, Declared[Any]] = {
    "keys": Declared(MaskKeys),
    "shares": Declared(Shares),
    "sum": Declared(Summed),
    "open": Declared(RevealedShares),
}


def num_words(task: Mask) -> int:
    """Return how many words a sound answer to a step has: in "sum" the update, its counts and a checksum."""
    return 0 if task.train is None else task.train.start.numel() + COUNTS + 1


def statement(context: str, client: int, said: Mapping[str, str]) -> bytes:
    """Return the bytes that a member signs: its keys and their round.

    Args:
        context: the hash of what all members must agree on (:func:`context_of`).
        client: the member's id.
        said: the member's :class:`MaskKeys`.
    """
    fields = [context, str(client), said["sealing"], said["masking"], said["seed"]]
    return ("hanse masks 1\n" + "\n".join(fields) + "\n").encode()


def masked_with(context: str, keys: Mapping[str, str]) -> bytes:
    """Return the bytes that a member signs in "sum": the members and keys with which its update is masked.

    Otherwise a server could give members different lists. It could tell some that others dropped out, have them open
    the masks of one member, and so see that member's update alone.

    Args:
        context: as in :func:`statement`.
        keys: by id, the ``masking`` keys of the members whose shares this member was given, and its own.
    """
    return ("hanse masks 1 sum\n" + "\n".join([context, *(f"{c} {keys[c]}" for c in sorted(keys))]) + "\n").encode()


def context_of(run: str, job: str, round: int, asked: Mapping[str, Any]) -> str:
    """Return the hash, in hexadecimal digits, of everything that the server must tell all members of a group alike.

    If a server tells one member another model, training rule, round or group, the others' signatures are not valid
    there. So it cannot single out an update by letting the others train nothing.

    Args:
        run: the run's name.
        job: all of a member's assignment but its id, as text.
        round: the round's number.
        asked: :class:`AskedKeys`.
    """
    clients: Sequence[int] = sorted(asked["clients"])
    said = ["hanse masks 1", run, job, round, clients, asked["least"], asked["task"]]
    return hashlib.sha256(json.dumps(said, separators=(",", ":")).encode()).hexdigest()
