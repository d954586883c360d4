"""PI-FL's experiments: *PI-FL: Personalized and Incentivized Federated Learning* (Khan et al. 2023), section 4 and
appendices B and E: tables 1 to 5, figures 1 to 5; the image tables also on Fashion-MNIST, which the paper does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hanse.lab.papers.frame import Cell, Paper, PaperTable, Published, Scale, Variant
from hanse.lab.papers.pifl_cells import FIGURE1, TABLE1, TABLE2, TABLE3, TABLE4, TABLE5
from hanse.runs.held import QUANTILES

__all__ = ["PIFL", "Block"]

Sections = dict[str, dict[str, Any]]

ENGINE = {"train": "stacked", "threads": 1, "workers": 1, "device": "cpu"}
MIXES = ("10:90", "30:70", "linear", "random")
SEATS = {"by_contribution": 8, "at_random": 2}  # a tier and round; the paper does not say


@dataclass(frozen=True)
class Block:
    """What a scale trains on one data set: its ``mixes``, ``rounds`` by table, and what differs from the paper's."""

    source: str
    label: str
    rounds: int
    mixes: tuple[str, ...] = MIXES
    model: Mapping[str, Any] = ()  # type: ignore[assignment]
    data: Mapping[str, Any] = ()  # type: ignore[assignment]
    train: Mapping[str, Any] = ()  # type: ignore[assignment]
    engine: Mapping[str, Any] = ()  # type: ignore[assignment]
    clients: int = 100
    seats: Mapping[str, Any] = ()  # type: ignore[assignment]
    inverse: bool = True
    distributions: int = 2

    @property
    def tiers(self) -> dict[str, Any]:
        """PI-FL's numbers of tiers and of clients a tier."""
        return {"tiers": self.distributions, **(dict(self.seats) or SEATS)}

    @property
    def seated(self) -> int:
        """How many train a round: the same for every algorithm."""
        tiers = self.tiers
        return min(self.clients, int(tiers["tiers"] * (tiers["by_contribution"] + tiers["at_random"])))


ALGORITHMS: Mapping[str, Callable[[Block], tuple[dict[str, Any], str]]] = {
    "PI-FL": lambda b: ({"name": "pifl", **b.tiers}, "best_tier"),
    "PI-FL (I)": lambda b: ({"name": "pifl", **b.tiers}, "best_tier"),
    "PI-FL (NI)": lambda b: ({"name": "pifl", **b.tiers}, "random_tiers"),
    "PI-FL, rewards": lambda b: ({"name": "pifl", **b.tiers}, "reward_seeking"),
    "PI-FL, weights from train data": lambda b: ({"name": "pifl", **b.tiers, "personal_from": "train"}, "best_tier"),
    "FedSoft": lambda b: ({"name": "fedsoft", "clusters": b.distributions, "clients_per_round": b.seated}, "loyal"),
    "IFCA": lambda b: ({"name": "ifca", "clusters": b.distributions, "clients_per_round": b.seated}, "loyal"),
    "Ditto": lambda b: ({"name": "ditto", "clients_per_round": b.seated}, "loyal"),
    "FedProx": lambda b: ({"name": "fedprox", "clients_per_round": b.seated}, "loyal"),
    "local": lambda b: ({"name": "local"}, "loyal"),
}

NOTES = (
    "tiers are matched to distributions: c0 is the one that serves the first distribution (which is which is chance)",
    "the text gives neither local epochs nor N_p and N_r: 1 epoch, 8 by contribution and 2 at random a tier; every "
    "algorithm trains as many clients a round",
    "clients keep 10 % of their samples for testing and 10 % for validation, both from their test mixture "
    "(docs/papers.md P23)",
    "bids: the tier that fits best (docs/papers.md P22); 1 token a bid, eta 0.5, gamma 0.1, grant 100 tokens",
)
FIT_NOTE = (
    "regression has no accuracy, and the text does not say what its percentages are: ours are 100 / (1 + squared "
    "error), at most 50 because the noise has variance 1; only the pattern can be compared"
)


def _experiment(block: Block, mix: str, algorithm: str) -> Sections:
    mechanism, policy = ALGORITHMS[algorithm](block)
    data = {
        "source": block.source,
        "partition": "mixture",
        "mix": mix,
        "test_mix": "inverse" if block.inverse else "same",
        "clients": block.clients,
        "client_test": 0.1,
        "client_validation": 0.1,
        "validation": 0.0,
    }
    if block.distributions != 2:
        data["num_distributions"] = block.distributions
    return {
        "data": data | dict(block.data),
        "model": dict(block.model) or {"name": "cnn"},
        "mechanism": mechanism,
        "train": {"batch_size": 128, "lr": 0.01} | dict(block.train),
        "clients": {"policy": policy},
        "engine": ENGINE | dict(block.engine),
        "eval": {"every": block.rounds},
        "run": {"rounds": block.rounds},
    }


