"""What people give by mistake: each one clear line, or no difference at all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from own_forms import from_frame
from torch import nn

import hanse
from hanse.base.errors import UserError
from hanse.data.frames import names_of


def table(rows: int = 80) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    x = draw.normal(size=rows)
    hospital = np.array(["Hope", "Visby"])[np.arange(rows) % 2]
    return pd.DataFrame({"hospital": hospital, "age": x, "ill": np.where(x > 0, "yes", "no")})


def spoilt(column: str, row: int, value: Any, rows: int = 80) -> pd.DataFrame:
    frame = table(rows)
    frame[column] = [value if i == row else one for i, one in enumerate(frame[column])]
    return frame


def played(data: Any, **options: Any) -> hanse.Run:
    source = {"target": "ill", "client_column": "hospital", **options}
    source = {key: value for key, value in source.items() if value is not None}
    experiment = hanse.Experiment(data={"source": source}, model="logistic", mechanism="fedavg", run={"rounds": 1})
    return hanse.run(experiment, data=data)


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        (
            table().assign(ill=[np.nan if i == 7 else i % 2 for i in range(80)]),
            "column 'ill': no number (NaN) in 1 row (the first is row 7): 1 of client 'Visby'",
        ),
        (
            spoilt("age", 7, "unknown"),
            "column 'age': holds numbers but for 'unknown' in 1 row (the first is row 7): 1 of client 'Visby'",
        ),
        (table().assign(ill="yes"), "all 80 labels are the same class, so there is nothing to learn"),
        (
            spoilt("ill", 7, "Yes "),
            "the labels 'Yes ' (1 row) and 'yes' (43 rows) cannot be told apart reliably",
        ),
        (
            pd.concat([table(), table()[["age"]]], axis=1),
            "two columns are called 'age': rename one, or leave it out",
        ),
        (
            table().assign(since=pd.Timestamp("2024-01-01")),
            "column 'since': holds datetime64[us] values such as Timestamp('2024-01-01 00:00:00')",
        ),
        (
            spoilt("hospital", 7, "visby"),
            "column 'hospital': the clients 'Visby' (39 rows) and 'visby' (1 row) cannot be told apart reliably",
        ),
    ],
)
def test_one_line_each(frame: pd.DataFrame, line: str) -> None:
    with pytest.raises(UserError) as wrong:
        played(frame)
    assert len(wrong.value.lines) == 1
    told = wrong.value.lines[0]
    assert line in told or line.replace("[us]", "[ns]") in told or line.replace("[us]", "[s]") in told


def test_features_that_are_not_scaled_are_warned_of_and_prepare_scales_them() -> None:
    raw = table().assign(age=lambda t: 60 + 15 * t.age, pressure=1.0)
    [line] = [line for line in played(raw).said if line.startswith("warning: ")]
    assert re.match(
        r"warning: data: DataFrame: 1 of 2 features are not scaled \(sizes up to 6\d(\.\d)?\), and a model learns "
        r"little from such numbers: data\.source\.prepare = 'auto' scales a table's columns",
        line,
    )
    assert line in str(played(raw))
    for data, options in ((raw, {"prepare": "auto"}), (table(), {})):
        assert not [line for line in played(data, **options).said if "not scaled" in line]
    with pytest.raises(UserError, match="NaN or infinite"):
        played(table().assign(age=lambda t: 1e31 * (60 + t.age)))


def test_the_target_names_no_clients() -> None:
    with pytest.raises(UserError, match=r"data.source.client_column: 'ill'"):
        played(table(), client_column="ill")


@pytest.mark.parametrize("name", ["", "  ", "\x00"])
def test_a_client_without_a_name_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"'hospital'"):
        played(spoilt("hospital", 7, name))
    half = np.ones((20, 2)), np.arange(20) % 2
    with pytest.raises(UserError, match=r"a client is called .*: give it a name"):
        played({"Hope": half, name: half}, client_column=None, target=None)
    assert names_of(["?", "Hope"], "data").tolist() == ["?", "Hope"]


def test_who_gains_names_its_own_arguments() -> None:
    for frame, said in (
        (spoilt("age", 7, np.nan), r'fill them \(prepare="auto" does\), or drop'),
        (table().assign(sex="m"), r'prepare="auto" makes some of words'),
    ):
        with pytest.raises(UserError, match=said) as wrong:
            hanse.who_gains(frame, target="ill", client="hospital")
        assert "data.source" not in str(wrong.value)
    with pytest.raises(UserError, match="client: 'ill'"):
        hanse.who_gains(table(), target="ill", client="ill")
    large = table().assign(age=lambda t: 60 + 15 * t.age)
    found = hanse.who_gains(large, target="ill", client="hospital", model="logistic", mechanisms="fedavg", rounds=1)
    assert 'prepare="auto" scales a table\'s columns' in str(found)


def test_one_client_has_nobody_to_join() -> None:
    with pytest.raises(UserError, match="data: DataFrame: has one client"):
        hanse.who_gains(table().assign(hospital="Hope"), target="ill", client="hospital")


def test_an_empty_client_is_named() -> None:
    apart = {name: own.drop(columns="hospital") for name, own in table().groupby("hospital")}
    apart["Kiel"] = apart["Hope"].iloc[:0]
    with pytest.raises(UserError, match="'Kiel'"):
        played(apart, client_column=None)
    arrays = {"Hope": (np.ones((20, 2)), np.arange(20) % 2), "Kiel": (np.ones((0, 2)), np.zeros(0, int))}
    with pytest.raises(UserError, match="'Kiel'"):
        played(arrays, client_column=None, target=None)


def test_a_client_with_one_row_can_take_part() -> None:
    run = played(spoilt("hospital", 7, "Kiel"), min_samples=1)
    assert run.names == ("Hope", "Kiel", "Visby")
    assert np.isfinite(run.metrics[-1]["test/loss"])


def test_a_doubled_index_makes_no_difference() -> None:
    frame = table()
    twice = frame.set_index(np.arange(80) // 2)
    mixed = frame.set_index(frame.index[::-1])
    first = from_frame(frame, "ill", "hospital")
    for other in (twice, mixed):
        found = from_frame(other, "ill", "hospital")
        torch.testing.assert_close(found.train.x, first.train.x, rtol=0, atol=0)
        torch.testing.assert_close(found.train.y, first.train.y)
    prepared = from_frame(frame, "ill", "hospital", prepare="auto")
    torch.testing.assert_close(from_frame(twice, "ill", "hospital", prepare="auto").train.x, prepared.train.x)


def test_single_letters_are_classes_of_their_own() -> None:
    frame = table().assign(ill=np.array(list("aAbB"))[np.arange(80) % 4])
    assert from_frame(frame, "ill", "hospital").num_classes == 4


def test_probabilities_in_the_place_of_logits_are_warned_of() -> None:
    softmax = nn.Sequential(nn.Linear(1, 2), nn.Softmax(dim=1))
    experiment = hanse.Experiment(
        data={"source": {"target": "ill", "client_column": "hospital"}}, mechanism="fedavg", run={"rounds": 1}
    )
    run = hanse.run(experiment, data=table(), model=softmax)
    [line] = [line for line in run.said if line.startswith("warning: ")]
    assert line.startswith("warning: the model returns probabilities (each row sums to 1), and cross-entropy expects")
    assert line in str(run)
    one = experiment.model_copy(update={"train": experiment.train.model_copy(update={"loss": "bce"})})
    for model, told in ((nn.Sequential(nn.Linear(1, 1), nn.Sigmoid()), 1), (nn.Linear(1, 1), 0)):
        assert sum("probabilities" in line for line in hanse.run(one, data=table(), model=model).said) == told
    gains = hanse.who_gains(table(), target="ill", client="hospital", model=softmax, mechanisms="fedavg", rounds=1)
    assert gains.sentences().count(line) == 1
    for fine in (nn.Linear(1, 2), nn.Sequential(nn.Linear(1, 2), nn.LogSoftmax(dim=1))):
        plain = hanse.run(experiment, data=table(), model=fine)
        assert not [line for line in plain.said if "probabilities" in line]


@pytest.mark.parametrize("given", ["hospitals.csv", Path("hospitals.csv")])
def test_the_name_of_a_file_is_no_data(given: Any) -> None:
    with pytest.raises(UserError) as wrong:
        played(given, prepare="auto")
    assert wrong.value.lines == (
        "data: 'hospitals.csv': is a name: give what a file holds, as pandas.read_csv('hospitals.csv') reads it; a "
        "source of hanse is named in the experiment, as data.source",
    )
