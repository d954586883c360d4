"""The user's own training loop: a function ``fit(model, data, round)`` that trains the plain module in place.

hanse loads the seat's model before that and reads its row afterwards. The loop itself decides on loss, optimiser,
schedule, clipping, augmentation and libraries. It gets the PyTorch module, a :class:`TrainingData` with the client's
samples and a :class:`TrainingRound` with the settings. If the loop has a parameter ``penalty``, it also gets a
:class:`Penalty`. This is a function that returns the mechanism's term of the seat's loss (proximal pull, tilt). The
loop returns None, or numbers by name: "loss", "samples" and "steps" have a meaning (see ``docs/own-loop.md``); others
are recorded.

Generators are seeded before each seat, so runs repeat bit for bit, also on a network. If a loop fails, its seat is
refused with a recorded reason, and the round continues.

Inside hanse, :class:`Loop` is such a function, and :class:`LoopEngine` is the engine that trains seats with it.
"""

from __future__ import annotations

import copy
import inspect
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from typing_extensions import TypeAliasType

from hanse.base.errors import RAISED, UserError, first_line
from hanse.base.imports import import_path
from hanse.base.plain_text import quantity
from hanse.base.streams import drawn_so_far, torch_seed
from hanse.core.declared import LARGEST_COUNT, LARGEST_LOSS, MOST_METRICS, Declared, Figure, UnsoundError
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.job import LOOP, NO_STEP, LoopResult, Problem, SeatJob, TrainedRows, largest_batch, smallest_batch
from hanse.learning.process import restorer, seed_all, untouched
from hanse.learning.sequential import SequentialEngine, work_of
from hanse.learning.threads import intra_op

log = logging.getLogger("hanse.training")

WITH_PENALTY = "fit(model, data, round, penalty)"
FORMS = f"fit(model, data, round) or {WITH_PENALTY}"
Batch = tuple[Tensor, Tensor]


class LoopError(ValueError):
    """A training loop left an invalid model or returned something invalid; the message says what is allowed."""


# ---- what a loop is given


@dataclass(frozen=True)
class TrainingRound:
    """The settings that a training loop gets for its seat.

    They come from ``[train]``, adapted to this client. A straggler has fewer epochs, and ``batches_per_epoch`` and
    ``batch_share`` become a batch size.

    Attributes:
        number: the round's number, from 0.
        client: the client's number.
        name: the client's name.
        seed: the seat's own 63-bit seed, different for each round, client and start row. All generators are seeded with
            it.
        device: where the model and the data are.
        epochs: passes over the data.
        batch_size: samples in a batch, at most as many as the client has.
        steps: the number of batches, if the recipe counts steps. None: the recipe counts epochs.
        lr: the learning rate, after ``lr_decay``.
        momentum: the momentum of SGD.
        weight_decay: the weight decay of the optimiser.
        recipe: all settings of ``[train]`` as written.
    """

    number: int
    client: int
    name: str
    seed: int
    device: torch.device
    epochs: int
    batch_size: int
    steps: int | None
    lr: float
    momentum: float
    weight_decay: float
    recipe: Recipe

    @staticmethod
    def of(job: SeatJob, recipe: Recipe, lr: float, device: torch.device) -> TrainingRound:
        """Return the settings for a seat's loop.

        Args:
            job: the seat.
            recipe: how clients train.
            lr: the learning rate of this round.
            device: where the loop works.
        """
        seed, number, client, start = job.key
        counts_steps = recipe.steps is not None
        steps = recipe.steps if job.work is None else job.work
        return TrainingRound(
            number=number,
            client=client,
            name=job.name or f"client {client}",
            seed=torch_seed(seed, "loop", round=number, client=client, start=start),
            device=device,
            epochs=recipe.epochs if counts_steps or job.work is None else job.work,
            batch_size=largest_batch(len(job.index), recipe),
            steps=steps if counts_steps else None,
            lr=lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            recipe=recipe,
        )


