import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import invoke
from experiments import digits
from forging import recorded
from reports_cases import market_experiment, metric, seat, write_run
from test_report import Page

import hanse
from hanse.core.entry import TOKEN, Transaction, client, escrow, pool
from hanse.learning.intervals import difference, wilson
from hanse.ledger.log import Walk
from hanse.ledger.run_ledger import open_ledger
from hanse.ledger.store import Ledger
from hanse.reports.alone import alone_experiment, train_alone
from hanse.reports.answers import answers_of
from hanse.reports.facts import facts_of
from hanse.reports.groups import group_runs
from hanse.reports.money import money_of, token_charts
from hanse.reports.statement import render, statement
from hanse.reports.words import doubts_said, policy
from hanse.runs import run_record
from hanse.runs.run_record import load_run, load_runs

DATA = {"partition": "mixture", "client_test": 0.2, "client_validation": 0.1}


def pifl(out: Path, *, by_contribution: int = 2, rounds: int = 6, **clients: object) -> Path:
    mechanism = {"name": "pifl", "tiers": 2, "by_contribution": by_contribution, "at_random": 1}
    sections = {"data": DATA, "model": {"name": "mlp", "hidden": [8]}, "engine": {"train": "stacked"}}
    return hanse.run(digits(mechanism, 6, rounds, **sections, clients=clients), out=out).path


@pytest.fixture(scope="module")
def auction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pifl(tmp_path_factory.mktemp("auction") / "pifl")


# ---- money


def test_figures_of_every_client_are_the_ledgers_own(auction: Path) -> None:
    ledger = open_ledger(auction)
    balances, records = ledger.as_book().balances, list(ledger.history())
    total = 0
    for row in hanse.facts(auction).clients:
        money = money_of(load_run(auction), row.client)
        own = {client(row.client), escrow(row.client)}
        assert (row.granted, row.balance) == (100 * TOKEN, balances[client(row.client)])
        assert row.granted + row.net == row.balance
        for figure in money.figures:  # the transactions behind a figure add up to it
            counted = {client(row.client)} if figure.within else own
            units = [u for n in figure.transactions for who, u in records[n - 1].transaction.postings if who in counted]
            assert figure.received == sum(u for u in units if u > 0)
            assert figure.paid == -sum(u for u in units if u < 0)
        assert money.lines[-1].holds == row.balance
        outside = [f for f in money.figures if not f.within and f.kind != "grant"]
        assert (row.received, row.paid) == (sum(f.received for f in outside), sum(f.paid for f in outside))
        total += row.net
    assert total == -sum(units for name, units in balances.items() if name.startswith("pool/"))


def test_bids_are_no_expense(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [metric(0)])
    ledger = Ledger.open(path / "transactions.jsonl", book="b", floor=0)
    a, e, p = client(1), escrow(1), pool("x")
    ledger.post(0, [Transaction("grant/1", "grant", (("mint", -10), (a, 10)))])
    ledger.post(1, [Transaction("bid", "bid", ((a, -3), (e, 3))), Transaction("return", "return", ((e, -1), (a, 1)))])
    ledger.post(2, [Transaction("pay", "pay", ((e, -2), (p, 2))), Transaction("r", "reward", ((p, -1), (a, 1)))])
    (path / "ledger.json").write_text('{"book": "b"}')
    run = load_run(path)
    vars(run)["wrong_in_books"] = None  # these books close no rounds
    one, nobody = hanse.facts(run).clients[1:3]
    assert (one.granted, one.received, one.paid, one.net, one.balance, one.escrow) == (10, 1, 2, -1, 9, 0)
    money = money_of(run, 1)
    assert [(f.kind, f.received, f.paid, f.transactions) for f in money.figures] == [
        ("grant", 10, 0, [1]), ("bid", 0, 3, [2]), ("return", 1, 0, [3]), ("pay", 0, 2, [4]), ("reward", 1, 0, [5]),
    ]  # fmt: skip
    assert [line.holds for line in money.lines] == [10, 7, 10, 9, 10, 8, 9]
    assert (nobody.balance, money_of(run, 2).lines) == (0, ())


# ---- what it gave


