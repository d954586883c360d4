"""What a run answers, with and without a directory, and whom joining pays."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gaining import gained
from mistaken import mistakes

import hanse
from hanse.lab.joining import Joining
from hanse.learning.metrics import ACCURACY
from hanse.reports.accuracy import reached
from hanse.reports.alone import find_alone, train_alone
from hanse.reports.answers import answers_of
from hanse.reports.contributions import contribution
from hanse.reports.groups import SeedGroup
from hanse.reports.statement import statement
from hanse.runs.run_record import load_run


def frame(rows: int = 400, seed: int = 1) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    names = np.array(["Hope", "St Mary", "General", "Riverside"])[np.arange(rows) % 4]
    table = pd.DataFrame({"hospital": names, "age": draw.normal(size=rows), "pressure": draw.normal(size=rows)})
    return table.assign(readmitted=np.where(table.age + table.pressure + draw.normal(size=rows) > 0, "yes", "no"))


EXPERIMENT = hanse.Experiment(
    data={"source": {"target": "readmitted", "client_column": "hospital"}, "client_test": 0.3},
    model="logistic",
    mechanism="fedavg",
    train={"lr": 0.1},
    run={"rounds": 3},
)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> hanse.Run:
    return hanse.run(EXPERIMENT, data=frame(), out=tmp_path_factory.mktemp("runs") / "joined", value=True)


def test_values_are_the_reports_with_and_without_a_directory(played: hanse.Run) -> None:
    found = contribution(SeedGroup("x", (load_run(played.path),)))
    values = played.values()
    np.testing.assert_array_equal(values.values, found.totals[found.order])
    np.testing.assert_array_equal(values.standard_errors, found.standard_errors[found.order])
    np.testing.assert_array_equal(values.half, 1.96 * found.errors[found.order])
    assert np.isfinite(values.standard_errors).all()
    assert values.names == tuple(found.labels[i] for i in found.order)
    in_memory = hanse.run(EXPERIMENT, data=frame(), value=True)
    assert in_memory.path is None
    np.testing.assert_array_equal(in_memory.values().standard_errors, values.standard_errors)
    assert str(in_memory) == str(played)
    assert str(hanse.load(played.path)) == str(played)


def test_a_run_shows_itself(played: hanse.Run) -> None:
    what, tested = reached(played.record)
    assert repr(played).startswith(f"fedavg, 3 rounds, 4 clients: {what} {tested[-1]} ({tested[0]} ")
    assert "St Mary" in played._repr_html_()
    plain = hanse.run(EXPERIMENT, data=frame())
    assert "Mary" not in str(plain)
    assert plain.plot().chart.title == "Accuracy at the clients"
    with pytest.raises(hanse.UserError, match="run valued"):
        plain.values()
    for ask in (lambda: plain.statement(0), plain.report):
        with pytest.raises(hanse.UserError, match=r"hanse\.run"):
            ask()


def test_a_run_in_memory_has_no_folder_and_searches_none() -> None:
    given = EXPERIMENT.sections() | {"mechanism": {"name": "pifl", "settle": "tokens"}}
    record = hanse.run(hanse.Experiment(**given), data=frame()).record
    assert (record.path, record.verified, find_alone(record)) == (None, None, None)
    assert "books_broken" not in {note.code for note in hanse.facts(record).notes}


def test_neighbours_that_nobody_may_read_are_passed_over() -> None:
    with TemporaryDirectory() as shared:
        os.chmod(shared, 0o755)
        hanse.run(EXPERIMENT, data=frame(), out=Path(shared, "run"))
        Path(shared, "another user's").mkdir(mode=0)
        record, me = load_run(Path(shared, "run")), os.geteuid()
        os.seteuid(me or 65534)  # root may read all: nobody looks
        try:
            assert find_alone(record) is None
        finally:
            os.seteuid(me)


def test_a_command_that_plays_what_names_modules_says_trust(tmp_path: Path) -> None:
    source = {"name": f"{__name__}:frame", "target": "readmitted", "client_column": "hospital"}
    data = {"source": source, "client_test": 0.3}
    hanse.run(hanse.Experiment(**EXPERIMENT.sections() | {"mechanism": "fedavg", "data": data}), out=tmp_path)
    assert "--all --train-alone --trust`" in answers_of(tmp_path).next.said
    before = statement(tmp_path, 0)
    assert before.next.fields["command"] == "--train-alone --trust"
    assert before.fit.why.fields["command"].endswith("--client 0 --train-alone --trust")


def test_alone_facts_statement_and_report_agree(played: hanse.Run) -> None:
    python = f"hanse.load('{played.path}').alone(data=...)"
    with pytest.raises(hanse.UserError) as refused:  # the command line has no object of this process
        train_alone(played.path)
    [line] = refused.value.lines
    assert line.endswith(f": {python}")
    before = statement(played.path, 0)
    assert (before.next.code, before.next.fields["command"]) == ("compare_with_alone", python)
    assert before.fit.why.fields["command"] == python
    asked = answers_of(played.path).next
    assert (asked.code, asked.fields["python"]) == ("compare_alone", python)
    alone = played.alone()
    assert train_alone(played.path) == alone.path  # finished: it stays as it is
    assert alone.path == played.path / "alone"  # type: ignore[operator]
    assert played.alone().metrics == alone.metrics  # read again, not played
    for row in hanse.facts(played.path).clients:
        fit = statement(played.path, row.client).fit  # type: ignore[arg-type]
        assert (row.joined, row.alone) == (fit.last, fit.alone)
        assert (row.gain_low, row.gain_high) == fit.between
        assert row.gain == pytest.approx(row.joined - row.alone)
    with pytest.raises(hanse.UserError, match=r"^client 9: no such client.* 0 to 3"):
        played.statement(9)
    page = played.statement("Hope")
    assert repr(page).startswith(f"Hope: {page.headline}.")
    assert "iframe" in page._repr_html_()
    again = hanse.load(played.path)  # type: ignore[arg-type]
    with pytest.raises(hanse.UserError, match=r"alone: "):
        again.alone()
    assert again.alone(frame()).metrics == alone.metrics


# ---- whom joining pays


def shops(rows: int = 600) -> tuple[np.ndarray, np.ndarray, list[str]]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, 3))
    names = ["Bremen"] * 40 + ["Visby"] * (rows // 2 - 20) + ["Kiel"] * (rows // 2 - 20)
    sign = np.where(np.array(names) == "Kiel", -1, 1)
    return x, (sign * x.sum(axis=1) + 0.5 * draw.normal(size=rows) > 0).astype(int), names


def test_whom_joining_harms_is_found(tmp_path: Path) -> None:
    found = hanse.who_gains(shops(), mechanisms=["local", "fedavg"], model="logistic", rounds=10, out=tmp_path / "runs")
    assert {row.name: row.paid_to_join for row in found.of("fedavg")}["Kiel"] == "no"  # unlike the others
    assert found.clients == ("Bremen", "Kiel", "Visby")
    kept = load_run(tmp_path / "runs" / "1-fedavg")
    assert kept.mechanism == "fedavg"
    rows = hanse.facts(kept.path).clients  # the run of clients alone is found next to it
    assert rows == found.of("fedavg")
    assert "Played with model logistic, 10 rounds, lr 0.1, 1 epoch a round, and 30 % of each client's" in str(found)
    verdicts = [row.paid_to_join for row in rows]
    first = answers_of(kept.path, tmp_path / "runs" / "local").joining[0]
    assert (verdicts, first.code, first.fields["no"], first.fields["of"]) == (["no"] * 3, "joining_paid", 3, 3)
    table = found.to_pandas()
    assert (table["low"] <= table["gain"]).all()
    assert (table["gain"] <= table["high"]).all()
    assert "fedavg" in str(found)
    assert "Kiel" in found._repr_html_()


@pytest.mark.parametrize(
    ("gains", "first"),
    [
        ({"fedavg": [(-0.3, -0.1), (-0.1, 0.3)], "ditto": [(-0.1, 0.3), (-0.1, 0.3)]}, ("ditto", 2, 0, 0, 2)),
        ({"fedavg": [(0.1, 0.3), (-0.1, 0.3)]}, ("fedavg", 2, 1, 0, 1)),
        ({"fedavg": [(-0.3, -0.1), *[(-0.1, 0.3)] * 5]}, ("fedavg", 6, 0, 1, 5)),
        ({"fedavg": [(-0.3, -0.1)] * 2}, ("fedavg", 2, 0, 2, 0)),
    ],
)
def test_the_first_sentence_is_true_of_every_mechanism(
    gains: dict[str, list[tuple[float, float]]], first: tuple[str, int, int, int, int]
) -> None:
    made = {
        name: tuple(gained(str(i), (low + high) / 2, low, high) for i, (low, high) in enumerate(ends))
        for name, ends in gains.items()
    }
    found = Joining(made, ACCURACY)
    assert tuple(found.verdict[0].fields.values()) == (*first, first[1] - first[3])
    assert [note.code for note in found.verdict] == ["who_gains", "ahead"][: len(gains)]
    assert found.sentences()[0].startswith(found.verdict[0].said)


def near(targets: np.ndarray, outputs: np.ndarray) -> float:
    return float((np.abs(targets - outputs) < 1).mean())


def test_gains_are_named_by_what_was_measured(tmp_path: Path) -> None:
    """The loss of a regression, or a function of one's own, is no accuracy; intervals count the units of the rows."""
    x, y, who = shops(400)
    draw, data = np.random.default_rng(0), (x, x.sum(axis=1) + 0.5 * y, who, np.repeat(np.arange(200), 2))
    few = {"mechanisms": "fedavg", "model": "logistic", "rounds": 2}
    for metric, title in ((None, "loss"), (near, "near"), ("r2", "R2")):
        found = hanse.who_gains(data, metric=metric, **few)
        assert (found.reading.title, found.unit) == (title, "unit")
        assert "accuracy" not in str(found)
    experiment = hanse.Experiment(data={"client_test": 0.3}, model="logistic", mechanism="fedavg", run={"rounds": 2})
    run = hanse.run(experiment, data=data, out=tmp_path / "run")
    run.alone()
    assert {(row.metric, row.unit) for row in hanse.facts(run).clients} == {("loss", "unit")}
    rare = (draw.random(400) < 0.05).astype(int)
    told = hanse.who_gains((x, rare, who), train={"lr": 1e-3}, **few).notes[0]  # accuracy shows nothing of such models
    assert told.startswith("warning: No model is better than guessing")
    assert not any("guessing" in note for note in hanse.who_gains((x, rare, who), metric="auc", **few).notes)
    assert not any("guessing" in note for note in hanse.who_gains(shops(), **few | {"rounds": 5}).notes)


