"""``hanse network``: a federation on this machine for a trial, and the operator's orders to a run on any network.

``up``, ``run`` and ``down`` play a project of ``hanse new`` on one machine. For real participants, the operator uses
``admit`` and each participant ``join``. ``pause``, ``go-on`` and ``expel`` write into a run directory, where the server
reads them before its next exchange.

The work is done in :mod:`hanse.flower`, most of it in ``loopback.py``.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hanse.base.errors import UserError, collected
from hanse.base.plain_text import quantity
from hanse.cli.options import NodeConfig, parsed_node_config

if TYPE_CHECKING:
    from hanse.wings.operate.loopback import Loopback

app = typer.Typer(
    help="A federation on Flower: bring one up on this machine, operate one.",
    epilog="Example:\n\nhanse new harvest && hanse network up harvest && hanse network run harvest",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The project (see 'hanse new').")]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="The server's run directory.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", "-r", help="Why; it is recorded.", show_default=False)]


Listen = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", help="Where nginx lets SuperNodes in, at first beside --port.")
]
Hosts = Annotated[
    list[str] | None, typer.Option("--host", metavar="NAME", help="How participants call this machine; repeatable.")
]
Imports = Annotated[
    list[str] | None, typer.Option("--import", metavar="MODULE", help="A module that nodes import first; repeatable.")
]


def _network(folder: Path) -> Loopback:
    """Return the network of a project. Raises UserError if none was brought up there."""
    from hanse.wings.operate.loopback import Loopback

    return Loopback.read(folder.resolve())


@app.command()
def up(
    folder: Folder = Path(),
    nodes: Annotated[int | None, typer.Option("--nodes", "-n", min=0, max=200, help="Nodes here, at first 3.")] = None,
    port: Annotated[int | None, typer.Option(min=1024, max=65000, help="The SuperLink's, at first 18000.")] = None,
    listen: Listen = "",
    hosts: Hosts = None,
    members: Annotated[int | None, typer.Option(min=0, help="How many members a run waits for; 0: --nodes.")] = None,
    imports: Imports = None,
) -> None:
    """Start a federation on this machine: certificates, keys, the server's side of Flower, and some nodes.

    Certificates and keys are made once and kept in the project. Back up certs/operator.key, with which the server signs
    every request. Flower's SuperLink listens on 127.0.0.1 only. If nginx is installed, it is started in front of the
    SuperLink and passes only what nodes may request. Then --nodes SuperNodes are registered and started, at ports above
    the SuperLink's.

    For participants on other machines give --listen and --host, and admit their keys with 'hanse network admit'. With
    --nodes 0 only the server's side is started, and --members says for how many participants a run waits.

    An option that is left out is as it was when the project was last brought up.

    Nodes answer each message from a process that has already imported everything. --import adds libraries that your
    client app needs.

    'hanse network run' plays, 'hanse network down' stops everything.

    Examples:
        hanse network up harvest --nodes 3 && hanse network run harvest
    """
    from hanse.flower.operator_key import public_key
    from hanse.ledger.note import fingerprint
    from hanse.wings.operate import server_access
    from hanse.wings.operate.loopback import FIRST, NETWORK, Loopback
    from hanse.wings.operate.server_access import nginx, split

    project = folder.resolve()
    if not (project / "pyproject.toml").exists():
        raise UserError(f"{folder}: is not a project (it has no pyproject.toml); 'hanse new NAME' makes one")
    kept = Loopback.read(project) if (project / NETWORK).exists() else Loopback(project, project, FIRST)
    nodes = kept.nodes if nodes is None else nodes
    port, hosts = port or kept.ports[0], hosts or [*kept.hosts]
    members = kept.members if members is None else members
    if kept.listen != f"127.0.0.1:{kept.ports[0] + 1}":  # which goes with the port
        listen = listen or kept.listen
    if not (nodes or members):
        raise UserError("--members: must be given where --nodes is 0: how many a run waits for")
    if listen and not hosts and not split(listen, "--listen")[0].startswith(("127.", "localhost", "[::1]")):
        raise UserError(f"--host: must be given with --listen {listen}: what participants call this machine")
    if not listen and nginx() is not None:
        listen = f"127.0.0.1:{port + 1}"
    ports = (port, *(port + 101 + i for i in range(nodes)))
    more = tuple(imports or kept.imports)
    made = Loopback(project, project, ports, imports=more, listen=listen, hosts=tuple(hosts), members=members)
    made.up(show=typer.echo)
    typer.echo(f"{quantity(nodes, 'node')} and a SuperLink on 127.0.0.1:{port}; logs in {folder / 'logs'}")
    if listen:
        typer.echo(f"SuperNodes reach it at {listen}, through nginx, which passes nothing else")
    else:
        typer.echo("nginx is not installed ('apt install nginx'): nodes on other machines cannot join")
    typer.echo(f"the operator's key, {folder / 'certs' / made.operator.name}: {fingerprint(public_key(made.operator))}")
    if made.agreement.exists():
        typer.echo(f"the agreement, for the owner of each node on another machine: {folder / made.agreement.name}")
    if not server_access.TABLE.exists():
        typer.echo("this system hides which user a connection belongs to: every user of this machine can start runs")


@app.command()
def admit(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The operator's project.", show_default=False)],
    key: Annotated[Path, typer.Argument(metavar="KEY.pub", help="The participant's public key.", show_default=False)],
    name: Annotated[str, typer.Option("--name", help="What to call the participant.", show_default=False)],
) -> None:
    """Admit a participant's node to the federation that 'up' started here.

    The participant sends you its public key (KEY.pub) and keeps the private one. You give it certs/ca.crt,
    certs/operator.pub and agreement.txt, with which it joins ('hanse network join'). The fingerprint that is printed
    here must be the one that it sees there. Its account and its number belong to its key, whatever name you give it
    here.

    Examples:
        hanse network admit harvest clinic.pub --name 'the clinic'
    """
    from hanse.flower.operator_key import make_operator_key, public_key
    from hanse.ledger.note import fingerprint
    from hanse.wings.operate.certificates import node_identity

    network, identity = _network(folder), node_identity(key, "public", "KEY.pub")
    pinned = public_key(make_operator_key(network.operator.parent))
    network.register([(str(key.resolve()), name)])
    typer.echo(f"admitted {name}; give it ca.crt and operator.pub from {folder}/certs, and {network.agreement}")
    typer.echo(f"fingerprint of operator.pub: {fingerprint(pinned)}")
    typer.echo(f"{name}'s key, by which a charter names it (give it the agreement that 'up' writes then): {identity}")


@app.command()
def join(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The operator's address.", show_default=False)],
    ca: Annotated[Path, typer.Option("--ca", help="The operator's certificate, ca.crt.", show_default=False)],
    key: Annotated[Path, typer.Option("--key", help="Your node's private key.", show_default=False)],
    operator: Annotated[
        Path | None,
        typer.Option("--operator", help="The operator's public key, operator.pub; needed once.", show_default=False),
    ] = None,
    agree: Annotated[
        Path | None,
        typer.Option("--agree", help="The operator's agreement, agreement.txt: you agree to it.", show_default=False),
    ] = None,
    config: NodeConfig = "",
    port: Annotated[int, typer.Option("--port", min=1024, max=65535, help="The node's own, on 127.0.0.1.")] = 9094,
    imports: Imports = None,
) -> None:
    """Start this participant's node, which runs until it is stopped. Only this user can read its files.

    The operator gives you the address, ca.crt and operator.pub, and must have admitted your public key. Data stay here.
    The node trains when the server asks, and sends only models and answers.

    The node acts on requests that the operator has signed. The operator's key, operator.pub, is pinned when you first
    join an address. Ask the operator, by telephone for instance, whether the fingerprint that is shown is right.

    --agree names the agreement that the operator gave you: what will be trained, how many rounds there are, and how
    often which questions are asked. Read it first: your node signs it, and refuses and keeps every request that goes
    beyond it. Without any agreement the node runs whatever app comes; hanse's own then only says who it is. 'hanse
    network log' shows what it was asked.

    Give the other members the witness key that is shown: by it 'hanse ledger verify --witnesses' knows your signatures.

    Flower would start a fresh interpreter for every message, which takes seconds. Instead, a process that has already
    imported torch, hanse and the modules of --import forks for each message. It takes a few hundred MB.

    Examples:
        hanse network join example.org:9092 --ca ca.crt --key clinic --operator operator.pub --agree agreement.txt
    """
    from hanse.base.files import home_of
    from hanse.federation.node import APPS
    from hanse.flower.operator_key import PINNED, pin, public_key
    from hanse.ledger.note import fingerprint
    from hanse.ledger.witness import PUBLIC, Witness
    from hanse.wings.operate import server_access
    from hanse.wings.operate.certificates import node_identity
    from hanse.wings.operate.clocks import judged
    from hanse.wings.operate.server_access import split
    from hanse.wings.operate.warm_process import warmed

    lines = list[str]()
    with collected(lines):
        split(address, "HOST:PORT", "fed.example.org:9092")
    given = {"--ca": ca, "--key": key, "--operator": operator, "--agree": agree}
    lines += [f"{option}: {path}: is not there" for option, path in given.items() if path and not path.is_file()]
    with collected(lines):
        if key.is_file():
            node_identity(key, "private", "--key")
    with collected(lines):
        parsed_node_config(config)
    if not server_access.is_free(port):
        lines.append(f"--port: {port}: is taken on this machine, by another node perhaps; give each its own")
    if lines:
        raise UserError(*lines)
    server_access.command("flower-supernode")
    for one in judged(ca, datetime.now(UTC)):
        if one.state != "fine":
            typer.echo(f"warning: {ca}: {one.said}; ask the operator for the new one")
    if key.stat().st_mode & 0o077:
        typer.echo(f"warning: {key}: others on this machine may read it, and join as this participant: chmod 600 {key}")
    # files that the node makes, private models among them, are for this user alone
    os.umask(0o077)
    pinned = pin(home_of(), address, operator)
    typer.echo(f"operator's key, pinned in {pinned}: {fingerprint(public_key(pinned))}")
    os.environ[PINNED] = str(pinned.absolute())
    os.environ.setdefault("FLWR_HOME", str((home_of() / APPS).absolute()))
    _agreement(home_of(), agree, public_key(pinned))
    own = Witness(home_of()).public.hex()
    typer.echo(f"this participant's key, for others' members.txt and witnesses, in {home_of() / PUBLIC}: {own}")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    words = ["--superlink", address, "--root-certificates", str(ca), "--auth-supernode-private-key", str(key)]
    words += ["--host", "127.0.0.1", "--port", str(port), *(["--node-config", config] if config else [])]
    with warmed(imports or ()) as variables:
        os.environ.update(variables)
        server_access.run("flower-supernode", words)


def _agreement(home: Path, given: Path | None, operator: bytes) -> None:
    """Sign the agreement that the owner hands over, and say what was agreed."""
    from hanse.base.files import read_text
    from hanse.flower.agreement import agreements, introduced, take

    if given is not None:
        take(home, read_text(given), operator, time.time())
    if found := agreements(home):
        typer.echo(introduced(found[-1]))
    else:
        typer.echo("no agreement: this node runs whatever app comes, until you start it with --agree agreement.txt")


@app.command()
def run(folder: Folder = Path()) -> None:
    """Play the project's experiment with the running nodes, or continue an existing run.

    It shows each round's accuracy, and who is excluded or refused and why. logs/run.log has the rest.

    Examples:
        hanse network run harvest
    """
    _network(folder).play(show=typer.echo)
    typer.echo(f"log: {folder / 'logs' / 'run.log'}")


@app.command()
def down(folder: Folder = Path()) -> None:
    """Stop what 'up' started, by process id.

    Run directories, keys and logs stay; 'up' starts the same federation again.

    Examples:
        hanse network down harvest
    """
    for name in _network(folder).down():
        typer.echo(f"{name}: was not running")


@app.command()
def check(folder: Folder = Path()) -> None:
    """Say how a network is: certificates, processes, nodes and their clocks, disk, the run and its books, backups.

    It looks at the operator's machine alone and changes nothing. For a monitor, the exit code is 0 if all is well and 1
    if there is a warning or a failure; 2 says that the command was called wrongly. A network without any backup is
    warned of it, with exit code 0; once 'hanse network backup' was used, a backup older than a week counts.

    Examples:
        hanse network check harvest
    """
    from hanse.wings.operate.checks import findings, worst

    found = findings(_network(folder), datetime.now(UTC))
    for one in found:
        typer.echo(one.line)
    raise typer.Exit(worst(found) != "fine")


@app.command()
def renew(folder: Folder = Path()) -> None:
    """Make the servers' certificates anew, for a year, while everything goes on: no process is stopped.

    The SuperLink and nginx show the new ones within seconds, and nodes notice nothing. If the authority's own (ca.crt)
    ends within 30 days, it gets ten more years, with the same key: then give the new ca.crt to the members, who start
    their nodes with it before the old one ends. Certificates from elsewhere stay: put new ones in their place, and
    'renew' loads them.

    Examples:
        hanse network renew harvest
    """
    network = _network(folder)
    made, left = network.renew()
    typer.echo(f"new in {folder / 'certs'}: {', '.join(made) or 'nothing'}")
    if left:
        typer.echo(f"of another authority, and left as they are: {', '.join(left)}")
    if "ca.crt" in made:
        typer.echo("give the new ca.crt to every member; the old one is good until it ends")


@app.command()
def backup(
    to: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is not there yet.", show_default=False)],
    folder: Annotated[Path, typer.Argument(metavar="PROJECT", help="The project.")] = Path(),
) -> None:
    """Copy a project, also while a run goes on: keys, certificates, agreement, records, checkpoints, books, orders.

    Whoever has the copy can act as the operator: keep it where nobody else can read, on another machine. 'restore'
    makes a project of it.

    Examples:
        hanse network backup /mnt/backups/harvest-3 harvest
    """
    from hanse.wings.operate.backup import back_up

    back_up(_network(folder), to)
    typer.echo(f"{to}: has the operator's keys: keep it secret; 'hanse network restore {to} PROJECT' takes it up")


@app.command()
def restore(
    backup: Annotated[Path, typer.Argument(metavar="DIR", help="A backup.", show_default=False)],
    folder: Annotated[Path, typer.Argument(metavar="PROJECT", help="A folder that is not there yet.")],
) -> None:
    """Make a project of a backup, and verify its books.

    'up' and 'run' go on with it. Members have seen the heads of later rounds if there were any: their nodes then refuse
    the books as rolled back, and keep that as evidence, so back up often.

    Examples:
        hanse network restore /mnt/backups/harvest-3 harvest
    """
    from hanse.wings.operate.backup import restore as made

    network = made(backup.resolve(), folder.resolve())
    typer.echo(f"{folder}: is whole; 'hanse network up {folder}' starts it")
    if network.run is not None:
        typer.echo(f"'hanse network run {folder}' goes on with the run in {network.run}")


@app.command()
def pause(folder: RunDir, reason: Reason) -> None:
    """Make the server wait before its next exchange, until 'go-on'.

    The order and its reason are recorded in the run directory.

    Examples:
        hanse network pause run --reason 'node 3 is being repaired'
    """
    from hanse.flower.members import give

    give(folder, "pause", reason)


@app.command(name="go-on")
def go_on(folder: RunDir, reason: Reason) -> None:
    """End a pause.

    The server goes on with the exchange before which it waited. If it waits because nobody trains on after a client
    has left (clients.exit), 'hanse leave' ends the pause.

    Examples:
        hanse network go-on run --reason 'repaired'
    """
    from hanse.flower.members import ENDS, Orders, give

    if Orders.read(folder).ends:
        raise UserError(f"{folder}: waits because {ENDS}: stop the server, and 'hanse leave' ends the pause")
    give(folder, "go-on", reason)


@app.command()
def expel(
    folder: RunDir,
    client: Annotated[str, typer.Option("--client", "-c", help="Its number, or its name.", show_default=False)],
    reason: Reason,
) -> None:
    """Exclude a participant from the next exchange on; its account stays.

    The order and its reason are recorded in the run directory, for later comparison with the participant's statement.

    Examples:
        hanse network expel run --client 3 --reason 'sends noise'
    """
    from hanse.flower.members import give
    from hanse.runs.run_record import client_names, client_of

    # client_of takes the names as a list by number, so numbers without a name stand for themselves
    names = client_names(folder)
    labels = [names.get(c, str(c)) for c in range(max(names, default=-1) + 1)]
    give(folder, "expel", reason, client_of(client, labels))


@app.command()
def log(
    home: Annotated[Path | None, typer.Argument(help="The participant's folder; else HANSE_HOME, or ~/.hanse.")] = None,
    root: Annotated[
        str | None, typer.Option("--root", help="A root that this command showed earlier.", show_default=False)
    ] = None,
) -> None:
    """Show what this participant's node was asked, what left it, and what it refused.

    Each request has two lines: when it came and whose it was; then the questions, over how many of your samples they
    were answered, and what left. Requests beyond the agreement stand there as the operator signed them.

    Each line names the hash of the one before, which is checked first. Note the root that is shown at the end (the hash
    of the last line) where nobody else can write: with --root the command later shows whether the log still begins with
    what you saw, and which lines came after it. Of those only the new root says, from now on, that they were not
    changed: note it too. If a line was changed, or the log does not begin with that root, because it was cut or written
    anew, the command says so and its exit code is 2.

    Examples:
        hanse network log
    """
    from hanse.base.files import ASKED, home_of
    from hanse.flower.node_log import NodeLog, in_words

    mine = NodeLog(home_of(home))
    lines, roots = mine.verified()
    noted = roots[-1] if root is None else root.strip().lower()
    if noted not in roots:
        raise UserError(f"{mine.home / ASKED}: never had the root {noted}: it was written anew, or cut")
    seen = roots.index(noted) + 1
    for number, line in enumerate(lines):
        if number == seen:
            typer.echo("-- since that root:")
        typer.echo("".join(c if c.isprintable() else "?" for c in in_words(line)))  # it may order a terminal about
    if beyond := sum("signature" in line for line in lines):
        requests = quantity(beyond, "request")
        typer.echo(f"beyond the agreement: {requests}, signed by the operator, in {mine.home / ASKED}")
    if root is not None:
        proved = f"holds: the first {seen} of {quantity(len(lines), 'line')} had the root {root}"
        typer.echo(f"{proved}; of the {len(lines) - seen} since then only a root that is noted now says more")
    typer.echo(f"root: {roots[-1]}")
