"""A run by another metric than accuracy, end to end: its records, statement, report, comparison; and its gaps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from rotation import rotating

import hanse
from hanse.base.errors import UserError
from hanse.core.port import Request, Test, Tested
from hanse.data import Dataset, Samples
from hanse.federation.check import room
from hanse.federation.codec import pack, unpack_reply
from hanse.federation.node import Assignment, ClientData, Node
from hanse.learning.intervals import auc_interval
from hanse.learning.metrics import LOSS, reading_of
from hanse.reports.accuracy import curve_charts
from hanse.reports.alone import train_alone
from hanse.reports.compare import compare_runs, compare_tables
from hanse.reports.fits import OwnTest, _interval
from hanse.reports.groups import group_runs
from hanse.reports.statement import render, statement
from hanse.runs.run_record import load_run
from hanse.runs.setup import build

HERE = f"{__name__}:"
SIZES = (400, 900, 900, 900)


def wards(**_: Any) -> Dataset:
    """Four hospitals with one disease: the first is small and has few cases, half of the others' patients are ill."""
    draw = np.random.default_rng(3)
    who = np.repeat(np.arange(4), SIZES)
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


def prices(**_: Any) -> Dataset:
    """Numbers to predict."""
    data = wards()
    x = data.train.x
    test = Samples(x[:90], x[:90, 0])
    return Dataset("prices", Samples(x, x[:, 0] * 2 + x[:, 1]), test, None, (20,), client_of=data.client_of)


def failing(y: Any, p: Any) -> float:
    """Fail."""
    raise RuntimeError("no such luck")


def experiment(**sections: Any) -> hanse.Experiment:
    given: dict[str, Any] = {
        "data": {"source": HERE + "wards", "partition": "natural", "clients": 4, "client_test": 0.75},
        "model": {"name": "mlp", "hidden": [16]},
        "mechanism": {"name": "fedavg"},
        "train": {"epochs": 4, "lr": 0.1, "batch_size": 16},
        "eval": {"metrics": ["auc", "f1"]},
        "engine": {"train": "stacked", "threads": 1},
        "run": {"rounds": 4},
    }
    return hanse.Experiment(**{key: given.get(key, {}) | sections.get(key, {}) for key in {**given, **sections}})


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wards") / "joined"
    hanse.run(experiment(), out=folder)
    train_alone(folder)
    return folder


def own_auc(folder: Path, client: int) -> tuple[float, float]:
    """Return a client's AUC and accuracy on its own test share, by scikit-learn on the model that it holds."""
    result = hanse.resume(folder)
    data = build(result.experiment).data
    pool, [index] = data.pool([client], "test")
    with torch.no_grad():
        outputs = result.model(client)(pool.x[index]).softmax(1)[:, 1].numpy()
    y = pool.y[index].numpy()
    return float(sk.roc_auc_score(y, outputs)), float(((outputs > 0.5) == y).mean())


def test_the_hospitals_statement_speaks_of_auc_and_does_not_say_it_lost(played: Path) -> None:
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


