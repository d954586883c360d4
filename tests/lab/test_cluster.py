"""Jobs on a Ray cluster, with a stand-in for Ray: what is asked of it, and what a lost task becomes."""

import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mistaken import mistakes
from sweep_cases import made_up, points_of

from hanse.lab.sweep import run_sweep


class RayError(Exception):
    pass


class FakeRay(SimpleNamespace):
    """Runs tasks when their results are waited for, the last one first; a learning rate of 98 loses its worker."""

    def __init__(self) -> None:
        super().__init__(calls=[], exceptions=SimpleNamespace(RayError=RayError))

    def init(self, **options: Any) -> None:
        self.calls.append(("init", options))
        if options["address"] == "auto":
            raise ConnectionError("nobody\nthere")

    def remote(self, **options: Any) -> Callable[..., Any]:
        self.calls.append(("remote", options))
        return lambda work: SimpleNamespace(remote=lambda *args: partial(work, *args))

    def wait(self, tasks: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return tasks[-num_returns:], tasks[:-num_returns]

    def get(self, task: Any) -> Any:
        if task.args[1].experiment.train.lr == 98.0:
            raise RayError("the worker\ndied")
        return task()

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 8.0, "GPU": 2.0}

    def shutdown(self) -> None:
        self.calls.append(("shutdown", {}))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)  # type: ignore[arg-type]
    return fake


def test_runs_on_the_cluster(tmp_path: Path, ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSE_DATA", "/somewhere")
    points = points_of(tmp_path, "train.lr=0.5,98.0,66.0,0.25")
    done = run_sweep(points, tmp_path / "out", workers=1, ray="local", gpus=0.25, work=made_up)
    assert [points[i].job.key in done.results for i in range(4)] == [True, False, False, True]
    assert done.failures[points[1].job.key].endswith("the worker died")
    assert done.failures[points[2].job.key] == "ValueError: as ordered"
    (_, began), (_, asked), (end, _) = ray.calls
    assert (began["address"], began["runtime_env"]) == ("local", {"env_vars": {"HANSE_DATA": "/somewhere"}})
    assert (asked, end) == ({"num_cpus": 1, "max_retries": 0, "num_gpus": 0.25}, "shutdown")


def test_who_is_not_there_or_has_too_few_cards_is_named(tmp_path: Path, ray: FakeRay) -> None:
    points = points_of(tmp_path, "train.lr=0.5")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # but not listening
        silent = f"ray://127.0.0.1:{taken.getsockname()[1]}"
        for address, gpus, line in (
            (silent, None, f"--ray {silent}: no Ray cluster answers: "), ("local", 3, "--gpus-per-job 3"),
            ("auto", None, "--ray auto"),
        ):  # fmt: skip
            lines = mistakes(run_sweep, points, tmp_path / "out", workers=1, ray=address, gpus=gpus, work=made_up)
            assert lines[0].startswith(line)
