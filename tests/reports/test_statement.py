from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from forging import recorded
from reports_cases import metric, seat, write_run
from test_report import Page
from typer.testing import CliRunner

import hanse
from hanse.base.errors import UserError
from hanse.cli import app
from hanse.core.entry import TOKEN, Transaction, client, escrow, pool
from hanse.learning.intervals import difference, wilson
from hanse.ledger.run_ledger import open_ledger
from hanse.ledger.store import Ledger
from hanse.reports.answers import answers_of
from hanse.reports.groups import group_runs
from hanse.reports.money import books_of
from hanse.reports.statement import statement
from hanse.reports.statement_contributed import contributed
from hanse.reports.statement_fit import ModelQuality
from hanse.reports.statement_models import Models, models_of
from hanse.reports.statement_money import Money, money_of
from hanse.reports.statement_page import POLICY, STYLE, render
from hanse.reports.statement_verdict import verdict_of
from hanse.runs.arrivals import STILL
from hanse.runs.run_record import load_run

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
DATA = {"source": "digits", "partition": "mixture", "clients": 6, "client_test": 0.2, "client_validation": 0.1}


def pifl(out: Path, *, by_contribution: int = 2, rounds: int = 6, **clients: object) -> Path:
    hanse.run(
        hanse.Experiment(
            data=DATA,
            model={"name": "mlp", "hidden": [8]},
            mechanism={"name": "pifl", "tiers": 2, "by_contribution": by_contribution, "at_random": 1},
            clients=clients,
            engine={"train": "stacked", "threads": 1},
            run={"rounds": rounds},
        ),
        out=out,
    )
    return out


@pytest.fixture(scope="module")
def auction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pifl(tmp_path_factory.mktemp("auction") / "pifl")


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from hanse.cli.demo import market_experiment

    folder = tmp_path_factory.mktemp("market")
    trade = market_experiment(0)
    hanse.run(trade.model_copy(update={"run": trade.run.model_copy(update={"rounds": 4})}), out=folder / "trade")
    return folder / "trade"


# ---- money


def test_figures_of_every_client_are_the_ledgers_own(auction: Path) -> None:
    with open_ledger(auction) as ledger:
        balances, records = ledger.balances(), list(ledger.history())
    total = 0
    for c in range(6):
        money = money_of(auction, c)
        assert money.balance == balances[client(c)]
        assert money.escrow == balances.get(escrow(c), 0) == 0
        assert money.granted == 100 * TOKEN
        assert money.granted + money.net == money.balance
        for figure in money.figures:  # the transactions behind a figure add up to it
            own = {client(c)} if figure.within else {client(c), escrow(c)}
            units = [
                u
                for n in figure.transactions
                for name, u in records[n - 1].transaction.postings
                if name in own and records[n - 1].transaction.kind == figure.kind
            ]
            assert figure.received == sum(u for u in units if u > 0)
            assert figure.paid == -sum(u for u in units if u < 0)
        assert money.lines[-1].holds == money.balance
        total += money.net
    assert total == -sum(units for name, units in balances.items() if name.startswith("pool/"))


def test_bids_are_no_expense(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "transactions.jsonl", book="b", floor=0) as ledger:
        a, e, p = client(1), escrow(1), pool("x")
        ledger.post(0, [Transaction("grant/1", "grant", (("mint", -10), (a, 10)))])
        ledger.post(
            1, [Transaction("bid", "bid", ((a, -3), (e, 3))), Transaction("return", "return", ((e, -1), (a, 1)))]
        )
        ledger.post(2, [Transaction("pay", "pay", ((e, -2), (p, 2))), Transaction("r", "reward", ((p, -1), (a, 1)))])
    (tmp_path / "ledger.json").write_text('{"book": "b"}')
    (tmp_path / "config.toml").write_text("")
    money = money_of(tmp_path, 1)
    assert (money.granted, money.received, money.paid, money.net, money.balance, money.escrow) == (10, 1, 2, -1, 9, 0)
    assert [(f.kind, f.received, f.paid, f.transactions) for f in money.figures] == [
        ("grant", 10, 0, (1,)), ("bid", 0, 3, (2,)), ("return", 1, 0, (3,)), ("pay", 0, 2, (4,)),
        ("reward", 1, 0, (5,)),
    ]  # fmt: skip
    assert [line.holds for line in money.lines] == [10, 7, 10, 9, 10, 8, 9]
    nobody = money_of(tmp_path, 2)
    assert (nobody.balance, nobody.lines) == (0, ())


