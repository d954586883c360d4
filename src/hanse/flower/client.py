"""The client app that a hanse project runs on its nodes: one participant's data, policy and folder.

A project's ``client_app.py`` calls :func:`client_app` with a function that loads the participant's data (as
``hanse.flower.client_app``).

A node runs the app that the SuperLink sends, with the rights of the node's own user. The app acts only on requests
that the operator has signed (:mod:`hanse.flower.signing`). It trains, scores and tests through
:class:`hanse.federation.node.Node`. A client therefore answers on a network as it does in a simulation.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp

from hanse.base.errors import UserError
from hanse.base.files import AGREEMENTS, home_of
from hanse.base.imports import import_path, path_of
from hanse.core.port import Ask, Mask, OnModels, Request, Task, Test, Train
from hanse.data.schema import CsvTable, Schema, SiteTable, UnfitTableError, digest, doubts
from hanse.federation.behaviour import Behaviour
from hanse.federation.codec import Message, MissingError, WireError
from hanse.federation.node import ClientData, Node, hello, own_terms
from hanse.flower.agreement import AskedOf, BeyondError, Binding, counted, day_of, digest_of
from hanse.flower.leave import own_leave
from hanse.flower.members import NAME
from hanse.flower.message import from_records, to_records
from hanse.flower.node_log import NodeLog, left
from hanse.flower.operator_key import pinned_key
from hanse.flower.parent_process import end_with_parent
from hanse.flower.receipts import keep_pages
from hanse.flower.signing import check
from hanse.flower.warm_memory import remembered
from hanse.learning.loop import Loop
from hanse.learning.threads import intra_op
from hanse.ledger.log import LogHead
from hanse.ledger.witness import SplitViewError, UnprovenError, Witness

LoadData = Callable[[Context], ClientData]
Said = dict[str, Any]


def client_app(
    load_data: LoadData,
    *,
    policy: Any = None,
    behaviours: Sequence[Behaviour] = (),
    folder: str | Path | None = None,
    train: str | Callable[..., Any] | None = None,
    own: Sequence[str | Callable[..., Any]] = (),
    operator: bytes | None = None,
    trusted: Any = None,
    private: Mapping[str, Any] | None = None,
) -> ClientApp:
    """Return a Flower client app that trains and answers for one participant.

    Args:
        load_data: ``load_data(context)`` returns the participant's :class:`hanse.federation.node.ClientData`.
            ``context.node_config`` holds what the node was started with, such as ``partition-id``.
        policy: what the participant decides for itself: bids, prices, the most that it pays, and whether it stays
            (:mod:`hanse.federation.policy`). Default: :class:`~hanse.federation.policy.Loyal`.
        behaviours: what changes the participant's training and replies, for experiments with stragglers, noise or
            attackers.
        folder: where the participant keeps private models and receipts, in a subfolder for each run. Default: the
            environment variable ``HANSE_HOME``, else ``~/.hanse``.
        train: a training loop of the participant's own, used instead of the experiment's: a function ``fit(model, data,
            round)``, or its import path (:mod:`hanse.learning.loop`).
        own: the functions and classes that the experiment may name by import path: models, losses, metrics, loops. Only
            paths in this list are imported when a message names them.
        operator: the public key of the operator whose requests are answered, 32 bytes. Default: the key that was pinned
            when the node was started (``hanse network join --operator``).
        trusted: the members with whose updates the participant's may be summed (``[federation] secure``). Its updates
            then leave the node only under masks. They are a :class:`hanse.flower.Trusted`. Default: the members named
            by ``members.txt`` in the participant's folder, if the file is there.
        private: the privacy settings with which the participant answers, whatever the experiment says. These are the
            options of :class:`hanse.wings.private.privacy.Privacy`, including ``noise``. Default: what the experiment
            says. Once an account is opened, it is used in every later run.

    Returns:
        The app, for ``app = client_app(...)`` in the module that ``pyproject.toml`` names as ``clientapp``.

    Raises:
        UserError: ``train`` cannot be imported or called in this way, something in ``own`` cannot be imported, or
            ``private`` is wrong.
    """
    end_with_parent(sys.argv)  # a message's process must not outlive its node
    app, loop = ClientApp(), None if train is None else Loop.of(train, "client_app: train")
    home, things, data_of = home_of(folder), dict(_listed(own)), _once(load_data)
    rule = None if private is None else own_terms(private)

    log = NodeLog(home)

    @app.query("hanse")
    def answer(message: FlowerMessage, context: Context) -> FlowerMessage:
        """Answer one message of the server: who it is, a request, or a letter alone (receipts, a statement)."""
        reply, beside, done = Message("null"), dict[str, Any](), dict[str, Any]()
        try:
            request, values = from_records(message.content)
            pinned = pinned_key() if operator is None else operator
            signed = check(request, values, message, context, pinned, log)
            done["nonce"] = str(values["nonce"])
            bound = Binding.find(home, values.get("agreement"), pinned)
            if values["kind"] == "hello":
                said = hello(data_of(context), loop) | {"order": int(context.node_config.get("partition-id", 1 << 30))}
                said["name"] = said["name"][:NAME]
                if bound is not None:
                    said |= {"agreed": bound.cosignature, "witness": Witness(home).public.hex()}
                beside["hello"] = json.dumps(said)
            elif bound is None:
                named = str(values.get("agreement"))[:64] or "anything"
                raise BeyondError(f"its owner has not agreed to {named[:16]}: 'hanse network join --agree FILE'")
            else:
                reply = respond(request, values, context, bound, beside, done)
        except UnprovenError as lacking:
            # the server has not heard what this node has seen; it asks again with the proof
            beside["saw"] = lacking.count
        except MissingError as lost:
            # the server sends only models that the node should lack; it answers this by sending all of them
            beside["missing"] = lost.hashes
        except (WireError, UserError, OSError) as wrong:  # what a system's error says beside its number may be private
            system = os.strerror(wrong.errno or 0) if isinstance(wrong, OSError) else ""
            beside["refused"] = f"its machine failed: {system}" if system else str(wrong)
            if isinstance(wrong, BeyondError):
                done |= {"signature": values["signature"], "statement": signed}
            logging.getLogger(__name__).warning("a message was refused: %s", wrong)
        except Exception as wrong:  # of whatever class: fields that fit nothing, or a policy that raises
            beside["refused"] = f"it could not answer ({type(wrong).__name__}); its own log says why"  # not of samples
            logging.getLogger(__name__).exception("a message could not be answered")
        if "nonce" in done:  # a message of somebody else is not written down, or it could fill the log
            try:
                log.add(done.pop("nonce"), **done, left=left(reply, beside), refused=beside.get("refused"))
            except WireError as wrong:  # what cannot be written down does not leave
                reply, beside = Message("null"), {"refused": str(wrong)}
        return FlowerMessage(to_records(reply, **beside), reply_to=message)

    def respond(
        request: Message, values: Mapping[str, Any], context: Context, bound: Binding, beside: Said, done: Said
    ) -> Message:
        """Return the answer to a request or a letter under an agreement. Add the plain values to ``beside``, and what
        was asked to ``done``.
        """
        round, client, letter = values.get("round"), values.get("client"), values["kind"] == "letter"
        if type(round) is not int or type(client) is not int:
            raise WireError("its round, or its client, is not a whole number")
        beside["round"], pinned, shown = round, bytes.fromhex(bound.agreement.operator), _shown(values)
        asked = AskedOf(round, day_of(time.time()), client, head=shown, letter=letter)
        bound.check(asked)  # before a file is made for a head
        if shown is not None:  # whether one is due, the agreement says
            beside["cosigned"] = _cosigned(values, pinned, home)
        if leave := own_leave(home, bound.agreement.run):
            beside["leaves"] = leave
            if not letter:
                raise WireError("its owner has signed that it leaves this run")
        own, agreed = data_of(context).schema, bound.agreement.experiment["data"].get("schema", "")
        if own != agreed:
            logging.getLogger(__name__).error("load_data: by schema %s; agreed: %s", own or "none", agreed or "none")
            raise WireError("its table was prepared by another schema than was agreed (schema); its own log says which")
        files = bound.agreement.imported
        if wrong := [path for path in things if path in files and files[path] != digest_of(path, things[path])]:
            raise WireError(f"{wrong[0]}: the file in which it is defined is not the one that was agreed")

        def permit(found: Request) -> None:
            """Count what is asked, before anything is done for it."""
            done["questions"], done["samples"] = counted(found.tasks), _over(found.tasks, node.data)
            bound.count(asked, found.tasks)

        # one thread, so that a sum is added up in the same order on every machine
        with intra_op(1):
            job = bound.agreement.job(client, str(values.get("unsent", "")))
            node = Node(data_of(context), job, home, policy, behaviours, loop, things, trusted, rule)
            if receipts := keep_pages(str(values.get("letter", "")), node.folder, pinned):
                agreed_to = None if leave else [path.stem for path in (home / AGREEMENTS).glob("*.txt")]
                node.keep_receipts(receipts, pinned, agreed_to)
            if letter:
                bound.count(asked)
            return Message("null") if letter else node.answer(round, request, permit)

    return app


def table(
    file: str | Path, schema: str | Path, *, site: str = "", profile: Mapping[str, Any] | None = None
) -> ClientData:
    """Return a participant's table as its data, prepared as in a rehearsal with the same schema, bit for bit.

    Args:
        file: a CSV file.
        schema: the schema's file, as ``hanse schema`` makes it. Its SHA-256 is part of the agreement.
        site: the name under which the schema says what the site's words mean, and of the participant in reports.
            Default: the file's name without its ending.
        profile: plain values that the server may know, such as the participant's cost and eagerness.

    Raises:
        UnfitTableError: the table does not fit the schema. There is a line for each column and value, for the owner;
            the operator is told the error's ``code`` alone.
    """

    def prepared() -> ClientData:
        """Return the table's data, and tell the owner what is odd in it."""
        read, agreed = CsvTable.read(file), Schema.read(schema)
        found = SiteTable.of(read, agreed, site)
        for line in doubts([replace(read, name=found.name)], agreed)[0]:
            logging.getLogger(__name__).warning("%s: %s", file, line)
        train = found.share("train")
        assert train is not None  # a site has rows to train on, or the shares are refused
        shares = {name: found.share(name) for name in ("validation", "test")}
        classes = len(found.schema.labels) or None
        return ClientData(train, **shares, num_classes=classes, name=found.name, profile={}, schema=agreed_on)

    agreed_on = digest(schema)
    version = ""
    with suppress(UnfitTableError):  # a file that cannot be read: 'prepared' says so
        version = f"{digest(file, 'file')} by {agreed_on}"
    return replace(remembered(f"{file} of {site}", version, prepared), profile=profile or {})


