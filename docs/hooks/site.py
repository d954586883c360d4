"""What the documentation site needs besides MkDocs: MathML instead of a script, tables of the experiment's keys
and of parts, and a place in the menu for every page.

``python docs/hooks/site.py`` writes the list of the words of parts, ``docs/reference/words.csv``.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MATHS = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
ROLE = re.compile(r":(?:class|func|mod|meth|attr):<code>~?([^<]*)</code>")
TABLES = re.compile(r"^<!-- (readings|recipes): (\w+) -->$", re.MULTILINE)
LISTED = re.compile(r"^`hanse list (\w+)(?:\.(\w+))?`$", re.MULTILINE)  # what a clone shows in a table's place
WORDS = Path(__file__).parents[1] / "reference" / "words.csv"
READINGS = Path(__file__).parents[1] / "readings.csv"


def on_config(config: Any) -> Any:
    """Add pages that the menu does not name to its last section."""
    folder = Path(config.docs_dir)
    named = set(_names(config.nav))
    rest = sorted(p.name for p in folder.glob("*.md") if p.name not in named)
    [section] = config.nav[-1].values()
    section += rest
    return config


def _names(entries: Any) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, dict):
        for value in entries.values():
            yield from _names(value)
    else:
        for entry in entries:
            yield from _names(entry)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put in the tables that are made from the code; links to notebooks lead to their pages."""
    makers = {"readings": readings, "recipes": recipes}
    markdown = TABLES.sub(lambda found: makers[found[1]](found[2]), markdown).replace(".ipynb)", ".md)")
    return LISTED.sub(lambda found: listed(found[1], found[2]), markdown)


def listed(name: str, key: str | None) -> str:
    """Return what ``hanse list`` shows of a section, of the names that a key of one takes, or of "words"."""
    if key is not None:
        return parts(name if key == "name" else key)
    return fits() if name == "words" else keys(name)


def keys(section: str) -> str:
    """Return the table of the keys of one section of the experiment's file, from its schema and docstring."""
    from hanse.cli.listing import documented
    from hanse.data.spec import PARTITIONS, SOURCE_KINDS
    from hanse.runs.config import Experiment

    choices = (*PARTITIONS.values(), *SOURCE_KINDS.values())
    kind: Any = Experiment.kinds()[section]
    schema, (_, meaning) = kind.model_json_schema(), documented(kind)
    rows = []
    for name, field in kind.model_fields.items():
        found = schema["properties"][name]
        usual = field.default
        usual = usual.name if isinstance(usual, choices) else usual  # a source or partition, all options as usual
        default = "required" if field.is_required() else "" if usual is None else f"`{_toml(usual)}`"
        told = meaning[name].replace("None: ", "left out: ")  # TOML has no None
        rows.append((f"`{name}`", default, _allowed(found, schema.get("$defs", {})), told))
    lines = ["| key | default | allowed | |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(_cell(c) for c in row)} |" for row in rows)])


def parts(slot: str) -> str:
    """Return the table of the parts of one decision, or of "mechanism", "model", "source" or "partition": names, what
    each is, and its options with their defaults and meanings.
    """
    from hanse.base.factories import defaults
    from hanse.cli.listing import documented
    from hanse.data.spec import PARTITIONS, SOURCE_KINDS
    from hanse.learning.models import MODELS
    from hanse.mechanisms.mechanism_table import part_table
    from hanse.mechanisms.registry import MECHANISMS, PARTS, is_rule

    tables = {**PARTS, "mechanism": MECHANISMS, "model": MODELS, "source": SOURCE_KINDS, "partition": PARTITIONS}
    rows: dict[str, list[str]] = {}  # what is alike for several names, such as sources of images, is one row
    for name, make in tables[slot].items():
        known = {k: part_table(slot, v) if is_rule(v) else v for k, v in defaults(make).items()}
        paragraphs, meaning = documented(make)
        options = [
            f"`{k}` {'none' if v is None else _toml(v)}" + (f": {meaning[k]}" if k in meaning else "")
            for k, v in known.items()
            if k not in ("input_shape", "num_classes")
        ]
        told = f"{_cell(' '.join(paragraphs[:2]))} | {'<br>'.join(_cell(option) for option in options)}"
        rows.setdefault(told, []).append(f"`{name}`")
    lines = [f"| {', '.join(names)} | {told} |" for told, names in rows.items()]
    return "\n".join(["| name | | options |", "|---|---|---|", *lines])


