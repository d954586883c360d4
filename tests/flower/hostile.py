"""A hostile client for tests: real messages of ours, changed in every way that came to mind, seeded."""

import copy
import io
import json
import math
import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

DEEP = object()  # stands for a list nested 100,000 deep, which no JSON library writes
HUGE = object()  # an integer of 5,000 digits
LONG = object()  # one of 401
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 5, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**30, 0.5, -1.0, -0.0, 1e18, 1e60,
    1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf, "", "x", "3", "NaN", "\x00", "\ud800", "a" * 100_000, [],
    [[]], [1, 2, 3], {}, {"$map": []}, {"$map": [[1]]}, {"$map": [["a", 1], ["a", [2]]]}, {"$map": 5},
    {"$kind": "Reply", "fields": {"client": 1}}, {"$kind": "Answered", "fields": {"name": "x", "values": 5}},
    {"$kind": "Payload", "fields": {}}, {"$kind": "Popen", "fields": {}}, {"$kind": ["Reply"], "fields": {}},
    {"$kind": "Generator", "fields": {"classes": 10**9, "latent": 10**9}}, {"$kind": "Reply"},
    {"$tensor": [], "dtype": "float32", "shape": []}, {"$tensor": 5}, {"$tensor": ["nobody"], "dtype": "float32",
    "shape": [3]}, {"$tensor": [], "dtype": "float64", "shape": [0, 2**60]},
    {"$tensor": [], "dtype": "int64", "shape": [2**40]}, DEEP, HUGE, LONG, [{}], [[1, 2], "x"],
]  # fmt: skip
NUMBERS = [math.nan, math.inf, -math.inf, 3e38, -3e38, 1e18, 1e30, -1.0, 5.0, 1e-45, 0.0]


def written(header: Any) -> str:
    """Return a header as JSON, with what JSON libraries do not write."""
    marks = {DEEP: "[" * 100_000 + "]" * 100_000, HUGE: "9" * 5000, LONG: "1" + "0" * 400}

    def plain(value: Any) -> Any:
        for i, mark in enumerate(marks):
            if value is mark:
                return f"<mark {i}>"
        if isinstance(value, Mapping):
            return {k: plain(v) for k, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, list) else value

    text = json.dumps(plain(header), separators=(",", ":"))
    for i, mark in enumerate(marks.values()):
        text = text.replace(f'"<mark {i}>"', mark)
    return text


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to everything in a header."""
    yield path
    if isinstance(value, Mapping | list):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from places(inner, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return ``value`` with ``new`` at a path."""
    if not path:
        return new
    made = copy.copy(value)
    made[path[0]] = put(value[path[0]], path[1:], new)
    return made


class Parts:
    """A message taken apart: header, arrays as bytes, and what stands beside it."""

    def __init__(self, records: RecordDict) -> None:
        beside = dict(records["hanse"])
        self.header: Any = json.loads(str(beside.pop("header")))
        self.beside: dict[str, Any] = beside
        self.arrays = {name: (a.dtype, tuple(a.shape), a.data) for name, a in records["arrays"].items()}
        self.text: str | None = None

    def records(self) -> RecordDict:
        text = written(self.header) if self.text is None else self.text
        arrays = {n: Array(d, s, "numpy.ndarray", b) for n, (d, s, b) in self.arrays.items()}
        return RecordDict({"hanse": ConfigRecord({"header": text, **self.beside}), "arrays": ArrayRecord(arrays)})


Change = Callable[[random.Random, Parts], Any]


def any_value(draw: random.Random, parts: Parts) -> None:
    """Another value somewhere in the header."""
    parts.header = put(parts.header, draw.choice(list(places(parts.header))), draw.choice(VALUES))


def a_field(draw: random.Random, parts: Parts) -> None:
    """Another value in a field of the reply, or of one of its results."""
    fields = [p for p in places(parts.header) if len(p) > 1 and p[-2] == "fields"]
    if fields:
        parts.header = put(parts.header, draw.choice(fields), draw.choice(VALUES))


def a_number(draw: random.Random, parts: Parts) -> None:
    """A number of the right type that nobody has."""

    def at(path: tuple[Any, ...]) -> Any:
        value = parts.header
        for key in path:
            value = value[key]
        return value

    found = [p for p in places(parts.header) if type(at(p)) in (int, float)]
    if found:
        parts.header = put(parts.header, draw.choice(found), draw.choice([*NUMBERS, 2**53, 10**17, -7, 10**400]))


def an_answer(draw: random.Random, parts: Parts) -> None:
    """Another answer of the policy."""
    maps = [p for p in places(parts.header) if p and p[-1] == "$map"]
    keys = ("tiers", "stay", "cost", "eagerness", "loss", "accuracy", "num_samples", "label_counts")
    if maps:
        parts.header = put(parts.header, draw.choice(maps), [[draw.choice(keys), draw.choice(VALUES)]])


def authority(draw: random.Random, parts: Parts) -> None:
    """What it authorises, why it refuses, whose reply it is."""
    name = draw.choice(["authorise", "refused", "client", "bytes_up", "bytes_down"])
    if isinstance(parts.header, dict) and "fields" in parts.header:
        parts.header["fields"][name] = draw.choice(VALUES)


def results(draw: random.Random, parts: Parts) -> None:
    """Results left out, doubled, in another order."""
    if isinstance(parts.header, dict) and "fields" in parts.header:
        had = parts.header["fields"]["results"]
        parts.header["fields"]["results"] = draw.choice([had * 2, had[:-1], had[::-1], had * 300, 5, None])


