"""How exact values from few models are, and what else was tried.

    python benchmarks/values.py [--folder tests/golden/games] [--repeats 4] [--shapiq PYTHON]

The mixture beside GTG-Shapley, permutations and (from an environment of its own) shapiq, on real games of which every
coalition's worth is known; errors are relative L2 errors, median (90th percentile) over games and repeats, and what
counts is different coalitions, the empty one and all players included. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.games import shapley
from hanse.games.mixture import MixtureEstimate, MixtureFit, design, far_player, fit

Floats = NDArray[np.float64]
Counted = tuple[Floats, int]
BUDGETS = {10: (50, 100, 200, 400), 14: (100, 200, 400, 800)}
ROOT = Path(__file__).parents[1]

# what another interpreter does: it reads tables and budgets, and writes errors and how many coalitions were asked for
SHAPIQ = """
import json, sys, warnings
import numpy as np
import shapiq
warnings.simplefilter("ignore")
for job in json.load(sys.stdin):
    with np.load(job["path"]) as file:
        v, exact = file["v"], file["shapley"]
    n, seen = len(exact), set()
    def game(coalitions):
        masks = np.asarray(coalitions, dtype=np.int64) @ (1 << np.arange(n))
        seen.update(masks.tolist())
        return v[masks] - v[0]
    approximator = getattr(shapiq.approximator, job["method"])(n=n, random_state=job["seed"])
    found = approximator.approximate(budget=job["budget"], game=game).get_n_order_values(1)
    off = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    print(json.dumps({**job, "error": off, "distinct": len(seen)}))
"""
SHAPIQ_METHODS = ("SVARM", "LeverageSHAP", "KernelSHAP")


@dataclass(frozen=True, eq=False)
class Table:
    """A game of which every coalition's worth is known; called as a utility. Its file's name says data set, spread of
    labels, round, players, validation samples and utility.
    """

    name: str
    v: Floats  # [2**n], by bit mask
    weights: Floats  # [n]
    grams: tuple[Floats, ...]  # [n, n]: what each update moved the model, and what it moved the outputs

    @property
    def n(self) -> int:
        return len(self.weights)

    @property
    def utility(self) -> str:
        """Return "loss" or "accuracy"."""
        return self.name.rsplit("_", 1)[1]

    @property
    def data_set(self) -> str:
        """Return what the name begins with; noisy clients count as a data set of their own."""
        first, second = self.name.split("_")[:2]
        return f"{first} {second}" if second == "noisy" else first

    def __call__(self, coalition: shapley.Coalition) -> float:
        return float(self.v[sum(1 << i for i in coalition)])


def tables(folder: Path) -> list[Table]:
    """Return the tables of a folder, by name."""
    found = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            grams = tuple(file[name] for name in ("gram", "logit_gram") if name in file)
            found.append(Table(path.stem, file["v"], file["weights"], grams))
    return found


def error(found: Floats, exact: Floats) -> float:
    """Return the relative L2 error."""
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def summary(errors: Sequence[float]) -> str:
    """Return the median and the 90th percentile."""
    return f"{short(np.median(errors))} ({short(np.quantile(errors, 0.9))})"


def short(number: float) -> str:
    return f"{number:.2f}" if number >= 0.995 else f"{number:.2g}".replace("0.", ".", 1)


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def head(*cells: object) -> None:
    print()
    row(*cells)
    print("|" + "---|" * len(cells))


@cache
def exact_values(table: Table) -> Floats:
    return shapley.shapley_from_table(table.v)


def fitted(table: Table, budget: int, seed: int) -> MixtureFit:
    """Return the fit of a table's game from so many of its coalitions."""
    plan = design(table.n, budget, seed, far_player([table(frozenset({i})) for i in range(table.n)]))
    return fit(plan, table.v[plan.members @ (1 << np.arange(table.n))], table.weights, table.grams)


def groups(games: Sequence[Table]) -> Iterator[tuple[str, tuple[int, ...], list[Table]]]:
    """Yield games of one size and utility with a title and their budgets."""
    for n, budgets in BUDGETS.items():
        for utility in ("loss", "accuracy"):
            some = [table for table in games if (table.n, table.utility) == (n, utility)]
            if some:
                yield f"n = {n}, {utility}, {len(some)} games", budgets, some


def drawn(games: Sequence[Table], repeats: int) -> Iterator[tuple[Table, int]]:
    """Yield every game with a seed of its own for each repeat."""
    for place, table in enumerate(games):
        for repeat in range(repeats):
            yield table, 1000 * place + repeat


def permutations(table: Table, budget: int, seed: int) -> Counted:
    """Return the mean marginals over as many permutations as the budget allows."""
    rows = np.random.default_rng(seed).permuted(np.tile(np.arange(table.n), (budget, 1)), axis=1)
    met = np.cumsum(1 << rows, axis=1)
    seen, count = {0}, 0
    for masks in met.tolist():
        seen.update(masks)
        if len(seen) > budget:
            break
        count += 1
    found = shapley.monte_carlo_result(table, table.n, rows[: max(1, count)].tolist())
    return found.values, found.distinct


