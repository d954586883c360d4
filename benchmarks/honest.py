"""What honest members of seven kinds end with, beside what training without them says that they are worth.

    nice -n 19 python benchmarks/honest.py [--seeds 24] --out honest.jsonl
    nice -n 19 python benchmarks/honest.py --rises 1000 [--first 0] --out rises.jsonl

Eight members have handwritten digits. The last one is of a kind: its classes, its number of samples, its labels or its
pixels are unlike the others'. Everybody is honest. Each run is played under rules that pay (the settings of ``hanse
attack``'s table; the pot has 100 tokens for each member), and plain FedAvg is trained on drawn groups of members: from
how much the loss on other digits falls with the member in them follows its Shapley value, and its share of what all of
them gain. A kept run is not played again. The table's intervals are 95 % (shares: Student's t; others: Wilson).

With ``--rises`` ordinary members alone are drawn, the last of whom has a quarter, a half or all of its samples, or a
quarter, five eighths or all of its labels right; said is how its pay from a pot after four rounds rises with each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from common import markdown
from sklearn.datasets import load_digits

import hanse
from hanse.base.files import read_toml
from hanse.core.entry import TOKEN
from hanse.data.own import as_dataset
from hanse.games.jackknife import t_quantile
from hanse.learning.intervals import wilson
from hanse.wings.attack.search import RULES

MEMBERS, LAST, RARE, COMMON, ROUNDS, EACH = 8, 7, 9, 0, 8, 3
KINDS = ("ordinary", "rare class, too", "rare class only", "12 samples", "30 % labels wrong", "one common class",
         "noisy pixels")  # fmt: skip
PROVED = {"sizes": {"proved": True}, "evidence": {"training": {}}}
FEDAVG = {"name": "fedavg", "value": "path"}
PAYING: dict[str, dict[str, Any]] = {
    "by value": {"mechanism": FEDAVG | {"settle": "by_value"}},
    "pot, proved": {"mechanism": FEDAVG | {"settle": {"name": "pot", "tokens": 100.0 * MEMBERS}}, **PROVED},
    "ipfl_posted, proved": {"mechanism": "ipfl_posted", **PROVED},
}
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # features, classes, members


def members(kind: str, seed: int) -> tuple[Rows, tuple[np.ndarray, np.ndarray]]:
    """Return the members' samples, and those that nobody trains on: a fifth of all digits."""
    draw = np.random.default_rng([seed, KINDS.index(kind)])
    x, y = load_digits(return_X_y=True)
    order = draw.permutation(len(y))
    x, y = x[order].astype(np.float32) / 16, y[order]
    cut = len(y) // 5
    test, x, y = (x[:cut], y[:cut]), x[cut:], y[cut:]
    rare = kind.startswith("rare class")
    owner = np.empty(len(y), np.int64)
    for label in range(10):
        at = np.flatnonzero(y == label)
        owner[at] = draw.choice(MEMBERS, len(at), p=draw.dirichlet(np.ones(MEMBERS)))
        if rare and label == RARE:
            owner[at] = LAST
        elif kind in ("rare class only", "one common class"):  # of the common class it has a half
            owner[at] = draw.integers(LAST, size=len(at))
            owner[at[: len(at) // 2 * (kind == "one common class" and label == COMMON)]] = LAST
    owner[:LAST] = np.arange(LAST)  # nobody is without a sample
    own = np.flatnonzero(owner == LAST)
    if kind == "12 samples":
        owner[own[12:]] = draw.integers(LAST, size=len(own[12:]))
    if kind == "30 % labels wrong":
        wrong = own[draw.random(len(own)) < 0.3]
        y[wrong] = (y[wrong] + draw.integers(1, 10, len(wrong))) % 10
    if kind == "noisy pixels":
        x[own] += draw.normal(0, 0.5, x[own].shape).astype(np.float32)
    return (x, y, owner), test


def played(seed: int, rows: Rows, test: Any, change: Mapping[str, Any], rounds: int = ROUNDS) -> hanse.Run:
    """Return a run of some members with the settings of the table of cheats."""
    laid = read_toml(RULES)["experiment"] | {"run": {"rounds": rounds, "seed": seed}, "eval": {"every": rounds}}
    laid["data"] = {"source": {"min_samples": 1}, "client_test": 0.1, "client_validation": 0.1, "seed": seed}
    return hanse.run(hanse.Experiment(**(laid | change)), data=as_dataset(rows, test=test, min_samples=1))


def share_of_last(seed: int, rows: Rows, test: Any) -> float:
    """Return the Shapley value of the last member's data over what everybody's together gain, from retrained groups."""
    draw = np.random.default_rng([seed, 1])
    known = dict[frozenset[int], float]()

    def loss(group: frozenset[int]) -> float:
        if not group:
            return float(np.log(10))
        if group not in known:
            there = np.isin(rows[2], list(group))
            some = tuple(column[there] for column in rows)
            known[group] = played(seed, some, test, {"mechanism": "fedavg"}).metrics[-1]["test/loss"]
        return known[group]

    def added(size: int) -> float:
        group = frozenset(draw.choice(LAST, size, replace=False).tolist())
        return loss(group) - loss(group | {LAST})

    value = np.mean([np.mean([added(size) for _ in range(EACH)]) for size in range(MEMBERS)])
    return float(value / (np.log(10) - loss(frozenset(range(MEMBERS)))))


def lines(seeds: int, kept: Collection[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """Yield each play that is not kept: what the last member ended with under each rule, and its retrained share."""
    for seed in range(seeds):
        for kind in KINDS:
            if (kind, seed) in kept:
                continue
            rows, test = members(kind, seed)
            found: dict[str, Any] = {"kind": kind, "seed": seed, "share": share_of_last(seed, rows, test)}
            for name, change in PAYING.items():
                run = played(seed, rows, test, change)
                seats = [seat for seat in run.clients if seat["client"] == LAST]
                proved = seats[-1]["training_proved"] if "evidence" in change else 1.0
                got = [run.book.balance(f"client/{c}") / TOKEN - 100.0 for c in range(MEMBERS)]
                found[name] = {"got": got, "proved": proved}
            yield found


def rises(seed: int) -> dict[str, Any]:
    """Return the last member's pay from a pot after four rounds, with less of its samples and of its labels."""
    (x, y, owner), test = members("ordinary", seed)
    draw, own = np.random.default_rng([seed, 2]), np.flatnonzero(owner == LAST)
    order, wrong = draw.permutation(own), (y + draw.integers(1, 10, len(y))) % 10
    found: dict[str, Any] = {"seed": seed}
    for what, parts in (("samples", (0.25, 0.5, 1.0)), ("labels", (0.25, 0.625))):
        for part in parts:
            rest = order[int(np.ceil(part * len(own))) :]
            there = np.ones(len(y), bool)
            there[rest] = what == "labels"
            labels = np.where(np.isin(np.arange(len(y)), rest), wrong, y)
            rows = (x[there], labels[there], owner[there])
            pot = {"mechanism": FEDAVG | {"settle": {"name": "pot", "tokens": 100.0 * MEMBERS}}}
            book = played(seed, rows, test, pot, 4).book
            got = [book.balance(f"client/{c}") - 100 * TOKEN for c in range(MEMBERS)]
            found |= {"sound": found.get("sound", True) and min(got) >= 0 and sum(got) in (0, 100 * MEMBERS * TOKEN)}
            found[f"{what} {part:g}"] = got[LAST] / TOKEN
    return found


def half(numbers: list[float]) -> float:
    """Return half of the 95 % interval of a mean."""
    return t_quantile(len(numbers) - 1) * float(np.std(numbers, ddof=1)) / len(numbers) ** 0.5


def percent(count: int, of: int) -> str:
    """Return a share with its 95 % interval."""
    low, high = wilson(count / of, of)
    return f"{100 * count / of:.0f} ({100 * low:.0f} to {100 * high:.0f})"


def rows_of(plays: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield a row for each kind and rule."""
    for kind in KINDS:
        there = [play for play in plays if play["kind"] == kind]
        worth = [100 * play["share"] for play in there]
        for name in PAYING if len(there) > 1 else ():
            got = [play[name]["got"] for play in there]
            paid = [sum(max(0.0, one) for one in each) for each in got]
            part = [100 * max(0.0, each[LAST]) / total if total else 0.0 for each, total in zip(got, paid, strict=True)]
            below = sum(each[LAST] < 0 for each in got)
            failed = sum(not play[name]["proved"] for play in there)
            tokens = f"{np.mean([each[LAST] for each in got]):+.1f}"
            shares = [f"{np.mean(one):.1f} ± {half(one):.1f}" for one in (worth, part)]
            yield [kind, shares[0], name, shares[1], tokens, percent(below, len(there)), percent(failed, len(there))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--rises", type=int, help="play so many federations of ordinary members in the place of kinds")
    parser.add_argument("--first", type=int, default=0, help="the first seed of --rises")
    parser.add_argument("--out", type=Path, required=True, help="kept runs, one a line")
    given = parser.parse_args()
    plays = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    if given.rises:
        seeds = sorted({*range(given.first, given.first + given.rises)} - {play["seed"] for play in plays})
        new = map(rises, seeds)
    else:
        new = lines(given.seeds, {(play["kind"], play["seed"]) for play in plays})
    for line in new:
        with given.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        plays.append(line)
    if given.rises:
        steps = ("samples 0.25", "samples 0.5", "samples 1", "labels 0.625", "labels 0.25")
        for one, other in pairwise(steps):
            apart = [play[other] - play[one] for play in plays]
            up, down = sum(gap > 1e-6 for gap in apart), sum(gap < -1e-6 for gap in apart)
            print(f"{one} to {other}: {np.mean(apart):+.2f} ± {half(apart):.2f} tokens; more in {up}, less in {down}")
        print(f"sums and floors hold in {sum(play['sound'] for play in plays)} of {len(plays)}")
        return
    heads = (
        "member",
        "retrained share, %",
        "rule",
        "of all pay, %",
        "tokens",
        "below its grant, %",
        "fails its proof, %",
    )
    print(markdown(heads, list(rows_of(plays))))


if __name__ == "__main__":
    main()
