"""A small paying mechanism for tests: everybody bids a fee, who sat pays it into a pool, which is dealt at the end."""

from dataclasses import dataclass, replace

import numpy as np

from hanse.core.entry import TOKEN, Transaction, client, escrow, pool
from hanse.core.part import Deployment, DeployPart, Mechanism, Settlement, SettlePart
from hanse.mechanisms.baselines import fedavg

FEE = 3 * TOKEN // 2


@dataclass(frozen=True)
class Fees(SettlePart):
    def init(self, context):
        return {"paid": np.zeros(context.num_clients, np.int64)}

    def settle(self, view, state):
        return {"open": self.taken, "close": self.dealt, "end": self.shared}[view.stage](view), state

    def taken(self, view):
        able = [int(c) for c in view.present if view.book.can_pay(client(int(c)), FEE)]
        return Settlement(
            transactions=tuple(Transaction(f"bid/{c}", "bid", ((client(c), -FEE), (escrow(c), FEE))) for c in able)
        )

    def dealt(self, view):
        bidders = [c for c in view.present.tolist() if view.book.balance(escrow(c))]
        sat = set(view.trained.seats.client.tolist())
        moves = tuple(
            Transaction(f"settle/{c}", "fee" if c in sat else "refund",
                        ((escrow(c), -FEE), (pool("fees") if c in sat else client(c), FEE)))
            for c in bidders
        )  # fmt: skip
        return Settlement(transactions=moves, metrics={"pool": float(len(sat))}, arrays={"bidders": np.array(bidders)})

    def learn(self, outcome, state):
        paid = state["paid"].copy()
        for posted in outcome.posted:
            if posted.kind == "fee":
                paid[int(posted.step.split("/")[1])] += FEE
        return {"paid": paid}

    def shared(self, view):
        total, n = view.book.balance(pool("fees")), len(view.roster)
        shares = [total // n + (i < total % n) for i in range(n)]
        return Settlement(
            transactions=tuple(
                Transaction(f"share/{c}", "share", ((pool("fees"), -s), (client(c), s)))
                for c, s in zip(view.present.tolist(), shares, strict=True)
                if s
            )
        )


@dataclass(frozen=True)
class Half(DeployPart):
    """Client 0 holds half of the server's model; everyone else holds it whole."""

    def deploy(self, view, state):
        weights = np.zeros((view.context.num_clients, 1))
        weights[0] = 0.5
        return Deployment(view.mixed.home, weights), state


def paying(clients_per_round: int = 2) -> Mechanism:
    return replace(fedavg(clients_per_round), name="paying", settle=Fees())


def paying_half(clients_per_round: int = 2) -> Mechanism:
    return replace(paying(clients_per_round), deploy=Half())
