import json
from pathlib import Path

import pytest
from reports_cases import accuracies, metric, seat, write_run

from hanse.base.errors import UserError
from hanse.reports.groups import group_runs
from hanse.runs.run_record import load_run, load_runs


def test_mean_and_deviation_by_hand(tmp_path: Path) -> None:
    paths = [
        accuracies(tmp_path / f"s{seed}", values, {"run": {"seed": seed}, "data": {"seed": seed}})
        for seed, values in enumerate(([0.1, 0.5], [0.3, 0.7], [0.2, 0.9]))
    ]
    (group,) = group_runs(load_runs(paths))
    curve = group.curve("test/accuracy")
    assert curve.rounds.tolist() == [0, 1]
    assert curve.mean == pytest.approx([0.2, 0.7])
    assert curve.sd == pytest.approx([0.1, 0.2])  # sqrt((0.01 + 0 + 0.01) / 2), sqrt((0.04 + 0 + 0.04) / 2)
    assert group.label == "greedyfed"
    assert group.same_clients == group.runs[:1]  # three splits: client 1 is three different clients
    assert group.curve("nothing") is None


def test_only_seeds_make_a_group_and_labels_tell_groups_apart(tmp_path: Path) -> None:
    runs = load_runs(
        [
            accuracies(tmp_path / "a", [0.1]),
            accuracies(tmp_path / "b", [0.1], {"data": {"partition": {"name": "dirichlet", "alpha": 0.1}}}),
            accuracies(tmp_path / "c", [0.1], {"mechanism": {"name": "my.module:thing"}}),
            accuracies(tmp_path / "d", [0.1], {"run": {"seed": 7}, "engine": {"threads": 2}}),
        ]
    )
    groups = group_runs(runs)
    alpha = "greedyfed data.partition.alpha="
    assert [g.label for g in groups] == [f"{alpha}0.5", f"{alpha}0.1", "thing"]
    assert [[r.name for r in g.runs] for g in groups] == [["a", "d"], ["b"], ["c"]]


def test_a_label_names_the_part_and_only_options_of_that_part(tmp_path: Path) -> None:
    rules: list[dict[str, object]] = [
        {"name": "samples"},
        {"name": "fedadam", "beta1": 0.9, "lr": 0.03, "tau": 0.001, "of": {"name": "samples"}},
        {"name": "krum", "f": 1},
        {"name": "krum", "f": 2},
        {"name": "fedadam", "beta1": 0.9, "lr": 0.03, "tau": 0.001, "of": {"name": "clipped", "norm": 1.0}},
    ]
    paths = [
        accuracies(tmp_path / str(i), [0.1], {"mechanism": {"name": "fedavg", "weigh": rule}})
        for i, rule in enumerate(rules)
    ]
    assert [g.label for g in group_runs(load_runs(paths))] == [
        "fedavg weigh=samples",
        "fedavg weigh=fedadam weigh.of=samples",
        "fedavg weigh=krum weigh.f=1",
        "fedavg weigh=krum weigh.f=2",
        "fedavg weigh=fedadam weigh.of=clipped",
    ]


def test_bad_directories_are_refused_in_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    fresh = write_run(tmp_path / "fresh", [])
    for path, words in (
        (tmp_path / "nowhere", "no such run directory"),
        (empty, "not a run directory"),
        (fresh, "no finished rounds yet"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            load_run(path)
        assert len(caught.value.lines) == 1
        assert str(path) in caught.value.lines[0]
    with pytest.raises(UserError, match="no run directory was given"):
        load_runs([])


@pytest.mark.parametrize(
    ("name", "key", "wrong", "allowed"),
    [
        ("clients", "value", '"abc"', "-1e+100 to 1e+100"),
        ("metrics", "test/accuracy", "7.0", "0 to 1"),
        ("metrics", "client/test_accuracy_min", "2", "0 to 1"),
        ("metrics", "bytes/up", "-3000", "0 to 1e+100"),
        ("clients", "weight", "Infinity", "-1e+100 to 1e+100"),
    ],
)
def test_an_impossible_figure_is_refused_by_line_and_field(
    name: str, key: str, wrong: str, allowed: str, tmp_path: Path
) -> None:
    path = write_run(tmp_path / "a", [metric(0, 0.5), metric(1, 0.25)], [seat(0, 1, 0.5), seat(1, 1, 0.25)])
    file = path / f"{name}.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[1][key] = json.loads(wrong)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError) as caught:
        load_run(path)
    assert caught.value.lines[0].startswith(f"{file}:2: {key}: ")
    assert caught.value.lines[0].endswith(f"allowed: numbers from {allowed}")
