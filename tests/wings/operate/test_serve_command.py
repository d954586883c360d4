"""``hanse serve`` and ``hanse token`` as they are called."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner
from web_cases import Growing

from hanse.base.errors import UserError
from hanse.cli import app
from hanse.wings.operate.page.keys import check_key, read_keys
from hanse.wings.operate.serve import is_loopback, listen, prepare, warn_unencrypted

CLI = CliRunner()


def test_keys_are_made_listed_and_revoked(tmp_path: Path) -> None:
    file = str(tmp_path / "keys.json")
    made = CLI.invoke(app, ["token", "new", file, "--role", "operator"])
    assert made.exit_code == 0
    secret = made.stdout.strip()
    assert check_key(read_keys(Path(file)), secret).role == "operator"
    second = CLI.invoke(app, ["token", "new", file, "--role", "participant", "--client", "3", "--run", "town"])
    key = check_key(read_keys(Path(file)), second.stdout.strip())
    assert (key.client, key.run) == (3, "town")
    listed = CLI.invoke(app, ["token", "list", file]).stdout
    assert key.id in listed
    assert "participant" in listed
    assert secret not in listed
    assert CLI.invoke(app, ["token", "revoke", file, key.id]).exit_code == 0
    assert check_key(read_keys(Path(file)), second.stdout.strip()) is None
    assert check_key(read_keys(Path(file)), secret) is not None
    gone = CLI.invoke(app, ["token", "revoke", file, key.id])
    assert isinstance(gone.exception, UserError)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["token", "list", "none"], "such file"),
        (["serve", "none"], "such folder"),
        (["serve", ".", "--host", "0.0.0.0"], "give --auth FILE"),
        (["serve", ".", "--auth", "none"], "such file"),
        (["serve", ".", "--cert", "x"], "one needs the other"),
        (["serve", ".", "--cert", "x", "--cert-key", "y"], "--cert x"),
        (["serve", ".", "--log", "none/log"], "--log none"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = CLI.invoke(app, arguments).exception
    assert isinstance(wrong, UserError)
    assert said in wrong.lines[0]


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match="cannot listen there"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_what_loopback_is() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""))


def test_a_page_for_others_warns_without_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Growing(tmp_path / "run")
    CLI.invoke(app, ["token", "new", str(tmp_path / "keys"), "--role", "operator"])
    warn_unencrypted("0.0.0.0", None)
    server, shown = prepare(tmp_path, "0.0.0.0", 0, tmp_path / "keys")
    assert "keys travel unencrypted" in capsys.readouterr().err
    assert shown.hosts is None
    assert not server.config.proxy_headers


@pytest.mark.slow
def test_it_serves_notes_and_ends(tmp_path: Path) -> None:
    Growing(tmp_path / "run").round()
    secret = CLI.invoke(app, ["token", "new", str(tmp_path / "keys"), "--role", "operator"]).stdout.strip()
    options = ["--port", "0", "--auth", str(tmp_path / "keys"), "--log", str(tmp_path / "log")]
    command = [sys.executable, "-c", "from hanse.cli import main; main()", "serve", str(tmp_path), *options]
    environment = {**os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as served:
        try:
            found = re.search(r"http://127\.0\.0\.1:\d+", served.stdout.readline())
            assert found
            right = urllib.request.Request(f"{found[0]}/runs.json", headers={"Authorization": f"Bearer {secret}"})
            with urllib.request.urlopen(right, timeout=30) as answer:
                assert b'"rounds":1' in answer.read()
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"{found[0]}/runs.json", timeout=30)
            assert refused.value.code == 401
            id_ = re.search(r'"id":"(\w+)"', _get(found[0] + "/runs.json", secret))
            assert id_
            stream = http.client.HTTPConnection(found[0].removeprefix("http://"), timeout=30)
            stream.request("GET", f"/run/{id_[1]}/events", headers={"Authorization": f"Bearer {secret}"})
            open_ = stream.getresponse()
            assert open_.readline() == b"retry: 2000\n"
        finally:
            served.send_signal(signal.SIGINT)
        out, err = served.communicate(timeout=60)  # a stream that is open does not hold it up
    assert served.returncode == 0, (out, err)
    assert "Traceback" not in err
    assert "refused 401 GET '/runs.json' to nobody from 127.0.0.1: no key" in err
    assert "'/runs.json'" in (tmp_path / "log").read_text()
    assert secret not in err


def _get(url: str, secret: str) -> str:
    wanted = urllib.request.Request(url, headers={"Authorization": f"Bearer {secret}"})
    with urllib.request.urlopen(wanted, timeout=30) as answer:
        return str(answer.read().decode())
