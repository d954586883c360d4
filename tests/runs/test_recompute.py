"""A run with ``run.recomputable``: all comes out as recorded, and whatever an operator changed is named."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import invoke
from experiments import digits
from forging import history_of, rerecorded, rewritten
from watching import Watch

import hanse
from hanse.base import toml
from hanse.core.port import Ask, Call, Reply, Request, Trained
from hanse.data.commitment import CommittedSet
from hanse.federation.codec import pack
from hanse.ledger.run_ledger import wrong_in
from hanse.reports.audit import audit_run
from hanse.reports.invoice import invoice
from hanse.runs import round as rounds
from hanse.runs.comparison import UnlikeError
from hanse.runs.recomputable import (
    Commitment,
    ReplayedAnswers,
    RoundAnswers,
    answers_file,
    audit_folder,
    validation_file,
)
from hanse.runs.recompute import FLOOR, recompute
from hanse.runs.replay import wrong_books
from hanse.runs.run_record import edited_settings, load_run
from hanse.runs.rundir import environment

MARKET = {"partition": "cluster", "client_test": 0.25, "client_validation": 0.1, "validation": 0.0}
ROLES = {"profiles": {"name": "roles", "eagerness": [6e3, 1.2e4]}}
SHARED = {"members": {"client 0": "north", "client 3": "north"}}
PLAYED: dict[str, dict[str, Any]] = {
    "path": {"mechanism": {"name": "fedavg", "value": "path"}},
    "greedyfed": {"mechanism": {"name": "greedyfed", "clients_per_round": 3}},
    "pifl": {"mechanism": {"name": "pifl"}, "data": {"client_validation": 0.1}},
    "ipfl": {"mechanism": {"name": "ipfl"}, "data": MARKET, "clients": ROLES},
    "what only clients of one process do": {
        "mechanism": {"name": "fedavg", "value": "path"},
        "data": {"client_test_from": "classes", "augment": "crop-flip"},
        "train": {"order": "by_class", "lr_decay": 0.9, "lr_decay_by": "last"},
        "eval": {"model": "trained"},
    },
    "by_value": {"mechanism": {"name": "fedavg", "value": "path", "settle": "by_value"}, "clients": SHARED},
}


def experiment(name: str, rounds: int = 3) -> hanse.Experiment:
    sections = dict(PLAYED[name])
    data = {"source": "digits", "clients": 5, **sections.pop("data", {})}
    run = {"rounds": rounds, "recomputable": True}
    train = {"steps": 4, **sections.pop("train", {})}
    return hanse.Experiment(data=data, model={"name": "logistic"}, train=train, run=run, **sections)


def given(folder: Path) -> Path | None:
    file = validation_file(folder)
    return file if file.exists() else None


@pytest.fixture(scope="module")
def by_value(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hanse.run(experiment("by_value"), out=tmp_path_factory.mktemp("recompute") / "run").path


@pytest.fixture
def copy(by_value: Path, tmp_path: Path) -> Path:
    shutil.copytree(by_value, tmp_path / "run")
    shutil.copytree(audit_folder(by_value), tmp_path / "run.audit")
    return tmp_path / "run"


@pytest.mark.parametrize("name", PLAYED)
def test_all_comes_out_as_recorded_to_the_bit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanse.run(experiment(name, rounds=1 if name == "path" else 3), out=tmp_path / "run")
    hanse.resume(tmp_path / "run", rounds=3)
    found = recompute(tmp_path / "run", given(tmp_path / "run"))
    assert (found.unlike, found.notes, found.floor, found.deviation) == (None, [], 0.0, 0.0)
    assert found.rounds == 3
    assert (found.values > 0) == (name != "ipfl")
    assert (found.transactions > 0) == (name in ("pifl", "ipfl", "by_value"))
    assert wrong_in(tmp_path / "run") is None
    # on another processor numbers may differ by the noise floor
    monkeypatch.setattr("hanse.runs.recompute.environment", lambda: {**environment(), "instructions": "another"})
    found = recompute(tmp_path / "run", given(tmp_path / "run"))
    assert (found.unlike, found.floor) == (None, FLOOR)
    assert found.notes == [f"instructions differ from those of the run: numbers may differ by {FLOOR:g} of the largest"]


def test_a_changed_update_is_named_with_its_hash_or_without(copy: Path) -> None:
    """Whoever also writes the hash anew contradicts the record, which the book has the hash of."""
    file = answers_file(copy, 1)
    whole, data = RoundAnswers.read(file, {}), bytearray(file.read_bytes())
    reply = whole.value(2)
    [trained] = [r for r in reply.results if isinstance(r, Trained)]
    data[data.index(trained.row.numpy().tobytes()) + 40] ^= 1  # one bit
    file.write_bytes(bytes(data))
    said = f"round 1: the update of client {reply.client} "
    assert recompute(copy, given(copy)).unlike == f"{said}has been changed: its numbers are not those of its hash"
    assert invoke("audit", "recompute", copy, "--validation", given(copy)).exit_code == 1
    other = pack(replace(reply, results=(replace(trained, row=trained.row + 1),)))
    headers = [*whole.headers[:2], other.header, *whole.headers[3:]]
    file.write_bytes(replace(whole, headers=headers, arrays={**whole.arrays, **other.arrays}).packed())
    assert recompute(copy, given(copy)).unlike == f"{said}is not the one of which the record has the hash"


def test_a_value_that_an_operator_made_up_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record, books and receipts agree with the lie: nothing else can find it."""
    true = rounds._Round.value

    def lying(now: Any) -> None:
        true(now)
        now.view = replace(now.view, values=replace(now.view.values, per_seat=now.view.values.per_seat.copy()))
        now.view.values.per_seat[2] += 0.01 * (now.view.round == 1)

    with monkeypatch.context() as operator:
        operator.setattr(rounds._Round, "value", lying)
        hanse.run(experiment("by_value"), out=tmp_path / "run")
    assert wrong_in(tmp_path / "run") is None
    assert invoke("ledger", "verify", tmp_path / "run").exit_code == 0
    assert recompute(tmp_path / "run", given(tmp_path / "run")).unlike.startswith("round 1: the value of client 2 is ")


