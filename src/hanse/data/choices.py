"""The sources and partitions that ``[data] source`` and ``[data] partition`` can name, with their options.

Each class here is one choice and its fields are the options of that choice; :mod:`hanse.base.factories` checks them.
:func:`source_of` and :func:`partition_of` turn a name, or a table of a name and options, into the choice.
:func:`table_of` does the reverse. :mod:`hanse.data.build` carries the choices out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hanse.base.errors import UserError, gated, named
from hanse.base.factories import OBJECT, PartShare, Positive, Weight, call
from hanse.base.wings import Names
from hanse.data.kinds import Column
from hanse.data.mixtures import MixturePartition
from hanse.data.partitions import Cluster, Dealt, Dirichlet, Iid, Natural, Niid, Pathological, Pooled, Skew
from hanse.data.preparing import Statistics
from hanse.data.schema import digest
from hanse.data.sources import GENERATED, IMAGES, SOURCES, Scale
from hanse.data.units import Cut

TABLES = "tables"
"""The source of tables that a schema says how to read."""


@dataclass(frozen=True)
class PlainSource:
    """A source without options.

    Attributes:
        name: the source's name.
    """

    name: str


@dataclass(frozen=True)
class Images:
    """A source of images.

    Attributes:
        name: the source's name.
        scale: 'standard' (mean 0, deviation 1 over the train set; for femnist and pacs the same as 'unit'), 'unit' (0
            to 1), 'centred' (-1 to 1), 'inverted' (1 to -1) or 'imagenet' (its published means and deviations; only for
            RGB images).
    """

    name: str
    scale: Scale = "standard"


@dataclass(frozen=True)
class Generated:
    """A source that makes each client's samples on demand (:class:`hanse.data.synthetic.Synthetic`).

    Attributes:
        name: the source's name.
        alpha: the variance of the models' means.
        beta: the variance of the inputs' means.
        samples_per_client: each client's number of samples. If left out, it is lognormal.
    """

    name: str
    alpha: Weight = 0.5
    beta: Weight = 0.5
    samples_per_client: Positive | None = None


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


class Source(Protocol):
    """A chosen source with its options: one of the classes here, or a wing's."""

    @property
    def name(self) -> str:
        """The source's name, or the import path of a function."""


SOURCE_KINDS = Names(
    {
        **dict.fromkeys(SOURCES.own, PlainSource),
        **dict.fromkeys((*IMAGES, "femnist", "pacs"), Images),
        **dict.fromkeys(GENERATED, Generated),
        OBJECT: OwnData,
        TABLES: SchemaTables,
    },
    "source_options",
)
"""The class of each source by its name; that of a wing has the field ``name``, too."""


@dataclass(frozen=True)
class OwnPartition:
    """A partition of the user's own: a function of the labels ``[n]``, the number of clients and the seed, which
    returns the rows of each client. Its further parameters are options.

    Attributes:
        name: its import path, which is followed when data are split.
        options: its options.
    """

    name: str
    options: Mapping[str, Any]

    def deal(self, labels: NDArray[Any], clients: int, seed: int, classes: int) -> Dealt:
        """Call the function. Raises UserError if it returns anything but rows by client; ``classes`` is not used."""
        where, (make, options) = f"data.partition: '{self.name}'", named(table_of(self), "data.partition", PARTITIONS)
        with gated(where):
            given = np.broadcast_to(labels, labels.shape), clients, seed  # labels that nobody can change
            dealt = [np.sort(np.asarray(rows)) for rows in call(make, options, "data.partition", ["name"], given)]
        ends = (rows[[0, -1]] if len(rows) else np.zeros(2, np.int64) for rows in dealt)  # they are in order
        bad = [k for k, at in enumerate(ends) if at.dtype.kind not in "iu" or not 0 <= at[0] <= at[1] < len(labels)]
        if bad or len(dealt) != clients:
            found = f"{len(dealt)} clients, no row numbers for {bad[:9]}"
            raise UserError(f"{where}: {found}; must be rows 0 to {len(labels) - 1} of data.clients = {clients}")
        return [rows.astype(np.int64) for rows in dealt], None


Split = Iid | Dirichlet | Niid | MixturePartition | Cluster | Skew | Pathological | Natural | Pooled | OwnPartition
PARTITIONS: Mapping[str, type[Split]] = {
    kind.name: kind for kind in (Iid, Dirichlet, Niid, MixturePartition, Cluster, Skew, Pathological, Natural, Pooled)
}
"""The partitions by name."""


def _given(given: Any, default: str) -> Any:
    """Return a setting with its name: a table without one has options of the default."""
    return {"name": default, **given} if isinstance(given, Mapping) else given


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
    table = _given(given, TABLES if isinstance(given, Mapping) and "schema" in given else OBJECT)
    name = table.get("name") if isinstance(table, Mapping) else table
    # an import path is followed when data are loaded, not when a file is checked
    own = {name: OwnData} if isinstance(name, str) and ":" in name else {}
    make, options = named(table, "data.source", Names({**SOURCE_KINDS.own, **own}, "source_options"))
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
