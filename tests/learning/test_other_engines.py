from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hanse.errors import UserError
from hanse.learning import calibrate
from hanse.learning.calibrate import Choice, choose, make_engine, pick_device
from hanse.learning.job import Recipe
from hanse.learning.local import Trainer
from hanse.learning.models import build_problem
from hanse.learning.processes import ProcessEngine
from hanse.learning.sequential import SequentialEngine
from hanse.learning.vmapped import VmappedEngine, why_not_vmapped

from .helpers import agree, jobs_of, made, oracle

USER = "tests.learning.usermodels:"
RECIPE = Recipe(epochs=2, batch_size=10, lr=0.05, momentum=0.5)


@pytest.mark.parametrize("terms", [{}, {"mu": [0.0, 0.5, 0.3], "tilt": 0.1, "epochs": [1, None, 3]}])
@pytest.mark.parametrize("classes", [5, None])
@pytest.mark.parametrize(
    "recipe",
    [RECIPE, Recipe(epochs=2, batch_size=None, batches_per_epoch=3, lr=0.05, weight_decay=0.01, momentum=0.5)],
)
def test_vmapped_equals_the_oracle(terms: dict, classes: int | None, recipe: Recipe) -> None:
    problem, row = build_problem(USER + "residual", (3, 4), classes, 1, width=6)
    pool = made((3, 4), classes)
    jobs = jobs_of(row, [33, 61, 20], **terms)
    assert why_not_vmapped(problem, row, pool) is None
    agree(VmappedEngine(problem).train(pool, jobs, recipe, 0.05), oracle(problem, pool, jobs, recipe))


@pytest.mark.parametrize(("name", "why"), [("dropping", "random"), ("centred", "rest of the batch")])
def test_what_cannot_be_vmapped_says_why(name: str, why: str) -> None:
    problem, row = build_problem(USER + name, (3, 4), 5, 1)
    assert why in (why_not_vmapped(problem, row, made((3, 4), 5)) or "")


def test_batch_norm_is_not_vmapped() -> None:
    problem, row = build_problem("mlp", (4,), 5, 1, batch_norm=True)
    assert "statistics" in (why_not_vmapped(problem, row, made((4,), 5)) or "")
    with pytest.raises(ValueError, match="statistics"):
        VmappedEngine(problem)


def test_dropout_is_drawn_from_the_seats_own_stream() -> None:
    problem, row = build_problem(USER + "dropping", (3, 4), 5, 1)
    pool = made((3, 4), 5)
    jobs = jobs_of(row, [33, 61])
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = SequentialEngine(problem).train(pool, jobs, RECIPE, 0.05)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    second = SequentialEngine(problem, workers=2).train(pool, jobs[::-1], RECIPE, 0.05)
    assert torch.equal(first.rows, second.rows.flip(0))


@pytest.mark.parametrize("name", ["mlp", "cnn_small"])
def test_processes_equal_one_thread_bit_for_bit(name: str) -> None:
    shape = (1, 28, 28)
    problem, row = build_problem(name, shape, 10, 1)
    pool = made(shape, 10, 200)
    engine = ProcessEngine(problem)
    try:
        for sizes in ([30, 41, 22], [60, 61]):  # the second round needs a larger arena
            jobs = jobs_of(row, sizes, mu=0.1, tilt=0.01, epochs=[1, None, 2][: len(sizes)])
            got, expected = engine.train(pool, jobs, RECIPE, 0.05), oracle(problem, pool, jobs, RECIPE)
            assert torch.equal(got.rows, expected.rows)
            np.testing.assert_array_equal(got.loss, expected.loss)
            np.testing.assert_array_equal(got.steps, expected.steps)
        scores = engine.score(got.rows, pool)
        np.testing.assert_allclose(scores.loss, SequentialEngine(problem).score(got.rows, pool).loss, rtol=1e-6)
        pids = [worker.process.pid for worker in engine._workers]
    finally:
        engine.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_workers_exception_reaches_the_parent() -> None:
    problem, row = build_problem(USER + "failing", (3, 4), 5, 1)
    pool = made((3, 4), 5)
    engine = ProcessEngine(problem)
    with pytest.raises(RuntimeError, match="does not like its samples"):
        engine.train(pool, jobs_of(row, [20, 20]), RECIPE, 0.05)
    assert engine._workers == []
    with pytest.raises(ValueError, match="client 0 has 0 samples"):
        engine.train(pool, jobs_of(row, [0]), RECIPE, 0.05)


