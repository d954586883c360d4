"""A small federation of nodes in this process, which answer as on a real network, and the federation that asks them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from inprocess import KEY, apps_of

from hanse.core.part import Mechanism
from hanse.data.federated import RemoteData
from hanse.flower.agreement import agree
from hanse.flower.in_process import InProcessGrid
from hanse.flower.link import FlowerFederation
from hanse.flower.members import Members
from hanse.flower.server import unsent
from hanse.runs.checkpoint import LoopState
from hanse.runs.config import Experiment
from hanse.runs.guards import completed
from hanse.runs.rehearsal import small_experiment
from hanse.runs.round import first_state
from hanse.runs.setup import Session, build


@dataclass(frozen=True)
class NetworkRehearsal:
    """A small federation of nodes in this process. Make one with :func:`rehearse_network`.

    Attributes:
        experiment: the experiment that the session plays.
        grid: the grid, with the nodes 100, 101, ...
        federation: the federation on it; its members are registered and online.
        session: what rounds are played with.
        start: the state before round 0.
    """

    experiment: Experiment
    grid: InProcessGrid
    federation: FlowerFederation
    session: Session
    start: LoopState


def rehearse_network(
    mechanism: str | Mechanism | Mapping[str, Any], folder: str | Path, **sections: Any
) -> NetworkRehearsal:
    """Make a small federation of four nodes in this process.

    Args:
        mechanism: as for :func:`hanse.runs.rehearsal.rehearse`.
        folder: the folder in which each node has a folder of its own, ``node0``, ``node1`` and so on. It is made.
        sections: further sections of the experiment, as for :func:`hanse.runs.rehearsal.rehearse`.

    Raises:
        UserError: the experiment does not fit together.
    """
    experiment = completed(small_experiment(mechanism, **sections))
    here = build(experiment).data
    homes = [Path(folder) / f"node{i}" for i in range(experiment.data.clients)]
    agreement = agree(experiment, KEY, "rehearsal", "rehearsal", homes)
    grid = InProcessGrid(apps_of(experiment, Path(folder)))
    more = {"capacity": len(homes), "agreement": agreement.hash, "unsent": unsent(experiment)}
    federation = FlowerFederation(grid, Members(), KEY, deadline_s=60.0, **more)
    federation.present(0)
    sizes = [member.num_samples for member in federation.members.fitting()]
    sets = (here.server_validation, here.server_test)
    known = RemoteData(np.array(sizes), here.input_shape, here.num_classes, *sets)
    session = build(experiment, known, federation=federation)
    return NetworkRehearsal(session.experiment, grid, federation, session, first_state(session))
