"""Processes by pid, certificates and keys, the warm keeper: each alone."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from deployed import until

from hanse.wings.operate import warm_process
from hanse.wings.operate.processes import Processes, end
from hanse.wings.operate.warm_process import COMMAND, SOCKET, link


def test_children_do_not_outlive_a_head_that_ends_at_once(tmp_path: Path, has_ended: Callable[[int], bool]) -> None:
    made = Processes(tmp_path / "logs")
    stubborn = "['sh', '-c', 'trap \"\" TERM; sleep 600 & wait; wait']"
    script = f"import subprocess; c = subprocess.Popen({stubborn}); print(c.pid, flush=True); c.wait()"
    made.start("one", [sys.executable, "-c", script], dict(os.environ), tmp_path)
    while not made.log("one").endswith("\n"):
        pass
    assert made.stop("one") == []
    assert has_ended(int(made.log("one")))


def test_another_process_with_the_number_is_left_alone(tmp_path: Path) -> None:
    made = Processes(tmp_path)
    (tmp_path / "one.process").write_text(f"{os.getpid()} Thu Jan  1 00:00:00 1970\n")
    assert made.pid("one") is None
    assert made.stop("one", kill=True) == ["one"]  # this process lives


@pytest.mark.slow
def test_a_message_that_waits_ends_soon_after_its_node() -> None:
    """Flower's own watch interrupts the main thread, which heeds nothing while it waits."""
    code = (
        "import functools, sys\n"
        "from flwr.supercore.app_utils import start_parent_process_monitor\n"
        "from hanse.flower import client, parent_process\n"
        "client.end_with_parent = functools.partial(parent_process.end_with_parent, grace_s=0.1)\n"
        "start_parent_process_monitor(int(sys.argv[-1]))\n"
        "client.client_app(lambda context: None)\n"
        "print('waits', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(["sleep", "600"]) as node:
        words = [sys.executable, "-c", code, "--parent-pid", str(node.pid)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as message:
            try:
                assert message.stdout.readline() == "waits\n"
                node.kill()
                node.wait()
                assert message.wait(60) == 1
            finally:
                node.kill()
                message.kill()


@pytest.mark.parametrize("keeper", ["stands still", "dies", "is not there"])
def test_nobody_waits_for_a_keeper_that(keeper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    (tmp_path / COMMAND).write_text("#!/bin/sh\necho cold $1")
    (tmp_path / COMMAND).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(warm_process, "WAIT_S", 0.5 if keeper == "stands still" else 60.0)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "keeper"))
        server.listen()
        command = [link(tmp_path / "warm") / COMMAND, "--help"]
        env = {SOCKET: str(tmp_path / ("nobody" if keeper == "is not there" else "keeper"))}
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as message:
            if keeper == "dies":
                caller, _ = server.accept()
                with caller, caller.makefile("rb") as lines:
                    assert lines.readline().endswith(b"\n")
            assert message.stdout is not None
            assert message.stderr is not None
            assert message.stderr.readline().endswith("starting cold\n")
            assert message.stdout.readline() == "cold --help\n"


def test_what_a_process_started_in_a_group_of_its_own_ends_with_it_too(tmp_path: Path) -> None:
    """The process of a run outlived ``hanse network down``."""
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    processes = Processes(tmp_path)
    processes.start("superlink", [sys.executable, "-c", program], dict(os.environ), tmp_path)
    while not processes.log("superlink").strip():
        assert processes.pid("superlink") is not None
    child = int(processes.log("superlink"))
    below = processes.below("superlink")
    assert list(below) == [child]
    end({child: "Thu Jan  1 00:00:00 1970"})  # another process that has the pid now is left alone
    assert list(processes.below("superlink")) == [child]
    assert processes.stop("superlink") == []
    end(below)
    until("the end of the group", lambda: stat(child)[:1] in ("", "Z"), 30.0)


def stat(pid: int) -> str:
    """Return the state of a process as ``ps`` shows it; nothing if it is gone."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()
