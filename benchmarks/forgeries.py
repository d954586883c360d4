"""100 consistent forgeries by an operator who rewrites all that it holds: who finds them, and with what.

Three small runs: PI-FL's auction, iPFL's market, and a payment rule of a user's own that names no kinds. Each forgery
changes the history of one of them and rewrites ledger, journal, checkpoint, metrics and the run's own receipts, so that
every hash is right; those "with records" change rounds' files or ``config.toml`` as well. Four looks at each:

* chain: ``Ledger.verify``, the database alone;
* verify: ``hanse ledger verify RUN``, which anybody with the run directory can do;
* early: the same with the receipts that one client, not concerned, kept until the middle of the run;
* late: the same with all receipts of that client.

Run: ``OMP_NUM_THREADS=1 python benchmarks/forgeries.py``, some minutes.
"""

from __future__ import annotations

import io
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from forging import History, history_of, receipts_of, rerecorded, rewritten

import hanse
from hanse.base.errors import UserError
from hanse.base.files import json_lines, read_arrays, read_toml
from hanse.core.book import LedgerError
from hanse.core.entry import MINT, TOKEN, Transaction, client
from hanse.ledger.receipts import Receipt
from hanse.ledger.run_ledger import open_ledger, verify_run
from hanse.mechanisms.registry import built_in_parts
from hanse.runs.replay import replay_books
from hanse.runs.replay_tokens import _NAMES, TokenManager, _due, _Replay
from hanse.runs.round_record import METRICS, round_file

N, ROUNDS = 8, 6
TRIES = 100  # draws of one forgery in all runs
BYSTANDER = 7  # whose receipts are looked at; no forgery moves its account
RUNS: dict[str, Any] = {
    "auction": {"name": "pifl", "by_contribution": 2, "at_random": 1},
    "market": "ipfl",
    "own rule": "paying:paying",
}


class CannotError(Exception):
    """This forgery is impossible at the place that was drawn, for example because an account would be overdrawn."""


@dataclass
class Forger:
    """A run directory that is forged, and the draw of what is changed."""

    folder: Path
    history: History
    draw: random.Random

    def pick(self, kinds: Sequence[str] = (), first: int = 1) -> int:
        """Return the place of a transaction that does not concern the bystander."""
        found = [
            i
            for i, (round, t) in enumerate(self.history)
            if (not kinds or t.kind in kinds)
            and t.kind != "grant"
            and round >= first
            and all(int(name.partition("/")[2]) != BYSTANDER for name, _ in t.postings if name.startswith("client/"))
        ]
        if not found:
            raise CannotError
        return self.draw.choice(found)

    def two(self) -> tuple[str, str]:
        """Return the accounts of two clients, without the bystander's."""
        one, other = self.draw.sample(range(N - 1), 2)
        return client(one), client(other)

    def units(self) -> int:
        return self.draw.randint(1, 3 * TOKEN)

    def add(self, place: int, kind: str, step: str, postings: tuple[tuple[str, int], ...]) -> None:
        """Put a transaction before the one at a place, with that one's date."""
        self.history.insert(place, (self.history[place][0], Transaction(step, kind, postings)))


def second_grant(f: Forger) -> None:
    name, units = client(f.draw.randrange(N - 1)), 50 * TOKEN
    f.add(f.pick(), "grant", f"grant/{name.partition('/')[2]}", ((MINT, -units), (name, units)))


def larger_grant(f: Forger) -> None:
    place = f.draw.randrange(N - 1)
    round, one = f.history[place]
    more = one.postings[1][1] + f.units()
    f.history[place] = (round, replace(one, postings=((MINT, -more), (one.postings[1][0], more))))


def grant_to_nobody(f: Forger) -> None:
    units = f.history[0][1].postings[1][1]
    f.add(f.pick(), "grant", f"grant/{N}", ((MINT, -units), (client(N), units)))


def minted_as_another_kind(f: Forger) -> None:
    units = f.units()
    f.add(f.pick(), "subsidy", "subsidy", ((MINT, -units), (f.two()[0], units)))


def every_grant(f: Forger) -> None:
    """All grants and the size that ``config.toml`` names: nothing in the directory contradicts it."""
    units = f.history[0][1].postings[1][1] + f.draw.randint(1, 50) * TOKEN
    for place, (round, one) in enumerate(f.history):
        if one.kind == "grant":
            f.history[place] = (round, replace(one, postings=((MINT, -units), (one.postings[1][0], units))))
    file = f.folder / "config.toml"
    told = file.read_text()
    line = next((line for line in told.splitlines() if line.startswith("grant = ")), None)
    assert line is not None
    file.write_text(told.replace(line, f"grant = {units / TOKEN}"))


