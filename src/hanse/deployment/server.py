"""The server app: an experiment played with the members of a Flower federation."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from hanse.base.errors import MachineError, UserError
from hanse.base.files import write_whole
from hanse.base.lock import Hold
from hanse.core.part import Mechanism
from hanse.data.federated import RemoteData
from hanse.data.samples import Input, Inputs, Samples
from hanse.deployment.link import FlowerFederation
from hanse.deployment.members import Check, Hello, Member, Members, Orders, SaidInput, kind
from hanse.deployment.message import LARGEST
from hanse.deployment.narrator import Narrator, speak
from hanse.deployment.newcomers import LOG
from hanse.deployment.receipts import Letters, Teller
from hanse.federation.node import Assignment
from hanse.learning.losses import build_objective
from hanse.learning.models import build_problem
from hanse.learning.sequences import is_text
from hanse.runs.config import Experiment
from hanse.runs.experiment import Observer, Run, run_remote
from hanse.runs.setup import loop_lacks

OTHERS_S = 5.0  # more nodes than are expected have so long to introduce themselves before round 0

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

    It waits up to ``patience_s`` seconds for ``members`` nodes, but not for those that answer that they cannot take
    part; others may join later while there are fewer than ``data.clients`` of the experiment. ``load_server_data``
    returns the server's validation and test sets, for mechanisms that value by one. A reply of more than ``largest``
    bytes is refused unread. ``other_data`` lets a run go on with other sets of the server than it had.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        speak()
        loaded = experiment if isinstance(experiment, Experiment) else Experiment.read(experiment)
        play(
            grid, loaded, Path(out), members, load_server_data, observers,
            patience_s=patience_s, largest=largest, other_data=other_data,
        )  # fmt: skip

    return app


def play(
    grid: Grid,
    experiment: Experiment,
    out: Path,
    members: int,
    load_server_data: LoadServerData | None,
    observers: Sequence[Observer],
    *,
    patience_s: float,
    largest: int = LARGEST,
    remember: bool = True,
    other_data: bool = False,
    hold: Hold | None = None,
) -> Run:
    """Wait for the members, then play the rounds. Unless it is to ``remember`` them, their numbers are those that they
    state (in a simulation, where nodes have no keys). ``hold``: the lock of ``out``, if the caller has it already.

    Raises UserError if too few come, or another process plays into ``out``.
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
        job = _assignments(experiment, run)
        register = Members.read(out / "members.json" if remember else None)
        validation, test = (None, None) if load_server_data is None else load_server_data()

        letters = Letters.read(out / "letters.json")
        own = [samples for samples in (validation, test) if samples is not None]
        check = _fits(own, experiment.mechanism.built)
        federation = FlowerFederation(
            grid, register, job, deadline_s=experiment.federation.deadline_s or 3600.0, capacity=room, largest=largest,
            half=half, orders=partial(Orders.read, out), letters=letters, check=check,
        )  # fmt: skip
        narrator = Narrator(federation, out)
        with narrator.watching():
            gather(federation, members, patience_s)
            found = [m for m in register.fitting(check) if m.id < room]
            sizes = [0] * room
            for member in found:
                sizes[member.id] = member.num_samples
            one = found[0]
            inputs = Inputs(tuple(Input(part.name, part.shape, part.whole) for part in one.inputs))
            data = RemoteData.of(sizes, one.input_shape, one.num_classes, validation, test, one.text, inputs)
            watching = [*observers, Teller(letters, federation.deliver, out), narrator]
            return run_remote(experiment, data, federation, hold=hold, observers=watching, other_data=other_data)


def _assignments(experiment: Experiment, run: str) -> Callable[[Member, int], Assignment]:
    """Return what makes a member's assignment, from its number of clients."""
    seed, model = experiment.run.seed, experiment.model

    @cache
    def frozen_of(shape: tuple[int, ...], classes: int | None) -> str:
        objective = build_objective(experiment.train.loss, classes)
        return build_problem(model.name, shape, classes, seed, objective=objective, **model.options)[0].unsent

    def job(member: Member, num_clients: int) -> Assignment:
        return Assignment(
            run,
            member.id,
            num_clients,
            seed,
            {"name": model.name, **model.options},
            experiment.train.model_dump(),
            half=experiment.federation.half_precision,
            unsent=frozen_of(member.input_shape, member.num_classes) if model.send != "all" else "",
            metrics=experiment.eval.metrics or (),
        )

    return job


def _fits(own: Sequence[Samples], mechanism: Mechanism) -> Check:
    """Return what says why a participant cannot take part: its samples are not like the server's own, or its own
    training loop does not do what the mechanism asks.
    """
    alike = _alike(own)

    def check(said: Hello | Member) -> str | None:
        lack = loop_lacks(mechanism, said.loop)
        return alike(said) if lack is None else f"its training loop {lack}"

    return check


def _alike(own: Sequence[Samples]) -> Check:
    """Return what says why a participant's samples are not like the server's own, if they are not."""
    labels = [None if s.y.is_floating_point() else int(s.y.max()) for s in own if len(s)]

    def check(said: Hello | Member) -> str | None:
        for samples in own:
            if said.text != is_text(samples):
                return f"its samples are {kind(said)}; the server's own are {'' if is_text(samples) else 'no '}texts"
            shape = tuple(samples.x.shape[1:])
            named = tuple(SaidInput(part.name, part.shape, part.whole) for part in samples.inputs.parts)
            if not said.text and (shape != said.input_shape or named != said.inputs):
                ours = f"of the inputs {', '.join(samples.inputs.shapes)}" if named else f"of shape {list(shape)}"
                return f"its samples are {kind(said)}; the server's own are {ours}"
        for largest in labels:
            if (largest is None) != (said.num_classes is None):
                return f"its samples are {kind(said)}; the server's have {'numbers' if largest is None else 'classes'}"
            if largest is not None and said.num_classes is not None and largest >= said.num_classes:
                return f"its samples are {kind(said)}; the server's own have labels up to {largest}"
        return None

    return check


def gather(federation: FlowerFederation, members: int, patience_s: float) -> None:
    """Wait until as many members are online as are expected, and register them together, in the order they state.

    Nobody waits for those that were expelled or refused. At the very first start others that are online have
    ``OTHERS_S`` to introduce themselves too, so that ids do not hang on who was faster. Raises UserError if too few
    come within ``patience_s``, or all that could come were refused.
    """
    end, enough, told = time.monotonic() + patience_s, None, -1
    while True:
        federation.look()
        newcomers, known = federation.newcomers, federation.members.by_key
        refused, here = newcomers.refused, federation.here() + len(newcomers.said)
        due = members - sum(m.expelled is not None for m in known.values())
        now = time.monotonic()
        if here >= max(1, due - len(refused)):
            enough = now if enough is None else enough
            if known or not newcomers.pending or now >= min(enough + OTHERS_S, end):
                federation.admit()
                if federation.here():
                    return
        elif not here and not newcomers.pending and len(refused) >= max(1, due):
            raise UserError(f"members: none of the {len(refused)} nodes that are here can take part", *refused.values())
        if now > end:
            why = [*refused.values(), *([f"{newcomers.pending} have not answered yet"] if newcomers.pending else [])]
            raise UserError(f"members: {here} of {members} nodes came within {patience_s:g} s", *why)
        if here != told:
            LOG.info("%d of %d members are here", here, members)
            told = here
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
