"""``hanse serve`` and ``hanse token``: the live page of runs, and the keys to it.

:func:`prepare` makes the server that :func:`serve` runs; tests and benchmarks use it as well. The page itself is in
:mod:`hanse.wings.operate.page`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable

from hanse.base.errors import UserError
from hanse.cli.options import err, out, say

if TYPE_CHECKING:
    import uvicorn

    from hanse.wings.operate.page.app import LivePage

app = typer.Typer(
    help="The keys to the live page: who may log in.",
    epilog="Example:\n\nhanse token new keys.json --role operator && hanse serve runs --auth keys.json",
    no_args_is_help=True,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The file of keys.", show_default=False)]


def statement_page(folder: Path, client: int) -> str:
    """Return a client's statement of a run, a page that participants are sent at its end."""
    import hanse

    return hanse.load(folder).statement(client).text or ""


def serve(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run directory, or a folder with several.", show_default=False)
    ],
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="Port; 0: any that is free.")] = 8000,
    auth: Annotated[
        Path | None, typer.Option("--auth", help="File of keys ('hanse token new'): only their holders are let in.")
    ] = None,
    cert: Annotated[Path | None, typer.Option("--cert", help="TLS certificate (PEM), with --cert-key.")] = None,
    cert_key: Annotated[Path | None, typer.Option("--cert-key", help="The certificate's private key (PEM).")] = None,
    log: Annotated[Path | None, typer.Option("--log", help="Also write what was refused to this file.")] = None,
) -> None:
    """Show past and current runs on a live page, and each participant's statement behind its own key.

    By default the page is for this machine alone (127.0.0.1) and asks for no key. To let others reach it, give --host
    and --auth. The latter is a file of keys made by 'hanse token new': operators see everything, participants their own
    statements. Also give --cert and --cert-key, or keys travel unencrypted. nginx, which must be installed, then
    handles TLS, limits on requests and connections, and slow clients.

    The page changes nothing in a run and imports nothing that a run's files name. It needs the libraries of pip install
    '.[web]', in a clone of hanse.

    Examples:
        hanse serve runs/exp
        hanse serve runs --auth keys.json
    """
    logging_to(log)
    check_certificate(cert, cert_key)
    server, _ = prepare(folder, host, port, auth)
    warn_unencrypted(host, cert)
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(listen(host, port))
        port = listening.getsockname()[1]
        if cert is not None or not is_loopback(host):
            from hanse.wings.operate.page.proxy import behind

            listening.close()  # the port is free: it is nginx that listens there
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # nginx is ended then, too
            listening = stack.enter_context(behind(host, port, cert, cert_key))
        name = f"[{host}]" if ":" in host else host
        say(f"{folder} is at {'http' if cert is None else 'https'}://{name}:{port}/ (Ctrl-C ends it)")
        with contextlib.suppress(KeyboardInterrupt):  # raised again once all is closed
            server.run(sockets=[listening])


def prepare(
    folder: Path,
    host: str,
    port: int,
    auth: Path | None,
) -> tuple[uvicorn.Server, LivePage]:
    """Return the server, which does not listen yet, and its page.

    Args:
        folder: a run directory, or a folder with several.
        host: the address that the server will listen on.
        port: the server's port, which becomes part of the session cookie's name.
        auth: the file of keys. None: nobody is asked for a key, which is allowed only on loopback.

    Raises:
        UserError: the web libraries are not installed, or the options do not fit together.
    """
    try:
        import uvicorn

        from hanse.wings.operate.page.app import LivePage, make_app
    except ModuleNotFoundError as missing:
        needed = "pip install '.[web]' in a clone of hanse"
        raise UserError(f"hanse serve: {missing.name} is not installed; {needed}") from None
    from hanse.wings.operate.page.gate import LOOPBACK
    from hanse.wings.operate.page.keys import Sessions

    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    local = is_loopback(host)
    if not local and auth is None:
        raise UserError(f"--host {host}: others could reach the page; give --auth FILE, so that it asks for a key")
    # without keys only requests for this machine's own names are answered, so a foreign page in the user's browser
    # cannot reach it by a name of its own (DNS rebinding)
    hosts = None if auth is not None else LOOPBACK | {host}
    # cookies do not know ports: two pages on one machine must not overwrite each other's
    cookie = f"hanse_session_{port}"
    shown = LivePage(folder, Sessions(auth), hosts, cookie)
    config = uvicorn.Config(
        make_app(shown), host=host, port=port, log_level="warning", access_log=False, server_header=False,
        proxy_headers=False, lifespan="off", timeout_graceful_shutdown=5, ws="none",
    )  # fmt: skip
    server = uvicorn.Server(config)
    shown.hub.stopping = lambda: server.should_exit
    return server, shown


