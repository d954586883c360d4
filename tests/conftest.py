"""What all tests share. Properties are checked without a clock: a busy machine is no fault."""

import os
import select
from collections.abc import Callable

import pytest
from hypothesis import settings

settings.register_profile("hanse", deadline=None)
settings.load_profile("hanse")


@pytest.fixture
def has_ended() -> Callable[[int], bool]:
    """Wait for a process, ours or not, as long as a busy machine may take; say whether it has ended."""

    def waited(pid: int) -> bool:
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            return bool(select.select([process], [], [], 120)[0])
        finally:
            os.close(process)

    return waited
