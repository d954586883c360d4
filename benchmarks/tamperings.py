"""1,000 random tamperings with a run, its books, receipts and validation set: which command finds each?

    OMP_NUM_THREADS=1 python benchmarks/tamperings.py [--draws 1000] [--receipts 10000]

Three small recomputable runs are played once, and copied for each draw. The commands are tried in the order in which
they cost: ``verify`` (``hanse ledger verify RUN``), ``receipts`` (the same with ``--receipts``), ``receipt`` (``hanse
receipt verify FILE``), ``witness`` (the alarm of a node that is shown the head) and ``recompute`` (``hanse audit
recompute``). Then as many honest books, and receipts against ``examples/verify_receipt.py``.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from forging import History, history_of, receipts_of, restamped, rewritten

import hanse
from hanse.base.errors import UserError
from hanse.core.book import LedgerError, OverdraftError
from hanse.core.entry import LOG, MINT, TOKEN, Transaction, client, escrow
from hanse.ledger.index import difference
from hanse.ledger.log import heads_of
from hanse.ledger.note import public_of
from hanse.ledger.receipts import Receipt, RecordDigest, split_view
from hanse.ledger.run_ledger import open_ledger, verify_run
from hanse.ledger.store import Issuer, Ledger
from hanse.ledger.witness import Prover, SplitViewError, Witness
from hanse.runs.recomputable import answers_file, audit_folder, validation_file
from hanse.runs.recompute import recompute
from hanse.runs.replay import wrong_books
from hanse.runs.round_record import SEATS, round_file

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
ROUNDS, N = 3, 5
VALUED = {"data": {"source": "digits", "clients": N}, "model": "logistic", "train": {"steps": 4}}
MARKET = {"partition": "cluster", "client_test": 0.25, "client_validation": 0.1, "validation": 0.0}
RUNS: dict[str, dict[str, Any]] = {
    "path values": {**VALUED, "mechanism": {"name": "fedavg", "value": "path"}},
    "paid by value": {**VALUED, "mechanism": {"name": "fedavg", "value": "path", "settle": "by_value"}},
    "market": {
        **VALUED,
        "data": {**VALUED["data"], **MARKET},
        "mechanism": "ipfl",
        "clients": {"profiles": {"name": "roles", "eagerness": [6e3, 1.2e4]}},
    },
}


class CannotError(Exception):
    """This tampering is impossible with this run."""


@dataclass
class Copy:
    """A copy of a run that is tampered with."""

    folder: Path
    draw: random.Random

    def lines(self, name: str = LOG) -> list[str]:
        return (self.folder / name).read_text().splitlines(keepends=True)

    def write(self, lines: list[str], name: str = LOG) -> None:
        (self.folder / name).write_text("".join(lines))

    def paying(self) -> History:
        history = history_of(self.folder)
        if not any(t.postings for _, t in history):
            raise CannotError
        return history


def digit(c: Copy) -> None:
    """Another digit somewhere in a line of the log."""
    lines = c.lines()
    at = c.draw.randrange(len(lines))
    places = [m.start() for m in re.finditer(r"\d", lines[at])]
    place = c.draw.choice(places)
    other = c.draw.choice([d for d in "0123456789" if d != lines[at][place]])
    lines[at] = lines[at][:place] + other + lines[at][place + 1 :]
    c.write(lines)


def order(c: Copy) -> None:
    """Two lines of the log in each other's place, numbered anew."""
    lines = c.lines()
    one, other = c.draw.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]
    numbered = [re.sub(r'"number":\d+', f'"number":{n + 1}', line) for n, line in enumerate(lines)]
    c.write(numbered)


def row(c: Copy) -> None:
    """A line of the log left out, or doubled; lines behind the last head are no part of the book, so not the last."""
    lines = c.lines()
    at = c.draw.randrange(len(lines) - 1)
    c.write(lines[:at] + lines[at : at + 1] * c.draw.choice([0, 2]) + lines[at + 1 :])


def head(c: Copy) -> None:
    """A character of a head, or the last heads cut off."""
    name = heads_of(Path(LOG)).name
    text = (c.folder / name).read_text()
    if c.draw.random() < 0.3:
        (c.folder / name).write_text(text[: text[:-2].rindex("\n\n") + 2])
        return
    at = c.draw.choice([i for i, char in enumerate(text) if char.isalnum()])
    (c.folder / name).write_text(text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :])


def rolled_back(c: Copy) -> None:
    """Log and heads of an earlier round."""
    heads = (c.folder / heads_of(Path(LOG))).read_text().split("\n\n")[:-1]
    kept = heads[: c.draw.randrange(1, len(heads))]
    (c.folder / heads_of(Path(LOG))).write_text("".join(f"{one}\n\n" for one in kept).lstrip("\n"))
    c.write(c.lines()[: int(kept[-1].strip().split("\n")[1])])


