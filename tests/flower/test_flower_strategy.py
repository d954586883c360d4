"""A mechanism of hanse's over client apps that know nothing of it, in the place of a Flower strategy."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flower_apps import FIRST, STEPS, grid_of, plain_app
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import hanse
from hanse.core.calling import method_of
from hanse.core.part import State, View
from hanse.core.port import Task
from hanse.federation.codec import WireError
from hanse.flower import Keys, strategy
from hanse.flower.arrays import ArrayLayout
from hanse.mechanisms.fits import CLIENTS_GIVE, said
from hanse.mechanisms.registry import PARTS
from hanse.mechanisms.select import Uniform
from hanse.runs.round_record import METRICS, SEATS
from hanse.runs.run_record import load_run, played_lines


class Curious(Uniform):
    """A selector that asks clients something of its own."""

    def asks(self, view: View, state: State) -> tuple[Task, ...]:
        return ()


def worth(arrays: ArrayRecord) -> dict[str, float]:
    return {"loss": float(np.abs(arrays["w"].numpy() - 4 * STEPS).sum())}


def central(number: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord(worth(arrays))


def three(app: ClientApp | None = None) -> dict[int, ClientApp]:
    return {i: app or plain_app() for i in range(3)}


def test_fedavg_gives_what_flowers_own_gives() -> None:
    got = strategy("fedavg", clients_per_round=3).start(grid_of(three()), FIRST, num_rounds=2, evaluate_fn=central)
    wanted = FedAvg().start(grid_of(three()), FIRST, num_rounds=2, evaluate_fn=central)
    assert np.allclose(got.arrays["w"].numpy(), wanted.arrays["w"].numpy(), atol=1e-6)
    assert got.arrays["w"].numpy().dtype == np.float64  # as the app has it
    assert got.arrays["steps"].numpy().tolist() == [7]  # a counter is not mixed
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        mine, theirs = getattr(got, name), getattr(wanted, name)
        assert mine.keys() == theirs.keys()
        for number, metrics in theirs.items():
            assert dict(mine[number]) == pytest.approx(dict(metrics), abs=1e-5)


def test_a_run_directory_like_any_other(tmp_path: Path) -> None:
    out = tmp_path / "run"
    ours = strategy("fedavg", value="exact", clients_per_round=3, evaluate=worth, out=out)
    ours.start(grid_of(three()), FIRST, num_rounds=1, evaluate_fn=central)
    seats = played_lines(out, SEATS)
    updates = [{"w": (i + 1) * STEPS} for i in range(3)]
    found = hanse.value(
        updates, lambda m: -worth_of_arrays(m["w"]), weights=[1, 2, 3], method="exact", start={"w": np.zeros((2, 2))}
    )
    assert [s["samples"] for s in seats] == [1, 2, 3]
    assert [s["value"] for s in seats] == pytest.approx(found.values.tolist(), abs=1e-5)
    [line] = played_lines(out, METRICS)
    assert line["test/loss"] == pytest.approx(worth_of_arrays(14 / 6 * STEPS), abs=1e-5)
    assert load_run(out).names == ("site-100", "site-101", "site-102")
    with pytest.raises(hanse.UserError, match=r"out:.*exists already"):
        strategy("fedavg", out=out).start(grid_of(three()), FIRST)


def worth_of_arrays(w: np.ndarray) -> float:
    return float(np.abs(w - 4 * STEPS).sum())


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("ditto", {}, "tilts"),
        ("greedyfed", {}, "needs evaluate"),
        ("oort", {}, r"hanse.flower.Keys.*train_loss"),
        ("ifca", {}, "one model to start from"),
        ("fedavg", {"value": "path", "evaluate": worth}, "'path' needs a loss with a gradient"),
        ("pifl", {"value": "gtg", "evaluate": worth}, "'tokens' needs clients' bids.*client_app"),
        ("fedavg", {"select": "test_flower_strategy:Curious"}, "Curious needs answers.*client_app"),
        ("fedavg", {"clients": 0}, "clients: 0"),
    ],
)
def test_what_a_plain_app_cannot_do_is_refused_at_once(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(hanse.UserError, match=said):
        strategy(name, **options)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ({"metrics": {"train_loss": 1.0}}, "no 'num-examples'"),
        ({"metrics": {"train_loss": 1.0, "num-examples": -5}}, "'num-examples' is -5"),
        ({"metrics": {"train_loss": 1.0, "num-examples": float("nan")}}, "'num-examples' is nan"),
        ({"arrays": {"w": np.zeros((2, 3)), "steps": np.array([1])}}, r"'w': has shape \[2, 3\]: must be \[2, 2\]"),
        ({"arrays": {"w": np.zeros((2, 2)), "v": np.zeros(1)}}, r"other arrays than those that were sent \(v\)"),
        ({"arrays": {"w": np.full((2, 2), np.nan), "steps": np.array([1])}}, "NaN or infinite"),
    ],
)
def test_a_wrong_reply_costs_its_seat_alone_and_is_in_no_figure(
    reply: dict[str, Any], said: str, tmp_path: Path
) -> None:
    apps = three() | {1: plain_app(reply)}
    told = strategy("fedavg", clients_per_round=3, out=tmp_path / "run").start(grid_of(apps), FIRST, num_rounds=1)
    assert told.train_metrics_clientapp[1]["train_loss"] == pytest.approx((1 * 3.0 + 3 * 9.0) / 4)
    seats = played_lines(tmp_path / "run", SEATS)
    [refused] = [s for s in seats if "refused" in s]
    assert refused["client"] == 1
    assert re.search(said, str(refused["refused"]))
    assert [s["weight"] for s in seats if "refused" not in s] == pytest.approx([0.25, 0.75])


def test_forms() -> None:
    form = ArrayLayout.of(FIRST)
    row = torch.arange(4.0)
    assert torch.equal(form.row(form.arrays(row)), row)
    with pytest.raises(hanse.UserError, match="hanse mixes"):
        strategy("fedavg").start(grid_of(three()), ArrayRecord([np.zeros(3, np.uint8)]))
    with pytest.raises(hanse.UserError, match="not finite"):
        strategy("fedavg").start(grid_of(three()), ArrayRecord([np.array([np.inf])]))
    with pytest.raises(WireError, match=r"array 'w'"):
        form.row(ArrayRecord({"w": Array(np.zeros((2, 2), np.int64)), "steps": Array(np.zeros(1))}))


def test_numbers_that_numpy_has_not_are_kept_as_they_are() -> None:
    saved = io.BytesIO()
    np.save(saved, np.array([b"\x80?"], "V2"))  # 1.0, as JAX's bfloat16 is saved
    brain = Array("bfloat16", (1,), "numpy.ndarray", saved.getvalue())
    arrays = ArrayRecord({"w": Array(np.ones(2, np.float16)), "brain": brain})
    form = ArrayLayout.of(arrays)
    assert form.names == ("w",)
    again = form.arrays(2 * form.row(arrays))
    assert again["w"].numpy().tolist() == [2.0, 2.0]
    assert again["w"].dtype == "float16"
    assert again["brain"].numpy().tobytes() == b"\x80?"


def test_every_part_that_asks_clients_something_is_known() -> None:
    for slot, parts in PARTS.items():
        for make in parts.values():
            part = make()
            if method_of(part, "asks") and not hasattr(part, "of"):
                needs = frozenset().union(*(said(part, "needs", where) for where in PARTS))
                assert needs & CLIENTS_GIVE, (slot, part)


def test_a_metric_that_says_the_loss_can_be_named() -> None:
    ours = strategy("oort", clients_per_round=2, keys=Keys(loss="train_loss"))
    assert list(ours.start(grid_of(three()), FIRST, num_rounds=1).train_metrics_clientapp) == [1]


def test_an_evaluate_that_fails_undoes_its_round(tmp_path: Path) -> None:
    calls = []

    def sometimes(arrays: ArrayRecord) -> float:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("disk full")
        return -worth(arrays)["loss"]

    ours = strategy("fedavg", value="leave_one_out", clients_per_round=3, evaluate=sometimes, out=tmp_path / "run")
    result = ours.start(grid_of(three()), FIRST, num_rounds=2)
    first, second = played_lines(tmp_path / "run", METRICS)
    assert "disk full" in first["failed"]
    assert second["value/sum"] is not None
    assert np.allclose(result.arrays["w"].numpy(), 14 / 6 * STEPS, atol=1e-6)  # one round counts


def test_what_start_cannot_play_is_refused() -> None:
    with pytest.raises(hanse.UserError, match="num_rounds: 0"):
        strategy("fedavg").start(grid_of(three()), FIRST, num_rounds=0)
    with pytest.raises(hanse.UserError, match="evaluate: returned nan"):
        strategy("fedavg", value="exact", evaluate=lambda arrays: float("nan")).start(grid_of(three()), FIRST)
    with pytest.raises(hanse.UserError, match=r"clients_per_round: 9.*3 nodes"):
        strategy("fedavg", clients_per_round=9).start(grid_of(three()), FIRST)
