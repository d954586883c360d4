"""One part in several slots, the names that parts had before, and parts that cannot stand where they are put."""

import sys
import tomllib
from dataclasses import dataclass
from typing import Any

import pytest

import hanse
from hanse.base.errors import UserError
from hanse.core.part import (
    Aggregate,
    AggregatePart,
    Group,
    Mechanism,
    SelectPart,
    State,
    TrainPart,
    View,
    in_slots,
)
from hanse.mechanisms.fedfomo import FedFomo
from hanse.mechanisms.fedsoft import FedSoft
from hanse.mechanisms.fits import Unmet, unmet_needs
from hanse.mechanisms.ipfl import IPFL
from hanse.mechanisms.registry import MECHANISMS, build_mechanism
from hanse.mechanisms.scaffold import Scaffold
from hanse.mechanisms.weigh import BySamples
from hanse.runs.setup import build, settle_engine


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "of_the_user", sys.modules[__name__])


def scaffold(**slots: Any) -> Mechanism:
    return build_mechanism({"name": "scaffold", **slots})


def refused(**table: Any) -> list[str]:
    with pytest.raises(UserError) as wrong:
        build_mechanism(table)
    return list(wrong.value.lines)


def test_a_part_in_several_slots_is_there_once_by_its_first_slot() -> None:
    market = MECHANISMS["ipfl"]()
    assert list(market.slots()) == ["select", "train", "weigh", "settle", "deploy"]
    assert list(market.parts()) == ["select", "deploy"]
    assert market.standing(market.settle) == ["select", "train", "weigh", "settle"]
    one = scaffold()
    assert list(one.parts()) == ["select", "train", "deploy"]
    assert (one.standing(one.weigh), one.standing(one.deploy)) == (["train", "weigh"], ["deploy"])
    # equal parts that are two objects are two parts
    two = Mechanism("two", one.select, Scaffold(), Scaffold())
    assert list(two.parts()) == ["select", "train", "weigh"]


@pytest.mark.parametrize(
    "slots",
    [
        {"train": {"global_lr": 0.5}},
        {"weigh": {"global_lr": 0.5}},
        {"train": {"global_lr": 0.5}, "weigh": {"global_lr": 0.5}},
        {"train": {"name": "scaffold", "global_lr": 0.5}},
        {"train": "scaffold", "weigh": {"name": "scaffold", "global_lr": 0.5}},
        {"train": {"name": "scaffold", "global_lr": 0.5}, "weigh": "scaffold"},
        {"global_lr": 0.5},
    ],
)
def test_options_under_any_slot_are_those_of_the_one_part(slots: dict[str, Any]) -> None:
    found = scaffold(**slots)
    assert found.train == Scaffold(0.5)
    assert found.train is found.weigh


def test_options_without_a_name_reach_every_slot_of_their_part() -> None:
    found = build_mechanism({"name": "ipfl", "lam": 3.0, "settle": {"pricing": "critical"}, "train": {"mu": 0.25}})
    assert found.settle == IPFL(lam=3.0, pricing="critical", mu=0.25)
    assert found.select is found.train is found.weigh is found.settle


def test_a_part_that_is_named_under_two_slots_of_another_mechanism_is_one() -> None:
    found = build_mechanism(
        {"name": "fedavg", "clients_per_round": 3, "train": {"name": "fedsoft", "clusters": 3}, "weigh": "fedsoft"}
    )
    assert found.train == FedSoft(clusters=3)
    assert found.train is found.weigh
    assert found.name == "fedavg"


@dataclass(frozen=True)
class Twice(SelectPart):
    """A part of the user's own, for two slots."""

    fee: float = 1.0

    def select(self, view: View, state: State) -> Any:
        raise NotImplementedError

    def settle(self, view: View, state: State) -> Any:
        raise NotImplementedError


def test_a_part_by_its_import_path_is_one_in_two_slots_and_another_one_is_not() -> None:
    named = {"name": "of_the_user:Twice", "fee": 2.0}
    found = build_mechanism({"name": "fedavg", "select": "of_the_user:Twice", "settle": named})
    assert found.select == Twice(2.0)
    assert found.select is found.settle
    assert found.standing(found.select) == ["select", "settle"]


