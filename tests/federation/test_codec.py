"""Messages as text and arrays: what goes in comes out, what was sent is not sent again, rubbish is refused."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hanse.core.port import Answered, Ask, Reply, Request, Score, Scored, Test, Tested, Train, Trained
from hanse.federation.check import refusal, room
from hanse.federation.codec import Message, MissingError, WireError, hash_of, pack, unpack, unpack_reply


def request() -> Request:
    rows = torch.arange(6.0).reshape(2, 3)
    asked = Ask("bid", {"price": 5, "paid": (1, 2), "who": "x", "none": None}, rows)
    train = Train(0, 1, rows[0], centre=rows[1], mu=0.5, work=3)
    return Request(4, (train, Score("losses", rows, "validation", 7), asked))


TRAINED = Trained(0, torch.tensor([1.5, math.nan]), 7.0, 0.25, 9, {"label_counts": torch.tensor([3, 0, 1])})
SCORED = Scored("losses", torch.tensor([0.5], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64), 4)
REPLY = Reply(2, (TRAINED, SCORED, Answered("bid", {"tiers": (1, 0)})), authorise=12)


def plain(value: Any) -> Any:
    """A value with its tensors as bytes, beside their type."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return (type(value), plain(vars(value))) if dataclasses.is_dataclass(value) else value


@pytest.mark.parametrize("sent", [request(), REPLY])
def test_what_is_sent_comes_out_as_it_went_in(sent: Any) -> None:
    assert plain(unpack(pack(sent))) == plain(sent)


def test_each_model_is_in_a_message_once_and_none_that_is_held() -> None:
    message = pack(request())
    assert len(message.arrays) == 2  # two different rows, named five times
    held = {h: a for h, a in message.arrays.items() if h == hash_of(np.arange(3, dtype=np.float32))}
    light = message.without(set(held))
    assert len(light.arrays) == 1
    assert torch.equal(unpack(light, held).tasks[1].models, request().tasks[1].models)
    with pytest.raises(MissingError) as lost:
        unpack(light)
    assert lost.value.hashes == list(held)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ('{"$kind":"Popen","fields":{}}', "nothing that crosses"),
        ('{"$kind":"Reply","fields":{"client":1,"shell":"x"}}', "'shell'"),
        ('{"$kind":"Score","fields":{}}', "Score"),
        ('{"$map":[[1]]}', "not made of pairs"),
        ("[" * 30 + "]" * 30, "nested too deep"),
    ],
)
def test_rubbish_is_refused(header: str, said: str) -> None:
    with pytest.raises(WireError, match=said):
        unpack(Message(header))


def test_in_half_precision_models_weigh_half_and_come_out_as_32_bit_floats() -> None:
    row = torch.tensor([1.0, 1 / 3, -2e-8, 7e4])
    reply = Reply(2, (Trained(0, row, 7.0, 1 / 3, 9, {"label_counts": torch.tensor([3, 0])}),))
    message = pack(reply, half=True)
    got = unpack(message).results[0]
    assert sorted(str(a.dtype) for a in message.arrays.values()) == ["float16", "int64"]
    assert got.row.dtype == torch.float32
    assert got.row.tolist() == [1.0, float(np.float16(1 / 3)), 0.0, math.inf]  # too small, and too large, for 16 bits
    assert got.loss == 1 / 3  # a plain number stays what it is
    assert refusal(Request(2, (Train(0, 0, row),)), unpack(message)) == "update has NaN or infinite entries"


def test_what_is_no_port_dataclass_does_not_leave() -> None:
    with pytest.raises(WireError, match="may not cross"):
        pack(Answered("bid", {"secret": object()}))
    with pytest.raises(WireError, match=r"type torch\.float16"):
        pack(Trained(0, torch.zeros(1, dtype=torch.float16), 1.0, 0.0, 1))


@given(st.text(max_size=200))
def test_no_text_is_more_than_refused(text: str) -> None:
    try:
        unpack(Message(text))
    except WireError:
        return


PLAIN = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
FIELDS = [field.name for field in dataclasses.fields(Tested)]


@given(st.dictionaries(st.sampled_from(FIELDS), PLAIN | st.lists(PLAIN, max_size=2), max_size=4))
def test_a_test_with_any_fields_is_sound_or_refused(changes: dict) -> None:
    whole = {"name": "t", "loss": 0.5, "accuracy": 0.5, "num_samples": 4}
    header = {"$kind": "Reply", "fields": {"client": 1, "results": [{"$kind": "Tested", "fields": whole | changes}]}}
    asked = Request(1, (Test("t", torch.zeros(3)),))
    try:
        reply = unpack_reply(Message(json.dumps(header)), room(asked))
    except WireError:
        return
    if refusal(asked, reply) is None:
        [one] = reply.results
        assert (one.weights, one.accuracy_beside) == (None, None)
        assert (one.loss is None) == (one.num_samples == 0)
        assert one.loss is None or math.isfinite(one.loss)
        assert one.accuracy is None or 0 <= one.accuracy <= 1
        assert one.loss_error is None or 0 <= one.loss_error < math.inf
