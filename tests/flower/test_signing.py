"""Nodes act on what their operator has signed for them in this run, once; participants push replies, nothing else."""

import asyncio
import hashlib
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.supercore.task_identity import TaskIdentity
from forging import receipt
from hypothesis import given, settings
from hypothesis import strategies as st
from inprocess import KEY, PINNED, InProcessGrid, client_app
from mistaken import mistakes
from test_flower_in_process import experiment

import hanse.flower
from hanse.base.errors import UserError
from hanse.base.files import ASKED
from hanse.core.port import Ask, Request, Train
from hanse.data.samples import Samples
from hanse.federation.codec import Message as Packed
from hanse.federation.codec import WireError, pack
from hanse.federation.node import Assignment, ClientData, Node
from hanse.flower import operator_key, signing
from hanse.flower.agreement import Agreement, QuestionLimit, take
from hanse.flower.link import FlowerFederation
from hanse.flower.members import Members
from hanse.flower.message import QUERY, from_records, to_records
from hanse.flower.node_log import NodeLog
from hanse.flower.operator_key import fingerprint, make_operator_key, pin, public_key, signing_key
from hanse.runs.recomputable import code_hash
from hanse.wings.operate import server_access

NODE, RUN, OTHER = 100, 1, Ed25519PrivateKey.generate()
OTHER_KEY = OTHER.public_key().public_bytes_raw()
JOB = Assignment("mine", 0, 2, 0, {"name": "logistic"}, {"lr": 0.1})
START, CODE = torch.zeros(8), code_hash()
LETTER = receipt("mine", 0, 0, 1, key=KEY).as_json()


def mine(_: Context) -> ClientData:
    x = torch.arange(18, dtype=torch.float32).reshape(6, 3) / 18
    return ClientData(Samples(x, torch.tensor([0, 1, 0, 1, 0, 1])), num_classes=2)


def agreement_of(job: Assignment) -> Agreement:
    """What the owners of these nodes have agreed to: this job, and a million rounds of it."""
    experiment = {
        "model": job.model, "train": job.train, "run": {"seed": job.seed}, "eval": {"metrics": job.metrics},
        "federation": {"half_precision": False, "private": None}, "data": {"clients": job.num_clients},
    }  # fmt: skip
    questions = {"Train": QuestionLimit(1, 1, 10**6), "Ask": QuestionLimit(1, 0, 10**6)}
    return Agreement(
        experiment, job.run, "test", PINNED.hex(), "9999-01-01", "", {"": CODE}, {}, False, 10**6, 10**6,
        10**6, 10**6, questions, {},
    )  # fmt: skip


def asked(
    round: int,
    key: Ed25519PrivateKey | None = KEY,
    *,
    node: int = NODE,
    job: Assignment = JOB,
    kind: str = "request",
    letter: str = "",
) -> Message:
    """A request as the server sends it; without a ``key`` it is not signed."""
    packed = Packed("null") if kind == "hello" else pack(Request(0, (Train(0, 0, START + round), Ask("stay", {}))))
    beside = {"kind": kind, "round": round, "client": 0, "agreement": agreement_of(job).hash}
    beside |= {"letter": letter} if letter else {}
    message = Message(to_records(packed, **beside), dst_node_id=node, message_type=QUERY, ttl=60.0)
    return message if key is None else signing.sign(message, key)


def answered(app: ClientApp, message: Message) -> dict[str, Any]:
    """Send a message as Flower does, by its bytes, and return the plain values of the answer."""
    message.metadata.__dict__["_message_id"] = "m"
    travelled = message_from_proto(message_to_proto(message))
    return from_records(app(travelled, Context(RUN, NODE, {"partition-id": 0}, RecordDict(), {})).content)[1]


class Participant:
    """A node; each message meets a fresh app, as with a process for each."""

    def __init__(self, home: Path, job: Assignment = JOB, **more: Any) -> None:
        self.home, self.more = home, more
        take(home, agreement_of(job).note(KEY), PINNED, 0.0)

    def answer(self, message: Message) -> dict[str, Any]:
        return answered(client_app(mine, folder=self.home, **self.more), message)

    def state(self) -> str:
        """A digest of everything that the participant keeps."""
        files = sorted(p for p in self.home.rglob("*") if p.is_file())
        return hashlib.sha256(b"".join(str(p).encode() + p.read_bytes() for p in files)).hexdigest()


def edited(number: int, /, **changes: Any) -> Message:
    """A signed request of which somebody has changed values; None takes one out."""
    message = asked(number)
    values = message.content["hanse"]
    for name, value in changes.items():
        if value is None:
            del values[name]
        else:
            values[name] = value
    return message


