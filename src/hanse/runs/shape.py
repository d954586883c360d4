"""What a run's models were made for, kept beside it in ``shape.json``: samples, classes, and frozen parameters.

With it ``hanse.load`` can make a model without the data. The digest of frozen parameters, which rows do not have, keeps
a run from going on with other ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import read_json
from hanse.data import FederatedData
from hanse.data.samples import Input, Inputs
from hanse.learning.job import Problem
from hanse.runs.chance import GUESS, Guess
from hanse.runs.record import SHAPE

INPUTS, FROZEN = "inputs", "frozen"


def model_made_for(data: FederatedData, problem: Problem) -> dict[str, Any]:
    """Return what ``shape.json`` says.

    It has the shape of a sample and the number of classes (None: regression); samples of several inputs have each
    input's name and shape beside these. A model that does not send all its parameters adds a digest of those it keeps.
    Classes add what a guess scores on the server's test set (:class:`hanse.runs.chance.Guess`).
    """
    said: dict[str, Any] = {"input_shape": data.input_shape, "num_classes": data.num_classes}
    if data.inputs:
        said[INPUTS] = [{"name": part.name, "shape": part.shape, "whole": part.whole} for part in data.inputs.parts]
    if problem.unsent:
        said[FROZEN] = problem.unsent
    guess = None if problem.regression else Guess.of(data.server_test)
    if guess is not None:
        said[GUESS] = asdict(guess)
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
    """Return the shape of a sample, or its several inputs, and the number of classes (None: regression).

    Raises:
        UserError: the file does not say these in the form that hanse writes.
    """
    said = read_json(file)
    classes = said.get("num_classes") if isinstance(said, Mapping) else 0
    shape: Any = None
    if isinstance(said, Mapping):
        shape = _inputs(said[INPUTS]) if INPUTS in said else _shape(said.get("input_shape"))
    if shape is None or not (classes is None or _is_size(classes)):
        raise UserError(f'{file}: must be {{"input_shape": [numbers], "num_classes": number}}')
    return shape, classes


def _inputs(listed: object) -> Inputs | None:
    """Return the inputs that a file lists; None if it is no such list."""
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
    """Return a list of sizes as a tuple; None if it is no such list."""
    return tuple(shape) if isinstance(shape, list) and all(map(_is_size, shape)) else None


def _is_size(size: object) -> bool:
    """Say whether this can be the length of an axis. The bound keeps a stranger's file from asking for absurd
    memory.
    """
    return isinstance(size, int) and 0 < size < 2**50
