"""The script for Slurm: its parts together are the whole sweep."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sweep_cases import EXPERIMENT

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "slurm" / "sweep.sbatch"


@pytest.mark.slow
@pytest.mark.by_turns(3, 1)
def test_the_parts_are_the_whole_sweep(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    command = tmp_path / "hanse"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from hanse.cli import main; main()" "$@"\n')
    command.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
    words = ["exp.toml", "--grid", "mechanism.name=fedavg,local", "--set", "run.rounds=2", "--out", "out"]
    words += ["--rows-only"]

    def part(number: int) -> None:
        slurm = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_CPUS_PER_TASK": "1"}
        given = {**environment, **slurm}
        subprocess.run(["bash", str(SCRIPT), *words], cwd=tmp_path, env=given, check=True, capture_output=True)

    part(1)
    part(2)
    tables = sorted(p.name for p in (tmp_path / "out").glob("*.csv"))
    assert tables == ["part-1-of-2.csv", "part-2-of-2.csv"]
    names = [row["mechanism.name"] for name in tables for row in csv.DictReader((tmp_path / "out" / name).open())]
    assert names == ["fedavg", "local"]
    last = [str(command), "sweep", *words, "--workers", "1"]
    whole = subprocess.run(last, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert "2 runs, 0 of them now" in whole.stdout
    rows = list(csv.DictReader((tmp_path / "out" / "table.csv").open()))
    assert [(row["mechanism.name"], row["status"]) for row in rows] == [("fedavg", "done"), ("local", "done")]