class TrainingData(TorchDataset[Batch]):
    """A client's training samples: a PyTorch dataset whose ``data[i]`` is a sample with its target.

    The samples are the client's own copy, so a loop may change them.

    Args:
        pool: the samples of all clients.
        index: int64 ``[n]``, the positions of this client's samples in the pool.
        round: the loop's settings.
        smallest: the smallest batch that the model can train on.
    """

    def __init__(self, pool: Samples, index: Tensor, round: TrainingRound, smallest: int = 1) -> None:
        self._pool, self._index, self._round, self._smallest = pool, index, round, smallest

    @cached_property
    def samples(self) -> Samples:
        """The client's samples and targets, on the round's device."""
        own, device = self._pool.take(self._index.to(self._pool.y.device)), self._round.device
        return own if own.y.device == device else replace(own, x=own.x.to(device), y=own.y.to(device))

    @property
    def x(self) -> Tensor:
        """The inputs ``[n, ...]``."""
        return self.samples.x

    @property
    def y(self) -> Tensor:
        """The labels or targets ``[n, ...]``."""
        return self.samples.y

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, place: int) -> Batch:
        one = self.samples.take(torch.tensor([place], device=self.y.device))
        return one.x[0], one.y[0]

    def loader(
        self, batch_size: int | None = None, *, shuffle: bool = True, drop_last: bool | None = None
    ) -> DataLoader[Batch]:
        """Return a ``DataLoader`` of batches ``(x, y)``.

        Batches are gathered at once, which is faster than sample by sample. The order comes from the seat's own
        generator and affects no other.

        Args:
            batch_size: how many samples a batch has. None: the round's batch size.
            shuffle: whether to shuffle for each pass.
            drop_last: whether a last, smaller batch is left out. None: only if batch norm could not use it.

        Examples:
            >>> pool = Samples(torch.arange(10.0).reshape(5, 2), torch.tensor([0, 1, 0, 1, 0]))
            >>> job = SeatJob(index=torch.arange(5), start=torch.zeros(6), key=(0, 0, 0, 0))
            >>> told = TrainingRound.of(job, Recipe(batch_size=2), lr=0.1, device=torch.device("cpu"))
            >>> data = TrainingData(pool, job.index, told)
            >>> [len(y) for x, y in data.loader()]
            [2, 2, 1]
            >>> [y.tolist() for x, y in data.loader(shuffle=False)]
            [[0, 1], [0, 1], [0]]
        """
        size = self._round.batch_size if batch_size is None else batch_size
        if drop_last is None:
            drop_last = 0 < len(self) % size < self._smallest <= len(self)
        return DataLoader(
            _Batches(self),
            batch_size=size,
            shuffle=shuffle,
            drop_last=drop_last,
            collate_fn=lambda batch: batch,  # gathered already: a loader's usual collation would stack samples
            generator=self._generator,
        )

    @cached_property
    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._round.seed)


class _Batches(TorchDataset[Batch]):
    """The same samples for a loader: a list of positions gives a batch."""

    def __init__(self, data: TrainingData) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, place: int) -> Batch:
        return self.data[place]

    def __getitems__(self, places: Sequence[int]) -> Batch:
        some = self.data.samples.take(torch.tensor(places, dtype=torch.int64, device=self.data.y.device))
        return some.x, some.y


