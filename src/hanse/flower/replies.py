"""Reads nodes' answers: whether an app failed, and the records of its reply.

Answers are untrusted input, both from hanse's own app and from an app that was written without hanse. Anything that
does not fit raises :class:`hanse.federation.codec.WireError` with a reason, and :func:`guarded` turns any other
exception into a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage

from hanse.core.declared import LARGEST_COUNT
from hanse.federation.check import one_line, reading
from hanse.federation.codec import WireError

P = ParamSpec("P")
T = TypeVar("T")


def guarded(read: Callable[P, T | str], *args: P.args, **more: P.kwargs) -> T | str:
    """Return what ``read`` returns. Whatever it raises becomes the reason of a refusal.

    Everything that a node sends is read under this guard.
    """
    try:
        return read(*args, **more)
    except Exception as wrong:  # MemoryError and RecursionError too
        return reading(wrong)


def content_of(answer: FlowerMessage | Exception, who: str) -> RecordDict:
    """Return the records of an answer.

    Args:
        answer: the answer, or the exception that was raised when it was read (:func:`hanse.flower.nodes.pulled`).
            The exception is raised again.
        who: the name of what failed if the answer is an error, such as "its app".

    Raises:
        WireError: the answer is an error. The message has its reason, or Flower's code if it has none.
    """
    if isinstance(answer, Exception):
        raise answer
    if answer.has_error():
        raise WireError(one_line(f"{who} failed: {answer.error.reason or f'code {answer.error.code}'}"))
    return answer.content


def arrays_of(content: RecordDict) -> ArrayRecord:
    """Return the one ArrayRecord of a reply.

    Raises:
        WireError: there is none, or more than one.
    """
    return _only(list(content.array_records.values()), "arrays")


def metrics_of(content: RecordDict) -> MetricRecord:
    """Return the one MetricRecord of a reply.

    Raises:
        WireError: there is none, or more than one.
    """
    return _only(list(content.metric_records.values()), "metrics")


def _only(found: Sequence[T], what: str) -> T:
    """Return the one record of a kind. Raises WireError for none or more."""
    if len(found) != 1:
        raise WireError(f"{len(found)} records of {what}: must be one")
    return found[0]


def samples_of(metrics: MetricRecord, by: str) -> float | None:
    """Return the number of samples by which a reply is weighted.

    Args:
        metrics: the reply's metrics.
        by: the name of the metric that holds the number, ``"num-examples"`` in Flower's own strategies.

    Returns:
        The number, from 0 to ``LARGEST_COUNT`` (2**53), or None if there is no metric of that name.

    Raises:
        WireError: the metric is a list, negative, not finite or too large. The message begins with the metric's name.
    """
    if by not in metrics:
        return None
    found = numbers_of(metrics).get(by)
    if found is None or not 0 <= found <= LARGEST_COUNT:
        raise WireError(f"{by!r} is {metrics[by]!r:.60}: must be a number from 0 to {LARGEST_COUNT:.0e}")
    return found


def numbers_of(metrics: MetricRecord) -> dict[str, float]:
    """Return the metrics that are single numbers, as floats; lists are left out."""
    return {str(name): float(x) for name, x in metrics.items() if isinstance(x, int | float)}
