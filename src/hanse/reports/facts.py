"""The facts of runs: tables of numbers with units and errors, and notes on what a reader must know (:func:`facts`).

Every page, statement, invoice and answer is a template over these. A number is computed here once, and a sentence
stands once, by its note's code (:mod:`hanse.reports.words`).
"""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from hanse.base.errors import UserError, in_python
from hanse.base.files import table, write_csv
from hanse.core.entry import TOKEN
from hanse.flower.leave import place_of
from hanse.flower.members import LEAVES, Orders
from hanse.games.jackknife import SURE, t_quantile
from hanse.learning.metrics import MetricStyle
from hanse.ledger.accounts import Account
from hanse.reports.chart import Floats
from hanse.reports.contributions import Contribution, contribution, gained
from hanse.reports.digits import number
from hanse.reports.fits import Fit, finite_or_none, fits_of, side_of, surely
from hanse.reports.groups import SeedGroup, honest_of
from hanse.reports.harm import harms_of
from hanse.reports.money import read_books
from hanse.reports.showing import frame
from hanse.reports.text_table import TextTable
from hanse.reports.words import Level, Note
from hanse.runs.chance import STILL, is_number, nothing_left, used_up
from hanse.runs.run_record import RunRecord, Seat, load_run

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 2  # of the JSON; it grows when a column is renamed or changes its meaning
_MOST_LOST = 5  # rounds with a note each
_MOST_REASONS = 5  # for which updates were refused, the most frequent ones
_MISSED = 0.25  # of what the rounds changed: in honest runs path values miss up to .01 of it
BY_LEAVE = "by hanse leave"
VERY_FEW = 30  # test units: with fewer, a difference in one run is no ground for a decision

MISSING = ("lost_round", "more_lost", "beyond_the_book", "no_values")  # notes on what is missing in the records

VALUED_OTHERWISE = ("not_averages", "truncated_between")  # notes on rounds that were valued as what they were not

Answer = Literal["yes", "no", "even", "unknown"]
Status = Literal["active", "expelled", "refused", "sat out", "left", "never asked"]


def _in(unit: str) -> Any:
    """Return a column that is not known unless it is given, with its unit."""
    return field(default=None, metadata={"unit": unit})


