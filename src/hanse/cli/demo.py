"""The main job in small: a federation on real handwritten digits, valued, compared and reported; then a market."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from hanse.base.errors import UserError
from hanse.cli import demo_market as market
from hanse.reports.contributions import contribution
from hanse.reports.groups import group_runs
from hanse.reports.report import write_report
from hanse.runs.config import Experiment
from hanse.runs.experiment import Run, run
from hanse.runs.observers import ProgressBar
from hanse.runs.record import load_run

__all__ = ["demo_experiments", "run_demo"]

CLIENTS, SEATS, ROUNDS = 20, 4, 60
NAMES = {
    "greedyfed": "GreedyFed",
    "set_aware": "set-aware",
    "ucb": "UCB",
    "s_fedavg": "S-FedAvg",
    "power_of_choice": "Power-of-Choice",
    "fedavg": "FedAvg",
    "local": "each client alone",
    "centralised": "centralised (all data at one place)",
}
LEAD = (
    f"{CLIENTS} organisations hold handwritten digits that they will not share: few each, of few classes, and some "
    f"add noise to what they send. In each of {ROUNDS} rounds {SEATS} of them train. GreedyFed values every update "
    "and trains with the most valuable clients, FedAvg draws clients at random; four more ways to choose run beside "
    "them, and for comparison each client alone and all data at one place."
)


def demo_experiments(seed: int) -> dict[str, Experiment]:
    """Return the demo's experiments for one seed, by name: same data, same model, same local training."""
    shared: dict[str, Any] = {
        "data": {"source": "digits", "partition": "dirichlet", "alpha": 0.3, "clients": CLIENTS, "seed": seed},
        "model": {"name": "mlp", "hidden": [50, 25]},
        "train": {"epochs": 3, "batch_size": 16, "lr": 0.05, "momentum": 0.5},
        "behaviour": {"noisy": {"sigma": 0.3}},
        "run": {"rounds": ROUNDS, "seed": seed, "checkpoint_every": 10},
    }
    race = {
        name: Experiment(**shared, mechanism={"name": name, "clients_per_round": SEATS})
        for name in NAMES
        if name not in ("local", "centralised")
    }
    # alone and pooled nothing is sent, so nothing is noisy
    quiet = {**shared, "behaviour": {}}
    pooled = {**quiet, "data": {**shared["data"], "partition": "pooled"}}
    return race | {
        "local": Experiment(**quiet, mechanism={"name": "local"}),
        "centralised": Experiment(**pooled, mechanism={"name": "centralised"}),
    }


def run_demo(folder: Path, seeds: int, console: Console) -> None:
    """Run the demo into ``folder`` (replacing an earlier demo there), print the table and write the report."""
    _clear(folder)
    console.print(LEAD, "\n", sep="")
    runs: dict[str, list[Run]] = {}
    for seed in range(seeds):
        for name, experiment in demo_experiments(seed).items():
            bar = ProgressBar(console, f"{name}, seed {seed}")
            place = folder / f"{name}-seed{seed}"
            runs.setdefault(name, []).append(run(experiment, out=place, observers=[bar]))
            if runs[name][-1].interrupted:
                console.print("stopped; 'hanse demo' starts it again")
                raise SystemExit(1)
    console.print(_accuracies(runs))
    console.print(_contributions(folder / "greedyfed-seed0"))
    places = [result.path for results in runs.values() for result in results if result.path is not None]
    page = write_report(places, folder, title="Who contributes what to a federation on handwritten digits", lead=LEAD)
    trade = _market(folder, console)
    console.print()
    for said, place in (("The market", trade), ("The race", page)):
        console.print(f"{said}, with pictures: {place}", markup=False, highlight=False, soft_wrap=True)
    hanse = "hanse" if shutil.which("hanse") else sys.argv[0]  # 'make demo' has it in .venv alone
    console.print(f"The live page of these runs: {hanse} serve {folder}", markup=False, highlight=False, soft_wrap=True)


def _market(folder: Path, console: Console) -> Path:
    """Play the market's scene, print who gained what, and write its report."""
    console.print("\n", market.LEAD, "\n", sep="")
    played = market.scene(folder, observe=lambda what: (ProgressBar(console, what, figure=False),))
    console.print(played.table)
    console.print(played.gain, "\n", sep="", highlight=False)
    for check in played.audit.checks:
        mark = "holds" if check.holds else "FAILS"
        console.print(f"{mark}: {check.name}: {check.said}", highlight=False, markup=False)
    return write_report(
        [place for place in (played.market.path, played.alone.path) if place is not None],
        folder / "market-report",
        title="Who buys whose model, and who gained what",
        lead=market.LEAD,
    )


def _clear(folder: Path) -> None:
    """Remove an earlier demo's runs, and nothing else. Raises UserError if the folder holds something else."""
    if not folder.exists():
        return
    ours = ("report.html", "figures", "market", "market-alone", "market-report")
    for entry in folder.iterdir():
        if not (entry.name in ours or entry.name.split("-seed")[0] in NAMES):
            raise UserError(
                f"--out {folder}: holds '{entry.name}', which is not of an earlier demo; give another folder"
            )
    shutil.rmtree(folder)


def _accuracies(runs: dict[str, list[Run]]) -> RichTable:
    seeds = len(next(iter(runs.values())))
    told = f"{seeds} seeds: mean ± standard deviation" if seeds > 1 else "one seed"
    table = RichTable("", "test accuracy %", title=f"After {ROUNDS} rounds, {told}", min_width=60)
    for name, results in runs.items():
        final = np.array([100 * r.metrics[-1]["test/accuracy"] for r in results])
        deviation = f" ± {final.std(ddof=1):.1f}" if len(final) > 1 else ""
        table.add_row(NAMES[name], f"{final.mean():.1f}{deviation}")
    return table


def _contributions(place: Path) -> RichTable:
    """Return the clients by the sum of their Shapley values in one GreedyFed run: the five best, the three last."""
    loaded = load_run(place)
    found = contribution(group_runs([loaded])[0])
    assert found is not None  # GreedyFed values everyone who trains
    table = RichTable(
        "client", "Shapley value ± standard error", "rounds trained",
        title="Contributions over all rounds: GreedyFed, seed 0", min_width=60,
    )  # fmt: skip
    last = len(found.clients)
    for i in sorted({*range(min(5, last)), *range(max(0, last - 3), last)}):
        if i == last - 3 > 5:
            table.add_section()
        rounds = len(np.unique(loaded.seats.round[loaded.seats.client == found.clients[i]]))
        table.add_row(found.labels[i], f"{found.totals[i]:+.3f} ± {found.errors[i]:.3f}", str(rounds))
    return table
