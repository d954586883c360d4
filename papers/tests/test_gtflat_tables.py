"""GTFLAT's effective rounds, worked out by hand."""

from pathlib import Path
from typing import Any

import pytest
from paper_cases import cell, made_up, sections, table

from hanse.lab.job import Job, Step
from hanse_papers.compare import rows
from hanse_papers.runner import TableOutcome, run_table
from hanse_papers.tables import Measure, Variant

# a run's curve by its learning rate, so that effective rounds can be worked out by hand
CURVES = {
    0.1: [0.2, 0.6, 0.5, 0.7, 0.9],
    0.2: [0.3, 0.896, 0.1, 0.2, 0.3],
    0.3: [0.1] * 5,
    0.4: [0.2, 0.6, 0.9, 0.9, 1],
}


def drawn(job: Job, step: Step) -> dict[str, Any]:
    lr = job.sections["train"]["lr"]
    shift = 0.02 * job.sections["data"]["seed"]
    curves = {"test/accuracy": [a - shift for a in CURVES[lr]]}
    return made_up(job, step) | {"tested": [1, 2, 3, 4, 5], "curves": curves}


def against(lr: float, base: float) -> Variant:
    made = [{**sections(5), "train": {"lr": rate}} for rate in (lr, base)]
    return Variant("", made[0], made[1])


def outcome(folder: Path, *, seeds: int = 1) -> TableOutcome:
    kinds: tuple[Measure, ...] = ("rounds", "improvement")
    cells = [
        cell(f"{lr:g} {kind}", against(lr, 0.1), at=5, measure=kind) for lr in (0.1, 0.2, 0.3, 0.4) for kind in kinds
    ]
    cells.append(cell("best", Variant("", {**sections(5), "train": {"lr": 0.2}}), at=4, measure="best"))
    cells.append(cell("last", Variant("", {**sections(5), "train": {"lr": 0.2}}), at=4))
    return run_table(table(*cells, factor=100.0), seeds=seeds, workers=1, folder=folder, work=drawn)


def test_effective_rounds_by_hand(tmp_path: Path) -> None:
    found = {r.cell.algorithm: r.best.mean for r in rows(outcome(tmp_path))}
    # the base's best is 0.9, so 0.895 is enough: after 5, 2, never and 3 rounds
    assert [found[f"0.{i} rounds"] for i in (1, 2, 3, 4)] == [5, 2, None, 3]
    assert [found[f"0.{i} improvement"] for i in (1, 2, 3, 4)] == [0, pytest.approx(60), None, pytest.approx(40)]
    assert [found["best"], found["last"]] == pytest.approx([89.6, 20])


def test_effective_rounds_over_seeds_are_of_the_mean_curve(tmp_path: Path) -> None:
    result = outcome(tmp_path, seeds=3)
    assert len(result.jobs) == 3 * 4  # the base is run once a seed
    found = {r.cell.algorithm: r.best for r in rows(result)}
    score, never = found["0.2 rounds"], found["0.3 rounds"]
    assert (score.mean, score.sd, score.n) == (2, 0, 3)
    assert (never.n, never.sd) == (3, None)
    assert found["best"].mean == pytest.approx(87.6)