@dataclass(frozen=True, kw_only=True)
class ClientFacts:
    """What a run did for one client, and the client for the run. None: not known, or there is no such thing in the run.

    Attributes:
        run: the run's name.
        client: the client's number.
        name: its name, or else its number.
        unit: what is drawn anew, and counted as one: "row", or the group that the experiment names.
        units: how many test units the client has.
        test_rows: how many test rows these are.
        samples: how many training samples its updates were made from, by its last update.
        honest: whether the experiment makes it cheat (False), or not.
        asked: in how many rounds it was asked to train.
        answered: in how many rounds one of its updates was accepted. It may have several seats in a round.
        late: how many of its updates were accepted after their round.
        latest: by how many rounds the latest of these was late.
        under_way: whether its last update had not arrived at the end.
        status: "active"; "expelled" by the operator; "refused", if each of its updates was; "sat out", if its privacy
            budget was used up at the end; "left", by ``hanse leave``, by its own policy or, in a simulation, by not
            being there in the last round; or "never asked".
        since: the round from which on it has this status, if that is not "active": so many rounds were played before.
            Who has left or was expelled is asked nothing from it on.
        why: the reason for it.
        updates: how many of its updates were valued.
        value: the sum of their values.
        value_error: its standard error, from the sampling of coalitions and the draw of the validation samples.
        sampling: the part of that error from the sampling of coalitions. Those of `mixture` and `gtg` are bounds, with
            Student's factor for what each round draws.
        drawn: its part from the draw of the validation samples.
        value_low: the lower end of the value's 95 % interval, more than 1.96 errors below it where few units, or
            blocks of units, are drawn (Student's t). None also if only one of the errors is known.
        value_high: the upper end.
        exact: whether the value is exact on the validation samples, and nothing is known of other samples.
        share: its part of the sums of all clients with a sum above zero, 0 to 1.
        share_low: the lower end of the share's 95 % interval.
        share_high: the upper end.
        place: its place among the clients with more than one valued update. 1 is the highest sum.
        place_low: the best place that it may have: 1, and one more for each client whose sum is surely higher.
        place_high: the worst: all clients that have a place, less one for each whose sum is surely lower.
        missed: by how much the averages would be worse without its updates, summed over the rounds: below 0 they would
            be better (leave-one-out in averages, to first order: :func:`hanse.reports.contributions.missed`).
        missed_low: the lower end of its 95 % interval for the draw of the validation samples.
        missed_high: the upper end.
        suspect: whether its updates clearly did harm on the validation samples: several were valued, and the sum's
            interval is below zero, or that of ``missed`` is below -5 % of the loss's fall, beyond what fewer steps
            explain. It is no proof: only training without the client shows it.
        without: by how much the others do better without it, by training anew without it (``hanse report --retrain``):
            above 0 they do. The unit is that of the run's utility.
        without_low: the lower end of its 95 % interval, for other starts and other validation samples.
        without_high: the upper end.
        starts: how many pairs of trainings that is from.
        harmful: whether the whole interval is above 2 % of what training gains, over at least five starts, and
            the gain is not of few classes alone.
        granted: what the mint gave it, less what of that it lost when it left.
        received: what it received besides.
        paid: what it paid.
        balance: what is on its account at the end.
        escrow: what is in its escrow at the end.
        utility: a market's worth to it by the market's formula, in tokens (iPFL eq. 1).
        metric: the metric of the following.
        joined: its model's, on its own test units.
        joined_low: the lower end of the 95 % interval of ``joined``.
        joined_high: the upper end.
        alone: that of a model that it trains alone.
        gain: by how much joining is better (above 0) or worse, whether more of the metric is better or less.
        gain_low: the lower end of the gain's 95 % interval.
        gain_high: the upper end.
        paid_to_join: "yes" if the gain is above zero over its whole interval, "no" if it is below, "even" if the
            numbers show no difference, "unknown" if there is nothing to compare.
        epsilon: how much of its privacy budget it has spent, as it says.
        budget: how much it may spend.
        delta: the delta for which both are meant.
    """

    run: str
    client: int
    name: str
    unit: str
    units: int | None = _in("units")
    test_rows: int | None = _in("rows")
    samples: int | None = _in("samples")
    honest: bool = True
    asked: int = 0
    answered: int = 0
    late: int = 0
    latest: int = 0
    under_way: bool = False
    status: Status = "active"
    since: int | None = _in("round")
    why: str = ""
    updates: int = 0
    value: float | None = _in("utility")
    value_error: float | None = _in("utility")
    sampling: float | None = _in("utility")
    drawn: float | None = _in("utility")
    value_low: float | None = _in("utility")
    value_high: float | None = _in("utility")
    exact: bool = False
    share: float | None = _in("share")
    share_low: float | None = _in("share")
    share_high: float | None = _in("share")
    place: int | None = None
    place_low: int | None = None
    place_high: int | None = None
    missed: float | None = _in("utility")
    missed_low: float | None = _in("utility")
    missed_high: float | None = _in("utility")
    suspect: bool = False
    without: float | None = _in("utility")
    without_low: float | None = _in("utility")
    without_high: float | None = _in("utility")
    starts: int = 0
    harmful: bool = False
    granted: int | None = _in("millionths of a token")
    received: int | None = _in("millionths of a token")
    paid: int | None = _in("millionths of a token")
    balance: int | None = _in("millionths of a token")
    escrow: int | None = _in("millionths of a token")
    utility: float | None = _in("tokens")
    metric: str = ""
    joined: float | None = _in("metric")
    joined_low: float | None = _in("metric")
    joined_high: float | None = _in("metric")
    alone: float | None = _in("metric")
    gain: float | None = _in("metric")
    gain_low: float | None = _in("metric")
    gain_high: float | None = _in("metric")
    paid_to_join: Answer = "unknown"
    epsilon: float | None = None
    budget: float | None = None
    delta: float | None = None

    @property
    def net(self) -> int:
        """What taking part brought or cost, in units: what was received less what was paid, without the grant."""
        return (self.received or 0) - (self.paid or 0)

    @property
    def beyond(self) -> float | None:
        """What it gained besides its model, in tokens: by the market's formula, or else :attr:`net`; None: nobody pays.

        It is exact to a millionth, so that a sum of rounding errors is no gain.
        """
        if self.utility is not None:
            return round(self.utility, 6)
        return None if self.balance is None else self.net / TOKEN

    @property
    def holds(self) -> int:
        """What account and escrow hold together at the end, in units."""
        return (self.balance or 0) + (self.escrow or 0)


