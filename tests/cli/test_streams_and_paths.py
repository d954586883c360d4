"""Full disks, broken pipes, closed streams and impossible paths: a line and an exit code, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hanse.base.errors import MachineError, UserError, gated, of_file


def _hanse(words: str, tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a shell's command line in which $H is hanse."""
    call = f'set -o pipefail; H="{sys.executable} -m hanse"; {words}'
    return subprocess.run(
        ["bash", "-c", call], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **env}, check=False
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("$H list > /dev/full", 1, "no space"),
        ("$H list partitions | true", 1, ""),
        ("$H list partitions >&-", 0, ""),
        ("$H run exp.toml -o \"$(printf 'a%.0s' $(seq 300))\"", 2, "too long"),
        ("$H run exp.toml -o /dev/null/x", 2, "/dev/null/x"),
        ("$H run /dev/zero", 2, "MiB"),
    ],
)
def test_a_stream_or_path_that_fails_is_a_line_with_its_exit_code(
    words: str, code: int, said: str, tmp_path: Path
) -> None:
    (tmp_path / "exp.toml").write_text('mechanism = "fedavg"\n')
    done = _hanse(words, tmp_path)
    assert done.returncode == code or (words.endswith("true") and done.returncode == 0)  # it may have printed all
    assert "Traceback" not in done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) <= 1


def test_an_error_of_the_users_code_is_shown_whole_on_demand(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def net(shape, classes):\n    raise OSError('weights are on another disk')\n")
    (tmp_path / "exp.toml").write_text('mechanism = "fedavg"\nmodel = "mine:net"\ndata.clients = 3\n')
    done = _hanse("$H run exp.toml", tmp_path)
    assert done.returncode == 2
    assert "'mine:net'" in done.stderr
    assert "another disk" in done.stderr
    assert "HANSE_TRACEBACK" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    whole = _hanse("$H run exp.toml", tmp_path, HANSE_TRACEBACK="1")
    assert "Traceback" in whole.stderr
    assert "mine.py" in whole.stderr


def test_the_gate_passes_errors_of_hanse_and_a_lack_of_memory() -> None:
    for wrong in (UserError("a"), MachineError("b"), MemoryError(), RuntimeError("cannot allocate memory")):
        with pytest.raises(type(wrong)) as caught, gated("what"):
            raise wrong
        assert caught.value is wrong
    with pytest.raises(UserError) as caught, gated("what", "do this"):
        raise KeyError("k")
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.lines[0].startswith("what: KeyError")
    assert caught.value.lines[0].endswith("do this")


def test_who_must_act_follows_from_the_systems_error() -> None:
    assert isinstance(of_file(OSError(36, "File name too long", "x" * 300)), UserError)
    assert isinstance(of_file(OSError(28, "No space left on device", "x")), MachineError)
    assert isinstance(of_file(OSError(28, "No space left on device")), MachineError)
