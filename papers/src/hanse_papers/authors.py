"""Parts that follow the authors' code where it differs from the paper's text, for the papers' tables.

The parts in :mod:`hanse.mechanisms` follow one reading of each paper. The parts here are alternatives, which tables
name by import path. The numbers in brackets refer to docs/papers.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hanse.base.errors import UserError
from hanse.base.factories import Positive, options_of
from hanse.core.part import Choice, Mechanism, SelectPart, Settlement, State, View, Weighed
from hanse.core.table import Ints
from hanse.games.market import Graph, Market, Stop, best_imports
from hanse.mechanisms.ipfl import IPFL, Bills, Utilities, graph_of, market_of
from hanse.mechanisms.pifl import Tiers, tier_choice
from hanse.mechanisms.select import PowerOfChoice
from hanse.mechanisms.weigh import Centres, Received


@dataclass(frozen=True)
class AuthorsMarket(IPFL):
    """iPFL as in its authors' code. Its other options are those of :class:`hanse.mechanisms.ipfl.IPFL`.

    Attributes:
        stop: how Alg. 2 treats sellers that do not pay off. "skip": it skips them. "break": it ends at the first such
            seller, as printed, and misses imports that would have paid off (I2).
        pull_alone: whether a client that imports nothing is pulled towards its own last model (I19).
        last_market: whether models are also traded after the last training, when nobody uses them. This makes T markets
            instead of T - 1 (I21).

    Examples:
        >>> AuthorsMarket(stop="break").bounded
        True
    """

    stop: Stop = "skip"
    pull_alone: bool = False
    last_market: bool = False

    def __post_init__(self) -> None:
        """Raise UserError for other prices than eq. (10)'s with ``stop = "break"``."""
        super().__post_init__()
        if self.stop == "break" and self.pricing != "marginal":
            raise UserError(f"mechanism.weigh.pricing: {self.pricing!r}: must be 'marginal' with stop = 'break'")

    def _imports(self, market: Market) -> Graph:
        return best_imports(market, self.stop)

    def _over(self, view: View) -> bool:
        return not self.last_market and super()._over(view)

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return iPFL's models and centres. With ``pull_alone``, all centres count as made of others' models.

        Args:
            view: the round, as :class:`hanse.mechanisms.ipfl.IPFL` reads it.
            state: the state of that part.
        """
        weighed, state = super().weigh(view, state)
        if not self.pull_alone:
            return weighed, state
        found = [replace(f, imports=np.ones_like(f.imports)) if isinstance(f, Centres) else f for f in weighed.found]
        return replace(weighed, found=tuple(found)), state

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        """Return iPFL's settlement. A market's record notes ``stop = "break"``, which an audit must know.

        Args:
            view: the round, as :class:`hanse.mechanisms.ipfl.IPFL` reads it.
            state: the state of that part.
        """
        settlement, state = super().settle(view, state)
        if self.stop == "break" and any(isinstance(found, Bills) for found in settlement.found):
            settlement = replace(settlement, arrays={**settlement.arrays, "market_stop": np.array(self.stop)})
        return settlement, state

    def _markets(self, rounds: int) -> int:
        return rounds if self.last_market else super()._markets(rounds)


@options_of(AuthorsMarket, "lam eta bounded keep_best adapters stop pull_alone last_market")
def ipfl(part: AuthorsMarket) -> Mechanism:
    """iPFL with the options of its authors' code."""
    return market_of("ipfl", part)


@dataclass(frozen=True)
class AuthorsUtilities(Utilities):
    """The utilities of clients under iPFL's baselines, as in the authors' code.

    Attributes:
        count: which models count as client i's imports. "mixed": those mixed into its model, as in
            :class:`hanse.mechanisms.ipfl.Utilities`. "received": those sent to it, which matters if the mechanism sends
            more models than it mixes (FedFomo).
        last_market: whether the last round counts, although nobody trains after it (I21).

    Examples:
        >>> AuthorsUtilities(last_market=True).cost
        1.0
    """

    count: Literal["mixed", "received"] = "mixed"
    last_market: bool = False

    def _over(self, view: View) -> bool:
        return not self.last_market and super()._over(view)

    def _graph(self, view: View, clients: Ints) -> Graph:
        received = view.get(Received) if self.count == "received" else None
        if received is None:
            return graph_of(view, clients)
        return received.sent * (1 - np.eye(len(clients), dtype=np.int8))


@dataclass(frozen=True)
class FullTiers(Tiers):
    """PI-FL's scheduler, but random clients fill all seats of a tier without bidders, as in the authors' code if all
    tiers are good. The options are those of :class:`hanse.mechanisms.pifl.Tiers`.

    Examples:
        >>> FullTiers(by_contribution=4).contribution
        'last'
    """

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return PI-FL's choice, with empty tiers filled at random.

        Args:
            view: the round, as :class:`hanse.mechanisms.pifl.Tiers` reads it.
            state: the state of that part.
        """
        choice, state = super().select(view, state)
        if view.round == 0:
            return choice, state
        rows, metrics = view.table.shared, dict(choice.metrics)
        groups = [choice.clients[choice.start == k] for k in rows]
        for place, k in enumerate(rows.tolist()):
            if not len(groups[place]):
                order = view.draw("schedule", start=k).permutation(view.present)
                groups[place] = order[: self.by_contribution + self.at_random]
                metrics[f"select/tier {k}/invited"] = len(groups[place])
        return tier_choice(rows, groups, metrics), state


@dataclass(frozen=True)
class RandomPick(SelectPart):
    """Power-of-Choice as in the code of GreedyFed's authors: in effect, a uniform draw without questions.

    Their code lists losses by id, but chooses clients from a shuffled list.

    Attributes:
        clients_per_round: how many clients train in a round.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> _, view, state = rehearse("power_of_choice").before("select")
        >>> len(RandomPick(4).select(view, state)[0].clients)
        4
    """

    needs = PowerOfChoice.needs
    clients_per_round: Positive = 10

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the clients that were drawn, in ascending order.

        Args:
            view: the round. The method reads ``present`` and ``draw``.
            state: the part's state, always ``{}``, since this part keeps none.
        """
        m = min(self.clients_per_round, len(view.present))
        return Choice(np.sort(view.draw("picked").choice(view.present, m, replace=False))), state
