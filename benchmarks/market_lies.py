"""For whom lies pay in a market of models: iPFL's eq. (10), critical prices, and posted prices.

    python benchmarks/market_lies.py random [MARKETS [paper|wide] [eq10|critical|posted|weight]]  # random, 10 clients
    python benchmarks/market_lies.py trained [posted|weight...]  # 50 of models trained on digits, Fashion-MNIST, loans
    python benchmarks/market_lies.py played             # hanse's own runs on digits: 8 clients, seeds 0 to 4

In a random market each client multiplies one thing that it says of itself, its size, cost or eagerness, by each
factor of a grid, or splits into 2 or 3 sellers; a lie *pays* if it brings the client more than 1 % of what it has by
honesty (hanse.lab.attack_markets, which 'hanse attack MECHANISM --markets' plays). Sizes at posted prices are taken to
be audited: a claim of x times the samples survives 60 leaves with the chance x^-60, and one that does not costs a bond
of 10 tokens once in 50 rounds. In a trained market distances are those of ten clients' models after 40 steps alone, and
sizes those of their shares (Dirichlet, alpha 1); costs are drawn as in random ones, the tariff's slope and the
eagerness are those of random markets at the mean size. The runs are played at posted prices with and without proved
sizes, by weight. Prints Markdown.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import hanse
from hanse.core.entry import TOKEN
from hanse.games.market import Market
from hanse.games.market_posted import Tariff
from hanse.lab.attack_markets import CLIENTS, KINDS, LIES, Found, Rule, search_markets, search_these
from hanse.runs.recorded_market import recorded_markets

TARIFF = Tariff()
AUDITED, BOND = 60, 10.0
RULES = {
    "eq10": Rule("marginal"),
    "critical": Rule("critical"),
    "posted": Rule("posted", leaves=AUDITED, bond=BOND),  # by size
    "weight": Rule("posted", Tariff(by="weight"), leaves=AUDITED, bond=BOND),
}


def on_random(markets: int, only: list[str]) -> None:
    """Print the table of random markets, of the kinds and rules that ``only`` names; without any, of all."""
    kinds = [kind for kind in KINDS if kind in only] or KINDS
    rules = [name for name in RULES if name in only] or RULES
    head(f"markets ({markets} each)")
    for kind in kinds:
        for name in rules:
            show(f"{kind}, {name}", search_markets(RULES[name], kind, markets))


def head(first: str) -> None:
    """Print the head of a table."""
    print(f"\n| {first}, rule | {', '.join(LIES)} pay for clients | in markets | honest losers | net welfare |")
    print("|---|---|---|---|---|", flush=True)


def show(name: str, found: Found) -> None:
    """Print a row of the table."""
    clients = found.markets * CLIENTS
    said = ", ".join(f"{100 * found.pays[lie] / clients:.2f}" for lie in LIES)
    touched = ", ".join(f"{100 * found.touched[lie] / found.markets:.1f}" for lie in LIES)
    losers, welfare = 100 * found.losers / clients, 100 * found.welfare
    print(f"| {name} | {said} % | {touched} % | {losers:.1f} % | {welfare:.1f} % |", flush=True)


TRAINED = {"digits": 17, "fashion_mnist": 17, "loans": 16}
MEAN = 4000.0  # the mean size of random "paper" markets, for which the tariff's slope and the eagerness are


def trained_market(source: str, seed: int) -> tuple[Market, float]:
    """Return a market of ten clients' trained models, and the tariff's slope in tokens a thousand samples."""
    run = hanse.Experiment(
        data={"source": source, "clients": CLIENTS, "seed": seed}
        | ({} if source == "loans" else {"partition": {"alpha": 1.0}}),  # loans have owners: states
        model="logistic",
        mechanism="ipfl",
        train={"steps": 40, "batch_size": 16, "lr": 0.1},
        engine={"threads": 1},
        eval={"every": 2},
        run={"rounds": 2, "seed": seed},
    )
    with tempfile.TemporaryDirectory() as folder:
        hanse.run(run, out=Path(folder) / "run")
        first = next(recorded_markets(Path(folder) / "run")).market
    draw, mean = np.random.default_rng(seed), float(first.sizes.mean())
    scale = mean / MEAN
    eagerness = np.where(draw.random(CLIENTS) < 0.8, draw.uniform(3e5, 6e5, CLIENTS) * scale, 0.0)
    costs = draw.uniform(0.5, 1, CLIENTS)
    return Market.of(first.distance, first.sizes, costs, eagerness, 2.0), TARIFF.per_thousand / scale


def on_trained(only: list[str]) -> None:
    """Print the table of trained markets, under the rules that ``only`` names; without any, under all."""
    head("markets")
    for source, seeds in TRAINED.items():
        made = [trained_market(source, seed) for seed in range(seeds)]
        for name in [name for name in RULES if name in only] or RULES:
            rule = RULES[name]
            sloped = [(m, replace(rule, tariff=replace(rule.tariff, per_thousand=s))) for m, s in made]
            each = [search_these(one, source, [m]) for m, one in sloped]
            show(f"{seeds} {source}, {name}", together(each))


def together(each: Sequence[Found]) -> Found:
    """Return the counts of several searches together, with the mean of their welfare."""
    pays, touched = ({lie: sum(getattr(f, what)[lie] for f in each) for lie in LIES} for what in ("pays", "touched"))
    losers, welfare = sum(f.losers for f in each), float(np.mean([f.welfare for f in each]))
    return replace(each[0], markets=len(each), pays=pays, touched=touched, losers=losers, welfare=welfare)


CHEATS = {
    "honest": {},
    "says 2 times its samples": {"liar": {"clients": [0], "size": 2.0}},
    "says 6.7 times its samples": {"liar": {"clients": [0], "size": 6.7}},
    "sends random models": {"attacker": {"clients": [0], "kind": "random"}},
    "says a tenth of its eagerness": {"liar": {"clients": [0], "eagerness": 0.1}},
    "says a cost of 0": {"liar": {"clients": [0], "cost": 0.0}},
}


SYSTEMS = {
    "eq. (10)": {"mechanism": "ipfl"},
    "posted": {"mechanism": "ipfl_posted"},
    "posted, sizes proved": {"mechanism": "ipfl_posted", "sizes": {"proved": True}},
}


def played() -> None:
    """Print the table of hanse's own runs: what client 0 has at the end, the others' mean, and its utility."""
    print("\n| client 0 | " + " | ".join(f"{name}: balance, others, utility" for name in SYSTEMS) + " |")
    print("|---" * (1 + len(SYSTEMS)) + "|", flush=True)
    for what, behaviour in CHEATS.items():
        cells = []
        for sections in SYSTEMS.values():
            found = np.array([one_run(sections, behaviour, seed) for seed in range(5)])
            cells.append("{:.1f}, {:.1f}, {:.1f}".format(*found.mean(axis=0)))
        print(f"| {what} | {' | '.join(cells)} |", flush=True)


def one_run(sections: Mapping[str, Any], behaviour: Mapping[str, Any], seed: int) -> tuple[float, float, float]:
    """Return what client 0 has at the end of a run, the mean of the others, and the utility of client 0."""
    experiment = hanse.Experiment(
        data={"clients": 8, "partition": {"alpha": 1.0}, "seed": seed},
        model={"name": "logistic"},
        train={"steps": 20, "batch_size": 16, "lr": 0.1},
        clients={
            "grant": 100.0,
            "profiles": {"name": "roles", "roles": ["trader"] * 8, "eagerness": [5e4, 5e4], "cost": [0.2, 0.4]},
        },
        engine={"threads": 1},
        run={"rounds": 8, "seed": seed},
        behaviour=behaviour,
        **sections,
    )
    run = hanse.run(experiment)
    money = [run.book.balance(f"client/{c}") / TOKEN for c in range(8)]
    return money[0], float(np.mean(money[1:])), run.metrics[-1]["utility/client/0"]


if __name__ == "__main__":
    if sys.argv[1:2] == ["played"]:
        played()
    elif sys.argv[1:2] == ["trained"]:
        on_trained(sys.argv[2:])
    else:
        on_random(int(sys.argv[2]) if len(sys.argv) > 2 else 1000, sys.argv[3:])