def database(c: Copy) -> None:
    """A balance in the index."""
    c.paying()
    with closing(sqlite3.connect(c.folder / "ledger.db")) as db, db:
        [(one,)] = db.execute("SELECT id FROM accounts ORDER BY random() LIMIT 1").fetchall()
        db.execute("UPDATE accounts SET balance = balance + ? WHERE id = ?", (c.draw.randint(1, TOKEN), one))


def value(c: Copy) -> None:
    """A value or a weight in clients.jsonl."""
    seats = [json.loads(line) for line in c.lines(SEATS)]
    name = c.draw.choice([n for n in ("value", "weight") if n in seats[0]])
    c.draw.choice(seats)[name] += 0.01
    c.write([json.dumps(seat) + "\n" for seat in seats], SEATS)


def round_gone(c: Copy) -> None:
    """A round's file, removed or with other arrays."""
    file = round_file(c.folder, c.draw.randrange(ROUNDS))
    if c.draw.random() < 0.5:
        file.unlink()
    else:
        np.savez(file, value=np.ones(3))


def books_anew(c: Copy) -> None:
    """A payment between two clients, and everything that the operator holds rewritten to fit."""
    history = c.paying()
    payer, taker = c.draw.sample(range(N), 2)
    units, round = c.draw.randint(1, TOKEN), c.draw.randrange(1, ROUNDS)
    at = next((i for i, (r, _) in enumerate(history) if r >= round), len(history))
    move = Transaction("fee/0", "fee", ((client(payer), -units), (client(taker), units)))
    rewritten(c.folder, [*history[:at], (round, move), *history[at:]])


def grants_anew(c: Copy) -> None:
    """All grants and the settings, and everything else rewritten to fit: ``verify`` has nothing to hold it against."""
    more, history = c.draw.randint(1, 50) * TOKEN, c.paying()
    if any(t.kind != "grant" and MINT in dict(t.postings) for _, t in history):
        raise CannotError
    found = []
    for round, t in history:
        if t.kind == "grant":
            (mint, less), (to, units) = t.postings
            t = Transaction(t.step, t.kind, ((mint, less - more), (to, units + more)))
        found.append((round, t))
    config = c.folder / "config.toml"
    config.write_text(re.sub(r"(?m)^grant = .*$", f"grant = {100 + more / TOKEN}", config.read_text()))
    rewritten(c.folder, found)


def value_anew(c: Copy) -> None:
    """A made-up value in the record, and the books rewritten to fit: nothing in the directory contradicts it."""
    if any(t.postings for _, t in history_of(c.folder)):
        raise CannotError
    seats, number = [json.loads(line) for line in c.lines(SEATS)], c.draw.randrange(ROUNDS)
    mine = [seat for seat in seats if seat["round"] == number]
    at = c.draw.randrange(len(mine))
    mine[at]["value"] += 0.01
    c.write([json.dumps(seat) + "\n" for seat in seats], SEATS)
    with np.load(round_file(c.folder, number)) as arrays:
        kept = {name: arrays[name] for name in arrays}
    kept["value"][at] = mine[at]["value"]
    np.savez(round_file(c.folder, number), **kept)
    restamped(c.folder)


