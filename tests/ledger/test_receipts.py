"""Receipts: what they say and prove, and what they give away when the books were cut or written anew."""

import base64
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest
from commands import invoke
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_cases import closed, grant, history, line_of, play

from hanse.base.errors import UserError
from hanse.base.merkle import Tree, as_text
from hanse.core.book import Book
from hanse.core.entry import CLOSE, Transaction, client, leaf
from hanse.ledger.log import LogHead
from hanse.ledger.note import public_of, sign
from hanse.ledger.receipts import (
    Closed,
    ClosingStatement,
    Receipt,
    RecordDigest,
    closing_line,
    read_receipts,
    shortened,
    split_view,
    statements,
    write_receipts,
)
from hanse.ledger.store import Issuer, Ledger, receipts_of
from hanse.ledger.witness import Prover

TOLD = closed(history(7, 4, seed=6))
KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
Rounds = Sequence[tuple[int, list[Transaction]]]


def book(folder: Path, told: Rounds = TOLD, key: Ed25519PrivateKey | None = None, name: str = "run") -> Ledger:
    """A book in a folder, with the lines of the metrics to which its closes commit."""
    folder.mkdir(exist_ok=True)
    ledger, lines, value = Ledger.open(folder / "transactions.jsonl", book=name, key=key), [], Book()
    play(ledger, told)
    for number, new in told:
        value = value.post(number, [t for t in new if t.kind != CLOSE])
        lines.append(json.dumps(line_of(number, value.head)) + "\n")
        value = value.post(number, [t for t in new if t.kind == CLOSE])
    (folder / "metrics.jsonl").write_text("".join(lines))
    return ledger


def told_by(folder: Path, told: Rounds = TOLD, key: Ed25519PrivateKey | None = None) -> list[Receipt]:
    return list(Issuer(book(folder, told, key), folder).new())


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return book(tmp_path / "true")


@pytest.fixture
def told(ledger: Ledger) -> list[Receipt]:
    return list(Issuer(ledger, ledger.file.parent).new())


def test_what_a_receipt_says(tmp_path: Path) -> None:
    new = [grant(3, 9), Transaction("bid/3", "bid", (("client/3", -4), ("escrow/3", 4)))]
    ledger = Ledger.open(tmp_path / "transactions.jsonl", book="run", key=KEY)
    ledger.post(2, new)
    facts = RecordDigest.of(
        {"round": 2}, [{"client": 3, "value": 0.25}, {"client": 3, "value": 0.5}, {"client": 1, "value": "x"}]
    )
    ledger.close_round(2, facts)
    (tmp_path / "metrics.jsonl").write_text('{"round": 2, "time/s": 0.5}\n')
    seats = [{"round": 2, "client": 3, "value": 0.25, "fit/epsilon": 1.5}]
    (tmp_path / "clients.jsonl").write_text("".join(json.dumps(seat) + "\n" for seat in seats))
    with pytest.raises(ValueError, match="round 2: its close"):
        list(Issuer(ledger, tmp_path).new())
    ledger = Ledger.open(tmp_path / "other.jsonl", book="run", key=KEY)
    ledger.post(2, new)
    ledger.close_round(2, RecordDigest.of({"round": 2, "time/s": 9}, seats))
    (receipt,) = Issuer(ledger, tmp_path).new()
    assert (receipt.count, receipt.root) == (3, ledger.as_book().head)
    lines = [("grant/3", "client/3", 9), ("bid/3", "client/3", -4), ("bid/3", "escrow/3", 4)]
    assert (receipt.book, receipt.round, receipt.client) == ("run", 2, 3)
    assert (receipt.said["balance"], receipt.said["escrow"], receipt.said["postings"]) == (5, 4, lines)
    assert (receipt.said["value"], receipt.said["epsilon"]) == (0.25, 1.5)  # the operator has signed both
    assert receipt.wrong("run", public_of(KEY)) is None
    assert "is not signed by the operator's key" in (receipt.wrong("run", public_of(OTHER)) or "")


