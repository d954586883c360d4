"""What the server can learn of single samples from what it sees: plain updates, noisy ones, sums of groups.

    OMP_NUM_THREADS=1 python benchmarks/leaks.py members|lira|rounds|images [--seeds 0 1 2 3 4]

Digits, FedAvg, everybody in every round. What is attacked are the updates that a mechanism is given (``view.trained``):
with ``federation.secure`` the mean of a member's group in the place of each.

members: is this sample among client i's 50 that it trained on, or among 50 of its own that it did not? 12 clients, an
MLP with 64 hidden units, 5 epochs in batches of 10 at rate 0.1, rounds 1, 5 and 10. Two scores: the loss under what
was seen (Yeom et al. 2018), and its fall from the round's start. AUC over all samples, mean of clients: .5 is guessing.
lira: the likelihood ratio of Carlini et al. 2022 on what is seen of the first round of a client that holds random 50
of 100 samples, as there. In each of 32 worlds the half, the members of its group and the noise are drawn anew; 31 of
them are the attacker's models of what it sees with a sample and without. AUC, and how many of those inside are told
where 1 % of those outside are.
rounds: the same after 10, 20 and 30 rounds, with all that groups which change every round say of one client: its mean
update by least squares over all sums; and with groups that stay the same. The score is how far a sample's gradient
points against it, at the last start. Beside it the cosine between that estimate and the true mean update, both without
the mean of all clients.
images: gradient inversion (Geiping et al. 2020: the cosine of gradients, by Adam) of one full-batch step of clients
that have 1, 2, 4 and 8 images; labels are told to the attacker, which is generous. Of the first client's images: the
mean squared error to the nearest one that was found, as a share of that between two images of the data. 1 is as good as
any other image.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

import hanse
from hanse.learning.job import SeatJob
from hanse.learning.loop import LoopEngine
from hanse.learning.sequential import SequentialEngine
from hanse.runs.round import Played, first_state, play_round
from hanse.runs.setup import build
from hanse.wings.private.privacy import Privacy, clipped
from hanse.wings.private.private_loop import dp_sgd

CLIENTS, HELD, STEPS, WORLDS = 12, 50, 600, 32
CASTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "noise .001": {"behaviour": {"noisy": {"sigma": 0.001, "levels": "same"}}},
    "noise .01": {"behaviour": {"noisy": {"sigma": 0.01, "levels": "same"}}},
    "noise .05": {"behaviour": {"noisy": {"sigma": 0.05, "levels": "same"}}},
    "sums of 3": {"federation": {"secure": {"group": 3, "regroup": True}}},
    "sums of 6": {"federation": {"secure": {"group": 6, "regroup": True}}},
    "sum of 12": {"federation": {"secure": {"group": 12, "regroup": True}}},
}
PRIVATE: dict[str, dict[str, Any]] = {
    f"epsilon {e:g}, {unit}": {"federation": {"private": {"clip": 1.0, "epsilon": e, "delta": 1e-3, "unit": unit}}}
    for unit in ("sample", "client")
    for e in (8.0, 1.0)
}
FIXED = {"sums of 3, the same": {"federation": {"secure": {"group": 3, "regroup": False}}}}


def experiment(cast: str, seed: int, samples: int, **train: Any) -> hanse.Experiment:
    return hanse.Experiment(
        data={"clients": CLIENTS, "client_test": 0.5, "seed": seed,
              "partition": {"name": "iid", "samples_per_client": 2 * samples, "min_samples": 1}},
        model={"name": "mlp", "hidden": [64], "activation": "tanh"},
        mechanism={"name": "fedavg", "select": "everyone"}, train=train,
        engine={"train": "sequential" if "sample" in cast else "stacked", "threads": 1, "workers": 1, "device": "cpu"},
        run={"seed": seed},
        **(CASTS | PRIVATE | FIXED)[cast],
    )  # fmt: skip


def played(cast: str, seed: int, number: int, samples: int = HELD, **train: Any) -> Iterator[tuple[int, Played, Any]]:
    """Yield the rounds, with the experiment's data."""
    setup = build(experiment(cast, seed, samples, **train))
    state = first_state(setup)
    for r in range(1, number + 1):
        one = play_round(setup, state)
        state = one.state
        yield r, one, setup.data


