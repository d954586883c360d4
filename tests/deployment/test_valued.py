"""Values around any Flower strategy: the training is as without hanse, bit for bit, and the values are what they say."""

import copy
import itertools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    FedXgbBagging,
    Krum,
    Strategy,
)
from recorded import RecordedGrid, evaluated, failed, first_arrays, trained

import hanse
from hanse.base.errors import UserError
from hanse.deployment.again import NotAgain, copied
from hanse.deployment.valued import LISTENED
from hanse.runs.record import load_run

ROUNDS = 3


class Own(FedAvg):
    """A user's own: half-way to the median, with a memory, a draw and a file."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self.kept: dict[str, Any] = {"rounds": [], "noise": []}
        self.folder = folder

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        noise = float(np.random.standard_normal())  # noqa: NPY002
        self.kept["rounds"].append(server_round)
        self.kept["noise"].append(noise)
        return ArrayRecord({k: Array(np.tanh(a.numpy()) + 0.01 * noise) for k, a in arrays.items()}), metrics


class Saving(FedAvg):
    """As in Flower's documentation: the average is saved after each round."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        np.savez(self.folder / f"round-{server_round}.npz", *arrays.to_numpy_ndarrays())
        torch.save(arrays.to_torch_state_dict(), str(self.folder / f"round-{server_round}.pt"))
        with (self.folder / "log.txt").open("a") as log:
            log.write(f"{server_round}\n")
        return arrays, metrics


class SavingMedian(FedMedian):
    """A rule that is no average, and writes."""

    def __init__(self, folder: Path, how: str) -> None:
        super().__init__()
        self.folder, self.how = folder, how

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        if self.how == "torch":
            torch.save(server_round, str(self.folder / "last.pt"))
        elif self.how == "text":
            with (self.folder / "log.txt").open("a") as log:
                log.write(f"{server_round}\n")
        else:
            (self.folder / f"round {server_round}").mkdir()
        return arrays, metrics


def noisy(strategy: Strategy) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(strategy, 0.1, 1.0, 4)


STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "fedavg": FedAvg,
    "fedadam": FedAdam,
    "krum": lambda: Krum(num_malicious_nodes=1),
    "median": FedMedian,
    "dp": lambda: noisy(FedAvg()),
    "own": Own,
}


def evaluate(arrays: ArrayRecord) -> dict[str, float]:
    """A loss that is not linear; it draws from every generator, as an evaluation with dropout would."""
    random.random(), np.random.standard_normal(), torch.rand(3)  # noqa: NPY002
    return {"loss": float(sum(np.log1p(np.square(a.numpy() - 0.2)).sum() for a in arrays.values()))}


def seed() -> None:
    random.seed(5)
    np.random.seed(6)  # noqa: NPY002
    torch.manual_seed(7)


def drawn() -> tuple[Any, ...]:
    """What each generator would give next."""
    return random.getrandbits(64), np.random.bytes(8), torch.randint(2**60, (1,)).item()  # noqa: NPY002


def plain(strategy: Strategy, grid: RecordedGrid | None = None) -> Any:
    seed()
    result = strategy.start(grid or RecordedGrid(), first_arrays(), num_rounds=ROUNDS)
    return numbers(result), state_of(strategy), drawn()


def watched(strategy: Strategy, out: Path, grid: RecordedGrid | None = None, **more: Any) -> Any:
    seed()
    with hanse.valued(strategy, out=out, **{"validation": evaluate, **more}) as listened:
        assert listened is strategy
        result = strategy.start(grid or RecordedGrid(), first_arrays(), num_rounds=ROUNDS)
    return numbers(result), state_of(strategy), drawn()


def numbers(result: Any) -> Any:
    """All of a Flower result, its arrays as bytes."""
    arrays = {name: (a.dtype, a.shape, a.data) for name, a in result.arrays.items()}
    return arrays, dict(result.train_metrics_clientapp), dict(result.evaluate_metrics_clientapp)


