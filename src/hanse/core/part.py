"""What a mechanism is made of: the decisions of a round, and the parts that make them.

A part is a frozen dataclass of hyper-parameters with pure methods: state goes in and comes out, nothing is hidden. It
fills a slot of a mechanism by having the slot's method, and one part may fill several. The loop
(:mod:`hanse.rounds.round`) calls them in this order::

    present -> ASK -> SELECT -> TRAIN -> WEIGH -> VALUE -> SETTLE -> MIX -> DEPLOY -> record
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hanse.base.streams import stream
from hanse.core.book import Book
from hanse.core.entry import Transaction
from hanse.core.payload import Payload
from hanse.core.port import Answered, Request, Result, Roster
from hanse.core.recipe import Recipe
from hanse.core.table import Add, Block, Floats, Ints, Layout, Mix, Replace, Seats, Table, Updates, mix
from hanse.core.telling import Joining, Telling, Terms
from hanse.games.jackknife import jackknife_errors

if TYPE_CHECKING:
    from hanse.rounds.judge import Judge

GROUPS = "the rows of groups"  # filled by a part whose ``weigh`` says itself what becomes of them
State = Mapping[str, Any]  # tensors, numpy arrays, numbers and strings only: it is checkpointed
Stage = Literal["open", "train", "close", "end"]
Kind = Literal["average", "affine", "again"]  # of an aggregate
Named = frozenset[str] | Mapping[str, frozenset[str]]  # names, or names by the slot that they concern
T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """SELECT: ``clients [S]`` int64 who sit, the table row each ``start [S]``s from (None: its home row), and the row
    its update goes to, ``target [S]`` (None: where it started).

    ``found``, here and in other decisions, are values for the parts that decide later, read by ``view.get(Type)``.
    """

    clients: Ints
    start: Ints | None = None
    target: Ints | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    found: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Group:
    """The seats of one round whose updates go to one and the same server row: positions ``at [m]`` among the updates.

    ``updates [m, P]``, ``num_samples [m]`` (reported), ``loss [m]``, ``steps [m]`` and ``start [m, P]`` are those of
    its seats, in their order; ``old [P]`` is the row as it was. With ``shrunk [m]`` each update is taken to have gone
    only that share of its way from the old row.
    """

    row: int
    at: Ints
    view: View
    shrunk: Floats | None = None

    def __len__(self) -> int:
        return len(self.at)

    @property
    def updates(self) -> Tensor:
        """The updates ``[m, P]``: no copy where the group is the whole round."""
        return self.columns(0, self.view.context.layout.size)

    @property
    def parameters(self) -> Tensor:
        """The updates' parameters ``[m, parameters]``, without buffers."""
        return self.columns(0, self.num_parameters)

    @property
    def num_parameters(self) -> int:
        """How many columns are parameters: the first ones."""
        return self.view.context.layout.num_parameters

    def columns(self, begin: int, end: int) -> Tensor:
        """Return columns ``begin`` to ``end`` of the updates, ``[m, end - begin]``: no copy where the group is the
        whole round, and nothing is shrunk.
        """
        rows = self.view.trained.rows[:, begin:end]
        rows = rows if len(self.at) == len(rows) else rows[self.at]
        if self.shrunk is None:
            return rows
        found = rows.clone() if len(self.at) == len(self.view.trained.rows) else rows
        old = self.old[begin:end]
        for row, share in zip(found, self.shrunk.tolist(), strict=True):  # one at a time: no second table beside
            if share != 1.0:
                row.sub_(old).mul_(share).add_(old)
        return found

    def among(self, members: Ints) -> Group:
        """Return the group of some members, by their positions ``[n]`` in this one: a coalition."""
        return replace(self, at=self.at[members], shrunk=None if self.shrunk is None else self.shrunk[members])

    def shrinking(self, shares: Floats) -> Group:
        """Return the group whose updates go only these ``shares [m]`` of their ways from the old row."""
        return replace(self, shrunk=shares if self.shrunk is None else self.shrunk * shares)

    def made(self, said: Aggregate) -> Tensor:
        """Return the row ``[P]`` that an aggregate of this group says, float32."""
        if said.row is not None:
            return said.row
        assert said.weights is not None  # an aggregate has weights or a row
        return mix(np.append(said.weights, said.old)[None], self.updates, self.old[None])[0]

    @property
    def start(self) -> Tensor:
        """The models that the seats started from, ``[m, P]``."""
        return self.view.table.rows[self.view.trained.seats.start[self.at]]

    @property
    def old(self) -> Tensor:
        """The row as it was, ``[P]``."""
        return self.view.table.rows[self.row]

    @property
    def num_samples(self) -> Floats:
        """The reported numbers of samples ``[m]``."""
        return self.view.trained.num_samples[self.at]

    @property
    def loss(self) -> Floats:
        """The mean training losses ``[m]``."""
        return self.view.trained.loss[self.at]

    @property
    def steps(self) -> Ints:
        """The optimiser steps ``[m]`` that the seats took."""
        return self.view.trained.steps[self.at]

    @property
    def staleness(self) -> Ints:
        """For how many rounds each update was under way, ``[m]``: 0 for this round's."""
        return self.view.trained.staleness[self.at]


