"""Checks clients' replies. Unsound ones are refused with a reason, and are never mixed and never paid.

Replies are untrusted input. :func:`heard` takes all replies of an exchange. It returns the sound ones, and the reasons
for refusing the others. :func:`refusal` checks one reply against its declared types (:mod:`hanse.core.port`) and then
against its request. Every engine uses only this check. After it, nothing that a client sent can raise an exception.
:func:`room` limits the size to which a reply may expand, before it is unpacked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from hanse.base.plain_text import quantity
from hanse.base.pytorch import Tensor, torch
from hanse.core import port
from hanse.core.declared import Declared, UnsoundError
from hanse.data.commitment import num_shown
from hanse.federation.codec import Room, WireError
from hanse.federation.mask_steps import SAID, num_words
from hanse.federation.policy import ANSWERS
from hanse.learning.intervals import BLOCKS, UNITS

log = logging.getLogger("hanse.federation")

# the largest norm of an update: products of two such models, and of their differences, are finite in float32
LONGEST = 1e18
# classes in the confusion counts that a client may send
CLASSES = 1024
# metrics that a test may report
METRICS = 64
# characters of a reason
LINE = 200
# characters of a reply's header besides 512 for each model or task
HEADER = 1 << 18

_REPLY = Declared[port.Reply](port.Reply)
_EXTRAS = Declared[Mapping[str, Tensor]](Mapping[str, port.Counts])
_KIND: Mapping[type[port.Question], type[port.Answer]] = {
    port.Score: port.Scored,
    port.Nearest: port.Counted,
    port.Gradient: port.Derived,
    port.Confusion: port.Confused,
    port.Ask: port.Answered,
    port.Test: port.Tested,
    port.CommitSize: port.SizeCommitted,
    port.AuditSize: port.SizeAudited,
    port.Mask: port.Masked,
}


def heard(
    round: int, requests: Sequence[port.Request], replies: Sequence[port.Reply], roster: port.Roster
) -> tuple[dict[int, port.Reply], list[tuple[int, str]]]:
    """Return the sound replies of an exchange, and why the others are refused.

    Refusals are logged with the client's name and key.

    Args:
        round: the round, for the log.
        requests: what was asked.
        replies: what came back; if a client replies twice, the first sound reply counts.
        roster: the present clients, for their names.

    Returns:
        Two results: the sound replies by client, ascending; and ``(client, reason)`` of refused replies, and of clients
        that were asked and did not reply.
    """
    asked = {r.client: r for r in requests}
    sound: dict[int, port.Reply] = {}
    refusals: list[tuple[int, str]] = []
    # by client: in which order they arrived makes no difference
    for reply in sorted(replies, key=lambda r: r.client):
        client = reply.client
        if client not in asked:
            reason: str | None = "was not asked"
        else:
            reason = "answered twice" if client in sound else refusal(asked[client], reply)
        if reason is None:
            sound[client] = reply
        else:
            refusals.append((client, reason))
    spoke = {reply.client for reply in replies}
    refusals += [(c, "no reply") for c in asked if c not in spoke]
    # a client that still trains has not been refused
    waited = {reply.client for reply in replies if isinstance(reply.arrival, port.Arrival) and reply.arrival.open}
    for client, reason in refusals:
        info = roster.by_id.get(client)
        who = "not in the round" if info is None else f"{one_line(info.name)}, key {info.key}"
        log.info("round %d: client %d (%s): %s%s", round, client, who, "" if client in waited else "refused: ", reason)
    return sound, refusals


def refusal(request: port.Request, reply: port.Reply) -> str | None:
    """Return why a reply to ``request`` must be refused, or None if the reply is sound.

    Any exception raised while reading the reply becomes the reason.

    Args:
        request: what the client was asked.
        reply: what came back; nothing in it is trusted.
    """
    try:
        _REPLY.check(reply)
        reason = reply.refused if reply.refused is not None else _mismatch(request, reply)
        return None if reason is None else one_line(reason)
    except Exception as wrong:  # of whatever class: it was raised by what a client sent
        return reading(wrong)


def reading(wrong: Exception) -> str:
    """Return the reason of a refusal for an exception that reading a client's bytes or values raised.

    An unexpected exception is logged with its traceback, since it may be a bug in hanse.
    """
    if isinstance(wrong, UnsoundError | WireError):
        return one_line(str(wrong))
    log.warning("a client's reply cannot be read", exc_info=wrong)
    return one_line(f"cannot be read: {type(wrong).__name__}: {wrong}")


def one_line(text: str) -> str:
    """Return a client's text as one short line of printable characters, which cannot forge a log line."""
    return "".join(c if c.isprintable() else "?" for c in text[:LINE])


def room(request: port.Request) -> Room:
    """Return the largest size of a sound reply to a request.

    The size has the bytes of the requested tensors, and the characters of a header with a hash for each model.
    """
    rows = sum(len(t.models) if isinstance(t, port.OnModels) else 1 for t in request.tasks)
    return Room(sum(_tensors(t) for t in request.tasks), HEADER + 512 * rows)


