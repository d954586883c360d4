"""What privacy costs: accuracy, values, a membership attack and time beside epsilon.

``python benchmarks/privacy.py digits --seeds 5`` prints a line for each unit of privacy and each epsilon: the accuracy
at the end; the rank correlation of the clients' path values, and of what ``by_value`` paid them, with those of the same
run without noise, and of the values with the clients' numbers of samples; what payments differ by, in tokens; how often
a value's 95 % interval leaves out 0; and the AUC of a server that tells a client's own samples from its test samples by
their loss under the model that the client sent last. ``--equal`` gives all clients the same number of samples.
``covers`` holds the values' errors against the noise that was drawn, and counts who clearly does harm by noise alone;
in ``mixed`` every other client has a smaller budget; ``time`` compares a round with clipping and noise with one
without, and DP-SGD with Opacus's own loop.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

import hanse
from hanse.core.recipe import Recipe
from hanse.core.table import Layout
from hanse.federation.privacy import NOISE, Private, clipped
from hanse.games import path
from hanse.learning.job import Problem, SeatJob
from hanse.learning.loop import LoopEngine
from hanse.learning.private_loop import dp_sgd
from hanse.learning.sequential import SequentialEngine
from hanse.reports.contributions import clearly_harmful
from hanse.runs.round import first_state, play_round
from hanse.runs.setup import build, settle_engine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/mechanisms"))
from test_values_under_noise import sums_of_noise

SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"data": {"source": "digits"}, "model": {"name": "logistic"}},
    # its clients have 3,000 samples: a larger delta would promise them nothing
    "fashion_mnist": {"data": {"source": "fashion_mnist"}, "model": {"name": "logistic"}, "delta": 1e-4},
    "loans": {"data": {"source": "loans"}, "model": {"name": "logistic"}},
}
CLIENTS, ROUNDS, DELTA = 20, 15, 1e-3


class Last:
    """Keeps the updates of the last round as the server saw them."""

    def __init__(self) -> None:
        self.rows: dict[int, torch.Tensor] = {}

    def on_round(self, metrics: Any, played: Any) -> None:
        trained = played.view.trained
        self.rows |= dict(zip(trained.seats.client.tolist(), trained.rows, strict=True))


def attacked(run: Any, rows: dict[int, torch.Tensor], data: Any) -> float:
    """The mean AUC over clients of telling their samples from ones like them by the loss under what they sent."""
    problem, found = run.problem, []
    for client, row in rows.items():
        (pool, [index]), (rest, [held]) = data.pool([client]), data.pool([client], "test")
        mine, others = pool.take(index), rest.take(held)
        problem.layout.load(problem.module, row)
        with torch.no_grad():
            losses = [
                torch.nn.functional.cross_entropy(problem.module.eval()(s.x), s.y, reduction="none")
                for s in (mine, others)
            ]
        scores = -torch.cat(losses).nan_to_num(nan=1e9).numpy()
        found.append(roc_auc_score(np.r_[np.ones(len(mine)), np.zeros(len(others))], scores))
    return float(np.mean(found))


def play(
    name: str, unit: str, epsilon: float, seed: int, equal: bool = False, weigh: str = "samples", **more: Any
) -> dict[str, Any]:
    """A run's figures; ``more`` options of ``federation.private``."""
    given = SETTINGS[name]
    private = {"clip": CLIP[unit], "epsilon": epsilon, "delta": given.get("delta", DELTA), "unit": unit, **more}
    private = {} if epsilon == np.inf else {"private": private}
    data = {"clients": CLIENTS, "validation": 0.15, "client_test": 0.3, "seed": seed, **given["data"]}
    if equal:
        data["partition"] = {"name": "iid", "samples_per_client": 60}
    experiment = hanse.Experiment(
        data=data,
        model=given["model"],
        mechanism={
            "name": "fedavg",
            "clients_per_round": CLIENTS,
            "value": "path",
            "settle": "by_value",
            "weigh": weigh,
        },
        # few large batches: each step of DP-SGD adds noise once
        train={"lr": 0.5, "batch_size": 100_000, "epochs": 1} if unit == "sample" else {"lr": 0.1},
        federation=private,
        run={"rounds": ROUNDS, "seed": seed},
        engine={"train": "sequential"} if unit == "sample" else {},
    )
    last, begun = Last(), time.perf_counter()
    run = hanse.run(experiment, observers=[last])
    seconds = time.perf_counter() - begun
    worth, samples = np.zeros(CLIENTS), np.zeros(CLIENTS)
    for line in run.clients:
        worth[line["client"]] += line.get("value") or 0.0
        samples[line["client"]] = line.get("samples") or samples[line["client"]]
    paid = np.array([run.book.balances.get(f"client/{c}", 0) for c in range(CLIENTS)]) / 1e6
    lines = [line for line in run.clients if line.get("value") is not None]
    errors = [np.hypot(line.get("value_error") or 0, line.get("value_draw_error") or 0) for line in lines]
    told = sum(abs(line["value"]) > 1.96 * error for line, error in zip(lines, errors, strict=True))
    accuracy = run.metrics[-1]["test/accuracy"]
    auc = attacked(run, last.rows, build(experiment).data)
    return {"accuracy": accuracy, "worth": worth, "auc": auc, "seconds": seconds, "told": told / max(1, len(lines)),
            "paid": paid - paid.mean(), "samples": samples}  # fmt: skip


