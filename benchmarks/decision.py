"""Which mechanism should we take? Problems by mechanisms by plays: kept runs, a table, a page and a picture.

    python benchmarks/decision.py                  # plays what is missing and writes the pages (make decision)
    python benchmarks/decision.py --only NAME ...  # the same, for these mechanisms and what they are compared with
    python benchmarks/decision.py --scale smoke    # a few minutes, in a folder of its own (--out)
    python benchmarks/decision.py --pages          # writes the pages, and plays nothing
    python benchmarks/decision.py --check          # ends with 1 if the pages are not what is kept
    python benchmarks/decision.py --again 10       # plays so many kept runs anew; ends with 1 if a number differs

``decision.toml`` says what is played and what decides; it was committed before the runs. Each run is a line of
``benchmarks/results/decision/kept.jsonl.gz`` with its commit and the hash of that file, and may be stopped at any time:
the same command goes on. Plays are *honest*; a cheat of ``hanse attack --table``; or *without* some members, FedAvg
trained anew for the exact Shapley values of retraining.

What is chosen is never measured on what chose it: the worst-off member and the best cheat are chosen on the even splits
and measured on the odd ones, and the other way round (:func:`crossed`). Intervals are those of
:func:`hanse.games.jackknife.split_error`.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import itertools
import json
import math
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from common import markdown
from rich.console import Console

from hanse.base import toml
from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.base.lock import Hold
from hanse.base.toml import flat
from hanse.core.part import Deployment
from hanse.games import shapley
from hanse.games.jackknife import SURE, split_error
from hanse.lab.job import Job, Step, made, seeded
from hanse.lab.kept import KeptFile
from hanse.lab.player import play_all
from hanse.reports.chart import Chart, Curve, Lines, to_csv
from hanse.reports.vega import to_svg, to_vegalite
from hanse.runs.round import LoopState
from hanse.runs.setup import build
from hanse.runs.testing import ask_tests
from hanse.wings.attack.cheat_table import MOST_KEYS, column_of, possible
from hanse.wings.attack.search import RULES, UNUSED, Outcome, gained, play_with_outcome, scale_of, table_of

Floats = np.ndarray
ROOT = Path(__file__).parents[1]
SETTINGS = Path(__file__).with_suffix(".toml")
RESULTS = ROOT / "benchmarks" / "results" / "decision"
MECHANISMS = ROOT / "docs" / "mechanisms"
BEGIN, END = "<!-- decision: made by benchmarks/decision.py from what is kept -->", "<!-- decision: end -->"
ALONE, POOLED, HONEST, WITHOUT = "local", "pooled", "honest", "without "
NUMBERS = ("main", "server", "outcome", "granted", "sizes", "shift", "trained", "bytes", "refused")  # of a kept run
SMALL = 5  # members of a federation that is retrained without each of its groups


# ---- what is played


@dataclass(frozen=True)
class Settings:
    """``decision.toml``, with the cheats that it names.

    Attributes:
        given: the file.
        digest: its hash.
        smoke: whether only the small table is played.
    """

    given: Mapping[str, Any]
    digest: str
    smoke: bool = False

    @property
    def problems(self) -> dict[str, Mapping[str, Any]]:
        """The problems by name, in the order in which they are played."""
        small = self.given["smoke"]
        if self.smoke:
            cut = {key: small[key] for key in ("splits", "cheated")}
            return {name: {**self.given["problems"][name], **cut} for name in small["problems"]}
        return dict(self.given["problems"])

    @property
    def mechanisms(self) -> dict[str, Mapping[str, Any]]:
        """The mechanisms by name."""
        return dict(self.given["mechanisms"])

    def cheats(self, mechanism: str) -> list[str]:
        """Return the cheats that are played under a mechanism, if it gives occasion to them."""
        named = self.given["smoke"] if self.smoke else self.given["cheats"]
        return [*named["harmful"], *(named["paying"] if self.mechanisms[mechanism].get("paid") else ())]

    def splits(self, problem: str, mechanism: str) -> range:
        """Return the splits of a problem under a mechanism: none where it cannot play it."""
        of = self.problems[problem]
        return range(0 if mechanism in of.get("lacks", ()) else of["splits"])

    def job(self, problem: str, mechanism: str, play: str, split: int) -> Job:
        """Return a run. ``play`` is "honest", a cheat, or "without " and the numbers of members."""
        of, row = self.problems[problem], self.mechanisms[mechanism]
        members = 1 if mechanism == POOLED else of["clients"]
        data, train = {**of["data"], "clients": members}, dict(of["train"])
        if mechanism == POOLED:
            data["partition"], train["steps"] = "pooled", train["steps"] * of["clients"]
        if mechanism == ALONE:
            train |= of["alone"]
        chosen = {"clients_per_round": max(1, members // 2)} if row.get("half") else {}
        profiles = {"name": "roles", "roles": ["trader"], "eagerness": [of["eagerness"]] * 2, "cost": [0.2, 0.4]}
        behaviour: dict[str, Any] = {}
        if play.startswith(WITHOUT):
            behaviour = {"leaver": {"clients": [int(c) for c in play.removeprefix(WITHOUT).split()], "at": 0}}
        elif play != HONEST:
            cheat = dict(known_cheats()[play])
            people = cheats_of(split, members)[: cheat.pop("keys", 1)]
            behaviour = {"deviant": table_of(cheat, people)}
        sections = {
            **self.given["experiment"], **{key: one for key, one in row.items() if isinstance(one, Mapping)},
            **({"model": of["model"]} if "model" in of else {}),
            "data": data, "train": train, "mechanism": {**row["mechanism"], **chosen},
            "clients": {"grant": 100.0, "profiles": profiles} | row.get("clients", {}),
            **({"behaviour": behaviour} if behaviour else {}), "eval": of["eval"], "run": of["run"],
        }  # fmt: skip
        return seeded(sections, split, f"{problem}, {mechanism}, {play}, split {split}")

    def planned(self, problem: str, mechanism: str, occasions: Sequence[str]) -> Iterator[tuple[str, int]]:
        """Yield the plays and splits of a problem under a mechanism, honest ones first.

        Args:
            problem: its name.
            mechanism: its name.
            occasions: the cheats to which it gives occasion.
        """
        of = self.problems[problem]
        yield from ((HONEST, split) for split in self.splits(problem, mechanism))
        if mechanism == self.given["regimes"]["plain"] and of["clients"] <= SMALL:
            yield from itertools.product(groups_without(of["clients"]), range(of["cheated"]))
        yield from ((cheat, split) for split in range(of["cheated"]) for cheat in occasions)


@cache
def known_cheats() -> Mapping[str, Mapping[str, Any]]:
    """Return the cheats of ``hanse attack --table`` by name."""
    return {name: dict(flat(cheat)) for name, cheat in toml.loads(RULES.read_text())["cheats"].items()}


def read_settings(file: Path = SETTINGS, *, smoke: bool = False) -> Settings:
    """Return the settings. Raises UserError for a cheat or mechanism that is named but not known."""
    text = file.read_bytes()
    given = toml.loads(text.decode())
    settings = Settings(given, hashlib.sha256(text).hexdigest()[:12], smoke)
    named = itertools.chain.from_iterable(given["cheats"].values())
    wrong = [f"{file}: cheats: '{name}': is not in {RULES.name}" for name in named if name not in known_cheats()]
    wrong += [
        f"{file}: needs: '{need['name']}': among: '{name}': must be one of {', '.join(settings.mechanisms)}"
        for need in given["needs"]
        for name in need["among"]
        if name not in settings.mechanisms
    ]
    lacking = [name for name, row in settings.mechanisms.items() if not isinstance(row.get("mechanism"), Mapping)]
    wrong += [f"{file}: mechanisms.{name}: needs a table: mechanism = {{ name = ... }}" for name in lacking]
    if wrong:
        raise UserError(*wrong)
    for name in settings.mechanisms:  # what is wrong with it is told before anything is played
        settings.job(next(iter(settings.problems)), name, HONEST, 0).checked()
    return settings


def cheats_of(split: int, members: int) -> list[int]:
    """Return the members that cheat in a split, as many as any cheat takes."""
    return list(dict.fromkeys((split + j) % members for j in range(MOST_KEYS)))


def groups_without(members: int) -> list[str]:
    """Return the plays in which at least one member takes part and at least one does not."""
    sizes = range(1, members)
    return [WITHOUT + " ".join(map(str, out)) for size in sizes for out in itertools.combinations(range(members), size)]


def people_of(line: Mapping[str, Any]) -> list[int]:
    """Return the members that cheat in a kept run."""
    return list(line["given"]["behaviour"]["deviant"]["clients"])


@dataclass
class Watched:
    """An observer that keeps what no job's result has.

    Attributes:
        result: the run at its end.
        trained: how many models members trained.
        shift: the largest shift of a row of the table by one member's update in any round: its weight times its length,
            in median lengths of the round's updates. A member's own rows do not count. None: a row is no weighted sum.
    """

    result: Any = None
    trained: int = 0
    shift: float | None = 0.0

    def on_round(self, metrics: Mapping[str, Any], played: Any) -> None:
        """Count the round's models, and measure what each member moved."""
        view = played.view
        if view.updates is None or not len(view.trained):
            return
        seats, mixed = view.trained.seats, view.mixed
        self.trained += len(view.trained)
        steps = (view.trained.rows - view.table.rows[seats.start]).norm(dim=1).double().numpy()
        weights = np.abs(mixed.W[:, : len(steps)]) * (mixed.owner[:, None] != seats.client[None, :])
        moved = float((weights * steps).max(initial=0.0)) / (float(np.median(steps)) or 1.0)
        self.shift = None if mixed.made or self.shift is None else max(self.shift, moved)

    def on_end(self, result: Any) -> None:
        """Keep the run."""
        self.result = result


