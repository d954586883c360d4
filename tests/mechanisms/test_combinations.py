"""Any part of one mechanism with any part of another: it runs and matters, or is refused with the reason."""

from functools import cache
from typing import Any
from zlib import crc32

import pytest
from rotation import rotating

import hanse
from hanse.base.factories import defaults
from hanse.cli.listing import Combination, combinations
from hanse.mechanisms.fits import WORDS
from hanse.mechanisms.registry import MECHANISMS, PARTS

# the rows that a train part lays out, and those of them that somebody must make anew for it
ROWS = {
    "shared": {"server"}, "proximal": {"server"}, "fedgen": {"server"}, "own": {"own"}, "tiers": {"tier"},
    "scaffold": {"server", "control", "own_control"}, "ditto": {"own", "server"}, "fedfomo": {"model"},
    "towards_centres": {"model", "centre"}, "from_centres": {"own", "centre"}, "ifca": {"cluster"},
    "fedsoft": {"model", "cluster"}, "ipfl": {"model", "centre", "best", "initial"},
}  # fmt: skip
MADE_ANEW = {"towards_centres": "centre", "from_centres": "centre", "ipfl": "centre", "fedsoft": "cluster"}
MAKES = {
    "fedamp": "centre", "heur_fedamp": "centre", "pfedgraph": "centre", "ipfl": "centre", "fedsoft": "cluster",
}  # fmt: skip
READS = {
    ("weigh", "fedamp"): {"centre"}, ("weigh", "heur_fedamp"): {"centre"}, ("weigh", "pfedgraph"): {"centre"},
    ("weigh", "fedfomo"): {"model"}, ("weigh", "fedsoft"): {"model", "cluster"},
    ("weigh", "ipfl"): {"model", "centre", "initial"}, ("settle", "ipfl"): {"centre"},
    ("deploy", "own"): {"own"}, ("deploy", "ifca"): {"cluster"}, ("deploy", "one_shot"): {"tier"},
}  # fmt: skip
GROUPED = {"shared", "proximal", "fedgen", "tiers", "scaffold", "ditto", "ifca"}
ONE_MODEL = {"shared", "proximal", "fedgen", "scaffold", "ditto", "ipfl"}  # of the server: no bids to go by
AGAIN = {
    "median", "trimmed_mean", "geometric_median", "clipped", "krum", "multi_krum", "fltrust", "fedavgm", "fedadam",
    "fedyogi", "fedadagrad",
}  # fmt: skip
OF_WEIGHTS = {"mixture", "first_order", "first_order_clients"}  # values that need weights on the updates
NEEDS: dict[tuple[str, str], set[str]] = {
    **{("select", s): {"clients"} for s in ("everyone", "uniform", "round_robin", "power_of_choice", "oort", "gtflat")},
    **{("select", s): {"clients", "values"} for s in ("greedy", "ucb", "s_fedavg", "set_aware")},
    **{("select", s): {"clients", "values", "bids"} for s in ("tiers", "pretrained_tiers")},
    ("select", "the_one"): {"pooled"},
    ("select", "ipfl"): {"clients", "trade"},
    **{("train", t): {"clients"} for t in ROWS if t not in ("shared", "proximal", "fedgen")},
    **{
        ("weigh", w): {"clients", "groups"}
        for w in ("uniform", "gtflat", "gtflat_validation", "inverse_distance", "by_staleness", "cfl", "scaffold")
    },
    **{("weigh", w): {"clients", "groups"} for w in (*AGAIN, "fednova", "q_fedavg", "capped")},
    ("weigh", "samples_over_probability"): {"probabilities"},
    ("weigh", "inverse_variance"): {"clients", "groups", "noise"},
    **{("weigh", w): {"clients"} for w in ("fedamp", "heur_fedamp", "pfedgraph", "fedfomo", "fedsoft", "ipfl")},
    ("value", "first_order_clients"): {"groups"},
    ("value", "group_path"): {"secure"},
    **{("value", v): {"groups"} for v in ("gtg", "mixture", "exact", "monte_carlo", "leave_one_out", "banzhaf")},
    **{("settle", s): {"clients", "groups", "values", "schedule"} for s in ("tokens", "server_tokens")},
    ("settle", "ipfl"): {"trade"},
    ("settle", "utilities"): {"clients"},
    ("settle", "by_value"): {"values"},
}
SLOTS = ("select", "train", "weigh", "value", "settle", "deploy")


@cache
def made_of(mechanism: str) -> dict[str, str]:
    """Return the names of a mechanism's parts by slot, empty where it has none."""
    own = MECHANISMS[mechanism]().slots()
    made = dict.fromkeys(SLOTS, "")
    for slot, part in own.items():
        alike = {name: make() for name, make in PARTS[slot].items() if type(make()) is type(part)}
        [made[slot]] = [name for name, other in alike.items() if other == part] or alike
    return made


def lacking(c: Combination) -> set[str]:
    """What is missing, by the tables above: needs, and rows by their names."""
    made = made_of(c.mechanism) | {c.slot: c.part}
    there = {"pooled" if c.mechanism == "centralised" else "clients"}
    there |= {"values"} if made["value"] else set()
    there |= {"bids"} if made["settle"] in ("tokens", "server_tokens") else set()
    there |= {"groups"} if made["train"] in GROUPED else set()
    there |= {"schedule"} if made["select"] in ("tiers", "pretrained_tiers") or made["train"] in ONE_MODEL else set()
    there |= {"probabilities"} if made["select"] == "s_fedavg" else set()
    there |= {"trade"} if made["weigh"] == "ipfl" else set()
    found = {need for part in made.items() for need in NEEDS.get(part, set()) - there}
    if made["value"] in OF_WEIGHTS and made["weigh"] in AGAIN:
        found |= {"is applied again to the updates of each coalition"}
    found |= {f"rows '{row}' (" for part in made.items() for row in READS.get(part, set()) - ROWS[made["train"]]}
    anew = MADE_ANEW.get(made["train"])
    return found | ({f"rows '{anew}' that are made anew"} if anew and MAKES.get(made["weigh"]) != anew else set())


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


def hash_of(c: Combination) -> int:
    return crc32(label(c).encode())


def said_of(need: str) -> str:
    return str(WORDS.get(need, need))


def test_what_is_refused_is_exactly_this() -> None:
    wrong = []
    for c in ALL:
        expected = {said_of(need) for need in lacking(c)}
        heard = {word for word in expected if any(word in reason for reason in c.missing)}
        if heard != expected or bool(c.missing) != bool(expected):
            wrong.append((c, expected))
    assert wrong == []


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
    data: dict[str, Any] = {"clients": 6, "partition": split}
    if "fedfomo" in (name, parts.get("weigh"), parts.get("train")):
        data["client_validation"] = 0.2
    if parts.get("weigh") == "fltrust":
        data["root"] = 0.1
    return hanse.Experiment(
        data=data,
        model={"name": "logistic"},
        mechanism=options,
        train={"batch_size": 64, "lr": 0.05},
        engine={"train": "sequential" if guided else "stacked", "threads": 1},
        run={"rounds": 8},
    )


def lines(name: str, **parts: str) -> list[dict]:
    run = hanse.run(experiment(name, **parts))
    return [{k: v for k, v in m.items() if not k.startswith(("time/", "memory/"))} for m in run.metrics]


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
    min((c for c in FIT if (c.slot, c.part) == key), key=lambda c: (hash_of(c), c.mechanism))
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
