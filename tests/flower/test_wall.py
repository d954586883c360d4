"""Who may talk to a SuperLink: nodes with an admitted key through the proxy, its user on its machine, nobody else."""

import http.client
import http.server
import json
import os
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from commands import invoke
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from deployed import APP, PAYMENTS, clients, experiment, final, free_ports, kinds, metrics, network, plan, until
from flwr.app import Message, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import push_objects
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.routers.control.router import router as control
from flwr.superlink.routers.fleet.router import router
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from test_signing import through

import hanse
from hanse.core.port import Ask, Request
from hanse.federation.codec import Message as Packed
from hanse.federation.codec import pack
from hanse.flower.message import QUERY, to_records
from hanse.flower.operator_key import PINNED, make_operator_key, public_key
from hanse.flower.warm_memory import remembered
from hanse.ledger.index import difference
from hanse.ledger.note import fingerprint
from hanse.ledger.run_ledger import open_ledger
from hanse.wings.operate import certificates, server_access, warm_process
from hanse.wings.operate.certificates import make_certificates, make_outside
from hanse.wings.operate.loopback import Loopback, flwr

STRANGER = 65534  # a user that is not this one: nobody
TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:4650 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:C001 0100007F:4650 01 00000000:00000000 00:00000000 00000000  {user}        0 2 1 0 100 0 0 10 0
   2: 0100007F:C002 0100007F:4650 06 00000000:00000000 03:0000016F 00000000     0        0 0 3 0 100 0 0 10 0