def covers(noise: float, unit: str) -> tuple[int, int]:
    """How many of 300 values on digits are within 1.96 of their errors of noise, as the noise that was drawn says."""
    clip = {"client": 0.5, "sample": 1.0}[unit]
    setup = settle_engine(
        build(
            hanse.Experiment(
                data={"clients": CLIENTS, "validation": 0.2, "source": "digits"},
                model={"name": "logistic"},
                mechanism={"name": "fedavg", "clients_per_round": CLIENTS, "value": "path"},
                train={"lr": 0.5, "batch_size": 100_000, "epochs": 5} if unit == "sample" else {},
                federation={"private": {"clip": clip, "noise": noise, "epsilon": 1e6, "delta": 1e-5, "unit": unit}},
                run={"rounds": ROUNDS},
            )
        )
    ).setup
    quiet = LoopEngine(SequentialEngine(setup.problem, threads=1), dp_sgd(setup.problem, clip, 1e-9))
    drawn, plain = dict[int, torch.Tensor](), Private._noised

    def noised(self: Private, round: int, client: int, task: Any, result: Any) -> Any:
        """The same training again without its noise, as the account's door has it."""
        sent = plain(self, round, client, task, result)
        if unit == "client":
            drawn[client] = sent.row - task.start - clipped(result.row - task.start, clip)
        else:
            pool, [index] = setup.data.pool([client])
            job = SeatJob(torch.as_tensor(index), task.start, (self.seed, round, client, task.row))
            drawn[client] = sent.row - quiet.train(pool, [job], self.recipe, self.recipe.lr_at(round)).rows[0]
        return sent

    Private._noised = noised  # type: ignore[method-assign]
    state, inside, seats = first_state(setup), 0, 0
    for _ in range(ROUNDS):
        played = play_round(setup, state)
        view, values = played.view, played.view.values
        assert values is not None and values.standard_errors is not None  # noqa: PT018
        ends, shares = (state.table.rows[0], played.state.table.rows[0]), view.judge.block_shares
        found = path.integrate(view.judge.block_gradients, ends[0], ends[1] - ends[0], 6, shares=shares)
        slope = torch.from_numpy(shares).to(found.gradients) @ found.gradients
        for s, client in enumerate(view.trained.seats.client.tolist()):
            off = float(view.mixed.W[0, s] * (slope.double() @ drawn[client].double()))
            inside, seats = inside + (abs(off) <= 1.96 * values.standard_errors[s]), seats + 1
        state = played.state
    Private._noised = plain  # type: ignore[method-assign]
    return inside, seats


STRICT = range(0, CLIENTS, 2)