def with_arrays(round: int, change: Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]) -> Message:
    message = asked(round)
    arrays = message.content.array_records["arrays"]
    found = {name: array.numpy() for name, array in arrays.items()}
    arrays.clear()
    arrays.update({name: Array(a) for name, a in change(dict(found)).items()})
    return message


def elsewhere(round: int) -> Message:
    """A request of another of Flower's runs, as it would stand in this one."""
    TaskIdentity.run_id = RUN + 1
    message = asked(round)
    TaskIdentity.run_id = RUN
    return message


def other_type(round: int) -> Message:
    """What the operator signed as a message of another type."""
    message = Message(asked(round, None).content, dst_node_id=NODE, message_type="query.other", ttl=60.0)
    signing.sign(message, KEY)
    message.metadata.message_type = QUERY
    return message


POPEN = replace(JOB, train={"lr": 0.1, "loss": {"name": "subprocess:Popen", "args": ["touch", "owned"]}})
NOT_SIGNED, NOT_FOR_US, REPLAY = "the request is not signed; ", "is not signed for this node and this run", "a replay"
FORGED: dict[str, tuple[Callable[[int], Message], str]] = {
    "unsigned": (lambda r: asked(r, None), NOT_SIGNED),
    "an unsigned hello": (lambda r: asked(r, None, kind="hello"), NOT_SIGNED),
    "an unsigned letter": (lambda r: asked(r, None, kind="letter", letter=LETTER), NOT_SIGNED),
    "a signature that was taken out": (lambda r: edited(r, signature=None), NOT_SIGNED),
    "signed by another key": (lambda r: asked(r, OTHER), NOT_FOR_US),
    "for another node": (lambda r: asked(r, node=NODE + 1), NOT_FOR_US),
    "of another run": (elsewhere, NOT_FOR_US),
    "another nonce": (lambda r: edited(r, nonce="0" * 32), NOT_FOR_US),
    "without its nonce": (lambda r: edited(r, nonce=None), NOT_FOR_US),
    "another round": (lambda r: edited(r, round=r + 1), NOT_FOR_US),
    "another kind": (lambda r: edited(r, kind="letter"), NOT_FOR_US),
    "another client": (lambda r: edited(r, client=1), NOT_FOR_US),
    "a letter slipped in": (lambda r: edited(r, letter=LETTER), NOT_FOR_US),
    "another header": (lambda r: edited(r, header=pack(Request(0, (Ask("pay", {}),))).header), NOT_FOR_US),
    "a value more": (lambda r: edited(r, more=1), NOT_FOR_US),
    "another type of message": (other_type, NOT_FOR_US),
    "without its array": (lambda r: with_arrays(r, lambda a: {}), NOT_FOR_US),
    "another array under the name": (lambda r: with_arrays(r, lambda a: {n: v + 1 for n, v in a.items()}), "an array"),
}


@pytest.mark.parametrize("name", FORGED)
def test_each_forgery_is_refused_before_the_participants_data_are_loaded(name: str, tmp_path: Path) -> None:
    make, said = FORGED[name]

    def loads(_: Context) -> ClientData:
        raise AssertionError("the data were loaded")

    assert said in answered(client_app(loads, folder=tmp_path), make(3))["refused"]
    assert list(tmp_path.iterdir()) == []


def test_a_request_that_the_log_could_not_keep_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    participant = Participant(tmp_path)
    monkeypatch.setattr(signing, "MOST", 100)
    assert "at most 100" in participant.answer(asked(0))["refused"]
    assert not (tmp_path / ASKED).exists()


def test_what_the_operator_signs_is_acted_upon_once_whatever_process_it_meets(tmp_path: Path) -> None:
    participant, message = Participant(tmp_path), asked(0, letter=LETTER)
    assert participant.answer(asked(0, kind="hello")).keys() == {"hello"}
    assert participant.answer(message) == {"round": 0}
    [kept] = tmp_path.glob("mine/client-0/receipts/client-0.jsonl")
    before, receipts = participant.state(), kept.read_text()
    assert REPLAY in participant.answer(message)["refused"]
    assert (participant.state(), kept.read_text()) == (before, receipts)
    # the server sends the same question anew after a crash: it is another request
    assert participant.answer(asked(0, letter=LETTER)) == {"round": 0}
    assert kept.read_text() == receipts
    assert (tmp_path / ASKED).stat().st_mode & 0o777 == 0o600


