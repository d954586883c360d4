"""Signs requests: the server signs each request with the operator's key, and a node acts on no other requests.

Whoever has an admitted key, or access to the SuperLink's database, can send a message to a node. :func:`sign` therefore
adds two things to each request: a nonce, and an Ed25519 signature. The signature covers Flower's run, the node, the
type of message, and everything in the request: its kind and round, the assignment, the letter with receipts, the
header, and the content hashes of its arrays. A node first passes each message to :func:`check`. This accepts what the
pinned key has signed for this node in this run, and accepts it only once.

The nonces that a node has seen are kept in ``requests.txt`` in the participant's folder, since each message may meet a
fresh process. Nonces are random, so messages may come in any order, and a server restarted from an old copy of its
files does not look like a replay.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from flwr.app import Context
from flwr.app import Message as FlowerMessage

from hanse.base.files import ASKED, private_folder
from hanse.federation.codec import Message, WireError, hash_of
from hanse.ledger.note import fingerprint


def _statement(values: Mapping[str, Any], arrays: Iterable[str], run: int, node: int, kind: str) -> bytes:
    """Return the bytes that a signature covers: compact JSON with sorted keys.

    Args:
        values: all plain values of the request, the header among them, but for the signature.
        arrays: the names of its arrays, which are their content hashes.
        run: Flower's id of the run.
        node: Flower's id of the node that it is for.
        kind: Flower's type of message.
    """
    said = {"hanse": "request 1", "run": run, "node": node, "type": kind, "values": values, "arrays": sorted(arrays)}
    return json.dumps(said, sort_keys=True, separators=(",", ":")).encode()


def sign(message: FlowerMessage, key: Ed25519PrivateKey) -> FlowerMessage:
    """Add a nonce and the signature to a request, and return it."""
    values, about = message.content.config_records["hanse"], message.metadata
    values["nonce"] = secrets.token_hex(16)
    arrays = message.content.array_records["arrays"]
    said = _statement(dict(values), arrays, about.run_id, about.dst_node_id, about.message_type)
    values["signature"] = key.sign(said).hex()
    return message


def check(
    request: Message, values: Mapping[str, Any], message: FlowerMessage, context: Context, operator: bytes, home: Path
) -> None:
    """Raise WireError unless the operator has signed this request for this node and run, and the request is new.

    Args:
        request: the message as :func:`hanse.flower.message.from_records` reads it.
        values: the plain values that came with the request.
        message: Flower's message.
        context: Flower's context of the node.
        operator: the public key that is pinned, 32 bytes.
        home: the participant's folder.

    Raises:
        WireError: the request is not valid. One line says why. The node must then ignore the whole message.
    """
    if not isinstance(values.get("signature"), str):
        raise WireError("the request is not signed; a node takes requests of its operator alone")
    plain = {name: value for name, value in values.items() if name != "signature"} | {"header": request.header}
    try:
        said = _statement(plain, request.arrays, context.run_id, context.node_id, message.metadata.message_type)
        Ed25519PublicKey.from_public_bytes(operator).verify(bytes.fromhex(values["signature"]), said)
    except (InvalidSignature, ValueError, TypeError):
        raise WireError(
            "the request is not signed for this node and this run by the operator's key that is pinned here, "
            f"{fingerprint(operator)}"
        ) from None
    if wrong := [name for name, array in request.arrays.items() if hash_of(array) != name]:
        raise WireError(f"an array of the request is not what was signed: {wrong[0][:40]}")
    if not _new(str(values["nonce"]), home):
        raise WireError("the request was taken before: a replay")


def _new(nonce: str, home: Path) -> bool:
    """Note a nonce, and say whether it is new. Of two processes that ask at once, one is told so."""
    path = home / ASKED  # a nonce on each line
    if not home.exists():
        private_folder(home)
    try:
        path.touch(0o600)
        with path.open("r+b") as file:
            now = os.fstat(file.fileno())
            # whoever can write it can take a nonce out, and the request would be acted upon again
            if now.st_mode & 0o022 or now.st_uid != os.geteuid():
                raise WireError(f"{path}: others may write it, so no request is acted upon: chmod 600")
            fcntl.flock(file, fcntl.LOCK_EX)
            if nonce.encode() in file.read():
                return False
            file.write(f"\n{nonce}".encode())  # on a line of its own, even if a crash cut the last one short
            file.flush()
            os.fsync(file.fileno())
            return True
    except OSError as wrong:
        raise WireError(f"{path}: the request cannot be noted, so it is not acted upon: {wrong}") from None
