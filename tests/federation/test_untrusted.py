"""What a client says is held against the declared types and the request: each class of rubbish is refused by name."""

import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

import hanse
from hanse.core.port import (
    Answered,
    Arrival,
    Ask,
    ClientInfo,
    Confused,
    Confusion,
    Counted,
    Derived,
    Gradient,
    Nearest,
    Payload,
    Reply,
    Request,
    Roster,
    Score,
    Scored,
    Test,
    Tested,
    Train,
    Trained,
)  # fmt: skip
from hanse.federation.check import heard, refusal, room
from hanse.federation.codec import Message, Room, WireError, pack, unpack_reply
from hanse.flower.nodes import read_safely

P = 3
ROW, MODELS = torch.zeros(P), torch.zeros(2, P)
TRAIN = Train(0, 0, ROW)
TAUGHT = replace(TRAIN, payload=Payload(ROW, torch.full((4,), 0.25).double(), 4, 2, 1, 1, 32, 1.0, 1.0))
SOUND = Trained(0, ROW, 5.0, 0.5, 3)
SCORED = Scored("q", torch.zeros(2), torch.zeros(2), 4)
TEST, TESTED = Test("t", ROW), Tested("t", 0.5, 0.25, 4, 0.1)
DEEP: list[Any] = []
for _ in range(2000):
    DEEP = [DEEP]


def said(task: Any, result: Any, **more: Any) -> str | None:
    return refusal(Request(1, (task,)), Reply(1, (result,), **more))


SOUNDS: list[tuple[Any, Any]] = [
    (TRAIN, SOUND),
    (TRAIN, replace(SOUND, num_samples=5, loss=-0.25, steps=0)),
    (TRAIN, replace(SOUND, extras=MappingProxyType({}))),
    (TAUGHT, replace(SOUND, extras={"label_counts": torch.tensor([1, 0, 2, 2**53])})),
    (Score("q", MODELS), SCORED),
    (Score("q", MODELS), replace(SCORED, loss=torch.tensor([math.nan, math.inf]), accuracy=torch.full((2,), math.nan))),
    (Nearest("q", MODELS), Counted("q", torch.tensor([2**53, 0]))),
    (Gradient("q", MODELS), Derived("q", torch.full((2, P), math.nan), 0)),
    (Confusion("q", MODELS), Confused("q", torch.ones(2, 4, 4, dtype=torch.int64))),
    (Ask("q"), Answered("q", {"a": [1, (2.5, None)], "b": {"c": True}, "d": math.inf})),
    (Ask("stay"), Answered("stay", {})),
    (Ask("bid"), Answered("bid", {"tiers": (7, -1)})),
    (Ask("declare"), Answered("declare", {"cost": math.inf, "eagerness": 3, "more": "x"})),
    (TEST, TESTED),
    (TEST, replace(TESTED, accuracy=None, loss_error=None)),
    (TEST, Tested("t", None, None, 0)),
    (replace(TEST, beside=ROW), replace(TESTED, accuracy_beside=1.0)),
]


