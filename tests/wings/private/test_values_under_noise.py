"""Path values of updates with noise: the error that is added, against PyTorch's own gradients and the noise itself."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from experiments import digits
from watching import rounds_of

import hanse
from hanse.mechanisms.weigh import _beyond, _by_variance
from hanse.reports.contributions import clearly_harmful
from hanse.runs.round import first_state, play_round
from hanse.runs.setup import build
from hanse.wings.private.privacy import Private

pytest.importorskip("dp_accounting")


def experiment(
    noise: float, mechanism: Any = "fedavg", rounds: int = 1, clip: float = 0.5, **private: Any
) -> hanse.Experiment:
    table = {"value": "path", **({"name": mechanism} if isinstance(mechanism, str) else mechanism)}
    private = {"clip": clip, "noise": noise, "epsilon": 1e6, "delta": 1e-5, **private}
    return digits(table, 8, rounds, data={"validation": 0.2}, federation={"private": private})


def mean_gradient(setup: Any, start: torch.Tensor, end: torch.Tensor, points: int) -> torch.Tensor:
    """The validation loss's mean gradient on the way, by Gauss-Legendre points and plain PyTorch."""
    samples, module = setup.data.server_validation, setup.problem.module
    nodes, weights = np.polynomial.legendre.leggauss(points)
    total = torch.zeros(len(start), dtype=torch.float64)
    for node, weight in zip(nodes, weights, strict=True):
        setup.problem.layout.load(module, start + (node + 1) / 2 * (end - start))
        loss = torch.nn.functional.cross_entropy(module(samples.x), samples.y)
        slopes = torch.autograd.grad(loss, list(module.parameters()))
        total += weight / 2 * torch.cat([s.flatten() for s in slopes]).double()
    return total


def test_the_error_is_weight_times_noise_times_slope_and_holds_the_noise_that_was_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: dict[int, torch.Tensor] = {}
    plain = Private._step

    def step(self: Private, round: int, client: int, what: str, at: Any, moved: Any, clip: float) -> torch.Tensor:
        sent = plain(self, round, client, what, at, moved, clip)
        drawn[client] = sent - moved.double() * min(1.0, clip / float(torch.linalg.vector_norm(moved.double())))
        return sent

    monkeypatch.setattr(Private, "_step", step)
    setup = build(experiment(0.02))
    inside, seats = 0, 0
    for played in rounds_of(setup, 6):
        view, values = played.view, played.view.values
        old, new = view.table.rows[0], played.state.table.rows[0]
        slope = mean_gradient(setup, old, new, 6)
        weights = view.mixed.W[0, : len(view.trained)]
        noise = weights * 0.02 * 0.5
        # the loss beyond what its slope at the start says, as far as the step is noise
        step = (new - old).double()
        beyond = max(0.0, float((slope - mean_gradient(setup, old, old, 1)) @ step))
        worse = beyond * len(step) * noise**2 / max(float(step @ step), len(step) * float((noise**2).sum()))
        chance = noise * float(torch.linalg.vector_norm(slope))
        expected = np.hypot(chance, np.sqrt(2 * view.round + 1) * worse)
        np.testing.assert_allclose(values.standard_errors, expected, rtol=2e-3)
        for s, client in enumerate(view.trained.seats.client.tolist()):
            off = float(weights[s] * (slope @ drawn[client]))
            inside, seats = inside + (abs(off) <= 1.96 * values.standard_errors[s]), seats + 1
    assert inside / seats >= 0.85  # 95 % of 48; a binomial of 48 is below 0.85 once in a thousand