def test_where_nobody_pays_there_is_no_money(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [metric(0, 0.5)], [seat(0, 0, 1.0)])
    found = statement(path, 0)
    assert found.money is None
    assert "No tokens" in render(found)
    (path / "ledger.json").write_text('{"book": "b"}')
    with pytest.raises(UserError, match=r"transactions\.heads"):
        statement(path, 0)


# ---- what it gave


def test_shares_of_a_round_are_parts_of_what_was_above_zero(tmp_path: Path) -> None:
    seats = [
        seat(0, 0, 3.0, value_error=0.3), seat(0, 1, 1.0), seat(0, 2, -2.0),
        seat(1, 0, 1.0, value_error=0.4, weight=0.25), seat(1, 0, 1.0, start=1, weight=0.5), seat(1, 2, refused="late"),
    ]  # fmt: skip
    run = load_run(write_run(tmp_path / "a", [metric(0), metric(1)], seats))
    mine = contributed(run, 0)
    assert [(r.round, r.value, r.of, r.share, r.weight) for r in mine.rounds] == [
        (0, 3.0, 2.0, 0.75, None), (1, 2.0, 2.0, 1.0, 0.75)
    ]  # fmt: skip
    assert (mine.value, mine.share, mine.place, mine.valued) == (5.0, 5 / 6, 1, 3)
    assert mine.error == pytest.approx(0.5)
    other = contributed(run, 2)
    assert (other.value, other.share, other.place) == (-2.0, 0.0, None)  # one update is no rank
    assert other.rounds[1].refused == "late"
    for r in range(2):
        assert sum(x.share or 0 for c in range(3) for x in contributed(run, c).rounds if x.round == r) == 1.0
    assert contributed(run, 5).rounds == ()


# ---- where its models went


def rounds(path: Path, *records: dict[str, object]) -> Path:
    for r, record in enumerate(records):
        recorded(path, r, **{k: np.asarray(v) for k, v in record.items()})
    return path


def test_a_shared_model_goes_to_everyone_else(tmp_path: Path) -> None:
    seats = [seat(r, c) for r in range(2) for c in (0, 1)]
    path = write_run(tmp_path / "a", [metric(0), metric(1)], seats, {"data": {"clients": 4}})
    sent = {"client": [0, 1], "start": [0, 0], "answered": [0, 1], "W_row": [0, 0], "W_column": [0, 1]}
    rounds(path, sent | {"W_weight": [0.5, 0.5], "home": [0, 0, 0, 0]}, sent | {"W_weight": [0.0, 1.0]})
    run = load_run(path)
    assert models_of(run, 0) == Models(2, 2, 1, 3, 3)
    assert models_of(run, 1, names=True) == Models(2, 2, 2, 3, 6, names=(("0", 2), ("2", 2), ("3", 2)))
    assert models_of(run, 3) == Models(0, 0, 0, 0, 0)


def test_a_late_update_is_asked_for_once_and_not_refused(tmp_path: Path) -> None:
    still = {"refused": STILL}
    seats = [seat(0, 0, **still), seat(2, 0, 0.5, staleness=2), seat(3, 0, **still)]
    lines = [metric(r, 0.1 * r) for r in range(4)]
    path = write_run(tmp_path / "a", lines, seats, {"federation": {"late": "next"}, "run": {"rounds": 4}})
    rounds(path, {"answered": []}, {"answered": []}, {"answered": [0]}, {"answered": []})
    for r in range(4):  # only what is read of them
        sent = dict(np.load(path / "rounds" / f"{r:05d}.npz")) | {"home": [0], "W_row": [], "W_column": []}
        recorded(path, r, **sent, client=[], start=[], W_weight=[])
    assert models_of(load_run(path), 0) == Models(2, 1, 0, 0, 0, late=1, latest=2, on_its_way=True)
    page = render(statement(path, 0))
    assert "asked to train in 2 of 4 rounds; its update was accepted in 1, 1 of these updates after" in page
    assert "still on its way" in page
    assert "2 rounds" in page


