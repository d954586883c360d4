"""What stays with a participant on a network, and what the operator may order; one process, Flower's own records."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message as FlowerMessage
from forging import receipt
from inprocess import KEY, PINNED, InProcessGrid, apps_of
from inprocess import play as over
from rotation import rotating
from test_flower_in_process import N, experiment, grid_of, over_flower
from test_letters import After

import hanse
from hanse.base.errors import UserError
from hanse.base.lock import Hold
from hanse.base.streams import stream
from hanse.core.part import Mechanism, Settlement, SettlePart, View
from hanse.core.port import Reply, Request, Test, Train, Trained
from hanse.core.recipe import Recipe
from hanse.data import build
from hanse.federation.behaviour import Me, Noisy
from hanse.federation.codec import Message, WireError, pack, unpack
from hanse.federation.node import SECRET, Assignment, ClientData, Node, PrivateRow, own_secret
from hanse.flower import link, server
from hanse.flower.members import Orders, give
from hanse.mechanisms.registry import build_mechanism


def own(folder: Path, client: int, name: str) -> Any:
    [found] = (folder / f"node{client}").glob(f"*/client-{client}/{name}")
    return np.load(found) if name.endswith(".npz") else found


def test_personal_mixes_are_made_at_the_participants(tmp_path: Path) -> None:
    exp = experiment("pifl")
    local, flower = hanse.run(exp), over_flower(exp, tmp_path)
    for a, b in zip(local.metrics, flower.metrics, strict=True):
        for name in ("client/test_loss", "client/test_accuracy", "client/test_accuracy_min"):
            assert b[name] == pytest.approx(a[name], rel=1e-6)
    assert flower.personal is None  # the server does not know the weights
    for c in range(N):
        with own(tmp_path, c, "personal.npz") as kept:
            np.testing.assert_allclose(kept["weights"], local.personal[c, :2], atol=1e-12)
            np.testing.assert_allclose(kept["row"], kept["weights"] @ flower.table.rows[:2].numpy(), atol=1e-6)


def private(folder: Path) -> list[PrivateRow]:
    return [PrivateRow.read(next((folder / f"node{c}").glob(f"*/client-{c}/row-{c}.npz"))) for c in range(N)]


def everyone(name: str = "ditto", **more: Any) -> hanse.Experiment:
    sections = experiment("ditto").model_dump() | more
    return hanse.Experiment(**{**sections, "mechanism": {"name": name, "clients_per_round": N}})


def test_private_rows_go_back_with_a_server_that_lost_a_round(tmp_path: Path) -> None:
    exp = everyone(run={"rounds": 4, "checkpoint_every": 2})
    alone = hanse.run(exp)
    with pytest.raises(ZeroDivisionError):
        play(exp, tmp_path, After(2, lambda: 1 / 0))
    assert [own.round for own in private(tmp_path)] == [2] * N  # the test said so, and no checkpoint has it
    assert [line["round"] for line in play(exp, tmp_path).metrics] == [0, 1, 2, 3]
    for c, own in enumerate(private(tmp_path)):
        assert (own.round, own.pending) == (3, None)
        assert torch.equal(own.row, alone.table.rows[c])


def test_the_last_update_is_told_also_where_nobody_tests(tmp_path: Path) -> None:
    exp = everyone(eval={"clients": 0})
    alone = hanse.run(exp)
    play(exp, tmp_path)
    assert all(torch.equal(own.row, alone.table.rows[c]) for c, own in enumerate(private(tmp_path)))


@dataclass(frozen=True)
class Breaks(SettlePart):
    """Raises in round 1, and withholds the row of client 1 in round 3."""

    def settle(self, view: View, state: Any) -> tuple[Settlement, Any]:
        if view.round == 1 and view.stage == "close":
            raise ZeroDivisionError("no settlement")
        return Settlement(frozenset({1} if view.round == 3 and view.stage == "close" else ())), state


def breaking(clients_per_round: int) -> Mechanism:
    return replace(build_mechanism({"name": "ditto", "clients_per_round": clients_per_round}), settle=Breaks())


def test_a_failed_round_leaves_private_rows_as_they_were_and_a_withheld_one_stays(tmp_path: Path) -> None:
    seen: list[list[PrivateRow]] = []
    look = [After(number, lambda: seen.append(private(tmp_path))) for number in range(4)]
    run = play(everyone("test_flower_own:breaking", run={"rounds": 4}), tmp_path, *look)
    assert ["failed" in line for line in run.metrics] == [False, True, False, False]
    for client, (first, failed, next_one, last) in enumerate(zip(*seen, strict=True)):
        assert (first.round, failed.round, failed.pending_round, next_one.round) == (0, 0, 1, 2)
        assert torch.equal(failed.row, first.row)
        assert torch.equal(next_one.before, first.row)
        assert last.round == (2 if client == 1 else 3)


def test_the_best_model_lies_in_the_participants_folder(tmp_path: Path) -> None:
    sections = experiment("ipfl").model_dump()
    exp = hanse.Experiment(**{**sections, "mechanism": {"name": "ipfl", "eagerness": 5e4, "keep_best": True}})
    local, flower = hanse.run(exp), over_flower(exp, tmp_path)
    assert torch.equal(local.table.rows, flower.table.rows)
    for c in range(N):
        with own(tmp_path, c, "best.npz") as kept:
            assert torch.equal(torch.from_numpy(kept["row"]), local.table.rows[2 * N + c])


def play(exp: hanse.Experiment, folder: Path, *observers: Any) -> hanse.Run:
    return over(grid_of(exp, folder), exp, folder / "run", *observers)


def test_an_expelled_participant_is_kept_out_with_the_reason_and_keeps_its_account(tmp_path: Path) -> None:
    exp = experiment("pifl", rounds=2)
    run = play(exp, tmp_path, After(0, lambda: give(tmp_path / "run", "expel", "sends noise", 2)))
    assert [m["present"] for m in run.metrics] == [5, 4]
    assert "client/2" in run.book.balances
    assert Orders.read(tmp_path / "run").expelled == {2: "sends noise"}
    members = server.Members.read(tmp_path / "run" / "members.json").by_key.values()
    assert [m.expelled for m in members] == [None, None, "sends noise", None, None]
    grid = grid_of(exp, tmp_path)
    register = server.Members.read(tmp_path / "run" / "members.json")  # a restarted server remembers
    assert link.FlowerFederation(grid, register, KEY).present(2).ids.tolist() == [0, 1, 3, 4]


def test_a_paused_server_waits_until_it_may_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, waited = tmp_path / "run", []

    def sleep(seconds: float) -> None:
        waited.append(Orders.read(run).paused)
        if len(waited) == 3:
            give(run, "go-on", "repaired")

    monkeypatch.setattr(link.time, "sleep", sleep)
    played = play(experiment("fedavg"), tmp_path, After(0, lambda: give(run, "pause", "a disk is full")))
    assert waited == ["a disk is full"] * 3
    assert [line for line in caplog.messages if "a disk is full" in line and "go-on" in line] == caplog.messages[:1]
    assert len(played.metrics) == 3
    lines = (run / "operator.jsonl").read_text().splitlines()
    assert ['"pause"' in lines[0], '"go-on"' in lines[1], len(lines)] == [True, True, 2]


def test_orders_need_a_run_a_reason_and_a_member(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run on a network"):
        give(tmp_path, "pause", "why")
    play(experiment("fedavg", rounds=1), tmp_path)
    with pytest.raises(UserError, match="--reason"):
        give(tmp_path / "run", "pause", "  ")
    with pytest.raises(UserError, match="--client"):
        give(tmp_path / "run", "expel", "why", 9)


def test_a_run_keeps_its_name_for_its_members_folders(tmp_path: Path) -> None:
    path = tmp_path / "federation.json"
    server.begin(path, "one")
    server.begin(path, "one")
    with pytest.raises(UserError, match="is the run 'one', and the agreement is about 'other'"):
        server.begin(path, "other")
    path.write_text("{")
    with pytest.raises(UserError, match=r"federation.json"):
        server.begin(path, "one")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """The node of client 1."""
    exp = experiment("fedavg")
    job = Assignment("run", 1, N, 0, {"name": "mlp", "hidden": [8]}, exp.train.model_dump())
    return Node(ClientData.of(build(exp.data), 1), job, tmp_path)


def test_a_private_row_is_tested_by_its_number_and_alone(node: Node) -> None:
    ask = Test("test", node.problem.layout.flatten(node.problem.module), row=1)
    for row in ("../1", -1):
        with pytest.raises(WireError):
            node.answer(0, pack(Request(1, (replace(ask, row=row),))))  # type: ignore[arg-type]
    both = unpack(node.answer(0, pack(Request(1, (ask, replace(ask, name="other"))))))
    assert both.refused == "a test is asked for alone"
    [result] = unpack(node.answer(0, pack(Request(1, (ask,))))).results
    assert result.num_samples == len(node.federation.data.pool([1], "test")[1][0])
    assert result.weights is None


def test_a_receipt_of_another_client_or_none_is_refused(node: Node, tmp_path: Path) -> None:
    told = receipt(key=KEY)
    for lines in ("{", '{"shell": 1}', replace(told, statement="{}").as_json()):
        with pytest.raises(WireError, match="not receipts"):
            node.keep_receipts(lines, PINNED)
    for lines, said in (
        (receipt(client=2, key=KEY).as_json(), "of another client"),
        (receipt().as_json(), "not kept: that of round 3 its head is not signed by the operator's key"),
        (replace(told, record=told.record.replace("A", "B")).as_json(), "not kept: that of round 3 its proof does not"),
    ):
        with pytest.raises(WireError, match=said):
            node.keep_receipts(lines, PINNED)
    assert not list(tmp_path.rglob("receipts/*"))  # not even an empty file
    with pytest.raises(WireError, match="not a request"):
        node.answer(0, Message("null"))


# ---- what other users of its machine cannot read


@pytest.fixture
def open_to_all() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


FILES = {"ditto": {"row-1.npz"}, "pifl": {"personal.npz", "client-1.jsonl"}, "ipfl": {"best.npz", "client-1.jsonl"}}


@pytest.mark.usefixtures("open_to_all")
@pytest.mark.parametrize("name", rotating([*FILES], 3))
def test_what_participants_keep_is_theirs_alone(name: str, tmp_path: Path) -> None:
    exp = experiment(name, rounds=2)
    if name == "ipfl":
        exp = hanse.Experiment(**{**exp.model_dump(), "mechanism": {"name": "ipfl", "keep_best": True}})
    over_flower(exp, tmp_path)
    homes = [tmp_path / f"node{i}" for i in range(N)]
    kept = [*homes, *(path for home in homes for path in home.rglob("*"))]
    assert {path.name for path in kept} >= {"secret.key", "models.npz", *FILES[name]}
    for path in kept:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_run_of_another_name_cannot_tell_another_story_of_the_same_book(tmp_path: Path) -> None:
    exp = experiment("fedavg")
    data = ClientData.of(build(exp.data), 1)
    job = Assignment("run", 1, N, 0, {"name": "mlp", "hidden": [4]}, exp.train.model_dump())
    Node(data, job, tmp_path).keep_receipts(receipt(count=9, key=KEY).as_json(), PINNED)
    other = Node(data, replace(job, run="again"), tmp_path)
    with pytest.raises(WireError, match="8 transactions"):
        other.keep_receipts(receipt(count=8, key=KEY).as_json(), PINNED)
    other.keep_receipts(receipt("c", count=8, key=KEY).as_json(), PINNED)


# ---- its noise, by a secret of its own

P = 20_000
NOISY = Noisy(sigma=0.5, levels="same")


def noise(secret: bytes, row: torch.Tensor, round: int = 3, start: int = 0) -> torch.Tensor:
    """What a client with this secret adds to an update."""
    me = Me(1, N, 7, Recipe(), P, secret)
    request = Request(1, (Train(0, start, torch.zeros(P)),))
    [sent] = NOISY.on_reply(me, round, request, Reply(1, (Trained(0, row, 10.0, 0.5, 5),))).results
    return sent.row - row


def known(round: int = 3) -> torch.Tensor:
    """What a server that knows the run's seed would subtract."""
    draw = stream(7, "noise", round=round, client=1, start=0)
    return torch.from_numpy(draw.standard_normal(P, dtype="float32")) * 0.5


