"""Participants' nodes witness the books: cosignatures reach the operator, two books or a rollback raise the alarm."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from deployed import experiment, network, plan
from flwr.supercore.task_identity import TaskIdentity
from inprocess import KEY, play
from rotation import rotating
from test_flower_in_process import N, grid_of
from test_flower_in_process import experiment as federated
from test_letters import After, DiesError, books, dies
from typer.testing import CliRunner

import hanse
from hanse.base.errors import UserError
from hanse.cli import app
from hanse.core.entry import LOG
from hanse.flower.client import WITNESSES
from hanse.flower.witnesses import ShownHeads
from hanse.ledger.log import heads_of
from hanse.ledger.run_ledger import COSIGNED, open_ledger
from hanse.ledger.store import Ledger
from hanse.ledger.witness import Prover, Witness, alarms, majority, read_witnesses
from hanse.runs.run_record import load_run


def witnesses(folder: Path) -> Path:
    """The file with the participants' witness keys, as they would give them to each other."""
    keys = [(folder / f"node{c}" / "witness.pub").read_text().strip() for c in range(N)]
    file = folder / "witnesses.txt"
    file.write_text("".join(f"node{c} {key}\n" for c, key in enumerate(keys)))
    return file


def command(*args: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    return result.exit_code, result.output


def refusals(run: Any) -> list[tuple[int, int, str]]:
    return list(load_run(run.path).refusals())


def refused(run: Any) -> list[tuple[int, int]]:
    """The rounds and clients that were refused with an alarm."""
    return sorted({(round, c) for round, c, reason in load_run(run.path).refusals() if "ALARM" in reason})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run whose nodes wait for nobody."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    folder = tmp_path_factory.mktemp("plain")
    return play(grid_of(books(), folder), books(), folder / "run")


def test_heads_are_cosigned_by_everybody_who_was_asked(plain: Any, tmp_path: Path) -> None:
    shutil.copytree(plain.path.parent, tmp_path, dirs_exist_ok=True)
    run = load_run(tmp_path / "run")
    assert all(alarms(tmp_path / f"node{c}") == [] for c in range(N))
    assert refused(run) == []
    lines = [json.loads(line) for line in (tmp_path / "run" / COSIGNED).read_text().splitlines()]
    assert {line["client"] for line in lines} == set(range(N))
    code, said = command("ledger", "verify", tmp_path / "run", "--witnesses", witnesses(tmp_path), "--json")
    assert (code, json.loads(said)["witnessed"]) == (0, 3)
    (tmp_path / "run" / COSIGNED).write_text("".join(json.dumps(line) + "\n" for line in lines if line["client"] < 2))
    code, said = command("ledger", "verify", tmp_path / "run", "--witnesses", tmp_path / "witnesses.txt")
    assert code == 1
    assert "no head is cosigned by more than half of the 5 witnesses; the most that one has is 2" in said


class Splits:
    """From a round on the operator shows client 1 another book, whose every head it signs."""

    def __init__(self, folder: Path, first: int) -> None:
        self.folder, self.first, self.round = folder, first, 0
        self.honest = ShownHeads.to

    def on_round(self, metrics: Any, played: Any) -> None:
        self.round = metrics["round"] + 1

    def to(self, shown: ShownHeads, client: int) -> dict[str, Any]:
        if client != 1 or self.round < self.first:
            return self.honest(shown, client)
        with open_ledger(self.folder / "run") as true:
            name, history = true.book, [(r.round, r.transaction) for r in true.history()]
        other = Ledger.open(self.folder / f"other{self.round}.jsonl", book=name, key=KEY)
        other.post_rounds(one for one in history if one[1].step != "grant/4" and one[0] == 0 and one[1].kind == "grant")
        for round in range(self.round):
            other.close_round(round)
        prover = Prover(other)
        head = prover.head()
        since = shown._acknowledged.get(client, 0)
        return {"head": head.note(), "since": since, "proof": prover.proof(since)}


@pytest.mark.parametrize("first", rotating([1, 2], 2))
def test_another_book_for_one_participant_is_found_in_the_round_in_which_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, first: int
) -> None:
    """From round 1 on it has never been shown the true book, of which its receipts are."""
    splits = Splits(tmp_path, first)
    monkeypatch.setattr(ShownHeads, "to", lambda shown, client: splits.to(shown, client))
    run = play(grid_of(books(), tmp_path), books(), tmp_path / "run", splits)
    own = tmp_path / "node1"
    assert "ALARM: the book '" in caplog.text
    assert refused(run)[0] == (first, 1)
    assert {c for _, c in refused(run)} == {1}
    [why, *_] = alarms(own)
    assert any(said in why for said in ("was rolled back", "is not shown to begin with", "two heads"))
    [kept] = own.glob("*/client-1/receipts/client-1.jsonl")
    if first == 2:  # it has a receipt of round 0
        code, said = command("receipt", "verify", kept)
        assert (code, "its node has raised the alarm: the book" in said) == (1, True)


