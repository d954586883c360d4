"""Rounds that do not wait for all: when they end, what becomes of late updates, and what a killed run finds again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mistaken import mistakes
from watching import Killed, Watch, untimed

import hanse
from hanse.core.part import Context, View
from hanse.core.port import Arrival, ClientInfo, Reply, Request, Roster, Train, Trained
from hanse.core.table import Seats, Table
from hanse.federation.behaviour import Me, Speed
from hanse.mechanisms.weigh import ByStaleness
from hanse.runs.arrivals import Flight, Training, Underway, Waiting
from hanse.runs.checkpoint import load
from hanse.runs.observers import mostly_refused
from hanse.runs.rehearsal import small_experiment
from hanse.runs.run_record import STILL

BUFFERED = {"enough": 2, "late": "next"}
P = 4


def experiment(seconds: list[float], federation: dict[str, Any], rounds: int = 5, **more: Any) -> hanse.Experiment:
    given = {"mechanism": {"name": "fedavg", "clients_per_round": len(seconds), "weigh": "by_staleness"}, **more}
    data = {"clients": len(seconds), **given.pop("data", {})}
    speed, run = {"speed": {"seconds": seconds}}, {"rounds": rounds}
    return small_experiment(data=data, behaviour=speed, federation=federation, run=run, **given)


def said(run: hanse.Run, client: int, name: str) -> dict[int, Any]:
    """Return one client's figure in ``clients.jsonl`` by round."""
    return {line["round"]: line.get(name) for line in run.clients if line["client"] == client}


def test_an_update_of_staleness_3_is_mixed_with_its_exact_weight() -> None:
    watch = Watch()
    run = hanse.run(experiment([1, 1, 3.5], BUFFERED), observers=[watch])
    assert [m["clock_s"] for m in run.metrics] == [1, 2, 3, 4, 5]
    assert [m["late/mixed"] for m in run.metrics] == [0, 0, 0, 1, 0]
    assert [m["late/staleness"] for m in run.metrics] == [0, 0, 0, 3, 0]
    assert [m["late/under_way"] for m in run.metrics] == [1, 1, 1, 0, 1]
    assert [m["present"] for m in run.metrics] == [3, 2, 2, 2, 3]  # who still trains is not chosen again
    assert said(run, 2, "refused") == {0: STILL, 3: None, 4: STILL}
    assert said(run, 2, "staleness") == {0: None, 3: 3, 4: None}
    assert mostly_refused([line for line in run.clients if line["round"] < 4]) == []  # what came late came

    played = watch.rounds[3]
    updates, before, after = played.view.trained, played.view.table.rows[0].double(), played.state.table.rows[0]
    first = watch.rounds[0].view.table.rows[0].double()
    assert updates.staleness.tolist() == [0, 0, 3]
    assert list(updates.raw) == [2]
    raw = updates.raw[2].double()
    assert torch.equal(updates.rows[2], (before + (raw - first)).float())
    # FedBuff: 1/3 each, the late one over sqrt(1 + 3); what is left stays with the old row
    np.testing.assert_allclose(played.view.mixed.W[0], [1 / 3, 1 / 3, 1 / 6, 1 / 6], rtol=1e-15)
    fresh = updates.rows[:2].double()
    want = before + ((fresh[0] - before) + (fresh[1] - before) + (raw - first) / 2) / 3
    torch.testing.assert_close(after.double(), want, rtol=0, atol=1e-7)


LATE = experiment([1, 1.25, 3.5, 7], BUFFERED, 7)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hanse.run(LATE, out=tmp_path_factory.mktemp("straight") / "run").path


