"""The loop of a run: one round after another is played, tested, recorded, and written while the next one is played.

:func:`play_rounds` is the loop, :func:`attempt` one round of it. In a simulation, a part that raises ends the run with
a traceback. On a network a round cannot simply be replayed: a failed one is undone and recorded as failed, and the run
continues; only several failed rounds in a row end it.

Writing a run directory is mostly waiting for the disk, so a thread does it. No observer hears of a round before it and
its payments are on the disk. A round that cannot be written ends the run, and the round played meanwhile is dropped.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from hanse.base.errors import InPlaceError, RunFailedError, UserError
from hanse.base.stopping import interruptible
from hanse.core.entry import Transaction
from hanse.core.part import Deployment
from hanse.core.port import Request
from hanse.core.recipe import NEVER
from hanse.core.table import Floats, Seats
from hanse.learning.loop import LOOP, NO_STEP
from hanse.learning.threads import intra_op
from hanse.ledger.closing import AGREEMENT, NOTHING, close, moved_in
from hanse.runs.chance import UNMOVED, nothing_mixed
from hanse.runs.checkpoint import own_copy
from hanse.runs.exchange import Exchange
from hanse.runs.played_run import Observer, PlayedRun
from hanse.runs.recomputable import RoundAnswers
from hanse.runs.round import LoopState, Played, failed_round, finish, play_round, port_of
from hanse.runs.round_record import METRICS, SEATS, RoundRecord
from hanse.runs.run_record import played_lines
from hanse.runs.rundir import RunDir
from hanse.runs.session import Session
from hanse.runs.shape import guess_of
from hanse.runs.testing import Figures, ask_tests, still_known, trained_models

log = logging.getLogger(__name__)

MOST_FAILED = 3  # rounds in a row that may fail before the run ends
LONGEST = 300  # characters of what was raised that are recorded
# seconds: a round that took longer is told before the next is played: who watches would wait for long, and writing is a
# small part of it
LONG_S = 1.0


def play_rounds(session: Session, state: LoopState, folder: RunDir | None, observers: Sequence[Observer]) -> PlayedRun:
    """Play the rounds that are left, and return the run with everything that it leaves.

    Args:
        session: what stays the same over the run.
        state: the state from which the run goes on.
        folder: the run directory. None: nothing is written.
        observers: objects that see every round.

    Raises:
        MachineError: a round could not be written. It is a RunFailedError after several failed rounds in a row.
    """
    experiment, limits, failures = session.experiment, session.experiment.run, 0
    first = state.table.rows if experiment.train.loop is not None and state.round == 0 else None
    notes = [*(f"warning: {line}" for line in session.data.warnings), *(f"note: {line}" for line in session.data.notes)]
    doubt = [f"warning: {session.data.doubt}"] if session.data.doubt else []
    run = PlayedRun(
        experiment, session.problem, table=state.table, home=state.home, names=session.data.names,
        about=session.about, guess=guess_of(session.data, session.problem), said=(*doubt, *session.said, *notes),
    )  # fmt: skip
    if folder is not None:
        run.path = folder.path
        run.metrics, run.clients = (played_lines(folder.path, name) for name in (METRICS, SEATS))
    tell(observers, "on_start", experiment, state.round, list(run.said))
    run.over = limits.over(run.metrics)  # a resumed run has used up some of its limits already
    writing: list[tuple[RoundRecord, Future[None] | None]] = []

    def settle() -> None:
        """Wait until the round before is on the disk, and tell observers of it."""
        if not writing:
            return
        record, done = writing.pop()  # what cannot be written is never told
        if done is not None:
            done.result()
        run.metrics.append(record.metrics)
        run.clients.extend(record.seats)
        tell(observers, "on_round", record.metrics, record.played)

    thread = ThreadPoolExecutor(1, "hanse-writer")  # starts when it has something to do
    # engines and games bring their own threads; for what lies between, one is robust next to busy neighbours
    with intra_op(1), interruptible(ours=not session.remote) as stop, thread:
        while state.round < limits.rounds and run.over is None and not stop.asked:
            try:
                record = attempt(session, state)
            finally:
                # what an observer asks for in "settle" is about the round before, what was asked until here about this
                asked = stop.asked
                settle()
            if stop.asked and not asked:
                break  # an observer of the round before ended the run there: this one does not count
            state, metrics = record.played.state, record.metrics
            failures = failures + 1 if "failed" in metrics else 0
            run.keep(record)
            run.over = limits.over([*run.metrics, metrics])
            last = state.round == limits.rounds or run.over is not None or stop.asked or failures == MOST_FAILED
            due = folder is not None and (last or state.round % limits.checkpoint_every == 0)
            writing.append((record, None if folder is None else thread.submit(writes(folder, record, due))))
            # on a network the next round tells its members what became of this one
            if last or folder is None or session.remote or metrics["time/round_s"] > LONG_S:
                settle()
            if failures == MOST_FAILED:
                raise RunFailedError(
                    f"{failures} rounds in a row failed; the last, round {metrics['round']}, by {metrics['failed']}"
                )
            del record  # with all updates of the round, of which the next one has as many
        settle()
        run.interrupted = state.round < limits.rounds and run.over is None
        if not run.interrupted:
            state = _ended(session, state, folder)
        elif folder is not None and state.round > folder.kept:  # told, but between checkpoints
            folder.checkpoint(state)
    if folder is not None:
        # before "on_end", so observers find the whole directory
        folder.close()
    run.table, run.home, run.held = state.table, state.home, state.held
    run.personal, run.book = state.personal, state.book
    run.nothing = nothing_mixed(run.metrics, ((s.get("refused"), s.get("weight")) for s in run.clients))
    if run.nothing is None and run.metrics and first is not None and first.equal(run.table.rows):
        run.nothing = UNMOVED
    tell(observers, "on_end", run)
    return run


def tell(observers: Sequence[Observer], moment: str, *given: Any) -> None:
    """Call the method of this name on each observer that has it."""
    for observer in observers:
        if (method := getattr(observer, moment, None)) is not None:
            method(*given)


def writes(folder: RunDir, record: RoundRecord, due: bool) -> Callable[[], None]:
    """Return a function that writes a round, and a checkpoint if one is ``due``, whatever becomes of the round since.

    Parts should make new arrays, but one that writes into its old ones must not write into a checkpoint.
    """
    packed, kept = record.packed(), own_copy(record.played.state) if due else None

    def write() -> None:
        """Write them."""
        folder.append(packed)
        if kept is not None:
            folder.checkpoint(kept)

    return write


def attempt(session: Session, state: LoopState) -> RoundRecord:
    """Play a round, test the clients' models, close the round's books, and return the round's record.

    On a network, a round in which a part raises an exception is undone and recorded as failed; the traceback is logged.
    Errors of the network, of a part that wrote into what it was shown, and UserErrors propagate; one of the user's
    module names the round.

    Args:
        session: what stays the same over the run.
        state: the state before the round.
    """
    begun, port, answers = time.perf_counter(), port_of(session, state), None
    ports = [port]
    tested, seconds, failed = Figures(), dict[str, float](), {}
    try:
        played = play_round(session, state, port)
        answers = None if port.kept is None else port.kept.answers()
        if state.round == 0 and not session.remote:
            _check_first(session, played)
        seconds["play"] = time.perf_counter() - begun
        known = still_known(state.on_server, state.table, played.state.table)
        ports.append(replace(port_of(session, played.state), kept=None))
        tested = _test(session, played, known, ports[1])
        seconds["test"] = time.perf_counter() - begun - seconds["play"]
        after = played.state if tested.personal is None else replace(played.state, personal=tested.personal)
        played = replace(
            played, state=replace(after, on_server=known if tested.on_server is None else tested.on_server)
        )
    except UserError as wrong:
        if wrong.__cause__ is None or "round" in str(wrong):
            raise
        raise UserError(*(f"round {state.round}: {line}" for line in wrong.lines)) from wrong.__cause__
    except Exception as wrong:
        if not session.remote or isinstance(wrong, InPlaceError) or any(one.lost for one in ports):
            raise
        log.exception("round %d failed and is undone", state.round)
        failed["failed"] = said = " ".join(f"{type(wrong).__name__}: {wrong}".split())[:LONGEST]
        client, start = (np.array([pair[i] for pair in port.sat], np.int64) for i in (0, 1))
        played = failed_round(session, state, port.roster, Seats.at(client, start), f"the round failed: {said}")
        played = replace(played, bytes_down=sum(p.down for p in ports), bytes_up=sum(p.up for p in ports))
        tested, seconds, answers = Figures(), {}, None
    seconds["round"] = time.perf_counter() - begun
    record = RoundRecord.of(played, tested, seconds, answers)
    record.metrics.update(failed, **({AGREEMENT: session.agreement} if session.agreement else {}))
    return record.closed() if session.books else record


def _check_first(session: Session, played: Played) -> None:
    """Raise UserError if no client of the first round could train: it will not be otherwise in any later round.

    On a network, loops and data are the participants' own. Where clients misbehave or a rule refuses updates, the next
    round may differ. A loop that makes no step may do so for some clients; a run of nothing else ends with that reason.
    """
    seats, reasons, experiment = played.view.seats, dict(played.view.refusals), session.experiment
    seated = set() if seats is None else set(seats.client.tolist())
    if not reasons or not reasons.keys() >= seated or any(NO_STEP in why for why in reasons.values()):
        return
    why = Counter(reasons.values()).most_common(1)[0][0]
    if why.startswith(LOOP):
        raise UserError(f"train.loop: {why.removeprefix(f'{LOOP} ')}; no client of the first round was trained")
    if seated and not experiment.behaviour and experiment.federation.refuse is None:
        raise UserError(f"round {played.view.round}: no client was trained, so no later round can differ: each {why}")


def _test(session: Session, played: Played, known: Floats | None, port: Exchange) -> Figures:
    """Return what the round's test found; nothing if no test is due."""
    number, state, experiment = played.state.round, played.state, session.experiment
    if number % experiment.eval.every and number != experiment.run.rounds:
        return Figures()
    held = played.view.deployment or Deployment(state.home)
    trained = {}
    if experiment.eval.model == "trained" and played.view.updates is not None:
        trained = trained_models(played.view.updates, held)
    return ask_tests(
        session.engine, session.data, port, number, state.table, held,
        clients=session.tested_clients, remote=session.remote, history=state.history, trained=trained,
        problem=session.problem, known=known,
    )  # fmt: skip


