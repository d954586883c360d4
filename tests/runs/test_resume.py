"""Killed anywhere and resumed: the same bits as a run that nobody disturbed."""

import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from killed_runs import child
from safetensors.torch import load_file, save_file

import hanse
from hanse.base.errors import MachineError
from hanse.base.wings import absent
from hanse.core.table import PER_CLIENT, Block, Table
from hanse.ledger.run_ledger import latest_claim
from hanse.runs.checkpoint import VERSION, CorruptCheckpointError, LoopState, Snapshot, load, store
from hanse.runs.played_run import last_state
from hanse.runs.round_record import rounds_of

CPU = torch.device("cpu")


def experiment(**run: Any) -> hanse.Experiment:
    return hanse.Experiment(
        data={"clients": 6, "partition": {"alpha": 0.5}},
        model={"name": "mlp", "hidden": [8]},
        mechanism={"name": "greedyfed", "clients_per_round": 2, "averaging": 0.5},
        train={"lr": 0.05, "momentum": 0.5},
        behaviour={"straggler": {"fraction": 0.5}, "noisy": {"sigma": 0.01}, "dropout": {"rate": 0.2}},
        engine={"train": "stacked", "threads": 1},
        run={"rounds": 6, **run},
    )


def untimed(lines: list[dict]) -> list[dict]:
    return [{k: v for k, v in line.items() if not k.startswith(("time/", "memory/"))} for line in lines]


def final(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / "00006.safetensors")


def assert_same(folder: Path, reference: Path) -> None:
    one, other = final(folder), final(reference)
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].numpy().tobytes() == other[name].numpy().tobytes(), name  # NaN: not known
    for file in ("metrics.jsonl", "clients.jsonl"):
        lines = [[json.loads(s) for s in (d / file).read_text().splitlines()] for d in (folder, reference)]
        assert untimed(lines[0]) == untimed(lines[1])
    for file in sorted((reference / "rounds").glob("*.npz")):
        with np.load(file) as want, np.load(folder / "rounds" / file.name) as got:
            assert got.files == want.files
            for name in want.files:
                np.testing.assert_array_equal(got[name], want[name])


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "run"
    hanse.run(experiment(), out=folder)
    return folder


def test_round_100000_comes_after_99999(reference: Path, tmp_path: Path) -> None:
    run = shutil.copytree(reference, tmp_path / "run")
    for folder in (run / "checkpoints", run / "rounds"):
        for number, file in enumerate(sorted(folder.iterdir())[-2:]):
            file.rename(folder / f"{99_999 + number}{file.suffix}")
    claim, state = latest_claim(run), last_state(run)
    assert claim and state and claim.round == state.round == 6  # noqa: PT018
    assert [number for number, _ in rounds_of(run)][-2:] == [99_999, 100_000]