SCRIPT = """
import os, sys, time, torch
from hanse.data.samples import Samples
from hanse.learning.job import Recipe, SeatJob
from hanse.learning.models import build_problem
from hanse.learning.processes import ProcessEngine
print("once", flush=True)
problem, row = build_problem("mlp", (4,), 3, 0)
pool = Samples(torch.randn(40, 4), torch.zeros(40, dtype=torch.int64))
engine = ProcessEngine(problem)
jobs = [SeatJob(torch.arange(20), row, (0, 0, c, 0)) for c in range(2)]
engine.train(pool, jobs, Recipe(), 0.1)
print(*[w.process.pid for w in engine._workers], flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_workers_need_no_guard_and_die_with_their_parent(tmp_path: Path, has_ended: Callable[[int], bool]) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "once\n"
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.wait()
    assert all(has_ended(pid) for pid in pids)


@pytest.mark.parametrize("name", ["cnn_small", "cnn_greedyfed"])
@pytest.mark.parametrize("workers", [1, 2])
def test_convolutions_stay_near_double_precision(name: str, workers: int) -> None:
    shape = (1, 28, 28) if name == "cnn_small" else (3, 32, 32)
    problem, row = build_problem(name, shape, 10, 1)
    pool = made(shape, 10, 200)
    step = Recipe(steps=1, batch_size=20, lr=1.0)
    jobs = jobs_of(row, [40, 50])
    double = SequentialEngine(problem, dtype=torch.float64)
    engine = SequentialEngine(problem, workers=workers)
    gap = engine.train(pool, jobs, step, 1.0).rows - double.train(pool, jobs, step, 1.0).rows
    assert float(gap.abs().max()) < 1e-6
    plain = Trainer(problem, torch.device("cpu"))
    plain.images = False
    plain.module = plain.module.to(memory_format=torch.contiguous_format)
    exact = double.train(pool, jobs, RECIPE, 0.05).rows
    mine = (engine.train(pool, jobs, RECIPE, 0.05).rows - exact).abs().max()
    theirs = max(
        float((plain.train(pool, j, RECIPE, 0.05)[0] - e).abs().max()) for j, e in zip(jobs, exact, strict=True)
    )
    assert float(mine) <= 3 * max(theirs, 1e-7)


def test_bf16_is_near() -> None:
    problem, row = build_problem("cnn_small", (1, 28, 28), 10, 1)
    pool = made((1, 28, 28), 10, 100)
    jobs = jobs_of(row, [40, 50])
    half = SequentialEngine(problem, precision="bf16").train(pool, jobs, RECIPE, 0.05)
    full = oracle(problem, pool, jobs, RECIPE)
    assert 1e-6 < float((half.rows - full.rows).abs().max()) < 0.05


@pytest.fixture
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "user_cache_dir", lambda name: tmp_path / name)


@pytest.mark.usefixtures("_cache")
def test_choice_is_measured_once_and_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # with one thread there is nothing to choose between
    problem, row = build_problem("mlp", (12,), 5, 1)
    pool = made((12,), 5)
    jobs = jobs_of(row, [50, 60, 70])
    first = choose(problem, RECIPE, pool, jobs, rounds=5)
    assert first.measured
    assert any("<- chosen" in line for line in first.why)
    again = choose(problem, RECIPE, pool, jobs, rounds=5)
    assert again == first
    assert "measured earlier" in again.why[-1]
    engine = make_engine(again, problem)
    agree(engine.train(pool, jobs, RECIPE, 0.05), oracle(problem, pool, jobs, RECIPE))
    engine.close()


@pytest.mark.usefixtures("_cache")
@pytest.mark.parametrize("name", ["mlp", "cnn_small", USER + "residual", USER + "dropping"])
@pytest.mark.parametrize("recipe", [RECIPE, Recipe(epochs=1, batch_size=None, batches_per_epoch=3)])
def test_every_model_gets_an_engine_that_trains_it(name: str, recipe: Recipe) -> None:
    problem, row = build_problem(name, (1, 28, 28), 10, 1)
    pool = made((1, 28, 28), 10, 150)
    jobs = jobs_of(row, [30, 60, 20])
    choice = choose(problem, recipe, pool, jobs, rounds=3)
    engine = make_engine(choice, problem)
    trained = engine.train(pool, jobs, recipe, recipe.lr)
    engine.close()
    assert float((trained.rows - oracle(problem, pool, jobs, recipe).rows).abs().max()) < 1e-4
    if name == "mlp":
        assert choice.engine == "stacked"


def test_what_is_asked_for_is_kept() -> None:
    problem, row = build_problem("cnn_small", (1, 28, 28), 10, 1)
    pool, jobs = made((1, 28, 28), 10, 60), jobs_of(row, [30, 30])
    choice = choose(problem, RECIPE, pool, jobs, rounds=1, train="sequential", threads=1, workers=2)
    assert choice == Choice("sequential", 1, 2)
    choice = choose(problem, RECIPE, pool, jobs, rounds=1, train="processes", workers=2)
    assert choice == Choice("processes", 1, 2)
    mlp, first = build_problem("mlp", (1, 28, 28), 10, 1)
    for threads, workers in ((2, 1), (1, 2), (1, 1)):
        asked = choose(
            mlp, RECIPE, pool, jobs_of(first, [30]), rounds=1, train="stacked", threads=threads, workers=workers
        )
        assert asked == Choice("stacked", threads, workers)
        assert not asked.measured
    with pytest.raises(UserError, match="workers use 1 thread each"):
        choose(mlp, RECIPE, pool, jobs_of(first, [30]), rounds=1, train="stacked", threads=2, workers=2)
    with pytest.raises(UserError, match="cannot train this model: stacked"):
        choose(problem, RECIPE, pool, jobs, rounds=1, train="stacked")


def test_devices() -> None:
    assert pick_device("auto").type in ("cpu", "cuda")
    with pytest.raises(UserError, match="device is 'gpu'"):
        pick_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no CUDA"):
            pick_device("cuda")
