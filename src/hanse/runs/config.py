"""The experiment's schema: all keys of the TOML file, their defaults and checks.

:class:`Experiment` is the whole file, with one class per section. Read one with :meth:`Experiment.read`, or build it
from keywords in Python. Mistakes are found here, before any data are loaded, and listed together. Mistakes that depend
on the data are found by :mod:`hanse.runs.setup`.

The fields' types document the allowed values, and ``docs/reference/experiment.md`` is made from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from hanse.base import toml
from hanse.base.errors import UserError, collected, gated, nearest
from hanse.base.factories import OBJECT, Count, Positive, defaults, named_choice
from hanse.base.files import SMALL, given_path, read_json, table
from hanse.base.imports import OWN, import_path, import_paths, path_of
from hanse.base.wings import Names, absent
from hanse.core.part import Mechanism
from hanse.core.recipe import Recipe
from hanse.data.spec import DataSpec, mistakes
from hanse.learning.models import MODELS, Send
from hanse.ledger.run_ledger import latest_claim
from hanse.mechanisms.mechanism_table import part_table, table_of
from hanse.mechanisms.registry import MECHANISMS, PARTS, SLOTS, build_mechanism, is_rule
from hanse.runs.overrides import apply
from hanse.runs.sections import ClientsSection, RunSection, Section

SECTIONS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = Names({}, "sections")
"""By the name of a wing's section, what makes an experiment's sections those that follow from it; raises UserError."""
SETTINGS: Mapping[str, type[Section]] = Names({}, "settings")
"""By the name of a wing's section, its keys with their defaults, declared as those of the core's sections are."""


class ModelSection(BaseModel):
    """``[model]``: which model is trained.

    All other keys are options of the model, such as ``hidden`` of "mlp".

    Attributes:
        name: one of :data:`hanse.learning.models.MODELS`, or the import path of a function ``(input_shape, num_classes,
            **options)`` that returns a module. For a model given as an object, it is "object", and the run records its
            class as ``object`` and a digest of its structure as ``fingerprint``.
        send: which parameters are sent and mixed: "all", or only those that are "trainable" (``requires_grad``). Other
            parameters must then be equal in every participant's copy of the model.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "mlp"
    send: Send = "all"

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if ":" not in name and name not in (*MODELS, OBJECT):
            raise ValueError(f"no such name{nearest(name, MODELS)} (or an import path 'package.module:name')")
        return name

    @property
    def options(self) -> dict[str, Any]:
        """The options for building the model."""
        extra = dict(self.model_extra or {}) | ({} if self.send == "all" else {"send": self.send})
        return {k: v for k, v in extra.items() if self.name != OBJECT or k not in ("object", "fingerprint")}