ODD = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=8), st.booleans(), st.binary(max_size=8),
    st.lists(st.integers(-3, 3), max_size=3), st.sampled_from(["", "null", "[]", "{}", "letter", "hello", "[" * 9999]),
)  # fmt: skip
FIELDS = (
    "kind", "round", "client", "unsent", "agreement", "letter", "head", "since", "proof", "header", "other",
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_the_operator_signs_is_answered_or_refused_in_a_line(data: st.DataObject) -> None:
    """Signed requests with fields that are missing or fit nothing, and questions that lack what a policy needs."""
    task = data.draw(st.sampled_from(["bid", "declare", "stay", "told", "authorise", "?"]))
    values = data.draw(st.dictionaries(st.sampled_from(["balance", "price", "tiers", "paid"]), st.integers(-2, 9)))
    packed = pack(Request(0, (Ask(task, values, data.draw(st.sampled_from([None, torch.zeros(2, 8)]))),)))
    beside = {"kind": "request", "round": 0, "client": 0, "agreement": agreement_of(JOB).hash}
    message = Message(to_records(packed, **beside), dst_node_id=NODE, message_type=QUERY, ttl=60.0)
    content = message.content["hanse"]
    for name in data.draw(st.lists(st.sampled_from(FIELDS), unique=True, max_size=2)):
        if data.draw(st.booleans()) and name in content:
            del content[name]
        else:
            content[name] = data.draw(ODD)
    with tempfile.TemporaryDirectory() as home:
        try:
            signed = signing.sign(message, KEY)
        except (TypeError, ValueError):  # no text can be made of it to sign
            return
        said = Participant(Path(home)).answer(signed)
    assert set(said) <= {"round", "refused", "hello", "missing", "saw", "cosigned", "waits"}
    assert "\n" not in str(said.get("refused", ""))


def test_an_error_that_may_tell_of_samples_stays_in_the_participants_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(*_: Any) -> Any:
        raise LookupError("row 3 is of Mr Smith")

    policy = type("Raises", (), {"stay": raises})()
    said = [Participant(tmp_path / "policy", policy=policy).answer(asked(0))["refused"]]
    for kind in ("hello", "request"):
        app = client_app(lambda _: raises(), folder=Participant(tmp_path / "data").home)
        said.append(answered(app, asked(0, kind=kind))["refused"])
    assert "LookupError" in said[0]
    assert not any("Smith" in one for one in said)
    assert caplog.text.count("Smith") >= 3


def test_requests_that_others_may_write_are_not_gone_by(tmp_path: Path) -> None:
    participant = Participant(tmp_path)
    assert participant.answer(asked(0, letter=LETTER)) == {"round": 0}
    before = participant.state()
    for mode in (0o620, 0o602, 0o666):
        (tmp_path / ASKED).chmod(mode)
        assert "requests.log" in participant.answer(asked(1, letter=LETTER))["refused"]
        assert participant.state() == before
    (tmp_path / ASKED).chmod(0o600)
    assert participant.answer(asked(1, letter=LETTER)) == {"round": 1}


@pytest.mark.parametrize(
    "name", ["requests.log", "agreements", "secret.key", "operators", "Secret.Key", ".hidden", "", "a/b"]
)
def test_a_run_named_like_a_file_of_the_participants_own_is_refused(name: str, tmp_path: Path) -> None:
    mine = ClientData(Samples(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])), num_classes=2)
    with pytest.raises(WireError, match="not a name for a folder"):
        Node(mine, replace(JOB, run=name), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_of_processes_that_meet_one_request_at_once_one_takes_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:  # each opens the file for itself, as processes do
        for number in range(20):
            assert sum(pool.map(lambda _, n=number: NodeLog(tmp_path).took(f"{n:032x}"), range(8))) == 1
    assert not NodeLog(tmp_path).took(f"{7:032x}")


NONCE = "0a" * 16


@pytest.mark.parametrize(
    "written",
    [
        NONCE.upper(), f" {NONCE}", f"{NONCE}\n", f"0{NONCE}", NONCE[1:], NONCE.replace("0", "\u0660"),
        f"\\u0030{NONCE[1:]}", NONCE.replace("0", "\uff10"), f"{NONCE}\0", "", [NONCE], 10**17, 10.0**31, True,
    ],
)  # fmt: skip
def test_a_nonce_is_written_in_one_way(written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = []
    for nonce, number in ((written, 0), (NONCE, 0), (NONCE, 1)):
        with monkeypatch.context() as patched:
            patched.setattr("secrets.token_hex", lambda size, nonce=nonce: nonce)
            messages.append(asked(number))
    node = Participant(tmp_path)
    assert ["refused" in node.answer(message) for message in messages] == [True, False, True]


@pytest.mark.parametrize("make", [Path.mkdir, lambda log: log.symlink_to("elsewhere")])
def test_a_request_that_cannot_be_noted_is_not_acted_upon(make: Callable[[Path], None], tmp_path: Path) -> None:
    participant, (before, *_) = Participant(tmp_path), [list(tmp_path.iterdir())]
    make(tmp_path / ASKED)
    assert "upon" in participant.answer(asked(0))["refused"]
    assert {*before, tmp_path / ASKED} == {*tmp_path.iterdir()}


# ---- names in messages

NAMES: dict[str, Assignment] = {
    "train.loss: 'subprocess:Popen'": POPEN,
    "model.name: 'subprocess:Popen'": replace(JOB, model={"name": "subprocess:Popen", "args": ["touch", "owned"]}),
    "train.loop: 'os:abort'": replace(JOB, train={"lr": 0.1, "loop": "os:abort"}),
    "eval.metrics: 'shutil:rmtree'": replace(JOB, metrics=["shutil:rmtree"]),
    "eval.metrics: 'os:remove'": replace(JOB, metrics=[{"name": "os:remove", "path": "x"}]),
}


@pytest.mark.parametrize("said", NAMES)
def test_a_node_follows_no_import_path_even_of_the_operator(said: str, here: Path) -> None:
    answer = Participant(here / "home", NAMES[said]).answer(asked(0, job=NAMES[said]))
    assert answer["refused"].startswith(f"{said}: is an import path, and a node follows none that comes in a message")
    assert not (here / "owned").exists()


def halved(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(output, y, reduction="none") / 2


@pytest.mark.parametrize("own", [[halved], ["test_signing:halved"]])
def test_a_participants_app_lists_what_an_import_path_may_mean(own: list[Any], tmp_path: Path) -> None:
    job = replace(JOB, train={"lr": 0.1, "loss": "test_signing:halved"})
    assert Participant(tmp_path / "listed", job, own=own).answer(asked(0, job=job)) == {"round": 0}
    assert "test_signing:halved" in Participant(tmp_path / "not", job).answer(asked(0, job=job))["refused"]


# ---- keys


def test_the_operators_key_is_made_once_and_is_its_owners(tmp_path: Path) -> None:
    public = make_operator_key(tmp_path)
    private = tmp_path / "operator.key"
    first = private.read_bytes(), public.read_text()
    assert private.stat().st_mode & 0o777 == 0o600
    assert signing_key(private).public_key().public_bytes_raw() == public_key(public)
    assert make_operator_key(tmp_path) == public
    assert (private.read_bytes(), public.read_text()) == first
    public.unlink()
    assert make_operator_key(tmp_path).read_text() == first[1]
    (tmp_path / "other").mkdir()
    public.write_text(make_operator_key(tmp_path / "other").read_text())
    with pytest.raises(UserError, match="public half"):
        make_operator_key(tmp_path)
    private.chmod(0o644)
    with pytest.raises(UserError, match="others may read it: chmod 600"):
        signing_key(private)
    private.unlink()
    with pytest.raises(UserError, match="copy back"):  # it is not replaced in silence
        make_operator_key(tmp_path)
    assert not private.exists()
    public.unlink()
    assert make_operator_key(tmp_path).read_text() != first[1]


def test_a_server_without_a_key_begins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(operator_key.SIGNS_WITH, raising=False)

    def begins() -> None:
        grid, exp, agreed = InProcessGrid({}), experiment("fedavg"), agreement_of(JOB)
        hanse.flower.server.play(grid, exp, tmp_path / "run", 1, None, [], patience_s=0.1, agreement=agreed)

    with pytest.raises(UserError, match="HANSE_OPERATOR_KEY"):
        begins()
    monkeypatch.setenv(operator_key.SIGNS_WITH, str(tmp_path / "operator.key"))
    with pytest.raises(UserError, match="the operator's key is gone"):
        begins()
    assert list(tmp_path.iterdir()) == []


def test_a_node_without_a_pinned_key_says_so_to_the_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(operator_key.PINNED, raising=False)
    none = hanse.flower.client_app(mine, folder=tmp_path / "none")
    other = hanse.flower.client_app(mine, folder=tmp_path / "other", operator=OTHER_KEY)
    grid = InProcessGrid({NODE: client_app(mine, folder=tmp_path / "here"), 101: none, 102: other})
    federation = FlowerFederation(grid, Members(), KEY)
    assert len(federation.present(0)) == 1
    first, second = sorted(federation.newcomers.refused.values())
    assert "node refuses" in first
    assert f"{fingerprint(OTHER_KEY)}" in second
    monkeypatch.setenv(operator_key.PINNED, str(tmp_path / "operator.pub"))
    (tmp_path / "operator.pub").write_text(PINNED.hex())
    assert "hello" in answered(none, asked(0, kind="hello"))


def test_a_key_is_pinned_by_address_and_another_is_refused(tmp_path: Path) -> None:
    home, first, second = tmp_path / "home", tmp_path / "a.pub", tmp_path / "b.pub"
    first.write_text(PINNED.hex() + "\n")
    second.write_text(OTHER_KEY.hex())
    with pytest.raises(UserError, match=r"--operator.*fed\.example\.org"):
        pin(home, "fed.example.org:9092", None)
    pinned = pin(home, "fed.example.org:9092", first)
    assert pin(home, "fed.example.org:9092", None) == pin(home, "fed.example.org:9092", first) == pinned
    assert public_key(pin(home, "[::1]:9092", second)) == OTHER_KEY
    [wrong] = mistakes(pin, home, "fed.example.org:9092", second)
    assert wrong.startswith(f"--operator: {second}: has the fingerprint {fingerprint(OTHER_KEY)}; the key")
    assert public_key(pinned) == PINNED
    second.write_text("ssh-ed25519 AAAA")
    with pytest.raises(UserError, match="64 hexadecimal"):
        pin(tmp_path / "new", "fed.example.org:9092", second)
    assert not (tmp_path / "new").exists()


# ---- the gate


def pushed(*messages: Message, node: int = NODE) -> bytes:
    """What a node pushes, as Flower writes it."""
    protos = [message_to_proto(message) for message in messages]
    return PushMessagesRequest(node=NodeProto(node_id=node), messages_list=protos).SerializeToString()


def reply_of(node: int) -> Message:
    message = asked(0, node=node)
    message.metadata.__dict__["_message_id"] = "m"
    return Message(RecordDict(), reply_to=message)


def through(gate: Callable[[Any], Any], path: str, body: bytes = b"", cut: int = 1 << 20, **scope: Any) -> Any:
    """Return the status of a request, 299 where it passes, and what the application behind the gate has read."""
    parts = [body[i : i + cut] for i in range(0, len(body), cut)] or [b""]
    waiting = iter({"type": "http.request", "body": p, "more_body": p is not parts[-1]} for p in parts)
    status, read = list[int](), bytearray()

    async def receive() -> Any:
        return next(waiting, {"type": "http.disconnect"})

    async def send(message: Mapping[str, Any]) -> None:
        status.extend([message["status"]] if "status" in message else [])

    async def behind(scope: Any, receive: Any, send: Any) -> None:
        while (part := await receive())["type"] == "http.request":
            read.extend(part["body"])
        await send({"type": "http.response.start", "status": 299})

    asyncio.run(gate(behind)({"type": "http", "path": path, **scope}, receive, send))
    [answered] = status
    return answered, bytes(read)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda: pushed(asked(0, node=101)), "an instruction to node 101, pushed as node 100"),
        (lambda: pushed(reply_of(101)), "a reply of node 101, pushed as node 100"),
        (lambda: pushed(reply_of(NODE), asked(0, node=101)), "an instruction to node 101, pushed as node 100"),
        (lambda: pushed(), "a push as node 100 with no message"),
        (lambda: b"", "a push as node 0 with no message"),
        (lambda: b"\xff" * 40, "a push that cannot be read"),
    ],
)
def test_only_replies_in_a_nodes_own_name_pass_the_gate(
    body: Callable[[], bytes], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert through(server_access.ReplyGate, server_access.PUSH, body()) == (403, b"")
    assert capsys.readouterr().out == f"hanse: refused: {said}; nodes push replies, each in its own name\n"


def test_replies_pass_the_gate_as_they_are_and_other_requests_are_not_read() -> None:
    honest, gate = pushed(reply_of(NODE)), server_access.ReplyGate
    assert through(gate, server_access.PUSH, honest, cut=7) == (299, honest)
    assert through(gate, "/v1/fleet/pull-messages", b"\xff" * 40) == (299, b"\xff" * 40)
    assert through(gate, server_access.PUSH, b"x" * (server_access.LARGEST_PUSH + 1)) == (413, b"")


def test_the_gate_stands_around_the_superlink_on_every_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(server_access.gated("flower-superlink", "app").app, server_access.ReplyGate)
    assert server_access.gated("flower-supernode", "app").app == "app"
    monkeypatch.setattr(server_access, "TABLE", tmp_path / "tcp")
    assert isinstance(server_access.gated("flower-superlink", "app"), server_access.ReplyGate)


def test_what_a_participant_lists_must_be_there() -> None:
    with pytest.raises(UserError, match=r"client_app.*'nobody:loss'"):
        client_app(mine, own=["nobody:loss"])
