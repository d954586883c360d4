"""Do lies pay in markets of models in general? Tries every lie of a grid on many random markets, without training.

:mod:`hanse.wings.attack.search` plays a few whole runs. A market's trades and prices follow from its numbers alone, so
thousands of markets can be searched (:func:`search_markets`). The search covers any false size, cost or eagerness of
one client, and the gain from splitting itself into several sellers. A client's outcome is iPFL's eq. (1) by the true
numbers, minus the loss by distant models of eq. (8).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.games.market import Floats, Market, best_imports, utilities_of
from hanse.games.market_posted import Tariff, posted_imports
from hanse.games.market_prices import Pricing, due
from hanse.mechanisms.ipfl import IPFL
from hanse.runs.config import Experiment
from hanse.wings.attack.search import LEAST, at_most

CLIENTS, ROUNDS = 10, 50
APART = 1e9  # parts of one seller do not trade
FACTORS = (0.1, 0.25, 0.5, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 2.0, 4.0, 10.0)
LIES = ("size up", "size down", "cost", "eagerness", "split")
Kind = Literal["paper", "wide"]
KINDS: tuple[Kind, ...] = ("paper", "wide")


def random_market(kind: Kind, draw: np.random.Generator) -> Market:
    """Return a market of 10 clients, of which four in five buy.

    Args:
        kind: the range of the sizes. "paper": 2,500 to 5,500, as in iPFL's own setting. "wide": log-uniform from 200 to
            7,000, a factor of 35. Costs, eagerness and lambda are those of the paper, distances uniform.
        draw: the random generator.
    """
    distance = np.triu(draw.uniform(0, 1, (CLIENTS, CLIENTS)), 1)
    sizes = (
        draw.uniform(2500, 5500, CLIENTS)
        if kind == "paper"
        else np.exp(draw.uniform(math.log(200), math.log(7000), CLIENTS))
    )
    eagerness = np.where(draw.random(CLIENTS) < 0.8, draw.uniform(3e5, 6e5, CLIENTS), 0.0)
    return Market.of(distance + distance.T, sizes.round(), draw.uniform(0.5, 1, CLIENTS), eagerness, 2.0)


@dataclass(frozen=True)
class Rule:
    """How clients trade in a market, and what is risked by claiming too many samples.

    Attributes:
        pricing: "marginal" (iPFL eq. 10), "critical" or "posted", as in :class:`hanse.mechanisms.ipfl.IPFL`.
        tariff: the posted prices.
        leaves: how many samples an audit opens. A claim of x times the true number passes with probability x^-leaves
            (:mod:`hanse.data.commitment`). 0: sizes are not audited.
        bond: tokens that are lost if it fails, spread over 50 rounds. The owner is assumed to continue trading as if
            honest. This favours liars: in a run its size would count as 0 from then on.

    Examples:
        >>> market = Market.of([[0, 0.1], [0.1, 0]], [100, 300], [0.5, 0.5], [1e4, 0], lam=1.0)
        >>> Rule("posted").trade(market, market, 0)[0].tolist()
        [[0.0, 1.0], [0.0, 0.0]]
    """

    pricing: Pricing = "marginal"
    tariff: Tariff = field(default_factory=Tariff)
    leaves: int = 0
    bond: float = 10.0

    def trade(self, said: Market, truth: Market, liar: int | None) -> tuple[NDArray[Any], Floats]:
        """Return who imports whose model and what is paid, ``[m, m]`` each, when one client lies.

        At posted prices a buyer chooses for itself. The liar therefore buys by the true numbers, and a model is
        imported with a share of its size.
        """
        if self.pricing == "posted":
            graph = posted_imports(said, self.tariff)
            if liar is not None and said is not truth:
                graph[liar] = posted_imports(truth, self.tariff, liar)[0]
            paid = due(self.pricing, said, graph, self.tariff)
            return graph * np.minimum(said.sizes / np.maximum(truth.sizes, 1), 1), paid  # of what there really is
        imports = best_imports(said)
        return imports, due(self.pricing, said, imports)

    def worth(self, said: Market, truth: Market, liar: int | None = None) -> Floats:
        """Return everybody's true utility net of distance, ``[m]`` in tokens."""
        return net_utilities(*self.trade(said, truth, liar), truth)


def rule_of(experiment: Experiment) -> Rule:
    """Return how the market of an experiment trades. Raises UserError if the experiment has no market like iPFL's."""
    part = experiment.mechanism.built.settle
    if not isinstance(part, IPFL):
        name = experiment.mechanism.name
        raise UserError(f"--markets: mechanism.name: '{name}': has no market of models; 'ipfl' and 'ipfl_posted' have")
    sizes = experiment.sizes
    return Rule(part.pricing, part.tariff or Tariff(), sizes.leaves if sizes.proved else 0, sizes.bond)


