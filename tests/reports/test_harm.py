"""Who is called harmful: only whose absence surely helps the others, over at least five trainings anew."""

import json
from pathlib import Path

import numpy as np
import pytest
from commands import invoke
from experiments import digits
from reports_cases import metric, seat, write_run

import hanse
from hanse.reports.answers import answers_of
from hanse.reports.harm import harms_of, retrain
from hanse.runs.run_record import load_run

BLOCKS = 20


def kept(run: Path, starts: int, better: float, spread: float = 0.001, classes: int = 3) -> Path:
    """Pairs of trainings in which the others' loss is lower by ``better`` without client 1, on so many of 3 classes;
    training gains 1.
    """
    draw = np.random.default_rng(0)
    by_class = {"all": [-1.0] * 3, "client-1": [-1.0 + better * (k < classes) for k in range(3)]}
    for start in range(starts):
        noise = spread * draw.normal(size=BLOCKS)
        for name, last in (("all", np.full(BLOCKS, -1.0)), ("client-1", -1.0 + better + noise)):
            place = run / "without" / f"start-{start}" / name
            place.mkdir(parents=True)
            figures = {"shares": [1 / BLOCKS] * BLOCKS, "first_loss_blocks": [-2.0] * BLOCKS}
            figures |= {"last_loss_blocks": last.tolist(), "last_loss_classes": by_class[name]}
            (place / "judged.json").write_text(json.dumps(figures))
    return run


def played(path: Path) -> Path:
    return write_run(path, [metric(0), metric(1)], [seat(r, c, 1.0) for r in range(2) for c in range(3)])


@pytest.mark.parametrize(
    ("starts", "better", "classes", "harmful"),
    [
        (5, 0.1, 3, True),
        (4, 0.1, 3, False),
        (5, -0.1, 3, False),
        (5, 0.0, 3, False),
        (5, 0.01, 3, False),
        (5, 0.1, 1, False),
    ],
)
def test_harmful_is_whose_absence_surely_helps_and_in_most_classes(
    tmp_path: Path, starts: int, better: float, classes: int, harmful: bool
) -> None:
    run = kept(played(tmp_path / "run"), starts, better, classes=classes)
    row = hanse.facts(run).clients[1]
    assert (row.starts, row.harmful) == (starts, harmful)
    assert row.without == pytest.approx(better, abs=0.001)
    assert row.without_low < row.without < row.without_high
    assert hanse.facts(run).clients[0].without is None
    codes = [note.code for note in answers_of(run).contributed]
    assert ("do_harm" in codes) == harmful
    assert ("no_harm_shown" in codes) == (not harmful)


def test_the_interval_holds_the_draw_of_samples_which_all_starts_share(tmp_path: Path) -> None:
    [found] = harms_of(load_run(kept(played(tmp_path / "run"), 5, 0.1, spread=0.2))).values()
    assert 0.02 < (found.high - found.low) / 2 < 0.3


def test_pairs_are_trained_once_and_read_again(tmp_path: Path) -> None:
    data = {"partition": {"samples_per_client": 30}}
    hanse.run(digits({"name": "fedavg", "clients_per_round": 3}, 3, 2, data=data), out=tmp_path / "run")
    retrain([tmp_path / "run"], ["2"], starts=2)
    assert {path.parent.name for path in (tmp_path / "run" / "without").glob("start-*/*/judged.json")} == {
        "all", "client-2"
    }  # fmt: skip
    assert {seat.client for seat in load_run(tmp_path / "run" / "without" / "start-1" / "client-2").clients} == {0, 1}
    retrain([tmp_path / "run"], ["2"], starts=2, observers=pytest.fail)
    assert hanse.facts(tmp_path / "run").clients[2].starts == 2


def test_what_cannot_be_trained_anew_is_refused(tmp_path: Path) -> None:
    run = played(tmp_path / "run")
    with pytest.raises(hanse.UserError, match="no such client"):
        retrain([run], ["9"])
    (run / "members.json").write_text("{}")
    with pytest.raises(hanse.UserError, match="rehearsal"):
        retrain([run], ["1"])
    assert invoke("report", run, "--without", "1").exit_code != 0
