"""Counts the calls of the user's function, which may take seconds each, and shows their progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hanse.base.errors import UserError, gated
from hanse.base.plain_text import quantity
from hanse.core.table import Floats, Ints
from hanse.games.game import Coalition
from hanse.learning.intervals import sample_blocks

if TYPE_CHECKING:
    from hanse.runs.observers import ProgressCallback

Answer = float | Floats
"""What the user's function returns: a worth, or one number for each test sample ``[m]``, whose mean is the worth."""
Asked = Callable[[], Answer] | float
"""A call of the user's function, which can be sent to another process; or its answer, where it is known."""
_AT_ONCE = 32  # questions that are prepared for several processes at once


class Evaluations:
    """A utility for :mod:`hanse.games` that calls the user's function.

    Args:
        ask: yields a question for each coalition, in their order.
        told: a function that is called after each evaluation, with the number done, the number expected, and a text.
        function: the name of the user's function in messages.
        units: ``[m]``, what each test sample is of. None: each is a unit of its own.
        n_jobs: how many processes call the user's function, as joblib counts them (-1: one for each processor).
        expected: the largest possible number of evaluations. None: not known.

    Attributes:
        evaluated: number of calls of the user's function.
        samples: how many numbers the user's function returns, one for each test sample. 0: it returns only their mean,
            or another worth.
        raised: the exception of the user's function, to distinguish it from the caller's mistakes.
    """

    def __init__(
        self,
        ask: Callable[[Sequence[Coalition]], Iterable[Asked]],
        told: ProgressCallback,
        function: str = "evaluate",
        units: NDArray[Any] | None = None,
        n_jobs: int = 1,
        expected: float | None = None,
    ) -> None:
        self._units = None if units is None else torch.from_numpy(np.unique(units, return_inverse=True)[1])
        self._ask, self._told, self._function, self._n_jobs, self.expected = ask, told, function, n_jobs, expected
        self.evaluated = 0
        self.samples: int | None = None
        self._worths: list[tuple[float, Floats]] = []
        self._blocks: list[Ints] | None = None  # of test samples, as soon as their number is known
        self.raised: Exception | None = None

    def __call__(self, coalition: Coalition) -> float:
        """Return the worth of one coalition."""
        return self.many([coalition])[0]

    def many(self, coalitions: Sequence[Coalition]) -> list[float]:
        """Return the worth of each coalition."""
        found, questions = list[tuple[float, Floats]](), iter(self._ask(coalitions))
        while some := list(islice(questions, 1 if self._n_jobs == 1 else _AT_ONCE)):
            found += [(float(np.mean(answer)), self._without_block(answer)) for answer in self._answers(some)]
        self._worths += found
        if self.evaluated and self.expected is not None and self.evaluated >= self.expected:
            self._told(self.evaluated, self.expected, "solving")
        return [worth for worth, _ in found]

    @property
    def without_block(self) -> Floats:
        """The worths with each of B blocks of test samples left out, ``[evaluated, B]``, in the order of evaluation.

        A worth that was given as one number is the same without any block. B is 0 if all were.
        """
        blocks = max((len(without) for _, without in self._worths), default=0)
        return np.array([without if len(without) else np.full(blocks, worth) for worth, without in self._worths])

    def _same(self, answer: Answer) -> Answer:
        """Return an answer. Raises UserError if it has another number of samples than those before, or than the units,
        or if all are of one unit.
        """
        samples = 0 if np.ndim(answer) == 0 else len(np.asarray(answer))
        if self.samples not in (None, samples):
            raise UserError(
                f"{self._function}: returned {quantity(samples or 1, 'number')}, and {self.samples or 1} before: must "
                "be one number, or one for each test sample, always of the same samples"
            )
        if self._units is not None and (samples != len(self._units) or not samples):
            returned = quantity(samples, "number") if samples else "one number, and none for each test sample"
            raise UserError(f"units: {len(self._units)}, but {self._function} returned {returned}: must be one each")
        if self._units is not None and not self._units.any():
            raise UserError(f"units: all {samples} are the same: must be two at least, of which others could be drawn")
        self.samples = samples
        return answer

    def again(self, coalition: Coalition) -> Answer | None:
        """Return a second answer for a coalition that was evaluated; None if its worth was given as a number."""
        [worth] = self._ask([coalition])
        return self._answers([worth])[0] if callable(worth) else None

    def _without_block(self, answer: Answer) -> Floats:
        """Return the mean of the numbers of samples with each block left out, ``[B]``; B is 0 for a single number."""
        if isinstance(answer, float):
            return np.zeros(0)
        scores = np.asarray(answer)
        if self._blocks is None:
            self._blocks = [block.numpy() for block in sample_blocks(len(scores), self._units)]
        sums = np.array([[scores[block].sum(), len(block)] for block in self._blocks])
        return np.asarray((scores.sum() - sums[:, 0]) / (len(scores) - sums[:, 1]))

    def _answers(self, questions: Sequence[Asked]) -> list[Answer]:
        """Return the answers to some questions, which are asked at the same time."""
        calls = [worth for worth in questions if callable(worth)]
        try:
            said = iter(
                [call() for call in calls] if self._n_jobs == 1 or len(calls) < 2 else self._in_processes(calls)
            )
        except Exception as wrong:
            self.raised = wrong
            raise
        answers = [self._same(next(said)) if callable(worth) else worth for worth in questions]
        self.evaluated += len(calls)
        self._told(self.evaluated, self.expected)
        return answers

    def _in_processes(self, calls: Sequence[Callable[[], Answer]]) -> Iterable[Answer]:
        """Return what calls return, each made in one of several processes."""
        from joblib import Parallel, delayed  # late: scikit-learn's, which few runs need

        with gated(f"n_jobs: {self._n_jobs}: {self._function} cannot be called in another process", "leave n_jobs out"):
            answers: Iterable[Answer] = Parallel(self._n_jobs)(delayed(call)() for call in calls)
        return answers


def check_n_jobs(n_jobs: int) -> None:
    """Raise UserError unless this is a number of processes as joblib takes it."""
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int) or n_jobs == 0 or n_jobs < -1:
        raise UserError(f"n_jobs: {n_jobs!r:.80}: must be a whole number, 1 or more, or -1 for one for each processor")


@contextmanager
def progress(wanted: bool | None, label: str) -> Iterator[ProgressCallback]:
    """Show a bar on standard error, and yield the function that updates it.

    Args:
        wanted: whether to show the bar. True: at once. None: after 2 seconds, in a terminal or a notebook. False:
            never.
        label: the label before the bar.

    Raises:
        UserError: ``wanted`` is something else.
    """
    if wanted is not None and not isinstance(wanted, bool):
        raise UserError(f"progress: {wanted!r}: must be True, False or None")
    if wanted is False:
        yield lambda done, most, figure="": None
        return
    from hanse.runs.observers import counting, errors  # here: it takes longer to import than most games to solve

    with counting(label, errors(), at_once=bool(wanted), transient=False) as told:
        yield told
