"""A paper's claims as data: ``papers/PAPER/claims.toml`` and its validation.

A file has ``[[claims]]`` and their common settings, ``[defaults]``. A claim has:

* ``name``, short and unique; ``says``, the paper's sentence in our words; ``where``, its place in the paper.
* ``table``: the table, or tables, whose runs decide it; ``recipe`` and ``scale``: which of the runs. Holm's correction
  is over the claims of the same (first) table.
* ``kind`` of contrast, in which ``arm`` and ``against`` name rows of the table. "difference": ``arm`` is above each of
  ``against``. "change": from the second of two ``columns`` to the first, ``arm`` gains more (or loses less) than each
  of ``against``, or gains at all if there are none. "order": ``arm`` is above the first of ``against``, this one above
  the second, and so on. "share": a statement is true in more seeds of ``arm`` than of ``against``, pooled over the
  settings. "equal": ``arm`` has the ``printed`` number, within the ``margin``. "harmless": ``arm`` is less than the
  ``margin`` below each of ``against``. "contrast": the interaction of tiers and distributions, half of the first of
  four ``columns`` less the second, the third and plus the fourth, is larger for ``arm`` than for each of ``against``.
  "spread": ``arm`` deviates less over the seeds (from each setting's median) than each of ``against``.
* ``groups``, ``columns``: the settings, by the table's names. If left out: all. ``over``: "pooled" (the mean over them
  decides) or "each" (all must show it).
* ``variants``: by row, the hyper-parameters to use. Choosing a variant on the test set would invalidate the claim, so
  for a row with several variants one must be named here.
* ``reading``: which number of a run counts. "last": the test at the column's round. "window": the mean of the tests of
  the last fifth of the rounds until then. ``{ mean = [150, 400] }``: the mean of the tests from round 150 to 400.
  ``{ rounds = 90.0 }``: the rounds until that figure; fewer are better. ``{ rounds = "against" }``: by how many percent
  fewer rounds the best of the other row is reached, to half a point (GTFLAT eq. 13, Definition 3). "best": the best
  test until the column's round. "best" needs ``control``: a row with the same freedom to choose its round. The control
  makes a comparison of its own, unless it is in ``against``. Kind "equal" needs no control.
* ``lower``: whether lower figures are better.
* ``printed``: the effect that the paper prints, above 0 if the paper claims one. If left out, it is computed from the
  printed table.
* ``margin``: the smallest effect that matters, above 0. If left out, it is half of the printed effect.
* ``seen``: how many seeds of its runs were kept when the claim was written. It was registered before its runs if this
  is left out, and after them otherwise.
* ``first``: the first seed that counts. A claim or a reading that kept runs suggested is decided by seeds of which
  nothing was kept when it was registered.
* ``later``: a second reading of the claim, which kept runs suggested: the fields in which it differs, its ``first``
  seed, and how many seeds the claim itself had (``seen``). It is a row of its own, and the two share one alpha: half of
  what the claim had not spent by then (its looks at 5 and 10 seeds take a quarter each) is the second reading's.
* ``condition``: what must be so in four fifths of the seeds of every setting; otherwise the claim is *not testable at
  this scale*. "market": ``arm``'s market lives, that is, at least half of the clients trade in half of the tested
  rounds. ``{ trades = 8 }``: it lives, and client 8 trades under ``arm`` or one of ``against``.
* ``cannot``: why the claim cannot be decided here. It is not played and does not count as decided.
* ``why``: in at most 40 words, what this claim's numbers show about the mechanism; printed on the pages.
* ``twin``: an arm with the mechanism's interface and cost but without its game. It makes a comparison of its own, and
  the names of both say which comparison they are.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from typing import Any, Literal

from hanse.base.errors import UserError, gated, nearest
from hanse.lab.statistics import LOOKS, look
from hanse_papers.catalogue import find_table
from hanse_papers.tables import RECIPES, SCALES, Cell, PaperTable, Variant, names_of

KINDS = ("difference", "change", "order", "share", "equal", "harmless", "contrast", "spread")
WIDTH = {"change": 2, "contrast": 4}
"""How many columns a kind of contrast combines; the others combine one."""
Role = Literal["claim", "twin", "control", "later"]


@dataclass(frozen=True)
class Reading:
    """The number to read from a run's tests.

    Attributes:
        kind: which number: "last", "best", "window" (the mean of the tests of the last fifth), "mean" (of those from
            ``first`` to ``last``), "rounds" (until ``target``) or "faster" (by how many percent fewer rounds than the
            other row).
        first: the first round of a mean.
        last: the last round of a mean.
        target: the figure to reach, in the table's unit.
    """

    kind: Literal["last", "best", "window", "mean", "rounds", "faster"]
    first: int = 0
    last: int = 0
    target: float = 0.0

    @property
    def said(self) -> str:
        """The reading in words."""
        rounds = f"mean of the tests from round {self.first} to {self.last}"
        said = {"last": "last test", "best": "best test", "window": "mean of the tests of the last fifth"}
        said |= {"mean": rounds, "rounds": f"rounds to {self.target:g}", "faster": "percent fewer rounds"}
        return said[self.kind]


@dataclass(frozen=True)
class Arm:
    """One row of a table in one setting. It gives a number for each seed.

    Attributes:
        table: the table.
        cell: the cell of the table.
        variant: the variant that is read. None: the cell is computed without a run.
    """

    table: PaperTable
    cell: Cell
    variant: Variant | None


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim, checked against its table. The module's description says what the other fields mean.

    Attributes:
        table: the table whose claims Holm's correction is over.
        arms: ``[settings][1 + against]``. For a "change" the settings come in pairs: after and before; for a "contrast"
            in fours.
        role: whether this is the paper's claim itself, its comparison with a twin or a control, or its later reading.
        weight: its share of the alpha of a claim.
        why: what the claim's numbers show, written by hand. It may be "".
    """

    name: str
    says: str
    where: str
    paper: str
    table: str
    kind: str
    over: str
    reading: Reading
    lower: bool
    printed: float | None
    margin: float
    arms: tuple[tuple[Arm, ...], ...]
    role: Role = "claim"
    why: str = ""
    seen: int = 0
    first: int = 0
    weight: float = 1.0
    condition: str | int | None = None
    cannot: str = ""

    @property
    def seeds(self) -> range:
        """The seeds that count, in their order."""
        return range(self.first, self.first + LOOKS[-1])

    @property
    def rows(self) -> tuple[str, ...]:
        """The names of the rows that are compared, the claim's own first; none where data are missing."""
        return tuple(arm.cell.algorithm for arm in self.arms[0]) if self.arms else ()

    @property
    def drawn_anew(self) -> tuple[str, ...]:
        """What each seed draws: the "split" into clients unless the table fixes it, and "start" and "order" of the
        training. None for a computed claim.
        """
        runs = [arm.variant.sections for setting in self.arms for arm in setting if arm.variant is not None]
        split = ("split",) if all("seed" not in run["data"] for run in runs) else ()
        return (*split, "start", "order") if runs else ()


