"""The audit of a finished run: every market is replayed from its record, and the records are held against the books.

:func:`audit_run` is what ``hanse audit`` prints: an :class:`Audit` with one :class:`Check` for each property that a
market must have, a :class:`Fact` for what it found out and no market must be, and what each client traded.
:func:`load_market` returns the recorded markets for other uses. An audit needs nothing but the run directory, so a
federation on a network is audited in the same way as a simulation.

For aggregation rules that make a row instead of weights (medians, for example) the records have only hashes. The audit
holds the rows of the last checkpoint against them, in any run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.files import read_arrays, run_folder
from hanse.core.entry import TOKEN, Transaction, escrow
from hanse.core.entry import client as account
from hanse.games.market import best_imports, utilities_of
from hanse.games.market_checks import local_optimality
from hanse.ledger.place import is_settled, reading, rounds_written, verify_run
from hanse.runs.reading import last_state
from hanse.runs.record import MarketRound, RunRecord, has_hashes, load_run, lost_rounds, recorded_markets, rounds_of
from hanse.runs.replay import against_rules, unlike_books, unlike_rows, wrong_delivery, wrong_payments
from hanse.runs.replay_tokens import replay_tokens

SLACK = 1e-6  # tokens, one unit: what rounding a payment down to the unit may cost a seller
MOST = 1 << 32  # bytes of all markets of a run, which are in memory at once: a small file may unpack to a huge one


@dataclass(frozen=True)
class Check:
    """One property of a run, which a record can lack.

    Attributes:
        name: what the property is called, such as "payments".
        holds: whether it holds in all rounds.
        said: if it holds, what it says or a figure beside it; if not, the first or worst place where it fails.
    """

    name: str
    holds: bool
    said: str


@dataclass(frozen=True)
class Fact:
    """Something that an audit found and that is neither right nor wrong, such as who traded nothing.

    Attributes:
        name: what it is about.
        said: what was found.
    """

    name: str
    said: str


@dataclass(frozen=True, kw_only=True)
class ClientSums:
    """What the markets of a run came to for one client.

    Attributes:
        client: its number.
        utility: what they were worth to it, in tokens, by what is true of it (iPFL eq. 1).
        bought: what it paid, in tokens.
        sold: what it was paid, in tokens.
        rounds_traded: in how many rounds it bought or sold anything that was delivered.
        rounds_withheld: in how many rounds what it wanted was withheld because it did not pay.
    """

    client: int
    utility: float
    bought: float
    sold: float
    rounds_traded: int
    rounds_withheld: int


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        markets: how many markets were replayed, one for each round that had any.
        checks: the properties.
        clients: the sums of every client that took part, by its number.
        facts: what else was found.
    """

    markets: int
    checks: tuple[Check, ...]
    clients: tuple[ClientSums, ...]
    facts: tuple[Fact, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {"holds": self.holds, **asdict(self)}


def load_market(folder: Path) -> list[MarketRound]:
    """Return the recorded markets of a run, in the order of its rounds.

    Args:
        folder: the run directory.

    Raises:
        UserError: there is no run, none of its rounds has a market, a record is damaged, or they need too much memory.
    """
    found, size = [], 0
    for market in recorded_markets(run_folder(folder)):
        size += market.market.distance.nbytes + market.units.nbytes + market.graph.nbytes
        if size > MOST:
            raise UserError(f"{folder}: its markets unpack to more than {MOST:,} bytes up to round {market.round}")
        found.append(market)
    if not found:
        raise UserError(
            f"{folder}: nobody pays in it, and no rule makes models of its own, so there is nothing to audit; "
            "'hanse audit' is for runs such as those of --set mechanism=ipfl and --set mechanism=pifl"
        )
    return found


def audit_run(folder: Path, ledger_url: str | None = None) -> Audit:
    """Replay a run's markets and check them against its books, and check models that are recorded by their hashes.

    The checks are: the graph is the one that iPFL's Algorithm 2 gives for what was declared; no import is too many and,
    unless the algorithm stops at the first seller that does not pay, none was left out (eq. 9), by the same figures as
    ``market/eq9`` of the run; payments are the prices; nobody loses, by what was declared and by what is true; who did
    not pay got nothing; and the ledger has exactly these payments. Of PI-FL's and TIFF's auctions every posting is
    computed anew. In any run with books, grants and kinds of payments are checked, and whether the files of the rounds
    are those that were written. The facts are by how much imports were left out where the algorithm stops, who traded
    nothing, and how known cheats fared.

    Args:
        folder: the run directory.
        ledger_url: where the books are, if not in the folder.

    Raises:
        UserError: there is no run, it has neither a market nor such models, or it cannot be read.
    """
    folder = run_folder(folder)
    made = _made_rows(folder)
    records, models = _records(folder), () if made is None else (made,)
    if next(recorded_markets(folder), None) is None and (made is not None or (folder / "ledger.json").exists()):
        return _audit_of(0, (records, *_books(folder, (), ledger_url), *models, _cheats_hold(folder, ledger_url)), ())
    rounds = load_market(folder)
    run, clients = load_run(folder), client_sums(rounds)
    lines = {int(line["round"]): line for line in run.metrics}
    found: list[Check | Fact | None] = [
        records,
        _all("graph", "who imports whom is what iPFL's Algorithm 2 makes of the declarations", rounds, _graph),
        _all("payments", "every payment is its price, rounded down to the unit", rounds, wrong_payments),
        _all("no import too many", "every import is worth at least its price (iPFL eq. 9)", rounds, _too_many),
        _left_out(rounds),
        _all("market/eq9", "the run's own metric is what its record gives", rounds, partial(_unlike_eq9, lines)),
        _rationality(
            "individual rationality",
            rounds,
            "nobody lost in any round, by what clients declared of themselves",
            _declared,
        ),
        _rationality(
            "true rationality",
            rounds,
            "nobody lost in any round, by what the run has as true of the clients",
            lambda r: r.utility,
        ),
        _all("delivery", "clients that did not pay got nothing", rounds, wrong_delivery),
        *_books(folder, rounds, ledger_url),
        *models,
        *who_traded(run, clients),
    ]
    if isinstance(records, Check) and not records.holds:
        of = f"; this is said of {len(rounds)} markets, and not of rounds whose files are lost"
        whole = "grants and kinds"  # which reads the books alone
        found = [
            replace(c, said=c.said + of) if isinstance(c, Check) and c.holds and c.name != whole else c for c in found
        ]
    return _audit_of(len(rounds), found, clients)


def _cheats_hold(folder: Path, ledger_url: str | None) -> Fact | None:
    """Return what those hold at the end whom the experiment's file makes cheat, beside the others' mean; None for a run
    without books.
    """
    if not (folder / "ledger.json").exists():
        return None
    run = load_run(folder)
    cheats = {c: conduct.label or "cheats" for conduct in run.about.conducts if conduct.cheats for c in conduct.clients}
    with reading(folder, ledger_url) as ledger:
        balances = ledger.balances()
    held = [
        (balances.get(account(c), 0) + balances.get(escrow(c), 0)) / TOKEN
        for c in range(run.num_clients)
        if account(c) in balances
    ]
    if len(held) != run.num_clients or not cheats:
        return Fact("known cheats", "none of these clients, by the experiment's file") if not cheats else None
    honest = [tokens for c, tokens in enumerate(held) if c not in cheats]
    beside = f"; the others have {np.mean(honest):.3f} on average" if honest else ""
    each = (f"client {run.client_label(c)} (of the {cheats[c]}) has {held[c]:.3f} tokens" for c in sorted(cheats))
    return Fact("known cheats", ", ".join(each) + beside)


def _audit_of(markets: int, found: Sequence[Check | Fact | None], clients: tuple[ClientSums, ...]) -> Audit:
    """Return the audit of what was found; None stands for what the run does not have."""
    checks = tuple(one for one in found if isinstance(one, Check))
    return Audit(markets, checks, clients, tuple(one for one in found if isinstance(one, Fact)))


def _made_rows(folder: Path) -> Check | Fact | None:
    """Return whether the rows that a rule made itself are, in the last checkpoint, those of the record.

    Records have such rows by their hashes. None if no round made any, a fact if the last checkpoint has none of them.
    """
    wanted = ("made_row", "made_hash", "withheld", "W_row", "W_shape")
    kept = {n: read_arrays(file, wanted) for n, file in rounds_of(folder)}
    count = sum(len(record.get("made_row", ())) for record in kept.values())
    state = last_state(folder)
    if not count:
        return None
    if state is None or state.round == 0:
        return Check(
            "models", False, f"{count} were recorded by their hashes, and there is no checkpoint to compare them with"
        )
    record = kept.get(state.round - 1, {})
    try:
        wrong = unlike_rows(state.table, record)
    except (ValueError, TypeError, KeyError) as bad:
        raise UserError(f"{folder}: the record of round {state.round - 1} cannot be read: {bad}") from None
    said = f"{count} were recorded by their hashes, and the last checkpoint has"
    if not wrong and not len(record.get("made_row", ())):
        return Fact("models", f"{said} none of them: none could be compared")
    return Check("models", not wrong, wrong or f"{said} those of round {state.round - 1}")


def client_sums(rounds: Sequence[MarketRound]) -> tuple[ClientSums, ...]:
    """Return each client's sums over some markets, by its number."""
    who = np.unique(np.concatenate([r.clients for r in rounds]))
    utility, bought, sold = np.zeros((3, len(who)))
    traded, withheld = np.zeros((2, len(who)), np.int64)
    for r in rounds:
        at = np.searchsorted(who, r.clients)
        utility[at] += r.utility
        bought[at] += r.money.sum(axis=1) / TOKEN
        sold[at] += r.money.sum(axis=0) / TOKEN
        traded[at] += r.realised.any(axis=0) | r.realised.any(axis=1)
        withheld[at] += ~r.paid
    columns = {"client": who, "utility": utility, "bought": bought, "sold": sold}
    columns |= {"rounds_traded": traded, "rounds_withheld": withheld}
    lines = zip(*(column.tolist() for column in columns.values()), strict=True)
    return tuple(ClientSums(**dict(zip(columns, line, strict=True))) for line in lines)


def _all(name: str, what: str, rounds: Sequence[MarketRound], wrong: Any) -> Check:
    """Return a check that holds if ``wrong(round)`` is "" for every round; ``what`` says what it then means."""
    for r in rounds:
        said = wrong(r)
        if said:
            return Check(name, False, f"round {r.round}: {said}")
    return Check(name, True, what)


def _graph(r: MarketRound) -> str:
    """Return where the graph is not the one that Algorithm 2 makes of what was declared; "" if it is."""
    bad = np.argwhere(best_imports(r.market, r.stop) != r.graph)
    if not len(bad):
        return ""
    i, j = bad[0]
    does, should = ("imports", "should not") if r.graph[i, j] else ("does not import", "should")
    return f"client {r.clients[i]} {does} the model of client {r.clients[j]}, and by Algorithm 2 it {should}"


def _too_many(r: MarketRound) -> str:
    """Return an import that costs its buyer more than it brings, by iPFL eq. (9); "" if there is none."""
    removal, _ = local_optimality(r.market, r.graph)
    return f"an import is worth {removal:.2g} less than its price" if removal > _slack(r) else ""


def _slack(r: MarketRound) -> float:
    """Return what rounding may do to eq. (9), in proportion to the largest gain that a client can have, sqrt(K / n)."""
    return 1e-9 * (1 + float(np.sqrt(r.market.eagerness / np.maximum(r.market.sizes, 1)).max(initial=0)))


MOST_LEFT_OUT = 20  # rounds that are named


def _left_out(rounds: Sequence[MarketRound]) -> Check | Fact:
    """Return whether imports that would have paid were left out, the other half of iPFL eq. (9).

    Where Algorithm 2 ends at the first seller that does not pay ("break"), it promises nothing of them: by how much the
    best of them would have paid, round by round, is then a fact.
    """
    name = "no import left out"
    gains = {r.round: gain for r in rounds if (gain := local_optimality(r.market, r.graph)[1]) > _slack(r)}
    if not gains:
        return Check(name, True, "no import that would have paid was left out (iPFL eq. 9)")
    worst, largest = max(gains.items(), key=lambda item: item[1])
    if all(r.stop == "skip" for r in rounds):
        return Check(
            name, False, f"round {worst}: an import that was left out is worth {largest:.2g} more than its price"
        )
    named = sorted(sorted(gains, key=lambda number: -gains[number])[:MOST_LEFT_OUT])
    more = len(gains) - len(named)
    return Fact(
        "imports left out",
        f"stop = 'break' left out an import that would have paid in {len(gains)} of {len(rounds)} markets, so iPFL "
        f"eq. (9) does not hold there; the most that one was worth above its price: {largest:.4g} tokens in round "
        f"{worst}. By round: {', '.join(f'{number}: {gains[number]:.4g}' for number in named)}"
        + (f", and {more} more by less" if more else ""),
    )


def _unlike_eq9(lines: Mapping[int, Mapping[str, Any]], r: MarketRound) -> str:
    """Return where a round's metric ``market/eq9`` is not what the market's record gives; "" if it is.

    A round that is not among the ``lines`` of the metrics yet is passed over.
    """
    gives = max(local_optimality(r.market, r.graph))
    if r.round not in lines or not np.isfinite(gives):
        return ""
    told = lines[r.round].get("market/eq9")
    if isinstance(told, int | float) and abs(told - gives) <= 1e-6 * (1 + abs(gives)):
        return ""
    return f"the run says {told!r}, and its record gives {gives:.6g}"


def _declared(r: MarketRound) -> NDArray[np.float64]:
    """Return each client's utility ``[m]`` (tokens) by what it declared of itself."""
    market = r.market
    return utilities_of(r.realised, r.money / TOKEN, market.sizes, market.costs, market.eagerness)


def _rationality(name: str, rounds: Sequence[MarketRound], what: str, utility: Any) -> Check:
    """Return whether ``utility(round)`` is nobody's loss in any round, up to the rounding of payments."""
    losses = []
    for r in rounds:
        found = utility(r)
        slack = SLACK * (1 + r.realised.sum(axis=0))  # each sold edge is rounded down
        losses += [(float(found[i]), r.round, int(r.clients[i])) for i in np.flatnonzero(~(found >= -slack))]
    if not losses:
        return Check(name, True, what)
    if unknown := [(number, client) for worth, number, client in losses if np.isnan(worth)]:
        return Check(name, False, f"the record of round {unknown[0][0]} has no number for client {unknown[0][1]}")
    worst, number, client = min(losses)
    return Check(name, False, f"{len(losses)} losses; the largest is client {client}'s {-worst:.3f} in round {number}")


def _records(folder: Path) -> Check | Fact:
    """Return whether the file of every round is there and is the one that was written; a fact if no hash can tell."""
    lost = [f"round {number}: {why}" for number, why in lost_rounds(folder).items()]
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    if not lost and not has_hashes(folder):
        return Fact("records", "an older hanse wrote the run: its lines have no hashes of the rounds' files")
    return Check("records", not lost, lost[0] + more if lost else "every round's file is the one that was written")


def _books(folder: Path, rounds: Sequence[MarketRound], ledger_url: str | None) -> list[Check]:
    """Return whether the ledger's chain of hashes is whole and its sum 0, and whether its postings are those that the
    run's settings and records give: grants, kinds, a market's payments, an auction's. Nothing if nobody pays.
    """
    if not (folder / "ledger.json").exists():
        return []
    with reading(folder, ledger_url) as ledger:

        def history() -> Iterator[tuple[int, Transaction]]:
            return ((record.round, record.transaction) for record in ledger.history())

        verdict, through = verify_run(folder, ledger), rounds_written(folder, ledger)
        if verdict.wrong is not None:
            return [Check("conservation", False, f"the ledger does not verify: {verdict.wrong}")]
        unlike, odd = unlike_books(rounds, history(), through), against_rules(folder, history())
        lost = bool(lost_rounds(folder))
        settled = is_settled(folder, ledger)
        auctions, differs = (0, "") if lost else replay_tokens(folder, history(), through, settled)
    said = f"{verdict.transactions} transactions; the books and the records agree to the unit"
    grants = "one grant a client, of the size that was set, and only kinds of payments that the rule posts"
    found = [Check("conservation", not unlike, unlike or said), Check("grants and kinds", not odd, odd or grants)]
    if auctions is None or rounds:
        return found
    if auctions == 0 and not differs:
        why = "a round's file is lost" if lost else "the records hold too little, as those of an older hanse do"
        return [*found, Check("auctions", False, f"not computed anew: {why}")]
    return [*found, Check("auctions", not differs, differs or f"all postings of {auctions} rounds follow from records")]


def who_traded(run: RunRecord, clients: Sequence[ClientSums]) -> tuple[Fact, Fact]:
    """Return who traded nothing, and what those earned whom the experiment's file makes cheat.

    Whoever cheats without the file saying so is not in the records.

    Args:
        run: the run.
        clients: its clients' sums over all markets.
    """
    conducts = [conduct for conduct in run.about.conducts if conduct.cheats]
    cheats = {client: conduct.label or "cheats" for conduct in conducts for client in conduct.clients}
    named = {c.client: run.client_label(c.client) for c in clients}
    named |= {c: f"{name} (of the {cheats[c]})" for c, name in named.items() if c in cheats}
    alone = [named[c.client] for c in clients if not c.rounds_traded]
    nothing = f"client{'s' if len(alone) > 1 else ''} {', '.join(alone)} bought and sold nothing in any round"
    earned = [
        f"client {named[c.client]} was paid {c.sold:.3f} and paid {c.bought:.3f} tokens; its utility of "
        f"{c.utility:.3f} is number {1 + sum(other.utility > c.utility for other in clients)} of {len(clients)}"
        for c in clients
        if c.client in cheats
    ]
    return (
        Fact("no trade", nothing if alone else "nobody: every client bought or sold in some round"),
        Fact("known cheats", "; ".join(earned) or "none of these clients, by the experiment's file"),
    )
