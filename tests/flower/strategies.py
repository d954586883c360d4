"""Users' strategies: they are imported by the process that aggregates again, too, which takes long with PyTorch."""

import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import strategy as flower


class Own(flower.FedAvg):
    """A user's own: the tanh of the average, with a memory and a draw."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Any] = {"rounds": [], "noise": []}

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        noise = float(np.random.standard_normal())  # noqa: NPY002
        self.kept["rounds"].append(server_round)
        self.kept["noise"].append(noise)
        return ArrayRecord({k: Array(np.tanh(a.numpy()) + 0.01 * noise) for k, a in arrays.items()}), metrics


class Saving(flower.FedAvg):
    """As in Flower's documentation: what a round made is saved after it, in files of these kinds."""

    def __init__(self, folder: Path, *kinds: str) -> None:
        super().__init__()
        self.folder, self.kinds = folder, kinds

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        if "npz" in self.kinds:
            np.savez(self.folder / f"round-{server_round}.npz", *arrays.to_numpy_ndarrays())
        if "torch" in self.kinds:
            import torch

            torch.save(arrays.to_torch_state_dict(), str(self.folder / f"round-{server_round}.pt"))
        if "text" in self.kinds:
            with (self.folder / "log.txt").open("a") as log:
                log.write(f"{server_round}\n")
        return arrays, metrics


class SavingMedian(Saving, flower.FedMedian):
    """A rule that is no average, and writes."""


def noisy(strategy: flower.Strategy) -> flower.Strategy:
    return flower.DifferentialPrivacyServerSideFixedClipping(strategy, 0.1, 1.0, 4)


class Counting(flower.FedAvg):
    """The average, beside which it keeps how many replies there were: of that, no average is made."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        found = list(replies)
        arrays, metrics = super().aggregate_train(server_round, found)
        return ArrayRecord({**dict(arrays.items()), "count": Array(np.array([len(found)], np.float32))}), metrics


class Few(flower.FedAvg):
    """The average of three replies or more; of fewer it makes something else."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        found = list(replies)
        return PLAIN.aggregate_train(server_round, found) if len(found) > 2 else half(server_round, found)


PLAIN = flower.FedAvg()


def half(server_round: int, replies: Any) -> Any:
    arrays, metrics = PLAIN.aggregate_train(server_round, replies)
    return ArrayRecord({k: Array(a.numpy() / 2) for k, a in arrays.items()}), metrics


def wrapped() -> flower.Strategy:
    """Its method is wrapped on the object itself, as tools that log do."""
    strategy = flower.FedAvg()
    strategy.aggregate_train = half  # type: ignore[method-assign]
    return strategy


STRATEGIES: dict[str, Callable[[], flower.Strategy]] = {
    "fedavg": flower.FedAvg,
    "fedadam": flower.FedAdam,
    "krum": lambda: flower.Krum(num_malicious_nodes=1),
    "median": flower.FedMedian,
    "dp": lambda: noisy(flower.FedAvg()),
    "own": Own,
    "counting": Counting,
    "few": Few,
    "wrapped": wrapped,
}


class Locked(flower.FedMedian):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Outside(flower.FedMedian):
    """Its state is a variable of its module."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        return ArrayRecord({k: Array(a.numpy() + next(COUNTER)) for k, a in arrays.items()}), metrics


class Renaming(flower.FedAvg):
    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        return ArrayRecord({f"new.{name}": array for name, array in arrays.items()}), metrics


COUNTER = itertools.count()


# ---- state that copies share with the strategy


class Last(flower.FedAvg):
    """Takes the last reply's arrays, whatever the others are."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return ArrayRecord(dict([*replies][-1].content["arrays"])), MetricRecord({})


class Hanging(flower.FedMedian):
    """Never ends for fewer replies than all."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        if len(found := list(replies)) < 4:
            threading.Event().wait()
        return super().aggregate_train(server_round, found)


class Dying(flower.FedMedian):
    """Ends the process for fewer replies than all."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        if len(found := list(replies)) < 4:
            os._exit(3)
        return super().aggregate_train(server_round, found)


class Breaking(flower.FedMedian):
    """Has a fault that only one reply shows; Flower's own rules that refuse few replies make none of them."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        found = list(replies)
        assert 1 / (len(found) - 1)
        return super().aggregate_train(server_round, found)


SECRETS = ("wandb-3f9c", "pg-hunter2", "sk-live-77", "token-c0ffee", "seed-91")


class Secretive(flower.FedMedian):
    """Holds secrets under all sorts of names, and says them when it is called in another process."""

    fraction_fit = SECRETS[0]

    def __init__(self, raises: bool) -> None:
        super().__init__(fraction_train=0.75)
        self.wandb_api_key, self.db_password, self.tokens = SECRETS[0], SECRETS[1], {"hub": SECRETS[2]}
        self.eta, self._seed = SECRETS[3], SECRETS[4]  # FedMedian has no eta
        self.raises, self.process = raises, os.getpid()

    def __repr__(self) -> str:
        return f"Secretive({self.db_password})"

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        if self.raises and os.getpid() != self.process:
            raise RuntimeError(f"cannot log in with {self.db_password}")
        return super().aggregate_train(server_round, replies)


class Telling(Secretive):
    """Gives its secrets to what it may not do in another process: a command, or the path of a file."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        if os.getpid() != self.process:
            if self.raises:
                os.system(f"true {self.db_password}")
            open(f"/tmp/{self.db_password}", "w")  # noqa: SIM115 (is refused)
        return super().aggregate_train(server_round, replies)


class Unpicklable(Secretive):
    def __getstate__(self) -> Any:
        raise TypeError(f"{self.tokens} stays here")
