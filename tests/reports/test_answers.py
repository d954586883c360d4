"""What reports, statements and the end of a run say first: no surer than the numbers, and in few words."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import digits
from reports_cases import metric, rated_run, write_run

import hanse
from hanse.core.telling import Measure, write_about
from hanse.reports.accuracy import reached
from hanse.reports.answers import Answers, answers, contributed
from hanse.reports.compare import experiments_table
from hanse.reports.contributions import Contribution
from hanse.reports.groups import SeedGroup, group_runs
from hanse.reports.statement import statements
from hanse.reports.words import Note
from hanse.runs.run_record import load_run, load_runs


def groups(*paths: Path) -> list[SeedGroup]:
    return group_runs(load_runs(paths))


def by_code(found: Answers) -> dict[str, Note]:
    return {note.code: note for note in (*found.joining, *found.contributed, found.next)}


def test_joining_is_counted_by_verdict_and_measured_over_clients(tmp_path: Path) -> None:
    ours, alone = [0.9, 0.9, 0.7, 0.8, 0.8, 0.8], [0.7, 0.8, 0.9, 0.8, 0.79, 0.81]
    run, local = rated_run(tmp_path / "run", ours), rated_run(tmp_path / "local", alone, "local")
    found = answers(groups(run))
    told = by_code(found)
    assert [told["joining_paid"].fields[key] for key in ("yes", "no", "even", "of")] == [2, 1, 3, 6]
    assert told["mean_gain"].fields["mean"] == pytest.approx(100 * np.mean(np.array(ours) - alone))
    assert found.lines["Does joining pay?"].startswith("Joining paid for 2 of 6 clients and not for 1; 3 unclear. ")
    assert answers(groups(run, local)).joining == found.joining  # the run alone may be reported on, too
    assert answers(groups(local)).joining[0].code == "nobody_joins"


def test_what_is_not_known_is_not_claimed(tmp_path: Path) -> None:
    run = rated_run(tmp_path / "run", [0.9] * 6)
    found = answers(groups(run))
    assert list(by_code(found)) == ["joining_unknown", "nobody_valued", "compare_alone"]
    assert found.next.fields["folder"] == str(run)
    assert found.picture is None
    bare = write_run(tmp_path / "bare", [metric(0, 0.5)], changes={"run": {"rounds": 1}})
    assert not answers(groups(bare)).joining[0].fields["tested"]
    assert answers(groups(bare)).next.code == "keep_own_tests"
    assert answers(groups(write_run(tmp_path / "stopped", [metric(0, 0.5)]))).next.code == "let_it_finish"


@pytest.mark.parametrize(
    ("worth", "error", "leads"),
    [
        ([5.0, 4.9, 4.8, 1.0, -3.0], [0.2] * 5, (["0", "1", "2"], 14.7 / 15.7)),
        ([5.0, 1.0, 1.1], [0.1] * 3, (["0"], 5 / 7.1)),
        ([3.0, 2.0, 1.0], [0.5] * 3, (["0", "1"], 5 / 6)),  # 0 is apart from 2, but 1 from neither
        ([3.0, 2.0, 1.0], [9.0] * 3, None),
    ],
)
def test_who_contributed_is_said_and_drawn(
    worth: list[float], error: list[float], leads: tuple[list[str], float] | None, tmp_path: Path
) -> None:
    found = answers(groups(rated_run(tmp_path / "run", [0.8] * 6, "greedyfed", worth=worth, error=error)))
    [told] = found.contributed  # without the error of the draw nobody is suspect
    assert told.code == ("leads" if leads else "nobody_leads")
    if leads:
        assert (told.fields["names"], told.fields["share"]) == (leads[0], pytest.approx(leads[1]))
    [bars] = found.picture.marks.series
    assert bars.values.tolist() == pytest.approx(sorted(worth, reverse=True))
    np.testing.assert_allclose(bars.errors, 1.96 * error[0])  # whiskers are 95 % intervals


@pytest.mark.parametrize(
    ("sums", "errors", "but", "helped", "unsure", "words"),
    [
        ([3.0, 3.1, 2.9, 1.8], [0.5] * 3 + [1.5], "", ["1", "0", "2"], ["3"],
         "Clients 1, 0 and 2 surely helped; whether client 3 did is open (all 4 judged together)."),
        ([3.0, 3.1, 2.9], [0.5] * 3, "", ["1", "0", "2"], [], "All 3 clients surely helped; none clearly"),
        ([3.0, 3.1, 2.9], [0.5] * 3, "1", ["0", "2"], [], "Clients 0 and 2 surely helped."),
        ([1.1, 1.0, -0.1], [0.5] * 3, "", [], ["0", "1", "2"], "No client clearly contributed most; whether any"),
        ([3.0] * 6 + [1.8], [0.5] * 6 + [1.5], "", 6, ["6"], "6 of 7 clients surely helped; for 1 that is open (all"),
    ],
)  # fmt: skip
def test_where_nobody_leads_it_is_said_who_surely_helped(
    sums: list[float], errors: list[float], but: str, helped: Any, unsure: list[str], words: str
) -> None:
    """So that with 95 % none of them did not: 2.2 errors above 0 are not enough among three."""
    n, none = len(sums), np.full(len(sums), np.nan)
    found = Contribution(
        np.arange(n), np.array(sums), np.array(errors), np.full((n, 0), np.nan), labels=tuple(map(str, range(n))),
        seats=np.full(n, 2), drawn=np.zeros(n), widened=np.zeros(n), measure=Measure("path value", share_out=True),
        missed=none, missed_errors=none, lacking=np.full((2, n), np.nan), fall=9.0, several=False,
    )  # fmt: skip
    [told] = contributed(found, "", harmful=but, doubtful=False)
    assert told.code == "nobody_leads"
    some = {"names": helped, "many": len(helped)} if isinstance(helped, list) else {"names": [], "many": helped}
    assert (told.fields["helped"], told.fields["open"]["names"]) == (some, unsure)
    assert told.said.startswith(words)


def test_the_first_experiment_that_clients_join_is_named(tmp_path: Path) -> None:
    """The best of several is the best by chance, too."""
    local = rated_run(tmp_path / "local", [0.7] * 6, "local")
    better = rated_run(tmp_path / "b", [0.9] * 6)
    valued = rated_run(tmp_path / "a", [0.6] * 6, "greedyfed", worth=[5.0, 1.0], error=[0.1, 0.1])
    told = by_code(answers(groups(local, better, valued)))
    assert (told["joining_paid"].fields["label"], told["joining_paid"].fields["yes"]) == ("fedavg", 6)
    assert told["mean_gain"].fields["low"] is None  # for each alike
    assert told["leads"].fields["label"] == "greedyfed"
    assert told["try_seeds"].fields["folder"] == str(better)
    doubted = rated_run(tmp_path / "c", [0.6] * 6, "greedyfed", worth=[5.0, 4.0, -5.0], error=[0.1] * 3, spread=0.01)
    told = by_code(answers(groups(local, better, doubted)))
    assert (told["suspects"].fields["names"], told["check_suspects"].fields["folder"]) == (["2"], str(doubted))


def test_known_cheats_are_left_out_of_every_mean_alike_and_suspects_are_marked(tmp_path: Path) -> None:
    data = {"client_test": 0.2, "partition": {"name": "dirichlet", "alpha": 0.5}}
    behaviour = {"attacker": {"clients": [1, 4], "kind": "flip"}}
    experiment = digits({"name": "fedavg", "value": "path", "settle": "by_value"}, 6, 4, data=data, behaviour=behaviour)
    run = hanse.run(experiment, out=tmp_path / "run")
    found, (group,) = hanse.facts(run), groups(tmp_path / "run")
    own = np.mean([row.joined for row in found.clients if row.honest])
    what, tested = reached(run.record)
    assert "honest" in what
    assert tested[-1] == f"{100 * own:.2f} %"
    assert experiments_table([group]).rows[0].count(f"{100 * own:.2f}") == 1
    assert float(tested[-1].split()[0]) == pytest.approx(100 * found.runs[0].own, abs=0.005)
    told = answers([group])
    gained = by_code(told)["gained_besides"]
    up = sum(row.beyond > 0 for row in found.clients if row.honest)
    assert [gained.fields[key] for key in ("gained", "of", "left_out")] == [up, 4, 2]
    bars = {series.name: series.values for series in told.picture.marks.series}
    suspects = [row.value for row in found.clients if row.suspect]
    assert sorted(bars["suspect"][np.isfinite(bars["suspect"])]) == pytest.approx(sorted(suspects))
    assert np.isfinite(bars["contribution"]).sum() == 6 - len(suspects)


def test_whoever_loses_by_joining_looks_at_the_data_first_and_only_its_own_statement_says_why(tmp_path: Path) -> None:
    path = rated_run(tmp_path / "run", [0.5] * 3)
    rated_run(tmp_path / "local", [0.9] * 3, "local")
    assert answers(groups(path)).next.code == "try_personal"
    line = "data: client '1': its features tell 'a' from 'b' the opposite way to all others: are its labels swapped?"
    write_about(path, replace(load_run(path).about, notes=(line,)))
    assert answers(groups(path)).next.code == "check_data"
    made = statements(load_run(path), range(3))
    assert [[note.said for note in one.notes if note.code == "data"] for one in made] == [[], [line], []]
    assert [one.next.code for one in made] == ["leave_or_personal", "check_its_data", "leave_or_personal"]
    assert [line in one.lines for one in made] == [False, True, False]
