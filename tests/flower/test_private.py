"""What a participant keeps, other users of its machine cannot read: folders 700, files 600, whatever the umask is."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from forging import receipt
from inprocess import KEY, PINNED
from rotation import rotating
from test_flower_in_process import N, experiment, over_flower

import hanse
from hanse.data import build
from hanse.federation.codec import WireError
from hanse.federation.node import Assignment, ClientData, Node


@pytest.fixture(autouse=True)
def _open_to_all() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


FILES = {"ditto": {"row-1.npz"}, "pifl": {"personal.npz", "client-1.jsonl"}, "ipfl": {"best.npz", "client-1.jsonl"}}


@pytest.mark.parametrize("name", rotating([*FILES], 3))
def test_what_participants_keep_is_theirs_alone(name: str, tmp_path: Path) -> None:
    exp = experiment(name, rounds=2)
    if name == "ipfl":
        exp = hanse.Experiment(**{**exp.model_dump(), "mechanism": {"name": "ipfl", "keep_best": True}})
    over_flower(exp, tmp_path)
    homes = [tmp_path / f"node{i}" for i in range(N)]
    kept = [*homes, *(path for home in homes for path in home.rglob("*"))]
    assert {path.name for path in kept} >= {"secret.key", "models.npz", *FILES[name]}
    for path in kept:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_run_of_another_name_cannot_tell_another_story_of_the_same_book(tmp_path: Path) -> None:
    exp = experiment("fedavg")
    data = ClientData.of(build(exp.data), 1)
    job = Assignment("run", 1, N, 0, {"name": "mlp", "hidden": [4]}, exp.train.model_dump())
    Node(data, job, tmp_path).keep_receipts(receipt(count=9, key=KEY).as_json(), PINNED)
    other = Node(data, replace(job, run="again"), tmp_path)
    with pytest.raises(WireError, match="8 transactions"):
        other.keep_receipts(receipt(count=8, key=KEY).as_json(), PINNED)
    other.keep_receipts(receipt("c", count=8, key=KEY).as_json(), PINNED)
