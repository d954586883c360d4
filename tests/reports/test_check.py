"""Whoever changes a page that is made of a run is found out (``hanse facts --check``)."""

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reports_cases import large_run, market_experiment

import hanse
from hanse.reports.alone import train_alone
from hanse.reports.compare import run_row
from hanse.reports.contributions import contribution
from hanse.reports.groups import SeedGroup
from hanse.reports.invoice import as_page, invoice
from hanse.reports.report import check, write_report
from hanse.reports.statement import render, statement
from hanse.reports.words import differences
from hanse.runs.run_record import load_run


def simple(out: Path, *, alone: bool = False, **given: Any) -> Path:
    sections: dict[str, Any] = {
        "data": {"clients": 4, "client_test": 0.2}, "model": "logistic", "run": {"rounds": 3},
        "mechanism": {"name": "fedavg", "value": "path"}, "engine": {"train": "stacked", "threads": 1},
    }  # fmt: skip
    hanse.run(hanse.Experiment(**{**sections, **given}), out=out)
    if alone:
        train_alone(out)
    return out


def edited(out: Path) -> Path:
    config = simple(out) / "config.toml"
    config.write_text(config.read_text().replace("epochs = 1", "epochs = 7"))
    return out


def app(out: Path) -> Path:
    from flwr.serverapp.strategy import FedAvg
    from recorded import RecordedGrid, first_arrays
    from test_valued import evaluate

    with hanse.valued(FedAvg(), out=out, validation=evaluate) as listened:
        listened.start(RecordedGrid(), first_arrays(), num_rounds=3)
    return out


def masked(out: Path) -> Path:
    from test_masks_in_process import experiment, over_flower

    over_flower(experiment(4), out)
    return out / "run"


TIERS = {"name": "pifl", "tiers": 2, "by_contribution": 2, "at_random": 1}
OWN = {"source": "digits", "partition": "mixture", "clients": 6, "client_test": 0.2, "client_validation": 0.1}
PRIVATE = {"private": {"clip": 1.0, "epsilon": 8.0, "delta": 1e-5}}
KINDS: dict[str, Callable[[Path], Path]] = {
    "PI-FL": lambda out: simple(out, data=OWN, mechanism=TIERS, clients={"named": True}),
    "iPFL": lambda out: hanse.run(market_experiment(3), out=out).path,
    "dead market": lambda out: hanse.run(market_experiment(3, [1e-9, 2e-9]), out=out).path,
    "one client": lambda out: simple(out, data={"clients": 1, "client_test": 0.2}, alone=True),
    "no validation": lambda out: simple(out, data={"clients": 4, "validation": 0.0}, mechanism="fedavg"),
    "chance": lambda out: simple(out, train={"lr": 1e-9}, alone=True),
    "edited": edited,
    "masked": masked,
    "private": lambda out: simple(out, federation=PRIVATE),
    "app": app,
    "300 clients": lambda out: large_run(out, rounds=6, clients=300, per_round=60),
}


@pytest.fixture(autouse=True)
def _flower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[1] / "flower")])


def pages(run: Path, out: Path) -> dict[str, str]:
    """The report, the statements of the first and the last client, and an invoice if the run can be split."""
    last = len(hanse.facts(run).clients) - 1
    found = {"report": write_report([run], out).read_text("utf-8")}
    found |= {f"statement {client}": render(statement(run, client)) for client in {0, last}}
    for by in ("value", "balance"):
        try:
            found[f"invoice by {by}"] = as_page(invoice(run, "1000", "EUR", by))
        except hanse.UserError:  # nobody was valued, nobody pays, or the books do not hold
            continue
    return found


SPAN = re.compile(r"<span data-own>[^<]*")  # its date and hanse's version


def changed(text: str, draw: np.random.Generator) -> str:
    """The page with another digit anywhere, in its text, its pictures or its style."""
    own = {at for one in SPAN.finditer(text) for at in range(*one.span())}
    at = int(draw.choice([one.start() for one in re.finditer("[0-9]", text) if one.start() not in own]))
    return f"{text[:at]}{(int(text[at]) + draw.integers(1, 10)) % 10}{text[at + 1 :]}"


