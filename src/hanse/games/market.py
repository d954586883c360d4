"""iPFL's market of models: who imports whose model, what each import costs, and what everyone gains.

*Incentivizing Inclusive Data Contributions in Personalized Federated Learning* (Zhang et al. 2024), under the readings
of docs/papers.md (I1-I18) for which its Theorems 1-4 hold. Arrays in, arrays out; ``A[i, j] = 1`` says that client i
imports the model of client j. All clients are solved at once; memory is O(m^2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hanse.games.market_numbers import gain, marginal, threshold, threshold_total, totals_without

__all__ = [
    "Market",
    "best_imports",
    "gain",
    "gains",
    "learn_graph",
    "objective",
    "payments",
    "prices",
    "social_welfare",
    "threshold",
    "utilities",
    "utilities_of",
]

Floats = NDArray[np.float64]
Graph = NDArray[np.int8]
Stop = Literal["skip", "break"]

_BLOCK = 1 << 21  # entries of a block of rows that is worked on at once


@dataclass(frozen=True)
class Market:
    """What a market is made of: ``distance [m, m]``, ``sizes``, ``costs``, ``eagerness`` ``[m]`` and ``lam``.

    ``costs`` may be infinite (a pure buyer); ``eagerness`` 0 is a pure seller.
    """

    distance: Floats
    sizes: Floats
    costs: Floats
    eagerness: Floats
    lam: float

    @staticmethod
    def of(distance: ArrayLike, sizes: ArrayLike, costs: ArrayLike, eagerness: ArrayLike, lam: float) -> Market:
        """Check and convert. Raises ValueError for what no market can have."""
        d = _numbers(distance)
        n, c, K = (_numbers(a) for a in (sizes, costs, eagerness))
        m = len(n) if n.ndim == 1 else -1
        if n.ndim != 1 or c.shape != n.shape or K.shape != n.shape or d.shape != (m, m):
            raise ValueError(
                f"distance, sizes, costs, eagerness: {d.shape}, {n.shape}, {c.shape}, {K.shape}: must be [m, m] and "
                "three times [m]"
            )
        if not (np.isfinite(lam) and lam >= 0):
            raise ValueError(f"lam: {lam}: must be a finite number, at least 0")
        for name, values in (("sizes", n), ("costs", c), ("eagerness", K), ("distance", d)):
            if not (values >= 0).all():
                bad = values[~(values >= 0)].flat[0]
                raise ValueError(f"{name}: {bad}: must be a number, at least 0")
        if not (np.isfinite(n).all() and np.isfinite(K).all()):
            raise ValueError("sizes, eagerness: inf: must be finite")
        if bool(((n == 0) & (K > 0)).any()):
            who = int(np.flatnonzero((n == 0) & (K > 0))[0])
            raise ValueError(f"sizes[{who}]: 0 with eagerness {K[who]:g}: an eager client needs at least 1 sample")
        return Market(d, n, c, K, float(lam))

    @property
    def size(self) -> int:
        """The number of clients, m."""
        return len(self.sizes)

    def similarity(self, rows: slice) -> Floats:
        """Return ``lambda n_j/n_i d_ij`` for some buyers i (the only ratio under which the theorems hold: I1)."""
        own = self.sizes[rows, None]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            found = self.lam * (self.sizes[None, :] / own) * self.distance[rows]
        return np.where(np.isnan(found), 0.0, found)

    def price(self, rows: slice) -> Floats:
        """Return the least that j's model must bring to i, ``r_ij = c_j + lambda n_j/n_i d_ij``."""
        return self.costs[None, :] + self.similarity(rows)


def _numbers(values: ArrayLike) -> Floats:
    return np.asarray(np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, dtype=np.float64))


