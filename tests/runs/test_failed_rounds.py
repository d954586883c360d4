"""What a part may not do: make the table infinite, write into what it is shown, or, on a network, end the run."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from commands import invoke
from paying import Fees
from watching import Killed, Watch, untimed

import hanse
from hanse.base.errors import InPlaceError, PartError, PartWarning, RunFailedError, UserError
from hanse.base.lock import Hold
from hanse.core.part import GROUPS, Aggregate, Context, Group, Mechanism, View, Weighed, WeighPart
from hanse.core.port import Call
from hanse.core.table import Add, Replace
from hanse.data import build as build_data
from hanse.federation.wrapped import Wrapped
from hanse.learning.models import build_problem
from hanse.mechanisms.baselines import fedavg, local
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.ipfl import IPFL
from hanse.mechanisms.weigh import BySamples, sample_shares
from hanse.runs.experiment import run_remote
from hanse.runs.rehearsal import small_experiment
from hanse.runs.round import first_state, play_round
from hanse.runs.setup import Session, build
from tests.runs.test_rounds import P, Scripted, edit
from tests.runs.test_rounds import setup_of as scripted

N = 4
PROBLEM, INITIAL = build_problem("logistic", (2,), 3, 0)


def setup_of(mechanism: Mechanism, script: Any = lambda reply: [reply]) -> Session:
    return scripted(mechanism, Scripted(script, tuple(range(N))), N)


def market(part: IPFL) -> Mechanism:
    return Mechanism("market", part, part, part, settle=part, deploy=ServerModel())


# ---- after MIX the table is finite


BAD = np.array([0.0, 1e38, 1e39, 0.0])  # weights so large that a row is infinite


@dataclass(frozen=True)
class Blown(BySamples):
    """The first row is infinite."""

    def aggregate(self, group: Group, state: Any) -> Aggregate:
        return Aggregate(BAD)


@dataclass(frozen=True)
class Grown(WeighPart):
    """Weights by samples, and a row more, which is infinite, as everybody's home."""

    fills: ClassVar[frozenset[str]] = frozenset({GROUPS})

    def weigh(self, view: View, state: Any) -> tuple[Weighed, Any]:
        kept = Replace(np.array([0]), sample_shares(view.trained.num_samples)[None])
        return Weighed((kept,), (Add("server", BAD, np.zeros(1)),), view.home + 1), state


@pytest.mark.parametrize("weigh", [Blown(), Grown()])
def test_a_row_that_would_be_infinite_stays_and_who_made_it_is_named(weigh: Any) -> None:
    setup = setup_of(replace(fedavg(clients_per_round=N), weigh=weigh))
    state = first_state(setup)
    played = play_round(setup, state)
    assert torch.equal(played.state.table.rows, state.table.rows)
    assert played.state.home.tolist() == state.home.tolist()
    row = int(isinstance(weigh, Grown))
    reason = f"the mechanism itself made row {row} of the table infinite or NaN: the old one stays"
    assert played.view.refusals == ((1, reason), (2, reason))


@dataclass(frozen=True)
class Ratio(BySamples):
    """The row is a ratio that the rule itself makes; ``zero`` makes it 0 / 0."""

    zero: float = 1.0

    def aggregate(self, group: Group, state: Any) -> Aggregate:
        scaled = group.updates * self.zero
        return Aggregate(row=scaled.pow(4).mean(dim=0) / scaled.mean(dim=0))


def test_who_made_a_row_infinite_is_told_right() -> None:
    """Of sound updates it is the rule, which a warning names too; of an outsized one it is its own client alone."""
    setup = setup_of(replace(fedavg(clients_per_round=N), weigh=Ratio(zero=0.0)))
    with pytest.warns(PartWarning, match="weigh part Ratio: of sound updates it made row 0"):
        refusals = play_round(setup, first_state(setup)).view.refusals
    reason = "the mechanism itself made row 0 of the table infinite or NaN: the old one stays"
    assert refusals == tuple((client, reason) for client in range(N))
    setup = setup_of(replace(fedavg(clients_per_round=N), weigh=Ratio()), edit(2, row=torch.full((P,), 3e15)))
    state = first_state(setup)
    played = play_round(setup, state)
    assert torch.equal(played.state.table.rows, state.table.rows)
    said = dict(played.view.refusals)
    assert {client for client, why in said.items() if why.startswith("its update")} == {2}
    assert {client for client, why in said.items() if why.startswith("another client's")} == {0, 1, 3}


