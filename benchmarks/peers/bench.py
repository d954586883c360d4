"""Systems side by side on the same jobs: a table, and its section of ``benchmarks/RESULTS.md``.

``HANSE_DATA=folder make bench-peers``. Each run is a process of its own in the system's own environment; the systems
take turns, so that a busy moment hits all alike; medians. What each differs in from the job stands in its runner.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

from environments import HERE, pinned, python_of
from environments import cache as folder_of_all
from jobs import JOBS, PeerJob, write_job
from measure import Measured, measure

import hanse
from hanse.learning.agreement import processor

RESULTS = HERE.parent / "RESULTS.md"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
LIMIT_S = 1_800.0
QUIET, PATIENCE = 0.1, 5  # cores that other processes may use in a run; how often it is repeated until they do not


@dataclass(frozen=True)
class System:
    """A system: its environment, its runner, the package whose version counts, how the runner is started
    (``{python}`` or ``{bin}/torchrun``) and the runner's ``options``.
    """

    name: str
    environment: str
    runner: str
    package: str
    start: tuple[str, ...] = ("{python}",)
    options: tuple[str, ...] = ()

    def command(self, job: Path) -> list[str]:
        """Return the command that does a job."""
        python = python_of(self.environment)
        words = [word.format(python=python, bin=python.parent) for word in self.start]
        return [*words, self.runner, *self.options, str(job)]

    @property
    def version(self) -> str:
        """Its package with the version that the environment has."""
        if self.package == "hanse":
            return f"hanse {hanse.__version__}"
        return f"{self.package} {pinned(self.environment, self.package)}"


_NO_LOCK = ("{python}", "-X", "gil=0")  # else Python takes its lock back when PyTorch loads Triton
_TWO = ("{bin}/torchrun", "--nproc_per_node", "2", "--master_port", "29771")
SYSTEMS = {
    system.name: system
    for system in (
        System("hanse", "hanse", "ours.py", "hanse"),
        System("plain PyTorch loop", "plain", "plain.py", "torch"),
        System("pfl-research, 2 processes", "pfl", "pfl_research.py", "pfl", _TWO),
        System("pfl-research, 1 process", "pfl", "pfl_research.py", "pfl"),
        System("BlazeFL, a thread a core", "blazefl", "blazefl_runner.py", "blazefl", _NO_LOCK),
        System("FedJAX, jit", "fedjax", "fedjax_runner.py", "fedjax"),
        System("FedJAX, pmap on 2 devices", "fedjax", "fedjax_runner.py", "fedjax", options=("pmap",)),
        System("fluke", "fluke", "fluke_runner.py", "fluke-fl"),
        System("Flower simulation (Ray)", "flower", "flower.py", "flwr"),
        System("PFLlib's method", "pfllib", "pfllib.py", "torch"),
    )
}


def run_job(
    job: PeerJob, systems: Sequence[System], runs: int, data: Path, card: bool = False, most: float = float("inf")
) -> dict[str, list[Measured]]:
    """Run every system ``runs`` times, in turns; one that fails is tried once more and then left out, with its reason
    printed. ``card``: they may see a graphics card. A run in which other processes used more than ``most`` cores is
    repeated; if it stays so, the whole ends with a line.
    """
    place = write_job(job, data, folder_of_all() / "jobs")
    found: dict[str, list[Measured]] = {system.name: [] for system in systems}
    for turn in range(runs):
        for system in systems:
            if system.name not in found:
                continue
            one = None
            if _installed(job, system):
                one = _quiet(job, system, place, card, most) or _quiet(job, system, place, card, most)
            if one is None:
                del found[system.name]
                continue
            found[system.name].append(one)
            print(f"{job.name}: {system.name}, run {turn + 1}: {_line(one)}", file=sys.stderr, flush=True)
    return found


@cache
def _cannot_be_made(environment: str) -> str | None:
    """Return why an environment cannot be made here, or None if it is there; each is tried once."""
    try:
        python_of(environment)
    except (RuntimeError, OSError) as wrong:
        return str(wrong)
    return None


def _installed(job: PeerJob, system: System) -> bool:
    """Whether the system's environment is there; prints why it is not."""
    wrong = _cannot_be_made(system.environment)
    if wrong:
        print(f"{job.name}: {system.name}: left out: {wrong}", file=sys.stderr, flush=True)
    return wrong is None


def _quiet(job: PeerJob, system: System, place: Path, card: bool, most: float) -> Measured | None:
    """Return a run in which other processes used at most ``most`` cores."""
    for _ in range(PATIENCE):
        one = _tried(job, system, place, card)
        if one is None or one.others <= most:
            return one
        beside = f"other processes used {one.others:.2f} cores, at most {most:g} are allowed"
        print(f"{job.name}: {system.name}: once more: {beside}", file=sys.stderr, flush=True)
    sys.exit(f"{job.name}: {system.name}: {beside}: nothing is reported; end them, or take --busy for a look")


def _tried(job: PeerJob, system: System, place: Path, card: bool) -> Measured | None:
    extra = _extra() if card else {**_extra(), "CUDA_VISIBLE_DEVICES": ""}
    try:
        return measure(system.command(place), folder=HERE / "runners", extra=extra, limit_s=LIMIT_S)
    except (RuntimeError, OSError) as wrong:
        print(f"{job.name}: {system.name}: failed: {wrong}", file=sys.stderr, flush=True)
        return None


