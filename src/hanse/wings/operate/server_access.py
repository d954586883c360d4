"""Controls who reaches Flower's servers: a proxy for other machines, and gates on this one.

Flower 1.41 serves three APIs on one port. Fleet is for SuperNodes, and each of its requests is signed with a node's
key. Control (``flwr run``, ``supernode register``, ...) and Runtime (the server app's own) ask nobody for a key.
Whoever reaches their port can therefore run code on the server and on every node. The SuperLink therefore listens on
loopback, and nginx (:func:`configure`) passes on only the requests that a SuperNode needs.

On a machine with several users loopback is not enough: every local user could start runs on a SuperLink, or take the
tasks of a SuperNode. ``python -m hanse.wings.operate.server_access COMMAND ...`` therefore runs Flower's command with
:class:`UserGate` around what it serves. The gate asks the kernel which user opened a connection (``/proc/net/tcp``,
Linux only). Nothing in Flower is changed: the gate is an ASGI application around Flower's.

Behind both, Flower accepts any message that a node with an admitted key pushes. A message without
``reply_to_message_id`` is stored as an instruction to the node that it names. :class:`ReplyGate` therefore lets only
replies through, from the node that Flower has recognised by its key.

A SuperNode runs whatever app its SuperLink sends. :func:`gate_apps` lets it run only what its owner has agreed to.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import AGREEMENTS, home_of, private_folder
from hanse.wings.operate.clocks import ClockGate, answer, name_refusals, watch_certificates

# The requests below /v1/fleet/ that the proxy passes on.
# 'register-node' and 'unregister-node' are missing: they are for nodes without a key of their own.
NEEDED = (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
    "pull-object", "push-object", "confirm-message-received",
)  # fmt: skip
MOST = "8m"  # the most bytes of a pushed object, as nginx writes it: Flower cuts arrays into pieces of 5 MiB
CONNECTIONS = 32  # requests from one address at once: at least so many; a node has up to six, and tries again after 503
PUSHES = 8  # of these, objects at once, which the SuperLink parses before it sees who sent them; a node pushes two
PLACES = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin")  # where nginx may lie without being on the PATH
TEMPLATE = Path(__file__).parent / "nginx.conf.j2"

TABLE = Path("/proc/net/tcp")
REMEMBERED = 100  # connections that a gate need not look up again
ESTABLISHED = "01"  # the kernel's code of the one state in which it says whose a connection is
PUSH = "/v1/fleet/push-messages"  # where nodes bring their replies
LARGEST_PUSH = 16 << 20  # bytes of such a request, which holds no arrays; the proxy passes no more either
ASK = "/hanse/gate"  # the gate answers this path itself, so that it can be seen that it stands
BOUNDS = "it can read and send what that user can. A user of its own or a container limits it (docs/flower.md)."
# the paths that everybody may ask for, by command: SuperNodes of other users on this machine reach the Fleet API
SERVED = {"flower-superlink": frozenset(f"/v1/fleet/{name}" for name in NEEDED), "flower-supernode": frozenset[str]()}

TELL_S, LOOK_S = 5.0, 0.1  # seconds between two lines on what is waited for, and between two looks whether it is there

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


def user_of(client: tuple[str, int], server: tuple[str, int], table: str) -> int | None:
    """Return the id of the user who opened an IPv4 connection on this machine.

    Args:
        client: address and port of the end that opened the connection.
        server: address and port of the other end.
        table: the text of ``/proc/net/tcp``, in which addresses are hexadecimal in the machine's byte order.

    Returns:
        The user id, or None if there is no such established connection.

    Examples:
        A table with one connection from port 40000 to port 9092 of this machine, opened by user 1000:

        >>> row = "0: 0100007F:9C40 0100007F:2384 01 00000000:00000000 00:00000000 00000000 1000 0 12345"
        >>> user_of(("127.0.0.1", 40000), ("127.0.0.1", 9092), "header" + chr(10) + row)
        1000
    """
    try:
        ends = [
            f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}" for host, port in (client, server)
        ]
    except OSError:
        return None
    rows = (line.split() for line in table.splitlines()[1:])  # a number, both ends, the state, .., the user, ..
    return next((int(row[7]) for row in rows if row[1:4] == [*ends, ESTABLISHED]), None)


class UserGate:
    """An ASGI application that answers only this process's own user, or root.

    The kernel takes 5 ms to list its connections, and each of Flower's processes asks several times a second. A
    connection is therefore looked up once. uvicorn gives all requests of one connection the same tuple ``client``, and
    another one the next, with the same port too: connections are told apart by that object, not by the port.

    Args:
        app: the application behind the gate.
        everybody: the paths that all users may ask for.
    """

    def __init__(self, app: Any, everybody: Collection[str]) -> None:
        self.app, self.everybody = app, everybody
        self._own_ones = deque[object](maxlen=REMEMBERED)  # the latest connections of this user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, answer it with 403, or answer the question whether the gate is there."""
        if scope["type"] == "lifespan" or scope.get("path") in self.everybody:
            await self.app(scope, receive, send)
        elif scope.get("path") == ASK:
            await answer(send, 200, b"here\n")
        elif scope["type"] == "http" and self._own(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await answer(send, 403, b"this port is for the user alone who started the server\n")

    def _own(self, scope: Scope) -> bool:
        """Say whether this process's user or root has opened the connection."""
        client, server = scope.get("client"), scope.get("server")
        # without both ends the owner cannot be found, so the request does not pass
        if client is None or server is None:
            return False
        if any(one is client for one in self._own_ones):
            return True
        own = user_of(tuple(client), tuple(server), TABLE.read_text()) in {0, os.geteuid()}
        if own:
            self._own_ones.append(client)
        return own


class ReplyGate:
    """An ASGI application that lets nodes push replies, but no instructions.

    Args:
        app: the SuperLink. It checks that a request is signed by the node that the request names.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 403 (413 if it is too large) and say so in the server's log."""
        if scope["type"] != "http" or scope.get("path") != PUSH:
            await self.app(scope, receive, send)
            return
        body, more = bytearray(), True
        while more:
            part = await receive()
            if part["type"] != "http.request":  # the node has hung up
                return
            body += part.get("body", b"")
            more = bool(part.get("more_body"))
            if len(body) > LARGEST_PUSH:
                await answer(send, 413, b"too large\n")
                return
        if (wrong := not_replies(bytes(body))) is not None:
            # who it was is not known: Flower looks at a request's signature only after this
            print(f"hanse: refused: {wrong}; nodes push replies, each in its own name", flush=True)
            await answer(send, 403, b"a node may push replies in its own name, and nothing else\n")
            return
        whole = iter([{"type": "http.request", "body": bytes(body), "more_body": False}])

        async def again() -> Any:
            """Return the request's body, which has been read, and then what comes after it."""
            found = next(whole, None)
            return await receive() if found is None else found

        await self.app(scope, again, send)


def not_replies(body: bytes) -> str | None:
    """Return what is wrong with a request to push messages, or None if they are replies of the node that pushes them.

    Args:
        body: Flower's ``PushMessagesRequest``, unparsed.
    """
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from google.protobuf.message import DecodeError

    try:
        request = PushMessagesRequest.FromString(body)
    except DecodeError:
        return "a push that cannot be read"
    node = request.node.node_id
    if not request.messages_list:
        return f"a push as node {node} with no message"
    for about in (message.metadata for message in request.messages_list):
        if not about.reply_to_message_id:
            return f"an instruction to node {about.dst_node_id}, pushed as node {node}"
        if about.src_node_id != node:
            return f"a reply of node {about.src_node_id}, pushed as node {node}"
    return None


def command(name: str) -> list[str]:
    """Return the command line that starts one of Flower's servers behind the gate.

    Args:
        name: ``"flower-superlink"`` or ``"flower-supernode"``.

    Raises:
        UserError: Flower is not installed for this Python.
    """
    if not (Path(sys.executable).parent / name).exists():
        raise UserError(f"{name}: is not installed; pip install '.[flower]' in a clone of hanse")
    return [sys.executable, "-m", "hanse.wings.operate.server_access", name]


def gated(name: str, app: Any) -> Any:
    """Return a server's application inside its gates."""
    replies = ReplyGate(ClockGate(app)) if name == "flower-superlink" else app
    return UserGate(replies, SERVED[name]) if TABLE.exists() else replies


def gate_apps(home: Path) -> None:
    """Let this SuperNode run only apps that a participant has agreed to, if it has agreed to anything.

    Flower asks its ``_verify_fab`` whether an app may run that comes with a licence; it answers the SuperLink if not.
    It then runs whatever lies in the folder of the name, version and eight digits that the SuperLink says. These must
    therefore be the app's own, and the folder is removed, so that it is made of the app that was looked at.

    Args:
        home: the participant's folder, in which its agreements are.
    """
    from flwr.cli.config_utils import get_fab_metadata
    from flwr.common.config import get_project_dir
    from flwr.supernode import start_client_internal as node

    pull = node._pull_and_store_message

    def pulled(*, get_run: Callable[[int], Any], get_fab: Callable[[str, int], Any], **given: Any) -> int | None:
        """Receive a message as before, with an app that Flower asks about."""
        runs = dict[int, Any]()

        def known(run: int) -> Any:
            """Return what the SuperLink says of a run."""
            return runs.setdefault(run, get_run(run))

        def licensed(digest: str, run: int) -> Any:
            """Return an app, with what the SuperLink says that it is."""
            said = json.dumps([runs[run].fab_id, runs[run].fab_version])
            return replace(get_fab(digest, run), verifications={"valid_license": said})

        return pull(get_run=known, get_fab=licensed, **{**given, "trusted_entities": {"the agreement": ""}})

    def agreed(app: Any, _: Any) -> bool:
        """Say whether an app may run."""
        notes = [path.read_text().partition("\n\n")[0] for path in (home / AGREEMENTS).glob("*.txt")]
        if not notes:
            return True
        digest, why = hashlib.sha256(app.content).hexdigest(), "was not agreed"
        try:
            if digest in {json.loads(note).get("app") for note in notes}:
                own = get_fab_metadata(app.content)
                why = f"is not what it is said to be, {(app.hash_str, app.verifications)}"
                if (app.hash_str, [*own]) == (digest, json.loads(app.verifications["valid_license"])):
                    folder = get_project_dir(*own, digest)
                    folder.unlink() if folder.is_symlink() else shutil.rmtree(folder, ignore_errors=not folder.exists())
                    return True
        except Exception as wrong:  # of whatever class: a stranger's file
            why = f"cannot be looked at ({wrong})"
        print(f"hanse: refused: the SuperLink's app {digest} {why}; nothing of it is run", flush=True)
        return False

    node._pull_and_store_message, node._verify_fab = pulled, agreed  # type: ignore[assignment]


def answer_in_turn() -> None:
    """From now on, let this SuperNode answer each message that it takes, whatever became of those before.

    Flower takes a message, waits until some answer is there, and sends what is there. If it gave up a message that the
    app was answering already (the SuperLink was restarted, and the run is over), that answer is left over: it is sent
    in place of the next one, and from then on every answer comes one message late. Here each message is waited for by
    its own name. If the app has ended and left no answer, Flower would wait for ever: here the answer is an error.
    """
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, Status
    from flwr.supernode import start_client_internal as node

    pull, push, taken = node._pull_and_store_message, node._push_messages, list[Message]()

    def pulled(*, receive: Callable[[], Any], **given: Any) -> int | None:
        """Take a message as before, and note it."""

        def received() -> Any:
            """Return what the SuperLink has for this node."""
            found = receive()
            taken[:] = [] if found is None else [found[0]]
            return found

        return pull(receive=received, **given)

    def pushed(*, state: Any, object_store: Any, send: Callable[..., Any], **given: Any) -> None:
        """Send answers until that to the message is among them."""
        [message], answered, asked = taken, set[str](), type(state).get_messages_legacy

        def there(**which: Any) -> Any:
            """Return the answers that are there."""
            # asked first: an app leaves its answer before it ends
            ended = not state.get_tasks(statuses=[Status.PENDING, Status.STARTING, Status.RUNNING])
            found = asked(state, **which)
            if ended and not found:
                lost = Error(ErrorCode.CLIENT_APP_CRASHED, "its app ended without an answer")
                node._insert_message(Message(lost, reply_to=message), state, object_store)
            return found

        def noted(answer: Message, *more: Any) -> Any:
            """Send an answer, and note to what."""
            answered.add(answer.metadata.reply_to_message_id)
            return send(answer, *more)

        state.get_messages_legacy = there
        while message.metadata.message_id not in answered:
            push(state=state, object_store=object_store, send=noted, **given)

    node._pull_and_store_message, node._push_messages = pulled, pushed  # type: ignore[assignment]


def run(name: str, arguments: Sequence[str]) -> None:
    """Run one of Flower's servers in this process, behind its gates.

    On a system without ``/proc/net/tcp``, the server runs without the gate that keeps out other users, and says so. A
    SuperNode first says what it may do as this user.

    Args:
        name: ``"flower-superlink"`` or ``"flower-supernode"``.
        arguments: the command's own arguments.
    """
    import uvicorn

    served = list[uvicorn.Config]()
    if name == "flower-supernode":
        print(f"hanse: this node runs the SuperLink's app as user id {os.geteuid()}: {BOUNDS}", flush=True)
        name_refusals(partial(print, flush=True))
        gate_apps(home_of())
        answer_in_turn()
    elif "--ssl-certfile" in arguments:
        shown = arguments[arguments.index("--ssl-certfile") + 1]
        watch_certificates(Path(shown).parent, partial(print, flush=True), lambda: load_anew(served))
    if not TABLE.exists():
        print(f"no {TABLE} on this system: every user of this machine can talk to {name}", file=sys.stderr)
    # Flower makes its uvicorn.Config inside the command, so that the application can only be wrapped there
    made = uvicorn.Config.__init__

    def init(self: uvicorn.Config, app: Any, *given: Any, **named: Any) -> None:
        """Make the configuration with the gates around its application."""
        # without uvicorn's own reading of X-Forwarded-For, with which anybody could name another connection
        made(self, gated(name, app), *given, **{**named, "proxy_headers": False})
        served.append(self)

    uvicorn.Config.__init__ = init  # type: ignore[method-assign]
    [entry] = entry_points(group="console_scripts", name=name)
    sys.argv = [name, *arguments]
    entry.load()()


def load_anew(served: Iterable[Any]) -> None:
    """Load certificate and key of uvicorn's servers anew, for all connections that are made from now on."""
    for config in served:
        if (context := getattr(config, "ssl", None)) is not None:
            context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)


