"""Before joining: what a participant could pay at most, what it stands to gain, and what nobody knows yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hanse.config import Experiment
from hanse.data import FederatedData
from hanse.data import build as build_data
from hanse.errors import UserError
from hanse.federation.profiles import at_round, build_profiles
from hanse.federation.trade import Trader
from hanse.games.market_numbers import gain
from hanse.learning.models import build_problem
from hanse.ledger.entry import TOKEN
from hanse.ledger.export import tokens
from hanse.mechanisms.ipfl import IPFL, Utilities
from hanse.mechanisms.part import Mechanism
from hanse.mechanisms.pifl import ServerTokens, Tokens
from hanse.mechanisms.train import SharedModel

__all__ = ["Prospect", "prospect"]


@dataclass(frozen=True)
class Prospect:
    """What an experiment may cost a client and bring it, in units where they are money.

    ``grant`` is what it is given, ``debt`` how far below zero it may fall, ``most`` what it can lose of both over the
    whole run, ``most_round`` what can leave its account in one round; None: nobody pays, or (``most_round``) no bound
    but what the account can bear. ``pays``, ``gains``, ``gives`` and ``unknown`` are sentences.
    """

    mechanism: str
    client: int
    rounds: int
    grant: int | None
    debt: int | None
    most: int | None
    most_round: int | None
    pays: tuple[str, ...]
    gains: tuple[str, ...]
    gives: tuple[str, ...]
    unknown: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


def prospect(experiment: Experiment, client: int) -> Prospect:
    """Return what ``experiment`` may cost and bring a client. Nothing is trained, and nothing downloaded.

    Raises UserError for a mechanism that cannot be built, or no such client.
    """
    mechanism = experiment.mechanism.built
    data, why = _data(experiment)
    clients = _number_of_clients(experiment, data)
    if not 0 <= client < clients:
        raise UserError(f"--client {client}: no such client; this experiment has clients 0 to {clients - 1}")
    grant, debt = round(experiment.clients.grant * TOKEN), -round(experiment.ledger.floor * TOKEN)
    settle = mechanism.settle
    blank = Prospect(mechanism.name, client, experiment.run.rounds, grant, debt, grant + debt, None, (), (), (), ())
    if settle is None or isinstance(settle, Utilities):
        found = replace(blank, grant=None, debt=None, most=None, pays=("Nobody pays in this experiment.",))
        found = replace(found, gains=("A model that learned from others' data; no tokens.",))
    elif isinstance(settle, Tokens | ServerTokens):
        found = _auction(blank, settle, mechanism)
    elif isinstance(settle, IPFL):
        found = _market(blank, experiment, settle, mechanism, data)
    else:
        name = type(settle).__name__
        found = replace(blank, pays=(f"What its settle part '{name}' charges is not known here: {_bound(blank)}.",))
    unknown = (*found.unknown, *_unknown(found, why))
    return replace(found, gives=_gives(experiment, mechanism, data, client, clients), unknown=unknown)


def _data(experiment: Experiment) -> tuple[FederatedData | None, str]:
    """Return the data, if they are here, or why they are not."""
    try:
        return build_data(experiment.data.model_copy(update={"download": False})), ""
    except UserError as wrong:
        return None, wrong.lines[0] if wrong.lines else "the data cannot be loaded"


def _number_of_clients(experiment: Experiment, data: FederatedData | None) -> int:
    if data is not None:
        return data.num_clients
    return 1 if experiment.data.partition == "pooled" else experiment.data.clients


def _bound(found: Prospect) -> str:
    """Say what no account can lose more of, whatever a mechanism does."""
    assert found.most is not None
    if found.debt:
        return f"at most {tokens(found.most)} tokens: its grant, and {tokens(found.debt)} of debt, where the floor is"
    return f"at most its grant of {tokens(found.most)} tokens, since no account goes below zero"


def _auction(blank: Prospect, settle: Tokens | ServerTokens, mechanism: Mechanism) -> Prospect:
    """Return the prospect of PI-FL's auctions: eqs (6)-(14)."""
    price, auctions = round(settle.price * TOKEN), max(0, blank.rounds - settle.first)
    tiers = 1 if isinstance(mechanism.train, SharedModel) else getattr(mechanism.train, "tiers", None)
    select = mechanism.select
    seats = sum(getattr(select, name, 0) for name in ("by_contribution", "at_random")) or None
    held = blank.most or 0
    most_round = None if tiers is None else tiers * price
    most = held if most_round is None else min(held, most_round * auctions)
    many = "each model" if tiers is None else "the model" if tiers == 1 else f"each of {tiers} models"
    pays = [
        f"A bid on {many} costs {tokens(price)} tokens a round if it wins a seat; a bid that wins none comes back.",
        f"There are {auctions} auctions, from round {settle.first} on. Over the whole run it can lose at most "
        f"{tokens(most)} of the tokens it is granted"
        + (f" and of {tokens(blank.debt)} tokens of debt." if blank.debt else "; it is never in debt."),
        "It loses a bid's whole price only where its update is refused or worth least, and the model improved so much "
        f"(by {100 * settle.gamma:g} % or more) that nothing is given back.",
    ]
    gains = [
        f"Up to {100 * settle.eta:g} % of what was paid goes back to those who paid; the rest is shared by those who "
        "trained, by rank.",
    ]
    if seats is not None and seats > 1:
        n = seats
        best, last = (round(price * 2 * k / (n + 1)) for k in (n, 1))
        gains.append(
            f"If {n} clients pay and train and nothing is given back, the most valuable gets {tokens(best)} tokens for "
            f"its {tokens(price)}, the least valuable {tokens(last)}, one in the middle what it paid."
        )
        if tiers is not None:
            top = tiers * auctions * (best - price)
            gains.append(f"So about {tokens(top)} tokens in all for one that is the best in every auction.")
    gains.append("Who is invited without a bid trains and earns without paying.")
    return replace(
        blank, most=most, most_round=most_round, pays=tuple(pays), gains=tuple(gains),
        unknown=("How many others bid, and how its updates rank among theirs.",),
    )  # fmt: skip