def work(job: Job, step: Step, digest: str) -> dict[str, Any]:
    """Play a run and return its line."""
    watched, (problem, mechanism, play, _) = Watched(), job.label.rsplit(", ", 3)
    people = cheats_of(job.sections["run"]["seed"], job.sections["data"]["clients"])  # of an honest run those of others
    people = job.sections.get("behaviour", {}).get("deviant", {}).get("clients", people)
    found = play_with_outcome(job, step, watched=people, observers=[watched])
    line = {key: value for key, value in found.items() if key not in UNUSED} | {"settings": digest}
    if found["status"] != "done":
        return line
    main, data = job.sections["eval"]["metrics"][0], build(job.experiment).data
    tested = watched.result.tested
    if mechanism == POOLED:
        tested, data = tested_by_members(job, watched.result, read_settings(), problem)
    line |= {"curves": {}, "tested": [], "bytes": found["bytes"], "trained": watched.trained, "shift": watched.shift}
    line["main"] = [float(f"{x:.7g}") if np.isfinite(x) else None for x in tested[f"test_{main}"]]
    line["server"] = watched.result.metrics[-1].get(f"test/{main}")
    line["sizes"], line["names"] = [int(n) for n in data.sizes], list(data.names)
    if play == HONEST and not job.sections["run"]["seed"]:
        column = column_of(mechanism, job.sections)
        line["occasions"] = [name for name, cheat in known_cheats().items() if possible(cheat, column)]
    return line


