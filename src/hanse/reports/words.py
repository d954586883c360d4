"""Notes (a code with fields), and the sentences that say them in terminals, notebooks and pages.

A sentence stands in one place: the macro of ``sentences.j2`` with the name of the note's code. :func:`said` returns it
as text. Pages say the same sentences, and escape all that they say. :func:`differences` compares two pages.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from difflib import SequenceMatcher
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup, escape

from hanse.base.plain_text import quantity
from hanse.core.entry import tokens
from hanse.games.jackknife import SURE
from hanse.reports import digits

if TYPE_CHECKING:
    from jinja2 import Environment

    from hanse.runs.run_record import RunRecord

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


def said(sentence: str, /, *given: Any, **fields: Any) -> str:
    """Return a sentence of ``sentences.j2`` as text, on one line.

    Args:
        sentence: its name, such as a note's code.
        given: what it takes by position.
        fields: what it takes by name.
    """
    macro = getattr(environment().get_template(f"sentences.j2:{sentence}").module, sentence)
    return " ".join(str(macro(*given, **fields)).split())


def doubts_said(run: RunRecord) -> list[str]:
    """Return the sentences to show before a run's results."""
    return [said(code, **fields) for code, fields in run.coded_doubts]


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
def environment() -> Environment:
    """Return the templates' environment: in pages everything is escaped, and sentences are plain text."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # late: most calls from Python say nothing

    made = Environment(
        loader=FunctionLoader(_source), autoescape=lambda name: (name or "").endswith(".html.j2"),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "about": digits.about,
        "all_tokens": lambda units: f"{Decimal(units).scaleb(-6):,f}",
        "client": digits.called,
        "coded": _coded,
        "quantity": quantity,
        "end": lambda value, metric: metric.show_difference(value).removesuffix(" points"),
        "gain": lambda units: ("+" if units > 0 else "") + digits.about(units),
        "labelled": digits.labelled,
        "listed": digits.listed,
        "number": digits.number,
        "percent": digits.percent,
        "rounded": digits.rounded,
        "rounds": digits.in_stretches,
        "shaped": lambda value, form: format(value, form),
        "signed": lambda units: ("+" if units > 0 else "") + tokens(units),
        "tokens": tokens,
        "top": lambda text: text[:1].upper() + text[1:],
    }
    made.globals |= {one.__name__: one for one in (digits.agreeing, digits.between, digits.ends, digits.points)}
    made.globals |= {"say": said, "sure": SURE}
    return made


def _coded(text: str) -> Markup:
    """Return a sentence with commands as code, in which no line ends after the dashes of an option.

    Examples:
        >>> _coded("Run `hanse report a --retrain`, or --help.")
        Markup('Run <code>hanse report a <span>--retrain</span></code>, or --help.')
    """
    commands = re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"(?<=\s)(--[\w-]+)(?=[^<]*</code>)", r"<span>\1</span>", commands))


def page(template: str, **given: Any) -> str:
    """Return a page (HTML) without scripts, whose policy allows its own style sheet and nothing else.

    Args:
        template: the name of its template.
        given: what the template takes; ``policy`` replaces the policy.
    """
    usual = {"policy": policy(template), "version": version("hanse"), "today": datetime.now(UTC).date()}
    return environment().get_template(template).render(usual | given)


@cache
def policy(template: str) -> str:
    """Return what a page may do: apply the style sheet of its template, which is plain CSS."""
    source = files("hanse.reports").joinpath(template).read_text(encoding="utf-8")
    style = source.partition("<style>")[2].partition("</style>")[0]
    hashed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{hashed}'; img-src data:; base-uri 'none'; form-action 'none'"


_OWN = re.compile(r"(<span data-own>)(?:\d{4}-\d\d-\d\d|\d+(?:\.\d+)+(?:\.?[a-z]+\d+)*(?:\+[a-z0-9.]+)?)(?=</span>)")
_AROUND = 30  # characters on each side of a difference


def differences(page: str, made: str) -> list[str]:
    """Return where a page differs from the same page made anew, but for white space, its date and hanse's version.

    Args:
        page: the page as it is.
        made: the page as the run says it.
    """
    given, now = ([" ".join(_OWN.sub(r"\1", line).split()) for line in text.splitlines()] for text in (page, made))
    wrong = []
    for kind, start, end, first, last in SequenceMatcher(None, given, now, autojunk=False).get_opcodes():
        if kind != "equal":
            ours, theirs = " ".join(given[start:end]), " ".join(now[first:last])
            alike = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if len(set(pair)) > 1), 0)
            some = slice(max(alike - _AROUND, 0), alike + _AROUND)
            wrong.append(f"{ours[some] or 'nothing'}; the run says {theirs[some] or 'nothing'}")
    return wrong