def test_the_other_rows_are_mixed_as_they_would_be_and_large_sums_are_no_infinities() -> None:
    @dataclass(frozen=True)
    class One(WeighPart):
        fills: ClassVar[frozenset[str]] = frozenset({"own"})

        def weigh(self, view: View, state: Any) -> tuple[Weighed, Any]:
            U = np.zeros((2, N))
            U[0, 2], U[0, 3] = 1e39, 1.0  # infinite
            U[1, 1], U[1, 0] = 1.6e38, 1e-3  # finite, although the sum of its numbers is not
            return Weighed((Replace(np.array([2, 1]), U),)), state

    setup = setup_of(replace(local(), weigh=One()))
    state = first_state(setup)
    played = play_round(setup, state)
    assert [c for c, _ in played.view.refusals] == [2, 3]
    assert torch.equal(played.state.table.rows[2], state.table.rows[2])
    assert bool((played.state.table.rows[1] > 3e38).all())
    assert played.state.table.rows[[0, 3], 0].tolist() == [1.0, 4.0]


def test_nobody_pays_for_a_centre_that_stays_as_it_was() -> None:
    @dataclass(frozen=True)
    class Market(IPFL):
        def weigh(self, view: View, state: Any) -> tuple[Weighed, Any]:
            found, after = super().weigh(view, state)
            [centres] = [one for one in found.replaced if N + 1 in one.rows]
            centres.updates[1] *= 1e45  # client 1's
            centres.models[1] *= 1e45
            return found, after

    setup = build(small_experiment({"name": "ipfl", "eagerness": 1e5, "cost": 0.1}, data={"partition": {"alpha": 1.0}}))
    sound = play_round(setup, first_state(setup))
    assert sound.view.settlement.arrays["market_paid"].all()
    assert sound.view.settlement.arrays["market_units"][1].sum() > 0  # it would have paid
    mechanism = market(Market(eagerness=1e5, cost=0.1))
    setup = replace(setup, mechanism=mechanism, context=replace(setup.context, slots=mechanism.slots()))
    state = first_state(setup)
    played = play_round(setup, state)
    assert played.view.settlement.arrays["market_paid"].tolist() == [True, False, True, True]
    assert played.view.settlement.withheld == {N + 1}
    assert not any(t.step == "market/1" for t in played.view.posted)
    assert torch.equal(played.state.table.rows[N + 1], state.table.rows[N + 1])
    assert not played.state.states["select"]["pulled"][1]
    assert any("infinite or NaN" in reason for _, reason in played.view.refusals)


# ---- parts look, and do not touch


@dataclass(frozen=True)
class Scribbler(BySamples):
    write: Callable[[View, Any], Any]

    def init(self, context: Context) -> Any:
        return {"kept": torch.zeros(2)}

    def aggregate(self, group: Group, state: Any) -> Aggregate:
        self.write(group.view, state)
        return super().aggregate(group, state)


def writes_and_raises(view: View, state: Any) -> None:
    state["kept"].add_(1.0)
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (lambda view, state: view.trained.rows[0].zero_(), "view.trained.rows"),
        (lambda view, state: view.trained.rows[0][:2].mul_(2), "view.trained.rows"),
        (lambda view, state: view.table.rows.add_(1.0), "view.table.rows"),
        (lambda view, state: np.put(view.trained.num_samples, 0, 1e6), "view.trained.num_samples"),
        (lambda view, state: np.put(view.trained.seats.client, 0, 3), "view.trained.seats.client"),
        (lambda view, state: state["kept"].add_(1.0), "its state 'kept'"),
        (writes_and_raises, "its state 'kept'"),
    ],
)
def test_a_part_that_writes_into_what_it_is_shown_is_refused_by_name(write: Any, named: str) -> None:
    setup = setup_of(replace(fedavg(clients_per_round=N), weigh=Scribbler(write)))
    with pytest.raises(PartError) as refused:
        play_round(setup, first_state(setup))
    assert str(refused.value) == f"the weigh part Scribbler, round 0, wrote into {named} in place: change a copy"


# ---- a part that raises


@dataclass(frozen=True)
class Fails(Fees):
    """Fees that fail in some rounds, after bids went into escrow."""

    rounds: tuple[int, ...] = ()
    dirty: bool = False  # it writes into the table before it fails
    gives: ClassVar[frozenset[str]] = frozenset()

    def settle(self, view: View, state: Any) -> Any:
        if view.stage == "close" and -1 in self.rounds:
            raise UserError("no such fee")
        if view.stage == "close" and view.round in self.rounds:
            if self.dirty:
                view.table.rows.add_(1.0)
            raise ZeroDivisionError(f"no fee in round {view.round}")
        return super().settle(view, state)


def failing(rounds: Sequence[int] = (), dirty: bool = False) -> Mechanism:
    return replace(fedavg(clients_per_round=2), name="failing", settle=Fails(rounds=tuple(rounds), dirty=dirty))


def experiment(rounds: Sequence[int], of: int = 4, dirty: bool = False, **run: Any) -> hanse.Experiment:
    failing = {"name": "test_failed_rounds:failing", "rounds": list(rounds), "dirty": dirty}
    return small_experiment(failing, clients={"grant": 50.0}, run={"rounds": of, "seed": 3, **run})


