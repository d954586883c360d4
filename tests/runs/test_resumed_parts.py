"""What parts, policies, behaviours and clients keep from round to round survives a kill: the bits stay the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from watching import Killed, Watch, untimed

import hanse
from hanse.federation.behaviour import Me

KEPT: dict[str, dict[str, Any]] = {
    "cfl": {"mechanism": {"name": "cfl", "weigh": {"name": "cfl", "eps1": 9.0, "eps2": 0.1, "first_round": 3}}},
    "fedfomo": {"mechanism": {"name": "fedfomo", "models": 2}},
    "ifca": {"mechanism": "ifca"},
    "fedsoft": {"mechanism": {"name": "fedsoft", "interval": 3}},
    "scaffold": {"mechanism": {"name": "scaffold", "clients_per_round": 3}},
    "heur_fedamp": {"mechanism": {"name": "heur_fedamp", "clients_per_round": 3}},
    "gtfedgen": {"mechanism": {"name": "gtfedgen", "clients_per_round": 3}, "behaviour": {"dropout": {"rate": 0.3}}},
    "ipfl": {"mechanism": "ipfl", "clients": {"profiles": {"name": "uniform", "cost": 0.2, "eagerness": 2e4},
                                              "policy": f"{__name__}:Impatient"}},
    "pifl": {"mechanism": {"name": "pifl", "by_contribution": 3, "at_random": 1},
             "data": {"partition": {"name": "mixture", "mix": "10:90"}}},
    "quits": {"mechanism": {"name": "fedavg", "clients_per_round": 4, "value": "exact"}, "train": {"lr": 0.05},
              "behaviour": {"noisy": {"sigma": 1.0}},
              "clients": {"told": True, "policy": {"name": "quits", "rounds": 1}}},
    "last": {"mechanism": "fedavg", "behaviour": {"deviant": {"clients": [1], "sends": "last"}}},
    "kept": {"mechanism": "fedavg", "behaviour": {"deviant": {"clients": [1], "start": "kept"}}},
    "echo": {"mechanism": "ipfl", "clients": {"profiles": {"name": "uniform", "cost": 0.2, "eagerness": 2e4}},
             "behaviour": {"deviant": {"clients": [1, 2], "sends": "echo"}}},
    "augmented": {"mechanism": {"name": "fedavg", "clients_per_round": 3}, "data": {"augment": "crop-flip"}},
    "history": {"mechanism": {"name": "fedavg", "clients_per_round": 2},
                "model": {"name": "mlp", "hidden": [8], "batch_norm": True},
                "train": {"steps": 3, "batch_size": 16, "lr": 0.1, "lr_decay": 0.5, "lr_decay_by": "last",
                          "order": "by_class", "statistics": "own"}},
}  # fmt: skip


@dataclass(frozen=True)
class Impatient:
    """Client 1 authorises a tenth of a token, and quits once a bill went unpaid."""

    def authorise(self, me: Me, round: int, told: Mapping[str, Any]) -> int | None:
        return 10**5 if me.id == 1 else None

    def stay(self, me: Me, round: int, told: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"stay": told["unpaid"] == 0}


@pytest.mark.parametrize("name", KEPT)
def test_a_run_that_was_killed_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    sections = {"model": {"name": "mlp", "hidden": [8]}, "train": {"steps": 6, "batch_size": 16, "lr": 0.1}} | KEPT[
        name
    ]
    data = {"clients": 6, "partition": {"alpha": 0.3}, "client_test": 0.2, "client_validation": 0.15}
    sections["data"] = data | sections.get("data", {})
    given = hanse.Experiment(**sections, engine={"train": "sequential", "threads": 1}, run={"rounds": 5})
    folders = tmp_path / "whole", tmp_path / "killed"
    whole = hanse.run(given, out=folders[0])
    with pytest.raises(Killed):
        hanse.run(given, out=folders[1], observers=[Watch(2, Killed)])
    again = hanse.resume(folders[1])
    for file in ("metrics.jsonl", "clients.jsonl"):
        assert untimed(folders[1] / file) == untimed(folders[0] / file)
    assert again.book == whole.book
    np.testing.assert_array_equal(again.personal, whole.personal)
    ours, theirs = (load_file(folder / "checkpoints" / "00005.safetensors") for folder in folders)
    assert ours.keys() == theirs.keys()
    assert all(ours[key].numpy().tobytes() == theirs[key].numpy().tobytes() for key in ours)  # NaN: not known
