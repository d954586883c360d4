"""Crashes between any two statements, kill -9, two writers, a full disk: nothing is lost, doubled or half written."""

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from faults import CrashError, crash_at
from ledger_cases import book_of, fee, grant, history, play
from sqlalchemy import insert, select, text

from hanse.core.book import LedgerError
from hanse.ledger.store import Ledger
from hanse.ledger.tables import books

HERE = Path(__file__).parent


def crashed_history(ledger: Ledger, again: Ledger, seed: int, moment: int) -> bool:
    """Play a random history with a crash at one moment of it, then again from its start, as a resumed run would.

    What stands in the book after the crash must be whole rounds, and the end must be that of a history without one.
    ``again`` is another ledger on the same book. Returns whether it crashed: a short history has fewer moments.
    """
    told = history(4, 3, seed)
    crashed = False
    try:
        with crash_at(ledger, moment):
            play(ledger, told)
    except CrashError:
        crashed = True
    assert again.as_book() in [book_of(told[:n]) for n in range(len(told) + 1)]
    play(again, told)
    assert again.as_book() == book_of(told)
    assert again.verify().ok
    return crashed


def crashed_histories(url: str, wanted: int, seed: int) -> int:
    """Play random histories in books of one database until so many have crashed; return how many were played.

    The database is opened anew for every twentieth: opening costs more than a history.
    """
    draw, played, crashed = random.Random(seed), 0, 0
    while crashed < wanted:
        with Ledger.open(url, book=f"first {played}") as one, Ledger.open(url, book=f"first {played}") as two:
            for _ in range(20):
                book = f"book {played}"
                with one.begin(writing=True) as connection:
                    connection.execute(insert(books).values(name=book, floor=0))
                    id_ = connection.execute(select(books.c.id).where(books.c.name == book)).scalar_one()
                before, after = (Ledger(x._engine, x.url, book, id_, 0, False) for x in (one, two))
                crashed += crashed_history(before, after, played, draw.randint(0, 59))
                played += 1
    return played


def test_a_fault_at_every_statement_of_a_round(url: str) -> None:
    told = history(3, 3, seed=5)
    with Ledger.open(url, book="whole") as whole:
        play(whole, told[:-1])
        with crash_at(whole, -1) as seen:
            play(whole, told[-1:])
    assert seen[0] > 14
    for moment in range(seen[0]):
        with Ledger.open(url, book=f"crash {moment}") as ledger:
            play(ledger, told[:-1])
            with pytest.raises(CrashError), crash_at(ledger, moment):
                play(ledger, told[-1:])
            written = moment == seen[0] - 1  # only what crashes after its commit is written
            assert ledger.as_book() == book_of(told if written else told[:-1])
            play(ledger, told)  # and the same round is told again
            assert ledger.as_book() == book_of(told)
            assert ledger.verify().ok


def test_random_histories_with_a_crash(url: str) -> None:
    assert crashed_histories(url, 30, seed=11) <= 60


@pytest.mark.soak
def test_ten_thousand_histories_with_a_crash(url: str) -> None:
    wanted = int(os.environ.get("HANSE_SOAK_HISTORIES", "10000"))
    print(f"{crashed_histories(url, wanted, seed=12)} histories, {wanted} of them crashed")


# ---- kill -9 of a process that pays

DRIVER = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from ledger_cases import history
from hanse.ledger.store import Ledger
url, book, limit = sys.argv[2], sys.argv[3], int(sys.argv[4])
told = history(30, 6, seed=9)
count = 0
def profile(frame, event, arg):
    global count
    count += 1
    if count == limit:
        os.kill(os.getpid(), signal.SIGKILL)
print("ready", flush=True)
if limit:
    sys.setprofile(profile)
with Ledger.open(url, book=book) as ledger:
    for number, new in told:
        ledger.post(number, new)
