"""Sizes proved on a network: nodes commit, an auditor on their premises signs, a liar's bond goes to the mint."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import invoke, run_hanse
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from inprocess import key_file, play
from network_rehearsal import NetworkRehearsal, rehearse_network
from test_flower_in_process import grid_of
from test_letters import books
from test_operation import begun
from watching import After, Killed

from hanse.base.errors import UserError
from hanse.core.entry import BOND, KEPT, RETURNED, TOKEN
from hanse.core.part import Pause, Unproved
from hanse.data import build
from hanse.federation.behaviour import Behaviour, Liar
from hanse.federation.node import ClientData
from hanse.flower import link
from hanse.flower.client import client_app
from hanse.flower.members import Orders, give
from hanse.ledger import run_ledger
from hanse.ledger.note import load_key
from hanse.runs.round import play_round
from hanse.runs.rundir import RunDir
from hanse.wings.attack.deviant import Deviant
from hanse.wings.evidence.proved_sizes import FAILED, PROVED
from hanse.wings.operate.checks import findings

AUDITOR = Ed25519PrivateKey.generate()
SIZES = {"proved": True, "auditors": [AUDITOR.public_key().public_bytes_raw().hex()]}
UNANSWERED = "the audit was not answered"
DATA: dict[int, ClientData] = {}


def load_data(context: SimpleNamespace) -> ClientData:
    """What the auditor is shown: the data that the node of this number trains on."""
    return DATA[int(context.node_config["partition-id"])]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[NetworkRehearsal]:
    yield from audited(tmp_path, "fedavg")


def audited(tmp_path: Path, mechanism: Any, **sections: Any) -> Iterator[NetworkRehearsal]:
    """Yield a network whose members prove their sizes to an auditor."""
    found = rehearse_network(mechanism, tmp_path / "nodes", sizes={**SIZES, "leaves": 20}, **sections)
    key_file(tmp_path / "auditor.pem", AUDITOR)
    here = build(found.experiment.data)
    DATA.update({i: ClientData.of(here, i) for i in range(4)})
    yield found
    DATA.clear()


def home(tmp_path: Path, client: int) -> Path:
    """What a member's node keeps of the run."""
    return tmp_path / "nodes" / f"node{client}" / "rehearsal" / f"client-{client}"


def audit(tmp_path: Path, client: int, *, shown: int | None = None, key: str = "auditor.pem") -> str:
    """Run the auditor's command, with the data of ``shown``, and return what it says is wrong, if anything is."""
    words = ["audit", "size", str(home(tmp_path, client)), "--key", str(tmp_path / key)]
    config = f"partition-id={client if shown is None else shown}"
    return run_hanse(*words, "--data", f"{__name__}:load_data", "--node-config", config)[2]


def behaving(small: NetworkRehearsal, tmp_path: Path, how: Behaviour) -> None:
    """Let node 103 behave so."""
    pinned, folder = small.federation.key.public_key().public_bytes_raw(), tmp_path / "nodes" / "node3"
    small.grid.apps[103] = client_app(lambda context: DATA[3], folder=folder, operator=pinned, behaviours=[how])


def test_an_auditor_signs_for_the_honest_and_the_liar_loses_its_bond(small: NetworkRehearsal, tmp_path: Path) -> None:
    behaving(small, tmp_path, Liar([3], size=2.0))  # it claims twice its samples
    first = play_round(small.session, small.start)
    assert [t.kind for t in first.view.posted] == ["grant"] * 4 + [BOND] * 4
    assert first.view.roster.num_samples.tolist() == [0, 0, 0, 0]  # nobody has proved anything yet
    [told] = {reason for _, reason in first.view.refusals}
    assert told == "no auditor has signed yet; 'hanse audit size' on its premises does"
    assert [audit(tmp_path, c) for c in range(3)] == ["", "", ""]
    assert "another root" in audit(tmp_path, 3)  # shown what is there, the auditor does not sign
    second = play_round(small.session, first.state)
    assert [(t.kind, t.step[-1]) for t in second.view.posted] == [*((RETURNED, c) for c in "012"), (KEPT, "3")]
    assert second.state.states["sizes"]["standing"].tolist() == [PROVED] * 3 + [FAILED]
    sizes = [len(DATA[c].train) for c in range(3)]
    assert second.view.roster.num_samples.tolist() == [*sizes, 0]
    assert second.view.trained.num_samples.tolist() == [*sizes, 0.0]
    books = second.state.book.balances
    assert [books[f"client/{c}"] for c in range(4)] == [100 * TOKEN] * 3 + [90 * TOKEN]
    assert books["mint"] == -390 * TOKEN
    assert not any(books[f"escrow/{c}"] for c in range(4))


def test_nodes_prove_that_they_trained_and_who_did_not_is_worth_nothing(tmp_path: Path) -> None:
    mechanism = {"name": "fedavg", "value": "path", "settle": "by_value"}
    for small in audited(tmp_path, mechanism, evidence={"training": {}}):
        behaving(small, tmp_path, Deviant([3], sends="nothing"))
        first = play_round(small.session, small.start)
        assert first.view.get(Unproved).clients.tolist() == []  # nobody has committed yet: nobody is judged
        assert [audit(tmp_path, c) for c in range(4)] == [""] * 4
        second = play_round(small.session, first.state).view
        found = second.get(Unproved)
        assert found.clients.tolist() == [3]
        assert (found.arrays["training_z"][:3] > 0).all()
        assert len(set(found.arrays["training_number"].tolist())) == 4
        assert second.values.per_seat[3] == 0.0


