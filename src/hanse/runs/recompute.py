"""Replays a recorded run from its clients' answers, and names the first difference.

Only the operator evaluates updates, so it could report any value. A run with ``[run] recomputable`` commits to its
validation set and keeps the clients' answers (:mod:`hanse.runs.recomputable`). With both, anyone can replay every round
with the mechanism's own code. The selection, weights, values, payments and models must equal the records whose hashes
are in the book.

This shows that the records follow from the answers, not that the answers are right. Losses, gradients and bids that
clients report from their own data are taken as given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hanse.base.errors import UserError, first_line
from hanse.base.files import json_lines, read_arrays, read_json, read_toml, table
from hanse.base.pytorch import torch
from hanse.core.book import Book
from hanse.core.entry import CLOSE, LEAVE, NO_PAYMENTS, Transaction
from hanse.data.commitment import CommittedSet
from hanse.data.federated import RemoteData
from hanse.data.samples import Inputs
from hanse.learning.sequences import is_text
from hanse.learning.threads import intra_op
from hanse.ledger.receipts import AGREEMENT, CLOCK
from hanse.ledger.run_ledger import closed_in, open_ledger, reading, unbooked, verify_run
from hanse.runs.chance import is_number
from hanse.runs.checkpoint import LoopState
from hanse.runs.comparison import Comparison, UnlikeError
from hanse.runs.config import Experiment
from hanse.runs.played_run import last_state
from hanse.runs.recomputable import (
    Commitment,
    ReplayedAnswers,
    RoundAnswers,
    answers_file,
    audit_folder,
    code_hash,
    kinds_of,
    validation_file,
)
from hanse.runs.round import Exchange, finish, first_state, play_round
from hanse.runs.round_record import HASH, METRICS, SEATS, RoundRecord, lost_rounds, round_file
from hanse.runs.run_record import read_shape
from hanse.runs.rundir import environment
from hanse.runs.sections import config_hash
from hanse.runs.settle_inputs import NAME as INPUTS
from hanse.runs.settle_inputs import by_value
from hanse.runs.setup import Session, build
from hanse.runs.testing import Figures

FLOOR = 1e-4  # of the largest number of its kind in a round: what another processor may make otherwise
TEST_ARRAYS = "test"  # how the names of arrays of what tests find begin
OWN_METRICS = (*CLOCK, "test/", "client/test_", HASH, AGREEMENT)  # and those of metrics that are not made again
HASHES = ("made_hash", "table_hash", INPUTS, "ledger/head")  # what another processor cannot make


@dataclass
class Recomputed(Comparison):
    """The result of replaying a run.

    Attributes:
        rounds: how many rounds were replayed.
        values: how many values of updates agree with the record.
        transactions: how many transactions agree with the record.
        unlike: the first difference. None: everything agrees.
        taken: the kinds of answers that are taken as given, because they are about data that nobody else sees.
        notes: further notes for the auditor.
    """

    rounds: int = 0
    values: int = 0
    transactions: int = 0
    unlike: str | None = None
    taken: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def recompute(folder: Path, validation: Path | None = None, floor: float | None = None) -> Recomputed:
    """Replay a run, and compare everything with its record.

    Args:
        folder: the run directory.
        validation: the operator's file with the validation set and its salts. None: the file in the folder
            ``RUN.audit`` next to the run.
        floor: the allowed difference, as a share of the largest number of the same kind. None: 0 if processor and
            packages are those of the run, else :data:`FLOOR`.

    Raises:
        UserError: the run is not recomputable or is incomplete, or the file is malformed.
    """
    commitment, found = Commitment.read(folder), Recomputed()
    experiment = Experiment.read(folder / "config.toml")
    experiment, on_card = _here(experiment)
    found.floor = _floor(folder, on_card, found.notes) if floor is None else floor
    found.exact = found.floor == 0
    try:
        _before(folder, commitment, found.notes)
        held = _held(folder, commitment, validation)
        session = _session(folder, experiment, commitment, held)
        with closing(session.engine), intra_op(1):
            _Replay(folder, session, found).play()
    except UnlikeError as wrong:
        found.unlike = str(wrong)
    return found


def _here(experiment: Experiment) -> tuple[Experiment, bool]:
    """Return the experiment in a form that can be played here (without a graphics card if there is none), and whether
    it was played on one.
    """
    on_card = experiment.engine.device.startswith("cuda")
    if not on_card or torch.cuda.is_available():
        return experiment, on_card
    section = experiment.engine.model_copy(update={"device": "cpu", "graphs": None})
    return experiment.model_copy(update={"engine": section}), on_card


def _floor(folder: Path, on_card: bool, notes: list[str]) -> float:
    """Return by how much numbers may differ between this machine and the run's, with a note on why."""
    then, here = read_json(folder / "environment.json"), environment()
    then = then if isinstance(then, dict) else {}
    other = [name for name in ("processor", "instructions", *(["gpu"] * on_card)) if then.get(name) != here[name]]
    packages = table(then, "packages")
    other += [name for name in ("torch", "numpy", "scipy") if packages.get(name) != here["packages"][name]]
    if not other:
        return 0.0
    notes.append(f"{', '.join(other)} differ from those of the run: numbers may differ by {FLOOR:g} of the largest")
    return FLOOR


