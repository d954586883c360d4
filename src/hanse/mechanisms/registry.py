"""Finds mechanisms and parts by name or import path, and checks that they fit together.

:func:`build_mechanism` turns the ``[mechanism]`` table of an experiment into a :class:`hanse.core.part.Mechanism`.
:func:`unmet_needs` and :func:`refuse_late` then say, before round 0, what cannot work and why. Register a new part or
mechanism by a line in ``PARTS`` or ``PUBLISHED``. Your own needs no line: an import path (``"package.module:Name"``)
works like a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from hanse.base.errors import UserError, import_path, named, nearest
from hanse.base.factories import call, defaults, misspelt
from hanse.base.files import table as table_in
from hanse.core.calling import method_of
from hanse.core.mixing import writers
from hanse.core.part import GROUPS, AggregatePart, Kind, Mechanism, Part, SettlePart, Size, in_slots
from hanse.mechanisms import baselines, deploy, robust, select, server_steps, train, value, weigh
from hanse.mechanisms.by_value import ByValue
from hanse.mechanisms.cfl import CFL, cfl
from hanse.mechanisms.ditto import Ditto, ditto
from hanse.mechanisms.fedamp import FedAMP, HeurFedAMP, TowardsCentres, fedamp, heur_fedamp
from hanse.mechanisms.fedfomo import FedFomo, fedfomo
from hanse.mechanisms.fedgen import FedGen, fedgen, gtfedgen
from hanse.mechanisms.fedsoft import FedSoft, fedsoft
from hanse.mechanisms.greedyfed import greedyfed
from hanse.mechanisms.gtflat import GTFLAT, GTFLATSelect, ValidationGTFLAT, gtfedavg, gtfedprox
from hanse.mechanisms.ifca import IFCA, ifca
from hanse.mechanisms.ipfl import IPFL, Utilities, ipfl, ipfl_posted
from hanse.mechanisms.pfedgraph import FromCentres, PFedGraph, pfedgraph
from hanse.mechanisms.pifl import OneShot, PretrainedTiers, ServerTokens, TierModels, Tiers, Tokens, pifl, tiff
from hanse.mechanisms.scaffold import Scaffold, scaffold
from hanse.mechanisms.set_aware import SetAware
from hanse.mechanisms.staleness import ByStaleness

# every mechanism that has a name; its name in a file is that of the function
PUBLISHED: Sequence[Callable[..., Mechanism]] = (
    baselines.fedavg, baselines.fedprox, gtfedavg, gtfedprox, fedgen, gtfedgen, greedyfed, baselines.ucb,
    baselines.s_fedavg, baselines.power_of_choice, baselines.oort, baselines.set_aware, scaffold, ditto, fedamp,
    heur_fedamp, pfedgraph, fedfomo, cfl, ifca, fedsoft, ipfl, ipfl_posted, pifl, tiff, baselines.local,
    baselines.centralised,
)  # fmt: skip
MECHANISMS: dict[str, Callable[..., Mechanism]] = {make.__name__: make for make in PUBLISHED}
# every part that has a name, by the slots that it can fill
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
        "set_aware": SetAware,
        "gtflat": GTFLATSelect,
        "ipfl": IPFL,
        "tiers": Tiers,
        "pretrained_tiers": PretrainedTiers,
    },
    "train": {
        "shared": train.SharedModel,
        "proximal": train.Proximal,
        "own": train.OwnModels,
        "fedgen": FedGen,
        "tiers": TierModels,
        "scaffold": Scaffold,
        "ditto": Ditto,
        "towards_centres": TowardsCentres,
        "from_centres": FromCentres,
        "fedfomo": FedFomo,
        "ifca": IFCA,
        "fedsoft": FedSoft,
        "ipfl": IPFL,
    },
    "weigh": {
        "samples": weigh.BySamples,
        "uniform": weigh.UniformWeights,
        "samples_over_probability": weigh.SamplesOverProbability,
        "gtflat": GTFLAT,
        "gtflat_validation": ValidationGTFLAT,
        "inverse_distance": weigh.InverseDistance,
        "inverse_variance": weigh.InverseVariance,
        "median": robust.Median,
        "trimmed_mean": robust.TrimmedMean,
        "geometric_median": robust.GeometricMedian,
        "clipped": robust.Clipped,
        "krum": robust.Krum,
        "multi_krum": robust.MultiKrum,
        "fltrust": robust.FLTrust,
        "fedavgm": server_steps.FedAvgM,
        "fedadam": server_steps.FedAdam,
        "fedyogi": server_steps.FedYogi,
        "fedadagrad": server_steps.FedAdagrad,
        "fednova": server_steps.FedNova,
        "q_fedavg": server_steps.QFedAvg,
        "by_staleness": ByStaleness,
        "scaffold": Scaffold,
        "fedamp": FedAMP,
        "heur_fedamp": HeurFedAMP,
        "pfedgraph": PFedGraph,
        "fedfomo": FedFomo,
        "cfl": CFL,
        "fedsoft": FedSoft,
        "ipfl": IPFL,
    },
    "value": {
        "gtg": value.GTG,
        "mixture": value.Mixture,
        "exact": value.Exact,
        "monte_carlo": value.MonteCarlo,
        "leave_one_out": value.LeaveOneOut,
        "banzhaf": value.Banzhaf,
        "path": value.Path,
        "group_path": value.GroupPath,
        "first_order": value.FirstOrder,
        "first_order_clients": value.FirstOrderAtClients,
    },
    "settle": {
        "tokens": Tokens,
        "server_tokens": ServerTokens,
        "ipfl": IPFL,
        "utilities": Utilities,
        "by_value": ByValue,
    },
    "deploy": {
        "one_shot": OneShot,
        "server": deploy.ServerModel,
        "own": deploy.OwnModel,
        "ifca": IFCA,
    },
}
SLOTS = tuple(PARTS)


def word_of(part: object, slot: str) -> str:
    """Return what an experiment's file calls a part, in quotes; one that has no name there is called by its class."""
    for parts in (PARTS[slot], *PARTS.values()):
        for name, make in parts.items():
            if make is type(part):
                return f"'{name}'"
    return type(part).__name__


