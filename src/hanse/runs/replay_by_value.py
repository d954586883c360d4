"""Recomputes payment by value from a run's records.

``hanse ledger verify`` and ``hanse audit`` use it. A round's record says who was asked to train and what each update
was worth. With the rule's options in ``config.toml``, everybody's payment follows from it
(:class:`hanse.mechanisms.by_value.ByValue`). The clients that put up a stake are taken from the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from hanse.base.errors import UserError
from hanse.base.files import json_lines, read_arrays, read_toml
from hanse.core.entry import BONDS, TOKEN, Transaction
from hanse.core.entry import client as account
from hanse.core.part import State
from hanse.mechanisms.by_value import ByValue, Paid, given_back, put_up
from hanse.mechanisms.carried import Carried
from hanse.mechanisms.registry import built_in_parts
from hanse.runs.replay_tokens import unlike
from hanse.runs.round_record import METRICS, Arrays, round_file

_NAMES = ("client", "answered", "value", "value_error", "value_without_block", "by_value_client")


def replay_by_value(
    folder: Path, history: Iterable[tuple[int, Transaction]], through: int | None = None
) -> tuple[int | None, str]:
    """Recompute every payment by value, and compare the ledger with it.

    Args:
        folder: the run directory. No file of its rounds is missing.
        history: the ledger's transactions, each with its round.
        through: rounds from this one on may be incomplete in the ledger. None: all rounds are complete.

    Returns:
        The number of rounds recomputed, and the first posting that differs, or "". None: the run does not pay by the
        built-in rule.

    Raises:
        UserError: a record is damaged.
    """
    config = read_toml(folder / "config.toml")
    rule = built_in_parts(config).get("settle")
    if not isinstance(rule, ByValue):
        return None, ""
    floor = round(config.get("ledger", {}).get("floor", 0.0) * TOKEN)
    posted = {number: [t for _, t in same] for number, same in groupby(history, key=lambda one: one[0])}
    count, balances = 0, Counter[str]()
    state: State = {**Paid.nothing(0).state(), **Carried.nothing(0).state()}
    for line in json_lines(folder / METRICS, ("round",)):
        number = int(line["round"])
        there = posted.pop(number, [])
        if through is not None and number >= through:
            continue
        balances.update(_moved(one for one in there if one.kind != "value"))  # what everybody has before it is paid
        file = round_file(folder, number)
        record = read_arrays(file, _NAMES)
        ours = [one for one in there if _ours(one)]
        try:
            due, state = _due(rule, record, ours, state, lambda client: balances[account(client)] - floor)
        except (ValueError, KeyError, IndexError, TypeError, OverflowError) as wrong:
            raise UserError(f"{file}: the record of the round cannot be read: {wrong}") from None
        if wrong_one := unlike(number, due, ours):
            return count, wrong_one
        balances.update(_moved(one for one in there if one.kind == "value"))
        count += 1
    for number, there in posted.items():
        if ours := [one for one in there if _ours(one)]:
            return count, unlike(number, (), ours)
    return count, ""


def _ours(transaction: Transaction) -> bool:
    """Whether the payment rule posts such a transaction."""
    return transaction.kind != "grant" and transaction.kind not in BONDS


def _moved(transactions: Iterable[Transaction]) -> Counter[str]:
    """Return the units that transactions move into each account."""
    moved = Counter[str]()
    for transaction in transactions:
        for name, units in transaction.postings:
            moved[name] += units
    return moved


def _due(
    rule: ByValue, record: Arrays, posted: Sequence[Transaction], state: State, has: Callable[[int], int]
) -> tuple[list[Transaction], State]:
    """Return the transactions of a round by its record, with the stakes of those whose stakes the ledger has, or who
    were paid by the record; and the rule's state after it. ``has`` returns the units of a client beside its stake.
    """
    stakes = next((t for t in posted if t.kind == "stake"), None)
    known = set() if stakes is None else {int(name.partition("/")[2]) for name, _ in stakes.postings}
    staked = sorted(known | set(record.get("by_value_client", np.zeros(0, np.int64)).tolist()))
    if not staked or "client" not in record:
        return [], state
    players = np.intersect1d(record["client"], np.array(staked, np.int64))
    valued = "value" in record
    arrays = {name: record[name] for name in _NAMES if name in record and name.startswith("value")}
    clients = record["answered"] if valued else np.zeros(0, np.int64)
    held = np.array([has(c) + rule.units for c in players.tolist()], np.int64)
    units, state = rule.amounts(players, held, clients, arrays if valued else {"value": np.zeros(0)}, state)
    paid = dict(zip(players.tolist(), units, strict=True))
    return [put_up(staked, rule.units), given_back(staked, paid, rule.units)], state