@dataclass(frozen=True)
class Aggregate:
    """What a group's server row becomes: ``weights [m]`` on its updates, and ``old`` on the row as it was; or, of a
    rule of the kind "again", a ``row [P]`` float32 that is no such sum.

    ``metrics`` are recorded as means over the groups that have them. ``keeps`` is what the part's ``learn`` may take
    into its state if the row stands, by name; a row that is made for a coalition keeps nothing.
    """

    weights: Floats | None = None
    old: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    row: Tensor | None = None
    keeps: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Aggregated:
    """What the weigh part has made of the groups, by the server row that they train: ``said``, and of a rule of the
    kind "again" also ``again``: what it makes of some members, by their positions ``[n]`` in the group.
    """

    said: Mapping[int, Aggregate]
    again: Mapping[int, Callable[[Ints], Aggregate]] = field(default_factory=dict)


@dataclass(frozen=True)
class Weighed:
    """WEIGH beside the groups: rows ``replaced``, rows ``added``, and the clients' ``home [N]`` if it changes."""

    replaced: tuple[Replace, ...] = ()
    added: tuple[Add, ...] = ()
    home: Ints | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    refused: tuple[tuple[int, str], ...] = ()
    found: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Values:
    """VALUE: each accepted seat's worth to its own target row this round, ``per_seat [S]`` float64, with the standard
    errors of the estimate ``[S]`` and the exact values ``[S]`` beside it where there are any.

    ``without_block [S, B]``: the values with one of B blocks of the validation samples left out at a time, from which
    the error follows that comes from the draw of these samples (None: not known). ``interactions [S, S]``: above 0 for
    two seats that complement each other, below 0 for two that duplicate each other, NaN for seats that play no game
    together (None: not asked for); ``interaction_errors [S, S]``: their standard errors. ``beside``: by a smaller
    budget the values and errors ``[2, S]`` that it would have given.
    """

    per_seat: Floats
    standard_errors: Floats | None = None
    exact: Floats | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    without_block: Floats | None = None
    interactions: Floats | None = None
    interaction_errors: Floats | None = None
    beside: Mapping[int, Floats] = field(default_factory=dict)
    found: tuple[Any, ...] = ()

    @property
    def draw_errors(self) -> Floats | None:
        """The standard errors ``[S]`` that come from the draw of the validation samples; None if not known."""
        return None if self.without_block is None else jackknife_errors(self.without_block)

    def by_client(self, view: View) -> tuple[Ints, Floats]:
        """Return the clients ``[m]`` whose updates were valued, ascending, and their values ``[m]``: the sum over a
        client's seats.
        """
        clients, place = np.unique(view.trained.seats.client, return_inverse=True)
        return clients, np.bincount(place, weights=self.per_seat).astype(np.float64)


