"""A round's lines and arrays in the run directory. Only this module writes and finds them.

A round has one line in ``metrics.jsonl``, one line per seat in ``clients.jsonl``, and its arrays in
``rounds/NNNNN.npz`` (:class:`RoundRecord`). Names of metrics are paths, and parts may add metrics. Everything under
``time/`` and ``memory/`` differs from run to run; everything else is deterministic. To read a whole run, see
:mod:`hanse.runs.run_record`.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.files import as_npz, in_order, json_lines, opened
from hanse.learning.job import NO_STEP
from hanse.learning.metrics import ACCURACY, MetricStyle
from hanse.ledger import receipts
from hanse.ledger.run_ledger import latest_claim

if TYPE_CHECKING:
    from torch import Tensor

    from hanse.core.part import View
    from hanse.core.table import Made
    from hanse.runs.recomputable import RoundAnswers
    from hanse.runs.round import Played
    from hanse.runs.testing import Figures

METRICS, SEATS, ROUNDS = receipts.METRICS, receipts.SEATS, "rounds"
HASH = "rounds/hash"  # in a round's line of metrics.jsonl: of its file in rounds/
SHAPE = "shape.json"  # of a sample, and the number of classes: what a model is made for
LINES = (METRICS, SEATS)
LARGEST = 1 << 32  # bytes of a round's file: one that claims more is not read
CHUNK = 1 << 20  # bytes of a growing file that are read at a time
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class RoundRecord:
    """The record of a round.

    Attributes:
        metrics: the round's line of ``metrics.jsonl``: counts, test figures, what the parts recorded, bytes, time,
            memory.
        seats: the round's lines of ``clients.jsonl``, one per seat, with the value or the reason why the seat was
            refused.
        played: the round itself.
        tested: what the round's test found.
        file: the content of the round's file in ``rounds/`` and its hash, once :meth:`filed` made it.
        answers: what clients answered, if answers are kept.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> from hanse.runs.testing import Figures
        >>> record = RoundRecord.of(rehearse("fedavg").played, Figures(), {"round": 0.1})
        >>> record.metrics["answered"], len(record.seats)
        (4, 4)
    """

    metrics: dict[str, Any]
    seats: list[dict[str, Any]]
    played: Played
    tested: Figures
    file: tuple[bytes, str] | None = None
    answers: RoundAnswers | None = None

    @staticmethod
    def of(
        played: Played, tested: Figures, seconds: Mapping[str, float], answers: RoundAnswers | None = None
    ) -> RoundRecord:
        """Return the record of a round.

        Args:
            played: the round.
            tested: what the round's test found. It is empty if there was no test.
            seconds: wall-clock seconds by name, in addition to the round's stages.
            answers: what clients answered, if answers are kept.
        """
        metrics = _plain(_metrics_of(played, tested.metrics, seconds))
        return RoundRecord(metrics, [*map(_plain, _seats_of(played))], played, tested, answers=answers)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of ``rounds/NNNNN.npz`` by name.

        These are seats, W in coordinates, home if it changed, values, refusals and the clients' tests. If a round may
        end early, they also say who was present and how late updates were. If answers are kept, they include the hashes
        of the answers and of the table's rows.
        """
        arrays = {**_arrays_of(self.played), **self.tested.arrays}
        if self.answers is not None:
            arrays |= self.answers.hashes()
            arrays["table_hash"] = np.array([row_hash(row) for row in self.played.state.table.rows], np.str_)
        return arrays

    @property
    def worths(self) -> dict[str, np.ndarray]:
        """The arrays that say how certain the round's values are, ``[S]`` and ``[S, B]``; empty if it has no values."""
        values = self.played.view.values
        if values is None or values.without_block is None:
            return {}
        return {"answered": self.played.view.trained.seats.client, "value_without_block": values.without_block}

    def closed(self) -> RoundRecord:
        """Return the record with the transaction that closes the round (:mod:`hanse.ledger.receipts`) posted."""
        file, view, state = self.filed().file, self.played.view, self.played.state
        assert file is not None
        facts = receipts.RecordDigest.of({**self.metrics, HASH: file[1]}, self.seats)
        line = receipts.close(view.round, view.book, view.posted, facts)
        after = replace(view, book=view.book.post(view.round, [line]), posted=(*view.posted, line))
        return replace(self, file=file, played=replace(self.played, view=after, state=replace(state, book=after.book)))

    def filed(self) -> RoundRecord:
        """Return the record with its file made: it can then be written while the next round is played."""
        if self.file is not None:
            return self
        blob = as_npz(self.arrays)
        return replace(self, file=(blob, file_hash(io.BytesIO(blob))))


def round_file(folder: Path, round: int) -> Path:
    """Return the path of a round's arrays in a run directory; rounds count from 0."""
    return folder / ROUNDS / f"{round:05d}.npz"


def file_hash(file: BinaryIO | io.BytesIO) -> str:
    """Return the hash of a round's file: BLAKE2b of its bytes in 40 hexadecimal digits."""
    hasher = hashlib.blake2b(digest_size=20)
    while chunk := file.read(CHUNK):
        hasher.update(chunk)
    return hasher.hexdigest()


