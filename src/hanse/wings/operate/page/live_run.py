"""One run as the live page shows it, gathered from its directory while it grows.

:class:`LiveRun` follows the files of a run and turns what is new into messages for the hub (``hub.py``). It keeps a
bounded amount: a series of points for each metric (:class:`SparseSeries`), sums for each client
(:class:`Contributors`), and sums of the books (:class:`LiveBooks`). :func:`progress_of` returns a run's progress, also
for the list of runs.

The run itself does not know that it is watched. Its directory may come from a stranger. Texts are therefore cut to a
bounded length, numbers are checked, and nothing that it names is imported.
"""

from __future__ import annotations

import json
import math
import re
import time
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import opened, read_toml, table
from hanse.core.book import LedgerError
from hanse.core.telling import About, matched, read_about
from hanse.learning.metrics import main_of
from hanse.ledger.record import Record
from hanse.ledger.run_ledger import open_ledger
from hanse.ledger.totals import Totals
from hanse.runs.line_tail import LineTail
from hanse.runs.names import client_names, registered
from hanse.runs.recorded_seats import Seat, is_number, is_under_way
from hanse.runs.round_record import METRICS, SEATS

MOST_POINTS = 1024  # points of a series; more than a screen can show


@dataclass
class SparseSeries:
    """Evenly spread observations of a series, at most ``most`` of them, and the last one.

    Every ``stride``-th observation is kept. When they become too many, every second one is dropped and the stride
    doubles. So every point was observed and none is an average. The page's script continues in the same way.

    Attributes:
        most: how many observations are kept.
        stride: one observation out of this many is kept.
        seen: how many observations there were.
        last: the last observation, ``(x, y)``.

    Examples:
        >>> series = SparseSeries(most=4)
        >>> for round in range(10):
        ...     series.add(round, round / 10)
        >>> series.points(), series.stride
        ([(0, 0.0), (4, 0.4), (8, 0.8), (9, 0.9)], 4)
    """

    most: int = MOST_POINTS
    stride: int = 1
    seen: int = 0
    last: tuple[int, float] | None = None
    _x: array[int] = field(default_factory=lambda: array("q"))
    _y: array[float] = field(default_factory=lambda: array("d"))

    def add(self, x: int, y: float) -> None:
        """Add the observation ``y`` of round ``x``. Rounds come in ascending order."""
        if self.seen % self.stride == 0:
            if len(self._x) == self.most:
                self._x, self._y = self._x[::2], self._y[::2]
                self.stride *= 2
            # asked again: the stride may have doubled just now
            if self.seen % self.stride == 0:
                self._x.append(x)
                self._y.append(y)
        self.seen += 1
        self.last = (x, y)

    def points(self) -> list[tuple[int, float]]:
        """Return the observations that are kept, in order, and the last one."""
        found = list(zip(self._x, self._y, strict=True))
        return found if self.last is None or found[-1] == self.last else [*found, self.last]

    def as_json(self) -> dict[str, Any]:
        """Return the state in the form that the page's script expects."""
        return {
            "x": self._x.tolist(), "y": self._y.tolist(), "stride": self.stride, "seen": self.seen, "last": self.last,
        }  # fmt: skip


REFUSALS = 20  # how many of the last refusals are shown


@dataclass
class Contributor:
    """What one client has done so far.

    Attributes:
        worth: the sum of the values of the client's updates.
        valued: how many updates were valued.
        squares: the sum of the values' variances from sampling, which is independent from round to round.
        drawn: the sum of the values' errors from the draw of the validation samples. Every round uses the same samples,
            so errors may add up. Their sum is an upper bound of the error of the client's sum.
        known: how many values came with a standard error.
        trained: the number of seats with a sound update.
        refused: the number of seats whose update was refused.
        last_round: the last round in which the client had a seat. -1: none.
        score: the client's cumulative value as the mechanism keeps it. None: it keeps none.
    """

    worth: float = 0.0
    valued: int = 0
    squares: float = 0.0
    drawn: float = 0.0
    known: int = 0
    trained: int = 0
    refused: int = 0
    last_round: int = -1
    score: float | None = None

    def row(self, client: int) -> list[int | float | None]:
        """Return the client in the form that the page's script expects.

        Returns:
            These items, in order: client id, sum of values (None: never valued), upper bound of its standard error
            (None: not known), the mechanism's score, seats trained, seats refused, last round.
        """
        worth = self.worth if self.valued else None
        error = math.hypot(math.sqrt(self.squares), self.drawn)
        sure = error if self.known and math.isfinite(error) else None
        return [client, worth, sure, self.score, self.trained, self.refused, self.last_round]


