"""A run as an RO-Crate."""

import json
from pathlib import Path

import pytest

import hanse
from hanse.wings.evidence.crate import write_crate


@pytest.fixture(scope="module")
def crate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("crate") / "mill"
    mechanism = {"name": "fedavg", "value": "path", "settle": "by_value"}
    data = {"source": "digits", "clients": 3}
    hanse.run(hanse.Experiment(data=data, mechanism=mechanism, run={"rounds": 1}), out=folder)
    write_crate(folder, author="https://orcid.org/0000-0001-2345-6789", license="https://spdx.org/licenses/CC-BY-4.0")
    return folder


def test_what_the_specification_demands_is_there(crate: Path) -> None:
    """What roc-validator 0.13.0 had found missing."""
    graph = {one["@id"]: one for one in json.loads((crate / "ro-crate-metadata.json").read_text())["@graph"]}
    root = graph["./"]
    assert "Profile" in graph[root["conformsTo"]["@id"]]["@type"]
    assert root["mentions"] == {"@id": "#fl-run"}
    software = [one for one in graph.values() if one["@type"] == "SoftwareApplication"]
    assert len(software) == 4
    assert all(one["version"] and one["url"].startswith("https://") for one in software)
    log = graph["transactions.jsonl"]
    assert (log["name"], log["description"]) == ("transactions.jsonl", "every posting of the books")
    action = graph["#fl-run"]
    named = [root["license"], root["author"], action["agent"], *root["hasPart"], *action["object"], *action["result"]]
    assert {one["@id"] for one in [*named, *action["instrument"]]} <= graph.keys()
    assert {graph[f"#value-client-{c}"]["value"] for c in range(3)} == {row.value for row in hanse.facts(crate).clients}
    assert int(log["contentSize"]) == (crate / "transactions.jsonl").stat().st_size
