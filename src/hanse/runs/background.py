"""Writes each round while the next one is played.

Writing a run directory is mostly waiting for the disk, so a thread writes a round while the next is played. No observer
hears of a round before it and its payments are on the disk. A round that cannot be written ends the run, and the round
played meanwhile is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from hanse.runs.checkpoint import own_copy
from hanse.runs.round import LoopState
from hanse.runs.round_record import RoundRecord
from hanse.runs.rundir import RunDir

# a round that took longer is told before the next is played: who watches would wait for long, and writing is a small
# part of it
LONG_S = 1.0


class BackgroundWriter:
    """Writes finished rounds into a run directory, one at a time, in its own thread.

    Call :meth:`begin` with a round and :meth:`settle` before the next one.

    Args:
        folder: the run directory. None: nothing is written.
        tell: called with each round once it is on the disk, in the thread that calls :meth:`settle`.

    Examples:
        >>> from hanse.runs.round_record import RoundRecord
        >>> from hanse.runs.rehearsal import rehearse
        >>> from hanse.runs.testing import Figures
        >>> writer = BackgroundWriter(None, lambda record: print("told of round", record.metrics["round"]))
        >>> writer.begin(RoundRecord.of(rehearse("fedavg").played, Figures(), {}), None)
        >>> writer.settle()
        told of round 0
        >>> writer.close()
    """

    def __init__(self, folder: RunDir | None, tell: Callable[[RoundRecord], None]) -> None:
        self._folder, self._tell = folder, tell
        self._thread = ThreadPoolExecutor(1, "hanse-writer")  # starts when it has something to do
        self._under_way: tuple[RoundRecord, Future[None] | None] | None = None

    def begin(self, record: RoundRecord, state: LoopState | None) -> None:
        """Start writing a round. The previous one must be settled.

        Args:
            record: the round.
            state: the state after the round, for a checkpoint. None: no checkpoint is due.
        """
        if self._folder is None:
            self._under_way = record, None
            return
        folder, packed = self._folder, record.packed()
        # parts should make new arrays, but one that writes into its old ones must not write into a checkpoint
        kept = None if state is None else own_copy(state)

        def write() -> None:
            folder.append(packed)
            if kept is not None:
                folder.checkpoint(kept)

        self._under_way = record, self._thread.submit(write)

    def settle(self) -> None:
        """Wait until the round being written is on the disk, and report it. Does nothing if there is none.

        Raises:
            MachineError: the round could not be written.
        """
        if self._under_way is None:
            return
        (record, written), self._under_way = self._under_way, None
        if written is not None:
            written.result()
        self._tell(record)

    def close(self) -> None:
        """Wait until writing ends. A round that was not settled is never reported."""
        self._thread.shutdown()
