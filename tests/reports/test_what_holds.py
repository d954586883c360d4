"""Every sentence that says that something holds, with a run in which it does not hold and is not said.

They are those of the audit's checks and of the books: ``hanse audit`` and ``ledger verify``. The report has none of its
own; it repeats the audit's facts.
"""

import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import invoke
from experiments import digits, market
from forging import altered, history_of, rerecorded, rewritten

import hanse
from hanse.base.wings import absent
from hanse.reports.audit import Audit, audit_run, load_market
from hanse.runs.replay import Examined, wrong_books
from hanse.runs.round_record import round_file

Change = Callable[[Path], None]


def traded(mechanism: Any = "ipfl", **more: Any) -> hanse.Experiment:
    profiles = {"name": "listed", "cost": [0.1, 1.0, 6.0, 0.2, 0.3], "eagerness": [1e4] * 5}
    return market(mechanism, data={"client_test": 0.2, "validation": 0.0}, clients={"profiles": profiles}, **more)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place, attack = tmp_path_factory.mktemp("runs"), {"attacker": {"clients": [3], "kind": "shuffle"}}
    auction = {"name": "pifl", "by_contribution": 2, "at_random": 0, "value": {"judges": "all"}}
    valued = {"name": "fedavg", "clients_per_round": 3, "value": "path", "settle": "by_value"}
    for name, experiment in {
        "skip": traded(),
        "attacked": traded({"name": "ipfl", "lam": 1.0}, behaviour=attack),
        "median": digits({"name": "fedavg", "clients_per_round": 5, "weigh": "median"}, 5, 2),
        "auction": digits(auction, data={"client_validation": 0.1}, train={"steps": 2}),
        "valued": digits(valued, 5, behaviour={"dropout": {"rate": 0.3}}, train={"steps": 2}),
    }.items():
        hanse.run(experiment, out=place / name)
    return {path.name: path for path in place.iterdir()}


def arrays(**functions: Callable[[Any], Any]) -> Change:
    """Replace arrays of round 1 by functions of themselves."""

    def change(folder: Path) -> None:
        with np.load(round_file(folder, 1)) as record:
            found = {name: function(record[name]) for name, function in functions.items()}
        altered(folder, 1, **found)

    return change


def toggled(wanted: int) -> Change:
    """Turn one import off (``wanted`` = 1) or one on (0)."""

    def change(folder: Path) -> None:
        graph = np.array(load_market(folder)[1].graph)
        pairs = [(i, j) for i, j in np.argwhere(graph == wanted) if i != j]
        graph[pairs[0]] = 1 - wanted
        arrays(market_graph=lambda _: graph)(folder)

    return change


def one_less(units: np.ndarray) -> np.ndarray:
    found = units.copy()
    found[units == 0] = -1  # a unit may be lost to rounding, and nothing is paid below 0
    return found


def posted(folder: Path) -> None:
    """Add a unit to one posting of the books."""
    log = folder / "transactions.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    next(fields for fields in reversed(lines) if fields["postings"])["postings"][0][1] += 1
    log.write_text("".join(json.dumps(fields, separators=(",", ":")) + "\n" for fields in lines))


def hashed(folder: Path) -> None:
    arrays(made_hash=lambda hashes: np.array(["0" * 40] * len(hashes)))(folder)


def second_grant(folder: Path) -> None:
    history = history_of(folder)
    rewritten(folder, [history[0], (0, replace(history[0][1], step="grant/0again")), *history[1:]])


def moved(kind: str, to: int, of: int) -> Change:
    """Move a unit more in one posting of the last transaction of a kind and a unit less in another, in everything that
    the operator holds.
    """

    def change(folder: Path) -> None:
        history = history_of(folder)
        place = max(i for i, (_, t) in enumerate(history) if t.kind == kind)
        number, one = history[place]
        lines = [list(line) for line in one.postings]
        lines[to][1] += 1  # type: ignore[operator]
        lines[of][1] -= 1  # type: ignore[operator]
        history[place] = (number, replace(one, postings=tuple((name, units) for name, units in lines)))
        rewritten(folder, history)

    return change


