"""The settings of kept results were committed before the results."""

import json
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from hanse.base.errors import UserError
from hanse.lab.job import key_of
from hanse.lab.papers.catalogue import find_table
from hanse.lab.papers.runner import expand
from hanse.lab.papers.tables import filtered

ROOT = Path(__file__).parents[3]


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True).stdout


def test_a_plan_has_the_keys_of_the_runs_and_only_grows(pages: ModuleType, tmp_path: Path) -> None:
    words = ["--plan", "ipfl", "table5", "--seeds", "1"]
    path = pages.plan(pages.arguments(words), tmp_path)
    table = find_table("ipfl", "table5", "smoke")
    first = [job.key for job in expand(table, 1)[0]]
    assert json.loads(path.read_text()) == {"table5 paper smoke": first}
    pages.plan(pages.arguments([*words[:3], "--seeds", "2"]), tmp_path)
    keys = json.loads(path.read_text())["table5 paper smoke"]
    assert keys == list(dict.fromkeys([*first, *(job.key for job in expand(table, 2)[0])]))
    assert len(keys) > len(first)
    pages.plan(pages.arguments(["--plan", "ipfl", "figure4", "--seeds", "1", "--only", "cfl"]), tmp_path)
    figure = filtered(find_table("ipfl", "figure4", "smoke"), ["cfl"])
    both = json.loads(path.read_text())
    assert both == {"table5 paper smoke": keys, "figure4 paper smoke": [job.key for job in expand(figure, 1)[0]]}


def test_a_plan_of_what_cannot_be_is_refused(pages: ModuleType, tmp_path: Path) -> None:
    for words in (["ipfl", "table55"], ["ipfl", "table5", "--seeds", "0"], ["ipfl", "table5", "--only", "nobody"]):
        with pytest.raises(UserError):
            pages.plan(pages.arguments(["--plan", *words]), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_result_that_came_before_or_with_its_plan_is_found(pages: ModuleType, tmp_path: Path) -> None:
    def commit(**contents: object) -> None:
        for name, content in contents.items():
            path = (
                tmp_path
                / "benchmarks"
                / "results"
                / "ipfl"
                / ("planned.json" if name == "plan" else f"jobs/{name}.json")
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", "more")

    git(tmp_path, "init", "-q")
    commit(early={})
    commit(plan={"table5 paper small": ["good", "early"]})
    commit(good={})
    commit(plan={"table5 paper small": ["good", "early", "both"]}, both={})
    found = [line.split(",")[0] for line in pages.unplanned(tmp_path)]
    assert found == [f"benchmarks/results/ipfl/jobs/{name}.json" for name in ("both", "early")]
    (tmp_path / found[0]).unlink()  # what is not kept any more needs no plan
    assert [line.split(",")[0] for line in pages.unplanned(tmp_path)] == found[1:]


def test_every_kept_result_was_planned_in_an_earlier_commit(pages: ModuleType) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: the commits cannot be compared")
    if git(ROOT, "rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("a shallow clone: the commits before the results are not here")
    assert pages.unplanned() == []


def test_every_kept_result_is_of_the_settings_that_its_key_names(pages: ModuleType) -> None:
    for path in pages.RESULTS.glob("*/jobs/*.json"):
        assert key_of(json.loads(path.read_text())["given"]) == path.stem
