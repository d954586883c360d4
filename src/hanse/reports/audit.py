"""The audit of a finished run: every market is replayed from its record, and records are compared with the books.

:func:`audit_run` returns what ``hanse audit`` prints, an :class:`Audit`. It has one :class:`Check` for each property
that a market must have, a :class:`Fact` for each other finding, and what each client traded. :func:`load_market`
returns the recorded markets for other uses. An audit needs nothing but the run directory, so a federation on a network
is audited in the same way as a simulation.

Some aggregation rules, such as medians, return a row instead of weights. For these the records have only hashes. In any
run, the audit compares the rows of the last checkpoint with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.factories import named_choice
from hanse.base.files import read_arrays, read_toml, run_folder, table
from hanse.core.entry import LOG, TOKEN, escrow
from hanse.core.entry import client as account
from hanse.games.market import best_imports, utilities_of
from hanse.games.market_checks import local_optimality
from hanse.games.market_posted import on_sale, sold
from hanse.ledger.run_ledger import is_settled, movements, reading, unbooked, verify_run
from hanse.mechanisms.by_value import ByValue
from hanse.mechanisms.ipfl import IPFL
from hanse.mechanisms.registry import built_in_parts
from hanse.reports.contributions import contribution
from hanse.reports.groups import SeedGroup
from hanse.runs.edited import edited_settings
from hanse.runs.observers import Told, untold
from hanse.runs.reading import last_state
from hanse.runs.recorded_market import MarketRound, recorded_markets
from hanse.runs.replay import (
    against_rules,
    unlike_books,
    unlike_evidence,
    unlike_rows,
    unlike_settings,
    wrong_delivery,
    wrong_payments,
)
from hanse.runs.replay_by_value import replay_by_value
from hanse.runs.replay_tokens import replay_tokens
from hanse.runs.round_record import lost_rounds, rounds_of
from hanse.runs.run_record import RunRecord, load_run

SLACK = 1e-6  # tokens, one unit: what rounding a payment down to the unit may cost a seller
MOST = 1 << 32  # bytes of all markets of a run, which are in memory at once: a small file may unpack to a huge one

_TRULY = "nobody lost in any round, by what the run has as true of the clients"
_BUT_BY_CHOICE = "nobody lost in any round but by what it chose itself, by what the run has as true of the clients"
_DECLAREDLY = "nobody lost in any round, by what clients declared of themselves"


@dataclass(frozen=True)
class Check:
    """One property that a run should have.

    Attributes:
        name: the property's name, such as "payments".
        holds: whether the run has the property in all rounds.
        said: what the property means, or a figure, if it holds; otherwise the first or worst place where it fails.
    """

    name: str
    holds: bool
    said: str


@dataclass(frozen=True)
class Fact:
    """A finding of an audit that is neither right nor wrong, such as a list of who traded nothing.

    Attributes:
        name: what the fact is about.
        said: what was found.
    """

    name: str
    said: str


@dataclass(frozen=True, kw_only=True)
class ClientSums:
    """One client's sums over the markets of a run.

    Attributes:
        client: the client's number.
        utility: the client's utility over these markets, in tokens, by its true numbers (iPFL eq. 1).
        bought: what the client paid, in tokens.
        sold: what the client was paid, in tokens.
        rounds_traded: the number of rounds in which the client bought or sold something that was delivered.
        rounds_withheld: the number of rounds in which its imports were withheld because it did not pay.
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
        UserError: there is no run, none of its rounds has a market, a record is damaged, or the markets need too much
            memory.
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


