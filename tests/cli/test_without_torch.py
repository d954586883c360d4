"""Commands that only read are done without torch, also those that settle payments again (but for PI-FL's rule, which is
shown its clients' scores as tensors).
"""

import json
import subprocess
import sys
from pathlib import Path

import hanse
from hanse.base.wings import absent
from hanse.runs.rehearsal import rehearse

# runs each command in one process, in which torch cannot be imported; prints what each exits with
PROGRAM = """
import json, sys
from hanse.cli import main

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ImportError("torch, which a command that only reads does not need")

sys.meta_path.insert(0, Refuses())
codes = {}
for line in json.loads(sys.argv[1]):
    sys.argv = ["hanse", *line.split()]
    try:
        main()
        codes[line] = 0
    except SystemExit as end:
        codes[line] = end.code or 0
print(json.dumps([codes, "torch" in sys.modules]))
"""
READING = (
    "list", "list greedyfed", "list ipfl", "list attacker", "list partitions", "list data", "list words",
    "audit run market", "audit valued --json", "ledger verify market", "ledger verify valued", "ledger rebuild valued",
    "invoice valued --budget 100 --currency EUR", "sweep exp.toml --seeds 2 --dry-run",
    *(() if absent() else ("crate valued",)),
)  # fmt: skip


def test_a_command_that_only_reads_needs_no_torch(tmp_path: Path) -> None:
    hanse.run(rehearse("ipfl").experiment, out=tmp_path / "market")
    mechanism = {"name": "fedavg", "clients_per_round": 2, "value": "path", "settle": "by_value"}
    valued = hanse.Experiment(data={"source": "digits", "clients": 3}, mechanism=mechanism, run={"rounds": 2})
    hanse.run(valued, out=tmp_path / "valued")
    (tmp_path / "exp.toml").write_text(valued.to_toml())
    words = [sys.executable, "-c", PROGRAM, json.dumps(READING)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout.splitlines()[-1]) == [dict.fromkeys(READING, 0), False]
