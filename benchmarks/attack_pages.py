"""The line of 'hanse attack' on the page of every mechanism that pays.

    python benchmarks/attack_pages.py play [NAME...]    # searches, and keeps results/attack.jsonl
    python benchmarks/attack_pages.py write             # writes the lines into docs/mechanisms from it

Each search has 100 tries on handwritten digits, confirmed with five fresh seeds, as 'hanse attack NAME --tries 100'
plays it. A line stands between two comments that name its case, and is written anew by "write".
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hanse.wings.attack.attack_command import sentences
from hanse.wings.attack.search import search, small

TRIES, SEEDS = 100, 5
ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "benchmarks" / "results" / "attack.jsonl"


def changed(base: str, **sections: Any) -> dict[str, Any]:
    """Return the small experiment with a mechanism, with some sections otherwise."""
    return {**small(base), **sections}


def ninth(eagerness: float, cost: float, **more: Any) -> dict[str, Any]:
    """Return iPFL's market with eight clients that trade at a cost of 1 token, and a ninth with its own traits."""
    made = changed("ipfl", **more)
    profiles = {"name": "listed", "eagerness": [5e4] * 8 + [eagerness], "cost": [1.0] * 8 + [cost]}
    return {**made, "data": {**made["data"], "clients": 9}, "clients": {**made["clients"], "profiles": profiles}}


PUBLISHED = {"name": "pifl", "invited": "earn", "value": {"name": "first_order_clients", "judges": "all"}}
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "ipfl": ("ipfl", 0, small("ipfl")),
    "ipfl, a client that only sells": ("ipfl", 8, ninth(0.0, 1.0)),
    "ipfl, sizes proved, a client that asks nothing": ("ipfl", 8, ninth(5e4, 0.0, sizes={"proved": True})),
    "ipfl_posted": ("ipfl", 0, small("ipfl_posted")),
    "ipfl_posted, sizes proved": ("ipfl", 0, changed("ipfl_posted", sizes={"proved": True})),
    "pifl as published": ("pifl", 0, changed("pifl", mechanism=PUBLISHED)),
    "pifl": ("pifl", 0, small("pifl")),
    "tiff": ("pifl", 0, small("tiff")),
    "fedavg, path values, by_value": (
        "values",
        0,
        changed("fedavg", mechanism={"name": "fedavg", "value": "path", "settle": "by_value"}),
    ),
}


def play(names: list[str]) -> None:
    """Search the cases by name, all without any, and keep what was found."""
    for name in names or CASES:
        page, client, sections = CASES[name]
        begun, clock = time.process_time(), time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = search(sections, [client], Path(folder), tries=TRIES, seeds=SEEDS, workers=1)
        seconds, minutes = time.process_time() - begun, (time.monotonic() - clock) / 60
        line = {"case": name, "page": page, "client": client, "seconds": round(seconds), "said": sentences(found)}
        line |= {"minutes": round(minutes, 1)}
        with KEPT.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(name, round(seconds), *line["said"], sep="\n  ", flush=True)


def write() -> None:
    """Write the lines into the pages. A page must have the two comments of each of its cases."""
    for line in {one["case"]: one for one in map(json.loads, KEPT.read_text().splitlines())}.values():
        page = ROOT / "docs" / "mechanisms" / f"{line['page']}.md"
        begin, end = f"<!-- hanse attack: {line['case']} -->", "<!-- end -->"
        told = f"`{line['case']}`, client {line['client']}: {' '.join(line['said'])}".replace("95 % interval", "95 %:")
        before, found, rest = page.read_text().partition(begin)
        if not found or end not in rest:
            raise SystemExit(f"{page}: has no place for {line['case']!r}: {begin}{end}")
        page.write_text(before + begin + told + end + rest.partition(end)[2])


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write()
    else:
        play(sys.argv[2:])
