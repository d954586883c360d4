"""Training on a Ray cluster: the bits of this process. With a stand-in for Ray, and by hand with Ray itself."""

import copy
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hanse

ONE = {"threads": 1, "workers": 1, "device": "cpu"}


class FakeRay(SimpleNamespace):
    """Three workers in this process, which get copies of everything."""

    def is_initialized(self) -> bool:
        return False

    def init(self, **_: Any) -> None:
        self.puts, self.killed, self.given = 0, 0, list[int]()

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}

    def put(self, thing: Any) -> int:
        self.puts += 1
        self.held = {**getattr(self, "held", {}), self.puts: copy.deepcopy(thing)}
        return self.puts

    def get(self, what: Any) -> Any:
        return self.held[what] if isinstance(what, int) else what

    def remote(self, **_: Any) -> Callable[..., Any]:
        def there(kind: Any) -> Any:
            def made(*given: Any) -> Any:
                worker = kind(*copy.deepcopy(given))

                def train(pool: Any, jobs: Any, *more: Any) -> Any:
                    self.given.append(len(jobs))
                    return worker.train(pool, copy.deepcopy(jobs), *more)

                return SimpleNamespace(train=SimpleNamespace(remote=train))

            return SimpleNamespace(remote=made)

        return there

    def kill(self, worker: Any) -> None:
        self.killed += 1

    def shutdown(self) -> None:
        self.ended = True


def experiment(where: str = "local", **more: Any) -> hanse.Experiment:
    return hanse.Experiment(**{
        "data": {"clients": 5, "client_test": 0.2}, "mechanism": {"name": "fedavg", "clients_per_round": 5},
        "federation": {"engine": where}, "engine": ONE, "run": {"rounds": 3}, **more,
    })  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"engine": {**ONE, "train": "sequential"}, "mechanism": "ditto"},
        {"train": {"loop": "user_loops:fit"}},
        {"behaviour": {"liar": {"clients": [1]}, "straggler": {"fraction": 0.5}}},
    ],
)
def test_the_same_bits_as_in_this_process(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)  # type: ignore[arg-type]
    here, there = hanse.run(experiment(**more)), hanse.run(experiment("ray", **more))
    assert torch.equal(here.table.rows, there.table.rows)
    assert here.clients == there.clients
    assert (fake.killed, fake.ended, min(fake.given) > 0) == (3, True, True)
    assert fake.puts == 1 or "behaviour" in more  # the samples are sent once


@pytest.mark.soak
def test_a_worker_of_ray_that_is_killed_is_replaced() -> None:
    ray = pytest.importorskip("ray")
    here = hanse.run(experiment(run={"rounds": 30}))
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    killed = list[int]()

    def kill() -> None:
        while not (found := subprocess.run(["pgrep", "-nf", "^ray::RayWorker.train"], capture_output=True).stdout):
            time.sleep(0.01)
        killed.append(int(found))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    there = hanse.run(experiment("ray", run={"rounds": 30}))
    killer.join()
    ray.shutdown()
    assert killed
    assert torch.equal(here.table.rows, there.table.rows)
