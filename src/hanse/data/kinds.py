"""What a column holds: where its kind is decided, what a gap is, and what may be lost; also for arrays and names.

A conversion that would lose or invent information is refused with the column's name, and the message says how to ask
for it. Examples are text among numbers, "1" next to 1, a number that float32 cannot hold, and a masked entry. What is
possible but may be meant otherwise is a note: it is told once, before the first round.

There are two rules. :func:`held` reads values that have types, as a frame's or an array's: its text is no number unless
all of it is, since whoever made the frame could have said so. :func:`written` reads the text of a file, in which
everything is text: units and dates are told from words, and people review what was drafted of it.

:func:`lost` tests numbers, and :func:`alike` finds names that are taken for one another. pandas is not imported:
whoever has a frame has installed it.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Context, Decimal
from fractions import Fraction
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError

LISTED = 3
"""Clients, words and columns that a message names."""
LOSS = 1e-3
"""The part of a column's range that rounding to float32 may change."""
ALIKE = "make them one, as with .str.strip().str.lower(), or give them names that differ in more"
FEW = 20
"""Different whole numbers that may still be classes, and rows from which on a column may be an id."""

GAPS = frozenset(
    ["", "na", "n/a", "n.a.", "nan", "nat", "none", "null", "<na>", "?", "-", "--", ".", "missing", "inf", "-inf",
     "infinity"]
)  # fmt: skip
"""Words, in lower case, that may say that there is no value."""
_GAPS_OR_WORDS = frozenset(["none", "missing", "inf", "-inf", "infinity"])

Column = str | int
"""The name of a column; pandas also has columns called 2."""
Kind = Literal["numbers", "whole", "truth", "words", "dates", "nothing"]
Form = Literal["numbers", "words", "dates"]
"""The kinds of columns of features."""

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
# dates, and what a person reads as a number and float() does not, or not as that person means it: "0,5", "1,000", "−5"
LIKE = re.compile(
    r"[<>≤≥~≈]?\s*[+\-−–(]?\s*[$€£¥]?\s*\d([\d.,'’_\s]*\d)?[.,]?([eE][+\-−]?\d+)?\s*[%$€£¥‰)]*"
    r"|\d{1,4}([-./])\d{1,2}\3\d{1,4}([ T].*)?|\d{1,2}:\d{2}(:\d{2}.*)?"
)
_BAND = re.compile(r"\d[\d.,]*\s*([-–]|to)\s*\d[\d.,]*\s*[%$€£¥]?")
_UNIT = re.compile(r"[+\-−]?\d[\d.,]*\s*((?:[^\W\d_]|°)[\w°/^·. ]*)")  # "5 mg", "120 mm Hg", "27 kg/m2"
# remedies that lose no value and swap no month
_REMEDY = (
    "read numbers as numbers (pandas.read_csv has decimal=, thousands= and na_values=) and dates as dates "
    "(pandas.to_datetime has format= and utc=); if words are meant, .astype('category') says so"
)


@dataclass(frozen=True)
class Held:
    """What a column holds.

    Attributes:
        kind: "numbers", "whole" (numbers), "truth" (true or false), "words", "dates", or "nothing" but gaps.
        values: ``[n]``: float64 for numbers, truth, and dates (seconds since 1970, by their own clock), NaN for a gap;
            for words objects, None for a gap.
        gaps: ``[n]``, where there is no value.
        text: the numbers are written as text.
        notes: what may be meant otherwise, one line each.
    """

    kind: Kind
    values: NDArray[Any]
    gaps: NDArray[np.bool_]
    text: bool = False
    notes: tuple[str, ...] = ()

    @property
    def like(self) -> Kind:
        """Its kind, "numbers" for all kinds of numbers."""
        return "numbers" if self.kind in ("whole", "truth") else self.kind

    @staticmethod
    def joined(first: Held, second: Held) -> Held:
        """Return what two parts of a column of one kind hold, one after the other."""
        kind = next((one.like for one in (first, second) if one.kind != "nothing"), first.kind)
        values, gaps = (np.concatenate([getattr(one, key) for one in (first, second)]) for key in ("values", "gaps"))
        return replace(first, kind=first.kind if first.kind == second.kind else kind, values=values, gaps=gaps)