def test_seats_are_shown_one_by_one_and_shares_are_parts_of_what_was_above_zero(tmp_path: Path) -> None:
    seats = [
        seat(0, 0, 3.0, value_error=0.3, value_draw_error=0.4), seat(0, 1, 1.0), seat(0, 2, -2.0),
        seat(1, 0, 1.0, value_error=0.4, weight=0.25), seat(1, 0, 1.0, start=1, weight=0.5), seat(1, 2, refused="late"),
    ]  # fmt: skip
    path = write_run(tmp_path / "a", [metric(0), metric(1)], seats)
    recorded(path, 0, answered=np.arange(3), value_without_block=np.zeros((3, 5)))
    mine = statement(path, 0)
    assert mine.rounds[0].half == pytest.approx(math.hypot(1.96 * 0.3, 2.7764451 * 0.4))  # five blocks: Student's t
    assert [(r.round, r.value, r.weight) for r in mine.rounds] == [
        (0, 3.0, None), (1, 1.0, 0.25), (1, 1.0, 0.5)
    ]  # fmt: skip
    assert (mine.client.value, mine.client.share, mine.client.place, mine.valued) == (5.0, 5 / 6, 1, 3)
    assert mine.client.value_error == pytest.approx(0.5)
    other = statement(path, 2)
    assert (other.client.value, other.client.share, other.client.place) == (-2.0, 0.0, None)  # one update is no rank
    assert other.rounds[1].refused == "late"
    assert statement(path, 5).rounds == ()


# ---- alone, and whether joining paid


def test_alone_is_the_same_experiment_with_everyone_by_itself(tmp_path: Path) -> None:
    market = hanse.run(market_experiment(4), out=tmp_path / "trade").path
    assert next(note for note in answers_of(market).joining if note.code == "gained_besides").fields["of"] == 11
    place = train_alone(market)
    assert place == market / "alone"
    played = hanse.run(alone_experiment(hanse.Experiment.read(market / "config.toml")))
    for c in (1, 11):
        found = statement(market, c).fit
        assert found.beside == "alone"
        assert found.alone == played.tested["test_accuracy"][c]
        assert found.samples == played.tested["test_samples"][c] > 0
        assert found.last == load_run(market).arrays(3)["test_accuracy"][c]
        p, q, n = found.last, found.alone, found.samples
        assert found.between == pytest.approx(difference(p, wilson(p, n), q, wilson(q, n)))
    (place / "config.toml").write_text((place / "config.toml").read_text().replace("lr = 0.05", "lr = 0.06"))
    assert statement(market, 1).fit.alone is None


def test_a_run_that_was_made_longer_is_not_compared_with_a_shorter_one(tmp_path: Path) -> None:
    data, parts = {"clients": 3, "client_test": 0.2}, {"name": "fedavg", "clients_per_round": 3}
    hanse.run(hanse.Experiment(data=data, model="logistic", mechanism=parts, run={"rounds": 2}), out=tmp_path / "run")
    train_alone(tmp_path / "run")
    hanse.resume(tmp_path / "run", rounds=3)
    assert statement(tmp_path / "run", 1).fit.why.code == "not_alone"
    train_alone(tmp_path / "run")  # goes on with it
    assert statement(tmp_path / "run", 1).fit.beside_rounds == 3


# ---- the page and the command


def test_a_page_without_scripts_that_works_offline(auction: Path) -> None:
    text = render(statement(auction, 0))
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "base"} & set(page.tags)
    assert all(link.startswith("data:image/svg+xml") for link in page.fetched)
    assert not page.styled
    allowed = policy("statement.html.j2")
    assert "unsafe-inline" not in allowed
    assert allowed.replace("'", "&#39;") in text
    assert page.tags.count("img") == 1
    nets = [float(n) for n in re.findall(r"<td>([+-][\d.]+|0)</td><td class=.text.>", text)]
    total = float(re.search(r"all but the grant</th>(?:<td>[\d.]*</td>){2}<td>([+-][\d.]+)", text)[1])
    assert sum(nets[1:]) == pytest.approx(total, abs=0.02)  # whoever adds the rows has the last one
    assert "(" in re.search("put into escrow</th><td>(.)", text)[1]


