"""Instruction sets as data sources with iPFL's clients, and the set that comes with hanse.

:func:`load_instructions` loads any of them by name. The set that comes with hanse consists of 480 short market
reports, answered in four dialects. A report says that a product is expensive, cheap, unchanged or missing. The answer
is the word for this in the client's dialect, which the instruction does not reveal. The six clients form three pairs:
in pairs 0 and 1 both clients use the same words, in pair 2 they share two of the four words. So it is known in advance
which clients can profit from each other.

The published sets are those that iPFL uses, by their names on the hub. Sentiment prompts follow FinGPT's benchmarks
(Yang et al. 2023), with three answers. FIQA's scores are cut at -0.1 and 0.1. NWGI's seven degrees become three, of
which mild degrees count as neutral.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from hanse.base.errors import UserError, gated, library
from hanse.base.streams import stream
from hanse.data.dataset import Dataset
from hanse.data.samples import Samples
from hanse.data.sources import SourceEntry, Wanted
from hanse.wings.language.records import EXTRA, Instruction, build_tokenizer, encode, read_instructions, read_records

SENTIMENTS = ("negative", "neutral", "positive")
_ASK = "What is the sentiment of this {}? Please choose an answer from {{negative/neutral/positive}}."
_DEGREES = {
    "strong negative": "negative",
    "moderately negative": "negative",
    "mildly negative": "neutral",
    "neutral": "neutral",
    "mildly positive": "neutral",
    "moderately positive": "positive",
    "strong positive": "positive",
}

Record = Mapping[str, Any]


@dataclass(frozen=True)
class PublishedSet:
    """A published data set.

    Attributes:
        hub: the set's name on the hub.
        train: the split to train on.
        test: the split to test on; empty for the last tenth of the train split.
        fields: the fields that the set's records must have.
        made: a function that converts a record to an instruction.
    """

    hub: str
    train: str
    test: str
    fields: tuple[str, ...]
    made: Callable[[Record], Instruction]


def _fiqa(record: Record) -> Instruction:
    """Return a sentence with its score, from -1 to 1, as one of three moods."""
    score = float(record["sentiment_score"])
    mood = SENTIMENTS[0 if score < -0.1 else 2 if score >= 0.1 else 1]
    what = "tweet" if record.get("format") == "post" else "news"
    return Instruction(_ASK.format(what), str(record["sentence"]), mood)


def _tfns(record: Record) -> Instruction:
    """Return a tweet with its label as one of three moods."""
    mood = ("negative", "positive", "neutral")[int(record["label"])]  # bearish, bullish, neutral
    return Instruction(_ASK.format("tweet"), str(record["text"]), mood)


def _nwgi(record: Record) -> Instruction:
    """Return a piece of news with its degree as one of three moods."""
    degree = str(record["label"])
    if degree not in _DEGREES:
        raise UserError(f"source 'nwgi': label {degree!r}; allowed: {', '.join(_DEGREES)}")
    return Instruction(_ASK.format("news"), str(record["news"]), _DEGREES[degree])


def _code(record: Record) -> Instruction:
    """Return a task of programming; its fields have the same names as an instruction's."""
    return Instruction(str(record["instruction"]), str(record["input"] or ""), str(record["output"]))


PUBLISHED: Mapping[str, PublishedSet] = {
    "fiqa": PublishedSet("pauri32/fiqa-2018", "train", "test", ("sentence", "sentiment_score"), _fiqa),
    "tfns": PublishedSet("zeroshot/twitter-financial-news-sentiment", "train", "validation", ("text", "label"), _tfns),
    "nwgi": PublishedSet("oliverwang15/news_with_gpt_instructions", "train", "test", ("news", "label"), _nwgi),
    "code_alpaca": PublishedSet("sahil2801/CodeAlpaca-20k", "train", "", ("instruction", "input", "output"), _code),
}


