"""Values from outside: what is let in, and how short the line is that is said of what is not."""

import math
from typing import Any

import pytest
import torch

from hanse.core.declared import (
    LARGEST_COUNT,
    LARGEST_LOSS,
    Accuracy,
    Clip,
    Count,
    Declared,
    Error,
    Figure,
    Int64,
    Loss,
    Name,
    Plain,
    Samples,
    Units,
    UnsoundError,
)
from hanse.core.port import Reply, Trained

NAN = math.nan


@pytest.mark.parametrize(
    ("kind", "least", "most", "beyond"),
    [
        (Int64, -(2**63), 2**63 - 1, [-(2**63) - 1, 2**63]), (Units, 0, 2**63 - 1, [-1, 2**63]),
        (Count, 0, LARGEST_COUNT, [-1, LARGEST_COUNT + 1]), (Samples, 0.0, float(LARGEST_COUNT), [-0.1, 1e16, NAN]),
        (Loss, -LARGEST_LOSS, LARGEST_LOSS, [-1e39, 1e39, NAN]), (Error, 0.0, LARGEST_LOSS, [-0.1, 1e39, NAN]),
        (Accuracy, 0.0, 1.0, [-0.1, 1.1, NAN]), (Figure, -1e300, 1e300, [NAN, math.inf]),
        (Clip, 1e-9, 1e300, [0.0, math.inf]), (Name, "", "x" * 200, ["x" * 201]),
    ],
)  # fmt: skip
def test_what_is_within_the_bounds_is_let_in_unchanged_and_nothing_beyond(
    kind: Any, least: Any, most: Any, beyond: list[Any]
) -> None:
    declared = Declared[Any](kind)
    assert [declared.check(sound) for sound in (least, most)] == [least, most]
    for value in beyond:
        with pytest.raises(UnsoundError):
            declared.check(value)


def test_the_line_names_the_field_of_the_result_that_it_lies_in_as_the_caller_words_it() -> None:
    wrong = Reply(1, (Trained(-1, torch.zeros(2), 3.0, 0.5, 2),))
    with pytest.raises(LookupError, match=r"^it says {a}: Trained[.]seat: -1: must be at least 0$"):
        Declared[Any](Reply).check(wrong, LookupError, "it says {a}: {}")


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (Count, -1, "-1"), (Count, True, "True"), (Count, 1.0, "1.0"),
        (Clip, 0.0, "0.0"), (Units, 2**64 - 1, str(2**64 - 1)), (Units, 2**64, "an integer of 65 bits"),
        (Name, "x" * 201, repr("x" * 40)), (Plain, {"a": torch.zeros(2, 3)}, "float32 of shape (2, 3)"),
        (Plain, {"a": [0, {1}]}, "set"), (Plain, {"a": [0, -(2**64)]}, "an integer of 65 bits"), (Plain, {1: 2}, "1"),
    ],
)  # fmt: skip
def test_what_is_not_let_in_is_shown_short_whatever_it_is(kind: Any, value: Any, shown: str) -> None:
    with pytest.raises(UnsoundError) as wrong:
        Declared[Any](kind).check(value)
    assert f": {shown}: " in str(wrong.value)


def test_of_a_text_that_is_signed_there_is_one_form() -> None:
    declared = Declared[Any](Plain)
    assert declared.check(said := [True, None, {"k": (1, 0.5)}]) == said
    assert declared.canonical('{"a":[1,0.5]}') == declared.read('{"a": [1, 0.50]}') == {"a": [1, 0.5]}
    with pytest.raises(ValueError, match="one form"):
        declared.canonical('{"a": [1,0.5]}')
