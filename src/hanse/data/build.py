"""Makes the data of a federation from a :class:`DataSpec`.

:func:`build` is the entry point: it loads the source, splits it and cuts the server's sets. Its steps are separate
functions. :func:`with_own` reads the user's own data. A run calls it first, to record the settings that follow from
these data. :func:`prepared` converts a data set to the form that its partition needs, and :func:`split` makes the
partition.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.factories import OBJECT
from hanse.base.pytorch import torch
from hanse.base.streams import stream
from hanse.data.augment import Augment
from hanse.data.dataset import Dataset
from hanse.data.federated import FederatedData, SplitData, gaps_of
from hanse.data.fingerprint import of_samples, of_text
from hanse.data.kinds import first_few
from hanse.data.mixtures import MixturePartition
from hanse.data.own import as_dataset
from hanse.data.partitions import Iid, Natural, Partition, Pooled
from hanse.data.samples import Samples
from hanse.data.schema import Schema, digest, doubts, fitted, joined, read_sites
from hanse.data.shares import Cuts
from hanse.data.sources import imported, load
from hanse.data.spec import PARTITIONS, DataSpec, Generated, Images, OwnData, OwnPartition, SchemaTables
from hanse.data.synthetic import GeneratedData, Synthetic
from hanse.data.units import numbered

_LARGE = 10.0  # size (root mean square) of a feature that is taken as not scaled


def with_own(spec: DataSpec, given: Any = None) -> tuple[DataSpec, Dataset | None]:
    """Read the user's own data, and write the settings that they imply into the spec.

    If the data name each sample's client, the partition is "natural" unless the spec names one, with all clients unless
    the spec gives their number. For data given as an object, their name and digest are written into the spec, so a
    resumed run can check that it gets the same data.

    Args:
        spec: the experiment's ``[data]`` section.
        given: the data as an object, in any form of :mod:`hanse.data.own`. None: the spec's import path is followed.

    Returns:
        The spec with these settings, and the data set. For a named source, the unchanged spec and None.

    Raises:
        UserError: the spec needs an object that was not given, or the data cannot be used.
    """
    source = spec.source
    if given is not None:
        source = replace(source, name=OBJECT) if isinstance(source, OwnData) else OwnData(OBJECT)
    if isinstance(source, SchemaTables):
        return _by_schema(spec, source)
    if not isinstance(source, OwnData):
        return spec, None
    if given is None and source.name == OBJECT:
        what = f" (of this run '{source.object}', fingerprint {source.fingerprint})" if source.fingerprint else ""
        raise UserError(
            f"data.source: 'object': the data are given as an object{what}: hanse.run(..., data=...) and "
            "hanse.resume(run_dir, data=...) need it; an import path 'module:function' is found by every command"
        )
    if given is None:
        root = Path(spec.path).expanduser() if spec.path else None
        given = imported(source.name, root=root, seed=spec.seed, download=spec.download)
    named = inspect.signature(as_dataset).parameters
    options: dict[str, Any] = {key: None if one == "" else one for key, one in vars(source).items() if key in named}
    options["name"] = source.name if source.name != OBJECT else source.object or ""
    read = partial(as_dataset, given, client=source.client_column, **options)
    dataset = read(seed=spec.seed)
    # what the data decide, where the user has said nothing
    if source.name == OBJECT:
        same = dataset if spec.seed == 0 else read(seed=0)  # the same data have one digest, whatever rows a seed draws
        digest = of_text(of_samples(same.train) + of_samples(same.test))
        source = replace(source, object=dataset.name[:200], fingerprint=digest)
    changed: dict[str, Any] = {"source": source}
    given_keys, owners, partition = spec.model_fields_set, dataset.client_of, spec.partition
    if "partition" not in given_keys and (owners is not None or dataset.train.units is not None):
        changed["partition"] = partition = Natural() if owners is not None else Iid()
    if owners is not None and isinstance(partition, Natural) and "clients" not in given_keys:
        changed["clients"] = len(np.unique(owners)) * partition.per_owner
    return spec.model_copy(update=changed), dataset


def _by_schema(spec: DataSpec, source: SchemaTables) -> tuple[DataSpec, Dataset]:
    """Return the spec with the shares, the clients and the hash of a schema's tables, and their data set.

    Raises:
        UserError: another schema was agreed on, the spec names other shares, or a table does not fit.
    """
    if (found := digest(source.schema)) != source.agreed:
        raise UserError(
            f"data.source.sha256: {source.schema} has {found}, and {source.sha256} was agreed on: restore the file, or "
            "agree on the new one"
        )
    schema = Schema.read(source.schema)
    tables = read_sites(source.files or (), schema.client_column)
    dataset = joined(fitted(tables, schema), source.name, *doubts(tables, schema))
    shares = {"client_test": schema.test, "client_validation": schema.validation}
    if wrong := next((key for key, share in shares.items() if getattr(spec, key) not in (0.0, share)), None):
        raise UserError(f"data.{wrong}: {getattr(spec, wrong):g}: the schema says {shares[wrong]:g}; leave it out")
    clients = spec.clients if "clients" in spec.model_fields_set else len(tables)
    return spec.model_copy(update={**shares, "clients": clients, "source": replace(source, sha256=found)}), dataset


def build(spec: DataSpec, dataset: Dataset | None = None) -> FederatedData:
    """Load the source that a spec names, split it over the clients and cut the server's sets.

    The same spec gives the same data, bit for bit. For a generated source, clients' samples are made only on demand.

    Args:
        spec: source, partition and shares.
        dataset: the data set of this spec, if it is loaded already.

    Raises:
        UserError: something cannot be done. One line names it.

    Examples:
        >>> from hanse.data import DataSpec, build
        >>> data = build(DataSpec(source="digits", partition="iid", clients=5, client_test=0.2))
        >>> data.sizes.tolist()  # train samples of each client, besides the fifth that it tests on
        [208, 208, 208, 208, 208]
        >>> len(data.server_validation), len(data.server_test)
        (250, 250)
        >>> pool, index = data.pool([0, 3], "test")  # the test shares of clients 0 and 3
        >>> [len(pool.take(own)) for own in index]
        [52, 51]
    """
    if dataset is None:
        spec, dataset = with_own(spec)
    chosen = spec.source
    cuts = Cuts(**{one.name: getattr(spec, one.name) for one in fields(Cuts)})
    if isinstance(chosen, Generated):
        source = Synthetic(chosen.alpha, chosen.beta, spec.seed, chosen.samples_per_client)
        return GeneratedData.of(source, spec.clients, cuts)
    if dataset is None:
        root = Path(spec.path).expanduser() if spec.path else None
        scale = chosen.scale if isinstance(chosen, Images) else "standard"
        dataset = load(chosen.name, root=root, seed=spec.seed, download=spec.download, scale=scale, options=chosen)
    dataset = prepared(dataset, spec)
    partition = split(dataset, spec)
    data = SplitData.of(dataset, partition, cuts)
    if spec.augment is not None:
        if len(dataset.input_shape) != 3:
            raise UserError(f"data.augment = '{spec.augment}': source '{chosen.name}' has no images; leave augment out")
        data = replace(data, augment=Augment(spec.augment, dataset.black))
    if (line := gaps_of(data, dataset.test)) is not None:
        raise UserError(f"data.source: '{chosen.name}': {line}")
    own = (*_of_own_clients(dataset, spec, partition), *_of_scales(dataset, spec))
    return replace(data, warnings=(*data.warnings, *own))


def _of_own_clients(dataset: Dataset, spec: DataSpec, partition: Partition) -> list[str]:
    """Return a warning if the clients of a user's own table are invented, or some of them left out; else nothing."""
    if not isinstance(spec.source, OwnData):
        return []
    if dataset.client_of is None and spec.source.target is not None and "partition" not in spec.model_fields_set:
        return [
            f"data: {dataset.name}: names no clients (data.source.client_column of a table), so its {spec.clients} "
            "clients are invented: the rows were dealt to them at random"
        ]
    of, owners = dataset.client_of, partition.owners
    left = [] if of is None or owners is None else np.setdiff1d(of, owners).tolist()
    if not left:
        return []
    named = first_few([dataset.client_names[i] if dataset.client_names else str(i) for i in left])
    return [f"data.clients = {spec.clients}: leaves out {len(left)} of the data's clients: {named}"]


