"""``hanse demo`` shows what hanse does on a small example with real handwritten digits.

It has three acts. It compares six rules for choosing clients (:func:`demo_experiments`), estimates all values of a
round from few models (:func:`values_experiment`), and plays and audits a market of models (:func:`scene`). The
experiments are ordinary ones. They also show what an experiment's file may say. Benchmarks and the documentation play
some of them again.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from hanse.base.errors import UserError
from hanse.cli.options import say
from hanse.federation.profiles import TABLE_5
from hanse.games.jackknife import SURE, t_quantile
from hanse.reports.answers import APART, answers, answers_of
from hanse.reports.audit import Audit, audit_run
from hanse.reports.contributions import contribution, smaller_budgets
from hanse.reports.digits import between, rounded
from hanse.reports.groups import group_runs
from hanse.reports.market import load_trades, transactions_chart
from hanse.reports.report import write_report
from hanse.reports.vega import save
from hanse.runs.config import Experiment
from hanse.runs.experiment import Observer, PlayedRun, run
from hanse.runs.observers import ProgressBar, counting
from hanse.runs.run_record import load_run

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
    f"{CLIENTS} organisations hold handwritten digits that they will not share. Each has few digits of few classes, "
    f"and some add noise to their updates. In each of {ROUNDS} rounds {SEATS} of them train. GreedyFed values every "
    "update and trains with the most valuable clients; FedAvg draws clients at random. For comparison, four more ways "
    "to choose clients are played, each client alone, and all data in one place."
)


def demo_experiments(seed: int) -> dict[str, Experiment]:
    """Return the experiments of the race by name: same data, model and local training, different mechanisms.

    Two are baselines: each client alone, and all data in one place.

    Args:
        seed: the seed of the split and of all other draws.
    """
    shared: dict[str, Any] = {
        "data": {
            "source": "digits",
            "partition": {"name": "dirichlet", "alpha": 0.3},
            "clients": CLIENTS,
            "seed": seed,
        },
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
    """Play the demo, print its tables and write its reports.

    Args:
        folder: the folder for runs and reports. An earlier demo in it is replaced.
        seeds: how many seeds each mechanism of the race is played with.
        console: where the demo prints.

    Raises:
        UserError: the folder contains something other than an earlier demo.
        SystemExit: Ctrl-C stopped a run.
    """
    _clear(folder)
    console.print(LEAD, "\n", sep="")
    runs: dict[str, list[PlayedRun]] = {}
    for seed in range(seeds):
        for name, experiment in demo_experiments(seed).items():
            bar = ProgressBar(console, f"{name}, seed {seed}")
            place = folder / f"{name}-seed{seed}"
            runs.setdefault(name, []).append(run(experiment, out=place, observers=[bar]))
            if runs[name][-1].interrupted:
                console.print("stopped; 'hanse demo' starts it again")
                raise SystemExit(1)
    console.print(_accuracies(runs))
    for question, told in answers_of(*(folder / f"greedyfed-seed{seed}" for seed in range(seeds))).lines.items():
        say(f"{question} {told}", console, wrap=True)
    places = [result.path for results in runs.values() for result in results if result.path is not None]
    title = "Who contributes what to a federation on handwritten digits"
    with counting("drawing", console) as progress:
        page = write_report(places, folder, title=title, lead=LEAD, progress=progress)
    values, contributed = _values(folder, console)
    trade, gain = _market(folder, console)
    console.print()
    for said, place in (("The budgets", values), ("The market", trade), ("The race", page)):
        say(f"{said}, with pictures: {place}", console)
    hanse = "hanse" if shutil.which("hanse") else sys.argv[0]  # 'make demo' has it in .venv alone
    say(f"The live page of these runs: {hanse} serve {folder}", console)
    console.print()
    for number, line in enumerate((_together(runs), f"Valuing everybody: {contributed}", gain), start=1):
        say(f"{number}. {line}", console, wrap=True)


def _together(runs: dict[str, list[PlayedRun]]) -> str:
    """Return in a sentence how good the best model of the race is, compared with each client alone."""
    final = {name: np.mean([100 * r.metrics[-1]["test/accuracy"] for r in results]) for name, results in runs.items()}
    alone, best = final["local"], max(set(final) - set(APART), key=lambda name: final[name])
    return f"Together they read {final[best]:.0f} % of new digits right ({NAMES[best]}), each alone {alone:.0f} %."


def _market(folder: Path, console: Console) -> tuple[Path, str]:
    """Play the market's scene, print who gained what and the audit, and write the market's report.

    Returns:
        The report, and the sentence on what buyers gained.
    """
    console.print("\n", MARKET_LEAD, "\n", sep="")
    played = scene(folder, observe=lambda what: (ProgressBar(console, what, figure=False),))
    console.print(played.table)
    console.print(played.gain, "\n", sep="", highlight=False)
    for check in played.audit.checks:
        say(f"{'holds' if check.holds else 'FAILS'}: {check.name}: {check.said}", console, wrap=True)
    for fact in played.audit.facts:
        say(f"{fact.name}: {fact.said}", console, wrap=True)
    page = write_report(
        [place for place in (played.market.path, played.alone.path) if place is not None],
        folder / "market-report",
        title="Who buys whose model, and who gained what",
        lead=MARKET_LEAD,
    )
    return page, played.gain


def _clear(folder: Path) -> None:
    """Remove an earlier demo's runs, and nothing else.

    Raises:
        UserError: the folder holds something that is not of a demo.
    """
    if not folder.exists():
        return
    ours = ("report.html", "figures", "everyone", "values-report", "market", "market-alone", "market-report")
    for entry in folder.iterdir():
        if not (entry.name in ours or entry.name.split("-seed")[0] in NAMES):
            raise UserError(
                f"--out {folder}: holds '{entry.name}', which is not of an earlier demo; give another folder"
            )
    shutil.rmtree(folder)


def _tested(result: PlayedRun) -> dict[int, float]:
    """Return the accuracy (0 to 1) of each client that was tested on its own data at the end of a run."""
    pairs = zip(result.tested.get("tested", ()), result.tested.get("test_accuracy", ()), strict=True)
    return {int(client): float(accuracy) for client, accuracy in pairs}


def _accuracies(runs: dict[str, list[PlayedRun]]) -> RichTable:
    """Return a table of the final test accuracies, as mean and standard deviation over the seeds."""
    seeds = len(next(iter(runs.values())))
    title = f"{seeds} seeds: mean ± standard deviation" if seeds > 1 else "one seed"
    table = RichTable("", "test accuracy %", title=f"After {ROUNDS} rounds, {title}", min_width=60)
    for name, results in runs.items():
        final = np.array([100 * r.metrics[-1]["test/accuracy"] for r in results])
        deviation = f" ± {final.std(ddof=1):.1f}" if len(final) > 1 else ""
        table.add_row(NAMES[name], f"{final.mean():.1f}{deviation}")
    return table


# ---- values from few models: everyone trains, and every round is a game of twenty


VALUES_ROUNDS, BUDGET, SMALLER = 15, 200, (60, 100)
VALUES_LEAD = (
    f"All {CLIENTS} organisations train in every round, which gives 2^{CLIENTS}, about a million, coalitions. Their "
    f"Shapley values are estimated from the models of {BUDGET} coalitions, with intervals, and compared with estimates "
    f"from {' and '.join(map(str, SMALLER))}."
)


def values_experiment(seed: int = 0) -> Experiment:
    """Return the experiment that values every update in every round, also with smaller budgets.

    It has the data, model and training of the race. A budget is the number of models evaluated per round.
    """
    # by accuracy: here some models have a higher loss than guessing, compared with which a random one would look good
    value = {"name": "mixture", "utility": "accuracy", "budget": BUDGET, "also": list(SMALLER), "interactions": True}
    race = demo_experiments(seed)["greedyfed"].sections()
    return Experiment(
        **{key: race[key] for key in ("data", "model", "train", "behaviour")},
        mechanism={"name": "fedavg", "select": "everyone", "value": value},
        run={"rounds": VALUES_ROUNDS, "seed": seed},
    )


def _values(folder: Path, console: Console) -> tuple[Path, str]:
    """Value everyone, print which conclusions a smaller budget would have changed, and write the report.

    Returns:
        The report, and a sentence or two on who contributed.
    """
    console.print("\n", VALUES_LEAD, "\n", sep="")
    place = folder / "everyone"
    run(values_experiment(), out=place, observers=[ProgressBar(console, "everyone is valued")])
    loaded = load_run(place)
    sums = contribution(group_runs([loaded])[0])
    assert sums is not None  # everyone is valued
    table = RichTable(
        "models a round", "mean half-width of a 95 % interval", "the same among the best", "signs surely other",
        title=f"Values over {VALUES_ROUNDS} rounds, by budget", min_width=60,
    )  # fmt: skip
    whole = float(sums.last.sampling.mean())
    for less in smaller_budgets(loaded, sums):
        width = SURE * float(less.errors[sums.clients].mean())
        table.add_row(str(less.budget), f"{width:.3f}", f"{less.same} of {less.of}", str(len(less.flips)))
    table.add_row(str(BUDGET), f"{SURE * whole:.3f}", "", "")
    console.print(table)
    title = "What each of twenty organisations was worth, by the number of models"
    page = write_report([place], folder / "values-report", title=title, lead=VALUES_LEAD)
    return page, answers(group_runs([loaded])).lines["Who contributed?"]


# ---- the market: twelve participants of four roles trade models of real handwritten digits


MARKET_ROUNDS = 20
MARKET_LEAD = (
    "Twelve participants with about 16 handwritten digits each trade models: sellers, buyers, traders who do both, and "
    "one attacker who offers random models. Who buys from whom depends on how similar and how useful the models are; "
    "every purchase is paid for in tokens."
)


@dataclass(frozen=True)
class Scene:
    """The market of the demo, after it was played.

    Attributes:
        market: the run of the market.
        alone: the run of the same clients, each training by itself.
        audit: the checks of the market.
        table: who bought, sold and gained what.
        gain: one sentence on the buyers' gain.
        picture: the file of the graph of who paid whom.
    """

    market: PlayedRun
    alone: PlayedRun
    audit: Audit
    table: RichTable
    gain: str
    picture: Path


def market_experiment(seed: int = 0, *, alone: bool = False) -> Experiment:
    """Return the demo's market: iPFL among the twelve roles of its Table 5, of which eleven trade and one attacks.

    Args:
        seed: the seed of the split and of all other draws.
        alone: whether each client trains by itself instead, with the same data and the same attacker.
    """
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
        run={"rounds": MARKET_ROUNDS, "seed": seed},
        behaviour={"attacker": {"clients": attackers, "kind": "random"}},
        **({"mechanism": {"name": "local"}} if alone else trade),
    )  # fmt: skip


def scene(out: Path, observe: Callable[[str], Sequence[Observer]] = lambda what: ()) -> Scene:
    """Play the market, and also every client alone. Audit the market, and draw who paid whom.

    Args:
        out: the folder of both runs, ``market`` and ``market-alone``.
        observe: a function that returns the observers of a run, given a description of the run.
    """
    market = run(market_experiment(), out=out / "market", observers=observe("the market"))
    alone = run(market_experiment(alone=True), out=out / "market-alone", observers=observe("each client alone"))
    audit = audit_run(out / "market")
    trades = load_trades(load_run(out / "market"))
    assert trades is not None  # the scene trades: it is audited above
    chart = transactions_chart(trades, "Who paid whom (tokens)")
    save(chart, out / "market")
    picture = out / "market" / f"{chart.key}.png"
    return Scene(market, alone, audit, _market_table(market, alone, audit), _gain(market, alone), picture)


def _market_table(market: PlayedRun, alone: PlayedRun, audit: Audit) -> RichTable:
    """Return a table of what each participant bought and sold, and its accuracy alone and in the market."""
    table = RichTable(
        "client", "role", "bought", "sold", "utility", "accuracy alone %", "in the market %",
        title=f"The market after {MARKET_ROUNDS} rounds",
    )  # fmt: skip
    together, by_itself = _tested(market), _tested(alone)
    for c in audit.clients:
        role = TABLE_5[c.client]
        # the attacker's model is noise, with a market or without
        right = ["-" if role == "attacker" else f"{100 * got[c.client]:.1f}" for got in (by_itself, together)]
        table.add_row(str(c.client), role, f"{c.bought:.2f}", f"{c.sold:.2f}", f"{c.utility:.2f}", *right)
    return table


def _gain(market: PlayedRun, alone: PlayedRun) -> str:
    """Return a sentence on what those who buy gained: the mean difference over them with its 95 % interval."""
    together, by_itself = _tested(market), _tested(alone)
    buying = [client for client, role in enumerate(TABLE_5) if role in ("buyer", "trader")]
    more = np.array([100 * (together[client] - by_itself[client]) for client in buying])
    half = t_quantile(len(more) - 1) * float(more.std(ddof=1)) / math.sqrt(len(more))
    mean = float(more.mean())
    return (
        f"The {len(buying)} who buy get on average {rounded(mean, half, sign=True)} points of accuracy on their own "
        f"test data (95 % interval {between(mean, half, sign=True)}); sellers are paid, and nobody deals with the "
        "attacker."
    )
