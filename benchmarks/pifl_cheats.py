"""What cheats gain in PI-FL, by who judges contributions: tokens at the end, against honest clients and honesty.

    python benchmarks/pifl_cheats.py table    # each cheat under each setting, seeds 0 to 4
    python benchmarks/pifl_cheats.py default  # the gradient lie under the default, with and without validation samples
                                              # at the server, seeds 0 to 19
    python benchmarks/pifl_cheats.py unpaid   # each cheat under the default, in which the invited earn nothing
    python benchmarks/pifl_cheats.py riders   # a quarter of 20 clients trains nothing, where tiers have data of
                                              # different kinds ("mixture") and where not ("dirichlet"), seeds 0 to 4

Ten clients with a grant of 20 tokens play 40 rounds on digits. In seed s the cheat is client s mod 10, so that no place
in the split of the data decides. ``gain`` is what the cheat has at the end less what the same client has in the same
run without the cheat: data, models and draws are the same, so it is what cheating changes. ``ahead`` is the cheat less
the mean of the honest clients in its own run, which also has in it whether the client's data are good. Both are in per
cent of the grant, with a 95 % interval (Student's t, paired over the seeds).

Prints Markdown. SEEDS in the environment takes fewer or more seeds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor

import hanse
from hanse.core.entry import TOKEN
from hanse.core.port import Answered, Derived, Gradient, Reply, Request, Result, Scored, Trained
from hanse.federation.behaviour import Me, OfSome, first_places, with_updates

CLIENTS, TIERS, GRANT, ROUNDS = 10, 2, 20.0, 40


@dataclass(frozen=True)
class Cheat(OfSome):
    """Clients that cheat in PI-FL; several of them cheat together.

    Attributes:
        gradient: the length of a false gradient, sent instead of the loss's: it points away from the cheats' updates,
            so that these seem to lower the loss more than any other. 0: the true gradient.
        bids: "best" as the policy says, for "all" tiers, or for "none".
        trains: False sends back the model that came.
        answers: False sends no update at all.
        size: a factor of the number of samples that is told with updates.
        accuracy: the accuracy that is told of each tier; None: the true one.
    """

    gradient: float = 0.0
    bids: str = "best"
    trains: bool = True
    answers: bool = True
    size: float = 1.0
    accuracy: float | None = None
    sent: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False, compare=False)

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        """Return the reply as the cheat sends it."""
        if me.id not in self.clients:
            return reply
        if not self.trains:
            reply = with_updates(request, reply, lambda task, r: replace(r, row=task.start.clone()))
        with_updates(request, reply, lambda task, r: self._kept(me, task.row, r))
        means = {task.name: task.models for task in request.tasks if isinstance(task, Gradient)}
        told = (self._told(r, means) for r in reply.results if self.answers or not isinstance(r, Trained))
        return replace(reply, results=tuple(told))

    def _kept(self, me: Me, row: int, result: Trained) -> Trained:
        """Keep what is sent, for the gradient of the same round."""
        self.sent[me.id, row] = result.row
        return result

    def _told(self, result: Result, means: Mapping[str, Tensor]) -> Result:
        """Return a result as the cheat tells it."""
        if isinstance(result, Trained):
            return replace(result, num_samples=result.num_samples * self.size)
        if isinstance(result, Answered) and result.name == "bid" and self.bids != "best":
            return replace(result, values={"tiers": list(range(TIERS)) if self.bids == "all" else []})
        if isinstance(result, Scored) and self.accuracy is not None:
            return replace(result, accuracy=torch.full_like(result.accuracy, self.accuracy))
        if isinstance(result, Derived) and self.gradient:
            row, mean = int(result.name.split()[1]), means[result.name]
            moved = sum(self.sent[c, row] - mean[0] for c in self.clients if (c, row) in self.sent)
            return replace(result, gradients=-self.gradient * moved[None] / (moved.norm() + 1e-12))
        return result


LIE = {"gradient": 1e6}
CHEATS: Mapping[str, Mapping[str, Any]] = {
    "honest": {},
    "lies about its gradient": LIE,
    "lies about its gradient and does not train": {**LIE, "trains": False},
    "bids for all tiers and lies about its gradient": {**LIE, "bids": "all"},
    "bids for all tiers": {"bids": "all"},
    "never bids and lies about its gradient": {**LIE, "bids": "none"},
    "never bids": {"bids": "none"},
    "does not train": {"trains": False},
    "declares 1,000 times its samples": {"size": 1e3},
    "sends no update after bidding": {"answers": False},
    "says that every tier's accuracy is 0": {"accuracy": 0.0},
    "says that every tier's accuracy is 1": {"accuracy": 1.0},
    "two lie about their gradients together": {**LIE, "pair": True},
}
PUBLISHED = {"name": "pifl", "tiers": TIERS, "invited": "earn"}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "the paper's (judges = all)": {"mechanism": {**PUBLISHED, "value": {"judges": "all"}}},
    "judges = others": {"mechanism": {**PUBLISHED, "value": {"judges": "others"}}},
    "the server (first_order)": {"mechanism": {**PUBLISHED, "value": "first_order"}},
}
DEFAULT: Mapping[str, Mapping[str, Any]] = {
    "default, validation samples at the server": {"mechanism": {"name": "pifl", "tiers": TIERS}},
    "default, none there": {"mechanism": {"name": "pifl", "tiers": TIERS}, "data": {"validation": 0.0}},
}


def experiment(setting: Mapping[str, Any], seed: int, behaviour: Mapping[str, Any]) -> hanse.Experiment:
    """Return the experiment of one run."""
    data = {"source": "digits", "clients": CLIENTS, "client_test": 0.1, "client_validation": 0.1, "seed": seed}
    return hanse.Experiment(
        data=data | setting.get("data", {}),
        model={"name": "mlp", "hidden": [50]},
        mechanism=setting["mechanism"],
        train={"epochs": 2, "batch_size": 16, "lr": 0.05},
        clients={"grant": GRANT, "policy": "best_tier"},
        behaviour=behaviour,
        engine={"train": "stacked", "threads": 1},
        eval={"every": ROUNDS},
        run={"rounds": ROUNDS, "seed": seed},
    )


def cheats_of(cheat: str, seed: int) -> list[int]:
    """Return who cheats: client ``seed mod 10``, and its neighbour where two do."""
    return [(seed + k) % CLIENTS for k in range(1 + CHEATS[cheat].get("pair", False))]


def balances(setting: Mapping[str, Any], seed: int, cheat: str) -> np.ndarray:
    """Return what each client has at the end, ``[N]`` in tokens."""
    options = {name: option for name, option in CHEATS[cheat].items() if name != "pair"}
    who = {f"{Cheat.__module__}:Cheat": {"clients": cheats_of(cheat, seed), **options}} if options else {}
    book = hanse.run(experiment(setting, seed, who)).book
    return np.array([book.balance(f"client/{c}") for c in range(CLIENTS)]) / TOKEN


def compared(settings: Mapping[str, Mapping[str, Any]], name: str, seed: int, cheat: str) -> tuple[float, float, float]:
    """Return the mean of the cheats, that of the honest clients, and that of the same cheats where they are honest."""
    honest = _honest(name, seed)
    held = honest if cheat == "honest" else balances(settings[name], seed, cheat)
    bad = np.isin(np.arange(CLIENTS), cheats_of(cheat, seed))
    return float(held[bad].mean()), float(held[~bad].mean()), float(honest[bad].mean())


@cache
def _honest(name: str, seed: int) -> np.ndarray:
    return balances({**SETTINGS, **DEFAULT}[name], seed, "honest")


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and the 95 % interval of differences in tokens, in per cent of the grant."""
    found = 100 * np.asarray(differences) / GRANT
    half = student.ppf(0.975, len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found))
    return float(found.mean()), float(found.mean() - half), float(found.mean() + half)


