"""Finds mechanisms and parts by name or import path.

:func:`build_mechanism` turns the ``[mechanism]`` table of an experiment into a :class:`hanse.core.part.Mechanism`;
whether its parts fit together, :mod:`hanse.mechanisms.fits` says. Register a new part or mechanism by a line in
``PARTS`` or ``PUBLISHED``. Your own needs no line: an import path (``"package.module:Name"``) works like a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hanse.base.errors import UserError, collected, nearest
from hanse.base.factories import call, defaults, misspelt
from hanse.base.files import table as table_in
from hanse.base.imports import import_path, named
from hanse.base.wings import Names, target
from hanse.core.calling import method_of
from hanse.core.part import CALLED, Context, Mechanism, Part, in_slots


class Later(Names):
    """Mechanisms or parts by name, also those of wings; each is imported when it is first asked for.

    Its own are, by name, ``"module:object"`` of this package.
    """

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """Return what has this name. Raises KeyError."""
        made: Callable[..., Any] = target(f"{__package__}.{self.own[name]}" if name in self.own else self.added[name])
        return made

    def name_of(self, made: Any) -> str | None:
        """Return the name of an object, or None; nothing is imported."""
        path = f"{getattr(made, '__module__', '')}:{getattr(made, '__qualname__', '')}"
        places = {name: f"{__package__}.{place}" for name, place in self.own.items()} | self.added
        return next((name for name, place in places.items() if place == path), None)


# every mechanism that has a name; its name in a file is that of the function
PUBLISHED = (
    "baselines:fedavg", "baselines:fedprox", "gtflat:gtfedavg", "gtflat:gtfedprox", "fedgen:fedgen",
    "fedgen:gtfedgen", "greedyfed:greedyfed", "greedyfed:ucb", "greedyfed:s_fedavg", "baselines:power_of_choice",
    "baselines:oort", "greedyfed:set_aware", "scaffold:scaffold", "ditto:ditto", "fedamp:fedamp",
    "fedamp:heur_fedamp", "pfedgraph:pfedgraph", "fedfomo:fedfomo", "cfl:cfl", "ifca:ifca", "fedsoft:fedsoft",
    "ipfl:ipfl", "ipfl:ipfl_posted", "pifl:pifl", "pifl:tiff", "baselines:local", "baselines:centralised",
)  # fmt: skip
MECHANISMS = Later({place.partition(":")[2]: place for place in PUBLISHED}, "mechanisms")
# every part that has a name, by the slots that it can fill
PARTS = {
    slot: Later(places, slot)
    for slot, places in {
        "select": {
            "everyone": "select:Everyone", "the_one": "select:TheOne", "uniform": "select:Uniform",
            "round_robin": "select:RoundRobin", "greedy": "select:Greedy", "ucb": "select:UCB",
            "s_fedavg": "select:SFedAvg", "power_of_choice": "select:PowerOfChoice", "oort": "select:Oort",
            "set_aware": "set_aware:SetAware", "gtflat": "gtflat:GTFLATSelect", "ipfl": "ipfl:IPFL",
            "tiers": "pifl:Tiers", "pretrained_tiers": "pifl:PretrainedTiers",
        },
        "train": {
            "shared": "train:SharedModel", "proximal": "train:Proximal", "own": "train:OwnModels",
            "fedgen": "fedgen:FedGen", "tiers": "pifl:TierModels", "scaffold": "scaffold:Scaffold",
            "ditto": "ditto:Ditto", "towards_centres": "fedamp:TowardsCentres", "from_centres": "pfedgraph:FromCentres",
            "fedfomo": "fedfomo:FedFomo", "ifca": "ifca:IFCA", "fedsoft": "fedsoft:FedSoft", "ipfl": "ipfl:IPFL",
        },
        "weigh": {
            "samples": "weigh:BySamples", "uniform": "weigh:UniformWeights",
            "samples_over_probability": "weigh:SamplesOverProbability", "gtflat": "gtflat:GTFLAT",
            "inverse_distance": "weigh:InverseDistance", "inverse_variance": "weigh:InverseVariance",
            "median": "robust:Median", "trimmed_mean": "robust:TrimmedMean",
            "geometric_median": "robust:GeometricMedian", "clipped": "robust:Clipped", "krum": "robust:Krum",
            "multi_krum": "robust:MultiKrum", "fltrust": "robust:FLTrust", "fedavgm": "server_steps:FedAvgM",
            "fedadam": "server_steps:FedAdam", "fedyogi": "server_steps:FedYogi",
            "fedadagrad": "server_steps:FedAdagrad", "fednova": "server_steps:FedNova",
            "q_fedavg": "server_steps:QFedAvg", "by_staleness": "weigh:ByStaleness", "scaffold": "scaffold:Scaffold",
            "fedamp": "fedamp:FedAMP", "heur_fedamp": "fedamp:HeurFedAMP", "pfedgraph": "pfedgraph:PFedGraph",
            "fedfomo": "fedfomo:FedFomo", "cfl": "cfl:CFL", "fedsoft": "fedsoft:FedSoft", "ipfl": "ipfl:IPFL",
        },
        "value": {
            "gtg": "value:GTG", "mixture": "value:MixtureValue", "exact": "value:Exact",
            "monte_carlo": "value:MonteCarlo", "leave_one_out": "value:LeaveOneOut", "banzhaf": "value:Banzhaf",
            "path": "value:Path", "group_path": "value:GroupPath", "first_order": "value:FirstOrder",
            "first_order_clients": "value:FirstOrderAtClients",
        },
        "settle": {
            "tokens": "pifl:Tokens", "server_tokens": "pifl:ServerTokens", "ipfl": "ipfl:IPFL",
            "utilities": "ipfl:Utilities", "by_value": "by_value:ByValue", "pot": "pot:Pot",
        },
        "deploy": {
            "one_shot": "pifl:OneShot", "server": "deploy:ServerModel", "own": "deploy:OwnModel", "ifca": "ifca:IFCA",
        },
    }.items()
}  # fmt: skip
SLOTS = tuple(PARTS)


def word_of(part: object, slot: str) -> str:
    """Return what an experiment's file calls a part, in quotes; one that has no name there is called by its class."""
    names = (parts.name_of(type(part)) for parts in (PARTS[slot], *PARTS.values()))
    return next((f"'{name}'" for name in names if name is not None), type(part).__name__)


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
    with collected(lines):
        mechanism = call(make, options, "mechanism", ("name", *SLOTS))
    wanted: dict[Any, _NamedPart | None] = {}
    for slot in (slot for slot in SLOTS if slot in table):
        with collected(lines):
            _want(wanted, slot, table, mechanism, make, options)
    replaced: dict[str, Any] = {}
    for slot, one in wanted.items():
        with collected(lines):
            part = None if one is None else _made(one.make, one.options, f"mechanism.{one.slots[0]}", one.slots[0])
            replaced |= dict.fromkeys([slot] if one is None else one.slots, part)
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
        # The mechanism's options carry over, and its default of clients_per_round: no other default may mean the same.
        # Nothing does to a part of the user's own, whose options may mean anything.
        usual = {key: n for key, n in defaults(make).items() if key == "clients_per_round" and n is not None}
        known = {**usual, **options}
        start = {key: known[key] for key in defaults(factory) if key in known and PARTS[slot].name_of(factory)}
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
    with collected(lines):
        part = call(make, {key: option for key, option in options.items() if key != "of"}, where)
    if not is_rule(of):
        with collected(lines):
            of = _made(*named(of, f"{where}.of", PARTS[slot]), f"{where}.of", slot)
    if lines:
        raise UserError(*lines)
    try:
        return replace(part, of=of)
    except UserError as wrong:  # the part says why it cannot be made of that
        raise UserError(*(f"{where}.{line}" for line in wrong.lines)) from None


