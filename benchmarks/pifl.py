"""PI-FL in figures: the server's share of a round and its growth, what fewer scored samples change in the bids, what
clients earn against what they were worth, and the paper's three definitions on a run.

    python benchmarks/pifl.py round        # server's share at 100 clients, K = 2, and growth to 1,000
    python benchmarks/pifl.py samples      # bids with 16, 64, 256 and all samples
    python benchmarks/pifl.py rewards      # tokens earned against exact Shapley values
    python benchmarks/pifl.py riders       # what free riders and noisy clients lose
    python benchmarks/pifl.py definitions  # definitions 1 to 3, against local training, by who judges contributions
    python benchmarks/pifl.py bids         # how many bid for several tiers, by Algorithm 1's threshold
    python benchmarks/pifl.py tokens       # grants so small that accounts run dry

Five seeds, or as many as SEEDS in the environment says.

Prints Markdown. Fashion-MNIST if it is there (HANSE_DATA), else scikit-learn's digits.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import spearmanr

import hanse
from hanse.base.streams import stream
from hanse.core.entry import TOKEN
from hanse.core.part import View
from hanse.core.port import Scored
from hanse.data.sources import is_here
from hanse.runs.round import Played

SERVER = ("settle", "select", "weigh", "value", "mix")
SEEDS = range(int(os.environ.get("SEEDS", "5")))


class Views:
    """Keeps the rounds' views."""

    def __init__(self) -> None:
        self.views: list[View] = []

    def on_start(self, *_: Any) -> None:
        """Nothing yet."""

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """Keep it."""
        self.views.append(played.view)

    def on_end(self, result: Any) -> None:
        """Nothing more."""


def experiment(num_clients: int = 100, rounds: int = 30, seed: int = 0, **sections: Any) -> hanse.Experiment:
    fashion = is_here("fashion_mnist")
    base: dict[str, dict[str, Any]] = {
        "data": {
            "source": "fashion_mnist" if fashion else "digits",
            "partition": {"name": "mixture", "mix": "10:90", "test_mix": "inverse", "min_samples": 5},
            "clients": num_clients,
            "client_test": 0.1,
            "client_validation": 0.1,
            "validation": 0.0,
            "seed": seed,
        },
        "model": {"name": "mlp", "hidden": [100]},
        "mechanism": {"name": "pifl", "invited": "earn", "value": {"judges": "all"}},  # the paper's way
        "train": {"epochs": 2, "batch_size": 20, "lr": 0.05},
        "engine": {"train": "stacked", "threads": 1},
        "eval": {"every": rounds},
        "run": {"rounds": rounds, "seed": seed},
    }
    if fashion and num_clients <= 200:
        base["data"]["partition"]["samples_per_client"] = 200
    for name, entries in sections.items():
        other = name == "mechanism" and entries["name"] != "pifl"
        base[name] = entries if other else {**base.get(name, {}), **entries}
    return hanse.Experiment(**base)


def rounds() -> None:
    """The server's share of a round (median over rounds, in process), and how it grows."""
    print(
        "| clients | seats | round ms | clients' training | clients' scoring and gradients | server | server's share |"
    )
    print("|---|---|---|---|---|---|---|")
    for clients in (100, 300, 1000):
        run = hanse.run(experiment(clients, 12))
        lines = run.metrics[2:]

        def median(names: Sequence[str], lines: Sequence[Mapping[str, Any]] = lines) -> float:
            return 1e3 * float(statistics.median(sum(line.get(f"time/{n}_s", 0.0) for n in names) for line in lines))

        whole, server = median(["play"]), median(SERVER)
        print(
            f"| {clients} | {run.metrics[-1]['seats']} | {whole:.1f} | {median(['train']):.1f} | "
            f"{median(['ask']):.1f} | {server:.2f} | {100 * server / whole:.1f} % |"
        )
    started = time.perf_counter()
    hanse.run(experiment(100, 12), out=f"runs/pifl-benchmark-{time.time_ns()}")
    spent = time.perf_counter() - started
    print(f"\nWith a run directory (ledger, records, a checkpoint each round): {spent:.1f} s for 12 rounds")