def _of_scales(dataset: Dataset, spec: DataSpec) -> list[str]:
    """Return a warning if a user's own features are so large that a model hardly learns from them; else nothing."""
    x = dataset.train.x
    if not isinstance(spec.source, OwnData) or dataset.train.inputs or x.ndim != 2 or not x.is_floating_point():
        return []
    sizes = torch.linalg.vector_norm(x.double(), dim=0) / math.sqrt(max(1, len(x)))
    large = int((sizes > _LARGE).sum())
    if not large:
        return []
    how = "data.source.prepare = 'auto' scales a table's columns" if spec.source.target else "scale them"
    return [
        f"data: {dataset.name}: {large} of {len(sizes)} features are not scaled (sizes up to "
        f"{float(sizes.max()):,.3g}), and a model learns little from such numbers: {how}"
    ]


def prepared(dataset: Dataset, spec: DataSpec) -> Dataset:
    """Return the data set as the partition needs it.

    For a mixture, samples are assigned to distributions. With natural clients, the test set keeps only samples of the
    participating clients.
    """
    partition = spec.partition
    if isinstance(partition, MixturePartition):
        return partition.assigned(dataset, spec.seed)
    if not isinstance(partition, Natural):
        return dataset
    if partition.test_owners == "next":
        return _with_next_owners(dataset, spec, partition)
    if dataset.client_of is None or dataset.test_client_of is None:
        return dataset
    owners = partition.owners(dataset.client_of, spec.clients, spec.seed)
    return dataset.keep_test(np.flatnonzero(np.isin(dataset.test_client_of, owners)))


