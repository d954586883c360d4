"""A member of a network leaves by its own signature: what an operator writes, or takes back, is found."""

import json
import re
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from commands import run_hanse
from deployed import Ongoing, experiment, metrics, until
from flwr.app import Message
from inprocess import KEY, PINNED, key_file, play
from test_flower_in_process import grid_of
from test_letters import After, DiesError, books, dies, kept
from test_operation import begun, refuses

from hanse.base.errors import UserError
from hanse.base.files import json_lines
from hanse.flower.agreement import agreements, take
from hanse.flower.leave import place_of, sign_leave, signed_leave, take_leave
from hanse.flower.members import LEAVES, Members, Orders
from hanse.flower.receipts import is_signed_page
from hanse.ledger.receipts import read_file
from hanse.reports.facts import facts
from hanse.reports.statement import statement
from hanse.runs.replay import wrong_books
from hanse.runs.run_record import load_run
from hanse.wings.operate.checks import findings

LeaveReceipt = pytest.importorskip("hanse.wings.charter.leave_receipt").LeaveReceipt


def warned_of(run: Path, project: Path) -> set[str]:
    """What 'hanse network check' warns of in a run whose client 2 refused last."""
    network = begun(project)
    shutil.copytree(run, project / "run")
    refuses(network)
    return {one.name for one in findings(network, datetime.now(UTC)) if (one.about, one.state) == ("run", "warning")}


def test_a_member_leaves_by_its_signature_and_by_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hanse.wings.charter import leaving

    run, home, key = tmp_path / "run", tmp_path / "node2", key_file(tmp_path / "operator.pem")
    exp = books(clients={"exit": {"balance": "lost"}})
    words = list[Path]()
    play(grid_of(exp, tmp_path), exp, run, After(0, lambda: words.append(sign_leave(home, "run"))))
    # its node answers no more with a model, and says why; the server asks it nothing more
    record = load_run(run)
    assert not [seat for seat in record.clients if seat.client == 2 and seat.round > 0 and seat.refused is None]
    assert {why for r, c, why in record.refusals() if c == 2} <= {"its owner has signed that it leaves this run"}
    assert Orders.read(run).expelled == {2: LEAVES}
    assert signed_leave(run, 2) == words[0].read_text()
    assert facts(run).clients[2].status == "left"
    before = shutil.copytree(run, tmp_path / "before")
    assert warned_of(before, tmp_path / "project") == {"rounds", "client 2"}

    # the operator settles it, and whoever verifies the book finds it signed
    assert run_hanse("leave", run, "--client", 2, "--key", key)[0] == 0
    assert warned_of(run, tmp_path / "settled") == set()
    # everywhere it left after the same rounds, with the same balance
    receipt, page = LeaveReceipt.read(place_of(run, 2)), place_of(run, 2, ".html")
    row, rounds = facts(run).clients[2], {before: facts(before).clients[2].since, run: receipt.said["round"]}
    assert ({*rounds.values()}, row.since, row.balance, receipt.said["balance"]) == ({2}, 2, 0, 0)
    assert is_signed_page(page.read_text(), PINNED)
    assert "left after 2 rounds" in page.read_text()
    assert run_hanse("facts", run, "--check", page)[0] == 0
    assert statement(run, 2).next.code == "has_gone"
    mine = tmp_path / "mine"
    shutil.copytree(home / "run" / "client-2" / "receipts", mine)
    verify = ("ledger", "verify", run, "--receipts", mine)
    shutil.copy(words[0], mine)
    assert run_hanse(*verify)[0] == 0
    shutil.copy(place_of(run, 2), mine)
    assert run_hanse(*verify)[0] == 0
    assert len([*read_file(mine / "client-2.jsonl")]) > 1
    assert run_hanse("audit", run)[0] == 0
    for word, code in ((words[0], 0), (sign_leave(tmp_path / "other", "run"), 1)):
        assert run_hanse("audit", "leave", place_of(run, 2), "--signed", word)[0] == code

    # nobody else has signed: the operator cannot make them leave
    with pytest.raises(UserError, match="--client 1: "):
        leaving.leave_run(load_run(run), 1, key)
    forged, as_two = shutil.copytree(run, tmp_path / "forged"), run / "leaving" / "client-2-signed.txt"
    monkeypatch.setattr(leaving, "check_signed", lambda *of: None)
    for word in (None, as_two):  # without a word, and with that of another
        if word is not None:
            shutil.copy(word, place_of(forged, 1, "-signed.txt"))
        else:
            leaving.leave_run(load_run(forged), 1, key)
        assert "client 1 has not signed" in wrong_books(forged)
        assert run_hanse("ledger", "verify", forged)[0] == 1
    for name in ("members.json", "federation.json"):  # nor does it help to take away what says that it is a network's
        (forged / name).unlink()
    assert run_hanse("ledger", "verify", forged)[0] == 1
    assert wrong_books(run) is None

    # a leave that is gone is found by the member's own copy, or by its receipt
    for gone in (words[0].name, "client-2.json"):
        alone = tmp_path / gone.removesuffix(".json")
        alone.mkdir()
        shutil.copy(mine / gone, alone)
        shutil.copy(mine / "client-2.jsonl", alone)
        assert wrong_books(before) is None
        assert run_hanse("ledger", "verify", before, "--receipts", alone)[0] == 1
        assert run_hanse("ledger", "verify", run, "--receipts", alone)[0] == 0
    # no copy is passed over: where the operator has changed the run's name or the member's key, or it is cut
    alone = tmp_path / words[0].name
    for name, key in (("federation.json", "run"), ("members.json", "witness")):
        there = shutil.copytree(before, tmp_path / f"other-{key}")
        (there / name).write_text(re.sub(rf'"{key}": "[^"]*"', f'"{key}": "{64 * "0"}"', (there / name).read_text()))
        assert run_hanse("ledger", "verify", there, "--receipts", alone)[0] == 1
    (alone / "cut.txt").write_text(words[0].read_text()[:30])
    assert run_hanse("ledger", "verify", run, "--receipts", alone)[0] == 1