def test_a_personal_row_goes_to_nobody_and_a_shared_one_to_who_trains_on_it_next(tmp_path: Path) -> None:
    """Ditto: rows 0..2 are the clients' own, row 3 is shared; clients 0 and 1 sit, then 0 and 2."""
    path = write_run(tmp_path / "a", [metric(0), metric(1)], [], {"data": {"clients": 3}})
    first = {"client": [0, 0, 1, 1], "start": [0, 3, 1, 3], "answered": [0, 0, 1, 1], "home": [0, 1, 2]}
    first |= {"W_row": [0, 1, 3, 3], "W_column": [0, 2, 1, 3], "W_weight": [1.0, 1.0, 0.5, 0.5]}
    second = {"client": [0, 0, 2, 2], "start": [0, 3, 2, 3], "answered": [2, 2], "W_row": [2, 3], "W_column": [0, 1]}
    rounds(path, first, second | {"W_weight": [1.0, 1.0]})
    run = load_run(path)
    assert models_of(run, 0) == Models(0, 1, 1, 1, 1)  # client 2 trained on row 3 next
    assert models_of(run, 1, names=True).names == (("0", 1), ("2", 1))


def test_a_market_counts_what_was_delivered(market: Path) -> None:
    run = load_run(market)
    sold = bought = 0
    utility = np.zeros(12)
    graphs = [a for r in range(4) if "market_graph" in (a := run.arrays(r))]
    for c in range(12):
        found = models_of(run, c)
        expected = sum(int((g["market_graph"] * g["market_paid"][:, None])[:, c].sum()) for g in graphs)
        assert found.deliveries == expected
        assert found.imported == sum(int((g["market_graph"] * g["market_paid"][:, None])[c].sum()) for g in graphs)
        # the last round sells nothing; what it keeps of an update is the client's own
        assert found.used == sum(bool((g["market_graph"] * g["market_paid"][:, None])[:, c].any()) for g in graphs)
        sold, bought = sold + found.deliveries, bought + found.imported
        utility[c] = found.utility or 0.0
    assert sold == bought > 0
    np.testing.assert_allclose(utility, sum(g["market_utility"] for g in graphs), rtol=1e-12)


# ---- alone, and whether joining paid


def test_alone_is_the_same_experiment_with_everyone_by_itself(market: Path) -> None:
    from hanse.reports.alone import alone_experiment, train_alone

    before = statement(market, 1)
    assert before.fit.alone_accuracy is None
    assert "--client 1 --train-alone" in before.fit.how
    assert "11 clients" in answers_of(market).joining
    place = train_alone(market)
    assert place == market / "alone"
    lines = (place / "metrics.jsonl").read_bytes()
    train_alone(market)  # finished: it stays as it is
    assert (place / "metrics.jsonl").read_bytes() == lines
    played = hanse.run(alone_experiment(hanse.Experiment.read(market / "config.toml")))
    for c in (1, 11):
        found = statement(market, c).fit
        assert found.alone == "alone"
        assert found.alone_accuracy == played.tested["test_accuracy"][c]
        assert found.samples == played.tested["test_samples"][c] > 0
        own = load_run(market).arrays(3)
        assert found.last == own["test_accuracy"][c]
        p, q, n = found.last, found.alone_accuracy, found.samples
        assert found.difference_interval == pytest.approx(difference(p, wilson(p, n), q, wilson(q, n)))
    with pytest.raises(UserError, match="'ipfl'"):
        statement(market, 1, alone=market)
    (place / "config.toml").write_text((place / "config.toml").read_text().replace("lr = 0.05", "lr = 0.06"))
    assert statement(market, 1).fit.alone is None
    with pytest.raises(UserError, match=r"train\.lr.*0\.06 there"):
        statement(market, 1, alone=place)
    (place / "config.toml").write_text((place / "config.toml").read_text().replace("lr = 0.06", "lr = 0.05"))


def fit(ours: float | None, alone: float | None, samples: int | None = 400) -> ModelQuality:
    return ModelQuality((0,), (ours,), (1.0,), samples, None if alone is None else "alone", alone, 1.0, 1, "")


