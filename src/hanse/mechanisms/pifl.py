"""PI-FL (Khan et al. 2023), in which clients bid tokens for tiers (groups of clients with one model), and TIFF.

A round of PI-FL: every client bids for tiers by its importance weights (Alg. 1, eq. 3). The round before is settled
(eqs 6-14). Each tier trains the bidders that were worth most to it and a few clients at random (Alg. 3), and its model
is averaged by samples. Contributions are first-order Shapley values on the clients' own data (Alg. 2). Each client then
mixes the tiers' models for itself. Our readings of the paper: docs/papers.md, P1-P27.

TIFF (Han et al. 2022), which PI-FL extends, has the same tokens on a single model.

In the order of a round, the parts are :class:`Tokens` (the auction and the settlement), :class:`Tiers` or
:class:`PretrainedTiers` (the scheduler), :class:`TierModels` and :class:`OneShot`. The auction hands on :class:`Bids`,
and the settlement of the previous round a :class:`SettledRound`. They are separate parts because TIFF, and any other
mechanism with values, can use the tokens without the tiers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hanse.base.factories import Count, Positive, Share, TokenAmount
from hanse.base.plain_text import quantity
from hanse.base.streams import stream
from hanse.core.book import Book
from hanse.core.declared import LARGEST_COUNT
from hanse.core.entry import TOKEN, Transaction, escrow, in_tokens, pool
from hanse.core.entry import client as account
from hanse.core.entry import tokens as say
from hanse.core.part import (
    Choice,
    Context,
    Deployment,
    DeployPart,
    Mechanism,
    Most,
    OwnMix,
    PostedRound,
    SelectPart,
    Settlement,
    SettlePart,
    Size,
    State,
    View,
)
from hanse.core.port import Ask, Request, Score, Scored
from hanse.core.table import Block, Floats, Ints, Seats, Table
from hanse.core.telling import BeforeJoining, Check, Kind, Plot, Telling, Terms
from hanse.federation.policy import fit, fits
from hanse.games import tiers as games
from hanse.games import tokens
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.token_checks import Auctions
from hanse.mechanisms.train import SharedModel
from hanse.mechanisms.value import SELF_JUDGED, FirstOrder, FirstOrderAtClients
from hanse.mechanisms.weigh import BySamples

SCHEDULED = frozenset({"clients", "values", "bids"})
VALUED = frozenset({"clients", "groups", "values", "schedule"})
QUESTION = "tier accuracy"


@dataclass(frozen=True)
class Bids:
    """Tells later parts the bids of this round's auction.

    Attributes:
        escrowed: the bids whose tokens are in escrow, ``[N, K]``, by client and row of the table.
        wanted: the tiers that each client named, its favourite first. They are untrusted.
    """

    escrowed: NDArray[np.bool_]
    wanted: Mapping[int, Sequence[Any]]


@dataclass(frozen=True)
class SettledRound:
    """Tells later parts how the previous round was settled.

    Attributes:
        accuracies: the accuracy of each tier in the previous round, by row.
        paid: what each tier paid each client, net of the client's own payments, ``[N, K]`` in units.
        rewards: the previous round's rewards by eqs (12)-(14), ``[N, K]`` in units.
    """

    accuracies: Mapping[int, float]
    paid: Ints
    rewards: Ints


def _escrowed(view: View) -> NDArray[np.bool_]:
    """Return which bids are in escrow, ``[N, K]``; none before the auction."""
    bids = view.get(Bids)
    return np.zeros((view.context.num_clients, view.table.size), bool) if bids is None else bids.escrowed


def _widened(array: Floats, columns: int) -> Floats:
    """Return ``array [N, k]`` with columns of zeros added up to ``columns``, since a table may grow."""
    missing = columns - array.shape[1]
    return np.pad(array, ((0, 0), (0, missing))) if missing > 0 else array


# TRAIN: a model for each tier


@dataclass(frozen=True)
class TierModels(SharedModel):
    """PI-FL's models: a shared model for each tier, as the rows "tier".

    All start from the same initial model, as personal models require: averages of models with different initial values
    are useless.

    Attributes:
        tiers: the number of tiers, K.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("pifl").before("train")
        >>> seats, state = part.seats(view, state)
        >>> len(seats)
        4
    """

    needs = frozenset({"clients"})
    accepts = frozenset()  # of sums nobody knows for which tier they are
    tiers: Positive = 2

    def blocks(self, context: Context) -> Sequence[Block]:
        """Return a row for each tier."""
        return (Block("tier", self.tiers),)

    def unfit(self, size: Size) -> Sequence[str]:
        """Return a line if there are more tiers than clients."""
        if self.tiers <= size.clients:
            return ()
        return [f"mechanism.tiers: {self.tiers}: more than the {quantity(size.clients, 'client')}"]

    def home(self, table: Table, context: Context) -> Ints:
        """Return a random tier's row for each client, ``[N]``.

        The tiers get equal numbers of clients, as far as possible.
        """
        places = stream(context.seed, "first homes").permutation(context.num_clients)
        return table.at("tier")[places % self.tiers]

    def seats_each(self) -> int:
        """Return the number of tiers: a client may train the models of all."""
        return self.tiers


# SELECT: the scheduler (Alg. 3)


@dataclass(frozen=True)
class Tiers(SelectPart):
    """PI-FL's scheduler (Alg. 3): each tier is trained by the bidders of most value to it, and by some random clients.

    Clients that are drawn without a bid are invited and pay nothing (papers.md P7-P9). If a tier has at most as many
    bidders as seats, all of them train, which is recorded. A tier that nobody bids for keeps its model. In round 0 the
    clients are dealt out to the tiers at random.

    Attributes:
        by_contribution: how many bidders of a tier train it because of their past contributions, N_p.
        at_random: N_r, how many of the other present clients train the tier; they are drawn at random.
        contribution: how a client's value to a tier is read: its "last" value there, or the "mean" of all its values
            there. It is 0 before the first (the values of PI-FL eq. 2 sum to 0).

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("pifl", 2).before("select")
        >>> choice, state = part.select(view, state)
        >>> choice.clients.shape == choice.start.shape
        True
    """

    needs = SCHEDULED
    gives = frozenset({"schedule"})
    by_contribution: Count = 8
    at_random: Count = 2
    contribution: Literal["last", "mean"] = "last"

    def init(self, context: Context) -> State:
        """Return the state in which no client has been worth anything to any tier."""
        n = context.num_clients
        return {"worth": np.zeros((n, 0)), "times": np.zeros((n, 0))}

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return who trains which tier.

        Args:
            view: the round. The method reads ``round``, ``present``, ``table``, ``get(Bids)`` and ``draw``.
            state: as :meth:`init` makes it.
        """
        if view.round == 0:
            return self.dealt(view), state
        return self._scheduled(view, state), state

    def dealt(self, view: View, label: Ints | None = None, start: int | None = None) -> Choice:
        """Return a first choice without bids: clients in random order, each assigned to one tier.

        Args:
            view: the round.
            label: the tier of each client, ``[N]``. None: the tiers take turns.
            start: the row from which all clients train. None: each starts from its tier's row.
        """
        rows = view.table.shared
        order = view.present[view.draw("first tiers").permutation(len(view.present))]
        place = np.arange(len(order)) % len(rows) if label is None else label[order]
        groups = [order[place == k][: self.by_contribution + self.at_random] for k in range(len(rows))]
        choice = tier_choice(rows, groups, {})
        return choice if start is None else replace(choice, start=np.full_like(choice.clients, start))

    def _scheduled(self, view: View, state: State) -> Choice:
        """Return the choice by bids and contributions."""
        rows, present = view.table.shared, view.present
        worth, seats = _widened(state["worth"], view.table.size), self.by_contribution + self.at_random
        bids, bidders, orders = _escrowed(view), [], []
        for k in rows.tolist():
            held = present[bids[present, k]].tolist()
            order = present[view.draw("schedule", start=k).permutation(len(present))].tolist()
            # All bidders train if there are seats for them: those not chosen by contribution are the first to be drawn.
            if len(held) <= seats:
                order.sort(key=lambda c, held=set(held): c not in held)
            bidders.append(held)
            orders.append(order if held else [])
        tiers = games.schedule(bidders, worth[:, rows].T, self.by_contribution, self.at_random, orders)
        metrics: dict[str, float] = {}
        for k, held, seated in zip(rows.tolist(), bidders, tiers, strict=True):
            metrics[f"select/tier {k}/bidders"] = len(held)
            metrics[f"select/tier {k}/invited"] = len(set(seated) - set(held))
        metrics["select/all_bidders_train"] = sum(0 < len(held) <= seats for held in bidders)
        return tier_choice(rows, [np.array(clients, np.int64) for clients in tiers], metrics)

    def learn(self, outcome: View, state: State) -> State:
        """Remember what the seats were worth to the tiers that they trained.

        Args:
            outcome: the finished round. The method reads ``table``, ``trained`` and ``values``.
            state: as :meth:`init` makes it.
        """
        if outcome.values is None:
            return state
        size, seats = outcome.table.size, outcome.trained.seats
        worth, times = _widened(state["worth"], size).copy(), _widened(state["times"], size).copy()
        value = np.nan_to_num(outcome.values.per_seat)
        at = (seats.client, seats.target)  # no pair twice: a client has one seat for a tier
        times[at] += 1
        worth[at] = value if self.contribution == "last" else worth[at] + (value - worth[at]) / times[at]
        return {"worth": worth, "times": times}


