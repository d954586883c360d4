"""Books that an operator forges consistently, in every place that it holds: what finds them, and what does not.

``verify`` sees what contradicts the run's settings or the records of its rounds. What contradicts nothing of the
operator's own takes receipts, which it does not hold.
"""

import copy
import functools
import json
import operator
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import invoke
from experiments import digits
from forging import History, altered, history_of, receipt, receipts_of, rerecorded, rewritten
from ledger_cases import grant

import hanse
from hanse.base import toml
from hanse.base.errors import PartError
from hanse.core.book import LedgerError
from hanse.core.entry import TOKEN, Transaction, client
from hanse.core.telling import Kind, Telling
from hanse.ledger.receipts import Receipt, contradiction, read_receipts, write_receipts
from hanse.ledger.run_ledger import open_ledger, verify_run
from hanse.reports.audit import audit_run
from hanse.reports.groups import group_runs
from hanse.reports.report import warnings
from hanse.runs import replay
from hanse.runs.round_record import METRICS
from hanse.runs.run_record import load_run, may_change

N = 8


def experiment(mechanism: Any, **sections: Any) -> hanse.Experiment:
    data = {"partition": {"alpha": 1.0}, "client_validation": 0.1}
    train = {"steps": 2, "batch_size": 8, "lr": 0.1}
    return digits(mechanism, N, 4, data=data, run={"seed": 3}, engine={"train": "stacked"}, train=train, **sections)


def played(folder: Path, mechanism: Any) -> Path:
    hanse.run(experiment(mechanism), out=folder / "run")
    shutil.move(folder / "run" / "receipts", folder / "receipts")  # the participants' own, where nobody else writes
    return folder


@pytest.fixture(scope="module")
def auction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mechanism = {"name": "pifl", "by_contribution": 2, "at_random": 1, "value": {"judges": "all"}}
    return played(tmp_path_factory.mktemp("auction"), mechanism)


@pytest.fixture(scope="module")
def fees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played(tmp_path_factory.mktemp("fees"), "paying:paying")


@pytest.fixture
def run(auction: Path, tmp_path: Path) -> Path:
    return shutil.copytree(auction / "run", tmp_path / "run")


def wrong_of(folder: Path, receipts: Path | None = None) -> str | None:
    """What ``hanse ledger verify`` says is wrong."""
    told = [] if receipts is None else list(read_receipts(receipts))
    return verify_run(folder, open_ledger(folder), told).wrong or replay.wrong_books(folder)


def command(*args: object) -> tuple[int, str]:
    result = invoke(*args)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.split())


def at(history: History, kind: str, round: int | None = None) -> int:
    """The place of the first transaction of a kind, in a round."""
    return next(i for i, (r, t) in enumerate(history) if t.kind == kind and round in (None, r))


def moved(history: History, place: int, units: int) -> None:
    """Let the first account of a transaction get so many units more, and the second less."""
    number, one = history[place]
    (a, x), (b, y), *rest = one.postings
    history[place] = (number, replace(one, postings=((a, x + units), (b, y - units), *rest)))


def fee(units: int, step: str = "fee/1") -> Transaction:
    return Transaction(step, "fee", ((client(1), -units), (client(0), units)))


# ---- honest runs


def test_honest_books_hold_against_settings_records_and_receipts(auction: Path, fees: Path) -> None:
    for place in (auction, fees):
        assert wrong_of(place / "run", place / "receipts") is None
        found = replay.Examined(place / "run", trust=True)
        assert (found.failed(), found.again.rounds) == (None, 4)
    code, said = command("ledger", "verify", auction / "run", "--json")
    assert (code, json.loads(said)["settled_again"], json.loads(said)["checks"]) == (0, 4, {"auctions": True})
    audit, names = audit_run(auction / "run"), ["records", "conservation", "grants and kinds"]
    assert audit.holds
    assert [check.name for check in audit.checks] == [*names, "auctions", "settled again"]


