"""The decisions of a round, and the parts of a mechanism that make them.

Start here to write a part. A part is a frozen dataclass of hyper-parameters with pure methods: its state is passed in
and returned. It fills a slot of a :class:`Mechanism` by having the method of that slot, and one part may fill several
slots. The loop (:mod:`hanse.runs.round`) calls them in this order::

    present -> ASK -> SELECT -> TRAIN -> WEIGH -> VALUE -> SETTLE -> MIX -> DEPLOY -> record

Each part gets a :class:`View` of everything known so far and returns its decision as one of the dataclasses below:
:class:`Choice`, :class:`hanse.core.table.Seats`, :class:`Aggregate` or :class:`Weighed`, :class:`Values`,
:class:`Settlement`, :class:`Deployment`. The protocols (:class:`SelectPart` and so on) list the methods; inherit from
one to get its defaults.

In the shapes below S is the number of seats (places at this round's training), K the number of rows of the model table,
N the number of clients, and P the numbers in one flattened model.

:func:`hanse.runs.rehearsal.rehearse` plays a small round and returns what parts receive: a view, groups, a context, and
each part's state. With it you can call any method of a part in three lines:

>>> from hanse.runs.rehearsal import rehearse
>>> part, view, state = rehearse("greedyfed").before("select")
>>> choice, state = part.select(view, state)
>>> len(choice.clients)
4

``view.judge`` (:class:`Judge`) scores models.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set, Sized
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hanse.base.pytorch import Tensor, torch
from hanse.base.streams import stream
from hanse.core.book import Book
from hanse.core.entry import Transaction
from hanse.core.port import Answer, Answered, Payload, Request, Roster
from hanse.core.recipe import Recipe
from hanse.core.table import Add, Block, Floats, Ints, Layout, Made, Mix, Replace, Seats, Table, Updates, mix
from hanse.core.telling import BeforeJoining, Check, Fact, Measure, Telling, Terms
from hanse.games.jackknife import jackknife_errors
from hanse.games.mixture import Game


@dataclass(frozen=True)
class ModelScores:
    """How good each of C models is.

    Attributes:
        loss: ``[C]``, the mean loss.
        accuracy: ``[C]``, the share of right answers; NaN for regression.
        count: int64 ``[C]``, how many samples were scored.
        loss_error: ``[C]``, the standard error of the mean loss, computed from the spread of losses over the samples.
            None: it is not known.
    """

    loss: Floats
    accuracy: Floats
    count: Ints
    loss_error: Floats | None = None


class CoalitionGame(Protocol):
    """The game whose players are some updates, as a part sees it: a utility for :mod:`hanse.games`. See
    :class:`hanse.learning.coalitions.UpdateGame`, which documents each, and
    :class:`hanse.learning.by_function.FunctionCoalitions`.
    """

    shares: Floats
    evaluated: int
    floor: float
    below_floor: int
    again: Callable[[Ints], Any] | None

    @property
    def players(self) -> int:
        """The number of updates."""

    @property
    def for_errors(self) -> Floats:
        """The utilities from which the errors of values follow, ``[evaluated, B]``, in the order of evaluation."""

    def __call__(self, coalition: frozenset[int], /) -> float:
        """Return the utility of one coalition."""

    def many(self, coalitions: Sequence[frozenset[int]], /) -> list[float]:
        """Return the utility of each coalition."""

    def update_gram(self) -> Floats:
        """Return the inner products ``[S, S]`` of the updates' moves."""

    def output_gram(self) -> Floats | None:
        """Return the inner products ``[S, S]`` of what single players change of the outputs; None: not known."""


class Judge(Protocol):
    """Scores models on samples that are the server's own.

    A judge need not have all of this: one by a function of the user's knows no gradients and no classes. What a part
    calls, it must name among its :attr:`Part.needs`; other methods may raise RuntimeError.
    """

    @property
    def validation(self) -> Sized | None:
        """The server's validation set. None: there is none."""

    def trained(self, row: Tensor, round: int, number: int) -> Tensor:
        """Return ``row [P]``, number ``number`` of the table, trained on the server's root set as clients train in this
        round. No model is scored on the root set.
        """

    def score(self, rows: Tensor) -> ModelScores:
        """Return loss and accuracy ``[C]`` of ``rows [C, P]`` on the validation set."""

    def gradient(self, rows: Tensor) -> Tensor:
        """Return the mean loss gradient ``[C, P]`` of ``rows [C, P]`` on the validation set; zero for buffers."""

    def gradients_without_block(self, rows: Tensor) -> Tensor:
        """Return the mean loss gradients ``[B, P]`` of one row ``[1, P]`` without each block of the validation set, for
        jackknife standard errors. Entries of frozen parameters are zero.
        """

    def block_gradients(self, row: Tensor) -> Tensor:
        """Return the mean loss gradients ``[B, P]`` of a row ``[P]`` on each block of the validation set, with respect
        to everything in a row, including frozen parameters and batch-norm statistics.
        """

    @property
    def block_shares(self) -> Floats:
        """The share of the validation samples that each block has, ``[B]``."""

    def confusion(self, rows: Tensor) -> Tensor:
        """Return the confusion counts of ``rows [C, P]`` on the validation set, ``[C, classes, classes]`` int64: the
        true class, then the predicted one. Raises UserError: the targets are not classes.
        """

    def class_losses(self, row: Tensor) -> Floats:
        """Return the mean loss ``[G]`` of ``row [P]`` on each class of the validation set. For regression, these are
        tenths of the samples by target.
        """

    def class_gradients(self, row: Tensor, most: int) -> Tensor:
        """Return the mean loss gradient ``[G, P]`` of ``row [P]`` on each class of the validation set, of which at most
        ``most`` samples are used; zero for buffers.
        """

    def coalitions(
        self,
        updates: Tensor,
        base: Tensor,
        weights: Floats,
        utility: str,
        *,
        affine: tuple[float, float] = (1.0, 0.0),
        again: Callable[[Ints], Any] | None = None,
        game: Game = "average",
        keep_outputs: bool = False,
    ) -> CoalitionGame:
        """Return the utility of coalitions of updates, as the functions of :mod:`hanse.games` take it.

        Args:
            updates: ``[S, P]``, the players.
            base: ``[P]``, the model of the empty coalition.
            weights: ``[S]``, the weights of the updates, which need not sum to 1. A coalition's model is the average of
                its members by these weights.
            utility: its name, such as "loss" or "accuracy", as in ``[mechanism.value]``.
            affine: ``(total, old)``: the coalition's model is ``total`` times that average plus ``old`` times the base.
            again: a rule that returns a coalition's row, given its members' positions, instead of an average.
            game: "average", or "increment" (the base plus the members' weighted steps from it) instead of ``affine``.
            keep_outputs: whether the game keeps what single players' models put out, for its ``output_gram``.

        Raises:
            UserError: an unknown utility, or one that these samples do not have.
        """


