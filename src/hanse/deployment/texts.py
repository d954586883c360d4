"""A participant's own instructions as its data: read from a file, cut into shares, encoded as tokens."""

from __future__ import annotations

from pathlib import Path

from hanse.base.errors import UserError
from hanse.data.instructions.records import BYTES, build_tokenizer, encode, read_instructions
from hanse.federation.node import ClientData

__all__ = ["instructions"]


def instructions(
    path: str | Path,
    *,
    tokenizer: str = BYTES,
    length: int = 512,
    test: float = 0.2,
    validation: float = 0.0,
    name: str = "",
) -> ClientData:
    """Return the instructions of a file (.json, .jsonl or .csv with instruction, input, output) as a participant's
    data.

    ``tokenizer`` ("bytes", or a model's) and ``length``, tokens of the window, are the experiment's ``data.tokenizer``
    and ``data.length``: the same for all participants. The last ``test`` of the file is its test share, the
    ``validation`` before it its validation share. Raises UserError for a file that cannot be read, or too short.
    """
    items, tokens = read_instructions(Path(path)), build_tokenizer(tokenizer)
    if not (test >= 0 and validation >= 0 and test + validation < 1):
        raise UserError(f"instructions: test {test} and validation {validation}: 0 or more, and below 1 together")
    tested, validated = int(test * len(items)), int(validation * len(items))
    first = len(items) - tested - validated
    shares = {
        "train": items[:first],
        "validation": items[first : first + validated],
        "test": items[first + validated :],
    }
    wide = encode(items, tokens, length).samples.x.shape[1]
    found = {share: encode(own, tokens, length, wide).samples for share, own in shares.items() if own}
    return ClientData(found["train"], found.get("test"), found.get("validation"), tokens.size, name or Path(path).stem)
