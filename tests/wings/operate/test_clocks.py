"""Clocks that differ and certificates that have run out: both ends say so at the first request."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
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
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

import hanse.wings.operate.certificates as making
from hanse.base.errors import UserError
from hanse.wings.operate.clocks import (
    AHEAD_S,
    BEHIND_S,
    ClockGate,
    check_certificates,
    name_refusals,
    skewed,
    why_refused,
)
from hanse.wings.operate.loopback import Loopback
from hanse.wings.operate.server_access import gated

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def test_the_bounds_are_flowers() -> None:
    assert (AHEAD_S, BEHIND_S) == (SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE)


@given(st.floats(-1e6, 1e6))
def test_a_clock_is_named_if_flower_refuses_it(seconds: float) -> None:
    refused = not -SYSTEM_TIME_TOLERANCE <= -seconds < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
    node = NOW + timedelta(seconds=seconds)
    exact = (NOW - node).total_seconds()
    assert bool(skewed(node, NOW)) == (
        not -SYSTEM_TIME_TOLERANCE <= exact < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
    )
    if refused and abs(abs(seconds) - AHEAD_S) > 1 and abs(abs(seconds) - BEHIND_S) > 1:  # a date has whole seconds
        assert ("ahead" if seconds > 0 else "behind") in why_refused(
            401, {"date": format_datetime(NOW, usegmt=True)}, node
        )
    assert not why_refused(200, {"date": format_datetime(NOW, usegmt=True)}, node)
    assert not why_refused(401, {"date": "yesterday"}, node)
    assert not why_refused(401, {}, node)


def through(gate: ClockGate, headers: list[tuple[bytes, bytes]], kind: str = "http") -> None:
    async def receive() -> Any:
        return {}

    async def send(_: Any) -> None:
        pass

    asyncio.run(gate({"type": kind, "headers": headers}, receive, send))


def test_the_servers_log_names_a_nodes_clock_once_in_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    passed: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["type"])

    gate = ClockGate(app)
    odd = (b"", b"now", b"\xff", b"2026-11-28T12:00:00", datetime.now(UTC).isoformat().encode())
    for stamp in odd:
        through(gate, [(b"flwr-timestamp", stamp)])
    through(gate, [], "lifespan")
    assert capsys.readouterr().out == ""
    for _ in range(3):
        through(gate, [(b"flwr-timestamp", (datetime.now(UTC) + timedelta(seconds=45)).isoformat().encode())])
    [line] = capsys.readouterr().out.splitlines()
    assert "ahead" in line
    assert len(passed) == len(odd) + 4  # Flower answers them
    assert isinstance(gated("flower-superlink", app), object)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    making.make_certificates(tmp_path, "test")
    return tmp_path


@pytest.fixture
def server(made: Path) -> Iterator[int]:
    """A SuperLink that refuses every signature, 45 s behind this machine."""

    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(401)
            self.send_header("Date", format_datetime(datetime.now(UTC) - timedelta(seconds=45), usegmt=True))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    http = HTTPServer(("127.0.0.1", 0), Refuses)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / "server.crt", made / "server.key")
    http.socket = context.wrap_socket(http.socket, server_side=True)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield http.server_port
    http.shutdown()
    http.server_close()


def asked(port: int, ca: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a node says when it asks a SuperLink something."""
    said: list[str] = []
    monkeypatch.setattr(httpx.Client, "send", httpx.Client.send)  # to be put back
    name_refusals(said.append)
    context = ssl.create_default_context(cafile=str(ca))
    with httpx.Client(verify=context, trust_env=False) as client:
        try:
            client.get(f"https://127.0.0.1:{port}/")
        except httpx.ConnectError:
            said.append("not connected")
    return said


def test_a_node_names_its_clock_when_it_is_refused(server: int, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [line] = asked(server, made / "ca.crt", monkeypatch)
    assert "clock" in line
    assert "ahead" in line


class TestRunOut:
    @pytest.fixture(autouse=True)
    def _old(self, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
        monkeypatch.setattr(making, "DAYS", -1 / 24 / 60)  # it runs out a minute before it is made

    def test_a_node_names_the_certificate(self, server: int, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        line, end = asked(server, made / "ca.crt", monkeypatch)
        assert "certificate" in line
        assert end == "not connected"

    def test_the_operator_is_told_before_anything_starts(self, made: Path) -> None:
        with pytest.raises(UserError) as refused:
            check_certificates(made, datetime.now(UTC))
        assert sum("crt: is valid" in line for line in refused.value.lines) == 2

    def test_the_operator_is_told_if_they_run_out_during_a_run(self, tmp_path: Path) -> None:
        making.make_certificates(tmp_path / "certs", "test")
        lines = Loopback(tmp_path, tmp_path, (9100,))._lost("no answer").lines
        assert sum("crt: is valid" in line for line in lines) == 2


def test_certificates_that_will_run_out_are_warned_of(made: Path) -> None:
    now = datetime.now(UTC)
    assert check_certificates(made, now) == []
    assert len(check_certificates(made, now + timedelta(days=340))) == 2
    with pytest.raises(UserError, match=r"ca\.crt"):
        check_certificates(made, now + timedelta(days=366))
    with pytest.raises(UserError, match=r"ca\.crt"):  # a clock that is behind
        check_certificates(made, now - timedelta(days=1))


def test_nothing_is_loaded_that_a_node_does_not_need() -> None:
    loaded = "{'httpx', 'cryptography'} & sys.modules.keys()"
    code = f"import sys, hanse.wings.operate.clocks; assert not {loaded}"
    subprocess.run([sys.executable, "-c", code], check=True)
