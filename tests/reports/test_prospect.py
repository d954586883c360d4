"""What an experiment may cost a client, said before it joins: no client lost more."""

from dataclasses import replace
from pathlib import Path

import pytest
from reports_cases import market_experiment

import hanse
from hanse.core.entry import TOKEN, client, escrow
from hanse.core.part import Mechanism, Settlement, SettlePart, State, View
from hanse.ledger.run_ledger import open_ledger
from hanse.mechanisms.baselines import fedavg
from hanse.reports.prospect import prospect

PIFL = {
    "data": {"source": "digits", "partition": "mixture", "clients": 6, "client_test": 0.2, "client_validation": 0.1},
    "model": {"name": "mlp", "hidden": [8]},
    "mechanism": {"name": "pifl", "tiers": 2, "by_contribution": 2, "at_random": 1, "price": 2.0, "eta": 0.3},
    "engine": {"train": "stacked", "threads": 1},
    "run": {"rounds": 6},
}


# ---- before joining


def test_no_client_lost_more_than_was_said_before(tmp_path: Path) -> None:
    said = prospect(hanse.Experiment(**PIFL), 0)
    assert (said.grant, said.debt) == (100 * TOKEN, 0)
    assert said.most_round == 4 * TOKEN  # a bid on each of two models, 2 tokens each
    assert said.most == 5 * 4 * TOKEN  # 5 auctions: the first is in round 1
    hanse.run(hanse.Experiment(**PIFL), out=tmp_path / "run")
    check_bounds(tmp_path / "run", dict.fromkeys(range(6), (said.most_round, said.most)))
    assert any("comes back" in line for line in said.pays)
    assert any("30 %" in line for line in said.gains)
    # 3 seats: ranks 3, 2, 1 of a pot of 6 tokens
    assert any("gets 3 tokens for its 2, the least valuable 1," in line for line in said.gains)


def test_the_grant_bounds_what_can_be_lost() -> None:
    many = PIFL | {"run": {"rounds": 200}}
    assert prospect(hanse.Experiment(**many), 0).most == 100 * TOKEN
    owing = many | {"ledger": {"floor": -7.5}, "clients": {"exit": {"balance": "lost"}}}
    found = prospect(hanse.Experiment(**owing), 0)
    assert "mint" in found.pays[-1]  # where what is left goes if it leaves
    assert (found.debt, found.most) == (75 * TOKEN // 10, 1075 * TOKEN // 10)
    assert any("7.5 tokens" in line for line in found.pays)


def test_no_bill_of_a_market_was_above_what_was_said_before(tmp_path: Path) -> None:
    said = {c: prospect(market_experiment(4), c) for c in range(12)}
    hanse.run(market_experiment(4), out=tmp_path / "run")
    check_bounds(tmp_path / "run", {c: (p.most_round, p.most) for c, p in said.items()})
    assert said[11].most_round == said[11].most == 0  # the attacker is not eager
    buyer, seller = said[1], said[0]
    assert any("nobody can buy its model" in line for line in buyer.gains)
    assert any("0 tokens" in line for line in seller.gains)
    assert 0 < buyer.most_round < 100 * TOKEN


def check_bounds(folder: Path, bounds: dict[int, tuple[int | None, int | None]]) -> None:
    """What left a client's account for others in a round, and over the run, is within what was said."""
    records = [r for r in open_ledger(folder).history() if r.transaction.kind not in ("grant", "return")]
    for c, (round_, run) in bounds.items():
        spent: dict[int, int] = {}
        net = 0
        for r in records:
            for name, units in r.transaction.postings:
                if name == client(c) and units < 0:
                    spent[r.round] = spent.get(r.round, 0) - units
                net += units if name in (client(c), escrow(c)) else 0
        assert max(spent.values(), default=0) <= round_
        assert -net <= run


def test_a_policy_that_agrees_to_less_and_prices_without_a_bound() -> None:
    given = market_experiment(20).sections()
    given["clients"] |= {"policy": {"name": "trader", "most": 1.5}}
    found = prospect(hanse.Experiment(**given), 1)
    assert found.most_round == 1_500_000
    assert found.most == 19 * 1_500_000  # none after the last round
    assert any("1.5 tokens" in line for line in found.pays)
    given["clients"]["policy"] = "loyal"
    given["mechanism"] |= {"settle": {"pricing": "posted"}}
    assert prospect(hanse.Experiment(**given), 1).most_round is None


def test_where_nobody_pays_and_where_the_data_are_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HANSE_DATA", raising=False)
    found = prospect(hanse.Experiment(mechanism={"name": "fedavg"}), 0)
    assert (found.grant, found.most, found.pays) == (None, None, ("Nobody pays in this experiment.",))
    away = PIFL | {"data": {"source": "mnist", "path": str(tmp_path), "clients": 6}}
    found = prospect(hanse.Experiment(**away), 5)
    assert found.most == 20 * TOKEN
    assert any("depends on the data" in line for line in found.unknown)
    with pytest.raises(hanse.UserError, match="clients 0 to 5"):
        prospect(hanse.Experiment(**away), 6)
    # how many clients there are is not known either, where only the data say it
    away["data"] = {"source": "module_that_is_not_here:table"}
    for number in (7, 70):
        assert f"Whether there is a client {number}" in prospect(hanse.Experiment(**away), number).unknown[0]


class Fees(SettlePart):
    """Somebody's own rule."""

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        return Settlement(), state


def fees() -> Mechanism:
    return replace(fedavg(), settle=Fees())


def test_an_unknown_settle_part_is_bounded_by_the_grant() -> None:
    found = prospect(hanse.Experiment(mechanism={"name": f"{__name__}:fees"}, clients={"grant": 12.0}), 0)
    assert found.most == 12 * TOKEN
    assert found.most_round is None
    assert [("'Fees'" in line, "at most its grant of 12 tokens" in line) for line in found.pays] == [(True, True)]


@pytest.mark.by_turns(3, 1)
def test_how_long_a_budget_that_hides_single_samples_lasts() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra 'private'")
    pytest.importorskip("opacus", reason="needs the extra 'private'")
    private = {"unit": "sample", "epsilon": 4.0, "delta": 1e-4, "clip": 1.0}
    given = {"data": {"clients": 6}, "mechanism": "fedavg", "run": {"rounds": 5}}

    def gives(noise: float | None) -> str:
        rule = private if noise is None else {**private, "noise": noise}
        return prospect(hanse.Experiment(**given, federation={"private": rule}), 2).gives[-1]

    chosen = gives(None)  # as much as the budget needs to last for the run
    assert "epsilon 4 at delta 0.0001" in chosen
    assert "5 rounds" in chosen
    assert "0 of 5 rounds" in gives(0.2)
    private["delta"] = 0.01
    with pytest.raises(hanse.UserError, match=r"^federation.private.delta: 0.01: must be below 1/[0-9]+"):
        gives(None)
