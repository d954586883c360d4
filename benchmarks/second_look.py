"""What kept results say beyond their tables: the figures that verdicts quote and no table has.

Run: ``python benchmarks/second_look.py``. It prints

* what iPFL's markets left out (``market/eq9``) beside what the kept audit said and what the audit says now;
* Table 5 of iPFL by the mean of rounds 11 to 20 instead of each client's best round on the test set;
* GreedyFed against UCB by each of its averagings, and what noise costs with one averaging held fixed;
* PI-FL's Tables 3 and 4 pooled over mixtures and data sets, by an exact sign test (not planned beforehand).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pages
from scipy import stats

from hanse.federation.profiles import TABLE_5
from hanse.lab.papers.compare import rows, seed_values

By = Mapping[tuple[str, ...], Mapping[int, float]]


def interval(differences: list[float]) -> str:
    """Return a mean with its 95 % interval (Student's t)."""
    mean, error = float(np.mean(differences)), float(stats.sem(differences))
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * error
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}], {len(differences)} seeds"


def kept(paper: str, table: str, recipe: str, scale: str) -> Any:
    """Return what is kept of a table at one recipe and scale."""
    every = pages.kept_tables(paper, table, pages.RESULTS)
    return next(k.outcome for k in every if (k.table.recipe, k.table.scale) == (recipe, scale))


def left_out() -> Iterator[str]:
    """Yield a line for each kept market: the metric, what was said of it, and what is said now."""
    yield "| run | stop | largest market/eq9 | rounds above 0, of those tested | said | says now |"
    yield "|---|---|---|---|---|---|"
    seen = set()
    for table, scale in (("figure2", "small"), ("settings", "small"), ("figure5", "small"), ("table5", "paper")):
        outcome = kept("ipfl", table, "authors", scale)
        for job in outcome.jobs:
            found = outcome.results.get(job.key, {})
            curve = [x for x in found.get("curves", {}).get("market/eq9", ()) if x is not None]
            if not curve or job.key in seen:
                continue
            seen.add(job.key)
            stop = job.experiment.mechanism.built.weigh.stop
            above = sum(x > 1e-6 for x in curve)
            said = "holds" if found["audit"]["local optimality"]["holds"] else "fails"
            now = "holds" if stop == "skip" or not above else "left out, by so much"
            yield f"| {job.label} | {stop} | {max(curve):.4g} | {above} of {len(curve)} | {said} | {now} |"


def table_5() -> Iterator[str]:
    """Yield how roles fare beside local training by three readings of the same runs."""
    outcome = kept("ipfl", "table5", "authors", "paper")
    runs: dict[tuple[str, str], dict[int, Any]] = defaultdict(dict)
    for job in outcome.jobs:
        if job.key in outcome.results:
            given = job.experiment
            place = (given.data.source, "local" if given.mechanism.name == "local" else "ipfl")
            curves = outcome.results[job.key]["curves"]
            runs[place][given.run.seed] = 100 * np.array([curves[f"client/{c}/test_accuracy"] for c in range(12)])
    readings: dict[str, Callable[[Any], Any]] = {
        "best round": lambda a: a.max(axis=1),
        "mean of rounds 11 to 20": lambda a: a[:, 10:].mean(axis=1),
        "last round": lambda a: a[:, -1],
    }
    for source in ("cifar10", "fashion_mnist"):
        ours, alone = runs[source, "ipfl"], runs[source, "local"]
        for role in ("buyer", "trader", "seller"):
            who = [c for c, name in enumerate(TABLE_5) if name == role]
            for reading, read in readings.items():
                apart = [float((read(ours[s]) - read(alone[s]))[who].mean()) for s in sorted(ours)]
                yield f"{source}, {role}s, {reading}: {interval(apart)}"
            spread = [np.mean([a[who, 5:].std(axis=1, ddof=1).mean() for a in of.values()]) for of in (ours, alone)]
            yield f"{source}, {role}s, sd over rounds 6 to 20: iPFL {spread[0]:.2f}, local {spread[1]:.2f}"
    apart = [a[:11].max(axis=1) - a[:11, -1] for a in runs["cifar10", "local"].values()]
    yield f"cifar10, local, best test less the last: mean {np.mean(apart):.2f}, most {np.max(apart):.2f}"


