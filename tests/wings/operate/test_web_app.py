"""Every address, asked by nobody, a participant and the operator; what answers carry; what is noted."""

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rotation import rotating
from starlette.routing import Route
from starlette.testclient import TestClient
from web_cases import Growing, at_once

from hanse.wings.operate.page import app as app_module
from hanse.wings.operate.page.app import LivePage, make_app
from hanse.wings.operate.page.gate import LOOPBACK, RequestGate
from hanse.wings.operate.page.hub import Hub
from hanse.wings.operate.page.keys import Sessions, make_key, write_keys
from hanse.wings.operate.page.runs import ListedRun, find_runs

BASE = "http://127.0.0.1:8000"
HTML = {"accept": "text/html"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        run = Growing(tmp_path / "runs" / name, money=True)
        for _ in range(3):
            run.round()
    return tmp_path / "runs"


@pytest.fixture(autouse=True)
def _at_once() -> Iterator[None]:
    with at_once():
        yield


@pytest.fixture
def secrets(tmp_path: Path) -> dict[str, str]:
    wanted = {
        "operator": ("operator", None, None),
        "third": ("participant", 3, None),
        "bound": ("participant", 3, "two"),
    }
    made = {name: make_key(*what) for name, what in wanted.items()}
    write_keys(tmp_path / "keys.json", [key for _, key in made.values()])
    return {name: secret for name, (secret, _) in made.items()}


@pytest.fixture
def gate(root: Path, secrets: dict[str, str], tmp_path: Path) -> RequestGate:
    return make_app(LivePage(root, Sessions(tmp_path / "keys.json")))


def client(gate: RequestGate, secret: str | None = None) -> TestClient:
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    return TestClient(gate, base_url=BASE, headers=headers, follow_redirects=False)


@pytest.fixture
def ids(root: Path) -> dict[str, str]:
    return {found.name: found.id for found in find_runs(root).values()}


@pytest.fixture
def noted(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    log = logging.getLogger("hanse.wings.operate.page")
    was, log.propagate = log.propagate, True
    with caplog.at_level(logging.WARNING, "hanse.wings.operate.page"):
        yield caplog
    log.propagate = was


def all_paths(gate: RequestGate, id_: str) -> list[str]:
    routes = [r for r in gate.app.routes if isinstance(r, Route)]
    filled = [r.path.replace("{id_}", id_).replace("{client}", "2").replace("{name}", "live.css") for r in routes]
    assert len(filled) >= 10
    return sorted(set(filled))


def test_nobody_sees_anything_but_the_login(
    gate: RequestGate, ids: dict[str, str], noted: pytest.LogCaptureFixture
) -> None:
    who = client(gate)
    for path in all_paths(gate, ids["one"]):
        for method in ("GET", "POST"):
            answer = who.request(method, path)
            if path in ("/login", "/static/live.css"):
                continue
            assert answer.status_code in (303, 401), path
            assert "client" not in answer.text
    assert who.get("/").headers["location"] == "/login"
    assert who.get(f"/run/{ids['one']}", headers=HTML).headers["location"] == "/login"
    assert who.get("/no such page").status_code == 401
    assert "'/runs.json'" in noted.text


def test_a_participant_sees_its_statements_and_nothing_else(
    gate: RequestGate, ids: dict[str, str], secrets: dict[str, str], noted: pytest.LogCaptureFixture
) -> None:
    who = client(gate, secrets["third"])
    assert who.get("/").status_code == 200
    assert set(re.findall(r'href="(/[^"]*)"', who.get("/").text)) == {
        "/", "/static/icon.svg", "/static/live.css", *(f"/statement/{id_}/3" for id_ in ids.values())
    }  # fmt: skip
    for path in all_paths(gate, ids["one"]):
        if path not in ("/", "/login", "/logout", "/static/live.css"):
            assert who.get(path).status_code == 403, path
    own = who.get(f"/statement/{ids['one']}/3/json")
    assert own.status_code == 200
    assert own.json()["client"] == 3
    for other in (f"/statement/{ids['one']}/2", f"/statement/{ids['one']}/33", "/statement/0123456789ab/2"):
        assert who.get(other).status_code == 403
    assert "participant of client 3 (key " in noted.text
    assert "another client" in noted.text
    assert secrets["third"] not in noted.text


@pytest.mark.parametrize(
    "client_said",
    rotating(["03", "+3", "3 ", "３", "3%00", "-3", "3.0", "%33/../2", "3%2F..%2F2", "1e0", "9" * 40], 2),
)
def test_odd_ways_to_write_a_client_open_nothing_else(
    gate: RequestGate, ids: dict[str, str], secrets: dict[str, str], client_said: str
) -> None:
    answer = client(gate, secrets["third"]).get(f"/statement/{ids['one']}/{client_said}/json")
    assert answer.status_code in (200, 403, 404)
    if answer.status_code == 200:
        assert answer.json()["client"] == 3


def test_a_key_for_one_run_opens_that_run_alone(
    gate: RequestGate, ids: dict[str, str], secrets: dict[str, str]
) -> None:
    who = client(gate, secrets["bound"])
    assert ids["one"] not in who.get("/").text
    assert who.get(f"/statement/{ids['two']}/3").status_code == 200
    assert who.get(f"/statement/{ids['one']}/3").status_code == 403


def test_the_operator_sees_runs_and_statements(gate: RequestGate, ids: dict[str, str], secrets: dict[str, str]) -> None:
    who = client(gate, secrets["operator"])
    assert all(f"/run/{id_}" in who.get("/").text for id_ in ids.values())
    assert [line["name"] for line in who.get("/runs.json").json()] == ["one", "two"]
    assert who.get(f"/run/{ids['one']}").status_code == 200
    page = who.get(f"/statement/{ids['one']}/2")
    assert page.status_code == 200
    assert "style-src 'sha256-" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    missing = who.get(f"/statement/{ids['one']}/99")
    assert missing.status_code == 404
    assert "clients 0 to 3" in missing.text
    assert who.get("/run/0123456789ab").status_code == 404
    assert who.get("/run/0123456789ab/events").status_code == 404
    assert who.get("/static/..%2Fapp.py").status_code == 404


def test_every_answer_carries_the_headers(gate: RequestGate, ids: dict[str, str], secrets: dict[str, str]) -> None:
    for secret in (None, secrets["third"], secrets["operator"]):
        for path in ("/", "/login", "/static/live.js", f"/run/{ids['one']}", "/none", f"/statement/{ids['one']}/3"):
            headers = client(gate, secret).get(path).headers
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "same-origin"
            assert headers["cache-control"] in ("no-store", "no-cache")
            assert "server" not in headers


def test_log_in_and_out(gate: RequestGate, secrets: dict[str, str], ids: dict[str, str]) -> None:
    who = client(gate)
    answer = who.post("/login", data={"key": f" {secrets['third']} "})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert secrets["third"] not in cookie
    assert who.get(f"/statement/{ids['one']}/3").status_code == 200
    assert who.get("/login").headers["location"] == "/"
    session = who.cookies["hanse_session"]
    who.post("/logout")
    assert client(gate).get("/runs.json", headers={"cookie": f"hanse_session={session}"}).status_code == 401


def test_with_tls_the_cookie_is_secure(gate: RequestGate, secrets: dict[str, str]) -> None:
    who, key = client(gate), {"key": secrets["operator"]}
    tls = {"x-forwarded-proto": "https"}
    answer = who.post("/login", data=key, headers=tls | {"origin": BASE.replace("http", "https")})
    assert answer.status_code == 303
    assert "Secure" in answer.headers["set-cookie"]
    assert answer.headers["strict-transport-security"] == "max-age=31536000"
    assert who.post("/login", data=key, headers=tls | {"origin": BASE}).status_code == 403
    plain = client(gate).post("/login", data=key)
    assert "Secure" not in plain.headers["set-cookie"]
    assert "strict-transport-security" not in plain.headers


def test_wrong_keys_are_refused_and_lock_out_no_holder(
    gate: RequestGate, secrets: dict[str, str], noted: pytest.LogCaptureFixture
) -> None:
    """Attack 20: behind a proxy all share one address, and five wrong keys of a stranger locked out everybody."""
    stranger, wrong = client(gate), {"key": "hanse_00000000_" + "A" * 43}
    for _ in range(20):
        answer = stranger.post("/login", data=wrong)
        assert answer.status_code == 401
        assert "valid key" in answer.text
    assert client(gate, wrong["key"]).get("/runs.json").status_code == 401
    assert client(gate, secrets["operator"]).get("/runs.json").status_code == 200
    assert client(gate).post("/login", data={"key": secrets["operator"]}).status_code == 303
    assert noted.text.count("wrong key") == 21


def test_forms_that_are_odd(gate: RequestGate) -> None:
    who = client(gate)
    assert who.post("/login", content=b"key=" + b"x" * 10_000).status_code == 413
    assert who.post("/login", content=b"\xff\xfe&&==").status_code == 401
    assert who.post("/login", data={"key": "x"}, headers={"origin": "http://elsewhere.example"}).status_code == 403
    assert who.post("/login", data={"key": "x"}, headers={"origin": "null"}).status_code == 403
    assert who.post("/login", data={"key": "x"}, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert who.post("/login", data={"key": "x"}, headers={"origin": BASE}).status_code == 401
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE"):
        assert who.request(method, "/login").status_code == 405


def test_without_keys_loopbacks_names_alone_are_served(root: Path) -> None:
    gate = make_app(LivePage(root, Sessions(None), LOOPBACK))
    for name, status in (
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("[", 421),
    ):
        assert client(gate).get("/", headers={"host": name}).status_code == status, name
    assert client(gate).get("/login").headers["location"] == "/"


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    Growing(tmp_path / "<script>alert(1)<", mechanism="<img src=x onerror=alert(1)>").round()
    Growing(tmp_path / "quiet")
    who = client(make_app(LivePage(tmp_path, Sessions(None), LOOPBACK)))
    id_ = next(f.id for f in find_runs(tmp_path).values() if "script" in f.name)
    for page in ("/", f"/run/{id_}"):
        assert "<script>alert" not in who.get(page).text
        assert "<img" not in who.get(page).text
        assert "&lt;script&gt;alert(1)&lt;" in who.get(page).text


def test_too_many_streams_are_refused(root: Path, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "STREAMS", 0)
    gate = make_app(LivePage(root, Sessions(None), LOOPBACK))
    answer = client(gate).get(f"/run/{ids['one']}/events")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")


def test_everybody_who_watches_gets_everything_once(root: Path, ids: dict[str, str]) -> None:
    """Two watchers, one of whom comes later, see the same rounds; both streams end when they should."""
    more = Growing(root / "three")
    more.round()

    async def play() -> tuple[list[str], list[str]]:
        stop, rest = False, asyncio.Event()
        hub = Hub(lambda: stop, look_s=0.001)
        found = ListedRun("x", "three", more.folder)
        early, late = [], []

        async def follow(into: list[str]) -> None:
            nonlocal stop
            async for event in hub.watch(found):
                into.append(event)
                if '"rounds":3' in event:
                    rest.set()
                if '"rounds":4' in event:
                    stop = stop or (any('"rounds":4' in e for e in early) and any('"rounds":4' in e for e in late))

        first = asyncio.create_task(follow(early))
        more.round()
        more.round()
        await asyncio.wait_for(rest.wait(), 30)
        second = asyncio.create_task(follow(late))
        while not late or "data" not in late[-1]:
            await asyncio.sleep(0)
        assert sum(len(one.watchers) for one in hub._followed.values()) == 2
        more.round()
        await asyncio.wait_for(asyncio.gather(first, second), 30)
        assert sum(len(one.watchers) for one in hub._followed.values()) == 0
        return early, late

    early, late = asyncio.run(play())
    assert early[0] == late[0] == "retry: 2000\n\n"
    assert '"whole":true' in early[1]
    assert '"whole":true' in late[1]
    assert '"rounds":3' in late[1]
    # a round's seats may come an event before its figures, if the file is read between the two
    assert '"rounds":4' in late[-1]
    assert all(event.endswith("\n\n") and event.count("\n") == 2 for event in [*early, *late])


def test_a_revoked_key_ends_its_stream(root: Path) -> None:
    async def play() -> int:
        allowed, events = True, 0
        hub = Hub(look_s=0.001)
        stream = hub.watch(ListedRun("x", "one", root / "one"), lambda: allowed)
        async for event in stream:
            events += event.startswith("data")
            allowed = events == 0
        return events

    assert asyncio.run(asyncio.wait_for(play(), 30)) == 1


def test_a_slow_watcher_gets_everything_anew(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hanse.wings.operate.page.hub.HELD", 2)
    more = Growing(root / "three", planned=100)
    more.round()

    async def play() -> list[str]:
        hub, events = Hub(look_s=0.001), []
        stream = hub.watch(ListedRun("x", "three", more.folder))
        events = [await anext(stream), await anext(stream)]
        for n in range(8):  # nobody takes anything meanwhile
            more.round()
            followed = hub._followed["x"]
            while followed.run.whole()["progress"]["rounds"] < n + 2:
                await asyncio.sleep(0.001)
            async with followed.turn:
                pass
        while '"rounds":9' not in events[-1]:
            events.append(await anext(stream))
        await stream.aclose()
        return events

    events = asyncio.run(asyncio.wait_for(play(), 60))
    assert '"whole":true' in events[-1]
    assert len(events) <= 4