def tested_by_members(job: Job, result: Any, settings: Settings, problem: str) -> tuple[Mapping[str, Any], Any]:
    """Return the tests of a pooled model by the members, on their own test rows, and the members' data."""
    split = job.sections["run"]["seed"]
    session = build(settings.job(problem, settings.given["regimes"]["plain"], HONEST, split).experiment)
    held = Deployment(np.zeros(session.data.num_clients, np.int64))
    found = ask_tests(session, session.federation, LoopState(0, result.table, held.rows, {}), held)
    session.engine.close()
    return found.arrays, session.data


def played(settings: Settings, folder: Path, only: Sequence[str], workers: int) -> int:
    """Play what is missing, honest plays before cheats and problems by their turn; return how many runs failed.

    Args:
        settings: what is planned.
        folder: where lines are kept.
        only: the mechanisms to play, with those that they are compared with. Empty: all.
        workers: how many processes play.

    Raises:
        UserError: hanse's own files have changed since the commit that the lines would name.
    """
    if str(made()["commit"]).endswith("+") and not settings.smoke:
        raise UserError("decision: src/ has changes that are in no commit, which kept runs name: commit them first")
    failed, kept = 0, KeptFile(folder)
    base = (ALONE, settings.given["regimes"]["plain"])
    rows = [name for name in settings.mechanisms if not only or name in (*only, *base)]
    folder.mkdir(parents=True, exist_ok=True)
    with Hold(folder) as hold:
        hold.take()
        kept.mend()
        for turn, honest in itertools.product(sorted({of["turn"] for of in settings.problems.values()}), (True, False)):
            problems, seen = [p for p, of in settings.problems.items() if of["turn"] == turn], Kept(settings, folder)
            plays = [
                (split, problem, row, play)
                for problem, row in itertools.product(problems, rows)
                for play, split in settings.planned(problem, row, seen.occasions(problem, row))
                if (play == HONEST) is honest
            ]
            jobs = [settings.job(problem, row, play, split) for split, problem, row, play in sorted(plays)]
            doing = partial(work, digest=settings.digest)
            label = f"{', '.join(problems)}: {HONEST if honest else 'cheats'}"
            done = play_all(jobs, kept, doing, workers=workers, label=label, console=Console(stderr=True))
            failed += len(done.failures)
            for job in [job for job in jobs if job.key in done.failures]:
                print(f"decision: {job.label}: {done.failures[job.key]}", file=sys.stderr)
            if done.played:  # one member takes a third of the room of many
                write_whole(kept.path, gzip.compress(gzip.decompress(kept.path.read_bytes()), mtime=0))
    return failed


def again(folder: Path, count: int) -> int:
    """Play kept runs, drawn at random, anew from their settings, and return how many have other numbers.

    A kept number has the bits of the commit that played it: since then sums may have another order.
    """
    lines = [line for found in KeptFile(folder).lines().values() for line in found if line["status"] == "done"]
    others = 0
    for line in random.Random(7).sample(lines, min(count, len(lines))):
        anew = work(Job(line["key"], line["label"], line["given"]), lambda *of, **more: None, line["settings"])
        pairs = {key: (json.loads(json.dumps(anew.get(key))), line.get(key)) for key in NUMBERS}
        bits = [key for key, (one, other) in pairs.items() if one != other]
        differ = [key for key in bits if not near(*pairs[key])]
        said = f"differs: {', '.join(differ)}" if differ else f"equal in five digits: {', '.join(bits)}"
        print(f"{line['label']}: {said if bits else 'equal'}", flush=True)
        others += bool(differ)
    return others