@pytest.mark.parametrize(("task", "result"), SOUNDS)
def test_what_is_sound_is_not_refused(task: Any, result: Any) -> None:
    assert said(task, result, authorise=2**63 - 1) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"row": 5}, "Trained.row: 5: input should be an instance of Tensor"),
        ({"row": None}, "Trained.row: None: input should be an instance of Tensor"),
        ({"row": torch.zeros(P, 2)}, "update of shape (3, 2) instead of (3,)"),
        ({"row": torch.full((P,), -3e38)}, "update of norm 5.2e+38: at most 1e+18"),
        ({"loss": "x"}, "Trained.loss: 'x': input should be a valid number"),
        ({"loss": math.inf}, "Trained.loss: inf: input should be a finite number"),
        ({"num_samples": None}, "Trained.num_samples: None: input should be a valid number"),
        ({"num_samples": True}, "Trained.num_samples: True: input should be a valid number"),
        ({"num_samples": 10**400}, "Trained.num_samples: an integer of 1329 bits: input should be a valid number"),
        ({"num_samples": 2.0**54}, "Trained.num_samples: 1.8014398509481984e+16: must be at most 9.0072e+15"),
        ({"steps": math.nan}, "Trained.steps: nan: input should be a valid integer"),
        ({"steps": 10**30}, "Trained.steps: an integer of 100 bits: must be at most 9.0072e+15"),
        ({"steps": "x"}, "Trained.steps: 'x': input should be a valid integer"),
        ({"steps": 2.0}, "Trained.steps: 2.0: input should be a valid integer"),
        ({"seat": True}, "Trained.seat: True: input should be a valid integer"),
        ({"extras": 5}, "Trained.extras: 5: input should be a valid dictionary"),
        ({"extras": {"label_counts": 5}}, "Trained.extras.label_counts: 5: input should be an instance of Tensor"),
        ({"extras": {"x": ROW}}, "Mapping.x: float32 of shape (3,): must be int64 with 1 dimension"),
        ({"extras": {"x\n9": torch.zeros(1, dtype=torch.int64)}}, "extras {'x\\n9': 1}: must be {}"),
    ],
)
def test_an_update_of_another_type_or_range_is_refused(changes: dict[str, Any], reason: str) -> None:
    assert said(TRAIN, replace(SOUND, **changes)) == reason