def _extra() -> dict[str, str]:
    return {
        "RAY_raylet_start_wait_time_s": "180",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "FLWR_TELEMETRY_ENABLED": "0",
    }


def _line(one: Measured) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in asdict(one).items())


def table(job: PeerJob, found: Mapping[str, Sequence[Measured]]) -> list[str]:
    """Return a job's table as Markdown, the fastest first, ratios against hanse."""
    middle = {
        name: Measured(*(median(values) for values in zip(*(asdict(r).values() for r in runs), strict=True)))
        for name, runs in found.items()
        if runs
    }
    base = middle.get("hanse")
    lines = [
        "| system | version | at once x threads | s/round | times hanse's | start-up s | first round s | "
        "all rounds s | process s | times hanse's | peak PSS MB | accuracy |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in sorted(middle.items(), key=lambda pair: pair[1].round):
        steady = f"{one.round / base.round:.1f}" if base else "-"
        whole = f"{one.process / base.process:.1f}" if base else "-"
        cells = (
            SYSTEMS[name].version, f"{one.workers:.0f} x {one.threads:.0f}", f"{one.round:.3f}", steady,
            f"{one.start:.1f}", f"{one.first:.2f}", f"{one.rounds:.1f}", f"{one.process:.1f}", whole, f"{one.pss:.0f}",
            f"{one.accuracy:.3f}",
        )  # fmt: skip
        lines.append(f"| {name} | {' | '.join(cells)} |")
    head = (
        f"**{job.name}**: {job.source}, {job.clients:,} clients x {job.samples} samples, {job.seats} a round, "
        f"{job.epochs} epochs, batches of {job.batch}, SGD {job.lr:g} momentum {job.momentum:g}, {job.rounds} rounds; "
        f"tested on {job.tested:,} images every round. PFLlib has no momentum and tests all clients' own samples, too."
    )
    return [head, "", *lines]


def section(tables: Sequence[str], runs: int) -> str:
    """Return the section of the results page."""
    head = [
        BEGIN,
        "## Peers side by side: `HANSE_DATA=folder make bench-peers`",
        "",
        f"Medians of {runs} run{'s' if runs > 1 else ''} each, in turns; {os.cpu_count()} cores ({processor()}). "
        f"PyTorch {pinned('plain', 'torch')}, for FedJAX JAX {pinned('fedjax', 'jax')}. "
        "Samples, split, seats and first weights are the same for all; the order of a client's batches is each "
        "system's own. "
        '"At once" are the processes or threads that train a client each, "threads" those that share each operator; '
        '"start-up" ends when the first round begins; PSS is that of the whole process tree; hanse runs through '
        "`hanse.run` with its run directory.",
        "",
    ]
    return "\n".join([*head, "\n".join(tables), "", END])


def write_section(path: Path, text: str) -> None:
    """Put the section in the place of the one between the markers, or at the end."""
    page = path.read_text() if path.exists() else "# Measured\n"
    if BEGIN in page and END in page:
        before, rest = page.split(BEGIN, 1)
        page = before + text + rest.split(END, 1)[1]
    else:
        page = f"{page.rstrip()}\n\n{text}\n"
    path.write_text(page)


def _refuse_without_ours(figures: Mapping[str, Mapping[str, object]], write: bool) -> None:
    """End with a line where a job has no figures of hanse, before the section of RESULTS.md is overwritten."""
    without = [name for name, found in figures.items() if not found.get("hanse")]
    if without:
        kept = "; RESULTS.md stays as it is" if write else ""
        sys.exit(f"hanse itself was not measured in {', '.join(without)}: nothing to put others beside{kept}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", nargs="*", default=list(JOBS)[:3], choices=list(JOBS))
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS), choices=list(SYSTEMS), metavar="NAME")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="play this many instead of the job's own")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    parser.add_argument("--json", type=Path, help="also write every run's figures to this file")
    parser.add_argument("--busy", action="store_true", help="report although other processes compute; not --write")
    given = parser.parse_args()
    if given.busy and given.write:
        sys.exit("--busy: not with --write: RESULTS.md has figures of a quiet machine")
    if "HANSE_DATA" not in os.environ:
        sys.exit("HANSE_DATA: is not set: the folder with mnist.npz and cifar10.npz")
    if given.write and given.rounds is not None:
        sys.exit("--write: not with --rounds: RESULTS.md has the jobs' own numbers of rounds")
    data = Path(os.environ["HANSE_DATA"])
    for name in given.jobs:
        if not (data / f"{JOBS[name].source}.npz").exists():
            sys.exit(f"HANSE_DATA: {data} has no {JOBS[name].source}.npz")
    tables: list[str] = []
    figures = {}
    for name in given.jobs:
        job = JOBS[name] if given.rounds is None else replace(JOBS[name], rounds=given.rounds)
        most = float("inf") if given.busy else QUIET
        found = run_job(job, [SYSTEMS[s] for s in given.systems], given.runs, data, most=most)
        figures[name] = {system: [asdict(one) for one in runs] for system, runs in found.items()}
        tables += [*table(job, found), ""]
        print("\n".join([*tables[-len(table(job, found)) - 1 :]]), flush=True)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n")
    if "hanse" in given.systems or given.write:
        _refuse_without_ours(figures, given.write)
    if given.write:
        write_section(RESULTS, section(tables, given.runs))


if __name__ == "__main__":
    main()
