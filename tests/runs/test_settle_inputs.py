"""What a payment rule was shown is recorded, and it is called again with nothing else."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forging import rerecorded
from hypothesis import given
from hypothesis import strategies as st

import hanse
from hanse.core.entry import Transaction, client
from hanse.core.part import Mechanism, Settlement, SettlePart, State, View
from hanse.mechanisms.baselines import fedavg
from hanse.mechanisms.registry import PARTS
from hanse.reports.audit import audit_run
from hanse.runs.comparison import Comparison, UnlikeError
from hanse.runs.rehearsal import rehearse, small_experiment
from hanse.runs.replay import LEFT, ROUNDING, Examined
from hanse.runs.settle_inputs import NAME, NotRecordedError, RecordedInputs, SettleInputs, packed

READS = {
    "sum": lambda rows: int(rows.abs().sum() > 0),
    "tensor": lambda rows: len(torch.as_tensor(rows)),
    "number": lambda rows: int(float(rows[0, 0]) < 2),
    "list": lambda rows: int(next(iter(rows[:1]))[0] > 0),
    "numpy": lambda rows: len(np.asarray(rows)),
}


@dataclass(frozen=True)
class Pays(SettlePart):
    """Client 0 pays client 1 a sum that follows from what ``reads`` names."""

    reads: str = ""

    def init(self, context: Any) -> State:
        return {"due": 1}

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        if view.stage != "close":
            return Settlement(), state
        units = state["due"] + (READS[self.reads](view.table.rows) if self.reads else len(view.trained.seats))
        paid = Transaction("pay", "pay", ((client(0), -units), (client(1), units)))
        return Settlement(transactions=(paid,), arrays={"left": np.array([1e20, 1, 1e-17])}), {"due": units}

    def learn(self, outcome: View, state: State) -> State:
        return {"due": state["due"] + len(outcome.posted) + int(outcome.mixed.W.sum())}


def pays(reads: str = "") -> Mechanism:
    return Mechanism("pays", **{**fedavg(2).slots(), "settle": Pays(reads)})  # type: ignore[arg-type]


@pytest.mark.parametrize("settle", PARTS["settle"])
def test_every_round_of_every_rule_here_is_settled_again(settle: str, tmp_path: Path) -> None:
    own = {"name": "ipfl"} if settle == "ipfl" else {"name": "fedavg", "value": "path", "settle": settle}
    hanse.run(small_experiment(own), out=tmp_path / "run")
    found = Examined(tmp_path / "run")
    assert (found.failed(), found.again.rounds, found.again.why_not) == (None, 3, "")


@pytest.mark.parametrize(("far", "left", "holds"), [(1.0, 0.0, True), (1.0, 1e-11, False), (1 + 1e-9, 0.0, False)])
def test_rounding_is_no_fault_and_a_huge_number_hides_none(
    far: float, left: float, holds: bool, tmp_path: Path
) -> None:
    hanse.run(small_experiment(f"{__name__}:pays"), out=tmp_path / "run")
    rerecorded(tmp_path / "run", 1, left=np.array([1e20, far, left]))
    assert audit_run(tmp_path / "run", trust=True).holds is holds


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=100), st.floats(1, 1e300), st.floats(1e-6, 1))
def test_sums_in_another_order_are_alike_and_changes_are_not(terms: list[float], huge: float, change: float) -> None:
    alike = Comparison(ROUNDING, least=LEFT * max(1.0, sum(map(abs, terms))))
    for around in ([], terms):  # terms that cancel each other leave rounding alone
        mine, theirs = (np.array([huge, sum(order) - sum(around)]) for order in (terms, terms[::-1]))
        alike.same("{}", {"x": mine}, {"x": theirs})
    with pytest.raises(UnlikeError):
        alike.same("{}", {"x": mine}, {"x": mine * [1, 1 + 1e-6] + [0, change]})


@pytest.mark.parametrize("reads", READS)
def test_a_rule_that_reads_models_is_not_called_again_and_that_is_no_fault(reads: str, tmp_path: Path) -> None:
    run = hanse.run(small_experiment({"name": f"{__name__}:pays", "reads": reads}), out=tmp_path / "run")
    audit = audit_run(run.path, trust=True)
    assert audit.holds
    assert "settled again" in {fact.name for fact in audit.facts}


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.complex64])
def test_tensors_are_recorded_bit_for_bit_whatever_their_type(kind: torch.dtype) -> None:
    given = torch.tensor([1.5, -0.0]).to(kind)
    arrays = packed(SettleInputs({"open": {"state t": given}}), rehearse("fedavg").view.context, {})
    back = RecordedInputs(arrays, {}).view("open").note("state t")
    assert back.dtype == kind
    assert torch.equal(back.view(torch.uint8), given.view(torch.uint8))


def test_a_record_cannot_unfold_into_more_than_it_has() -> None:
    folded: dict[str, Any] = {"$list": []}
    for number in range(100):
        folded = {"$list": [folded, {"$again": number}]}
    huge = {"$sparse": ["<f8", [10**7, 10**7], [{"$array": ["<i8", [0], []]}] * 3]}
    calls = {"$map": [["open", {"$map": [["state folded", folded], ["state huge", huge]]}]]}
    text = json.dumps({"run": {"clients": 1, "rounds": 1, "seed": 0}, "calls": calls})
    view = RecordedInputs({NAME: np.frombuffer(text.encode(), np.uint8)}, {}).view("open")
    assert len(view.note("state folded")) == 2
    with pytest.raises(NotRecordedError):
        view.note("state huge")
