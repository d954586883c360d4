"""Verify receipts of hanse without hanse: python verify_receipt.py client-3.jsonl operator.pub

prints what each receipt says, or ends with the reason why one proves nothing (docs/ledger.md).
"""

import base64
import hashlib
import json
import re
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def need(ok, why):
    """Raise ValueError if something does not hold."""
    if not ok:
        raise ValueError(why)


def sha(*parts):
    """Return the SHA-256 of bytes."""
    return hashlib.sha256(b"".join(parts)).digest()


def decoded(text):
    """Return the bytes of a base64 text that is written in the one canonical way."""
    blob = base64.b64decode(text, validate=True)
    need(base64.b64encode(blob).decode() == text, "not base64 as it is written")
    return blob


def hashes(text):
    """Return the hashes that stand one after another in a base64 text."""
    blob = decoded(text)
    need(len(blob) % 32 == 0, "not a list of hashes")
    return [blob[i : i + 32] for i in range(0, len(blob), 32)]


def climb(leaf, index, size, path):
    """Return the root of the tree that a leaf's path leads to (RFC 9162, 2.1.3.2)."""
    need(0 <= index < size, "no such leaf")
    node, last = sha(b"\0", leaf), size - 1
    for step in path:
        need(last, "the proof is too long")
        if index % 2 or index == last:
            node = sha(b"\1", step, node)
            while index and index % 2 == 0:
                index, last = index // 2, last // 2
        else:
            node = sha(b"\1", node, step)
        index, last = index // 2, last // 2
    need(last == 0, "the proof is too short")
    return node


def verify(line, public):
    """Return what a receipt says; ValueError, or another exception, if it does not prove it."""
    receipt = json.loads(line)
    said, head = json.loads(receipt["statement"]), receipt["head"]
    text, count, root, round, signature = re.fullmatch(
        r"(hanse/[^\n]+\n(\d+)\n(\S{44})\nround (\d+)\n)\n\u2014 \S+ (\S+)\n", head
    ).groups()
    need(said["round"] == int(round), "the statement is of another round")
    # the close of the round, the last line of the log: it commits to the record and to all statements
    statements = climb(receipt["statement"].encode(), receipt["index"], receipt["of"], hashes(receipt["path"]))
    need(len(hashes(receipt["record"])) == 1, "the record is no hash")
    memo = f"record {receipt['record']} statements {base64.b64encode(statements).decode()}"
    close = {"number": int(count), "round": int(round), "step": "close", "kind": "close", "memo": memo, "postings": []}
    leaf = json.dumps(close, separators=(",", ":")).encode()
    found = climb(leaf, int(count) - 1, int(count), hashes(receipt["proof"]))
    need(found == decoded(root), "the proof does not lead to the head")
    # the head, which the operator has signed (C2SP signed-note)
    name = text.split("\n")[0]
    key = sha(name.encode(), b"\n\1", public)[:4]
    need(head.split("\u2014 ")[1].startswith(name + " ") and decoded(signature)[:4] == key, "another key")
    Ed25519PublicKey.from_public_bytes(public).verify(decoded(signature)[4:], text.encode())
    return said


if __name__ == "__main__":
    operator = bytes.fromhex(Path(sys.argv[2]).read_text())
    with Path(sys.argv[1]).open(encoding="utf-8") as lines:
        for line in lines:
            print(verify(line, operator))
