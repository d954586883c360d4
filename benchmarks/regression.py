"""Says whether a change kept every bit: short runs of all mechanisms, compared with another commit's.

    python benchmarks/regression.py --base COMMIT [--only NAME ...]      (about a minute on two cores)

Each job is a run of a few rounds on data that every machine has, engine and threads pinned: once with the source tree
that this file is in, once with that of ``COMMIT``, each side in a process of its own. Compared are the final table and
homes, every metric (but ``time/`` and ``memory/``), every line of ``clients.jsonl``, every array of every round, and
the ledger's transactions and head. What differs is named, with the exit code 1; what one side alone has is listed and
is no difference. Both sides run on the same machine, since bits depend on its processor and its libraries.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

# what a process does with the jobs; it reads files and public names alone, so that it fits old and new source trees
CHILD = """
import hashlib, json, sqlite3, sys, tempfile, uuid
from pathlib import Path
uuid.uuid4 = lambda: uuid.UUID(int=7)  # a book's random name is part of its hashes
import numpy as np, hanse

def digest(value):
    array = np.asarray(value)
    if array.dtype == object:
        raise TypeError("objects have no bits")
    said = f"{array.dtype.kind}|{array.shape}|".encode()
    return hashlib.blake2b(said + np.ascontiguousarray(array).tobytes(), digest_size=12).hexdigest()

def text(value):
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=12).hexdigest()

def digests(job, folder):
    run = hanse.run(hanse.Experiment(**job), out=folder)
    found = {"table": digest(run.table.rows.cpu().numpy()), "home": digest(run.home)}
    if run.personal is not None:
        found["personal"] = digest(run.personal)
    for name in ("metrics", "clients"):
        lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for key in sorted({key for line in lines for key in line if not key.startswith(("time/", "memory/"))}):
            found[f"{name}: {key}"] = text([line.get(key, "absent") for line in lines])
    for record in sorted((folder / "rounds").glob("*.npz")):
        with np.load(record) as arrays:
            for name in arrays.files:
                found[f"rounds/{record.stem}: {name}"] = digest(arrays[name])
    if (folder / "ledger.db").exists():
        with sqlite3.connect(folder / "ledger.db") as books:
            by_ids = "account_id" in {column[1] for column in books.execute("pragma table_info(postings)")}
            found["ledger: postings"] = text([list(row) for row in books.execute(
                "select t.round, t.step, t.kind, a.name, p.amount from postings p join transactions t on"
                " t.id = p.transaction_id join accounts a on a.id = p.account_id order by t.number, p.line" if by_ids
                else "select round, step, kind, account, amount from postings join transactions using (book, number)"
                " order by number, line")])
        found["ledger: balances"] = text(sorted(run.book.balances.items()))
        found["ledger: head"] = run.book.head
    return found

for job in json.loads(sys.argv[1]):
    with tempfile.TemporaryDirectory() as folder:
        try:
            print(json.dumps(digests(job, Path(folder) / "run")), flush=True)
        except Exception as wrong:
            print(json.dumps({"FAILED": f"{type(wrong).__name__}: {wrong}"}), flush=True)
"""

DIGITS: Mapping[str, Any] = {
    "data": {"source": "digits", "partition": {"name": "dirichlet", "alpha": 0.5}, "clients": 8, "validation": 0.1},
    "model": {"name": "mlp", "hidden": [24]},
    "train": {"epochs": 2, "batch_size": 16, "lr": 0.05, "momentum": 0.5},
    "engine": {"train": "stacked", "threads": 1},
    "run": {"rounds": 4, "seed": 7},
}
OWN_TESTS: Mapping[str, Any] = {**DIGITS["data"], "client_test": 0.2, "client_validation": 0.2}
SEATS = 4


def _job(mechanism: Mapping[str, Any], **sections: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an experiment's sections; a section that is given adds to the common one."""
    given = {k: dict(keys) if k == "model" else {**DIGITS.get(k, {}), **keys} for k, keys in sections.items()}
    return {**DIGITS, **given, "mechanism": dict(mechanism)}


def _of(name: str, **options: Any) -> Mapping[str, Any]:
    return {"name": name, "clients_per_round": SEATS, **options}


TOKENS = {"data": OWN_TESTS, "clients": {"grant": 30.0}, "run": {"rounds": 6}}
PIFL = {"name": "pifl", "tiers": 2, "by_contribution": 3, "at_random": 1, "value": {"judges": "all"}}  # the paper's way
MARKET = {"data": OWN_TESTS, "clients": {"grant": 300.0}, "run": {"rounds": 5}}

