"""The operator's key pair: the private key signs requests, and participants check them with the public key.

``hanse network up`` makes the pair once, in the folder of the certificates (:func:`make_operator_key`). The operator
gives ``operator.pub`` to the participants, who pin it with ``hanse network join`` (:func:`pin`). From then on their
nodes act only on requests that this key has signed (:mod:`hanse.flower.signing`). The key also signs the heads of
the books. Both sides should compare its fingerprint, by telephone for instance, since a key swapped on the way would
also be pinned.

Flower's processes find the files by two environment variables: ``HANSE_OPERATOR_KEY`` for the server app, and
``HANSE_OPERATOR`` for a node's client app.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from hanse.base.errors import UserError
from hanse.base.files import OPERATORS, write_whole
from hanse.ledger.note import PrivateKey, fingerprint, is_weak, own_key, public_of

KEY, PUBLIC = "operator.key", "operator.pub"
SIGNS_WITH, PINNED = "HANSE_OPERATOR_KEY", "HANSE_OPERATOR"  # the environment variables


# ---- the operator's side


def make_operator_key(folder: Path) -> Path:
    """Make the operator's key pair unless it exists, and return the path of the public key.

    Args:
        folder: the folder for the two files. ``operator.key`` (PEM, Ed25519) can be read only by its owner.
            ``operator.pub`` has 64 hexadecimal digits. Neither is ever replaced.

    Raises:
        UserError: ``operator.pub`` exists without its private key, or with another private key.
    """
    private, public = folder / KEY, folder / PUBLIC
    if not private.exists() and public.exists():
        raise UserError(_lost(private))
    found = public_of(own_key(private))
    if not public.exists():
        write_whole(public, found.hex() + "\n", durable=True)
    if public_key(public) != found:
        raise UserError(f"{public}: is not the public half of {private}: put back the one that belongs to it")
    return public


def signing_key(path: Path | None = None) -> PrivateKey:
    """Return the private key with which the server signs.

    Args:
        path: the file of the key. None: the file that ``HANSE_OPERATOR_KEY`` names.

    Raises:
        UserError: the variable is not set, the file is not there or is not an Ed25519 key, or others can read it.
    """
    if path is None and not os.environ.get(SIGNS_WITH):
        raise UserError(f"{SIGNS_WITH}: is not set: must name a project's certs/{KEY} (in 'hanse leave': --key)")
    found = path or Path(os.environ[SIGNS_WITH])
    if not found.is_file():
        raise UserError(_lost(found))
    return own_key(found)


def _lost(path: Path) -> str:
    """Return the error line of a private key that is not there any more."""
    return (
        f"{path}: the operator's key is gone: put a copy back. Without one, remove {path.with_suffix('.pub')} and "
        "'hanse network up' makes a new key, which every participant has to pin anew"
    )


# ---- the participant's side


def public_key(path: Path) -> bytes:
    """Return the public key in a file, 32 bytes.

    Raises:
        UserError: the file does not exist, or does not hold a public key.
    """
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as wrong:
        raise UserError(f"{path}: the operator's public key cannot be read: {wrong}") from None
    if not re.fullmatch("[0-9a-f]{64}", text) or is_weak(bytes.fromhex(text)):
        raise UserError(f"{path}: is not a sound operator's public key: must be 64 hexadecimal digits (operator.pub)")
    return bytes.fromhex(text)


def pin(home: Path, address: str, given: Path | None) -> Path:
    """Pin an operator's key (accept only this one from now on), and return the file that holds it.

    Args:
        home: the participant's folder (:func:`hanse.base.files.home_of`).
        address: ``HOST:PORT`` of the operator. Each address has its own pin.
        given: the ``operator.pub`` that the operator gave. None: the key that was pinned before.

    Raises:
        UserError: nothing is pinned yet and nothing is given, or another key is pinned.
    """
    pinned = home / OPERATORS / f"{address.replace(':', '_')}.pub"
    if given is None and not pinned.exists():
        raise UserError(
            f"--operator: must be given when you first join {address}: the operator's public key, {PUBLIC}, which "
            "comes with ca.crt"
        )
    if given is not None:
        new = public_key(given)
        write_whole(pinned, new.hex() + "\n", durable=True, private=True, replace=False)
        if new != (old := public_key(pinned)):
            raise UserError(
                f"--operator: {given}: has the fingerprint {fingerprint(new)}; the key pinned for {address} has "
                f"{fingerprint(old)}. If the operator itself says that its key has changed, remove {pinned}"
            )
    return pinned


def pinned_key() -> bytes:
    """Return the key that ``HANSE_OPERATOR`` names, as a node's client app finds it.

    Raises:
        UserError: the variable is not set, or its file holds no key.
    """
    path = os.environ.get(PINNED)
    if not path:
        raise UserError(
            "no operator's key is pinned at this node: start it with 'hanse network join HOST:PORT --operator "
            f"{PUBLIC}' (or set {PINNED} to the path of that file)"
        )
    return public_key(Path(path))
