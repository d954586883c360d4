"""How sure values are said to be, and that no text says more than that."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import digits
from forging import recorded
from hypothesis import given
from hypothesis import strategies as st
from reports_cases import metric, seat, write_run
from sklearn.datasets import load_digits

import hanse
from hanse.core.port import Reply, Request, Train, Trained
from hanse.core.telling import Measure
from hanse.data import Dataset
from hanse.data.samples import Samples
from hanse.federation.behaviour import Me, OfSome, with_updates
from hanse.reports.answers import answers, answers_of, contributed
from hanse.reports.contributions import Contribution, by_chance, clearly_harmful, contribution, contribution_charts
from hanse.reports.groups import SeedGroup, group_runs
from hanse.reports.report import warnings
from hanse.reports.statement import statement
from hanse.runs.run_record import load_run, load_runs

STEPS = {"mechanism": {"value": {"name": "exact", "game": "increment"}}}  # in that of averages sums scatter around 0


def drawn_run(path: Path, values: dict[int, float], spread: float, rounds: int = 4, once: tuple[int, ...] = ()) -> Path:
    """A run in which every client has the same value in every round, with blocks that spread around it; those in
    ``once`` train in the last round only.
    """
    played = [{c: v for c, v in values.items() if r == rounds - 1 or c not in once} for r in range(rounds)]
    seats = [seat(r, c, v) for r, here in enumerate(played) for c, v in here.items()]
    write_run(path, [metric(r, 0.5) for r in range(rounds)], seats, STEPS)
    sides = np.where(np.arange(20) % 2, 1.0, -1.0) * spread
    for r in range(rounds):
        blocks = np.array([[v] for v in played[r].values()]) + sides
        recorded(path, r, answered=np.array(list(played[r])), value_without_block=blocks)
    return path


@pytest.mark.parametrize("errors", [{}, {"value_error": 0.01}])
def test_a_lost_file_of_a_round_withholds_the_interval_and_is_said(tmp_path: Path, errors: dict[str, float]) -> None:
    """Before, only the error from the sampling was left, and the interval became narrower."""
    path = drawn_run(tmp_path / "a", {0: 1.0, 1: -0.2, 2: 0.3}, 0.1)
    lines = [json.loads(line) | errors for line in (path / "clients.jsonl").read_text().splitlines()]
    (path / "clients.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    whole = hanse.facts(path).clients[1]
    assert None not in (whole.value_low, whole.share_low)
    (path / "rounds" / "00002.npz").unlink()
    run = load_run(path)
    found = hanse.facts(run).clients[1]
    assert (found.value, found.value_low, found.share_low, found.place_low) == (whole.value, None, None, None)
    line = "rounds/00002.npz is missing: what it said of round 2 is left out, and no interval that needs it is given."
    assert statement(path, 1).missing == [line]
    assert [(n.said, of) for n, of in warnings(group_runs([run]), [run]) if n.code == "lost_round"] == [(line, ())]
    for file in (path / "rounds").iterdir():
        file.unlink()
    assert hanse.facts(path).clients[1].value_low is None
    assert len(statement(path, 1).missing) == 4


def test_a_lost_last_test_is_not_replaced_by_an_earlier_one(tmp_path: Path) -> None:
    tests = {"tested": np.arange(2), "test_accuracy": np.full(2, 0.5), "test_loss": np.ones(2)}
    lines = [metric(r) | {"client/test_loss": 1.0} for r in range(3)]
    path = write_run(tmp_path / "a", lines, [seat(r, c, 1.0) for r in range(3) for c in (0, 1)])
    for r in range(3):
        recorded(path, r, **tests)
    assert [round for round, _ in statement(path, 0).curve] == [0, 1, 2]
    (path / "rounds" / "00002.npz").unlink()
    found = statement(path, 0).fit
    assert (found.last, found.why.code, found.why.fields["round"]) == (None, "test_lost", 2)


@pytest.mark.parametrize(("error", "answer"), [(0.01, "even"), (0.0005 / 2**0.5, "no"), (np.nan, "even")])
def test_a_loss_decides_only_beyond_its_error(error: float, answer: str, tmp_path: Path) -> None:
    for name, loss in (("fedavg", 0.1207), ("local", 0.1177)):
        lines = [metric(0) | {"client/test_loss": loss}]
        path = write_run(tmp_path / name, lines, changes={"mechanism": {"name": name}, "run": {"rounds": 1}})
        tests = {"test_accuracy": [np.nan], "test_loss": [loss], "test_loss_error": [error], "test_samples": [300]}
        recorded(path, 0, tested=np.array([0]), **{key: np.array(one) for key, one in tests.items()})
    row = hanse.facts(tmp_path / "fedavg").clients[0]
    assert (row.metric, row.paid_to_join, row.gain) == ("loss", answer, pytest.approx(-0.003))
    if answer == "no":
        assert (row.gain_low, row.gain_high) == pytest.approx((-0.004, -0.002), abs=3e-5)


def test_an_estimate_whose_error_is_not_known_has_no_interval(tmp_path: Path) -> None:
    """A null in the place of the error: the draw's error alone would be taken for all of it."""
    run = drawn_run(tmp_path / "a", {0: 1.0, 1: -0.2}, 0.01)
    lines = [json.loads(line) for line in (run / "clients.jsonl").read_text().splitlines()]
    told = {"value_error": None}
    (run / "clients.jsonl").write_text("".join(json.dumps(line | told) + "\n" for line in lines))
    given = statement(run, 1)
    assert (given.client.value_error, given.client.value_low, given.client.suspect) == (None, None, False)
    assert [one.error for one in given.rounds] == [None] * len(given.rounds)


