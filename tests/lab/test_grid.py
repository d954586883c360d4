"""A grid's axes and points: what is split where, in which order the runs come, what is refused."""

from pathlib import Path

import pytest
from mistaken import mistakes
from sweep_cases import EXPERIMENT

from hanse.base.errors import UserError
from hanse.lab.job import key_of
from hanse.lab.sweep import Axis, grid_of, part_of, read_axis


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "exp.toml"
    path.write_text(EXPERIMENT)
    return path


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("train.lr=0.1,0.01", "train.lr", ("0.1", "0.01")),
        ("train.lr = 0.1 , 1e-3", "train.lr", ("0.1", "1e-3")),
        ("model.hidden=[50],[50,25]", "model.hidden", ("[50]", "[50,25]")),
        ("mechanism.weigh={name='a,b'},gtflat", "mechanism.weigh", ("{name='a,b'}", "gtflat")),
        ('data.source="a,b"', "data.source", ('"a,b"',)),
        ("mechanism.weigh.strength=0.5", "mechanism.weigh.strength", ("0.5",)),
    ],
)
def test_axes(text: str, key: str, values: tuple[str, ...]) -> None:
    assert read_axis(text) == Axis(key, values)


def test_labels_name_points_and_folders(file: Path) -> None:
    axis = 'mechanism={mine={name="fedprox", mu=0.1}, theirs=fedavg}'
    assert read_axis(axis) == Axis("mechanism", ('{name="fedprox", mu=0.1}', "fedavg"), ("mine", "theirs"))
    points = grid_of(file, [], [axis, "train.lr=0.1"], 1)
    assert [(point.at["mechanism"], point.job.label, point.job.called) for point in points] == [
        ("mine", "mine, train.lr=0.1, seed=0", "mine"),
        ("theirs", "theirs, train.lr=0.1, seed=0", "theirs"),
    ]
    assert points[0].job.experiment.mechanism.name == "fedprox"
    plain = grid_of(file, [], ["mechanism=fedavg", "train.lr=0.1"], 1)
    assert plain[0].job.key == points[1].job.key  # a name is no setting: the same run
    assert read_axis('mechanism={name="fedprox", mu=0.1}').labels == ()


@pytest.mark.parametrize("text", ["lr=1", "train.lr", ".lr=1", "train.lr=", "train.lr=1,,2", "train.lr=1,2,1"])
def test_bad_axes(text: str) -> None:
    with pytest.raises(UserError, match=f"^--grid {text}: "):
        read_axis(text)


def test_points_in_order(file: Path) -> None:
    points = grid_of(file, ["run.rounds=3"], ["train.lr=0.1,0.2", "mechanism.name=fedavg,greedyfed"], 2)
    assert [(*point.at.values(), point.seed) for point in points] == [
        *[("0.1", "fedavg", 0), ("0.1", "greedyfed", 0), ("0.2", "fedavg", 0), ("0.2", "greedyfed", 0)],
        *[("0.1", "fedavg", 1), ("0.1", "greedyfed", 1), ("0.2", "fedavg", 1), ("0.2", "greedyfed", 1)],
    ]
    last = points[-1].job
    assert last.label == "train.lr=0.2, mechanism.name=greedyfed, seed=1"
    assert last.rounds == 3
    given = last.experiment
    assert (given.train.lr, given.mechanism.name, given.data.seed, given.run.seed) == (0.2, "greedyfed", 1, 1)
    assert len({point.job.key for point in points}) == 8
    assert last.key == key_of({**last.sections})


@pytest.mark.parametrize(
    ("grid", "seeds", "why"),
    [
        (["train.lr=0.1", "train.lr=0.2"], None, "--grid train.lr: "), (["run.seed=0,1"], 2, "--grid run.seed: "),
        (["train.lr=0.1"], 0, "--seeds 0: "), (["train.lr=0.1"], 100_001, "--grid: 100,001 runs"),
        (["train.lr=0.1,0.10"], None, "--grid: train.lr=0.1 and"), (["train.lr.more=1"], None, "train.lr.more=1: "),
        (["mechanism.clients_per_rounds=2"], None, "mechanism.clients_per_rounds"),
    ],
)  # fmt: skip
def test_bad_grids(file: Path, grid: list[str], seeds: int | None, why: str) -> None:
    assert mistakes(grid_of, file, [], grid, seeds)[0].startswith(why)


def test_an_axis_that_a_mechanism_does_not_have_is_not_varied_for_it(file: Path) -> None:
    points = grid_of(file, [], ["mechanism.name=fedavg,fedprox", "mechanism.mu=0.1,0.5"], 2)
    assert [tuple(point.at.values()) for point in points if point.seed == 1] == [
        ("fedavg", "-"), ("fedprox", "0.1"), ("fedprox", "0.5"),
    ]  # fmt: skip
    assert points[0].job.label == "mechanism.name=fedavg, seed=0"


def test_a_part_that_does_not_fit_into_one_of_the_mechanisms_is_told_before_anything_is_played(file: Path) -> None:
    with pytest.raises(UserError) as wrong:  # by a dry run, too
        grid_of(file, ["mechanism.value=gtg"], ["mechanism.name=fedavg,local", "train.lr=0.1,0.2"], 2)
    [line] = wrong.value.lines  # one for the kind, not for each run
    assert line.startswith("--grid: local: mechanism.value: 'gtg' needs groups of several seats")


def test_parts_share_out_the_runs(file: Path) -> None:
    points = grid_of(file, [], ["train.lr=0.1,0.2,0.3"], 3)
    parts = [part_of(points, f"{i}/4")[0] for i in (1, 2, 3, 4)]
    assert [len(part) for part in parts] == [3, 2, 2, 2]
    assert sorted(p.job.key for part in parts for p in part) == sorted(p.job.key for p in points)
    assert part_of(points, "2/4")[1] == "part-2-of-4.csv"


@pytest.mark.parametrize("text", ["0/4", "5/4", "2", "a/4", "1/0", "-1/4", "1/4/2", "1.5/4", ""])
def test_wrong_parts(text: str) -> None:
    with pytest.raises(UserError, match=r"--part .*i/n"):
        part_of([], text)
