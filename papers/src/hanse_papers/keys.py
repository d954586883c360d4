"""The keys of the papers' runs, which stay what they were when the first results were kept.

A part that an experiment's file names by its import path has that path in :data:`IDS`. Whoever moves or renames such a
part, gives it here its path of today; its id stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hanse.lab.job import Keys

IDS: Mapping[str, str] = {
    "hanse_papers.authors:AuthorsUtilities": "hanse.lab.papers.authors:AuthorsUtilities",
    "hanse_papers.authors:FullTiers": "hanse.lab.papers.authors:FullTiers",
    "hanse_papers.authors:RandomPick": "hanse.lab.papers.authors:RandomPick",
    "hanse_papers.authors:ipfl": "hanse.lab.papers.authors:ipfl",
    "hanse_papers.twins:CappedShares": "hanse.lab.papers.twins:CappedShares",
    "hanse_papers.twins:ShuffledRewards": "hanse.lab.papers.twins:ShuffledRewards",
    "hanse_papers.twins:ShuffledValues": "hanse.lab.papers.twins:ShuffledValues",
    "hanse_papers.twins:ipfl_at_random": "hanse.lab.papers.twins:ipfl_at_random",
}
"""The ids of the papers' parts, by the paths of today."""


def as_first_written(sections: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an experiment as it was written when PI-FL had the paper's settings as its defaults.

    So ``judges = "all"`` of first-order values at clients and ``invited = "earn"`` are left out, and the defaults of
    today, which would look the same, are named.

    Args:
        sections: the experiment as nested plain values.
    """
    mechanism = sections.get("mechanism")
    table = dict(mechanism) if isinstance(mechanism, Mapping) else {"name": mechanism}
    pifl, said = table.get("name") == "pifl", table.get("value", {})
    if pifl and (invited := table.pop("invited", "unpaid")) != "earn":
        table["invited"] = invited
    value = dict(said) if isinstance(said, Mapping) else {"name": said}
    if value.get("name", "first_order_clients" if pifl else "") == "first_order_clients":
        judges = value.pop("judges", "auto")
        value |= {} if judges == "all" else {"judges": judges}
        table = {key: option for key, option in table.items() if key != "value"} | ({"value": value} if value else {})
    elif not pifl:
        return sections
    return {**sections, "mechanism": table}


KEYS = Keys(IDS, as_first_written)
"""How the key of every run of the papers is made: for :func:`hanse.lab.job.seeded`, and for the files of results."""
