"""``hanse ledger`` on run directories: what it prints, its exit codes, backups, older schemas."""

import csv
import io
import json
import shutil
import sqlite3
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from alembic import command as alembic
from alembic.config import Config
from ledger_cases import book_of, flat, history, play
from sqlalchemy import create_engine, text

import hanse
from hanse.base.errors import UserError
from hanse.cli import entry as cli
from hanse.core.book import Book, LedgerError
from hanse.core.entry import TOKEN, Transaction, client
from hanse.ledger import archive, connect
from hanse.ledger.export import tokens
from hanse.ledger.place import heads_said, open_ledger
from hanse.ledger.receipts import make_receipts, write_receipts
from hanse.ledger.store import Ledger
from hanse.ledger.tables import metadata

TOLD = history(7, 4, seed=6)
GRANTED = TOLD[0][1][0].postings[1][1] / TOKEN
HERE = Path(__file__).parent
Hanse = Callable[..., tuple[int, str, str]]


def checkpoint(folder: Path, book: Book, number: int, pending: Sequence[tuple[int, Transaction]] = ()) -> None:
    """Write what a checkpoint says of the books, in a safetensors file without tensors."""
    notes = {
        "round": number,
        "lengths": {"metrics.jsonl": (folder / "metrics.jsonl").stat().st_size},
        "book": {"head": book.head, "count": book.count, "floor": book.floor},
        "pending": [[r, t.step, t.kind, t.memo, t.postings] for r, t in pending],
    }
    header = json.dumps({"__metadata__": {"notes": json.dumps(notes)}}).encode()
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "checkpoints" / f"{number:05d}.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text(
        f'[data]\nclients = 4\n[mechanism]\nname = "fedavg"\nsettle = "mine:Rule"\n[clients]\ngrant = {GRANTED}\n'
    )
    (run / "rounds").mkdir()
    for n in range(7):
        np.savez(run / "rounds" / f"{n:05d}.npz")
    (run / "ledger.json").write_text('{"book": "b1"}\n')
    with Ledger.open(run / "ledger.db", book="b1") as ledger:
        play(ledger, TOLD)
    heads = [{"round": n, "ledger/head": book_of(TOLD[: n + 1]).head} for n in range(7)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in heads))
    checkpoint(run, book_of(TOLD), 7)
    return run


@pytest.fixture
def run_hanse(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Hanse:
    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hanse", *map(str, args)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return call


def test_balances(folder: Path, run_hanse: Hanse) -> None:
    want = dict(book_of(TOLD).balances)
    code, out, _ = run_hanse("ledger", "balances", folder, "--json")
    assert (code, json.loads(out)) == (0, want)
    _, out, _ = run_hanse("ledger", "balances", folder, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {row["account"]: int(row["units"]) for row in rows} == want
    assert {row["account"]: row["tokens"] for row in rows} == {name: tokens(units) for name, units in want.items()}
    _, out, _ = run_hanse("ledger", "balances", folder)
    assert all(name in out and tokens(units) in out for name, units in want.items())
    points = {line.index(".") for line in out.splitlines() if "." in line}
    assert len(points) == 1
    assert len({len(line) for line in out.splitlines()}) == 1


def test_tokens_are_exact() -> None:
    assert [tokens(u) for u in (0, 1, -1, 1_000_000, -1_500_000, 10**15 + 10)] == [
        "0", "0.000001", "-0.000001", "1", "-1.5", "1000000000.00001",
    ]  # fmt: skip


def test_history(folder: Path, run_hanse: Hanse) -> None:
    _, out, _ = run_hanse("ledger", "history", folder, "--json")
    assert [(r["round"], r["step"]) for r in json.loads(out)] == [(n, t.step) for n, t in flat(TOLD)]
    _, out, _ = run_hanse("ledger", "history", folder, "--account", "client/2", "--csv")
    want = [t for _, t in flat(TOLD) if client(2) in dict(t.postings)]
    assert [row["step"] for row in csv.DictReader(io.StringIO(out)) if row["account"] == "client/2"] == [
        t.step for t in want
    ]
    code, out, _ = run_hanse("ledger", "history", folder, "--account", "client/2", "--round", "0")
    assert code == 0
    assert "grant/2" in out
    assert "grant/1" not in out
    code, _, err = run_hanse("ledger", "history", folder, "-a", "client/22")
    assert (code, err) == (2, "hanse: --account: 'client/22': the book has no such account; did you mean 'client/2'?\n")


def test_verify(folder: Path, run_hanse: Hanse, tmp_path: Path) -> None:
    code, out, _ = run_hanse("ledger", "verify", folder)
    assert code == 0
    assert out.startswith("The books hold: ")
    assert book_of(TOLD).head in out
    book = Book()
    for number, new in TOLD:
        book = book.post(number, new)
        write_receipts(tmp_path / "receipts", make_receipts("b1", number, book, new))
    code, out, _ = run_hanse("ledger", "verify", folder, "--receipts", tmp_path / "receipts", "--json")
    assert code == 0
    said = json.loads(out)
    assert said["ok"]
    assert said["receipts"] > 10
    with closing(sqlite3.connect(folder / "ledger.db")) as connection:
        connection.execute("DROP TRIGGER postings_last")
        connection.execute("UPDATE postings SET amount = amount + 1 WHERE transaction_id = 3 AND line = 0")
        connection.commit()
    code, _, err = run_hanse("ledger", "verify", folder)
    assert code == 1
    assert "transaction 3 (id 3, round 0, step 'grant/2'): its postings sum to 1, not to 0" in err
    code, out, _ = run_hanse("ledger", "verify", folder, "--json")
    assert (code, json.loads(out)["ok"]) == (1, False)
    (folder / "ledger.db").write_bytes(b"nothing of the kind" * 100)
    assert run_hanse("ledger", "verify", folder)[0] == 1


def test_a_tail_that_was_cut_is_found_by_the_checkpoint_and_the_metrics(folder: Path, run_hanse: Hanse) -> None:
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (folder / name).unlink(missing_ok=True)
    with Ledger.open(folder / "ledger.db", book="b1") as ledger:
        play(ledger, TOLD[:-2])
    code, _, err = run_hanse("ledger", "verify", folder)
    assert code == 1
    assert "checkpoint of round 7: head" in err
    # but a run killed between its checkpoint and its ledger is only behind
    late = [*flat([TOLD[-2]]), *flat([TOLD[-1]])]
    checkpoint(folder, book_of(TOLD), 7, pending=late)
    assert run_hanse("ledger", "verify", folder)[0] == 0
    # and lines of rounds after the checkpoint are not part of the run
    checkpoint(folder, book_of(TOLD), 7)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"round": 7, "ledger/head": "f" * 64}) + "\n")
    with open_ledger(folder) as ledger:
        assert "f" * 64 not in heads_said(folder, ledger)


