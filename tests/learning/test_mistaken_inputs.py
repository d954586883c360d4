"""What is wrong with a module or with data is one line before round 0, and leaves no run directory behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from commands import run_hanse

import hanse

PLACE = "tests.learning.mistaken"

BAD_MODELS = {
    "wide": "cannot take samples of shape [4]", "one": "gives outputs of shape [4, 1] for 4 samples",
    "none": "gives outputs of shape [4] for 4", "two inputs": "missing 1 required", "pair": "returns a tuple",
    "frozen": "every parameter is frozen", "shared": "'0.weight' and '1.weight'", "tokens": "cannot take samples",
}  # fmt: skip
BAD_DATA = {
    "uint8": "train inputs are uint8", "object_": "train inputs are an array of object", "frame": "inputs are a list",
    "words": "train labels are an array of <U3", "floats": "train labels are torch.float32", "range_": "row 7",
    "nan": "train: features (column 2): no finite number in 1 row (the first is row 13): 1 of client 'B'",
    "three": "3 classes",
    "inf": "test: features (column 0): no finite number in 1 row (the first is row 11)", "huge": "1e+300",
    "tokens": "whole numbers (tokens)",
    "target": "train: targets: no finite number in 1 row (the first is row 3): 1 of client 'A'",
}  # fmt: skip


def written(folder: Path, data: str, model: str) -> Path:
    file = folder / "exp.toml"
    file.write_text(
        f'[data]\nsource = "{PLACE}:{data}"\npartition = "natural"\nclients = 3\nvalidation = 0.0\n'
        f'[model]\nname = "{PLACE}:model"\nkind = "{model}"\n[mechanism]\nname = "fedavg"\n[run]\nrounds = 1\n'
    )
    return file


@pytest.mark.parametrize(
    ("data", "model", "said"),
    [*(("sound", model, said) for model, said in BAD_MODELS.items()), *((d, "sound", s) for d, s in BAD_DATA.items())],
)
def test_a_mistake_is_one_line_and_no_run_directory(data: str, model: str, said: str, tmp_path: Path) -> None:
    out, file = tmp_path / "out", written(tmp_path, data, model)
    engine = "sequential" if len(data + model) % 2 else "auto"
    code, _, told = run_hanse("run", file, "--out", out, "--set", f"engine.train={engine}")
    assert (code, told.count("\n")) == (2, 1)
    assert said in told
    assert told.startswith("hanse: ")
    assert not out.exists()


def test_numpy_arrays_of_any_width_are_read_as_the_numbers_that_they_are() -> None:
    runs = [
        hanse.run(
            hanse.Experiment(
                data={"source": f"{PLACE}:{data}", "partition": "iid", "clients": 3},
                model={"name": f"{PLACE}:model"},
                mechanism={"name": "fedavg"},
                engine={"train": "sequential", "threads": 1, "workers": 1},
                run={"rounds": 2},
            )
        )
        for data in ("sound", "narrow")
    ]
    assert torch.equal(runs[0].table.rows, runs[1].table.rows)


@pytest.mark.parametrize(
    ("module", "said"),
    [("Hooked", "'layer.weight'"), ("Complex", "parameter 'w' is complex")],
)
def test_a_parameter_that_could_not_be_trained_as_it_is_is_refused_by_name(module: str, said: str) -> None:
    experiment = hanse.Experiment(model={"name": f"{PLACE}:{module}"}, mechanism={"name": "fedavg"})
    with pytest.raises(hanse.base.errors.UserError, match=said):
        hanse.run(experiment)