@dataclass(frozen=True, kw_only=True)
class RoundFacts:
    """One round of a run. None: not recorded.

    Attributes:
        run: the run's name.
        round: the round's number, from 0.
        asked: how many seats were asked to train.
        answered: how many updates were accepted.
        refused: how many were refused, or were late.
        value: the sum of the updates' values.
        gap: why the round has no values; "" if it has, or nobody is valued.
        test: the main metric on the server's test set.
        loss: the loss there.
        own: the main metric on the clients' own test units, as the mean over those that tested.
        seconds: what the round took.
        megabytes: what it sent both ways, in 10^6 bytes.
    """

    run: str
    round: int
    asked: int | None = _in("updates")
    answered: int | None = _in("updates")
    refused: int | None = _in("updates")
    value: float | None = _in("utility")
    gap: str = ""
    test: float | None = _in("metric")
    loss: float | None = _in("loss")
    own: float | None = _in("metric")
    seconds: float | None = _in("seconds")
    megabytes: float | None = _in("MB")


def answer_of(reading: MetricStyle, gain: float | None, low: float | None, high: float | None) -> Answer:
    """Return whether joining paid a client, by its gain and the ends of its 95 % interval."""
    side = side_of(reading, gain, low, high)
    return "unknown" if side is None else "yes" if side > 0 else "no" if side < 0 else "even"


