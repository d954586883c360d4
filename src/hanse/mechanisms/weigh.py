"""WEIGH: how the updates of a group of seats become the server row that they train, or rows for each client.

Centres are a row "centre" for each client that mixes the models of others, whatever the rule. A part that fills these
rows says so with :class:`Centres`, for seats that are only pulled to what was delivered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from hanse.core.declared import LARGEST_COUNT
from hanse.core.part import Aggregate, AggregatePart, Group, State, View, Weighed
from hanse.core.table import Floats, Ints, Replace
from hanse.games.gram import cosines, distances_to_mean
from hanse.mechanisms.select import Probabilities


def addable(num_samples: Floats) -> Floats:
    """Return sizes ``[S]`` in proportions whose sum a float can hold; as they are, unless one is beyond 2^53."""
    largest = num_samples.max(initial=0.0)
    return num_samples / largest if largest > LARGEST_COUNT else num_samples


def sample_shares(num_samples: Floats) -> Floats:
    """Return ``n_k / sum n`` ``[S]``; uniform if nobody reports a sample. Sizes may be any finite numbers from 0 on."""
    num_samples = addable(num_samples)
    total = float(num_samples.sum())
    return num_samples / total if total > 0 else np.full(len(num_samples), 1.0 / len(num_samples))


@dataclass(frozen=True)
class BySamples(AggregatePart):
    """FedAvg: weights in proportion to the reported number of samples (McMahan et al. 2017)."""

    kind = "average"

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the sample shares."""
        return Aggregate(sample_shares(group.num_samples))


@dataclass(frozen=True)
class SamplesOverProbability(AggregatePart):
    """Weights in proportion to the reported samples over the probability with which the client was drawn, as the code
    of GreedyFed's authors weighs S-FedAvg's models (and the coalitions that are valued).
    """

    kind = "average"
    needs = frozenset({"probabilities"})

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the shares of samples over probability."""
        drawn = group.view.get(Probabilities)
        assert drawn is not None  # a selector by lot gives it: see needs
        clients = group.view.trained.seats.client[group.at]
        return Aggregate(sample_shares(group.num_samples / np.maximum(drawn.by_client[clients], 1e-12)))


@dataclass(frozen=True)
class UniformWeights(AggregatePart):
    """Every update of a group counts the same."""

    kind = "average"
    needs = frozenset({"clients", "groups"})

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return equal weights."""
        return Aggregate(np.full(len(group), 1.0 / len(group)))


@dataclass(frozen=True)
class Centres:
    """Whose centre was made anew: ``clients [m]``, and which of them ``imports [m]`` others' models."""

    clients: Ints
    imports: NDArray[np.bool_]


@dataclass(frozen=True)
class Received:
    """Who was sent whose model in a round: ``sent[i, j]`` is 1 if ``clients[i]`` was sent that of ``clients[j]``."""

    clients: Ints
    sent: NDArray[np.int8]

    def among(self, clients: Ints) -> NDArray[np.int8]:
        """Return it over ``clients [n]``, ``[n, n]``: 0 for those of whom nothing is said, and on the diagonal."""
        found = np.zeros((len(clients), len(clients)), np.int8)
        at = {c: i for i, c in enumerate(self.clients.tolist())}
        known = [k for k, c in enumerate(clients.tolist()) if c in at]
        places = [at[int(clients[k])] for k in known]
        found[np.ix_(known, known)] = self.sent[np.ix_(places, places)]
        np.fill_diagonal(found, 0)
        return found


def mixed_centres(view: View, A: Floats, metrics: dict[str, float]) -> Weighed:
    """Return that each seat's client has the centre ``A [S, S]`` times all updates."""
    client = view.trained.seats.client
    own = float(np.diag(A).mean())
    return Weighed(
        (Replace(view.at("centre", client), A),),
        metrics={"weigh/self_weight": own, **metrics},
        found=(Centres(client, np.ones(len(client), bool)),),
    )


def way_cosines(view: View, origin: Tensor) -> Floats:
    """Return the cosines ``[m, m]`` between the ways that the models have come from the row ``origin [P]``."""
    rows = view.trained.rows[:, : view.context.layout.num_parameters]
    return cosines(rows - origin[: rows.shape[1]].to(rows.device))


@dataclass(frozen=True)
class InverseDistance(AggregatePart):
    """IDA (Yeganeh et al. 2020): weights in proportion to ``1 / |U_s - mean U|``, inside each group of seats.

    ``norm``: "l2" or "l1", over the parameters. ``epsilon`` keeps an update that is the mean itself from taking all: it
    is added to the distances in units of their mean, so that the weights do not depend on the scale of the models.
    """

    kind = "average"
    needs = frozenset({"clients", "groups"})
    norm: Literal["l2", "l1"] = "l2"
    epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-3

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the inverse-distance weights; ``weigh/distance`` records the mean distance to the mean."""
        if len(group) == 1:
            return Aggregate(np.ones(1))
        found = distances_to_mean(group.parameters, 1 if self.norm == "l1" else 2)
        mean = float(found.mean())
        recorded = {"weigh/distance": mean}
        if mean == 0:
            return Aggregate(np.full(len(group), 1.0 / len(group)), metrics=recorded)
        trust = 1.0 / (found / mean + self.epsilon)
        return Aggregate(np.asarray(trust / trust.sum()), metrics=recorded)