def kill_and_resume(moments: int, seed: int, reference: Path, tmp_path: Path, **run: Any) -> None:
    source = tmp_path / "exp.toml"
    source.write_text(experiment(**run).to_toml())
    whole = child(-1, source, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    total = int(whole.stdout)
    draw = random.Random(seed)
    for i in range(moments):
        out = tmp_path / f"killed{i}"
        killed = child(draw.randrange(1, total), source, out)
        assert killed.returncode == -9, killed.stderr
        hanse.resume(out)
        assert_same(out, reference)


def test_killed_at_random_moments_and_resumed_gives_the_same_bits(reference: Path, tmp_path: Path) -> None:
    kill_and_resume(3, 11, reference, tmp_path)


def test_killed_with_sparse_checkpoints_redoes_the_rounds_since(reference: Path, tmp_path: Path) -> None:
    kill_and_resume(2, 5, reference, tmp_path, checkpoint_every=4)


@pytest.mark.slow
def test_killed_at_many_random_moments(reference: Path, tmp_path: Path) -> None:
    kill_and_resume(8, 99, reference, tmp_path)


def test_resuming_a_finished_run_changes_nothing(reference: Path) -> None:
    before = (reference / "metrics.jsonl").read_bytes()
    again = hanse.resume(reference)
    assert (reference / "metrics.jsonl").read_bytes() == before
    assert len(again.metrics) == 6
    assert not again.interrupted


@pytest.mark.parametrize("how", ["flip", "truncate", "empty"])
def test_a_corrupt_checkpoint_is_said_and_the_one_before_it_used(how: str, reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    hanse.run(experiment(), out=folder)
    last = folder / "checkpoints" / "00006.safetensors"
    blob = bytearray(last.read_bytes())
    if how == "flip":
        blob[-5] ^= 1
    last.write_bytes({"flip": bytes(blob), "truncate": bytes(blob[:-9]), "empty": b""}[how])
    began: list[int] = []
    listener = SimpleNamespace(on_start=lambda experiment, first_round, lines: began.append(first_round))
    said = hanse.resume(folder, observers=[listener]).said
    assert began == [5]
    assert any("corrupt checkpoint 00006.safetensors" in line for line in said)
    assert (folder / "checkpoints" / "00006.corrupt").exists()
    assert_same(folder, reference)


@pytest.mark.parametrize("lost", ["checkpoints", "lines"])
def test_a_run_goes_back_as_far_as_what_was_lost(lost: str, reference: Path, tmp_path: Path) -> None:
    """To the start, with no sound checkpoint; to an earlier one, if a power cut took lines."""
    folder = tmp_path / "run"
    hanse.run(experiment(), out=folder)
    for file in (folder / "checkpoints").glob("*.safetensors") if lost == "checkpoints" else ():
        file.write_bytes(file.read_bytes()[:-1])
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    if lost == "lines":
        (folder / "metrics.jsonl").write_bytes(b"".join(lines[:4]) + lines[4][:20])
    hanse.resume(folder)
    assert_same(folder, reference)


TYPES = ("bfloat16", "float16", "float8_e4m3fn", "uint16", "bool", "complex64")


def snapshot() -> Snapshot:
    plain = {"counts": np.arange(3), "none": None, "beta": 0.5, "name": "x", "t": torch.ones(2, 2)}
    typed = {name: torch.tensor([2, 1, 0]).to(getattr(torch, name)) for name in TYPES}
    states = {"select": {**plain, **typed, "other order": np.arange(3, dtype=">f8")}, "weigh": {}}
    blocks = Block("server"), Block("own", PER_CLIENT, initial="zero", private=True, held=True)
    table = Table(torch.arange(6.0).view(2, 3), np.array([-1, 4]), np.array([0, 1]), blocks)
    return Snapshot(LoopState(7, table, np.array([0, 1, 0]), states), {"metrics.jsonl": 12})


def test_a_checkpoint_holds_everything(tmp_path: Path) -> None:
    path = tmp_path / "00007.safetensors"
    store(path, snapshot())
    back = load(path, CPU)
    assert back.lengths == {"metrics.jsonl": 12}
    state, want = back.state, snapshot().state
    assert state.round == 7
    assert torch.equal(state.table.rows, want.table.rows)
    assert state.table.owner.tolist() == [-1, 4]
    assert state.table.block.tolist() == [0, 1]
    assert state.table.blocks == want.table.blocks
    assert state.home.tolist() == [0, 1, 0]
    assert state.states["weigh"] == {}
    select = state.states["select"]
    assert select["other order"].tolist() == [0, 1, 2]
    np.testing.assert_array_equal(select["counts"], np.arange(3))
    assert (select["none"], select["beta"], select["name"]) == (None, 0.5, "x")
    assert torch.equal(select["t"], torch.ones(2, 2))
    assert all(select[name].dtype == getattr(torch, name) for name in TYPES)
    assert {tuple(select[name].cfloat().tolist()) for name in TYPES} == {(2, 1, 0), (1, 1, 0)}
    assert not list(tmp_path.glob("*.tmp"))


def test_every_single_changed_byte_of_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    store(path, snapshot())
    blob = path.read_bytes()
    want = load(path, CPU)
    for position in range(len(blob)):
        path.write_bytes(blob[:position] + bytes([blob[position] ^ 0x10]) + blob[position + 1 :])
        try:
            got = load(path, CPU)
        except CorruptCheckpointError:
            continue
        # a change that leaves everything as it was (JSON white space) is no harm
        assert got.lengths == want.lengths
        assert torch.equal(got.state.table.rows, want.state.table.rows)
        assert got.state.round == want.state.round


def test_a_checkpoint_of_another_format_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "00007.safetensors"
    with monkeypatch.context() as before:
        before.setattr("hanse.runs.checkpoint.VERSION", 2)
        store(path, snapshot())
    with pytest.raises(hanse.UserError, match=rf"another version of hanse \(format 2, this is {VERSION}\)") as refused:
        load(path, CPU)
    assert len(refused.value.lines) == 1


def test_arrays_and_tensors_that_share_memory_are_stored_apart(tmp_path: Path) -> None:
    ids, rows = np.arange(3), torch.arange(6.0).view(3, 2)
    table = Table(rows, ids, ids, (Block("a"), Block("b"), Block("c")))
    state = LoopState(1, table, ids, {"select": {"a": ids, "b": ids, "t": rows, "view": rows[1:]}})
    store(tmp_path / "a.safetensors", Snapshot(state, {}))
    back = load(tmp_path / "a.safetensors", CPU).state
    assert back.home.tolist() == back.table.owner.tolist() == back.table.block.tolist() == [0, 1, 2]
    assert torch.equal(back.states["select"]["view"], rows[1:])


def test_what_a_behaviour_keeps_and_cannot_be_stored_is_an_error_and_not_lost(tmp_path: Path) -> None:
    state = LoopState(0, Table.of(torch.zeros(1, 1)), np.zeros(1, np.int64), {}, memories={"own": {"seen": {1, 2}}})
    with pytest.raises(hanse.UserError, match=r"memory of a behaviour: \{1, 2\}: a set: must be"):
        store(tmp_path / "a.safetensors", Snapshot(state, {}))


@pytest.mark.parametrize("table", ["none", Table(torch.zeros(3), np.zeros(3), np.zeros(3), (Block("server"),))])
def test_a_checkpoint_without_a_table_of_models_is_refused(tmp_path: Path, table: Any) -> None:
    store(tmp_path / "a.safetensors", Snapshot(LoopState(1, table, np.zeros(1, np.int64), {}), {}))
    with pytest.raises(hanse.UserError):
        load(tmp_path / "a.safetensors", CPU)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float8_e4m3fn])