def test_a_rule_of_the_users_own_is_settled_again_with_nothing_added(fees: Path, tmp_path: Path) -> None:
    """It is called only if it may be imported; who changes what it posted is then found, and the record may not lie."""
    names = ["records", "conservation", "grants"]  # of the kinds of its payments, nobody knows without the rule
    unknown, known = audit_run(fees / "run"), audit_run(fees / "run", trust=True)
    assert [check.name for check in unknown.checks] == names
    assert [check.name for check in known.checks] == [*names, "settled again"]
    assert unknown.holds and known.holds  # noqa: PT018
    assert [[fact.name for fact in one.facts if fact.unchecked] for one in (unknown, known)] == [["settled again"], []]
    assert not command("ledger", "verify", fees / "run")[1].startswith("The books hold")
    run = shutil.copytree(fees / "run", tmp_path / "run")
    history = history_of(run)
    at = next(i for i, (number, one) in enumerate(history) if number == 1 and one.kind == "fee")
    theft = (*history[at][1].postings, ("client/1", -1), ("client/0", 1))
    history[at] = (1, replace(history[at][1], postings=theft))
    rewritten(run, history)
    assert wrong_of(run) is None
    assert not audit_run(run, trust=True).holds
    rerecorded(run, 2, bidders=np.zeros(0, np.int64))
    assert [c.name for c in audit_run(run, trust=True).checks if not c.holds] == ["settled again"]


@pytest.mark.parametrize("draw", range(4))
def test_a_setting_that_is_edited_after_the_run_is_found(draw: int, run: Path) -> None:
    config = run / "config.toml"
    sections = toml.loads(config.read_text())
    numbers = [key for key, value in toml.flat(sections) if type(value) in (int, float) and not may_change(key)]
    for key in (["train.lr"], random.Random(draw).sample(numbers, 3))[draw > 0]:
        *tables, name = key.split(".")
        table = functools.reduce(operator.getitem, tables, edited := copy.deepcopy(sections))
        table[name] += 1
        config.write_text(toml.dumps(edited))
        assert wrong_of(run) is not None, key
        if tables == ["train"]:
            assert (wrong_of(run) or "").startswith(f"config.toml was edited: {key} is "), key
            assert "warning: config.toml was edited" in command("ledger", "balances", run)[1]


def test_the_payment_rule_is_built_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built, build = list[object](), replay.build_mechanism
    monkeypatch.setattr(replay, "build_mechanism", lambda section: built.append(section) or build(section))
    for check in (replay.wrong_books, audit_run):
        built.clear()
        check(run)
        assert len(built) == 1, check


# ---- (a) lines behind the last receipt


@pytest.mark.parametrize("dated", [3, 4])
def test_a_fee_that_is_appended_after_the_run_is_found_by_receipts(fees: Path, tmp_path: Path, dated: int) -> None:
    """Dated in a round that is closed; where the rule is the user's own nothing but the close contradicts it."""
    folder = shutil.copytree(fees / "run", tmp_path / "run")
    honest = [one for one in history_of(folder) if one[0] <= dated]
    if dated < 4:  # a run whose last settlement is cut off, as in the attack
        rewritten(folder, honest)
    write_receipts(tmp_path / "kept", receipts_of(folder, dated))
    assert wrong_of(folder, tmp_path / "kept") is None
    ledger = open_ledger(folder, read_only=False)
    with pytest.raises(LedgerError, match=r"is closed|is in round 4"):
        ledger.post(dated, [fee(20 * TOKEN)])
    rewritten(folder, [*honest, (dated, fee(20 * TOKEN))])  # before the round's close, which is another one then
    assert wrong_of(folder) is None
    assert "root after transaction " in (wrong_of(folder, tmp_path / "kept") or "")
    code, said = command("ledger", "verify", folder, "--receipts", tmp_path / "kept")
    assert (code, "The books do not hold" in said) == (1, True)


# ---- (b) grants, kinds, dates


def other_step(history: History) -> None:
    history[0] = (0, replace(history[0][1], step="grant/x"))


def other_memo(history: History) -> None:
    place = at(history, "reward", 3)
    history[place] = (3, replace(history[place][1], memo="a gift"))


def inserted(before: str, round: int, transaction: Transaction) -> Callable[[History], None]:
    return lambda history: history.insert(at(history, before, round), (round, transaction))


def out_of_a_pool(history: History) -> None:
    assert history[-1][1].kind == "reward"
    history.append((4, Transaction("reward/9", "reward", ((client(0), -TOKEN), (client(1), TOKEN)))))


def cut(history: History) -> None:
    history[:] = [one for one in history if one[0] < 4]


