"""Path values over whole rounds and runs: what they sum to, whose a server's step is, and what they do not carry."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from experiments import digits
from rotation import rotating
from torch import nn
from watching import rounds_of

import hanse
from hanse.base.errors import PartError, UserError
from hanse.core.part import Aggregate, AggregatePart, Along, Group, Settlement, SettlePart, State, View
from hanse.games import path
from hanse.mechanisms import server_steps
from hanse.mechanisms.robust import Clipped
from hanse.mechanisms.weigh import UniformWeights
from hanse.runs import round as rounds
from hanse.runs.round import first_state, play_round
from hanse.runs.setup import Own, build
from tests.learning.helpers import worth_of


def experiment(mechanism: Any, *, rounds: int = 3, clients: int = 4, **more: Any) -> hanse.Experiment:
    """Return a small experiment whose server gives path values."""
    table = {"name": mechanism} if isinstance(mechanism, str) else mechanism
    data = {"partition": {"alpha": 0.5}, **more.pop("data", {})}
    model = more.pop("model", {"name": "mlp", "hidden": [16]})
    train = {"lr": 0.1, "epochs": 2}
    return digits({"value": "path", **table}, clients, rounds, data=data, model=model, train=train, **more)


def column(run: hanse.Run, name: str) -> np.ndarray:
    return np.array([line[f"value/{name}"] for line in run.metrics], float)


# ---- sums


def test_over_a_run_they_sum_to_what_the_loss_fell_by() -> None:
    one = experiment("fedavg", rounds=6, clients=8, behaviour={"attacker": {"clients": [2], "scale": 1e39}})
    world = build(one)
    run = hanse.run(one)
    begun = hanse.run(experiment("fedavg", rounds=0, clients=8))
    first, last = (worth_of(world.problem, one.table.rows[0], world.data.server_validation) for one in (begun, run))
    fell = last - first
    values = sum(seat.get("value", 0.0) for seat in run.clients)
    assert fell > 0.5
    assert values == pytest.approx(fell, rel=0.01)
    assert values + column(run, "residual").sum() == pytest.approx(fell, abs=1e-5)
    np.testing.assert_allclose(column(run, "sum"), column(run, "gain"), rtol=0.01)
    # an update that was refused is worth nothing to the round, and is not among the values
    refused = [seat for seat in run.clients if seat["client"] == 2]
    assert refused
    assert all("value" not in seat for seat in refused)


@dataclass(frozen=True)
class Withholds(SettlePart):
    """Withholds one row in every round."""

    needs = frozenset()
    row: int = 1

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        return Settlement(frozenset({self.row} if view.stage == "close" else {})), state


@pytest.mark.parametrize("way", ["withheld", "not finite"])
def test_an_update_to_a_row_that_stays_as_it_was_is_worth_nothing(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = build(experiment("local"))
    if way == "withheld":
        world = replace(world, mechanism=replace(world.mechanism, settle=Withholds()))
    else:
        mixed, found = rounds._mixed, iter([(1,), ()])
        monkeypatch.setattr(rounds, "_mixed", lambda view: (mixed(view)[0], next(found)))
    first = first_state(world)
    played = play_round(world, first)
    values = played.view.values
    before, after = first.table.rows, played.state.table.rows
    assert torch.equal(after[1], before[1])
    assert not torch.equal(after[0], before[0])
    target = played.view.trained.seats.target
    assert values.per_seat[target == 1].tolist() == [0.0]
    assert values.per_seat[target != 1].all()
    assert values.draw_errors[target == 1].tolist() == [0.0]
    # what is told of the round is about the rows as they are now
    fell = float(np.subtract(world.judge.score(before).loss, world.judge.score(after).loss).sum())
    metrics = values.metrics
    assert metrics["value/gain"] == pytest.approx(fell, abs=1e-6)
    assert metrics["value/sum"] == values.per_seat.sum()
    assert metrics["value/sum"] + metrics["value/residual"] == pytest.approx(fell, abs=1e-6)
    assert {type(number) for number in metrics.values()} == {float}


ROWS = [
    "fedprox", "scaffold", "fedgen", "gtfedavg", "ditto", "fedamp", "heur_fedamp", "pfedgraph", "cfl", "ifca",
    "fedsoft", "ipfl", "pifl", "tiff", "local", "fedfomo", "ipfl_posted",
]  # fmt: skip


@pytest.mark.parametrize("name", rotating(ROWS, 3))
def test_shared_models_tiers_clusters_and_personal_rows_are_valued_by_the_rows_that_they_train(name: str) -> None:
    data = {"client_validation": 0.2} if name == "fedfomo" else {}
    *_, played = rounds_of(build(experiment(name, data=data, behaviour={"free_rider": {"fraction": 0.25}})), 2)
    view, found = played.view, played.view.values
    idle = (view.trained.rows == view.table.rows[view.trained.seats.start]).all(1).numpy()
    assert set(view.trained.seats.client[idle].tolist()) == {1}
    assert found.per_seat[idle].tolist() == [0.0] * idle.sum()
    new = view.mixed.rows(view.trained.rows, view.table.rows)
    gains = {
        row: float(np.subtract(*view.judge.score(torch.stack([view.table.rows[row], new[row]])).loss))
        for row in view.trained.seats.groups()
    }
    assert found.metrics["value/gain"] == pytest.approx(sum(gains.values()), abs=1e-6)
    for row, group in view.trained.seats.groups().items():
        # 5 %: on a model with eight ReLUs the integral keeps an error even at 24 points
        total = found.per_seat[group].sum() + found.by_row[row]["value/carried"]
        assert total == pytest.approx(gains[row], rel=0.05, abs=1e-3)
    # pFedGraph's clients start from centres, and buyers from what they bought, which others' updates made: what takes
    # their own rows there is nobody's
    assert (abs(found.metrics["value/carried"]) > 0.1) == (name in ("pfedgraph", "ipfl_posted"))


# ---- servers that step


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedyogi", "fedadagrad"])
def test_along_a_servers_step_updates_earn_their_part_and_momentum_is_the_servers(name: str) -> None:
    options = {"lr": 0.7} if name == "fedavgm" else {"lr": 0.02, "beta1": 0.3}
    world = build(experiment({"name": "fedavg", "weigh": {"name": name, **options}}))
    first, second = rounds_of(world, 2)
    view = second.view
    found, width = view.values, view.context.layout.num_parameters
    # by hand: the mean gradient on the way that the row really went, at many points, and each update's part of the step
    old, new = view.table.rows[0], view.mixed.made[0].row
    whole = path.integrate(lambda w: -view.judge.gradient(w[None])[0], old, new - old, 24)
    part: Any = world.mechanism.weigh
    change = new[:width] - old[:width]
    n = view.trained.num_samples
    mean = sum(float(k) * d for k, d in zip(n / n.sum(), view.trained.rows[:, :width] - old[:width], strict=True))
    state = first.state.states["weigh"]
    step, after = part.step(mean, {key: state[key][0] for key in state if key != "rows"})
    torch.testing.assert_close(step, change, rtol=1e-4, atol=1e-6)
    slope = whole.gradients[0, :width] * part.scale(after)
    want = [float(k * (slope @ (row[:width] - old[:width]).double()))
            for k, row in zip(n / n.sum(), view.trained.rows, strict=True)]  # fmt: skip
    np.testing.assert_allclose(found.per_seat, want, rtol=0.02, atol=0.002 * np.abs(want).max())
    metrics = found.metrics
    assert metrics["value/sum"] + metrics["value/residual"] == pytest.approx(metrics["value/gain"], abs=1e-9)
    rest = whole.total - sum(want)
    assert metrics["value/carried"] == pytest.approx(rest, rel=0.05, abs=1e-3)
    assert abs(rest) > 1e-3


def test_a_rule_that_says_parted_and_does_not_tell_its_parts_is_found() -> None:
    class Silent(server_steps.FedAvgM):
        along: Any = None

        def aggregate(self, group: Any, state: Any) -> Any:
            return replace(super().aggregate(group, state), along=self.along)

    class Wrong(Silent):
        along = Along(np.ones(4), torch.ones(3))

    world = build(experiment({"name": "fedavg", "weigh": "fedavgm"}))
    for part, said in ((Silent(), "reapply"), (Wrong(), "along.scale")):
        wrong = replace(world, mechanism=replace(world.mechanism, weigh=part))
        with pytest.raises(PartError, match=said):
            play_round(wrong, first_state(wrong))


# ---- what the path does not carry


@pytest.mark.parametrize("weigh", ["samples", {"name": "fedavgm", "momentum": 0.0, "lr": 0.7}])
def test_batch_norm_statistics_are_part_of_the_step_and_of_whose_update_moves_them(weigh: Any) -> None:
    """Their part of the gain was nobody's: up to 36 % of a round's, and the points were doubled in vain to find it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    mechanism, train = {"name": "fedavg", "weigh": weigh, "value": "path"}, {"lr": 0.1, "epochs": 2}
    run = hanse.run(digits(mechanism, 4, 4, model="mlp", train=train), model=model)
    gain, total, rest = column(run, "gain"), column(run, "sum"), column(run, "residual")
    np.testing.assert_allclose(total + rest, gain, atol=1e-9)
    np.testing.assert_allclose(total, gain, rtol=0.02)
    np.testing.assert_allclose(column(run, "carried"), 0.0, atol=1e-6)
    assert column(run, "gradients").max() <= 9


