"""How often claims are decided wrongly when seeds are added until they are decided, and how many seeds that takes.

    python benchmarks/claims_alpha.py [--tables 2000]

A simulated table has eight claims: one arm against four others in two settings, so that claims share an arm. Without an
effect every arm has the same mean; otherwise means and deviations are those that GreedyFed prints (Tables I and II).
Seeds come as the planner adds them, up to 5, 10 and 20, to the claims that are not decided. Beside it: a fixed
plan of 20 seeds with the same Holm correction and plain t tests.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from hanse.lab.claims.statistics import ALPHA, LOOKS, Effect, effect, holm, words

Floats = NDArray[np.float64]
# GreedyFed minus UCB, S-FedAvg, FedAvg, Power-of-Choice: mean and deviation of each arm as printed
MNIST = ([94.06, 93.39, 91.94, 92.19, 91.58], [0.19, 0.72, 0.95, 1.40, 1.52])
FMNIST = ([82.06, 80.53, 76.25, 72.07, 70.13], [0.51, 2.34, 4.95, 9.28, 5.94])


@dataclass(frozen=True)
class Tally:
    """Over all tables: with a wrong sign somewhere, the share of claims confirmed, and the seeds that a claim took;
    ``fixed``: the share that a fixed plan confirms."""

    wrong: float
    confirmed: float
    seeds: float
    fixed: float


def table(rng: np.random.Generator, *, printed: bool, heavy: bool = False) -> Floats:
    """Return the differences ``[20 seeds, 8 claims]`` of one table."""
    blocks = []
    for means, sds in (MNIST, FMNIST):
        noise = rng.standard_t(4, (LOOKS[-1], 5)) / np.sqrt(2) if heavy else rng.standard_normal((LOOKS[-1], 5))
        arms = noise * np.array(sds if printed else [1.0] * 5) + np.array(means if printed else [0.0] * 5)
        blocks.append(arms[:, :1] - arms[:, 1:])
    return np.concatenate(blocks, axis=1)


def decide(differences: Floats, margins: Floats, floor: float) -> tuple[list[str], list[int]]:
    """Return the words of a table's claims and after how many seeds each stopped."""
    stopped = [0] * len(margins)
    effects: list[Effect | None] = [None] * len(margins)
    found = ["open"] * len(margins)
    for seeds in LOOKS:
        for place in [place for place, word in enumerate(found) if word == "open"]:
            effects[place] = effect(differences[:seeds, place], float(margins[place]), floor)
            stopped[place] = seeds
        found = [judged.word for judged in words(effects, list(margins))]
    return found, stopped


def fixed(differences: Floats) -> list[bool]:
    """Return which claims a fixed plan of 20 seeds confirms."""
    t, p = stats.ttest_1samp(differences, 0.0)
    return [adjusted <= ALPHA and side > 0 for (adjusted, _), side in zip(holm(list(p)), t, strict=True)]


def tally(tables: int, *, printed: bool, heavy: bool = False, margin: float = 0.5, floor: float = 0.0) -> Tally:
    """Return what became of so many tables; ``margin`` is used where there is no printed effect."""
    rng = np.random.default_rng(7)
    means = [np.array(block[0]) for block in (MNIST, FMNIST)]
    halves = np.concatenate([(m[0] - m[1:]) / 2 for m in means]) if printed else np.full(8, margin)
    wrong, confirmed, seeds, plain = 0, 0, 0, 0
    for _ in range(tables):
        differences = table(rng, printed=printed, heavy=heavy)
        found, used = decide(differences, halves, floor)
        wrong += ("contradicted" in found) or (not printed and "confirmed" in found)
        confirmed += found.count("confirmed")
        seeds += sum(used)
        plain += sum(fixed(differences))
    return Tally(wrong / tables, confirmed / tables / 8, seeds / tables / 8, plain / tables / 8)


def main() -> None:
    """Print both halves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=2000)
    tables = parser.parse_args().tables
    for heavy in (False, True):
        for margin in (0.5, 3.0):
            none = tally(tables, printed=False, heavy=heavy, margin=margin)
            tail = "Student's t with 4 degrees" if heavy else "normal"
            print(f"no effect, {tail}, margin {margin}: confirmed or contradicted in {none.wrong:.2%} of tables, "
                  f"{none.seeds:.1f} seeds a claim")  # fmt: skip
    for floor in (0.0, 0.3):
        some = tally(tables, printed=True, floor=floor)
        print(f"printed effects, floor {floor}: {some.confirmed:.1%} confirmed with {some.seeds:.1f} seeds a claim; "
              f"fixed plan of 20: {some.fixed:.1%}; contradicted somewhere in {some.wrong:.2%}")  # fmt: skip


if __name__ == "__main__":
    main()
