"""iPFL's market of models: who imports whose model, what each import costs, and what everyone gains.

The paper is *Incentivizing Inclusive Data Contributions in Personalized Federated Learning* (Zhang et al. 2024), read
as in docs/papers.md (I1-I18): under these readings its Theorems 1-4 are true. :func:`learn_graph` makes the graph,
:func:`payments` prices it, :func:`utilities` and :func:`social_welfare` say what it brings. Each function checks its
input. To call several, make a :class:`Market` once, and use :func:`best_imports`, :func:`prices` and
:func:`utilities_of`. :class:`hanse.games.market_posted.Tariff` is another rule for the price.

``A[i, j] = 1`` says that client i imports the model of client j. In the shapes m is the number of clients. All clients
are solved at once. The memory is ``O(m^2)``.

A client with n samples and eagerness K gains ``g(x) = sqrt(K/n) - sqrt(K/(n+x))`` from x imported samples (eq. 2).
Computed as they are written, such differences lose all digits if x is small compared with n; :func:`marginal`,
:func:`gain` and :func:`threshold` do not, for sizes and prices of any scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Graph = NDArray[np.int8]
Stop = Literal["skip", "break"]

_NEWTON = 8  # steps: quadratic from a start that is never below the root; 5 reach the last bit
_BLOCK = 1 << 21  # entries of a block of rows that is worked on at once


def marginal(before: ArrayLike, added: ArrayLike, eagerness: ArrayLike) -> Floats:
    """Return the gain from ``added`` samples for a client that already has ``before`` samples.

    This is ``sqrt(K / before) - sqrt(K / (before + added))``, computed without cancellation. It is 0 where K or
    ``added`` is 0, even if ``before`` is also 0. Arrays are broadcast.
    """
    y, x, K = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in (before, added, eagerness)))
    with np.errstate(divide="ignore", invalid="ignore"):
        # 1/low - 1/high = (high - low) / (low high) = x / (low high (low + high)): no difference is left
        low, high = np.sqrt(y), np.sqrt(y + x)
        found = np.sqrt(K) * (x / (low * high * (low + high)))
        found = np.where(np.isinf(x), np.sqrt(K / y), found)
    return np.where((K > 0) & (x > 0), found, 0.0)


def totals_without(own: Floats, held: Floats) -> Floats:
    """Return each buyer's number of samples without one of its imports at a time, ``[b, m]``.

    Args:
        own: ``[b]``, each buyer's own samples.
        held: ``[b, m]``, how many samples each buyer imports from each seller; 0 for none.
    """
    without = np.asarray((own + held.sum(axis=1))[:, None] - held)
    # the largest import is left out by summing the others: subtracting it could leave nothing of them
    line, top = np.arange(len(held)), held.argmax(axis=1)
    rest = held.copy()
    rest[line, top] = 0.0
    without[line, top] = own + rest.sum(axis=1)
    return without


def gain(n_own: ArrayLike, n_imported: ArrayLike, eagerness: ArrayLike) -> Floats:
    """Return the collaboration gain ``g(x) = sqrt(K/n) - sqrt(K/(n+x))``, iPFL eq. (2). Arrays are broadcast.

    Args:
        n_own: n, the samples that a client has.
        n_imported: x, the samples that the client imports.
        eagerness: K, how much more data are worth to the client, in samples.

    Raises:
        ValueError: a number is negative or NaN, or a client has eagerness but no samples, so that its gain would be
            infinite (docs/papers.md, I13).

    Examples:
        >>> float(gain(n_own=100, n_imported=300, eagerness=1e4))  # 10 - 5
        5.0
    """
    own, imported, K = (np.asarray(a, np.float64) for a in (n_own, n_imported, eagerness))
    _at_least_0(n_own=own, n_imported=imported, eagerness=K)
    if bool(((own == 0) & (K > 0)).any()):
        raise ValueError("n_own: 0 with eagerness above 0: the gain is not defined; at least 1 sample")
    return marginal(own, imported, K)  # iPFL eq. (2)


def threshold_total(n_other: ArrayLike, eagerness: ArrayLike, price: ArrayLike) -> Floats:
    """Return ``n_i + n^Th``: the total, including the buyer's own samples, above which a model no longer pays off.

    See :func:`threshold`. With ``y = n_j (1 + v^2)`` the equation ``sqrt(K/(y - n_j)) - sqrt(K/y) = r`` becomes
    ``v w (w + v) = b``, where ``w = sqrt(1 + v^2)`` and ``b = sqrt(K / n_j) / r``. The left side is an increasing
    convex function of v alone, and is solved by Newton's method from above.

    Args:
        n_other: n_j, the samples behind the offered model.
        eagerness: K of the buyer.
        price: r, what the model must gain. Arrays are broadcast.
    """
    n, K, r = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in (n_other, eagerness, price)))
    never = ~((K > 0) & (n > 0)) | (r == np.inf)
    solve = ~never & (r > 0) & np.isfinite(n)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        b = np.where(solve, np.sqrt(K) / np.sqrt(np.where(n > 0, n, 1.0)) / np.where(solve, r, 1.0), 1.0)
        b = np.minimum(b, 1e200)  # beyond it the threshold is larger than any sum of sizes
        v = np.minimum(b, np.cbrt(b / 2))
        for _ in range(_NEWTON):
            w = np.sqrt(1 + v * v)
            step = (v * w * (w + v) - b) / (w * (w + v) + v * v / w * (w + v) + v * (v + w))
            v = v - step
            if not (np.abs(step) > 4e-16 * v).any():
                break
        found = n * (1 + v * v)
    # papers.md I3: a price of 0 or less is always worth it; nobody buys at infinity, or without eagerness
    return np.where(never, 0.0, np.where(r <= 0, np.inf, np.where(np.isinf(n), np.inf, found)))


def threshold(n_own: ArrayLike, n_other: ArrayLike, eagerness: ArrayLike, price: ArrayLike) -> Floats:
    """Return the threshold T of iPFL's Algorithm 2 for a model, in samples.

    The model is imported while the total of imports, including this model, is below T, which solves ``g(T) - g(T - n_j)
    = r``. T is infinite if the price is 0 or less, and 0 if the model is never imported (docs/papers.md, I3). T may be
    negative, since it is only compared with totals (I4). Arrays are broadcast.

    Args:
        n_own: n_i, the buyer's own samples.
        n_other: n_j, the samples behind the offered model.
        eagerness: K of the buyer.
        price: ``r = c_j + lambda n_j/n_i d_ij``, what the model must bring (I1).

    Raises:
        ValueError: negative sizes or eagerness, or NaN.
    """
    own, n, K, r = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in (n_own, n_other, eagerness, price)))
    _at_least_0(n_own=own, n_other=n, eagerness=K)
    if np.isnan(r).any():
        raise ValueError("price: nan: must be a number or infinity")
    total = threshold_total(n, K, r)
    return np.where(total == 0, 0.0, total - own)


@dataclass(frozen=True)
class Market:
    """The numbers that define a market. Make one with :meth:`of`, which checks them.

    Attributes:
        distance: ``[m, m]``, how far apart the models are, at least 0.
        sizes: ``[m]``, each client's number of samples.
        costs: ``[m]``, what it costs each client to share its model once. It is infinite for a client that only buys.
        eagerness: ``[m]``, K: how much each client gains from more data, in samples. It is 0 for a client that only
            sells.
        lam: lambda, the weight of the models' difference.

    Examples:
        There are three models, and the first two are alike:

        >>> far = np.array([[0.0, 1.0, 9.0], [1.0, 0.0, 9.0], [9.0, 9.0, 0.0]])
        >>> market = Market.of(far, sizes=[10, 20, 30], costs=[1.0] * 3, eagerness=[1e3] * 3, lam=0.5)
        >>> market.size, market.price(slice(0, 2)).shape
        (3, (2, 3))
    """

    distance: Floats
    sizes: Floats
    costs: Floats
    eagerness: Floats
    lam: float

    @staticmethod
    def of(distance: ArrayLike, sizes: ArrayLike, costs: ArrayLike, eagerness: ArrayLike, lam: float) -> Market:
        """Return a market of these numbers, as float64.

        Args:
            distance: ``[m, m]``, how far apart the models are, at least 0.
            sizes: ``[m]``, the clients' numbers of samples.
            costs: ``[m]``, what sharing a model costs its owner, in the unit of the gains.
            eagerness: ``[m]``, K: the gain of more data, in samples.
            lam: lambda, the weight of the distance, at least 0.

        Raises:
            ValueError: shapes do not fit, a number is negative or NaN, a size or eagerness is infinite, or a client has
                eagerness but no samples.
        """
        d = _numbers(distance)
        n, c, K = (_numbers(a) for a in (sizes, costs, eagerness))
        m = len(n) if n.ndim == 1 else -1
        if n.ndim != 1 or c.shape != n.shape or K.shape != n.shape or d.shape != (m, m):
            raise ValueError(
                f"distance, sizes, costs, eagerness: {d.shape}, {n.shape}, {c.shape}, {K.shape}: must be [m, m], and "
                "[m] for the other three"
            )
        if not (np.isfinite(lam) and lam >= 0):
            raise ValueError(f"lam: {lam}: must be a finite number, at least 0")
        _at_least_0(sizes=n, costs=c, eagerness=K, distance=d)
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
        """Return ``lambda n_j/n_i d_ij`` for some buyers i, ``[rows, m]``.

        Of the paper's three ratios, ``n_j/n_i`` is the only one under which its theorems are true (docs/papers.md, I1).
        """
        own = self.sizes[rows, None]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            found = self.lam * (self.sizes[None, :] / own) * self.distance[rows]
        return np.where(np.isnan(found), 0.0, found)

    def price(self, rows: slice) -> Floats:
        """Return the smallest gain for which i imports j's model, for some buyers i: ``[rows, m]``.

        This is ``r_ij = c_j + lambda n_j/n_i d_ij``, the cost of sharing plus the loss due to the models' difference.
        """
        return self.costs[None, :] + self.similarity(rows)


def _at_least_0(**arrays: Floats) -> None:
    """Raise ValueError, with the name and the first wrong number, unless all numbers are at least 0 and none is NaN."""
    for name, values in arrays.items():
        if not (values >= 0).all():
            raise ValueError(f"{name}: {values[~(values >= 0)].flat[0]}: must be a number, at least 0")


def _numbers(values: ArrayLike) -> Floats:
    """Return a list, array or tensor as a float64 array."""
    return np.asarray(np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, dtype=np.float64))


def _blocks(m: int) -> list[slice]:
    """Return slices of 0..m-1 such that a block of rows has a bounded number of entries."""
    step = max(1, _BLOCK // max(1, m))
    return [slice(a, min(a + step, m)) for a in range(0, m, step)]


def learn_graph(
    distance: ArrayLike, sizes: ArrayLike, costs: ArrayLike, eagerness: ArrayLike, lam: float, stop: Stop = "skip"
) -> Graph:
    """Return who imports whose model, ``A [m, m]`` of 0 and 1: iPFL's Algorithm 2.

    Each client's imports are locally optimal (eq. 9). Sellers are visited by falling threshold (in a tie, the lower
    index first; docs/papers.md, I11). Nobody imports its own model (I5). Takes ``O(m log m)`` per client.

    Args:
        distance: ``[m, m]``, how far apart the models are, at least 0 (see :mod:`hanse.games.market_models`).
        sizes: ``[m]``, the clients' numbers of samples.
        costs: ``[m]``, what sharing a model costs its owner, in the unit of the gains.
        eagerness: ``[m]``, K: the gain of more data, in samples.
        lam: lambda, the weight of the distance.
        stop: what happens at a seller that does not pay off. "skip" passes over it (I2). "break" ends the visit, as in
            the printed Algorithm 2, after which eq. (9) need not hold.

    Raises:
        ValueError: numbers that no market can have (see :meth:`Market.of`).

    Examples:
        >>> sizes, costs, eagerness = [100, 300, 300], [0, 2, 9], [1e4, 0, 0]  # client 0 buys, the others sell
        >>> distance = [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]
        >>> graph = learn_graph(distance, sizes, costs, eagerness, lam=1.0)
        >>> graph.tolist()  # either model would bring 5; less 1.5 for their difference, only the cheap one pays
        [[0, 1, 0], [0, 0, 0], [0, 0, 0]]
        >>> payments(graph, distance, sizes, costs, eagerness, lam=1.0)[0].tolist()
        [0.0, 3.5, 0.0]
    """
    return best_imports(Market.of(distance, sizes, costs, eagerness, lam), stop)


def best_imports(market: Market, stop: Stop = "skip") -> Graph:
    """Return the graph ``[m, m]`` of a market that has been checked (see :func:`learn_graph`).

    Args:
        market: the market.
        stop: what happens at a seller that does not pay off.
    """
    graph = np.zeros((market.size, market.size), np.int8)
    for rows in _blocks(market.size):
        graph[rows] = _imports(market, rows, stop)
    return graph


def _imports(market: Market, rows: slice, stop: Stop) -> Graph:
    """Return the rows of the graph for a block of buyers, by Algorithm 2."""
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
    # only viable sellers are solved for and sorted: they are moved to the front of each row
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


def prices(market: Market, graph: NDArray[np.generic]) -> Floats:
    """Return what i pays j, ``r [m, m]``, for a market that has been checked (see :func:`payments`)."""
    r, n = np.zeros((market.size, market.size)), market.sizes
    for rows in _blocks(market.size):
        picked = np.asarray(graph[rows]) != 0
        without = totals_without(n[rows], np.where(picked, n[None, :], 0.0))
        worth = marginal(without, n[None, :], market.eagerness[rows, None])  # G_i(A_i) - G_i(A_i - E_j) on the edges
        r[rows] = np.where(picked, worth - market.similarity(rows), 0.0)
    return r


def payments(
    graph: ArrayLike, distance: ArrayLike, sizes: ArrayLike, costs: ArrayLike, eagerness: ArrayLike, lam: float
) -> Floats:
    """Return what i pays j, ``r [m, m]``: the marginal gain minus the loss by the models' difference, iPFL eq. (10).

    ``r_ij = A_ij [G_i(A_i) - G_i(A_i - E_j) - lambda n_j/n_i d_ij]`` (docs/papers.md, I6).

    Args:
        graph: ``[m, m]`` of 0 and 1: 1 if the row's client imports the column's model, as :func:`learn_graph` returns
            it.
        distance: ``[m, m]``, how far apart the models are, at least 0.
        sizes: ``[m]``, the clients' numbers of samples.
        costs: ``[m]``, what sharing a model costs its owner, in the unit of the gains.
        eagerness: ``[m]``, K: the gain of more data, in samples.
        lam: lambda, the weight of the distance, at least 0.

    Raises:
        ValueError: the numbers are impossible for a market, or the graph has another shape or a client that imports its
            own model.
    """
    market = Market.of(distance, sizes, costs, eagerness, lam)
    return prices(market, _graph(graph, market.size))


def _graph(graph: ArrayLike, m: int) -> NDArray[np.generic]:
    """Return a graph as an array. Raises ValueError unless it is ``[m, m]`` with a zero diagonal."""
    found = np.asarray(graph)
    if found.shape != (m, m):
        raise ValueError(f"graph: {found.shape}: must be [{m}, {m}]")
    if bool(np.diag(found).any()):
        raise ValueError(f"graph: client {int(np.flatnonzero(np.diag(found))[0])} imports itself: the diagonal is 0")
    return found


def gains(graph: NDArray[np.generic], sizes: Floats, eagerness: Floats) -> Floats:
    """Return every client's collaboration gain, ``[m]``: ``sqrt(K_i/n_i) - sqrt(K_i/(n_i + x_i))``, iPFL eq. (2).

    The samples that a client imports are ``x = graph @ sizes``. A client that imports nothing gains 0. Nothing is
    checked.

    Args:
        graph: ``[m, m]``, who imports whose model, and with what share of its size (1: all of it). The diagonal is 0.
        sizes: ``[m]``, n, in samples.
        eagerness: ``[m]``, K, in samples.
    """
    imported = np.asarray(graph, np.float64) @ sizes
    return marginal(sizes, imported, eagerness)


def utilities_of(graph: NDArray[np.generic], paid: Floats, sizes: Floats, costs: Floats, eagerness: Floats) -> Floats:
    """Return every client's utility, ``[m]``, iPFL eq. (1), under payments that are already known.

    Sizes, costs and eagerness may be the true ones while the graph was learnt from what clients reported.

    Args:
        graph: ``[m, m]``: 1 if the row's client imports the column's model, else 0.
        paid: ``[m, m]``, what i pays j.
        sizes: ``[m]``, the clients' numbers of samples.
        costs: ``[m]``, what sharing a model costs its owner, in the unit of the gains.
        eagerness: ``[m]``, K: the gain of more data, in samples.
    """
    sold = (np.asarray(graph) != 0).sum(axis=0)
    with np.errstate(invalid="ignore"):
        cost = np.where(sold > 0, sold * costs, 0.0)  # papers.md I12: nothing sold costs nothing, even at infinity
    bill, revenue = paid.sum(axis=1), paid.sum(axis=0)
    return np.asarray(gains(graph, sizes, eagerness) - cost - (bill - revenue))  # iPFL eq. (1)


def utilities(
    graph: ArrayLike, distance: ArrayLike, sizes: ArrayLike, costs: ArrayLike, eagerness: ArrayLike, lam: float
) -> Floats:
    """Return every client's utility in one round, ``[m]``, iPFL eq. (1).

    The utility is the gain, less the costs of sharing, less the net payment of eq. (10).

    Args:
        graph: ``[m, m]`` of 0 and 1: 1 if the row's client imports the column's model, as :func:`learn_graph` returns
            it.
        distance: ``[m, m]``, how far apart the models are, at least 0.
        sizes: ``[m]``, the clients' numbers of samples.
        costs: ``[m]``, what sharing a model costs its owner, in the unit of the gains.
        eagerness: ``[m]``, K: the gain of more data, in samples.
        lam: lambda, the weight of the distance, at least 0.
    """
    market = Market.of(distance, sizes, costs, eagerness, lam)
    found = _graph(graph, market.size)
    return utilities_of(found, prices(market, found), market.sizes, market.costs, market.eagerness)


def social_welfare(graph: ArrayLike, sizes: ArrayLike, costs: ArrayLike, eagerness: ArrayLike) -> float:
    """Return the sum of all utilities, iPFL eq. (3): gains minus costs of sharing. Payments cancel out.

    Args:
        graph: ``[m, m]``: 1 if the row's client imports the column's model, else 0.
        sizes: ``[m]``, the clients' numbers of samples.
        costs: ``[m]``, what sharing a model costs its owner, in the unit of the gains.
        eagerness: ``[m]``, K: the gain of more data, in samples.

    Raises:
        ValueError: a graph of another shape, or with a client that imports itself.
    """
    n, c, K = (_numbers(a) for a in (sizes, costs, eagerness))
    found = _graph(graph, len(n))
    return float(utilities_of(found, np.zeros(found.shape), n, c, K).sum())


def objective(
    graph: ArrayLike, distance: ArrayLike, sizes: ArrayLike, costs: ArrayLike, eagerness: ArrayLike, lam: float
) -> Floats:
    """Return what each client's imports minimise, ``phi [m]``, iPFL eq. (8).

    Args:
        graph: ``[m, m]`` of 0 and 1: 1 if the row's client imports the column's model, as :func:`learn_graph` returns
            it.
        distance: ``[m, m]``, how far apart the models are, at least 0.
        sizes: ``[m]``, the clients' numbers of samples.
        costs: ``[m]``, what sharing a model costs its owner, in the unit of the gains.
        eagerness: ``[m]``, K: the gain of more data, in samples.
        lam: lambda, the weight of the distance, at least 0.
    """
    market = Market.of(distance, sizes, costs, eagerness, lam)
    found = _graph(graph, market.size)
    picked = found != 0
    total = np.where(picked, market.price(slice(0, market.size)), 0.0).sum(axis=1)
    return np.asarray(total - gains(found, market.sizes, market.eagerness))


def local_optimality(market: Market, graph: NDArray[np.generic]) -> tuple[float, float]:
    """Return two numbers that say by how much single imports violate iPFL eq. (9), if at all.

    Args:
        market: the market.
        graph: ``[m, m]``: 1 if the row's client imports the column's model, else 0.

    Returns:
        The largest ``phi(A) - phi(A - E_j)`` over edges, and the largest ``phi(A) - phi(A + E_j)`` over pairs without
        an edge. Eq. (9) holds if the first is negative and the second at most 0. A number is minus infinity if there
        are no such pairs.
    """
    picked = np.asarray(graph) != 0
    n, K = market.sizes, market.eagerness[:, None]
    price = market.price(slice(0, market.size))
    total = n + picked @ n
    without = totals_without(n, np.where(picked, n[None, :], 0.0))
    removal = price - marginal(without, n[None, :], K)
    addition = marginal(total[:, None], n[None, :], K) - price
    others = ~picked & ~np.eye(len(n), dtype=bool)
    return float(removal[picked].max(initial=-np.inf)), float(addition[others].max(initial=-np.inf))