def near(one: Any, other: Any) -> bool:
    """Return whether two numbers, or lists of numbers, are equal in five digits."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(near, one, other))
    floats = isinstance(one, float) and isinstance(other, float)
    return one == other or (floats and math.isclose(one, other, rel_tol=1e-5))


# ---- what is measured


@dataclass(frozen=True)
class Figure:
    """A mean over splits with half of its 95 % interval (Nadeau and Bengio)."""

    mean: float
    half: float
    splits: int

    @staticmethod
    def of(values: Floats, test: float) -> Figure | None:
        """Return the figure of ``values [J]``, of which NaN are left out; None if there are fewer than two."""
        known = values[np.isfinite(values)]
        if len(known) < 2:
            return None
        return Figure(float(known.mean()), SURE * float(split_error(known, test)), len(known))


def crossed(table: Floats, choose: Callable[[Floats], Any]) -> tuple[Floats, list[int]]:
    """Return each split's number in the column that was chosen by the splits of the other half, and these columns.

    Args:
        table: ``[J, options]``.
        choose: chooses one of the means ``[options]``, the first of several, such as ``np.nanargmin``.

    Returns:
        ``[J]``, and the columns, each once, with those that were as good in the same half. NaN everywhere if there are
        fewer than two splits, or no number.

    Examples:
        >>> crossed(np.array([[0.0, 1.0], [3.0, 1.0], [0.0, 1.0], [3.0, 1.0]]), np.nanargmin)
        (array([1., 3., 1., 3.]), [1, 0])
    """
    found, columns = np.full(len(table), np.nan), []
    half = np.arange(len(table)) % 2
    for side in (0, 1) if len(table) > 1 and np.isfinite(table).any() else ():
        means = np.nanmean(table[half != side], axis=0)
        found[half == side] = table[half == side, int(choose(means))]
        columns += np.flatnonzero(means == means[choose(means)]).tolist()
    return found, list(dict.fromkeys(columns))


def either(names: Sequence[str], columns: Sequence[int]) -> str:
    """Return which columns of :func:`crossed` were chosen, in words: "any" where all are as good."""
    if len(columns) > 2:
        return "any" if len(columns) == len(names) else f"{names[columns[0]]} or {len(columns) - 1} others"
    return " or ".join(names[column] for column in columns)


@dataclass(frozen=True)
class Cell:
    """What is known of a mechanism on a problem.

    Attributes:
        test: the share of test rows.
        values: by measure, a number for each split, ``[J]``.
        chosen: by measure, what was chosen: the member, or the cheat.
        done: how many plays are kept, honest ones and cheats.
        planned: how many there are to be.
    """

    test: float
    values: Mapping[str, Floats] = field(default_factory=dict)
    chosen: Mapping[str, str] = field(default_factory=dict)
    done: tuple[int, int] = (0, 0)
    planned: tuple[int, int] = (0, 0)


class Kept:
    """The kept lines of the planned runs.

    Attributes:
        settings: what is planned.
        lines: by key, a run's last finished line.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        found = KeptFile(folder).lines()
        finished = {key: [line for line in lines if line["status"] == "done"] for key, lines in found.items()}
        self.lines = {key: lines[-1] for key, lines in finished.items() if lines}

    def line(self, problem: str, mechanism: str, play: str, split: int) -> dict[str, Any] | None:
        """Return the line of a run, or None."""
        return self.lines.get(self.settings.job(problem, mechanism, play, split).key)

    def occasions(self, problem: str, mechanism: str) -> list[str]:
        """Return the planned cheats to which a mechanism gives occasion; none until its first run is kept."""
        first = self.line(problem, mechanism, HONEST, 0)
        return [name for name in self.settings.cheats(mechanism) if first and name in first["occasions"]]

    @cached_property
    def cells(self) -> dict[tuple[str, str], Cell]:
        """Every mechanism on every problem."""
        pairs = itertools.product(self.settings.problems, self.settings.mechanisms)
        return {(problem, mechanism): self._cell(problem, mechanism) for problem, mechanism in pairs}

    @property
    def few(self) -> int:
        """The fewest splits of which a number is shown."""
        return 2 if self.settings.smoke else int(self.settings.given["few"])

    def figure(self, problem: str, mechanism: str, measure: str) -> Figure | None:
        """Return a measure, or None where it has too few splits."""
        cell = self.cells[problem, mechanism]
        found = Figure.of(cell.values[measure], cell.test) if measure in cell.values else None
        return None if found is None or found.splits < self.few else found

    @cached_property
    def splits(self) -> dict[str, tuple[list[int], list[int]]]:
        """By problem, the splits that all begun mechanisms have, and those of them that all have with every cheat. Only
        these count, so that no mechanism is compared on a split that another one lacks.
        """
        found = {}
        for problem, of in self.settings.problems.items():
            common = set(range(of["splits"])), set(range(of["cheated"]))
            for name in self.settings.mechanisms:
                cheats = self.occasions(problem, name)
                honest = {s for s in common[0] if self.line(problem, name, HONEST, s)}
                cheated = {s for s in common[1] if all(self.line(problem, name, cheat, s) for cheat in cheats)}
                common = honest if honest or name == ALONE else common[0], cheated or common[1]
            found[problem] = sorted(common[0]), sorted(common[0] & common[1])
        return found

    def _cell(self, problem: str, mechanism: str) -> Cell:
        of, cheats = self.settings.problems[problem], self.occasions(problem, mechanism)
        test, (splits, whole) = of["data"]["client_test"], self.splits[problem]
        own, cheated = self.settings.splits(problem, mechanism), range(of["cheated"])
        plays = [(HONEST, s) for s in own], [*itertools.product(cheats, cheated)]
        lines = {play: one for play in itertools.chain(*plays) if (one := self.line(problem, mechanism, *play))}
        done, planned = tuple(sum(play in lines for play in each) for each in plays), tuple(map(len, plays))
        whole = whole if cheats and all(play in lines for play in itertools.product(cheats, whole)) else []
        if not splits or (HONEST, splits[0]) not in lines:
            return Cell(test, done=done, planned=planned)
        honest = {s: lines[HONEST, s] for s in splits}
        alone = {s: self.lines[self.settings.job(problem, ALONE, HONEST, s).key] for s in splits}
        ranks = {s: range(of["clients"]) if of["own"] else one["sizes"] for s, one in alone.items()}
        order = {s: np.argsort(rank, kind="stable") for s, rank in ranks.items()}
        mains = np.array([np.array(honest[s]["main"], float)[order[s]] for s in alone])
        gains = mains - np.array([np.array(alone[s]["main"], float)[order[s]] for s in alone])
        better = np.where(np.isnan(gains), np.nan, gains > 0)
        worst, members = crossed(gains, np.nanargmin)
        names = alone[splits[0]]["names"] if of["own"] else [f"{k + 1}. smallest" for k in range(of["clients"])]
        values = {
            "gain": np.nanmean(gains, axis=1), "better": np.nanmean(better, axis=1), "worst": worst,
            "main": np.nanmean(mains, axis=1),
            "shift": np.array([one["shift"] for one in honest.values()], float),
            "models": np.array([one["trained"] for one in honest.values()], float),
            "megabytes": np.array([sum(one["bytes"].values()) / 1e6 for one in honest.values()]),
            "seconds": np.array([one["cpu_seconds"] for one in honest.values()]),
        }  # fmt: skip
        chosen = {"worst": either(names, members)}
        if whole:
            moved = [[lines[cheat, s]["shift"] for cheat in cheats] for s in whole]
            values["any shift"] = np.array(moved, float).max(axis=1)
            under = np.array([[self._others(lines[c, s], alone[s]) for c in cheats] for s in whole])
            values["under"], columns = crossed(under, np.nanargmin)
            chosen["under"] = either(cheats, columns)
        if self.settings.mechanisms[mechanism].get("paid"):
            held = {s: Outcome.of(one) for s, one in honest.items()}
            pays = [one.held - one.granted for one in held.values()]
            values |= {"sum": np.nansum(pays, axis=1), "least": np.nanmin(pays, axis=1)}
            worths = {s: worth for s in held if (worth := self._worth(problem, s)) is not None}
            if worths:
                with np.errstate(invalid="ignore"):  # who are paid alike have no correlation
                    values["worth"] = np.array([np.corrcoef(held[s].held, worths[s])[0, 1] for s in worths])
            if whole:
                values["keeps"], columns = crossed(self._gains(lines, held, cheats, whole), np.nanargmax)
                chosen["keeps"] = either(cheats, columns)
        return Cell(test, values, chosen, done, planned)

    @staticmethod
    def _others(cheated: Mapping[str, Any], alone: Mapping[str, Any]) -> float:
        """Return what members that do not cheat gain over training alone."""
        gains = np.array(cheated["main"], float) - np.array(alone["main"], float)
        return float(np.nanmean(np.delete(gains, people_of(cheated))))

    @staticmethod
    def _gains(
        cheated: Mapping[tuple[str, int], Any],
        held: Mapping[int, Outcome],
        cheats: Sequence[str],
        splits: Sequence[int],
    ) -> Floats:
        """Return the gains of cheats ``[splits, cheats]`` over honest play, in shares of honest pay."""
        scale = np.mean([scale_of([held[s]], people_of(cheated[cheats[0], s])[:1]) for s in splits]) or np.nan
        plays = [[(cheated[cheat, s], held[s]) for cheat in cheats] for s in splits]
        return np.array([[gained(Outcome.of(one), own, people_of(one)) for one, own in row] for row in plays]) / scale

    def _worth(self, problem: str, split: int) -> Floats | None:
        """Return the members' exact Shapley values ``[N]`` of training the plain mechanism anew; None if not played.

        The empty coalition counts as 0, which adds the same to all.
        """
        members, plain = self.settings.problems[problem]["clients"], self.settings.given["regimes"]["plain"]
        if members > SMALL:
            return None
        plays = {play: self.line(problem, plain, play, split) for play in (HONEST, *groups_without(members))}
        if None in plays.values():
            return None

        def value(group: frozenset[int]) -> float:
            out = " ".join(str(c) for c in range(members) if c not in group)
            return 0.0 if not group else float(plays[WITHOUT + out if out else HONEST]["server"])

        return np.asarray(shapley.exact(value, members))


