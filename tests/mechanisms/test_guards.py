"""What a part decides, declares or keeps is looked at before it is used, and the error names the part."""

import random
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from experiments import digits
from mistaken import mistakes
from rotation import rotating

import hanse
from hanse.base.errors import PartError, PartWarning
from hanse.core.entry import Transaction
from hanse.core.part import (
    Aggregate,
    AggregatePart,
    Choice,
    Deployment,
    DeployPart,
    Group,
    Mechanism,
    Named,
    SelectPart,
    Settlement,
    SettlePart,
    State,
    ValuePart,
    Values,
    View,
    Weighed,
    WeighPart,
)
from hanse.core.table import Block, Replace
from hanse.federation.behaviour import Behaviour
from hanse.mechanisms.baselines import fedavg
from hanse.mechanisms.registry import MECHANISMS, PARTS, build_mechanism
from hanse.mechanisms.select import Everyone
from hanse.mechanisms.train import SharedModel


@dataclass(frozen=True)
class Says:
    """A part that says, whatever it is asked, what a test gave it."""

    said: Callable[[Any], Any]
    after: Any = None


class Selects(Says, SelectPart):
    def select(self, view: View, state: State) -> Any:
        return self.said(view), state if self.after is None else self.after


class Averages(Says, AggregatePart):
    def aggregate(self, group: Group, state: State) -> Any:
        return self.said(group)


class Values_(Says, ValuePart):  # noqa: N801
    def value(self, view: View, state: State) -> Any:
        return self.said(view), state


class Settles(Says, SettlePart):
    def settle(self, view: View, state: State) -> Any:
        return self.said(view), state


class Deploys(Says, DeployPart):
    def deploy(self, view: View, state: State) -> Any:
        return self.said(view), state


class Remembers(Everyone):
    def select(self, view: View, state: State) -> Any:
        vars(self)["last"] = view.round
        return super().select(view, state)


class Collects(Everyone):
    def __init__(self, held: Any) -> None:
        self.held = held

    def select(self, view: View, state: State) -> Any:
        self.held[0] = len(view.present)
        return super().select(view, state)


def pays(account: str) -> Settlement:
    return Settlement(transactions=(Transaction("a", "pay", ((account, 1), ("pool/x", -1))),))


class Weighs(Says, WeighPart):
    fills: ClassVar[Named] = frozenset({"z"})

    def weigh(self, view: View, state: State) -> Any:
        return self.said(view), state


class WithZ(SharedModel):
    """As FedAvg, with a row "z" that somebody may fill."""

    def blocks(self, context: Any) -> Any:
        return Block("server"), Block("z", initial="zero")


@dataclass(frozen=True)
class Learns(SelectPart):
    learned: Any = None

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        return Choice(view.present), state

    def learn(self, outcome: View, state: State) -> Any:
        return self.learned


@dataclass(frozen=True)
class FillsServer(SharedModel, WeighPart):
    """Fills the row that the weigh slot's part averages."""

    gives: ClassVar[Named] = frozenset({"groups"})
    fills: ClassVar[Named] = frozenset({"server"})

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        return Weighed((Replace(view.at("server"), np.full((1, 3), 1 / 3)),)), state


class Figures(Learns):
    def learn(self, outcome: View, state: State) -> State:
        return state

    def figures(self, state: State) -> Any:
        return self.learned


def made(case: str) -> Mechanism:
    return CASES[case]


def of_case(case: str) -> hanse.Experiment:
    return digits({"name": f"{__name__}:made", "case": case}, 3, 2, data={"validation": 0.1})


def played(case: str) -> hanse.Run:
    return hanse.run(of_case(case))