@dataclass(frozen=True)
class Network(Wrapped):
    """The clients of a run in this process, as if they were elsewhere; ``lost`` in some rounds."""

    lost: tuple[int, ...] = ()
    asked: list[int] = field(default_factory=list)

    def exchange(self, call: Call) -> Any:
        self.asked.append(call.round)
        if call.round in self.lost:
            raise ConnectionError("the network is down")
        return [replace(r, bytes_down=8, bytes_up=4) for r in self.inner.exchange(call)]


def play(given: hanse.Experiment, out: Path, lost: tuple[int, ...] = (), observers: Sequence[Any] = ()) -> hanse.Run:
    inner = build(given).federation
    with Hold(out) as hold:
        return run_remote(given, build_data(given.data), Network(inner, lost), hold=hold, observers=observers)


def test_a_round_whose_part_wrote_into_the_table_before_it_failed_cannot_be_undone(tmp_path: Path) -> None:
    with pytest.raises(InPlaceError):
        play(experiment([2], dirty=True), tmp_path / "run")
    assert [line["round"] for line in untimed(tmp_path / "run" / "metrics.jsonl")] == [0, 1]


def test_on_a_network_a_failed_round_is_undone_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch()
    with caplog.at_level(logging.ERROR):
        run = play(experiment([1]), tmp_path / "run", observers=[watch])
    played = watch.rounds
    before, after = played[0].state, played[1].state
    assert after.round == before.round + 1
    assert after.table is before.table
    assert after.states is before.states
    assert after.book.balances == before.book.balances  # escrow, too
    assert after.home is before.home
    assert [t.kind for t in played[1].view.posted] == ["close"]
    line = run.metrics[1]
    assert line["failed"] == "ZeroDivisionError: no fee in round 1"
    assert (line["round"], line["present"], line["seats"], line["answered"], line["refused"]) == (1, 4, 2, 0, 2)
    assert (line["bytes/down"], line["bytes/up"]) == (16, 8)
    assert "failed" not in run.metrics[2]
    seats = [seat for seat in untimed(tmp_path / "run" / "clients.jsonl") if seat["round"] == 1]
    assert len(seats) == 2
    assert {seat["refused"] for seat in seats} == {"the round failed: ZeroDivisionError: no fee in round 1"}
    [record] = caplog.records
    assert record.getMessage() == "round 1 failed and is undone"
    assert record.exc_info is not None
    assert not any("failed" in line for line in play(experiment([]), tmp_path / "sound").metrics)
    assert {name for name in run.book.balances if name.startswith("escrow") and run.book.balances[name]} == set()
    told = invoke("ledger", "verify", tmp_path / "run")
    assert told.exit_code == 0, told.output


def test_grants_of_a_failed_first_round_come_with_the_next(tmp_path: Path) -> None:
    run = play(experiment([0]), tmp_path / "run")
    assert run.book.balances["mint"] == -N * 50_000_000
    assert [line.get("ledger/head") is None for line in run.metrics] == [True, False, False, False]


@pytest.mark.slow
def test_killed_and_resumed_a_run_with_failed_rounds_is_the_same(tmp_path: Path) -> None:
    given = experiment([1, 2], of=5, checkpoint_every=2)
    whole = play(given, tmp_path / "whole")
    cut = tmp_path / "cut"
    with pytest.raises(Killed):
        play(given, cut, observers=[Watch(2, Killed)])
    again = play(given, cut)
    assert untimed(again.metrics) == untimed(whole.metrics)
    assert again.book == whole.book
    assert torch.equal(again.table.rows, whole.table.rows)
    assert untimed(cut / "clients.jsonl") == untimed(tmp_path / "whole" / "clients.jsonl")


def test_the_third_failure_in_a_row_ends_the_run_and_it_can_go_on(tmp_path: Path) -> None:
    given = experiment([1, 3, 4, 5], of=7, checkpoint_every=10)
    with pytest.raises(RunFailedError) as ended:
        play(given, tmp_path / "run")
    assert str(ended.value) == "3 rounds in a row failed; the last, round 5, by ZeroDivisionError: no fee in round 5"
    assert [line["round"] for line in untimed(tmp_path / "run" / "metrics.jsonl") if "failed" in line] == [1, 3, 4, 5]
    assert [line["round"] for line in play(given, tmp_path / "run").metrics] == list(range(7))
    assert invoke("ledger", "verify", tmp_path / "run").exit_code == 0


def test_a_lost_network_and_a_users_mistake_are_no_failed_rounds(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="the network is down"):
        play(experiment([]), tmp_path / "lost", lost=(2,))  # when clients test after round 1
    assert [line["round"] for line in untimed(tmp_path / "lost" / "metrics.jsonl")] == [0]
    with pytest.raises(UserError, match="no such fee"):
        play(experiment([-1]), tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()
