"""WEIGH: how the updates of a group of seats become the server row that they train, or rows of single clients.

This module has the averages: by samples, uniform, by inverse distance. Robust rules are in ``robust.py``, server
optimisers in ``server_steps.py``.

Several personalised systems give each client a *centre*, a row "centre" that mixes the models of others.
:func:`mixed_centres` returns such rows. A part that fills these rows passes on :class:`Centres`, which says whose
centre is new. :class:`Received` says which models were sent to whom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hanse.base.factories import Count, Rate, SomeShare
from hanse.base.pytorch import Tensor, torch
from hanse.core.declared import LARGEST_COUNT
from hanse.core.part import Aggregate, AggregatePart, Group, State, View, Weighed
from hanse.core.table import Floats, Ints, Replace, Updates
from hanse.federation.wrapped import NOISE
from hanse.games.gram import cosines, distances_to_mean
from hanse.mechanisms.select import CLIENTS, Probabilities

# the needs of rules that average the updates of a group of seats
GROUPED = CLIENTS | {"groups"}
FAINT = 1e-100  # noise that counts as none: below, its square's inverse would overflow


def addable(num_samples: Floats) -> Floats:
    """Return the sizes ``[S]``, scaled down if one is so large that their sum might overflow.

    Sizes are reported by clients. Sizes up to 2^53 are returned unchanged, larger ones relative to the largest.
    """
    largest = num_samples.max(initial=0.0)
    return num_samples / largest if largest > LARGEST_COUNT else num_samples


def sample_shares(num_samples: Floats) -> Floats:
    """Return the shares ``n_k / sum n``, ``[S]``. They are uniform if all sizes are 0.

    Args:
        num_samples: finite numbers from 0 on, ``[S]``.
    """
    num_samples = addable(num_samples)
    total = float(num_samples.sum())
    return num_samples / total if total > 0 else np.full(len(num_samples), 1.0 / len(num_samples))


@dataclass(frozen=True)
class BySamples(AggregatePart):
    """FedAvg's average: weights in proportion to the reported numbers of samples (McMahan et al. 2017)."""

    needs = frozenset({"sizes"})
    accepts = frozenset({"sums"})

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the sample shares ``[m]``."""
        return Aggregate(sample_shares(group.num_samples))


@dataclass(frozen=True)
class SamplesOverProbability(AggregatePart):
    """Weights in proportion to the reported samples over the probability with which the client was drawn.

    The code of GreedyFed's authors weights the models of S-FedAvg in this way, also in coalitions. The rule needs a
    selector that draws at random and hands on its :class:`hanse.mechanisms.select.Probabilities`.
    """

    needs = frozenset({"probabilities"})

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the shares of samples over probability, ``[m]``."""
        drawn = group.view.get(Probabilities)
        assert drawn is not None  # guaranteed by the need "probabilities"
        clients = group.view.trained.seats.client[group.at]
        return Aggregate(sample_shares(group.num_samples / np.maximum(drawn.by_client[clients], 1e-12)))


@dataclass(frozen=True)
class UniformWeights(AggregatePart):
    """The plain mean: every update of a group counts the same."""

    needs = GROUPED

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return equal weights ``[m]``."""
        return Aggregate(np.full(len(group), 1.0 / len(group)))


@dataclass(frozen=True)
class Centres:
    """Tells later parts which clients have a new centre in this round.

    Attributes:
        clients: the clients, ``[m]``.
        imports: which of them have others' models in their centre, ``[m]``.
    """

    clients: Ints
    imports: NDArray[np.bool_]


@dataclass(frozen=True)
class Received:
    """Tells later parts whose models each client was sent in this round.

    Attributes:
        sent: ``[m, m]``, by the clients that trained, in ascending order: 1 if i was sent the model of j.
    """

    sent: NDArray[np.int8]


def mixed_centres(view: View, A: Floats, metrics: dict[str, float]) -> Weighed:
    """Return the decision that gives each client a new centre, mixed from all updates.

    Args:
        view: the round, after training.
        A: the weights ``[S, S]``. Row s makes the centre of the client in seat s.
        metrics: numbers to record along with ``weigh/self_weight``, the mean weight of a client's own update.
    """
    client = view.trained.seats.client
    own = float(np.diag(A).mean())
    return Weighed(
        (Replace(view.at("centre", client), A),),
        metrics={"weigh/self_weight": own, **metrics},
        found=(Centres(client, np.ones(len(client), bool)),),
    )


def way_cosines(view: View) -> Floats:
    """Return the cosines ``[m, m]`` between the models' ways from the initial model: parameters only, not buffers."""
    rows = view.trained.rows[:, : view.context.layout.num_parameters]
    return cosines(rows - view.context.initial(0)[: rows.shape[1]].to(rows.device))


