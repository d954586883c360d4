"""FedJAX: its federated averaging with its own client data sets, optimisers and evaluation, JAX on the processor.

By its default backend clients train one after another, each step a compiled program whose operators share XLA's
threads. With ``pmap`` before the job's folder, its other backend, XLA shows two devices and a client trains on each.
Images are ``[h, w, channels]``, as JAX has them; the first weights are PyTorch's, turned accordingly. JAX is the newest
that still has what FedJAX's last release calls (``jax.tree_map``).
"""

from __future__ import annotations

import os
import sys
from typing import Any

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from job_files import Clock, JobFiles, given_folder
from layouts import turned


def mlp(batch: dict[str, jax.Array]) -> jax.Array:
    """784-50-25-10."""
    value = hk.Flatten()(batch["x"])
    for width in (50, 25):
        value = jax.nn.relu(hk.Linear(width)(value))
    return hk.Linear(10)(value)


def cnn(batch: dict[str, jax.Array]) -> jax.Array:
    """The CNN 32-64-64 + 128."""
    value = batch["x"]
    for channels, pooled in ((32, True), (64, True), (64, False)):
        value = jax.nn.relu(hk.Conv2D(channels, 3, padding="VALID")(value))
        if pooled:
            value = hk.max_pool(value, 2, 2, "VALID")
    value = jax.nn.relu(hk.Linear(128)(hk.Flatten()(value)))
    return hk.Linear(10)(value)


def samples(job: JobFiles, part: str) -> dict[str, np.ndarray]:
    x, y = job.arrays(part)
    return {"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1)), "y": y.astype(np.int32)}


def first_weights(job: JobFiles, empty: Any) -> Any:
    """Return haiku's parameters filled with the job's first weights."""
    modules = sorted(empty, key=lambda name: ("linear" in name, name))  # convolutions come first, as in the model
    places = [(module, kind) for module in modules for kind in ("w", "b")]
    values = turned(job.weights(), [empty[module][kind].shape for module, kind in places])
    filled: dict[str, dict[str, jax.Array]] = {module: {} for module in modules}
    for (module, kind), value in zip(places, values, strict=True):
        filled[module][kind] = jnp.asarray(value)
    return filled


def two_devices() -> None:
    """Let XLA show the processor as two devices; before JAX's first use."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    jax.config.update("jax_pmap_no_rank_reduction", False)  # what a device returns has the shapes that FedJAX expects


def main() -> None:
    parallel = "pmap" in sys.argv[1:-1]
    if parallel:
        two_devices()
    job, clock = JobFiles(given_folder()), Clock()
    given = job.given
    train, test = samples(job, "train"), samples(job, "test")
    clients = {
        number: fedjax.ClientDataset({name: array[taken] for name, array in train.items()})
        for number, taken in enumerate(job.clients)
    }
    model = fedjax.create_model_from_haiku(
        hk.transform({"mlp": mlp, "cnn": cnn}[given.model]),
        {name: array[:1] for name, array in test.items()},
        train_loss=lambda batch, output: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], output),
        eval_metrics={"accuracy": fedjax.metrics.Accuracy()},
    )
    fedjax.set_for_each_client_backend("pmap" if parallel else "jit")
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(given.lr, momentum=given.momentum),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=given.batch, num_epochs=given.epochs, seed=None),
    )
    batches = list(fedjax.ClientDataset(test).batch(batch_size=10_000 if given.model == "mlp" else 1_000))
    key = jax.random.PRNGKey(0)
    state = algorithm.init(first_weights(job, model.init(key)))
    clock.ready(2 if parallel else 1, os.cpu_count() or 1)
    for round, seats in enumerate(job.seats):
        keys = jax.random.split(jax.random.fold_in(key, round), len(seats))
        chosen = [(int(seat), clients[int(seat)], seed) for seat, seed in zip(seats, keys, strict=True)]
        state, _ = algorithm.apply(state, chosen)
        clock.done(float(fedjax.evaluate_model(model, state.params, batches)["accuracy"]))


if __name__ == "__main__":
    main()