@dataclass(frozen=True)
class Penalty:
    """The mechanism's term of a seat's loss, as a function of the model.

    The term is ``mu/2 |theta - centre|^2 + <tilt, theta>`` over the trained parameters. hanse's own training adds the
    gradient of this term to that of the loss.

    Attributes:
        mu: how strong the pull is.
        centre: the values to which the parameters are pulled. None: no pull.
        tilt: the factor by which each parameter is multiplied in the term. None: no tilt.
        zero: the scalar 0 on the device.
    """

    mu: float
    centre: Sequence[Tensor] | None
    tilt: Sequence[Tensor] | None
    zero: Tensor

    @staticmethod
    def of(job: SeatJob, problem: Problem, device: torch.device) -> Penalty:
        """Return the penalty of a seat, with tensors on ``device``.

        Args:
            job: the seat's job, with its pull and its tilt.
            problem: the model as a module, and how a row becomes its parameters.
            device: where the tensors are to lie.
        """
        trained = [name for name, p in problem.module.named_parameters() if p.requires_grad]

        def cut(row: Tensor | None) -> Sequence[Tensor] | None:
            views = None if row is None else problem.layout.unflatten(row.to(device))
            return None if views is None else [views[name] for name in trained]

        centre = cut(job.centre) if job.mu else None
        return Penalty(job.mu, centre, cut(job.tilt), torch.zeros((), device=device))

    def __call__(self, model: nn.Module) -> Tensor:
        """Return the penalty at a model, a scalar with gradients; 0 where nothing is added.

        Args:
            model: the one that the loop was given, or one that wraps it.

        Raises:
            ValueError: another model.
        """
        if self.centre is None and self.tilt is None:
            return self.zero
        parameters = [p for p in model.parameters() if p.requires_grad]
        like = self.centre or self.tilt or ()
        if [p.shape for p in parameters] != [t.shape for t in like]:
            raise ValueError("penalty: must be given the model that the loop was given: this one has other parameters")
        total = self.zero
        if self.centre is not None:
            away = [(p - c).square().sum() for p, c in zip(parameters, self.centre, strict=True)]
            total = total + 0.5 * self.mu * torch.stack(away).sum()
        if self.tilt is not None:
            total = total + torch.stack([(p * t).sum() for p, t in zip(parameters, self.tilt, strict=True)]).sum()
        return total


# ---- the loop


@dataclass(frozen=True)
class Loop:
    """A user's training function.

    Attributes:
        fit: the function.
        takes_penalty: whether the function has a parameter ``penalty``.
    """

    fit: Callable[..., Any]
    takes_penalty: bool = False

    @staticmethod
    def of(given: str | Callable[..., Any], where: str) -> Loop:
        """Return the loop for a function or its import path.

        Args:
            given: the function or its path.
            where: the text with which an error message begins.

        Raises:
            UserError: the function cannot be imported, or cannot be called as a loop.
        """
        fit = import_path(given, where, ()) if isinstance(given, str) else given
        name = given if isinstance(given, str) else getattr(fit, "__name__", type(fit).__name__)
        if not callable(fit) or inspect.isclass(fit):
            raise UserError(f"{where}: {name!r}: is a {type(fit).__name__}; must be a function {FORMS}")
        try:
            signature = inspect.signature(fit)
        except (TypeError, ValueError):  # a built-in has no signature
            return Loop(fit)
        takes = "penalty" in signature.parameters
        try:
            signature.bind(None, None, None, **({"penalty": None} if takes else {}))
        except TypeError:
            raise UserError(f"{where}: {name!r}: takes {signature}; must be {FORMS}") from None
        return Loop(fit, takes)

    def __call__(self, model: nn.Module, data: TrainingData, round: TrainingRound, penalty: Penalty) -> Any:
        """Train the model in place and return what the function returns."""
        return self.fit(model, data, round, penalty=penalty) if self.takes_penalty else self.fit(model, data, round)


