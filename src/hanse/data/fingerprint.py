"""A fingerprint of the data that a process can see, so that a run does not go on with other data unnoticed.

A client's share is a digest of its samples in their order: which they are, what they are, and how they are labelled. It
finds accidents (another file, flipped labels, another split), not forgeries: a sample's inputs enter as a CRC-32 of
their bytes, the one checksum that is fast enough to be taken at every start (60,000 images of 28 x 28 in about 0.1 s).
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hanse.data.federated import SHARES, FederatedData
from hanse.data.samples import Samples

__all__ = ["Fingerprint", "differences", "fingerprint", "of_samples"]

Fingerprint = Mapping[str, Sequence[str]]
"""Digests (16 hexadecimal digits): of each client's "train", "validation" and "test" share, by client (of more than
10,000 clients one for all), and of "server validation" and "server test" (one each, or none). Plain values, for JSON.
"""

SHOWN = 5  # clients that a line names
LISTED = 10_000  # clients that have a digest each; more have one together
ALL = " (all clients)"


def fingerprint(data: FederatedData) -> Fingerprint:
    """Return the fingerprint of clients' shares and the server's sets. What a generator makes when it is asked for is
    not made for this: the generator's numbers are taken instead. Clients that are elsewhere have none.
    """
    known: dict[int, _Sums] = {}
    shares = {share: _shares(data, share, known) for share in SHARES}
    if data.num_clients > LISTED:
        shares = {f"{share}{ALL}": _one(digests) for share, digests in shares.items()}
    server = {"server validation": data.server_validation, "server test": data.server_test}
    whole = {name: [] if held is None else [of_samples(held)] for name, held in server.items()}
    return {**shares, **whole}


def of_samples(samples: Samples) -> str:
    """Return the digest of all samples, in their order."""
    return _digest(_Sums(samples), torch.arange(len(samples)))


def differences(before: Mapping[str, Any], now: Fingerprint) -> list[str]:
    """Return what differs between two fingerprints, a line for each share, with the clients; empty if nothing does."""
    found = []
    for name, ours in now.items():
        theirs = list(before.get(name, []))
        if theirs == list(ours):
            continue
        if name.startswith("server"):
            found.append(f"the server's {name.removeprefix('server ')} set")
        elif name.endswith(ALL):
            found.append(f"the {name.removesuffix(ALL)} shares")
        elif len(theirs) != len(ours):
            found.append(f"the {name} shares: of {len(ours)} clients, not {len(theirs)}")
        else:
            clients = [str(i) for i, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b]
            more = f" and {len(clients) - SHOWN} more" if len(clients) > SHOWN else ""
            who = f"client{'s' if len(clients) > 1 else ''} {', '.join(clients[:SHOWN])}{more}"
            found.append(f"the {name} share{'s' if len(clients) > 1 else ''} of {who}")
    return found


class _Sums:
    """A pool and the CRC-32 of each of its samples' inputs, computed for those that are asked for."""

    def __init__(self, pool: Samples) -> None:
        self.pool = pool
        self.bytes: NDArray[np.uint8] = np.zeros((len(pool), 0), np.uint8)
        if pool.x.numel():
            rows = pool.x.detach().cpu().contiguous().reshape(len(pool), -1)
            self.bytes = rows.view(torch.uint8).numpy()
        self.kind = f"{pool.x.dtype}|{tuple(pool.x.shape[1:])}|{pool.y.dtype}|{tuple(pool.y.shape[1:])}|"
        self.labels = pool.y.detach().cpu().contiguous()
        self.sum: NDArray[np.uint32] = np.zeros(len(pool), np.uint32)
        self.known: NDArray[np.bool_] = np.zeros(len(pool), np.bool_)

    def of(self, index: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return the sums of the samples at these positions, ``[m]``."""
        new = np.unique(index[~self.known[index]])
        width, data = self.bytes.shape[1], self.bytes.reshape(-1).data
        crc = zlib.crc32
        self.sum[new] = [crc(data[i * width : (i + 1) * width]) for i in new.tolist()]
        self.known[new] = True
        return self.sum[index]


def _shares(data: FederatedData, share: str, known: dict[int, _Sums]) -> list[str]:
    made = data.origin(share)
    if made is not None:
        return [hashlib.blake2b(text.encode(), digest_size=8).hexdigest() for text in made]
    pool, index = data.pool(range(data.num_clients), share)
    sums = known.setdefault(id(pool), _Sums(pool))
    sums.of(torch.cat([*index, torch.zeros(0, dtype=torch.int64)]).cpu().numpy())  # in the order of memory
    return [_digest(sums, own) for own in index]


def _one(digests: Sequence[str]) -> list[str]:
    return [hashlib.blake2b("".join(digests).encode(), digest_size=8).hexdigest()]


def _digest(sums: _Sums, index: Tensor) -> str:
    hasher = hashlib.blake2b(f"{sums.kind}{len(index)}|".encode(), digest_size=8)
    hasher.update(sums.of(index.cpu().numpy()).tobytes())
    labels = sums.labels.index_select(0, index.cpu()).reshape(-1)
    if labels.numel():
        hasher.update(labels.view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()
