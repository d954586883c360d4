"""Checks, before round 0, that a module fits the data and that an engine computes the same as the module.

:func:`why_unfit` runs a module on a few samples and says what is wrong. :func:`settle` makes the chosen engine,
compares it with the module itself, and falls back to the sequential engine if they differ.

Fast training and scoring rely on layers read from a module. A reading error would train a different network, so each
engine is compared with the module as PyTorch runs it and autograd trains it (:func:`the_module`). A comparison takes a
few steps on a few samples, uses no stream of the run, and leaves the template and all generators unchanged.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from hanse.base.errors import RAISED, UserError, first_line, gated
from hanse.base.pytorch import Tensor, nn, torch
from hanse.base.streams import stream
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.data.sources import cache_dir
from hanse.learning.coalitions import UpdateGame
from hanse.learning.engines import EngineChoice, make_engine
from hanse.learning.job import Engine, Problem, SeatJob, smallest_batch
from hanse.learning.local import Precision, Trainer, gradients_of, loss_of
from hanse.learning.process import processor, untouched
from hanse.learning.scoring import outcomes_of


def the_module(problem: Problem, device: torch.device, precision: Precision = "float32") -> Trainer:
    """Return what trains and runs the module itself, one seat or row after another: what engines are compared with."""
    # images have their channels last only for bf16, where summing in another order changes the numbers noticeably
    return Trainer(replace(problem, plain=precision == "float32"), device, precision=precision)


def _losses(plain: Trainer, row: Tensor, samples: Samples) -> Tensor:
    """Return a row's loss on each sample, float64 ``[n]``, in evaluation mode."""
    plain.load(row)
    with torch.no_grad():
        return outcomes_of(plain.problem, plain.outputs, samples.x, samples.y.to(plain.device))[0][0].cpu().double()


def _loss(plain: Trainer, samples: Samples) -> Tensor:
    """Return the mean loss of a batch under the module's current weights, a scalar with gradients."""
    return loss_of(plain.problem, _put_out(plain, samples.x), samples.y.to(plain.device))


def _put_out(plain: Trainer, x: Tensor) -> Tensor:
    """Return the module's outputs on inputs ``x [n, ...]``: real numbers as float32, anything else as it is."""
    output = plain.run(x)
    return output.float() if isinstance(output, Tensor) and output.is_floating_point() else output


def _gentle(plain: Trainer, samples: Samples, row: Tensor) -> float:
    """Return a learning rate by which no parameter moves far at the first step, whatever the scale of the samples.

    It is at most 0.1, and so small that no parameter moves by more than 0.1 along its gradient.
    """
    trained = [p for p in plain.load(row).train().parameters() if p.requires_grad]
    gradients = gradients_of(_loss(plain, samples), trained)
    steepest = max(float(g.abs().max()) for g in gradients if g.numel())
    return 0.1 / max(1.0, steepest) if math.isfinite(steepest) else 0.1


_FITTED = 4  # samples that a module is tried on


def why_unfit(
    problem: Problem, samples: Samples, num_classes: int | None, device: torch.device | str = "cpu"
) -> str | None:
    """Return why a module cannot be trained on such samples, or None.

    The module must take samples in evaluation and in training mode, and give each an output of the right shape.

    Args:
        problem: the model and its loss (:class:`hanse.learning.job.Problem`).
        samples: the data; the first four are used.
        num_classes: how many outputs a sample needs. None: regression, which needs one output for each number of the
            target.
        device: where the module is run.

    Returns:
        One line of text to put after the model's name, such as "gives outputs of shape [4, 2] for 4 samples; ...".
    """
    device = torch.device(device)
    few = Samples(samples.x[:_FITTED], samples.y[:_FITTED], samples.inputs)
    plain = the_module(problem, device)
    shape = few.inputs.shapes if few.inputs else list(few.x.shape[1:])
    with untouched(device):
        try:
            with torch.no_grad():
                plain.module.eval()
                output = _put_out(plain, few.x)
        except RAISED as error:  # a user's module may raise anything, and that is the reason
            hint = "" if few.x.is_floating_point() else "; these are whole numbers (tokens), features must be float32"
            if re.search("dtype|scalar type|Input type", why := first_line(error)):
                hint = hint or "; weights are float32 here: forward must not make its inputs another type"
            return f"cannot take samples of shape {shape} ({why}){hint}"
        wrong = _wrong_form(output, few, num_classes, problem.one_output)
        # with fewer samples than the model can train on there is nothing more to try
        if wrong is not None or len(few) < smallest_batch(problem):
            return wrong
        try:
            row, before = problem.layout.flatten(plain.module), _beside(plain.module)
            plain.module.train()
            loss = _loss(plain, few)
            untracked = _untracked(loss, plain.module)
            gradients_of(loss, [p for p in plain.module.parameters() if p.requires_grad])
            changed = [name for name, kept in _beside(plain.module).items() if before.get(name) != kept]
            problem.layout.load(plain.module.eval(), row)
            with torch.no_grad():
                after = _put_out(plain, few.x)
        except RAISED as error:
            return f"takes samples of shape {shape}, but cannot train on them ({first_line(error)})"
    if untracked:
        return (
            f"keeps weights of shape {', '.join(map(str, untracked[:3]))} that are no parameters of it, so nothing "
            "trains or sends them: nn.ModuleList, nn.ModuleDict or nn.Parameter makes them some"
        )
    if changed and bool(torch.isfinite(output).all()) and not torch.allclose(after, output, rtol=1e-4, atol=1e-6):
        return (
            f"keeps {', '.join(map(repr, changed[:3]))} beside its parameters: training changes it, and its outputs "
            "depend on it; only parameters and float buffers are sent: register_buffer makes a tensor one"
        )
    return None