def test_types_that_numpy_lacks_are_damage(tmp_path: Path, kind: torch.dtype) -> None:
    save_file({"0": torch.zeros(2, dtype=kind)}, tmp_path / "00007.safetensors", {"notes": "", "digest": ""})
    with pytest.raises(CorruptCheckpointError):
        load(tmp_path / "00007.safetensors", CPU)


def test_only_the_last_checkpoints_are_kept(reference: Path) -> None:
    assert sorted(p.stem for p in (reference / "checkpoints").glob("*.safetensors")) == ["00004", "00005", "00006"]


def test_what_is_not_a_run_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(hanse.UserError, match="is not a run directory"):
        hanse.resume(tmp_path)
    with pytest.raises(hanse.UserError, match="is not a run directory"):
        hanse.resume(tmp_path / "not there")


def test_a_part_that_keeps_more_than_it_did_is_not_resumed_with_less(tmp_path: Path) -> None:
    experiment = hanse.Experiment(
        data={"source": "digits", "partition": "dirichlet", "clients": 6},
        mechanism={"name": "set_aware", "clients_per_round": 2},
        run={"rounds": 3, "checkpoint_every": 1},
    )
    hanse.run(experiment, out=tmp_path / "run")
    last = max((tmp_path / "run" / "checkpoints").glob("*.safetensors"))
    kept = load(last, CPU)
    kept.state.states["select"].pop("went")  # as an earlier version left it
    store(last, kept)
    with pytest.raises(hanse.UserError, match="its select part has no went: another version of hanse wrote it"):
        hanse.resume(tmp_path / "run")


