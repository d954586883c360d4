"""The record of a run: what its rounds leave in the run directory. It is written here and read here, nowhere else.

A round leaves a line of ``metrics.jsonl``, a line a seat of ``clients.jsonl``, and its arrays in ``rounds/NNNNN.npz``
(:class:`RoundRecord`). Names of metrics are paths, which parts add to. Everything under ``time/`` and ``memory/`` is
wall clock and memory, and differs from run to run; all else is deterministic.

A finished run is read by :func:`load_run`, which gives a :class:`RunRecord`: that is where reports begin. A run that
goes on is followed with :class:`LineTail`. For the models of a run see :mod:`hanse.runs.reading`.

What is read may have been written by a stranger: it is bounded, nothing of it is imported or unpickled, no link in it
is followed, and what is wrong becomes one line that names the file (:mod:`hanse.base.files`).
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import resource
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeGuard

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hanse.base.errors import MachineError, UserError
from hanse.base.files import (
    CLIENTS,
    LONGEST,
    MEMBERS,
    going_on,
    json_lines,
    opened,
    parse_line,
    read_arrays,
    read_json,
    read_toml,
    run_folder,
    table,
)
from hanse.core.entry import Transaction
from hanse.core.table import Floats, Ints, Made
from hanse.core.telling import About, read_about
from hanse.games.market import Market, Stop
from hanse.learning.metrics import ACCURACY, Reading, main_of, readings_of
from hanse.rounds.arrivals import STILL, Recorded
from hanse.runs.budget import Budget
from hanse.runs.chance import GUESS, Guess, doubts
from hanse.runs.config import ClientsSection, RunSection
from hanse.runs.names import client_names, client_of, read_members

if TYPE_CHECKING:
    from hanse.core.part import View
    from hanse.rounds.round import Played
    from hanse.runs.testing import Figures

METRICS, SEATS, ROUNDS = "metrics.jsonl", "clients.jsonl", "rounds"
_LONGEST_GAP = 500  # characters of a reason: a directory may be a stranger's
HASH = "rounds/hash"  # in a round's line of metrics.jsonl: of its file in rounds/
SHAPE = "shape.json"  # of a sample, and the number of classes: what a model is made for
LINES = (METRICS, SEATS)
SEEDS = (("run", "seed"), ("data", "seed"))  # of the run, and of the split
OWN_TESTS = ("tested", "test_loss", "test_accuracy", "test_samples", "test_loss_error")
LARGEST = 1 << 32  # bytes of a round's file: one that claims more is not read
CHUNK = 1 << 20  # bytes of a growing file that are read at a time
REMEMBER = 64  # bytes before the place reached, to see whether they are still the same
END = 1 << 16  # bytes in which a file's last line is looked for

Arrays = Mapping[str, NDArray[Any]]

# ---- what a round leaves


@dataclass(frozen=True)
class RoundRecord:
    """What is kept of a round.

    Attributes:
        metrics: its line of ``metrics.jsonl``: counts, test figures, what the parts recorded, bytes, time, memory.
        seats: its lines of ``clients.jsonl``, a line a seat, with its value or the reason of its refusal.
        played: the round itself.
        tested: what its test found.

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

    @staticmethod
    def of(played: Played, tested: Figures, seconds: Mapping[str, float]) -> RoundRecord:
        """Return the record of a round.

        Args:
            played: the round.
            tested: what its test found; empty if it had none.
            seconds: wall-clock seconds by name, beside those of the round's stages.
        """
        return RoundRecord(_metrics_of(played, tested.metrics, seconds), _seats_of(played), played, tested)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of ``rounds/NNNNN.npz`` by name.

        They are the seats, W in coordinates, home if it changed, values, refusals and the clients' tests, and, where a
        round need not wait for all, who was present and how late updates were.
        """
        return {**_arrays_of(self.played), **self.tested.arrays}

    def packed(self) -> PackedRound:
        """Return what is written of the round, as bytes. Nothing of it changes with what the next round does."""
        view, arrays, archive = self.played.view, dict[str, Any](self.arrays), io.BytesIO()
        np.savez(archive, **arrays)  # in memory: it goes back and forth in its file
        blob = archive.getvalue()
        metrics = {**self.metrics, HASH: file_hash(io.BytesIO(blob))}
        lines = {name: _as_lines(of) for name, of in ((SEATS, self.seats), (METRICS, [metrics]))}
        return PackedRound(view.round, blob, lines, tuple(view.posted))


@dataclass(frozen=True)
class PackedRound:
    """A round as its bytes, to be written by another thread.

    Attributes:
        round: its number.
        arrays: the content of ``rounds/NNNNN.npz``.
        lines: what is appended to each line file, by name, in the order in which they are written.
        posted: its transactions.
    """

    round: int
    arrays: bytes
    lines: Mapping[str, bytes]
    posted: tuple[Transaction, ...]


def _as_lines(of: Sequence[Mapping[str, Any]]) -> bytes:
    """Return dictionaries as JSON lines."""
    return "".join(json.dumps(line) + "\n" for line in of).encode()


def round_file(folder: Path, round: int) -> Path:
    """Return where a run directory keeps the arrays of a round (counted from 0)."""
    return folder / ROUNDS / f"{round:05d}.npz"


def file_hash(file: BinaryIO | io.BytesIO) -> str:
    """Return the hash of a round's file: BLAKE2b of its bytes in 40 hexadecimal digits."""
    hasher = hashlib.blake2b(digest_size=20)
    while chunk := file.read(CHUNK):
        hasher.update(chunk)
    return hasher.hexdigest()


