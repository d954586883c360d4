"""Processes by pid file, certificates and keys, the warm keeper: each alone."""

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from deployed import until

pytest.importorskip("cryptography", reason="needs the extra 'flower'")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from hanse.wings.operate.certificates import make_certificates, make_node_key
from hanse.wings.operate.processes import Processes, end
from hanse.wings.operate.warm_process import COMMAND, SOCKET, link


@pytest.mark.slow
def test_what_was_started_is_stopped_by_pid_with_its_children(tmp_path: Path, has_ended: Callable[[int], bool]) -> None:
    made = Processes(tmp_path / "logs")
    script = "import subprocess, sys; c = subprocess.Popen(['sleep', '600']); print(c.pid, flush=True); c.wait()"
    pid = made.start("one", [sys.executable, "-c", script], dict(os.environ), tmp_path)
    assert made.pid("one") == pid
    assert made.names() == ["one"]
    while not made.log("one").endswith("\n"):
        pass
    child = int(made.log("one"))
    assert made.stop("one", kill=True) == []
    assert (made.pid("one"), made.names()) == (None, [])
    assert has_ended(child)
    assert made.stop("one") == ["one"]


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
    (tmp_path / "one.pid").write_text(f"{os.getpid()} Thu Jan  1 00:00:00 1970\n")
    assert made.pid("one") is None
    assert made.stop("one", kill=True) == ["one"]  # this process lives


def test_certificates_are_trusted_by_their_ca_for_this_machine_only(tmp_path: Path) -> None:
    make_certificates(tmp_path, "trial")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    for name, trusted in (("localhost", True), ("elsewhere.example", False)):
        client = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        here, there = socket.socketpair()
        answering = threading.Thread(target=_shake_hands, args=(server, there))
        answering.start()
        if trusted:
            client.wrap_socket(here, server_hostname=name).close()
        else:
            with pytest.raises(ssl.SSLCertVerificationError):
                client.wrap_socket(here, server_hostname=name)
        here.close()
        answering.join()
    assert (tmp_path / "ca.key").stat().st_mode & 0o077 == 0
    assert x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes()).subject.rfc4514_string() == "CN=trial CA"


def _shake_hands(server: ssl.SSLContext, there: socket.socket) -> None:
    try:
        server.wrap_socket(there, server_side=True).close()
    except (ssl.SSLError, OSError):
        there.close()


def test_a_node_key_is_what_flower_reads(tmp_path: Path) -> None:
    make_node_key(tmp_path / "node0")
    private = load_ssh_private_key((tmp_path / "node0").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "node0.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key() == public
    assert (tmp_path / "node0").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_message_that_waits_ends_soon_after_its_node() -> None:
    """Flower's own watch interrupts the main thread, which heeds nothing while it waits."""
    pytest.importorskip("flwr", reason="needs the extra 'flower'")
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


@pytest.mark.slow
def test_without_a_keeper_the_command_says_so_and_starts_flowers_own(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs the extra 'flower'")
    command = link(tmp_path / "warm") / COMMAND
    env = {**os.environ, SOCKET: str(tmp_path / "nobody"), "FLWR_DISABLE_UPDATE_CHECK": "1"}
    done = subprocess.run([command, "--help"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "starting cold" in done.stderr
    assert "--runtime-api-address" in done.stdout


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
