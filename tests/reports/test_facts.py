"""Facts are the numbers of the records, with their errors; notes have codes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from experiments import digits
from forging import recorded
from reports_cases import metric, rated_run, seat, write_run
from scipy import stats

import hanse
from hanse.reports.answers import answers
from hanse.reports.facts import SCHEMA, RunOf, facts, facts_of
from hanse.reports.groups import group_runs
from hanse.reports.statement import statement
from hanse.reports.words import said
from hanse.runs.run_record import load_run

VALUED = {"error": [0.02**0.5] * 3, "spread": 0.01}  # in each round a sampling error of 0.1


def test_joining_is_the_same_number_in_the_row_of_a_client_and_of_the_run(tmp_path: Path) -> None:
    ours, alone = [0.9, 0.9, 0.7, 0.8], [0.7, 0.8, 0.9, 0.8]
    path = rated_run(tmp_path / "run", ours)
    rated_run(tmp_path / "local", alone, mechanism="local")
    found = facts(path)
    assert [row.paid_to_join for row in found.clients] == ["yes", "yes", "no", "even"]
    gains = np.array(ours) - alone
    assert [row.gain for row in found.clients] == pytest.approx(gains)
    [run] = found.runs
    assert (run.yes, run.no, run.even, run.unknown) == (2, 1, 1, 0)
    half = stats.t.ppf(0.975, 3) * gains.std(ddof=1) / 2
    assert (run.gain, run.gain_low) == pytest.approx((gains.mean(), gains.mean() - half))
    assert run.own == pytest.approx(np.mean(ours))


def test_values_have_both_errors_and_a_suspect_only_where_both_are_known(tmp_path: Path) -> None:
    path = rated_run(tmp_path / "run", [0.5] * 3, worth=[3.0, 1.0, -2.0], **VALUED)
    rows = facts(path).clients
    assert [row.value for row in rows] == pytest.approx([3, 1, -2])
    drawn = 2 * 0.01 * 19**0.5
    assert (rows[0].value_error, rows[0].drawn) == pytest.approx(((0.02 + drawn**2) ** 0.5, drawn))
    assert rows[0].value_high == pytest.approx(3 + (1.96**2 * 0.02 + (2.0930240544082634 * drawn) ** 2) ** 0.5)
    assert [row.share for row in rows] == pytest.approx([0.75, 0.25, 0])
    assert [row.place for row in rows] == [1, 2, 3]
    assert [row.suspect for row in rows] == [False, False, True]
    assert [note.fields["client"] for note in facts(path).notes if note.code == "suspect"] == [2]
    for r in range(2):
        recorded(path, r, answered=np.arange(3))
    rows = facts(path).clients
    assert not any(row.suspect for row in rows)
    assert [row.value_low for row in rows] == [None] * 3
    assert rows[0].sampling == pytest.approx(0.02**0.5)


def test_what_is_not_known_has_a_code(tmp_path: Path) -> None:
    assert {"not_alone"} <= {note.code for note in facts(rated_run(tmp_path / "a", [0.5] * 2)).notes}
    ended = {"value/cut_short": 3.0, "value/permutations": 20.0}
    bare = write_run(tmp_path / "b", [metric(0, 0.5, gap="no reply", **ended)], [seat(0, 1, refused="late")])
    found = facts(bare)
    assert {note.code for note in found.notes} >= {"unfinished", "no_values", "no_test_rows", "refused", "cut_short"}
    assert any("GTG-Shapley ended 3 of 20 orders" in line for line in statement(bare, 0).missing)
    assert [(row.status, row.why) for row in found.clients[:2]] == [("never asked", ""), ("refused", "late")]
    some = facts(write_run(tmp_path / "d", [metric(0, 0.5)], [seat(0, 0, value=1.0), seat(0, 1), seat(0, 2)]))
    assert [note.fields["clients"] for note in some.notes if note.code == "unvalued"] == [2]
    (bare / "operator.jsonl").write_text('{"order": "expel", "client": 1, "reason": "noise"}\n')
    expelled = facts(bare).clients[1]
    assert (expelled.status, expelled.since) == ("expelled", 1)
    (tmp_path / "a" / "rounds" / "00001.npz").unlink()
    assert {note.code for note in facts(tmp_path / "a").notes} >= {"test_lost", "lost_round"}
    few = rated_run(tmp_path / "c" / "run", [1.0], samples=14)
    rated_run(tmp_path / "c" / "local", [0.1], samples=14, mechanism="local")
    assert "few_units" in {note.code for note in facts(few).notes}


LEFT, ACTIVE, LATE = ("left", 1, True), ("active", None, False), ("refused", None, True)


@pytest.mark.parametrize(
    ("given", "status"),
    [({"clients": {"policy": {"name": "quits", "below": 1e9, "rounds": 1}, "told": True}}, [LEFT] * 3),
     ({"behaviour": {"leaver": {"clients": [0, 1], "at": 1}}}, [LEFT, LEFT, ACTIVE]),
     ({"behaviour": {"joiner": {"clients": [2], "at": 9}}}, [ACTIVE, ACTIVE, ("never asked", None, False)]),
     ({"behaviour": {"speed": {"seconds": [1, 1, 9]}}, "federation": {"enough": 2}}, [ACTIVE, ACTIVE, LATE])],
)  # fmt: skip
def test_who_leaves_has_left(given: dict[str, Any], status: list[Any], tmp_path: Path) -> None:
    """By what it was told of its values, or not being there any more; not who has not come yet, or still trains."""
    experiment = digits({"name": "fedavg", "value": "path"}, 3, train={"steps": 1}, **given)
    found = facts(hanse.run(experiment, out=tmp_path / "run"))
    assert [(row.status, row.since, bool(row.why)) for row in found.clients] == status
    told = {note.fields["client"] for note in found.notes if note.code == "left"}
    assert told == {client for client, one in enumerate(status) if one == LEFT}


def test_tables_go_to_pandas_json_latex_and_markdown(tmp_path: Path) -> None:
    found = facts(rated_run(tmp_path / "a_b&c", [0.5, 0.75], worth=[1.0, -1.0], **VALUED))
    frame = found.to_pandas()
    assert frame["joined"].tolist() == [0.5, 0.75]
    whole = json.loads(found.to_json())
    assert whole["schema"] == SCHEMA
    assert [row["value"] for row in whole["clients"]] == frame["value"].tolist()
    assert whole["units"]["clients"]["paid"] == "millionths of a token"
    assert len(whole["rounds"]) == 2
    notes = [(note.code, note.level, note.said) for note in found.notes]
    assert [(row["code"], row["level"], row["said"]) for row in whole["notes"]] == notes
    assert found.to_csv("notes").splitlines()[0] == "code,level,fields,said"
    assert found.to_markdown("notes").count("\n") == 2 + len(notes) > 2
    bare = replace(found, notes=())
    assert {bare.to_markdown("notes"), bare.to_latex("notes")} == {"There are no notes.\n"}
    latex = found.to_latex()
    assert r"a\_b\&c" in latex
    assert len({line.count("&") - line.count(r"\&") for line in latex.splitlines() if line.endswith(r" \\")}) == 1
    assert len({line.count("|") for line in found.to_markdown("runs").splitlines()}) == 1
    with pytest.raises(hanse.UserError, match=r"^table: 'money': must be one of runs, clients, rounds, notes$"):
        found.to_pandas("money")
    with pytest.raises(hanse.UserError, match="no run"):
        facts()


def test_facts_of_several_runs_and_of_one_in_memory_have_the_same_columns(tmp_path: Path) -> None:
    paths = [rated_run(tmp_path / name, [0.5] * 2, worth=[1.0, 2.0], **VALUED) for name in "ab"]
    assert [row.run for row in facts(*paths).clients] == ["a", "a", "b", "b"]
    run = hanse.run(digits("fedavg", 3, 2), value=True)
    values = run.values()
    by_name = dict(zip(values.names, values.values.tolist(), strict=True))
    assert [row.value for row in facts(run).clients] == pytest.approx([by_name[f"client {c}"] for c in range(3)])


def test_facts_are_made_once_for_all_pages(tmp_path: Path) -> None:
    record = load_run(rated_run(tmp_path / "a", [0.5] * 2, worth=[1.0, 2.0], **VALUED))
    with patch("hanse.reports.facts.RunOf", wraps=RunOf) as made:
        assert facts_of(record) is facts_of(record, None)
        answers(group_runs([record]))
    made.assert_called_once()


def test_a_sentence_stands_on_one_line() -> None:
    assert said("no_values", rounds=[0, 1, 2, 4], of=6, why="it raised") == (
        "Rounds 0 to 2 and 4 (of 6, counted from 0) have no values and are left out of all sums of values: it raised."
    )


def test_units_that_the_data_name_are_units_and_unsaid_ones_have_a_sentence(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    patients = np.repeat(np.arange(60), 5)
    x = draw.normal(size=(60, 3))[patients] + 0.01 * draw.normal(size=(300, 3))
    y, hospital = (x.sum(axis=1) > 0).astype(int), patients % 3
    experiment = hanse.Experiment(data={"client_test": 0.2}, model="logistic", mechanism="fedavg", run={"rounds": 1})
    found = facts(hanse.run(experiment, data=(x, y, hospital, patients), out=tmp_path / "said"))
    assert {row.unit for row in (*found.clients, *found.runs)} == {"unit"}
    hanse.run(experiment, data=(np.column_stack([x, patients]), y, hospital), out=tmp_path / "unsaid").alone()
    found = facts(tmp_path / "unsaid")
    assert {row.unit for row in found.clients} == {"row"}
    assert "units_unsaid" in {note.code for note in found.notes}
    assert all(note.said for note in found.notes)
