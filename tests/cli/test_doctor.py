"""``hanse doctor``, and what the package needs: no more than it imports."""

import re
import tomllib
from pathlib import Path

import pytest
from commands import invoke

from hanse.cli import doctor

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_it_says_what_each_extra_would_add(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(PROJECT["optional-dependencies"]) <= set(doctor.missing_by_extra())
    there = doctor._installed
    gone = ("flwr", "cryptography", "ray", "rocrate")
    monkeypatch.setattr(doctor, "_installed", lambda name: None if name in gone else there(name))
    missing = doctor.missing_by_extra()
    assert missing["flower"] == ["flwr", "cryptography"]
    assert missing["ray"] == ["ray"]
    assert missing["crate"] == ["rocrate"]
    assert set(missing["dev"]) == {"flwr", "cryptography", "rocrate"}


def test_it_prints_versions_engine_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mnist.npz").touch()
    monkeypatch.setenv("HANSE_DATA", str(tmp_path))
    monkeypatch.setattr("hanse.learning.native.engine.library", lambda: "no compiled part")
    result = invoke("doctor", env={"COLUMNS": "200"})
    assert result.exit_code == 0
    said = result.stdout
    assert re.search(r"hanse \d+\.\d+\.\d+ on Python 3\.\d+", said)
    assert "compiled engine" in said
    assert f"{tmp_path}" in " ".join(said.split())
    assert "here: digits (comes with scikit-learn), mnist" in said
    assert "flower: " in said
