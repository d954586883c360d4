"""The live page's speed and memory: does it keep up with 20 rounds a second, and what does a 10,000-round run cost?

    python benchmarks/live.py [--rounds 10000] [--clients 100] [--seats 10] [--seconds 20] [--browser /usr/bin/chromium]

A run directory is written as a run writes it (lines, round files, a ledger), without any learning: first by a writer
that adds rounds at a fixed pace while a reader follows the server's events, then all at once. The figures are in
benchmarks/RESULTS.md.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hanse.core.entry import MINT, TOKEN, Transaction, client
from hanse.ledger.store import Ledger

CONFIG = '[data]\nclients = {}\n[mechanism]\nname = "bench"\n[run]\nrounds = {}\n'
PAYERS = 12  # transactions when the ledger is written
CHECKPOINT_EVERY = 10  # rounds; a commit waits for the disk, and here the page is measured


class Writer:
    """Writes rounds as a run does: round file, seats, metrics, then the ledger."""

    def __init__(self, folder: Path, clients: int, seats: int, rounds: int) -> None:
        (folder / "rounds").mkdir(parents=True)
        (folder / "config.toml").write_text(CONFIG.format(clients, rounds))
        (folder / "ledger.json").write_text('{"book": "bench"}')
        self.folder, self.clients, self.seats = folder, clients, seats
        self.draw = random.Random(0)
        self.metrics = (folder / "metrics.jsonl").open("ab", buffering=0)
        self.lines = (folder / "clients.jsonl").open("ab", buffering=0)
        self.ledger = Ledger.open(folder / "transactions.jsonl", book="bench")
        grant = 10_000 * TOKEN
        self.ledger.post(
            0, [Transaction(f"g/{c}", "grant", ((MINT, -grant), (client(c), grant))) for c in range(clients)]
        )
        self.round = 0

    def transactions(self) -> list[Transaction]:
        made = []
        for i in range(PAYERS):
            a, b = self.draw.sample(range(self.clients), 2)
            units = self.draw.randint(1, TOKEN)
            made.append(Transaction(f"m/{i}", "market", ((client(a), -units), (client(b), units))))
        return made

    def text(self) -> tuple[bytes, bytes]:
        n, draw = self.round, self.draw
        seats = [
            {"round": n, "client": c, "start": 0, "samples": 100.0, "steps": 20, "loss": draw.random(),
             "weight": 0.1, "value": draw.gauss(0, 1), "value_error": 0.1}
            for c in sorted(draw.sample(range(self.clients), self.seats))
        ]  # fmt: skip
        metrics = {"round": n, "test/accuracy": draw.random(), "time/round_s": 0.05, "refused": 0}
        metrics |= {f"figure/{i}": draw.random() for i in range(30)}
        return "".join(json.dumps(s) + "\n" for s in seats).encode(), (json.dumps(metrics) + "\n").encode()

    def write(self) -> None:
        seats, metrics = self.text()
        np.savez(self.folder / "rounds" / f"{self.round:05d}.npz", client=np.arange(self.seats))
        self.lines.write(seats)
        self.metrics.write(metrics)
        if self.round % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
            self.ledger.post(self.round, self.transactions())
        self.round += 1


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, int]]:
    environment = {**os.environ, "COLUMNS": "300"}
    command = [sys.executable, "-u", "-c", "from hanse.cli import main; main()", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as served:
        assert served.stdout is not None
        found = re.search(r"http://(127\.0\.0\.1:\d+)", served.stdout.readline())
        assert found
        try:
            yield found[1], served.pid
        finally:
            served.terminate()


def memory_mb(pid: int, what: str = "VmRSS") -> float:
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) / 1024


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def events(address: str) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield (when it came, message) of the only run that is served."""
    link = http.client.HTTPConnection(address, timeout=120)
    link.request("GET", "/runs.json")
    id_ = json.loads(link.getresponse().read())[0]["id"]
    link = http.client.HTTPConnection(address, timeout=120)
    link.request("GET", f"/run/{id_}/events")
    answer = link.getresponse()
    for line in answer:
        if line.startswith(b"data: "):
            came = time.monotonic()
            yield came, json.loads(line[6:])


def rounds_told(address: str) -> Generator[tuple[float, int]]:
    """Yield (when, rounds) as the server's events tell them."""
    for came, message in events(address):
        yield came, message["progress"]["rounds"]


def rounds_drawn(browser: str, address: str) -> Generator[tuple[float, int]]:
    """Yield (when, rounds) as a browser's page shows them."""
    from playwright.sync_api import sync_playwright

    shown = "document.getElementById('rounds').textContent.replace(/[^0-9]*([0-9]+).*/, '$1')"
    with sync_playwright() as driver:
        page = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"]).new_page()
        page.goto(f"http://{address}/")
        page.wait_for_selector("#c-accuracy svg")
        while True:
            rounds = int(page.evaluate(shown))
            yield time.monotonic(), rounds