sys.setprofile(None)
print(count)
"""


def drive(url: str, book: str, limit: int, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """Let a process pay until its ``limit``-th function call or, if given, for some seconds after it is ready."""
    command = [sys.executable, "-c", DRIVER, str(HERE), url, book, str(limit)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        if seconds is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(seconds)
            child.kill()
        said, wrong = child.communicate()
        return subprocess.CompletedProcess(command, child.returncode, first + said, wrong)


def after_a_kill(url: str, book: str) -> None:
    """What a killed driver left is whole rounds and verifies; telling them again makes the book of a whole run."""
    told = history(30, 6, seed=9)
    with Ledger.open(url, book=book) as ledger:
        left = ledger.as_book()
        assert left in [book_of(told[:n]) for n in range(len(told) + 1)]
        assert ledger.verify().ok
        play(ledger, told)
        assert ledger.as_book() == book_of(told)
        assert ledger.verify().ok


def place(url: str, i: int) -> tuple[str, str]:
    """Return a database and a book for the i-th try: SQLite gets a new file, made by the process that is killed."""
    return (url.replace("ledger.db", f"{i}.db"), "run") if url.startswith("sqlite") else (url, f"run {i}")


def test_killed_while_it_pays(url: str) -> None:
    if not url.startswith("sqlite"):
        Ledger.open(url).close()  # the server's tables are made once, and all tries take as many calls
    whole = drive(*place(url, 99), -1)
    assert whole.returncode == 0, whole.stderr
    calls = int(whole.stdout.splitlines()[1])
    for i, part in enumerate([0.15, 0.5, 0.85]):
        assert drive(*place(url, i), int(part * calls)).returncode == -9
        after_a_kill(*place(url, i))


@pytest.mark.soak
def test_killed_at_two_hundred_moments(url: str) -> None:
    """Kills by the clock, so that they fall inside statements and commits too."""
    draw = random.Random(4)
    tries = int(os.environ.get("HANSE_SOAK_KILLS", "200"))
    killed = 0
    for i in range(tries):
        killed += drive(*place(url, i), 0, seconds=draw.uniform(0, 0.6)).returncode == -9
        after_a_kill(*place(url, i))
    assert killed > tries / 2


# ---- two writers, a full disk

WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from ledger_cases import fee, grant, pay
from hanse.ledger.store import Ledger
with Ledger.open(sys.argv[2], book="run") as ledger:
    me = int(sys.argv[3])
    for i in range(40):
        ledger.post(0, [grant(i)])                  # both post these
        ledger.post(0, [grant(100 * me + i)])       # and each its own
    print(ledger.count())
"""


def test_two_writers_at_once(url: str) -> None:
    command = [sys.executable, "-c", WRITER, str(HERE), url]
    writers = [
        subprocess.Popen([*command, str(me)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for me in (1, 2)
    ]
    for writer in writers:
        _, wrong = writer.communicate()
        assert writer.returncode == 0, wrong
    with Ledger.open(url, book="run") as ledger:
        want = {f"grant/{i}" for base in (0, 100, 200) for i in range(base, base + 40)}
        steps = [record.transaction.step for record in ledger.history()]
        assert sorted(steps) == sorted(want)
        assert ledger.verify().ok


def test_threads_of_one_ledger(ledger: Ledger) -> None:
    ledger.post(0, [grant(i) for i in range(8)])
    threads = [
        threading.Thread(target=lambda i=i: [ledger.post(1, [fee(i, 10), fee((i + 1) % 8, 10)]) for _ in range(5)])
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.count() == 16
    assert ledger.verify().ok


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_full_database_writes_nothing(ledger: Ledger) -> None:
    ledger.post(0, [grant(i) for i in range(5)])
    before = ledger.as_book()
    with ledger.begin() as connection:
        pages = connection.execute(text("PRAGMA page_count")).scalar_one()
        connection.execute(text(f"PRAGMA max_page_count = {pages + 3}"))
    big = [grant(i) for i in range(10, 2000)]
    with pytest.raises(LedgerError, match="database or disk is full"):
        ledger.post(0, big)
    assert ledger.as_book() == before
    assert ledger.verify().ok
    ledger.post(0, [grant(9)])  # a little still fits
    with ledger.begin() as connection:
        connection.execute(text("PRAGMA max_page_count = 1000000"))
    ledger.post(0, big)
    assert ledger.count() == 6 + len(big)
    assert ledger.verify().ok


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_file_that_cannot_be_written(url: str, tmp_path: Path) -> None:
    with Ledger.open(url, book="run") as ledger:
        ledger.post(0, [grant(0)])
        with ledger.begin() as connection:
            connection.execute(text("PRAGMA query_only = ON"))
        with pytest.raises(LedgerError, match="readonly"):
            ledger.post(0, [grant(1)])
        assert ledger.count() == 1


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_writer_that_died_with_the_lock(url: str) -> None:
    """A process is killed inside a round, with its statements sent and not committed: the next one goes on."""
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from sqlalchemy import event\nfrom ledger_cases import grant\nfrom hanse.ledger.store import Ledger\n"
        "ledger = Ledger.open(sys.argv[2], book='run')\nledger.post(0, [grant(0)])\n"
        "event.listen(ledger._engine, 'commit', lambda c: os.kill(os.getpid(), 9))\n"
        "ledger.post(0, [grant(i) for i in range(500)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(HERE), url], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    with Ledger.open(url, book="run") as ledger:
        assert ledger.count() == 1
        ledger.post(0, [grant(i) for i in range(500)])
        assert ledger.count() == 500
        assert json.loads(json.dumps(ledger.balances())) == ledger.balances()