def show(settings: Mapping[str, Mapping[str, Any]], cheats: Sequence[str], seeds: range) -> None:
    """Print a table for each setting: every cheat, every seed."""
    for name in settings:
        print(f"\n### {name}\n")
        print(f"| cheat | cheat, others | gain, % | ahead, % | {' | '.join(f'seed {s}' for s in seeds)} |")
        print("|---" * (4 + len(seeds)) + "|")
        for cheat in cheats:
            found = [compared(settings, name, seed, cheat) for seed in seeds]
            mean = np.mean(found, axis=0)
            gain = "{:+.1f} ({:+.1f} to {:+.1f})".format(*interval([a - c for a, _, c in found]))
            ahead = "{:+.1f} ({:+.1f} to {:+.1f})".format(*interval([a - b for a, b, _ in found]))
            each = " | ".join(f"{a:.1f}, {b:.1f}" for a, b, _ in found)
            print(f"| {cheat} | {mean[0]:.1f}, {mean[1]:.1f} | {gain} | {ahead} | {each} |", flush=True)


def riders(partition: str, setting: Mapping[str, Any], seed: int) -> tuple[float, float]:
    """Return the mean balances of free riders and of the others, in tokens."""
    asked = hanse.Experiment(
        data={"clients": 20, "partition": partition, "client_test": 0.2, "client_validation": 0.15, "seed": seed},
        model={"name": "mlp", "hidden": [16]},
        mechanism={**setting["mechanism"], "by_contribution": 10, "at_random": 1},
        train={"epochs": 2, "batch_size": 16, "lr": 0.1},
        behaviour={"free_rider": {"fraction": 0.25}},
        engine={"train": "stacked", "threads": 1},
        eval={"every": 20},
        run={"rounds": 20, "seed": seed},
    )
    book = hanse.run(asked).book
    held = np.array([book.balance(f"client/{c}") for c in range(20)]) / TOKEN
    bad = np.isin(np.arange(20), first_places(seed, "free riders", 20, 5))
    return float(held[bad].mean()), float(held[~bad].mean())


def show_riders(seeds: range) -> None:
    """Print what free riders have at the end beside the others, by who judges and by the kind of data."""
    print(f"| clients' data | who judges | riders less others | {' | '.join(f'seed {s}' for s in seeds)} |")
    print("|---" * (3 + len(seeds)) + "|")
    for partition in ("mixture", "dirichlet"):
        for name, setting in SETTINGS.items():
            found = [riders(partition, setting, seed) for seed in seeds]
            less = np.mean([a - b for a, b in found])
            each = " | ".join(f"{a:.1f}, {b:.1f}" for a, b in found)
            print(f"| {partition} | {name} | {less:+.1f} | {each} |", flush=True)


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "table"
    many = range(int(os.environ.get("SEEDS", "20" if what == "default" else "5")))
    if what == "riders":
        show_riders(many)
    elif what == "default":
        show(DEFAULT, ["honest", "lies about its gradient"], many)
    elif what == "unpaid":
        show(DEFAULT, list(CHEATS), many)
    else:
        show(SETTINGS, list(CHEATS), many)
