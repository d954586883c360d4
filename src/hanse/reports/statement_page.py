"""The statement as a page: self-contained, without scripts, and with every text from outside as text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hanse.core.entry import tokens
from hanse.games.jackknife import SURE
from hanse.learning.intervals import wilson
from hanse.reports.chart import Bars, Chart, Curve, Lines, Series
from hanse.reports.contributions import EXACT, HELPFUL
from hanse.reports.digits import between, rounded
from hanse.reports.statement import Statement
from hanse.reports.statement_contributed import Contributed, Round
from hanse.reports.statement_fit import MainFit
from hanse.reports.statement_verdict import about
from hanse.reports.vega import small_svg

_TEMPLATE = "statement.html.j2"
_SOURCE = files("hanse.reports").joinpath(_TEMPLATE).read_text(encoding="utf-8")
STYLE = _SOURCE.partition("<style>")[2].partition("</style>")[0]  # plain CSS: the template puts nothing into it
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"
"""What the page may do: its one style sheet, and nothing else. Good as a header too."""

MOST_BARS = 120
SMALLEST = 1e-7  # a number that is written without an exponent


def render(statement: Statement) -> str:
    """Return the page (HTML). It needs no network and runs no script."""
    environment = Environment(
        loader=PackageLoader("hanse.reports", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {
        "tokens": tokens,
        "about": about,
        "gain": _gain,
        "signed": _signed,
        "percent": _percent,
        "number": _number,
    }
    environment.filters |= {"sure": _sure, "reach": _reach, "worth": _worth}
    environment.filters["picture"] = lambda chart: Markup(small_svg(chart))
    return environment.get_template(_TEMPLATE).render(
        s=statement,
        policy=POLICY,
        version=version("hanse"),
        exact=EXACT,
        helpful=HELPFUL,
        unsure=statement.contributed.interval is not None,
        value_chart=_value_chart(statement),
        accuracy_chart=_accuracy_chart(statement),
        balance_chart=_balance_chart(statement),
    )


def _signed(units: int) -> str:
    return ("+" if units > 0 else "") + tokens(units)


def _gain(units: int) -> str:
    return ("+" if units > 0 else "") + about(units)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    told = f"{value:.{digits}g}"
    # most readers do not know what 9.4e-06 is
    small = "e-0" in told and abs(value) >= SMALLEST
    return np.format_float_positional(float(told), trim="-") if small else told


def _sure(played: Round) -> str:
    """Return the 95 % interval of a round's value; a dash if it is not known or has no width."""
    if played.value is None or not played.error:
        return "–"
    return between(played.value, SURE * played.error)


def _worth(given: Contributed) -> str:
    """Return what updates were worth in all, with the 95 % interval if there is one, in the digits that it bears."""
    if given.value is None or given.interval is None:
        return f"{_number(given.value)} in all"
    half = SURE * (given.error or 0.0)
    return f"{rounded(given.value, half)} in all (95 % interval {between(given.value, half)})"


def _reach(given: Contributed) -> str:
    """Return how far the 95 % interval for the sampling of coalitions alone reaches to each side."""
    half = SURE * (given.sampling or 0.0)
    return rounded(half, half)


def _value_chart(statement: Statement) -> Chart | None:
    """Return the value of each round as bars; of many rounds, the sums of equally long stretches."""
    found = [(r.round, r.value) for r in statement.contributed.rounds if r.value is not None]
    if not found:
        return None
    last = max(statement.rounds, 1 + max(number for number, _ in found))  # a line of the metrics may be lost
    step = next(s * 10**e for e in range(9) for s in (1, 2, 5) if last <= s * 10**e * MOST_BARS)
    sums = [0.0] * (-(-last // step))
    for round_, value in found:
        sums[round_ // step] += value
    each = "a round" if step == 1 else f"{step} rounds"
    low, high = min(0.0, *sums), max(0.0, *sums)
    caption = f"Value of the updates, a bar {each}: from {low:.2g} to {high:.2g}."
    marks = Bars(tuple(str(step * i) for i in range(len(sums))), (Series("value", np.array(sums)),), upright=True)
    return _chart("value", caption, marks)


def _accuracy_chart(statement: Statement) -> Chart | None:
    """Return the curve of the run's main metric, or of the accuracy, on the client's own test data."""
    fit = statement.fit
    if fit.main is not None:
        return _main_chart(fit.rounds, fit.main, statement.rounds)
    points = [(r, 100 * a) for r, a in zip(fit.rounds, fit.accuracy, strict=True) if a is not None]
    if len(points) < 2:
        return None
    alone = None if fit.alone_accuracy is None else 100 * fit.alone_accuracy
    caption = f"Accuracy on its own test data from {points[0][1]:.1f} % to {points[-1][1]:.1f} %."
    caption += "" if alone is None else f" The dashed line is the accuracy alone, {alone:.1f} %."
    return _chart("accuracy", caption, _curve(points, statement.rounds, alone, samples=fit.samples), y="accuracy, %")


def _main_chart(rounds: Sequence[int], main: MainFit, played: int) -> Chart | None:
    reading = main.reading
    points = [(r, reading.factor * v) for r, v in zip(rounds, main.values, strict=True) if v is not None]
    if len(points) < 2:
        return None
    alone = None if main.alone is None else reading.factor * main.alone
    first, last = (reading.show(v / reading.factor) for v in (points[0][1], points[-1][1]))
    caption = f"{reading.title[0].upper()}{reading.title[1:]} on its own test data from {first} to {last}."
    caption += "" if main.alone is None else f" The dashed line is the same alone, {reading.show(main.alone)}."
    y = f"{reading.title}, %" if reading.percent else reading.title
    return _chart("main", caption, _curve(points, played, alone), y=y)


def _balance_chart(statement: Statement) -> Chart | None:
    money = statement.money
    if money is None or len(money.lines) < 2:
        return None
    after = {line.round: line.holds / 1e6 for line in money.lines}
    last = max(statement.rounds - 1, *after)
    after.setdefault(last, after[max(after)])  # it holds what it held until the end
    caption = "What account and escrow hold together, in tokens, over the rounds."
    return _chart("balance", caption, _curve(sorted(after.items()), statement.rounds, None, steps=True), y="tokens")


def _chart(key: str, caption: str, marks: Lines | Bars, y: str = "value") -> Chart:
    return Chart(key, "Statement", caption, caption, marks, x="round", y=y)


def _curve(
    points: Sequence[tuple[int, float]],
    rounds: int,
    alone: float | None,
    *,
    steps: bool = False,
    samples: int | None = None,
) -> Lines:
    """Return a curve through ``points``, and, dashed, the level of the client ``alone`` over all rounds.

    With ``samples`` the curve is of shares in percent of so many samples, and has bands of 95 % (Wilson's intervals).
    """
    x, y = np.array(points, dtype=np.float64).T
    low, high = (100 * np.array([wilson(a / 100, samples) for a in y.tolist()]).T) if samples else (None, None)
    lines = [Curve("in the federation", x, y, low, high, bare=True)]
    if alone is not None:
        ends = np.array([0.0, max(1.0, rounds - 1.0)])
        low, high = (np.full(2, 100 * end) for end in wilson(alone / 100, samples)) if samples else (None, None)
        lines.append(Curve("alone, at the end", ends, np.full(2, alone), low, high, bare=True))
    return Lines(tuple(lines), steps=steps)
