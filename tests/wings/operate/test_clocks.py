"""Clocks that differ and certificates that have run out: both ends say so at the first request."""

import asyncio
import hashlib
import queue
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="needs the extra 'flower'")

import httpx
import uvicorn
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE
from flwr.supercore.retry import make_simple_http_retry_invoker

import hanse.wings.operate.certificates as making
from hanse.base.errors import UserError
from hanse.wings.operate import clocks
from hanse.wings.operate.loopback import Loopback
from hanse.wings.operate.server_access import load_anew

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def test_whatever_flower_refuses_is_named() -> None:
    assert clocks.APART_S == SYSTEM_TIME_TOLERANCE < TIMESTAMP_TOLERANCE


@given(st.floats(-1e9, 1e9), st.floats(0, 1e4))
def test_a_clock_that_is_wrong_is_named_whichever_way_and_a_slow_request_is_not(wrong: float, took: float) -> None:
    first, last = NOW + timedelta(seconds=wrong), NOW + timedelta(seconds=wrong + took)
    said = clocks.skewed(first, last, NOW)
    if abs(wrong - clocks.APART_S) < 1e-3 or abs(wrong + took + clocks.APART_S) < 1e-3:
        return
    sign = "ahead of" if wrong > clocks.APART_S else "behind" if wrong + took < -clocks.APART_S else ""
    assert said.partition(" s ")[2] == sign


def through(gate: clocks.ClockGate, headers: list[tuple[bytes, bytes]], kind: str = "http", path: str = "/") -> None:
    async def receive() -> Any:
        return {}

    async def send(_: Any) -> None:
        pass

    asyncio.run(gate({"type": kind, "headers": headers, "path": path}, receive, send))


@pytest.mark.parametrize("off", [45, -(10**8)])
def test_the_servers_log_names_a_nodes_clock_once_in_a_while(off: int, capsys: pytest.CaptureFixture[str]) -> None:
    passed: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["type"])

    gate, stamp = clocks.ClockGate(app), (datetime.now(UTC) + timedelta(seconds=off)).isoformat().encode()
    odd = (b"", b"now", b"\xff", b"2026-11-28T12:00:00", datetime.now(UTC).isoformat().encode())
    for sent in odd:
        through(gate, [(b"flwr-timestamp", sent)])
    through(gate, [], "lifespan")
    through(gate, [(b"flwr-timestamp", stamp)], path=clocks.ARRAYS)  # it may have been under way for long
    assert capsys.readouterr().out == ""
    for _ in range(3):
        through(gate, [(b"flwr-timestamp", stamp)])
    [line] = capsys.readouterr().out.splitlines()
    assert ("ahead" if off > 0 else "behind") in line
    assert len(passed) == len(odd) + 5  # Flower answers them


def test_a_node_that_was_let_in_once_shows_its_clock_when_it_is_refused() -> None:
    codes = iter((200, 401, 401))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"status": next(codes)})

    gate = clocks.ClockGate(app)
    for off, key in ((0, b"aaaa"), (45, b"aaaa"), (45, b"bbbb")):
        stamp = (datetime.now(UTC) + timedelta(seconds=off)).isoformat().encode()
        through(gate, [(b"flwr-timestamp", stamp), (clocks.PUBLIC_KEY, key)])
    assert [round(ahead) for _, ahead in gate._heard.values()] == [45]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    making.make_certificates(tmp_path, "test")
    return tmp_path


class SuperLink(HTTPServer):
    """A SuperLink ``behind`` seconds behind this machine, which answers requests with ``codes``, the last one again."""

    def __init__(self, certs: Path, behind: float, *codes: int) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.behind, self.codes, self.stamps = behind, list(codes), list[str | None]()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certs / "server.crt", certs / "server.key")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_: Any) -> None:
        """A node that does not trust the certificate hangs up."""