def paid_to_join(clients: Sequence[ClientFacts], freedom: float = math.inf) -> list[Answer]:
    """Return each client's answer. With 95 % none of these is wrong that is "yes" or "no"; each row alone says so of
    its own client only (:func:`hanse.reports.fits.surely`).

    Args:
        clients: the rows.
        freedom: degrees of freedom of Student's t by which the intervals were made.
    """
    ends = np.array([(row.gain, row.gain_low, row.gain_high) for row in clients], np.float64).tolist()  # None: NaN
    together = surely(ends, freedom)
    return [row.paid_to_join if one or row.gain is None else "even" for row, one in zip(clients, together, strict=True)]


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run as a whole. None: not known.

    Attributes:
        run: the run's name.
        mechanism: the mechanism's name.
        seed: the seed of the run.
        split: the seed of the split.
        rounds: how many rounds were played.
        planned: how many were planned.
        ended: why it ended before its last round; "" if it did not.
        clients: how many clients it has.
        honest: how many of these the experiment does not make cheat.
        unit: what is drawn anew, and counted as one.
        metric: the main metric.
        test: the main metric on the server's test set after the last test.
        own: the honest clients' mean of it on their own test units, each by its last test.
        gain: their mean gain from joining.
        gain_low: the lower end of its 95 % interval over the clients, by Student's t.
        gain_high: the upper end.
        yes: for how many honest clients joining paid.
        no: for how many it did not.
        even: for how many that is open.
        unknown: for how many there is nothing to compare.
        measure: what one value is.
        value: the sum of all values.
        fall: by how much the validation loss fell, if the values are parts of this fall.
        refused: how many updates were refused, without those that were only late.
    """

    run: str
    mechanism: str
    seed: Any
    split: Any
    rounds: int
    planned: int
    ended: str = ""
    clients: int = 0
    honest: int = 0
    unit: str = "row"
    metric: str = ""
    test: float | None = _in("metric")
    own: float | None = _in("metric")
    gain: float | None = _in("metric")
    gain_low: float | None = _in("metric")
    gain_high: float | None = _in("metric")
    yes: int = 0
    no: int = 0
    even: int = 0
    unknown: int = 0
    measure: str = ""
    value: float | None = _in("utility")
    fall: float | None = _in("utility")
    refused: int | None = _in("updates")


Row = ClientFacts | RoundFacts | RunFacts | Note
KINDS: Mapping[str, type[Row]] = {"runs": RunFacts, "clients": ClientFacts, "rounds": RoundFacts, "notes": Note}


@dataclass(frozen=True, repr=False)
class Facts:
    """The facts of runs, as four tables.

    Attributes:
        runs: a row for each run.
        clients: a row for each client of each run.
        rounds: a row for each round of each run.
        notes: what a reader must know, the doubts first. Each says of which run it is.
    """

    runs: tuple[RunFacts, ...]
    clients: tuple[ClientFacts, ...]
    rounds: tuple[RoundFacts, ...]
    notes: tuple[Note, ...]

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {len(self.table(name))}" for name in KINDS)
        return f"<facts: {counts}: .to_pandas('clients'), .to_markdown(), .to_json()>"

    def table(self, name: str = "clients") -> tuple[Row, ...]:
        """Return the rows of "runs", "clients", "rounds" or "notes". Raises UserError for another name."""
        if name not in KINDS:
            raise UserError(f"table: {name!r}: must be one of {', '.join(KINDS)}")
        return tuple(getattr(self, name))

    def _rows(self, name: str) -> list[dict[str, Any]]:
        """Return a table as plain values; a note also has its sentence."""
        return [asdict(row) | ({"said": row.said} if isinstance(row, Note) else {}) for row in self.table(name)]

    def units(self, name: str = "clients") -> dict[str, str]:
        """Return the unit of each column of a table that has one."""
        self.table(name)
        return {column.name: unit for column in fields(KINDS[name]) if (unit := column.metadata.get("unit"))}

    def to_pandas(self, name: str = "clients") -> pd.DataFrame:
        """Return a table as a DataFrame. Raises UserError if pandas is not installed."""
        return frame(self._rows(name))

    def to_json(self) -> str:
        """Return everything as JSON: the schema's version, the units of the columns, and the tables."""
        tables = {name: self._rows(name) for name in KINDS}
        units = {name: found for name in KINDS if (found := self.units(name))}
        return json.dumps({"schema": SCHEMA, "units": units, **tables}, indent=1, allow_nan=False)

    def to_csv(self, name: str = "clients") -> str:
        """Return a table as CSV, with all columns and all digits."""
        out, rows = io.StringIO(), self._rows(name)
        head = [*rows[0]] if rows else [column.name for column in fields(KINDS[name])]
        write_csv(out, [head, *(list(row.values()) for row in rows)])
        return out.getvalue()

    def to_markdown(self, name: str = "clients") -> str:
        """Return a table in Markdown, without its empty columns; a sentence if it has no rows."""
        return self._texts(name).markdown() if self.table(name) else f"There are no {name}.\n"

    def to_latex(self, name: str = "clients") -> str:
        """Return a table as a ``tabular`` of LaTeX, with rules of booktabs and without its empty columns; a sentence if
        it has no rows.
        """
        return self._texts(name).latex() if self.table(name) else f"There are no {name}.\n"

    def _texts(self, name: str) -> TextTable:
        """Return a table as texts, without the columns that are empty everywhere."""
        rows, units = self._rows(name), self.units(name)
        kept = [key for key in rows[0] if any(row[key] not in (None, "", ()) for row in rows)]
        head = (f"{key} ({units[key]})" if key in units else key for key in kept)
        return TextTable(tuple(head), tuple(tuple(_cell(row[key]) for key in kept) for row in rows))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return number(value, 4)
    return "–" if value is None else ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


@in_python()
def facts(*runs: str | Path | RunRecord | Any, alone: RunRecord | None = None) -> Facts:
    """Return the facts of runs.

    Args:
        runs: run directories, or what :func:`hanse.run` and :func:`hanse.load` return.
        alone: a run of the same clients alone, to compare with. None: one in the run's folder ``alone``, or next to it.

    Raises:
        UserError: a directory holds no run or a damaged one.

    Examples:
        >>> import hanse
        >>> experiment = hanse.Experiment(data={"clients": 3}, model="logistic", mechanism="fedavg", run={"rounds": 2})
        >>> found = facts(hanse.run(experiment, value=True))
        >>> [row.updates for row in found.clients], found.runs[0].rounds
        ([2, 2, 2], 2)
    """
    if not runs:
        raise UserError("facts: no run was given")
    found = [facts_of(_record(one), alone) for one in runs]
    notes = sorted((note for one in found for note in one.notes), key=lambda note: note.level != "doubt")
    return Facts(
        tuple(one.whole for one in found),
        tuple(row for one in found for row in one.clients),
        tuple(row for one in found for row in one.rounds),
        tuple(notes),
    )