def update(c: Copy) -> None:
    """One bit of what a client sent."""
    file = answers_file(c.folder, c.draw.randrange(ROUNDS))
    data = bytearray(file.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    data[c.draw.randrange(begin, len(data))] ^= 1 << c.draw.randrange(8)
    file.write_bytes(bytes(data))


def sample(c: Copy) -> None:
    """A validation sample changed, left out, or in another's place."""
    file = validation_file(c.folder)
    if not file.exists():
        raise CannotError
    with np.load(file) as arrays:
        kept = {name: arrays[name] for name in arrays}
    n, how = len(kept["x"]), c.draw.choice(["changed", "label", "missing", "reordered"])
    if how == "changed":
        kept["x"].reshape(n, -1)[c.draw.randrange(n), c.draw.randrange(64)] += 1
    elif how == "label":
        kept["y"][c.draw.randrange(n)] += 1
    else:
        places = list(range(n))
        if how == "missing":
            places.pop(c.draw.randrange(n))
        else:
            one, other = c.draw.sample(places, 2)
            places[one], places[other] = other, one
        kept |= {name: kept[name][places] for name in ("x", "y", "salts")}
    np.savez(file, **kept)


WITH_RUNS = (
    digit, order, row, head, rolled_back, database, value, round_gone, books_anew, grants_anew, value_anew, update,
    sample,
)  # fmt: skip


def found_by(folder: Path, kept: list[Receipt]) -> str:
    """Return the first command that finds something wrong with a run; "" if none does."""
    try:
        ledger = open_ledger(folder)
        if wrong_books(folder) or difference(folder / "ledger.db", ledger):
            return "verify"
        if verify_run(folder, ledger, kept).wrong:
            return "receipts"
    except (UserError, LedgerError):
        return "verify"
    try:
        return "recompute" if recompute(folder).unlike else ""
    except UserError:
        return "recompute"


def random_book(folder: Path, draw: random.Random, key: Ed25519PrivateKey = KEY, rounds: int = 4, n: int = 8) -> Ledger:
    """Return a book of random payments with closed rounds, and write the records of these rounds."""
    ledger = Ledger.open(folder / LOG, book=f"{draw.getrandbits(64):x}", key=key)
    ledger.post(0, [Transaction(f"grant/{c}", "grant", ((MINT, -TOKEN), (client(c), TOKEN))) for c in range(n)])
    more_rounds(folder, ledger, draw, range(rounds), n)
    return ledger


def more_rounds(folder: Path, ledger: Ledger, draw: random.Random, rounds: range, n: int = 8) -> None:
    for round in rounds:
        new = []
        for i in range(draw.randrange(1, 12)):
            one, other = draw.sample(range(n), 2)
            to = escrow(one) if draw.random() < 0.3 else client(other)
            units = draw.randint(1, 1000)
            new.append(Transaction(f"pay/{i}", "fee", ((client(one), -units), (to, units))))
        ledger.post(round, new)
        seats = [{"round": round, "client": c, "value": draw.random()} for c in range(n) if draw.random() < 0.7]
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"round": round}) + "\n")
        with (folder / SEATS).open("a") as file:
            file.writelines(json.dumps(seat) + "\n" for seat in seats)
        ledger.close_round(round, RecordDigest.of({"round": round}, seats))


def receipt_changed(folder: Path, draw: random.Random) -> str:
    """A character of a receipt that a participant holds."""
    ledger = random_book(folder, draw)
    line = draw.choice(list(Issuer(ledger, folder).new())).as_json()
    while True:
        at = draw.randrange(len(line))
        other = line[:at] + chr(draw.randrange(33, 127)) + line[at + 1 :]
        if other != line:
            break
    try:
        receipt = Receipt.read(other.encode())
    except ValueError:
        return "receipt"
    return "receipt" if receipt.wrong(ledger.book, public_of(KEY)) else ""


def two_books(folder: Path, draw: random.Random) -> str:
    """Receipts of two books of one name, shown to two participants."""
    seed, (one, other) = draw.getrandbits(32), (folder / "one", folder / "other")
    for place, extra in ((one, 0), (other, 1)):
        place.mkdir()
        ledger = random_book(place, random.Random(seed), rounds=2)
        more_rounds(place, ledger, random.Random(seed + extra), range(2, 4))
    found = [list(Issuer(Ledger.open(p / LOG, book=ledger.book, key=KEY), p).new()) for p in (one, other)]
    mine, theirs = ([r for r in all_ if r.client == c] for all_, c in zip(found, (1, 2), strict=True))
    return "receipt" if split_view([*mine, *theirs]) else ""


def other_book_for_a_witness(folder: Path, draw: random.Random) -> str:
    """A witness is shown a book that goes on otherwise, or an earlier state."""
    seed, (one, other) = draw.getrandbits(32), (folder / "one", folder / "other")
    extra = draw.choice([0, 1])
    for place, add in ((one, 0), (other, extra)):
        place.mkdir()
        ledger = random_book(place, random.Random(seed), rounds=2)
        if place == one or extra:
            more_rounds(place, ledger, random.Random(seed + add), range(2, 4))
    witness, since = Witness(folder / "mine"), 0
    for place in (one, other):
        prover = Prover(Ledger.open(place / LOG, book=ledger.book, key=KEY))
        shown = prover.head()
        assert shown is not None
        try:
            witness.see(shown.note(), since, prover.proof(since), public_of(KEY), 0)
        except SplitViewError:
            return "witness"
        since = shown.count
    return ""


WITHOUT_RUNS = (receipt_changed, two_books, other_book_for_a_witness)


def honest(folder: Path, draw: random.Random) -> bool:
    """Say whether anything is reported of an honest book, its receipts, and its heads to a witness round by round."""
    ledger, witness, since = random_book(folder, draw, rounds=1), Witness(folder / "mine"), 0
    prover = Prover(ledger)
    for round in range(1, 5):
        shown = prover.head()
        assert shown is not None
        witness.see(shown.note(), since, prover.proof(since), public_of(KEY), round)
        since = shown.count
        more_rounds(folder, ledger, draw, range(round, round + 1))
    receipts = list(Issuer(ledger, folder).new())
    wrong = any(r.wrong(ledger.book, public_of(KEY)) for r in receipts) or split_view(receipts)
    return bool(wrong or ledger.verify(receipts).wrong)


