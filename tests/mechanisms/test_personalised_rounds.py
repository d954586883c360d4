"""Rounds of personalised systems against a scripted federation: what is asked, where clients sit, what is mixed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

import hanse
from hanse.core import port
from hanse.core.part import Context, Mechanism
from hanse.core.recipe import Recipe
from hanse.games import replicator
from hanse.learning.models import build_problem
from hanse.mechanisms.cfl import cfl
from hanse.mechanisms.ditto import ditto
from hanse.mechanisms.fedamp import fedamp
from hanse.mechanisms.fedfomo import FedFomo, fedfomo
from hanse.mechanisms.fedsoft import fedsoft
from hanse.mechanisms.ifca import ifca
from hanse.mechanisms.pfedgraph import pfedgraph
from hanse.mechanisms.registry import MECHANISMS, PARTS, build_mechanism
from hanse.mechanisms.scaffold import scaffold
from hanse.runs.round import Played, first_state, play_round
from hanse.runs.setup import Session

N = 4
PROBLEM, INITIAL = build_problem("logistic", (2,), 3, 0)
P = PROBLEM.layout.size
SIZES = (10.0, 20.0, 30.0, 40.0)
EVERY = ("cfl", "ditto", "fedamp", "fedfomo", "fedsoft", "heur_fedamp", "ifca", "pfedgraph", "scaffold")


def row_of(client: int, task: port.Train) -> torch.Tensor:
    """A different direction for every client and start row."""
    way = torch.zeros(P)
    way[client] = client + 1.0
    way[5] = 0.1 * task.row
    return task.start + way


@dataclass
class Scripted:
    """Client c has ``SIZES[c]`` samples, takes 3 steps, and moves from where it starts as ``move`` says."""

    move: Callable[[int, port.Train], torch.Tensor] = row_of
    losses: Callable[[int, int], Sequence[float]] = lambda client, models: [0.0] * models
    counts: Callable[[int, int], Sequence[int]] = lambda client, models: [0] * models
    present_ids: tuple[int, ...] = tuple(range(N))
    silent: frozenset[str] = frozenset()
    asked: list[list[port.Request]] = field(default_factory=list)

    def present(self, round: int) -> port.Roster:
        return port.Roster(port.ClientInfo(c, f"c{c}", f"k{c}", int(SIZES[c])) for c in self.present_ids)

    def exchange(self, call: port.Call) -> list[port.Reply]:
        self.asked.append(list(call.requests))
        named = [r for r in call.requests if not any(getattr(t, "name", None) in self.silent for t in r.tasks)]
        return [port.Reply(r.client, tuple(self.result(r.client, t) for t in r.tasks)) for r in named]

    def result(self, client: int, task: port.Task) -> Any:
        if isinstance(task, port.Train):
            return port.Trained(task.seat, self.move(client, task), SIZES[client], 0.5, 3)
        if isinstance(task, port.Nearest):
            return port.Counted(task.name, torch.tensor(self.counts(client, len(task.models)), dtype=torch.int64))
        loss = torch.tensor(self.losses(client, len(task.models)), dtype=torch.float64)
        return port.Scored(task.name, loss, torch.zeros_like(loss), 4)


class World:
    """A setup with its state; ``play`` plays a round on, of which the federation keeps what was asked."""

    def __init__(self, mechanism: Mechanism, federation: Scripted, recipe: Recipe | None = None) -> None:
        recipe = recipe or Recipe(lr=0.1)
        context = Context(N, 10, 0, recipe, PROBLEM.layout, lambda k: INITIAL + k, mechanism.slots())
        self.setup = Session(hanse.Experiment(mechanism="fedavg"), mechanism, federation, context, *[None] * 6)  # type: ignore[arg-type]
        self.federation, self.state = federation, first_state(self.setup)

    def play(self) -> Played:
        self.federation.asked.clear()
        played = play_round(self.setup, self.state)
        self.state = played.state
        return played


def training(world: World, client: int) -> list[port.Train]:
    tasks = [t for stage in world.federation.asked for r in stage if r.client == client for t in r.tasks]
    return [t for t in tasks if isinstance(t, port.Train)]


def test_ditto_sits_twice_and_keeps_one_of_both_to_itself() -> None:
    world = World(ditto(lam=0.7), Scripted())
    world.play()
    before = world.state.table.rows.clone()
    played = world.play()
    for c in range(N):
        shared, own = training(world, c)
        assert (shared.row, shared.mu, shared.private) == (N, 0.0, False)
        assert (own.row, own.mu, own.private) == (c, 0.7, True)
        assert torch.equal(own.centre, before[N])  # the shared model as it was sent
        assert torch.equal(own.start, before[c])
        assert own.centre.data_ptr() == shared.start.data_ptr()  # one model on the wire
    after = played.state.table
    moved = torch.tensor([0.1 * 1, 0.2 * 2, 0.3 * 3, 0.4 * 4, 0, 0.1 * N, *[0.0] * (P - 6)])
    torch.testing.assert_close(after.rows[N], before[N] + moved)
    for c in range(N):
        assert torch.equal(after.rows[c], row_of(c, replace(training(world, c)[1])))
    assert after.owner.tolist() == [0, 1, 2, 3, -1]
    assert played.view.deployment.rows.tolist() == [0, 1, 2, 3]
    assert played.state.home.tolist() == [N] * N


def test_fedamp_keeps_each_model_and_pulls_it_to_a_mix_of_the_near_ones() -> None:
    federation = Scripted(move=lambda c, t: torch.full((P,), 0.0 if c < 2 else 10.0) + 0.01 * c)
    world = World(fedamp(lam=0.02, step=0.5, sigma=2.0), federation)
    rows = world.play().state.table.rows
    torch.testing.assert_close(rows[:N, 0], torch.tensor([0.0, 0.01, 10.02, 10.03]))
    near = 0.25 * np.exp(-P * 1e-4 / 2.0)  # alpha exp(-d^2 / sigma) / sigma; the far ones count for nothing
    want = [near * 0.01, (1 - near) * 0.01, 10.02 + near * 0.01, 10.03 - near * 0.01]
    torch.testing.assert_close(rows[N:, 0], torch.tensor(want, dtype=torch.float32))
    world.play()
    for c in range(N):
        [task] = training(world, c)
        assert task.mu == pytest.approx(0.02 / 0.5)
        assert torch.equal(task.start, rows[c])
        assert torch.equal(task.centre, rows[N + c])


def test_fedamps_default_scale_is_the_mean_squared_distance_and_is_recorded() -> None:
    played = World(fedamp(), Scripted(move=lambda c, t: torch.full((P,), float(c)))).play()
    mean = P * np.mean([(i - j) ** 2 for i in range(N) for j in range(N) if i != j])
    assert played.view.mixed.metrics["weigh/sigma"] == pytest.approx(mean)
    centre = played.view.mixed.W[N:, :N]
    want = np.exp(-P * np.square(np.subtract.outer(range(N), range(N))) / mean) / N
    np.fill_diagonal(want, 0)
    np.fill_diagonal(want, 1 - want.sum(axis=1))
    np.testing.assert_allclose(centre, want, rtol=1e-6)


def opposed(client: int, task: port.Train) -> torch.Tensor:
    """Clients 0 and 1 go one way, 2 and 3 the other one."""
    return INITIAL + (1.0 if client < 2 else -1.0)


def test_pfedgraph_starts_from_the_graphs_mix_and_holds_what_it_trained() -> None:
    world = World(pfedgraph(lam=0.5), Scripted(move=opposed))
    played = world.play()
    # d = -1 inside a group and 1 across: simplex(n/100 -+ 1/1.6)
    graph = played.view.mixed.W[N:, :N]
    np.testing.assert_allclose(graph[0], [0.45, 0.55, 0, 0], atol=1e-12)
    np.testing.assert_allclose(graph[3], [0, 0, 0.45, 0.55], atol=1e-12)
    assert played.view.mixed.metrics["weigh/edges"] == 4
    assert played.view.deployment.rows.tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(played.state.table.rows[0], INITIAL + 1)
    world.play()
    [task] = training(world, 0)
    assert task.row == N
    width = PROBLEM.layout.num_parameters
    assert task.mu == pytest.approx(0.5 / float(torch.linalg.vector_norm(task.start[:width])) ** 2)


def test_fedfomo_mixes_what_gains_by_its_own_losses() -> None:
    def losses(client: int, models: int) -> list[float]:
        # old, own, then the others in order: only clients 0 and 1 gain, 0 from itself and from client 1
        assert models == 1 + N
        return {0: [1.0, 0.5, 0.0, 2.0, 2.0], 1: [1.0, 2.0, 0.0, 2.0, 2.0]}.get(client, [1.0] * 5)

    world = World(fedfomo(), Scripted(losses=losses, move=lambda c, t: t.start + torch.eye(P)[c] * (c + 1)))
    before = world.state.table.rows.clone()
    played = world.play()
    asked = [t for r in world.federation.asked[-1] for t in r.tasks if isinstance(t, port.Score)]
    assert [task.share for task in asked] == ["validation"] * N
    W = played.view.mixed.W
    # client 0: gains 0.5/1 (its own) and 1/2 (client 1's); client 1: 1/1 from client 0
    np.testing.assert_allclose(W[0], [0.5, 0.5, 0, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(W[1], [1, 0, 0, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(W[2:, N:], [[0, 0, 1, 0], [0, 0, 0, 1]])
    assert torch.equal(played.state.table.rows[2], before[2])
    assert played.view.mixed.metrics["weigh/kept_old"] == 2
    np.testing.assert_allclose(played.state.states["train"]["affinity"][0], [0.5, 0.5, -1 / 3, -1 / 4])


def test_fedfomo_sends_the_models_that_gained_most_before() -> None:
    part = FedFomo(models=1, exploration=0.0)
    mechanism = replace(fedfomo(), train=part, weigh=part)
    world = World(mechanism, Scripted(losses=lambda client, models: [1.0, 2.0, 0.5]))
    first = world.play()
    friend = {c: int(np.flatnonzero(np.delete(first.view.mixed.W[c, :N], c))[0]) for c in range(N)}
    for _ in range(2):  # who helped once is asked for again, since nobody else has helped
        again = world.play()
        assert {c: int(np.flatnonzero(np.delete(again.view.mixed.W[c, :N], c))[0]) for c in range(N)} == friend
        asked = [t for r in world.federation.asked[-1] for t in r.tasks]
        assert all(isinstance(t, port.Score) and len(t.models) == 3 for t in asked)


def test_who_does_not_say_its_losses_keeps_its_own_update() -> None:
    played = World(fedfomo(), Scripted(silent=frozenset({"fedfomo"}))).play()
    np.testing.assert_array_equal(played.view.mixed.W, np.eye(N, 2 * N))
    assert played.view.mixed.metrics["weigh/heard"] == 0
    assert not played.state.states["train"]["affinity"].any()


def test_a_cluster_whose_members_pull_apart_is_split_and_the_table_grows() -> None:
    world = World(cfl(eps1=10.0, eps2=1.0), Scripted(move=lambda c, t: t.start + (3.0 if c in (0, 2, 3) else -3.0)))
    played = world.play()
    assert played.state.table.size == 2
    assert played.state.table.owner.tolist() == [-1, -1]
    assert played.state.home.tolist() == [0, 1, 0, 0]  # the larger half keeps the row
    torch.testing.assert_close(played.state.table.rows, torch.stack([INITIAL + 3, INITIAL - 3]))
    metrics = played.view.mixed.metrics
    width = PROBLEM.layout.num_parameters
    assert (metrics["weigh/splits"], metrics["weigh/clusters"]) == (1, 2)
    assert metrics["weigh/longest_update"] == pytest.approx(3 * np.sqrt(width))
    assert metrics["weigh/mean_update"] == pytest.approx(1.5 * np.sqrt(width))
    played = world.play()
    assert [training(world, c)[0].row for c in range(N)] == [0, 1, 0, 0]
    assert played.state.table.size == 2  # one client is no cluster to split, and the others agree
    torch.testing.assert_close(played.state.table.rows[1], INITIAL - 6)


@pytest.mark.parametrize(("eps1", "eps2"), [(1.0, 1.0), (10.0, 100.0)])
def test_a_long_mean_or_short_updates_do_not_split(eps1: float, eps2: float) -> None:
    federation = Scripted(move=lambda c, t: t.start + (3.0 if c in (0, 2, 3) else -3.0))
    played = World(cfl(eps1=eps1, eps2=eps2), federation).play()
    assert played.state.table.size == 1
    torch.testing.assert_close(played.state.table.rows[0], INITIAL + 1.5)  # a plain mean, whatever the samples


def test_ifca_trains_and_holds_the_cluster_of_lowest_loss() -> None:
    federation = Scripted(losses=lambda c, models: [0.5, 0.4, 0.4] if c % 2 else [0.1, float("nan"), 0.2])
    world = World(ifca(clusters=3), federation)
    before = world.state.table.rows.clone()
    played = world.play()
    assert [training(world, c)[0].row for c in range(N)] == [0, 1, 0, 1]
    assert played.view.deployment.rows.tolist() == [0, 1, 0, 1]
    W = played.view.mixed.W
    np.testing.assert_allclose(W[0, :N], [0.25, 0, 0.75, 0])
    np.testing.assert_allclose(W[1, :N], [0, 1 / 3, 0, 2 / 3])
    assert torch.equal(played.state.table.rows[2], before[2])


def test_who_is_silent_stays_in_the_cluster_that_it_named_last() -> None:
    world = World(ifca(), Scripted(losses=lambda c, models: [1.0, 0.0]))
    world.play()
    world.federation.silent = frozenset({"clusters"})
    played = world.play()
    assert [training(world, c)[0].row for c in range(N)] == [1] * N
    assert played.view.deployment.rows.tolist() == [1] * N


def test_fedsoft_pulls_each_client_to_its_mean_of_the_centres() -> None:
    world = World(fedsoft(lam=0.3, interval=2), Scripted(counts=lambda c, models: [6, 2] if c < 2 else [0, 0]))
    before = world.state.table.rows.clone()
    played = world.play()
    own, none = training(world, 0)[0], training(world, 2)[0]
    assert own.mu == 0.3
    torch.testing.assert_close(own.centre, 0.75 * before[N] + 0.25 * before[N + 1])
    torch.testing.assert_close(none.centre, 0.5 * before[N] + 0.5 * before[N + 1])  # no samples: as at the start
    W = played.view.mixed.W
    first = np.array([7.5, 15, 15, 20])
    np.testing.assert_allclose(W[N, :N], first / first.sum())
    second = np.array([2.5, 5, 15, 20])
    np.testing.assert_allclose(W[N + 1, :N], second / second.sum())
    np.testing.assert_array_equal(W[:N], np.eye(N, 2 * N + 2))
    assert [len(stage) for stage in world.federation.asked] == [N, N]
    world.play()
    assert len(world.federation.asked) == 1  # nobody is asked in round 1, and the importance is remembered
    world.play()
    assert len(world.federation.asked) == 2
    np.testing.assert_allclose(world.state.states["train"]["importance"][0], [0.75, 0.25])


def test_an_unimportant_centre_keeps_a_little_weight() -> None:
    world = World(fedsoft(), Scripted(counts=lambda c, models: [8, 0]))
    world.play()
    np.testing.assert_allclose(world.state.states["train"]["importance"], [[1 / 1.0001, 1e-4 / 1.0001]] * N)


def by_gtflat(updates: torch.Tensor, sat: list[int]) -> torch.Tensor:
    width = PROBLEM.layout.num_parameters
    apart = np.array([[float((a - b)[:width].norm()) for b in updates] for a in updates])
    return torch.tensor(replicator.weights(replicator.equilibrium(-apart))) @ updates


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_scaffolds_rules_in_the_table(momentum: float) -> None:
    mechanism = scaffold(clients_per_round=3, global_lr=0.5)
    check_scaffold(mechanism, momentum, lambda updates, sat, x: x + 0.5 * (updates.mean(dim=0) - x))


def test_scaffold_with_another_aggregate_has_another_model_and_its_own_variates() -> None:
    mechanism = build_mechanism({"name": "scaffold", "clients_per_round": 3, "weigh": "gtflat"})
    check_scaffold(mechanism, 0.0, lambda updates, sat, x: by_gtflat(updates, sat))


def check_scaffold(mechanism: Mechanism, momentum: float, model: Callable[..., torch.Tensor]) -> None:
    """Play four rounds: x follows ``model(updates, who sat, x)``, and the variates Alg. 1, lines 10, 12 and 17."""
    world = World(mechanism, Scripted(), Recipe(lr=0.1, momentum=momentum))
    x, c, own = INITIAL.double(), torch.zeros(P).double(), torch.zeros(N, P).double()
    h = 0.1 * (3 if momentum == 0 else (1 + 1.5 + 1.75))
    for _ in range(4):
        played = world.play()
        sat = played.view.trained.seats.client.tolist()
        updates = played.view.trained.rows.double()
        for client in sat:
            [task] = training(world, client)
            torch.testing.assert_close(task.tilt.double(), c - own[client], atol=1e-5, rtol=1e-5)
        new = {i: own[i] - c + (x - u) / h for i, u in zip(sat, updates, strict=True)}
        c = c + sum(new[i] - own[i] for i in sat) / N
        x = model(updates, sat, x)
        for i in sat:
            own[i] = new[i]
        got = played.state.table.rows.double()
        torch.testing.assert_close(got[0], x, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(got[1], c, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(got[2:], own, atol=1e-4, rtol=1e-5)
        # the server's variate is the mean of the clients', whoever sat
        torch.testing.assert_close(got[1], got[2:].mean(dim=0), atol=1e-4, rtol=1e-5)
    assert played.state.table.owner.tolist() == [-1, -1, 0, 1, 2, 3]


@pytest.mark.parametrize("name", [*EVERY, "pifl", "tiff", *PARTS["select"]])
def test_nobody_present_is_an_empty_round(name: str) -> None:
    mechanism = (
        MECHANISMS[name]() if name in MECHANISMS else replace(MECHANISMS["fedavg"](), select=PARTS["select"][name]())
    )
    world = World(mechanism, Scripted(present_ids=()))
    before = world.state.table.rows.clone()
    played = [world.play() for _ in range(2)][1]
    assert torch.equal(played.state.table.rows, before)
    assert len(played.view.trained) == 0


@pytest.mark.parametrize("name", EVERY)
def test_a_private_row_depends_on_what_its_owner_has_only(name: str) -> None:
    """Other clients' updates and private rows must not count in it."""
    played = World(MECHANISMS[name](clients_per_round=3), Scripted()).play()
    mix, seats, owner = played.view.mixed, played.view.trained.seats, played.view.table.owner
    for row in np.flatnonzero(mix.owner >= 0):
        me = mix.owner[row]
        for column in np.flatnonzero(mix.W[row]):
            whose = seats.client[column] if column < len(seats) else owner[column - len(seats)]
            assert whose in (me, -1)