class MechanismSection(BaseModel):
    """``[mechanism]``: which mechanism is played.

    The section has the mechanism's name or import path and its options. Under ``select``, ``train``, ``weigh``,
    ``value``, ``settle`` and ``deploy``, it has the parts that replace the mechanism's own.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str
    _said: tuple[str, ...] = PrivateAttr(())

    @cached_property
    def table(self) -> dict[str, Any]:
        """All keys as one dictionary."""
        return {"name": self.name} | dict(self.model_extra or {})

    @property
    def notes(self) -> list[str]:
        """Lines to tell the user before the run.

        One for each option dropped by overrides, and each part defined in a script or notebook, which only this process
        can find.
        """
        named = {slot: part.get("name", "") for slot in SLOTS if isinstance(part := self.table.get(slot), Mapping)}
        here = [
            f"note: mechanism.{slot}: '{name.split(':')[1]}' is of this script or notebook: for 'hanse resume' and "
            "sweeps put it into a module"
            for slot, name in named.items()
            if str(name).startswith("__main__:")
        ]
        return [*self._said, *here]

    @cached_property
    def built(self) -> Mechanism:
        """The mechanism itself, assembled from its parts. Raises UserError that lists every wrong key."""
        return build_mechanism(self.table)


def _function(given: Any) -> Any:
    """Return a function or its import path unchanged. Raises ValueError (pydantic's way) for anything else."""
    if given is not None and not isinstance(given, str) and not callable(given):
        raise ValueError("must be a function, or its import path 'package.module:name'")
    return given


# a function of the user's own, or its import path, which is what is written down
Function = Annotated[
    Any,
    BeforeValidator(_function),
    PlainSerializer(
        lambda given: given if isinstance(given, str) else path_of(given), return_type=str, when_used="unless-none"
    ),
    WithJsonSchema({"type": "string"}),
]


def _named(given: Any) -> Any:
    """Return a loss or metric as it is written down, with the import path of a function in the function's place."""
    if isinstance(given, Mapping) and callable(given.get("name")):
        return {**given, "name": _named(given["name"])}
    if not callable(given):
        return given
    path = path_of(given)
    # "<locals>" or "<lambda>": no module could give the function back to a run that is resumed
    if "<" in path:
        if not hasattr(given, "__qualname__") and "<" not in path_of(type(given)) and not isinstance(given, partial):
            raise ValueError(
                "is an object, which no module has by a name: give its class and options, such as {'name': "
                "torch.nn.CrossEntropyLoss, 'reduction': 'none'}, or a function"
            )
        raise ValueError("no module has it by a name: define it with 'def' at the top of a module or script")
    return path


# a name or an import path, or a table with either and options; a function is written down by its import path
Named = Annotated[str | dict[str, Any], BeforeValidator(_named)]


class TrainSection(Section, Recipe):
    """``[train]``: how each client trains in a round: a :class:`hanse.core.recipe.Recipe`, a loop and a loss.

    Set the amount of training in one of three ways: ``epochs`` with ``batch_size``; ``epochs`` with
    ``batches_per_epoch``; or ``steps`` with ``batch_size`` or ``batch_share``.

    Attributes:
        loop: the user's own training function, or its import path, instead of hanse's. It gets all other settings and
            may use or ignore them (:mod:`hanse.learning.loop`).
        epochs: passes over the client's training samples in a round.
        batch_size: the number of samples in a batch. It is 10 if neither this nor ``batches_per_epoch`` nor
            ``batch_share`` is given.
        batches_per_epoch: this many nearly equal batches per epoch, for any number of samples.
        steps: optimiser steps in a round, instead of epochs.
        batch_share: used with ``steps``: each step draws this share of the samples anew. It is above 0 and at most 1.
        lr: learning rate in round 0. The default is 0.1. It is 2 for the model "lstm", and 0.01 with an optimizer other
            than SGD or the user's own ``loop``.
        momentum: the momentum of SGD, in [0, 1).
        weight_decay: L2 penalty as PyTorch's optimisers take it.
        lr_decay: the factor of the rate after each round, above 0 and at most 1.
        optimizer: "sgd", "adamw" or "adadelta". The moments of the last two start anew in each round.
        rho: Adadelta's decay of its running averages.
        eps: Adadelta's term in the denominator.
        lr_decay_by: "round" counts rounds of the run, "last" uses the last round in which this client trained.
        order: "shuffled", or "by_class": samples are sorted by class, and a client's batches continue where they
            stopped.
        statistics: what becomes of batch-norm statistics. "anew": each client's are the mean over the batches of its
            last pass, and they are averaged like parameters. "averaged": so are PyTorch's running statistics, which
            with few steps a round are mostly those of older models. "own": each client keeps its own, as in FedBN. With
            a ``loop`` of your own, "anew" is the same as "averaged".
        loss: the loss to minimise, by name or import path, or a table with options (:mod:`hanse.learning.losses`).
            Default: cross-entropy for classes, else squared error.

    The settings ``lr_decay_by``, ``order`` and ``statistics`` can make training depend on a client's earlier rounds.
    They work only for clients in this process, not on a network.
    """

    loop: Function | None = None
    loss: Named | None = None

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, given: Any) -> Any:
        """Refuse settings that contradict each other, and fill in the default batch size, and the learning rate of an
        optimiser that is not hanse's own SGD.
        """
        if not isinstance(given, Mapping):
            return given
        named = given.get("optimizer", "sgd")
        if named != "sgd" and given.get("momentum"):
            raise ValueError(f"give momentum with optimizer = 'sgd': {named} has moments of its own")
        if named != "adadelta" and (given.get("rho", 0.9) != 0.9 or given.get("eps", 1e-6) != 1e-6):
            raise ValueError(f"give rho and eps with optimizer = 'adadelta': {named} does not take them")
        ways = [key for key in ("batch_size", "batches_per_epoch", "batch_share") if given.get(key) is not None]
        if len(ways) > 1:
            raise ValueError(f"give only one of {' and '.join(ways)}")
        if ways == ["batch_share"] and given.get("steps") is None:
            raise ValueError("give batch_share with steps: it is what each step draws")
        if ways == ["batches_per_epoch"] and given.get("steps") is not None:
            raise ValueError("give steps with batch_size, not with batches_per_epoch")
        found = {"lr": 0.01, **given} if named != "sgd" or given.get("loop") is not None else dict(given)
        if ways:
            return {**found, "batch_size": given.get("batch_size")}
        found.pop("batch_size", None)
        return found

    @property
    def recipe(self) -> Recipe:
        """The settings as the engines take them."""
        return Recipe(**self.model_dump(exclude={"loss", "loop"}))


