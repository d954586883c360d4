"""The published instruction sets that iPFL uses, by their names on the hub, and how their records become instructions.

Sentiment prompts follow FinGPT's benchmarks (Yang et al. 2023), with three answers. FIQA's scores are cut at -0.1 and
0.1. NWGI's seven degrees become three, of which mild degrees count as neutral.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError, gated, library
from hanse.wings.language.records import EXTRA, Instruction, read_records

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

    They are read from ``NAME.train.jsonl`` and ``NAME.test.jsonl`` (or .json, .csv; with the set's own fields) in one
    of the folders. If no folder has them, they come from the hub or its cache.

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
