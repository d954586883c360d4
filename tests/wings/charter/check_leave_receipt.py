"""Whether the receipt of a client that has left a run holds, by the standard library and ``cryptography`` alone.

    python check_leave_receipt.py client-3.json [operator.pub] [client-3-lineage.jsonl]

It says what docs/leaving.md says, in other code than hanse's: the exit code is 1 if anything does not hold.
"""

import base64
import hashlib
import json
import sys
from pathlib import Path


def digest(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def root(leaves):
    """RFC 9162, 2.1.1."""
    if len(leaves) == 1:
        return digest(b"\0", leaves[0])
    k = 1 << ((len(leaves) - 1).bit_length() - 1)
    return digest(b"\1", root(leaves[:k]), root(leaves[k:]))


def main(receipt, operator=None, lineage=None):
    blob = Path(receipt).read_bytes()
    assert len(blob) <= 2000, "longer than a receipt"
    found = json.loads(blob)
    said = json.loads(found["statement"])
    text, _, signatures = found["head"].partition("\n\n")
    origin, count, head, last = text.split("\n")
    hashed = base64.b64encode(digest(found["statement"].encode())).decode()
    back, lost = said.get("returned", 0), said.get("lost", 0)
    moved = [[f"escrow/{said['client']}", -back], [f"client/{said['client']}", back - lost], ["mint", lost]]
    line = {
        "number": int(count), "round": int(last.removeprefix("round ")), "step": f"leave/{said['client']}",
        "kind": "leave", "memo": f"statement {hashed}", "postings": [posting for posting in moved if posting[1]],
    }  # fmt: skip
    node = digest(b"\0", json.dumps(line, separators=(",", ":")).encode())
    proof = base64.b64decode(found["proof"])
    for i in range(0, len(proof), 32):  # the line is the last of the log: every hash stands left of it
        node = digest(b"\1", proof[i : i + 32], node)
    assert node == base64.b64decode(head), "the proof does not lead to the head"
    assert len(proof) == 32 * (int(count) - 1).bit_count(), "the proof has another length"
    if operator:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        public = bytes.fromhex(Path(operator).read_text().strip())
        name, signature = signatures.removeprefix("\u2014 ").split()
        signed = base64.b64decode(signature)
        assert name == origin
        assert signed[:4] == digest(name.encode(), b"\n\x01", public)[:4], "another key"
        Ed25519PublicKey.from_public_bytes(public).verify(signed[4:], f"{text}\n".encode())
    if lineage:
        lines = Path(lineage).read_bytes().splitlines()
        assert said["since"] <= said["round"] <= len(lines)
        assert base64.b64encode(root(lines)).decode() == said["lineage"], "another lineage"
        came = [json.loads(line)["round"] for line in lines if json.loads(line)["updates"]]
        assert max(came, default=-1) + 1 == said["since"], "another last update"


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as wrong:
        sys.exit(f"does not hold: {type(wrong).__name__} {wrong}")