def test_in_one_slot_alone_it_stands_there_alone() -> None:
    found = scaffold(weigh="samples")
    assert found.weigh == BySamples()
    assert found.standing(found.train) == ["train"]


def test_different_options_of_one_part_name_both_places() -> None:
    assert refused(name="scaffold", train={"global_lr": 0.5}, weigh={"global_lr": 0.7}) == [
        "mechanism.weigh.global_lr: 0.7: is 0.5 in mechanism.train, and both are one part: must be the same, or given "
        "once"
    ]
    named = {"train": {"name": "fedsoft", "clusters": 3}, "weigh": {"name": "fedsoft", "clusters": 2}}
    [line] = refused(name="fedavg", **named)
    assert line.startswith("mechanism.weigh.clusters: 2: is 3 in mechanism.train")


def test_a_wrong_option_is_told_under_the_slot_that_has_it() -> None:
    assert refused(name="scaffold", train={"global_lr": -1.0}) == [
        "mechanism.train.global_lr: -1.0: input should be greater than 0"
    ]
    assert refused(name="scaffold", weigh={"global_rl": 1.0}) == [
        "mechanism.weigh.global_rl: no such key; did you mean 'global_lr'?"
    ]


# ---- experiment files as they are written out


def test_options_may_stand_under_each_slot_of_a_part() -> None:
    before = build_mechanism(
        {
            "name": "ipfl",
            "select": {"name": "ipfl"},
            "train": {"name": "ipfl", "mu": 0.4, "keep_best": False},
            "weigh": {"name": "ipfl", "lam": 2.0, "eta": 5.0, "of": "updates"},
            "settle": {"name": "ipfl", "pricing": "critical"},
        }
    )
    assert before.weigh == IPFL(mu=0.4, keep_best=False, of="updates", pricing="critical")
    assert before.standing(before.weigh) == ["select", "train", "weigh", "settle"]
    exchanged = build_mechanism(
        {"name": "fedfomo", "train": {"name": "fedfomo"}, "weigh": {"name": "fedfomo", "models": 2}}
    )
    assert exchanged.train == FedFomo(models=2)
    assert exchanged.train is exchanged.weigh
    varied = build_mechanism({"name": "fedavg", "train": "scaffold", "weigh": {"name": "scaffold", "global_lr": 0.5}})
    assert varied.train == Scaffold(0.5)


# ---- who cannot stand where it is put


@dataclass(frozen=True)
class Chooses(SelectPart):
    """A selector that forgot to choose."""


@dataclass(frozen=True)
class LaysOut(TrainPart):
    """A train part without seats."""

    def blocks(self) -> Any:
        return ()

    def home(self, table: Any, context: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Averages(AggregatePart):
    def aggregate(self, group: Group, state: State) -> Aggregate:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("slot", "name", "line"),
    [
        ("select", "Chooses", "Chooses has no method 'select', so it cannot stand here"),
        ("train", "LaysOut", "LaysOut has no method 'seats', so it cannot stand here"),
        ("weigh", "Chooses", "Chooses has no method 'aggregate' nor 'weigh', so it cannot stand here"),
        ("value", "Averages", "Averages has no method 'value', so it cannot stand here"),
        ("settle", "Averages", "Averages has no method 'settle', so it cannot stand here"),
        ("deploy", "Averages", "Averages has no method 'deploy', so it cannot stand here"),
    ],
)
def test_a_part_without_the_method_of_its_slot_is_refused(slot: str, name: str, line: str) -> None:
    assert refused(name="fedavg", **{slot: f"of_the_user:{name}"}) == [f"mechanism.{slot}: {line}"]


def test_one_of_both_methods_is_enough_to_weigh() -> None:
    assert build_mechanism({"name": "fedavg", "weigh": "of_the_user:Averages"}).weigh == Averages()


# ---- what a part needs of the others, by the slot that it stands in


def test_names_by_slot_concern_a_part_where_it_stands() -> None:
    declared = {"train": frozenset({"a"}), "weigh": frozenset({"a", "b"}), "settle": frozenset({"c"})}
    assert in_slots(declared, ["train", "weigh"]) == {"a", "b"}
    assert in_slots(declared, ["deploy"]) == frozenset()
    assert in_slots(declared, []) == frozenset()
    assert in_slots(frozenset({"d"}), []) == {"d"}


CLIENTS = frozenset({"clients"})