FINISHED = "finished rows"  # given by a part whose ``weigh`` finishes rows that groups train
GROUPS = "the rows of groups"  # filled by a part whose ``weigh`` says itself what becomes of them
State = Mapping[str, Any]  # tensors, numpy arrays, numbers and strings only: it is checkpointed
Stage = Literal["open", "train", "close", "end"]
Named = frozenset[str] | Mapping[str, frozenset[str]]  # names, or names by the slot that they concern
T = TypeVar("T")


class Questions(tuple[Request, ...]):
    """A part's questions, and the values that it computed to ask them and needs again later in the round.

    Attributes:
        found: the values computed. The part's later methods read them with ``view.get(Type)``.
    """

    found: tuple[Any, ...] = ()

    @classmethod
    def of(cls, requests: Iterable[Request], *found: Any) -> Questions:
        """Return the questions in ``requests``, with the values in ``found``."""
        made = cls(requests)
        made.found = found
        return made


@dataclass(frozen=True)
class Choice:
    """SELECT: who trains this round, from which row, and to which row each update goes.

    Attributes:
        clients: ``[S]`` int64, the ids of the clients that train. A client may appear several times with different
            start rows.
        start: ``[S]`` int64, the table row that each client starts from. None: each starts from its home row (see
            :meth:`TrainPart.home`).
        target: ``[S]`` int64, the row that each update goes to. None: the row where it started.
        metrics: numbers by name that are recorded with the round.
        found: values for parts that decide later. These read them with ``view.get(Type)``.
    """

    clients: Ints
    start: Ints | None = None
    target: Ints | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    found: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Group:
    """The seats whose updates go to the same server row, and these updates. :meth:`View.groups` returns all groups.

    A weigh part gets one group for each server row that is trained, and says how the group's updates become the new
    row. Weights apply within a group, so a rule for one shared model also works for tiers and clusters. In the shapes,
    m is the number of seats in the group; all arrays are in the order of ``at``.

    Attributes:
        row: the number of the server row that these seats train.
        at: ``[m]`` int64, the seats' positions among the round's updates.
        view: the round so far.
        shrunk: ``[m]``, a factor for each update: its step from the old row is multiplied by it (1: not shortened).
            None: no step is shortened.

    Examples:
        A group of a small round of FedAvg, in which four clients trained:

        >>> from hanse.runs.rehearsal import rehearse
        >>> (group,) = rehearse("fedavg").groups
        >>> len(group), group.updates.shape, group.old.shape
        (4, torch.Size([4, 650]), torch.Size([650]))
        >>> len(group.among(np.array([0, 2])))  # a coalition of two
        2
    """

    row: int
    at: Ints
    view: View
    shrunk: Floats | None = None

    def __len__(self) -> int:
        return len(self.at)

    @property
    def updates(self) -> Tensor:
        """The updates ``[m, P]``; not copied if the group is the whole round."""
        return self.columns(0, self.view.context.layout.size)

    @property
    def parameters(self) -> Tensor:
        """The updates without float buffers such as batch-norm statistics, ``[m, num_parameters]``."""
        return self.columns(0, self.num_parameters)

    @property
    def num_parameters(self) -> int:
        """How many columns of a row are parameters. They are the first ones."""
        return self.view.context.layout.num_parameters

    def columns(self, begin: int, end: int) -> Tensor:
        """Return columns ``begin`` to ``end`` of the updates, ``[m, end - begin]``.

        Use it to read a large group in pieces. Nothing is copied if the group is the whole round and nothing is shrunk.
        """
        rows = self.view.trained.rows[:, begin:end]
        # positions ascend, so a group as long as the round is the whole round as it lies
        rows = rows if len(self.at) == len(rows) else rows[self.at]
        if self.shrunk is None:
            return rows
        # picking rows has made a copy; the whole round is a view, which must not be written into
        piece = rows.clone() if len(self.at) == len(self.view.trained.rows) else rows
        old = self.old[begin:end]
        for row, share in zip(piece, self.shrunk.tolist(), strict=True):  # one at a time: no second table
            if share != 1.0:
                row.sub_(old).mul_(share).add_(old)
        return piece

    def among(self, members: Ints) -> Group:
        """Return the group of some members, a coalition. ``members [n]`` are positions in this group."""
        return replace(self, at=self.at[members], shrunk=None if self.shrunk is None else self.shrunk[members])

    def shrinking(self, shares: Floats) -> Group:
        """Return the group with every update's step from the old row multiplied by its share in ``shares [m]``."""
        return replace(self, shrunk=shares if self.shrunk is None else self.shrunk * shares)

    def made(self, said: Aggregate) -> Tensor:
        """Return the new row ``[P]`` (float32) that results from an aggregate of this group."""
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
        """The row as it was before the round, ``[P]``."""
        return self.view.table.rows[self.row]

    @property
    def num_samples(self) -> Floats:
        """The numbers of samples that the clients report, ``[m]``."""
        return self.view.trained.num_samples[self.at]

    @property
    def loss(self) -> Floats:
        """The mean training losses, ``[m]``; NaN for a client whose own training loop reports no loss."""
        return self.view.trained.loss[self.at]

    @property
    def steps(self) -> Ints:
        """The optimiser steps that the seats took, ``[m]`` int64."""
        return self.view.trained.steps[self.at]

    @property
    def staleness(self) -> Ints:
        """By how many rounds each update is late, ``[m]`` int64; 0 for an update of this round."""
        return self.view.trained.staleness[self.at]


