"""The ledger's speed and memory: a round of 10,000 clients, and the verification of a million postings.

    python benchmarks/ledger.py [--url postgresql://...] [--postings 1000000]

Without a URL it measures SQLite in a temporary folder. The figures are in RESULTS.md.
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
import uuid

from hanse.core.entry import MINT, TOKEN, Transaction, client, escrow, pool
from hanse.ledger.store import Ledger

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


def rounds(url: str) -> dict[str, tuple[float, float]]:
    """Return the seconds of a round's one ``post``, by its form, and those of this process's CPU: medians of three."""
    seconds: dict[str, list[tuple[float, float]]] = {}
    with Ledger.open(url, book=uuid.uuid4().hex) as ledger:
        for number in range(3):
            for name, new in (
                ("grants", grants()),
                ("bids", bids()),
                ("settled", settled()),
                ("one for all", shared()),
            ):
                step = [Transaction(f"{number} {t.step}", t.kind, t.postings, t.memo) for t in new]
                begun, worked = time.perf_counter(), time.process_time()
                ledger.post(number, step)
                taken = (time.perf_counter() - begun, time.process_time() - worked)
                seconds.setdefault(name, []).append(taken)
    return {
        name: (statistics.median(t for t, _ in taken), statistics.median(w for _, w in taken))
        for name, taken in seconds.items()
    }


def fill(url: str, book: str, number: int) -> None:
    with Ledger.open(url, book=book) as ledger:
        ledger.post(0, grants()[:1000])
        written, round_ = 2000, 1
        while written < number:
            new = settled()[:1000]
            for i in range(1000):
                new[i] = Transaction(f"pay/{i}", "fee", ((client(i), -5), (pool("tier 0"), 3), (escrow(i), 2)))
            ledger.post(round_, new)
            written, round_ = written + 3000, round_ + 1


def verified(url: str, book: str) -> dict[str, float]:
    with Ledger.open(url, book=book, read_only=True) as ledger:
        before, begun = peak_mib(), time.perf_counter()
        verdict = ledger.verify()
        assert verdict.ok, verdict.wrong
        return {
            "postings": verdict.postings,
            "seconds": time.perf_counter() - begun,
            "CPU seconds": time.process_time(),
            "MiB before": before,
            "MiB at its peak": peak_mib(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--postings", type=int, default=1_000_000)
    parser.add_argument("--verify", metavar="BOOK", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.verify:  # in a process of its own, so that its peak is that of verifying
        print(json.dumps(verified(given.url, given.verify)))
        return
    with tempfile.TemporaryDirectory() as folder:
        url = given.url or f"sqlite:///{folder}/ledger.db"
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        for name, (seconds, worked) in rounds(url).items():
            print(f"a round of {CLIENTS} clients, {name}: {seconds:.2f} s, of them {worked:.2f} s of our own CPU")
        for number in (given.postings // 10, given.postings):
            book = uuid.uuid4().hex
            fill(url, book, number)
            command = [sys.executable, __file__, "--url", url, "--verify", book]
            out = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            print("verify: " + ", ".join(f"{name} {value:.4g}" for name, value in out.items()))


if __name__ == "__main__":
    main()
