"""The native engine computes what the oracle does, with every width of vectors, and reads nothing beyond its data."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from rotation import rotating

from hanse.base.errors import UserError
from hanse.core.recipe import Recipe
from hanse.core.table import Layout
from hanse.data.samples import Samples
from hanse.learning.batches import plan_seats
from hanse.learning.job import Drawn, Problem, SeatJob
from hanse.learning.models import build_problem
from hanse.learning.native import engine as native
from hanse.learning.native.engine import NativeEngine
from hanse.learning.stacked import StackedEngine

from .helpers import agree, jobs_of, made, oracle
from .test_engines import RECIPES, SIZES, TERMS

COMPILED = native.library()
HERE = pytest.mark.skipif(
    isinstance(COMPILED, str) and not os.environ.get("HANSE_TEST_NATIVE"),
    reason="no compiled part in this installation",
)
SOURCES = Path(native.__file__).parent
MODELS = {
    "logistic": ("logistic", {}),
    "mlp": ("mlp", {"hidden": [9, 7]}),
    "tanh": ("mlp", {"hidden": [33, 17], "activation": "tanh"}),
    "wide": ("mlp", {"hidden": [130]}),  # more outputs than the widest tile
}


def library() -> ctypes.CDLL:
    assert not isinstance(COMPILED, str), COMPILED
    return COMPILED


def vectors() -> Iterator[str]:
    """Use one width of vectors after another, those that this processor has."""
    names = [name for name in ("plain", "avx2", "avx512") if not library().hanse_use_vectors(name.encode())]
    for name in names:
        library().hanse_use_vectors(name.encode())
        yield name
    assert library().hanse_vectors().decode() == names[-1]  # the widest is what is used without being asked
    library().hanse_use_vectors(None)
    assert library().hanse_vectors().decode() == names[-1]


@HERE
@pytest.mark.parametrize("case", rotating(list(product(MODELS, RECIPES, SIZES, TERMS)), 4), ids="-".join)
def test_native_equals_the_oracle(case: tuple[str, str, str, str]) -> None:
    model, recipe, sizes, terms = case
    name, options = MODELS[model]
    problem, row = build_problem(name, (3, 4), 5, 1, **options)
    pool = made((3, 4), 5)
    jobs = jobs_of(row, SIZES[sizes], **TERMS[terms])  # type: ignore[arg-type]
    engine, expected = NativeEngine(problem), oracle(problem, pool, jobs, RECIPES[recipe])
    for _ in vectors():
        trained = engine.train(pool, jobs, RECIPES[recipe], RECIPES[recipe].lr)
        agree(trained, expected)
    ours, theirs = engine.score(trained.rows, pool), StackedEngine(problem).score(trained.rows, pool)
    np.testing.assert_allclose(ours.loss, theirs.loss, rtol=1e-6)
    np.testing.assert_array_equal(ours.accuracy, theirs.accuracy)


@HERE
@pytest.mark.parametrize("bias", [True, False])
def test_samples_and_inputs_beyond_the_blocks_that_are_cached(bias: bool) -> None:
    layers = [torch.nn.Linear(3000, 11, bias=bias), torch.nn.ReLU(), torch.nn.Linear(11, 3, bias=bias)]
    module = torch.nn.Sequential(torch.nn.Flatten(), *layers)
    problem = Problem(module, Layout.of(module))
    row, pool = problem.layout.flatten(module), made((3000,), 3, 1500)
    recipe = Recipe(epochs=2, batch_size=1100, lr=0.01, momentum=0.5)
    jobs = jobs_of(row, [1300, 90])
    expected = oracle(problem, pool, jobs, recipe)
    for _ in vectors():
        agree(NativeEngine(problem).train(pool, jobs, recipe, 0.01), expected)


def shared(problem: Problem, pool: Samples, jobs: list[SeatJob], recipe: Recipe, workers: int) -> bool:
    """Check that each seat has the bits that it has alone; return whether two threads shared one."""
    engine = NativeEngine(problem, workers=workers)
    together = engine.train(pool, jobs, recipe, 0.05)
    for seat, job in enumerate(jobs):
        alone = NativeEngine(problem).train(pool, [job], recipe, 0.05)
        assert torch.equal(alone.rows[0], together.rows[seat])
        assert (alone.loss[0], alone.steps[0]) == (together.loss[seat], together.steps[seat])
    return max(len(chain) for chain in engine._chains(plan_seats(jobs, recipe, 1))) == 2


@HERE
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_seats_bits_depend_on_neither_the_others_nor_the_threads(name: str) -> None:
    problem, row = build_problem("mlp", (3, 4), 5, 1, hidden=[9, 7])
    found = shared(problem, made((3, 4), 5), jobs_of(row, [61, 58, 59]), RECIPES[name], 2)
    assert found or name == "full"  # of one step, a seat is one thread's


@HERE
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda pool: Samples(pool.x, pool.y + 1), "labels 1 to 5"),
        (lambda pool: Samples(pool.x, pool.y - 1), "labels -1 to 3"),
        (lambda pool: Samples(pool.x[:30], pool.y[:30]), "pool of 30"),
        (lambda pool: Samples(pool.x[:, :11], pool.y), r"11 numbers.*12 inputs"),
        (lambda pool: Samples(pool.x, pool.y.int()), r"400.*400"),
        (lambda pool: Samples(pool.x, pool.y.repeat(2, 1).T), r"400.*400"),
    ],
)
def test_what_is_not_there_is_not_read(change: Callable[[Samples], Samples], said: str) -> None:
    problem, row = build_problem("mlp", (12,), 5, 1, hidden=[8])
    with pytest.raises(IndexError, match=said):
        NativeEngine(problem).train(change(made((12,), 5)), jobs_of(row, [400]), RECIPES["epochs"], 0.1)


@HERE
def test_rows_and_targets_of_another_size_are_not_read() -> None:
    problem, row = build_problem("mlp", (12,), 5, 1, hidden=[8])
    pool, engine = made((12,), 5), NativeEngine(problem)
    job = replace(jobs_of(row, [40])[0], start=row[:-1])
    with pytest.raises(IndexError, match=rf"seat 0: a row \[{len(row) - 1}\] for {len(row)} parameters"):
        engine.train(pool, [job], RECIPES["epochs"], 0.1)
    with pytest.raises(UserError, match=r"11 numbers.*12 inputs"):
        engine.score(row[None], Samples(pool.x[:, :11], pool.y))
    with pytest.raises(UserError, match=f"rows of {len(row) - 1} numbers for {len(row)} parameters"):
        engine.score(row[None, :-1], pool)
    problem, row = build_problem("mlp", (12,), None, 1, hidden=[8])
    pool = made((12,), None)
    with pytest.raises(IndexError, match=r"400.*400"):
        NativeEngine(problem).train(Samples(pool.x, pool.y.repeat(2)), jobs_of(row, [40]), RECIPES["epochs"], 0.1)


@HERE
@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16])
def test_samples_positions_and_rows_of_any_type_and_order(kind: torch.dtype) -> None:
    problem, row = build_problem("mlp", (12,), 5, 1, hidden=[8])
    plain = made((12,), 5)
    whole = torch.zeros(2 * len(plain), 36, dtype=kind)
    whole[::2, ::3] = plain.x.to(kind)
    pool, jobs = Samples(whole[::2, ::3], plain.y), jobs_of(row, [61, 27])
    batches = np.array([[3, 1], [26, -1], [5, 5]])
    jobs[1] = replace(jobs[1], index=jobs[1].index.int(), drawn=Drawn(batches.astype(np.int32), 1))
    jobs.append(replace(jobs[0], index=jobs[0].index.flip(0), start=torch.stack([row, -row], 1)[:, 0].double()))
    same = [replace(job, index=job.index.long(), start=row) for job in jobs]
    same[1] = replace(same[1], drawn=Drawn(batches, 1))
    found = NativeEngine(problem).train(pool, jobs, RECIPES["decay"], 0.05)
    agree(found, oracle(problem, Samples(plain.x.to(kind).float(), plain.y), same, RECIPES["decay"]))


@pytest.mark.slow
@pytest.mark.by_turns(3, 1)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler")
@HERE
def test_tiles_of_sixteen_lanes_on_any_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # as for processors with AVX-512, the compiler making two vectors of each
    text = (SOURCES / "seats.c").read_text()
    for wide, any_ in [('"avx512f,avx2,fma"', '"avx2,fma"'), ('supports("avx512f")', 'supports("avx2")')]:
        assert wide in text
        text = text.replace(wide, any_)
    (tmp_path / "seats.c").write_text(text)
    shutil.copy(SOURCES / "tiles.h", tmp_path)
    out = tmp_path / "seats.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", out, tmp_path / "seats.c", "-lm"], check=True)
    monkeypatch.setattr(native.importlib.util, "find_spec", lambda name: type("Spec", (), {"origin": str(out)}))
    wide = native.library.__wrapped__()
    assert not isinstance(wide, str)
    if wide.hanse_use_vectors(b"avx512"):
        pytest.skip("a processor without AVX2")
    monkeypatch.setattr(native, "library", lambda: wide)
    for name, options in MODELS.values():
        problem, row = build_problem(name, (3, 4), 5, 1, **options)
        pool, jobs = made((3, 4), 5), jobs_of(row, SIZES["ragged"], **TERMS["some"])  # type: ignore[arg-type]
        trained = NativeEngine(problem).train(pool, jobs, RECIPES["decay"], 0.05)
        agree(trained, oracle(problem, pool, jobs, RECIPES["decay"]))
