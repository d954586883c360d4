"""Notes (a code with fields), and the sentences that say them in terminals, notebooks and pages.

A sentence stands in one place: the macro of ``sentences.j2`` with the name of the note's code. :func:`said` returns it
as text; pages import the same macros, and escape what comes from outside.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup

from hanse.core.entry import tokens
from hanse.games.jackknife import SURE
from hanse.reports.chart import slug
from hanse.reports.digits import (
    about,
    agreeing,
    between,
    called,
    ends,
    in_stretches,
    listed,
    number,
    percent,
    points,
    rounded,
)
from hanse.reports.tags import in_cell, length, shown, sourced, tagged

if TYPE_CHECKING:
    from jinja2 import Environment

_MACRO = re.compile(r"(\{%-? macro (\w+)\(.*?endmacro -?%\})", re.DOTALL)

Level = Literal["doubt", "warning", "note"]
"""How much a note matters: a doubt comes before any result, a warning beside it, a note explains it."""


@dataclass(frozen=True)
class Note:
    """Something that a reader must know about facts.

    Attributes:
        code: what it is, such as "chance_level"; the name of its sentence.
        level: how much it matters.
        fields: what the sentence says it of, as plain values.

    Examples:
        >>> Note("few_units", "warning", {"client": 3, "name": "3", "units": 12}).said
        'Client 3 has 12 test units: a difference in one run is no ground for a decision.'
    """

    code: str
    level: Level
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def said(self) -> str:
        """The note as a sentence."""
        return said(self.code, **self.fields)

    @property
    def fact(self) -> str:
        """What the numbers of its fields are called in a page: its code, and of which run and client it is."""
        whose = (slug(str(self.fields[key])) for key in ("run", "client") if key in self.fields)
        return ".".join(["notes", self.code, *whose])


class Sentence(str):
    """A sentence as text. In a page its numbers have tags.

    Attributes:
        template: the template that has it.
        macro: its name there.
        given: what it takes by position.
        fields: what it takes by name.
    """

    template: str
    macro: str
    given: tuple[Any, ...]
    fields: Mapping[str, Any]

    def __html__(self) -> str:
        """Return it for a page."""
        fact = f"{self.template.removesuffix('.j2')}.{self.macro}"
        macro = getattr(environment(pages=True).get_template(self.template).module, self.macro)
        given = [sourced(one, f"{fact}.{name}") for one, name in zip(self.given, macro.arguments, strict=False)]
        return str(macro(*given, **sourced(self.fields, fact)))


def said(sentence: str, /, *given: Any, **fields: Any) -> str:
    """Return a sentence of ``sentences.j2`` as text, on one line (a :class:`Sentence`).

    Args:
        sentence: its name, such as a note's code.
        given: what it takes by position.
        fields: what it takes by name.
    """
    return of_template("sentences.j2", sentence, *given, **fields)


def of_template(template: str, macro: str, /, *given: Any, **fields: Any) -> str:
    """Return what a macro of a template says, as :func:`said` does of ``sentences.j2``."""
    found = getattr(environment(pages=False).get_template(f"{template}:{macro}").module, macro)
    made = Sentence(" ".join(str(found(*given, **fields)).split()))
    made.template, made.macro, made.given, made.fields = template, macro, given, fields
    return made


def caption(chart: str, /, *given: Any, **fields: Any) -> str:
    """Return how to read a chart, by its macro in ``captions.j2``."""
    return of_template("captions.j2", chart, *given, **fields)


def _source(template: str) -> str:
    """Return a template's text by the name of its file, or that of one macro, with those that it calls, as
    ``"file:macro"``.

    To compile all sentences takes a third of a second, and most commands say a few of them.
    """
    file, _, macro = template.partition(":")
    source = files("hanse.reports").joinpath(file).read_text(encoding="utf-8")
    if not macro:
        return source
    texts, needed = {name: text for text, name in _MACRO.findall(source)}, [macro]
    for name in needed:  # grows by what each macro calls
        needed += [one for one in re.findall(r"\w+(?=\()", texts[name]) if one in texts and one not in needed]
    return "".join(texts[name] for name in needed)


@cache
def environment(*, pages: bool) -> Environment:
    """Return the templates' environment.

    For pages, what comes from outside is escaped, and each number has a tag with the value that it shows
    (:mod:`hanse.reports.tags`).
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # late: most calls from Python say nothing

    made = Environment(
        loader=FunctionLoader(_source), autoescape=pages, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=shown if pages else None,
    )  # fmt: skip
    numbers: dict[str, Callable[..., str]] = {
        "about": about,
        "difference": lambda value, metric: metric.show_difference(value),
        "all_tokens": lambda units: f"{Decimal(units).scaleb(-6):,f}",
        "coins": lambda coins, invoice: invoice.told(coins),
        "end": lambda value, metric: metric.show_difference(value).removesuffix(" points"),
        "gain": lambda units: ("+" if units > 0 else "") + about(units),
        "metric": lambda value, metric: metric.show(value),
        "number": number,
        "percent": percent,
        "rounded": rounded,
        "rounds": in_stretches,
        "shaped": lambda value, form: format(value, form),
        "signed": lambda units: ("+" if units > 0 else "") + tokens(units),
        "tokens": tokens,
    }
    made.filters |= {name: tagged(told) if pages else told for name, told in numbers.items()}
    made.filters |= {"client": called, "listed": listed}
    made.filters["top"] = lambda text: text[:1].upper() + text[1:]
    texts: tuple[Callable[..., Any], ...] = (agreeing, between, ends)
    made.globals |= {told.__name__: tagged(told) if pages else told for told in texts}
    if pages:
        made.filters |= {"length": length, "cell": in_cell}
    made.globals["tell"] = lambda note: getattr(made.get_template("sentences.j2").module, note.code)(
        **(sourced(note, "notes") if pages else note).fields
    )
    made.globals |= {"points": lambda told: points(Markup(told).striptags()), "sure": SURE}
    return made


def page(template: str, **given: Any) -> str:
    """Return a page (HTML) without scripts, whose policy allows its own style sheet and nothing else.

    Args:
        template: the name of its template.
        given: what the template takes.
    """
    today, made_by = datetime.now(UTC).date(), version("hanse")
    found = environment(pages=True).get_template(template)
    known = {name: sourced(one, name) for name, one in given.items()}
    return found.render(policy=policy(template), version=made_by, today=today, **known)


@cache
def policy(template: str) -> str:
    """Return what a page may do: apply the style sheet of its template, which is plain CSS."""
    source = files("hanse.reports").joinpath(template).read_text(encoding="utf-8")
    style = source.partition("<style>")[2].partition("</style>")[0]
    hashed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{hashed}'; img-src data:; base-uri 'none'; form-action 'none'"
