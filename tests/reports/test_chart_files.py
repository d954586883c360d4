"""Each figure as PNG, SVG and CSV, whatever its kind."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rotation import rotating

from hanse.reports.chart import Bars, Chart, Curve, Graph, Heat, Lines, Series, to_csv
from hanse.reports.vega import save, small_svg, to_svg, to_vegalite

BAD = "=1+1 <b>$x$</b>"
X = np.array([1.0, 2.0])
MARKS = {
    "lines": Lines((Curve(BAD, X, X**2, X - 1, X + 1), Curve("dots", X, np.array([np.nan, 3.0]), dots=True))),
    "bars": Bars(("a", "b"), (Series("s", X, np.array([0.5, np.nan])), Series("t", -X))),
    "upright": Bars(("a", "b"), (Series("s", X),), upright=True),
    "heat": Heat(("r",), ("c", "d"), np.array([[2.0, 3.0]]), "samples", root=True),
    "graph": Graph(("0", "1", BAD), ("buyer", "seller", "pool"), np.array([[0, 2.5, 0.001], [1, 0, 0], [0, 0, 0.0]]),
                   ("-1", "+1", "0"), "tokens", inside=1),
}  # fmt: skip
TABLES = {
    "lines": [["series", "rounds", "value", "low", "high"], [f"'{BAD}", "1", "1", "0", "2"],
              [f"'{BAD}", "2", "4", "1", "3"], ["dots", "1", "", "", ""], ["dots", "2", "3", "", ""]],
    "bars": [["series", "value", "rounds", "error"], ["s", "a", "1", "0.5"], ["s", "b", "2", ""], ["t", "a", "-1", ""],
             ["t", "b", "-2", ""]],
    "upright": [["series", "rounds", "value", "error"], ["s", "a", "1", ""], ["s", "b", "2", ""]],
    "heat": [["value", "rounds", "samples"], ["r", "c", "4"], ["r", "d", "9"]],  # shades are square roots
    "graph": [["from", "to", "tokens"], ["0", "1", "2.5"], ["0", f"'{BAD}", "0.001"], ["1", "0", "1"]],
}  # fmt: skip


def chart(kind: str) -> Chart:
    return Chart(kind, "section", f"Title {BAD}", "caption", MARKS[kind], x="rounds", y="value")


@pytest.mark.parametrize("kind", MARKS)
def test_numbers_as_csv(kind: str) -> None:
    assert list(csv.reader(io.StringIO(to_csv(chart(kind))))) == TABLES[kind]


@pytest.mark.parametrize("kind", MARKS)
def test_png_and_svg(kind: str, tmp_path: Path) -> None:
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
    spec = to_vegalite(chart(kind), page=True)
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


def test_a_small_picture_describes_itself() -> None:
    root = ElementTree.fromstring(small_svg(Chart("k", "s", "t", 'says "<b>"', MARKS["upright"])))
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == 'says "<b>"'
    assert float(root.attrib["width"]) < 480
    assert not [e for e in root.iter() if "style" in e.attrib]  # a page that forbids styles shows it all the same


WORDS = ["__proto__", "constructor", "toString", "image", "title", "s", "x", "a\nb", "a\u2028b"]


@pytest.mark.parametrize("case", rotating([(kind, word) for kind in MARKS for word in WORDS], 7))
def test_words_that_the_drawing_library_knows_are_names_like_others(case: tuple[str, str]) -> None:
    """An object of JavaScript has some of these already, the tooltip means something by others, and a line break ends
    an expression.
    """
    kind, name = case
    marks: dict[str, Any] = {
        "lines": Lines((Curve(name, X, X), Curve("b", X, X + 1))),
        "bars": Bars((name, "b"), (Series(name, X), Series("t", X))),
        "upright": Bars((name, "b"), (Series(name, X),), upright=True),
        "heat": Heat((name, "b"), (name, "c"), np.eye(2), name),
        "graph": Graph((name, "b"), (name, "seller"), np.array([[0, 1.0], [0, 0]]), ("-1", "+1"), "tokens"),
    }
    chart = Chart("k", "s", name, name, marks[kind], x=name, y=name)
    shown = "".join(ElementTree.fromstring(to_svg(to_vegalite(chart))).itertext())
    assert name.replace("\n", " ").replace("\u2028", " ") in shown.replace("\u00a0", " ")
    ElementTree.fromstring(to_svg(to_vegalite(chart, page=True) | {"width": 300}))


@pytest.mark.parametrize("value", rotating([1e308, -1e308, 5e-324, -0.0, 1e-7], 2))
def test_the_largest_and_the_smallest_numbers_are_drawn(value: float) -> None:
    y = np.array([value, -value])
    for marks in (
        Lines((Curve("a", X, y, y - 1, y + 1), Curve("b", X, y))),
        Bars(("a", "b"), (Series("s", y, np.abs(y)),)),
        Heat(("r",), ("c", "d"), y[None], "unit", around_zero=True),
    ):
        svg = to_svg(to_vegalite(Chart("k", "s", "t", "c", marks)))
        assert "NaN" not in svg
        assert "Infinity" not in svg