def test_true_receipts_agree(ledger: Ledger, told: list[Receipt]) -> None:
    assert len(told) == 7 * 4
    assert ledger.verify(told).ok
    assert [len(r.as_json()) <= 2000 for r in told] == [True] * 28
    assert [Receipt.read(r.as_json().encode()) for r in told] == told
    assert not list(Issuer(ledger, ledger.file.parent, first=7).new())


@pytest.mark.parametrize("clients", [1, 2, 40, pytest.param(4096, marks=pytest.mark.nightly)])
def test_a_receipt_has_at_most_two_kilobytes(clients: int, tmp_path: Path) -> None:
    """With 2^20 - 1 lines before the close, the worst that a million can be, and a thousand postings."""
    peaks = tuple(bytes([n]) * 32 for n in range(20))
    balances = {client(c): 10**15 for c in range(clients)} | {"escrow/0": 10**15}
    moved = {c: [(f"market/{j}", client(c), 10**12 + j) for j in range(1000)] for c in range(clients)}
    many = dict.fromkeys(range(clients), -0.12345678901234567)
    facts = RecordDigest(bytes(32), many, many)
    said = statements(10**5, balances, len(peaks), moved, facts)
    line = closing_line(facts.record, Tree(list(said.values())).root())
    head = LogHead("f" * 32, 2**20, bytes(32), 10**5).signed(KEY)
    found = receipts_of(Closed(10**5, line, facts.record, said, peaks), head)
    assert max(len(r.as_json().encode()) for r in found) <= 2000
    assert found[-1].said["postings"] == shortened(moved[clients - 1])


def test_a_cut_tail_is_found(tmp_path: Path, told: list[Receipt]) -> None:
    cut = book(tmp_path / "cut", TOLD[:-1])
    assert cut.verify().ok
    wrong = cut.verify(told).wrong
    assert "receipt of client 0, round 6: saw" in wrong
    assert wrong.endswith("its tail is cut")