@pytest.mark.parametrize(
    ("task", "result", "reason"),
    [
        (TRAIN, 5, "Reply.results.0: 5: input tag 'int' found using"),
        (TRAIN, SCORED, "no update for seat 0"),
        (Score("q", MODELS), SOUND, "no answer to 'q'"),
        (TAUGHT, SOUND, "extras {}: must be {'label_counts': 4}"),
        (
            TAUGHT,
            replace(SOUND, extras={"label_counts": torch.full((4,), 2**53 + 1)}),
            "Mapping.label_counts: int64 of shape (4,): must be at most 9.0072e+15 everywhere",
        ),
        (Score("q", MODELS), replace(SCORED, name="other"), "no answer to 'q'"),
        (Score("q", MODELS), replace(SCORED, loss=None), "Scored.loss: None: input should be an instance"),
        (Score("q", MODELS), replace(SCORED, loss=torch.zeros(1)), "(1,) loss of type torch.float32 for 2 models"),
        (Score("q", MODELS), replace(SCORED, accuracy=5.0), "Scored.accuracy: 5.0: input should be an instance"),
        (Score("q", MODELS), replace(SCORED, accuracy=torch.tensor([0.5, -1.0])), "must be at least 0 everywhere"),
        (Score("q", MODELS), replace(SCORED, accuracy=torch.tensor([5.0, 0.5])), "must be at most 1 everywhere"),
        (Score("q", MODELS), replace(SCORED, accuracy=torch.zeros(3)), "(3,) accuracy of type"),
        (Score("q", MODELS), replace(SCORED, num_samples="3"), "Scored.num_samples: '3': input should be"),
        (Score("q", MODELS), replace(SCORED, num_samples=-100), "Scored.num_samples: -100: must be at least 0"),
        (Nearest("q", MODELS), Counted("q", 5), "Counted.counts: 5: input should be an instance of Tensor"),  # type: ignore[arg-type]
        (Nearest("q", MODELS), Counted("q", torch.tensor([2**60, 2**60])), "must be at most 9.0072e+15 everywhere"),
        (Gradient("q", MODELS), Derived("q", torch.zeros(2, P + 1), 4), "(2, 4) gradients of type torch.float32 for 2"),
        (Gradient("q", MODELS), Derived("q", torch.zeros(P), 4), "must be float32 or float64 with 2 dimensions"),
        (Gradient("q", MODELS), Derived("q", MODELS.double(), 4), "(2, 3) gradients of type torch.float64 for 2"),
        (Gradient("q", MODELS), Derived("q", MODELS, 10**30), "Derived.num_samples: an integer of 100 bits"),
        (Confusion("q", MODELS), Confused("q", torch.ones(2, 4, 5, dtype=torch.int64)), "(2, 4, 5) counts of type"),
        (Confusion("q", MODELS), Confused("q", torch.zeros(2, 4, 4)), "must be int64 with 3 dimensions"),
        (Ask("q"), Answered("q", 5), "Answered.values: 5: input should be a valid dictionary"),  # type: ignore[arg-type]
        (Ask("q"), Answered("q", {"a": 10**400}), "Answered.values.a.int: an integer of 1329 bits: must be at most"),
        (Ask("q"), Answered("q", {"a": np.zeros(2)}), "Answered.values.a: ndarray: input should be a number, a text"),  # type: ignore[dict-item]
        (Ask("q"), Answered("q", {"a": DEEP}), "maximum validation depth exceeded"),
        (Ask("stay"), Answered("stay", {"stay": 5}), "Stay.stay: 5: input should be a valid boolean"),
        (Ask("bid"), Answered("bid", {"tiers": [{}]}), "input should be a valid integer"),
        (Ask("bid"), Answered("bid", {"tiers": "no list"}), "'no list': input should be a valid"),
        (Ask("declare"), Answered("declare", {"cost": "much"}), "Offer.cost: 'much': input should be a valid number"),
        (TEST, SCORED, "no answer to 't'"),
        (TEST, replace(TESTED, name="u"), "no answer to 't'"),
        (TEST, replace(TESTED, loss=math.nan), "Tested.loss: nan"),
        (TEST, replace(TESTED, loss=math.inf), "Tested.loss: inf"),
        (TEST, replace(TESTED, loss=None), "a test on 4 samples with loss None"),
        (TEST, replace(TESTED, num_samples=0), "a test on 0 samples with loss 0.5"),
        (TEST, replace(TESTED, num_samples=-3), "Tested.num_samples: -3: must be at least 0"),
        (TEST, replace(TESTED, accuracy=1e9), "Tested.accuracy: 1000000000.0: must be at most 1"),
        (TEST, replace(TESTED, loss_error=-1.0), "Tested.loss_error: -1.0: must be at least 0"),
        (TEST, replace(TESTED, loss_error=math.nan), "Tested.loss_error: nan"),
        (TEST, replace(TESTED, accuracy_beside=0.5), "an accuracy that was not asked for"),
        (TEST, replace(TESTED, metrics={"auc": math.inf}), "Tested.metrics.auc: inf"),
        (TEST, replace(TESTED, gaps={str(n): "" for n in range(65)}), "65 metrics; at most 64"),
        (TEST, replace(TESTED, without_block=torch.zeros(21, dtype=torch.float64)), "without 21 blocks; at most 20"),
        (TEST, replace(TESTED, interval=torch.zeros(1, dtype=torch.float64)), "an interval of 1 number; must be 2"),
        (TEST, replace(TESTED, weights=torch.ones(2, dtype=torch.float64)), "weights of its own that nobody asked for"),
    ],
)
def test_an_answer_of_another_kind_type_shape_or_range_is_refused(task: Any, result: Any, reason: str) -> None:
    found = said(task, result)
    assert found is not None
    assert reason in found


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"results": 5}, "Reply.results: 5: input should be a valid tuple"),
        ({"results": None}, "Reply.results: None: input should be a valid tuple"),
        ({"results": [SOUND]}, "Reply.results: list: input should be a valid tuple"),
        ({"results": (SOUND, SOUND)}, "2 results for 1 task"),
        ({"results": (SOUND,) * 5000}, "tuple should have at most 4096 items"),
        ({"authorise": "much"}, "Reply.authorise: 'much': input should be a valid integer"),
        ({"authorise": -1}, "Reply.authorise: -1: must be at least 0"),
        ({"authorise": 2**63}, "Reply.authorise: 9223372036854775808: must be at most"),
        ({"refused": ["a"]}, "Reply.refused: list: input should be a valid string"),
        ({"refused": "x" * 1001}, "string should have at most 1000 characters"),
        ({"refused": "no\nround 7: \x1b[31mclient 0"}, "no?round 7: ?[31mclient 0"),
    ],
)
def test_a_reply_of_another_form_is_refused(changes: dict[str, Any], reason: str) -> None:
    found = refusal(Request(1, (TRAIN,)), replace(Reply(1, (SOUND,)), **changes))
    assert found is not None
    assert reason in found
    assert len(found) <= 200


