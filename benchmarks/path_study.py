"""Path values against exact ones, against retraining, and on many validation sets.

    HANSE_DATA=folder OMP_NUM_THREADS=1 python benchmarks/path_study.py tables|sums|cover|retrain|cost [--seeds 0 ...]

All with FedAvg, full participation, an MLP with 20 hidden units, 2 epochs at rate 0.1, Dirichlet 0.1. Casts: *plain*;
*cheats*, in which client 0 sends noise of its update's length, client 1 claims 20 times its samples and client 2 sends
what client 3 sends; *maverick*, in which the last client alone has the last class.

tables: relative L2 error and least Spearman correlation of path values at 1, 2, 3, 5, 24 points (fixed, not doubled)
against the exact Shapley values of the increment game (2^n coalitions), rounds 1, 5 and 20. The error that is left at
24 points is not the integral's: the two values differ. "Cancelled" is the norm of the exact values as a share of that
of the first-order terms at the round's start: small where gains and losses along the way cancel.
sums: over clients and rounds against the loss; a zero step; one step under 2, 3, 5 names.
cover: how often value +- k errors of the jackknife covers the value on the whole pool of 10,000 images, over 3,000
draws of 500, for one round's values and for sums over 20 rounds.
retrain: Spearman correlation of sums over 20 rounds with U(all) - U(without i), retrained; 8 clients: a zero client,
one that sends noise, a pair that sends the same, a maverick.
cost: processor time of a valued round by method and number of seats.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch.func import functional_call, jvp, vmap
from torch.nn import functional

import hanse
from hanse.base.streams import stream
from hanse.core.part import Values, View
from hanse.core.port import Reply, Request
from hanse.core.table import mix
from hanse.data import Dataset
from hanse.data.sources import load
from hanse.federation.behaviour import Behaviour, Me, with_updates
from hanse.games import path
from hanse.games.jackknife import jackknife_errors
from hanse.learning.blocks import sample_blocks
from hanse.mechanisms.registry import build_mechanism
from hanse.runs.round import Played, first_state, play_round
from hanse.runs.setup import build, settle_engine

POINTS, KEPT = (1, 2, 3, 5, 24), (1, 5, 20)


@dataclass(frozen=True)
class Cast(Behaviour):
    """Clients that send noise, nothing, or what their twin sends (who has a lower number)."""

    noise: tuple[int, ...] = ()
    zero: tuple[int, ...] = ()
    twins: tuple[tuple[int, int], ...] = ()
    away: tuple[int, ...] = ()
    seen: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def present(self, me: Me, round: int) -> bool:
        return me.id not in self.away

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        def change(task: Any, sent: Any) -> Any:
            step, twin = sent.row - task.start, {b: a for a, b in self.twins}.get(me.id)
            if me.id in self.noise:
                drawn = stream(me.seed, "cast", round=round, client=me.id).standard_normal(len(step), dtype="float32")
                step = torch.from_numpy(drawn) * step.norm() / len(step) ** 0.5
            if me.id in self.zero:
                step = torch.zeros_like(step)
            # without the twin there is nobody to copy: it sends its own
            step = self.seen.get((round, twin), step)
            self.seen[round, me.id] = step
            return replace(sent, row=task.start + step)

        return with_updates(request, reply, change)


def maverick(name: str, clients: int) -> Any:
    """Return a source in which the last client alone has the last class; 150 samples a client."""

    def source(*, root: Path | None, seed: int, download: bool) -> Dataset:
        data = load(name, root=root, seed=seed, download=download)
        draw, y = stream(seed, "maverick"), data.train.y.numpy()
        last = data.num_classes - 1
        mixtures = draw.dirichlet(np.full(last, 0.1), clients - 1)
        each = min(150, len(y) // (2 * clients))
        taken = []
        for mixture in mixtures:
            p = mixture[y.clip(max=last - 1)] / np.bincount(y)[y.clip(max=last - 1)] * (y != last)
            taken.append(draw.choice(len(y), each, replace=False, p=p / p.sum()) if (p > 0).sum() >= each else
                         draw.choice(len(y), each, p=p / p.sum()))  # fmt: skip
        taken.append(draw.choice(np.flatnonzero(y == last), each))
        index = torch.from_numpy(np.concatenate(taken))
        owner = np.repeat(np.arange(clients), each)
        return replace(data, train=data.train.take(index), client_of=owner)

    return source


def _source(name: str, clients: int) -> str:
    """Register a maverick source in this module and return its import path."""
    globals()[f"{name}_{clients}"] = maverick(name, clients)
    return f"{__name__}:{name}_{clients}"


def experiment(source: str, cast: str, n: int, seed: int, away: tuple[int, ...] = ()) -> hanse.Experiment:
    data: dict[str, Any] = {"source": source, "clients": n, "seed": seed}
    few = {"samples_per_client": 150} if source in ("fashion_mnist", "cifar10") else {}
    data["partition"] = {"name": "dirichlet", "alpha": 0.1, **few}
    if few:
        data["validation"] = 0.05
    behaviour: dict[str, Any] = {}
    if cast == "cheats":
        behaviour = {f"{__name__}:Cast": {"noise": (0,), "twins": ((2, 3),)}, "liar": {"clients": [1], "size": 20.0}}
    if cast in ("maverick", "retrain") and source != "loans":
        data = {**data, "source": _source(source, n), "partition": "natural"}
    if cast == "retrain":
        behaviour = {f"{__name__}:Cast": {"zero": (0,), "noise": (1,), "twins": ((2, 3),), "away": away}}
    return hanse.Experiment(
        data=data, model={"name": "mlp", "hidden": [20]}, behaviour=behaviour,
        mechanism={"name": "fedavg", "select": "everyone"}, train={"lr": 0.1, "epochs": 2},
        engine={"train": "stacked", "threads": 1, "workers": 1, "device": "cpu"}, run={"seed": seed},
    )  # fmt: skip


def rounds(given: hanse.Experiment, number: int) -> Iterator[tuple[int, Played]]:
    world = settle_engine(build(given)).setup
    state = first_state(world)
    for r in range(1, number + 1):
        played = play_round(world, state)
        state = played.state
        yield r, played


def valued(view: View, **options: object) -> Values:
    part = build_mechanism({"name": "fedavg", "value": options}).value
    assert part is not None
    return part.value(view, part.init(view.context))[0]


def fixed(view: View, points: int) -> np.ndarray:
    """Return path values by a rule that stays as it is."""
    old, W = view.table.rows[0], view.mixed.W[0]
    new = mix(W[None], view.trained.rows, view.table.rows)[0]
    found = path.integrate(lambda w: slope(view, w), old, new - old, points)
    return np.asarray(W[: len(view.trained)] * found.along(view.trained.rows - old)[:, 0])


def slope(view: View, row: torch.Tensor) -> torch.Tensor:
    """Return the utility's gradient ``[P]`` as path values take it: the blocks' gradients by their shares."""
    return -torch.from_numpy(view.judge.block_shares).to(row) @ view.judge.block_gradients(row)


def tables(seeds: list[int]) -> None:
    print("| data, n, cast, round | gain | 1, 2, 3, 5, 24 points | least Spearman | cancelled |\n" + "|---" * 5 + "|")
    worlds = [("digits", 12), ("fashion_mnist", 10), ("cifar10", 8), ("loans", 10)]
    errors: dict[int, list[float]] = {k: [] for k in POINTS}
    for seed, (source, n), cast in product(seeds, worlds, ("plain", "cheats", "maverick")):
        if (source, cast) == ("loans", "maverick"):
            continue
        for r, played in rounds(experiment(source, cast, n, seed), max(KEPT)):
            if r not in KEPT:
                continue
            exact = valued(played.view, name="exact", game="increment").per_seat
            found = [fixed(played.view, k) for k in POINTS]
            off = [float(np.linalg.norm(f - exact) / np.linalg.norm(exact)) for f in found]
            for k, one in zip(POINTS, off, strict=True):
                errors[k].append(one)
            rank = min(stats.spearmanr(f, exact).statistic for f in found)
            old = played.view.table.rows[0]
            first = (played.view.trained.rows - old) @ -played.view.judge.gradient(old[None])[0]
            cancelled = np.linalg.norm(exact) / np.linalg.norm(played.view.mixed.W[0, :n] * first.numpy())
            cells = f"{exact.sum():+.3f} | {', '.join(f'{e:.3f}' for e in off)} | {rank:.3f} | {cancelled:.2f}"
            print(f"| {source}, {n}, {cast}, {r} | {cells} |", flush=True)
    for k in POINTS:
        e = np.array(errors[k])
        print(f"{k} points: median {np.median(e):.4f}, 90 % {np.quantile(e, 0.9):.3f}, most {e.max():.3f}, "
              f"above .05: {(e > 0.05).sum()} of {len(e)}")  # fmt: skip


def sums(seeds: list[int]) -> None:
    for seed, source in product(seeds, ("digits", "fashion_mnist", "loans")):
        total, worst, gain = 0.0, 0.0, 0.0
        for _, played in rounds(experiment(source, "cheats", 10, seed), 20):
            found = valued(played.view, name="path")
            one = float(found.metrics["value/gain"])
            total, gain = total + float(found.per_seat.sum()), gain + one
            worst = max(worst, abs(float(found.metrics["value/residual"])) / abs(one))
        print(f"{source}, seed {seed}: sum of a run {total:+.5f} of {gain:+.5f}; worst round's residual {worst:.4f}")
        view = played.view
        old, W = view.table.rows[0], view.mixed.W[0]
        steps = torch.from_numpy(W[:10, None]).float() * (view.trained.rows - old)

        def gradient(row: torch.Tensor, view: View = view) -> torch.Tensor:
            return slope(view, row)

        idle = path.values(gradient, torch.cat([steps, torch.zeros_like(steps[:1])]), start=old).values[-1]
        alone = path.values(gradient, steps, start=old).values[4]
        for k in (2, 3, 5):
            split = torch.cat([steps[:4], steps[5:], (steps[4] / k).repeat(k, 1)])
            apart = path.values(gradient, split, start=old).values[-k:].sum()
            print(f"  a zero step: {idle!r}; one step {alone:+.6f}, under {k} names off by {abs(apart - alone):.1e}")


def losses(view: View, samples: Any, points: int = 3) -> np.ndarray:
    """Return minus the slope of every sample's loss along every step, ``[N, n]``, in the mean over the path."""
    problem, old = view.judge.problem, view.table.rows[0]
    new = mix(view.mixed.W[0][None], view.trained.rows, view.table.rows)[0]
    steps = torch.from_numpy(view.mixed.W[0, : len(view.trained)])[:, None].float() * (view.trained.rows - old)
    nodes, masses = np.polynomial.legendre.leggauss(points)

    def each(row: torch.Tensor) -> torch.Tensor:
        outputs = functional_call(problem.module, problem.layout.unflatten(row), (samples.x,))
        return functional.cross_entropy(outputs, samples.y, reduction="none")

    found = torch.zeros(len(steps), len(samples))
    for t, mass in zip((nodes + 1) / 2, masses / 2, strict=True):
        found -= mass * vmap(lambda s, row=old + t * (new - old): jvp(each, (row,), (s,))[1])(steps)
    return found.T.double().numpy()