def test_a_bond_that_is_taken_is_told_and_an_audit_comes_too_late(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_file(tmp_path / "auditor.pem", AUDITOR)
    exp, project = books(sizes=SIZES), begun(tmp_path / "project")
    waited = going_on(project.folder / "run", monkeypatch)
    own = After(0, lambda: give(project.folder / "run", "pause", "a disk"))  # which does not hide the other
    play(grid_of(exp, tmp_path / "nodes"), exp, project.folder / "run", own)
    assert [one.args[0] for one in caplog.records if one.name == "hanse.network" and UNANSWERED in one.args] == [1] * 5
    assert waited == ["0, 1, 2, 3, 4; a disk"]  # before it costs them anything
    for state in ("fine", "warning"):  # once the run is over, and before
        found = [one for one in findings(project, datetime.now(UTC)) if one.about == "bond"]
        assert [(one.name, one.state) for one in found] == [(f"client {c}", state) for c in range(5)]
        monkeypatch.setattr(run_ledger, "latest_claim", lambda _: None)
    (tmp_path / "nodes" / "node0" / "run").rename(tmp_path / "nodes" / "node0" / "rehearsal")
    assert "in round 1" in audit(tmp_path, 0)


def going_on(run: Path, monkeypatch: pytest.MonkeyPatch, *orders: Any) -> list[str]:
    """Return for whom a server waits, whose operator then gives these orders and lets it go on."""
    waited = list[str]()

    def goes_on(seconds: float) -> None:
        if (why := Orders.read(run).paused) is not None:
            waited.append(why.rpartition("client ")[2])
            for order in (*orders, ("go-on", "nobody comes")):
                give(run, *order)

    monkeypatch.setattr(link.time, "sleep", goes_on)
    return waited


def test_a_member_that_is_away_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exp, run = books(sizes=SIZES, clients={"exit": {"bond": "returned"}}), tmp_path / "run"
    waited = going_on(run, monkeypatch, ("expel", "is away", 2))
    played = play(grid_of(exp, tmp_path / "nodes"), exp, run)
    assert (len(played.metrics), waited) == (3, ["0, 1, 2, 3, 4"])


def test_a_server_that_dies_as_soon_as_a_round_is_kept_waits_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exp, run, append = books(sizes=SIZES), tmp_path / "run", RunDir.append

    def dies(folder: RunDir, done: Any, state: Any) -> None:
        append(folder, done, state)
        if done.played.view.get(Pause) is not None:
            raise Killed

    monkeypatch.setattr(RunDir, "append", dies)
    with pytest.raises(Killed):
        play(grid_of(exp, tmp_path / "nodes"), exp, run)
    assert "client 0, 1, 2, 3, 4" in Orders.read(run).paused


def test_a_network_asks_more_than_once_since_auditors_sign_in_between(tmp_path: Path) -> None:
    exp = books(sizes={**SIZES, "repeats": 0})
    with pytest.raises(UserError, match=r"sizes\.repeats: 0: "):
        play(grid_of(exp, tmp_path / "nodes"), exp, tmp_path / "run")


def no_samples(context: SimpleNamespace) -> None:
    return None


def lost(context: SimpleNamespace) -> ClientData:
    raise KeyError("site")


@pytest.mark.parametrize(
    ("data", "config", "line"),
    [
        ("app", "", "--data 'app'"),
        (f"{__name__}:no_samples", "", "hanse.flower.ClientData"),
        (f"{__name__}:lost", "", "'site'"),
        (f"{__name__}:no_samples", "a='1", '--node-config "a=\'1"'),
    ],
)
def test_what_an_auditor_may_get_wrong(
    data: str, config: str, line: str, small: NetworkRehearsal, tmp_path: Path
) -> None:
    folder = tmp_path / "client-3"
    words = ["audit", "size", str(folder), "--key", str(tmp_path / "auditor.pem"), "--node-config", config]
    folder.mkdir()
    found = invoke(*words, "--data", data)
    assert "audit here" in str(found.exception)  # before anything is loaded
    digits = "0" * 64
    (folder / "audit.json").write_text(json.dumps({"root": digits, "size": 5, "seed": digits, "leaves": 2}))
    found = invoke(*words, "--data", data)
    assert isinstance(found.exception, UserError)
    assert line in str(found.exception)
    assert not (folder / "audit-signed.json").exists()


def test_signatures_of_others_and_of_other_samples_do_not_count(small: NetworkRehearsal, tmp_path: Path) -> None:
    key_file(tmp_path / "stranger.pem", Ed25519PrivateKey.generate())
    first = play_round(small.session, small.start)
    assert "another root" in audit(tmp_path, 0, shown=1)
    assert "--key" in audit(tmp_path, 1, key="stranger.pem")
    assert [audit(tmp_path, c) for c in (1, 2)] == [""] * 2
    stranger = load_key(tmp_path / "stranger.pem").public_key().public_bytes_raw().hex()
    own = home(tmp_path, 1) / "audit-signed.json"
    own.write_text(json.dumps(json.loads(own.read_text()) | {"auditor": stranger}))
    forged = home(tmp_path, 2) / "audit-signed.json"
    text = forged.read_text()
    signature = text.split('"signature": "')[1][:128]
    forged.write_text(text.replace(signature, signature[::-1]))
    (home(tmp_path, 3) / "audit-signed.json").write_text("{}")
    second = play_round(small.session, first.state)
    said = dict(second.view.refusals)
    assert said[0] == f"its size is not proved: {UNANSWERED}"
    assert "members named" in said[1]
    assert "not one of this commitment" in said[2]
    assert said[3] == f"its size is not proved: {UNANSWERED}"
    assert [t.kind for t in second.view.posted] == [KEPT] * 4