@pytest.mark.parametrize("every", [1, 4])
def test_more_rounds_are_those_of_a_longer_run(tmp_path: Path, every: int) -> None:
    """Played for 3, then 6: the bits of 6, but for a test that only a last round has."""
    short, whole = experiment(rounds=3), experiment()
    testing = short.eval.model_copy(update={"every": every})
    hanse.run(short.model_copy(update={"eval": testing}), out=tmp_path / "run")
    hanse.run(whole.model_copy(update={"eval": testing}), out=tmp_path / "whole")
    result = hanse.resume(tmp_path / "run", rounds=6)
    assert (len(result.metrics), result.experiment.run.rounds) == (6, 6)
    assert "note: 6 rounds instead of 3; config.toml says so from now on" in result.said
    assert any("round 3 was tested as the last one" in line for line in result.said) == (every == 4)
    assert (tmp_path / "run" / "config.toml").read_text() == (tmp_path / "whole" / "config.toml").read_text()
    if every == 1:
        assert_same(tmp_path / "run", tmp_path / "whole")
        return
    assert all(torch.equal(a, final(tmp_path / "whole")[name]) for name, a in final(tmp_path / "run").items())
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert ["test/loss" in json.loads(line) for line in lines] == [False, False, True, True, False, True]


def test_a_line_without_its_round_is_told_before_anything_is_played(tmp_path: Path) -> None:
    hanse.run(experiment(rounds=2), out=tmp_path / "run")
    file = tmp_path / "run" / "clients.jsonl"
    line, *others = file.read_text().splitlines(keepends=True)
    changed = {key: value for key, value in json.loads(line).items() if key != "round"}
    file.write_text("".join([json.dumps(changed) + "\n", *others]))
    with pytest.raises(MachineError, match=r"clients\.jsonl: line 1 is damaged; bring back a backup"):
        hanse.resume(tmp_path / "run", rounds=4)


def test_rounds_asked_for_again_change_nothing(tmp_path: Path) -> None:
    hanse.run(experiment(rounds=2), out=tmp_path / "run")
    before = (tmp_path / "run" / "config.toml").read_bytes()
    assert len(hanse.resume(tmp_path / "run", rounds=2).metrics) == 2
    for rounds in (1, True, 2.5):
        with pytest.raises(hanse.UserError, match="must be a whole number, at least the 2 rounds played"):
            hanse.resume(tmp_path / "run", rounds=rounds)  # type: ignore[arg-type]
    assert (tmp_path / "run" / "config.toml").read_bytes() == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != "config.toml"}