@dataclass(frozen=True)
class Along:
    """The part of a row's step that follows the updates: ``scale * weights_i (U_i - old)``.

    Attributes:
        weights: ``[m]``, the weight of each update.
        scale: ``[num_parameters]``, by how much each parameter's step was scaled.
    """

    weights: Floats
    scale: Tensor


@dataclass(frozen=True)
class Aggregate:
    """A group's new server row: a weighted sum of its updates and the old row, or any other row.

    Give ``weights`` and optionally ``old``, or ``row`` instead of both.

    Value parts need the models that coalitions of the group's clients would have made. With ``weights``, these are
    means with the same weights. With ``row`` or ``reapply``, they are what the rule makes of the coalition's updates
    alone, with the part's state from before the round; then only a value part that ``accepts`` it can value them.

    Attributes:
        weights: ``[m]``, the weight of each update.
        old: the weight of the old row.
        metrics: numbers by name, recorded as means over the groups that have them.
        row: ``[P]`` float32, the new row itself, if it is not a weighted sum.
        keeps: tensors by name that the part's own ``learn`` may put into its state. What is computed for a coalition is
            not kept.
        along: goes with ``row``: the part of the row's step that follows the updates. The rest of the step, such as
            momentum, belongs to no update. None: nothing of the step does.
        reapply: goes with ``weights``: whether a coalition's model is what the rule makes of its updates alone.
    """

    weights: Floats | None = None
    old: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    row: Tensor | None = None
    keeps: Mapping[str, Tensor] = field(default_factory=dict)
    along: Along | None = None
    reapply: bool = False

    @property
    def beyond_weights(self) -> frozenset[str]:
        """The words of which a value part must accept one to value this aggregate; none if it is of plain weights.

        "reapply": it can apply the rule again. "reweighted": this round's weights suffice, whatever those of coalitions
        would be. "along": it follows a row's step.
        """
        if self.row is None:
            return frozenset({"reapply", "reweighted"} if self.reapply else ())
        return frozenset({"reapply" if self.along is None else "along"})


@dataclass(frozen=True)
class Aggregated:
    """The weigh part's results, by the server row that each group trains.

    Value parts read it with ``view.get(Aggregated)`` to compute what coalitions of clients would have produced.

    Attributes:
        said: the aggregate of each whole group.
        again: a function that applies the rule once more, only to some of the group's members, at given
            positions ``[n]``. Rows of plain weights do not have it.
    """

    said: Mapping[int, Aggregate]
    again: Mapping[int, Callable[[Ints], Aggregate]] = field(default_factory=dict)


@dataclass(frozen=True)
class Weighed:
    """The weigh part's decision on rows that are not aggregated group by group.

    Attributes:
        replaced: what becomes of existing rows.
        added: rows to append to blocks.
        home: ``[N]`` int64, the row that each client starts from next round. None: as before.
        metrics: numbers by name that are recorded with the round.
        refused: ``(client, reason)`` of each client excluded from this decision.
        found: values for parts that decide later.
        finished: rows of the table that are no weighted sum, by number: each with the updates that it is made of. Who
            finishes rows that groups train must say so (``gives = {"finished rows"}``), as what an update of weight w
            was worth is not known of them.
    """

    replaced: tuple[Replace, ...] = ()
    added: tuple[Add, ...] = ()
    home: Ints | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    refused: tuple[tuple[int, str], ...] = ()
    found: tuple[Any, ...] = ()
    finished: Mapping[int, Made] = field(default_factory=dict)