def same(shown: float | None, fact: float | None) -> bool:
    return shown == fact or (shown is not None and fact is not None and math.isclose(shown, fact, abs_tol=1e-9))


def assert_numbers_beside_the_facts_are_facts(run: Path) -> None:
    """What a page adds up itself is what the facts say of it: the same code makes a page and checks it."""
    found, record = hanse.facts(run), load_run(run)
    [whole], row = found.runs, run_row(record)
    assert same(row[f"test_{whole.metric}"] if whole.metric != "loss" else row["test_mse"], whole.test)
    assert (row["rounds"], row["refused"]) == (whole.rounds, whole.refused)
    assert whole.metric != "accuracy" or same(row["client_accuracy"], whole.own)
    sent = [one.megabytes for one in found.rounds if one.megabytes is not None]
    assert same(row["mb"], sum(sent) if sent else None)
    drawn = contribution(SeedGroup("", (record,)))
    values = {} if drawn is None else dict(zip(drawn.clients.tolist(), drawn.totals.tolist(), strict=True))
    for client in found.clients[:3]:
        made = statement(run, client.client)
        assert same(values.get(client.client), client.value)
        own = [one.value for one in made.rounds if one.value is not None]
        assert same(sum(own) if own else None, client.value)
        assert len(made.rounds) >= client.answered
        assert same(made.above + made.below, whole.value or 0.0)
        if made.money is not None:
            moved = [one for one in made.money.figures if not one.within and one.kind != "grant"]
            assert sum(one.received for one in moved) == client.received
            assert sum(one.paid for one in moved) == client.paid
            assert (made.money.lines[-1].holds if made.money.lines else 0) == client.holds


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("kind", KINDS)
def test_pages_agree_with_their_run_and_whoever_changes_a_number_is_found(kind: str, tmp_path: Path) -> None:
    if kind in ("masked", "app"):
        pytest.importorskip("flwr", reason="needs the extra 'flower'")
    run, draw = KINDS[kind](tmp_path / "run"), np.random.default_rng(0)
    file = tmp_path / "page.html"
    for name, text in pages(run, tmp_path / "out").items():
        file.write_text(text, "utf-8")
        assert check([run], file) == [], name
        for _ in range(20):
            assert differences(changed(text, draw), text), name
    assert_numbers_beside_the_facts_are_facts(run)


FORGED: dict[str, tuple[str, str]] = {
    "a word": (r"accuracy", "error"),
    "a sentence left out": (r"<p[^>]*>[^<\d]*</p>", ""),
    "hidden": (r"<p\b", "<p hidden"),
    "style": (r"</style>", "td { display: none }</style>"),
    "a drawing": ("base64,P", "base64,Q"),
    "what browsers see and parsers do not": (r"<footer", "<!--><p>gained 500</p><!-- --><footer"),
    "more than a version": (r"(<span data-own>\d[^<]*)", r"\1, and gained 500"),
    "words for a version": (r"(<span data-own>)[^<]*", r"\g<1>9.gained-500-EUR"),
    "words for a date": (r"(<span data-own>)[^<]*", r"\g<1>2026-gained-500"),
    "a claim in it": (r"(<span data-own>\d[^<]*)", r"\1<p>gained 500</p>"),
    "after the end": (r"\Z", "gained 500 &"),
    "a number as a word": (r"</footer>", "gained twelve ½</footer>"),
    "other digits": (r"</footer>", "٣٤</footer>"),
}


def test_whatever_else_of_a_page_is_changed_is_found(tmp_path: Path) -> None:
    text = render(statement(simple(tmp_path / "run"), 0))
    other_version = re.sub(r"(<span data-own>)\d[^<]*", r"\g<1>9.9.dev1+local", text).replace("\n", "\r\n")
    assert other_version != text
    assert differences(other_version, text) == []
    for name, (found, put) in FORGED.items():
        forged = re.sub(found, put, text, count=1)
        assert forged != text, name
        assert len(differences(forged, text)) >= 1, name
