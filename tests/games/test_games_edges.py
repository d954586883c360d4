"""Values at the edges: empty, single, equal, tiny and huge; what a changed sign or bound would get wrong."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from hanse.games import shapley
from hanse.games.market import marginal, threshold_total
from hanse.games.market_models import (
    Kind,
    centre_weights,
    cosine_gram,
    distances,
    gram_distances,
    within_reach,
    within_shares,
)
from hanse.games.tiers import first_tiers, most_varying


def test_gtg_standard_errors_are_those_of_the_sweeps() -> None:
    worth = np.random.default_rng(3).uniform(0, 1, 8)

    def value(coalition: frozenset[int]) -> float:
        return float(worth[sum(1 << i for i in coalition)])

    sweeps = [[[0, 1, 2], [1, 0, 2], [2, 0, 1]], [[0, 2, 1], [1, 2, 0], [2, 1, 0]], [[0, 1, 2], [1, 2, 0], [2, 1, 0]]]
    found = shapley.gtg(value, 3, eps=0.0, sweeps=sweeps)
    # the variance of a sweep's mean is that of its three permutations, each drawn by itself; 4.303: Student's t
    each = np.array([[shapley.monte_carlo(value, 3, [order]) for order in sweep] for sweep in sweeps])
    error = np.sqrt(each.var(axis=0, ddof=1).sum(axis=0) / 3) / 3
    np.testing.assert_allclose(found.standard_errors, error * 4.302653 / 1.96, rtol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = shapley.gtg(value, 3, eps=0.0, sweeps=sweeps[:1])
    assert np.isnan(one.standard_errors).all()
    assert np.isnan(shapley.gtg(value, 3, running="sweep_literal").standard_errors).all()


def test_a_model_without_length_has_no_direction() -> None:
    models = np.array([[3.0, 4.0], [0.0, 0.0], [4.0, 3.0]])
    cos, length = cosine_gram(models)
    np.testing.assert_allclose(cos, [[1, 0, 0.96], [0, 0, 0], [0.96, 0, 1]])
    np.testing.assert_allclose(length, [5, 0, 5])
    np.testing.assert_allclose(distances(models), [[0, 1, 0.04], [1, 0, 1], [0.04, 1, 0]], atol=1e-12)


@pytest.mark.parametrize("kind", ["cosine", "squared_l2"])
def test_distances_from_inner_products(kind: Kind) -> None:
    models = 0.1 * torch.from_numpy(np.random.default_rng(2).standard_normal((5, 9)))
    models[3] = 0.0
    expected = distances(models, kind)
    np.testing.assert_allclose(gram_distances((models @ models.T).numpy(), kind), expected, atol=1e-12)


def test_a_centre_needs_the_length_of_what_it_imports_only() -> None:
    graph, sizes, cos = np.array([[0, 1, 0], [0, 0, 0], [0, 0, 0]]), np.array([2.0, 4.0, 1.0]), np.eye(3)
    W = centre_weights(graph, sizes, 0.5, "cosine", cos, np.array([2.0, 5.0, 0.0]))
    np.testing.assert_allclose(W, [[1, 0.5 * 2 / 10, 0], [0, 1, 0], [0, 0, 1]])
    with pytest.raises(ValueError, match="a model of length 0 has no direction"):
        centre_weights(graph, sizes, 0.5, "cosine", cos, np.array([2.0, 0.0, 1.0]))


def test_gains_and_thresholds_scale_with_the_samples() -> None:
    assert marginal(0.0, 0.0, 1.0) == 0.0
    n, K, r = np.array([1.0, 30.0, 400.0]), np.array([10.0, 1e4, 1e5]), np.array([0.1, 1.0, 2.0])
    whole = threshold_total(n, K, r)
    np.testing.assert_allclose(np.sqrt(K / (whole - n)) - np.sqrt(K / whole), r, rtol=1e-9)
    for scale in (1e-6, 1e6):
        np.testing.assert_allclose(threshold_total(scale * n, scale * K, r), scale * whole, rtol=1e-12)


def test_first_tiers_are_the_best_of_ten_starts_run_to_the_end() -> None:
    f1 = np.random.default_rng(6).uniform(0, 1, (60, 5))
    found = first_tiers(f1, 5, 6)
    by_hand = KMeans(6, n_init=10, tol=0.0, algorithm="lloyd", random_state=0).fit(f1[:, most_varying(f1, 5)])
    np.testing.assert_array_equal(found.labels_, by_hand.labels_)
    np.testing.assert_allclose(found.cluster_centers_, by_hand.cluster_centers_)
    assert found.inertia_ == pytest.approx(by_hand.inertia_)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert first_tiers(np.ones((4, 3)), 2, 3).inertia_ == 0.0  # more tiers than different clients


def test_a_small_purchase_of_a_distant_model_leaves_the_limit_of_another() -> None:
    """Of three models at right angles: 1 % of the way to the second is .01 sqrt 2, whatever is bought of the third."""
    models = np.diag([1.0, 1.0, 1000.0])
    gram, cosines, lengths = models @ models, np.eye(3), np.diag(models)
    sizes, shares = np.array([100.0, 1000.0, 1000.0]), np.zeros((3, 3))
    shares[0] = 0, 0.01, 0.001
    steps = centre_weights(shares, sizes, 5.0, "cosine", cosines, lengths) @ models
    assert steps[0] == pytest.approx([1.0, 0.5, 0.05])  # eq. (6), no longer than .001 of the way to the third
    limited = within_shares(centre_weights(shares, sizes, 5.0, "cosine", cosines, lengths), gram, shares, "cosine")
    assert (within_reach(limited, gram, shares) @ models)[0] == pytest.approx([1.0, 0.01 * np.sqrt(2), 0.05])


@pytest.mark.parametrize("kind", ["cosine", "squared_l2"])
def test_with_any_number_of_imports_each_adds_at_most_its_share_of_the_way(kind: Kind) -> None:
    draw, limits, imports = np.random.default_rng(0), 0, 0
    for _ in range(20):
        models, sizes = draw.normal(size=(5, 4)), draw.uniform(50, 500, 5)
        shares = draw.random((5, 5)) * (draw.random((5, 5)) < 0.6)
        np.fill_diagonal(shares, 0.0)
        cosines, lengths = cosine_gram(torch.from_numpy(models))
        gram = models @ models.T
        W = within_shares(centre_weights(shares, sizes, 1.0, kind, cosines, lengths), gram, shares, kind)
        together = np.zeros((5, 4))
        for i, j in np.argwhere(shares > 0):
            one = np.where((np.arange(25) == 5 * i + j).reshape(5, 5), shares, 0.0)
            step = (centre_weights(one, sizes, 1.0, kind, cosines, lengths) @ models - models)[i]  # by this one alone
            length, most = np.linalg.norm(step), shares[i, j] * np.linalg.norm(models[i] - models[j])
            together[i] += step * min(1.0, most / length)
            limits, imports = limits + int(length > most), imports + 1
        assert W @ models - models == pytest.approx(together, abs=1e-12)
    assert 10 < limits < imports - 10