def test_exact_values_are_called_exact_and_have_no_interval_of_no_width(tmp_path: Path) -> None:
    seats = [seat(r, c, v, value_error=0.0) for r in range(2) for c, v in ((0, 1.5), (1, -0.5))]
    path = write_run(tmp_path / "a", [metric(0), metric(1)], seats)
    given = hanse.facts(path).clients[1]
    assert (given.exact, given.suspect) == (True, False)  # of other validation samples nothing is known
    assert (given.value, given.value_error, given.value_low, given.share_low) == (-1.0, 0.0, None, None)
    [ranking] = contribution_charts(group_runs(load_runs([path])))
    assert ranking.caption.count("These values are exact") == 1
    assert ranking.marks.series[0].errors is None


def test_nobody_is_accused_or_called_lowest_by_one_update(tmp_path: Path) -> None:
    """Client 3 trained once and lost most: no sentence of a report, a statement or a printed run may judge it by that.

    Of exact values alike.
    """
    values = {0: 2.0, 1: 1.0, 2: -0.5, 3: -9.0}
    exact = [seat(r, c, v, value_error=0.0) for r in range(2) for c, v in values.items() if r or c != 3]
    for path in (
        drawn_run(tmp_path / "drawn", values, 0.01, rounds=2, once=(3,)),
        write_run(tmp_path / "exact", [metric(0), metric(1)], exact),
    ):
        groups = group_runs(load_runs([path]))
        drawn = path.name == "drawn"
        # of other validation samples nothing is known where values are exact: nothing is clear
        codes = {note.code: note.fields for note in answers(groups).contributed}
        assert list(codes) == (["leads", "suspects", "not_ranked"] if drawn else ["highest_value", "not_ranked"])
        assert not drawn or (codes["suspects"]["names"], codes["suspects"]["averages"]) == (["2"], False)
        assert hanse.load(path).values().sentences()[0] == " ".join(note.said for note in answers(groups).contributed)
        assert [row.suspect for row in hanse.facts(path).clients[:4]] == [False, False, drawn, False]


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.booleans()), min_size=2, max_size=4))
def test_nobody_contributed_most_and_is_called_suspect_or_harmful(rows: list[tuple[float, float, bool]]) -> None:
    totals, missed, bad = map(np.array, zip(*rows, strict=True))
    count, labels = len(rows), [*"abcd"][: len(rows)]
    without = totals[:, None] + np.linspace(-0.1, 0.1, 20) * np.arange(1, count + 1)[:, None]
    found = Contribution(
        np.arange(count), totals, np.full(count, np.nan), without, labels=tuple(labels), seats=np.full(count, 3),
        drawn=np.full(count, 0.1), widened=np.full(count, 0.107),
        measure=Measure("path value", share_out=True), missed=missed, missed_errors=np.zeros(count),
        lacking=np.stack([missed] * 2), fall=float(totals.sum()), several=False,
    )  # fmt: skip
    harmful = {name for name, one in zip(labels, bad, strict=True) if one}
    named = {n.code: n.fields.get("names", ()) for n in contributed(found, "", (), harmful, doubtful=False)}
    assert named.keys() & {"leads", "nobody_leads"}
    assert not {*named.get("leads", ())} & {*named.get("suspects", ()), *harmful}
    assert "leads" not in named or totals.max() > 0