# ---- what the page says

MEASURES = {
    "gain": ("mean gain", 100, "{:+z.1f} ± {:.1f}"),
    "better": ("better off, %", 100, "{:.0f}"),
    "worst": ("worst-off member", 100, "{:+z.1f} ± {:.1f}"),
    "under": ("others under the worst cheat", 100, "{:+z.1f} ± {:.1f}"),
    "keeps": ("gain of the best cheat, % of honest pay", 100, "{:+z.0f} ± {:.0f} %"),
    "worth": ("pay and retrained share", 1, "{:+z.2f} ± {:.2f}"),
    "shift": ("largest shift", 1, "{:.2f}"),
    "any shift": ("largest shift by a cheat", 1, "{:.2f}"),
    "sum": ("money of all members beyond their grants", 1, "{:+z.2f}"),
    "least": ("least money of a member beyond its grant", 1, "{:+z.2f}"),
    "main": ("metric", 100, "{:.1f}"),
    "models": ("models", 1, "{:.0f}"),
    "megabytes": ("MB", 1, "{:.2f}"),
    "seconds": ("s", 1, "{:.2f}"),
}
"""What the tables show: title, factor, and how mean and half of the interval are written."""
CHEATS = ("under", "keeps")  # measures of what a cheat does
LESS = ("keeps",)  # measures of which less is better
REGIMES = ("pays", "does not", "depends")