def _before(folder: Path, commitment: Commitment, notes: list[str]) -> None:
    """Compare the run's commitments from before its first round with the directory. Raises UnlikeError."""
    ledger = open_ledger(folder)
    if (wrong := verify_run(folder, ledger).wrong) is not None:
        raise UnlikeError(f"the books do not hold: {wrong}")
    first = next(ledger.history(), None)
    if first is None or first.transaction != commitment.transaction():
        raise UnlikeError("committed.json is not what the first line of the log stands for")
    if config_hash(read_toml(folder / "config.toml")) != commitment.config:
        raise UnlikeError("config.toml is not the one that was committed to")
    for number, why in lost_rounds(folder).items():
        raise UnlikeError(f"round {number}: {why}")
    if commitment.code != code_hash():
        now = environment()["packages"]["hanse"]
        here = "other code" if commitment.hanse == now else f"hanse {now}"
        notes.append(f"the run committed to hanse {commitment.hanse} with code {commitment.code[:16]}; here is {here}")


def _held(folder: Path, commitment: Commitment, validation: Path | None) -> CommittedSet | None:
    """Return the validation set, if there is one. Raises UnlikeError if it is not the one that was committed to."""
    samples = commitment.samples
    if not samples:
        return None
    validation = validation_file(folder) if validation is None else validation
    if not validation.exists():
        raise UserError(
            f"--validation {validation}: is not there; the run committed to {len(samples)} validation samples, which "
            f"the operator has in {audit_folder(folder).name} next to the run directory"
        )
    inputs, _ = read_shape(folder / "shape.json")
    held = CommittedSet.read(validation, inputs if isinstance(inputs, Inputs) else Inputs())
    if wrong := held.wrong(samples):
        raise UnlikeError(f"{validation}: {wrong}")
    if len(held.erased):
        raise UserError(
            f"{validation}: {len(held.erased)} of {len(samples)} samples were erased; the others are those that were "
            "committed to, but values cannot be made without all"
        )
    return held


def _session(folder: Path, experiment: Experiment, commitment: Commitment, held: CommittedSet | None) -> Session:
    """Return what rounds are played with: the server of a network, with this validation set and no clients."""
    shape, classes = read_shape(folder / "shape.json")
    inputs = shape if isinstance(shape, Inputs) else Inputs()
    samples = None if held is None else held.samples
    sizes = np.zeros(commitment.clients, np.int64)
    for client in ReplayedAnswers(_answers(folder, 0)).present(0):
        if not 0 <= client.id < len(sizes):
            raise UnlikeError(f"round 0: client {client.id} was present, and there can be {len(sizes)}")
        sizes[client.id] = client.num_samples
    width = (sum(int(np.prod(one)) for one in inputs.shapes.values()),) if inputs else shape
    assert isinstance(width, tuple)
    data = RemoteData(sizes, width, classes, samples, text=samples is not None and is_text(samples), inputs=inputs)
    own = experiment.model_copy(update={"behaviour": {}})
    return build(own, data)