def keys_first(folder: Path) -> Path:
    """The file with all witness keys, which the nodes make before they join, as 'hanse network join' does."""
    for c in range(N):
        Witness(folder / f"node{c}")
    return witnesses(folder)


def test_nodes_that_wait_for_a_majority_play_the_same_run(plain: Any, tmp_path: Path) -> None:
    keys = keys_first(tmp_path)
    run = play(grid_of(books(), tmp_path, keys), books(), tmp_path / "run")
    assert run.clients == plain.clients
    assert refusals(run) == refusals(plain) == []
    _, newest, most = majority(tmp_path / "run" / COSIGNED, read_witnesses(keys))
    assert (newest.round if newest else None, most) == (3, N)


def test_a_few_who_are_asked_wait_for_those_who_are_not(tmp_path: Path) -> None:
    """Two of five are asked in a round: the others' cosignatures come without a request."""
    exp = hanse.Experiment(
        data={"clients": N},
        model="logistic",
        mechanism={"name": "fedavg", "clients_per_round": 2, "value": "path", "settle": "by_value"},
        run={"rounds": 3},
    )
    keys = keys_first(tmp_path)
    run = play(grid_of(exp, tmp_path, keys), exp, tmp_path / "run")
    assert refusals(run) == []
    assert [line["answered"] for line in run.metrics] == [2, 2, 2]


def test_a_book_for_one_and_another_for_the_rest_stops_the_one_alone(tmp_path: Path) -> None:
    """Two operators' books from the first head on: no node has seen the other book, and the lonely one waits."""
    keys = keys_first(tmp_path)
    splits = Splits(tmp_path, 1)
    with pytest.MonkeyPatch.context() as operator:
        operator.setattr(ShownHeads, "to", lambda shown, client: splits.to(shown, client))
        run = play(grid_of(books(), tmp_path, keys), books(), tmp_path / "run", splits)
    reasons = refusals(run)
    assert {c for _, c, _ in reasons} == {1}
    assert (1, 1) in {(round, c) for round, c, _ in reasons}
    assert "waits: only 1 of its witnesses have cosigned the head of the books" in {said for _, _, said in reasons}


def test_without_a_majority_online_nobody_goes_on(tmp_path: Path) -> None:
    """The keys of six more witnesses are in the file, who are not there: five of eleven are too few."""
    keys = keys_first(tmp_path)
    more = [(f"away{i}", Witness(tmp_path / f"away{i}").public.hex()) for i in range(6)]
    keys.write_text(keys.read_text() + "".join(f"{name} {key}\n" for name, key in more))
    run = play(grid_of(books(), tmp_path, keys), books(), tmp_path / "run")
    assert [line["answered"] for line in run.metrics][1:] == [0, 0]
    assert {said for round, _, said in refusals(run) if round > 0} == {
        "waits: only 5 of its witnesses have cosigned the head of the books"
    }


