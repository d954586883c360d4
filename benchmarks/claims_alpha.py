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
from scipy import special, stats

from hanse.lab.statistics import ALPHA, LOOKS, holm, look

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


def holm_rows(p: Floats, weights: Floats) -> Floats:
    """Return :func:`hanse.lab.statistics.holm`'s adjusted p-values of each row, ``[tables, claims]``."""
    weights = np.broadcast_to(weights, p.shape)
    order = np.argsort(p / weights, axis=1, kind="stable")
    q, w = np.take_along_axis(p, order, 1), np.take_along_axis(weights, order, 1)
    left = np.cumsum(w[:, ::-1], axis=1)[:, ::-1]
    found = np.empty(p.shape)
    np.put_along_axis(found, order, np.maximum.accumulate(np.minimum(1.0, left * q / w), axis=1), 1)
    return found


def evidence(d: Floats, margins: Floats, floor: float | None, at: tuple[int, float]) -> Floats:
    """Return :func:`hanse.lab.statistics.effect`'s p-values up, down and small, ``[3, tables, claims]``, at a look."""
    n, share = at
    mean, sd = d[:, :n].mean(axis=1), d[:, :n].std(axis=1, ddof=1)
    error = (2 * sd if floor is None else np.maximum(sd, floor)) / np.sqrt(n)
    sides = special.stdtr(n - 1, np.stack([-mean, mean, mean - margins]) / error)
    return np.asarray(np.minimum(1.0, 2 * sides / share))


def decide(
    differences: Floats, margins: Floats, floor: float | None, second: Floats | None = None
) -> tuple[Floats, Floats, Floats]:
    """Return the words of tables' claims and of all readings (1 confirmed, -1 contradicted, 0.5 no such effect, 0
    open), and how many seeds each claim took.

    Args:
        differences: ``[tables, seeds, claims]``.
        margins: the smallest effect of each claim.
        floor: as in :func:`hanse.lab.statistics.effect`.
        second: the differences of later seeds by second readings. The word of a claim is that of the reading that
            decides it.
    """
    tables, _, claims = differences.shape
    both, p = np.concatenate([margins, margins]), np.ones((3, tables, 2 * claims))
    weights, had = np.ones((tables, 2 * claims)), np.zeros((tables, 2 * claims), bool)
    weights[:, claims:] = 1e-12  # no second reading
    words, seeds = np.zeros((tables, 2 * claims)), np.zeros((tables, 2 * claims))

    def see(data: Floats, places: slice, n: int) -> None:
        open_ = (words[:, places] == 0) & had[:, places]
        open_ &= (words[:, :claims] == 0) | (places.start == 0)  # a claim that is decided needs no second reading
        p[:, :, places] = np.where(open_, evidence(data, both[places], floor, look(n)), p[:, :, places])  # type: ignore[arg-type]
        seeds[:, places] = np.where(open_, n, seeds[:, places])
        sign, small = (holm_rows(x, weights) <= ALPHA for x in (p[:2].min(axis=0), p[2]))
        words[:] = np.where(sign, np.where(p[0] < p[1], 1, -1), np.where(small, 0.5, 0))

    had[:, :claims] = True
    see(differences, slice(0, claims), LOOKS[0])
    if second is not None:
        had[:, claims:] = words[:, :claims] == 0
        weights[:, :claims][had[:, claims:]] = 0.5
        weights[:, claims:][had[:, claims:]] = (1 - LOOKS[0] / LOOKS[-1]) / 2
    for n in LOOKS[1:]:
        see(differences, slice(0, claims), n)
    for n in LOOKS if second is not None else ():
        see(second, slice(claims, 2 * claims), n)
    first, later = words[:, :claims], words[:, claims:]
    return np.where(first == 0, later, first), words, seeds[:, :claims] + seeds[:, claims:]


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
    truth = 2 * halves if printed else np.zeros(8)
    drawn = [[table(rng, printed=printed, heavy=heavy) for _ in range(2 if later else 1)] for _ in range(tables)]
    first, *rest = np.array(drawn).swapaxes(0, 1)
    found, every, used = decide(first, halves, floor, truth + CALMER * (rest[0] - truth) if later else None)
    wrong = (every == -1).any(axis=1) | (not printed and (every == 1).any(axis=1))
    plain = sum(sum(fixed(differences)) for differences in first)
    return Tally(float(wrong.mean()), float((found == 1).mean()), float(used.mean()), plain / tables / 8)


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
