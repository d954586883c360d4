"""The ``[data]`` table of an experiment: what to load and how to split it.

The first classes are the forms of a user's own data that ``[data] source`` can name; the named sources are in
:mod:`hanse.data.sources`. Their fields are their options, which :mod:`hanse.base.factories` checks. Partitions are in
:mod:`hanse.data.partitions`. :func:`source_of` and :func:`partition_of` turn a name, or a table of a name and options,
into the choice. :func:`table_of` does the reverse.

:class:`DataSpec` lists every key with its default and meaning. In Python, create it with keywords. :func:`parse_spec`
reads a table from a file, with messages that name keys as they are written there. :func:`hanse.data.build.build` turns
a spec into data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from hanse.base.errors import UserError, gated, nearest
from hanse.base.factories import OBJECT, PartShare, Positive, call, defaults
from hanse.base.files import CLIENTS
from hanse.base.imports import named
from hanse.base.wings import Names
from hanse.data.augment import AugmentName
from hanse.data.encoding import Statistics
from hanse.data.kinds import Column
from hanse.data.mixtures import MixturePartition
from hanse.data.partitions import Cluster, Deal, Dirichlet, Iid, Indices, Natural, Niid, Pathological, Pooled, Skew
from hanse.data.schema import digest
from hanse.data.shares import Cuts
from hanse.data.sources import SOURCES, Generated, Source, SourceEntry
from hanse.data.units import Cut

SCHEMA_TABLES = "tables"
"""The source of tables that a schema says how to read."""


@dataclass(frozen=True)
class OwnData:
    """The user's own data: what a function returns, or an object that is given to :func:`hanse.run`.

    Attributes:
        name: the function's import path, or "object".
        target: the column to be predicted.
        client_column: the column with the client of each row.
        features: the columns of features (default: all other columns).
        test: if the data have no test set, the share of each client's rows that becomes the source's test set.
        min_samples: least samples of a client, unless the data are a :class:`hanse.data.Dataset`.
        prepare: how a table's columns become numbers. "auto" fills gaps, scales numbers, and makes columns of words and
            dates. The alternative is the import path of a function that returns a transformer, such as scikit-learn's
            ``ColumnTransformer``. Left out: the columns are numbers already.
        statistics: on which rows ``prepare`` is fitted: each client's "own" rows, or the "pooled" rows of all clients.
        group: the column that says what each row is of, such as its patient: no split divides one, and intervals count
            them. "none": every row is a unit of its own. Empty: it is not said.
        time: the column that says when a row was observed: later rows are never trained on.
        cut: with ``time``, the date that divides a client's rows: one of its own ("each_client"), or one for all
            ("all_clients").
        labels: what labels are to be called that clients call otherwise, such as { krank = "ill" }; in a table under a
            client's name for that client alone.
        object: the name of data given as an object, for the record.
        fingerprint: the digest of data that were given as an object; it does not depend on the seed of their split. To
            resume a run, give it the same data.
    """

    name: str
    target: Column | list[Column] | None = None
    client_column: Column | None = None
    features: list[Column] | None = None
    test: PartShare = 0.2
    min_samples: Positive = 10
    prepare: str | None = None
    statistics: Statistics = "own"
    group: Column = ""  # not None, for which "none" stands in a file
    time: Column | None = None
    cut: Cut = "each_client"
    labels: dict[str, str | int | dict[str, str | int]] | None = None
    object: str | None = None
    fingerprint: str | None = None


@dataclass(frozen=True)
class SchemaTables:
    """CSV files, a file each client or one of all, which a schema says how to read (:mod:`hanse.data.schema`).

    Attributes:
        name: the source's name.
        schema: the schema's file, as ``hanse schema`` makes it. It also says which shares clients keep.
        files: the tables. On a network each participant names its own.
        sha256: SHA-256 of the schema's file. If it is given, another schema is refused.
    """

    name: str
    schema: str
    files: list[str] | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None

    @property
    def agreed(self) -> str:
        """The hash of the schema that members agree on. Raises UserError if there is no such file."""
        return self.sha256 or digest(self.schema)


SOURCE_KINDS = Names(
    {**{name: entry.options for name, entry in SOURCES.own.items()}, OBJECT: OwnData, SCHEMA_TABLES: SchemaTables},
    "sources",
    attrgetter("options"),
)
"""The class of each source by its name: of the named ones, and of the forms that a user's own data have."""