def fits() -> str:
    """Return the list of words of parts, and the settings that do not go together."""
    from hanse.mechanisms import fits as of

    lines = ["| word | given by | what it is (what helps) | forbidden by |", "|---|---|---|---|"]
    lines += [f"| `{row[0]}` | {' | '.join(map(_cell, row[1:]))} |" for row in of.listed()]
    lines += ["", "| setting | not with | because |", "|---|---|---|"]
    lines += [f"| `{row[0]}` | {' | '.join(map(_cell, row[1:]))} |" for row in of.forbidden()]
    return "\n".join(lines)


def words() -> str:
    """Return the list of the words of parts as CSV, which is kept in the repository."""
    from hanse.mechanisms.fits import listed

    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("word", "given by", "what it is (what helps)", "forbidden by"))
    table.writerows(listed())
    return text.getvalue()


def readings(paper: str) -> str:
    """Return the table of how a paper is read where it leaves something open."""
    with READINGS.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["paper"] == paper]
    lines = [f"| {row['key']} | {_cell(row['the paper'])} | {_cell(row['here'])} |" for row in rows]
    return "\n".join(["| | the paper | here |", "|---|---|---|", *lines])


def recipes(paper: str) -> str:
    """Return the table of what a paper's authors' code does otherwise than its text."""
    from hanse_papers.tables import differences

    lines = ["| setting | the text | the authors' code | where |", "|---|---|---|---|"]
    for line in differences(paper):
        setting = f"`{line['setting']}`" if line["setting"] else ""
        missing = f" (not built: {line['missing']})" if "missing" in line else ""
        cells = (setting, line["paper"], line["authors"] + missing, line["source"])
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    return "\n".join(lines)


def _allowed(schema: dict[str, Any], defs: dict[str, Any]) -> str:
    """Return in words what a JSON schema allows."""
    if "$ref" in schema:
        return _allowed(defs[schema["$ref"].rsplit("/", 1)[1]], defs)
    if "anyOf" in schema:
        return " or ".join(_allowed(s, defs) for s in schema["anyOf"] if s.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{v}`" for v in schema.get("enum", [schema.get("const")]))
    words = {"integer": "whole number", "array": "list", "object": "table", "boolean": "true or false"}
    text = words.get(schema.get("type", ""), schema.get("type", "any"))
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    return ", ".join([text, *(f"{word} {schema[key]:g}" for key, word in bounds.items() if key in schema)])


def _cell(text: str) -> str:
    """Return text that stays in its cell: a bar outside of code would begin the next one."""
    pieces = " ".join(text.split()).split("`")
    return "`".join(p if k % 2 else p.replace("|", "\\|") for k, p in enumerate(pieces))


def _toml(value: Any) -> str:
    from hanse.base.toml import dumps

    return dumps({"x": {"x": value}}).split("=", 1)[1].strip()


def on_page_content(content: str, **_: Any) -> str:
    """Turn formulas into MathML, which browsers draw by themselves, and Sphinx's roles into plain code."""
    return ROLE.sub(r"<code>\1</code>", MATHS.sub(_mathml, content))


def _mathml(found: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    tag, bracket, tex = found.groups()
    block = bracket == "["
    drawn: str = convert(html.unescape(tex).strip(), display="block" if block else "inline")
    drawn = drawn.replace("&#x029F5;", "&#x02216;")  # the set difference that fonts have
    # a bar beside an exponent would not grow with its partner
    drawn = re.sub(r"<mo>(&#x0(?:2016|007C);)</mo>", r'<mo stretchy="false">\1</mo>', drawn)
    # what may have to be moved sideways can be, from the keyboard too
    focus = ' tabindex="0" role="group" aria-label="Formula"' if tag == "div" else ""
    return f'<{tag} class="formula"{focus}>{drawn}</{tag}>'


if __name__ == "__main__":
    WORDS.write_text(words())
