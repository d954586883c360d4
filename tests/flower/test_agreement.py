"""What a node's owner agreed to binds: whatever goes beyond it is refused at once and kept; honest runs never do."""

import hashlib
import inspect
import io
import json
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from commands import invoke
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from experiments import digits
from flwr.supercore.fab import Fab
from flwr.supernode import start_client_internal as node
from hypothesis import given, settings
from hypothesis import strategies as st
from inprocess import HOMES, KEY, PINNED, play
from network_rehearsal import NetworkRehearsal, rehearse_network
from test_flower_in_process import grid_of
from test_letters import After, DiesError, dies, kept

import hanse
from hanse.base.files import AGREEMENTS, ASKED
from hanse.core.declared import UnsoundError
from hanse.core.port import Ask, Call, Confusion, Gradient, Mixture, Nearest, Payload, Request, Score, Test, Train
from hanse.federation.codec import WireError
from hanse.federation.local import LocalFederation
from hanse.flower import node_log, server
from hanse.flower.agreement import _TALLY, Agreement, AskedOf, Binding, QuestionTally, added, counted, sources, take
from hanse.flower.node_log import NodeLog
from hanse.flower.operator_key import make_operator_key, public_key
from hanse.flower.witnesses import ShownHeads
from hanse.ledger.log import LogHead
from hanse.ledger.receipts import read_receipts
from hanse.ledger.run_ledger import BooksAtCheckpoint
from hanse.ledger.store import Ledger
from hanse.ledger.witness import Prover, alarms
from hanse.mechanisms.registry import MECHANISMS
from hanse.runs.run_record import load_run
from hanse.wings.operate import loopback, server_access

DAY = "2026-11-28"
FLOWERS = node._pull_and_store_message


def paying(rounds: int, every: int = 1, clients: int = 5, **more: Any) -> hanse.Experiment:
    data = {"client_test": 0.2, "client_validation": 0.2}
    run = {"checkpoint_every": every}
    mechanism = {"name": "fedavg", "clients_per_round": clients, "value": "path", "settle": "by_value"}
    return digits(mechanism, clients, rounds, data=data, run=run, **{"eval": {"every": 1}, **more})


def agreed(experiment: hanse.Experiment | None = None) -> Agreement:
    found = paying(20, 5) if experiment is None else experiment
    return Agreement.of(found, run="mine", network="town", operator=PINNED, day=DAY)


def asked(agreement: Agreement, round: int, head: int | None = None, **more: Any) -> AskedOf:
    """A request of client 2 that shows the head that closes round ``head``."""
    shown = None if head is None else LogHead("town", 3 * head + 3, bytes(32), head)
    return replace(AskedOf(round, DAY, 2, {"Train": (1, 1)}, shown), **more)


# ---- the agreement as a value


def test_an_agreement_is_read_as_it_is_written_and_otherwise_not() -> None:
    made = agreed()
    note = made.note(KEY)
    found, lines = Agreement.read(note)
    assert (found.hash, found.signed(lines), len(lines)) == (made.hash, True, 1)
    assert not replace(found, rounds=21).signed(lines)
    more = note.replace(' "run": "mine"', ' "a": 1,\n "run": "mine"')
    for other in (note.replace('"rounds": 20', '"rounds":20'), more, note[1:]):
        assert other != note
        with pytest.raises(UnsoundError):
            Agreement.read(other)
    assert {"engine", "ledger"} & set(made.experiment) == set()
    assert made.experiment["data"] == {"clients": 5}


BEYOND: dict[str, Callable[[Agreement], AskedOf]] = {
    "a gradient": lambda a: asked(a, 7, 4, questions={"Gradient on train": (1, 1)}),
    "two models at once": lambda a: asked(a, 7, 4, questions={"Train": (2, 2)}),
    "a million tests": lambda a: asked(a, 7, 4, questions={"Test": (10**6, 10**6)}),
    "a test of a million models": lambda a: asked(a, 7, 4, questions={"Test": (1, 10**6)}),
    "round -1": lambda a: asked(a, -1, 4),
    "round 2^62": lambda a: asked(a, 2**62, 4),
    "a round too many": lambda a: asked(a, 21, 18),
    "a fallen round": lambda a: asked(a, 3, 4),
    "no head": lambda a: asked(a, 7),
    "a letter without a head": lambda a: asked(a, -1, letter=True),
    "a frozen head": lambda a: asked(a, 12, 4),
    "another book": lambda a: replace(asked(a, 7), head=LogHead("other", 30, bytes(32), 6)),
    "another client": lambda a: asked(a, 7, 4, client=3),
    "no client of the run": lambda a: asked(a, 7, 4, client=5),
    "after its end": lambda a: asked(a, 7, 4, day="2027-11-29"),
}