def held(column: Any, where: str, owner: NDArray[Any] | None = None, category: bool = False) -> Held:
    """Return what a column holds.

    Args:
        column: a pandas Series, a numpy array, which may be masked, or a list: ``[n]``.
        where: what messages begin with, such as "data: patients: column 'age'".
        owner: ``[n]``, the client of each row, or None. Messages name those concerned.
        category: whether text is meant as words, whatever it looks like, as that of a pandas category is.

    Raises:
        UserError: it cannot be told.
    """
    kind = getattr(getattr(column, "dtype", None), "kind", "O")
    if str(getattr(column, "dtype", "")) == "category":
        return held(column.astype(object), where, owner, category=True)
    if kind in "biuf":
        return _of_numbers(column, kind)
    column = with_clock(column)
    values = objects(column)
    gaps = np.array([one is None for one in values], bool)
    if gaps.all():
        return Held("nothing", np.full(len(values), np.nan), gaps)
    if kind == "M" or str(getattr(column, "dtype", "")).startswith("datetime64"):
        here = column.dt.tz_localize(None).to_numpy() if hasattr(column, "dt") else column
        return Held("dates", np.where(gaps, np.nan, np.asarray(here, "datetime64[s]").astype(np.int64)), gaps)
    types = {type(one) for one in values[~gaps].tolist()}
    kinds = {_kind(one) for one in types}
    odd = kinds.isdisjoint(("truth", "whole", "numbers", "words"))  # such as the intervals of pandas.cut
    if category and (odd or len(kinds) == 1 or kinds == {"whole", "numbers"}):
        values[~gaps] = [str(one) for one in values[~gaps]]
        return Held("words", values, gaps)
    if kinds == {"words"}:
        return _of_text(values, gaps, where, owner)
    if kinds == {"truth"}:
        return Held("truth", _floats(values, gaps), gaps)
    if kinds <= {"whole", "numbers"}:
        return Held("whole" if kinds == {"whole"} else "numbers", _floats(values, gaps), gaps)
    rows = np.flatnonzero(~gaps)
    if kinds <= {"whole", "numbers", "words"}:
        words = np.array([isinstance(one, str) for one in values], bool)
        with suppress(UserError):
            text = _of_text(values, gaps | ~words, where, owner)
            if text.text and not category:
                return Held("numbers", _floats(values, gaps), gaps, text=True, notes=text.notes)
        rows = np.flatnonzero(words if 2 * words.sum() <= len(rows) else ~words & ~gaps)
    named = ", ".join(sorted(one.__name__ for one in types))
    first = f"{values[rows[0]]!r:.80} in {rows_of(rows, owner)}"
    raise UserError(f"{where}: holds {named} values, such as {first}: {_REMEDY}")


def lost(values: NDArray[np.float64], whole: bool = False, fine: bool = True) -> str:
    """Return what float32 would lose of numbers, as the end of a message, or "" if it holds them.

    Args:
        values: ``[n, ...]``, float64; gaps are not counted.
        whole: they are whole numbers, all of which must be exact.
        fine: whether small differences count. Numbers that are scaled first keep them.
    """
    real = values[np.isfinite(values)]
    if not real.size:
        return ""
    with np.errstate(all="ignore"):
        least, most = float(real.min()), float(real.max())
        short = np.float64(np.float32(real))
        if whole and max(-least, most) >= 2**53:
            return "whole numbers from 9,007,199,254,740,992 on become others as floats: leave ids out"
        if max(-least, most) > float(np.finfo(np.float32).max):
            return f"numbers up to {max(-least, most):.3g} are too large for float32 (3.4e38): take other units"
        if most > least and most - least < float(np.finfo(np.float32).tiny):
            return f"numbers that differ by {most - least:.3g} at most are the same in float32: take other units"
        if whole and fine and (odd := real[short != real]).size:
            return (
                f"the whole number {odd[0]:.0f} becomes {np.float32(odd[0]):.0f} in float32, which is exact up to "
                "16,777,216: take other units or floats, and leave ids out"
            )
        if fine and float(np.abs(short - real).max()) > LOSS * (most - least) > 0:
            return (
                f"numbers from {least:.10g} to {most:.10g} differ by less than float32 can tell: subtract the mean, or "
                "take other units"
            )
    return ""


