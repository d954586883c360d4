"""nginx in front of the live page: TLS, slow clients, and request limits.

Others never reach the page directly. ``hanse serve`` starts nginx with the configuration ``nginx.conf.j2``, and the
page itself listens on a socket in a folder that only its user can enter.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from jinja2 import StrictUndefined, Template

from hanse.base.errors import UserError
from hanse.wings.operate.server_access import nginx

TEMPLATE = Path(__file__).with_name("nginx.conf.j2")
WAIT_S = 10  # seconds that a connection may take for a request's headers, between two pieces of a form, or idle
START_S = 30.0  # seconds that nginx may take to listen


@contextlib.contextmanager
def behind(
    host: str, port: int, cert: Path | None, cert_key: Path | None, wait_s: int = WAIT_S
) -> Iterator[socket.socket]:
    """Run nginx during a block, and return the socket on which the page is to listen.

    Args:
        host: the address that nginx listens on.
        port: nginx's port, which must be free.
        cert: the TLS certificate (PEM). None: plain HTTP.
        cert_key: the certificate's private key.
        wait_s: how many seconds nginx waits for a slow client.

    Raises:
        UserError: nginx is not installed, or does not start.
    """
    command = nginx()
    if command is None:
        raise UserError(
            "nginx: is not installed; a page that others can reach, or with a certificate, is served by it: "
            "TLS, slow clients and limits are its work"
        )
    with tempfile.TemporaryDirectory(prefix="hanse-") as made, contextlib.ExitStack() as stack:
        folder = Path(made)  # only this user can enter it
        page = stack.enter_context(socket.socket(socket.AF_UNIX))
        page.bind(str(folder / "page"))
        page.listen(1024)
        said = Template(TEMPLATE.read_text(), undefined=StrictUndefined, keep_trailing_newline=True).render(
            listen=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            socket=folder / "page", root=os.geteuid() == 0, wait=wait_s,
            cert=_quoted(cert), cert_key=_quoted(cert_key),
        )  # fmt: skip
        (folder / "nginx.conf").write_text(said)
        words = [command, "-p", made, "-c", "nginx.conf"]
        log = stack.enter_context((folder / "log").open("w+"))
        proxy = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log, preexec_fn=_end_with_parent)
        stack.callback(_ended, proxy)
        _wait(proxy, host, port, folder / "log")
        yield page


def _quoted(path: Path | None) -> str:
    """Return a path as a word of nginx's configuration; "" for none. Raises UserError if that is impossible."""
    if path is None:
        return ""
    word = str(path.absolute())
    if any(c in word for c in '"\\$\n{};'):
        raise UserError(f"{path}: must have no quotes, '$', ';', braces or line breaks in its path")
    return f'"{word}"'


def _end_with_parent() -> None:
    """Let the kernel end nginx if hanse is killed. Only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1: PR_SET_PDEATHSIG


def _ended(proxy: subprocess.Popen[bytes]) -> None:
    """End nginx and wait for it."""
    proxy.terminate()
    proxy.wait()


def _wait(proxy: subprocess.Popen[bytes], host: str, port: int, log: Path) -> None:
    """Wait until nginx listens. Raises UserError with its own words if it ends instead."""
    reached, end = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), time.monotonic() + START_S
    while proxy.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection((reached, port), 1):
            return
        time.sleep(0.02)
    said = " ".join(log.read_text(errors="replace").split())[-300:] or "it does not listen"
    raise UserError(f"nginx: did not start: {said}")