# what each need is, in words that end a line "... needs"
REASONS = {
    "bids": "an auction that clients bid at (mechanism.settle = 'tokens' or 'server_tokens')",
    "validation": "a validation set at the server (data.validation > 0)",
    "values": "a value part (mechanism.value) that says what each update was worth",
    "probabilities": "a selector that draws at random and hands on its probabilities (mechanism.select = 's_fedavg')",
    "groups": "groups of several seats with one target row; here every client trains a row of its own",
    "clients": "several clients; with data.partition = 'pooled' there is one ('centralised' trains it)",
    "head": "a classifier that ends in a linear layer, whose input the generator makes",
    "client_validation": "a validation share at each client (data.client_validation > 0)",
    "trade": "a market of models (mechanism.weigh = 'ipfl')",
    "root": "a root set at the server, for itself to train on (data.root > 0)",
    "pooled": "all data at one client (data.partition = 'pooled')",
    "secure": "sums of groups of updates in the place of single ones (federation.secure)",
    "noise": "clients that say how much noise their updates have (federation.private without federation.secure or "
    "late updates)",
    "losses": "each client's training loss",
}

# what only some training loops, apps or models lack: :mod:`hanse.mechanisms.demands` looks at the first two, and
# :func:`hanse.runs.refusals.no_slope` at the third
CHECKED_APART = frozenset({"penalty", "sgd", "slope"})


def carried(make: Callable[..., Any], options: Mapping[str, Any], part: Callable[..., Any]) -> dict[str, Any]:
    """Return the options that a replaced part takes over from its mechanism.

    These are the options of the same name that the user gave to the mechanism, and the mechanism's default of
    ``clients_per_round``. No other default carries over, because the same name need not mean the same thing.

    Args:
        make: the function or class that makes the mechanism.
        options: the options that were given to the mechanism.
        part: the class that makes the part.
    """
    standard = {k: v for k, v in defaults(make).items() if k == "clients_per_round" and v is not None}
    known = standard | dict(options)
    return {k: known[k] for k in defaults(part) if k in known}


