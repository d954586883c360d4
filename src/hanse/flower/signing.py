"""Signs requests: the server signs each request with the operator's key, and a node acts on no other requests.

Whoever has an admitted key, or access to the SuperLink's database, can send a message to a node. :func:`sign` therefore
adds two things to each request: a nonce, and an Ed25519 signature. The signature covers Flower's run, the node, the
type of message, and everything in the request: its kind and round, the assignment, the letter with receipts, the
header, and the content hashes of its arrays. A node first passes each message to :func:`check`. This accepts what the
pinned key has signed for this node in this run, and accepts it only once.

The nonces that a node has seen stand in its own log (:mod:`hanse.flower.node_log`), since each message may meet a
fresh process. Nonces are random, so messages may come in any order, and a server restarted from an old copy of its
files does not look like a replay.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from flwr.app import Context
from flwr.app import Message as FlowerMessage

from hanse.base.plain_text import quantity
from hanse.federation.codec import Message, WireError, hash_of
from hanse.flower.node_log import MOST, NodeLog
from hanse.ledger.note import PrivateKey, fingerprint

TOLD = ("kind", "round", "agreement")  # of a request, in the node's own log


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


def sign(message: FlowerMessage, key: PrivateKey) -> FlowerMessage:
    """Add a nonce and the signature to a request, and return it."""
    values, about = message.content.config_records["hanse"], message.metadata
    values["nonce"] = secrets.token_hex(16)
    arrays = message.content.array_records["arrays"]
    said = _statement(dict(values), arrays, about.run_id, about.dst_node_id, about.message_type)
    values["signature"] = key.sign(said).hex()
    return message


def check(
    request: Message, values: Mapping[str, Any], message: FlowerMessage, context: Context, operator: bytes, log: NodeLog
) -> str:
    """Return what the operator has signed: this request, for this node and run. The request must be new.

    Args:
        request: the message as :func:`hanse.flower.message.from_records` reads it.
        values: the plain values that came with the request.
        message: Flower's message.
        context: Flower's context of the node.
        operator: the public key that is pinned, 32 bytes.
        log: the participant's log, in which the request is written down.

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
    if len(said) > MOST:  # it may have to be kept in the log
        raise WireError(f"the request has {quantity(len(said), 'byte')} beside its arrays: at most {MOST}")
    if wrong := [name for name, array in request.arrays.items() if hash_of(array) != name]:
        raise WireError(f"an array of the request is not what was signed: {wrong[0][:40]}")
    if re.fullmatch("[0-9a-f]{32}", str(values.get("nonce"))) is None:  # the log could write another in another way
        raise WireError("the request's nonce is not 32 hexadecimal digits, so a replay could not be told")
    told = {name: v if type(v := values[name]) is int else str(v)[:64] for name in TOLD if name in values}
    if not log.took(str(values["nonce"]), by=fingerprint(operator), **told):
        raise WireError("the request was taken before: a replay")
    return said.decode()