def test_a_head_says_how_far_the_run_is_although_no_request_of_its_rounds_was_answered() -> None:
    """A server may make requests that are refused, and show the heads in them: then fall to rounds long past."""
    agreement = agreed()
    assert agreement.allows(asked(agreement, 10, 9), QuestionTally()) is None
    assert agreement.allows(asked(agreement, 3, 9), QuestionTally()) is not None
    told = QuestionTally().after(asked(agreement, -1, 9, letter=True), agreement)
    assert (told.highest, told.newest, told.book) == (10, -1, "town")
    assert agreement.allows(asked(agreement, 3), told) is not None
    assert agreement.allows(asked(agreement, 3, 9), told) is not None
    assert agreement.allows(asked(agreement, 5, 9), told) is None  # a copy of the checkpoint before


@pytest.mark.parametrize("name", BEYOND)
def test_what_goes_beyond_is_refused_at_the_first_request(name: str) -> None:
    agreement = agreed()
    tally = QuestionTally().after(asked(agreement, 6, 4), agreement)
    tally = replace(tally, highest=9)
    assert agreement.allows(asked(agreement, 7, 4), tally) is None
    assert agreement.allows(BEYOND[name](agreement), tally) is not None


def test_a_round_is_played_again_so_often_and_no_oftener() -> None:
    agreement = agreed()
    tally, taken = QuestionTally(), 0
    for _ in range(1000):
        one = asked(agreement, 4, 4, questions={"Test": (1, 2)})
        if agreement.allows(one, tally) is None:
            tally, taken = tally.after(one, agreement), taken + 1
    assert (taken, tally.replays) == (1 + agreement.replays, agreement.replays)
    assert tally.in_all["Test"][0] <= agreement.questions["Test"].in_all


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_an_honest_server_that_is_restarted_is_never_refused(data: st.DataObject) -> None:
    """It asks to train and to test in each round, is killed anywhere, and goes on from its last checkpoint, which is
    written, with the books, at any time during the next round.
    """
    every, rounds = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 40))
    agreement = agreed(paying(rounds, every))
    left, durable, round, tally = agreement.replays, 0, 0, QuestionTally()
    writing: int | None = None

    def send(number: int, kind: str) -> None:
        nonlocal tally
        head, models = durable - 1 if durable else None, 2 if kind == "Test" else 1
        one = asked(agreement, number, head, questions={kind: (1, models)})
        assert agreement.allows(one, tally) is None
        tally = tally.after(one, agreement)

    while round < rounds:
        late = data.draw(st.booleans())  # whether the checkpoint is written only after this round's exchanges
        if writing is not None and not late:
            durable, writing = writing, None
        dies_after = data.draw(st.sampled_from([None, None, None, "before", "Train", "Test"])) if left else None
        for step in ("before", "Train", "Test"):
            if step != "before":
                send(round + (step == "Test"), step)
            if dies_after == step:
                break
        if dies_after is not None:
            left, round, writing = left - 1, durable, None
            continue
        if writing is not None:
            durable, writing = writing, None
        round += 1
        if round % every == 0:
            writing = round


ASKING = ("fedfomo", "fedsoft", "ifca", "power_of_choice", "pifl", "ipfl", "ditto", "scaffold")
VARIANTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"name": "ipfl_posted"}, {}),
    ({"name": "fedavg", "weigh": {"name": "q_fedavg"}}, {}),
    ({"name": "fedavg", "value": "path"}, {"clients": {"told": True}}),
]