@dataclass
class _NamedPart:
    """A part that a ``[mechanism]`` table names, while the table is read.

    Attributes:
        make: makes the part.
        options: its options so far.
        given: by option, the slot under which the table gives it.
        slots: the slots that the part is to fill.
    """

    make: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    slots: list[str] = field(default_factory=list)


def build_mechanism(table: Mapping[str, Any]) -> Mechanism:
    r"""Return the mechanism of an experiment's ``[mechanism]`` table.

    The table has the name of a mechanism (or its import path), its options, and replaced parts by slot. A part is a
    name, an import path, or a table with a name and options. A table without a name changes options of the mechanism's
    own part in this slot. ``"none"`` leaves the slot value or settle empty.

    Options of the mechanism that a replaced part also has, such as ``clients_per_round``, carry over to it. A part that
    is named in two slots is one part, and its options may be given under either slot. The same holds for a mechanism's
    part that fills several slots.

    Raises:
        UserError: keys are wrong. There is a line for each.

    Examples:
        GreedyFed with another rule for the average, and a table with two mistakes:

        >>> mechanism = build_mechanism({"name": "greedyfed", "clients_per_round": 4, "weigh": "median"})
        >>> mechanism.select.clients_per_round
        4
        >>> mechanism.weigh
        Median()
        >>> from hanse.base.errors import UserError
        >>> try:
        ...     build_mechanism({"name": "fedprox", "mu": -1.0, "weigh": {"name": "krum", "g": 1}})
        ... except UserError as wrong:
        ...     print(*wrong.lines, sep="\n")
        mechanism.mu: -1.0: input should be greater than or equal to 0
        mechanism.weigh.g: no such key; allowed: f
    """
    name = table["name"]
    make = MECHANISMS.get(name) or import_path(name, "mechanism.name", MECHANISMS)
    options = {k: v for k, v in table.items() if k != "name" and k not in SLOTS}
    lines = list[str]()
    mechanism: Mechanism | None = None
    try:
        mechanism = call(make, options, "mechanism", ("name", *SLOTS))
    except UserError as wrong:
        lines += wrong.lines
    # Go on after a wrong key, so the user hears of all of them at once.
    wanted: dict[Any, _NamedPart | None] = {}
    for slot in SLOTS:
        if slot in table:
            try:
                _want(wanted, slot, table, mechanism, make, options)
            except UserError as wrong:
                lines += wrong.lines
    replaced: dict[str, Any] = {}
    for slot, one in wanted.items():
        try:
            part = None if one is None else _made(one.make, one.options, f"mechanism.{one.slots[0]}", one.slots[0])
            replaced |= dict.fromkeys([slot] if one is None else one.slots, part)
        except UserError as wrong:
            lines += wrong.lines
    if not lines and mechanism is not None:
        mechanism = replace(mechanism, **replaced)
        lines += _no_part(mechanism)
    if lines or mechanism is None:
        raise UserError(*lines)
    return mechanism


