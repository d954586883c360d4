"""The driver of the side-by-side benchmark: job files, what is measured of a process, tables by hand, its section."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import hanse

HERE = Path(__file__).parents[2] / "benchmarks" / "peers"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(HERE)
    import bench

    return bench


def test_job_files(bench: ModuleType, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    given = {
        f"{name}_{part}": draw.integers(0, 255 if name == "x" else 10, (n, *((28, 28) if name == "x" else ())))
        for part, n in (("train", 50), ("test", 30))
        for name in ("x", "y")
    }
    np.savez(tmp_path / "mnist.npz", **given)
    job = replace(bench.JOBS["mnist-mlp"], clients=4, samples=10, seats=2, rounds=3, tested=20)
    place = bench.write_job(job, tmp_path, tmp_path / "jobs")
    x, clients = np.load(place / "x_train.npy"), np.load(place / "clients.npy")
    assert (x.shape, x.dtype) == ((50, 1, 28, 28), np.float32)
    np.testing.assert_allclose(x[7, 0], given["x_train"][7] / 127.5 - 1, atol=1e-6)
    assert np.load(place / "x_test.npy").shape == (20, 1, 28, 28)
    assert clients.shape == (4, 10)
    assert len(np.unique(clients)) == 40  # nobody's samples are another's
    seats = np.load(place / "seats.npy")
    assert seats.shape == (3, 2)
    assert (seats[:, 0] != seats[:, 1]).all()
    assert json.loads((place / "job.json").read_text())["momentum"] == 0.5
    with np.load(place / "weights.npz") as first:
        shapes = [first[name].shape for name in first.files]
    assert shapes == [(50, 784), (50,), (25, 50), (25,), (10, 25), (10,)]


RUNNER = """
import json, sys
blob = bytearray(60_000_000)
blob[::4096] = b"x" * len(blob[::4096])
print("something else")
print(json.dumps({"event": "ready", "workers": 2, "threads": 3}), flush=True)
for round, seconds in enumerate((9.0, 2.0, 4.0, 3.0)):
    print(json.dumps({"event": "round", "round": round, "seconds": seconds, "accuracy": round / 10}), flush=True)
