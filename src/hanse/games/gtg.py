"""GTG-Shapley: guided and truncated permutation sampling, as GreedyFed values the clients of a round (Alg. 2).

*Guided*: each player goes first equally often. *Truncated*: evaluation stops once the worth can hardly change.
:func:`gtg` is the estimator.

Where the printed algorithm is ambiguous, the code follows the reading that works (docs/papers.md, G2-G6). The j-th
player of a permutation is credited with what it adds to the first j - 1 players. (With the printed indices, the first
player would get no credit.) The estimate is the plain mean over permutations. (The printed recursion divides by 0. With
sweeps counted from 1, it favours players that go first later in a sweep.) The limit counts permutations, and sampling
stops only after a complete sweep. The convergence test uses absolute values, so clients of negative value must
converge, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hanse.games.game import Floats, Memo, Utility, generator, permutation_rows, positive_or_zero, whole_number
from hanse.games.jackknife import t_factor
from hanse.games.sampling import Estimate, Walks, walk

Stop = Literal["every", "mean"]
Running = Literal["permutation", "sweep_mean", "sweep_literal"]

# The stop rule of GTG-Shapley's authors: 20 stored values, the last 10 of them within 1% of the last one.
_MIN_STORED = 20
_LAST = 10
_TOLERANCE = 0.01


@dataclass(frozen=True, eq=False)
class GTGEstimate(Estimate):
    """A GTG-Shapley estimate: an :class:`Estimate`, together with how the sampling ended.

    ``standard_errors`` are those of the mean over sweeps, from how much the k-th permutations of the sweeps differ: all
    permutations are drawn independently. So that 1.96 of them to either side are a 95 % interval also after a few
    sweeps, they are multiplied by Student's factor. They are NaN with fewer than two sweeps, and for the biased
    ``sweep_literal``. They know nothing of what truncation changes (:attr:`cut`).

    Attributes:
        truncated_between: the round changed too little (``|v(N) - v({})| < eps``), so nothing was sampled and all
            values are 0.
        converged: whether the stop rule was met at the end. If not, the limit on permutations was reached.
    """

    truncated_between: bool
    converged: bool

    @property
    def cut(self) -> int:
        """How many permutations were truncated with two or more players left, all of whom were credited with 0.

        Together they add less than ``eps``, but one may add, and another one take away, any amount. A single one that
        is left adds less than ``eps``.
        """
        return 0 if self.walks is None else int((np.diff(self.walks.places[:, :-1], axis=1) == 0).any(axis=1).sum())


def gtg(
    value: Utility,
    n: int,
    eps: float = 1e-4,
    max_permutations: int | None = None,
    sweeps: Sequence[Sequence[Sequence[int]]] | None = None,
    seed: int | np.random.Generator = 0,
    *,
    running: Running = "permutation",
    stop: Stop = "every",
) -> GTGEstimate:
    """Estimate the Shapley value by GTG-Shapley: GreedyFed Alg. 2.

    A sweep consists of ``n`` permutations. The k-th permutation begins with player k. After each complete sweep the
    stop rule is tested. It is met if every player has at least 20 stored estimates (an initial 0 and one per
    permutation), and if for every player the mean of ``|last 10 - last| / |last|`` is below 0.01 (0/0 counts as
    converged).

    Args:
        value: the utility. ``value({})`` is the worth of the round's starting model, ``value(N)`` the worth of its
            result. A method ``many``, if there is one, is called once per position of the permutations. The results are
            the same without it.
        n: number of players.
        eps: the truncation threshold, in the unit of the utility, between rounds and within a permutation; 0 never
            truncates.
        max_permutations: the number of permutations after which no new sweep starts. Default: ``50 * n``, or all of
            ``sweeps`` if given.
        sweeps: ``sweeps[tau][k]`` is the permutation of sweep ``tau`` that begins with player ``k``. Default:
            permutations are drawn.
        seed: the seed of the draws, or a numpy generator to use.
        running: how marginal contributions are averaged. ``permutation``: the plain mean over permutations.
            ``sweep_mean``: the mean over sweeps of the mean in each, which is the same number, rounding aside.
            ``sweep_literal``: line 17 as printed with ``tau = 1, 2, ..`` per sweep, which is biased; for reference.
        stop: which estimates must converge: those of ``every`` player or, as in the authors' code, only their ``mean``
            over the players. The mean takes about 20 permutations, since each permutation's values sum to ``v(N) -
            v({})``.

    Returns:
        A :class:`GTGEstimate`. Its values sum to ``v(N) - v({})`` up to ``eps`` (except for ``sweep_literal``).

    Raises:
        ValueError: an argument out of range, an invalid sweep, or a worth that is not finite.

    Examples:
        >>> worths = [0.0, 1.0, 2.0]  # nobody depends on the others: every order finds the same values
        >>> found = gtg(lambda coalition: sum(worths[i] for i in coalition), n=3)
        >>> found.values.tolist(), found.permutations, found.converged  # 7 sweeps make 20 stored estimates
        ([0.0, 1.0, 2.0], 21, True)
    """
    n = whole_number("n", n)
    eps = positive_or_zero("eps", eps)
    for name, given, allowed in (("running", running, get_args(Running)), ("stop", stop, get_args(Stop))):
        if given not in allowed:
            raise ValueError(f"{name} is {given!r}; allowed: {', '.join(allowed)}")
    if max_permutations is not None:
        whole_number("max_permutations", max_permutations)
    sweep, available = _source(n, sweeps, seed)
    limit = max_permutations if max_permutations is not None else 50 * n if sweeps is None else available * n
    budget = min(-(-int(limit) // n), available)  # a sweep that has begun is finished

    memo = Memo(value)
    empty, full = memo.many([frozenset(), frozenset(range(n))])  # line 2
    if abs(full - empty) < eps:  # lines 3-4: between-round truncation
        return GTGEstimate(np.zeros(n), np.full(n, np.nan), 2, memo.distinct, 0, None, True, False)
    averages, evaluations, walked = _Averages(n, running, stop), 2, list[Walks]()
    # The rule cannot hold before 20 values are stored: the sweeps up to there are all needed, so walk as one.
    together = max(1, math.ceil((_MIN_STORED - 1) / n))
    while averages.sweeps < budget and not averages.converged:
        done = averages.sweeps
        block = min(together, budget - done)
        rows = np.concatenate([sweep(tau) for tau in range(done, done + block)])
        marginals, requests, places = walk(memo, rows, empty, full, eps)
        walked.append(Walks(rows, places))
        evaluations += requests
        averages.add(marginals.reshape(block, n, n))
        together = 1
    walks = Walks(np.concatenate([w.rows for w in walked]), np.concatenate([w.places for w in walked]))
    values, errors = averages.result()
    used = averages.sweeps * n
    return GTGEstimate(values, errors, evaluations, memo.distinct, used, walks, False, averages.converged)


class _Averages:
    """The estimates so far, and whether they have settled: lines 17 and 19 of Alg. 2.

    Attributes:
        n: number of players.
        sweeps: how many sweeps are in the averages.
        converged: whether the stop rule holds after the last one.
    """

    def __init__(self, n: int, running: Running, stop: Stop) -> None:
        self.n, self.running, self.stop = n, running, stop
        self.sweeps, self.converged = 0, False
        self._total, self._literal = np.zeros(n), np.zeros(n)
        self._stored = [np.zeros(n)]
        # marginals less those of the first sweep, by place in the sweep and player: their sums, and those of squares
        self._first, self._sums, self._squares = np.zeros((3, n, n))
        self._means: list[Floats] = []

    def add(self, marginals: Floats) -> None:
        """Take in the marginals of complete sweeps, ``[sweeps, permutation, player]``."""
        for one_sweep in marginals:
            self.sweeps += 1
            done = self.sweeps
            # estimates are stored after every permutation, as Alg. 2 does: the stop rule looks at the last ten
            for permutation, marginal in enumerate(one_sweep, start=1):
                self._total = self._total + marginal
                # Line 17, tau = the sweep: the factor is applied n times a sweep.
                self._literal = (done - 1) / done * self._literal + marginal / done
                count = (done - 1) * self.n + permutation
                self._stored.append(self._literal if self.running == "sweep_literal" else self._total / count)
            self._means.append(one_sweep.mean(axis=0))
            self._first = one_sweep if done == 1 else self._first
            apart = one_sweep - self._first
            self._sums, self._squares = self._sums + apart, self._squares + apart**2
        self._stored = self._stored[-_LAST:]  # the rule needs no more
        last = np.array(self._stored)
        last = last.mean(axis=1, keepdims=True) if self.stop == "mean" else last
        self.converged = 1 + self.sweeps * self.n >= _MIN_STORED and _settled(last)  # line 19

    def result(self) -> tuple[Floats, Floats]:
        """Return the values ``[n]`` and their standard errors ``[n]``."""
        means = np.array(self._means)
        errors = np.full(self.n, np.nan)
        if self.sweeps > 1 and self.running != "sweep_literal":
            # The permutations that begin with player k are a stratum. With few sweeps the mean of their variances is
            # known far better than the variance of the few sweeps' means.
            variances = (self._squares - self._sums**2 / self.sweeps) / (self.sweeps - 1)
            errors = np.sqrt(np.maximum(variances, 0.0).sum(axis=0) / self.sweeps) / self.n
            errors *= t_factor(self.sweeps - 1)
        return (means.mean(axis=0) if self.running == "sweep_mean" else self._stored[-1]), errors


def _settled(last: Floats) -> bool:
    """Whether every player's stored estimates ``last [10, n]`` are on average within 1% of the last one."""
    spread = np.abs(last - last[-1]).mean(axis=0)
    # a player whose value is 0 would never be within 1% of it: it has settled if nothing moves
    return bool(np.all((spread < _TOLERANCE * np.abs(last[-1])) | (spread == 0)))


