"""Strategies and functions that do not mean well with ``hanse.valued``: the training is as without it, bit for bit."""

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg, FedMedian, Strategy
from recorded import SHAPES, RecordedGrid, first_arrays
from strategies import Last
from test_valued import ROUNDS, evaluate, gaps, plain, watched

import hanse
from hanse.runs.run_record import load_run

# each starts a process for each aggregate that it makes again
pytestmark = [pytest.mark.by_turns(3), pytest.mark.usefixtures("warm")]


# ---- strategies that look at themselves


def test_copies_of_what_is_started_are_of_the_strategys_own_kind(tmp_path: Path) -> None:
    strategy = FedAvg(fraction_train=0.5)
    started = hanse.valued(strategy, validation=evaluate, out=tmp_path / "run").listened
    started.fraction_train = 0.25
    for copied in (copy.copy(started), copy.deepcopy(started), pickle.loads(pickle.dumps(started))):
        assert type(copied) is FedAvg
        assert copied is not strategy
        assert copied.fraction_train == strategy.fraction_train == 0.25


def worths(path: Path) -> list[float | None]:
    return [seat.value for seat in load_run(path).clients]


# ---- functions that say what a model is worth


def empties(arrays: ArrayRecord) -> float:
    found = evaluate(arrays)["loss"]
    arrays.pop("w")
    return found


@pytest.mark.parametrize("kind", [FedAvg, FedMedian])
def test_an_evaluation_may_do_what_it_likes_to_its_arrays(kind: type[Strategy], tmp_path: Path) -> None:
    assert watched(kind(), tmp_path / "run", validation=empties) == plain(kind())
    watched(kind(), tmp_path / "other", validation=lambda arrays: evaluate(arrays)["loss"])
    assert worths(tmp_path / "run") == worths(tmp_path / "other")


# ---- replies


def weighing(weight: Any) -> Callable[[Message], None]:
    def change(reply: Message) -> None:
        reply.content["metrics"] = MetricRecord({"num-examples": weight, "train_loss": 1.0})

    return change


def words(reply: Message) -> None:
    reply.content["arrays"]["w"] = Array(np.full((4, 3), "x"))


def long(reply: Message) -> None:
    """An update of a norm that a round refuses, and a strategy averages."""
    reply.content["arrays"] = ArrayRecord({k: Array(np.full(shape, 3e17, np.float32)) for k, shape in SHAPES.items()})


def changing(change: Callable[[Message], None]) -> RecordedGrid:
    def meddle(node: int, round: int, reply: Message) -> Message:
        if node == 1:
            change(reply)
        return reply

    return RecordedGrid(4, meddle)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (weighing(-5), "'num-examples' is -5: must be a number from 0 to 9e+15"),
        (weighing(math.nan), "'num-examples' is nan: must be"),
        (words, "array 'w'"),
    ],
)
def test_a_reply_that_cannot_be_read_is_refused_and_the_others_are_valued(
    change: Callable[[Message], None], said: str, tmp_path: Path
) -> None:
    assert watched(Last(), tmp_path / "run", changing(change)) == plain(Last(), changing(change))
    assert gaps(tmp_path / "run") == [None] * ROUNDS
    seats = load_run(tmp_path / "run").clients
    assert all((seat.refused or "").startswith(said) == (seat.client == 0) for seat in seats)
    assert all((seat.value is None) == (seat.client == 0) for seat in seats)


@pytest.mark.parametrize(
    ("kind", "change"),
    [(FedAvg, weighing(-5)), (FedMedian, weighing(-5)), (FedAvg, long)],
    ids=["few", "median", "long"],
)
def test_a_model_with_refused_replies_in_it_has_no_values(
    kind: type[Strategy], change: Callable[[Message], None], tmp_path: Path
) -> None:
    assert watched(kind(), tmp_path / "run", changing(change)) == plain(kind(), changing(change))
    assert all(str(gap).endswith("refused here, of node 1") for gap in gaps(tmp_path / "run"))
    assert worths(tmp_path / "run") == [None] * 4 * ROUNDS


class Twice(RecordedGrid):
    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        replies = list(super().send_and_receive(messages))
        return [*replies, copy.deepcopy(replies[0])]


def test_a_client_that_answers_twice_is_named(tmp_path: Path) -> None:
    assert watched(FedAvg(), tmp_path / "run", Twice()) == plain(FedAvg(), Twice())
    assert all("refused here" in str(gap) for gap in gaps(tmp_path / "run"))
    assert [s.refused for s in load_run(tmp_path / "run").clients[:2]] == ["it answered more than once", None]


class Broken(RecordedGrid):
    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        list(super().send_and_receive(messages))
        raise ConnectionError("mine")


def test_a_round_in_which_nothing_came_back_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="mine"):
        watched(FedAvg(), tmp_path / "run", Broken())
    assert gaps(tmp_path / "run") == ["nobody replied soundly"]
    assert [seat.refused for seat in load_run(tmp_path / "run").clients] == ["no reply"] * 4


# ---- what an average is


def halved(node: int, round: int, reply: Message) -> Message:
    arrays = reply.content["arrays"]
    reply.content["arrays"] = ArrayRecord({k: Array(a.numpy().astype(np.float16)) for k, a in arrays.items()})
    return reply


def test_averages_of_half_precision_are_averages(tmp_path: Path) -> None:
    assert watched(FedAvg(), tmp_path / "run", RecordedGrid(4, halved)) == plain(FedAvg(), RecordedGrid(4, halved))
    assert gaps(tmp_path / "run") == [None] * ROUNDS


def slightly(node: int, round: int, reply: Message) -> Message:
    """A fine-tuning: one step of 1e-5 from a weight of 0.5."""
    draw = np.random.default_rng([node, round])
    reply.content["arrays"] = ArrayRecord(
        {k: Array((a.numpy() + 1e-5 * draw.standard_normal(a.shape)).astype(np.float32)) for k, a in START.items()}
    )
    return reply


START = first_arrays()


def test_a_median_of_small_steps_is_no_average(tmp_path: Path) -> None:
    watched(FedMedian(), tmp_path / "run", RecordedGrid(4, slightly))
    assert [line.get("value/aggregated_again") for line in load_run(tmp_path / "run").metrics] == [1.0] * ROUNDS