def _untracked(loss: Tensor, module: nn.Module) -> list[list[int]]:
    """Return the shapes of weights that a loss has a gradient in and that are not among a module's parameters.

    PyTorch does not see modules and tensors in a plain list or dictionary, nor a tensor that is no nn.Parameter.
    """
    known = {id(p) for p in module.parameters()}
    met, waiting, shapes = set(), [loss.grad_fn], []
    while waiting:
        node = waiting.pop()
        if node is not None and node not in met:
            met.add(node)
            waiting += [before for before, _ in node.next_functions]
            leaf = getattr(node, "variable", None)
            if isinstance(leaf, Tensor) and id(leaf) not in known:
                shapes.append(list(leaf.shape))
    return shapes


def _beside(module: nn.Module) -> dict[str, str]:
    """Return what a module keeps beside the tensors of its row (attributes, integer buffers), by name.

    A tensor stands for itself by its identity and the number of times that PyTorch wrote into it.
    """
    usual = vars(nn.Module()).keys()
    kept = [
        (f"{place}.{name}" if place else name, value)
        for place, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in usual
    ]
    kept += [(name, buffer) for name, buffer in module.named_buffers() if not buffer.is_floating_point()]
    return {n: f"{id(v)} {v._version}" if isinstance(v, Tensor) else repr(v)[:10_000] for n, v in kept}


def _wrong_form(output: object, few: Samples, num_classes: int | None, one_output: bool) -> str | None:
    """Return what is wrong with the shape of a module's output on ``few`` samples, or None."""
    if not isinstance(output, Tensor):
        return f"returns a {type(output).__name__}; one tensor of outputs is needed"
    if not output.is_floating_point():
        kind = str(output.dtype).removeprefix("torch.")
        return f"gives outputs of type {kind}; a loss takes real numbers: output.real or output.float(), perhaps"
    got, n, places = list(output.shape), len(few), list(few.y.shape[1:])
    if one_output:
        fits, needed = got in ([n], [n, 1]), f"this loss takes one for each sample, [{n}, 1]: the logit of class 1"
    elif num_classes is None:
        fits = output.numel() == few.y.numel() and got[:1] == [n]
        needed = f"regression needs {few.y[0].numel()} for each sample, [{n}, {few.y[0].numel()}]"
    else:
        fits = [got[:1], got[2:]] == [[n], places] and len(got) > 1 and got[1] >= num_classes
        needed = f"one for each of the {num_classes} classes is needed, {[n, num_classes, *places]}"
        needed += "; with two classes, too (train.loss = 'bce' takes one)" if num_classes == 2 else ""
        # labels of shape [n, 1] are easily given by mistake
        needed += f" (labels of shape [{n}, 1] are texts of one position)" if places == [1] else ""
    return None if fits else f"gives outputs of shape {got} for {n} samples; {needed}"


_SAMPLES = 16  # the most that are compared: two seats' batches
_FEW = 4  # as many where the engine runs the module itself, and there is less to compare
_TRIES = 3  # a sound engine may be a little off where a ReLU's input is nearly zero, but not three times in a row
_TOLERANCE = 1e-4  # relative
_GRAIN = 1e-6  # of a row: by so much two ways of summing in float32 may differ
_ROUGH = 2e-2  # relative, for bfloat16 and for the products of CUDA devices
_SCORES = "does not score models as the module itself does"
_STEPS = Recipe(steps=2, batch_size=_SAMPLES, momentum=0.9, weight_decay=0.1, statistics="averaged")