def test_records_report_and_comparison_have_the_metric(played: Path, tmp_path: Path) -> None:
    run = load_run(played)
    last = run.metrics[-1]
    each = [own_auc(played, c)[0] for c in range(4)]
    assert last["client/test_auc"] == pytest.approx(np.mean(each), abs=1e-6)
    assert last["client/test_auc_worst"] == pytest.approx(min(each), abs=1e-6)
    assert 0 < last["client/test_auc_error"] < 0.1
    plain = tmp_path / "plain"
    hanse.run(experiment(eval={"metrics": None}, train={"loss": {"name": "cross_entropy"}}), out=plain)
    rows = compare_runs([played, plain])
    assert [row["client_auc"] for row in rows] == [pytest.approx(np.mean(each), abs=1e-6), None]
    assert [row["client_accuracy"] is not None for row in rows] == [True, True]
    assert compare_tables(rows)[0].headings[:2] == ("run", "AUC at the clients")
    groups = group_runs([run])
    assert "AUC at the clients" in [chart.title for chart in curve_charts(groups)]


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


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        ({"data": {"source": HERE + "well"}}, r"'auc'.*25 test"),
        ({"eval": {"metrics": ["aucc"]}}, "eval.metrics: 'aucc': no such name; did you mean 'auc'?"),
        ({"eval": {"metrics": [HERE + "failing"]}}, "'failing'"),
        ({"train": {"loss": "mae"}}, r"train.loss: 'mae'.*2 classes"),
        ({"train": {"loss": "bce"}, "model": {"name": HERE + "two"}}, "output per"),
        ({"model": {"name": HERE + "one"}}, r"train.loss.*'bce'"),
        ({"mechanism": {"value": {"name": "gtg", "utility": "ac"}}}, "mechanism.value.utility: 'ac'"),
        ({"mechanism": {"value": {"name": "gtg", "utility": "r2"}},
          "data": {"validation": 0.2, "source": HERE + "mixed"}},
         "mechanism.value.utility: 'r2'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_round_0(sections: Any, line: str, tmp_path: Path) -> None:
    given = experiment().sections()
    given |= {name: ({} if name == "model" else given[name]) | table for name, table in sections.items()}
    with pytest.raises(UserError, match=line):
        play(given, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def play(given: Any, folder: Path) -> None:
    hanse.run(hanse.Experiment(**given), out=folder)


def one(input_shape: Any, num_classes: int | None) -> torch.nn.Module:
    """One output whatever is asked for."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(20, 1))


def two(input_shape: Any, num_classes: int | None) -> torch.nn.Module:
    """Two outputs whatever is asked for."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(20, 2))


def test_one_output_goes_through_values_tests_and_reports(tmp_path: Path) -> None:
    value = {"name": "mixture", "utility": "auc", "interactions": True}
    sections = {"mechanism": {"value": value}, "data": {"validation": 0.2, "source": HERE + "mixed"}}
    result = hanse.run(experiment(**sections, train={"loss": "bce"}, run={"rounds": 2}), out=tmp_path / "run")
    assert result.model(0)(torch.zeros(3, 20)).shape == (3, 1)
    assert {"test/auc", "test/auc_error", "client/test_auc", "client/test_f1"} <= result.metrics[-1].keys()
    line = result.clients[0]
    assert line["value_draw_error"] > 0  # another draw of validation samples would have judged otherwise
    given = statement(tmp_path / "run", 0).client
    assert given.drawn is not None
    assert given.value_low is not None


@pytest.mark.parametrize("name", rotating(["exact", "banzhaf", "mixture", "gtg"], 2))
def test_values_on_one_case_have_no_known_error(name: str) -> None:
    value = {"name": name, "utility": "auc"}
    sections = {"data": {"validation": 0.5, "source": HERE + "rare"}, "eval": {"metrics": ["loss"]}}
    result = hanse.run(experiment(**sections, mechanism={"value": value}, run={"rounds": 1}))
    assert all(np.isfinite(line["value"]) for line in result.clients)
    assert all(line.get("value_draw_error") is None for line in result.clients)


def rare(**_: Any) -> Dataset:
    """Two ill patients among sixty: one for validation, whose AUC without the block that has it is not known."""
    data = wards()
    return replace(data, test=Samples(data.train.x[:60], (torch.arange(60) % 30 == 0).long()))


def mixed(**_: Any) -> Dataset:
    """The hospitals, and test samples of both kinds."""
    data = wards()
    return replace(data, test=data.train.take(torch.arange(0, 3000, 5)))


def test_numbers_have_metrics_too(tmp_path: Path) -> None:
    sections = {"data": {"source": HERE + "prices"}, "eval": {"metrics": ["rmse", "r2"]}, "train": {"loss": "huber"}}
    hanse.run(experiment(**sections, run={"rounds": 1}), out=tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.main.less_is_better
    tests = run.own_tests(0)
    assert run.metrics[0]["client/test_rmse_worst"] == pytest.approx(tests.main.max())
    row = compare_runs([tmp_path / "run"])[0]
    assert (row["test_mse"], row["test_loss"]) == (None, None)
    assert row["test_rmse"] == run.metrics[0]["test/rmse"]
    assert row["test_loss: huber"] == run.metrics[0]["test/loss"]


def test_a_participant_on_a_network_reports_the_metrics_of_its_job(tmp_path: Path) -> None:
    pool = wards().train
    data = ClientData(pool.take(torch.arange(0, 100)), pool.take(torch.arange(100, 400)), num_classes=2)
    train = experiment(train={"loss": {"name": "bce", "weights": [1.0, 2.0]}}).train.model_dump()
    job = Assignment("run", 0, 1, 0, {"name": "logistic"}, train, metrics=["auc", {"name": HERE + "failing"}])
    node = Node(data, Assignment.from_json(job.to_json()), tmp_path, own={HERE + "failing": failing})
    row = torch.randn(21, generator=torch.Generator().manual_seed(0))
    request = Request(0, (Test("test", row),))
    [found] = unpack_reply(node.answer(0, pack(request)), room(request)).results
    assert isinstance(found, Tested)
    wanted = sk.roc_auc_score(data.test.y, data.test.x @ row[:20])
    assert found.metrics == {"auc": pytest.approx(wanted)}
    assert found.gaps == {"failing": "RuntimeError: no such luck"}
    assert found.without_block.shape == (20,)
    ill = int(data.test.y.sum())
    assert tuple(found.interval.tolist()) == auc_interval(found.metrics["auc"], ill, 300 - ill)


def cost(y: Any, p: Any, missed: float = 5.0) -> float:
    """Return what the missed cases cost, a patient."""
    return missed * float(((p[:, 1] < 0.5) & (y == 1)).mean())


def doubled(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return twice the cross-entropy."""
    return 2 * torch.nn.functional.cross_entropy(outputs, y, reduction="none")


def test_functions_as_metric_and_loss_are_written_down_by_their_import_paths() -> None:
    metrics = [cost, {"name": cost, "missed": 2.0}, "auc"]
    given = experiment(eval={"metrics": metrics}, train={"loss": doubled})
    assert given.eval.metrics == [HERE + "cost", {"name": HERE + "cost", "missed": 2.0}, "auc"]
    assert given.train.loss == HERE + "doubled"
    assert given == experiment(eval={"metrics": given.eval.metrics}, train={"loss": HERE + "doubled"})
    for section, said in (("eval", {"metrics": [lambda y, p: 1.0]}), ("train", {"loss": lambda o, y: o})):
        with pytest.raises(UserError, match="'def'"):
            experiment(**{section: said})


def test_an_interval_ends_where_the_metric_does() -> None:
    sides = 0.1 / 19**0.5 * np.where(np.arange(20) % 2, 1.0, -1.0)  # of which the jackknife's error is 0.1
    test = OwnTest(0, None, None, 40, None, 0.96, "", 0.96 + sides, None)
    low, high = _interval(reading_of("auc") or LOSS, 0.96, test) or (np.nan, np.nan)
    assert low == pytest.approx(0.96 - 2.093 * 0.1, abs=1e-3)  # Student's t with 19 degrees of freedom
    assert high == 1.0
    assert (_interval(LOSS, 0.96, test) or (0, 0))[1] == pytest.approx(0.96 + 2.093 * 0.1, abs=1e-3)