def audit_run(folder: Path, told: Told = untold) -> Audit:
    """Replay a run's markets and check them against its books, and check models that are recorded by their hashes.

    These properties are checked. The market's rules are those of the settings. The graph is the one that iPFL's
    Algorithm 2 gives for what was declared. No import is too many and, unless the algorithm stops at the first seller
    that does not pay, none was left out (eq. 9), by the same figures as ``market/eq9`` of the run. Payments are the
    prices. Nobody loses, by the declared and by the true numbers. Clients that did not pay got nothing. The ledger has
    exactly these payments. For PI-FL's and TIFF's auctions every posting is recomputed. In any run with books, grants
    and kinds of payments are checked, and whether the rounds' files are unchanged. The facts are what imports that were
    left out would have gained (if the algorithm stops early), who traded nothing, and how known cheats fared.

    Args:
        folder: the run directory.
        told: a function called after each check of markets with the number done and the total.

    Raises:
        UserError: there is no run, the run has neither a market nor such models, or it cannot be read.
    """
    folder = run_folder(folder)
    made = _made_rows(folder)
    records, models = _records(folder), () if made is None else (made,)
    if next(recorded_markets(folder), None) is None and (made is not None or (folder / "ledger.json").exists()):
        books = (*_books(folder, ()), *models, _ranking(folder), _cheats_hold(folder))
        return _audit_of(0, (records, *_edited(folder), *books), ())
    rounds = load_market(folder)
    run, clients = load_run(folder), client_sums(rounds)
    lines = {int(line["round"]): line for line in run.metrics}
    checks: list[Callable[[], Sequence[Check | Fact | None]]] = [
        lambda: [*_edited(folder), _settings(folder, rounds), _evidence(folder, rounds, run.num_clients)],
        *([lambda: [_offers(rounds)]] if any(r.tariff for r in rounds) else _by_algorithm(rounds, lines)),
        lambda: [_all("payments", "every payment is its price, rounded down to the unit", rounds, wrong_payments)],
        lambda: _truly(rounds),
        lambda: [_all("delivery", "clients that did not pay got nothing", rounds, wrong_delivery)],
        lambda: _books(folder, rounds),
        lambda: [*models, *who_traded(run, clients)],
    ]
    found: list[Check | Fact | None] = [records]
    for done, check in enumerate(checks):
        told(done, len(checks))
        found += check()
    if isinstance(records, Check) and not records.holds:
        of = f"; this is said of {len(rounds)} markets, and not of rounds whose files are lost"
        whole = "grants and kinds"  # which reads the books alone
        found = [
            replace(c, said=c.said + of) if isinstance(c, Check) and c.holds and c.name != whole else c for c in found
        ]
    return _audit_of(len(rounds), found, clients)


def _by_algorithm(
    rounds: Sequence[MarketRound], lines: Mapping[int, Mapping[str, Any]]
) -> list[Callable[[], Sequence[Check | Fact]]]:
    """Return the checks of a market whose graph and prices follow from what clients declare."""
    algorithm = "who imports whom is what iPFL's Algorithm 2 makes of the declarations"
    return [
        lambda: [_all("graph", algorithm, rounds, _graph)],
        lambda: [
            _all("no import too many", "every import is worth at least its price (iPFL eq. 9)", rounds, _too_many)
        ],
        lambda: [_left_out(rounds)],
        lambda: [
            _all("market/eq9", "the run's own metric is what its record gives", rounds, partial(_unlike_eq9, lines))
        ],
        lambda: [_rationality("individual rationality", rounds, _DECLAREDLY, _declared)],
    ]


def _edited(folder: Path) -> list[Check]:
    """Return a check that fails if ``config.toml`` is not what was played; nothing if it is, or if nothing says so."""
    edited = edited_settings(folder)
    return [Check("config.toml", False, edited)] if edited else []


def _settings(folder: Path, rounds: Sequence[MarketRound]) -> Check | Fact:
    """Return whether every market had the rules of the run's settings; a fact if its parts are not built in."""
    parts = built_in_parts(read_toml(folder / "config.toml"))
    if not all(isinstance(parts.get(slot), IPFL) for slot in ("weigh", "settle")):
        return Fact("settings", "not known: not all parts of the market are built in")
    what = "every market had the pricing, the tariff and the weight of distances that the run's settings name"
    return _all("settings", what, rounds, unlike_settings(parts))


def _evidence(folder: Path, rounds: Sequence[MarketRound], clients: int) -> Check | None:
    """Return whether sizes were capped as evidence says; None if neither settings nor records name any."""
    part = built_in_parts(read_toml(folder / "config.toml")).get("weigh")
    if not isinstance(part, IPFL) or (part.evidence is None and all(r.cap is None for r in rounds)):
        return None
    wrong = unlike_evidence(rounds, part.evidence, clients)
    return Check("evidence", not wrong, wrong or "no size counted for more than others' losses had shown by then")


