"""How a round's mix is put together: four steps in a fixed order, by rows' names, with values worked out by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from hanse.base.errors import PartError
from hanse.core.calling import proposed_mix, writers
from hanse.core.part import (
    FINISHED,
    GROUPS,
    Aggregate,
    AggregatePart,
    Context,
    Group,
    Mechanism,
    Named,
    State,
    TrainPart,
    View,
    Weighed,
    WeighPart,
)
from hanse.core.port import Roster
from hanse.core.recipe import Recipe
from hanse.core.table import PER_CLIENT, Add, Block, Ints, Made, Mix, Replace, Seats, Table, Updates
from hanse.learning.models import build_problem
from hanse.mechanisms.fits import unmet_needs
from hanse.mechanisms.registry import PARTS
from hanse.mechanisms.select import Everyone
from hanse.mechanisms.train import SharedModel
from hanse.mechanisms.weigh import BySamples, UniformWeights

N = 2
PROBLEM, INITIAL = build_problem("logistic", (2,), 3, 0)
P = PROBLEM.layout.size
STATES: Mapping[str, State] = {"select": {}, "train": {"asked": 0}, "weigh": {"asked": 0}}
SEATS, ROWS = 4, 6  # updates, and rows of the table: server 0 and 1, own 2 and 3, control 4, extra 5


@dataclass(frozen=True)
class Lays(TrainPart):
    """Four blocks, of which it fills "control" itself, with half of both shared updates."""

    fills: ClassVar[Named] = frozenset({"control"})

    def blocks(self, context: Context) -> Sequence[Block]:
        return (
            Block("server", 2),
            Block("own", PER_CLIENT, private=True),
            Block("control", initial="zero"),
            Block("extra"),
        )

    def home(self, table: Table, context: Context) -> Ints:
        return np.zeros(N, np.int64)

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        raise NotImplementedError

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        half = Replace(view.at("control"), np.array([[0.5, 0.5, 0, 0]]))
        return Weighed((half,), metrics={"train": 1.0}, found=("train",)), {"asked": state["asked"] + 1}


@dataclass(frozen=True)
class LaysAndFillsMore(Lays):
    """As it, and "extra" becomes the first update; it has a word for the homes, too."""

    fills: ClassVar[Named] = frozenset({"control", "extra"})

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        said, after = super().weigh(view, state)
        first = Replace(view.at("extra"), np.array([[1.0, 0, 0, 0]]))
        return replace(said, replaced=(*said.replaced, first), home=np.array([5, 5])), after


@dataclass(frozen=True)
class Fills(WeighPart):
    """In the weigh slot: row ``rows[r]`` becomes the last update, and nothing is said of others."""

    fills: ClassVar[Named] = frozenset({"control"})
    rows: tuple[int, ...] = (4,)
    home: Any = None

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        last = np.tile([0, 0, 0, 1.0], (len(self.rows), 1))
        said = Weighed((Replace(np.array(self.rows), last),), metrics={"weigh": 2.0}, found=(2,), home=self.home)
        return said, {"asked": state["asked"] + 10}


@dataclass(frozen=True)
class FillsGroups(Fills):
    fills: ClassVar[Named] = frozenset({GROUPS})


@dataclass(frozen=True)
class FillsBoth(Fills):
    fills: ClassVar[Named] = frozenset({"control", GROUPS})


@dataclass(frozen=True)
class AveragesAndFills(BySamples, Fills):
    """Aggregates the groups, and fills "own" over what clients trained."""

    fills: ClassVar[Named] = frozenset({"own"})
    rows: tuple[int, ...] = (2,)


@dataclass(frozen=True)
class Says(AggregatePart):
    """Returns what it is given as the aggregate of every group."""

    said: Any = field(default=None, compare=False)

    def aggregate(self, group: Group, state: State) -> Aggregate:
        return self.said(group) if callable(self.said) else self.said


def view_of(target: Sequence[int] = (0, 0, 2, 3)) -> View:
    """Clients 0 and 1 train the shared row 0, then each its own row; they have 1 and 3 samples."""
    context = Context(N, 10, 0, Recipe(), PROBLEM.layout, lambda k: INITIAL + k)
    table = Table.laid_out(Lays().blocks(context), N, context.initial)
    seats = Seats.at(np.array([0, 1, 0, 1]), np.array(target))
    rows = torch.arange(4.0)[:, None].repeat(1, P)
    samples = np.array([1.0, 3.0, 1.0, 3.0])
    updates = Updates(seats, rows, samples, np.array([0.1, 0.2, 0.3, 0.4]), np.ones(4, np.int64))
    judge: Any = None
    return View(context, 3, "close", Roster(()), table, np.zeros(N, np.int64), judge, updates=updates)


def mechanism(weigh: Any, train: Any = None) -> Mechanism:
    return Mechanism("mixed", Everyone(), train or Lays(), weigh)


def mixed(weigh: Any, train: Any = None, view: View | None = None) -> tuple[Mix, Sequence[Any], Mapping[str, State]]:
    return proposed_mix(mechanism(weigh, train), view or view_of(), STATES)


def kept(row: int) -> list[float]:
    """The weights of a row that keeps itself."""
    return np.eye(ROWS, SEATS + ROWS, SEATS)[row].tolist()


def of(*updates: float) -> list[float]:
    """The weights of a row that is made of updates alone."""
    return [*updates, *[0.0] * ROWS]


def test_rows_are_kept_trained_aggregated_and_filled() -> None:
    mix, found, states = mixed(BySamples())
    assert mix.W.tolist() == [
        of(0.25, 0.75, 0, 0),  # 3: the group's aggregate, by 1 and 3 samples
        kept(1),  # 1: nobody trains it
        of(0, 0, 1, 0),  # 2: its own client's update
        of(0, 0, 0, 1),
        of(0.5, 0.5, 0, 0),  # 4: who declared the block
        kept(5),
    ]
    assert mix.owner.tolist() == [-1, -1, 0, 1, -1, -1]
    assert mix.home.tolist() == [0, 0]
    assert mix.metrics == {"train": 1.0}
    assert list(found[1:]) == ["train"]  # beside what was said of the group
    assert states == {"select": {}, "train": {"asked": 1}, "weigh": {"asked": 0}}


def test_every_group_has_an_aggregate_of_its_own() -> None:
    mix, _, _ = mixed(UniformWeights(), view=view_of((1, 0, 1, 0)))
    assert mix.W[:2].tolist() == [of(0, 0.5, 0, 0.5), of(0.5, 0, 0.5, 0)]
    assert mix.W[2:4].tolist() == [kept(2), kept(3)]


def test_a_group_is_what_its_seats_sent_and_where_they_started() -> None:
    [group] = view_of().groups()
    assert (group.row, group.at.tolist(), len(group)) == (0, [0, 1], 2)
    assert group.updates[:, 0].tolist() == [0.0, 1.0]
    assert group.parameters.shape == (2, PROBLEM.layout.num_parameters)
    assert (group.num_samples.tolist(), group.loss.tolist()) == ([1.0, 3.0], [0.1, 0.2])
    assert torch.equal(group.old, INITIAL)
    assert torch.equal(group.start, INITIAL.repeat(2, 1))
    [whole] = view_of((1, 1, 1, 1)).groups()
    assert whole.updates.data_ptr() == whole.view.trained.rows.data_ptr()  # no copy


def test_an_aggregate_may_keep_some_of_the_old_row() -> None:
    mix, _, _ = mixed(Says(Aggregate(np.array([0.25, 0.25]), old=0.5)))
    assert mix.W[0].tolist() == [0.25, 0.25, 0, 0, 0.5, 0, 0, 0, 0, 0]


def test_metrics_of_aggregates_are_means_over_the_groups_that_have_some() -> None:
    def said(group: Group) -> Aggregate:
        metrics = {} if group.row == 1 else {"size": float(len(group)), "row": float(group.row)}
        return Aggregate(np.ones(len(group)), metrics=metrics)

    assert mixed(Says(said), view=view_of((0, 0, 5, 0)))[0].metrics == {"size": 2.0, "row": 2.5, "train": 1.0}
    assert mixed(Says(said), view=view_of((1, 1, 1, 0)))[0].metrics == {"size": 1.0, "row": 0.0, "train": 1.0}
    assert mixed(Says(said), view=view_of((1, 1, 1, 1)))[0].metrics == {"train": 1.0}


def test_the_part_in_the_weigh_slot_replaces_the_declarer_of_a_block_that_it_fills() -> None:
    weigh = FillsBoth(rows=(4, 0))  # it answers for the group, too
    assert list(writers(mechanism(weigh))) == ["weigh"]
    mix, found, states = mixed(weigh)
    assert mix.W[4].tolist() == of(0, 0, 0, 1)
    assert mix.metrics == {"weigh": 2.0}
    assert list(found) == [2]
    assert states["train"] == {"asked": 0}  # it was not called
    assert states["weigh"] == {"asked": 10}


def test_of_a_block_that_both_fill_the_part_in_the_weigh_slot_is_the_writer() -> None:
    weigh = FillsBoth(rows=(4, 0), home=np.array([1, 1]))
    assert list(writers(mechanism(weigh, LaysAndFillsMore()))) == ["weigh", "train"]
    mix, found, states = mixed(weigh, LaysAndFillsMore())
    assert mix.W[4].tolist() == of(0, 0, 0, 1)
    assert mix.W[5].tolist() == of(1, 0, 0, 0)  # nobody else fills it
    assert mix.home.tolist() == [1, 1]
    assert mix.metrics == {"weigh": 2.0, "train": 1.0}
    assert list(found) == [2, "train"]
    assert (states["train"], states["weigh"]) == ({"asked": 1}, {"asked": 10})
    assert mixed(FillsBoth(rows=(0,)), LaysAndFillsMore())[0].home.tolist() == [5, 5]


def test_what_fills_has_the_word_after_what_clients_trained() -> None:
    mix, _, _ = mixed(AveragesAndFills())
    assert mix.W.tolist() == [
        of(0.25, 0.75, 0, 0), kept(1), of(0, 0, 0, 1), of(0, 0, 0, 1), of(0.5, 0.5, 0, 0), kept(5)
    ]  # fmt: skip


def test_a_part_may_say_itself_what_becomes_of_groups_beside_the_declarer_of_other_blocks() -> None:
    mix, found, states = mixed(FillsGroups(rows=(0,)))
    assert mix.W[0].tolist() == of(0, 0, 0, 1)
    assert mix.W[4].tolist() == of(0.5, 0.5, 0, 0)
    assert list(found) == [2, "train"]
    assert (states["train"], states["weigh"]) == ({"asked": 1}, {"asked": 10})


def test_rows_are_added_with_the_name_of_their_block() -> None:
    @dataclass(frozen=True)
    class Grows(WeighPart):
        fills: ClassVar[Named] = frozenset({GROUPS})

        def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
            new = Add("server", np.array([0, 1.0, 0, 0]), np.zeros(ROWS))
            keep = Replace(np.array([0]), np.array([[1.0, 0, 0, 0]]))
            return Weighed((keep,), (new,), np.array([0, ROWS])), state

    mix, _, _ = mixed(Grows())
    assert mix.W.shape == (ROWS + 1, SEATS + ROWS)
    assert mix.W[[0, ROWS]].tolist() == [of(1, 0, 0, 0), of(0, 1, 0, 0)]
    assert (mix.block.tolist(), mix.home.tolist()) == ([0, 0, 1, 1, 2, 3, 0], [0, ROWS])


def test_a_group_of_which_nobody_says_what_becomes_is_an_error() -> None:
    with pytest.raises(PartError) as lost:
        mixed(Fills())
    assert str(lost.value) == (
        "the weigh part Fills has no aggregate, and its weigh says nothing of row 0 that 2 seats trained"
    )
    mixed(Fills(), view=view_of((2, 3, 2, 3)))  # where nobody trains a group there is nothing to say


@dataclass(frozen=True)
class Finishes(WeighPart):
    """Finishes the group's row and "control" itself: the groups' row is the first update's negative."""

    gives: ClassVar[Named] = frozenset({FINISHED})
    fills: ClassVar[Named] = frozenset({"control", GROUPS})
    rows: tuple[int, ...] = (0, 4)
    wide: int = P

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        row = -torch.ones(self.wide) - view.trained.rows[0, 0]
        return Weighed(finished={row_: Made(row, np.array([0])) for row_ in self.rows}), state