def _record(run: Any) -> RunRecord:
    """Return the record of a run that was given as one, as a result of :func:`hanse.run`, or as a directory."""
    found = run if isinstance(run, RunRecord) else getattr(run, "record", None)
    if isinstance(found, RunRecord):
        return found
    if not isinstance(run, str | Path):
        raise UserError(f"facts: {run!r:.80}: must be a run directory, or what hanse.run or hanse.load returns")
    return load_run(run)


def facts_of(run: RunRecord, alone: RunRecord | None = None) -> RunOf:
    """Return the facts of one run, which are made when they are first asked for, and once for each record.

    Args:
        run: the run.
        alone: a run of the same clients alone; None as for :func:`facts`.
    """
    return _made(run, alone)


@lru_cache(maxsize=256)
def _made(run: RunRecord, alone: RunRecord | None) -> RunOf:
    return RunOf(run, alone)


@dataclass(frozen=True, eq=False)
class RunOf:
    """The facts of one run, with the objects that they are taken from.

    Attributes:
        record: the run as it was read.
        alone: the run of single clients that was given.
    """

    record: RunRecord
    alone: RunRecord | None = None

    @cached_property
    def fits(self) -> Mapping[int, Fit]:
        """How good each client's model is."""
        return fits_of(self.record, self.alone)

    @cached_property
    def divisible(self) -> tuple[str, ...]:
        """By what an invoice can split a total: "value", "balance" or "earned", the usual first; empty: by nothing."""
        if self.record.about.doubt:
            return ()
        members = table(table(self.record.config, "clients"), "members")
        joined = len(set(members.values())) < len(members)  # a charter names each member, also one of a single client
        booked = self.record.has("ledger.json")
        able = ("value",) * (self.valued is not None and self.valued.measure.share_out and not joined)
        return able + ("balance",) * (booked and not joined) + ("earned",) * booked

    @cached_property
    def unit(self) -> str:
        """What is drawn anew: a row, the group that the experiment names, or one that a schema or the data name."""
        group = table(table(self.record.config, "data"), "source").get("group")
        if isinstance(group, str) and group not in ("", "none"):
            return group
        return "row" if all(fit.units is None for fit in self.fits.values()) else "unit"

    @cached_property
    def valued(self) -> Contribution | None:
        """What the clients' updates were worth; None if nobody's were valued."""
        return contribution(SeedGroup(self.record.mechanism, (self.record,)))

    @cached_property
    def clients(self) -> tuple[ClientFacts, ...]:
        """A row for each client."""
        run, honest = self.record, honest_of(self.record)
        columns = [self._worth(), _without(run), self._money(), _privacy(run), _taking_part(run)]
        rows = []
        for client in range(run.num_clients):
            fit = self.fits[client]
            low, high = fit.interval or (None, None)
            gain, gain_low, gain_high = fit.gain
            own = {key: value for column in columns for key, value in column.get(client, {}).items()}
            rows.append(
                ClientFacts(
                    run=run.name,
                    client=client,
                    name=run.client_label(client),
                    unit=self.unit,
                    units=fit.counted,
                    test_rows=fit.samples,
                    honest=honest is None or client in honest,
                    metric=fit.reading.key,
                    joined=fit.last,
                    joined_low=low,
                    joined_high=high,
                    alone=fit.alone,
                    gain=gain,
                    gain_low=gain_low,
                    gain_high=gain_high,
                    paid_to_join=answer_of(fit.reading, *fit.gain),
                    **own,
                )
            )
        return tuple(rows)

    def _worth(self) -> dict[int, dict[str, Any]]:
        """Return the columns on what updates were worth, by client; nothing for clients without a valued update."""
        found = self.valued
        if found is None:
            return {}
        ranked, between = found.ranked, found.between()
        part = found.parts() if found.measure.share_out else np.full(len(found.clients), np.nan)
        # an infinite sampling error means that it is not known; the other error alone would be taken for all of it
        drawn = np.where(np.isinf(found.sampling), np.nan, found.drawn)
        sure, half = np.isfinite(found.errors) & np.isfinite(drawn), SURE * found.errors
        lone, lone_half = found.missed, SURE * found.missed_errors
        rows, suspect = {}, found.suspect
        for i, client in enumerate(found.clients.tolist()):
            value = float(found.totals[i])
            ends = between[i].tolist() if sure[i] and found.uncertain and np.isfinite(part[i]) else (None, None)
            placed = client in ranked.clients
            reach = ranked.reach(client) if placed and ranked.known else (None, None)
            rows[client] = {
                "updates": int(found.seats[i]),
                "value": value,
                "value_error": finite_or_none(found.standard_errors[i]),
                "sampling": finite_or_none(found.sampling[i]),
                "drawn": finite_or_none(drawn[i]),
                "value_low": value - float(half[i]) if sure[i] else None,
                "value_high": value + float(half[i]) if sure[i] else None,
                "exact": bool(found.errors[i] == 0 and np.isnan(drawn[i])),
                "share": finite_or_none(np.maximum(part[i], 0.0)),
                "share_low": ends[0],
                "share_high": ends[1],
                "place": ranked.place(client) if placed else None,
                "place_low": reach[0],
                "place_high": reach[1],
                "missed": finite_or_none(lone[i]),
                "missed_low": finite_or_none(lone[i] - lone_half[i]),
                "missed_high": finite_or_none(lone[i] + lone_half[i]),
                "suspect": bool(suspect[i]),
            }
        return rows

    def _money(self) -> dict[int, dict[str, Any]]:
        """Return the columns on tokens, by client; none on books that do not hold, of which a doubt says so."""
        utility = utilities(self.record)
        books = None if self.record.wrong_in_books else read_books(self.record)
        rows = {}
        for client in range(self.record.num_clients):
            own = {} if books is None else books.accounts.get(client, Account()).totals
            rows[client] = own | ({} if utility is None else {"utility": float(utility[client])})
        return rows

    @cached_property
    def rounds(self) -> tuple[RoundFacts, ...]:
        """A row for each round."""
        run, key = self.record, self.record.main.key
        names = {"asked": "seats", "answered": "answered", "refused": "refused", "value": "value/sum",
                 "test": f"test/{key}", "loss": "test/loss", "own": f"client/test_{key}",
                 "seconds": "time/round_s"}  # fmt: skip
        rows = []
        for line in run.metrics:
            given = {name: line[of] for name, of in names.items() if is_number(line.get(of))}
            sent = [line[of] for of in ("bytes/down", "bytes/up") if is_number(line.get(of))]
            gap = line.get("gap")
            rows.append(
                RoundFacts(
                    run=run.name, round=int(line["round"]), gap=gap if isinstance(gap, str) else "",
                    megabytes=sum(sent) / 1e6 if sent else None, **given,
                )
            )  # fmt: skip
        return tuple(rows)

    @cached_property
    def whole(self) -> RunFacts:
        """The row of the run."""
        run, found = self.record, self.valued
        honest = [row for row in self.clients if row.honest]
        counts = Counter(paid_to_join(honest))
        gain, low, high = mean_interval([row.gain for row in honest if row.gain is not None])
        own = [row.joined for row in honest if row.joined is not None]
        tested = run.series(f"test/{run.main.key}")[1]
        return RunFacts(
            run=run.name,
            mechanism=run.mechanism,
            seed=run.seeds[0],
            split=run.seeds[1],
            rounds=len(run.metrics),
            planned=run.rounds_planned if run.unfinished else len(run.metrics),
            ended=run.ended_early or "",
            clients=run.num_clients,
            honest=len(honest),
            unit=self.unit,
            metric=honest[0].metric if honest else run.main.key,
            test=float(tested[-1]) if len(tested) else None,
            own=float(np.mean(own)) if own else None,
            gain=gain,
            gain_low=low,
            gain_high=high,
            **{answer: counts[answer] for answer in get_args(Answer)},
            measure="" if found is None else found.measure.name,
            value=None if found is None else float(found.totals.sum()),
            fall=gained(run),
            refused=run.num_refused,
        )

    @cached_property
    def notes(self) -> tuple[Note, ...]:
        """What a reader must know, the doubts first."""
        run, found = self.record, list[Note]()

        def add(code: str, level: Level, **fields: Any) -> None:
            found.append(Note(code, level, {"run": run.name, **fields}))

        for code, what in run.coded_doubts:
            add(code, "doubt", **what)
        for line in run.about.notes:  # None: of nobody alone
            owner = next((row.client for row in self.clients if f"client '{row.name}'" in line), None)
            add("data", "warning", said=line, client=owner)
        for round, why in [*run.lost.items()][:_MOST_LOST]:
            add("lost_round", "warning", round=round, why=why)
        if len(run.lost) > _MOST_LOST:
            add("more_lost", "warning", more=len(run.lost) - _MOST_LOST)
        if run.beyond:
            add("beyond_the_book", "warning", said=run.beyond)
        for why, rounds in run.gaps.items():
            add("no_values", "warning", rounds=list(rounds), of=len(run.metrics), why=why)
        valued = {seat.round for seat in run.clients if seat.value is not None}
        mixed = [seat for seat in run.clients if seat.refused is None and seat.round in valued]
        if lacking := [seat.client for seat in mixed if seat.value is None]:
            add("unvalued", "warning", updates=len(lacking), of=len(mixed), clients=len({*lacking}))
        gain, rest, carried = (
            float(np.abs(run.series(f"value/{of}")[1]).sum()) for of in ("gain", "residual", "carried")
        )
        if gain and rest - carried > _MISSED * gain:
            add("values_apart", "doubt", share=(rest - carried) / gain)
        cut, orders = (float(run.series(f"value/{of}")[1].sum()) for of in ("cut_short", "permutations"))
        if cut > 0:
            add("cut_short", "warning", cut=int(cut), orders=int(orders))
        for code in VALUED_OTHERWISE:
            if many := sum(bool(line.get(f"value/{code}")) for line in run.metrics):
                add(code, "warning", rounds=many, of=len(run.metrics))
        if run.unfinished:
            add("unfinished", "warning", rounds=len(run.metrics), planned=run.rounds_planned)
        elif run.ended_early is not None:
            add("ended_early", "note", rounds=len(run.metrics), planned=run.rounds_planned, why=run.ended_early)
        if run.under_way:
            asked = sum(not seat.staleness for seat in run.clients)
            add("late", "note", late=len(run.under_way), asked=asked, joined=len(run.clients) - asked)
        if refused := Counter(why for _, _, why in run.refusals()).most_common(_MOST_REASONS):
            add("refusals", "note", reasons=dict(refused))
        if run.minted:
            add("minted", "warning", units=run.minted)
        if full := nothing_left(run.metrics):
            add("nothing_left", "warning", accuracy=full)
        for row in self.clients:
            who = {"client": row.client, "name": row.name}
            if row.units is not None and row.units < VERY_FEW and row.paid_to_join in ("yes", "no"):
                add("few_units", "warning", **who, units=row.units)
            if row.status in ("expelled", "refused", "sat out"):
                add(row.status.replace(" ", "_"), "warning", **who, since=row.since, why=row.why)
            elif row.status == "left":
                add("left", "note", **who, since=row.since, why=row.why)
            if row.harmful:
                add("harmful", "warning", **who, more=row.without, low=row.without_low, high=row.without_high,
                    starts=row.starts)  # fmt: skip
            elif row.suspect and row.without is None:
                averages = row.value_high is None or row.value_high >= 0
                add(
                    "suspect", "warning", **who, averages=averages, high=row.missed_high if averages else row.value_high
                )
        # why tests or models alone are not known, one note for each kind of reason, or each client that lacks a metric
        reasons = dict[str, Note]()
        for client, fit in self.fits.items():
            if fit.why is not None and fit.why.code == "no_metric":
                add("no_metric", "note", client=client, name=self.clients[client].name, **fit.why.fields)
            elif fit.why is not None:
                reasons.setdefault(fit.why.code, fit.why)
        found += [replace(why, fields={"run": run.name, **why.fields}) for why in reasons.values()]
        return tuple(found)


