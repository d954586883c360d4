"""The experiment's schema: what the TOML file may say, with every default, checked all at once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from hanse.base import toml
from hanse.base.errors import UserError, import_path, nearest, path_of
from hanse.base.factories import Count, Positive, Rate, Weight, defaults
from hanse.core.part import Mechanism
from hanse.core.recipe import Optimizer, Recipe
from hanse.data.spec import OBJECT, DataSpec
from hanse.learning.models import Send
from hanse.mechanisms.registry import MECHANISMS, PARTS, SLOTS, build_mechanism, current_names, is_rule
from hanse.mechanisms.written import part_table, table_of
from hanse.runs.overrides import apply


class Section(BaseModel):
    """One table of the file: unknown keys are mistakes, values are not changed after checking."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelSection(BaseModel):
    """``[model]``: the model's name or import path; every other key is an option of that model. ``send`` says which of
    its parameters are sent and mixed: "all", or those that are "trainable" (``requires_grad``); the others are then the
    same everywhere, as each participant's own copy of the model has them.

    A run whose model was given as an object has "object" as its name, and records its class as ``object`` and the
    digest of its structure as ``fingerprint``.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "mlp"
    send: Send = "all"

    @property
    def options(self) -> dict[str, Any]:
        """The keys beside ``name``, and beside what is recorded of an object; ``send`` if it is not "all"."""
        extra = dict(self.model_extra or {}) | ({} if self.send == "all" else {"send": self.send})
        return {k: v for k, v in extra.items() if self.name != OBJECT or k not in ("object", "fingerprint")}


class MechanismSection(BaseModel):
    """``[mechanism]``: its name or import path, its options, and replaced parts by decision."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str
    _said: tuple[str, ...] = PrivateAttr(())

    @cached_property
    def table(self) -> dict[str, Any]:
        """All keys as one dictionary, with the names that parts have now."""
        return current_names({"name": self.name} | dict(self.model_extra or {}))[0]

    @property
    def notes(self) -> list[str]:
        """A line for each part that the file calls by an old name, each option that overrides left out, and each part
        that only this process can find.
        """
        named = {slot: part.get("name", "") for slot in SLOTS if isinstance(part := self.table.get(slot), Mapping)}
        here = [
            f"note: mechanism.{slot}: '{name.split(':')[1]}' is of this script or notebook: for 'hanse resume' and "
            "sweeps put it into a module"
            for slot, name in named.items()
            if str(name).startswith("__main__:")
        ]
        return [*self._said, *here, *current_names({"name": self.name} | dict(self.model_extra or {}))[1]]

    @cached_property
    def built(self) -> Mechanism:
        """The mechanism. Raises UserError that lists every wrong key."""
        return build_mechanism(self.table)


def _function(given: Any) -> Any:
    if given is not None and not isinstance(given, str) and not callable(given):
        raise ValueError("must be a function, or its import path 'package.module:name'")
    return given


def _path(given: Any) -> str:
    return given if isinstance(given, str) else path_of(given)


# a function of the user's own, or its import path, which is what is written down
Function = Annotated[
    Any,
    BeforeValidator(_function),
    PlainSerializer(_path, return_type=str, when_used="unless-none"),
    WithJsonSchema({"type": "string"}),
]


def _named(given: Any) -> Any:
    """Return a loss or metric as it is written down, with the import path of a function in the function's place."""
    if isinstance(given, Mapping) and callable(given.get("name")):
        return {**given, "name": _named(given["name"])}
    if not callable(given):
        return given
    path = path_of(given)
    if "<" in path:
        raise ValueError("no module has it by a name: define it with 'def' at the top of a module or script")
    return path


# a name or an import path, or a table with either and options; a function is written down by its import path
Named = Annotated[str | dict[str, Any], BeforeValidator(_named)]


