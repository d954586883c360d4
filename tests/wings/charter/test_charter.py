"""A charter sets what is played, refuses what contradicts it, and is amended by a quorum of its members."""

from pathlib import Path
from typing import Any

import pytest
from experiments import digits
from mistaken import mistakes
from watching import Watch

import hanse
from hanse.base import toml
from hanse.base.lock import Hold
from hanse.cli import main
from hanse.ledger.note import own_key, public_of
from hanse.ledger.run_ledger import BooksAtCheckpoint
from hanse.reports.audit import audit_run
from hanse.reports.statement import statement
from hanse.runs.run_record import edited_settings
from hanse.wings.charter import amendment, rehearse
from hanse.wings.charter.charter import Charter, Quorum, charter_of
from hanse.wings.charter.rehearse import CHEATS, rehearsed
from hanse.wings.charter.shift import Shifts

MEMBERS = {
    "north": {"clients": ["client 0", "client 1"]},
    "south": {"clients": ["client 2"]},
    "west": {"clients": ["client 3"]},
}


def charter(**changes: Any) -> dict[str, Any]:
    return {"title": "Farms", "members": MEMBERS, "cap": 0.4, "quorum": {"members": 0.6}, **changes}


def experiment(said: Any, **sections: Any) -> hanse.Experiment:
    mechanism = {"name": "fedavg", "clients_per_round": 4, **sections.pop("mechanism", {})}
    return digits(mechanism, charter=said, **sections)


def test_it_sets_the_parts_and_stands_in_every_round_and_on_every_page(tmp_path: Path) -> None:
    exit = {"balance": "lost", "models": "anew"}
    said = charter(floor=True, length=2.0, vests=2, sees=["values"], exit=exit)
    made = experiment(said, mechanism={"settle": "by_value", "weigh": "uniform"})
    weigh, clients = made.mechanism.built.weigh, made.clients
    assert (weigh.cap, weigh.clip, weigh.floor) == (0.4, 2.0, True)  # type: ignore[union-attr]
    assert (clients.vests, clients.told, clients.named, clients.members["client 1"]) == (2, True, False, "north")
    assert clients.leaving.model_dump(exclude_defaults=True) == exit
    pot = experiment(charter(vests=2), mechanism={"value": "path", "settle": "pot"}).mechanism.built.settle
    assert pot.vests == 2  # type: ignore[union-attr]
    again = hanse.Experiment(**made.sections())  # as config.toml has it
    assert again.sections() == made.sections()
    run = hanse.run(made, out=tmp_path / "run")
    assert {line["agreement"] for line in run.metrics} == {charter_of(again).hash} == {Charter.of(said).hash}
    told = [str(statement(run.path, 0).told), str(audit_run(run.path).facts), rehearsed(made, 1)[0]]
    assert all(charter_of(made).hash in page for page in told)
    assert Charter.of(charter(exit={})).hash == Charter.of(charter()).hash != Charter.of(charter(exit=exit)).hash
    assert max(line["weigh/largest_member"] for line in run.metrics) <= 0.4 + 1e-9


