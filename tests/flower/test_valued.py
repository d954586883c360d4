"""Values around any Flower strategy: training is as without hanse, bit for bit, and values are what they say."""

import copy
import itertools
import math
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import invoke
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg, Strategy
from mistaken import mistakes
from recorded import SHAPES, RecordedGrid, failed, first_arrays, trained
from strategies import STRATEGIES, Few, Locked, Outside, Renaming, Saving, SavingMedian

import hanse
from hanse.core.entry import TOKEN
from hanse.runs.run_record import load_run

ROUNDS = 3
# each starts a process for each aggregate that it makes again
pytestmark = [pytest.mark.by_turns(3), pytest.mark.usefixtures("warm")]


def evaluate(arrays: ArrayRecord) -> dict[str, float]:
    """A loss that is not linear; it draws from every generator, as an evaluation with dropout would."""
    random.random(), np.random.standard_normal(), torch.rand(3)  # noqa: NPY002
    return {"loss": float(sum(np.log1p(np.square(a.numpy() - 0.2)).sum() for a in arrays.values()))}


def seed() -> None:
    random.seed(5)
    np.random.seed(6)  # noqa: NPY002
    torch.manual_seed(7)


def drawn() -> tuple[Any, ...]:
    """What each generator would give next."""
    return random.getrandbits(64), np.random.bytes(8), torch.randint(2**60, (1,)).item()  # noqa: NPY002


def plain(strategy: Strategy, grid: RecordedGrid | None = None) -> Any:
    seed()
    result = strategy.start(grid or RecordedGrid(), first_arrays(), num_rounds=ROUNDS)
    return numbers(result), state_of(strategy), drawn()


def watched(strategy: Strategy, out: Path, grid: RecordedGrid | None = None, **more: Any) -> Any:
    seed()
    with hanse.valued(strategy, out=out, **{"validation": evaluate, **more}) as listened:
        assert isinstance(listened, type(strategy))
        result = listened.start(grid or RecordedGrid(), first_arrays(), num_rounds=ROUNDS)
    return numbers(result), state_of(strategy), drawn()


def numbers(result: Any) -> Any:
    """All of a Flower result, its arrays as bytes."""
    arrays = {name: (a.dtype, a.shape, a.data) for name, a in result.arrays.items()}
    return arrays, dict(result.train_metrics_clientapp), dict(result.evaluate_metrics_clientapp)


