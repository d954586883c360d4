"""Participants' nodes witness the books: cosignatures reach the operator, two books or a rollback raise the alarm."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import run_hanse
from inprocess import KEY, play
from rotation import rotating
from test_flower_in_process import N, grid_of
from test_letters import After, DiesError, books, dies

from hanse.core.entry import LOG
from hanse.flower.witnesses import ShownHeads
from hanse.ledger.log import heads_of
from hanse.ledger.run_ledger import COSIGNED, open_ledger
from hanse.ledger.store import Ledger
from hanse.ledger.witness import Prover, alarms
from hanse.runs.run_record import load_run


def witnesses(folder: Path) -> Path:
    """The file with the participants' witness keys, as they would give them to each other."""
    keys = [(folder / f"node{c}" / "witness.pub").read_text().strip() for c in range(N)]
    file = folder / "witnesses.txt"
    file.write_text("".join(f"node{c} {key}\n" for c, key in enumerate(keys)))
    return file


def refused(run: Any) -> list[tuple[int, int]]:
    """The rounds and clients that were refused with an alarm."""
    return sorted({(round, c) for round, c, reason in load_run(run.path).refusals() if "ALARM" in reason})


def test_heads_are_cosigned_by_everybody_who_was_asked(whole: Any, tmp_path: Path) -> None:
    shutil.copytree(whole.path.parent, tmp_path, dirs_exist_ok=True)
    run = load_run(tmp_path / "run")
    assert all(alarms(tmp_path / f"node{c}") == [] for c in range(N))
    assert refused(run) == []
    lines = [json.loads(line) for line in (tmp_path / "run" / COSIGNED).read_text().splitlines()]
    assert {line["client"] for line in lines} == set(range(N))
    code, said, _ = run_hanse("ledger", "verify", tmp_path / "run", "--witnesses", witnesses(tmp_path), "--json")
    assert (code, json.loads(said)["witnessed"]) == (0, 3)
    members, key = tmp_path / "run" / "members.json", (tmp_path / "node2" / "witness.pub").read_text().strip()
    members.write_text(members.read_text().replace(key, "ab" * 32))
    code, _, said = run_hanse("ledger", "verify", tmp_path / "run", "--witnesses", tmp_path / "witnesses.txt")
    assert (code, "another key for node2" in said) == (1, True)
    (tmp_path / "run" / COSIGNED).write_text("".join(json.dumps(line) + "\n" for line in lines if line["client"] < 2))
    code, _, said = run_hanse("ledger", "verify", tmp_path / "run", "--witnesses", tmp_path / "witnesses.txt")
    assert code == 1
    assert "no head is cosigned by more than half of the 5 witnesses; the most is 2" in said


class Splits:
    """From a round on the operator shows client 1 another book, whose every head it signs."""

    def __init__(self, folder: Path, first: int) -> None:
        self.folder, self.first, self.round = folder, first, 0
        self.honest = ShownHeads.to

    def on_round(self, metrics: Any, played: Any) -> None:
        self.round = metrics["round"] + 1

    def to(self, shown: ShownHeads, client: int) -> dict[str, Any]:
        if client != 1 or self.round < self.first:
            return self.honest(shown, client)
        true = open_ledger(self.folder / "run")
        name, history = true.book, [(r.round, r.transaction) for r in true.history()]
        other = Ledger.open(self.folder / f"other{self.round}.jsonl", book=name, key=KEY)
        other.post_rounds(one for one in history if one[1].step != "grant/4" and one[0] == 0 and one[1].kind == "grant")
        for round in range(self.round):
            other.close_round(round)
        prover = Prover(other)
        head = prover.head()
        since = shown._acknowledged.get(client, 0)
        return {"head": head.note(), "since": since, "proof": prover.proof(since)}


@pytest.mark.parametrize("first", rotating([1, 2], 2))
def test_another_book_for_one_participant_is_found_in_the_round_in_which_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, first: int
) -> None:
    """From round 1 on it has never been shown the true book, of which its receipts are."""
    splits = Splits(tmp_path, first)
    monkeypatch.setattr(ShownHeads, "to", lambda shown, client: splits.to(shown, client))
    run = play(grid_of(books(), tmp_path), books(), tmp_path / "run", splits)
    own = tmp_path / "node1"
    assert "ALARM: the book '" in caplog.text
    assert refused(run)[0] == (first, 1)
    assert {c for _, c in refused(run)} == {1}
    [why, *_] = alarms(own)
    assert any(said in why for said in ("was rolled back", "is not shown to begin with", "two heads"))
    told = [run_hanse("receipt", "verify", path) for path in own.glob("*/client-1/receipts/client-1.jsonl")]
    alarmed = [(code, "its node has raised the alarm: the book" in said) for code, _, said in told]
    assert alarmed == [(1, True)] * (first == 2)  # then it has a receipt of round 0


def test_a_book_that_is_rolled_back_is_found_by_everybody(tmp_path: Path) -> None:
    """The operator plays again from a copy that it made after the first round."""
    exp = books()

    def copies() -> None:
        shutil.copytree(tmp_path / "run", tmp_path / "copy")

    play(grid_of(exp, tmp_path), exp, tmp_path / "run", After(0, copies))
    for file in (LOG, heads_of(Path(LOG)).name):
        assert (tmp_path / "copy" / file).stat().st_size < (tmp_path / "run" / file).stat().st_size
    shutil.rmtree(tmp_path / "run")
    shutil.move(tmp_path / "copy", tmp_path / "run")
    (tmp_path / "run" / "lock").unlink(missing_ok=True)
    assert {c for _, c in refused(play(grid_of(exp, tmp_path), exp, tmp_path / "run"))} == set(range(N))
    assert all("was rolled back" in alarms(tmp_path / f"node{c}")[0] for c in range(N))


def test_a_server_that_starts_again_asks_twice_and_nobody_raises_the_alarm(tmp_path: Path) -> None:
    exp = books()
    with pytest.raises(DiesError):
        play(grid_of(exp, tmp_path), exp, tmp_path / "run", After(1, dies))
    run = play(grid_of(exp, tmp_path), exp, tmp_path / "run")
    assert refused(run) == []
    assert all(alarms(tmp_path / f"node{c}") == [] for c in range(N))
    assert [line["refused"] for line in run.metrics] == [0, 0, 0]