@pytest.mark.parametrize("name", ["local", "fedsoft", "cfl"])
def test_whose_model_gets_worse_on_the_samples_of_all_is_not_suspect_where_others_have_their_own(name: str) -> None:
    data = {"validation": 0.1, "partition": {"name": "dirichlet", "alpha": 0.1}}
    model, train = {"name": "mlp", "hidden": [16]}, {"lr": 0.3}
    run = hanse.run(digits({"name": name, "value": "path"}, 6, 8, data=data, model=model, train=train))
    rows = hanse.facts(run).clients
    assert min(row.value_high for row in rows) < 0
    assert not any(row.suspect for row in rows)


def test_by_leave_one_out_harm_is_more_than_the_chance_of_whose_samples_are_redundant() -> None:
    sums, measure = np.array([-2.0, -1.0, 0.0, 1.0, 2.0, -9.0]), Measure("leave-one-out value", scatters=True)
    assert by_chance(sums, measure) == pytest.approx(1.4826 * 1.5)  # distances from -0.5: 0.5, 0.5, 1.5, 1.5, 2.5, 8.5
    assert by_chance(sums, Measure("Shapley value")) == 0
    errors, updates = np.full(6, 0.1), np.full(6, 3)
    assert clearly_harmful(sums, errors, updates).tolist() == [True, True, False, False, False, True]
    told = clearly_harmful(sums, errors, updates, by_chance(sums, measure)).tolist()
    assert told == [False, False, False, False, False, True]


@pytest.mark.slow
@pytest.mark.parametrize(("value", "flippers"), [("exact", []), ("path", [5])])
def test_skewed_data_alone_are_no_harm_and_who_flips_is(value: str, flippers: list[int]) -> None:
    """In the game of averages 13 of 59 honest clients "clearly did harm" by intervals alone."""
    accused, caught, below, judged = 0, 0, 0, 0
    mechanism = {"name": "fedavg", "clients_per_round": 8, "value": value}
    train = {"epochs": 2, "batch_size": 16, "lr": 0.05, "momentum": 0.5}
    sections = {"behaviour": {"attacker": {"clients": flippers, "kind": "flip"}} if flippers else {}, "model": "mlp"}
    for seed in range(4):
        data = {"partition": {"name": "dirichlet", "alpha": 0.3}, "seed": seed}
        experiment = digits(mechanism, 20, 15, data=data, train=train, run={"seed": seed}, **sections)
        found = contribution(SeedGroup("", (hanse.run(experiment).record,)))
        guilty = {found.labels[found.clients.tolist().index(c)] for c in flippers}
        accused += len(set(found.suspects) - guilty)
        caught += len(set(found.suspects) & guilty)
        below += int(clearly_harmful(found.totals, found.errors, found.seats).sum())
        judged += int((found.seats > 1).sum()) - len(guilty)
    assert caught == 4 * len(flippers)
    assert below > 0.15 * judged or flippers
    assert accused <= 0.05 * judged


