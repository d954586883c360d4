"""The bound on norms: off by default, the same in every engine, silent with too few replies."""

from experiments import digits

import hanse
from hanse.federation.wrapped import NormBound


def test_what_is_longer_than_so_many_medians_is_refused() -> None:
    bound = NormBound(times=2.0)
    norms = {0: [1.0], 1: [1.1], 2: [0.9], 3: [1.0, 2.5], 4: [1.9]}  # median of the six: 1.05
    assert bound.refusals(norms) == {3: "update of norm 2.5: the bound is 2.1, 2 times the median"}
    del norms[4]
    assert bound.refusals(norms) == {}  # four replies say too little


def attacked(refuse: str | None) -> hanse.Run:
    sections = {
        "data": {"partition": "iid"}, "model": {"name": "mlp", "hidden": [8]}, "train": {"lr": 0.05},
        "behaviour": {"attacker": {"clients": (3,), "kind": "flip", "scale": 20.0}}, "federation": {"refuse": refuse},
        "engine": {"train": "sequential", "workers": 1, "device": "cpu"},
    }  # fmt: skip
    return hanse.run(digits({"name": "fedavg", "clients_per_round": 8}, 8, **sections))


def test_a_loud_client_is_refused_in_the_local_engine_and_the_model_gains() -> None:
    free, bounded = attacked(None), attacked("norm_bound")
    assert sum("refused" in line for line in free.clients) == 0
    reasons = [(line["client"], line["refused"]) for line in bounded.clients if "refused" in line]
    assert len(reasons) == 3
    assert len({client for client, _ in reasons}) == 1
    assert all("times the median" in reason for _, reason in reasons)
    assert bounded.metrics[-1]["test/loss"] < free.metrics[-1]["test/loss"]