def has_hashes(folder: Path) -> bool:
    """Say whether a run's lines have hashes of the rounds' files. One of an older hanse has none."""
    return any(HASH in line for line in json_lines(folder / METRICS, ("round",)))


def lost_rounds(folder: Path) -> dict[int, str]:
    """Return the rounds whose arrays are missing or not those that were written, each with a phrase that says why.

    Runs of an older hanse have no hashes of their files (:func:`has_hashes`); only missing ones are found in them.

    Args:
        folder: the run directory. Each line of its ``metrics.jsonl`` has the hash of its round's file.

    Raises:
        UserError: a line of ``metrics.jsonl`` is damaged.
    """
    found, hashed = {}, has_hashes(folder)
    for line in json_lines(folder / METRICS, ("round",)):
        file, said = round_file(folder, line["round"]), line.get(HASH)
        where = f"{ROUNDS}/{file.name}"
        try:
            with opened(file) as blob:
                if hashed and said is None:
                    found[int(line["round"])] = f"{where} has lost its hash in {METRICS}"
                elif os.fstat(blob.fileno()).st_size > LARGEST or (said is not None and file_hash(blob) != said):
                    found[int(line["round"])] = f"{where} is not the file that was written"
        except FileNotFoundError:
            found[int(line["round"])] = f"{where} is missing"
        except OSError as wrong:
            found[int(line["round"])] = f"{where} cannot be read ({wrong.strerror or wrong})"
    return found


def _metrics_of(played: Played, tested: Mapping[str, float | None], seconds: Mapping[str, float]) -> dict[str, Any]:
    """Return a round's line of ``metrics.jsonl``."""
    view = played.view
    updates = view.trained
    decisions = (view.choice, view.mix, view.values, view.settlement, view.deployment)
    recorded = {k: v for d in decisions if d is not None for k, v in d.metrics.items()}
    # ru_maxrss is in KiB on Linux and in bytes on macOS
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1024)
    return {
        "round": view.round,
        "present": len(view.roster),
        "seats": 0 if view.seats is None else len(view.seats),
        "answered": len(updates),
        "refused": len(view.refusals),
        "samples": float(updates.num_samples.sum()),
        "train/loss": _mean_loss(updates.loss),
        **tested,
        **recorded,
        **played.waited,
        "bytes/down": played.bytes_down,
        "bytes/up": played.bytes_up,
        **({"ledger/head": view.book.head} if view.book.count else {}),
        **{f"time/{name}_s": spent for name, spent in {**played.seconds, **seconds}.items()},
        "memory/peak_mb": round(peak, 1),
    }


def _mean_loss(loss: Floats) -> float | None:
    """Return the mean of the seats' training losses ``[S]``, of those that say theirs; None if nobody does."""
    said = loss[~np.isnan(loss)]
    return float(said.mean()) if len(said) else None


def _seats_of(played: Played) -> list[dict[str, Any]]:
    """Return a round's lines of ``clients.jsonl``: one a seat, with its value or the reason of its refusal."""
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
        else:
            line |= _line_of(view, s)
        line |= {name: float(of_client[client]) for name, of_client in figures.items()}
        lines.append(line)
    return lines


def _line_of(view: View, s: int) -> dict[str, Any]:
    """Return what the line of a seat says of its update, the ``s``-th of the round."""
    updates = view.trained
    row = int(updates.seats.target[s])
    line: dict[str, Any] = {
        "samples": float(updates.num_samples[s]),
        "steps": int(updates.steps[s]),
        "loss": None if np.isnan(updates.loss[s]) else float(updates.loss[s]),
        "weight": None if row in view.mixed.made else float(view.mixed.W[row, s]),
    }
    if updates.metrics:
        line |= {f"fit/{name}": value for name, value in updates.metrics[s].items()}
    if updates.staleness[s]:
        line["staleness"] = int(updates.staleness[s])
    if view.values is not None:
        line["value"] = float(view.values.per_seat[s])
        if view.values.exact is not None:
            line["value_exact"] = float(view.values.exact[s])
        errors = {"value_error": view.values.standard_errors, "value_draw_error": view.values.draw_errors}
        for name, per_seat in errors.items():
            if per_seat is not None:
                line[name] = None if np.isnan(per_seat[s]) else float(per_seat[s])
    return line


def _arrays_of(played: Played) -> dict[str, np.ndarray]:
    """Return the arrays of a round beside those of its test."""
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
        arrays |= {"present": view.roster.ids, "staleness": updates.staleness}
    if view.values is not None:
        arrays["value"] = view.values.per_seat
        if view.values.standard_errors is not None:
            arrays["value_error"] = view.values.standard_errors
        if view.values.without_block is not None:
            arrays["value_without_block"] = view.values.without_block
        if view.values.interactions is not None:
            arrays["value_interactions"] = view.values.interactions
        if view.values.interaction_errors is not None:
            arrays["value_interaction_errors"] = view.values.interaction_errors
        arrays |= {f"value_of_{budget}": less for budget, less in view.values.beside.items()}
    if view.settlement is not None:
        arrays |= view.settlement.arrays
        arrays["withheld"] = np.array(sorted(view.settlement.withheld), np.int64)
    # homes rarely change, and a run of many clients would repeat them in every file
    if not np.array_equal(mixed.home, view.home) or view.round == 0:
        arrays["home"] = mixed.home
    return arrays


