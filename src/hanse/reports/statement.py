"""A participant's statement: what it gave, what it gained, what it is owed, and whether joining paid.

:func:`statement` takes a client's row of the run's facts, and adds what only its own statement says: its rounds
and its postings. :func:`render` makes the page, and ``docs/statement.md`` explains each figure. The
sentences (``sentences.j2``) are read by participants who are not engineers. None of these claims more than the numbers
allow: each says how sure it is, or that this is not known. Rounds are numbered from 0, as in the records.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hanse.base.errors import UserError
from hanse.base.files import MEMBERS, given_path, table, write_whole
from hanse.base.plain_text import quantity
from hanse.core.telling import Measure
from hanse.games.jackknife import SURE, t_factor
from hanse.learning.intervals import wilson
from hanse.learning.metrics import ACCURACY
from hanse.reports.alone import THERE, by_python
from hanse.reports.chart import Chart, Curve, Floats, Lines
from hanse.reports.contributions import both_errors, fallen
from hanse.reports.facts import SCHEMA, VERY_FEW, ClientFacts, RunFacts, RunOf, facts_of
from hanse.reports.fits import FEW, Fit, finite_or_none, history_of
from hanse.reports.money import Money, agreed_in, money_of
from hanse.reports.words import Note, page, said
from hanse.runs.chance import SAT_OUT
from hanse.runs.run_record import RunRecord, load_run


@dataclass(frozen=True, kw_only=True)
class ClientRound:
    """A seat of the client in a round in which it was asked to train, or in which its late update arrived. None: not
    known.

    Attributes:
        round: the number of the round, from 0. The client may have several seats in it.
        value: what the client's update was worth.
        error: the standard error of the value, from the sampling of coalitions and the draw of the validation samples
            together.
        half: half the 95 % interval of the value. None: it is not known or has no width.
        weight: the weight that the update had in the model that it trained.
        late: how many rounds the update came after the one in which the client was asked.
        refused: why there was no usable update. None: there was one.
    """

    round: int
    value: float | None
    error: float | None
    half: float | None
    weight: float | None
    late: int
    refused: str | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Statement:
    """What a run did for one client, and what the client did for the run.

    Attributes:
        run: the run's row of the facts.
        client: the client's row.
        notes: what it must know of the run and of itself, the doubts first.
        fit: its model compared with one trained alone: the metric, and why something is not known.
        curve: the metric on its own test data after each round in which it tested.
        rounds: its seats in the rounds in which it was asked to train.
        measure: what one value is.
        fallen: what fell by ``run.fall``; "" where that is not known.
        valued: how many clients had an update valued.
        ranked: how many of these can be ranked.
        above: the sum of all clients' sums above zero.
        below: the sum of those below zero.
        money: its postings. None: nobody pays.
        privacy: what it has spent of its privacy budget. None: it has none.
        next: what would tell or help it most.
        divisible: by what an invoice of the run can split a total; empty: none can be made.
        named: whether the run allows its clients to be named to one another.
        told: sentences that the mechanism's parts have for participants, and on what the experiment makes this client
            do, if anything; and what members agreed to.
    """

    run: RunFacts
    client: ClientFacts
    notes: tuple[Note, ...]
    fit: Fit
    curve: tuple[tuple[int, float], ...]
    rounds: tuple[ClientRound, ...]
    measure: Measure
    fallen: str
    valued: int
    ranked: int
    above: float
    below: float
    money: Money | None
    privacy: Note | None
    next: Note
    divisible: tuple[str, ...]
    named: bool
    told: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """Whether joining paid, as a sentence without its full stop, and what came in or went out in tokens."""
        return said("headline", self, self.client)

    @property
    def short(self) -> dict[str, str]:
        """Up to four short answers, by what they are about; without privacy they have at most 60 words."""
        found = {
            "Its model": said("its_model", self.fit),
            "Its contribution": said("its_contribution", self, self.client),
            "Its privacy": "" if self.privacy is None else self.privacy.said,
            "What next": self.next.said,
        }
        return {about: told for about, told in found.items() if told}

    @property
    def doubts(self) -> list[str]:
        """Sentences to show first, if the run's model is no better than chance or its values mean little."""
        return [note.said for note in self.notes if note.level == "doubt"]

    @property
    def missing(self) -> list[str]:
        """Sentences on its data, on what intervals leave out, and on records that are missing or were changed."""
        codes = ("data", "cut_short", "lost_round", "more_lost", "beyond_the_book")
        return [note.said for note in self.notes if note.code in codes]

    @property
    def half(self) -> float | None:
        """Half the 95 % interval of the value; None if there is no interval, or it has no width."""
        high, value = self.client.value_high, self.client.value
        return high - value if high is not None and value is not None and self.client.value_error else None

    @property
    def besides(self) -> float:
        """The part of the fall that came through no client's updates."""
        return 0.0 if self.run.fall is None else self.run.fall - (self.run.value or 0.0)

    @property
    def lines(self) -> list[str]:
        """What a terminal or a notebook shows of it: the verdict, the text below it, and which files are lost."""
        name = "" if self.client.name == str(self.client.client) else f"{self.client.name}: "
        return [f"{name}{self.headline}.", *(f"{about}: {told}" for about, told in self.short.items()), *self.missing]

    def save(self, path: str | Path) -> None:
        """Write the page."""
        write_whole(given_path("path", path), render(self))

    def __repr__(self) -> str:
        first, *rest = self.lines
        return "\n".join([first, *self.doubts, *rest])

    def _repr_html_(self) -> str:
        page = html.escape(render(self))
        return f'<iframe style="width:100%;height:640px;border:0" srcdoc="{page}"></iframe>'

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        found = asdict(self)
        return {"schema": SCHEMA, **found, "fit": {**found["fit"], "reading": self.fit.reading.key}}