OWN = ("name", "says", "where", "later", "twin", "control", "cannot", "why")
"""What a later reading has from its claim."""
Find = Callable[[str, str, str], PaperTable]
"""Returns a table of the claims' paper by its name, scale and recipe."""


def _names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_text, value)) and len(set(value)) == len(value)


def _text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and bool(value.strip())


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


FIELDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("name", "says", "where", "arm", "twin", "control", "cannot"), ("a text", _text)),
    **dict.fromkeys(("seen", "first"), ("a whole number, 0 to 1000", lambda v: type(v) is int and v in range(1001))),
    "later": (f"a table with first, seen and other fields, without {', '.join(OWN)}", lambda value: (
        isinstance(value, dict) and value.keys() >= {"first", "seen"} and not value.keys() & set(OWN)
    )),
    "condition": ("market or { trades = CLIENT }", lambda value: value == "market" or (
        isinstance(value, dict) and value.keys() == {"trades"} and type(value["trades"]) is int and value["trades"] >= 0
    )),
    **dict.fromkeys(("against", "groups", "columns"), ("a list of names, each once", _names)),
    "why": ("a text of at most 40 words", lambda value: _text(value) and len(value.split()) <= 40),
    "table": ("a name or a list of names", lambda value: _text(value) or _names(value)),
    "recipe": (" or ".join(RECIPES), lambda value: value in RECIPES),
    "scale": (" or ".join(SCALES), lambda value: value in SCALES),
    "kind": (", ".join(KINDS), lambda value: value in KINDS),
    "over": ("pooled or each", lambda value: value in ("pooled", "each")),
    "variants": ("a table of names", lambda value: isinstance(value, dict) and all(map(_text, value.values()))),
    "reading": ("last, best, window, { mean = [FIRST, LAST] } or { rounds = NUMBER or \"against\" }", lambda value: (
        value in ("last", "best", "window")
        or (isinstance(value, dict) and value.keys() == {"mean"} and isinstance(value["mean"], list)
            and len(value["mean"]) == 2 and all(type(item) is int for item in value["mean"]))
        or (isinstance(value, dict) and value.keys() == {"rounds"}
            and (value["rounds"] == "against" or _number(value["rounds"])))
    )),
    "lower": ("true or false", lambda value: type(value) is bool),
    "printed": ("a number", _number),
    "margin": ("a number above 0", lambda value: _number(value) and value > 0),
}  # fmt: skip
NEEDED = ("name", "says", "where", "table", "kind", "arm")


