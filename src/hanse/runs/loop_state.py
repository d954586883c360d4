"""What changes from round to round, and is in every checkpoint: :class:`LoopState`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hanse.core.book import Book
from hanse.core.calling import States
from hanse.core.recipe import History
from hanse.core.table import Floats, Ints, Table
from hanse.runs.arrivals import Underway


@dataclass(frozen=True)
class LoopState:
    """Everything that changes over a run; a checkpoint holds exactly this.

    Attributes:
        round: the number of the next round, from 0.
        table: the models in play, a row each.
        home: ``[N]``, the row from which each client starts.
        states: the parts' states, by :meth:`hanse.runs.setup.Session.key`.
        book: the balances, and the hash of the last transaction.
        personal: ``[N, K]``, the weights with which each client mixes the table's rows into its personal model. None:
            no client has such a model.
        finished: whether :func:`hanse.runs.round.finish` has settled the last round.
        moved: ``[K]``, for each private row the round in which its owner's last accepted update was taken (NEVER:
            none). Rows beyond its end never did.
        history: what is remembered of clients' earlier training, if the recipe depends on it.
        held: ``[N]``, the row that each client holds, if it is not its home row. None: all hold their home rows.
        underway: who still trains, and the virtual clock.
        on_server: ``[2, K]``, loss and accuracy on the server's test set of rows that have not changed since they were
            tested (NaN: all other rows). Checkpoints keep it because scoring a row again in another batch may change
            its last bits.
        accounts: what each client of a simulation has spent of its privacy budget, by client. None: there are no
            budgets, or clients keep them themselves.
        left: the clients that have left the run (``hanse leave``), who are asked nothing more.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> from hanse.runs.round import first_state, play_round
        >>> session = rehearse("fedavg").setup
        >>> state = first_state(session)
        >>> state.round, state.table.size, sorted(state.states)
        (0, 1, ['deploy', 'select', 'train', 'weigh'])
        >>> play_round(session, state).state.round
        1
    """

    round: int
    table: Table
    home: Ints
    states: States
    book: Book = field(default_factory=Book)
    personal: Floats | None = None
    finished: bool = False
    moved: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # no entry: never
    history: History | None = None
    held: Ints | None = None
    underway: Underway = field(default_factory=Underway)
    on_server: Floats | None = None
    accounts: Mapping[int, Any] | None = None
    left: frozenset[int] = frozenset()
