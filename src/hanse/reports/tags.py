"""Numbers of a page, each with a tag that says which fact it shows, and the check of a page against its run.

A page's template writes each number as ``<data value="0.7034" data-fact="clients.3.joined">70 %</data>``: the exact
value, its table, row and column, and how it is told. :func:`sourced` gives a template numbers that know their facts,
and every way of telling a number writes the tag (:func:`tagged`, :func:`shown`). Names and other texts from outside are
tagged as said by somebody.

:func:`differences` compares a page with the page that the same templates make of the run again, number by number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from html.parser import HTMLParser
from itertools import zip_longest
from typing import Any

from markupsafe import Markup, escape

from hanse.reports.chart import slug

_NUMERAL = re.compile(r"[-+−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
CONSTANTS = frozenset({"95", "100", "0", "1", "2", "10", "0.2", "0.25"})
"""The numerals that templates have: of "95 % interval", "95 times in 100", "from 0", "2 / 2ⁿ", "client_test = 0.2"."""
_MOST_TOLD = 50  # differences
_OWN = re.compile(r"(<span data-own>)\d[\w.+-]*(?=</span>)")
_SAID = ("script", "style", "title", "svg")


# ---- numbers that know their facts


class _Known:
    """What both kinds of numbers share: ``facts`` has the names of the facts that it is of, each with its value."""

    facts: tuple[tuple[str, float], ...]


def _computing(operation: str) -> Callable[..., Any]:
    def compute(self: Any, *others: Any) -> Any:
        made = getattr(super(type(self), self), operation)(*others)
        known = dict(self.facts) | {name: value for one in others for name, value in getattr(one, "facts", ())}
        return _with_facts(made, tuple(known.items()))

    return compute


_NAMES = "add radd sub rsub mul rmul truediv neg abs"
_OPERATIONS = {name: _computing(name) for name in (f"__{one}__" for one in _NAMES.split())}
_Float = type("_Float", (float, _Known), dict(_OPERATIONS))
_Int = type("_Int", (int, _Known), dict(_OPERATIONS))


def _with_facts(number: Any, facts: tuple[tuple[str, float], ...]) -> Any:
    """Return a number with the facts that it is of; what is no number stays as it is."""
    if not isinstance(number, int | float) or isinstance(number, bool):
        return number
    made = (_Float if isinstance(number, float) else _Int)(number)
    made.facts = facts
    return made


class _Rows(list[Any]):
    """A list of which the template may ask the length."""

    length: Any


class _Of:
    """An object whose numbers know their facts."""

    def __init__(self, whole: Any, fact: str) -> None:
        self._whole, self._fact = whole, fact

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # such as __html__, which the object must not seem to have
            raise AttributeError(name)
        return sourced(getattr(self._whole, name), f"{self._fact}.{name}")


def sourced(found: Any, fact: str) -> Any:
    """Return something with numbers, for a page's template: each of them knows of which fact it is.

    Args:
        found: a number, a dataclass of this room, or a list or mapping of these. Anything else stays as it is, such as
            a metric's style, which says how numbers are told.
        fact: its name. An object may name itself, by an attribute ``fact``.

    Examples:
        >>> share = sourced({"share": 0.25}, "clients.3")["share"]
        >>> shown(100 * share)
        Markup('<data value="0.25" data-fact="clients.3.share">25.0</data>')
    """
    if isinstance(found, int | float) and not isinstance(found, bool | _Known):
        return _with_facts(found, ((fact, float(found)),))
    if isinstance(found, Mapping):
        return {key: sourced(one, f"{fact}.{key}") for key, one in found.items()}
    if isinstance(found, list | tuple) and not isinstance(found, _Rows):
        rows = _Rows(sourced(one, f"{fact}.{i}") for i, one in enumerate(found))
        rows.length = sourced(len(found), f"{fact}.length")
        return rows
    if is_dataclass(found) and type(found).__module__.startswith("hanse.reports."):
        return _Of(found, getattr(found, "fact", fact))
    return found


def length(found: Any) -> Any:
    """Return the length of a list, as a number that knows its fact."""
    return found.length if isinstance(found, _Rows) else len(found)


# ---- tags


class Cell(str):
    """A text of a table with the numbers that it shows.

    Attributes:
        values: the numbers.
    """

    values: tuple[float, ...]

    def __new__(cls, text: str, *values: float | None) -> Cell:
        """Return the text; numbers that are None are not shown."""
        made = super().__new__(cls, text)
        made.values = tuple(value for value in values if value is not None and value == value)
        return made


def in_cell(cell: str, table: str, row: Any, column: str) -> Any:
    """Return a cell of a table for a page: its numbers tagged with table, row and column."""
    name = f"{table}.{slug(str(row))}.{slug(column)}"
    return _tag(cell, [(name, value) for value in cell.values]) if isinstance(cell, Cell) and cell.values else cell


def tagged(told: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that tells numbers, with a tag around each text that it returns.

    Args:
        told: returns the text of its first argument, or a text for each of its first arguments.
    """

    def tagging(*given: Any, **options: Any) -> Any:
        texts = told(*given, **options)
        if isinstance(texts, tuple):
            # the third of two numbers and their difference is of both
            facts = [_facts(one) for one in given[:2]] + [[*_facts(given[0]), *_facts(given[1])]]
            return tuple(_tag(text, whose) for text, whose in zip(texts, facts, strict=False))
        return texts if given[0] is None else _tag(texts, _facts(given[0]))

    return tagging


