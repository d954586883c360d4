"""When does a client gain by joining a tier? PI-FL's Gaussian case (appendix D.1, eqs 51-57), exact and as printed.

Client i has ``n_i`` draws from N(mu_i, sigma2) and estimates mu_i. The means mu of a tier's clients are draws from
N(beta, tau2). An error is the expected square of (estimate - mu_i) from client i's view, in which mu_i is given and
beta unknown. The other means therefore scatter around mu_i.

The printed formulas treat the others as independent of each other. But they share the unknown ``beta - mu_i``: the
missing covariance tau2 makes joining look better than it is (docs/papers.md, P18). Functions with the argument
``printed`` return either form. :func:`simulate` shows which one is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Gaussian:
    """The Gaussian setting, PI-FL eqs (51) and (52).

    Attributes:
        n: ``[m]``, how many samples each client has.
        tier: ``[m]``, each client's tier.
        sigma2: the variance of samples around a client's mean.
        tau2: the variance of the clients' means inside a tier.
        beta_diff: the distance between the centre of the other tiers and that of the client's own tier.

    Raises:
        ValueError: no clients, a client without samples, or a variance that is negative or not finite.

    Examples:
        >>> setting = Gaussian(n=[10, 20, 30], tier=[0, 0, 1], beta_diff=0.5)
        >>> len(setting.n)
        3
    """

    n: Sequence[int]
    tier: Sequence[int]
    sigma2: float = 1.0
    tau2: float = 0.1
    beta_diff: float = 0.0

    def __post_init__(self) -> None:
        if len(self.n) != len(self.tier) or not len(self.n):
            raise ValueError(f"n, tier: {len(self.n)}, {len(self.tier)} entries: allowed: one for each client")
        if min(self.n) < 1:
            raise ValueError(f"n: {min(self.n)}: allowed: at least 1 sample")
        for name, value in (("sigma2", self.sigma2), ("tau2", self.tau2)):
            if not (np.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: {value!r}: allowed: a finite number, at least 0")


def local_error(setting: Gaussian, i: int) -> float:
    """Return client i's error if it trains alone, PI-FL eq. (53): ``sigma2 / n_i``."""
    return setting.sigma2 / setting.n[i]


def federated_error(setting: Gaussian, i: int, printed: bool = False) -> float:
    """Return client i's error with one model for all clients, PI-FL eq. (54).

    Args:
        setting: the setting.
        i: the client, from 0.
        printed: the paper's form, without the covariance.
    """
    return _error(setting, i, np.ones(len(setting.n), bool), printed)


def tier_error(setting: Gaussian, i: int, printed: bool = False) -> float:
    """Return client i's error with its own tier's model, PI-FL eq. (55); of clients of equal sizes it is eq. (56).

    Args:
        setting: the setting.
        i: the client, from 0.
        printed: the paper's form, without the covariance.
    """
    return _error(setting, i, np.asarray(setting.tier) == setting.tier[i], printed)


def _error(setting: Gaussian, i: int, members: NDArray[np.bool_], printed: bool) -> float:
    """Return client i's error of the mean over ``members [m]``: squared bias, noise, and the spread of the means."""
    n = np.where(members, np.asarray(setting.n, float), 0.0)
    w = n / n.sum()  # weights n_j / n: the printed loss would give n_j^2 (papers.md P19)
    noise = float((w**2 * setting.sigma2 / np.asarray(setting.n)).sum())
    others = np.arange(len(w)) != i
    bias = float(w[np.asarray(setting.tier) != setting.tier[i]].sum() * setting.beta_diff)
    if printed:
        spread = 2 * float((w[others] ** 2).sum())
    else:
        spread = float((w[others] ** 2).sum() + (1 - w[i]) ** 2)
    return bias**2 + noise + setting.tau2 * spread


def joining_pays(m1: int, n0: int, sigma2: float, tau2: float, printed: bool = False) -> bool:
    """Say whether the tier's model beats training alone, PI-FL eq. (57): ``tau2 < sigma2 / n0``.

    The tier's size does not matter. The printed bound, ``m1 sigma2 / (2 n0)``, grows with the tier's size. It is right
    only for two clients.
    """
    return tau2 < (m1 * sigma2 / (2 * n0) if printed else sigma2 / n0)


def simulate(setting: Gaussian, i: int, repetitions: int, draw: Any) -> dict[str, tuple[float, float]]:
    """Return client i's squared errors by simulation.

    Each repetition draws all clients' means anew, and each client's sample mean from its law, PI-FL eqs (51) and (52).

    Args:
        setting: the setting.
        i: the client.
        repetitions: the number of repetitions, at least 2.
        draw: a numpy generator.

    Returns:
        ``(mean, standard error)`` of the squared error for "local", "federated" and "tier".
    """
    n, tier = np.asarray(setting.n, float), np.asarray(setting.tier)
    centre = np.where(tier == tier[i], 0.0, setting.beta_diff)
    mu = centre + np.sqrt(setting.tau2) * draw.standard_normal((repetitions, len(n)))
    seen = mu + np.sqrt(setting.sigma2 / n) * draw.standard_normal((repetitions, len(n)))
    own = np.where(tier == tier[i], n, 0.0)
    estimates = {"local": seen[:, i], "federated": seen @ (n / n.sum()), "tier": seen @ (own / own.sum())}
    errors = {}
    for name, estimate in estimates.items():
        square = (estimate - mu[:, i]) ** 2
        errors[name] = (float(square.mean()), float(square.std(ddof=1) / np.sqrt(repetitions)))
    return errors
