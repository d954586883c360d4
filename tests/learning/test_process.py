"""A run neither depends on what the caller's process has set, nor changes it."""

import decimal
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

import hanse


@contextmanager
def dtype(kind: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def seeds(seed: int) -> Iterator[None]:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    yield


@contextmanager
def errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


STATES: dict[str, Callable[[], Any]] = {
    "float64": lambda: dtype(torch.float64),
    "bfloat16": lambda: dtype(torch.bfloat16),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "meta": lambda: torch.device("meta"),
    "numpy raises": lambda: np.errstate(all="raise"),
    "seed": lambda: seeds(7),
    "warnings": errors,
    "decimal": lambda: decimal.localcontext(prec=2),
    "digits": lambda: np.printoptions(precision=1, legacy="1.13"),
    "pandas": lambda: pd.option_context("display.precision", 1, "display.max_rows", 2),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "nothing": nullcontext,
}


def played(form: str) -> list[bytes]:
    x = np.random.default_rng(0).normal(size=(90, 4))
    y, who = (x[:, 0] > 0).astype(int), np.array(list("abc") * 30)
    data: Any = (x, y, who)
    source: dict[str, Any] = {}
    if form == "frame":
        data = pd.DataFrame(x).assign(y=y, who=who)
        data.loc[3, 0] = None
        source = {"source": {"target": "y", "client_column": "who", "prepare": "auto", "features": [0, 1, 2]}}
    elif form == "torch":
        data = {name: TensorDataset(torch.tensor(x[who == name], dtype=torch.float32), torch.tensor(y[who == name]))
                for name in "abc"}  # fmt: skip
    mechanism = {"frame": "ditto", "torch": "fedavg", "arrays": {"name": "fedavg", "value": "exact"}}[form]
    run = hanse.run(hanse.Experiment(mechanism=mechanism, run={"rounds": 1}, data=source), data=data)
    return [p.numpy(force=True).tobytes() for p in run.model().state_dict().values()]


kept = cache(played)


def state() -> tuple[Any, ...]:
    return (
        torch.get_rng_state().numpy().tobytes(), repr(np.random.get_state()), random.getstate(), np.geterr(),  # noqa: NPY002
        torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"), str(torch.get_default_device()), decimal.getcontext().prec,
    )  # fmt: skip


@pytest.mark.parametrize("draws", [12, pytest.param(200, marks=pytest.mark.nightly)])
def test_the_callers_settings_neither_matter_nor_change(draws: int) -> None:
    quiet = [HealthCheck.too_slow]
    few = settings(
        max_examples=draws, deadline=None, derandomize=draws < 100, suppress_health_check=quiet, database=None
    )

    @few
    @given(
        st.lists(st.sampled_from(sorted(STATES)), min_size=1, max_size=3, unique=True),
        st.sampled_from(["arrays", "frame", "torch"]),
    )
    def check(names: list[str], form: str) -> None:
        reference = kept(form)
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(STATES[name]())
            before = state()
            found = played(form) if "meta" not in names or form != "torch" else reference
            assert state() == before
        assert found == reference

    check()