HALF = {**MEMBERS, "west": {"clients": ["client 3"], "weight": 1.0}}
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a question that is none": ({"answers": ["Trane"]}, {}, "charter.answers"),
    "none is told": ({"sees": ["names"], "answers": ["Train"]}, {}, "charter.answers"),
    "cap": ({"cap": 0.3}, {}, "charter.cap"),
    "quorum": ({"quorum": {"members": 1.5}}, {}, "charter.quorum.members"),
    "quorum of the few": ({}, {"mechanism": {"clients_per_round": 1}}, "charter.quorum"),
    "a stranger": ({"members": {**MEMBERS, "east": {}}}, {}, "clients.members"),
    "left out": ({}, {"data": {"clients": 5}}, "charter.members"),
    "of two": ({"members": {**MEMBERS, "east": {"clients": ["client 0"]}}}, {}, "charter.members"),
    "weights of some": ({"members": HALF}, {}, "charter.members.north.weight"),
    "no weight": ({"members": {name: {**one, "weight": 0} for name, one in MEMBERS.items()}}, {}, "charter.members"),
    "alike": ({"members": {**MEMBERS, "North ": {"clients": ["client 4"]}}}, {}, "charter.members"),
    "a key of two": ({"members": {n: {**one, "key": "ab" * 32} for n, one in MEMBERS.items()}}, {}, "charter.members"),
    "a typo": ({"lenght": 2.0}, {}, "charter.lenght"),
    "another cap": ({}, {"mechanism": {"weigh": {"name": "capped", "cap": 1}}}, "mechanism.weigh.cap"),
    "another vesting": ({"vests": 3}, {"clients": {"vests": 2}}, "clients.vests"),
    "another of a pot": ({}, {"mechanism": {"settle": {"name": "pot", "vests": 3}}}, "mechanism.settle.vests"),
    "a leaver's things": ({"exit": {"balance": "shared"}}, {}, "charter.exit.balance"),
    "another exit": ({}, {"clients": {"exit": {"balance": "lost"}}}, "clients.exit"),
    "another value": ({"floor": True}, {"mechanism": {"value": "gtg"}}, "mechanism.value"),
    "another average": ({}, {"mechanism": {"weigh": "median"}}, "mechanism.weigh.of"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_contradicts_it_is_refused_by_name(case: str) -> None:
    changes, sections, key = WRONG[case]
    lines = mistakes(lambda: hanse.run(experiment(charter(**changes), **sections)))
    assert key in [line.split(":")[0] for line in lines]


def test_a_round_without_a_quorum_leaves_model_and_books_as_they_are() -> None:
    gone = {"leaver": {"clients": [2, 3], "at": 0}}
    two: dict[str, Any] = {"client 0": {}, "client 1": {}, "west": {"clients": ["client 2", "client 3"]}}
    weighed = {name: {**one, "weight": 1.0 + (name == "client 0")} for name, one in two.items()}
    for quorum, members, played in (
        ({"members": 0.7}, two, False),
        ({"members": 0.6}, two, True),
        ({"members": 0.0, "weight": 0.8}, weighed, False),
        ({"members": 0.0, "weight": 0.75}, weighed, True),
    ):
        said, parts = charter(quorum=quorum, members=members), {"value": "path", "settle": "by_value"}
        run = hanse.run(experiment(said, behaviour=gone, mechanism=parts, run={"rounds": 1}))
        assert [line["answered"] for line in run.metrics] == [2 * played]
        assert (run.nothing is None) == played
        balances = {units for name, units in run.book.balances.items() if name.startswith("client")}
        assert (len(balances) == 1) == (not played)
        assert played or {seat["refused"][:9] for seat in run.clients if seat["client"] < 2} == {"no quorum"}


def test_nobody_is_asked_what_it_has_not_agreed_to_answer() -> None:
    asks = {"select": "power_of_choice"}  # which asks for losses
    free, bound = (
        hanse.run(experiment(charter(answers=one, quorum={"members": 0.0}), mechanism=asks))
        for one in (None, ["Train", "Test", "Nearest"])
    )
    assert free.nothing is None
    assert bound.nothing is not None  # nobody says its loss, so that nobody is chosen
    assert {seat["client"] for seat in free.clients} == {0, 1, 2, 3}


def test_who_does_not_sign_is_asked_neither_more_than_it_agreed_to_nor_more_than_is_answered_now() -> None:
    def then(old: Charter, *answers: str, by: tuple[str, ...], **members: Any) -> Charter:
        new = Charter.of(charter(answers=[*answers], members={**MEMBERS, **members}))
        after = amendment.both_in(amendment.drafted(old, new, 1), "amendment")[1]
        return after.model_copy(
            update={"before": {c: one for c, one in after.before.items() if old.by_client[c] not in by}}
        )

    one = Charter.of(charter(answers=["Train"]))
    two = then(one, "Train", "Test", by=("north", "west"))
    three = then(two, "Train", "Test", by=("north", "west"), east={})  # south has still not agreed to be tested
    told = {name: three.answered_by(name) for name in ("north", "south", "west", "east")}
    assert told == {name: ("Train",) if name == "south" else ("Train", "Test") for name in told}
    less = then(three, "Test", by=("north", "west")).answered_by
    assert (less("north"), less("south")) == (("Test",), ())
    assert one.model_copy(update={"quorum": Quorum(members=0.0)}).lacks(set())  # nobody amends nothing


TWO = ("--sign", "north.pem", "--sign", "west.pem")  # of three members


def written(file: Path, said: dict[str, Any]) -> None:
    """Write a charter's file."""
    file.write_text("\n".join(f"{key} = {toml.inline(value)}" for key, value in said.items()))


def amended(folder: Path, *words: str | Path) -> int:
    """Return the exit code of hanse charter amend."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.argv", ["hanse", "charter", "amend", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


def test_a_quorum_amends_a_run_from_a_round_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {name: public_of(own_key(tmp_path / f"{name}.pem")).hex() for name in (*MEMBERS, "stranger")}
    keyed = {name: {**one, "key": keys[name]} for name, one in MEMBERS.items()}
    of = {"north": ["client 0"], "south": ["client 1", "client 2"], "west": ["client 3"]}  # client 1 changes hands
    moved = {name: {"clients": of[name], "key": keys[name]} for name in MEMBERS}
    changes: tuple[dict[str, Any], ...] = ({"answers": ["Train"], "members": keyed}, {"cap": 0.35, "members": moved})
    for name, one in zip(("old", "new"), changes, strict=True):
        written(tmp_path / f"{name}.toml", charter(**one))
    old = experiment(charter(**changes[0]), run={"rounds": 4, "checkpoint_every": 2})

    with pytest.raises(KeyboardInterrupt):  # behind the checkpoint, so that the round is played again
        hanse.run(old, out=tmp_path / "run", observers=[Watch(2)])
    assert amended(tmp_path, "old.toml", "new.toml", "--round", 1, "-o", "past.txt") == 0
    assert amended(tmp_path, "old.toml", "new.toml", "--round", 2) == 0
    assert amended(tmp_path, "old.toml", "--sign", "stranger.pem") == 2
    assert amended(tmp_path, "old.toml", "--sign", "north.pem") == 0
    assert amended(tmp_path, "old.toml", "--run", "run") == 2  # one of three
    assert amended(tmp_path, "old.toml", "--sign", "west.pem") == 0
    assert amended(tmp_path, "old.toml", "new.toml", "--round", 2) == 2  # its signatures would be lost
    with Hold(tmp_path / "run") as hold:
        hold.take()
        assert amended(tmp_path, "old.toml", "--run", "run") == 2  # somebody plays it
    assert amended(tmp_path, "old.toml", *TWO, "-o", "past.txt", "--run", "run") == 2
    nobody = {**moved, "west": {"clients": ["client 9"], "key": keys["west"]}}
    written(tmp_path / "wrong.toml", charter(members=nobody))
    assert amended(tmp_path, "old.toml", "wrong.toml", "--round", 2, "-o", "wrong.txt") == 0
    assert amended(tmp_path, "old.toml", *TWO, "-o", "wrong.txt", "--run", "run") == 0
    with pytest.raises(hanse.UserError):
        hanse.resume(tmp_path / "run")
    assert amended(tmp_path, "old.toml", "--run", "run") == 0  # in the place of one that cannot be played
    with pytest.raises(hanse.UserError):  # on a network experiment.toml may not name it
        amendment.amended(old, old, tmp_path / "run", 2)
    assert edited_settings(tmp_path / "run") == ""
    (tmp_path / "run" / "amendment-2.txt").rename(tmp_path / "kept")
    assert edited_settings(tmp_path / "run")
    with pytest.raises(hanse.UserError):  # config.toml alone may be forged
        hanse.resume(tmp_path / "run")
    (tmp_path / "kept").rename(tmp_path / "run" / "amendment-2.txt")
    run = hanse.resume(tmp_path / "run", rounds=3)
    after = charter_of(run.experiment)
    assert [line["agreement"] for line in run.metrics] == [charter_of(old).hash] * 2 + [after.hash]
    assert [line["weigh/largest_member"] for line in run.metrics] == pytest.approx([0.4, 0.4, 0.35])
    assert run.experiment.clients.members["client 1"] == "south"
    assert {name: after.answered_by(name) for name in MEMBERS} == {"north": None, "west": None, "south": ("Train",)}
    assert amended(tmp_path, "old.toml", "-o", "new.toml") == 2  # no amendment
    more = ("amendment.txt", "-o", "more.txt", *TWO)
    assert amended(tmp_path, "amendment.txt", "old.toml", "--round", 3, "-o", "more.txt") == 0
    assert amended(tmp_path, *more) == 0
    fixed = hanse.Experiment(**{**run.experiment.sections(), "run": {"rounds": 3, "recomputable": True}}).to_toml()
    for no, why in ({"finished": True}, "its last round is settled"), ({"settings": fixed}, "to be recomputed"):
        monkeypatch.setattr(amendment, "latest_claim", lambda run, no=no: BooksAtCheckpoint(**no))
        with pytest.raises(hanse.UserError, match=why):
            amendment.go_on(tmp_path / "run", tmp_path / "more.txt")
    monkeypatch.undo()
    capsys.readouterr()
    assert amended(tmp_path, *more, "--run", "run") == 0
    assert "under it from round 3; go on with 'hanse resume run --rounds 4'" in capsys.readouterr().out


def test_a_charter_that_no_quorum_could_amend_is_told_and_nothing_is_drafted(tmp_path: Path) -> None:
    keys = {name: {**one, "key": f"{number:064x}"} for number, (name, one) in enumerate(MEMBERS.items())}
    assert not Charter.of(charter(members=keys)).stuck
    stuck = Charter.of(charter(members={**keys, "south": MEMBERS["south"], "west": MEMBERS["west"]})).stuck
    assert all(one in stuck for one in ("south, west", "1 of 3 members", "2 are needed"))
    (tmp_path / "old.toml").write_text("title = 'Farms'\n[members.north]\n[members.south]\n")
    assert amended(tmp_path, "old.toml", "old.toml", "--round", 1) == 2
    assert not (tmp_path / "amendment.txt").exists()


def test_a_rehearsal_attacks_every_round_and_stays_below_the_bound() -> None:
    said = charter(length=1.5, floor=True)
    watch = Shifts(2)
    played = hanse.run(experiment(said), observers=[watch])
    assert sorted(watch.books) == [line["round"] for line in played.metrics]
    one, two = watch.found[1], watch.found[2]
    assert 0 < one.shift <= one.bound < 2 * 2 * 0.4 * 1.5
    assert 0.4 < one.shift / one.bound <= 1 + 1e-5
    assert one.who in MEMBERS
    assert two.bound == float("inf")  # two of three
    introduction, tables = rehearsed(experiment(said, data={"client_test": 0.2}), 1)
    assert charter_of(played.experiment).hash in introduction
    assert [[row[0] for row in table.rows] for table in tables] == [[*MEMBERS], ["1"], ["nothing else", *CHEATS]]
    assert float(tables[2].rows[1][1]) > 2 * float(tables[2].rows[1][2])  # what the charter is for
    assert len(rehearsed(experiment(said), 1)[1]) == 2  # nobody has test samples of its own
    with pytest.raises(hanse.UserError):
        rehearsed(hanse.Experiment(mechanism="fedavg"), 1)


def test_a_rehearsal_keeps_the_attackers_that_the_experiment_has(monkeypatch: pytest.MonkeyPatch) -> None:
    played, play = list[dict[str, Any]](), rehearse.run
    monkeypatch.setattr(rehearse, "run", lambda one, **more: played.append(one.behaviour) or play(one, **more))
    own = {"attacker": {"clients": [2], "kind": "shuffle"}}
    rehearsed(experiment(charter(length=1.5), behaviour=own), 1)
    assert len(played) == 2 * (1 + len(CHEATS))
    assert all(own.items() <= one.items() for one in played)
    assert sum(len(one) > 1 for one in played) == 2 * len(CHEATS)
