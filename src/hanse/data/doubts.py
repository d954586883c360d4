"""What may be meant otherwise than it was read: ids among the features, counts taken as classes, labels of one client.

Each function returns lines that a run tells once, before its first round. Nothing here changes a number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.data.kinds import FEW, GAPS, LISTED, NUMBER, Held, alike, plain

_CODE = re.compile(r"[+-]?(9+|8+|7+)(\.9+)?")
_ID = re.compile(r"(^|[\W_])(id|key|uid|uuid|no|nr)s?'$|ID'$|Id'$")
SWAPPED = 5.0
"""Standard errors by which a client's features must say the opposite of the others' before its labels are doubted."""
MOST_COLUMNS = 100
"""Columns of an array, up to which they are looked at one by one."""
MOST_SUMS = 20_000_000
"""Sums over clients, classes and features, up to which labels are looked at."""


def maybe_id(found: Held, owner: NDArray[Any] | None, where: str) -> str:
    """Return a note if a column of whole numbers seems to name rows, patients or the like; else "".

    Ids differ in all rows. Where several rows have the same id, no two clients share any.

    Args:
        found: the column.
        owner: the client of each row, or None.
        where: what the note begins with, such as "data: patients: column 'id'".
    """
    values = found.values[~found.gaps]
    if found.kind not in ("whole", "numbers") or found.category or not np.equal(np.floor(values), values).all():
        return ""
    different, place = np.unique(values, return_inverse=True)
    if len(different) < FEW:
        return ""
    named, once = bool(_ID.search(where)), len(different) == len(values)
    apart = False
    if owner is not None and len(set(owner.tolist())) > 1:
        ids = np.unique(owner[~found.gaps].astype(str), return_inverse=True)[1]
        apart = np.unique(np.stack([place, ids]), axis=1).shape[1] == len(different)
    if not (named or (found.kind == "whole" and (once or apart))):
        return ""
    again = "" if once else "; rows with the same one are both trained on and tested on, which makes tests too good"
    return (
        f"{where}: {len(different)} different whole numbers in {len(values)} rows may be ids, which models learn by "
        f"heart: leave the column out if they are{again}"
    )


def maybe_gaps(found: Held, owner: NDArray[Any] | None, where: str) -> str:
    """Return a note if some of a column's numbers may stand for gaps; else "". Arguments as :func:`maybe_id`."""
    return _maybe_gaps(found.values, where) if found.kind in ("numbers", "whole") and not found.category else ""


def _maybe_gaps(values: NDArray[Any], where: str) -> str:
    real = values[np.isfinite(values)].astype(np.float64)
    codes = [code for code in gap_codes(real) if code != -1 or len(np.unique(real)) > 3]
    if not codes:
        return ""
    told = " and ".join(f"{code:.7g} in {int((real == code).sum())} of {len(values)} rows" for code in codes[:LISTED])
    return f"{where}: {told}: if this says that there is no value, make it a gap (NaN): it is taken as a number"


def of_inputs(x: Any, where: str) -> list[str]:
    """Return notes on columns of an array ``x [n, d]`` in which numbers may stand for gaps; d is at most 100."""
    columns = np.asarray(x).T if getattr(x, "ndim", 0) == 2 and x.shape[1] <= MOST_COLUMNS else ()
    return [note for j, one in enumerate(columns) if (note := _maybe_gaps(one, f"{where}, column {j}"))]


def other_words(found: Held, owner: NDArray[Any] | None, where: str) -> str:
    """Return a note if clients write several words in a column, and share none of them with any other; else "".

    One word alone, such as a client's region, is what sets clients apart. Arguments as :func:`maybe_id`.
    """
    if owner is None or found.kind != "words":
        return ""
    words: dict[str, set[str]] = {}
    for client, one in set(zip(owner[~found.gaps].tolist(), map(str, found.values[~found.gaps]), strict=True)):
        words.setdefault(client, set()).add(one)
    groups: list[tuple[list[str], set[str]]] = []  # clients that share words, directly or through others
    for client, own in sorted(words.items()):
        near = [group for group in groups if group[1] & own]
        groups = [group for group in groups if not group[1] & own]
        groups.append(([*(c for group in near for c in group[0]), client], own.union(*(group[1] for group in near))))
    if len(groups) < 2 or min(len(own) for _, own in groups) < 2 or max(len(own) for _, own in groups) > FEW:
        return ""
    told = "; ".join(
        f"{', '.join(map(repr, clients[:LISTED]))}{' and others' * (len(clients) > LISTED)}: "
        f"{', '.join(map(repr, sorted(own)[:LISTED]))}"
        for clients, own in sorted(groups)[:LISTED]
    )
    return f"{where}: clients that share no word: {told}: do they call the same otherwise?"