NOTHING = Models(0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("of", "utility", "answer"),
    [
        (fit(0.9, 0.5), None, "yes"),
        (fit(0.5, 0.9), None, "no"),
        (fit(0.9, 0.5), -2.0, "yes"),  # a market's formula is named and not counted, as in a report
        (fit(0.5, 0.9), 2.0, "no"),
        (fit(0.9, 0.9), 0.0, "even"),
        (fit(0.52, 0.5), None, "even"),  # 2 points on 400 samples
        (fit(0.52, 0.5), 1.0, "even"),
        (fit(0.52, 0.5, 40_000), None, "yes"),
        (fit(0.9, 0.5, None), None, "even"),  # of nobody knows how many samples
        (fit(0.5, None), None, "unknown"),
        (fit(0.5, None), -1.0, "unknown"),
    ],
)
def test_the_answer_is_no_surer_than_the_numbers(of: ModelQuality, utility: float | None, answer: str) -> None:
    models = Models(1, 1, 1, 1, 1, utility=utility)
    found = verdict_of(of, None, models)
    assert found.answer == answer
    assert ("by the market's formula" in found.headline) == (utility is not None)


@pytest.mark.parametrize(
    ("of", "answer"),
    [(fit(0.707, 0.805), "no"), (fit(0.536, 0.5), "even"), (fit(0.5, None), "unknown"), (fit(0.9, 0.5), "yes")],
)
@pytest.mark.parametrize("net", [180_000, -100_000])
def test_tokens_do_not_decide(of: ModelQuality, answer: str, net: int) -> None:
    """+0.18 tokens made it a yes for a model 10 points worse, and -0.1 a no for one 3.6 points better."""
    found = verdict_of(of, books(max(net, 0), max(-net, 0)), NOTHING)
    assert found.answer == verdict_of(of, None, NOTHING).answer == answer
    assert found.headline.endswith(f"; in tokens: {net / 1e6:+g}")


def books(received: int, paid: int) -> Money:
    return Money(
        book="b", count=1, head="", floor=0, granted=0, received=received, paid=paid, balance=0, escrow=0, figures=(),
        lines=(),
    )  # fmt: skip


def test_what_a_point_of_accuracy_cost() -> None:
    found = verdict_of(fit(0.9, 0.5), books(0, 2_000_000), NOTHING)
    assert found.headline == "Yes, joining paid (on its 400 test samples, in this run); in tokens: -2"
    assert found.reasons[-1] == "It paid 0.05 tokens for each point of accuracy."
    found = verdict_of(fit(0.5, 0.9), books(8_000_000, 0), NOTHING)
    assert found.headline == "No, joining did not pay (on its 400 test samples, in this run); in tokens: +8"
    assert found.reasons[-1] == "It earned 0.2 tokens for each point of accuracy that it gave up."
    found = verdict_of(fit(0.9, 0.5), None, Models(1, 1, 1, 1, 1, utility=-2.0))  # nothing was paid
    assert found.headline.endswith("in this run); by the market's formula it lost")
    assert not any("for each point" in reason for reason in found.reasons)


# ---- the page and the command


def test_a_page_without_scripts_that_works_offline(auction: Path) -> None:
    text = render(statement(auction, 0))
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(page.tags)
    assert (page.fetched, page.styled) == ([], False)
    assert f"<style>{STYLE}</style>" in text
    assert "unsafe-inline" not in POLICY
    assert POLICY.replace("'", "&#39;") in text
    assert text.count("<svg") == 3


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    changes = {"mechanism": {"name": f"a:{HOSTILE}"}, "clients": {"named": True}, "data": {"clients": 2}}
    path = tmp_path / HOSTILE.replace("/", "_")
    seats = [seat(0, 0, 1.0, name=HOSTILE), seat(0, 1, 1.0, name=f"2{HOSTILE}", refused=HOSTILE)]
    write_run(path, [metric(0)], seats, changes)
    one = {key: [0] for key in ("client", "start", "answered", "W_row", "W_column")}
    rounds(path, {**one, "W_weight": [1.0], "home": [0, 0]})
    for c in (0, 1):
        found = statement(path, c)
        page = Page(render(found))
        assert not {"script", "img"} & set(page.tags)
    assert statement(path, 0).models.names == ((f"2{HOSTILE}", 1),)
    assert load_run(path).client_of(HOSTILE) == 0