def stolen(folder: Path) -> None:
    """Name two accounts once more, before the true postings of a market's transaction, in all that the operator has."""
    history = history_of(folder)
    place = next(i for i, (_, t) in enumerate(history) if t.kind == "market")
    number, one = history[place]
    theft = (("client/1", -3), ("client/0", 3))
    history[place] = (number, replace(one, postings=(*theft, *one.postings)))
    rewritten(folder, history)


def unhashed(folder: Path) -> None:
    """Change a round's file, and take its hash out of the lines."""
    arrays(market_cost=lambda c: c + 1e-3)(folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    del lines[1]["rounds/hash"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def without_line(folder: Path) -> None:
    """Lose one round's line of the metrics; its file is still there."""
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:1] + lines[2:]))


def other_costs(folder: Path) -> None:
    """Write other costs into the records of all rounds than the settings have, and their hashes into the metrics."""
    for number in range(3):
        rerecorded(folder, number, market_true_cost=np.ones(5))


MORE: list[tuple[str, str, Change]] = [  # further ways in which a check fails
    ("records", "skip", unhashed),
    ("records", "skip", without_line),
    ("conservation", "skip", lambda folder: (folder / "ledger.json").unlink()),
    ("conservation", "valued", lambda folder: (folder / "ledger.json").unlink()),  # in which there is no market
    ("grants and kinds", "skip", lambda folder: (folder / "config.toml").write_text("")),
    ("graph", "skip", toggled(0)),
    ("true rationality", "skip", arrays(market_utility=lambda u: u * np.nan)),
]
WRONG: dict[str, tuple[str, Change]] = {  # the check, the run, and what makes it fail
    "graph": ("skip", toggled(1)),
    "payments": ("skip", arrays(market_units=one_less)),
    "true rationality": ("skip", arrays(market_utility=lambda u: u - 5)),
    "delivery": ("skip", arrays(withheld=lambda w: np.append(w, 7))),
    "conservation": ("skip", posted),
    "bills": ("skip", stolen),
    "settled again": ("skip", other_costs),
    "models": ("median", hashed),
    "records": ("skip", lambda folder: (folder / "rounds" / "00001.npz").unlink()),
    "grants and kinds": ("skip", second_grant),
    "auctions": ("auction", moved("reward", 0, 1)),
    "by value": ("valued", moved("value", 1, 3)),  # both are clients' accounts
}


BOOKS = ("conservation", "grants and kinds")  # which read the books alone


def by_name(audit: Audit) -> dict[str, bool]:
    return {check.name: check.holds for check in audit.checks}


@pytest.fixture(scope="module")
def sound(runs: dict[str, Path]) -> dict[str, Audit]:
    return {name: audit_run(folder) for name, folder in runs.items()}


def test_these_are_all_checks_of_the_audit(sound: dict[str, Audit]) -> None:
    assert {name for audit in sound.values() for name in by_name(audit)} == set(WRONG)
    assert all(audit.holds for audit in sound.values())


@pytest.mark.parametrize(("name", "of", "change"), [*((name, *how) for name, how in WRONG.items()), *MORE])
def test_a_check_that_fails_is_not_said_to_hold(
    name: str, of: str, change: Change, runs: dict[str, Path], sound: dict[str, Audit], tmp_path: Path
) -> None:
    copy = shutil.copytree(runs[of], tmp_path / "copy")
    said = next(check.said for check in sound[of].checks if check.name == name)
    change(copy)
    shown = invoke("audit", copy, env={"COLUMNS": "400"})
    assert shown.exit_code == 1
    if name not in ("models", "graph", "true rationality"):  # promises, and rows without books: of audits alone
        assert Examined(copy).failed() is not None
    assert said not in shown.stdout
    [line] = [line for line in shown.stdout.splitlines() if re.match(rf"\W*(FAILS|holds)\W+{name}\W", line)]
    assert "FAILS" in line
    assert "holds" not in line