class Answers(BaseHTTPRequestHandler):
    server: SuperLink

    def do_POST(self) -> None:
        self.server.stamps.append(self.headers.get("flwr-timestamp"))
        codes = self.server.codes
        self.send_response_only(codes.pop(0) if len(codes) > 1 else codes[0])
        self.send_header("Date", format_datetime(datetime.now(UTC) - timedelta(seconds=self.server.behind), True))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


Serve = Callable[..., SuperLink]


@pytest.fixture
def serve(made: Path) -> Iterator[Serve]:
    opened: list[SuperLink] = []

    def begin(behind: float, *codes: int) -> SuperLink:
        opened.append(SuperLink(made, behind, *codes))
        return opened[-1]

    yield begin
    for one in opened:
        one.shutdown()
        one.server_close()


def asked(link: SuperLink, ca: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a node says when it asks a SuperLink to be let in, and the answer's code or that there was none."""
    said: list[str] = []
    monkeypatch.setattr(httpx.Client, "send", httpx.Client.send)  # to be put back
    clocks.name_refusals(said.append)
    with httpx.Client(verify=ssl.create_default_context(cafile=str(ca)), trust_env=False) as client:
        try:
            said.append(str(client.post(f"https://127.0.0.1:{link.server_port}{clocks.ACTIVATE}").status_code))
        except httpx.ConnectError:
            said.append("not connected")
    return said


@pytest.mark.parametrize(("behind", "sign"), [(45, "ahead"), (-400, "behind")])
def test_a_node_names_its_clock_whether_or_not_it_is_refused(
    behind: int, sign: str, serve: Serve, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, answer = asked(serve(behind, 401), made / "ca.crt", monkeypatch)
    assert (sign in line, answer) == (True, "401")
    assert asked(serve(0, 401), made / "ca.crt", monkeypatch) == [answer]


def test_a_node_that_is_taken_for_online_is_let_in_in_the_end(
    serve: Serve, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks.time, "sleep", lambda _: None)
    line, answer = asked(link := serve(0, 412, 412, 200), made / "ca.crt", monkeypatch)
    assert (answer, len(link.stamps), "minute" in line) == ("200", 3, True)
    monkeypatch.setattr(clocks, "LET_IN_S", 0.0)
    assert asked(serve(0, 412), made / "ca.crt", monkeypatch) == ["412"]  # Flower says the rest


def test_what_ails_the_superlink_or_cuts_a_connection_does_not_end_a_node(
    serve: Serve, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = make_simple_http_retry_invoker().should_giveup
    assert asked(serve(0, 500), made / "ca.crt", monkeypatch) == ["503"]
    for said, wrong in (
        ("EOF occurred in violation of protocol (_ssl.c:1016)", False),
        ("self-signed certificate", True),
    ):

        def cut(*_: Any, said: str = said, **__: Any) -> None:
            raise httpx.ConnectError(f"[SSL] {said}")

        monkeypatch.setattr(httpx.Client, "send", cut)
        clocks.name_refusals(lambda _: None)
        with httpx.Client() as client, pytest.raises(httpx.ConnectError) as raised:
            client.get("https://127.0.0.1:1")
        assert ends(raised.value) == wrong


class TestRunOut:
    @pytest.fixture(autouse=True)
    def _old(self, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
        for lasts in ("DAYS", "CA_DAYS"):
            monkeypatch.setattr(making, lasts, -1 / 24 / 60)  # it runs out a minute before it is made

    def test_a_node_names_the_certificate(self, serve: Serve, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        line, end = asked(serve(0, 401), made / "ca.crt", monkeypatch)
        assert ("certificate" in line, end) == (True, "not connected")

    def test_the_servers_log_names_it_while_nobody_asks(self, made: Path) -> None:
        said = queue.Queue[str]()
        clocks.watch_certificates(made, said.put, lambda: None)
        assert {Path(said.get(timeout=60).split(": ")[1]).name for _ in range(2)} == {"ca.crt", "server.crt"}

    def test_the_operator_is_told_if_they_run_out_during_a_run(self, tmp_path: Path) -> None:
        making.make_certificates(tmp_path / "certs", "test")
        lines = Loopback(tmp_path, tmp_path, (9100,))._lost("no answer").lines
        assert sum("crt: has run out" in line for line in lines) == 2


def test_certificates_that_will_run_out_are_warned_of(made: Path) -> None:
    now = datetime.now(UTC)
    assert clocks.check_certificates(made, now) == []
    assert len(clocks.check_certificates(made, now + timedelta(days=making.DAYS - 25))) == 1
    assert len(clocks.check_certificates(made / "ca.crt", now + timedelta(days=making.CA_DAYS - 25))) == 1
    with pytest.raises(UserError, match=r"ca\.crt"):
        clocks.check_certificates(made, now + timedelta(days=making.CA_DAYS + 1))
    with pytest.raises(UserError, match=r"ca\.crt"):  # a clock that is behind
        clocks.check_certificates(made / "ca.crt", now - timedelta(days=1))
    (made / "ca.crt").write_text("none")
    with pytest.raises(UserError, match=r"ca\.crt"):
        clocks.check_certificates(made, now)


@pytest.fixture
def shown(made: Path) -> Iterator[tuple[Callable[[Path], str], Callable[[], None]]]:
    """What a server of uvicorn's shows to who trusts a ``ca.crt``, as a digest; and what lets it load its files."""
    config = uvicorn.Config(
        None, port=0, ssl_certfile=made / "server.crt", ssl_keyfile=made / "server.key", lifespan="off"
    )  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()

    def look(ca: Path) -> str:
        trusted = ssl.create_default_context(cafile=str(ca))
        link = socket.create_connection(server.servers[0].sockets[0].getsockname())
        with trusted.wrap_socket(link, server_hostname="localhost") as safe:
            return hashlib.sha256(safe.getpeercert(binary_form=True) or b"").hexdigest()

    yield look, lambda: load_anew([config])
    server.should_exit = True
    thread.join()


def test_renewed_certificates_are_shown_by_servers_that_go_on_and_trusted_by_old_and_new_members(
    made: Path, shown: tuple[Callable[[Path], str], Callable[[], None]], tmp_path: Path
) -> None:
    look, load = shown
    own = tmp_path / "members.crt"
    own.write_bytes((made / "ca.crt").read_bytes())
    making.make_outside(made, ["fed.example.org", "192.0.2.7"])
    outside, first = making.names_of(made / "outside.crt"), look(own)
    assert making.renew_certificates(made, datetime.now(UTC)) == (["server.crt", "outside.crt"], [])
    assert making.names_of(made / "outside.crt") == outside
    assert (own.read_bytes() == (made / "ca.crt").read_bytes(), look(own)) == (True, first)
    load()
    second = look(own)
    assert second != first
    soon = datetime.now(UTC) + timedelta(days=making.CA_DAYS - 5)
    assert making.renew_certificates(made, soon)[0] == ["ca.crt", "server.crt", "outside.crt"]
    load()
    assert own.read_bytes() != (made / "ca.crt").read_bytes()
    assert look(own) == look(made / "ca.crt") != second
    making.make_certificates(tmp_path / "others", "other")
    for name in ("outside.crt", "outside.key"):
        (made / name).write_bytes((tmp_path / "others" / name.replace("outside", "server")).read_bytes())
    assert making.renew_certificates(made, datetime.now(UTC)) == (["server.crt"], ["outside.crt"])
    (made / "ca.key").unlink()
    with pytest.raises(UserError, match=r"ca\.key"):
        making.renew_certificates(made, datetime.now(UTC))


def test_nothing_is_loaded_that_a_node_does_not_need() -> None:
    loaded = "{'httpx', 'cryptography', 'torch'} & sys.modules.keys()"
    code = f"import sys, hanse.wings.operate.server_access; assert not {loaded}"
    subprocess.run([sys.executable, "-c", code], check=True)