def test_who_has_left_is_told_the_end_whatever_was_agreed_since(tmp_path: Path) -> None:
    run, homes, exp, asked = tmp_path / "run", [tmp_path / f"node{c}" for c in range(5)], books(), list[Message]()

    def bids(node: int, message: Message, reply: Message) -> Message:
        """Let client 2 sign as soon as it has bid in round 1, so that its bid is returned under the other agreement."""
        if node == 102 and message.content["hanse"].get("round") == 1:
            asked.append(message)
            if len(asked) == 2:  # before, it was asked for the test of round 0
                sign_leave(homes[2], "run")
        return reply

    with pytest.raises(DiesError):
        play(grid_of(exp, tmp_path, meddle=bids), exp, run, After(1, dies))
    renewed = replace(agreements(homes[2])[-1], replays=9)
    for home in [*homes[:2], *homes[3:]]:
        take(home, renewed.note(KEY), PINNED, time.time())
    play(grid_of(exp, tmp_path), exp, run, agreement=renewed, members=4)
    assert json.loads((run / "letters.json").read_text())["waiting"] == {}
    assert {r.said.get("agreement") for r in kept(tmp_path)[2] if r.said["postings"]} >= {renewed.hash}
    assert [[r.round for r in receipts] for receipts in kept(tmp_path).values()] == [[0, 1, 2, 3]] * 5


@pytest.mark.parametrize("odd", ["of another run", "of another member", "cut"])
def test_a_word_that_a_member_has_not_signed_takes_nothing_from_it(odd: str, tmp_path: Path) -> None:
    run, exp = tmp_path / "run", books()
    play(grid_of(exp, tmp_path), exp, run)
    word = sign_leave(tmp_path / ("node3" if odd == "of another member" else "node2"),
                      "other" if odd == "of another run" else "run").read_text()  # fmt: skip
    take_leave(run, Members.read(run / "members.json"), 2, word[: -9 if odd == "cut" else None])
    assert (Orders.read(run).expelled, signed_leave(run, 2)) == ({}, "")
    assert not (run / "operator.jsonl").exists()
    # a server that dies between the two orders waits: nobody who is expelled says again that it leaves
    take_leave(run, Members.read(run / "members.json"), 2, sign_leave(tmp_path / "node2", "run").read_text(), ends=True)
    assert [line["order"] for line in json_lines(run / "operator.jsonl")] == ["pause", "expel"]


def test_the_owner_of_a_node_signs_with_a_command(tmp_path: Path) -> None:
    run, exp = tmp_path / "run", books()
    play(grid_of(exp, tmp_path), exp, run)
    assert run_hanse("leave", tmp_path, "--sign")[0] == 2  # no participant's folder
    assert run_hanse("leave", run, "--client", 2, "--key", key_file(tmp_path / "operator.pem"))[0] == 2
    assert run_hanse("leave", tmp_path / "node2", "--sign", "--run", "other")[0] == 2
    [agreed] = (tmp_path / "node2" / "agreements").glob("*.txt")
    (agreed.parent / "other.txt").write_text(
        agreed.read_text().replace('"run": "run"', '"run": "other"')
    )  # it is in two
    assert [run_hanse("leave", tmp_path / "node2", "--sign", *of)[0] for of in ((), ("--run", "run"))] == [2, 0]
    [word] = (tmp_path / "node2" / "leaves").iterdir()
    # its node is away: the owner hands a copy over
    done = run_hanse("leave", run, "--client", 2, "--signed", word, "--key", key_file(tmp_path / "operator.pem"))
    assert (done[0], wrong_books(run)) == (0, None)
    said = json.loads(place_of(run, 2, "-statement.json").read_text())
    assert "signed" in said


@pytest.mark.slow
@pytest.mark.by_turns(5, 2)
def test_a_node_on_loopback_sends_its_owners_word(tmp_path: Path) -> None:
    on = Ongoing(tmp_path, experiment("tiff", nodes=3, rounds=6, mechanism={"by_contribution": 2, "at_random": 1}))
    home = tmp_path / "net" / "participants" / "node1"
    try:
        on.begin()
        until("a round", lambda: (on.run / "metrics.jsonl").exists())
        sign_leave(home, agreements(home)[-1].run)
        until("its word", lambda: place_of(on.run, 1, "-signed.txt").exists())
        on.server.join()
    finally:
        on.net.down()
    assert [line["answered"] for line in metrics(on.run)][-3:] == [2] * 3
    key = tmp_path / "net" / "certs" / "operator.key"
    assert run_hanse("leave", on.run, "--client", 1, "--key", key)[0] == 0
    assert (wrong_books(on.run), facts(on.run).clients[1].status) == (None, "left")