def test_a_request_without_a_head_is_refused_by_who_waits_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_first(tmp_path)
    monkeypatch.setattr(ShownHeads, "to", lambda shown, client: {})
    exp = federated("pifl", rounds=5)
    run = play(grid_of(exp, tmp_path, keys), exp, tmp_path / "run")
    said = {round: said for round, _, said in refusals(run)}
    assert set(said) == {3, 4}  # a head closes round r - 3 at least
    assert "shows no head of the books" in said[3]


def test_join_shows_the_witness_key_and_refuses_a_file_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hanse.wings.operate.network import _witness

    monkeypatch.setenv(WITNESSES, "")
    _witness(tmp_path / "home", None)
    key = (tmp_path / "home" / "witness.pub").read_text().strip()
    assert key in capsys.readouterr().out
    file = tmp_path / "witnesses.txt"
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    file.write_text(f"other {other}\n")
    with pytest.raises(UserError, match="own key"):
        _witness(tmp_path / "home", file)
    file.write_text(f"mine {key}\nother {other}\n")
    _witness(tmp_path / "home", file)
    assert "2 witnesses" in capsys.readouterr().out
    assert os.environ[WITNESSES] == str(file)


def test_a_book_that_is_rolled_back_is_found_by_everybody(tmp_path: Path) -> None:
    """The operator plays again from a copy that it made after the first round."""
    exp = books()

    def copies() -> None:
        shutil.copytree(tmp_path / "run", tmp_path / "copy")

    play(grid_of(exp, tmp_path), exp, tmp_path / "run", After(0, copies))
    for file in (LOG, heads_of(Path(LOG)).name):
        assert (tmp_path / "copy" / file).stat().st_size < (tmp_path / "run" / file).stat().st_size
    shutil.rmtree(tmp_path / "run")
    shutil.move(tmp_path / "copy", tmp_path / "run")
    (tmp_path / "run" / "lock").unlink(missing_ok=True)
    run = play(grid_of(exp, tmp_path), exp, tmp_path / "run")
    assert {c for _, c in refused(run)} == set(range(N))
    assert all("was rolled back" in alarms(tmp_path / f"node{c}")[0] for c in range(N))


def test_a_server_that_starts_again_asks_twice_and_nobody_raises_the_alarm(tmp_path: Path) -> None:
    exp = books()
    with pytest.raises(DiesError):
        play(grid_of(exp, tmp_path), exp, tmp_path / "run", After(1, dies))
    run = play(grid_of(exp, tmp_path), exp, tmp_path / "run")
    assert refused(run) == []
    assert all(alarms(tmp_path / f"node{c}") == [] for c in range(N))
    assert [line["refused"] for line in run.metrics] == [0, 0, 0]


@pytest.mark.soak
@pytest.mark.parametrize("away", [0, 4])
def test_nodes_in_processes_of_their_own_wait_for_a_majority(
    away: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three nodes over TLS, and the keys of some more witnesses who are not there: three of seven are too few."""
    net = network(tmp_path / "net", 3)
    homes = [tmp_path / "net" / "participants" / f"node{i}" for i in range(3)]
    homes += [tmp_path / f"away{i}" for i in range(away)]
    keys = tmp_path / "witnesses.txt"
    keys.write_text("".join(f"{home.name} {Witness(home).public.hex()}\n" for home in homes))
    mechanism = {"clients_per_round": 3, "value": "path", "settle": "by_value"}
    steps = {"run": experiment("fedavg", 3, 3, mechanism=mechanism, data={"clients": 3, "client_test": 0.2})}
    try:
        monkeypatch.setenv(WITNESSES, str(keys))
        net.up()
        net.play({"plan": str(plan(tmp_path, steps))})
    finally:
        net.down()
    record = load_run(tmp_path / "run")
    _, newest, most = majority(tmp_path / "run" / COSIGNED, read_witnesses(keys))
    assert most == 3
    assert (newest is not None) == (away == 0)
    assert [line["answered"] for line in record.metrics] == ([3, 3, 3] if away == 0 else [3, 0, 0])
    assert {said for round, _, said in record.refusals() if round > 0} == (
        {"waits: only 3 of its witnesses have cosigned the head of the books"} if away else set()
    )