@dataclass(frozen=True)
class Settlement:
    """SETTLE, at "open", "close" or "end": who pays whom, and at "close" the table rows withheld from those who did not
    pay; they stay as they were.

    ``arrays`` are recorded with the round, so that what was settled can be replayed; no part reads them.
    """

    withheld: frozenset[int] = frozenset()
    transactions: tuple[Transaction, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    found: tuple[Any, ...] = ()


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
    """What a part knows before round 0. ``initial(k)`` draws the k-th initial model ``[P]``; ``slots`` are the parts of
    the mechanism by slot.
    """

    num_clients: int
    rounds: int
    seed: int
    recipe: Recipe
    layout: Layout
    initial: Callable[[int], Tensor]
    slots: Mapping[str, Part] = field(default_factory=dict)

    def standing(self, part: Part) -> frozenset[str]:
        """Return the slots in which a part stands: for the others it has nothing to ask."""
        return frozenset(slot for slot, other in self.slots.items() if other is part)


@dataclass(frozen=True)
class View:
    """Everything that is known at this point of a round; decisions appear in it as they are made.

    ``roster`` are the present clients, ``home [N]`` the row that each client starts from, ``judge`` the server's
    held-out data that score models, ``answers`` the replies so far by (client, question), ``authorised`` the most that
    each client agrees to pay this round (smallest unit), ``refusals`` what was refused and why, ``found`` what parts
    have handed on by its type (see :meth:`get`), ``book`` the balances now and ``posted`` this round's transactions.
    """

    context: Context
    round: int
    stage: Stage
    roster: Roster
    table: Table
    home: Ints
    judge: Judge
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
    found: Mapping[type, Any] = field(default_factory=dict)
    book: Book = field(default_factory=Book)
    posted: tuple[Transaction, ...] = ()

    def draw(self, purpose: str, *, client: int = -1, start: int = -1) -> np.random.Generator:
        """Return this round's random stream for a purpose (see :mod:`hanse.base.streams`)."""
        return stream(self.context.seed, purpose, round=self.round, client=client, start=start)

    def get(self, kind: type[T]) -> T | None:
        """Return what a part has handed on this round of this type, the latest; None: nobody has."""
        return self.found.get(kind)

    def at(self, block: str, clients: Ints | None = None) -> Ints:
        """Return the numbers of a block's rows, or of these clients' (see :meth:`hanse.core.table.Table.at`)."""
        return self.table.at(block, clients)

    def groups(self) -> list[Group]:
        """Return the groups of accepted seats that train one of the server's rows, by row; rows that clients have one
        of each, or that are private, are in none.
        """
        found = self.trained.seats.groups()
        own = self.table.per_client(np.array(list(found), np.int64))
        return [Group(row, at, self) for (row, at), mine in zip(found.items(), own, strict=True) if not mine]

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


def by_slot(**names: Set[str]) -> Mapping[str, frozenset[str]]:
    """Return names by the slot that they concern: what a part of several slots declares."""
    return MappingProxyType({slot: frozenset(some) for slot, some in names.items()})


def in_slots(declared: Named, slots: Sequence[str]) -> frozenset[str]:
    """Return the names that concern a part in these slots."""
    if isinstance(declared, Mapping):
        return frozenset().union(*(declared.get(slot, frozenset()) for slot in slots))
    return declared


class Part(Protocol):
    """One decision of a mechanism, or several. Subclass it for the defaults: no needs, no state, no questions.

    ``needs`` names what must be there ("validation", "values", "groups", ...): unmet needs are refused before round 0.
    ``gives`` names what this part brings to the others. ``reads`` and ``fills`` name blocks of rows, by slot: those
    that its seats or its mix are made from, and those that its ``weigh`` makes. ``takes`` names what it can live with
    that not every part can: "again", aggregates that are functions of a group's rows; "late", updates of earlier
    rounds. A part that fills several slots may say all of these by slot.
    """

    needs: ClassVar[Named] = frozenset()
    gives: ClassVar[Named] = frozenset()
    reads: ClassVar[Named] = frozenset()
    fills: ClassVar[Named] = frozenset()
    takes: ClassVar[Named] = frozenset()

    def init(self, context: Context) -> State:
        """Return the state before round 0."""
        return {}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Return what to ask of clients at ``view.stage``: "open" (before selection), "train" (beside training),
        "close" (once the updates are here). The loop merges the questions of all parts into one exchange. A part that
        settles is asked once more after the last round, at "end".
        """
        return ()

    def learn(self, outcome: View, state: State) -> State:
        """Return the next state, from what only the finished round can tell."""
        return state

    def figures(self, state: State) -> Mapping[str, Floats]:
        """Return figures of each client ``[N]`` by name that are recorded with its seats, from the state after the
        round.
        """
        return {}

    def tells(self, slots: frozenset[str]) -> Telling:
        """Return what the part says of itself in reports, on statements and on the live page, where it stands in these
        ``slots``: nothing by default.
        """
        return Telling()


class SelectPart(Part, Protocol):
    """Decides who sits at this round's training, and where."""

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the clients that train, without repeats per start row, and the next state."""


class TrainPart(Part, Protocol):
    """Lays out the model table, and turns the choice into seats: start, pull, tilt.

    ``payload`` names the client's half of what it sends beside its training tasks; None: it never sends anything.
    ``pulls`` says that its seats have pulls or tilts, which clients' own training loops must add to their loss, and
    ``reads_steps`` that it takes the reported steps for those of SGD.
    """

    payload: ClassVar[str | None] = None
    pulls: ClassVar[bool] = False
    reads_steps: ClassVar[bool] = False

    def blocks(self) -> Sequence[Block]:
        """Return the blocks of rows that the table is made of, in their order."""

    def home(self, table: Table, context: Context) -> Ints:
        """Return the row ``[N]`` of the initial ``table`` that each client starts from: by default that of the first
        block, its own where clients have one each.
        """
        first = table.blocks[0]
        rows = table.at(first.name)
        return rows if first.per_client else np.full(context.num_clients, rows[0])

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Return this round's seats from ``view.choice``, and the next state."""

    def sends(self, view: View, state: State) -> Payload | None:
        """Return what travels beside this round's training tasks, if anything (see :mod:`hanse.core.payload`)."""
        return None


class AggregatePart(Part, Protocol):
    """Stands in the weigh slot, and says how the updates of a group of seats become the server row that they train.

    ``kind``: "average" (weights of at least 0 that sum to 1, nothing of the old row), "affine" (any weights on the
    updates and on the old row), or "again" (a function of the group's rows, the old row and the state from before the
    round). A coalition's model is made of the whole group's weights for the first two; a rule of the third is applied
    again to the coalition's updates, and may return a row.
    """

    kind: ClassVar[Kind] = "affine"
    reads_steps: ClassVar[bool] = False  # whether it takes the reported steps, or train.lr, for those of SGD

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights, or a row. A pure function of the group and of the state from before the round."""


class WeighPart(Part, Protocol):
    """Says what becomes of the rows of the blocks that it ``fills`` (``GROUPS``: of those that groups train).

    It may stand in another slot than weigh: it is asked unless the part in the weigh slot fills these blocks. Rows that
    nobody trains or fills stay; a row that only its own client trains becomes its update.
    """

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return the new rows, and the next state. It is not asked in a round without updates."""


class ValuePart(Part, Protocol):
    """Says what each update was worth.

    One that ``takes`` "again" values aggregates of that kind, too; else ``assumes`` says in words what it needs.
    """

    assumes: ClassVar[str] = "weights on the updates"

    def value(self, view: View, state: State) -> tuple[Values, State]:
        """Return one value a seat, and the next state."""


class SettlePart(Part, Protocol):
    """Says who pays whom, and what is withheld from those who do not pay."""

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        """Return the transactions of ``view.stage`` and the next state.

        It is called at "open" (before SELECT, once the answers to the "open" questions are here), at "close" (once the
        mix and the values are known; rows can be withheld), and at "end" (after the last round).
        """

    def terms(self, joining: Joining) -> Terms | None:
        """Return what a client may pay and gain, said before it joins; None: not known."""
        return None


class DeployPart(Part, Protocol):
    """Says which model each client holds after the round."""

    def deploy(self, view: View, state: State) -> tuple[Deployment, State]:
        """Return each client's row of the new table, and the next state."""


SLOT_NAMES = ("select", "train", "weigh", "value", "settle", "deploy")


@dataclass(frozen=True)
class Mechanism:
    """A published system, or a new one: a part a slot, and one part may stand in several. ``dataclasses.replace`` makes
    another of it.
    """

    name: str
    select: SelectPart
    train: TrainPart
    weigh: AggregatePart | WeighPart
    value: ValuePart | None = None
    settle: SettlePart | None = None
    deploy: DeployPart | None = None

    def slots(self) -> dict[str, Part]:
        """Return the part in each slot that is filled, in the order of a round."""
        return {slot: getattr(self, slot) for slot in SLOT_NAMES if getattr(self, slot) is not None}

    def parts(self) -> dict[str, Part]:
        """Return the parts that are there, each once, by the first slot that it stands in."""
        found: dict[str, Part] = {}
        for slot, part in self.slots().items():
            if not any(part is other for other in found.values()):
                found[slot] = part
        return found

    def standing(self, part: Part) -> list[str]:
        """Return the slots in which a part stands, in the order of a round."""
        return [slot for slot, other in self.slots().items() if other is part]
