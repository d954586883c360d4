"""Charts of tokens and tiers, from a run's directory."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from experiments import digits
from reports_cases import metric, seat, write_run

import hanse
from hanse.core.entry import TOKEN, client, escrow
from hanse.core.telling import Conduct, write_about
from hanse.ledger.run_ledger import open_ledger
from hanse.reports.groups import group_runs, honest_of
from hanse.reports.honesty import kinds_table
from hanse.reports.money import read_books, token_charts
from hanse.runs.run_record import load_run, load_runs


def figures(cell: str) -> list[float]:
    """The mean and half its interval, as a cell has them."""
    return [float(one) for one in cell.split(" ± ")]


def test_what_cheats_earn_and_lose_is_what_the_books_say(tmp_path: Path) -> None:
    """To the unit, and with the settlement after the last round, which stands at the last round played."""
    data = {"partition": {"name": "mixture", "mix": "10:90"}, "client_test": 0.2, "client_validation": 0.1}
    sections = {"data": data, "train": {"lr": 0.1}, "engine": {"train": "stacked"}, "run": {"seed": 2}}
    mechanism, riders = {"name": "pifl", "by_contribution": 3, "at_random": 1}, {"free_rider": {"fraction": 0.25}}
    hanse.run(digits(mechanism, 12, 5, **sections, behaviour=riders), out=tmp_path / "run")
    run, ledger = load_run(tmp_path / "run"), open_ledger(tmp_path / "run")
    assert [record.round for record in ledger.history()][-1] == 5
    units = np.array([ledger.as_book().balance(client(c)) + ledger.as_book().balance(escrow(c)) for c in range(12)])
    groups = group_runs([run])
    held = read_books(run)
    assert held.rounds.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(np.round(held.held[-1] * TOKEN), units)
    [lines] = [c.marks.lines for c in token_charts(groups) if c.key.startswith("balances")]
    assert {line.x[-1] for line in lines} == {5}
    honest = honest_of(run)
    means = [who.mean() / TOKEN for who in (units[honest], np.delete(units, honest))]
    table = kinds_table(groups[0])
    at = table.headings.index("tokens a client, beyond its grant")
    assert [figures(row[at])[0] + 100 for row in table.rows] == pytest.approx(means, abs=0.1)


def test_what_dishonest_clients_lose_over_seeds(tmp_path: Path) -> None:
    riders = {"behaviour": {"attacker": {"clients": [0]}}}
    paths = []
    for s, (bad, good) in enumerate(((1.0, 2.0), (0.0, 4.0), (0.5, 3.5))):
        seats = [seat(0, c, v, value_error=0.3) for c, v in enumerate((bad, good, good + 1))]
        changes = riders | {"run": {"seed": s}, "data": {"clients": 3}}
        paths.append(write_run(tmp_path / f"{s}", [metric(0)], seats, changes))
    table = kinds_table(group_runs(load_runs(paths))[0])
    at = table.headings.index("value a client, all rounds")
    assert [row[0] for row in table.rows] == ["honest (2)", "attackers (1)"]
    half = 4.302653 * np.std([2.5, 4.5, 4.0], ddof=1) / np.sqrt(3)  # t, 2 degrees of freedom
    assert figures(table.rows[0][at]) == pytest.approx([11 / 3, half], rel=2e-3)
    assert figures(table.rows[1][at])[0] == 0.5


def test_cheats_of_one_name_are_one_kind(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [metric(0)], [seat(0, c, 1.0) for c in range(3)], {"data": {"clients": 3}})
    conducts = tuple(Conduct("attackers", clients=(c,), cheats=True) for c in (0, 2))
    write_about(folder, replace(load_run(folder).about, conducts=conducts))
    [group] = group_runs([load_run(folder)])
    assert [row[0] for row in kinds_table(group).rows] == ["honest (1)", "attackers (2)"]


@pytest.mark.parametrize(("carried", "doubted"), [(0.0, True), (-0.28, False)])
def test_values_that_miss_what_the_rounds_changed_are_doubted(carried: float, doubted: bool, tmp_path: Path) -> None:
    """What the server's momentum brought is nobody's; the rest of what is missing, the integral has missed."""
    missed = {"value/gain": -0.257, "value/residual": -0.28, "value/carried": carried}
    path = write_run(tmp_path / "run", [metric(0) | missed], [seat(0, c, 0.1) for c in range(2)])
    assert ("values_apart" in [note.code for note in hanse.facts(path).notes]) == doubted
