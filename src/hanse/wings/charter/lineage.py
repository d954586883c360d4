"""Lineage: which rows of the model table hold a client's updates, round by round, by the records of the run.

A row holds them if its weights (W) take an update of the client, an update that was trained from a row that holds them,
or an old row that holds them. A row that is no weighted sum (a median, say) holds them if one of the updates that it is
made of does, or if the row did before. All of that is recorded.

What a mechanism pulls or tilts towards is not recorded. Where it does that, every update counts as drawn towards any
row that its client may be sent, so that there is a second, larger set of rows: those that *may* hold something.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.files import json_lines, read_arrays
from hanse.base.merkle import Tree
from hanse.core.table import SERVER, Ints
from hanse.reports.digits import stretches
from hanse.runs.round_record import HASH, METRICS, Arrays, lost_rounds, round_file

NEEDED = ("client", "start", "answered", "W_row", "W_column", "W_shape")
NAMES = (*NEEDED, "staleness", "made_row", "made_of", "made_at", "withheld", "home")
HOLDS, MAY = 0, 1  # the rows of a mark: what holds updates, and what may

Marks = NDArray[np.bool_]


@dataclass(frozen=True)
class Lineage:
    """The models that hold a client's updates.

    Attributes:
        lines: a line of JSON for each round, without the newline: its number, the hash of its file in ``rounds/``, how
            many updates of the client came, which rows hold updates after it ("rows"), which others may ("may"), and
            which of both are no weighted sums ("made"). Rows are ranges of numbers, such as "0-3,7".
        holds: ``[K]``, which rows hold updates at the end.
        may: ``[K]``, which others may.
        given: ``[n]``, the other clients that were sent a model that holds updates or may, or start from one.
        first: the first round after which a row holds updates. None: none ever did.
        since: the first round from which on no update of the client came.
    """

    lines: tuple[bytes, ...]
    holds: Marks
    may: Marks
    given: Ints
    first: int | None
    since: int

    @property
    def root(self) -> bytes:
        """The root of the Merkle tree over the lines, 32 bytes."""
        return Tree(self.lines).root()


def lineage(folder: Path, client: int, owner: Ints, rounds: int, steered: bool) -> Lineage:
    """Return the models of a run that hold a client's updates.

    Args:
        folder: the run directory.
        client: the client's number.
        owner: ``[K]``, the owner of each row at the end.
        rounds: only rounds with a lower number count.
        steered: whether training may be drawn towards rows that it does not start from.

    Raises:
        UserError: the record of a round is lost, damaged, or of a version of hanse that did not record this.
    """
    for number, why in lost_rounds(folder).items():
        if number < rounds:
            raise UserError(f"{folder}: round {number}: {why}, so nobody can say which models hold its updates")
    walk, lines, first, since = _Walk(client, owner, steered), list[bytes](), None, 0
    for line in json_lines(folder / METRICS, ("round",)):
        number = int(line["round"])
        if number >= rounds:
            break
        said = walk.after(number, _record(round_file(folder, number)))
        first = number if first is None and said["rows"] else first
        since = number + 1 if said["updates"] else since
        lines.append(json.dumps({"round": number, "file": line[HASH], **said}, separators=(",", ":")).encode())
    given = np.array(sorted(walk.given - {client}), np.int64)
    holds, may = walk.marks
    return Lineage(tuple(lines), holds, may & ~holds, given, first, since)


def _record(file: Path) -> Arrays:
    """Return what is needed of a round's arrays. Raises UserError if they are not there."""
    found = read_arrays(file, NAMES)
    if lost := [name for name in NEEDED if name not in found]:
        raise UserError(f"{file}: has no '{lost[0]}': another version of hanse wrote it, and its lineage is not known")
    return found


class _Walk:
    """The rows that hold updates after the rounds so far."""

    def __init__(self, client: int, owner: Ints, steered: bool) -> None:
        self.client, self.owner, self.steered = client, owner, steered
        self.marks: Marks = np.zeros((2, 0), bool)
        self.given: set[int] = set()
        self.home: Ints = np.zeros(0, np.int64)
        self.asked: dict[tuple[int, int], list[tuple[int, Marks]]] = {}  # by round and client: starts, as they were

    def after(self, number: int, record: Arrays) -> Mapping[str, object]:
        """Go on by a round, and return what its line says."""
        answered = record["answered"]
        size, count = (int(n) for n in record["W_shape"])
        new = count - len(answered) - self.marks.shape[1]  # rows that hold nothing yet
        before = np.concatenate([self.marks, np.zeros((2, new), bool)], axis=1)
        updates = self._updates(number, record, before)
        sources, after = np.concatenate([updates, before], axis=1), np.zeros((2, size), bool)
        for level in (HOLDS, MAY):
            after[level, record["W_row"][sources[level, record["W_column"]]]] = True
        made = record.get("made_row", np.zeros(0, np.int64))
        for at, row in enumerate(made.tolist()):
            of = record["made_of"][record["made_at"] == at]
            after[:, row] = updates[:, of].any(axis=1) | (before[:, row] if row < before.shape[1] else False)
        stay = record.get("withheld", np.zeros(0, np.int64))  # of a row that is new nothing is there: then all stay
        if len(stay) and stay.max() >= before.shape[1]:
            after = before
        else:
            after[:, stay] = before[:, stay]
        self.marks, self.home = after, record.get("home", self.home)
        self.given |= set(np.flatnonzero(after[MAY, self.home]).tolist())
        rows, may = after[HOLDS], after[MAY] & ~after[HOLDS]
        only = np.zeros(after.shape[1], bool)
        only[made[made < after.shape[1]]] = True
        came = int((answered == self.client).sum())
        return {"updates": came, "rows": ranges(rows), "may": ranges(may), "made": ranges(only & after[MAY])}

    def _updates(self, number: int, record: Arrays, before: Marks) -> Marks:
        """Return which updates of a round hold the client's, ``[2, S]``."""
        answered, stale = record["answered"].tolist(), record.get("staleness")
        starts: dict[int, list[tuple[int, Marks]]] = {}
        for c, start in zip(record["client"].tolist(), record["start"].tolist(), strict=True):
            starts.setdefault(c, []).append((start, before[:, start]))
            if before[MAY, start]:
                self.given.add(c)
        if stale is not None:
            self.asked |= {(number, c): seats for c, seats in starts.items()}
        late = [0] * len(answered) if stale is None else stale.tolist()
        came = list(zip(answered, late, strict=True))
        found, many, seen = np.zeros((2, len(answered)), bool), Counter(came), Counter[tuple[int, int]]()
        for s, (c, rounds) in enumerate(came):
            seats = starts.get(c, []) if rounds == 0 else self.asked.get((number - rounds, c), [])
            place = seen[c, rounds]
            seen[c, rounds] += 1
            # which of a client's seats it is shows in their order, unless one of them was refused: then any
            for start, then in seats[place : place + 1] if many[c, rounds] == len(seats) else seats:
                found[:, s] |= then | before[:, start]
            found[:, s] |= c == self.client
            if self.steered:
                reach = np.isin(self.owner[: before.shape[1]], (SERVER, c))
                found[MAY, s] |= before[MAY, reach].any()
        found[MAY] |= found[HOLDS]
        return found


def ranges(rows: Marks) -> str:
    """Return the numbers of the rows that are marked, as ranges.

    Examples:
        >>> ranges(np.array([True, True, True, False, True]))
        '0-2,4'
    """
    found = stretches(np.flatnonzero(rows).tolist())
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in found)
