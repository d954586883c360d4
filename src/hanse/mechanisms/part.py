"""What a mechanism is made of: the decisions of a round, and the parts that make them.

A part is a frozen dataclass of hyper-parameters with pure methods: state goes in and comes out, nothing is hidden. The
loop (:mod:`hanse.rounds`) calls them in this order::

    present -> ASK -> SELECT -> TRAIN -> WEIGH -> VALUE -> SETTLE -> MIX -> DEPLOY -> record
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hanse.federation.port import Answered, Request, Result, Roster
from hanse.games.jackknife import jackknife_errors
from hanse.learning.guide import Guide
from hanse.learning.job import Recipe
from hanse.ledger.book import Book
from hanse.ledger.entry import Transaction
from hanse.server import Server
from hanse.streams import stream
from hanse.table import Floats, Ints, Layout, Mix, Seats, Table, Updates
from hanse.telling import Joining, Telling, Terms

__all__ = [
    "Choice",
    "Context",
    "Deployment",
    "Floats",
    "Ints",
    "Mechanism",
    "OwnMix",
    "Part",
    "Server",
    "Settlement",
    "Stage",
    "State",
    "Values",
    "View",
]

State = Mapping[str, Any]  # tensors, numpy arrays, numbers and strings only: it is checkpointed
Stage = Literal["open", "train", "close", "end"]


@dataclass(frozen=True)
class Choice:
    """SELECT: ``clients [S]`` int64 who sit, the table row each ``start [S]``s from (None: its home row), and the row
    its update goes to, ``target [S]`` (None: where it started).
    """

    clients: Ints
    start: Ints | None = None
    target: Ints | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Values:
    """VALUE: each accepted seat's worth to its own target row this round, ``per_seat [S]`` float64, with the standard
    errors of the estimate ``[S]`` and the exact values ``[S]`` beside it where there are any.

    ``without_block [S, B]``: the values with one of B blocks of the validation samples left out at a time, from which
    the error follows that comes from the draw of these samples (None: not known).
    """

    per_seat: Floats
    standard_errors: Floats | None = None
    exact: Floats | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    without_block: Floats | None = None

    @property
    def draw_errors(self) -> Floats | None:
        """The standard errors ``[S]`` that come from the draw of the validation samples; None if not known."""
        return None if self.without_block is None else jackknife_errors(self.without_block)


@dataclass(frozen=True)
class Settlement:
    """SETTLE: who pays whom, and the table rows withheld from those who did not pay; they stay as they were.

    ``arrays`` are recorded with the round, so that what was settled can be replayed.
    """

    withheld: frozenset[int] = frozenset()
    transactions: tuple[Transaction, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class OwnMix:
    """A personal model that each client makes for itself: table ``rows [k]`` weighted by how well each fits the
    client's own ``share`` of samples, ``normalised`` to sum to 1. The server never sees these weights.
    """

    rows: Ints
    share: str = "validation"
    normalised: bool = True


@dataclass(frozen=True)
class Deployment:
    """DEPLOY: the row of the new table that each client holds, ``rows [N]`` int64.

    With ``weights [N, K']`` client c holds the personal model ``weights[c] @ M'`` instead; a row of zeros means none.
    With ``own_mix`` each client makes such weights for itself.
    """

    rows: Ints
    weights: Floats | None = None
    own_mix: OwnMix | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """What a part knows before round 0. ``initial(k)`` draws the k-th initial model ``[P]``."""

    num_clients: int
    rounds: int
    seed: int
    recipe: Recipe
    layout: Layout
    initial: Callable[[int], Tensor]


@dataclass(frozen=True)
class View:
    """Everything that is known at this point of a round; decisions appear in it as they are made.

    ``roster`` are the present clients, ``home [N]`` the row that each client starts from, ``answers`` the replies so
    far by (client, question), ``authorised`` the most that each client agrees to pay this round (smallest unit),
    ``refusals`` what was refused and why, ``book`` the balances now and ``posted`` this round's transactions so far.
    """

    context: Context
    round: int
    stage: Stage
    roster: Roster
    table: Table
    home: Ints
    server: Server
    answers: Mapping[tuple[int, str], Result] = field(default_factory=dict)
    authorised: Mapping[int, int] = field(default_factory=dict)
    refusals: tuple[tuple[int, str], ...] = ()
    choice: Choice | None = None
    seats: Seats | None = None
    updates: Updates | None = None
    mix: Mix | None = None
    values: Values | None = None
    settlement: Settlement | None = None
    deployment: Deployment | None = None
    book: Book = field(default_factory=Book)
    posted: tuple[Transaction, ...] = ()

    def draw(self, purpose: str, *, client: int = -1, start: int = -1) -> np.random.Generator:
        """Return this round's random stream for a purpose (see :mod:`hanse.streams`)."""
        return stream(self.context.seed, purpose, round=self.round, client=client, start=start)

    @property
    def present(self) -> Ints:
        """The ids of the present clients, ascending, ``[n]``."""
        return self.roster.ids

    def said(self, client: int, question: str) -> Mapping[str, Any] | None:
        """Return what a client's policy answered, plain values that are not to be trusted; None if it did not."""
        answer = self.answers.get((client, question))
        return answer.values if isinstance(answer, Answered) and isinstance(answer.values, Mapping) else None

    @property
    def leaving(self) -> Ints:
        """The clients ``[m]`` whose policy has just said that they do not stay, ascending."""
        asked = sorted(client for client, question in self.answers if question == "stay")
        return np.array([c for c in asked if not (self.said(c, "stay") or {}).get("stay", True)], dtype=np.int64)

    @property
    def trained(self) -> Updates:
        """The accepted updates. Raises RuntimeError before training."""
        if self.updates is None:
            raise RuntimeError("no updates yet: this part was asked before TRAIN")
        return self.updates

    @property
    def mixed(self) -> Mix:
        """The proposed mix. Raises RuntimeError before WEIGH."""
        if self.mix is None:
            raise RuntimeError("no mix yet: this part was asked before WEIGH")
        return self.mix


class Part(Protocol):
    """One decision of a mechanism. Subclass it for the defaults: no needs, no state, no questions.

    ``needs`` names what must be there ("validation", "values", "groups", ...): unmet needs are refused before round 0.
    ``gives`` names what this part brings to the others.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    gives: ClassVar[frozenset[str]] = frozenset()

    def init(self, context: Context) -> State:
        """Return the state before round 0."""
        return {}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Return what to ask of clients at ``view.stage``: "open" (before selection), "train" (beside training),
        "close" (once the updates are here). The loop merges the questions of all parts into one exchange. A settle
        part is asked once more after the last round, at "end".
        """
        return ()

    def learn(self, outcome: View, state: State) -> State:
        """Digest the finished round into the next state."""
        return state

    def tells(self) -> Telling:
        """Return what the part says of itself in reports, on statements and on the live page: nothing by default."""
        return Telling()


class SelectPart(Part, Protocol):
    """Decides who sits at this round's training, and where."""

    def decide(self, view: View, state: State) -> Choice:
        """Return the clients that train, without repeats per start row."""
        ...


class TrainPart(Part, Protocol):
    """Lays out the model table, and turns the choice into seats: start, pull, tilt."""

    def table(self, context: Context) -> tuple[Table, Ints]:
        """Return the initial table and each client's home row ``[N]``."""
        ...

    def decide(self, view: View, state: State) -> Seats:
        """Return this round's seats from ``view.choice``."""
        ...

    def guide(self, view: View, state: State) -> Guide | None:
        """Return what travels with the training tasks to guide them, if anything (FedGen's generator)."""
        return None


class WeighPart(Part, Protocol):
    """Proposes the next table from the accepted updates."""

    def decide(self, view: View, state: State) -> Mix:
        """Return the mix of ``[U; M]``."""
        ...


class ValuePart(Part, Protocol):
    """Says what each update was worth."""

    def decide(self, view: View, state: State) -> Values:
        """Return one value a seat."""
        ...


class SettlePart(Part, Protocol):
    """Says who pays whom, and what is withheld from those who do not pay."""

    def open(self, view: View, state: State) -> Sequence[Transaction]:
        """Return what is posted before SELECT, once the answers to the "open" questions are here."""
        return ()

    def decide(self, view: View, state: State) -> Settlement:
        """Return this round's transactions and withheld rows."""
        ...

    def finish(self, view: View, state: State) -> Sequence[Transaction]:
        """Return what is posted after the last round, once the answers to the "end" questions are here."""
        return ()

    def terms(self, joining: Joining) -> Terms | None:
        """Return what a client may pay and gain, said before it joins; None: not known."""
        return None


class DeployPart(Part, Protocol):
    """Says which model each client holds after the round."""

    def decide(self, view: View, state: State) -> Deployment:
        """Return each client's row of the new table."""
        ...


@dataclass(frozen=True)
class Mechanism:
    """A published system, or a new one: one part a decision. ``dataclasses.replace`` makes another of it."""

    name: str
    select: SelectPart
    train: TrainPart
    weigh: WeighPart
    value: ValuePart | None = None
    settle: SettlePart | None = None
    deploy: DeployPart | None = None

    def parts(self) -> dict[str, Part]:
        """Return the parts that are there, by decision, in the order of a round."""
        slots = ("select", "train", "weigh", "value", "settle", "deploy")
        return {slot: getattr(self, slot) for slot in slots if getattr(self, slot) is not None}
