"""What a call says is wrong."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import hanse


def mistakes(call: Callable[..., Any], *given: Any, **options: Any) -> Sequence[str]:
    """Return the lines of the error that a call raises."""
    with pytest.raises(hanse.UserError) as wrong:
        call(*given, **options)
    return wrong.value.lines