class FederationSection(Section):
    """``[federation]``: where the clients are, and how long a round waits for them.

    A simulation gets all replies at once and waits for everybody, unless a behaviour such as ``speed`` makes clients
    take virtual time.

    Attributes:
        engine: "local": all clients are in this process. "ray": they train on a Ray cluster
            (:mod:`hanse.learning.ray_engine`).
        deadline_s: the number of seconds after which training ends. None: no limit.
        min_replies: a round with fewer valid updates is empty, and all models stay unchanged.
        half_precision: whether models travel as 16-bit numbers on a network.
        refuse: a rule that refuses outlying updates ("norm_bound", see :mod:`hanse.federation.wrapped`).
        secure: if given, the server sees only sums over groups of at least ``group`` clients (3 or more; default 3)
            (:mod:`hanse.wings.private.secure_sums`). None: it sees every update.
        private: differential privacy at the clients, with ``clip``, ``epsilon``, ``delta``, and further options
            (:class:`hanse.wings.private.privacy.Privacy`). None: updates are sent unchanged.
        enough: training ends once this many valid replies have come: a whole number, or a share of the round's seats.
        late: "drop" discards later replies; "next" mixes them into the next round.
        max_staleness: with "next": the largest number of rounds by which an update may be late. None: any number.
    """

    engine: Literal["local", "ray"] = "local"
    deadline_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    min_replies: Count = 0
    half_precision: bool = False
    refuse: str | dict[str, Any] | None = None
    secure: dict[str, Any] | None = None
    private: dict[str, Any] | None = None
    enough: Positive | Annotated[float, Field(gt=0, lt=1)] | None = None
    late: Literal["drop", "next"] = "drop"
    max_staleness: Positive | None = None

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        """Refuse a limit on lateness where nothing late is mixed."""
        if self.max_staleness is not None and self.late == "drop":
            raise ValueError("give max_staleness with late = 'next': with 'drop' no late update is mixed")
        return self


class LedgerSection(Section):
    """``[ledger]``: where the books are.

    Attributes:
        url: the address of a database. None: ``ledger.db`` in the run directory.
        floor: the lowest balance of every account but the mint, in tokens; 0 or below.
    """

    url: str | None = None
    floor: Annotated[float, Field(le=0, ge=-1e12, allow_inf_nan=False)] = 0.0


Threads = Annotated[int, Field(ge=1, le=1024)]


class EngineSection(Section):
    """``[engine]``: how clients in this process are trained. The choice made by "auto" is written into the run's
    ``config.toml``, since results are equal bit for bit only with equal engine settings.

    Attributes:
        train: which engine; "auto" follows the rule in ``docs/engines.md``.
        threads: how many threads share each operator. None: the rule chooses.
        workers: threads that each train different seats. Only one of this and ``threads`` may be above 1.
        device: "auto", "cpu", "cuda" or "cuda:1".
        precision: "bf16" speeds up CNNs on processors with bfloat16 instructions. Accuracies on Fashion-MNIST and
            CIFAR-10 stayed within the deviation over seeds (``benchmarks/bf16.py`` in commit c568d594). MLPs gain
            nothing.
        graphs: whether the stacked engine records and replays its steps on a CUDA device. None: it does.
    """

    train: Literal["auto", "native", "stacked", "vmapped", "sequential"] = "auto"
    threads: Threads | None = None
    workers: Threads | None = None
    device: str = "auto"
    precision: Literal["float32", "bf16"] = "float32"
    graphs: bool | None = None


