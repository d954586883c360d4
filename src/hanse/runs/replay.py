"""Checks what a run must have posted: grants, kinds of transactions, and the payments of its rule.

``hanse ledger verify`` and ``hanse audit`` use it. The rule's own ``settle`` is called again with what it was shown, as
far as the rounds' records have it (:mod:`hanse.runs.settle_inputs`), and must return the postings of the ledger. Beside
that, the checks that the rule names (:meth:`hanse.core.part.SettlePart.checks`) find what ``settle`` itself does wrong.
They also hold for older runs, whose records do not have what the rule was shown.

It needs the run directory's ``rounds/``, the ledger's transactions, and for models a checkpoint.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from hanse.base.errors import UserError, first_line
from hanse.base.files import json_lines, on_network, read_arrays, read_toml, table
from hanse.base.imports import NOT_TRUSTED, looking
from hanse.base.plain_text import quantity
from hanse.base.wings import Names, absent
from hanse.core.book import Book
from hanse.core.calling import checked_state, method_of
from hanse.core.entry import BONDS, LEAVE, TOKEN, Transaction, grant, in_tokens, left_behind, owner_of, part_of
from hanse.core.entry import client as account
from hanse.core.part import PostedRound, Settlement, State
from hanse.core.table import Table
from hanse.core.telling import Check, Fact, read_about
from hanse.ledger.receipts import AGREEMENT
from hanse.ledger.run_ledger import closed_in, has_books, is_settled, movements, reading, unbooked, verify_run
from hanse.ledger.store import Ledger, VerifyResult
from hanse.mechanisms import market_checks
from hanse.mechanisms.market_checks import NEEDED, MarketRound, market_of
from hanse.mechanisms.registry import build_mechanism, built_in_parts
from hanse.runs.chance import is_number
from hanse.runs.checkpoint import broken_checkpoints
from hanse.runs.comparison import Comparison, UnlikeError
from hanse.runs.round_record import METRICS, Arrays, lost_rounds, round_file, rounds_of, row_hash
from hanse.runs.run_record import edited_settings, registered
from hanse.runs.sections import ClientsSection, ExitSection
from hanse.runs.settle_inputs import NotRecordedError, RecordedInputs

# what sums in another order make otherwise: of a number itself, and of all numbers of an array that the rule has read,
# which are at least 1 together and at most MOST: one absurd number must not hide changes to all others
ROUNDING, LEFT, MOST = 1e-12, 2.0**-46, 1e6
REPLAYS: Mapping[str, Any] = Names({}, "replays")  # what wings post beside the rule, and check
CHECKS: Mapping[str, Any] = Names({}, "checks")  # of wings' records, by setting: ``checks(rounds, config)`` yields them


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


def against_rules(
    folder: Path, history: Iterable[tuple[int, Transaction]], kinds: frozenset[str], signed: bool = False
) -> str:
    """Return the first transaction that the run's payment rule cannot have posted, or "".

    Each client gets one grant, of the size in ``config.toml``, or all parts of one grant in order. This happens before
    anything else moves its account. If sizes are proved, each client puts up one bond. It is returned if an auditor has
    signed, or if the run ended before that. Otherwise it goes to the mint. Who leaves gets and loses what ``[clients]
    exit`` says, and on a network has signed that it leaves. All other transactions are of kinds that the rule declares.
    (This is not checked for a user's own rule that declares none.) Nothing else is dated after the last settlement,
    whose round number is one above the last round's.

    Args:
        folder: the run directory.
        history: the ledger's transactions, each with its round.
        kinds: the kinds of payments that the rule says it posts (:func:`kinds_of`). Empty: those that the run's
            description names.
        signed: whether an operator has signed the heads of the ledger, as on a network.
    """
    config = read_toml(folder / "config.toml")
    if not table(config, "mechanism"):
        return f"{folder / 'config.toml'}: names no mechanism, so nobody can say what its rule posts"
    section, usual = table(config, "clients"), ClientsSection()
    asked, vests = section.get("grant"), section.get("vests")
    units = round((float(asked) if is_number(asked) else usual.grant) * TOKEN)
    parts = vests if isinstance(vests, int) and vests >= 1 else usual.vests  # in so many a new client gets its grant
    leaving = ExitSection.of(config)
    clients, kinds = registered(folder, config), kinds or read_about(folder).posted
    proved = table(config, "sizes").get("proved") is True
    if proved and "sizes" not in REPLAYS:
        raise UserError(f"{folder / 'config.toml'}: sizes.proved: needs a wing{absent()}")
    bonds = REPLAYS["sizes"].of(config) if proved else None
    given, held, left = Counter[str](), Counter[str](), set[int]()  # by account: the parts of its grant, and its units
    played = {line["round"]: AGREEMENT in line for line in json_lines(folder / METRICS, ("round",))}
    last = 1 + max(played, default=-1)
    # on a network, also where federation.json was taken away: the book covers what members agreed to, in whose place a
    # simulation has the hash of its charter
    signs = signed or on_network(folder) or (any(played.values()) and not table(config, "charter"))
    for round_, transaction in history:
        where = f"round {round_}: '{transaction.step}'"
        if round_ > last and transaction.kind != LEAVE:
            return f"{where}: is dated after the run, whose last settlement is of round {last}"
        if transaction.kind == "grant":
            to = transaction.postings[-1][0]
            number = to.partition("/")[2]
            if given[to] == parts or (given[to] == 0 and to in held):
                return f"{where}: {to} was opened before; each client gets one grant, when it joins"
            due = part_of(units, parts, given[to])
            given[to] += 1
            if not number.isdecimal() or transaction != grant(int(number), due):
                return f"{where}: is not a grant of {in_tokens(due)} from the mint to one client"
            if to != account(int(number)) or (clients is not None and int(number) >= clients) or int(number) in left:
                return f"{where}: the run has no client {number}"
        elif bonds is not None and transaction.kind in BONDS:
            if wrong := bonds.wrong(transaction, ended=round_ == last):
                return f"{where}: {wrong}"
        elif transaction.kind == LEAVE:
            gone = owner_of(transaction.step.replace(LEAVE, "client"))
            if gone is None or (clients is not None and gone >= clients) or gone in left:
                return f"{where}: names no client of the run, or one that had left it"
            left.add(gone)
            back = bonds.left(gone, leaving) if bonds is not None else 0
            lost = max(0, held[account(gone)] + back) if leaving.balance == "lost" else 0
            if transaction.postings != left_behind(gone, back, lost):
                return f"{where}: must give back {in_tokens(back)} of a bond and take {in_tokens(lost)} (clients.exit)"
            if signs and "leave" not in REPLAYS:
                raise UserError(f"{where}: whether it is signed: needs a wing{absent()}")
            if signs and (wrong := REPLAYS["leave"](folder, gone, transaction)):
                return f"{where}: {wrong}"
        elif kinds and transaction.kind not in kinds:
            named = ", ".join(sorted(kinds))
            return f"{where}: is of the kind '{transaction.kind}', which the run's payment rule does not post ({named})"
        for name, moved in transaction.postings:
            held[name] += moved
    return ""


def kinds_of(parts: Mapping[str, Any]) -> frozenset[str]:
    """Return the kinds of payments that the payment rule among a run's parts (:func:`rule_of`) says it posts; none if
    its code is not known here.
    """
    tells = method_of(parts.get("settle"), "tells")
    standing = frozenset(slot for slot, part in parts.items() if part is parts.get("settle"))
    return frozenset() if tells is None else frozenset(kind.kind for kind in tells(standing).kinds)


@dataclass
class Posted:
    """The rounds of a run with what its payment rule posted. It can be iterated several times. Rounds whose file is
    missing are left out.

    Attributes:
        folder: the run directory.
        history: the ledger's transactions, each with its round.
        beyond: the rounds that are not in the ledger yet, up to the last one.
        floor: the lowest balance of an account in units.
        settled: whether the ledger has the last settlement.
        by_member: whether clients have members.
        reached: the round that was read last.
    """

    folder: Path
    history: Sequence[tuple[int, Transaction]]
    beyond: range
    floor: int
    settled: bool
    by_member: bool = False
    reached: int = -1

    @staticmethod
    def of(folder: Path, ledger: Ledger) -> Posted:
        """Return the rounds of a run whose ledger is open and verified."""
        records, clients = list(ledger.history()), table(read_toml(folder / "config.toml"), "clients")
        beyond, settled = unbooked(folder, closed_in(records)), is_settled(folder, ledger)
        by_member = bool(clients.get("members"))
        return Posted(folder, list(movements(records)), beyond, ledger.floor, settled, by_member)

    def __iter__(self) -> Iterator[PostedRound]:
        """Yield the rounds in their order, and what was posted after them."""
        ours, beside = defaultdict[int, list[Transaction]](list), defaultdict[int, list[Transaction]](list)
        for number, transaction in self.history:
            rest = transaction.kind in ("grant", LEAVE, *BONDS)
            (beside if rest else ours)[number].append(transaction)
        book, last, members = Book(floor=self.floor), -1, dict[int, str]()
        for line in json_lines(self.folder / METRICS, ("round",)):
            last = self.reached = int(line["round"])
            file, there = round_file(self.folder, last), (tuple(ours[last]), tuple(beside[last]))
            if last >= self.beyond.start:
                continue
            book = book.post(last, beside[last])
            if file.exists():
                arrays = read_arrays(file)
                members = _joined(members, arrays) if self.by_member else members
                yield PostedRound(last, arrays, line, *there, book, members=members)
            book = book.post(last, ours[last])
        for number in sorted({*ours, *([last + 1] if self.settled else [])}):
            if number > last:
                book = book.post(number, [one for one in beside[number] if one.kind == LEAVE])
                there = tuple(ours[number]), tuple(beside[number])
                yield PostedRound(number, {}, {}, *there, book, ended=True, members=members)


def _joined(before: Mapping[int, str], arrays: Arrays) -> dict[int, str]:
    """Return the members of clients after a round, as far as its record has who was there."""
    found = dict(before)
    with suppress(NotRecordedError, ValueError, KeyError, TypeError):
        recorded = RecordedInputs(arrays, {})
        for client, member in recorded.view("open", stage="open").members.items():
            if member in recorded.context.members.values() and found.get(client) != member:
                found.pop(client, None)
                found[client] = member
    return found


def rule_of(folder: Path, trust: bool = False) -> tuple[Mapping[str, Any], str]:
    """Return a run's parts by slot, as far as they are known here, and why the payment rule is not among them, or "".

    Args:
        folder: the run directory.
        trust: whether to import the user's own parts that its settings name.
    """
    config = read_toml(folder / "config.toml")
    why = "its settings name none"
    with looking(trust=trust):
        try:
            parts: Mapping[str, Any] = build_mechanism(table(config, "mechanism")).slots()
        except (UserError, TypeError, ValueError, KeyError) as wrong:
            parts = built_in_parts(config)
            why = wrong.lines[0] if isinstance(wrong, UserError) else first_line(wrong)
            why = why.replace(NOT_TRUSTED, f"'hanse audit {folder} --trust' allows it")
    return parts, "" if "settle" in parts else why


@dataclass
class Again:
    """Calls a payment rule again with what it was shown, round by round, and compares its postings and its records.

    Attributes:
        parts: the mechanism's parts by slot.
        why_not: why not all rounds were settled again, or "".
        rounds: how many rounds were settled again.
        wrong: the first difference, or "".
    """

    parts: Mapping[str, Any]
    why_not: str = ""
    rounds: int = 0
    wrong: str = ""
    _state: State | None = None
    _last: RecordedInputs | None = None
    _size: float = 1.0

    def following(self, rounds: Iterable[PostedRound]) -> Iterator[PostedRound]:
        """Yield the rounds, each once it was settled again. Who has left is asked no more."""
        left = set[str]()
        for r in rounds:
            left |= {one.step for one in r.beside if one.kind == LEAVE}
            if back := [c for c in r.arrays.get("client", np.zeros(0, np.int64)).tolist() if f"{LEAVE}/{c}" in left]:
                self.wrong = self.wrong or f"round {r.number}: client {back[0]} had left, and was asked to train"
            if r.ended and not (self.wrong or self.why_not):
                self._end(r)
            elif not (self.wrong or self.why_not or "failed" in r.metrics):
                self._settle(r)
                self.rounds += not (self.wrong or self.why_not)
            yield r

    @property
    def _alone(self) -> bool:
        """Whether the rule fills no other slot, so that its state follows from its own calls."""
        return sum(part is self.parts["settle"] for part in self.parts.values()) == 1

    def _end(self, r: PostedRound) -> None:
        """Settle again what was posted after the last round, if the rule asks nobody and reads only the books then."""
        rule, recorded, state = self.parts["settle"], self._last, self._state
        if recorded is None or state is None or not self._alone or method_of(rule, "asks") is not None:
            return
        known: dict[str, Any] = {"round": r.number, "book": r.book, "posted": r.beside, "settlement": None, "found": {}}
        try:
            settlement, _ = rule.settle(recorded.view(None, stage="end", **known), state)
        except Exception as wrong:  # as in a round, but its own checks are about more than the books
            if not (isinstance(wrong, NotRecordedError) or recorded.lacks):
                self.wrong = f"round {r.number}: cannot be settled again: {first_line(wrong)}"
            return
        self._compare(r, settlement)

    def _settle(self, r: PostedRound) -> None:
        """Settle a round again."""
        rule, alone = self.parts["settle"], self._alone
        try:
            recorded = self._last = RecordedInputs(r.arrays, self.parts)
            if self._state is None:
                self._state = checked_state(rule.init(recorded.context)) if alone else {}
            settlement, self._state = _again(r, rule, recorded, self._state, alone)
            arrays = {**settlement.arrays, "withheld": np.array(sorted(settlement.withheld), np.int64)}
            self._compare(r, settlement, arrays)
        except Exception as wrong:  # a record that was tampered with may make a part raise anything
            lacks = str(wrong) if isinstance(wrong, NotRecordedError) else self._last.lacks if self._last else ""
            if lacks:
                self.why_not = f"the record of round {r.number} lacks what the payment rule reads: {lacks}"
            else:
                self.wrong = f"round {r.number}: cannot be settled again: {first_line(wrong)}"

    def _compare(self, r: PostedRound, settlement: Settlement, arrays: Arrays = MappingProxyType({})) -> None:
        """Note the first difference between what a round's settlement posts and records, and what is there."""
        self._size = min(max(self._size, self._last.size if self._last else 0.0), MOST)
        alike = Comparison(ROUNDING, least=LEFT * self._size)
        try:
            alike.same_payments(settlement.transactions, r.posted)
            alike.same("'{}'", arrays, {name: r.arrays.get(name) for name in arrays})
        except UnlikeError as wrong:
            self.wrong = f"round {r.number}: {wrong}"


def checked(rounds: Posted, parts: Mapping[str, Any], why_not: str) -> tuple[tuple[Check, ...], Again]:
    """Return the checks that a run's payment rule names, or of a rule that is not known here those of markets, those of
    wings, and what came of calling the rule again.

    Args:
        rounds: the rounds of the run.
        parts: the mechanism's parts by slot.
        why_not: why the rule is not called again; "" if it is.

    Raises:
        UserError: a record is damaged.
    """
    again = Again(parts, why_not)
    following = again.following(rounds)
    try:
        checks = tuple(parts.get("settle", market_checks).checks(following, parts))
    except (ValueError, KeyError, IndexError, TypeError, OverflowError) as wrong:
        file = round_file(rounds.folder, rounds.reached)
        raise UserError(f"{file}: the record of the round cannot be read: {first_line(wrong)}") from None
    deque(following, maxlen=0)  # those that no check has asked for
    config = read_toml(rounds.folder / "config.toml")
    settings = {f"{section}.{key}" for section in config for key in table(config, section)}
    return (*checks, *(one for name in CHECKS if name in settings for one in CHECKS[name](rounds, config))), again


def _again(r: PostedRound, rule: Any, recorded: RecordedInputs, state: State, alone: bool) -> tuple[Settlement, State]:
    """Return a round's whole settlement and the rule's state after the round."""
    known: dict[str, Any] = {"round": r.number, "book": r.book, "posted": r.beside, "settlement": None, "found": {}}
    whole = Settlement()
    for call in ("open", "close"):
        view = recorded.view(call, stage=call, **known)
        settlement, after = rule.settle(view, state if alone else view.state())
        state = checked_state(after) if alone else state
        new, arrays = settlement.transactions, {**whole.arrays, **settlement.arrays}
        whole = Settlement(settlement.withheld, (*whole.transactions, *new), settlement.metrics, arrays)
        known |= {"book": known["book"].post(r.number, new), "posted": (*known["posted"], *new), "settlement": whole}
        known["found"] = {**known["found"], **{type(one): one for one in settlement.found}}
    if alone and method_of(rule, "learn") is not None:
        state = checked_state(rule.learn(recorded.view("learn", stage="close", **known), state))
    return whole, state


def recorded_markets(folder: Path) -> Iterator[MarketRound]:
    """Yield the markets recorded in a run directory. Raises UserError if a record is damaged."""
    for number, file in rounds_of(folder):
        market = market_of(number, read_arrays(file, NEEDED))
        if market is not None:
            yield market


@dataclass
class Examined:
    """A run's settings, checkpoints, records and books: iterated, it yields what is found of each, in one order.

    ``hanse audit`` asks for all of it, and everybody else for the first that fails (:meth:`failed`).

    Attributes:
        folder: the run directory.
        trust: whether to import a payment rule of the user's own that the settings name.
        verdict: whether the book holds by itself, if that is known.
        parts: the mechanism's parts by slot that are known here; none before the book is looked at.
        rounds: the rounds with what was posted, if the book holds by itself. None: not looked at.
        checks: what the checks found that the payment rule names.
        again: what came of calling the payment rule again.
    """

    folder: Path
    trust: bool = False
    verdict: VerifyResult | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    rounds: Posted | None = None
    checks: tuple[Check, ...] = ()
    again: Again = field(default_factory=lambda: Again({}))

    def __iter__(self) -> Iterator[Check | Fact]:
        """Yield what is found; of settings and checkpoints only faults. Raises UserError: a record is damaged."""
        if edited := edited_settings(self.folder):
            yield Check("config.toml", False, edited)
        if broken := broken_checkpoints(self.folder):
            yield Check("checkpoints", False, f"{broken[0]}; bring back a backup of it")
        lost = [f"round {number}: {why}" for number, why in lost_rounds(self.folder).items()]
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        yield Check("records", not lost, lost[0] + more if lost else "every round's file is the one that was written")
        if not (self.folder / "ledger.json").exists():
            if has_books(self.folder):
                yield Check("conservation", False, "ledger.json is gone")
            return
        self.parts, why_not = rule_of(self.folder, self.trust)
        with reading(self.folder) as ledger:
            verdict = self.verdict or verify_run(self.folder, ledger)
            rounds = self.rounds = Posted.of(self.folder, ledger) if verdict.ok else None
        summed = "each of which sums to 0, and so do all balances together"
        said = verdict.wrong or f"{quantity(verdict.transactions, 'transaction')}, {summed}"
        yield Check("conservation", verdict.ok, said)
        if rounds is None:
            return
        posts = kinds_of(self.parts)
        odd = against_rules(self.folder, rounds.history, posts, ledger.public is not None)
        kinds = ", and only kinds of payments that the rule posts" * bool(posts)
        grants = f"one grant per client, of the size that was set{kinds}"
        yield Check("grants" + " and kinds" * bool(odd or kinds), not odd, odd or grants)
        self.checks, again = checked(rounds, self.parts, "a round's file is lost" if lost else why_not)
        self.again = again
        yield from self.checks
        if again.wrong or not again.why_not:
            same = quantity(again.rounds, "round as it was", "rounds as they were")
            said = f"the payment rule, shown the same, settles {same} settled"
            yield Check("settled again", not again.wrong, again.wrong or said)
        else:
            some = quantity(again.rounds, "round was", "rounds were")
            some = f"{some}, the others not" if again.rounds else "no payment was computed anew"
            yield Fact("settled again", f"{some}: {again.why_not}", unchecked=True)

    def failed(self) -> Check | None:
        """Return the first check that fails, or None; nothing behind it is looked at."""
        return next((one for one in self if isinstance(one, Check) and not one.holds), None)


def wrong_books(folder: Path) -> str | None:
    """Return what ``hanse ledger verify`` finds wrong with a run that has books, or None if all is right."""
    with reading(folder):  # who asks for books is told that there are none
        failed = Examined(folder).failed()
    return None if failed is None else failed.said
