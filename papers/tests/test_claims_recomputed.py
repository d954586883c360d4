"""A short script without hanse comes to the judge's words from the same kept lines."""

import ast
import runpy
import tomllib
from pathlib import Path

import pytest
from paper_cases import load_claims

from hanse_papers.claims.claim import Claim
from hanse_papers.claims.judge import Runs, judge

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "recompute.py"
CLAIMS = tomllib.loads((BENCHMARKS / "recompute.toml").read_text())["claims"]
PAPERS = sorted({claim["paper"] for claim in CLAIMS})


def claims_of(paper: str) -> list[Claim]:
    """The claims of the tables in ``recompute.toml``, which are whole there."""
    tables = {claim["table"] for claim in CLAIMS if claim["paper"] == paper}
    return [claim for claim in load_claims(paper) if claim.table in tables]


def judged() -> dict[str, str]:
    """The judge's words of the claims in ``recompute.toml``."""
    results = BENCHMARKS / "results"
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
