"""What a payment rule was shown in a round, recorded so that an audit can call its ``settle`` again.

:class:`WatchedCall` calls a part's method with a view that notes which of its values are read. :func:`packed` turns
these notes into arrays of the round's record. Arrays that the record has anyway, such as values and weights, are named
and not written twice. Models are left out: of a model only its shape is kept. :class:`Shown` is a view that answers
from the notes, and raises :class:`NotRecordedError` for anything else.

What an audit knows by itself is not noted: the book, the round's transactions, and what the rule itself handed on.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from hanse.base.pytorch import Tensor, torch
from hanse.core import part, port, table
from hanse.core.part import Context, Judge, State, View
from hanse.runs.written import INSIDE, Reader, Writer

Arrays = Mapping[str, NDArray[Any]]
Method = Callable[[View, State], Any]

NAME = "settle_inputs"  # of the array with the notes as JSON; larger arrays follow as NAME_0, NAME_1, ...
KNOWN = frozenset({"context", "round", "stage", "book", "posted", "settlement", "found", "judge"})
NOTED = frozenset(f.name for f in dataclasses.fields(View)) - KNOWN | {"present"}
SMALL, MOST = 8, 256  # numbers of an array that stands in the JSON; numbers of a tensor that is kept
DENSE = 10**8  # the most numbers of an array that is recorded by its numbers other than zero, once it is read


class NotRecordedError(Exception):
    """A payment rule reads something that the record of its round does not have."""


@dataclass(frozen=True)
class SettleInputs:
    """What the settle part read in a round, which later calls find as ``view.get(SettleInputs)``.

    Attributes:
        calls: by call ("open", "close", "learn"): what was read, by name.
        own: the types of the values that the part itself handed on.
    """

    calls: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    own: frozenset[type] = frozenset()


class _Noting(View):
    """A view that notes what is read from it."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        notes = super().__getattribute__("__dict__").get("_notes")
        if notes is not None and name in NOTED:
            notes.setdefault(name, value)
        elif notes is not None and name == "judge":
            return _NotingJudge(value, notes)
        return value

    def get(self, kind: type[Any]) -> Any:
        """Return a value of this type that a part has passed on, and note it unless the rule did so itself."""
        value, own = super().get(kind), self.__dict__["_own"]
        if kind not in own:
            self.__dict__["_notes"].setdefault(_found(kind), value)
        return value

    @property
    def present(self) -> Any:
        """The ids of the present clients, without reading the roster."""
        return self.__dict__["roster"].ids


class _NotingJudge:
    """A judge that notes its answers, in their order."""

    def __init__(self, judge: Judge, notes: dict[str, Any]) -> None:
        self._judge, self._notes = judge, notes

    def __getattr__(self, name: str) -> Any:
        def asked(*given: Any, **options: Any) -> Any:
            answer = getattr(self._judge, name)(*given, **options)
            self._notes.setdefault("judge", []).append(answer)
            return answer

        return asked


class _NotingState(dict[str, Any]):
    """A state that notes which of its values are read one by one."""

    def __init__(self, state: State, notes: dict[str, Any]) -> None:
        super().__init__(state)
        self._notes = notes

    def __getitem__(self, name: str) -> Any:
        return self._notes.setdefault(name, super().__getitem__(name))


def _found(kind: type[Any]) -> str:
    return f"found {kind.__module__}.{kind.__qualname__}"


class WatchedCall:
    """Calls a method of the settle part, and keeps what it read.

    Args:
        method: the part's ``settle`` or ``learn``.
        alone: whether the part stands in no other slot. Its state then follows from its own calls, and is not noted.
    """

    def __init__(self, method: Method, alone: bool) -> None:
        self.__self__, self.__name__ = getattr(method, "__self__", method), getattr(method, "__name__", "")
        self._method, self._alone = method, alone
        self._notes: dict[str, Any] = {}

    def __call__(self, view: View, state: State) -> Any:
        """Call the method with a view and a state that note what is read."""
        before = view.get(SettleInputs) or SettleInputs()
        noting, read = object.__new__(_Noting), dict[str, Any]()
        noting.__dict__.update(view.__dict__, _notes=self._notes, _own=before.own)
        result = self._method(noting, state if self._alone else _NotingState(state, read))
        self._notes |= {f"state {name}": value for name, value in read.items()}
        return result

    def inputs(self, view: View, call: str, found: tuple[Any, ...] = ()) -> SettleInputs:
        """Return the round's inputs with those of this call.

        Args:
            view: the round.
            call: "open", "close" or "learn".
            found: what the part handed on.
        """
        before = view.get(SettleInputs) or SettleInputs()
        return SettleInputs({**before.calls, call: self._notes}, before.own | {type(one) for one in found})


