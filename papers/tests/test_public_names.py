"""The papers use hanse as anybody may: by the names that its reference documents.

``docs/reference`` is the list of those names. What the papers use beyond it is below; the list only gets shorter: a
name is documented, or its use goes.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import hanse
import hanse_papers

ROOT = Path(__file__).parents[2]

UNDOCUMENTED = {
    "hanse.base.files": "write_whole",
    "hanse.base.lock": "Hold",
    "hanse.base.toml": "flat",
    "hanse.cli.options": "Workers err out resumable say",
    "hanse.data": "DataSpec build",
    "hanse.data.sources": "cache_dir is_here load split_note",
    "hanse.games.market": "Graph",
    "hanse.learning.engines": "pick_device",
    "hanse.ledger.run_ledger": "open_ledger",
    "hanse.mechanisms.ipfl": "Bills IPFL Offers Utilities graph_of market_of",
    "hanse.mechanisms.pifl": "Tiers Tokens tier_choice",
    "hanse.mechanisms.select": "PowerOfChoice",
    "hanse.mechanisms.value": "GTG",
    "hanse.mechanisms.weigh": "Centres Received sample_shares",
    "hanse.reports.audit": "audit_run",
    "hanse.reports.chart": "Bars Chart Curve Floats Graph Heat Lines Series slug to_csv",
    "hanse.reports.compare": "best_so_far effective_round improvement",
    "hanse.reports.market": "traded",
    "hanse.reports.vega": "save",
    "hanse.runs.replay": "recorded_markets",
}


def documented() -> set[str]:
    """Return the modules and names that the reference has."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    return {name for page in pages for name in re.findall(r"^::: ([\w.]+)", page.read_text(), re.MULTILINE)}


def used() -> set[tuple[str, str]]:
    """Return what the papers import of hanse, wherever in a module: module and name."""
    found = set[tuple[str, str]]()
    for file in (ROOT / "papers" / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hanse":
                found |= {(node.module or "", alias.name) for alias in node.names}
            if isinstance(node, ast.Import):
                found |= {(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "hanse"}
    return found


def test_the_papers_use_documented_names_and_no_more_undocumented_ones() -> None:
    known = documented()
    assert len(known) > 60
    beyond = {(module, name) for module, name in used() if module not in known and f"{module}.{name}" not in known}
    assert beyond == {(module, name) for module, names in UNDOCUMENTED.items() for name in names.split()}


def test_the_papers_have_the_version_of_the_hanse_that_they_came_with() -> None:
    assert hanse_papers.__version__ == hanse.__version__