@pytest.mark.parametrize("seed", range(3))
def test_a_bit_of_a_checkpoint_that_was_flipped_is_found(seed: int, runs: dict[str, Path], tmp_path: Path) -> None:
    copy, draw = shutil.copytree(runs["skip"], tmp_path / "copy"), random.Random(seed)
    file = draw.choice(sorted((copy / "checkpoints").iterdir()))
    blob = bytearray(file.read_bytes())
    blob[draw.randrange(len(blob))] ^= 1 << draw.randrange(8)
    file.write_bytes(blob)
    [said] = [check.said for check in audit_run(copy).checks if not check.holds]
    assert said.startswith(file.name)
    assert wrong_books(copy) == said


def test_a_lost_round_is_said_wherever_something_holds(runs: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(runs["skip"], tmp_path / "copy")
    (copy / "rounds" / "00001.npz").unlink()
    left = "this is said of 2 markets, and not of rounds whose files are lost"
    holding = [check for check in audit_run(copy).checks if check.holds and check.name not in BOOKS]
    assert holding
    assert all(check.said.endswith(left) for check in holding)
    verify = invoke("ledger", "verify", copy, "--receipts", copy / "receipts")
    assert verify.exit_code == 1
    assert "held against" in (" ".join(verify.output.split()))
    everybody = invoke("statement", copy, "--all", env={"COLUMNS": "200"})
    assert everybody.exit_code == 0
    assert "00001.npz is missing" in everybody.stdout


def test_models_that_could_not_be_compared_are_no_check(runs: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(runs["median"], tmp_path / "copy")
    file = copy / "rounds" / "00001.npz"
    with np.load(file) as record:
        kept = {name: record[name] for name in record if not name.startswith("made_")}
    # the last round is recorded by weights, as where nobody answered and the row stayed
    np.savez(file, **{**kept, "W_row": np.array([0]), "W_column": np.array([0]), "W_weight": np.array([1.0])})
    audit = audit_run(copy)
    assert by_name(audit) == {"records": False}
    [fact] = audit.facts
    assert fact.said.startswith("1 were recorded by their hashes, and the last checkpoint has none of them")


@pytest.mark.parametrize("gone", [("ledger.json",), ("ledger.json", "transactions.jsonl", "transactions.heads")])
def test_nobody_takes_a_run_whose_books_were_removed_for_one_without_payments(
    gone: tuple[str, ...], runs: dict[str, Path], tmp_path: Path
) -> None:
    """A statement said "No tokens are paid in this run."."""
    run = shutil.copytree(runs["skip"], tmp_path / "run")
    for name in gone:
        (run / name).unlink()
    of_wings = () if absent() else ("crate", "leave --client 1")
    for words in ("statement --client 1", "ledger verify", "invoice --budget 10 --currency EUR", *of_wings):
        found = invoke(*words.split(), run)
        assert isinstance(found.exception, hanse.UserError)
        assert "ledger.json: is gone" in str(found.exception)
    assert [check.holds for check in audit_run(run).checks if check.name == "conservation"] == [False]
    assert "books_broken" in [note.code for note in hanse.facts(run).notes]


def test_a_statement_that_says_otherwise_what_is_paid_is_found_out(runs: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs["auction"], tmp_path / "run")
    assert "about.json" not in [check.name for check in audit_run(run).checks]
    about = json.loads((run / "about.json").read_text())
    said = next(one["telling"] for one in about["parts"] if one["telling"]["kinds"])
    said["participant"] += " It is paid 9 tokens a round."
    (run / "about.json").write_text(json.dumps(about))
    assert [(check.name, check.holds) for check in audit_run(run).checks if not check.holds] == [("about.json", False)]
    played = json.loads((run / "environment.json").read_text())
    played["packages"]["hanse"] = "0.0.1"
    (run / "environment.json").write_text(json.dumps(played))
    assert audit_run(run).holds
    assert "about.json" in [fact.name for fact in audit_run(run).facts]
