"""Replies that are small on the wire and would be large in memory; run as a program, prints what each one took."""

import json
import resource
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from hostile import npy
from inprocess import KEY, InProcessGrid

from hanse.core.port import Call, Reply, Request, Train, Trained
from hanse.federation.codec import hash_of, pack
from hanse.flower.link import FlowerFederation
from hanse.flower.members import Member, Members
from hanse.flower.message import to_records

P = 1 << 18  # a model of 1 MB
ROW = np.arange(P, dtype=np.float32)
NAME = hash_of(ROW)


def trained(**more: Any) -> Any:
    fields = {"seat": 0, "row": named(1, [P]), "num_samples": 1.0, "loss": 0.5, "steps": 1, "extras": {"$map": []}}
    return {"$kind": "Trained", "fields": fields | more}


def records(results: Any, arrays: Mapping[str, np.ndarray] | None = None, **beside: Any) -> RecordDict:
    header = results if isinstance(results, str) else json.dumps(
        {"$kind": "Reply", "fields": {"client": 0, "results": results}}
    )  # fmt: skip
    made = {name: Array(array) for name, array in (arrays or {NAME: ROW}).items()}
    return RecordDict({"hanse": ConfigRecord({"header": header, "round": 0} | beside), "arrays": ArrayRecord(made)})


def named(times: int, shape: list[int]) -> dict[str, Any]:
    return {"$tensor": [NAME] * times, "dtype": "float32", "shape": shape}


def file(data: bytes) -> RecordDict:
    made = records([trained()])
    made["arrays"] = ArrayRecord({NAME: Array("float32", (P,), "numpy.ndarray", data)})
    return made


BOMBS: dict[str, Callable[[], RecordDict]] = {
    "one array named 20,000 times": lambda: records([trained(row=named(20_000, [20_000 * P]))]),
    "a declared shape of 4 PiB": lambda: records([trained(row=named(1, [2**50]))]),
    "a file that declares 2 GB": lambda: file(npy("'<f4'", "(500000000,)", bytes(1 << 20))),
    "a small array named a million times": lambda: records(
        [trained(row={"$tensor": ["a"] * 1_000_000, "dtype": "float32", "shape": [1_000_000]})],
        {"a": np.zeros(1, np.float32)},
    ),
    "a thousand extras": lambda: records([trained(extras={"$map": [[str(i), named(1, [P])] for i in range(1000)]})]),
    "a million results": lambda: records([5] * 1_000_000),
    "a million lists": lambda: records("[" + "[]," * 1_000_000 + "[]]"),
    "many integers of 4,000 digits": lambda: records("[" + ",".join(["9" * 4000] * 60) + "]"),
    "long keys around wrong values": lambda: records(
        [trained(extras={"$map": [["k" * 120_000, {"$map": [[str(i), 5] for i in range(10_000)]}]]})]
    ),
    "a reason of ten million letters": lambda: records([trained()], refused="x" * 10_000_000),
    "missing arrays without end": lambda: records([trained()], missing=["x"] * 1_000_000),
    "an array of 16 MB that nobody asked for": lambda: records([trained()], {NAME: np.zeros(4 << 20, np.float32)}),
}


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Print, as JSON, by how many bytes each bomb raised the peak above that of sound replies, and its refusal."""
    given: list[RecordDict] = []  # what the node answers next, and keeps no longer
    grid = InProcessGrid({7: lambda message, context: Message(given.pop(), reply_to=message)})
    key = sha256(b"key 7").hexdigest()
    member = Member(5, (3,), 2, "node", tests=1, id=0, key=key)
    federation = FlowerFederation(grid, Members(None, {key: member}), KEY, deadline_s=10.0, capacity=1)
    assert federation.present(0).ids.tolist() == [0]
    request = Request(0, (Train(0, 0, torch.from_numpy(ROW)),))

    def answered() -> Reply:
        [reply] = federation.exchange(Call(0, [request], 10.0))
        return reply

    update = Trained(0, torch.from_numpy(ROW), 1.0, 0.5, 1)
    for _ in range(3):
        given.append(to_records(pack(Reply(0, (update,))), round=0))
        assert answered().refused is None
    found = {}
    for name, make in BOMBS.items():
        given.append(make())
        before = peak()
        refused = answered().refused
        found[name] = (peak() - before, refused)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
