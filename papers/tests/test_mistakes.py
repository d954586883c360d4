"""Mistakes in the papers' commands are told in a line, and a command without the package says how to get it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_hanse

import hanse_papers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "exp.toml").write_text('mechanism = "fedavg"')
    return tmp_path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("reproduce greedyfed table1 --scale big", "--scale big"), ("reproduce greedyfed table1 --seeds 0", "--seeds"),
        ("reproduce greedyfed table1 --only no", "--only no"), ("reproduce gtflat example1 --seeds 9999", "most 1000"),
        ("reproduce gtflat example1 --out exp.toml", "--out exp.toml"),
        ("reproduce gtflat table2 --out exp.toml/x", "exp.toml is not a folder"),
        ("reproduce gtflat table2 --out /proc/results", "/proc"),
    ],
)  # fmt: skip
def test_mistakes_name_the_field_the_value_and_what_is_allowed(
    folder: Path, words: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HANSE_DATA", raising=False)  # what is allowed depends on the data that are here
    code, _, said = run_hanse(*words.split())
    assert (code, said.count("\n")) == (2, 1), said
    assert said.startswith("hanse: ")
    assert expected in said


WITHOUT = """
import sys
from importlib import metadata
every = metadata.entry_points
metadata.entry_points = lambda **what: [one for one in every(**what) if not one.value.startswith("hanse_papers")]
sys.modules["hanse_papers"] = None  # importing it fails
from hanse.cli import main
main()
"""


def test_without_the_package_its_command_says_how_to_get_it() -> None:
    words = [sys.executable, "-c", WITHOUT, "reproduce", "gtflat", "--scale", "smoke"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "hanse-papers" in done.stderr


@pytest.mark.by_turns(3)
@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("paper.toml", b"citation", b"[[", "gtflat/paper.toml"),
        ("paper.toml", b"citation", b"\xff", "gtflat/paper.toml"),
        ("paper.toml", b"citation", b"cite", "gtflat/paper.toml"),
        ("claims.toml", b"[defaults]", b"\xff", "gtflat/claims.toml"),
        ("anew.toml", b"title", b"heading", "gtflat/anew.toml"),
        ("anew.toml", b'like = "twins"', b'like = "anew"', "gtflat/anew.toml"),
        ("anew.toml", b'like = "twins"', b'like = "nowhere"', "gtflat/nowhere.toml"),
        ("anew.toml", b"rows = [", b'rows = ["nobody",', "gtflat/anew.toml"),
        ("anew.toml", b"rows = [", b"rows = [3,", "gtflat/anew.toml"),
    ],
)
def test_whatever_a_papers_file_has_wrong_is_one_line_with_its_name(
    file: str, old: bytes, new: bytes, named: str, tmp_path: Path
) -> None:
    shutil.copytree(Path(hanse_papers.__file__).parent, tmp_path / "hanse_papers")
    damaged = tmp_path / "hanse_papers" / "gtflat" / file
    assert old in damaged.read_bytes()
    damaged.write_bytes(damaged.read_bytes().replace(old, new, 1))
    words = [sys.executable, "-m", "hanse", "reproduce", "gtflat", "--plan", "--out", str(tmp_path / "none")]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"hanse: {named}: ")
    assert done.stderr.count("\n") == 1, done.stderr
