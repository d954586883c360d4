"""The audit of a finished run: payments are made again from the records, and records are compared with the books.

:func:`audit_run` returns what ``hanse audit`` prints, an :class:`Audit`. It has one :class:`Check` for each property
that a run must have, and a :class:`Fact` for each other finding. What must hold of its payments is named by the payment
rule itself. :func:`load_market` returns the recorded markets for other uses. An audit needs nothing but the run
directory, so a federation on a network is audited in the same way as a simulation.

Some aggregation rules, such as medians, return a row instead of weights. For these the records have only hashes. In any
run, the audit compares the rows of the last checkpoint with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import read_arrays, read_json, run_folder, table
from hanse.base.plain_text import quantity
from hanse.core.telling import ABOUT, Check, Fact, describe
from hanse.ledger.run_ledger import has_books
from hanse.mechanisms import market_checks
from hanse.mechanisms.market_checks import MarketRound
from hanse.reports.contributions import contribution
from hanse.reports.groups import SeedGroup
from hanse.reports.money import agreed_in
from hanse.reports.words import said
from hanse.runs.observers import ProgressCallback, untold
from hanse.runs.replay import Examined, recorded_markets, unlike_rows
from hanse.runs.round_record import rounds_of
from hanse.runs.run_record import RunRecord, load_run

MOST = 1 << 32  # bytes of all markets of a run, which are in memory at once: a small file may unpack to a huge one


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        markets: how many markets were replayed, one for each round that had any.
        checks: the properties.
        facts: what else was found.
    """

    markets: int
    checks: tuple[Check, ...]
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


def audit_run(folder: str | Path, told: ProgressCallback = untold, trust: bool = False) -> Audit:
    """Check a run's books and records, and models that are recorded by their hashes.

    Checked are whether the rounds' files and the checkpoints are unchanged, whether the settings are those that were
    played, whether the ledger holds, and grants and kinds of payments. The payment rule is called again with what it
    was shown in each round, and must post what the ledger has. Beside that, the rule names checks and promises of its
    own: in PI-FL's and TIFF's auctions and in payments by value every posting must follow from the records. In a market
    of models, payments must be the prices, clients that did not pay must have got nothing, the graph must be the one
    that iPFL's Algorithm 2 gives for what was declared, and nobody may lose by the true numbers. A fact is who traded
    nothing.

    Args:
        folder: the run directory.
        told: a function called after each check with the number done; the total is not known.
        trust: whether to import a payment rule of the user's own that the run's settings name. Otherwise the audit
            says that it was not called again.

    Returns:
        The number of markets, the checks (:class:`hanse.core.telling.Check`: ``holds``, and what was found) and facts.

    Raises:
        UserError: there is no run, nobody pays in it and no rule makes models of its own, or it cannot be read.
    """
    folder = run_folder(folder)
    made = _made_rows(folder)
    market = next(recorded_markets(folder), None) is not None
    rounds = load_market(folder) if market or (made is None and not has_books(folder)) else []
    run, examined = load_run(folder), Examined(folder, trust)
    found = list[Check | Fact | None]()
    for one in examined:
        found.append(one)
        told(len(found), len(found) + 1)
    if examined.rounds is not None:
        found += examined.parts.get("settle", market_checks).promises(examined.rounds, examined.parts)
    found.append(_described(run, examined.parts))
    if any(isinstance(c, Check) and c.name == "records" and not c.holds for c in found):
        of = f"; this is said of {quantity(len(rounds), 'market')}, and not of rounds whose files are lost"
        whole = ("conservation", "grants", "grants and kinds")  # which read the books alone
        found = [
            replace(c, said=c.said + of) if isinstance(c, Check) and c.holds and c.name not in whole else c
            for c in found
        ]
    found += [made, no_trade(run, rounds) if rounds else _ranking(run)]
    found += [Fact("agreement", one) for one in agreed_in(run)]
    checks = tuple(one for one in found if isinstance(one, Check))
    return Audit(len(rounds), checks, tuple(one for one in found if isinstance(one, Fact)))


def _described(run: RunRecord, parts: Mapping[str, Any]) -> Check | Fact | None:
    """Return whether what the run says of its parts, as statements repeat it, is what they say; None if it is.

    Parts of another version of hanse may say it otherwise.
    """
    now = {one.slot: one.telling for one in describe(parts, {}, None, None, run.num_clients, 0).parts}
    then = {one.slot: one.telling for one in run.about.parts if one.slot in parts}
    # what values of an app are measured by is its own judge, which no record has (hanse.valued)
    odd = [slot for slot in parts if now.get(slot) != then.get(slot) and not (run.in_app and slot == "value")]
    if not odd:
        return None
    wrong = f"what it says of the {odd[0]} part is not what that part says of itself"
    file, here = run.folder / "environment.json", version("hanse")
    said = read_json(file) if file.is_file() else None
    of = table(said, "packages").get("hanse", here) if isinstance(said, Mapping) else here
    return Check(ABOUT, False, wrong) if of == here else Fact(ABOUT, f"{wrong} in this version of hanse")


def _ranking(run: RunRecord) -> Fact | None:
    """Return how certain the order is by which a run pays; None if it does not pay by value."""
    if not any("by_value/paid" in line for line in run.metrics):
        return None
    found = contribution(SeedGroup(run.mechanism, (run,)))
    return None if found is None else Fact("order by value", said("parts_apart", **found.pairs))


def _made_rows(folder: Path) -> Check | Fact | None:
    """Return whether the rows that a rule returned directly are the same in the last checkpoint as in the record.

    Records have such rows by their hashes. None if no round made any, a fact if the last checkpoint has none of them.
    """
    wanted = ("made_row", "made_hash", "withheld", "W_row", "W_shape")
    kept = {n: read_arrays(file, wanted) for n, file in rounds_of(folder)}
    count = sum(len(record.get("made_row", ())) for record in kept.values())
    if not count:
        return None
    from hanse.runs.played_run import last_state  # late: only models need torch

    state = last_state(folder)
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
        return Fact("models", f"{said} none of them: none could be compared", True)
    return Check("models", not wrong, wrong or f"{said} those of round {state.round - 1}")


def no_trade(run: RunRecord, rounds: Sequence[MarketRound]) -> Fact:
    """Return who traded nothing in the markets of a run."""
    there = {c for r in rounds for c in r.clients.tolist()}
    traded = {c for r in rounds for c in r.clients[r.realised.any(axis=0) | r.realised.any(axis=1)].tolist()}
    alone = [run.client_label(c) for c in sorted(there - traded)]
    nothing = f"{'clients' if len(alone) > 1 else 'client'} {', '.join(alone)} bought and sold nothing in any round"
    return Fact("no trade", nothing if alone else "nobody: every client bought or sold in some round")
