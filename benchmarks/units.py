"""Do 95 % intervals that count patients hold the truth? Draws whose truth is known, by hanse's splits and intervals.

    nice -n 10 python benchmarks/units.py [--draws 200] [--patients 40] [--problems hospitals loans flights]

Four owners of a table (the largest) are clients; "synthetic" and "noise" have owners with normal features. In a draw
every client has so many patients, each with 1 to 8 rows: the features of a row of its owner, measured anew with some
noise. Classes follow from the features, by the logistic regression that fits the owner's own classes, and from the
patient (a plasmode, Franklin et al. 2014); those of "noise" from the patient alone. Each client tests on three tenths
of its patients. Models are ridge regressions, alone on a client's rows or on all clients', since thousands of trainings
must fit. The truth is how both models do on 4,000 new patients of the client; of five splits, the mean gain over all
draws. Values are those of ``hanse.value`` (exact) of the clients' own models, judged by all clients' test patients.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

import hanse
from hanse.data.tables import TABLES, load_table
from hanse.data.units import split_units
from hanse.lab.joining import _mean
from hanse.learning.intervals import sample_blocks, wilson
from hanse.learning.metrics import Metric, Predictions, build_metrics
from hanse.reports.facts import ClientFacts
from hanse.reports.fits import OwnTest, _of_main

CLIENTS, ROWS, TEST, SPLITS, FRESH, RIDGE = 4, 8, 0.3, 5, 4_000, 1.0
METRICS = build_metrics(["accuracy", "loss"], 2)
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # features and a 1, classes, patients


def owners(problem: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the features ``[n, d]`` of each owner's rows, and the coefficients of its classes ``[d + 1]``."""
    draw = np.random.default_rng(1)
    if problem not in TABLES:
        common, apart = (draw.normal(size=9), 0.5) if problem == "synthetic" else (np.zeros(9), 0.0)
        weights = [common + apart * draw.normal(size=9) for _ in range(CLIENTS)]
        return [(draw.normal(size=(3000, 8)) + 0.5 * draw.normal(size=8), one) for one in weights]
    data = load_table(problem)
    x, y, of = data.train.x.double().numpy(), data.train.y.numpy(), data.client_of
    x = x - x.mean(axis=0)
    x = x @ np.linalg.svd(x[:20_000], full_matrices=False)[2][:12].T  # its largest components
    x, largest = x / x.std(axis=0), np.argsort(-np.bincount(of), kind="stable")[:CLIENTS]
    each = [(x[of == owner], y[of == owner]) for owner in largest]
    fits = [LogisticRegression(C=0.1).fit(*rows) for rows in each]
    return [(rows[0], np.append(fit.coef_[0], fit.intercept_)) for rows, fit in zip(each, fits, strict=True)]


def patients(table: np.ndarray, weights: np.ndarray, count: int, draw: np.random.Generator) -> Rows:
    """Return so many patients of an owner; classes are the patients' alone where ``weights [d + 1]`` are 0."""
    of = np.repeat(np.arange(count), draw.integers(1, ROWS + 1, count))
    x = table[draw.integers(0, len(table), count)][of] + 0.3 * draw.normal(size=(len(of), table.shape[1]))
    x = np.column_stack([x, np.ones(len(x))])
    logit = x @ weights + draw.normal(size=count)[of] * (1.0 if weights.any() else 1e6)
    return x, (draw.random(len(of)) < 1 / (1 + np.exp(-logit.clip(-50, 50)))).astype(np.int64), of


def fitted(parts: list[Rows]) -> np.ndarray:
    """Return the weights ``[d + 1]`` of a ridge regression of classes 0 and 1, coded as -1 and 1."""
    x, y, _ = map(np.concatenate, zip(*parts, strict=True))
    return np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ (2.0 * y - 1))


def each(metric: Metric, weights: np.ndarray, rows: Rows) -> np.ndarray:
    """Return what a metric is the mean of."""
    score = rows[0] @ weights
    if metric.key == "accuracy":
        return np.asarray((score > 0) == rows[1], np.float64)
    return -np.log(np.where(rows[1], 0.5 + 0.5 * score, 0.5 - 0.5 * score).clip(0.01, 0.99))


