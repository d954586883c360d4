"""Selectors: golden instances, and GreedyFed's two phases."""

import json
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from experiments import digits
from watching import rounds_of

import hanse
from hanse.base.streams import places, stream
from hanse.core.part import Size
from hanse.mechanisms import select as choosing
from hanse.mechanisms.set_aware import best_set, mixtures
from hanse.runs.setup import build

CASES = json.loads((Path(__file__).parents[1] / "golden" / "selection.json").read_text())["cases"]


def cases(rule: str) -> list[Any]:
    found = [pytest.param(c["in"], c["out"], id=c["name"]) for c in CASES if c["in"]["rule"] == rule]
    assert found
    return found


@pytest.mark.parametrize(("given", "want"), cases("greedy"))
def test_golden_greedy(given: dict, want: dict) -> None:
    assert choosing.greedy(np.array(given["sv"]), given["m"]).tolist() == want["selected"]


@pytest.mark.parametrize(("given", "want"), cases("round_robin"))
def test_golden_round_robin(given: dict, want: dict) -> None:
    order, m = np.array(given["order"]), given["m"]
    waiting = np.ones(len(order), bool)
    blocks = []
    while waiting.any():
        block = choosing.round_robin(order, waiting, m)
        blocks.append(block.tolist())
        waiting[block] = False
    assert blocks == want["blocks"]
    assert choosing.rounds_to_meet_all(len(order), m) == want["rounds"]


class FakeView:
    """As much of a view as a selector looks at."""

    def __init__(self, present: list[int], num_clients: int, round: int = 0) -> None:
        self.present = np.array(present)
        self.context = type("C", (), {"seed": 5, "num_clients": num_clients})()
        self.round = round

    def draw(self, purpose: str) -> np.random.Generator:
        return stream(5, purpose, round=self.round)


def state(values: list[float | None]) -> dict[str, Any]:
    known = np.array([v is not None for v in values])
    return {
        "sat": np.ones(len(values), np.int64),
        "counts": known.astype(np.int64),
        "cumulative": np.array([0.0 if v is None else v for v in values]),
    }


def choose(part: choosing.Greedy | choosing.UCB, view: FakeView, given: dict[str, Any]) -> list[int]:
    return part.select(view, given)[0].clients.tolist()  # type: ignore[arg-type]


def test_greedy_takes_the_largest_values_and_clients_without_one_last() -> None:
    given = state([0.1, None, 0.5, -0.2, 0.5])
    assert choose(choosing.Greedy(3), FakeView([0, 1, 2, 3, 4], 5), given) == [2, 4, 0]
    assert choose(choosing.Greedy(5), FakeView([0, 1, 2, 3, 4], 5), given) == [2, 4, 0, 3, 1]


def test_greedy_meets_a_late_joiner_before_it_exploits() -> None:
    given = state([0.1, 0.4, 0.5, -0.2, 0.3])
    given["sat"][3] = 0
    assert 3 in choose(choosing.Greedy(2), FakeView([0, 1, 2, 3, 4], 5), given)
    assert choose(choosing.Greedy(2), FakeView([0, 1, 2, 4], 5), given) == [2, 1]


def test_random_ties_are_drawn_anew_each_round_and_never_break_the_order() -> None:
    given = state([1.0] * 6 + [2.0])
    seen = {tuple(choose(choosing.Greedy(2, ties="random"), FakeView(list(range(7)), 7, r), given)) for r in range(40)}
    assert all(pair[0] == 6 for pair in seen)
    assert {pair[1] for pair in seen} == set(range(6))
    assert choose(choosing.Greedy(2), FakeView(list(range(7)), 7), given) == [6, 0]


@pytest.mark.parametrize(("given", "want"), cases("ucb"))
def test_golden_ucb(given: dict, want: dict) -> None:
    scores = choosing.ucb_scores(np.array(given["sv"]), np.array(given["counts"]), given["t"], given["beta"])
    np.testing.assert_allclose(scores, [float(score) for score in want["scores"]], rtol=1e-12)
    assert choosing.greedy(scores, given["m"]).tolist() == want["selected"]