def test_exports(folder: Path, run_hanse: Hanse, tmp_path: Path) -> None:
    _, out, _ = run_hanse("ledger", "export", folder, "--json")
    assert [json.loads(line)["hash"] for line in out.splitlines()][-1] == book_of(TOLD).head
    assert run_hanse("ledger", "export", folder, "-f", "csv", "-o", tmp_path / "all.csv")[0] == 0
    rows = list(csv.DictReader((tmp_path / "all.csv").open()))
    assert len(rows) == sum(len(t.postings) for _, t in flat(TOLD))
    code, out, _ = run_hanse("ledger", "export", folder)
    first = book_of(TOLD[:1])
    assert code == 0
    assert "2000-01-01 * (1) grant\n    ; step: grant/0\n" in out
    assert f"    assets:client:0  {tokens(first.balance(client(0)))} tok\n" in out
    code, _, err = run_hanse("ledger", "export", folder, "-f", "hledgr")
    assert (code, err) == (2, "hanse: --format: 'hledgr': no such format; did you mean 'hledger'?\n")
    if shutil.which("hledger") is None:
        return
    (tmp_path / "all.journal").write_text(out)
    read = subprocess.run(
        ["hledger", "-f", tmp_path / "all.journal", "balance", "--flat", "-E", "-O", "json"],
        capture_output=True, text=True, check=True, env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/usr/local/bin"},
    )  # fmt: skip
    found = {row[0]: row[3][0]["aquantity"] if row[3] else None for row in json.loads(read.stdout)[0]}
    want = {("equity:mint" if n == "mint" else ("liabilities:" if n[0] == "p" else "assets:") + n.replace("/", ":")): u
            for n, u in book_of(TOLD).balances.items()}  # fmt: skip
    for name, units in want.items():
        quantity = found[name]
        got = 0 if quantity is None else quantity["decimalMantissa"] * 10 ** (6 - quantity["decimalPlaces"])
        assert got == units, name


def test_what_is_no_ledger(tmp_path: Path, run_hanse: Hanse) -> None:
    code, _, err = run_hanse("ledger", "balances", tmp_path)
    assert (code, err) == (2, f"hanse: {tmp_path}: is not a run directory (it has no config.toml)\n")
    (tmp_path / "config.toml").write_text("")
    code, _, err = run_hanse("ledger", "balances", tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"hanse: {tmp_path}: this run has no ledger, because nobody pays in it; ")
    (tmp_path / "ledger.json").write_text('{"book": "b"}')
    code, _, err = run_hanse("ledger", "balances", tmp_path)
    assert code == 2
    assert "there is no ledger here" in err


# ---- backups