def regime(kept: Kept, problem: str) -> str | None:
    """Return whether joining "pays", "does not" or "depends", by the plain runs; None if there are too few."""
    rule = kept.settings.given["regimes"]
    gain, better = (kept.figure(problem, rule["plain"], measure) for measure in ("gain", "better"))
    if gain is None or better is None:
        return None
    if gain.mean - gain.half > 0 and better.mean >= rule["better"]:
        return "pays"
    return "does not" if gain.mean + gain.half < kept.settings.given["smallest"] else "depends"


def best_of(kept: Kept, need: Mapping[str, Any], problems: Sequence[str]) -> str:
    """Return the mechanism of a need with the best mean of its measure over problems that have it for all."""
    sign = -1 if need["by"] in LESS else 1
    found = {name: [kept.figure(p, name, need["by"]) for p in problems] for name in need["among"]}
    return max(found, key=lambda name: sign * sum(one.mean for one in found[name] if one is not None))


def within(kept: Kept, need: Mapping[str, Any], problem: str, name: str) -> bool:
    """Return whether a mechanism is as good as the best one on a problem: 0 lies in the interval of their difference,
    or the difference does not matter.
    """
    measure, given = need["by"], kept.settings.given
    pair = [kept.cells[problem, one].values[measure] for one in (best_of(kept, need, [problem]), name)]
    count = min(map(len, pair))
    apart = Figure.of(pair[0][:count] - pair[1][:count], kept.cells[problem, name].test)
    smallest = given["margin"] if measure in LESS else given["smallest"]
    return apart is not None and abs(apart.mean) <= max(apart.half, smallest)


def ready(kept: Kept, need: Mapping[str, Any]) -> dict[str, str]:
    """Return the problems on which all mechanisms of a need have its measure, with their regimes."""
    found = {problem: regime(kept, problem) for problem in kept.settings.problems}
    return {
        problem: word
        for problem, word in found.items()
        if word and all(kept.figure(problem, name, need["by"]) for name in need["among"])
    }


def left_out(kept: Kept, need: Mapping[str, Any]) -> tuple[int, int, float]:
    """Return on how many problems the rule named a mechanism as good as the best one without having seen them, on how
    many it was tried, and how many hits a mechanism drawn at random would have. Problems of the same regime decide, or
    where there is none, all others.
    """
    of, hits, chance = ready(kept, need), 0, 0.0
    for problem in of if len(of) > 1 else ():
        others = [other for other in of if other != problem]
        alike = [other for other in others if of[other] == of[problem]]
        good = [name for name in need["among"] if within(kept, need, problem, name)]
        hits += best_of(kept, need, alike or others) in good
        chance += len(good) / len(need["among"])
    return hits, len(of) if len(of) > 1 else 0, chance