def lost_rounds(folder: Path) -> dict[int, str]:
    """Return the rounds whose arrays are missing or were changed, each with the reason.

    A round whose line in ``metrics.jsonl`` is missing counts, too, because the file's hash is then unknown. Of several
    in a row, the first is named.

    Args:
        folder: the run directory. Each line of its ``metrics.jsonl`` has the hash of its round's file.

    Raises:
        UserError: a line of ``metrics.jsonl`` is damaged.
    """
    # the checkpoint first: a run that goes on writes its lines before it
    claim, found, numbers = latest_claim(folder), {}, set[int]()
    for line in json_lines(folder / METRICS, ("round",)):
        numbers.add(int(line["round"]))
        file, said = round_file(folder, line["round"]), line.get(HASH)
        where = f"{ROUNDS}/{file.name}"
        try:
            with opened(file) as blob:
                if said is None:
                    found[int(line["round"])] = f"{where} has lost its hash in {METRICS}"
                elif os.fstat(blob.fileno()).st_size > LARGEST or file_hash(blob) != said:
                    found[int(line["round"])] = f"{where} is not the file that was written"
        except FileNotFoundError:
            found[int(line["round"])] = f"{where} is missing"
        except OSError as wrong:
            found[int(line["round"])] = f"{where} cannot be read ({wrong.strerror or wrong})"
    end = None if claim is None else claim.round
    return dict(sorted((found | _without_lines(numbers, end or 0)).items()))


def _without_lines(numbers: Collection[int], end: int) -> dict[int, str]:
    """Return the first round of each gap between the ``numbers`` of lines, which should reach to before ``end``."""
    found, due = {}, 0
    for number in (*sorted(numbers), end):
        if number > due:
            more = f" and those up to round {number - 1}" if number - due > 1 else ""
            found[due] = f"its line{more} in {METRICS} is missing"
        due = max(due, number + 1)
    return found