def state_of(thing: Any) -> Any:
    """A strategy's state down to its bytes."""
    if isinstance(thing, np.ndarray):
        return thing.dtype.str, thing.shape, thing.tobytes()
    if isinstance(thing, dict):
        return {key: state_of(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [state_of(one) for one in thing]
    if isinstance(thing, Array):
        return thing.dtype, thing.shape, thing.data
    if isinstance(thing, Strategy):
        return type(thing), {name: state_of(value) for name, value in vars(thing).items()}
    return dict(thing) if isinstance(thing, ArrayRecord) else thing


def files(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


# ---- the training is the same


@pytest.mark.parametrize("name", STRATEGIES)
def test_models_state_and_generators_are_as_without_hanse(name: str, tmp_path: Path) -> None:
    grids = RecordedGrid(), RecordedGrid()
    without = plain(STRATEGIES[name](), grids[0])
    assert watched(STRATEGIES[name](), tmp_path / "run", grids[1]) == without
    assert grids[0].sent == grids[1].sent
    record = load_run(tmp_path / "run")
    assert gaps(tmp_path / "run") == [None] * ROUNDS
    assert all(seat.value is not None for seat in record.clients)
    for line in record.metrics:  # no second is counted in two stages
        stages = {key: spent for key, spent in line.items() if key.startswith("time/")}
        whole = stages.pop("time/round_s"), stages.pop("time/play_s")
        assert sum(stages.values()) <= max(whole)


def test_what_a_strategy_saves_is_what_it_saves_without_hanse(tmp_path: Path) -> None:
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    kinds = ("npz", "torch", "text")
    plain(Saving(tmp_path / "without", *kinds))
    watched(Saving(tmp_path / "with", *kinds), tmp_path / "run")
    assert len(files(tmp_path / "with")) == 2 * ROUNDS + 1
    assert files(tmp_path / "with").keys() == files(tmp_path / "without").keys()
    for saved, written in files(tmp_path / "with").items():
        if not saved.endswith("npz"):  # a zip has the time in it
            assert written == files(tmp_path / "without")[saved]
    assert all("gap" not in line for line in load_run(tmp_path / "run").metrics)  # it is an average


@pytest.mark.parametrize("how", ["text", "torch"])
def test_a_rule_that_writes_and_is_no_average_is_not_made_again(how: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    watched(SavingMedian(tmp_path / "a", how), tmp_path / "run")
    assert all("allowed while" in str(gap) for gap in gaps(tmp_path / "run"))
    assert files(tmp_path / "a").get("log.txt", b"1\n2\n3\n") == b"1\n2\n3\n"


# ---- values


def test_a_round_of_equal_replies_does_not_tell_that_a_rule_averages(tmp_path: Path) -> None:
    def meddle(node: int, round: int, reply: Message) -> Message:
        if round == 1:
            reply.content["arrays"] = ArrayRecord({n: Array(np.zeros(s, np.float32)) for n, s in SHAPES.items()})
        return reply

    watched(Few(), tmp_path / "run", RecordedGrid(4, meddle))
    assert [line.get("value/aggregated_again") for line in load_run(tmp_path / "run").metrics] == [1.0] * ROUNDS


def by_round(path: Path) -> list[dict[int, Any]]:
    seats = load_run(path).clients
    return [{seat.client + 1: seat.value for seat in seats if seat.round == number} for number in range(ROUNDS)]


def shapley(worth: Callable[[tuple[int, ...]], float], nodes: list[int]) -> dict[int, float]:
    """By its definition, over all orders of the nodes."""
    found = dict.fromkeys(nodes, 0.0)
    for order in itertools.permutations(nodes):
        for place, node in enumerate(order):
            found[node] += worth(tuple(sorted(order[: place + 1]))) - worth(tuple(sorted(order[:place])))
    return {node: total / math.factorial(len(nodes)) for node, total in found.items()}


def test_values_of_fedavg_are_those_of_hanse_value(tmp_path: Path) -> None:
    watched(FedAvg(), tmp_path / "run")
    arrays = first_arrays()
    for number, found in enumerate(by_round(tmp_path / "run"), 1):
        replies = [trained(node, number, arrays) for node in (1, 2, 3, 4)]
        updates = [reply["arrays"].to_numpy_ndarrays() for reply in replies]

        def worth(model: Any) -> float:
            return -evaluate(ArrayRecord(model))["loss"]

        told = hanse.value(updates, worth, [10, 20, 30, 40], start=arrays.to_numpy_ndarrays())
        assert list(found.values()) == pytest.approx(told.values.tolist(), rel=1e-5, abs=1e-6)
        mean = [sum(w * u[i] for w, u in zip((0.1, 0.2, 0.3, 0.4), updates, strict=True)) for i in range(2)]
        arrays = ArrayRecord(dict(zip(arrays, (Array(m.astype(np.float32)) for m in mean), strict=True)))


def made_again(strategy: Strategy, number: int, replies: list[Message], old: ArrayRecord) -> Any:
    """What the strategy's aggregate of some nodes' replies is worth, each coalition with the same noise."""
    before, noise = copy.deepcopy(strategy), np.random.get_state()  # noqa: NPY002

    @cache
    def worth(nodes: tuple[int, ...]) -> float:
        np.random.set_state(noise)  # noqa: NPY002
        mine = [copy.deepcopy(reply) for reply in replies if reply.metadata.src_node_id in nodes]
        made = copy.deepcopy(before).aggregate_train(number, mine)[0] if nodes else old
        return -evaluate(made)["loss"]

    return worth


@pytest.mark.parametrize("name", [*STRATEGIES][1:])
def test_values_of_other_rules_are_brute_force_over_aggregates_made_again(name: str, tmp_path: Path) -> None:
    watched(STRATEGIES[name](), tmp_path / "run")
    found = by_round(tmp_path / "run")
    seed()
    strategy, grid, arrays = STRATEGIES[name](), RecordedGrid(), first_arrays()
    for number in range(1, ROUNDS + 1):
        replies = list(grid.send_and_receive(strategy.configure_train(number, arrays, ConfigRecord(), grid)))
        drawn_before = np.random.get_state()  # noqa: NPY002
        expected = shapley(made_again(strategy, number, replies, arrays), [1, 2, 3, 4])
        assert found[number - 1] == pytest.approx(expected, rel=1e-5, abs=1e-6)
        np.random.set_state(drawn_before)  # noqa: NPY002
        arrays, _ = strategy.aggregate_train(number, replies)
        list(grid.send_and_receive(strategy.configure_evaluate(number, arrays, ConfigRecord(), grid)))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((4, 3), 0.5))
        self.b = torch.nn.Parameter(torch.full((3,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.w) + self.b


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    return torch.randn(60, 4, generator=draw), torch.randint(3, (60,), generator=draw)


def net_of(arrays: Any) -> Net:
    net = Net()
    net.load_state_dict({k: torch.from_numpy(v.numpy().astype(np.float32)) for k, v in arrays.items()})
    return net


def entropy(arrays: Any) -> float:
    """The loss of a model on the samples."""
    x, y = samples()
    return float(torch.nn.functional.cross_entropy(net_of(arrays)(x), y).detach())


def right(arrays: ArrayRecord) -> float:
    """The share of the samples of which a model says the class."""
    x, y = samples()
    return float((net_of(arrays)(x).argmax(1) == y).double().mean())


def loss(arrays: ArrayRecord) -> dict[str, float]:
    return {"loss": entropy(arrays)}


def test_a_module_and_a_validation_set_are_the_function_that_they_stand_for(tmp_path: Path) -> None:
    x, y = samples()

    watched(FedAvg(), tmp_path / "function", validation=loss)
    net = Net()
    before = copy.deepcopy(net.state_dict())
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)
    told = watched(FedAvg(), tmp_path / "module", validation=loader, model=net, method="mixture")
    assert told == plain(FedAvg())
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    for mine, other in zip(by_round(tmp_path / "module"), by_round(tmp_path / "function"), strict=True):
        assert mine == pytest.approx(other, rel=1e-4, abs=1e-5)
    model = hanse.load(tmp_path / "module", trust=True, model=Net()).model()
    kind, shape, data = told[0][0]["w"]
    saved = Array(kind, shape, "numpy.ndarray", data).numpy()
    assert model.w.detach().numpy() == pytest.approx(saved, rel=1e-6)


def test_with_a_model_the_values_of_an_average_are_path_values_along_its_own_gradient(tmp_path: Path) -> None:
    """Each reply's value beside a fine Riemann sum of <gradient, weighted step> by autograd, round by round."""
    x, y = samples()
    frozen = Net()  # a judge's copy is often frozen, which says nothing about what the app trains
    frozen.w.requires_grad_(False)
    assert watched(FedAvg(), tmp_path / "run", validation=(x, y), model=frozen) == plain(FedAvg())
    assert not frozen.w.requires_grad
    arrays, fell = first_arrays(), 0.0
    for number, found in enumerate(by_round(tmp_path / "run"), 1):
        steps = {}
        for node, weight in zip((1, 2, 3, 4), (0.1, 0.2, 0.3, 0.4), strict=True):
            sent = trained(node, number, arrays)["arrays"]
            steps[node] = {k: weight * (sent[k].numpy() - arrays[k].numpy()).astype(float) for k in arrays}
        whole = {k: sum(step[k] for step in steps.values()) for k in arrays}
        expected = dict.fromkeys(steps, 0.0)
        for t in (np.arange(200) + 0.5) / 200:
            net = net_of({k: Array(arrays[k].numpy() + t * whole[k]) for k in arrays})
            torch.nn.functional.cross_entropy(net(x), y).backward()
            for node, step in steps.items():
                expected[node] -= sum(float((p.grad.numpy() * step[k]).sum()) for k, p in net.named_parameters()) / 200
        assert found == pytest.approx(expected, rel=0.01, abs=1e-5)
        before = entropy(arrays)
        arrays = ArrayRecord({k: Array((arrays[k].numpy() + whole[k]).astype(np.float32)) for k in arrays})
        fell += before - entropy(arrays)
        assert max(map(abs, found.values())) > 0.002
    lines = load_run(tmp_path / "run").metrics
    assert sum(line["value/gain"] for line in lines) == pytest.approx(fell, abs=1e-5)
    assert sum(line["value/sum"] for line in lines) == pytest.approx(fell, rel=0.01)


def test_what_has_no_gradient_or_is_no_average_is_valued_by_other_methods(tmp_path: Path) -> None:
    x, y = samples()
    for name, strategy, more in (
        ("adam", STRATEGIES["fedadam"](), {}),
        ("accuracy", FedAvg(), {"utility": "accuracy", "method": "exact"}),
        ("method", FedAvg(), {"method": {"name": "exact", "utility": "accuracy"}}),
    ):
        watched(strategy, tmp_path / name, validation=(x, y), model=Net(), **more)
        lines = load_run(tmp_path / name).metrics
        there = [("value/gain" in line, "value/all_together" in line, "gap" in line) for line in lines]
        assert there == [(False, True, False)] * ROUNDS
    watched(FedAvg(), tmp_path / "right", method="exact", validation=lambda arrays: {"accuracy": right(arrays)})
    for name in ("accuracy", "method"):  # it was the loss that they were valued by
        assert by_round(tmp_path / name)[0] == pytest.approx(by_round(tmp_path / "right")[0], abs=1e-6)
    watched(STRATEGIES["fedadam"](), tmp_path / "asked", validation=(x, y), model=Net(), method="path")
    assert ["'path'" in str(gap) for gap in gaps(tmp_path / "asked")] == [True] * ROUNDS


def test_in_the_increment_game_a_reply_that_changes_nothing_is_worth_nothing(tmp_path: Path) -> None:
    """The game's name was taken and the game of averages played."""

    def idle(node: int, number: int, reply: Message) -> Message:
        if node == 3 and number == 1:
            reply.content["arrays"] = first_arrays()
        return reply

    method = {"name": "exact", "game": "increment"}
    watched(FedAvg(), tmp_path / "run", RecordedGrid(4, idle), method=method, validation=loss)
    found, line = by_round(tmp_path / "run")[0], load_run(tmp_path / "run").metrics[0]
    assert found[3] == pytest.approx(0.0, abs=1e-6)
    assert min(abs(found[node]) for node in (1, 2, 4)) > 5e-4
    assert sum(found.values()) == pytest.approx(line["value/all_together"] - line["value/nothing"], abs=1e-5)
    watched(STRATEGIES["fedadam"](), tmp_path / "adam", method=method, validation=loss)
    assert ["'increment'" in str(gap) for gap in gaps(tmp_path / "adam")] == [True] * ROUNDS


@pytest.mark.usefixtures("undrawn")
def test_a_payment_rule_fills_a_ledger_that_verifies(tmp_path: Path) -> None:
    without = plain(FedAvg())
    assert watched(FedAvg(), tmp_path / "run", payment={"name": "recorded:Wages", "pot": 7}) == without
    run = hanse.load(tmp_path / "run", trust=True)
    assert sum(run.book.balance(f"client/{c}") for c in range(4)) == (4 * 100 + ROUNDS * 7) * TOKEN
    kept = tmp_path / "run" / "receipts"
    for words in (["ledger", "verify", "--receipts", str(kept)], ["report"], ["statement", "--client", "0"], ["audit"]):
        done = invoke(*words, tmp_path / "run")
        assert done.exit_code == 0, done.output
    with pytest.raises(hanse.UserError, match="exists already"):
        watched(FedAvg(), tmp_path / "run")
    watched(FedAvg(), tmp_path / "run", overwrite=True)  # which the refusal does not keep locked


# ---- bad input


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"validation": 3}, "function evaluate"),
        ({"model": "net"}, "torch.nn.Module"),
        ({"validation": None, "model": Net()}, "model: needs validation="),
        ({"method": "mixtur"}, "method: 'mixtur'"),
        ({"method": "path", "model": Net(), "validation": samples(), "utility": "accuracy"}, "method: 'path'"),
        ({"payment": "tokens"}, "payment: 'tokens'"),
        ({"grant": -1.0}, "grant"),
        ({"out": None}, "new folder"),
        ({"names": ["Harvest"]}, "names"),
    ],
)
def test_wrong_arguments_are_one_line_before_anything_is_made(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in mistakes(hanse.valued, FedAvg(), **{"out": tmp_path / "run", "validation": evaluate, **more})[0]
    assert not (tmp_path / "run").exists()


def test_what_is_no_strategy_a_place_that_is_taken_and_another_start_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(hanse.UserError, match=r"strategy: object: must be"):
        hanse.valued(object(), validation=evaluate, out=tmp_path / "run")  # type: ignore[type-var]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    with pytest.raises(hanse.UserError, match="class FedAvg"):
        hanse.valued(FedAvg, validation=evaluate, out=tmp_path / "run")  # type: ignore[type-var]
    with pytest.raises(hanse.UserError) as wrong, hanse.valued(FedAvg(), validation=evaluate, out=tmp_path / "run"):
        pass
    assert str(wrong.value) == f"out: {tmp_path / 'run'}: exists already; give another folder, or overwrite=True"
    with pytest.raises(hanse.UserError, match=r"hanse.valued"):
        hanse.valued(FedAvg(), validation=evaluate, out=tmp_path / "run").start()
    strategy = FedAvg()
    with caplog.at_level("WARNING"), hanse.valued(strategy, validation=evaluate, out=tmp_path / "a"):
        strategy.start(RecordedGrid(), first_arrays(), num_rounds=1)  # not what the block gives
    assert "no round was seen" in caplog.text
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("validation", "utility", "said"),
    [
        (lambda arrays: 1 / 0, None, "validation: ZeroDivisionError"),
        (lambda arrays: math.nan, None, "validation: returned nan: must be finite"),
        (lambda arrays: "good", None, "validation: returned 'good': must be a number"),
        (lambda arrays: {"loss": 1.0}, "accuracy", "utility: 'accuracy': the model has no figure of that name"),
        (lambda arrays: 1.0, "loss", "utility: 'loss': validation returned one number: must be numbers by name"),
    ],
)
def test_an_evaluation_that_never_works_is_said_before_anything_is_sent(
    validation: Any, utility: str | None, said: str, tmp_path: Path
) -> None:
    grid = RecordedGrid()
    assert said in mistakes(watched, FedAvg(), tmp_path / "run", grid, validation=validation, utility=utility)[0]
    assert not grid.sent
    assert not (tmp_path / "run").exists()


