"""Notes (a code with fields), and the sentences that say them in terminals, notebooks and pages.

A sentence stands in one place: the macro of ``sentences.j2`` with the name of the note's code. :func:`said` returns it
as text; pages import the same macros, and escape what comes from outside.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined

from hanse.core.entry import tokens
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


def said(sentence: str, *given: Any, **fields: Any) -> str:
    """Return a sentence of ``sentences.j2`` as text, on one line.

    Args:
        sentence: its name, such as a note's code.
        given: what it takes by position.
        fields: what it takes by name.
    """
    return " ".join(str(getattr(environment(pages=False).get_template("sentences.j2").module, sentence)(
        *given, **fields)).split())  # fmt: skip


@cache
def environment(*, pages: bool) -> Environment:
    """Return the templates' environment; for pages, what comes from outside is escaped."""
    made = Environment(
        loader=PackageLoader("hanse.reports", "."), autoescape=pages, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "about": about, "client": called, "gain": lambda units: ("+" if units > 0 else "") + about(units),
        "listed": listed, "number": number, "percent": percent, "rounded": rounded,
        "rounds": in_stretches, "tokens": tokens,
        "signed": lambda units: ("+" if units > 0 else "") + tokens(units),
        "top": lambda text: text[:1].upper() + text[1:],
    }  # fmt: skip
    made.globals |= {"agreeing": agreeing, "between": between, "ends": ends, "points": points}
    return made


def page(template: str, **given: Any) -> str:
    """Return a page (HTML) without scripts, whose policy allows its own style sheet and nothing else.

    Args:
        template: the name of its template.
        given: what the template takes.
    """
    today, made_by = datetime.now(UTC).date(), version("hanse")
    found = environment(pages=True).get_template(template)
    return found.render(policy=policy(template), version=made_by, today=today, **given)


@cache
def policy(template: str) -> str:
    """Return what a page may do: apply the style sheet of its template, which is plain CSS."""
    source = files("hanse.reports").joinpath(template).read_text(encoding="utf-8")
    style = source.partition("<style>")[2].partition("</style>")[0]
    hashed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{hashed}'; base-uri 'none'; form-action 'none'"
