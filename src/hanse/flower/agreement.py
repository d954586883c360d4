"""The agreement: what a participant's owner has agreed to before its node takes part, and what goes beyond it.

The operator writes an :class:`Agreement` for each run and signs it. The owner of a node reads it and hands it to the
node (``hanse network join --agree FILE``), which signs it, too (:func:`take`). From then on the node compares every
request with it: :meth:`Agreement.allows` says why a request goes beyond what was agreed, given the
:class:`QuestionTally` of what was asked before. These are values.

What a participant's folder keeps of them stands at the end. ``agreements`` in the folder has a file for each agreement,
with the operator's signature and the participant's own, and a file for each run, in which a :class:`Binding` counts
what was asked. A request that goes beyond the agreement is refused (:class:`BeyondError`).

The file is a signed note (:mod:`hanse.ledger.note`): the agreement as JSON in one canonical form, a blank line, and the
signatures. The SHA-256 of the JSON is the agreement's name; it stands in every request, statement and receipt.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import json
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import AfterValidator, Field

from hanse.base.errors import UserError, gated
from hanse.base.files import AGREEMENTS, private_folder, read_text, write_whole
from hanse.base.imports import import_path, import_paths
from hanse.base.lock import flock
from hanse.base.plain_text import quantity
from hanse.core.declared import Count, Declared, Digest, Figure, Int64, Name, UnsoundError
from hanse.core.part import Context, Most, Part, TrainPart
from hanse.core.port import Ask, Mask, OnModels, Task, Test, Train
from hanse.data.spec import SchemaTables
from hanse.federation.codec import WireError
from hanse.federation.node import Assignment
from hanse.flower.members import Word
from hanse.ledger.log import LogHead
from hanse.ledger.note import DASH, cosign, cosigned_at, fingerprint, is_signed, load_key, public_of, sign
from hanse.ledger.witness import KEY, Witness, name_of
from hanse.mechanisms.feedback import Feedback
from hanse.runs.config import Experiment
from hanse.runs.guards import completed, guards_of
from hanse.runs.recomputable import code_hash
from hanse.runs.refusals import changed

SIGNER = "hanse/agreement"  # the name under which the operator signs
DAYS = 365  # that an agreement holds, unless the operator says otherwise
LONGEST = 1 << 20  # characters of an agreement
MASKING = Most(4, 1)  # steps of masking in a round
# sections of an experiment that concern the operator's machine, or samples that a network does not use
_LEFT_OUT = ("engine", "ledger", "behaviour")
_MAY_IMPORT = ("model", "mechanism", "train", "clients", "eval")

Counted = Mapping[Name, tuple[Count, Count]]  # by kind of question: how many, about how many models


class BeyondError(WireError):
    """A request goes beyond what was agreed. It is kept as the operator has signed it, so that anyone can verify it."""


@dataclass(frozen=True)
class QuestionLimit:
    """How much may be asked of one participant by questions of one kind.

    Attributes:
        a_round: how many questions in a round.
        models: about how many models, in a round.
        in_all: how many questions in the whole run, those of replayed rounds included.
    """

    a_round: Count
    models: Count
    in_all: Count


@dataclass(frozen=True)
class AskedOf:
    """What a request asks, as far as an agreement speaks of it.

    Attributes:
        round: the round that the request names.
        day: the day on which it is asked (UTC), as in "2026-11-28".
        client: the number of the participant that it is for.
        questions: the questions by kind (:func:`counted`).
        head: the head of the books that it shows. None: it shows none.
        letter: whether it only brings receipts and the head. It then belongs to no round.
        adds: what its training tasks add to the loss, or change of the recipe, and how strong it is (:func:`added`).
    """

    round: int
    day: str
    client: int
    questions: Counted = field(default_factory=dict)
    head: LogHead | None = None
    letter: bool = False
    adds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class QuestionTally:
    """What a participant was asked so far in a run.

    Attributes:
        client: the number that the participant has in the run. -1: it was not asked yet.
        newest: the round of the last request.
        highest: the highest round of a request, or that after the highest round which a head closes.
        replays: how often rounds were played again.
        book: the name of the run's book. "": no head of it was shown yet.
        round: the questions of the round ``newest``.
        in_all: the questions of all rounds.
    """

    client: Int64 = -1
    newest: Int64 = -1
    highest: Int64 = -1
    replays: Count = 0
    book: str = ""
    round: Counted = field(default_factory=dict)
    in_all: Counted = field(default_factory=dict)

    def after(self, asked: AskedOf, agreement: Agreement) -> QuestionTally:
        """Return the tally with a request added.

        A round is played again if its number is below that of the request before, or if its questions alone would
        exceed what was agreed for a round: the server was then restarted within it.
        """
        book = self.book or ("" if asked.head is None else asked.head.book)
        # the books are written behind a checkpoint
        highest = max(self.highest, -1 if asked.head is None else asked.head.round + 1)
        if asked.letter:
            return dataclasses.replace(self, book=book, client=asked.client, highest=highest)
        sums = _added(self.round, asked.questions) if asked.round == self.newest else asked.questions
        again = asked.round < self.newest or any(agreement.exceeds(kind, *sums[kind]) for kind in sums)
        return QuestionTally(
            asked.client,
            asked.round,
            max(highest, asked.round),
            self.replays + again,
            book,
            asked.questions if again else sums,
            _added(self.in_all, asked.questions),
        )


@dataclass(frozen=True)
class Agreement:
    """What an operator and the owner of a node agree to for one run.

    Attributes:
        experiment: the experiment, without the sections about the operator's machine.
        run: the run's name, that of its folder at the participants.
        network: what the operator calls the network.
        operator: the operator's public key, 64 hexadecimal digits.
        expires: the last day (UTC) on which a node answers, as in "2026-11-28".
        app: SHA-256 of the Flower app that the node may run, with the files of the operator's project. "": none, as in
            a simulation.
        releases: the accepted releases of hanse: the SHA-256 of their code, by version.
        imported: SHA-256 of the file of everything that the experiment names by import path.
        books: whether the run keeps books, whose heads must then be shown.
        rounds: the number of rounds.
        checkpoint: a server that is restarted begins at a multiple of this many rounds.
        lag: a request of round r shows a head that closes round r - 1 - lag or a later one.
        replays: how often rounds may be played again.
        questions: what may be asked, by kind of question and the samples that it is about. All others are refused.
        adds: what training tasks may add to the loss: "pull", "tilt", "payload", and "private" if a participant keeps
            rows of its own; with the greatest strength of a pull. None: any.

    Examples:
        >>> import hanse
        >>> experiment = hanse.Experiment(data={"clients": 4}, mechanism="power_of_choice", run={"rounds": 3})
        >>> agreed = Agreement.of(experiment, run="mine", network="town", operator=bytes(32), day="2026-11-28")
        >>> agreed.expires, agreed.questions["Test"].in_all - agreed.questions["Test"].a_round * agreed.replays
        ('2027-11-28', 6)
        >>> agreed.allows(AskedOf(0, "2026-11-28", 2, {"Train": (1, 1)}), QuestionTally())
        >>> agreed.allows(AskedOf(0, "2026-11-28", 2, {"Score on train": (1, 1)}), QuestionTally())
        >>> agreed.allows(AskedOf(0, "2026-11-28", 2, {"Score on 1 of train": (1, 1)}), QuestionTally())
        'asks for Score on 1 of train, which was not agreed'
    """

    experiment: Mapping[str, Any]
    run: Annotated[str, Field(pattern=r"^\w[\w-]{0,99}$")]
    network: Word
    operator: Digest
    expires: Annotated[str, AfterValidator(lambda day: date.fromisoformat(day).isoformat())]
    app: Digest | Literal[""]
    releases: Mapping[Word, Digest]
    imported: Mapping[Name, Digest]
    books: bool
    rounds: Count
    checkpoint: Annotated[int, Field(ge=1, le=10**9)]
    lag: Count
    replays: Count
    questions: Mapping[Word, QuestionLimit]
    adds: Mapping[Word, Figure | None]

    @staticmethod
    def of(experiment: Experiment, *, run: str, network: str, operator: bytes, day: str, app: str = "") -> Agreement:
        """Return the agreement for an experiment: what its parts say that they ask, and a few replays.

        Args:
            experiment: the experiment.
            run: the run's name.
            network: what the operator calls the network.
            operator: the operator's public key, 32 bytes.
            day: today (UTC), as in "2026-11-28".
            app: SHA-256 of the Flower app.

        Raises:
            UserError: a part asks questions and does not say how many, or something that is named by import path is not
                there.
        """
        said, settings = canonical(experiment), experiment.run
        replays = 3 + settings.rounds // 20
        return Agreement(
            said,
            run,
            network,
            operator.hex(),
            (date.fromisoformat(day) + timedelta(DAYS)).isoformat(),
            app,
            {version("hanse"): code_hash()},
            sources(said),
            "tokens" in changed(experiment) or settings.recomputable,
            settings.rounds,
            settings.checkpoint_every,
            # a checkpoint and the books are written while the next round is played
            settings.checkpoint_every + 1,
            replays,
            _limits(experiment, replays),
            _adds(experiment),
        )

    @cached_property
    def text(self) -> str:
        """The agreement in its canonical form, which is signed."""
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True) + "\n"

    @property
    def hash(self) -> str:
        """SHA-256 of the text, 64 hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def fits(self, other: Agreement) -> bool:
        """Return whether this and another agreement are about the same run, with other numbers or another end."""
        same = ("experiment", "run", "network", "operator", "app", "imported", "books", "rounds", "checkpoint", "adds")
        alike = all(getattr(self, name) == getattr(other, name) for name in same)
        return alike and set(other.releases.values()) <= set(self.releases.values())

    def note(self, key: Ed25519PrivateKey) -> str:
        """Return the agreement as a note signed by the operator."""
        return f"{self.text}\n{sign(self.text, SIGNER, key)}"

    @staticmethod
    def read(note: str, *, edited: bool = False) -> tuple[Agreement, list[str]]:
        """Return the agreement in a note, and the lines of its signatures, which are not checked.

        Args:
            note: the note.
            edited: whether its JSON may be written in another way, as after an edit.

        Raises:
            ValueError: the note is none, or not in the canonical form (other programs may then read something else).
        """
        text, _, rest = note.partition("\n\n")
        lines = rest.splitlines(keepends=True)
        if len(note) > LONGEST:
            raise ValueError(f"has {quantity(len(note), 'character')}: an agreement has at most {LONGEST}")
        found = _AGREEMENT.read(text)
        if not edited and (found.text != text + "\n" or not all(line.startswith(DASH) for line in lines)):
            raise UnsoundError("is not written as an agreement is; 'hanse network up' writes it anew")
        return found, lines

    def signed(self, lines: Sequence[str]) -> bool:
        """Return whether one of these lines is the signature of the agreement's operator."""
        return any(is_signed(self.text, line, SIGNER, bytes.fromhex(self.operator)) for line in lines)

    def lacks(self, signature: str, witness: str) -> str | None:
        """Return why a participant's owner has not agreed, or None.

        Args:
            signature: the cosignature of the participant's witness under the agreement. "": there is none.
            witness: the public key of that witness, 64 hexadecimal digits.
        """
        if not signature:
            return f"its owner has not agreed to {self.hash[:16]} ('hanse network join --agree FILE')"
        key = bytes.fromhex(witness)
        if cosigned_at(self.text, signature, name_of(key), key) is None:
            return f"it has signed another agreement than {self.hash[:16]}, or with another key"
        return None

    def job(self, client: int, unsent: str = "") -> Assignment:
        """Return what a participant's node must know of the run.

        Args:
            client: the participant's number.
            unsent: the digest of the frozen parameters that are not sent.
        """
        said, send = self.experiment, self.experiment["model"].get("send", "all")
        unsaid = ("send",) * (send == "all") + ("object", "fingerprint") * (said["model"]["name"] == "object")
        return Assignment(
            self.run,
            client,
            said["data"]["clients"],
            said["run"]["seed"],
            {name: value for name, value in said["model"].items() if name not in unsaid},
            said["train"],
            half=said["federation"]["half_precision"],
            unsent=unsent,
            metrics=said["eval"]["metrics"] or [],
            private=said["federation"]["private"],
        )

    def exceeds(self, kind: str, questions: int, models: int) -> bool:
        """Return whether so much of a kind is more than was agreed for a round."""
        limit = self.questions.get(kind, QuestionLimit(0, 0, 0))
        return questions > limit.a_round or models > limit.models

    def allows(self, asked: AskedOf, tally: QuestionTally) -> str | None:
        """Return why a request goes beyond what was agreed, or None if it does not.

        Args:
            asked: the request.
            tally: what was asked before.
        """
        if asked.day > self.expires:
            return f"the agreement ended on {self.expires}"
        clients = self.experiment["data"]["clients"]
        if not 0 <= asked.client < clients or tally.client not in (-1, asked.client):
            mine = f", and this participant is client {tally.client}" * (tally.client >= 0)
            return f"is for client {asked.client} of {clients}{mine}"
        if (why := self._of_the_head(asked, tally)) is not None or asked.letter:
            return why
        if not 0 <= asked.round <= self.rounds:
            return f"is of round {asked.round}; {quantity(self.rounds, 'round was', 'rounds were')} agreed"
        most = {name: math.inf if strength is None else strength for name, strength in self.adds.items()}
        if beyond := sorted(name for name, strength in asked.adds.items() if strength > most.get(name, -1.0)):
            return f"trains with {' and '.join(beyond)}, which was not agreed, or not so strong"
        after = tally.after(asked, self)
        # tests bear the number of the next round, and a checkpoint is written while the next round is played
        if asked.round < (least := max(0, (after.highest - 2) // self.checkpoint * self.checkpoint)):
            return f"falls to round {asked.round}, behind the checkpoint of round {least}"
        if after.replays > self.replays:
            return f"plays a round again, and {self.replays} replays were agreed"
        for kind, (questions, models) in after.round.items():
            if kind not in self.questions:
                return f"asks for {kind}, which was not agreed"
            if self.exceeds(kind, questions, models):
                limit = self.questions[kind]
                agreed = f"{limit.a_round} about {limit.models} were agreed"
                times, what = quantity(questions, "time"), quantity(models, "model")
                return f"asks for {kind} {times} in a round, about {what}; {agreed}"
            if after.in_all[kind][0] > self.questions[kind].in_all:
                times = quantity(after.in_all[kind][0], "time")
                return f"asks for {kind} {times} in all; agreed: {self.questions[kind].in_all}"
        return None

    def _of_the_head(self, asked: AskedOf, tally: QuestionTally) -> str | None:
        """Return what is wrong with the head of the books that a request shows, or with its absence."""
        due, head = asked.round - 1 - self.lag, asked.head
        if head is None:
            needed = bool(tally.book) or (self.books and not asked.letter and due >= 0)
            return "shows no head of the books" if needed else None
        if tally.book and head.book != tally.book:
            return f"shows a head of the book '{head.book}', and the run's is '{tally.book}'"
        if not asked.letter and head.round < due:
            return f"of round {asked.round} shows a head that closes round {head.round}: at least {due} was agreed"
        return None


_AGREEMENT, _TALLY = Declared[Agreement](Agreement), Declared[QuestionTally](QuestionTally)
_ASSIGNMENT = Declared[Assignment](Assignment)


def _on(kind: str, share: str, samples: int | None = None) -> str:
    """Return the name of a kind of question for which models are tried on a participant's samples."""
    return f"{kind} on {share}" if samples is None else f"{kind} on {samples} of {share}"


def counted(tasks: Sequence[Task]) -> Counted:
    """Return the questions in a request by kind and samples: how many, and about how many models together.

    From an answer about few samples more can be learnt of each.

    Examples:
        >>> import torch
        >>> counted([Train(0, 0, torch.zeros(3)), Ask("bid", {}, torch.zeros(2, 3), limit=100)])
        {'Train': (1, 1), 'Ask on 100 of train': (1, 2)}
    """
    found: dict[str, tuple[int, int]] = {}
    for task in tasks:
        kind = type(task).__name__
        models = int(isinstance(task, Train) or (isinstance(task, Mask) and task.train is not None))
        if isinstance(task, OnModels | Ask) and task.models is not None:
            kind, models = _on(kind, task.share, task.limit), len(task.models)
        elif isinstance(task, Test):
            models = 1 + (task.beside is not None)
            if task.mixture is not None:
                found = _added(found, {_on("Mixture", task.mixture.share): (1, len(task.mixture.models))})
        found = _added(found, {kind: (1, models)})
    return found


def added(tasks: Sequence[Task]) -> dict[str, float]:
    """Return what a request's training tasks add to the loss ("pull", "tilt", "payload"), "private" if a row is the
    participant's own, and "work" if they change how long the recipe trains, which no server does; each with the
    strength of its pull, or 0.
    """
    trained = [job for task in tasks if isinstance(job := task.train if isinstance(task, Mask) else task, Train)]
    found = {name: 0.0 for job in trained for name in ("tilt", "payload", "work") if getattr(job, name) is not None}
    pulls = [abs(job.mu) for job in trained if job.mu != 0]
    own = {"private": 0.0} if any(job.private for job in trained) else {}
    return found | own | ({"pull": max(pulls)} if pulls else {})


def _adds(experiment: Experiment) -> dict[str, float | None]:
    """Return what a train part may add to the loss, as the class says that makes its seats or its payload."""
    train = experiment.mechanism.built.train
    makes = next(kind for kind in type(train).__mro__ if {"seats", "sends"} & set(vars(kind)))
    adds: Mapping[str, str] = dict(vars(makes).get("adds", TrainPart.adds))
    blocks = train.blocks(Context.tiny(experiment.data.clients, experiment.run.rounds))
    found = {name: float(getattr(train, option)) if option else None for name, option in adds.items()}
    return found | ({"private": None} if any(block.private for block in blocks) else {})


def _added(one: Counted, other: Counted) -> dict[str, tuple[int, int]]:
    """Return the sum of two counts."""
    both = {kind: (one.get(kind, (0, 0)), other.get(kind, (0, 0))) for kind in {**one, **other}}
    return {kind: (a + c, b + d) for kind, ((a, b), (c, d)) in both.items()}


def canonical(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment as an agreement has it: every setting that concerns participants, as plain JSON values."""
    said = json.loads(json.dumps(completed(experiment).sections()))
    kept = {name: section for name, section in said.items() if name not in _LEFT_OUT}
    unused = ("engine", "replay")
    kept["federation"] = {name: value for name, value in said["federation"].items() if name not in unused}
    source = experiment.data.source
    schema = {"schema": source.agreed} if isinstance(source, SchemaTables) else {}
    return {**kept, "data": {"clients": experiment.data.clients, **schema}}


def sources(said: Mapping[str, Any]) -> dict[str, str]:
    """Return SHA-256 of the files of everything that an experiment names by import path, by path.

    Args:
        said: the experiment, as :func:`canonical` returns it.

    Raises:
        UserError: something is not there.
    """
    paths = sorted({path for name in _MAY_IMPORT for path in import_paths(said[name])})
    return {path: digest_of(path, import_path(path, "agreement", ())) for path in paths}


def digest_of(path: str, thing: Any) -> str:
    """Return SHA-256 of the file that an import path names, with that of the object's class or function behind it if
    this is another one; of nothing if there is no such file.

    Args:
        path: the import path, ``"package.module:name"``.
        thing: the object there.
    """
    names = dict.fromkeys([path.partition(":")[0], getattr(thing, "__module__", None) or "builtins"])
    modules = [importlib.import_module(name) for name in names]
    files = [inspect.getsourcefile(one) for one in modules if getattr(one, "__file__", None)]
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files if file)).hexdigest()


def _limits(experiment: Experiment, replays: int) -> dict[str, QuestionLimit]:
    """Return how much an experiment asks of one participant, by kind of question."""
    mechanism, clients, settings = experiment.mechanism.built, experiment.data.clients, experiment.run
    train = mechanism.train
    blocks = train.blocks(Context.tiny(clients, settings.rounds))
    rows, seats = sum(int(block.count) for block in blocks if not block.per_client), train.seats_each()
    most: dict[str, Most] = {"Train": Most(seats, seats)} if experiment.federation.secure is None else {"Mask": MASKING}
    guards, asked = guards_of(experiment).values(), list[tuple[str, Most]]()
    for key, part in mechanism.parts().items():
        said = part.questions(clients, rows)
        if not said and type(part).asks is not Part.asks and not getattr(part, "of", None):
            raise UserError(
                f"mechanism.{key}: {type(part).__name__} asks participants questions: its method 'questions' must say "
                "how many, since they agree to that (docs/reference/calls.md)"
            )
        times = seats if {"weigh", "value"} & set(mechanism.standing(part)) else 1
        asked += [(kind, Most(times * n.questions, times * n.models, n.share, n.samples)) for kind, n in said.items()]
    asked += Feedback().questions(clients, rows).items() if experiment.clients.told else ()
    for kind, one in [*asked, *(more for guard in guards for more in guard.questions())]:
        kind = _on(kind, one.share, one.samples) if one.models else kind
        before = most.get(kind, Most(0, 0))
        most[kind] = Most(before.questions + one.questions, before.models + one.models)
    # each replay begins at a checkpoint, and plays once more what the rounds since then had asked
    again = replays * (settings.checkpoint_every + 2)
    limits = {
        kind: QuestionLimit(*one[:2], one.questions * (settings.rounds + 1 + again)) for kind, one in most.items()
    }
    if experiment.eval.clients != 0:
        every = experiment.eval.every
        tests = -(-settings.rounds // every) + replays * (1 + settings.checkpoint_every // every)
        limits["Test"] = QuestionLimit(1, 2, tests)
    listed = [guard.answers for guard in guards if guard.answers is not None]
    asks = {kind: kind.split()[0].replace("Mixture", "Test") for kind in limits}  # a mixture is a part of a test
    return {kind: limit for kind, limit in limits.items() if all(asks[kind] in kinds for kinds in listed)}


def introduced(agreement: Agreement) -> str:
    """Return lines that say, to the owner of a node, what an agreement allows."""
    asked = "; ".join(
        f"{kind}: {limit.a_round} a round about {quantity(limit.models, 'model')}, {limit.in_all} in all"
        for kind, limit in sorted(agreement.questions.items())
    )
    return (
        f"agreement {agreement.hash}\n"
        f"network {agreement.network}, run {agreement.run}, until {agreement.expires}, "
        f"operator {fingerprint(bytes.fromhex(agreement.operator))}, app {agreement.app}\n"
        f"{quantity(agreement.rounds, 'round')}, {quantity(agreement.replays, 'replay')}; {asked}\n"
        f"schema of the table (SHA-256): {agreement.experiment['data'].get('schema', 'none')}"
    )


# ---- what a participant's folder keeps


def take(home: Path, note: str, operator: bytes, now: float) -> Agreement:
    """Sign an agreement as a participant and keep it. Only its owner may call this, never a message.

    Args:
        home: the participant's folder.
        note: the agreement as the operator gave it.
        operator: the operator's key that is pinned, 32 bytes.
        now: seconds since 1970.

    Raises:
        UserError: it is not an agreement, or about no experiment; another operator has signed it, it has ended, or this
            release of hanse is not among those accepted.
    """
    try:
        found, lines = Agreement.read(note)
    except ValueError as wrong:
        raise UserError(f"--agree: is not an agreement: {wrong}") from None
    if found.operator != operator.hex() or not found.signed(lines):
        raise UserError(f"--agree: is not signed by the operator's key that is pinned here, {fingerprint(operator)}")
    if day_of(now) > found.expires:
        raise UserError(f"--agree: the agreement ended on {found.expires}; ask the operator for another")
    if code_hash() not in found.releases.values():
        accepted = ", ".join(f"{name} ({digest[:16]})" for name, digest in found.releases.items())
        raise UserError(f"--agree: this hanse has the code {code_hash()[:16]}; install an accepted one: {accepted}")
    with gated("--agree: is about no experiment that a node can take part in"):
        _ASSIGNMENT.check(found.job(0))
    mine = Witness(home)
    folder = private_folder(home / AGREEMENTS)
    line = cosign(found.text, mine.name, load_key(home / KEY), int(now))
    write_whole(folder / f"{found.hash}.txt", f"{found.text}\n{''.join(lines)}{line}", durable=True, private=True)
    return found


def agree(
    experiment: Experiment, key: Ed25519PrivateKey, run: str, network: str, homes: Iterable[Path], app: str = ""
) -> Agreement:
    """Write an agreement and let the nodes of these folders sign it, which are the operator's own.

    Args:
        experiment: the experiment.
        key: the operator's key.
        run: the run's name.
        network: what the operator calls the network.
        homes: the nodes' folders.
        app: SHA-256 of the Flower app that the nodes may run. "": none.
    """
    public, now = public_of(key), time.time()
    made = Agreement.of(experiment, run=run, network=network, operator=public, day=day_of(now), app=app)
    for home in homes:
        take(home, made.note(key), public, now)
    return made


@dataclass(frozen=True)
class Binding:
    """An agreement that a participant has signed, and what its operator has asked under it.

    Get one with :meth:`find`.

    Attributes:
        home: the participant's folder.
        agreement: the agreement.
        cosignature: the line with the participant's signature.
    """

    home: Path
    agreement: Agreement
    cosignature: str

    @staticmethod
    def find(home: Path, name: object, operator: bytes) -> Binding | None:
        """Return the agreement of this name (its hash) that the participant has signed with this operator, or None.

        Raises:
            WireError: the file is damaged.
        """
        text = str(name)
        path = home / AGREEMENTS / f"{text}.txt"
        if len(text) != 64 or not text.isalnum() or not path.exists():
            return None
        try:
            found, lines = Agreement.read(read_text(path))
        except (ValueError, UserError) as wrong:
            raise WireError(f"{path}: is damaged ({wrong}); hand the agreement over again") from None
        if found.hash != text or found.operator != operator.hex():
            return None
        return Binding(home, found, lines[-1])

    def check(self, asked: AskedOf) -> None:
        """Raise BeyondError if a request goes beyond the agreement. Nothing is counted."""
        if (why := self.agreement.allows(asked, self._tally())) is not None:
            raise BeyondError(f"beyond the agreement {self.agreement.hash[:16]}: {why}")

    def count(self, asked: AskedOf, tasks: Sequence[Task] = ()) -> None:
        """Compare a request and its questions with the agreement, and write down what it asks.

        Raises:
            BeyondError: it goes beyond the agreement. Nothing is counted.
        """
        full = replace(asked, questions=counted(tasks), adds=added(tasks))
        path = self._path()
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+") as lock:
            flock(lock)
            self.check(full)
            lock.seek(0)  # in one write, and never empty: what is left of a longer one stands behind the first line
            lock.write(json.dumps(dataclasses.asdict(self._tally().after(full, self.agreement))) + "\n")

    def _path(self) -> Path:
        return self.home / AGREEMENTS / f"{self.agreement.run}.json"

    def _tally(self) -> QuestionTally:
        """Return what was asked so far. Raises WireError if the file is damaged: nothing is asked anew for that."""
        path = self._path()
        text = path.read_text().partition("\n")[0] if path.exists() else ""
        damaged = f"{path}: is damaged ({{}}): restore it from a copy"
        return _TALLY.read(text, WireError, damaged) if text else QuestionTally()


def agreements(home: Path) -> list[Agreement]:
    """Return the agreements in a participant's folder, the one signed last at the end, without those that this release
    cannot read.
    """
    found = list[Agreement]()
    for path in sorted((home / AGREEMENTS).glob("*.txt"), key=lambda path: path.stat().st_mtime_ns):
        with suppress(ValueError):
            found.append(Agreement.read(read_text(path))[0])
    return found


def day_of(now: float) -> str:
    """Return the day (UTC) of a time."""
    return time.strftime("%Y-%m-%d", time.gmtime(now))
