"""Lines of ``clients.jsonl`` as they are read (:class:`Seat`), their columns, and clients' tests after a round.

The lines may have been written by a stranger: anything but a finite number (:func:`is_number`) becomes None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from hanse.base.files import table

if TYPE_CHECKING:
    from hanse.core.table import Floats, Ints

STILL = "still trains: the round did not wait for it"

OWN_TESTS = ("tested", "test_loss", "test_accuracy", "test_samples", "test_loss_error", "test_units")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A line of ``clients.jsonl``. Anything but a finite number becomes None.

    Attributes:
        round: the round that the line belongs to.
        client: the client's number.
        staleness: how many rounds late the update came.
        value: what the update was worth.
        error: the value's standard error from the sampling of coalitions. Infinite: not known. None: not recorded.
        drawn: the value's standard error from the draw of the validation samples.
        exact: the exact value, if the run computed it in addition to an estimate.
        weight: the update's weight in the model that it trained.
        refused: why there is no update. None: there is one.
        name: the client's name. Empty: it has none.
        samples: how many training samples the update was made from, as the client says.
        epsilon: how much of its privacy budget the client claims to have spent. None: it claims nothing.
        budget: the epsilon that it may spend, as the client claims.
        delta: the delta for which ``epsilon`` and the budget are meant, as the client claims.
    """

    round: int
    client: int
    staleness: int = 0
    value: float | None = None
    error: float | None = None
    drawn: float | None = None
    exact: float | None = None
    weight: float | None = None
    refused: str | None = None
    name: str = ""
    samples: float | None = None
    epsilon: float | None = None
    budget: float | None = None
    delta: float | None = None

    @staticmethod
    def of(line: Mapping[str, Any]) -> Seat:
        """Return the seat that a line describes. Its ``round`` and ``client`` must have been checked to be counts."""

        known = {field: line[key] for key, field in _NUMBERS.items() if is_number(line.get(key))}
        if line.get("value_error", 0) is None:
            # a null was a NaN when it was written: the value was sampled, and fewer than two samples give no error
            known["error"] = math.inf
        refused = line.get("refused")
        return Seat(
            round=line["round"],
            client=line["client"],
            staleness=late if isinstance(late := line.get("staleness"), int) and 0 <= late <= line["round"] else 0,
            refused=None if refused is None else str(refused),
            name=str(line.get("name") or ""),
            **known,
        )


_NUMBERS = {
    "value": "value", "value_error": "error", "value_draw_error": "drawn", "value_exact": "exact",
    "weight": "weight", "samples": "samples", "fit/epsilon": "epsilon",
    "fit/budget": "budget", "fit/delta": "delta",
}  # fmt: skip


@dataclass(frozen=True)
class SeatColumns:
    """All seats of a run as columns ``[S]``, in the order of rounds. Numbers that are not there are NaN.

    Attributes:
        round: the round that the seat's line belongs to.
        asked: the round in which the client was asked. For late updates it is an earlier one.
        client: the client's number.
        value: what the update was worth.
        error: the value's standard error from the sampling of coalitions.
        drawn: the value's standard error from the draw of the validation samples.
        exact: the exact value, if it was computed in addition to an estimate.
    """

    round: Ints
    asked: Ints
    client: Ints
    value: Floats
    error: Floats
    drawn: Floats
    exact: Floats


@dataclass(frozen=True)
class OwnTests:
    """What clients found on their own test shares after a round, ``[n]`` each.

    Attributes:
        clients: the clients' numbers.
        loss: mean loss.
        accuracy: 0 to 1. NaN: there is none.
        samples: how many test samples each client has. None: not recorded.
        error: the standard error of the loss. NaN: not recorded.
        main: the run's main metric. NaN: the client has none.
        gaps: why a client has no main metric. Empty: it has one.
        without: ``[n, B]``, the main metric without each block of the client's samples. None: not recorded.
        interval: ``[n, 2]``, the 95 % interval of the main metric. NaN: not known.
        units: how many units, such as patients, each client's test samples are of. None: each sample is one.
    """

    clients: Ints
    loss: Floats
    accuracy: Floats
    samples: Ints | None
    error: Floats
    main: Floats
    gaps: Sequence[str]
    without: Floats | None
    interval: Floats
    units: Ints | None = None


def is_under_way(config: Mapping[str, Any], seat: Seat) -> bool:
    """Say whether a seat's update may still join a later round. It then counts as late, not as refused, although
    ``seat.refused`` gives a reason.

    Args:
        config: the run's experiment, as in ``RunRecord.config``.
        seat: the seat.
    """
    return seat.refused == STILL and table(config, "federation").get("late") == "next"


def is_number(value: object) -> TypeGuard[int | float]:
    """Say whether this is a finite number of at most 64 bits."""
    if type(value) is float:  # most are
        return math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) if isinstance(value, float) else -(2**63) <= value < 2**63
