"""A run that answers questions: :class:`Run` is what ``hanse.run``, ``hanse.resume`` and ``hanse.load`` return.

It adds answers to the usual questions to the run of :mod:`hanse.runs.played_run`: who contributed (:meth:`Run.values`),
and what a participant's statement says (:meth:`Run.statement`). Numbers and sentences are those of the report and the
statements, from the same functions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
from numpy.typing import NDArray
from torch import nn

from hanse.base.errors import UserError, in_python
from hanse.base.factories import OBJECT
from hanse.base.plain_text import quantity
from hanse.core.telling import About
from hanse.games.jackknife import SURE
from hanse.learning.models import Factory
from hanse.reports.showing import Displayed, Picture
from hanse.reports.words import doubts_said, said
from hanse.reports.worths import Worths
from hanse.runs import experiment as running
from hanse.runs import played_run
from hanse.runs.chance import Guess, nothing_left
from hanse.runs.played_run import PlayedRun
from hanse.runs.run_record import Registered, RunRecord, Seat, client_of, load_run

if TYPE_CHECKING:
    from hanse.reports.statement import Statement

P = ParamSpec("P")


@dataclass(repr=False)
class Run(PlayedRun, Displayed):
    """The result of an experiment. Prints how good the model is and who contributed; a notebook also shows the picture.

    The attributes are those of :class:`hanse.runs.played_run.PlayedRun`.

    Examples:
        >>> import hanse
        >>> from hanse.runs.rehearsal import rehearse
        >>> run = hanse.run(rehearse("greedyfed").experiment)
        >>> len(run.metrics), run.clients[0]["client"], type(run.model(0)).__name__
        (3, 0, 'Sequential')
        >>> len(run.values().names)
        4
    """

    given_data: Any = field(default=None, kw_only=True)
    given_model: nn.Module | Factory | None = field(default=None, kw_only=True)

    @cached_property
    def record(self) -> RunRecord:
        """The run as reports read it: from its directory or, if there is none, from memory."""
        return _InMemory.of(self) if self.path is None else load_run(self.path)

    def values(self) -> Contributions:
        """Return the total value of each client's updates, with 95 % intervals.

        Raises:
            UserError: the run valued no updates.
        """
        from hanse.reports.answers import contributed
        from hanse.reports.facts import MISSING, facts_of

        found, doubts = facts_of(self.record), tuple(doubts_said(self.record))
        sums = found.valued
        if sums is None:
            raise UserError(
                "values: this run valued no updates: hanse.run(..., value=True) does, or a mechanism with a value part"
            )
        order = sums.order
        names = tuple(sums.labels[i] if self.names else f"client {sums.labels[i]}" for i in order.tolist())
        rounds = quantity(len(self.metrics), "round")
        words = f"Sums over {rounds} of each update's {sums.measure.name}. {sums.measure.sentence}"
        answer = " ".join(note.said for note in contributed(sums, "", doubtful=bool(doubts)))
        told = (answer, words.strip(), *(note.said for note in found.notes if note.code in (*MISSING, "cut_short")))
        errors, half = sums.standard_errors[order], SURE * sums.errors[order]
        return Contributions(sums.totals[order], errors, names, sums.seats[order], told, doubts, half=half)

    @in_python()
    def alone(self, data: Any = None, *, progress: bool = False) -> Run:
        """Play the same experiment with every client alone, and return that run.

        If there is a run directory, it is kept in its folder ``alone``, where facts, statements and reports find it.

        Args:
            data: the data, if they were given as an object and this run was read with ``hanse.load``.
            progress: show a bar on standard error.

        Raises:
            UserError: the data or the model were given as Python objects and must be given again, or the clients' data
                are with the participants.
        """
        from hanse.reports.alone import HERE, play_alone

        if self._remote:
            raise UserError("alone: the clients' data are with the participants, who can train alone themselves")
        data = self.given_data if data is None else data
        if data is None and self.experiment.data.source.name == OBJECT:
            raise UserError("alone: the data were given as an object: give them again, run.alone(data=...)")
        if self.given_model is None and self.experiment.model.name == OBJECT:
            raise UserError("alone: the model was given as an object: hanse.load(..., model=...) with it first")
        place = None if self.path is None else self.path / HERE
        played = play_alone(self.experiment, place, data=data, model=self.given_model, progress=progress)
        return _answering(played, given_data=data, given_model=self.given_model)

    @in_python()
    def statement(self, client: int | str) -> Statement:
        """Return one participant's statement: what it gave, what it gained, whether joining paid.

        A notebook shows its page, which ``.save("client-3.html")`` writes.

        Args:
            client: the participant's number or name.

        Raises:
            UserError: there is no such client, or the run has no directory.
        """
        from hanse.reports.statement import statement

        path = self.record.folder
        return statement(path, client_of(client, self.names, "client") if isinstance(client, str) else client)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the report, one HTML page with all figures, and return its file.

        Args:
            out: the folder for the page. None: the run directory.

        Raises:
            UserError: the run has no directory, or ``out`` cannot be written.
        """
        from hanse.reports.report import write_report

        path = self.record.folder
        return write_report([path], path if out is None else out)

    def sentences(self) -> Sequence[str]:
        """Return the result in plain English, one paragraph per entry.

        The first has the doubts and the model's quality. Warnings, whether the run was stopped, and what there is to
        say about the values follow.
        """
        from hanse.reports.accuracy import reached
        from hanse.runs.observers import mostly_refused  # here: it loads what draws in a terminal

        what, tested = reached(self.record)
        heading = (
            f"{self.record.mechanism}, {quantity(len(self.metrics), 'round')}, "
            f"{quantity(self.record.num_clients, 'client')}"
        )
        heading += f": {what} {tested[-1]}" if tested else ""
        heading += f" ({tested[0]} after the first round)" if len(tested) > 1 else ""
        stopped = ["It was stopped before its last round."] if self.interrupted else []
        sentences = () if self._valued is None else self._valued.told
        warned = [line for line in self.said if line.startswith("warning: ")]
        warned += [f"warning: {line}" for line in mostly_refused(self.clients, self.names)]
        easy = nothing_left(self.metrics) if sentences else None
        full = [] if easy is None else [said("nothing_left", easy)]
        return [" ".join([*doubts_said(self.record), f"{heading}."]), *warned, *stopped, *full, *sentences]

    def shown_table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the table of :meth:`values`, or an empty one if no updates were valued."""
        return ((), ()) if self._valued is None else self._valued.shown_table()

    def plot(self) -> Picture:
        """Return the clients' values as bars, or without values the curve of the main metric."""
        if self._valued is not None:
            return self._valued.plot()
        from hanse.reports.accuracy import curve_charts
        from hanse.reports.groups import group_runs

        charts = curve_charts(group_runs([self.record]))
        if not charts:
            raise UserError("plot: nothing was tested in this run, so there is no curve")
        return Picture(charts[0])

    @property
    def _valued(self) -> Contributions | None:
        seats = self.record.seats
        return self.values() if np.isfinite(seats.value).any() else None

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, eq=False, repr=False)
class Contributions(Worths):
    """The values of each client's updates over a run.

    Attributes:
        values: ``[n]``, the sums over the rounds, the highest first.
        standard_errors: ``[n]``, from both the sampling of coalitions and the draw of the validation samples. NaN: not
            known.
        half: ``[n]``, half the width of the 95 % intervals.
        names: ``[n]``, the clients' names.
        updates: ``[n]``, how many of each client's updates were valued.
        told: who contributed, as a report says it, and what the values mean.
        doubts: sentences to show before the values, such as that the model is no better than chance.
    """

    updates: NDArray[np.int64]
    told: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    title = "Who contributed"
    unit = "value over all rounds"

    def sentences(self) -> Sequence[str]:
        """Return who was worth most and is suspect, as a report says it, after what to mind before that."""
        return [" ".join([*self.doubts, *self.told[:1]]), *self.told[1:]]