def samples() -> None:
    """How many clients bid for another tier if they score on fewer samples, and what it does to the tiers."""
    print("| score_samples | same first bid as with all samples | tiers separated | personal accuracy |")
    print("|---|---|---|---|")
    for limit in (8, 16, 64, 256, None):
        same: list[float] = []
        apart: list[float] = []
        own: list[float] = []
        for seed in SEEDS:
            watch = Views()
            mechanism = {"name": "pifl", "settle": {"score_samples": limit or 100_000}}
            run = hanse.run(experiment(50, 20, seed, mechanism=mechanism), observers=[watch])
            apart.append(run.metrics[-1].get("test/separated", float("nan")))
            own.append(run.metrics[-1]["client/test_fit"])
            same.append(float(np.mean([_agreement(v) for v in watch.views[1::5]])) if limit else 1.0)
        print(f"| {limit or 'all'} | {100 * np.mean(same):.1f} % | {int(sum(apart))} of {len(apart)} | "
              f"{100 * np.mean(own):.1f} ± {100 * np.std(own, ddof=1):.1f} |")  # fmt: skip


def _agreement(view: View) -> float:
    """Return the share of clients whose bid is the one that all of their samples would make."""
    from hanse.data import DataSpec, build

    key = (view.context.seed, view.context.num_clients)
    data = _DATA.setdefault(key, build(DataSpec(**experiment(key[1], seed=key[0]).data.model_dump())))
    engine = _engine(view)
    pool, index = data.pool(list(range(key[1])))
    scores = engine.score_each(view.table.rows, pool, index)
    agree = []
    for c, found in enumerate(scores):
        said = view.answers.get((c, "bid"))
        bid = getattr(said, "values", {}).get("tiers")
        best = int(np.lexsort((found.loss, -found.accuracy))[0])
        if bid:
            agree.append(bid[0] == best)
    return float(np.mean(agree))


_DATA: dict[tuple[int, int], Any] = {}


def _engine(view: View) -> Any:
    return view.judge.engine  # type: ignore[attr-defined]


def rewards() -> None:
    """Tokens earned against exact Shapley values, every seed."""
    print(
        "Six clients a tier all of whom train in every round, 30 rounds; exact values on held-out data of all classes\n"
    )
    print("| seed | rank correlation of tokens earned and exact Shapley value | of first-order and exact value |")
    print("|---|---|---|")
    for seed in SEEDS:
        earned, exact, first = _against_exact(seed)
        print(f"| {seed} | {spearmanr(earned, exact)[0]:.2f} | {spearmanr(first, exact)[0]:.2f} |")


def riders() -> None:
    """What free riders and noisy clients lose against honest ones, every seed."""
    for name, options in (("free_rider", {"fraction": 0.2}), ("noisy", {"sigma": 0.3})):
        print(f"\n| seed | {name}: mean tokens | the others | difference |\n|---|---|---|---|")
        for seed in SEEDS:
            run = hanse.run(experiment(50, 40, seed, behaviour={name: options}))
            held = np.array([run.book.balance(f"client/{c}") for c in range(50)]) / TOKEN
            place = np.argsort(stream(seed, "free riders" if name == "free_rider" else "noisy").permutation(50))
            bad = place < 10 if name == "free_rider" else place >= 40
            mine, others = held[bad].mean(), held[~bad].mean()
            print(f"| {seed} | {mine:.2f} | {others:.2f} | {mine - others:+.2f} |")


