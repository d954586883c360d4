"""Numbers with no more digits than their errors bear, 95 % intervals, and names, in the same words everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hanse.core.entry import TOKEN, tokens


def rounded(value: float, error: float | None = None, *, sign: bool = False, most: int = 3, some: bool = False) -> str:
    """Return a number with only as many digits as its error justifies: the last is the first digit of the error.

    Args:
        value: the number.
        error: the number's error, or half its interval. None, or an error not above what rounding makes: not known, and
            ``most`` digits are shown.
        sign: write a plus, too.
        most: significant digits where no error is known.
        some: at least its first digit is shown: else 0.02 could be 0 beside 0.3, and 0.56 be 1 beside 2.5.

    Examples:
        >>> rounded(0.02, 0.3), rounded(0.02, 0.3, some=True), rounded(-0.56, 2.5, some=True)
        ('0.0', '0.02', '-0.6')
        >>> rounded(0.7034, 0.17), rounded(-8.93, 12.9, sign=True), rounded(0.7034), rounded(1234.5, 30)
        ('0.7', '-9', '0.703', '1234')
        >>> rounded(0.1 + 0.2, 1e-17)
        '0.300'
    """
    known = error is not None and math.isfinite(error) and error > 1e-9 * abs(value)
    first = math.log10(abs(value) or 1.0) // 1
    last = math.log10(error) if error and known else first + 1 - most
    places = max(0, -math.floor(min(last, first) if some else last))
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


def about(units: int) -> str:
    """Return tokens with two digits after the point, or with two significant digits if below a tenth.

    (The books have all digits.)
    """
    return tokens(round(units, -4) if abs(units) >= TOKEN // 10 else int(float(f"{units:.2g}")))


def percent(share: float | None) -> str:
    """Return a share in percent; a dash if it is not known."""
    return "–" if share is None else f"{100 * share:.1f} %"


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with this many significant digits; a dash for None and NaN.

    Examples:
        >>> number(0.123456), number(-0.0), number(12345.6), number(0.00001234), number(float("nan"))
        ('0.123', '0', '12346', '0.0000123', '–')
    """
    if value is None or value != value:
        return "–"
    if not value:
        return "0"
    told = f"{value:.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.{digits}g}"
    # most readers do not know what 9.4e-06 is
    small = "e-0" in told and abs(value) >= 1e-7
    return np.format_float_positional(float(told), trim="-") if small else told


def called(label: str, *, many: bool = False) -> str:
    """Return clients as the start of a sentence: numbers need the word before them, names do not.

    Examples:
        >>> called("3"), called("Hope"), called("3 and Hope", many=True)
        ('Client 3', 'Hope', 'Clients 3 and Hope')
    """
    return f"{'Clients' if many else 'Client'} {label}" if label[:1].isdecimal() else label


def labelled(label: str, *, many: bool = False) -> str:
    """Return clients within a sentence, or as a label: "client 3", "clients 3 and 4", or the name "Hope"."""
    return f"{'clients' if many else 'client'} {label}" if label[:1].isdecimal() else label


def listed(names: Sequence[str], most: int = 5, last: str = "and") -> str:
    """Join names in words. If there are many, give the first few and the number of others.

    Examples:
        >>> listed(["Hope", "Kiel", "Riga"]), listed(["Hope", "Kiel", "Riga"], most=1), listed(["1", "2"], last="or")
        ('Hope, Kiel and Riga', 'Hope and 2 more', '1 or 2')
    """
    kept = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return kept[0] if len(kept) == 1 else f"{', '.join(kept[:-1])} {last} {kept[-1]}"


def in_stretches(numbers: Sequence[int], most: int = 6) -> str:
    """Return ascending numbers in words, as stretches.

    Examples:
        >>> in_stretches([0]), in_stretches([2, 3, 4]), in_stretches([0, 3, 5, 6, 7])
        ('0', '2 to 4', '0, 3 and 5 to 7')
    """
    found = stretches(numbers)
    told = [str(s[0]) if len(s) == 1 else f"{s[0]} to {s[-1]}" for s in found]
    if len(told) > most:
        told = [*told[: most - 1], f"{sum(map(len, found[most - 1 :]))} more"]
    return listed(told, most)


def stretches(numbers: Sequence[int]) -> list[list[int]]:
    """Return ascending numbers cut where one does not follow the other: [0, 2, 3] becomes [[0], [2, 3]]."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return found