def packed(inputs: SettleInputs | None, context: Context, arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return the inputs as arrays for the round's record; empty if nothing settles.

    Args:
        inputs: what was read.
        context: the run's; of it, the numbers of clients and rounds, the seed and the members are kept.
        arrays: the arrays that the record has anyway.
    """
    if inputs is None:
        return {}
    writer = _Writer(arrays, {context.layout.size, context.layout.num_parameters})
    run: dict[str, Any] = {"clients": context.num_clients, "rounds": context.rounds, "seed": context.seed}
    run |= {"members": context.members} if context.members else {}
    text = json.dumps({"run": run, "calls": writer.write(inputs.calls)}, separators=(",", ":"))
    return {NAME: np.frombuffer(text.encode(), np.uint8), **writer.arrays}


def by_value(arrays: Arrays) -> Arrays:
    """Return a record's arrays with a hash in place of the notes, which is that of what they say: what was one object
    in a simulation, such as the profiles of its clients, is several where answers are read back.
    """
    if NAME not in arrays:
        return arrays
    said, written = json.loads(arrays[NAME].tobytes()), list[str]()

    def print_of(value: Any) -> str:
        if isinstance(value, dict) and "$again" in value:
            return written[value["$again"]]
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        own = list(value) if isinstance(value, dict) else None if isinstance(value, list) else value
        found = hashlib.sha256(json.dumps([own, *map(print_of, inside)]).encode()).hexdigest()
        if isinstance(value, dict) and INSIDE.keys() & value:
            written.append(found)
        return found

    hashed = print_of(said["calls"]) + print_of(said["run"])
    return {**arrays, NAME: np.frombuffer(bytes.fromhex(hashed), np.uint8)}


class _Writer(Writer):
    """Writes values for a record; arrays that are not small go into ``arrays``, unless the record has them."""

    def __init__(self, arrays: Arrays, widths: set[int]) -> None:
        super().__init__()
        self._there = {_print(array): name for name, array in arrays.items()}
        self._widths = widths

    def tensor(self, tensor: Tensor) -> Any:
        """Return the numbers of a tensor, but only the shape of models."""
        if tensor.numel() > MOST or (tensor.ndim and tensor.shape[-1] in self._widths):
            return {"$model": [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]}
        return self.bits(tensor) or {"$tensor": self.array(tensor.detach().cpu().numpy())}

    def other(self, value: Any) -> Any:
        """Return the name of a type that is not recorded."""
        return {"$none": type(value).__name__}

    def array(self, array: NDArray[Any]) -> Any:
        """Return an array's numbers, or the name of the array that the record has of them."""
        if array.dtype.kind not in "biufcU":
            return {"$none": str(array.dtype)}
        if array.size <= SMALL and array.dtype.kind in "biuf":
            return {"$array": [array.dtype.str, list(array.shape), array.reshape(-1).tolist()]}
        if array.ndim == 2 and array.size > MOST and np.count_nonzero(array) * 3 < array.size:
            row, column = np.nonzero(array)
            parts = [self.array(one) for one in (row, column, array[row, column])]
            return {"$sparse": [array.dtype.str, list(array.shape), parts]}
        print_ = _print(array)
        if print_ not in self._there:
            name = f"{NAME}_{len(self.arrays)}"
            self.arrays[name] = np.ascontiguousarray(array)
            self._there[print_] = name
        return {"$record": self._there[print_]}


def _print(array: NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.str, array.shape, array.tobytes()


class RecordedInputs:
    """The inputs of a round as its record has them: makes the views that the payment rule was shown.

    Args:
        arrays: the round's arrays.
        slots: the mechanism's parts by slot.

    Attributes:
        context: the run's context as far as it is recorded.

    Raises:
        NotRecordedError: the record has no inputs.
    """

    def __init__(self, arrays: Arrays, slots: Mapping[str, Any]) -> None:
        if NAME not in arrays:
            raise NotRecordedError("what it was shown, as in runs of older versions")
        said, missing = json.loads(arrays[NAME].tobytes()), cast(Any, _Missing("context"))
        clients, rounds, seed = (int(said["run"][name]) for name in ("clients", "rounds", "seed"))
        members = said["run"].get("members", {})
        self.context = Context(clients, rounds, seed, missing, missing, missing, slots, members=members)
        self._reader, self._calls = _Reader(arrays, said["calls"]), dict(said["calls"]["$map"])

    def view(self, call: str | None, **known: Any) -> Shown:
        """Return the view of a call, from its notes and from what is known beside them; None: after the last round,
        from what is known alone.
        """
        if call is not None and call not in self._calls:
            raise NotRecordedError(call)
        notes = {} if call is None else dict(self._calls[call]["$map"])
        shown = object.__new__(Shown)
        shown.__dict__.update(known, context=self.context, _notes=notes, _read={}, _reader=self._reader)
        return shown

    @property
    def lacks(self) -> str:
        """What was asked for and the record does not have; "" if nothing was."""
        return ", ".join(dict.fromkeys(self._reader.asked))

    @property
    def size(self) -> float:
        """The sum of the absolute numbers of the array that was read with the largest such sum; 0 if none was."""
        return self._reader.size


class Shown(View):
    """A view made from a record. It raises NotRecordedError for what the record does not have."""

    def __getattribute__(self, name: str) -> Any:
        if name in NOTED:
            return super().__getattribute__("note")(name)
        if name == "judge":
            return _Answers(list(super().__getattribute__("note")(name)))
        return super().__getattribute__(name)

    def note(self, name: str, kind: type[Any] | None = None) -> Any:
        """Return what is noted under a name."""
        notes, read = self.__dict__["_notes"], self.__dict__["_read"]
        if name not in notes:
            raise NotRecordedError(name)
        if name not in read:
            read[name] = self.__dict__["_reader"].read(notes[name], kind)
        return port.Roster(read[name]) if name == "roster" else read[name]

    def get(self, kind: type[Any]) -> Any:
        """Return what was passed on of this type: by the rule itself, or as it is noted."""
        return self.__dict__["found"][kind] if kind in self.__dict__["found"] else self.note(_found(kind), kind)

    def state(self) -> dict[str, Any]:
        """Return the part's state as far as the call read it."""
        names = [name for name in self.__dict__["_notes"] if name.startswith("state ")]
        return {name.removeprefix("state "): self.note(name) for name in names}


class _Answers:
    """A judge that gives the noted answers, in their order."""

    def __init__(self, answers: list[Any]) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **options: self._answers.pop(0)


class _Missing:
    """Stands where a record has nothing. Whatever is asked of it raises NotRecordedError."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        raise NotRecordedError(f"{self._name}.{name}")


class _Model(_Missing, NDArrayOperatorsMixin):
    """A model, or several, of which the record has the shape alone. Whatever asks for numbers raises NotRecordedError,
    and is noted in ``asked``, since libraries turn what such a question raises into errors of their own. Rows can be
    taken, as a rule does that has the judge score them, whose answers are recorded.
    """

    def __init__(self, shape: tuple[int, ...], asked: list[str]) -> None:
        super().__init__("models")
        self.shape, self.ndim, self._asked = shape, len(shape), asked

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, tuple) or self.ndim < 2:
            return self._unknown()
        return _Model((*np.broadcast_to(False, self.shape[:1])[at].shape, *self.shape[1:]), self._asked)

    @classmethod
    def __torch_function__(cls, *given: Any, **options: Any) -> Any:
        raise NotRecordedError("models")

    def _unknown(self, *given: Any, **options: Any) -> Any:
        self._asked.append("models")
        raise NotRecordedError("models")

    __array__ = __array_ufunc__ = __float__ = __int__ = __bool__ = _unknown


class _Reader(Reader):
    """Reads what :class:`_Writer` wrote. A class is looked up by its name, and only among dataclasses of the port, of
    the decisions, and of the module of the type that the part asks for.
    """

    def __init__(self, arrays: Arrays, calls: Any) -> None:
        super().__init__(calls, arrays)
        self.asked, self.size = list[str](), 0.0

    def read(self, value: Any, kind: type[Any] | None = None) -> Any:
        """Return the value that was written, and note how large its numbers are."""
        found = super().read(value, kind)
        if isinstance(found, int | float | np.ndarray) and (numbers := np.asarray(found)).dtype.kind in "iuf":
            sizes = np.abs(numbers.astype(np.float64))
            self.size = max(self.size, float(sizes[np.isfinite(sizes)].sum()))
        return found

    def leaf(self, tag: str, said: Any) -> Any:
        """Return an array or a tensor, or what stands for a model or for what was not recorded."""
        match tag:
            case "$record":
                return self.arrays[said]
            case "$array":
                dtype, shape, numbers = said
                return np.array(numbers, dtype).reshape(shape)
            case "$sparse":
                dtype, shape, (row, column, numbers) = said
                if math.prod(shape) > DENSE:
                    raise NotRecordedError(f"an array of {shape}, which takes too much memory")
                array = np.zeros(shape, dtype)
                array[self.read(row), self.read(column)] = self.read(numbers)
                return array
            case "$tensor":
                return torch.from_numpy(np.array(self.read(said)))
            case "$model":
                return _Model(tuple(said[1]), self.asked)
            case "$bits":
                return super().leaf(tag, said)
        return _Missing(str(said))

    def made(self, name: str, fields: dict[str, Any], kind: type[Any] | None) -> Any:
        """Return an object of the class of this name, or of none with these fields."""
        modules = [vars(sys.modules[kind.__module__])] if kind else []
        for names in (*modules, vars(port), vars(table), vars(part)):
            if is_dataclass(names.get(name)):
                known = {one.name for one in dataclasses.fields(names[name])}  # an older version's may have had more
                return names[name](**{one: value for one, value in fields.items() if one in known})
        return SimpleNamespace(**fields)