@dataclass(frozen=True)
class OwnPartition(Deal):
    """A partition of the user's own: a function of the labels ``[n]``, the number of clients and the seed, which
    returns the rows of each client. Its further parameters are options.

    Attributes:
        name: its import path, which is followed when data are split.
        options: its options.
    """

    by_class = False
    name: str
    options: Mapping[str, Any]

    def deal(self, labels: NDArray[Any], clients: int, seed: int, classes: int) -> Indices:
        """Call the function. Raises UserError if it returns anything but rows by client; ``classes`` is not used."""
        where, (make, options) = f"data.partition: '{self.name}'", named(table_of(self), "data.partition", PARTITIONS)
        with gated(where):
            given = np.broadcast_to(labels, labels.shape), clients, seed  # labels that nobody can change
            dealt = [np.sort(np.asarray(rows)) for rows in call(make, options, "data.partition", ["name"], given)]
        ends = (rows[[0, -1]] if len(rows) else np.zeros(2, np.int64) for rows in dealt)  # they are in order
        bad = [k for k, at in enumerate(ends) if at.dtype.kind not in "iu" or not 0 <= at[0] <= at[1] < len(labels)]
        if bad or len(dealt) != clients:
            found = f"clients: {len(dealt)}, no row numbers for {bad[:9]}"
            raise UserError(f"{where}: {found}; must be rows 0 to {len(labels) - 1} of data.clients = {clients}")
        return [rows.astype(np.int64) for rows in dealt]


Split = Iid | Dirichlet | Niid | MixturePartition | Cluster | Skew | Pathological | Natural | Pooled | OwnPartition
PARTITIONS: Mapping[str, type[Split]] = {
    kind.name: kind for kind in (Iid, Dirichlet, Niid, MixturePartition, Cluster, Skew, Pathological, Natural, Pooled)
}
"""The partitions by name."""


def _given(given: Any, default: str) -> Any:
    """Return a setting with its name: a table without one is of tables by a schema if it names one, else it has options
    of the default.
    """
    return {"name": SCHEMA_TABLES if "schema" in given else default, **given} if isinstance(given, Mapping) else given


def partition_of(given: Any) -> Split:
    """Return the partition of a name or an import path, or of a table of either and options ("dirichlet" for one
    without a name); a partition is returned unchanged. Raises UserError with a line for each mistake.
    """
    if isinstance(given, Split):
        return given
    table = {"name": given} if isinstance(given, str) else given
    if isinstance(table, Mapping) and ":" in str(table.get("name")):
        return OwnPartition(table["name"], {key: one for key, one in table.items() if key != "name"})
    make, options = named(_given(given, Dirichlet.name), "data.partition", PARTITIONS)
    made: Split = call(make, options, "data.partition", ["name"])
    return made


def source_of(given: Any) -> Source:
    """Return the source for a name or an import path, or a table with either and options. A table without a name means
    tables by a schema if it names one, else data given as an object.

    Raises:
        UserError: with a line for each mistake.
    """
    if not isinstance(given, str | Mapping) and type(given) in SOURCE_KINDS.values():
        source: Source = given
        return source
    table = _given(given, OBJECT)
    name = table.get("name") if isinstance(table, Mapping) else table
    # an import path is followed when data are loaded, not when a file is checked
    kinds = {name: OwnData} if isinstance(name, str) and ":" in name else SOURCE_KINDS
    make, options = named(table, "data.source", kinds)
    made: Source = call(make, options, "data.source", ["name"], first=(name,))
    return made


def table_of(choice: Any) -> dict[str, Any]:
    """Return a choice, a source or a partition, as a table of its name and all options."""
    if isinstance(choice, OwnPartition):
        return {"name": choice.name, **choice.options}
    options = {f.name: getattr(choice, f.name) for f in fields(choice) if f.init}
    if isinstance(choice, Pooled) and choice.whole is not None:
        options["of"] = table_of(choice.whole)
    return {"name": choice.name, **options}


_WRITTEN = PlainSerializer(table_of, return_type=dict)
_ALLOWED = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})
SourceField = Annotated[Source, PlainValidator(source_of), _WRITTEN, _ALLOWED]
PartitionField = Annotated[Split, PlainValidator(partition_of), _WRITTEN, _ALLOWED]


