"""Witnesses: heads that go on are cosigned, a split view and a rolled-back book raise the alarm."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from forging import receipt
from ledger_cases import closed, history, play

from hanse.base.errors import UserError
from hanse.core.entry import Transaction
from hanse.ledger.log import LogHead
from hanse.ledger.note import cosigned_at, public_of
from hanse.ledger.receipts import write_receipts
from hanse.ledger.store import Ledger
from hanse.ledger.witness import (
    Prover,
    SplitViewError,
    UnprovenError,
    Witness,
    alarms,
    cosigned,
    majority,
    name_of,
    read_witnesses,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
PUBLIC = public_of(KEY)
TOLD = closed(history(9, 4, seed=6))


def book(folder: Path, rounds: int, told: list[tuple[int, list[Transaction]]] = TOLD) -> Prover:
    ledger = Ledger.open(folder, book="run", key=KEY)
    play(ledger, told[:rounds])
    return Prover(ledger)


def see(witness: Witness, prover: Prover, since: int) -> str:
    return witness.see(prover.head().note(), since, prover.proof(since), PUBLIC, now=7)


def test_heads_that_go_on_are_cosigned(tmp_path: Path) -> None:
    witness, ledger, since = Witness(tmp_path / "home"), Ledger.open(tmp_path / "log.jsonl", book="run", key=KEY), 0
    prover = Prover(ledger)
    for number, new in TOLD:
        ledger.post(number, new)
        for _ in range(2):  # a head that is shown again is cosigned again
            line = see(witness, prover, since)
            head = prover.head()
            assert cosigned_at(head.text, line, witness.name, witness.public) == 7
            assert cosigned(head, [line], {"me": witness.public, "other": PUBLIC}) == ["me"]
        since = head.count
    assert alarms(tmp_path / "home") == []
    assert Witness(tmp_path / "home").public == witness.public
    assert (tmp_path / "home" / "witness.pub").read_text().strip() == witness.public.hex()
    [kept] = (tmp_path / "home" / "heads").iterdir()
    assert len(kept.read_text().splitlines()) == 9
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "home").rglob("*")} == {0}


def test_a_witness_that_was_away_asks_for_a_proof_from_where_it_was(tmp_path: Path) -> None:
    witness, early = Witness(tmp_path / "home"), book(tmp_path / "early.jsonl", 2)
    see(witness, early, 0)
    seen = early.head()
    late = book(tmp_path / "late.jsonl", 9)
    for since in (0, 3):
        with pytest.raises(UnprovenError) as lacking:
            see(witness, late, since)
        assert lacking.value.count == seen.count
    see(witness, late, seen.count)
    assert alarms(tmp_path / "home") == []


def rolled_back(tmp_path: Path) -> tuple[Prover, str]:
    return book(tmp_path / "back.jsonl", 3), "was rolled back: "


def another_of_the_same_size(tmp_path: Path) -> tuple[Prover, str]:
    forged = [(n, [t if i else replace(t, memo="x") for i, t in enumerate(new[:-1])]) for n, new in TOLD]
    return book(tmp_path / "same.jsonl", 5, closed(forged)), "has two heads: "


def another_that_is_longer(tmp_path: Path) -> tuple[Prover, str]:
    return book(tmp_path / "other.jsonl", 9, closed(history(9, 4, seed=8))), "is not shown to begin with the "


@pytest.mark.parametrize("other", [rolled_back, another_of_the_same_size, another_that_is_longer])
def test_another_book_raises_the_alarm(tmp_path: Path, other) -> None:  # type: ignore[no-untyped-def]
    witness, true = Witness(tmp_path / "home"), book(tmp_path / "true.jsonl", 5)
    see(witness, true, 0)
    seen = true.head()
    shown, said = other(tmp_path)
    with pytest.raises(SplitViewError, match=said):
        see(witness, shown, seen.count)
    [why] = alarms(tmp_path / "home")
    assert said in why
    evidence = json.loads((tmp_path / "home" / "alarm.jsonl").read_text())
    heads = [LogHead.read(evidence[name]) for name in ("seen", "shown")]
    assert all(head.by(PUBLIC) for head in heads)
    assert heads[0] == seen
    go_on = book(tmp_path / "more.jsonl", 6)  # what goes on from what was seen is still cosigned
    see(witness, go_on, seen.count)


@pytest.mark.parametrize(("more", "round"), [(0, 9), (1, 4), (1, 3)])
def test_a_round_has_one_head_and_rounds_do_not_go_back(tmp_path: Path, more: int, round: int) -> None:
    """The log is the same or goes on, as the proof shows, and the operator has signed another round."""
    witness, true = Witness(tmp_path / "home"), book(tmp_path / "true.jsonl", 5)
    see(witness, true, 0)
    longer = book(tmp_path / "longer.jsonl", 5 + more)
    seen, head = true.head(), longer.head()
    other = replace(head, round=round).signed(KEY)
    with pytest.raises(SplitViewError, match="has two heads"):
        witness.see(other.note(), seen.count, longer.proof(seen.count), PUBLIC, now=0)
    with pytest.raises(SplitViewError, match="has two heads"):
        witness.compare(other)


def test_a_witness_that_has_lost_its_heads_still_has_its_receipts(tmp_path: Path) -> None:
    home, true = tmp_path / "home", book(tmp_path / "true.jsonl", 5)
    witness = Witness(home)
    see(witness, true, 0)
    head = true.head()
    write_receipts(home / "run" / "client-1" / "receipts", [replace(receipt(book=head.book), head=head.note())])
    for file in (home / "heads").iterdir():
        file.unlink()
    with pytest.raises(SplitViewError, match="was rolled back"):
        see(witness, book(tmp_path / "back.jsonl", 3), 0)
    later = book(tmp_path / "later.jsonl", 6)
    with pytest.raises(UnprovenError, match=f"{head.count}"):
        see(witness, later, 0)
    see(witness, true, 0)
    see(witness, later, head.count)
    [kept] = (home / "heads").iterdir()
    assert len(kept.read_text().splitlines()) == 2


def test_what_is_no_head_of_the_operator_is_refused_without_alarm(tmp_path: Path) -> None:
    witness, prover = Witness(tmp_path / "home"), book(tmp_path / "log.jsonl", 2)
    head = prover.head()
    other = Ed25519PrivateKey.generate()
    for note in ("", "hanse/run\n", head.text + "\n", head.signed(other).note(), head.note().replace("d 1\n", "d 2\n")):
        with pytest.raises(ValueError, match=r"is not a head|is not signed by the operator's key"):
            witness.see(note, 0, "", PUBLIC, now=0)
    with pytest.raises(ValueError, match="too long"):
        witness.see("x" * 20_000, 0, "", PUBLIC, now=0)
    see(witness, prover, 0)
    more = book(tmp_path / "more.jsonl", 5)
    later = more.head()
    for proof in ("", "!", more.proof(head.count)[:-44], more.proof(head.count) + more.proof(head.count)):
        with pytest.raises(SplitViewError):
            witness.see(later.note(), head.count, proof, PUBLIC, now=0)
    assert len(alarms(tmp_path / "home")) == 4


def test_a_cosignature_is_of_one_head_and_one_witness(tmp_path: Path) -> None:
    one, other = (Witness(tmp_path / name) for name in ("a", "b"))
    prover = book(tmp_path / "log.jsonl", 2)
    head = prover.head()
    line = see(one, prover, 0)
    assert cosigned_at(head.text, line, other.name, other.public) is None
    assert cosigned_at(head.text, line, one.name, other.public) is None
    assert cosigned_at(head.text.replace("round 1", "round 0"), line, one.name, one.public) is None
    assert cosigned_at(head.text, line[:-3] + "A\n", one.name, one.public) is None
    assert cosigned_at(head.text, head.signatures[0], one.name, one.public) is None
    assert name_of(one.public) == one.name != other.name


def test_more_than_half(tmp_path: Path) -> None:
    witnesses = [Witness(tmp_path / f"w{n}") for n in range(4)]
    keys = {f"w{n}": w.public for n, w in enumerate(witnesses)}
    file, lines = tmp_path / "cosigned.jsonl", []
    early, late = book(tmp_path / "early.jsonl", 2), book(tmp_path / "late.jsonl", 4)
    for prover, who in ((early, witnesses[:3]), (late, witnesses[:2])):
        head = prover.head()
        for w in who:
            last = early.head()
            since = last.count if prover is late and last is not None else 0
            lines.append({"client": 0, "head": head.note(), "cosignature": see(w, prover, since)})
    lines += [lines[0], lines[0] | {"cosignature": "nonsense"}, lines[0] | {"head": "no head"}, {"head": 5}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said, newest, most = majority(file, keys)
    first, second = early.head(), late.head()
    assert (newest, most) == (first, 3)  # two of four are not more than half
    assert said == {first.root.hex(): "cosigned by w0, w1, w2", second.root.hex(): "cosigned by w0, w1"}
    assert majority(file, {"w3": keys["w3"]}) == ({}, None, 0)
    assert majority(tmp_path / "none", keys) == ({}, None, 0)


P, SMALL = 2**255 - 19, 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826


@pytest.mark.parametrize("y", [0, 1, P - 1, P, P + 1, SMALL, P - SMALL])
@pytest.mark.parametrize("sign", [0, 1])
def test_a_key_with_which_anybody_can_sign_is_refused(y: int, sign: int, tmp_path: Path) -> None:
    file = tmp_path / "members.txt"
    file.write_text(f"clinic {(y | sign << 255).to_bytes(32, 'little').hex()}\n")
    with pytest.raises(UserError, match="anybody"):
        read_witnesses(file)