class LoopEngine(SequentialEngine):
    """Trains seats by a user's loop, one after another or on worker threads.

    If a loop draws from the process's generators, a single worker trains its seats. Whether it does is detected at the
    first seat, and monitored while there are several workers.

    Args:
        scoring: the engine whose problem, device and threads are used; it is not used itself.
        loop: the user's function.
    """

    name = "loop"

    def __init__(self, scoring: SequentialEngine, loop: Loop) -> None:
        super().__init__(
            scoring.problem, scoring.device, scoring.threads, scoring.crew.workers, scoring.precision, scoring.dtype
        )
        self.loop = loop
        self._draws: bool | None = None
        self._logged: set[str] = set()
        self._counts = threading.local()
        self._restore = restorer()

    def train(self, pool: Samples, jobs: Sequence[SeatJob], recipe: Recipe, lr: float) -> TrainedRows:
        """Train every job.

        The result includes what each seat's loop returned, or why the seat is refused. A refused row is NaN.

        Args:
            pool: all samples; a job's ``index`` points into them.
            jobs: one for each seat.
            recipe: the recipe, which is passed on to the loop.
            lr: the learning rate, passed on to the loop.
        """
        done: dict[int, TrainedRows] = {}

        def one(worker: int, seat: int) -> None:
            done[seat] = self._train_seat(pool, jobs[seat], recipe, lr)

        seats = sorted(range(len(jobs)), key=lambda s: -work_of(jobs[s], recipe))
        crew, device = self.crew, self.device
        with untouched(device), self._counting(), intra_op(1 if crew.workers > 1 else self.threads):
            self._restore = restorer()
            if crew.workers > 1 and self._draws is None and seats:
                self._draws = self._in_order(one, seats[:1], jobs, watched=True)
            left = [s for s in seats if s not in done]
            if crew.workers > 1 and not self._draws:
                before = drawn_so_far(device)
                crew.map(one, left)
                self._draws = drawn_so_far(device) != before
                # if some drew, then in no order that could be repeated: all of them are trained once more, in order
                left = left if self._draws else []
            self._in_order(one, left, jobs)
        return TrainedRows.joined([*done.values()], np.argsort([*done]).tolist())

    def _in_order(
        self, one: Callable[[int, int], None], seats: Sequence[int], jobs: Sequence[SeatJob], *, watched: bool = False
    ) -> bool:
        """Train seats one after another, with generators seeded for each; return whether any drew, if ``watched``."""
        device, drew = self.device, False
        for seat in seats:
            seed, number, client, start = jobs[seat].key
            seed_all(torch_seed(seed, "loop", round=number, client=client, start=start), device)
            before = drawn_so_far(device) if watched else None
            one(0, seat)
            drew = drew or (watched and drawn_so_far(device) != before)
        return drew

    def _train_seat(self, pool: Samples, job: SeatJob, recipe: Recipe, lr: float) -> TrainedRows:
        """Train one seat on a copy of the module; whatever the loop does wrong becomes the reason why it is refused."""
        problem, device = self.problem, self.device
        if job.payload is not None:
            return self._refused("a training loop of one's own does not add the loss of FedGen's payload")
        if not self.loop.takes_penalty and (job.tilt is not None or (job.centre is not None and job.mu)):
            return self._refused(f"{LOOP} takes no penalty for the seat's pull: must be {WITH_PENALTY}")
        round = TrainingRound.of(job, recipe, lr, device)
        data = TrainingData(pool, job.index, round, smallest_batch(problem))
        module = copy.deepcopy(problem.module)
        module = module if device.type == "cpu" else module.to(device)
        problem.layout.load(module, job.start.to(device))
        self._counts.steps = 0
        try:
            with torch.enable_grad(), ExitStack() as after:
                after.callback(self._restore)  # a loop's settings must not outlast it
                returned = self.loop(module.train(), data, round, Penalty.of(job, problem, device))
            row = _row_of(module, problem, job.start)
            seat = _seat_of(row, returned, self._counts.steps, len(data))
            if not torch.equal(row, job.start.to(row)):
                return seat
            if not seat.steps[0]:
                return self._refused(
                    f"{LOOP} {NO_STEP} on its {quantity(len(data), 'sample')}: its optimiser's step() was never "
                    "called, or no batch was full (a batch_size above their number, with drop_last)"
                )
            if self._counts.steps and all(parameter.grad is None for parameter in module.parameters()):
                return self._refused(
                    f"{LOOP} trained something else: {quantity(self._counts.steps, 'step')}, and the model that it was "
                    "given is as it was, without a gradient: train this model, not a copy or a new one"
                )
            return seat
        except LoopError as wrong:
            return self._refused(f"{LOOP} {wrong}")
        except (*RAISED, GeneratorExit) as wrong:
            reason = first_line(wrong)
            if reason not in self._logged:  # the traceback once, not in every round
                self._logged.add(reason)
                log.warning("round %d: the training loop of %s raised", round.number, round.name, exc_info=wrong)
            return self._refused(f"{LOOP} raised {reason}")

    def _refused(self, reason: str) -> TrainedRows:
        """Return a seat whose row is not used, for a reason."""
        row = torch.full((1, self.problem.layout.size), math.nan, device=self.device)
        return TrainedRows(row, np.full(1, math.nan), np.zeros(1, np.int64), [LoopResult(refused=reason)])

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Count the steps of PyTorch's optimisers, thread by thread, while a block runs."""

        def step(optimizer: Optimizer, args: Any, more: Any) -> None:
            self._counts.steps = getattr(self._counts, "steps", 0) + 1

        handle = register_optimizer_step_post_hook(step)
        try:
            yield
        finally:
            handle.remove()


