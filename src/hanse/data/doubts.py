"""What may be meant otherwise than it was read: ids among the features, counts taken as classes, labels of one client.

Each function returns lines that a run tells once, before its first round. Nothing here changes a number. What looks
like several rows of one person (:func:`of_columns`, :func:`of_near_rows`) is more than a note: until it is said what a
row is of, nobody is told whether joining pays, and no invoice is made.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.pytorch import torch
from hanse.data.encoding import spread
from hanse.data.kinds import FEW, GAPS, LISTED, NUMBER, Column, Held, first_few, plain
from hanse.data.remedies import IN_PYTHON, Remedies
from hanse.data.units import at_several, numbered, rows_of_each

_CODE = re.compile(r"[+-]?(9+|8+|7+)(\.9+)?")
_WHOLE = np.array(sorted(float(digit * count) for digit in "789" for count in range(1, 16)))  # before the point
_ID = re.compile(r"(^|[\W_])((id|key|uid|uuid|no|nr)s?|ssn)\s*'$|(ID|Id|SSN)\s*'$|'(index|Unnamed: \d+)'$")
SWAPPED = 5.0
"""Standard errors by which a client's features must say the opposite of the others' before its labels are doubted."""
FAR = 5.5
"""Deviations from which on a client's mean of a column is doubted; Hawaii's airline is 5.4 from all flights' mean."""
MOST_COLUMNS = 100
"""Columns of an array, up to which they are looked at one by one."""
MOST_ROWS = 10_000
"""Rows up to which all are looked at for persons."""
ALIKE_ROWS = 0.8
"""The likeness of rows of one value from which on that value may be a person."""
_FEWEST, _MOST = 1.25, 100  # rows of a person, on the mean
_COPIED = 0.1  # the part of rows that are copies from which on they may be a person's
_NEAR = 0.9  # the likeness of a row and the nearest one from which on they may be one person's
_PERSON = re.compile(
    r"^(patient|subject|participant|person|proband|individual|respond(ent)?|mom|mother|family|fam|household|mrn|pid|subid|ssn|ptid|usubjid|subjid)s?([\W_]*(id|no|nr|num|number|code))?$"
    r"|(^|[\W_])(id|nr|uid)$"
    r"|^(child|case|pupil|student|member|customer|animal)s?[\W_]*(id|no|nr|num|number)$",
    re.IGNORECASE,
)
# what has numbers of its own, and is no person
_THING = re.compile(
    r"^(product|item|article|order|invoice|device|machine|batch|lot|store|shop|ward|room|unit|drug|test|lab|station|plot)"
    r"s?[\W_]*(id|no|nr|num|number|code)$",
    re.IGNORECASE,
)
_WHEN = re.compile(r"year|month|date|time|week|season|hour|(^|[\W_])(day|age)s?($|[\W_])", re.IGNORECASE)  # no persons
MOST_SUMS = 20_000_000
"""Sums over clients, classes and features, up to which labels are looked at."""


def of_column(
    name: Column, found: Held, owner: NDArray[Any] | None, where: str, say: Remedies = IN_PYTHON,
    agreed: tuple[float, float] | None = None,
) -> list[str]:  # fmt: skip
    """Return notes on a column of features that may be ids, or numbers that stand for gaps or are of another unit at a
    client, or whose words clients do not share.

    Args:
        name: the column's name.
        found: what it holds.
        owner: ``[n]``, the client of each row, or None.
        where: the words with which notes begin.
        say: what to do about it.
        agreed: the mean and the deviation that were agreed on, if any.
    """
    where = f"{where}: column '{name}'"
    if found.kind in ("whole", "numbers"):
        means = {} if owner is None else _means(found.values[~found.gaps], owner[~found.gaps])
        notes = _maybe_id(found, owner, where), maybe_gaps(found.values, where, say.gap), of_means(means, where, agreed)
        return [note for note in notes if note]
    if owner is None or found.kind != "words":
        return []
    words: dict[str, set[str]] = {}
    for client, one in set(zip(owner[~found.gaps].tolist(), map(str, found.values[~found.gaps]), strict=True)):
        words.setdefault(client, set()).add(one)
    return [note] if (note := no_shared(words, where, say.same.format(name))) else []