def _made_arrays(made: Mapping[int, Made]) -> dict[str, NDArray[Any]]:
    """Return what is recorded of rows that are no sum of updates and old rows (a median's, for example); empty without
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


def figure_of(metrics: Mapping[str, Any], main: Reading = ACCURACY) -> str:
    """Return the main metric of a round in words, as a progress bar shows it.

    It is that of the clients on their own data, or else the server's, or else the server's loss; empty if nothing was
    tested.
    """
    own, server = metrics.get(f"client/test_{main.key}"), metrics.get(f"test/{main.key}")
    if own is not None:  # the clients' own data come first where they test: it is what they asked for
        return f"own {main.title} {own:.3f}"
    if server is not None:
        return f"test {main.title} {server:.3f}"
    return f"test loss {metrics['test/loss']:.4g}" if metrics.get("test/loss") is not None else ""


# ---- one line, one round


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A line of ``clients.jsonl``. What is not a finite number in the file is None.

    Attributes:
        round: the round that the line belongs to.
        client: the client's number.
        staleness: how many rounds after it was asked the update came; 0 in its own round.
        value: what the update was worth.
        error: the value's standard error from the sampling of coalitions; infinite: not known; None: not recorded.
        drawn: the value's standard error from the draw of the validation samples.
        exact: the exact value, where the run computed it beside an estimate.
        score: the client's cumulative value after the round, as the mechanism keeps it.
        weight: the update's weight in the model that it trained.
        refused: why there is no update; None: there is one.
        name: what the client is called; empty: it has no name.
    """

    round: int
    client: int
    staleness: int = 0
    value: float | None
    error: float | None
    drawn: float | None
    exact: float | None
    score: float | None
    weight: float | None
    refused: str | None
    name: str

    @staticmethod
    def of(line: Mapping[str, Any]) -> Seat:
        """Return the seat that a line describes. Its ``round`` and ``client`` must have been checked to be counts."""

        def number(key: str) -> float | None:
            return value if is_number(value := line.get(key)) else None

        refused = line.get("refused")
        return Seat(
            round=line["round"],
            client=line["client"],
            staleness=late if isinstance(late := line.get("staleness"), int) and 0 <= late <= line["round"] else 0,
            value=number("value"),
            # a null was a NaN when it was written: the value was sampled, and fewer than two samples give no error
            error=math.inf if line.get("value_error", 0) is None else number("value_error"),
            drawn=number("value_draw_error"),
            exact=number("value_exact"),
            score=number("cumulative_value"),
            weight=number("weight"),
            refused=None if refused is None else str(refused),
            name=str(line.get("name") or ""),
        )


@dataclass(frozen=True)
class SeatColumns:
    """All seats of a run as columns ``[S]``, in the order of rounds. Numbers that are not there are NaN.

    Attributes:
        round: the round that the seat's line belongs to.
        asked: the round in which the client was asked, which is earlier for late updates.
        client: the client's number.
        value: what the update was worth.
        error: its standard error from the sampling of coalitions.
        drawn: its standard error from the draw of the validation samples.
        exact: the exact value, where it was computed beside an estimate.
        score: the client's cumulative value after the round, as the mechanism keeps it.
    """

    round: Ints
    asked: Ints
    client: Ints
    value: Floats
    error: Floats
    drawn: Floats
    exact: Floats
    score: Floats


@dataclass(frozen=True)
class OwnTests:
    """What clients found on their own test shares after a round, ``[n]`` each.

    Attributes:
        clients: their numbers.
        loss: mean loss.
        accuracy: 0 to 1; NaN: there is none.
        samples: how many test samples; None: not recorded.
        error: standard error of the loss; NaN: not recorded.
        main: the run's main metric; NaN: the client has none.
        gaps: why a client has none; empty: it has.
        without: ``[n, B]``, the main metric with each block of the client's samples left out; None: not recorded.
        interval: ``[n, 2]``, the 95 % interval of the main metric; NaN: not known.
    """

    clients: Ints
    loss: Floats
    accuracy: Floats
    samples: Ints | None
    error: Floats
    main: Floats
    gaps: Sequence[str]
    without: Floats | None
    interval: Floats


# the arrays of a recorded market: how many axes of clients, and of what kinds of dtype
MARKET: Mapping[str, tuple[int, str]] = {
    "market_client": (1, "iu"),
    "market_distance": (2, "f"),
    "market_size": (1, "iuf"),
    "market_cost": (1, "iuf"),
    "market_eagerness": (1, "iuf"),
    "market_lam": (0, "iuf"),
    "market_graph": (2, "iub"),
    "market_units": (2, "i"),
    "market_paid": (1, "b"),
    "market_pricing": (0, "U"),
    "market_utility": (1, "f"),
    "withheld": (1, "iu"),  # as many as were not delivered
}