def _with_next_owners(dataset: Dataset, spec: DataSpec, partition: Natural) -> Dataset:
    """Return the data set with other owners in its test set than in its train set.

    Those who take part train on all that they have in either set. The test set is all samples of as many others: the
    largest that do not take part. iPFL's public code tests so on FEMNIST (the 20 writers after the 20 largest) and
    Shakespeare (10 roles after 10).

    Raises:
        UserError: the source does not say which client a sample belongs to, or has too few owners.
    """
    if dataset.client_of is None:
        raise UserError(
            f"data.partition.test_owners = 'next': source '{dataset.name}' does not say which client a sample "
            "belongs to"
        )
    both = dataset.client_of, np.zeros(0, np.int64) if dataset.test_client_of is None else dataset.test_client_of
    whole, ids = dataset.train, np.concatenate(both)
    if len(both[1]):
        whole = Samples.joined([dataset.train, dataset.test])
    owners = partition.owners(ids, spec.clients, spec.seed)
    others, sizes = np.unique(ids[~np.isin(ids, owners)], return_counts=True)
    if len(others) < len(owners):
        raise UserError(
            f"data.partition.test_owners = 'next': {len(owners)} take part and {len(others)} are left to test on; "
            f"allowed: clients up to {(len(owners) + len(others)) // 2 * partition.per_owner}"
        )
    tested = others[np.argsort(-sizes, kind="stable")[: len(owners)]]
    own, next_ones = (np.flatnonzero(np.isin(ids, some)) for some in (owners, tested))
    train, test = (whole.take(torch.from_numpy(rows)) for rows in (own, next_ones))
    return replace(dataset, train=train, test=test, client_of=ids[own], test_client_of=None, distributions=None)


