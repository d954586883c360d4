"""A paper of our own with two quick experiments, and jobs that do not train."""

from functools import cache
from typing import Any

from hanse.lab.job import Job, Step
from hanse_papers.claims import claim
from hanse_papers.tables import Cell, PaperTable, Printed, Variant
from tests.lab import sweep_cases

load_claims = cache(claim.load_claims)  # a paper's tables take seconds to be made


def sections(rounds: int = 3, **mechanism: Any) -> dict[str, Any]:
    return {
        "data": {"source": "digits", "clients": 4},
        "model": {"name": "logistic"},
        "mechanism": {"name": "fedavg", "clients_per_round": 2, **mechanism},
        "engine": {"train": "stacked", "threads": 1, "workers": 1, "device": "cpu"},
        "run": {"rounds": rounds},
    }


def cell(algorithm: str, *variants: Variant, at: int = 3, published: float | None = None, **more: Any) -> Cell:
    given = variants or (Variant("", sections()),)
    printed = None if published is None else Printed(published, 1.0)
    place = {"group": "digits", "column": more.pop("column", "iid"), "algorithm": algorithm}
    return Cell(**place, variants=given, at=at, published=printed, **more)


def table(*cells: Cell, **more: Any) -> PaperTable:
    return PaperTable(paper="ours", name="table1", title="A table", scale="smoke", cells=cells, seeds=2, **more)


def made_up(job: Job, step: Step) -> dict[str, Any]:
    """Plays nothing; the figures follow from the seed. A learning rate of 66 fails."""
    lr = job.sections.get("train", {}).get("lr")
    found = sweep_cases.made_up(job, step)
    if found["status"] == "failed":
        return found
    curve = [0.5 + 0.1 * job.sections["data"]["seed"] + (lr or 0.0)] * job.rounds
    made = {"tested": list(range(1, job.rounds + 1)), "curves": {"test/accuracy": curve}, "rounds": job.rounds}
    return found | made | {"ms_per_round": 1.0, "cpu_seconds": 0.003}