def plain(value: Any) -> str:
    """Return the text under which a value meets those that people, or other programs, take for the same.

    Examples:
        >>> [plain(one) for one in (1, 1.0, "1", "01", True, "u ", "Ko\\u0308ln", "K\\xc3\\xb6ln") ]
        ['1', '1', '1', '1', '1', 'u', 'Köln', 'Köln']
        >>> plain(10**38 + 7) == plain(f"{10**38 + 7}.0") != plain(10**38 + 8)
        True
    """
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    text = str(value)
    if "Ã" in text or "Â" in text:  # UTF-8 that was read as Latin-1
        with suppress(UnicodeError):
            text = text.encode("latin-1").decode("utf-8")
    text = " ".join("".join(c for c in unicodedata.normalize("NFKC", text) if c.isprintable() or c.isspace()).split())
    if re.fullmatch(r"[+-]?\d+(\.\d*)?", text, re.ASCII):
        return f"{Decimal(text).normalize(Context(prec=len(text))):f}"  # every digit: ids may have many
    return text


def alike(counts: Iterable[tuple[Any, int]], case: Callable[[str], bool] = lambda key: len(key) > 1) -> str:
    """Return pairs of values that cannot be told apart reliably, as part of a message, or "" if there are none.

    Args:
        counts: each different value with its number of rows; 0: rows are not told.
        case: for which texts upper and lower case make no difference. Single letters may be classes of their own.
    """
    known, pairs = dict[str, tuple[Any, int]](), list[str]()
    for value, rows in counts:
        key = plain(value)
        other = known.setdefault(key.casefold() if case(key) else key, (value, rows))
        if other[0] is not value:
            told = [f" ({count} row{'s' * (count != 1)})" if count else "" for count in (other[1], rows)]
            pairs.append(f"{other[0]!r:.200}{told[0]} and {value!r:.200}{told[1]}")
    return first_few(pairs)


def first_few(words: Sequence[str], between: str = ", ", most: int = LISTED) -> str:
    """Return the first of some words and how many more there are, as part of a message.

    Examples:
        >>> first_few(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    return between.join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key by which "client 9" comes before "client 10"."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name)]


def rows_of(rows: NDArray[np.int64], owner: NDArray[Any] | None) -> str:
    """Describe rows in words: how many there are, the first one, and the clients to which they belong.

    Args:
        rows: row numbers, ``[m]``, ascending.
        owner: the client of every row of the table, or None. The clients with most of these rows come first.
    """
    count = f"{len(rows)} row{'s' if len(rows) > 1 else ''} (the first is row {rows[0]})"
    if owner is None:
        return count
    names, counts = np.unique(owner[rows].astype(str), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    listed = [f"{counts[i]} of client '{names[i]}'" for i in order[:LISTED]]
    more = len(names) - LISTED
    return f"{count}: {', '.join(listed)}{f' and of {more} more client' + 's' * (more > 1) if more > 0 else ''}"


def unfinite_rows(found: Held, owner: NDArray[Any] | None, gaps: bool = True) -> str:
    """Return in how many rows numbers are infinite or, with ``gaps``, missing, and of which clients, as part of a
    message; "" if none is.
    """
    rows = np.flatnonzero(~np.isfinite(found.values) if gaps else np.isinf(found.values))
    what = "no number (NaN)" if found.gaps[rows].all() else "no finite number"
    return f"{what if gaps else 'infinite'} in {rows_of(rows, owner)}" if len(rows) else ""


def is_gap(value: Any) -> bool:
    """Return whether a value says that there is none: None, NaN, NaT, pandas' NA, or a masked entry."""
    if value is None or value is np.ma.masked or type(value).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(value, Decimal):
        return value.is_nan()  # of either kind: the signalling one cannot be compared
    return isinstance(value, float | np.floating | np.datetime64 | np.timedelta64) and bool(value != value)