def _without(run: RunRecord) -> dict[int, dict[str, Any]]:
    """Return the columns on training anew without a client, by client; nothing for those that were never left out."""
    names = {"without": "mean", "without_low": "low", "without_high": "high", "starts": "starts", "harmful": "harmful"}
    return {who: {name: getattr(one, of) for name, of in names.items()} for who, one in harms_of(run).items()}


def _privacy(run: RunRecord) -> dict[int, dict[str, Any]]:
    """Return what each client has spent of its privacy budget, as it says."""
    return {
        seat.client: {"epsilon": seat.epsilon, "budget": seat.budget, "delta": seat.delta}
        for seat in run.clients
        if seat.epsilon is not None
    }


def _taking_part(run: RunRecord) -> dict[int, dict[str, Any]]:
    """Return how often each client took part, and whether it still does."""
    end = int(run.metrics[-1]["round"])
    there = None if run.members else _listed(run, end, "present")  # a member's node may be away for a round
    rounds = [int(line["round"]) for line in run.metrics if line.get("left")]
    resigned = {client: round for round in rounds for client in _listed(run, round, "leaving") or ()}
    expelled = {} if run.path is None else Orders.read(run.path).expelled
    gone = used_up((s.client, s.round, s.refused) for s in run.clients)
    left, absent = run.sums.left, set() if there is None else set(range(run.num_clients)) - there
    until = there_until(run, absent | (expelled.keys() & range(run.num_clients)))
    seats: dict[int, list[Seat]] = {client: [] for client in range(run.num_clients)}
    for seat in run.clients:
        seats[seat.client].append(seat)
    rows = {}
    for client, mine in seats.items():
        taken = [seat for seat in mine if seat.refused is None]
        asked, late = len({seat.round - seat.staleness for seat in mine}), [seat.staleness for seat in taken]
        status: Status = "active" if taken or run.in_app else "refused" if mine else "never asked"
        since, why = None, ""
        signed = expelled.get(client) == LEAVES and place_of(run.folder, client, "-signed.txt").exists()
        if client in left or signed:
            # what is settled behind the last round is dated later; on a network it was asked nothing before
            status, since, why = "left", until[client] if client in expelled else min(left[client], end + 1), BY_LEAVE
        elif client in resigned:
            status, since, why = "left", resigned[client], "by its own policy"
        elif client in expelled:
            status, since, why = "expelled", until[client], expelled[client]
        elif client in gone:
            status, since, why = "sat out", gone[client], "its privacy budget is used up"
        # who still trains has not left, and who has not come yet was never asked
        elif client in absent and mine and mine[-1].refused != STILL:
            status, since, why = "left", until[client], "being there no more"
        elif status == "refused":
            why = Counter(seat.refused for seat in mine).most_common(1)[0][0] or ""
        rows[client] = {
            "asked": asked, "answered": len({seat.round for seat in taken}), "late": sum(map(bool, late)),
            "latest": max(late, default=0), "under_way": bool(mine) and (mine[-1].round, client) in run.under_way,
            "samples": taken[-1].samples if taken else None, "status": status, "since": since, "why": why,
        }  # fmt: skip
    return rows