def statement(folder: str | Path, client: int) -> Statement:
    """Return the statement of one client.

    Other clients are named in it only if the experiment says ``[clients] named = true``.

    Args:
        folder: the run directory. The run may still be going on.
        client: the client's number, from 0.

    Raises:
        UserError: there is no run or no such client, or the ledger cannot be read.

    Example:
        >>> import tempfile
        >>> import hanse
        >>> from hanse.reports.alone import train_alone
        >>> experiment = hanse.Experiment(
        ...     data={"clients": 3, "client_test": 0.2},
        ...     model={"name": "logistic"},
        ...     mechanism={"name": "fedavg", "clients_per_round": 3},
        ...     run={"rounds": 2},
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = hanse.run(experiment, out=f"{folder}/town")
        ...     first = statement(f"{folder}/town", 1)
        ...     _ = train_alone(Path(folder, "town"))
        ...     second = statement(f"{folder}/town", 1)
        >>> first.client.paid_to_join, second.client.paid_to_join  # two rounds are too few
        ('unknown', 'even')
    """
    return statements(load_run(folder), [client])[0]


def statements(run: RunRecord, clients: Sequence[int]) -> list[Statement]:
    """Return the statements of several clients of a run.

    Args:
        run: the run.
        clients: their numbers.

    Raises:
        UserError: there is no such client, or the books do not hold.
    """
    wrong = [c for c in clients if type(c) is not int or not 0 <= c < run.num_clients]
    if wrong:
        raise UserError(f"--client {wrong[0]}: no such client; this run has clients 0 to {run.num_clients - 1}")
    return [_statement(facts_of(run), client) for client in clients]


def _statement(found: RunOf, client: int) -> Statement:
    run, row, fit = found.record, found.clients[client], found.fits[client]
    named = table(run.config, "clients").get("named") is True
    totals = np.array([one.value for one in found.clients if one.value is not None])
    notes = tuple(note for note in found.notes if note.fields.get("client", client) == client)
    return Statement(
        run=found.whole,
        client=row,
        notes=notes,
        fit=fit,
        curve=tuple(history_of(run, client)[1]),
        rounds=_rounds(run, client),
        measure=run.about.measure,
        fallen=fallen(run),
        valued=len(totals),
        ranked=sum(one.place is not None for one in found.clients),
        above=float(np.maximum(totals, 0.0).sum()),
        below=float(np.minimum(totals, 0.0).sum()),
        money=money_of(run, client, names=named),
        privacy=_privacy(run, row),
        next=_next(run, row, fit, notes, has_values=bool(len(totals))),
        divisible=found.divisible,
        named=named,
        told=(*run.about.told_to(client), *agreed_in(run)),
    )


