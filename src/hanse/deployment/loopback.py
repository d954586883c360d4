"""A whole federation on this machine: certificates, keys, a SuperLink with TLS and node authentication, SuperNodes.

For trials and tests, and for the operator's side of a real one: the SuperLink listens on 127.0.0.1 alone, and what
others may ask of it passes through a proxy (:mod:`hanse.deployment.walls`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from hanse.base.errors import RunFailedError, UserError
from hanse.base.files import private_folder
from hanse.base.lock import Hold
from hanse.deployment import walls
from hanse.deployment.processes import Processes, last_error, stream
from hanse.deployment.walls import configure, split, wait_for

HOST = "127.0.0.1"
POLL_S = 0.25  # how often Flower's executor looks for a message: its own variable, 1 s if it is not set
TOLD_AT_THE_END = ("mistake: ", "error: ", "asked last: ")  # of our lines; who waits for a run's end is told them then

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
    """Run commands of Flower's command line one after another and return what they printed.

    Raises UserError if one fails.
    """
    done = subprocess.run(_call(commands), env=dict(env), cwd=cwd, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode:
        raise UserError(_failed(commands[-1], said))
    return said


def _call(commands: Sequence[Sequence[str]]) -> list[str]:
    return [sys.executable, "-c", _MANY, json.dumps([list(c) for c in commands])]


def _failed(command: Sequence[str], said: str) -> str:
    last = [line for line in said.splitlines() if line.strip()][-3:]
    return f"flwr {' '.join(command[:2])}: failed: {' / '.join(last)}"


@dataclass(frozen=True)
class Loopback:
    """A federation of ``nodes`` SuperNodes for the app in ``app``; everything that it leaves lies in ``folder``.

    ``ports`` are the SuperLink's and then one a node. With ``warm`` the nodes answer from a process that has imported
    everything, ``imports`` too (see :mod:`hanse.deployment.warm`). ``listen`` (HOST:PORT) is where the proxy
    takes nodes, under the names ``hosts``; without it they talk to the SuperLink itself. A run waits for ``members``
    (0: as many as nodes).
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
        """Write down how the federation is made, for the commands that follow."""
        (self.folder / "network.json").write_bytes(TypeAdapter(Loopback).dump_json(self) + b"\n")

    @staticmethod
    def read(folder: Path) -> Loopback:
        """Return the federation whose state lies in ``folder``. Raises UserError if there is none."""
        path = folder / "network.json"
        if not path.exists():
            raise UserError(f"{folder}: no federation was brought up here (it has no network.json)")
        return TypeAdapter(Loopback).validate_json(path.read_bytes())

    @property
    def nodes(self) -> int:
        """How many nodes there can be."""
        return len(self.ports) - 1

    @property
    def door(self) -> str:
        """The address that a node on this machine talks to."""
        if not self.listen:
            return f"{HOST}:{self.ports[0]}"
        host, port = split(self.listen, "--listen")
        return f"{HOST if host in ('0.0.0.0', '[::]') else host}:{port}"

    @property
    def processes(self) -> Processes:
        """What runs."""
        return Processes(self.folder / "logs")

    # ---- up and down

    def up(self, only: Sequence[int] | None = None, more: Mapping[str, str] | None = None) -> None:
        """Start what is not running: SuperLink, proxy, keeper, nodes (``only`` these; the others are registered all the
        same).

        ``more`` are variables for all of them. Raises UserError if the SuperLink or the proxy does not come up.
        """
        from hanse.deployment.certificates import make_certificates, make_node_key, make_outside

        superlink = f"{HOST}:{self.ports[0]}"
        proxy = configure(self.folder / "proxy", self.listen, superlink, self.nodes) if self.listen else None
        for private in ("flwr", "keys", "logs", "participants"):
            private_folder(self.folder / private)
        self.save()
        certs = self.folder / "certs"
        if not (certs / "server.crt").exists():
            make_certificates(certs, self.app.name)
        if proxy:
            make_outside(certs, self.hosts)
        self.start_superlink(more)
        if proxy:
            self.start_proxy(proxy)
        fresh = [i for i in range(self.nodes) if not self._key(i).exists()]
        for i in fresh:
            make_node_key(self._key(i))
        self.register([(f"{self._key(i)}.pub", f"node{i}") for i in fresh])
        for i in range(self.nodes) if only is None else only:
            self.start_node(i, more)

    def start_superlink(self, more: Mapping[str, str] | None = None) -> None:
        """Start the SuperLink and wait until it answers. Raises UserError if it does not."""
        certs, port = self.folder / "certs", self.ports[0]
        home = self.folder / "flwr"
        address = f'address = "{HOST}:{port}"\nroot-certificates = "{certs}/ca.crt"\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n[superlink.here]\n{address}')
        if self.processes.pid("superlink") is None:
            command = [
                *walls.command("flower-superlink"), "--ssl-certfile", f"{certs}/server.crt", "--ssl-keyfile",
                f"{certs}/server.key", "--ssl-ca-certfile", f"{certs}/ca.crt", "--enable-supernode-auth",
                "--disable-runtime-dependency-installation", "--host", HOST, "--port", str(port),
                "--database", f"{home}/superlink.db",
            ]  # fmt: skip
            self.processes.start("superlink", command, self.env() | dict(more or {}), self.app)
        self._wait("superlink", f"https://{HOST}:{port}{walls.ASK if walls.TABLE.exists() else '/health'}", 200)

    def start_proxy(self, command: Sequence[str]) -> None:
        """Start the proxy if it does not run, and wait until it answers. Raises UserError if it does not."""
        if self.processes.pid("proxy") is None:
            self.processes.start("proxy", command, self.env(), self.folder)
        self._wait("proxy", f"https://{self.door}{walls.ASK}", 403)

    def _wait(self, name: str, url: str, status: int) -> None:
        wrong = wait_for(url, status, lambda: self.processes.pid(name) is not None)
        if wrong is not None:
            raise UserError(f"the {name} {wrong}: {self.processes.log(name)[-300:]}")

    def register(self, keys: Sequence[tuple[str, str]]) -> None:
        """Admit nodes, ``(public key file, name)``, to the federation."""
        if keys:
            flwr([["supernode", "register", key, "here", "--name", name] for key, name in keys], self.env(), self.app)

    def start_node(self, i: int, more: Mapping[str, str] | None = None, key: Path | None = None) -> None:
        """Start node ``i`` if it does not run, with another ``key`` if one is given."""
        if self.processes.pid(f"node{i}") is not None:
            return
        env = self.env(f"node{i}") | {"HANSE_HOME": str(self.folder / "participants" / f"node{i}")} | dict(more or {})
        env |= self._warm()
        command = [
            *walls.command("flower-supernode"), "--root-certificates", str(self.folder / "certs" / "ca.crt"),
            "--auth-supernode-private-key", str(key or self._key(i)), "--superlink", self.door,
            "--host", HOST, "--port", str(self.ports[1 + i]),
            "--node-config", f"partition-id={i} num-partitions={self.nodes}",
        ]  # fmt: skip
        self.processes.start(f"node{i}", command, env, self.app)

    def down(self) -> list[str]:
        """Stop what runs; return what was no longer running."""
        names = self.processes.names()
        keeper = [name for name in names if name == "keeper"]  # last: nodes that go down may still ask it
        gone = self.processes.stop(*(name for name in names if name != "keeper"))
        gone += self.processes.stop(*keeper)
        if keeper and (self.folder / "keeper.json").exists():
            shutil.rmtree(Path(json.loads((self.folder / "keeper.json").read_text())).parent, ignore_errors=True)
        return gone

    # ---- runs

    def play(
        self,
        config: Mapping[str, str | int | float | bool] | None = None,
        log: str = "run",
        show: Callable[[str], None] = lambda line: None,
    ) -> str:
        """Start a run of the app with these values of its configuration, wait for its end, return what it printed.

        ``show`` is given what a server of ours says of the run, line by line, as it goes on. Raises UserError if it
        cannot be started, if what was given is wrong, or another process plays here, and RunFailedError if it ends
        before its last round.
        """
        words = [f"{k}={json.dumps(v)}" if not isinstance(v, str) else f"{k}='{v}'" for k, v in (config or {}).items()]
        command = ["run", str(self.app), "here", "--stream", *(["-c", " ".join(words)] if words else [])]
        path = self.folder / "logs" / f"{log}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with Hold(path.parent) as hold:  # two would share the log
            hold.take()
            return self._followed(command, path, show)

    def _followed(self, command: Sequence[str], log: Path, show: Callable[[str], None]) -> str:
        heard: list[str] = []
        code = stream(_call([command]), self.env(), self.app, log, _new(heard, show))
        said = log.read_text(errors="replace")
        started = re.search(r"started run (\d+)", said)
        if started is None:
            raise UserError(_failed(command, said) if code else f"the run was not started: {said[-300:]}")
        while not (ended := self.status(started[1]))[0].startswith("finished"):
            time.sleep(1.0)  # the stream of a run's log may end before the run does
            stream(
                _call([["log", started[1], "here", "--stream"]]), self.env(), self.app, log, _new(heard, show)
            )  # from its beginning
        status, details = ended
        if status != "finished:completed":
            said = log.read_text(errors="replace")
            why = [line for line in heard if line.startswith(TOLD_AT_THE_END)]
            why = why or [line for line in (details.partition("\n")[0], last_error(said)) if line]
            lines = (f"the run did not complete ({status})", *why, f"its log: {log}")
            raise UserError(*lines) if any(line.startswith("mistake: ") for line in why) else RunFailedError(*lines)
        return log.read_text(errors="replace")

    def status(self, run: str) -> tuple[str, str]:
        """Return a run's status as Flower names it ("running", "finished:completed", ...) and its details.

        Raises UserError if the SuperLink does not say.
        """
        try:
            said = flwr([["list", "--run-id", run, "--format", "json"]], self.env(), self.app)
            [found] = json.loads(said[said.index("{") : said.rindex("}") + 1])["runs"]
        except (ValueError, KeyError) as wrong:  # UserError is a ValueError: the command failed
            raise UserError(
                f"the SuperLink does not say how the run goes ({str(wrong)[:200]}); 'hanse network up' starts it if it "
                "has gone, and 'hanse network run' goes on after the last finished round"
            ) from None
        return str(found["status"]), str(found["status-details"])

    def env(self, name: str = "") -> dict[str, str]:
        """Return the environment of a process of this federation."""
        beside = Path(sys.executable).parent
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
        """Return the variables that lead a node to the keeper, which is started if it does not run."""
        if not self.warm:
            return {}
        from hanse.deployment.warm import SOCKET, link

        said = self.folder / "keeper.json"
        if self.processes.pid("keeper") is None:
            # a socket's path has at most some hundred characters
            where = Path(tempfile.mkdtemp(prefix="hanse-")) / "keeper"
            said.write_text(json.dumps(str(where)))
            command = [sys.executable, "-m", "hanse.deployment.warm", str(where)]
            command += [word for name in self.imports for word in ("--import", name)]
            self.processes.start("keeper", command, self.env("keeper"), self.app)
            end = time.monotonic() + 120
            while not where.exists() and self.processes.pid("keeper") is not None and time.monotonic() < end:
                time.sleep(0.05)
            if not where.exists():
                said_last = self.processes.log("keeper").strip().splitlines()[-1:]
                raise UserError(f"the nodes' warm process does not come up: {' '.join(said_last)}")
        where = Path(json.loads(said.read_text()))
        commands = link(self.folder / "warm")
        return {SOCKET: str(where), "PATH": f"{commands}:{self.env()['PATH']}"}

    def _key(self, i: int) -> Path:
        return self.folder / "keys" / f"node{i}"


def _new(heard: list[str], show: Callable[[str], None]) -> Callable[[str], None]:
    """Return what takes a log's lines, from its first one on, into ``heard``, and shows those that are new."""
    known = iter(list(heard))

    def take(line: str) -> None:
        if next(known, None) is None:
            heard.append(line)
            if not line.startswith(TOLD_AT_THE_END):
                show(line)

    return take
