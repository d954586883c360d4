"""Policies: what a client decides for itself, such as bids, prices, and whether it stays.

``[clients] policy`` names one of :data:`POLICIES`, or gives the import path of your own class. A policy is a frozen
dataclass. It has a method for each question that it answers differently from :class:`Loyal`, which answers all others.
Questions that neither of them knows are refused (:func:`answer`). A policy sees only itself and what the server tells
it.

For a "bid" at PI-FL's auctions, a client is told five things: the number of ``tiers``; the ``price`` of a seat and its
own ``balance`` (units); what each tier has ``paid`` it so far (net units per seat, or only rewards; 0 if it never had a
seat); and ``scores``, the loss and accuracy of each tier's model on its own samples. Only the client sees these scores.

``[clients] profiles`` names one of :data:`PROFILES` (roles in the market, costs of sharing, eagerness for data) or the
import path of a function ``(num_clients, rng, **options) -> sequence of mappings`` of plain values.
What changes from round to round is for a policy of your own to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field
from typing_extensions import TypedDict

from hanse.base.errors import UserError, blamed, nearest
from hanse.base.factories import Positive, Share, Weight, call
from hanse.base.imports import named
from hanse.base.plain_text import quantity
from hanse.base.streams import stream
from hanse.core.declared import Declared, Int64, Samples
from hanse.core.entry import TOKEN
from hanse.core.part import ModelScores
from hanse.core.telling import Conduct
from hanse.federation.behaviour import Me, first_places, place
from hanse.games.market_posted import best_purchase

Profile = Mapping[str, Any]
ROLES = ("trader", "buyer", "seller", "attacker")
# the most that anybody may declare, as a cost in tokens (which may also be infinite) or as an eagerness
MOST = 1e15
# iPFL Table 5: the roles of its twelve clients
TABLE_5 = (
    "seller", "buyer", "buyer", "trader", "trader", "seller",
    "trader", "seller", "buyer", "buyer", "seller", "attacker",
)  # fmt: skip


def build_profiles(given: str | Mapping[str, Any] | None, num_clients: int, seed: int) -> Sequence[Profile]:
    """Return one profile per client. If nothing is given, the profiles are empty.

    Args:
        given: what ``[clients] profiles`` says.
        num_clients: how many clients there are, N.
        seed: the seed of the random generator that the function gets.

    Raises:
        UserError: one line for each mistake.
    """
    if given is None:
        return [{}] * num_clients
    make, options = named(given, "clients.profiles", PROFILES)
    found = call(make, options, "clients.profiles", ["name"], (num_clients, stream(seed, "profiles")))
    if len(found) != num_clients:
        counts = f"{quantity(len(found), 'profile')} for {quantity(num_clients, 'client')}"
        raise UserError(f"clients.profiles: {given}: {counts}: must be one each")
    if wrong := [f"clients.profiles: client {i}: {line}" for i, one in enumerate(found) for line in faults(one)]:
        raise UserError(*wrong)
    return [dict(profile) for profile in found]


def faults(profile: Profile) -> list[str]:
    """Return a line for each amount in a profile with which policies cannot calculate."""
    return [
        f"{name}: {profile[name]!r}: must be a number from 0 to {MOST:g}{', or inf' if name == 'cost' else ''}"
        for name in ("cost", "eagerness", "most")
        if profile.get(name) is not None and amount(profile[name], infinite=name == "cost") is None
    ]


def amount(value: object, *, infinite: bool = False) -> float | None:
    """Return a value as a float if it is a number from 0 to ``MOST``, else None.

    Args:
        value: anything; true and false do not count as numbers.
        infinite: whether infinity is allowed too.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if infinite and value == math.inf:
        return math.inf
    return float(value) if 0 <= value <= MOST else None


def _amount(value: float, infinite: bool = False) -> float:
    """Check an option that is an amount; a cost may be infinite: its owner does not sell."""
    if amount(value, infinite=infinite) is None:
        raise ValueError(f"must be a number from 0 to {MOST:g}{', or inf' * infinite}")
    return float(value)


Amount = Annotated[float, AfterValidator(_amount)]
Cost = Annotated[float, AfterValidator(partial(_amount, infinite=True))]
Range = Annotated[Sequence[Amount], Field(min_length=2, max_length=2)]  # the least and the most