@pytest.mark.parametrize(
    ("table", "lacks"),
    [
        ({"name": "scaffold"}, []),
        ({"name": "scaffold", "weigh": "gtflat"}, []),  # it still fills its variates
        ({"name": "scaffold", "train": "shared"}, []),  # it averages, and there are no variates to fill
        ({"name": "ditto", "weigh": "scaffold"}, []),
        (
            {"name": "fedamp", "weigh": "samples"},
            [
                Unmet(
                    "train",
                    "'towards_centres'",
                    "rows 'centre' that are made anew (mechanism.weigh = 'fedamp' or 'heur_fedamp' or 'pfedgraph' or "
                    "'ipfl')",
                )
            ],
        ),
        (
            {"name": "fedavg", "weigh": "fedsoft"},
            [
                Unmet("weigh", "'fedsoft'", "rows 'cluster' (mechanism.train = 'ifca' or 'fedsoft')"),
                Unmet(
                    "weigh",
                    "'fedsoft'",
                    "rows 'model' (mechanism.train = 'towards_centres' or 'fedfomo' or 'fedsoft' or 'ipfl')",
                ),
            ],
        ),
        (
            {"name": "fedavg", "deploy": "own"},
            [Unmet("deploy", "'own'", "rows 'own' (mechanism.train = 'own' or 'ditto' or 'from_centres')")],
        ),
    ],
)
def test_rows_that_nobody_lays_out_or_makes_are_named(table: dict[str, Any], lacks: list[Unmet]) -> None:
    assert unmet_needs(build_mechanism(table), CLIENTS) == lacks


def test_what_is_unmet_is_one_line() -> None:
    assert Unmet("weigh", "'fedsoft'", "rows 'cluster'").line == "mechanism.weigh: 'fedsoft' needs rows 'cluster'"


@pytest.mark.parametrize(
    ("table", "warned"),
    [
        ({"name": "ditto"}, []),
        ({"name": "ditto", "deploy": "server"}, ["'server' hands out none of the rows 'own'"]),
        ({"name": "fedavg", "train": "ifca"}, ["'server' hands out none of the rows 'cluster'"]),
        ({"name": "fedavg", "train": "ifca", "deploy": "ifca"}, []),
    ],
)
def test_a_run_warns_where_nobody_hands_out_what_clients_hold(table: dict[str, Any], warned: list[str]) -> None:
    given = hanse.Experiment(data={"clients": 4}, mechanism=table, engine={"train": "stacked", "threads": 1})
    said = settle_engine(build(given)).said
    assert [line for line in said if line.startswith("warning: mechanism.deploy")] == [
        f"warning: mechanism.deploy: {line} that clients train to hold" for line in warned
    ]


@pytest.mark.parametrize(
    ("table", "warned"),
    [
        (
            {"name": "greedyfed", "averaging": 0.5, "eps": 1e-3, "clients_per_round": 2, "select": "uniform"},
            ["averaging: 0.5"],
        ),
        ({"name": "greedyfed", "averaging": 0.5, "eps": 1e-3, "value": "exact"}, ["eps: 0.001"]),
        ({"name": "fedprox", "mu": 0.5, "clients_per_round": 2, "train": "shared", "select": "everyone"},
         ["clients_per_round: 2", "mu: 0.5"]),
        ({"name": "fedprox", "mu": 0.5, "train": "proximal"}, []),  # which takes it over
        ({"name": "fedprox", "mu": 0.5, "train": {"mu": 0.5}}, []),
        ({"name": "fedprox", "select": "everyone"}, []),
        ({"name": "ifca", "clusters": 3, "clients_per_round": 2, "weigh": "uniform"}, []),
    ],
)  # fmt: skip
def test_a_run_warns_of_an_option_whose_part_is_replaced(table: dict[str, Any], warned: list[str]) -> None:
    given = hanse.Experiment(data={"clients": 4}, mechanism=table, engine={"train": "stacked", "threads": 1})
    again = hanse.Experiment(**tomllib.loads(given.to_toml()))  # with every default, as in a run's directory
    for experiment in (given, again):
        said = settle_engine(build(experiment)).said
        assert sorted(line for line in said if line.endswith("the part that uses it is replaced")) == [
            f"warning: mechanism.{line}: has no effect: the part that uses it is replaced" for line in warned
        ]
