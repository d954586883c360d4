"""The second wall: on a machine with several users, Flower's processes serve their own user alone.

The ports of a SuperLink (Control and Runtime API) and of a SuperNode (Runtime API) listen on loopback and ask for no
key, so that every local user could start runs or take tasks. ``python -m hanse.deployment.gate COMMAND ...``
runs one of Flower's commands with a gate around what it serves: the kernel is asked whose the connection is
(``/proc/net/tcp``, Linux). Nothing of Flower is changed; the gate is an ASGI application around Flower's.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.deployment.proxy import NEEDED

__all__ = ["ASK", "Gate", "command", "run", "user_of"]

TABLE = Path("/proc/net/tcp")
ESTABLISHED = "01"  # in other states the kernel no longer says whose a connection is
ASK = "/hanse/gate"  # answered by the gate itself: that it is there
BOUNDS = "it can read and send what that user can. A user of its own or a container bounds it (docs/flower.md)."
SERVED = {"flower-superlink": frozenset(f"/v1/fleet/{name}" for name in NEEDED), "flower-supernode": frozenset[str]()}

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


def user_of(client: tuple[str, int], server: tuple[str, int], table: str) -> int | None:
    """Return the user id of who opened an IPv4 connection on this machine from ``client`` to ``server``, given the
    text of ``/proc/net/tcp``; None for a connection that is not there.
    """
    try:
        ends = [
            f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}" for host, port in (client, server)
        ]
    except OSError:
        return None
    for line in table.splitlines()[1:]:
        _, local, remote, state, _, _, _, user, *_ = line.split()
        if [local, remote] == ends and state == ESTABLISHED:
            return int(user)
    return None


class Gate:
    """Passes requests for the paths in ``everybody`` on to ``app``, others only from this process's user (or root)."""

    def __init__(self, app: Any, everybody: Collection[str]) -> None:
        self.app, self.everybody = app, everybody

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request as an ASGI application."""
        if scope["type"] == "lifespan" or scope.get("path") in self.everybody:
            await self.app(scope, receive, send)
        elif scope.get("path") == ASK:
            await _answer(send, 200, b"here\n")
        elif scope["type"] == "http" and self._own(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await _answer(send, 403, b"this port is for the user alone who started the server\n")

    def _own(self, scope: Scope) -> bool:
        client, server = scope.get("client"), scope.get("server")
        if client is None or server is None:
            return False
        return user_of(tuple(client), tuple(server), TABLE.read_text()) in {0, os.geteuid()}


async def _answer(send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})


def command(name: str) -> list[str]:
    """Return how one of Flower's servers is started behind the gate. Raises UserError if Flower is not installed."""
    if not (Path(sys.executable).parent / name).exists():
        raise UserError(f"{name}: is not installed; 'pip install hanse[flower]'")
    return [sys.executable, "-m", "hanse.deployment.gate", name]


def run(name: str, arguments: Sequence[str]) -> None:
    """Run one of Flower's servers in this process, with the gate around what it serves if this system has a table of
    connections; say so if not. A SuperNode's first line says what it is.
    """
    import uvicorn

    if name == "flower-supernode":
        who = f"user id {os.geteuid()}"
        print(f"hanse: this node runs whatever app the SuperLink sends it, as {who}: {BOUNDS}", flush=True)
    if TABLE.exists():
        made = uvicorn.Config.__init__

        def init(self: uvicorn.Config, app: Any, *given: Any, **named: Any) -> None:
            # without uvicorn's own reading of X-Forwarded-For, with which anybody could name another connection
            made(self, Gate(app, SERVED[name]), *given, **{**named, "proxy_headers": False})

        uvicorn.Config.__init__ = init  # type: ignore[method-assign]
    else:
        print(f"no {TABLE} on this system: every user of this machine can talk to {name}", file=sys.stderr)
    [entry] = entry_points(group="console_scripts", name=name)
    sys.argv = [name, *arguments]
    entry.load()()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
