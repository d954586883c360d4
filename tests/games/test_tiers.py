"""PI-FL's profiler and scheduler: golden cases and what is not allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from games_cases import close, golden

from hanse.games import tiers


def cases(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", golden(name), ids=lambda case: case["name"])


@cases("pifl_importance")
def test_importance_bids_and_personal_models(case: Any) -> None:
    given, out, tol = case["in"], case["out"], case["tol"]
    v = tiers.importance(given["correct"], given["sizes"])
    assert close(v, out["v_eq3"], tol)
    models = np.array(given["tiers"])
    assert close(tiers.mixture(v) @ models, out["P_normalised"], tol)
    assert close(tiers.mixture(v, normalised=False) @ models, out["P_eq4_literal"], tol)
    for threshold, expected in zip(given["thresholds"], out["bids"], strict=True):
        assert [np.flatnonzero(row > threshold).tolist() for row in v] == expected


@cases("pifl_scheduler")
def test_scheduler(case: Any) -> None:
    given, out = case["in"], case["out"]
    bidders = [[c for c, mine in enumerate(out["bids"]) if k in mine] for k in range(len(given["psi"]))]
    found = tiers.schedule(bidders, given["psi"], given["n_p"], given["n_r"], given["random_order"])
    assert found == out["tiers"]


@cases("pifl_f1_kmeans")
def test_first_tiers(case: Any) -> None:
    given, out, tol = case["in"], case["out"], case["tol"]
    f1 = tiers.f1_scores(given["confusion"])
    assert close(f1, out["f1"], tol)
    assert close(f1.var(axis=0), out["variance"], tol)
    centres = given["initial_centres"]
    found = tiers.first_tiers(f1, given["rho"], len(centres), initial_centres=centres)
    classes = tiers.most_varying(f1, given["rho"])
    assert classes.tolist() == out["classes"]
    assert close(f1[:, classes], out["features"], tol)
    assert found.labels_.tolist() == out["labels"]
    assert close(found.cluster_centers_, out["centres"], tol)
    assert found.inertia_ == pytest.approx(out["inertia"], abs=tol)


def test_what_is_not_allowed() -> None:
    assert tiers.most_varying(np.array([[0.0, 0.4], [1.0, 0.5]]), 1).tolist() == [0]
    with pytest.raises(ValueError, match="correct: allowed: from 0 to the client's size"):
        tiers.importance([[5]], [4])
    with pytest.raises(ValueError, match="v: allowed: importance weights, at least 0"):
        tiers.mixture([[-0.1, 0.4]])
    with pytest.raises(ValueError, match="contributions: has NaN or infinite entries"):
        tiers.schedule([[0]], [[np.inf]], 1, 0, [[0]])
    with pytest.raises(ValueError, match="rho: 4: allowed: 1 to 3"):
        tiers.most_varying(np.zeros((2, 3)), 4)
    with pytest.raises(ValueError, match="tiers: 3: allowed: 1 to 2"):
        tiers.first_tiers(np.zeros((2, 3)), 1, 3)