def test_noise_by_a_secret_is_of_the_update_and_nothing_that_the_server_knows() -> None:
    row = torch.zeros(P)
    assert torch.equal(noise(b"", row), known())  # a simulated client can be repeated
    hidden, others = noise(b"a" * 32, row), noise(b"b" * 32, row)
    assert float(hidden.std()) == pytest.approx(0.5, rel=0.03)
    assert torch.equal(noise(b"a" * 32, row), hidden)  # asked for again: nothing to average out
    moved = row.clone()
    moved[0] += 1e-6
    more = [noise(b"a" * 32, moved), noise(b"a" * 32, row, round=4), noise(b"a" * 32, row, start=1)]
    for other in (known(), others, *more):  # nothing cancels in a difference
        assert abs(np.corrcoef(hidden, other)[0, 1]) < 0.03


def test_the_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    made = own_secret(tmp_path / "mine")
    path = tmp_path / "mine" / SECRET
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(made) == 32
    assert own_secret(tmp_path / "mine") == made
    assert own_secret(tmp_path / "other") != made
    assert [p.name for p in (tmp_path / "mine").iterdir()] == [SECRET]
    path.chmod(0o644)
    with pytest.raises(UserError, match="others may"):
        own_secret(tmp_path / "mine")
    path.chmod(0o600)
    path.write_text("not a secret\n")
    with pytest.raises(UserError, match="64 hexadecimal"):
        own_secret(tmp_path / "mine")


