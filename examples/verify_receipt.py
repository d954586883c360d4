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

FIELDS = ["statement", "index", "of", "path", "record", "proof", "head"]
SAID = ["round", "client", "balance", "escrow", "postings"]
MAY = {"value": float, "epsilon": float, "agreement": str}  # what a statement may say behind these
WHOLE = r"(0|[1-9]\d{0,18})"


def need(ok, why):
    """Raise ValueError if something does not hold."""
    if not ok:
        raise ValueError(why)


def written(said, ascii=True):
    """Return the one way in which it is written."""
    return json.dumps(said, separators=(",", ":"), ensure_ascii=ascii)


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


def is_whole(number):
    """Return whether something is a whole number of 64 bits."""
    return type(number) is int and -(2**63) <= number < 2**63


def is_listed(postings):
    """Return whether something is a list of postings (step, account, units), or the number and hash of a long one."""
    if type(postings) is dict:
        count, sum = postings.get("count"), postings.get("sha256")
        return list(postings) == ["count", "sha256"] and is_whole(count) and count >= 0 and type(sum) is str
    kinds = [[type(part) for part in one] for one in postings if type(one) is list]
    return kinds == [[str, str, int]] * len(postings) and all(is_whole(one[2]) for one in postings)


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
    need(len(line.encode()) <= 4096, "too long")
    receipt = json.loads(line)
    statement, index, of, path, record, proof, head = (receipt[name] for name in FIELDS)
    said = json.loads(statement)
    need(line.rstrip("\n") == written(receipt, ascii=False) and statement == written(said), "written otherwise")
    need(list(receipt) == FIELDS and list(said) == SAID + [name for name in MAY if name in said], "other fields")
    need(all(type(said.get(name, kind())) is kind for name, kind in MAY.items()), "a value is of another kind")
    need(re.fullmatch("[0-9a-f]{64}", said.get("agreement", 64 * "0")), "no hash of an agreement")
    need(all(map(is_whole, (index, of, *(said[name] for name in SAID[:4])))), "not whole numbers")
    need(min(index, of, said["round"], said["client"]) >= 0 and is_listed(said["postings"]), "not what it should say")
    form = rf"((hanse/[^\n]+)\n{WHOLE}\n(\S{{44}})\nround {WHOLE}\n)\n\u2014 \2 (\S+)\n"
    text, name, count, root, round, signature = re.fullmatch(form, head, re.ASCII).groups()
    need(said["round"] == int(round), "the statement is of another round")
    statements, [_] = climb(statement.encode(), index, of, hashes(path)), hashes(record)
    memo = f"record {record} statements {base64.b64encode(statements).decode()}"  # of the last line, the round's close
    close = {"number": int(count), "round": int(round), "step": "close", "kind": "close", "memo": memo, "postings": []}
    found = climb(written(close).encode(), int(count) - 1, int(count), hashes(proof))
    need(found == decoded(root), "the proof does not lead to the head")
    need(decoded(signature)[:4] == sha(name.encode(), b"\n\1", public)[:4], "another key")
    Ed25519PublicKey.from_public_bytes(public).verify(decoded(signature)[4:], text.encode())  # C2SP signed-note
    return said


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print(__doc__.partition("\n")[0], file=sys.stderr)
        sys.exit(2)
    operator = bytes.fromhex(Path(sys.argv[2]).read_text())
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").rstrip("\n").split("\n"):
        try:
            print(verify(line, operator))
        except Exception as wrong:
            sys.exit(f"proves nothing: {wrong!r}")
