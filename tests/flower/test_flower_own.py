"""What stays with a participant on a network, and what the operator may order; one process, Flower's own records."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forging import receipt
from inprocess import KEY, PINNED
from inprocess import play as over
from test_flower_in_process import N, experiment, grid_of, over_flower
from test_letters import After

import hanse
from hanse.base.errors import MachineError, UserError
from hanse.core.part import Mechanism, Settlement, SettlePart, View
from hanse.core.port import Request, Test
from hanse.data import build
from hanse.federation.codec import Message, WireError, pack, unpack
from hanse.federation.node import Assignment, ClientData, Node, PrivateRow
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
    again = play(exp, tmp_path)
    assert [line["round"] for line in again.metrics] == [0, 1, 2, 3]
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
    federation = link.FlowerFederation(grid, register, KEY)
    assert federation.present(2).ids.tolist() == [0, 1, 3, 4]


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
    assert server.run_name(path) == "one"
    with pytest.raises(UserError, match="is the run 'one', and the agreement is about 'other'"):
        server.begin(path, "other")
    path.write_text("{")
    with pytest.raises(MachineError, match=r"federation.json"):
        server.begin(path, "one")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """The node of client 1."""
    exp = experiment("fedavg")
    job = Assignment("run", 1, N, 0, {"name": "mlp", "hidden": [8]}, exp.train.model_dump())
    return Node(ClientData.of(build(exp.data), 1), job, tmp_path)


def test_a_private_row_is_tested_by_its_number_and_alone(node: Node) -> None:
    first = node.problem.layout.flatten(node.problem.module)
    ask = Test("test", first, row=1)
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
