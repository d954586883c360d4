"""What a run's models were made for, kept beside it in ``shape.json``: samples, classes, and frozen parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import read_json
from hanse.data import FederatedData
from hanse.data.samples import Input, Inputs
from hanse.learning.job import Problem
from hanse.runs.record import SHAPE

INPUTS, FROZEN = "inputs", "frozen"


def model_made_for(data: FederatedData, problem: Problem) -> dict[str, Any]:
    """Return what ``shape.json`` says: the shape of a sample, the number of classes; of samples of several inputs
    those; and a digest of the frozen parameters, where rows do not have them.
    """
    said: dict[str, Any] = {"input_shape": data.input_shape, "num_classes": data.num_classes}
    if data.inputs:
        said[INPUTS] = [{"name": part.name, "shape": part.shape, "whole": part.whole} for part in data.inputs.parts]
    if problem.unsent:
        said[FROZEN] = problem.unsent
    return said


def same_frozen(folder: Path, problem: Problem) -> None:
    """Raise UserError if a model has other frozen parameters than the run's, which its rows do not have."""
    said = read_json(folder / SHAPE) if (folder / SHAPE).exists() else None
    known = said.get(FROZEN) if isinstance(said, Mapping) else None
    if known is not None and known != problem.unsent:
        raise UserError(
            f"{folder}: its models have other frozen parameters than this model, and with model.send = 'trainable' "
            "they are not kept: give the model with the same ones"
        )


def read_shape(file: Path) -> tuple[tuple[int, ...] | Inputs, int | None]:
    """Return the shape of a sample, or its several inputs, and the number of classes. Raises UserError."""
    said = read_json(file)
    classes = said.get("num_classes") if isinstance(said, Mapping) else 0
    shape: Any = None
    if isinstance(said, Mapping):
        shape = _inputs(said[INPUTS]) if INPUTS in said else _shape(said.get("input_shape"))
    if shape is None or not (classes is None or _is_size(classes)):
        raise UserError(f'{file}: must be {{"input_shape": [numbers], "num_classes": number}}')
    return shape, classes


def _inputs(listed: object) -> Inputs | None:
    if not isinstance(listed, list) or not listed:
        return None
    parts = []
    for one in listed:
        shape = _shape(one.get("shape")) if isinstance(one, Mapping) else None
        if shape is None or not isinstance(one.get("name"), str) or not isinstance(one.get("whole"), bool):
            return None
        parts.append(Input(one["name"], shape, one["whole"]))
    return Inputs(tuple(parts))


def _shape(shape: object) -> tuple[int, ...] | None:
    return tuple(shape) if isinstance(shape, list) and all(map(_is_size, shape)) else None


def _is_size(size: object) -> bool:
    return isinstance(size, int) and 0 < size < 2**50