def _market(
    blank: Prospect, experiment: Experiment, settle: IPFL, mechanism: Mechanism, data: FederatedData | None
) -> Prospect:
    """Return the prospect of iPFL's market, eqs (1), (2) and (10)."""
    weigh, markets = mechanism.weigh, max(0, blank.rounds - 1)
    profile = _profile(experiment, blank.client, data)
    eager = float(profile.get("eagerness", getattr(weigh, "eagerness", np.nan)))
    cost = float(profile.get("cost", getattr(weigh, "cost", np.nan)))
    agreed = _authorised(experiment, profile)
    caps = [] if agreed is None else [agreed]
    pays = [f"It pays for the models that it imports, in each of up to {markets} markets: {_bound(blank)}."]
    gains = []
    unknown = ["Whose models will be like its own: the market decides on it round by round."]
    if data is not None and isinstance(weigh, IPFL) and np.isfinite(eager):
        own = float(data.sizes[blank.client])
        most = float(gain(own, float(data.sizes.sum()) - own, eager)) if own > 0 else 0.0
        gains.append(
            f"With {own:.0f} own samples and its eagerness of {eager:g}, all others' models would be worth {most:.2f} "
            "tokens a round to it (eq. 2); that is the most it can gain as a buyer."
        )
        if settle.pricing == "marginal" and own > 0:
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
    least = blank.most if most_round is None or blank.most is None else min(blank.most, most_round * markets)
    return replace(
        blank, most=least, most_round=most_round, pays=tuple(pays), gains=tuple(gains), unknown=tuple(unknown)
    )


def _profile(experiment: Experiment, client: int, data: FederatedData | None) -> Mapping[str, Any]:
    clients = _number_of_clients(experiment, data)
    return at_round(build_profiles(experiment.clients.profiles, clients, experiment.run.seed)[client], 0)


def _authorised(experiment: Experiment, profile: Mapping[str, Any]) -> int | None:
    """Return the most that its policy agrees to pay a round, in units, if it is the one that hanse brings."""
    given = experiment.clients.policy
    table = {"name": given} if isinstance(given, str) else given
    if table.get("name") != "trader":
        return None
    options: dict[str, Any] = {k: v for k, v in table.items() if k != "name"}
    most = profile.get("most", Trader(**options).most)
    return None if most is None else int(most * TOKEN)


def _gives(
    experiment: Experiment, mechanism: Mechanism, data: FederatedData | None, client: int, clients: int
) -> tuple[str, ...]:
    seats = getattr(mechanism.select, "clients_per_round", None)
    asked = f"{seats} of {clients} clients are asked to train in a round" if seats and seats < clients else ""
    found = [f"{asked}."] if asked else []
    found.append(
        "Each time that it trains, its updated model goes to the server in the clear, with the number of its samples."
    )
    if data is not None:
        section = experiment.model
        _, row = build_problem(section.name, data.input_shape, data.num_classes, 0, **section.options)
        found.append(f"A model is {4e-6 * row.numel():.2g} MB each way for every seat.")
    return tuple(found)


def _unknown(found: Prospect, why: str) -> tuple[str, ...]:
    lines = ["How much better its model will be than one trained alone: compare after a trial run."]
    if why:
        lines.append(f"Everything that depends on the data: {why}.")
    if found.grant is not None:
        lines.append("What a token is worth outside this federation: the grant is made for it, nothing is paid in.")
    return tuple(lines)
