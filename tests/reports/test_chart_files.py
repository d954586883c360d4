"""Each figure as PNG, SVG and CSV, whatever its kind."""

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hanse.reports.chart import Bars, Chart, Curve, Lines, Series, to_csv
from hanse.reports.vega import save, to_vegalite

BAD = "=1+1 <b>$x$</b>"
X = np.array([1.0, 2.0])
MARKS = {
    "lines": Lines((Curve(BAD, X, X**2, X - 1, X + 1), Curve("dots", X, np.array([np.nan, 3.0]), dots=True))),
    "bars": Bars(("a", "b"), (Series("s", X, np.array([0.5, np.nan])), Series("t", -X))),
    "upright": Bars(("a", "b"), (Series("s", X),), upright=True, whiskers="standard deviation"),
}  # fmt: skip
LAYERS = {"lines": ["area", "line", "point"], "bars": ["bar", "rule"], "upright": ["bar"]}
HALF = "half of 95 % interval"
TABLES = {
    "lines": [["series", "rounds", "value", "low", "high"], [f"'{BAD}", "1", "1", "0", "2"],
              [f"'{BAD}", "2", "4", "1", "3"], ["dots", "1", "", "", ""], ["dots", "2", "3", "", ""]],
    "bars": [["series", "value", "rounds", HALF], ["s", "a", "1", "0.5"], ["s", "b", "2", ""], ["t", "a", "-1", ""],
             ["t", "b", "-2", ""]],
    "upright": [["series", "rounds", "value", "standard deviation"], ["s", "a", "1", ""], ["s", "b", "2", ""]],
}  # fmt: skip


def chart(kind: str) -> Chart:
    return Chart(kind, "section", f"Title {BAD}", "caption", MARKS[kind], x="rounds", y="value")


@pytest.mark.parametrize("kind", MARKS)
def test_numbers_as_csv_png_and_svg(kind: str, tmp_path: Path) -> None:
    assert list(csv.reader(io.StringIO(to_csv(chart(kind))))) == TABLES[kind]
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        save(chart(kind), folder)
    assert (tmp_path / "a" / f"{kind}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    svg = (tmp_path / "a" / f"{kind}.svg").read_bytes()
    assert svg == (tmp_path / "b" / f"{kind}.svg").read_bytes()  # no date, no random names
    root = ElementTree.fromstring(svg)
    assert not [e for e in root.iter() if e.tag.endswith("script")]
    assert any(BAD in "".join(e.itertext()) for e in root.iter() if e.tag.endswith("text"))


@pytest.mark.parametrize("kind", MARKS)
def test_texts_from_outside_are_data_and_never_part_of_an_expression(kind: str) -> None:
    """An expression is a small program: a name in one could break it or do more."""
    spec = to_vegalite(chart(kind))
    assert [layer["mark"]["type"] for layer in spec["layer"]] == LAYERS[kind]
    assert json.loads(json.dumps(spec, allow_nan=False)) == spec

    def expressions(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            for key, one in value.items():
                if key in ("calculate", "filter", "labelExpr", "expr", "test", "field", "as"):
                    yield str(one)
                yield from expressions(one)
        elif isinstance(value, list):
            for one in value:
                yield from expressions(one)

    found = list(expressions({key: value for key, value in spec.items() if key != "datasets"}))
    assert found
    assert not any("$x$" in text for text in found)
