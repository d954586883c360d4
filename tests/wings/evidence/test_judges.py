"""Judges: each round has its own validation samples, and none that a client trains on."""

from typing import Any

import numpy as np
import pytest
import torch
from mistaken import mistakes
from sklearn.datasets import load_digits
from watching import rounds_of

import hanse
from hanse.data import Dataset
from hanse.data.samples import Samples
from hanse.runs.setup import build

pytest.importorskip("hanse.wings.evidence")
SHARED = 300


def shared(seed: int = 0) -> Dataset:
    """Digits of which the server's first samples are also clients'."""
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int64)
    owner = np.arange(1000) % 4
    return Dataset(
        "shared", Samples(x[:1000], y[:1000]), Samples(x[1000 - SHARED :], y[1000 - SHARED :]), 10, (64,),
        client_of=owner,
    )  # fmt: skip


def same(seed: int = 0) -> Dataset:
    """Digits of which the server has none of its own."""
    x, y = load_digits(return_X_y=True)
    mine = Samples((x / 16).astype(np.float32), y.astype(np.int64))
    return Dataset("same", mine, mine, 10, (64,), client_of=np.arange(len(y)) % 4)


def experiment(source: str, **evidence: Any) -> hanse.Experiment:
    return hanse.Experiment(
        data={"source": f"{__name__}:{source}", "partition": "natural", "validation": 0.9}, model="logistic",
        mechanism={"name": "fedavg", "value": "path", "settle": "by_value"}, train={"steps": 2}, evidence=evidence,
        engine={"threads": 1}, run={"rounds": 3},
    )  # fmt: skip


def judged(one: hanse.Experiment, rounds: int = 3) -> list[torch.Tensor]:
    return [played.view.judge.validation.x for played in rounds_of(build(one), rounds)]  # type: ignore[union-attr]


def test_no_judge_is_trained_on_and_each_round_has_its_own() -> None:
    session = build(experiment("shared"))
    pool, lists = session.data.pool(list(range(4)))
    trained = {row.numpy().tobytes() for row in pool.x[torch.cat(lists)].flatten(1)}
    whole = [row.numpy().tobytes() for row in session.data.server_validation.x.flatten(1)]  # type: ignore[union-attr]
    apart = [row for row in whole if row not in trained]
    assert 0 < len(apart) < len(whole)
    rounds = [{row.numpy().tobytes() for row in x.flatten(1)} for x in judged(experiment("shared", judges={}))]
    assert all(len(one) == -(-len(apart) // 2) and one <= set(apart) for one in rounds)
    assert len({frozenset(one) for one in rounds}) == 3
    again = judged(experiment("shared", judges={}))
    assert [{row.numpy().tobytes() for row in x.flatten(1)} for x in again] == rounds
    [all_of_them] = judged(experiment("shared", judges={"share": 1.0}), 1)
    assert len(all_of_them) == len(apart)
    [as_before] = judged(experiment("shared"), 1)
    assert len(as_before) == len(whole)


@pytest.mark.parametrize(
    ("source", "judges", "line"),
    [
        ("same", {}, "evidence.judges: clients train on "),
        ("shared", {"share": 0.0}, "evidence.judges.share: 0.0"),
        ("shared", {"shares": 0.3}, "evidence.judges.shares: no such key"),
    ],
)
def test_what_cannot_judge_is_said_before_round_0(source: str, judges: Any, line: str) -> None:
    assert mistakes(build, experiment(source, judges=judges))[0].startswith(line)
