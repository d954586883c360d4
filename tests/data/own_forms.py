"""Data of a user's own in each form, under the names by which the tests' messages call them; and drawn ones."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from numpy.typing import NDArray

from hanse.data import Dataset, Samples, as_dataset

from_frame = partial(as_dataset, name="frame")
from_torch = partial(as_dataset, name="torch")
draws = pytest.mark.parametrize("draws", [20, pytest.param(200, marks=pytest.mark.nightly)])


def from_arrays(x: Any, y: Any, clients: Any = None, **more: Any) -> Dataset:
    return as_dataset((x, y, clients), **{"name": "arrays", **more})


def dataset_of(labels: NDArray[np.int64], classes: int, **more: Any) -> Dataset:
    """Samples with these labels, and no test set."""
    train = Samples(torch.zeros(len(labels), 1), torch.from_numpy(labels))
    return Dataset("labels", train, train.take(torch.zeros(0, dtype=torch.int64)), classes, (1,), **more)


def holds(draws: int, check: Callable[..., None], **strategies: Any) -> None:
    few = settings(
        max_examples=draws, deadline=None, derandomize=draws < 100, suppress_health_check=[*HealthCheck], database=None
    )
    few(given(**strategies)(check))()
