"""The wall before a SuperLink: nginx, which passes on what a SuperNode needs, and nothing else.

Flower 1.41 serves three APIs on one port: Fleet (SuperNodes, each request signed with a node's key), Control (``flwr
run``, ``supernode register``, ...) and Runtime (the server app's own). The last two ask nobody for a key, so whoever
reaches the port can run code on the server and on every node. The SuperLink therefore listens on loopback.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from hanse.base.errors import UserError
from hanse.federation.secret import private_folder

__all__ = ["NEEDED", "configure", "nginx", "split", "wait_for"]

# below /v1/fleet/; 'register-node' and 'unregister-node' are for nodes without a key of their own
NEEDED = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
    "pull-object", "push-object", "confirm-message-received",
)  # fmt: skip
MOST = "16m"  # bytes of one request
CONNECTIONS = 256  # from one address at once, at least; a node holds up to four
PLACES = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin")  # not on everybody's PATH
TEMPLATE = Path(__file__).parent / "nginx.conf.j2"


def nginx() -> str | None:
    """Return the path of nginx, or None if it is not installed."""
    return shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", ""), *PLACES)))


def split(address: str, field: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``. Raises UserError, which names the ``field``."""
    host, _, port = address.rpartition(":")
    if not re.fullmatch(r"[\w.-]+|\[[0-9a-fA-F:.]+\]", host) or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UserError(f"{field}: {address!r}: must be HOST:PORT, such as 0.0.0.0:9092")
    return host, int(port)


def configure(folder: Path, listen: str, superlink: str, nodes: int = 0) -> list[str]:
    """Write ``nginx.conf`` into ``folder`` for a proxy at ``listen`` before ``superlink`` (both HOST:PORT), which as
    many as ``nodes`` reach from one address; return the command that runs it. Certificates are in ``../certs``:
    ``outside.crt``, ``outside.key`` to show, ``ca.crt`` for the SuperLink's.

    Raises UserError if nginx is not installed.
    """
    from jinja2 import StrictUndefined, Template

    split(listen, "--listen")
    command = nginx()
    if command is None:
        raise UserError("nginx: is not installed; it lets SuperNodes through to the SuperLink, and nothing else")
    private_folder(folder)
    page = Template(TEMPLATE.read_text(), undefined=StrictUndefined, keep_trailing_newline=True)
    connections = max(CONNECTIONS, 8 * nodes)
    said = page.render(listen=listen, superlink=superlink, needed=NEEDED, most=MOST, connections=connections)
    (folder / "nginx.conf").write_text(said)
    return [command, "-p", str(folder), "-c", "nginx.conf"]


def wait_for(url: str, status: int, alive: Callable[[], bool], patience_s: float = 120.0) -> str | None:
    """Wait until a server answers at ``url``. Return None if it does with ``status``, else what is wrong."""
    anybody = ssl.create_default_context()  # nothing is told to whoever answers
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=anybody))
    end = time.monotonic() + patience_s
    while True:
        try:
            with opener.open(url, timeout=5) as answer:
                found = int(answer.status)
        except urllib.error.HTTPError as answer:
            found = answer.code
        except OSError as wrong:
            if not alive() or time.monotonic() > end:
                return f"does not answer ({wrong})"
            time.sleep(0.1)
            continue
        return None if found == status else f"answers {url} with {found} where {status} is expected"
