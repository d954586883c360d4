"""The model, the data of a partition, and how the model is trained and tested."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes

FEATURES, HIDDEN = 10, 16
Parameters = dict[str, jax.Array]
Samples = tuple[NDArray[np.float32], NDArray[np.float32]]


def load_model(seed: int = 0) -> Parameters:
    """Return the parameters of a network with one hidden layer."""
    one, two = jax.random.split(jax.random.key(seed))
    return {
        "w1": 0.3 * jax.random.normal(one, (FEATURES, HIDDEN)),
        "b1": jnp.zeros(HIDDEN),
        "w2": 0.3 * jax.random.normal(two, (HIDDEN,)),
        "b2": jnp.zeros(()),
    }


def get_params(params: Parameters) -> dict[str, NDArray[np.float32]]:
    """Return the parameters as arrays of NumPy, by name."""
    return {name: np.asarray(p) for name, p in params.items()}


def set_params(arrays: dict[str, NDArray[np.float32]]) -> Parameters:
    """Return arrays of NumPy as the model's parameters."""
    return {name: jnp.asarray(a) for name, a in arrays.items()}


def loss_fn(params: Parameters, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the mean squared error, in units of the target's variance."""
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.mean((hidden @ params["w2"] + params["b2"] - y) ** 2)


@jax.jit
def _step(params: Parameters, x: jax.Array, y: jax.Array, lr: float) -> tuple[jax.Array, Parameters]:
    loss, gradient = jax.value_and_grad(loss_fn)(params, x, y)
    return loss, jax.tree.map(lambda p, g: p - lr * g, params, gradient)


def train(params: Parameters, samples: Samples, epochs: int, lr: float) -> tuple[Parameters, float]:
    """Return the parameters after so many steps on all samples, and the loss before the last of them."""
    x, y = (jnp.asarray(a) for a in samples)
    loss = jnp.asarray(jnp.nan)
    for _ in range(epochs):
        loss, params = _step(params, x, y, lr)
    return params, float(loss)


def _samples() -> Samples:
    """Return all samples, scaled, in an order that is the same at every node."""
    x, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x / x.std(axis=0), (y - y.mean()) / y.std()
    return x[order].astype(np.float32), y[order].astype(np.float32)


def load_data(partition: int, partitions: int) -> tuple[Samples, Samples]:
    """Return the training and the test samples of one partition of the first 340 people."""
    x, y = _samples()
    x, y = x[:340][partition::partitions], y[:340][partition::partitions]
    cut = int(0.8 * len(y))
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def load_server_data() -> Samples:
    """Return the server's samples: the people that no partition has."""
    x, y = _samples()
    return x[340:], y[340:]
