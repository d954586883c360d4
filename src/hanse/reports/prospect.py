"""Before joining: what a participant could pay at most, what it stands to gain, and what nobody knows yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hanse.base.errors import UserError, named
from hanse.base.factories import call
from hanse.core.declared import Declared, UnsoundError
from hanse.core.entry import TOKEN
from hanse.core.part import Mechanism
from hanse.core.telling import FREE, Joining, Terms
from hanse.data import FederatedData
from hanse.data import build as build_data
from hanse.federation.behaviour import Me
from hanse.federation.policy import POLICIES
from hanse.federation.profiles import at_round, build_profiles
from hanse.runs.config import Experiment
from hanse.runs.names import client_of
from hanse.runs.setup import build_model


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """What an experiment may cost a client and bring it, in units where they are money.

    ``grant`` is what it is given, ``debt`` how far below zero it may fall, ``most`` what it can lose of both over the
    whole run, ``most_round`` what can leave its account in one round; None: nobody pays, or (``most_round``) no bound
    but what the account can bear. ``pays``, ``gains``, ``gives`` and ``unknown`` are sentences.
    """

    mechanism: str
    client: int
    rounds: int
    grant: int | None = None
    debt: int | None = None
    most: int | None = None
    most_round: int | None = None
    pays: tuple[str, ...]
    gains: tuple[str, ...]
    gives: tuple[str, ...]
    unknown: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


def prospect(experiment: Experiment, client: int | str) -> Prospect:
    """Return what ``experiment`` may cost and bring a client: its number, or its name if the data are here and have
    names. Nothing is trained, and nothing downloaded.

    Raises UserError for a mechanism that cannot be built, or no such client.
    """
    mechanism = experiment.mechanism.built
    data, why = _data(experiment)
    clients = _number_of_clients(experiment, data)
    if isinstance(client, str):
        if data is None or not data.names:
            raise UserError(f"--client {client}: must be a number: before the run nobody has a name")
        client = client_of(client, data.names)
    if not 0 <= client < clients:
        raise UserError(f"--client {client}: no such client; this experiment has clients 0 to {clients - 1}")
    grant, debt = round(experiment.clients.grant * TOKEN), -round(experiment.ledger.floor * TOKEN)
    profile = at_round(build_profiles(experiment.clients.profiles, clients, experiment.run.seed)[client], 0)
    sizes = None if data is None else np.asarray(data.sizes, np.float64)
    joining = Joining(
        client=client,
        clients=clients,
        rounds=experiment.run.rounds,
        grant=grant,
        debt=debt,
        sizes=sizes,
        profile=profile,
        agreed=_agreed(experiment, client, clients, profile),
        parts=mechanism.slots(),
    )
    terms = _terms(mechanism, joining)
    most = joining.at_stake if terms.most is None else min(joining.at_stake, terms.most)
    amounts = {"grant": grant, "debt": debt, "most": most, "most_round": terms.most_round}
    return Prospect(
        mechanism=mechanism.name,
        client=client,
        rounds=joining.rounds,
        pays=terms.pays,
        gains=terms.gains,
        gives=_gives(experiment, mechanism, data, clients),
        unknown=(*terms.unknown, *_unknown(terms.money, why)),
        **(amounts if terms.money else {}),
    )


def _terms(mechanism: Mechanism, joining: Joining) -> Terms:
    """Return what the mechanism's payment rule says of itself; what no account can lose more of, where it says nothing.

    Raises UserError for a rule that says something that are no terms.
    """
    settle = mechanism.settle
    if settle is None:
        return FREE
    name = type(settle).__name__
    terms = settle.terms(joining) if hasattr(settle, "terms") else None
    if terms is None:
        telling = settle.tells(frozenset({"settle"})).participant if hasattr(settle, "tells") else ""
        unknown = f"What its settle part '{name}' charges is not known here: {joining.at_stake_in_words}."
        return Terms((telling, unknown) if telling else (unknown,))
    try:
        return Declared[Terms](Terms).check(terms)
    except UnsoundError as wrong:
        raise UserError(f"mechanism.settle: {name}: {wrong}") from None


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


def _agreed(experiment: Experiment, client: int, clients: int, profile: Mapping[str, Any]) -> int | None:
    """Return the most that the client's policy agrees to pay in round 0, in units; None: it names no amount."""
    policy = call(*named(experiment.clients.policy, "clients.policy", POLICIES), "clients.policy")
    authorise = getattr(policy, "authorise", None)
    if authorise is None:
        return None
    me = Me(client, clients, experiment.run.seed, experiment.train.recipe, 0)
    agreed = authorise(me, 0, {"profile": profile, "round": 0})
    return agreed if type(agreed) is int and agreed >= 0 else None


def _gives(experiment: Experiment, mechanism: Mechanism, data: FederatedData | None, clients: int) -> tuple[str, ...]:
    seats = getattr(mechanism.select, "clients_per_round", None)
    asked = f"{seats} of {clients} clients are asked to train in a round" if seats and seats < clients else ""
    found = [f"{asked}."] if asked else []
    found.append(
        "Each time that it trains, its updated model goes to the server in the clear, with the number of its samples."
    )
    if data is not None:
        _, row = build_model(experiment, data)
        found.append(f"A model is {4e-6 * row.numel():.2g} MB each way for every seat.")
    return tuple(found)


def _unknown(money: bool, why: str) -> tuple[str, ...]:
    lines = ["How much better its model will be than one trained alone: compare after a trial run."]
    if why:
        lines.append(f"Everything that depends on the data: {why}.")
    if money:
        lines.append("What a token is worth outside this federation: the grant is made for it, nothing is paid in.")
    return tuple(lines)
