"""``--track`` takes TensorBoard, which ``tests/cli/test_cli.py`` plays, or a user's own observer by its import path."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hanse
from hanse.runs.observers import make_trackers


def test_a_tracker_of_ones_own_is_made_once_with_the_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    tracker = SimpleNamespace(on_round=lambda metrics, played: heard.append(metrics["round"]))
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(made=lambda folder: heard.append(folder) or tracker))
    small = {"data": {"clients": 3}, "model": "logistic", "mechanism": "fedavg", "run": {"rounds": 2}}
    hanse.run(hanse.Experiment(**small), observers=make_trackers(["mine:made", "mine:made"], tmp_path))
    assert heard == [tmp_path, 0, 1]
    with pytest.raises(hanse.UserError, match=r"tensorbord.*did you mean 'tensorboard'"):
        make_trackers(["tensorbord"], tmp_path)
