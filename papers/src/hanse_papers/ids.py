"""The ids of the papers' parts, by which the keys of kept runs stay what they were.

A part that an experiment's file names by its import path has an entry here. Whoever moves or renames such a part, gives
the entry its path of today; the id stays. A new part's id is its first path.
"""

from __future__ import annotations

from collections.abc import Mapping

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
"""Ids by the import paths of today: for :func:`hanse.lab.job.seeded`, and for the files of results."""
