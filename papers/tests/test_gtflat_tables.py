"""GTFLAT's tables as data, effective rounds by hand, Example 1, and a table that really trains."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from paper_cases import cell, made_up, sections, table
from typer.testing import CliRunner

from hanse.lab.job import Job, Step
from hanse.lab.kept import KeptFile
from hanse.reports.compare import improvement
from hanse_papers.catalogue import find_table
from hanse_papers.compare import rows
from hanse_papers.reproduce import reproduce
from hanse_papers.runner import TableOutcome, run_table
from hanse_papers.tables import Measure, PaperTable, Printed, Variant, read_table

BASES = ("FedAvg", "FedProx", "FedGen")
ACCURACY = {
    (group, alpha, row): Printed(*pair)
    for group, rows_of in read_table("gtflat", "table2", "paper")["published"].items()
    for row, pairs in rows_of.items()
    for alpha, pair in zip((0.05, 1.0), pairs, strict=True)
}
ROUNDS = {  # the base's, GTFLAT's, the improvement
    (group, alpha, base): [
        rows_of[row][i] for row in (f"{base}: R*", f"GT{base}: R* for {base}'s", f"GT{base}: improvement %")
    ]
    for group, rows_of in read_table("gtflat", "table3", "paper")["published"].items()
    for i, alpha in enumerate((0.05, 1.0))
    for base in BASES
}
SOURCES = ("MNIST", "FMNIST", "EMNIST", "CIFAR-10")


def paper(name: str) -> PaperTable:
    return find_table("gtflat", name, "paper")


def test_printed_rounds_agree_with_eq_13_but_for_two() -> None:
    assert len(ROUNDS) == 4 * 2 * 3
    wrong = {}
    for where, (base, ours, printed) in ROUNDS.items():
        found = improvement(ours, base)
        if abs(found - printed) > 0.005001:
            wrong[where] = (printed, round(found, 2))
    assert wrong == {  # T12
        ("EMNIST", 1.0, "FedAvg"): (-6.72, -6.74),
        ("CIFAR-10", 1.0, "FedProx"): (6.34, 6.43),
    }


def test_the_headline_is_the_mean_of_the_tables() -> None:
    percent = [printed for _, _, printed in ROUNDS.values()]
    assert sum(percent) / len(percent) == pytest.approx(21.06, abs=0.01)
    gains = [
        ACCURACY[s, a, f"GT{b}"].mean - ACCURACY[s, a, b].mean for s in SOURCES for a in (0.05, 1.0) for b in BASES
    ]
    assert sum(gains) / len(gains) == pytest.approx(1.38, abs=0.02)


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


def call(*args: str, out: Path) -> Any:
    app = typer.Typer()
    app.command()(reproduce)
    return CliRunner().invoke(app, ["gtflat", *args, "--out", str(out), "--workers", "1"])


def test_example1_from_the_command_line(tmp_path: Path) -> None:
    result = call("example1", "--json", out=tmp_path)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {k: found[k] for k in ("paper", "table", "seeds")} == {"paper": "gtflat", "table": "example1", "seeds": 1}
    by_name = {(r["setting"], r["algorithm"]): r for r in found["rows"]}
    integers = [r for (_, algorithm), r in by_name.items() if algorithm == "integers"]
    assert len(integers) == 9
    for row in integers:
        assert round(row["mean"], 2) == row["published"]
    assert [round(r["mean"], 4) for r in integers[6:]] == [0.0833, 0.46, 0.4567]
    payoffs = {name: r for name, r in by_name.items() if name[0].startswith("Table 1")}
    assert len(payoffs) == 24
    apart = [name for name, r in payoffs.items() if abs(r["mean"] - r["published"]) > 0.00501]
    assert apart == [("Table 1, payoffs, u[2]", "s=(1, 0, 1)")]  # T9


@pytest.mark.slow
def test_a_smoke_table_really_trains(tmp_path: Path) -> None:
    result = call("table3", "--only", "alpha=1 gtfedavg", "--json", out=tmp_path)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["seeds"] == 2
    names = [r["algorithm"] for r in found["rows"]]
    both = ("GTFedAvg", "GTFedAvg, mean scale")
    assert names == [f"{a}: {what}" for a in both for what in ("R* for FedAvg's", "improvement %")]
    assert all(r["n"] == 2 for r in found["rows"])
    runs = [run for lines in KeptFile(tmp_path).lines().values() for run in lines]
    assert {r["given"]["mechanism"]["name"] for r in runs} == {"fedavg"}
    assert len(runs) == 6  # both forms of GTFLAT and their base, two seeds
    assert all(len(set(r["curves"]["test/loss"])) == 4 for r in runs)