@dataclass(frozen=True)
class InverseDistance(AggregatePart):
    """IDA (Yeganeh et al. 2020): weights in proportion to ``1 / |U_s - mean U|`` inside each group of seats.

    Distances are Euclidean, over the parameters.

    Attributes:
        epsilon: added to the distances, in units of their mean. Without it, an update that equals the mean would get
            all the weight. The weights do not depend on the scale of the models.
    """

    needs = GROUPED
    epsilon: SomeShare = 1e-3

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights ``[m]``; ``weigh/distance`` records the mean distance to the mean."""
        if len(group) == 1:
            return Aggregate(np.ones(1))
        found = distances_to_mean(group.parameters)
        mean = float(found.mean())
        recorded = {"weigh/distance": mean}
        if mean == 0:
            return Aggregate(np.full(len(group), 1.0 / len(group)), metrics=recorded)
        trust = 1.0 / (found / mean + self.epsilon)
        return Aggregate(np.asarray(trust / trust.sum()), metrics=recorded)


@dataclass(frozen=True)
class InverseVariance(AggregatePart):
    """Weights in proportion to ``1 / (T tau^2 / n_k + s_k^2)``: the more noise an update has, the less it counts.

    s_k is the noise on each number of the update, n_k its samples, and tau^2 the variance that one sample makes. The
    variance tau^2 is estimated from how much the updates differ beyond their noise. This is the method of moments for
    random effects, known from meta-analysis (DerSimonian, Laird 1986). A client's own difference persists, while its
    noise is drawn anew each time. Over the T rounds in which a client trains, the variance of its own difference
    therefore grows as T^2, and that of the noise as T.

    If there is only noise, these are Robust-HDP's weights ``1 / s_k^2`` (Malekmohammadi, Yu, Cao 2024), which leave the
    least noise in the mean. If there is little noise, they are the sample shares. The noise is what clients with a
    privacy account state, as far as the server believes it (:class:`hanse.federation.wrapped.Believed`).
    """

    needs = GROUPED | {"noise"}

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights ``[m]``; ``weigh/noise`` records the noise that is left at each number of the mean."""
        noise, shares = noise_of(group.view.trained)[group.at], sample_shares(group.num_samples)
        context = group.view.context
        times = max(1.0, context.rounds * len(group) / context.num_clients)
        weights = _by_variance(group.parameters, noise, shares, times)
        return Aggregate(weights, metrics={"weigh/noise": float(np.sqrt(np.sum(np.square(weights * noise))))})


def noise_of(updates: Updates) -> Floats:
    """Return the standard deviation of the noise at each number of each update, ``[S]``, as declared; 0 for none."""
    said = updates.metrics or [{}] * len(updates)
    return np.array([max(0.0, float(one.get(NOISE, 0.0))) for one in said])


