"""The experiment file: defaults, overrides, and every mistake in one go."""

import tomllib
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mistaken import mistakes

from hanse.base import toml
from hanse.base.errors import UserError
from hanse.base.factories import defaults
from hanse.mechanisms.registry import MECHANISMS, PARTS
from hanse.runs import guards
from hanse.runs.config import Experiment
from hanse.runs.setup import build


def test_numbers_of_numpy_are_plain_numbers() -> None:
    def written(whole: Any, real: Any) -> str:
        mechanism = {"name": "fedprox", "clients_per_round": whole(2), "mu": real(0.5)}
        noisy = {"clients": [whole(1)], "sigma": real(2.0)}
        data = {"clients": whole(4), "partition": {"alpha": real(0.5)}}
        return Experiment(mechanism=mechanism, data=data, behaviour={"noisy": noisy}, run={"seed": whole(3)}).to_toml()

    assert written(np.int64, np.float64) == written(np.uint8, np.float32) == written(int, float)


def lines_of(**sections: Any) -> list[str]:
    return list(mistakes(Experiment, **sections))


@pytest.mark.parametrize(
    ("mechanism", "more"),
    [
        ({"name": "fedavg", "train": "scaffold", "weigh": {"name": "scaffold", "global_lr": 0.5}}, {}),
        ({"name": "ipfl", "eta": 7.0, "settle": {"pricing": "posted", "flat": 0.25}}, {}),
        ({"name": "ifca", "deploy": {"name": "ifca", "clusters": 3}}, {}),
        ({"name": "greedyfed", "clients_per_round": 3, "weigh": {"name": "uniform"}},
         {"train": {"batches_per_epoch": 5, "epochs": 2, "lr": 0.5}, "behaviour": {"straggler": {"fraction": 0.25}},
          "model": {"name": "mlp", "hidden": [7, 3], "activation": "tanh"}}),
    ],
)  # fmt: skip
def test_the_written_file_reads_back_as_the_same_experiment(
    mechanism: dict[str, Any], more: dict[str, Any], tmp_path: Path
) -> None:
    experiment = Experiment(mechanism=mechanism, **more)
    (tmp_path / "a.toml").write_text(experiment.to_toml())
    again = Experiment.read(tmp_path / "a.toml")
    assert again.mechanism.built == experiment.mechanism.built
    assert list(again.mechanism.built.parts()) == list(experiment.mechanism.built.parts())
    assert again.sections() == experiment.sections()
    assert again.to_toml() == experiment.to_toml()


def test_all_mistakes_are_listed_at_once_with_the_nearest_name() -> None:
    lines = lines_of(
        mechanism={"name": "greedyfed", "client_per_round": 3, "averaging": 1.5, "weigh": "unifrom"},
        train={"lr": -1, "epochs": 2.5, "momentun": 0.5},
        data={"clients": 0, "sorce": "digits"},
        rnu={"rounds": 3},
    )
    found = "\n".join(lines)
    for expected in (
        "mechanism.client_per_round: no such key; did you mean 'clients_per_round'?", "mechanism.averaging: 1.5",
        "mechanism.weigh: 'unifrom': no such name; did you mean 'uniform'?", "train.lr: -1", "train.epochs: 2.5",
        "train.momentun: ", "data.clients: 0", "data.sorce: ", "rnu: ",
    ):  # fmt: skip
        assert expected in found
    assert len(lines) == 9


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({}, "mechanism: "),
        ({"mechanism": {}}, "mechanism.name: "),
        ({"mechanism": "fedavg", "clients": {"exit": {"balanc": ""}}}, "clients.exit.balanc: no such key; did you"),
        ({"mechanism": "fedavg", "behaviour": {"noizy": 1}}, "behaviour.noizy: 1: "),
        ({"mechanism": "fedavg", "eval": {"metrics": "auc"}}, "eval.metrics: 'auc': "),
        ({"mechanism": "fedavg", "data": {"partition": {"name": "mixture", "mix": 30}}}, "data.partition.mix: 30: "),
        ({"mechanism": {"name": "gredyfed"}}, "mechanism.name: 'gredyfed': no such name; did you mean 'greedyfed'?"),
        ({"mechanism": {"name": "nowhere:thing"}}, "mechanism.name: 'nowhere:thing': "),
        ({"mechanism": {"name": "math:thing"}}, "mechanism.name: 'math:thing': "),
        ({"mechanism": {"name": "fedavg", "weigh": 3}}, "mechanism.weigh: 3: "),
        ({"mechanism": {"name": "fedavg", "value": {"utility": "loss"}}}, "mechanism.value: {'utility': 'loss'}: must"),
        ({"mechanism": "fedavg", "eval": {"clients": "some"}}, "eval.clients: 'some': "),
        ({"mechanism": "fedavg", "clients": {"policy": 3}}, "clients.policy: 3: "),
        ({"mechanism": "fedavg", "eval": {"metrics": ["auc", 3]}}, "eval.metrics.1: 3: "),
        ({"mechanism": {"name": "fedavg", "weigh": {"name": "gtflat", "start": "random"}}}, "mechanism.weigh.start: "),
        ({"mechanism": "fedavg", "train": {"lr": float("nan")}}, "train.lr"),
        ({"mechanism": {"name": "fedprox", "mu": 1e300}}, "mechanism.mu: "),
        ({"mechanism": {"name": "ucb", "beta": float("inf")}}, "mechanism.beta: inf: "),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_the_field_and_the_value(sections: dict[str, Any], line: str) -> None:
    [found] = lines_of(**sections)
    assert found.startswith(line)


