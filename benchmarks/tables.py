"""All tables of the four papers, played at the smallest scale and compared with those of an earlier commit.

    python benchmarks/tables.py [--base COMMIT] [--only PAPER[/TABLE] ...] [--workers N]      (make tables)

Every entry of the papers' ``paper.toml`` is played by ``hanse reproduce PAPER TABLE --scale smoke --json``, here and,
once for each kind of machine, in a checkout of the base; the rows must be equal to the last bit. A kind is the
processor, PyTorch and its threads, whether the engine is compiled, and which data sets are here; its rows and the
checkout are kept in the user's cache folder. What differs is named row by row, with exit code 1. Entries that failed
at the base too (those of an extra that is not installed) are listed and are no difference, nor are entries of one side
alone. It may be stopped at any time, and goes on with the entries that are left as long as the sources are the same;
entries that failed are played again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import ROOT, SOURCES, cache, checkout, hash_of, kind_of_machine, short, sources, written

BASE = "c568d594"


def hanse(tree: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``hanse`` of a source tree in a folder."""
    environment = os.environ | {"PYTHONPATH": sources(tree)}
    line = [sys.executable, "-m", "hanse", *words]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def catalogue(tree: Path, folder: Path) -> tuple[list[str], list[str]]:
    """Return a tree's entries as ``PAPER/TABLE``, and which of the data sets that they need are here."""
    done = hanse(tree, folder, "reproduce", "--json")
    if done.returncode:
        raise SystemExit(f"{tree}: hanse reproduce --json: {done.stderr.strip()}")
    tables = [(paper["paper"], table) for paper in json.loads(done.stdout)["papers"] for table in paper["tables"]]
    here = {name for _, table in tables for name, is_here in table["data"]["smoke"].items() if is_here}
    return sorted(f"{paper}/{table['table']}" for paper, table in tables), sorted(here)  # table 8 of iPFL reads its 7


def play(tree: Path, folder: Path, entry: str, workers: int) -> dict[str, Any]:
    """Return an entry's rows, or the last line of what it says if it fails."""
    paper, table = entry.split("/")
    begun = time.monotonic()
    words = ("--scale", "smoke", "--json", "--workers", str(workers), "--out", f"runs/reproduce/{paper}")
    done = hanse(tree, folder, "reproduce", paper, table, *words)
    line: dict[str, Any] = {"entry": entry, "seconds": round(time.monotonic() - begun, 1)}
    if done.returncode < 0:
        raise SystemExit(f"{entry}: ended by signal {-done.returncode}")
    if done.returncode:
        return line | {"failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    return line | {"rows": json.loads(done.stdout)["rows"]}


@dataclass(frozen=True)
class Side:
    """One of the two trees that are compared, and the folder in which its lines are kept."""

    name: str
    tree: Path
    place: Path

    def line(self, entry: str, workers: int) -> Mapping[str, Any]:
        """Return an entry's line; it is played, and kept, unless it is there and did not fail."""
        self.place.mkdir(parents=True, exist_ok=True)
        for line in written(self.place / "rows.jsonl"):
            if line["entry"] == entry and "rows" in line:
                return line
        line = play(self.tree, self.place, entry, workers)
        with (self.place / "rows.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"    {self.name}: {line['seconds']} s", flush=True)
        return line


def differences(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each row that is not the same on both sides; nothing if all are equal, in the same order."""
    if list(before) == list(now):
        return
    olds, news = ({(row["setting"], row["algorithm"]): row for row in rows} for rows in (before, now))
    named = False
    for name in dict.fromkeys([*olds, *news]):
        old, new = olds.get(name, {}), news.get(name, {})
        fields = [f for f in dict.fromkeys([*old, *new]) if old.get(f, "absent") != new.get(f, "absent")]
        if fields:
            named = True
            said = ", ".join(f"{f} {old.get(f, 'absent')} -> {new.get(f, 'absent')}" for f in fields)
            yield f"{' | '.join(name)}: {said}"
    if not named:
        yield "the same rows in another order or number"


def verdict(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return a word for an entry (equal, DIFFERS, failed at the base), and what is to be said of it."""
    if "failed" in before:
        return "failed at the base", [before["failed"], *([] if "failed" in now else ["it ends well now"])]
    if "failed" in now:
        return "DIFFERS", [f"fails now: {now['failed']}"]
    found = list(differences(before["rows"], now["rows"]))
    return ("DIFFERS" if found else "equal"), found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default=BASE, metavar="COMMIT")
    parser.add_argument("--only", nargs="*", metavar="PAPER[/TABLE]")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes, of one thread each")
    given = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    base = checkout(given.base)
    top = cache() / "tables"
    top.mkdir(parents=True, exist_ok=True)
    entries, data = catalogue(base, top)
    entries_now, _ = catalogue(ROOT, top)
    kind = kind_of_machine(ROOT) | {"data": ", ".join(data)}
    place = top / short(kind)
    place.mkdir(exist_ok=True)
    (place / "kind.json").write_text(json.dumps(kind, indent=1) + "\n")
    print(f"{'; '.join(f'{k}: {v}' for k, v in kind.items())}; kept in {place}", flush=True)

    here = place / f"now-{short([hash_of(ROOT / part) for part in SOURCES])}"
    for old in place.glob("now-*"):
        if time.time() - old.stat().st_mtime > 7 * 86400:  # of sources that are gone; a newer one may be in use
            shutil.rmtree(old)
    sides = (Side(base.name[:8], base, place / base.name), Side("now", ROOT, here))
    names = sorted({*entries, *entries_now})
    names = [n for n in names if not given.only or any(n == o or n.startswith(f"{o}/") for o in given.only)]
    found = dict[str, tuple[str, list[str]]]()
    for number, entry in enumerate(names, 1):
        if entry in entries and entry in entries_now:
            old, new = (one.line(entry, given.workers) for one in sides)
            found[entry] = verdict(old, new)
        else:
            found[entry] = ("on one side alone", ["gone" if entry in entries else "new"])
        print(f"{number}/{len(names)} {entry}: {found[entry][0]}", flush=True)
    for word in ("failed at the base", "on one side alone", "DIFFERS"):
        for entry, lines in ((entry, lines) for entry, (said, lines) in found.items() if said == word):
            print(f"{entry} {word}:", *lines, sep="\n    ")
    words = [word for word, _ in found.values()]
    differ = words.count("DIFFERS")
    print(f"{words.count('equal')} of {words.count('equal') + differ} tables have equal rows")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