@dataclass(frozen=True, eq=False)
class _InMemory(RunRecord):
    """A run without a directory, as reports read runs: its arrays are those that the run keeps."""

    run: PlayedRun

    @staticmethod
    def of(run: PlayedRun) -> _InMemory:
        """Return the record of a run."""
        seats = [Seat.of(line) for line in run.clients]
        config = run.experiment.sections()
        return _InMemory(None, "run", config, run.metrics, seats, run)

    @property
    def about(self) -> About:
        """What its parts and behaviours say of themselves."""
        return self.run.about

    @property
    def guess(self) -> Guess | None:
        """What a guess scores on the server's test set."""
        return self.run.guess

    @property
    def models(self) -> int:
        """How many rows the table has."""
        return len(self.run.table.rows)

    @property
    def lost(self) -> Mapping[int, str]:
        """No round's arrays are lost in memory."""
        return {}

    @property
    def members(self) -> Mapping[int, Registered]:
        """Nobody is on a network."""
        return {}

    @property
    def _names(self) -> dict[int, str]:
        return dict(enumerate(self.run.names))

    def arrays(self, round: int, only: Any = ()) -> dict[str, NDArray[Any]]:
        """Return the arrays of a round that the run keeps."""
        kept = {**self.run.worths.get(round, {}), **self.run.tests.get(round, {})}
        return {name: array for name, array in kept.items() if not only or name in only}


def _answering(plain: PlayedRun, **given: Any) -> Run:
    """Return a run with the questions that can be asked of it."""
    return Run(**{one.name: getattr(plain, one.name) for one in fields(PlayedRun)}, **given)


def _answers(play: Callable[P, PlayedRun]) -> Callable[P, Run]:
    """Return a function that plays or reads a run, with what it returns as a :class:`Run`."""

    @wraps(play)
    def answering(*args: P.args, **kwargs: P.kwargs) -> Run:
        given = {f"given_{key}": kwargs.get(key) for key in ("data", "model")}
        with in_python():
            found = _answering(play(*args, **kwargs), **given)
        if found.nothing:
            warnings.warn(found.nothing, stacklevel=2)
        return found

    return answering


run = _answers(running.run)
resume = _answers(running.resume)
load = _answers(played_run.load)
