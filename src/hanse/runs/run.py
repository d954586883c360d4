"""What a run leaves in memory, and what may watch it while it goes on."""

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
from hanse.core.book import Book
from hanse.core.table import SERVER, Table, mix
from hanse.learning.by_name import own_module
from hanse.learning.job import Problem
from hanse.rounds.round import Played
from hanse.runs.config import Experiment
from hanse.runs.names import MEMBERS, client_of

if TYPE_CHECKING:
    import pandas as pd


class Observer(Protocol):
    """Watches a run. An observer is any object that has one of these methods or more; it need not be a subclass."""

    def on_start(self, experiment: Experiment, first_round: int, said: Sequence[str]) -> None:
        """See the resolved experiment, the first round to be played, and what the engine said of itself."""

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """See a finished round, once it is on the disk (the next one may have been played meanwhile)."""

    def on_end(self, result: Run) -> None:
        """See the finished run."""


@dataclass
class Run:
    """A finished (or interrupted) run.

    ``metrics`` has a dictionary a round, ``clients`` one a seat, ``table`` the final models and ``home [N]`` the row
    that each client starts from, ``held [N]`` the row that it holds where that is another (None: nowhere), ``personal
    [N, K]`` the weights of personal models if there are any, ``book`` the balances,
    ``tested`` the last test of clients on their own shares (arrays by name), ``tests`` that of each round that was
    tested, of a run without a directory. ``path`` is the run directory, if there
    is one; ``over`` says why a run ended before its last round. ``names [N]``: what the data call the clients, or
    nothing. A run that was read (:func:`hanse.load`) may have no ``problem``, the template of its models:
    ``why_no_model`` says why.
    """

    experiment: Experiment
    problem: Problem | None
    metrics: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    table: Table = field(default_factory=lambda: Table.of(torch.zeros(0, 0)))
    home: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    personal: np.ndarray | None = None
    book: Book = field(default_factory=Book)
    tested: Mapping[str, np.ndarray] = field(default_factory=dict)
    tests: dict[int, Mapping[str, np.ndarray]] = field(default_factory=dict)
    path: Path | None = None
    interrupted: bool = False
    over: str | None = None
    names: tuple[str, ...] = ()
    why_no_model: str = ""
    held: np.ndarray | None = None

    def model(self, client: int | str = 0) -> nn.Module:
        """Return the model that a client (its number or its name) holds at the end, as a new module. Raises UserError
        if there is none.
        """
        if isinstance(client, str):
            client = client_of(client, self.names, "client")
        if not self.why_no_model and not 0 <= client < len(self.home):
            raise UserError(f"client {client}: no such client; this run has clients 0 to {len(self.home) - 1}")
        if self.why_no_model:
            raise UserError(self.why_no_model)
        if self.personal is not None and client < len(self.personal) and self.personal[client].any():
            return self.model_of(mix(self.personal[[client]], self.table.rows[:0], self.table.rows)[0])
        row = int((self.home if self.held is None else self.held)[client])
        if self.table.owner[row] != SERVER and self._remote:
            raise UserError(f"client {client}: its model is its own and was never sent: it is with the participant")
        return self.model_of(self.table.rows[row])

    @property
    def _remote(self) -> bool:
        """Whether the clients were in other processes, which keep private rows."""
        here = self.experiment.federation.engine == "local"
        return not here or (self.path is not None and (self.path / MEMBERS).is_file())

    def model_of(self, row: Tensor) -> nn.Module:
        """Return a row ``[P]`` as a new module."""
        if self.problem is None:
            raise UserError(self.why_no_model)
        module = copy.deepcopy(self.problem.module)
        self.problem.layout.load(module, row.cpu())
        return own_module(module)

    def to_pandas(self) -> pd.DataFrame:
        """Return the metrics as a pandas frame, indexed by round. Raises UserError if pandas is not installed."""
        return _frame(self.metrics).set_index("round")

    def clients_to_pandas(self) -> pd.DataFrame:
        """Return the seats as a pandas frame, a row a seat; with a column "name" where clients have names."""
        frame = _frame(self.clients)
        if self.names and "client" in frame:
            frame.insert(2, "name", [self.names[client] for client in frame["client"]])
        return frame


def _frame(lines: list[dict[str, Any]]) -> pd.DataFrame:
    pandas = library("pandas", "pandas is not installed; 'pip install pandas', or use Run.metrics as it is")
    frame: pd.DataFrame = pandas.DataFrame(lines)
    return frame
