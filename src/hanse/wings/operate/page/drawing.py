"""The live page's drawing: Vega, and a specification without data for each kind of chart.

The page's script (``static/draw.js``) fills in data and names, so the live page and the report have the same charts.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from hanse.reports.chart import COLOURS, Chart, Curve, Lines
from hanse.reports.vega import graph_spec, to_vegalite, whole_spec

MOST_LINES = 28  # of a live chart; more would repeat a colour together with its dash

# whom a node of the payments' graph is: its colour and shape tell (the page's script uses these words)
ACCOUNTS = ("received more", "paid more", "pool")
_SHAPES = ("circle", "square", "diamond")


def live_specs() -> str:
    """Return the specifications of a line chart and of the graph of payments as JSON, for a script element."""
    none = np.zeros(0)
    lines = tuple(Curve(str(i), none, none) for i in range(MOST_LINES))
    chart = Chart("live", "", "", "", Lines(lines), x="round")
    graph = graph_spec([], [], ACCOUNTS, (COLOURS[0], COLOURS[1], COLOURS[6]), _SHAPES)
    specs: dict[str, Any] = {"lines": to_vegalite(chart, page=True), "graph": whole_spec(graph, page=True)}
    return json.dumps(specs, separators=(",", ":")).replace("<", "\\u003c")