@dataclass(frozen=True)
class Weights(AggregatePart):
    """Fixed weights on the updates and on the old row, whatever they sum to."""

    updates: float = 0.15
    old: float = 0.4

    def aggregate(self, group: Group, state: State) -> Aggregate:
        return Aggregate(np.full(len(group.at), self.updates), self.old)


def clipped(steps: torch.Tensor, times: float) -> torch.Tensor:
    """Return a quarter of each step ``[4, P]``, none longer than ``times`` their median."""
    lengths = steps.double().norm(dim=1)
    return steps / 4 * (times * lengths.quantile(0.5) / lengths).clamp(max=1.0)[:, None]


@pytest.mark.parametrize(
    ("rule", "parts"),
    [(Weights(w, old), lambda steps, w=w: w * steps) for w, old in ((0.15, 0.4), (0.4, -0.6), (0.25, 0.0))]
    + [(Clipped(of=UniformWeights(), times=times), partial(clipped, times=times)) for times in (1.0, 0.5)],
)
def test_of_an_affine_row_each_update_has_the_integral_along_its_own_part_of_the_step(rule: Any, parts: Any) -> None:
    """A row moves by the sum of ``W_i (U_i - w)``, whatever the W_i sum to, and however a rule came to them."""
    world = build(experiment("fedavg"))
    world = replace(world, mechanism=replace(world.mechanism, weigh=rule))
    view = play_round(world, first_state(world)).view
    found, before = view.values, view.table.rows[0]
    mine = parts(view.trained.rows - before)
    middles = before + (torch.arange(200)[:, None] + 0.5) / 200 * mine.sum(0)
    slope = -view.judge.gradient(middles.to(before)).mean(0)
    np.testing.assert_allclose(found.per_seat, (mine.double() @ slope.double()).numpy(), rtol=0.02, atol=1e-3)
    assert found.metrics["value/sum"] == pytest.approx(found.metrics["value/gain"], rel=0.02, abs=1e-3)
    assert found.metrics["value/carried"] == pytest.approx(0.0, abs=1e-5)


