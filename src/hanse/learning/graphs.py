"""Stacked training in segments that are recorded once as CUDA graphs and then replayed with other samples.

A step of small layers is about twenty short kernels, and the GPU waits for Python between them. A graph is launched as
a whole. A graph's addresses and constants are fixed, so a segment is recorded again for other shapes, learning rates or
momenta. Inputs that change from round to round (samples, pulls) are copied to the place from which the recorded kernels
read them.

The stacked engine makes a :class:`Graphs` for each of its programs where an experiment says ``[engine] graphs``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hanse.learning.batches import Segment
from hanse.learning.program import ActiveProgram

_MOST = 16  # graphs of one program, so rounds of ever new shapes do not fill the card's memory

Capture = Callable[[Callable[[], None]], Callable[[], None]]
Steps = Callable[[ActiveProgram, Tensor, Segment, float, float], None]
"""What trains a program on samples ``x`` for a segment, with a momentum and a learning rate."""


def _cuda_capture(work: Callable[[], None]) -> Callable[[], None]:
    """Record what ``work`` launches, without running it, and return a function that runs it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


@dataclass(frozen=True)
class _Recorded:
    """A graph, and all that its kernels read and write: none of it may be freed before the graph is."""

    replay: Callable[[], None]
    bound: ActiveProgram
    x: Tensor
    segment: Segment


class Graphs:
    """Takes the steps of one program's segments.

    A new kind of segment first runs normally, which also warms up the GPU's libraries. The second time it is recorded,
    and after that replayed.

    Args:
        steps: the function that takes the steps of a segment.
        capture: the function that records steps; tests can replace it.
    """

    def __init__(self, steps: Steps, capture: Capture = _cuda_capture) -> None:
        self.steps, self.capture = steps, capture
        self._met: set[tuple[object, ...]] = set()
        self._kept: dict[tuple[object, ...], _Recorded] = {}

    def __call__(self, bound: ActiveProgram, x: Tensor, segment: Segment, momentum: float, lr: float) -> None:
        """Train ``bound`` on a segment of the samples ``x [n, d]``, which must stay where they are in memory."""
        key = _key(bound, x, segment, momentum, lr)
        if key not in self._met:
            if len(self._met) >= _MOST:
                self._met.clear()
                self._kept.clear()
            self._met.add(key)
            self.steps(bound, x, segment, momentum, lr)
            return
        if key not in self._kept:
            taken, targets, weights, tally = (part.clone() for part in _batches(segment))
            still = Segment(taken, targets, weights, tally, segment.counted)
            replay = self.capture(lambda: self.steps(bound, x, still, momentum, lr))
            self._kept[key] = _Recorded(replay, bound, x, still)
        recorded = self._kept[key]  # also right after it was recorded: recording does not run anything
        for old, new in zip(_changing(recorded.bound), _changing(bound), strict=True):
            if old is not new:
                old.copy_(new)
        for old, new in zip(_batches(recorded.segment), _batches(segment), strict=True):
            old.copy_(new)
        recorded.replay()


def _changing(bound: ActiveProgram) -> list[Tensor]:
    """Return what pulls the seats: tensors that :meth:`Program.start` makes anew in every round."""
    pull = bound.pull if isinstance(bound.pull, list) else []
    return [*pull, *(bound.constant or [])]


def _batches(segment: Segment) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the tensors of a segment that differ from round to round."""
    return segment.taken, segment.targets, segment.weights, segment.tally


def _key(bound: ActiveProgram, x: Tensor, segment: Segment, momentum: float, lr: float) -> tuple[object, ...]:
    """Return all that is fixed in a graph: shapes, addresses and numbers."""
    shapes = tuple((part.shape, part.dtype) for part in _batches(segment))
    pulls = tuple(part.shape for part in _changing(bound))
    scalar = None if isinstance(bound.pull, list) else bound.pull
    still = bound.constant is None
    return (x.data_ptr(), x.shape, shapes, pulls, scalar, still, tuple(segment.counted), momentum, lr)