def load_claims(paper: str) -> tuple[Claim, ...]:
    """Return a paper's claims, each followed by its comparisons with its control and its twin (see the module's text).

    Args:
        paper: the paper's name on the command line.

    Raises:
        UserError: the file is invalid. There is a line for each mistake, with the field, the value and what is allowed.
    """
    file = files("hanse_papers") / paper / "claims.toml"
    with gated(f"{paper}/claims.toml"):
        return read_claims(paper, file.read_text()) if file.is_file() else ()


def read_claims(paper: str, text: str) -> tuple[Claim, ...]:
    """Return the claims of a file's text, as :func:`load_claims` does."""
    where = f"{paper}/claims.toml"
    try:
        document = tomllib.loads(text)
    except ValueError as wrong:
        raise UserError(f"{where}: cannot be read: {' '.join(str(wrong).split())}") from None
    shared, entries = document.get("defaults", {}), document.get("claims", [])
    lines = [f"{where}: {key}: there is no such key{nearest(key, ('claims', 'defaults'))}"
             for key in document.keys() - {"claims", "defaults"}]  # fmt: skip
    if not isinstance(shared, dict) or not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise UserError(*lines, f"{where}: claims are written as [[claims]], what they share as [defaults]")
    found: list[Claim] = []
    find = cache(partial(find_table, paper))
    for place, own in enumerate(entries, 1):
        entry = {**shared, **own}
        if all(isinstance(side.get("variants", {}), dict) for side in (shared, own)):
            entry["variants"] = {**shared.get("variants", {}), **own.get("variants", {})}
        at = f"{where}: {entry['name'] if _text(entry.get('name')) else f'claim {place}'}"
        misfits = _misfits(entry)
        try:
            rows = () if misfits else tuple(_rows(entry, find))
        except UserError as mistake:
            rows, misfits = (), list(mistake.lines)
        taken = [*(earlier.get("name") for earlier in entries[: place - 1]), *(row.name for row in found)]
        misfits += [f"name {row.name}: is there twice; each claim has its own" for row in rows if row.name in taken]
        found += rows
        # what a table's file has wrong is told once, by that file's name
        lines += [line if line.startswith(f"{paper}/") else f"{at}: {line}" for line in misfits]
    if lines:
        raise UserError(*dict.fromkeys(lines))
    return tuple(found)