CHANGES: dict[str, Callable[[Receipt], Receipt]] = {
    "balance": lambda r: replace(r, statement=r.statement.replace(',"escrow":', '1,"escrow":')),
    "client": lambda r: replace(r, statement=r.statement.replace('"client":1', '"client":2')),
    "place": lambda r: replace(r, index=r.index + 1),
    "record": lambda r: replace(r, record=base64.b64encode(bytes(32)).decode()),
    "proof doubled": lambda r: replace(r, proof=base64.b64encode(base64.b64decode(r.proof) * 2).decode()),
    "path cut": lambda r: replace(r, path=base64.b64encode(base64.b64decode(r.path)[:-32]).decode()),
    "size": lambda r: replace(r, head=r.head.replace(f"\n{r.count}\n", f"\n{r.count + 1}\n")),
    "round": lambda r: replace(r, head=r.head.replace(f"round {r.round}", f"round {r.round + 1}")),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_a_changed_receipt_proves_nothing(ledger: Ledger, told: list[Receipt], case: str) -> None:
    changed = CHANGES[case](told[9])
    assert changed != told[9]
    assert changed.wrong("run") == "its proof does not lead to its head"
    assert ledger.verify([changed]).wrong.endswith(": its proof does not lead to its head")


def test_signed_heads(tmp_path: Path) -> None:
    receipts = told_by(tmp_path / "signed", key=KEY)
    ledger = Ledger.open(tmp_path / "signed" / "transactions.jsonl", book="run", read_only=True, public=public_of(KEY))
    assert ledger.verify(receipts).ok
    unsigned = told_by(tmp_path / "unsigned")
    assert [r.root for r in unsigned] == [r.root for r in receipts]
    said = "receipt of client 0, round 0: its head is not signed by the operator's key, "
    assert (ledger.verify(unsigned).wrong or "").startswith(said)
    assert (ledger.verify(told_by(tmp_path / "other", key=OTHER)).wrong or "").startswith(said)


def test_written_once_each_and_read_again(tmp_path: Path, told: list[Receipt]) -> None:
    for _ in range(2):  # the last round is told twice
        write_receipts(tmp_path / "receipts", told[-4:])
    assert list(read_receipts(tmp_path / "receipts")) == told[-4:]
    file = tmp_path / "receipts" / "client-1.jsonl"
    with file.open("ab") as torn:
        torn.write(b'{"book": "ru')
    assert len(list(read_receipts(tmp_path / "receipts"))) == 4
    file.write_text(json.dumps({"book": "run"}) + "\n")
    with pytest.raises(UserError, match=r"client-1\.jsonl: line 1: is not a receipt"):
        list(read_receipts(tmp_path / "receipts"))
    with pytest.raises(UserError, match="has no receipts"):
        list(read_receipts(tmp_path / "nothing"))


@pytest.mark.parametrize("left", [b"", b'{"book": "ru'])
def test_a_file_without_a_whole_receipt_is_refused(left: bytes, tmp_path: Path, told: list[Receipt]) -> None:
    """Beside others, too: whoever compares them would take it for one that agrees."""
    write_receipts(tmp_path, told)
    file = random.Random(len(left)).choice(sorted(tmp_path.glob("client-*.jsonl")))
    file.write_bytes(left)
    with pytest.raises(UserError, match=f"{file.name}: has no whole receipt"):
        list(read_receipts(tmp_path))
    assert command(*sorted(tmp_path.glob("client-*.jsonl"))) == (2, f"{file}: has no whole receipt")


VERIFIER = Path(__file__).parents[2] / "examples" / "verify_receipt.py"


def verifier() -> Callable[[str, bytes], Any]:
    """The program that the documentation names, which uses nothing of hanse."""
    code = VERIFIER.read_text()
    assert "hanse" not in re.findall(r"(?m)^(?:import|from) .*$", code)
    found: dict[str, Any] = {"__name__": "verifier"}
    exec(code, found)
    return cast("Callable[[str, bytes], Any]", found["verify"])


VERIFY = verifier()
SAID = '{"round":0,"client":1,"balance":5,"escrow":0,"postings":[]}'


def agrees(line: bytes) -> bool | None:
    """Whether both hold a receipt for good; None if both refuse it. Fails if they do not agree."""
    try:
        said = Receipt.read(line)
        ours = said.wrong(said.book, public_of(KEY)) is None
    except ValueError:
        ours = False
    try:
        theirs = VERIFY(line.decode(), public_of(KEY)) is not None
    except Exception:
        theirs = False
    assert ours == theirs, line
    return ours or None


def test_the_verifier_of_the_documentation_agrees(tmp_path: Path) -> None:
    """On honest receipts, on those with a changed byte, and on those with a bit that was flipped anywhere."""
    draw, receipts = random.Random(1), told_by(tmp_path / "mine", closed(history(12, 5, seed=3)), KEY)
    assert [agrees(r.as_json().encode()) for r in receipts] == [True] * 60
    for _ in range(120):
        true = draw.choice(receipts)
        changed = mutated(draw, true)
        assert agrees(changed) is None or means(changed) == means(true.as_json().encode())
        flipped = bytearray(true.as_json().encode())
        flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        assert agrees(bytes(flipped)) is None or means(flipped) == means(true.as_json().encode())
    for receipt in told_by(tmp_path / "other", closed(history(12, 5, seed=3)), OTHER):
        assert agrees(receipt.as_json().encode()) is None


NUMBERS = st.one_of(st.floats(), st.integers(-(2**64), 2**64), st.booleans(), st.none(), st.just("1.5"))
WHOLES = st.one_of(st.integers(-2, 9), st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, True, 1.0, "1"]))
POSTING = st.lists(st.one_of(st.text(max_size=3), WHOLES), min_size=2, max_size=4)
SOUND = st.tuples(st.text(max_size=3), st.text(max_size=3), st.integers(-9, 9)).map(list)
SHORT = st.dictionaries(st.sampled_from(["count", "sha256", "other"]), st.one_of(WHOLES, st.just("f" * 64)))
OPTIONAL = sorted(ClosingStatement.__optional_keys__)