def test_others_are_named_only_where_the_run_allows_it(auction: Path, tmp_path: Path) -> None:
    closed = statement(auction, 0)
    assert closed.models.names is None
    assert all(line.others == () for line in closed.money.lines)
    assert "client/1" not in json.dumps(closed.as_json())
    named = statement(pifl(tmp_path / "open", named=True), 0)
    assert named.models.names is not None
    assert any(client(1) in line.others for line in named.money.lines)
    assert (named.models.deliveries, named.money.net) == (closed.models.deliveries, closed.money.net)


def test_the_command(auction: Path, tmp_path: Path) -> None:
    run = CliRunner()
    result = run.invoke(app, ["statement", str(auction), "--client", "2", "--out", str(tmp_path / "s.html")])
    assert result.exit_code == 0
    assert "Whether joining paid is not known; in tokens: +" in result.stdout
    assert (tmp_path / "s.html").read_text() == render(statement(auction, 2))
    result = run.invoke(app, ["statement", str(auction), "-c", "2", "--json"])
    assert json.loads(result.stdout) == json.loads(json.dumps(statement(auction, 2).as_json()))


def test_a_page_for_everybody(auction: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(auction, tmp_path / "run")
    run = CliRunner()
    result = run.invoke(app, ["statement", str(folder), "--all"])
    assert result.exit_code == 0
    assert "6 pages" in result.stdout
    made = {c: statement(folder, c) for c in (0, 5)}
    for c, one in made.items():
        assert (folder / "statements" / f"client-{c}.html").read_text() == render(one)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["{run}", "-c", "1", "--all"], "--client 3"),
        (["{run}", "--all", "--out", "page.html"], "--train-alone only"),
        (["{run}", "-c", "6"], "--client 6: no such client; this run has clients 0 to 5"),
        (["{run}", "-c", "1", "--dry-run"], "--dry-run takes"),
        (
            ["{run}/config.toml", "-c", "9", "--dry-run"],
            "--client 9: no such client; this experiment has clients 0 to 5",
        ),
        (["{run}", "-c", "1", "--receipts", "{run}/none"], "such folder"),
        (["{run}", "-c", "1", "--alone", "{run}", "--train-alone"], "--alone"),
        (["{run}", "-c", "1", "--alone", "{run}"], "'pifl'"),
    ],
)
def test_mistakes_are_one_line(args: list[str], said: str, auction: Path) -> None:
    with pytest.raises(UserError) as wrong:
        CliRunner().invoke(
            app, ["statement", *(a.replace("{run}", str(auction)) for a in args)], catch_exceptions=False
        )
    assert len(wrong.value.lines) == 1
    assert said in wrong.value.lines[0]


def test_books_that_do_not_hold_make_no_statement(auction: Path, tmp_path: Path) -> None:
    run = shutil.copytree(auction, tmp_path / "run")
    assert statement(run, 1).money is not None
    log = run / "transactions.jsonl"
    log.write_text(log.read_text().replace("client/1", "client/2", 1))
    tampered = run.rename(tmp_path / "tampered")
    with pytest.raises(UserError, match="transactions 1 to "):
        statement(tampered, 1)
    books, notes = books_of(group_runs([load_run(tampered)]))  # what a report shows of them
    assert books == {}
    assert "transactions 1 to " in notes[0]


@pytest.mark.parametrize("torn", [False, True])
def test_a_round_that_is_not_finished_is_left_out(auction: Path, tmp_path: Path, torn: bool) -> None:
    """A round's seats are written before its metrics, and a statement may be asked for between the two."""
    run = shutil.copytree(auction, tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]) + (lines[-1][:-1] if torn else ""))
    heads = (run / "transactions.heads").read_text().splitlines(keepends=True)
    (run / "transactions.heads").write_text("".join(heads[: 5 * (len(lines) - 1)]))  # the books come after both
    shutil.rmtree(run / "checkpoints")
    made = statement(run, 1)
    assert (made.rounds, max(r.round for r in made.contributed.rounds)) == (len(lines) - 1, len(lines) - 2)
    assert render(made)