def _offers(rounds: Sequence[MarketRound]) -> Check:
    """Return whether only offers were bought in a market at posted prices, whose buyers choose for themselves."""
    return _all("offers", "only models that were on sale were bought, each at the posted price", rounds, _not_on_sale)


def _not_on_sale(r: MarketRound) -> str:
    """Return who bought something that was not offered, or not offered at the tariff's price; "" if nobody."""
    if r.tariff is None:
        return "it has no tariff, and other rounds have one"
    offered = np.isfinite(r.market.costs)
    wrong = np.flatnonzero(offered & ~np.isclose(r.market.costs, r.tariff.price(r.market.sizes), rtol=1e-12))
    if len(wrong):
        return f"the model of client {r.clients[wrong[0]]} was on sale at another price than the tariff's"
    bad = np.argwhere((r.graph != 0) & ~on_sale(r.market))
    if len(bad):
        i, j = bad[0]
        return f"client {r.clients[i]} bought the model of client {r.clients[j]}, which was not on sale to it"
    if r.least is None:
        return ""
    graph = np.asarray(r.graph, np.float64)
    cheap = np.flatnonzero((graph != sold(graph, r.market.sizes, r.tariff, r.least)).any(axis=0))
    return f"client {r.clients[cheap[0]]} sold for less than the least that it sells for" if len(cheap) else ""


def _ranking(folder: Path) -> Fact | None:
    """Return how certain the order is by which a run pays; None if it does not pay by value."""
    rule = built_in_parts(read_toml(folder / "config.toml")).get("settle")
    if not isinstance(rule, ByValue):
        return None
    run = load_run(folder)
    found = contribution(SeedGroup(run.mechanism, (run,)))
    return None if found is None else Fact("order by value", found.sums.how_sure())


def _cheats_hold(folder: Path) -> Fact | None:
    """Return the final balances of the clients that the experiment's file makes cheat, and the others' mean; None for a
    run without books.
    """
    if not (folder / "ledger.json").exists():
        return None
    run = load_run(folder)
    cheats = {c: conduct.label or "cheats" for conduct in run.about.conducts if conduct.cheats for c in conduct.clients}
    if not cheats:
        return Fact("known cheats", _no_cheats(run))
    try:
        with reading(folder) as ledger:
            balances = ledger.balances()
    except UserError:  # books that do not hold: the check of conservation says it
        return None
    held = [
        (balances.get(account(c), 0) + balances.get(escrow(c), 0)) / TOKEN
        for c in range(run.num_clients)
        if account(c) in balances
    ]
    if len(held) != run.num_clients:
        return None
    honest = [tokens for c, tokens in enumerate(held) if c not in cheats]
    beside = f"; the others have {np.mean(honest):.3f} on average" if honest else ""
    each = (f"client {run.client_label(c)} (of the {cheats[c]}) has {held[c]:.3f} tokens" for c in sorted(cheats))
    return Fact("known cheats", ", ".join(each) + beside)


def _audit_of(markets: int, found: Sequence[Check | Fact | None], clients: tuple[ClientSums, ...]) -> Audit:
    """Return the audit from its findings; None: the run does not have this."""
    checks = tuple(one for one in found if isinstance(one, Check))
    return Audit(markets, checks, clients, tuple(one for one in found if isinstance(one, Fact)))


