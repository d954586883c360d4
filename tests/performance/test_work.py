"""The performance gate: upper limits of work, not of time, so that a regression shows on a busy machine, too.

The limits are what the work is today; a change that needs less may lower them, one that needs more says why. Each
class of limit has a mutation that must trip it: a gate that nothing trips watches nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from work_counter import Work, counting, same_everywhere
from work_jobs import BATCH, MLP, a_round, cnn_step, coalition_work, gtg_models, mlp_start, mlp_step, native_step

import hanse
from hanse.learning import scoring
from hanse.learning.intervals import BLOCKS
from hanse.learning.local import Trainer
from hanse.learning.native.engine import library
from hanse.learning.scoring import Scorer
from hanse.learning.stacked import ActiveProgram, Linear
from hanse.runs.rehearsal import rehearse

PARAMETERS = sum(a * b + b for a, b in MLP)
FORWARD = sum(a * b for a, b in MLP)  # multiplications a sample
FIRST = MLP[0][0] * MLP[0][1]
WIDTHS = sum(b for _, b in MLP)

# forward of CIFAR's CNN, multiplications a sample: convolutions of 30 x 30, 13 x 13 and 4 x 4 places, linear layers
CNN_FIRST = 30 * 30 * 32 * 27
CNN_FORWARD = CNN_FIRST + 13 * 13 * 64 * 288 + 4 * 4 * 64 * 576 + 1024 * 128 + 128 * 10


@pytest.fixture(autouse=True)
def _one_thread_everywhere() -> Iterator[None]:
    with same_everywhere():
        yield


def gate_mlp_step(seats: int) -> None:
    """One optimiser step of all seats of an MLP, stacked."""
    work = mlp_step(seats)
    # kernel calls, whatever the number of seats: 1 gathers the batch; 3 layers with 1 product forward and 2 into their
    # velocities; 2 of them 1 for their input's gradient and 2 for ReLU and back; 4 for the loss; 1 takes the step
    assert work.calls <= 1 + 3 * 3 + 2 * 3 + 4 + 1
    # arithmetic: forward, the weights' gradients, the inputs' gradients of all layers but the first; biases
    assert work.flops <= 2 * seats * BATCH * (FORWARD + FORWARD + (FORWARD - FIRST) + WIDTHS)
    # bytes, in copies of all seats' parameters: products read weights and velocities, the step both; the batch, as
    # large as the parameters here, is gathered, read forward and read backward
    assert work.bytes <= 9.0 * seats * PARAMETERS * 4


def gate_mlp_start(seats: int) -> None:
    """What a round of training does beside its steps: laying out batches, loading and storing rows."""
    work = mlp_start(seats)
    assert work.calls <= 50  # of which 21 are its one step
    assert work.bytes <= 16 * seats * PARAMETERS * 4


def gate_cnn_step() -> None:
    """One step of one seat of a CNN, by autograd."""
    work = cnn_step()
    assert work.calls <= 39
    assert work.flops <= 2 * BATCH * (3 * CNN_FORWARD - CNN_FIRST)  # no gradient of the images
    assert work.bytes <= 79e6


def gate_round(clients: int, tested: int) -> None:
    """A whole FedAvg round of 4 seats x 2 steps of 10 samples, MLP 60-16-10, with its test."""
    work, run = a_round(clients=clients)
    forward, first, widths, parameters = 60 * 16 + 16 * 10, 60 * 16, 16 + 10, 60 * 16 + 16 + 16 * 10 + 10
    train = 2 * 2 * 4 * 10 * (3 * forward - first + widths)
    mix = 2 * 4 * parameters
    assert work.flops <= train + mix + 2 * tested * forward  # the test: one model, one forward pass, once
    assert work.calls <= 118  # 32 in the two steps; the rest once a round, whatever the number of clients
    assert run.metrics[-1]["bytes/up"] <= 4 * 4 * parameters  # each update once
    assert run.metrics[-1]["bytes/down"] <= 4 * 4 * parameters  # one model to 4 clients
    assert "value/models_evaluated" not in run.metrics[-1]  # nobody asked for values


def gate_valued_round() -> None:
    """A whole GreedyFed round: FedAvg's work and the game of 4 updates."""
    work, run = a_round("greedyfed")
    assert run.metrics[-1]["value/models_evaluated"] <= 2**4  # however often a coalition is asked for
    assert work.calls <= 240  # a product more a chunk than the values need: the error of the samples' draw


