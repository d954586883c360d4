"""Chooses the engine by a rule over the model's kind, seats, threads and device, without timing anything.

:func:`choose` determines the kind of a model and returns an :class:`EngineChoice` with its reasons. :func:`rule` is the
rule itself, over plain numbers. :func:`make_engine` makes the engine. An experiment's ``[engine]`` table overrides any
part of the choice.

``docs/engines.md`` explains the rule's figures and limits; ``benchmarks/engines.py`` compares it with every other
setting on your machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from hanse.base.errors import UserError
from hanse.base.pytorch import Tensor, nn, torch
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.job import Engine, Problem
from hanse.learning.local import Precision, has_convolutions
from hanse.learning.native.engine import CACHED, NativeEngine, why_not_native, worth_for_images
from hanse.learning.sequences import is_text
from hanse.learning.sequential import SequentialEngine

Kind = Literal["dense", "conv", "layers", "images", "texts", "batched", "other"]

_A_THREAD = 1_000_000  # multiplications of a step from which one more thread pays
_MOST = 4  # threads of one program: with more than these nothing has been measured
_LARGE = 8_000_000  # multiplications of a seat's step from which its operators outweigh Python's part
_IN_WORDS: dict[Kind, str] = {
    "dense": "linear layers with ReLU or tanh",
    "conv": "convolutions that compiled code trains",
    "layers": "layers that can be stacked",
    "images": "convolutions",
    "texts": "texts or recurrent layers",
    "batched": "layers that torch.func can batch",
    "other": "a model or training that only the module itself can do",
}
_FEW = 8  # seats from which batching by torch.func pays for what it costs
_PAYLOAD = "it cannot add the loss of the payload that the mechanism sends with its training tasks"
_OWN_LOOP = "the training loop of train.loop runs the module itself"
_SGD_ONLY = "its steps are SGD's, and train.optimizer asks for others"


@dataclass(frozen=True)
class EngineChoice:
    """An engine and its settings.

    Attributes:
        engine: "native", "stacked", "vmapped" or "sequential".
        threads: intra-op threads of one program.
        workers: how many threads train at the same time, each its own seats. If above 1, ``threads`` is 1.
        why: lines that explain the choice. They do not count for ``==``.
        graphs: whether steps are recorded as CUDA graphs.
    """

    engine: str
    threads: int
    workers: int
    why: Sequence[str] = field(default=(), compare=False)
    graphs: bool = False

    @property
    def label(self) -> str:
        """The choice in words, such as "stacked (2 threads)"."""
        if self.workers > 1:
            return f"{self.engine} ({self.workers} seats side by side, 1 thread each)"
        graphs = ", CUDA graphs" if self.graphs else ""
        return f"{self.engine} ({self.threads} thread{'s' if self.threads > 1 else ''}{graphs})"


def rule(kind: Kind, seats: int, work: int, cores: int, device: str = "cpu", engine: str = "auto") -> EngineChoice:
    """Return the engine for a round.

    Args:
        kind: "dense" (linear layers that compiled code can train here), "conv" (convolutions that it can train here),
            "layers" (a sequence of known layers), "images" (other 2-d convolutions), "texts" (a label at every
            position, or recurrent layers), "batched" (any other module that ``torch.func`` can batch), or "other".
        seats: how many seats train in a round.
        work: an estimate of the multiplications in one seat's step: its batch size times P.
        cores: the largest number of threads.
        device: "cpu" or "cuda".
        engine: an engine that is used whatever the rule says; the rule then only chooses its threads. "auto": the rule
            chooses.

    Examples:
        >>> rule("dense", seats=10, work=32 * 40_000, cores=4).label
        'native (4 seats side by side, 1 thread each)'
        >>> rule("images", seats=10, work=32 * 40_000, cores=4).label
        'sequential (4 seats side by side, 1 thread each)'
    """
    large, card = kind in ("conv", "images", "texts") or work >= _LARGE, device != "cpu"
    if engine == "auto":
        batches = kind == "batched" and (seats > 1 if card else seats >= _FEW and not large)
        by_kind = {"dense": "native", "conv": "native", "layers": "stacked"}
        engine = by_kind.get(kind, "vmapped" if batches else "sequential")
    if card:
        return EngineChoice(engine, 1, 1, graphs=engine == "stacked" and device == "cuda")
    if engine == "native":  # one thread trains a seat, so there are no more threads than seats
        return EngineChoice(engine, 1, max(1, min(cores, seats, cores if large else seats * work // _A_THREAD)))
    if engine != "sequential":  # one program for all seats: its operators are split over threads
        return EngineChoice(engine, _threads(seats * work, cores), 1)
    if seats == 1:
        return EngineChoice(engine, _threads(work, cores) if large else 1, 1)
    # threads that run small operators would mostly wait for Python's lock
    return EngineChoice(engine, 1, min(cores, seats) if large else 1)


def _threads(work: int, cores: int) -> int:
    """Return how many threads a program with ``work`` multiplications a step is worth, at most ``cores``."""
    return max(1, min(cores, _MOST, work // _A_THREAD))


def choose(
    problem: Problem,
    initial: Tensor,
    recipe: Recipe,
    few: Samples,
    *,
    seats: int,
    batch: int,
    train: str = "auto",
    threads: int | None = None,
    workers: int | None = None,
    device: torch.device | str = "cpu",
    precision: Precision = "float32",
    payload: bool = False,
    own_loop: bool = False,
    graphs: bool | None = None,
) -> EngineChoice:
    """Return the engine for a run's rounds, with the reasons for it.

    Args:
        problem: the model and its loss (:class:`hanse.learning.job.Problem`).
        initial: the first row ``[P]``. With ``few``, it is used to try whether ``torch.func`` can batch the model.
        recipe: how clients train.
        few: some samples.
        seats: how many seats train in a round.
        batch: the seats' batch size.
        train: the requested engine. "auto": the rule chooses.
        threads: the requested number of intra-op threads. None: the rule chooses, or 1 if ``workers`` is given.
        workers: the requested number of worker threads. None: the rule chooses, or 1 if ``threads`` is given.
        device: where models are trained.
        precision: "bf16" for forward passes in bfloat16, which only the sequential engine has.
        payload: whether the mechanism sends a payload with its training tasks. A payload may add its own loss, so seats
            with a payload are not trained in one program.
        own_loop: whether the user's own training loop trains the seats, on the module itself.
        graphs: whether to record training steps as CUDA graphs. None: the rule decides.

    Raises:
        UserError: the requested engine cannot train this model, has no workers, several workers have more than one
            thread each, graphs are requested but impossible, or another engine than "sequential" would compute in bf16.
    """
    if threads and workers and threads > 1 and workers > 1:
        raise UserError(f"engine.threads is {threads} and engine.workers {workers}; several workers use 1 thread each")
    device = torch.device(device).type
    unfit = _OWN_LOOP if own_loop else _PAYLOAD if payload else _SGD_ONLY if recipe.optimizer != "sgd" else None
    kind, unable = _kind(problem, initial, few, unfit, train, device)
    notes = [f"{engine}: {reason}" for engine, reason in unable.items()]
    if train in unable:
        raise UserError(f"engine.train is {train!r}, but it cannot train this model: {unable[train]}")
    cores = torch.get_num_threads()  # what PyTorch may use (OMP_NUM_THREADS), not what the machine has
    choice = rule(kind, seats, batch * problem.layout.num_parameters, cores, device, train)
    if threads or workers:
        if choice.engine == "native":  # it has workers only: engine.threads means them, too
            threads, workers = 1, threads if workers in (None, 1) else workers
        choice = replace(choice, threads=threads or 1, workers=workers or 1)
    if choice.workers > 1 and choice.engine in ("stacked", "vmapped"):
        raise UserError(
            f"engine.workers is {choice.workers}, but engine {choice.engine!r} trains all seats in one program: set "
            "engine.threads, or leave it out"
        )
    if graphs and (device != "cuda" or choice.engine != "stacked"):
        raise UserError(
            f"engine.graphs is true, but the engine is {choice.engine!r} on the device {device!r}; only 'stacked' on a "
            "CUDA device has graphs"
        )
    choice = replace(choice, graphs=choice.graphs if graphs is None else graphs)
    if precision == "bf16" and choice.engine != "sequential":
        raise UserError(
            f"engine.precision is 'bf16', but engine {choice.engine!r} computes in float32; allowed: leave it out, or "
            "engine.train = 'sequential'"
        )
    if train == "auto" and kind == "batched" and choice.engine != "vmapped":
        notes.append(f"vmapped: it pays with at least {_FEW if device == 'cpu' else 2} seats a round, and short steps")
    given = (
        f"{seats} seat{'s' if seats > 1 else ''} a round, at most {cores} thread{'s' if cores > 1 else ''}, {device}"
    )
    return replace(choice, why=[*notes, f"{choice.label}: for {_IN_WORDS[kind]}, {given}"])


def _kind(
    problem: Problem, initial: Tensor, few: Samples, unfit: str | None, train: str, device: str
) -> tuple[Kind, dict[str, str]]:
    """Return the kind of a model, and for each engine that cannot train it the reason.

    ``unfit`` is the reason why none of the engines that train seats together can, or None; ``train`` is the engine that
    is asked for, whose reasons are looked for even where the rule would not choose it.
    """
    module = problem.module
    texts = is_text(few) or any(isinstance(m, nn.RNNBase) for m in module.modules())
    plain: Kind = "images" if has_convolutions(module) else "texts" if texts else "other"
    if unfit:
        return plain, {"native": unfit, "stacked": unfit, "vmapped": unfit}
    unable, stacks = {}, problem.stack is not None
    no_native = why_not_native(problem) if device == "cpu" else "it trains on the CPU"
    if no_native is not None and (stacks or train == "native"):
        unable["native"] = no_native
    if not stacks:
        unable["stacked"] = "the model is not a sequence of layers that can be stacked"
    if plain == "images" and no_native is None and (train == "native" or worth_for_images(problem)):
        return "conv", unable
    # trying takes two engines a step each, so it is done only where the answer can change the choice
    tried = train == "auto" and not stacks and (plain == "other" or (plain == "images" and device != "cpu"))
    if tried or train == "vmapped":
        from hanse.learning.vmapped import why_not_vmapped

        reason = why_not_vmapped(problem, initial, few)
        if reason:
            unable["vmapped"] = reason
    if stacks:
        parameters = problem.layout.num_parameters
        small = parameters <= CACHED or train == "native"
        if no_native is None and not small:
            unable["native"] = f"it has {parameters:,} parameters, more than the {CACHED:,} up to which it is chosen"
        return "dense" if no_native is None and small else "layers", unable
    return "batched" if tried and "vmapped" not in unable else plain, unable


def same_bits(device: torch.device) -> None:
    """Make convolutions on a CUDA device compute in float32 and in a fixed order. On other devices, do nothing.

    By default PyTorch rounds the inputs of convolutions to 10 bits (TF32), so that rows differ from the CPU's by 1e-3.
    It may also vary the order of sums. The setting is cuDNN's, for the whole process.
    """
    if device.type == "cuda":
        cudnn = torch.backends.cudnn
        cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = False, True, False


def make_engine(
    choice: EngineChoice, problem: Problem, device: torch.device | str = "cpu", precision: Precision = "float32"
) -> Engine:
    """Return the chosen engine.

    Args:
        choice: the choice of :func:`choose` or :func:`rule`.
        problem: the model and its loss (:class:`hanse.learning.job.Problem`).
        device: the device on which models are trained and scored. (The native engine always works on the CPU.)
        precision: "bf16" for forward passes in bfloat16. It matters only for the sequential engine.

    Raises:
        UserError: there is no engine of this name.
    """
    device = torch.device(device)
    same_bits(device)
    match choice.engine:
        case "native":
            return NativeEngine(problem, choice.workers)
        case "stacked":
            from hanse.learning.stacked import StackedEngine  # late: the usual engine is another

            return StackedEngine(problem, device, choice.threads, graphs=choice.graphs)
        case "vmapped":
            from hanse.learning.vmapped import VmappedEngine

            return VmappedEngine(problem, device, choice.threads)
        case "sequential":
            return SequentialEngine(problem, device, choice.threads, choice.workers, precision)
    raise UserError(f"engine is {choice.engine!r}; allowed: native, stacked, vmapped, sequential")


_DEVICES = "allowed: 'auto', 'cpu', 'cuda', 'cuda:0'"


def pick_device(name: str) -> torch.device:
    """Return the device of this name. "auto" is CUDA if there is a CUDA device, and the CPU otherwise.

    Raises:
        UserError: PyTorch does not know such a device, or this machine has none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"device is {name!r}; {_DEVICES}") from error
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise UserError(f"device is {name!r}; {_DEVICES}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device is {name!r}, but this PyTorch sees no CUDA device; use 'auto' or 'cpu'")
    return device
