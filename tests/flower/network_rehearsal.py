"""A small federation of nodes in this process, which answer as on a real network, and the federation that asks them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context
from inprocess import paths_of

from hanse.core.part import Mechanism
from hanse.data.federated import FederatedData, RemoteData
from hanse.federation.node import ClientData
from hanse.flower.agreement import agree
from hanse.flower.client import client_app
from hanse.flower.in_process import InProcessGrid
from hanse.flower.link import FlowerFederation
from hanse.flower.members import Members
from hanse.flower.server import unsent
from hanse.runs.checkpoint import LoopState
from hanse.runs.config import Experiment
from hanse.runs.guards import completed
from hanse.runs.rehearsal import small_experiment
from hanse.runs.round import Played, first_state, play_round
from hanse.runs.setup import Session, build, policy_of


@dataclass(frozen=True)
class NetworkRehearsal:
    """A small federation of nodes in this process. Make one with :func:`rehearse_network`.

    Attributes:
        experiment: the experiment that the setup plays.
        grid: the grid, with the nodes 100, 101, ...
        federation: the federation on it; its members are registered and online.
        setup: what rounds are played with.
        start: the state before round 0.
    """

    experiment: Experiment
    grid: InProcessGrid
    federation: FlowerFederation
    setup: Session
    start: LoopState

    def played(self) -> Played:
        """Play round 0 and return it."""
        return play_round(self.setup, self.start)


def rehearse_network(
    mechanism: str | Mechanism | Mapping[str, Any], folder: str | Path, **sections: Any
) -> NetworkRehearsal:
    """Make a small federation of four nodes in this process, whose messages are signed with a key of their own.

    Args:
        mechanism: as for :func:`hanse.runs.rehearsal.rehearse`.
        folder: the folder in which each node has a folder of its own, ``node0``, ``node1`` and so on. It is made.
        sections: further sections of the experiment, as for :func:`hanse.runs.rehearsal.rehearse`.

    Raises:
        UserError: the experiment does not fit together.
    """
    experiment = small_experiment(mechanism, **sections)
    experiment = completed(experiment)
    here = build(experiment).data
    key = Ed25519PrivateKey.generate()
    pinned, own, policy = key.public_key().public_bytes_raw(), paths_of(experiment), policy_of(experiment)
    homes = [Path(folder) / f"node{i}" for i in range(here.num_clients)]
    agreement = agree(experiment, key, "rehearsal", "rehearsal", homes)
    grid = InProcessGrid(
        {
            100 + i: client_app(partial(_own, here, i), policy=policy, folder=home, own=own, operator=pinned)
            for i, home in enumerate(homes)
        }
    )
    more = {"capacity": here.num_clients, "agreement": agreement.hash, "unsent": unsent(experiment)}
    federation = FlowerFederation(grid, Members(), key, deadline_s=60.0, **more)
    federation.present(0)
    sizes = [member.num_samples for member in federation.members.fitting()]
    sets = (here.server_validation, here.server_test)
    known = RemoteData.of(sizes, here.input_shape, here.num_classes, *sets)
    setup = build(experiment, known, federation=federation)
    return NetworkRehearsal(setup.experiment, grid, federation, setup, first_state(setup))


def _own(data: FederatedData, client: int, context: Context) -> ClientData:
    """Return what one participant holds."""
    return ClientData.of(data, client)
