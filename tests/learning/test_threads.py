"""How work is shared among threads: parts of items, and chains whose items wait for one another."""

from threading import Event, Lock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanse.learning.threads import Crew, wrap_around


def test_five_equal_items_for_two_workers_are_two_each_and_a_shared_one() -> None:
    assert wrap_around([8] * 5, 2) == [(8,), (8,), (4, 4), (8,), (8,)]
    assert wrap_around([8] * 5, 4) == [(8,), (6, 2), (4, 4), (2, 6), (8,)]
    assert wrap_around([9, 1, 2], 2) == [(9,), (1,), (2,)]  # nobody can end before the longest


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 6))
def test_parts_fill_the_workers_and_never_overlap(work: list[int], workers: int) -> None:
    span = max(sum(work) / workers, max(work)) * (1 + 1e-8)
    parts = wrap_around(work, workers)
    assert [sum(p) for p in parts] == pytest.approx(work)
    assert sum(len(p) > 1 for p in parts) < workers
    for first, second in (p for p in parts if len(p) > 1):  # the first from the beginning, the second to the end
        assert first + second <= span
        assert min(first, second) > 0


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_an_item_waits_for_those_before_it_and_the_lowest_rank_goes_first(workers: int) -> None:
    crew, done, lock, met = Crew(workers), list[str](), Lock(), Event()

    def work(_: int, item: str) -> None:
        if workers > 1 and item == "first":  # while this one is in hand, another worker does all that can be done
            assert met.wait(30)
        with lock:
            done.append(item)
        if item == "middle":
            met.set()

    crew.relay(work, [[(5.0, "middle")], [(-9.0, "first"), (-10.0, "last")], [(1.0, "early")], []])
    crew.close()
    assert set(done) == {"first", "last", "early", "middle"}
    assert done.index("first") < done.index("last")
    assert done.index("early") < done.index("middle")
    assert workers > 1 or done == ["first", "last", "early", "middle"]
