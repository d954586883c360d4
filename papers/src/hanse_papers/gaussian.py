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
        n: ``[m]``, how many samples each client has, at least 1.
        tier: ``[m]``, each client's tier.
        sigma2: the variance of samples around a client's mean.
        tau2: the variance of the clients' means inside a tier.
        beta_diff: the distance between the centre of the other tiers and that of the client's own tier.

    Examples:
        >>> setting = Gaussian(n=[10, 20, 30], tier=[0, 0, 1], beta_diff=0.5)
        >>> setting.weights(0)["tier"].round(2).tolist()
        [0.33, 0.67, 0.0]
    """

    n: Sequence[int]
    tier: Sequence[int]
    sigma2: float = 1.0
    tau2: float = 0.1
    beta_diff: float = 0.0

    def weights(self, i: int) -> dict[str, NDArray[np.float64]]:
        """Return the weights ``[m]`` of all clients' means in client i's estimate: if it trains alone ("local"), with
        one model for all clients ("federated"), and with its own tier's model ("tier").
        """
        tier = np.asarray(self.tier)
        members = {"local": np.arange(len(tier)) == i, "federated": np.ones(len(tier), bool), "tier": tier == tier[i]}
        sizes = {name: np.where(of, np.asarray(self.n, float), 0.0) for name, of in members.items()}
        return {name: n / n.sum() for name, n in sizes.items()}  # the printed loss would give n_j^2 (papers.md P19)


def errors(setting: Gaussian, i: int, printed: bool = False) -> dict[str, float]:
    """Return client i's error by the names of :meth:`Gaussian.weights`: PI-FL eqs (53), (54) and (55); of clients of
    equal sizes the last is eq. (56).

    Args:
        setting: the setting.
        i: the client, from 0.
        printed: the paper's form, without the covariance.
    """
    n, others = np.asarray(setting.n), np.arange(len(setting.n)) != i
    found = {}
    for name, w in setting.weights(i).items():
        noise = float((w**2 * setting.sigma2 / n).sum())
        bias = float(w[np.asarray(setting.tier) != setting.tier[i]].sum() * setting.beta_diff)
        spread = float((w[others] ** 2).sum())
        spread += spread if printed else float((1 - w[i]) ** 2)
        found[name] = bias**2 + noise + setting.tau2 * spread
    return found


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
        ``(mean, standard error)`` of the squared error by the names of :meth:`Gaussian.weights`.
    """
    n, tier = np.asarray(setting.n, float), np.asarray(setting.tier)
    centre = np.where(tier == tier[i], 0.0, setting.beta_diff)
    mu = centre + np.sqrt(setting.tau2) * draw.standard_normal((repetitions, len(n)))
    seen = mu + np.sqrt(setting.sigma2 / n) * draw.standard_normal((repetitions, len(n)))
    squares = {name: (seen @ w - mu[:, i]) ** 2 for name, w in setting.weights(i).items()}
    return {name: (float(x.mean()), float(x.std(ddof=1) / np.sqrt(repetitions))) for name, x in squares.items()}
