"""Receipts reach their participants, whatever dies on the way; one process, Flower's own records."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from commands import invoke
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message
from forging import receipt
from inprocess import KEY, PINNED, InProcessGrid, play
from test_flower_in_process import N, experiment, grid_of
from watching import After

import hanse
from hanse.federation.codec import WireError
from hanse.federation.node import Node
from hanse.flower.members import give
from hanse.flower.receipts import Letters, is_signed_page, keep_pages, signed_page
from hanse.ledger.receipts import Receipt, read_receipts
from hanse.ledger.run_ledger import open_ledger
from hanse.runs.run_record import load_run

ROUNDS = 3


class DiesError(Exception):
    pass


def books(**more: Any) -> hanse.Experiment:
    return experiment("pifl", rounds=ROUNDS, **more)


def kept(folder: Path) -> dict[int, list[Receipt]]:
    """Return what the participants keep, by client."""
    found = {c: list((folder / f"node{c}").glob(f"*/client-{c}/receipts")) for c in range(N)}
    return {c: list(read_receipts(paths[0])) if paths else [] for c, paths in found.items()}


def holds(run: hanse.Run, folder: Path) -> bool:
    return open_ledger(run.path).verify([r for receipts in kept(folder).values() for r in receipts]).ok


def dies() -> None:
    raise DiesError


def dies_sending(grid: InProcessGrid) -> None:
    """Let the SuperLink die before it takes another message."""

    def push(messages: Any) -> Any:
        raise DiesError

    grid.push_messages = push  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before the receipts are written down", "before they are sent"])
def test_receipts_survive_the_death_of_the_server(when: str, whole: hanse.Run, tmp_path: Path) -> None:
    exp, grid = books(), grid_of(books(), tmp_path)
    what = dies if when == "before the receipts are written down" else lambda: dies_sending(grid)
    with pytest.raises(DiesError):
        play(grid, exp, tmp_path / "run", After(1, what))
    assert {c: [r.round for r in receipts] for c, receipts in kept(tmp_path).items()} == {c: [0] for c in range(N)}
    again = play(grid_of(exp, tmp_path), exp, tmp_path / "run")
    after = kept(tmp_path)
    assert {c: [r.round for r in receipts] for c, receipts in after.items()} == {c: [0, 1, 2, 3] for c in range(N)}
    assert {receipts[-1].root for receipts in after.values()} == {again.book.head}
    assert holds(again, tmp_path)
    assert whole.book.head == again.book.head
    assert [r.said["postings"] for r in kept(whole.path.parent)[2]] == [r.said["postings"] for r in after[2]]


def test_a_receipt_is_written_once_by_a_node_that_has_it_and_sent_again_to_one_that_refused_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 1 has read a letter when its answer is lost; client 2 refuses to keep its first one."""
    exp, keep, refused = books(federation={"deadline_s": 0.5}), Node.keep_receipts, []

    def lost(node: int, message: Message, reply: Message) -> Message | None:
        return None if node == 101 and message.content["hanse"].get("round") == 1 else reply

    def once(self: Node, lines: str, operator: bytes, *more: str) -> None:
        if self.job.client == 2 and not refused:
            refused.append(lines)
            raise WireError("no room for receipts")
        keep(self, lines, operator, *more)

    monkeypatch.setattr(Node, "keep_receipts", once)
    run = play(grid_of(exp, tmp_path, meddle=lost), exp, tmp_path / "run")
    assert len(refused) == 1
    assert [[r.round for r in kept(tmp_path)[c]] for c in (1, 2)] == [[0, 1, 2, 3]] * 2
    assert json.loads((tmp_path / "run" / "letters.json").read_text())["waiting"] == {}
    assert holds(run, tmp_path)


def test_a_node_refuses_and_reports_receipts_of_books_that_contradict_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """From round 1 on the server tells client 1 of another book: it keeps none of these, answers with the reason, and
    its log has it."""
    honest = Letters.add

    def forged(self: Letters, lines: Iterable[tuple[int, str]], rounds: int) -> None:
        told = ((c, Receipt.read(line.encode())) for c, line in lines)
        other = ((c, receipt(r.book, r.round, 1, 1, key=KEY) if c == 1 and r.round >= 1 else r) for c, r in told)
        honest(self, ((c, r.as_json()) for c, r in other), rounds)

    monkeypatch.setattr(Letters, "add", forged)
    run = play(grid_of(books(), tmp_path), books(), tmp_path / "run")
    assert [r.round for r in kept(tmp_path)[1]] == [0]
    assert [r.round for r in kept(tmp_path)[2]] == [0, 1, 2, 3]
    said = "the receipt of round 1 says 1 transaction; that of round 0 said "
    assert f"{said}" in caplog.text
    assert any(c == 1 and said in reason for _, c, reason in load_run(run.path).refusals())