def test_a_model_that_an_operator_changed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = rounds._Round.settle_and_mix

    def other(now: Any) -> Any:
        table = true(now)
        return replace(table, rows=table.rows + 1e-3)

    with monkeypatch.context() as operator:
        operator.setattr(rounds._Round, "settle_and_mix", other)
        hanse.run(experiment("path"), out=tmp_path / "run")
    assert recompute(tmp_path / "run", given(tmp_path / "run")).unlike.startswith("round 0: 'table_hash'[0] is ")


def test_another_validation_set_is_named(copy: Path) -> None:
    file, count = validation_file(copy), len(Commitment.read(copy).samples)
    with np.load(file) as kept:
        whole = dict(kept)
    x, y = whole["x"].copy(), whole["y"].copy()
    x[7].flat[3] += 1
    y[4] += 1
    swapped = np.array([0, 1, 5, 3, 4, 2, *range(6, count)])
    one_less, reordered = ({n: whole[n][at] for n in ("x", "y", "salts")} for at in (slice(-1), swapped))
    said = "is not the one that was committed to"
    for other, why in (
        ({"x": x}, f"sample 8 of {count} {said}"),
        ({"y": y}, f"sample 5 of {count} {said}"),
        (one_less, f"has {count - 1} samples; {count} were committed to"),
        (reordered, f"sample 3 of {count} {said}; it is number 6"),
    ):
        np.savez(file, **{**whole, **other})
        assert recompute(copy, file).unlike == f"{file}: {why}"


def test_a_sample_is_erased_and_the_others_are_still_proved(copy: Path) -> None:
    CommittedSet.read(validation_file(copy)).without([3]).without([1, 3]).write(validation_file(copy))
    found = CommittedSet.read(validation_file(copy))
    assert found.erased.tolist() == [1, 3]
    assert found.wrong(Commitment.read(copy).samples) == ""
    assert not found.samples.x[3].any()
    assert not found.salts[3].any()
    assert wrong_in(copy) is None  # and no proof of the book is touched
    with pytest.raises(hanse.UserError, match=r"2 of .* samples were erased"):
        recompute(copy, validation_file(copy))


def test_what_was_committed_to_cannot_be_changed_later(copy: Path) -> None:
    config = copy / "config.toml"
    config.write_text(config.read_text().replace("rate = 10.0", "rate = 11.0"))
    assert recompute(copy, given(copy)).unlike == "config.toml is not the one that was committed to"
    assert wrong_books(copy).startswith("config.toml was edited: ")
    shutil.rmtree(copy / "checkpoints")  # the book says it, too
    other = "config.toml is not the one to which the first line of the book commits"
    assert wrong_books(copy) == next(check.said for check in audit_run(copy).checks if not check.holds) == other
    said = json.loads((copy / "committed.json").read_text())
    (copy / "committed.json").write_text(json.dumps(said | {"clients": 6}))
    assert recompute(copy, given(copy)).unlike == "committed.json is not what the first line of the log stands for"


def test_an_array_that_was_changed_with_its_books_is_named(copy: Path) -> None:
    rerecorded(copy, 1, value=np.ones(5))
    assert recompute(copy, given(copy)).unlike.startswith("round 1: 'value'[0] is ")


