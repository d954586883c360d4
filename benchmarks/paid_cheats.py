"""What cheats have at the end where members pay each other: a market of models, and FedAvg paid by values.

    python benchmarks/paid_cheats.py all      # every cheat in every system, before and after: only how far it is ahead
    python benchmarks/paid_cheats.py market   # iPFL's eq. (10), and posted prices with proved sizes
    python benchmarks/paid_cheats.py values   # FedAvg with path values: by_value, and with "novel" values

Eight clients with a grant of 100 tokens on digits (logistic regression, alpha 1, 20 steps a round), seeds 0 to 4; the
cheat is client 1 + seed mod 6, and its second key, where it has one, the next. ``gain`` is what the cheat's keys have
less what they have in the same run where they are honest, ``ahead`` what they have less the honest clients' mean, both
a key and in tokens, with 95 % intervals (Student's t, over the seeds); of one that leaves and comes back under a second
key, both keys together. "After" sizes are proved, and grants are given in eight parts. Prints Markdown.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor

import hanse
from hanse.base.streams import stream
from hanse.core.entry import TOKEN
from hanse.core.port import Answered, Reply, Request, Result, Train, Trained
from hanse.federation.behaviour import Me, OfSome, with_updates

CLIENTS, GRANT, SEEDS, TIERS = 8, 100.0, range(5), 3


@dataclass(frozen=True)
class Cheats(OfSome):
    """Clients that send something else than what they trained; of two, the second is the other's second key.

    Attributes:
        kind: what they send.
        until: they are honest before this round.
    """

    kind: str = "zero"
    until: int = 0
    seen: dict[Any, Tensor] = field(default_factory=dict, init=False, compare=False)

    def present(self, me: Me, round: int) -> bool:
        """With "leaves", the first key is there in the first half, the second one in the other."""
        if self.kind != "leaves" or me.id not in self.clients:
            return True
        return (round < 4) == (me.id == self.clients[0])

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        """Return the reply as the cheat sends it."""
        with_updates(request, reply, lambda task, r: self._noted(me, task, r))
        if me.id not in self.clients or round < self.until or self.kind == "leaves":
            return reply
        if self.kind in ("all tiers", "all tiers, zero"):
            reply = replace(reply, results=tuple(self._all_tiers(r) for r in reply.results))
        if self.kind == "refuses" and any(isinstance(task, Train) for task in request.tasks):
            return Reply(me.id, refused="no")
        return with_updates(request, reply, lambda task, r: replace(r, row=self._sent(me, round, task, r)))

    @staticmethod
    def _all_tiers(result: Result) -> Result:
        """Return a bid as one for all tiers of PI-FL, anything else as it is."""
        if not isinstance(result, Answered) or result.name != "bid":
            return result
        return replace(result, values={"tiers": list(range(TIERS))})

    def _noted(self, me: Me, task: Train, result: Trained) -> Trained:
        """Note the honest update, and the model that it starts from."""
        self.seen[me.id] = result.row - task.start
        return result

    def _sent(self, me: Me, round: int, task: Train, result: Trained) -> Tensor:
        """Return the row that is sent."""
        update, start = result.row - task.start, task.start
        draw = torch.from_numpy(stream(me.seed, "cheat", round=round).standard_normal(len(update), dtype="float32"))
        noise = draw * update.norm() / draw.norm()
        before = self.seen.get(("start", me.id), start)
        self.seen["start", me.id] = start
        first = me.id == self.clients[0]
        sent = {
            "zero": lambda: start,
            "all tiers": lambda: result.row,
            "all tiers, zero": lambda: start,
            "stale": lambda: start + (start - before),  # what the model moved by in the round before
            "noise": lambda: start + noise,
            "random": lambda: draw * start.std(),
            "flipped": lambda: start - update,
            "resold": lambda: start if task.centre is None else task.centre,
            "echoes": lambda: self._echo(me, task, update),
            "copied": lambda: start + self.seen[0],
            "copies itself": lambda: start + self.seen[self.clients[0]],
            "d + z, -z": lambda: start + (update + 3 * noise if first else -3 * noise),
            "d + e, -e": lambda: start + (update + 2 * self.seen[0] if first else -2 * self.seen[0]),
            "larger": lambda: start + 3 * update,
            "30 times": lambda: start + 30 * update,
        }
        return sent[self.kind]()

    def _echo(self, me: Me, task: Train, update: Tensor) -> Tensor:
        """Return a step as long as the update to where what was bought lies, as if own gradients had led there."""
        first = self.seen.setdefault(("first", me.id), task.start)
        if task.centre is None or not task.mu:
            return task.start + update
        bought = task.centre - first
        return task.start + update.norm() * bought / (bought.norm() + 1e-12)


MARKET = ("echoes", "zero", "noise", "random", "flipped", "resold", "copied", "refuses", "copies itself")
VALUES = (
    "zero", "stale", "noise", "random", "flipped", "copied", "larger", "refuses", "leaves", "copies itself",
    "d + z, -z", "d + e, -e",
)  # fmt: skip
ALL = (*VALUES, "30 times", "echoes", "all tiers", "all tiers, zero")
PAIRS = ("leaves", "copies itself", "d + z, -z", "d + e, -e")
AFTER: Mapping[str, Any] = {"sizes": {"proved": True}, "clients": {"vests": 8}}
SYSTEMS: Mapping[str, Mapping[str, Any]] = {
    "eq. (10)": {"mechanism": {"name": "ipfl"}},
    "posted prices, sizes proved": {"mechanism": {"name": "ipfl_posted"}, "sizes": {"proved": True}},
    "path values": {"mechanism": {"name": "fedavg", "value": "path", "settle": "by_value"}},
    "novel path values": {
        "mechanism": {"name": "fedavg", "value": {"name": "path", "novel": True}, "settle": "by_value"}
    },
    "iPFL before": {"mechanism": {"name": "ipfl"}},
    "iPFL after": {"mechanism": {"name": "ipfl_posted"}, **AFTER},
    "PI-FL before": {
        "mechanism": {
            "name": "pifl",
            "tiers": TIERS,
            "invited": "earn",
            "value": {"name": "first_order_clients", "judges": "all"},
        }
    },
    "PI-FL after": {"mechanism": {"name": "pifl", "tiers": TIERS}, **AFTER},
    "FedAvg after": {"mechanism": {"name": "fedavg", "value": "path", "settle": "by_value"}, **AFTER},
}


def balances(system: str, seed: int, behaviour: Mapping[str, Any]) -> np.ndarray:
    """Return what each client has at the end, ``[N]`` in tokens."""
    sections = dict(SYSTEMS[system])
    experiment = hanse.Experiment(
        data={"clients": CLIENTS, "partition": {"alpha": 1.0}, "seed": seed},
        model="logistic",
        train={"steps": 20, "batch_size": 16, "lr": 0.1},
        clients={
            "grant": GRANT,
            "profiles": {"name": "roles", "roles": ["trader"] * 8, "eagerness": [5e4, 5e4], "cost": [0.2, 0.4]},
            **sections.pop("clients", {}),
        },
        behaviour=behaviour,
        engine={"threads": 1},
        eval={"every": 8},
        run={"rounds": 8, "seed": seed},
        **sections,
    )
    book = hanse.run(experiment).book
    return np.array([book.balance(f"client/{c}") for c in range(CLIENTS)]) / TOKEN


def interval(found: Sequence[float]) -> str:
    """Return mean and 95 % interval."""
    half = student.ppf(0.975, len(found) - 1) * np.std(found, ddof=1) / np.sqrt(len(found))
    return f"{np.mean(found):+.1f} ({np.mean(found) - half:+.1f} to {np.mean(found) + half:+.1f})"


def show(systems: Sequence[str], kinds: Sequence[str]) -> None:
    """Print a table."""
    print("\n| cheat | " + " | ".join(f"{name}: cheat, others | gain | ahead" for name in systems) + " |")
    print("|---" * (1 + 3 * len(systems)) + "|")
    honest = {(name, seed): balances(name, seed, {}) for name in systems for seed in SEEDS}
    for kind in ("honest", *kinds):
        cells = []
        for name in systems:
            rows = []
            for seed in SEEDS:
                bad = [1 + seed % 6, *([2 + seed % 6] if kind in PAIRS else [])]
                behaviour = {f"{__name__}:Cheats": {"clients": bad, "kind": kind}}
                held = honest[name, seed] if kind == "honest" else balances(name, seed, behaviour)
                rows.append((held[bad].mean(), np.delete(held, bad).mean(), honest[name, seed][bad].mean()))
            own, others, before = np.array(rows).T
            cells.append(f"{own.mean():.1f}, {others.mean():.1f} | {interval(own - before)} | {interval(own - others)}")
        print(f"| {kind} | " + " | ".join(cells) + " |", flush=True)


def lead(system: str, kind: str) -> str:
    """Return by how much a cheat is ahead of the honest, in tokens, with its interval."""
    found = []
    for seed in SEEDS:
        bad = [1 + seed % 6, *([2 + seed % 6] if kind in PAIRS else [])]
        held = balances(
            system, seed, {} if kind == "honest" else {f"{__name__}:Cheats": {"clients": bad, "kind": kind}}
        )
        own = held[bad].sum() if kind == "leaves" else held[bad].mean()
        found.append(float(own - np.delete(held, bad).mean()))
    half = student.ppf(0.975, len(found) - 1) * np.std(found, ddof=1) / np.sqrt(len(found))
    return f"{np.mean(found):+.1f} ± {half:.1f}"


def show_all() -> None:
    """Print the table of leads."""
    systems = [name for name in SYSTEMS if name.endswith((" before", " after"))]
    print(f"\n| cheat | {' | '.join(systems)} |")
    print("|---" * (1 + len(systems)) + "|")
    for kind in ("honest", *ALL):
        cells = [lead(name, kind) if "tiers" not in kind or name.startswith("PI-FL") else "" for name in systems]
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["all"]:
        show_all()
    elif sys.argv[1:2] == ["market"]:
        show(("eq. (10)", "posted prices, sizes proved"), MARKET)
    else:
        show(("path values", "novel path values"), VALUES)
