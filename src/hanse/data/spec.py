"""What to load and how to split it: the ``[data]`` table of an experiment.

:class:`DataSpec` lists every key with its default and meaning. In Python it is made directly, with keywords; a table
that was read from a file goes through :func:`parse_spec`, whose messages name the key as a user has written it.
:func:`hanse.data.build.build` turns a spec into data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from hanse.base.errors import UserError, nearest
from hanse.base.files import CLIENTS
from hanse.data.augment import AugmentName
from hanse.data.mixtures import check_mix
from hanse.data.natural import NATURAL
from hanse.data.partitions import Choose, Sampler, SizeLaw
from hanse.data.sources import GENERATED, SOURCES, Scale
from hanse.data.tables import TABLES

OBJECT = "object"
"""The source of data that are given as an object."""
# keys that are for the user's own data alone
OWN = ("target", "client_column", "features", "object", "fingerprint")

# sources that have fewer clients than the default number
_FEW = {"flights": 15, "pacs": 4}

PartitionName = Literal["iid", "dirichlet", "niid", "mixture", "cluster", "skew", "pathological", "natural", "pooled"]


class DataSpec(BaseModel):
    """Source, partition and shares of a federation's data.

    A spec is frozen, and it is checked as a whole when it is made: a key that does not exist, a value of another type,
    or keys that contradict each other are errors. Descriptions begin with the partitions or sources that use the key,
    if not all do; with others it is ignored or refused.

    Examples:
        >>> DataSpec(source="digits", clients=4, partition="iid", client_test=0.2).samples_per_client is None
        True
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    source: str = Field(
        "digits",
        description="digits, mnist, fashion_mnist, cifar10, emnist_byclass, emnist_balanced, emnist_letters, "
        "emnist_cased, synthetic, fedsoft_linear, shakespeare, shakespeare_next, femnist, pacs, loans, lending_club, "
        "schools, flights, instructions, "
        "instruction_files, fiqa, tfns, nwgi, code_alpaca, mixed_finance, finance_code, or 'package.module:function'; "
        "'object': what hanse.run(..., data=) was given",
    )
    partition: PartitionName = Field(
        "dirichlet",
        description="how the train samples are split over the clients; the default is natural for synthetic, for "
        "sources that name their clients (shakespeare, femnist, pacs, the tables; with alpha: dirichlet) and for own "
        "data with a client for each sample, and mixture for fedsoft_linear",
    )
    clients: int = Field(
        20,
        ge=1,
        le=CLIENTS,
        description="number of registered clients; natural: this many of the source's clients are chosen (by default "
        "all of flights, pacs and own data); pooled: not used, always 1",
    )
    seed: int = Field(0, ge=0, description="seed of the split and of generated data; run.seed is for the rest")
    alpha: float = Field(
        0.5,
        ge=0,
        description="dirichlet, niid: concentration, above 0, small is skewed; synthetic: variance of the "
        "models' means",
    )
    beta: float = Field(0.5, ge=0, description="synthetic: variance of the inputs' means")
    sampler: Sampler = Field(
        "log",
        description="dirichlet: 'log' is exact at any alpha; 'float32-clamped' draws as GreedyFed's published code did",
    )
    min_samples: int = Field(
        10,
        ge=1,
        description="iid, dirichlet, niid, mixture, cluster, and own data that are no hanse.data.Dataset: least "
        "samples of a client, before its shares are cut",
    )
    classes_per_client: int | None = Field(
        None, ge=1, description="pathological (default 2), skew (default 5): number of classes of each client"
    )
    # the partition "mixture"
    mix: str = Field(
        "10:90",
        description="mixture: 'a:b' (a client's main distribution has b %), 'linear' (client k of N has (k + 0.5) / N "
        "of the first of two), or 'random'",
    )
    test_mix: Literal["same", "inverse"] = Field(
        "same", description="mixture: how a client's test and validation shares are mixed; 'inverse': from the opposite"
    )
    validation_mix: Literal["test", "train"] = Field(
        "test",
        description="mixture: which of its two mixtures a client's validation share is drawn by ('train' in the "
        "code of PI-FL's authors)",
    )
    distributions: Literal["classes", "rotation", "source"] | None = Field(
        None,
        description="mixture: what tells distributions apart: groups of classes, images turned by steps of 90 degrees, "
        "or the source (the default where the source has distributions, else classes)",
    )
    num_distributions: int | None = Field(
        None,
        ge=2,
        description="mixture: number of distributions made by classes (consecutive groups) or rotation; default 2",
    )
    class_groups: list[list[int]] | None = Field(
        None, description="mixture: the classes of each distribution; other classes are not used"
    )
    # the partition "cluster"
    clusters: int = Field(3, ge=1, description="cluster: number of clusters of clients")
    alpha_between: float = Field(0.1, gt=0, description="cluster: Dirichlet concentration between clusters")
    alpha_within: float = Field(10.0, gt=0, description="cluster: Dirichlet concentration inside a cluster")
    # how many samples the clients have
    samples_per_client: int | None = Field(
        None,
        ge=1,
        description="iid, dirichlet, mixture: mean number of samples of a client (default: all samples are used); "
        "synthetic: its exact number (default: lognormal)",
    )
    use_all: bool = Field(
        True,
        description="dirichlet: use all samples, though clients served last take what is left; false: keep every mix, "
        "and use what the class that runs out first allows (as GreedyFed's published code does)",
    )
    sizes: SizeLaw | None = Field(
        None,
        description="iid, dirichlet, mixture: 'power' (the default of dirichlet) or 'equal' (of the others)",
    )
    # what is kept for testing and validation, by clients and by the server
    client_test: float = Field(
        0.0, ge=0, lt=1, description="share of each client's own samples that it keeps for testing"
    )
    client_test_from: Literal["own", "server", "equal", "classes"] = Field(
        "own",
        description="where a client's test share comes from. 'own': cut from its own samples. The others take it from "
        "the server's test set. 'server': its own samples there if the source says whose they are, else samples "
        "drawn with its class mixture, client_test times as many as it trains on (two clients may share some). "
        "'classes': all samples of its classes (its own if the source says whose they are), each class weighted as "
        "in its train samples; client_test must be 0. 'equal': the set is dealt out, the same number of samples of "
        "each class to every client, rounded down; client_test is not used",
    )
    client_validation: float = Field(
        0.0, ge=0, lt=1, description="share of each client's own samples that it keeps for validation"
    )
    validation: float = Field(
        0.5, ge=0, lt=1, description="share of the source's test set that is the server's validation set"
    )
    root: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the source's test set that the server keeps to train on itself (weigh = 'fltrust'); "
        "nobody is valued or tested on it; for clients of this process",
    )
    validation_seed: int | None = Field(
        None, ge=0, description="seed of that cut of the test set; default: data.seed, so that each split has its own"
    )
    # the partition "pooled", and ids for "natural"
    pooled_from: Literal["dirichlet"] | None = Field(
        None,
        description="pooled: only the samples that this partition gives to its clients, with its settings (alpha, "
        "clients, use_all, ...); default: all",
    )
    ids: str | None = Field(
        None, description="natural: path of a .npy file with one integer client id for each train sample"
    )
    # images
    scale: Scale = Field(
        "standard",
        description="image sources: 'standard' (mean 0, deviation 1 over the train set), 'unit' (0 to 1), 'centred' "
        "(-1 to 1), 'inverted' (1 to -1) or 'imagenet' (its published means and deviations; RGB); of femnist and "
        "pacs, 'standard' is 'unit'",
    )
    augment: AugmentName | None = Field(
        None,
        description="changes images each time that they are trained on: 'crop-flip' (padded by 4 pixels on each side, "
        "cut back at a random place, mirrored half of the time) or 'resized-crop-flip' (a random box of 3/4 of the "
        "image or more, enlarged to its size, mirrored half of the time)",
    )
    # the partition "natural"
    choose: Choose = Field(
        "random", description="natural: which of the source's clients take part: a 'random' choice, or the 'largest'"
    )
    per_owner: int = Field(
        1, ge=1, description="natural: each of the source's clients is divided into this many, which form a group"
    )
    test_owners: Literal["own", "next"] = Field(
        "own",
        description="natural: whose samples the test set holds. 'own': of the clients that take part. 'next': all "
        "samples of as many others, the largest that do not take part; clients then train on all of theirs",
    )
    per_owner_alpha: float | None = Field(
        None,
        gt=0,
        description="natural with per_owner: each class of an owner is spread over its clients ~ Dirichlet(alpha) as "
        "in niid; default: evenly",
    )
    # texts
    tokenizer: str = Field(
        "bytes", description="instructions: 'bytes', or a language model's tokenizer by its hub name or folder"
    )
    length: int = Field(
        512, ge=2, description="instructions: tokens of the window; longer ones are cut, and the run notes how many"
    )
    # data of the user's own; OWN lists the keys that other sources refuse
    target: str | None = Field(None, description="own data, tables: the column to be predicted")
    client_column: str | None = Field(None, description="own data, tables: the column with the client of each row")
    features: list[str] | dict[str, list[str]] | None = Field(
        None,
        description="own data, tables: the columns of features (default: all others), or lists of them by the name of "
        "an input, for a model that takes several",
    )
    test: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="own data without a test set: the share of each client's rows that becomes the source's test set",
    )
    object: str | None = Field(
        None, description="what own data that were given as an object are called, for the record"
    )
    fingerprint: str | None = Field(
        None, description="the digest of data that were given as an object; to resume a run, give it the same data"
    )
    # where files come from
    path: str | None = Field(None, description="folder to look for the source's file in, before HANSE_DATA")
    download: bool = Field(True, description="whether a source that is not found may be downloaded")

    @property
    def own(self) -> bool:
        """Whether the data are the user's own: an object, or what an import path returns."""
        return self.source == OBJECT or ":" in self.source

    @property
    def tested_by_clients(self) -> bool:
        """Whether clients have test shares."""
        return self.client_test > 0 or self.client_test_from in ("equal", "classes")

    @field_validator("source")
    @classmethod
    def _known_source(cls, value: str) -> str:
        """Refuse a source that is neither known by name nor an import path."""
        if value not in SOURCES and value not in GENERATED and value != OBJECT and ":" not in value:
            raise ValueError(f"no such source{nearest(value, (*SOURCES, *GENERATED))}")
        return value

    @field_validator("mix")
    @classmethod
    def _known_mix(cls, value: str) -> str:
        """Refuse a law of mixtures that cannot be read."""
        check_mix(value)
        return value

    @field_validator("class_groups")
    @classmethod
    def _disjoint(cls, value: list[list[int]] | None) -> list[list[int]] | None:
        """Refuse groups of classes that are empty or overlap."""
        flat = [c for group in value or [] for c in group]
        if value is not None and (len(value) < 2 or not all(value) or min(flat) < 0 or len(set(flat)) < len(flat)):
            raise ValueError(
                "allowed: two or more lists of classes, none empty, no class twice, such as [[0, 1], [2, 3]]"
            )
        return value

    @model_validator(mode="before")
    @classmethod
    def _by_source(cls, values: Any) -> Any:
        """Fill in what other keys imply: the split that a source comes with, the source of the user's own data."""
        if not isinstance(values, Mapping):
            return values
        if "source" not in values and any(values.get(key) for key in OWN):
            # keys of own data without a source mean the object that is given to hanse.run as data
            return {"source": OBJECT, **values}
        source, found = values.get("source"), dict(values)
        # a generated source makes its samples client by client, so "natural" is the only partition it can have
        if source in GENERATED or (source in (*NATURAL, *TABLES) and "alpha" not in values):
            found.setdefault("partition", "natural")
        if source == "fedsoft_linear":
            found.setdefault("partition", "mixture")
        if source in _FEW and found.get("partition") == "natural":
            found.setdefault("clients", _FEW[source] * values.get("per_owner", 1))
        return found

    @model_validator(mode="after")
    def _consistent(self) -> DataSpec:
        """Refuse values that are allowed one by one and contradict each other."""
        if self.source in GENERATED and self.partition != "natural":
            raise ValueError(
                f"partition = '{self.partition}': the source '{self.source}' makes each client's samples "
                "itself; "
                "allowed: natural, or leave partition out"
            )
        if self.partition in ("dirichlet", "niid") and self.alpha == 0:
            raise ValueError(f"alpha = 0 with partition = '{self.partition}'; allowed: a number above 0")
        if self.client_test + self.client_validation >= 1:
            raise ValueError(
                f"client_test + client_validation = {self.client_test + self.client_validation:g}; "
                "allowed: less than 1, so that something is left to train on"
            )
        if self.validation + self.root >= 1:
            raise ValueError(
                f"validation + root = {self.validation + self.root:g}; allowed: less than 1, so that something is left "
                "to test on"
            )
        if self.augment is not None and self.source in GENERATED:
            raise ValueError(f"augment = '{self.augment}' with source = '{self.source}', which has no images")
        lines = [*self._mixture_lines(), *self._lending_lines(), *self._own_lines()]
        if lines:
            raise ValueError(lines[0])
        return self

    def _mixture_lines(self) -> Iterator[str]:
        """Yield what contradicts a mixture."""
        if self.partition != "mixture":
            return
        if self.class_groups is not None and self.num_distributions not in (None, len(self.class_groups)):
            yield f"num_distributions = {self.num_distributions} with {len(self.class_groups)} class_groups: unequal"
        if self.class_groups is not None and self.distributions in ("rotation", "source"):
            yield f"class_groups with distributions = '{self.distributions}'; allowed with: 'classes'"
        if self.test_mix == "inverse" and self.client_test + self.client_validation == 0:
            yield "test_mix = 'inverse' needs client_test or client_validation above 0: there is nothing to mix"

    def _own_lines(self) -> Iterator[str]:
        """Yield the keys that are for own data alone and are given with a named source."""
        if self.own:
            return
        for key in OWN:
            if getattr(self, key) is not None:
                yield f"{key} = {getattr(self, key)!r}: is for your own data; source = '{self.source}' does not use it"

    def _lending_lines(self) -> Iterator[str]:
        """Yield what contradicts the way in which clients get their test samples."""
        taken = self.client_test_from
        if taken != "own" and (self.partition == "mixture" or self.source in GENERATED):
            where = f"source = '{self.source}'" if self.source in GENERATED else "partition = 'mixture'"
            yield f"client_test_from = '{taken}' with {where}; allowed: 'own'"
        if taken == "classes" and self.client_test > 0:
            yield (
                f"client_test = {self.client_test:g} with client_test_from = 'classes', which takes all test samples "
                "of the client's classes; allowed: 0, or leave client_test out"
            )
        if self.test_owners == "next" and (self.partition != "natural" or self.ids is not None):
            yield "test_owners = 'next' is for partition = 'natural', without ids; allowed: 'own'"


def parse_spec(values: Mapping[str, Any]) -> DataSpec:
    """Return the spec of a mapping, such as a TOML table.

    Raises:
        UserError: one line for each mistake, with the key, the value and what is allowed.
    """
    try:
        return DataSpec.model_validate(dict(values))
    except ValidationError as error:
        raise UserError(*(_line(dict(item)) for item in error.errors())) from error


def _line(item: Mapping[str, Any]) -> str:
    """Return the message of one of pydantic's errors, with the key as ``data.key``."""
    name = ".".join(str(part) for part in ("data", *item["loc"]))
    if item["type"] == "extra_forbidden":
        return f"{name}: no such key{nearest(str(item['loc'][-1]), DataSpec.model_fields)}"
    message = item["msg"].removeprefix("Value error, ")
    if not item["loc"]:
        return f"data: {message}"
    return f"{name} = {item['input']!r}: {message[0].lower()}{message[1:]}"
