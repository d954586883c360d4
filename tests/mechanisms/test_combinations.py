"""Any part of one mechanism with any part of another: it runs and matters, or is refused with the reason."""

from functools import cache
from typing import Any

import pytest

import hanse
from hanse.listing import Combination, combinations

BY_VALUE = ("greedy", "ucb", "s_fedavg", "set_aware")  # selectors that need values
VALUELESS = ("fedavg", "fedprox", "power_of_choice", "oort", "local")  # mechanisms that give none
FEDERATED = (*VALUELESS, "greedyfed", "ucb", "s_fedavg", "set_aware")

# every refused combination of one replaced part, and what is missing there
REFUSED: dict[tuple[str, str, str], tuple[str, ...]] = {
    **{(m, "select", "the_one"): ("pooled",) for m in FEDERATED},
    **{(m, "select", s): ("values",) for m in VALUELESS for s in BY_VALUE},
    ("local", "weigh", "uniform"): ("groups",),
    **{("centralised", "select", s): ("clients", "values") for s in BY_VALUE},
    **{
        ("centralised", "select", s): ("clients",)
        for s in ("everyone", "uniform", "round_robin", "power_of_choice", "oort")
    },
    ("centralised", "train", "own"): ("clients",),
    ("centralised", "weigh", "uniform"): ("clients",),
}
ALL = list(combinations())
FIT = [c for c in ALL if not c.missing]


def test_what_is_refused_is_exactly_this() -> None:
    assert {(c.mechanism, c.slot, c.part): c.missing for c in ALL if c.missing} == REFUSED


def test_what_fits_is_all_the_rest() -> None:
    assert len(FIT) == len(ALL) - len(REFUSED) == 135


def experiment(name: str, **parts: str) -> hanse.Experiment:
    options: dict[str, Any] = {"name": name, **parts}
    if name not in ("local", "centralised"):
        options["clients_per_round"] = 3
    elif parts.get("select") not in (None, "everyone", "the_one"):
        options["select"] = {"name": parts["select"], "clients_per_round": 3}
    return hanse.Experiment(
        data={"clients": 6, "alpha": 0.3, "partition": "pooled" if name == "centralised" else "dirichlet"},
        model={"name": "logistic"},
        mechanism=options,
        train={"batch_size": 64, "lr": 0.05},
        engine={"train": "stacked", "threads": 1},
        run={"rounds": 8},
    )


def lines(name: str, **parts: str) -> list[dict]:
    run = hanse.run(experiment(name, **parts))
    return [{k: v for k, v in m.items() if not k.startswith(("time/", "memory/"))} for m in run.metrics]


@cache
def plain(name: str) -> list[dict]:
    return lines(name)


def label(c: Combination) -> str:
    return f"{c.mechanism}-{c.slot}-{c.part}"


@pytest.mark.parametrize("c", FIT, ids=label)
def test_what_fits_runs_and_changes_the_metrics(c: Combination) -> None:
    changed = lines(c.mechanism, **{c.slot: c.part})
    assert [m["round"] for m in changed] == list(range(8))
    assert all(m["answered"] > 0 for m in changed)
    assert changed != plain(c.mechanism)


@pytest.mark.parametrize("c", [c for c in ALL if c.missing], ids=label)
def test_what_does_not_fit_is_refused_before_round_0(c: Combination) -> None:
    class NeverStarts:
        def on_start(self, *_: Any) -> None:
            pytest.fail("the run was started")

        on_round = on_end = on_start

    with pytest.raises(hanse.UserError, match=r"needs .*(client|value|groups|data)"):
        hanse.run(experiment(c.mechanism, **{c.slot: c.part}), observers=[NeverStarts()])