def _ended(session: Session, state: LoopState, folder: RunDir | None) -> LoopState:
    """Settle what the last round left open and tell the owners of private rows; return the state after it."""
    if session.pays and not state.finished:
        state, posted, answers = settled(session, state)
        if folder is not None:
            if answers is not None:
                folder.keep(state.round, answers.packed())
            folder.owe(state.round, posted)
            folder.checkpoint(state)
    if folder is not None:  # also after a restart between these two
        folder.receipts()
    owners = np.unique(state.table.owner[np.flatnonzero(state.moved != NEVER)])
    if session.remote and len(owners):  # whether their last updates were accepted
        federation = port_of(session, state).federation
        here = np.intersect1d(federation.present(state.round).ids, owners).tolist()
        federation.exchange(state.round, [Request(c, ()) for c in here], None, None)
    return state


def settled(session: Session, state: LoopState) -> tuple[LoopState, tuple[Transaction, ...], RoundAnswers | None]:
    """Settle what the last round left open and close the books.

    Return the new state, the transactions that were posted, and the clients' answers, if answers are kept.
    """
    port = port_of(session, state)
    last = finish(session, state, port)
    view, posted = last.view, last.view.posted
    closing = close(view.round, view.book.balances, len(view.book.peaks), moved_in(posted), NOTHING)
    answers = None if port.kept is None else port.kept.answers()
    return replace(last.state, book=view.book.post(view.round, [closing])), (*posted, closing), answers
