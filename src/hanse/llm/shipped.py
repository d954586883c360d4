"""The instruction set that comes with hanse: a few hundred market reports in three dialects of answers.

A report says that a ware is dear, cheap, unchanged or not to be had, and the answer is a word for that. Six clients in
three pairs use the same four words, but each pair's dialect gives them other meanings, so that a model of one pair
answers every report of another one wrongly. Pairs 0 and 1 each agree on all; in pair 2 the second client has a dialect
of its own that agrees with the first one's on two meanings of four.
"""

from __future__ import annotations

from collections.abc import Sequence

from hanse.llm.instructions import Instruction
from hanse.streams import stream

__all__ = ["CLIENTS", "DIALECTS", "MEANINGS", "PAIRS", "WORDS", "client_reports", "reports"]

MEANINGS = ("dear", "cheap", "unchanged", "missing")
WORDS = ("anchor", "barrel", "candle", "dragon")
DIALECTS: tuple[tuple[int, ...], ...] = ((0, 1, 2, 3), (1, 2, 3, 0), (2, 3, 0, 1), (2, 3, 1, 0))
"""Which word each meaning has; the last is the third one's neighbour, and agrees with it on the first two."""
CLIENTS = (0, 0, 1, 1, 2, 3)
"""The dialect of each client; clients 2p and 2p + 1 are pair p."""
PAIRS = ((0, 1), (2, 3), (4, 5))
INSTRUCTION = "Which word stands for this report?"

_SAYINGS: dict[str, Sequence[str]] = {
    "dear": ("rises", "costs more", "is dearer"),
    "cheap": ("falls", "costs less", "is cheaper"),
    "unchanged": ("stays", "costs the same", "is steady"),
    "missing": ("is sold out", "is lacking", "is not here"),
}
_WARES = ("Salt", "Wax", "Rye", "Cloth", "Herring", "Timber", "Honey", "Tar", "Wool", "Furs")
_TOWNS = ("Bergen", "Bremen", "Danzig", "Lund", "Reval", "Riga", "Thorn", "Visby", "Wismar", "Ypres")


def reports() -> list[tuple[int, str]]:
    """Return every report with its meaning, 1,200 of them, in a fixed shuffled order."""
    found = [
        (m, f"{ware} {saying} in {town}.")
        for m, meaning in enumerate(MEANINGS)
        for saying in _SAYINGS[meaning]
        for ware in _WARES
        for town in _TOWNS
    ]
    order = stream(0, "shipped reports").permutation(len(found))
    return [found[i] for i in order.tolist()]


def client_reports(train: int = 60, test: int = 20) -> tuple[list[list[Instruction]], list[list[Instruction]]]:
    """Return each client's train and test instructions; no report is used twice."""
    dealt = iter(reports())
    shares: tuple[list[list[Instruction]], list[list[Instruction]]] = ([], [])
    for dialect in CLIENTS:
        for share, size in zip(shares, (train, test), strict=True):
            own = [next(dealt) for _ in range(size)]
            share.append([Instruction(INSTRUCTION, text, WORDS[DIALECTS[dialect][m]]) for m, text in own])
    return shares
