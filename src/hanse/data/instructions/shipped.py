"""The instruction set that comes with hanse: a few hundred market reports, answered in three dialects.

A report says that a ware is dear, cheap, unchanged or missing, and the answer is a word for that, in the dialect of the
client that is asked; nothing in the instruction says which. Six clients are three pairs: the two of pair 0 and of pair
1 speak alike, and the dialects of pair 2 overlap by half, two words of four.
"""

from __future__ import annotations

from collections.abc import Sequence

from hanse.base.streams import stream
from hanse.data.instructions.records import Instruction

__all__ = ["CLIENTS", "DIALECTS", "MEANINGS", "PAIRS", "WORDS", "client_reports", "reports"]

MEANINGS = ("dear", "cheap", "unchanged", "missing")
DIALECTS: tuple[tuple[str, ...], ...] = (
    ("dear", "cheap", "same", "none"),
    ("teuer", "billig", "gleich", "keins"),
    ("cher", "bas", "egal", "rien"),
    ("cher", "bas", "pareil", "vide"),
)
"""Each dialect's word for each meaning; the last is the third one's neighbour."""
WORDS = tuple(dict.fromkeys(word for dialect in DIALECTS for word in dialect))
"""All answers that there are."""
CLIENTS = (0, 0, 1, 1, 2, 3)
"""The dialect of each client; clients 2p and 2p + 1 are pair p."""
PAIRS = ((0, 1), (2, 3), (4, 5))
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


def client_reports() -> tuple[list[list[Instruction]], list[list[Instruction]]]:
    """Return each client's 60 train and 20 test instructions; no report is used twice."""
    dealt = iter(reports())
    shares: tuple[list[list[Instruction]], list[list[Instruction]]] = ([], [])
    for dialect in CLIENTS:
        for share, size in zip(shares, (60, 20), strict=True):
            own = [next(dealt) for _ in range(size)]
            share.append([Instruction(INSTRUCTION, text, DIALECTS[dialect][m]) for m, text in own])
    return shares
