"""The demo's market scene: twelve participants of four roles trade models of real handwritten digits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from hanse.audit import Audit, audit_run
from hanse.config import Experiment
from hanse.experiment import Observer, Run, run
from hanse.federation.profiles import TABLE_5
from hanse.reports.load import load_run
from hanse.reports.market import load_trades
from hanse.reports.transactions import draw_transactions

__all__ = ["LEAD", "Scene", "market_experiment", "scene"]

ROUNDS = 12
LEAD = (
    "Twelve participants trade models of handwritten digits: sellers, buyers, traders who do both, and one attacker "
    "who offers random models. Who buys from whom follows from how alike the models are and what they bring; every "
    "purchase is paid for in tokens."
)


@dataclass(frozen=True)
class Scene:
    """The market's run, each client ``alone`` beside it, the audit, the table to print, and the picture's file."""

    market: Run
    alone: Run
    audit: Audit
    table: RichTable
    picture: Path


def market_experiment(seed: int = 0, *, alone: bool = False) -> Experiment:
    """Return the scene's experiment; ``alone``: the same clients, each training by itself."""
    attackers = [i for i, role in enumerate(TABLE_5) if role == "attacker"]
    trade: dict[str, Any] = {
        "mechanism": {"name": "ipfl"},
        "behaviour": {"attacker": {"clients": attackers, "kind": "random"}},
        # eagerness in proportion to the samples: the paper's is for 5,000 a client, here are about 100
        "clients": {"grant": 100.0, "profiles": {"name": "roles", "eagerness": [6e3, 1.2e4]}},
    }
    return Experiment(
        data={
            "source": "digits", "partition": "cluster", "clients": len(TABLE_5), "client_test": 0.25,
            "client_validation": 0.1, "validation": 0.0, "seed": seed,
        },
        model={"name": "mlp", "hidden": [50]},
        train={"steps": 20, "batch_size": 16, "lr": 0.05},
        engine={"train": "stacked", "threads": 1},
        run={"rounds": ROUNDS, "seed": seed},
        **({"mechanism": {"name": "local"}} if alone else trade),
    )  # fmt: skip


def scene(out: Path, seed: int = 0, observers: tuple[Observer, ...] = ()) -> Scene:
    """Play the scene into ``out`` (``market`` and ``market-alone``), audit it, and draw its transaction graph there."""
    market = run(market_experiment(seed), out=out / "market", observers=observers)
    alone = run(market_experiment(seed, alone=True), out=out / "market-alone", observers=observers)
    audit = audit_run(out / "market")
    trades = load_trades(load_run(out / "market"))
    assert trades is not None  # the scene trades: it is audited above
    picture = out / "market" / "transactions.png"
    draw_transactions(trades, "Who paid whom (tokens)").savefig(picture)
    return Scene(market, alone, audit, _table(market, alone, audit), picture)


def _table(market: Run, alone: Run, audit: Audit) -> RichTable:
    table = RichTable(
        "client", "role", "bought", "sold", "utility", "accuracy alone %", "in the market %",
        title=f"The market after {ROUNDS} rounds",
    )  # fmt: skip
    together, by_itself = (dict(_accuracies(r)) for r in (market, alone))
    rows = zip(audit.clients, audit.bought, audit.sold, audit.utility, strict=True)
    for client, bought, sold, utility in rows:
        role = TABLE_5[client]
        there = "-" if role == "attacker" else f"{100 * together[client]:.1f}"
        table.add_row(
            str(client), role, f"{bought:.2f}", f"{sold:.2f}", f"{utility:.2f}", f"{100 * by_itself[client]:.1f}", there
        )
    return table


def _accuracies(result: Run) -> list[tuple[int, float]]:
    pairs = zip(result.tested["tested"], result.tested["test_accuracy"], strict=True)
    return [(int(client), float(accuracy)) for client, accuracy in pairs]
