"""A whole federation on this machine: certificates, keys, a SuperLink with TLS and node authentication, and SuperNodes.

``hanse network up``, ``run`` and ``down`` use :class:`Loopback`, for a trial on one machine and for the operator's side
of a real federation. The SuperLink listens only on 127.0.0.1. With ``listen``, a proxy in front of it lets the nodes of
other machines through (:mod:`hanse.wings.operate.server_access`).

The processes outlive the command that starts them (:mod:`hanse.wings.operate.processes`). The federation's settings are
kept in ``network.json``, which the next command reads. Flower itself is used through its own command line.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

from flwr.cli.build import build_fab_from_disk
from pydantic import TypeAdapter

from hanse.base.errors import RunFailedError, UserError
from hanse.base.files import FEDERATION, private_folder, read_text, read_toml, table, write_whole
from hanse.base.lock import Hold
from hanse.base.plain_text import quantity
from hanse.flower.agreement import Agreement, take
from hanse.flower.operator_key import KEY, PINNED, PUBLIC, SIGNS_WITH, signing_key
from hanse.flower.server import AGREEMENT
from hanse.ledger.note import public_of
from hanse.ledger.run_ledger import latest_claim
from hanse.ledger.witness import Witness
from hanse.runs.config import Experiment
from hanse.wings.operate import server_access
from hanse.wings.operate.clocks import check_certificates
from hanse.wings.operate.processes import Processes, end, stream
from hanse.wings.operate.server_access import answers, awaited, configure, split

HOST = "127.0.0.1"
NETWORK = "network.json"  # in a project: how its federation was brought up
FIRST = (18000, 18101, 18102, 18103)  # ports of a trial: the SuperLink's, and those of three nodes
POLL_S = 0.25  # seconds between two looks of Flower's executor for a message; its own default is 1 s
GOES_ON = "'hanse network run {}' goes on after the last finished round"
# beginnings of lines that say why a run ended: they go into the exception and are not shown before
TOLD_AT_THE_END = ("mistake: ", "error: ", "asked last: ")

# Each start of an interpreter that imports Flower costs seconds.
# Flower's command line, several commands in one interpreter
_MANY = """
import json, sys
from importlib.metadata import entry_points
[entry] = entry_points(group="console_scripts", name="flwr")
run = entry.load()
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["flwr", *arguments]
    try:
        run()
    except SystemExit as done:
        if done.code:
            raise
