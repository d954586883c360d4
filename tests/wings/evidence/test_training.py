"""Proof of training: who trains on what it committed to keeps its credit, who does not gains and sells nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hanse
from hanse.base.files import read_toml
from hanse.core.book import Book
from hanse.core.part import PostedRound
from hanse.core.port import Ask
from hanse.data.commitment import SampleCommitment
from hanse.federation.local import NoAnswerError
from hanse.ledger.run_ledger import open_ledger
from hanse.reports.audit import audit_run
from hanse.runs.replay import Posted, wrong_books
from hanse.runs.setup import build
from hanse.wings.evidence import training

BY_VALUE = {"name": "fedavg", "value": "path", "settle": "by_value"}


def experiment(mechanism: Any = BY_VALUE, rounds: int = 3, **sections: Any) -> hanse.Experiment:
    given = {
        "data": {"source": "digits", "clients": 4, "client_validation": 0.1}, "model": "logistic",
        "train": {"steps": 20, "batch_size": 16, "lr": 0.1}, "sizes": {"proved": True}, "evidence": {"training": {}},
        "engine": {"threads": 1}, "run": {"rounds": rounds},
    }  # fmt: skip
    return hanse.Experiment(**{**given, "mechanism": mechanism, **sections})


def deviant(**how: Any) -> Any:
    return {"deviant": {"clients": [1], **how}}


def record(folder: Path, round: int) -> dict[str, np.ndarray]:
    return dict(np.load(folder / "rounds" / f"{round:05d}.npz"))


def unproved(folder: Path, rounds: int = 3) -> list[list[int]]:
    found = [record(folder, r) for r in range(rounds)]
    return [one["training_client"][one["training_unproved"]].tolist() for one in found]


def test_z_is_welchs_and_nothing_is_said_of_a_single_sample() -> None:
    draw = np.random.default_rng(0)
    mine, others = draw.normal(0.3, 1.0, 40), draw.normal(0.0, 2.0, 90)
    wanted = (mine.mean() - others.mean()) / np.sqrt(mine.var(ddof=1) / 40 + others.var(ddof=1) / 90)
    theirs = others.mean(), others.var(ddof=1), 90
    assert training.z_of((mine.mean(), mine.var(ddof=1), 40), theirs) == pytest.approx(wanted)
    assert training.z_of((5.0, 0.0, 1), theirs) == 0.0


def test_an_audit_finds_the_z_of_the_round_whatever_a_member_says() -> None:
    """A member that says what no loss can be is not heeded, and makes no record look tampered with."""
    part = training.ProofOfTraining()
    server = np.array([0.1, 1e-300, 512])
    for own in ([1e308, 1e-300, 9], [-1e308, 0.0, 2], [1e308, 1e308, 2], [0.3, 0.1, 0], [0.0, 0.0, 1]):
        z = training.z_of((own[0], own[1], int(own[2])), (0.1, 1e-300, 512))
        arrays = {
            "training_client": np.array([0]), "training_z": np.array([z]), "training_own": np.array([own]),
            "training_server": server[None], "training_moved": np.ones(1, bool), "training_copy": np.zeros(1, bool),
            "training_unproved": part.after(np.zeros(1), np.array([z])) <= -part.slack,
            "training_number": np.array([""]), "training_seal": np.array([""]), "answered": np.array([0]),
        }  # fmt: skip
        [check] = training.checks([PostedRound(0, arrays, {}, (), (), Book())], {"evidence": {"training": {}}})
        assert np.isfinite(z)
        assert check.holds, own


def test_nobody_can_live_on_rounds_in_which_it_trained() -> None:
    """However long it trained before: after as many idle rounds the credit is gone."""
    part = training.ProofOfTraining()
    for before in (0, 1, 50):
        credit, idle = np.zeros(1), 0
        for _ in range(before):
            credit = part.after(credit, np.array([1e9]))
        while credit[0] > -part.slack:
            credit, idle = part.after(credit, np.zeros(1)), idle + 1
        assert idle == 15
    assert part.after(np.array([-3.0]), np.array([2.0])) == pytest.approx(-1.4)  # and training brings it back


def test_the_draw_depends_on_every_number_and_stays_within_the_stated_subset() -> None:
    told, audit = SampleCommitment(bytes(32), 1000), b"a" * 32
    shown = {c: f"{c:064x}" for c in range(4)}
    seeds = {
        training.seed_of(3, shown),
        training.seed_of(4, shown),
        *(training.seed_of(3, {**shown, c: "f" * 64}) for c in shown),
    }
    assert len(seeds) == 6
    drawn = [training.chosen(told, audit, seed, 50, 20) for seed in seeds]
    assert len({tuple(one) for one in drawn}) == 6
    assert all(len(set(one)) == 20 for one in drawn)
    assert len(set().union(*drawn)) <= 50


@pytest.mark.parametrize("mechanism", [BY_VALUE, "ipfl_posted"])
def test_who_stops_training_is_found_at_once_and_the_honest_never(mechanism: Any, tmp_path: Path) -> None:
    honest = hanse.run(experiment(mechanism), out=tmp_path / "honest")
    plain = hanse.run(experiment(mechanism, evidence={}))
    assert unproved(tmp_path / "honest") == [[], [], []]
    assert (honest.table.rows == plain.table.rows).all()  # who passes is treated as before
    assert honest.book.balances == plain.book.balances
    hanse.run(experiment(mechanism, behaviour=deviant(sends="nothing", since=1)), out=tmp_path / "run")
    assert unproved(tmp_path / "run") == [[], [1], [1]]
    if mechanism == "ipfl_posted":
        assert np.isfinite(record(tmp_path / "run", 0)["market_cost"]).all()
        assert np.isfinite(record(tmp_path / "run", 1)["market_cost"]).tolist() == [True, False, True, True]


def test_what_is_not_proved_is_worth_nothing_and_an_audit_holds_it_against_the_records(tmp_path: Path) -> None:
    """An update that is refused for its credit may be a good one: here everybody's, by a test that nobody passes."""
    hanse.run(experiment(evidence={"training": {"least": 3.9, "slack": 0.01, "samples": 4}}), out=tmp_path / "run")
    lost = [record(tmp_path / "run", r) for r in range(3)]
    assert any(one["training_unproved"].any() for one in lost)
    for one in lost:
        assert (one["value"][one["training_unproved"]] <= 0).all()
    assert "training" in {check.name for check in audit_run(tmp_path / "run").checks if check.holds}
    assert wrong_books(tmp_path / "run") is None
    rounds = list(Posted.of(tmp_path / "run", open_ledger(tmp_path / "run")))
    config = read_toml(tmp_path / "run" / "config.toml")

    def holds(**changed: Any) -> bool:
        first = PostedRound(**{**vars(rounds[0]), "arrays": {**rounds[0].arrays, **changed}})
        [check] = training.checks([first, *rounds[1:]], config)
        return bool(check.holds)

    arrays = rounds[0].arrays
    assert holds()
    assert not holds(training_unproved=~arrays["training_unproved"])
    assert not holds(training_z=arrays["training_z"] + 0.1)
    assert not holds(training_own=arrays["training_own"] * [2.0, 1.0, 1.0])
    assert not holds(training_number=np.array(["0" * 64] * 4))
    assert not holds(value=np.ones(4), training_unproved=arrays["training_unproved"])


