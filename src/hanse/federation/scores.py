"""Models scored on the shares of many clients of this process at once: who scores the same models joins one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from hanse.data.federated import FederatedData
from hanse.federation.answers import Share
from hanse.learning.job import Engine, Scores

__all__ = ["Wanted", "score_shares"]

_CLIENTS = 512  # whose samples are brought together at once: sources that make samples hold no more than these


@dataclass(frozen=True)
class Wanted:
    """Score ``models [C, P]`` on a share of a client's samples, at most ``limit`` of them (see :class:`Share`)."""

    client: int
    models: Tensor
    share: str = "train"
    limit: int | None = None


def score_shares(
    wanted: Sequence[Wanted], data: FederatedData, engine: Engine, seed: int, round: int
) -> Sequence[Scores]:
    """Return the :class:`Scores` of each wish, in their order; the limits' orders are keyed by round and client."""
    found: dict[int, Scores] = {}
    for (share, _), places in _alike(wanted).items():
        for first in range(0, len(places), _CLIENTS):
            some = places[first : first + _CLIENTS]
            pool, lists = data.pool([wanted[i].client for i in some], share)
            index = [
                Share(pool, own).limited(wanted[i].limit, seed, round, wanted[i].client).index
                for i, own in zip(some, lists, strict=True)
            ]
            found.update(zip(some, engine.score_each(wanted[some[0]].models, pool, index), strict=True))
    return [found[i] for i in range(len(wanted))]


def _alike(wanted: Sequence[Wanted]) -> Mapping[tuple[str, tuple[object, ...]], list[int]]:
    """Return the positions of the wishes by share and models; models are the same if they lie at the same place."""
    groups: dict[tuple[str, tuple[object, ...]], list[int]] = {}
    for i, wish in enumerate(wanted):
        models = wish.models
        place = (models.data_ptr(), models.dtype, models.device, tuple(models.shape), models.stride())
        groups.setdefault((wish.share, place), []).append(i)
    return groups
