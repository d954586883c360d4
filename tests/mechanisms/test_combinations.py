"""Any part of one mechanism with any part of another: it runs and matters, or is refused with the reason."""

from functools import cache
from typing import Any
from zlib import crc32

import pytest

import hanse
from hanse.listing import Combination, combinations
from hanse.mechanisms.registry import MECHANISMS, PARTS, defaults

# mechanisms by what their parts bring
VALUED = {"greedyfed", "ucb", "s_fedavg", "set_aware", "pifl", "tiff"}
TIERED = {"pifl", "tiff"}
CENTRED = {"fedamp", "heur_fedamp", "pfedgraph", "ipfl"}
OWN_ROWS = {"local", "fedfomo", "fedsoft", *CENTRED}  # a row a client: no groups to average in
GROUPED = set(MECHANISMS) - OWN_ROWS
FEDERATED = set(MECHANISMS) - {"centralised"}

# what a part lacks in every mechanism but these
LACKS: dict[tuple[str, str], dict[str, set[str]]] = {
    ("select", "the_one"): {"pooled": {"centralised"}},
    **{
        ("select", s): {"clients": FEDERATED} for s in ("everyone", "uniform", "round_robin", "power_of_choice", "oort")
    },
    **{("select", s): {"clients": FEDERATED, "values": VALUED} for s in ("greedy", "ucb", "s_fedavg", "set_aware")},
    ("select", "staying"): {"clients": FEDERATED, "market": {"ipfl"}},
    **{("select", s): {"clients": FEDERATED, "values": VALUED, "bids": TIERED} for s in ("tiers", "pretrained_tiers")},
    **{("train", t): {"clients": FEDERATED} for t in ("own", "tiers")},
    **{
        ("train", t): {"clients": FEDERATED, "centres_mixed": CENTRED}
        for t in ("towards_centres", "from_centres", "model_and_centre")
    },
    ("train", "controlled"): {"clients": FEDERATED, "variates_updated": {"scaffold"}},
    ("train", "ditto"): {"clients": FEDERATED, "own_handed_out": {"ditto", "pfedgraph"}},
    ("train", "sent"): {"clients": FEDERATED, "rows_exchanged": {"fedfomo"}},
    ("train", "cluster_models"): {"clients": FEDERATED, "clusters_handed_out": {"ifca"}},
    ("train", "soft_clusters"): {"clients": FEDERATED, "soft_shares": {"fedsoft"}},
    **{
        ("weigh", w): {"clients": FEDERATED, "groups": GROUPED}
        for w in ("uniform", "gtflat", "gtflat_validation", "inverse_distance", "cfl")
    },
    **{("weigh", w): {"clients": FEDERATED, "centres": CENTRED} for w in ("fedamp", "heur_fedamp", "pfedgraph")},
    ("weigh", "imports"): {"clients": FEDERATED, "market_rows": {"ipfl"}},
    ("weigh", "control_variates"): {"clients": FEDERATED, "variates": {"scaffold"}},
    ("weigh", "fedfomo"): {"clients": FEDERATED, "sent_rows": {"fedfomo"}},
    ("weigh", "soft_shares"): {"clients": FEDERATED, "importance": {"fedsoft"}},
    ("value", "first_order_clients"): {"groups": GROUPED},
    **{("settle", s): {"clients": FEDERATED, "values": VALUED, "groups": GROUPED} for s in ("tokens", "server_tokens")},
    ("settle", "market"): {"market": {"ipfl"}},
    ("settle", "utilities"): {"clients": FEDERATED},
    ("deploy", "one_shot"): {"tiers": {"pifl"}},
    ("deploy", "own"): {"own_models": {"ditto", "pfedgraph"}},
    ("deploy", "cluster"): {"cluster_losses": {"ifca"}},
}
# what the rest of a mechanism lacks when one of its parts is replaced, by any but these
WITHOUT_GROUPS = {"own", "towards_centres", "from_centres", "model_and_centre", "sent", "soft_clusters"}
AVERAGING = set(PARTS["train"]) - WITHOUT_GROUPS
MIXING_CENTRES = {"fedamp", "heur_fedamp", "pfedgraph", "imports"}
WITH_CENTRES = {"towards_centres", "from_centres", "model_and_centre"}
LOSES: dict[tuple[str, str], dict[str, set[str]]] = {
    **{(m, "train"): {"groups": AVERAGING} for m in ("gtfedavg", "gtfedprox", "gtfedgen", "cfl", "tiff")},
    ("pifl", "train"): {"groups": AVERAGING, "tiers": set()},
    **{(m, "settle"): {"bids": {"tokens", "server_tokens"}} for m in ("pifl", "tiff")},
    **{(m, "train"): {"centres": WITH_CENTRES} for m in ("fedamp", "heur_fedamp")},
    ("ipfl", "train"): {"market_rows": {"model_and_centre"}},
    **{(m, "weigh"): {"centres_mixed": MIXING_CENTRES} for m in ("fedamp", "heur_fedamp", "pfedgraph")},
    ("pfedgraph", "train"): {"centres": WITH_CENTRES, "own_models": {"ditto"}},
    ("ipfl", "weigh"): {"market": set(), "centres_mixed": MIXING_CENTRES},
    ("scaffold", "train"): {"variates": set()},
    ("scaffold", "weigh"): {"variates_updated": set()},
    ("ditto", "train"): {"own_models": {"from_centres"}},
    ("ditto", "deploy"): {"own_handed_out": set()},
    ("fedfomo", "train"): {"sent_rows": set()},
    ("fedfomo", "weigh"): {"rows_exchanged": set()},
    ("ifca", "train"): {"cluster_losses": set()},
    ("ifca", "deploy"): {"clusters_handed_out": set()},
    ("fedsoft", "train"): {"importance": set()},
    ("fedsoft", "weigh"): {"soft_shares": set()},
}


