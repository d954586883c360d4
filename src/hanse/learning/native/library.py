"""The compiled functions of ``seats.c`` for Python, and which models they can train.

:func:`library` loads them, or says why they are missing: hanse can be installed without a compiler.
:func:`why_not_native` says whether they can train a model.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from functools import cache

from hanse.learning.job import Problem
from hanse.learning.module_layers import Spec

VERSION = 1
"""Of the functions' arguments; the compiled file must say the same (``hanse_native_version``)."""
ACTIVATIONS = {"relu": 1, "tanh": 2}


class Layer(ctypes.Structure):
    """``struct layer`` of ``seats.c``, field by field: a linear layer and the activation after it."""

    _fields_ = (
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("activation", ctypes.c_int64),
        ("bias", ctypes.c_int64),
    )


class Seat(ctypes.Structure):
    """``struct seat`` of ``seats.c``, field by field: one seat's training.

    The caller must keep the memory that it points to alive.
    """

    _fields_ = (
        ("start", ctypes.c_void_p),
        ("constant", ctypes.c_void_p),
        ("row", ctypes.c_void_p),
        ("batches", ctypes.c_void_p),
        ("steps", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("reported", ctypes.c_int64),
        ("pull", ctypes.c_double),
        ("loss", ctypes.c_double),
    )


@cache
def library() -> ctypes.CDLL | str:
    """Return the compiled functions, or the reason why they are missing."""
    spec = importlib.util.find_spec(f"{__package__}.seats")
    if spec is None or spec.origin is None:
        return "this installation of hanse has no compiled part: install a C compiler (gcc), then hanse again"
    try:
        compiled = ctypes.CDLL(spec.origin)
        if int(compiled.hanse_native_version()) != VERSION:
            return "the compiled part is of another version of hanse: install hanse again"
        compiled.hanse_vectors.restype = ctypes.c_char_p
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        compiled.hanse_train.argtypes = [
            pointer, number, pointer, number, pointer, pointer, pointer, ctypes.c_double, ctypes.c_double,
        ]  # fmt: skip
        compiled.hanse_outputs.argtypes = [pointer, number, pointer, pointer, number, pointer]
    except (OSError, AttributeError) as error:  # the file is no library, or one that lacks a function
        return f"the compiled part cannot be loaded ({error})"
    return compiled


def why_not_native(problem: Problem) -> str | None:
    """Return why the compiled code cannot train a model here, or None if it can.

    It can train linear layers with ReLU or tanh between them, all of which train, with cross-entropy or the squared
    error.
    """
    compiled = library()
    if isinstance(compiled, str):
        return compiled
    specs = problem.stack
    if specs is None or read_dense(specs) is None:
        return "the model is not linear layers with ReLU or tanh between them"
    if problem.objective is not None:
        return "the loss is neither cross-entropy nor the squared error"
    return "some parameters do not train" if problem.frozen else None


def read_dense(specs: Sequence[Spec]) -> list[Layer] | None:
    """Return linear layers with the activation after each, or None for other layers or another order of them.

    The last layer must be linear: outputs go to the loss as they are.
    """
    layers: list[Layer] = []
    for before, spec in zip([None, *specs], specs, strict=False):
        if spec.kind == "linear":
            layers.append(Layer(spec.inputs, spec.outputs, 0, int(spec.bias)))
        elif spec.kind in ACTIVATIONS and before is not None and before.kind == "linear":
            layers[-1].activation = ACTIVATIONS[spec.kind]
        else:
            return None
    return layers if specs[-1].kind == "linear" else None