def answer(kept: Kept, need: Mapping[str, Any], joining: str) -> tuple[str, str, str]:
    """Return what to take for a need where joining "pays", "does not" or "depends", what the worst-off member gains by
    it, and of what to beware; or that the page cannot say, and why.
    """
    (hits, tried, _), of, given = left_out(kept, need), ready(kept, need), kept.settings.given
    if hits < given["passes"] * tried:
        return "cannot say", "", "the rule missed too often"
    alike = [problem for problem in kept.settings.problems if regime(kept, problem) == joining]
    problems = [problem for problem in alike if problem in of]
    if not problems:
        lacks = {p: next(name for name in need["among"] if not kept.figure(p, name, need["by"])) for p in alike}
        why = "; ".join(f"{p} {shown(kept, p, name, need['by'])}" for p, name in lacks.items())
        return "cannot say", "", why or "no such problem is played"
    name = best_of(kept, need, problems)
    if name == ALONE:
        return f"`{name}`", "0", "nothing: no update reaches others"
    warned = "keeps" if kept.settings.mechanisms[name].get("paid") else "under"
    gains, beware = ("; ".join(f"{p} {shown(kept, p, name, one)}" for p in problems) for one in ("worst", warned))
    beware = re.sub(r" (\([^)]*\))(?=; [^(;]*\1)", "", beware)  # what the next problem names, too, is named there
    take = f"`{name.removesuffix('_proved')}`{' with proofs' * name.endswith('_proved')}"
    return f"{take}{', provisionally' * (tried < given['least'])}", gains, "the others: " * (warned == "under") + beware


def shown(kept: Kept, problem: str, mechanism: str, measure: str) -> str:
    """Return a measure of a cell as the pages show it, with the cheat that was chosen, or that the worst-off member
    surely loses; or why there is none.
    """
    cell, (_, factor, form) = kept.cells[problem, mechanism], MEASURES[measure]
    if (figure := kept.figure(problem, mechanism, measure)) is None:
        return "without honest pay" if np.isnan(cell.values.get(measure, 0.0)).all() else "unplayed"
    more = f" ({cell.chosen[measure]})" if measure in CHEATS and measure in cell.chosen else ""
    more += " (loses)" if measure == "worst" and figure.mean + figure.half < 0 else ""
    return form.format(factor * figure.mean, factor * figure.half) + more


def table(kept: Kept) -> str:
    """Return every measure of every cell as CSV, a row a measure: mean, half of its 95 % interval, splits, what was
    chosen, and how many of the planned plays are kept.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("problem", "mechanism", "measure", "mean", "half", "splits", "chosen", "honest", "cheats"))
    for (problem, mechanism), cell in kept.cells.items():
        counts = list(map("{} of {}".format, cell.done, cell.planned))
        for measure, (title, factor, _) in MEASURES.items():
            if (figure := kept.figure(problem, mechanism, measure)) is not None:
                numbers = f"{factor * figure.mean:.4g}", f"{factor * figure.half:.4g}", figure.splits
                rows.writerow((problem, mechanism, title, *numbers, cell.chosen.get(measure, ""), *counts))
    return text.getvalue()


def wide(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table that may be wider than the page."""
    return ['<div class="wide" markdown>', "", markdown(head, rows), "", "</div>", ""]


def advice(kept: Kept) -> list[str]:
    """Return what the decision page has of the kept runs: the regimes, what to take for each need, the picture."""
    settings, plain = kept.settings, kept.settings.given["regimes"]["plain"]
    done, planned = (sum(sum(getattr(cell, name)) for cell in kept.cells.values()) for name in ("done", "planned"))
    known, asked = {p: word for p in settings.problems if (word := regime(kept, p))}, ("gain", "better", "worst")
    titles = {problem: settings.problems[problem]["title"] for problem in known}
    rows = [[titles[p], *(shown(kept, p, plain, one) for one in asked), word] for p, word in known.items()]
    drawn = pictured(kept)
    apart = ", ".join(problem for problem in settings.problems if problem not in drawn)
    lines = [
        f"Played: {done:,} of {'at least ' * (done < planned)}{planned:,} runs. Not in the picture: {apart or 'none'}.",
        "",
    ]
    lines += wide(["problem", *(f"FedAvg: {MEASURES[one][0]}" for one in asked), "joining"], rows)
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}  # needs with the same answers share their rows
    for need in settings.given["needs"]:
        answers = tuple(answer(kept, need, joining) for joining in REGIMES)
        groups.setdefault((answers, left_out(kept, need)[:2]), []).append(need)
    rows, told = [], set[Any]()
    for (answers, (hits, tried)), needs in groups.items():
        asks = "; ".join([needs[0]["asks"], *(f"{need['asks'][:1].lower()}{need['asks'][1:]}" for need in needs[1:])])
        left = f"{hits} of {tried}; at random {', '.join(f'{left_out(kept, need)[2]:.1f}' for need in needs)}"
        for one in dict.fromkeys(answers):
            words = [joining for joining, other in zip(REGIMES, answers, strict=True) if other == one]
            begins = (asks, left) if one == answers[0] else ("", "")
            row = ("any" if len(words) == len(REGIMES) else ", ".join(words), *one)
            rows.append([begins[0], *((row[0], "as above", "", "") if row in told else row), begins[1]])
            told.add(row)
    head = ["your federation", "joining", "take", "the worst-off member gains", "beware", "left out"]
    return [*lines, *wide(head, rows)[:-1]]