def _next(run: RunRecord, row: ClientFacts, fit: Fit, notes: Sequence[Note], *, has_values: bool) -> Note:
    """Return the one thing that would tell or help this client most."""
    few = fit.counted is not None and fit.counted < FEW
    choices = {
        "wait_for_the_end": run.unfinished,
        "mind_the_doubt": any(note.level == "doubt" for note in notes),
        "check_what_it_sent": row.suspect,
        "check_its_data": any(note.code == "data" for note in notes),
        "has_gone": row.status in ("left", "expelled"),
        "ask_why_no_values": bool(run.gaps) and not has_values,
        "ask_for_own_tests": fit.sign is None and fit.last is None and fit.round is None,
        "compare_with_alone": fit.sign is None,
        "see_other_rows": bool(fit.sign) and fit.counted is not None and fit.counted < VERY_FEW,
        "weigh_tokens": (fit.sign or 0) * row.net < 0,
        "test_more_rows": fit.sign == 0 and few,
        "leave_or_personal": fit.sign == -1,
        "stay": fit.sign == 1,
    }
    apart = run.has(MEMBERS)
    command = ("" if run.in_app else THERE) if apart else by_python(run) or f"--train-alone{run.trust}"
    tested = quantity(fit.counted, row.unit if row.unit not in ("", "row") else "sample")
    fields = {"samples": tested, "command": command}
    return Note(next((code for code, holds in choices.items() if holds), "weigh_costs"), "note", fields)


# ---- its rounds


def _rounds(run: RunRecord, client: int) -> tuple[ClientRound, ...]:
    """Return what each round's seats of a client were worth, by the values that the mechanism measured."""
    seats = run.seats
    errors = both_errors(seats.error, seats.drawn)
    blocks = max((without.shape[1] for _, without in run.without_block.values()), default=0)
    halves = SURE * both_errors(seats.error, seats.drawn * (t_factor(blocks - 1) if blocks > 1 else 1.0))
    return tuple(
        ClientRound(
            round=int(seats.round[i]),
            value=finite_or_none(seats.value[i]),
            error=finite_or_none(errors[i]) if np.isfinite(seats.value[i]) else None,
            half=finite_or_none(halves[i]) or None if np.isfinite(seats.value[i]) else None,
            weight=run.clients[i].weight,
            late=run.clients[i].staleness,
            refused=run.clients[i].refused,
        )
        for i in np.flatnonzero(seats.client == client).tolist()
    )


# ---- its privacy


def _privacy(run: RunRecord, row: ClientFacts) -> Note | None:
    """Return what a client has spent of its privacy budget; None without a budget.

    All of it is taken from what the client's account said with its answers and refusals. Budgets may be lowered in the
    course of a run, and a participant may have its own budget.
    """
    if not isinstance(table(run.config, "federation").get("private"), Mapping):
        return None
    mine = [seat for seat in run.clients if seat.client == row.client]
    spent = [seat for seat in mine if None not in (seat.epsilon, seat.budget, seat.delta)]
    out = {seat.round: seat.refused for seat in mine if (seat.refused or "").startswith(SAT_OUT)}
    noisy = row.value_low is not None and row.value_high is not None and row.value_low <= 0 <= row.value_high
    fields = {"epsilon": row.epsilon, "budget": row.budget, "delta": row.delta, "answers": len(spent), "out": len(out),
              "of": len({seat.round for seat in mine}), "why": out[max(out)] if out else "",
              "hidden": bool(row.sampling) and noisy}  # fmt: skip
    return Note("privacy_spent" if spent or out else "privacy_unknown", "note", fields)


# ---- the page


def render(made: Statement) -> str:
    """Return the page (HTML). It needs no network and runs no script, and texts from outside are text."""
    from hanse.reports.vega import image  # late: the terminal draws nothing

    chart = _curve_chart(made)
    return page("statement.html.j2", statement=made, curve_chart=None if chart is None else image(chart))


def _curve_chart(made: Statement) -> Chart | None:
    """Return the curve of the metric on the client's own test data, with Wilson's bands for shares of samples."""
    reading, alone = made.fit.reading, made.fit.alone
    if len(made.curve) < 2:
        return None
    rounds, values = np.array(made.curve, dtype=np.float64).T
    samples = made.fit.counted if reading == ACCURACY else None
    lines = [_banded("in the federation", 1.0 + rounds, values, reading.factor, samples)]
    if alone is not None:
        ends = np.array([1.0, max(2.0, made.run.rounds)])
        lines.append(_banded("alone, at the end", ends, np.full(2, alone), reading.factor, samples))
    caption = said("curve_caption", reading, float(values[0]), float(values[-1]), alone)
    return Chart("accuracy", "Statement", "", caption, Lines(tuple(lines)), x="rounds played", y=reading.axis)


def _banded(name: str, x: Floats, y: Floats, factor: float, samples: int | None) -> Curve:
    low, high = factor * np.array([wilson(a, samples) for a in y.tolist()]).T if samples else (None, None)
    return Curve(name, x, factor * y, low, high, bare=True)
