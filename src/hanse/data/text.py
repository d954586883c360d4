"""Plays as a federation: every speaking role is a client that learns to predict the next character of its lines."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.data.dataset import Dataset
from hanse.data.download import fetch_text
from hanse.data.samples import Samples

__all__ = ["TEXTS", "WINDOW", "TextOptions", "parse_roles", "shakespeare", "windows"]

# sources of instructions by name; they are in hanse.llm
TEXTS = (
    "instructions", "instruction_files", "fiqa", "tfns", "nwgi", "code_alpaca", "mixed_finance", "finance_code",
)  # fmt: skip
WINDOW = 80
LEAST_WINDOWS = 20
"""Roles with less text than this many windows are left out: 16 to train on, 4 to test on."""
TEST_SHARE = 0.2

FILE = "shakespeare.txt"
ADDRESS = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


@dataclass(frozen=True)
class TextOptions:
    """How instructions become tokens: the ``tokenizer`` ("bytes", or a model's) and the window's ``length``."""

    tokenizer: str = "bytes"
    length: int = 512


def shakespeare(folders: Sequence[Path], download: bool) -> Dataset:
    """Return next-character prediction on "tiny Shakespeare": x and y int64 ``[n, 80]``, y the characters that follow.

    A client is a speaking role with at least 20 windows (natural clients, in order of name; a name that several plays
    use, such as FIRST CITIZEN, is one client). Windows do not overlap. The first 80 % of a role's windows, in the order
    of the plays, are its train samples and the rest its test samples. Classes are the file's characters in order of
    their code points. Raises UserError if the file is not found and cannot be fetched, or has no roles.
    """
    path = _find(folders, download)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a readable text file: {error}") from error
    roles = parse_roles(text)
    number = {c: i for i, c in enumerate(sorted(set(text)))}
    parts: dict[str, list[NDArray[np.int64]]] = {"train": [], "test": []}
    owners: dict[str, list[NDArray[np.int64]]] = {"train": [], "test": []}
    names = [name for name in sorted(roles) if (len(roles[name]) - 1) // WINDOW >= LEAST_WINDOWS]
    for client, name in enumerate(names):
        pairs = windows(np.array([number[c] for c in roles[name]], dtype=np.int64))
        first = len(pairs) - int(len(pairs) * TEST_SHARE)
        for share, cut in (("train", pairs[:first]), ("test", pairs[first:])):
            parts[share].append(cut)
            owners[share].append(np.full(len(cut), client, dtype=np.int64))
    if not names:
        raise UserError(
            f"{path}: no role has {LEAST_WINDOWS} windows of {WINDOW} characters; a block is 'NAME:', lines"
        )
    train, test = (torch.from_numpy(np.concatenate(parts[share])) for share in ("train", "test"))
    known = hashlib.sha256(text.encode()).hexdigest() == SHA256
    return Dataset(
        "shakespeare",
        Samples(train[:, 0].contiguous(), train[:, 1].contiguous()),
        Samples(test[:, 0].contiguous(), test[:, 1].contiguous()),
        len(number),
        (WINDOW,),
        note="" if known else f"{path.name} is not the published text",
        client_of=np.concatenate(owners["train"]),
        test_client_of=np.concatenate(owners["test"]),
        client_names=tuple(names),
        ordered=True,
    )


def parse_roles(text: str) -> dict[str, str]:
    """Return each role's lines, in order, joined by line ends. A speech is a paragraph that starts with ``NAME:``."""
    speeches: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        head, _, lines = block.strip("\n").partition("\n")
        if head.endswith(":") and len(head) > 1 and lines:
            speeches.setdefault(head[:-1], []).append(lines)
    return {name: "\n".join(said) for name, said in speeches.items()}


def windows(codes: NDArray[np.int64], length: int = WINDOW) -> NDArray[np.int64]:
    """Cut codes ``[n]`` into windows that do not overlap and what follows each character: ``[windows, 2, length]``.

    What is left at the end, less than a window, is dropped.
    """
    count = (len(codes) - 1) // length
    x, y = codes[: count * length], codes[1 : count * length + 1]
    return np.stack([x.reshape(count, length), y.reshape(count, length)], axis=1)


def _find(folders: Sequence[Path], download: bool) -> Path:
    paths = [folder / FILE for folder in folders]
    for path in paths:
        if path.is_file():
            return path
    looked = f"looked for {', '.join(map(str, paths))}"
    remedy = f"set HANSE_DATA to a folder that holds {FILE}"
    if not download:
        raise UserError(f"source 'shakespeare' was not found and download is off; {looked}; {remedy}")
    try:
        return fetch_text(ADDRESS, SHA256, paths[-1])
    except (OSError, ValueError) as error:  # what requests raises is an OSError
        raise UserError(f"source 'shakespeare' could not be downloaded ({error}); {looked}; {remedy}") from error