def _maybe_id(found: Held, owner: NDArray[Any] | None, where: str) -> str:
    """Return a note if numbers may be ids, "" if not: whole ones that are all different, or that no two clients share,
    or in a column that is called so.
    """
    values = found.values[~found.gaps]
    different, place = np.unique(values, return_inverse=True)
    if len(different) < FEW or not np.equal(np.floor(values), values).all():
        return ""
    once, apart = len(different) == len(values), False
    if owner is not None and len(set(owner.tolist())) > 1:
        ids = numbered(owner[~found.gaps].astype(str))
        apart = np.unique(np.stack([place, ids]), axis=1).shape[1] == len(different)
    if not (_ID.search(where) or (found.kind == "whole" and (once or apart))):
        return ""
    again = "" if once else "; rows with the same one are both trained on and tested on, which makes tests too good"
    return (
        f"{where}: {len(different)} different whole numbers in {len(values)} rows may be ids, which models learn by "
        f"heart: leave the column out if they are{again}"
    )


def maybe_gaps(values: NDArray[Any], where: str, remedy: str = IN_PYTHON.gap) -> str:
    """Return a note if a number such as -999 may say that there is none, "" if not; ``values [n]`` has NaN for gaps."""
    real = values[np.isfinite(values)].astype(np.float64)
    codes = [code for code in gap_codes(real) if code != -1 or len(np.unique(real)) > 3]
    if not codes:
        return ""
    told = " and ".join(f"{code:.7g} in {int((real == code).sum())} of {len(values)} rows" for code in codes[:LISTED])
    return f"{where}: {told}: if this says that there is no value, {remedy}: it is taken as a number"


def of_inputs(x: Any, where: str) -> list[str]:
    """Return notes on the columns of an array ``[n, d]`` in which numbers may stand for gaps; none for other inputs."""
    made = np.asarray(x)
    columns = made.T if made.ndim == 2 and made.dtype.kind in "biuf" and made.shape[1] <= MOST_COLUMNS else ()
    return [note for j, one in enumerate(columns) if (note := maybe_gaps(one, f"{where}, column {j}"))]


def _groups(words: Mapping[Any, set[Any]]) -> list[tuple[list[Any], set[Any]]]:
    """Return the groups of clients that share words, directly or through others, each with all its words."""
    groups: list[tuple[list[Any], set[Any]]] = []
    for client, own in sorted(words.items()):
        near = [group for group in groups if not group[1].isdisjoint(own)]
        groups = [group for group in groups if group[1].isdisjoint(own)]
        first = near[0] if near else ([], set())  # which grows: thousands of clients mostly share one
        for clients, theirs in (*near[1:], ([client], own)):
            first[0].extend(clients)
            first[1].update(theirs)
        groups.append(first)
    return groups


def _told(groups: Iterable[tuple[list[str], list[Any]]]) -> str:
    """Return groups of clients, and what each group has, in words."""
    listed = [
        f"{', '.join(map(repr, clients[:LISTED]))}{' and others' * (len(clients) > LISTED)}: "
        f"{', '.join(map(repr, own[:LISTED]))}"
        for clients, own in groups
    ]
    return first_few(listed, "; ")


def no_shared(words: Mapping[str, set[str]], where: str, remedy: str = "") -> str:
    """Return a note if clients may call the same otherwise in a column, "" if not.

    They share no word with any other and have several each, or one alone lacks words that all others have, and has as
    many that no other has.

    Args:
        words: those of each client by name.
        where: what the note begins with.
        remedy: what the note ends with.
    """
    groups = _groups(words)
    if len(groups) == 1 < len(words) and len(groups[0][1]) <= FEW:
        holders = Counter(chain.from_iterable(words.values()))
        for client, own in sorted(words.items()):
            lacks = sorted(word for word, count in holders.items() if count == len(words) - 1 and word not in own)
            has = sorted(word for word in own if holders[word] == 1)
            if lacks and len(lacks) == len(has):
                told = f"'{client}' alone has {', '.join(map(repr, has))} and lacks {', '.join(map(repr, lacks))}"
                return f"{where}: client {told}: does it call the same otherwise?{remedy}"
    if len(groups) < 2 or min(len(own) for _, own in groups) < 2 or max(len(own) for _, own in groups) > FEW:
        return ""
    told = _told((clients, sorted(own)) for clients, own in sorted(groups))
    return f"{where}: clients that share no word: {told}: do they call the same otherwise?{remedy}"


