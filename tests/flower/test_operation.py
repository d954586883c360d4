"""What an operator does with a network that runs: look at it, back it up, bring it back elsewhere."""

import json
import os
import resource
import shutil
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from commands import invoke
from inprocess import KEY, play
from test_flower_in_process import grid_of
from test_letters import After, books
from test_outages import full, same

import hanse
from hanse.flower import agreement, server
from hanse.flower.members import give
from hanse.flower.operator_key import signing_key
from hanse.ledger import run_ledger
from hanse.runs import recomputable
from hanse.runs.guards import completed
from hanse.wings.operate import backup, checks, serve, warm_process
from hanse.wings.operate.backup import back_up, restore
from hanse.wings.operate.certificates import make_certificates
from hanse.wings.operate.loopback import Loopback
from hanse.wings.operate.processes import begun as begun_at

NOW = datetime.now(UTC) + timedelta(hours=12)  # later than the certificates, which are made when a test asks for them


def begun(folder: Path) -> Loopback:
    """A project in which a run is to be played, without any process."""
    network = Loopback(folder, folder, (9100,))
    folder.mkdir()
    network.save()
    make_certificates(folder / "certs", "test")
    network.agreement.write_text(agreement.agree(books(), KEY, "run", "test", []).note(KEY))
    network.agreement.with_suffix(".run").write_text(f"{folder / 'run'}\n")
    return network


@pytest.fixture
def network(whole: hanse.Run, tmp_path: Path) -> Loopback:
    """A project whose run is over."""
    project = begun(tmp_path / "first")
    shutil.copytree(whole.path, project.folder / "run")
    back_up(project, tmp_path / "copy")
    return restore(tmp_path / "copy", tmp_path / "project")


def test_a_backup_of_a_run_that_goes_on_ends_elsewhere_with_the_same_bits(whole: hanse.Run, tmp_path: Path) -> None:
    """With the members as they were when the backup was made."""
    project, nodes = begun(tmp_path / "project"), tmp_path / "nodes"

    def copied() -> None:
        back_up(project, tmp_path / "copy")
        shutil.copytree(nodes, tmp_path / "then")

    play(grid_of(books(), nodes), books(), project.folder / "run", After(1, copied))
    made = restore(tmp_path / "copy", tmp_path / "elsewhere")
    assert (made.run, len(hanse.load(made.run).metrics) < 3) == (tmp_path / "elsewhere" / "run", True)
    assert (made.folder / "certs" / "ca.key").stat().st_mode & 0o077 == 0
    again = play(grid_of(books(), tmp_path / "then"), books(), made.run)
    assert [m["round"] for m in again.metrics] == [0, 1, 2]
    same(again, whole, tmp_path / "then")


