"""Runs every benchmark, one after another, and shows what each prints. ``HANSE_DATA=folder make bench``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = (
    "engines.py",
    "busy_start.py",
    "mnist_mlp.py",
    "whole_run.py",
    "cifar_cnn.py",
    "coalitions.py",
    "registered.py",
    "equilibrium.py",
)


def main() -> None:
    here = Path(__file__).parent
    failed = []
    for script in SCRIPTS:
        print(f"\n===== {script}", flush=True)
        if subprocess.run([sys.executable, str(here / script)], cwd=here, check=False).returncode:
            failed.append(script)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
