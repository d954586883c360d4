"""A run in Python (:class:`PlayedRun`), and the protocol of objects that watch one (:class:`Observer`).

``hanse.run`` and ``hanse.resume`` return a :class:`PlayedRun` (:mod:`hanse.runs.experiment`), and ``hanse.load`` reads
one from its directory (:mod:`hanse.runs.reading`). The progress bars and trackers of hanse are observers
(:mod:`hanse.runs.observers`). Your own observer needs no base class.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hanse.base.errors import UserError, library
from hanse.base.files import MEMBERS
from hanse.core.book import Book
from hanse.core.table import SERVER, Table, mix
from hanse.core.telling import About
from hanse.learning.by_name import own_module
from hanse.learning.job import Problem
from hanse.runs.chance import Guess
from hanse.runs.config import Experiment
from hanse.runs.names import client_of
from hanse.runs.round import Played

if TYPE_CHECKING:
    import pandas as pd

    from hanse.runs.round_record import RoundRecord


class Observer(Protocol):
    """Watches a run.

    An observer is any object with one or more of these methods. It need not be a subclass. An exception in a method
    ends the run; rounds on the disk stay there.

    Examples:
        The calls that an observer gets, made by hand:

        >>> import hanse
        >>> from hanse.runs.rehearsal import rehearse
        >>> class Prints:
        ...     def on_start(self, experiment, first_round, said):
        ...         print("from round", first_round)
        ...     def on_round(self, metrics, played):
        ...         print("round", metrics["round"], "seats", len(played.view.trained))
        ...     def on_end(self, result):
        ...         print("the end", result.interrupted)
        >>> small = rehearse("fedavg")
        >>> Prints().on_start(small.experiment, 0, [])
        from round 0
        >>> run = hanse.run(small.experiment, observers=[Prints()])
        from round 0
        round 0 seats 4
        round 1 seats 4
        round 2 seats 4
        the end False
    """

    def on_start(self, experiment: Experiment, first_round: int, said: Sequence[str]) -> None:
        """See the run before its first round.

        Args:
            experiment: the experiment with every default settled, as ``config.toml`` has it.
            first_round: the number of the first round that will be played. It is above 0 in a resumed run.
            said: lines on the engine that was chosen, and warnings.
        """

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """See a finished round once it is on the disk. The next one may already have been played.

        Args:
            metrics: the round's line of ``metrics.jsonl``, such as ``{"round": 0, "test/accuracy": 0.41, ..}``.
            played: everything decided in the round, including models and updates.
        """

    def on_end(self, result: PlayedRun) -> None:
        """See the finished or interrupted run. It is not called if the run raises."""


@dataclass
class PlayedRun:
    """A finished or interrupted run.

    Attributes:
        given: the experiment that was played, or why that of a loaded run is not read: see :attr:`experiment`.
        problem: the model as a module, and how rows become its parameters. None: the model of a loaded run cannot be
            made (see ``why_no_model``).
        metrics: one dictionary per round, the lines of ``metrics.jsonl``.
        clients: the lines of ``clients.jsonl``, one dictionary per seat: round, client, samples, loss, weight, value.
        table: the final models, one per row.
        home: ``[N]``, the row from which each client would start next.
        personal: ``[N, K]``, the weights with which each client mixes the table's rows into its personal model. None:
            there are no such models.
        book: the final balances, in units (a millionth of a token).
        tested: the last test of the clients on their own shares, arrays by name.
        tests: the tests of all rounds, by round, if the run has no directory. Otherwise they are files in it.
        worths: given by round if the run has no directory: the clients whose updates were valued ("answered" ``[S]``),
            and the values without each block of validation samples ("value_without_block" ``[S, B]``).
        about: descriptions of the mechanism's parts and of behaviours.
        guess: what a guess scores on the server's test set. None: not known.
        path: the run directory. None: there is none.
        said: lines on the chosen engine, and warnings, as observers got them at the start. It is empty for a loaded
            run.
        interrupted: whether the run was stopped early.
        over: why the run ended before its last round, for instance because a target accuracy was reached. None: it did
            not.
        names: ``[N]``, the clients' names in the data. Empty: they have only numbers.
        why_no_model: why :meth:`model` cannot return a model. Empty: it can.
        nothing: why the run has no result: no update was mixed in any round. None: it has one.
        held: ``[N]``, the row that each client holds, if it is not its home row. None: all clients hold their home
            rows.

    Examples:
        >>> import hanse
        >>> from hanse.runs.rehearsal import rehearse
        >>> run = hanse.run(rehearse("greedyfed").experiment)
        >>> len(run.metrics), run.clients[0]["client"], type(run.model(0)).__name__
        (3, 0, 'Sequential')
    """

    given: Experiment | UserError
    problem: Problem | None
    metrics: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    table: Table = field(default_factory=lambda: Table.of(torch.zeros(0, 0)))
    home: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    personal: np.ndarray | None = None
    book: Book = field(default_factory=Book)
    tested: Mapping[str, np.ndarray] = field(default_factory=dict)
    tests: dict[int, Mapping[str, np.ndarray]] = field(default_factory=dict)
    worths: dict[int, Mapping[str, np.ndarray]] = field(default_factory=dict)
    about: About = field(default_factory=About)
    guess: Guess | None = None
    path: Path | None = None
    interrupted: bool = False
    over: str | None = None
    names: tuple[str, ...] = ()
    why_no_model: str = ""
    held: np.ndarray | None = None
    nothing: str | None = None
    said: tuple[str, ...] = ()

    @property
    def experiment(self) -> Experiment:
        """The experiment that was played, with every default settled.

        Raises UserError if it names code of its own and the run was loaded without ``trust``.
        """
        if isinstance(self.given, UserError):
            raise self.given
        return self.given

    def model(self, client: int | str = 0) -> nn.Module:
        """Return the model that a client holds at the end, as a new PyTorch module, ready to predict (``eval()``).

        Args:
            client: the client's number or name.

        Raises:
            UserError: there is no such client; the run's models cannot be made; or, on a network, the client's own
                model was never sent.
        """
        if isinstance(client, str):
            client = client_of(client, self.names, "client")
        if not self.why_no_model and not 0 <= client < len(self.home):
            raise UserError(f"client {client}: no such client; this run has clients 0 to {len(self.home) - 1}")
        if self.why_no_model:
            raise UserError(self.why_no_model)
        # a client without weights (all 0) has not mixed a model of its own yet, and holds its row
        if self.personal is not None and client < len(self.personal) and self.personal[client].any():
            return self.model_of(mix(self.personal[[client]], self.table.rows[:0], self.table.rows)[0])
        row = int((self.home if self.held is None else self.held)[client])
        if self.table.owner[row] != SERVER and self._remote:
            raise UserError(f"client {client}: its model is its own and was never sent: it is with the participant")
        return self.model_of(self.table.rows[row])

    def keep(self, record: RoundRecord) -> None:
        """Keep what a round found. Where there is a run directory, it lies there, and long runs keep nothing twice."""
        number, tested, worths = record.metrics["round"], record.tested.arrays, record.worths
        self.tested = tested or self.tested
        if self.path is None and tested:
            self.tests[number] = tested
        if self.path is None and worths:
            self.worths[number] = worths

    @property
    def _remote(self) -> bool:
        """Whether the clients were in other processes, where private rows stay."""
        here = self.experiment.federation.engine == "local"
        return not here or (self.path is not None and (self.path / MEMBERS).is_file())

    def model_of(self, row: Tensor) -> nn.Module:
        """Return a row ``[P]`` of the table as a new PyTorch module in evaluation mode.

        In this mode dropout is off, and batch norm uses what it learned. Raises UserError if the run's models cannot be
        made.
        """
        if self.problem is None:
            raise UserError(self.why_no_model)
        module = copy.deepcopy(self.problem.module)
        self.problem.layout.load(module, row.cpu())
        return own_module(module).eval()

    def to_pandas(self) -> pd.DataFrame:
        """Return the metrics as a pandas DataFrame, a row per round. Raises UserError if pandas is not installed."""
        return _frame(self.metrics).set_index("round")

    def clients_to_pandas(self) -> pd.DataFrame:
        """Return the seats as a pandas DataFrame, one row per seat, with a column "name" if clients have names.

        If rounds should have had values and none has, there is a column "value" of NaN.

        Raises:
            UserError: pandas is not installed.
        """
        frame = _frame(self.clients)
        if self.names and "client" in frame:
            frame.insert(2, "name", [self.names[client] for client in frame["client"]])
        if "value" not in frame and any("gap" in line for line in self.metrics):
            frame["value"] = np.nan
        return frame


def _frame(lines: list[dict[str, Any]]) -> pd.DataFrame:
    """Return lines as a pandas DataFrame. Pandas is imported here because most runs need none."""
    pandas = library("pandas", "pandas is not installed; 'pip install pandas', or use Run.metrics as it is")
    frame: pd.DataFrame = pandas.DataFrame(lines)
    return frame