class DataSpec(BaseModel):
    """Source, partition and shares of a federation's data.

    A spec is frozen and checked on creation: unknown keys, values of the wrong type, options without effect and
    contradictory keys are errors. ``source`` and ``partition`` are given as a name or a table of a name and its
    options, and stored as the objects above.

    Attributes:
        source: the samples: a source's name, an import path 'package.module:function', or a table with either and
            options; 'object', or a table without a name: what hanse.run(..., data=) was given
        partition: how the train samples are split over the clients: a partition's name, an import path
            'package.module:function', or a table with either and options; without a name the options are those of the
            default. The default is natural for synthetic, for sources that name their clients (shakespeare, femnist,
            pacs, the tables) and for own data with a client for each sample, mixture for fedsoft_linear, and dirichlet
            for all others
        clients: number of registered clients; natural: this many of the source's clients are chosen (by default all of
            flights, pacs and own data); pooled: always 1
        seed: seed of the split and of generated data; run.seed is for the rest
        client_test: share of each client's samples that it keeps for testing
        client_test_from: where a client's test share comes from. 'own': cut from its own samples. The others take it
            from the server's test set. 'server': its own samples there if the source says whose they are, else samples
            drawn with its class mixture, client_test times as many as it trains on (two clients may share some).
            'classes': all samples of its classes (its own if the source says whose they are), each class weighted as in
            its train samples; client_test must be 0. 'equal': the set is dealt out, the same number of samples of each
            class to every client, rounded down; client_test is not used
        client_validation: share of each client's own samples that it keeps for validation
        validation: share of the source's test set that is the server's validation set
        root: share of the source's test set that the server keeps to train on itself (weigh = 'fltrust'); nobody is
            valued or tested on it; for clients of this process
        validation_seed: seed of that split; default: data.seed
        augment: changes images each time they are used in training: 'crop-flip' (padded by 4 pixels on each side, cut
            back at a random place, mirrored half of the time)
        path: folder to look for the source's file in, before HANSE_DATA
        download: whether a source that is not found may be downloaded

    Examples:
        >>> spec = DataSpec(source="digits", clients=4, partition={"name": "niid", "alpha": 0.1}, client_test=0.2)
        >>> spec.partition, spec.source.name
        (Niid(alpha=0.1, min_samples=10), 'digits')
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    source: SourceField = source_of("digits")
    partition: PartitionField = partition_of("dirichlet")
    clients: int = Field(20, ge=1, le=CLIENTS)
    seed: int = Field(0, ge=0)
    # what is kept for testing and validation, by clients and by the server
    client_test: float = Field(0.0, ge=0, lt=1)
    client_test_from: Literal["own", "server", "equal", "classes"] = "own"
    client_validation: float = Field(0.0, ge=0, lt=1)
    validation: float = Field(0.5, ge=0, lt=1)
    root: float = Field(0.0, ge=0, lt=1)
    validation_seed: int | None = Field(None, ge=0)
    augment: AugmentName | None = None
    # where files come from
    path: str | None = None
    download: bool = True

    @property
    def tested_by_clients(self) -> bool:
        """Whether clients have test shares."""
        return self.client_test > 0 or self.client_test_from in ("equal", "classes")

    @property
    def cuts(self) -> Cuts:
        """How the data are cut into shares."""
        return Cuts(**{one.name: getattr(self, one.name) for one in fields(Cuts)})

    @model_validator(mode="before")
    @classmethod
    def _by_source(cls, values: Any) -> Any:
        """Fill in what other keys imply: the split that a source comes with, and how many clients it has."""
        if not isinstance(values, Mapping):
            return values
        found, name = dict(values), _name(values.get("source"), OBJECT)
        entry: SourceEntry | None = SOURCES.get(name) if name else None
        usual = entry.partition if entry else "natural" if name == SCHEMA_TABLES else "dirichlet"
        given = values.get("partition")
        if "partition" in values or usual != "dirichlet":
            chosen = {"name": usual, **given} if isinstance(given, Mapping) else given
            found["partition"] = usual if given is None else chosen
        if entry and entry.clients and _name(found.get("partition"), usual) == "natural":
            owners = found["partition"].get("per_owner", 1) if isinstance(found.get("partition"), Mapping) else 1
            found.setdefault("clients", entry.clients * owners if isinstance(owners, int) else entry.clients)
        return found

    @model_validator(mode="after")
    def _consistent(self) -> DataSpec:
        """Refuse values that are allowed one by one and contradict each other."""
        if lines := [*self._mistakes()]:
            raise UserError(*(f"data.{line}" for line in lines))
        return self

    def _mistakes(self) -> Iterator[str]:
        """Yield what contradicts the source or the partition, shares that leave nothing, and what does not go with the
        way in which clients get their test samples.
        """
        source, partition = self.source, self.partition
        if isinstance(source, Generated):
            if partition != Natural():
                yield (
                    f"partition: '{partition.name}': the source '{source.name}' makes each client's samples itself; "
                    "allowed: 'natural' without options, or leave partition out"
                )
            if self.augment is not None:
                yield f"augment: '{self.augment}': source '{source.name}' has no images; leave augment out"
        if isinstance(source, OwnData) and source.name != OBJECT and (source.object or source.fingerprint):
            yield "source: object and fingerprint are of data that were given as an object; leave them out"
        if isinstance(source, OwnData) and source.cut != "each_client" and source.time is None:
            yield f"source.cut: '{source.cut}': has no effect without time; leave it out"
        if isinstance(source, SchemaTables):
            if partition != Natural():
                yield f"partition: '{partition.name}': a schema's tables are clients: must be 'natural', or left out"
            if self.client_test_from != "own":
                yield f"client_test_from: '{self.client_test_from}': the schema says what clients keep; allowed: 'own'"
            for key, usual in (("validation", 0.5), ("root", 0.0), ("validation_seed", None)):
                if (value := getattr(self, key)) not in (usual, 0.0):
                    yield f"{key}: {value:g}: a schema's tables leave the server no samples; leave it out"
        inverse = isinstance(partition, MixturePartition) and partition.test_mix == "inverse"
        if inverse and self.client_test + self.client_validation == 0:
            yield (
                "partition.test_mix: 'inverse': needs client_test or client_validation above 0: there is nothing to mix"
            )
        if (both := self.client_test + self.client_validation) >= 1:
            yield f"client_test: with client_validation {both:g}; allowed: less than 1, to leave some to train on"
        if (both := self.validation + self.root) >= 1:
            yield f"validation: with root {both:g}; allowed: less than 1, to leave some to test on"
        taken, generated = self.client_test_from, isinstance(source, Generated)
        if taken != "own" and (isinstance(partition, MixturePartition) or generated):
            where = f"source '{source.name}'" if generated else "partition 'mixture'"
            yield f"client_test_from: '{taken}' with {where}; allowed: 'own'"
        if taken == "classes" and self.client_test > 0:
            yield (
                f"client_test: {self.client_test:g} with client_test_from = 'classes', which takes all test samples "
                "of the client's classes; allowed: 0, or leave client_test out"
            )


def _name(given: Any, default: str) -> str | None:
    """Return the name in a source or partition as it is given; None if it is none."""
    given = _given(given, default)
    name = given["name"] if isinstance(given, Mapping) else getattr(given, "name", given)
    return name if isinstance(name, str) else None


def parse_spec(values: Mapping[str, Any]) -> DataSpec:
    """Return the spec of a mapping, such as a TOML table.

    Raises:
        UserError: one line for each mistake, with the key, the value and what is allowed.
    """
    try:
        return DataSpec.model_validate(dict(values))
    except ValidationError as error:
        raise UserError(*(line for item in error.errors() for line in mistakes(item, item["loc"], values))) from error


def mistakes(item: Any, loc: tuple[Any, ...], values: Any) -> list[str]:
    """Return the lines of one of pydantic's errors, with the key as ``data.key``.

    Args:
        item: the error.
        loc: the key below ``data``.
        values: the whole ``[data]`` table, used to say where a misplaced key belongs.
    """
    name = ".".join(str(part) for part in ("data", *loc))
    wrong = item.get("ctx", {}).get("error")
    if isinstance(wrong, UserError):
        return list(wrong.lines)
    if item["type"] == "extra_forbidden":
        key = str(loc[-1])
        kinds = (("partition", PARTITIONS), ("source", SOURCE_KINDS))
        of = [slot for slot, known in kinds if any(key in defaults(make) for make in known.values())]
        return [f"{name}: no such key{f': an option of data.{of[0]}' if of else nearest(key, DataSpec.model_fields)}"]
    message = item["msg"].removeprefix("Value error, ")
    return [f"{name}: {item['input']!r}: {message[0].lower()}{message[1:]}"]