JOBS: Mapping[str, Mapping[str, Any]] = {
    "FedAvg": _job(_of("fedavg")),
    "FedAvg, one by one": _job(_of("fedavg"), engine={"train": "sequential"}),
    "FedAvg, weight decay, decaying rate": _job(_of("fedavg"), train={"weight_decay": 0.01, "lr_decay": 0.9}),
    "FedProx": _job(_of("fedprox")),
    "FedProx, stragglers and noise": _job(
        _of("fedprox"), behaviour={"straggler": {"fraction": 0.5}, "noisy": {"sigma": 0.05}}
    ),
    **{f"GreedyFed, {v}": _job(_of("greedyfed", value=v)) for v in (
        "gtg", "exact", "monte_carlo", "leave_one_out", "banzhaf", "first_order")},
    "GreedyFed, told": _job(_of("greedyfed"), clients={"told": True}),
    "UCB": _job(_of("ucb")),
    "S-FedAvg": _job(_of("s_fedavg")),
    "Oort": _job(_of("oort")),
    "Power-of-Choice": _job(_of("power_of_choice")),
    "set-aware": _job(_of("set_aware"), run={"rounds": 6}),
    "GTFedAvg": _job(_of("gtfedavg")),
    "GTFedProx": _job(_of("gtfedprox")),
    "inverse distances": _job(_of("fedavg", weigh="inverse_distance")),
    "FedGen": _job(_of("fedgen"), engine={"train": "sequential"}),
    "GTFedGen": _job(_of("gtfedgen"), engine={"train": "sequential"}),
    "PI-FL": _job(PIFL, **TOKENS),
    "PI-FL, few tokens": _job(PIFL, **{**TOKENS, "clients": {"grant": 2.0}}),
    "PI-FL, GTFLAT in the tiers": _job({**PIFL, "weigh": "gtflat"}, **TOKENS),
    "PI-FL, first order at the server": _job({**PIFL, "value": "first_order"}, **TOKENS),
    "TIFF": _job({"name": "tiff"}, **TOKENS),
    "iPFL": _job({"name": "ipfl"}, **MARKET),
    "iPFL, few tokens": _job({"name": "ipfl"}, **{**MARKET, "clients": {"grant": 20.0}}),
    "iPFL, attackers": _job(
        {"name": "ipfl"}, **MARKET, behaviour={"attacker": {"clients": [1, 4], "kind": "gaussian"}}
    ),
    "SCAFFOLD": _job(_of("scaffold"), train={"momentum": 0.0}),
    "Ditto": _job(_of("ditto"), data=OWN_TESTS),
    "Ditto, GTFLAT": _job(_of("ditto", weigh="gtflat"), data=OWN_TESTS),
    "FedAMP": _job(_of("fedamp"), data=OWN_TESTS),
    "HeurFedAMP": _job(_of("heur_fedamp"), data=OWN_TESTS),
    "pFedGraph": _job(_of("pfedgraph"), data=OWN_TESTS),
    "FedFomo": _job(_of("fedfomo"), data=OWN_TESTS),
    "CFL": _job({"name": "cfl", "eps1": 10.0, "eps2": 0.01}, data=OWN_TESTS, run={"rounds": 6}),
    "IFCA": _job(_of("ifca"), data=OWN_TESTS),
    "FedSoft": _job(_of("fedsoft"), data=OWN_TESTS),
    "local": _job({"name": "local"}, data=OWN_TESTS),
    "centralised": _job({"name": "centralised"}, data={"partition": "pooled"}),
    "synthetic, logistic": _job(_of("fedprox"), data={"source": "synthetic", "partition": "natural"},
                                model={"name": "logistic"}),
    "batch norm": _job(_of("gtfedavg"), model={"name": "mlp", "hidden": [16], "batch_norm": True}),
    "norm bound, drop-outs": _job(
        _of("fedavg", select="everyone"),
        behaviour={"dropout": {"rate": 0.4}}, federation={"refuse": "norm_bound"},
    ),
}  # fmt: skip


def digests(source: Path, jobs: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, str]]:
    """Return each job's digests with the package in ``source``; of a job that failed, the error.

    Raises RuntimeError if the process itself ended early.
    """
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", CHILD, json.dumps(jobs)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    found: list[dict[str, str]] = [json.loads(said) for said in done.stdout.splitlines()]
    if done.returncode or len(found) < len(jobs):
        raise RuntimeError(done.stderr[-3000:])
    return found


@contextmanager
def source_of(commit: str) -> Iterator[Path]:
    """Hand out the source tree of a commit, in a folder of its own that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree / "src"
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def compare(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the names of what differs, and of what only one side has."""
    differ = [name for name in before if name in after and before[name] != after[name]]
    failed = [f"{side} {found['FAILED']}" for side, found in (("before", before), ("now", after)) if "FAILED" in found]
    return [*failed, *differ], sorted(set(before) ^ set(after))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, metavar="COMMIT")
    parser.add_argument("--only", nargs="*", default=list(JOBS), choices=list(JOBS), metavar="NAME")
    given = parser.parse_args(arguments)
    wrong = 0
    jobs = [JOBS[name] for name in given.only]
    with source_of(given.base) as base, ThreadPoolExecutor(2) as pool:
        olds, news = pool.map(lambda source: digests(source, jobs), (base, ROOT / "src"))
        for name, before, after in zip(given.only, olds, news, strict=True):
            differ, alone = compare(before, after)
            wrong += bool(differ)
            print(f"{name}: {len(before)} digests, {'equal' if not differ else f'{len(differ)} DIFFER'}", flush=True)
            for what in (*differ[:8], *(["..."] if len(differ) > 8 else [])):
                print(f"    differs: {what}")
            if alone:
                print(f"    on one side alone: {', '.join(alone[:8])}{' ...' if len(alone) > 8 else ''}")
    print(f"{len(given.only) - wrong} of {len(given.only)} runs have equal bits")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