def stated(statement: str, book: str = "b", count: str = "1", round: str = "3", more: str = "") -> bytes:
    """A receipt whose proof holds and which the operator has signed, whatever it says."""
    record = bytes(32)
    close = leaf(1, 3, closing_line(record, Tree([statement.encode()]).root()))
    root = base64.b64encode(Tree([close]).root()).decode()
    text = f"hanse/{book}\n{count}\n{root}\nround {round}\n"
    head = f"{text}\n{sign(text, f'hanse/{book}', KEY)}{more}"
    return Receipt(statement, 0, 1, "", base64.b64encode(record).decode(), "", head).as_json().encode()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_verifier_of_the_documentation_accepts_the_same_statements(data: st.DataObject) -> None:
    """With every set of optional fields, in every order, with sound and unsound values."""
    said: dict[str, Any] = {"round": 3, "client": 1, "balance": 5, "escrow": 0}
    said["postings"] = data.draw(st.one_of(st.lists(SOUND, max_size=2), SHORT, st.lists(POSTING, max_size=2), WHOLES))
    for name in data.draw(st.lists(st.sampled_from([*OPTIONAL, "other"]), unique=True)):
        said[name] = data.draw(st.one_of(st.floats(allow_nan=False, allow_infinity=False), NUMBERS, st.just("a" * 64)))
    if data.draw(st.integers(0, 4)) == 0:
        said[data.draw(st.sampled_from(["round", "client", "balance", "escrow"]))] = data.draw(WHOLES)
    if data.draw(st.integers(0, 4)) == 0:
        said = {name: said[name] for name in data.draw(st.permutations(sorted(said)))}
    head = {"count": data.draw(st.sampled_from(["1", "1", "1", "01", "1.0"]))}
    head["round"] = data.draw(st.sampled_from(["3", "3", "3", "03", "+3"]))
    agrees(stated(json.dumps(said, separators=(",", ":")), **head))


def means(line: bytes) -> dict[str, Any]:
    """What a receipt says: all but the place of its statement, which another one may share (2 of 3 and 1 of 2)."""
    return {name: value for name, value in json.loads(line).items() if name not in ("index", "of")}


def mutated(draw: random.Random, receipt: Receipt) -> bytes:
    """A receipt with one character changed in one of its fields."""
    fields = asdict(receipt)
    name = draw.choice(sorted(fields))
    if isinstance(fields[name], int):  # nothing of what it says: both must agree, whatever they say
        return written(fields | {name: fields[name] + draw.choice([-1, 1, 2, 64])})
    at = draw.randrange(max(1, len(fields[name])))
    fields[name] = fields[name][:at] + draw.choice("A0b+/=\n ") + fields[name][at + 1 :]
    return written(fields)


