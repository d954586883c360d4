"""Coalitions and their utilities, the input of the values in :mod:`hanse.games.shapley`.

A *utility* (or characteristic function) gives a coalition, a ``frozenset`` of players ``0..n-1``, its worth. Any
function will do. If it also has a method ``many(coalitions)``, the algorithms pass whole batches, so an expensive
utility (the loss of a model) can evaluate many coalitions at once. :class:`Memo` caches a utility.

The other functions are checks and small helpers that the algorithms share.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Coalition = frozenset[int]
Utility = Callable[[Coalition], float]
Floats = NDArray[np.float64]


@runtime_checkable
class BatchUtility(Protocol):
    """A utility that can also evaluate many coalitions in one call."""

    def __call__(self, coalition: Coalition, /) -> float:
        """Return the worth of one coalition."""

    def many(self, coalitions: Sequence[Coalition], /) -> Sequence[float]:
        """Return the worth of each coalition, in the order given."""


def evaluate(value: Utility, coalitions: Sequence[Coalition]) -> Floats:
    """Return the worth of every coalition, ``[len(coalitions)]`` float64.

    Args:
        value: the utility. If it has a method ``many``, this method is called once, and may return a list, an array or
            a tensor.
        coalitions: the coalitions; the list may be empty.

    Raises:
        ValueError: a worth is not finite, or ``many`` returned the wrong number of worths.
    """
    if not coalitions:
        return np.zeros(0)
    if isinstance(value, BatchUtility):
        answer: Any = value.many(coalitions)
        # One transfer for a tensor, instead of one an element.
        numbers = answer.tolist() if hasattr(answer, "tolist") else list(answer)
        if not isinstance(numbers, list) or len(numbers) != len(coalitions):
            got = len(numbers) if isinstance(numbers, list) else "a single number"
            raise ValueError(f"value.many returned {got} for {len(coalitions)} coalitions; allowed: one float each")
    else:
        numbers = [value(coalition) for coalition in coalitions]
    worth = np.array([float(number) for number in numbers], dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(worth))
    if bad.size:
        members = sorted(coalitions[bad[0]])
        raise ValueError(f"value of coalition {members} is {worth[bad[0]]}; allowed: a finite number")
    return worth


class Memo:
    """A utility that evaluates each coalition only once.

    It contains only evaluated numbers, never numbers that an algorithm assumes, as truncation does.

    Attributes:
        requests: how many coalitions were requested, including repetitions.

    Examples:
        >>> game = Memo(lambda coalition: float(len(coalition)))
        >>> game.many([frozenset(), frozenset({1}), frozenset()]), game.distinct, game.requests
        ([0.0, 1.0, 0.0], 2, 3)
        >>> game.places([frozenset({1})])
        [1]
    """

    def __init__(self, value: Utility) -> None:
        self._value = value
        self._known: dict[Coalition, float] = {}
        self._place: dict[Coalition, int] = {}
        self.requests = 0

    @property
    def distinct(self) -> int:
        """How many different coalitions were evaluated so far."""
        return len(self._known)

    @property
    def worths(self) -> dict[Coalition, float]:
        """The worth of each coalition that was evaluated so far."""
        return dict(self._known)

    def __call__(self, coalition: Coalition) -> float:
        """Return the worth of one coalition; it is evaluated if it is new."""
        return self.many([coalition])[0]

    def many(self, coalitions: Sequence[Coalition]) -> list[float]:
        """Return the worth of each coalition. New coalitions are evaluated together, once each."""
        new = [c for c in dict.fromkeys(coalitions) if c not in self._known]
        self._known.update(zip(new, evaluate(self._value, new).tolist(), strict=True))
        self._place.update(zip(new, range(len(self._place), len(self._known)), strict=True))
        self.requests += len(coalitions)
        return [self._known[c] for c in coalitions]

    def places(self, coalitions: Sequence[Coalition]) -> list[int]:
        """Return the position of each coalition in the order of evaluation, from 0.

        Raises:
            KeyError: a coalition that was not evaluated.
        """
        return [self._place[c] for c in coalitions]


def subsets(n: int, chunk_bits: int = 12) -> Iterator[list[Coalition]]:
    """Yield all ``2**n`` coalitions in the order of their bit masks, in lists of at most ``2**chunk_bits``."""
    low: list[Coalition] = [frozenset()]
    low_bits = min(n, chunk_bits)
    for i in range(low_bits):
        low += [c | {i} for c in low]
    for mask in range(2 ** (n - low_bits)):
        high = frozenset(low_bits + b for b in range(n - low_bits) if mask >> b & 1)
        yield [c | high for c in low] if high else list(low)


def generator(seed: int | np.random.Generator, purpose: str) -> np.random.Generator:
    """Return a random generator for a seed and a purpose. If ``seed`` is already a generator, it is returned.

    The same seed with another purpose gives an independent stream.
    """
    if isinstance(seed, np.random.Generator):
        return seed
    key = hashlib.blake2b(f"{int(seed)}|{purpose}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key, dtype=np.uint64)))


def permutation_rows(permutations: Sequence[Sequence[int]], n: int) -> NDArray[np.int64]:
    """Return permutations of ``0..n-1`` as an array ``[count, n]`` int64.

    Raises:
        ValueError: a row is not a permutation. The message shows it.
    """
    rows = [[int(player) for player in permutation] for permutation in permutations]
    for row, given in zip(rows, permutations, strict=True):
        if sorted(row) != list(range(n)) or any(a != b for a, b in zip(row, given, strict=True)):
            raise ValueError(f"permutation {list(given)} is not allowed: each of 0..{n - 1} exactly once")
    return np.array(rows, dtype=np.int64).reshape(len(rows), n)


def positive_or_zero(name: str, number: float) -> float:
    """Return ``number`` as a float. Raises ValueError, naming the argument, unless it is finite and at least 0."""
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{name} is {number}; allowed: a finite number, at least 0")
    return float(number)


def whole_number(name: str, number: int) -> int:
    """Return ``number`` as an int. Raises ValueError, naming the argument, unless it is whole and at least 1."""
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
        raise ValueError(f"{name} is {number!r}; allowed: a whole number, at least 1")
    return int(number)
