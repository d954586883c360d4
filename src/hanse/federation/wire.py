"""What requests and replies would weigh on a network: each model once a round and client, private rows never."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hanse.core.payload import Payload
from hanse.core.port import Request, Result, Task, Train, Trained

__all__ = ["Wire"]


@dataclass
class Wire:
    """Counts bytes. A model that a client was sent in this round is not counted again, however many tasks name it."""

    _round: int = -1
    _sent: dict[int, set[tuple[int, int]]] = field(default_factory=dict)
    _alive: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # so that no place is used twice in a round

    def down(self, round: int, request: Request) -> int:
        """Return the bytes of the tensors that the client does not have yet."""
        if round != self._round:
            self._round, self._sent, self._alive = round, {}, {}
        held = self._sent.setdefault(request.client, set())
        count = 0
        for tensor in _sent_down(request.tasks):
            for model in tensor if tensor.ndim == 2 else (tensor,):
                key = (model.data_ptr(), model.numel())
                if key not in held:
                    held.add(key)
                    self._alive.setdefault(key, model)
                    count += model.numel() * model.element_size()
        return count

    @staticmethod
    def up(request: Request, results: Sequence[Result]) -> int:
        """Return the bytes of the results' tensors, without updates of private rows."""
        private = {t.seat for t in request.tasks if isinstance(t, Train) and t.private}
        sent = [r for r in results if not (isinstance(r, Trained) and r.seat in private)]
        return sum(t.numel() * t.element_size() for r in sent for t in _tensors(vars(r).values()))


def _sent_down(tasks: Iterable[Task]) -> Iterable[Tensor]:
    for task in tasks:
        own = task.start if isinstance(task, Train) and task.private else None
        yield from (t for t in _tensors(vars(task).values()) if t is not own)


def _tensors(values: Iterable[object]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Payload):
            yield from value.tensors.values()
        elif isinstance(value, Mapping):  # the extras of an update
            yield from _tensors(value.values())