def _over(tasks: Sequence[Task], data: ClientData) -> dict[str, int]:
    """Return over how many samples of each share tasks are done."""
    found: dict[str, int] = {}
    for task in tasks:
        trains = isinstance(task, Train) or (isinstance(task, Mask) and task.train is not None)
        shares = ["train"] if trains else ["test"] if isinstance(task, Test) else []
        if isinstance(task, OnModels) or (isinstance(task, Ask) and task.models is not None):
            shares = [task.share]
        elif isinstance(task, Test) and task.mixture is not None:
            shares.append(task.mixture.share)
        for share in shares:
            samples = getattr(data, share, None)
            most = getattr(task, "limit", None)
            number = 0 if samples is None else len(samples)
            found[share] = max(found.get(share, 0), number if most is None else min(number, most))
    return found


def _once(load_data: LoadData) -> LoadData:
    """Return what gives a node's data and loads them once: a warm process answers message after message, and a
    simulation's worker serves many nodes.
    """
    loaded: dict[int, ClientData] = {}

    def data_of(context: Context) -> ClientData:
        """Return the data of the node."""
        if context.node_id not in loaded:
            try:
                loaded[context.node_id] = load_data(context)
            except UnfitTableError as wrong:
                logging.getLogger(__name__).error("load_data: %s", wrong)
                raise UserError(f"its table does not fit ({wrong.code}); its own log says why") from None
            except Exception:  # of whatever class: its text may be made of samples, and would go to the server
                logging.getLogger(__name__).exception("load_data")
                raise UserError("its data cannot be loaded; its own log says why") from None
        return loaded[context.node_id]

    return data_of


