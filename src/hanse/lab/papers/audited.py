"""Plays a paper's runs that move money in a run directory, and audits each: its ledger, and its markets by round."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanse.lab.job import Job, Step, attempt, play
from hanse.lab.papers.runner import TableOutcome

if TYPE_CHECKING:
    from hanse.runs.experiment import Run

__all__ = ["audits", "play_audited"]

LEDGER = "the ledger verifies"


def play_audited(job: Job, step: Step) -> dict[str, Any]:
    """Run a job and return what is kept of it (:func:`hanse.lab.job.attempt`).

    A run with books is played in a temporary run directory; its result has ``audit``: each check's name with
    ``{"holds", "said"}``, and ``rounds``, the markets that were replayed.
    """
    from hanse.runs.experiment import run

    if job.experiment.mechanism.built.settle is None:
        return play(job, step)
    audit: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hanse-") as scratch:
        folder = Path(scratch) / "run"

        def go(observers: Sequence[Any]) -> Run:
            result = run(job.experiment, out=folder, observers=observers)
            if not result.interrupted and (folder / "ledger.db").exists():
                audit.update(_audit(folder))
            return result

        found = attempt(job, step, go)
    return found | {"audit": audit} if audit and found["status"] == "done" else found


def _audit(folder: Path) -> dict[str, Any]:
    from hanse.ledger.place import open_ledger
    from hanse.reports.audit import audit_run
    from hanse.runs.record import recorded_markets

    with open_ledger(folder) as ledger:
        verdict = ledger.verify()
    found: dict[str, Any] = {LEDGER: {"holds": verdict.ok, "said": verdict.wrong or ""}}
    found["rounds"] = sum(1 for _ in recorded_markets(folder))
    if found["rounds"]:
        found |= {check.name: {"holds": check.holds, "said": check.said} for check in audit_run(folder).checks}
    return found


def audits(outcome: TableOutcome) -> list[str]:
    """Return what the audits of a table's runs say: a line for all checks that hold everywhere, one for each other."""
    kept: Mapping[str, Mapping[str, Any]] = {
        job.label: outcome.results[job.key]["audit"]
        for job in outcome.jobs
        if "audit" in outcome.results.get(job.key, {})
    }
    if not kept:
        return []
    names = [name for name in dict.fromkeys(name for audit in kept.values() for name in audit) if name != "rounds"]
    broken = {
        name: [
            f"{label}: {audit[name]['said']}"
            for label, audit in kept.items()
            if name in audit and not audit[name]["holds"]
        ]
        for name in names
    }
    sound = [name for name in names if not broken[name] and name != "isolation"]
    markets = sum(audit["rounds"] for audit in kept.values())
    replayed = f", {markets} markets replayed" if markets else ""
    return [
        f"{len(kept)} runs with books were audited{replayed}; in all of them: {', '.join(sound)}",
        *(f"{name}: not in {len(where)} of {len(kept)} runs ({where[0]})" for name, where in broken.items() if where),
    ]
