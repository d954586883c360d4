"""``model.send = "trainable"``: rows without the frozen parameters, in every engine and on a network."""

import pytest
import torch
import user_loops  # noqa: F401 (imported by path)
from rotation import rotating

import hanse
from hanse.core.table import Layout
from hanse.learning.models import build_problem
from hanse.runs.rehearsal import small_experiment


def experiment(send: str, model: str = "tuned_plainly", mechanism: str = "fedavg") -> hanse.Experiment:
    sent = {"name": f"user_loops:{model}", "send": send}
    return small_experiment(mechanism, data={"clients": 5}, model=sent, train={"lr": 0.05, "epochs": 2})


@pytest.mark.parametrize("mechanism", rotating(["fedavg", "fedprox", "greedyfed", "ditto", "scaffold", "ipfl"], 3))
def test_what_is_sent_trains_and_scores_as_if_everything_were(mechanism: str) -> None:
    some, everything = (hanse.run(experiment(send, mechanism=mechanism)) for send in ("trainable", "all"))
    assert some.table.rows.shape[1] == 16 * 10 + 10
    assert everything.table.rows.shape[1] == 64 * 16 + 16 + 16 * 10 + 10
    torch.testing.assert_close(some.table.rows, everything.table.rows[:, -170:], atol=1e-5, rtol=1e-4)
    for a, b in zip(some.metrics, everything.metrics, strict=True):
        assert a["test/loss"] == pytest.approx(b["test/loss"], rel=1e-4)
        assert a["bytes/up"] < 0.2 * b["bytes/up"] or a["bytes/up"] == b["bytes/up"] == 0
    whole, same = some.model(0).state_dict(), everything.model(0).state_dict()
    for name in whole:
        torch.testing.assert_close(whole[name], same[name], atol=1e-5, rtol=1e-4)


def test_statistics_are_sent_for_training_moves_them() -> None:
    run = hanse.run(experiment("trainable", "tuned"))
    assert run.table.rows.shape[1] == 170 + 32
    assert bool((run.model(0)[0][2].running_mean != 0).all())  # type: ignore[index, union-attr]
    problem, row = build_problem("user_loops:tuned", (64,), 10, 0, send="trainable")
    assert problem.layout.num_parameters == 170
    assert problem.frozen_columns is None
    assert len(problem.frozen) == 4
    assert torch.equal(row[:170], Layout.of(problem.module).flatten(problem.module)[-202:-32])