def test_who_has_left_is_not_told_the_end_where_that_was_agreed(tmp_path: Path) -> None:
    exp = books(clients={"exit": {"receipts": "withheld"}})
    play(grid_of(exp, tmp_path), exp, tmp_path / "run", After(0, lambda: give(tmp_path / "run", "expel", "leaves", 1)))
    assert (ROUNDS in {r.round for r in kept(tmp_path)[0]}, kept(tmp_path)[1][1:]) == (True, [])
    assert hanse.facts(tmp_path / "run").clients[1].status == "expelled"  # it has signed nothing


def test_letters_of_a_participant_that_is_away_wait_for_it(tmp_path: Path) -> None:
    exp, grid = books(), grid_of(books(), tmp_path)
    play(grid, exp, tmp_path / "run", After(1, lambda: grid.online.discard(104)))
    assert [r.round for r in kept(tmp_path)[4]] == [0]
    waiting = json.loads((tmp_path / "run" / "letters.json").read_text())["waiting"]
    assert {client: [Receipt.read(line.encode()).round for line in lines] for client, lines in waiting.items()} == {
        "4": [1, 2, 3]
    }
    again = play(grid_of(exp, tmp_path), exp, tmp_path / "run")  # nothing is left to play
    assert [r.round for r in kept(tmp_path)[4]] == [0, 1, 2, 3]
    assert json.loads((tmp_path / "run" / "letters.json").read_text())["waiting"] == {}
    assert holds(again, tmp_path)


def test_receipts_of_several_rounds_between_checkpoints_hold_against_the_books(tmp_path: Path) -> None:
    exp = books()
    exp = hanse.Experiment(**{**exp.model_dump(), "run": {"rounds": ROUNDS, "checkpoint_every": 2}})
    run = play(grid_of(exp, tmp_path), exp, tmp_path / "run")
    assert [r.round for r in kept(tmp_path)[0]] == [0, 1, 2, 3]
    assert holds(run, tmp_path)


def test_a_damaged_file_of_letters_is_one_line_with_what_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "letters.json"
    for text in ("", "[]", '{"waiting": 5}', '{"rounds": 1, "waiting": {"x": []}}'):
        path.write_text(text)
        with pytest.raises(hanse.UserError, match=r"letters\.json: is damaged"):
            Letters.read(path)


def statements(folder: Path, client: int) -> list[Path]:
    return sorted((folder / f"node{client}").glob(f"*/client-{client}/statements/*.html"))


def test_each_participant_gets_its_own_statement_signed(tmp_path: Path) -> None:
    """Of a mechanism that does not pay, so that there are no receipts; one of them leaves after round 0."""
    pytest.importorskip("hanse.wings.operate")
    exp, leaves = experiment("greedyfed", rounds=2), After(0, lambda: give(tmp_path / "run", "expel", "leaves", 2))
    play(grid_of(exp, tmp_path), exp, tmp_path / "run", leaves, statements=True)
    pages = {c: [path.read_text() for path in statements(tmp_path, c)] for c in range(N)}
    assert [len(found) for found in pages.values()] == [1] * N
    assert len({found[0] for found in pages.values()}) == N
    assert all(is_signed_page(found[0], PINNED) for found in pages.values())
    assert json.loads((tmp_path / "run" / "letters.json").read_text())["waiting"] == {}
    (tmp_path / "operator.pub").write_text(PINNED.hex())
    [mine] = statements(tmp_path, 1)
    given = ["receipt", "verify", str(mine), "--operator", str(tmp_path / "operator.pub")]
    assert invoke(*given).exit_code == 0
    mine.write_text(mine.read_text().replace("</body>", "<p>It paid more.</p></body>"))
    assert invoke(*given).exit_code == 1


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({"page": "<html></html>\n"}),
        json.dumps({"page": signed_page("<html></html>", KEY).replace("<html>", "<htm1>")}),
        json.dumps({"page": signed_page("<html></html>", Ed25519PrivateKey.generate())}),
        json.dumps({"page": 7}),
        '{"page": ',
    ],
)
def test_a_statement_that_the_operator_has_not_signed_is_not_kept(line: str, tmp_path: Path) -> None:
    with pytest.raises(WireError):
        keep_pages(line, tmp_path, PINNED)
    assert not list(tmp_path.rglob("*.html"))


def test_a_statement_that_comes_twice_is_kept_once_and_receipts_go_on(tmp_path: Path) -> None:
    line = json.dumps({"page": signed_page("<html></html>", KEY)})
    for letter in (f"{line}\n{{}}", line, json.dumps({"page": signed_page("<html>later</html>", KEY)})):
        assert keep_pages(letter, tmp_path, PINNED) == ("{}" if letter.endswith("{}") else "")
    assert [path.name for path in sorted(tmp_path.rglob("*.html"))] == ["1.html", "2.html"]
