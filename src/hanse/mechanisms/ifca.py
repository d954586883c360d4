"""IFCA (Ghosh et al. 2020, Alg. 1, option II): several shared models; each client trains the one that fits it best.

In every round clients choose their cluster by the losses of all cluster models on their own training data. At first the
clusters differ only in the initial values of their models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hanse.base.factories import Positive
from hanse.core.part import Context, Deployment, DeployPart, Mechanism, Most, State, TrainPart, View, by_slot
from hanse.core.port import Request, Score, Scored
from hanse.core.table import Block, Ints, Seats
from hanse.mechanisms.fedsoft import Clusters
from hanse.mechanisms.select import Seated, who
from hanse.mechanisms.train import chosen_seats
from hanse.mechanisms.weigh import BySamples


@dataclass(frozen=True)
class IFCA(TrainPart, DeployPart):
    """IFCA, in the slots train and deploy: each client trains and holds the cluster model that fits it best.

    Every present client is asked for its losses before the selection. It therefore downloads all K models in every
    round, even if it is not chosen.

    Attributes:
        clusters: the number of models, at least 2.
        score_samples: the most training samples on which a client measures the losses. None: all.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("ifca").before("deploy")
        >>> deployment, state = part.deploy(view, state)
        >>> deployment.rows.shape
        (4,)
    """

    adds = ()

    needs = by_slot(train={"clients", "scores"}, deploy={"clients", "scores", "rows cluster"})
    gives = by_slot(train={"groups"})
    clusters: Clusters = 2
    score_samples: Positive | None = None

    def blocks(self, context: Context) -> Sequence[Block]:
        """Return the rows of the clusters, each with an initial model of its own."""
        return (Block("cluster", self.clusters, initial="different", held=True),)

    def init(self, context: Context) -> State:
        """Return the state with every client in the first cluster."""
        return {"cluster": np.zeros(context.num_clients, np.int64)}

    def questions(self, clients: int, rows: int) -> Mapping[str, Most]:
        """Return what :meth:`asks` asks at most."""
        return {"Score": Most(1, self.clusters, samples=self.score_samples)}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask every present client for the loss of each model.

        Args:
            view: the round. The method reads ``stage``, ``present`` and ``table``.
            state: as :meth:`init` makes it.
        """
        if view.stage != "open":
            return ()
        task = Score("clusters", view.table.models("cluster"), limit=self.score_samples)
        return [Request(int(c), (task,)) for c in view.present]

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Return a seat for each chosen client at the shared model with the lowest loss on its data.

        Args:
            view: the round. The method reads ``present``, ``answers``, ``at``, ``home`` and ``choice``.
            state: as :meth:`init` makes it.
        """
        cluster, client = _lowest_loss(view, state), chosen_seats(view).client
        return Seats.at(client, view.at("cluster")[cluster[client]]), {"cluster": cluster}

    def deploy(self, view: View, state: State) -> tuple[Deployment, State]:
        """Return the row of each client's cluster; ``deploy/largest_cluster`` is the size of the largest cluster.

        Args:
            view: the round. The method reads ``present``, ``answers`` and ``at``.
            state: as :meth:`init` makes it.
        """
        cluster = _lowest_loss(view, state)
        largest = int(np.bincount(cluster).max(initial=0))
        deployment = Deployment(view.at("cluster")[cluster], metrics={"deploy/largest_cluster": largest})
        return deployment, {"cluster": cluster}


def _lowest_loss(view: View, state: State) -> Ints:
    """Return each client's cluster ``[N]``: the one with the lowest loss if it answered, else the one it had.

    Of equal losses the lower cluster wins. A loss that is not a number counts as infinite.
    """
    found: Ints = state["cluster"].copy()
    for c in view.present.tolist():
        answer = view.answers.get((c, "clusters"))
        if isinstance(answer, Scored) and answer.num_samples:
            loss = answer.loss.double().nan_to_num(nan=np.inf)
            found[c] = int(loss.argmin())
    return found


def ifca(clients_per_round: Seated = None, clusters: Clusters = 2) -> Mechanism:
    """IFCA (Ghosh et al. 2020): several shared models; each client trains the one with the lowest loss on its data.

    Args:
        clients_per_round: how many clients, drawn at random, train in a round. None: all of them.
        clusters: the number of models.
    """
    part = IFCA(clusters)
    return Mechanism("ifca", who(clients_per_round), part, BySamples(), deploy=part)
