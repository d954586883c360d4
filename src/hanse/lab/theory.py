"""A paper's theory beside simulation: when does a client gain by joining a tier of PI-FL?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hanse.base.errors import UserError
from hanse.base.streams import stream
from hanse.games import tiers_theory as gaussian


@dataclass(frozen=True)
class TheoryPoint:
    """One tau^2: a client's error alone (eq. 53), with one model for all (eq. 54) and with its tier's (eqs 55, 56); of
    these the simulated mean with its standard error, the exact value, and the printed one.
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
    clients: int, samples: int, sigma2: float, beta_diff: float, points: int, repetitions: int, seed: int
) -> list[TheoryPoint]:
    """Return theory and simulation for tau^2 from 0 to twice the printed bound of eq. (57) with two equal tiers of
    ``clients`` with ``samples`` each.
    """
    found = []
    for step, tau2 in enumerate(np.linspace(0, clients * sigma2 / samples, points).tolist()):
        n, tier = [samples] * (2 * clients), [0] * clients + [1] * clients
        setting = gaussian.Gaussian(n, tier, sigma2, tau2, beta_diff)
        seen = gaussian.simulate(setting, 0, repetitions, stream(seed, "theory", round=step))
        found.append(
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
    return found


def crossings(clients: int, samples: int, sigma2: float) -> dict[str, float]:
    """Return the tau^2 below which joining pays, eq. (57): exact, and as printed."""
    return {"exact": sigma2 / samples, "printed": clients * sigma2 / (2 * samples)}


def gains(run: Path, alone: Path) -> np.ndarray:
    """Return what each client gained in a run over another one, ``[n]``: its own test accuracy at the last test less
    that of local training (loss the other way round for regression), or what it gained of the metric that both name.

    Raises UserError if the runs did not test the same clients on their own shares.
    """
    from hanse.runs.record import load_run

    found = []
    for path in (run, alone):
        loaded = load_run(path)
        rounds = [line["round"] for line in loaded.metrics if line.get("client/test_loss") is not None]
        tests = loaded.own_tests(rounds[-1]) if rounds else None
        if tests is None:
            raise UserError(f"{path}: no client tested on its own share (data.client_test and eval.clients above 0)")
        found.append((loaded, tests))
    (first, mine), (second, theirs) = found
    if not np.array_equal(mine.clients, theirs.clients) or first.config.get("data") != second.config.get("data"):
        raise UserError(f"{run} and {alone}: the runs have different clients; give them the same [data]")
    if first.readings and first.main == second.main:
        return np.asarray(mine.main - theirs.main) * (-1 if first.main.less_is_better else 1)
    if np.isnan(mine.accuracy).all():
        return np.asarray(theirs.loss - mine.loss)
    return np.asarray(mine.accuracy - theirs.accuracy)