def net_utilities(graph: NDArray[Any], paid: Floats, truth: Market) -> Floats:
    """Return eq. (1) by the true numbers, minus lambda n_j/n_i d_ij of all imports (eq. 8), ``[m]`` in tokens."""
    far = np.where(graph != 0, graph * truth.similarity(slice(0, truth.size)), 0.0).sum(axis=1)
    return np.asarray(utilities_of(graph, paid, truth.sizes, truth.costs, truth.eagerness) - far)


@dataclass(frozen=True)
class Lie:
    """One client's false claim, or the number of sellers into which it splits.

    Attributes:
        what: one of ``LIES``.
        who: the client.
        factor: the factor of the true number, or the number of parts for a split.
    """

    what: str
    who: int
    factor: float

    def told(self, truth: Market) -> Market:
        """Return the market as the liar describes it. It does not work for splits."""
        name = "sizes" if self.what.startswith("size") else {"cost": "costs"}.get(self.what, self.what)
        values = getattr(truth, name).copy()
        values[self.who] *= self.factor
        return replace(truth, **{name: values})

    def gain(self, rule: Rule, truth: Market, honest: float) -> float:
        """Return the lie's gain over honesty in one round, in tokens."""
        if self.what == "split":
            return _split_worth(rule, truth, self.who, int(self.factor)) - honest
        gained = float(rule.worth(self.told(truth), truth, self.who)[self.who]) - honest
        if self.what == "size up" and rule.leaves:
            passes = self.factor**-rule.leaves
            return passes * gained - (1 - passes) * rule.bond / ROUNDS
        return gained


def lies(rule: Rule, truth: Market, who: int) -> Iterator[Lie]:
    """Yield those lies of a client that could pay because they can change who trades.

    Three kinds are left out at posted prices: a size at whose price a sale brings no more than it costs (also within a
    split); a size whose audit fails so often that selling to everybody would not make up for the lost bond; and, if
    prices go by size, a false cost that does not change whether the client sells.
    """
    posted, cost = rule.pricing == "posted", float(truth.costs[who])

    def sells(part: float) -> bool:
        return not posted or float(rule.tariff.price(truth.sizes[who] * part)) > cost

    by_weight = posted and rule.tariff.by == "weight"
    most = (truth.size - 1) * float(rule.tariff.price(truth.sizes[who] * max(FACTORS)))
    for factor in FACTORS:
        passes = factor**-rule.leaves if factor > 1 and posted else 1.0
        if sells(factor) and passes * most >= (1 - passes) * rule.bond / ROUNDS:
            yield Lie("size up" if factor > 1 else "size down", who, factor)
    if posted and not by_weight:
        price = float(rule.tariff.price(truth.sizes[who]))
        turned = [f for f in FACTORS if (f * cost <= price) != (cost <= price)]
        yield from (Lie("cost", who, f) for f in turned[:1])
    else:
        yield from (Lie("cost", who, f) for f in FACTORS)
    if not posted:
        yield from (Lie("eagerness", who, f) for f in (0.0, *FACTORS) if truth.eagerness[who] > 0)
    yield from (Lie("split", who, float(parts)) for parts in (2, 3) if sells(1 / parts))


def _split_worth(rule: Rule, truth: Market, who: int, parts: int) -> float:
    """Return the outcome of a client that offers its samples as several sellers; the first of them buys for it, as
    itself."""
    place = [who] * (parts - 1)
    far = np.pad(truth.distance, (0, parts - 1))
    far[truth.size :, : truth.size], far[: truth.size, truth.size :] = truth.distance[place], truth.distance[:, place]
    mine = [who, *range(truth.size, truth.size + parts - 1)]
    far[np.ix_(mine, mine)] = APART
    np.fill_diagonal(far, 0.0)
    sizes = np.r_[truth.sizes, truth.sizes[place]]
    sizes[mine] /= parts
    costs, eager = np.r_[truth.costs, truth.costs[place]], np.r_[truth.eagerness, np.zeros(parts - 1)]
    split = Market(far, sizes, costs, eager, truth.lam)
    graph, paid = rule.trade(split, split, None)
    if rule.pricing == "posted":  # it chooses by all that it has
        graph[who, : truth.size], graph[who, truth.size :] = posted_imports(truth, rule.tariff, who)[0], 0
        paid = rule.tariff.due(graph, sizes)
    free = replace(truth, costs=np.zeros(truth.size))  # its sales are counted below
    own = net_utilities(graph[: truth.size, : truth.size], np.zeros((truth.size, truth.size)), free)[who]
    others = np.setdiff1d(np.arange(len(sizes)), mine)
    sold = int((graph[np.ix_(others, mine)] != 0).sum())
    cost = float(truth.costs[who]) * sold if sold else 0.0
    return float(own - paid[who].sum() + paid[np.ix_(others, mine)].sum()) - cost