def uniform(num_clients: int, rng: np.random.Generator, cost: Cost = 1.0, eagerness: Amount = 5e5) -> Sequence[Profile]:
    """Return a trader with the same cost (tokens) and eagerness for each client (iPFL section E.2: c = 1, K = 5e5).

    Args:
        num_clients: how many clients there are, N.
        rng: not used.
        cost: the cost of sharing a model, in tokens.
        eagerness: how much a client gains from more data.
    """
    return [{"role": "trader", "cost": cost, "eagerness": eagerness}] * num_clients


def roles(
    num_clients: int,
    rng: np.random.Generator,
    roles: Sequence[str] = TABLE_5,
    eagerness: Range = (3e5, 6e5),
    cost: Range = (0.5, 1.0),
) -> Sequence[Profile]:
    """Return traders, buyers, sellers and attackers, drawn as in iPFL's Table 6.

    Args:
        num_clients: how many clients there are, N.
        rng: the random generator that draws each client's eagerness and cost.
        roles: the role of each client, in order of id; repeated if there are more clients.
        eagerness: the range from which eagerness is drawn. Sellers and attackers have none.
        cost: the range in tokens from which a trader's cost is drawn. A buyer's cost is infinite (it does not sell),
            and the cost of the others is 0.

    Raises:
        UserError: an unknown role.
    """
    unknown = [role for role in roles if role not in ROLES]
    if not roles:
        raise UserError("clients.profiles.roles: []: must name at least one role")
    if unknown:
        raise UserError(
            *(f"clients.profiles.roles: {role!r}: no such role{nearest(str(role), ROLES)}" for role in unknown)
        )
    found = []
    for i in range(num_clients):
        role = roles[i % len(roles)]
        # one pair of draws for each client whatever its role, so changing one role leaves the others as they are
        K, c = rng.uniform(eagerness[0], eagerness[1]), rng.uniform(cost[0], cost[1])
        buys = role in ("trader", "buyer")
        price = math.inf if role == "buyer" else c if role == "trader" else 0.0
        found.append({"role": role, "cost": float(price), "eagerness": float(K) if buys else 0.0})
    return found


def listed(
    num_clients: int,
    rng: np.random.Generator,
    cost: Sequence[Cost] = (),
    eagerness: Sequence[Amount] = (),
    role: Sequence[str] = (),
) -> Sequence[Profile]:
    """Return profiles from lists with one entry per client.

    Args:
        num_clients: how many clients there are, N.
        rng: not used.
        cost: the cost of each client in tokens, or empty.
        eagerness: the eagerness of each client, or empty.
        role: the role of each client, or empty.

    Raises:
        UserError: a list of the wrong length.
    """
    found: list[dict[str, Any]] = [{} for _ in range(num_clients)]
    for name, values in (("cost", cost), ("eagerness", eagerness), ("role", role)):
        if values and len(values) != num_clients:
            counts = f"{quantity(len(values), 'entry', 'entries')} for {quantity(num_clients, 'client')}"
            raise UserError(f"clients.profiles.{name}: {counts}: must be one for each")
        for i, value in enumerate(values):
            found[i][name] = value
    return found


PROFILES: Mapping[str, Callable[..., Sequence[Profile]]] = {"uniform": uniform, "roles": roles, "listed": listed}


Told = Mapping[str, Any]


def fit(loss: float, accuracy: float) -> float:
    """Return how well a model fits, from 0 to 1.

    The fit is the accuracy (PI-FL eq. 3). For regression, which has no accuracy, it is ``1 / (1 + loss)``. It is 0 if
    neither is known.

    Args:
        loss: the mean loss; used if there is no accuracy.
        accuracy: the accuracy; NaN if there is none. Reported values below 0 or above 1 count as 0 or 1.
    """
    if math.isfinite(accuracy):
        return min(1.0, max(0.0, accuracy))
    return 1 / (1 + loss) if math.isfinite(loss) and loss >= 0 else 0.0


def fits(scores: ModelScores) -> list[float]:
    """Return :func:`fit` of each scored model, a list of length C."""
    return [fit(float(loss), float(right)) for loss, right in zip(scores.loss, scores.accuracy, strict=True)]


def _weights(told: Told) -> list[float]:
    """Return the importance weight of each tier, from the scores that the client was told."""
    scores = told["scores"]
    return [fit(loss, right) for loss, right in zip(scores["loss"], scores["accuracy"], strict=True)]