def of_targets(values: NDArray[Any], classes: int | None, where: str) -> list[str]:
    """Return notes on targets that may be classes and were taken as numbers, or the other way.

    Args:
        values: the targets as given, ``[n]``.
        classes: the number of classes that were made of them; None: numbers.
        where: what each note begins with.
    """
    if values.ndim != 1 or not len(values):
        return []
    different = np.unique(values) if values.dtype.kind in "iuf" else values[:0]
    if classes is None:
        if 1 < len(different) <= FEW // 2 and np.equal(np.floor(different), different).all():
            return [
                f"{where}: the targets are floats, numbers to be predicted, and only {len(different)} whole ones: for "
                "classes make them whole numbers, as with .astype(int)"
            ]
        return [note] if (note := _maybe_gaps(values, f"{where}: targets")) else []
    empty = classes - len(different) if len(different) and different.max() == classes - 1 else 0
    if len(different) > FEW or empty:
        without = f", {empty} of which no row has" if empty else ""
        return [
            f"{where}: the targets are whole numbers from {different.min()} to {different.max()}, taken as {classes} "
            f"classes{without}: for numbers to be predicted, such as counts, make them floats, as with .astype(float)"
        ]
    return []


def of_names(names: Sequence[str], labels: Sequence[Any], where: str) -> list[str]:
    """Return notes on clients and classes that may be none, or two that may be one.

    May be none: "nan" and the like, which .astype(str) makes of gaps, and numbers that often stand for gaps, such as a
    class -1. May be one: two written in letters that look the same, such as a Latin and a Cyrillic A.

    Args:
        names: the clients' names.
        labels: what each class that has rows was called.
        where: what each note begins with.
    """
    notes = []
    for what, some, rows in (
        ("client", names, "rows of no known client"), ("class", labels, "rows without an answer")
    ):  # fmt: skip
        numbers = np.array([float(plain(one)) for one in some if NUMBER.fullmatch(plain(one))])
        codes = gap_codes(numbers) if 1 < len(numbers) == len(some) else []
        notes += [
            f"{where}: a {what} is called {one!r}: if these are {rows}, drop them"
            for one in some
            if plain(one).casefold() in GAPS or (codes and float(plain(one)) in codes)
        ]
        if both := alike([(one, 0) for one in some], case=lambda _: False, looks=True):
            notes.append(f"{where}: the {what}{'es' if what == 'class' else 's'} {both} look alike: are they one?")
    return notes


def gap_codes(values: NDArray[np.float64]) -> list[float]:
    """Return those of some numbers that may say that there is no value.

    Such are numbers written in 9s, 8s or 7s, such as -999, and the smallest and the largest of many different numbers
    if several rows have it, which lie further from all others than the others from each other. So is -1 if the others
    are whole and not negative.

    Args:
        values: ``[n]``, without gaps.

    Examples:
        >>> gap_codes(np.array([-999.0, 1, 3, 4, 4])), gap_codes(np.array([-1.0, 0, 1, 1])), gap_codes(np.arange(9.0))
        ([-999.0], [-1.0], [])
    """
    different, rows = np.unique(values, return_counts=True)
    odd = np.array([any(_CODE.fullmatch(f"{one:{how}}") for how in (".15g", ".7g")) for one in different], bool)
    if len(different) > FEW // 2:
        odd[[0, -1]] |= rows[[0, -1]] > 1
    others = different[~odd & (different != -1)]
    if len(others) < 2:
        return []
    far = np.maximum(others[0] - different, different - others[-1]) > others[-1] - others[0]
    below = (different == -1) & (others[0] >= 0) & np.equal(np.floor(others), others).all()
    return different[(odd & far) | below].tolist()  # type: ignore[no-any-return]