@pytest.mark.parametrize("kill", [0, 1, 2, 3])
def test_updates_under_way_survive_a_kill(kill: int, straight: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        hanse.run(LATE, out=tmp_path / "killed", observers=[Watch(kill, Killed)])
    hanse.resume(tmp_path / "killed")
    both = (straight, tmp_path / "killed")
    states = [load(run / "checkpoints" / "00007.safetensors", torch.device("cpu")).state for run in both]
    assert torch.equal(states[0].table.rows, states[1].table.rows)
    assert states[0].underway.clock == states[1].underway.clock
    assert list(states[0].underway.flights) == list(states[1].underway.flights)
    for name in ("metrics.jsonl", "clients.jsonl"):
        assert untimed(both[0] / name) == untimed(both[1] / name)


def test_an_update_that_is_too_late_is_refused_and_its_client_is_free_again() -> None:
    run = hanse.run(experiment([1, 1, 3.5], {**BUFFERED, "max_staleness": 2}))
    assert [m["late/mixed"] for m in run.metrics] == [0] * 5
    assert [m["refused"] for m in run.metrics] == [1, 0, 0, 1, 1]
    assert [m["present"] for m in run.metrics] == [3, 2, 2, 2, 3]


def test_the_deadline_is_one_of_the_virtual_clock_too() -> None:
    run = hanse.run(experiment([1, 2, 3.5], {"deadline_s": 2.0}))
    assert [m["answered"] for m in run.metrics] == [2, 2, 2, 2, 2]
    assert [m["clock_s"] for m in run.metrics] == [2, 4, 6, 8, 10]
    assert "late/mixed" not in run.metrics[0]


def test_a_round_with_nobody_free_waits_for_whoever_comes_first() -> None:
    # nobody is done by the first deadline: the second round has no seats, and ends with the first who is
    run = hanse.run(experiment([1.5, 1.75, 3.5], {"late": "next", "deadline_s": 1.0}, 4))
    assert [m["seats"] for m in run.metrics] == [3, 0, 1, 1]
    assert [m["clock_s"] for m in run.metrics] == [1.0, 1.5, 2.5, 3.5]
    assert [m["answered"] for m in run.metrics] == [0, 1, 1, 2]
    assert [m["late/staleness"] for m in run.metrics] == [0, 1, 2, 3]


def test_a_late_update_is_valued_in_the_round_in_which_it_is_mixed() -> None:
    mechanism = {"name": "fedavg", "clients_per_round": 3, "weigh": "samples", "value": "exact"}
    data = {"validation": 0.2}
    watch = Watch()
    run = hanse.run(experiment([1, 1, 3.5], BUFFERED, mechanism=mechanism, data=data), observers=[watch])
    values = said(run, 2, "value")
    assert values[0] is None
    assert values[3] is not None
    view = watch.rounds[3].view
    judge, old, new = view.judge, view.table.rows[:1], watch.rounds[3].state.table.rows[:1]
    gain = -judge.score(torch.cat([old, new])).loss
    total = sum(line["value"] for line in run.clients if line["round"] == 3 and "value" in line)
    assert total == pytest.approx(gain[1] - gain[0], abs=1e-6)  # efficiency: the values are the round's whole gain


# ---- the closing of a round, by hand


def training(enough: int | None, late: str, flights: dict[int, Flight], deadline: float | None = None) -> Training:
    home, table = np.zeros(3, np.int64), Table.of(torch.zeros(1, P))
    seats, requests = Seats.at(np.arange(3), home), [Request(c, (Train(c, 0, table.rows[0]),)) for c in range(3)]
    roster = Roster(ClientInfo(c, f"c{c}", f"k{c}", 10) for c in range(3))
    waiting = Waiting(enough, late)  # type: ignore[arg-type]
    view = View(Context.tiny(), 5, "train", roster, table, home, None, seats=seats)  # type: ignore[arg-type]
    return Training(view, requests, Underway(10.0, flights), waiting, deadline)


def reply(client: int, seconds: float, number: float = 1.0) -> Reply:
    return Reply(client, (Trained(client, torch.full((P,), number), 10.0, 0.5, 3),), arrival=Arrival(seconds=seconds))


def flying(client: int, round: int, due: float) -> Flight:
    """Return an update of all threes that started from all ones."""
    seats = Seats.at(np.array([client]), np.zeros(1, np.int64))
    sent = training(1, "next", {}).land([reply(0, 9.0), reply(1, 0.5), reply(2, 9.0, 3.0)]).underway.flights[2]
    return replace(
        sent, round=round, due=due, seats=seats, start=torch.ones(1, P), updates=replace(sent.updates, seats=seats)
    )


def test_unsound_replies_do_not_count_as_enough() -> None:
    landed = training(2, "next", {}).land([reply(0, 3.0), reply(1, 1.0, float("nan")), reply(2, 2.0)])
    assert landed.underway.clock == 13.0
    assert sorted(landed.replies) == [0, 2]
    assert landed.refusals == ((1, "update has NaN or infinite entries"),)
    slow = training(1, "next", {}).land([reply(0, 3.0, float("nan")), reply(1, 1.0), reply(2, 2.0)])
    assert slow.underway.flights[0].refused == "update has NaN or infinite entries"  # said when it is due


def test_late_updates_count_as_enough_where_they_are_mixed() -> None:
    flights = {7: flying(7, 3, 10.5), 8: flying(8, 2, 11.0)}
    replies = [reply(0, 3.0), reply(1, 4.0), reply(2, 5.0)]
    landed = training(2, "next", flights).land(replies)
    assert landed.underway.clock == 11.0
    assert [flight.client for flight in landed.late] == [8, 7]  # by the round in which they began
    assert sorted(landed.underway.flights) == [0, 1, 2]
    dropped = training(2, "drop", flights).land(replies)
    assert dropped.underway.clock == 14.0
    assert dropped.late == ()
    assert sorted(dropped.underway.flights) == [2]


def test_a_round_waits_for_all_if_there_are_fewer_than_enough() -> None:
    flights = {7: flying(7, 3, 16.0)}
    replies = [reply(0, 3.0), reply(1, 4.0)]  # client 2 is silent
    assert training(9, "next", flights).land(replies).underway.clock == 16.0
    assert training(9, "drop", flights).land(replies).underway.clock == 14.0
    assert training(9, "next", flights, deadline=3.5).land(replies).underway.clock == 13.5
    assert training(9, "drop", {}).land(replies).refusals == ((2, "no reply"),)


# ---- what it goes with


def test_wrong_settings_are_refused_before_round_0() -> None:
    few = {"name": "fedavg", "clients_per_round": 3}
    for named, sections in (
        ("federation.enough: 4", {"mechanism": few, "federation": {"enough": 4}}),
        ("federation.enough: 0.5", {"mechanism": few, "federation": {"enough": 0.5, "min_replies": 3}}),
        *((f"federation.enough: {n}", {"federation": {"enough": n}}) for n in (0, 1.5, -0.5)),
        ("federation: give max_staleness", {"federation": {"max_staleness": 3}}),
        ("behaviour.speed.seconds: 2", {"behaviour": {"speed": {"seconds": [1.0, 2.0]}}}),
    ):
        given = {"data": {"clients": 4, "validation": 0.2}, "mechanism": {"name": "fedavg"}, **sections}
        [line] = mistakes(lambda given=given: hanse.run(hanse.Experiment(**given)))
        assert named in line


@pytest.mark.parametrize("name", ["tiff", "pifl", "ipfl", "scaffold", "fedfomo"])
def test_tokens_markets_and_systems_of_one_round_refuse_late_updates(name: str) -> None:
    with pytest.raises(hanse.UserError, match=r"federation\.late: 'next'"):
        hanse.run(experiment([1, 1, 1], BUFFERED, mechanism={"name": name}))


# ---- the rules, and the speeds


def test_the_rules_of_staleness_are_the_papers() -> None:
    tau = np.array([0, 1, 3, 4, 5, 8])
    np.testing.assert_allclose(ByStaleness().scale(tau), [1, 2**-0.5, 0.5, 5**-0.5, 6**-0.5, 1 / 3])
    np.testing.assert_allclose(ByStaleness("constant").scale(tau), np.ones(6))
    np.testing.assert_allclose(ByStaleness("polynomial", a=1.0).scale(tau), [1, 1 / 2, 1 / 4, 1 / 5, 1 / 6, 1 / 9])
    np.testing.assert_allclose(ByStaleness("hinge", a=10.0).scale(tau), [1, 1, 1, 1, 1 / 11, 1 / 41])


def test_one_update_at_a_time_is_fedasync() -> None:
    rule, watch = {"name": "by_staleness", "rule": "polynomial", "rate": 0.6}, Watch()
    mechanism = {"name": "fedavg", "clients_per_round": 3, "weigh": rule}
    hanse.run(experiment([1, 1.37, 3.71], {"enough": 1, "late": "next"}, 6, mechanism=mechanism), observers=[watch])
    assert max(int(played.view.trained.staleness.max()) for played in watch.rounds) >= 3
    for played in watch.rounds:
        view = played.view
        [tau] = view.trained.staleness.tolist()
        alpha = 0.6 * (tau + 1) ** -0.5  # FedAsync, Algorithm 1
        np.testing.assert_allclose(view.mixed.W[0], [alpha, 1 - alpha], rtol=1e-12)


def test_speeds_are_listed_or_drawn_once_a_client() -> None:
    def takes(speed: Speed, client: int, round: int, steps: int = 3) -> float:
        me = Me(client, 3, 7, None, P)  # type: ignore[arg-type]
        request = Request(client, (Train(0, 0, torch.zeros(P)),))
        return speed.takes(me, round, request, Reply(client, (Trained(0, torch.zeros(P), 1.0, 0.0, steps),)))

    listed = Speed([1, 2, 4])
    assert [takes(listed, c, 0) for c in range(3)] == [1, 2, 4]
    assert takes(replace(listed, per="step"), 2, 0) == 12
    drawn = Speed(sigma=0.9)
    times = [takes(drawn, c, r) for r in range(2) for c in range(3)]
    assert times[:3] == times[3:]
    assert len(set(times)) == 3
    many = np.log([Speed(median=2.0, sigma=0.9).time_of(c, 1) for c in range(4000)])
    assert many.mean() == pytest.approx(np.log(2), abs=0.05)
    assert many.std() == pytest.approx(0.9, abs=0.05)


# ---- answers on a network


def asked(client: int) -> Flight:
    """What a client was asked for in round 3, and of which nothing is known yet."""
    seats = Seats.at(np.array([client]), np.zeros(1, np.int64))
    return Flight(3, seats, torch.zeros(1, P), request=Request(client, (Train(0, 0, torch.zeros(P)),)))


def test_an_unsound_answer_to_an_earlier_round_is_refused_and_its_client_is_free_again() -> None:
    late = Reply(7, (Trained(0, torch.full((P,), torch.nan), 10.0, 0.5, 3),), arrival=Arrival(round=3))
    landed = training(2, "next", {7: asked(7)}).land([reply(0, 0.0), reply(1, 0.0), reply(2, 0.0), late])
    assert [client for client, _ in landed.refusals] == [7]
    assert not landed.late
    assert not landed.underway.flights


def test_an_answer_that_a_failed_round_has_heard_is_recorded_as_lost() -> None:
    # on a network: client 2 was asked in round 3, and is free again, though nothing of its answer is known
    landed = training(2, "next", {2: asked(2)}).land([reply(0, 0.0), reply(1, 0.0), reply(2, 0.0)])
    assert landed.refusals == ((2, "its update of round 3: lost with a round that failed"),)
    assert sorted(landed.replies) == [0, 1, 2]
    assert not landed.underway.flights
