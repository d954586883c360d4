"""``hanse serve``: which pages there are, when they are made anew, and who may ask."""

import http.client
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import invoke

import hanse
from hanse.runs.rehearsal import rehearse
from hanse.wings.operate import serve
from hanse.wings.operate.serve import listen, page, runs_in, stamp


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "a b"
    hanse.run(rehearse("greedyfed").experiment, out=path)
    return path


@pytest.fixture
def port(run: Path) -> Iterator[int]:
    server = listen(run.parent, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with server:
        yield server.server_address[1]
        server.shutdown()


def asked(port: int, path: str, host: str = "localhost") -> tuple[int, str]:
    link = http.client.HTTPConnection("127.0.0.1", port)
    link.request("GET", path, headers={"Host": host})
    answer = link.getresponse()
    return answer.status, answer.read().decode()


def test_runs_are_listed_and_shown_with_what_tells_of_a_newer_page(port: int) -> None:
    status, listed = asked(port, "/")
    assert (status, "/a%20b" in listed) == (200, True)
    status, page = asked(port, "/a%20b")
    assert (status, "Report on greedyfed" in page) == (200, True)
    status, stamp = asked(port, "/a%20b?now")
    assert status == 200
    assert f'"{stamp}"' in page


@pytest.mark.parametrize(
    ("path", "host"),
    [("/none", "localhost"), ("/../a%20b", "localhost"), ("/a%20b", "evil.example"), ("/a%20b?now", "evil.example")],
)
def test_nothing_else_is_answered(port: int, path: str, host: str) -> None:
    """A page of another site reaches a loopback address by a name of its own (DNS rebinding)."""
    assert asked(port, path, host)[0] == 404


def test_what_tells_of_a_newer_page_changes_with_a_round(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stamp(run)
    assert f'"{before}"' in (page(run, "/") or "")
    with (run / "metrics.jsonl").open("a") as file:
        file.write("\n")
    assert stamp(run) != before
    monkeypatch.setattr("hanse.reports.report.report_page", lambda runs, poll: time.sleep(0.1) or poll)
    monkeypatch.setattr(serve, "REST", 1000)  # a page that takes long is not asked for again soon
    assert re.search(r"\}, 1\d{5}\);", page(run, "/") or "")


def test_before_its_first_round_a_run_has_a_page_that_waits(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "environment.json").write_text("{}")
    (tmp_path / "flower").mkdir()
    (tmp_path / "flower" / "config.toml").write_text("[superlink]\n")  # another program's
    assert list(runs_in(tmp_path)) == ["/run"]
    assert "?now" in (page(tmp_path, "/run") or "")


def test_mistakes_are_one_line(tmp_path: Path, run: Path) -> None:
    assert isinstance(invoke("serve", tmp_path / "none").exception, hanse.UserError)
    taken = listen(run, 0)
    with taken, pytest.raises(hanse.UserError, match="cannot listen there"):
        listen(run, taken.server_address[1])
