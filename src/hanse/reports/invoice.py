"""Splits one total among the participants of a run, to the cent: by what their updates were worth, or by the books.

:func:`invoice` makes the lines, :func:`as_csv` and :func:`as_page` write them. The parts are rounded by the largest
remainder (:mod:`hanse.ledger.split`), so they sum to the total exactly.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from hanse.base.errors import UserError, nearest
from hanse.base.factories import named_choice
from hanse.base.files import run_folder, table, write_csv
from hanse.core.entry import TOKEN, escrow, tokens
from hanse.core.entry import client as account_of
from hanse.ledger.run_ledger import movements, reading
from hanse.ledger.split import split
from hanse.reports.contributions import Standings, contribution, lost_files, without_values
from hanse.reports.groups import SeedGroup
from hanse.runs.replay import wrong_books
from hanse.runs.run_record import RunRecord, load_run

BY = ("value", "earned", "balance")
MOST = 10**15  # of the smallest coin
# ISO 4217: currencies whose smallest coin is not a hundredth
_NONE = ("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "UYI", "VND", "VUV", "XAF", "XOF",
         "XPF")  # fmt: skip
_DIGITS = dict.fromkeys(_NONE, 0) | dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3)
_TEMPLATE = "invoice.html.j2"
_SOURCE = files("hanse.reports").joinpath(_TEMPLATE).read_text(encoding="utf-8")
_STYLE = _SOURCE.partition("<style>")[2].partition("</style>")[0]
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"


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

    @property
    def tokens(self) -> str:
        """The units as tokens, for readers: "1,234.500000". A dash means that the total is split by value."""
        return "–" if self.units is None else f"{Decimal(self.units).scaleb(-6):,f}"


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
        said: sentences on what the parts mean, and how sure they are.
        doubts: what a reader must know before the amounts, such as that values mean little in this run.
    """

    run: str
    by: str
    currency: str
    digits: int
    total: int
    lines: tuple[InvoiceLine, ...]
    said: tuple[str, ...]
    doubts: tuple[str, ...] = ()

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
    def paid(self) -> int:
        """How many participants receive anything."""
        return sum(line.amount > 0 for line in self.lines)


def invoice(folder: Path, budget: str, currency: str, by: str | None = None) -> Invoice:
    """Split a total among the participants of a run.

    Args:
        folder: the run directory.
        budget: the total, a decimal number of the currency.
        currency: three capital letters (ISO 4217).
        by: "value": by the sums of the values of their updates. "earned": by what the others paid them, less what they
            paid. "balance": by what they hold at the end. Who is below zero gets nothing. None: by value if the run has
            values that are parts of a whole, else by balance.

    Raises:
        UserError: an argument is wrong, the run has no such values or books, the books do not verify, nobody is above
            zero, or the data look like several rows of one person and nobody said what a row is of.
    """
    if len(currency) != 3 or not (currency.isascii() and currency.isupper() and currency.isalpha()):
        raise UserError(f"--currency '{currency}': must be three capital letters, such as EUR")
    digits = _DIGITS.get(currency, 2)
    total = _coins(budget, currency, digits)
    if by is not None and by not in BY:
        raise UserError(f"--by '{by}': no such rule{nearest(by, BY)}")
    run = load_run(run_folder(folder))
    booked = (folder / "ledger.json").exists()
    if booked and (wrong := wrong_books(folder)):
        raise UserError(f"{folder}: no invoice of a run whose books do not hold: {wrong}")
    if run.beyond:
        raise UserError(f"{folder}: no invoice of rounds without a book: {run.beyond}")
    if run.about.doubt:
        raise UserError(f"{folder}: no invoice of data whose units are not said: {run.about.doubt}")
    found = contribution(SeedGroup(run.mechanism, (run,)))
    valued = found is not None and found.measure.share_out
    able = ("value",) * valued + ("balance", "earned") * booked
    if not able:
        raise UserError(f"{folder}: this run has neither values that can be split nor books: nothing to split by")
    by = by or next(rule for rule in ("value", "balance") if rule in able)
    if by not in able:
        none = "this run valued no updates" if found is None else f"a {found.measure.name} is no part of a whole"
        why = none if by == "value" else "this run has no books"
        raise UserError(f"--by {by}: {why}; allowed: {', '.join(able)}")
    if found is None or by != "value":
        pays = named_choice(table(run.config, "mechanism").get("settle"), "") == "by_value"
        unsure = _unsure(found.sums) if found is not None and pays else []
        by_books = _by_the_books(folder, run, by, currency, total)
        return replace(by_books, doubts=(*by_books.doubts, *unsure))
    weights, between = np.zeros(run.num_clients), np.full((run.num_clients, 2), np.nan)
    weights[found.sums.clients] = np.maximum(found.sums.totals, 0.0)
    between[found.sums.clients] = found.sums.between()
    said = [f"Split by the sum of each participant's values ({found.measure.name}); a sum below zero counts as zero."]
    if not booked:
        said.append(
            "This run has no books: that its values are right is the operator's word alone. A run that pays by value "
            "(mechanism.settle = by_value) keeps books that fix them."
        )
    doubts = _unsure(found.sums)
    said += [*([] if doubts else [found.sums.how_sure()]), *without_values(run), *lost_files(run)]
    if booked:
        said.append("The tokens in participants' statements are counted apart and are not in these amounts.")
    made = _made(run, by, currency, total, weights, between, said)
    return replace(made, doubts=(*made.doubts, *doubts))