def cover(seeds: list[int]) -> None:
    print("| seed | over | interval | mean | worst client | every client |\n" + "|---" * 6 + "|")
    for seed in seeds:
        pool, all_rounds = load("fashion_mnist").test, []
        for _r, played in rounds(experiment("fashion_mnist", "cheats", 10, seed), 20):
            all_rounds.append(losses(played.view, pool))
        # what a draw's values are, by the estimator of today, is what these slopes' means are
        known = played.view.judge.validation
        assert known is not None
        gap = losses(played.view, known).mean(0) - valued(played.view, name="path").per_seat
        assert np.abs(gap).max() < 1e-5, gap
        blocks = [b.numpy() for b in sample_blocks(500)]
        for over, slopes in (("round 1", all_rounds[0]), ("round 20", all_rounds[-1]), ("20 rounds", sum(all_rounds))):
            truth, draw = slopes.mean(0), np.random.default_rng(seed)
            apart, errors = [], []
            for _ in range(3000):
                drawn = slopes[draw.integers(len(slopes), size=500)]
                whole = drawn.sum(0)
                without = np.stack([(whole - drawn[b].sum(0)) / (500 - len(b)) for b in blocks], axis=1)
                apart.append(drawn.mean(0) - truth)
                errors.append(jackknife_errors(without))
            for name, k in (("1.96", 1.96), ("t, 19", stats.t.ppf(0.975, 19))):
                held = (np.abs(apart) <= k * np.array(errors)).mean(0)
                print(f"| {seed} | {over} | {name} | {held.mean():.3f} | {held.min():.3f} | {np.round(held, 3)} |")


