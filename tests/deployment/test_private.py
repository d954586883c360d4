"""What a participant keeps, other users of its machine cannot read: folders 700, files 600, whatever the umask is."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from flwr.supercore.task_identity import TaskIdentity
from test_flower_in_process import N, experiment, over_flower

import hanse
from hanse.federation.secret import private_file, private_folder


@pytest.fixture(autouse=True)
def _open_to_all() -> Iterator[None]:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # Flower sets these inside an app
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("ditto", {"secret.key", "models.npz", "row-1.npz"}),
        ("pifl", {"secret.key", "models.npz", "personal.npz", "client-1.jsonl"}),
        ("ipfl", {"secret.key", "models.npz", "best.npz", "client-1.jsonl"}),
    ],
)
def test_what_participants_keep_is_theirs_alone(name: str, files: set[str], tmp_path: Path) -> None:
    exp = experiment(name, rounds=2)
    if name == "ipfl":
        exp = hanse.Experiment(**{**exp.model_dump(), "mechanism": {"name": "ipfl", "keep_best": True}})
    over_flower(exp, tmp_path)
    homes = [tmp_path / f"node{i}" for i in range(N)]
    kept = [*homes, *(path for home in homes for path in home.rglob("*"))]
    assert {path.name for path in kept} >= files
    for path in kept:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_what_is_there_already_is_closed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "models.npz").write_bytes(b"old")
    with private_file(private_folder(tmp_path / "run") / "models.npz", "ab") as file:
        file.write(b" and new")
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "run" / "models.npz").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "run" / "models.npz").read_bytes() == b"old and new"
    private_folder(tmp_path / "a" / "b" / "c")
    assert [(tmp_path / "a" / part).stat().st_mode & 0o777 for part in ("", "b", "b/c")] == [0o700] * 3
