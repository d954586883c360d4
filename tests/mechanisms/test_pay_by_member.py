"""Clients of one member are one payee: nobody gains by splitting what it sends among several keys."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from experiments import digits
from forging import history_of, rewritten
from hypothesis import given, settings
from hypothesis import strategies as some

import hanse
from hanse.core.book import Book
from hanse.core.entry import MINT, Transaction, client
from hanse.core.part import PostedRound, State
from hanse.core.port import ClientInfo, Roster
from hanse.mechanisms.by_value import ByValue, payees
from hanse.mechanisms.pot import Pot
from hanse.mechanisms.value_checks import other_payee
from hanse.reports.audit import audit_run

NORTH = {"client 0": "north", "client 3": "north"}
RULES = Pot(), ByValue(), ByValue(stake=0.1)


def pay(rule: Any, worth: np.ndarray, members: dict[str, str]) -> np.ndarray:
    """Return what each of n clients has at the end beyond its grant, in units, after rounds in which all trained.

    ``worth [R, n, B]`` are the values without each block of samples.
    """
    n, grant = worth.shape[1], 10**12
    book = Book().post(0, [Transaction(f"{c}", "grant", ((MINT, -grant), (client(c), grant))) for c in range(n)])
    names = {c: members.get(f"client {c}", f"client {c}") for c in range(n)}
    view: Any = SimpleNamespace(context=SimpleNamespace(num_clients=n, members=members), members=names)
    view.present, view.seats = np.arange(n), SimpleNamespace(client=np.arange(n))
    view.trained, state = SimpleNamespace(seats=view.seats), rule.init(view.context)
    for r, without in enumerate([*worth, worth[0]]):
        view.values = SimpleNamespace(per_seat=without.mean(axis=1), standard_errors=None, without_block=without)
        found: dict[type, Any] = {}
        view.get = found.get
        for view.stage in ("open", "close") if r < len(worth) else ("end",):
            view.book = book
            made, state = rule.settle(view, state)
            book = book.post(r + 1, made.transactions)
            found |= {type(one): one for one in made.found}
    return np.array([book.balance(client(c)) - grant for c in range(n)])


@settings(max_examples=60, deadline=None)
@given(some.integers(0, 2**32), some.integers(1, 5), some.integers(2, 4), some.sampled_from(RULES))
def test_a_member_that_splits_into_several_keys_gets_what_it_got_with_one(
    seed: int, rounds: int, keys: int, rule: Any
) -> None:
    draw = np.random.default_rng(seed)
    whole = draw.normal(draw.normal(0, 1, 4)[None, :, None], draw.uniform(0.01, 1), (rounds, 4, 3))
    parts = draw.normal(0, draw.choice([0.1, 10.0]), (rounds, keys, 3))
    parts += (whole[:, :1] - parts.sum(axis=1, keepdims=True)) / keys  # the sum of values is what one key had
    at = draw.permutation(3 + keys)
    split, mine = np.concatenate([parts, whole[:, 1:]], axis=1)[:, at], at < keys
    one = pay(rule, whole, {f"client {k}": f"member {k}" for k in range(4)})
    several = pay(rule, split, {f"client {k}": "north" for k in np.flatnonzero(mine)})
    assert abs(several[mine].sum() - one[0]) <= rounds  # a unit a round is rounding
    assert np.abs(several[~mine] - one[1:][at[~mine] - keys]).max() <= rounds
    assert np.count_nonzero(several[mine][1:]) == 0  # the first of them is paid


def test_what_two_keys_gain_that_nobody_knows_to_be_one_member() -> None:
    honest = np.repeat([[[1.0], [1.0], [1.0]]], 2, axis=0)
    pair = np.concatenate([honest, honest[:, :1] * -3], axis=1) + np.array([3.0, 0, 0, 0])[:, None]  # d + z, -z
    assert pay(Pot(), np.repeat(pair, 2, axis=2), {})[0] > 1.5 * pay(Pot(), np.repeat(honest, 2, axis=2), {})[0]
    assert pay(Pot(), np.repeat(pair, 2, axis=2), NORTH).tolist() == [*pay(Pot(), np.repeat(honest, 2, axis=2), {}), 0]


@pytest.mark.parametrize("settle", [{"name": "pot", "tokens": 30, "for_work": 0.25}, {"name": "by_value"}])
def test_a_run_pays_each_member_once_and_each_changed_amount_is_found(settle: dict[str, Any], tmp_path: Path) -> None:
    proved: dict[str, Any] = {"sizes": {"proved": True}, "evidence": {"training": {}}} if "tokens" in settle else {}
    moved = {"clients": {"members": NORTH}, "behaviour": {"leaver": {"clients": [0], "at": 2}}}
    mechanism, data = {"name": "fedavg", "value": "path", "settle": settle}, {"validation": 0.2}
    experiment = digits(mechanism, 5, data=data, train={"steps": 5}, **moved, **proved)
    run = hanse.run(experiment, out=tmp_path / "run")
    held = [run.book.balance(client(c)) for c in range(5)]
    assert held[3] == 100 * 10**6 != held[0]  # its member's pay is the first one's, also after that one has left
    if "tokens" in settle:
        with np.load(tmp_path / "run" / "rounds" / "00000.npz") as record:
            assert 3 not in record["pot_work"]
    assert all(check.holds for check in audit_run(tmp_path / "run").checks)
    history = history_of(tmp_path / "run")
    paid = [i for i, (_, one) in enumerate(history) if one.kind in ("value", "shares", "work")]
    (first, units), *others = history[paid[-1]][1].postings[-2:]
    for to in ({first: 1, others[0][0]: -1}, {client(3): units, first: -units}):
        number, last = history[paid[-1]]
        moved = {name: dict(last.postings).get(name, 0) + to.get(name, 0) for name in {**dict(last.postings), **to}}
        forged = Transaction(last.step, last.kind, tuple((a, u) for a, u in moved.items() if u), last.memo)
        rewritten(tmp_path / "run", [*history[: paid[-1]], (number, forged), *history[paid[-1] + 1 :]])
        found = {check.name: check.holds for check in audit_run(tmp_path / "run").checks}
        assert not found["settled again"]
        assert found.get("by value", False) is False  # in a pot, who has been paid, and not how much
        assert found.get("pot", client(3) not in to) == (client(3) not in to)


def test_who_has_moved_to_another_member_is_paid_by_a_pot_for_what_it_earned_before() -> None:
    share, were = Transaction("shares", "shares", ((client(0), 1), (client(1), -1))), set[int]()
    for members, holds in ({0: "north", 1: "north"}, False), ({1: "north", 2: "south", 0: "south"}, True):
        posted = PostedRound(0, {}, {}, (share,), (), Book(), members=members)
        assert (not other_payee(posted, were), not other_payee(posted, set())) == (holds, False)


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"klient 0": "north"}, "clients.members: 'klient 0': there is no such client"),
        ({"client 0": "client 2"}, "clients.members: 'client 2': is a member, and a client of none"),
    ],
)
def test_members_that_nobody_can_tell_apart_are_refused(members: dict[str, str], why: str) -> None:
    with pytest.raises(hanse.UserError) as refused:
        hanse.run(hanse.Experiment(mechanism="fedavg", data={"clients": 3}, clients={"members": members}))
    assert any(line.startswith(why) for line in refused.value.lines)


def payees_of(state: State, members: dict[str, str], names: dict[int, str]) -> tuple[list[int], State]:
    """Return who is paid for each of four clients, of which those with ``names`` are present, and the next state."""
    here = Roster(ClientInfo(c, name, f"key {c}", 1) for c, name in names.items())
    known = {c.id: c.member(members) for c in here}
    view: Any = SimpleNamespace(stage="open", members=known, context=SimpleNamespace(num_clients=4, members=members))
    found, state = payees(view, state)
    return found.tolist(), state


def test_nobody_is_paid_for_a_member_by_calling_itself_as_it_or_as_another_client() -> None:
    members = {"key 1": "north", "key 2": "north"}
    assert payees_of({}, members, {0: "north", 1: "a", 2: "b", 3: "a"})[0] == [0, 1, 1, 3]
    assert payees_of({}, members, {0: "mill", 1: "a", 2: "b", 3: "mill"})[0] == [0, 1, 1, 3]


def test_who_moves_to_another_member_is_no_longer_paid_for_the_first() -> None:
    names = {c: f"client {c}" for c in range(4)}
    members = {"client 0": "north", "client 1": "north", "client 2": "south", "client 3": "north"}
    found, state = payees_of({}, members, names)
    assert found == [0, 0, 2, 0]
    found, state = payees_of(state, members | {"client 0": "south"}, names)
    assert found == [2, 1, 2, 1]
    del names[2], names[1]  # whoever is away keeps its place
    assert payees_of(state, members | {"client 0": "south"}, names)[0] == found