def _row_of(module: nn.Module, problem: Problem, start: Tensor) -> Tensor:
    """Return the row ``[P]`` that a loop left in a module.

    Raises:
        LoopError: parameters are missing, added or of another shape, a frozen one moved, or numbers are not finite.
    """
    layout, given = problem.layout, dict(problem.module.named_parameters())
    left = dict(module.named_parameters())
    tensors: dict[str, Tensor] = left | dict(module.named_buffers())
    for name, shape in [*zip(layout.names, layout.shapes, strict=True), *((n, p.shape) for n, p in given.items())]:
        if name not in tensors:
            raise LoopError(f"left a model without {name!r}: must keep the parameters that it was given")
        if tensors[name].shape != shape or not tensors[name].is_floating_point():
            kind = str(tensors[name].dtype).removeprefix("torch.")
            raise LoopError(f"left {name!r} as {kind} {list(tensors[name].shape)}: must be {list(shape)}")
    if more := sorted(left.keys() - given.keys()):
        raise LoopError(f"added {more[0]!r} to the model: must keep the parameters that it was given")
    before = layout.unflatten(start)
    for name in problem.frozen:
        if not torch.equal(left[name].detach().cpu(), before.get(name, given[name]).detach().cpu()):
            raise LoopError(f"moved {name!r}, which is frozen (requires_grad is False)")
    row = torch.cat([tensors[name].detach().reshape(-1).float() for name in layout.names])
    # the sum is the quick test; it can overflow though all numbers are finite, so only then each is looked at
    if not math.isfinite(float(row.sum())) and not bool(torch.isfinite(row).all()):
        raise LoopError("left NaN or infinite numbers in the model")
    return row


_Word = Annotated[str, Field(min_length=1, max_length=80)]
_RETURNED = Declared[dict[str, float]](
    TypeAliasType("metrics", Annotated[dict[_Word, Figure], Field(max_length=MOST_METRICS)])
)


def _seat_of(row: Tensor, found: Any, steps: int, n: int) -> TrainedRows:
    """Return a seat with what its loop returned.

    "loss" is the seat's mean training loss; "samples" and "steps" take the place of the client's ``n`` samples and of
    the ``steps`` that PyTorch's optimisers took.

    Raises:
        LoopError: it returned anything but numbers by name, too many of them, or one out of range.
    """
    try:
        if isinstance(found, Mapping):
            found = {name: _number(value) for name, value in found.items()}
        told = dict(_RETURNED.check({} if found is None else found))
    except (UnsoundError, RuntimeError) as wrong:  # a tensor of several numbers is no number
        raise LoopError(f"returned {wrong} (must be None or metrics by name, as in {{'loss': 0.3}})") from None
    samples, took = told.pop("samples", None), told.pop("steps", float(steps))
    for name, count, least, most in (("samples", samples, 1, n), ("steps", took, 0, LARGEST_COUNT)):
        if count is not None and not (count.is_integer() and least <= count <= most):
            raise LoopError(f"returned {name} {count:g}: must be a whole number from {least} to {most}")
    loss = told.pop("loss", math.nan)
    if abs(loss) > LARGEST_LOSS:
        raise LoopError(f"returned loss {loss:g}: must be at most {LARGEST_LOSS:g}")
    said = LoopResult(told, None if samples is None else int(samples))
    return TrainedRows(row[None], np.array([loss]), np.array([int(took)]), [said])


def _number(value: Any) -> Any:
    """Return a number of PyTorch or NumPy, or a truth value, as a number of Python; anything else as it is."""
    value = value.item() if isinstance(value, Tensor | np.generic) else value
    return int(value) if isinstance(value, bool) else value