@dataclass(frozen=True, kw_only=True)
class MarketRound:
    """One recorded market of ``m`` clients.

    Attributes:
        round: the round.
        clients: ``[m]``, their numbers.
        market: what they declared.
        graph: ``[m, m]``, 1 where the row's client imports the column's model.
        units: ``[m, m]``, what the row's client was billed by the column's, in units.
        paid: ``[m]``, whether each client paid its bill.
        pricing: the pricing rule's name.
        utility: ``[m]``, each client's utility under what is true of it.
        withheld: the centres that were not delivered, as rows of the table.
        stop: what Algorithm 2 of iPFL did at a seller that does not pay.

    Examples:
        The markets that a small run of iPFL has recorded:

        >>> import hanse
        >>> from hanse.runs.rehearsal import rehearse
        >>> run = hanse.run(rehearse("ipfl").experiment, out="market", overwrite=True)
        >>> first = next(recorded_markets(Path("market")))
        >>> first.round, first.graph.shape
        (0, (4, 4))
    """

    round: int
    clients: NDArray[np.int64]
    market: Market
    graph: NDArray[np.int8]
    units: NDArray[np.int64]
    paid: NDArray[np.bool_]
    pricing: str
    utility: NDArray[np.float64]  # under what is true of the clients
    withheld: NDArray[np.int64]  # the centres that were not delivered: rows of the table
    stop: Stop = "skip"  # what Algorithm 2 did at a seller that does not pay

    @property
    def realised(self) -> NDArray[np.int8]:
        """The imports that were delivered, ``[m, m]``: those of clients that paid."""
        return np.where(self.paid[:, None], self.graph, 0).astype(np.int8)

    @property
    def money(self) -> NDArray[np.int64]:
        """What was really paid, in units ``[m, m]``."""
        return np.where(self.paid[:, None], self.units, 0)


def market_of(number: int, file: Path, record: Arrays) -> MarketRound | None:
    """Return the market of a round; None if it had none.

    Args:
        number: the round.
        file: the file that the arrays are from, for errors.
        record: its arrays, those that ``MARKET`` names.

    Raises:
        UserError: they do not fit each other.
    """
    try:
        return _checked_market(number, record) if "market_units" in record else None
    except (ValueError, KeyError, IndexError, TypeError) as wrong:
        raise UserError(f"{file}: the record of the round cannot be read: {wrong}") from None


def _checked_market(number: int, record: Arrays) -> MarketRound:
    """Return the market that these arrays describe. Raises ValueError or KeyError if one is missing or has another
    form.
    """
    d, n, c, K = (record[f"market_{name}"] for name in ("distance", "size", "cost", "eagerness"))
    for name, (axes, kinds) in MARKET.items():
        array = record[name]
        fits = array.ndim == axes and (name == "withheld" or array.shape == (len(n),) * axes)
        if not fits or array.dtype.kind not in kinds:
            raise ValueError(f"{name} is {array.dtype} {array.shape} with {len(n)} clients")
    return MarketRound(
        round=number,
        clients=record["market_client"],
        market=Market.of(d, n, c, K, float(record["market_lam"])),
        graph=record["market_graph"],
        units=record["market_units"],
        paid=record["market_paid"],
        pricing=str(record["market_pricing"]),
        utility=record["market_utility"],
        withheld=record["withheld"],
        stop="break" if str(record.get("market_stop", "skip")) == "break" else "skip",
    )


