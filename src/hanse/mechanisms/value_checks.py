"""What holds where clients are paid by value, whatever part has settled it.

Stakes come back to those who put them up. What those who trained get sums to zero, stays within the limits on their
sums over the rounds, and is otherwise their value less one number that is the same for all. Where only what is sure is
paid, :func:`hanse.mechanisms.value_sums.matched` says how much that is. The stakes that were put up are taken from the
ledger.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hanse.core.entry import TOKEN, escrow, owner_of
from hanse.core.entry import client as account
from hanse.core.part import PostedRound
from hanse.core.table import Floats
from hanse.mechanisms.token_checks import unlike
from hanse.mechanisms.value_sums import RECORDED, ValueSums, matched


@dataclass
class Payments:
    """The payments by value of a run so far.

    Attributes:
        rate: tokens per unit of utility.
        stake: the stake in units.
        sure: whether only what is sure is paid.
        paid: units that each client got, by client.
        rounds: in how many rounds each was asked to train and had a stake.
        over: the units that each was due and that a limit cut.
        carried: what is carried over where only what is sure is paid.
    """

    rate: float
    stake: int
    sure: bool
    paid: Counter[int] = field(default_factory=Counter)
    rounds: Counter[int] = field(default_factory=Counter)
    over: dict[int, float] = field(default_factory=dict)
    carried: ValueSums = field(default_factory=lambda: ValueSums.nothing(0))

    def wrong(self, r: PostedRound) -> str:
        """Return the first difference between a round's postings and its record, or "", and add the round.

        Raises ValueError, KeyError or IndexError for a record that is damaged.
        """
        stakes = [t for t in r.posted if t.kind == "stake"]
        staked = sorted({int(name.partition("/")[2]) for t in stakes for name, _ in t.postings})
        staked = sorted({*staked, *r.arrays.get("by_value_client", np.zeros(0, np.int64)).tolist()})
        if not staked or "client" not in r.arrays:
            return unlike(r.posted, {})
        players = np.intersect1d(_paid_for(r, "client"), staked)
        back = Counter(dict(next((t.postings for t in r.posted if t.kind == "value"), ())))
        units = np.array([back[account(c)] - self.stake for c in players.tolist()], np.int64)
        wanted = {"stake": Counter[str](), "by value": Counter[str]()}
        for c in staked:
            wanted["stake"].update({account(c): -self.stake, escrow(c): self.stake})
            wanted["by value"].update({escrow(c): -self.stake, account(c): self.stake})
        wanted["by value"].update(dict(zip(map(account, players.tolist()), units.tolist(), strict=True)))
        return unlike(r.posted, wanted, {"stake": "stake", "by value": "value"}) or self._paid(r, players, units)

    def _paid(self, r: PostedRound, players: NDArray[np.int64], units: NDArray[np.int64]) -> str:
        """Return what is wrong with the ``units [m]`` that the ``players [m]`` got, and add them."""
        names = players.tolist()
        self.rounds.update(names)
        so_far, most = (np.array([of[c] for c in names]) for of in (self.paid, self.rounds))
        held = np.array([r.book.balance(account(c)) - r.book.floor for c in names])
        low = np.minimum(0, np.maximum(-most * self.stake - so_far, -held)).astype(float)
        high = (most * self.stake - so_far).astype(float)
        values = {name: r.arrays[name] for name in RECORDED if name in r.arrays and "value" in r.arrays}
        clients = _paid_for(r, "answered") if values else np.zeros(0, np.int64)
        count, scale = 1 + max(players.max(initial=-1), clients.max(initial=-1)), self.rate * TOKEN
        valued = ValueSums.of_round(clients, values or {"value": np.zeros(0)}, count)
        if self.sure:
            due = self.carried.plus(valued.above_mean(players))
            exact = matched(due.sure()[players], low / scale, high / scale) * scale
            self.carried = due.less(players, units / scale)
        else:
            exact = self._within_limits(names, scale, valued.worth[players], low, high)
        self.paid.update(dict(zip(names, units.tolist(), strict=True)))
        near = 1e-3 + 1e-9 * float(np.abs(exact).max(initial=0))
        up = units - exact  # what rounding added: the largest remainders are rounded up
        if units.sum() or (np.abs(up) >= 1 + near).any() or (units < low - near).any() or (units > high + near).any():
            at = int(np.abs(up).argmax())
            return f"'by value' pays client {names[at]} {units[at]:+d}; by the records {exact[at]:+.1f} (in units)"
        if len(up) and up.max() - up.min() > 1 + 2 * near:
            return f"'by value' rounds what client {names[int(up.argmax())]} gets up, and others were nearer to it"
        return ""

    def _within_limits(self, names: list[int], scale: float, worth: Floats, low: Floats, high: Floats) -> Floats:
        """Return the units that the named clients are due, ``[m]``, and remember what a limit cuts."""
        before = np.array([self.over.get(c, 0.0) for c in names])
        centred = before + scale * (worth - (np.median(worth) if names else 0.0))
        first, span = level(centred, low, high), float(np.max(high - low.min(initial=0), initial=0))
        near_by = np.clip(centred - first, low - span, high + span)  # huge numbers would hide what the rest sums to
        second = level(near_by, low, high)
        exact = np.clip(near_by - second, low, high)
        self.over |= dict(zip(names, (centred - (first + second) - exact).tolist(), strict=True))
        return exact


def other_payee(r: PostedRound, were: set[int]) -> str:
    """Return what is wrong if a client is paid that is not the first of its member to take part, or "".

    Args:
        r: the round.
        were: the clients that were the first of a member in earlier rounds, and are paid for these; the round's are
            added.
    """
    first = dict[str, int]()
    for client, member in r.members.items():
        first.setdefault(member, client)
    were |= set(first.values())
    for step, name in ((one.step, name) for one in r.posted for name, _ in one.postings):
        owner = owner_of(name)
        member = "" if owner is None else r.members.get(owner, "")
        if member and owner not in were:
            return f"'{step}' moves tokens of client {owner}, and '{member}' has one payee, {first[member]}"
    return ""


def _paid_for(r: PostedRound, name: str) -> NDArray[np.int64]:
    """Return a recorded array of clients ``[S]`` with who is paid for each of them in its place."""
    clients: NDArray[np.int64] = r.arrays[name]
    return np.asarray(r.arrays["by_value_payee"][clients]) if "by_value_payee" in r.arrays else clients


def level(wanted: Floats, low: Floats, high: Floats) -> float:
    """Return the least number that, taken off all of ``wanted [m]``, makes it sum to at most 0 within its limits.

    Examples:
        >>> round(level(np.array([0.3, -0.6, 0.3]), np.full(3, -0.4), np.full(3, 0.4)), 9)
        0.1
    """
    first, last = (float(end) for end in (np.min(wanted - high, initial=0), np.max(wanted - low, initial=0)))
    for _ in range(200):
        middle = (first + last) / 2
        first, last = (middle, last) if np.clip(wanted - middle, low, high).sum() > 0 else (first, middle)
    return last