@dataclass(frozen=True)
class Values:
    """VALUE: what each accepted update was worth this round to the row that it changed.

    Values are in the unit of the utility, usually the fall of the validation loss. ``None``: not computed.

    Attributes:
        per_seat: ``[S]`` float64, one value per accepted update. NaN: this one was not valued.
        standard_errors: ``[S]``, the estimation error: how exactly the game was solved.
        metrics: numbers by name that are recorded with the round.
        without_block: ``[S, B]``, the values with each of B blocks of validation samples left out. The error due to the
            random draw of these samples follows from them.
        by_row: for metrics that are sums over trained rows, each row's term.
        found: values for parts that decide later.

    Examples:
        The values of a small round, by client:

        >>> from hanse.runs.rehearsal import rehearse
        >>> view = rehearse("greedyfed").view
        >>> clients, worth = view.values.by_client(view)
        >>> clients, worth.shape
        (array([0, 1, 2, 3]), (4,))
    """

    per_seat: Floats
    standard_errors: Floats | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    without_block: Floats | None = None
    by_row: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    found: tuple[Any, ...] = ()

    def without(self, idle: NDArray[np.bool_], rows: Collection[int] = ()) -> Values:
        """Return the values for the case that some updates do nothing to the new table: they are worth 0.

        Args:
            idle: ``[S]``, whether an update does nothing.
            rows: numbers of the rows that stay unchanged.
        """

        def zeroed(numbers: Floats | None) -> Floats | None:
            return None if numbers is None else np.where(idle & ~np.isnan(numbers).T, 0.0, numbers.T).T

        per_seat = np.where(idle, 0.0, self.per_seat)
        kept = {row: parts for row, parts in self.by_row.items() if row not in rows}
        names = {name for parts in self.by_row.values() for name in parts}
        sums = {name: float(sum(parts.get(name, 0.0) for parts in kept.values())) for name in sorted(names)}
        if "value/sum" in self.metrics:
            sums["value/sum"] = float(per_seat.sum())
        return replace(
            self, per_seat=per_seat, standard_errors=zeroed(self.standard_errors),
            without_block=zeroed(self.without_block), metrics={**self.metrics, **sums}, by_row=kept,
        )  # fmt: skip

    @property
    def draw_errors(self) -> Floats | None:
        """The standard errors ``[S]`` due to the draw of the validation samples; None if they are not known."""
        return None if self.without_block is None else jackknife_errors(self.without_block)

    def by_client(self, view: View) -> tuple[Ints, Floats]:
        """Return the clients whose updates were valued, and what each was worth.

        Returns:
            The client ids ``[m]``, ascending, and their values ``[m]``: the sum over a client's seats.
        """
        clients, place = np.unique(view.trained.seats.client, return_inverse=True)
        return clients, np.bincount(place, weights=self.per_seat).astype(np.float64)


@dataclass(frozen=True)
class Unproved:
    """Tells later parts who has not proved that it trained (``[evidence] training``).

    Their updates are worth 0 at most, and their models are not for sale.

    Attributes:
        clients: their ids, ``[n]``.
        arrays: arrays by name that are recorded with the round, for an audit.
    """

    clients: Ints
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Pause:
    """A helper part's wish that the server of a network waits for its operator before the next round.

    Attributes:
        why: what the operator should see to.
    """

    why: str


