"""An attack on data: a behaviour that shows its client other targets, in this process and at a node."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from experiments import digits

import hanse
from hanse.core.port import Call, Request, Train, Trained
from hanse.data.samples import Samples
from hanse.federation.behaviour import Behaviour, Me
from hanse.learning.job import SeatJob
from hanse.runs.round import first_state, play_round
from hanse.runs.setup import Session, build


@dataclass(frozen=True)
class Flip(Behaviour):
    """The clients count the classes from the other end."""

    clients: tuple[int, ...] = (1,)
    classes: int = 10

    def sees(self, me: Me, round: int, targets: torch.Tensor) -> torch.Tensor:
        return self.classes - 1 - targets if me.id in self.clients else targets


def experiment(train: str = "sequential", **mechanism: Any) -> hanse.Experiment:
    data, engine = {"partition": {"samples_per_client": 24, "sizes": "equal"}}, {"train": train, "device": "cpu"}
    recipe = {"lr": 0.1, "epochs": 2, "batch_size": 8}
    return digits({"name": "fedavg"} | mechanism, 4, 2, data=data, engine=engine, train=recipe)


def setup(*behaviours: Behaviour, train: str = "sequential") -> Session:
    found = build(experiment(train))
    return replace(found, federation=replace(found.federation, behaviours=behaviours))


def updates(here: Session, round: int = 0) -> dict[int, Trained]:
    """Every client's update by its id."""
    asked = [Request(c, (Train(c, 0, here.context.initial(0)),)) for c in range(4)]
    found = [reply.results[0] for reply in here.federation.exchange(Call(round, asked))]
    return {u.seat: u for u in found if isinstance(u, Trained)}


@pytest.mark.parametrize("train", ["sequential", "stacked"])
def test_a_client_trains_with_the_targets_that_it_sees_and_nobody_else_does(train: str) -> None:
    honest, attacked = setup(train=train), setup(Flip(), train=train)
    plain, flipped = updates(honest), updates(attacked)
    pool, [index] = honest.data.pool([1])
    own = Samples(pool.x[index], 9 - pool.y[index])
    job = SeatJob(torch.arange(24), honest.context.initial(0), (honest.context.seed, 0, 1, 0))
    want = honest.engine.train(own, [job], honest.context.recipe, 0.1)
    torch.testing.assert_close(flipped[1].row, want.rows[0], rtol=1e-6, atol=1e-7)
    assert (flipped[1].row - plain[1].row).abs().max() > 0.05
    for c in (0, 2, 3):
        torch.testing.assert_close(flipped[c].row, plain[c].row, rtol=1e-6, atol=1e-7)
        assert (flipped[c].num_samples, flipped[c].steps) == (24, 6)
    assert flipped[1].num_samples == 24
    assert torch.equal(pool.y[index], honest.data.pool([1])[0].y[index])


def test_what_is_reported_of_the_targets_is_of_those_that_were_seen() -> None:
    here = build(experiment(name="fedgen"))
    counts = []
    for behaviours in ([], [Flip((0, 1, 2, 3))]):
        played = replace(here, federation=replace(here.federation, behaviours=behaviours))
        counts.append(play_round(played, first_state(played)).view.trained.extras["label_counts"])
    assert torch.equal(counts[1], counts[0].flip(1))
    assert counts[0].sum() == 4 * 48
