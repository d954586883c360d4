"""Any part of one mechanism with any part of another: it runs and matters, or is refused with the reason."""

from functools import cache
from typing import Any
from zlib import crc32

import pytest
from experiments import digits
from rotation import rotating
from watching import untimed

import hanse
from hanse.base.factories import defaults
from hanse.cli.listing import Combination, combinations
from hanse.mechanisms.registry import MECHANISMS, PARTS

ALL = list(combinations())
FIT = [c for c in ALL if not c.missing]
REFUSED = [c for c in ALL if c.missing]
SAME = {
    ("local", "deploy", "own"),  # it hands out the same rows under another name
    ("pifl", "value", "first_order"),  # what it becomes by itself where the server has validation samples
    ("scaffold", "weigh", "uniform"),  # that is what SCAFFOLD does with global_lr = 1
}


def label(c: Combination) -> str:
    return f"{c.mechanism}-{c.slot}-{c.part}"


def experiment(name: str, **parts: str) -> hanse.Experiment:
    options: dict[str, Any] = {"name": name, **parts}
    select = parts.get("select")
    if defaults(MECHANISMS[name]).get("clients_per_round") is not None:
        options["clients_per_round"] = 3
    elif select is not None and "clients_per_round" in defaults(PARTS["select"][select]):
        options["select"] = {"name": select, "clients_per_round": 3}
    guided = parts.get("train") == "fedgen" or name in ("fedgen", "gtfedgen")
    if parts.get("train", "fedgen") == "fedgen" and guided:
        options["train"] = {"name": "fedgen", "generator_steps": 2}
    split = "pooled" if name == "centralised" else {"name": "dirichlet", "alpha": 0.3}
    data: dict[str, Any] = {"partition": split}
    if "fedfomo" in (name, parts.get("weigh"), parts.get("train")):
        data["client_validation"] = 0.2
    if parts.get("weigh") == "fltrust":
        data["root"] = 0.1
    engine = {"train": "sequential" if guided else "stacked"}
    return digits(options, 6, 8, data=data, train={"batch_size": 64, "lr": 0.05}, engine=engine)


def lines(name: str, **parts: str) -> list[dict]:
    return untimed(hanse.run(experiment(name, **parts)).metrics)


@cache
def plain(name: str) -> list[dict]:
    return lines(name)


def runs_and_changes(c: Combination) -> None:
    changed = lines(c.mechanism, **{c.slot: c.part})
    assert [m["round"] for m in changed] == list(range(8))
    assert all(m["answered"] > 0 for m in changed)
    assert (changed == plain(c.mechanism)) == ((c.mechanism, c.slot, c.part) in SAME)


# each part in each slot once, in turn over the mechanisms that it fits
SOME = [
    min((c for c in FIT if (c.slot, c.part) == key), key=lambda c: (crc32(label(c).encode()), c.mechanism))
    for key in sorted({(c.slot, c.part) for c in FIT})
]


@pytest.mark.parametrize("c", rotating(SOME, 3), ids=label)
def test_every_part_runs_somewhere_else_and_changes_the_metrics(c: Combination) -> None:
    runs_and_changes(c)


@pytest.mark.parametrize("c", rotating(FIT, 15, pytest.mark.slow), ids=label)
def test_what_fits_runs_and_changes_the_metrics(c: Combination) -> None:
    runs_and_changes(c)


@pytest.mark.parametrize("c", rotating(REFUSED, 50), ids=label)
def test_what_does_not_fit_is_refused_before_round_0(c: Combination) -> None:
    class NeverStarts:
        def on_start(self, *_: Any) -> None:
            pytest.fail("the run was started")

        on_round = on_end = on_start

    with pytest.raises(hanse.UserError, match=r"needs .*(client|value|groups|data|mechanism)"):
        hanse.run(experiment(c.mechanism, **{c.slot: c.part}), observers=[NeverStarts()])
