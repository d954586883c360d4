"""Mistakes in the papers' commands are told in a line, and a command without the package says how to get it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hanse_papers
from hanse.base.errors import UserError
from hanse.cli import main


def hanse_says(args: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["hanse", *args])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0), capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "exp.toml").write_text('mechanism = "fedavg"')
    return tmp_path


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["reproduce", "greedyfed", "table1", "--scale", "big"], "--scale big: no such scale; allowed: paper, small"),
        (["reproduce", "greedyfed", "table1", "--seeds", "0"], "--seeds 0: must be at least 1"),
        (["reproduce", "greedyfed", "table1", "--only", "no"], "--only no: table1 has no such setting; did you mean"),
        (["reproduce", "gtflat", "example1", "--only", " ,"], "--only: there are no words in it"),
        (["reproduce", "gtflat", "example1", "--seeds", "1000000"], "--seeds 1000000: must be at most 1000"),
        (["reproduce", "gtflat", "example1", "--out", "exp.toml"], "--out exp.toml: "),
        (["reproduce", "gtflat", "table2", "--out", "exp.toml/x"], "exp.toml is not a folder"),
        (["reproduce", "gtflat", "table2", "--out", "x" * 300], "xxx: File name too long"),
        (
            ["reproduce", "gtflat", "example1", "--out", ""],
            "the word after --out: is empty; must be a word or left out",
        ),
        (["theory", "pifl", "--clients", "0"], "Invalid value for '--clients': 0 is not in the range x>=2"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_mistakes_name_the_field_the_value_and_what_is_allowed(
    folder: Path,
    args: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HANSE_DATA", raising=False)  # what is allowed depends on the data that are here
    code, said = hanse_says(args, capsys, monkeypatch)
    assert code == 2
    assert said.count("\n") == 1, said
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


@pytest.mark.parametrize("command", ["reproduce", "theory"])
def test_without_the_package_a_command_says_how_to_get_it(command: str) -> None:
    words = [sys.executable, "-c", WITHOUT, command, "gtflat", "--scale", "smoke"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "hanse-papers" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="a folder where nobody may write, not even root")
def test_reproduce_says_at_once_that_nothing_can_be_written(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    code, said = hanse_says(["reproduce", "gtflat", "table2", "--out", "/proc/results"], capsys, monkeypatch)
    assert (code, said) == (
        2,
        "hanse: --out /proc/results: nothing can be written to /proc (No such file or directory)\n",
    )


def test_reproduce_on_a_full_disk_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.chdir(folder)
    monkeypatch.setattr("hanse_papers.show.write_whole", full)
    code, said = hanse_says(["reproduce", "gtflat", "example1"], capsys, monkeypatch)
    assert code == 1
    assert said.endswith("gtflat: cannot be written: No space left on device; finished runs are kept\n")


def test_reproduce_of_what_is_counted_on_data_that_are_not_here_writes_no_empty_table(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(source: str) -> None:
        raise UserError(f"source '{source}' could not be downloaded")

    monkeypatch.chdir(folder)
    monkeypatch.setattr("hanse_papers.computed.is_here", lambda source: False)
    monkeypatch.setattr("hanse.data.sources.load", away)
    code, said = hanse_says(["reproduce", "ipfl", "figure6", "--scale", "paper"], capsys, monkeypatch)
    assert (code, said) == (2, "hanse: source 'cifar10' could not be downloaded\n")
    assert not (folder / "runs").exists()


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
