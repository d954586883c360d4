"""The command line as a module, where the command itself is not on the path."""

import subprocess
import sys


def test_python_m_hanse_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "hanse", "list"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "greedyfed" in done.stdout