def gate_coalitions(players: int, samples: int) -> None:
    """All coalitions of some updates of an MLP: the first layer once an update, the others once a coalition."""
    work, evaluated = coalition_work(players, samples)
    count = 2**players
    assert evaluated <= count
    first = (players + 1) * samples * FIRST  # and the empty coalition's row
    mixing = count * (players + 1) * (samples * MLP[0][1] + PARAMETERS - FIRST - MLP[0][1])
    tails = count * samples * (FORWARD - FIRST)
    losses = count * samples * (1 + BLOCKS)  # the utility, and those without each block of samples
    assert work.flops <= 2 * (first + mixing + tails + losses)
    assert work.calls <= 17 + count  # about one a coalition: they go in chunks of 16


def gate_gtg(players: int, requests: int, distinct: int) -> None:
    """GTG-Shapley on a smooth game: requests follow from its stop rule, models are evaluated once each."""
    asked, different = gtg_models(players)
    assert asked <= requests
    assert different <= distinct


def gate_written(folder: Path, seats: int) -> None:
    """What a round of FedAvg without books leaves on the disk, in bytes, and how often it waits for the disk."""
    parameters, clients = 60 * 16 + 16 + 16 * 10 + 10, 20
    synced: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hanse.base.files.os.fsync", lambda handle: synced.append(os.fstat(handle).st_size))
        a_round(clients=clients, seats=seats, out=folder)
    assert len(synced) == 5 + 3  # once a round, for its checkpoint: 5 rounds were played, and then 3 in their place
    # the model; of each client its home; the settings, a JSON string in another; 1.5 KB of names and numbers
    settings = len(json.dumps(json.dumps((folder / "config.toml").read_text())))
    assert max(synced) <= 4 * parameters + 8 * clients + settings + 1536
    arrays = max(file.stat().st_size for file in (folder / "rounds").iterdir())
    assert arrays <= 14 * (256 + 8 * seats) + 8 * clients  # an archive says 256 bytes of each of its arrays
    assert (folder / "clients.jsonl").stat().st_size <= 3 * seats * 128
    assert (folder / "metrics.jsonl").stat().st_size <= 3 * 640


@pytest.mark.parametrize("seats", [1, 10])
def test_mlp_training(seats: int) -> None:
    gate_mlp_step(seats)
    gate_mlp_start(seats)


@pytest.mark.skipif(isinstance(library(), str), reason=str(library()))
@pytest.mark.parametrize("seats", [1, 10])
def test_compiled_training_does_nothing_between_steps(seats: int) -> None:
    work = native_step(seats)
    assert (work.calls, work.bytes) == (0, 0)


def test_cnn_training() -> None:
    gate_cnn_step()


@pytest.mark.parametrize(("clients", "tested"), [(20, 200), (200, 1000)])
def test_whole_round(clients: int, tested: int) -> None:
    gate_round(clients, tested)


def test_what_a_round_leaves_on_the_disk(tmp_path: Path) -> None:
    gate_written(tmp_path / "run", 4)


def test_valued_round() -> None:
    gate_valued_round()


def test_coalitions() -> None:
    gate_coalitions(6, 500)


@pytest.mark.parametrize(("players", "requests", "distinct"), [(4, 194, 16), (10, 1602, 627), (20, 4002, 3237)])
def test_gtg(players: int, requests: int, distinct: int) -> None:
    gate_gtg(players, requests, distinct)


def test_the_counter_by_hand() -> None:
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    with counting() as work:
        c = (a @ b).t()
        c.add_(1)
        a.index_select(0, torch.tensor([1]))
    assert dict(work.kernels) == {"mm": 1, "add_": 1, "index_select": 1}
    assert work.flops == 2 * 3 * 4 * 5
    # mm: 12 + 20 + 15 numbers; add_: 15; index_select: 4 read, 4 written, and an index of 8 bytes
    assert work.bytes == 4 * (12 + 20 + 15) + 4 * 15 + 4 * (4 + 4) + 8
    velocity = torch.zeros(2, 3, 5)
    with counting() as work:
        velocity.baddbmm_(torch.ones(2, 3, 4), torch.ones(2, 4, 5), beta=0.5)
    assert work.flops == 2 * (2 * 3 * 4 * 5)


# ---- mutations: what a careless change would do