def sums_of_noise(runs: int, rounds: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Sums ``[runs, clients]`` of values of updates that are noise alone, from a trained model, and their errors."""
    stricter = [{"clients": [0], "epsilon": 1e6, "noise": 2e6 * noise}]
    given = experiment(1e6 * noise, "fedavg", rounds=rounds, clip=1e-6, stricter=stricter)
    plain = given.model_copy(update={"federation": given.federation.model_copy(update={"private": None})})
    quiet, setup = build(plain), build(given)
    *_, trained = rounds_of(quiet, 3)
    totals, squares = np.zeros((runs, 8)), np.zeros((runs, 8))
    for seed in range(runs):
        door = setup.federation.inner  # type: ignore[attr-defined]
        here = replace(setup, federation=replace(setup.federation, inner=replace(door, seed=seed)))  # type: ignore[type-var]
        state = replace(first_state(here), table=trained.state.table)
        for _ in range(rounds):
            played = play_round(here, state)
            values, seats = played.view.values, played.view.trained.seats.client
            totals[seed, seats] += values.per_seat
            squares[seed, seats] += values.standard_errors**2
            state = played.state
    return totals, np.sqrt(squares)


def test_nobody_clearly_does_harm_by_noise_alone() -> None:
    totals, errors = sums_of_noise(runs=12, rounds=4, noise=0.3)
    assert (totals[:, 0] < 0).mean() > 0.25  # client 0 has twice the others' noise
    assert clearly_harmful(totals, errors, np.full(totals.shape, 4)).mean() <= 0.05
    assert (totals > 1.96 * errors).mean() <= 0.05  # nor good: without a member a mean has more noise


def test_values_whose_part_knows_nothing_of_noise_have_errors_that_are_not_known() -> None:
    for value in ("exact", "gtg", "leave_one_out", "first_order"):
        setup = build(experiment(0.02, {"name": "fedavg", "value": value}))
        assert np.isnan(play_round(setup, first_state(setup)).view.values.standard_errors).all()


def weighed(noise: float, clip: float = 0.5) -> tuple[Any, np.ndarray]:
    """A round weighed by inverse variance, in which clients 0, 1 have twice the noise and client 5 four times."""
    stricter = [
        {"clients": [0, 1], "epsilon": 1e6, "noise": 2 * noise},
        {"clients": [5], "epsilon": 1e6, "noise": 4 * noise},
    ]
    setup = build(experiment(noise, {"name": "fedavg", "weigh": "inverse_variance"}, clip=clip, stricter=stricter))
    return play_round(setup, first_state(setup)).view, clip * noise * np.array([2.0, 2, 1, 1, 1, 4, 1, 1])


def test_weights_leave_the_least_noise_in_the_mean_where_noise_is_all_there_is() -> None:
    view, noise = weighed(2.0, clip=1e-3)  # a tiny clip: updates differ by their noise alone
    weights = view.mixed.W[0, :8]
    np.testing.assert_allclose(weights, noise**-2 / np.sum(noise**-2), rtol=0.05)
    left = float(np.sqrt(np.sum((weights * noise) ** 2)))
    assert left == pytest.approx(np.sum(noise**-2) ** -0.5, rel=1e-3)  # the closed form
    assert view.mixed.metrics["weigh/noise"] == pytest.approx(left)


def test_weights_are_the_sample_shares_where_there_is_little_noise() -> None:
    view, _ = weighed(1e-3)
    shares = view.trained.num_samples / view.trained.num_samples.sum()
    np.testing.assert_allclose(view.mixed.W[0, :8], shares, rtol=0.02)


@pytest.mark.parametrize("tau2", [0.0, 0.5, 4.0])
def test_what_makes_clients_differ_beyond_their_noise_is_found_by_moments(tau2: float) -> None:
    rng = np.random.default_rng(3)
    variance, unit = rng.uniform(0.5, 3, 12), rng.uniform(0.3, 2, 12)
    spread = np.sqrt(variance + tau2 * unit)[:, None]
    found = [_beyond(torch.from_numpy(rng.normal(5, spread, (12, 4000))), variance, unit) for _ in range(20)]
    assert float(np.mean(found)) == pytest.approx(tau2, rel=0.02, abs=0.01)


def test_an_update_without_samples_takes_no_weight_and_leaves_the_others_theirs() -> None:
    rng = np.random.default_rng(4)
    noise = np.array([1.0, 3.0, 2.0, 0.5])
    rows = torch.from_numpy(rng.normal(0, noise[:, None], (4, 200)))
    shares = np.array([0.2, 0.5, 0.3, 0.0])
    three = _by_variance(rows[:3], noise[:3], shares[:3], 2.0)
    np.testing.assert_allclose(_by_variance(rows, noise, shares, 2.0), [*three, 0.0])
    assert three.sum() == pytest.approx(1)
    assert three[1] < 0.5  # it has the most noise
    for none in (0.0, 1e-320, 1e-162):  # a client may say any of these
        np.testing.assert_array_equal(_by_variance(rows, noise * [1, none, 1, 1], shares, 2.0), shares)


def test_weights_by_inverse_variance_need_clients_that_say_theirs() -> None:
    one = experiment(0.02, {"name": "fedavg", "weigh": "inverse_variance"})
    for federation in ({"private": None}, {"secure": {"group": 3}}, {"late": "next", "enough": 3}):
        other = one.model_copy(update={"federation": one.federation.model_copy(update=federation)})
        with pytest.raises(hanse.UserError, match=r"(?i)inverse_?variance"):
            build(other)