def of_clients(
    x: NDArray[np.float32] | None, y: NDArray[np.int64], ids: NDArray[np.int64], names: Sequence[str],
    labels: Sequence[Any], where: str,
) -> list[str]:  # fmt: skip
    """Return notes on classes of one client alone, clients that share no class, and labels that may be swapped.

    Args:
        x: the features ``[n, ...]``; None if they are not numbers.
        y: the class of each row, ``[n]``.
        ids: the client of each row, ``[n]``, from 0 on.
        names: the clients' names.
        labels: what each class was called.
        where: what each note begins with.
    """
    counts = np.zeros((len(names), len(labels)), np.int64)
    np.add.at(counts, (ids, y), 1)
    if len(names) < 2:
        return []
    holders = (counts > 0).sum(axis=0)
    lonely = [c for c in range(len(names)) if counts[c].any() and not ((counts[c] > 0) & (holders > 1)).any()]
    notes = []
    if lonely:
        told = "; ".join(
            f"'{names[c]}' has {', '.join(repr(labels[int(k)]) for k in np.flatnonzero(counts[c])[:LISTED])}"
            for c in lonely[:LISTED]
        )
        more = f"; and {len(lonely) - LISTED} more" if len(lonely) > LISTED else ""
        notes.append(
            f"{where}: clients that share no class with any other: {told}{more}: do they call the same otherwise?"
        )
    alone = [k for k in np.flatnonzero(holders == 1).tolist() if int(counts[:, k].argmax()) not in lonely]
    if alone:
        holder = {k: int(counts[:, k].argmax()) for k in alone}
        told = "; ".join(f"{labels[k]!r} ('{names[c]}', {counts[c, k]} rows)" for k, c in [*holder.items()][:LISTED])
        more = f"; and {len(alone) - LISTED} more" if len(alone) > LISTED else ""
        notes.append(f"{where}: classes that one client alone has: {told}{more}: is each a class, or no answer?")
    return notes if x is None else notes + _swapped(x.reshape(len(x), -1), y, ids, names, labels, where)


def _swapped(
    x: NDArray[np.float32], y: NDArray[np.int64], ids: NDArray[np.int64], names: Sequence[str], labels: Sequence[Any],
    where: str,
) -> list[str]:  # fmt: skip
    """Return notes on pairs of classes which a client's features tell apart the opposite way from all others'.

    Along the direction between the other clients' class means, the client's two means are compared (Welch's t).
    """
    found: list[tuple[float, str]] = []
    if len(labels) > FEW // 2 or len(names) * len(labels) * x.shape[1] > MOST_SUMS:
        return []
    rows = [[np.flatnonzero((ids == c) & (y == k)) for k in range(len(labels))] for c in range(len(names))]
    sums = np.stack([[x[some].sum(axis=0, dtype=np.float64) for some in own] for own in rows])
    counts = np.array([[len(some) for some in own] for own in rows])
    scale = x.var(axis=0, dtype=np.float64)
    for c, (a, b) in product(range(len(names)), combinations(range(len(labels)), 2)):
        others = counts.sum(axis=0) - counts[c]
        if min(counts[c, a], counts[c, b], others[a], others[b]) < FEW // 2:
            continue
        low, high = ((sums[:, k].sum(axis=0) - sums[c, k]) / others[k] for k in (a, b))
        direction = np.divide(high - low, scale, out=np.zeros_like(scale), where=scale > 0)
        first, second = (x[rows[c][k]] @ direction for k in (a, b))
        error = np.sqrt(first.var(ddof=1) / len(first) + second.var(ddof=1) / len(second))
        apart = second.mean() - first.mean()
        if apart < -SWAPPED * error < 0:
            line = (
                f"{where}: client '{names[c]}': its features tell {labels[a]!r} from {labels[b]!r} the opposite way to "
                "all others: are its labels swapped?"
            )
            found.append((float(apart / error), line))
    # the clearest first; of two clients, nobody knows which
    return [line for _, line in sorted(found)[: 1 if len(names) == 2 else LISTED]]
