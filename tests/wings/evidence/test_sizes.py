"""Sizes that are proved: what members commit to counts once it is audited, and a bond is lost where it is not true."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run_hanse
from experiments import digits
from mistaken import mistakes
from rotation import rotating
from watching import After

import hanse
from hanse.core.entry import BOND, KEPT, LEAVE, RETURNED, Transaction, left_behind
from hanse.core.port import Reply, SizeCommitted
from hanse.data.commitment import SampleCommitment
from hanse.federation.behaviour import Behaviour, Me
from hanse.ledger.run_ledger import reading
from hanse.runs.replay import wrong_books
from hanse.wings.evidence.proved_sizes import AUDIT, COMMIT, UNFINISHED
from hanse.wings.evidence.replay_bonds import Bonds

TOKEN = 1_000_000


def experiment(mechanism: Any = "fedavg", rounds: int = 3, sizes: Any = None, **sections: Any) -> hanse.Experiment:
    return digits(mechanism, 4, rounds, train={"steps": 3}, sizes={"proved": True, **(sizes or {})}, **sections)


def posted(folder: Path) -> list[tuple[int, str, str, tuple[tuple[str, int], ...], str]]:
    assert wrong_books(folder) is None
    with reading(folder) as ledger:
        return [
            (r.round, r.transaction.kind, r.transaction.step, r.transaction.postings, r.transaction.memo)
            for r in ledger.history()
        ]


@dataclass(frozen=True)
class Dodges(Behaviour):
    """Client 1 answers the questions of these names otherwise, in the first so many rounds."""

    how: str = "silent"
    name: str = AUDIT
    rounds: int = 99

    def present(self, me: Me, round: int) -> bool:
        return not (self.how == "leaves" and me.id == 1 and round > 0)

    def on_reply(self, me: Me, round: int, request: Any, reply: Reply) -> Reply:
        [*tasks] = request.tasks
        if me.id != 1 or round >= self.rounds or getattr(tasks[0], "name", "") != self.name:
            return reply
        if self.how in ("silent", "leaves"):
            return replace(reply, results=(), refused="no")
        [one] = reply.results
        if isinstance(one, SizeCommitted):
            return replace(reply, results=(replace(one, size=0 if self.how == "zero" else one.size + 1),))
        hashes = one.hashes[4:] if self.how == "short" else one.hashes.flip(0)
        return replace(reply, results=(replace(one, hashes=hashes),))


@dataclass(frozen=True)
class Grows(Behaviour):
    """Client 1 holds one sample more when it is audited than when it committed."""

    asked: list[int] = field(default_factory=list)

    def claims(self, me: Me, held: Any) -> Any:
        if me.id == 1:
            self.asked.append(held.commitment.size)
        return held if me.id != 1 or len(self.asked) == 1 else held.with_invented(1)


def test_a_commitment_cannot_change(tmp_path: Path) -> None:
    hanse.run(experiment(behaviour={f"{__name__}:Grows": {}}), out=tmp_path / "run")
    [(when, step, memo)] = [(r, step, memo) for r, kind, step, _, memo in posted(tmp_path / "run") if kind == KEPT]
    assert (when, step, memo) == (1, f"{KEPT}/1", "the audit was not answered")


def played(tmp_path: Path, how: str, name: str = AUDIT, rounds: int = 99, **sizes: Any) -> hanse.Run:
    behaviour = {f"{__name__}:Dodges": {"how": how, "name": name, "rounds": rounds}}
    return hanse.run(experiment(behaviour=behaviour, sizes=sizes), out=tmp_path / "run")


def weight(run: hanse.Run, round: int, client: int) -> float:
    return next(s["weight"] for s in run.clients if (s["round"], s["client"]) == (round, client))


def test_honest_members_get_their_bonds_back_and_weigh_as_before(tmp_path: Path) -> None:
    run = hanse.run(experiment(), out=tmp_path / "run")
    said = hanse.run(experiment(sizes={"proved": False}))
    assert (run.table.rows == said.table.rows).all()  # of digits, all samples are distinct
    moved = [line for line in posted(tmp_path / "run") if line[1] != "close"]
    assert [kind for _, kind, *_ in moved] == ["grant"] * 4 + [BOND] * 4 + [RETURNED] * 4
    size = int(run.clients[0]["samples"])
    assert moved[4][3] == (("client/0", -10 * TOKEN), ("escrow/0", 10 * TOKEN))
    assert moved[4][4].startswith(f"{size} samples, root ")
    assert moved[8][3] == (("escrow/0", -10 * TOKEN), ("client/0", 10 * TOKEN))
    assert moved[8][4].startswith("30 leaves opened, seed ")
    assert run.clients[0]["proved_samples"] == size


@pytest.mark.parametrize("mechanism", rotating(["fedavg", "ipfl_posted", "pifl"], 3))
def test_who_claims_what_it_has_not_loses_the_bond_and_its_weight(mechanism: str, tmp_path: Path) -> None:
    """A claim of ever so many samples does not own the average."""
    run = hanse.run(experiment(mechanism, behaviour={"liar": {"clients": [2], "size": 2.0**40}}), out=tmp_path / "run")
    lost = [one for one in posted(tmp_path / "run") if one[1] == KEPT]
    # no auditor finds the invented samples: asked twice, nothing is answered
    told = [(r, step, moved) for r, _, step, moved, _ in lost]
    assert told == [(1, f"{KEPT}/2", (("escrow/2", -10 * TOKEN), ("mint", 10 * TOKEN)))]
    assert {s["samples"] for s in run.clients if s["client"] == 2 and "samples" in s} == {0.0}
    assert run.book.balance("escrow/2") == 0
    if mechanism == "fedavg":
        assert weight(run, 0, 2) == weight(run, 2, 2) == 0.0
        assert run.book.balance("client/2") == 90 * TOKEN
        assert [run.book.balance(f"client/{c}") for c in (0, 1, 3)] == [100 * TOKEN] * 3


def test_without_proofs_one_liar_owns_the_average() -> None:
    run = hanse.run(experiment(sizes={"proved": False}, behaviour={"liar": {"clients": [2], "size": 2.0**40}}))
    assert weight(run, 0, 2) > 0.999


@pytest.mark.parametrize(
    ("how", "name", "reason", "round_"),
    [
        ("silent", AUDIT, "the audit was not answered", 1),
        ("leaves", AUDIT, "the audit was not answered", 1),
        ("short", AUDIT, "the audit was not answered", 1),  # refused at the port: not the hashes that were asked for
        ("flipped", AUDIT, "is not in the tree that was committed to", 0),
        ("more", COMMIT, "the audit was not answered", 1),  # another size than that of the tree
    ],
)
def test_an_audit_that_is_not_passed_costs_the_bond(
    how: str, name: str, reason: str, round_: int, tmp_path: Path
) -> None:
    played(tmp_path, how, name)
    [(when, _, step, moved, memo)] = [one for one in posted(tmp_path / "run") if one[1] == KEPT]
    assert (when, step, moved) == (round_, f"{KEPT}/1", (("escrow/1", -10 * TOKEN), ("mint", 10 * TOKEN)))
    assert reason in memo


def test_an_audit_that_is_answered_at_its_repeat_is_passed_by_the_same_questions(tmp_path: Path) -> None:
    run = played(tmp_path, "silent", rounds=1)
    moved = posted(tmp_path / "run")
    assert [(r, step) for r, kind, step, *_ in moved if kind == RETURNED] == [
        (0, f"{RETURNED}/0"), (0, f"{RETURNED}/2"), (0, f"{RETURNED}/3"), (1, f"{RETURNED}/1"),
    ]  # fmt: skip
    assert len({memo for *_, memo in moved if "seed" in memo}) == 1
    assert weight(run, 0, 1) == 0.0
    assert weight(run, 1, 1) > 0.0


@pytest.mark.parametrize("mechanism", rotating(["fedavg", "ipfl_posted", "pifl"], 3))
def test_a_bond_whose_audit_the_run_leaves_no_time_for_goes_back(mechanism: str, tmp_path: Path) -> None:
    """Its client has proved nothing, so nothing counted for it; and nothing stays in escrow for ever."""
    silent = {f"{__name__}:Dodges": {"how": "silent", "rounds": 99}}
    run = hanse.run(experiment(mechanism, behaviour=silent, sizes={"repeats": 5}), out=tmp_path / "run")
    [*_, (when, kind, step, moved, memo)] = [one for one in posted(tmp_path / "run") if one[1] in (RETURNED, KEPT)]
    assert (when, kind, step, memo) == (3, RETURNED, f"{RETURNED}/1", UNFINISHED)
    assert moved == (("escrow/1", -10 * TOKEN), ("client/1", 10 * TOKEN))
    assert not any(units for name, units in run.book.balances.items() if name.startswith("escrow/"))
    assert {one["proved_samples"] for one in run.clients if one["client"] == 1} == {0.0}
    assert hanse.resume(tmp_path / "run").book == run.book
    # an operator that gives a bond back before the run is over is found: those words are true of its end alone
    bonds = Bonds(10 * TOKEN, 30, frozenset(), {"1": SampleCommitment(bytes(32), 5)})
    assert bonds.wrong(Transaction(step, kind, moved, memo), ended=False) == "does not say which audit was passed"


def test_who_leaves_before_its_audit_gets_its_bond_back_where_that_was_agreed(tmp_path: Path) -> None:
    silent = {f"{__name__}:Dodges": {"how": "silent"}}
    for bond, back in (("audited", 0), ("returned", 10 * TOKEN)):
        run, exit = tmp_path / bond, {"balance": "lost", "bond": bond}
        made = experiment(behaviour=silent, clients={"exit": exit}, sizes={"repeats": 5})
        hanse.run(made, out=run, observers=[After(0)])
        assert run_hanse("leave", run, "--client", 1)[0] == 0
        ended = hanse.resume(run)
        [left] = [one for one in posted(run) if one[1] == LEAVE]
        assert left[3] == left_behind(1, back, 90 * TOKEN + back)
        settled = {step: r for r, kind, step, *_ in posted(run) if kind in (RETURNED, KEPT)}
        assert (settled.get(f"{RETURNED}/1"), f"{KEPT}/1" in settled) == (None if back else 3, False)
        assert ended.book.balance("escrow/1") == 0


def test_who_is_there_no_more_loses_its_bond_unless_leavers_get_theirs(tmp_path: Path) -> None:
    """As whoever is expelled from a network is not; that it is lost otherwise is above."""
    gone = {f"{__name__}:Dodges": {"how": "leaves"}}
    hanse.run(experiment(behaviour=gone, clients={"exit": {"bond": "returned"}}), out=tmp_path / "run")
    ends = [step for _, _, step, *_ in posted(tmp_path / "run") if step in (f"{KEPT}/1", f"{RETURNED}/1")]
    assert ends == [f"{RETURNED}/1"]


def test_who_commits_to_nothing_puts_up_no_bond_and_has_no_samples(tmp_path: Path) -> None:
    for how, told in (("zero", "commits to no samples"), ("silent", "did not commit to its samples")):
        run = played(tmp_path / how, how, COMMIT)
        assert not [step for _, _, step, *_ in posted(tmp_path / how / "run") if step.endswith("/1")][1:], told
        assert weight(run, 2, 1) == 0.0


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ({"bond": 101.0}, "sizes.bond: 101: "),
        ({"proved": False, "leaves": 5}, "sizes.leaves: 5: "),
        ({"leaves": 0}, "sizes.leaves: 0: "),
        ({"bond": -1.0}, "sizes.bond: -1.0: "),
        ({"auditors": ["me"]}, "sizes.auditors.0: 'me': "),
    ],
)
def test_settings_that_cannot_work_are_refused(sizes: Any, line: str) -> None:
    [found] = mistakes(lambda: hanse.run(experiment(sizes=sizes)))
    assert found.startswith(line)


def test_a_bond_that_a_member_cannot_pay_any_more_leaves_it_without_a_size(tmp_path: Path) -> None:
    """A grant of nothing pays no bond; the floor may lend it."""
    run = hanse.run(experiment(clients={"grant": 0.0}, ledger={"floor": -10.0}, rounds=1), out=tmp_path / "run")
    assert sum(run.book.balances.values()) == 0
    assert np.isfinite(weight(run, 0, 1))
    assert [one["proved_samples"] for one in run.clients] == [one["samples"] for one in run.clients]
