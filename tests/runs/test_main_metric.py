"""A run by another metric than accuracy, end to end: its records, statement, report, comparison; and its gaps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from experiments import digits, over

import hanse
from hanse.core.port import Request, Test
from hanse.data import Dataset, Samples
from hanse.federation.check import room
from hanse.federation.codec import pack, unpack_reply
from hanse.federation.node import Assignment, ClientData, Node
from hanse.learning.intervals import auc_interval
from hanse.reports.alone import train_alone
from hanse.reports.statement import render, statement
from hanse.runs.run_record import load_run
from hanse.runs.setup import build

HERE = f"{__name__}:"


def wards(**_: Any) -> Dataset:
    """Four hospitals with one disease: the first is small and has few cases, half of the others' patients are ill."""
    draw = np.random.default_rng(3)
    who = np.repeat(np.arange(4), (400, 900, 900, 900))
    y = (draw.random(len(who)) < np.where(who == 0, 0.15, 0.5)).astype(np.int64)
    x = draw.standard_normal((len(who), 20)) + 0.35 * y[:, None] * np.linspace(-1, 1.5, 20)
    samples = Samples(torch.tensor(x, dtype=torch.float32), torch.tensor(y))
    return Dataset("wards", samples, samples.take(torch.arange(0)), 2, (20,), client_of=who)


def one_sided(**_: Any) -> Dataset:
    """The same, and nobody is ill in the third."""
    data = wards()
    y = torch.where(torch.as_tensor(data.client_of) == 2, 0, data.train.y)
    return replace(data, train=Samples(data.train.x, y))


def well(**_: Any) -> Dataset:
    """The same with a test set in which nobody is ill."""
    data = wards()
    return replace(data, test=Samples(data.train.x[:50], torch.zeros(50, dtype=torch.int64)))


def failing(y: Any, p: Any) -> float:
    """Fail."""
    raise RuntimeError("no such luck")


def experiment(**sections: Any) -> hanse.Experiment:
    given: dict[str, Any] = {
        "data": {"source": HERE + "wards", "partition": "natural", "client_test": 0.75},
        "model": {"name": "mlp", "hidden": [16]}, "train": {"epochs": 4, "lr": 0.1, "batch_size": 16},
        "eval": {"metrics": ["auc", "f1"]}, "engine": {"train": "stacked"},
    }  # fmt: skip
    return digits("fedavg", 4, 4, **over(given, sections))


def own_auc(folder: Path, client: int) -> tuple[float, float]:
    """Return a client's AUC and accuracy on its own test share, by scikit-learn on the model that it holds."""
    result = hanse.resume(folder)
    pool, [index] = build(result.experiment).data.pool([client], "test")
    with torch.no_grad():
        outputs = result.model(client)(pool.x[index]).softmax(1)[:, 1].numpy()
    y = pool.y[index].numpy()
    return float(sk.roc_auc_score(y, outputs)), float(((outputs > 0.5) == y).mean())


def test_the_hospitals_statement_speaks_of_auc_and_does_not_say_it_lost(tmp_path: Path) -> None:
    played = hanse.run(experiment(), out=tmp_path / "joined").path
    train_alone(played)
    found = statement(played, 0)
    joined, alone = own_auc(played, 0), own_auc(played / "alone", 0)
    main = found.fit
    assert (main.reading.key, main.why) == ("auc", None)
    assert (main.last, main.alone) == (pytest.approx(joined[0], abs=1e-6), pytest.approx(alone[0], abs=1e-6))
    assert joined[0] > alone[0]
    assert joined[1] < alone[1]  # by accuracy, which the others' prevalence spoils, it lost
    assert found.client.paid_to_join in ("yes", "even")
    ends = main.interval or (np.nan, np.nan)
    assert ends[0] < joined[0] < ends[1] <= 1
    low, high = main.between or (np.nan, np.nan)
    assert low < joined[0] - alone[0] < high
    assert (found.client.paid_to_join == "yes") == (low > 0)


def test_a_client_of_one_class_has_a_named_gap(tmp_path: Path) -> None:
    asked = experiment(data={"source": HERE + "one_sided"}, run={"rounds": 1})
    said = build(asked).said
    reason = "all 675 test samples are of class 0, and AUC needs two classes"
    line = f"'auc': 1 of 4 clients have no AUC of their own (client 2): of client 2 {reason}"
    assert any(line in one for one in said)
    hanse.run(asked, out=tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.metrics[0]["client/test_auc_missing"] == 1
    tests = run.own_tests(0)
    assert np.isnan(tests.main).tolist() == [False, False, True, False]
    assert run.metrics[0]["client/test_auc"] == pytest.approx(np.nanmean(tests.main))
    assert tests.gaps[2] == reason
    told = statement(tmp_path / "run", 2)
    assert told.client.paid_to_join == "unknown"
    assert (told.fit.why.code, told.fit.why.fields["gap"]) == ("no_metric", reason)
    assert reason in render(told)
    [note] = [note for note in hanse.facts(tmp_path / "run").notes if note.code == "no_metric"]
    assert (note.fields["client"], note.said) == (2, f"Client 2: {reason}")


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"data": {"source": HERE + "well"}}, r"'auc'.*25 test"),
        ({"eval": {"metrics": [HERE + "failing"]}}, "'failing'"),
        ({"train": {"loss": "bce"}, "model": {"name": HERE + "two"}}, "one for each sample"),
        ({"model": {"name": HERE + "one"}}, r"train.loss.*'bce'"),
        ({"mechanism": {"value": {"name": "gtg", "utility": "r2"}},
          "data": {"validation": 0.2, "source": HERE + "mixed"}},
         "mechanism.value.utility: 'r2'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_round_0(sections: Any, line: str, tmp_path: Path) -> None:
    given = experiment().sections()
    given |= {name: ({} if name == "model" else given[name]) | table for name, table in sections.items()}
    with pytest.raises(hanse.UserError, match=line):
        hanse.run(hanse.Experiment(**given), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def one(input_shape: Any, num_classes: int | None) -> torch.nn.Module:
    """One output whatever is asked for."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(20, 1))


def two(input_shape: Any, num_classes: int | None) -> torch.nn.Module:
    """Two outputs whatever is asked for."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(20, 2))


def mixed(**_: Any) -> Dataset:
    """The hospitals, and test samples of both kinds."""
    data = wards()
    return replace(data, test=data.train.take(torch.arange(0, 3000, 5)))


def test_a_participant_on_a_network_reports_the_metrics_of_its_job(tmp_path: Path) -> None:
    pool = wards().train
    data = ClientData(pool.take(torch.arange(0, 100)), pool.take(torch.arange(100, 400)), num_classes=2)
    train = experiment(train={"loss": {"name": "bce", "weights": [1.0, 2.0]}}).train.model_dump()
    job = Assignment("run", 0, 1, 0, {"name": "logistic"}, train, metrics=["auc", {"name": HERE + "failing"}])
    node = Node(data, job, tmp_path, own={HERE + "failing": failing})
    row = torch.randn(21, generator=torch.Generator().manual_seed(0))
    request = Request(0, (Test("test", row),))
    [found] = unpack_reply(node.answer(0, pack(request)), room(request)).results
    assert found.metrics == {"auc": pytest.approx(sk.roc_auc_score(data.test.y, data.test.x @ row[:20]))}
    assert found.gaps == {"failing": "RuntimeError: no such luck"}
    assert found.without_block.shape == (20,)
    ill = int(data.test.y.sum())
    assert tuple(found.interval.tolist()) == auc_interval(found.metrics["auc"], ill, 300 - ill)