BASE = replace(fedavg(3), select=Everyone())
WRONG: dict[str, tuple[Mechanism, str]] = {
    said: (replace(BASE, **{slot: part}), line)
    for said, slot, part, line in [
        ("NaN weights", "weigh", Averages(lambda g: Aggregate(np.full(len(g), np.nan))),
         "the weigh part Averages, round 0: its aggregate .*weights: has nan"),
        ("too many weights", "weigh", Averages(lambda g: Aggregate(np.ones(len(g) + 1))), r"weights: .*\[4\]"),
        ("no aggregate", "weigh", Averages(lambda g: np.ones(3)), "its aggregate returned ndarray"),
        ("a bare list", "select", Selects(lambda v: [0, 1]), "Selects, round 0: its select returned list"),
        ("a client twice", "select", Selects(lambda v: Choice(np.array([1, 1]))), "clients: client 1 "),
        ("an absent client", "select", Selects(lambda v: Choice(np.array([77]))), "clients: 77 "),
        ("floats", "select", Selects(lambda v: Choice(np.array([0.0]))), "clients: is float64"),
        ("another row", "select", Selects(lambda v: Choice(np.array([0]), np.array([5]))), "start: there is no row 5"),
        ("no state", "select", Selects(lambda v: Choice(v.present), 3), "its state is int"),
        ("a state of objects", "select", Selects(lambda v: Choice(v.present), {"f": print}), "state 'f'"),
        *(
            (f"a state that no checkpoint holds: {of}", "select",
             Selects(lambda v, of=of: Choice(v.present), {"f": of}), "its state 'f' is a[n]? (tensor|array) of")
            for of in (torch.ones(1, dtype=torch.cdouble), torch.eye(2).to_sparse(), np.ones(1, "c16"), np.array(["a"]))
        ),
        ("an array as metric", "select", Selects(lambda v: Choice(v.present, metrics={"m": np.ones(2)})), "'m'"),
        ("learn without return", "select", Learns(), "its learn returned the wrong state"),
        ("values of another length", "value", Values_(lambda v: Values(np.ones(2))), "returned Values: per_seat: "),
        ("one transaction", "settle", Settles(lambda v: Settlement(transactions="pay")), "transactions: is str"),  # type: ignore[arg-type]
        ("a row to withhold that there is not", "settle",
         Settles(lambda v: Settlement(frozenset({1} if v.stage == "close" else ()))), "withheld: 1 "),
        ("a metric of the loop's", "select", Selects(lambda v: Choice(v.present, metrics={"test/accuracy": 1.0})),
         "metrics: 'test/accuracy' is what the round's line"),
        ("a whole word of the loop's", "select", Selects(lambda v: Choice(v.present, metrics={"round": 7})), "'round'"),
        ("an infinite value", "value", Values_(lambda v: Values(np.full(3, np.inf))), "per_seat: has inf"),
        ("a negative error", "value", Values_(lambda v: Values(np.ones(3), -np.ones(3))), "standard_errors: has -1.0"),
        ("pay for nobody", "settle", Settles(lambda v: pays("client/3")), "client/3: there are only 3 clients"),
        *(
            (f"the loop's {n}", "settle", Settles(lambda v, n=n: Settlement(arrays={n: np.ones(1)})), f"'{n}' is")
            for n in ("W_row", "home", "value", "test_loss")
        ),
        ("keeps a number in itself", "select", Remembers(), "select part Remembers, round 0, changed its own 'last'"),
        ("models for too few", "deploy", Deploys(lambda v: Deployment(np.zeros(2, np.int64))), "Deployment: rows: "),
        ("a figure of the loop's", "select", Figures({"client": np.ones(3)}),
         "the select part Figures: its figures returned client: is recorded already"),
        ("figures of two", "select", Figures({"mine": np.ones(2)}), r"returned mine: is float64 of shape \[2\]"),
        ("two writers", "train", FillsServer(), "weigh replaced"),
    ]
} | {
    said: (replace(BASE, train=WithZ(), weigh=Weighs(lambda v, at=row: Weighed((Replace(at, np.ones((1, 3))),)))), line)
    for said, row, line in [
        ("a row that is not filled", np.array([0]), "replaced: row 0 "),
        ("a negative row", np.array([-1]), "replaced: rows: there is no row -1"),
    ]
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_a_part_does_wrong_is_said_with_its_name_and_round(name: str) -> None:
    with pytest.raises(PartError, match=WRONG[name][1]):
        played(name)


NOTED = {
    "writes into a choice": ("value", Values_(lambda v: v.choice.clients.fill(0)), "read-only"),
    "sorts the clients": ("select", Selects(lambda v: v.present.sort()), "read-only"),
    "writes into homes": ("select", Selects(lambda v: v.home.fill(0)), "read-only"),
    "pays more than there is": ("settle", Settles(lambda v: pays("client/1")), "transaction 'a': pool/x would hold -1"),
}


@pytest.mark.parametrize("name", NOTED)
def test_what_numpy_or_the_book_refuses_names_the_part(name: str) -> None:
    slot, part, said = NOTED[name]
    with pytest.raises(ValueError, match=said) as caught:
        played(name)
    assert caught.value.__notes__ == [f"raised by the {slot} part {type(part).__name__}, round 0"]


HARDLY_MEANT = dict.fromkeys(("draws", "draws later"), "the select part Selects drew from a global random generator")
HARDLY_MEANT |= {"weights": "do not sum to 1", "negative": "a weight is -1, which"}
HARDLY_MEANT |= dict.fromkeys(("list", "dictionary", "array"), "changed what its own 'held' holds: a resumed run")


@pytest.mark.parametrize("name", HARDLY_MEANT)
def test_what_is_hardly_meant_is_warned_of(name: str) -> None:
    with pytest.warns(PartWarning, match=HARDLY_MEANT[name]):
        played(name)


TWICE = {
    "same metric": "its deploy returned Deployment: metrics: 'x' is recorded already",
    "same figures": "FiguresToo: its figures returned x: is recorded already",
}


@pytest.mark.parametrize("case", TWICE)
def test_two_parts_do_not_record_one_thing(case: str) -> None:
    with pytest.raises(PartError, match=TWICE[case]):
        played(case)


def test_numbers_of_numpy_are_recorded_as_plain_ones(tmp_path: Path) -> None:
    for case, kind in (("counts", int), ("long", float)):
        line = hanse.run(of_case(case), out=tmp_path / case).metrics[0]
        assert (line["counted"], type(line["counted"])) == (3, kind)


class WritesState(Learns):
    def init(self, context: Any) -> State:
        return {"n": 0, "x": np.zeros(2)}

    def learn(self, outcome: View, state: Any) -> State:
        if self.learned == "array":
            state["x"][0] = 1.0
        else:
            state["n"] += 1
        return state


@pytest.mark.parametrize(("what", "said"), [("array", "read-only"), ("number", "support")])
def test_nobody_writes_into_a_state_in_place(what: str, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said) as caught:
        played(f"writes {what}")
    assert caught.value.__notes__ == ["raised by the select part WritesState, round 0"]


class Reversed(Learns):
    def init(self, context: Any) -> State:
        return {"order": np.arange(3)[::-1]}

    def learn(self, outcome: View, state: State) -> State:
        return {"order": state["order"][::-1]}


def test_an_array_that_was_reversed_goes_into_a_checkpoint(tmp_path: Path) -> None:
    hanse.run(of_case("reversed"), out=tmp_path / "run")
    assert len(hanse.resume(tmp_path / "run").metrics) == 2


class FiguresToo(Deploys):
    def deploy(self, view: View, state: State) -> Any:
        return Deployment(view.home), state

    def figures(self, state: State) -> Any:
        return {"x": np.ones(3)}


def test_a_class_that_is_no_part_is_refused() -> None:
    with pytest.raises(hanse.UserError, match=r"mechanism.select: object: is no part: .*hanse.core.part.SelectPart"):
        played("no part")


def declared(**said: Any) -> Mechanism:
    """A mechanism with a train part that declares this."""
    return replace(BASE, train=type("Declares", (SharedModel,), said)())


DECLARED: Any = {
    f"declares {next(iter(said))} {number}": (said, line)
    for number, (said, line) in enumerate([
        ({"needs": "values"}, "mechanism.train: Declares: needs: 'values': must be a set of names"),
        ({"gives": {"trian": frozenset({"groups"})}}, "gives: there is no slot 'trian'; did you mean 'train'?"),
        ({"fills": frozenset({"server"})}, "fills: needs a method 'weigh' that makes these rows"),
        ({"needs": frozenset({"valeus"})}, "needs 'valeus', which nothing gives; did you mean 'values'?"),
        ({"lern": lambda self, outcome, state: state}, "its method 'lern' is never called: did you mean 'learn'?"),
        ({"promise": lambda self: ()}, "its method 'promise' is never called: did you mean 'promises'?"),
        ({"blocks": lambda self, context: (Block("server", initial="zeros"),)}, "initial: 'zeros': must be"),  # type: ignore[arg-type]
        ({"blocks": lambda self, context: (Block("server", -2),)},
         "count: -2: must be a number from 1 on, or PER_CLIENT"),
    ])
}  # fmt: skip


@pytest.mark.parametrize("case", DECLARED)
def test_what_a_part_says_of_itself_is_looked_at_before_round_0(case: str) -> None:
    assert any(DECLARED[case][1] in one for one in mistakes(played, case))


def test_rows_to_fill_must_be_there() -> None:
    with pytest.raises(hanse.UserError, match=r"mechanism[.]weigh: Weighs needs rows 'z'"):
        played("no rows to fill")


def counting(kind: type) -> Mechanism:
    return replace(BASE, select=Selects(lambda v: Choice(v.present, metrics={"counted": kind(len(v.present))})))


# every mechanism that is played here: its name is an option of the experiment
CASES: dict[str, Mechanism] = {
    **{name: mechanism for name, (mechanism, _) in WRONG.items()},
    **{name: replace(BASE, **{slot: part}) for name, (slot, part, _) in NOTED.items()},
    **{name: declared(**said) for name, (said, _) in DECLARED.items()},
    "writes array": replace(BASE, select=WritesState("array")),
    "writes number": replace(BASE, select=WritesState("number")),
    "reversed": replace(BASE, select=Reversed()),
    "counts": counting(np.int64),
    "long": counting(np.longdouble),
    "list": replace(BASE, select=Collects([0])),
    "dictionary": replace(BASE, select=Collects({})),
    "array": replace(BASE, select=Collects(np.zeros(1))),
    "same metric": replace(
        BASE,
        select=Selects(lambda v: Choice(v.present, metrics={"x": 1})),
        deploy=Deploys(lambda v: Deployment(v.home, metrics={"x": 2})),
    ),
    "draws": replace(BASE, select=Selects(lambda v: Choice(np.random.permutation(v.present)))),  # noqa: NPY002
    "draws later": replace(BASE, select=Selects(lambda v: Choice(v.present[: v.round and random.randint(1, 3)]))),
    "weights": replace(BASE, weigh=Averages(lambda g: Aggregate(np.ones(len(g))))),
    "negative": replace(BASE, weigh=Averages(lambda g: Aggregate(np.linspace(-1, 1 + 2 / len(g), len(g))))),
    "same figures": replace(BASE, select=Figures({"x": np.ones(3)}), deploy=FiguresToo(print)),
    "no part": replace(BASE, select=object()),
    "no rows to fill": replace(BASE, weigh=Weighs(lambda v: Weighed())),
}


class SaysNothing(Behaviour):
    def on_reply(self, me: Any, round: int, request: Any, reply: Any) -> Any:
        return None


class Raises(Behaviour):
    def on_request(self, me: Any, round: int, request: Any) -> Any:
        raise ZeroDivisionError("boom")


class WritesIntoTheStart(Behaviour):
    def on_reply(self, me: Any, round: int, request: Any, reply: Any) -> Any:
        request.tasks[0].start.zero_()
        return reply


class Blank(Behaviour):
    def sees(self, me: Any, round: int, targets: Any) -> Any:
        return targets[:0]


class Sulks:
    def offer(self, me: Any, round: int, told: Any) -> Any:
        raise ZeroDivisionError("boom")


def test_what_a_policy_raises_names_it() -> None:
    experiment = hanse.Experiment(mechanism="ipfl_posted", clients={"policy": f"{__name__}:Sulks"}, run={"rounds": 1})
    with pytest.raises(ZeroDivisionError) as caught:
        hanse.run(experiment)
    assert caught.value.__notes__ == ["raised by the policy Sulks, in its offer"]


BLAMED = {"SaysNothing": "on_reply", "Raises": "on_request", "WritesIntoTheStart": "on_reply", "Blank": "sees"}


@pytest.mark.parametrize(("name", "method"), BLAMED.items())
def test_what_a_behaviour_raises_names_it(name: str, method: str) -> None:
    with pytest.raises((TypeError, ZeroDivisionError, ValueError)) as caught:
        hanse.run(digits("fedavg", 3, 1, behaviour={f"{__name__}:{name}": {}}))
    assert caught.value.__notes__ == [f"raised by the behaviour {name}, in its {method}"]


@pytest.mark.parametrize(
    ("table", "slot", "kind"),
    [
        ({"name": "ipfl", "select": "everyone", "weigh": {"lam": 1.0}}, "select", "Everyone"),
        ({"name": "ipfl", "select": "uniform", "settle": {"name": "ipfl"}}, "select", "Uniform"),
        ({"name": "ifca", "train": "shared", "deploy": "server"}, "train", "SharedModel"),
        ({"name": "scaffold", "weigh": "gtflat", "train": {"global_lr": 0.5}}, "weigh", "GTFLAT"),
    ],
)
def test_a_slot_that_is_given_to_another_part_stays_with_it(table: dict[str, Any], slot: str, kind: str) -> None:
    assert type(build_mechanism(table).slots()[slot]).__name__ == kind


def same(a: Mechanism, b: Mechanism) -> bool:
    return a.name == b.name and all(x == y for x, y in zip(a.slots().values(), b.slots().values(), strict=True))


@pytest.mark.parametrize("name", rotating(list(MECHANISMS), 6))
def test_what_a_run_writes_reads_as_the_same_mechanism(name: str) -> None:
    for slot in PARTS:
        for part in PARTS[slot]:
            experiment = hanse.Experiment(mechanism={"name": name, slot: part})
            again = hanse.Experiment(**tomllib.loads(experiment.to_toml()))
            assert same(experiment.mechanism.built, again.mechanism.built), (name, slot, part)