class Undeclared(Finishes):
    gives: ClassVar[Named] = frozenset()


def test_a_part_finishes_rows_that_are_no_weighted_sum() -> None:
    view = view_of()
    mix, _, _ = mixed(Finishes(), view=view)
    rows = mix.rows(view.trained.rows, view.table.rows)
    assert (sorted(mix.made), mix.W[[0, 4]].any()) == ([0, 4], False)
    assert rows[[0, 4]].tolist() == [[-1.0] * P] * 2
    assert mix.makers(view.table, [0]).tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    ("weigh", "named"),
    [(Finishes((2,)), "row 2 "), (Finishes((9,)), "no row 9"), (Finishes(wide=1), "[1]"), (Undeclared(), "row 0")],
)
def test_unsound_finished_rows_are_refused(weigh: Any, named: str) -> None:
    with pytest.raises(PartError) as wrong:
        mixed(weigh)
    assert named in str(wrong.value)


def test_values_do_not_fit_rows_of_groups_that_are_finished() -> None:
    lacks = unmet_needs(replace(mechanism(Finishes(), SharedModel()), value=PARTS["value"]["exact"]()), ())
    assert "value" in {lack.slot for lack in lacks if "Finishes" in lack.reason}
    assert not [lack for lack in unmet_needs(mechanism(Finishes(), SharedModel()), ()) if "Finishes" in lack.reason]
