import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forging import recorded
from reports_cases import accuracies, metric, rated_run, runs_of, write_run
from rich.console import Console

from hanse.base.errors import UserError
from hanse.data.fingerprint import write_data
from hanse.reports.accuracy import curve_charts, own_charts, reached
from hanse.reports.compare import EPSILON, Column, as_text, cautions, difference_rows, experiments_table, with_baseline
from hanse.reports.facts import facts
from hanse.reports.groups import group_runs
from hanse.reports.report import warnings
from hanse.reports.text_table import TextTable
from hanse.runs.run_record import load_runs


def rows_of(paths: Sequence[Path], epsilon: float = EPSILON, baseline: str | None = None) -> list[dict[str, Any]]:
    """The rows of runs and of means."""
    rows = json.loads(as_text("json", load_runs(paths), epsilon, baseline))
    return [row for row in rows if row["kind"] != "difference"]


def test_final_best_time_bytes_refusals(tmp_path: Path) -> None:
    lines = [
        metric(0, 0.5, **{"time/round_s": 9.0}),
        metric(1, 0.8, refused=2, **{"time/round_s": 1.0, "client/test_accuracy": 0.6}),
        metric(2, 0.7, **{"time/round_s": 2.0}),
        metric(3, None, **{"time/round_s": 1.5}),
    ]
    (row,) = rows_of([write_run(tmp_path / "a", lines)])
    assert row == {
        "run": "a", "kind": "run", "mechanism": "greedyfed", "rounds": 4, "seed": 0, "test_accuracy": 0.7,
        "best_accuracy": 0.8, "test_loss": pytest.approx(0.3), "test_mse": None, "client_accuracy": 0.6,
        "seconds_per_round": 1.75, "virtual_seconds": None, "mb": 8.0, "refused": 2, "effective_round": 2,
        "effective_round_improvement": 0.0,
    }  # fmt: skip


def test_tables_charts_and_facts_mean_the_same_clients_once_one_has_left(tmp_path: Path) -> None:
    path = rated_run(tmp_path / "run", [0.5, 0.7, 0.9])
    recorded(path, 1, tested=np.arange(2), test_accuracy=np.array([0.5, 0.6]), test_loss=np.ones(2))
    lines = (path / "metrics.jsonl").read_text().rpartition('"client/test_accuracy": ')
    (path / "metrics.jsonl").write_text(f"{lines[0]}{lines[1]}{lines[2].replace('0.7', '0.55', 1)}")
    (path / "members.json").write_text('[{"id": 0}, {"id": 1}, {"id": 2}]')
    groups = group_runs(load_runs([path]))
    [curve] = next(chart for chart in curve_charts(groups) if "at the clients" in chart.title).marks.lines
    table = experiments_table(groups)
    assert table.rows[0][table.headings.index("at the clients %")] == reached(groups[0].runs[0])[1][-1][:-2] == "66.67"
    assert [*curve.y, 100 * facts(path).runs[0].own] == pytest.approx([70, 200 / 3, 200 / 3])


def test_virtual_time_is_compared(tmp_path: Path) -> None:
    timed = write_run(tmp_path / "a", [metric(r, 0.2, clock_s=seconds) for r, seconds in enumerate((1.5, 2.0, 4.5))])
    paths = [timed, write_run(tmp_path / "b", [metric(0, 0.5)], changes={"mechanism": {"name": "fedavg"}})]
    assert [row["virtual_seconds"] for row in rows_of(paths)] == [4.5, None]
    assert "virtual seconds in all" in experiments_table(group_runs(load_runs(paths))).headings


def test_several_seeds_get_mean_and_deviation(tmp_path: Path) -> None:
    paths = [accuracies(tmp_path / f"s{i}", [0.1, a], {"run": {"seed": i}}) for i, a in enumerate((0.9, 0.8, 0.7))]
    paths.append(accuracies(tmp_path / "other", [0.2, 0.3], {"mechanism": {"name": "fedavg"}}))
    rows = rows_of(paths)
    assert [row["kind"] for row in rows] == ["run"] * 4 + ["mean", "sd"]
    assert len({tuple(row) for row in rows}) == 1  # the same keys in the same order
    assert rows[4]["run"] == "greedyfed (3 seeds)"
    assert rows[4]["test_accuracy"] == pytest.approx(0.8)
    assert rows[5]["test_accuracy"] == pytest.approx(0.1)
    assert rows[4]["seed"] is None
    json.dumps(rows, allow_nan=False)
    table = experiments_table(group_runs(load_runs(paths)))
    assert table.rows[0][:4] == ("greedyfed", "3", "2", "80.00 ± 10.00")
    assert table.rows[1][3] == "30.00"


