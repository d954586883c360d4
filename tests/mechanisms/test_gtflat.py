"""GTFLAT's and inverse distance's weights in real rounds: against the game by hand, in groups, on any mechanism."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from experiments import digits
from watching import rounds_of

from hanse.core.calling import proposed_mix
from hanse.core.part import View
from hanse.core.table import Mix, Seats, Table, Updates
from hanse.games import replicator
from hanse.mechanisms.baselines import fedavg
from hanse.mechanisms.gtflat import GTFLATSelect, sketched
from hanse.mechanisms.registry import build_mechanism
from hanse.runs.setup import Session, build

M = 4


@pytest.fixture(scope="module")
def world() -> Session:
    model, train = {"name": "mlp", "hidden": [6], "batch_norm": True}, {"lr": 0.1, "epochs": 2}
    sections = {"data": {"partition": {"alpha": 0.3}}, "model": model, "train": train}
    mechanism = {"name": "fedavg", "clients_per_round": M}
    return build(digits(mechanism, 6, 4, **sections, engine={"train": "sequential"}))


@pytest.fixture(scope="module")
def view(world: Session) -> View:
    *_, played = rounds_of(world, 2)
    return played.view


def weigh(view: View, name: str, **options: Any) -> Mix:
    part: Any = build_mechanism({"name": "fedavg", "weigh": {"name": name, **options}}).weigh
    return proposed_mix(replace(fedavg(), weigh=part), view, {"weigh": {}})[0]


def parameters(view: View) -> torch.Tensor:
    layout = view.context.layout
    assert layout.num_parameters < layout.size  # batch norm's statistics come after the parameters
    return view.trained.rows[:, : layout.num_parameters].double()


def by_definition(models: torch.Tensor) -> np.ndarray:
    return -np.array([[float((a - b).norm()) for b in models] for a in models])


def test_weights_are_the_equilibrium_of_the_distances(view: View) -> None:
    phi = by_definition(parameters(view))
    mix = weigh(view, "gtflat")
    wanted = replicator.weights(replicator.equilibrium(phi))
    assert np.allclose(mix.W[0, :M], wanted, atol=1e-12)
    assert mix.W[0, M:].tolist() == [0]
    off = phi[~np.eye(M, dtype=bool)]
    assert mix.metrics["weigh/distance"] == pytest.approx(-off.mean())
    assert mix.metrics["weigh/nash_gap"] == pytest.approx(replicator.nash_gap(phi, replicator.equilibrium(phi)))
    assert mix.metrics["weigh/effective_seats"] == pytest.approx(1 / (wanted**2).sum())


def test_options(view: View) -> None:
    phi = by_definition(parameters(view))

    def wanted(payoff: Any, *options: Any, **more: Any) -> np.ndarray:
        return replicator.weights(replicator.equilibrium(payoff, *options, **more))

    def close(found: Mix, weights: np.ndarray) -> bool:
        return np.allclose(found.W[0, :M], weights, atol=1e-9)

    assert close(weigh(view, "gtflat", generations=7, strength=3.0), wanted(phi, 7, 3.0))
    assert close(weigh(view, "gtflat", population=100), wanted(phi, population=100))

    mean = -phi[~np.eye(M, dtype=bool)].mean()
    scaled = weigh(view, "gtflat", scale="mean")
    assert close(scaled, wanted(phi / mean))
    assert scaled.metrics["weigh/distance"] == pytest.approx(mean)  # of the models, not of the scaled game
    assert close(weigh(view, "gtflat", generations=0), np.full(M, 1 / M))


def test_inverse_distance_by_hand(view: View) -> None:
    models = parameters(view)
    far = np.array([float((m - models.mean(dim=0)).norm()) for m in models])
    trust = 1 / (far / far.mean() + 1e-3)
    mix = weigh(view, "inverse_distance")
    assert np.allclose(mix.W[0, :M], trust / trust.sum(), atol=1e-12)
    assert mix.metrics == {"weigh/distance": pytest.approx(far.mean())}


def grouped(view: View, models: torch.Tensor, target: list[int], rows: int = 3) -> View:
    """The view with these models in seats that train these rows of a table of three."""
    width = view.context.layout.size - models.shape[1]
    whole = torch.cat([models, torch.zeros(len(models), width)], dim=1)
    ids = np.arange(len(models), dtype=np.int64)
    seats = Seats(ids, np.array(target), np.array(target))
    count = np.full(len(models), 10.0)
    table = Table.of(torch.zeros(rows, view.context.layout.size))
    return replace(view, table=table, updates=Updates(seats, whole, count, count, ids))


@pytest.mark.parametrize("name", ["gtflat", "inverse_distance"])
def test_groups_play_their_own_games(view: View, name: str) -> None:
    models = torch.randn(6, view.context.layout.num_parameters, generator=torch.Generator().manual_seed(3))
    both = weigh(grouped(view, models, [0, 2, 0, 2, 0, 2]), name)
    for row, members in ((0, [0, 2, 4]), (2, [1, 3, 5])):
        alone = weigh(grouped(view, models[members], [0, 0, 0]), name)
        assert np.allclose(both.W[row, members], alone.W[0, :3], atol=1e-12)
        assert both.W[row].sum() == pytest.approx(1)
    assert both.W[1].tolist() == [0] * 6 + [0, 1, 0]  # nobody trained row 1
    gaps = [weigh(grouped(view, models[m], [0, 0, 0]), name).metrics["weigh/distance"] for m in ([0, 2, 4], [1, 3, 5])]
    assert both.metrics["weigh/distance"] == pytest.approx(np.mean(gaps))


@pytest.mark.parametrize("name", ["gtflat", "inverse_distance"])
def test_few_equal_and_enormous_models(view: View, name: str) -> None:
    models = torch.randn(5, view.context.layout.num_parameters, generator=torch.Generator().manual_seed(4))
    one = weigh(grouped(view, models[:1], [0]), name)
    assert one.W[0].tolist() == [1, 0, 0, 0]
    assert one.metrics == {}
    assert np.allclose(weigh(grouped(view, models[:2], [0, 0]), name).W[0, :2], 0.5)
    same = weigh(grouped(view, models[:1].repeat(5, 1), [0] * 5), name)
    assert same.W[0, :5].tolist() == pytest.approx([0.2] * 5, abs=1e-15)
    models[2] *= 1e30
    huge = weigh(grouped(view, models, [0] * 5), name)
    assert np.isfinite(huge.W).all()
    assert huge.W[0, :5].sum() == pytest.approx(1)
    assert huge.W[0, 2] == (0 if name == "gtflat" else huge.W[0, :5].min())
    assert huge.W[0, 2] < 0.2


def test_a_random_start_of_whole_individuals() -> None:
    start = replicator.drawn(3, 100, np.random.default_rng(0))
    assert (start.sum(axis=1) == 100).all()
    assert (np.diag(start) == 0).all()
    expected = np.random.default_rng(0).multinomial(100, [0.5, 0.5], size=3)
    assert start[~np.eye(3, dtype=bool)].tolist() == expected.ravel().tolist()
    phi = np.array([[0.0, -1.0, -2.0], [-1.0, 0.0, -4.0], [-2.0, -4.0, 0.0]])
    # one generation by hand: population 0 chooses 1 (lead (2 - 1)/2/3) or 2, and is scaled back to 100
    lead = 0.8 * 0.5 / 3
    grown = start[0] * np.array([0.0, 1 + lead, 1 - lead])
    share = np.floor(grown / grown.sum() * 100 + 0.5)
    assert replicator.equilibrium(phi, 1, 0.8, 100, start=start)[0].tolist() == (share / 100).tolist()
    assert replicator.equilibrium(phi, 0, 0.8, 100, start=start).tolist() == (start / 100).tolist()
    with pytest.raises(ValueError, match=r"3 rows.*100"):
        replicator.equilibrium(phi, 1, 0.8, 100, start=start + np.eye(3))
    with pytest.raises(ValueError, match="start: needs a population"):
        replicator.equilibrium(phi, 1, 0.8, start=start)


def test_selection_plays_the_game_among_all_clients() -> None:
    select = GTFLATSelect(2, generations=50)
    changes = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.5], [20.0, 0.0]])
    phi = -np.sqrt(((changes[:, None] - changes[None]) ** 2).sum(-1))
    k, strength = 4, 0.8
    state = np.zeros((k, k))
    for i in range(k):
        others = [a for a in range(k) if a != i]
        lead = np.array([phi[a, i] - np.mean([phi[b, i] for b in others]) for a in others]) / k
        grown = np.maximum(0.0, 1 + strength * lead) ** 50
        state[i, others] = grown / grown.sum()
    assert select.chances(changes) == pytest.approx(state.mean(axis=0))
    assert select.chances(changes) == pytest.approx([0.038, 0.521, 0.441, 0.0], abs=1e-3)  # docs/mechanisms/gtflat.md


def test_sketches_keep_distances() -> None:
    vectors = np.random.default_rng(0).normal(size=(4, 5000))
    short = sketched(vectors, 256, seed=3)
    assert short.shape == (4, 256)
    assert short == pytest.approx(sketched(vectors, 256, seed=3))
    assert sketched(2 * vectors[:1] - vectors[1:2], 256, 3) == pytest.approx(2 * short[:1] - short[1:2])  # linear
    ratio = np.linalg.norm(short[:, None] - short[None], axis=-1)[np.triu_indices(4, 1)]
    truth = np.linalg.norm(vectors[:, None] - vectors[None], axis=-1)[np.triu_indices(4, 1)]
    assert np.abs(ratio / truth - 1).max() < 4 / 16  # four times 256^-0.5
    assert sketched(vectors[:, :9], 256, 3) is not short
    assert sketched(vectors[:, :9], 256, 3).tolist() == vectors[:, :9].tolist()
