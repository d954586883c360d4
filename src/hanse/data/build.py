"""From a :class:`DataSpec` to the data of a federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hanse.data.dataset import Dataset
from hanse.data.federated import FederatedData, GeneratedData, SplitData
from hanse.data.partitions import Partition, dirichlet, iid, natural, niid, pathological, pooled
from hanse.data.sources import GENERATED, load
from hanse.data.spec import DataSpec
from hanse.data.synthetic import Synthetic
from hanse.errors import UserError

__all__ = ["build", "split"]


def build(spec: DataSpec) -> FederatedData:
    """Load (or register, if generated) the source, split it over the clients and cut the server's sets.

    The same spec gives the same data, bit for bit. Raises UserError with one line that names what cannot be
    done.
    """
    if spec.source in GENERATED:
        source = Synthetic(spec.alpha, spec.beta, spec.seed, spec.samples_per_client)
        return GeneratedData.of(
            source,
            spec.clients,
            client_test=spec.client_test,
            client_validation=spec.client_validation,
            validation=spec.validation,
        )
    root = Path(spec.path).expanduser() if spec.path else None
    dataset = load(spec.source, root=root, seed=spec.seed, download=spec.download, scale=spec.scale)
    return SplitData.of(
        dataset,
        split(dataset, spec),
        seed=spec.seed,
        client_test=spec.client_test,
        client_validation=spec.client_validation,
        validation=spec.validation,
    )


def split(dataset: Dataset, spec: DataSpec) -> Partition:
    """Return the partition of a data set's train samples that the spec asks for. Raises UserError."""
    classes = dataset.num_classes
    labels = dataset.train.y.numpy()
    if classes is None and spec.partition not in ("iid", "natural", "pooled"):
        raise UserError(
            f"partition = '{spec.partition}' needs class labels and source '{dataset.name}' has none; "
            "allowed: iid, natural, pooled"
        )
    indices = _SPLITS[spec.partition](dataset, labels, spec)
    return Partition(tuple(indices), labels if classes is not None else None, classes)


_Labels = NDArray[np.int64]
_Indices = list[NDArray[np.int64]]


def _total(spec: DataSpec) -> int | None:
    return None if spec.samples_per_client is None else spec.clients * spec.samples_per_client


def _iid(dataset: Dataset, labels: _Labels, spec: DataSpec) -> _Indices:
    law = spec.sizes or "equal"
    return iid(labels, spec.clients, seed=spec.seed, sizes=law, min_samples=spec.min_samples, total=_total(spec))


def _dirichlet(dataset: Dataset, labels: _Labels, spec: DataSpec) -> _Indices:
    return dirichlet(
        labels,
        spec.clients,
        alpha=spec.alpha,
        seed=spec.seed,
        sizes=spec.sizes or "power",
        min_samples=spec.min_samples,
        sampler=spec.sampler,
        total=_total(spec),
        num_classes=dataset.num_classes,
    )


def _niid(dataset: Dataset, labels: _Labels, spec: DataSpec) -> _Indices:
    return niid(
        labels,
        spec.clients,
        alpha=spec.alpha,
        seed=spec.seed,
        min_samples=spec.min_samples,
        num_classes=dataset.num_classes,
    )


def _pathological(dataset: Dataset, labels: _Labels, spec: DataSpec) -> _Indices:
    return pathological(labels, spec.clients, classes_per_client=spec.classes_per_client, seed=spec.seed)


def _natural(dataset: Dataset, labels: _Labels, spec: DataSpec) -> _Indices:
    ids = dataset.client_of if spec.ids is None else _read_ids(Path(spec.ids).expanduser())
    if ids is None:
        raise UserError(
            f"partition = 'natural': source '{dataset.name}' does not say whose its samples are; "
            "give data.ids, a .npy file with a client id for each train sample"
        )
    return natural(labels, ids, clients=spec.clients, seed=spec.seed)


def _read_ids(path: Path) -> NDArray[np.int64]:
    try:
        ids = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"data.ids = '{path}': not a readable .npy file ({error})") from error
    if not isinstance(ids, np.ndarray):
        raise UserError(f"data.ids = '{path}': one array is needed (.npy), not an archive")
    return ids


def _pooled(dataset: Dataset, labels: _Labels, spec: DataSpec) -> _Indices:
    return pooled(labels)


_SPLITS: Mapping[str, Callable[[Dataset, _Labels, DataSpec], _Indices]] = {
    "iid": _iid,
    "dirichlet": _dirichlet,
    "niid": _niid,
    "pathological": _pathological,
    "natural": _natural,
    "pooled": _pooled,
}
