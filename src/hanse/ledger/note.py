"""Signatures under the heads of a log, by the operator and by witnesses (C2SP signed-note, tlog-cosignature).

A note is a text, followed by a blank line and a line for each signature. Such a line has an em dash, the name of the
key and, in base64, four bytes that distinguish keys and the Ed25519 signature. The operator signs the text itself. A
witness signs the text after a line with the time, which its signature contains. Names and formats follow the
specification, so any tool that reads heads of transparency logs can read these.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hanse.base.errors import UserError, gated, library
from hanse.base.files import write_whole
from hanse.base.merkle import decoded

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PrivateKey: TypeAlias = "Ed25519PrivateKey"  # a name only: who checks books needs no package for signatures
DASH = "\u2014 "  # before each signature
_LINE = re.compile(rf"{DASH}([^\s+]+) ([A-Za-z0-9+/]+=*)\n?")
_SIGNED, _COSIGNED = b"\x01", b"\x04"  # the kinds of keys: Ed25519, and Ed25519 for cosignatures


def sign(text: str, name: str, key: PrivateKey) -> str:
    """Return the line with an operator's signature under a note.

    Args:
        text: the note's text, which ends with a newline.
        name: the key's name; no white space and no plus.
        key: the operator's private key.

    Examples:
        >>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        >>> key = Ed25519PrivateKey.from_private_bytes(bytes(32))
        >>> line = sign("hanse/town\\n", "hanse/town", key)
        >>> is_signed("hanse/town\\n", line, "hanse/town", key.public_key().public_bytes_raw())
        True
    """
    if not re.fullmatch(r"[^\s+]+", name):
        raise UserError(f"book: {name!r}: has a space or a plus, and a key cannot be called so: give another name")
    return _line(name, _id(name, _SIGNED, public_of(key)) + key.sign(text.encode()))


def is_signed(text: str, line: str, name: str, public: bytes) -> bool:
    """Return whether a line is this key's signature under a note.

    Args:
        text: the note's text, which ends with a newline.
        line: a signature line of the note, with or without its newline.
        name: the key's name.
        public: the key, 32 bytes.

    Raises:
        UserError: the package ``cryptography`` is not installed.
    """
    blob = _blob(line, name, _SIGNED, public)
    return len(blob) == 64 and is_signature(text.encode(), blob, public)


def cosign(text: str, name: str, key: PrivateKey, time: int) -> str:
    """Return the line with a witness's cosignature under a note.

    Args:
        text: the note's text, which ends with a newline.
        name: the key's name; no white space and no plus.
        key: the witness's private key.
        time: seconds since 1970, by the witness's clock.
    """
    said = struct.pack(">Q", time) + key.sign(_with_time(text, time))
    return _line(name, _id(name, _COSIGNED, public_of(key)) + said)


def cosigned_at(text: str, line: str, name: str, public: bytes) -> int | None:
    """Return the time that a witness's cosignature names; None if the line is not its cosignature under this note.

    For the arguments see :func:`is_signed`.
    """
    blob = _blob(line, name, _COSIGNED, public)
    if len(blob) != 72:
        return None
    [time] = struct.unpack(">Q", blob[:8])
    return int(time) if is_signature(_with_time(text, time), blob[8:], public) else None


def public_of(key: PrivateKey) -> bytes:
    """Return the public half of a key, 32 bytes."""
    return key.public_key().public_bytes_raw()


_P = 2**255 - 19
_SMALL = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826


def is_weak(public: bytes) -> bool:
    """Return whether a public key (Ed25519, 32 bytes) is one of the eight points of small order, zero among them, under
    which anybody can sign.
    """
    y = (int.from_bytes(public, "little") & (2**255 - 1)) % _P
    return y in (0, 1, _P - 1, _SMALL, _P - _SMALL)


def fingerprint(public: bytes) -> str:
    """Return a public key's fingerprint, for people to compare.

    It is the first 128 bits of the key's SHA-256, in groups of four digits.

    Examples:
        >>> fingerprint(bytes(32))
        '6668 7aad f862 bd77 6c8f c18b 8e9f 8e20'
    """
    digits = hashlib.sha256(public).hexdigest()[:32]
    return " ".join(digits[i : i + 4] for i in range(0, 32, 4))


def load_key(path: Path) -> PrivateKey:
    """Read an Ed25519 private key without a password, in PEM or OpenSSH format.

    Raises:
        UserError: the file is not such a key, or the package ``cryptography`` is not installed.
    """
    private, _ = _ed25519()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    blob = path.read_bytes()
    with gated(f"{path}: is not a private key without a password"):
        key = (load_ssh_private_key if b"OPENSSH" in blob else load_pem_private_key)(blob, None)
    if not isinstance(key, private):
        raise UserError(f"{path}: is not an Ed25519 key")
    found: PrivateKey = key
    return found


def own_key(path: Path) -> PrivateKey:
    """Return this user's own Ed25519 private key (PEM), which is made if there is no file. It is never replaced.

    Raises:
        UserError: others can read the file, or it is not such a key.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if not path.exists():  # of two processes that make it at once, one wins
        made = _ed25519()[0].generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_whole(path, made, durable=True, private=True, replace=False)
    if path.stat().st_mode & 0o077:
        raise UserError(f"{path}: others may read it: chmod 600 {path}")
    return load_key(path)


def _with_time(text: str, time: int) -> bytes:
    return f"cosignature/v1\ntime {time}\n{text}".encode()


def _id(name: str, kind: bytes, public: bytes) -> bytes:
    """Return the four bytes that tell keys apart."""
    return hashlib.sha256(name.encode() + b"\n" + kind + public).digest()[:4]


def _line(name: str, blob: bytes) -> str:
    return f"{DASH}{name} {base64.b64encode(blob).decode()}\n"


def _blob(line: str, name: str, kind: bytes, public: bytes) -> bytes:
    """Return what a line has behind the four bytes; empty if it is not a line of this key."""
    form = _LINE.fullmatch(line)
    if form is None or form[1] != name:
        return b""
    try:
        blob = decoded(form[2])
    except ValueError:
        return b""
    return blob[4:] if blob[:4] == _id(name, kind, public) else b""


def is_signature(said: bytes, signature: bytes, public: bytes) -> bool:
    """Return whether bytes were signed (Ed25519) with the private key of a public key (32 bytes)."""
    _, form = _ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        form.from_public_bytes(public).verify(signature, said)
    except (InvalidSignature, ValueError):
        return False
    return True


def _ed25519() -> tuple[Any, Any]:
    """Return the classes of private and public keys. Raises UserError if ``cryptography`` is not installed."""
    said = "signatures need the package 'cryptography'; 'pip install cryptography'"
    found = library("cryptography.hazmat.primitives.asymmetric.ed25519", said)
    return found.Ed25519PrivateKey, found.Ed25519PublicKey