def _source(
    n: int, sweeps: Sequence[Sequence[Sequence[int]]] | None, seed: int | np.random.Generator
) -> tuple[Callable[[int], NDArray[np.int64]], int]:
    """Return a function from a sweep's number to its permutations ``[n, n]``, and how many sweeps there are.

    Drawn sweeps do not end; their number stands for that.
    """
    if sweeps is None:
        draw = generator(seed, "gtg")
        return lambda tau: _draw(n, draw), 2**62
    if not len(sweeps):
        raise ValueError("sweeps is empty; allowed: None or at least 1 sweep of n permutations")
    given = []
    for tau, one_sweep in enumerate(sweeps):
        if [int(row[0]) if len(row) else -1 for row in one_sweep] != list(range(n)):
            raise ValueError(f"sweeps[{tau}] is not allowed: {n} permutations, the k-th of which begins with player k")
        given.append(permutation_rows(one_sweep, n))
    return given.__getitem__, len(given)


def _draw(n: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """Return a random sweep ``[n, n]``: the k-th row begins with player k."""
    rows = np.empty((n, n), dtype=np.int64)
    for k in range(n):  # line 8: player k first, the others permuted
        rows[k, 0] = k
        rows[k, 1:] = draw.permutation(np.delete(np.arange(n), k))
    return rows
