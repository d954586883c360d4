"""Fingerprints of the data that a process can see. They show whether a run is resumed with other data.

A run directory, or a participant's folder, keeps the fingerprint in ``data.json``. :func:`fingerprint` computes it,
:func:`write_data` writes it, and :func:`compare_data` checks it when a run is resumed.

A client's share is a digest of its samples in order: positions, contents and labels. A fingerprint detects accidents
(another file, flipped labels, another split), not forgeries. A sample's inputs enter as a CRC-32, which is fast enough
for every start (60,000 images of 28 x 28 in about 0.1 s).
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hanse.base.errors import UserError
from hanse.base.files import on_network, write_whole
from hanse.base.pytorch import Tensor, torch
from hanse.data.federated import FederatedData
from hanse.data.kinds import first_few
from hanse.data.samples import Samples
from hanse.data.units import SHARES

Fingerprint = Mapping[str, Sequence[str]]
"""Digests (16 hexadecimal digits): of each client's "train", "validation" and "test" share, by client (of more than
10,000 clients one for all), and of "server validation" and "server test" (one each, or none). Plain values, for JSON.
"""

# clients that a message names
SHOWN = 5
# up to this many clients have a digest each; more have one together
LISTED = 10_000
ALL = " (all clients)"
# the first entry is of the start, each later one of a round from which on other data were allowed
DATA = "data.json"


def fingerprint(data: FederatedData) -> Fingerprint:
    """Return the fingerprint of the clients' shares and the server's sets.

    For generated samples, the generator's settings are hashed instead. Remote clients have no digest.
    """
    known: dict[int, _Sums] = {}
    shares = {share: _shares(data, share, known) for share in SHARES}
    if data.num_clients > LISTED:
        shares = {f"{share}{ALL}": [of_text("".join(digests))] for share, digests in shares.items()}
    server = {"server validation": data.server_validation, "server test": data.server_test}
    if data.server_root is not None:
        server["server root"] = data.server_root
    whole = {name: [] if held is None else [of_samples(held)] for name, held in server.items()}
    return {**shares, **whole}


def of_samples(samples: Samples) -> str:
    """Return the digest of all samples, in their order: 16 hexadecimal digits."""
    return _Sums(samples).digest(torch.arange(len(samples)))


def of_text(text: str) -> str:
    """Return the digest of a text (which may consist of several digests): 16 hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def differences(before: Mapping[str, Any], now: Fingerprint, names: Sequence[str] = ()) -> list[str]:
    """Return the differences between two fingerprints: one line per share, with the clients concerned.

    Args:
        before: the fingerprint that was kept.
        now: the fingerprint of the current data. Shares that are missing in it are not compared.
        names: the clients' names, if they have any.
    """
    lines = []
    for name, ours in now.items():
        theirs = list(before.get(name, []))
        if theirs == list(ours):
            continue
        if name.startswith("server"):
            lines.append(f"the server's {name.removeprefix('server ')} set")
        elif name.endswith(ALL):
            lines.append(f"the {name.removesuffix(ALL)} shares")
        elif len(theirs) != len(ours):
            lines.append(f"the {name} shares: of {len(ours)} clients, not {len(theirs)}")
        else:
            changed = [i for i, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b]
            clients = [f"{i} ({names[i]})" if i < len(names) else str(i) for i in changed]
            who = f"client{'s' if len(clients) > 1 else ''} {first_few(clients, most=SHOWN)}"
            lines.append(f"the {name} share{'s' if len(clients) > 1 else ''} of {who}")
    return lines


class _Sums:
    """What digests of parts of a pool need: a CRC-32 of each sample's inputs, and the labels."""

    def __init__(self, pool: Samples) -> None:
        flat = pool.x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        self.kind = f"{pool.x.dtype}|{tuple(pool.x.shape[1:])}|{pool.y.dtype}|{tuple(pool.y.shape[1:])}|"
        if pool.inputs:
            self.kind += f"{pool.inputs}|"
        self.labels = pool.y.detach().cpu().contiguous()
        width, data = len(flat) // max(1, len(pool)), flat.data
        sums = [zlib.crc32(data[i : i + width]) for i in range(0, width * len(pool), width)] if width else []
        self.sums = np.array(sums or [0] * len(pool), np.uint32)

    def digest(self, index: Tensor) -> str:
        """Return the digest of the samples at ``index [m]``, in this order."""
        index = index.cpu()
        hasher = hashlib.blake2b(f"{self.kind}{len(index)}|".encode(), digest_size=8)
        hasher.update(self.sums[index.numpy()].tobytes())
        labels = self.labels.index_select(0, index).reshape(-1)
        if labels.numel():
            hasher.update(labels.view(torch.uint8).numpy().tobytes())
        return hasher.hexdigest()