def _cell(block: Block, mix: str, column: str, algorithm: str, metric: str, published: float | None) -> Cell:
    words = {block.source, *block.label.lower().split(), mix, *algorithm.lower().replace(",", " ").split()}
    return Cell(
        f"{block.label} {mix}",
        column,
        algorithm,
        (Variant("", _experiment(block, mix, algorithm)),),
        block.rounds,
        None if published is None else Published(published),
        published is not None,
        frozenset(words),
        metric=metric,
    )


def _matrix(block: Block, algorithms: Sequence[str], printed: Mapping[tuple[str, str, int, int], float]) -> list[Cell]:
    """Each tier on the held-out data of each distribution."""
    return [
        _cell(
            block,
            mix,
            f"c{k} on theta{d}",
            algorithm,
            f"test/tier {k}/distribution {d}",
            printed.get((algorithm, mix, k, d)) if block.label in PRINTED else None,
        )
        for mix in block.mixes
        for d in (0, 1)
        for k in (0, 1)
        for algorithm in algorithms
    ]


def _best(block: Block, algorithms: Sequence[str], printed: Mapping[tuple[str, str, int], float]) -> list[Cell]:
    """Each tier on the distribution that it serves best, and in how many runs each serves one."""
    cells = []
    for mix in block.mixes:
        for algorithm in algorithms:
            for k in (0, 1):
                number = printed.get((algorithm, mix, k)) if block.label in PRINTED else None
                cells.append(_cell(block, mix, f"c{k}", algorithm, f"test/tier {k}/best", number))
            cells.append(_cell(block, mix, "separated, % of seeds", algorithm, "test/separated", None))
    return cells


def _personal(block: Block, algorithms: Sequence[str], printed: Mapping[tuple[str, str], float]) -> list[Cell]:
    """The clients' personal models on their own test data: mean and quantiles."""
    return [
        _cell(block, mix, column, algorithm, metric, printed.get((algorithm, mix)) if column == "mean" else None)
        for mix in block.mixes
        for column, metric in [("mean", "client/test_fit"), *((f"q{q}", f"client/test_fit_q{q}") for q in QUANTILES)]
        for algorithm in algorithms
    ]


PRINTED = ("CIFAR-10", "synthetic", "CIFAR-10 (on digits)", "synthetic (short)")
AGAINST_DITTO = ("PI-FL", "PI-FL, weights from train data", "Ditto", "FedProx", "local")
_TABLES: Mapping[str, tuple[str, str, Callable[[Block], list[Cell]]]] = {
    "table1": ("synthetic", "Table 1, tiers on the synthetic regression",
               lambda b: _matrix(b, ("PI-FL", "FedSoft", "IFCA"), TABLE1)),
    "table2": ("image", "Table 2, PI-FL's tiers", lambda b: _matrix(b, ("PI-FL",), TABLE2)),
    "table3": ("image", "Table 3, PI-FL against FedSoft", lambda b: _best(b, ("PI-FL", "FedSoft", "IFCA"), TABLE3)),
    "table4": ("ablation", "Table 4, bids by incentive and at random",
               lambda b: _best(b, ("PI-FL (I)", "PI-FL (NI)", "PI-FL, rewards"), TABLE4)),
    "table5": ("image", "Table 5, FedSoft's tiers", lambda b: _matrix(b, ("FedSoft",), TABLE5)),
    "figure1": ("synthetic", "Figure 1, personal models on the synthetic regression",
                lambda b: _personal(b, ("PI-FL", "FedSoft", "local"), FIGURE1)),
    "figure2": ("image", "Figure 2, personal models of PI-FL and FedSoft",
                lambda b: _personal(b, ("PI-FL", "PI-FL, weights from train data", "FedSoft"), {})),
    "figure3": ("emnist", "Figure 3, personal models of PI-FL and Ditto", lambda b: _personal(b, AGAINST_DITTO, {})),
    "figure4": ("ablation", "Figure 4, personal models with bids by incentive and at random",
                lambda b: _personal(b, ("PI-FL (I)", "PI-FL (NI)", "PI-FL, rewards"), {})),
    "figure5": ("emnist4", "Figure 5, four distributions, PI-FL and Ditto", lambda b: _personal(b, AGAINST_DITTO, {})),
}  # fmt: skip
FASHION = "-fmnist"  # the same on Fashion-MNIST, which is not in the paper


