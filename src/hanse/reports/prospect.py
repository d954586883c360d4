"""Before joining: what a participant could pay at most, what it may gain, and what nobody knows yet.

:func:`prospect` is what ``hanse statement --dry-run`` prints. It reads an experiment and trains nothing. The
mechanism's payment rule says what a client can lose (``terms``, see :class:`hanse.core.telling.Terms`). If a rule does
not say it, the bound is what any account can lose: its grant, and the debt that the ledger's floor allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hanse.base.errors import UserError
from hanse.base.factories import call
from hanse.base.imports import named
from hanse.core.declared import Declared
from hanse.core.entry import TOKEN
from hanse.core.part import Mechanism
from hanse.core.table import Ints
from hanse.core.telling import FREE, BeforeJoining, Terms
from hanse.data import FederatedData
from hanse.data import build as build_data
from hanse.federation.behaviour import Me
from hanse.federation.policy import POLICIES, build_profiles
from hanse.reports.words import environment, said
from hanse.runs.config import Experiment
from hanse.runs.guards import settled
from hanse.runs.run_record import client_of
from hanse.runs.sections import ExitSection
from hanse.runs.setup import build_model


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """What an experiment may cost a client, and what it may bring it.

    Amounts are in units (1 token is 1,000,000). None: nobody pays.

    Attributes:
        mechanism: the mechanism's name.
        client: the client's number.
        rounds: how many rounds are planned.
        grant: what the client is given at the start.
        debt: how far below zero its account may fall.
        most: the most that it can lose of grant and debt over the whole run.
        most_round: the most that can leave its account in one round. None also where nothing but the account itself
            bounds it.
        pays: sentences on what the client pays.
        gains: sentences on what the client may gain.
        gives: sentences on what the client gives: work, its models, traffic.
        unknown: sentences on what nobody knows before the run.
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

    @property
    def lines(self) -> list[str]:
        """What a terminal shows: the money first, then what it pays, gains and gives, and what is not known."""
        return environment().get_template("prospect.txt.j2").render(p=self).splitlines()

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