class Bomb(torch.Tensor):
    """A tensor of which nothing can be read."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise MemoryError("boom")


def test_whatever_reading_a_reply_raises_is_that_clients_refusal(caplog: pytest.LogCaptureFixture) -> None:
    bomb = replace(SOUND, row=torch.zeros(P).as_subclass(Bomb))
    with caplog.at_level(logging.WARNING):
        assert said(TRAIN, bomb) == "cannot be read: MemoryError: boom"
    assert "boom" in caplog.text  # with its traceback: it may be a mistake of ours
    assert read_safely(json.loads, "[" * 100_000).startswith("cannot be read: RecursionError")


def test_refusals_are_logged_with_name_and_key(caplog: pytest.LogCaptureFixture) -> None:
    roster = Roster([ClientInfo(0, "Ann", "key a", 3), ClientInfo(1, "Bob\nround 9", "key b", 3)])
    requests = [Request(c, (TRAIN,)) for c in (0, 1)]
    with caplog.at_level(logging.INFO, "hanse.federation"):
        sound, refused = heard(4, requests, [Reply(1, (5,)), Reply(0, (SOUND,)), Reply(9)], roster)  # type: ignore[arg-type]
    assert list(sound) == [0]
    assert [c for c, _ in refused] == [1, 9]
    assert "round 4: client 1 (Bob?round 9, key key b): refused: Reply.results.0: 5" in caplog.text
    assert "round 4: client 9 (not in the round): refused: was not asked" in caplog.text


def test_who_is_not_waited_for_is_not_called_refused(caplog: pytest.LogCaptureFixture) -> None:
    roster, later = (
        Roster([ClientInfo(0, "Ann", "key a", 3)]),
        Reply(0, refused="no reply yet", arrival=Arrival(open=True)),
    )
    with caplog.at_level(logging.INFO, "hanse.federation"):
        _, refused = heard(4, [Request(0, (TRAIN,))], [later], roster)
    assert refused == [(0, "no reply yet")]
    assert "round 4: client 0 (Ann, key key a): no reply yet" in caplog.text


# ---- on the wire


def tensor(hashes: Any, shape: Any, dtype: str = "float32") -> dict[str, Any]:
    return {"$tensor": hashes, "shape": shape, "dtype": dtype}


def reply_of(row: Any, **more: Any) -> str:
    fields = {"seat": 0, "row": row, "num_samples": 1.0, "loss": 0.5, "steps": 1, "extras": {"$map": []}, **more}
    trained = {"$kind": "Trained", "fields": fields}
    return json.dumps({"$kind": "Reply", "fields": {"client": 1, "results": [trained]}})


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (reply_of(tensor(["a"] * 1000, [3000])), "tensors of 12000 bytes; 12 were asked for"),
        (reply_of(tensor(["a"] * 1000, [1000, 3])), "tensors of 12000 bytes; 12 were asked for"),
        (reply_of(tensor(["a"] * 1000, [3])), "it has 1000 blocks"),
        (reply_of(tensor(["a"], [2**52])), "tensors of 18014398509481984 bytes"),
        (reply_of(tensor(["a"], [4])), "tensors of 16 bytes; 12 were asked for"),
        (reply_of(tensor(["a"], [3], "int64")), "tensors of 24 bytes"),
        (reply_of(tensor(["a"], [2])), "a block of 3 numbers"),
        (reply_of(tensor([1], [3])), "without hashes, shape or type"),
        (reply_of(tensor(["b"], [3])), "1 arrays are missing"),
        (reply_of(tensor(["a"], [3]), loss=0.5).replace("0.5", "9" * 5000), "an integer of 5000 digits"),
        (reply_of(tensor(["a"], [3]), steps=2**63), "an integer of 19 digits"),
        (reply_of(tensor(["a"], [3]), extras={"$map": [["k" * 201, 5]]}), "a key of more than 200 characters"),
        (reply_of(tensor(["a"], [3]), extras={"$map": 5}), "nothing that crosses"),
        (reply_of(5), "Trained.row: 5: input should be an instance of Tensor"),
        (reply_of(tensor(["a"], [3])).replace("Reply", "Request"), "no such field"),
        ("null", "not a reply"),
        ('"' + "x" * 300_000 + '"', "a header of 300002 characters; 262656 are allowed"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_a_reply_expands_to_is_bounded_by_what_was_asked(header: str, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        unpack_reply(Message(header, {"a": np.zeros(3, np.float32)}), room(Request(1, (TRAIN,))))


def test_the_room_of_a_reply_is_that_of_a_sound_one() -> None:
    tasks = (TRAIN, TAUGHT, Score("q", MODELS), Nearest("q", MODELS), Gradient("q", MODELS), Ask("q", {}, MODELS), TEST)
    assert room(Request(1, tasks)) == Room(12 + (12 + 32) + 32 + 32 + 24 + 22 * 8, (1 << 18) + 512 * 10)
    sound = Reply(1, (SOUND, replace(SCORED, loss=torch.zeros(2, dtype=torch.float64))))
    assert unpack_reply(pack(sound), room(Request(1, (TRAIN, Score("q", MODELS))))).results[0].seat == 0


# ---- policies in this process


ANSWERS = {"authorise": None, "stay": {"stay": True}, "declare": {"cost": 1.0}, "bid": {"tiers": [0]}}


class Rubbish:
    """A policy that answers rubbish to one question, if it is client 1."""

    def __init__(self, question: str, answer: Any) -> None:
        setattr(self, question, lambda me, round, told: answer if me.id == 1 else ANSWERS[question])


def rubbish(question: str, kind: str) -> Rubbish:
    return Rubbish(question, {"much": "much", "five": 5, "huge": {"cost": 10**400}, "nested": {"tiers": [{}]}}[kind])


@pytest.mark.parametrize(
    ("mechanism", "question", "kind", "reason"),
    [
        ("ipfl", "authorise", "much", "Reply.authorise: 'much': input should be a valid integer"),
        ("ipfl", "stay", "five", "Answered.values: 5: input should be a valid dictionary"),
        ("ipfl", "declare", "huge", "Answered.values.cost.int: an integer of 1329 bits: must be at most 9.22337e+18"),
        ("pifl", "bid", "nested", "Bid.tiers.0: dict: input should be a valid integer"),
    ],
)
def test_a_policy_that_answers_rubbish_is_refused_and_the_run_goes_on(
    mechanism: str, question: str, kind: str, reason: str, tmp_path: Path
) -> None:
    options = {"by_contribution": 2, "at_random": 1} if mechanism == "pifl" else {}
    experiment = hanse.Experiment(
        data={"clients": 4, "partition": {"samples_per_client": 30}},
        model={"name": "logistic"},
        mechanism={"name": mechanism, **options},
        clients={"policy": {"name": f"{__name__}:rubbish", "question": question, "kind": kind}},
        engine={"train": "sequential", "threads": 1, "device": "cpu"},
        run={"rounds": 3},
    )
    run = hanse.run(experiment, out=tmp_path / "run")
    assert [m["round"] for m in run.metrics] == [0, 1, 2]
    found = [str(r) for f in sorted((tmp_path / "run" / "rounds").glob("*.npz")) for r in np.load(f)["reason"].tolist()]
    assert found
    assert all(reason in r for r in found)


class Broken:
    """A policy with a mistake in it."""

    def declare(self, me: Any, round: int, told: Any) -> Any:
        return {"cost": told["no such thing"]}


def test_a_policy_that_raises_in_a_simulation_is_seen() -> None:
    experiment = hanse.Experiment(
        data={"clients": 4, "partition": {"samples_per_client": 30}},
        model={"name": "logistic"},
        mechanism={"name": "ipfl"},
        clients={"policy": f"{__name__}:Broken"},
        engine={"train": "sequential", "threads": 1, "device": "cpu"},
        run={"rounds": 2},
    )
    with pytest.raises(KeyError, match="no such thing"):
        hanse.run(experiment)