def tier_choice(rows: Ints, groups: Sequence[Ints], metrics: dict[str, float]) -> Choice:
    """Return the choice of ``groups`` of clients. Each group starts from one of ``rows`` and trains it."""
    clients = np.concatenate([*groups, np.zeros(0, np.int64)]).astype(np.int64)
    tier = np.repeat(rows, [len(g) for g in groups])
    order = np.lexsort((tier, clients))  # seats by client, as everywhere
    return Choice(clients[order], tier[order], tier[order], metrics)


@dataclass(frozen=True)
class PretrainedTiers(Tiers):
    """Like "tiers", but after rounds of pre-training, from which the first tiers are formed (PI-FL sec. 3.1, eq. 5).

    In pre-training, everybody who is present trains one model. Then clients whose local models are alike form a tier.
    K-means finds these tiers from the models' F1 scores on the server's validation set, for the ``rho`` classes in
    which the scores differ most. Clients without an update in the last of these rounds are dealt out at random.

    Attributes:
        rounds: how many rounds of pre-training.
        rho: how many classes are used to compare models. None: half of the classes.
        by_contribution: see :class:`Tiers`, as for the other options.
        at_random: how many other clients train a tier.
        contribution: "last" or "mean".
    """

    needs = SCHEDULED | {"validation", "server_classes"}
    rounds: Positive = 1
    rho: Positive | None = None

    def init(self, context: Context) -> State:
        """Return the scheduler's state, and a label of -1, which means unknown, for each client."""
        return {**super().init(context), "label": np.full(context.num_clients, -1, np.int64)}

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return everybody at the first tier's row (pre-training), later the first tiers, and then the choice by bids.

        Args:
            view: the round. The method reads ``round``, ``present``, ``table``, ``get(Bids)`` and ``draw``.
            state: as :meth:`init` makes it.
        """
        first = view.table.shared[0]
        if view.round < self.rounds:
            return Choice(view.present, np.full(len(view.present), first, np.int64)), state
        if view.round == self.rounds:
            return self.dealt(view, state["label"], int(first)), state
        return self._scheduled(view, state), state

    def learn(self, outcome: View, state: State) -> State:
        """Form the first tiers at the end of pre-training, and remember contributions after it.

        Args:
            outcome: the finished round. The method reads ``round``, ``table``, ``judge``, ``trained``, ``values`` and
                ``draw``.
            state: as :meth:`init` makes it.
        """
        label = state["label"]
        if outcome.round == self.rounds - 1:
            label = self._labels(outcome)
        if outcome.round < self.rounds:
            return {**state, "label": label}
        return {**super().learn(outcome, state), "label": label}

    def _labels(self, outcome: View) -> Ints:
        """Return the number of each client's first tier, ``[N]``."""
        tiers, n = len(outcome.table.shared), outcome.context.num_clients
        draw = outcome.draw("first tiers of the unexplored")
        label = draw.integers(tiers, size=n)
        updates = outcome.trained
        if len(updates) < tiers:  # too few models to be grouped: all at random
            return label
        f1 = games.f1_scores(outcome.judge.confusion(updates.rows).numpy())
        rho = min(self.rho or max(1, f1.shape[1] // 2), f1.shape[1])
        seed = int(draw.integers(2**31))
        label[updates.seats.client] = games.first_tiers(f1, rho, tiers, seed=seed).labels_
        return label


# SETTLE: the auction, and the settlement of the round before (eqs 6-14)

# by PI-FL's equation: the kind of the transaction, and its memo
_STEPS = {
    "6": ("pay", "PI-FL eqs (6), (7): selected bidders pay"),
    "11": ("reimburse", "PI-FL eqs (8)-(11): reimbursement"),
    "14": ("reward", "PI-FL eqs (12)-(14): rewards by rank"),
}


@dataclass(frozen=True)
class TokenManager(SettlePart):
    """The auction and the settlement of PI-FL and TIFF; these two differ in where a tier's accuracy comes from.

    A bid puts ``price`` tokens into escrow. Selected bidders pay these tokens into their tier's pool. Up to the share
    ``eta`` of the pool is returned to them. The more the tier improved, the less is returned, and nothing from a
    relative improvement of ``gamma`` on. The rest is shared by the clients that trained, by their ranks in contribution
    and participation. All other bids are returned.

    Bidders are told what each tier has paid them per seat so far; see ``tell``.

    The state holds the seats of the last round, which is still to be settled. The arrays are ``[S]``: ``client``,
    ``tier``, ``bidder`` (the client bid and paid), ``worked`` (its update was mixed) and ``worth``. Three more arrays
    cover all rounds: ``sat [N, K]``, how often each client trained each tier; ``paid [N, K]``, what each tier paid each
    client (in units, as ``tell`` says); and ``best [K]``, each tier's best accuracy.

    Attributes:
        price: the price of a seat, in tokens, from 1e-6 to 1e9.
        eta: the largest share of the pool that is returned; eq. (9).
        gamma: the relative improvement at or above which nothing is returned; eq. (9).
        score_samples: on how many samples clients score models for bids and for eq. (8), at most. None: all.
        first: the round of the first auction. Earlier models are untrained, and the clients that train are invited.
        score_on: on which share of their data clients score models.
        tell: which payments of the tiers clients are told about. "net": what a client got from a tier minus the prices
            that it paid. A tier that only ever invited a client looks better than it is, because the client never paid.
            "rewards": only the rewards of eqs (12)-(14) (PI-FL sec. 3.1 speaks of "received rewards").
        invited: whether clients that train without a bid share in what the bidders paid. "earn" is as published, and
            makes never bidding the best strategy; the alternative is "unpaid". Then a client's rewards of a round are
            also divided by the number of seats that it paid for, since it would otherwise pay to bid for all tiers. The
            rest stays in the pools.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("pifl", 2).before("settle")
        >>> settlement, state = part.settle(view, state)
        >>> all(sum(units for _, units in one.postings) == 0 for one in settlement.transactions)
        True
    """

    needs = VALUED | {"answers", "scores"}
    gives = frozenset({"bids"})
    price: TokenAmount = 1.0
    eta: Share = 0.5
    gamma: Share = 0.1
    score_samples: Positive | None = 64
    first: Count = 1
    score_on: Literal["train", "validation"] = "train"
    tell: Literal["net", "rewards"] = "net"
    invited: Literal["earn", "unpaid"] = "earn"

    def accuracies(self, view: View, state: State) -> dict[int, float]:
        """Return the present accuracy of each tier of the previous round, by row."""
        raise NotImplementedError

    @property
    def units(self) -> int:
        """The price in units."""
        return round(self.price * TOKEN)

    def providers(self, clients: Sequence[int], worked: Iterable[bool], bidder: Iterable[bool]) -> list[int]:
        """Return the ``clients`` of a tier that share in its pool: those that trained, if entitled (``invited``)."""
        all_earn = self.invited == "earn"
        return [c for c, did, bid in zip(clients, worked, bidder, strict=True) if did and (bid or all_earn)]

    def shared(self, moved: Iterable[tokens.Movement], seats: Mapping[str, NDArray[Any]]) -> list[tokens.Movement]:
        """Return a tier's payments.

        If the invited go unpaid, each reward (eq. 14) is divided by its client's paid seats.

        Args:
            moved: the tier's movements by eqs (6)-(14).
            seats: all seats of the round: "client", "bidder" and "worked", ``[S]``.
        """
        if self.invited == "earn":
            return list(moved)
        paid = Counter(seats["client"][(seats["bidder"] != 0) & (seats["worked"] != 0)].tolist())
        divided = ((eq, a, b, units // paid[int(b)] if eq == "14" else units) for eq, a, b, units in moved)
        return [movement for movement in divided if movement[3]]

    def init(self, context: Context) -> State:
        """Return the state in which there is nothing to settle."""
        n, none = context.num_clients, np.zeros(0, np.int64)
        return {
            "client": none,
            "tier": none,
            "bidder": np.zeros(0, bool),
            "worked": np.zeros(0, bool),
            "worth": np.zeros(0),
            "sat": np.zeros((n, 0)),
            "paid": np.zeros((n, 0)),
            "best": np.zeros(0),
        }

    def questions(self, clients: int, rows: int) -> Mapping[str, Most]:
        """Return what :meth:`asks` asks at most."""
        return {"Ask": Most(1, rows, self.score_on, self.score_samples)}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask every present client for bids. A client is told the price, its balance, and what tiers have paid it.

        Args:
            view: the round. The method reads ``stage``, ``round``, ``present``, ``table`` and ``book``.
            state: as :meth:`init` makes it.
        """
        if view.stage != "open" or view.round < self.first:
            return ()
        rows, size = view.table.shared, view.table.size
        settled = _widened(state["sat"], size).copy()
        # the last round's seats are counted already, but not settled yet
        np.add.at(settled, (state["client"][state["worked"]], state["tier"][state["worked"]]), -1)
        paid = (_widened(state["paid"], size) / np.maximum(1, settled))[:, rows]
        models = view.table.some(rows)

        def told(c: int) -> Mapping[str, Any]:
            balance = view.book.balance(account(c)) - view.book.floor
            return {"tiers": len(models), "price": self.units, "balance": balance, "paid": paid[c].tolist()}

        limit, share = self.score_samples, self.score_on
        return [Request(c, (Ask("bid", told(c), models, share, limit),)) for c in view.present.tolist()]

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        """Return the transactions that are due at one of three moments of a round.

        At "open" the previous round is settled and the bids are taken. At "close" the bids that won no seat are
        returned. At "end", the last round is settled.

        Args:
            view: the round. The method reads ``stage``, ``round``, ``present``, ``answers``, ``said``, ``table``,
                ``judge``, ``seats``, ``trained``, ``values``, ``get(Bids)``, ``get(SettledRound)`` and ``book``.
            state: as :meth:`init` makes it.
        """
        if view.stage == "close":
            return self._returned(view, state), state
        settled, found = self._settled(view, state)
        if view.stage == "end":
            return Settlement(transactions=tuple(settled), found=(found,)), state
        # what a client has just earned or got back may be bid again at once
        bids = _bids(view, view.book.post(view.round, settled), self.units)
        taken = moved_bids(bids.escrowed, self.units, "bid")
        return Settlement(transactions=(*settled, *taken), found=(bids, found)), state

    def _settled(self, view: View, state: State) -> tuple[list[Transaction], SettledRound]:
        """Return the settlement of the round before: each tier by PI-FL eqs (6)-(14), from escrow to clients."""
        accuracies = self.accuracies(view, state)
        paid = np.zeros((view.context.num_clients, view.table.size), np.int64)
        rewards = np.zeros_like(paid)
        paid[state["client"][state["bidder"]], state["tier"][state["bidder"]]] -= self.units
        transactions: list[Transaction] = []
        for k in np.unique(state["tier"]).tolist():
            here = state["tier"] == k
            clients = state["client"][here].tolist()
            providers = self.providers(clients, state["worked"][here], state["bidder"][here])
            moved = tokens.settle_tier(
                payers=[c for c, bid in zip(clients, state["bidder"][here], strict=True) if bid],
                providers=providers,
                price=self.units,
                accuracy=accuracies[k],
                best_accuracy=float(state["best"][k]),
                eta=self.eta,
                gamma=self.gamma,
                contributions=dict(zip(clients, state["worth"][here].tolist(), strict=True)),
                participations={c: float(state["sat"][c, k]) for c in providers},
                pool=view.book.balance(pool(f"tier {k}")),
            )
            moved = self.shared(moved, state)
            for equation, _, target, amount in moved:
                if equation != "6":  # out of the pool, to a client
                    paid[int(target), k] += amount
                    rewards[int(target), k] += amount if equation == "14" else 0
            transactions += tier_transactions(k, moved)
        return transactions, SettledRound(accuracies, paid, rewards)

    def _returned(self, view: View, state: State) -> Settlement:
        """Return the settlement at "close": the bids that won no seat go back, and the auction is recorded."""
        bids, settled = view.get(Bids), view.get(SettledRound)
        if bids is None or settled is None:
            raise RuntimeError("no bids: this part was not asked at the start of the round")
        kept = _kept_bids(view, bids.escrowed)
        back = moved_bids(bids.escrowed & ~kept, self.units, "return")
        book = view.book.post(view.round, back)
        balances = np.array([book.balance(account(c)) for c in range(len(kept))], np.int64)
        wanted = sum(len(tiers) for tiers in bids.wanted.values())
        metrics = {
            "tokens/bids": float(bids.escrowed.sum()),
            "tokens/bids_refused": float(wanted - bids.escrowed.sum()),
            "tokens/poorest": float(balances.min() / TOKEN),
            "tokens/richest": float(balances.max() / TOKEN),
        }
        for k, reached in settled.accuracies.items():
            best = float(state["best"][k])
            metrics[f"tokens/tier {k}/accuracy"] = reached
            metrics[f"tokens/tier {k}/theta"] = tokens.reimbursement_rate(reached, best, self.eta, self.gamma)
        arrays = {"balances": balances, "bids": bids.escrowed, "tokens_paid": settled.paid}
        # all that this round's settlement will need, for an audit's checks (hanse.mechanisms.token_checks)
        arrays |= {f"tokens_{name}": of_seat for name, of_seat in _sat(view, bids.escrowed & kept).items()}
        return Settlement(frozenset(), tuple(back), metrics, arrays, (replace(bids, escrowed=bids.escrowed & kept),))

    def learn(self, outcome: View, state: State) -> State:
        """Keep this round's seats, which are still to be settled, and the best accuracies so far.

        Args:
            outcome: the finished round. The method reads ``table``, ``seats``, ``trained``, ``values`` and
                ``get(SettledRound)``.
            state: as :meth:`init` makes it.
        """
        size, settled = outcome.table.size, outcome.get(SettledRound)
        sat = _widened(state["sat"], size).copy()
        best = np.pad(state["best"], (0, max(0, size - len(state["best"]))))
        for k, reached in {} if settled is None else settled.accuracies.items():
            best[k] = max(best[k], reached)
        told = 0 if settled is None else settled.paid if self.tell == "net" else settled.rewards  # [N, K], in units
        here = _sat(outcome, _escrowed(outcome))
        start, worked = here.pop("start"), here["worked"]
        # a tier that starts from another one's model has been as good as it (papers.md P12: Acc_max from pre-training)
        np.maximum.at(best, here["tier"], best[start])
        np.add.at(sat, (here["client"][worked], here["tier"][worked]), 1)
        return {**here, "sat": sat, "paid": _widened(state["paid"], size) + told, "best": best}

    def tells(self, slots: frozenset[str]) -> Telling:
        """Return what bids, payments and tiers are called in reports."""
        cost = quantity(f"{self.price:g}", "token")
        return Telling(
            f"It bids for seats: a bid holds {cost} of its account until the round is settled, and comes back "
            "if it wins no seat. Who trains is paid out of what the bidders paid: the more its update was worth, the "
            "more.",
            f"Clients bid {cost} for a seat. Up to {100 * self.eta:g} % of what was paid goes back: the better the "
            "model became, the less. The rest is shared by those who trained, by rank.",
            "Tiers",
            (
                Plot(
                    "How good each tier was when it was settled", "tokens/tier */accuracy", "accuracy (%)", "tier *",
                    "The tier's accuracy by which the round before was settled.", factor=100.0,
                ),
                Plot(
                    "How much goes back to those who paid", "tokens/tier */theta", "% of the payments", "tier *",
                    "What goes back of each tier's payments. The better it became, the less.", factor=100.0,
                ),
                Plot("Bids in escrow", "tokens/bids", "bids", "bids", "Bids that were accepted, each for one seat."),
            ),
            (
                Kind("bid", "bids put into escrow"),
                Kind("return", "bids that won no seat, returned"),
                Kind("pay", "seats paid for"),
                Kind("reimburse", "given back of what was paid"),
                Kind("reward", "earned by training"),
            ),
        )  # fmt: skip

    def checks(self, rounds: Iterable[PostedRound], parts: Mapping[str, Any]) -> Iterator[Check]:
        """Yield whether every posting follows from the records by PI-FL eqs (6)-(14)."""
        auctions = Auctions(self.units, self.eta, self.gamma, self.invited == "earn")
        yield Check.of(
            "auctions", "every posting follows from the records", ((r.number, auctions.wrong(r)) for r in rounds)
        )

    def terms(self, joining: BeforeJoining) -> Terms:
        """Return what bids cost a client that considers joining, and what it may earn by training."""
        auctions = max(0, joining.rounds - self.first)
        train, select = joining.parts.get("train"), joining.parts.get("select")
        # parts of the user's own need not have these options: then the sentences about them are left out
        tiers = getattr(train, "tiers", 1 if isinstance(train, SharedModel) else None)
        seats = sum(getattr(select, name, 0) for name in ("by_contribution", "at_random")) or None
        most_round = None if tiers is None else tiers * self.units
        most = joining.at_stake if most_round is None else min(joining.at_stake, most_round * auctions)
        many = "each model" if tiers is None else "the model" if tiers == 1 else f"each of {tiers} models"
        pays = (
            f"A bid on {many} costs {in_tokens(self.units)} a round if it wins a seat; a bid that wins none "
            "comes back.",
            f"{quantity(auctions, 'auction is', 'auctions are')} held, from round {self.first} on. Over the whole run "
            f"it can lose at most {say(most)} of the tokens it is granted"
            + (f" and of {in_tokens(joining.debt)} of debt." if joining.debt else "; it is never in debt."),
            "It loses a bid's whole price only where its update is refused or worth least, and the model improved so "
            f"much (by {100 * self.gamma:g} % or more) that nothing is given back.",
        )
        gains = [
            f"Up to {100 * self.eta:g} % of what was paid goes back to those who paid; the rest is shared by those "
            "who trained, by rank."
        ]
        if seats is not None and seats > 1:
            # rank k of n gets the share k / (1 + ... + n) of a pool of n prices
            best, last = (round(self.units * 2 * k / (seats + 1)) for k in (seats, 1))
            gains.append(
                f"If {seats} clients pay and train and nothing is given back, the most valuable gets "
                f"{in_tokens(best)} for its {say(self.units)}, the least valuable {say(last)}, one in the middle what "
                "it paid."
            )
        earns = "earns without paying" if self.invited == "earn" else "neither pays nor earns"
        gains.append(f"Who is invited without a bid trains and {earns}.")
        unknown = ["How many others bid, and how its updates rank among theirs."]
        if getattr(joining.parts.get("value"), "judges", None) == "all":
            unknown.append(SELF_JUDGED)
        return Terms(pays, tuple(gains), tuple(unknown), most, most_round)


@dataclass(frozen=True)
class Tokens(TokenManager):
    """PI-FL's token manager (eqs 6-14; papers.md P7-P17): an auction for the seats of each tier, in every round.

    A tier's accuracy (eq. 8) is the accuracy of its model on the data of the clients that trained it. These clients
    report it with their next bids. So a round is settled in the next one, and the last round after a final exchange.
    """

    def questions(self, clients: int, rows: int) -> Mapping[str, Most]:
        """Return what :meth:`asks` asks at most."""
        return dict.fromkeys(("Ask", "Score"), Most(1, rows, self.score_on, self.score_samples))

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask the clients that trained in the last round for the tiers' accuracies, and every client for bids.

        Args:
            view: the round. The method reads ``stage``, ``round``, ``present``, ``table`` and ``book``.
            state: as :meth:`init` makes it.
        """
        if view.stage not in ("open", "end"):
            return ()
        asked = np.intersect1d(state["client"][state["worked"]], view.present).tolist()
        score = Score(QUESTION, view.table.some(view.table.shared), self.score_on, self.score_samples)
        return [*(Request(c, (score,)) for c in asked), *super().asks(view, state)]

    def accuracies(self, view: View, state: State) -> dict[int, float]:
        """Return each tier's accuracy on the data of the clients that trained it; 0 if none of these answers.

        The accuracy is the mean over these clients, weighted by their numbers of samples.
        """
        place = {int(row): i for i, row in enumerate(view.table.shared)}
        found = {}
        for k in np.unique(state["tier"]).tolist():
            total = weight = 0.0
            for c in state["client"][(state["tier"] == k) & state["worked"]].tolist():
                scored = view.answers.get((c, QUESTION))
                if isinstance(scored, Scored) and scored.num_samples > 0:
                    # a reported number may be anything
                    i, samples = place[k], min(scored.num_samples, self.score_samples or LARGEST_COUNT)
                    total += samples * fit(float(scored.loss[i]), float(scored.accuracy[i]))
                    weight += samples
            found[k] = total / weight if weight else 0.0
        return found


@dataclass(frozen=True)
class ServerTokens(TokenManager):
    """TIFF's token manager (Han et al. 2022), which PI-FL extends: accuracies come from the server's validation set."""

    needs = VALUED | {"answers", "validation"}

    def accuracies(self, view: View, state: State) -> dict[int, float]:
        """Return each tier's accuracy on the server's validation set."""
        rows = np.unique(state["tier"])
        if not len(rows):
            return {}
        scores = view.judge.score(view.table.rows[rows])
        return dict(zip(rows.tolist(), fits(scores), strict=True))


def _bids(view: View, book: Book, price: int) -> Bids:
    """Return the bids that came, and which of them are good.

    A good bid names a tier that exists, once, and can be paid from the balances in ``book``. A client's bids are taken
    in its own order of preference until its account is at the floor (papers.md P10). An answer that is not a list holds
    no bids.

    Args:
        view: the round, with the answers.
        book: the balances to pay from.
        price: the price of a bid, in units.
    """
    rows = view.table.shared.tolist()
    held = np.zeros((view.context.num_clients, view.table.size), bool)
    words = {c: (view.said(c, "bid") or {}).get("tiers") for c in view.present.tolist()}
    wanted = {c: list(said) if isinstance(said, list | tuple) else [] for c, said in words.items()}
    for c, tiers in wanted.items():
        there = dict.fromkeys(k for k in tiers if type(k) is int and 0 <= k < len(rows))
        afford = max(0, (book.balance(account(c)) - book.floor) // price)
        held[c, [rows[k] for k in list(there)[:afford]]] = True
    return Bids(held, wanted)


def moved_bids(bids: NDArray[np.bool_], price: int, kind: Literal["bid", "return"]) -> list[Transaction]:
    """Return one transaction per tier, which moves bids ``[N, K]`` into escrow ("bid") or back ("return").

    ``price`` is what each bid moves, in units.
    """
    memo = "bids, held until the round settles" if kind == "bid" else "bids that won no seat"
    found = []
    for k in np.flatnonzero(bids.any(axis=0)).tolist():
        pairs = []
        for c in np.flatnonzero(bids[:, k]).tolist():
            source, target = (account(c), escrow(c)) if kind == "bid" else (escrow(c), account(c))
            pairs += [(source, -price), (target, price)]
        found.append(Transaction(f"{kind}/{k}", kind, tuple(pairs), memo))
    return found


def _kept_bids(view: View, bids: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which bids are kept, ``[N, K]``: those that won a seat.

    A seat that failed for the server's reasons does not count as won: the update was sound, but too few others were
    (papers.md P9).
    """
    seats, mixed, lost = view.seats, view.trained.seats, view.uncounted
    assert seats is not None
    taken = np.zeros_like(bids)
    taken[seats.client, seats.target] = True
    if lost is not None:
        fresh = lost.seats.take(np.flatnonzero(lost.staleness == 0))
        taken[fresh.client, fresh.target] = False
    taken[mixed.client, mixed.target] = True
    return taken


def tier_transactions(tier: int, moved: Sequence[tokens.Movement]) -> list[Transaction]:
    """Return one transaction for each equation that moves units in a tier's settlement."""
    found, purse = [], pool(f"tier {tier}")
    for equation, (kind, memo) in _STEPS.items():
        here = [(source, target, units) for eq, source, target, units in moved if eq == equation]
        total = sum(units for _, _, units in here)
        if equation == "6":
            pairs = [(escrow(int(source)), -units) for source, _, units in here]
            pairs.append((purse, total))
        else:
            pairs = [(account(int(target)), units) for _, target, units in here]
            pairs.append((purse, -total))
        if here:
            found.append(Transaction(f"{kind}/{tier}", kind, tuple(pairs), memo))
    return found


def _sat(view: View, kept: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    """Return the round's seats at tiers, ``[S]`` each: "client", "start" and "tier" (rows), "bidder" (it bid and pays),
    "worked" (its update was mixed) and "worth".

    ``kept [N, K]`` are the bids that won a seat. Private rows have no pool, and their seats are left out.
    """
    seats = view.seats
    assert seats is not None
    # which seats' updates were mixed, and what they were worth (0 where nothing is known)
    place = {pair: s for s, pair in enumerate(_pairs(view.trained.seats))}
    at = np.array([place.get(pair, -1) for pair in _pairs(seats)], np.int64)
    worked, worth = at >= 0, np.zeros(len(seats))
    if view.values is not None:
        # a value that is not finite must not stop the settlement; NaN ranks last
        worth[worked] = np.nan_to_num(view.values.per_seat[at[worked]], nan=-np.finfo(np.float64).max)
    bidder = kept[seats.client, seats.target]
    columns: dict[str, NDArray[Any]] = {"client": seats.client, "start": seats.start, "tier": seats.target}
    columns |= {"bidder": bidder, "worked": worked, "worth": worth}
    tier = np.isin(seats.target, view.table.shared)
    return {name: column[tier] for name, column in columns.items()}


def _pairs(seats: Seats) -> list[tuple[int, int]]:
    """Return (client, target row) of each seat."""
    return list(zip(seats.client.tolist(), seats.target.tolist(), strict=True))


# DEPLOY: personal models in one shot (eqs 3, 4)


@dataclass(frozen=True)
class OneShot(DeployPart):
    """PI-FL's personal models: each client mixes the tiers' models once, by its own importance weights (eqs 3, 4).

    The client computes the weights and never sends them. Besides the mix, it holds the model of the tier that it bids
    for first.

    Attributes:
        share: which share of its data a client uses to weigh the tiers. The "validation" share is drawn like the test
            data; a client without one uses its train share. With "train", a client whose test data differ from its
            training data mixes in the wrong tier (papers.md P23). With "test", as in the authors' code, the personal
            model is fitted to its test data.
        normalised: whether the weights are scaled to sum to 1. If not, they are as printed (papers.md P4).
    """

    needs = frozenset({"scores", "rows tier"})
    share: Literal["validation", "train", "test"] = "validation"
    normalised: bool = True

    def questions(self, clients: int, rows: int) -> Mapping[str, Most]:
        """Return on which samples a client mixes how many models."""
        return {"Mixture": Most(1, rows, self.share)}

    def deploy(self, view: View, state: State) -> tuple[Deployment, State]:
        """Return each client's row: that of the tier it bids for first, or its home row if its bid names no tier.

        The decision also tells each client to mix the tiers' models.

        Args:
            view: the round. The method reads ``table``, ``mixed`` and ``get(Bids)``.
            state: the part's state, always ``{}``, since this part keeps none.
        """
        rows, held, bids = view.table.shared, view.mixed.home.copy(), view.get(Bids)
        for c, wanted in ({} if bids is None else bids.wanted).items():
            for first in wanted[:1]:  # a client's word: it may be anything
                if type(first) is int and 0 <= first < len(rows):
                    held[c] = rows[first]
        own = OwnMix(rows, self.share, self.normalised)
        return Deployment(np.asarray(held, np.int64), own_mix=own), state


def pifl(
    tiers: Positive = 2,
    by_contribution: Count = 8,
    at_random: Count = 2,
    price: TokenAmount = 1.0,
    eta: Share = 0.5,
    gamma: Share = 0.1,
    score_samples: Positive | None = 64,
    personal_from: Literal["validation", "train", "test"] = "validation",
    pretraining: Count = 0,
    invited: Literal["earn", "unpaid"] = "unpaid",
) -> Mechanism:
    """PI-FL: tiers with a scheduler, first-order values, tokens, and personal models.

    The option ``judges`` of the value part says who judges contributions. With "all", as in the paper, clients judge
    their own. By default the server's validation samples judge or, if there are none, "others"
    (:class:`hanse.mechanisms.value.FirstOrderAtClients`). Only clients that paid for their seats are paid. Otherwise
    never bidding would be the best strategy.

    Args:
        tiers: the number of tiers, K.
        by_contribution: how many clients train a tier by their contribution, N_p.
        at_random: how many more train it, drawn at random, N_r.
        price: the price of a bid, in tokens.
        eta: the largest share returned to those who paid; eq. (9).
        gamma: the relative improvement at or above which nothing is returned; eq. (9).
        score_samples: the most samples on which clients score models and compute gradients. None: all.
        personal_from: on which share of its data a client weighs the tiers for its personal model.
        pretraining: rounds of pre-training before the first tiers.
        invited: whether clients that train without a bid share in the pool: "earn" as in the paper, or "unpaid". With
            "unpaid", several seats in a round also earn a client no more than one.
    """
    select = Tiers(by_contribution, at_random)
    if pretraining:
        select = PretrainedTiers(by_contribution, at_random, rounds=pretraining)
    value = FirstOrderAtClients(samples=score_samples)
    settle = Tokens(price, eta, gamma, score_samples, pretraining + 1, invited=invited)
    return Mechanism("pifl", select, TierModels(tiers), BySamples(), value, settle, OneShot(personal_from))


def tiff(
    by_contribution: Count = 8,
    at_random: Count = 2,
    price: TokenAmount = 1.0,
    eta: Share = 0.5,
    gamma: Share = 0.1,
    score_samples: Positive | None = 64,
) -> Mechanism:
    """TIFF: PI-FL's tokens on one global model, with accuracies and contributions from the server's validation set.

    Args:
        by_contribution: how many clients are chosen to train for their past contribution.
        at_random: how many train at random.
        price: the price of a bid, in tokens.
        eta: the largest share returned to those who paid.
        gamma: the relative improvement from which nothing is returned.
        score_samples: the most samples on which clients score models for their bids. None: all.
    """
    select, settle = Tiers(by_contribution, at_random), ServerTokens(price, eta, gamma, score_samples)
    return Mechanism("tiff", select, SharedModel(), BySamples(), FirstOrder(), settle, ServerModel())