@pytest.mark.parametrize(("given", "want"), cases("sfedavg"))
def test_golden_s_fedavg(given: dict, want: dict) -> None:
    probabilities = choosing.softmax(np.array(want["phi_next"]))
    np.testing.assert_allclose(probabilities, want["probabilities"], rtol=1e-11)
    draw, draws = np.random.default_rng(1), 20_000
    counts: dict[str, int] = {}
    for _ in range(draws):
        drawn = ",".join(map(str, sorted(choosing.without_replacement(probabilities, given["m"], draw).tolist())))
        counts[drawn] = counts.get(drawn, 0) + 1
    for members, p in want["set_probability"].items():
        slack = 5 * np.sqrt(p * max(0.0, 1 - p) / draws) + 1e-9
        assert abs(counts.get(members, 0) / draws - p) < slack


@pytest.mark.parametrize(("given", "want"), cases("power_of_choice"))
def test_golden_power_of_choice(given: dict, want: dict) -> None:
    candidates = np.sort(given["candidates"])
    best = choosing.greedy(np.array(given["losses"])[candidates], given["m"])
    assert candidates[best].tolist() == want["selected"]


@pytest.mark.parametrize(("given", "want"), cases("poc_query_sizes"))
def test_golden_query_sizes(given: dict, want: dict) -> None:
    size, sizes = given["n"], []
    for _ in range(given["rounds"]):
        size = choosing.next_query_size(size, given["m"], given["decay"])
        sizes.append(size)
    assert sizes == want["sizes"]


def test_mixtures_are_what_an_update_is_made_of() -> None:
    draw = torch.Generator().manual_seed(0)
    gradients = torch.randn((4, 60), generator=draw) * torch.tensor([1.0, 5.0, 0.2, 3.0])[:, None]
    directions = -gradients / gradients.norm(dim=1, keepdim=True)
    truth = np.array([[1.0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25], [0, 0.7, 0.3, 0], [0, 0, 0, 1.0]])
    moves = torch.tensor(truth, dtype=torch.float32) @ directions
    sizes = torch.tensor([0.1, 30.0, 1.0, 2.0])[:, None]
    found, went, unexplained = mixtures(sizes * moves, gradients)
    np.testing.assert_allclose(found, truth, atol=1e-5)
    np.testing.assert_allclose(went, sizes[:, 0], rtol=1e-4)
    np.testing.assert_allclose(unexplained, 0, atol=1e-4)
    # what no class explains changes nothing if it is orthogonal to all of them, and is measured
    basis, _ = torch.linalg.qr(torch.cat([gradients, torch.randn((1, 60), generator=draw)]).T)
    found, went, unexplained = mixtures(moves + 4 * basis[:, 4], gradients)
    np.testing.assert_allclose(found, truth, atol=1e-5)
    np.testing.assert_allclose(went, 1, rtol=1e-4)
    np.testing.assert_allclose(unexplained, 16, rtol=1e-4)


def cost(
    mixture: np.ndarray, samples: np.ndarray, target: np.ndarray, bonus: np.ndarray, noise: np.ndarray, members: Any
) -> float:
    at = list(members)
    weights = samples[at] / samples[at].sum()
    off = weights @ mixture[at] - target
    return float(np.square(off).sum() + np.square(weights) @ noise[at] - bonus[at].mean())


def test_no_change_of_one_seat_betters_the_best_set_and_mostly_no_other_set_does() -> None:
    draw = np.random.default_rng(0)
    best = []
    for _ in range(60):
        mixture, samples = draw.dirichlet(np.full(4, 0.3), 9), draw.integers(1, 50, 9).astype(float)
        target, bonus, noise = draw.dirichlet(np.ones(4)), 0.02 * draw.random(9), 0.2 * draw.random(9)
        found = best_set(mixture, samples, target, bonus, 3, noise)
        assert len(set(found.tolist())) == 3
        costs = {frozenset(s): cost(mixture, samples, target, bonus, noise, s) for s in combinations(range(9), 3)}
        mine = frozenset(found.tolist())
        assert costs[mine] <= min(c for s, c in costs.items() if len(s & mine) >= 2) + 1e-12
        best.append(costs[mine] <= min(costs.values()) + 1e-12)
    assert np.mean(best) > 0.7


