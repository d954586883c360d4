"""A mechanism put together in Python becomes a table that builds it again."""

import sys
import types
from dataclasses import dataclass, replace
from typing import Any

import pytest

import hanse
from hanse.core.part import Mechanism
from hanse.mechanisms.baselines import fedavg, fedprox, local
from hanse.mechanisms.greedyfed import greedyfed
from hanse.mechanisms.ipfl import ipfl
from hanse.mechanisms.mechanism_table import table_of
from hanse.mechanisms.registry import MECHANISMS, build_mechanism
from hanse.mechanisms.train import Proximal
from hanse.mechanisms.value import Exact, MixtureValue
from hanse.mechanisms.weigh import BySamples, UniformWeights


@dataclass(frozen=True)
class Halved(BySamples):
    """A part of somebody's own, in a module that can be imported."""

    by: float = 2.0


@pytest.mark.parametrize(
    ("mechanism", "slots"),
    [
        (fedprox(5, 0.2), {"select", "train"}),
        (replace(fedprox(5), value=Exact(utility="accuracy")), {"select", "value"}),
        (replace(greedyfed(), value=None, select=fedavg(3).select), {"value", "select"}),
        (replace(fedavg(4), name="mine", train=Proximal(0.5), weigh=UniformWeights()), {"select", "train", "weigh"}),
        (replace(local(), name="alone"), {"select", "train"}),
    ],
)
def test_tables(mechanism: Mechanism, slots: set[str]) -> None:
    """A published mechanism's own name stays; of another only the slots are told that differ from FedAvg's."""
    table = table_of(mechanism)
    assert table.keys() == slots | {"name"}
    assert replace(build_mechanism(table), name=mechanism.name) == mechanism


@pytest.mark.parametrize("make", MECHANISMS.values())
def test_every_published_mechanism_comes_back(make: Any) -> None:
    made = make()
    assert table_of(made) == {"name": make.__name__}
    mixed = replace(made, name="somebody's", value=MixtureValue(budget=40))
    if made.value is None or made.standing(made.value) == ["value"]:
        built = build_mechanism(table_of(mixed))
        assert replace(built, name="somebody's") == mixed
        assert [built.standing(p) for p in built.parts().values()] == [
            mixed.standing(p) for p in mixed.parts().values()
        ]


def test_parts_of_one_s_own_are_named_by_their_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_parts")
    module.Halved = Halved  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_parts", module)
    monkeypatch.setattr(Halved, "__module__", "my_parts")
    found = table_of(replace(fedavg(), weigh=Halved(3.0)))
    assert found["weigh"] == {"name": "my_parts:Halved", "by": 3.0}
    assert hanse.Experiment(mechanism=found).mechanism.notes == []
    monkeypatch.setattr(sys.modules["__main__"], "Halved", Halved, raising=False)
    monkeypatch.setattr(Halved, "__module__", "__main__")
    [note] = hanse.Experiment(mechanism=replace(fedavg(), weigh=Halved(3.0))).mechanism.notes
    assert note.startswith("note: mechanism.weigh: 'Halved' is of this script or notebook")


def test_what_no_file_can_name() -> None:
    @dataclass(frozen=True)
    class Inside(BySamples):
        pass

    with pytest.raises(hanse.UserError, match=r"mechanism\.weigh.*defined inside"):
        hanse.Experiment(mechanism=replace(fedavg(), weigh=Inside()))
    with pytest.raises(hanse.UserError, match=r"mechanism\.weigh\.by"):
        table_of(replace(fedavg(), weigh=Halved(by=lambda: 3)))  # type: ignore[arg-type]


def test_one_part_split_in_two_is_refused() -> None:
    market = ipfl()
    twin = replace(market, weigh=replace(market.weigh))  # type: ignore[type-var]
    with pytest.raises(hanse.UserError, match="one object"):
        table_of(twin)
