"""Clients that are told what they were worth, and leave on it."""

from typing import Any

from experiments import digits

import hanse


def experiment(**clients: Any) -> hanse.Experiment:
    data, behaviour = {"partition": {"alpha": 0.3}, "client_test": 0.2}, {"noisy": {"sigma": 1.0}}
    sections = {"data": data, "behaviour": behaviour, "train": {"lr": 0.05}, "engine": {"train": "stacked"}}
    return digits({"name": "fedavg", "clients_per_round": 4, "value": "exact"}, 8, 12, **sections, clients=clients)


def test_worthless_clients_leave_for_good_and_cost_no_more() -> None:
    loyal = hanse.run(experiment(told=True))
    leaving = hanse.run(experiment(told=True, policy={"name": "quits", "rounds": 1}))
    assert [m["present"] for m in loyal.metrics] == [8] * 12
    present = [m["present"] for m in leaving.metrics]
    assert present == sorted(present, reverse=True)
    assert present[-1] < 8
    # replay: nobody sits again after a round whose mean value so far was negative
    total: dict[int, float] = {}
    gone: dict[int, int] = {}
    for seat in leaving.clients:
        assert seat["client"] not in gone, seat
        total[seat["client"]] = total.get(seat["client"], 0.0) + seat["value"]
        if total[seat["client"]] < 0:
            gone[seat["client"]] = seat["round"]
    assert len({c for c, r in gone.items() if r < 11}) == 8 - present[-1]
    for round, tests in leaving.tests.items():  # nor is it asked to test
        assert {*tests["tested"].tolist()} == {*range(8)} - {c for c, r in gone.items() if r < round}
    assert sum(m["bytes/up"] for m in leaving.metrics) < sum(m["bytes/up"] for m in loyal.metrics)


def test_told_but_loyal_clients_change_no_result() -> None:
    plain, told = hanse.run(experiment()), hanse.run(experiment(told=True))
    assert [m["test/accuracy"] for m in plain.metrics] == [m["test/accuracy"] for m in told.metrics]
