"""How many samples each client gets, and the checks that a request can be met at all."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.streams import stream
from hanse.data.dataset import largest_remainder

__all__ = ["SizeLaw", "check_count", "check_room", "client_sizes", "power_weights"]

SizeLaw = Literal["power", "equal"]


def check_count(name: str, value: int, least: int = 1) -> None:
    """Raise UserError unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UserError(f"{name} = {value!r}; allowed: an integer of at least {least}")


def check_room(samples: int, clients: int, min_samples: int) -> None:
    """Raise UserError, with the numbers, unless ``clients`` can have ``min_samples`` (at least 1) each."""
    check_count("clients", clients)
    check_count("min_samples", min_samples)
    if clients > samples:
        raise UserError(f"clients = {clients}: there are only {samples} samples; allowed: 1..{samples}")
    if clients * min_samples > samples:
        raise UserError(
            f"min_samples = {min_samples}: {clients} clients would need {clients * min_samples} samples "
            "and there are "
            f"{samples}; allowed: min_samples up to {samples // clients}, or up to "
            f"{samples // min_samples} clients"
        )


def client_sizes(
    samples: int,
    clients: int,
    *,
    seed: int,
    law: SizeLaw = "power",
    min_samples: int = 1,
    total: int | None = None,
) -> NDArray[np.int64]:
    """Return the number of samples of each client, ``[clients]``, which sums to ``total`` (default: all
    samples).

    ``"power"``: in proportion to q ~ pdf 3 q^2 on [0, 1] (GreedyFed, section 4.1; mean 0.75, standard
    deviation 0.19). A client whose proportion is less than ``min_samples`` gets ``min_samples``, and the
    others share the rest in proportion, so that the sum stays. ``"equal"``: the same number each, the
    remainder one each to the first clients. Raises UserError for a request that cannot be met.
    """
    if total is not None:
        check_count("total", total)
        if total > samples:
            raise UserError(f"{total} samples are asked for and there are {samples}; allowed: 1..{samples}")
    count = samples if total is None else total
    check_room(count, clients, min_samples)
    if law == "equal":
        return largest_remainder(np.ones(clients), count)
    if law != "power":
        raise UserError(f"sizes = {law!r}; allowed: 'power', 'equal'")
    return _with_floor(power_weights(clients, seed), count, min_samples)


def power_weights(clients: int, seed: int) -> NDArray[np.float64]:
    """Return sizes in proportion, q ~ pdf 3 q^2 on (0, 1], ``[clients]``."""
    # 1 - U lies in (0, 1]: no client has weight zero
    return np.cbrt(1.0 - stream(seed, "partition", start=0).random(clients))


def _with_floor(weights: NDArray[np.float64], total: int, least: int) -> NDArray[np.int64]:
    sizes = largest_remainder(weights, total)
    low = np.zeros(len(weights), dtype=np.bool_)
    while (sizes < least).any():
        low |= sizes < least
        sizes[low] = least
        rest = total - least * int(low.sum())
        if not low.all():
            sizes[~low] = largest_remainder(weights[~low], rest)
    return sizes