def _unsure(sums: Standings) -> list[str]:
    """Return how sure the parts are, if nobody can be told apart or one amount may be off by half of the total."""
    wide = float(np.ptp(sums.between(), axis=1).max())  # NaN, which is not known: no comparison holds
    if not sums.known or len(sums.clients) < 2 or (sums.apart and not wide > 0.5):
        return []
    by_how_much = f" The widest 95 % interval spans {100 * wide:.0f} % of the total." if wide > 0.5 else ""
    return [f"{sums.how_sure()}{by_how_much}"]


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


def _by_the_books(folder: Path, run: RunRecord, by: str, currency: str, total: int) -> Invoice:
    """Return the invoice by what each participant holds at the end ("balance"), or that less its grants ("earned")."""
    granted = np.zeros(run.num_clients, np.int64)
    with reading(folder) as ledger:
        balances = ledger.balances()
        mine = {account_of(c): c for c in range(run.num_clients)}
        held = np.array([balances.get(account_of(c), 0) + balances.get(escrow(c), 0) for c in range(run.num_clients)])
        for _, transaction in movements(ledger.history()):
            for account, given in transaction.postings if transaction.kind == "grant" else ():
                if account in mine:
                    granted[mine[account]] += given
    units = held - granted if by == "earned" else held
    weights = np.maximum(units, 0).astype(np.float64)
    what = "what the others paid each participant, on balance" if by == "earned" else "what each participant holds"
    said = [f"Split by {what}, by the books, which hold; less than nothing counts as nothing."]
    if weights.sum() > 0:
        rate = Decimal(total).scaleb(-_DIGITS.get(currency, 2)) * TOKEN / Decimal(weights.sum())
        called = "tokens: net" if by == "earned" else "tokens it holds"
        said.append(
            f'A participant receives {rate:.6g} {currency} for each token of "{called}" in its statement, and nothing '
            "if these are below zero."
        )
    made = _made(run, by, currency, total, weights, np.full((run.num_clients, 2), np.nan), said)
    lines = tuple(replace(line, units=int(units[line.client])) for line in made.lines)
    gifts, all_held = int(granted.sum()), int(held.sum())
    if by == "earned" or 2 * gifts < all_held:
        return replace(made, lines=lines)
    warning = (
        f"Participants were granted {tokens(gifts)} tokens and hold {tokens(all_held)}: this split pays mostly the "
        "grant, even to those that earned nothing. --by earned leaves it out."
    )
    return replace(made, lines=lines, doubts=(*made.doubts, warning))


def _made(
    run: RunRecord,
    by: str,
    currency: str,
    total: int,
    weights: np.ndarray,
    between: np.ndarray,
    said: Sequence[str],
) -> Invoice:
    """Return the invoice for these weights ``[N]`` with the intervals of the shares ``[N, 2]`` (NaN: not known)."""
    if not weights.sum() > 0:
        raise UserError(f"{run.name}: nobody is above zero by '{by}': there is nothing to split by")
    shares = weights / weights.sum()
    amounts = split(total, weights.tolist())
    lines = tuple(
        InvoiceLine(
            c,
            run.client_label(c),
            float(shares[c]),
            amounts[c],
            None if np.isnan(between[c]).any() else (round(total * between[c, 0]), round(total * between[c, 1])),
        )
        for c in range(run.num_clients)
    )
    return Invoice(run.name, by, currency, _DIGITS.get(currency, 2), total, lines, tuple(said), tuple(run.doubts))


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
    environment = Environment(
        loader=PackageLoader("hanse.reports", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    today = datetime.now(UTC).date()
    return environment.get_template(_TEMPLATE).render(i=made, policy=_POLICY, version=version("hanse"), today=today)
