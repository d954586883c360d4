"""The demo's market scene: twelve participants of four roles trade models of real handwritten digits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table as RichTable

from hanse.federation.profiles import TABLE_5
from hanse.reports.audit import Audit, audit_run
from hanse.reports.market import draw_transactions, load_trades
from hanse.runs.config import Experiment
from hanse.runs.experiment import Observer, Run, run
from hanse.runs.record import load_run

__all__ = ["LEAD", "Scene", "market_experiment", "scene"]

ROUNDS = 20
LEAD = (
    "Twelve participants with about 16 handwritten digits each trade models: sellers, buyers, traders who do both, and "
    "one attacker who offers random models. Who buys from whom follows from how alike the models are and what they "
    "bring; every purchase is paid for in tokens."
)


@dataclass(frozen=True)
class Scene:
    """The market's run, each client ``alone`` beside it, the audit, the table to print, one sentence on who gained
    what, and the picture's file.
    """

    market: Run
    alone: Run
    audit: Audit
    table: RichTable
    gain: str
    picture: Path


def market_experiment(seed: int = 0, *, alone: bool = False) -> Experiment:
    """Return the scene's experiment; ``alone``: the same clients and the same attacker, each training by itself."""
    attackers = [i for i, role in enumerate(TABLE_5) if role == "attacker"]
    trade: dict[str, Any] = {
        "mechanism": {"name": "ipfl"},
        # eagerness in proportion to the samples: the paper's is for 5,000 a client, here are about 16
        "clients": {"grant": 100.0, "profiles": {"name": "roles", "eagerness": [2e3, 4e3]}},
    }
    return Experiment(
        # few samples to train with: who has plenty needs no market
        data={
            "source": "digits", "partition": "cluster", "clients": len(TABLE_5), "client_test": 0.75,
            "client_validation": 0.1, "validation": 0.0, "seed": seed,
        },
        model={"name": "mlp", "hidden": [50]},
        train={"steps": 20, "batch_size": 16, "lr": 0.05},
        engine={"train": "stacked", "threads": 1},
        run={"rounds": ROUNDS, "seed": seed},
        behaviour={"attacker": {"clients": attackers, "kind": "random"}},
        **({"mechanism": {"name": "local"}} if alone else trade),
    )  # fmt: skip


def scene(out: Path, seed: int = 0, observe: Callable[[str], Sequence[Observer]] = lambda what: ()) -> Scene:
    """Play the scene into ``out`` (``market`` and ``market-alone``), audit it, and draw its transaction graph there.

    ``observe`` gives the observers of each of the two runs, told what it is.
    """
    market = run(market_experiment(seed), out=out / "market", observers=observe("the market"))
    alone = run(market_experiment(seed, alone=True), out=out / "market-alone", observers=observe("each client alone"))
    audit = audit_run(out / "market")
    trades = load_trades(load_run(out / "market"))
    assert trades is not None  # the scene trades: it is audited above
    picture = out / "market" / "transactions.png"
    draw_transactions(trades, "Who paid whom (tokens)").savefig(picture)
    return Scene(market, alone, audit, _table(market, alone, audit), _gain(market, alone), picture)


def _table(market: Run, alone: Run, audit: Audit) -> RichTable:
    table = RichTable(
        "client", "role", "bought", "sold", "utility", "accuracy alone %", "in the market %",
        title=f"The market after {ROUNDS} rounds",
    )  # fmt: skip
    together, by_itself = (dict(_accuracies(r)) for r in (market, alone))
    rows = zip(audit.clients, audit.bought, audit.sold, audit.utility, strict=True)
    for client, bought, sold, utility in rows:
        role = TABLE_5[client]
        # the attacker's model is noise, with a market or without
        right = ["-" if role == "attacker" else f"{100 * got[client]:.1f}" for got in (by_itself, together)]
        table.add_row(str(client), role, f"{bought:.2f}", f"{sold:.2f}", f"{utility:.2f}", *right)
    return table


def _gain(market: Run, alone: Run) -> str:
    """Say what those who buy gained: the mean difference over them, and its standard error."""
    together, by_itself = (dict(_accuracies(r)) for r in (market, alone))
    buying = [client for client, role in enumerate(TABLE_5) if role in ("buyer", "trader")]
    more = np.array([100 * (together[client] - by_itself[client]) for client in buying])
    error = more.std(ddof=1) / np.sqrt(len(more))
    return (
        f"The {len(buying)} who buy get {more.mean():+.1f} ± {error:.1f} points of accuracy on their own test data "
        "(mean and its standard error over them); sellers are paid, and nobody deals with the attacker."
    )


def _accuracies(result: Run) -> list[tuple[int, float]]:
    pairs = zip(result.tested["tested"], result.tested["test_accuracy"], strict=True)
    return [(int(client), float(accuracy)) for client, accuracy in pairs]