def nginx() -> str | None:
    """Return the path of nginx, or None if it is not installed."""
    return shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", ""), *PLACES)))


def is_free(port: int) -> bool:
    """Say whether a server can listen on this port of the loopback interface."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: an old connection is no hindrance
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def split(address: str, field: str, example: str = "0.0.0.0:9092") -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``.

    Args:
        address: the address, such as ``0.0.0.0:9092``, or ``[::]:9092`` for IPv6.
        field: the option with which the address was given, for the message.
        example: a valid address, for the message.

    Raises:
        UserError: the address has another form.

    Examples:
        >>> split("0.0.0.0:9092", "--listen")
        ('0.0.0.0', 9092)
    """
    host, _, port = address.rpartition(":")
    if not re.fullmatch(r"[\w.-]+|\[[0-9a-fA-F:.]+\]", host) or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UserError(f"{field}: {address!r}: must be HOST:PORT with a port of 1 to 65535, such as {example}")
    return host, int(port)


def configure(folder: Path, listen: str, superlink: str, nodes: int = 0) -> list[str]:
    """Write the proxy's configuration and return the command that runs it.

    The proxy shows ``../certs/outside.crt`` (with ``outside.key``), and checks the SuperLink's certificate against
    ``../certs/ca.crt``.

    Args:
        folder: the folder for ``nginx.conf`` and nginx's own files.
        listen: ``HOST:PORT`` to which nodes of other machines connect.
        superlink: ``HOST:PORT`` of the SuperLink.
        nodes: how many nodes may connect from one address. Per node, the address may make eight requests at once, two
            of them to push objects. These limits are never below 32 and 8.

    Raises:
        UserError: nginx is not installed, or ``listen`` has another form.
    """
    from jinja2 import StrictUndefined, Template

    split(listen, "--listen")
    command = nginx()
    if command is None:
        raise UserError("nginx: is not installed; it lets SuperNodes through to the SuperLink, and nothing else")
    private_folder(folder)
    page = Template(TEMPLATE.read_text(), undefined=StrictUndefined, keep_trailing_newline=True)
    connections = max(CONNECTIONS, 8 * nodes)
    pushes, root = max(PUSHES, 2 * nodes), os.geteuid() == 0
    given = {"listen": listen, "superlink": superlink, "needed": NEEDED, "most": MOST}
    said = page.render(**given, connections=connections, pushes=pushes, root=root)
    (folder / "nginx.conf").write_text(said)
    return [command, "-p", str(folder), "-c", "nginx.conf"]


