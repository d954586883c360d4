"""Every row of the map of the papers' sentences names claims that there are, or says why not; no claim is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hanse_papers.claims.claim import load_claims

MAP = Path(__file__).parents[2] / "docs" / "claims-map.md"
TITLES = {"greedyfed": "GreedyFed", "gtflat": "GTFLAT", "ipfl": "iPFL", "pifl": "PI-FL"}


@pytest.mark.parametrize("paper", TITLES)
def test_the_map_and_the_claims_name_each_other(paper: str) -> None:
    section = MAP.read_text().split(f"## {TITLES[paper]}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"][
        2:
    ]
    assert len(rows) >= 10
    assert all(len(row) == 3 and all(row) for row in rows)
    claims = [claim for claim in load_claims(paper) if claim.role == "claim"]
    named = {
        name for *_, told in rows for name in re.findall("`([^`]+)`", told) if "/" not in name and "hanse" not in name
    }
    assert named <= {claim.name for claim in claims}
    assert {claim.name for claim in claims if claim.where != "ours"} <= named
    assert all("`" in told or told.startswith("why not: ") or told == "the rows above" for *_, told in rows)
