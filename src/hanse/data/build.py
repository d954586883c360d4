"""Makes the data of a federation from a :class:`DataSpec`.

:func:`build` is the entry point: it loads the source, splits it and cuts the server's sets. Its steps are separate
functions. :func:`with_own` reads the user's own data. A run calls it first, to record the settings that follow from
these data. :func:`split` makes the partition.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hanse.base.errors import UserError
from hanse.base.factories import OBJECT
from hanse.base.pytorch import torch
from hanse.data.augment import Augment
from hanse.data.dataset import Dataset
from hanse.data.federated import FederatedData, SplitData, gaps_of
from hanse.data.fingerprint import of_samples, of_text
from hanse.data.kinds import first_few
from hanse.data.own import as_dataset
from hanse.data.partitions import Iid, Natural, Pooled
from hanse.data.schema import Schema, digest, doubts, fitted, joined, read_sites
from hanse.data.shares import Partition
from hanse.data.sources import Generated, imported, load
from hanse.data.spec import PARTITIONS, DataSpec, OwnData, SchemaTables
from hanse.data.synthetic import GeneratedData, Synthetic

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
    if isinstance(chosen, Generated):
        source = Synthetic(chosen.alpha, chosen.beta, spec.seed, chosen.samples_per_client)
        return GeneratedData.of(source, spec.clients, spec.cuts)
    if dataset is None:
        root = Path(spec.path).expanduser() if spec.path else None
        dataset = load(chosen, root=root, seed=spec.seed, download=spec.download)
    dataset = spec.partition.prepared(dataset, spec.clients, spec.seed)
    partition = split(dataset, spec)
    data = SplitData.of(dataset, partition, spec.cuts)
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


def split(dataset: Dataset, spec: DataSpec) -> Partition:
    """Return the spec's partition of a data set's train samples.

    Args:
        dataset: the data set, as the partition's method ``prepared`` returns it.
        spec: the spec, of which ``partition``, ``clients`` and the shares are used.

    Raises:
        UserError: the partition needs class labels and there are none, or is impossible with these samples.
    """
    partition = spec.partition
    keeps_units = partition in (Iid(), Pooled()) or (isinstance(partition, Natural) and partition.per_owner == 1)
    if not keeps_units and (dataset.train.units is not None or dataset.time is not None):
        raise UserError(
            f"data.partition: '{partition.name}': deals rows one by one, and these have units or times; allowed: "
            "'natural' (one client for each of the data's), 'iid' (whole units) and 'pooled', without options"
        )
    dealing = (partition.whole if isinstance(partition, Pooled) else None) or partition
    if dealing.by_class and (dataset.num_classes is None or dataset.train.y.ndim > 1):
        free = [name for name, kind in PARTITIONS.items() if not kind.by_class]
        raise UserError(
            f"data.partition: '{dealing.name}': needs class labels and source '{dataset.name}' has none; "
            f"allowed: {', '.join(free)}"
        )
    return partition.split(dataset, spec.clients, spec.cuts)
