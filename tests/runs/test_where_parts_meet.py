"""Own loops, losses, metrics, data and models together: in a run, read back from its directory, and gone on with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hanse
from hanse.base.errors import UserError
from hanse.runs.run_record import client_of
from tests.runs.test_objects import experiment, frame
from tests.runs.test_reading import same


def test_a_client_s_model_is_the_one_that_it_holds_not_the_one_it_starts_from(tmp_path: Path) -> None:
    run = hanse.run(experiment(2, "ditto", model={"name": "mlp", "hidden": [3]}), data=frame(), out=tmp_path / "run")
    own = run.table.rows[torch.as_tensor(run.table.owner >= 0)]
    for found in (run, hanse.load(tmp_path / "run")):
        rows = [found.problem.layout.flatten(found.model(c)) for c in range(3)]
        assert all(torch.equal(row, own[c]) for c, row in enumerate(rows))
    assert not torch.equal(own[0], own[1])


def net() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    return model


def test_other_frozen_parameters_are_refused_where_rows_do_not_have_them(tmp_path: Path) -> None:
    given, model = experiment(model={"send": "trainable"}), net()
    run = hanse.run(given, data=frame(), model=model, out=tmp_path / "run")
    assert same(hanse.load(tmp_path / "run", model=model).model(0), run.model(0))
    with pytest.raises(UserError, match="other frozen parameters"):
        hanse.load(tmp_path / "run", model=net())
    with pytest.raises(UserError, match="other frozen parameters"):
        hanse.resume(tmp_path / "run", data=frame(), model=net(), rounds=3)
    assert len(hanse.resume(tmp_path / "run", data=frame(), model=model, rounds=3).metrics) == 3
    with pytest.raises(UserError, match=r"given as an object \(Sequential\)"):
        hanse.load(tmp_path / "run").model()


@pytest.mark.parametrize("others", [["Hope", "Hope "], ["x" * 90, "x" * 90 + "y"], ["a\x00", "a"]], ids=str)
def test_clients_whose_names_are_shown_alike_do_not_become_one(others: list[str]) -> None:
    table = frame()
    table["hospital"] = table.hospital.map({"General": "General", "Hope": others[0], "St Mary": others[1]})
    with pytest.raises(UserError, match=r"cannot be told apart reliably|names are shown alike|have the same name"):
        hanse.run(experiment(), data=table)
    arrays = (table[["age", "bmi"]].to_numpy(), table.ill.to_numpy(), table.hospital.to_numpy())
    with pytest.raises(UserError, match=r"cannot be told apart reliably|names are shown alike|have the same name"):
        hanse.run(experiment(data={}), data=arrays)


def test_labels_of_words_and_of_numbers_are_not_put_together() -> None:
    x = np.random.default_rng(0).normal(size=(20, 2))
    given = {"a": (x, np.array(["no", "yes"] * 10)), "b": (x, np.arange(20) % 2)}
    with pytest.raises(UserError, match="client 'b': its targets are whole numbers, those of 'a' are words"):
        hanse.run(experiment(data={}), data=given)


def test_a_number_that_is_another_client_s_name_is_not_taken_for_either() -> None:
    assert client_of("2", ("0", "1", "2")) == 2
    assert client_of("0", ("7", "8")) == 0
    assert client_of("7", ("7", "8")) == 0  # there is no number 7
    with pytest.raises(UserError, match=r"is the name of client 0 and the number of client 1 \(2\)"):
        client_of("1", ("1", "2"))


class MuteError(Exception):
    """Cannot be said."""

    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("raised", "said"), [(SystemExit(3), "SystemExit: 3"), (MuteError(), "MuteError")], ids=["exit", "mute"]
)
def test_a_loop_that_ends_the_process_costs_its_client_the_seat(raised: BaseException, said: str) -> None:
    def fit(model: nn.Module, data: Any, round: Any) -> None:
        if round.client == 1:
            raise raised
        next(model.parameters()).data.add_(0.01)

    run = hanse.run(experiment(rounds=1, train={"lr": 0.1, "loop": fit}), data=frame())
    assert [line.get("refused") for line in run.clients] == [None, f"its training loop raised {said}", None]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_loop_sets_for_the_process_is_put_back(workers: int) -> None:
    def fit(model: nn.Module, data: Any, round: Any) -> None:
        assert torch.get_default_dtype() == torch.float32 or workers == 2
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(3)
        if round.client == 2:
            sys.exit()
        next(model.parameters()).data.add_(0.01)

    before = torch.get_num_threads()
    engine = {"train": "sequential", "workers": workers, "device": "cpu"}
    run = hanse.run(experiment(train={"lr": 0.1, "loop": fit}, engine=engine), data=frame())
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float32, before)
    assert [line["answered"] for line in run.metrics] == [2, 2]
