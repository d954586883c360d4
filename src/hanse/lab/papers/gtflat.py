"""GTFLAT's experiments: *GTFLAT: Game Theory Based Add-On For Empowering Federated Learning Aggregation Techniques*
(Mahini, Mousavi, Daneshtalab), Example 1 and section 5: tables 2 and 3, figure 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hanse.data.sources import is_here
from hanse.lab.papers.frame import Cell, Measure, Paper, PaperTable, Published, Scale, Variant
from hanse.lab.papers.gtflat_cells import ACCURACY, ROUNDS
from hanse.lab.papers.gtflat_example import example1

__all__ = ["BASES", "GTFLAT_PAPER", "WEIGHTINGS", "Block"]

Sections = dict[str, dict[str, Any]]

# batch normalisation keeps statistics, so that only one seat after another can be trained; fixed: same bits every time
ENGINE = {"train": "sequential", "threads": 1, "workers": 1, "device": "cpu"}
EMNIST = "emnist_balanced"


@dataclass(frozen=True)
class Block:
    """One data set's part of the tables; ``printed``: the source whose printed cells it stands beside.

    ``fedgen``: options of FedGen's train part that differ from MNIST's.
    """

    source: str
    label: str
    printed: str
    clients: int = 50
    per_round: int = 5
    rounds: int = 200
    steps: int = 20
    fedgen: Mapping[str, Any] | None = None


BLOCKS = (
    Block("mnist", "MNIST", "mnist"),
    Block("fashion_mnist", "FMNIST", "fashion_mnist"),
    Block(EMNIST, "EMNIST", EMNIST, fedgen={"lr": 1e-4}),
    Block("cifar10", "CIFAR-10", "cifar10"),
)
ALPHAS = (0.05, 1.0)

# what GTFLAT is put on; a mechanism that averages plugs in here
BASES: Mapping[str, Callable[[Block], dict[str, Any]]] = {
    "FedAvg": lambda block: {"name": "fedavg"},
    "FedProx": lambda block: {"name": "fedprox", "mu": 1.0},
    "FedGen": lambda block: {"name": "fedgen"} | ({"train": dict(block.fedgen)} if block.fedgen else {}),
}
# how an algorithm is called, and its weigh part (none: the base's own, by samples)
WEIGHTINGS: Mapping[str, Any] = {
    "{}": None,
    "GT{}": {"name": "gtflat"},
    "GT{}, mean scale": {"name": "gtflat", "scale": "mean"},
    "{}, uniform": {"name": "uniform"},
    "{}, inverse distance": {"name": "inverse_distance"},
}

NOTES = (
    "'uniform' and 'inverse distance' replace the sample shares as GTFLAT does; 'mean scale' is GTFLAT with the "
    "distances divided by their mean (docs/papers.md T13)",
    "clients' data: each class is spread over the clients by Dirichlet(alpha) as in FedGen's code, all samples of the "
    "train set, at least 10 a client; the whole test set is tested on every round",
    "20 local steps of batch 32 (FedGen's '20 local epochs'), lr 0.01, plain SGD; FedProx with mu=1, the default of "
    "FedGen's code; GTFLAT's text names neither",
    "a seed sets the split and everything else; deviations are over seeds",
)
BEST_NOTE = (
    "the best accuracy so far, as in figure 2 and as eq. (13) needs it; table2-last reads the same runs' last round: "
    "the text does not say which is printed (docs/papers.md T14)"
)
LAST_NOTE = "the accuracy of the last round; table2 reads the same runs' best (docs/papers.md T14)"
ROUND_NOTES = (
    "R* is the first round whose best accuracy so far is within 0.5% of the base's at the last round; rounds and "
    "improvement are of the mean curve over the seeds, their deviation is over the seeds one by one; without a number: "
    "never, or not all of it is there",
)


def _experiment(block: Block, alpha: float, base: str, weigh: Mapping[str, Any] | None) -> Sections:
    mechanism = {**BASES[base](block), "clients_per_round": block.per_round}
    if weigh is not None:
        mechanism["weigh"] = dict(weigh)
    data = {"source": block.source, "partition": "niid", "alpha": alpha, "clients": block.clients, "validation": 0.0}
    return {
        "data": data,
        "model": {"name": "cnn_fedgen"},
        "mechanism": mechanism,
        "train": {"steps": block.steps, "batch_size": 32, "lr": 0.01},
        "engine": dict(ENGINE),
        "eval": {"every": 1},
        "run": {"rounds": block.rounds},
    }


def _places(blocks: tuple[Block, ...]) -> Iterator[tuple[Block, float, str, str, Mapping[str, Any] | None]]:
    """Yield every block, alpha, base and weighting; the scale-free form only on FedAvg."""
    for block in blocks:
        for alpha in ALPHAS:
            for base in BASES:
                for pattern, weigh in WEIGHTINGS.items():
                    if base == "FedAvg" or "mean scale" not in pattern:
                        yield block, alpha, base, pattern.format(base), weigh


def _cell(block: Block, alpha: float, algorithm: str, column: str, variant: Variant, measure: Measure,
          published: Published | None, ranked: bool, *more: str) -> Cell:  # fmt: skip
    words = {block.source, block.printed.removesuffix("_balanced"), *block.label.lower().split(), f"alpha={alpha:g}"}
    tags = frozenset({*words, *more, *algorithm.lower().replace(",", " ").split()})
    return Cell(block.label, column, algorithm, (variant,), block.rounds, published, ranked, tags, measure)


def _table2(blocks: tuple[Block, ...], *, figure: bool = False, measure: Measure = "best") -> list[Cell]:
    cells = []
    for block, alpha, base, algorithm, weigh in _places(blocks):
        variant = Variant("", _experiment(block, alpha, base, weigh))
        published = ACCURACY.get((block.printed, alpha, algorithm))
        shown = replace(block, label=f"{block.label} alpha={alpha:g}") if figure else block
        column = f"T={block.rounds}" if figure else f"alpha={alpha:g}"
        cells.append(_cell(shown, alpha, algorithm, column, variant, measure, published, True, base.lower()))
    return cells


def _table3(blocks: tuple[Block, ...]) -> list[Cell]:
    cells = []
    for block, alpha, base, algorithm, weigh in _places(blocks):
        against = _experiment(block, alpha, base, None)
        variant = Variant("", _experiment(block, alpha, base, weigh), against)
        printed = ROUNDS[block.printed, alpha, base] if algorithm in (base, f"GT{base}") else (None, None, None)
        column = f"alpha={alpha:g}"
        name = f"{algorithm}: R*" if weigh is None else f"{algorithm}: R* for {base}'s"
        which = printed[0 if weigh is None else 1]
        cells.append(_cell(block, alpha, name, column, variant, "rounds", which, False, algorithm.lower()))
        if weigh is not None:
            name = f"{algorithm}: improvement %"
            cells.append(
                _cell(block, alpha, name, column, variant, "improvement", printed[2], False, algorithm.lower())
            )
    return cells


_TITLES: Mapping[str, tuple[str, Callable[[tuple[Block, ...]], list[Cell]]]] = {
    "table2": ("Table 2, best test accuracy", _table2),
    "table2-last": ("Table 2, test accuracy of the last round", partial(_table2, measure="at")),
    "table3": ("Table 3, effective rounds", _table3),
    "figure2": ("Figure 2, best test accuracy so far", partial(_table2, figure=True)),
}


def _build(name: str, scale: Scale) -> PaperTable:
    title, cells = _TITLES[name]
    blocks, seeds, changes, absent = _scaled(scale)
    notes = (LAST_NOTE, *NOTES) if name == "table2-last" else (BEST_NOTE, *NOTES)
    made = tuple(cells(blocks))
    figure = name == "figure2"
    table = PaperTable("gtflat", name, title, scale, made, seeds, changes, notes, curves=figure, absent=absent)
    if name == "table3":
        return replace(table, notes=(*NOTES, *ROUND_NOTES), factor=1.0, unit="rounds, or % of rounds")
    return table


def _scaled(scale: Scale) -> tuple[tuple[Block, ...], int, tuple[str, ...], Mapping[str, str]]:
    """Return a scale's blocks, number of seeds, what it changes, and the words of settings that are left out."""
    if scale == "small":
        said = "MNIST and FMNIST only; clients, rounds and all settings as published"
        left = dict.fromkeys(("emnist", EMNIST, "cifar10", "cifar-10"), "is part of --scale paper only")
        return BLOCKS[:2], 3, (said,), left
    if scale == "paper":
        if is_here(EMNIST):
            said = "EMNIST is its balanced part of 47 classes; the text does not say which"
            return BLOCKS, 5, (said,), {}
        missing = f"EMNIST is left out: {EMNIST}.npz is not here (HANSE_DATA)"
        here = tuple(block for block in BLOCKS if block.source != EMNIST)
        return here, 5, (missing,), dict.fromkeys(("emnist", EMNIST), missing)
    small = Block("digits", "MNIST (on digits)", "mnist", clients=6, per_round=3, rounds=4, steps=5)
    changes = (
        "a smoke test: it shows that everything runs; its figures are not to be compared with the paper's",
        "MNIST only, on scikit-learn's digits; 6 clients, 3 a round, 4 rounds of 5 steps",
    )
    return (small,), 2, changes, {}


GTFLAT_PAPER = Paper(
    "gtflat",
    "Mahini, Mousavi, Daneshtalab: GTFLAT: Game Theory Based Add-On For Empowering Federated Learning Aggregation "
    "Techniques",
    {name: partial(_build, name) for name in _TITLES} | {"example1": example1},
)