def gain(metric: Metric, models: tuple[np.ndarray, np.ndarray], rows: Rows) -> float:
    return float(np.subtract(*(each(metric, weights, rows).mean() for weights in models)))


def interval(metric: Metric, models: tuple[np.ndarray, np.ndarray], test: Rows) -> tuple[float, float]:
    """Return the interval of a gain as a statement has it."""
    found, blocks = [], sample_blocks(len(test[1]), torch.from_numpy(test[2]))
    for values in (each(metric, weights, test) for weights in models):
        without = np.array([np.delete(values, block).mean() for block in blocks])
        chance = np.where(values == test[1], 0.9, 0.1)  # of class 1, as good as any: right where the value says so
        judged = Predictions(test[1], np.stack([1 - chance, chance], axis=1), values, test[2])
        between = metric.interval(judged, without) if metric.key == "accuracy" else None
        found.append(OwnTest(0, None, None, len(values), None, values.mean(), "", without, between))
    return _of_main(metric.reading, found[0].main, found[0], found[1].main, found[1]) or (np.nan, np.nan)


def divided(own: Rows, draw: np.random.Generator) -> list[Rows]:
    """Return the rows that a client trains on, and those that it tests on."""
    cut = split_units(np.zeros(len(own[1]), np.int64), own[1], TEST, draw, own[2])
    return [(own[0][rows], own[1][rows], own[2][rows]) for rows in cut]


def coverage(problem: str, count: int, draws: int) -> None:
    """Print how often intervals hold the truth, with the binomial interval of that share, and how wide they are."""
    tables, kept, splits, truths = owners(problem), defaultdict(list), defaultdict(list), defaultdict(list)
    fresh = [patients(*own, FRESH, np.random.default_rng(10**6 + c)) for c, own in enumerate(tables)]
    for k in range(draws):
        draw = np.random.default_rng(k)
        own = [patients(*table, count, draw) for table in tables]
        for s in range(SPLITS):
            train, tests = zip(*(divided(one, draw) for one in own), strict=True)
            everybody, alone = fitted([*train]), [fitted([one]) for one in train]
            for c, models in enumerate((everybody, one) for one in alone):
                for metric in METRICS if s == 0 else METRICS[:1]:
                    ends, truth = interval(metric, models, tests[c]), gain(metric, models, fresh[c])
                    if s == 0:
                        kept[f"gain, {metric.key}"].append((ends[0], truth, ends[1]))
                    if metric.key == "accuracy":
                        told = {"gain": gain(metric, models, tests[c]), "gain_low": ends[0], "gain_high": ends[1]}
                        splits[k, c].append(ClientFacts(run="", client=c, name="", unit="row", **told))
                        truths[c].append(truth)
            if s == 0:
                judges = [tuple(map(np.concatenate, zip(*rows, strict=True))) for rows in (tests, fresh)]
                of = np.concatenate([one[2] + c * count for c, one in enumerate(tests)])
                worths = [lambda weights, rows=rows: each(METRICS[0], weights, rows) for rows in judges]
                told = [hanse.value(alone, worth, start=0 * everybody, method="exact", units=units, progress=False)
                        for worth, units in zip(worths, (of, None), strict=True)]  # fmt: skip
                middle, half = told[0].values, told[0].half
                kept["value, accuracy"] += zip(middle - half, told[1].values, middle + half, strict=True)
    for (_, c), gains in splits.items():
        mean = _mean(gains, TEST, METRICS[0].reading)
        kept["gain, five splits"].append((mean.gain_low, np.mean(truths[c]), mean.gain_high))
    for figure, ends in kept.items():
        low, truth, high = np.array(ends).T
        hits = (low <= truth) & (truth <= high)
        told = "{:.3f} ({:.3f} to {:.3f}) of {}".format(hits.mean(), *wilson(hits.mean(), len(hits)), len(hits))
        print(f"| {problem} | {count} | {figure} | {told} | {np.nanmean(high - low):.3f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--patients", type=int, nargs="*", default=[40])
    parser.add_argument("--problems", nargs="*", default=["synthetic", "noise", "hospitals", "loans", "flights"])
    given = parser.parse_args()
    for name in given.problems:
        for size in given.patients:
            coverage(name, size, given.draws)
