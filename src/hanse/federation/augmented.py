"""Training on augmented images.

The changed copies for a seat's batches are made before its training, and their order is part of the job. So every
engine trains on the same numbers, and none needs to know about augmentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch

from hanse.base.streams import stream
from hanse.core.recipe import Recipe
from hanse.data.augment import Augment
from hanse.data.samples import Samples
from hanse.learning.job import Drawn, SeatJob, plan_of

# bytes of copies that are made at once
_BYTES = 256 << 20


def augmented(
    augment: Augment, samples: Samples, jobs: Mapping[int, SeatJob], recipe: Recipe, smallest: int
) -> Iterator[tuple[Samples, dict[int, SeatJob]]]:
    """Yield the jobs, some at a time, each with its own samples: a changed copy for every position in a batch.

    A sample is changed differently each time it is used, by draws from the stream ``(seed, "augment", round, client,
    start)`` of its job's key.

    Args:
        augment: what changes the images.
        samples: the pool that the jobs train on.
        jobs: the jobs by their position.
        recipe: the local training recipe, which determines how often samples are used.
        smallest: the smallest batch that the model can train on.

    Yields:
        Samples, and jobs that refer to them by position. The copies that are made at once stay near 256 MiB.
    """
    made: list[Samples] = []
    some: dict[int, SeatJob] = {}
    for place, job in jobs.items():
        first = sum(map(len, made))
        own, changed = _copies(augment, samples, job, recipe, smallest, first)
        made.append(own)
        some[place] = changed
        if sum(part.x.nbytes for part in made) >= _BYTES:
            yield _joined(made), some
            made, some = [], {}
    if some:
        yield _joined(made), some


def _copies(
    augment: Augment, samples: Samples, job: SeatJob, recipe: Recipe, smallest: int, first: int
) -> tuple[Samples, SeatJob]:
    """Return a job's copies in the order of its batches, and the job on them; they begin at position ``first``."""
    plan = plan_of(job, recipe, smallest)
    used = plan.batches >= 0
    seed, round, client, start = job.key
    taken = job.index[torch.from_numpy(plan.batches[used])].to(samples.x.device)
    draw = stream(seed, "augment", round=round, client=client, start=start)
    own = Samples(augment(samples.x.index_select(0, taken), draw), samples.y.index_select(0, taken))
    order = np.where(used, np.cumsum(used).reshape(used.shape) - 1, -1)
    return own, replace(job, index=first + torch.arange(len(own)), drawn=Drawn(order, plan.reported))


def _joined(parts: list[Samples]) -> Samples:
    """Return all parts as one; a single part is not copied."""
    return parts[0] if len(parts) == 1 else Samples.joined(parts)