def load_published(name: str, folders: Sequence[Path], download: bool) -> tuple[list[Instruction], list[Instruction]]:
    """Return the train and test instructions of a published set.

    They are read from ``NAME.train.jsonl`` and ``NAME.test.jsonl`` (with the set's own fields) in one of the folders.
    If no folder has them, they come from the hub or its cache.

    Args:
        name: a key of :data:`PUBLISHED`.
        folders: the folders to search, in this order.
        download: whether the hub may be asked.

    Raises:
        UserError: the set is not here and cannot be downloaded, or lacks a field.
    """
    known = PUBLISHED[name]
    train = _local(name, "train", folders) or _hub(name, known, known.train, download)
    test: Sequence[Record] = _local(name, "test", folders) or ()
    if not test and known.test:
        test = _hub(name, known, known.test, download)
    if not test:
        kept = max(1, len(train) // 10)
        train, test = train[:-kept], train[-kept:]
    for share in (train, test):
        missing = [field for field in known.fields if share and field not in share[0]]
        if missing:
            raise UserError(
                f"source '{name}': its records lack {', '.join(missing)}; they have {', '.join(map(str, share[0]))}"
            )
    return [known.made(r) for r in train], [known.made(r) for r in test]


def _local(name: str, share: str, folders: Sequence[Path]) -> Sequence[Record]:
    """Return the records of a split's file in the first folder that has one; none if there is no file."""
    for path in (folder / f"{name}.{share}.jsonl" for folder in folders):
        if path.is_file():
            return read_records(path)
    return ()


def _hub(name: str, known: PublishedSet, split: str, download: bool) -> Sequence[Record]:
    """Return the records of a split from the hub, or from the library's cache of it."""
    remedy = f"or put {name}.train.jsonl and {name}.test.jsonl into data.path"
    if not download:
        raise UserError(f"source '{name}': not in data.path or HANSE_DATA, and download is off; allow it, {remedy}")
    datasets = library("datasets", f"data.source: {name!r} needs datasets, {EXTRA}")
    with gated(
        f"source '{name}': {known.hub} is not in the cache and could not be fetched", f"go online once, {remedy}"
    ):
        return list(datasets.load_dataset(known.hub, split=split))


DIALECTS: tuple[tuple[str, ...], ...] = (
    ("dear", "cheap", "same", "none"),
    ("teuer", "billig", "gleich", "keins"),
    ("cher", "bas", "egal", "rien"),
    ("cher", "bas", "pareil", "vide"),
)
"""Each dialect's word for each meaning of :data:`_SAYINGS`; the last is the third one's neighbour."""
WORDS = tuple(dict.fromkeys(word for dialect in DIALECTS for word in dialect))
"""All answers that there are."""
CLIENTS = (0, 0, 1, 1, 2, 3)
"""The dialect of each client; clients 2p and 2p + 1 are pair p."""
INSTRUCTION = "What is the market like?"

_SAYINGS: dict[str, Sequence[str]] = {
    "dear": ("rises", "costs more", "is dearer"),
    "cheap": ("falls", "costs less", "is cheaper"),
    "unchanged": ("stays", "costs the same", "is steady"),
    "missing": ("is sold out", "is lacking", "is not here"),
}
_WARES = ("Salt", "Wax", "Rye", "Cloth", "Herring", "Timber", "Honey", "Tar", "Wool", "Furs")
_TOWNS = ("Bergen", "Bremen", "Danzig", "Lund", "Reval", "Riga", "Thorn", "Visby", "Wismar", "Ypres")


def reports() -> list[tuple[int, str]]:
    """Return all 1,200 reports, each with the number of its meaning, in a fixed shuffled order."""
    all_reports = [
        (m, f"{ware} {saying} in {town}.")
        for m, sayings in enumerate(_SAYINGS.values())
        for saying in sayings
        for ware in _WARES
        for town in _TOWNS
    ]
    order = stream(0, "shipped reports").permutation(len(all_reports))
    return [all_reports[i] for i in order.tolist()]


def client_reports() -> tuple[list[list[Instruction]], list[list[Instruction]]]:
    """Return each client's 60 train and 20 test instructions; no report is used twice."""
    dealt = iter(reports())
    shares: tuple[list[list[Instruction]], list[list[Instruction]]] = ([], [])
    for dialect in CLIENTS:
        for share, size in zip(shares, (60, 20), strict=True):
            own = [next(dealt) for _ in range(size)]
            share.append([Instruction(INSTRUCTION, text, DIALECTS[dialect][m]) for m, text in own])
    return shares


# test samples of a client, at most
TEST_EACH = 100


@dataclass(frozen=True)
class Texts:
    """A source of instructions.

    Attributes:
        name: the source's name.
        tokenizer: 'bytes', or a language model's tokenizer by its hub name or folder.
        length: the number of tokens in the window. Longer samples are cut, and the run notes how many.
    """

    name: str
    tokenizer: str = "bytes"
    length: Annotated[int, Field(ge=2)] = 512


Clients = list[tuple[str, Sequence[Instruction], Sequence[Instruction]]]
"""What each client is called, and its train and its test instructions."""

# iPFL sec. 6.1, Table 3: six clients, two a set, of 200 samples; five with code and three with NWGI, of 387 on average,
# which are 500 and 200 (its public code, utils/dataset/dataset_llm.py): a set, its clients, the most samples of each
DEALT: Mapping[str, Sequence[tuple[str, int, int]]] = {
    "mixed_finance": (("fiqa", 2, 200), ("tfns", 2, 200), ("nwgi", 2, 200)),
    "finance_code": (("code_alpaca", 5, 500), ("nwgi", 3, 200)),
}


def load_instructions(wanted: Wanted) -> Dataset:
    """Return an instruction set as samples of tokens with a label at every position of the answer.

    Clients come with the set (partition "natural"). The note counts the samples that were cut to fit the window.

    Args:
        wanted: one of :data:`hanse.wings.language.TEXTS` with its tokenizer and window, the file or folder of
            "instruction_files", the seed that keys how sets are dealt to clients, and whether the network may be used.

    Raises:
        UserError: the set or the tokenizer is missing, or the set is too small for its clients.
    """
    options, name, download = wanted.source, wanted.source.name, wanted.download
    clients: Clients
    if name == "instructions":
        clients = [(f"pair {c // 2} {'ab'[c % 2]}", *own) for c, own in enumerate(zip(*client_reports(), strict=True))]
    elif name == "instruction_files":
        clients = _files(wanted.root)
    elif name in PUBLISHED:
        clients = [(name, *load_published(name, wanted.folders, download))]
    else:
        clients = _dealt(DEALT[name], wanted.folders, wanted.seed, download)
    tokenizer = build_tokenizer(options.tokenizer, download)
    trained, tested = [own for _, own, _ in clients], [own for _, _, own in clients]
    items = [item for own in (*trained, *tested) for item in own]
    both, cut = encode(items, tokenizer, options.length)  # both at once, so they have rows of the same width
    first = sum(map(len, trained))
    train_of, test_of = (np.repeat(np.arange(len(clients)), [*map(len, share)]) for share in (trained, tested))
    notes = [tokenizer.note] if tokenizer.note else []
    if cut:
        notes.append(f"{cut} of {len(items)} instructions are longer than {options.length} tokens and were cut")
    several = len(clients) > 1
    return Dataset(
        name,
        Samples(both.x[:first], both.y[:first]),
        Samples(both.x[first:], both.y[first:]),
        tokenizer.size,
        (both.x.shape[1],),
        note="; ".join(notes),
        client_of=train_of if several else None,
        test_client_of=test_of if several else None,
        client_names=tuple(name for name, _, _ in clients) if several else (),
    )


INSTRUCTIONS = SourceEntry(load_instructions, options=Texts, drawn=True)
"""The entry of all sources of instructions."""


def _dealt(plan: Sequence[tuple[str, int, int]], folders: Sequence[Path], seed: int, download: bool) -> Clients:
    """Return published sets dealt to clients, no sample twice.

    Clients of one set share its test samples out, at most :data:`TEST_EACH` each.
    """
    found: Clients = []
    for name, clients, each in plan:
        shares = load_published(name, folders, download)
        if len(shares[0]) < clients or len(shares[1]) < clients:
            counts = f"{len(shares[0])} train and {len(shares[1])} test samples"
            raise UserError(f"source '{name}': {counts} are too few for {clients} clients")
        draw = stream(seed, f"deal {name}")
        dealt = []
        for share, most in zip(shares, (each, TEST_EACH), strict=True):
            order, size = draw.permutation(len(share)), min(most, len(share) // clients)
            dealt.append([[share[i] for i in order[c * size : (c + 1) * size].tolist()] for c in range(clients)])
        found += [(f"{name} {c}", *own) for c, own in enumerate(zip(*dealt, strict=True))]
    return found


def _files(root: Path | None) -> Clients:
    """Return one client for each file of ``data.path``, by name; the last fifth of a file is its test share."""
    if root is None:
        raise UserError("source 'instruction_files': data.path is needed: a folder with one file per client, or a file")
    kinds = (".json", ".jsonl", ".csv")
    paths = [root] if root.is_file() else sorted(p for p in root.glob("*") if p.suffix in kinds)
    if not paths:
        raise UserError(f"source 'instruction_files': {root} has no file of instructions ({', '.join(kinds)})")
    found: Clients = []
    for path in paths:
        items = read_instructions(path)
        first = len(items) - len(items) // 5
        found.append((path.stem, items[:first], items[first:]))
    return found
