"""A page that others can reach, behind nginx: TLS, slow clients, limits (attack 11)."""

import contextlib
import http.client
import os
import re
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from web_cases import Growing

from hanse.base.errors import UserError
from hanse.wings.operate.page import proxy
from hanse.wings.operate.page.keys import make_key, write_keys
from hanse.wings.operate.page.proxy import behind
from hanse.wings.operate.serve import listen, prepare
from hanse.wings.operate.server_access import nginx

STRANGER, OTHER = "127.0.0.2", "127.0.0.3"  # all of 127/8 is this machine


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., int]]:
    if nginx() is None:
        (pytest.fail if os.environ.get("HANSE_TEST_PROXY") else pytest.skip)("needs nginx (.ci/proxy)")
    Growing(tmp_path / "run").round()
    with contextlib.ExitStack() as stack:

        def start(
            auth: Path | None = None, cert: Path | None = None, key: Path | None = None, wait_s: int = 600
        ) -> int:
            server, _ = prepare(tmp_path, "127.0.0.1", 0, auth)
            with listen("127.0.0.1", 0) as free:
                port = int(free.getsockname()[1])
            page = stack.enter_context(behind("127.0.0.1", port, cert, key, wait_s))
            folder = Path(page.getsockname()).parent
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700  # nobody else gets past nginx
            thread = threading.Thread(target=server.run, kwargs={"sockets": [page]})
            thread.start()
            stack.callback(thread.join, 30)
            stack.callback(setattr, server, "should_exit", True)
            return port

        yield start


@contextlib.contextmanager
def half_open(port: int, many: int, address: str) -> Iterator[list[socket.socket]]:
    """Hold connections that have sent the beginning of a request."""
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(many):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30, (address, 0)))
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            held.append(one)
        yield held


def asked(port: int, address: str, path: str = "/runs.json") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30, source_address=(address, 0))
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


def is_closed(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


def test_hundreds_of_half_open_connections_leave_others_served(serve: Callable[..., int]) -> None:
    port = serve()
    with half_open(port, 420, STRANGER):
        assert asked(port, OTHER) == 200
        assert asked(port, STRANGER) == 200


def test_headers_and_forms_have_a_time_limit(serve: Callable[..., int]) -> None:
    port = serve(wait_s=1)
    with half_open(port, 1, OTHER) as (headers,):
        assert is_closed(headers)
    with socket.create_connection(("127.0.0.1", port), 30) as form:
        form.sendall(b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nkey=")
        assert is_closed(form)


def test_who_asks_too_often_is_refused_and_others_are_served(serve: Callable[..., int]) -> None:
    port, codes = serve(), list[int]()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30, source_address=(STRANGER, 0))
    with contextlib.closing(connection):
        while 429 not in codes and len(codes) < 5000:
            connection.request("GET", "/login")
            answer = connection.getresponse()
            answer.read()
            codes.append(answer.status)
    assert set(codes[:240]) == {303}
    assert codes[-1] == 429
    assert asked(port, OTHER) == 200


def test_one_address_holds_200_live_pages_at_most_and_events_come_at_once(serve: Callable[..., int]) -> None:
    port = serve(wait_s=1)
    watching = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(watching):
        watching.request("GET", "/")
        answer = watching.getresponse()
        id_ = answer.headers["location"].rpartition("/")[2]
        answer.read()
        watching.request("GET", f"/run/{id_}/events")
        stream = watching.getresponse()
        assert stream.readline() == b"retry: 2000\n"
        with half_open(port, 1, OTHER) as (late,):
            assert is_closed(late)  # the limit on slow clients has passed, and the stream goes on
        assert asked(port, OTHER) == 200
        stream.readline()
        assert stream.readline().startswith(b'data: {"whole":true')


def test_with_a_certificate_the_page_is_served_by_tls_and_keys_are_asked_for(
    serve: Callable[..., int], tmp_path: Path
) -> None:
    pytest.importorskip("cryptography")
    cert, private = certificate(tmp_path)
    secret, key = make_key("operator")
    write_keys(tmp_path / "keys.json", [key])
    port = serve(tmp_path / "keys.json", cert, private)
    trusted = ssl.create_default_context(cafile=str(cert))

    def answer(method: str, path: str, body: str | None = None, **headers: str) -> Any:
        connection = http.client.HTTPSConnection("localhost", port, timeout=30, context=trusted)
        connection.request(method, path, body, {name.replace("_", "-"): said for name, said in headers.items()})
        return connection.getresponse()

    assert answer("GET", "/runs.json").status == 401
    right = answer("GET", "/runs.json", Authorization=f"Bearer {secret}")
    assert (right.status, right.headers["strict-transport-security"]) == (200, "max-age=31536000")
    form = answer("POST", "/login", f"key={secret}", Origin=f"https://localhost:{port}")
    assert form.status == 303
    assert "Secure" in form.headers["set-cookie"]
    assert answer("POST", "/login", f"key={secret}", Origin="https://elsewhere.example").status == 403
    assert (
        answer("POST", "/login", f"key={secret}", X_Forwarded_Proto="http").status == 303
    )  # nginx says it, nobody else
    assert "Secure" in answer("POST", "/login", f"key={secret}", X_Forwarded_Proto="http").headers["set-cookie"]


@pytest.mark.slow
def test_the_command_starts_nginx_before_the_page_and_ends_it(serve: Callable[..., int], tmp_path: Path) -> None:
    cert, private = certificate(tmp_path)
    words = ["serve", str(tmp_path), "--port", "0", "--cert", str(cert), "--cert-key", str(private)]
    command = [sys.executable, "-c", "from hanse.cli import main; main()", *words]
    environment = {**os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as served:
        try:
            found = re.search(r"https://127\.0\.0\.1:(\d+)", served.stdout.readline())
            assert found
            trusted = ssl.create_default_context(cafile=str(cert))
            connection = http.client.HTTPSConnection("localhost", int(found[1]), timeout=30, context=trusted)
            connection.request("GET", "/runs.json", headers={"Host": f"127.0.0.1:{found[1]}"})
            assert b'"rounds":1' in connection.getresponse().read()
            connection.close()
        finally:
            served.terminate()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(found[1])), 30)


def test_without_nginx_or_with_a_bad_certificate_it_says_so_in_one_line(
    serve: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad").write_text("no certificate")
    with pytest.raises(UserError, match=r"nginx: did not start: .*cannot load certificate"):
        serve(cert=tmp_path / "bad", key=tmp_path / "bad")
    with pytest.raises(UserError, match="quotes"):
        serve(cert=tmp_path / "a;b", key=tmp_path / "bad")
    monkeypatch.setattr(proxy, "nginx", lambda: None)
    with pytest.raises(UserError, match="nginx: is not installed"):
        serve()


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for localhost, and its key."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1)).sign(key, hashes.SHA256())
    )  # fmt: skip
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    return folder / "cert.pem", folder / "key.pem"
