"""What is wrong with a module or with data is one line before round 0, and leaves no run directory behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hanse
from hanse.cli import main
from hanse.data.samples import Samples, as_tensors, first_gap

PLACE = "tests.learning.mistaken"

BAD_MODELS = {
    "wide": "cannot take samples of shape [4] (RuntimeError: mat1 and mat2 shapes cannot be multiplied",
    "one": "gives outputs of shape [4, 1] for 4 samples; one for each of the 2 classes is needed, [4, 2]; with two "
    "classes, too, cross-entropy takes two outputs",
    "none": "gives outputs of shape [4] for 4 samples; one for each of the 2 classes is needed, [4, 2]",
    "two inputs": "cannot take samples of shape [4] (TypeError: TwoInputs.forward() missing 1 required positional",
    "pair": "returns a tuple; one tensor of outputs is needed",
    "frozen": "every parameter is frozen (requires_grad is False): nothing can train",
    "shared": "'0.weight' and '1.weight' are two parameters in the same memory; to tie them, make them one object",
    "tokens": "cannot take samples of shape [4] (RuntimeError: Expected tensor for argument #1 'indices' to have",
}
BAD_DATA = {
    "uint8": "train inputs are uint8; float32 for features, or int64 for tokens, is needed",
    "object_": "train inputs are an array of object, such as",
    "frame": "train inputs are a list; one tensor or numpy array of numbers is needed",
    "words": "train labels are an array of <U3, such as",
    "floats": "train labels are torch.float32 of shape (48,); int64 of shape (n,), or (n, positions), is needed",
    "range_": "train labels span 0..2; allowed: 0..1 (the first other one is in row 7)",
    "nan": "features must be finite numbers: row 13, column 2 of the train samples is nan, held by client 1 (B)",
    "inf": "features must be finite numbers: row 11, column 0 of the test samples is inf",
    "huge": "train inputs (column 2): numbers up to 1e+300 are too large for float32",
    "target": "targets must be finite numbers: row 3 of the train samples is nan, held by client 0 (A)",
    "tokens": "; these are whole numbers (tokens), features must be float32",
    "three": "gives outputs of shape [4, 2] for 4 samples; one for each of the 3 classes is needed, [4, 3]",
}


def written(folder: Path, data: str, model: str) -> Path:
    file = folder / "exp.toml"
    file.write_text(
        f'[data]\nsource = "{PLACE}:{data}"\npartition = "natural"\nclients = 3\nvalidation = 0.0\n'
        f'[model]\nname = "{PLACE}:model"\nkind = "{model}"\n[mechanism]\nname = "fedavg"\n[run]\nrounds = 1\n'
    )
    return file


@pytest.mark.parametrize("engine", ["auto", "sequential"])
@pytest.mark.parametrize(
    ("data", "model", "said"),
    [*(("sound", model, said) for model, said in BAD_MODELS.items()), *((d, "sound", s) for d, s in BAD_DATA.items())],
)
def test_a_mistake_is_one_line_and_no_run_directory(
    data: str,
    model: str,
    said: str,
    engine: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    file = written(tmp_path, data, model)
    monkeypatch.setattr("sys.argv", ["hanse", "run", str(file), "--out", str(out), "--set", f"engine.train={engine}"])
    with pytest.raises(SystemExit) as left:
        main()
    told = capsys.readouterr().err.strip()
    assert left.value.code == 2
    assert said in told
    assert told.startswith("hanse: ")
    assert "\n" not in told
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


def test_sound_samples_stay_the_same_objects() -> None:
    samples = Samples(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64))
    assert as_tensors(samples, "here", classes=True) is samples
    assert first_gap(torch.full((3, 2), 3e38)) is None
    assert first_gap(torch.tensor([[0.0, 1.0], [float("-inf"), float("inf")]])) == ((1, 0), "-inf")


@pytest.mark.parametrize(
    ("module", "said"),
    [("Hooked", "'layer.weight'"), ("Complex", "parameter 'w' is complex")],
)
def test_a_parameter_that_could_not_be_trained_as_it_is_is_refused_by_name(module: str, said: str) -> None:
    experiment = hanse.Experiment(model={"name": f"{PLACE}:{module}"}, mechanism={"name": "fedavg"})
    with pytest.raises(hanse.base.errors.UserError, match=said):
        hanse.run(experiment)
