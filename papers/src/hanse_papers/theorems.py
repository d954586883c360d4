"""Computed tables for statements that the papers prove or argue without an experiment.

iPFL's theorems are tested on random markets. A counterexample refutes a theorem; finding none is no proof. GTFLAT's
final state is compared with the definition of an equilibrium. PI-FL's bound of eq. (57) is compared with the exact
bound, and its errors in the Gaussian case with simulations (:mod:`hanse_papers.gaussian`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.streams import stream
from hanse.games import replicator
from hanse.games.market import Graph, Market, best_imports, payments, utilities_of
from hanse_papers.gaussian import Gaussian, errors, simulate
from hanse_papers.tables import Cell

_CLOSE = 1e-9  # of a market's largest gain: what rounding may add


def random_market(rng: np.random.Generator) -> Market:
    """Return a market of 2 to 8 different clients at iPFL's scale. Some want nothing, and some share at no cost."""
    m = int(rng.integers(2, 9))
    sizes = rng.integers(500, 6000, m).astype(np.float64)
    eagerness = np.where(rng.random(m) < 0.25, 0.0, sizes.mean() * rng.uniform(20, 150, m))
    costs = rng.choice([0.0, 0.5, 1.0, 2.0], m) * rng.random(m)
    distance = rng.uniform(1e-3, 1.0, (m, m))
    distance = (distance + distance.T) / 2
    np.fill_diagonal(distance, 0.0)
    return Market.of(distance, sizes, costs, eagerness, float(rng.choice([0.1, 1.0, 2.0])))


def _scaled(numbers: NDArray[np.float64], client: int, factor: float) -> NDArray[np.float64]:
    changed = numbers.copy()
    changed[client] *= factor
    return changed


def _utilities(true: Market, said: Market, power: int = 0) -> tuple[Graph, NDArray[np.float64]]:
    """Return the graph by what clients say, with the differences of models as :func:`printed_as` weighs them, and what
    it is truly worth to them.
    """
    graph = best_imports(printed_as(said, power))
    paid = payments(graph, said.distance, said.sizes, said.costs, said.eagerness, said.lam)
    return graph, utilities_of(graph, paid, true.sizes, true.costs, true.eagerness)


def printed_as(market: Market, power: int) -> Market:
    """Return a market whose graph weighs the differences of models as iPFL prints it (papers.md, I1).

    Args:
        market: the market.
        power: 1 for the ``n_i/n_i`` of Algorithm 2, 2 for the ``n_i/n_j`` of section 4, 0 for ``n_j/n_i``.
    """
    ratio = market.sizes[:, None] / market.sizes[None, :]
    return replace(market, distance=market.distance * ratio**power)


READINGS = {"counterexamples": 0, "by Algorithm 2 as printed": 1, "by the text as printed": 2}
"""The columns of the table, and the power that :func:`printed_as` takes for each; with 0 the theorems hold."""


@cache
def counterexamples(markets: int) -> Mapping[tuple[str, str], int]:
    """Return the number of random markets in which each of iPFL's statements fails, by name and reading.

    One client of each market, drawn at random, lies. The liar's utility is computed from its true numbers.

    Args:
        markets: how many markets, drawn with a fixed seed.

    Example:
        >>> found = counterexamples(20)
        >>> [found[name, "counterexamples"] for name in ("Theorem 1", "Lemma 2", "Theorem 3", "Theorem 4")]
        [0, 0, 0, 0]
    """
    rng = np.random.default_rng(39)
    failed: dict[tuple[str, str], int] = defaultdict(int)
    ours = next(iter(READINGS))
    for _ in range(markets):
        market = random_market(rng)
        close = _CLOSE * (1 + float(np.sqrt(market.eagerness / market.sizes).sum()))
        liar = int(rng.integers(len(market.sizes)))
        graph, honest = _utilities(market, market)
        higher = replace(market, costs=market.costs + (np.arange(len(honest)) == liar))
        over = best_imports(higher)
        absurd = replace(market, sizes=np.where(np.arange(len(honest)) == liar, 1e15, market.sizes))
        lies = {
            "cost / 2": replace(market, costs=_scaled(market.costs, liar, 0.5)),
            "size x 2": replace(market, sizes=_scaled(market.sizes, liar, 2.0)),
            "size x 10": replace(market, sizes=_scaled(market.sizes, liar, 10.0)),
        }
        failed["Lemma 2", ours] += bool((over[:, liar] > graph[:, liar]).any())
        for reading, power in READINGS.items():
            true, said = (_utilities(market, told, power)[1] for told in (market, higher))
            failed["Theorem 1", reading] += bool((true < -close).any())
            failed["Theorem 3", reading] += bool(said[liar] > true[liar] + close)
            failed["Theorem 4", reading] += bool(best_imports(printed_as(absurd, power))[:, liar].any())
        for name, lie in lies.items():
            failed[name, ours] += bool(_utilities(market, lie)[1][liar] > honest[liar] + close)
    return failed


def theorems(cells: Sequence[Cell], values: Mapping[str, Any]) -> list[float]:
    """Return the number of counterexamples that each row's statement has in random markets."""
    failed = counterexamples(int(values["markets"]))
    return [float(failed[cell.algorithm, cell.column]) for cell in cells]


def self_enforcement(cells: Sequence[Cell], values: Mapping[str, Any]) -> list[float]:
    """Return the most that another choice would gain in GTFLAT's final states.

    Each player has 100 individuals, or shares of any size.
    """
    phi = np.array(values["payoffs"], dtype=np.float64)

    def of(cell: Cell) -> float:
        rounds = int(cell.algorithm.removesuffix(" generations"))
        individuals = 100 if cell.column == "individuals" else None
        return replicator.nash_gap(phi, replicator.equilibrium(phi, population=individuals, generations=rounds))

    return [of(cell) for cell in cells]


def joining(cells: Sequence[Cell], values: Mapping[str, Any]) -> list[float]:
    """Return the exact variance between clients below which joining a tier pays (compare PI-FL eq. 57)."""
    return [1.0 / int(values["samples"]) for _ in cells]


def theory(cells: Sequence[Cell], values: Mapping[str, Any]) -> list[float]:
    """Return a client's expected squared error in PI-FL's Gaussian case (eqs 53 to 55), % of a sample's variance.

    A column is a tau^2. A row is a model ("local", "tier" or "federated") and how its error is found: "exact",
    "printed" or "simulated".
    """
    members, samples = int(values["members"]), int(values["samples"])

    def of(tau2: float) -> Mapping[str, float]:
        """Return the errors by the name of a row."""
        setting = Gaussian([samples] * 2 * members, [0] * members + [1] * members, 1.0, tau2, values["beta_diff"])
        draw = stream(0, "theory", round=round(1000 * tau2))
        simulated = {name: mean for name, (mean, _) in simulate(setting, 0, int(values["repetitions"]), draw).items()}
        found = {"exact": errors(setting, 0), "printed": errors(setting, 0, printed=True), "simulated": simulated}
        return {f"{name}, {how}": error for how, each in found.items() for name, error in each.items()}

    columns = {name: of(float(name.removeprefix("tau^2 = "))) for name in dict.fromkeys(c.column for c in cells)}
    return [100.0 * columns[cell.column][cell.algorithm] for cell in cells]