def after(method: Any, extra: Any) -> Any:
    """Return the method with something done before it."""

    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        extra(self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return changed


def test_a_copy_a_step_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = after(ActiveProgram.descend, lambda self, lr: [p.clone() for p in self.parameters])
    monkeypatch.setattr(ActiveProgram, "descend", copies)
    with pytest.raises(AssertionError):
        gate_mlp_step(10)
    assert mlp_step(10).bytes > 9.0 * 10 * PARAMETERS * 4  # by its bytes alone, too


def test_a_gradient_of_the_images_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def wasteful(self: Linear, grad: Tensor, momentum: float) -> None:
        if self.grad_in is None:
            torch.bmm(self.transposed, grad)

    monkeypatch.setattr(Linear, "backward", after(Linear.backward, wasteful))
    with pytest.raises(AssertionError):
        gate_mlp_step(10)


def test_a_second_forward_pass_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = after(Scorer.score, lambda self, *args, **kwargs: score(self, *args, **kwargs))
    score = Scorer.score
    monkeypatch.setattr(Scorer, "score", twice)
    with pytest.raises(AssertionError):
        gate_round(20, 200)


def test_images_copied_once_more_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = Trainer._inputs
    monkeypatch.setattr(Trainer, "_inputs", lambda self, x: inputs(self, x).clone())
    with pytest.raises(AssertionError):
        gate_cnn_step()


def test_first_layers_computed_anew_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "_KEEP", 0)
    with pytest.raises(AssertionError):
        gate_coalitions(6, 500)


def test_work_that_grows_with_clients_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from hanse.runs import round as rounds

    play = rounds.play_round

    def slow(session: Any, state: Any, port: Any) -> Any:
        for client in range(200):
            torch.zeros(1).add_(client)
        return play(session, state, port)

    monkeypatch.setattr("hanse.runs.experiment.play_round", slow)
    with pytest.raises(AssertionError):
        gate_round(200, 1000)


def test_differences() -> None:
    from work_jobs import per_step

    more, less = Work(flops=10, bytes=8), Work(flops=4, bytes=2)
    more.kernels.update({"mm": 5, "once": 1})
    less.kernels.update({"mm": 1, "once": 1})
    step = per_step(more, less, 2)
    assert (dict(step.kernels), step.flops, step.bytes) == ({"mm": 2}, 3, 3)


# ---- start-up: what a run imports, which is most of a short run's time and memory beside PyTorch's own

HEAVY = ("scipy", "sklearn", "pandas", "vl_convert", "PIL", "networkx", "sqlalchemy", "requests", "pooch")
SHORT = """
import sys
import hanse
from hanse.cli import main
experiment = hanse.Experiment(
    data={"source": {"name": "synthetic", "samples_per_client": 20}, "clients": 4},
    mechanism={"name": sys.argv[1], "clients_per_round": 2},
    run={"rounds": 2},
)
open(sys.argv[2], "w").write(experiment.to_toml())
sys.argv[1:] = ["run", sys.argv[2], "--out", sys.argv[3]]
try:
    main()
finally:
    print(*sorted(sys.modules))
"""
HELP = """
import sys
from hanse.cli import main
try:
    main()
finally:
    print(*sorted(sys.modules))
"""


def imported(program: str, *words: str) -> set[str]:
    """Return the modules that a program of Python imports in a process of its own, given these words."""
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("name", ["fedavg", "greedyfed"])
def test_a_run_imports_nothing_that_it_does_not_use(name: str, tmp_path: Path) -> None:
    found = imported(SHORT, name, str(tmp_path / "exp.toml"), str(tmp_path / "run"))
    assert {module.partition(".")[0] for module in found}.isdisjoint(HEAVY)
    others = {"hanse.mechanisms.ipfl", "hanse.mechanisms.pifl", "hanse.learning.stacked", "hanse.learning.vmapped"}
    assert "hanse.learning.native.engine" in found
    assert found.isdisjoint(others)


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run in which money moved, so that it has books and receipts."""
    place = tmp_path_factory.mktemp("read") / "run"
    hanse.run(rehearse("pifl").experiment, out=place)
    return place


READING = [
    *(
        words.split()
        for words in ("--help", "run --help", "network up --help", "new --help", "facts run", "compare run")
    ),
    *(["ledger", word, "run"] for word in ("balances", "history", "export")),
    ["receipt", "verify", "run/receipts/client-0.jsonl"],
    ["statement", "run", "--client", "1"],
]


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_what_only_reads_does_not_wait_for_torch(
    words: list[str], books: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words[0] == "network":
        pytest.importorskip("hanse.wings.operate")
    monkeypatch.chdir(books.parent)
    found = imported(HELP, *words)
    assert "hanse.cli.entry" in found
    assert "torch" not in found