def rounds_of(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the rounds of which a run directory has arrays, in order, with their files.

    Raises:
        UserError: a file whose name is no number.
    """
    for file in sorted((folder / ROUNDS).glob("*.npz")):
        if not file.stem.isdecimal():
            raise UserError(f"{file}: is not the record of a round: its name is no number")
        yield int(file.stem), file


def recorded_markets(folder: Path) -> Iterator[MarketRound]:
    """Yield the markets that a run directory has a record of. Raises UserError for a record that is damaged."""
    for number, file in rounds_of(folder):
        found = market_of(number, file, read_arrays(file, (*MARKET, "market_stop")))
        if found is not None:
            yield found


# ---- a whole run


def is_under_way(config: Mapping[str, Any], seat: Seat) -> bool:
    """Say whether a round did not wait for a seat's update, which may still join a later one. It then counts as late,
    not as refused, though ``seat.refused`` says why there was none in its round.

    Args:
        config: the run's experiment, as in ``RunRecord.config``.
        seat: the seat.
    """
    return seat.refused == STILL and table(config, "federation").get("late") == "next"


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A run directory in memory, as reports read it.

    Attributes:
        path: the directory.
        name: what to call it.
        config: its ``config.toml``.
        metrics: a line a round. Its ``round`` is a number; everything else is as it was written, unchecked.
        clients: a seat each.
        ledger_url: where the user says that its books are; None: in the directory.

    Arrays of rounds are read from their files when they are asked for.

    Examples:
        A small run, played and read again:

        >>> import hanse
        >>> from hanse.runs.rehearsal import rehearse
        >>> run = hanse.run(rehearse("greedyfed").experiment, out="small", overwrite=True)
        >>> record = load_run("small")
        >>> record.num_clients, len(record.metrics), record.mechanism
        (4, 3, 'greedyfed')
    """

    path: Path
    name: str
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    clients: Sequence[Seat]
    ledger_url: str | None = None

    @property
    def mechanism(self) -> str:
        """The mechanism's name, or the last word of its import path."""
        return str(table(self.config, "mechanism").get("name", "?")).rpartition(":")[2]

    @property
    def label(self) -> str:
        """The mechanism and the seed in words, such as "greedyfed, seed 0"."""
        return f"{self.mechanism}, seed {self.seeds[0]}"

    @property
    def seeds(self) -> tuple[Any, ...]:
        """The seed of the run and the seed of the split."""
        return tuple(table(self.config, section).get(key, 0) for section, key in SEEDS)

    @property
    def readings(self) -> tuple[Reading, ...]:
        """How the metrics of ``[eval] metrics`` are read, the main one first; empty if there is no such list."""
        return readings_of(table(self.config, "eval").get("metrics"))

    @property
    def main(self) -> Reading:
        """How the main metric is read: the first of the list, or else the accuracy."""
        return main_of(table(self.config, "eval").get("metrics"))

    @property
    def rounds_planned(self) -> int:
        """The number of rounds that the experiment asked for."""
        rounds = table(self.config, "run").get("rounds")
        return rounds if isinstance(rounds, int) else len(self.metrics)

    @cached_property
    def ended_early(self) -> str | None:
        """Why the run ended before its last round: a target that was reached or a budget that was used up; None: it did
        not.
        """
        if len(self.metrics) >= self.rounds_planned:
            return None
        limits = table(self.config, "run")
        try:
            budget = Budget(RunSection(**{key: limits[key] for key in RunSection.model_fields if key in limits}))
            budget.spend(self.metrics)
        except (ValueError, KeyError, TypeError):  # an experiment or figures that hanse did not write
            return None
        return budget.over()

    @property
    def unfinished(self) -> bool:
        """Whether rounds are still to come."""
        return len(self.metrics) < self.rounds_planned and self.ended_early is None

    @property
    def grant(self) -> float:
        """What a new client got, in tokens."""
        given = table(self.config, "clients").get("grant")
        return float(given) if is_number(given) else ClientsSection().grant

    @property
    def num_clients(self) -> int:
        """The number of registered clients, but at least as many as ever had a seat."""
        data = table(self.config, "data")
        registered = 1 if data.get("partition") == "pooled" else len(self.members) or data.get("clients")
        return max(registered if isinstance(registered, int) else 0, int(self.seats.client.max(initial=-1)) + 1)

    @cached_property
    def members(self) -> Mapping[int, Mapping[str, Any]]:
        """The register of a federation on a network, by client; empty for a simulation. Raises UserError for a damaged
        one.
        """
        file = self.path / MEMBERS
        return read_members(file) if file.is_file() else {}

    @cached_property
    def about(self) -> About:
        """What the run's parts and behaviours say of themselves.

        It is read from the directory. Runs from before this was recorded are described as the built-in parts would have
        done.
        """
        said = read_about(self.path)
        if said is None:
            from hanse.runs.older import older  # here: the parts take a while to import, and few runs need them

            said = older(self.config, self.num_clients, self.seeds[0])
        return said

    @cached_property
    def doubts(self) -> list[str]:
        """Sentences that must stand before the run's results: its model is at chance, its values mean little, or what a
        part warns of.
        """
        file = self.path / SHAPE
        said = read_json(file) if file.is_file() else None  # runs of earlier versions may have none
        guess = Guess.read(said.get(GUESS)) if isinstance(said, Mapping) else None
        loss = table(self.config, "train").get("loss")
        known = doubts(self.metrics, guess, cross_entropy=loss in (None, "cross_entropy"))
        return [*known, *self.about.warnings]

    def series(self, key: str) -> tuple[Ints, Floats]:
        """Return one metric over the rounds that have it.

        Args:
            key: its name, such as "test/accuracy".

        Returns:
            The rounds ``[n]``, counted from 0, and the numbers ``[n]``. Rounds without a finite number are left out.
        """
        found = [(line["round"], line[key]) for line in self.metrics if is_number(line.get(key))]
        rounds = np.array([r for r, _ in found], np.int64)
        return rounds, np.array([v for _, v in found], np.float64)

    @property
    def gaps(self) -> Mapping[str, Sequence[int]]:
        """Why rounds have no values, where the record says why, and which rounds (0-based) those are."""
        found: dict[str, list[int]] = {}
        for line in self.metrics:
            why = line.get("gap")
            if isinstance(why, str) and why:
                found.setdefault(why[:_LONGEST_GAP], []).append(int(line["round"]))
        return found

    @cached_property
    def seats(self) -> SeatColumns:
        """The seats as columns."""

        def column(name: str) -> Floats:
            values = (getattr(seat, name) for seat in self.clients)
            return np.array([np.nan if value is None else value for value in values], np.float64)

        return SeatColumns(
            round=np.array([seat.round for seat in self.clients], np.int64),
            asked=np.array([seat.round - seat.staleness for seat in self.clients], np.int64),
            client=np.array([seat.client for seat in self.clients], np.int64),
            **{name: column(name) for name in ("value", "error", "drawn", "exact", "score")},
        )

    def client_label(self, client: int) -> str:
        """Return what to call a client: its name if the run gives it one, else its number."""
        return self._names.get(client, str(client))

    @property
    def names(self) -> tuple[str, ...]:
        """What the clients are called, by number; empty if they have no names."""
        return tuple(map(self.client_label, range(self.num_clients))) if self._names else ()

    @cached_property
    def _names(self) -> dict[int, str]:
        """What clients are called, by number: as the directory says, or else as their lines do."""
        return client_names(self.path) | {seat.client: seat.name for seat in self.clients if seat.name}

    def client_of(self, name: str) -> int:
        """Return the number of the client that a person means by its number or name.

        Raises:
            UserError: none or several have this name (see :func:`hanse.runs.names.client_of`).
        """
        return client_of(name, [self.client_label(c) for c in range(self.num_clients)])

    @cached_property
    def lost(self) -> Mapping[int, str]:
        """The rounds whose arrays are missing or were changed, each with a phrase that says why. See
        :func:`lost_rounds`.
        """
        last = self.metrics[-1]["round"]
        return {round: why for round, why in lost_rounds(self.path).items() if round <= last}

    def arrays(self, round: int, only: Collection[str] = ()) -> dict[str, NDArray[Any]]:
        """Read the arrays of one round.

        Args:
            round: counted from 0.
            only: read those with these names alone; empty: all.

        Returns:
            Arrays by name; empty if the round's file is missing or was changed (:attr:`lost`). Their axes are ``[S]``
            by seat, ``[n]`` by the clients that were tested or refused, or ``[N]`` by client.

        Raises:
            UserError: the file is broken.
        """
        file = round_file(self.path, round)
        return {} if round in self.lost or not file.exists() else read_arrays(file, only)

    def own_tests(self, round: int) -> OwnTests | None:
        """Return what clients found on their own test shares after a round; None if nobody tested.

        Raises:
            UserError: the arrays do not fit each other.
        """
        key = f"test_{self.main.key}"
        record = self.arrays(round, only=(*OWN_TESTS, key, f"{key}_gap", "test_without_block", "test_interval"))
        if "test_accuracy" not in record:
            return None
        count = len(record["test_accuracy"])
        unknown = np.full(count, np.nan)
        clients = record.get("tested", np.arange(count))
        loss, samples = record.get("test_loss", unknown), record.get("test_samples")
        error, main = record.get("test_loss_error", unknown), record.get(key, unknown)
        gaps, without = record.get(f"{key}_gap", np.full(count, "")), record.get("test_without_block")
        interval = record.get("test_interval", np.full((count, 2), np.nan))
        each = (clients, loss, samples, error, main, gaps, None if without is None else without[:, 0])
        if any(array is not None and array.shape != (count,) for array in each) or interval.shape != (count, 2):
            raise UserError(f"{round_file(self.path, round)}: its tests of clients do not fit each other")
        told = [str(gap) for gap in gaps.tolist()]
        return OwnTests(
            clients.astype(np.int64), loss, record["test_accuracy"], samples, error, main, told, without, interval
        )

    @cached_property
    def without_block(self) -> Mapping[int, tuple[Ints, Floats]]:
        """Values without each block of the validation samples, by round, of the rounds that recorded them.

        Each is the clients ``[S]`` whose updates were valued, and ``[S, B]``: their values with each of B blocks left
        out.
        """
        found = {}
        for line in self.metrics:
            stored = self.arrays(line["round"], only=("answered", "value_without_block"))
            clients, without = stored.get("answered"), stored.get("value_without_block")
            if clients is not None and without is not None and without.ndim == 2 and len(clients) == len(without):
                found[int(line["round"])] = (clients, without)
        return found

    def smaller_budgets(self) -> dict[int, list[tuple[Ints, Floats]]]:
        """Return what values would have been with smaller budgets, by budget (models evaluated a round).

        Returns:
            For each round that recorded it, the clients ``[S]``, and their values and standard errors ``[2, S]`` (NaN:
            not
            known).

        Raises:
            UserError: a round's arrays do not fit each other.
        """
        given = (self.config.get("mechanism") or {}).get("value")
        also = given.get("also") if isinstance(given, Mapping) else None
        budgets = sorted({b for b in also if isinstance(b, int) and b > 0}) if isinstance(also, list) else []
        found: dict[int, list[tuple[Ints, Floats]]] = {}
        for line in self.metrics if budgets else ():
            stored = self.arrays(line["round"], only=("answered", *(f"value_of_{b}" for b in budgets)))
            clients = stored.get("answered")
            for budget in budgets:
                less = stored.get(f"value_of_{budget}")
                if clients is None or less is None:
                    continue
                sound = clients.dtype.kind in "iu" and less.dtype.kind == "f" and less.shape == (2, len(clients))
                if not sound or ((clients < 0) | (clients >= self.num_clients)).any():
                    file = round_file(self.path, line["round"])
                    raise UserError(f"{file}: its values of {budget} models are not numbers by client")
                found.setdefault(budget, []).append((clients, less))
        return found

    def interactions(self) -> Iterator[tuple[Ints, Floats, Floats]]:
        """Yield the pairwise interactions of each round that recorded them.

        Yields:
            The clients ``[S]`` whose updates were valued, the interactions ``[S, S]`` (NaN: not in one game), and their
            standard errors ``[S, S]`` (NaN: not known).

        Raises:
            UserError: a round's arrays do not fit each other.
        """
        for line in self.metrics:
            stored = self.arrays(line["round"], only=("answered", "value_interactions", "value_interaction_errors"))
            clients, pairs = stored.get("answered"), stored.get("value_interactions")
            if clients is None or pairs is None:
                continue
            if clients.ndim != 1 or clients.dtype.kind not in "iu" or pairs.dtype.kind != "f":
                raise UserError(f"{round_file(self.path, line['round'])}: its interactions are not numbers by client")
            if pairs.shape != (len(clients), len(clients)):
                what = f"interactions {pairs.shape} of {len(clients)} updates"
                raise UserError(f"{round_file(self.path, line['round'])}: has {what}: must be as many by as many")
            errors = stored.get("value_interaction_errors")
            if errors is None or errors.shape != pairs.shape or errors.dtype.kind != "f":
                errors = np.full(pairs.shape, np.nan)
            yield clients.astype(np.int64), pairs.astype(np.float64), errors.astype(np.float64)

    def arrivals(self) -> Recorded:
        """Return who was present in each round, and whose updates were accepted in it, to replay this order.

        Raises:
            UserError: the run did not record it because its rounds waited for everybody, or its arrays do not fit each
                other.
        """
        present, came = {}, {}
        for number, why in self.lost.items():
            raise UserError(f"{self.path}: has not the whole order of arrival: round {number}: {why}")
        for line in self.metrics:
            number, file = line["round"], round_file(self.path, line["round"])
            stored = self.arrays(number, only=("present", "answered", "staleness"))
            if "present" not in stored:
                raise UserError(f"{self.path}: has no order of arrival: its rounds waited for everybody")
            if any(stored[name].ndim != 1 or stored[name].dtype.kind not in "iu" for name in stored) or (
                len(stored["answered"]) != len(stored["staleness"])
            ):
                raise UserError(f"{file}: its order of arrival cannot be read")
            if len(stored["staleness"]) and not 0 <= stored["staleness"].min() <= stored["staleness"].max() <= number:
                raise UserError(f"{file}: its order of arrival cannot be read: staleness must be 0 to {number}")
            since = (number - stored["staleness"]).tolist()
            present[number] = frozenset(stored["present"].tolist())
            came[number] = frozenset(zip(stored["answered"].tolist(), since, strict=True))
        return Recorded(present, came)

    @cached_property
    def under_way(self) -> frozenset[tuple[int, int]]:
        """The (round, client) of updates that the round did not wait for and that may still join later rounds.

        They count as late, not as refused. It is empty where late updates are dropped.
        """
        return frozenset((seat.round, seat.client) for seat in self.clients if is_under_way(self.config, seat))

    @property
    def num_refused(self) -> int | None:
        """How many updates were refused, without those that are only late; None if that is not recorded."""
        counts = self.series("refused")[1]
        return max(0, int(counts.sum()) - len(self.under_way)) if len(counts) else None

    def refusals(self) -> Iterator[tuple[int, int, str]]:
        """Yield (round, client, reason) of every refusal, without those that are only late."""
        yield from (found for found in self._said_no() if found[2] != STILL or found[:2] not in self.under_way)

    def _said_no(self) -> Iterator[tuple[int, int, str]]:
        """Yield (round, client, reason) of everything that was refused or late. Only rounds that had some are
        opened.
        """
        for line in self.metrics:
            if not line.get("refused"):
                continue
            stored = self.arrays(line["round"], only=("refused", "reason"))
            if "reason" in stored:
                pairs = zip(stored["refused"].tolist(), stored["reason"].tolist(), strict=False)
                yield from ((line["round"], int(client), str(reason)) for client, reason in pairs)
            else:
                mine = (s for s in self.clients if s.round == line["round"] and s.refused is not None)
                yield from ((s.round, s.client, s.refused or "") for s in mine)


def load_run(path: str | Path, ledger_url: str | None = None) -> RunRecord:
    """Read a run directory, which may be a stranger's: nothing of it is imported, and no link in it is followed.

    Args:
        path: the directory.
        ledger_url: where its books are, if not in the directory.

    Raises:
        UserError: with one line: it is no run directory, holds links, has no finished round yet, or is damaged.
    """
    path = run_folder(Path(path))
    config = read_toml(path / "config.toml")
    registered = table(config, "data").get("clients")
    # reports make arrays by client, so a number from a stranger's file must not decide how much memory they take
    if isinstance(registered, int) and registered > CLIENTS:
        raise UserError(f"{path / 'config.toml'}: data.clients: {str(registered)[:40]}: must be at most {CLIENTS}")
    metrics = [_without_hash(line) for line in json_lines(path / METRICS, ("round",))]
    if not metrics:
        raise UserError(f"{path}: has no finished rounds yet; let it run, or go on with '{going_on(path)}'")
    rounds = [line["round"] for line in metrics]
    if any(after <= before for before, after in pairwise(rounds)):
        raise UserError(f"{path / METRICS}: is damaged: its rounds must ascend, a line each")
    # a round's seats are written before its metrics: those of a round that is not finished yet are left out
    lines = [line for line in json_lines(path / SEATS, ("round", "client")) if line["round"] <= rounds[-1]]
    _check_seats(path, metrics, lines)
    clients = [Seat.of(line) for line in lines]
    name = path.name or path.resolve().name
    return RunRecord(path, name, config, metrics, clients, ledger_url)


def _check_seats(path: Path, metrics: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]) -> None:
    """Raise UserError if more or fewer lines than updates were used in a round: a line twice would count a value twice,
    and one that is gone would be missed by nobody.
    """
    found = Counter(line["round"] for line in lines if line.get("refused") is None)
    for line in metrics:
        said = line.get("answered")
        if is_number(said) and said != found[line["round"]]:
            raise UserError(
                f"{path / SEATS}: is damaged: round {line['round']} has {found[line['round']]} updates, and {METRICS} "
                f"says {said:g}"
            )


