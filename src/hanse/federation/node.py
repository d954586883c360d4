"""A participant's side of the port on a network: it has the data, answers requests, and keeps its private models.

:class:`Node` answers messages and knows nothing about the network. :class:`ClientData` is the participant's data.
:class:`Assignment` is what the server tells it about the run, and :func:`hello` is what it first says about itself. In
its own folder, a node keeps models by content hash, and private rows and receipts by run. They therefore survive
restarts.

An update of a private row counts once the server says that it was accepted. Every request says which update of each row
that was last, and :meth:`PrivateRow.told` moves the owner's row accordingly. It therefore agrees with the server's
record even after a crash on either side, or if the server returns to an earlier state.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hanse.base.errors import UserError
from hanse.base.factories import call
from hanse.base.files import AGREEMENTS, ASKED, CLIENTS, OPERATORS, as_npz, private_folder, write_whole
from hanse.base.imports import from_message
from hanse.base.pytorch import Tensor, torch
from hanse.base.wings import Names, absent
from hanse.core.declared import Count, Int64, Name
from hanse.core.port import Call, Federation, Reply, Request, Result, Score, Scored, Task, Test, Tested, Train, Trained
from hanse.core.recipe import NEVER, Recipe
from hanse.data.federated import FederatedData
from hanse.data.fingerprint import Fingerprint, note_own_data, of_samples
from hanse.data.samples import Samples, unfinite
from hanse.data.units import SHARES
from hanse.federation.answers import mixed
from hanse.federation.behaviour import Behaviour
from hanse.federation.codec import Message, WireError, pack, unpack
from hanse.federation.local import LocalFederation
from hanse.federation.policy import Loyal
from hanse.federation.policy import faults as profile_faults
from hanse.learning.job import Engine, Problem
from hanse.learning.losses import build_objective
from hanse.learning.metrics import build_metrics
from hanse.learning.models import build_problem
from hanse.learning.sequences import is_text
from hanse.learning.sequential import SequentialEngine
from hanse.ledger import witness
from hanse.ledger.receipts import Receipt, contradiction, newest, write_receipts

if TYPE_CHECKING:
    from hanse.learning.loop import Loop


def private_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays into an npz file, whole and durably, which only this user can read.

    Raises:
        OSError: the file cannot be written.
    """
    write_whole(path, as_npz(arrays), durable=True, private=True)