def test_arrays_that_are_not_the_models_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    grid = RecordedGrid()
    other = ArrayRecord({"w": Array(np.zeros((4, 3), np.float32)), "b": Array(np.zeros(5, np.float32))})
    listening = hanse.valued(FedAvg(), validation=samples(), model=Net(), out=tmp_path / "run")
    with pytest.raises(hanse.UserError, match=r"array 'b': has shape \[5\]: must be \[3\]"), listening as strategy:
        strategy.start(grid, other, num_rounds=1)
    assert not grid.sent


def gaps(path: Path) -> list[str | None]:
    return [line.get("gap") for line in load_run(path).metrics]


@pytest.mark.parametrize("error", [RuntimeError("CUDA out of memory"), SystemExit(3)])
def test_an_evaluation_that_fails_later_is_a_gap_and_training_goes_on(error: BaseException, tmp_path: Path) -> None:
    calls = itertools.count()

    def fragile(arrays: ArrayRecord) -> float:
        if next(calls) > 20:
            raise error
        return evaluate(arrays)["loss"]

    assert watched(FedAvg(), tmp_path / "run", validation=fragile) == plain(FedAvg())
    assert gaps(tmp_path / "run") == [None, *[f"validation: {type(error).__name__}: {error}"] * 2]


@pytest.mark.parametrize(
    ("strategy", "said"),
    [(Locked, "it cannot be pickled"), (Outside, "it has state that a copy does not carry"), (Renaming, "")],
)
def test_an_aggregate_that_cannot_be_made_again_or_read_is_a_gap(
    strategy: type[Strategy], said: str, tmp_path: Path
) -> None:
    watched(strategy(), tmp_path / "run", validation=evaluate)
    assert [gap is not None and said in gap for gap in gaps(tmp_path / "run")] == [True] * ROUNDS
    assert all(seat.value is None and seat.weight is None for seat in load_run(tmp_path / "run").clients)