def test_the_command_that_checks_a_page(auction: Path, tmp_path: Path) -> None:
    page, text = tmp_path / "s.html", render(statement(auction, 2))
    command = ["facts", str(auction), "--check", str(page)]
    for added, code in (("", 0), (" 0.77", 1)):
        page.write_text(text.replace("</h2>", f"{added}</h2>", 1))
        assert invoke(*command).exit_code == code
    page.write_text("<p>no statement</p>")
    with pytest.raises(hanse.UserError, match="is no page that hanse makes"):
        invoke(*command, catch_exceptions=False)


def test_others_are_named_only_where_the_run_allows_it(auction: Path, tmp_path: Path) -> None:
    closed = statement(auction, 0)
    assert all(line.others == () for line in closed.money.lines)
    assert "client/1" not in json.dumps(closed.as_json())
    named = statement(pifl(tmp_path / "open", named=True), 0)
    assert any(client(1) in line.others for line in named.money.lines)
    assert named.client.net == closed.client.net


def test_the_command(auction: Path, tmp_path: Path) -> None:
    assert invoke("statement", auction, "--client", 2, "--out", tmp_path / "s.html").exit_code == 0
    assert (tmp_path / "s.html").read_text() == render(statement(auction, 2))
    result = invoke("statement", auction, "-c", 2, "--json")
    assert json.loads(result.stdout) == json.loads(json.dumps(statement(auction, 2).as_json()))
    assert json.loads(result.stdout)["fallen"] == ""  # its values are no parts of a loss's fall


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["{run}", "-c", "1", "--all"], "--client 3"),
        (["{run}", "--all", "--out", "page.html"], "--train-alone only"),
        (["{run}", "-c", "3", "--json", "--out", "a.html"], "--out: not with --json"),
        (["{run}", "-c", "6"], "--client 6: no such client; this run has clients 0 to 5"),
        (["{run}", "-c", "1", "--dry-run"], "--dry-run takes"),
        (["{run}/config.toml", "-c", "9", "--dry-run"], "--client 9: no such client; this experiment has clients 0 to"),
    ],
)
def test_mistakes_are_one_line(args: list[str], said: str, auction: Path) -> None:
    with pytest.raises(hanse.UserError) as wrong:
        invoke("statement", *(a.replace("{run}", str(auction)) for a in args), catch_exceptions=False)
    assert len(wrong.value.lines) == 1
    assert said in wrong.value.lines[0]


def test_books_that_do_not_hold_make_no_statement(auction: Path, tmp_path: Path) -> None:
    run = shutil.copytree(auction, tmp_path / "run")
    assert statement(run, 1).money is not None
    log = run / "transactions.jsonl"
    log.write_text(log.read_text().replace("client/1", "client/2", 1))
    tampered = run.rename(tmp_path / "tampered")
    with pytest.raises(hanse.UserError, match="transactions 1 to "):
        statement(tampered, 1)
    [group] = group_runs([load_run(tampered)])  # a report has the doubt, and no figures of them
    assert "transactions 1 to " in doubts_said(group.runs[0])[0]
    assert not [chart for chart in token_charts([group]) if chart.key.startswith("balances")]


def test_a_statement_walks_its_book_once(auction: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To verify it and to add it up, however many parts of the page ask; settings are looked up at its beginning."""
    read, first = list[int](), Walk._next
    monkeypatch.setattr(Walk, "_next", lambda walk, *of: read.append(walk.tally.count) or first(walk, *of))
    render(statement(auction, 1))
    assert [number for number in set(read) if read.count(number) > 1] == [*range(7)]  # the first head
    assert len(set(read)) > 40


def test_of_many_runs_each_book_is_walked_once(auction: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all of them together not every walk is kept: the doubts of all come first, and then their facts."""
    walked, walk = list[Path](), run_record.verify_run

    def counted(folder: Path, *of: Any, **by: Any) -> Any:
        walked.append(folder)
        return walk(folder, *of, **by)

    monkeypatch.setattr(run_record, "verify_run", counted)
    runs = load_runs([shutil.copytree(auction, tmp_path / str(number)) for number in range(6)])
    assert not any(run.coded_doubts for run in runs)
    first, *_, last = [facts_of(run).clients for run in runs]
    assert [row.balance for row in first] == [row.balance for row in last]
    assert walked == [run.path for run in runs]


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
    assert (made.run.rounds, max(r.round for r in made.rounds)) == (len(lines) - 1, len(lines) - 2)
    assert render(made)
