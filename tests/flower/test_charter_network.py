"""A charter on a network: the local engine's numbers, and members by their keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from test_flower_in_process import experiment, over_flower

import hanse
from hanse.wings.charter.charter import charter_of


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
    by_key = experiment("fedavg", charter={**said, "members": members})
    run = over_flower(by_key, tmp_path / "keys")
    assert {seat["client"] for seat in run.clients} <= {0, 1, 2, 3}  # client 4 only bears a member's name
