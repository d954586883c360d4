"""What ``hanse list`` prints: names by kind, and which part could replace which in a mechanism."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from inspect import Parameter, signature
from itertools import groupby
from typing import Any

from pydantic import BaseModel
from rich.table import Table as RichTable

from hanse.base.errors import UserError, nearest
from hanse.data.spec import PARTITIONS, SOURCE_KINDS
from hanse.federation.behaviour import BEHAVIOURS
from hanse.federation.policy import POLICIES
from hanse.learning.models import MODELS
from hanse.mechanisms.fits import forbidden, listed, unmet_needs
from hanse.mechanisms.registry import MECHANISMS, PARTS, SLOTS, word_of
from hanse.runs.config import Experiment


@dataclass(frozen=True)
class Combination:
    """One replaced part of one mechanism.

    Attributes:
        mechanism: the mechanism's name.
        slot: the decision whose part is replaced.
        part: the name of the part that replaces it.
        missing: what the part would lack, and what other parts (by name) would then lack. Empty: the part fits.
    """

    mechanism: str
    slot: str
    part: str
    missing: tuple[str, ...]


def combinations(names: Iterable[str] = MECHANISMS) -> Iterator[Combination]:
    """Yield these mechanisms with each single part replaced, and the needs that would then be unmet.

    The experiment is taken to have validation sets and a root set, a model that ends in a linear layer, and several
    clients (one for centralised training).
    """
    for name in names:
        own = MECHANISMS[name]()
        given = {"losses", "validation", "client_validation", "head", "root"}
        given |= {"pooled" if name == "centralised" else "clients"}
        for slot in SLOTS:
            for part, make_part in PARTS[slot].items():
                # the mechanism has this part already
                if isinstance(make_part, type) and type(own.slots().get(slot)) is make_part:
                    continue
                changed = replace(own, **{slot: make_part()})
                lacks = unmet_needs(changed, frozenset(given))
                called = word_of(changed.slots()[slot], slot)
                # the part itself is named next to its reasons; other parts may come to lack something through it
                says = (lack.reason if lack.part == called else f"{lack.part}: {lack.reason}" for lack in lacks)
                yield Combination(name, slot, part, tuple(says))


def _with_options() -> dict[str, Mapping[str, Callable[..., Any]]]:
    """Return everything that has a name and options, by the key of the file that takes it."""
    parts = {f"mechanism.{slot}": parts for slot, parts in PARTS.items() if parts}
    return {
        "mechanism.name": MECHANISMS, **parts, "data.source": SOURCE_KINDS, "data.partition": PARTITIONS,
        "model.name": MODELS, "behaviour": BEHAVIOURS, "clients.policy": POLICIES,
    }  # fmt: skip


def name_table() -> RichTable:
    """Return a table of all names, by the experiment's key that takes them."""
    table = RichTable("kind", "names (or an import path 'package.module:name')")
    for key, names in _with_options().items():
        table.add_row(key if key != "data.partition" else f"{key} (names only)", ", ".join(names))
    return table


def tables(name: str) -> list[RichTable]:
    """Return the tables for a name: the keys of a section of the experiment, the options of parts, and of a mechanism
    its parts, too.

    Raises:
        UserError: nothing has this name.
    """
    if name == "words":
        return word_tables()
    if name in MECHANISMS:
        return [own_parts(name), option_table(name)]
    kind = Experiment.kinds().get(name)
    # the keys of a mechanism are its options and parts
    if name == "mechanism" or not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return [option_table(name)]
    meaning = documented(kind)[1]
    found = RichTable("key", "default", "meaning", title=f"keys of the section {name}")
    for key, field in kind.model_fields.items():
        usual = getattr(field.default, "name", field.default)  # a source's or partition's, all options as usual
        default = "must be given" if field.is_required() else "" if usual is None else repr(usual)
        found.add_row(key, default, meaning.get(key, ""), end_section=True)
    return [found, option_table(name)] if any(name in _words(key) for key in _with_options()) else [found]


def word_tables() -> list[RichTable]:
    """Return the words by which parts and settings fit or do not, and which settings do not go together."""
    words = RichTable("word", "given by", "what it is (what helps)", "forbidden by", title="words of parts")
    settings = RichTable("setting", "not with", "because", title="settings that do not go together")
    for table, rows in ((words, listed()), (settings, forbidden())):
        for row in rows:
            table.add_row(*row, end_section=True)
    return [words, settings]


