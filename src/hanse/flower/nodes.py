"""Names nodes, counts them, sends them messages, waits for their answers, and reads them.

Everything that talks to nodes goes through this module. That is hanse's own network (:mod:`hanse.flower.link`,
:mod:`hanse.flower.newcomers`), and a mechanism over plain Flower apps (:mod:`hanse.flower.existing_app`).

Answers are untrusted input, both from hanse's own app and from an app that was written without hanse. Anything that
does not fit raises :class:`hanse.federation.codec.WireError` with a reason, and :func:`read_safely` turns any other
exception into a refusal.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from logging import INFO
from typing import Any, ParamSpec, TypeVar

from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid
from flwr.supercore import log
from httpx import HTTPError

from hanse.base.plain_text import quantity
from hanse.core.declared import LARGEST_COUNT
from hanse.federation.check import one_line, reading
from hanse.federation.codec import WireError
from hanse.flower.message import QUERY
from hanse.flower.signing import sign
from hanse.ledger.note import PrivateKey

P = ParamSpec("P")
T = TypeVar("T")


def key_of(node: Any) -> str:
    """Return a node's identity, which lasts as long as its key: the SHA-256 of its public key, in hexadecimal digits.

    A node without a key (node authentication is off) is known by its id in Flower, as ``node-ID``.
    """
    public = bytes(getattr(node, "public_key", b"") or b"")
    return hashlib.sha256(public).hexdigest() if public else f"node-{node.node_id}"


def named(key: str, node: Any) -> str:
    """Return a node in words: its id, its key, and the name by which the operator registered it, if there is one.

    Args:
        key: the node's key (:func:`key_of`).
        node: the node's entry in Flower's ``Grid.get_nodes``.
    """
    name = str(getattr(node, "name", "") or "")
    return f"node {node.node_id} (key {key}" + (f", registered as '{one_line(name)}')" if name else ")")


def gathered(grid: Grid, clients: int | None) -> dict[str, Any]:
    """Wait until enough nodes are online, without a time limit, and return those that take part.

    Args:
        grid: Flower's connection to the nodes, or a :class:`hanse.flower.in_process.InProcessGrid`.
        clients: how many nodes take part. None: all that are online once there are at least two.

    Returns:
        The nodes by key (:func:`key_of`), in ascending order of their ids in Flower.
    """
    told = -1
    while True:
        here = {key_of(node): node for node in grid.get_nodes()}
        if len(here) >= (clients or 2):
            ordered = sorted(here.items(), key=lambda item: (int(item[1].node_id), item[0]))
            return dict(ordered[:clients])
        if len(here) != told:
            log(INFO, "Waiting for nodes: %s of %s are here", len(here), clients or 2)
            told = len(here)
        time.sleep(0.5)


def sent(grid: Grid, key: PrivateKey, records: Mapping[int, RecordDict], seconds: float, group: str) -> dict[int, str]:
    """Send a signed question to each of several nodes.

    Args:
        grid: Flower's connection to the nodes, or a :class:`hanse.flower.in_process.InProcessGrid`.
        key: the operator's key, which signs each question for its node.
        records: what to send, by node id.
        seconds: how long Flower accepts answers.
        group: a label that Flower keeps with the messages.

    Returns:
        Flower's id of the question by node id. A node is left out if Flower did not accept its question.
    """
    questions = [
        sign(FlowerMessage(content=content, dst_node_id=node, message_type=QUERY, ttl=seconds, group_id=group), key)
        for node, content in records.items()
    ]
    return {node: name for node, name in zip(records, grid.push_messages(questions), strict=False) if name}


def pulled(grid: Grid, ids: Sequence[str]) -> Iterator[tuple[str, FlowerMessage | Exception]]:
    """Yield the replies that have arrived, as ``(id of the question, reply)``.

    Flower parses replies while it fetches them. One node's malformed reply would therefore lose everybody's replies. In
    that case each reply is fetched separately, and an exception replaces the malformed one.

    Raises:
        HTTPError, OSError: the SuperLink itself does not answer, which is no node's fault.
    """
    try:
        replies = list(grid.pull_messages(ids))
    except (HTTPError, OSError):  # the SuperLink failed, not a node
        raise
    except Exception as wrong:
        if len(ids) == 1:
            yield ids[0], wrong
        else:
            for one in ids:
                yield from pulled(grid, [one])
    else:
        yield from ((reply.metadata.reply_to_message_id, reply) for reply in replies)


def pause(waited: float) -> None:
    """Sleep before the next look for answers: a twentieth of the seconds waited so far, from 20 ms to half a second."""
    time.sleep(min(0.5, max(0.02, waited / 20)))


def answers(grid: Grid, waiting: Mapping[str, T], seconds: float) -> Iterator[tuple[T, FlowerMessage | Exception]]:
    """Yield answers as they come, until all are in or ``seconds`` are over.

    Args:
        grid: Flower's connection to the nodes, or a :class:`hanse.flower.in_process.InProcessGrid`.
        waiting: what each question stands for, by Flower's id of the question. An answer to another question, or a
            second answer to the same question, is ignored.
        seconds: how long to wait.

    Yields:
        What the question stands for, and the answer (see :func:`pulled`).
    """
    left, begun = dict(waiting), time.monotonic()
    while left:
        for name, answer in pulled(grid, list(left)):
            if name in left:
                yield left.pop(name), answer
        waited = time.monotonic() - begun
        if waited > seconds:
            return
        if left:
            pause(waited)


# ---- what they answer


def read_safely(read: Callable[P, T | str], *args: P.args, **more: P.kwargs) -> T | str:
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
        answer: the answer, or the exception that was raised when it was read (:func:`pulled`).
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
        raise WireError(f"{quantity(len(found), 'record')} of {what}: must be one")
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