def averagings(table: str) -> By:
    """Return accuracies (%) of GreedyFed, UCB and FedAvg by (group, column, algorithm, setting) and seed."""
    outcome = kept("greedyfed", table, "paper", "paper")
    found: dict[tuple[str, ...], dict[int, float]] = defaultdict(dict)
    for reading in outcome.readings:
        result, cell = outcome.results.get(reading.job.key), reading.cell
        if result is not None and cell.algorithm in ("GreedyFed", "UCB", "FedAvg") and cell.at in result["tested"]:
            accuracy = result["curves"]["test/accuracy"][result["tested"].index(cell.at)]
            found[cell.group, cell.column, cell.algorithm, reading.variant.name][reading.seed] = 100 * accuracy
    return found


def greedyfed() -> Iterator[str]:
    """Yield GreedyFed less UCB by averaging (Tables I and II), and what noise costs with one held fixed (Table IV)."""
    for table in ("table1", "table2"):
        found = averagings(table)
        for (group, column, name, setting), ours in found.items():
            ucb = found.get((group, column, "UCB", ""), {})
            both = [s for s in ours if s in ucb]
            if name == "GreedyFed" and len(both) == 5:
                yield f"{table}, {group}, {column}, {setting} - UCB: {interval([ours[s] - ucb[s] for s in both])}"
    found = averagings("table4")
    losses = {
        (name, setting): {s: clean[s] - noisy[s] for s in clean if s in noisy}
        for (group, column, name, setting), clean in found.items()
        if (group, column) == ("MNIST", "sigma=0")
        for noisy in [found.get((group, "sigma=0.1", name, setting), {})]
    }
    for (name, setting), loss in losses.items():
        yield f"table4, MNIST, {name} {setting}: loses {np.mean(list(loss.values())):.2f} ({len(loss)} seeds)"
    mean = losses["GreedyFed", "mean"]
    for name in ("UCB", "FedAvg"):
        more = [losses[name, ""][s] - mean[s] for s in mean if s in losses[name, ""]]
        yield f"table4, MNIST: {name} loses more than GreedyFed with the mean: {interval(more)}"


def pooled() -> Iterator[str]:
    """Yield how often tiers are separated, over all mixtures and seeds that two rows share."""
    for table, second, names in (
        ("table3", "FedSoft", ["PI-FL"]),
        ("table4", "PI-FL (NI)", ["PI-FL (I)", "rewards alone", "Algorithm 1"]),
    ):
        found: dict[tuple[str, str], dict[int, float]] = {}
        for name in (table, f"{table}-fmnist"):
            outcome = kept("pifl", name, "paper", "small")
            found |= {
                (row.cell.group, row.cell.algorithm): seed_values(outcome, row)
                for row in rows(outcome)
                if "separated" in row.cell.column
            }
        for first in names:
            for data in ("", "CIFAR-10", "Fashion-MNIST"):
                pairs = [
                    (ours[seed] > 0, found[group, second][seed] > 0)
                    for (group, name), ours in found.items()
                    if name == first and data in group
                    for seed in ours
                    if seed in found[group, second]
                ]
                a, b = (sum(side) for side in zip(*pairs, strict=True))
                shares = pages.Shares(a, b, pairs.count((True, False)), len(pairs))
                yield f"{table}, {data or 'both data sets'}, {first} and {second}: {shares}"


def main() -> None:
    """Print all of it."""
    with pages.data_as_kept(pages.RESULTS, update=False):
        for part in (left_out, table_5, greedyfed, pooled):
            print(f"\n{(part.__doc__ or '').splitlines()[0].removeprefix('Yield ').capitalize()}\n")
            print(*part(), sep="\n")


if __name__ == "__main__":
    main()
