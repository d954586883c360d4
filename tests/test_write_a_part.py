"""The examples of docs/write-a-part.md do what the page says."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from watching import Watch

import hanse
from hanse.core.entry import MINT, TOKEN, client, pool
from hanse.ledger.split import split
from hanse.reports.contributions import contribution
from hanse.reports.groups import group_runs
from hanse.runs.run_record import load_runs

GUIDE = (Path(__file__).parents[1] / "docs" / "write-a-part.md").read_text()
README = (Path(__file__).parents[1] / "README.md").read_text()
SMALL = {
    "data": {"clients": 8},
    "model": {"name": "logistic"},
    "engine": {"train": "stacked", "threads": 1},
    "run": {"rounds": 5},
}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


class Watched(Watch):
    """With the run that it watched."""

    run: hanse.Run


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The guide's files by name, importable."""
    found = {}
    for code in blocks(GUIDE, "python"):
        first = code.split("\n")[0]
        if not first.endswith(".py"):
            continue
        name = first.removeprefix("# ").removesuffix(".py")
        (tmp_path / f"{name}.py").write_text(code)
        found[name] = code
        sys.modules.pop(name, None)
    monkeypatch.syspath_prepend(str(tmp_path))
    return found


def table(number: int) -> dict[str, Any]:
    return tomllib.loads(blocks(GUIDE, "toml")[number])


def played(**sections: Any) -> Watched:
    watch = Watched()
    watch.run = hanse.run(hanse.Experiment(**{**SMALL, **sections}), observers=[watch])
    return watch


@pytest.fixture
def composed(files: dict[str, str]) -> Watched:
    """Five rounds of the guide's parts together."""
    return played(**table(1))


def test_the_parts_select_weigh_and_value(composed: Watched) -> None:
    run = composed.run
    for view in composed.views:
        before, after = (view.judge.score(rows).loss for rows in (view.table.models("server"), view.trained.rows))
        assert view.values.per_seat == pytest.approx(before - after, rel=1e-4)
    for r, clients in ((0, [0, 1, 2, 3]), (1, [4, 5, 6, 7]), (2, [0, 1, 2, 3])):
        assert sorted(s["client"] for s in run.clients if s["round"] == r) == clients
    seats = [s for s in run.clients if s["round"] == 4]
    trust = [1 / s["loss"] for s in seats]
    assert [s["weight"] for s in seats] == pytest.approx([t / sum(trust) for t in trust], rel=1e-6)


def test_the_fees_go_to_whose_values_are_above_zero(composed: Watched) -> None:
    book, want, kitty = composed.run.book, dict.fromkeys(range(8), 100 * TOKEN), 0
    for view in composed.views:
        kitty += 8 * 2 * TOKEN
        want = {c: units - 2 * TOKEN for c, units in want.items()}
        worth = np.maximum(view.values.per_seat, 0).tolist()
        if any(worth):
            for c, units in zip(view.trained.seats.client.tolist(), split(kitty, worth), strict=True):
                want[c] += units
            kitty = 0
    assert {c: book.balance(client(c)) for c in range(8)} == want
    assert book.balance(pool("wages")) == 0
    assert book.balance(MINT) == -800 * TOKEN + kitty
    assert max(want.values()) > 100 * TOKEN  # somebody earned something


def test_a_boosted_update_goes_five_times_as_far(files: dict[str, str]) -> None:
    everyone = {"mechanism": {"name": "fedavg", "clients_per_round": 8}}
    honest, attacked = played(**everyone), played(**everyone, behaviour={"boost:Boost": {"clients": [2, 5]}})
    start, true = honest.views[0].table.rows[0], honest.views[0].trained.rows
    sent = attacked.views[0].trained.rows
    for c in range(8):
        want = start + 5 * (true[c] - start) if c in (2, 5) else true[c]
        torch.testing.assert_close(sent[c], want)


def test_flipped_labels_change_the_update_of_who_flips_and_of_nobody_else(files: dict[str, str]) -> None:
    everyone = {"mechanism": {"name": "fedavg", "clients_per_round": 8}}
    flip = {"clients": [3], "old": 4, "new": 9}  # it has many of class 4, and none of class 9
    honest, attacked = played(**everyone), played(**everyone, behaviour={"label_flip:LabelFlip": flip})
    true, sent = honest.views[0].trained, attacked.views[0].trained
    for c in range(8):
        assert torch.allclose(sent.rows[c], true.rows[c], atol=1e-6) == (c != 3)
    assert sent.num_samples.tolist() == true.num_samples.tolist()
    change = honest.views[0].context.layout.unflatten(sent.rows[3] - true.rows[3])
    [moved] = [tensor for tensor in change.values() if tensor.shape == (10,)]
    assert (int(moved.argmin()), int(moved.argmax())) == (4, 9)


def test_what_a_part_does_wrong_is_said_with_its_name(files: dict[str, str], tmp_path: Path) -> None:
    code = files["longest_ago"].replace("]), state", "])").replace("LongestAgo", "Alone")
    (tmp_path / "no_state.py").write_text(code)
    said = "the select part Alone, round 0: its select returned Choice: must be a pair, the decision and the next state"
    with pytest.raises(RuntimeError, match=said):
        played(mechanism={"name": "fedavg", "select": "no_state:Alone"})


def test_the_example_of_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an install without extras, which brings no pandas; and it ends as the words beside it say."""
    monkeypatch.chdir(tmp_path)  # it writes a run directory
    monkeypatch.setitem(sys.modules, "pandas", None)
    [code] = blocks(README, "python")
    exec(code, {})
    found = contribution(group_runs(load_runs(["runs/first"]))[0])
    assert found.suspects == ["5"]
    assert [len(group) for group in found.ranked.groups()] == [7, 1]
