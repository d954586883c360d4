"""How often claims are decided wrongly when seeds are added until they are decided, and how many seeds that takes.

    python benchmarks/claims_alpha.py [--tables 2000] [--later]

A simulated table has eight claims: one arm against four others in two settings, so that claims share an arm. Without an
effect every arm has the same mean; otherwise means and deviations are those that GreedyFed prints (Tables I and II).
Seeds come as the planner adds them, up to 5, 10 and 20, to the claims that are not decided. Beside it: a fixed
plan of 20 seeds with the same Holm correction and plain t tests.

With ``--later`` every claim that is open after 5 seeds gets a second reading, whose noise is ``CALMER`` times that of
the first one. It is decided by later seeds only, after 5, 10 and 20 of them, and shares the claim's alpha as
:mod:`hanse_papers.claims.claim` has it. A claim is decided if one of its readings is.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from hanse.lab.statistics import ALPHA, LOOKS, Effect, effect, holm

Floats = NDArray[np.float64]
# GreedyFed minus UCB, S-FedAvg, FedAvg, Power-of-Choice: mean and deviation of each arm as printed
MNIST = ([94.06, 93.39, 91.94, 92.19, 91.58], [0.19, 0.72, 0.95, 1.40, 1.52])
CALMER = 0.7
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


def decide(
    differences: Floats, margins: Floats, floor: float | None, second: Floats | None = None
) -> tuple[list[str], list[int], set[str]]:
    """Return the words of a table's claims, how many seeds each took, and the words of all readings.

    With ``second``, the differences of later seeds by second readings, the word of a claim is that of the reading that
    decides it.
    """
    claims = len(margins)
    stopped, found = [0] * claims, ["open"] * claims
    effects: list[Effect | None] = [None] * claims
    weights, least = [1.0] * claims, [float(margin) for margin in margins]

    def see(data: Floats, places: list[int], seeds: int) -> None:
        for column, place in enumerate(places):
            if found[place] == "open":
                effects[place] = effect(data[:seeds, column], least[place], floor)
                stopped[place] = seeds
        signs = holm([1.0 if e is None else min(e.up, e.down) for e in effects], weights)
        smalls = holm([1.0 if e is None else e.small for e in effects], weights)
        for place, (e, (sign, _), (small, _)) in enumerate(zip(effects, signs, smalls, strict=True)):
            found[place] = "no such effect" if small <= ALPHA else "open"  # as statistics.words, without intervals
            if e is not None and sign <= ALPHA:
                found[place] = "confirmed" if e.up < e.down else "contradicted"

    see(differences, list(range(claims)), LOOKS[0])
    again = [place for place in range(claims) if found[place] == "open"] if second is not None else []
    for place in again:
        weights[place] = 0.5
        weights.append((1 - LOOKS[0] / LOOKS[-1]) / 2)
        least.append(least[place])
        effects.append(None)
        found.append("open")
        stopped.append(0)
    for seeds in LOOKS[1:]:
        see(differences, list(range(claims)), seeds)
    for seeds in LOOKS if second is not None else ():
        open_ = [place for place in range(len(again)) if found[again[place]] == "open"]
        see(second[:, [again[i] for i in open_]], [claims + i for i in open_], seeds)
    every = set(found)
    for place, claim in enumerate(again, claims):
        found[claim] = found[place] if found[claim] == "open" else found[claim]
        stopped[claim] += stopped[place]
    return found[:claims], stopped[:claims], every


def fixed(differences: Floats) -> list[bool]:
    """Return which claims a fixed plan of 20 seeds confirms."""
    t, p = stats.ttest_1samp(differences, 0.0)
    return [adjusted <= ALPHA and side > 0 for (adjusted, _), side in zip(holm(list(p)), t, strict=True)]


def tally(
    tables: int,
    *,
    printed: bool,
    heavy: bool = False,
    margin: float = 0.5,
    floor: float | None = 0.0,
    later: bool = False,
) -> Tally:
    """Return what became of so many tables; ``margin`` is used where there is no printed effect."""
    rng = np.random.default_rng(7)
    means = [np.array(block[0]) for block in (MNIST, FMNIST)]
    halves = np.concatenate([(m[0] - m[1:]) / 2 for m in means]) if printed else np.full(8, margin)
    wrong, confirmed, seeds, plain = 0, 0, 0, 0
    for _ in range(tables):
        differences = table(rng, printed=printed, heavy=heavy)
        truth = 2 * halves if printed else np.zeros(8)
        second = truth + CALMER * (table(rng, printed=printed, heavy=heavy) - truth) if later else None
        found, used, every = decide(differences, halves, floor, second)
        wrong += ("contradicted" in every) or (not printed and "confirmed" in every)
        confirmed += found.count("confirmed")
        seeds += sum(used)
        plain += sum(fixed(differences))
    return Tally(wrong / tables, confirmed / tables / 8, seeds / tables / 8, plain / tables / 8)


def main() -> None:
    """Print both halves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=2000)
    parser.add_argument("--later", action="store_true")
    asked = parser.parse_args()
    tables, later = asked.tables, asked.later
    for heavy in (False, True):
        for margin in (0.5, 3.0):
            none = tally(tables, printed=False, heavy=heavy, margin=margin, later=later)
            tail = "Student's t with 4 degrees" if heavy else "normal"
            print(f"no effect, {tail}, margin {margin}: confirmed or contradicted in {none.wrong:.2%} of tables, "
                  f"{none.seeds:.1f} seeds a claim", flush=True)  # fmt: skip
    for floor in (0.0, 0.3, None):
        some = tally(tables, printed=True, floor=floor, later=later)
        print(f"printed effects, floor {floor}: {some.confirmed:.1%} confirmed with {some.seeds:.1f} seeds a claim; "
              f"fixed plan of 20: {some.fixed:.1%}; contradicted in {some.wrong:.2%}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
