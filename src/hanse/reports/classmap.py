"""The chart of which client has which classes, rebuilt from the ``[data]`` table of a run.

A run directory has no data, so the split is made again from the experiment: :func:`data_facts` builds it where the data
are here, :func:`class_chart` draws the counts. The file may be a stranger's, and nothing in it may make the report
download, import or build something huge.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.factories import OBJECT, named_choice
from hanse.base.import_trust import is_looking
from hanse.reports.chart import Chart, Floats, Heat, even, slug
from hanse.reports.groups import SeedGroup
from hanse.reports.words import caption
from hanse.runs.run_record import RunRecord

MOST_CLIENTS = 500  # columns of a map
MOST_MAPS = 3  # splits that are built for one report
MOST_BUILT = 10_000  # clients of a run that is only looked at


@dataclass(frozen=True)
class DataFacts:
    """What a report says of one split of the data.

    Attributes:
        name: the source, the partition and the seed.
        groups: the labels of the experiments that use this split.
        counts: ``[clients, classes]``, train samples; None if there is no map.
        note: what the data set says of itself, for instance that its split is not the official one.
        skipped: why there is no map of classes; "" if there is one.
        names: the clients' names, if they have any.
    """

    name: str
    groups: tuple[str, ...]
    counts: NDArray[np.int64] | None = None
    note: str = ""
    skipped: str = ""
    names: tuple[str, ...] = ()


def data_facts(groups: Sequence[SeedGroup]) -> list[DataFacts]:
    """Return what can be said of the splits of some experiments, each split once.

    At most three splits are built, and nothing is downloaded. For a split that cannot be built, ``skipped`` has the
    reason. Sources given by import path are not built where import paths are refused (:mod:`hanse.base.import_trust`).

    Args:
        groups: the experiments.
    """
    splits: dict[str, list[SeedGroup]] = {}
    for group in groups:
        splits.setdefault(json.dumps(group.runs[0].config.get("data", {}), sort_keys=True, default=str), []).append(
            group
        )
    found = []
    for place, users in enumerate(splits.values()):
        labels = tuple(group.label for group in users)
        found.append(_facts(users[0].runs[0], labels, build=place < MOST_MAPS))
    return found


def _facts(run: RunRecord, groups: tuple[str, ...], *, build: bool) -> DataFacts:
    """Return what can be said of one run's split; unless ``build``, only what the experiment's file says."""
    table = dict(run.config.get("data", {}))
    if "source" not in table:
        return DataFacts("the clients' own data", groups, skipped="hanse never saw them")
    name = f"{named_choice(table.get('source'), 'digits')}, {named_choice(table.get('partition'), 'dirichlet')}"
    name += f", split seed {table.get('seed', 0)}"
    if not build:
        return DataFacts(name, groups, skipped=f"only the first {MOST_MAPS} splits are shown")
    from hanse.data.build import build as build_data  # brings torch: not needed to compare runs
    from hanse.data.spec import parse_spec

    if named_choice(table.get("source"), "") == OBJECT:
        why = "the data were given as an object in Python, of which a run keeps no copy; data from a function that "
        return DataFacts(name, groups, skipped=f"{why}[data] source names can be drawn")
    if is_looking() and (run.num_clients > MOST_BUILT or table.get("path")):
        # the file is a stranger's: what it asks for is not built at any size, nor from any place
        return DataFacts(
            name,
            groups,
            skipped=f"it is only built for up to {MOST_BUILT:,} clients and without data.path, unless you trust the "
            "run's file (--trust)",
        )
    try:
        data = build_data(parse_spec(table | {"download": False}))
        counts, names = data.class_counts(), data.names
    except UserError as wrong:
        return DataFacts(name, groups, skipped=wrong.lines[0] if wrong.lines else "it cannot be loaded")
    except Exception as wrong:  # the user's own source may raise anything, and a report must not end by it
        return DataFacts(name, groups, skipped=f"it cannot be loaded ({type(wrong).__name__}: {wrong})")
    skipped = "" if counts is not None else "it has no classes, or too many clients to count"
    return DataFacts(name, groups, counts, data.note, skipped, names)


def class_chart(facts: DataFacts) -> Chart | None:
    """Return the map of clients and classes; None if there are no counts, or only one client, which shows no split.

    Args:
        facts: the split. Of more than 500 clients, 500 evenly spaced ones are shown.
    """
    if facts.counts is None or len(facts.counts) < 2:
        return None
    kept = even(len(facts.counts), MOST_CLIENTS)
    shown = facts.counts[kept].T
    z: Floats = np.sqrt(shown.astype(np.float64))
    told = caption("classes", len(facts.counts), int(facts.counts.sum()), len(kept))
    rows = tuple(str(c) for c in range(len(shown)))
    columns = tuple(facts.names[k] if facts.names else str(k) for k in kept.tolist())
    marks = Heat(rows, columns, z, "samples", _marks(int(shown.max())), floor=0.0, root=True)
    title = f"Who has which classes: {facts.name}"
    return Chart(f"classes-{slug(facts.name)}", "The data", title, told, marks, x="client", y="class")


def _marks(most: int) -> tuple[tuple[float, str], ...]:
    """Return up to five round numbers from 0 to ``most`` for the colour bar, each at its square root.

    The shades follow the square root of the counts, so the marks would crowd at the top if they were evenly spaced.
    """
    nice = [n * 10**e for e in range(7) for n in (1, 2, 5)]
    top = max((n for n in nice if n <= most), default=1)
    wanted = sorted({0, *(min(nice, key=lambda n: abs(n - top * part)) for part in (0.06, 0.25, 0.5)), top})
    return tuple((float(np.sqrt(n)), f"{n:,}") for n in wanted)
