"""The books of a run as arrays, and charts of balances over the rounds and accuracies of tiers.

:func:`read_books` adds up a run's ledger once, for all charts and tables that need it. :func:`money_of` lists the
postings of one client. :func:`token_charts` draws charts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, groupby

import numpy as np

from hanse.base.errors import UserError
from hanse.core.entry import TOKEN, escrow, owner_of
from hanse.core.entry import client as account_of
from hanse.core.telling import Plot
from hanse.ledger.accounts import Account, PostingSum, moved_by
from hanse.ledger.log import Record
from hanse.ledger.receipts import AGREEMENT
from hanse.ledger.run_ledger import open_ledger
from hanse.ledger.store import VerifyResult
from hanse.reports.chart import Chart, Curve, Floats, Ints, Lines, even, slug
from hanse.reports.digits import labelled
from hanse.reports.groups import SeedGroup
from hanse.reports.part_charts import plotted
from hanse.reports.words import said
from hanse.runs.run_record import RunRecord, client_names, walked


@dataclass(frozen=True)
class Books:
    """What the ledger of a run adds up to, in tokens.

    Attributes:
        rounds: ``[R]``, the rounds (from 0) in which anything was posted. What was settled after the last round played
            counts as posted in that round.
        held: ``[R, N]``, what each client's account and escrow hold together after each of these rounds. NaN before the
            client has an account.
        accounts: the books of each client that has an account, by its number.
        name: the name of the book.
        count: how many transactions the book has.
        head: the hash of the last posting.

    Examples:
        >>> import hanse
        >>> from hanse.runs.run_record import load_run
        >>> from hanse.runs.rehearsal import rehearse
        >>> run = hanse.run(rehearse("ipfl").experiment, out="paid", overwrite=True)
        >>> books = read_books(load_run("paid"))
        >>> sorted(books.accounts), books.held.shape[0] == len(books.rounds)
        ([0, 1, 2, 3], True)
    """

    rounds: Ints
    held: Floats
    accounts: Mapping[int, Account] = field(default_factory=dict)
    name: str = ""
    count: int = 0
    head: str = ""


@lru_cache(maxsize=16)
def read_books(run: RunRecord) -> Books | None:
    """Return a run's books, or None if nobody pays in it or nothing was posted.

    Args:
        run: the run.

    Raises:
        UserError: the books cannot be read, or do not verify.
    """
    found, sums = run.verified, run.sums
    if wrong := run.wrong_in_books:
        raise UserError(f"they do not hold: {wrong} ('hanse ledger verify' checks them)")
    if not isinstance(found, VerifyResult) or not sums.held:
        return None
    last, rows = int(run.metrics[-1]["round"]), dict[int, Floats]()
    row = np.full(run.num_clients, np.nan)
    for round, held in sums.held.items():
        for client, units in held.items():
            if client < len(row):
                row[client] = units
        rows[min(round, last)] = row.copy()
    return Books(
        np.array([*rows], np.int64),
        np.stack([*rows.values()]) / TOKEN,
        sums.accounts,
        open_ledger(run.folder).book,
        found.transactions,
        found.head,
    )


@lru_cache(maxsize=4)
def _own_records(run: RunRecord) -> Mapping[int, Sequence[Record]]:
    """Return the transactions that move each client's account or escrow, by its number."""
    own = dict[int, list[Record]]()
    for record in walked(run)[1]:
        for owner in moved_by(record):
            own.setdefault(owner, []).append(record)
    return own


def agreed_in(run: RunRecord) -> tuple[str, ...]:
    """Return a sentence for each charter, or agreement on a network, by which rounds of a run were played."""
    by_agreement = groupby(run.metrics, key=lambda line: line.get(AGREEMENT))
    spans = [(agreed, [line["round"] for line in lines]) for agreed, lines in by_agreement if agreed]
    return tuple(said("agreed", first=rounds[0], last=rounds[-1], hash=agreed) for agreed, rounds in spans)


# ---- one client's postings


@dataclass(frozen=True, kw_only=True)
class Posting:
    """One line of the client's account or of its escrow.

    Attributes:
        number: the number of its transaction in the ledger.
        round: the round in which it was posted, from 0.
        step: the name of the transaction's step, which is unique in its round.
        kind: what kind of transaction it is, such as "grant" or "bid".
        memo: the purpose of the posting, in words.
        account: "client/N" or "escrow/N".
        units: the amount, above zero if the account received it (1 token is 1,000,000 units).
        holds: what account and escrow have together after the posting, in units.
        others: the other accounts that the transaction moves. It is empty unless the run allows names.
    """

    number: int
    round: int
    step: str
    kind: str
    memo: str
    account: str
    units: int
    holds: int
    others: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Money:
    """A participant's postings. Amounts are units; 1 token is 1,000,000 units.

    Attributes:
        book: the name of the book.
        count: how many transactions the book has.
        head: the hash of the last posting. With it, a receipt can be compared with the book.
        figures: the sums by kind, in order of appearance.
        lines: every posting.
    """

    book: str
    count: int
    head: str
    figures: tuple[PostingSum, ...]
    lines: tuple[Posting, ...]


