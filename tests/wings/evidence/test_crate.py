"""A run as an RO-Crate, held against the validator of RO-Crates where that is installed."""

import json
from pathlib import Path

import pytest

import hanse

rocrate = pytest.importorskip("rocrate", reason="needs the extra 'crate'")

from hanse.wings.evidence.crate import write_crate  # noqa: E402


def test_what_the_specification_demands_is_there(tmp_path: Path) -> None:
    """What roc-validator 0.13.0 had found missing."""
    crate = tmp_path / "mill"
    mechanism = {"name": "fedavg", "value": "path", "settle": "by_value"}
    data, run = {"source": "digits", "clients": 3}, {"rounds": 3, "target_accuracy": 0.01}  # it ends after one
    hanse.run(hanse.Experiment(data=data, mechanism=mechanism, run=run), out=crate)
    write_crate(crate, author="https://orcid.org/0000-0001-2345-6789", license="https://spdx.org/licenses/CC-BY-4.0")
    graph = {one["@id"]: one for one in json.loads((crate / "ro-crate-metadata.json").read_text())["@graph"]}
    root = graph["./"]
    assert "Profile" in graph[root["conformsTo"]["@id"]]["@type"]
    assert root["mentions"] == {"@id": "#fl-run"}
    assert graph["#fl-run"]["actionStatus"]["@id"].endswith("/CompletedActionStatus")
    software = [one for one in graph.values() if one["@type"] == "SoftwareApplication"]
    assert len(software) == 4
    assert all(one["version"] and one["url"].startswith("https://") for one in software)
    log = graph["transactions.jsonl"]
    assert (log["name"], log["description"]) == ("transactions.jsonl", "every posting of the books")
    assert int(log["contentSize"]) == (crate / "transactions.jsonl").stat().st_size