def test_toml_writes_what_tomllib_reads() -> None:
    kept = {"x": 1, "y": 2.5, "z": True, "s": 'say "hi"\n\\ü', "l": [1, 2], "t": {"name": "q", "e": {}}}
    more = {"small": 1e-9, "big": 1e300, "inf": float("inf")}
    assert tomllib.loads(toml.dumps({"a": {**kept, "none": None}, "b c": more})) == {"a": kept, "b c": more}
    for value, named in ((b"", "bytes"), ([1, None], "None in a list"), ({"c": [None]}, "None in a list")):
        with pytest.raises(UserError, match=rf"^a\.b: {named} cannot be written"):
            toml.dumps({"a": {"b": value}})


def test_a_behaviour_of_a_client_that_is_not_there_is_refused() -> None:
    experiment = Experiment(data={"clients": 5}, mechanism="fedavg", behaviour={"attacker": {"clients": [1, 99]}})
    with pytest.raises(UserError, match=r"attacker\.clients: 99"):
        build(experiment)


def whole_options() -> list[tuple[str, ...]]:
    """All options that are whole numbers: their section (and slot, and part), and their key."""

    def whole(hint: Any) -> bool:
        return hint is int or (get_origin(hint) is not Literal and any(map(whole, get_args(hint))))

    found: list[tuple[str, ...]] = []
    for name, kind in Experiment.kinds().items():
        for key, one in getattr(kind, "model_fields", {}).items():
            found += [(name, key)] if whole(one.annotation) else []
    made = [(("mechanism", name), make) for name, make in MECHANISMS.items()]
    made += [(("mechanism", slot, name), make) for slot, kinds in PARTS.items() for name, make in kinds.items()]
    for where, make in made:
        hints = get_type_hints(make.__init__ if isinstance(make, type) and not is_dataclass(make) else make)
        found += [(*where, key) for key, hint in hints.items() if key in defaults(make) and whole(hint)]
    return found


@pytest.mark.parametrize("draws", [20, pytest.param(200, marks=pytest.mark.nightly)])
def test_whole_numbers_are_whole_and_what_is_none_is_refused_by_its_key(draws: int) -> None:
    odd = st.one_of(
        st.floats(0.01, 1e6).filter(lambda number: not number.is_integer()), st.booleans(), st.integers(0, 99).map(str),
        st.sampled_from([float("inf"), float("nan"), -7, 10**30, 2.0]),
    )  # fmt: skip

    @settings(max_examples=draws, deadline=None, derandomize=draws < 100, database=None)
    @given(st.sampled_from(whole_options()), odd)
    def check(option: tuple[str, ...], value: Any) -> None:
        *where, key = option
        seeds = key.endswith("seed") and isinstance(value, int) and not isinstance(value, bool)
        if seeds or option == ("federation", "enough"):  # any whole number seeds; enough may be a share
            return
        sections: dict[str, Any] = {"mechanism": {"name": "fedavg"}}
        if where[0] != "mechanism":
            sections[where[0]] = {key: value}
        elif len(where) == 2:
            sections["mechanism"] = {"name": where[1], key: value}
        else:
            sections["mechanism"][where[1]] = {"name": where[2], key: value}
        assert any(key in line for line in lines_of(**sections))

    check()


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({"clients": {"grant": 50.0, "vests": 2}, "ledger": {"floor": -5.0}},
         ["clients.grant: 50.0", "clients.vests: 2", "ledger.floor: -5.0"]),
        ({"clients": {"grant": 50.0}, "mechanism": {"name": "pifl", "tiers": 2}}, []),
        ({"clients": {"grant": 50.0}, "sizes": {"proved": True, "bond": 5.0}}, []),
        ({"federation": {"half_precision": True}}, ["federation.half_precision: true"]),
    ],
)  # fmt: skip
def test_a_run_warns_of_a_setting_that_concerns_nothing_here(given: dict[str, Any], warned: list[str]) -> None:
    common = {"data": {"clients": 4}, "mechanism": {"name": "fedavg"}, "run": {"rounds": 3}}
    experiment = Experiment(**common | {"engine": {"train": "stacked", "threads": 1}} | given)
    told = [line for line in build(experiment).said if "has no effect" in line]
    assert [": ".join(line.split(": ")[1:3]) for line in told] == warned


def test_settings_of_wings_are_asked_in_one_order_and_named_where_no_wing_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = Experiment(mechanism="fedavg", federation={"private": {"noise": 1.0}, "secure": {"group": 3}})
    settings = ["federation.secure", "federation.private"]
    monkeypatch.setattr(guards, "GUARDS", {})
    assert guards.asked(given) == settings
    assert [line.partition(":")[0] for line in mistakes(guards.guards_of, given)] == settings
    monkeypatch.setattr(guards, "GUARDS", dict.fromkeys(("behaviour", *settings), guards.Guard))
    assert list(guards.guards_of(given)) == [*settings, "behaviour"]  # a section's own goes around the others
