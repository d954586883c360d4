"""Does an engine compute what the module computes? Compared once, before round 0, on a few samples.

The fast ways to train and score rest on what is read off a module. What is read wrongly would be another network than
the user's, so each way is held against the module itself; the comparison draws from no stream of the run and leaves
the template as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hanse.base.errors import UserError, first_line
from hanse.base.streams import stream
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.coalitions import Coalitions
from hanse.learning.convolutions import read_convolutions
from hanse.learning.engines import Choice, make_engine
from hanse.learning.job import Engine, Problem, SeatJob, smallest_batch
from hanse.learning.local import Precision
from hanse.learning.program import read_stack
from hanse.learning.reference import Plain, untouched

__all__ = ["disagreement", "settle"]

_SAMPLES = 16  # at most so many are compared: two seats' batches
_FEW = 4  # where the engine runs the module itself, and there is less to compare
_TRIES = 3  # a sound engine may miss by a hair where a ReLU's input is all but zero: not three times
_TOLERANCE = 1e-4
_GRAIN = 1e-6  # of a row: what two ways of adding up in float32 may differ by
_ROUGH = 2e-2  # bfloat16, and the products of CUDA devices
_SCORES = "scores models otherwise than the module itself"
_STEPS = Recipe(steps=2, batch_size=_SAMPLES, momentum=0.9, weight_decay=0.1)


def settle(
    choice: Choice,
    problem: Problem,
    row: Tensor,
    samples: Samples,
    device: torch.device,
    precision: Precision,
) -> tuple[Choice, Problem, Engine, list[str]]:
    """Return the chosen engine, made and compared with the module itself on ``samples``; see :func:`disagreement`.

    Where they differ, or the engine fails, the choice becomes the sequential engine, the problem ``plain``, and a
    warning says so. Without samples nothing is compared. Raises UserError for a module that scores differently each
    time it is asked.
    """
    engine = make_engine(choice, problem, device, precision)
    if not len(samples):
        return choice, problem, engine, []
    try:
        wrong = disagreement(engine, problem, row, samples, device)
    except Exception as error:  # the plain path, which follows, raises what is the module's own
        wrong = f"fails on the model ({first_line(error)})"
    if wrong is None:
        return choice, problem, engine, []
    engine.close()
    said = f"warning: engine.train: {choice.engine!r} {wrong}; each model is trained and scored by the module itself"
    choice, problem = replace(choice, engine="sequential"), replace(problem, plain=True)
    engine = make_engine(choice, problem, device, precision)
    left = disagreement(engine, problem, row, samples, device)
    if left is None:
        return choice, problem, engine, [said]
    if left == _SCORES:
        engine.close()
        raise UserError(
            "model.name: the model's outputs in evaluation mode differ from one time to the next: they must depend on "
            "samples, parameters and float buffers alone"
        )
    again = "warning: model.name: training the model from the same row gives another row each time"
    return choice, problem, engine, [again]


def _case(problem: Problem, row: Tensor, samples: Samples, attempt: int) -> tuple[Samples, list[SeatJob]]:
    """Return a few samples and up to two seats that train on them with every term there is, each its own way."""
    draw = stream(0, "agreement", round=attempt)
    fast = read_stack(problem) is not None or read_convolutions(problem) is not None
    index = torch.from_numpy(draw.permutation(len(samples))[: _SAMPLES if fast else _FEW])
    few = samples.take(index)
    half = -(-len(few) // 2)
    seats = [part for part in torch.split(torch.arange(len(few)), half) if len(part) >= smallest_batch(problem)]
    noise = [torch.from_numpy(draw.standard_normal((3, len(row)), dtype=np.float32)) for _ in seats]
    for one in noise:
        one[:, problem.layout.num_parameters :] = 0  # statistics: a variance must stay above zero
        if problem.held is not None:
            one[0, problem.held] = 0
    return few, [
        SeatJob(index, row + 0.01 * near, (0, attempt, s, 0), row + 0.1 * away, 0.5, 0.1 * slope)
        for s, (index, (near, away, slope)) in enumerate(zip(seats, noise, strict=True))
    ]


def disagreement(engine: Engine, problem: Problem, row: Tensor, samples: Samples, device: torch.device) -> str | None:
    """Return what an engine, its scorer or coalition values compute otherwise than the module itself, or None.

    Compared are rows and buffers after two steps from near ``row [P]``, with momentum, weight decay, proximal term and
    tilt, and each sample's loss in evaluation mode.
    """
    # engines without a precision of their own compute in float32, whatever the experiment says
    plain = Plain.of(problem, device, getattr(engine, "precision", "float32"))
    found: str | None = None
    for attempt in range(_TRIES):
        with untouched(device):
            few, jobs = _case(problem, row, samples, attempt)
            found = _scores_otherwise(engine, plain, few, [row, *(job.start for job in jobs)])
            found = found or _values_otherwise(plain, few, [row, *(job.start for job in jobs)])
            found = found or _trains_otherwise(engine, plain, few, jobs)
        if found is None:
            return None
    return found


def _trains_otherwise(engine: Engine, plain: Plain, few: Samples, jobs: Sequence[SeatJob]) -> str | None:
    if not jobs:
        return None
    lr = plain.gentle(few, jobs[0].start)
    expected = [plain.train(few, job, _STEPS, lr) for job in jobs]
    got = engine.train(few, jobs, _STEPS, lr).rows.float().cpu()
    cut = plain.problem.layout.num_parameters
    for job, mine, theirs in zip(jobs, expected, got, strict=True):
        for part, what in ((slice(cut), "parameters"), (slice(cut, None), "statistics")):
            # how far it moved is compared; what float32 cannot hold of the row is no difference
            grain = _GRAIN * float(mine[part].norm())
            if _far(theirs[part] - job.start[part], mine[part] - job.start[part], plain, grain):
                return f"trains to other {what} than the module itself"
    held = plain.problem.held
    if held is not None and any(
        not torch.equal(row[held], job.start[held]) for row, job in zip(got, jobs, strict=True)
    ):
        return "moves frozen parameters"
    return None


def _scores_otherwise(engine: Engine, plain: Plain, few: Samples, rows: Sequence[Tensor]) -> str | None:
    table, everything = torch.stack(list(rows)).to(plain.device), torch.arange(len(few))
    each = engine.score_each(table, few, torch.split(everything, 1))
    got = torch.from_numpy(np.stack([scores.loss for scores in each], axis=1))
    whole = torch.from_numpy(engine.score(table, few).loss)
    own = torch.from_numpy(engine.score(table, few, [everything] * len(rows)).loss)
    stacked = read_stack(plain.problem) is not None  # these are scored in float32 always
    expected = torch.stack([plain.losses(row, few, "float32" if stacked else plain.precision) for row in rows])
    mean = expected.mean(1)
    return _SCORES if any(_far(a, b, plain) for a, b in ((got, expected), (whole, mean), (own, mean))) else None


def _values_otherwise(plain: Plain, few: Samples, rows: Sequence[Tensor]) -> str | None:
    if read_stack(plain.problem) is None and read_convolutions(plain.problem) is None:
        return None
    table = torch.stack(list(rows)).to(plain.device)
    game = Coalitions(plain.problem, table[1:], table[0], [1.0] * (len(rows) - 1), few)
    clubs = [frozenset(range(k)) for k in range(len(rows))]
    mixed = [rows[0], *(torch.stack(list(rows[1 : k + 1])).mean(0) for k in range(1, len(rows)))]
    worth = torch.stack([-plain.losses(row, few, "float32").mean() for row in mixed])
    far = _far(torch.tensor(game.many(clubs), dtype=torch.float64), worth, plain)
    return "values coalitions otherwise than the module itself" if far else None


def _far(got: Tensor, expected: Tensor, plain: Plain, grain: float = _GRAIN) -> bool:
    """Say whether finite numbers are further apart (in the Euclidean norm) than rounding explains."""
    rough = plain.precision == "bf16" or plain.device.type == "cuda"
    sure = torch.isfinite(expected)
    gap, scale = (got - expected)[sure].norm(), expected[sure].norm()
    return not float(gap) <= (_ROUGH if rough else _TOLERANCE) * float(scale) + grain