def _misfits(entry: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a claim's fields, one by one and together, before its table is looked at."""
    lines = [f"{key}: there is no such field{nearest(key, FIELDS)}" for key in entry.keys() - FIELDS.keys()]
    lines += [f"{key}: is missing; must be {FIELDS[key][0]}" for key in NEEDED if key not in entry]
    lines += [f"{key} {entry[key]!r}: must be {what}" for key, (what, fits) in FIELDS.items()
              if key in entry and not fits(entry[key])]  # fmt: skip
    if lines:
        return lines
    kind, against = entry["kind"], entry.get("against", [])
    if kind not in ("change", "equal", "contrast") and not against:
        lines.append(f"against: is missing; a claim of kind {kind} needs at least one arm")
    if same := {entry["arm"]} & {*against, entry.get("twin"), entry.get("control")}:
        lines.append(f"arm {same.pop()!r}: is also what it is compared with; name another row")
    if kind == "share" and len(against) > 1:
        lines.append(f"against {against}: must be one arm for kind share")
    if kind == "equal" and (against or "margin" not in entry):
        lines.append("margin, against: a claim of kind equal has a margin and no other arm")
    if kind in WIDTH and len(entry.get("columns", ())) != WIDTH[kind]:
        meant = "two for kind change, after and before" if kind == "change" else "four for kind contrast"
        lines.append(f"columns {entry.get('columns', [])}: must be {meant}")
    if entry.get("reading") == "best" and "control" not in entry and kind != "equal":
        lines.append("control: is missing; the best round needs an arm with as free a choice of round")
    if entry.get("reading") == {"rounds": "against"} and kind != "difference":
        lines.append(f"reading {entry['reading']}: goes with kind difference")
    return lines


def _rows(entry: Mapping[str, Any], find: Find) -> Iterator[Claim]:
    """Yield a claim, and the same against its control and its twin, each with its later reading. Raises UserError for
    what its table cannot do.
    """
    claim = _claim(entry, "claim", find)
    kind = "difference" if entry["kind"] in ("order", "equal") else entry["kind"]
    roles: list[Role] = [r for r in ("control", "twin") if r in entry and entry[r] not in entry.get("against", ())]
    name = f"{claim.name}, baseline" if "twin" in roles else claim.name
    yield from _readings(entry, replace(claim, name=name), find)
    for role in roles:
        other = {**entry, "kind": kind, "against": [entry[role]], "margin": claim.margin}
        row = replace(_claim(other, role, find), name=f"{claim.name}, {role}", printed=None)
        yield from _readings(other, row, find)


def _readings(entry: Mapping[str, Any], claim: Claim, find: Find) -> Iterator[Claim]:
    """Yield a claim, and behind it its later reading, with which it then shares its alpha."""
    own = entry.get("later")
    if own is None:
        yield claim
        return
    kept = {k: v for k, v in entry.items() if k not in ("later", "printed", "cannot")}
    later = {**kept, "margin": claim.margin, **own}
    wrong = _misfits(later)
    if own["seen"] >= LOOKS[-1] or own["first"] < own["seen"]:
        wrong.append(f"first {own['first']}, seen {own['seen']}: seen must be below {LOOKS[-1]} and not above first")
    if wrong:
        raise UserError(*(f"later: {line}" for line in wrong))
    at = look(later["seen"])
    weight = (1 - (at[0] / LOOKS[-1] if at else 0)) / 2
    yield replace(claim, weight=0.5)
    name = f"{claim.name}, later reading"
    yield replace(_claim(later, "later", find), name=name, table=claim.table, weight=weight, printed=None)


def _claim(entry: Mapping[str, Any], role: Role, find: Find) -> Claim:
    names = [entry["table"]] if isinstance(entry["table"], str) else entry["table"]
    tables = [find(name, entry.get("scale", "paper"), entry.get("recipe", "paper")) for name in names]
    reading, arms = _reading(entry.get("reading", "last")), _arms(tables, entry)
    _check_reading(reading, entry.get("reading"), arms)
    lower, condition = entry.get("lower", False) or reading.kind == "rounds", entry.get("condition")
    trader = condition["trades"] if isinstance(condition, dict) else -1
    runs = [arm.variant.sections["data"] for setting in arms for arm in setting if arm.variant is not None]
    if few := [data["clients"] for data in runs if data.get("clients", math.inf) <= trader]:
        raise UserError(f"condition {condition}: there are {few[0]} clients, from 0 on")
    printed, margin = entry.get("printed"), entry.get("margin")
    if printed is None and role == "claim":
        printed = _printed(entry, arms, -1 if lower else 1)
    if margin is None and arms:
        if printed is None or printed <= 0:
            told = "not known" if printed is None else f"{printed:.4g}"
            raise UserError(f"margin: is missing, and the printed effect is {told}; must be a number above 0")
        margin = printed / 2
    return Claim(
        **{k: entry[k] for k in ("name", "says", "where", "kind", "seen", "first", "cannot") if k in entry},
        paper=tables[0].paper,
        table=tables[0].name,
        over=entry.get("over", "pooled"),
        reading=reading,
        lower=lower,
        printed=printed,
        margin=math.inf if margin is None else float(margin),  # without its data a claim is not judged
        arms=arms,
        role=role,
        why=entry.get("why", "") if role == "claim" else "",
        condition=trader if trader >= 0 else condition,
    )


def _reading(given: Any) -> Reading:
    """Return a reading as a file gives it."""
    if isinstance(given, str):
        return Reading(given)  # type: ignore[arg-type]  # one of the three names that FIELDS allows
    if "mean" in given:
        return Reading("mean", *given["mean"])
    return Reading("faster") if given["rounds"] == "against" else Reading("rounds", target=float(given["rounds"]))


def _arms(tables: Sequence[PaperTable], entry: Mapping[str, Any]) -> tuple[tuple[Arm, ...], ...]:
    """Return the arms setting by setting; none if data of a setting are not here.

    Raises:
        UserError: the tables do not have one of the names.
    """
    rows = [entry["arm"], *entry.get("against", ())]
    wrong = []
    for field, kind, asked in (
        ("arm", "rows", rows[:1]),
        ("against", "rows", rows[1:]),
        ("groups", "groups", entry.get("groups", ())),
        ("columns", "columns", entry.get("columns", ())),
    ):
        known = {name for table in tables for name in names_of(table)[kind]}
        wrong += [f"{field} {name!r}: {entry['table']} has no such {kind[:-1]}{nearest(name, known)}"
                  for name in asked if name not in known]  # fmt: skip
    if wrong:
        raise UserError(*wrong)
    found = []
    for table in tables:
        cells = {(c.group, c.column, c.algorithm): c for c in table.cells}
        held = names_of(table)
        groups = [g for g in held["groups"] if g in entry.get("groups", (g,))]
        if any(group not in {c.group for c in table.cells} for group in groups):
            return ()  # its data are not here; a claim about fewer settings would be another one
        columns = entry.get("columns", held["columns"])
        for group, column in ((g, c) for g in groups for c in columns if (g, c, rows[0]) in cells):
            if missing := [row for row in rows if (group, column, row) not in cells]:
                raise UserError(f"against {missing[0]!r}: {table.name} has it not in {group}, {column}")
            found.append(tuple(_arm(table, cells[group, column, row], entry["variants"]) for row in rows))
    if len(found) % WIDTH.get(entry["kind"], 1):
        raise UserError(f"columns {entry['columns']}: each group must have all of them")
    return tuple(found)


def _arm(table: PaperTable, cell: Cell, variants: Mapping[str, str]) -> Arm:
    """Return an arm with the variant that is read. Raises UserError if it is not clear which."""
    if not cell.variants:
        return Arm(table, cell, None)
    if len(cell.variants) == 1:
        return Arm(table, cell, cell.variants[0])
    asked = variants.get(cell.algorithm)
    known = [v.name for v in cell.variants]
    if asked not in known:
        said = "is missing" if asked is None else f"{asked!r}: there is none"
        raise UserError(f"variants.{cell.algorithm}: {said}; allowed: {', '.join(known)}")
    return Arm(table, cell, cell.variants[known.index(asked)])


def _check_reading(reading: Reading, given: Any, arms: Sequence[Sequence[Arm]]) -> None:
    """Raise UserError for a mean of tests that the runs do not have."""
    for arm in (arm for setting in arms for arm in setting if arm.variant is not None and reading.kind == "mean"):
        sections = arm.variant.sections  # type: ignore[union-attr]
        rounds, every = sections["run"]["rounds"], sections.get("eval", {}).get("every", 1)
        if not 1 <= reading.first <= reading.last <= rounds:
            raise UserError(f"reading {given}: must lie within rounds 1 to {rounds} of {arm.cell.setting}")
        if not any(number % every == 0 or number == rounds for number in range(reading.first, reading.last + 1)):
            raise UserError(f"reading {given}: {arm.cell.setting} is tested every {every} rounds, and never in these")


def _printed(entry: Mapping[str, Any], arms: Sequence[Sequence[Arm]], sign: int) -> float | None:
    """Return the effect that the table prints, against the arm where it is smallest: the mean over the settings if they
    are pooled, else the smallest. None where a number is missing, or for a kind whose effect is not read off so.
    """
    if entry["kind"] not in ("difference", "change", "share") or isinstance(entry.get("reading"), dict):
        return None
    numbers = [[arm.cell.published for arm in setting] for setting in arms]
    if not numbers or any(number is None for setting in numbers for number in setting):
        return None
    means = [[number.mean for number in setting if number is not None] for setting in numbers]
    if entry["kind"] == "change":
        means = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(means[::2], means[1::2], strict=True)]
    by_arm = zip(*([sign * (mine - other) for other in others or [0.0]] for mine, *others in means), strict=True)
    return float(
        min(sum(effects) / len(effects) if entry.get("over") != "each" else min(effects) for effects in by_arm)
    )