def _answers(folder: Path, number: int) -> RoundAnswers:
    """Return the answers of a round, checked against the hashes in the round's record."""
    file = round_file(folder, number)
    record = read_arrays(file, ("kept_client", "kept_hash")) if file.exists() else {}
    try:
        return RoundAnswers.read(answers_file(folder, number), record)
    except UnlikeError as wrong:
        raise UnlikeError(f"round {number}: {wrong}") from None


class _Replay:
    """The rounds of a run, played again one after the other."""

    def __init__(self, folder: Path, session: Session, found: Recomputed) -> None:
        self.folder, self.session, self.found = folder, session, found
        self.deadline_s, self._hashes = session.experiment.federation.deadline_s, () if found.exact else HASHES

    def play(self) -> None:
        """Play all rounds of the run, and its last settlement. Raises UnlikeError at the first difference."""
        posted = self._posted()
        state = first_state(self.session)
        seats: dict[int, list[Mapping[str, Any]]] = {}
        for seat in json_lines(self.folder / SEATS, ("round",)):
            seats.setdefault(seat["round"], []).append(seat)
        for line in json_lines(self.folder / METRICS, ("round",)):
            number = int(line["round"])
            if number != state.round:
                raise UnlikeError(f"round {state.round}: has no line in {METRICS}")
            if number >= self._through:
                self.found.notes.append(f"rounds from {number} on are not in the book, and were not played again")
                return
            there = posted.pop(number, [])
            state = _opened(state, there)
            if "failed" in line:
                self._nothing_of(number, seats.get(number, []), there)
                self.found.notes.append(f"round {number} failed when it was played, and is passed over")
                state = replace(state, round=number + 1, book=_closed(state.book, number, there))
                continue
            state = self._round(state, line, seats.get(number, []), there)
        self._models(state)
        end = posted.pop(state.round, None)
        if end is not None:
            self._ended(_opened(state, end), end)
        for number in (n for n, lines in posted.items() if any(one.kind != LEAVE for one in lines)):
            raise UnlikeError(f"round {number}: the ledger has transactions, and no such round was played")

    def _nothing_of(self, number: int, seats: Sequence[Mapping[str, Any]], posted: Sequence[Transaction]) -> None:
        """Raise UnlikeError if a round that reportedly failed, and so was undone, left anything."""
        if any(one.kind not in NO_PAYMENTS for one in posted):
            raise UnlikeError(f"round {number}: failed when it was played, and the ledger has a payment of it")
        if any(seat.get("refused") is None for seat in seats):
            raise UnlikeError(f"round {number}: failed when it was played, and {SEATS} has an update of it")

    def _posted(self) -> dict[int, list[Transaction]]:
        """Return the ledger's transactions by round."""
        found: dict[int, list[Transaction]] = {}
        with reading(self.folder) as ledger:
            records = list(ledger.history())
        self._through = unbooked(self.folder, closed_in(records)).start
        for record in records:
            found.setdefault(record.round, []).append(record.transaction)
        return found

    def _round(
        self, state: LoopState, line: Mapping[str, Any], seats: Sequence[Mapping[str, Any]], posted: list[Transaction]
    ) -> LoopState:
        """Play a round again, and return the state after it."""
        number = state.round
        answers = _answers(self.folder, number)
        record = read_arrays(round_file(self.folder, number))
        federation = ReplayedAnswers(answers)
        with _said(number):
            played = play_round(self.session, state, Exchange(federation, number, self.deadline_s))
            federation.used_up()
            made = RoundRecord.of(played, Figures(), {}, answers)
            self._same_seats(made.seats, seats)
            self._same_payments(played.view.posted, posted)
            self.found.same("'{}'", by_value(made.arrays), by_value(record), (TEST_ARRAYS, *self._hashes))
            largest = max((abs(one.get("value", 0.0)) for one in made.seats), default=0.0)
            scales = {name: largest for name in made.metrics if name.startswith("value/")}
            self.found.same("{}", made.metrics, line, (*OWN_METRICS, *self._hashes), scales)
        self.found.rounds += 1
        self.found.taken |= kinds_of(answers)
        return replace(played.state, book=_closed(played.view.book, number, posted))

    def _ended(self, state: LoopState, posted: list[Transaction]) -> None:
        """Settle what the last round left open, again."""
        number = state.round
        federation = ReplayedAnswers(_answers(self.folder, number))
        with _said(number):
            last = finish(self.session, state, Exchange(federation, number, self.deadline_s))
            federation.used_up()
            self._same_payments(last.view.posted, posted)

    def _same_seats(self, made: Sequence[Mapping[str, Any]], recorded: Sequence[Mapping[str, Any]]) -> None:
        """Compare the lines of the seats: values, weights, refusals."""
        if [one["client"] for one in made] != [one.get("client") for one in recorded]:
            raise UnlikeError(f"clients {[one['client'] for one in made]} sat, and others were recorded")
        scales = dict[str, float]()
        for name, number in ((name, abs(x)) for one in made for name, x in one.items() if is_number(x)):
            scales[name] = max(number, scales.get(name, 0.0))
        for mine, theirs in zip(made, recorded, strict=True):
            self.found.same(f"the {{}} of client {mine['client']}", mine, theirs, scales=scales)
            self.found.values += "value" in mine

    def _same_payments(self, made: Sequence[Transaction], posted: Sequence[Transaction]) -> None:
        """Compare what the round posts with the ledger."""
        there = [one for one in posted if one.kind not in NO_PAYMENTS]
        self.found.same_payments(made, there)
        self.found.transactions += len(there)

    def _models(self, state: LoopState) -> None:
        """Compare the models after the last round with those of the last checkpoint."""
        kept = last_state(self.folder)
        if kept is None or kept.round != state.round:
            self.found.notes.append("the last checkpoint is of another round: its models were not compared")
            return
        mine, theirs = (s.table.rows.cpu().numpy() for s in (state, kept))
        scale = float(np.abs(mine[np.isfinite(mine)]).max(initial=0))
        if mine.shape != theirs.shape or not self.found.close(mine, theirs, scale).all():
            raise UnlikeError(f"round {state.round - 1}: the models of the last checkpoint are not those that follow")


def _opened(state: LoopState, posted: Sequence[Transaction]) -> LoopState:
    """Return a round's state with what the log has before its first payment: the commitment, and who has left."""
    opening = [one for one in posted if one.kind in NO_PAYMENTS - {CLOSE}]
    gone = {int(one.step.partition("/")[2]) for one in opening if one.kind == LEAVE}
    return replace(state, book=state.book.post(state.round, opening), left=state.left | gone)


def _closed(book: Book, number: int, posted: Sequence[Transaction]) -> Book:
    """Return the book with the log's line that closed a round, which also hashes data that are not recomputed."""
    return book.post(number, [one for one in posted if one.kind == CLOSE])


@contextmanager
def _said(number: int) -> Iterator[None]:
    """Add the round to a difference; an exception of a part or the book counts as one."""
    try:
        yield
    except UnlikeError as wrong:
        raise UnlikeError(f"round {number}: {wrong}") from None
    except UserError:
        raise
    except Exception as wrong:  # answers are untrusted: whatever they make a part raise is a reason
        raise UnlikeError(f"round {number}: cannot be played again: {first_line(wrong)}") from wrong