def test_unfinished_and_repeated_runs_are_told(tmp_path: Path) -> None:
    a = accuracies(tmp_path / "a", [0.1] * 4)
    b = accuracies(tmp_path / "b", [0.1] * 4)
    runs = load_runs([a, b, accuracies(tmp_path / "c", [0.1] * 3, {"run": {"seed": 1}})])
    assert [(note.code, whose) for note, whose in warnings(group_runs(runs), runs)] == [
        ("unfinished", ("c",)), ("repeats", ("b",)), ("uneven_seeds", ())
    ]  # fmt: skip


def test_effective_rounds_against_the_first_experiment(tmp_path: Path) -> None:
    first = runs_of(tmp_path, "fedavg", [0.5, 0.8, 0.7, 0.9], [0.6, 0.6, 0.7, 0.6])
    other = runs_of(tmp_path, "gtfedavg", [0.5, 0.896, 0.5, 0.5], [0.6, 0.7, 0.9, 0.9])
    listed = rows_of([*first, *other, *runs_of(tmp_path, "uniform", [0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1])])
    rows = {row["run"]: row for row in listed if row["kind"] == "run"}
    keys = ("effective_round", "effective_round_improvement")

    def found(name: str) -> tuple[float | None, ...]:
        return tuple(None if rows[name][k] is None else pytest.approx(rows[name][k]) for k in keys)

    # bests of the first: 0.9 after 4 rounds and 0.7 after 3; within 0.005 is enough
    assert found("fedavg0") == (4, 0)
    assert found("fedavg1") == (3, 0)
    assert found("gtfedavg0") == (2, 50)
    assert found("gtfedavg1") == (2, 100 / 3)
    assert found("uniform0") == (None, None)
    assert found("uniform1") == (1, 200 / 3)
    means = [row for row in listed if row["kind"] == "mean"]
    assert [row["effective_round"] for row in means] == [3.5, 2.0, None]
    assert means[1]["effective_round_improvement"] == pytest.approx((50 + 100 / 3) / 2)
    deviation = next(row for row in listed if row["kind"] == "sd" and row["run"].startswith("gtfedavg"))
    assert deviation["effective_round"] == 0
    assert {row["run"]: row["effective_round"] for row in rows_of([*first, *other], 0.0)}["gtfedavg0"] is None
    with pytest.raises(UserError, match="--epsilon 1"):
        rows_of(first, 1)


def test_other_data_other_rounds_and_single_seeds_are_said(tmp_path: Path) -> None:
    def run(name: str, data: dict[str, Any], rounds: int, seed: int = 0) -> Path:
        mechanism = {"name": {"a": "fedavg", "b": "fedprox"}[name[0]]}
        changes = {"data": data, "run": {"rounds": rounds, "seed": seed}, "mechanism": mechanism}
        return accuracies(tmp_path / name, [0.5], changes)

    here, there = run("a", {"clients": 6, "client_test": 0.2}, 2), run("b", {"clients": 8}, 3)
    found = cautions(group_runs(load_runs([here, there])))
    assert [note.code for note in found] == ["settings_differ", "one_seed"]
    assert found[0].fields["settings"] == {
        "data.clients": ["6", "8"], "data.client_test": ["0.2", "none"], "run.rounds": ["2", "3"]
    }  # fmt: skip
    (there / "members.json").write_text('[{"id": 7}]')  # a network, whose data no setting names
    for more, apart in (([], []), ([run("a7", {"clients": 7, "client_test": 0.2}, 2)], ["data.clients"])):
        found = cautions(group_runs(load_runs([here, there, *more])))
        assert ([*found[0].fields["settings"]], found[1].code) == ([*apart, "run.rounds"], "data_elsewhere")
    same = [run(f"{name}{seed}", {"clients": 6}, 2, seed) for name in "ab" for seed in (0, 1)]
    assert cautions(group_runs(load_runs(same))) == []
    for k, path in enumerate(same):  # of the first experiment both seeds have one split, of the other each its own
        write_data(path, 0, {"train": ["0", str(max(0, k - 2))], "test": [], "server test": [str(k)]})
    [note] = cautions(group_runs(load_runs(same)))
    assert (note.code, note.fields) == ("one_split", {"labels": ["fedavg"]})
    assert [note.code for note in cautions(group_runs(load_runs(same[:2])))] == ["one_split"]
    assert cautions(group_runs(load_runs([here]))) == []