def edited(folder: Path, **changes: str) -> None:
    """Change lines of a run's config.toml by their keys, and put the others back."""
    file = folder / "config.toml"
    kept = folder.with_suffix(".toml")
    if not kept.exists():
        kept.write_bytes(file.read_bytes())
    text = kept.read_text()
    for key, value in changes.items():
        text, count = re.subn(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
        assert count == 1, key
    file.write_text(text)


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("market") / "run"
    posted = hanse.Experiment(
        data={"clients": 4}, model="logistic", mechanism="ipfl_posted", run={"rounds": 4},
        clients={"profiles": "roles"}, engine={"threads": 1},
    )  # fmt: skip

    class Stop:
        def on_round(self, metrics: Any, played: Any) -> None:
            if metrics["round"] == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hanse.run(posted, out=folder, observers=[Stop()])
    return folder


def test_a_run_goes_on_with_the_settings_that_it_was_played_with(market: Path) -> None:
    before = contents(market)
    other = "the 2 rounds until now were played with another"
    for key, value, line in (
        ("start", '"own"', f'mechanism.start: "own": {other}; put "centre" back, or play it as a new run: hanse run'),
        ("grant", "50.0", f"clients.grant: 50.0: {other}; put 100.0 back"),
        ("lr", "0.2", f"train.lr: 0.2: {other}; put 0.1 back"),
        ("rounds", "1", "run.rounds: 1: 2 of 4 rounds were played already; put 4 back"),
    ):
        edited(market, **{key: value})
        with pytest.raises(hanse.UserError, match=re.escape(line)) as refused:
            hanse.resume(market)
        assert len(refused.value.lines) == 1
        assert contents(market) == before


@pytest.mark.parametrize("edited", [False, True])
def test_a_setting_that_is_gone_is_named_with_the_release_that_has_it(
    market: Path, tmp_path: Path, edited: bool
) -> None:
    shutil.copytree(market, folder := tmp_path / "run")
    gone = 'name = "ipfl_posted"', 'name = "ipfl_posted"\nby = "x"'
    last = max((folder / "checkpoints").glob("*.safetensors"))
    kept = load(last, CPU)
    store(last, replace(kept, settings=kept.settings.replace(*gone)))
    if not edited:
        (folder / "config.toml").write_text((folder / "config.toml").read_text().replace(*gone))
    file = folder / "environment.json"
    file.write_text(file.read_text().replace(f'"hanse": "{hanse.__version__}"', '"hanse": "9.9.9"'))
    with pytest.raises(hanse.UserError) as refused:
        hanse.resume(folder)
    setting, *release = refused.value.lines
    # without a wing, that may be what lacks
    assert (setting.partition(":")[0], bool(absent() or "hanse 9.9.9" in release[0])) == ("mechanism.by", True)


def test_books_that_were_closed_stay_closed(market: Path) -> None:
    edited(market, rounds="3", checkpoint_every="2", threads="2")
    assert len(hanse.resume(market).metrics) == 3  # where and how long it plays may change until it is settled
    closed = contents(market)
    line = r"^run\.rounds: 5: round 3 of 3 was settled as the last one, which .* put 3 back, .* --set run.rounds=5$"
    with pytest.raises(hanse.UserError, match=line):
        hanse.resume(market, rounds=5)
    edited(market, rounds="5", checkpoint_every="2")
    with pytest.raises(hanse.UserError, match=line):
        hanse.resume(market)
    assert contents(market) == closed


def test_another_version_is_named(tmp_path: Path) -> None:
    hanse.run(experiment(rounds=1), out=tmp_path / "run")
    file, now = tmp_path / "run" / "environment.json", hanse.__version__
    text = file.read_text()
    file.write_text(text.replace(f'"hanse": "{now}"', '"hanse": "9.9.9"'))
    line = f"note: this run began with hanse 9.9.9 (now {now}): its numbers may differ from here on"
    assert line in hanse.resume(tmp_path / "run", rounds=2).said
    for same in (text, "[]", "{", "{}", '{"packages": 3}'):  # nothing else reads this file: damage stops nobody
        file.write_text(same)
        assert not any("began with" in said for said in hanse.resume(tmp_path / "run").said)


def test_progress_is_shown_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    small = experiment(rounds=2)
    hanse.run(small)
    assert capsys.readouterr().err == ""
    hanse.run(small, progress=True)
    assert re.search(r"2/2 [0-9:]+ test accuracy 0\.", capsys.readouterr().err)


def test_lines_of_another_length_than_at_the_checkpoint_are_refused_and_kept(tmp_path: Path) -> None:
    """Cutting them off in the middle of a line would damage them, and the next line would follow on half of one."""
    folder = tmp_path / "run"
    hanse.run(experiment(), out=folder)
    file = folder / "clients.jsonl"
    edited = file.read_text().replace('"samples": ', '"samples":  ', 1)
    file.write_text(edited)
    with pytest.raises(MachineError, match=r"clients\.jsonl: was changed after it was written: no line ends at byte"):
        hanse.resume(folder, rounds=8)
    assert file.read_text() == edited
    file.write_text(edited.replace('"samples":  ', '"samples": '))
    assert len(hanse.resume(folder, rounds=8).metrics) == 8