def made(name: str, rounds: int = 60, clients: Any = None, **mechanism: Any) -> hanse.Experiment:
    mechanism = {"name": name, "clients_per_round": 3, **mechanism}
    data = {"partition": {"name": "pathological", "classes_per_client": 1}, "seed": 1}
    sections = {"data": data, "model": {"name": "mlp", "hidden": [12]}, "train": {"lr": 0.1, "epochs": 2}}
    return digits(mechanism, 12, rounds, **sections, engine={"train": "stacked"}, clients=clients or {})


def test_set_aware_knows_what_clients_hold_and_seats_different_classes() -> None:
    world = build(made("set_aware"))
    classes = world.data.class_counts()
    played = list(rounds_of(world, 14))
    for one in played[4:]:  # everyone is met
        assert len(set(classes[one.view.choice.clients].argmax(1).tolist())) == 3
    mixture = played[-1].state.states["select"]["mixture"]
    assert mixture.shape == (12, 10)
    np.testing.assert_allclose(mixture.sum(1), 1)
    np.testing.assert_array_equal(mixture.argmax(1), classes.argmax(1))


@pytest.mark.parametrize(
    ("behaviour", "purpose"), [({"noisy": {"sigma": 0.3}}, "noisy"), ({"free_rider": {"fraction": 0.4}}, "free riders")]
)
def test_set_aware_leaves_out_who_sends_noise_or_nothing(behaviour: dict[str, Any], purpose: str) -> None:
    data, model, train = {"partition": {"alpha": 1.0}}, {"name": "mlp", "hidden": [20]}, {"lr": 0.05, "epochs": 2}
    sections = {"data": data, "model": model, "train": train | {"batch_size": 16}, "engine": {"train": "stacked"}}
    experiment = digits({"name": "set_aware", "clients_per_round": 2}, 10, 60, **sections, behaviour=behaviour)
    order = places(experiment.run.seed, purpose, 10)
    for played in list(rounds_of(build(experiment), 15))[5:]:
        seated = order[played.view.choice.clients]  # everyone is met: of noise, the quieter half, of free riders nobody
        assert (seated < 5).all() if purpose == "noisy" else (seated >= 4).all()


@pytest.mark.parametrize(
    ("name", "rounds", "said"), [("greedyfed", 3, True), ("ucb", 4, True), ("set_aware", 5, False)]
)
def test_a_run_that_never_chooses_by_value_says_so(name: str, rounds: int, said: bool) -> None:
    told = build(made(name, rounds)).said
    assert any(line.startswith(f"warning: run.rounds: {rounds}: ") for line in told) == said
    assert len(choosing.Greedy(clients_per_round=3).unfit(Size(12, 3, 3, 4))) == 1
    assert "so none is chosen" in choosing.Greedy(clients_per_round=4).unfit(Size(4, 4, 4, 9))[0]
    assert choosing.Greedy(clients_per_round=3, meets="never").unfit(Size(12, 3, 3, 4)) == ()


class Wordy(choosing.Uniform):
    def unfit(self, size: Size) -> Any:
        return f"{size.clients} clients"


class Choosy(choosing.Uniform):
    def unfit(self, size: Size) -> list[str]:
        return ["warning: mechanism.select: it is quiet here", f"run.rounds: {size.rounds}: too few for {size.clients}"]


@pytest.mark.parametrize(("part", "line"), [(Wordy, "mechanism.select: Wordy: its unfit"), (Choosy, "run.rounds: 2: ")])
def test_a_part_says_itself_what_does_not_go_with_a_run_of_this_size(part: type, line: str) -> None:
    mechanism = {"name": "fedavg", "clients_per_round": 3, "select": f"{__name__}:{part.__name__}"}
    with pytest.raises(hanse.UserError, match=f"^{line}"):
        build(hanse.Experiment(data={"clients": 12}, mechanism=mechanism, run={"rounds": 2}))


def test_power_of_choice_asks_nobody_who_has_left() -> None:
    leaving = {"policy": {"name": "quits", "rounds": 1}, "told": True}
    run = hanse.run(made("power_of_choice", 8, leaving, clients_per_round=4, decay=1.0, value={"name": "gtg"}))
    present = [m["present"] for m in run.metrics]
    assert present[-1] < 12
    assert [m["select/asked"] for m in run.metrics] == [12, *present[:-1]]
    assert all(m["seats"] == min(4, m["present"]) for m in run.metrics)
    assert run.metrics[-1]["bytes/down"] < run.metrics[0]["bytes/down"]


