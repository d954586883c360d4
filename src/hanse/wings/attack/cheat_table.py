"""``hanse attack --table``: which of many known cheats pay under which mechanisms.

``cheats.toml`` beside this file has the rules: mechanisms, cheats, the number of seeds, and the smallest gain that
matters. Each cell plays one cheat under one mechanism, with every seed, against honest play with the same data, models
and draws (:mod:`hanse.wings.attack.search`). Its gains are shares of honest pay. Their Student's t intervals are
corrected over all cells by Holm's method, so all words of a table hold together with 95 % confidence.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hanse.base import toml
from hanse.base.errors import UserError
from hanse.base.files import read_json, read_text, write_whole
from hanse.lab.kept import KeptFile, Store
from hanse.lab.player import Work
from hanse.reports.text_table import TextTable
from hanse.runs.config import Experiment
from hanse.runs.observers import ProgressCallback, untold
from hanse.runs.overrides import name_of
from hanse.runs.setup import build
from hanse.wings.attack.search import RULES, Deviation, Game, Space, Try, scale_of, space_of

PAYS, DOES_NOT, OPEN = WORDS = ("pays", "does not pay", "open")
DRAWN = "drawn.json"
MOST_KEYS = 3  # members that a cheat of the rules may take


@dataclass(frozen=True)
class Rules:
    """What a table plays, and what its words mean.

    Attributes:
        seeds: how many.
        margin: the share of honest pay that a gain must surely stay within to not pay.
        columns: each mechanism's experiment as nested plain values.
        cheats: each cheat's deviation, with the number of members that do it together as "keys".
        digest: the hash of the file of rules.
        smoke: whether this is the small table.
    """

    seeds: int
    margin: float
    columns: Mapping[str, Mapping[str, Any]]
    cheats: Mapping[str, Deviation]
    digest: str
    smoke: bool = False


@dataclass(frozen=True)
class CheatColumn:
    """A mechanism of a table.

    Attributes:
        name: the mechanism's name in the table.
        sections: its experiment.
        members: how many clients there are.
        space: the possible deviations.
        why: why nothing can be measured under it. None: it can.
    """

    name: str
    sections: Mapping[str, Any]
    members: int = 0
    space: Space = field(default_factory=dict)
    why: str | None = None


@dataclass(frozen=True)
class CheatCell:
    """One cheat under one mechanism. Gains are shares of honest pay (:func:`hanse.wings.attack.search.scale_of`).

    Attributes:
        mechanism: the column.
        cheat: the row.
        gains: the cheats' mean gain in each seed that was played.
        failed: why a seed could not be played. None: all were.
        mean: the mean gain. None: there is none.
        low: the lower end of its corrected interval. None: it has no interval.
        high: the upper end.
        word: "pays" (the interval lies above 0), "does not pay" (it ends at most at the margin), or "open".
    """

    mechanism: str
    cheat: str
    gains: Sequence[float] = ()
    failed: str | None = None
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    word: str = OPEN

    @property
    def shown(self) -> str:
        """The word, with the mean gain and its interval in per cent of honest pay."""
        if self.mean is None or self.low is None or self.high is None:
            return self.word
        return f"{self.word} {100 * self.mean:.0f} ({100 * self.low:.0f} to {100 * self.high:.0f})"


@dataclass(frozen=True)
class AttackTable:
    """A played table.

    Attributes:
        rules: its rules.
        columns: the mechanisms.
        cells: those that could be played at all, by mechanism.
        seeds: the seeds.
        commit: the commit that they were drawn from. None: they are 0, 1, ...
    """

    rules: Rules
    columns: Sequence[CheatColumn]
    cells: Sequence[CheatCell]
    seeds: Sequence[int]
    commit: str | None = None

    @property
    def counts(self) -> Counter[str]:
        """How many cells have each word."""
        return Counter(cell.word for cell in self.cells)

    @property
    def failed(self) -> list[CheatCell]:
        """The cells of which a run failed."""
        return [cell for cell in self.cells if cell.failed is not None]

    @property
    def shown(self) -> TextTable:
        """What is shown of each cheat under each mechanism; "": the mechanism gives no occasion to it."""
        found, names = {(one.cheat, one.mechanism): one.shown for one in self.cells}, [one.name for one in self.columns]
        rows = [(cheat, *(found.get((cheat, name), "") for name in names)) for cheat in self.rules.cheats]
        return TextTable(("cheat", *names), tuple(row for row in rows if any(row[1:])))

    def as_json(self) -> dict[str, Any]:
        """Return the table as plain values."""
        return {
            "commit": self.commit, "rules": self.rules.digest, "smoke": self.rules.smoke, "seeds": list(self.seeds),
            "counts": dict(self.counts), "not_measured": {c.name: c.why for c in self.columns if c.why is not None},
            "cells": [asdict(cell) for cell in self.cells],
        }  # fmt: skip


def read_rules(
    own: Mapping[str, Any] | None = None, only: str | None = None, *, smoke: bool = False, seeds: int | None = None
) -> Rules:
    """Return the rules of a table.

    Args:
        own: the user's own experiment, to be played with its own mechanism and with the rules'. None: theirs.
        only: the name of the only mechanism to play. None: all.
        smoke: whether to take the small table.
        seeds: how many, at least 2. None: as many as the rules say.

    Raises:
        UserError: the experiment has deviants of its own, or is not valid, or there are too few seeds.
    """
    if own is not None and "deviant" in own.get("behaviour", {}):
        raise UserError("behaviour.deviant: the table puts its own in this place; leave it out of the file")
    if own is not None:
        Experiment(**own)  # its mistakes are not a mechanism's
    if seeds is not None and seeds < 2:
        raise UserError(f"--seeds {seeds}: must be at least 2, as one run has no interval")
    text = read_text(RULES, 1 << 20)
    given = toml.loads(text)
    small, base = given["smoke"] if smoke else {}, given["experiment"] if own is None else own
    columns = {} if own is None else {f"yours: {name_of(own)}": dict(own)}
    known = given["mechanisms"]
    named = [name for name, changes in known.items() if changes["mechanism"]["name"] == only]
    for name in small.get("mechanisms", known) if only is None else named:
        if own is None:
            columns[name] = {key: {**base.get(key, {}), **known[name].get(key, {})} for key in {**base, **known[name]}}
        else:  # what the rules' mechanisms need of the data, unless the file says otherwise
            data = {"client_validation": given["experiment"]["data"]["client_validation"], **base.get("data", {})}
            columns[name] = {**base, **known[name], "data": data, "run": base.get("run", {})}
    if only is not None and not columns:
        columns[only] = {**base, "mechanism": {"name": only}}
    if smoke:  # a mechanism that does not go with the file (its charter, say) is told later, in its column
        for name, sections in columns.items():
            run = sections.get("run", {})
            rounds = min(run.get("rounds", small["rounds"]), small["rounds"])
            columns[name] = {**sections, "run": {**run, "rounds": rounds}}
    cheats = {name: dict(toml.flat(given["cheats"][name])) for name in small.get("cheats", given["cheats"])}
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Rules(seeds or small.get("seeds", given["seeds"]), given["margin"], columns, cheats, digest, smoke)


def drawn_seeds(rules: Rules, folder: Path, commit: str | None) -> tuple[list[int], str | None]:
    """Return a table's seeds, and the commit from whose hash they follow, and note that commit in the folder.

    Args:
        rules: the rules, which must have been committed before that commit.
        folder: the table's folder. If it has such a note, the note counts.
        commit: the commit's hash, 40 hexadecimal digits. None: what the folder says, or else seeds 0, 1, ...

    Raises:
        UserError: it is no such hash, the folder's seeds were drawn from another one, or the rules have changed since.
    """
    if commit is not None and not re.fullmatch("[0-9a-f]{40}", commit):
        raise UserError(f"--seeds-from {commit}: must be a commit's whole hash, 40 hexadecimal digits")
    note = folder / DRAWN
    if note.exists():
        there = read_json(note)
        if commit not in (None, there["commit"]):
            raise UserError(f"--seeds-from {commit}: {note}: the seeds here were drawn from {there['commit']}")
        if there["rules"] != rules.digest:
            raise UserError(f"{note}: the rules changed since the seeds were drawn: must be another folder (--out)")
        commit = there["commit"]
    elif commit is not None:
        write_whole(note, json.dumps({"commit": commit, "rules": rules.digest}) + "\n")
    if commit is None:
        return list(range(rules.seeds)), None
    hashed = (hashlib.sha256(f"{commit} {k}".encode()).digest() for k in range(rules.seeds))
    return [int.from_bytes(one[:4], "big") >> 1 for one in hashed], commit


def column_of(name: str, sections: Mapping[str, Any]) -> CheatColumn:
    """Return a mechanism with its possible deviations, or why it cannot be played."""
    try:
        experiment = Experiment(**sections)
        return CheatColumn(name, sections, build(experiment).data.num_clients, space_of(experiment))
    except UserError as wrong:
        return CheatColumn(name, sections, why="; ".join(wrong.lines))


def possible(cheat: Deviation, column: CheatColumn) -> bool:
    """Return whether a mechanism gives occasion to a cheat, and leaves somebody honest."""
    asked = {key: value for key, value in cheat.items() if key not in ("keys", "second")}
    return column.members > cheat.get("keys", 1) and all(
        key in column.space and (not isinstance(value, str) or value in column.space[key])
        for key, value in asked.items()
    )


def play_table(
    rules: Rules,
    folder: Path,
    *,
    commit: str | None = None,
    workers: int | None = 1,
    told: ProgressCallback = untold,
    work: Work | None = None,
) -> AttackTable:
    """Play a table, seed by seed, and write it to ``table.json`` and ``table.md`` in the folder.

    Finished runs are kept there: repeat the call to continue.

    Args:
        rules: the rules.
        folder: the folder, which is made if it is missing.
        commit: as for :func:`drawn_seeds`.
        workers: how many processes play. None: one for each core.
        told: a function that is called after every run with the number played and the number in all.
        work: a function that plays one job. None: a run of hanse.

    Raises:
        UserError: as :func:`drawn_seeds`, or no mechanism can be played at all.
    """
    seeds, commit = drawn_seeds(rules, folder, commit)
    columns = [column_of(name, sections) for name, sections in rules.columns.items()]
    if all(column.why is not None for column in columns):
        raise UserError(*(f"{column.name}: {column.why}" for column in columns))
    asked = [{n: cheat for n, cheat in rules.cheats.items() if possible(cheat, column)} for column in columns]
    left = [len(seeds) * (1 + len(cheats)) * (c.why is None) for c, cheats in zip(columns, asked, strict=True)]
    inner, played = Store(folder / "jobs") if commit is None else KeptFile(folder), 0
    gains: dict[tuple[str, str], list[float]] = {}
    failed: dict[tuple[str, str], str] = {}
    scales: dict[str, list[float]] = {column.name: [] for column in columns}

    def count(before: int, number: int, most: int | None, figure: str) -> None:
        """Report a run that ended, the ``number``-th after those ``before``."""
        told(before + number, sum(left), "")

    for k, seed in enumerate(seeds):
        for place, (column, cheats) in enumerate(zip(columns, asked, strict=True)):
            if column.why is not None:
                continue
            # the k-th member and those after it are the cheats
            people = list(dict.fromkeys((k + j) % column.members for j in range(MOST_KEYS)))
            ended = partial(count, played)
            game = Game(column.sections, people, inner, column.members, workers, work, label=column.name, told=ended)
            try:
                game.honest([seed])
            except UserError as wrong:
                columns[place], left[place] = replace(column, why=str(wrong)), (k + 1) * (1 + len(cheats))
                continue
            batch = [
                Try({key: value for key, value in cheat.items() if key != "keys"}, keys=cheat.get("keys", 1))
                for cheat in cheats.values()
            ]
            for n, one in zip(cheats, game.played_all(batch, [seed]), strict=True):
                if one.failed is None:
                    gains.setdefault((column.name, n), []).append(one.gains[seed])
                else:
                    failed[column.name, n] = one.failed
            played += game.played
            scales[column.name].append(scale_of([game.outcomes[seed]], people[:1]))
    for place, column in enumerate(columns):
        if column.why is None and not sum(scales[column.name]):
            columns[place] = replace(column, why="nobody has gained or paid anything")
    cells = []
    for column, cheats in zip(columns, asked, strict=True):
        for n in cheats if column.why is None else ():
            shares = [gain / float(np.mean(scales[column.name])) for gain in gains.get((column.name, n), ())]
            cells.append(CheatCell(column.name, n, shares, failed.get((column.name, n))))
    table = AttackTable(rules, columns, judged(cells, rules.seeds, rules.margin), seeds, commit)
    write_whole(folder / "table.json", json.dumps(table.as_json(), indent=1) + "\n")
    write_whole(folder / "table.md", table.shown.markdown())
    return table


def judged(cells: Sequence[CheatCell], seeds: int, margin: float) -> list[CheatCell]:
    """Return the cells with their intervals and words.

    A cell that lacks a seed, or whose seeds all gain the same, has no interval and is open. Only a cheat that changes
    nothing in any seed does not pay without one.

    Args:
        cells: all cells of a table, with their gains.
        seeds: how many seeds a cell must have.
        margin: the share of honest pay that a gain must surely stay within to not pay.

    Examples:
        >>> cells = [CheatCell("m", "good", [0.9, 1.0, 1.1, 1.0]), CheatCell("m", "bad", [-0.9, -1.0, -1.1, -1.0])]
        >>> [(cell.word, round(cell.low, 3), round(cell.high, 3)) for cell in judged(cells, 4, 0.05)]
        [('pays', 0.87, 1.13), ('does not pay', -1.171, -0.829)]
    """
    from scipy.special import stdtrit  # late: it takes longer to import than a short run

    from hanse.lab.statistics import holm, t_sides

    def error(cell: CheatCell) -> float:
        whole = len(cell.gains) == seeds and seeds > 1 and cell.failed is None
        return float(np.std(cell.gains, ddof=1)) / math.sqrt(seeds) if whole else 0.0

    means, errors = [float(np.mean(cell.gains or [0.0])) for cell in cells], list(map(error, cells))
    p = [
        min(t_sides(mean, spread, seeds)[0], t_sides(mean, spread, seeds, margin)[1]) if spread else 1.0
        for mean, spread in zip(means, errors, strict=True)
    ]
    found = []
    for cell, mean, spread, (_, level) in zip(cells, means, errors, holm(p), strict=True):
        if not spread:
            idle = len(cell.gains) == seeds and seeds > 1 and not any(cell.gains)
            still = replace(cell, mean=mean if cell.gains else None)
            found.append(replace(still, low=0.0, high=0.0, word=DOES_NOT) if idle else still)
            continue
        half = float(stdtrit(seeds - 1, 1 - level / 2)) * spread
        word = PAYS if mean - half > 0 else DOES_NOT if mean + half <= margin else OPEN
        found.append(replace(cell, mean=mean, low=mean - half, high=mean + half, word=word))
    return found
