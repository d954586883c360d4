"""The audit of a finished run: every market is replayed from its record, and the records are held against the books.

:func:`audit_run` is what ``hanse audit`` prints: an :class:`Audit` with one :class:`Check` for each property that a
market must have, and what each client traded. :func:`load_market` returns the recorded markets for other uses. An audit
needs nothing but the run directory, so a federation on a network is audited in the same way as a simulation.

For aggregation rules that make a row instead of weights (medians, for example) the records have only hashes. The audit
holds the rows of the last checkpoint against them, in any run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.files import read_arrays, run_folder
from hanse.core.entry import TOKEN, Transaction
from hanse.games.market import best_imports, utilities_of
from hanse.games.market_checks import local_optimality
from hanse.ledger.place import is_settled, reading, rounds_written, verify_run
from hanse.runs.reading import last_state
from hanse.runs.record import MarketRound, lost_rounds, recorded_markets, rounds_of
from hanse.runs.replay import against_rules, unlike_books, unlike_rows, wrong_balance, wrong_delivery, wrong_payments
from hanse.runs.replay_tokens import replay_tokens

SLACK = 1e-6  # tokens, one unit: what rounding a payment down to the unit may cost a seller
MOST = 1 << 32  # bytes of all markets of a run, which are in memory at once: a small file may unpack to a huge one


@dataclass(frozen=True)
class Check:
    """One property of a run.

    Attributes:
        name: what the property is called, such as "payments".
        holds: whether it holds in all rounds.
        said: if it holds, what it says or a figure beside it; if not, the first or worst place where it fails.
    """

    name: str
    holds: bool
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
    """

    markets: int
    checks: tuple[Check, ...]
    clients: tuple[ClientSums, ...]

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
            f"{folder}: none of its rounds has a market; 'hanse audit' is for runs with a market of models, "
            "such as those of --set mechanism=ipfl"
        )
    return found


def audit_run(folder: Path, ledger_url: str | None = None) -> Audit:
    """Replay a run's markets and check them against its books, and check models that are recorded by their hashes.

    The properties are: the graph is the one that iPFL's Algorithm 2 gives for what was declared, and is locally optimal
    (eq. 9); payments are the prices; nobody loses, by what was declared and by what is true; what is paid is what is
    received; who did not pay got nothing; and the ledger has exactly these payments. Of PI-FL's and TIFF's auctions
    every posting is computed anew. In any run with books, grants and kinds of payments are checked, and whether the
    files of the rounds are those that were written.

    Args:
        folder: the run directory.
        ledger_url: where the books are, if not in the folder.

    Raises:
        UserError: there is no run, it has neither a market nor such models, or it cannot be read.
    """
    made = _made_rows(run_folder(folder))
    records, models = _records(folder), () if made is None else (made,)
    if next(recorded_markets(folder), None) is None and (made is not None or (folder / "ledger.json").exists()):
        return Audit(0, (records, *_books(folder, (), ledger_url), *models), ())
    rounds = load_market(folder)
    clients = _sums(rounds)
    checks = (
        records,
        _all("graph", "who imports whom is what iPFL's Algorithm 2 makes of the declarations", rounds, _graph),
        _all("payments", "every payment is its price, rounded down to the unit", rounds, wrong_payments),
        _all("local optimality", "nobody imports a model too many or too few, iPFL eq. (9)", rounds, _optimal),
        _rationality(
            "individual rationality",
            rounds,
            "nobody lost in any round, by what clients declared of themselves",
            _declared,
        ),
        _rationality(
            "true rationality", rounds, "nobody lost in any round, by what is true of the clients", lambda r: r.utility
        ),
        _all("budget balance", "all that was paid was received", rounds, wrong_balance),
        _all("delivery", "clients that did not pay got nothing", rounds, wrong_delivery),
        *_books(folder, rounds, ledger_url),
        _isolated(clients),
        *models,
    )
    return Audit(len(rounds), checks, clients)


def _made_rows(folder: Path) -> Check | None:
    """Return whether the rows that a rule made itself are, in the last checkpoint, those of the record.

    Records have such rows by their hashes. None if no round made any.
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
    has = "has those" if "made_row" in record else "has none"
    said = f"{count} were recorded by their hashes, and the last checkpoint {has} of round {state.round - 1}"
    return Check("models", not wrong, wrong or said)


def _sums(rounds: Sequence[MarketRound]) -> tuple[ClientSums, ...]:
    """Return each client's sums over the markets."""
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


def _optimal(r: MarketRound) -> str:
    """Return an import too many or too few by iPFL eq. (9); "" if there is none."""
    removal, addition = local_optimality(r.market, r.graph)
    # for rounding, in proportion to the largest gain that a client can have, sqrt(K / n)
    slack = 1e-9 * (1 + float(np.sqrt(r.market.eagerness / np.maximum(r.market.sizes, 1)).max(initial=0)))
    if removal > slack:
        return f"an import is worth {removal:.2g} less than its price"
    # a market that ends at the first seller that does not pay may leave out others that would
    left_out = addition > slack and r.stop == "skip"
    return f"an import that was left out is worth {addition:.2g} more than its price" if left_out else ""


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
        losses += [(float(found[i]), r.round, int(r.clients[i])) for i in np.flatnonzero(found < -slack)]
    if not losses:
        return Check(name, True, what)
    worst, number, client = min(losses)
    return Check(name, False, f"{len(losses)} losses; the largest is client {client}'s {-worst:.3f} in round {number}")


def _records(folder: Path) -> Check:
    """Return whether the file of every round is there and is the one that was written."""
    lost = [f"round {number}: {why}" for number, why in lost_rounds(folder).items()]
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
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


def _isolated(clients: Sequence[ClientSums]) -> Check:
    """Return who never traded. This check always holds: being isolated is a fact, not a fault of the market."""
    alone = [str(c.client) for c in clients if not c.rounds_traded]
    who = f"never traded: client{'s' if len(alone) > 1 else ''} {', '.join(alone)}" if alone else "everybody traded"
    return Check("isolation", True, who)
