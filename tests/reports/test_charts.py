from pathlib import Path

import numpy as np
import pytest
from reports_cases import large_run

from hanse.reports.chart import Bars, Chart, Curve, Lines, Series
from hanse.reports.contributions import contribution, contribution_charts
from hanse.reports.groups import group_runs
from hanse.reports.vega import to_svg, to_vegalite
from hanse.runs.run_record import load_runs


def test_many_clients_and_rounds_are_thinned(tmp_path: Path) -> None:
    [found] = group_runs(load_runs([large_run(tmp_path / "a", rounds=450, clients=310, per_round=4)]))
    bars = {c.key: c for c in contribution_charts([found])}["contribution-ranking-greedyfed"].marks
    totals = contribution(found).totals  # type: ignore[union-attr]
    shown = np.nansum([series.values for series in bars.series], axis=0)
    totals = np.sort(totals)[::-1]
    assert shown == pytest.approx([*totals[:12], *totals[-8:]])


def test_names_that_every_object_of_javascript_has_are_drawn() -> None:
    x = np.arange(3.0)
    for name in ("constructor", "__proto__", "toString"):
        for marks in (Lines((Curve(name, x, x), Curve(name, x, -x))), Bars((name, "a", "b"), (Series(name, x),) * 2)):
            assert to_svg(to_vegalite(Chart("k", "s", "title", name, marks))).count(name) >= 2
