"""An invoice: the parts sum to the cent, follow from values or books, and say how sure they are."""

import csv
import json
import shutil
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from commands import invoke
from experiments import digits

import hanse
from hanse.ledger.run_ledger import reading
from hanse.ledger.split import split
from hanse.reports.contributions import Standings
from hanse.reports.invoice import Invoice, _unsure, invoice
from hanse.reports.statement import render, statement

BY_VALUE = {"name": "fedavg", "value": "path", "settle": "by_value"}


@pytest.fixture(scope="module")
def valued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four clients, of whom the last sends the opposite of what it learned, and who pay by value."""
    members = {"members": {"client 1": "mill"}}  # of one client, as in a charter
    experiment = digits(BY_VALUE, clients=members, behaviour={"attacker": {"clients": [3], "kind": "flip"}})
    return hanse.run(experiment, out=tmp_path_factory.mktemp("invoice") / "mill").path


def test_each_gets_its_part_of_the_values_and_the_parts_sum_to_the_cent(valued: Path) -> None:
    made = invoice(valued, "10000", "EUR")
    sums = np.zeros(4)
    for line in (valued / "clients.jsonl").read_text().splitlines():
        seat = json.loads(line)
        sums[seat["client"]] += seat["value"]
    assert sums[3] < 0
    assert [line.amount for line in made.lines] == split(1_000_000, np.maximum(sums, 0).tolist())
    assert sum(line.amount for line in made.lines) == made.total == 1_000_000
    assert made.lines[3].amount == 0
    assert made.by == "value"
    for line in made.lines[:3]:
        low, high = line.between
        assert 0 <= low <= line.amount <= high <= made.total
        told = statement(valued, line.client).client  # the same part, the same interval
        assert told.share == pytest.approx(line.share)
        assert [round(made.total * (end or 0)) for end in (told.share_low, told.share_high)] == [low, high]
    assert codes(made) == ["split_by_value", "parts_apart", "counted_apart"]


def codes(made: Invoice) -> list[str]:
    return [note.code for note in made.notes]


def test_intervals_of_parts_hold_where_it_is_not_sure_who_is_above_zero() -> None:
    one = Standings(np.arange(2), np.array([1.0, -0.5]), np.array([1.0, 1.0]), np.full((2, 0), np.nan))
    assert not one.uncertain  # the only sum above zero is all
    assert one.between().round(3).tolist() == [[0.0, 1.0], [0.0, 1.0]]
    assert np.isnan(Standings(np.arange(2), np.ones(2), np.full(2, np.inf), np.full((2, 0), np.nan)).between()).all()


def test_by_the_books_it_is_what_was_earned_or_is_held(valued: Path) -> None:
    with reading(valued) as ledger:
        held = [ledger.as_book().balance(f"client/{c}") for c in range(4)]
    assert [line.amount for line in invoice(valued, "99.50", "EUR", "balance").lines] == split(9950, held)
    earned = [max(0, units - 100_000_000) for units in held]
    assert [line.amount for line in invoice(valued, "99.50", "EUR", "earned").lines] == split(9950, earned)
    assert all(line.between is None for line in invoice(str(valued), 1, "EUR", "earned").lines)
    rate = 99.5 / (sum(earned) / 1e6)
    made = invoice(valued, "99.50", "EUR", "earned")
    assert made.notes[-1].fields == {"rate": f"{rate:.6g}", "currency": "EUR", "by": "earned"}
    net = [line.units for line in made.lines]  # below zero too, exactly: who multiplies must find the amount
    assert net == [units - 100_000_000 for units in held]
    assert [float(rate * max(u, 0) / 1e6) for u in net if u is not None] == pytest.approx(
        [line.amount / 100 for line in made.lines], abs=0.01
    )
    assert codes(made) == ["split_by_books", "token_rate"]
    assert codes(invoice(valued, "99.50", "EUR", "balance")) == ["mostly_grant", "split_by_books", "token_rate"]


def test_the_smallest_coin_is_that_of_the_currency(valued: Path) -> None:
    yen, dinars = invoice(valued, "1001", "JPY"), invoice(valued, "1.234", "KWD")
    assert (yen.total, yen.money(yen.total)) == (1001, "1001")
    assert (dinars.total, dinars.money(dinars.total)) == (1234, "1.234")
    with pytest.raises(hanse.UserError, match="0 decimals"):
        invoice(valued, "0.5", "JPY")


def test_a_run_without_values_or_books_and_an_unknown_rule_are_refused(valued: Path, tmp_path: Path) -> None:
    hanse.run(digits("fedavg", 4, 1), out=tmp_path / "plain")
    with pytest.raises(hanse.UserError, match=r"nothing to split by.*'path'.*pifl"):
        invoice(tmp_path / "plain", "10", "EUR")
    hanse.run(digits({"name": "fedavg", "value": "path"}, 4, 1, model="mlp"), out=tmp_path / "only")
    for run in ("plain", "only"):  # an invoice is promised where there can be one
        assert ("hanse invoice" in render(statement(tmp_path / run, 0))) == (run == "only")
    with pytest.raises(hanse.UserError, match="--by earned"):
        invoice(tmp_path / "only", "10", "EUR", "earned")
    with pytest.raises(hanse.UserError, match=r"--by 'values'.*'value'"):
        invoice(valued, "10", "EUR", "values")


def test_several_clients_of_one_member_are_split_by_what_the_run_paid_them(tmp_path: Path) -> None:
    members = {"client 1": "mill", "client 2": "mill"}
    hanse.run(digits(BY_VALUE, 4, 2, clients={"members": members}), out=tmp_path / "run")
    assert invoice(tmp_path / "run", "100", "EUR").by == "earned"
    for by in ("value", "balance"):  # z and -z of one member would be paid for z
        with pytest.raises(hanse.UserError, match=rf"--by {by}: \[clients\] members .* allowed: earned"):
            invoice(tmp_path / "run", "100", "EUR", by)


def test_a_value_that_was_changed_in_the_record_makes_no_invoice(valued: Path, tmp_path: Path) -> None:
    shutil.copytree(valued, tmp_path / "run")
    file = tmp_path / "run" / "clients.jsonl"
    file.write_text(file.read_text().replace('"value": 0.', '"value": 1.', 1))
    with pytest.raises(hanse.UserError, match="the book has the hash"):
        invoice(tmp_path / "run", "10", "EUR")


def test_the_command_writes_csv_and_a_page(valued: Path, tmp_path: Path) -> None:
    given = ["invoice", str(valued), "--budget", "10000", "--currency", "EUR"]
    done = invoke(*given, "--csv", tmp_path / "a.csv", "--html", tmp_path / "a.html")
    assert done.exit_code == 0
    assert "10,000.00" in done.output
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    assert sum(Decimal(row["amount"]) for row in rows) == 10000
    assert {row["currency"] for row in rows} == {"EUR"}
    page = (tmp_path / "a.html").read_text()
    assert all(f"{Decimal(row['amount']):,f}" in page for row in rows)
    assert "proposal" in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("totals", "sampling", "unsure"),
    [
        ([3.0, 2.9, 2.8], [0.3] * 3, True),
        ([3.0, 2.0, 1.0], [0.01] * 3, False),
        ([3.0, 2.0, 1.0], [np.inf] * 3, False),  # not known, which is said below
        ([3.0, 2.0, -3.0], [0.01, 3.0, 0.01], True),  # one is apart from another, but half of the total is open
    ],
)
def test_shares_that_say_nothing_are_warned_of_first(totals: list[float], sampling: list[float], unsure: bool) -> None:
    sums = Standings(np.arange(3), np.array(totals), np.array(sampling), np.full((3, 0), np.nan))
    wide = np.ptp(sums.between(), axis=1).max()
    assert [note.fields["wide"] for note in _unsure(sums)] == ([wide] if unsure else [])


@pytest.mark.parametrize("budget", ["0", "-3", "nan", "1e30", "12.345", "ten", "", "Infinity",
    "9e999999", "1.0000000000000000000000000000001", "1_000", "\uff11\uff10", " 10 ", "0.001"])  # fmt: skip
def test_a_budget_is_taken_as_it_is_written_or_refused(valued: Path, budget: str) -> None:
    """Python reads more as a decimal number, rounds what is long, and raises another error where it overflows."""
    with pytest.raises(hanse.UserError, match="--budget"):
        invoice(valued, budget, "EUR")


def test_values_that_are_no_parts_of_a_whole_leave_the_default_to_the_books(tmp_path: Path) -> None:
    """PI-FL's first-order values made the default end in a refusal of what nobody had asked for."""
    hanse.run(digits("pifl", 6, 2, data={"client_validation": 0.2}), out=tmp_path / "auction")
    assert invoice(tmp_path / "auction", "100", "EUR").by == "balance"
    with pytest.raises(hanse.UserError, match=r"--by value: a .* allowed: balance, earned"):
        invoice(tmp_path / "auction", "100", "EUR", by="value")