def _made_rows(folder: Path) -> Check | Fact | None:
    """Return whether the rows that a rule returned directly are the same in the last checkpoint as in the record.

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
    """Return a check that holds if ``wrong(round)`` is "" for every round; ``what`` is its meaning then."""
    for r in rounds:
        said = wrong(r)
        if said:
            return Check(name, False, f"round {r.round}: {said}")
    return Check(name, True, what)


def _graph(r: MarketRound) -> str:
    """Return where the graph differs from that of Algorithm 2 by the declared numbers; "" if nowhere."""
    bad = np.argwhere(best_imports(r.market, r.stop) != r.graph)
    if not len(bad):
        return ""
    i, j = bad[0]
    does, should = ("imports", "should not") if r.graph[i, j] else ("does not import", "should")
    return f"client {r.clients[i]} {does} the model of client {r.clients[j]}, and by Algorithm 2 it {should}"


def _too_many(r: MarketRound) -> str:
    """Return an import that costs its buyer more than it gains, by iPFL eq. (9); "" if there is none."""
    removal, _ = local_optimality(r.market, r.graph)
    return f"an import is worth {removal:.2g} less than its price" if removal > _slack(r) else ""


def _slack(r: MarketRound) -> float:
    """Return the allowed rounding error of eq. (9), in proportion to a client's largest possible gain, sqrt(K / n)."""
    return 1e-9 * (1 + float(np.sqrt(r.market.eagerness / np.maximum(r.market.sizes, 1)).max(initial=0)))


MOST_LEFT_OUT = 20  # rounds that are named


def _left_out(rounds: Sequence[MarketRound]) -> Check | Fact:
    """Return whether imports that would have paid were left out, the other half of iPFL eq. (9).

    If Algorithm 2 ends at the first seller that does not pay ("break"), such imports are allowed; what the best of them
    would have gained, round by round, is then a fact.
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
    """Return where a round's metric ``market/eq9`` differs from the market's record; "" if nowhere.

    A round that is not among the ``lines`` of the metrics yet is skipped.
    """
    gives = max(local_optimality(r.market, r.graph))
    if r.round not in lines or not np.isfinite(gives):
        return ""
    told = lines[r.round].get("market/eq9")
    if isinstance(told, int | float) and abs(told - gives) <= 1e-6 * (1 + abs(gives)):
        return ""
    return f"the run says {told!r}, and its record gives {gives:.6g}"


def _declared(r: MarketRound) -> NDArray[np.float64]:
    """Return each client's utility ``[m]`` (tokens) by its declared numbers."""
    market = r.market
    return utilities_of(r.realised, r.money / TOKEN, market.sizes, market.costs, market.eagerness)


def _rationality(name: str, rounds: Sequence[MarketRound], what: str, utility: Any) -> Check:
    """Return whether ``utility(round)`` is a loss for nobody in any round, up to the rounding of payments."""
    losses = []
    for r in rounds:
        found = utility(r)
        lost = np.flatnonzero(~(found >= -_rounding(r)))
        losses += [(float(found[i]), r.round, int(r.clients[i])) for i in lost]
    if not losses:
        return Check(name, True, what)
    if unknown := [(number, client) for worth, number, client in losses if np.isnan(worth)]:
        return Check(name, False, f"the record of round {unknown[0][0]} has no number for client {unknown[0][1]}")
    worst, number, client = min(losses)
    return Check(name, False, f"{len(losses)} losses; the largest is client {client}'s {-worst:.3f} in round {number}")


def _truly(rounds: Sequence[MarketRound]) -> list[Check | Fact]:
    """Return whether nobody lost by what is true, and who lost by its own choice.

    At posted prices a client buys and sells what it chooses, so it can choose to lose: nobody else takes that from it.
    What the market promises is that it loses by nothing else, such as by sizes that were not there.
    """
    name = "true rationality"
    chosen = {r.round: _chosen(r) for r in rounds if r.tariff is not None}
    if not chosen:
        return [_rationality(name, rounds, _TRULY, lambda r: r.utility)]

    def others(r: MarketRound) -> NDArray[np.float64]:
        return np.where(chosen[r.round], 0.0, r.utility) if r.round in chosen else r.utility

    check = _rationality(name, rounds, _BUT_BY_CHOICE, others)
    losses = [
        (float(r.utility[i]), r.round, int(r.clients[i]))
        for r in rounds
        for i in np.flatnonzero(chosen.get(r.round, False))
    ]
    if not losses:
        return [check]
    worst, number, client = min(losses)
    told = f"bought or sold at a loss {len(losses)} times; the largest is client {client}'s {-worst:.3f} in round"
    who = ", ".join(map(str, sorted({client for *_, client in losses})))
    return [check, Fact("own choices", f"clients {who} {told} {number}. Posted prices leave that to them")]