def written(fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def signed_anyway(tmp_path: Path, *statements: str) -> list[Receipt]:
    """Receipts with proofs and signatures, of whatever an operator says."""
    ledger = Ledger.open(tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl", book="run", key=KEY)
    tree, record = Tree([one.encode() for one in statements]), as_text(bytes(32))
    ledger.post(0, [closing_line(bytes(32), tree.root())])
    head = Prover(ledger).head()
    paths = [as_text(*tree.inclusion(i)) for i in range(len(tree))]
    return [Receipt(s, i, len(tree), paths[i], record, "", head.note()) for i, s in enumerate(statements)]


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line[:-1] + b',"balance":9}',  # a field too much
        lambda line: b'{"statement":"x",' + line[1:],  # one that comes twice: the last counts here, the first elsewhere
        lambda line: b" " + line,
        lambda line: line.replace(b'"index":0', b'"index":0.0'),
        lambda line: line.replace(b'"index":0', b'"index":false'),
        lambda line: line.replace(b'"of":1', b'"of":NaN'),
        lambda line: line.replace(b'"of":1', b'"of":' + b"1" * 3000),
        lambda line: line.replace(b'"of"', b'"\\ud800":1,"of"'),
        lambda line: line.replace(b"\\n1\\n", "\\n\u0661\\n".encode()),  # an Arabic 1
        lambda line: line[:-2] + line[line.index("\u2014".encode()) :],  # two signatures
    ],
)
def test_a_receipt_is_written_in_one_way(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    [true] = signed_anyway(tmp_path, SAID)
    line = true.as_json().encode()
    assert agrees(line)
    changed = change(line)
    assert changed != line
    with pytest.raises(ValueError):  # noqa: PT011 (many reasons)
        Receipt.read(changed)
    assert agrees(changed) is None


def test_two_statements_for_one_client_under_one_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSE_HOME", str(tmp_path / "home"))
    mine, other = signed_anyway(tmp_path, SAID, SAID.replace('"balance":5', '"balance":50'))
    assert mine.wrong("run", public_of(KEY)) is other.wrong("run", public_of(KEY)) is None
    assert split_view([mine, replace(other, statement=SAID.replace('"client":1', '"client":2'))]) == ""
    (tmp_path / "operator.pub").write_text(public_of(KEY).hex())
    for name, one in (("a", mine), ("b", other)):
        (tmp_path / name).write_text(one.as_json() + "\n")
    code, said = command(tmp_path / "a", tmp_path / "b", "--operator", tmp_path / "operator.pub")
    assert (code, "client 1 heard two things of round 0: " in said) == (1, True)


def command(*args: object) -> tuple[int, str]:
    result = invoke("receipt", "verify", *args)
    if isinstance(result.exception, UserError):
        return 2, str(result.exception)
    return result.exit_code, result.output + (result.stderr if result.stderr_bytes else "")


def test_the_command_needs_no_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSE_HOME", str(tmp_path / "home"))
    receipts = told_by(tmp_path / "book", key=KEY)
    write_receipts(tmp_path / "r", receipts)
    mine, theirs, pub = tmp_path / "r" / "client-1.jsonl", tmp_path / "r" / "client-2.jsonl", tmp_path / "operator.pub"
    pub.write_text(public_of(KEY).hex() + "\n")
    assert command(mine, theirs, "--operator", pub)[0] == 0
    code, said = command(mine)
    assert (code, "pinned here" in said) == (1, True)
    (tmp_path / "home" / "operators").mkdir(parents=True)
    (tmp_path / "home" / "operators" / "host_1.pub").write_text(public_of(KEY).hex())
    code, said = command(mine, "--json")
    balances = [r.said["balance"] for r in receipts if r.client == 1]
    assert (code, [r["balance"] for r in json.loads(said)["receipts"]]) == (0, balances)
    pub.write_text(public_of(OTHER).hex())
    code, said = command(mine, "--operator", pub)
    assert (code, "is not signed by the operator's key" in said) == (1, True)
    mine.write_text(mine.read_text().replace('\\"client\\":1', '\\"client\\":3', 1))
    assert command(mine)[0] == 1
    assert command(tmp_path / "none") == (2, f"{tmp_path / 'none'}: is not a file of receipts")


@pytest.mark.parametrize("words", [(), ("client-3.jsonl",)])
def test_the_program_says_how_it_is_called(words: tuple[str, ...]) -> None:
    called = subprocess.run([sys.executable, "-I", VERIFIER, *words], capture_output=True, check=False)
    assert (called.returncode, called.stdout, b"operator.pub" in called.stderr) == (2, b"", True)