def mixed(name: str, unit: str, weigh: str, seed: int, liar: bool = False) -> dict[str, Any]:
    """A run in which every other client has an eighth of the others' budget; ``liar``: client 0 says their noise."""
    plain = Private._noised

    def noised(self: Private, round: int, client: int, task: Any, result: Any) -> Any:
        sent = plain(self, round, client, task, result)
        return replace(sent, metrics={**sent.metrics, NOISE: 0.0}) if client == 0 else sent

    if liar:
        Private._noised = noised  # type: ignore[method-assign]
    row = play(name, unit, 8.0, seed, weigh=weigh, stricter=[{"clients": [*STRICT], "epsilon": 1.0}])
    Private._noised = plain  # type: ignore[method-assign]
    return row


def print_mixed(name: str, seeds: int) -> None:
    """Accuracy by the rule of weights, and what the strict, the others and a liar earned more than the mean."""
    others = [c for c in range(CLIENTS) if c not in STRICT]
    for unit in CLIP:
        rules = {
            weigh: [mixed(name, unit, weigh, s) for s in range(seeds)]
            for weigh in ("samples", "uniform", "inverse_variance")
        }
        rules["all at 1, samples"] = [play(name, unit, 1.0, s) for s in range(seeds)]
        rules["all at 8, samples"] = [play(name, unit, 8.0, s) for s in range(seeds)]
        rules["all at 8, inverse_variance"] = [play(name, unit, 8.0, s, weigh="inverse_variance") for s in range(seeds)]
        base = np.array([row["accuracy"] for row in rules["samples"]])
        for rule, rows in rules.items():
            got = np.array([row["accuracy"] for row in rows])
            off = got - base
            told = f"{off.mean():+.3f} ± {1.96 * off.std(ddof=1) / seeds**0.5:.3f}"
            paid = [float(np.mean([row["paid"][[*who]].mean() for row in rows])) for who in (STRICT, others)]
            print(f"{name} {unit}, {rule}: accuracy {got.mean():.3f} ({told}), tokens of the strict {paid[0]:+.2f}, "
                  f"of the others {paid[1]:+.2f}", flush=True)  # fmt: skip
        lies = [mixed(name, unit, "inverse_variance", s, liar=True)["paid"][0] for s in range(seeds)]
        honest = [row["paid"][0] for row in rules["inverse_variance"]]
        print(f"{name} {unit}, a liar's tokens: {np.mean(lies):+.2f}, honest {np.mean(honest):+.2f}", flush=True)


def by_round(source: str, hidden: int, number: int = 9) -> tuple[float, float]:
    """The processor's seconds of a round without an account and with one: medians over rounds of both in turn."""
    private = {"private": {"clip": 1.0, "noise": 1.0, "epsilon": 1e5, "delta": 1e-5}}
    given: dict[str, Any] = {
        "data": {"source": source, "clients": CLIENTS, "validation": 0.15},
        "model": {"name": "mlp", "hidden": [hidden]},
        "mechanism": {"name": "fedavg", "clients_per_round": CLIENTS},
        "eval": {"every": 100},
        "train": {"lr": 0.1, "epochs": 5},
    }
    worlds = [settle_engine(build(hanse.Experiment(**given, **more))).setup for more in ({}, {"federation": private})]
    states, taken = [first_state(world) for world in worlds], [[], []]  # type: ignore[var-annotated]
    for _ in range(number):
        for k, world in enumerate(worlds):
            begun = time.process_time()
            states[k] = play_round(world, states[k]).state
            taken[k].append(time.process_time() - begun)
    return statistics.median(taken[0][1:]), statistics.median(taken[1][1:])


