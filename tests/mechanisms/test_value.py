"""Values of a real round: every method against brute force on the models themselves."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from experiments import digits
from torch.nn import functional
from watching import rounds_of

import hanse
from hanse.base.errors import UserError
from hanse.core.part import Values, View
from hanse.games import shapley
from hanse.learning.intervals import sample_blocks
from hanse.mechanisms.registry import build_mechanism
from hanse.runs.setup import Session, build
from tests.learning.helpers import worth_of

M = 4


@pytest.fixture(scope="module")
def world() -> Session:
    data, train = {"partition": {"alpha": 0.3}}, {"lr": 0.1, "epochs": 2, "batch_size": 32}
    sections = {"data": data, "model": {"name": "mlp", "hidden": [6]}, "train": train, "engine": {"train": "stacked"}}
    return build(digits({"name": "greedyfed", "clients_per_round": M}, 6, 60, **sections))


@pytest.fixture(scope="module")
def view(world: Session) -> View:
    *_, played = rounds_of(world, 2)
    return played.view


def value(view: View, **options: Any) -> Values:
    part: Any = build_mechanism({"name": "fedavg", "value": options}).value
    found: Values = part.value(view, {})[0]
    return found


def utilities(world: Session, view: View, kind: str, game: str = "average") -> dict[frozenset[int], float]:
    """Return what each coalition's model is worth: its members' average by samples, or the old row and their steps."""
    n, old, rows = view.trained.num_samples, view.table.rows[0].double(), view.trained.rows.double()
    samples = world.data.server_validation
    found = {frozenset[int](): worth_of(world.problem, old.float(), samples, kind)}
    for members in (list(some) for size in range(1, M + 1) for some in combinations(range(M), size)):
        if game == "average":
            row = torch.tensor(n[members] / n[members].sum()) @ rows[members]
        else:
            row = old + torch.tensor(n[members] / n.sum()) @ (rows[members] - old)
        found[frozenset(members)] = worth_of(world.problem, row.float(), samples, kind)
    return found


@pytest.mark.parametrize("kind", ["loss", "accuracy", "balanced"])
def test_exact_values_are_brute_force_on_averaged_models(world: Session, view: View, kind: str) -> None:
    want = shapley.exact(utilities(world, view, kind).__getitem__, M)
    got = value(view, name="exact", utility=kind)
    np.testing.assert_allclose(got.per_seat, want, atol=2e-6)
    assert got.metrics["value/models_evaluated"] == 2**M


def test_a_metric_is_the_same_where_coalitions_are_looked_at_three_at_a_time(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = value(view, name="exact", utility="f1").per_seat
    monkeypatch.setattr("hanse.learning.coalitions._OUTPUTS", 3 * 16 * len(view.judge.validation))
    assert value(view, name="exact", utility="f1").per_seat.tolist() == whole.tolist()


@pytest.mark.parametrize("name", ["exact", "mixture", "gtg"])
def test_in_the_increment_game_the_others_steps_are_missing(world: Session, view: View, name: str) -> None:
    want = shapley.exact(utilities(world, view, "loss", "increment").__getitem__, M)
    options = {"eps": 0.0, "max_permutations": 400} if name == "gtg" else {}
    found = value(view, name=name, game="increment", **options)
    np.testing.assert_allclose(found.per_seat, want, atol=2e-3 if name == "gtg" else 2e-6)
    assert "value/not_averages" not in found.metrics
    cut = "value/cut_short"
    assert name != "gtg" or found.metrics[cut] == 0 < value(view, name=name, eps=0.05).metrics[cut]
    # another game than that of the averages
    assert np.abs(found.per_seat - value(view, name="exact").per_seat).max() > 0.01


def test_leave_one_out_and_banzhaf_by_hand(world: Session, view: View) -> None:
    worth = utilities(world, view, "loss")
    everyone = frozenset(range(M))
    loo = [worth[everyone] - worth[everyone - {i}] for i in range(M)]
    np.testing.assert_allclose(value(view, name="leave_one_out").per_seat, loo, atol=2e-6)
    banzhaf = [np.mean([worth[s | {i}] - worth[s] for s in worth if i not in s]) for i in range(M)]
    np.testing.assert_allclose(value(view, name="banzhaf").per_seat, banzhaf, atol=2e-6)


def test_first_order_values_are_gradient_times_move(world: Session, view: View) -> None:
    samples = world.data.server_validation
    n, rows = view.trained.num_samples, view.trained.rows
    shares = torch.tensor(n / n.sum(), dtype=torch.float32)
    mixed = shares @ rows
    world.problem.layout.load(world.problem.module, mixed)
    loss = functional.cross_entropy(world.problem.module(samples.x), samples.y)
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(world.problem.module.parameters()))])
    # PI-FL eq. (2): -lambda_i <gradient, w_i - w_mixed>
    want = [-float(shares[i] * (gradient @ (rows[i] - mixed))) for i in range(M)]
    got = value(view, name="first_order")
    np.testing.assert_allclose(got.per_seat, want, rtol=1e-3, atol=1e-6)
    assert got.per_seat.sum() == pytest.approx(0, abs=1e-6)


def test_few_seats_are_valued_exactly_by_the_mixture_and_many_with_errors(view: View) -> None:
    """Four seats have 16 coalitions, fewer than the default of 10 models a seat."""
    exact, found = value(view, name="exact"), value(view, name="mixture")
    assert found.per_seat == pytest.approx(exact.per_seat, abs=1e-7)
    assert (found.standard_errors == 0).all()
    assert found.without_block == pytest.approx(exact.without_block, abs=1e-7)
    assert found.metrics["value/models_evaluated"] == 16
    few = value(view, name="mixture", budget=12)
    assert few.metrics["value/models_evaluated"] == 12
    assert few.per_seat == pytest.approx(exact.per_seat, abs=0.05 * float(np.abs(exact.per_seat).max()))
    assert few.without_block == pytest.approx(exact.without_block, abs=0.1 * float(np.abs(exact.per_seat).max()))


@pytest.mark.parametrize("broken", [float("nan"), 1e30])
def test_updates_without_a_finite_loss_leave_the_game_first(view: View, broken: float) -> None:
    rows = view.trained.rows.clone()
    rows[2] = broken
    found = value(replace(view, updates=replace(view.trained, rows=rows)), name="mixture")
    sound = [0, 1, 3]
    game = view.judge.coalitions(rows[sound], view.table.rows[0], view.mixed.W[0, sound], "loss")
    assert found.per_seat[sound] == pytest.approx(shapley.exact(game, 3), abs=1e-9)
    assert found.per_seat[2] == -1e9
    assert found.metrics["value/not_finite"] == 1


def test_a_budget_too_small_for_the_seats_is_raised_to_the_least(view: View) -> None:
    """Who joins makes games larger: a run does not end for it."""
    assert value(view, name="mixture", budget=2).metrics["value/models_evaluated"] == 10


def test_a_ranking_that_is_sure_ends_the_evaluation(view: View) -> None:
    """Five seats have 32 coalitions: a bar that is low is met before all are known, one that is high never."""
    low, high = (value(view, name="mixture", sure=sure) for sure in (0.51, 1 - 1e-12))
    assert low.metrics["value/models_evaluated"] <= high.metrics["value/models_evaluated"] <= 32
    assert low.per_seat == pytest.approx(value(view, name="exact").per_seat, abs=0.02)


@pytest.mark.parametrize(
    ("name", "key", "wrong"),
    [("path", "utility", "accuracy"), ("path", "points", 0), ("path", "points", 25), ("exact", "utility", "f2")],
)
def test_options_without_effect_or_meaning_are_refused(name: str, key: str, wrong: Any) -> None:
    with pytest.raises(UserError, match=f"mechanism.value.{key}: {wrong!r}"):
        build_mechanism({"name": "fedavg", "value": {"name": name, key: wrong}})


@pytest.mark.parametrize(
    ("weights", "averages"),
    [([0.1, 0.2, 0.3, 0.4, 0.0], True), ([0.1, 0.2, 0.3, 0.2, 0.2], True), ([-0.1, 0.4, 0.3, 0.4, 0.0], False)],
)
def test_a_model_with_weights_below_0_is_told(view: View, weights: list[float], averages: bool) -> None:
    metrics = value(replace(view, mix=replace(view.mixed, W=np.array([weights]))), name="mixture").metrics
    assert metrics.get("value/not_averages", 0.0) == (0.0 if averages else 1.0)


def test_rounds_that_were_valued_as_what_they_were_not_are_told() -> None:
    small = {"data": {"clients": 4}, "model": "logistic", "run": {"rounds": 2}}
    run = hanse.run(hanse.Experiment(mechanism={"name": "fedavg", "value": {"name": "gtg", "eps": 1e9}}, **small))
    run.metrics[1]["value/not_averages"] = 1.0
    notes = {one.code: (one.fields["rounds"], one.fields["of"]) for one in hanse.facts(run).notes if "of" in one.fields}
    assert notes == {"truncated_between": (2, 2), "not_averages": (1, 2)}


ESTIMATES = "exact", "exact accuracy", "exact balanced", "gtg", "monte_carlo", "leave_one_out", "banzhaf", "first_order"


@pytest.mark.parametrize("name", [*ESTIMATES, "path"])
def test_without_a_block_values_are_those_of_the_other_samples(world: Session, view: View, name: str) -> None:
    samples = view.judge.validation
    blocks = sample_blocks(len(samples))
    assert len(blocks) == 20
    assert torch.equal(torch.cat(blocks).sort().values, torch.arange(len(samples)))
    # one sweep without truncation, so that GTG takes the same permutations on other samples
    given: dict[str, Any] = {"gtg": {"eps": 0.0, "max_permutations": M}, "monte_carlo": {"permutations": 30}}.get(
        name, {}
    )
    if name == "path":
        given = {"points": 24}  # the most, so that the same rule is taken on other samples
    name, _, utility = name.partition(" ")
    given |= {"utility": utility} if utility else {}
    found = value(view, name=name, **given)
    assert found.without_block.shape == (M, 20)
    for b in (0, 7):
        kept = torch.cat([block for k, block in enumerate(blocks) if k != b])
        alone = value(replace(view, judge=replace(view.judge, validation=samples.take(kept))), name=name, **given)
        np.testing.assert_allclose(found.without_block[:, b], alone.per_seat, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.without_block.mean(axis=1), found.per_seat, atol=0.01)
