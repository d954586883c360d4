"""Judges: validation samples that nobody trains on, drawn anew each round.

``[evidence] judges`` draws, for each round, a share of the server's validation samples, which then judge that round
alone. In a simulation, samples whose inputs a client also trains on are never drawn. A server on a network does not see
what members train on, and cannot leave such samples out: it should take its samples from where no member has any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch

from hanse.base.errors import UserError
from hanse.base.factories import SomeShare, call
from hanse.base.streams import stream
from hanse.core.part import Judge
from hanse.core.port import Federation
from hanse.core.table import Ints
from hanse.data.federated import FederatedData
from hanse.data.samples import Samples
from hanse.runs.guards import Guard
from hanse.runs.server_judge import ServerJudge

LEAST = 2  # validation samples that judge a round


@dataclass(frozen=True)
class DrawnJudges:
    """Which validation samples judge a round.

    Attributes:
        share: the share of those that nobody trains on.
    """

    share: SomeShare = 0.5

    def places(self, apart: Ints, seed: int, round: int) -> Ints:
        """Return the places of the validation samples that judge a round, ascending.

        Args:
            apart: the places of those that nobody is known to train on.
            seed: the run's seed.
            round: the round's number.
        """
        drawn = stream(seed, "judges", round=round).permutation(apart)
        return np.sort(drawn[: max(LEAST, math.ceil(self.share * len(apart) - 1e-9))])  # against rounding


def inputs_of(samples: Samples) -> list[bytes]:
    """Return the inputs of each sample as bytes."""
    rows = samples.x.detach().cpu().contiguous().numpy().reshape(len(samples), -1)
    return [row.tobytes() for row in rows]


class JudgesGuard(Guard):
    """Validation samples that nobody trains on, drawn anew each round."""

    apart: Ints | None = None  # the places of samples on which no client of a simulation trains

    def settle(self, sizes: Ints | None) -> None:
        """Read the options. Raises UserError."""
        self.terms = call(DrawnJudges, self.experiment.of_wing("evidence").judges or {}, "evidence.judges")

    def clients(self, inner: Federation, data: FederatedData) -> Federation:
        """Find the samples on which no client of a simulation trains. Raises UserError if too few are left."""
        pool, lists = data.pool(list(range(data.num_clients)))
        trained = frozenset(inputs_of(pool.take(torch.cat(lists))))
        whole = inputs_of(cast(Samples, data.server_validation))
        self.apart = np.array([place for place, one in enumerate(whole) if one not in trained], np.int64)
        if len(self.apart) < LEAST:
            raise UserError(
                f"evidence.judges: clients train on {len(whole) - len(self.apart)} of the server's {len(whole)} "
                f"validation samples: {LEAST} others are needed (data.validation)"
            )
        return inner

    def judge(self, judge: Judge, round: int) -> Judge:
        """Return the judge of a round."""
        server = cast(ServerJudge, judge)
        whole = cast(Samples, server.validation)
        apart = np.arange(len(whole)) if self.apart is None else self.apart
        places = self.terms.places(apart, self.experiment.run.seed, round)
        return cast(Judge, replace(server, validation=whole.take(torch.from_numpy(places))))