def _ranked(worth: Sequence[float], told: Told) -> list[int]:
    """Return the tiers by ``worth``, best first; of equals the one with the lower loss, then the lower tier."""
    loss = told["scores"]["loss"]
    return sorted(range(len(worth)), key=lambda k: (-worth[k], loss[k] if math.isfinite(loss[k]) else math.inf, k))


def _affordable(tiers: Sequence[int], told: Told) -> Mapping[str, Any]:
    """Return the answer to "bid": the first tiers, as many as the balance pays for."""
    return {"tiers": list(tiers[: max(0, told["balance"]) // told["price"]])}


@dataclass(frozen=True)
class BestTier:
    """Bids for the tier that fits the client's own samples best, and for others that fit nearly as well.

    PI-FL Alg. 1 (papers.md P22). How well a tier fits is its importance weight, :func:`fit` of its model.

    Attributes:
        threshold: a number from 0 to 1. The client also bids for other tiers if their weight is above this share of the
            best weight or, with ``rule`` "absolute" or "printed", above this number.
        rule: with "relative" and "absolute" the client always bids for the best tier. With "printed" it bids only for
            tiers above the threshold. Untrained models would get no bids that way, so in the first rounds it bids for a
            random tier.
        start_rounds: the last of the rounds with random bids.

    Examples:
        A client with 25 units is told of two tiers whose seats cost 10 each. The client bids for the tier whose model
        is more accurate on its samples. With a lower threshold it also bids for the other, since it can afford both:

        >>> from hanse.core.recipe import Recipe
        >>> me = Me(id=0, num_clients=4, seed=0, recipe=Recipe(), num_parameters=8)
        >>> scores = {"loss": [0.5, 0.9], "accuracy": [0.8, 0.6]}
        >>> told = {"tiers": 2, "price": 10, "balance": 25, "paid": [0.0, 30.0], "scores": scores}
        >>> BestTier().bid(me, 0, told), BestTier(threshold=0.5).bid(me, 0, told)
        ({'tiers': [0]}, {'tiers': [0, 1]})
    """

    threshold: Share = 1.0
    rule: Literal["relative", "absolute", "printed"] = "relative"
    start_rounds: Annotated[int, Field(ge=0)] = 5

    def bid(self, me: Me, round: int, told: Told) -> Mapping[str, Any]:
        """Return ``{"tiers": [..]}``, the tiers to bid for, the best first, as many as the balance can pay for.

        Args:
            me: the client.
            round: the round's number.
            told: ``price`` and ``balance`` (units), ``scores`` with the lists ``loss`` and ``accuracy``, one
                entry per tier.
        """
        if self.rule == "printed" and round <= self.start_rounds:
            return RandomTiers().bid(me, round, told)
        v = _weights(told)
        order = _ranked(v, told)
        least = self.threshold * (v[order[0]] if self.rule == "relative" else 1.0)
        wanted = [k for k in order if v[k] > least]
        if self.rule != "printed" and order[0] not in wanted:
            wanted.insert(0, order[0])
        return _affordable(wanted, told)


@dataclass(frozen=True)
class RewardSeeking:
    """Bids for the tier with the best sum of two terms: how well it fits, and its reward so far.

    PI-FL section 3.1 forms preferences from importance weights and received rewards, without saying how to weigh the
    two.

    Attributes:
        weight: the factor of what the tier has paid so far, measured in prices of a seat.
        fit: the factor of the importance weight. With 0, only rewards count.
    """

    weight: Weight = 0.5
    fit: Weight = 1.0

    def bid(self, me: Me, round: int, told: Told) -> Mapping[str, Any]:
        """Return ``{"tiers": [tier]}``, or no tier if the balance is less than the price.

        Args:
            me: the client.
            round: the round's number.
            told: ``price`` and ``balance`` (units), ``paid`` (units per seat, one entry per tier), and ``scores`` with
                the lists ``loss`` and ``accuracy``, one entry per tier.
        """
        pairs = zip(_weights(told), told["paid"], strict=True)
        worth = [self.fit * v + self.weight * paid / told["price"] for v, paid in pairs]
        return _affordable(_ranked(worth, told)[:1], told)


@dataclass(frozen=True)
class RandomTiers:
    """Bids for a random tier each round (PI-FL's ablation)."""

    def bid(self, me: Me, round: int, told: Told) -> Mapping[str, Any]:
        """Return ``{"tiers": [tier]}``, or no tier where the balance is less than the price.

        Args:
            me: the client.
            round: the round's number.
            told: ``tiers`` (how many there are), ``price`` and ``balance`` (units).
        """
        draw = stream(me.seed, "bid", round=round, client=me.id)
        return _affordable([int(draw.integers(told["tiers"]))], told)


@dataclass(frozen=True)
class NeverBids:
    """Some clients never bid. The others bid as :class:`BestTier` does.

    Clients that never bid pay nothing, take the models, and earn if they are invited. (The behaviour "free_rider" is
    different: such a client bids, and sends back the model that it received.)

    Attributes:
        fraction: the share of clients that never bid, from 0 to 1.
    """

    fraction: Share = 1.0

    def bid(self, me: Me, round: int, told: Told) -> Mapping[str, Any]:
        """Return no tier for a client that never bids.

        Args:
            me: the client.
            round: the round's number.
            told: as for :meth:`BestTier.bid`: ``price`` and ``balance`` (units), and ``scores`` with the lists ``loss``
                and ``accuracy``, one entry per tier.
        """
        rides = place(me, "free riders") < self.fraction * me.num_clients
        return {"tiers": []} if rides else BestTier().bid(me, round, told)

    def tells(self, num_clients: int, seed: int) -> Conduct:
        """Return the clients that never bid, described as cheats, and what they gain."""
        found = first_places(seed, "free riders", num_clients, self.fraction * num_clients)
        told = "Some clients never bid: they pay nothing, take the models, and earn if they are invited."
        return Conduct("those who never bid", told, found, cheats=True)


DECLARED = ("cost", "eagerness")


@dataclass(frozen=True)
class Trader:
    """Declares its profile in a market, and may limit what it pays and how long it waits.

    Attributes:
        most: the most tokens that the client pays in a round. None: it pays any bill. An entry ``most`` in its profile
            overrides this.
        patience: the client leaves when its models were withheld in more rounds than this. None: it never leaves.

    Examples:
        >>> from hanse.core.recipe import Recipe
        >>> me = Me(2, num_clients=4, seed=0, recipe=Recipe(), num_parameters=650)
        >>> Trader(most=3.0).authorise(me, 0, {"profile": {"cost": 1.0}})
        3000000
    """

    most: Weight | None = None
    patience: Annotated[int, Field(ge=0)] | None = None

    def declare(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``cost`` (tokens each time its model is shared) and ``eagerness``, from its profile.

        Args:
            me: the client.
            round: the round's number.
            told: the client's own ``profile``, with ``cost`` and ``eagerness``.
        """
        now = told.get("profile", {})
        return {key: now[key] for key in DECLARED if key in now}

    def offer(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return whether the client sells its model at a posted price. It does if the price covers its cost of sharing.

        It also returns its cost as ``least``, the lowest price at which it sells.

        Args:
            me: the client.
            round: the round's number.
            told: the ``price`` in tokens, the client's own ``profile``, and the ``cost`` of clients whose profile has
                none. ``price`` is the highest, for all its samples, and ``flat`` the part that is always paid.
        """
        cost = told.get("profile", {}).get("cost", told["cost"])
        sells = cost <= told["price"]
        return {"sell": sells, "least": cost} if sells else {"sell": sells}

    def buy(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``sellers``, whose models the client buys, and ``weights``, with which it imports them, in samples.

        It makes the purchase that is best for the client, within its balance and what it agrees to pay
        (:func:`hanse.games.market_posted.best_purchase`).

        Args:
            me: the client.
            round: the round's number.
            told: the offers as five lists: ``sellers``, ``sizes``, ``prices`` (tokens), ``distances`` and ``least``,
                what must be paid at least. Then ``lam``, the weight of a distance; ``per_sample``, the extra cost of
                each sample of a weight; the client's own ``samples``, ``balance`` (units) and ``profile``; and the
                ``eagerness`` of clients whose profile has none.
        """
        now = told["profile"]
        eagerness, samples = now.get("eagerness", told["eagerness"]), told["samples"]
        most = self.authorise(me, round, told)
        budget = (told["balance"] if most is None else min(most, told["balance"])) / TOKEN
        if samples < 1 or eagerness == 0 or not told["sellers"]:
            return {"sellers": [], "weights": []}
        offers = {name: told[name] for name in ("sizes", "prices", "lam", "per_sample", "least")}
        weights = best_purchase(samples, eagerness, distance=told["distances"], budget=max(0.0, budget), **offers)
        taken = weights.nonzero()[0].tolist()
        return {"sellers": [told["sellers"][k] for k in taken], "weights": weights[taken].tolist()}

    def authorise(self, me: Me, round: int, told: Mapping[str, Any]) -> int | None:
        """Return the most that the client pays this round, in units, or None for any bill.

        Args:
            me: the client.
            round: the round's number.
            told: the client's ``profile``. Its ``most`` (tokens) overrides the option.
        """
        most = told.get("profile", {}).get("most", self.most)
        return None if most is None else int(most * TOKEN)

    def stay(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return whether the client stays. ``told["unpaid"]`` counts the rounds in which its models were withheld.

        Args:
            me: the client.
            round: the round's number.
            told: ``unpaid``, in how many rounds its models were withheld.
        """
        return {"stay": self.patience is None or told.get("unpaid", 0) <= self.patience}


@dataclass(frozen=True)
class Loyal:
    """Always stays, trades by its profile as :class:`Trader` does, and bids for the tier that fits best."""


@dataclass(frozen=True)
class QuitsWhenWorthless:
    """Leaves once the mean value of its updates is too low.

    The client is told its last ``value``, the ``mean``, and how many ``times`` it was valued.

    Attributes:
        below: the mean value below which the client leaves, in the unit of the mechanism's values.
        rounds: the client stays at least until it has been valued this many times.
    """

    below: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    rounds: Positive = 2

    def stay(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return whether it stays.

        Args:
            me: the client.
            round: the round's number.
            told: ``times``, how often it was valued, and its ``mean`` value.
        """
        return {"stay": told["times"] < self.rounds or told["mean"] >= self.below}


class Stay(TypedDict, total=False):
    """The allowed answer to "stay": whether the client stays (by default it does)."""

    stay: bool


class Bid(TypedDict, total=False):
    """The allowed answer to "bid".

    ``tiers`` are the tiers that it bids for, the favourite first. A number that no tier has makes the bid void.
    """

    tiers: Annotated[list[Int64] | tuple[Int64, ...], Field(max_length=10_000)]


class Offer(TypedDict, total=False):
    """The allowed answer to "declare": the client's cost (infinity: it does not sell) and eagerness."""

    cost: float
    eagerness: float


class Sale(TypedDict, total=False):
    """The allowed answer to "offer".

    It says whether the client sells at the posted price (default: no). If prices depend on weight, it also says the
    lowest price at which it sells (default: 0).
    """

    sell: bool
    least: float


class Purchase(TypedDict, total=False):
    """The allowed answer to "buy".

    It names the clients whose models are bought, and with how many samples each model counts (default: all of the
    seller's samples).
    """

    sellers: Annotated[list[Int64] | tuple[Int64, ...], Field(max_length=10_000)]
    weights: Annotated[list[Samples] | tuple[Samples, ...], Field(max_length=10_000)]


ANSWERS: Mapping[str, Declared[Any]] = {
    "stay": Declared(Stay),
    "bid": Declared(Bid),
    "declare": Declared(Offer),
    "offer": Declared(Sale),
    "buy": Declared(Purchase),
}


POLICIES: Mapping[str, Callable[..., Any]] = {
    "loyal": Loyal, "quits": QuitsWhenWorthless, "best_tier": BestTier, "reward_seeking": RewardSeeking,
    "random_tiers": RandomTiers, "free_rider": NeverBids, "trader": Trader,
}  # fmt: skip


def answer(policy: Any, question: str, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the policy's answer to a question; if it has none, :class:`Trader`'s or :class:`BestTier`'s.

    Args:
        policy: any object. Its method with the name of the question is called.
        question: "stay", "bid", "declare", or another question that a mechanism asks.
        me: the client that decides.
        round: the round's number.
        told: what the server tells the client, plus scores that stay with the client.

    Returns:
        Plain values by name, or None if none of them has a method for the question.
    """
    for one in (policy, Trader(), BestTier()):
        if (method := getattr(one, question, None)) is not None:
            with blamed(f"the policy {type(one).__name__}, in its {question}"):
                found: Mapping[str, Any] = method(me, round, told)
                return found
    return None
