"""A clip that follows the lengths of updates: a quantile of them, found privately (Andrew et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hanse.core.part import Context, Helper, State, View
from hanse.core.port import Request
from hanse.federation.behaviour import with_training
from hanse.federation.wrapped import WITHIN
from hanse.wings.private.privacy import LEAST_CLIP, MOST_CLIP, Privacy


@dataclass(frozen=True)
class AdaptiveClip(Helper):
    """Sends a clip with every training task, and adapts it to the clients' noisy answers.

    Each client says whether its update was within the clip: 1 or 0, with noise. With b the mean of these,
    ``clip <- clip exp(-rate (b - quantile))`` (eq. 2), so about this quantile of the updates is not clipped.

    Attributes:
        rule: the first clip, the quantile and the rate.
    """

    rule: Privacy

    def init(self, context: Context) -> State:
        """Return the state with the first clip."""
        return {"clip": self.rule.clip}

    def sent(self, requests: Sequence[Request], state: State) -> list[Request]:
        """Return training requests with the clip of this round."""
        return [with_training(r, lambda task: replace(task, clip=state["clip"])) for r in requests]

    def learn(self, outcome: View, state: State) -> State:
        """Return the state with the clip of the next round, a bounded step away."""
        answers = [one[WITHIN] for one in outcome.trained.metrics if WITHIN in one]
        if not answers or self.rule.quantile is None:
            return state
        mean = min(2.0, max(-1.0, math.fsum(min(1e6, max(-1e6, one)) for one in answers) / len(answers)))
        moved = state["clip"] * math.exp(-self.rule.rate * (mean - self.rule.quantile))
        return {"clip": min(MOST_CLIP, max(LEAST_CLIP, moved))}