def test_whoever_averages_are_better_without_is_suspect_though_its_values_are_above_zero(tmp_path: Path) -> None:
    """The largest of four has half of its labels at random; a rare class's only owner is not suspected."""
    draw, (x, y) = np.random.default_rng(0), load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int64)
    owner = draw.choice(4, 1300, p=[0.1, 0.2, 0.3, 0.4])
    owner[y[:1300] == 9] = 0
    told = np.where((owner == 3) & (draw.random(1300) < 0.5), draw.integers(0, 10, 1300), y[:1300])
    given = Samples(x[:1300], told), Samples(x[1300:], y[1300:])
    data = Dataset("labels", *given, num_classes=10, input_shape=(64,), client_of=owner)
    mechanism = {"name": "fedavg", "clients_per_round": 4, "value": "path"}
    run = hanse.run(digits(mechanism, 4, 4, data={"partition": "natural"}), data=data, out=tmp_path / "run")
    rows = hanse.facts(run).clients
    values, weights = (np.array([line[key] for line in run.clients]).reshape(4, 4) for key in ("value", "weight"))
    lone = (values - weights * values.sum(axis=1, keepdims=True)) / (1 - weights)
    assert [row.missed for row in rows] == pytest.approx(lone.sum(axis=0))
    assert [row.suspect for row in rows] == [False, False, False, True]
    assert rows[3].missed_low < rows[3].missed < rows[3].missed_high < 0 < rows[3].value_low
    assert [note.fields["averages"] for note in answers_of(tmp_path / "run").contributed if note.code == "suspects"]


@pytest.mark.parametrize(("idle", "suspects"), [((), []), ((1,), ["1"])])
def test_whose_steps_are_few_is_not_suspect_and_who_is_idle_is(idle: tuple[int, ...], suspects: list[str]) -> None:
    """By its weight alone client 1 was suspect in half of such honest runs: in an epoch it takes fewer steps."""
    draw, who = np.random.default_rng(0), np.repeat(np.arange(4), [60, 420, 700, 900])
    x = draw.normal(size=(len(who), 8)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] + draw.normal(size=len(who)) > 0).astype(np.int64)
    experiment = hanse.Experiment(
        model="logistic", mechanism={"name": "fedavg", "value": "path"}, train={"lr": 0.01}, run={"rounds": 4},
        behaviour={"attacker": {"clients": idle, "kind": "flip", "scale": 1e-6}} if idle else {},
    )  # fmt: skip
    found = contribution(SeedGroup("", (hanse.run(experiment, data=(x, y, who)).record,)))
    at = found.labels.index("1")
    assert found.missed[at] + 2 * found.missed_errors[at] < -0.05 * found.fall
    assert found.suspects == suspects


@dataclass(frozen=True)
class Idle(OfSome):
    """Its clients send a thousandth of their update."""

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        def less(task: Train, one: Trained) -> Trained:
            return replace(one, row=task.start + 0.001 * (one.row - task.start))

        return with_updates(request, reply, less) if me.id in self.clients else reply


def of_alike(clients: int, weigh: Any = "samples", **behaviour: Mapping[str, Any]) -> Contribution:
    """What a federation's clients, alike but for their behaviour, are found to have contributed."""
    mechanism = {"name": "fedavg", "value": "path", "weigh": weigh}
    experiment = digits(mechanism, clients, 6, data={"partition": "iid"}, train={"lr": 0.05}, behaviour=behaviour)
    return contribution(SeedGroup("", (hanse.run(experiment).record,)))


@pytest.mark.parametrize(
    ("weigh", "idle", "liar", "size"),
    [("uniform", (1,), 1, 0.2), ("uniform", (1, 4), 2, 1e6), ({"name": "capped", "cap": 0.2}, (1, 4), 2, 1e6)],
)
def test_who_is_idle_does_not_hide_behind_numbers_of_samples(
    weigh: Any, idle: tuple[int, ...], liar: int, size: float
) -> None:
    """By its own few, or since a friend says so many that nobody else had anything to do."""
    found = of_alike(6, weigh, **{"test_certainty:Idle": {"clients": idle}, "liar": {"clients": (liar,), "size": size}})
    assert sorted(found.suspects) == [str(client) for client in idle]


def test_where_the_loss_rises_only_who_raised_it_is_suspect() -> None:
    """Seven of the 19 honest ones were: nobody's absence added as much as a part of a fall below zero."""
    found = of_alike(20, attacker={"clients": (1,), "kind": "flip", "scale": 30})
    assert found.fall < 0
    assert found.suspects == ["1"]