def test_clients_that_fail_leave_or_come_are_named_and_the_others_valued(tmp_path: Path) -> None:
    def meddle(node: int, round: int, reply: Message) -> Message | None:
        if (node, round) == (2, 1):
            return failed(reply)
        return None if (node, round) == (3, 2) else reply

    class Growing(RecordedGrid):
        def get_node_ids(self) -> Any:
            return list(range(1, 4 + (len(self.sent) > 20)))

    grids = [Growing(4, meddle) for _ in range(2)]
    few = {"min_train_nodes": 3, "min_available_nodes": 3}
    assert plain(FedAvg(**few), grids[0]) == watched(FedAvg(**few), tmp_path / "run", grids[1])
    seats = {(s.round, s.client): s for s in load_run(tmp_path / "run").clients}
    assert seats[0, 1].refused == "the client failed: out of memory"
    assert seats[1, 2].refused == "no reply"
    assert gaps(tmp_path / "run") == [None] * ROUNDS
    assert [seats[0, c].value is None for c in range(3)] == [False, True, False]


def test_more_nodes_than_there_is_room_for_are_a_gap_that_says_so(tmp_path: Path) -> None:
    assert plain(FedAvg()) == watched(FedAvg(), tmp_path / "run", clients=3)
    assert gaps(tmp_path / "run") == ["clients: 4 nodes have come, and there is room for 3"] * ROUNDS


