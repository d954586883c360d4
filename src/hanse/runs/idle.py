"""Finds settings of an experiment that have no effect. A run warns of each.

They are not refused, because one file may serve several runs: all mechanisms of a sweep, a simulation and a deployment,
or a run that is continued for more rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from hanse.core.part import Mechanism
from hanse.federation.behaviour import Attacker, Behaviour, Joiner, Leaver
from hanse.mechanisms.mechanism_table import without_effect
from hanse.runs.config import Experiment


def idle(experiment: Experiment) -> list[str]:
    """Return a warning for each setting that changes nothing, as far as the settings alone say."""
    return [*of_replaced_parts(experiment), *of_absent_money(experiment, experiment.mechanism.built)]


def of_replaced_parts(experiment: Experiment) -> list[str]:
    """Return a warning for each option of the mechanism that only parts use that others replace."""
    table = experiment.mechanism.table
    return [
        f"warning: mechanism.{option}: {table[option]!r}: has no effect: the part that uses it is replaced"
        for option in without_effect(table)
        # a run's file has the default, or all clients where there are fewer
        if option != "clients_per_round" or table[option] != experiment.data.clients
    ]


def of_absent_money(experiment: Experiment, mechanism: Mechanism) -> list[str]:
    """Return a warning for each setting of the books that is changed although the mechanism moves no tokens."""
    if mechanism.settle is not None or experiment.sizes.proved:
        return []
    asked = [("clients", experiment.clients, ("grant", "vests")), ("ledger", experiment.ledger, ("url", "floor"))]
    return [
        f"warning: {section}.{key}: {getattr(given, key)!r}: has no effect: this mechanism moves no tokens"
        for section, given, keys in asked
        for key in keys
        if getattr(given, key) != type(given).model_fields[key].get_default()
    ]


def of_absent_network(experiment: Experiment) -> list[str]:
    """Return a warning for a setting of messages, in a simulation."""
    if not experiment.federation.half_precision:
        return []
    return ["warning: federation.half_precision: true: has no effect in a simulation, where no model travels"]


def of_absent_rounds(experiment: Experiment, behaviours: Sequence[Behaviour]) -> list[str]:
    """Return a warning for each behaviour that begins after the last round."""
    rounds = experiment.run.rounds
    starts = {f"attacker.since: {b.since}": b.since for b in behaviours if isinstance(b, Attacker)}
    starts |= {f"{type(b).__name__.lower()}.at: {b.at}": b.at for b in behaviours if isinstance(b, Joiner | Leaver)}
    return [
        f"warning: behaviour.{name}: never begins: the last round is {rounds - 1}"
        for name, start in starts.items()
        if start >= rounds
    ]
