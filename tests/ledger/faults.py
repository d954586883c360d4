"""A posting that is interrupted: the files as they are after so many of its bytes."""

from collections.abc import Sequence

from hanse.core.entry import Transaction
from hanse.ledger.log import heads_of
from hanse.ledger.store import Ledger


def crash_at(ledger: Ledger, round: int, new: Sequence[Transaction], byte: int) -> int:
    """Post, and leave only the first ``byte`` bytes of what was written: lines first, then the note.

    Returns how many bytes the posting has; with all of them it is whole.
    """
    files = (ledger.file, heads_of(ledger.file))
    before = [file.stat().st_size for file in files]
    ledger.post(round, new)
    added = [file.stat().st_size - size for file, size in zip(files, before, strict=True)]
    for file, size, more, kept in zip(files, before, added, (byte, byte - added[0]), strict=True):
        with file.open("rb+") as cut:
            cut.truncate(size + max(0, min(more, kept)))
    return sum(added)