def test_a_copy_during_which_a_round_ends_is_made_again_and_given_up_in_the_end(
    network: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for there in ([0, 1, 1, 1], range(2 * backup.TRIES)):
        looks = iter(there)
        monkeypatch.setattr(backup, "_checkpoints", lambda _, looks=looks: [str(next(looks))])
        if there == [0, 1, 1, 1]:
            back_up(network, tmp_path / "twice")
        else:
            with pytest.raises(hanse.UserError):
                back_up(network, tmp_path / "never")
        assert next(looks, None) is None
    assert (tmp_path / "twice" / "run" / "metrics.jsonl").exists()
    assert not [path for path in tmp_path.iterdir() if "never" in path.name]
    (tmp_path / "twice" / "agreement.run").write_text(f"{tmp_path / 'outside'}\n")  # a run that has not begun
    assert restore(tmp_path / "twice", tmp_path / "later").run is None
    for wrong in (lambda: back_up(network, tmp_path / "twice"), lambda: restore(tmp_path / "twice", tmp_path / "copy")):
        with pytest.raises(hanse.UserError):
            wrong()


@pytest.mark.parametrize("make", [back_up, lambda made, to: restore(made.folder, to)])
def test_a_disk_that_is_full_leaves_nothing_and_is_told_in_a_line(
    make: Callable[[Loopback, Path], Any], network: Loopback, tmp_path: Path
) -> None:
    before, (soft, hard) = {*tmp_path.iterdir()}, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(hanse.UserError, match=r"too large[^\n]*$"):
            make(network, tmp_path / "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {*tmp_path.iterdir()} == before


@pytest.mark.parametrize("how", ["damaged", "removed"])
def test_a_backup_whose_books_do_not_hold_leaves_no_project(how: str, network: Loopback, tmp_path: Path) -> None:
    if how == "damaged":
        damaged(network)
    else:
        (network.run / "ledger.json").unlink()
    back_up(network, tmp_path / "damaged")
    with pytest.raises(hanse.UserError):
        restore(tmp_path / "damaged", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_server_and_then_its_nodes_go_over_to_a_release_that_was_agreed_beside_the_old_one(
    harvest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Loopback(harvest, harvest, (9100, 9101))
    key = signing_key(harvest / "certs" / "operator.key")
    old, new = recomputable.code_hash(), "5" * 64
    project.agree()
    project.agreement.write_text(project.agreement.read_text().replace(f'"{old}"', f'"{old}", "next": "{new}"'))
    agreed = project.agree()
    assert list(agreed.releases.values()) == [old, new]
    experiment = completed(hanse.Experiment.read(project.app / "experiment.toml"))
    for here, fits in ((new, True), ("6" * 64, False)):
        for module in (agreement, server):
            monkeypatch.setattr(module, "code_hash", lambda here=here: here)
        if fits:
            assert project.agree() == agreed  # the members need no other
            server._agreed(agreed, experiment, key)
            continue
        with pytest.raises(hanse.UserError):
            server._agreed(agreed, experiment, key)
        with pytest.raises(hanse.UserError):
            agreement.take(tmp_path / "member", agreed.note(key), bytes.fromhex(agreed.operator), 0.0)


def damaged(network: Loopback) -> None:
    log = network.run / "transactions.jsonl"
    log.write_bytes(log.read_bytes().replace(b"1", b"2", 3))


def runs(network: Loopback, name: str, pid: str = f"{os.getpid()} {begun_at(os.getpid())}") -> None:
    (network.folder / "logs").mkdir(exist_ok=True)
    (network.folder / "logs" / f"{name}.process").write_text(f"{pid}\n")


def heard(network: Loopback, patch: pytest.MonkeyPatch, **of: float) -> None:
    runs(network, "superlink")
    [member, *_] = json.loads((network.run / "members.json").read_text())
    patch.setattr(checks, "asked", lambda _: {member["key"]: {"ago_s": 1.0, "ahead_s": 0.0} | of})


def refuses(network: Loopback) -> None:
    """Client 2 has refused what it was asked last."""
    for name in ("metrics.jsonl", "clients.jsonl"):
        *before, last = map(json.loads, (network.run / name).read_text().splitlines())
        last |= {"answered": last["seats"] - 1} if "seats" in last else {"client": 2, "refused": "no"}
        (network.run / name).write_text("".join(json.dumps(line) + "\n" for line in (*before, last)))


DAY = timedelta(days=1)
CASES: dict[str, tuple[Callable[[Loopback, pytest.MonkeyPatch], Any], datetime, str, str]] = {
    "runs": (lambda n, _: runs(n, "superlink"), NOW, "process", "failure"),  # nothing answers there
    "ended": (lambda n, _: runs(n, "proxy", "1 then"), NOW, "process", "failure"),
    "in time": (heard, NOW, "node", "warning"),  # of the other members nothing was heard
    "certificate": (lambda n, _: None, NOW + 340 * DAY, "certificate", "warning"),
    "run out": (lambda n, _: None, NOW + 366 * DAY, "certificate", "failure"),
    "clock": (lambda n, _: None, NOW - DAY, "certificate", "failure"),
    "agreement": (lambda n, _: None, NOW + 364 * DAY, "agreement", "warning"),
    "release": (lambda n, p: p.setattr(recomputable, "code_hash", lambda: ""), NOW, "agreement", "failure"),
    "full": (lambda n, p: p.setattr(checks.tempfile, "TemporaryFile", full), NOW, "disk", "failure"),
    "nearly full": (lambda n, p: p.setattr(checks, "FREE", 1 << 60), NOW, "disk", "warning"),
    "books": (lambda n, _: damaged(n), NOW, "books", "failure"),
    "no backup": (lambda n, _: None, NOW, "backup", "warning"),
    "paused": (lambda n, _: give(n.run, "pause", "a disk"), NOW, "run", "warning"),
    "cut": (lambda n, p: [runs(n, "it"), p.setattr(run_ledger, "latest_claim", lambda _: None)], NOW, "run", "failure"),
    "begun": (lambda n, _: (n.run / "metrics.jsonl").write_text('{"round": 0'), NOW, "run", "fine"),  # in round 0
    "silent": (lambda n, _: refuses(n), NOW, "run", "warning"),
    "expelled": (lambda n, _: [refuses(n), give(n.run, "expel", "nonsense", 2)], NOW, "run", "fine"),
    "gone on": (lambda n, _: [give(n.run, order, "a disk") for order in ("pause", "go-on")], NOW, "run", "fine"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_ails_a_network_is_found(case: str, network: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    harm, now, about, state = CASES[case]
    harm(network, monkeypatch)
    found = {one.state for one in checks.findings(network, now) if one.about == about}
    assert max(found, key=checks.STATES.index) == state


def test_nodes_that_are_away_or_whose_clock_is_wrong_are_named(
    network: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    for of, state in (({}, "fine"), ({"ago_s": 70.0}, "warning"), ({"ahead_s": -45.0}, "warning")):
        heard(network, monkeypatch, **of)
        states = {one.name: one.state for one in checks.findings(network, NOW) if one.about == "node"}
        assert (states["client 0"], states["client 1"]) == (state, "warning")


def test_a_sound_network_has_code_0_and_another_1(network: Loopback, tmp_path: Path) -> None:
    words = ["network", "check", str(network.folder)]
    result, found = invoke(*words), checks.findings(network, datetime.now(UTC))
    assert len(result.stdout.splitlines()) == len(found)
    assert {one.about for one in found if one.state == "warning"} == {"process", "backup"}
    assert (result.exit_code, [one.about for one in found if not one.asked]) == (1, ["backup"])
    runs(network, "keeper")
    assert invoke(*words).exit_code == 0  # nobody asked for backups
    numbers = {one.about: dict(one.numbers) for one in found if one.about in ("run", "books")}
    assert numbers == {"run": {"played": 3, "answered": 6}, "books": {"transactions": 24}}
    assert invoke("network", "backup", tmp_path / "new", network.folder).exit_code == 0
    assert invoke(*words).exit_code == 0
    (made := network.folder / checks.BACKUP).write_text(made.read_text().replace('"at": ', '"at": 0'))
    assert invoke(*words).exit_code == 1
    for nothing in (tmp_path, tmp_path / "none"):
        assert isinstance(invoke("network", "check", nothing).exception, hanse.UserError)


def test_a_warm_process_is_started_again_where_nodes_that_run_look_for_it(
    network: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import sys, time; open(sys.argv[1], 'x'); time.sleep(600)"
    monkeypatch.setattr(warm_process, "starting", lambda path, imports: [sys.executable, "-c", program, str(path)])
    runs(network, "node0")
    places = set[Path]()
    for _ in range(2):
        network.start_node(0)
        places.add(Path(json.loads((network.folder / "keeper.json").read_text())))
        assert network.processes.stop("keeper", kill=True) == []
    [place] = places
    shutil.rmtree(place.parent)


def test_a_monitor_reads_the_same_findings(network: Loopback) -> None:
    odd = checks.Finding("disk", 'a "b"\\c\nd', "failure", "", {"free": 1e12})
    assert checks.exposition([odd]).splitlines() == [
        "# TYPE hanse_state gauge", r'hanse_state{about="disk",name="a \"b\"\\c\nd"} 2',
        "# TYPE hanse_disk_free gauge", r'hanse_disk_free{name="a \"b\"\\c\nd"} 1000000000000.0',
    ]  # fmt: skip
    server = serve.listen(network.folder, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def asked(page: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{server.server_address[1]}{page}", trust_env=False)

    with server:
        lines = [line.rsplit(" ", 1) for line in asked("/metrics").text.splitlines() if line[0] != "#"]
        said = {name: float(value) for name, value in lines}
        assert {name: value for name, value in said.items() if name.startswith("hanse_state")} == {
            f'hanse_state{{about="{one.about}",name="{one.name}"}}': checks.STATES.index(one.state)
            for one in checks.findings(network, NOW)
        }
        assert (said['hanse_run_played{name="rounds"}'], asked("/health").status_code) == (3.0, 200)
        damaged(network)
        ill = asked("/health")
        assert (ill.status_code, ill.text.split()[0]) == (503, "failure")
        server.shutdown()
