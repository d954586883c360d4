"""What a client did before: its learning rate, where its batches go on, and the statistics that it keeps."""

from typing import Any

import pytest
import torch
from watching import Watch

import hanse
from hanse.core.recipe import Recipe
from hanse.learning.job import batch_plan, last_epoch
from hanse.runs.rehearsal import small_experiment


def experiment(rounds: int = 4, **train: Any) -> hanse.Experiment:
    equal = {"clients": 6, "client_test": 0.0, "client_validation": 0.0, "client_test_from": "equal", "validation": 0.0}
    model, train = {"name": "mlp", "hidden": [8], "batch_norm": True}, {"steps": 3, "batch_size": 16, **train}
    two = {"name": "fedavg", "clients_per_round": 2}
    return small_experiment(two, data=equal, model=model, train=train, run={"rounds": rounds, "seed": 1})


def test_batches_go_on_where_the_last_round_stopped() -> None:
    recipe, key = Recipe(steps=3, batch_size=2, order="by_class"), (0, 5, 0, 0)
    assert batch_plan(7, recipe, key).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert batch_plan(7, recipe, key, before=3).tolist() == [[6, -1], [0, 1], [2, 3]]  # the last short batch is kept
    assert batch_plan(7, recipe, key, before=6).tolist() == [[4, 5], [6, -1], [0, 1]]
    assert [last_epoch(7, recipe, before=b) for b in (0, 3, 6)] == [0, 1, 2]


def test_a_client_trains_from_shared_parameters_with_its_own_statistics_at_its_own_rate() -> None:
    """A run against the same rounds by hand, with one optimiser and one module a client."""
    watch = Watch()
    given = experiment(lr_decay=0.5, lr_decay_by="last", order="by_class", statistics="own")
    result = hanse.run(given, observers=[watch])
    from hanse.data import build
    from hanse.learning.models import build_problem

    data = build(given.data)
    problem, shared = build_problem("mlp", data.input_shape, 10, 1, hidden=[8], batch_norm=True)
    layout, cut = problem.layout, problem.layout.num_parameters
    kept = {c: shared[cut:].clone() for c in range(6)}
    last, steps = dict.fromkeys(range(6), 0), dict.fromkeys(range(6), 0)
    for t, played in enumerate(watch.rounds):
        rows, sizes = [], []
        for c in played.view.trained.seats.client.tolist():
            pool, [index] = data.pool([c])
            index = index[torch.argsort(pool.y[index], stable=True)]
            layout.load(problem.module, torch.cat([shared[:cut], kept[c]]))
            module = problem.module.train()
            optimiser = torch.optim.SGD(module.parameters(), 0.1 * 0.5 ** last[c])
            batches = [b for b in torch.split(index, 16) if len(b) > 1]
            for _ in range(3):
                batch = batches[steps[c] % len(batches)]
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(module(pool.x[batch]), pool.y[batch]).backward()
                optimiser.step()
                steps[c] += 1
            rows.append(layout.flatten(module))
            sizes.append(float(len(index)))
            kept[c], last[c] = rows[-1][cut:].clone(), t
        shared = (torch.tensor(sizes) / sum(sizes)) @ torch.stack(rows)
        assert torch.allclose(played.state.table.rows[0][:cut], shared[:cut], atol=1e-5)
        assert torch.allclose(played.state.history.statistics, torch.stack([kept[c] for c in range(6)]), atol=1e-5)
    right = 0
    for c in range(6):
        pool, [index] = data.pool([c], "test")
        layout.load(problem.module, torch.cat([shared[:cut], kept[c]]))
        with torch.no_grad():
            right += int((problem.module.eval()(pool.x[index]).argmax(1) == pool.y[index]).sum())
    assert result.metrics[-1]["client/test_accuracy_weighted"] == pytest.approx(right / (6 * len(index)), abs=2e-3)
    assert "test/accuracy" not in result.metrics[-1]  # the server has no statistics


@pytest.mark.parametrize(
    ("mechanism", "train", "line"),
    [
        ("ditto", {"statistics": "own"}, "train.statistics: 'own'"),
        ("scaffold", {"lr_decay_by": "last"}, "train.lr_decay_by: 'last'"),
    ],
)
def test_what_cannot_remember_is_refused(mechanism: str, train: dict[str, Any], line: str) -> None:
    given = experiment(**train)
    with pytest.raises(hanse.UserError, match=line):
        hanse.run(given.model_copy(update={"mechanism": type(given.mechanism)(name=mechanism)}))