@dataclass(frozen=True)
class Found:
    """What a search over random markets found.

    Attributes:
        kind: the kind of markets.
        markets: how many.
        pays: by lie, for how many of all clients it gains more than 1 % of what honesty brings.
        touched: by lie, the number of markets that have such a client.
        gained: by lie, these clients' median gain in tokens.
        honest: by lie, the median in tokens of what these clients have if honest.
        others: by lie, the mean of what the other clients then gain or lose together, in tokens. It is not computed for
            splits.
        losers: how many honest clients end below zero.
        welfare: the sum of net utilities if all are honest, as a share of that under eq. (10).
        worst: the lie that gains most, with its market and gain. None: no lie gains anything.
    """

    kind: Kind
    markets: int
    pays: Mapping[str, int]
    touched: Mapping[str, int]
    gained: Mapping[str, float]
    honest: Mapping[str, float]
    others: Mapping[str, float]
    losers: int
    welfare: float
    worst: tuple[Lie, Market, float] | None

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain values, without the worst lie's market."""
        worst = None if self.worst is None else {**asdict(self.worst[0]), "gain": self.worst[2]}
        bounds = {lie: self.at_most(lie) for lie in LIES}
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"worst": worst, "at_most": bounds}

    def at_most(self, lie: str) -> float:
        """Return the 95 % upper bound of the share of markets with a client for whom a lie pays (Clopper, Pearson)."""
        return at_most(self.touched[lie], self.markets)


def search_markets(
    rule: Rule, kind: Kind, markets: int, *, seed: int = 2026, told: Callable[[int, int], None] = lambda done, of: None
) -> Found:
    """Try every lie of every client on random markets.

    Args:
        rule: the rule by which clients trade.
        kind: see :func:`random_market`.
        markets: how many.
        seed: the seed of the markets.
        told: called after every market with how many are done, and of how many.
    """
    draw = np.random.default_rng(seed)
    return search_these(rule, kind, [random_market(kind, draw) for _ in range(markets)], told)


def search_these(
    rule: Rule, kind: Kind, markets: Sequence[Market], told: Callable[[int, int], None] = lambda done, of: None
) -> Found:
    """Try every lie of every client on these markets, as :func:`search_markets` does on random ones."""
    gained: dict[str, list[float]] = {lie: [] for lie in LIES}
    had: dict[str, list[float]] = {lie: [] for lie in LIES}
    aside: dict[str, list[float]] = {lie: [] for lie in LIES}
    touched, losers, total, reference = dict.fromkeys(LIES, 0), 0, 0.0, 0.0
    worst: tuple[Lie, Market, float] | None = None
    for number, truth in enumerate(markets, 1):
        honest = rule.worth(truth, truth)
        losers += int((honest < -1e-9).sum())
        total, reference = total + float(honest.sum()), reference + float(Rule().worth(truth, truth).sum())
        paying = list(_paying(rule, truth, honest))
        for lie, gain in paying:
            gained[lie.what].append(gain)
            had[lie.what].append(float(honest[lie.who]))
            if lie.what != "split":
                now = rule.worth(lie.told(truth), truth, lie.who)
                aside[lie.what].append(float(np.delete(now - honest, lie.who).sum()))
            if worst is None or gain > worst[2]:
                worst = lie, truth, gain
        for what in {lie.what for lie, _ in paying}:
            touched[what] += 1
        told(number, len(markets))
    return Found(
        kind,
        len(markets),
        {lie: len(found) for lie, found in gained.items()},
        touched,
        {lie: float(np.median(found)) if found else 0.0 for lie, found in gained.items()},
        {lie: float(np.median(found)) if found else 0.0 for lie, found in had.items()},
        {lie: float(np.mean(found)) if found else 0.0 for lie, found in aside.items()},
        losers,
        total / reference if reference else math.nan,
        worst,
    )


def _paying(rule: Rule, truth: Market, honest: Floats) -> Iterator[tuple[Lie, float]]:
    """Yield, for each client and each number to lie about, the lie that pays most, with its gain, if any pays."""
    for who in range(truth.size):
        best: dict[str, tuple[Lie, float]] = {}
        for lie in lies(rule, truth, who):
            gain = lie.gain(rule, truth, float(honest[who]))
            if gain > LEAST * abs(float(honest[who])) + 1e-9 and gain > best.get(lie.what, (lie, 0.0))[1]:
                best[lie.what] = lie, gain
        yield from best.values()
