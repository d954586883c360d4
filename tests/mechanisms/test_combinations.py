"""Any part of one mechanism with any part of another: it runs and matters, or is refused with the reason."""

from functools import cache
from typing import Any

import pytest

import hanse
from hanse.listing import Combination, combinations

# every refused combination of one replaced part, and what is missing there
REFUSED = {
    ("fedavg", "select", "the_one"): ("pooled",),
    ("fedavg", "select", "greedy"): ("values",),
    ("fedprox", "select", "the_one"): ("pooled",),
    ("fedprox", "select", "greedy"): ("values",),
    ("greedyfed", "select", "the_one"): ("pooled",),
    ("local", "select", "the_one"): ("pooled",),
    ("local", "select", "greedy"): ("values",),
    ("local", "weigh", "uniform"): ("groups",),
    ("centralised", "select", "everyone"): ("clients",),
    ("centralised", "select", "uniform"): ("clients",),
    ("centralised", "select", "round_robin"): ("clients",),
    ("centralised", "select", "greedy"): ("clients", "values"),
    ("centralised", "train", "own"): ("clients",),
    ("centralised", "weigh", "uniform"): ("clients",),
}
ALL = list(combinations())
FIT = [c for c in ALL if not c.missing]


def test_what_is_refused_is_exactly_this() -> None:
    assert {(c.mechanism, c.slot, c.part): c.missing for c in ALL if c.missing} == REFUSED


def test_what_fits_is_all_the_rest() -> None:
    assert len(FIT) == len(ALL) - len(REFUSED) == 45


def experiment(name: str, **parts: str) -> hanse.Experiment:
    options: dict[str, Any] = {"name": name, **parts}
    if name in ("fedavg", "fedprox", "greedyfed"):
        options["clients_per_round"] = 3
    elif parts.get("select") in ("uniform", "round_robin", "greedy"):
        options["select"] = {"name": parts["select"], "clients_per_round": 3}
    return hanse.Experiment(
        data={"clients": 6, "alpha": 0.3, "partition": "pooled" if name == "centralised" else "dirichlet"},
        model={"name": "logistic"},
        mechanism=options,
        train={"batch_size": 64, "lr": 0.05},
        engine={"train": "stacked", "threads": 1},
        run={"rounds": 3},
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
    assert [m["round"] for m in changed] == [0, 1, 2]
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
