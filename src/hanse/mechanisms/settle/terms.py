"""What the payment rules say of themselves: to who thinks of joining, to a participant, and in reports."""

from __future__ import annotations

import numpy as np

from hanse.games.market_numbers import gain
from hanse.ledger.entry import TOKEN, tokens
from hanse.mechanisms.train.basic import SharedModel
from hanse.telling import Joining, Kind, Plot, Telling, Terms, Worth

__all__ = ["auction_telling", "auction_terms", "market_telling", "market_terms", "utilities_telling"]

AUCTION = "Tokens and tiers"
MARKET = "The market"
UTILITY = Worth(
    "utility/client/*", "Utility", "What the market has brought each client so far: its utility, in tokens."
)


def auction_telling(price: float, eta: float) -> Telling:
    """Return what a token manager says of itself: ``price`` in tokens, the share ``eta`` that may go back."""
    cost = f"{price:g} token{'s' if price != 1 else ''}"
    return Telling(
        f"You bid for seats: a bid holds {cost} of your account until the round is settled, and comes back "
        "if it wins no seat. Who trains is paid out of what the bidders paid: the more its update was worth, the more.",
        f"Clients bid {cost} for a seat; up to {100 * eta:g} % of what was paid goes back, the less the "
        "better the model became, and the rest is shared by those who trained, by rank.",
        AUCTION,
        (
            Plot(
                "How good each tier was when it was settled", "tokens/tier */accuracy", "accuracy", "tier *",
                "The accuracy that the tier's settlement of the round before was made with.",
            ),
            Plot(
                "How much goes back to those who paid", "tokens/tier */theta", "share of the payments", "tier *",
                "The share of each tier's payments that goes back: the less the better the tier became.",
            ),
            Plot("Bids in escrow", "tokens/bids", "bids", "bids", "Good bids, each for a seat at one tier."),
        ),
        (
            Kind("bid", "bids put into escrow"),
            Kind("return", "bids that won no seat, returned"),
            Kind("pay", "seats paid for"),
            Kind("reimburse", "given back of what was paid"),
            Kind("reward", "earned by training"),
        ),
    )  # fmt: skip


def market_telling() -> Telling:
    """Return what the market's payments say of themselves."""
    return Telling(
        "You pay for every model that is imported for you, at most what your policy agrees to, and are paid for every "
        "import of yours. Who does not pay its bill gets nothing.",
        "Clients pay one another for the models that they import; who does not pay its bill gets nothing.",
        MARKET,
        (
            Plot(
                "What was paid at the market", "market/money", "tokens a round", "paid",
                "All bills that were paid in a round, together.",
            ),
        ),
        (Kind("market", "models bought and sold"),),
        UTILITY,
    )  # fmt: skip


def utilities_telling() -> Telling:
    """Return what utilities without payments say of themselves."""
    return Telling(
        report="Nobody pays; what the others' models were worth to each client, less its cost of sharing, is accounted "
        "as in a market at a price of nothing.",
        section=MARKET,
        worth=UTILITY,
    )


def auction_terms(joining: Joining, price: int, eta: float, gamma: float, first: int) -> Terms:
    """Return the terms of PI-FL's auctions, eqs (6)-(14): ``price`` in units, the ``first`` auction's round."""
    auctions, train, select = max(0, joining.rounds - first), joining.parts.get("train"), joining.parts.get("select")
    tiers = 1 if isinstance(train, SharedModel) else getattr(train, "tiers", None)
    seats = sum(getattr(select, name, 0) for name in ("by_contribution", "at_random")) or None
    most_round = None if tiers is None else tiers * price
    most = joining.held if most_round is None else min(joining.held, most_round * auctions)
    many = "each model" if tiers is None else "the model" if tiers == 1 else f"each of {tiers} models"
    pays = (
        f"A bid on {many} costs {tokens(price)} tokens a round if it wins a seat; a bid that wins none comes back.",
        f"There are {auctions} auctions, from round {first} on. Over the whole run it can lose at most "
        f"{tokens(most)} of the tokens it is granted"
        + (f" and of {tokens(joining.debt)} tokens of debt." if joining.debt else "; it is never in debt."),
        "It loses a bid's whole price only where its update is refused or worth least, and the model improved so much "
        f"(by {100 * gamma:g} % or more) that nothing is given back.",
    )
    gains = [
        f"Up to {100 * eta:g} % of what was paid goes back to those who paid; the rest is shared by those who trained, "
        "by rank.",
    ]
    if seats is not None and seats > 1:
        best, last = (round(price * 2 * k / (seats + 1)) for k in (seats, 1))
        gains.append(
            f"If {seats} clients pay and train and nothing is given back, the most valuable gets {tokens(best)} tokens "
            f"for its {tokens(price)}, the least valuable {tokens(last)}, one in the middle what it paid."
        )
        if tiers is not None:
            top = tiers * auctions * (best - price)
            gains.append(f"So about {tokens(top)} tokens in all for one that is the best in every auction.")
    gains.append("Who is invited without a bid trains and earns without paying.")
    unknown = ("How many others bid, and how its updates rank among theirs.",)
    return Terms(pays, tuple(gains), unknown, most, most_round)


def market_terms(joining: Joining, pricing: str) -> Terms:
    """Return the terms of iPFL's market, eqs (1), (2) and (10)."""
    weigh, markets, profile = joining.parts.get("weigh"), max(0, joining.rounds - 1), joining.profile
    eager = float(profile.get("eagerness", getattr(weigh, "eagerness", np.nan)))
    cost = float(profile.get("cost", getattr(weigh, "cost", np.nan)))
    agreed = joining.agreed
    caps = [] if agreed is None else [agreed]
    pays = [f"It pays for the models that it imports, in each of up to {markets} markets: {joining.bound}."]
    gains = []
    unknown = ["Whose models will be like its own: the market decides on it round by round."]
    if joining.sizes is not None and hasattr(weigh, "eagerness") and np.isfinite(eager):
        own = float(joining.sizes[joining.client])
        most = float(gain(own, float(joining.sizes.sum()) - own, eager)) if own > 0 else 0.0
        gains.append(
            f"With {own:.0f} own samples and its eagerness of {eager:g}, all others' models would be worth {most:.2f} "
            "tokens a round to it (eq. 2); that is the most it can gain as a buyer."
        )
        if pricing == "marginal" and own > 0:
            limit = float(np.sqrt(eager / own))  # eq. (2) as imports grow without end: whatever sizes others claim
            caps.append(int(np.ceil(limit * TOKEN)))
            pays.append(
                "Under marginal prices (eq. 10) its bill never exceeds the gain that follows from its declaration and "
                f"the sizes that the sellers report; whatever they report, no bill is above {limit:.2f} tokens."
            )
    else:
        unknown.append("What the others' models could be worth to it: the sizes of their data are not known here.")
    if agreed is None:
        pays.append("Its policy sets no limit of its own to a round's bill; 'trader' with 'most' does.")
    else:
        pays.append(f"Its policy agrees to at most {tokens(agreed)} tokens a round; above that it gets nothing.")
    if np.isfinite(cost):
        gains.append(
            f"Each time another client imports its model it is paid at least its declared cost, {cost:g} tokens."
        )
    else:
        gains.append("Its declared cost is infinite: nobody can buy its model, so it earns nothing.")
    most_round = min(caps) if caps else None
    least = joining.held if most_round is None else min(joining.held, most_round * markets)
    return Terms(tuple(pays), tuple(gains), tuple(unknown), least, most_round)
