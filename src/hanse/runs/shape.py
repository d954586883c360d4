"""A run's ``shape.json``: the samples and classes that its models were made for, and a digest of frozen parameters.

With it ``hanse.load`` can make a model without the data. Rows do not contain frozen parameters. The digest of these
prevents resuming a run with different ones.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from hanse.base.errors import UserError
from hanse.base.files import read_text
from hanse.core.declared import Declared, UnsoundError
from hanse.runs.chance import Guess
from hanse.runs.round_record import SHAPE

if TYPE_CHECKING:
    from hanse.data import FederatedData
    from hanse.data.samples import Inputs
    from hanse.learning.job import Problem

Size = Annotated[int, Field(gt=0, lt=2**50)]  # bounded: a stranger's file must not ask for absurd memory


class _Input(TypedDict):
    name: str
    shape: list[Size]
    whole: bool


class Shape(TypedDict):
    """The contents of the file.

    Attributes:
        input_shape: the shape of a sample.
        num_classes: the number of classes. None: regression.
        inputs: each input's name and shape, if a sample has several inputs.
        frozen: a digest of the parameters that the model does not send, if any.
        guess: a guess's scores on the server's test set, if targets are classes.
    """

    input_shape: list[Size]
    num_classes: Size | None
    inputs: NotRequired[Annotated[list[_Input], Field(min_length=1)]]
    frozen: NotRequired[str]
    guess: NotRequired[Guess]


_SHAPE = Declared[Shape](Shape)


def model_made_for(data: FederatedData, problem: Problem) -> dict[str, Any]:
    """Return the contents of a run's ``shape.json``: a :class:`Shape` as JSON."""
    shape: dict[str, Any] = {"input_shape": data.input_shape, "num_classes": data.num_classes}
    if data.inputs:
        shape["inputs"] = [{"name": part.name, "shape": part.shape, "whole": part.whole} for part in data.inputs.parts]
    if problem.unsent:
        shape["frozen"] = problem.unsent
    if (guess := guess_of(data, problem)) is not None:
        shape["guess"] = asdict(guess)
    return shape


def same_frozen(folder: Path, problem: Problem) -> None:
    """Raise UserError if a model's frozen parameters are not the run's."""
    if read_said(folder / SHAPE).get("frozen", problem.unsent) != problem.unsent:
        raise UserError(
            f"{folder}: its models have other frozen parameters than this model, and with model.send = 'trainable' "
            "they are not kept: give the model with the same ones"
        )


def read_said(file: Path) -> Shape:
    """Read a ``shape.json``. Raises UserError if it is missing or malformed."""
    try:
        return _SHAPE.read(read_text(file))
    except UnsoundError as wrong:
        form = '{"input_shape": [numbers], "num_classes": number}'
        raise UserError(f"{file}: {wrong}; the file must be {form}") from None


def read_shape(file: Path) -> tuple[tuple[int, ...] | Inputs, int | None]:
    """Return the shape of a sample, or its several inputs, and the number of classes (None: regression).

    Raises:
        UserError: the file is malformed.
    """
    contents = read_said(file)
    classes = contents["num_classes"]
    if "inputs" in contents:
        from hanse.data.samples import Input, Inputs  # late: reports read this module, and read without torch

        return Inputs(
            tuple(Input(one["name"], tuple(one["shape"]), one["whole"]) for one in contents["inputs"])
        ), classes
    return tuple(contents["input_shape"]), classes


def guess_of(data: FederatedData, problem: Problem) -> Guess | None:
    """Return a guess's scores on the server's test set, or None if there is no such set, or for regression."""
    return None if problem.regression else Guess.of(data.server_test)
