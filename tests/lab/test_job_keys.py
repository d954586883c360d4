"""Which run directory and which kept line are a job's, whatever was left open or has another default since."""

from pathlib import Path
from typing import Any

import pytest
from rotation import rotating
from torch import nn

from hanse.lab.job import folder_of, play_kept, seeded
from hanse.lab.kept import WITHOUT_STATISTICS, is_of
from hanse.learning.models import MODELS

SMALL: dict[str, Any] = {
    "data": {"clients": 4, "partition": {"samples_per_client": 30}},
    "model": {"name": "logistic"},
    "mechanism": {"name": "pifl"},
    "engine": {"train": "stacked", "threads": 1},
    "run": {"rounds": 2},
}


def test_a_run_whose_judges_were_left_open_goes_on_in_its_directory(tmp_path: Path) -> None:
    job, rounds = seeded(SMALL, 0, "open"), list[int]()
    first = play_kept(job, rounds.append, runs=tmp_path)
    again = play_kept(job, rounds.append, runs=tmp_path)
    assert first["status"] == again["status"] == "done"
    assert rounds == [1, 1, 2]  # nothing was played twice
    assert 'name = "first_order"' in (folder_of(tmp_path, job) / "config.toml").read_text()


@pytest.mark.parametrize("model", rotating(list(MODELS), 3))
def test_a_run_of_a_model_without_batch_norm_is_the_same_under_the_new_default_of_its_statistics(model: str) -> None:
    if model == "lora":
        pytest.importorskip("peft", reason="needs the extra 'llm'")
    shape = (3, 32, 32) if model not in ("lstm", "lora") else (10,)
    made = MODELS[model](shape, 10)
    normed = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in made.modules())
    assert normed == (model not in WITHOUT_STATISTICS)
    job = seeded({"mechanism": {"name": "fedavg"}, "model": {"name": model}, "run": {"rounds": 1}}, 0, "a run")
    then = {**job.experiment.sections(), "train": {**job.experiment.sections()["train"], "statistics": "averaged"}}
    assert is_of({"given": job.sections, "experiment": then, "tested": [1], "curves": {"loss": [1.0]}}, job) != normed