def check_certificate(cert: Path | None, cert_key: Path | None) -> None:
    """Check that a certificate and its key are both there, or neither. Raises UserError with all mistakes."""
    lines = ["--cert, --cert-key: one needs the other"] if (cert is None) != (cert_key is None) else []
    for name, file in (("--cert", cert), ("--cert-key", cert_key)):
        if file is not None and not file.is_file():
            lines.append(f"{name} {file}: there is no such file")
    if lines:
        raise UserError(*lines)


def warn_unencrypted(host: str, cert: Path | None) -> None:
    """Warn if others reach the page without a certificate."""
    if cert is None and not is_loopback(host):
        warning = (
            "keys travel unencrypted; give a certificate, or keep the page on loopback behind a proxy that has one"
        )
        say(f"warning: --host {host} without --cert: {warning}", err, style="yellow", wrap=True)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at this address. Raises UserError if that is impossible."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as wrong:
        raise UserError(f"--host {host} --port {port}: cannot listen there: {wrong.strerror}") from None


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def logging_to(file: Path | None) -> None:
    """Log to standard error, and to a file if one is given.

    Raises:
        UserError: the file cannot be written.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if file is not None:
        try:
            handlers.append(logging.FileHandler(file, encoding="utf-8"))
        except OSError as wrong:
            raise UserError(f"--log {file}: cannot be written: {wrong.strerror}") from None
    log = logging.getLogger("hanse.wings.operate.page")
    log.handlers.clear()
    log.setLevel(logging.INFO)
    # these lines are the operator's; other loggers of the process would print them twice
    log.propagate = False
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        log.addHandler(handler)


@app.command()
def new(
    file: File,
    role: Annotated[str, typer.Option("--role", help="operator or participant.", show_default=False)],
    client: Annotated[int | None, typer.Option("--client", help="The participant's client number.")] = None,
    run: Annotated[
        str | None, typer.Option("--run", help="Only this run, by its name on the page; default every run.")
    ] = None,
) -> None:
    """Make a key and show it once. The file keeps only its hash.

    An operator's key opens everything, a participant's the statement of one client. The key goes to standard output, so
    that you can pipe it. Messages go to standard error. The file is created if necessary.

    Examples:
        hanse token new keys.json --role participant --client 3
    """
    from hanse.wings.operate.page.keys import make_key, read_keys, write_keys

    secret, key = make_key(role, client, run)
    keys = list(read_keys(file).values()) if file.exists() else []
    write_keys(file, [*keys, key])
    err.print(f"This key is shown once; {file} keeps only its hash. Its number is {key.id}.", markup=False)
    print(secret)


@app.command("list")
def list_(file: File) -> None:
    """List the keys: their numbers, roles and clients.

    The file does not contain the keys themselves, so they cannot be shown again.

    Examples:
        hanse token list keys.json
    """
    from hanse.wings.operate.page.keys import read_keys

    table = RichTable("key", "role", "client", "run", "made")
    for key in read_keys(file).values():
        table.add_row(key.id, key.role, "-" if key.client is None else str(key.client), key.run or "every", key.made)
    say(table, wrap=True)


@app.command()
def revoke(
    file: File,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key's number, as list shows it.", show_default=False)],
) -> None:
    """Remove a key from the file, by its number.

    A running page ends its holder's sessions at once.

    Examples:
        hanse token revoke keys.json 1a2b3c4d
    """
    from hanse.wings.operate.page.keys import read_keys, write_keys

    keys = read_keys(file)
    if key not in keys:
        raise UserError(f"{file}: key '{key}': there is no such key; 'hanse token list {file}' shows them")
    write_keys(file, [k for k in keys.values() if k.id != key])
    out.print(f"key {key} opens nothing any more", highlight=False)
