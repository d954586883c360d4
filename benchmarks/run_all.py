"""Runs the benchmarks of speed one after another, or those that are named; ``--list`` says what each measures.

    HANSE_DATA=folder python benchmarks/run_all.py [NAME ...] [--list]        (make bench)

A name is that of a script beside this one; ``python benchmarks/NAME.py --help`` tells its options.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SPEED = ("engines", "growth", "ledger")
OTHERS = ("flower", "gpu")  # nodes on loopback; a card


def first_line(name: str) -> str:
    """Return the first sentence of a script's docstring."""
    said = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text())) or ""
    return re.split(r"(?<=[.?]) ", " ".join(said.split()))[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(SPEED))
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    if given.list:
        print(*(f"{name}: {first_line(name)}" for name in (*SPEED, *OTHERS)), sep="\n")
        return 0
    if unknown := [name for name in given.names if name not in (*SPEED, *OTHERS)]:
        parser.error(f"{', '.join(unknown)}: not one of {', '.join((*SPEED, *OTHERS))}")
    failed = []
    for name in given.names:
        print(f"\n===== {name}", flush=True)
        if subprocess.run([sys.executable, str(HERE / f"{name}.py")], cwd=HERE, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