def _blocks(m: int) -> list[slice]:
    step = max(1, _BLOCK // max(1, m))
    return [slice(a, min(a + step, m)) for a in range(0, m, step)]


def learn_graph(
    distance: ArrayLike, sizes: ArrayLike, costs: ArrayLike, eagerness: ArrayLike, lam: float, stop: Stop = "skip"
) -> Graph:
    """Return the graph of iPFL's Algorithm 2, ``A [m, m]`` of 0/1: each client's locally optimal imports (eq. 9).

    Sellers are visited by falling threshold (ties: lower index, I11); nobody imports itself (I5). A seller that does
    not pay is passed over ("skip", I2), or is the end of the visit ("break", as Algorithm 2 is printed: eq. 9 need not
    hold then). O(m log m) a client. Raises ValueError for what no market can have.
    """
    return best_imports(Market.of(distance, sizes, costs, eagerness, lam), stop)


def best_imports(market: Market, stop: Stop = "skip") -> Graph:
    """Return :func:`learn_graph` of a market that has been checked, ``[m, m]``."""
    graph = np.zeros((market.size, market.size), np.int8)
    for rows in _blocks(market.size):
        graph[rows] = _imports(market, rows, stop)
    return graph


def _imports(market: Market, rows: slice, stop: Stop) -> Graph:
    """Return Algorithm 2's rows of the graph for a block of buyers."""
    n, own, K = market.sizes, market.sizes[rows, None], market.eagerness[rows, None]
    price = market.price(rows)
    if stop == "break":  # a seller that never pays may come first in the order, and end the visit
        viable = (n > 0)[None, :] & (K > 0)
    else:  # a seller that does not pay as the only import never pays: marginal gains only fall
        viable = marginal(own, n[None, :], K) > price
    viable[np.arange(viable.shape[0]), np.arange(rows.start, rows.stop)] = False  # papers.md I5
    chosen = np.zeros(viable.shape, np.int8)
    width = int(viable.sum(axis=1).max(initial=0))
    if width == 0:
        return chosen
    # only viable sellers are solved for and sorted
    place = np.argsort(~viable, axis=1, kind="stable")[:, :width]
    real = np.take_along_axis(viable, place, axis=1)
    r = np.take_along_axis(price, place, axis=1)
    total = np.where(real, threshold_total(n[place], K, r), -1.0)
    order = np.argsort(-total, axis=1, kind="stable")
    place, r, real, total = (np.take_along_axis(a, order, axis=1) for a in (place, r, real, total))
    size = n[place]
    reached = own[:, 0].copy()
    least = float(n[n > 0].min())
    going = np.ones(len(reached), bool)
    for k in range(width):
        if not (total[:, k] > (reached + least) * (1 - 1e-9)).any():
            break  # thresholds fall and totals grow: nobody can add any more
        # iPFL Alg. 2, N + n_k < n_k^Th, as the marginal gain that it stands for (I4: exact for any size)
        add = going & real[:, k] & (marginal(reached, size[:, k], K[:, 0]) > r[:, k])
        going = add if stop == "break" else going
        reached = reached + np.where(add, size[:, k], 0.0)
        chosen[np.flatnonzero(add), place[add, k]] = 1
    return chosen


def _worth(market: Market, graph: NDArray[np.generic], rows: slice) -> Floats:
    """Return ``G_i(A_i) - G_i(A_i - E_j)`` on the edges of a block of buyers, 0 elsewhere."""
    picked = np.asarray(graph[rows]) != 0
    n, own, K = market.sizes, market.sizes[rows], market.eagerness[rows]
    without = totals_without(own, np.where(picked, n[None, :], 0.0))
    return np.where(picked, marginal(without, n[None, :], K[:, None]), 0.0)


def prices(market: Market, graph: NDArray[np.generic]) -> Floats:
    """Return ``r [m, m]`` of :func:`payments` for a market that has been checked."""
    r = np.zeros((market.size, market.size))
    for rows in _blocks(market.size):
        picked = np.asarray(graph[rows]) != 0
        r[rows] = np.where(picked, _worth(market, graph, rows) - market.similarity(rows), 0.0)
    return r


def payments(
    graph: ArrayLike, distance: ArrayLike, sizes: ArrayLike, costs: ArrayLike, eagerness: ArrayLike, lam: float
) -> Floats:
    """Return ``r [m, m]``, what i pays j: the marginal gain less the difference of the models, iPFL eq. (10).

    ``r_ij = A_ij [G_i(A_i) - G_i(A_i - E_j) - lambda n_j/n_i d_ij]`` (I6). Raises ValueError for what no market can
    have.
    """
    market = Market.of(distance, sizes, costs, eagerness, lam)
    return prices(market, _graph(graph, market.size))


def _graph(graph: ArrayLike, m: int) -> NDArray[np.generic]:
    found = np.asarray(graph)
    if found.shape != (m, m):
        raise ValueError(f"graph: {found.shape}: must be [{m}, {m}]")
    if bool(np.diag(found).any()):
        raise ValueError(f"graph: client {int(np.flatnonzero(np.diag(found))[0])} imports itself: the diagonal is 0")
    return found


def gains(graph: NDArray[np.generic], sizes: Floats, eagerness: Floats) -> Floats:
    """Return every client's collaboration gain ``G_i(A_i)`` ``[m]``, iPFL eq. (2)."""
    imported = (np.asarray(graph) != 0) @ sizes
    return marginal(sizes, imported, eagerness)


def utilities_of(graph: NDArray[np.generic], paid: Floats, sizes: Floats, costs: Floats, eagerness: Floats) -> Floats:
    """Return eq. (1)'s utilities ``[m]`` under payments ``paid [m, m]`` that are already known.

    Sizes, costs and eagerness may be the true ones while the graph was learnt from reported ones.
    """
    sold = (np.asarray(graph) != 0).sum(axis=0)
    with np.errstate(invalid="ignore"):
        cost = np.where(sold > 0, sold * costs, 0.0)  # papers.md I12: nothing sold costs nothing, even at infinity
    bill, revenue = paid.sum(axis=1), paid.sum(axis=0)
    return np.asarray(gains(graph, sizes, eagerness) - cost - (bill - revenue))  # iPFL eq. (1)


def utilities(
    graph: ArrayLike, distance: ArrayLike, sizes: ArrayLike, costs: ArrayLike, eagerness: ArrayLike, lam: float
) -> Floats:
    """Return every client's utility ``U [m]`` in one round, iPFL eq. (1): gain, less the costs of sharing, less the
    net payment of eq. (10). Raises ValueError for what no market can have.
    """
    market = Market.of(distance, sizes, costs, eagerness, lam)
    found = _graph(graph, market.size)
    return utilities_of(found, prices(market, found), market.sizes, market.costs, market.eagerness)


def social_welfare(graph: ArrayLike, sizes: ArrayLike, costs: ArrayLike, eagerness: ArrayLike) -> float:
    """Return the sum of all utilities, iPFL eq. (3): gains less the costs of what is shared; payments cancel."""
    n, c, K = (_numbers(a) for a in (sizes, costs, eagerness))
    found = _graph(graph, len(n))
    sold = (found != 0).sum(axis=0)
    with np.errstate(invalid="ignore"):
        return float((gains(found, n, K) - np.where(sold > 0, sold * c, 0.0)).sum())


def objective(
    graph: ArrayLike, distance: ArrayLike, sizes: ArrayLike, costs: ArrayLike, eagerness: ArrayLike, lam: float
) -> Floats:
    """Return what each client's imports minimise, ``phi [m]``, iPFL eq. (8)."""
    market = Market.of(distance, sizes, costs, eagerness, lam)
    found = _graph(graph, market.size)
    picked = found != 0
    total = np.where(picked, market.price(slice(0, market.size)), 0.0).sum(axis=1)
    return np.asarray(total - gains(found, market.sizes, market.eagerness))