def test_noise_on_a_network_is_the_participants_own_and_survives_restarts(tmp_path: Path) -> None:
    exp = experiment("fedavg", rounds=2)
    said = list[str]()

    def listen(node: int, message: FlowerMessage, reply: FlowerMessage) -> FlowerMessage:
        said.append(str(message.content["hanse"]) + str(reply.content["hanse"]))
        return reply

    def played(folder: Path) -> hanse.Run:
        grid = InProcessGrid(apps_of(exp, tmp_path / "own", lambda i: {"behaviours": [NOISY]}), listen)
        return over_flower(exp, folder, grid)

    first = played(tmp_path / "first")
    again = played(tmp_path / "again")  # other apps, the same participants
    assert torch.equal(first.table.rows, again.table.rows)
    simulated = hanse.run(experiment("fedavg", rounds=2, behaviour={"noisy": {"sigma": 0.5, "levels": "same"}}))
    assert not torch.allclose(first.table.rows, simulated.table.rows, atol=1e-2)
    for i in range(N):
        kept = (tmp_path / "own" / f"node{i}" / SECRET).read_text().strip()
        assert not any(kept in text for text in said)
        (tmp_path / "own" / f"node{i}" / SECRET).unlink()
    assert not torch.equal(played(tmp_path / "third").table.rows, first.table.rows)


def test_half_precision_halves_the_bytes_and_hardly_changes_the_model(tmp_path: Path) -> None:
    whole = over_flower(experiment("fedavg", eval={"every": 3}), tmp_path / "whole")
    half = over_flower(experiment("fedavg", eval={"every": 3}, federation={"half_precision": True}), tmp_path / "half")
    model = whole.table.rows.shape[1] * 4
    for a, b in zip(whole.metrics, half.metrics, strict=True):
        assert a["bytes/up"] - b["bytes/up"] == pytest.approx(3 * model / 2, abs=30)  # headers differ by some digits
    assert half.metrics[0]["bytes/down"] < whole.metrics[0]["bytes/down"]
    assert not torch.equal(whole.table.rows, half.table.rows)
    torch.testing.assert_close(whole.table.rows, half.table.rows, atol=2e-3, rtol=0)


def test_two_servers_do_not_play_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REPLACED_S", 0.1)
    exp = experiment("fedavg")
    (tmp_path / "run").mkdir()
    with Hold(tmp_path / "run") as other:
        other.take()
        with pytest.raises(UserError, match=f"is in use by process {os.getpid()}"):
            over(grid_of(exp, tmp_path / "nodes"), exp, tmp_path / "run", members=1, data=None)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["lock"]
