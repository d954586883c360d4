"""How fast each convolution of the papers' CNNs runs in oneDNN, as a share of the rate of a large float32 product.

For every convolution, and forward, towards its input, and towards its weights: the rate that oneDNN reaches with the
layout and the batch that hanse trains with (channels last where the model pools, batches of 50), and the best of both
layouts, batches of 50 and 250. One thread; each kernel's lowest time of the repeats, its output kept allocated, so
that neither a busy neighbour nor fresh memory counts. The last lines are of a seat's whole training, by the sequential
engine (which runs these kernels) and by the native one.
Run: ``python benchmarks/conv_kernels.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from matmul import peak
from plain import seconds
from torch import Tensor, nn

from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.job import Engine, Problem, SeatJob
from hanse.learning.local import in_channels_last
from hanse.learning.models import build_problem
from hanse.learning.native.engine import NativeEngine
from hanse.learning.native.library import why_not_native
from hanse.learning.sequential import SequentialEngine

MODELS = {
    "cifar-cnn": ("cnn", (3, 32, 32)),
    "GreedyFed's": ("cnn_greedyfed", (3, 32, 32)),
    "PI-FL's": ("cnn_pifl", (3, 32, 32)),
    "iPFL's, GTFLAT's (LeNet)": ("lenet", (3, 32, 32)),
}
BATCH, SAMPLES = 50, 200
KINDS = ("forward", "to input", "to weights")


@dataclass(frozen=True)
class Seen:
    """One convolution with the shape of one of its inputs ``(channels, height, width)``."""

    layer: nn.Conv2d
    shape: tuple[int, ...]

    @property
    def flops(self) -> float:
        """Operations of one image, in each of the three kinds."""
        height, width = (
            (self.shape[d + 1] + 2 * self.layer.padding[d] - self.layer.kernel_size[d]) // self.layer.stride[d] + 1
            for d in (0, 1)
        )
        return 2.0 * height * width * self.layer.weight.numel()


def convolutions(problem: Problem, shape: tuple[int, ...]) -> list[Seen]:
    """Return a model's convolutions in their order, with the shapes that reach them."""
    seen: list[Seen] = []

    def look(layer: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        assert isinstance(layer, nn.Conv2d)
        seen.append(Seen(layer, tuple(inputs[0].shape[1:])))

    hooks = [m.register_forward_hook(look) for m in problem.module.modules() if isinstance(m, nn.Conv2d)]
    with torch.no_grad():
        problem.module.eval()(torch.zeros(2, *shape))
    for hook in hooks:
        hook.remove()
    return seen


def kernels(seen: Seen, batch: int, channels_last: bool) -> dict[str, Callable[[], object]]:
    """Return the three kernels of a convolution as calls; the first convolution needs no gradient of images."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    layer = seen.layer
    x = torch.randn(batch, *seen.shape).contiguous(memory_format=layout)
    weight = layer.weight.detach().contiguous(memory_format=layout)
    out = F.conv2d(x, weight, None, layer.stride, layer.padding)
    tail = (None, layer.stride, layer.padding, [1, 1], False, [0, 0], 1)

    def back(*wanted: bool) -> Callable[[], object]:
        return lambda: torch.ops.aten.convolution_backward(out, x, weight, *tail, list(wanted))

    calls: dict[str, Callable[[], object]] = {
        "forward": lambda: F.conv2d(x, weight, None, layer.stride, layer.padding),
        "to weights": back(False, True, False),
    }
    return calls if seen.shape[0] == 3 else calls | {"to input": back(True, False, False)}


def per_image(seen: Seen, batch: int, channels_last: bool, repeats: int) -> dict[str, float]:
    """Return each kernel's lowest seconds for one image."""
    with torch.no_grad():
        return {
            kind: min(seconds(call) for _ in range(repeats + 1)) / batch
            for kind, call in kernels(seen, batch, channels_last).items()
        }


def seat(engine: Engine, row: Tensor, shape: tuple[int, ...], repeats: int) -> float:
    """Return the lowest seconds of training on one image, in one epoch of a seat of ``SAMPLES``."""
    pool = Samples(torch.randn(SAMPLES, *shape), torch.randint(0, 10, (SAMPLES,)))
    jobs = [SeatJob(torch.arange(SAMPLES), row, (0, 0, 0, 0))]
    recipe = Recipe(epochs=1, batch_size=BATCH, lr=0.01, momentum=0.5)
    return min(seconds(lambda: engine.train(pool, jobs, recipe, recipe.lr)) for _ in range(repeats)) / SAMPLES


def study(name: str, model: str, shape: tuple[int, ...], most: float, repeats: int) -> str:
    """Print a line for each convolution of a model; return the line of the whole seat."""
    problem, row = build_problem(model, shape, 10, 0)
    used, best, flops = 0.0, 0.0, 0.0
    last = in_channels_last(problem)
    for place, seen in enumerate(convolutions(problem, shape)):
        ways = {(b, c): per_image(seen, b, c, repeats) for b in (BATCH, 5 * BATCH) for c in (False, True)}
        ours = ways[BATCH, last]
        tops = {kind: min(way[kind] for way in ways.values()) for kind in ours}
        used, best, flops = used + sum(ours.values()), best + sum(tops.values()), flops + seen.flops * len(ours)
        rates = [
            f"{seen.flops / ours[k] / most:.2f}, {seen.flops / tops[k] / most:.2f}" if k in ours else "" for k in KINDS
        ]
        print(f"| {name} | {place + 1}: {seen.layer.in_channels} to {seen.layer.out_channels} | {' | '.join(rates)} |")
    whole = seat(SequentialEngine(problem, threads=1), row, shape, repeats)
    ours = None if why_not_native(problem) else seat(NativeEngine(problem), row, shape, repeats)
    parts = [flops / most, used, best, whole, *([] if ours is None else [ours])]
    return f"| {name} | " + " | ".join(f"{1e6 * part:.0f}" for part in parts) + " |" + " - |" * (ours is None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    most = peak()
    print(f"PyTorch {torch.__version__}, one thread; a large product: {most / 1e9:.0f} GFLOP/s\n")
    print("Share of that rate as used, at best:\n")
    print(f"| model | convolution | {' | '.join(KINDS)} |\n|---|---|---|---|---|")
    lines = [study(name, model, shape, most, repeats) for name, (model, shape) in MODELS.items()]
    print("\nMicroseconds an image: the convolutions' arithmetic at the rate of a large product, their kernels as used")
    print("and at best; all of a seat's training by the sequential engine and by the native one:\n")
    print("| model | arithmetic | as used | at best | sequential | native |\n|---|---|---|---|---|---|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