# ---- the text of a file


def number(text: str, unit: str = "") -> float:
    """Return the number that a text is, which may end with its unit. Raises ValueError for any other text."""
    plain = text.removesuffix(unit).rstrip() if unit else text
    if not NUMBER.fullmatch(plain) or not math.isfinite(value := float(plain)):
        raise ValueError
    return value


def seconds(text: str) -> float:
    """Return the seconds since 1970 of a date in ISO's form, by its own clock. Raises ValueError for any other text."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def values_of(texts: Iterable[str], read: Callable[[str], Any]) -> dict[str, Any]:
    """Return the value that ``read`` makes of each text, by text; without those of which it raises ValueError."""
    found = dict[str, Any]()
    for text in texts:
        try:  # suppress() takes as long as reading a number
            found[text] = read(text)
        except ValueError:
            continue
    return found


def written(found: Collection[str]) -> tuple[Form, str, list[str]]:
    """Return what the different texts of a column seem to hold, the unit of numbers, and the texts that are no numbers
    or dates where the greater part is, so that all are taken as words.
    """
    texts = [one for one in sorted(found) if re.match(r"[+-]?\.?\d", one)]
    units = Counter(re.sub(rf"^({NUMBER.pattern})?[\d.,]*\s*", "", one) for one in texts)
    unit = units.most_common(1)[0][0] if units else ""
    unit = "" if re.match(r"\W?\d", unit) else unit  # the rest of a date, or the thousands of a number
    ways: dict[Form, Callable[[str], float]] = {"numbers": partial(number, unit=unit), "dates": seconds}
    for kind, read in ways.items():
        odd = sorted({*found} - values_of(found, read).keys())
        if not odd and any(re.match(r"[+-]?0\d", one) for one in texts) and kind == "numbers":
            break  # codes, of which a number would lose the 0
        if len(odd) < len(found) / 2:
            return ("words" if odd else kind), unit if kind == "numbers" else "", odd
    return "words", "", []


def written_gaps(columns: Iterable[set[str]], said: Iterable[str]) -> list[str]:
    """Return how gaps are written in columns of these texts: as is ``said``, and as gaps usually are. "none", "missing"
    and the like are gaps in columns of numbers or dates alone; else they may be a class, or a word.
    """
    gaps = {*said}
    for own in columns:
        usual = {text for text in own if text.casefold() in GAPS}
        either = {text for text in usual if text.casefold() in _GAPS_OR_WORDS}
        words = bool(either) and written(own - usual)[0] == "words"
        gaps |= usual - either if words else usual
    return sorted(gaps)


def held_text(texts: Sequence[str], gaps: Collection[str], unit: str = "") -> Held:
    """Return what a column of a file holds, ``[n]``: numbers if all of it is but the ``gaps``, else words."""
    missing, different = np.array([text in gaps for text in texts], bool), {*texts}.difference(gaps)
    known = values_of(different, partial(number, unit=unit))
    if len(known) < len(different):
        return Held("words", np.array(texts, np.str_), missing)
    values = np.array([known.get(text, np.nan) for text in texts], np.float64)
    whole = np.equal(np.floor(values), values)[~missing].all()
    return Held("whole" if whole else "numbers", values, missing)


# ---- values of one kind


def _kind(of: type) -> str:
    """Return the kind of a value of this type, or the type's name for one of no kind."""
    if issubclass(of, bool | np.bool_):
        return "truth"
    if issubclass(of, int | np.integer):
        return "whole"
    if issubclass(of, float | np.floating | Decimal | Fraction):
        return "numbers"
    return "words" if issubclass(of, str) else of.__name__


def with_clock(column: Any) -> Any:
    """Return a column, with numpy's dates in place of Arrow's days, which cannot be asked for their clock."""
    days = str(getattr(column, "dtype", "")).startswith(("date32", "date64"))
    return column.astype("datetime64[s]") if days else column