class TrainSection(Section):
    """``[train]``: local SGD; ``batch_size`` (32 if nothing is said), ``batches_per_epoch``, or ``steps`` of batches,
    which may be fresh draws of a ``batch_share`` of the samples. ``lr_decay_by``, ``order`` and ``statistics`` make it
    depend on what a client did before (:class:`hanse.core.recipe.Recipe`); they are for clients of this process.
    ``rho`` and ``eps`` are for ``optimizer = "adadelta"``. ``loss`` is what is minimised, by name or import path or as
    a table with options (:mod:`hanse.learning.losses`); left out it is cross-entropy for classes, else squared error.
    ``loop`` is a training function of the user's own, as a function or its import path, which is told all of these and
    does what it likes (:mod:`hanse.learning.loop`).
    """

    loop: Function | None = None
    epochs: Positive = 1
    batch_size: Positive | None = None
    batches_per_epoch: Positive | None = None
    steps: Positive | None = None
    batch_share: Annotated[float, Field(gt=0, le=1)] | None = None
    lr: Rate = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Weight = 0.0
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    optimizer: Optimizer = "sgd"
    rho: Annotated[float, Field(ge=0, le=1)] = 0.9
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-6
    lr_decay_by: Literal["round", "last"] = "round"
    order: Literal["shuffled", "by_class"] = "shuffled"
    statistics: Literal["averaged", "own"] = "averaged"
    loss: Named | None = None

    @model_validator(mode="before")
    @classmethod
    def _batches(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            named = given.get("optimizer", "sgd")
            if named != "sgd" and given.get("momentum"):
                raise ValueError(f"give momentum with optimizer = 'sgd': {named} has moments of its own")
            if named != "adadelta" and (given.get("rho", 0.9) != 0.9 or given.get("eps", 1e-6) != 1e-6):
                raise ValueError(f"give rho and eps with optimizer = 'adadelta': {named} does not take them")
            if given.get("batch_share") is not None:
                if given.get("batches_per_epoch") is not None or given.get("batch_size") is not None:
                    raise ValueError("give batch_share, batch_size or batches_per_epoch, one of them")
                if given.get("steps") is None:
                    raise ValueError("give batch_share with steps: it is what each step draws")
                return given
            if given.get("batches_per_epoch") is None and given.get("batch_size") is None:
                return {**given, "batch_size": 32}
            if given.get("batches_per_epoch") is not None and given.get("batch_size") is not None:
                raise ValueError("give batch_size or batches_per_epoch, not both")
            if given.get("batches_per_epoch") is not None and given.get("steps") is not None:
                raise ValueError("give steps with batch_size, not with batches_per_epoch")
        return given

    @property
    def recipe(self) -> Recipe:
        """The same as the learning module's recipe."""
        return Recipe(**self.model_dump(exclude={"loss", "loop"}))


class ClientsSection(Section):
    """``[clients]``: what clients decide for themselves, by name or import path, with options as a table.

    With ``told`` each client learns its value after every round that it sat in, and its policy may leave on it.
    ``profiles`` says what each client is (a role with its costs and eagerness), for mechanisms that trade. ``grant``
    is what a new client gets, in tokens (where a mechanism pays). With ``named`` a client's statement names the others
    that its models went to and that it traded with.
    """

    policy: str | dict[str, Any] = "loyal"
    told: bool = False
    profiles: str | dict[str, Any] | None = None
    grant: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] = 100.0
    named: bool = False


def _replies(enough: Any) -> Any:
    """Return a number of replies, or a share of them. Raises ValueError for what is neither."""
    if enough is None:
        return None
    whole, share = type(enough) is int and enough >= 1, type(enough) is float and 0 < enough < 1
    if not (whole or share):
        raise ValueError("must be a whole number from 1 on, or a share between 0 and 1")
    return enough


class FederationSection(Section):
    """``[federation]``: where the clients are, and how long a round waits for how many of them.

    A round with fewer than ``min_replies`` sound updates is empty: the models stay. Training ends once ``enough`` sound
    replies are in (a number, or a share of the round's seats), or after ``deadline_s``. Without a behaviour that takes
    time on the virtual clock (``speed``) a simulation has all replies at once, and waits for everybody.

    What comes ``late`` is dropped, or joins the "next" round if it is at most ``max_staleness`` rounds late. ``replay``
    is a run directory whose order of arrival a simulation repeats. ``half_precision`` sends models as 16-bit numbers on
    a network. ``refuse`` names what refuses sound updates that stand out ("norm_bound"; see
    :mod:`hanse.federation.norm_bound`).
    """

    engine: Literal["local", "ray"] = "local"
    deadline_s: Annotated[float, Field(gt=0)] | None = None
    min_replies: Count = 0
    half_precision: bool = False
    refuse: str | dict[str, Any] | None = None
    enough: Annotated[int | float | None, BeforeValidator(_replies)] = None
    late: Literal["drop", "next"] = "drop"
    max_staleness: Positive | None = None
    replay: str | None = None

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        if self.max_staleness is not None and self.late == "drop":
            raise ValueError("give max_staleness with late = 'next': with 'drop' no late update is mixed")
        return self


