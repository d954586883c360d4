"""Splits a number of units so that the parts sum to the whole, to the last unit."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from numbers import Rational


def split(total: int, weights: Sequence[float | Rational]) -> list[int]:
    """Return integers in the proportion of ``weights`` that sum to ``total``: the method of the largest remainder.

    Each part gets the whole units of its exact share; the units that are left go one each to the largest fractions
    left over, and among equal ones to the earlier. Shares are computed exactly (a float counts as the binary fraction
    that it is). A negative total is split as its opposite is. Weights that are all zero count as equal.

    Raises ValueError if there are no weights, or one is negative, infinite or not a number, or the total is no integer.
    """
    if type(total) is not int:
        raise ValueError(f"total: {total!r}: must be an integer number of units")
    if not weights:
        raise ValueError("weights: none: there must be somebody to give to")
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