@dataclass
class Contributors:
    """All clients that ever had a seat, and what happened last.

    Attributes:
        clients: the contributors by client id.
        refusals: the latest refusals, ``(round, client, reason)``.
        names: the clients' names by id, if the run has names.
        round: the round that was added last. -1: none.
        latest: the seats of the round that was added last: ``[client, value, standard error, reason of a refusal]``.
    """

    clients: dict[int, Contributor] = field(default_factory=dict)
    refusals: deque[tuple[int, int, str]] = field(default_factory=lambda: deque(maxlen=REFUSALS))
    names: dict[int, str] = field(default_factory=dict)
    round: int = -1
    latest: list[list[Any]] = field(default_factory=list)

    def add(self, seat: Seat, under_way: bool) -> None:
        """Add the next seat of ``clients.jsonl``.

        Args:
            seat: the seat.
            under_way: whether the client still trains and its update may join a later round. The seat then counts
                neither as trained nor as refused.
        """
        if seat.round != self.round:
            self.round, self.latest = seat.round, []
        found = self.clients.setdefault(seat.client, Contributor())
        found.last_round = seat.round
        reason, error = None if seat.refused is None else seat.refused[:200], seat.error
        if reason is None:
            found.trained += 1
        elif not under_way:
            found.refused += 1
            self.refusals.append((seat.round, seat.client, reason))
        if seat.value is not None:
            found.worth += seat.value
            found.valued += 1
            known = [e for e in (seat.error, seat.drawn) if e is not None]
            found.squares += (seat.error or 0.0) ** 2
            found.drawn += abs(seat.drawn or 0.0)
            found.known += bool(known)
            error = math.hypot(*known) if known and all(map(math.isfinite, known)) else None
        if seat.score is not None:
            found.score = seat.score
        if seat.name:
            self.names[seat.client] = seat.name[:80]
        self.latest.append([seat.client, seat.value, error, reason])


CHUNK = 1000  # the most transactions that are read at a time


@dataclass
class LiveBooks:
    """A run's books so far.

    Attributes:
        folder: the run directory.
        totals: sums over the transactions that were read.
        trouble: why the books cannot be read. None: they can.
        behind: whether there was more than a single read can take.
    """

    folder: Path
    totals: Totals = field(default_factory=Totals)
    trouble: str | None = None
    behind: bool = False
    _records: Iterator[Record | None] = field(init=False)
    _made: bytes = b""  # what ledger.json said when the totals were begun

    def __post_init__(self) -> None:
        self._records = self._followed()

    def read(self) -> bool:
        """Read the next transactions, at most a thousand, and return whether there were any."""
        try:
            with opened(self.folder / "ledger.json") as blob:
                made = blob.read(1 << 16)
        except OSError:  # a run without payments, or one that is being made anew
            made = b""
        if made != self._made:  # a recreated one is read from its beginning
            self._made, self.totals, self.trouble, self._records = made, Totals(), None, self._followed()
        before, self.behind = self.totals.count, False
        if not made:
            return False
        try:
            for record in islice(self._records, CHUNK):
                if record is None:
                    break
                self.totals.add(record)
            else:
                self.behind = True
            self.trouble = None
        except (UserError, LedgerError) as wrong:  # in a run's first moments the book is named, but nothing is in it
            self.trouble, self._records = str(wrong), self._followed()
        return self.totals.count > before

    def _followed(self) -> Iterator[Record | None]:
        """Yield the book's transactions from where the totals end, and None whenever there are no more yet."""
        ledger = open_ledger(self.folder)
        while True:
            yield from ledger.history(after=self.totals.count)
            yield None


MANY = 100  # with more new rounds in one look the whole state is sent: it is shorter than the changes
FIGURES = 256  # the most metrics of a run that are kept
EDGES = 200  # the most flows of money that are sent for the graph
FRESH_S = 10.0  # seconds since the last round within which a run counts as going on, whatever its pace
# one series for each client would be too many for the page
_BY_CLIENT = re.compile(r"(.+)/client/(\d+)")

Message = dict[str, Any]