def _tensors(task: port.Task) -> int:
    """Return the most bytes that the tensors of a sound answer to a task have."""
    match task:
        case port.Train():
            counts = 0 if task.payload is None else task.payload.classes
            return task.start.nbytes + 8 * counts
        case port.AuditSize():
            return 32 * num_shown(task.size, task.leaves)
        case port.Mask():
            return 8 * num_words(task)
        case port.Test():
            return 8 * (BLOCKS + 2)  # a figure without each block, and the ends of its interval
        case port.Gradient():
            return task.models.nbytes
        case port.OnModels():
            return 8 * len(task.models) * (CLASSES**2 if isinstance(task, port.Confusion) else 2)
    return 0


def _mismatch(request: port.Request, reply: port.Reply) -> str | None:
    """Return why the results do not fit the tasks, or None."""
    if len(reply.results) != len(request.tasks):
        return f"{quantity(len(reply.results), 'result')} for {quantity(len(request.tasks), 'task')}"
    for task, result in zip(request.tasks, reply.results, strict=True):
        reason = _training(task, result) if isinstance(task, port.Train) else _answer(task, result)
        if reason is not None:
            return reason
    return None


def _training(task: port.Train, result: port.Result) -> str | None:
    """Return what is wrong with a seat's update: its seat, shape, type, size, or extras; None if it is sound."""
    if not isinstance(result, port.Trained) or result.seat != task.seat:
        return f"no update for seat {task.seat}"
    if result.row.shape != task.start.shape:
        return f"update of shape {tuple(result.row.shape)} instead of {tuple(task.start.shape)}"
    if result.row.dtype != torch.float32:
        return f"update of type {result.row.dtype} instead of float32"
    # NaN and infinite entries show in the norm, as does a sum of squares that overflows: a sound row costs one pass
    norm = float(torch.linalg.vector_norm(result.row))
    if not norm <= LONGEST:
        if not bool(torch.isfinite(result.row).all()):
            return "update has NaN or infinite entries"
        return f"update of norm {float(torch.linalg.vector_norm(result.row.double())):.3g}: at most {LONGEST:g}"
    due = {} if task.payload is None else {port.MET: task.payload.classes}
    found = {name: len(counts) for name, counts in _EXTRAS.check(result.extras).items()}
    return None if found == due else f"extras {found}: must be {due}"


def _answer(task: port.Question, result: port.Result) -> str | None:
    """Return what is wrong with the answer to a question: its kind, its name, its shapes; None if it is sound."""
    if isinstance(result, port.Trained) or not isinstance(result, _KIND[type(task)]) or result.name != task.name:
        return f"no answer to '{task.name}'"
    match task, result:
        case port.Ask(), port.Answered():
            if task.name in ANSWERS:
                ANSWERS[task.name].check(dict(result.values))
        case port.Test(), port.Tested():
            return _tested(task, result)
        case port.Mask(), port.Masked():
            SAID[task.name].check(dict(result.values))
            many, due = len(result.words), num_words(task)
            return None if many == due else f"{quantity(many, 'word')} under masks: must be {due}"
        case port.AuditSize(), port.SizeAudited():
            shown = num_shown(task.size, task.leaves)
            return None if len(result.hashes) == 4 * shown else f"hashes: {len(result.hashes) / 4:g}: must be {shown}"
        case port.OnModels(), _:
            return _on_models(task, result)
    return None


def _on_models(task: port.OnModels, result: port.Answer) -> str | None:
    """Return which tensor of an answer about models has another shape than it should, or None."""
    models = task.models
    for name, tensor in vars(result).items():
        if not isinstance(tensor, Tensor):
            continue
        shape = tuple(tensor.shape)
        if isinstance(task, port.Gradient):
            fits = (shape, tensor.dtype) == (tuple(models.shape), models.dtype)
        elif isinstance(task, port.Confusion):
            fits = shape == (len(models), *shape[1:2] * 2) and shape[1] <= CLASSES
        else:
            fits = shape == (len(models),)
        if not fits:
            return f"{shape} {name} of type {tensor.dtype} for {quantity(len(models), 'model')}"
    return None


def _tested(task: port.Test, result: port.Tested) -> str | None:
    """Return what is wrong with a test's result, or None."""
    if result.weights is not None:
        return "weights of its own that nobody asked for"
    if (result.loss is None) != (result.num_samples == 0):
        return f"a test on {quantity(result.num_samples, 'sample')} with loss {result.loss}"
    if result.accuracy_beside is not None and task.beside is None:
        return "an accuracy that was not asked for"
    if len(result.metrics) + len(result.gaps) > METRICS:
        return f"{len(result.metrics) + len(result.gaps)} metrics; at most {METRICS}"
    if not 0 <= result.metrics.get(UNITS, 0) <= result.num_samples:
        return f"a test on {quantity(result.num_samples, 'sample')} of {result.metrics[UNITS]:g} units"
    if result.without_block is not None and len(result.without_block) > BLOCKS:
        return f"a metric without {len(result.without_block)} blocks; at most {BLOCKS}"
    if result.interval is not None and len(result.interval) != 2:
        return f"an interval of {quantity(len(result.interval), 'number')}; must be 2"
    return None
