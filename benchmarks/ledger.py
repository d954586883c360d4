"""The ledger's speed and memory: a round of 10,000 clients, the verification of a million postings, and proofs.

    python benchmarks/ledger.py [--url postgresql://...] [--postings 1000000]

The index is in SQLite in a temporary folder unless a URL is given. The figures are in RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hanse.core.entry import MINT, TOKEN, Transaction, client, escrow, pool
from hanse.ledger.index import difference, follow
from hanse.ledger.store import Ledger
from hanse.ledger.witness import Prover

CLIENTS = 10_000


def grants() -> list[Transaction]:
    return [
        Transaction(f"grant/{i}", "grant", ((MINT, -100 * TOKEN), (client(i), 100 * TOKEN))) for i in range(CLIENTS)
    ]


def bids() -> list[Transaction]:
    return [Transaction(f"bid/{i}", "bid", ((client(i), -5), (escrow(i), 5))) for i in range(CLIENTS)]


def settled() -> list[Transaction]:
    return [
        Transaction(f"settle/{i}", "reward", ((escrow(i), -5), (pool("tier 0"), 3), (client(i), 2)), "PI-FL eq. (10)")
        for i in range(CLIENTS)
    ]


def shared() -> list[Transaction]:
    """Return one transaction with a posting for everybody."""
    return [Transaction("all", "reward", ((pool("tier 0"), -CLIENTS), *((client(i), 1) for i in range(CLIENTS))))]


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def rounds(folder: Path, url: str) -> dict[str, tuple[float, float]]:
    """Return the seconds of a round's one ``post``, and those in which the index follows, by form: medians of three."""
    seconds: dict[str, list[tuple[float, float]]] = {}
    ledger, reader = (Ledger.open(folder / "rounds.jsonl", read_only=only) for only in (False, True))
    for number in range(3):
        for name, new in (("grants", grants()), ("bids", bids()), ("settled", settled()), ("one for all", shared())):
            step = [Transaction(f"{number} {t.step}", t.kind, t.postings, t.memo) for t in new]
            begun = time.perf_counter()
            ledger.post(number, step)
            posted = time.perf_counter()
            follow(url, reader)
            seconds.setdefault(name, []).append((posted - begun, time.perf_counter() - posted))
    return {
        name: (statistics.median(t for t, _ in taken), statistics.median(w for _, w in taken))
        for name, taken in seconds.items()
    }


def fill(file: Path, url: str, number: int) -> None:
    ledger = Ledger.open(file)
    ledger.post(0, grants()[:1000])
    written, round_ = 2000, 1
    while written < number:
        new = settled()[:1000]
        for i in range(1000):
            new[i] = Transaction(f"pay/{i}", "fee", ((client(i), -5), (pool("tier 0"), 3), (escrow(i), 2)))
        ledger.post(round_, new)
        written, round_ = written + 3000, round_ + 1
    follow(url, ledger)


def verified(file: Path, url: str) -> dict[str, float]:
    ledger = Ledger.open(file, read_only=True)
    before, begun = peak_mib(), time.perf_counter()
    verdict = ledger.verify()
    assert verdict.ok, verdict.wrong
    book = time.perf_counter()
    assert difference(url, ledger) is None
    return {
        "postings": verdict.postings,
        "seconds": book - begun,
        "seconds of the index": time.perf_counter() - book,
        "CPU seconds": time.process_time(),
        "MiB before": before,
        "MiB at its peak": peak_mib(),
    }


def proved(file: Path) -> dict[str, float]:
    """Return the seconds in which a log is read for proofs, and those of one consistency proof (the mean of 1,000)."""
    prover, begun = Prover(Ledger.open(file, read_only=True)), time.process_time()
    head = prover.head()
    assert head is not None
    read = time.process_time()
    for i in range(1000):
        prover.proof(1 + i * (head.count - 1) // 1000)
    return {"transactions": head.count, "read": read - begun, "a proof": (time.process_time() - read) / 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--postings", type=int, default=1_000_000)
    parser.add_argument("--verify", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.verify:  # in a process of its own, so that its peak is that of verifying
        print(json.dumps(verified(given.verify, given.url)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        url = given.url or f"sqlite:///{folder}/ledger.db"
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        for name, (seconds, more) in rounds(folder, url).items():
            print(f"a round of {CLIENTS} clients, {name}: {seconds:.2f} s, and the index {more:.2f} s")
        for number in (given.postings // 10, given.postings):
            file = folder / f"{number}.jsonl"
            place = given.url or f"sqlite:///{folder}/{number}.db"
            fill(file, place, number)
            command = [sys.executable, __file__, "--url", place, "--verify", str(file)]
            out = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            print("verify: " + ", ".join(f"{name} {value:.4g}" for name, value in out.items()))
            print("prove: " + ", ".join(f"{name} {value:.4g}" for name, value in proved(file).items()))


if __name__ == "__main__":
    main()