def settle(
    choice: EngineChoice, problem: Problem, row: Tensor, samples: Samples, device: torch.device, precision: Precision
) -> tuple[EngineChoice, Problem, Engine, list[str]]:
    """Return the engine to use: the chosen engine, if it computes what the module computes.

    If it computes something else, or fails, the sequential engine and the problem ``plain`` are used instead, and a
    warning says so. Without samples nothing is compared, and nothing twice: what was found to agree stands in the
    user's cache folder.

    Args:
        choice: the engine that was chosen.
        problem: the model and its loss (:class:`hanse.learning.job.Problem`).
        row: the first row ``[P]``.
        samples: some of the run's samples.
        device: where models are trained.
        precision: the precision of forward passes.

    Returns:
        The choice, the problem and the engine to use, and warnings.

    Raises:
        UserError: the module's outputs in evaluation mode differ between two calls.
    """
    engine = make_engine(choice, problem, device, precision)
    key = _fingerprint(choice, problem, samples, device, precision)
    if not len(samples) or (key is not None and key in _agreed_before()):
        return choice, problem, engine, []
    try:
        wrong = disagreement(engine, problem, row, samples, device)
    except RAISED as error:  # if it is the module's own fault, the comparison below raises it again
        wrong = f"fails on the model ({first_line(error)})"
    if wrong is None:
        if key is not None:
            with suppress(OSError):  # a folder that cannot be written: engines are compared anew
                _agreed().parent.mkdir(parents=True, exist_ok=True)
                with _agreed().open("a") as lines:
                    lines.write(f"{key}\n")  # in one piece, behind what other processes write
        return choice, problem, engine, []
    engine.close()
    warning = f"warning: engine.train: {choice.engine!r} {wrong}; each model is trained and scored by the module itself"
    choice, problem = replace(choice, engine="sequential", graphs=False), replace(problem, plain=True)
    engine = make_engine(choice, problem, device, precision)
    with gated("model.name: the model, tried before round 0"):
        left = disagreement(engine, problem, row, samples, device)
    if left is None:
        return choice, problem, engine, [warning]
    if left == _SCORES:
        engine.close()
        raise UserError(
            "model.name: the model's outputs in evaluation mode differ from one time to the next: they must depend on "
            "samples, parameters and float buffers alone"
        )
    again = "warning: model.name: training the model from the same row gives another row each time"
    return choice, problem, engine, [again]


def _fingerprint(
    choice: EngineChoice, problem: Problem, samples: Samples, device: torch.device, precision: Precision
) -> str | None:
    """Return all that a comparison depends on as 64 hexadecimal digits: engine, layers, shapes, machine, and versions.

    None: the model has more than layers that are known, or computes on a card. It is compared before every run.
    """
    layers = problem.stack or problem.convolutions
    if layers is None or problem.objective is not None or problem.judge is not None or device.type != "cpu":
        return None
    digest = hashlib.sha256()
    for file in sorted(path for path in Path(__file__).parent.glob("**/*") if path.suffix in (".py", ".so", ".pyd")):
        digest.update(file.read_bytes())
    shapes = samples.x.shape[1:], samples.x.dtype, samples.y.shape[1:], samples.y.dtype, problem.layout.shapes
    machine = torch.__version__, torch.backends.cpu.get_cpu_capability(), processor()
    model = str(problem.module), layers, problem.layout.names, problem.frozen, problem.loss
    digest.update(str((choice.label, precision, model, shapes, machine)).encode())
    return digest.hexdigest()


def _agreed() -> Path:
    """Return the file of comparisons that found no difference, a fingerprint a line."""
    return cache_dir() / "agreed.txt"


def _agreed_before() -> Collection[str]:
    """Return the fingerprints of comparisons that found no difference. A damaged line is no fingerprint of anything."""
    try:
        return {*_agreed().read_text(errors="replace").split()}
    except OSError:
        return ()