def _shown(values: Mapping[str, Any]) -> LogHead | None:
    """Return the head of the books that a request shows, or None. Raises WireError if it is none."""
    try:
        return LogHead.read(str(values["head"])) if values.get("head") else None
    except ValueError as wrong:
        raise WireError(f"the head of the books: {wrong}") from None


def _cosigned(values: Mapping[str, Any], operator: bytes, home: Path) -> str:
    """Return the cosignature under the head of the books that a request shows.

    Raises:
        UnprovenError: it comes without a proof, and one is needed.
        WireError: it contradicts what this node has seen, or is not the operator's. The log has it, too.
    """
    try:
        proof = int(values["since"]), str(values["proof"])
        return Witness(home).see(str(values["head"]), *proof, operator, int(time.time()))
    except UnprovenError:
        raise
    except SplitViewError as wrong:
        logging.getLogger(__name__).error("ALARM: %s", wrong)
        raise WireError(f"ALARM: {wrong}") from None
    except ValueError as wrong:
        raise WireError(f"the head of the books: {wrong}") from None


def _listed(own: Sequence[str | Callable[..., Any]]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield what a participant's app lists, by the paths under which an experiment may name it."""
    for one in own:
        thing = import_path(one, "client_app: own", ()) if isinstance(one, str) else one
        yield from ((path, thing) for path in {path_of(thing), one if isinstance(one, str) else path_of(thing)})