"""


def test_the_proxy_passes_all_that_flower_has_for_nodes_but_registering_without_a_key(tmp_path: Path) -> None:
    served = {route.path.removeprefix("/v1/fleet/") for route in router.routes}  # type: ignore[attr-defined]
    assert served - set(server_access.NEEDED) == {"register-node", "unregister-node"}
    assert set(server_access.NEEDED) < served
    if server_access.nginx() is None:
        pytest.skip("needs nginx")
    server_access.configure(tmp_path / "proxy", "127.0.0.1:9092", "127.0.0.1:18000")
    said = (tmp_path / "proxy" / "nginx.conf").read_text()
    passed = re.findall(r"proxy_pass (\S+);", said)
    assert sorted(passed) == sorted(f"https://127.0.0.1:18000/v1/fleet/{name}" for name in server_access.NEEDED)
    assert len(re.findall(r"^ *location = ", said, re.MULTILINE)) == len(server_access.NEEDED)


@pytest.mark.parametrize("listen", ["9092", "0.0.0.0:70000", "0.0.0.0:9092 ssl; #:1"])
def test_an_address_that_is_none_is_refused_and_named(listen: str) -> None:
    with pytest.raises(hanse.UserError, match=r"--listen.*65535"):
        server_access.split(listen, "--listen")
    with pytest.raises(hanse.UserError, match=r"HOST:PORT: .*, such as fed\.example\.org:9092$"):
        server_access.split(listen, "HOST:PORT", "fed.example.org:9092")


def test_an_operator_without_nginx_or_names_is_told_before_anything_starts(
    harvest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(p.name for p in harvest.iterdir())
    monkeypatch.setattr(server_access, "PLACES", ())
    monkeypatch.setenv("PATH", str(harvest))
    up = ["network", "up", "harvest", "--nodes", "0", "--port", str(free_ports(1)[0])]
    for more, said in {
        (): "--members: must be given",
        ("--members", "3", "--listen", "0.0.0.0:9092"): "--host: must be given",
        ("--members", "3", "--listen", "0.0.0.0:9092", "--host", "fed.example.org"): "nginx: is not installed",
    }.items():
        result = invoke(*up, *more)
        assert isinstance(result.exception, hanse.UserError), result.output
        assert said in str(result.exception)
    assert sorted(p.name for p in harvest.iterdir()) == before


@pytest.mark.usefixtures("unwarmed")
def test_a_participant_joins_with_a_key_a_ca_and_the_operators_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, join: Callable[..., tuple[int, str]]
) -> None:
    started: list[Any] = []

    def run(name: str, words: list[str]) -> None:
        started.append((name, words, os.umask(0o077)))

    assert ("--operator" in (said := join())[1], said[0]) == (True, 2)
    code, shown = join("--operator", operator := make_operator_key(tmp_path))
    assert (code, fingerprint(public_key(operator)) in shown) == (0, True)
    assert join("--node-config", "partition-id=1", run=run)[0] == 0  # it is pinned by now
    assert os.environ[PINNED] == str(tmp_path / "home" / "operators" / "h_9092.pub")
    words = ["--superlink", "h:9092", "--root-certificates", str(tmp_path / "ca.crt"), "--auth-supernode-private-key"]
    words += [str(tmp_path / "clinic"), "--host", "127.0.0.1", "--port", "9094", "--node-config", "partition-id=1"]
    assert started == [("flower-supernode", words, 0o077)]
    monkeypatch.setattr(server_access, "is_free", lambda port: port != 9094)
    assert join()[1].startswith("--port: 9094: is taken")
    monkeypatch.setattr(server_access, "is_free", lambda port: True)
    for line in ("", "no certificate"):
        (tmp_path / "ca.crt").write_text(line)
        assert join()[0] == 2


@pytest.mark.slow
def test_a_participants_messages_are_answered_by_a_warm_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, join: Callable[..., tuple[int, str]]
) -> None:
    for name in ("PATH", warm_process.SOCKET, "FLWR_TELEMETRY_ENABLED"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # what the command sets is taken back
    found: list[subprocess.CompletedProcess[str]] = []

    def answers(name: str, words: list[str]) -> None:
        """A message comes in."""
        found.append(subprocess.run([warm_process.COMMAND, "--help"], capture_output=True, text=True, check=False))
        assert [remembered("a table", "1", lambda made=made: made) for made in (1, 2)] == [1, 1]

    assert join("--operator", make_operator_key(tmp_path), "--import", "colorsys", run=answers)[0] == 0
    [message] = found
    assert "--runtime-api-address" in message.stdout
    assert message.stderr == ""  # a cold start would say so
    assert not Path(os.environ[warm_process.SOCKET]).parent.exists()


def test_the_certificate_shown_outside_is_for_the_names_that_participants_use(tmp_path: Path) -> None:
    make_certificates(tmp_path, "harvest")
    make_outside(tmp_path, ["fed.example.org", "192.0.2.7"])
    first = (tmp_path / "outside.crt").read_bytes()
    make_outside(tmp_path, ["fed.example.org"])
    assert (tmp_path / "outside.crt").read_bytes() == first
    with pytest.raises(hanse.UserError, match=r"outside.crt.*other.example.org"):
        make_outside(tmp_path, ["other.example.org"])
    with pytest.raises(hanse.UserError, match="--host: 'a b'"):
        make_outside(tmp_path, ["a b"])
    assert (tmp_path / "outside.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("client", "user"),
    [
        (("127.0.0.1", 0xC001), 1007),
        (("127.0.0.1", 0xC002), None),  # no longer open: the kernel says 0, whoever had it
        (("127.0.0.1", 0xC003), None),
        (("10.0.0.1", 0xC001), None),
        (("::1", 0xC001), None),
    ],
)
def test_the_kernel_says_whose_a_connection_is(client: tuple[str, int], user: int | None) -> None:
    assert server_access.user_of(client, ("127.0.0.1", 18000), TABLE.format(user=1007)) == user


@pytest.mark.parametrize(
    ("path", "user", "status"),
    [
        ("/v1/control/start-run", STRANGER, 403),
        ("/v1/runtime/acquire-task", STRANGER, 403),
        ("/v1/fleet/register-node", STRANGER, 403),
        ("/v1/control/start-run", os.geteuid(), 299),
        ("/v1/fleet/pull-messages", STRANGER, 299),  # Flower wants a key for it
        (server_access.ASK, STRANGER, 200),
    ],
)
def test_the_gate_serves_its_own_user_alone(
    path: str, user: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tcp").write_text(TABLE.format(user=user))
    monkeypatch.setattr(server_access, "TABLE", tmp_path / "tcp")
    gate = partial(server_access.UserGate, everybody=server_access.SERVED["flower-superlink"])
    assert through(gate, path, client=("127.0.0.1", 0xC001), server=("127.0.0.1", 18000)) == (status, b"")


def test_a_connection_is_looked_up_once_and_another_with_the_same_port_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_access, "TABLE", tmp_path / "tcp")
    gate = server_access.UserGate(None, ())

    def passes(client: tuple[str, int]) -> bool:
        return gate._own({"client": client, "server": ("127.0.0.1", 18000)})

    # another object each time, as uvicorn makes them
    mine, strangers = (("127.0.0.1", int(port, 16)) for port in ("C001", "C001"))
    (tmp_path / "tcp").write_text(TABLE.format(user=STRANGER))
    assert not passes(mine)  # a refusal is not kept
    (tmp_path / "tcp").write_text(TABLE.format(user=os.geteuid()))
    assert passes(mine)
    (tmp_path / "tcp").write_text(TABLE.format(user=STRANGER))
    assert (passes(mine), passes(strangers)) == (True, False)


# ---- with real processes


class Counts(http.server.BaseHTTPRequestHandler):
    """A SuperLink that answers how many bytes it was sent."""

    def do_POST(self) -> None:
        said = str(len(self.rfile.read(int(self.headers["Content-Length"])))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[tuple[int, int, Callable[[str], None]]]:
    """Yield the port of an nginx as 'hanse network up' starts it, the process id of its worker, and what lets the
    server behind it show another certificate.
    """
    if server_access.nginx() is None:
        (pytest.fail if os.environ.get("HANSE_TEST_PROXY") else pytest.skip)("needs nginx (.ci/proxy)")
    certs = tmp_path / "certs"
    make_certificates(certs, "harvest")
    make_outside(certs, ["localhost"])
    behind = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Counts)
    shown = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)

    def show(stem: str) -> None:
        shown.load_cert_chain(certs / f"{stem}.crt", certs / f"{stem}.key")

    show("server")
    behind.socket = shown.wrap_socket(behind.socket, server_side=True)
    threading.Thread(target=behind.serve_forever, daemon=True).start()
    [port] = free_ports(1)
    command = server_access.configure(tmp_path / "proxy", f"127.0.0.1:{port}", f"127.0.0.1:{behind.server_port}")
    started = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        wrong, url = list[str](), f"https://127.0.0.1:{port}/"
        assert server_access.awaited("nginx", server_access.answers(url, 403, wrong), lambda: started.poll() is None)
        assert wrong == []
        yield port, int(Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()[0]), show
    finally:
        started.terminate()
        started.wait()
        behind.shutdown()
        behind.server_close()


def _memory(process: int) -> int:
    """Return the bytes that a process holds in memory."""
    return 1024 * int(re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())[0])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_bodies_that_never_end_are_kept_in_files_and_few_at_once(proxy: tuple[int, int, Any]) -> None:
    port, worker, _ = proxy
    large = 5 * 1024**2 + 5000  # a piece of an array, as Flower cuts them
    assert _post(port, "push-object", bytes(large)) == (200, str(large).encode())
    assert [_post(port, name, bytes(large))[0] for name in ("push-messages", "pull-object")] == [413, 413]
    before, held = _memory(worker), list[socket.socket]()
    anybody = ssl._create_unverified_context()
    try:
        for _ in range(server_access.PUSHES):
            held.append(anybody.wrap_socket(socket.create_connection(("127.0.0.1", port))))
            held[-1].sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n")
            held[-1].sendall(bytes(6_000_000))
        until("a ninth is refused", lambda: _post(port, "push-object", b"x")[0] == 503)
        assert _post(port, "pull-messages", b"x") == (200, b"1")  # other requests pass
        # the last pieces may still be in the kernel's buffers; in nginx's memory it was all of them, 48 MB
        assert _memory(worker) - before < 8_000_000
    finally:
        for one in held:
            one.close()


def test_the_proxy_forgets_a_certificate_that_has_run_out_once_there_is_another(
    proxy: tuple[int, int, Callable[[str], None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, _, show = proxy
    certs = tmp_path / "certs"
    monkeypatch.setattr(certificates, "DAYS", -1e-3)
    certificates._make_server(certs, "old", [])
    for stem, status in (("old", 502), ("server", 200)):
        show(stem)
        assert [_post(port, "pull-messages", b"x")[0] for _ in range(3)] == [status] * 3


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Loopback]:
    if server_access.nginx() is None:
        (pytest.fail if os.environ.get("HANSE_TEST_PROXY") else pytest.skip)("needs nginx (.ci/proxy)")
    [port] = free_ports(1)
    made = replace(network(tmp_path / "net", 2), listen=f"127.0.0.1:{port}")
    try:
        yield made
    finally:
        made.down()


@pytest.mark.slow
@pytest.mark.by_turns(5, 0)
def test_strangers_ask_nothing_members_instruct_no_other_and_honest_nodes_work(net: Loopback, tmp_path: Path) -> None:
    server = os.environ.get("HANSE_TEST_POSTGRES")  # books in PostgreSQL where there is one, else in SQLite
    books = {"ledger": {"url": server}} if server else {}
    exp = experiment("pifl", nodes=2, rounds=6, mechanism={"by_contribution": 1, "at_random": 1}, **books)
    net.up()
    play = threading.Thread(target=net.play, args=({"plan": str(plan(tmp_path, {"run": exp}))},))
    play.start()
    until("the first round", lambda: (tmp_path / "run" / "metrics.jsonl").exists())
    run = re.findall(r'"run-id": "(\d+)"', flwr([["list", "--format", "json"]], net.env(), APP))[0]

    outside = int(net.door.rpartition(":")[2])
    for path in (
        *(route.path for route in control.routes),  # type: ignore[attr-defined]
        "/v1/runtime/acquire-task", "/v1/fleet/register-node", "/v1/fleet/../control/list-runs", "/docs", "/health",
        "//v1/control/list-runs", "/v1/fleet%2f..%2fcontrol/list-runs", "/v1/fleet/get-run/../../control/list-runs",
    ):  # fmt: skip
        assert _ask(outside, "POST", path) == 403, path
    assert _ask(outside, "GET", "/v1/fleet/pull-messages") == 403
    # what is passed on is the path that was allowed, not what was written: to Flower this is get-run, without a body
    assert _ask(outside, "POST", "/v1/control/list-runs/../../fleet/get-run") == 415
    if os.geteuid() == 0:  # only root can be somebody else
        for port in (net.ports[0], net.ports[1]):
            assert _as_a_stranger(port, "/v1/runtime/acquire-task", tls=port == net.ports[0]) == 403
        assert _as_a_stranger(net.ports[0], "/v1/control/list-runs") == 403
    victim, attacker = (int(re.findall(r"SuperNode ID: (\d+)", net.processes.log(f"node{i}"))[-1]) for i in (0, 1))
    stay = pack(Request(0, (Ask("stay", {}),)))
    for forged in (to_records(stay, kind="request", round=0, client=0), to_records(Packed("null"), kind="hello")):
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            _instruct(net, int(run), attacker, victim, forged)
    told = "hanse: refused: an instruction to node"
    until("both are refused", lambda: net.processes.log("superlink").count(told) == 2)
    play.join()

    assert len(metrics(tmp_path / "run")) == exp.run.rounds
    local, state = hanse.run(exp, out=tmp_path / "here"), final(tmp_path / "run")
    assert torch.equal(local.table.rows, state.table.rows)
    assert local.clients == clients(tmp_path / "run")  # seats, weights, losses, values
    assert replace(local.book, peaks=()) == replace(state.book, peaks=())  # closes have hashes of the engine's records
    assert kinds(tmp_path / "run") == PAYMENTS["pifl"] | {"grant", "close"}
    ledger = open_ledger(tmp_path / "run")
    assert ledger.as_book().head == state.book.head
    assert ledger.verify().ok
    assert difference(server or tmp_path / "run" / "ledger.db", ledger) is None
    assert f"app as user id {os.geteuid()}:" in net.processes.log("node0").splitlines()[0]
    for place in ("participants", "flwr", "keys", "logs", "proxy"):
        assert [p for p in (net.folder / place).rglob("*") if p.is_file()]
        assert (net.folder / place).stat().st_mode & 0o077 == 0
    kept = list((net.folder / "participants").rglob("*"))
    assert {p.name for p in kept} >= {"secret.key", "models.npz", "receipts"}
    assert [p for p in kept if p.stat().st_mode & 0o077] == []


def _instruct(net: Loopback, run: int, attacker: int, victim: int, content: RecordDict) -> None:
    """Push a message to the node ``victim`` with the key of ``node1``, as if the server had sent it."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, SUPERLINK_NODE_ID, 1
    message = Message(content, dst_node_id=victim, message_type=QUERY, ttl=600.0)
    message.metadata.__dict__["_message_id"] = message.object_id
    key = load_ssh_private_key((net.folder / "keys" / "node1").read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    ca, signs = (net.folder / "certs" / "ca.crt").read_bytes(), NodeAuthHttpInterceptor(key, key.public_key())
    fleet, node = FleetHttpClient.from_server_address(net.door, False, ca, [signs]), NodeProto(node_id=attacker)
    with no_object_id_recompute():
        body, tree = message_to_proto(remove_content_from_message(message)), get_object_tree(message)
        pushed = fleet.PushMessages(PushMessagesRequest(node=node, messages_list=[body], message_object_trees=[tree]))
        push, due = make_push_object_fn_protobuf(fleet.PushObject, node, run, pushed.session_id), pushed.objects_to_push
        push_objects(get_all_nested_objects(message), push_object_fn=push, object_ids_to_push=set(due))


def _post(port: int, name: str, body: bytes) -> tuple[int, bytes]:
    return _answer(port, "POST", f"/v1/fleet/{name}", body=body)


def _ask(port: int, method: str, path: str, tls: bool = True) -> int:
    return _answer(port, method, path, tls)[0]


def _answer(port: int, method: str, path: str, tls: bool = True, body: bytes | None = None) -> tuple[int, bytes]:
    made = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=ssl._create_unverified_context())
    connection = made if tls else http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _as_a_stranger(port: int, path: str, tls: bool = True) -> int:
    """Ask as another user of this machine, in a process of that user."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setuid(STRANGER)
            os.write(writing, json.dumps(_ask(port, "POST", path, tls)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as said:
        return int(said.read() or 0)