def edited(folder: Path, name: str, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change a line file, and write the books anew."""
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    change(lines)
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    rewritten(folder, history_of(folder))


def test_a_forged_round_is_named_whatever_checkpoint_is_there(copy: Path) -> None:
    """What is played again goes by the book; an operator who takes the last checkpoints away hides no round."""
    early = copy / "checkpoints" / "00001.safetensors"
    kept = early.read_bytes()
    edited(copy, "clients.jsonl", lambda lines: lines[-1].update(value=9.0))
    for file in (copy / "checkpoints").iterdir():
        file.unlink()
    for checkpoint in (b"", kept):
        early.write_bytes(checkpoint)
        assert recompute(copy, given(copy)).unlike.startswith("round 2: the value of client 4 is ")


def test_rounds_that_are_not_in_the_book_are_said(tmp_path: Path) -> None:
    """As behind the last checkpoint of a run that was killed; nothing else tells such rounds from made-up ones."""
    run = tmp_path / "run"
    hanse.run(experiment("path", rounds=2), out=run)
    assert load_run(run).beyond == ""
    for name in ("metrics.jsonl", "clients.jsonl"):
        lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
        more = [line | {"round": 2} for line in lines if line["round"] == 1]
        (run / name).write_text("".join(json.dumps(line) + "\n" for line in [*lines, *more]))
    shutil.copy(run / "rounds" / "00001.npz", run / "rounds" / "00002.npz")
    said = "Round 2 is not in the book: nothing proves what the records say of it."
    found = recompute(run, given(run))
    assert (found.unlike, found.rounds) == (None, 2)
    assert found.notes == ["rounds from 2 on are not in the book, and were not played again"]
    assert [note.said for note in hanse.facts(run).notes if note.code == "beyond_the_book"] == [said]
    with pytest.raises(hanse.UserError, match=said):
        invoice(run, "10", "EUR")
    result = invoke("ledger", "verify", run)
    assert (result.exit_code, said in result.output) == (0, True)


def test_a_round_that_is_said_to_have_failed_pays_and_values_nobody(copy: Path) -> None:
    edited(copy, "metrics.jsonl", lambda lines: lines[2].update(failed="a part raised"))
    said = "round 2: failed when it was played, and "
    assert recompute(copy, given(copy)).unlike == f"{said}the ledger has a payment of it"
    rewritten(copy, [(r, t) for r, t in history_of(copy) if r != 2])
    assert recompute(copy, given(copy)).unlike == f"{said}clients.jsonl has an update of it"


def test_answers_that_were_not_asked_for_are_named() -> None:
    federation = ReplayedAnswers(RoundAnswers([pack([]).header, pack(Reply(1, ())).header], [-1, 1], [([1], 1)], {}))
    with pytest.raises(UnlikeError, match=r"clients \[2\] would have been asked, and clients \[1\] were"):
        federation.exchange(Call(0, [Request(2, (Ask("bid"),))]))
    with pytest.raises(UnlikeError, match=r"clients \[1\] were asked, and should not be"):
        federation.used_up()
    assert federation.exchange(Call(0, [Request(1, (Ask("bid"),))])) == [Reply(1, ())]
    with pytest.raises(UnlikeError, match="asked once more"):
        federation.exchange(Call(0, [Request(1, (Ask("bid"),))]))


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"federation": {"late": "next"}}, "late updates are not kept"),
        ({"sizes": {"proved": True}}, "sizes cannot"),
        ({"data": {"source": "digits", "clients": 5, "root": 0.1}}, "root set"),
    ],
)
def test_what_cannot_be_recomputed_is_refused_before_round_0(
    sections: dict[str, Any], said: str, tmp_path: Path
) -> None:
    given = {"data": {"source": "digits", "clients": 5}, "run": {"recomputable": True}, **sections}
    with pytest.raises(hanse.UserError, match=said):
        hanse.run(hanse.Experiment(mechanism="fedavg", **given), out=tmp_path / "run")


@pytest.mark.parametrize("recomputable", [False, True])
@pytest.mark.parametrize("more", [None, 4])
def test_a_run_that_an_older_version_began_is_not_taken_for_edited(
    recomputable: bool, more: int | None, tmp_path: Path
) -> None:
    """Settings that are new since are left out of its config.toml, and stay so."""

    def older(sections: dict[str, Any]) -> dict[str, Any]:
        del sections["clients"]["members"], sections["mechanism"]["settle"]["vests"]
        return sections

    mechanism = {"name": "fedavg", "value": "path", "settle": "pot"}
    run = {"recomputable": recomputable, "checkpoint_every": 1}
    begun = digits(mechanism, data={"validation": 0.2}, run=run, train={"steps": 2})
    whole = hanse.Experiment.to_toml
    with pytest.MonkeyPatch.context() as then, suppress(KeyboardInterrupt):
        then.setattr(hanse.Experiment, "to_toml", lambda given: toml.dumps(older(toml.loads(whole(given)))))
        hanse.run(begun, out=tmp_path / "run", observers=[Watch(1)])
    hanse.resume(tmp_path / "run", rounds=more)
    assert "vests = 1\n" in (tmp_path / "run" / "config.toml").read_text()  # that of clients
    assert "members" not in (tmp_path / "run" / "config.toml").read_text()
    assert wrong_books(tmp_path / "run") is None
    assert not edited_settings(tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("tokens = 100.0, ", ""))
    assert "config.toml was edited: mechanism.settle.tokens is left out" in (wrong_books(tmp_path / "run") or "")
