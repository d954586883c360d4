"""Own loops, losses, metrics, data and models together: in a run, read back from its directory, and gone on with."""

from pathlib import Path

import pytest
import torch

import hanse
from tests.runs.test_objects import experiment, frame
from tests.runs.test_reading import same


def net() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    model[0].requires_grad_(False)
    return model


def test_other_frozen_parameters_are_refused_where_rows_do_not_have_them(tmp_path: Path) -> None:
    given, model = experiment(model={"send": "trainable"}), net()
    run = hanse.run(given, data=frame(), model=model, out=tmp_path / "run")
    assert same(hanse.load(tmp_path / "run", model=model).model(0), run.model(0))
    with pytest.raises(hanse.UserError, match="other frozen parameters"):
        hanse.load(tmp_path / "run", model=net())
    with pytest.raises(hanse.UserError, match="other frozen parameters"):
        hanse.resume(tmp_path / "run", data=frame(), model=net(), rounds=3)
    assert len(hanse.resume(tmp_path / "run", data=frame(), model=model, rounds=3).metrics) == 3
    with pytest.raises(hanse.UserError, match=r"given as an object \(Sequential\)"):
        hanse.load(tmp_path / "run").model()