def test_what_cannot_be_written_or_read_is_one_line(folder: Path, run_hanse: Hanse, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = run_hanse("ledger", "backup", folder, tmp_path / "file" / "backup.tar.gz")
    assert (code, "the backup cannot be written: " in err) == (2, True)
    (tmp_path / "receipts" / "client-0.jsonl").mkdir(parents=True)
    code, _, err = run_hanse("ledger", "verify", folder, "--receipts", tmp_path / "receipts")
    assert (code, err.strip().endswith("client-0.jsonl: is not a file")) == (2, True)


def test_backup_and_restore(folder: Path, run_hanse: Hanse, tmp_path: Path) -> None:
    with Ledger.open(folder / "ledger.db", book="b1") as ledger:  # a run that goes on: its WAL is not yet in the file
        ledger.post(7, [Transaction("late", "x", (("mint", -5), ("client/0", 5)))])
        code, out, err = run_hanse("ledger", "backup", folder, tmp_path / "backup.tar.gz")
        assert code == 0, err
        head = ledger.head()
        assert head in out
    code, out, err = run_hanse("ledger", "restore", tmp_path / "backup.tar.gz", tmp_path / "again")
    assert code == 0, err
    assert head in out
    names = {p.relative_to(folder) for p in folder.rglob("*") if p.is_file()}
    assert {p.relative_to(tmp_path / "again") for p in (tmp_path / "again").rglob("*") if p.is_file()} == names
    with open_ledger(folder) as was, open_ledger(tmp_path / "again") as now:
        assert list(was.history()) == list(now.history())
    for wrong in (
        run_hanse("ledger", "backup", folder, tmp_path / "backup.tar.gz"),
        run_hanse("ledger", "restore", tmp_path / "backup.tar.gz", folder),
    ):
        assert wrong[0] == 2
        assert wrong[2].endswith("exists already\n")
    blob = (tmp_path / "backup.tar.gz").read_bytes()
    (tmp_path / "torn.tar.gz").write_bytes(blob[: len(blob) // 2])
    code, _, err = run_hanse("ledger", "restore", tmp_path / "torn.tar.gz", tmp_path / "torn")
    assert code == 2
    assert "is not a whole backup" in err
    assert [p.name for p in tmp_path.iterdir() if "torn" in p.name] == ["torn.tar.gz"]  # nothing half is left


@pytest.mark.parametrize("kind", ["../outside.txt", "/tmp/outside.txt", "link", "device"])
def test_an_archive_that_reaches_outside_is_refused(kind: str, folder: Path, tmp_path: Path) -> None:
    archive.backup(folder, tmp_path / "good.tar.gz")
    bad = tarfile.TarInfo(kind if "/" in kind else "inside")
    if kind == "link":
        bad.type, bad.linkname = tarfile.SYMTYPE, "/etc/passwd"
    if kind == "device":
        bad.type = tarfile.CHRTYPE
    with tarfile.open(tmp_path / "good.tar.gz") as good, tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as written:
        for member in good:
            written.addfile(member, good.extractfile(member))
        written.addfile(bad)
    before = set(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="neither a file nor a folder of a run"):
        archive.restore(tmp_path / "bad.tar.gz", tmp_path / "again")
    assert set(tmp_path.rglob("*")) == before


def test_a_ledger_that_does_not_hold_is_not_backed_up(folder: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(folder / "ledger.db")) as connection:
        connection.execute("UPDATE accounts SET balance = balance + 1 WHERE name = 'client/1'")
        connection.commit()
    with pytest.raises(UserError, match="does not verify: account 'client/1'"):
        archive.backup(folder, tmp_path / "backup.tar.gz")
    assert not list(tmp_path.glob("backup*"))


@pytest.mark.parametrize("command", ["balances", "history", "export"])
def test_what_is_printed_of_books_that_do_not_hold_says_so(folder: Path, run_hanse: Hanse, command: str) -> None:
    assert "do not hold" not in run_hanse("ledger", command, str(folder))[2]
    with closing(sqlite3.connect(folder / "ledger.db")) as connection:
        connection.execute("UPDATE accounts SET balance = balance + 1 WHERE name = 'client/1'")
        connection.commit()
    code, printed, said = run_hanse("ledger", command, str(folder))
    assert code == 0
    assert printed
    assert "warning: the books do not hold: account 'client/1'" in said


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_ledger_on_a_server_is_in_the_backup_too(url: str, folder: Path, tmp_path: Path) -> None:
    (folder / "config.toml").write_text(f'[ledger]\nurl = "{url}"\n')
    with Ledger.open(url, book="b1") as ledger:
        play(ledger, TOLD)
        head = archive.backup(folder, tmp_path / "backup.tar.gz", url)
        with ledger._engine.begin() as connection:  # the server is lost
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            for table in ("postings", "transactions", "accounts", "books"):
                connection.execute(text(f"DELETE FROM {table}"))
    verdict = archive.restore(tmp_path / "backup.tar.gz", tmp_path / "again", url)
    assert verdict.head == head == book_of(TOLD).head
    with open_ledger(tmp_path / "again", url) as ledger:
        assert ledger.as_book() == book_of(TOLD)


@pytest.mark.slow
def test_a_restored_run_goes_on_to_the_same_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE.parent))  # paying.py
    experiment = hanse.Experiment(
        data={"clients": 5},
        mechanism={"name": "paying:paying", "clients_per_round": 2},
        clients={"grant": 7.0},
        engine={"train": "stacked", "threads": 1},
        run={"rounds": 3, "seed": 1},
    )

    class Saver:
        def on_start(self, *_: object) -> None: ...
        def on_end(self, *_: object) -> None: ...
        def on_round(self, metrics: dict[str, object], played: object) -> None:
            if metrics["round"] == 1:
                archive.backup(tmp_path / "run", tmp_path / "backup.tar.gz")

    whole = hanse.run(experiment, out=tmp_path / "run", observers=[Saver()])
    archive.restore(tmp_path / "backup.tar.gz", tmp_path / "again")
    resumed = hanse.resume(tmp_path / "again")
    assert resumed.book == whole.book
    assert resumed.table.rows.equal(whole.table.rows)
    with open_ledger(tmp_path / "run") as was, open_ledger(tmp_path / "again") as now:
        assert list(was.history()) == list(now.history())
        assert now.verify().ok


# ---- schema versions


def older(url: str, version: str) -> None:
    """Make a ledger of an older schema with a book in it, as the hanse of then would have."""
    engine = create_engine(connect.as_url(url))
    config = Config()
    config.set_main_option("script_location", str(Path(connect.__file__).parent / "migrations"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        alembic.upgrade(config, version)
        connection.execute(text("INSERT INTO books (id, name, floor) VALUES (1, 'b1', 0)"))
        connection.execute(
            text("INSERT INTO accounts (id, book_id, name, floor, balance) VALUES (1, 1, 'mint', NULL, -5)")
        )
        connection.execute(
            text("INSERT INTO accounts (id, book_id, name, floor, balance) VALUES (2, 1, 'client/0', 0, 5)")
        )
        names = "id, book_id, number, round, step, kind, memo, previous, hash, sealed"
        (hash_,) = Book().chain(0, [GRANT])[1]
        connection.execute(
            text(
                f"INSERT INTO transactions ({names}) "
                f"VALUES (1, 1, 1, 0, 'grant/0', 'grant', '', '{'0' * 64}', '{hash_}', true)"
            )
        )
        for line, account, amount in ((0, 1, -5), (1, 2, 5)):
            connection.execute(
                text(
                    "INSERT INTO postings (transaction_id, line, account_id, amount) "
                    f"VALUES (1, {line}, {account}, {amount})"
                )
            )
    engine.dispose()


GRANT = Transaction("grant/0", "grant", (("mint", -5), ("client/0", 5)))


def test_an_older_schema_is_brought_up(url: str) -> None:
    older(url, "0001")
    with pytest.raises(LedgerError, match="schema 0001 is older than 0002; 'hanse ledger migrate' upgrades it"):
        Ledger.open(url, book="b1", read_only=True)
    with Ledger.open(url, book="b1") as ledger:
        assert ledger.as_book() == Book().post(0, [GRANT])
        assert ledger.verify().ok  # guards and all
        if ledger.url.get_backend_name() == "sqlite":  # a server numbers rows itself; these were numbered by hand
            ledger.post(1, [replace(GRANT, step="grant/1")])
            assert ledger.verify().ok


def test_migrate_on_the_command_line(folder: Path, run_hanse: Hanse) -> None:
    for file in folder.glob("ledger.db*"):
        file.unlink()
    older(f"sqlite:///{folder / 'ledger.db'}", "0001")
    code, _, err = run_hanse("ledger", "balances", folder)
    assert code == 2
    assert "hanse ledger migrate" in err
    assert run_hanse("ledger", "migrate", folder)[:2] == (0, "schema 0002; 1 transactions verified\n")
    assert run_hanse("ledger", "balances", folder)[0] == 0


def test_a_newer_schema_is_refused(url: str) -> None:
    Ledger.open(url, book="b1").close()
    engine = create_engine(connect.as_url(url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE ledger_version SET version_num = '0099'"))
    engine.dispose()
    for read_only in (True, False):
        with pytest.raises(LedgerError, match="schema 0099 was written by a newer hanse; this one knows 0002"):
            Ledger.open(url, book="b1", read_only=read_only)


def test_the_migrations_make_the_tables_that_the_code_knows(ledger: Ledger) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with ledger.begin() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "ledger_version"})
        assert compare_metadata(context, metadata) == []