# ---- unusual input


class Fast(nn.Module):
    """Outputs of evaluation without a trace of how they came about, or rounded."""

    def __init__(self, rounded: bool) -> None:
        super().__init__()
        self.layer, self.rounded = nn.Linear(64, 10), rounded

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(self.training or self.rounded):
            output: torch.Tensor = self.layer(x.flatten(1))
        return torch.round(output) if self.rounded and not self.training else output


@pytest.mark.parametrize("rounded", [True, False])
def test_a_model_without_a_gradient_is_refused_before_round_0(rounded: bool) -> None:
    """The one gave values of 0 in all rounds, the other ended the run with PyTorch's error in the first."""
    one = experiment("fedavg", model={})
    summed = one.model_copy(update={"federation": one.federation.model_copy(update={"secure": {"group": 3}})})
    for asked, value in ((one, "path"), (one, "first_order"), (summed, "group_path")):
        with pytest.raises(UserError, match=f"'{value}' needs a loss with a gradient"):
            hanse.run(asked, model=Fast(rounded), value=value)
    assert hanse.run(one, model=Fast(rounded), value="leave_one_out").metrics[-1]["value/sum"] != 0


# ---- turned on in a plain way


def test_run_turns_values_on_by_the_path_unless_the_mechanism_has_its_own() -> None:
    plain = experiment({"name": "fedavg", "value": "none"}, rounds=1)
    assert not any("value" in seat for seat in hanse.run(plain).clients)
    on, same = hanse.run(plain, value=True), hanse.run(experiment("fedavg", rounds=1))
    assert [seat["value"] for seat in on.clients] == [seat["value"] for seat in same.clients]
    own = hanse.run(experiment({"name": "greedyfed", "value": "exact"}, rounds=1), value=True)
    assert "value/gain" not in own.metrics[0]
    other = hanse.run(plain, value={"name": "path", "points": 1})
    assert other.metrics[0]["value/gain"] == on.metrics[0]["value/gain"]
    for wrong in (3, "pathh", None):
        with pytest.raises(UserError, match="value"):
            hanse.run(plain, value=wrong)