def pictured(kept: Kept) -> list[str]:
    """Return the problems that the picture is of: those on which every mechanism has both of its measures."""
    rows = kept.settings.mechanisms.items()
    asked = {name: ("worst", "keeps") if row.get("paid") else ("worst",) for name, row in rows}
    return [p for p in kept.settings.problems if all(kept.figure(p, m, one) for m, two in asked.items() for one in two)]


def picture(kept: Kept) -> Chart:
    """Return the worst-off member's gain against what the best cheat gains, a point a mechanism."""
    curves, problems = [], pictured(kept)
    for name, row in kept.settings.mechanisms.items() if problems else ():
        ends = []
        for measure in ("keeps", "worst"):
            each = [f for p in problems if (f := kept.figure(p, name, measure)) is not None]
            mean, half = (100 * sum(f.mean for f in each), 100 * math.hypot(*(f.half for f in each)))
            ends.append([np.array([one / len(problems)]) for one in (mean, mean - half, mean + half)])
        (x, left, right), (y, low, high) = ends
        curves.append(Curve(name, x, y, low, high, None, True, left, right, hollow=not row.get("paid")))
    caption = f"Means over {', '.join(problems) or 'no problem yet'}."
    title = "The worst-off member, and the best cheat"
    axes = {"x": "the best cheat gains (% of honest pay)", "y": "the worst-off member gains (points)"}
    return Chart("decision", "Choose", title, caption, Lines(tuple(curves), zero=True, whole=False, named=True), **axes)


def pages(kept: Kept, folder: Path) -> dict[Path, str]:
    """Return the files that are made of what is kept, by path. Of a page, what stands between its two marks is made."""
    page = folder / "index.md"
    text = page.read_text() if page.exists() else f"{BEGIN}{END}\n"
    before, _, rest = text.partition(BEGIN)
    made_now = "\n".join([before + BEGIN, "", *advice(kept), "", END + rest.partition(END)[2]])
    return {folder / "decision.csv": to_csv(picture(kept)), folder / "measured.csv": table(kept), page: made_now}


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=("smoke", "all"), default="all")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="mechanisms of decision.toml")
    parser.add_argument("--out", type=Path, help="the folder of kept runs, and of a smoke table's pages")
    parser.add_argument("--workers", type=int, default=1)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--pages", action="store_true", help="write the pages and play nothing")
    what.add_argument("--again", type=int, metavar="N", help="play N kept runs anew and compare their numbers")
    what.add_argument("--check", action="store_true", help="compare the pages with what is kept")
    given = parser.parse_args(words)
    smoke = given.scale == "smoke"
    try:
        settings = read_settings(smoke=smoke)
        if unknown := [name for name in given.only if name not in settings.mechanisms]:
            raise UserError(f"--only {unknown[0]}: must be one of {', '.join(settings.mechanisms)}")
        folder = given.out or (Path("decision-smoke") if smoke else RESULTS)
        if given.only and (given.pages or given.check or given.again is not None):
            raise UserError("--only: says what is played: must not stand with --pages, --check or --again")
        if given.again is not None and given.again < 1:
            raise UserError(f"--again {given.again}: must be at least 1")
        if given.again:
            return 1 if again(folder, given.again) else 0
        failed = 0 if given.pages or given.check else played(settings, folder, given.only, given.workers)
        kept, place = Kept(settings, folder), folder if smoke else MECHANISMS
        made_now = pages(kept, place)
    except UserError as wrong:
        print(*(f"decision: {line}" for line in wrong.lines), sep="\n", file=sys.stderr)
        return 2
    if given.check:
        wrong_now = [path.name for path, text in made_now.items() if not path.exists() or path.read_text() != text]
        for name in wrong_now:
            print(f"decision: {name} is not what is kept; python benchmarks/decision.py --pages", file=sys.stderr)
        return 1 if wrong_now else 0
    for path, text in made_now.items():
        write_whole(path, text.encode())
    write_whole(place / "decision.svg", to_svg(to_vegalite(picture(kept))).encode())
    print(f"wrote {', '.join(path.name for path in made_now)} and decision.svg in {place}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