def money_of(run: RunRecord, client: int, *, names: bool = False) -> Money | None:
    """Return the postings of a client, or None if nobody pays in this run.

    Args:
        run: the run.
        client: the client's number.
        names: whether postings name the other accounts of their transactions.

    Raises:
        UserError: the books are missing, cannot be read, or do not verify.
    """
    try:
        books = read_books(run)
    except UserError as wrong:
        raise UserError(f"{run.path}: no statement of its books: {wrong}") from None
    if books is None:
        return None
    called = client_names(run.folder) if names else None
    lines = _own_lines(_own_records(run).get(client, ()), client, called)
    kinds = books.accounts.get(client, Account()).kinds
    figures = tuple(replace(one, what=run.about.kinds.get(kind, kind)) for kind, one in kinds.items())
    return Money(book=books.name, count=books.count, head=books.head, figures=figures, lines=lines)


def _own_lines(records: Iterable[Record], client: int, called: Mapping[int, str] | None = None) -> tuple[Posting, ...]:
    """Return the postings of a client's account and escrow among ``records``, which come in order of their numbers.

    ``called`` has the clients' names; with it the other accounts of each transaction are listed. None lists none.
    """

    def named(account: str) -> str:
        """Return an account with its owner's name behind it, if that is known."""
        owner = owner_of(account)
        name = None if owner is None else (called or {}).get(owner)
        return account if name is None else f"{account} ({name})"

    own = (account_of(client), escrow(client))
    found = [(r, name, units) for r in records for name, units in r.transaction.postings if name in own]
    holds = accumulate(units for _, _, units in found)
    return tuple(
        Posting(
            number=r.number,
            round=r.round,
            step=r.transaction.step,
            kind=r.transaction.kind,
            memo=r.transaction.memo,
            account=name,
            units=units,
            holds=held,
            others=tuple(dict.fromkeys(named(n) for n, _ in r.transaction.postings if n not in own))
            if called is not None
            else (),
        )
        for (r, name, units), held in zip(found, holds, strict=True)
    )


# ---- charts


SECTION = "Tokens"
MOST_ROUNDS = 200  # points of a line
MOST_LINES = 12  # clients with a line each; of more, quantiles are drawn
# The loop itself tests server rows on each distribution, under any mechanism, so no part asks for this chart.
TIERS = Plot(
    "Each tier on each distribution", "test/tier */distribution *", "accuracy (%)", "tier * on distribution *",
    "Each tier's accuracy on held-out data of each distribution; tier d is the one that serves distribution d best.",
    factor=100.0,
)  # fmt: skip


def token_charts(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return the charts of balances and of the models of tiers on each distribution; none on books that do not hold.

    Args:
        groups: the experiments.
    """
    charts: list[Chart] = []
    for group in groups:
        books = None if group.runs[0].wrong_in_books else read_books(group.runs[0])
        found = (None if books is None else _balance_chart(group, books), plotted(group, TIERS, "Tiers", "tiers"))
        charts += [chart for chart in found if chart is not None]
    return charts


def _balance_chart(group: SeedGroup, books: Books) -> Chart | None:
    """Return the balances over the rounds: one line each for up to 12 clients, else their range."""
    run, kept = group.runs[0], even(len(books.rounds), MOST_ROUNDS)
    x, held = 1.0 + books.rounds[kept].astype(np.float64), books.held[kept]
    known = np.flatnonzero(np.isfinite(held[-1]))
    if not len(known):
        return None
    if len(known) <= MOST_LINES:
        lines = [Curve(labelled(run.client_label(c)), x, held[:, c]) for c in known.tolist()]
    else:
        names = (("richest", 1.0), ("upper tenth", 0.9), ("median", 0.5), ("lower tenth", 0.1), ("poorest", 0.0))
        lines = [Curve(name, x, np.nanquantile(held, q, axis=1)) for name, q in names]
    key, title = f"balances-{slug(group.label)}", f"Token balances over the rounds: {group.label}"
    marks = Lines(tuple(lines), steps=True)
    caption = said("balances", len(known), MOST_LINES, run.seeds[0])
    return Chart(key, SECTION, title, caption, marks, x="rounds played", y="tokens")