class EvalSection(Section):
    """``[eval]``: when models are tested, by whom, and with which metrics.

    Attributes:
        every: test after every this many rounds, and after the last one.
        clients: how many clients test on their own test shares: "all", or a number of clients, drawn once for the whole
            run.
        model: which model a client tests: the "deployed" one, which it holds after the round, or the one that it
            "trained" in the round, before mixing. Clients that did not train test the deployed one in both cases. The
            server always tests deployed models.
        metrics: metrics in addition to loss and accuracy, by name or import path or as tables with options
            (:mod:`hanse.learning.metrics`). Reports and comparisons use the first metric. If there is none, they use
            the accuracy, or the loss for regression.
    """

    every: Positive = 1
    clients: Count | Literal["all"] = "all"
    model: Literal["deployed", "trained"] = "deployed"
    metrics: Annotated[list[Named], Field(min_length=1)] | None = None


class Experiment(BaseModel):
    """A whole, validated experiment. Every key but ``mechanism.name`` is optional.

    Build it from keywords, one per section, or read it from a TOML file (:meth:`read`). A section that has only a name
    can be given as that name: ``mechanism="fedavg", model="cnn"``. The mechanism may also be a
    :class:`hanse.core.part.Mechanism` assembled in Python. It is recorded as the table from which it can be built
    again. An experiment is immutable.

    Attributes:
        data: source, split over the clients, held-out shares (:class:`hanse.data.spec.DataSpec`).
        model: the model's name and options.
        mechanism: the mechanism's name, options and replaced parts.
        train: local training.
        clients: the clients' policy and profiles.
        behaviour: deviating behaviours of some clients, by name, such as ``{"noisy": {"sigma": 0.1}}``.
        federation: where the clients are, and how long a round waits.
        sizes: whether members prove how many samples they have.
        evidence: whether members prove that they trained.
        ledger: where the books are.
        engine: the engine that trains clients in this process.
        eval: when and how models are tested.
        run: rounds, seed, checkpoints, limits.

    The options of each section stand in its class: ``help(type(experiment.train))``; those of mechanisms and their
    parts in ``hanse list NAME``. A section of a wing, such as ``[charter]``, stands in ``model_extra``.

    Raises:
        UserError: the experiment has mistakes. The message has a line for each: the key, the value, and what is
            allowed.

    Examples:
        >>> import hanse
        >>> experiment = hanse.Experiment(
        ...     data={"source": "digits", "clients": 4},
        ...     mechanism={"name": "greedyfed", "clients_per_round": 2},
        ...     run={"rounds": 5},
        ... )
        >>> experiment.train.batch_size  # a default
        10
        >>> hanse.Experiment(mechanism="greedyfed", train={"lr": -1.0, "epoch": 3})
        Traceback (most recent call last):
        hanse.base.errors.UserError: train.lr: -1.0: input should be greater than 0
        train.epoch: no such key; did you mean 'epochs'?
    """

    model_config = ConfigDict(extra="allow", frozen=True)
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
        sections = _of_texts(toml.plain(sections))
        kinds, wrong = self.kinds(), list[Any]()
        for name, kind in SETTINGS.items():
            try:
                sections = {**sections, name: kind.model_validate(sections.get(name, {}))}
            except ValidationError as refused:
                wrong += [{**error, "loc": (name, *error["loc"])} for error in refused.errors()]
        for name in [name for name in sections if name not in kinds]:
            with collected(lines):
                if name not in SECTIONS:
                    raise UserError(f"{name}: no such key{nearest(name, [*kinds, *SECTIONS])}")
                sections = SECTIONS[name](sections)
        try:
            super().__init__(**sections)
        except ValidationError as refused:
            wrong += refused.errors()
        for place, errors in _by_place(wrong, sections).items():
            if place[0] == "data" and isinstance(below := sections.get("data"), Mapping):
                lines += [line for error in errors for line in mistakes(error, place[1:], below)]
            else:
                lines.append(_line(errors, place, kinds))
        given = sections.get("mechanism") if lines else self.mechanism
        if isinstance(given, Mapping) and isinstance(given.get("name"), str):
            given = MechanismSection(**{str(key): one for key, one in given.items()})
        if isinstance(given, MechanismSection):  # of anything else the schema has said so already
            with collected(lines):
                _ = given.built
        if lines:
            raise UserError(*dict.fromkeys(lines))

    @classmethod
    def kinds(cls) -> dict[str, Any]:
        """Return the type of each section, those of wings too."""
        return {name: field.annotation for name, field in cls.model_fields.items()} | dict(SETTINGS)

    def of_wing(self, name: str) -> Any:
        """Return a section that a wing adds. None: there is no such wing, or the section is not given."""
        return (self.model_extra or {}).get(name)

    @classmethod
    def read(cls, path: str | Path, overrides: Sequence[str] = ()) -> Self:
        """Read an experiment from a TOML file.

        Args:
            path: the file.
            overrides: changes, which are applied in order, as with ``--set``. ``train.lr=0.1`` sets a key,
                ``train.batch_size=`` removes it, and ``mechanism=local`` replaces a whole section
                (:mod:`hanse.runs.overrides`).

        Raises:
            UserError: the file cannot be read, or it is invalid. The message has a line for each mistake.
        """
        sections, notes = apply(read_file(path), overrides)
        try:
            experiment = cls(**sections)
        except UserError:
            claim = latest_claim(Path(path).parent) if Path(path).name == "config.toml" else None
            if claim is not None and claim.settings:
                cls.played(claim.settings, Path(path).parent)
            raise
        experiment.mechanism._said = tuple(notes)
        return experiment

    @classmethod
    def played(cls, settings: str, folder: Path) -> Self:
        """Return the experiment that a run's checkpoint has.

        Args:
            settings: as TOML.
            folder: the run directory.

        Raises:
            UserError: this release lacks one of the settings. The last line names the one that has it.
        """
        with gated(f"{folder}: its checkpoint: settings"):
            sections = toml.loads(settings)
        try:
            return cls(**sections)
        except UserError as wrong:
            if absent() or set(import_paths(sections)) - OWN:  # it may be a wing or the user's own that lacks
                raise
            began, now = began_with(folder).get("hanse", "of another version"), version("hanse")
            one = f"an earlier state of hanse {now}" if began == now else f"hanse {began}"
            raise UserError(
                *wrong.lines, f"{folder}: was played with these settings by {one}, which goes on with it; hanse {now} "
                "plays it anew without them"
            ) from None  # fmt: skip

    def sections(self) -> dict[str, dict[str, Any]]:
        """Return every section as plain values, with all defaults and the options of the mechanism and its parts.

        An experiment made of them plays the same, but is not equal, since it names the mechanism's defaults.
        """
        sections: dict[str, dict[str, Any]] = self.model_dump(mode="json")
        make = MECHANISMS.get(self.mechanism.name) or import_path(self.mechanism.name, "mechanism.name", MECHANISMS)
        known = defaults(make)
        if isinstance(known.get("clients_per_round"), int):
            known["clients_per_round"] = min(known["clients_per_round"], self.data.clients)
        given = self.mechanism.table
        sections["mechanism"] = {"name": self.mechanism.name} | known | given | self._parts({**known, **given})
        return sections

    def _parts(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parts that the file names, with all their options.

        A part that stands in several slots has its options under the first of them, and only its name under the others.
        """
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
        """Return the experiment as the text of a TOML file with every default written out.

        Reading it gives an experiment that plays the same. It need not be ``==`` this one: what was left to a default
        is now set. For example, ``clients_per_round`` no longer follows ``data.clients``.
        """
        return toml.dumps(self.sections())


# smaller than LEAF's, so a first experiment takes minutes
_READER = {"name": "lstm", "hidden": 64, "layers": 1}
_READERS = {"shakespeare": _READER, "shakespeare_next": {**_READER, "last": True}}


def _of_texts(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in the model that a source of texts needs, and the learning rate that an LSTM needs.

    The rule by which these and all other defaults of training were chosen is in ``docs/reference/experiment.md``.
    """
    texts = dict(sections)
    data, train = texts.get("data"), texts.get("train", {})
    given = (
        data.source.name if isinstance(data, DataSpec) else data.get("source") if isinstance(data, Mapping) else None
    )
    source = named_choice(given, OBJECT)
    if "model" not in texts and source in _READERS:
        texts["model"] = _READERS[source]
    model = texts.get("model")
    name = model.name if isinstance(model, ModelSection) else model.get("name") if isinstance(model, Mapping) else None
    if name == "lstm" and isinstance(train, Mapping):
        others = train.get("lr") is not None or train.get("loop") is not None
        texts["train"] = train if others or train.get("optimizer", "sgd") != "sgd" else {**train, "lr": 2.0}
    return texts


def began_with(folder: Path) -> dict[str, str]:
    """Return the versions of packages that began a run; none where its file, which nothing else reads, is damaged."""
    found = dict[str, Any]()
    with suppress(UserError):
        found["file"] = read_json(folder / "environment.json")
    return {name: str(one)[:40] for name, one in table(table(found, "file"), "packages").items()}


def read_file(path: str | Path) -> dict[str, Any]:
    """Read a TOML file as nested dictionaries. Raises UserError if it is missing or not TOML."""
    path = given_path("path", path)
    try:
        with path.open("rb") as file:
            text = file.read(SMALL + 1)
        if len(text) > SMALL:  # a device such as /dev/zero has no end
            raise UserError(f"{path}: has more than {SMALL >> 20} MiB; an experiment is a TOML file")
        return toml.loads(text.decode("utf-8-sig"))  # editors of Windows begin a file with a mark
    except OSError as wrong:
        raise UserError(f"{path}: cannot be read: {wrong.strerror}") from None
    except UserError:
        raise
    except ValueError as wrong:  # no TOML, no text, or a path that cannot be one
        raise UserError(f"{path}: not valid TOML: {wrong}") from None


# what pydantic calls by Python's names
_IN_TOML = {"list_type": 'must be a list, such as ["one", "two"]', "string_type": "must be a text in quotes"}
_PART = "must be a whole number; for a part of an epoch give steps, each of batch_size samples, instead of epochs"


def _place(error: Any, sections: Mapping[str, Any]) -> tuple[str | int, ...]:
    """Return the keys that lead to what is wrong, without the names that pydantic gives to the members of a union."""
    if error["type"] == "missing":
        return tuple(error["loc"])
    found: list[str | int] = []
    given: Any = sections
    for part in error["loc"]:
        if not (part in given if isinstance(given, Mapping) else isinstance(given, list) and isinstance(part, int)):
            break
        found.append(part)
        given = given[part]
    return tuple(found)


def _by_place(errors: Sequence[Any], sections: Mapping[str, Any]) -> dict[tuple[str | int, ...], list[Any]]:
    """Return pydantic's errors by what they are about."""
    found = dict[tuple[str | int, ...], list[Any]]()
    for error in errors:
        found.setdefault(_place(error, sections), []).append(error)
    return found


def mistakes_in(wrong: ValidationError, name: str, kind: type[Section], given: Any) -> list[str]:
    """Return a line for each key of a section that is read by itself, as those of an experiment's sections."""
    errors = [{**error, "loc": (name, *error["loc"])} for error in wrong.errors()]
    return [_line(found, place, {name: kind}) for place, found in _by_place(errors, {name: given}).items()]


def _line(errors: Sequence[Any], place: Sequence[str | int], kinds: Mapping[str, Any]) -> str:
    """Return one line for pydantic's errors in one place: the key, the value, and what is allowed; ``kinds`` are the
    types of all sections.

    There are several where each member of a union says why it does not fit.
    """
    error, where = errors[0], [str(part) for part in place]
    name = ".".join(where)
    if error["type"] == "extra_forbidden":
        kind = kinds[where[0]]
        parts = iter(where[1:-1])
        for part in parts:
            given = kind.model_fields[part].annotation
            kind = next((one for one in get_args(given) if hasattr(one, "model_fields")), given)  # or None
            if get_origin(given) is dict:
                next(parts)  # the name of one of several
        return f"{name}: no such key{nearest(where[-1], kind.model_fields)}"
    if error["type"] == "missing":
        example = ', as in name = "fedavg" below [mechanism]' if where[0] == "mechanism" else ""
        return f"{name}: is required{example}"
    if error["type"] == "value_error":
        given = f"{error['input']!r}: " if isinstance(error["input"], str | int | float) else ""
        return f"{name}: {given}{error['ctx']['error']}"
    first, *others = dict.fromkeys(_said(one, name) for one in errors)
    also = (said.removeprefix("must be ").removeprefix("input should be ") for said in others)
    return f"{name}: {error['input']!r}: {', or '.join([first, *also])}"


def _said(error: Any, key: str) -> str:
    """Return what is allowed in the place of one of pydantic's errors."""
    if error["type"] in ("dict_type", "model_type"):
        return 'must be one table, such as { name = "mlp" }, or { } for one without options'
    part = key == "train.epochs" and isinstance(error["input"], float)
    message = _PART if part else _IN_TOML.get(error["type"], error["msg"])
    return f"{message[0].lower()}{message[1:]}"