def keeps_up(
    pace: float, seconds: float, clients: int, seats: int, source: Callable[[str], Generator[tuple[float, int]]]
) -> dict[str, float]:
    """Return how long after a round was written it was shown, in seconds, and the server's share of a core."""
    rounds = int(pace * seconds)
    with tempfile.TemporaryDirectory() as name:
        writer = Writer(Path(name) / "run", clients, seats, rounds)
        writer.write()
        with serving(Path(name)) as (address, pid):
            stream = source(address)
            next(stream)
            written: dict[int, float] = {0: time.monotonic()}

            def write() -> None:
                begun = time.monotonic()
                while writer.round < rounds:
                    time.sleep(max(0.0, begun + writer.round / pace - time.monotonic()))
                    writer.write()
                    written[writer.round - 1] = time.monotonic()

            before = cpu_s(pid)
            begun = time.monotonic()
            thread = threading.Thread(target=write)
            thread.start()
            delays, shown = [], 1
            for came, now in stream:
                delays += [came - written[n] for n in range(shown, now) if n in written]
                shown = max(shown, now)
                if shown >= rounds:
                    break
            spent = time.monotonic() - begun
            thread.join()
            stream.close()
            share = (cpu_s(pid) - before) / spent
    delays.sort()
    return {
        "pace": (rounds - 1) / (written[rounds - 1] - begun),
        "median_s": statistics.median(delays),
        "p99_s": delays[int(0.99 * (len(delays) - 1))],
        "worst_s": delays[-1],
        "core_share": share,
    }


def long_run(rounds: int, clients: int, seats: int) -> dict[str, float]:
    """Return the server's memory and the seconds until a past run is shown whole."""
    with tempfile.TemporaryDirectory() as name:
        writer = Writer(Path(name) / "run", clients, seats, rounds)
        pending: list[Transaction] = []
        seats_text, metrics_text = [], []
        for n in range(rounds):
            lines, metrics = writer.text()
            seats_text.append(lines)
            metrics_text.append(metrics)
            pending += [Transaction(f"{n}/{t.step}", t.kind, t.postings) for t in writer.transactions()]
            writer.round += 1
            if n % 500 == 499 or n == rounds - 1:
                writer.ledger.post(n, pending)
                pending = []
        writer.lines.write(b"".join(seats_text))
        writer.metrics.write(b"".join(metrics_text))
        size = sum(f.stat().st_size for f in writer.folder.iterdir() if f.is_file()) / 1e6
        with serving(Path(name)) as (address, pid):
            idle, begun, shown = memory_mb(pid), time.monotonic(), 0.0
            sent = 0
            for came, message in events(address):
                sent = len(json.dumps(message)) if message["whole"] else sent
                books = message.get("books")
                whole = message["progress"]["rounds"] == rounds and not message["progress"]["left"]
                if books is not None and books["count"] == rounds * PAYERS + clients and whole:
                    shown = came - begun
                    break
            peak = memory_mb(pid, "VmHWM")
            again = time.monotonic()
            next(events(address))  # another page on the same run
            second = time.monotonic() - again
    return {
        "size_mb": size,
        "idle_mb": idle,
        "peak_mb": peak,
        "shown_s": shown,
        "second_s": second,
        "message_kb": sent / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seats", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--browser", help="Chromium's path: measure until the page shows a round, too")
    given = parser.parse_args()
    sources = {"told": rounds_told}
    if given.browser:
        sources["drawn by a browser"] = partial(rounds_drawn, given.browser)
    for pace, (name, source) in product((20.0, 100.0), sources.items()):
        found = keeps_up(pace, given.seconds, given.clients, given.seats, source)
        print(
            f"{pace:.0f} rounds a second wanted, {found['pace']:.1f} written: {name} after {found['median_s']:.2f} s "
            f"(median), {found['p99_s']:.2f} s (99 %), {found['worst_s']:.2f} s (worst); "
            f"{100 * found['core_share']:.0f} % of a core",
            flush=True,
        )
    found = long_run(given.rounds, given.clients, given.seats)
    print(
        f"{given.rounds} rounds, {given.clients} clients, {given.seats} seats, {PAYERS} payments a round "
        f"({found['size_mb']:.0f} MB on disk): shown after {found['shown_s']:.1f} s, a second page after "
        f"{found['second_s']:.2f} s; server {found['idle_mb']:.0f} MB idle, {found['peak_mb']:.0f} MB at most; "
        f"the whole state is {found['message_kb']:.0f} kB"
    )


if __name__ == "__main__":
    main()
