"""The engine ``"ray"``: an experiment played by Flower's simulation, in which each client is a virtual SuperNode.

Choose it with ``federation.engine = "ray"`` for experiments that are too large for one process. Clients train in Ray's
workers, one after another in each. Server app and client app are those of a real network, so the same code runs. The
results equal those of the local engine "sequential" with one thread.
"""

from __future__ import annotations

import functools
import os
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation.run_simulation import _run_simulation  # flwr run's; the public run_simulation will be removed
from flwr.supercore.telemetry import EventType

from hanse.base.errors import UserError
from hanse.base.files import FEDERATION
from hanse.base.lock import Hold
from hanse.data import FederatedData, build
from hanse.federation.node import ClientData
from hanse.federation.policy import build_profiles
from hanse.flower.agreement import agree
from hanse.flower.client import client_app, paths_of
from hanse.flower.server import play, run_name
from hanse.runs.config import Experiment
from hanse.runs.experiment import Observer, PlayedRun
from hanse.runs.refusals import refuse_on_a_network
from hanse.runs.rundir import PARTICIPANTS, claim, clear
from hanse.runs.setup import build as build_session
from hanse.runs.setup import policy_of

PATIENCE_S = 300.0  # seconds that Ray has to bring up the virtual nodes


def run_simulated(
    experiment: Experiment,
    *,
    out: str | Path | None = None,
    observers: Sequence[Observer] = (),
    overwrite: bool = False,
    again: bool = False,
    other_data: bool = False,
) -> PlayedRun:
    """Play an experiment on Flower's simulation and return the finished run.

    Args:
        experiment: the experiment to play, with ``federation.engine = "ray"``.
        out: the run directory. None: a temporary directory, which is deleted at the end.
        observers: see every round (:class:`hanse.runs.experiment.Observer`).
        overwrite: whether a run in ``out`` may be replaced.
        again: whether to continue the run in ``out``.
        other_data: whether that run may continue with server sets other than those it began with.

    Raises:
        UserError: the experiment cannot be played on a network, Ray is not installed, or ``out`` is taken.
    """
    if find_spec("ray") is None:
        raise UserError("federation.engine: 'ray': needs Ray; pip install '.[ray]' in a clone of hanse")
    if experiment.behaviour:
        raise UserError("behaviour: the ray engine has no simulated behaviours; federation.engine = 'local' has them")
    refuse_on_a_network(experiment, experiment.mechanism.built)
    if out is None:
        with tempfile.TemporaryDirectory(prefix="hanse-") as folder:
            result = run_simulated(experiment, out=Path(folder) / "run", observers=observers)
            result.path = None
            return result
    with Hold(Path(out)) as hold:
        if again:
            hold.take()
        else:
            claim(hold, overwrite=overwrite)
        return _simulated(experiment, hold, observers, overwrite, other_data)


def _simulated(
    experiment: Experiment, hold: Hold, observers: Sequence[Observer], overwrite: bool, other_data: bool
) -> PlayedRun:
    """Play the experiment into the run directory that ``hold`` locks."""
    here = build_session(experiment).data  # refuses what does not fit
    sets = (here.server_validation, here.server_test)
    clients, finished, failed = here.num_clients, list[PlayedRun](), list[BaseException]()
    server, path = ServerApp(), hold.folder
    key = Ed25519PrivateKey.generate()  # thrown away with the run, as its virtual nodes are
    if overwrite and path.exists():
        clear(path)
    run = run_name(path / FEDERATION) if (path / FEDERATION).exists() else uuid.uuid4().hex
    homes = path.resolve() / PARTICIPANTS
    agreement = agree(experiment, key, run, "a simulation", [homes / f"node{i}" for i in range(clients)])

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        """Play it as a server app, and keep the run or the exception: Flower's simulation returns neither."""
        try:
            finished.append(
                play(
                    grid, experiment, path, clients, lambda: sets, observers, patience_s=PATIENCE_S,
                    remember=False, other_data=other_data, hold=hold, key=key, agreement=agreement,
                )
            )  # fmt: skip
        except BaseException as wrong:
            failed.append(wrong)
            raise

    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": os.cpu_count() or 1, "include_dashboard": False},
    }
    try:
        app = _app(experiment, homes, key.public_key().public_bytes_raw())
        _run_simulation(
            clients,
            EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
            app,
            server,
            backend_config=backend,  # type: ignore[arg-type]
        )
    except Exception:
        # what the server app raised says more than Flower's exception about it
        if not failed:
            raise
    if failed:
        raise failed[0]
    [result] = finished
    return result


def _app(experiment: Experiment, folder: Path, operator: bytes) -> ClientApp:
    """Return the client app of all virtual nodes: a node's partition says which client of the federation it is.

    Settings travel to Ray's workers as text; the data are built there.
    """
    data, profiles, seed = experiment.data.model_dump_json(), experiment.clients.profiles, experiment.run.seed

    def load_data(context: Context) -> ClientData:
        i = int(context.node_config["partition-id"])
        held = _data(data)
        found = build_profiles(profiles, held.num_clients, seed)
        mine = ClientData.of(held, i)
        return replace(mine, profile=found[i]) if found else mine

    policy, own, loop = policy_of(experiment), paths_of(experiment), experiment.train.loop
    apps, app = dict[int, ClientApp](), ClientApp()

    @app.query("hanse")
    def answer(message: Message, context: Context) -> Message:
        """Answer as the node whose turn it is; each has a folder of its own."""
        i = int(context.node_config["partition-id"])
        if i not in apps:
            home = folder / f"node{i}"
            apps[i] = client_app(load_data, policy=policy, folder=home, train=loop, own=own, operator=operator)
        return apps[i](message, context)

    return app


@functools.lru_cache(maxsize=1)
def _data(spec: str) -> FederatedData:
    """Return the federation's data, built once in each worker process."""
    from hanse.data.spec import DataSpec

    return build(DataSpec.model_validate_json(spec))
