"""FedGen as a mechanism: what travels, what comes back, what the server learns, whole runs on digits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from experiments import digits

import hanse
from hanse.core.port import Reply, Request, Train, Trained
from hanse.federation.check import refusal
from hanse.learning.job import batch_plan
from hanse.mechanisms.fedgen import FedGen
from hanse.runs.config import FederationSection
from hanse.runs.round import Played, first_state, play_round
from hanse.runs.setup import Session, build


def experiment(name: str = "fedgen", rounds: int = 3, **sections: Any) -> hanse.Experiment:
    data, model = {"partition": {"alpha": 0.1}}, {"name": "mlp", "hidden": [12]}
    train, engine = {"steps": 10, "batch_size": 32, "lr": 0.02}, {"train": "sequential", "workers": 1}
    mechanism = {"name": name, "clients_per_round": 3}
    return digits(mechanism, 6, rounds, data=data, model=model, train=train, engine=engine, **sections)


def play(world: Session, rounds: int, lost: tuple[int, ...] = ()) -> list[Played]:
    """Play rounds; nobody answers in the rounds of ``lost``."""
    state, played = first_state(world), []
    for round in range(rounds):
        none = world.experiment.model_copy(update={"federation": FederationSection(min_replies=99)})
        played.append(play_round(replace(world, experiment=none) if round in lost else world, state))
        state = played[-1].state
    return played


def state_of(played: Played) -> Any:
    return played.state.states["train"]


def test_label_counts_come_through_the_port_and_are_those_of_the_batches() -> None:
    made = experiment(behaviour={"straggler": {"fraction": 0.5}})
    world = build(made)
    [played] = play(world, 1)
    counts = played.view.trained.extras["label_counts"]
    assert counts.dtype == torch.int64
    steps = []
    for s, client in enumerate(played.view.trained.seats.client.tolist()):
        pool, [index] = world.data.pool([client])
        work = int(played.view.trained.steps[s])
        steps.append(work)
        plan = batch_plan(len(index), made.train.recipe, (made.run.seed, 0, client, 0), work)
        want = np.bincount(pool.y[index].numpy()[plan[plan >= 0]], minlength=10)
        assert counts[s].tolist() == want.tolist()
    assert min(steps) < 10  # one of them straggled
    np.testing.assert_array_equal(state_of(played)["counts"], counts.sum(0).numpy())


def test_the_terms_begin_after_the_generators_first_training_and_fade() -> None:
    world = build(experiment(rounds=5))
    part, played = FedGen(generative_alpha=4.0, generative_beta=6.0), play(world, 5, lost=(0,))
    sent = [part.sends(p.view, s) for p, s in zip(played[1:], map(state_of, played[:-1]), strict=True)]
    assert [n.alpha for n in sent] == pytest.approx([0.0, 4 * 0.98**2, 4 * 0.98**3, 4 * 0.98**4])
    assert [n.beta for n in sent] == pytest.approx([0.0, 6 * 0.98**2, 6 * 0.98**3, 6 * 0.98**4])
    assert [state_of(p)["steps"] for p in played] == [0, 50, 100, 150, 200]


def test_round_0_is_fedavgs() -> None:
    taught, plain = (play(build(experiment(name)), 2) for name in ("fedgen", "fedavg"))
    assert torch.equal(taught[0].state.table.rows, plain[0].state.table.rows)
    assert not torch.equal(taught[1].state.table.rows, plain[1].state.table.rows)


def test_labels_are_drawn_by_their_counts_or_uniformly_among_those_met() -> None:
    [played] = play(build(experiment()), 1)
    state = dict(state_of(played)) | {"counts": np.array([0, 5, 0, 15, 0, 0, 0, 0, 0, 0.0])}
    by_counts = FedGen().sends(played.view, state).labels
    uniform = FedGen(labels="uniform").sends(played.view, state).labels
    assert by_counts.tolist() == [0, 0.25, 0, 0.75, 0, 0, 0, 0, 0, 0]
    assert uniform.tolist() == [0, 0.5, 0, 0.5, 0, 0, 0, 0, 0, 0]


def test_a_head_out_of_all_bounds_leaves_the_generator_as_it_was() -> None:
    world = build(experiment())
    first, second = play(world, 2)
    updates = second.view.trained
    wild = replace(second.view, updates=replace(updates, rows=torch.full_like(updates.rows, 1e38)))
    after = world.mechanism.train.learn(wild, state_of(first))
    assert torch.equal(after["generator"], state_of(first)["generator"])
    assert after["steps"] == state_of(first)["steps"] == 50
    assert np.isnan(after["loss"])
    assert after["counts"].sum() > state_of(first)["counts"].sum()


@pytest.mark.parametrize(
    "counts", [None, torch.zeros(9, dtype=torch.int64), torch.zeros(10), torch.full((10,), -1), torch.arange(10)]
)
def test_wrong_label_counts_are_refused(counts: torch.Tensor | None) -> None:
    [played] = play(build(experiment()), 1)
    task = Train(0, 0, torch.zeros(5), payload=FedGen().sends(played.view, state_of(played)))
    trained = Trained(0, torch.zeros(5), 3.0, 0.1, 2, {} if counts is None else {"label_counts": counts})
    reason = refusal(Request(1, (task,)), Reply(1, (trained,)))
    assert reason is None if counts is not None and counts[-1] == 9 else "label_counts" in str(reason)
