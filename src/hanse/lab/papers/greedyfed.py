"""GreedyFed's experiments: *Greedy Shapley Client Selection for Communication-Efficient Federated Learning* (Singhal,
Pandey, Popovski 2024), section IV, tables I-IV and figure 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hanse.data.sources import is_here
from hanse.lab.papers.frame import Cell, Paper, PaperTable, Scale, Variant
from hanse.lab.papers.greedyfed_cells import CELLS, COLUMNS

__all__ = ["GREEDYFED", "Block"]

Sections = dict[str, dict[str, Any]]

MLP = {"name": "mlp", "hidden": [50, 25]}
CNN = {"name": "cnn_greedyfed"}
TRAIN = {"epochs": 5, "batches_per_epoch": 5, "lr": 0.01, "momentum": 0.5}
# fixed, so that nothing is measured and numbers are the same on every run
STACKED = {"train": "stacked", "threads": 1, "workers": 1, "device": "cpu"}
SEQUENTIAL = {**STACKED, "train": "sequential"}
CLAMPED, TRUE = "float32-clamped", "log"


@dataclass(frozen=True)
class Block:
    """One data set's part of the tables: N = ``clients``, M = ``per_round``, T = ``rounds``; Table II reads at
    ``times``.

    ``samples``: mean samples a client if not all data are used; ``thin``: the tuned algorithms have fewer variants.
    """

    source: str
    label: str
    model: Mapping[str, Any]
    clients: int
    per_round: int
    rounds: int
    times: tuple[int, ...]
    data: Mapping[str, Any]
    every: int = 10
    samples: int | None = None
    thin: bool = False
    published: str = ""

    @property
    def printed(self) -> str:
        """The source of the printed block that this one stands for."""
        return self.published or self.source


BLOCKS = (
    Block("mnist", "MNIST", MLP, 300, 3, 400, (150, 250, 350), {}),
    Block("fashion_mnist", "FMNIST", MLP, 300, 3, 400, (150, 250, 350), {}),
    Block("cifar10", "CIFAR-10", CNN, 200, 20, 200, (100, 150, 200), {}),
)

Algorithm = Callable[[Block], dict[str, dict[str, Any]]]


def _one(name: str) -> Algorithm:
    return lambda block: {"": {"name": name, "clients_per_round": block.per_round}}


def _greedyfed(block: Block) -> dict[str, dict[str, Any]]:
    tried = ("mean", 0.5) if block.thin else ("mean", 0.0, 0.1, 0.5, 0.9)
    same = {"name": "greedyfed", "clients_per_round": block.per_round}
    return {f"averaging={a:g}" if isinstance(a, float) else a: {**same, "averaging": a} for a in tried}


def _fedprox(block: Block) -> dict[str, dict[str, Any]]:
    tried = (0.01, 1.0) if block.thin else (0.01, 0.1, 1.0, 10.0)
    return {f"mu={mu:g}": {"name": "fedprox", "clients_per_round": block.per_round, "mu": mu} for mu in tried}


# S-FedAvg runs at its usual temperature 1 and start 1/N: section IV names no others (docs/papers.md G9)
ALGORITHMS: Mapping[str, Algorithm] = {
    "GreedyFed": _greedyfed,
    "UCB": _one("ucb"),
    "S-FedAvg": _one("s_fedavg"),
    "FedAvg": _one("fedavg"),
    "FedProx": _fedprox,
    "Power-Of-Choice": _one("power_of_choice"),
}
CENTRALISED = "Centralized"

NOTES = (
    "GreedyFed's averaging and FedProx's mu are the best of those tried, chosen on the test accuracy, as in the paper",
    "clients' data at alpha=1e-4 come from the published sampler, which underflows in single precision and makes about "
    "half of the clients exactly uniform (docs/papers.md G12); 'true' is the distribution that the text names",
    "pixels from 0 to 1, as in the authors' code; section IV does not say (standardised ones learn faster)",
    "S-FedAvg with temperature 1 and start 1/N, UCB with beta 0.01: section IV gives neither (docs/papers.md G9)",
    "Centralized trains on all data in one place for T rounds of E=5, B=5; stragglers and noise do not touch it, and "
    "it is one run for all columns",
    "deviations are over seeds; a seed sets the split and everything else",
)


def _federated(block: Block, mechanism: dict[str, Any], alpha: float, sampler: str) -> Sections:
    data = {"source": block.source, "partition": "dirichlet", "alpha": alpha, "clients": block.clients}
    if sampler != TRUE:
        data["sampler"] = sampler
    if block.samples is not None:
        data["samples_per_client"] = block.samples
    return _whole(block, data, mechanism, TRAIN)


def _centralised(block: Block) -> Sections:
    # a shrunken block keeps the number of steps, not the size of the batches
    train = TRAIN if block.samples is None else {"steps": 25, "batch_size": 100, "lr": 0.01, "momentum": 0.5}
    return _whole(block, {"source": block.source, "partition": "pooled"}, {"name": "centralised"}, train)


def _whole(block: Block, data: dict[str, Any], mechanism: dict[str, Any], train: dict[str, Any]) -> Sections:
    return {
        "data": {**data, "scale": "unit", "validation": 0.5, **block.data},
        "model": dict(block.model),
        "mechanism": mechanism,
        "train": train,
        "engine": STACKED if block.model is MLP else SEQUENTIAL,
        "eval": {"every": block.every},
        "run": {"rounds": block.rounds},
    }


def _cells(
    table: str,
    block: Block,
    column: str,
    *,
    alpha: float = 1e-4,
    sampler: str = CLAMPED,
    behaviour: dict[str, Any] | None = None,
    at: int | None = None,
    look_up: str | None = None,
) -> list[Cell]:
    """Return the seven cells of a column; ``look_up`` is its printed name where that differs."""
    true = alpha == 1e-4 and sampler == TRUE
    name = f"{column} (true)" if true else f"{column} (clamped)" if column == "alpha=1e-4" else column
    tags = {block.source, *block.label.lower().split(), block.printed, column.lower()}
    tags |= {"true"} if true else {"clamped"} if alpha == 1e-4 else set()
    cells = []
    for algorithm in (*ALGORITHMS, CENTRALISED):
        variants: tuple[Variant, ...]
        if algorithm == CENTRALISED:
            variants = (Variant("", _centralised(block)),)
        else:
            made = ALGORITHMS[algorithm](block)
            runs = {v: _federated(block, mechanism, alpha, sampler) for v, mechanism in made.items()}
            extra = {"behaviour": behaviour} if behaviour else {}
            variants = tuple(Variant(v, {**sections, **extra}) for v, sections in runs.items())
        published = None if true else CELLS.get((table, block.printed, look_up or column, algorithm))
        words = frozenset(tags | {algorithm.lower()})
        reads = block.rounds if at is None else at
        ranked = algorithm != CENTRALISED
        cells.append(Cell(block.label, name, algorithm, variants, reads, published, ranked, words))
    return cells


def _table1(blocks: tuple[Block, ...], sampler: str) -> list[Cell]:
    cells = []
    for block in blocks:
        for which in (CLAMPED, TRUE):
            cells += _cells("table1", block, "alpha=1e-4", sampler=which)
        for alpha in (0.1, 100.0):
            cells += _cells("table1", block, f"alpha={alpha:g}", alpha=alpha, sampler=TRUE)
    return cells


def _table2(blocks: tuple[Block, ...], sampler: str) -> list[Cell]:
    return [
        cell
        for block in blocks
        for time, column in zip(block.times, COLUMNS["table2"][block.printed], strict=True)
        for cell in _cells("table2", block, f"T={time}", sampler=sampler, at=time, look_up=column)
    ]


# the sign of a column, the behaviour that a column's clients have, its option, and the option's values (0: none)
_BEHAVIOURS = {
    "table3": ("x", "straggler", "fraction", (0.0, 0.5, 0.9)),
    "table4": ("sigma", "noisy", "sigma", (0.0, 0.05, 0.1)),
}


def _behaving(blocks: tuple[Block, ...], sampler: str, *, table: str) -> list[Cell]:
    cells = []
    sign, name, option, values = _BEHAVIOURS[table]
    for block in blocks:
        for value in values:
            behaviour = {name: {option: value}} if value else None
            cells += _cells(table, block, f"{sign}={value:g}", sampler=sampler, behaviour=behaviour)
    return cells


_TITLES: Mapping[str, tuple[str, Callable[[tuple[Block, ...], str], list[Cell]]]] = {
    "table1": ("Table I, data heterogeneity", _table1),
    "table2": ("Table II, timing constraints", _table2),
    "table3": ("Table III, stragglers", partial(_behaving, table="table3")),
    "table4": ("Table IV, noise for privacy", partial(_behaving, table="table4")),
    "figure1": ("Figure 1, test accuracy over the rounds", _table2),
}


def _build(name: str, sampler: str, scale: Scale) -> PaperTable:
    title, cells = _TITLES[name]
    figure = name == "figure1"
    blocks, seeds, changes = _scaled(scale, BLOCKS[-1:] if figure else BLOCKS, figure)
    true = sampler == TRUE and name != "table1"
    return PaperTable(
        "greedyfed",
        f"{name}-true" if true else name,
        title + (", true Dirichlet(1e-4)" if true else ""),
        scale,
        tuple(cells(blocks, sampler)),
        seeds=seeds,
        changes=changes,
        notes=NOTES,
        curves=figure,
    )


def _scaled(scale: Scale, blocks: tuple[Block, ...], figure: bool) -> tuple[tuple[Block, ...], int, tuple[str, ...]]:
    """Return a scale's blocks, number of seeds, and what it changes."""
    if scale == "paper":
        return blocks, 5, ()
    if scale == "small" and figure:
        return blocks, 3, ("all settings as published",)
    if scale == "small":
        return blocks[:2], 3, ("MNIST and FMNIST only; N, M, T and all settings as published",)
    block = blocks[0]
    stand_in = "mnist" if is_here("mnist") else "digits"  # CIFAR-10 alone takes longer to load than this may take
    model = MLP if stand_in == "digits" else block.model
    small = replace(
        block, source=stand_in, model=model, clients=9, per_round=3, rounds=6, times=(2, 4, 6), every=1,
        samples=60, thin=True, published=block.source, data={"download": False} if stand_in != "digits" else {},
    )  # fmt: skip
    changes = [
        "a smoke test: it shows that everything runs; its figures are not to be compared with the paper's",
        f"{block.label} only, N=9 clients of 60 samples on average, M=3, T=6 (read at 2, 4, 6 for T)",
        "two variants of GreedyFed and of FedProx; Centralized with batches of 100",
    ]
    if stand_in != block.source:
        small = replace(small, label=f"{block.label} (on {stand_in})")
        missing = "" if is_here(block.source) else f"{block.source}.npz is not here (HANSE_DATA): "
        changes.append(f"{missing}{stand_in} stands in for {block.label}")
    return (small,), 2, tuple(changes)


GREEDYFED = Paper(
    "greedyfed",
    "Singhal, Pandey, Popovski: Greedy Shapley Client Selection for Communication-Efficient Federated Learning, 2024",
    {name: partial(_build, name, CLAMPED) for name in _TITLES}
    | {f"{name}-true": partial(_build, name, TRUE) for name in _TITLES if name != "table1"},
)
