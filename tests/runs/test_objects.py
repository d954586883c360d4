"""Data and models given as objects: recorded, asked for again, refused if they are others; names of clients shown."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from mistaken import mistakes
from rotation import rotating
from torch import Tensor, nn

import hanse

NAMES = ("General", "Hope", "St Mary")


def frame() -> pd.DataFrame:
    draw = np.random.default_rng(3)
    table = pd.DataFrame({"hospital": list(NAMES) * 40, "age": draw.normal(size=120), "bmi": draw.normal(size=120)})
    return table.assign(ill=np.where(table.age + 0.5 * draw.normal(size=120) > 0, "yes", "no"))


def experiment(rounds: int = 2, mechanism: str = "fedavg", **more: Any) -> hanse.Experiment:
    data = {"source": {"target": "ill", "client_column": "hospital"}, "client_test": 0.2}
    sections = {"data": data, "train": {"lr": 0.1}, "run": {"rounds": rounds}, **more}
    return hanse.Experiment(mechanism={"name": mechanism}, **sections)


class Two(nn.Module):
    """Takes two inputs by name."""

    def __init__(self, codes: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.codes, self.last = nn.Embedding(codes, 3), nn.Linear(5, 2)

    def forward(self, vitals: Tensor, codes: Tensor) -> Tensor:
        out: Tensor = self.last(torch.cat([vitals, self.codes(codes).mean(1)], 1))
        return out


class Packed(nn.Module):
    """The same network, as a module of one tensor that takes its inputs apart by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Two()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x[:, :2], x[:, 2:].long())
        return out


def two_inputs() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    draw = np.random.default_rng(4)
    x = {"vitals": draw.normal(size=(120, 2)).astype(np.float32), "codes": draw.integers(0, 5, (120, 4))}
    return x, (x["vitals"][:, 0] > 0).astype(int), np.arange(120) % 3


def test_what_was_given_is_recorded_and_needed_again(tmp_path: Path) -> None:
    path, net = tmp_path / "run", nn.Linear(2, 2)
    whole = hanse.run(experiment(4), data=frame(), model=net)
    hanse.run(experiment(2), data=frame(), model=net, out=path)
    assert whole.names == NAMES
    config = hanse.Experiment.read(path / "config.toml")
    assert (config.data.source.name, config.data.partition.name, config.data.clients) == ("object", "natural", 3)
    assert (config.data.source.object, config.model.name) == ("DataFrame", "object")
    assert (config.model.model_extra or {})["object"] == "Linear"
    assert len(config.data.source.fingerprint or "") == 16
    (path / "config.toml").write_text((path / "config.toml").read_text().replace("rounds = 2", "rounds = 4"))
    again = nn.Linear(2, 2)  # other weights: those of the checkpoint count
    resumed = hanse.resume(path, data=frame(), model=again)
    assert torch.equal(resumed.table.rows, whole.table.rows)
    assert type(resumed.model("Hope")) is nn.Linear

    flipped = frame()
    hope = flipped.hospital == "Hope"
    flipped.loc[hope, "ill"] = flipped.ill[hope].map({"yes": "no", "no": "yes"})
    for options, words in (
        ({"model": net}, "data.source: 'object': the data are given as an object"),
        ({"data": frame()}, "model.name: 'object': the model is given as an object \\(Linear\\)"),
        ({"data": frame(), "model": nn.Linear(2, 3)}, "was played with another model: Linear, fingerprint"),
        ({"data": flipped, "model": net}, r"other data; not the same now: the train share of client 1 \(Hope\)"),
    ):  # fmt: skip
        with pytest.raises(hanse.UserError, match=words) as caught:
            hanse.resume(path, **options)  # type: ignore[arg-type]
        assert len(caught.value.lines) == 1


def test_a_module_starts_from_its_own_weights_and_stays_as_it_is() -> None:
    net = nn.Linear(2, 2)
    before = [p.detach().clone() for p in net.parameters()]
    run = hanse.run(experiment(0), data=frame(), model=net)
    assert torch.equal(run.table.rows[0], torch.cat([p.flatten() for p in before]))
    hanse.run(experiment(1), data=frame(), model=net)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), before, strict=True))


class Cast(nn.Linear):
    """Makes its inputs a type of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.double())


@pytest.mark.parametrize("loop", [None, "user_loops:fit"])
def test_a_module_of_another_type_trains_tests_and_comes_back_as_float32(loop: str | None) -> None:
    for kind in (torch.float64, torch.bfloat16, torch.float16):
        net = nn.Sequential(nn.Linear(2, 2, dtype=kind))
        for engine in ["auto"] if loop else ["sequential", "stacked", "native"]:
            given = experiment(1, train={"lr": 0.1, "loop": loop}, engine={"train": engine})
            run, same = (hanse.run(given, data=frame(), model=one) for one in (net, copy.deepcopy(net).float()))
            assert torch.equal(run.table.rows, same.table.rows)
            assert torch.equal(torch.cat([p.flatten() for p in run.model(0).parameters()]), run.table.rows[0])
        assert {p.dtype for p in net.parameters()} == {kind}
    [line] = mistakes(hanse.run, experiment(), data=frame(), model=Cast(2, 2, dtype=torch.float64))
    assert "float32" in line


@pytest.mark.parametrize("mechanism", rotating(["fedavg", "greedyfed", "ditto"], 3))
def test_several_inputs_train_and_test_as_the_same_network_of_one(mechanism: str) -> None:
    x, y, who = two_inputs()
    packed = np.concatenate([x["vitals"], x["codes"].astype(np.float32)], axis=1)
    given = hanse.Experiment(
        mechanism={"name": mechanism}, data={"client_test": 0.2}, train={"lr": 0.2}, run={"rounds": 2},
        engine={"train": "sequential", "threads": 1},
    )  # fmt: skip
    ours, theirs = (hanse.run(given, data=(one, y, who), model=net) for one, net in ((x, Two()), (packed, Packed())))
    assert torch.equal(ours.table.rows, theirs.table.rows)
    assert ours.metrics[-1]["client/test_accuracy"] == theirs.metrics[-1]["client/test_accuracy"]
    assert isinstance(ours.model(1), Two)
    assert ours.model(1)(torch.from_numpy(x["vitals"]), torch.from_numpy(x["codes"])).shape == (120, 2)
