"""One run as the live page shows it, gathered from its directory while it grows; nothing of the run knows of this."""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import read_toml, table
from hanse.core.about import About, read_about
from hanse.core.telling import matched
from hanse.runs.record import MEMBERS, METRICS, SEATS, LineTail, Seat, is_number, read_members
from hanse.web.books import LiveBooks
from hanse.web.seats import Contributors
from hanse.web.series import Series

__all__ = ["LiveRun", "encode", "state_of"]

MANY = 100  # new rounds in one look: the whole state is shorter than what changed
FIGURES = 256  # metrics of a run; more than that are not kept
EDGES = 200  # of the market's graph
FRESH_S = 10.0  # a run whose files changed as lately as this is going on
_BY_CLIENT = re.compile(r"(.+)/client/(\d+)")

Message = dict[str, Any]


def encode(message: Mapping[str, Any]) -> str:
    """Return a message as one line of JSON that a browser reads (no NaN)."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False)


def state_of(rounds: int, planned: int | None, age_s: float | None, pace_s: float | None) -> str:
    """Return "finished", "running", "quiet" (no round for a while: stopped, or in a long round) or "waiting" (none
    yet), from the rounds done and planned, the age of the last one, and the seconds that a round takes.
    """
    if planned is not None and rounds >= planned:
        return "finished"
    if age_s is None:
        return "waiting"
    return "running" if age_s < max(FRESH_S, 5 * (pace_s or 0.0)) else "quiet"


@dataclass
class _Read:
    """What was read of the line files; thrown away when they were cut."""

    metrics: LineTail
    clients: LineTail
    series: dict[str, Series] = field(default_factory=dict)
    seats: Contributors = field(default_factory=Contributors)
    utility: dict[int, float] = field(default_factory=dict)
    pace: deque[float] = field(default_factory=lambda: deque(maxlen=20))
    last: Mapping[str, Any] = field(default_factory=dict)
    refused: int = 0
    left: int = 0

    @staticmethod
    def of(folder: Path) -> _Read:
        return _Read(LineTail(folder / METRICS, ("round",)), LineTail(folder / SEATS, ("round", "client")))


class LiveRun:
    """Follows a run directory. :meth:`look` reads what is new and returns a message for those who watch, or None;
    :meth:`whole` returns everything so far, for those who come later. Not safe to call from two threads at once.
    """

    def __init__(self, folder: Path, name: str, ledger_url: str | None = None) -> None:
        self.folder, self.name = folder, name
        self._read, self._books = _Read.of(folder), LiveBooks(folder, ledger_url)
        self._config: dict[str, Any] = {}
        self._about = About()
        self._unsaid: str | None = None  # why it is not known what the parts say of themselves
        self._members: tuple[float, dict[int, str]] = (0.0, {})
        self._said_state = ""
        self._configure()

    @property
    def behind(self) -> bool:
        """Whether the last look left something unread."""
        return self._read.left > 0 or self._books.behind

    def close(self) -> None:
        """Close the books."""
        self._books.close()

    def look(self, budget_s: float = 0.1) -> Message | None:
        """Read for about ``budget_s`` seconds and return what changed: None, or a message whose ``whole`` says whether
        it is everything so far (after a cut, or when very much is new) or only the difference.
        """
        until = time.monotonic() + budget_s
        points: dict[str, list[tuple[int, float]]] = {}
        touched: set[int] = set()
        rounds, anew, money = 0, False, False
        while True:
            old = self._read
            rounds += self._metrics(points)
            self._seats(touched)
            anew |= self._read is not old
            trouble = self._books.trouble
            money |= self._books.read() or self._books.trouble != trouble
            if time.monotonic() > until or not self.behind:
                break
        names = self._register()
        state = self._progress()["state"]
        if not (rounds or touched or money or anew or names or state != self._said_state):
            return None
        self._said_state = state
        if anew or names or rounds > MANY:
            return self.whole()
        message: Message = {"whole": False, "progress": self._progress(), "points": points}
        if touched:
            seats = self._read.seats
            message["clients"] = [seats.clients[c].row(c) for c in sorted(touched)]
            message |= self._recent()
        if self._read.utility and rounds:
            message["utility"] = list(self._read.utility.items())
        if money:
            message["books"] = self._account(whole=False)
        return message

    def whole(self) -> Message:
        """Return everything so far."""
        read = self._read
        return {
            "whole": True,
            "progress": self._progress(),
            "about": self._told(),
            "series": {key: series.as_json() for key, series in read.series.items()},
            "clients": [found.row(c) for c, found in sorted(read.seats.clients.items())],
            "utility": list(read.utility.items()),
            "names": list((self._members[1] | read.seats.names).items()),
            "books": self._account(whole=True) if self._books.totals.count or self._books.trouble else None,
            **self._recent(),
        }

    # ---- reading

    def _metrics(self, points: dict[str, list[tuple[int, float]]]) -> int:
        grown = self._read.metrics.read()
        if grown.cut:
            self._begin_again()
            points.clear()
            grown = self._read.metrics.read()
        for line in grown.lines:
            self._metric(line, points)
        self._read.left = grown.left
        return len(grown.lines)

    def _metric(self, line: Mapping[str, Any], points: dict[str, list[tuple[int, float]]]) -> None:
        read, round = self._read, line["round"]
        for key, value in line.items():
            if key == "round" or not is_number(value):
                continue
            client = self._worth_of(key)
            if client is not None:
                read.utility[client] = value
            if client is not None or _BY_CLIENT.fullmatch(key):
                continue
            if key not in read.series:
                if len(read.series) >= FIGURES:
                    continue
                read.series[key] = Series()
            read.series[key].add(round, value)
            points.setdefault(key, []).append((round, value))
        read.refused += int(line["refused"]) if is_number(line.get("refused")) else 0
        if is_number(line.get("time/round_s")):
            read.pace.append(line["time/round_s"])
        read.last = line

    def _worth_of(self, key: str) -> int | None:
        """Return the client whose worth a metric is, by what the run's parts say; None: it is something else."""
        worth = self._about.worth
        stars = None if worth is None else matched(worth.metric, key)
        return int(stars[0]) if stars and len(stars[0]) < 8 and stars[0].isdecimal() else None

    def _seats(self, touched: set[int]) -> None:
        grown = self._read.clients.read()
        if grown.cut:
            self._begin_again()
            touched.clear()
            return  # the next look reads both files from their beginnings
        for line in grown.lines:
            seat = Seat.of(line)
            self._read.seats.add(seat)
            touched.add(seat.client)
        self._read.left = max(self._read.left, grown.left)

    def _begin_again(self) -> None:
        self._read = _Read.of(self.folder)
        self._configure()

    def _configure(self) -> None:
        try:
            self._config = read_toml(self.folder / "config.toml")
        except UserError:  # the page goes on without: it shows what the other files say
            self._config = {}
        try:
            said = read_about(self.folder)
            if said is None:
                from hanse.runs.older import older  # here: the parts take a while to import, and few runs need them

                said = older(self._config, 0, 0)
            self._about, self._unsaid = said, None
        except UserError as wrong:
            self._about, self._unsaid = About(), wrong.lines[0]

    def _register(self) -> bool:
        """Read the names that participants on a network gave themselves; say whether they changed."""
        file = self.folder / MEMBERS
        try:
            stamp = file.stat().st_mtime
            if stamp == self._members[0]:
                return False
            found = {c: str(m["name"])[:80] for c, m in read_members(file).items() if m.get("name")}
        except FileNotFoundError:
            return False
        except (OSError, UserError):  # numbers do instead of names
            stamp, found = self._members[0], {}
        changed = found != self._members[1]
        self._members = (stamp, found)
        return changed

    # ---- telling

    def _progress(self) -> Message:
        read = self._read
        planned = self._section("run").get("rounds")
        planned = planned if type(planned) is int else None
        rounds = int(read.last["round"]) + 1 if read.last else 0
        pace = sum(read.pace) / len(read.pace) if read.pace else None
        try:
            age = max(0.0, time.time() - (self.folder / METRICS).stat().st_mtime) if rounds else None
        except OSError:
            age = None
        return {
            "name": self.name,
            "mechanism": str(self._section("mechanism").get("name", "?")).rpartition(":")[2][:80],
            "seed": _whole_number(self._section("run").get("seed")),
            "registered": _whole_number(self._section("data").get("clients")),
            "rounds": rounds,
            "planned": planned,
            "state": state_of(rounds, planned, age, pace),
            "age_s": None if age is None else round(age, 1),
            "pace_s": pace,
            "refused": read.refused,
            "left": read.left,
            "damaged": read.metrics.damaged + read.clients.damaged,
        }

    def _told(self) -> Message:
        """Return what parts and behaviours say of themselves, as the run's directory has it: anybody's words."""
        said = self._about
        charts = [plot for part in said.parts for plot in part.telling.charts]
        return {
            "sentences": list(said.sentences),
            "charts": [
                {"title": p.title, "metric": p.metric, "unit": p.unit, "line": p.line, "caption": p.caption,
                 "factor": p.factor}
                for p in charts
            ],
            "kinds": dict(said.kinds),
            "conducts": [
                {"label": c.label, "sentence": c.sentence, "clients": len(c.clients), "cheats": c.cheats}
                for c in said.conducts
            ],
            "worth": None if said.worth is None else {"label": said.worth.label, "sentence": said.worth.sentence},
            "trouble": self._unsaid,
        }  # fmt: skip

    def _section(self, name: str) -> Mapping[str, Any]:
        return table(self._config, name)

    def _recent(self) -> Message:
        seats = self._read.seats
        return {
            "latest": {"round": seats.round, "seats": seats.latest},
            "refusals": list(seats.refusals),
        }

    def _account(self, *, whole: bool) -> Message:
        totals = self._books.totals
        accounts = sorted(totals.balances.keys() | totals.traded.keys()) if whole else sorted(totals.moved)
        totals.moved.clear()
        return {
            "accounts": totals.rows(accounts),
            "flows": totals.biggest(EDGES),
            "pairs": len(totals.flows),
            "kinds": dict(totals.kinds),
            "count": totals.count,
            "round": totals.round,
            "trouble": self._books.trouble,
        }


def _whole_number(value: object) -> int | None:
    return value if type(value) is int else None