def state_of(thing: Any) -> Any:
    """A strategy's state down to its bytes."""
    if isinstance(thing, np.ndarray):
        return thing.dtype.str, thing.shape, thing.tobytes()
    if isinstance(thing, dict):
        return {key: state_of(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [state_of(one) for one in thing]
    if isinstance(thing, Array):
        return thing.dtype, thing.shape, thing.data
    if isinstance(thing, Strategy):
        return type(thing), {name: state_of(value) for name, value in vars(thing).items()}
    return dict(thing) if isinstance(thing, ArrayRecord) else thing


def files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


# ---- the training is the same


@pytest.mark.parametrize("name", STRATEGIES)
def test_models_state_and_generators_are_as_without_hanse(name: str, tmp_path: Path) -> None:
    without = plain(STRATEGIES[name]())
    with_it = watched(STRATEGIES[name](), tmp_path / "run")
    assert with_it == without
    record = load_run(tmp_path / "run")
    assert [line.get("gap") for line in record.metrics] == [None] * ROUNDS
    assert all(seat.value is not None for seat in record.clients)


def test_the_same_nodes_are_sent_the_same_messages(tmp_path: Path) -> None:
    grids = RecordedGrid(9), RecordedGrid(9)
    half = {"fraction_train": 0.5, "fraction_evaluate": 0.3}
    assert plain(FedAvg(**half), grids[0]) == watched(FedAvg(**half), tmp_path / "run", grids[1])
    assert grids[0].sent == grids[1].sent


def test_what_a_strategy_saves_is_what_it_saves_without_hanse(tmp_path: Path) -> None:
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    plain(Saving(tmp_path / "without"))
    watched(Saving(tmp_path / "with"), tmp_path / "run")
    assert len(files(tmp_path / "with")) == 2 * ROUNDS + 1
    assert files(tmp_path / "with").keys() == files(tmp_path / "without").keys()
    for saved, written in files(tmp_path / "with").items():
        if not saved.endswith("npz"):  # a zip has the time in it
            assert written == files(tmp_path / "without")[saved]
    assert all("gap" not in line for line in load_run(tmp_path / "run").metrics)  # it is an average


@pytest.mark.parametrize("how", ["text", "torch", "folder"])
def test_a_rule_that_writes_and_is_no_average_is_not_made_again(how: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    watched(SavingMedian(tmp_path / "a", how), tmp_path / "run")
    gaps = [line["gap"] for line in load_run(tmp_path / "run").metrics]
    assert all("which nobody may do for a model of some replies" in gap for gap in gaps)
    assert files(tmp_path / "a").get("log.txt", b"1\n2\n3\n") == b"1\n2\n3\n"


# ---- values


def by_round(path: Path) -> list[dict[int, float]]:
    found: list[dict[int, float]] = [{} for _ in range(ROUNDS)]
    for seat in load_run(path).clients:
        assert seat.value is not None
        found[seat.round][seat.client + 1] = seat.value
    return found


def shapley(worth: Callable[[tuple[int, ...]], float], nodes: list[int]) -> dict[int, float]:
    """By its definition, over all orders of the nodes."""
    found = dict.fromkeys(nodes, 0.0)
    for order in itertools.permutations(nodes):
        for place, node in enumerate(order):
            found[node] += worth(tuple(sorted(order[: place + 1]))) - worth(tuple(sorted(order[:place])))
    return {node: total / math.factorial(len(nodes)) for node, total in found.items()}


def test_values_of_fedavg_are_those_of_hanse_value(tmp_path: Path) -> None:
    watched(FedAvg(), tmp_path / "run")
    arrays = first_arrays()
    for number, found in enumerate(by_round(tmp_path / "run"), 1):
        replies = [trained(node, number, arrays) for node in (1, 2, 3, 4)]
        updates = [reply["arrays"].to_numpy_ndarrays() for reply in replies]

        def worth(model: Any) -> float:
            return -evaluate(ArrayRecord(model))["loss"]

        told = hanse.value(updates, worth, [10, 20, 30, 40], start=arrays.to_numpy_ndarrays())
        assert list(found.values()) == pytest.approx(told.values.tolist(), rel=1e-5, abs=1e-6)
        mean = [sum(w * u[i] for w, u in zip((0.1, 0.2, 0.3, 0.4), updates, strict=True)) for i in range(2)]
        arrays = ArrayRecord(dict(zip(arrays, (Array(m.astype(np.float32)) for m in mean), strict=True)))


@pytest.mark.parametrize("name", ["fedadam", "krum", "median", "dp", "own"])
def test_values_of_other_rules_are_brute_force_over_aggregates_made_again(name: str, tmp_path: Path) -> None:
    watched(STRATEGIES[name](), tmp_path / "run")
    found = by_round(tmp_path / "run")
    seed()
    strategy, grid, arrays = STRATEGIES[name](), RecordedGrid(), first_arrays()
    from flwr.app import ConfigRecord

    for number in range(1, ROUNDS + 1):
        replies = list(grid.send_and_receive(strategy.configure_train(number, arrays, ConfigRecord(), grid)))
        before, drawn_before, known = copy.deepcopy(strategy), np.random.get_state(), {}  # noqa: NPY002

        def worth(nodes: tuple[int, ...]) -> float:
            if nodes not in known:
                np.random.set_state(drawn_before)  # noqa: NPY002
                mine = [copy.deepcopy(r) for r in replies if r.metadata.src_node_id in nodes]
                made = copy.deepcopy(before).aggregate_train(number, mine)[0] if nodes else arrays
                known[nodes] = -evaluate(made)["loss"]
            return known[nodes]

        expected = shapley(worth, [1, 2, 3, 4])
        assert found[number - 1] == pytest.approx(expected, rel=1e-5, abs=1e-6)
        np.random.set_state(drawn_before)  # noqa: NPY002
        arrays, _ = strategy.aggregate_train(number, replies)
        list(grid.send_and_receive(strategy.configure_evaluate(number, arrays, ConfigRecord(), grid)))
