"""Flower's grid in this process with client apps of hanse, whose owners have agreed to what is played."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.clientapp import ClientApp

from hanse import flower
from hanse.base.files import FEDERATION, home_of
from hanse.data import build
from hanse.flower import server
from hanse.flower.agreement import agree
from hanse.flower.in_process import InProcessGrid
from hanse.flower.leave import run_of
from hanse.runs.setup import policy_of

__all__ = ["KEY", "PINNED", "InProcessGrid", "apps_of", "client_app", "key_file", "play"]

# the operator of all federations of tests, of child processes too; every message is signed, as on a network
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PINNED = KEY.public_key().public_bytes_raw()
HOMES: dict[int, Path] = {}  # the folder of each participant, by the id of its app


def key_file(file: Path, key: Ed25519PrivateKey = KEY) -> Path:
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    file.chmod(0o600)
    return file


def client_app(*args: Any, folder: str | Path | None = None, **more: Any) -> ClientApp:
    """A participant of this operator; its folder is noted, where its owner's agreement goes."""
    app = flower.client_app(*args, folder=folder, **{"operator": PINNED, **more})
    HOMES[id(app)] = home_of(folder)
    return app


def apps_of(
    experiment: Any, folder: Path, more: Callable[[int], dict[str, Any]] = lambda i: {}
) -> dict[int, ClientApp]:
    """A node for each client of an experiment; ``more`` says what else the app of a client is given."""
    data, policy, own = build(experiment.data), policy_of(experiment), paths_of(experiment)
    return {
        100 + i: client_app(
            lambda context, i=i: flower.ClientData.of(data, i),
            **{"folder": folder / f"node{i}", "policy": policy, "own": own, **more(i)},
        )
        for i in range(experiment.data.clients)
    }


def sets(experiment: Any) -> tuple[Any, Any]:
    """What the server of an experiment holds."""
    data = build(experiment.data)
    return data.server_validation, data.server_test


def play(grid: Any, experiment: Any, out: Path, *observers: Any, **more: Any) -> Any:
    """Play with nodes whose owners have signed the run's agreement, and the server's own samples; ``more`` may say
    how many ``members`` to wait for, and ``data``, what else the server loads.
    """
    members, data = more.pop("members", experiment.data.clients), more.pop("data", lambda: sets(experiment))
    if "agreement" not in more:
        run = run_of(out) if (out / FEDERATION).exists() else out.name
        homes = {HOMES[id(app)] for app in getattr(grid, "apps", {}).values() if id(app) in HOMES}
        more["agreement"] = agree(experiment, more.get("key", KEY), run, "test", sorted(homes))
    return server.play(grid, experiment, out, members, data, observers, **{"key": KEY, "patience_s": 5.0, **more})


def paths_of(experiment: Any) -> list[str]:
    """The import paths that an experiment's messages may name."""
    dumped = experiment.train.model_dump()
    said = [experiment.model.name, dumped["loop"], dumped["loss"], *(experiment.eval.metrics or ())]
    names = (one.get("name") if isinstance(one, dict) else one for one in said)
    return [name for name in names if isinstance(name, str) and ":" in name and "<" not in name]
