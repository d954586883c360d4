"""Checks what a run must have posted: grants, kinds of transactions, and the payments of recorded markets.

``hanse ledger verify`` and ``hanse audit`` use it to check grants, prices, bills, deliveries and postings. They also
use it to compare a run's models with their recorded hashes. It needs the run directory's ``rounds/``, the ledger's
transactions, and for models a checkpoint.

Each check returns "", or a phrase that names the first error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from hanse.base.errors import UserError
from hanse.base.files import json_lines, read_toml, table
from hanse.base.wings import Names, absent
from hanse.core.book import LARGEST
from hanse.core.entry import BONDS, TOKEN, Transaction
from hanse.core.entry import client as account
from hanse.core.entry import tokens as say
from hanse.core.table import Table
from hanse.core.telling import read_about
from hanse.games.market_evidence import size_caps
from hanse.games.market_prices import due
from hanse.ledger.run_ledger import beyond_the_book, is_settled, movements, open_ledger, unbooked, verify_run
from hanse.ledger.store import Ledger
from hanse.mechanisms.ipfl import IPFL
from hanse.mechanisms.pifl import TokenManager
from hanse.mechanisms.registry import built_in_parts
from hanse.runs.config import ClientsSection
from hanse.runs.grants import grant, part_of
from hanse.runs.names import registered
from hanse.runs.recorded_market import MarketRound, recorded_markets
from hanse.runs.recorded_seats import is_number
from hanse.runs.replay_by_value import replay_by_value
from hanse.runs.replay_tokens import replay_tokens
from hanse.runs.round_record import METRICS, Arrays, lost_rounds, row_hash

REPLAYS: Mapping[str, Any] = Names({}, "replays")  # what wings post beside the payment rule, by section


def wrong_payments(r: MarketRound) -> str:
    """Return the first bill that is negative, zero for a positive price, or not its price rounded down to a unit."""
    owed = due(r.pricing, r.market, r.graph, r.tariff)
    most = LARGEST // len(r.clients)  # what nobody can pay is recorded as this much, so sums fit
    apart = np.abs(np.minimum(np.floor(np.maximum(owed, 0) * TOKEN), most) - r.units)
    free = (r.graph != 0) & (owed > 0) & (r.units == 0)
    bad = np.argwhere(~(apart <= 1) | free | (r.units < 0))  # a last bit may cross a unit
    if not len(bad):
        return ""
    i, j = bad[0]
    return (
        f"client {r.clients[i]} owed client {r.clients[j]} {owed[i, j]:.6f} and was billed {r.units[i, j] / TOKEN:.6f}"
    )


def wrong_delivery(r: MarketRound) -> str:
    """Return a client that got its centre without paying, or paid without getting it."""
    unpaid = np.sort(r.clients[~r.paid])
    # rows of one block lie in the order of the clients, wherever the block begins: both differ by one number
    if len(unpaid) == len(r.withheld) and len(np.unique(np.sort(r.withheld) - unpaid)) <= 1:
        return ""
    who = ", ".join(map(str, unpaid[:10].tolist())) or "nobody"
    return f"a model without payment: {len(r.withheld)} were withheld, and {len(unpaid)} were not paid (by {who})"


def unlike_settings(parts: Mapping[str, Any]) -> Callable[[MarketRound], str]:
    """Return a check that a market followed the run's settings: pricing, tariff, lambda, and the end of Algorithm 2.

    Only built-in parts are checked.

    Args:
        parts: the mechanism's built-in parts by slot, as ``config.toml`` has them.
    """
    due: dict[str, Any] = {}
    if isinstance(market := parts.get("weigh"), IPFL):
        due |= {"lam": market.lam, "stop": getattr(market, "stop", "skip")}
    if isinstance(bills := parts.get("settle"), IPFL):
        due |= {"pricing": bills.pricing, "tariff": bills.tariff}

    def wrong(r: MarketRound) -> str:
        """Return the first setting from which a market differs, or ""."""
        had = {"lam": r.market.lam, "stop": r.stop, "pricing": r.pricing, "tariff": r.tariff}
        other = [name for name in due if had[name] != due[name]]
        return f"its {other[0]} was {had[other[0]]!r}, and the settings say {due[other[0]]!r}" if other else ""

    return wrong


def unlike_evidence(rounds: Iterable[MarketRound], z: float | None, clients: int) -> str:
    """Return the first market whose sizes are not the claimed ones as limited by the evidence of earlier rounds.

    Args:
        rounds: the recorded markets, in their order.
        z: how many standard errors a size may exceed the evidence, from the settings. None: there is no evidence.
        clients: how many clients the run has.
    """
    caps = np.full(clients, np.inf)
    for r in rounds:
        if (r.cap is None or r.claimed is None) != (z is None):
            return f"round {r.round}: evidence of sizes is in the record or in the settings, and not in both"
        if z is None or r.cap is None or r.claimed is None:
            continue
        if not ((r.clients >= 0) & (r.clients < clients)).all():
            return f"round {r.round}: a client is not one of the run's {clients}"
        due = np.minimum(r.claimed, caps[r.clients])
        bad = np.flatnonzero((r.cap != caps[r.clients]) | ((r.market.sizes != due) & (r.market.sizes != 0)))
        if len(bad):
            j = bad[0]
            return (
                f"round {r.round}: the size of client {r.clients[j]} was {r.market.sizes[j]:g}, and by evidence it is "
                f"{due[j]:g}"
            )
        if r.evidence is not None:
            if len(r.evidence[1]) != clients:
                return f"round {r.round}: there is evidence of {len(r.evidence[1])} clients, and the run has {clients}"
            caps = size_caps(*r.evidence, z)
    return ""


def unlike_books(
    rounds: Iterable[MarketRound], history: Iterable[tuple[int, Transaction]], through: int | None = None
) -> str:
    """Return the first payment in which the records and the ledger differ, or "".

    Args:
        rounds: the recorded markets.
        history: the ledger's transactions, each with its round.
        through: rounds from this one on are not in the ledger yet. None: all rounds are in it.
    """
    owed: dict[tuple[int, str], dict[str, int]] = {}
    for r in rounds:
        if through is not None and r.round >= through:
            continue
        clients = r.clients.tolist()
        for buyer, bill in zip(clients, r.money.tolist(), strict=True):
            if any(bill):
                paid = {account(seller): units for seller, units in zip(clients, bill, strict=True) if units}
                owed[r.round, f"market/{buyer}"] = {account(buyer): -sum(bill)} | paid
    for number, transaction in history:
        if transaction.kind != "market":
            continue
        expected = owed.pop((number, transaction.step), None)
        payer = transaction.step.partition("/")[2]
        if expected is None:
            return f"round {number}: the ledger moved client {payer}'s units, and no record explains it"
        # not as a dictionary: an account may stand in several postings, of which it would keep the last
        if sorted(transaction.postings) != sorted(expected.items()):
            units = max(0, -expected[account(int(payer))])
            return f"round {number}: the ledger moved client {payer}'s units otherwise than the record's {units}"
    for number, step in owed:
        return f"round {number}: client {step.partition('/')[2]} paid by the record, and the ledger has nothing of it"
    return ""


def unlike_rows(table: Table, record: Arrays) -> str:
    """Return the first row of a table that does not match its recorded hash, or "".

    A row that is recorded neither by weights nor by hash is an error too. Withheld rows are skipped, since they did not
    change.

    Args:
        table: the models after the round.
        record: the round's arrays.
    """
    withheld = record.get("withheld", ())
    made, hashes = (record[name].tolist() if name in record else [] for name in ("made_row", "made_hash"))
    if "W_shape" not in record:
        return "its round has no record"
    if bare := sorted(set(range(int(record["W_shape"][0]))) - set(record["W_row"].tolist()) - set(made)):
        return f"row {bare[0]} of the table was recorded neither by weights nor by its hash"
    for row, recorded in zip(made, hashes, strict=True):
        actual = row_hash(table.rows[row]) if 0 <= row < table.size else "no row"
        if row not in withheld and actual != recorded:
            return f"row {row} of the table is {actual}, and was recorded as {recorded}"
    return ""


def against_rules(folder: Path, history: Iterable[tuple[int, Transaction]]) -> str:
    """Return the first transaction that the run's payment rule cannot have posted, or "".

    Each client gets one grant, of the size in ``config.toml``, or all parts of one grant in order. This happens before
    anything else moves its account. If sizes are proved, each client puts up one bond. It is returned if an auditor has
    signed, or if the run ended before that. Otherwise it goes to the mint. All other transactions are of kinds that the
    rule declares. (This is not checked for a user's own rule that declares none.) Nothing is dated after the last
    settlement, whose round number is one above the last round's.

    Args:
        folder: the run directory.
        history: the ledger's transactions, each with its round.
    """
    config = read_toml(folder / "config.toml")
    if not table(config, "mechanism"):
        return f"{folder / 'config.toml'}: names no mechanism, so nobody can say what its rule posts"
    asked = table(config, "clients").get("grant")
    units = round((float(asked) if is_number(asked) else ClientsSection().grant) * TOKEN)
    clients, kinds = registered(folder, config), _kinds(folder, config)
    proved = table(config, "sizes").get("proved") is True
    if proved and "sizes" not in REPLAYS:
        raise UserError(f"{folder / 'config.toml'}: sizes.proved: needs a wing{absent()}")
    bonds = REPLAYS["sizes"].of(config) if proved else None
    parts, given = _parts(config), dict[str, int]()
    opened, last = set[str](), 1 + max((line["round"] for line in json_lines(folder / METRICS, ("round",))), default=-1)
    for round_, transaction in history:
        where = f"round {round_}: '{transaction.step}'"
        if round_ > last:
            return f"{where}: is dated after the run, whose last settlement is of round {last}"
        if transaction.kind == "grant":
            to = transaction.postings[-1][0]
            number = to.partition("/")[2]
            number_of = given.setdefault(to, 0)
            given[to] += 1
            if number_of == parts or (number_of == 0 and to in opened):
                return f"{where}: {to} was opened before; each client gets one grant, when it joins"
            due = part_of(units, parts, number_of)
            if not number.isdecimal() or transaction != grant(int(number), due):
                return f"{where}: is not a grant of {say(due)} tokens from the mint to one client"
            if to != account(int(number)) or (clients is not None and int(number) >= clients):
                return f"{where}: the run has no client {number}"
        elif bonds is not None and transaction.kind in BONDS:
            if wrong := bonds.wrong(transaction, ended=round_ == last):
                return f"{where}: {wrong}"
        elif kinds and transaction.kind not in kinds:
            named = ", ".join(sorted(kinds))
            return f"{where}: is of the kind '{transaction.kind}', which the run's payment rule does not post ({named})"
        opened |= {name for name, _ in transaction.postings}
    return ""


def _parts(config: Mapping[str, Any]) -> int:
    """Return in how many parts a new client gets its grant."""
    given = table(config, "clients").get("vests")
    return given if isinstance(given, int) and given >= 1 else ClientsSection().vests


def _kinds(folder: Path, config: Mapping[str, Any]) -> frozenset[str]:
    """Return the kinds that the payment rule says it posts, by its code if it is built in, else by the directory."""
    parts = built_in_parts(config)
    rule = parts.get("settle")
    if rule is None:
        return read_about(folder).posted
    standing = frozenset(slot for slot, part in parts.items() if part is rule)
    return frozenset(kind.kind for kind in rule.tells(standing).kinds)


def first_wrong(
    rounds: Iterable[MarketRound],
    history: Iterable[tuple[int, Transaction]],
    through: int | None = None,
    parts: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[int, str | None]:
    """Replay all markets of a run, and compare the ledger with them.

    Args:
        rounds: the recorded markets.
        history: the ledger's transactions, each with its round.
        through: as in :func:`unlike_books`.
        parts: as in :func:`unlike_settings`.

    Returns:
        The number of markets, and the first error or None.
    """
    looks: tuple[Callable[[MarketRound], str], ...] = (unlike_settings(parts), wrong_payments, wrong_delivery)
    count, wrong = 0, list[str]()

    def seen() -> Iterator[MarketRound]:
        """Yield, count and check the markets, so a long run is read only once."""
        nonlocal count
        for r in rounds:
            count += 1
            wrong.extend(f"round {r.round}: {said}" for said in (look(r) for look in looks) if said)
            yield r

    unlike = unlike_books(seen(), history, through)
    return count, wrong[0] if wrong else unlike or None


@dataclass(frozen=True)
class Replayed:
    """The result of checking a run's books against its settings and records.

    Attributes:
        markets: how many markets of models were recomputed.
        auctions: how many rounds of a token manager were recomputed. None: the run has no built-in token manager.
        wrong: the first error. None: there is none.
        lost: whether the error is that a round's file is lost, so nothing was recomputed.
        foreign: whether the payment rule is unknown, so no amount can be recomputed.
        by_value: how many rounds of payment by value were recomputed. None: the run has no such rounds.
        beyond: a sentence on rounds that are in the records and not in the book. "": there are none.
    """

    markets: int = 0
    auctions: int | None = None
    wrong: str | None = None
    lost: bool = False
    foreign: bool = False
    by_value: int | None = None
    beyond: str = ""


def wrong_books(folder: Path) -> str | None:
    """Return what ``hanse ledger verify`` finds wrong with the books in a run directory, or None if they are right."""
    with open_ledger(folder) as ledger:
        return verify_run(folder, ledger).wrong or replay_books(folder, ledger).wrong


def replay_books(folder: Path, ledger: Ledger) -> Replayed:
    """Check a run's books against its settings and the records of its rounds.

    Args:
        folder: the run directory.
        ledger: the run's open ledger, already verified.

    Raises:
        UserError: a record is damaged.
    """
    for number, why in lost_rounds(folder).items():
        return Replayed(wrong=f"round {number}: {why}, so nobody can say what it should have cost", lost=True)
    if wrong := against_rules(folder, movements(ledger)):
        return Replayed(wrong=wrong)
    beyond = unbooked(folder, ledger)
    through = beyond.start
    parts = built_in_parts(read_toml(folder / "config.toml"))
    markets, unlike = first_wrong(recorded_markets(folder), movements(ledger), through, parts)
    if unlike is not None:
        return Replayed(markets, None, unlike)
    auctions, differs = replay_tokens(folder, movements(ledger), through, is_settled(folder, ledger))
    foreign = not isinstance(parts.get("settle"), IPFL | TokenManager)
    by_value, otherwise = replay_by_value(folder, movements(ledger), through)
    return Replayed(
        markets,
        auctions,
        differs or otherwise or None,
        foreign=foreign and by_value is None,
        by_value=by_value,
        beyond=beyond_the_book(beyond),
    )
