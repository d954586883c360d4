"""Divides a whole number of units among several receivers without losing or creating one.

Payments are integers, but shares (of a pool, of a bill) are fractions. Every mechanism that pays out by shares uses
:func:`split`. Rounding therefore never breaks the rule that a transaction sums to zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from numbers import Rational


def split(total: int, weights: Sequence[float | Rational]) -> list[int]:
    """Return integers in proportion to ``weights`` that sum to ``total``, by the largest remainder method.

    Each part gets the whole units of its exact share. The remaining units go one each to the parts with the largest
    fractional remainders. Among equal remainders, the earlier part comes first. Shares are computed exactly: a float
    weight counts as the binary fraction that it is. A negative total is split like its absolute value, with signs
    reversed. If all weights are zero, the parts are equal as far as possible.

    Args:
        total: how many units to divide; may be negative or 0.
        weights: one weight for each part, at least 0, on any scale.

    Raises:
        ValueError: there are no weights, a weight is negative, infinite or NaN, or the total is not an integer.

    Examples:
        >>> split(100, [1, 1, 1])
        [34, 33, 33]
        >>> split(10, [0.5, 0.3, 0.2])
        [5, 3, 2]
        >>> split(-100, [2, 1])
        [-67, -33]
    """
    if type(total) is not int:
        raise ValueError(f"total: {total!r}: must be an integer number of units")
    if not weights:
        raise ValueError("weights: []: there must be at least one")
    try:
        exact = [Fraction(w) for w in weights]
    except (ValueError, OverflowError, TypeError):
        raise ValueError(f"weights: {list(weights)}: must be finite numbers") from None
    if min(exact) < 0:
        raise ValueError(f"weights: {list(weights)}: must be at least 0")
    if total < 0:
        return [-part for part in split(-total, weights)]
    whole = sum(exact)
    if not whole:
        exact, whole = [Fraction(1)] * len(exact), Fraction(len(exact))
    shares = [total * w / whole for w in exact]
    parts = [share.numerator // share.denominator for share in shares]
    first = sorted(range(len(parts)), key=lambda i: (parts[i] - shares[i], i))  # largest remainder first, then earlier
    for i in first[: total - sum(parts)]:
        parts[i] += 1
    return parts
