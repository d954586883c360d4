"""How often a false claim of samples passes an audit, and what an audit costs.

    python benchmarks/size_audits.py [COMMITMENTS]      # of each kind; default 10,000

A member of 40 samples claims x times as many, with leaves that are invented, or doubled from its own, in turns. Each
commitment is a new one, with a key and a seed of its own; the server checks the ways, the auditor the samples. At most
x^-k may pass. Honest members have from 1 to 80 samples. Then the bytes and milliseconds of an audit, by size. Prints
Markdown.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np
import torch

from hanse.data.commitment import Commitment, Committed, commit, drawn, fault, misplaced, packed, unpacked
from hanse.data.samples import Samples

OWN, TIMES, LEAVES = 40, (1.05, 1.25, 2.0, 10.0), (10, 30, 60)


def held(n: int, draw: np.random.Generator, width: int = 2) -> tuple[Committed, bytes]:
    """Return an honest commitment to n random samples, and its key."""
    x = torch.from_numpy(draw.standard_normal((n, width), dtype="float32"))
    key = draw.bytes(32)
    return commit(Samples(x, torch.zeros(n, dtype=torch.int64)), key), key


def inflated(claimed: int, doubled: bool, draw: np.random.Generator) -> tuple[Committed, bytes]:
    """Return a commitment of OWN samples to ``claimed``: own ones several times, or invented ones among them."""
    honest, key = held(OWN, draw)
    if not doubled:
        return honest.with_invented(claimed - OWN), key
    samples, tags = list(honest._samples), list(honest._tags)
    pairs = sorted((tags[i % OWN], samples[i % OWN]) for i in range(claimed))
    return Committed([sample for _, sample in pairs], [tag for tag, _ in pairs]), key


def passes(claim: Committed, told: Commitment, key: bytes, seed: bytes, k: int) -> bool:
    """Return whether an audit of k leaves finds nothing wrong; it ends at the first leaf that fails."""
    for leaf in drawn(told, seed, k):
        shown = claim.open(leaf)
        [path] = unpacked(told.size, [leaf], packed([shown.path]))
        if fault(told, key, leaf, replace(shown, path=path)):
            return False
    return True


def rates(count: int) -> None:
    """Print the passing rates."""
    draw = np.random.default_rng(43)
    print(
        f"\n| {count} claims of x times the samples | " + " | ".join(f"k = {k}: passed (x^-k)" for k in LEAVES) + " |"
    )
    print("|---" * (1 + len(LEAVES)) + "|")
    for x in TIMES:
        passed = dict.fromkeys(LEAVES, 0)
        for i in range(count):
            claim, key = inflated(round(OWN * x), bool(i % 2), draw)
            told = claim.commitment
            for k in LEAVES:
                passed[k] += passes(claim, told, key, draw.bytes(32), k)
        cells = " | ".join(f"{passed[k] / count:.2g} ({x**-k:.2g})" for k in LEAVES)
        print(f"| {x:g} | {cells} |", flush=True)
    failed = 0
    for _ in range(count):
        claim, key = held(int(draw.integers(1, 81)), draw)
        failed += not passes(claim, claim.commitment, key, draw.bytes(32), 30)
    print(f"\nHonest members slashed at k = 30: {failed} of {count}.")


def costs() -> None:
    """Print bytes and times of audits."""
    draw = np.random.default_rng(43)
    print("\n| samples (784 numbers each) | commit, ms | kB opened, k = 30 | open, ms | check by server | by auditor |")
    print("|---|---|---|---|---|---|")
    for n in (200, 6000, 60000):
        begun = time.perf_counter()
        claim, key = held(n, draw, 784)
        told = claim.commitment
        made = time.perf_counter()
        leaves = drawn(told, b"seed", 30)
        shown = [claim.open(leaf) for leaf in leaves]
        hashes = packed([one.path for one in shown])
        opened = time.perf_counter()
        paths = unpacked(n, leaves, hashes)
        assert not any(misplaced(told, leaf, path) for leaf, path in zip(leaves, paths, strict=True))
        checked = time.perf_counter()
        assert not any(fault(told, key, leaf, one) for leaf, one in zip(leaves, shown, strict=True))
        spent = np.diff([begun, made, opened, checked, time.perf_counter()]) * 1000
        print(
            f"| {n} | {spent[0]:.0f} | {hashes.nbytes / 1000:.0f} | "
            + " | ".join(f"{ms:.1f}" for ms in spent[1:])
            + " |"
        )


if __name__ == "__main__":
    costs()
    rates(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
