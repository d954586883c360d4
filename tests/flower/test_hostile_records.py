"""Flower's records from a hostile node: arrays that are none, replies that would fill the memory."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hostile import FILES

from hanse.federation.codec import Message, WireError
from hanse.flower.arrays import ArrayLayout
from hanse.flower.message import from_records, said_beside, to_records

MODEL = 1 << 20  # bytes of the model in bombs.py


def with_file(data: bytes) -> RecordDict:
    arrays = ArrayRecord({"a": Array("float32", (1,), "numpy.ndarray", data)})
    return RecordDict({"hanse": ConfigRecord({"header": "null"}), "arrays": arrays})


@pytest.mark.slow
def test_replies_that_are_small_on_the_wire_stay_small_in_memory() -> None:
    program = Path(__file__).parent / "bombs.py"
    calm = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True, env=calm)
    found = json.loads(done.stdout)
    assert len(found) == 12
    assert [name for name, (_, refused) in found.items() if not refused] == []
    # each raised the peak above that of all before it: together they stay within the bound of one
    assert sum(taken for taken, _ in found.values()) <= 3 * MODEL + 100e6, found


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_array_of_ours_is_refused(name: str) -> None:
    with pytest.raises(WireError, match="array cannot"):
        from_records(with_file(FILES[name]))


@pytest.mark.parametrize("name", FILES)
def test_a_plain_apps_file_of_another_size_than_it_claims_is_refused(name: str) -> None:
    """The same guard as for hanse's own messages; what only these refuse is an array of another shape here."""
    form = ArrayLayout.of(ArrayRecord({"a": Array(np.zeros((1,), np.float32))}))
    with pytest.raises(WireError, match="array 'a'"):
        form.row(with_file(FILES[name]).array_records["arrays"])


@pytest.mark.parametrize("dtype", [">f4", "U4", "S4", "M8[s]", "c8", "bool", "int32", "uint64"])
def test_an_array_of_another_type_is_refused(dtype: str) -> None:
    file = io.BytesIO()
    np.save(file, np.zeros(3, dtype))
    with pytest.raises(WireError, match="cannot be read"):
        from_records(with_file(file.getvalue()))


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0), (1, 4, 4)])
def test_arrays_of_every_shape_come_out_as_they_went_in(shape: tuple[int, ...]) -> None:
    sent = {str(kind): np.full(shape, 1.5).astype(kind) for kind in (np.float16, np.float32, np.float64, np.int64)}
    message, _ = from_records(to_records(Message("null", sent)))
    for name, array in message.arrays.items():
        assert array.dtype == sent[name].dtype
        assert np.array_equal(array, sent[name])
        assert array.shape == sent[name].shape


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"shell": "x"}, "'shell' beside the message"),
        ({"round": True}, "Beside.round: True: input should be a valid integer"),
        ({"refused": 5}, "Beside.refused: 5: input should be a valid string"),
        ({"hello": b"{}"}, "Beside.hello: bytes: input should be a valid string"),
    ],
)
def test_what_stands_beside_a_message_has_a_type(values: dict, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        said_beside(values)
