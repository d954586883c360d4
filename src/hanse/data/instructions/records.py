"""Instructions: an instruction, an input, and the answer that is wanted; read from JSON, JSON lines or CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hanse.base.errors import UserError
from hanse.data.dataset import IGNORED
from hanse.data.instructions.tokens import PIECES, Tokenizer
from hanse.data.samples import Samples

__all__ = ["FIELDS", "Encoded", "Instruction", "encode", "prompt", "read_instructions", "read_records"]

FIELDS = ("instruction", "input", "output")


@dataclass(frozen=True)
class Instruction:
    """What is asked (``instruction``), of what (``input``, may be empty), and the answer (``output``)."""

    instruction: str
    input: str
    output: str


def prompt(item: Instruction) -> str:
    """Return everything before the answer, in the Alpaca format."""
    with_input, without, instruction, given, response = PIECES
    if not item.input:
        return f"{without}{instruction}{item.instruction}{response}"
    return f"{with_input}{instruction}{item.instruction}{given}{item.input}{response}"


def read_instructions(path: Path) -> list[Instruction]:
    """Return the instructions of a file. Raises UserError that names the fields that it lacks (``input`` may be)."""
    found = []
    for number, record in enumerate(read_records(path), 1):
        missing = [name for name in ("instruction", "output") if not isinstance(record.get(name), str)]
        if missing:
            has = ", ".join(map(str, record)) or "nothing"
            raise UserError(f"{path}: record {number} lacks {' and '.join(missing)} (text); it has {has}")
        found.append(Instruction(record["instruction"], str(record.get("input") or ""), record["output"]))
    return found


def read_records(path: Path) -> Sequence[Mapping[str, Any]]:
    """Return the records of a ``.json`` (a list), ``.jsonl`` or ``.csv`` file as mappings. Raises UserError."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".csv":
            records: Any = list(csv.DictReader(text.splitlines(keepends=True)))
        elif path.suffix == ".jsonl":
            records = [json.loads(line) for line in text.splitlines() if line.strip()]
        elif path.suffix == ".json":
            records = json.loads(text)
        else:
            raise UserError(f"{path}: a file of instructions is .json, .jsonl or .csv")
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if not isinstance(records, list) or not records or not all(isinstance(r, Mapping) for r in records):
        raise UserError(f"{path}: a list of records with the fields {', '.join(FIELDS)} is needed, at least one")
    return records


@dataclass(frozen=True)
class Encoded:
    """Instructions as samples: tokens ``x [n, T]`` and the next token at every position ``y [n, T]``, which counts in
    the answer and its end token alone. ``cut`` of them were longer than the window.
    """

    samples: Samples
    cut: int


def encode(items: Sequence[Instruction], tokenizer: Tokenizer, length: int, width: int | None = None) -> Encoded:
    """Encode instructions for a window of ``length`` tokens; T is ``width``, or the longest sample's length.

    What is too long loses the beginning of its prompt, then the end of its answer, so that the answer is the last to
    be cut.
    """
    rows, cut = [], 0
    for item in items:
        asked = tokenizer.encode(prompt(item), first=True)
        answer = [*tokenizer.encode(item.output), tokenizer.end]
        cut += len(asked) + len(answer) > length
        answer = answer[: length - 1]
        rows.append((asked[-(length - len(answer)) :], answer))
    longest = max((len(asked) + len(answer) for asked, answer in rows), default=1) - 1
    wide = longest if width is None else width
    x = np.full((len(rows), wide), tokenizer.padding, dtype=np.int64)
    y = np.full((len(rows), wide), IGNORED, dtype=np.int64)
    for n, (asked, answer) in enumerate(rows):
        whole = [*asked, *answer]
        x[n, : len(whole) - 1] = whole[:-1]
        y[n, len(asked) - 1 : len(whole) - 1] = answer
    return Encoded(Samples(torch.from_numpy(x), torch.from_numpy(y)), cut)
