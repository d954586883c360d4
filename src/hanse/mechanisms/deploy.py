"""DEPLOY: which model each client holds after the round."""

from __future__ import annotations

from dataclasses import dataclass

from hanse.mechanisms.part import Deployment, DeployPart, State, View

__all__ = ["ServerModel"]


@dataclass(frozen=True)
class ServerModel(DeployPart):
    """Every client holds the row that it will start from next."""

    def decide(self, view: View, state: State) -> Deployment:
        """Return the home rows of the new table."""
        return Deployment(view.mixed.home)