def objects(column: Any) -> NDArray[Any]:
    """Return a column as Python objects ``[n]``, None for a gap."""
    given = list(column) if isinstance(column, list | tuple) or not hasattr(column, "tolist") else column.tolist()
    values = np.empty(len(given), object)
    for i, one in enumerate(given):
        if type(one) is str:  # most, and the rest takes five times as long
            values[i] = one
            continue
        one = one.item() if isinstance(one, np.generic) or (type(one).__module__ == "torch" and one.ndim == 0) else one
        values[i] = None if is_gap(one) else one
    return values


def _floats(values: NDArray[Any], gaps: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return objects that are numbers, or text of numbers, as float64 ``[n]``, NaN for a gap."""
    numbers = np.full(len(values), np.nan)
    for i in np.flatnonzero(~gaps):
        try:
            numbers[i] = float(values[i])
        except OverflowError:  # a whole number beyond float64
            numbers[i] = np.inf
    return numbers


def _of_numbers(column: Any, kind: str) -> Held:
    """Return a column with a type of numbers; masked entries and missing values are gaps."""
    values: NDArray[np.float64]
    if isinstance(column, np.ma.MaskedArray):
        values = np.ma.filled(column.astype(np.float64), np.nan)
    elif hasattr(column, "isna"):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
    else:
        values = np.array(column, np.float64)
    called: Kind = "truth" if kind == "b" else "whole" if kind in "iu" else "numbers"
    return Held(called, values, np.isnan(values))


def _of_text(values: NDArray[Any], gaps: NDArray[np.bool_], where: str, owner: NDArray[Any] | None) -> Held:
    """Return a column of text: words, or numbers if all of it is written as numbers are.

    What only looks like numbers or dates is refused, since a guess may be wrong: '1,000' is 1 or 1000.
    """
    counts = Counter(str(one).strip() for one in values[~gaps].tolist())
    strict = {one for one in counts if NUMBER.fullmatch(one)}
    likes = {one for one in counts if one in strict or LIKE.fullmatch(one)}
    words = counts.keys() - likes

    def at(some: Iterable[str]) -> str:
        chosen = set(some)
        rows = np.flatnonzero([not gap and str(one).strip() in chosen for one, gap in zip(values, gaps, strict=True)])
        return f"{values[rows[0]]!r:.80} in {rows_of(rows, owner)}"

    if strict and strict == counts.keys():
        if coded := [one for one in strict if re.match(r"[+-]?0\d", one)]:
            digits = f"holds text of digits that begins with 0, {at(coded)}, which numbers lose"
            raise UserError(f"{where}: {digits}: {_REMEDY}")
        said = f"{where}: holds numbers as text, which are read as numbers; if these are words, .astype('category')"
        return Held("numbers", _floats(values, gaps), gaps, text=True, notes=(f"{said} says so",))
    # most of the different values, or most of the rows
    many = likes and (2 * len(likes) >= len(counts) or 2 * sum(counts[one] for one in likes) >= counts.total())
    bands = bool(words) and not strict and all(_BAND.fullmatch(one) for one in words)  # "<20", "20-40", ">40"
    if many and not bands:
        odd = f"and {at(words)}" if words else f"such as {at(likes - strict)}"
        raise UserError(f"{where}: holds text of numbers or dates, {odd}: {_REMEDY}")
    notes = [f"{where}: holds words and, as a word, {at(likes)}"] if likes else []
    if empty := {one for one in words if one.casefold() in GAPS}:
        notes.append(f"{where}: {at(empty)} is a word of its own: make it a gap (None) if no value is meant")
    if both := alike(Counter(values[~gaps].tolist()).items()):
        notes.append(f"{where}: {both} are different words")
    units = {found[1] if (found := _UNIT.fullmatch(one)) else "" for one in counts}
    if len(counts) > 1 and len(units) == 1 and "" not in units:
        notes.append(
            f"{where}: holds numbers with a unit, such as {at(words)}, taken as words: cut the unit off to make numbers"
        )
    return Held("words", values, gaps, notes=tuple(notes))
