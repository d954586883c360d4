"""Plays one round with its test and makes its record; also records a round in which a part raised an exception.

:func:`attempt` is the body of the loop in :mod:`hanse.runs.experiment`. In a simulation, a part that raises ends the
run with a traceback. On a network a round cannot simply be replayed. A failed round there is undone and recorded as
failed, and the run continues; only several failed rounds in a row end it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from hanse.base.errors import UserError
from hanse.core.entry import Transaction
from hanse.core.history import NEVER
from hanse.core.part import Deployment
from hanse.core.port import Closing, Federation, Reply, Request, Roster, Train
from hanse.core.table import Floats, Seats
from hanse.federation.private import TellsOwners
from hanse.learning.loop import LOOP, NO_STEP
from hanse.ledger.closing import AGREEMENT, NOTHING, close, moved_in
from hanse.runs.config import Experiment
from hanse.runs.kept_answers import Answers, Keeping
from hanse.runs.round import LoopState, Played, Setup, failed_round, finish, play_round
from hanse.runs.round_record import RoundRecord
from hanse.runs.testing import Figures, ask_tests, still_known, trained_models

log = logging.getLogger(__name__)

MOST_FAILED = 3  # rounds in a row that may fail before the run ends
LONGEST = 300  # characters of what was raised that are recorded


@dataclass(frozen=True)
class RecordedRound:
    """A round that was played.

    Attributes:
        state: the loop's state after the round.
        record: the round's record.
    """

    state: LoopState
    record: RoundRecord


def attempt(setup: Setup, experiment: Experiment, state: LoopState) -> RecordedRound:
    """Play a round, test the clients' models, close the round's books, and return the round with its record.

    On a network, a round in which a part raises an exception is undone and recorded as failed; the traceback is logged.
    Errors of the network and UserErrors propagate.

    Args:
        setup: what stays the same over the run.
        experiment: its settings decide which rounds are tested and how.
        state: the state before the round.
    """
    done = _attempted(setup, experiment, state)
    if setup.agreement:
        done.record.metrics[AGREEMENT] = setup.agreement
    if not setup.books:
        return done
    record = done.record.closed()
    return RecordedRound(replace(done.state, book=record.played.state.book), record)


def _attempted(setup: Setup, experiment: Experiment, state: LoopState) -> RecordedRound:
    """Play a round, or undo it if it fails on a network. Its books are not closed yet."""
    if not setup.remote:
        return _round(setup, experiment, state)
    begun, watched = time.perf_counter(), Watched(setup.federation)
    try:
        return _round(replace(setup, federation=watched), experiment, state)
    except Exception as wrong:
        if watched.down or isinstance(wrong, UserError):
            raise
        log.exception("round %d failed and is undone", state.round)
        played, said = _failed(setup, state, watched, wrong)
    record = RoundRecord.of(played, Figures(), {"round": time.perf_counter() - begun})
    record.metrics["failed"] = said
    return RecordedRound(played.state, record)


def _round(setup: Setup, experiment: Experiment, state: LoopState) -> RecordedRound:
    """Play a round and test what clients hold then. An error of the user's module names the round."""
    try:
        return _tested(setup, experiment, state)
    except UserError as wrong:
        if wrong.__cause__ is None or "round" in str(wrong):
            raise
        raise UserError(*(f"round {state.round}: {line}" for line in wrong.lines)) from wrong.__cause__


def _tested(setup: Setup, experiment: Experiment, state: LoopState) -> RecordedRound:
    """Play a round and test what clients hold then."""
    begun = time.perf_counter()
    now = telling(setup, state)
    keeping = Keeping(now.federation) if setup.kept else None
    played = play_round(now if keeping is None else replace(now, federation=keeping), state)
    answers = None if keeping is None else keeping.answers()
    if state.round == 0 and not setup.remote:
        _check_first(experiment, played)
    seconds = {"play": time.perf_counter() - begun}
    known = still_known(state.on_server, state.table, played.state.table)
    tested = _test(setup, experiment, played, known)
    after = played.state if tested.personal is None else replace(played.state, personal=tested.personal)
    after = replace(after, on_server=known if tested.on_server is None else tested.on_server)
    seconds["test"] = time.perf_counter() - begun - seconds["play"]
    seconds["round"] = time.perf_counter() - begun
    return RecordedRound(after, RoundRecord.of(played, tested, seconds, answers))


def _check_first(experiment: Experiment, played: Played) -> None:
    """Raise UserError if no client of the first round could train: it will not be otherwise in any later round.

    On a network, loops and data are the participants' own. Where clients misbehave or a rule refuses updates, the next
    round may differ. A loop that makes no step may do so for some clients; a run of nothing else ends with that reason.
    """
    seats, reasons = played.view.seats, dict(played.view.refusals)
    seated = set() if seats is None else set(seats.client.tolist())
    if not reasons or not reasons.keys() >= seated or any(NO_STEP in why for why in reasons.values()):
        return
    why = Counter(reasons.values()).most_common(1)[0][0]
    if why.startswith(LOOP):
        raise UserError(f"train.loop: {why.removeprefix(f'{LOOP} ')}; no client of the first round was trained")
    if seated and not experiment.behaviour and experiment.federation.refuse is None:
        raise UserError(f"round {played.view.round}: no client was trained, so no later round can differ: each {why}")