def _shares(data: FederatedData, share: str, known: dict[int, _Sums]) -> list[str]:
    """Return the digest of each client's share; none if the clients are remote.

    Args:
        data: the federation's data.
        share: "train", "validation" or "test".
        known: the sums of each pool by its identity, to which this adds.
    """
    made = data.origin(share)
    if made is not None:
        return list(map(of_text, made))
    pool, index = data.pool(range(data.num_clients), share)
    if id(pool) not in known:
        known[id(pool)] = _Sums(pool)
    return [known[id(pool)].digest(own) for own in index]


def write_data(folder: Path, round: int, data: Fingerprint, note: str = "") -> None:
    """Append the fingerprint of the data that a run uses from ``round`` on. Only the user can read the file.

    Args:
        folder: the run's directory, or a participant's.
        round: the first round with these data.
        data: the fingerprint of these data.
        note: why the data differ from those of earlier rounds. It is empty at the start.
    """
    entry = {"round": round, "note": note, "data": {name: list(digests) for name, digests in data.items()}}
    write_whole(folder / DATA, json.dumps([*_entries(folder), entry]) + "\n", private=True)


def compare_data(folder: Path, data: Fingerprint, *, allowed: bool, names: Sequence[str] = ()) -> str | None:
    """Compare the data with those that a run has used.

    A run whose fingerprint is lost or damaged cannot be compared. This is noted instead.

    Args:
        folder: the run's directory.
        data: the fingerprint of the data at hand.
        allowed: whether other data may be used.
        names: the clients' names, for the message.

    Returns:
        None if the data are the same, else a note for the run's record.

    Raises:
        UserError: the data differ, and that is not allowed. The line names shares and clients.
    """
    entries = _entries(folder)
    if not entries:
        return f"{DATA}: there is no fingerprint of the data that this run began with; one is taken now"
    changes = differences(entries[-1]["data"], data, names)
    if not changes:
        return None
    what = "; ".join(changes)
    if not allowed:
        how = "server_app(other_data=True)"
        if not on_network(folder):
            how = f"'hanse resume {folder} --other-data' (other_data=True)"
        raise UserError(
            f"{folder}: was played with other data; not the same now: {what}; give it the data that it had, or allow "
            f"others with {how}"
        )
    return f"other data from here on, as allowed: {what}"


def begun_with(folder: Path) -> dict[str, Any]:
    """Return the digests of the clients' shares with which a run began; empty if these are remote, or lost."""
    first = (_entries(folder) or [{"data": {}}])[0]["data"]
    return {name: digests for name, digests in first.items() if digests and not name.startswith("server")}


def note_own_data(folder: Path, round: int, data: Fingerprint) -> str | None:
    """Record the fingerprint of a participant's data, and return a line if they changed since earlier rounds. Changes
    are allowed: a participant's data may grow.

    Args:
        folder: the participant's folder, where the fingerprint is kept.
        round: the round's number.
        data: the fingerprint of the current samples.
    """
    entries = _entries(folder)
    changed = [name for name, now in data.items() if entries and list(entries[-1]["data"].get(name, [])) != list(now)]
    if entries and not changed:
        return None
    note = f"own data: from round {round} on the {' and '.join(changed)} samples are others" if changed else ""
    write_data(folder, round, data, note)
    return note or None


def _entries(folder: Path) -> list[dict[str, Any]]:
    """Return the fingerprints kept in a folder, oldest first; empty if the file is missing or damaged."""
    try:
        entries = json.loads((folder / DATA).read_text())
    except (OSError, ValueError, RecursionError):
        return []
    sound = isinstance(entries, list) and all(isinstance(e, dict) and isinstance(e.get("data"), dict) for e in entries)
    return entries if sound else []
