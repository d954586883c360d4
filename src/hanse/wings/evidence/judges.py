"""Judges: validation samples that nobody trains on, drawn anew each round.

``[evidence] judges`` draws, for each round, a share of the server's validation samples, which then judge that round
alone. In a simulation, samples whose inputs a client also trains on are never drawn. A server on a network does not see
what members train on, and cannot leave such samples out: it should take its samples from where no member has any.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

import numpy as np
import torch
from pydantic import Field

from hanse.base.errors import UserError
from hanse.base.factories import call
from hanse.base.streams import stream
from hanse.core.judge import Judge
from hanse.core.port import Federation
from hanse.core.table import Ints
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

    share: Annotated[float, Field(gt=0, le=1)] = 0.5

    def places(self, samples: Samples, trained: Collection[bytes], seed: int, round: int) -> Ints:
        """Return the places of the validation samples that judge a round, ascending.

        Args:
            samples: all validation samples.
            trained: the inputs of the samples that clients train on, as bytes.
            seed: the run's seed.
            round: the round's number.

        Raises:
            UserError: too few samples are left.
        """
        apart = [place for place, one in enumerate(inputs_of(samples)) if one not in trained]
        if len(apart) < LEAST:
            raise UserError(
                f"evidence.judges: clients train on {len(samples) - len(apart)} of the server's {len(samples)} "
                f"validation samples: {LEAST} others are needed (data.validation)"
            )
        drawn = stream(seed, "judges", round=round).permutation(apart)
        return np.sort(drawn[: max(LEAST, math.ceil(self.share * len(apart) - 1e-9))])  # against rounding


def inputs_of(samples: Samples) -> list[bytes]:
    """Return the inputs of each sample as bytes."""
    rows = samples.x.detach().cpu().contiguous().numpy().reshape(len(samples), -1)
    return [row.tobytes() for row in rows]


class JudgesGuard(Guard):
    """Validation samples that nobody trains on, drawn anew each round."""

    trained: frozenset[bytes] = frozenset()

    def settle(self, sizes: Ints | None) -> None:
        """Read the options. Raises UserError."""
        self.terms = call(DrawnJudges, self.experiment.evidence.judges or {}, "evidence.judges")

    def clients(self, inner: Federation, sizes: Ints) -> Federation:
        """Note what the clients of a simulation train on. Raises UserError if no validation samples are left."""
        if (data := getattr(inner, "data", None)) is not None:
            pool, lists = data.pool(list(range(data.num_clients)))
            self.trained = frozenset(inputs_of(pool.take(torch.cat(lists))))
            self.terms.places(data.server_validation, self.trained, 0, 0)
        return inner

    def judge(self, judge: Judge, round: int) -> Judge:
        """Return the judge of a round."""
        whole: Any = cast(ServerJudge, judge)
        places = self.terms.places(whole.validation, self.trained, self.experiment.run.seed, round)
        return cast(Judge, replace(whole, validation=whole.validation.take(torch.from_numpy(places))))