def retrain(seeds: list[int]) -> None:
    ways: dict[str, dict[str, object]] = {
        "path": {"name": "path"}, "path, novel": {"name": "path", "novel": True},
        "exact, increment": {"name": "exact", "game": "increment"}, "exact, average": {"name": "exact"},
        "mixture, average": {"name": "mixture", "budget": 60}, "leave-one-out": {"name": "leave_one_out"},
    }  # fmt: skip
    print("| data, seed | " + " | ".join(ways) + " | maverick, twin, zero: place of 8 by retraining, path, average |")
    for seed, source in product(seeds, ("digits", "fashion_mnist", "loans")):
        total = {way: np.zeros(8) for way in ways}
        parts = {way: build_mechanism({"name": "fedavg", "value": options}).value for way, options in ways.items()}
        states: dict[str, Any] = {}
        for _, played in rounds(experiment(source, "retrain", 8, seed), 20):
            for way, part in parts.items():
                assert part is not None
                values, state = part.value(played.view, states.get(way) or part.init(played.view.context))
                states[way] = part.learn(played.view, state)
                total[way] += values.per_seat
        ends = [final(source, seed, ()), *(final(source, seed, (c,)) for c in range(8))]
        worth = ends[0] - np.array(ends[1:])
        cells = [f"{stats.spearmanr(total[way], worth).statistic:.2f}" for way in ways]
        places = [stats.rankdata(-total_).astype(int) for total_ in (worth, total["path"], total["exact, average"])]
        who = "; ".join(f"{name} {[int(p[c]) for p in places]}" for name, c in (("m", 7), ("t", 3), ("z", 0)))
        print(f"| {source}, {seed} | {' | '.join(cells)} | {who} |", flush=True)


