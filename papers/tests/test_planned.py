"""The settings of kept results were committed before the results."""

import json
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from hanse.lab.job import Job, key_of
from hanse.lab.kept import KeptFile

ROOT = Path(__file__).parents[2]


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True).stdout


def kept(label: str, **more: object) -> tuple[Job, dict[str, object]]:
    given = {"label": label}
    job = Job(key_of(given), label, given)
    return job, {"key": job.key, "label": label, "given": given, "status": "failed", "error": "none", **more}


def test_a_result_that_came_before_or_with_its_plan_is_found(pages: ModuleType, tmp_path: Path) -> None:
    results = tmp_path / "benchmarks" / "results" / "ipfl"
    job = {name: kept(name)[0] for name in ("early", "good", "both", "new", "strange")}

    def commit(*names: str, plan: tuple[str, ...] = ()) -> str:
        (results / "jobs").mkdir(parents=True, exist_ok=True)
        for name in names:
            (results / "jobs" / f"{job[name].key}.json").write_text("{}")
        if plan:
            (results / "planned.json").write_text(json.dumps({"table5 paper small": [job[n].key for n in plan]}))
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", "more")
        return git(tmp_path, "rev-parse", "HEAD").strip()

    git(tmp_path, "init", "-q")
    commit("early")
    commit(plan=("good", "early"))
    last = commit("good")
    commit("both", plan=("good", "early", "both"))
    for name in ("early", "good", "both"):
        KeptFile(results).write(*kept(name))
    KeptFile(results).write(*kept("new", made={"commit": last}))
    KeptFile(results).write(*kept("strange", made={"commit": f"{last}+"}))
    assert sorted(pages.unplanned(tmp_path)) == sorted([
        *(f"ipfl: {job[name].key}, not planned in an earlier commit" for name in ("both", "early")),
        f"ipfl: {job['strange'].key}, played by {last}+, which is not in the history",
    ])  # fmt: skip


def test_every_kept_result_was_planned_in_an_earlier_commit(pages: ModuleType) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: the commits cannot be compared")
    if git(ROOT, "rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("a shallow clone: the commits before the results are not here")
    assert pages.unplanned() == []