@dataclass(frozen=True)
class Settlement:
    """SETTLE: who pays whom, and which rows are withheld from those who did not pay.

    Attributes:
        withheld: rows of the table that stay unchanged because their client did not pay. Only at the stage "close".
        transactions: the payments to post, in integers of the smallest unit.
        metrics: numbers by name that are recorded with the round.
        arrays: arrays by name that are recorded with the round, for replaying the settlement. No part reads them.
        found: values for parts that decide later.
    """

    withheld: frozenset[int] = frozenset()
    transactions: tuple[Transaction, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    found: tuple[Any, ...] = ()


@dataclass(frozen=True)
class OwnMix:
    """A personal model, which each client mixes locally. The server never sees the weights.

    Attributes:
        rows: ``[k]`` int64, the table rows that are mixed.
        share: on which of a client's own samples ("train", "validation" or "test") the models are tried: the better a
            model fits them, the larger its weight.
        normalised: whether the weights are divided by their sum.
    """

    rows: Ints
    share: str = "validation"
    normalised: bool = True


@dataclass(frozen=True)
class Deployment:
    """DEPLOY: which model each client holds after the round.

    Attributes:
        rows: ``[N]`` int64, the row of the new table that each client holds.
        weights: ``[N, K']``. If given, client c holds the personal model ``weights[c] @ M'`` instead. A client whose
            weights are all zero still holds its row.
        own_mix: if given, each client computes the weights of its personal model locally.
        metrics: numbers by name that are recorded with the round.
    """

    rows: Ints
    weights: Floats | None = None
    own_mix: OwnMix | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """What a part knows before round 0. It stays the same for the whole run.

    Attributes:
        num_clients: how many clients there can be, N. Their ids are 0..N-1.
        rounds: how many rounds the run has.
        seed: the run's seed, for streams.
        recipe: how clients train.
        layout: where each tensor of a model is in a row of the table.
        initial: ``initial(k)`` draws the k-th initial model, ``[P]`` float32. The same k gives the same model.
        slots: the parts of the mechanism by slot.
        sums: a function, given if the server sees only sums of updates (``[federation] secure``). It splits the clients
            that are asked to train into the groups that are summed, and returns each group's client ids. None: the
            server sees every update.
        members: the member of each client, by the client's key or name (``[clients] members``); read
            :attr:`View.members`.

    Examples:
        >>> from hanse.mechanisms.select import UCB
        >>> from hanse.runs.rehearsal import rehearse
        >>> context = rehearse("fedavg").context
        >>> context.num_clients, context.layout.size
        (4, 650)
        >>> state = UCB().init(context)
    """

    num_clients: int
    rounds: int
    seed: int
    recipe: Recipe
    layout: Layout
    initial: Callable[[int], Tensor]
    slots: Mapping[str, Part] = field(default_factory=dict)
    sums: Callable[[Ints, int], list[Ints]] | None = None
    members: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def tiny(num_clients: int = 3, rounds: int = 1) -> Context:
        """Return the context of a model with two parameters, in which parts show before a run what they do."""
        layout = Layout(("weight", "bias"), ((1, 1), (1,)), offsets=(0, 1, 2), num_parameters=2, size=2)
        return Context(num_clients, rounds, 0, Recipe(), layout, lambda number: torch.zeros(2))

    def standing(self, part: Part) -> frozenset[str]:
        """Return the slots that a part fills in this mechanism, so that it can skip questions for its other slots."""
        return frozenset(slot for slot, other in self.slots.items() if other is part)


@dataclass(frozen=True)
class View:
    """Everything known at this point of a round. Decisions appear as they are made.

    Read-only: a part that needs to change something changes a copy.

    Attributes:
        context: what stays the same over the run.
        round: the number of the round, from 0.
        stage: "open" before selection, "train" while clients train, "close" once the updates are here, "end" after the
            last round.
        roster: the present clients.
        table: the models before the round, ``[K, P]``.
        home: ``[N]`` int64, the row that each client starts from.
        judge: the server's held-out data, which scores models.
        answers: the answers so far, by client and name of the question.
        authorised: the most that each client agreed to pay this round, in the smallest unit.
        refusals: ``(client, reason)`` for everything refused so far.
        choice: SELECT's decision, once it is made; ``values``, ``settlement`` and ``deployment`` are the later
            decisions.
        seats: TRAIN's decision.
        updates: the accepted updates; read them as :attr:`trained`.
        uncounted: sound updates that do not count because fewer than ``federation.min_replies`` came. None: all count.
        mix: the proposed next table; read it as :attr:`mixed`.
        found: values that parts passed on, by type. Read them with :meth:`get`.
        book: the balances at this moment.
        posted: this round's transactions.

    Examples:
        The loop makes the views of a run. :func:`hanse.runs.rehearsal.rehearse` plays a small round of any mechanism
        and returns each part's view and state. Here ``view`` is that of the finished round, as ``learn`` gets it:

        >>> from hanse.runs.rehearsal import rehearse
        >>> small = rehearse("greedyfed")
        >>> part, view, state = small.before("value")
        >>> values, state = part.value(view, state)
        >>> state = part.learn(small.view, state)

        A view can also be built by hand. This one has three clients with 10 samples each, one shared model of two
        numbers, and no judge (which only the scoring of models needs).

        >>> import torch
        >>> from hanse.core.port import ClientInfo
        >>> from hanse.mechanisms.select import RoundRobin
        >>> from hanse.mechanisms.weigh import BySamples
        >>> layout = Layout.of(torch.nn.Linear(1, 1))
        >>> context = Context(3, rounds=10, seed=0, recipe=Recipe(), layout=layout, initial=lambda k: torch.zeros(2))
        >>> roster = Roster(ClientInfo(c, f"client {c}", key="", num_samples=10) for c in range(3))
        >>> table, home = Table.of(torch.zeros(1, 2)), np.zeros(3, np.int64)
        >>> view = View(context, 0, "open", roster, table, home, judge=None)
        >>> part = RoundRobin(clients_per_round=2)
        >>> choice, state = part.select(view, part.init(context))
        >>> len(choice.clients)
        2

        After training, the same view has updates, and the seats that train the shared row are a :class:`Group`:

        >>> seats = Seats.at([0, 1], [0, 0])
        >>> models = torch.tensor([[1.0, 2.0], [5.0, 6.0]])
        >>> updates = Updates(seats, models, num_samples=np.array([10.0, 30.0]), loss=np.zeros(2), steps=np.ones(2))
        >>> (group,) = replace(view, stage="close", seats=seats, updates=updates).groups()
        >>> BySamples().aggregate(group, {}).weights
        array([0.25, 0.75])
    """

    context: Context
    round: int
    stage: Stage
    roster: Roster
    table: Table
    home: Ints
    judge: Judge
    answers: Mapping[tuple[int, str], Answer] = field(default_factory=dict)
    authorised: Mapping[int, int] = field(default_factory=dict)
    refusals: tuple[tuple[int, str], ...] = ()
    choice: Choice | None = None
    seats: Seats | None = None
    updates: Updates | None = None
    uncounted: Updates | None = None
    mix: Mix | None = None
    values: Values | None = None
    settlement: Settlement | None = None
    deployment: Deployment | None = None
    found: Mapping[type, Any] = field(default_factory=dict)
    book: Book = field(default_factory=Book)
    posted: tuple[Transaction, ...] = ()

    def draw(self, purpose: str, *, client: int = -1, start: int = -1) -> np.random.Generator:
        """Return a random generator for one purpose in this round (see :func:`hanse.base.streams.stream`).

        Args:
            purpose: what the draw is for. In one round, the same arguments give the same numbers.
            client: the client, if each has its own draw.
            start: any further number that distinguishes draws.
        """
        return stream(self.context.seed, purpose, round=self.round, client=client, start=start)

    def get(self, kind: type[T]) -> T | None:
        """Return the latest value of this type that a part has passed on in this round, or None.

        Args:
            kind: the class, such as ``Aggregated``. Values are found by their exact class.
        """
        return self.found.get(kind)

    def at(self, block: str, clients: Ints | None = None) -> Ints:
        """Return the row numbers of a block, or of some clients in it (see :meth:`hanse.core.table.Table.at`)."""
        return self.table.at(block, clients)

    def groups(self) -> list[Group]:
        """Return the groups of accepted seats that train one of the server's rows, ascending by row.

        A client's own row and a private row belong to no group: each becomes its client's update.
        """
        by_row = self.trained.seats.groups()
        own = self.table.per_client(np.array(list(by_row), np.int64))
        return [Group(row, at, self) for (row, at), mine in zip(by_row.items(), own, strict=True) if not mine]

    @property
    def present(self) -> Ints:
        """The ids of the present clients, ``[n]`` int64, ascending."""
        return self.roster.ids

    @property
    def members(self) -> dict[int, str]:
        """The member of each present client, by the client's id.

        It is the one that ``[clients] members`` names (:meth:`hanse.core.port.ClientInfo.member`).
        """
        return {client.id: client.member(self.context.members) for client in self.roster}

    def said(self, client: int, question: str) -> Mapping[str, Any] | None:
        """Return what a client's policy answered to a question, or None if it gave no such answer.

        The values are plain (numbers, texts, lists, mappings) and untrusted: check them before use.
        """
        answer = self.answers.get((client, question))
        return answer.values if isinstance(answer, Answered) and isinstance(answer.values, Mapping) else None

    @property
    def leaving(self) -> Ints:
        """The clients ``[m]``, ascending, that have just announced that they leave."""
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

    @property
    def weights(self) -> Floats:
        """The weight of each update in the row that it trains, ``[S]``.

        NaN if the row is not a weighted sum, or if its rule is applied again to each coalition, with other weights.
        """
        target, told = self.trained.seats.target, self.get(Aggregated)
        unknown = [*self.mixed.made, *(() if told is None else told.again)]
        return np.where(np.isin(target, unknown), np.nan, self.mixed.W[target, np.arange(len(target))])


def by_slot(**names: Set[str]) -> Mapping[str, frozenset[str]]:
    """Declare different names for each slot of a part that fills several.

    Examples:
        >>> dict(by_slot(train={"centre"}, settle={"bids"}))
        {'train': frozenset({'centre'}), 'settle': frozenset({'bids'})}
    """
    return MappingProxyType({slot: frozenset(some) for slot, some in names.items()})


def in_slots(declared: Named, slots: Sequence[str]) -> frozenset[str]:
    """Return the names that a part declares for these slots. Names declared without a slot hold for all slots."""
    if isinstance(declared, Mapping):
        return frozenset().union(*(declared.get(slot, frozenset()) for slot in slots))
    return declared


def set_words(part: Part, **words: Named) -> None:
    """Give a part that is being made other ``needs`` or ``accepts`` than its class has, by its options.

    A part calls this for itself in its ``__post_init__``: it is frozen.
    """
    for name, declared in words.items():
        object.__setattr__(part, name, declared)


@dataclass(frozen=True)
class Size:
    """The size of a run, as known before round 0.

    Attributes:
        clients: how many clients there are.
        seats: how many of them train in a round, at most.
        updates: the fewest updates that a round may get. It is below ``seats`` if rounds may end early.
        rounds: how many rounds are planned.
        one_model: whether clients train one shared model, so that a round's updates are one group.
        members: of how many members the clients are, at most. 0: not said.
    """

    clients: int
    seats: int
    updates: int
    rounds: int
    one_model: bool = False
    members: int = 0


class Most(NamedTuple):
    """The most that a part asks one client in a round, by questions of one kind.

    Attributes:
        questions: how many questions.
        models: how many models they are about, together.
        share: on which share of a client's samples the models are tried.
        samples: on how many samples of it. None: on all.
    """

    questions: int = 1
    models: int = 0
    share: str = "train"
    samples: int | None = None


class Part(Protocol):
    """One decision of a mechanism, or several. Subclass it for the defaults: no needs, no state, no questions.

    Class attributes declare what a part requires and provides. A mechanism whose parts do not fit together is refused
    before round 0, with the reason. A part that fills several slots may declare any attribute by slot
    (:func:`by_slot`).

    Attributes:
        needs: what the part requires, such as "validation", "values" or "groups": words of the list that ``hanse list
            words`` prints (:mod:`hanse.mechanisms.fits`). Some concern training and clients. A part needs "penalty" if
            its seats have pulls or tilts, which a client's own training loop must add to the loss. It needs "sgd" if it
            relies on SGD's number of steps or on ``train.lr``, and "scores" if it asks clients what models are worth.
            It needs "rows NAME" if it reads rows of a block that the train part must lay out, and "new rows NAME" if a
            part must fill them anew in each round.
        gives: the needs of others that the part meets. (A value part gives "values" without saying so.)
        accepts: what the part can take beyond the usual. Of a value part: "reapply" (rules that are applied again to
            each coalition), "reweighted" (such rules, if they return weights) and "along" (rows whose
            :attr:`Aggregate.along` is known). Of any part: "late" (updates of earlier rounds), "sums" (a server that
            sees only sums over groups).
        fills: the blocks whose rows the part's ``weigh`` returns.

    Examples:
        The parts of a mechanism, with what a small round showed them and their states:

        >>> from hanse.runs.rehearsal import rehearse
        >>> small = rehearse("ipfl")
        >>> part, view, state = small.before("settle")
        >>> settlement, state = part.settle(view, state)
        >>> state = part.learn(small.view, state)
        >>> questions = part.asks(small.view, part.init(small.context))
    """

    needs: ClassVar[Named] = frozenset()
    gives: ClassVar[Named] = frozenset()
    accepts: ClassVar[Named] = frozenset()
    fills: ClassVar[Named] = frozenset()

    def init(self, context: Context) -> State:
        """Return the state before round 0, in a form that can be checkpointed: tensors, arrays, numbers and texts by
        name.
        """
        return {}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Return what to ask of clients at ``view.stage``. The default asks nothing.

        The loop merges the questions of all parts into one exchange per stage: "open" before selection, "train" with
        the training tasks, "close" once the updates are here. A part that settles is asked once more at "end", after
        the last round. To hand on values that were computed for its questions, the part returns :class:`Questions`.
        """
        return ()

    def questions(self, clients: int, rows: int) -> Mapping[str, Most]:
        """Return the most that :meth:`asks` asks one client in a round, by kind of question, such as "Score".

        Participants on a network agree to these numbers, and to the samples, before they join. What a part in the slot
        weigh or value asks is counted for each of the client's seats. A part in the slot deploy that lets clients mix
        models says so as "Mixture". The default is that nothing is asked.

        Args:
            clients: how many clients there may be.
            rows: how many rows of the model table are the server's.
        """
        return {}

    def learn(self, outcome: View, state: State) -> State:
        """Return the next state, from the finished round. The default changes nothing.

        Args:
            outcome: the finished round.
            state: the state after this round's decisions.
        """
        return state

    def unfit(self, size: Size) -> Sequence[str]:
        """Return a line for each option that does not suit a run of this size. The default returns none.

        A line begins with the key that a user would change. A line that begins with "warning: " is only printed; any
        other line means that the run is refused.
        """
        return ()

    def figures(self, state: State) -> Mapping[str, Floats]:
        """Return numbers per client by name, ``[N]`` each, to record with the seats.

        Args:
            state: the state after the round.
        """
        return {}

    def tells(self, slots: frozenset[str]) -> Telling:
        """Return the part's texts and charts for reports, statements and the live page. The default returns nothing.

        Args:
            slots: the slots that the part fills in this mechanism.
        """
        return Telling()


class SelectPart(Part, Protocol):
    """Decides who trains this round, and from which row."""

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the choice and the next state. A client may be chosen once for each start row."""


class TrainPart(Part, Protocol):
    """Declares the blocks of the model table, and turns the choice into seats with start rows, pulls and tilts.

    Attributes:
        adds: what its tasks may add to a client's loss, "pull", "tilt" or "payload", each with the name of the option
            that is its greatest strength, or "". On a network the members agree to it, and a node refuses other terms
            and stronger pulls: from some of them its data can be learnt. A class that overrides ``seats`` or ``sends``
            and does not say it may add all three.
    """

    adds: ClassVar[tuple[tuple[str, str], ...]] = (("pull", ""), ("tilt", ""), ("payload", ""))

    def blocks(self, context: Context) -> Sequence[Block]:
        """Return the table's blocks of rows, in order.

        Names and kinds may not depend on the context, since they decide before a run what fits what.
        """

    def home(self, table: Table, context: Context) -> Ints:
        """Return for each client the row of the initial ``table`` that it starts from, ``[N]``.

        By default this is a row of the first block: the client's own row if each client has one there, else the block's
        first row.
        """
        first = table.blocks[0]
        rows = table.at(first.name)
        return rows if first.per_client else np.full(context.num_clients, rows[0])

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Return this round's seats, made from ``view.choice``, and the next state."""

    def seats_each(self) -> int:
        """Return the most seats that one client has in a round. The default is 1."""
        return 1

    def sends(self, view: View, state: State) -> Payload | None:
        """Return the payload of this round's training tasks; None, the default, for nothing."""
        return None


class AggregatePart(Part, Protocol):
    """Fills the weigh slot: turns the updates of one group into the server row that they train."""

    def aggregate(self, group: Group, state: State) -> Aggregate:
        """Return the weights, or a row. Must be a pure function of the group and the state before the round."""


class WeighPart(Part, Protocol):
    """Returns the new rows of the blocks that it ``fills``; ``GROUPS`` there means the server rows that groups train.

    A part in another slot may also have a ``weigh``. It is called unless the part in the weigh slot fills the same
    blocks. Rows that nobody trains or fills stay unchanged. A row that only its own client trains becomes that client's
    update.
    """

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return the new rows, and the next state. Not called in a round without updates."""


class ValuePart(Part, Protocol):
    """Values each update. A part that ``accepts`` "reapply" and "along" can value any :class:`Aggregate`.

    Attributes:
        measured: what one of its values is called and means, in reports. None: reports call it "value".
    """

    measured: ClassVar[Measure | None] = None

    def tells(self, slots: frozenset[str]) -> Telling:
        """Return the telling with what a value is."""
        return Telling(measures=self.measured)

    def value(self, view: View, state: State) -> tuple[Values, State]:
        """Return one value per seat, and the next state. Not called in a round without updates."""

    def resolved(self, given: Mapping[str, Any], validation: bool) -> Mapping[str, Any] | None:
        """Return the table ``[mechanism.value]`` that says what the part leaves open until the data are known, or None.

        Args:
            given: that table, as the experiment has it.
            validation: whether the server has validation samples.
        """
        return None

    def judged_by(self) -> str:
        """Return a line on who judges contributions, or "" where nobody need be told."""
        return ""


@dataclass(frozen=True)
class PostedRound:
    """A round as an audit reads it from a run directory: its record, and what the payment rule posted.

    Attributes:
        number: the round. What was posted after the last round has the next number, and neither arrays nor metrics.
        arrays: the round's recorded arrays.
        metrics: the round's recorded numbers by name.
        posted: what the payment rule posted, in order.
        beside: what was posted in the round before that, such as grants.
        book: the balances before ``posted``.
        ended: whether this is what was posted after the last round.
        members: the member of each client that took part so far and has one (``[clients] members``), by the client's
            number, in the order in which they joined it.
    """

    number: int
    arrays: Mapping[str, NDArray[Any]]
    metrics: Mapping[str, Any]
    posted: tuple[Transaction, ...]
    beside: tuple[Transaction, ...]
    book: Book
    ended: bool = False
    members: Mapping[int, str] = field(default_factory=dict)


class SettlePart(Part, Protocol):
    """Decides who pays whom, and what is withheld from those who do not pay."""

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        """Return the transactions of ``view.stage``, and the next state.

        The loop calls it at "open" (questions are answered, nobody is selected yet), at "close" (the mix and the values
        are known, and rows can be withheld), and at "end" (after the last round).
        """

    def terms(self, joining: BeforeJoining) -> Terms | None:
        """Return what a client may pay and gain, to be shown before it joins. None, the default: not known."""
        return None

    def checks(self, rounds: Iterable[PostedRound], parts: Mapping[str, Any]) -> Iterator[Check]:
        """Yield whether what was posted has the properties that it must have, by the records of the rounds.

        An audit calls ``settle`` again with what it was shown, which cannot find a mistake of ``settle`` itself. These
        checks are to be independent of it. By default, there are none.

        Args:
            rounds: the rounds of a run in their order, which can be gone through once.
            parts: the mechanism's parts by slot, without those of the user's own that an audit may not import.
        """
        return iter(())

    def promises(self, rounds: Iterable[PostedRound], parts: Mapping[str, Any]) -> Iterator[Check | Fact]:
        """Yield whether the rule has kept what it promises beside right postings, such as that nobody loses.

        Args:
            rounds: the rounds of a run in their order, which can be gone through several times.
            parts: as for :meth:`checks`.
        """
        return iter(())


class DeployPart(Part, Protocol):
    """Decides which model each client holds after the round."""

    def deploy(self, view: View, state: State) -> tuple[Deployment, State]:
        """Return each client's row of the new table, and the next state."""


class Now(Protocol):
    """A round in progress, as helpers see it and move it on."""

    @property
    def view(self) -> View:
        """The round so far."""

    def ask(self, requests: Sequence[Request]) -> None:
        """Ask clients, at most one request each; the view then has their valid answers and the refusals."""

    def post(self, transactions: Iterable[Transaction]) -> None:
        """Post transactions. Raises LedgerError, with nothing posted."""

    def refuse(self, refused: Iterable[tuple[int, str]]) -> None:
        """Record why clients are refused, as ``(client, reason)``."""

    def count(self, roster: Roster) -> None:
        """Let the present clients count as this roster says from here on."""

    def hand_on(self, found: Iterable[Any]) -> None:
        """Let later parts find these values by their types (``view.get(Type)``)."""


class Helper(Part):
    """Runs alongside the parts of any mechanism, for what a setting asks of rounds: proofs, bonds, parts of grants.

    It asks and learns as a part does, and decides nothing that a part decides. Each method below is called once a round
    at the point that it names; override those that are needed. The others change nothing.
    """

    def gone(self, view: View, state: State) -> Ints:
        """Return the clients that have left and are not counted as present, at "open" and at "end"."""
        return np.zeros(0, np.int64)

    def before(self, now: Now, state: State) -> State:
        """Act before the parts ask anything, and return the next state."""
        return state

    def sent(self, requests: Sequence[Request], state: State) -> Sequence[Request]:
        """Return training requests as they are sent."""
        return requests

    def received(self, updates: Updates, state: State) -> Updates:
        """Return the valid updates as they count."""
        return updates

    def trained(self, now: Now, state: State) -> State:
        """Act once the updates are in, before the parts ask about them, and return the next state."""
        return state

    def ended(self, now: Now, state: State) -> State:
        """Act after the last settlement of the run, and return the next state."""
        return state


SLOT_NAMES = ("select", "train", "weigh", "value", "settle", "deploy")
_PROTOCOLS = (Part, SelectPart, TrainPart, AggregatePart, WeighPart, ValuePart, SettlePart, DeployPart)
CALLED = [name for kind in _PROTOCOLS for name, one in vars(kind).items() if name[0] != "_" and callable(one)]
"""The names of all methods of parts that are called."""


@dataclass(frozen=True)
class Mechanism:
    """A published system, or a new one: one part per slot. One part may fill several slots.

    Make a variant of a mechanism with ``dataclasses.replace``, for example with another ``weigh``.

    Attributes:
        name: the mechanism's name in records and reports.
        select: who trains.
        train: what the clients train.
        weigh: how updates become the next table.
        value: what updates were worth. None: nothing is valued.
        settle: who pays whom. None: nobody pays.
        deploy: which model each client holds. None: clients hold their home rows.

    Examples:
        >>> from hanse.mechanisms.deploy import ServerModel
        >>> from hanse.mechanisms.select import Uniform
        >>> from hanse.mechanisms.train import SharedModel
        >>> from hanse.mechanisms.weigh import BySamples
        >>> mine = Mechanism("mine", Uniform(clients_per_round=2), SharedModel(), BySamples(), deploy=ServerModel())
        >>> list(mine.slots())
        ['select', 'train', 'weigh', 'deploy']

        A published one with another part:

        >>> from hanse.mechanisms.baselines import fedavg
        >>> from hanse.mechanisms.value import GTG
        >>> list(replace(fedavg(), value=GTG()).slots())
        ['select', 'train', 'weigh', 'value', 'deploy']
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

    def most_seats(self, clients: int) -> int:
        """Return how many of ``clients`` are asked to train in a round, at most: all, if the select part names no
        number.
        """
        asked = getattr(self.select, "clients_per_round", clients)
        return min(asked, clients) if isinstance(asked, int) else clients

    def parts(self) -> dict[str, Part]:
        """Return each part once, by the first slot that it fills. That slot is also the key of its state."""
        return {slot: part for slot, part in self.slots().items() if self.key(slot) == slot}

    def standing(self, part: Part) -> list[str]:
        """Return the slots that a part fills, in the order of a round."""
        return [slot for slot, other in self.slots().items() if other is part]

    def key(self, slot: str) -> str:
        """Return the key under which the state of this slot's part is kept: the first slot that the part fills."""
        return self.standing(self.slots()[slot])[0]