def load_runs(paths: Sequence[str | Path], ledger_url: str | None = None) -> list[RunRecord]:
    """Read several run directories; one that is given twice is read once. Raises UserError as :func:`load_run`."""
    if not paths:
        raise UserError("no run directory was given")
    once = {Path(path).resolve(): Path(path) for path in reversed(paths)}
    return [load_run(path, ledger_url) for path in reversed(once.values())]


def played_lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the lines of a line file of a run that is to go on.

    Raises:
        MachineError: a line is damaged.
    """
    try:
        counts = ("round",) if name == METRICS else ("round", "client")
        lines = json_lines(folder / name, counts, remedy="bring back a backup of the run")
        return [_without_hash(line) for line in lines]
    except UserError as wrong:
        raise MachineError(*wrong.lines) from None


def _without_hash(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a round's line without the hash of its file, as it was before it was written."""
    return {key: value for key, value in line.items() if key != HASH}


def is_number(value: object) -> TypeGuard[int | float]:
    """Say whether this is a finite number that a page can show. Whole numbers beyond 64 bits are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) if isinstance(value, float) else -(2**63) <= value < 2**63


# ---- a run that goes on


@dataclass(frozen=True)
class Grown:
    """What one look at a growing file found.

    Attributes:
        lines: new lines, parsed.
        cut: whether everything that was read before no longer counts. Then ``lines`` are from the beginning.
        left: bytes that were not looked at yet.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    cut: bool = False
    left: int = 0