def test_a_killed_run_goes_on_with_the_same_sizes_and_credits(tmp_path: Path) -> None:
    acts = {**deviant(sends="gaussian"), "liar": {"clients": [2], "size": 1.5}}  # whose size is asked for twice
    asked = experiment(behaviour=acts, evidence={"training": {"slack": 1.0}})
    whole = hanse.run(asked, out=tmp_path / "whole")
    hanse.run(asked, out=tmp_path / "run")
    for late in sorted((tmp_path / "run" / "checkpoints").iterdir())[1:]:
        late.unlink() if late.is_file() else None
    again = hanse.resume(tmp_path / "run")
    assert (again.table.rows == whole.table.rows).all()
    assert again.book == whole.book
    for r in range(3):
        ours, theirs = record(tmp_path / "whole", r), record(tmp_path / "run", r)
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours if name.startswith("training_"))


@pytest.mark.parametrize("how", [{"sends": "copied"}, {"sends": "copied", "adds": {"noise": 0.1}}])
def test_of_near_copies_the_one_with_the_better_proof_counts(how: Any, tmp_path: Path) -> None:
    """Client 1 sends what client 0 trained. Its own samples show that it did not."""
    hanse.run(experiment(behaviour=deviant(**how)), out=tmp_path / "run")
    for r in range(3):
        assert record(tmp_path / "run", r)["training_copy"].tolist() == [False, True, False, False]


def test_a_member_answers_only_if_its_own_number_and_samples_are_in_question() -> None:
    here = build(experiment()).federation
    told = {"round": 2, "samples": 8, "of": 16, "audit": "0" * 64}
    number = training.numbers(here, 1, Ask("", told)).values["number"]  # type: ignore[arg-type]
    assert number != training.numbers(here, 1, Ask("", {**told, "round": 3})).values["number"]  # type: ignore[arg-type]
    assert len(training.seal_of(str(number))) == 64
    rows = build(experiment()).context.initial(0).expand(2, -1)
    for shown in ([[0, number]], [[1, "0" * 64]], [[1, number]]):
        said = {**told, "numbers": shown, "root": "0" * 64, "size": 5}
        with pytest.raises(NoAnswerError):
            training.tells_gains(here, 1, Ask(training.GAINS, said, rows))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"sizes": {}}, "evidence.training: needs sizes.proved"),
        ({"evidence": {"training": {"sample": 3}}}, "evidence.training.sample: no such key"),
        ({"evidence": {"training": {"least": 4.5}}}, "evidence.training.least: 4.5"),
        ({"evidence": {"training": {}}, "federation": {"secure": {"group": 2}}}, "evidence.training: not with"),
        ({"federation": {"private": {"clip": 1.0, "noise": 1.0, "delta": 1e-5}}}, "evidence.training: not with"),
        ({"data": {"source": "digits", "validation": 0}, "mechanism": "ipfl_posted"}, "evidence.training"),
    ],
)
def test_what_it_does_not_go_with_is_said_before_round_0(sections: Any, line: str) -> None:
    with pytest.raises(hanse.UserError) as wrong:
        build(experiment(**sections))
    assert any(one.startswith(line) for one in wrong.value.lines), wrong.value.lines