def _against_exact(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    watch = Views()
    # noise of growing strength makes clients of different worth
    tiers = {"name": "pifl", "by_contribution": 6, "at_random": 0}
    run = hanse.run(
        experiment(12, 30, seed, mechanism=tiers, behaviour={"noisy": {"sigma": 0.05}}, data={"validation": 0.5}),
        observers=[watch],
    )
    exact, first = np.zeros(12), np.zeros(12)
    from hanse.games import shapley

    for view in watch.views[1:]:
        assert view.values is not None
        for row, group in view.trained.seats.groups().items():
            weights = view.mixed.W[row, group]
            game = view.judge.coalitions(view.trained.rows[group], view.table.rows[row], weights, "loss")
            exact[view.trained.seats.client[group]] += shapley.exact(game, len(group))
            first[view.trained.seats.client[group]] += view.values.per_seat[group]
    return np.array([run.book.balance(f"client/{c}") for c in range(12)]), exact, first


JUDGES: Mapping[str, Mapping[str, Any]] = {
    "those who trained": {},
    "the others who trained": {"mechanism": {"name": "pifl", "value": {"judges": "others"}}},
    "the server": {"mechanism": {"name": "pifl", "value": "first_order"}, "data": {"validation": 0.5}},
}


def definitions() -> None:
    """The paper's definitions 1 to 3 on a run, with contributions judged by those who trained, by the others of them,
    and on test data at the server (Algorithm 2 as printed).
    """
    columns = (
        "seed",
        "judged by",
        "(1) clients with at least their grant",
        "(1) own accuracy above local training's",
        "(1) mean gain over local training",
        "(2) rank correlation of similarity and reward",
        "(2) clients whom the tier that fits better rewarded more a seat, of those who sat in both",
        "(3) personal less tier accuracy, after 15 rounds",
        "(3) at the end",
    )
    print(f"| {' | '.join(columns)} |")
    print("|" + "---|" * len(columns))
    for seed in SEEDS:
        split = {"name": "mixture", "mix": "10:90", "test_mix": "same", "min_samples": 5}
        same: dict[str, Any] = {"data": {"partition": split}, "eval": {"every": 15}}
        alone = hanse.run(experiment(50, 60, seed, mechanism={"name": "local"}, **same))
        for judge, sections in JUDGES.items():
            watch = Views()
            arm = {**same, **sections, "data": {**same["data"], **sections.get("data", {})}}
            run = hanse.run(experiment(50, 60, seed, **arm), observers=[watch])
            gain = run.tested["test_accuracy"] - alone.tested["test_accuracy"]
            held = np.array([run.book.balance(f"client/{c}") for c in range(50)])
            gaps = [
                m["client/test_accuracy"] - m["client/test_accuracy_of_row"]
                for m in run.metrics
                if "client/test_accuracy_of_row" in m
            ]
            more, both = _paid_more(watch.views, 50)
            print(
                f"| {seed} | {judge} | {100 * np.mean(held >= 100 * TOKEN):.0f} % | {100 * np.mean(gain > 0):.0f} % | "
                f"{100 * np.mean(gain):+.1f} | {_similarity(watch.views):.2f} | {more} of {both} | "
                f"{100 * gaps[0]:+.1f} | {100 * gaps[-1]:+.1f} |",
                flush=True,
            )


def _paid_more(views: Sequence[View], clients: int) -> tuple[int, int]:
    """Return how many clients were rewarded more a seat (eqs 12 to 14: a bidder also pays and an invited client does
    not, which is no matter of similarity) by the tier that fitted them better on average, and of how many: those who
    sat in both tiers, and of whom neither fits nor rewards are equal.
    """
    paid, sat = np.zeros((clients, 2)), np.zeros((clients, 2))
    fit: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for before, now in itertools.pairwise(views[1:]):
        for transaction in now.posted:
            kind, _, tier = transaction.step.partition("/")
            for name, units in transaction.postings if kind == "reward" else ():
                if name.startswith("client/"):
                    paid[int(name.removeprefix("client/")), int(tier)] += units
        np.add.at(sat, (before.trained.seats.client, before.trained.seats.target), 1)
        for c in np.unique(before.trained.seats.client).tolist():
            scored = now.answers.get((c, "tier accuracy"))
            if isinstance(scored, Scored):
                fit[c].append(np.asarray(scored.accuracy))
    better = np.array([np.subtract(*np.mean(f, axis=0)) if f else 0.0 for f in fit])
    mean = paid / np.maximum(1, sat)
    signs = np.sign(better) * np.sign(mean[:, 0] - mean[:, 1])
    known = (sat > 0).all(1) & (signs != 0)
    return int((signs[known] > 0).sum()), int(known.sum())


def bids() -> None:
    """How many clients bid for several tiers, and sit in several, by the threshold of Algorithm 1 (a share of the best
    weight); 60 rounds of 50 clients.
    """
    columns = ("threshold", "clients a round with several bids", "with several seats", "the same in round 1 to 5",
               "tiers separated", "personal accuracy")  # fmt: skip
    print(f"| {' | '.join(columns)} |")
    print("|" + "---|" * len(columns))
    for threshold in (1.0, 0.95, 0.9, 0.7, 0.5):
        several: list[np.ndarray] = []
        apart: list[float] = []
        own: list[float] = []
        for seed in SEEDS:
            watch = Views()
            policy = {"policy": {"name": "best_tier", "threshold": threshold}}
            run = hanse.run(experiment(50, 60, seed, clients=policy), observers=[watch])
            several.append(np.array([_several(view) for view in watch.views[1:]]))
            apart.append(run.metrics[-1].get("test/separated", float("nan")))
            own.append(run.metrics[-1]["client/test_fit"])
        bid, sat = np.mean(several, axis=(0, 1))
        early = np.mean([one[:5, 1].mean() for one in several])
        print(f"| {threshold:g} | {bid:.1f} | {sat:.1f} | {early:.1f} | {int(sum(apart))} of {len(apart)} | "
              f"{100 * np.mean(own):.1f} ± {100 * np.std(own, ddof=1):.1f} |", flush=True)  # fmt: skip


def _several(view: View) -> tuple[int, int]:
    """Return how many clients had bids for several tiers in escrow, and how many paid seats in several tiers."""
    assert view.seats is not None
    held = np.zeros((view.context.num_clients, view.table.size), bool)
    for transaction in view.posted:
        kind, _, tier = transaction.step.partition("/")
        for name, _ in transaction.postings if kind == "bid" else ():
            if name.startswith("escrow/"):
                held[int(name.removeprefix("escrow/")), int(tier)] = True
    sits = np.zeros_like(held)
    sits[view.seats.client, view.seats.target] = True
    return int((held.sum(1) > 1).sum()), int(((held & sits).sum(1) > 1).sum())


def tokens() -> None:
    """Grants so small that accounts run dry: a seat costs 1 token, 60 rounds of 50 clients, 16 seats for bidders and 4
    for invited clients a round.
    """
    columns = ("grant", "clients who cannot pay at the end", "bids a round, last 20 rounds", "seats a round, last 20",
               "of them paid for", "tiers separated", "personal accuracy")  # fmt: skip
    print(f"| {' | '.join(columns)} |")
    print("|" + "---|" * len(columns))
    for grant in (1, 2, 3, 5, 10, 100):
        broke, bid, seats, apart, own = [], [], [], [], []
        paid = []
        for seed in SEEDS:
            run = hanse.run(experiment(50, 60, seed, clients={"grant": grant}))
            last = run.metrics[-20:]
            broke.append(sum(run.book.balance(f"client/{c}") < TOKEN for c in range(50)))
            bid.append(np.mean([m["tokens/bids"] for m in last]))
            seats.append(np.mean([m["seats"] for m in last]))
            invited = [m["select/tier 0/invited"] + m["select/tier 1/invited"] for m in last]
            paid.append(seats[-1] - np.mean(invited))
            apart.append(run.metrics[-1].get("test/separated", float("nan")))
            own.append(run.metrics[-1]["client/test_fit"])
        print(f"| {grant} | {np.mean(broke):.1f} of 50 | {np.mean(bid):.1f} | {np.mean(seats):.1f} | "
              f"{np.mean(paid):.1f} | {int(sum(apart))} of {len(apart)} | "
              f"{100 * np.mean(own):.1f} ± {100 * np.std(own, ddof=1):.1f} |", flush=True)  # fmt: skip


def _similarity(views: Sequence[View]) -> float:
    """Return the rank correlation of what a tier paid its clients and how well it fits their data, within each tier and
    round (fits rise and rewards fall over the rounds), in the mean.
    """
    found = []
    for before, now in itertools.pairwise(views[1:]):
        assert now.settlement is not None
        amounts, seats = now.settlement.arrays["tokens_paid"], before.trained.seats
        for row, group in seats.groups().items():
            scored = {c: now.answers.get((c, "tier accuracy")) for c in seats.client[group].tolist()}
            pairs = [(float(s.accuracy[row]), int(amounts[c, row])) for c, s in scored.items() if isinstance(s, Scored)]
            fit, paid = np.array(pairs).T if pairs else (np.zeros(0), np.zeros(0))
            if len(pairs) > 2 and np.ptp(fit) > 0 and np.ptp(paid) > 0:
                found.append(float(spearmanr(fit, paid)[0]))
    return float(np.mean(found))


PARTS: Mapping[str, Callable[[], None]] = {
    "round": rounds,
    "samples": samples,
    "rewards": rewards,
    "riders": riders,
    "definitions": definitions,
    "bids": bids,
    "tokens": tokens,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        print(f"\n## {name}\n")
        PARTS[name]()