def _chosen(r: MarketRound) -> NDArray[np.bool_]:
    """Return whose purchases and sales at posted prices are a loss even if all sizes are as they were sold, ``[m]``."""
    if r.truth is None:
        return np.zeros(r.market.size, bool)
    sizes, (_, costs, eagerness) = r.market.sizes, r.truth
    told = utilities_of(r.realised, r.money / TOKEN, sizes, costs, np.where(sizes > 0, eagerness, 0.0))
    return np.asarray(told < -_rounding(r))


def _rounding(r: MarketRound) -> NDArray[np.float64]:
    """Return what rounding payments down may cost each client, ``[m]`` in tokens: a unit for each sale, and one."""
    return np.asarray(SLACK * (1 + (r.realised != 0).sum(axis=0)))


def _records(folder: Path) -> Check:
    """Return whether every round's file exists and is unchanged."""
    lost = [f"round {number}: {why}" for number, why in lost_rounds(folder).items()]
    more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    return Check("records", not lost, lost[0] + more if lost else "every round's file is the one that was written")


def _books(folder: Path, rounds: Sequence[MarketRound]) -> list[Check]:
    """Return whether the ledger holds and its sum is 0, and whether its postings are those that the
    run's settings and records give: grants, kinds, a market's payments, an auction's. Nothing if nobody pays.
    """
    if not (folder / "ledger.json").exists():
        return [Check("conservation", False, "ledger.json is gone")] if (folder / LOG).exists() else []
    with reading(folder) as ledger:
        verdict = verify_run(folder, ledger)
        if verdict.wrong is not None:
            return [Check("conservation", False, f"the ledger does not verify: {verdict.wrong}")]
        through = unbooked(folder, ledger).start
        unlike, odd = unlike_books(rounds, movements(ledger), through), against_rules(folder, movements(ledger))
        lost = bool(lost_rounds(folder))
        settled = is_settled(folder, ledger)
        auctions, differs = (0, "") if lost else replay_tokens(folder, movements(ledger), through, settled)
        valued, otherwise = (0, "") if lost else replay_by_value(folder, movements(ledger), through)
    known = bool(rounds) or (not lost and (auctions is not None or valued is not None))
    compared = "the books and the records agree to the unit" if known else "no record says which they should be"
    said = f"{verdict.transactions} transactions; {compared}"
    grants = "one grant per client, of the size that was set, and only kinds of payments that the rule posts"
    found = [Check("conservation", not unlike, unlike or said), Check("grants and kinds", not odd, odd or grants)]
    if lost and not rounds:
        return [*found, Check("auctions", False, "not computed anew: a round's file is lost")]
    if valued is not None:
        said = f"what {valued} rounds paid by value follows from records"
        found.append(Check("by value", not otherwise, otherwise or said))
    if auctions is None or rounds:
        return found
    return [*found, Check("auctions", not differs, differs or f"all postings of {auctions} rounds follow from records")]


def who_traded(run: RunRecord, clients: Sequence[ClientSums]) -> tuple[Fact, Fact]:
    """Return who traded nothing, and what those clients earned that cheat according to the experiment's file.

    The records do not show cheating that the file does not declare.

    Args:
        run: the run.
        clients: the sums of the run's clients over all markets.
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
        Fact("known cheats", "; ".join(earned) or _no_cheats(run)),
    )


def _no_cheats(run: RunRecord) -> str:
    """Say that no client is declared to cheat, or that this is not known because something does not describe itself: a
    user's own behaviour or policy, or an incomplete ``about.json``.
    """
    policy = named_choice(table(run.config, "clients").get("policy"), "")
    acting = [*table(run.config, "behaviour"), *([policy] if ":" in policy else [])]
    if len(acting) > len(run.about.conducts):
        return f"not known: the run does not say of all that act in it whether they cheat ({', '.join(acting)})"
    return "none of these clients, by the experiment's file"