@pytest.mark.parametrize("some", ["one sample", "one class"])
def test_on_few_samples_values_still_sum_to_the_gain_and_of_one_sample_no_error_is_known(some: str) -> None:
    world = build(experiment("fedavg"))
    samples = world.data.server_validation
    kept = torch.tensor([0]) if some == "one sample" else torch.nonzero(samples.y == samples.y[0])[:, 0]
    world = replace(world, judge=replace(world.judge, validation=samples.take(kept)))
    found = play_round(world, first_state(world)).view.values
    assert found.per_seat.sum() == pytest.approx(found.metrics["value/gain"], rel=0.05)
    assert found.without_block.shape[1] == (0 if some == "one sample" else min(20, len(kept)))


def test_a_path_that_ends_at_no_finite_loss_is_worth_nothing_and_is_counted() -> None:
    """Its gradients may be finite: the values were, and did not sum to the gain, which was minus infinity."""
    x = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    one = experiment("fedavg", data={"partition": "iid"}, model={"name": "mlp", "hidden": [8]})
    one = one.model_copy(update={"data": one.data.model_copy(update={"source": "object"})})
    world = build(one, own=Own(data=(x, x.sum(1))))
    view = play_round(world, first_state(world)).view
    rows = view.trained.rows.clone()
    rows[0] *= 1e11
    part: Any = world.mechanism.value
    found = part.value(replace(view, updates=replace(view.trained, rows=rows)), {})[0]
    assert found.per_seat.tolist() == [0.0] * 4
    assert found.metrics["value/gain"] == -np.inf
    assert found.metrics["value/not_finite"] == 1


# ---- the increment game, by the estimators


def test_who_sends_nothing_is_worth_nothing_in_the_increment_game_wherever_it_started() -> None:
    value = {"name": "exact", "game": "increment"}
    one = experiment({"name": "pfedgraph", "value": value}, behaviour={"free_rider": {"fraction": 0.25}})
    *_, played = rounds_of(build(one), 2)
    view = played.view
    idle = view.trained.seats.client == 1
    np.testing.assert_allclose(view.values.per_seat[idle], 0.0, atol=1e-9)
    assert np.abs(view.values.per_seat[~idle]).min() > 1e-3