"""


def flwr(commands: Sequence[Sequence[str]], env: Mapping[str, str], cwd: Path) -> str:
    """Run commands of Flower's command line, one after another, and return what they printed.

    Args:
        commands: the words of each command after ``flwr``, such as ``["list", "--run-id", "3"]``.
        env: the environment, as :meth:`Loopback.env` makes it.
        cwd: the folder to run them in.

    Raises:
        UserError: a command failed; later commands are not run.
    """
    with tempfile.TemporaryFile("w+") as out:
        done = subprocess.Popen(_call(commands), env=dict(env), cwd=cwd, stdout=out, stderr=out)
        awaited(f"flwr {' '.join(commands[-1][:2])}", lambda: done.poll() is not None, lambda: True, math.inf)
        out.seek(0)
        said = out.read()
    if done.returncode:
        raise UserError(_failed(commands[-1], said))
    return said


def _call(commands: Sequence[Sequence[str]]) -> list[str]:
    """Return the command line that runs these commands in one interpreter."""
    return [sys.executable, "-c", _MANY, json.dumps([list(c) for c in commands])]


def _failed(command: Sequence[str], said: str) -> str:
    """Return the error line of a command: what stands in the box that Flower draws around an error, or else the last
    three lines that it printed.
    """
    plain = re.sub("\x1b\\[[0-9;]*m", "", said)
    box = re.findall("^[│|] (.*?) *[│|]$", plain, re.MULTILINE)
    last = [line.strip() for line in plain.splitlines() if line.strip()][-3:]
    return f"flwr {' '.join(command[:2])}: failed: {' '.join(box) or ' / '.join(last)}"


def app_hash(project: Path) -> str:
    """Return SHA-256 of the Flower app that ``flwr`` makes of a project's folder.

    Raises:
        UserError: the folder's files make no app, or a run's are among them, which all nodes would be sent.
    """
    try:
        app = build_fab_from_disk(project)
    except ValueError as wrong:
        raise UserError(f"{project}: Flower makes no app of it: {' '.join(str(wrong).split())}") from None
    if runs := [name for name in ZipFile(BytesIO(app)).namelist() if Path(name).name == FEDERATION]:
        why = "is of a run, and would be sent to every node with the app: must be moved out, or be in .gitignore"
        raise UserError(f"{project / runs[0]}: {why}")
    return hashlib.sha256(app).hexdigest()


@dataclass(frozen=True)
class Loopback:
    """A federation of SuperNodes and a SuperLink for one app.

    Attributes:
        folder: the folder for all files of the federation: certificates, keys, logs, Flower's state, and what
            participants keep.
        app: the folder of the Flower app, with its ``pyproject.toml``.
        ports: the SuperLink's port, then one port for each node. There are as many nodes as there are ports after the
            first.
        warm: whether the nodes answer from a process that has imported torch and hanse already. This saves seconds per
            message (:mod:`hanse.wings.operate.warm_process`).
        imports: further modules that the warm process imports at its start.
        listen: ``HOST:PORT`` at which the proxy accepts nodes. Empty: there is no proxy, and nodes talk to the
            SuperLink directly.
        hosts: names or addresses under which other machines reach the proxy.
        members: for how many participants a run waits. 0: as many as there are nodes.

    Examples:
        Nothing is started before :meth:`up`, and :meth:`down` ends it all. With a free port for the SuperLink and one
        for each of two nodes, and the app that ``hanse new app`` makes::

            network = Loopback(Path("net"), Path("app"), (9100, 9101, 9102))
            network.up()
            run = network.play()
            network.down()

        >>> network = Loopback(Path("net"), Path("app"), (9100, 9101, 9102))
        >>> network.nodes, network.env("node0")["FLWR_HOME"]
        (2, 'net/flwr/node0')
    """

    folder: Path
    app: Path
    ports: tuple[int, ...]
    _: KW_ONLY
    warm: bool = True
    imports: tuple[str, ...] = ()
    listen: str = ""
    hosts: tuple[str, ...] = ()
    members: int = 0

    # ---- on disk

    def save(self) -> None:
        """Write ``network.json``, from which :meth:`read` makes the same object again."""
        write_whole(self.folder / NETWORK, TypeAdapter(Loopback).dump_json(self) + b"\n")

    @staticmethod
    def read(folder: Path) -> Loopback:
        """Return the federation that was brought up in ``folder``.

        Raises:
            UserError: there is none, or its file is damaged.
        """
        path = folder / NETWORK
        if not path.exists():
            raise UserError(f"{folder}: no federation was brought up here (it has no network.json)")
        try:
            return TypeAdapter(Loopback).validate_json(path.read_bytes())
        except ValueError:
            raise UserError(f"{path}: is damaged: put a copy back, or remove it and give 'up' its options") from None

    @property
    def nodes(self) -> int:
        """The number of nodes that can be started on this machine."""
        return len(self.ports) - 1

    @property
    def door(self) -> str:
        """The address, ``HOST:PORT``, that a node on this machine connects to: the proxy's if there is one."""
        if not self.listen:
            return f"{HOST}:{self.ports[0]}"
        host, port = split(self.listen, "--listen")
        return f"{HOST if host in ('0.0.0.0', '[::]') else host}:{port}"

    @property
    def operator(self) -> Path:
        """The file with the operator's public key, which participants pin."""
        return self.folder / "certs" / PUBLIC

    @property
    def processes(self) -> Processes:
        """The processes of this federation, with their logs in ``folder/logs``."""
        return Processes(self.folder / "logs")

    # ---- the agreement

    @property
    def agreement(self) -> Path:
        """The file with the agreement, which the operator gives to each member's owner."""
        return self.folder / "agreement.txt"

    @property
    def run(self) -> Path | None:
        """The directory of the run that goes by the agreement; None before it has begun."""
        mark = self.agreement.with_suffix(".run")
        found = Path(mark.read_text().strip()) if mark.exists() else None
        return found if found is not None and (found / FEDERATION).exists() else None

    def agree(self, show: Callable[[str], None] = lambda line: None) -> Agreement | None:
        """Return the agreement for the app's ``experiment.toml``. It is written, and the nodes of this machine sign it.

        The one that is there stays if it still fits. The operator may have edited its numbers: it is signed anew.
        Without an ``experiment.toml`` there is nothing to agree to, and the result is None.

        Args:
            show: a function that gets a line of text if another agreement takes the place of the one that was there.

        Raises:
            UserError: the experiment has mistakes, or the project's files make no app.
        """
        if not (self.app / "experiment.toml").exists():
            return None
        if str(self.app) not in sys.path:  # parts of its own, wherever the command is given
            sys.path.append(str(self.app))
        with chdir(self.app):  # the server reads the file there, and what it names beside it
            experiment = Experiment.read("experiment.toml")
        if named := [one for one in experiment.clients.members or () if len(one) != 64]:  # a key's digits
            show(f"warning: nodes choose their names: instead of {', '.join(named)} give keys, as 'admit' shows")
        key, day = signing_key(self.folder / "certs" / KEY), time.strftime("%Y-%m-%d", time.gmtime())
        mark = self.agreement.with_suffix(".run")
        begun = self.run is not None
        if self.run is not None and (claim := latest_claim(self.run)) is not None and claim.finished:
            planned = table(read_toml(self.run / "config.toml"), "run").get("rounds")
            if planned != experiment.run.rounds:
                rounds = quantity(planned, "round")
                raise UserError(
                    f"run.rounds: {experiment.run.rounds}: the last of {rounds} in {self.run} was settled, which "
                    f"cannot be taken back; put {planned} back, or move it out of the project for a new run"
                )
        run = uuid.uuid4().hex
        app, operator = app_hash(self.app), public_of(key)
        made = Agreement.of(experiment, run=run, network=self.app.name, operator=operator, day=day, app=app)
        if self.agreement.exists():
            other = "it was damaged"
            with suppress(ValueError):  # what is damaged is written anew
                kept, _ = Agreement.read(read_text(self.agreement), edited=True)
                if begun or not mark.exists():
                    made = replace(made, run=kept.run, network=kept.network)  # restored, it may have another folder
                if kept.fits(made) and day <= kept.expires:
                    made = kept
                other = ", ".join(name for name, one in vars(kept).items() if one != getattr(made, name))
            if made.text not in self.agreement.read_text():
                show(f"{self.agreement.name} is written anew ({other}): members on other machines must be given it")
        if not begun:
            mark.unlink(missing_ok=True)
        write_whole(self.agreement, made.note(key), durable=True)
        for home in map(self._home, range(self.nodes)):
            take(home, made.note(key), public_of(key), time.time())
        return made

    # ---- up and down

    def up(self, show: Callable[[str], None] = lambda line: None) -> None:
        """Start those of SuperLink, proxy, warm process and nodes that do not run; make missing certificates and keys.

        Args:
            show: a function that gets a line of text before each step that takes a while.

        Raises:
            UserError: Flower or nginx is not installed, or the SuperLink or the proxy does not come up.
        """
        from hanse.flower.operator_key import make_operator_key
        from hanse.wings.operate.certificates import make_certificates, make_node_key, make_outside

        self._refuse_taken()
        superlink = f"{HOST}:{self.ports[0]}"
        proxy = configure(self.folder / "proxy", self.listen, superlink, self.nodes) if self.listen else None
        for private in ("flwr", "keys", "logs", "participants"):
            private_folder(self.folder / private)
        self.save()
        certs = self.folder / "certs"
        if not (certs / "server.crt").exists():
            make_certificates(certs, self.app.name)
        make_operator_key(certs)
        self.agree(show)
        if proxy:
            make_outside(certs, self.hosts)
        for line in check_certificates(certs, datetime.now(UTC)):
            show(line)
        show("starting the SuperLink")
        self.start_superlink()
        if proxy:
            show("starting nginx before it")
            # 403 is right: the gate's own address must not pass the proxy
            self._begin("proxy", proxy, self.env(), self.folder, f"https://{self.door}{server_access.ASK}", 403)
        fresh = [i for i in range(self.nodes) if not self._key(i).exists()]
        for i in fresh:
            make_node_key(self._key(i))
        if fresh:
            show(f"admitting {quantity(len(fresh), 'node')}")
        self.register([(f"{self._key(i)}.pub", f"node{i}") for i in fresh])
        for i in range(self.nodes):
            show(f"starting node {i + 1} of {self.nodes}")
            self.start_node(i)

    def renew(self) -> tuple[list[str], list[str]]:
        """Make certificates anew (:func:`hanse.wings.operate.certificates.renew_certificates`) while all goes on.

        The SuperLink sees new files by itself, the proxy is told. A connection that is open keeps the old certificate.
        """
        from hanse.wings.operate.certificates import renew_certificates

        found = renew_certificates(self.folder / "certs", datetime.now(UTC))
        if self.processes.pid("proxy") is not None:
            proxy = configure(self.folder / "proxy", self.listen, f"{HOST}:{self.ports[0]}", self.nodes)
            subprocess.run([*proxy, "-s", "reload"], check=True, capture_output=True)
        return found

    def _refuse_taken(self) -> None:
        """Raise UserError if a port of a process that is to be started is taken: its owner would answer instead; or if
        a process that runs is to have another address or wait for others: only its end can give it that.
        """
        kept = self.read(self.folder) if (self.folder / NETWORK).exists() else self
        at, asked = (f"--port {one.ports[0]} --listen {one.listen} --members {one.members}" for one in (kept, self))
        if at != asked and self.processes.pid("superlink") is not None:
            raise UserError(f"{asked}: it runs with {at}; leave them out, or 'hanse network down {self.folder}' first")
        needed = {"superlink": self.ports[0], **{f"node{i}": port for i, port in enumerate(self.ports[1:])}}
        if self.listen:
            needed["proxy"] = split(self.listen, "--listen")[1]
        lines = [
            f"--{'listen' if name == 'proxy' else 'port'}: {port}: the {name} needs it, and it is taken here, "
            f"perhaps by another federation; give others, as in --port {self.ports[0] + 300}"
            for name, port in needed.items()
            if self.processes.pid(name) is None and not server_access.is_free(port)
        ]
        if lines:
            raise UserError(*lines)

    def start_superlink(self) -> None:
        """Start the SuperLink if it is not running, and wait until it answers.

        Raises:
            UserError: it does not answer within two minutes, or ends.
        """
        certs, port = self.folder / "certs", self.ports[0]
        home = self.folder / "flwr"
        address = f'address = "{HOST}:{port}"\nroot-certificates = "{certs}/ca.crt"\n'
        # Flower's command line finds the SuperLink under the name "here"
        (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n[superlink.here]\n{address}')
        command = [
            *server_access.command("flower-superlink"), "--ssl-certfile", f"{certs}/server.crt", "--ssl-keyfile",
            f"{certs}/server.key", "--ssl-ca-certfile", f"{certs}/ca.crt", "--enable-supernode-auth",
            "--disable-runtime-dependency-installation", "--host", HOST, "--port", str(port),
            "--database", f"{home}/superlink.db",
        ]  # fmt: skip
        env = self.env() | {SIGNS_WITH: str(certs / KEY), AGREEMENT: str(self.agreement)}
        asked = server_access.ASK if server_access.TABLE.exists() else "/health"
        self._begin("superlink", command, env, self.app, f"https://{HOST}:{port}{asked}", 200)

    def _begin(
        self, name: str, command: Sequence[str], env: Mapping[str, str], cwd: Path, url: str, status: int
    ) -> None:
        """Start a process if it is not running, and wait until it answers at ``url`` with ``status``.

        Raises:
            UserError: it does not answer within two minutes, or ends. The message has the end of its log.
        """
        if self.processes.pid(name) is None:
            self.processes.start(name, command, env, cwd)
        wrong, log = list[str](), self.processes.folder / f"{name}.log"
        ask = answers(url, status, wrong)
        awaited(f"the {name}; its log: {log}", ask, lambda: self.processes.pid(name) is not None)
        if not wrong and self.processes.pid(name) is None:
            wrong = [f"ended, and another process answers at {url} (--port)"]
        if wrong:
            raise UserError(f"the {name} {wrong[0]}: {self.processes.log(name)[-300:]}")

    def register(self, keys: Sequence[tuple[str, str]]) -> None:
        """Admit nodes to the federation.

        Args:
            keys: ``(path of the public key, name)`` for each node. The name is the operator's name for the node.

        Raises:
            UserError: a key is admitted already or is not a key, or the SuperLink does not answer.
        """
        commands = [["supernode", "register", key, "here", "--name", name] for key, name in keys]
        try:
            if commands:
                flwr(commands, self.env(), self.app)
        except UserError as wrong:
            if "already in use" in str(wrong):
                which = "one of these keys" if len(keys) > 1 else keys[0][0]
                raise UserError(f"KEY.pub: {which}: is admitted already; whoever has it can join") from None
            raise self._lost(str(wrong)) from None

    def start_node(self, i: int) -> None:
        """Start the node with this number, from 0, and the warm process, if they are not running."""
        warm = self._warm()
        if self.processes.pid(f"node{i}") is not None:
            return
        home = self._home(i)
        _ = Witness(home)  # its key is there before others must name it in their members.txt
        own = {"HANSE_HOME": str(home), PINNED: str(self.operator)}
        env = self.env(f"node{i}") | own | warm
        command = [
            *server_access.command("flower-supernode"), "--root-certificates", str(self.folder / "certs" / "ca.crt"),
            "--auth-supernode-private-key", str(self._key(i)), "--superlink", self.door,
            "--host", HOST, "--port", str(self.ports[1 + i]),
            "--node-config", f"partition-id={i} num-partitions={self.nodes}",
        ]  # fmt: skip
        self.processes.start(f"node{i}", command, env, self.app)

    def down(self) -> list[str]:
        """Stop all processes, with any run in progress, and return the names of those that had already ended."""
        names, gone = self.processes.names(), list[str]()
        below = self.processes.below(*names)
        end(self.processes.below("superlink"))  # a run, first of all: without nodes it would play rounds with nobody
        # nodes that go down take their leave of the SuperLink, or it would not let them in again for a minute
        for last in ({"superlink", "proxy", "keeper"}, {"keeper"}, set[str]()):
            gone += self.processes.stop(*(name for name in self.processes.names() if name not in last))
        end(below)  # Flower starts some in groups of their own
        if "keeper" in names and (self.folder / "keeper.json").exists():
            shutil.rmtree(Path(json.loads((self.folder / "keeper.json").read_text())).parent, ignore_errors=True)
        return gone

    # ---- runs

    def play(
        self,
        config: Mapping[str, str | int | float | bool] | None = None,
        show: Callable[[str], None] = lambda line: None,
    ) -> str:
        """Start a run of the app, wait for its end, and return everything that it printed.

        Args:
            config: values that replace those in the app's configuration (``[tool.flwr.app.config]``).
            show: a function that is given each line of hanse's server app as it comes, without the mark at its
                beginning.

        Raises:
            UserError: the run could not be started, ended because of a mistake in the input, or another process is
                playing here.
            RunFailedError: the run ended before its last round for another reason.
        """
        words = [f"{k}={json.dumps(v)}" if not isinstance(v, str) else f"{k}='{v}'" for k, v in (config or {}).items()]
        command = ["run", str(self.app), "here", "--stream", *(["-c", " ".join(words)] if words else [])]
        self.agree(show)
        path = self.folder / "logs" / "run.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in check_certificates(self.folder / "certs", datetime.now(UTC)):
            show(line)
        with Hold(path.parent) as hold:  # two would share the log
            hold.take()
            return self._followed(command, path, show)

    def _followed(self, command: Sequence[str], log: Path, show: Callable[[str], None]) -> str:
        """Follow a run through its log until Flower says that it has finished."""
        heard: list[str] = []
        follow = partial(stream, env=self.env(), cwd=self.app, log=log)
        code = follow(_call([command]), heard=_new(heard, show))
        said = log.read_text(errors="replace")
        started = re.search(r"started run (\d+)", said)
        if started is None:
            raise self._lost(_failed(command, said) if code else f"the run was not started: {said[-300:]}")
        while not (ended := self.status(started[1]))[0].startswith("finished"):
            time.sleep(1.0)  # Flower's stream of a run's log may end before the run does: it is read again
            # from the log's first line on; _new leaves out the lines that were shown
            follow(_call([["log", started[1], "here", "--stream"]]), heard=_new(heard, show))
        status, details = ended
        if status != "finished:completed":
            why = [line for line in heard if line.startswith(TOLD_AT_THE_END)]
            why = why or [*details.splitlines()[:1], GOES_ON.format(self.folder)]
            lines = (f"the run did not complete ({status})", *why, f"its log: {log}")
            raise UserError(*lines) if any(line.startswith("mistake: ") for line in why) else RunFailedError(*lines)
        return log.read_text(errors="replace")

    def status(self, run: str) -> tuple[str, str]:
        """Return a run's status as Flower calls it ("running", "finished:completed", ...) and its details.

        Args:
            run: Flower's id of the run.

        Raises:
            UserError: the SuperLink does not answer, or does not know the run.
        """
        try:
            # warnings may be printed before and after the JSON
            said = flwr([["list", "--run-id", run, "--format", "json"]], self.env(), self.app)
            answer = json.loads(said[said.index("{") : said.rindex("}") + 1])
            if "error-message" in answer:
                raise UserError(" ".join(str(answer["error-message"]).split("\n\n")[-1].split()))
            [found] = answer["runs"]
        except (ValueError, KeyError) as wrong:  # UserError is a ValueError: the command failed
            raise self._lost(
                f"the SuperLink does not say how the run goes: {str(wrong)[:300]}", GOES_ON.format(self.folder)
            ) from None
        return str(found["status"]), str(found["status-details"])

    def _lost(self, why: str, *then: str) -> UserError:
        """Return the error for something that Flower did not do, which says so if there is no SuperLink any more, or a
        certificate has run out.

        Args:
            why: what Flower said, in a line.
            then: what to do after that, a line each.
        """
        try:  # Flower's own commands do not say that a certificate has run out since the start
            check_certificates(self.folder / "certs", datetime.now(UTC))
        except UserError as out:
            then = (*out.lines, *then)
        if self.processes.pid("superlink") is not None:
            return UserError(why, *then)
        return UserError(
            f"the SuperLink is not running ({why})",
            f"its log: {self.folder / 'logs' / 'superlink.log'}; 'hanse network up {self.folder}' starts it",
            *then,
        )

    def env(self, name: str = "") -> dict[str, str]:
        """Return the environment for a process of this federation.

        Args:
            name: the process, such as ``"node0"``. Each process gets its own folder for Flower's state. Empty: the
                SuperLink.
        """
        beside = Path(sys.executable).parent
        # settings of Flower in the user's shell must not reach this federation
        given = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "HANSE_WARM"))}
        return given | {
            "PATH": f"{beside}:{given.get('PATH', '')}",
            "FLWR_HOME": str(self.folder / "flwr" / name),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(POLL_S),
            "NO_PROXY": f"{HOST},localhost",
            "PYTHONUNBUFFERED": "1",
            "FEDERATION_HOME": str(self.app),
            "FEDERATION_MEMBERS": str(self.members or self.nodes),
        }

    def _warm(self) -> dict[str, str]:
        """Return the variables that lead a node to the warm process, which is started if it is not running."""
        if not self.warm:
            return {}
        from hanse.wings.operate.warm_process import WHAT, leading, starting

        said = self.folder / "keeper.json"
        if self.processes.pid("keeper") is None:
            where = Path(json.loads(said.read_text())) if said.exists() else None
            if where is None or not where.parent.is_dir():
                # not in the federation's folder: the path of a Unix socket has at most about a hundred characters
                where = Path(tempfile.mkdtemp(prefix="hanse-")) / "keeper"
                said.write_text(json.dumps(str(where)))
            where.unlink(missing_ok=True)  # of one that has ended; nodes that run look for the next one there
            self.processes.start("keeper", starting(where, self.imports), self.env("keeper"), self.app)
            if not awaited(WHAT, where.exists, lambda: self.processes.pid("keeper") is not None):
                said_last = self.processes.log("keeper").strip().splitlines()[-1:]
                raise UserError(f"the nodes' warm process does not come up: {' '.join(said_last)}")
        return leading(Path(json.loads(said.read_text())), self.folder / "warm", self.env()["PATH"])

    def _home(self, i: int) -> Path:
        """Return the folder of a trial node's participant."""
        return self.folder / "participants" / f"node{i}"

    def _key(self, i: int) -> Path:
        """Return the path of a trial node's private key."""
        return self.folder / "keys" / f"node{i}"


def _new(heard: list[str], show: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that takes a log line by line from its beginning, and shows the lines that are new.

    Args:
        heard: the lines so far; new ones are added. Lines that say why a run ended are added and not shown.
        show: is given each new line.
    """
    known = iter(list(heard))

    def take(line: str) -> None:
        if next(known, None) is None:
            heard.append(line)
            if not line.startswith(TOLD_AT_THE_END):
                show(line)

    return take
