"""A short script without hanse comes to the judge's words from the same kept lines, and to others from other lines."""

import ast
import gzip
import json
import runpy
import shutil
import tomllib
from pathlib import Path

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


def claims_of(paper: str) -> list[Claim]:
    """The claims of the tables in ``recompute.toml``, which are whole there."""
    tables = {claim["table"] for claim in CLAIMS if claim["paper"] == paper}
    return [claim for claim in load_claims(paper) if claim.table in tables]


def judged(results: Path = BENCHMARKS / "results") -> dict[str, str]:
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
def test_it_comes_to_the_same_words_as_the_judge() -> None:
    assert runpy.run_path(str(SCRIPT))["main"]() == judged()


@pytest.mark.slow
def test_it_does_so_with_more_seeds_repeats_and_other_effects(tmp_path: Path) -> None:
    """Each seed is copied to those that are not kept, a little changed, and some runs are repeated."""
    for paper in PAPERS:
        needed = {job.key for claim in claims_of(paper) for seed in range(20) for job in jobs_of(claim, seed)}
        file = Path("results") / paper / "kept.jsonl.gz"
        every = map(json.loads, gzip.decompress((BENCHMARKS / file).read_bytes()).splitlines())
        lines = [line for line in every if line["key"] in needed and line["status"] == "done"]
        there = {line["key"] for line in lines}
        for place, line in enumerate(tuple(lines)):
            seed, given = line["given"]["run"]["seed"], line["given"]
            for step in (0, 5, 10, 15) if seed < 5 and given["data"]["seed"] == seed else ():
                part = {name: {**given[name], "seed": seed + step} for name in ("run", "data")}
                changed = {name: curve for name, curve in line["curves"].items() if name != "test/separated"}
                less = {n: [v and v * (1 - 0.001 * (place % 3 or not step)) for v in c] for n, c in changed.items()}
                more = line | {"given": given | part, "curves": line["curves"] | less}
                more |= {"key": key_of(more["given"], IDS)} if step else {"made": {"instructions": f"other {place}"}}
                lines += [more] * (not step or more["key"] not in there)
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode(), 1))
    for name in ("recompute.py", "recompute.toml"):
        shutil.copy(BENCHMARKS / name, tmp_path)
    words = judged(tmp_path / "results")
    assert {"no such effect", "contradicted"} & {*words.values()}
    assert runpy.run_path(str(tmp_path / "recompute.py"))["main"]() == words