def prospect(experiment: Experiment, client: int | str) -> Prospect:
    """Return what an experiment may cost a client, and what it may bring it.

    Nothing is trained, and nothing is downloaded.

    Args:
        experiment: the experiment.
        client: the client's number, or its name if the data are here and have names.

    Raises:
        UserError: the mechanism cannot be built, its payment rule's description of itself is not valid, or there is no
            such client.

    Example:
        >>> experiment = Experiment(
        ...     mechanism={"name": "pifl", "by_contribution": 2, "at_random": 1}, run={"rounds": 20}
        ... )
        >>> found = prospect(experiment, 3)
        >>> found.grant // TOKEN, found.most_round // TOKEN, found.most // TOKEN  # two bids in each of 19 auctions
        (100, 2, 38)
        >>> free = prospect(Experiment(mechanism={"name": "fedavg", "clients_per_round": 2}), 3)
        >>> free.pays, free.most
        (('Nobody pays in this experiment.',), None)
    """
    mechanism = experiment.mechanism.built
    data, why = _data(experiment)
    # natural clients may be fewer than the file says
    pooled = experiment.data.partition.name == "pooled"
    clients = data.num_clients if data is not None else 1 if pooled else experiment.data.clients
    if isinstance(client, str):
        if data is None or not data.names:
            raise UserError(f"--client {client}: must be a number, since the clients have no names before the run")
        client = client_of(client, data.names)
    counted = data is not None or pooled or "clients" in experiment.data.model_fields_set
    clients = clients if counted else max(clients, client + 1)
    if not 0 <= client < clients:
        raise UserError(f"--client {client}: no such client; this experiment has clients 0 to {clients - 1}")
    grant, debt = round(experiment.clients.grant * TOKEN), -round(experiment.ledger.floor * TOKEN)
    profile = build_profiles(experiment.clients.profiles, clients, experiment.run.seed)[client]
    sizes = None if data is None else np.asarray(data.sizes, np.float64)
    joining = BeforeJoining(
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
    terms = _with_bond(experiment, _terms(mechanism, joining))
    most = joining.at_stake if terms.most is None else min(joining.at_stake, terms.most)
    exit = experiment.clients.leaving
    leaves = () if exit == ExitSection() else (said("if_it_leaves", exit),)
    amounts = {"grant": grant, "debt": debt, "most": most, "most_round": terms.most_round}
    return Prospect(
        mechanism=mechanism.name,
        client=client,
        rounds=joining.rounds,
        pays=(*terms.pays, *leaves),
        gains=terms.gains,
        gives=_gives(experiment, mechanism, data, clients, client),
        unknown=(*([] if counted else [said("unknown_client", client)]), *terms.unknown, *_unknown(terms.money, why)),
        **(amounts if terms.money else {}),
    )


def _terms(mechanism: Mechanism, joining: BeforeJoining) -> Terms:
    """Return the terms of the mechanism's payment rule; where it has none, terms with the bound of any account.

    A rule may be the user's own, so what it returns is checked. UserError says what is wrong with it.
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
    return Declared[Terms](Terms).check(terms, UserError, f"mechanism.settle: {name}: {{}}")


def _with_bond(experiment: Experiment, terms: Terms) -> Terms:
    """Return the terms with what it takes to prove a size, if the experiment asks for that."""
    sizes = experiment.of_wing("sizes")
    if sizes is None or not sizes.proved:
        return terms
    bond = round(sizes.bond * TOKEN)
    return replace(
        terms,
        pays=(said("bond_for_size", bond, sizes.leaves, sizes.repeats + 1), *(terms.pays if terms.money else ())),
        most=bond if not terms.money else None if terms.most is None else terms.most + bond,
        most_round=None if terms.most_round is None else terms.most_round + bond,
        money=True,
    )


def _data(experiment: Experiment) -> tuple[FederatedData | None, str]:
    """Return the experiment's data and ""; None and the reason if they are not here."""
    try:
        return build_data(experiment.data.model_copy(update={"download": False})), ""
    except UserError as wrong:
        return None, wrong.lines[0] if wrong.lines else "the data cannot be loaded"


def _agreed(experiment: Experiment, client: int, clients: int, profile: Mapping[str, Any]) -> int | None:
    """Return the most that the client's policy agrees to pay in round 0, in units; None if it names no amount.

    A policy may be the user's own: anything but a whole number of at least 0 counts as no amount.
    """
    policy = call(*named(experiment.clients.policy, "clients.policy", POLICIES), "clients.policy")
    authorise = getattr(policy, "authorise", None)
    if authorise is None:
        return None
    me = Me(client, clients, experiment.run.seed, experiment.train.recipe, 0)
    agreed = authorise(me, 0, {"profile": profile, "round": 0})
    return agreed if type(agreed) is int and agreed >= 0 else None


def _gives(
    experiment: Experiment, mechanism: Mechanism, data: FederatedData | None, clients: int, client: int
) -> tuple[str, ...]:
    """Return sentences on what a client gives: how often it trains, what it sends, and how large that is."""
    seats, section = mechanism.most_seats(clients), experiment.federation
    found = [said("seats_of", seats, None if data is None else clients)] if seats < clients else []
    found.append(said("what_is_sent", section.secure is not None, section.private is not None))
    if data is not None:
        row = build_model(experiment, data)[1]
        found.append(said("size_sent", 4e-6 * row.numel()))  # four bytes a parameter
        if (guard := settled(experiment, np.asarray(data.sizes)).get("federation.private")) is not None:
            found.append(_before(experiment, guard.terms, client, np.asarray(data.sizes)))
            found += [f"{line.removeprefix('warning: ')}." for line in guard.terms.of(client).drowned()]
    return tuple(found)


def _unknown(money: bool, why: str) -> tuple[str, ...]:
    """Return sentences on what cannot be known before a run; ``why`` the data are not here, or ""."""
    told = [said("unknown_gain"), said("unknown_data", why) if why else "", said("unknown_worth") if money else ""]
    return tuple(line for line in told if line)


# ---- what privacy costs


def _before(experiment: Experiment, rule: Any, client: int, sizes: Ints) -> str:
    """Return what privacy costs a client, said before it joins.

    Args:
        experiment: the experiment.
        rule: what clients let out, with the noise.
        client: the client's number.
        sizes: ``[N]``, how many samples each client has.
    """
    mine, recipe, rounds, lasts = rule.of(client), experiment.train.recipe, experiment.run.rounds, None
    if mine.noise is not None:
        one = mine.update(int(sizes[client]), recipe)
        lasts = max(n for n in range(rounds + 1) if mine.opened().affords(one * n))
    return said("privacy_before", rule.unit, mine.epsilon, mine.delta, lasts, rounds)