def split(dataset: Dataset, spec: DataSpec) -> Partition:
    """Return the spec's partition of a data set's train samples.

    Args:
        dataset: the data set. Unless it is split by classes, a mixture's data set must have gone through
            :func:`prepared`.
        spec: the spec, of which ``partition``, ``clients``, ``seed`` and the partition's settings are used.

    Raises:
        UserError: the partition needs class labels and there are none, or is impossible with these samples.
    """
    partition, clients, seed, units = spec.partition, spec.clients, spec.seed, dataset.train.units
    if units is not None or dataset.time is not None:
        if partition not in (Iid(), Pooled()) and not (isinstance(partition, Natural) and partition.per_owner == 1):
            raise UserError(
                f"data.partition: '{partition.name}': deals rows one by one, and these have units or times; allowed: "
                "'natural' (one client for each of the data's), 'iid' (whole units) and 'pooled', without options"
            )
        if partition == Iid() and units is not None:
            return Partition(_dealt_units(units.numpy(), clients, seed))
    if isinstance(partition, Natural):
        return _natural(partition, dataset, spec)
    if isinstance(partition, MixturePartition):
        return _mixture(partition, dataset, spec)
    if isinstance(partition, Pooled):
        if partition.whole is None:
            return Partition((np.arange(len(dataset.train)),))
        apart = split(dataset, spec.model_copy(update={"partition": partition.whole}))
        return Partition((np.sort(np.concatenate(apart.train)),))
    if not isinstance(partition, Iid | OwnPartition) and (dataset.num_classes is None or dataset.train.y.ndim > 1):
        free = [name for name, of in PARTITIONS.items() if issubclass(of, Iid | MixturePartition | Natural | Pooled)]
        raise UserError(
            f"data.partition: '{partition.name}': needs class labels and source '{dataset.name}' has none; "
            f"allowed: {', '.join(free)}"
        )
    indices, groups = partition.deal(dataset.train.y.numpy(), clients, seed, dataset.num_classes or 0)
    return Partition(tuple(indices), groups)


def _dealt_units(units: NDArray[np.int64], clients: int, seed: int) -> tuple[NDArray[np.int64], ...]:
    """Return the rows of each client, of whole units that are dealt at random, each to the client with the fewest rows.

    Raises:
        UserError: there are more clients than units.
    """
    _, number, sizes = np.unique(units, return_inverse=True, return_counts=True)
    if clients > len(sizes):
        raise UserError(f"data.clients = {clients}: {len(sizes)} units cannot be dealt to more clients than they are")
    held, client_of = np.zeros(clients, np.int64), np.zeros(len(sizes), np.int64)
    for unit in stream(seed, "iid units").permutation(len(sizes)).tolist():
        client_of[unit] = held.argmin()
        held[client_of[unit]] += sizes[unit]
    return tuple(np.flatnonzero(client_of[number] == client) for client in range(clients))


def _mixture(partition: MixturePartition, dataset: Dataset, spec: DataSpec) -> Partition:
    """Return the partition of mixtures; a client's group is the distribution that it trains on most."""
    sources = prepared(dataset, spec).distributions if dataset.distributions is None else dataset.distributions
    assert sources is not None  # prepared sees to it
    pools = [np.flatnonzero(sources.train == d) for d in range(len(sources.names))]
    shares, mixed = partition.deal(pools, spec.clients, spec.seed, spec.client_test, spec.client_validation)
    own = tuple(train for train, _, _ in shares)
    return Partition(own, mixed.argmax(axis=1).astype(np.int64), kept=tuple((held, test) for _, held, test in shares))


def _natural(partition: Natural, dataset: Dataset, spec: DataSpec) -> Partition:
    """Return the partition by the source's owners."""
    ids = dataset.client_of
    if ids is None:
        raise UserError(
            f"data.partition: 'natural': source '{dataset.name}' does not say which client a sample belongs to"
        )
    chosen = partition.owners(ids, spec.clients, spec.seed)
    labels, classes = dataset.train.y.numpy(), dataset.num_classes or 0
    parts = partition.deal(labels, ids, chosen, spec.seed, classes, dataset.ordered)
    owners = np.repeat(chosen, partition.per_owner)
    groups = numbered(owners) if partition.per_owner > 1 else None
    return Partition(tuple(parts), groups, owners)
