"""When does a client gain by joining a tier of PI-FL? Compares the paper's theory with simulations and real runs.

``hanse theory pifl`` prints and draws what is computed here. :func:`pifl_points` evaluates the Gaussian case of PI-FL's
appendix D.1 and simulates it. :func:`crossings` returns where joining stops paying. :func:`gains` measures clients'
gains in two finished runs. The formulas themselves are in :mod:`hanse.games.tiers_theory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hanse.base.errors import UserError
from hanse.base.streams import stream
from hanse.games import tiers_theory as gaussian
from hanse.runs.observers import Told, untold


@dataclass(frozen=True)
class TheoryPoint:
    """A client's expected squared error at one tau^2, for the three models that it could use.

    Attributes:
        tau2: the variance of the clients' true means inside a tier.
        local: the error of a model that the client fits alone, PI-FL eq. (53).
        local_simulated: the error of that model, estimated as the mean over the simulations.
        tier: the exact error of the client's tier model.
        tier_printed: the tier's error by the printed eqs (55) and (56), which leave out a covariance.
        tier_simulated: the tier's error, estimated as the mean over the simulations.
        tier_error: the standard error of ``tier_simulated``.
        federated: the exact error of one model for all clients.
        federated_printed: the federated error by the printed eq. (54), which leaves out a covariance.
        federated_simulated: the federated error, estimated as the mean over the simulations.
        federated_error: the standard error of ``federated_simulated``.
    """

    tau2: float
    local: float
    local_simulated: float
    tier: float
    tier_printed: float
    tier_simulated: float
    tier_error: float
    federated: float
    federated_printed: float
    federated_simulated: float
    federated_error: float


def pifl_points(
    clients: int,
    samples: int,
    sigma2: float,
    beta_diff: float,
    points: int,
    repetitions: int,
    seed: int,
    told: Told = untold,
) -> list[TheoryPoint]:
    """Return theory and simulation for two equal tiers, at evenly spaced tau^2.

    tau^2 goes from 0 to twice the printed bound of PI-FL eq. (57).

    Args:
        clients: the clients of each tier, at least 1.
        samples: the samples of each client, at least 1.
        sigma2: the variance of a sample.
        beta_diff: the distance between the centres of the two tiers.
        points: how many values of tau^2.
        repetitions: how many simulations for each value, at least 2.
        seed: the seed of the simulations.
        told: a function called before each value with the number done and the total.

    Returns:
        The ``points`` points, from tau^2 = 0 upwards.
    """
    theory_points = []
    for step, tau2 in enumerate(np.linspace(0, clients * sigma2 / samples, points).tolist()):
        told(step, points)
        n, tier = [samples] * (2 * clients), [0] * clients + [1] * clients
        setting = gaussian.Gaussian(n, tier, sigma2, tau2, beta_diff)
        seen = gaussian.simulate(setting, 0, repetitions, stream(seed, "theory", round=step))
        theory_points.append(
            TheoryPoint(
                tau2,
                gaussian.local_error(setting, 0),
                seen["local"][0],
                gaussian.tier_error(setting, 0),
                gaussian.tier_error(setting, 0, printed=True),
                *seen["tier"],
                gaussian.federated_error(setting, 0),
                gaussian.federated_error(setting, 0, printed=True),
                *seen["federated"],
            )
        )
    return theory_points


def crossings(clients: int, samples: int, sigma2: float) -> dict[str, float]:
    """Return the tau^2 below which joining the tier pays, PI-FL eq. (57).

    Args:
        clients: the clients of the tier.
        samples: the samples of each client.
        sigma2: the variance of a sample.

    Returns:
        Two numbers: ``exact``, which does not depend on ``clients``, and ``printed``, the paper's bound, which grows
        with them.

    Example:
        >>> crossings(clients=10, samples=10, sigma2=1.0)
        {'exact': 0.1, 'printed': 0.5}
    """
    return {"exact": sigma2 / samples, "printed": clients * sigma2 / (2 * samples)}


def gains(run: Path, alone: Path) -> np.ndarray:
    """Return what each client gained in a run over training alone.

    Args:
        run: the directory of the run that the clients joined.
        alone: the directory of a run of the same clients by themselves (the mechanism ``local``).

    Returns:
        ``[n]``, a positive number for every client that gained. The gain is a difference in the last test on the
        clients' own shares: of the main metric of both experiments if they have one, else of the accuracy (0 to 1),
        else of the loss.

    Raises:
        UserError: a run did not test clients on their own shares, or the runs have different clients or data.
    """
    from hanse.runs.run_record import load_run

    tested = []
    for path in (run, alone):
        loaded = load_run(path)
        rounds = [line["round"] for line in loaded.metrics if line.get("client/test_loss") is not None]
        tests = loaded.own_tests(rounds[-1]) if rounds else None
        if tests is None:
            raise UserError(f"{path}: no client tested on its own share (data.client_test and eval.clients above 0)")
        tested.append((loaded, tests))
    (first, mine), (second, theirs) = tested
    if not np.array_equal(mine.clients, theirs.clients) or first.config.get("data") != second.config.get("data"):
        raise UserError(f"{run} and {alone}: the runs have different clients; give them the same [data]")
    if first.readings and first.main == second.main:
        return np.asarray(mine.main - theirs.main) * (-1 if first.main.less_is_better else 1)
    if np.isnan(mine.accuracy).all():
        return np.asarray(theirs.loss - mine.loss)
    return np.asarray(mine.accuracy - theirs.accuracy)
