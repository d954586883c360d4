"""``hanse attack``: searches for the deviation from honest play that pays a client best, by playing many of them.

The experiment is played twice: honestly, and with one client, or a pair, as
:class:`hanse.wings.attack.deviant.Deviant`. Data, models and draws are the same, so the difference in the outcome is
the deviation's gain. The possible deviations follow from the types of the questions that the client is asked
(:func:`space_of`). Deviations are tried one by one; then the best grows by one at a time. The most promising ones are
played with more seeds. The best is confirmed with fresh seeds, which avoids selection bias.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hanse.base import toml
from hanse.base.errors import UserError
from hanse.base.files import read_toml, write_whole
from hanse.core.entry import MINT, TOKEN, client
from hanse.core.port import Answered, Ask, Call, Derived, Reply, Result, Scored, Task, Train, Trained
from hanse.federation.local import server_sets
from hanse.federation.wrapped import Wrapped
from hanse.games.jackknife import t_quantile
from hanse.games.market_posted import APART
from hanse.lab.job import Job, Step, attempt, seeded
from hanse.lab.kept import Results, Store
from hanse.lab.player import PlayedJobs, Work, play_all
from hanse.mechanisms.ipfl import IPFL
from hanse.runs.config import Experiment
from hanse.runs.observers import ProgressCallback, untold
from hanse.runs.played_run import PlayedRun
from hanse.runs.round import Played, first_state, play_round
from hanse.runs.setup import build
from hanse.wings.attack.deviant import KINDS, Deviant, fields_of, said_of

RULES = Path(__file__).with_name("cheats.toml")
FACTORS, LOSSES = (0.1, 0.5, 0.9, 1.1, 2.0, 10.0), (0.0, 0.5, 2.0, 10.0)
SEARCHED = 3  # seeds that the search plays its best deviations with
LEAST = 0.01  # of what honesty brings: a smaller gain is not called one
UNUSED = ("stages_ms", "clients", "traceback", "bytes")  # of a job's result
_BATCH, _KEEPS, _HEARD = 8, 6, 3
Measure = Literal["utility", "balance", "nothing"]  # what is compared of outcomes
Ended = Literal["tries", "space"]  # why a search ended
Deviation = Mapping[str, Any]
"""What a deviant does, by knob (an option of :class:`Deviant`): ``{"sends": "nothing", "times.declare.cost": 0.5}``."""
Space = Mapping[str, Sequence[Any]]
"""The values to try of each knob."""


@dataclass(frozen=True)
class Try:
    """A deviation and its gains.

    Attributes:
        deviation: the deviation.
        gains: by seed, the deviants' outcome minus that of the same clients when honest, in tokens. If there is a
            second key, it is the sum of both keys' outcomes.
        failed: why it could not be played. None: it was played.
        keys: how many of the game's clients deviate. None: all.
    """

    deviation: Deviation
    gains: Mapping[int, float] = field(default_factory=dict)
    failed: str | None = None
    keys: int | None = None

    @property
    def said(self) -> str:
        """The deviation in words."""
        return said_of(Deviant(**table_of(self.deviation, [])))

    def gain(self, seeds: Sequence[int]) -> tuple[float, float, float]:
        """Return the mean gain over these seeds, at least two, and its 95 % interval (Student's t)."""
        found = np.array([self.gains[s] for s in seeds])
        mean = float(found.mean())
        half = t_quantile(len(found) - 1) * float(found.std(ddof=1)) / math.sqrt(len(found))
        return mean, mean - half, mean + half


@dataclass(frozen=True)
class Attacked:
    """The result of a search.

    Attributes:
        clients: who deviated.
        scale: the unit by which gains are judged, in tokens; see :attr:`Game.scale`.
        measure: the outcome that is compared: "utility" or "balance".
        tries: all deviations, in the order of the search.
        best: the one that paid most, with the fresh seeds.
        searched: the search's seeds.
        fresh: the seeds of the confirmation.
        ended: why the search ended: "tries", or "space" (everything was tried).
    """

    clients: Sequence[int]
    scale: float
    measure: Measure
    tries: Sequence[Try]
    best: Try
    searched: Sequence[int]
    fresh: Sequence[int]
    ended: Ended

    @property
    def pays(self) -> bool:
        """Whether the best deviation gains more than 1 % of the scale, beyond its interval."""
        return self.best.gain(self.fresh)[1] > LEAST * self.scale


def table_of(deviation: Deviation, clients: Sequence[int]) -> dict[str, Any]:
    """Return the table ``[behaviour.deviant]`` of a deviation."""
    table: dict[str, Any] = {"clients": list(clients)}
    for key, value in deviation.items():
        outer, dot, inner = key.partition(".")
        if dot:
            table.setdefault(outer, {})[inner] = value
        else:
            table[outer] = value
    return table


# ---- what can be done otherwise


@dataclass(frozen=True)
class _Listening(Wrapped):
    """A federation that records what clients were asked and answered."""

    pairs: list[tuple[Task, Result]] = field(default_factory=list)

    def heard(self, call: Call, replies: Sequence[Reply]) -> Sequence[Reply]:
        """Record the answers."""
        asked = call.by_client
        for reply in replies:
            if reply.client in asked:
                self.pairs.extend(zip(asked[reply.client].tasks, reply.results, strict=False))
        return replies


def space_of(experiment: Experiment) -> dict[str, Sequence[Any]]:
    """Return a client's possible deviations, from the questions that it is asked in the first rounds, and from the
    samples that the server holds.

    Raises:
        UserError: the experiment does not fit together.
    """
    setup = build(experiment)
    listening = _Listening(setup.federation)
    setup, state = replace(setup, federation=listening), first_state(setup)
    for _ in range(min(_HEARD, experiment.run.rounds)):
        state = play_round(setup, state).state
    found = dict[str, Sequence[Any]]()
    for task, result in listening.pairs:
        found = found | {key: values for key, values in _knobs_of(task, result).items() if key not in found}
        if isinstance(task, Train) and task.centre is not None and task.mu and torch.equal(task.start, task.centre):
            found["start"] = ("kept",)  # everybody goes on from what it was sent
    if sets := tuple(server_sets(setup.data)) if "sends" in found else ():
        found["trains_on"] = sets
    rounds, middle = experiment.run.rounds, experiment.run.rounds // 2
    if found and rounds > 1:
        found |= {"since": sorted({1, middle} - {0}), "leaves": sorted({1, middle, rounds - 1} - {0})}
    return found


def _knobs_of(task: Task, result: Result) -> Space:
    """Return the ways to falsify one result."""
    if isinstance(result, Trained) and isinstance(task, Train):
        bought = {} if task.centre is None else {"start": ("sent",)}
        loss = {} if result.loss is None else {"times.loss": LOSSES}
        return {
            "sends": ("nothing", "copied", "last", *KINDS, *["echo"] * bool(bought)),
            "of": ("model",),
            **bought,
            "scale": (0.1, 3.0, 10.0, 50.0),
            "times.samples": FACTORS,
            "times.steps": (0.0, 10.0),
            "silent": (True,),
            "longer": (5,),
            "adds.copied": (1.0, 2.0),
            "adds.noise": (0.01, 0.1, 1.0),
            **loss,
        }
    if isinstance(result, Scored):
        return {"times.accuracy": (0.0, 0.5, 10.0), "times.loss": LOSSES}
    if isinstance(result, Derived):
        return {"gradient": (1.0, 1e3, 1e6)}
    found = dict[str, Sequence[Any]]()
    if isinstance(result, Answered) and isinstance(task, Ask):
        for name, kind in fields_of(task.name).items():
            found |= _answer_knobs(task, name, kind, result)
    return found


def _answer_knobs(task: Ask, name: str, kind: type, result: Answered) -> Space:
    """Return the other values that a field of an answer may take."""
    key = f"{task.name}.{name}"
    if kind is bool:
        return {f"says.{key}": (True, False)} if task.name != "stay" else {}  # leaving is a knob of its own
    if kind is list:
        said = result.values.get(name)
        weighs = isinstance(said, list) and len(said) > 0 and isinstance(said[0], float)
        amounts = {f"times.{key}": (0.1, 0.5)} if weighs else {}
        return amounts | ({f"says.{key}": ("none", "all")} if name in task.values else {})
    return {f"times.{key}": FACTORS, f"says.{key}": (0.0,)} if name in result.values else {}


# ---- the search


def search(
    sections: Mapping[str, Any],
    clients: Sequence[int],
    folder: Path,
    *,
    tries: int = 150,
    seeds: int = 5,
    seed: int = 0,
    workers: int | None = 1,
    told: ProgressCallback = untold,
    work: Work | None = None,
) -> Attacked:
    """Search for the deviation of some clients that pays best, and write the best one to ``folder/attack.toml``.

    Finished runs are kept in the folder: repeat the call to continue.

    Args:
        sections: the experiment as nested plain values.
        clients: who deviates, all in the same way.
        folder: the folder for the results, which is made if it is missing.
        tries: how many deviations are tried, at most.
        seeds: how many fresh seeds confirm the best one, at least 2.
        seed: the first of the search's three seeds. The fresh seeds come after these.
        workers: how many processes play. None: one for each core.
        told: a function that is called after every run with the number played, the largest possible number, and the
            best so far.
        work: a function that plays one job. None: a run of hanse.

    Raises:
        UserError: there is no such client, a number is out of range, the experiment is not valid, or nobody is paid.
    """
    experiment = Experiment(**sections)
    members = _check(experiment, clients, tries, seeds, seed)
    most = SEARCHED + tries + _KEEPS * (SEARCHED - 1) + 2 * seeds
    game = Game(sections, clients, Store(folder / "jobs"), members, workers, work, told=told, most=most)
    searched = list(range(seed, seed + SEARCHED))
    fresh = list(range(seed + SEARCHED, seed + SEARCHED + seeds))
    game.honest(searched)
    if game.scale == 0:
        raise UserError(
            f"run.rounds: {experiment.run.rounds}: nobody has gained or paid anything by then, so there is no measure"
        )
    space = space_of(experiment)
    if len(clients) > 1:
        space["second"] = ("copied", "opposed", "turns", "mean")
    found, ended = _tried(game, space, tries, searched)
    ranked = _ranked([one for one in found if len(one.gains) == SEARCHED], searched)
    if not ranked:
        raise UserError(f"none of {len(found)} deviations could be played: {found[0].failed}")
    game.honest(fresh)
    [best] = game.played_all(ranked[:1], fresh)
    if best.failed is not None:
        raise UserError(f"{best.said}: could not be played again: {best.failed}")
    write_whole(folder / "attack.toml", toml.dumps(game.sections_of(best)))
    return Attacked(clients, game.scale, game.measure, found, best, searched, fresh, ended)


def _check(experiment: Experiment, clients: Sequence[int], tries: int, seeds: int, seed: int) -> int:
    """Return how many clients there are. Raises UserError for one that is not there, or a number out of range."""
    session = build(experiment)
    members = session.data.num_clients  # a table of owners may have fewer than data.clients
    last = members - 1
    of = "" if len(clients) == 1 else f" of {clients[0]} and {clients[-1]}, who cheat together"
    lines = [f"--client {c}: there is no such client{of}; allowed: 0..{last}" for c in clients if not 0 <= c <= last]
    lines += [f"--seed {seed}: must be at least 0"] if seed < 0 else []
    lines += [] if experiment.run.rounds else ["run.rounds: 0: nobody is asked anything, so nothing can be cheated at"]
    lines += [f"--tries {tries}: must be at least 1"] if tries < 1 else []
    lines += [f"--seeds {seeds}: must be at least 2, as one run has no interval"] if seeds < 2 else []
    if "deviant" in experiment.behaviour:
        lines.append("behaviour.deviant: the search puts its own in this place; leave it out of the file")
    if lines:
        raise UserError(*lines)
    return members


def _tried(game: Game, space: Space, tries: int, searched: Sequence[int]) -> tuple[list[Try], Ended]:
    """Return the deviations that were tried and why the search ended: one knob alone, then the best with one more.

    The best have been played with all of the search's seeds.
    """
    found, first = list[Try](), searched[:1]
    todo = [Try({key: value}) for key, values in space.items() for value in values]
    while todo and len(found) < tries:
        batch = todo[: min(_BATCH, tries - len(found))]
        todo = todo[len(batch) :]
        found += game.played_all(batch, first)
        leads = _ranked(found, first)
        game.figure = f"best so far: {leads[0].said}" if leads else ""
        if not todo:
            # with one knob more, or one at another value; knobs that pay most alone come first
            grown = [{**leads[0].deviation, **one.deviation} for one in leads if len(one.deviation) == 1]
            known = [one.deviation for one in found]
            todo = [Try(deviation) for deviation in grown if deviation not in known]
    chosen = _ranked(found, first)[:_KEEPS]
    game.honest(searched[1:])
    raced = game.played_all(chosen, searched[1:])
    return [*raced, *(one for one in found if one not in chosen)], "tries" if todo else "space"


def _ranked(found: Sequence[Try], seeds: Sequence[int]) -> list[Try]:
    """Return the tries that could be played, the best-paying first; ties go to the simpler one."""
    sound = [one for one in found if one.failed is None]
    return sorted(sound, key=lambda one: (-sum(one.gains[s] for s in seeds), len(one.deviation)))


@dataclass
class Game:
    """Plays deviations and honest runs, and says what they gain.

    Attributes:
        sections: the experiment, without deviants.
        clients: who deviates.
        store: where finished runs are kept.
        members: how many clients there are.
        workers: how many processes play. None: one for each core.
        work: plays one job. None: a run of hanse.
        label: what the jobs are called in messages.
        told: a function that is called after every run.
        most: about how many runs there will be.
        outcomes: by seed, what each client ends with if all are honest.
        figure: what is shown with the number of runs.
    """

    sections: Mapping[str, Any]
    clients: Sequence[int]
    store: Results
    members: int
    workers: int | None
    work: Work | None = None
    label: str = "attack"
    told: ProgressCallback = untold
    most: int = 0
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    figure: str = ""
    played: int = 0

    @property
    def scale(self) -> float:
        """The yardstick for gains; see :func:`scale_of`."""
        return scale_of(list(self.outcomes.values()), self.clients)

    @property
    def measure(self) -> Measure:
        """What is compared: "utility" or "balance"."""
        return next(iter(self.outcomes.values())).measure

    def honest(self, seeds: Sequence[int]) -> None:
        """Play these seeds honestly. Raises UserError if that fails or nobody is paid anything."""
        jobs = {s: self._job(None, s) for s in seeds if s not in self.outcomes}
        done = self._all(jobs.values())
        for s, job in jobs.items():
            if job.key in done.failures:
                raise UserError(f"the honest run with seed {s} failed: {done.failures[job.key]}")
            self.outcomes[s] = Outcome.of(done.results[job.key])
            if again := sorted(self.outcomes[s].cheats & {*self.clients}):
                raise UserError(
                    f"behaviour: with seed {s} client {again[0]} cheats in the file, too, so is never honest; name "
                    "others there (clients = [...]), or leave it out"
                )
            if self.outcomes[s].measure == "nothing":
                name = self.sections["mechanism"]["name"]
                raise UserError(f"mechanism.name: '{name}': pays nobody here, so nobody can gain by cheating")

    def played_all(self, batch: Sequence[Try], seeds: Sequence[int]) -> list[Try]:
        """Return the tries with what they earned with these seeds added."""
        jobs = [[self._job(one, s) for s in seeds] for one in batch]
        done = self._all([job for of in jobs for job in of])
        found = []
        for one, of in zip(batch, jobs, strict=True):
            failed = next((done.failures[job.key] for job in of if job.key in done.failures), None)
            if failed is not None:
                found.append(replace(one, failed=failed))
                continue
            ended = {s: Outcome.of(done.results[job.key]) for s, job in zip(seeds, of, strict=True)}
            people = self.clients[: one.keys]
            gains = {s: gained(o, self.outcomes[s], people) for s, o in ended.items()}
            found.append(replace(one, gains={**one.gains, **gains}))
        return found

    def sections_of(self, one: Try | None) -> dict[str, Any]:
        """Return the experiment in which the clients deviate so, or are honest."""
        behaviour, deviant = dict(self.sections.get("behaviour", {})), dict[str, Any]()
        if one is not None:
            deviant = {"deviant": table_of(one.deviation, self.clients[: one.keys])}
        # what is played here is kept without a directory, as an auditor's answers cannot be
        settings = {key: one for key, one in self.sections.get("run", {}).items() if key != "recomputable"}
        return {**self.sections, "run": settings, "behaviour": behaviour | deviant}

    def _job(self, one: Try | None, seed: int) -> Job:
        """Return the run with one seed, under the name of what its deviants do."""
        return seeded(self.sections_of(one), seed, f"{'honest' if one is None else one.said}, seed={seed}")

    def _all(self, jobs: Iterable[Job]) -> PlayedJobs:
        work = self.work or partial(play_with_outcome, watched=tuple(self.clients))
        store = KeptOutcomes(self.store, self.members, self.clients)
        found = play_all(list(jobs), store, work, workers=self.workers, label=self.label, ended=self._count)
        self.played += len(found.results) + len(found.failures) - found.played
        return found

    def _count(self, done: PlayedJobs) -> None:
        self.played += 1
        self.told(self.played, max(self.most, self.played), self.figure)


class KeptOutcomes:
    """The results of a search: those that have the outcome of every client.

    Attributes:
        inner: where they are kept.
        members: how many clients there are.
        watched: the clients whose purchases are needed (see :func:`play_with_outcome`).
    """

    def __init__(self, inner: Results, members: int, watched: Sequence[int]) -> None:
        self.inner, self.members, self.watched = inner, members, set(watched)

    def read(self, job: Job) -> dict[str, Any] | None:
        """Return a finished result with outcomes; None if it must be played."""
        kept = self.inner.read(job)
        try:
            found = None if kept is None else Outcome.of(kept)
        except (KeyError, TypeError, ValueError):  # edited, or of before these were kept
            return None
        lacks = (
            found is None or len(found.held) != self.members or (found.trades and self.watched - found.trades.keys())
        )
        return None if lacks else kept

    def write(self, job: Job, result: Mapping[str, Any]) -> None:
        """Keep a result without tests, curves and times, which nobody uses here. Raises MachineError."""
        kept = {key: value for key, value in result.items() if key not in UNUSED}
        self.inner.write(job, kept | ({"curves": {}, "tested": []} if "curves" in kept else {}))


@dataclass(frozen=True)
class Outcome:
    """What the clients of a run ended with.

    Attributes:
        measure: "utility", "balance" or "nothing"; see :func:`play_with_outcome`.
        held: ``[N]`` in tokens. NaN: the client never joined, so it has no account.
        granted: what the mint gave each client that joined, in tokens; 0 for utilities.
        trades: by client, for each round ``[2, N]``: lambda n_j/n_i of what it imported from each other client, and
            their distances from it. No numbers: it was not at a market.
        cheats: the clients that cheat by the experiment's own behaviours.
    """

    measure: Measure
    held: NDArray[np.float64]
    granted: float
    trades: Mapping[int, Sequence[NDArray[np.float64]]]
    cheats: frozenset[int] = frozenset()

    @staticmethod
    def of(kept: Mapping[str, Any]) -> Outcome:
        """Return the outcome in a result of :func:`play_with_outcome`."""
        of = kept["trades_of"] if kept["measure"] == "utility" else {}
        trades = {int(c): [np.array(row, float) for row in rows] for c, rows in of.items()}
        held, granted = np.array(kept["outcome"], float), float(kept["granted"])
        return Outcome(kept["measure"], held, granted, trades, frozenset(kept.get("cheats", ())))


def gained(found: Outcome, honest: Outcome, clients: Sequence[int]) -> float:
    """Return how much more the deviants have than if honest: the mean over them.

    A market's utility takes off how far the models lie that a client buys. For deviants, these are the distances of
    the round in the honest run: what a cheat sends does not change what its samples are. Where that run has none, they
    are the cheat's.
    """
    apart = (np.nan_to_num(found.held) - np.nan_to_num(honest.held))[list(clients)]
    for place, c in enumerate(clients):
        for ours, true in zip(found.trades.get(c, ()), honest.trades.get(c, ()), strict=False):
            if ours.size and true.size:
                apart[place] += float((ours[0] * np.nan_to_num(ours[1] - true[1])).sum())
    return float(apart.mean())


def scale_of(honest: Sequence[Outcome], people: Sequence[int]) -> float:
    """Return the yardstick for gains, in tokens: the people's mean absolute utility in honest runs; for balances, the
    mean distance of honest members' balances from their grant, that is, what the mechanism moves.
    """
    if honest[0].measure == "balance":
        moved = (np.delete(one.held, [*one.cheats]) - one.granted for one in honest)
        return float(np.mean([np.nanmean(np.abs(each)) for each in moved]))
    return float(np.mean([np.abs(one.held[list(people)]).mean() for one in honest]))


def play_with_outcome(
    job: Job, step: Step, watched: Sequence[int] = (), observers: Sequence[Any] = ()
) -> dict[str, Any]:
    """Play a job and return the result of :func:`hanse.lab.job.attempt`, together with each client's outcome.

    ``outcome`` is a list of tokens per client, and ``measure`` says what they mean. It is "utility" if the mechanism
    records that: by true numbers instead of declared ones, less the loss of eq. (8) of iPFL from distant models.
    Otherwise it is "balance", of the client's account (None: it never joined), or "nothing" if no client was ever paid.
    ``granted`` are the tokens that the mint granted each client; 0 for utilities. ``trades_of`` has what
    :class:`Outcome` says of the ``watched`` clients. ``observers`` watch the run, too.
    """
    from hanse.runs.experiment import run

    last, kept = _Watched(watched), dict[str, Any]()

    def go(told: Sequence[Any]) -> PlayedRun:
        result = run(job.experiment, observers=[*told, *observers, last])
        kept.update(_outcome(result, last))
        return result

    return attempt(job, step, go) | kept


class _Watched:
    """An observer that keeps the parts' states after the last round, and a market's gains by the true numbers.

    Attributes:
        states: the parts' states, by slot.
        members: how many clients there are.
        granted: the units that the mint gave as grants; what a rule takes from it or returns is pay.
        traded: iPFL's eq. (1) minus lambda n_j/n_i d_ij of all imports that were delivered, ``[N]`` in tokens.
        trades: by watched client, each round's purchases and distances, as :class:`Outcome` describes them.
    """

    def __init__(self, watched: Sequence[int] = ()) -> None:
        self.states: Mapping[str, Any] = {}
        self.members, self.granted, self.traded = 0, 0, np.zeros(0)
        self.trades: dict[int, list[list[list[float | None]]]] = {client: [] for client in watched}

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """Keep the states, and add the round's grants and market."""
        self.granted -= sum(dict(one.postings)[MINT] for one in played.view.posted if one.kind == "grant")
        self.states = played.state.states
        if not self.members:
            self.members = played.view.context.num_clients
            self.traded = np.zeros(self.members)
        arrays = {} if played.view.settlement is None else played.view.settlement.arrays
        if "market_distance" not in arrays:
            for rounds in self.trades.values():
                rounds.append([])
            return
        paid, clients = arrays["market_paid"][:, None], arrays["market_client"]
        graph, sizes = arrays["market_graph"] * paid, arrays["market_true_size"]
        # who may not trade, since nothing is alike, counts as at a right angle
        distance = np.where(arrays["market_distance"] >= APART, 1.0, arrays["market_distance"])
        weight = float(arrays["market_lam"]) * sizes[None, :] / np.maximum(sizes, 1)[:, None]
        weight = np.where((graph != 0) & (sizes[:, None] > 0), graph * weight, 0.0)
        far = (weight * distance).sum(axis=1)
        np.add.at(self.traded, clients, arrays["market_utility"] - far)
        for c, rounds in self.trades.items():
            imports, apart = np.zeros(self.members), np.full(self.members, np.nan)
            for i in np.flatnonzero(clients == c):
                imports[clients], apart[clients] = weight[i], distance[i]
            rounds.append([[*imports.tolist()], [None if math.isnan(d) else d for d in apart.tolist()]])


def _outcome(result: PlayedRun, last: _Watched) -> dict[str, Any]:
    """Return what each client ended with, what that is, what the mint gave, and who cheats, if anybody does."""
    cheats = sorted({c for one in result.about.conducts if one.cheats for c in one.clients})
    of = {"cheats": cheats} if cheats else {}
    utility = next((state["utility"] for state in last.states.values() if "utility" in state), None)
    if utility is not None:
        priced = isinstance(result.experiment.mechanism.built.settle, IPFL)
        held = (last.traded if priced else utility).tolist()
        trades = {str(c): rounds for c, rounds in last.trades.items()} if priced else {}
        return {"measure": "utility", "outcome": held, "granted": 0.0, "trades_of": trades, **of}
    pays, accounts = "settle" in result.experiment.mechanism.built.slots(), result.book.balances
    there = [f"client/{c}" in accounts for c in range(last.members)]
    balances = [result.book.balance(client(c)) / TOKEN if joined else None for c, joined in enumerate(there)]
    granted = last.granted / TOKEN / max(1, sum(there))
    return {"measure": "balance" if pays else "nothing", "outcome": balances, "granted": granted, **of}


def small(mechanism: str) -> dict[str, Any]:
    """Return a small experiment with a mechanism: 8 clients with handwritten digits, who trade or bid for 8 rounds.

    Args:
        mechanism: the name of the mechanism.
    """
    return {**read_toml(RULES)["experiment"], "mechanism": {"name": mechanism}}