def dropped(kind: str) -> Callable[[History], None]:
    return lambda history: history.pop(max(i for i, (_, t) in enumerate(history) if t.kind == kind)) and None


def another_amount(kind: str, round: int, units: int = 1) -> Callable[[History], None]:
    return lambda history: moved(history, at(history, kind, round), units)


FORGED: dict[str, tuple[Callable[[History], None], str]] = {
    "a second grant": (
        inserted("bid", 1, grant(2, 50 * TOKEN)), "client/2 was opened before; each client gets one grant"),
    "a grant of another size": (
        another_amount("grant", 0, -TOKEN), "round 0: 'grant/0': is not a grant of 100 tokens from the mint"),
    "a grant to nobody": (inserted("grant", 0, grant(N)), "round 0: 'grant/8': the run has no client 8"),
    "a grant under another name": (other_step, "round 0: 'grant/x': is not a grant of 100 tokens"),
    "a kind that the rule does not post": (
        inserted("pay", 2, fee(3 * TOKEN)), "round 2: 'fee/1': is of the kind 'fee', which the run's"),
    "a date after the run": (
        lambda history: history.append((7, fee(TOKEN))), "round 7: 'fee/1': is dated after the run"),
    "a reward that no record explains": (
        inserted("bid", 2, replace(fee(TOKEN, "reward/7"), kind="reward")), "round 2: "),
    "a line more at the end": (out_of_a_pool, "round 4: the ledger has 'reward/9', which does not follow"),
    "a reward of another amount": (another_amount("reward", 3), "round 3: 'reward/"),
    "a reward of another amount at the end": (another_amount("reward", 4), "round 4: 'reward/"),
    "another memo": (other_memo, "and is otherwise recorded"),
    "the last settlement is cut off": (cut, "round 4: 'pay/0' follows from the records, and the ledger does"),
    "the last reward is missing": (dropped("reward"), "round 4: 'reward/1' follows from the records"),
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_a_consistent_forgery_that_contradicts_settings_or_records_is_found(
    run: Path, auction: Path, case: str
) -> None:
    forge, said = FORGED[case]
    history = history_of(run)
    forge(history)
    rewritten(run, history)
    assert open_ledger(run).verify().ok  # the log alone says nothing
    assert said in (wrong_of(run) or "")
    assert not audit_run(run).holds
    assert wrong_of(run, auction / "receipts") is not None


@pytest.mark.parametrize(
    ("round", "name", "change"),
    [
        (1, "tokens_worth", lambda worth: -worth),
        (2, "tokens_bidder", np.logical_not),
        (1, "tokens_worked", np.logical_not),
        (2, "bids", np.zeros_like),
        (2, "tokens_tier", lambda tier: 1 - tier),
    ],
)
def test_a_record_from_which_other_postings_follow_is_found(run: Path, round: int, name: str, change: Any) -> None:
    with np.load(run / "rounds" / f"{round:05d}.npz") as stored:
        changed = change(stored[name])
    rerecorded(run, round, **{name: changed})
    assert (wrong_of(run) or "").startswith(f"round {round}: " if name in ("bids", "tokens_bidder") else "round ")


def test_a_tier_of_another_accuracy_is_found(run: Path) -> None:
    lines = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    place = max(n for n, line in enumerate(lines) if line.get("tokens/tier 0/theta", 0) > 0)
    lines[place]["tokens/tier 0/accuracy"] = 1.0  # nothing would go back
    (run / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "the hash" in (wrong_of(run) or "")
    rewritten(run, history_of(run))
    assert "/0' moves" in (wrong_of(run) or "") or "reimburse/0" in (wrong_of(run) or "")


def test_what_goes_back_at_the_end_is_bounded_by_eta_and_else_needs_receipts(run: Path, auction: Path) -> None:
    """The accuracies that clients report when the run ends are in no record."""

    def shifted(units: int) -> History:
        history = history_of(auction / "run")
        end = [i for i, (r, t) in enumerate(history) if r == 4 and t.step == "reward/0"]
        back = [i for i, (r, t) in enumerate(history) if r == 4 and t.step == "reimburse/0"]
        ((i,), (j,)) = end, back
        *winners, (purse, paid) = history[i][1].postings
        *payers, (_, given) = history[j][1].postings
        held = -paid - given
        returned = -given + units
        part, odd = divmod(returned, len(payers))
        lines = [(name, part + (n < odd)) for n, (name, _) in enumerate(payers)]
        history[j] = (4, replace(history[j][1], postings=(*lines, (purse, -returned))))
        from hanse.games.tokens import rank_rewards

        order = sorted(winners, key=lambda one: one[1])
        worth = {int(name.partition("/")[2]): float(n) for n, (name, _) in enumerate(order)}
        again = rank_rewards(held - returned, worth, dict.fromkeys(worth, 1.0))
        lines = [(name, again[int(name.partition("/")[2])]) for name, _ in winners]
        history[i] = (4, replace(history[i][1], postings=(*lines, (purse, returned - held))))
        return history

    rewritten(run, shifted(-1000))
    assert wrong_of(run) is None
    assert wrong_of(run, auction / "receipts") is not None
    rewritten(run, shifted(10**6))  # more than eta of the pool
    assert "round 4: 'reimburse/0' moves" in (wrong_of(run) or "")


class PostsOther:
    """A rule that names another kind than it posts."""

    def tells(self, slots: frozenset[str]) -> Telling:
        return Telling(kinds=(Kind("share", "shares"),))


def test_a_rule_that_posts_what_it_does_not_name_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import paying as rules

    monkeypatch.setattr(rules.Fees, "tells", PostsOther.tells, raising=False)
    with pytest.raises(PartError, match="'bid'"):
        hanse.run(experiment("paying:paying"), out=tmp_path / "run")


# ---- (c) what a node keeps


RECEIPT = receipt()


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (RECEIPT, ""),
        (receipt(round=4, count=22), ""),
        (receipt(round=5, other=1, count=21), ""),  # rounds that posted nothing but their closes
        (receipt(round=4, book="c"), "is of another book, 'c'; that of round 3 was of 'b'"),
        (receipt(round=4, count=19), "says 19 transactions; that of round 3 said 20"),
        (receipt(round=4, other=1), "the book 'b' has two heads: 20 transactions in round 3 with "),
        (receipt(count=21), "the book 'b' has two heads: 20 transactions in round 3 with "),
        (receipt(round=2, count=21), "the book 'b' has two heads: 20 transactions in round 3 with "),
        (receipt(balance=6), "the book 'b' has two heads: 20 transactions in round 3 with "),
    ],
)
def test_receipts_that_contradict_those_that_are_kept(tmp_path: Path, told: Receipt, said: str) -> None:
    file = tmp_path / "client-1.jsonl"
    earlier = receipt(round=2, count=15)
    write_receipts(tmp_path, [earlier, RECEIPT])
    why = contradiction(file, [earlier, told])  # sent again, and the next one
    assert said in why
    assert bool(said) == bool(why)


