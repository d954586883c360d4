"""A charter on a network: the local engine's numbers, members by their keys, and a charter's whole life."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import run_hanse
from inprocess import KEY, PINNED, key_file, play
from test_agreement import evidence, paying
from test_flower_in_process import experiment, grid_of, over_flower
from test_letters import After, DiesError, dies

import hanse
from hanse.base import toml
from hanse.core.port import Call, Request, Test
from hanse.flower.agreement import agree
from hanse.flower.leave import sign_leave
from hanse.flower.link import FlowerFederation
from hanse.flower.node_log import NodeLog
from hanse.ledger.note import own_key, public_of
from hanse.reports.audit import audit_run
from hanse.wings.charter.charter import charter_of

ROOT = Path(__file__).parents[2]
FARMS = ["north", "south", "west", "east", "isle"]


def test_members_are_known_by_key_and_others_take_no_part(tmp_path: Path) -> None:
    said = {"title": "Farms", "cap": 0.4, "length": 2.0, "quorum": {"members": 0.4}}
    by_name = experiment("fedavg", charter={**said, "members": {f"client {k}": {} for k in range(5)}})
    local, flower = hanse.run(by_name), over_flower(by_name, tmp_path / "names")
    assert torch.equal(local.table.rows, flower.table.rows)
    agreed = {line["agreement"] for line in flower.metrics}  # of the agreement, which has the charter
    assert charter_of(flower.experiment).hash == charter_of(by_name).hash
    assert agreed.isdisjoint({line["agreement"] for line in local.metrics})
    keys = {one["id"]: one["key"] for one in json.loads((tmp_path / "names" / "run" / "members.json").read_text())}
    members = {
        "north": {"clients": [keys[0], keys[1]]},
        "south": {"clients": [keys[2]]},
        "client 4": {"clients": [keys[3]]},
    }
    run = over_flower(experiment("fedavg", charter={**said, "members": members}), tmp_path / "keys")
    assert {seat["client"] for seat in run.clients} <= {0, 1, 2, 3}  # client 4 only bears a member's name


def offline(script: str, *given: object) -> int:
    """The exit code of a script that does not import hanse."""
    return subprocess.run([sys.executable, "-I", ROOT / script, *map(str, given)], check=False).returncode


def asked_of(home: Path, since: int = 0) -> tuple[set[str], int]:
    """The kinds of questions that a node's own log has from a line on, and how many lines there are."""
    lines, _ = NodeLog(home).verified()
    return {kind for line in lines[since:] for kind in line.get("questions", {})}, len(lines)


@pytest.mark.slow
def test_a_charter_is_agreed_played_amended_by_a_quorum_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five farms, each with a node and a key. East's owner takes the amended agreement but does not sign the amendment;
    isle's does neither, and leaves.
    """
    run, homes = tmp_path / "run", [tmp_path / f"node{k}" for k in range(5)]
    keys = {name: public_of(own_key(tmp_path / f"{name}.pem")).hex() for name in FARMS}
    nodes = {name: hashlib.sha256(f"key {100 + k}".encode()).hexdigest() for k, name in enumerate(FARMS)}
    members = {name: {"clients": [nodes[name]], "key": keys[name]} for name in FARMS}
    said = {"title": "Farms", "cap": 0.4, "length": 2.0, "quorum": {"members": 0.6}, "members": members}
    for name, more in (("old", {"answers": ["Train"]}), ("new", {"answers": ["Train", "Test"], "cap": 0.3})):
        lines = [f"{key} = {toml.inline(value)}\n" for key, value in {**said, **more}.items()]
        (tmp_path / f"{name}.toml").write_text("".join(lines))

    def under(file: str) -> hanse.Experiment:
        return paying(6, charter={"file": str(tmp_path / file)})

    # agreed and played; in round 1 the server asks all nodes for a test, which the amendment will allow
    honest, refused = FlowerFederation.exchange, list[Any]()

    def greedy(self: FlowerFederation, call: Call) -> Any:
        if call.round == 1 and call.requests and not refused:
            model = call.requests[0].tasks[0].start
            refused.extend(honest(self, Call(1, [Request(c, (Test("more", model),)) for c in range(5)])))
        return honest(self, call)

    monkeypatch.setattr(FlowerFederation, "exchange", greedy)
    with pytest.raises(DiesError):
        play(grid_of(under("old.toml"), tmp_path), under("old.toml"), run, After(2, dies))
    assert sorted(reply.client for reply in refused) == [0, 1, 2, 3, 4]
    assert all("asks for Test, which was not agreed" in str(reply.refused) for reply in refused)
    assert all(len(evidence(home, KEY)) == 1 for home in homes)
    assert all(asked_of(home)[0] == {"Train", "Test"} for home in homes)  # this one, which all have refused

    # amended: two of five are no quorum, three are
    amend, old = ("charter", "amend", tmp_path / "old.toml"), tmp_path / "amendment.txt"
    assert run_hanse(*amend, tmp_path / "new.toml", "--round", 3, "-o", old)[0] == 0
    for name, code in (("north", 2), ("south", 2), ("west", 0)):
        assert run_hanse(*amend, "-o", old, "--sign", tmp_path / f"{name}.pem")[0] == 0
        assert run_hanse(*amend, "-o", old, "--run", run)[0] == code
    with pytest.raises(hanse.UserError):  # not without what a quorum has signed
        play(grid_of(under("old.toml"), tmp_path), under("old.toml"), run)
    since = [asked_of(home)[1] for home in homes]
    after = under("amendment.txt")
    played = play(
        grid_of(after, tmp_path), after, run, members=4, agreement=agree(after, KEY, "run", "test", homes[:4])
    )
    assert len({line["agreement"] for line in played.metrics[:3]}) == 1
    assert len({line["agreement"] for line in played.metrics}) == 2
    assert max(line["weigh/largest_member"] for line in played.metrics[3:]) <= 0.3 + 1e-9
    assert [line["answered"] for line in played.metrics] == [5, 5, 5, 4, 4, 4]
    asked = [asked_of(home, first)[0] for home, first in zip(homes, since, strict=True)]
    assert asked == [{"Train", "Test"}, {"Train", "Test"}, {"Train", "Test"}, {"Train"}, set()]
    assert [len(evidence(home, KEY)) for home in homes] == [1] * 5

    # left, audited, and checked without hanse
    pem, public = key_file(tmp_path / "operator.pem"), tmp_path / "operator.pub"
    public.write_text(PINNED.hex())
    word = sign_leave(homes[4], "run")  # its node is away: a copy is handed over
    assert run_hanse("leave", run, "--client", 4, "--signed", word, "--key", pem)[0] == 0
    assert all(check.holds for check in audit_run(run).checks)
    left = run / "leaving" / "client-4.json"
    assert (
        offline("tests/wings/charter/check_leave_receipt.py", left, public, run / "leaving/client-4-lineage.jsonl") == 0
    )
    for k, home in enumerate(homes):
        receipts = home / "run" / f"client-{k}" / "receipts" / f"client-{k}.jsonl"
        assert offline("examples/verify_receipt.py", receipts, public) == 0