@pytest.mark.parametrize(
    "names", [ASKING, pytest.param([n for n in MECHANISMS if n not in ASKING], marks=pytest.mark.nightly)]
)
def test_each_mechanism_asks_no_more_than_it_says(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a round asks, its agreement names every kind, and no fewer questions and models."""
    seen: dict[tuple[int, int], dict[str, tuple[int, int]]] = {}
    terms = set[str]()
    honest = LocalFederation.exchange

    def exchange(self: Any, call: Call) -> Any:
        for r in call.requests:
            mine = seen.setdefault((call.round, r.client), {})
            for kind, (n, models) in counted(r.tasks).items():
                before = mine.get(kind, (0, 0))
                mine[kind] = before[0] + n, before[1] + models
            terms.update(added(r.tasks))
        return honest(self, call)

    monkeypatch.setattr(LocalFederation, "exchange", exchange)
    sections: dict[str, Any] = {"model": "logistic", "run": {"rounds": 2}, "engine": {"train": "sequential"}}
    sections["data"] = {"clients": 4, "client_validation": 0.2, "client_test": 0.2}
    played = 0
    for mechanism, others in [*(({"name": name}, {}) for name in names), *(VARIANTS if names == ASKING else [])]:
        seen.clear()
        terms.clear()
        try:
            exp = hanse.Experiment(**sections, mechanism=mechanism, **others)
            hanse.run(exp)
        except hanse.UserError:  # it needs other data, or is not played alone
            assert (mechanism, others) not in VARIANTS
            continue
        played += 1
        limits = agreed(exp).questions
        assert terms <= set(agreed(exp).adds), mechanism
        for here in seen.values():
            for kind, (n, models) in here.items():
                assert kind in limits, (mechanism, kind)
                assert n <= limits[kind].a_round, (mechanism, kind)
                assert models <= limits[kind].models, (mechanism, kind)
    assert played >= 8


ROW = torch.zeros(3)
# what an agreement leaves free: which model it is, its names, and what the recipe or the policy makes of it
FREE = {"name", "values", "model", "seat", "row", "start", "centre", "before", "last", "clip", "scored", "normalised"}
OTHER = {
    "mu": 20.0, "tilt": ROW, "work": 9, "private": True, "payload": Payload(ROW, ROW, 1, 1, 1, 1, 1, 0.0, 0.0),
    "share": "test", "limit": 1, "models": torch.zeros(2, 3), "beside": ROW, "mixture": Mixture(ROW[None], "test"),
}  # fmt: skip


@pytest.mark.parametrize("kind", [Train, Score, Nearest, Gradient, Confusion, Ask, Test, Mixture])
def test_every_field_of_a_task_is_agreed_or_free(kind: type) -> None:
    """A new field of a task must be one or the other."""
    told: dict[str, Any] = {
        "name": "q", "values": {}, "models": ROW[None], "model": ROW, "seat": 0, "row": 0, "start": ROW,
    }  # fmt: skip
    names = [one.name for one in fields(kind)]
    task = kind(**{name: told[name] for name in names if name in told})

    def asks(one: Any) -> tuple[Any, ...]:
        tasks = [Test("q", ROW, mixture=one) if kind is Mixture else one]
        return counted(tasks), added(tasks)

    for name in set(names) - FREE:
        assert asks(replace(task, **{name: OTHER[name]})) != asks(task), name


@pytest.mark.parametrize(
    ("mechanism", "honest", "lies"),
    [
        ({"name": "ifca"}, Score("q", ROW[None]), [Score("q", ROW[None], limit=1), Score("q", ROW[None], "test")]),
        (
            {"name": "fedfomo", "score_samples": 9}, Score("q", ROW[None], "validation", 9),
            [Score("q", ROW[None], "validation", 8), Score("q", ROW[None], "train", 9), Score("q", ROW[None])],
        ),
        ({"name": "pifl"}, Ask("b", {}, ROW[None], limit=64), [Ask("b", {}, ROW[None], limit=n) for n in (1, None)]),
        (
            {"name": "pifl"}, Test("t", ROW, mixture=Mixture(ROW[None])),
            [Test("t", ROW, mixture=Mixture(ROW[None], "train")), Test("t", ROW, mixture=Mixture(torch.zeros(99, 3)))],
        ),
        (
            {"name": "fedprox", "mu": 0.1}, Train(0, 0, ROW, centre=ROW, mu=0.1),
            [Train(0, 0, ROW, centre=ROW, mu=mu) for mu in (0.11, -20.0, 1e300)],
        ),
    ],
)  # fmt: skip
def test_samples_and_strengths_that_were_not_agreed_are_refused(mechanism: Any, honest: Any, lies: list[Any]) -> None:
    data = {"clients": 4, "client_validation": 0.2, "client_test": 0.2, "validation": 0.2}
    agreement = agreed(hanse.Experiment(data=data, mechanism=mechanism, run={"rounds": 3}))

    def why(task: Any) -> str | None:
        one = asked(agreement, 0, 0 if agreement.books else None, questions=counted([task]), adds=added([task]))
        return agreement.allows(one, QuestionTally())

    assert why(honest) is None
    assert all(why(lie) is not None for lie in lies)


def test_a_part_that_does_not_say_what_it_asks_is_no_part_of_an_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(paying(3).mechanism.built.select)
    monkeypatch.setattr(kind, "asks", lambda part, view, state: [Request(0, (Ask("why", {}),))])
    with pytest.raises(hanse.UserError, match="its method 'questions' must say"):
        agreed()


@pytest.mark.parametrize("made", ["Loop.of", "fit"])
def test_a_change_in_the_file_that_an_import_path_names_is_a_change_of_what_is_agreed(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of an object whose class or function is another file's."""
    monkeypatch.syspath_prepend(tmp_path)
    begin = "from hanse.learning.loop import Loop\ndef fit(lr): ...\n"
    (tmp_path / "owns_it.py").write_text(f"{begin}thing = {made}\n")
    none: dict[str, Any] = {"model": {"name": "mlp"}, "mechanism": {}, "clients": {}, "eval": {}}
    try:
        before = sources({**none, "train": {"loop": "owns_it:thing"}})
        (tmp_path / "owns_it.py").write_text(f"{begin}thing = {made}  # changed\n")
        assert sources({**none, "train": {"loop": "owns_it:thing"}}) != before
    finally:
        sys.modules.pop("owns_it", None)


# ---- nodes


@pytest.fixture
def small(tmp_path: Path) -> NetworkRehearsal:
    return rehearse_network("fedavg", tmp_path / "nodes")


def evidence(home: Path, operator: Ed25519PrivateKey) -> list[dict[str, Any]]:
    """Return what a node has kept of what went beyond, after checking that the operator has signed it."""
    lines = [line for line in NodeLog(home).verified()[0] if "signature" in line]
    public = Ed25519PublicKey.from_public_bytes(operator.public_key().public_bytes_raw())
    for line in lines:
        public.verify(bytes.fromhex(line["signature"]), line["statement"].encode())
    return lines


def test_a_node_refuses_and_keeps_what_goes_beyond(
    small: NetworkRehearsal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = small.start.table.rows[0]
    lies: list[tuple[int, tuple[Any, ...]]] = [
        (0, (Gradient("g", model[None]),)),
        (0, (Test("t", model, mixture=Mixture(torch.stack([model] * 50))),)),
        (4, (Train(0, 0, model),)),
        (0, (Train(0, 0, model, centre=model + 1, mu=10.0),)),
        (0, (Train(0, 0, model, tilt=model),)),
        (0, (Train(0, 0, model, work=200),)),
        (0, (Train(0, 0, model, private=True),)),
        (0, (Test("t", model, mixture=Mixture(model[None])),)),
    ]
    for number, (round, tasks) in enumerate(lies, 1):
        [reply] = small.federation.exchange(Call(round, [Request(2, tasks)]))
        assert reply.refused is not None, tasks
        assert "beyond the agreement" in reply.refused
        assert len(evidence(tmp_path / "nodes" / "node2", small.federation.key)) == number
        assert caplog.text.count("a message was refused") == number  # its owner is told at once
    [reply] = small.federation.exchange(Call(0, [Request(2, (Train(0, 0, model),))]))
    assert reply.refused is None
    assert not evidence(tmp_path / "nodes" / "node1", small.federation.key)
    tests = [small.federation.exchange(Call(1, [Request(2, (Test("t", model),))]))[0] for _ in range(9)]
    assert [one.refused is None for one in tests] == [True] * (1 + agreed(small.experiment).replays) + [False] * 5


def test_a_node_without_an_agreement_says_who_it_is_and_no_more(small: NetworkRehearsal, tmp_path: Path) -> None:
    home = tmp_path / "nodes" / "node3"
    for file in (home / AGREEMENTS).glob("*.txt"):
        file.unlink()
    [reply] = small.federation.exchange(Call(0, [Request(3, (Ask("stay", {}),))]))
    assert "has not agreed" in str(reply.refused)
    assert len(evidence(home, small.federation.key)) == 1
    small.federation.agreement = "\x1b[2J"
    small.federation.exchange(Call(0, [Request(3, (Ask("stay", {}),))]))
    assert len(NodeLog(home).verified()[0]) == 6
    result = invoke("network", "log", home, color=True)
    assert (result.exit_code, "\x1b" in result.output) == (0, False)
    assert not (home / "rehearsal").exists()


def test_a_server_keeps_out_whose_owner_has_not_agreed(tmp_path: Path) -> None:
    exp = paying(2)
    grid = grid_of(exp, tmp_path)
    grid.apps[102] = grid_of(exp, tmp_path / "others").apps[102]  # type: ignore[assignment]
    HOMES.pop(id(grid.apps[102]))
    run = play(grid, exp, tmp_path / "run", members=4, patience_s=1.0)
    members = json.loads((tmp_path / "run" / "members.json").read_text())
    assert (len(members), [m["present"] for m in run.metrics]) == (4, [4, 4])
    assert all(len(m["witness"]) == 64 and m["agreed"] for m in members)  # the operator has their signatures


def test_an_agreement_stands_in_records_statements_and_receipts(tmp_path: Path) -> None:
    exp = paying(2)
    names = {m["agreement"] for m in play(grid_of(exp, tmp_path), exp, tmp_path / "run").metrics}
    said = [receipt.said for receipts in kept(tmp_path).values() for receipt in receipts]
    assert names == {s["agreement"] for s in said if s["round"] < 2}
    assert len(names) == 1
    assert (tmp_path / "node0" / AGREEMENTS / f"{names.pop()}.txt").is_file()
    (tmp_path / "o.pub").write_text(PINNED.hex())
    signed = f"receipt verify {{}} --operator {tmp_path / 'o.pub'}"
    for words in ("ledger verify {}", "statement {} --client 0", signed):
        what = next((tmp_path / "node0").glob("*/client-0/receipts/*")) if "receipt" in words else tmp_path / "run"
        result = invoke(*words.format(what).split())
        assert result.exit_code == 0, result.output
    [folder] = (tmp_path / "node0").glob("*/client-0/receipts")
    assert len(list(read_receipts(folder))) == 3


# ---- heads


@pytest.mark.parametrize("lie", ["frozen", "missing"])
def test_heads_that_stop_are_refused_in_the_first_round_that_must_show_a_newer_one(
    lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client was shown the head of round 1, and then no other."""
    at, honest = dict[int, Any](), ShownHeads.to

    def to(shown: ShownHeads, client: int) -> dict[str, Any]:
        found = {} if lie == "missing" and client in at else at.get(client) or honest(shown, client)
        if found and LogHead.read(found["head"]).round == 1:
            at[client] = found
        return found

    monkeypatch.setattr(ShownHeads, "to", to)
    run = play(grid_of(paying(8), tmp_path), paying(8), tmp_path / "run")
    first = min(round for round, _, _ in load_run(run.path).refusals())
    # a frozen one is behind the receipts before it is behind the agreement: both heads are the evidence
    kept = evidence(tmp_path / "node1", KEY) if lie == "missing" else alarms(tmp_path / "node1")
    assert (first, bool(kept)) == (3 if lie == "missing" else 4, True)


def test_a_run_goes_on_under_a_renewed_agreement_while_receipts_of_the_one_before_wait(tmp_path: Path) -> None:
    exp, run = paying(4), tmp_path / "run"
    homes = [tmp_path / f"node{c}" for c in range(5)]
    with pytest.raises(DiesError):
        play(grid_of(exp, tmp_path), exp, run, After(1, dies))
    first = Agreement.of(exp, run="run", network="test", operator=PINNED, day=time.strftime("%Y-%m-%d", time.gmtime()))
    renewed = replace(first, replays=9)
    for home in homes:
        take(home, renewed.note(KEY), PINNED, time.time())
    played = play(grid_of(exp, tmp_path), exp, run, agreement=renewed)
    assert ([m["answered"] for m in played.metrics], list(load_run(run).refusals())) == ([5] * 4, [])
    named = [{r.said.get("agreement", renewed.hash) for r in receipts} for receipts in kept(tmp_path).values()]
    assert named == [{first.hash, renewed.hash}] * 5


# ---- the owner's hand-over


def hand_over(folder: Path) -> Path:
    (folder / "operator.pub").write_text(PINNED.hex() + "\n")
    (folder / "agreement.txt").write_text(agreed().note(KEY))
    return folder / "agreement.txt"


Join = Callable[..., tuple[int, str]]


@pytest.mark.usefixtures("unwarmed")
def test_an_owner_hands_the_agreement_over_and_the_node_signs_it(tmp_path: Path, join: Join) -> None:
    file = hand_over(tmp_path)
    made = agreed()
    code, said = join("--operator", tmp_path / "operator.pub")
    assert (code, "no agreement" in said) == (0, True)
    assert Binding.find(tmp_path / "home", made.hash, PINNED) is None
    code, said = join("--operator", tmp_path / "operator.pub", "--agree", file)
    assert (code, made.hash in said, "20 rounds" in said) == (0, True, True)
    assert Binding.find(tmp_path / "home", made.hash, PINNED).agreement.hash == made.hash
    (tmp_path / "home" / AGREEMENTS / f"{'0' * 64}.txt").write_text("of another release")
    code, said = join("--operator", tmp_path / "operator.pub")
    assert (code, made.hash in said) == (0, True)


@pytest.mark.usefixtures("unwarmed")
def test_what_an_owner_cannot_agree_to_is_named(tmp_path: Path, join: Join) -> None:
    file, made = hand_over(tmp_path), agreed()
    other = Ed25519PrivateKey.generate()

    def note(**changes: Any) -> str:
        return replace(made, **changes).note(KEY)

    wrong = {
        "none": "hello",
        "edited": note().replace('"rounds": 20', '"rounds": 21'),
        "another key": replace(made, operator=other.public_key().public_bytes_raw().hex()).note(other),
        "ended": note(expires="2026-01-01"),
        "another release": note(releases={"9": "0" * 64}),
        "unsigned": made.text + "\n",
        "another's signature": f"{made.text}\n{note(rounds=21).splitlines(keepends=True)[-1]}",
        "two": note() + note(rounds=21),
        "no such day": note(expires="9999-99-99"),
        "a run that leads elsewhere": note(run="../../x"),
        "orders to a terminal": note(network="a\x1b[2J"),
        "no experiment": note(experiment={}),
        "more clients than memory": note(experiment={**made.experiment, "data": {"clients": 10**12}}),
    }
    for text in wrong.values():
        file.write_text(text)
        code, said = join("--operator", tmp_path / "operator.pub", "--agree", file)
        assert (code, said.startswith("--agree")) == (2, True), said
    file.write_text(note())
    (tmp_path / "link").symlink_to(file)
    (tmp_path / "long").write_text("a = 1\n" * 10**7)
    for path in ("link", "long", "missing"):
        assert join("--operator", tmp_path / "operator.pub", "--agree", tmp_path / path)[0] == 2
    for weak in (0, 1, 2**255 - 20):
        (tmp_path / "operator.pub").write_text(weak.to_bytes(32, "little").hex())
        with pytest.raises(hanse.UserError):
            public_key(tmp_path / "operator.pub")
    assert not (tmp_path / "home" / AGREEMENTS).exists()


def test_parts_in_the_projects_folder_are_found_wherever_the_command_is_given(
    harvest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (harvest / "own_parts.py").write_text(
        "from hanse.mechanisms.registry import MECHANISMS\n\n\ndef mine():\n    return MECHANISMS['fedavg']()\n"
    )
    toml = harvest / "experiment.toml"
    toml.write_text(toml.read_text().replace('"fedavg"\nclients_per_round = 3', '"own_parts:mine"'))
    assert loopback.Loopback(harvest, harvest, (9100, 9101)).agree().experiment["mechanism"]["name"] == "own_parts:mine"


def test_an_operator_keeps_or_renews_the_agreement(
    harvest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = harvest / "experiment.toml"
    toml.write_text(paying(4).to_toml())
    net = loopback.Loopback(harvest, harvest, (9100, 9101))
    first = net.agree()
    assert (harvest / "participants" / "node0" / AGREEMENTS / f"{first.hash}.txt").exists()
    assert net.agree() == first  # it still fits
    moved = shutil.copytree(harvest, tmp_path / "moved")
    assert loopback.Loopback(moved, moved, (9100,)).agree() == first
    net.agreement.write_text(net.agreement.read_text().replace('"replays": 3', '"replays":  9'))
    edited = net.agree()
    assert (edited.replays, edited.run) == (9, first.run)
    assert Agreement.read(net.agreement.read_text())[0].hash == edited.hash
    run = tmp_path / "run"
    assert server.used(net.agreement, run).hash == edited.hash
    with pytest.raises(hanse.UserError, match="was used for the run in"):
        server.used(net.agreement, tmp_path / "other")
    run.mkdir()
    (run / "federation.json").write_text(json.dumps({"run": edited.run}))
    toml.write_text(paying(9).to_toml())
    longer = net.agree()
    assert (longer.rounds, longer.run) == (9, first.run)
    (run / "config.toml").write_text(paying(4).to_toml())
    with monkeypatch.context() as patch:
        patch.setattr(loopback, "latest_claim", lambda run: BooksAtCheckpoint(finished=True))
        with pytest.raises(hanse.UserError, match=r"run\.rounds: 9: the last of 4 rounds in .* was settled"):
            net.agree()
    (harvest / "client_app.py").write_text("app = None\n")
    said = list[str]()
    recoded = net.agree(said.append)
    assert (recoded.app != longer.app, recoded.run) == (True, first.run)
    assert [line.partition("(")[2].partition(")")[0] for line in said] == ["app"]
    (run / "federation.json").unlink()  # it was moved away: another run begins
    assert net.agree().run != first.run
    server.used(net.agreement, tmp_path / "other")


def test_a_project_that_makes_no_app_is_named(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(paying(4).to_toml())
    make_operator_key(tmp_path / "certs")
    with pytest.raises(hanse.UserError, match="makes no app"):
        loopback.Loopback(tmp_path, tmp_path, (9100,)).agree()


def test_nodes_are_not_sent_a_run_with_the_app(harvest: Path) -> None:
    kept, net = harvest / "run1" / "federation.json", loopback.Loopback(harvest, harvest, (9100,))
    kept.parent.mkdir()
    kept.touch()
    with pytest.raises(hanse.UserError, match="run1"):
        net.agree()
    (harvest / ".gitignore").write_text("/run1/\n")
    net.agree()


def test_a_node_runs_only_the_app_that_was_agreed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Flower's SuperNode fetches an app for the first message of a run, and asks whether it may run."""
    ran = list[bytes]()

    def pull(*, get_run: Any, get_fab: Any, trusted_entities: Any, **given: Any) -> int:
        fab = get_fab(get_run(7).fab_hash, 7)
        if not trusted_entities or (fab.verifications.get("valid_license") and node._verify_fab(fab, {})):
            ran.append(fab.content)
        return 1

    monkeypatch.setattr(node, "_pull_and_store_message", pull)
    monkeypatch.setattr(node, "_verify_fab", None)
    server_access.gate_apps(tmp_path)

    def sends(app: bytes, name: str = "a/b", version: str = "1.0.0", digest: str = "") -> bool:
        before, told = len(ran), digest or hashlib.sha256(app).hexdigest()
        said = SimpleNamespace(fab_id=name, fab_version=version, fab_hash=told)
        node._pull_and_store_message(
            get_run=lambda _: said, get_fab=lambda *_: Fab(told, app, {}), trusted_entities=None
        )
        return len(ran) > before

    def made(code: str) -> bytes:
        """An app as Flower packs it."""
        packed, toml = io.BytesIO(), '[project]\nname = "b"\nversion = "1.0.0"\n[tool.flwr.app]\npublisher = "a"\n'
        toml += '[tool.flwr.app.components]\nserverapp = "s:app"\nclientapp = "client_app:app"\n'
        with zipfile.ZipFile(packed, "w") as file:
            file.writestr("pyproject.toml", toml)
            file.writestr("client_app.py", code)
        return packed.getvalue()

    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    app = made("app = 1")
    digest = hashlib.sha256(app).hexdigest()
    assert sends(b"any")  # without an agreement it says who it is, whatever app asks
    take(tmp_path, replace(agreed(), app=digest).note(KEY), PINNED, 0.0)
    assert (sends(app), sends(made("app = 2")), sends(b"another"), sends(b"")) == (True, False, False, False)
    # what Flower would run instead is a folder by name, version and digits of the hash, as the SuperLink says them
    assert not sends(app, name="a/c")
    assert not sends(app, version="1.0.0.0/../x")
    assert not sends(app, digest="0" * 64)
    folder = tmp_path / "flwr" / "apps" / f"a.b.1.0.0.{digest[:8]}"
    (tmp_path / "elsewhere").mkdir()
    for swap in (lambda: folder.mkdir(parents=True), lambda: folder.symlink_to(tmp_path / "elsewhere")):
        swap()
        assert (sends(app), os.path.lexists(folder), (tmp_path / "elsewhere").exists()) == (True, False, True)
    [note] = (tmp_path / AGREEMENTS).glob("*.txt")
    note.write_text("{")
    assert not sends(app)
    assert {"get_run", "get_fab", "trusted_entities"} <= set(inspect.signature(FLOWERS).parameters)


def test_a_server_plays_what_was_agreed_alone(tmp_path: Path) -> None:
    exp = paying(3)
    with pytest.raises(hanse.UserError) as wrong:
        play(grid_of(exp, tmp_path), paying(4), tmp_path / "run", data=None, patience_s=1.0, agreement=agreed(exp))
    assert wrong.value.lines[0].startswith("run.rounds: 4: 3 was agreed")
    assert not (tmp_path / "run").exists()


# ---- the node's own log


def test_a_log_says_what_was_asked_and_left_and_no_sample(small: NetworkRehearsal, tmp_path: Path) -> None:
    model = small.start.table.rows[0]
    small.federation.exchange(Call(0, [Request(1, (Train(0, 0, model),))]))
    small.federation.exchange(Call(0, [Request(1, (Gradient("g", model[None]),))]))
    home = tmp_path / "nodes" / "node1"
    lines, roots = NodeLog(home).verified()
    assert [line["event"] for line in lines] == ["asked", "answered"] * 3
    hello, train, beyond = lines[1], lines[3], lines[5]
    assert hello["left"]["beside"] == ["hello"]
    held = small.federation.members.by_id()[1].num_samples
    assert (train["questions"], train["samples"]) == ({"Train": [1, 1]}, {"train": held})
    assert (train["left"]["results"], train["left"]["lengths"]) == (["Trained"], [model.numel()])
    assert train["left"]["bytes"] > 4 * model.numel()
    assert (beyond["left"]["results"], "Gradient" in beyond["refused"]) == ([], True)
    assert (home / ASKED).stat().st_size < 4000
    result = invoke("network", "log", home)
    assert (result.exit_code, roots[-1] in result.output) == (0, True)
    assert "beyond the agreement: 1 request," in result.output


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_every_edit_of_a_log_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    home = tmp_path_factory.mktemp("log")
    log = NodeLog(home)
    for number in range(data.draw(st.integers(1, 6))):
        log.took(f"{number:032x}", kind="request", round=number)
        log.add(f"{number:032x}", left={"bytes": number})
    roots, lines = log.verified()[1], (home / ASKED).read_bytes().splitlines(keepends=True)
    assert len(roots) == len(lines)
    at = data.draw(st.integers(0, len(lines) - 1))
    how = data.draw(st.sampled_from(["cut", "twice", "byte", "swap"]))
    if how == "cut":
        lines = lines[:at]
    elif how == "twice":
        lines.insert(at, lines[at])
    elif how == "byte":
        where = data.draw(st.integers(0, len(lines[at]) - 2))
        lines[at] = lines[at][:where] + bytes([lines[at][where] ^ 1]) + lines[at][where + 1 :]
    else:
        other = (at + 1) % len(lines)
        lines[at], lines[other] = lines[other], lines[at]
    (home / ASKED).write_bytes(b"".join(lines))
    if how in ("swap", "twice"):
        with pytest.raises(hanse.UserError):
            log.verified()
    with suppress(hanse.UserError):  # of the last line, and of an end that was cut off, the root alone tells
        assert roots[-1] not in log.verified()[1]


def test_a_line_that_a_crash_has_cut_short_is_no_line(tmp_path: Path) -> None:
    log = NodeLog(tmp_path)
    log.took("0", kind="request")
    with (tmp_path / ASKED).open("ab") as file:
        file.write(b'{"before":"')
    assert len(log.verified()[0]) == 1
    log.took("1", kind="request")
    assert [line["nonce"] for line in log.verified()[0]] == ["0", "1"]


def test_a_log_that_is_too_long_takes_no_request_and_still_notes_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = NodeLog(tmp_path)
    assert log.took("0", kind="request")
    monkeypatch.setattr(node_log, "MOST", (tmp_path / ASKED).stat().st_size)
    with pytest.raises(WireError):
        log.took("1", kind="request")
    log.add("0")
    assert [line["event"] for line in log.verified()[0]] == ["asked", "answered"]


def test_a_log_written_anew_lacks_the_root_that_was_noted(tmp_path: Path) -> None:
    for folder, kind in (("one", "request"), ("two", "letter")):
        log = NodeLog(tmp_path / folder)
        for number in range(3):
            log.took(f"{number}", kind=kind)
            log.add(f"{number}")
    noted = NodeLog(tmp_path / "one").verified()[1][-1]
    NodeLog(tmp_path / "one").took("3", kind="letter")
    NodeLog(tmp_path / "one").add("3")
    now = NodeLog(tmp_path / "one").verified()[1][-1]
    for root, after in ((noted, 2), (noted.upper(), 2), (now, 0)):
        held = invoke("network", "log", tmp_path / "one", "--root", root)
        said = held.output.splitlines()
        marks = [number for number, line in enumerate(said) if line.startswith("--")]
        assert (held.exit_code, marks, said[-1].endswith(now)) == (0, [6] if after else [], True)
    assert invoke("network", "log", tmp_path / "two", "--root", noted).exit_code != 0


def test_heads_of_books_that_were_not_agreed_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From round 2 on each request shows a head of another new book, which the operator has signed."""
    honest, books = ShownHeads.to, list[Ledger]()

    def to(shown: ShownHeads, client: int) -> dict[str, Any]:
        found: dict[str, Any] = honest(shown, client)
        if not found or LogHead.read(found["head"]).round < 1:
            return found
        books.append(Ledger.open(tmp_path / f"{len(books)}.jsonl", book=f"book{len(books)}", key=KEY))
        for round in range(3):
            books[-1].close_round(round)
        return {**found, "head": Prover(books[-1]).head().note(), "since": 0, "proof": ""}

    monkeypatch.setattr(ShownHeads, "to", to)
    play(grid_of(paying(6), tmp_path), paying(6), tmp_path / "run")
    assert len(books) > 5
    assert len(list((tmp_path / "node1" / "heads").iterdir())) == 1
    assert evidence(tmp_path / "node1", KEY)


def test_an_honest_run_that_is_resumed_four_times_is_never_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exp = paying(24, 5, clients=2, eval={"every": 5, "clients": 1})
    monkeypatch.setattr("test_flower_in_process.N", 2)
    for death in (3, 6, 7, 17):
        with pytest.raises(DiesError):
            play(grid_of(exp, tmp_path), exp, tmp_path / "run", After(death, dies))
    run = play(grid_of(exp, tmp_path), exp, tmp_path / "run")
    assert (len(run.metrics), list(load_run(run.path).refusals())) == (24, [])
    assert not any(evidence(tmp_path / f"node{c}", KEY) for c in range(2))
    tally = _TALLY.read((tmp_path / "node0" / AGREEMENTS / "run.json").read_text().splitlines()[0])
    assert (tally.replays, tally.highest) == (4, 25)