def _means(values: NDArray[Any], owner: NDArray[Any]) -> dict[str, tuple[float, float]]:
    """Return the mean and the deviation of the values ``[n]`` of each client that has not too few."""
    names, at = np.unique(owner.astype(str), return_inverse=True)
    each = zip(names.tolist(), rows_of_each(at), strict=False)  # of no rows at all there is one part, and no name
    return {name: spread(values[rows]) for name, rows in each if len(rows) >= FEW // 2}


def of_means(means: Mapping[str, tuple[float, float]], where: str, agreed: tuple[float, float] | None = None) -> str:
    """Return a note on clients whose mean of a column is far from the others', "" if none is.

    Args:
        means: the mean and the deviation of each client by name.
        where: what the note begins with.
        agreed: the mean and the deviation agreed on, with which a client without others is compared.
    """
    told, every = [], np.array([*means.values()])
    for k, (name, (mean, _)) in enumerate(means.items()):
        others = np.delete(every, k, axis=0) if len(every) > 1 else np.array([agreed or every[k]])
        middle = others[:, 0].mean()
        deviation = np.sqrt(np.mean(others[:, 1] ** 2 + (others[:, 0] - middle) ** 2))  # of a mixture in equal parts
        if abs(mean - middle) > FAR * deviation:
            told.append(f"{mean:.4g} of '{name}' is far from {middle:.4g} (deviation {deviation:.3g})")
    doubt = "another unit, or another column's values? If so, mend that table"
    return f"{where}: mean {first_few(told, '; mean ')}: {doubt}" if told else ""


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
        return [note] if (note := maybe_gaps(values, f"{where}: targets")) else []
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
    return notes


# ---- several rows of one person


@dataclass(frozen=True)
class Coded:
    """A column as numbers of its different values.

    Attributes:
        codes: int64 ``[n]``, from 0 on in the order of the values; -1 for a gap.
        exact: whether it holds words or whole numbers: others name nobody.
        words: whether it holds words. Counts repeat by chance, and more rarely name anybody.
    """

    codes: NDArray[np.int64]
    exact: bool = True
    words: bool = True

    @staticmethod
    def of(values: Any, gaps: NDArray[np.bool_] | None = None) -> Coded:
        """Return a pandas column, or an array of numbers or of text, ``[n]``, coded.

        Args:
            values: what the column holds. Of pandas' columns, values that cannot be ordered are so by their text.
            gaps: ``[n]``, where an array has none. None: where a number is NaN.
        """
        if hasattr(values, "factorize"):
            if values.dtype.kind not in "biuf":
                try:
                    codes, _ = values.factorize(sort=True)
                except TypeError:  # values of several kinds
                    codes, _ = values.map(str, na_action="ignore").factorize(sort=True)
                return Coded(codes.astype(np.int64))
            values = values.to_numpy(dtype=np.float64, na_value=np.nan)
        if gaps is None:
            gaps = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
        different, codes = np.unique(values[~gaps], return_inverse=True)
        whole = values.dtype.kind != "f" or bool(np.equal(np.floor(different), different).all())
        made = np.full(len(values), -1, np.int64)
        made[~gaps] = codes
        return Coded(made, whole, values.dtype.kind not in "biuf")

    def figures(self) -> NDArray[np.float64]:
        """Return figures ``[n, k]`` whose squared differences say how unlike two rows are: an indicator for each of few
        values, else the ranks.
        """
        if self.codes.max(initial=0) < FEW // 2:
            return np.eye(FEW // 2 + 1)[self.codes]
        order = np.cumsum(np.bincount(self.codes + 1))
        return order[self.codes + 1][:, None] / len(self.codes)


def _likeness(codes: NDArray[np.int64], figures: NDArray[np.float64]) -> tuple[float, float]:
    """Return how alike two rows with the same code are, and two rows with neighbouring codes: 1 if they have the same
    figures, 0 if they are like any two rows (the intraclass correlation).
    """
    count = np.bincount(codes).astype(np.float64)
    sums = np.stack([np.bincount(codes, one) for one in figures.T], axis=1)
    squares = np.bincount(codes, (figures**2).sum(axis=1))
    spread = 2 * figures.var(axis=0).sum()
    if spread == 0:
        return 0.0, 0.0
    same = 2 * (count * squares - (sums**2).sum(axis=1)).sum() / (count * (count - 1)).sum()
    beside = count[1:] * squares[:-1] + count[:-1] * squares[1:] - 2 * (sums[1:] * sums[:-1]).sum(axis=1)
    return 1 - same / spread, 1 - beside.sum() / (count[1:] * count[:-1]).sum() / spread


def of_columns(
    columns: Mapping[Any, Coded], target: Any, owner: NDArray[Any] | None, where: str, say: Remedies = IN_PYTHON
) -> str:
    """Return a line if a column repeats as the name of a person would; else "".

    Its values are words or whole numbers, many, and most rows share theirs with some others. Further, its name says
    so, or labels or features (of numbers, both) hardly differ within a value while those of neighbouring values do. In
    an ordinary column neighbours are alike, too.

    Args:
        columns: all columns but that of the clients, also those that are no features.
        target: which of them is to be predicted.
        owner: the client of each row, or None.
        where: what the line begins with.
        say: what to do about it.
    """
    found: list[tuple[float, Any]] = []
    names = [name for name in columns if name != target]
    figures = {name: columns[name].figures() for name in (target, *names[: FEW // 2])}
    for name in names:
        called = str(name).strip()
        codes, person = columns[name].codes, bool(_PERSON.search(called) and not _THING.search(called))
        rows, sizes = np.flatnonzero(codes >= 0), np.bincount(codes[codes >= 0])
        many = columns[name].exact and len(rows) >= len(codes) / 2 and len(sizes) >= FEW // 2 <= (sizes > 1).sum()
        if not many or not _FEWEST <= len(rows) / len(sizes) <= _MOST or sizes.max() > len(rows) / 5:
            continue
        if _WHEN.search(str(name)) and not person:
            continue
        if len(rows) > MOST_ROWS:  # whole values, so that what repeats still does
            kept = np.random.default_rng(0).permutation(len(sizes))[: max(FEW, len(sizes) * MOST_ROWS // len(rows))]
            rows = rows[np.isin(codes[rows], kept)]
        number = numbered(codes[rows])
        likeness = {c: _likeness(number, of[rows]) for c, of in figures.items() if c != name}
        labels, others = likeness.pop(target), [*likeness.values()]
        features = tuple(np.mean(others, axis=0).tolist()) if len(others) > 1 else (0.0, 0.0)
        alike = [same >= ALIKE_ROWS and beside < 0.7 * same for same, beside in (labels, features)]
        if person or (any(alike) if columns[name].words else all(alike)):
            found.append((person + labels[0] + features[0], name))
    if not found:
        return ""
    name = max(found, key=lambda one: one[0])[1]
    codes, shared = columns[name].codes, ""
    if owner is not None:
        at = codes >= 0
        several = at_several(codes[at], numbered(owner[at].astype(str)))
        shared = f", {several} of them at several clients" if several else ""
    return (
        f"{where}: column {name!r} repeats as a person's name or number would: {(codes >= 0).sum()} rows of "
        f"{codes.max() + 1}{shared}. Rows of one would be trained and tested on. Say {say.group.format(name)} to "
        "keep them together, or 'none' if every row stands for itself"
    )


def of_near_rows(x: NDArray[np.float32], target: Coded, where: str, say: Remedies = IN_PYTHON) -> str:
    """Return a line if the nearest rows have the same target, and rows hardly farther away do not; else "".

    Rows of one person, measured again, do. Where the target follows from the features, it is much the same for the
    farther rows, too.

    Args:
        x: the features ``[n, d]``.
        target: what is to be predicted.
        where: what the line begins with.
        say: what to do about it.
    """
    draw, n = np.random.default_rng(0), len(x)
    measured = [column for column in x.T[:MOST_COLUMNS] if len(np.unique(column[:MOST_ROWS])) >= FEW]
    copies = _copies(x, target.codes)
    # in two columns at least, values of one row are those of its copies alone: few numbers are alike by chance
    if copies > _COPIED and sum(len(np.unique(column)) > (1 - copies) * n / 2 for column in measured) > 1:
        return (
            f"{where}: {copies:.0%} of the rows are exact copies of others, as of one person, which would be trained "
            f"and tested on. {say.units}"
        )
    if n < 8 * FEW or not measured:
        return ""
    ranks = np.stack([column.argsort().argsort() / n for column in measured], axis=1).astype(np.float32)
    asked = draw.permutation(n)[: MOST_ROWS // 50]
    far = torch.cdist(torch.from_numpy(ranks[asked]), torch.from_numpy(ranks))
    far[torch.arange(len(asked)), torch.from_numpy(asked)] = torch.inf
    nearest = far.topk(2 * FEW, largest=False).indices.numpy()
    figures = target.figures()
    spread = 2 * float(figures.var(axis=0).sum())
    apart = ((figures[nearest] - figures[asked][:, None]) ** 2).sum(axis=2).mean(axis=0) / (spread or 1.0)
    near, beyond = 1 - float(apart[0]), 1 - float(apart[-FEW // 2 :].mean())
    if near < _NEAR or beyond > near / 3 or not spread:
        return ""
    return (
        f"{where}: the rows most like a row nearly always have its target, and rows hardly less alike do not "
        f"(likeness {near:.2f} and {beyond:.2f}), as with several rows of a person, which would be trained and tested "
        f"on. {say.units}"
    )


def _copies(x: NDArray[np.float32], codes: NDArray[np.int64]) -> float:
    """Return the part of rows ``x [n, d]`` with their targets' ``codes [n]`` that are exact copies of earlier ones; the
    first 100 columns are compared.
    """
    known = x[:, :MOST_COLUMNS]
    # one sum a row, in one order for all rows: the same for the same rows, and hardly for others
    keys = np.einsum("ij,j->i", known, np.random.default_rng(0).normal(size=known.shape[1]))
    return 1 - len(np.unique(keys + 1j * codes)) / max(1, len(x))


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
    size = np.abs(different) * (1 + 1e-6)  # looked at as text, which takes long, are those between a code and the next
    least = _WHOLE[np.searchsorted(_WHOLE[1:], size, "right")]
    odd = (size >= least) & (size < 1.00001 * (least + 1))
    odd[odd] = [any(_CODE.fullmatch(f"{one:{how}}") for how in (".15g", ".7g")) for one in different[odd]]
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
    labels: Sequence[Any], where: str, remedy: str = "",
) -> list[str]:  # fmt: skip
    """Return notes on classes of one client alone, clients that share no class, and labels that may be swapped.

    Args:
        x: the features ``[n, ...]``; None if they are not numbers.
        y: the class of each row, ``[n]``.
        ids: the client of each row, ``[n]``, from 0 on.
        names: the clients' names.
        labels: what each class was called.
        where: what each note begins with.
        remedy: what each note on classes ends with.
    """
    counts = np.zeros((len(names), len(labels)), np.int64)
    np.add.at(counts, (ids, y), 1)
    if len(names) < 2:
        return []
    notes = of_classes(counts, names, labels, where, remedy)
    return notes if x is None else notes + _swapped(x.reshape(len(x), -1), y, ids, names, labels, where)


def of_classes(
    counts: NDArray[np.int64], names: Sequence[str], labels: Sequence[Any], where: str, remedy: str = "",
    rows: bool = True,
) -> list[str]:  # fmt: skip
    """Return notes on classes of one client alone, and on clients that share no class with others.

    Args:
        counts: each client's rows of each class ``[clients, classes]``.
        names: the clients' names.
        labels: what each class was called.
        where: what each note begins with.
        remedy: what each note ends with.
        rows: whether numbers of rows are told.
    """
    holders, notes = (counts > 0).sum(axis=0), list[str]()
    apart = _groups({c: {*np.flatnonzero(own).tolist()} for c, own in enumerate(counts) if own.any()})
    lonely = [clients[0] for clients, _ in apart if len(clients) == 1 < len(apart)]
    if len(apart) > 1:
        told = _told(
            ([names[c] for c in clients], [labels[k] for k in sorted(own)])
            for clients, own in sorted(apart, key=lambda one: (len(one[0]), one[0]))
        )
        notes.append(f"{where}: clients that share no class: {told}: do they call the same otherwise?{remedy}")
    few = [f"{names[c]!r}: {labels[int(n.argmax())]!r}" for c, n in enumerate(counts) if n.max() == n.sum() >= FEW]
    if 0 < len(few) < len(names) and len(apart) == 1:
        notes.append(f"{where}: clients with a single class: {first_few(few)}: is that its answer in each row?")
    alone = [k for k in np.flatnonzero(holders == 1).tolist() if int(counts[:, k].argmax()) not in lonely]
    if alone:
        holder = {k: int(counts[:, k].argmax()) for k in alone}
        each = [f"{labels[k]!r} ('{names[c]}'{f', rows: {counts[c, k]}' * rows})" for k, c in holder.items()]
        told = first_few(each, "; ")
        doubt = "is each a class, or no answer (drop such rows), or does it call the same otherwise?"
        notes.append(f"{where}: classes that one client alone has: {told}: {doubt}{remedy}")
    return notes


def _swapped(
    x: NDArray[np.float32], y: NDArray[np.int64], ids: NDArray[np.int64], names: Sequence[str], labels: Sequence[Any],
    where: str,
) -> list[str]:  # fmt: skip
    """Return notes on pairs of classes which a client's features tell apart the opposite way from the others'.

    Along the direction between the other clients' class means, the client's two means are compared (Welch's t). The
    direction is mostly that of large clients, so the client must also differ from more than half of the others, each
    by itself. Of two clients, nobody knows which one is right.
    """
    found: dict[str, float] = {}
    if len(labels) > FEW // 2 or len(names) * len(labels) * x.shape[1] > MOST_SUMS:
        return []
    shape = (len(names), len(labels))
    rows = rows_of_each(ids * len(labels) + y, len(names) * len(labels))  # of each client and class
    sums = np.stack([x[some].sum(axis=0, dtype=np.float64) for some in rows]).reshape(*shape, -1)
    counts, every = np.array([len(some) for some in rows]).reshape(shape), sums.sum(axis=0)
    others = counts.sum(axis=0) - counts
    scale = 1.0 / np.where((spread := x.var(axis=0, dtype=np.float64)) > 0, spread, np.inf)
    for a, b in combinations(range(len(labels)), 2):
        both = np.flatnonzero(counts[:, [a, b]].all(axis=1))
        own = sums[both, b] / counts[both, b, None] - sums[both, a] / counts[both, a, None]
        many = len(both) > 2
        for c in np.flatnonzero((np.minimum(counts, others)[:, [a, b]] >= FEW // 2).all(axis=1)).tolist():
            low, high = ((every[k] - sums[c, k]) / others[c, k] for k in (a, b))
            direction = (high - low) * scale
            first, second = (x[rows[c * len(labels) + k]] @ direction for k in (a, b))
            error = np.sqrt(first.var(ddof=1) / len(first) + second.var(ddof=1) / len(second))
            apart = second.mean() - first.mean()
            if not apart < -SWAPPED * error < 0 or 2 * (own @ (own[both == c][0] * scale) < 0).sum() < len(both):
                continue
            who = " and ".join(f"'{names[k]}'" for k in ([c] if many else both.tolist()))
            line = (
                f"{where}: features of {who} tell {labels[a]!r} from {labels[b]!r} the opposite way to "
                f"{'most others' if many else 'each other'}: are labels swapped?"
            )
            found[line] = min(float(apart / error), found.get(line, 0.0))
    return sorted(found, key=found.__getitem__)[: 1 if len(names) == 2 else LISTED]  # the clearest first
