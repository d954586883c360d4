"""The compiled functions of ``seats.c`` for Python: the native engine, and models' outputs for other scorers.

:func:`library` loads them, or says why they are missing: hanse can be installed without a compiler.
:func:`why_not_native` says whether they can train a model. :class:`NativeOutputs` runs one model at a time, or mixtures
that begin with a convolution; :class:`NativeEngine` trains whole seats, in parallel threads. Compiled code reads any
address that it is given, so all sizes and positions are checked here first.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from hanse.base.pytorch import Tensor, nn, torch
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.batches import SeatPlan, deal_seats, flat, plan_seats
from hanse.learning.job import Problem, SeatJob, TrainedRows, constant_of, pull_of, refuse_unfit
from hanse.learning.module_layers import Spec
from hanse.learning.scoring import Scorer
from hanse.learning.threads import Crew, wrap_around

VERSION = 4
"""Of the functions' arguments; the compiled file must say the same (``hanse_native_version``)."""
CACHED = 250_000
"""Parameters up to which a model and its velocities stay in a core's own cache."""
ACTIVATIONS = {"relu": 1, "tanh": 2}


class NativeLayer(ctypes.Structure):
    """``struct layer`` of ``seats.c``, field by field: a linear layer or a convolution, and the activation after it."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in ("inputs", "outputs", "activation", "bias", "channels", "height", "width", "filters", "kernel",
                     "pad", "pooled")
    )  # fmt: skip


class NativeSeat(ctypes.Structure):
    """``struct seat`` of ``seats.c``, field by field: one seat's training, or a leg of it.

    The caller must keep the memory alive to which it points.
    """

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("start", "constant", "row", "velocity", "batches")),
        *((name, ctypes.c_int64) for name in ("steps", "width", "reported", "counted")),
        *((name, ctypes.c_double) for name in ("pull", "loss")),
    )


@cache
def library() -> ctypes.CDLL | str:
    """Return the compiled functions, or the reason why they are missing."""
    spec = importlib.util.find_spec(f"{__package__}.seats")
    if spec is None or spec.origin is None:
        return "this installation of hanse has no compiled part: install a C compiler (gcc), then hanse again"
    try:
        compiled = ctypes.CDLL(spec.origin)
        if int(compiled.hanse_native_version()) != VERSION:
            return "the compiled part is of another version of hanse: install hanse again"
        compiled.hanse_vectors.restype = ctypes.c_char_p
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        compiled.hanse_train.argtypes = [
            pointer, number, pointer, number, pointer, pointer, pointer, ctypes.c_double, ctypes.c_double,
        ]  # fmt: skip
        compiled.hanse_outputs.argtypes = [pointer, number, pointer, pointer, number, pointer]
        compiled.hanse_mixed.argtypes = [
            pointer, number, pointer, number, pointer, pointer, number, pointer, number, pointer,
        ]  # fmt: skip
    except (OSError, AttributeError) as error:  # the file is no library, or one that lacks a function
        return f"the compiled part cannot be loaded ({error})"
    return compiled


def vectors_are_wide() -> bool:
    """Return whether the compiled code uses vectors of at least 8 numbers; with 4, oneDNN's convolutions are faster."""
    compiled = library()
    return not isinstance(compiled, str) and compiled.hanse_vectors() != b"plain"


def worth_for_images(problem: Problem) -> bool:
    """Say whether compiled code is chosen for a model with convolutions that it can train."""
    return problem.layout.num_parameters <= CACHED and vectors_are_wide()


def why_not_native(problem: Problem) -> str | None:
    """Return why the compiled code cannot train a model here, or None if it can.

    It can train linear layers with ReLU or tanh between them. Before these there may be convolutions, each followed by
    ReLU, pooling by 2, or both. Every parameter must be trainable, and the loss cross-entropy or the squared error.
    """
    compiled = library()
    if isinstance(compiled, str):
        return compiled
    if read_native(problem) is None:
        return "the model is not linear layers with ReLU or tanh between them, or convolutions before them"
    if problem.objective is not None:
        return "the loss is neither cross-entropy nor the squared error"
    return "some parameters do not train" if problem.frozen else None