def kept_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file that was written here; empty if there is none.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is damaged.
    """
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


@dataclass(frozen=True)
class PrivateRow:
    """A private row as its owner keeps it.

    Attributes:
        row: ``[P]``, the row that counts.
        before: ``[P]``, the row before the last accepted update.
        round: the round of that update, or NEVER for a row that was never trained.
        pending: ``[P]``, the owner's last update while the owner does not know yet whether it was accepted; else None.
        pending_round: the round in which ``pending`` was trained.

    Examples:
        >>> kept = PrivateRow.first(torch.zeros(2)).trained(torch.ones(2), 0)
        >>> kept.told(1, 0).row  # round 0 was accepted
        tensor([1., 1.])
        >>> kept.told(1, None).row
        tensor([0., 0.])
    """

    row: Tensor
    before: Tensor
    round: int = NEVER
    pending: Tensor | None = None
    pending_round: int = NEVER

    @staticmethod
    def first(row: Tensor) -> PrivateRow:
        """Return a row ``[P]`` that was never trained."""
        return PrivateRow(row, row)

    def trained(self, update: Tensor, round: int) -> PrivateRow:
        """Return the row with a new update ``[P]`` of a round, which waits for its acceptance."""
        return replace(self, pending=update, pending_round=round)

    def told(self, round: int, accepted: int | None) -> PrivateRow:
        """Return the row after a server's message about it.

        The pending update becomes the row if it is the accepted one. It is dropped if its round differs from the
        message's. If the row moved in a later round than the accepted one, it goes back: the server was reset to an
        earlier state, or has undone that round.

        Args:
            round: the round of the message.
            accepted: the round of the last update that the server accepted. NEVER: it accepted none. None: the server
                does not say.
        """
        if self.pending is not None and self.pending_round == accepted:
            return PrivateRow(self.pending, self.row, accepted)
        kept = self
        if accepted is not None and self.round > accepted:
            kept = replace(self, row=self.before, round=accepted)
        if kept.pending is not None and kept.pending_round != round:
            kept = replace(kept, pending=None, pending_round=NEVER)
        return kept

    def write(self, path: Path) -> None:
        """Write the row into a file, whole and durably, which only this user can read.

        Raises:
            OSError: the file cannot be written.
        """
        private_arrays(path, {name: np.asarray(value) for name, value in vars(self).items() if value is not None})

    @staticmethod
    def read(path: Path) -> PrivateRow:
        """Return the row that was written into a file.

        Raises:
            OSError: the file cannot be read.
            ValueError, TypeError: the file is damaged, or there is none.
        """
        arrays = kept_arrays(path)
        kept: dict[str, Any] = {name: torch.from_numpy(x) if x.ndim else int(x) for name, x in arrays.items()}
        return PrivateRow(**kept)


# the question after training in which a market lets a client see how good its update is
BEST = "own model"
# what a participant draws its noise from; it is never sent
SECRET, SECRET_BYTES = "secret.key", 32
# its privacy account, over all runs, and the members with whose updates its own may be summed: what a wing reads
ACCOUNT, ACCOUNT_LOCK, MEMBERS = "privacy.json", "privacy.lock", "members.txt"
PRIVATE = "federation.private"  # the setting that asks for an account
WITNESS = (witness.KEY, witness.PUBLIC, witness.HEADS, witness.ALARM)
APPS = "flwr"  # the operators' apps, as Flower installs them
# models by content hash that a node keeps: the last that it was sent
KEPT = 16


@dataclass(frozen=True)
class ClientData:
    """One participant's data.

    For samples with several inputs, make :class:`hanse.data.Samples` from a dictionary.

    Attributes:
        train: the samples on which the participant trains, at least one.
        test: the samples that the participant tests models on, or None.
        validation: the samples that the participant validates models on, or None.
        num_classes: None for regression.
        name: the name for display.
        profile: plain values that the server may know, such as the participant's cost and eagerness.
        schema: SHA-256 of the schema by which a table was prepared (:func:`hanse.flower.table`). A node answers only
            under an agreement on the same one. "": there is none.

    Raises:
        UserError: inputs and targets differ in number, a number is not finite, there is nothing to train on, or an
            amount of the profile (such as the cost) is neither a number from 0 to 1e15 nor inf. Labels are not compared
            with ``num_classes`` here, nor the shapes of the shares with one another.

    Examples:
        >>> import torch
        >>> mine = ClientData(Samples(torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])), num_classes=2, name="farm")
        >>> len(mine.train), mine.test
        (6, None)

        The share of client 2 of a small federation:

        >>> from hanse.runs.rehearsal import rehearse
        >>> ClientData.of(rehearse().session.data, 2).num_classes
        10
    """

    train: Samples
    test: Samples | None = None
    validation: Samples | None = None
    num_classes: int | None = None
    name: str = ""
    profile: Mapping[str, Any] = field(default_factory=dict)
    schema: str = ""

    def __post_init__(self) -> None:
        for share in SHARES:
            samples = getattr(self, share)
            if samples is None:
                continue
            if len(samples.x) != len(samples.y):
                raise UserError(f"load_data: {share}: {len(samples.x)} inputs and {len(samples.y)} targets")
            if samples.inputs != self.train.inputs:
                other = f"{list(samples.inputs.shapes)}, those of the train samples {list(self.train.inputs.shapes)}"
                raise UserError(f"load_data: {share}: samples have the inputs {other}")
            if line := unfinite(samples):
                raise UserError(f"load_data: {share}: {line}")
        if len(self.train) == 0:
            raise UserError("load_data: train: no samples to train on")
        if wrong := profile_faults(self.profile):
            raise UserError(*(f"load_data: profile.{line}" for line in wrong))

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The digest of each share of the data; see :mod:`hanse.data.fingerprint`."""
        held = {share: getattr(self, share) for share in SHARES}
        return {share: [] if samples is None else [of_samples(samples)] for share, samples in held.items()}

    @staticmethod
    def of(data: FederatedData, client: int) -> ClientData:
        """Return one client's shares of a federation in memory, for trials on one machine.

        Raises:
            UserError: the client has nothing to train on, or its test samples are weighted.
        """

        def share(name: str) -> Samples | None:
            pool, [index] = data.pool([client], name)
            return pool.take(index) if len(index) else None

        train = share("train")
        if train is None:
            raise UserError(f"client {client} has no samples to train on")
        if data.test_weights is not None:
            raise UserError(
                "data.client_test_from = 'classes': a participant on a network has no weights for its test samples; "
                "allowed: 'own', 'server'"
            )
        return ClientData(
            train,
            share("test"),
            share("validation"),
            data.num_classes,
            data.names[client] if data.names else f"client {client}",
        )


