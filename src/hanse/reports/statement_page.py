"""The statement as a page: self-contained, without scripts, and with every text from outside as text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from hanse.ledger.export import tokens
from hanse.reports.contributions import EXACT
from hanse.reports.statement import MainFit, Statement

_TEMPLATE = "statement.html.j2"
_SOURCE = files("hanse.reports").joinpath(_TEMPLATE).read_text(encoding="utf-8")
STYLE = _SOURCE.partition("<style>")[2].partition("</style>")[0]  # plain CSS: the template puts nothing into it
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"
"""What the page may do: its one style sheet, and nothing else. Good as a header too."""

WIDTH, HEIGHT = 640, 190  # of a picture, in its own units
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 8, 12, 26
MOST_BARS = 120
SMALLEST = 1e-7  # a number that is written without an exponent


def render(statement: Statement) -> str:
    """Return the page (HTML). It needs no network and runs no script."""
    environment = Environment(
        loader=PackageLoader("hanse.reports", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"tokens": tokens, "signed": _signed, "percent": _percent, "number": _number}
    return environment.get_template(_TEMPLATE).render(
        s=statement,
        policy=POLICY,
        version=version("hanse"),
        exact=EXACT,
        value_bars=_value_bars(statement),
        accuracy_line=_accuracy_line(statement),
        balance_line=_balance_line(statement),
    )


def _signed(units: int) -> str:
    return ("+" if units > 0 else "") + tokens(units)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    told = f"{value:.{digits}g}"
    # most readers do not know what 9.4e-06 is
    small = "e-0" in told and abs(value) >= SMALLEST
    return np.format_float_positional(float(told), trim="-") if small else told


@dataclass(frozen=True)
class Picture:
    """An SVG in parts: ``bars`` are (x, y, width, height, whether below zero), ``path`` a curve or "", ``dashed`` a
    height or None, ``rules`` heights with what they stand for, ``ends`` the first and last round.
    """

    bars: tuple[tuple[float, float, float, float, bool], ...]
    path: str
    dashed: float | None
    rules: tuple[tuple[float, str], ...]
    ends: tuple[str, str]
    label: str


def _value_bars(statement: Statement) -> Picture | None:
    """Return the value of each round; of many rounds, the sums of equally long stretches."""
    found = [(r.round, r.value) for r in statement.contributed.rounds if r.value is not None]
    if not found:
        return None
    last = statement.rounds
    step = next(s * 10**e for e in range(9) for s in (1, 2, 5) if last <= s * 10**e * MOST_BARS)
    sums = [0.0] * (-(-last // step))
    for round_, value in found:
        sums[round_ // step] += value
    low, high = min(0.0, *sums), max(0.0, *sums)
    y = _scale(low, high)
    wide = (WIDTH - _LEFT - _RIGHT) / len(sums)
    bars = tuple(
        (round(_LEFT + i * wide + 0.1 * wide, 1), round(min(y(v), y(0)), 1), round(0.8 * wide, 1),
         round(max(0.8, abs(y(v) - y(0))), 1), v < 0)
        for i, v in enumerate(sums) if v != 0
    )  # fmt: skip
    each = "a round" if step == 1 else f"{step} rounds"
    rules = tuple((round(y(v), 1), f"{v:.2g}") for v in dict.fromkeys((low, 0.0, high)))
    label = f"Value of the updates, a bar {each}: from {low:.2g} to {high:.2g}."
    return Picture(bars, "", None, rules, ("0", str(last - 1)), label)


def _accuracy_line(statement: Statement) -> Picture | None:
    fit = statement.fit
    if fit.main is not None:
        return _main_line(fit.rounds, fit.main, statement.rounds)
    points = [(r, 100 * a) for r, a in zip(fit.rounds, fit.accuracy, strict=True) if a is not None]
    if len(points) < 2:
        return None
    alone = None if fit.alone_accuracy is None else 100 * fit.alone_accuracy
    label = f"Accuracy on its own test data from {points[0][1]:.1f} % to {points[-1][1]:.1f} %."
    label += "" if alone is None else f" The dashed line is the accuracy alone, {alone:.1f} %."
    return _curve(points, statement.rounds, alone, " %", label, least=(0.0, 100.0))


def _main_line(rounds: Sequence[int], main: MainFit, played: int) -> Picture | None:
    """Return the curve of the run's main metric on the client's own test data."""
    reading = main.reading
    points = [(r, reading.factor * v) for r, v in zip(rounds, main.values, strict=True) if v is not None]
    if len(points) < 2:
        return None
    alone = None if main.alone is None else reading.factor * main.alone
    first, last = (reading.show(v / reading.factor) for v in (points[0][1], points[-1][1]))
    label = f"{reading.title[0].upper()}{reading.title[1:]} on its own test data from {first} to {last}."
    label += "" if main.alone is None else f" The dashed line is the same alone, {reading.show(main.alone)}."
    return _curve(points, played, alone, " %" if reading.percent else "", label)


def _balance_line(statement: Statement) -> Picture | None:
    money = statement.money
    if money is None or len(money.lines) < 2:
        return None
    after = {line.round: line.holds / 1e6 for line in money.lines}
    label = "What account and escrow hold together, in tokens, over the rounds."
    return _curve(sorted(after.items()), statement.rounds, None, "", label, steps=True)


def _curve(
    points: Sequence[tuple[int, float]],
    rounds: int,
    dashed: float | None,
    unit: str,
    label: str,
    *,
    least: tuple[float, float] | None = None,
    steps: bool = False,
) -> Picture:
    values = [v for _, v in points] + ([] if dashed is None else [dashed])
    low, high = least or (min(values), max(values))
    y = _scale(low, high)
    span = max(1, rounds - 1)

    def x(r: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * min(r, span) / span, 1)

    path = f"M{x(points[0][0])} {y(points[0][1]):.1f}"
    for round_, value in points[1:]:
        path += f"H{x(round_)}V{y(value):.1f}" if steps else f"L{x(round_)} {y(value):.1f}"
    path += f"H{x(span)}" if steps else ""
    rules = tuple((round(y(v), 1), f"{v:.4g}{unit}") for v in dict.fromkeys((low, (low + high) / 2, high)))
    return Picture((), path, None if dashed is None else round(y(dashed), 1), rules, ("0", str(rounds - 1)), label)


def _scale(low: float, high: float) -> Callable[[float], float]:
    """Return what gives the heights of values: ``low`` at the bottom, ``high`` at the top."""
    wide = (high - low) or 1.0
    return lambda value: HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (value - low) / wide