def independent() -> Callable[[str, bytes], Any]:
    """Return the verifier that uses nothing of hanse."""
    code = (Path(__file__).parents[1] / "examples" / "verify_receipt.py").read_text()
    names: dict[str, Any] = {"__name__": "verify_receipt"}
    exec(code, names)
    verify: Callable[[str, bytes], Any] = names["verify"]
    return verify


def compare_receipts(scratch: Path, draw: random.Random, count: int) -> None:
    """Print how both verifiers judge honest and changed receipts, and what these weigh and take."""
    verify, public = independent(), public_of(KEY)
    lines: list[str] = []
    while len(lines) < count:
        folder = scratch / f"book{len(lines)}"
        folder.mkdir()
        lines += [r.as_json() for r in Issuer(random_book(folder, draw, rounds=10, n=100), folder).new()]
        shutil.rmtree(folder)
    lines = lines[:count]

    def ours(line: str) -> bool:
        try:
            receipt = Receipt.read(line.encode())
        except ValueError:
            return False
        return receipt.wrong(receipt.book, public) is None

    def theirs(line: str) -> bool:
        try:
            verify(line, public)
        except Exception:
            return False
        return True

    begun = time.process_time()
    mine = [ours(line) for line in lines]
    took = (time.process_time() - begun) / len(lines)
    same = sum(a == theirs(line) for a, line in zip(mine, lines, strict=True))
    changed = []
    for line in lines:
        at = draw.randrange(len(line))
        changed.append(line[:at] + chr(draw.randrange(33, 127)) + line[at + 1 :])
    unlike = [line for line in changed if ours(line) != theirs(line)]
    accepted = sum(ours(a) for a, b in zip(changed, lines, strict=True) if a != b)
    print(f"receipts: {sum(mine)} of {len(lines)} hold, both verifiers agree on {same}; {took * 1000:.2f} ms each")
    sizes = sorted(len(line) for line in lines)
    print(f"receipts: median {sizes[len(sizes) // 2]} bytes, largest {sizes[-1]}")
    print(
        f"changed receipts: both agree on {len(changed) - len(unlike)} of {len(changed)}; {accepted} accepted",
        *unlike[:3],
    )


def play_runs(scratch: Path) -> dict[str, tuple[Path, list[Receipt]]]:
    found = {}
    for name, sections in RUNS.items():
        folder = scratch / name.replace(" ", "-")
        hanse.run(hanse.Experiment(**sections, run={"rounds": ROUNDS, "recomputable": True}), out=folder)
        found[name] = (folder, receipts_of(folder))
        assert found_by(*found[name]) == ""
    return found


def tampered(
    kind: Callable[[Copy], None], runs: dict[str, tuple[Path, list[Receipt]]], scratch: Path, draw: random.Random
) -> str:
    """Return which command finds a tampering with a copy of a run for which it is possible."""
    while True:
        folder, kept = draw.choice(list(runs.values()))
        copy = scratch / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        shutil.rmtree(audit_folder(copy), ignore_errors=True)
        shutil.copytree(audit_folder(folder), audit_folder(copy))
        try:
            kind(Copy(copy, draw))
        except (CannotError, OverdraftError):
            continue
        return found_by(copy, kept) or "nobody"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--receipts", type=int, default=10_000)
    given = parser.parse_args()
    draw, kinds = random.Random(0), [*WITH_RUNS, *WITHOUT_RUNS]
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        compare_receipts(scratch, draw, given.receipts)
        runs, found = play_runs(scratch), dict[str, Counter[str]]()
        for number in range(given.draws):
            kind = kinds[number % len(kinds)]
            if kind in WITH_RUNS:
                by = tampered(kind, runs, scratch, draw)  # type: ignore[arg-type]
            else:
                (scratch / "book").mkdir()
                by = kind(scratch / "book", draw) or "nobody"  # type: ignore[call-arg, arg-type]
                shutil.rmtree(scratch / "book")
            found.setdefault(kind.__name__, Counter())[by] += 1
            if number % 100 == 99:
                print(f"{number + 1} draws, by nobody {sum(c['nobody'] for c in found.values())}", flush=True)
        for name, by_whom in found.items():
            print(f"{name}: {', '.join(f'{who} {count}' for who, count in by_whom.most_common())}", flush=True)
        reported = 0
        for _ in range(given.draws):
            (scratch / "book").mkdir()
            reported += honest(scratch / "book", draw)
            shutil.rmtree(scratch / "book")
        print(f"honest books of which something was reported: {reported} of {given.draws}", flush=True)


if __name__ == "__main__":
    main()