@dataclass(frozen=True)
class NativeLayers:
    """A model's layers as the compiled code runs them: convolutions, then linear layers.

    Attributes:
        convolutions: the convolutions, each with the pooling and ReLU after it. There are none in a model of linear
            layers.
        dense: the linear layers.
    """

    convolutions: Sequence[tuple[nn.Conv2d, Sequence[nn.Module]]]
    dense: Sequence[NativeLayer]

    def on(self, shape: Sequence[int]) -> list[NativeLayer]:
        """Return the layers for samples of this shape.

        Raises:
            IndexError: the model cannot take such samples.
        """
        layers, size = list[NativeLayer](), list(shape)
        for convolution, after in self.convolutions:
            if len(size) != 3 or size[0] != convolution.in_channels:
                raise IndexError(f"samples {list(shape)} for a model that begins with {self.convolutions[0][0]}")
            layer, size = _convolution(convolution, after, size)
            if min(size) < 1:
                raise IndexError(f"samples {list(shape)} are too small for the model's convolutions")
            layers.append(layer)
        inputs = self.dense[0].inputs
        if math.prod(size) != inputs:
            raise IndexError(f"samples of {math.prod(size)} numbers for a model of {inputs} inputs")
        return [*layers, *self.dense]


def _convolution(
    convolution: nn.Conv2d, after: Sequence[nn.Module], size: Sequence[int]
) -> tuple[NativeLayer, list[int]]:
    """Return a convolution of images ``size`` (channels, height, width), and the size of its outputs after pooling."""
    activation = ACTIVATIONS["relu"] if any(isinstance(layer, nn.ReLU) for layer in after) else 0
    pooled, bias = any(isinstance(layer, nn.MaxPool2d) for layer in after), int(convolution.bias is not None)
    kernel, pad, filters = int(convolution.kernel_size[0]), int(convolution.padding[0]), convolution.out_channels
    put_out = [filters, *((side + 2 * pad - kernel + 1) // (1 + pooled) for side in size[1:])]
    inputs, outputs = math.prod(size), math.prod(put_out)
    return NativeLayer(inputs, outputs, activation, bias, *size, filters, kernel, pad, int(pooled)), put_out


def read_native(problem: Problem) -> NativeLayers | None:
    """Return a model's layers if the compiled code can run them, whatever the model's loss; otherwise None."""
    if problem.stack is not None:
        dense = read_dense(problem.stack)
        return None if dense is None else NativeLayers((), dense)
    stack = problem.convolutions
    dense = None if stack is None else read_dense(stack.dense)
    if stack is None or dense is None:
        return None
    convolutions: list[tuple[nn.Conv2d, list[nn.Module]]] = []
    for _, layer in stack.convolutions:
        if isinstance(layer, nn.Conv2d):
            convolutions.append((layer, []))
        else:
            convolutions[-1][1].append(layer)
    return NativeLayers(convolutions, dense) if all(_runs(*given) for given in convolutions) else None


def _runs(convolution: nn.Conv2d, after: Sequence[nn.Module]) -> bool:
    """Say whether the compiled code runs a convolution and the layers after it: ReLU, pooling by 2, or both.

    With neither of them all gradients count, and oneDNN is faster.
    """
    kernel, pad = set(convolution.kernel_size), convolution.padding
    if isinstance(pad, str) or len(kernel) != 1 or not after:
        return False
    padded = len(set(pad)) == 1 and pad[0] in range(min(kernel))
    plain = set(convolution.stride) | set(convolution.dilation) == {1}
    kinds = [type(layer) for layer in after]
    return padded and plain and len(set(kinds)) == len(kinds) and all(type(a) is nn.ReLU or _halves(a) for a in after)


def _halves(layer: nn.Module) -> bool:
    """Say whether a layer takes the largest of every 2 x 2 numbers."""
    if not isinstance(layer, nn.MaxPool2d) or layer.ceil_mode:
        return False
    return all(given in (2, (2, 2)) for given in (layer.kernel_size, layer.stride)) and (
        layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1))
    )


