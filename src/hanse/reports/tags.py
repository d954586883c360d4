"""Numbers of a page with the exact values that they show, and the check that a page says what the facts say.

A page's template tags each number that it shows: ``<data value="0.7034">0.7</data>``. Names and other texts from
outside are tagged as said by somebody. :func:`differences` reads a page, and finds numbers without a tag, values that
are not among the facts, and texts that do not show their value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

from markupsafe import Markup

_NUMERAL = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_FACTORS = (1.0, 100.0, 1e-6, 0.01, 0.001)  # by which a value may be shown: percent, tokens, coins
_UNSEEN = ("style", "script", "svg", "title")


def tagged(told: Callable[..., Any], values: Callable[..., Sequence[Any]] | None = None) -> Callable[..., Any]:
    """Return a function that shows numbers, with a tag around each text that it returns.

    Args:
        told: returns the text of its first argument, or several texts.
        values: returns the numbers that the texts show, from the same arguments. None: the first argument.
    """

    def tagging(*given: Any, **options: Any) -> Any:
        texts = told(*given, **options)
        shown = [given[0]] if values is None else values(*given, **options)
        if isinstance(texts, tuple):
            return tuple(_tag(text, [value]) for text, value in zip(texts, shown, strict=True))
        return _tag(texts, shown) if shown[0] is not None else texts

    return tagging


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


def shown(value: Any) -> Any:
    """Return what a template shows in a page: numbers with tags, texts with a digit as said by somebody."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _tag(str(value), [value])
    if isinstance(value, Cell) and value.values:
        return _tag(value, value.values)
    if isinstance(value, str) and not hasattr(value, "__html__") and re.search(r"\d", value):
        return Markup("<span data-said>{}</span>").format(value)
    return value


def _tag(text: str, values: Sequence[Any]) -> Markup:
    return Markup('<data value="{}">{}</data>').format(" ".join(repr(float(value)) for value in values), text)


def differences(page: str, source: Sequence[Any], templates: Sequence[str]) -> list[str]:
    """Return what is wrong with the numbers of a page, a line each; nothing if all are tagged and as in the facts.

    Args:
        page: the page (HTML).
        source: the facts and whatever else the page shows: dataclasses, dictionaries and lists of numbers.
        templates: the names of the templates that the page is made of, whose own numerals need no tag.
    """
    found = [number for one in source for number in _numbers(one)]
    known = {*found, *(100 * number for number in found)}  # shown in percent
    reader, wrong = _Reader(), list[str]()
    reader.feed(page)
    for text in reader.untagged:
        wrong += [f"no tag: {numeral}" for numeral in _NUMERAL.findall(text) if numeral not in _own(tuple(templates))]
    for value, text in reader.tagged:
        numbers, numerals = [float(one) for one in value.split()], _NUMERAL.findall(text)
        wrong += [
            f"not among the facts: {number!r}, shown as {text}" for number in numbers if not {number, -number} & known
        ]
        if len(numbers) != len(numerals) or not all(map(_shows, numerals, numbers)):
            wrong.append(f"{text}: does not show {value}")
    return wrong


def _shows(numeral: str, value: float) -> bool:
    """Return whether a text shows a value in its digits."""
    plain = numeral.replace(",", "").replace("−", "-")
    digits, _, power = plain.partition("e")
    unit = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    return any(abs(abs(float(plain)) - abs(factor * value)) <= 0.51 * unit for factor in _FACTORS)


def _numbers(found: Any, depth: int = 8) -> Iterator[float]:
    """Yield all numbers of an object, its properties' and the lengths of its lists included."""
    if isinstance(found, bool) or found is None or not depth:
        return
    if isinstance(found, int | float):
        yield float(found)
    elif isinstance(found, Mapping):
        for one in found.values():
            yield from _numbers(one, depth - 1)
    elif isinstance(found, list | tuple):
        yield float(len(found))
        for one in found:
            yield from _numbers(one, depth - 1)
    elif is_dataclass(found):
        properties = [name for name, one in vars(type(found)).items() if isinstance(one, property)]
        for name in [*(column.name for column in fields(found)), *properties]:
            yield from _numbers(getattr(found, name), depth - 1)


@cache
def _own(templates: tuple[str, ...]) -> frozenset[str]:
    """Return the numerals that stand in templates themselves, outside what they compute."""
    sources = [files("hanse.reports").joinpath(name).read_text(encoding="utf-8") for name in templates]
    return frozenset(numeral for text in sources for numeral in _NUMERAL.findall(text))


class _Reader(HTMLParser):
    """What a page shows: the text of tags with their values, and the other texts but those that somebody said."""

    def __init__(self) -> None:
        super().__init__()
        self.tagged: list[tuple[str, str]] = []
        self.untagged: list[str] = []
        self._inside: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("data", *_UNSEEN) or (tag == "span" and ("data-said", None) in attrs):
            self._inside.append((tag, dict(attrs).get("value")))
            if tag == "data":
                self.tagged.append((dict(attrs).get("value") or "", ""))

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1][0] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.untagged.append(data)
        elif self._inside[-1][0] == "data":
            value, text = self.tagged[-1]
            self.tagged[-1] = value, text + data