def refused(c: Combination) -> set[str]:
    """What is missing, by the tables above."""
    lacks = {need for need, there in LACKS.get((c.slot, c.part), {}).items() if c.mechanism not in there}
    return lacks | {need for need, there in LOSES.get((c.mechanism, c.slot), {}).items() if c.part not in there}


ALL = list(combinations())
FIT = [c for c in ALL if not c.missing]


def label(c: Combination) -> str:
    return f"{c.mechanism}-{c.slot}-{c.part}"


def hash_of(c: Combination) -> int:
    return crc32(label(c).encode())


def test_what_is_refused_is_exactly_this() -> None:
    wrong = [(c, refused(c)) for c in ALL if set(c.missing) != refused(c)]
    assert wrong == []


def test_what_fits_is_all_the_rest() -> None:
    assert len(FIT) == sum(not refused(c) for c in ALL) == 485


def experiment(name: str, **parts: str) -> hanse.Experiment:
    options: dict[str, Any] = {"name": name, **parts}
    select = parts.get("select")
    if defaults(MECHANISMS[name]).get("clients_per_round") is not None:
        options["clients_per_round"] = 3
    elif select is not None and "clients_per_round" in defaults(PARTS["select"][select]):
        options["select"] = {"name": select, "clients_per_round": 3}
    guided = parts.get("train") == "distilled" or name in ("fedgen", "gtfedgen")
    if parts.get("train", "distilled") == "distilled" and guided:
        options["train"] = {"name": "distilled", "generator_steps": 2}
    data = {"clients": 6, "alpha": 0.3, "partition": "pooled" if name == "centralised" else "dirichlet"}
    if "fedfomo" in (name, parts.get("weigh")):
        data["client_validation"] = 0.2
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
    assert changed != plain(c.mechanism)


# each part in each slot once, in turn over the mechanisms that it fits; the slow suite runs all
SOME = [
    min((c for c in FIT if (c.slot, c.part) == key), key=lambda c: (hash_of(c), c.mechanism))
    for key in sorted({(c.slot, c.part) for c in FIT})
]


@pytest.mark.parametrize("c", SOME, ids=label)
def test_every_part_runs_somewhere_else_and_changes_the_metrics(c: Combination) -> None:
    runs_and_changes(c)


@pytest.mark.slow
@pytest.mark.parametrize("c", FIT, ids=label)
def test_what_fits_runs_and_changes_the_metrics(c: Combination) -> None:
    runs_and_changes(c)


@pytest.mark.parametrize("c", [c for c in ALL if c.missing], ids=label)
def test_what_does_not_fit_is_refused_before_round_0(c: Combination) -> None:
    class NeverStarts:
        def on_start(self, *_: Any) -> None:
            pytest.fail("the run was started")

        on_round = on_end = on_start

    with pytest.raises(hanse.UserError, match=r"needs .*(client|value|groups|data|mechanism)"):
        hanse.run(experiment(c.mechanism, **{c.slot: c.part}), observers=[NeverStarts()])