def _case(problem: Problem, row: Tensor, samples: Samples, attempt: int) -> tuple[Samples, list[SeatJob]]:
    """Return a few samples and up to two seats that train on them.

    Momentum, weight decay, pull and tilt are all there, and differ from seat to seat.
    """
    draw = stream(0, "agreement", round=attempt)
    fast = problem.stack is not None or problem.side_by_side is not None
    index = torch.from_numpy(draw.permutation(len(samples))[: _SAMPLES if fast else _FEW])
    few = samples.take(index)
    half = -(-len(few) // 2)
    seats = [part for part in torch.split(torch.arange(len(few)), half) if len(part) >= smallest_batch(problem)]
    noise = [torch.from_numpy(draw.standard_normal((3, len(row)), dtype=np.float32)) for _ in seats]
    for one in noise:
        one[:, problem.layout.num_parameters :] = 0  # statistics stay as they are: a variance must be above zero
        if problem.frozen_columns is not None:
            one[0, problem.frozen_columns] = 0
    return few, [  # in place: rows may be large
        SeatJob(index, near.mul_(0.01).add_(row), (0, attempt, s, 0), away.mul_(0.1).add_(row), 0.5, slope.mul_(0.1))
        for s, (index, (near, away, slope)) in enumerate(zip(seats, noise, strict=True))
    ]


def disagreement(engine: Engine, problem: Problem, row: Tensor, samples: Samples, device: torch.device) -> str | None:
    """Return how an engine, its scorer or coalition values disagree with the module itself, or None.

    Three things are compared: rows and buffers after two steps from near ``row``, with momentum, weight decay, proximal
    pull and tilt; the loss of each sample in evaluation mode; and the values of coalitions. A difference counts if it
    occurs in each of three attempts with different samples and seats.

    Args:
        engine: the engine to compare.
        problem: the model and its loss (:class:`hanse.learning.job.Problem`).
        row: a row ``[P]``.
        samples: samples to draw a few from.
        device: where the module itself is run.
    """
    # engines without a precision of their own compute in float32, whatever the experiment says
    plain = the_module(problem, device, getattr(engine, "precision", "float32"))
    difference: str | None = None
    for attempt in range(_TRIES):
        with untouched(device):
            few, jobs = _case(problem, row, samples, attempt)
            rows = [row, *(job.start for job in jobs)]
            difference = (
                _scores_otherwise(engine, problem, plain, few, rows)
                or _values_otherwise(problem, plain, few, rows)
                or _trains_otherwise(engine, plain, few, jobs)
            )
        if difference is None:
            return None
    return difference


def _trains_otherwise(engine: Engine, plain: Trainer, few: Samples, jobs: Sequence[SeatJob]) -> str | None:
    """Return what differs after training, parameters or statistics, or None."""
    if not jobs:
        return None
    lr = _gentle(plain, few, jobs[0].start)
    expected = [plain.train(few, job, _STEPS, lr)[0].cpu() for job in jobs]
    got = engine.train(few, jobs, _STEPS, lr).rows.float().cpu()
    cut = plain.problem.layout.num_parameters
    for job, mine, theirs in zip(jobs, expected, got, strict=True):
        for part, what in ((slice(cut), "parameters"), (slice(cut, None), "statistics")):
            # what is compared is how far it moved; a difference below the row's own float32 precision is none
            grain = _GRAIN * float(mine[part].norm())
            if _far(theirs[part] - job.start[part], mine[part] - job.start[part], plain, grain):
                return f"trains to other {what} than the module itself"
    return None


def _scores_otherwise(
    engine: Engine, problem: Problem, plain: Trainer, few: Samples, rows: Sequence[Tensor]
) -> str | None:
    """Return that scores differ, or None: sample by sample, on all samples, and on lists for each model."""
    table, everything = torch.stack(list(rows)).to(plain.device), torch.arange(len(few))
    # models that can be stacked are always scored in float32
    judge = plain if problem.stack is None else the_module(problem, plain.device)
    expected = torch.stack([_losses(judge, row, few) for row in rows])
    each = np.stack([scores.loss for scores in engine.score_each(table, few, torch.split(everything, 1))], axis=1)
    means = [engine.score(table, few).loss, engine.score(table, few, [everything] * len(rows)).loss]
    pairs = [(each, expected), *((mean, expected.mean(1)) for mean in means)]
    return _SCORES if any(_far(torch.from_numpy(got), wanted, plain) for got, wanted in pairs) else None


def _values_otherwise(problem: Problem, plain: Trainer, few: Samples, rows: Sequence[Tensor]) -> str | None:
    """Return that coalitions' values differ from those of models averaged row by row, or None.

    Models that no fast way can score have nothing to compare.
    """
    if problem.stack is None and problem.side_by_side is None:
        return None
    table = torch.stack(list(rows)).to(plain.device)
    game = UpdateGame(problem, table[1:], table[0], [1.0] * (len(rows) - 1), few)
    clubs = [frozenset(range(k)) for k in range(len(rows))]
    mixed = [rows[0], *(torch.stack(list(rows[1 : k + 1])).mean(0) for k in range(1, len(rows)))]
    judge = the_module(problem, plain.device)
    worth = torch.stack([-_losses(judge, row, few).mean() for row in mixed])
    far = _far(torch.tensor(game.many(clubs), dtype=torch.float64), worth, plain)
    return "does not value coalitions as the module itself does" if far else None


def _far(got: Tensor, expected: Tensor, plain: Trainer, grain: float = _GRAIN) -> bool:
    """Say whether finite numbers are further apart, in the Euclidean norm, than rounding explains.

    Where the module itself is not finite, nothing is compared. ``grain`` is the absolute difference that is always
    allowed.
    """
    rough = plain.precision == "bf16" or plain.device.type == "cuda"
    sure = torch.isfinite(expected)
    gap, scale = (got - expected)[sure].norm(), expected[sure].norm()
    return not float(gap) <= (_ROUGH if rough else _TOLERANCE) * float(scale) + grain  # a gap of NaN is far, too
