"""iPFL's experiments: *Incentivizing Inclusive Data Contributions in Personalized Federated Learning* (Zhang et al.
2024), section 6 and appendix E: figures 2 to 8, tables 1, 4, 5, 7, 8 and 9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hanse.data.sources import is_here
from hanse.federation.profiles import TABLE_5
from hanse.lab.papers.frame import Cell, Paper, PaperTable, Published, Scale
from hanse.lab.papers.ipfl_cells import TABLE4, TABLE5, TABLE7, TABLE8, TABLE9
from hanse.lab.papers.ipfl_llm import build_table1
from hanse.lab.papers.ipfl_settings import (
    ACCURACY,
    LABELS,
    NOTES,
    PAPER_ROUNDS,
    PARTITIONS,
    UTILITY,
    Block,
    Sections,
    cell_of,
    data_of,
    experiment,
    ipfl_of,
    mechanisms,
    rate_of,
)

__all__ = ["IPFL", "fit"]

ATTACKS = ("shuffle", "same", "flip", "gaussian")
ATTACKED = ("iPFL", "Ditto", "pFedGraph", "CFL", "FedAMP")


def _figure2(block: Block) -> list[Cell]:
    cells = []
    for source in block.sources:
        for setting in PARTITIONS:
            group = f"{LABELS[source]} {setting}"
            for name, mechanism in {**mechanisms(source), "Local": {"name": "local"}}.items():
                sections = experiment(block, data_of(source, setting, block), mechanism)
                cells.append(cell_of(group, "accuracy %", name, sections, ACCURACY, 100.0))
                if name != "Local":
                    cells.append(cell_of(group, "utility", name, sections, UTILITY, rate_of(sections)))
    return cells


def _figure4(block: Block) -> list[Cell]:
    cells = []
    for source, setting in zip(block.sources, ("Cluster", "NIID"), strict=False):
        for name, mechanism in mechanisms(source).items():
            sections = experiment(block, data_of(source, setting, block), mechanism)
            group, factor = f"{LABELS[source]} {setting}", rate_of(sections)
            cells.append(cell_of(group, "mean utility", name, sections, UTILITY, factor))
            cells.append(cell_of(group, "lowest utility", name, sections, "utility/min", factor))
    return cells


def _figure5(block: Block) -> list[Cell]:
    source, attacker = block.sources[0], PARTITIONS["Cluster"]["clients"] - 1
    benign = tuple(f"client/{i}/test_accuracy" for i in range(attacker))
    cells = []
    for kind in ("no attack", *ATTACKS):
        for name in ATTACKED:
            more = {} if kind == "no attack" else {"behaviour": {"attacker": {"clients": [attacker], "kind": kind}}}
            sections = experiment(block, data_of(source, "Cluster", block), mechanisms(source)[name], **more)
            group, worth = f"{LABELS[source]} Cluster", f"utility/client/{attacker}"
            cells.append(cell_of(group, f"{kind}: benign accuracy %", name, sections, benign, 100.0))
            cells.append(cell_of(group, f"{kind}: attacker's utility", name, sections, worth, rate_of(sections)))
    return cells


LIES: Mapping[str, dict[str, float]] = {
    "honest": {},
    "size x0.1": {"size": 0.1},
    "size x0.5": {"size": 0.5},
    "size x10": {"size": 10.0},
    "cost x2": {"cost": 2.0},
    "cost x5": {"cost": 5.0},
    "cost x10": {"cost": 10.0},
    # not in the paper: the lies that may pay (docs/papers.md I10)
    "cost x0.5": {"cost": 0.5},
    "size x2": {"size": 2.0},
    "eagerness x0.5": {"eagerness": 0.5},
}


def _table4(block: Block) -> list[Cell]:
    source, cells = block.sources[0], []
    for lie, ratios in LIES.items():
        more = {"behaviour": {"liar": {"clients": [0], **ratios}}} if ratios else {}
        sections = experiment(block, data_of(source, "NIID", block), ipfl_of(source), **more)
        group = f"{LABELS[source]} NIID, client 0"
        accuracy, utility = TABLE4.get(lie, (None, None))
        rate = None if utility is None else utility / (PAPER_ROUNDS - 1)
        cells.append(cell_of(group, "accuracy %", lie, sections, "client/0/test_accuracy", 100.0, accuracy))
        cells.append(cell_of(group, "utility", lie, sections, "utility/client/0", rate_of(sections), rate))
    return cells


def _market(block: Block, source: str, mechanism: Mapping[str, Any]) -> Sections:
    K = (3e5 * block.shrink, 6e5 * block.shrink)
    data = {"source": source, "partition": "cluster", "clients": len(TABLE_5)}
    attack = {"attacker": {"clients": [i for i, role in enumerate(TABLE_5) if role == "attacker"], "kind": "random"}}
    profiles = {"name": "roles", "roles": list(TABLE_5), "eagerness": list(K)}
    quiet = mechanism["name"] == "local"
    return experiment(
        block,
        data,
        mechanism,
        rounds=block.market_rounds,
        profiles=profiles,
        **({} if quiet else {"behaviour": attack}),
    )


def _table5(block: Block) -> list[Cell]:
    cells = []
    for source in block.sources:
        # at Fashion-MNIST's tuned lambda the models' difference costs nothing, and nobody would be isolated
        fed = _market(block, source, ipfl_of("cifar10" if source != "digits" else source))
        alone = _market(block, source, {"name": "local"})
        group = f"{LABELS[source]} inclusive market"
        for i, role in enumerate(TABLE_5):
            who = f"{i + 1} {role}"
            printed = TABLE5[i] if source == block.sources[0] else (None,) * 5
            test = f"client/{i}/test_accuracy"
            if role != "attacker":
                cells.append(cell_of(group, "local accuracy %", who, alone, test, 100.0, printed[1], ranked=False))
                cells.append(cell_of(group, "accuracy %", who, fed, test, 100.0, printed[2], ranked=False))
            part = fed["run"]["rounds"] - 1
            money, worth = (None if p is None else p / 19 for p in printed[3:])
            cells.append(cell_of(group, "balance", who, fed, f"balance/client/{i}", 1 / part, money))
            cells.append(cell_of(group, "utility", who, fed, f"utility/client/{i}", 1 / part, worth))
    return cells


def _figure3(block: Block) -> list[Cell]:
    cells = []
    for source in block.sources:
        fed = _market(block, source, ipfl_of("cifar10" if source != "digits" else source))
        alone = _market(block, source, {"name": "local"})
        for role in ("seller", "trader", "buyer", "attacker"):
            who = [i for i, r in enumerate(TABLE_5) if r == role]
            group, tests = f"{LABELS[source]} inclusive market", tuple(f"client/{i}/test_accuracy" for i in who)
            if role != "attacker":
                cells.append(cell_of(group, "local accuracy %", role, alone, tests, 100.0, ranked=False))
                cells.append(cell_of(group, "accuracy %", role, fed, tests, 100.0, ranked=False))
            names = tuple(f"balance/client/{i}" for i in who)
            cells.append(cell_of(group, "balance", role, fed, names, rate_of(fed)))
    return cells


def _table7(block: Block) -> list[Cell]:
    cells, source = [], block.sources[0]
    for size, accuracy in TABLE7.items():
        count = max(20, round(size * block.shrink))
        data = {"source": source, "partition": "iid", "clients": 1, "samples_per_client": count, "min_samples": 1}
        sections = experiment(block, data, {"name": "local"}, rounds=1, steps=block.steps * block.rounds)
        sections["data"] |= {"client_test": 0.0, "client_validation": 0.0}
        cells.append(cell_of(LABELS[source], f"{size} samples", "local", sections, "test/accuracy", 100.0, accuracy))
    return cells


def fit(accuracies: Mapping[int, float]) -> dict[str, float]:
    """Return the least-squares fit ``acc = p1 / sqrt(N) + p2`` (iPFL eq. 17) with its R^2 and root mean square
    error.
    """
    x = 1 / np.sqrt(np.array(list(accuracies), dtype=np.float64))
    y = np.array(list(accuracies.values()))
    p1, p2 = np.polyfit(x, y, 1)
    residual = y - (p1 * x + p2)
    r2 = 1 - float(residual @ residual) / float(((y - y.mean()) ** 2).sum())
    return {"p1": float(p1), "p2": float(p2), "R2": r2, "RMSE": math.sqrt(float((residual**2).mean()))}


def _table8(block: Block) -> list[Cell]:
    found = fit(TABLE7)
    return [
        Cell("fit of the printed Table 7", name, "least squares", (), 0, Published(TABLE8[name]),
             tags=frozenset({name.lower()}), computed=found[name])
        for name in TABLE8
    ]  # fmt: skip


def _figure6(block: Block) -> list[Cell]:
    from hanse.data import DataSpec, build

    source = block.sources[0]
    if source != "digits" and not is_here(source):
        return []  # the counts need the data set's file, and a table is laid out before anything is loaded
    spec = {"source": source, "partition": "cluster", "clients": len(TABLE_5), **dict(block.data)}
    counts = build(DataSpec(**spec)).class_counts()
    if counts is None:
        return []
    cells = []
    for i in range(len(TABLE_5) - 1):
        words = frozenset({"samples", "largest", str(i + 1)})
        group, who = f"{LABELS[source]} inclusive market", f"client {i + 1}"
        printed = Published(float(TABLE5[i][0]))
        cells.append(Cell(group, "samples", who, (), 0, printed, tags=words, computed=float(counts[i].sum())))
        share = 100.0 * float(counts[i].max() / max(1, counts[i].sum()))
        cells.append(Cell(group, "largest class %", who, (), 0, None, tags=words, computed=share))
    return cells


def _figure8(block: Block) -> list[Cell]:
    source, cells = block.sources[0], []
    for name, sweep in {
        "K, lambda=2": {f"K={K:g}": (K, 2.0) for K in (1e5, 5e5, 1e6, 1e7)},
        "lambda, K=1e7": {f"lambda={lam:g}": (1e7, lam) for lam in (1.0, 5.0, 10.0, 20.0)},
    }.items():
        for label, (K, lam) in sweep.items():
            profiles = {"name": "uniform", "cost": 1.0, "eagerness": K * block.shrink}
            sections = experiment(block, data_of(source, "Skew", block), ipfl_of(source, lam=lam), profiles=profiles)
            # the last training has no market: the round before it is the last that has one
            sections["eval"] = {"every": 1}
            made = cell_of(f"{LABELS[source]} Skew: {name}", "imports a client", label, sections, "market/edges", 0.1)
            cells.append(replace(made, at=max(1, sections["run"]["rounds"] - 1)))
    return cells


def _table9(block: Block) -> list[Cell]:
    source, cells = block.sources[0], []
    for iterations, (accuracy, utility) in TABLE9.items():
        steps = block.at(iterations)
        sections = experiment(block, data_of(source, "Cluster", block), ipfl_of(source), steps=steps)
        group, rate = f"{LABELS[source]} Cluster", utility / (PAPER_ROUNDS - 1)
        cells.append(cell_of(group, "accuracy %", f"{iterations} iterations", sections, ACCURACY, 100.0, accuracy))
        cells.append(cell_of(group, "utility", f"{iterations} iterations", sections, UTILITY, rate_of(sections), rate))
    return cells


_TABLES: Mapping[str, tuple[str, Callable[[Block], list[Cell]]]] = {
    "figure2": ("Figure 2, accuracy and utility", _figure2),
    "figure3": ("Figure 3, the inclusive market by role", _figure3),
    "figure4": ("Figure 4, the distribution of utility", _figure4),
    "figure5": ("Figure 5, four attacks", _figure5),
    "figure6": ("Figure 6, the clients' data", _figure6),
    "figure7": ("Figure 7, accuracy against the number of samples", _table7),
    "figure8": ("Figure 8, K and lambda against imports", _figure8),
    "table4": ("Table 4, one client lies", _table4),
    "table5": ("Table 5, the inclusive market", _table5),
    "table7": ("Table 7, local training on uniform data", _table7),
    "table8": ("Table 8, the fit of Table 7", _table8),
    "table9": ("Table 9, local iterations", _table9),
}


def _build(name: str, scale: Scale) -> PaperTable:
    title, cells = _TABLES[name]
    block, seeds, changes = _scaled(scale)
    made = tuple(cells(block))
    return PaperTable(
        "ipfl", name, title, scale, made, seeds=seeds, changes=changes, notes=NOTES, metric=ACCURACY, unit="as named",
        absent={"pacs": "PACS needs files that must be fetched by hand; its settings are not in these tables"},
    )  # fmt: skip


def _scaled(scale: Scale) -> tuple[Block, int, tuple[str, ...]]:
    """Return a scale's block, number of seeds, and what it changes."""
    if scale == "paper":
        return Block(), 3, ("the model is 'cnn_small': the paper says 'CNN-based networks' and no more",)
    if scale == "small":
        said = f"10 rounds of 40 iterations instead of {PAPER_ROUNDS} of 200 (Table 5: instead of 20 of 200)"
        return Block(rounds=10, steps=40, market_rounds=10), 3, (said, "the model is 'cnn_small'")
    changes = (
        "a smoke test: it shows that everything runs; its figures are not to be compared with the paper's",
        "digits (about 120 samples a client, eagerness in proportion) and a linear model, 3 rounds of 5 iterations",
    )
    tiny = Block(
        ("digits",), rounds=3, steps=5, market_rounds=3, model={"name": "logistic"}, lr=0.1, shrink=120 / 5000,
        data={"min_samples": 5},
    )  # fmt: skip
    return tiny, 2, changes


IPFL = Paper(
    "ipfl",
    "Zhang, Chai, Ye, Wang, Chen: Incentivizing Inclusive Data Contributions in Personalized Federated Learning, 2024",
    {**{name: partial(_build, name) for name in _TABLES}, "table1": build_table1},
)