def test_a_strategy_that_raises_raises_as_ever_and_the_rounds_before_are_kept(tmp_path: Path) -> None:
    class Failing(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            if server_round == 2:
                raise RuntimeError("mine")
            return super().aggregate_train(server_round, replies)

    strategy = Failing()
    with pytest.raises(RuntimeError, match="mine"):
        watched(strategy, tmp_path / "run")
    assert gaps(tmp_path / "run") == [None, "the strategy made no aggregate"]
    assert not {"start", "aggregate_train"} & vars(strategy).keys()


def test_a_full_disk_ends_the_record_and_not_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = plain(FedAvg())

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hanse.runs.rundir.RunDir.append", full)
    assert watched(FedAvg(), tmp_path / "run") == without


def test_iterators_are_read_once_and_a_strategy_of_ones_own_start_is_called(tmp_path: Path) -> None:
    class Lazy(FedAvg):
        started = 0

        def configure_train(self, *given: Any, **more: Any) -> Any:
            return (message for message in super().configure_train(*given, **more))

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return super().aggregate_train(server_round, list(replies))

        def start(self, *given: Any, **more: Any) -> Any:
            self.started += 1
            return super().start(*given, **more)

    class Iterating(RecordedGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            return iter(list(super().send_and_receive(messages)))

    assert plain(Lazy(), Iterating()) == watched(Lazy(), tmp_path / "run", Iterating())
    assert len(by_round(tmp_path / "run")[2]) == 4


@pytest.mark.parametrize("name", ["partition 123456{}", "<b>Site {}</b>"])
def test_nodes_are_called_what_they_report_in_a_metric_or_a_text(name: str, tmp_path: Path) -> None:
    def says(node: int, round: int, reply: Message) -> Message:
        if name.startswith("partition"):
            number = int(name.split()[1].format(node))
            reply.content["metrics"]["partition-id"] = number if node % 2 else float(number)
        else:
            reply.content["who"] = ConfigRecord({"partition-id": name.format(node)})
        return reply

    told = watched(FedAvg(), tmp_path / "run", RecordedGrid(4, says), names="partition-id")
    assert told == plain(FedAvg(), RecordedGrid(4, says))
    assert list(load_run(tmp_path / "run").names) == [name.format(node) for node in (1, 2, 3, 4)]


def test_an_apps_run_is_not_played_on_as_a_simulation(tmp_path: Path) -> None:
    watched(FedAvg(), tmp_path / "run")
    before = files(tmp_path / "run")
    for more in ({}, {"rounds": ROUNDS + 1}, {"other_data": True}):
        with pytest.raises(hanse.UserError, match="start the app again"):
            hanse.resume(tmp_path / "run", **more)
    assert files(tmp_path / "run") == before


def test_the_strategys_own_figures_are_in_the_record(tmp_path: Path) -> None:
    def judge(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"loss": 1.0 / (1 + number), "accuracy": 0.1 * number, "many": [1.0, 2.0]})

    with hanse.valued(FedAvg(), out=tmp_path / "run", validation=evaluate) as strategy:
        result = strategy.start(RecordedGrid(), first_arrays(), num_rounds=ROUNDS, evaluate_fn=judge)
    assert list(result.evaluate_metrics_serverapp) == [0, 1, 2, 3]
    lines = load_run(tmp_path / "run").metrics
    assert len(lines) == ROUNDS
    for number, line in enumerate(lines, 1):
        assert line["test/loss"] == line["strategy/server/loss"] == 1.0 / (1 + number)
        assert line["test/accuracy"] == pytest.approx(0.1 * number)
        assert line["strategy/train/train_loss"] == result.train_metrics_clientapp[number]["train_loss"]
        assert line["strategy/evaluate/eval_loss"] == result.evaluate_metrics_clientapp[number]["eval_loss"]
        assert "strategy/server/many" not in line
        assert "value/sum" in line