sys.exit(int(sys.argv[1]))
"""


def test_what_is_measured(bench: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "runner.py").write_text(RUNNER)
    command = [sys.executable, "runner.py", "0"]
    found = bench.measure(command, folder=tmp_path, extra={}, limit_s=60)
    assert (found.first, found.round, found.rounds, found.accuracy) == (9.0, 3.0, 18.0, 0.3)
    assert (found.workers, found.threads) == (2, 3)
    assert 0 < found.start <= found.process
    with pytest.raises(RuntimeError, match=r"ended with 3(.|\n)*something else"):
        bench.measure([*command[:-1], "3"], folder=tmp_path, extra={}, limit_s=60)


BURNER = "import time; end = time.process_time() + {}\nwhile time.process_time() < end: pass\n"


def test_what_others_compute_is_told_from_what_the_run_does(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import measure

    (tmp_path / "runner.py").write_text(BURNER.format(0.5) + RUNNER)
    command, others = [sys.executable, "runner.py", "0"], [0.0, 2.0]
    monkeypatch.setattr(measure, "_busy_s", lambda: measure._own_s() + others.pop(0))
    found = bench.measure(command, folder=tmp_path, extra={}, limit_s=60)
    assert found.others * found.process == pytest.approx(2.0)
    monkeypatch.undo()
    before, own = measure._busy_s(), measure._own_s()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    assert measure._own_s() - own >= 0.25
    assert measure._busy_s() - before >= 0.2


def test_a_busy_machine_reports_nothing(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = bench.Measured(1, 1, 1, 1, 1, 1, 1, 1, 1, 0.05)
    runs = [replace(quiet, others=0.5), replace(quiet, others=0.11), quiet]
    monkeypatch.setattr(bench, "measure", lambda *_, **__: runs.pop(0))
    job, system = bench.JOBS["mnist-mlp"], bench.SYSTEMS["plain PyTorch loop"]
    monkeypatch.setattr(bench, "python_of", lambda name: Path(sys.executable))
    assert bench._quiet(job, system, tmp_path, False, bench.QUIET) == quiet
    assert "once more: other processes used 0.50 cores, at most 0.1 are allowed" in capsys.readouterr().err
    monkeypatch.setattr(bench, "measure", lambda *_, **__: replace(quiet, others=0.5))
    with pytest.raises(SystemExit, match=r"other processes used 0\.50 cores, .*: nothing is reported"):
        bench._quiet(job, system, tmp_path, False, bench.QUIET)
    assert bench._quiet(job, system, tmp_path, False, float("inf")).others == 0.5


def test_memory_is_that_of_all_processes_with_the_mark(bench: ModuleType) -> None:
    import subprocess

    from measure import _Memory

    child = "blob = bytearray(b'x') * 50_000_000; print(len(blob), flush=True); input()"
    memory = _Memory("a-mark-of-this-test")
    assert memory._processes() == []
    marked = {**os.environ, "HANSE_PEER_RUN": "a-mark-of-this-test"}
    command = [sys.executable, "-c", child]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": marked}
    with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as two:
        for process in (one, two):
            assert process.stdout is not None
            process.stdout.readline()
        assert sorted(memory._processes()) == sorted([one.pid, two.pid])
        size = sum(memory._size(pid) for pid in (one.pid, two.pid))
        assert 100e6 < size < 160e6
        for process in (one, two):
            process.communicate(b"\n")


def test_table_by_hand(bench: ModuleType) -> None:
    def one(round: float, process: float) -> object:
        seconds = {"start": 1.0, "first": 2.0, "round": round, "rounds": 5.0, "process": process}
        return bench.Measured(**seconds, pss=100.0, accuracy=0.5, workers=2, threads=1, others=0.0)

    job = bench.JOBS["mnist-mlp"]
    lines = bench.table(
        job, {"fluke": [one(0.8, 20.0)], "hanse": [one(0.1, 4.0), one(0.3, 6.0), one(0.2, 5.0)], "FedJAX, jit": []}
    )
    figures = "2 x 1 | 0.200 | 1.0 | 1.0 | 2.00 | 5.0 | 5.0 | 1.0 | 100 | 0.500 |"
    assert lines[4] == f"| hanse | hanse {hanse.__version__} | {figures}"
    slower = "2 x 1 | 0.800 | 4.0 | 1.0 | 2.00 | 5.0 | 20.0 | 4.0 | 100 | 0.500 |"
    assert lines[5] == f"| fluke | fluke-fl 0.8.1 | {slower}"
    assert len(lines) == 6


def test_section_is_rewritten_in_its_place(bench: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    page.write_text("# Measured\n\nbefore\n")
    bench.write_section(page, bench.section(["one"], 1))
    page.write_text(page.read_text() + "\n## after\n")
    bench.write_section(page, bench.section(["two"], 3))
    text = page.read_text()
    assert text.startswith("# Measured\n\nbefore\n\n<!-- peers: begin -->\n## Peers side by side")
    assert text.endswith("<!-- peers: end -->\n\n## after\n")
    assert "two" in text
    assert "one" not in text.replace("everyone", "")
    assert text.count(bench.BEGIN) == text.count(bench.END) == 1


def test_every_system_has_its_runner_and_requirements(bench: ModuleType) -> None:
    for system in bench.SYSTEMS.values():
        assert (HERE / "runners" / system.runner).exists()
        assert (HERE / "requirements" / f"{system.environment}.txt").exists()


def test_every_version_is_pinned(bench: ModuleType) -> None:
    said = {name: system.version for name, system in bench.SYSTEMS.items()}
    assert said["Flower simulation (Ray)"].startswith("flwr 1.")  # pinned as flwr[simulation]==
    assert said["BlazeFL, a thread a core"].startswith("blazefl 3.")
    assert all(version.split()[1][0].isdigit() for version in said.values())


def test_a_system_without_its_python_is_left_out_with_the_reason(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HANSE_PEERS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HANSE_PEER_BLAZEFL", raising=False)
    monkeypatch.setattr(bench, "write_job", lambda job, data, folder: tmp_path)
    found = bench.run_job(bench.JOBS["mnist-mlp"], [bench.SYSTEMS["BlazeFL, a thread a core"]], 2, tmp_path)
    assert found == {}
    assert "blazefl needs python3.14t on the path (or HANSE_PEER_BLAZEFL: a Python" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []  # nothing half made


def test_weights_turned_for_jax(bench: ModuleType) -> None:
    """A linear layer after a convolution reads its pixels in JAX's order: the outputs stay what they were."""
    from runners.layouts import turned

    torch.manual_seed(0)
    convolution, linear = torch.nn.Conv2d(2, 3, 2), torch.nn.Linear(12, 5)
    x = torch.randn(4, 2, 3, 3)
    expected = linear(convolution(x).flatten(1)).detach().numpy()
    weights = [p.detach().numpy() for module in (convolution, linear) for p in module.parameters()]
    kernel, shift, matrix, bias = turned(weights, [(2, 2, 2, 3), (3,), (12, 5), (5,)])
    images = x.permute(0, 2, 3, 1).numpy()
    patches = np.lib.stride_tricks.sliding_window_view(images, (2, 2), (1, 2))  # [n, 2, 2, channels, h, w]
    pixels = np.einsum("nrscij,ijco->nrso", patches, kernel) + shift
    np.testing.assert_allclose(pixels.reshape(4, -1) @ matrix + bias, expected, atol=1e-5)


def test_results_stay_where_nothing_was_measured(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[str] = []

    def no_network(name: str) -> Path:
        tried.append(name)
        raise RuntimeError("pip failed")

    page = tmp_path / "RESULTS.md"
    page.write_text("as it was")
    (tmp_path / "mnist.npz").touch()
    monkeypatch.setenv("HANSE_DATA", str(tmp_path))
    for name, value in {"RESULTS": page, "python_of": no_network, "write_job": lambda *_: tmp_path}.items():
        monkeypatch.setattr(bench, name, value)
    jobs = ["--jobs", "mnist-mlp", "thousand"]
    monkeypatch.setattr(sys, "argv", ["bench.py", "--write", *jobs, "--systems", "hanse"])
    with pytest.raises(SystemExit, match=r"not measured in mnist-mlp, thousand: .*RESULTS.md stays as it is"):
        bench.main()
    assert page.read_text() == "as it was"
    assert tried == ["hanse"]  # once, not again for each job
    assert capsys.readouterr().err.count("left out: pip failed") == 2
    monkeypatch.setattr(sys, "argv", ["bench.py", "--write", "--rounds", "2"])
    with pytest.raises(SystemExit, match="--write: not with --rounds"):
        bench.main()
    monkeypatch.setattr(sys, "argv", ["bench.py", "--jobs", "cifar-cnn"])
    with pytest.raises(SystemExit, match=r"HANSE_DATA: .* has no cifar10.npz"):
        bench.main()