def is_rule(option: Any) -> bool:
    """Say whether an option of a part is itself a part that makes aggregates. (iPFL's option ``of`` is only a word.)"""
    return hasattr(option, "aggregate")


# the methods that the part in a slot must have; of those for weigh, one is enough
METHODS = {
    "select": ("select",),
    "train": ("blocks", "seats"),
    "weigh": ("aggregate", "weigh"),
    "value": ("value",),
    "settle": ("settle",),
    "deploy": ("deploy",),
}


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
    for name in ("needs", "gives", "accepts", "fills"):
        if not hasattr(part, name):
            yield f"is no part: must inherit from hanse.core.part.{slot.title()}Part"
            return
        said: Any = getattr(part, name)
        by_slot = said if isinstance(said, Mapping) else {slot: said}
        for where, names in by_slot.items():
            if where not in SLOTS:
                yield f"{name}: there is no slot '{where}'{nearest(str(where), SLOTS)}"
            if not isinstance(names, frozenset | set) or not all(isinstance(one, str) for one in names):
                yield f"{name}: {names!r}: must be a set of names, as in frozenset({{'values'}}), or one for each slot"
    if in_slots(part.fills, [slot]) and method_of(part, "weigh") is None:
        yield "fills: needs a method 'weigh' that makes these rows"
    if (wrong := misspelt(type(part), CALLED)) is not None:
        yield wrong
    if (blocks := method_of(part, "blocks")) is not None and slot == "train":
        try:
            tuple(blocks(Context.tiny()))
        except (ValueError, TypeError) as refused:
            yield str(refused)
