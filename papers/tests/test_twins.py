"""Null twins have the mechanism's interface and cost, and deal its game's outcome out at random."""

from dataclasses import replace

import numpy as np
import pytest
from experiments import digits

import hanse
from hanse.core.part import Settlement
from hanse.mechanisms.gtflat import GTFLAT
from hanse.mechanisms.pifl import Tokens
from hanse.mechanisms.value import GTG
from hanse.runs.rehearsal import rehearse
from hanse_papers.catalogue import find_table
from hanse_papers.twins import CappedShares, ShuffledRewards, ShuffledValues


def test_shuffled_values_are_the_same_numbers_of_other_clients() -> None:
    _, view, state = rehearse("greedyfed").before("value")
    earned, dealt = GTG().value(view, state)[0], ShuffledValues().value(view, state)[0]
    assert sorted(dealt.per_seat) == sorted(earned.per_seat)
    assert dealt.metrics == earned.metrics  # the same coalitions: the same cost
    assert dealt.per_seat.tolist() == ShuffledValues().value(view, state)[0].per_seat.tolist()
    rounds = [rehearse("greedyfed", n).before("value")[1:] for n in (1, 2, 3)]
    assert any((GTG().value(v, s)[0].per_seat != ShuffledValues().value(v, s)[0].per_seat).any() for v, s in rounds)


def rewards(settlement: Settlement) -> list[list[tuple[str, int]]]:
    """Who got what out of each tier's pool by rank."""
    return [list(one.postings) for one in settlement.transactions if one.kind == "reward"]


def test_shuffled_rewards_pay_the_same_amounts_to_others_and_touch_nothing_else() -> None:
    _, view, state = rehearse("pifl", 3).before("settle")  # the second round had an auction
    view = replace(view, stage="end", round=view.round + 100)  # not settled yet
    before = {key: value.copy() for key, value in state.items()}
    fair, _ = Tokens(tell="rewards").settle(view, state)
    dealt, after = ShuffledRewards().settle(view, state)
    assert after is state
    assert all((state[key] == value).all() for key, value in before.items())
    assert len(rewards(fair)) == 2
    amounts = [[sorted(units for _, units in tier) for tier in rewards(one)] for one in (fair, dealt)]
    assert amounts[0] == amounts[1]
    assert rewards(dealt) != rewards(fair)
    others = [[one for one in each.transactions if one.kind != "reward"] for each in (fair, dealt)]
    assert others[0] == others[1]


def test_a_random_graph_has_the_same_degrees_and_the_same_bills() -> None:
    data = {"partition": {"name": "niid", "alpha": 0.3}, "client_test": 0.2}
    chosen, placed = (
        hanse.run(digits({"name": name, "lam": 2.0, "keep_best": False, "last_market": True}, 6, data=data)).metrics
        for name in ("hanse_papers.authors:ipfl", "hanse_papers.twins:ipfl_at_random")
    )
    for name in ("market/edges", "market/money", "market/isolated"):
        assert placed[0][name] == pytest.approx(chosen[0][name], abs=1e-4)
    assert chosen[0]["market/edges"] > 0
    assert placed[1]["client/test_loss"] != chosen[1]["client/test_loss"]


@pytest.mark.parametrize("name", ["pifl", "greedyfed", "gtflat"])
def test_a_twin_costs_what_the_mechanism_costs(name: str) -> None:
    table = find_table(name, "twins", "smoke", "authors" if name == "gtflat" else "paper")
    arms = {
        "pifl": ("PI-FL (I)", "PI-FL (I), shuffled rewards"),
        "greedyfed": ("GreedyFed", "GreedyFed, shuffled values"),
        "gtflat": ("GTFedAvg", "GTFedAvg, start alone"),
    }[name]
    runs = []
    for arm in arms:
        cell = next(c for c in table.cells if c.algorithm == arm)
        sections = {key: dict(value) for key, value in cell.variants[0].sections.items()}
        sections["data"] = {**sections["data"], "source": "digits"}
        sections["model"] = {"name": "logistic"}
        runs.append(hanse.run(hanse.Experiment(**sections)).metrics)
    ours, twins = runs
    assert len(ours) == len(twins) > 2
    assert [line["bytes/up"] for line in ours] == [line["bytes/up"] for line in twins]
    if name == "greedyfed":  # in so short a run the others' games decide nothing
        assert ours[-1]["test/loss"] != twins[-1]["test/loss"]


def test_gtflats_twin_plays_nothing_and_has_the_same_random_start() -> None:
    _, view, _ = rehearse("gtfedavg").before("weigh")
    [group] = view.groups()
    alone = GTFLAT(population=100, start="random", generations=0, eps=1e-6)
    weights = alone.aggregate(group, {}).weights
    assert weights.sum() == pytest.approx(1)
    assert len(set(weights.tolist())) > 1  # drawn, not even
    assert weights.tolist() == alone.aggregate(group, {}).weights.tolist()
    assert (100 * len(weights) * weights).tolist() == pytest.approx(np.round(100 * len(weights) * weights))


def test_capped_shares_are_sample_shares_up_to_the_bound() -> None:
    (group,) = rehearse("fedavg").groups
    sizes = group.num_samples
    assert len(set(sizes.tolist())) > 1
    whole = sizes / sizes.sum()
    bound = float(np.sort(whole)[-2])  # of the second largest: only the largest is cut
    cut = np.minimum(whole, bound)
    found = CappedShares(most=bound).aggregate(group, {}).weights
    assert found.tolist() == pytest.approx((cut / cut.sum()).tolist())
    assert found.max() < whole.max()
    with pytest.raises(hanse.UserError, match=r"most"):
        hanse.Experiment(
            data={"source": "digits", "clients": 4},
            mechanism={"name": "fedavg", "weigh": {"name": "hanse_papers.twins:CappedShares", "most": 0}},
        )