@dataclass(frozen=True)
class Assignment:
    """What a node must know about a run: on a network, what its owner has agreed to, and its own number.

    Attributes:
        run: the run's name.
        client: the participant's number.
        num_clients: how many clients are registered.
        seed: the run's seed.
        model: the experiment's section about the model.
        train: the experiment's section about local training.
        half: whether models travel as 16-bit floats.
        unsent: the digest of the frozen parameters that are not sent (:attr:`hanse.learning.job.Problem.unsent`).
        metrics: what tests report besides loss and accuracy.
        private: the experiment's ``federation.private``, with its noise. None: there is none.

    Examples:
        >>> Assignment("mine", client=0, num_clients=4, seed=0, model={"name": "logistic"}, train={"lr": 0.1}).half
        False
    """

    run: Name
    client: Count
    num_clients: Annotated[int, Field(ge=1, le=CLIENTS)]  # a node keeps a number for each
    seed: Int64
    model: Mapping[str, Any]
    train: Mapping[str, Any]
    half: bool = False
    unsent: Name = ""
    metrics: Sequence[Any] = ()
    private: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class _Own(FederatedData):
    """A federation's data, of which only one client's samples are here.

    Attributes:
        client: the number of that client.
        shares: its samples.
    """

    client: int
    shares: ClientData

    def pool(self, clients: Sequence[int], share: str = "train") -> tuple[Samples, list[Tensor]]:
        """Return the client's own share as the pool; empty if it has none."""
        self._check(clients, share)
        samples = getattr(self.shares, share)
        if samples is None:
            samples = self.shares.train.take(torch.zeros(0, dtype=torch.int64))
        return samples, [torch.arange(len(samples)) for _ in clients]

    def class_counts(self) -> NDArray[np.int64] | None:
        """Return None: the other clients' counts are not known here."""
        return None

    @staticmethod
    def of(shares: ClientData, client: int, num_clients: int) -> _Own:
        """Return the data of ``client`` among ``num_clients``; the others have size 0."""
        sizes = np.zeros(num_clients, np.int64)
        sizes[client] = len(shares.train)
        shape = tuple(shares.train.x.shape[1:])
        inputs = shares.train.inputs
        return _Own(sizes, shape, shares.num_classes, name="own", client=client, shares=shares, inputs=inputs)


def hello(data: ClientData, loop: Loop | None = None) -> dict[str, Any]:
    """Return what a participant says about itself before it has an id: plain values, and none of its samples.

    Args:
        data: the participant's data.
        loop: the participant's own training loop, reported as "plain", or as "penalty" if it takes pulls and tilts.
            None: it has none.
    """
    return {
        "name": data.name,
        "num_samples": len(data.train),
        "input_shape": list(data.train.x.shape[1:]),
        **({"inputs": [dataclasses.asdict(part) for part in data.train.inputs.parts]} if data.train.inputs else {}),
        "num_classes": data.num_classes,
        "text": is_text(data.train),
        "tests": 0 if data.test is None else len(data.test),
        "profile": dict(data.profile),
        "loop": None if loop is None else "penalty" if loop.takes_penalty else "plain",
    }


class NodeGuard(Protocol):
    """What a wing puts around a node: ``Wing(names={"node_guards": {name: path}})``.

    It is made for each message: ``make(job, folder, samples, trusted, private)``, the last two as for :class:`Node`.

    Attributes:
        heeds: what it sees to, of what a node must not pass over: settings, and files in the participant's folder.
    """

    heeds: ClassVar[frozenset[str]]

    def trains(self, problem: Problem, recipe: Recipe, loop: Loop | None) -> Loop | None:
        """Return the participant's training loop; None: hanse's training is used. Raises UserError."""

    def around(self, inner: Federation, recipe: Recipe, sizes: NDArray[np.int64], secret: bytes) -> Federation:
        """Return the participant's federation of one, wrapped; ``sizes [N]`` has its own number of samples."""

    def answers(self, node: Node, round: int, request: Request) -> Reply | None:
        """Return the answer to a request that its federation is not to see; None for others. Raises WireError."""

    @staticmethod
    def checked(private: Mapping[str, Any]) -> Any:
        """Return the participant's own privacy settings as a node takes them. Raises UserError."""


NODE_GUARDS: Mapping[str, Any] = Names({}, "node_guards")


