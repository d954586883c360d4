"""Numbers with no more digits than their errors bear, and 95 % intervals in the same words wherever one is printed."""

from __future__ import annotations

import math


def rounded(value: float, error: float | None = None, *, sign: bool = False, most: int = 3) -> str:
    """Return a number with only as many digits as its error justifies: the last is the first digit of the error.

    Args:
        value: the number.
        error: the number's error, or half its interval. None, or an error not above what rounding makes: not known, and
            ``most`` digits are shown.
        sign: write a plus, too.
        most: significant digits where no error is known.

    Examples:
        >>> rounded(0.7034, 0.17), rounded(-8.93, 12.9, sign=True), rounded(0.7034), rounded(1234.5, 30)
        ('0.7', '-9', '0.703', '1234')
        >>> rounded(0.1 + 0.2, 1e-17)
        '0.300'
    """
    known = error is not None and math.isfinite(error) and error > 1e-9 * abs(value)
    last = math.log10(error) if error and known else math.log10(abs(value) or 1.0) // 1 + 1 - most
    places = max(0, -math.floor(last))
    told = f"{value:{'+' if sign else ''}.{places}f}"
    return f"{0:.{places}f}" if float(told) == 0 else told


def agreeing(ours: float, alone: float, half: float) -> tuple[str, str, str]:
    """Return two numbers and their difference with as few digits as it takes for the three to agree.

    The numbers have no more digits than ``half`` (the difference's error) supports, and up to two more if necessary.

    Examples:
        >>> agreeing(90.625, 78.125, 18.0), agreeing(87.5, 81.25, 18.0), agreeing(90.0, 80.0, 5.0)
        (('90.6', '78.1', '+12.5'), ('87.50', '81.25', '+6.25'), ('90', '80', '+10'))
    """
    places = max(0, -math.floor(math.log10(half)))
    for more in range(3):
        shown = [round(value, places + more) for value in (ours, alone, ours - alone)]
        if abs(shown[0] - shown[1] - shown[2]) < 0.5 * 10.0 ** -(places + more):
            break
    last = places + more
    return f"{shown[0]:.{last}f}", f"{shown[1]:.{last}f}", f"{shown[0] - shown[1] + 0.0:+.{last}f}"


def points(told: str) -> str:
    """Return the unit behind a number of percentage points, " point" or " points".

    Examples:
        >>> points("+1"), points("-3")
        (' point', ' points')
    """
    return " point" if told.lstrip("+-") == "1" else " points"


def between(value: float, half: float, *, sign: bool = False) -> str:
    """Return the two ends of an interval, such as "-22 to 4", with the digits that half its width supports.

    Args:
        value: the interval's middle.
        half: half the width of the interval, above 0.
        sign: write a plus, too.
    """
    return " to ".join(ends(value - half, value + half, half, sign=sign))


def ends(low: float, high: float, half: float, *, sign: bool = False) -> tuple[str, str]:
    """Return the ends of an interval with the digits that half its width supports.

    An end is not rounded to 0 if the interval leaves 0 out: then it has its first digit.

    Examples:
        >>> ends(-43.3, -0.1, 21.6), ends(-43.3, 0.1, 21.7)
        (('-43', '-0.1'), ('-43', '0'))
    """
    told = [rounded(end, half, sign=sign) for end in (low, high)]
    if low > 0 or high < 0:
        told = [rounded(e, sign=sign, most=1) if float(t) == 0 else t for e, t in zip((low, high), told, strict=True)]
    return told[0], told[1]
