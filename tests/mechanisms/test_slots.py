"""One part in several slots, the names that parts had before, and parts that cannot stand where they are put."""

import tomllib
from dataclasses import dataclass
from typing import Any

import pytest
from mistaken import mistakes

import hanse
from hanse.core.part import Aggregate, AggregatePart, Group, Mechanism, SelectPart, State, TrainPart
from hanse.mechanisms.fits import unmet_needs
from hanse.mechanisms.ipfl import IPFL
from hanse.mechanisms.registry import MECHANISMS, build_mechanism
from hanse.mechanisms.scaffold import Scaffold
from hanse.runs.setup import build


def scaffold(**slots: Any) -> Mechanism:
    return build_mechanism({"name": "scaffold", **slots})


def refused(**table: Any) -> list[str]:
    return list(mistakes(build_mechanism, table))


def test_a_part_in_several_slots_is_there_once_by_its_first_slot() -> None:
    market = MECHANISMS["ipfl"]()
    assert list(market.slots()) == ["select", "train", "weigh", "settle", "deploy"]
    assert list(market.parts()) == ["select", "deploy"]
    assert market.standing(market.settle) == ["select", "train", "weigh", "settle"]
    one = scaffold()
    assert list(one.parts()) == ["select", "train", "deploy"]
    assert (one.standing(one.weigh), one.standing(one.deploy)) == (["train", "weigh"], ["deploy"])
    # equal parts that are two objects are two parts
    assert list(Mechanism("two", one.select, Scaffold(), Scaffold()).parts()) == ["select", "train", "weigh"]


FORMS = None, {"global_lr": 0.5}, "scaffold", {"name": "scaffold", "global_lr": 0.5}


@pytest.mark.parametrize("train", FORMS)
@pytest.mark.parametrize("weigh", FORMS)
def test_options_under_any_slot_are_those_of_the_one_part(train: Any, weigh: Any) -> None:
    slots = {slot: form for slot, form in (("train", train), ("weigh", weigh)) if form is not None}
    found = scaffold(**slots, **({} if dict in map(type, slots.values()) else {"global_lr": 0.5}))
    assert found.train == Scaffold(0.5)
    assert found.train is found.weigh


def test_options_without_a_name_reach_every_slot_of_their_part() -> None:
    found = build_mechanism({"name": "ipfl", "lam": 3.0, "settle": {"pricing": "posted"}, "train": {"mu": 0.25}})
    assert found.settle == IPFL(lam=3.0, pricing="posted", mu=0.25)
    assert found.select is found.train is found.weigh is found.settle


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"name": "scaffold", "train": {"global_lr": 0.5}, "weigh": {"global_lr": 0.7}}, "mechanism.weigh.global_lr"),
        ({"name": "fedavg", "train": {"name": "fedsoft", "clusters": 3}, "weigh": {"name": "fedsoft", "clusters": 2}},
         "mechanism.weigh.clusters: 2: is 3 in mechanism.train"),
        ({"name": "scaffold", "train": {"global_lr": -1.0}}, "mechanism.train.global_lr: -1.0"),
        ({"name": "scaffold", "weigh": {"global_rl": 1.0}}, "mechanism.weigh.global_rl: no such key"),
    ],
)  # fmt: skip
def test_different_or_wrong_options_of_one_part_are_told_under_their_slot(table: dict[str, Any], line: str) -> None:
    [said] = refused(**table)
    assert said.startswith(line)


# ---- who cannot stand where it is put


@dataclass(frozen=True)
class Chooses(SelectPart):
    """A selector that forgot to choose."""


@dataclass(frozen=True)
class LaysOut(TrainPart):
    """A train part without seats."""

    def blocks(self, context: Any) -> Any:
        return ()


@dataclass(frozen=True)
class Averages(AggregatePart):
    def aggregate(self, group: Group, state: State) -> Aggregate:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("slot", "name"),
    [("select", "Chooses"), ("train", "LaysOut"), ("weigh", "Chooses"), ("value", "Averages"), ("settle", "Averages"),
     ("deploy", "Averages")],
)  # fmt: skip
def test_a_part_without_the_method_of_its_slot_is_refused(slot: str, name: str) -> None:
    [line] = refused(name="fedavg", **{slot: f"{__name__}:{name}"})
    assert line.startswith(f"mechanism.{slot}: {name} has no method ")
    assert build_mechanism({"name": "fedavg", "weigh": f"{__name__}:Averages"}).weigh == Averages()


# ---- what a part needs of the others, by the slot that it stands in


@pytest.mark.parametrize(
    ("table", "lacks"),
    [
        ({"name": "scaffold"}, []),
        ({"name": "scaffold", "weigh": "gtflat"}, []),  # it still fills its variates
        ({"name": "scaffold", "train": "shared"}, []),  # it averages, and there are no variates to fill
        ({"name": "ditto", "weigh": "scaffold"}, []),
        ({"name": "fedamp", "weigh": "samples"}, [("train", "'towards_centres'", "centre")]),
        ({"name": "fedavg", "weigh": "fedsoft"}, [("weigh", "'fedsoft'", row) for row in ("cluster", "model")]),
        ({"name": "fedavg", "deploy": "own"}, [("deploy", "'own'", "own")]),
    ],
)
def test_rows_that_nobody_lays_out_or_makes_are_named(table: dict[str, Any], lacks: list[tuple[str, str, str]]) -> None:
    found = unmet_needs(build_mechanism(table), frozenset({"clients"}))
    assert [(one.slot, one.part) for one in found] == [(slot, part) for slot, part, _ in lacks]
    assert all(f"rows '{row}'" in one.line for one, (*_, row) in zip(found, lacks, strict=True))


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
    assert [line for line in build(given).said if line.startswith("warning: mechanism.deploy")] == [
        f"warning: mechanism.deploy: {line} that clients train" for line in warned
    ]


@pytest.mark.parametrize(
    ("table", "train"),
    [({"name": "fedprox", "mu": 21}, {}), ({"name": "ditto", "lam": 21}, {}), ({"name": "ipfl", "eta": 0.095}, {}),
     ({"name": "fedavg"}, {"weight_decay": 21}), ({"name": "fedprox", "mu": 39}, {"momentum": 0.9})],
)  # fmt: skip
def test_a_run_warns_where_each_step_overshoots_the_centre_further(table: dict[str, Any], train: Any) -> None:
    """From lr = 2 (1 + momentum) / pull on, whatever the data are; other optimisers take steps of another length."""
    for changed, warned in (({}, 1), ({"lr": 0.09}, 0), ({"optimizer": "adamw", "momentum": 0, "lr": 0.1}, 0)):
        trained = {"lr": 0.1, **train, **changed}
        given = hanse.Experiment(data={"clients": 4}, mechanism=table, train=trained, engine={"threads": 1})
        assert sum(line.startswith("warning: train.lr: 0.1: ") for line in build(given).said) == warned


@pytest.mark.parametrize(
    ("table", "warned"),
    [
        ({"name": "greedyfed", "averaging": 0.5, "eps": 1e-3, "clients_per_round": 2, "select": "uniform"},
         ["averaging: 0.5"]),
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
        said = build(experiment).said
        assert sorted(line for line in said if line.endswith("the part that uses it is replaced")) == [
            f"warning: mechanism.{line}: has no effect: the part that uses it is replaced" for line in warned
        ]
