"""Members' values from sums of groups of updates, beside the values of single updates.

    HANSE_DATA=folder OMP_NUM_THREADS=1 python benchmarks/group_values.py [--seeds 0 1 2 3 4] [--rounds 30]

FedAvg, 14 clients, all in every round, an MLP with 20 hidden units, 2 epochs at rate 0.1, Dirichlet 0.5. Casts:
*plain*; *maverick*, in which the last client alone has the last class (Dirichlet 0.1 otherwise; not with loans);
*cheats*, in which client 0 sends noise of its update's length, client 1 nothing and client 2 the opposite of its
update. Path values of the single updates are computed in every round; a group's value is the sum of its members' (that
is the theorem, and ``tests/mechanisms/test_group_path.py`` shows it in a run). Groups of 2 to 5 are drawn anew every
round, 10 times over. Printed: Spearman correlation of cumulative values with those of single updates after 10, 20 and
30 rounds; how often value +- 1.96 errors covers a client's value in a round and summed over the last 20; and for the
cheats the AUC: how often a cheat has less than an honest client, beside that by single updates.
"""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np
import path_study
from path_study import rounds, valued
from scipy import stats

import hanse
from hanse.games.group_sums import Sums, members, shares

CLIENTS, DRAWS, GROUPS, AFTER = 14, 10, (2, 3, 4, 5), (10, 20, 30)


def experiment(source: str, cast: str, seed: int) -> hanse.Experiment:
    given = path_study.experiment(source, "maverick" if cast == "maverick" else "plain", CLIENTS, seed)
    table = given.model_dump()
    if cast != "maverick":
        table["data"]["partition"]["alpha"] = 0.5
    if cast == "cheats":
        table["behaviour"] = {
            "path_study:Cast": {"noise": (0,), "zero": (1,)},
            "attacker": {"clients": [2], "kind": "flip"},
        }
    return hanse.Experiment.model_validate(table)


def from_sums(truth: np.ndarray, group: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return members' values and standard errors, ``[T, N]`` each, from sums of random groups of ``truth [T, N]``."""
    known = Sums.none(truth.shape[1])
    worth, errors = np.zeros_like(truth), np.full_like(truth, np.nan)
    for r, one in enumerate(truth):
        groups = np.array_split(rng.permutation(len(one)), len(one) // group)
        sums = np.array([one[at].sum() for at in groups])
        known = known.and_these(groups, sums)
        found = members(known)
        for at, amount in zip(groups, sums.tolist(), strict=True):
            worth[r, at], errors[r, at] = shares(found, at, amount)
    return worth, errors


def auc(values: np.ndarray, cheats: int = 3) -> float:
    """Return how often one of the first clients has less than one of the others."""
    return float((values[:cheats, None] < values[None, cheats:]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=max(AFTER))
    asked = parser.parse_args()
    print("| data, cast | group | Spearman after " + ", ".join(map(str, AFTER)) + " | covered: round, last 20 | AUC |")
    print("|---" * 5 + "|")
    for source, cast in product(("digits", "fashion_mnist", "loans"), ("plain", "maverick", "cheats")):
        if (source, cast) == ("loans", "maverick"):
            continue
        truths = []
        for seed in asked.seeds:
            played = rounds(experiment(source, cast, seed), asked.rounds)
            truths.append(np.stack([valued(one.view, name="path").per_seat for _, one in played]))
        for group in GROUPS:
            ranks, one, last, found = [], [], [], []
            for seed, truth in zip(asked.seeds, truths, strict=True):
                for draw in range(DRAWS):
                    worth, errors = from_sums(truth, group, np.random.default_rng([seed, draw]))
                    ranks.append([stats.spearmanr(worth[:t].sum(0), truth[:t].sum(0)).statistic for t in AFTER])
                    off = worth - truth
                    one.append(np.nanmean(np.abs(off[-20:]) < 1.96 * errors[-20:]))
                    last.append(np.mean(np.abs(off[-20:].sum(0)) < 1.96 * np.sqrt((errors[-20:] ** 2).sum(0))))
                    found.append(auc(worth.sum(0)))
            known = f"{np.mean(found):.2f} ({np.mean([auc(t.sum(0)) for t in truths]):.2f})" if cast == "cheats" else ""
            cells = f"{', '.join(f'{r:.2f}' for r in np.mean(ranks, 0))} | {np.mean(one):.2f}, {np.mean(last):.2f}"
            print(f"| {source}, {cast} | {group} | {cells} | {known} |", flush=True)


if __name__ == "__main__":
    main()
