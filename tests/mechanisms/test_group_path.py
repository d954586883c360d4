"""Values under secure sums, in whole runs; and what does not go with them."""

from typing import Any

import pytest
from experiments import digits, over

import hanse


def experiment(secure: object, value: str | None, **more: Any) -> hanse.Experiment:
    mechanism = {"name": "fedavg", "clients_per_round": 9, **({} if value is None else {"value": value})}
    laid = over({"mechanism": mechanism, "federation": {} if secure is None else {"secure": secure}}, more)
    return digits(laid.pop("mechanism"), 9, 4, **laid)


def test_the_run_is_the_same_but_for_what_the_server_sees() -> None:
    plain, secure = (hanse.run(experiment(s, v)) for s, v in ((None, "path"), ({"group": 3}, "group_path")))
    for one, other in zip(plain.metrics, secure.metrics, strict=True):
        assert other["test/loss"] == pytest.approx(one["test/loss"], abs=1e-4)
        assert other["value/sum"] == pytest.approx(one["value/sum"], abs=1e-4)
    assert [line["value/sums"] for line in secure.metrics] == [3.0, 6.0, 9.0, 12.0]


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"mechanism": {"value": "gtg"}}, "mechanism.value: 'gtg' needs single updates"),
        ({"mechanism": {"weigh": "median"}}, "mechanism.weigh: 'median' needs single updates"),
        ({"mechanism": {"name": "scaffold"}}, "mechanism.train: 'scaffold' needs single updates"),
        ({"federation": {"secure": {"group": 2}}}, "federation.secure.group: 2"),
        ({"federation": {"secure": {"groups": 3}}}, "federation.secure.groups"),
        ({"federation": {"refuse": "norm_bound"}}, "federation.refuse: 'norm_bound': not with federation.secure"),
        ({"federation": {"enough": 3}}, "federation.enough: 3: not with federation.secure"),
        ({"federation": {"late": "next"}}, "federation.late: 'next': not with federation.secure"),
        ({"sizes": {"proved": True}}, "sizes.proved: true: not with federation.secure"),
    ],
)
def test_what_needs_single_updates_is_refused_before_round_0(table: dict[str, dict[str, object]], line: str) -> None:
    if "sizes" in table:
        pytest.importorskip("hanse.wings.evidence")
    with pytest.raises(hanse.UserError) as refused:
        hanse.run(experiment({"group": 3}, None, **table))
    assert any(line in one for one in refused.value.lines), refused.value.lines


def test_values_from_sums_need_sums() -> None:
    with pytest.raises(hanse.UserError, match="sums of groups of updates"):
        hanse.run(experiment(None, "group_path"))