def _by_variance(rows: Tensor, noise: Floats, shares: Floats, times: float) -> Floats:
    """Return the weights ``[m]`` of updates ``rows [m, P]`` of clients that train ``times`` times; 0 for one without
    samples. They are the sample shares if fewer than two have samples, or one of these has no noise.
    """
    some = np.flatnonzero(shares)
    if len(some) < 2 or noise[some].min() < FAINT:
        return shares
    variance, share = np.square(noise[some]), shares[some]
    weights: Floats = np.zeros(len(shares))
    weights[some] = 1.0 / (times * _beyond(rows[torch.from_numpy(some)], variance, 1 / share) / share + variance)
    weights /= weights.sum()
    return weights


def _beyond(rows: Tensor, variance: Floats, unit: Floats) -> float:
    """Return t of the model ``rows_k = mean + normal(variance_k + t unit_k)`` at each number, by moments; at least 0.

    With weights a_k that sum to 1, ``sum a_k |rows_k - mean_a|^2 / P`` is ``sum (a_k - a_k^2) (variance_k + t unit_k)``
    in expectation (DerSimonian, Laird 1986).
    """
    a = 1 / variance / np.sum(1 / variance)
    mean = torch.from_numpy(a).to(rows) @ rows
    off = np.array([float(torch.linalg.vector_norm(row - mean, dtype=torch.float64)) for row in rows])
    seen = float(a @ np.square(off)) / rows.shape[1]
    return max(0.0, float((seen - (a - a**2) @ variance) / ((a - a**2) @ unit)))


@dataclass(frozen=True)
class ByStaleness(AggregatePart):
    """The row moves by ``rate`` times the mean change. The later an update, the more its change shrinks.

    With m updates of staleness tau (in rounds) the new row is ``M' = M + rate / m sum_s s(tau_s) (U_s - M)``. Late
    updates are rebased: their change is applied to the present row.

    FedAsync's Algorithm 1 mixes in every update as it arrives, ``x_t = (1 - alpha s) x_(t-1) + alpha s x_new``. With
    several updates in one round, this part takes the mean of these steps.

    Attributes:
        rule: how s falls with the staleness.
            "fedbuff": ``1 / sqrt(1 + tau)`` (Nguyen et al. 2022, "Federated learning with buffered asynchronous
            aggregation", Algorithm 1 with the scaling of section 5).
            The others are FedAsync's (Xie, Koyejo and Gupta 2019, "Asynchronous federated optimization", section 5.2).
            "constant": 1. "polynomial": ``(1 + tau) ** -a``. "hinge": 1 up to ``tau = b``, then ``1 / (a (tau - b) +
            1)``.
        rate: the server's learning rate (FedAsync's alpha).
        a: the constant a of "polynomial" and "hinge", above 0.
        b: the constant b of "hinge": an update counts in full up to this staleness, in rounds.
    """

    needs = GROUPED
    accepts = frozenset({"late"})
    rule: Literal["fedbuff", "constant", "polynomial", "hinge"] = "fedbuff"
    rate: Rate = 1.0
    a: Rate = 0.5
    b: Count = 4

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights on the updates and on the old row; ``weigh/staleness`` records the mean staleness."""
        weights = self.rate * self.scale(group.staleness) / len(group)
        old = 1.0 - float(weights.sum())
        old = 0.0 if abs(old) < 1e-12 else old  # rounding of the sum; 0 lets the old row be left out
        return Aggregate(weights, old, {"weigh/staleness": float(group.staleness.mean())})

    def scale(self, staleness: Ints) -> Floats:
        """Return the factor ``s(tau)`` for each ``staleness [m]`` in rounds.

        Examples:
            >>> ByStaleness(rule="hinge", a=1.0, b=1).scale(np.array([0, 1, 2, 4]))
            array([1.  , 1.  , 0.5 , 0.25])
        """
        tau = staleness.astype(np.float64)
        if self.rule == "fedbuff":
            return 1.0 / np.sqrt(1.0 + tau)
        if self.rule == "polynomial":
            return (1.0 + tau) ** -self.a
        if self.rule == "hinge":
            return np.where(tau <= self.b, 1.0, 1.0 / (self.a * np.maximum(tau - self.b, 0.0) + 1.0))
        return np.ones(len(tau))
