"""The server app: an experiment played with the members of a Flower federation."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from hanse.config import Experiment
from hanse.data.samples import Samples
from hanse.errors import MachineError, UserError
from hanse.experiment import Observer, Run, run_elsewhere
from hanse.federation.elsewhere import RemoteData
from hanse.federation.flower.link import FlowerFederation
from hanse.federation.flower.members import Member, Members
from hanse.federation.flower.message import LARGEST
from hanse.federation.flower.operator import Orders
from hanse.federation.flower.receipts import Teller
from hanse.federation.node import Job
from hanse.files import write_whole
from hanse.lock import Hold

__all__ = ["play", "server_app"]

REPLACED_S = 30.0  # that a server which was replaced has to go down

LoadServerData = Callable[[], tuple[Samples | None, Samples | None]]  # validation and test set of the server


def server_app(
    experiment: Experiment | str | Path,
    *,
    out: str | Path,
    members: int,
    load_server_data: LoadServerData | None = None,
    observers: Sequence[Observer] = (),
    patience_s: float = 600.0,
    largest: int = LARGEST,
    other_data: bool = False,
) -> ServerApp:
    """Return a Flower server app that runs ``experiment`` into the run directory ``out``, or goes on with it.

    It waits up to ``patience_s`` seconds for ``members`` nodes; others may join later while there are fewer than
    ``data.clients`` of the experiment. ``load_server_data`` returns the server's validation and test sets, for
    mechanisms that value by one. A reply of more than ``largest`` bytes is refused unread. ``other_data`` lets a run go
    on with other sets of the server than it had.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        loaded = experiment if isinstance(experiment, Experiment) else Experiment.read(experiment)
        play(grid, loaded, Path(out), members, load_server_data, observers, patience_s, largest, True, other_data)

    return app


def play(
    grid: Grid,
    experiment: Experiment,
    out: Path,
    members: int,
    load_server_data: LoadServerData | None,
    observers: Sequence[Observer],
    patience_s: float,
    largest: int = LARGEST,
    remember: bool = True,
    other_data: bool = False,
    hold: Hold | None = None,
) -> Run:
    """Wait for the members, then play the rounds. Unless it is to ``remember`` them, their numbers are those that they
    state (in a simulation, where nodes have no keys). ``hold``: the lock of ``out``, if the caller has it already.

    Raises UserError if too few come, they do not fit together, or another process plays into ``out``.
    """
    if experiment.behaviour:
        raise UserError("behaviour: clients on a network behave as they do; give behaviours to client_app in a trial")
    if members > experiment.data.clients:
        raise UserError(f"members: {members}: more than data.clients, {experiment.data.clients}")
    out.mkdir(parents=True, exist_ok=True)
    with hold or Hold(out) as hold:
        hold.take(REPLACED_S)
        run = _name_of(out / "federation.json")
        room, half = experiment.data.clients, experiment.federation.half_precision
        register = Members.read(out / "members.json" if remember else None)

        def job(member: Member, num_clients: int) -> Job:
            model = {"name": experiment.model.name, **experiment.model.options}
            return Job(run, member.id, num_clients, experiment.run.seed, model, experiment.train.model_dump(), half)

        deadline_s = experiment.federation.deadline_s or 3600.0
        _log_refusals()
        federation = FlowerFederation(grid, register, job, deadline_s, room, largest, half, partial(Orders.read, out))
        _gather(federation, members, patience_s)
        first = min(register.by_key.values(), key=lambda m: m.id)
        for member in register.by_key.values():
            if _kind(member) != _kind(first):
                raise UserError(f"member {member.name}: samples {_kind(member)}; {first.name} has them {_kind(first)}")
        sizes = [0] * room
        for member in register.by_key.values():
            sizes[member.id] = member.num_samples
        validation, test = (None, None) if load_server_data is None else load_server_data()
        data = RemoteData.of(sizes, first.input_shape, first.num_classes, validation, test, first.text)
        watching = [*observers, Teller(federation, out)]
        return run_elsewhere(experiment, data, federation, hold=hold, observers=watching, other_data=other_data)


def _log_refusals() -> None:
    """Let the server's log name whoever is refused, with key and reason: the operator may want to expel it."""
    logger = logging.getLogger("hanse.federation")
    logger.setLevel(logging.INFO)
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        logger.addHandler(handler)


def _kind(member: Member) -> str:
    """Return what a member's samples are like; all members' must be alike. Texts may be of any length."""
    if member.text:
        return f"as texts of {member.num_classes} tokens"
    labels = "targets that are numbers" if member.num_classes is None else f"{member.num_classes} classes"
    return f"of shape {list(member.input_shape)} with {labels}"


def _gather(federation: FlowerFederation, members: int, patience_s: float) -> None:
    end = time.monotonic() + patience_s
    while True:
        here = len(federation.present(-1))
        expelled = sum(m.expelled is not None for m in federation.members.by_key.values())
        if here >= max(1, members - expelled):
            return
        if time.monotonic() > end:
            raise UserError(f"members: {here} of {members} nodes came within {patience_s:g} s")
        time.sleep(0.5)


def _name_of(path: Path) -> str:
    """Return the run's name for its members' folders, made once. Raises MachineError if its file is damaged."""
    if not path.exists():
        write_whole(path, json.dumps({"run": uuid.uuid4().hex}) + "\n", durable=True)
    try:
        return str(json.loads(path.read_text())["run"])
    except (ValueError, KeyError, TypeError):
        raise MachineError(
            f'{path}: is damaged; it must be {{"run": NAME}}, with the name of the run\'s folder at its participants'
        ) from None