def _build(name: str, scale: Scale) -> PaperTable:
    kind, title, cells = _TABLES[name.removesuffix(FASHION)]
    block, seeds, changes = _scaled(kind, scale, name.endswith(FASHION))
    notes = (*NOTES, FIT_NOTE) if kind == "synthetic" else NOTES
    unit = "personal test accuracy %" if name.startswith("figure") else "test accuracy %"
    if kind == "synthetic":
        unit = "100 / (1 + squared error)"
    made = tuple(cells(block))
    return PaperTable("pifl", name, title, scale, made, seeds, changes, notes, unit=unit)


SMOKE = (
    "a smoke test: it shows that everything runs; its figures are not to be compared with the paper's",
    "12 clients, 3 rounds, 10:90 and linear only",
)


def _scaled(kind: str, scale: Scale, fashion: bool) -> tuple[Block, int, tuple[str, ...]]:
    """Return the block of a kind of table at a scale, its number of seeds, and what is changed."""
    if scale == "smoke":
        return _smoke(kind), 2, SMOKE
    block = _published(kind, fashion)
    if scale == "paper":
        return block, 5, ()
    if kind == "synthetic":
        short = replace(block, rounds=100, data={"samples_per_client": 200}, train={"batch_size": 20})
        return short, 5, ("200 samples a client instead of 1,000, 100 rounds instead of 300, batches of 20",)
    images = block.source == "cifar10"
    small = replace(
        block,
        rounds=40 if images else 60,
        mixes=("10:90", "30:70") if kind == "image" and not images else ("10:90",),
        model={"name": "cnn_greedyfed"} if images else {"name": "mlp", "hidden": [100]},
        data={**dict(block.data), "samples_per_client": 200},
        train={"epochs": 2, "batch_size": 20, "lr": 0.05},
        engine={"train": "sequential"} if images else {},
    )
    said = (
        f"200 samples a client, {small.rounds} rounds of 2 epochs of batches of 20, lr 0.05",
        f"the model is '{small.model['name']}'",
        f"{' and '.join(small.mixes)} only",
    )
    return small, 5, said


def _published(kind: str, fashion: bool) -> Block:
    """Return the paper's own block of a kind of table (or Fashion-MNIST's)."""
    if kind == "synthetic":
        return Block("fedsoft_linear", "synthetic", 300, ("10:90", "30:70"), model={"name": "logistic"}, inverse=False)
    rounds = 200 if kind == "ablation" else 500
    sequential = {"train": "vmapped"}
    if fashion:
        turned = {"distributions": "rotation"} if kind == "emnist4" else {}
        count = 4 if kind == "emnist4" else 2
        return Block("fashion_mnist", "Fashion-MNIST", rounds, engine=sequential, data=turned, distributions=count)
    if kind == "emnist":
        return Block("emnist_cased", "EMNIST", 500, engine=sequential)
    if kind == "emnist4":  # appendix B: 4 x 13 classes (papers.md P21: not 56)
        groups = {"distributions": "classes"}
        return Block("emnist_cased", "EMNIST", 500, engine=sequential, data=groups, distributions=4)
    return Block("cifar10", "CIFAR-10", rounds, engine=sequential)


def _smoke(kind: str) -> Block:
    tiny = Block(
        "digits", "CIFAR-10 (on digits)", 3, ("10:90", "linear"), model={"name": "mlp", "hidden": [16]},
        train={"batch_size": 16, "lr": 0.1}, data={"min_samples": 5}, clients=12,
        seats={"by_contribution": 2, "at_random": 1},
    )  # fmt: skip
    if kind == "synthetic":
        data = {"samples_per_client": 100}
        return replace(
            tiny, source="fedsoft_linear", label="synthetic (short)", mixes=("10:90",), model={"name": "logistic"},
            data=data, inverse=False, train={"lr": 0.01},
        )  # fmt: skip
    if kind == "emnist4":
        return replace(tiny, distributions=4, label="EMNIST (on digits)")
    return replace(tiny, label="EMNIST (on digits)") if kind == "emnist" else tiny


_NAMES = (*_TABLES, *(f"{n}{FASHION}" for n, (kind, _, _) in _TABLES.items() if kind != "synthetic"))
PIFL = Paper(
    "pifl",
    "Khan, Wang, Le, Khan, Ali, Ding, Butt, Anwar: PI-FL: Personalized and Incentivized Federated Learning, 2023",
    {name: partial(_build, name) for name in _NAMES},
)
