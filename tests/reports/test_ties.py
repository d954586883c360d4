"""Which clients a ranking cannot tell apart and how sure a share is: by hand."""

from pathlib import Path

import numpy as np
import pytest
from forging import recorded
from reports_cases import rated_run

from hanse.reports.contributions import SURE, Standings, contribution
from hanse.reports.facts import facts
from hanse.reports.groups import SeedGroup, group_runs
from hanse.reports.statement import statements
from hanse.runs.run_record import load_run, load_runs

WIDE = 2.0930240544082634 / 1.96  # of an error from 20 blocks: Student's t with 19 degrees of freedom


def compared(totals: list[float], sampling: list[float], without: object = None) -> Standings:
    n = len(totals)
    blocks = np.zeros((n, 0)) if without is None else np.array(without, float)
    return Standings(np.arange(n), np.array(totals), np.array(sampling), blocks)


def group(*paths: Path) -> SeedGroup:
    (found,) = group_runs(load_runs(paths))
    return found


# ---- ties


def test_sums_are_apart_when_their_difference_is_more_than_its_error_allows() -> None:
    found = compared([10.0, 9.0, 5.0, 1.0], [0.3, 0.4, 0.5, 3.0])
    difference, error = found.differences(0)
    np.testing.assert_allclose(difference, [0, -1, -5, -9])
    np.testing.assert_allclose(error[:3], [0, 0.5, 0.34**0.5])
    assert [found.tied(c).tolist() for c in range(4)] == [[], [], [3], [2]]  # 1 against .98, 4 against 5.96
    wider = compared([10.0, 9.0, 5.0, 1.0], [0.3, 0.42, 0.5, 3.0])  # 1 against 1.96 * 0.516
    assert [wider.tied(c).tolist() for c in range(4)] == [[1], [0], [3], [2]]
    assert [wider.reach(c) for c in range(4)] == [(1, 2), (1, 2), (3, 4), (3, 4)]


def test_what_another_validation_set_does_to_both_alike_does_not_tie_them() -> None:
    sides = np.where(np.arange(20) % 2, 1.0, -1.0)
    found = compared([3.0, 2.0, 1.0], [float("nan")] * 3, [3 + sides, 2 + sides, 1 - sides])
    one = WIDE * (19 / 20 * 20) ** 0.5  # of one sum: 4.66, more than any difference
    np.testing.assert_allclose(found.differences(0)[1], [0, 0, 2 * one])
    assert [found.tied(c).tolist() for c in range(3)] == [[2], [2], [0, 1]]
    assert [found.reach(c) for c in range(3)] == [(1, 2), (2, 3), (1, 3)]  # 0 is surely above 1, though not above 2
    both = compared([3.0, 2.0, 1.0], [0.3, 0.4, 0.0], [3 + sides, 2 + sides, 1 - sides])
    np.testing.assert_allclose(both.differences(0)[1], [0, 0.5, (4 * one**2 + 0.09) ** 0.5])


def test_an_error_that_is_not_known_tells_nobody_apart() -> None:
    some = compared([3.0, 2.0, 1.0], [0.1, float("nan"), 0.1])
    assert some.known
    assert [some.tied(c).tolist() for c in range(3)] == [[1], [0, 2], [1]]
    assert not compared([3.0, 2.0], [float("nan")] * 2).known


def test_equal_sums_are_tied_though_their_errors_are_zero() -> None:
    found = compared([2.0, 0.1 + 0.2, 0.3, 5.0], [0.0] * 4)  # 0.30000000000000004 and 0.3
    assert [found.place(c) for c in (3, 0, 1, 2)] == [1, 2, 3, 4]
    assert [found.tied(c).tolist() for c in range(4)] == [[], [2], [1], []]
    same = compared([1.0, 1.0, 0.0], [0.0] * 3)
    assert [same.place(c) for c in range(3)] == [1, 1, 3]
    assert [same.reach(c) for c in range(3)] == [(1, 2), (1, 2), (3, 3)]


def test_a_sum_over_runs_has_the_mean_of_their_blocks(tmp_path: Path) -> None:
    paths = []
    for i, (value, error) in enumerate(((1.0, 0.3), (3.0, 0.4))):
        path = rated_run(tmp_path / f"s{i}", [0.5] * 2, worth=[value, 2 * value], error=[error] * 2)
        config = (path / "config.toml").read_text().replace("rounds = 2\nseed = 0", f"rounds = 2\nseed = {i}")
        (path / "config.toml").write_text(config)
        for r in range(2):
            blocks = np.array([[value, value + 1, value + 2], [0.0, 0.0, 0.0]])
            recorded(path, r, answered=np.array([0, 1]), value_without_block=blocks)
        paths.append(path)
    [group] = group_runs(load_runs(paths))
    found = contribution(group)
    np.testing.assert_allclose(found.totals, [2, 4])
    np.testing.assert_allclose(found.sampling, [0.25, 0.25])  # sqrt((.09 + .16) / 2) / sqrt(2)
    np.testing.assert_allclose(found.without, [[4, 6, 8], [0, 0, 0]])  # two rounds, mean of two runs


def test_a_statement_says_which_places_the_client_may_have(tmp_path: Path) -> None:
    path = rated_run(tmp_path / "a", [0.5] * 6, worth=[9.0, 5.0, 4.9, 4.8, 1.0, -3.0], error=[0.2] * 6)
    mine = facts(path).clients
    ends = [(1, 1, 1), (2, 2, 4), (3, 2, 4), (4, 2, 4), (5, 5, 5), (6, 6, 6)]
    assert [(m.place, m.place_low, m.place_high) for m in mine] == ends
    assert ["perhaps 2 to 4" in made.short["Its contribution"] for made in statements(load_run(path), range(6))] == [
        low != high for _, low, high in ends
    ]
    everybody = facts(rated_run(tmp_path / "b", [0.5] * 3, worth=[3.0, 2.0, 1.0], error=[5.0] * 3)).clients[1]
    assert (everybody.place_low, everybody.place_high) == (1, 3)


# ---- shares


def test_a_statement_shows_the_interval_of_the_share(tmp_path: Path) -> None:
    path = rated_run(tmp_path / "a", [0.5] * 3, worth=[3.0, 1.0, -2.0], error=[0.3, 0.4, 0.1])
    half = np.array([3.0, 1.0, -2.0]) / 2
    blocks = half[:, None] + np.array([[0.1], [0.0], [0.0]]) * np.where(np.arange(20) % 2, 1.0, -1.0)
    for r in range(2):
        recorded(path, r, answered=np.arange(3), value_without_block=blocks)
    mine, drawn = facts(path).clients[0], WIDE * 2 * (19 / 20 * 20 * 0.1**2) ** 0.5
    assert mine.drawn == pytest.approx(drawn / WIDE)
    half = SURE * (0.09 + drawn**2) ** 0.5
    assert (mine.value_low, mine.value_high) == pytest.approx((3 - half, 3 + half))
    normal = np.random.default_rng(0).standard_normal((2, 400_000))  # the quotient's own 95 %, which are not symmetric
    one, other = 3 + (0.09 + drawn**2) ** 0.5 * normal[0], np.maximum(1 + 0.4 * normal[1], 0.0)
    ends = np.percentile(one / (one + other), [2.5, 97.5])
    assert (mine.share_low, mine.share_high) == pytest.approx(ends, abs=0.015)
    other_ends = facts(path).clients[2]
    assert (mine.share, other_ends.share_low, other_ends.share_high) == (0.75, 0.0, 0.0)
