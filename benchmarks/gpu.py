"""Rounds on a graphics card: the stacked engine, with and without CUDA graphs, beside a plain loop on the card, and
whole runs of mnist-mlp beside pfl-research.

Without a CUDA device it says so and ends with exit code 2. ``--device cpu`` plays the same without a card (and without
graphs), to try the script. Run: ``HANSE_DATA=folder python benchmarks/gpu.py``
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from mnist_mlp import RECIPE, Hanse, plain_round
from plain import PlainLoop, interleaved, load, mlp, table
from torch import Tensor

from hanse.data.samples import Samples
from hanse.learning.engines import EngineChoice, make_engine
from hanse.learning.job import Engine, Problem, SeatJob
from hanse.learning.models import build_problem

PEERS = Path(__file__).parent / "peers"
EAGER, GRAPHS, PLAIN = "hanse, stacked", "hanse, stacked, CUDA graphs", "plain loop"


def engines(problem: Problem, device: str) -> dict[str, Engine]:
    """Return the stacked engine on the device, and with graphs where there are any."""
    found = {EAGER: EngineChoice("stacked", 1, 1)}
    if device == "cuda":
        found[GRAPHS] = EngineChoice("stacked", 1, 1, graphs=True)
    return {name: make_engine(choice, problem, device) for name, choice in found.items()}


def rounds(device: str, seats: list[int], repeats: int) -> None:
    """Time rounds with their tests, all candidates in turn; a test's accuracy waits for the card."""
    *parts, source = load("mnist")
    train, test = (Samples(part.x.to(device), part.y.to(device)) for part in parts)
    clients = list(torch.randperm(60_000, generator=torch.Generator().manual_seed(0)).to(device).split(600))
    problem, row = build_problem("mlp", (1, 28, 28), 10, 0, hidden=[50, 25])
    print(f"mnist-mlp on {source}")
    for count in seats:
        loop = PlainLoop(mlp().to(device), train, test, clients)
        runs: dict[str, Callable[[], object]] = {PLAIN: partial(plain_round, loop, count)}
        for name, engine in engines(problem, device).items():
            ours = Hanse(engine, row.to(device), train, test, clients)
            ours.run(count)  # a segment is recorded when it comes a second time, in the warm-up that follows
            runs[name] = partial(ours.run, count)
        table(f"{count} seats, a round with its test", interleaved(runs, repeats), [PLAIN])


def difference(device: str) -> None:
    """Say how far rounds with graphs are from rounds without: replayed ones, with a new rate and new samples."""
    train, _, _ = load("mnist")
    pool = Samples(train.x.to(device), train.y.to(device))
    problem, row = build_problem("mlp", (1, 28, 28), 10, 0, hidden=[50, 25])
    farthest = 0.0
    found: dict[str, list[Tensor]] = {}
    for name, engine in engines(problem, device).items():
        for round in range(4):
            clients = [torch.arange(600 * c, 600 * c + 600, device=device) for c in range(round, round + 10)]
            jobs = [SeatJob(index, row.to(device), (0, round, c, 0)) for c, index in enumerate(clients)]
            found.setdefault(name, []).append(engine.train(pool, jobs, RECIPE, RECIPE.lr).rows)
    if GRAPHS not in found:
        return
    for ours, theirs in zip(found[GRAPHS], found[EAGER], strict=True):
        farthest = max(farthest, float((ours - theirs).abs().max()))
    print(f"\nlargest difference of a trained parameter with and without graphs: {farthest:.1e}")


def whole(device: str, runs: int) -> None:
    """Play mnist-mlp as whole processes: hanse by its front door, with and without graphs, and pfl-research."""
    sys.path.insert(0, str(PEERS))
    from bench import JOBS, SYSTEMS, System, run_job
    from bench import table as peers_table

    os.environ.setdefault("HANSE_PEER_HANSE", sys.executable)
    SYSTEMS["hanse, CUDA graphs"] = System("hanse, CUDA graphs", "hanse", "ours.py", "hanse", options=("graphs",))
    names = ["hanse", *(["hanse, CUDA graphs"] if device == "cuda" else []), "pfl-research, 1 process"]
    job = JOBS["mnist-mlp"]
    found = run_job(job, [SYSTEMS[name] for name in names], runs, Path(os.environ["HANSE_DATA"]), card=device == "cuda")
    print("\n" + "\n".join(peers_table(job, found)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seats", type=int, nargs="*", default=[1, 10, 100])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--runs", type=int, default=3, help="whole runs of each system; 0: none")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print(f"no CUDA device here (PyTorch {torch.__version__}): nothing was measured", file=sys.stderr)
        sys.exit(2)
    if given.runs and "HANSE_DATA" not in os.environ:
        sys.exit("HANSE_DATA: is not set: the folder with mnist.npz (or leave the whole runs out with --runs 0)")
    card = torch.cuda.get_device_name() if given.device == "cuda" else "the processor"
    print(f"{card}, PyTorch {torch.__version__}")
    difference(given.device)
    rounds(given.device, given.seats, given.repeats)
    if given.runs:
        whole(given.device, given.runs)


if __name__ == "__main__":
    main()
