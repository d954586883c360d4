"""Over all heads every case has its turn, and a commit always plays the same ones."""

import os

from rotation import HEAD, in_turn, is_its_turn, rotating


def test_fifteen_heads_in_a_row_play_every_case_once() -> None:
    played = [in_turn(range(902), 15, head) for head in range(1000, 1015)]
    assert sorted(case for some in played for case in some) == list(range(902))
    assert {len(some) for some in played} == {60, 61}


def test_a_test_has_one_turn_in_so_many() -> None:
    for turn in (None, 0, 2):
        assert [is_its_turn("a/test.py::test_b", 5, turn, head) for head in range(100, 120)].count(True) == 4
    assert is_its_turn("any", 3, 2, 1001)


def test_the_commit_picks_and_the_others_are_nightly() -> None:
    assert str(HEAD) == os.environ["HANSE_TEST_HEAD"]
    params = rotating(range(40), 20)
    assert [p.values[0] for p in params if not p.marks] == in_turn(range(40), 20)
    assert sum(p.marks != () for p in params) == 38