def final(source: str, seed: int, away: tuple[int, ...]) -> float:
    """Return the utility of the last model of a run without some clients."""
    *_, (_, played) = rounds(experiment(source, "retrain", 8, seed, away=away), 20)
    return -float(played.view.judge.score(played.state.table.rows[:1]).loss[0])


def cost(seeds: list[int]) -> None:
    print("| model, validation, seats | round without | path | GTG | mixture | path / mixture, path / GTG |")
    cases = [("mlp", v, m) for v in (1000, 5000) for m in (10, 20, 100, 1000)]
    cases += [("cnn_greedyfed", v, m) for v in (1000, 5000) for m in (10, 20, 100, 1000)]
    for model, validation, m in cases:
        world = hanse.Experiment(
            data={
                "source": "fashion_mnist",
                "clients": m,
                "partition": {"name": "iid", "samples_per_client": 20},
                "validation": validation / 10_000,
                "seed": seeds[0],
            },
            model={"name": model},
            mechanism={"name": "fedavg", "select": "everyone"},
            train={"lr": 0.1, "epochs": 1},
            engine={"threads": 1, "workers": 1, "device": "cpu"},
        )
        times: dict[str, list[float]] = {"none": [], "path": [], "gtg": [], "mixture": []}
        begun = time.process_time()
        for _, played in rounds(world, 1 if (model, m) == ("cnn_greedyfed", 1000) else 3):
            times["none"].append(time.process_time() - begun)
            for way in ("path", "gtg", "mixture"):
                small = model == "mlp" and validation == 1000
                if m > {"path": 1000, "gtg": 20 if small else 10, "mixture": 100 if model == "mlp" else 20}[way]:
                    continue
                begun = time.process_time()
                valued(played.view, name=way)
                times[way].append(time.process_time() - begun)
            begun = time.process_time()
        mid = {way: median(t) if t else float("nan") for way, t in times.items()}
        cells = " | ".join(f"{mid[way]:.3f}" for way in times)
        print(f"| {model}, {validation}, {m} | {cells} | {mid['path'] / mid['mixture']:.2f}, "
              f"{mid['path'] / mid['gtg']:.2f} |", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tables", "sums", "cover", "retrain", "cost"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    given = parser.parse_args()
    {"tables": tables, "sums": sums, "cover": cover, "retrain": retrain, "cost": cost}[given.what](given.seeds)


if __name__ == "__main__":
    main()
