import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from commands import invoke
from hypothesis import given
from hypothesis import strategies as st
from reports_cases import accuracies, runs_of
from scipy import stats

from hanse.reports.compare import difference_rows, differences_table
from hanse.reports.groups import group_runs
from hanse.reports.paired import paired
from hanse.runs.run_record import load_runs

numbers = st.floats(-100, 100).map(lambda x: round(x, 3))


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=8))
def test_against_scipy_and_brute_force(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = (dict(enumerate(column)) for column in zip(*pairs, strict=True))
    found = paired(ours, theirs)
    d = np.array([a - b for a, b in pairs])
    assert (found.pairs, found.mean, found.sd) == (len(d), pytest.approx(d.mean()), pytest.approx(d.std(ddof=1)))
    if found.sd > 1e-9:
        test = stats.ttest_rel([a for a, _ in pairs], [b for _, b in pairs])
        ends = test.confidence_interval(0.95)
        assert found.p == pytest.approx(test.pvalue, rel=1e-6, abs=1e-12)
        assert (found.low, found.high) == (pytest.approx(ends.low), pytest.approx(ends.high))
    as_far = [abs(sum(s * x for s, x in zip(signs, d, strict=True))) >= abs(d.sum()) * (1 - 1e-9)
              for signs in product((1, -1), repeat=len(d))]  # fmt: skip
    assert found.p_sign_flip == pytest.approx(np.mean(as_far), abs=2 / 2 ** len(d))


def test_what_few_and_equal_and_many_pairs_say() -> None:
    assert paired({0: 1.0}, {0: 2.0}) is None
    assert paired({0: 1.0, 1: 2.0}, {1: 2.0, 2: 3.0}) is None
    same = paired({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    assert (same.p, same.p_sign_flip, same.low, same.high) == (1.0, 1.0, 0.0, 0.0)
    many = paired(dict.fromkeys(range(17), 1.0), dict.fromkeys(range(17), 0.5))
    assert (many.p, many.p_sign_flip, many.low > 0) == (0.0, None, True)


def test_compare_tests_seed_by_seed(tmp_path: Path) -> None:
    """The seeds differ much, the mechanisms little and always in the same direction: only pairs show it."""
    paths = runs_of(tmp_path, "fedavg", [0.1, 0.5], [0.1, 0.7], [0.1, 0.9])
    paths += runs_of(tmp_path, "greedyfed", [0.1, 0.52], [0.1, 0.721], [0.1, 0.922])
    paths += runs_of(tmp_path, "fedprox", [0.9])
    groups = group_runs(load_runs(paths))
    rows = {row["figure"]: row for row in difference_rows(groups)}
    row = rows["test_accuracy"]
    assert (row["kind"], row["run"], row["base"], row["pairs"]) == ("difference", "greedyfed", "fedavg", 3)
    assert row["mean"] == pytest.approx(0.021)
    assert row["low"] > 0.018
    assert row["p"] == row["p_holm"] < 0.001
    assert "client_accuracy" not in rows
    assert differences_table(groups).rows[0][:3] == ("greedyfed – fedavg: test accuracy %", "3", "+2.10")
    found = json.loads(invoke("compare", *paths, "--json").stdout)
    assert [r["kind"] for r in found].count("difference") == len(rows)
    assert "+2.10" in invoke("compare", *paths, env={"COLUMNS": "200"}).stdout
    assert invoke("compare", *paths, "--format", "latex").stdout.count("tabular") == 4  # two tables


def test_equal_differences_have_no_interval(tmp_path: Path) -> None:
    for name, rate, accuracy in (("a", 0.1, [0.5, 0.75]), ("b", 0.2, [0.625, 0.875])):
        for seed in range(2):
            accuracies(tmp_path / f"{name}{seed}", [accuracy[seed]], {"run": {"seed": seed}, "train": {"lr": rate}})
    groups = group_runs(load_runs([tmp_path / name for name in ("a0", "a1", "b0", "b1")]))
    row = next(row for row in difference_rows(groups) if row["figure"] == "test_accuracy")
    assert (row["mean"], row["low"], row["high"], row["p"], row["p_holm"]) == (0.125, None, None, None, None)
    assert row["p_sign_flip"] == 0.5
    assert differences_table(groups).rows[0][2:] == ("+12.50", "the same in all 2", "–", "–", "0.5")