def own_terms(private: Mapping[str, Any]) -> Any:
    """Return a participant's own privacy settings, as :class:`Node` takes them. Raises UserError."""
    for guard in NODE_GUARDS.values():
        if PRIVATE in guard.heeds:
            return guard.checked(private)
    raise UserError(f"client_app: private: needs a wing{absent()}")


class Node:
    """Answers requests for one participant in one run.

    Args:
        data: the participant's data.
        job: what the server says about the run.
        folder: the participant's folder, with a subfolder for each run.
        policy: the participant's own decisions. None: :class:`hanse.federation.policy.Loyal` decides.
        behaviours: what changes requests and replies, for experiments.
        loop: the participant's own training loop. None: the experiment's, if any.
        own: the objects (models, losses, metrics, loops) that import paths in ``job`` may name, by path. No other path
            is followed.
        trusted: the members with whose updates the participant's own may be summed. The participant's updates are then
            sent only in such sums, and it answers no questions about models on its samples; its answer to a test is
            empty, as if it had no test samples. None: those that ``members.txt`` in the folder names, if it is there.
        private: the participant's own privacy settings, which override those of ``job``. None: the settings of ``job``.

    Raises:
        WireError: the run's name cannot be a folder, or frozen parameters differ from the server's.
        UserError: ``job`` names something that cannot be made here.

    Examples:
        >>> import torch
        >>> from hanse.core.port import Ask
        >>> from hanse.federation.codec import pack, unpack
        >>> mine = ClientData(Samples(torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])), num_classes=2)
        >>> node = Node(mine, Assignment("mine", 0, 4, 0, {"name": "logistic"}, {"lr": 0.1}), Path("home"))
        >>> reply = node.answer(0, pack(Request(0, (Ask("stay", {}),))))
        >>> unpack(reply).client
        0
    """

    def __init__(
        self,
        data: ClientData,
        job: Assignment,
        folder: Path,
        policy: Any = None,
        behaviours: Sequence[Behaviour] = (),
        loop: Loop | None = None,
        own: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
        trusted: Any = None,
        private: Any = None,
    ) -> None:
        self.guards: list[NodeGuard] = [
            make(job, folder, len(data.train), trusted, private) for make in NODE_GUARDS.values()
        ]
        asked = {name for name in (ACCOUNT, MEMBERS) if (folder / name).exists()}
        asked |= {PRIVATE} if any(given is not None for given in (trusted, private, job.private)) else set()
        if unheeded := sorted(asked.difference(*(guard.heeds for guard in self.guards))):
            raise UserError(f"{', '.join(unheeded)}: needs a wing{absent()}")
        self.job, self.folder = job, private_folder(folder / _safe(job.run)) / f"client-{job.client}"
        private_folder(self.folder)
        mine = _Own.of(data, job.client, job.num_clients)
        from hanse.learning.loop import Loop, LoopEngine  # late: this module is also read by what trains nothing

        train = dict(job.train)
        with from_message(own):
            problem = _problem(job, train.pop("loss", None), mine, is_text(data.train))
            if (named := train.pop("loop", None)) is not None and loop is None:
                loop = Loop.of(named, "train.loop")
        recipe: Recipe = call(Recipe, train, "train")
        for guard in self.guards:
            loop = guard.trains(problem, recipe, loop)
        plain = SequentialEngine(problem, threads=1)
        engine: Engine = plain if loop is None else LoopEngine(plain, loop)
        self.problem, self.data = problem, data
        profiles = [data.profile if i == job.client else {} for i in range(job.num_clients)]
        secret = own_secret(folder)
        self.federation: Federation = LocalFederation(
            mine, problem, engine, recipe, job.seed, behaviours=behaviours, profiles=profiles,
            policy=Loyal() if policy is None else policy, secret=secret,
            run=job.run, folder=self.folder,
        )  # fmt: skip
        self.home, self.recipe = folder, recipe
        for guard in self.guards:
            self.federation = guard.around(self.federation, recipe, mine.sizes, secret)

    def answer(self, round: int, message: Message, permit: Callable[[Request], None] = lambda request: None) -> Message:
        """Answer one packed request with a packed reply.

        Args:
            round: the round.
            message: the request.
            permit: is called with the request before anything is done for it, and raises WireError to refuse it.

        Raises:
            MissingError: the message names arrays that are neither in it nor kept here. The server then sends them
                again.
            WireError: the message is not a request for this client.
        """
        held = self._held()
        request = unpack(message, held)
        if not isinstance(request, Request) or request.client != self.job.client:
            raise WireError(f"not a request for client {self.job.client}")
        permit(request)
        if message.arrays:
            self._keep(held | dict(message.arrays))
        # data may grow from round to round; the change is noted and the round goes on
        changed = note_own_data(self.folder, round, self.data.fingerprint)
        if changed is not None:
            logging.getLogger(__name__).warning("%s", changed)
        for guard in self.guards:
            if (instead := guard.answers(self, round, request)) is not None:
                return pack(instead)
        self._move_rows(round, request)
        request = dataclasses.replace(request, tasks=tuple(self._with_own_row(t) for t in request.tasks))
        replies = self.federation.exchange(Call(round, [request]))
        if not replies:
            # on a network silence is said, since the server would wait for the message
            return pack(Reply(self.job.client, refused="silent"))
        reply = replies[0]
        results = tuple(self._without_own(round, request, result) for result in reply.results)
        self._keep_best(round, request, reply)
        # what the message weighed, and when it came, is for the server to say
        answer = dataclasses.replace(reply, results=results, bytes_down=0, bytes_up=0, arrival=None)
        return pack(answer, half=self.job.half)

    def keep_receipts(self, lines: str, operator: bytes, agreements: Collection[str] | None = ()) -> None:
        """Keep receipts whose proofs are valid.

        Args:
            lines: the receipts as JSON, one on each line.
            operator: the operator's key (32 bytes), which must have signed the receipts' heads.
            agreements: the hashes of the agreements that were signed; a receipt that names another is refused. A run
                may have several, as its operator may renew one: receipts that wait then name the one before. None:
                whatever they name, as once the owner has signed that it leaves.

        Raises:
            WireError: the lines are not receipts, belong to another client, lack a valid proof or signature, or
                contradict kept receipts. The participant sees this in its log, the server in the refusal.
        """
        try:
            told = [Receipt.read(line.encode()) for line in lines.splitlines()]
        except ValueError as wrong:
            raise WireError(f"not receipts: {wrong}") from None
        client = self.job.client
        if any(receipt.client != client for receipt in told):
            raise WireError("a receipt of another client")
        folder = private_folder(self.folder / "receipts")
        file = folder / f"client-{client}.jsonl"
        # a run by another name may not tell another story of the same book
        books, home = {receipt.book for receipt in told}, self.folder.parent.parent
        others = [path for path in sorted(home.glob("*/client-*/receipts/*.jsonl")) if path != file]
        same = [path for path in others if (kept := newest(path)) is not None and kept.book in books]
        said = [f"that of round {r.round} {r.wrong(r.book, operator)}" for r in told if r.wrong(r.book, operator)]
        if agreements is not None:
            other = [r.round for r in told if r.said.get("agreement", "") not in {"", *agreements}]
            said += [f"that of round {round} names an agreement that was not signed" for round in other]
        against = (contradiction(path, told) for path in (file, *same))
        if why := next(filter(None, (*said, *against)), ""):
            logging.getLogger(__name__).error("the operator's books contradict themselves: %s; it was not kept", why)
            raise WireError(f"not kept: {why}")
        mine = witness.Witness(home)
        try:
            for receipt in told:
                mine.compare(receipt.note)
        except witness.SplitViewError as wrong:
            logging.getLogger(__name__).error("ALARM: %s", wrong)
            raise WireError(f"ALARM: {wrong}") from None
        if told:
            file.touch(0o600)
            file.chmod(0o600)  # also one that is there already
            write_receipts(folder, told)

    def _keep_best(self, round: int, request: Request, reply: Reply) -> None:
        """Keep the best of the client's own models so far (iPFL Alg. 1: a client that quits keeps it)."""
        for task, result in zip(request.tasks, reply.results, strict=False):
            if not (
                isinstance(task, Score) and task.name == BEST and isinstance(result, Scored) and len(task.models) == 1
            ):
                continue
            value = float(result.accuracy[0]) if not torch.isnan(result.accuracy[0]) else -float(result.loss[0])
            path = self.folder / "best.npz"
            best = kept_arrays(path)
            if best and int(best["round"]) != round and float(best["value"]) >= value:
                continue
            private_arrays(path, {"row": task.models[0].numpy(), "value": np.array(value), "round": np.array(round)})

    # ---- what it keeps

    def _held(self) -> dict[str, NDArray[Any]]:
        """Return the models that are kept, by content hash."""
        return kept_arrays(self.folder / "models.npz")

    def _keep(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Keep the last of these arrays, and forget the others."""
        private_arrays(self.folder / "models.npz", dict(list(arrays.items())[-KEPT:]))

    def _private_path(self, row: int) -> Path:
        """Return the file of a private row."""
        return self.folder / f"row-{row}.npz"

    def _move_rows(self, round: int, request: Request) -> None:
        """Move the private rows according to whether their updates were accepted."""
        told = None if request.accepted is None else dict(request.accepted)
        for path in self.folder.glob("row-*.npz"):
            number = path.stem.removeprefix("row-")
            if not number.isdecimal():
                continue  # a file that was being written when its process ended
            own = PrivateRow.read(path)
            after = own.told(round, None if told is None else told.get(int(number), NEVER))
            if after is not own:
                after.write(path)

    def _with_own_row(self, task: Task) -> Task:
        """Return a task on a private row with this node's row; the server knows only the initial one."""
        row = task.row if isinstance(task, Test) or (isinstance(task, Train) and task.private) else None
        if row is None or not self._private_path(row).exists():
            return task
        own = PrivateRow.read(self._private_path(row)).row
        if isinstance(task, Train):
            return dataclasses.replace(task, start=own)
        assert isinstance(task, Test)
        return dataclasses.replace(task, model=own, beside=None if task.beside is None else own)

    def _without_own(self, round: int, request: Request, result: Result) -> Result:
        """Return the part of a result that the server may see, and keep the client's own.

        The client keeps the update of a private row and its personal model.
        """
        if isinstance(result, Tested):
            self._keep_personal(round, request, result)
            return dataclasses.replace(result, weights=None)
        private = {t.seat: t for t in request.tasks if isinstance(t, Train) and t.private}
        if not isinstance(result, Trained) or result.seat not in private:
            return result
        task = private[result.seat]
        path = self._private_path(task.row)
        own = PrivateRow.read(path) if path.exists() else PrivateRow.first(task.start)
        own.trained(result.row, round).write(path)
        return dataclasses.replace(result, row=torch.zeros(0))

    def _keep_personal(self, round: int, request: Request, result: Tested) -> None:
        """Keep the personal model that was mixed for a test, with its weights."""
        [task] = request.tasks
        if not isinstance(task, Test) or task.mixture is None or result.weights is None:
            return
        weights = result.weights.numpy()
        row = mixed(weights[None], task.mixture)[0] if weights.any() else task.model
        kept = {"row": row.numpy(), "weights": weights, "round": np.array(round)}
        private_arrays(self.folder / "personal.npz", kept)


def _problem(job: Assignment, loss: Any, data: FederatedData, text: bool) -> Problem:
    """Return what a client trains and tests: the model, loss and metrics of its assignment."""
    model, classes = dict(job.model), data.num_classes
    objective = build_objective(loss, classes, text=text)
    problem, _ = build_problem(model.pop("name"), data.sample_shape, classes, job.seed, objective=objective, **model)
    if problem.unsent != job.unsent:
        raise WireError("model.send: 'trainable': the frozen parameters here are not those that the server has")
    metrics = build_metrics(job.metrics, classes, text=text or problem.judge is not None)
    return dataclasses.replace(problem, metrics=metrics)


def _safe(name: str) -> str:
    """Return a run's name as that of a folder.

    Raises:
        WireError: it is empty, begins with a dot, has characters other than letters, digits, "-", "_" and ".", or is
            the name of one of the participant's own files.
    """
    plain = name and all(c.isalnum() or c in "-_." for c in name) and not name.startswith(".")
    # some file systems take capitals for small letters
    own = (SECRET, ASKED, OPERATORS, AGREEMENTS, APPS, ACCOUNT, ACCOUNT_LOCK, MEMBERS, *WITNESS)
    if not plain or name.lower() in own:
        raise WireError(f"run {name!r}: not a name for a folder")
    return name


def own_secret(folder: Path) -> bytes:
    """Return the secret (32 bytes) in ``folder``. If there is none, it is created, readable only by this user.

    Raises:
        UserError: others can read the file, or it does not hold a secret.
    """
    path = folder / SECRET
    if not path.exists():  # of two processes that make it at once, one wins
        write_whole(path, secrets.token_hex(SECRET_BYTES) + "\n", durable=True, private=True, replace=False)
    if path.stat().st_mode & 0o077:
        raise UserError(f"{path}: others may read it: chmod 600, or delete it for a new one")
    try:
        found = bytes.fromhex(path.read_text().strip())
    except ValueError:
        found = b""
    if len(found) != SECRET_BYTES:
        raise UserError(f"{path}: must be {2 * SECRET_BYTES} hexadecimal digits; delete it for a new one")
    return found