def documented(make: Any) -> tuple[list[str], dict[str, str]]:
    """Return the paragraphs of a part's docstring before its sections, and each option's text from it and its bases."""
    meaning: dict[str, str] = {}
    text = ""
    part = make if isinstance(make, type) else getattr(make, "made_of", object)
    for kind in dict.fromkeys([*part.__mro__[-2::-1], make]):  # what is asked for comes last
        text = inspect.cleandoc(kind.__doc__ or "")
        text = re.sub(r":(?:class|func|mod|meth|attr|data):`~?([^`]*)`", r"`\1`", text.replace("``", "`"))
        listed = re.search(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
        found = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", listed[1], re.MULTILINE) if listed else []
        meaning |= {name: " ".join(words.split()) for name, words in found}
    before = re.split(r"^(?:Args|Attributes|Raises|Returns|Examples):$", text, maxsplit=1, flags=re.MULTILINE)[0]
    return before.removeprefix("Return ").strip().split("\n\n"), meaning


def option_table(name: str) -> RichTable:
    """Return a table of the options that belong to a name, with their defaults and meanings; of a kind, with defaults.

    Args:
        name: the name of a part, source, partition, model, behaviour or policy (all of them if several share it). Or a
            kind, such as "partitions" or "mechanism.select", for all of its names.

    Raises:
        UserError: nothing has this name.
    """
    known = _with_options()
    words = {word: key for key in known for word in _words(key)}
    if name in words:
        key = words[name]
        return _options_of("name", {each: (key, make) for each, make in known[key].items()}, title=key)
    kinds = {key: (key, names[name]) for key, names in known.items() if name in names}
    if not kinds:
        named = dict.fromkeys([*(n for names in known.values() for n in names), *words, *Experiment.kinds()])
        raise UserError(f"NAME: '{name}': no such name{nearest(name, list(named))}")
    return _options_of("kind", kinds, title=name)


def own_parts(mechanism: str) -> RichTable:
    """Return a table of a mechanism's parts by decision, with their options as the mechanism sets them."""
    table = RichTable("decision", "part", "its options", title=f"parts of {mechanism}")
    for slot, part in MECHANISMS[mechanism]().slots().items():
        options = (f"{option.name} = {getattr(part, option.name)!r}" for option in fields(part) if option.init)
        table.add_row(slot, word_of(part, slot).strip("'"), ", ".join(options) or "-")
    return table


def _words(key: str) -> tuple[str, ...]:
    """Return what a kind may be called: its key, the word that says what it is, or that word's plural."""
    word = key.removesuffix(".name").rpartition(".")[2]
    return key, word, f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"


def _options_of(head: str, makers: Mapping[str, tuple[str, Callable[..., Any]]], title: str) -> RichTable:
    """Return a table of options with their defaults: ``makers`` are a key and a factory each, by the first column.

    One name's options are explained too; those of a whole kind would take pages.
    """
    explained = head == "kind"
    table = RichTable(head, "option", "default", *["meaning"] * explained, title=title)
    for first, (key, make) in makers.items():
        unset = "from the data" if key == "model.name" else "must be given"
        meaning = documented(make)[1] if explained else {}
        # a source's class takes the name first, which is no option
        options = list(signature(make).parameters.values())[key == "data.source" :]
        for i, option in enumerate(options):
            default = unset if option.default is Parameter.empty else repr(option.default)
            more = [meaning.get(option.name, "")] * explained
            table.add_row(
                "" if i else first, option.name, default, *more, end_section=explained or option is options[-1]
            )
        if not options:
            table.add_row(first, "-", "it has no options", *[""] * explained, end_section=True)
    return table


def combination_table(mechanism: str | None = None) -> RichTable:
    """Return a table of which part can replace which, with the reason if it cannot.

    Args:
        mechanism: only this mechanism. None: all mechanisms.

    Raises:
        UserError: there is no such mechanism.
    """
    if mechanism is not None and mechanism not in MECHANISMS:
        raise UserError(f"NAME: '{mechanism}': no such mechanism{nearest(mechanism, MECHANISMS)}")
    table = RichTable("mechanism", "decision", "fits", "does not fit, because it needs")
    found = combinations(MECHANISMS if mechanism is None else [mechanism])
    for (name, slot), here in groupby(found, key=lambda c: (c.mechanism, c.slot)):
        by_reason = defaultdict[str, list[str]](list)
        for c in here:
            by_reason["; ".join(c.missing)].append(c.part)
        fits = by_reason.pop("", [])
        lines = (f"{', '.join(parts)}: {reason}" for reason, parts in by_reason.items())
        table.add_row(name, slot, ", ".join(fits) or "-", "\n".join(lines) or "-", end_section=slot == "deploy")
    return table