def read_dense(specs: Sequence[Spec]) -> list[NativeLayer] | None:
    """Return linear layers with the activation after each, or None for other layers or another order of them.

    The last layer must be linear: its outputs go directly to the loss.
    """
    layers: list[NativeLayer] = []
    for before, spec in zip([None, *specs], specs, strict=False):
        if spec.kind == "linear":
            layers.append(NativeLayer(spec.inputs, spec.outputs, 0, int(spec.bias)))
        elif spec.kind in ACTIVATIONS and before is not None and before.kind == "linear":
            layers[-1].activation = ACTIVATIONS[spec.kind]
        else:
            return None
    return layers if specs[-1].kind == "linear" else None


class NativeOutputs:
    """The outputs of models in compiled code, which passes each block of samples through all layers while it is in the
    cache.

    Args:
        layers: the model's layers.
        compiled: the compiled functions.
    """

    def __init__(self, layers: NativeLayers, compiled: ctypes.CDLL) -> None:
        self.layers, self._run, self._mix = layers, compiled.hanse_outputs, compiled.hanse_mixed
        dense = sum(layer.outputs * (layer.inputs + layer.bias) for layer in layers.dense)
        parts = [sum(p.numel() for p in convolution.parameters()) for convolution, _ in layers.convolutions]
        self._size, self._head = dense + sum(parts), parts[0] if parts else 0

    def __call__(self, rows: Tensor, x: Tensor) -> Tensor:
        """Return the outputs ``[C, k, m]`` of models ``rows [C, P]`` on samples ``x [m, ...]``, all float32.

        Raises:
            IndexError: samples of another shape than the model takes, or rows of another length than its own.
            MemoryError: there is not enough memory.
        """
        rows, x = rows.contiguous(), x.contiguous()
        layers = self._layers(rows, x.shape[1:])
        outputs = torch.empty((len(rows), layers[-1].outputs, len(x)))
        given = (NativeLayer * len(layers))(*layers)
        for row, out in zip(rows, outputs, strict=True):
            if self._run(given, len(layers), row.data_ptr(), x.data_ptr(), len(x), out.data_ptr()):
                raise MemoryError("native engine: not enough memory to score a model")
        return outputs

    def pays(self, shares: Tensor) -> bool:
        """Say whether mixing the first convolution's outputs by ``shares [C, S]`` takes less arithmetic than running it
        for each of the C models.
        """
        if not self.layers.convolutions:
            return False
        first, _ = self.layers.convolutions[0]
        models, rows = shares.shape
        taps = first.weight[0].numel()
        return int((shares != 0).sum()) + rows * taps < models * taps

    def mixed(self, rows: Tensor, shares: Tensor, x: Tensor) -> Tensor:
        """Return the outputs ``[C, k, m]`` of mixtures of ``rows [S, P]`` by ``shares [C, S]`` on ``x [m, ...]``.

        The first layer is a convolution, so it is linear in its weights. It is run once for each row, and its outputs
        are mixed.

        Raises:
            IndexError: for the same reasons as a call, or ``shares`` are for another number of rows.
            MemoryError: there is not enough memory.
        """
        layers = self._layers(rows, x.shape[1:])
        if shares.shape[1] != len(rows):
            raise IndexError(f"shares of {shares.shape[1]} rows, but there are {len(rows)}")
        outputs = torch.empty((len(shares), layers[-1].outputs, len(x)))
        if not len(shares):
            return outputs
        used = (shares != 0).any(0)
        if not used.any():
            used[0] = True  # compiled code reads one row at least
        shares, rows, x = shares[:, used].contiguous(), rows[used], x.contiguous()
        heads, rest = rows[:, : self._head].contiguous(), shares @ rows[:, self._head :]
        given = (NativeLayer * len(layers))(*layers)
        if self._mix(
            given, len(layers), heads.data_ptr(), len(heads), rest.data_ptr(), shares.data_ptr(), len(shares),
            x.data_ptr(), len(x), outputs.data_ptr(),
        ):  # fmt: skip
            raise MemoryError(f"native engine: not enough memory to score {len(shares)} models")
        return outputs

    def _layers(self, rows: Tensor, shape: Sequence[int]) -> list[NativeLayer]:
        """Return the layers for samples of this shape; raise IndexError where compiled code would read beyond."""
        if rows.shape[1] != self._size:
            raise IndexError(f"rows of {rows.shape[1]} numbers for {self._size} parameters")
        return self.layers.on(shape)


