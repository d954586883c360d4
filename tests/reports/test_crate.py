"""A run as an RO-Crate, held against the validator of RO-Crates where that is installed."""

import io
import json
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hanse

rocrate = pytest.importorskip("rocrate", reason="needs the extra 'crate'")

from hanse.reports.crate import write_crate  # noqa: E402

CONTEXT = "https://w3id.org/ro/crate/1.3/context"


class Answer(io.BytesIO):
    headers: Message
    status = code = 200

    def geturl(self) -> str:
        return CONTEXT

    def info(self) -> Message:
        return self.headers


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
    assert int(log["contentSize"]) == (crate / "transactions.jsonl").stat().st_size


def test_the_validator_of_ro_crates_finds_nothing(crate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its package (roc-validator) wants an older rich than hanse, so it has to be installed beside; no network."""
    pytest.importorskip("rocrate_validator", reason="needs roc-validator")
    from rdflib import parser
    from rocrate_validator import models, services
    from rocrate_validator.utils import http

    terms = (Path(rocrate.__file__).parent / "data" / "ro-crate.jsonld").read_bytes()

    def answered(request: Any, *_: Any, **__: Any) -> Any:
        assert request.full_url == CONTEXT
        found = Answer(terms)
        found.headers = Message()
        found.headers["Content-Type"] = "application/ld+json"
        return found

    def got(_: Any, url: str, **__: Any) -> Any:
        assert url == CONTEXT
        return SimpleNamespace(
            status_code=200, headers={"Content-Type": "application/ld+json"}, json=lambda: json.loads(terms)
        )

    monkeypatch.setattr(parser, "_urlopen", answered)
    monkeypatch.setattr(http.HttpRequester, "get", got, raising=False)
    settings = services.ValidationSettings(
        rocrate_uri=str(crate), profile_identifier="ro-crate-1.3", requirement_severity=models.Severity.REQUIRED
    )
    assert [str(issue) for issue in services.validate(settings).get_issues()] == []
