"""The time of a round on a network: hanse against Flower's own FedAvg, alternately, on the same nodes on loopback.

``python benchmarks/flower.py [--nodes 10] [--rounds 4] [--repeats 3] [--cold]``. TLS and node authentication are on. A
round's training takes some 20 ms, so that a round's time is what is spent outside of it. The first round of each run is
left out: PI-FL takes no bids in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from hanse.wings.operate.loopback import Loopback, app_hash

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "flower"))

from deployed import free_ports

APP = Path(__file__).parent / "flower_app"
DEFAULTS = {"nodes": 10, "rounds": 4, "repeats": 3}
AGAINST = {
    "hanse, train": "Flower, train",
    "hanse, train and score": "Flower, train and evaluate",
    "hanse, PI-FL": "Flower, train and evaluate",
}


def main() -> None:
    words = argparse.ArgumentParser()
    for name, default in DEFAULTS.items():
        words.add_argument(f"--{name}", type=int, default=default)
    words.add_argument("--cold", action="store_true", help="a fresh interpreter for each message, as Flower does")
    given = words.parse_args()
    with tempfile.TemporaryDirectory(prefix="hanse-speed-") as place:
        out = Path(place)
        net = Loopback(Path(place) / "net", APP, free_ports(given.nodes + 1), warm=not given.cold)
        try:
            net.up()
            net.play({name: getattr(given, name) for name in DEFAULTS} | {"app": app_hash(APP), "out": str(out)})
        finally:
            net.down()
        lines = [json.loads(line) for line in (out / "seconds.jsonl").read_text().splitlines()]
    show(lines, given.nodes, given.cold)


def show(lines: list[dict], nodes: int, cold: bool) -> None:
    """Print the seconds of the rounds after the first, and how many times as long as Flower's they took: repeat by
    repeat, since a machine is not equally busy all the time, and the median of these.
    """
    found: dict[str, dict[int, list[float]]] = {}
    for line in lines:
        found.setdefault(line["name"], {})[line["repeat"]] = line["seconds"][1:]
    print(f"{nodes} nodes, {'cold' if cold else 'warm'}; seconds a round: median, smallest to largest, times")
    for name, repeats in found.items():
        seconds = [s for own in repeats.values() for s in own]
        times = ""
        if name in AGAINST:
            other = found[AGAINST[name]]
            ratios = [statistics.median(own) / statistics.median(other[r]) for r, own in repeats.items()]
            each = ", ".join(f"{x:.2f}" for x in ratios)
            times = f"{statistics.median(ratios):.2f} of '{AGAINST[name]}' ({each})"
        middle = statistics.median(seconds)
        print(f"{name:34} {middle:7.2f}  {min(seconds):.2f} to {max(seconds):.2f}  n={len(seconds)}  {times}")


if __name__ == "__main__":
    main()
