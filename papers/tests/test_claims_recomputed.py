"""A short script without hanse comes to the judge's words from the same kept lines, and to others from other lines."""

import ast
import gzip
import importlib.util
import json
import shutil
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from paper_cases import load_claims

from hanse.lab.job import key_of
from hanse_papers.claims.claim import Claim
from hanse_papers.claims.judge import Runs, jobs_of, judge
from hanse_papers.ids import IDS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "recompute.py"
CLAIMS = tomllib.loads((BENCHMARKS / "recompute.toml").read_text())["claims"]
PAPERS = sorted({claim["paper"] for claim in CLAIMS})


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recompute", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def claims_of(paper: str) -> list[Claim]:
    """The claims of the tables in ``recompute.toml``, which are whole there."""
    tables = {claim["table"] for claim in CLAIMS if claim["paper"] == paper}
    return [claim for claim in load_claims(paper) if claim.table in tables]


def judged(results: Path) -> dict[str, str]:
    """The judge's words of the claims in ``recompute.toml``."""
    found = {f"{p}: {v.claim.name}": v.judged.word for p in PAPERS for v in judge(claims_of(p), Runs(results / p))}
    return {name: found[name] for name in (f"{c['paper']}: {c['name']}" for c in CLAIMS)}


def test_it_imports_nothing_of_hanse() -> None:
    text = SCRIPT.read_text()
    imported = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {a.name for n in imported if isinstance(n, ast.Import) for a in n.names}
    names |= {str(n.module) for n in imported if isinstance(n, ast.ImportFrom)}
    assert names == {"functools", "gzip", "itertools", "json", "tomllib", "pathlib", "numpy", "scipy.stats"}


def test_its_tables_are_whole_and_their_margins_are_the_claims() -> None:
    assert len(CLAIMS) >= 20
    for paper in PAPERS:
        here = [claim for claim in CLAIMS if claim["paper"] == paper]
        tables = {claim["table"] for claim in here}
        ours: dict[str, Claim] = {claim.name: claim for claim in load_claims(paper) if claim.table in tables}
        assert {claim["name"]: claim["margin"] for claim in here} == {
            name: pytest.approx(claim.margin) for name, claim in ours.items()
        }


@pytest.mark.slow
def test_it_comes_to_the_same_words_as_the_judge(script: ModuleType) -> None:
    assert script.main() == judged(BENCHMARKS / "results")


@pytest.mark.slow
def test_it_does_so_with_more_seeds_repeats_and_other_effects(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each seed is copied to those that are not kept, a little changed, and some runs are repeated."""
    for paper in PAPERS:
        needed = {job.key for claim in claims_of(paper) for seed in range(20) for job in jobs_of(claim, seed)}
        text = gzip.decompress((BENCHMARKS / "results" / paper / "kept.jsonl.gz").read_bytes()).decode()
        lines = [
            line for line in map(json.loads, text.splitlines()) if line["key"] in needed and line["status"] == "done"
        ]
        there, repeated = {line["key"] for line in lines}, set[str]()
        more = []
        for place, line in enumerate(lines):
            seed = line["given"]["run"]["seed"]
            for step in (5, 10, 15) if seed < 5 and line["given"]["data"]["seed"] == seed else ():
                given = json.loads(json.dumps(line["given"]))
                given["run"]["seed"] = given["data"]["seed"] = seed + step
                if key_of(given, IDS) in there:
                    continue
                changed = {
                    name: [v if v is None or name == "test/separated" else v * (1 - 0.001 * (place % 3)) for v in curve]
                    for name, curve in line["curves"].items()
                }
                more.append(line | {"given": given, "key": key_of(given, IDS), "curves": changed})
            if seed < 3 and line["key"] not in repeated:
                repeated.add(line["key"])
                curves = {n: [v if v is None else v * 0.999 for v in curve] for n, curve in line["curves"].items()}
                more.append(line | {"curves": curves, "made": {"instructions": "other"}})
        (tmp_path / "results" / paper).mkdir(parents=True)
        written = "".join(json.dumps(line) + "\n" for line in [*lines, *more])
        (tmp_path / "results" / paper / "kept.jsonl.gz").write_bytes(gzip.compress(written.encode(), 1))
    shutil.copy(BENCHMARKS / "recompute.toml", tmp_path)
    monkeypatch.setattr(script, "HERE", tmp_path)
    words = judged(tmp_path / "results")
    assert len(set(words.values())) >= 3
    assert "no such effect" in words.values() or "contradicted" in words.values()
    assert script.main() == words
