"""A network in operation, on loopback with TLS and keys: many nodes, lost messages, processes that die.

    python benchmarks/year.py twenty [--nodes 20] [--rounds 10] [--lost 0.01] [--masked] [--enough 0.9]
    python benchmarks/year.py deaths [--nodes 10] [--rounds 200] [--every 90]

``twenty``: seconds a round, memory a node (its share of the machine's, with the process that answers its messages), and
what each round waited for. ``deaths``: at each interval a process that is drawn, a node or the SuperLink with the run,
is killed and started again; how many rounds were played, whether the books hold and pay nothing twice, and which rounds
took more than three times the median; it ends with 1 if a round is missing, or books, audit or a node say no.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hanse.base.files import ASKED
from hanse.ledger.receipts import read_receipts
from hanse.ledger.run_ledger import open_ledger
from hanse.ledger.witness import ALARM, Witness
from hanse.reports.audit import audit_run

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "flower"))

from deployed import Ongoing, experiment, metrics


def memory(net: Any) -> float:
    """Return the MiB that the nodes take together: pages that processes share count once."""
    heads = [name for name in net.processes.names() if name != "superlink"]
    pids = [*filter(None, map(net.processes.pid, heads)), *net.processes.below(*heads)]
    kib = 0
    for pid in pids:
        with suppress(OSError):  # it may have ended
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            kib += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return kib / 1024


def twenty(given: argparse.Namespace, folder: Path) -> int:
    """Play rounds with everybody, print what they took, and return 1 if a round is missing."""
    seats, secure = {"clients_per_round": given.nodes}, {"group": 3} if given.masked else None
    waits = {"deadline_s": given.deadline, "enough": given.enough, "secure": secure}
    exp = experiment("fedavg", given.nodes, given.rounds, mechanism=seats, federation=waits)
    going = Ongoing(folder, exp, lost=given.lost)
    homes = [going.net.folder / "participants" / f"node{i}" for i in range(given.nodes)]
    if given.masked:
        names = "".join(f"node{i} {Witness(home).public.hex()}\n" for i, home in enumerate(homes))
        for home in homes:
            (home / "members.txt").write_text(names)
    most, played = 0.0, list[Any]()
    try:
        begun = time.monotonic()
        going.begin()
        print(f"up after {time.monotonic() - begun:.0f} s", flush=True)
        for look in itertools.takewhile(lambda _: going.server.is_alive(), itertools.count()):
            most = max(most, memory(going.net)) if look % 5 == 0 else most  # it takes a while itself
            time.sleep(2.0)
            for line in metrics(going.run)[len(played) :]:
                played.append(line)
                print(f"round {line['round']}: {line['time/round_s']:.2f} s, {line['answered']} answered", flush=True)
    finally:
        going.net.down()
    lost = (going.net.folder / "logs" / "run.log").read_text().count("lost: ")
    seconds = [line["time/round_s"] for line in played[1:]]
    whole = [line["time/round_s"] for line in played[1:] if line["answered"] == given.nodes]
    print(f"{len(played)} of {given.rounds} rounds, {lost} messages lost, {most / given.nodes:.0f} MiB a node")
    print(f"seconds a round after the first: {statistics.median(seconds):.2f}, at most {max(seconds):.2f}")
    print(f"where all answered: {statistics.median(whole) if whole else math.nan:.2f}")
    return int(len(played) < given.rounds)


def deaths(given: argparse.Namespace, folder: Path) -> int:
    """Play rounds while processes die, print what became of rounds and books, and return 1 if something is wrong."""
    seats = {"by_contribution": given.nodes, "at_random": 0}
    waits = {"deadline_s": given.deadline}
    exp = experiment("tiff", given.nodes, given.rounds, mechanism=seats, federation=waits)
    going, draw = Ongoing(folder, exp, members=1), np.random.default_rng(67)
    names = ["superlink", *(f"node{i}" for i in range(given.nodes))]
    back = dict[str, threading.Thread]()
    try:
        going.begin()
        while len(metrics(going.run)) < given.rounds and going.server.is_alive():
            time.sleep(given.every)
            what = str(draw.choice(names))
            if what in back:
                back[what].join()
            print(f"{what} dies after {len(metrics(going.run))} rounds", flush=True)
            going.kill(what)
            back[what] = threading.Thread(target=going.bring_back, args=(what,))
            back[what].start()
            if what == "superlink":
                back[what].join()
        going.server.join()
    finally:
        for one in back.values():
            one.join()
        going.net.down()
    played = metrics(going.run)
    middle = statistics.median(line["time/round_s"] for line in played)
    slow = {int(line["round"]): round(line["time/round_s"], 1) for line in played if line["time/round_s"] > 3 * middle}
    homes = going.net.folder / "participants"
    receipts = [one for path in homes.glob("node*/*/client-*/receipts") for one in read_receipts(path)]
    raised = [str(path) for path in homes.glob(f"node*/{ALARM}")]
    raised += [str(path) for path in homes.glob(f"node*/{ASKED}") if '"signature"' in path.read_text()]
    ledger = open_ledger(going.run)
    verdict, steps = ledger.verify(receipts), Counter((one.round, one.transaction.step) for one in ledger.history())
    twice = [step for step, number in steps.items() if number > 1]
    whole = [line["round"] for line in played] == list(range(given.rounds))
    print(f"{len(played)} of {given.rounds} rounds; all, and in order: {whole}")
    print(f"median {middle:.2f} s; over three times that, by round: {slow}")
    print(f"books hold with {len(receipts)} receipts: {verdict.ok}; posted twice: {twice}")
    broken = [f"{one.name}: {one.said}" for one in audit_run(going.run).checks if not one.holds]
    print(f"audit: {broken or 'holds'}; evidence and alarms at nodes: {raised}")
    return int(not whole or not verdict.ok or bool(twice or broken or raised))


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("what", choices=("twenty", "deaths"))
    words.add_argument("--nodes", type=int, default=20)
    words.add_argument("--rounds", type=int, default=10)
    words.add_argument("--deadline", type=float, default=60.0, help="seconds that a round waits at most")
    words.add_argument("--lost", type=float, default=0.0, help="the share of messages that get lost")
    words.add_argument("--enough", type=float, help="the share of replies after which a round ends")
    words.add_argument("--masked", action="store_true")
    words.add_argument("--every", type=float, default=90.0, help="seconds between two kills")
    given = words.parse_args()
    with tempfile.TemporaryDirectory(prefix="hanse-year-") as place:
        return {"twenty": twenty, "deaths": deaths}[given.what](given, Path(place))


if __name__ == "__main__":
    sys.exit(main())
