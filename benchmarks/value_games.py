"""Games for ``benchmarks/values.py``: the exact tables of real ones, and one round's game of hanse's own training.

A table is an ``.npz`` file with ``v [2**n]`` by bit mask, ``weights [n]``, ``gram [n, n]`` of what each update moved
the model, and mostly ``logit_gram [n, n]`` of what each client's own model moved the outputs on the validation samples.
Its name says data set, spread of labels, round, players, validation samples and utility.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hanse
from hanse.core.part import State, ValuePart, Values, View
from hanse.games.shapley import Coalition, Memo
from hanse.learning.coalitions import Coalitions

Floats = NDArray[np.float64]
KEPT: list[Coalitions] = []


@dataclass(frozen=True, eq=False)
class Table:
    """A game of which every coalition's worth is known; called as a utility."""

    name: str
    v: Floats
    weights: Floats
    grams: tuple[Floats, ...]

    @property
    def n(self) -> int:
        return len(self.weights)

    @property
    def utility(self) -> str:
        """Return "loss" or "accuracy"."""
        return self.name.rsplit("_", 1)[1]

    @property
    def data_set(self) -> str:
        """Return what the name begins with; noisy clients count as a data set of their own."""
        first, second = self.name.split("_")[:2]
        return f"{first} {second}" if second == "noisy" else first

    def __call__(self, coalition: Coalition) -> float:
        return float(self.v[sum(1 << i for i in coalition)])


def tables(folder: Path) -> list[Table]:
    """Return the tables of a folder, by name."""
    found = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            grams = tuple(file[name] for name in ("gram", "logit_gram") if name in file)
            found.append(Table(path.stem, file["v"], file["weights"], grams))
    return found


@dataclass(frozen=True)
class Keep(ValuePart):
    """A value part that values nobody: it keeps each round's game in ``KEPT``."""

    needs = frozenset({"validation"})
    gives = frozenset({"values"})

    def value(self, view: View, state: State) -> tuple[Values, State]:
        for row, group in view.trained.seats.groups().items():
            game = view.judge.coalitions(
                view.trained.rows[group].clone(), view.table.rows[row].clone(), view.mixed.W[row, group], "loss"
            )
            game.keep_outputs = True
            KEPT.append(game)
        return Values(np.zeros(len(view.trained))), state


_MNIST: dict[str, Any] = {
    "data": {"source": "mnist", "partition": {"name": "dirichlet", "alpha": 0.1}, "validation": 0.1},
    "model": {"name": "mlp", "hidden": [50, 25]},
    "train": {"epochs": 5, "batches_per_epoch": 5, "lr": 0.01, "momentum": 0.5},
}
KINDS: dict[str, dict[str, Any]] = {
    "MNIST, MLP": _MNIST,
    "CIFAR-10, CNN": {
        **_MNIST,
        "data": {**_MNIST["data"], "source": "cifar10", "validation": 0.05},
        "model": {"name": "cnn_greedyfed"},
    },
    "regression, MLP": {
        "data": {
            "source": "fedsoft_linear", "partition": {"name": "mixture", "samples_per_client": 40}, "validation": 0.1,
        },
        "model": {"name": "mlp", "hidden": [20]},
        "train": {"epochs": 5, "batch_size": 10, "lr": 0.01},
    },
    "Shakespeare, LSTM": {
        "data": {"source": "shakespeare", "partition": {"name": "natural", "choose": "largest"}, "validation": 0.05},
        "model": {"name": "lstm", "embedding": 8, "hidden": 64, "layers": 1},
        "train": {"steps": 20, "batch_size": 16, "lr": 2.0, "momentum": 0.9},
    },
    "instructions, LoRA": {
        "data": {"source": "instructions", "partition": {"name": "iid", "min_samples": 1}, "validation": 0.5},
        "model": {"name": "lora", "base": "tiny", "base_width": 32, "base_layers": 1, "rank": 4, "alpha": 8.0},
        "train": {"steps": 5, "batch_size": 4, "lr": 3e-3, "optimizer": "adamw"},
    },
}  # fmt: skip


def trained(kind: str, clients: int, rounds: int, seed: int = 0) -> list[Coalitions]:
    """Train ``clients`` clients for so many rounds of FedAvg, all of them seated in each, and return the games of the
    rounds: the utility is minus the loss on the server's validation samples.
    """
    sections: Mapping[str, Any] = KINDS[kind]
    KEPT.clear()
    hanse.run(
        hanse.Experiment(
            data={**sections["data"], "clients": clients, "seed": seed},
            model=sections["model"],
            mechanism={"name": "fedavg", "select": "everyone", "value": "value_games:Keep"},
            train=sections["train"],
            engine={"threads": 1, "workers": 1, "device": "cpu"},
            eval={"every": rounds},
            run={"rounds": rounds, "seed": seed},
        )
    )
    return list(KEPT)


def grams_of(game: Coalitions, worth: Memo) -> Callable[[], Sequence[Floats]]:
    """Return a function that gives a trained game's Gram matrices once its single players have been evaluated."""

    def grams() -> Sequence[Floats]:
        worth.many([frozenset(), *(frozenset({i}) for i in range(game.players))])
        return [gram for gram in (game.update_gram(), game.output_gram()) if gram is not None]

    return grams