def _facts(number: Any) -> list[tuple[str, float]]:
    if isinstance(number, list):
        return [pair for one in number for pair in _facts(one)]
    return list(number.facts) if isinstance(number, _Known) else [("", float(number))]


def shown(value: Any) -> Any:
    """Return what a template shows in a page: numbers with tags, texts with a digit as said by somebody."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _tag(str(value), _facts(value))
    if isinstance(value, str) and not hasattr(value, "__html__") and re.search(r"\d", value):
        return Markup("<span data-said>{}</span>").format(value)
    return value


def _tag(text: str, facts: Sequence[tuple[str, float]]) -> Markup:
    of = dict(facts)
    values = " ".join(map(repr, of.values()))
    return Markup('<data value="{}" data-fact="{}">{}</data>').format(values, " ".join(of), escape(text))


# ---- the check


def differences(page: str, made: str) -> list[str]:
    """Return what is wrong with a page, a line each; nothing if all its numbers are tagged, and all is as the run says.

    Numbers come first, in their order. If all of them agree, the first other place that differs is told: a word, an
    attribute, a drawing, a comment. White space, and a version or a date that the page marks as its own, may differ.

    Args:
        page: the page (HTML).
        made: the page that is made of the run now.
    """
    given, now = (_read(text) for text in (page, made))
    wrong = [f"no tag: {text}" for kind, _, text in given if kind == "text" and text not in CONSTANTS]
    wrong += [f"{text}: its tag names no fact" for kind, tag, text in given if kind == "data" and tag.endswith("|")]
    start = next((i for i, (a, b) in enumerate(zip_longest(given, now)) if a != b), None)
    if start is None:
        whole = [_OWN.sub(r"\1", " ".join(text.split())) for text in (page, made)]
        at = next((i for i, (a, b) in enumerate(zip_longest(*whole)) if a != b), None)
        if at is not None:
            wrong.append("; the run says ".join(text[max(at - 30, 0) : at + 30] for text in whole))
        return wrong
    given, now = given[start:], now[start:]
    while given and now and given[-1] == now[-1]:
        given.pop(), now.pop()
    for ours, theirs in list(zip_longest(given, now))[:_MOST_TOLD]:
        if ours != theirs:
            wrong.append(f"{_told(ours)}; the run says {_told(theirs)}")
    return wrong


def _told(token: tuple[str, str, str] | None) -> str:
    """Return a number of a page as a line of the check names it."""
    if token is None:
        return "nothing"
    kind, tag, text = token
    return f"{text} ({tag.partition('|')[2]} = {tag.partition('|')[0]})" if kind == "data" else text


def _read(page: str) -> list[tuple[str, str, str]]:
    reader = _Reader()
    reader.feed(page)
    return [(kind, about, " ".join("".join(parts).split())) for kind, about, parts in reader.found]


class _Reader(HTMLParser):
    """The numbers of a page, in its order: (kind, value and fact of a tag, text).

    The kinds are "data", a tagged number, and "text", a numeral without a tag. Drawings, scripts and what is said by
    somebody ("said") are left out: texts from outside, and what a page's maker says (``data-own``), such as a title.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str, list[str]]] = []
        self._inside: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        kind = "said" if tag in _SAID or given.keys() & {"data-said", "data-own"} else "data" if tag == "data" else ""
        if kind or self._inside:
            if tag not in ("meta", "br", "img", "input", "link"):
                self._inside.append((tag, kind or self._inside[-1][1]))
            if kind == "data":
                self.found.append((kind, f"{given.get('value', '')}|{given.get('data-fact', '')}", []))

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1][0] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        kind = self._inside[-1][1] if self._inside else "text"
        if kind == "text":
            self.found += [(kind, "", [numeral]) for numeral in _NUMERAL.findall(data)]
        elif kind == "data":
            self.found[-1][2].append(data)
