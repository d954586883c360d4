"""Steps as CUDA graphs, without a card: a stand-in records operators and addresses as a graph does, and steps on
tensors without values show that nothing asks for one.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hanse.base.errors import UserError
from hanse.core.recipe import Recipe
from hanse.learning import stacked
from hanse.learning.batches import Batches, Segment, plan_seats
from hanse.learning.engines import choose
from hanse.learning.job import TrainedRows
from hanse.learning.models import build_problem
from hanse.learning.stacked import Graphs, Program, StackedEngine
from tests.learning.helpers import jobs_of, made


class Recorder(TorchDispatchMode):
    """Keeps every operator with the very tensors that it read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        self.launched.append((function, args, kwargs or {}, found))
        return found

    def replay(self) -> None:
        """Launch everything again on the same addresses: no Python of the recorded function runs."""
        for function, args, kwargs, before in self.launched:
            for old, new in zip(tree_leaves(before), tree_leaves(function(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def recording(made_graphs: list[Recorder]) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Return a stand-in for the capture of a graph, which undoes what the recorded function did to its tensors."""

    def capture(work: Callable[[], None]) -> Callable[[], None]:
        recorder = Recorder()
        found = [cell.cell_contents for cell in work.__closure__ or ()]
        [bound] = [value for value in found if hasattr(value, "parameters")]
        written = [*bound.parameters, *bound.velocity, bound.loss.total]
        kept = [tensor.clone() for tensor in written]
        with recorder:
            work()
        for tensor, value in zip(written, kept, strict=True):
            tensor.copy_(value)
        made_graphs.append(recorder)
        return recorder.replay

    return capture


def rounds(engine: StackedEngine, mu: float, lrs: list[float]) -> list[TrainedRows]:
    """Train rounds of the same shapes on other samples, from other rows, pulled to other centres."""
    _, row = build_problem("mlp", (6,), 4, 0, hidden=[5])
    pool = made((6,), 4, n=400)
    found = []
    for round, lr in enumerate(lrs):
        jobs = [
            dataclasses.replace(job, index=(job.index + 40 * round) % 400, key=(3, round, s, 0), mu=mu)
            for s, job in enumerate(jobs_of(row + 0.1 * round, [30, 30, 17], mu=1.0))
        ]
        found.append(engine.train(pool, jobs, Recipe(epochs=2, batch_size=10, momentum=0.5), lr))
    return found


def engines(monkeypatch: pytest.MonkeyPatch) -> tuple[StackedEngine, StackedEngine, list[Recorder]]:
    problem, _ = build_problem("mlp", (6,), 4, 0, hidden=[5])
    made_graphs: list[Recorder] = []
    monkeypatch.setattr(stacked, "Graphs", lambda: Graphs(recording(made_graphs)))
    return StackedEngine(problem, threads=1, graphs=True), StackedEngine(problem, threads=1), made_graphs


@pytest.mark.parametrize("mu", [0.0, 0.3], ids=["plain", "pulled"])
def test_replayed_rounds_have_the_same_bits(mu: float, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, plain, recorded = engines(monkeypatch)
    lrs = [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.1]
    for ours, theirs in zip(rounds(graphs, mu, lrs), rounds(plain, mu, lrs), strict=True):
        assert torch.equal(ours.rows, theirs.rows)
        assert ours.loss.tolist() == theirs.loss.tolist()
    # a round has two segments (with three seats, then with two): recorded for each rate when it came a second time
    segments = len(recorded) // 2
    assert segments * 2 == len(recorded)
    assert segments >= 2


class OneDevice(TorchDispatchMode):
    """Refuses operators with tensors of another device than ``meta``, which tells Python no value, as a card."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for value in tree_leaves([args, kwargs, found]):
            assert not isinstance(value, Tensor) or value.device.type == "meta", f"{function} reads the processor's"
        return found


@pytest.mark.parametrize("model", ["logistic", "mlp", "mlp with batch norm"])
def test_a_step_needs_nothing_of_the_processor(model: str) -> None:
    """No operator of a step has a tensor elsewhere or asks for a value: neither could be recorded."""
    options = {"hidden": [5]} if "mlp" in model else {}
    options |= {"batch_norm": True} if "norm" in model else {}
    problem, row = build_problem(model.split()[0], (6,), 4, 0, **options)
    recipe, meta = Recipe(epochs=1, batch_size=10, momentum=0.5), torch.device("meta")
    jobs = jobs_of(row, [30, 30], mu=0.3)
    batches = Batches.of(plan_seats(jobs, recipe, 2), meta, torch.float32)
    program = Program(problem, 2, 10, meta, torch.float32)
    program.start(jobs, recipe)
    [(begin, end, active, width)] = batches.segments
    bound = program.bind(active, width)
    x = torch.empty((60, 6), device=meta)
    y = torch.zeros((end - begin, active, 1, width), dtype=torch.int64, device=meta)
    taken = batches.samples[begin:end].reshape(end - begin, -1)
    weights, tally = (part[begin:end].unsqueeze(2) for part in (batches.weights, batches.tally))
    with torch.no_grad(), OneDevice():
        paces = batches.paces[begin:end, :, None, None]
        stacked.take_steps(bound, x, Segment(taken, y, weights, tally, paces, batches.reports), 0.5, 0.1)
    assert any(batches.reports)


def test_where_there_are_no_graphs() -> None:
    problem, row = build_problem("mlp", (6,), 4, 0, hidden=[5])

    def chosen(**given: Any) -> Any:
        return choose(problem, row, Recipe(), made((6,), 4, n=4), seats=5, batch=10, graphs=True, **given)

    assert chosen(device="cuda").graphs
    assert chosen(device="cuda").label == "stacked (1 thread, CUDA graphs)"
    with pytest.raises(UserError, match=r"engine.graphs.*'cpu'"):
        chosen()
    with pytest.raises(UserError, match=r"engine.graphs.*'sequential'"):
        chosen(device="cuda", train="sequential")
    with pytest.raises(UserError, match=r"engine.workers.*'stacked'"):
        chosen(device="cuda", workers=2)
