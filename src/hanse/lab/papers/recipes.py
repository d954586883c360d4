"""The authors' recipe beside the text's: in what the experiments differ, and what ``authors.toml`` says of it."""

from __future__ import annotations

from collections.abc import Iterator

from hanse.lab.papers.changes import differing
from hanse.lab.papers.tables import Paper, differences

HEADINGS = ("setting", "paper", "authors", "source")


def undocumented(paper: Paper) -> list[str]:
    """Return the settings in which the two recipes' tables differ at full size and that ``authors.toml`` does not
    name, as ``setting`` or among those that change with it (``also``). A name covers the settings below it:
    "mechanism.weigh" also "mechanism.weigh.eps".
    """
    said = [name for line in differences(paper.name) for name in (line["setting"], *line.get("also", ())) if name]
    return sorted(name for name in set(_different(paper)) if not any(_covers(line, name) for line in said))


def without_effect(paper: Paper) -> list[str]:
    """Return the settings that ``authors.toml`` names as built, in which no experiments differ. (Groups whose data are
    not here are no experiments.)
    """
    found = set(_different(paper))
    built = [line["setting"] for line in differences(paper.name) if line["setting"] and "missing" not in line]
    return sorted(setting for setting in built if not any(_covers(setting, name) for name in found))


def _covers(setting: str, name: str) -> bool:
    setting, name = setting.removesuffix(".name"), name.removesuffix(".name")
    return name == setting or name.startswith(f"{setting}.") or setting.startswith(f"{name}.")


def _different(paper: Paper) -> Iterator[str]:
    for build in paper.tables.values():
        yield from differing(build("paper", "authors"), build("paper", "paper"))


def differences_markdown(paper: str) -> str:
    """Return the differences of a paper's authors' code from its text as a table in Markdown."""
    lines = ["| setting | the text | the authors' code | where |", "|---|---|---|---|"]
    for line in differences(paper):
        cells = [f"`{line['setting']}`" if line["setting"] else "", *(line[key] for key in HEADINGS[1:])]
        if "missing" in line:
            cells[2] += f" (not built: {line['missing']})"
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"