def test_settings_alone_and_splits_are_heeded() -> None:
    few: dict[str, Any] = {"mechanisms": {"one": "fedavg", "two": {"name": "fedprox", "mu": 0.1}}, "rounds": 2}
    first, second = hanse.who_gains(shops(), **few), hanse.who_gains(shops(), seed=1, **few)
    both = hanse.who_gains(shops(), splits=2, **few)
    assert both.mechanisms == ("one", "two")
    every, own, other = ([row for rows in one.gains.values() for row in rows] for one in (both, first, second))
    for mean, a, b in zip(every, own, other, strict=True):
        halves = (a.gain + b.gain) / 2, (a.gain_low + b.gain_low) / 2  # type: ignore[operator]
        assert (mean.gain, mean.gain_low) == pytest.approx(halves)
    still = hanse.who_gains(shops(), alone={"lr": 1e-9}, **few)
    assert still.of("one")[0].joined == own[0].joined
    assert [row.alone for row in still.of("one")] != [row.alone for row in first.of("one")]
    assert "Alone clients trained with lr 1e-09." in str(still)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"test": 0}, "test: 0: "),
        ({"splits": 0}, "splits: 0: "),
        ({"mechanisms": ["local"]}, "mechanisms: ['local']: "),
        ({"mechanisms": ["fedavg", "fedavg"]}, "mechanisms: two"),
        ({"mechanisms": {"local": "fedavg", "one": "fedavg"}}, "mechanisms: two"),
    ],
)
def test_what_cannot_be_asked_is_refused(given: dict[str, Any], line: str) -> None:
    assert mistakes(hanse.who_gains, shops(), **given)[0].startswith(line)