def encode(message: Mapping[str, Any]) -> str:
    """Return a message as one line of JSON. NaN and infinities are refused, as no browser reads them."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False)


def progress_of(
    folder: Path, config: Mapping[str, Any], last: Mapping[str, Any], pace_s: float | None, now: float
) -> dict[str, Any]:
    """Return a run's progress, for the head of its page and the list of runs.

    Args:
        folder: the run directory.
        config: the run's ``config.toml``; empty if it cannot be read.
        last: the last line of the run's metrics.
        pace_s: how many seconds a round takes. None: not known.
        now: the time, in seconds since the epoch.

    Returns:
        These items: main metric, mechanism, seed, clients, rounds done and planned, state (:func:`state_of`), and the
        seconds since the last round. None: the files do not say.
    """
    settings = table(config, "run")
    seed, planned = (value if type(value := settings.get(key)) is int else None for key in ("seed", "rounds"))
    rounds = last["round"] + 1 if type(last.get("round")) is int else 0
    try:
        age = max(0.0, now - (folder / METRICS).stat().st_mtime) if rounds else None
    except OSError:
        age = None
    try:
        clients = registered(folder, config)
    except (OSError, UserError):
        clients = None
    main = main_of(table(config, "eval").get("metrics"))
    return {
        "main": {"key": main.key[:80], "title": main.title[:80], "less": main.less_is_better},
        "mechanism": str(table(config, "mechanism").get("name", "?")).rpartition(":")[2][:80],
        "seed": seed,
        "clients": clients,
        "rounds": rounds,
        "planned": planned,
        "state": state_of(rounds, planned, age, pace_s),
        "age_s": None if age is None else round(age, 1),
    }


def state_of(rounds: int, planned: int | None, age_s: float | None, pace_s: float | None) -> str:
    """Return the state of a run in a word.

    Args:
        rounds: rounds done.
        planned: the number of rounds planned. None: not known.
        age_s: the seconds since the last round. None: there was none.
        pace_s: how many seconds a round takes. None: not known.

    Returns:
        "finished", "waiting" (no round yet), "running", or "quiet". The last means no round for longer than five rounds
        take: the run has stopped, or is in a long round.

    Examples:
        >>> [state_of(rounds=3, planned=10, age_s=40.0, pace_s=pace) for pace in (20.0, 2.0)]
        ['running', 'quiet']
    """
    if planned is not None and rounds >= planned:
        return "finished"
    if age_s is None:
        return "waiting"
    return "running" if age_s < max(FRESH_S, 5 * (pace_s or 0.0)) else "quiet"


@dataclass
class _Read:
    """What was read from the two line files. It is discarded if they were cut, for example by a resumed run.

    Attributes:
        metrics: the place in ``metrics.jsonl``.
        clients: the place in ``clients.jsonl``.
        series: the points of each metric.
        seats: the sums of each client.
        utility: each client's worth as the mechanism keeps it, by client id.
        pace: seconds that each of the last 20 rounds took.
        last: the last line of the metrics.
        refused: refused seats by the rounds' own figures, which include clients that were not waited for.
        under_way: seats whose clients still train.
        left: bytes that the last look has left unread.
    """

    metrics: LineTail
    clients: LineTail
    series: dict[str, SparseSeries] = field(default_factory=dict)
    seats: Contributors = field(default_factory=Contributors)
    utility: dict[int, float] = field(default_factory=dict)
    pace: deque[float] = field(default_factory=lambda: deque(maxlen=20))
    last: Mapping[str, Any] = field(default_factory=dict)
    refused: int = 0
    under_way: int = 0
    left: int = 0

    @staticmethod
    def of(folder: Path) -> _Read:
        """Return the state before anything is read."""
        return _Read(LineTail(folder / METRICS, ("round",)), LineTail(folder / SEATS, ("round", "client")))


class LiveRun:
    """Follows a run directory.

    :meth:`look` reads what is new, and returns a message for those who watch. :meth:`whole` returns everything so far,
    for those who come later. Not safe to call from two threads at once.

    Attributes:
        folder: the run directory.
        name: the run's name, for people.

    Examples:
        >>> import hanse
        >>> from hanse.runs.rehearsal import rehearse
        >>> run = hanse.run(rehearse("greedyfed").experiment, out="small", overwrite=True)
        >>> live = LiveRun(Path("small"), "small")
        >>> "whole" in live.look(), live.look()  # something new, and then nothing
        (True, None)
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._read, self._books = _Read.of(folder), LiveBooks(folder)
        self._config: dict[str, Any] = {}
        self._about = About()
        self._unsaid: str | None = None  # why it is not known what the parts say of themselves
        self._called: dict[int, str] = {}  # the names that were sent last
        self._said_state = ""
        self._configure()

    @property
    def behind(self) -> bool:
        """Whether the last call of :meth:`look` has left something unread."""
        return self._read.left > 0 or self._books.behind

    def look(self, budget_s: float = 0.1) -> Message | None:
        """Read what is new, for about ``budget_s`` seconds, and return what changed.

        Returns:
            None if nothing changed. Otherwise a message. Its "whole" says whether the message has everything so far
            (after a cut, or if very much is new) or only the changes.
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
        names = self._names() != self._called
        # the state changes without a new line, too, as when a run becomes quiet
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
        """Return the message with everything so far."""
        read, self._called = self._read, self._names()
        return {
            "whole": True,
            "progress": self._progress(),
            "about": self._told(),
            "series": {key: series.as_json() for key, series in read.series.items()},
            "clients": [found.row(c) for c, found in sorted(read.seats.clients.items())],
            "utility": list(read.utility.items()),
            "names": list((self._called | read.seats.names).items()),
            "books": self._account(whole=True) if self._books.totals.count or self._books.trouble else None,
            **self._recent(),
        }

    # ---- reading

    def _metrics(self, points: dict[str, list[tuple[int, float]]]) -> int:
        """Read new lines of the metrics, add their points to ``points``, and return how many lines there were."""
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
        """Take in one line of the metrics."""
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
                read.series[key] = SparseSeries()
            read.series[key].add(round, value)
            points.setdefault(key, []).append((round, value))
        read.refused += int(line["refused"]) if is_number(line.get("refused")) else 0
        if is_number(line.get("time/round_s")):
            read.pace.append(line["time/round_s"])
        read.last = line

    def _worth_of(self, key: str) -> int | None:
        """Return the client whose worth a metric is, by the parts' descriptions; None if it is another metric."""
        worth = self._about.worth
        stars = None if worth is None else matched(worth.metric, key)
        # the run directory may be a stranger's: a number of any length is not made
        return int(stars[0]) if stars and len(stars[0]) < 8 and stars[0].isdecimal() else None

    def _seats(self, touched: set[int]) -> None:
        """Read new lines of the seats, and add their clients to ``touched``."""
        grown = self._read.clients.read()
        if grown.cut:
            self._begin_again()
            touched.clear()
            return  # the next look reads both files from their beginnings
        for line in grown.lines:
            seat = Seat.of(line)
            under_way = is_under_way(self._config, seat)
            self._read.under_way += under_way
            self._read.seats.add(seat, under_way)
            touched.add(seat.client)
        self._read.left = max(self._read.left, grown.left)

    def _begin_again(self) -> None:
        """Forget what was read: the files were cut or recreated."""
        self._read = _Read.of(self.folder)
        self._configure()

    def _configure(self) -> None:
        """Read the run's settings, and the descriptions of its parts."""
        try:
            self._config = read_toml(self.folder / "config.toml")
        except UserError:  # the page goes on without: it shows what the other files say
            self._config = {}
        try:
            self._about, self._unsaid = read_about(self.folder), None
        except UserError as wrong:
            self._about, self._unsaid = About(), wrong.lines[0]

    def _names(self) -> dict[int, str]:
        """Return the clients' names; participants on a network gave them to themselves."""
        try:
            return {client: name[:80] for client, name in client_names(self.folder).items()}
        except (OSError, UserError):  # numbers do instead of names
            return {}

    # ---- telling

    def _progress(self) -> Message:
        """Return the run's progress, and the other items at the head of its page."""
        read = self._read
        pace = sum(read.pace) / len(read.pace) if read.pace else None
        return {
            "name": self.name,
            **progress_of(self.folder, self._config, read.last, pace, time.time()),
            "pace_s": pace,
            "refused": max(0, read.refused - read.under_way),
            "left": read.left,
            "damaged": read.metrics.damaged + read.clients.damaged,
        }

    def _told(self) -> Message:
        """Return the descriptions of parts and behaviours. They come from the run directory, and the page shows them as
        text.
        """
        said = self._about
        return {
            "sentences": list(said.sentences),
            "charts": [asdict(plot) for part in said.parts for plot in part.telling.charts],
            "kinds": dict(said.kinds),
            "conducts": [
                {"label": c.label, "sentence": c.sentence, "clients": len(c.clients), "cheats": c.cheats}
                for c in said.conducts
            ],
            "worth": None if said.worth is None else {"label": said.worth.label, "sentence": said.worth.sentence},
            "trouble": self._unsaid,
        }

    def _recent(self) -> Message:
        """Return the seats of the last round, and the latest refusals."""
        seats = self._read.seats
        return {
            "latest": {"round": seats.round, "seats": seats.latest},
            "refusals": list(seats.refusals),
        }

    def _account(self, *, whole: bool) -> Message:
        """Return the books: all accounts if ``whole``, else those that changed since the last message."""
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
