"""The same experiment on Flower's Ray simulation. By hand, where Ray is installed (extra 'ray')."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from deployed import MECHANISMS, PAYMENTS, experiment, kinds

import hanse
from hanse.base.errors import UserError


@pytest.mark.soak
@pytest.mark.parametrize("name", MECHANISMS)
def test_engines_agree_local_and_ray(name: str, tmp_path: Path) -> None:
    local = hanse.run(experiment(name))
    ray = hanse.run(experiment(name, federation={"engine": "ray"}), out=tmp_path / "run")
    assert torch.equal(local.table.rows, ray.table.rows)
    assert local.clients == ray.clients
    assert replace(local.book, peaks=()) == replace(ray.book, peaks=())  # closes have hashes of the engine's records
    assert kinds(tmp_path / "run") == (PAYMENTS[name] | {"grant", "close"} if name in PAYMENTS else set())


def test_the_ray_engine_says_what_it_cannot_do(tmp_path: Path) -> None:
    noisy = experiment(federation={"engine": "ray"}, behaviour={"noisy": {"sigma": 0.1}})
    said = "the ray engine has no simulated behaviours" if find_spec("ray") else "needs Ray; pip install"
    with pytest.raises(UserError, match=said):
        hanse.run(noisy, out=tmp_path / "run")
