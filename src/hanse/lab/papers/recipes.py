"""The recipe of the authors' code beside that of the paper's text: in what they differ, and whether that is documented.

``authors.toml`` lists the differences of each paper by hand, with the place in the authors' code. The tests hold that
list against the experiments: :func:`undocumented` finds differences that it lacks, :func:`without_effect` entries that
change nothing. :func:`differences_markdown` is the list as ``docs/papers.md`` has it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hanse.lab.papers.changes import differing
from hanse.lab.papers.tables import Paper, differences

HEADINGS = ("setting", "paper", "authors", "source")  # keys of an entry, in the order of the table's columns


def undocumented(paper: Paper) -> list[str]:
    """Return the settings in which the two recipes differ at full size and that ``authors.toml`` does not name.

    A setting is named as ``setting`` of an entry, or among those that change with it (``also``). A name covers the
    settings below it: "mechanism.weigh" covers "mechanism.weigh.eps".

    Args:
        paper: the paper, all of whose tables are compared.

    Returns:
        Dotted keys in alphabetical order; none if everything is documented.
    """
    said = [name for line in differences(paper.name) for name in (line["setting"], *line.get("also", ())) if name]
    return sorted(name for name in set(_different(paper)) if not any(_covers(line, name) for line in said))


def without_effect(paper: Paper) -> list[str]:
    """Return the settings that ``authors.toml`` names and in which the two recipes do not differ.

    Entries that say why they are not built (``missing``) do not count. Groups whose data are not here have no
    experiments, so a setting that only they change is returned as well.

    Args:
        paper: the paper, all of whose tables are compared.
    """
    found = set(_different(paper))
    built = [line["setting"] for line in differences(paper.name) if line["setting"] and "missing" not in line]
    return sorted(setting for setting in built if not any(_covers(setting, name) for name in found))


def _covers(setting: str, name: str) -> bool:
    """Return whether two dotted keys are the same or one lies below the other; "x.name" counts as "x"."""
    setting, name = setting.removesuffix(".name"), name.removesuffix(".name")
    return name == setting or name.startswith(f"{setting}.") or setting.startswith(f"{name}.")


def _different(paper: Paper) -> Iterator[str]:
    """Yield the settings in which the recipes differ, table by table; a setting may come more than once."""
    for build in paper.tables.values():
        yield from differing(build("paper", "authors"), build("paper", "paper"))


def differences_markdown(paper: str) -> str:
    """Return a table in Markdown of what a paper's authors' code does otherwise than its text.

    Args:
        paper: the paper's name.
    """
    lines = ["| setting | the text | the authors' code | where |", "|---|---|---|---|"]
    for line in differences(paper):
        cells = [f"`{line['setting']}`" if line["setting"] else "", *(line[key] for key in HEADINGS[1:])]
        if "missing" in line:
            cells[2] += f" (not built: {line['missing']})"
        # a vertical bar would end the cell
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"