def built_in_parts(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the built-in parts of an experiment's mechanism, by slot; none if it cannot be built from its table alone.

    Args:
        config: the run's ``config.toml``.
    """
    given = table_in(config, "mechanism")
    if not isinstance(given.get("name"), str):
        return {}
    foreign = [slot for slot in SLOTS if slot in given and ":" in str(table_in(given, slot).get("name", given[slot]))]
    try:
        mechanism = build_mechanism({key: value for key, value in given.items() if key not in foreign})
    except (UserError, TypeError, ValueError):
        return {}
    return {slot: part for slot, part in mechanism.slots().items() if slot not in foreign}


def _want(
    wanted: dict[Any, _NamedPart | None],
    slot: str,
    table: Mapping[str, Any],
    mechanism: Mechanism | None,
    make: Callable[..., Mechanism],
    options: Mapping[str, Any],
) -> None:
    """Add what the table says of a slot to ``wanted``. Raises UserError.

    The key in ``wanted`` is what makes the part, so a part named in two slots is one entry; for a slot that is to
    be empty it is the slot. The mechanism's own part keeps the other slots that it fills, except for those that the
    table names.
    """
    given = table[slot]
    if slot in ("value", "settle") and given in ("none", {"name": "none"}):
        wanted[slot] = None
        return
    own = None if mechanism is None else mechanism.slots().get(slot)
    if isinstance(given, Mapping) and "name" not in given and own is not None:
        factory: Callable[..., Any] = type(own)
        changes = dict(given)
    else:
        factory, changes = named(given, f"mechanism.{slot}", PARTS[slot])
    also: list[str] = []
    if mechanism is not None and own is not None and type(own) is factory:
        # what is not given stays as the mechanism has it
        start = {name: getattr(own, name) for name in defaults(factory)}
        also = mechanism.standing(own)
    else:
        # nothing carries over to a part of the user's own, whose options may mean anything
        start = carried(make, options, factory) if factory in PARTS[slot].values() else {}
    one = wanted.setdefault(factory, _NamedPart(factory, start))
    assert one is not None
    for key, option in changes.items():
        before = one.given.get(key)
        if before is not None and one.options[key] != option:
            raise UserError(
                f"mechanism.{slot}.{key}: {option!r}: is {one.options[key]!r} in mechanism.{before}, and both are one "
                "part: must be the same, or given once"
            )
        one.options[key], one.given[key] = option, slot
    one.slots += [s for s in dict.fromkeys([slot, *also]) if s not in one.slots and (s == slot or s not in table)]


def _made(make: Callable[..., Any], options: Mapping[str, Any], where: str, slot: str) -> Any:
    """Return a part with checked options. Raises UserError with a line for each that is wrong.

    The option ``of`` of a part that is made of another rule names a part of the same slot, or is a table that does.
    """
    if "of" not in options or not is_rule(defaults(make).get("of")):
        return call(make, options, where)
    of, lines = options["of"], list[str]()
    part: Any = None
    try:
        part = call(make, {key: option for key, option in options.items() if key != "of"}, where)
    except UserError as wrong:
        lines += wrong.lines
    if not is_rule(of):
        try:
            factory, changes = named(of, f"{where}.of", PARTS[slot])
            of = _made(factory, changes, f"{where}.of", slot)
        except UserError as wrong:
            lines += wrong.lines
    if lines:
        raise UserError(*lines)
    try:
        return replace(part, of=of)
    except UserError as wrong:  # the part says why it cannot be made of that
        raise UserError(*(f"{where}.{line}" for line in wrong.lines)) from None


def is_rule(option: Any) -> bool:
    """Say whether an option of a part is itself a part that makes aggregates. (iPFL's option ``of`` is only a word.)"""
    return hasattr(option, "aggregate")


def rules(part: Any) -> Iterator[Any]:
    """Yield a weigh part and the rules that it wraps, from the outside in."""
    while part is not None:
        yield part
        part = of if is_rule(of := getattr(part, "of", None)) else None


# the methods that the part in a slot must have; of those for weigh, one is enough
METHODS = {
    "select": ("select",),
    "train": ("blocks", "seats"),
    "weigh": ("aggregate", "weigh"),
    "value": ("value",),
    "settle": ("settle",),
    "deploy": ("deploy",),
}


# methods that any part may have
OTHER_METHODS = ("init", "home", "asks", "sends", "learn", "figures", "tells", "terms", "unfit")


def _no_part(mechanism: Mechanism) -> list[str]:
    """Return a line for each part that lacks the methods of its slot, or declares what no part can declare."""
    lines = []
    for slot, part in mechanism.slots().items():
        lines += [f"mechanism.{slot}: {type(part).__name__}: {wrong}" for wrong in _misdeclared(slot, part)]
        there = [name for name in METHODS[slot] if method_of(part, name) is not None]
        if len(there) == len(METHODS[slot]) or (slot == "weigh" and there):
            continue
        missing = "' nor '".join(METHODS[slot]) if slot == "weigh" else next(m for m in METHODS[slot] if m not in there)
        lines.append(f"mechanism.{slot}: {type(part).__name__} has no method '{missing}', so it cannot stand here")
    return lines


def _misdeclared(slot: str, part: Part) -> Iterator[str]:
    """Yield what is wrong with a part's declarations: wrong types, unknown slots, misspelt methods."""
    for name in ("needs", "gives", "reads", "fills"):
        said: Any = getattr(part, name, frozenset())
        by_slot = said if isinstance(said, Mapping) else {slot: said}
        for where, names in by_slot.items():
            if where not in SLOTS:
                yield f"{name}: there is no slot '{where}'{nearest(str(where), SLOTS)}"
            if not isinstance(names, frozenset | set) or not all(isinstance(one, str) for one in names):
                yield f"{name}: {names!r}: must be a set of names, as in frozenset({{'values'}}), or one for each slot"
    if in_slots(getattr(part, "fills", frozenset()), [slot]) and method_of(part, "weigh") is None:
        yield "fills: needs a method 'weigh' that makes these rows"
    wrong = misspelt(type(part), [*(name for names in METHODS.values() for name in names), *OTHER_METHODS])
    if wrong is not None:
        yield wrong
    kind = getattr(part, "kind", AggregatePart.kind)
    if slot == "weigh" and method_of(part, "aggregate") is not None and kind not in get_args(Kind):
        yield f"kind: {kind!r}: must be 'average', 'affine' or 'again'"
    if (blocks := method_of(part, "blocks")) is not None and slot == "train":
        try:
            tuple(blocks())
        except ValueError as refused:
            yield str(refused)


@dataclass(frozen=True)
class Unmet:
    """Something that a part needs and does not get.

    Attributes:
        slot: the slot.
        part: what the experiment's file calls the part.
        reason: what the part needs, in words that complete the sentence "The part needs ...".
    """

    slot: str
    part: str
    reason: str

    @property
    def line(self) -> str:
        """The whole line, as a user sees it."""
        return f"mechanism.{self.slot}: {self.part} needs {self.reason}"


def unmet_needs(mechanism: Mechanism, given: frozenset[str]) -> list[Unmet]:
    """Return what the parts of a mechanism need and do not get.

    There are four kinds: needs that neither the experiment nor another part meets; rows that a part reads or fills and
    that the train part does not lay out; rows that the train part reads and no part fills; and a value part that cannot
    judge the rule in the weigh slot.

    Args:
        mechanism: the mechanism.
        given: the needs that the experiment meets, such as "validation" or "clients" (see ``REASONS``).
    """
    slots = mechanism.slots()
    there = (given | CHECKED_APART).union(*(in_slots(part.gives, [slot]) for slot, part in slots.items()))
    found = [
        Unmet(slot, word_of(part, slot), _missing(need, slots))
        for slot, part in slots.items()
        for need in sorted(in_slots(part.needs, [slot]) - there)
    ]
    found += _not_taken(mechanism)
    laid = {block.name for block in mechanism.train.blocks()}
    for slot, part in slots.items():
        named = in_slots(part.fills, [slot]) - {GROUPS}
        if named - in_slots(part.reads, [slot]) and not named & laid:
            named -= in_slots(part.reads, [slot])
            rows = "', '".join(sorted(named))
            found.append(
                Unmet(slot, word_of(part, slot), f"rows '{rows}' to fill ({_parts_with('train', min(named))})")
            )
        for name in sorted(in_slots(part.reads, [slot]) - laid):
            found.append(Unmet(slot, word_of(part, slot), f"rows '{name}' ({_parts_with('train', name)})"))
    filled = frozenset[str]().union(*(in_slots(p.fills, mechanism.standing(p)) for p in writers(mechanism).values()))
    for name in sorted((in_slots(mechanism.train.reads, ["train"]) & laid) - filled):
        reason = f"rows '{name}' that are made anew ({_parts_with('weigh', name)})"
        found.append(Unmet("train", word_of(mechanism.train, "train"), reason))
    # a part in several slots says everything several times: keep the first of each
    return list({(lack.part, lack.reason): lack for lack in reversed(found)}.values())[::-1]


def _not_taken(mechanism: Mechanism) -> list[Unmet]:
    """Return that the value part cannot judge an aggregate of the kind "again", if that is so."""
    weigh, value = mechanism.weigh, mechanism.value
    if value is None or getattr(weigh, "kind", "affine") != "again" or method_of(weigh, "aggregate") is None:
        return []
    gives = in_slots(value.gives, ["value"])
    if "again" in gives or ("parted" in gives and getattr(weigh, "parted", False)):
        return []
    rule, of_game = (
        word_of(weigh, "weigh"),
        " of game 'average'" if getattr(value, "game", "average") != "average" else "",
    )
    reason = (
        f"a weighted average of the updates (a part without it says gives = {{'again'}}); {rule} in mechanism.weigh is "
        "applied again to the updates of each coalition, and its row is no such mean "
        f"('exact', 'gtg', 'monte_carlo', 'leave_one_out' and 'banzhaf'{of_game} go with it)"
    )
    return [Unmet("value", word_of(value, "value"), reason)]


def refuse_late(mechanism: Mechanism) -> list[str]:
    """Return a line for each part that cannot take updates of earlier rounds.

    Three kinds of parts cannot: parts that pay for updates, systems that compute rows from what they sent in the same
    round, and weights by this round's drawing probabilities, which late clients do not have. A part that ``gives``
    "late" is not refused.
    """
    found = []
    for slot, part in mechanism.parts().items():
        standing = mechanism.standing(part)
        pays = "settle" in standing or SettlePart in type(part).__mro__
        makes = "train" in standing and in_slots(part.fills, standing)
        draws = "weigh" in standing and "probabilities" in in_slots(part.needs, standing)
        if (pays or makes or draws) and "late" not in in_slots(part.gives, standing):
            why = "makes rows from this round's" if makes else "weighs by the probabilities of this round's draw"
            why = "pays for updates in the round in which they were ordered" if pays else why
            found.append(f"mechanism.{slot}: {word_of(part, slot)} {why}, and does not say that it takes late ones")
    return found


def refuse_sums(mechanism: Mechanism) -> list[str]:
    """Return a line for each part that needs single updates although the server sees only sums of groups of them.

    A part that does not need single updates ``gives`` "sums".
    """
    found = []
    for slot, part in mechanism.parts().items():
        if "sums" not in in_slots(part.gives, mechanism.standing(part)):
            gives: dict[str, Any] = {name: getattr(make, "gives", frozenset()) for name, make in PARTS[slot].items()}
            fitting = sorted(name for name, given in gives.items() if "sums" in in_slots(given, [slot]))
            found.append(
                f"mechanism.{slot}: {word_of(part, slot)} needs single updates, or does not say that sums of groups "
                f"are enough; allowed: {', '.join(fitting)}"
            )
    return found


def unfit(mechanism: Mechanism, size: Size) -> list[str]:
    """Return the objections of a mechanism's parts, and of the rules that they wrap, to a run of this size."""
    found = list[str]()
    for slot, part in mechanism.parts().items():
        for one in rules(part):
            said: Any = () if (method := method_of(one, "unfit")) is None else method(size)
            if not (isinstance(said, list | tuple) and all(isinstance(line, str) for line in said)):
                raise UserError(
                    f"mechanism.{slot}: {type(one).__name__}: its unfit returned {said!r}: must be a list of lines"
                )
            found += (line.replace(f": {type(one).__name__}", f": {word_of(one, slot)}", 1) for line in said)
    return found


# by need, the slot whose part gives it
GIVEN_BY = {"values": "value", "bids": "settle", "trade": "weigh", "groups": "train"}


def _missing(need: str, slots: Mapping[str, Part]) -> str:
    """Return what a part lacks, in words for the user.

    If a part of the user's own stands in the slot from which the need is usually met, the line says that it does not
    give it.
    """
    if need not in REASONS:
        return f"'{need}', which nothing gives{nearest(need, REASONS)}"
    slot = GIVEN_BY.get(need, "")
    if slot in slots and not type(slots[slot]).__module__.startswith("hanse."):
        return f"'{need}', and {type(slots[slot]).__name__} in mechanism.{slot} does not say that it gives it"
    return REASONS[need]


def _parts_with(slot: str, name: str) -> str:
    """Return in words which built-in parts have a block: those that lay it out (slot train) or fill it (slot weigh)."""
    found = []
    for known, make in PARTS[slot].items():
        part = make()
        has = {b.name for b in part.blocks()} if slot == "train" else in_slots(part.fills, [slot]) - {GROUPS}
        if name in has:
            found.append(f"'{known}'")
    return f"mechanism.{slot} = {' or '.join(found)}" if found else f"no part of mechanism.{slot} has them"
