"""Instructions: a task, its input, and the wanted answer.

:func:`read_instructions` reads them from JSON, JSON lines or CSV. :func:`encode` turns them into tokens, which are
either bytes or those of a published model's tokenizer (:func:`build_tokenizer`). The text of a sample follows the
Alpaca format, and only the answer counts in the loss.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hanse.base.errors import UserError, gated, library
from hanse.data.dataset import IGNORED
from hanse.data.samples import Samples

# what messages say of a library of the extra
EXTRA = "which is not installed: pip install '.[llm]' in a clone of hanse"

BYTES = "bytes"

# The fixed words of Stanford Alpaca's format (Taori et al. 2023), which models were trained on.
PIECES = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n",
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n",
    "### Instruction:\n",
    "\n\n### Input:\n",
    "\n\n### Response:\n",
)
_SPLIT = re.compile("(" + "|".join(map(re.escape, PIECES)) + ")")


@dataclass(frozen=True)
class ByteTokenizer:
    """UTF-8 bytes as tokens, with nothing to download.

    There are 256 tokens for the bytes, an end token, a padding token, and one token for each fixed piece of the Alpaca
    format. Otherwise the format would take three quarters of a short instruction.
    """

    size: int = 258 + len(PIECES)
    end: int = 256
    padding: int = 257
    note: str = ""

    def encode(self, text: str, first: bool = False) -> list[int]:
        """Return the bytes of a text, with one token for each piece of the format in it."""
        tokens: list[int] = []
        for part in _SPLIT.split(text):
            tokens += [258 + PIECES.index(part)] if part in PIECES else list(part.encode())
        return tokens


@dataclass(frozen=True)
class _Published:
    """A tokenizer of the transformers library, with the interface of :class:`Tokenizer`."""

    inner: Any
    size: int
    end: int
    padding: int
    note: str

    def encode(self, text: str, first: bool = False) -> list[int]:
        """Return the tokens of a text; one that begins a sequence follows the model's start token, if it has one."""
        found: list[int] = self.inner(text, add_special_tokens=False)["input_ids"]
        start = self.inner.bos_token_id
        return [start, *found] if first and start is not None else found


Tokenizer = ByteTokenizer | _Published


@lru_cache(maxsize=4)
def build_tokenizer(name: str, download: bool = True) -> Tokenizer:
    """Return the byte tokenizer, or the tokenizer of a language model.

    A tokenizer without a padding token (Llama's) pads with its end token. Padded labels do not count, and no position
    looks ahead, so this changes nothing. The note says so.

    Args:
        name: "bytes", or a model's hub name or folder.
        download: whether the hub may be asked.

    Raises:
        UserError: the tokenizer does not exist, or has no end token.
    """
    if name == BYTES:
        return ByteTokenizer()
    transformers = library("transformers", f"data.source.tokenizer: {name!r} needs transformers, {EXTRA}")
    what = f"data.source.tokenizer: {name!r}: neither a folder nor in the cache, and it cannot be downloaded"
    with gated(what, "allowed offline: 'bytes', or a folder"):
        inner = transformers.AutoTokenizer.from_pretrained(name, local_files_only=not download, trust_remote_code=False)
    end = inner.eos_token_id
    if end is None:
        raise UserError(f"data.source.tokenizer: {name!r}: it has no end token, which ends an answer; use one that has")
    padding = inner.pad_token_id
    note = "" if padding is not None else f"the tokenizer of {name} has no padding token; its end token pads"
    return _Published(inner, len(inner), end, end if padding is None else padding, note)


FIELDS = ("instruction", "input", "output")


@dataclass(frozen=True)
class Instruction:
    """A task and its answer.

    Attributes:
        instruction: what is asked.
        input: what the instruction is about. It may be empty.
        output: the answer that is wanted.
    """

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
    """Return the instructions of a file of records with ``instruction``, ``output`` and, optionally, ``input``.

    Raises:
        UserError: the file cannot be read, or a record lacks a field. The line names the record.
    """
    instructions = []
    for number, record in enumerate(read_records(path), 1):
        missing = [name for name in ("instruction", "output") if not isinstance(record.get(name), str)]
        if missing:
            has = ", ".join(map(str, record)) or "nothing"
            raise UserError(f"{path}: record {number} lacks {' and '.join(missing)} (text); it has {has}")
        instructions.append(Instruction(record["instruction"], str(record.get("input") or ""), record["output"]))
    return instructions


def read_records(path: Path) -> Sequence[Mapping[str, Any]]:
    """Return the records of a ``.json`` (a list), ``.jsonl`` or ``.csv`` file as mappings.

    Raises:
        UserError: another kind of file, one that cannot be read, or one without records.
    """
    with gated(f"{path}: cannot be read"):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".csv":
            records: Any = list(csv.DictReader(text.splitlines(keepends=True)))
        elif path.suffix == ".jsonl":
            records = [json.loads(line) for line in text.splitlines() if line.strip()]
        elif path.suffix == ".json":
            records = json.loads(text)
        else:
            raise UserError(f"{path}: a file of instructions is .json, .jsonl or .csv")
    if not isinstance(records, list) or not records or not all(isinstance(r, Mapping) for r in records):
        raise UserError(f"{path}: a list of records with the fields {', '.join(FIELDS)} is needed, at least one")
    return records


def encode(
    items: Sequence[Instruction], tokenizer: Tokenizer, length: int, width: int | None = None
) -> tuple[Samples, int]:
    """Return instructions as samples, and how many of them were longer than the window.

    Samples are tokens ``x [n, T]``, and the next token at every position, ``y [n, T]``. Only the answer and its end
    token count in the loss.

    Long instructions lose the beginning of the prompt first, then the end of the answer.

    Args:
        items: the instructions, at least one.
        tokenizer: the tokenizer that makes the tokens.
        length: tokens of the window, at least 2.
        width: T, the number of positions in a row. None: as many as the longest sample needs.
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
    return Samples(torch.from_numpy(x), torch.from_numpy(y)), cut