class LedgerSection(Section):
    """``[ledger]``: where the books are (default: ``ledger.db`` in the run directory), and the floor of every
    account but the mint, in tokens.
    """

    url: str | None = None
    floor: Annotated[float, Field(le=0, ge=-1e12, allow_inf_nan=False)] = 0.0


class EngineSection(Section):
    """``[engine]``: how the local federation trains; "auto" goes by a rule (``docs/engines.md``), and is then written
    here. "processes", the worker processes of earlier versions, is read as "sequential" with as many threads in their
    place: it trains the same models, bit for bit.

    ``precision = "bf16"`` pays for CNNs on processors with bfloat16 instructions; their accuracy stayed within the
    seeds' deviation on Fashion-MNIST and CIFAR-10 (``benchmarks/bf16.py``). MLPs gain nothing.
    """

    train: Literal["auto", "native", "stacked", "vmapped", "sequential"] = "auto"
    threads: Positive | None = None
    workers: Positive | None = None
    device: str = "auto"
    precision: Literal["float32", "bf16"] = "float32"

    @model_validator(mode="before")
    @classmethod
    def _earlier(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("train") == "processes":
            return {**given, "train": "sequential", "threads": 1}
        return given


class EvalSection(Section):
    """``[eval]``: test every this many rounds (and after the last); how many clients test on their own test share, and
    which ``model`` of theirs: the "deployed" one that they hold after the round, or the one that they have "trained" in
    it, before it was mixed with others' (who did not train: the deployed one). The server tests what is deployed.

    ``metrics`` are what tests report beside loss and accuracy, by name or import path or as tables with options
    (:mod:`hanse.learning.metrics`); reports, statements and comparisons speak of the first. Without any that is the
    accuracy, and for regression the loss.
    """

    every: Positive = 1
    clients: Count | Literal["all"] = "all"
    model: Literal["deployed", "trained"] = "deployed"
    metrics: Annotated[list[Named], Field(min_length=1)] | None = None


class RunSection(Section):
    """``[run]``: rounds, the seed of everything but the split, checkpoints every this many rounds.

    A run ends earlier once the server's test accuracy has reached ``target_accuracy``, or its rounds took
    ``max_seconds`` or moved ``max_megabytes`` (10^6 bytes, both ways).
    """

    rounds: Count = 20
    seed: int = 0
    checkpoint_every: Positive = 1
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    max_seconds: Annotated[float, Field(gt=0)] | None = None
    max_megabytes: Annotated[float, Field(gt=0)] | None = None


class Experiment(BaseModel):
    """A whole experiment. Every key but ``mechanism.name`` is optional.

    Build it from keywords (``Experiment(mechanism={"name": "fedavg"})``), from a file (:meth:`read`) or from a nested
    dictionary. Where only a ``name`` is to be said, the name alone will do (``mechanism="fedavg", model="cnn"``). The
    mechanism may also be a :class:`hanse.core.part.Mechanism` that was put together in Python; it is written down as
    the table that builds it again. Raises UserError with a line for each mistake.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    data: DataSpec = DataSpec()
    model: ModelSection = ModelSection()
    mechanism: MechanismSection
    train: TrainSection = TrainSection()
    clients: ClientsSection = ClientsSection()
    behaviour: dict[str, dict[str, Any]] = {}
    federation: FederationSection = FederationSection()
    ledger: LedgerSection = LedgerSection()
    engine: EngineSection = EngineSection()
    eval: EvalSection = EvalSection()
    run: RunSection = RunSection()

    def __init__(self, **sections: Any) -> None:
        lines: list[str] = []
        if isinstance(sections.get("mechanism"), Mechanism):
            sections["mechanism"] = table_of(sections["mechanism"])
        for section in ("mechanism", "model"):
            if isinstance(sections.get(section), str):
                sections[section] = {"name": sections[section]}
        try:
            super().__init__(**sections)
        except ValidationError as wrong:
            lines += [_line(error, self) for error in wrong.errors()]
        lines += _mechanism_lines(sections.get("mechanism") if lines else self.mechanism)
        if lines:
            raise UserError(*dict.fromkeys(lines))

    @classmethod
    def read(cls, path: str | Path, overrides: Sequence[str] = ()) -> Self:
        """Read a TOML file, with overrides such as ``train.lr=0.1``, ``mechanism=local`` (the whole table) or
        ``train.batch_size=`` (the key is left out) on top. Raises UserError.
        """
        sections, notes = apply(read_file(path), overrides)
        experiment = cls(**sections)
        experiment.mechanism._said = tuple(notes)
        return experiment

    def sections(self) -> dict[str, dict[str, Any]]:
        """Return every section with every default, mechanism options included, as plain values."""
        found: dict[str, dict[str, Any]] = self.model_dump(mode="json")
        make = MECHANISMS.get(self.mechanism.name) or import_path(self.mechanism.name, "mechanism.name", MECHANISMS)
        known = defaults(make)
        if isinstance(known.get("clients_per_round"), int):
            known["clients_per_round"] = min(known["clients_per_round"], self.data.clients)
        given = self.mechanism.table
        found["mechanism"] = {"name": self.mechanism.name} | known | given | self._parts({**known, **given})
        return found

    def _parts(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parts that are named, with all their options; those of a part in several slots under the first."""
        given, slots = self.mechanism.table, self.mechanism.built.slots()
        found: dict[str, Any] = {}
        for slot in SLOTS:
            if slot not in given:
                continue
            name = given[slot] if isinstance(given[slot], str) else given[slot].get("name", "")
            found[slot], part = given[slot], slots.get(slot)
            if part is None or name not in PARTS[slot]:
                continue
            again = any(slots[other] is part for other in found if other != slot and other in slots)
            options = {key: getattr(part, key) for key in defaults(PARTS[slot][name])}
            options |= {key: part_table(slot, option) for key, option in options.items() if is_rule(option)}
            asked = "clients_per_round" in given or "clients_per_round" in given[slot]
            if isinstance(options.get("clients_per_round"), int) and not asked:  # a default adapts by itself
                options["clients_per_round"] = min(options["clients_per_round"], self.data.clients)
            for key in [key for key, option in options.items() if option is None and key in known]:
                options[key] = "none"  # left out, it would be the mechanism's when the file is read
            found[slot] = name if again else {"name": name} | options
        return found

    def to_toml(self) -> str:
        """Return the experiment as TOML, with every default."""
        return toml.dumps(self.sections())


def read_sections(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a TOML file says, with overrides (:mod:`hanse.runs.overrides`), unchecked. Raises UserError."""
    return apply(read_file(path), overrides)[0]


def read_file(path: str | Path) -> dict[str, Any]:
    """Return what a TOML file says. Raises UserError."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder; an experiment is a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise UserError(f"{path}: not valid TOML: {wrong}") from None


def _mechanism_lines(given: Any) -> list[str]:
    """Return what is wrong with the mechanism's options and parts."""
    if not isinstance(given, MechanismSection):
        if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
            return []  # the schema has said so already
        given = MechanismSection(**given)
    try:
        _ = given.built
    except UserError as wrong:
        return list(wrong.lines)
    return []


def _line(error: Any, experiment: Experiment) -> str:
    """Return one line for one of pydantic's errors: the key, the value, what is allowed."""
    where = [str(part) for part in error["loc"]]
    name = ".".join(where)
    if error["type"] == "extra_forbidden":
        fields: Mapping[str, Any] = type(experiment).model_fields
        for part in where[:-1]:
            kind = fields[part].annotation
            fields = kind.model_fields if kind is not None else {}
        return f"{name}: no such key{nearest(where[-1], fields)}"
    if error["type"] == "missing":
        return f"{name}: is required"
    if error["type"] == "value_error":
        given = f"{error['input']!r}: " if isinstance(error["input"], str | int | float) else ""
        return f"{name}: {given}{error['ctx']['error']}"
    message = error["msg"]
    return f"{name}: {error['input']!r}: {message[0].lower()}{message[1:]}"