@dataclass
class LineTail:
    """A place in a growing file of JSON lines, from which :meth:`read` goes on.

    Attributes:
        path: the file, which need not be there yet.
        whole: keys under which each line must have a count, such as "round".
        place: bytes that have been read.
        damaged: how many lines were passed over because they are no JSON objects or lack these counts.
    """

    path: Path
    whole: Sequence[str] = ()
    place: int = 0
    damaged: int = 0
    _before: bytes = b""
    _file: tuple[int, int] | None = None  # device and inode

    def read(self, most: int = CHUNK) -> Grown:
        """Return the complete lines after the place reached; a last line that is torn waits for the next call.

        A file that is shorter than the place reached, is another file, or has other bytes before that place was cut by
        a resumed run or made anew. It is read from its beginning. A file that is not there counts as an empty one.

        Args:
            most: how many bytes are read, about.
        """
        try:
            file = opened(self.path)
        except FileNotFoundError:  # none yet, or a link
            cut, self._file = self.place > 0, None
            self._rewind()
            return Grown(cut=cut)
        with file:
            status = os.fstat(file.fileno())
            same = self._file in (None, (status.st_dev, status.st_ino)) and status.st_size >= self.place
            if same and self._before:
                file.seek(self.place - len(self._before))
                same = file.read(len(self._before)) == self._before
            cut = not same
            if cut:
                self._rewind()
            self._file = (status.st_dev, status.st_ino)
            file.seek(self.place)
            data = file.read(most)
            # a line longer than ``most`` is read to its end, but one that never ends is given up at LONGEST
            while b"\n" not in data and len(data) < LONGEST and (more := file.read(most)):
                data += more
        end = data.rfind(b"\n") + 1
        texts = data[:end].split(b"\n")[:-1]
        if not end and len(data) >= LONGEST:
            self.damaged += 1
            end = len(data)
        self.place += end
        self._before = (self._before + data[:end])[-REMEMBER:]
        lines = [line for text in texts if (line := parse_line(text, self.whole)) is not None]
        self.damaged += len(texts) - len(lines)
        return Grown(lines, cut, max(0, status.st_size - self.place) if end else 0)

    def _rewind(self) -> None:
        """Begin again at the start of the file."""
        self.place, self.damaged, self._before = 0, 0, b""


def last_line(file: Path) -> Mapping[str, Any]:
    """Return the last complete line of a JSON-lines file; empty if it has none or cannot be read."""
    try:
        with opened(file) as lines:
            size = lines.seek(0, os.SEEK_END)
            lines.seek(max(0, size - END))
            whole = lines.read().split(b"\n")[:-1]
        line = json.loads(whole[-1])
    except (OSError, ValueError, IndexError, RecursionError):
        return {}
    return line if isinstance(line, dict) else {}
