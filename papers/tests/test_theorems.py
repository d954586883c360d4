"""What the papers prove, tried: iPFL's theorems on random markets, GTFLAT's final state, PI-FL's bound."""

from pathlib import Path

import pytest
from paper_cases import load_claims

from hanse.games import market
from hanse_papers.catalogue import find_table
from hanse_papers.claims.judge import Runs, judge
from hanse_papers.theorems import counterexamples


def words(paper: str) -> dict[str, str]:
    claims = [claim for claim in load_claims(paper) if claim.arms and claim.arms[0][0].variant is None]
    return {v.claim.name: v.judged.word for v in judge(claims, Runs(Path("nowhere")))}


def test_ipfls_theorems_have_counterexamples_as_printed_and_none_as_repaired_and_its_prose_has() -> None:
    found = words("ipfl")
    stated = {name: word for name, word in found.items() if name.startswith(("Theorem", "Lemma"))}
    printed = {name for name in stated if name.endswith("as printed")}
    assert {name for name, word in stated.items() if word == "contradicted"} == printed
    assert len(printed) == 3
    assert len(stated) == 7
    assert [word for name, word in found.items() if name.startswith("truthful")] == ["contradicted"] * 3


def test_a_mechanism_that_breaks_a_theorem_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who pays a half more than eq. (10) says loses in some markets."""
    counterexamples.cache_clear()
    true = market.payments
    monkeypatch.setattr("hanse_papers.theorems.payments", lambda *given: 1.5 * true(*given))
    assert counterexamples(40)["Theorem 1", "counterexamples"] > 0
    counterexamples.cache_clear()


def test_example_1_ends_short_of_an_equilibrium_by_individuals_and_reaches_it_by_shares() -> None:
    gaps = {(c.algorithm, c.column): c.computed for c in find_table("gtflat", "equilibrium", "paper").cells}
    assert gaps["50 generations", "individuals"] == pytest.approx(0.0072, abs=1e-6)
    assert gaps["5000 generations", "shares"] == pytest.approx(0, abs=1e-9)
    assert words("gtflat") == {
        "Example 1": "confirmed",
        "self-enforcement": "contradicted",
        "self-enforcement, no rounding": "confirmed",
    }


def test_the_printed_bound_of_eq_57_is_not_the_exact_one() -> None:
    assert words("pifl") == {"when joining pays": "contradicted"}
    (cell,) = find_table("pifl", "joining", "paper").cells
    assert cell.computed == pytest.approx(0.1)