def outputs_of_images(problem: Problem) -> NativeOutputs | None:
    """Return compiled code for the outputs of a model with convolutions, or None for other models.

    The rule is the one that chooses how the model is trained (:func:`hanse.learning.engines.choose`).
    """
    compiled, layers = library(), read_native(problem)
    if isinstance(compiled, str) or layers is None or not layers.convolutions:
        return None
    fits = worth_for_images(problem) and why_not_native(problem) is None
    return NativeOutputs(layers, compiled) if fits else None


_HANDS = 8  # portions of seats for each thread, so a thread on a busy core can take fewer of them


@dataclass(frozen=True)
class _Leg:
    """Seats for a thread to train one after another, all their steps or the next ``steps`` of them."""

    plans: Sequence[SeatPlan]
    steps: int | None = None


def _beyond(numbers: Tensor, end: int) -> tuple[int, int] | None:
    """Return the smallest and the largest of some numbers, unless all lie from 0 to below ``end``: then None."""
    least, most = (int(extremes) for extremes in torch.aminmax(numbers))
    return None if least >= 0 and most < end else (least, most)


class NativeEngine(Scorer):
    """Trains linear layers with ReLU or tanh between them, and convolutions before them, with SGD on the CPU.

    To the last bit, a seat's result depends on the processor's vector width, but not on other seats or the number of
    threads.

    Args:
        problem: the model and its loss (:class:`hanse.learning.job.Problem`).
        workers: how many threads train, each with its own seats.

    Raises:
        ValueError: the model cannot be trained this way, or the compiled code is missing. The message says why.
    """

    name = "native"

    def __init__(self, problem: Problem, workers: int = 1) -> None:
        reason, compiled, layers = why_not_native(problem), library(), read_native(problem)
        if reason is not None or isinstance(compiled, str) or layers is None:
            raise ValueError(reason)
        native = None if layers.convolutions else NativeOutputs(layers, compiled)
        super().__init__(problem, torch.device("cpu"), crew=Crew(workers), native=native, threads=1)
        self._train = compiled.hanse_train
        self._read: NativeLayers = layers

    def train(self, pool: Samples, jobs: Sequence[SeatJob], recipe: Recipe, lr: float) -> TrainedRows:
        """Train every job and return the rows in the order of the jobs; a row that diverged is NaN or infinite.

        Args:
            pool: all samples; a job's ``index`` points into them.
            jobs: one job for each seat.
            recipe: the recipe, which must use SGD.
            lr: the learning rate.

        Raises:
            ValueError: a job with a payload, another optimiser, or a seat without samples.
            IndexError: samples, labels or rows do not fit the model, or positions are not in the pool.
            MemoryError: there is not enough memory.
        """
        refuse_unfit(jobs, recipe, self.name)
        x, y = flat(pool, self.problem, torch.float32)
        layers = self._read.on(pool.x.shape[1:])
        self._refuse_beyond(jobs, x, y, layers[-1].outputs)
        chains, size = self._chains(plan_seats(jobs, recipe, 1)), self.problem.layout.size
        # how far each seat has come: its row, its steps, and the sum of the losses to report, of so many samples
        rows, losses = torch.empty((len(jobs), size)), np.zeros(len(jobs))
        steps, counted = np.zeros((2, len(jobs)), dtype=np.int64)
        # SGD's velocity is handed over only where a seat is trained in several legs
        moving = recipe.momentum > 0 and any(len(chain) > 1 for chain in chains)
        velocities = torch.zeros((len(jobs), size)) if moving else None
        labels, targets = (None, y.data_ptr()) if self.problem.regression else (y.data_ptr(), None)

        def train_leg(_: int, leg: _Leg) -> None:
            """Train the seats of a leg from where they are."""
            # only addresses are handed over: these lists keep the memory alive until the call is back
            plans, own = leg.plans, [jobs[plan.seat] for plan in leg.plans]
            starts = [job.start.to(torch.float32).contiguous() for job in own]
            constants = [constant_of(job, torch.float32) for job in own]
            begun = [int(steps[plan.seat]) for plan in plans]
            batches = [
                np.ascontiguousarray(plan.batches[done:][: leg.steps], dtype=np.int64)
                for plan, done in zip(plans, begun, strict=True)
            ]
            seats = (NativeSeat * len(plans))()
            for i, (seat, plan, job) in enumerate(zip(seats, plans, own, strict=True)):
                row, constant = rows[plan.seat], constants[i]
                seat.start, seat.row = (row if begun[i] else starts[i]).data_ptr(), row.data_ptr()
                seat.velocity = None if velocities is None else velocities[plan.seat].data_ptr()
                seat.constant = None if constant is None else constant.data_ptr()
                seat.batches, seat.steps, seat.width = batches[i].ctypes.data, len(batches[i]), plan.width
                seat.reported, seat.pull = plan.reported - begun[i], pull_of(job, recipe)
                seat.loss, seat.counted = losses[plan.seat], counted[plan.seat]
            stack, samples = (NativeLayer * len(layers))(*layers), x.data_ptr()
            if self._train(stack, len(layers), seats, len(seats), samples, labels, targets, lr, recipe.momentum):
                raise MemoryError(f"native engine: not enough memory to train {len(plans)} seats")
            for seat, plan in zip(seats, plans, strict=True):
                steps[plan.seat] += seat.steps
                losses[plan.seat], counted[plan.seat] = seat.loss, seat.counted

        self.crew.relay(train_leg, chains)
        mean = np.where(counted > 0, losses / np.maximum(counted, 1), np.nan)
        # one sum a row instead of a look at each number, which takes ten times as long
        finite = torch.isfinite(rows.sum(1)).numpy() & np.isfinite(mean)
        return TrainedRows(rows, np.where(finite, mean, np.nan), steps)

    def _chains(self, plans: Sequence[SeatPlan]) -> list[list[tuple[float, _Leg]]]:
        """Return the seats in portions, with their ranks; if these would leave threads idle, some seats in two legs."""
        workers = self.crew.workers
        work = [float(plan.steps * plan.width) for plan in plans]
        if workers == 1 or len(plans) > _HANDS * workers:
            hands = [list(plans)] if workers == 1 else deal_seats(plans, _HANDS * workers)
            return [[(rank, _Leg(hand))] for rank, hand in enumerate(hands)]
        chains = []
        for plan, much, parts in zip(plans, work, wrap_around(work, workers), strict=True):
            first = round(parts[0] / plan.width)
            if first < plan.steps:  # first legs go before, second legs after seats that are trained in one
                before, after = _Leg([plan], first), _Leg([plan], plan.steps - first)
                chains.append([(-sum(work) - parts[0], before), (sum(work) - parts[1], after)])
            else:
                chains.append([(-much, _Leg([plan]))])
        return chains

    def _refuse_beyond(self, jobs: Sequence[SeatJob], x: Tensor, y: Tensor, outputs: int) -> None:
        """Raise IndexError for sizes, positions or labels beyond what is there: compiled code would read past it."""
        wanted = (len(x), outputs) if self.problem.regression else (len(x),)
        if y.shape != wanted or not (self.problem.regression or y.dtype == torch.int64):
            kind = str(y.dtype).removeprefix("torch.")
            allowed = f"{'' if self.problem.regression else 'int64 '}{list(wanted)}"
            raise IndexError(f"targets are {kind} {list(y.shape)}, {allowed} is needed")
        size = self.problem.layout.size
        for seat, job in enumerate(jobs):
            if job.start.shape != (size,):
                raise IndexError(f"seat {seat}: a row {list(job.start.shape)} for {size} parameters")
        taken = torch.cat([torch.zeros(0, dtype=torch.int64), *(job.index for job in jobs)])
        if len(taken) and (found := _beyond(taken, len(x))):
            raise IndexError(f"samples {found[0]} to {found[1]} of a pool of {len(x)}")
        if len(taken) and not self.problem.regression and (found := _beyond(y[taken], outputs)):
            raise IndexError(f"labels {found[0]} to {found[1]}, allowed are 0 to {outputs - 1}")