def gtg(table: Table, seed: int, stop: Any) -> Counted:
    """Return GTG-Shapley's values, by its own rule or the authors'."""
    found = shapley.gtg(table, table.n, seed=seed, stop=stop)
    return found.values, found.distinct


def compare(given: argparse.Namespace) -> None:
    """Print the mixture beside others at equal budgets, and how honest its intervals are."""
    games = tables(given.folder)
    others = shapiq_errors(given, games)
    for title, budgets, some in groups(games):
        head(title, *(f"{budget} models" for budget in budgets))
        estimates = {b: [(t, fitted(t, b, s).estimate()) for t, s in drawn(some, given.repeats)] for b in budgets}
        for kind in ("values", "plug_in", "cross_fitted"):
            cells = [summary([error(getattr(e, kind), exact_values(t)) for t, e in estimates[b]]) for b in budgets]
            name = {"values": "reported", "plug_in": "plug-in", "cross_fitted": "cross-fitted"}[kind]
            row(f"mixture, {name}", *cells)
        for method in SHAPIQ_METHODS if others else ():
            each = [[others[method, b, t.name, s] for t, s in drawn(some, given.repeats)] for b in budgets]
            row(f"{method} (shapiq)", *(summary(errors) for errors in each))
        walks = {b: [(t, permutations(t, b, s)[0]) for t, s in drawn(some, given.repeats)] for b in budgets}
        row("permutations", *(summary([error(v, exact_values(t)) for t, v in found]) for found in walks.values()))
        for stop, name in (("every", "GTG, its own rule"), ("mean", 'GTG, `stop = "mean"`')):
            ended = [(t, gtg(t, s, stop)) for t, s in drawn(some, given.repeats)]
            models = np.median([count for _, (_, count) in ended])
            at = f"{summary([error(v, exact_values(t)) for t, (v, _) in ended])} at {models:,.0f} models"
            row(name, at, *[""] * (len(budgets) - 1))
        honesty(title, estimates)


def honesty(title: str, estimates: Mapping[int, Sequence[tuple[Table, MixtureEstimate]]]) -> None:
    """Print how often the reported values' 95 % intervals hold the exact ones, and how wide they are."""
    head(f"{title}: mixture's intervals", *(f"{budget} models" for budget in estimates))
    inside: dict[str, dict[int, list[Floats]]] = {}
    for budget, found in estimates.items():
        for table, one in found:
            hit = covered(one.values, one.standard_errors, exact_values(table))
            for name in ("all", table.data_set):
                inside.setdefault(name, {}).setdefault(budget, []).append(hit)
    for name, by_budget in inside.items():
        row(f"covered, {name}", *(f"{100 * np.mean(hits):.1f} %" for hits in by_budget.values()))
    widths = [
        [1.96 * float(np.linalg.norm(e.standard_errors) / np.linalg.norm(exact_values(t))) for t, e in found]
        for found in estimates.values()
    ]
    row("half-widths' norm by the values' norm", *(summary(each) for each in widths))


def covered(values: Floats, errors: Floats, exact: Floats) -> Floats:
    """Return for each number whether its 95 % interval holds the exact one, up to rounding."""
    return np.asarray(np.abs(values - exact) <= 1.96 * errors + 1e-12 * np.abs(exact).max(), dtype=np.float64)


def shapiq_errors(given: argparse.Namespace, games: Sequence[Table]) -> dict[tuple[str, int, str, int], float]:
    """Return the errors of shapiq's approximators by method, budget, game and seed, from the interpreter that has it;
    none if none has.
    """
    if given.shapiq is None:
        return {}
    path = {table.name: str(given.folder / f"{table.name}.npz") for table in games}
    jobs = [
        {"path": path[table.name], "game": table.name, "method": method, "budget": budget, "seed": seed}
        for _, budgets, some in groups(games)
        for table, seed in drawn(some, given.repeats)
        for budget in budgets
        for method in SHAPIQ_METHODS
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    called = [given.shapiq, "-c", SHAPIQ]
    done = subprocess.run(called, input=json.dumps(jobs), capture_output=True, text=True, check=True, env=environment)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    over = [one for one in found if one["distinct"] > one["budget"]]
    print(f"shapiq: {len(found)} estimates, {len(over)} of them with more coalitions than the budget")
    return {(one["method"], one["budget"], one["game"], one["seed"]): one["error"] for one in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "tests" / "golden" / "games")
    parser.add_argument("--repeats", type=int, default=4, help="of each game")
    parser.add_argument("--shapiq", metavar="PYTHON", help="an interpreter that has shapiq")
    compare(parser.parse_args())


if __name__ == "__main__":
    main()