def numbers(draw: random.Random, parts: Parts) -> None:
    """Arrays of the right form with numbers that break what comes after."""
    for name, (dtype, shape, data) in list(parts.arrays.items()):
        array = np.load(io.BytesIO(data)).copy()
        flat = array.reshape(-1)
        if flat.size:
            with np.errstate(all="ignore"):
                value = np.array(draw.choice(NUMBERS)).astype(flat.dtype)
                flat[draw.randrange(flat.size) if draw.random() < 0.5 else slice(None)] = value
        parts.arrays[name] = (dtype, shape, saved(array))


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def form(draw: random.Random, parts: Parts) -> None:
    """An array of another type or shape."""
    if not parts.arrays:
        return
    name = draw.choice(sorted(parts.arrays))
    dtype, shape, data = parts.arrays[name]
    array = np.load(io.BytesIO(data))
    with np.errstate(all="ignore"):
        made = draw.choice([
            lambda: array.astype(np.float64), lambda: array.astype(np.int64), lambda: array.astype(np.float16),
            lambda: array.astype(">f4"), lambda: array.astype("U4"), lambda: array.astype("S4"),
            lambda: array.astype("c8"), lambda: np.zeros(array.shape, "M8[s]"), lambda: np.zeros(array.shape, "V8"),
            lambda: array[: len(array) // 2], lambda: np.concatenate([array, array]), lambda: array[None],
            lambda: np.asfortranarray(np.tile(array, (3, 1))), lambda: np.zeros(0, array.dtype), lambda: np.float32(1),
            lambda: np.array([{}, []], dtype=object),
        ])()  # fmt: skip
    parts.arrays[name] = (dtype, shape, saved(made))


def npy(descr: str, shape: str, body: bytes = b"") -> bytes:
    """Return a .npy file whose header says what it likes."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3))
    return file.getvalue()


FILES: Mapping[str, bytes] = {
    "empty": b"",
    "PK": b"PK\x03\x04 and nothing of it",
    "an npz": npz(),
    "4 PiB": npy("'<f4'", "(1125899906842624,)"),
    "many dimensions": npy("'<f4'", "(" + "1," * 4000 + ")", bytes(4)),
    "negative": npy("'<f4'", "(-1, -4)", bytes(16)),
    "a record": npy("[('a', '<f4', (1000000,))]", "(1,)"),
    "deep": npy("[" * 3000 + "]" * 3000, "(1,)"),
    "no dictionary": b"\x93NUMPY\x01\x00\x10\x00__import__('os')",
    "another version": b"\x93NUMPY\x03\x00" + bytes(64),
    "a pickle": pickle.dumps(print),
    "objects": saved(np.array([print], dtype=object)),
}


def bytes_of(draw: random.Random, parts: Parts) -> None:
    """Bytes that are no array of ours."""
    if parts.arrays:
        name = draw.choice(sorted(parts.arrays))
        dtype, shape, data = parts.arrays[name]
        at = draw.randrange(len(data))
        flipped = data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
        parts.arrays[name] = (dtype, shape, draw.choice([*FILES.values(), data[:at], flipped, flipped]))


def repeats(draw: random.Random, parts: Parts) -> None:
    """One array named many times."""
    hashes = [p for p in places(parts.header) if p and p[-1] == "$tensor"]
    if hashes and parts.arrays:
        path, count = draw.choice(hashes), draw.choice([2, 1000, 20_000])
        parts.header = put(parts.header, path, [draw.choice(sorted(parts.arrays))] * count)
        if draw.random() < 0.5:
            parts.header = put(parts.header, (*path[:-1], "shape"), [count, 3])


def beside(draw: random.Random, parts: Parts) -> None:
    """Other values beside the message."""
    value = draw.choice([5, -1, 2.5, True, "x", "y" * 200_000, b"bytes", [], [1, 2], ["a"] * 1000, [math.nan]])
    parts.beside[draw.choice(["round", "refused", "missing", "hello", "shell", "kind"])] = value


def text(draw: random.Random, parts: Parts) -> None:
    """A header that is no header."""
    had = written(parts.header)
    at = draw.randrange(len(had))
    junk = ["", "null", "[]", "{", "x", "[" * 100_000, '"' + "a" * 300_000 + '"', "[" + "[]," * 90_000 + "[]]", "1e999"]
    parts.text = draw.choice([*junk, had[:at], had[:at] + draw.choice('0x"[]{},:-') + had[at + 1 :]])


CHANGES: Mapping[str, Change] = {
    change.__name__: change
    for change in (
        any_value, a_field, a_field, a_number, an_answer, authority, results, numbers, form, bytes_of, repeats, beside,
        text,
    )
}  # fmt: skip


def without(draw: random.Random, records: RecordDict) -> RecordDict:
    """Return records of which one is missing, or another one's."""
    kept = {name: record for name, record in records.items() if name != draw.choice(["hanse", "arrays"])}
    if draw.random() < 0.5:
        kept = {"hanse": records["arrays"], "arrays": records["hanse"]}
    return RecordDict(kept)


def changed(draw: random.Random, records: RecordDict) -> tuple[RecordDict, str]:
    """Return a message changed once or twice, and how."""
    if draw.random() < 0.03:
        return without(draw, records), "without"
    names = [draw.choice(list(CHANGES)) for _ in range(draw.choice([1, 1, 2]))]
    parts = Parts(records)
    for name in names:
        with suppress(Exception):  # the first change left nothing to change
            CHANGES[name](draw, parts)
    return parts.records(), "+".join(names)
