"""Rounds and values on a graphics card: are they right, and which engine is the fastest there.

Checks: rows, scores and values beside the CPU's, twice the same bits, and every mechanism's run. Times: rounds of
mnist-mlp, cifar-cnn and ResNet-18 on each engine beside a plain loop on the same card, coalition values beside the
naive way, and whole processes beside pfl-research. Without a CUDA device it says so and ends with exit code 2;
``--device cpu`` plays the same without one, to try the script. Run: ``HANSE_DATA=folder python benchmarks/gpu.py``
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import interleaved, print_times
from plain import PlainLoop, cnn, load, mlp
from torch import Tensor, nn

import hanse
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.coalitions import UpdateGame
from hanse.learning.engines import EngineChoice, make_engine, same_bits
from hanse.learning.job import Engine, Problem, SeatJob
from hanse.learning.models import MODELS, build_problem
from hanse.learning.sequential import SequentialEngine

PEERS = Path(__file__).parent / "peers"
sys.path.insert(0, str(PEERS))
from runners.models import resnet18  # noqa: E402  the peers' jobs have it, too

DIGITS = {"model": {"name": "mlp", "hidden": [16]}, "data": {"clients": 6}, "train": {"epochs": 1, "batch_size": 20}}


@dataclass(frozen=True)
class Job:
    """Rounds of equal clients: ``clients`` of ``samples`` each, of which some train; ``tested`` images a round."""

    name: str
    source: str
    model: object
    options: dict[str, object]
    plain: Callable[[], nn.Module]
    clients: int
    samples: int
    recipe: Recipe
    tested: int
    engines: tuple[str, ...]


def _resnet18(shape: object, classes: object) -> nn.Module:
    return resnet18()


def wide() -> nn.Module:
    """Return a CNN of 128-256-256 channels without batch norm, whose operators are long: 1.6 million parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(128, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(4096, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def _wide(shape: object, classes: object) -> nn.Module:
    return wide()


def lenet() -> nn.Module:
    """Return iPFL's LeNet."""
    return MODELS["lenet"]((3, 32, 32), 10)


_TWO = Recipe(epochs=2, batch_size=50, lr=0.01, momentum=0.5)
JOBS = {
    "mnist-mlp": Job(
        "mnist-mlp", "mnist", "mlp", {"hidden": [50, 25]}, mlp, 100, 600, replace(_TWO, epochs=5), 10_000,
        ("stacked", "stacked, CUDA graphs", "sequential"),
    ),
    "cifar-cnn": Job("cifar-cnn", "cifar10", "cnn", {}, cnn, 50, 200, _TWO, 1_000, ("sequential", "vmapped")),
    "lenet": Job("lenet", "cifar10", "lenet", {}, lenet, 50, 200, _TWO, 1_000, ("sequential", "vmapped")),
    "wide cnn": Job("wide cnn", "cifar10", _wide, {}, wide, 50, 200, _TWO, 1_000, ("sequential", "vmapped")),
    "resnet-18": Job(
        "resnet-18", "cifar10", _resnet18, {}, resnet18, 50, 200, _TWO, 1_000, ("sequential", "sequential, bf16")
    ),
}  # fmt: skip


def engine_of(name: str, problem: Problem, device: str) -> Engine:
    """Return the engine that a line of the tables names."""
    engine, _, more = name.partition(", ")
    choice = EngineChoice(engine, 1, 1, graphs=more == "CUDA graphs")
    return make_engine(choice, problem, device, "bf16" if more == "bf16" else "float32")


def waited(run: Callable[[], object], device: str, exact: bool = True) -> Callable[[], None]:
    """Return a call that ends when the card has; ``exact``: with hanse's settings for convolutions, or PyTorch's."""

    def call() -> None:
        if device == "cuda":
            same_bits(torch.device(device))
            if not exact:
                torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = True, False
        run()
        if device == "cuda":
            torch.cuda.synchronize()

    return call


class Rounds:
    """FedAvg's rounds of a job on one engine."""

    def __init__(self, job: Job, engine: Engine, row: Tensor, train: Samples, test: Samples, seats: int) -> None:
        self.job, self.engine, self.row, self.train, self.test = job, engine, row, train, test
        self.clients, self.seats, self.round, self.accuracy = clients_of(job, train), seats, 0, 0.0

    def run(self) -> None:
        """Train a round and test it."""
        seats = seats_of(self.job, self.round, self.seats)
        jobs = [SeatJob(self.clients[c], self.row, (0, self.round, c, 0)) for c in seats]
        self.row = self.engine.train(self.train, jobs, self.job.recipe, self.job.recipe.lr).rows.mean(0)
        self.accuracy = float(self.engine.score(self.row.unsqueeze(0), self.test).accuracy[0])
        self.round += 1


def clients_of(job: Job, train: Samples) -> list[Tensor]:
    """Return each client's positions."""
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[: job.clients * job.samples]
    return list(order.to(train.x.device).split(job.samples))


def seats_of(job: Job, round: int, count: int) -> list[int]:
    """Return a round's clients."""
    return torch.randperm(job.clients, generator=torch.Generator().manual_seed(round))[:count].tolist()


def loaded(job: Job, device: str) -> tuple[Samples, Samples, str]:
    """Return a job's samples on the device: all that train, those of the test, and where they come from."""
    train, test, source = load(job.source)
    test = Samples(test.x[: job.tested], test.y[: job.tested])
    return *(Samples(part.x.to(device), part.y.to(device)) for part in (train, test)), source  # type: ignore[return-value]


def time_rounds(job: Job, device: str, seats: int, repeats: int) -> None:
    """Time a job's rounds with their tests, all candidates in turn; say how much of the card's memory each takes."""
    train, test, source = loaded(job, device)
    problem, row = build_problem(job.model, tuple(train.x.shape[1:]), 10, 0, **job.options)  # type: ignore[arg-type]
    recipe, runs = job.recipe, {}
    for name, exact in (("plain loop", False), ("plain loop, float32", True)):
        loop = PlainLoop(job.plain().to(device), train, test, clients_of(job, train))

        def plain_round(loop: PlainLoop = loop) -> float:
            loop.train(seats_of(job, loop.round, seats), recipe.epochs, recipe.batch_size, recipe.lr, recipe.momentum)
            return loop.accuracy()

        runs[name] = waited(plain_round, device, exact)
    baseline = list(runs)
    for name in job.engines:
        if "graphs" in name and device != "cuda":
            continue
        ours = Rounds(job, engine_of(name, problem, device), row.to(device), train, test, seats)
        runs[f"hanse, {name}"] = waited(ours.run, device)
        waited(ours.run, device)()  # a segment is recorded when it comes a second time, in the warm-up that follows
    print_times(f"{job.name} on {source}, {seats} seats, a round with its test", interleaved(runs, repeats), baseline)
    if device == "cuda":
        for name, run in runs.items():
            held = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            run()
            more = (torch.cuda.max_memory_allocated() - held) / 2**20
            print(f"{name}: a round takes {more:.0f} MiB of the card beside what stays ({held / 2**20:.0f} for all)")


def check_rows(job: Job, device: str, seats: int = 2, rounds: int = 3) -> None:
    """Say how far rows are from those of the CPU in float64, as a share of how far training moved them, beside the
    CPU's own in float32; whether a second time has the same bits, and graphs those of stacked steps.
    """
    train, test, _ = loaded(job, "cpu")
    problem, row = build_problem(job.model, tuple(train.x.shape[1:]), 10, 0, **job.options)  # type: ignore[arg-type]
    clients, recipe, most = clients_of(job, train), replace(job.recipe, epochs=1), torch.get_num_threads()
    plans = [[SeatJob(clients[s + 5 * r], row, (0, r, s, 0)) for s in range(seats)] for r in range(rounds)]

    def rows_of(engine: Engine, samples: Samples) -> Tensor:
        return torch.cat([engine.train(samples, jobs, recipe, recipe.lr).rows for jobs in plans])

    exact = rows_of(SequentialEngine(problem, threads=most, dtype=torch.float64), train)
    reference = SequentialEngine(problem, threads=most)
    moved = float((exact - row).norm())
    usual, scores = rows_of(reference, train), reference.score(exact.float(), test)
    print(f"{job.name}, CPU, float32: rows {float((usual - exact).norm()) / moved:.1e} of their way from float64's")
    train, test, _ = loaded(job, device)
    stacked = None
    for name in (n for n in job.engines if device == "cuda" or "graphs" not in n):
        engine = engine_of(name, problem, device)
        found, again = rows_of(engine, train), rows_of(engine, train)
        score = engine.score(exact.float().to(device), test)
        gap, same = float((found.cpu() - exact).norm()) / moved, torch.equal(found, again)
        loss = float(np.abs(score.loss - scores.loss).max())
        print(f"{job.name}, {name}: rows {gap:.1e}, losses {loss:.1e} off; the same bits twice: {same}")
        if name == "stacked":
            stacked = found
        elif stacked is not None and "graphs" in name:
            print(f"{job.name}, {name}: the bits of stacked steps without graphs: {torch.equal(found, stacked)}")


def check_values(device: str) -> None:
    """Say how far coalition values on the card are from those on the CPU."""
    for title, game, coalitions in games("cpu", few=True):
        there = next(other for name, other, _ in games(device, few=True) if name == title)
        gap = np.abs(np.array(game().many(coalitions)) - np.array(there().many(coalitions))).max()
        print(f"{title}: utilities {gap:.1e} from the CPU's")


def games(device: str, few: bool = False) -> list[tuple[str, Callable[[], UpdateGame], list[frozenset[int]]]]:
    """Return games of averages by name: what makes each anew, and coalitions."""
    made = []
    for source, model, options, images in (
        ("mnist", "mlp", {"hidden": [50, 25]}, 5_000),
        ("cifar10", "cnn_greedyfed", {}, 4_000),
        ("cifar10", "cnn", {}, 1_000),
    ):
        train, _, _ = load(source)
        samples = Samples(train.x[: 500 if few else images].to(device), train.y[: 500 if few else images].to(device))
        problem, row = build_problem(model, tuple(train.x.shape[1:]), 10, 0, **options)  # type: ignore[arg-type]
        updates = row + 0.05 * torch.randn((20, len(row)), generator=torch.Generator().manual_seed(0))
        pick = np.random.default_rng(0)
        coalitions = [frozenset(np.flatnonzero(pick.random(20) < 0.5).tolist()) for _ in range(8 if few else 256)]
        make = partial(UpdateGame, problem, updates.to(device), row.to(device), np.arange(1.0, 21.0), samples)
        made.append((f"{model}, 20 clients, {images} images of {source}", make, coalitions))
    return made


def one_by_one(
    module: nn.Module, rows: Tensor, samples: Samples, weights: Tensor, coalitions: Sequence[frozenset[int]]
) -> None:
    """Average, load and run each coalition's model: what everybody writes."""
    for coalition in coalitions:
        members = sorted(coalition)
        row = (weights[members] / weights[members].sum()) @ rows[members]
        nn.utils.vector_to_parameters(row, module.parameters())
        with torch.no_grad():
            float(nn.functional.cross_entropy(module(samples.x), samples.y))


def anew(make: Callable[[], UpdateGame], coalitions: Sequence[frozenset[int]]) -> None:
    """Make a game and ask for its utilities: what is computed once a round is paid for."""
    make().many(coalitions)


def time_values(device: str, repeats: int) -> None:
    """Time coalitions' utilities, a new game each time, beside averaging, loading and running each model."""
    modules = {"mlp": mlp, "cnn_greedyfed": None, "cnn": cnn}
    for title, make, coalitions in games(device):
        game, name = make(), title.split(",")[0]
        rows, samples, weights = game.models.rows[:-1], game.samples, torch.arange(1.0, 21.0, device=device)
        plain = modules[name]
        module = (plain() if plain else MODELS["cnn_greedyfed"]((3, 32, 32), 10)).to(device)

        naive = partial(one_by_one, module, rows, samples, weights, coalitions[:32])
        ours = partial(anew, make, coalitions)
        runs = {"naive, TF32": waited(naive, device, False), "naive": waited(naive, device)}
        runs["hanse"] = waited(ours, device)
        times = interleaved(runs, repeats)
        each = {n: [v / (256 if n == "hanse" else 32) for v in found] for n, found in times.items()}
        for label, value in print_times(f"{title}: a coalition", each, ["naive, TF32", "naive"]).items():
            print(f"{label}: {1000 / value:.0f} coalitions a second")


def check_runs(device: str, rounds: int = 3) -> None:
    """Play every mechanism, and GreedyFed with other values, on the digits on the CPU and on the device; say how far
    the test's losses, and the values, are apart.
    """
    from hanse.mechanisms.registry import MECHANISMS

    data: dict[str, dict[str, object]] = {
        "fedfomo": {"client_validation": 0.2}, "centralised": {"partition": "pooled", "clients": 1},
    }  # fmt: skip
    kinds = [(name, None) for name in MECHANISMS]
    kinds += [("greedyfed", value) for value in ("mixture", "path", "exact", "first_order_clients")]
    for name, value in kinds:
        mechanism = {"name": name, **({"value": value} if value else {})}
        given = {**DIGITS, "data": {**DIGITS["data"], **data.get(name, {})}, "mechanism": mechanism}
        losses, values = [], []
        try:
            for where in ("cpu", device):
                run = hanse.run(hanse.Experiment(**given, run={"rounds": rounds}, engine={"device": where}))
                losses.append(float(run.metrics[-1]["test/loss"]))
                values.append(np.array([line.get("value", np.nan) for line in run.clients], dtype=float))
            apart = np.nanmax(np.abs(values[0] - values[1])) if np.isfinite(values[0]).any() else 0.0
            print(f"run of {name} {value or ''}: losses {abs(losses[0] - losses[1]):.1e}, values {apart:.1e} apart")
        except Exception as error:
            print(f"run of {name} {value or ''}: FAILED: {type(error).__name__}: {str(error)[:300]}")
            if not isinstance(error, hanse.UserError):
                print("".join(traceback.format_exception(error)[-3:]))


def whole(device: str, names: Sequence[str], runs: int) -> None:
    """Play jobs as whole processes: hanse by its front door, also without graphs, and pfl-research."""
    from bench import JOBS as PEER_JOBS
    from bench import SYSTEMS, System, run_job
    from bench import table as peers_table

    os.environ.setdefault("HANSE_PEER_HANSE", sys.executable)
    known = {  # of the jobs above, those that the peers have
        **PEER_JOBS,
        "resnet-18": replace(PEER_JOBS["cifar-cnn"], name="resnet-18", model="resnet18", seats=10),
    }
    for name in (name for name in names if name in known):
        job, systems = known[name], ["hanse"]
        if name == "mnist-mlp" and device == "cuda":
            label = "hanse, no CUDA graphs"
            SYSTEMS[label] = System(label, "hanse", "ours.py", "hanse", options=("no-graphs",))
            systems.append(label)
        systems.append("pfl-research, 1 process")
        data = Path(os.environ["HANSE_DATA"])
        found = run_job(job, [SYSTEMS[system] for system in systems], runs, data, card=device == "cuda")
        print("\n" + "\n".join(peers_table(job, found)), flush=True)


def step(title: str, work: Callable[[], object]) -> None:
    """Do one part of the work and say how long it took; one that fails is reported, and the next goes on."""
    begin = time.perf_counter()
    try:
        work()
    except Exception:
        traceback.print_exc(file=sys.stdout)
    print(f"-- {title}: {time.perf_counter() - begin:.1f} s", flush=True)


def main() -> None:
    parts = ("rows", "values", "runs", "rounds", "coalitions", "whole")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--parts", nargs="*", default=parts, choices=parts)
    parser.add_argument("--jobs", nargs="*", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--seats", type=int, nargs="*", default=[10])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--runs", type=int, default=3, help="whole runs of each system")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print(f"no CUDA device here (PyTorch {torch.__version__}): nothing was measured", file=sys.stderr)
        sys.exit(2)
    if "whole" in given.parts and "HANSE_DATA" not in os.environ:
        sys.exit("HANSE_DATA: is not set: the folder with mnist.npz and cifar10.npz (or name other --parts)")
    card = torch.cuda.get_device_name() if given.device == "cuda" else "the processor"
    print(f"{card}, PyTorch {torch.__version__}")
    jobs = [JOBS[name] for name in given.jobs]
    for job in jobs if "rows" in given.parts else []:
        step(f"rows of {job.name}", partial(check_rows, job, given.device, rounds=1 if job.name == "resnet-18" else 3))
    if "values" in given.parts:
        step("values", partial(check_values, given.device))
    if "runs" in given.parts:
        step("runs", partial(check_runs, given.device))
    for job in jobs if "rounds" in given.parts else []:
        for seats in given.seats:
            few = min(seats, job.clients)
            step(f"{job.name}, {few} seats", partial(time_rounds, job, given.device, few, given.repeats))
    if "coalitions" in given.parts:
        step("coalitions", partial(time_values, given.device, given.repeats))
    if "whole" in given.parts:
        whole(given.device, given.jobs, given.runs)


if __name__ == "__main__":
    main()