def test_meeting_by_id_goes_in_blocks_and_fills_the_last_one_at_random() -> None:
    part, fills = choosing.Greedy(3, meets="id"), set()
    for seed_round in range(20):
        given, blocks = {**state([None] * 7), "sat": np.zeros(7, np.int64)}, []
        for _ in range(3):
            block = choose(part, FakeView([0, 1, 2, 3, 4, 5, 6], 7, seed_round), given)
            given["sat"][block] += 1
            blocks.append(block)
        assert blocks[:2] == [[0, 1, 2], [3, 4, 5]]
        assert blocks[2][0] == 6
        assert len(set(blocks[2])) == 3
        fills.add(tuple(blocks[2][1:]))
    assert len(fills) > 5


def test_without_a_round_robin_who_was_worth_something_stays_until_it_is_not() -> None:
    part = choosing.Greedy(1, meets="never", ties="random")
    assert choose(part, FakeView([0, 1, 2], 3), state([None, 0.1, None])) == [1]
    assert {choose(part, FakeView([0, 1, 2], 3, r), state([None, -0.1, None]))[0] for r in range(20)} == {0, 2}


def test_ucb_without_a_round_robin_seats_those_who_never_sat_first_and_the_refused_last() -> None:
    played = rounds_of(build(made("ucb", select={"meets": "never"})), 4)
    assert {client for one in played for client in one.view.choice.clients.tolist()} == set(range(12))
    part = choosing.UCB(2, meets="never")
    given = {**state([None, 0.1, None]), "sat": np.array([1, 1, 0])}  # client 0 sat, and was refused
    assert choose(part, FakeView([0, 1, 2], 3, 5), given) == [2, 1]


def test_models_are_weighed_by_samples_over_probability() -> None:
    weighed = made("s_fedavg", weigh="samples_over_probability", select={"temperature": 0.01, "start": 0.03})
    for view in (one.view for one in rounds_of(build(weighed), 3)):
        clients, n = view.trained.seats.client, view.trained.num_samples
        drawn = view.get(choosing.Probabilities).by_client
        assert drawn.sum() == pytest.approx(1)
        want = n / drawn[clients]
        np.testing.assert_allclose(view.mixed.W[0, : len(clients)], want / want.sum(), rtol=1e-6)


def test_s_fedavg_may_average_the_means_so_far() -> None:
    def phi(averages: Literal["round", "mean"]) -> float:
        part = choosing.SFedAvg(2, alpha=0.5, beta=0.5, start=0.0, averages=averages)
        given = part.init(SimpleNamespace(num_clients=3))  # type: ignore[arg-type]
        for value in (0.4, 0.2):
            values = SimpleNamespace(by_client=lambda outcome, v=value: (np.array([1]), np.array([v])))
            given = part.learn(SimpleNamespace(values=values, trained=[1]), given)  # type: ignore[arg-type]
        assert given["phi"][[0, 2]].tolist() == [0, 0]
        return float(given["phi"][1])

    assert phi("round") == pytest.approx(0.5 * (0.5 * 0.4) + 0.5 * 0.2)
    assert phi("mean") == pytest.approx(0.5 * (0.5 * 0.4) + 0.5 * (0.4 + 0.2) / 2)


def test_what_the_server_finds_class_by_class_adds_up_to_the_whole() -> None:
    world = build(made("set_aware"))
    judge, row = world.judge, world.context.initial(0)
    counts = torch.bincount(world.data.server_validation.y).double()
    share = counts / counts.sum()
    losses = judge.class_losses(row)
    assert float(share.numpy() @ losses) == pytest.approx(float(judge.score(row[None]).loss[0]), abs=1e-6)
    gradients = judge.class_gradients(row, 10_000)
    torch.testing.assert_close((share.float() @ gradients), judge.gradient(row[None])[0], atol=1e-6, rtol=1e-4)
    few = judge.class_gradients(row, 1)
    assert few.shape == gradients.shape
    assert not torch.allclose(few, gradients)
