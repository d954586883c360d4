"""DEPLOY: which model each client holds after the round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from hanse.federation.port import Answered
from hanse.mechanisms.part import Deployment, DeployPart, OwnMix, State, View
from hanse.mechanisms.tiers import tier_rows

__all__ = ["OneShot", "ServerModel"]


@dataclass(frozen=True)
class ServerModel(DeployPart):
    """Every client holds the row that it will start from next."""

    def decide(self, view: View, state: State) -> Deployment:
        """Return the home rows of the new table."""
        return Deployment(view.mixed.home)


@dataclass(frozen=True)
class OneShot(DeployPart):
    """PI-FL's personal models in one shot: each client mixes the tiers' models by its own importance weights (eqs 3,
    4).

    The weights come from the client's ``share`` "validation", which is drawn from what it will be tested on, or from
    "train", on which a client with other goals than its training data mixes in the wrong tier (papers.md P23); a client
    without a validation share takes its train share. Unless ``normalised`` they are the weights as printed (P4).
    They are made at the client and never sent. Beside it a client holds the tier that it bids for first.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"tiers"})
    share: Literal["validation", "train"] = "validation"
    normalised: bool = True

    def decide(self, view: View, state: State) -> Deployment:
        """Return each client's preferred tier, and how it mixes."""
        rows = tier_rows(view.table)
        held = view.mixed.home.copy()
        for c in view.present.tolist():
            answer = view.answers.get((c, "bid"))
            wanted = answer.values.get("tiers") if isinstance(answer, Answered) else None
            if isinstance(wanted, list | tuple) and wanted and type(wanted[0]) is int and 0 <= wanted[0] < len(rows):
                held[c] = rows[wanted[0]]
        return Deployment(np.asarray(held, np.int64), own_mix=OwnMix(rows, self.share, self.normalised))
