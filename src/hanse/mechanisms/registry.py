"""Finds parts and mechanisms by name or import path, and checks their hyper-parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from hanse.errors import UserError, import_path, named, nearest
from hanse.mechanisms import baselines, deploy, personalised, select, settle, train, value, weigh
from hanse.mechanisms.fedgen import Distilled, fedgen, gtfedgen
from hanse.mechanisms.greedyfed import greedyfed
from hanse.mechanisms.gtflat import gtfedavg, gtfedprox
from hanse.mechanisms.ipfl import ModelAndCentre, Staying, ipfl
from hanse.mechanisms.part import Mechanism, Part
from hanse.mechanisms.pifl import pifl, tiff
from hanse.mechanisms.select.tiers import PretrainedTiers, Tiers
from hanse.mechanisms.settle.tokens import ServerTokens, Tokens
from hanse.mechanisms.tiers import TierModels
from hanse.mechanisms.value_held import FirstOrderAtClients

__all__ = ["MECHANISMS", "PARTS", "SLOTS", "build_mechanism", "call", "carried", "defaults", "unmet_needs"]

PUBLISHED: Sequence[Callable[..., Mechanism]] = (
    baselines.fedavg, baselines.fedprox, gtfedavg, gtfedprox, fedgen, gtfedgen, greedyfed, baselines.ucb,
    baselines.s_fedavg, baselines.power_of_choice, baselines.oort, baselines.set_aware, personalised.scaffold,
    personalised.ditto, personalised.fedamp, personalised.heur_fedamp, personalised.pfedgraph, personalised.fedfomo,
    personalised.cfl, personalised.ifca, personalised.fedsoft, ipfl, pifl, tiff, baselines.local,
    baselines.centralised,
)  # fmt: skip
MECHANISMS: dict[str, Callable[..., Mechanism]] = {make.__name__: make for make in PUBLISHED}
PARTS: dict[str, dict[str, Callable[..., Any]]] = {
    "select": {
        "everyone": select.Everyone,
        "the_one": select.TheOne,
        "uniform": select.Uniform,
        "round_robin": select.RoundRobin,
        "greedy": select.Greedy,
        "ucb": select.UCB,
        "s_fedavg": select.SFedAvg,
        "power_of_choice": select.PowerOfChoice,
        "oort": select.Oort,
        "set_aware": select.SetAware,
        "staying": Staying,
        "tiers": Tiers,
        "pretrained_tiers": PretrainedTiers,
    },
    "train": {
        "shared": train.SharedModel,
        "proximal": train.Proximal,
        "own": train.OwnModels,
        "distilled": Distilled,
        "tiers": TierModels,
        "controlled": train.Controlled,
        "ditto": train.Ditto,
        "towards_centres": train.TowardsCentres,
        "from_centres": train.FromCentres,
        "sent": train.SentModels,
        "cluster_models": train.ClusterModels,
        "soft_clusters": train.SoftClusters,
        "model_and_centre": ModelAndCentre,
    },
    "weigh": {
        "samples": weigh.BySamples,
        "uniform": weigh.UniformWeights,
        "gtflat": weigh.GTFLAT,
        "gtflat_validation": weigh.ValidationGTFLAT,
        "inverse_distance": weigh.InverseDistance,
        "control_variates": weigh.ControlVariates,
        "fedamp": weigh.FedAMP,
        "heur_fedamp": weigh.HeurFedAMP,
        "pfedgraph": weigh.PFedGraph,
        "fedfomo": weigh.FedFomo,
        "cfl": weigh.CFL,
        "soft_shares": weigh.SoftShares,
        "imports": weigh.Imports,
    },
    "value": {
        "gtg": value.GTG,
        "exact": value.Exact,
        "monte_carlo": value.MonteCarlo,
        "leave_one_out": value.LeaveOneOut,
        "banzhaf": value.Banzhaf,
        "first_order": value.FirstOrder,
        "first_order_clients": FirstOrderAtClients,
    },
    "settle": {
        "tokens": Tokens,
        "server_tokens": ServerTokens,
        "market": settle.Payments,
        "utilities": settle.Utilities,
    },
    "deploy": {
        "one_shot": deploy.OneShot,
        "server": deploy.ServerModel,
        "own": deploy.OwnModel,
        "cluster": deploy.ClusterModel,
    },
}
SLOTS = tuple(PARTS)

# what a need is called when it is missing
REASONS = {
    "bids": "an auction that clients bid at (mechanism.settle = 'tokens' or 'server_tokens')",
    "tiers": "several models, one for each tier (mechanism.train = 'tiers')",
    "validation": "a validation set at the server (data.validation > 0)",
    "values": "a value part (mechanism.value) that says what each update was worth",
    "groups": "groups of several seats with one target row; here every client trains a row of its own",
    "clients": "several clients; with data.partition = 'pooled' there is one ('centralised' trains it)",
    "head": "a classifier that ends in a linear layer, whose input the generator makes",
    "client_validation": "a validation share at each client (data.client_validation > 0)",
    "own_models": "a model of its own for each client beside what it starts from (mechanism.train = 'ditto')",
    "own_handed_out": "a deploy part that lets clients hold their own models (mechanism.deploy = 'own')",
    "sent_rows": "a row a client that the server sees (mechanism.train = 'sent')",
    "rows_exchanged": "a weigh part that mixes the clients' rows (mechanism.weigh = 'fedfomo')",
    "centres": "a centre a client (mechanism.train = 'towards_centres')",
    "centres_mixed": "a weigh part that makes the clients' centres (mechanism.weigh = 'fedamp')",
    "cluster_losses": "clients that are asked what each cluster's model loses (mechanism.train = 'cluster_models')",
    "clusters_handed_out": "a deploy part that hands out the clusters' models (mechanism.deploy = 'cluster')",
    "importance": "clients that say how important each centre is (mechanism.train = 'soft_clusters')",
    "soft_shares": "a weigh part that averages by importance (mechanism.weigh = 'soft_shares')",
    "variates": "control variates in the table (mechanism.train = 'controlled')",
    "variates_updated": "a weigh part that updates the control variates (mechanism.weigh = 'control_variates')",
    "market": "a market of models (mechanism.weigh = 'imports')",
    "market_rows": "a model and a centre a client, and the initial model (mechanism.train = 'model_and_centre')",
    "pooled": "all data at one client (data.partition = 'pooled')",
}


def defaults(make: Callable[..., Any]) -> dict[str, Any]:
    """Return the default of each parameter of a part or mechanism."""
    parameters = inspect.signature(make).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def call(make: Callable[..., Any], options: Mapping[str, Any], where: str, also: Sequence[str] = ()) -> Any:
    """Call a part or mechanism factory with checked options. Raises UserError with a line for each wrong one.

    ``also`` are keys that are allowed at the same place, for the hint only.
    """
    parameters = inspect.signature(make).parameters
    # a dataclass may inherit fields from another module, whose names its own __init__ does not know
    annotated = make.__init__ if inspect.isclass(make) and not is_dataclass(make) else make
    hints = get_type_hints(annotated, include_extras=True)
    lines, checked = [], {}
    for name, given in options.items():
        if name not in parameters:
            lines.append(f"{where}.{name}: no such key{nearest(name, [*parameters, *also])}")
            continue
        try:
            checked[name] = TypeAdapter(hints.get(name, Any)).validate_python(given, strict=True)
        except ValidationError as wrong:
            reasons = "; or ".join(dict.fromkeys(e["msg"] for e in wrong.errors()))
            lines.append(f"{where}.{name}: {given!r}: {reasons[0].lower()}{reasons[1:]}")
    if lines:
        raise UserError(*lines)
    return make(**checked)


def build_part(slot: str, given: Any) -> Part | None:
    """Return the part that a name, an import path or a table with ``name`` and options stands for."""
    if slot in ("value", "settle") and given in ("none", {"name": "none"}):
        return None
    part: Part = call(*named(given, f"mechanism.{slot}", PARTS[slot]), f"mechanism.{slot}")
    return part


def _options(part: Any) -> dict[str, Any]:
    return {field.name: getattr(part, field.name) for field in fields(part)}


def carried(make: Callable[..., Any], options: Mapping[str, Any], part: Callable[..., Any]) -> dict[str, Any]:
    """Return what a replaced part takes over from its mechanism: options of the same name that were given, and how
    many clients a round; the same name need not mean the same thing, so no other default carries over.
    """
    known = {k: v for k, v in defaults(make).items() if k == "clients_per_round"} | dict(options)
    return {k: known[k] for k in defaults(part) if k in known}


def build_mechanism(table: Mapping[str, Any]) -> Mechanism:
    """Return the mechanism of an experiment's ``[mechanism]`` table: a name, its options, and replaced parts by
    decision.

    A part's table without a name changes options of the mechanism's own part. Options of the mechanism that a replaced
    part also has (``clients_per_round``) carry over to it.
    Raises UserError that lists every wrong key.
    """
    name = table["name"]
    make = MECHANISMS.get(name) or import_path(name, "mechanism.name", MECHANISMS)
    options = {k: v for k, v in table.items() if k != "name" and k not in SLOTS}
    lines: list[str] = []
    mechanism: Mechanism | None = None
    replaced: dict[str, Any] = {}
    try:
        mechanism = call(make, options, "mechanism", ("name", *SLOTS))
    except UserError as wrong:
        lines += wrong.lines
    for slot in SLOTS:
        if slot not in table:
            continue
        given = {"name": table[slot]} if isinstance(table[slot], str) else table[slot]
        try:
            own = getattr(mechanism, slot, None)
            if own is not None and isinstance(given, Mapping) and "name" not in given:
                replaced[slot] = call(type(own), _options(own) | dict(given), f"mechanism.{slot}")
                continue
            if mechanism is not None and isinstance(given, Mapping) and given.get("name") in PARTS[slot]:
                shared = carried(make, options, PARTS[slot][given["name"]])
                given = shared | dict(given)
            replaced[slot] = build_part(slot, given)
        except UserError as wrong:
            lines += wrong.lines
    if lines or mechanism is None:
        raise UserError(*lines)
    return replace(mechanism, **replaced)


def unmet_needs(mechanism: Mechanism, given: frozenset[str]) -> list[str]:
    """Return a line for each need that neither the experiment (``given``) nor another part meets."""
    parts = mechanism.parts()
    there = given.union(*(p.gives for p in parts.values()))
    return [
        f"mechanism.{slot}: {type(part).__name__} needs {REASONS.get(need, need)}"
        for slot, part in parts.items()
        for need in sorted(part.needs - there)
    ]
