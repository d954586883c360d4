"""The server app of a hanse project: an experiment played with the members of a Flower federation.

A project's ``server_app.py`` calls :func:`server_app` (as ``hanse.flower.server_app``). Its main function is
:func:`play`. It waits for the members with :func:`gather`, and collects what the
run needs to know of data that it never sees. It then hands over to the same loop that plays a run in one process. An
existing run directory is continued.

The operator's key signs every message to a node. The environment variable ``HANSE_OPERATOR_KEY`` names the key's file;
``hanse network up`` sets it (:mod:`hanse.flower.operator_key`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from hanse.base.errors import RunFailedError, UserError
from hanse.base.files import FEDERATION, MEMBERS, given_path, read_text, write_whole
from hanse.base.lock import Hold
from hanse.base.plain_text import quantity
from hanse.core.part import Mechanism
from hanse.data.federated import RemoteData
from hanse.data.samples import Input, Inputs, Samples
from hanse.data.spec import SchemaTables
from hanse.flower.agreement import Agreement, canonical, day_of, sources
from hanse.flower.leave import run_of, take_leave
from hanse.flower.link import FlowerFederation
from hanse.flower.members import Check, Hello, Member, Members, Orders, SaidInput, kind
from hanse.flower.narrator import Narrator, speaking
from hanse.flower.newcomers import LOG
from hanse.flower.operator_key import signing_key
from hanse.flower.parent_process import end_with_parent
from hanse.flower.receipts import Letters, Teller
from hanse.flower.witnesses import ShownHeads
from hanse.learning.job import LOOP
from hanse.learning.losses import build_objective
from hanse.learning.models import build_problem
from hanse.learning.sequences import is_text
from hanse.mechanisms.fits import WORDS, clashes, unmet_needs
from hanse.runs.config import Experiment
from hanse.runs.experiment import Observer, PlayedRun, run_remote
from hanse.runs.guards import completed
from hanse.runs.recomputable import code_hash

OTHERS_S = 5.0  # seconds that nodes beyond the expected number have to introduce themselves before round 0

REPLACED_S = 30.0  # seconds that a server which is being replaced has to let go of the run directory

AGREEMENT = "HANSE_AGREEMENT"  # the environment variable that names the agreement's file

LoadServerData = Callable[[], tuple[Samples | None, Samples | None]]  # the server's own validation and test set


def server_app(
    experiment: Experiment | str | Path,
    *,
    out: str | Path,
    members: int,
    load_server_data: LoadServerData | None = None,
    observers: Sequence[Observer] = (),
    patience_s: float = 600.0,
    other_data: bool = False,
    agreement: str | Path | None = None,
) -> ServerApp:
    """Return a Flower server app that plays an experiment into a run directory, or continues the run there.

    Args:
        experiment: the experiment, or the path of its file.
        out: the run directory. Flower runs a copy of the project, so give an absolute path.
        members: for how many participants the first round waits. Participants that answer that they cannot take part do
            not count. Others may join later, up to ``data.clients`` of the experiment.
        load_server_data: a function that returns the server's validation set and test set, each None if there is none.
            Mechanisms that value updates need a validation set.
        observers: see every round (:class:`hanse.runs.experiment.Observer`).
        patience_s: seconds to wait for the participants before the run fails.
        other_data: whether a run may continue although the server's sets have changed.
        agreement: the file with the agreement that the members' owners have signed. Default: the file that the
            environment variable ``HANSE_AGREEMENT`` names, which ``hanse network up`` sets.

    Returns:
        The app, for ``app = server_app(...)`` in the module that ``pyproject.toml`` names as ``serverapp``.
    """
    end_with_parent(sys.argv)  # a run's process must not outlive its SuperLink
    app, folder = ServerApp(), given_path("out", out)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        """Play the experiment; Flower calls this once a run. Raises RunFailedError if no update was mixed."""
        with speaking():
            loaded = experiment if isinstance(experiment, Experiment) else Experiment.read(experiment)
            played = play(
                grid, loaded, folder, members, load_server_data, observers, patience_s=patience_s,
                other_data=other_data, statements=True,
                agreement=used(agreement or os.environ.get(AGREEMENT), folder),
            )  # fmt: skip
            if played.nothing is not None:  # so Flower, too, says that the run failed
                raise RunFailedError(played.nothing)

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
    other_data: bool = False,
    key: Ed25519PrivateKey | None = None,
    agreement: Agreement,
    statements: bool = False,
) -> PlayedRun:
    """Wait for the members, play the remaining rounds, and return the finished run.

    Args:
        grid: Flower's connection to the nodes, as a server app's ``main`` is given it, or a
            :class:`hanse.flower.in_process.InProcessGrid`.
        experiment: the :class:`hanse.Experiment` to play, with at least ``members`` clients in its ``data`` section.
        out: the run directory.
        members: how many participants to wait for.
        load_server_data: as for :func:`server_app`.
        observers: as for :func:`server_app`.
        patience_s: seconds to wait for the participants.
        other_data: as for :func:`server_app`.
        key: the operator's key, which signs what is sent. None: the key that ``HANSE_OPERATOR_KEY`` names.
        agreement: what the members' owners have agreed to. Nodes of others are kept out.
        statements: whether each participant is sent its statement at the end.

    Raises:
        UserError: the experiment or hanse is not what was agreed, or it has ended; too few participants come,
            another process plays into ``out``, there is no key to sign with, or the experiment cannot be played on a
            network.
    """
    if experiment.behaviour:
        raise UserError("behaviour: clients on a network behave as they do; give behaviours to client_app in a trial")
    if members > experiment.data.clients:
        raise UserError(f"members: {members}: more than data.clients, {experiment.data.clients}")
    signs = signing_key() if key is None else key
    experiment = completed(experiment)  # participants are told it
    if isinstance(source := experiment.data.source, SchemaTables):  # a run that goes on is told from another schema's
        agreed = experiment.data.model_copy(update={"source": replace(source, sha256=source.agreed)})
        experiment = experiment.model_copy(update={"data": agreed})
    _agreed(agreement, experiment, signs)
    out.mkdir(parents=True, exist_ok=True)
    with Hold(out) as hold:
        hold.take(REPLACED_S)
        begin(out / FEDERATION, agreement.run)
        room, half = experiment.data.clients, experiment.federation.half_precision
        register = Members.read(out / MEMBERS)
        validation, test = (None, None) if load_server_data is None else load_server_data()
        lacking = {"root"} if validation else {"root", "validation"}
        if unmet := unmet_needs(experiment.mechanism.built, WORDS.keys() - lacking):  # before any member is waited for
            raise UserError(*(one.line for one in unmet))

        letters = Letters.read(out / "letters.json")
        own = [samples for samples in (validation, test) if samples is not None]
        fits = _fits(own, experiment.mechanism.built)
        lacks = cache(agreement.lacks)  # a signature is verified once, not in each look of each round

        def check(said: Hello) -> str | None:
            """Return why a participant cannot take part, or None."""
            return lacks(said.agreed, said.witness) or fits(said)

        federation = FlowerFederation(
            grid, register, signs, deadline_s=experiment.federation.deadline_s or 3600.0, capacity=room,
            half=half, orders=partial(Orders.read, out), letters=letters, check=check,
            shown=ShownHeads(out), agreement=agreement.hash, unsent=unsent(experiment),
            tells_leavers=experiment.clients.leaving.receipts == "sent",
            leaves=partial(take_leave, out, register, ends=experiment.clients.leaving.models == "anew"),
        )  # fmt: skip
        narrator = Narrator(federation, out)
        with narrator.watching():
            gather(federation, members, patience_s)
            # the loop knows of the members' data only what they have said: sizes by id, and the shape that all of them
            # share
            found = [m for m in register.fitting(check) if m.id < room]
            sizes = np.zeros(room, np.int64)
            for member in found:
                sizes[member.id] = member.num_samples
            one = found[0]
            inputs = Inputs(tuple(Input(part.name, part.shape, part.whole) for part in one.inputs))
            data = RemoteData(sizes, one.input_shape, one.num_classes, validation, test, text=one.text, inputs=inputs)
            watching = [*observers, Teller(letters, federation.deliver, out, signs if statements else None), narrator]
            return run_remote(
                experiment, data, federation, hold=hold, observers=watching, other_data=other_data, key=signs,
                agreement=agreement.hash,
            )  # fmt: skip


def unsent(experiment: Experiment) -> Callable[[Member], str]:
    """Return a function that returns the digest of the frozen parameters that a member is not sent; "" if all are sent.

    A member's node checks with it that it has the same ones.
    """
    model = experiment.model

    @cache  # for each kind of samples: building a model can take long
    def frozen_of(shape: tuple[int, ...], classes: int | None) -> str:
        objective = build_objective(experiment.train.loss, classes)
        seed = experiment.run.seed
        return build_problem(model.name, shape, classes, seed, objective=objective, **model.options)[0].unsent

    return lambda member: "" if model.send == "all" else frozen_of(member.input_shape, member.num_classes)


def _fits(own: Sequence[Samples], mechanism: Mechanism) -> Check:
    """Return a check that says why a participant cannot take part, or None.

    Its samples must be like the server's ``own``, and its own training loop, if it has one, must do what the mechanism
    asks of it.
    """
    most = [0 if s.y.is_floating_point() else 1 + int(s.y.max()) for s in own if len(s)]  # classes, by the labels

    @cache
    def clash(loop: str | None) -> str | None:
        around = {} if loop is None else {"train.loop": LOOP, f"train.loop/{loop}": LOOP}
        return next(iter(clashes(mechanism, around)), None)

    def check(said: Hello) -> str | None:
        if wrong := clash(said.loop):
            return wrong
        for samples in own:
            named = tuple(SaidInput(part.name, part.shape, part.whole) for part in samples.inputs.parts)
            text, shape = is_text(samples), tuple(samples.x.shape[1:])
            here = Hello(0, shape, said.num_classes, text=text, inputs=named)
            if kind(here) != kind(said):
                return f"its samples are {kind(said)}; the server's own are {'texts' if text else kind(here)}"
        for classes in most:
            if (classes == 0) != (said.num_classes is None):
                return f"its samples are {kind(said)}; the server's have {'classes' if classes else 'numbers'}"
            if classes > (said.num_classes or 0):
                return f"its samples are {kind(said)}; the server's own have labels up to {classes - 1}"
        return None

    return check


def gather(federation: FlowerFederation, members: int, patience_s: float) -> None:
    """Wait until the expected number of members is online, and register the newcomers together.

    Ids follow the order that the newcomers state. At the very first start, nodes beyond the expected number also get
    ``OTHERS_S`` seconds to introduce themselves. Ids therefore do not depend on which node was faster. Nobody waits for
    nodes that were expelled or refused.

    Args:
        federation: the network, with its register of members.
        members: how many members are expected.
        patience_s: seconds to wait.

    Raises:
        UserError: too few members come in time, or all nodes that are online were refused. The message has a line for
            each reason.
    """
    end, enough, told = federation.clock() + patience_s, None, -1
    while True:
        federation.look()
        newcomers, known = federation.newcomers, federation.members.by_key
        refused, here = newcomers.refused, federation.here() + len(newcomers.said)
        due = members - sum(m.expelled is not None for m in known.values())
        now = federation.clock()
        if here >= max(1, due - len(refused)):
            enough = now if enough is None else enough
            # a run that goes on knows its members; a first start waits a little for nodes that have not answered yet
            if known or not newcomers.pending or now >= min(enough + OTHERS_S, end):
                federation.admit()
                if federation.here():
                    return
        elif not here and not newcomers.pending and len(refused) >= max(1, due):
            nodes = quantity(len(refused), "node that is", "nodes that are")
            raise UserError(f"members: none of the {nodes} here can take part", *refused.values())
        if now > end:
            why = [*refused.values(), *([f"{newcomers.pending} have not answered yet"] if newcomers.pending else [])]
            raise UserError(f"members: {here} of {quantity(members, 'node')} came within {patience_s:g} s", *why)
        here = federation.here() + len(newcomers.said)  # some of those who have come may have been kept out just now
        if here != told:
            LOG.info("%d of %s here", here, quantity(members, "member is", "members are"))
            told = here
        time.sleep(0.5)


def used(path: str | Path | None, out: Path) -> Agreement:
    """Return the agreement in a file, and note in ``FILE.run`` that the run in ``out`` goes by it.

    Raises:
        UserError: there is none, it is damaged, or it was used for another run.
    """
    if not path or not Path(path).exists():
        said = f"{AGREEMENT}: {path}: is not there" if path else f"{AGREEMENT}: is not set: there is no agreement"
        raise UserError(f"{said}; 'hanse network up' writes one for experiment.toml")
    file = Path(path)
    try:
        agreement, _ = Agreement.read(read_text(file))
    except ValueError as wrong:
        raise UserError(f"{file}: is damaged: {wrong}; 'hanse network up' writes it anew") from None
    mark, here = file.with_suffix(".run"), str(out.absolute())
    there = mark.read_text().strip() if mark.exists() else here
    if there != here:
        raise UserError(f"{file}: was used for the run in {there}; 'hanse network up' writes another")
    write_whole(mark, here + "\n", durable=True)
    return agreement


def _agreed(agreement: Agreement, experiment: Experiment, key: Ed25519PrivateKey) -> None:
    """Raise UserError unless this operator may play an experiment with this hanse under an agreement."""
    said, lines = canonical(experiment), list[str]()
    for name, section in said.items():
        there = agreement.experiment.get(name, {})
        different = [key for key in {**section, **there} if section.get(key) != there.get(key)]
        lines += [f"{name}.{key}: {section.get(key)!r}: {there.get(key)!r} was agreed" for key in different]
    if sources(said) != dict(agreement.imported):
        lines.append("what the experiment names by import path was changed since it was agreed")
    if agreement.operator != key.public_key().public_bytes_raw().hex():
        lines.append("the agreement is another operator's")
    if day_of(time.time()) > agreement.expires:
        lines.append(f"the agreement ended on {agreement.expires}")
    if code_hash() not in agreement.releases.values():
        lines.append("this release of hanse is not among those that were agreed")
    if lines:
        raise UserError(*lines, "'hanse network up' writes a new agreement, which each member's owner must be given")


def begin(path: Path, run: str) -> None:
    """Write the run's name, which is also that of its folder at the participants, into ``path`` unless it is there.

    Raises:
        UserError: the run there has another name, so it goes by another agreement; or the file is damaged.
    """
    if not path.exists():
        write_whole(path, json.dumps({"run": run}) + "\n", durable=True)
    if (there := run_of(path.parent)) != run:
        raise UserError(f"{path.parent}: is the run '{there}', and the agreement is about '{run}'")