def _plain(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line with None for infinite and NaN numbers, which JSON does not have."""
    return {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in line.items()}


def _metrics_of(played: Played, tested: Mapping[str, float | None], seconds: Mapping[str, float]) -> dict[str, Any]:
    """Return a round's line of ``metrics.jsonl``."""
    view = played.view
    updates = view.trained
    known = updates.loss[~np.isnan(updates.loss)]  # of those that report one
    decisions = (view.choice, view.mix, view.values, view.settlement, view.deployment)
    recorded = {k: float(v) if isinstance(v, np.floating) else v for d in decisions if d for k, v in d.metrics.items()}
    recorded |= {k: int(v) for k, v in recorded.items() if isinstance(v, np.integer)}
    return {
        "round": view.round,
        "present": len(view.roster),
        "seats": 0 if view.seats is None else len(view.seats),
        "answered": len(updates),
        "refused": len(view.refusals),
        **({"left": len(view.leaving)} if len(view.leaving) else {}),
        "samples": float(updates.num_samples.sum()),
        "train/loss": float(known.mean()) if len(known) else None,
        **tested,
        **recorded,
        **played.waited,
        "bytes/down": played.bytes_down,
        "bytes/up": played.bytes_up,
        **({"ledger/head": view.book.head} if view.book.count else {}),
        **{f"time/{name}_s": spent for name, spent in {**played.seconds, **seconds}.items()},
        "memory/peak_mb": _peak_mb(),
    }


def _peak_mb() -> float | None:
    """Return the most MiB of memory that this process has had; None where the system does not tell it."""
    try:
        import resource  # here: Windows has no such module
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB on Linux and in bytes on macOS
    return round(peak / (1 << 20 if sys.platform == "darwin" else 1024), 1)


def _seats_of(played: Played) -> list[dict[str, Any]]:
    """Return a round's lines of ``clients.jsonl``: one per seat, with its value or the reason of its refusal."""
    view = played.view
    if view.seats is None:
        return []
    figures = played.figures
    reasons = dict(view.refusals)
    answered = view.trained.seats
    of_seat = list(zip(answered.client.tolist(), answered.start.tolist(), strict=True))
    # late updates belong to seats of earlier rounds, and get lines behind those of this round's seats; a client may
    # have a seat in this round, too
    stale = view.trained.staleness.astype(bool).tolist()
    place = {seat: s for s, seat in enumerate(of_seat) if not stale[s]}
    late = [(seat, s) for s, seat in enumerate(of_seat) if stale[s]]
    lines = []
    asked = zip(view.seats.client.tolist(), view.seats.start.tolist(), strict=True)
    for (client, start), s in [*((seat, place.get(seat)) for seat in asked), *late]:
        line: dict[str, Any] = {"round": view.round, "client": client, "start": start}
        if s is None:
            line["refused"] = reasons.get(client, "no reply")
            line |= {"steps": 0, "weight": 0.0} if NO_STEP in line["refused"] else {}
        else:
            line |= _line_of(view, s)
        line |= {name: float(of_client[client]) for name, of_client in figures.items()}
        lines.append(line)
    return lines


def _line_of(view: View, s: int) -> dict[str, Any]:
    """Return the entries of a seat's line about its update, the ``s``-th of the round."""
    updates = view.trained
    row = int(updates.seats.target[s])
    line: dict[str, Any] = {
        "samples": float(updates.num_samples[s]),
        "steps": int(updates.steps[s]),
        "loss": float(updates.loss[s]),
        "weight": None if row in view.mixed.made else float(view.mixed.W[row, s]),
    }
    if updates.metrics:
        line |= {f"fit/{name}": value for name, value in updates.metrics[s].items()}
    if updates.staleness[s]:
        line["staleness"] = int(updates.staleness[s])
    if view.values is not None:
        line["value"] = float(view.values.per_seat[s])
        errors = {"value_error": view.values.standard_errors, "value_draw_error": view.values.draw_errors}
        for name, per_seat in errors.items():
            if per_seat is not None:
                line[name] = float(per_seat[s])
    return line


def _arrays_of(played: Played) -> dict[str, np.ndarray]:
    """Return the arrays of a round and those of its test."""
    view = played.view
    seats, updates, mixed = view.seats, view.trained, view.mixed
    row, column = np.nonzero(mixed.W)
    arrays = {
        "client": np.zeros(0, np.int64) if seats is None else seats.client,
        "start": np.zeros(0, np.int64) if seats is None else seats.start,
        "answered": updates.seats.client,
        "num_samples": updates.num_samples,
        "loss": updates.loss,
        "steps": updates.steps,
        "W_row": row,
        "W_column": column,
        "W_weight": mixed.W[row, column],
        "W_shape": np.array(mixed.W.shape),
        "refused": np.array([c for c, _ in view.refusals], np.int64),
        "reason": np.array([r for _, r in view.refusals], np.str_),
        **_made_arrays(mixed.made),
    }
    if "late/mixed" in played.waited:
        arrays["staleness"] = updates.staleness
    if "late/mixed" in played.waited or len(view.roster) < view.context.num_clients:
        arrays["present"] = view.roster.ids
    if len(view.leaving):
        arrays["leaving"] = view.leaving
    if view.values is not None:
        arrays["value"] = view.values.per_seat
        if view.values.standard_errors is not None:
            arrays["value_error"] = view.values.standard_errors
        if view.values.without_block is not None:
            arrays["value_without_block"] = view.values.without_block
    if view.settlement is not None:
        arrays |= view.settlement.arrays
        arrays["withheld"] = np.array(sorted(view.settlement.withheld), np.int64)
    # late: reports read this module, and read without torch
    from hanse.core.part import Unproved
    from hanse.runs.settle_inputs import SettleInputs, packed

    if (unproved := view.get(Unproved)) is not None:
        arrays |= unproved.arrays
    # homes rarely change, and a run of many clients would repeat them in every file
    if not np.array_equal(mixed.home, view.home) or view.round == 0:
        arrays["home"] = mixed.home
    return arrays | packed(view.get(SettleInputs), view.context, arrays)


def _made_arrays(made: Mapping[int, Made]) -> dict[str, NDArray[Any]]:
    """Return what is recorded of rows that are not sums of updates and old rows (such as a median's); empty without
    any.

    Args:
        made: the rows, by their number in the table.

    Returns:
        ``made_row [a]``: the rows' numbers; ``made_hash [a]``: the hash of each; ``made_of [n]``: positions of the
        updates
        that they are made of; ``made_at [n]``: which of the ``a`` rows each of these belongs to.
    """
    if not made:
        return {}
    rows = sorted(made)
    return {
        "made_row": np.array(rows, np.int64),
        "made_hash": np.array([row_hash(made[row].row) for row in rows], np.str_),
        "made_of": np.concatenate([made[row].of for row in rows]),
        "made_at": np.repeat(np.arange(len(rows)), [len(made[row].of) for row in rows]),
    }


def row_hash(row: Tensor) -> str:
    """Return the hash of a model ``[P]``: BLAKE2b of its numbers as float32, little-endian, in 40 hexadecimal
    digits.
    """
    numbers = np.ascontiguousarray(row.detach().cpu().numpy(), dtype="<f4")
    return hashlib.blake2b(numbers.data, digest_size=20).hexdigest()


def figure_of(metrics: Mapping[str, Any], main: MetricStyle = ACCURACY) -> str:
    """Return a round's main metric in words, for a progress bar.

    It is that of the clients on their own data, else the server's, else the server's loss. It is empty if nothing was
    tested.
    """
    own, server = metrics.get(f"client/test_{main.key}"), metrics.get(f"test/{main.key}")
    if own is not None:  # the clients' own data come first where they test: it is what they asked for
        return f"own {main.title} {own:.3f}"
    if server is not None:
        return f"test {main.title} {server:.3f}"
    return f"test loss {metrics['test/loss']:.4g}" if metrics.get("test/loss") is not None else ""


def rounds_of(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the rounds that have arrays in a run directory, in order, with their files.

    Raises:
        UserError: a file whose name is not a number.
    """
    for file in in_order(folder / ROUNDS, ".npz"):
        if not file.stem.isdecimal():
            raise UserError(f"{file}: is not the record of a round: its name is no number")
        yield int(file.stem), file
