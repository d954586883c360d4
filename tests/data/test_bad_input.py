"""What people give by mistake: each one clear line, or no difference at all."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mistaken import mistakes
from torch import nn

import hanse
import hanse.data
from hanse.base.errors import UserError


def table(rows: int = 80) -> pd.DataFrame:
    x = np.random.default_rng(0).normal(size=rows)
    hospital = np.array(["Hope", "Visby"])[np.arange(rows) % 2]
    return pd.DataFrame({"hospital": hospital, "age": x, "ill": np.where(x > 0, "yes", "no")})


def played(data: Any, **options: Any) -> hanse.Run:
    source = {"target": "ill", "client_column": "hospital", **options}
    source = {key: value for key, value in source.items() if value is not None}
    experiment = hanse.Experiment(data={"source": source}, model="logistic", mechanism="fedavg", run={"rounds": 1})
    return hanse.run(experiment, data=data)


def test_features_that_are_not_scaled_are_warned_of_and_prepare_scales_them() -> None:
    raw = table().assign(age=lambda t: 60 + 15 * t.age, pressure=1.0)
    run = played(raw)
    [line] = [line for line in run.said if line.startswith("warning: ")]
    assert "1 of 2 features are not scaled" in line
    assert line in str(run)
    for data, options in ((raw, {"prepare": "auto"}), (table(), {})):
        assert not [line for line in played(data, **options).said if "not scaled" in line]
    with pytest.raises(UserError, match="NaN or infinite"):
        played(table().assign(age=lambda t: 1e31 * (60 + t.age)))


def test_who_gains_names_its_own_arguments() -> None:
    for frame, said in (
        (table().assign(age=lambda t: t.age.where(t.index != 7)), r'fill them \(prepare="auto" does\), or drop'),
        (table().assign(sex="m"), r'prepare="auto" makes some'),
        (table().head(4), r"min_samples = 10.*as_dataset\(\.\.\., min_samples=\.\.\.\)"),
    ):
        with pytest.raises(UserError, match=said) as wrong:
            hanse.who_gains(frame, target="ill", client="hospital")
        assert "data.source" not in str(wrong.value)
    with pytest.raises(UserError, match="client: 'ill'"):
        hanse.who_gains(table(), target="ill", client="ill")


@pytest.mark.parametrize("x", [np.ones((8, 2), object), np.ones((8, 2), complex), np.ones((8, 2), "M8[s]"), 1])
def test_arrays_of_no_numbers_and_lone_ones_are_refused_in_hanses_words(x: Any) -> None:
    for data in ((x, np.arange(8) % 2), (np.ones((8, 2)), 1)):
        [line] = mistakes(hanse.data.as_dataset, data)
        assert re.search("numbers is needed|one for each sample", line)


def test_probabilities_in_the_place_of_logits_are_warned_of() -> None:
    experiment = hanse.Experiment(
        data={"source": {"target": "ill", "client_column": "hospital"}}, mechanism="fedavg", run={"rounds": 1}
    )
    one = experiment.model_copy(update={"train": experiment.train.model_copy(update={"loss": "bce"})})
    for of, model, told in (
        (experiment, nn.Sequential(nn.Linear(1, 2), nn.Softmax(dim=1)), 1),
        (experiment, nn.Linear(1, 2), 0),
        (experiment, nn.Sequential(nn.Linear(1, 2), nn.LogSoftmax(dim=1)), 0),
        (one, nn.Sequential(nn.Linear(1, 1), nn.Sigmoid()), 1),
        (one, nn.Linear(1, 1), 0),
    ):
        assert sum("probabilities" in line for line in hanse.run(of, data=table(), model=model).said) == told


def test_the_name_of_a_file_is_no_data() -> None:
    with pytest.raises(UserError) as wrong:
        played(Path("hospitals.csv"), prepare="auto")
    assert "pandas.read_csv('hospitals.csv')" in wrong.value.lines[0]