# ---- files of rounds


@pytest.mark.parametrize("at", [-1, 9])
def test_a_seat_that_comes_late_is_found(run: Path, at: int) -> None:
    """Lines of a round are hashed where they stand; one behind a later round's would be read by reports alone."""
    file = run / "clients.jsonl"
    lines = file.read_text().splitlines()
    before = json.loads(lines[at])["round"]
    assert before > 0
    lines[at] += f"\n{lines[0]}"
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(hanse.UserError, match=rf"0 comes.*{before}"):
        wrong_of(run)


def lost(run: Path) -> None:
    (run / "rounds" / "00002.npz").unlink()


def changed(run: Path) -> None:
    altered(run, 2, loss=np.ones(3))


@pytest.mark.parametrize(("harm", "why"), [(lost, "is missing"), (changed, "is not the file that was written")])
def test_a_file_of_a_round_that_is_lost_or_changed_is_said(
    run: Path, auction: Path, harm: Callable[[Path], None], why: str
) -> None:
    harm(run)
    said = f"rounds/00002.npz {why}"
    assert wrong_of(run) == f"round 2: {said}"
    code, told = command("audit", run)
    assert code == 1
    audit = audit_run(run)
    assert next(check.said for check in audit.checks if not check.holds) == f"round 2: {said}"
    assert "settled again" in {fact.name for fact in audit.facts}
    code, told = command("statement", run, "--client", "1")
    assert said in told
    record = load_run(run)
    assert any(said in note.said for note, _ in warnings(group_runs([record]), [record]))
    code, told = command("resume", run)
    assert f"warning: round 2: {said}" in told
