"""Full disks, broken pipes, closed streams and impossible paths: a line and an exit code, never a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_hanse
from rotation import rotating

from hanse.base.errors import MachineError, UserError, gated, of_file

CASES = [
    ("$H list > /dev/full", 1, "no space"),
    ("$H list words | true", 141, ""),
    ("$H ledger --help | true", 141, ""),
    ("$H list partitions >&-", 0, ""),
    ("$H run /dev/zero", 2, "MiB"),
    ("ulimit -f 1; $H new harvest || { code=$?; test ! -e harvest && exit $code; }", 1, "harvest/"),
    ("mkdir gone; cd gone; rmdir ../gone; $H list", 2, "current folder"),
    ("mkdir gone; cd gone; rmdir ../gone; $H ledger verify .", 2, "current folder"),
]


@pytest.mark.parametrize("case", rotating(CASES, 2))
def test_a_stream_or_path_that_fails_is_a_line_with_its_exit_code(case: tuple[str, int, str], tmp_path: Path) -> None:
    words, code, said = case
    (tmp_path / "exp.toml").write_text('mechanism = "fedavg"\n')
    call = f'set -o pipefail; H="{sys.executable} -m hanse"; {words}'
    done = subprocess.run(["bash", "-c", call], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code or (words.endswith("true") and done.returncode == 0)  # it may have printed all
    assert "Traceback" not in done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) <= 1


def test_an_error_of_the_users_code_is_shown_whole_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def net(shape, classes):\n    raise OSError('weights are on another disk')\n")
    (tmp_path / "exp.toml").write_text('mechanism = "fedavg"\nmodel = "mine:net"\ndata.clients = 3\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code, _, said = run_hanse("run", "exp.toml")
    assert (code, said.count("\n")) == (2, 1)
    assert all(word in said for word in ("'mine:net'", "another disk", "HANSE_TRACEBACK"))
    monkeypatch.setenv("HANSE_TRACEBACK", "1")
    with pytest.raises(UserError) as whole:  # of which Python prints all
        run_hanse("run", "exp.toml")
    assert isinstance(whole.value.__cause__, OSError)


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