def by_opacus(batch: int, epochs: int = 5) -> tuple[float, float]:
    """The processor's seconds of an epoch of DP-SGD on digits by hanse and by Opacus's own loop: medians of 7."""
    from opacus import PrivacyEngine

    data = build(hanse.Experiment(data={"source": "digits", "clients": 1}, mechanism="fedavg")).data
    pool, [index] = data.pool([0])
    mine = pool.take(index)

    def model() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        )

    module = model()
    problem = Problem(module, Layout.of(module))
    engine = LoopEngine(SequentialEngine(problem, threads=1), dp_sgd(problem, 1.0, 1.0, fresh=True))
    recipe = Recipe(epochs=epochs, batch_size=batch, lr=0.1)
    job = SeatJob(torch.arange(len(mine)), torch.zeros(problem.layout.size), (0, 0, 0, 0))

    def theirs() -> None:
        net = model()
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(mine.x, mine.y), batch_size=batch)
        net, optimizer, batches = PrivacyEngine().make_private(
            module=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), data_loader=loader,
            noise_multiplier=1.0, max_grad_norm=1.0,
        )  # fmt: skip
        for _ in range(epochs):
            for x, y in batches:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(x), y).backward()
                optimizer.step()

    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(7):
        for k, one in enumerate((lambda: engine.train(mine, [job], recipe, 0.1), theirs)):
            begun = time.process_time()
            one()
            taken[k].append((time.process_time() - begun) / epochs)
    return statistics.median(taken[0]), statistics.median(taken[1])


CLIP = {"client": 0.3, "sample": 1.0}


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("data", choices=[*SETTINGS, "covers", "mixed", "time"])
    given.add_argument("--seeds", type=int, default=5)
    given.add_argument("--units", default="client,sample")
    given.add_argument("--equal", action="store_true")
    words = given.parse_args()
    if words.data == "mixed":
        print_mixed("digits", words.seeds)
        return
    if words.data == "covers":
        for unit, noise in itertools.product(("client", "sample"), (0.02, 0.2, 1.0)):
            print("{} noise {}: {} of {} values".format(unit, noise, *covers(noise, unit)), flush=True)
        for value, noise in itertools.product(("path", "leave_one_out"), (0.03, 0.3)):
            sums, errors = sums_of_noise(value, runs=60, rounds=5, noise=noise)
            bad = clearly_harmful(sums, errors, np.full(sums.shape, 5))
            print(f"{value}, noise alone, {noise}: {bad.sum()} of {bad.size} sums clearly harmful", flush=True)
        return
    if words.data == "time":
        warnings.filterwarnings("ignore")
        for source, hidden in (("digits", 64), ("fashion_mnist", 64), ("fashion_mnist", 200)):
            plain_s, private_s = by_round(source, hidden)
            print(
                f"{source}, {hidden} hidden: a round {plain_s:.3f} s, with clip and noise {private_s:.3f} s", flush=True
            )
        for batch in (16, 64, 256):
            print("DP-SGD, batch {}: {:.3f} s an epoch, Opacus {:.3f} s".format(batch, *by_opacus(batch)), flush=True)
        return
    for unit in words.units.split(","):
        plain = [play(words.data, unit, np.inf, seed, words.equal) for seed in range(words.seeds)]
        for epsilon in (1.0, 2.0, 8.0, np.inf):
            rows = (
                plain
                if epsilon == np.inf
                else [play(words.data, unit, epsilon, s, words.equal) for s in range(words.seeds)]
            )
            pairs = list(zip(rows, plain, strict=True))
            agree, pays = (
                np.mean([spearmanr(one[what], two[what])[0] for one, two in pairs]) for what in ("worth", "paid")
            )
            by_size = np.mean([spearmanr(one["worth"], one["samples"])[0] for one in rows])
            off = np.mean([np.abs(one["paid"] - two["paid"]).mean() for one, two in pairs])
            spread = np.mean([np.abs(two["paid"]).mean() for two in plain])
            means = [statistics.mean(row[key] for row in rows) for key in ("accuracy", "auc", "told", "seconds")]
            print(
                f"{words.data} {unit} epsilon {epsilon:g}: accuracy {means[0]:.3f}, values' rank correlation "
                f"{agree:+.2f}, with samples {by_size:+.2f}, payouts' {pays:+.2f}, off by {off:.2f} of {spread:.2f} "
                f"tokens, AUC {means[1]:.3f}, values told from 0 {means[2]:.2f}, {means[3]:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
