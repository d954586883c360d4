"""Splits one total among the participants of a run, to the cent: by what their updates were worth, or by the books.

:func:`invoice` makes the lines, :func:`as_csv` and :func:`as_page` write them. The parts are rounded by the largest
remainder (:mod:`hanse.ledger.split`), so they sum to the total exactly.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np

from hanse.base.errors import UserError, nearest
from hanse.base.factories import named_choice
from hanse.base.files import table, write_csv
from hanse.core.entry import TOKEN, tokens
from hanse.ledger.split import split
from hanse.reports.contributions import Standings
from hanse.reports.facts import facts_of
from hanse.reports.words import Note, page
from hanse.runs.replay import wrong_books
from hanse.runs.run_record import load_run

BY = ("value", "earned", "balance")
MOST = 10**15  # of the smallest coin
# ISO 4217: currencies whose smallest coin is not a hundredth
_NONE = ("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "UYI", "VND", "VUV", "XAF", "XOF",
         "XPF")  # fmt: skip
_DIGITS = {**dict.fromkeys(_NONE, 0), "CLF": 4, "UYW": 4} | dict.fromkeys(
    ("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3
)


@dataclass(frozen=True)
class InvoiceLine:
    """What one participant gets.

    Attributes:
        client: the participant's client number.
        name: the participant's name.
        share: the participant's part of the whole, 0 to 1.
        amount: the amount, in the smallest coin.
        between: the 95 % interval of the amount, in the smallest coin. None: there is none, or it is not known.
        units: the client's millionths of a token, by which the total is split; they may be below zero. None: it is
            split by value.
    """

    client: int
    name: str
    share: float
    amount: int
    between: tuple[int, int] | None
    units: int | None = None


@dataclass(frozen=True)
class Invoice:
    """A total and its parts.

    Attributes:
        run: the run's name.
        by: what decides how the total is split.
        currency: three capital letters.
        digits: how many decimals an amount has.
        total: the total, in the smallest coin.
        lines: one for each participant, by number.
        notes: what the parts mean and how sure they are, and first, as doubts, what a reader must know before the
            amounts, such as that values mean little in this run.
    """

    run: str
    by: str
    currency: str
    digits: int
    total: int
    lines: tuple[InvoiceLine, ...]
    notes: tuple[Note, ...] = ()

    def money(self, coins: int) -> str:
        """Return an amount of the smallest coin as a decimal number of the currency.

        Examples:
            >>> Invoice("mill", "value", "EUR", 2, 0, (), ()).money(123456)
            '1234.56'
        """
        return f"{Decimal(coins).scaleb(-self.digits):f}"

    def told(self, coins: int) -> str:
        """Return an amount of coins for readers, with commas between thousands.

        Examples:
            >>> Invoice("mill", "value", "EUR", 2, 0, (), ()).told(123456)
            '1,234.56'
        """
        return f"{Decimal(coins).scaleb(-self.digits):,f}"

    @property
    def doubts(self) -> list[Note]:
        """What to say before the amounts."""
        return [note for note in self.notes if note.level == "doubt"]

    @property
    def paid(self) -> int:
        """How many participants receive anything."""
        return sum(line.amount > 0 for line in self.lines)


def invoice(folder: str | Path, budget: str | float, currency: str, by: str | None = None) -> Invoice:
    """Split a total among the participants of a run.

    Args:
        folder: the run directory.
        budget: the total, a decimal number of the currency (text is exact).
        currency: three capital letters (ISO 4217).
        by: "value": by the sums of the values of their updates. "earned": by what the others paid them, less what they
            paid. "balance": by what they hold at the end. Who is below zero gets nothing. None: by value if the run has
            values that are parts of a whole, else by balance; of a pot, or where a member
            has several clients, by what they earned.

    Raises:
        UserError: an argument is wrong, the run has no such values or books, the books do not verify, nobody is above
            zero, or the data look like several rows of one person and nobody said what a row is of.
    """
    if len(currency) != 3 or not (currency.isascii() and currency.isupper() and currency.isalpha()):
        raise UserError(f"--currency '{currency}': must be three capital letters, such as EUR")
    digits = _DIGITS.get(currency, 2)
    total = _coins(str(budget), currency, digits)
    if by is not None and by not in BY:
        raise UserError(f"--by '{by}': no such rule{nearest(by, BY)}")
    run = load_run(folder)
    folder = run.folder
    booked = (folder / "ledger.json").exists()
    if wrong := wrong_books(folder) if booked else run.wrong_in_books:
        raise UserError(f"{folder}: no invoice of a run whose books do not hold: {wrong}")
    if run.beyond:
        raise UserError(f"{folder}: no invoice of rounds without a book: {run.beyond}")
    if run.about.doubt:
        raise UserError(f"{folder}: no invoice of data whose units are not said: {run.about.doubt}")
    found = facts_of(run)
    valued, able = found.valued, found.divisible
    if not able:
        raise UserError(
            f"{folder}: this run has neither values that can be split nor books: nothing to split by: where the server "
            "has labelled data (data.validation), play mechanism.value = 'path', and settle = 'by_value' if a member "
            "has several clients; where clients alone have any, a mechanism that keeps books, such as pifl"
        )
    rule = named_choice(table(run.config, "mechanism").get("settle"), "")
    by = by or ("earned" if booked and rule == "pot" else able[0])  # a pot has been split already, as agreed
    if by not in able:
        none = "this run valued no updates" if valued is None else f"a {valued.measure.name} is no part of a whole"
        why = none if by == "value" else "this run has no books"
        if booked and "balance" not in able:
            # what is below zero would be forgiven to each of a member's clients, and each has a grant
            why = "[clients] members makes one payee of several clients, whom payments in the run count as one"
        raise UserError(f"--by {by}: {why}; allowed: {', '.join(able)}")
    weights = [{"value": row.value or 0.0, "earned": row.net, "balance": row.holds}[by] for row in found.clients]
    whole = sum(max(weight, 0) for weight in weights)
    if not whole > 0:
        raise UserError(f"{run.name}: nobody is above zero by '{by}': there is nothing to split by")
    amounts = split(total, [float(max(weight, 0)) for weight in weights])
    lines = []
    for row, weight, amount in zip(found.clients, weights, amounts, strict=True):
        known = by == "value" and row.share_low is not None and row.share_high is not None
        between = (round(total * (row.share_low or 0)), round(total * (row.share_high or 0))) if known else None
        units = None if by == "value" else int(weight)
        lines.append(InvoiceLine(row.client, row.name, max(weight, 0) / whole, amount, between, units))
    unsure = _unsure(valued) if valued is not None and (by == "value" or rule in ("by_value", "pot")) else []
    notes = [note for note in found.notes if note.level == "doubt" or note.code in ("left", "expelled")] + unsure
    if valued is not None and by == "value":
        notes += [Note("split_by_value", "note", {"measure": valued.measure.name})]
        notes += [] if booked else [Note("no_books", "warning")]
        notes += [] if unsure else [Note("parts_apart", "note", valued.pairs)]
        notes += [note for note in found.notes if note.code in ("no_values", "lost_round", "more_lost")]
        notes += [Note("counted_apart", "note")] if booked else []
    else:
        gifts, held = sum(row.granted or 0 for row in found.clients), sum(weights)
        if by == "balance" and 2 * gifts >= held:
            notes.append(Note("mostly_grant", "doubt", {"gifts": gifts, "held": held}))
        rate = Decimal(total).scaleb(-digits) * TOKEN / Decimal(whole)
        notes.append(Note("split_by_books", "note", {"by": by}))
        notes.append(Note("token_rate", "note", {"rate": f"{rate:.6g}", "currency": currency, "by": by}))
    return Invoice(run.name, by, currency, digits, total, tuple(lines), tuple(notes))


def _unsure(sums: Standings) -> list[Note]:
    """Return how sure the parts are, if nobody can be told apart or one amount may be off by half of the total."""
    wide = float(np.ptp(sums.between(), axis=1).max())  # NaN, which is not known: no comparison holds
    if not sums.known or len(sums.clients) < 2 or (sums.apart and not wide > 0.5):
        return []
    return [Note("unsure_parts", "doubt", {**sums.pairs, "wide": wide})]


def _coins(budget: str, currency: str, digits: int) -> int:
    """Return a budget in the smallest coin. Raises UserError."""
    form = re.fullmatch(r"0*([0-9]{1,16})(?:\.([0-9]{1,16}))?", budget)
    if form is None:
        raise UserError(f"--budget '{budget}': must be a decimal number above 0, such as 10000 or 99.50")
    coins = Decimal(f"{form[1]}.{form[2] or 0}").scaleb(digits)
    if coins != int(coins) or not 0 < coins <= MOST:
        most = Decimal(MOST).scaleb(-digits)
        raise UserError(f"--budget {budget}: must be above 0, at most {most:f}, with {digits} decimals of {currency}")
    return int(coins)


def as_csv(made: Invoice) -> str:
    """Return the invoice as CSV: a header, and a line for each participant."""
    out = io.StringIO()
    rows: list[list[object]] = [["client", "name", "share", "amount", "low", "high", "currency", "by", "tokens"]]
    for line in made.lines:
        low, high = ("", "") if line.between is None else map(made.money, line.between)
        share, amount = repr(line.share), made.money(line.amount)
        held = "" if line.units is None else tokens(line.units)
        rows.append([line.client, line.name, share, amount, low, high, made.currency, made.by, held])
    write_csv(out, rows)
    return out.getvalue()


def as_page(made: Invoice) -> str:
    """Return the invoice as a page to print. It needs no network and runs no script."""
    return page("invoice.html.j2", invoice=made, many=len(made.lines))