def there_until(run: RunRecord, clients: Collection[int]) -> dict[int, int]:
    """Return for each of these clients the first round of a run from which on it was there no more, so that it was
    asked nothing: how many rounds were played before it had left.
    """
    found, seats = dict[int, int](), {(seat.round, seat.client) for seat in run.clients}
    for line in reversed(run.metrics):
        round, due = int(line["round"]), set(clients) - found.keys()
        there = _listed(run, round, "present") if due else None  # not recorded where everybody was there
        found |= {client: round + 1 for client in due if there is None or client in there or (round, client) in seats}
    return dict.fromkeys(clients, 0) | found


def _listed(run: RunRecord, round: int, name: str) -> set[int] | None:
    """Return the clients in an array of a round's record; None if the round has no such array."""
    found = run.arrays(round, only=(name,)).get(name)
    return None if found is None else set(found.tolist())


def utilities(run: RunRecord) -> Floats | None:
    """Return each client's utility over all markets of a run, ``[N]`` tokens (iPFL eq. 1); None without a market."""
    if not any("utility/mean" in line for line in run.metrics):
        return None
    total = np.zeros(run.num_clients)
    for line in run.metrics:
        record = run.arrays(int(line["round"]), only=("market_utility", "market_client"))
        if "market_utility" in record:
            total[record["market_client"]] += record["market_utility"]
    return total


def mean_interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return the mean of values, and its 95 % interval by Student's t.

    The interval is None for a single value, and for values that are alike up to rounding, which do not say how much
    they vary. All are None without values.

    Examples:
        >>> mean_interval([1.0]), mean_interval([])
        ((1.0, None, None), (None, None, None))
    """
    if not len(values):
        return None, None, None
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, None, None
    half = t_quantile(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return (mean, mean - half, mean + half) if half > 1e-9 * abs(mean) else (mean, None, None)