def losses(problem: Any, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return each sample's loss under a model ``[P]``."""
    return functional.cross_entropy(
        functional_call(problem.module, problem.layout.unflatten(row), (x,)), y, reduction="none"
    )


def auc(inside: Tensor, outside: Tensor) -> float:
    """Return how often a member's score is above a stranger's."""
    return float(
        (inside[:, None] > outside[None]).double().mean() + 0.5 * (inside[:, None] == outside[None]).double().mean()
    )


def held(data: Any, client: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return a client's training and test samples."""
    found = []
    for share in ("train", "test"):
        pool, [at] = data.pool([client], share)
        found.append((pool.x[at], pool.y[at]))
    return found[0], found[1]


def shown(pairs: list[tuple[float, float]]) -> str:
    """Return the means of pairs of figures."""
    return ", ".join(f"{figure:.2f}" for figure in np.mean(pairs, 0))


def members(seeds: list[int]) -> None:
    """Print the table of "members"."""
    print("| what is seen | " + " | ".join(f"round {r}: loss, fall" for r in (1, 5, 10)) + " |\n|---|---|---|---|")
    for cast in CASTS:
        scores: dict[int, list[tuple[float, float]]] = {1: [], 5: [], 10: []}
        for seed in seeds:
            for r, one, data in played(cast, seed, 10, epochs=5, batch_size=10, lr=0.1):
                if r not in scores:
                    continue
                problem, start = one.view.judge.problem, one.view.table.rows[0]
                for client, row in zip(one.view.trained.seats.client.tolist(), one.view.trained.rows, strict=True):
                    mine, others = held(data, client)
                    after = [-losses(problem, row, *part) for part in (mine, others)]
                    before = [-losses(problem, start, *part) for part in (mine, others)]
                    fall = [a - b for a, b in zip(after, before, strict=True)]
                    scores[r].append((auc(*after), auc(*fall)))
        cells = " | ".join(shown(scores[r]) for r in scores)
        print(f"| {cast} | {cells} |", flush=True)


def lira(seeds: list[int]) -> None:
    """Print the table of "lira"."""
    print("| what is seen | AUC, share told at 1 % |\n|---|---|")
    for cast in ("nothing", "noise .01", "noise .05", "sums of 3", "sums of 6", "sum of 12", *PRIVATE):
        found = []
        for seed in seeds:
            drawn = [world(cast, seed, w) for w in range(WORLDS)]
            inside, scores = (torch.stack(parts).double() for parts in zip(*drawn, strict=True))
            ratios = [told(inside, scores, w) for w in range(WORLDS)]
            ratio, truth = torch.cat(ratios), inside.flatten().bool()
            least = ratio[~truth].quantile(0.99)
            found.append((auc(ratio[truth], ratio[~truth]), float((ratio[truth] > least).double().mean())))
        print(f"| {cast} | {shown(found)} |", flush=True)


def told(inside: Tensor, scores: Tensor, world: int) -> Tensor:
    """Return each sample's log likelihood ratio in a world, by normal scores in the others with and without it."""
    others = torch.arange(len(scores)) != world
    i, s = inside[others], scores[others]
    means = [(s * part).sum(0) / part.sum(0) for part in (i, 1 - i)]
    off = s - torch.where(i.bool(), *means)
    return ((scores[world] - means[1]) ** 2 - (scores[world] - means[0]) ** 2) / (2 * off.square().mean(0))


def world(cast: str, seed: int, number: int) -> tuple[Tensor, Tensor]:
    """Return which of 100 samples the first client trained on, and how sure what is seen of it is of each."""
    given = experiment("nothing", seed, HELD, epochs=5, batch_size=10, lr=0.1)
    setup = build(given)
    data, problem = setup.data, setup.problem
    pool, [mine] = data.pool([0])
    _, [test] = data.pool([0], "test")
    candidates, rng = torch.cat([mine, test]), np.random.default_rng([seed, number])
    rest = np.setdiff1d(np.arange(len(pool.y)), candidates)
    half = torch.from_numpy(rng.permutation(2 * HELD)[:HELD])
    group = {"sums of 3": 3, "sums of 6": 6, "sum of 12": 12}.get(cast, 1)
    others = [torch.from_numpy(rng.choice(rest, HELD, replace=False)) for _ in range(group - 1)]
    start, recipe = setup.context.initial(0), given.train.recipe
    rule = CASTS.get(cast, PRIVATE.get(cast, {})).get("federation", {}).get("private")
    private = None if rule is None else Privacy(**rule)
    if private is not None:
        private = private.settled(1, 1.0, private.release(HELD, recipe))
    plain: Any = SequentialEngine(problem, threads=1)
    if private is not None and private.unit == "sample":
        plain = LoopEngine(plain, dp_sgd(problem, private.clip, private.noise))
    jobs = [SeatJob(index, start, (seed, number, c, 0)) for c, index in enumerate([candidates[half], *others])]
    row = torch.stack([plain.train(pool, [job], recipe, recipe.lr).rows[0] for job in jobs]).mean(0)
    if private is not None and private.unit == "client":
        step = clipped(row - start, private.clip)
        row = (start + step + private.noise * private.clip * torch.from_numpy(rng.standard_normal(len(step)))).float()
    elif cast.startswith("noise"):
        row = row + float(cast.split()[1]) * torch.from_numpy(rng.standard_normal(len(row))).float()
    inside = torch.zeros(2 * HELD)
    inside[half] = 1
    loss = losses(problem, row, pool.x[candidates], pool.y[candidates]).detach()
    return inside, -loss - torch.log(-torch.expm1(-loss.clamp(min=1e-6)))  # log(p / (1 - p))


def over_rounds(seeds: list[int]) -> None:
    after = (10, 20, 30)
    print("| what is seen | " + " | ".join(f"{r} rounds: AUC, cosine" for r in after) + " |\n|---|---|---|---|")
    truths: dict[int, list[Tensor]] = {}
    for cast in ("nothing", "sums of 3", "sums of 6", *FIXED):
        scores: dict[int, list[tuple[float, float]]] = {r: [] for r in after}
        for seed in seeds:
            together, totals = torch.zeros(CLIENTS, CLIENTS, dtype=torch.float64), None
            for r, one, data in played(cast, seed, max(after), epochs=5, batch_size=10, lr=0.1):
                problem, start = one.view.judge.problem, one.view.table.rows[0]
                steps = (one.view.trained.rows - start).double()
                totals = torch.zeros(CLIENTS, steps.shape[1], dtype=torch.float64) if totals is None else totals
                same = torch.cdist(steps, steps) == 0  # members of one group have the same mean
                together += same.double()
                totals += torch.diag(same.sum(1).double()) @ steps
                if r not in scores:
                    continue
                # sums of groups = sum of members' means, by least squares towards the mean of all
                mean = totals.sum(0) / together.sum(0).sum()
                found = (
                    torch.linalg.solve(together + torch.eye(CLIENTS), totals - together.sum(1)[:, None] * mean) + mean
                )
                own = found - found.mean(0)
                if cast == "nothing":
                    truths.setdefault(seed, []).append(own)
                true = truths[seed][after.index(r)]
                for client in range(CLIENTS):
                    points = [-aligned(problem, start, own[client].float(), *part) for part in held(data, client)]
                    cosine = functional.cosine_similarity(own[client], true[client], dim=0)
                    scores[r].append((auc(*points), float(cosine)))
        print(f"| {cast} | " + " | ".join(shown(scores[r]) for r in after) + " |", flush=True)


def aligned(problem: Any, row: Tensor, step: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the inner product of each sample's gradient at a model with a step."""
    each = vmap(grad(lambda r, a, b: losses(problem, r, a[None], b[None])[0]), (None, 0, 0))
    return each(row, x, y) @ step


def images(seeds: list[int]) -> None:
    counts = (1, 2, 4, 8)
    print("| what is seen | " + " | ".join(f"{n} images" for n in counts) + " |\n|---|" + "---|" * len(counts))
    for cast in ("nothing", "noise .001", "noise .01", "sums of 3", "sum of 12", *PRIVATE):
        cells = []
        for n in counts:
            errors = []
            for seed in seeds:
                [(_, one, data)] = played(cast, seed, 1, n, epochs=1, batch_size=n, lr=0.1)
                errors.append(inverted(one, data, seed))
            cells.append(f"{np.mean(errors):.2f}")
        print(f"| {cast} | " + " | ".join(cells) + " |", flush=True)


def inverted(one: Played, data: Any, seed: int) -> float:
    """Return how far the first client's images are from the nearest one that the server finds in what it sees."""
    problem, start = one.view.judge.problem, one.view.table.rows[0]
    seen, clients = one.view.trained.rows, one.view.trained.seats.client.tolist()
    at = clients.index(0)
    behind = [c for c, row in zip(clients, seen, strict=True) if torch.equal(row, seen[at])]
    x, y = (torch.cat(parts) for parts in zip(*(held(data, c)[0] for c in behind), strict=True))
    target = seen[at] - start
    torch.manual_seed(seed)
    guess = (torch.randn_like(x) * x.std() + x.mean()).requires_grad_()
    optimiser = torch.optim.Adam([guess], lr=0.1)

    def gradient(inputs: Tensor) -> Tensor:
        return grad(lambda row: losses(problem, row, inputs, y).mean())(start)

    for step in range(STEPS):
        if step in (STEPS // 2, 3 * STEPS // 4):
            optimiser.param_groups[0]["lr"] *= 0.1
        optimiser.zero_grad()
        (1 + functional.cosine_similarity(gradient(guess), target, dim=0)).backward()
        optimiser.step()
    pool, _ = data.pool([0])
    usual = 2 * pool.x.flatten(1).var(0).mean()
    mine = held(data, 0)[0][0]
    nearest = (mine[:, None] - guess.detach()[None]).flatten(2).square().mean(2).min(1).values
    return float(nearest.mean() / usual)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("members", "lira", "rounds", "images"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    asked = parser.parse_args()
    {"members": members, "lira": lira, "rounds": over_rounds, "images": images}[asked.what](asked.seeds)


if __name__ == "__main__":
    main()