def test_who_cheats_does_not_count_in_the_clients_own_accuracy(tmp_path: Path) -> None:
    lines = [metric(r, 0.5, **{"client/test_accuracy": 0.4, "client/test_loss": 1.0}) for r in range(2)]
    cheated = write_run(tmp_path / "a", lines, changes={"behaviour": {"attacker": {"clients": [1]}}})
    honest = write_run(tmp_path / "b", lines, changes={"mechanism": {"name": "fedavg"}})
    for r in range(2):
        recorded(
            cheated, r, tested=np.arange(3), test_loss=np.ones(3), test_accuracy=np.array([0.5 + 0.1 * r, 0.0, 0.7])
        )
    groups = group_runs(load_runs([cheated, honest]))
    assert [row["client_accuracy"] for row in rows_of([cheated, honest])] == [pytest.approx(0.65), 0.4]
    (curve,) = [chart for chart in curve_charts(groups) if chart.key == "client-test-accuracy"]
    assert [line.y.tolist() for line in curve.marks.lines] == [[pytest.approx(60), pytest.approx(65)], [40, 40]]
    (spread,) = [chart for chart in own_charts(groups) if chart.key == "own-accuracy-cdf"]
    assert [line.x.tolist() for line in spread.marks.lines] == [
        pytest.approx([60, 60, 70])
    ]  # without client 1, the attacker
    assert [line.y.tolist() for line in spread.marks.lines] == [[0, 50, 100]]
    assert spread.caption.endswith("Clients that the experiment makes cheat are left out.")


def test_another_baseline_turns_the_differences_around(tmp_path: Path) -> None:
    paths = runs_of(tmp_path, "fedavg", [0.1, 0.5], [0.1, 0.7])
    paths += runs_of(tmp_path, "greedyfed", [0.1, 0.625], [0.1, 0.825])
    groups = group_runs(load_runs(paths))
    assert [group.label for group in groups] == ["fedavg", "greedyfed"]
    turned = with_baseline(groups, "greedyfed")
    assert with_baseline(groups, "greedyfed1") == turned
    row = next(row for row in difference_rows(turned) if row["figure"] == "test_accuracy")
    assert (row["run"], row["base"], row["mean"]) == ("fedavg", "greedyfed", pytest.approx(-0.125))
    reached = {row["run"]: row["effective_round"] for row in rows_of(paths, baseline="greedyfed")}
    assert (reached["fedavg0"], reached["greedyfed0"]) == (None, 2)
    with pytest.raises(UserError, match="--baseline: 'fedprox'"):
        with_baseline(groups, "fedprox")


def test_tables_for_papers_and_programs(tmp_path: Path) -> None:
    paths = [accuracies(tmp_path / f"a{seed}", [0.5 + 0.1 * seed], {"run": {"seed": seed}}) for seed in range(2)]
    markdown = as_text("markdown", load_runs(paths)).splitlines()
    assert markdown[2].startswith("| greedyfed | 2 | 1 | 55.00 ± 7.07 |")
    assert "| as good after | fewer % |" in markdown[0]
    latex = as_text("latex", load_runs(paths))
    assert r"greedyfed & 2 & 1 & 55.00 $\pm$ 7.07 &" in latex
    assert r"test accuracy \%" in latex
    table = list(csv.DictReader(as_text("csv", load_runs(paths)).splitlines()))
    assert [(row["run"], float(row["test_accuracy"])) for row in table[:2]] == [("a0", 0.5), ("a1", 0.6)]
    assert [row["kind"] for row in json.loads(as_text("json", load_runs(paths)))][:4] == ["run", "run", "mean", "sd"]
    with pytest.raises(UserError, match="--format: 'cvs'"):
        as_text("cvs", load_runs(paths))


def test_what_is_not_0_is_not_shown_as_0_and_what_diverged_in_a_few_digits() -> None:
    shown = {0.0: "0.0", 0.06: "0.1", 0.004: "0.004", -0.004: "-0.004"}
    assert {value: Column("mb", "MB", 1.0, 1).cell({"mb": value}) for value in shown} == shown
    row, sd = {"test_loss": 1.23456e30}, {"test_loss": 2e29}
    assert Column("test_loss", "test loss", 1.0, 3).cell(row, sd) == "1.23e+30 ± 2e+29"


def test_no_word_of_a_name_and_no_column_is_cut_where_a_terminal_is_narrow() -> None:
    name, figures = "mechanism.name=greedyfed,data.partition.alpha=0.05,seed=11", [f"{one} X" for one in "ABCDEF"]
    numbers = tuple(str(111111.5 + number) for number in range(6))
    console = Console(width=80)
    with console.capture() as captured:
        console.print(TextTable(("", *figures), ((name, *numbers),)))
    words = captured.get().split()
    assert set(numbers) <= set(words)
    parts = [word for word in words if word in name]
    assert "".join(parts) == 2 * name  # columns that have no room stand below, beside the name again
    assert all(part.endswith((",", "=", ".", "seed=11")) for part in parts)
