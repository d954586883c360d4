"""What all of iPFL's experiments share: data, models, algorithms with their published settings, how a cell reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hanse.lab.papers.frame import Cell, Published, Variant

__all__ = [
    "ACCURACY",
    "ETA",
    "LABELS",
    "LAMBDA",
    "NOTES",
    "PAPER_ROUNDS",
    "PARTITIONS",
    "UTILITY",
    "Block",
    "Sections",
    "cell_of",
    "data_of",
    "experiment",
    "ipfl_of",
    "mechanisms",
    "rate_of",
]

Sections = dict[str, dict[str, Any]]

# fixed, so that nothing is measured and numbers are the same on every run
ENGINE = {"train": "sequential", "threads": 1, "workers": 1, "device": "cpu"}
STACKED = {**ENGINE, "train": "stacked"}
PAPER_ROUNDS = 50


@dataclass(frozen=True)
class Block:
    """What a scale trains: the ``sources``, ``rounds`` of ``steps`` iterations, Table 5's ``market_rounds``.

    ``samples``: train samples a client if not all data are used (eagerness, which is in samples, shrinks with them).
    """

    sources: tuple[str, ...] = ("cifar10", "fashion_mnist")
    rounds: int = PAPER_ROUNDS
    steps: int = 200
    market_rounds: int = 20
    model: Mapping[str, Any] = ()  # type: ignore[assignment]
    data: Mapping[str, Any] = ()  # type: ignore[assignment]
    lr: float = 0.01
    shrink: float = 1.0  # samples against the paper's
    clients: int = 10

    def at(self, published: int) -> int:
        """Return a number of local iterations in the proportion of this scale."""
        return max(1, round(published * self.steps / 200))


LABELS = {"cifar10": "CIFAR-10", "fashion_mnist": "FMNIST", "digits": "digits"}
# Table 2
LAMBDA = {"cifar10": 2.0, "fashion_mnist": 0.001, "digits": 2.0}
ETA = 5.0
# sec. 6.1 and Table 3
PARTITIONS: Mapping[str, dict[str, Any]] = {
    "NIID": {"partition": "niid", "alpha": 0.1, "clients": 10},
    "Cluster": {"partition": "cluster", "clients": 9},
    "Skew": {"partition": "skew", "clients": 10},
}
# sec. E.2
BASELINES: Mapping[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg", "select": "everyone"},
    "FedProx": {"name": "fedprox", "select": "everyone", "mu": 0.1},
    "Ditto": {"name": "ditto", "lam": 1.0},
    "FedAMP": {"name": "fedamp", "lam": 0.01},
    "CFL": {"name": "cfl", "eps1": 2.0, "eps2": 2.5},
    "FedFomo": {"name": "fedfomo", "models": 6},
    "pFedGraph": {"name": "pfedgraph", "lam": 0.01, "alpha": 0.8},
}
UTILITY, ACCURACY = "utility/mean", "client/test_accuracy"
RATES = (
    "utilities are a market's: the sum over the run, divided by the rounds less one (none follows the last training)"
)
NOTES = (
    "every algorithm is accounted as the paper does: gain of what is imported, less c = 1 for every sharing of a "
    "model; the baselines' clients pay nothing, and import from whom their next models are made of",
    RATES,
    "accuracies are of each client's own model on its own share, of the same classes as it trains on; lambda and eta "
    "as in Table 2; distances are 1 - cos of what models travelled since the initial one (docs/papers.md I15, I20)",
)


def experiment(block: Block, data: Mapping[str, Any], mechanism: Mapping[str, Any], **more: Any) -> Sections:
    """Return an experiment's sections; the baselines get iPFL's accounting, ``more`` replaces sections or a number."""
    rounds = more.pop("rounds", block.rounds)
    steps = more.pop("steps", block.steps)
    profiles = more.pop("profiles", {"name": "uniform", "cost": 1.0, "eagerness": 5e5 * block.shrink})
    given = dict(mechanism)
    if given["name"] != "ipfl" and given["name"] != "local":
        given["settle"] = {"name": "utilities"}
    shares = {"client_test": 0.2, "client_validation": 0.1, "validation": 0.0}
    return {
        "data": {**shares, **data, **dict(block.data)},
        "model": dict(block.model) or {"name": "cnn_small"},
        "mechanism": given,
        "train": {"steps": steps, "batch_size": 64, "lr": block.lr},
        "clients": {"grant": 1e6, "profiles": profiles},
        "engine": STACKED if block.model else ENGINE,  # convolutions are trained one seat after another
        "eval": {"every": rounds},
        "run": {"rounds": rounds},
        **more,
    }


def ipfl_of(source: str, **options: Any) -> dict[str, Any]:
    """Return iPFL as Table 2 tunes it for a data set."""
    return {"name": "ipfl", "lam": LAMBDA[source], "eta": ETA, "keep_best": False} | options


def data_of(source: str, setting: str, block: Block) -> dict[str, Any]:
    """Return the data of one of the three settings."""
    return {"source": source, **PARTITIONS[setting]}


def mechanisms(source: str) -> dict[str, dict[str, Any]]:
    """Return iPFL and the seven baselines by their printed names."""
    return {"iPFL": ipfl_of(source), **BASELINES}


def cell_of(
    group: str, column: str, algorithm: str, sections: Sections, metric: str | tuple[str, ...], factor: float,
    published: float | None = None, ranked: bool = True,
) -> Cell:  # fmt: skip
    """Return the cell that reads one figure of one experiment after its last round."""
    words = " ".join((group, column, algorithm)).lower().replace(",", " ").split()
    return Cell(
        group, column, algorithm, (Variant("", sections),), sections["run"]["rounds"],
        None if published is None else Published(published), ranked, frozenset(words), metric=metric, factor=factor,
    )  # fmt: skip


def rate_of(sections: Sections) -> float:
    """Return what turns a sum over the run into a market's mean: none follows the last training."""
    rounds: int = sections["run"]["rounds"]
    return 1.0 / max(1, rounds - 1)