def _test(setup: Setup, experiment: Experiment, played: Played, known: Floats | None) -> Figures:
    """Return what the round's test found; nothing if no test is due."""
    number, state = played.state.round, played.state
    if number % experiment.eval.every and number != experiment.run.rounds:
        return Figures()
    held = played.view.deployment or Deployment(state.home)
    federation, clients, remote = telling(setup, state).federation, setup.tested_clients, setup.remote
    trained = {}
    if experiment.eval.model == "trained" and played.view.updates is not None:
        trained = trained_models(played.view.updates, held)
    return ask_tests(
        setup.engine, setup.data, federation, number, state.table, held,
        clients=clients, remote=remote, history=state.history, trained=trained, problem=setup.problem,
        known=known,
    )  # fmt: skip


def telling(setup: Setup, state: LoopState) -> Setup:
    """Return the setup for playing a round: on a network, its requests say which updates were accepted.

    Owners of private rows need to know this. These are derived from the loop's state, so they are also right after a
    failed round and in a resumed run.
    """
    if not setup.remote:
        return setup
    return replace(setup, federation=TellsOwners.of(setup.federation, state.table.owner, state.moved))


def settled(setup: Setup, state: LoopState) -> tuple[LoopState, tuple[Transaction, ...], Answers | None]:
    """Settle what the last round left open and close the books.

    Return the new state, the transactions that were posted, and the clients' answers, if answers are kept.
    """
    keeping = Keeping(setup.federation) if setup.kept else None
    last = finish(setup if keeping is None else replace(setup, federation=keeping), state)
    view, posted = last.view, last.view.posted
    closing = close(view.round, view.book.balances, len(view.book.peaks), moved_in(posted), NOTHING)
    answers = None if keeping is None else keeping.answers()
    return replace(last.state, book=view.book.post(view.round, [closing])), (*posted, closing), answers


def tell_owners(setup: Setup, state: LoopState) -> None:
    """After the last round on a network, tell the owners of private rows whether their last updates were accepted."""
    owners = np.unique(state.table.owner[np.flatnonzero(state.moved != NEVER)])
    if setup.remote and len(owners):
        federation = telling(setup, state).federation
        here = np.intersect1d(federation.present(state.round).ids, owners).tolist()
        federation.exchange(state.round, [Request(c, ()) for c in here], None, None)


@dataclass
class Watched(Federation):
    """Wraps a federation during one round and remembers what the record of a failed round needs.

    Attributes:
        federation: the federation that is wrapped.
        roster: who was present at the first exchange.
        sat: ``(client, start row)`` of each seat that was asked to train.
        bytes_down: bytes sent to the clients.
        bytes_up: bytes received from the clients.
        down: whether the federation itself raised an exception. Then the network is lost, and no part is to blame.
    """

    federation: Federation
    roster: Roster = field(default_factory=Roster)
    sat: list[tuple[int, int]] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0
    down: bool = False

    def present(self, round: int) -> Roster:
        """Return the clients that are here."""
        with self._lost():
            roster = self.federation.present(round)
        self.roster = self.roster or roster
        return roster

    def exchange(
        self, round: int, requests: Sequence[Request], deadline_s: float | None, closing: Closing | None
    ) -> Sequence[Reply]:
        """Send the requests and return the replies."""
        self.sat += [(r.client, task.row) for r in requests for task in r.tasks if isinstance(task, Train)]
        with self._lost():
            replies = self.federation.exchange(round, requests, deadline_s, closing)
        self.bytes_down += sum(reply.bytes_down for reply in replies)
        self.bytes_up += sum(reply.bytes_up for reply in replies)
        return replies

    @contextmanager
    def _lost(self) -> Iterator[None]:
        """Remember that the federation raised, and let the exception go on."""
        try:
            yield
        except Exception:
            self.down = True
            raise


def _failed(setup: Setup, state: LoopState, watched: Watched, wrong: Exception) -> tuple[Played, str]:
    """Return the record of a round in which ``wrong`` was raised, and why it failed in one line.

    The state after it is that before it, except for the number of the round.
    """
    said = " ".join(f"{type(wrong).__name__}: {wrong}".split())[:LONGEST]
    client, start = (np.array([pair[i] for pair in watched.sat], np.int64) for i in (0, 1))
    played = failed_round(setup, state, watched.roster, Seats.at(client, start), f"the round failed: {said}")
    return Played(played.state, played.view, {}, watched.bytes_down, watched.bytes_up), said
