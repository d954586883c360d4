"""The sources and partitions that ``[data] source`` and ``[data] partition`` can name, with their options.

Each class here is one choice and its fields are the options of that choice; :mod:`hanse.base.factories` checks them.
:func:`source_of` and :func:`partition_of` turn a name, or a table of a name and options, into the choice.
:func:`table_of` does the reverse. :mod:`hanse.data.build` carries the choices out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import Field

from hanse.base.errors import UserError, named, nearest
from hanse.base.factories import OBJECT, Positive, Rate, Weight, call
from hanse.base.wings import Names
from hanse.data.kinds import Column
from hanse.data.mixtures import check_mix
from hanse.data.partitions import Choose, Sampler, SizeLaw
from hanse.data.preparing import Statistics
from hanse.data.schema import digest
from hanse.data.sources import GENERATED, IMAGES, SOURCES, Scale
from hanse.data.units import Cut

TABLES = "tables"
"""The source of tables that a schema says how to read."""

Part = Annotated[float, Field(ge=0, lt=1)]


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
        features: the columns of features (default: all other columns). For a model with several inputs, a list of
            columns for each input by name.
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
    target: Column | None = None
    client_column: Column | None = None
    features: list[Column] | dict[str, list[Column]] | None = None
    test: Part = 0.2
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
class Iid:
    """Samples dealt at random.

    Attributes:
        samples_per_client: mean number of samples of a client. If left out, all samples are used.
        sizes: how clients' numbers of samples are drawn: 'equal', or 'power' for GreedyFed's power law.
        min_samples: least samples of a client, before its shares are cut.
    """

    name: ClassVar[str] = "iid"
    samples_per_client: Positive | None = None
    sizes: SizeLaw = "equal"
    min_samples: Positive = 10


@dataclass(frozen=True)
class Dirichlet:
    """A label mix ~ Dirichlet(alpha) and a power-law size per client (GreedyFed).

    Attributes:
        alpha: the concentration. The smaller it is, the more skewed are the mixes.
        sampler: 'log' is exact at any alpha; 'float32-clamped' draws as GreedyFed's published code did.
        use_all: whether to use all samples; clients served last then take what is left. false: every client keeps its
            mix, and only as many samples are used as the class that runs out first allows (as GreedyFed's published
            code does).
        samples_per_client: mean number of samples of a client. If left out, all samples are used.
        sizes: how clients' numbers of samples are drawn: 'power' or 'equal'.
        min_samples: least samples of a client, before its shares are cut.
    """

    name: ClassVar[str] = "dirichlet"
    alpha: Rate = 0.5
    sampler: Sampler = "log"
    use_all: bool = True
    samples_per_client: Positive | None = None
    sizes: SizeLaw = "power"
    min_samples: Positive = 10


@dataclass(frozen=True)
class Niid:
    """Each class spread over the clients ~ Dirichlet(alpha) (Li et al. 2022).

    Attributes:
        alpha: the concentration. The smaller it is, the more skewed are the shares.
        min_samples: least samples of a client, before its shares are cut.
    """

    name: ClassVar[str] = "niid"
    alpha: Rate = 0.5
    min_samples: Positive = 10


@dataclass(frozen=True)
class MixturePartition:
    """Each client's data mix two or more distributions; for testing, the mix is the same or inverted (PI-FL).

    Attributes:
        mix: the train mixture: 'a:b' (b % come from a client's main distribution), 'linear' (client k of N has the
            share (k + 0.5) / N of the first of two distributions), or 'random'.
        test_mix: how a client's test and validation shares are mixed: the 'same' as for training, or 'inverse', with
            the shares of opposite distributions exchanged.
        validation_mix: whether a client's validation share follows its 'test' or its 'train' mixture ('train' in the
            code of PI-FL's authors).
        distributions: what distinguishes the distributions: groups of classes, images turned by steps of 90 degrees, or
            the source itself. The source is the default if it has distributions; otherwise classes are.
        num_distributions: number of distributions made by classes (consecutive groups) or rotation; default 2.
        class_groups: the classes of each distribution; other classes are not used.
        samples_per_client: mean number of samples of a client. If left out, as many as the scarcest distribution
            allows.
        sizes: how clients' numbers of samples are drawn: 'equal' or 'power'.
        min_samples: least samples of a client, before its shares are cut.
    """

    name: ClassVar[str] = "mixture"
    mix: str = "10:90"
    test_mix: Literal["same", "inverse"] = "same"
    validation_mix: Literal["test", "train"] = "test"
    distributions: Literal["classes", "rotation", "source"] | None = None
    num_distributions: Annotated[int, Field(ge=2)] | None = None
    class_groups: list[list[int]] | None = None
    samples_per_client: Positive | None = None
    sizes: SizeLaw = "equal"
    min_samples: Positive = 10

    def __post_init__(self) -> None:
        try:
            check_mix(self.mix)
        except ValueError as wrong:
            raise UserError(f"mix: {self.mix!r}: {wrong}") from None
        groups = self.class_groups
        if groups is None:
            return
        flat = [c for group in groups for c in group]
        if len(groups) < 2 or not all(groups) or min(flat) < 0 or len(set(flat)) < len(flat):
            raise UserError(
                f"class_groups: {groups!r}: allowed: two or more lists of classes, none empty, no class twice, such as "
                "[[0, 1], [2, 3]]"
            )
        if self.num_distributions not in (None, len(groups)):
            raise UserError(f"num_distributions: {self.num_distributions}: class_groups has {len(groups)} groups")
        if self.distributions in ("rotation", "source"):
            raise UserError(f"class_groups: has no effect with distributions = '{self.distributions}'; leave it out")


@dataclass(frozen=True)
class Cluster:
    """Clusters of clients: alike inside, unlike between (iPFL).

    Attributes:
        clusters: number of clusters of clients.
        alpha_between: Dirichlet concentration between clusters.
        alpha_within: Dirichlet concentration inside a cluster.
        min_samples: least samples of a client, before its shares are cut.
    """

    name: ClassVar[str] = "cluster"
    clusters: Positive = 3
    alpha_between: Rate = 0.1
    alpha_within: Rate = 10.0
    min_samples: Positive = 10


@dataclass(frozen=True)
class Skew:
    """Clusters of clients with the same few classes (iPFL).

    Attributes:
        classes_per_client: number of classes of each client.
    """

    name: ClassVar[str] = "skew"
    classes_per_client: Positive = 5


@dataclass(frozen=True)
class Pathological:
    """Exactly ``classes_per_client`` classes per client (after McMahan et al. 2017).

    Attributes:
        classes_per_client: number of classes of each client.
    """

    name: ClassVar[str] = "pathological"
    classes_per_client: Positive = 2


@dataclass(frozen=True)
class Natural:
    """The source's own clients.

    Attributes:
        choose: which of the source's clients take part: a 'random' choice, or the 'largest' ones.
        per_owner: each of the source's clients is divided into this many, which form a group.
        per_owner_alpha: with ``per_owner``: each class of an owner is spread over the owner's clients ~ Dirichlet with
            this concentration, as in niid. If left out, it is spread evenly.
        min_samples: least samples of a client, with ``per_owner_alpha``.
        test_owners: whose samples the test set holds. 'own': those of the owners that take part. 'next': those of as
            many other owners, the largest that do not take part, with all their samples; clients then train on all of
            their own samples.
        ids: path of a .npy file with one integer client id for each train sample.
    """

    name: ClassVar[str] = "natural"
    choose: Choose = "random"
    per_owner: Positive = 1
    per_owner_alpha: Rate | None = None
    min_samples: Positive = 10
    test_owners: Literal["own", "next"] = "own"
    ids: str | None = None

    def __post_init__(self) -> None:
        if self.per_owner_alpha is not None and self.per_owner == 1:
            raise UserError(
                f"per_owner_alpha: {self.per_owner_alpha:g}: has no effect with per_owner = 1; leave it out"
            )
        if self.per_owner_alpha is None and self.min_samples != 10:
            raise UserError(f"min_samples: {self.min_samples}: has no effect without per_owner_alpha; leave it out")
        if self.test_owners == "next" and self.ids is not None:
            raise UserError("test_owners: 'next': is for the source's own clients, without ids; allowed: 'own'")


@dataclass(frozen=True)
class Pooled:
    """One client with everything: centralised training.

    Attributes:
        of: the name or table of a partition; only 'dirichlet' is allowed. The client then gets only the samples that
            this partition would give to ``data.clients`` clients. If left out, it gets all samples.
    """

    name: ClassVar[str] = "pooled"
    of: str | dict[str, Any] | None = None
    whole: Dirichlet | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.of is None:
            return
        made = partition_of(self.of, "dirichlet", "data.partition.of")
        if not isinstance(made, Dirichlet):
            raise UserError(f"of: '{made.name}': allowed: 'dirichlet'")
        object.__setattr__(self, "whole", made)


Split = Iid | Dirichlet | Niid | MixturePartition | Cluster | Skew | Pathological | Natural | Pooled
PARTITIONS: Mapping[str, type[Split]] = {
    kind.name: kind for kind in (Iid, Dirichlet, Niid, MixturePartition, Cluster, Skew, Pathological, Natural, Pooled)
}
"""The partitions by name."""
BY_LABEL = (Dirichlet, Niid, Cluster, Skew, Pathological)
"""Partitions that need one class label a sample."""


def _given(given: Any, default: str) -> Any:
    """Return a setting with its name: a table without one has options of the default."""
    return {"name": default, **given} if isinstance(given, Mapping) else given


def partition_of(given: Any, default: str = "dirichlet", where: str = "data.partition") -> Split:
    """Return the partition of a name, or of a table of a name and options.

    Args:
        given: the name or table; a partition is returned unchanged.
        default: the name for a table without one.
        where: the name of the key in messages.

    Raises:
        UserError: with a line for each mistake.
    """
    if isinstance(given, tuple(PARTITIONS.values())):
        return given  # type: ignore[return-value]
    make, options = _known(_given(given, default), where, PARTITIONS)
    made: Split = call(make, options, where, ["name"])
    return made


def _known(given: Any, where: str, known: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return what :func:`hanse.base.errors.named` does, for names alone: an import path is not such a name."""
    name = given.get("name") if isinstance(given, Mapping) else given
    if isinstance(name, str) and name not in known:
        raise UserError(f"{where}: '{name}': no such name{nearest(name, known)}")
    return named(given, where, known)


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
    make, options = _known(table, "data.source", Names({**SOURCE_KINDS.own, **own}, "source_options"))
    made: Source = call(make, options, "data.source", ["name"], first=(name,))
    return made


def table_of(choice: Any) -> dict[str, Any]:
    """Return a choice, a source or a partition, as a table of its name and all options."""
    options = {f.name: getattr(choice, f.name) for f in fields(choice) if f.init}
    if isinstance(choice, Pooled) and choice.whole is not None:
        options["of"] = table_of(choice.whole)
    return {"name": choice.name, **options}
