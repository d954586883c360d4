"""The model, its parameters as arrays, and the data of a partition."""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

FEATURES = 30
Samples = tuple[NDArray[np.float64], NDArray[np.int64]]


def create_model(penalty_c: float, epochs: int) -> LogisticRegression:
    """Return a model that has parameters before it has seen any data, and trains on from those that it has."""
    model = LogisticRegression(C=penalty_c, max_iter=epochs, warm_start=True)
    model.classes_ = np.array([0, 1])
    return set_parameters(model, [np.zeros((1, FEATURES)), np.zeros(1)])


def get_parameters(model: LogisticRegression) -> list[NDArray[np.float64]]:
    """Return the model's coefficients and its intercept."""
    return [model.coef_, model.intercept_]


def set_parameters(model: LogisticRegression, parameters: list[NDArray[np.float64]]) -> LogisticRegression:
    """Give the model its coefficients and its intercept."""
    model.coef_, model.intercept_ = (np.array(p) for p in parameters)
    return model


def _samples() -> Samples:
    """Return all samples, in an order that is the same at every node."""
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return StandardScaler().fit_transform(x)[order], y[order]


def load_data(partition: int, partitions: int) -> tuple[Samples, Samples]:
    """Return the training and the test samples of a partition of the first 400: later partitions have more of them."""
    x, y = _samples()
    edges = np.cumsum([0, *range(1, partitions + 1)]) * 400 // sum(range(1, partitions + 1))
    mine = slice(edges[partition], edges[partition + 1])
    x, y = x[mine], y[mine]
    cut = int(0.8 * len(y))
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def load_server_data() -> Samples:
    """Return the server's samples: those that no partition has."""
    x, y = _samples()
    return x[400:], y[400:]