def awaited(what: str, there: Callable[[], bool], alive: Callable[[], bool], patience_s: float = 120.0) -> bool:
    """Wait for something, and say every five seconds for what (standard error). Return whether it came.

    Args:
        what: what is waited for, in words.
        there: a function that says whether it is there.
        alive: a function that says whether it can still come. Once it cannot, the wait ends.
        patience_s: seconds to wait.
    """
    begun = told = time.monotonic()
    while not there():
        now = time.monotonic()
        if not alive() or now - begun > patience_s:
            return there()
        if now - told > TELL_S:
            print(f"waiting for {what} ({now - begun:.0f} s)", file=sys.stderr, flush=True)
            told = now
        time.sleep(LOOK_S)
    return True


def answers(url: str, status: int, said: list[str]) -> Callable[[], bool]:
    """Return a function that says whether a server answers.

    Args:
        url: the address to ask for.
        status: the status code that a sound server answers with.
        said: gets what was wrong at the last look.
    """
    from httpx import Client, TransportError

    def ask() -> bool:
        """Ask once. The certificate is not checked: nothing secret is sent, and the answer is only a status code."""
        with Client(verify=False, trust_env=False, timeout=5) as client:
            try:
                found = client.get(url).status_code
                said[:] = [] if found == status else [f"answers {url} with {found} where {status} is expected"]
            except TransportError as wrong:
                said[:] = [f"does not answer ({wrong})"]
                return False
        return True

    return ask


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
