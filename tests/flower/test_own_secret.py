"""A participant's noise comes from its own secret: a file of its own that nobody is sent."""

import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message
from inprocess import InProcessGrid, apps_of
from test_flower_in_process import N, experiment, over_flower

import hanse
from hanse.base.errors import UserError
from hanse.base.streams import stream
from hanse.core.port import Reply, Request, Train, Trained
from hanse.core.recipe import Recipe
from hanse.federation.behaviour import Me, Noisy
from hanse.federation.node import SECRET, own_secret

P = 20_000
NOISY = Noisy(sigma=0.5, levels="same")


def noise(secret: bytes, row: torch.Tensor, round: int = 3, start: int = 0) -> torch.Tensor:
    """What a client with this secret adds to an update."""
    me = Me(1, N, 7, Recipe(), P, secret)
    request = Request(1, (Train(0, start, torch.zeros(P)),))
    [sent] = NOISY.on_reply(me, round, request, Reply(1, (Trained(0, row, 10.0, 0.5, 5),))).results
    return sent.row - row


def known(round: int = 3) -> torch.Tensor:
    """What a server that knows the run's seed would subtract."""
    draw = stream(7, "noise", round=round, client=1, start=0)
    return torch.from_numpy(draw.standard_normal(P, dtype="float32")) * 0.5


def test_noise_by_a_secret_is_of_the_update_and_nothing_that_the_server_knows() -> None:
    row = torch.zeros(P)
    assert torch.equal(noise(b"", row), known())  # a simulated client can be repeated
    hidden, others = noise(b"a" * 32, row), noise(b"b" * 32, row)
    assert float(hidden.std()) == pytest.approx(0.5, rel=0.03)
    assert torch.equal(noise(b"a" * 32, row), hidden)  # asked for again: nothing to average out
    moved = row.clone()
    moved[0] += 1e-6
    more = [noise(b"a" * 32, moved), noise(b"a" * 32, row, round=4), noise(b"a" * 32, row, start=1)]
    for other in (known(), others, *more):  # nothing cancels in a difference
        assert abs(np.corrcoef(hidden, other)[0, 1]) < 0.03


def test_the_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    made = own_secret(tmp_path / "mine")
    path = tmp_path / "mine" / SECRET
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(made) == 32
    assert own_secret(tmp_path / "mine") == made
    assert own_secret(tmp_path / "other") != made
    assert [p.name for p in (tmp_path / "mine").iterdir()] == [SECRET]
    path.chmod(0o644)
    with pytest.raises(UserError, match="others may"):
        own_secret(tmp_path / "mine")
    path.chmod(0o600)
    path.write_text("not a secret\n")
    with pytest.raises(UserError, match="64 hexadecimal"):
        own_secret(tmp_path / "mine")


def test_noise_on_a_network_is_the_participants_own_and_survives_restarts(tmp_path: Path) -> None:
    exp = experiment("fedavg", rounds=2)
    said = list[str]()

    def listen(node: int, message: Message, reply: Message) -> Message:
        said.append(str(message.content["hanse"]) + str(reply.content["hanse"]))
        return reply

    def play(folder: Path) -> hanse.Run:
        grid = InProcessGrid(apps_of(exp, tmp_path / "own", lambda i: {"behaviours": [NOISY]}), listen)
        return over_flower(exp, folder, grid)

    first = play(tmp_path / "first")
    again = play(tmp_path / "again")  # other apps, the same participants
    assert torch.equal(first.table.rows, again.table.rows)
    simulated = hanse.run(experiment("fedavg", rounds=2, behaviour={"noisy": {"sigma": 0.5, "levels": "same"}}))
    assert not torch.allclose(first.table.rows, simulated.table.rows, atol=1e-2)
    for i in range(N):
        kept = (tmp_path / "own" / f"node{i}" / SECRET).read_text().strip()
        assert not any(kept in text for text in said)
        (tmp_path / "own" / f"node{i}" / SECRET).unlink()
    assert not torch.equal(play(tmp_path / "third").table.rows, first.table.rows)