def fee(f: Forger) -> None:
    (payer, taker), units = f.two(), f.units()
    f.add(f.pick(), "fee", "fee/of mine", ((payer, -units), (taker, units)))


def disguised_fee(f: Forger) -> None:
    """Of a kind that the rule posts."""
    (payer, taker), units, place = f.two(), f.units(), f.pick()
    kind = f.history[place][1].kind
    f.add(place, kind, f"{kind}/{f.draw.randrange(100, 200)}", ((payer, -units), (taker, units)))


def appended_fee(f: Forger) -> None:
    """Behind the last transaction, with its date: the one of the first attack."""
    (payer, taker), units = f.two(), f.units()
    f.history.append((f.history[-1][0], Transaction("fee/late", "fee", ((payer, -units), (taker, units)))))


def fee_after_the_run(f: Forger) -> None:
    (payer, taker), units = f.two(), f.units()
    f.history.append((ROUNDS + f.draw.randint(1, 9), Transaction("fee/late", "fee", ((payer, -units), (taker, units)))))


def amount(f: Forger) -> None:
    """Two accounts of one transaction: one gets more, the other less."""
    place, units = f.pick(), f.draw.randint(1, TOKEN // 2)
    round, one = f.history[place]
    lines = list(one.postings)
    i, j = f.draw.sample(range(len(lines)), 2)
    lines[i], lines[j] = (lines[i][0], lines[i][1] + units), (lines[j][0], lines[j][1] - units)
    f.history[place] = (round, replace(one, postings=tuple(lines)))


def other_payee(f: Forger) -> None:
    place = f.pick()
    round, one = f.history[place]
    at = [i for i, (name, units) in enumerate(one.postings) if units > 0 and name.startswith("client/")]
    others = [client(c) for c in range(N - 1) if client(c) not in dict(one.postings)]
    if not at or not others:
        raise CannotError
    lines = list(one.postings)
    lines[at[0]] = (f.draw.choice(others), lines[at[0]][1])
    f.history[place] = (round, replace(one, postings=tuple(lines)))


def left_out(f: Forger) -> None:
    del f.history[f.pick()]


def worth_with_records(f: Forger) -> None:
    """What updates were worth is changed in the record of a round, and all that follows from it: another ranking."""
    round = f.draw.randrange(1, ROUNDS)
    with np.load(f.folder / "rounds" / f"{round:05d}.npz") as stored:
        worth = stored["tokens_worth"]
    rerecorded(f.folder, round, tokens_worth=np.array(f.draw.sample(worth.tolist(), len(worth))))
    forged = [(r, t) for r, t in f.history if t.kind == "grant"]
    rule = built_in_parts(read_toml(f.folder / "config.toml"))["settle"]
    assert isinstance(rule, TokenManager)
    replay = _Replay(rule)
    for line in json_lines(f.folder / METRICS, ("round",)):
        record = read_arrays(round_file(f.folder, line["round"]), _NAMES)
        forged += [(line["round"], t) for t in _due(replay, record, line, ())]
    forged += [(ROUNDS, t) for t in replay.settled({}, [t for r, t in f.history if r == ROUNDS])]
    if forged == f.history:
        raise CannotError
    f.history[:] = sorted(forged, key=lambda one: one[0])


def dated_otherwise(f: Forger) -> None:
    """A transaction is moved to the end or the beginning of a neighbouring round."""
    place = f.pick()
    round, one = f.history.pop(place)
    other = round + f.draw.choice([-1, 1])
    if not 0 <= other <= ROUNDS:
        raise CannotError
    at = sum(r < round for r, _ in f.history) if other < round else sum(r <= other for r, _ in f.history)
    f.history.insert(at, (other, replace(one, step=f"{one.step}'")))


def cut(f: Forger) -> None:
    """The last settlement never was."""
    kept = [one for one in f.history if one[0] < f.history[-1][0]]
    f.history[:] = kept


ANY = tuple(RUNS)
# what is forged, which runs, and how often
PLAN: Sequence[tuple[str, Callable[[Forger], None], Sequence[str], int]] = (
    ("grant: a second one", second_grant, ANY, 6),
    ("grant: a larger one", larger_grant, ANY, 6),
    ("grant: to a client that is not there", grant_to_nobody, ANY, 6),
    ("grant: minted as another kind", minted_as_another_kind, ANY, 6),
    ("grant: all of them, and config.toml", every_grant, ANY, 6),
    ("fee: of a kind of its own", fee, ANY, 6),
    ("fee: of a kind that the rule posts", disguised_fee, ANY, 6),
    ("fee: behind the last line, with its date", appended_fee, ANY, 6),
    ("amount: one more, one less", amount, ANY, 9),
    ("amount: to another client", other_payee, ANY, 6),
    ("amount: a transaction left out", left_out, ANY, 6),
    ("amount: with the record of what updates were worth", worth_with_records, ("auction",), 10),
    ("date: in the round before or after", dated_otherwise, ANY, 9),
    ("date: after the run", fee_after_the_run, ANY, 6),
    ("date: the last settlement cut off", cut, ("auction", "own rule"), 6),
)


def told_to_the_bystander(folder: Path) -> list[Receipt]:
    """Return what the bystander is told after each round of an honest network, and at the end."""
    return [receipt for receipt in receipts_of(folder) if receipt.client == BYSTANDER]


def found_by(folder: Path, receipts: Sequence[Receipt]) -> tuple[bool, bool, bool, bool]:
    """Return which looks find something wrong: the chain, verify, verify with early and with all receipts."""

    def verified(told: Sequence[Receipt]) -> bool:
        try:
            with open_ledger(folder) as ledger:
                return verify_run(folder, ledger, told).ok and replay_books(folder, ledger).wrong is None
        except UserError:  # a record that cannot be read
            return False

    with open_ledger(folder) as ledger:
        chain = not ledger.verify().ok
    early = [receipt for receipt in receipts if receipt.round < ROUNDS // 2]
    return chain, not verified(()), not verified(early), not verified(receipts)


def forged(source: Path, forge: Callable[[Forger], None], seed: int, place: Path) -> bool:
    """Copy an honest run and forge it. False: it was impossible with this draw."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)
    forger = Forger(place, history_of(source), random.Random(seed))
    try:
        forge(forger)
        rewritten(place, forger.history)
    except (CannotError, LedgerError):  # an overdraft: the operator's own ledger refuses it
        return False
    return True


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as scratch, redirect_stderr(io.StringIO()):
        base = Path(scratch)
        receipts = {}
        for name, mechanism in RUNS.items():
            hanse.run(
                hanse.Experiment(
                    data={"source": "digits", "clients": N, "partition": {"alpha": 1.0}, "client_validation": 0.1},
                    model={"name": "logistic"},
                    mechanism=mechanism,
                    clients={"grant": 100.0, "profiles": {"name": "roles", "eagerness": [1e4, 2e4]}},
                    train={"steps": 2, "batch_size": 8, "lr": 0.1},
                    engine={"train": "stacked", "threads": 1},
                    run={"rounds": ROUNDS, "seed": 3},
                ),
                out=base / name,
            )
            receipts[name] = told_to_the_bystander(base / name)
            assert found_by(base / name, receipts[name]) == (False,) * 4, name
        print("| forged | runs | forgeries | chain | verify | early receipts | late receipts | verify misses |")
        print("|---|---|---|---|---|---|---|---|")
        totals = np.zeros(5, np.int64)
        for what, forge, runs, times in PLAN:
            counts, missed, made = np.zeros(5, np.int64), Counter[str](), Counter[str]()
            seeds = {name: iter(range(k, TRIES, len(RUNS))) for k, name in enumerate(runs)}
            while counts[0] < times:
                # the run that has the fewest so far; one in which this cannot be done any more is left out
                name = min(seeds, key=lambda name: made[name])
                if not any(forged(base / name, forge, seed, base / "forged") for seed in seeds[name]):
                    del seeds[name]
                    continue
                looks = found_by(base / "forged", receipts[name])
                counts += [1, *looks]
                made[name] += 1
                missed[name] += not looks[1]
            totals += counts
            told = ", ".join(f"{made[name]} {name}" for name in RUNS if made[name])
            lacking = ", ".join(f"{missed[name]} {name}" for name in RUNS if missed[name])
            print(f"| {what} | {told} | {' | '.join(map(str, counts))} | {lacking} |", flush=True)
        print(f"| all | | {' | '.join(map(str, totals))} | |")


if __name__ == "__main__":
    main()
