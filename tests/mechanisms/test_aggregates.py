"""Rules that are no average: the row that each makes and the values over it, against formulas written here anew."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experiments import digits
from scipy.stats import trim_mean
from torch.nn import functional
from watching import Killed, Watch, rounds_of

import hanse
from hanse.base.errors import PartError, UserError
from hanse.core.part import Aggregate, AggregatePart, Group, Settlement, State, View
from hanse.data import Samples
from hanse.games import shapley
from hanse.mechanisms.fits import tried, unmet_needs
from hanse.mechanisms.robust import Clipped, Krum, sorted_columns
from hanse.mechanisms.server_steps import FedAvgM
from hanse.mechanisms.weigh import BySamples, SamplesOverProbability
from hanse.reports.audit import audit_run
from hanse.runs.round import first_state, play_round
from hanse.runs.round_record import row_hash
from hanse.runs.setup import Session, build
from tests.learning.helpers import worth_of

M = 4
Rows = np.ndarray


@dataclass
class Round:
    """What a rule is given, in float64: updates ``U [m, P]``, the old row, and what clients reported."""

    U: Rows
    old: Rows
    n: Rows
    steps: Rows
    loss: Rows  # of the old row on each client's own data
    root: Rows  # how the root set moves the old row
    change: Rows  # of the mean in the round before, from where it began
    members: tuple[int, ...]

    def of(self, members: tuple[int, ...]) -> "Round":
        at = list(members)
        return replace(self, U=self.U[at], n=self.n[at], steps=self.steps[at], loss=self.loss[at], members=members)

    @property
    def mean(self) -> Rows:
        return self.n @ self.U / self.n.sum()


def median(r: Round) -> Rows:
    return np.asarray(np.median(r.U, axis=0))


def geometric(r: Round) -> Rows:
    """Gradient-free: Weiszfeld's steps among the models themselves, many of them."""
    z = r.U.mean(axis=0)
    for _ in range(3000):
        w = 1 / np.maximum(np.linalg.norm(r.U - z, axis=1), 1e-9)
        z = w @ r.U / w.sum()
    return np.asarray(z)


def clipped(r: Round) -> Rows:
    way = r.U - r.old
    length = np.linalg.norm(way, axis=1)
    short = way * np.minimum(1, np.median(length) / length)[:, None]
    return np.asarray(r.old + r.n @ short / r.n.sum())


def krum_order(r: Round) -> list[int]:
    m = len(r.U)
    f = (m - 3) // 2
    score = [sum(sorted(np.sum((r.U[i] - r.U[j]) ** 2) for j in range(m) if j != i)[: m - f - 2]) for i in range(m)]
    return sorted(range(m), key=lambda i: score[i])


def krum(keep: int) -> Callable[[Round], Rows]:
    return lambda r: np.asarray((r.U if len(r.U) < 3 else r.U[krum_order(r)[:keep]]).mean(axis=0))


def fltrust(r: Round) -> Rows:
    total, trust = np.zeros_like(r.old), 0.0
    for u in r.U:
        g = u - r.old
        ts = max(0.0, g @ r.root / np.linalg.norm(g) / np.linalg.norm(r.root))
        total, trust = total + ts * np.linalg.norm(r.root) / np.linalg.norm(g) * g, trust + ts
    return np.asarray(r.old + total / trust if trust > 0 else r.old)


def adaptive(second: Callable[[Rows, Rows], Rows], beta1: float = 0.9) -> Callable[[Round], Rows]:
    def rule(r: Round) -> Rows:
        m, v = (1 - beta1) * r.change, second(np.full_like(r.old, 1e-6), r.change**2)
        now = r.mean - r.old
        m, v = beta1 * m + (1 - beta1) * now, second(v, now**2)
        return np.asarray(r.old + 0.03 * m / (np.sqrt(v) + 1e-3))

    return rule


def affine(weights: Callable[[Round], Rows]) -> Callable[[Round], Rows]:
    """The whole group's weights: a coalition's are scaled to their sum, and the old row keeps its own."""

    def rule(r: Round) -> Rows:
        everyone: Round = WHOLE["round"]
        w = weights(everyone)
        mine = w[list(r.members)]
        return np.asarray((1 - w.sum()) * r.old + w.sum() * mine @ r.U / mine.sum())

    return rule


WHOLE: dict[str, Round] = {}


def nova(r: Round) -> Rows:
    p = r.n / r.n.sum()
    a = np.array([sum(sum(0.5**j for j in range(steps - i)) for i in range(steps)) for steps in r.steps])
    return np.asarray((p @ a) * p / a)


def qffl(r: Round) -> Rows:
    L, q = 1 / 0.1, 2.0
    way = L * np.linalg.norm(r.old - r.U, axis=1)
    h = q * r.loss ** (q - 1) * way**2 + L * r.loss**q
    return np.asarray(L * r.loss**q / h.sum())


RULES: dict[str, tuple[Any, Callable[[Round], Rows]]] = {
    "median": ("median", median),
    "trimmed_mean": ({"name": "trimmed_mean", "share": 0.25}, lambda r: np.asarray(trim_mean(r.U, 0.25, axis=0))),
    "geometric_median": ("geometric_median", geometric),
    "clipped": ("clipped", clipped),
    "krum": ("krum", krum(1)),
    "multi_krum": ({"name": "multi_krum", "keep": 2}, krum(2)),
    "fltrust": ("fltrust", fltrust),
    "fedavgm": ("fedavgm", lambda r: np.asarray(r.old + 0.9 * r.change + (r.mean - r.old))),
    "fedadam": ("fedadam", adaptive(lambda v, s: 0.99 * v + 0.01 * s)),
    "fedyogi": ("fedyogi", adaptive(lambda v, s: v - 0.01 * s * np.sign(v - s))),
    "fedadagrad": ("fedadagrad", adaptive(lambda v, s: v + s, beta1=0.0)),
    "fednova": ("fednova", affine(nova)),
    "q_fedavg": ({"name": "q_fedavg", "q": 2.0}, affine(qffl)),
}


def world(weigh: Any, **mechanism: Any) -> Session:
    sections = {
        "data": {"partition": {"alpha": 0.3}, "root": 0.2}, "model": {"name": "mlp", "hidden": [6]},
        "train": {"lr": 0.1, "steps": 8, "batch_size": 2000, "momentum": 0.5}, "engine": {"train": "sequential"},
        "behaviour": {"straggler": {"fraction": 0.6}},
    }  # fmt: skip
    mechanism = {"name": "fedavg", "clients_per_round": M, "value": "exact", "weigh": weigh, **mechanism}
    return build(digits(mechanism, M, 60, **sections))


def loss_of(setup: Session, row: Rows, x: torch.Tensor, y: torch.Tensor) -> float:
    return -worth_of(setup.problem, torch.from_numpy(row).float(), Samples(x, y))


def from_root(setup: Session, old: Rows) -> Rows:
    """Gradient descent on the whole root set at once, with momentum, in plain PyTorch."""
    samples, layout = setup.data.server_root, setup.problem.layout
    row, velocity = torch.from_numpy(old).float(), torch.zeros(len(old))
    for _ in range(8):
        layout.load(setup.problem.module, row)
        loss = functional.cross_entropy(setup.problem.module(samples.x), samples.y)
        gradient = torch.autograd.grad(loss, list(setup.problem.module.parameters()))
        velocity = 0.5 * velocity + torch.cat([g.reshape(-1) for g in gradient])
        row = row - 0.1 * velocity
    return row.double().numpy() - old


def known(setup: Session, first: View, view: View) -> Round:
    updates, old = view.trained, view.table.rows[0].double().numpy()
    pool, index = setup.data.pool(updates.seats.client.tolist())
    losses = [loss_of(setup, old, pool.x[i], pool.y[i]) for i in index]
    before = first.trained
    mean = before.num_samples @ before.rows.double().numpy() / before.num_samples.sum()
    return Round(
        updates.rows.double().numpy(), old, updates.num_samples, updates.steps, np.array(losses),
        from_root(setup, old), mean - first.table.rows[0].double().numpy(), tuple(range(M)),
    )  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_rows_and_values_are_those_of_the_formula(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the second round, so that moments are not those at the start; coalitions' rows are made five at a time."""
    monkeypatch.setattr("hanse.learning.coalitions._MADE", 5 * 460)
    weigh, rule = RULES[name]
    setup = world(weigh)
    first, second = rounds_of(setup, 2)
    view, whole = second.view, known(setup, first.view, second.view)
    WHOLE["round"] = whole
    new = second.state.table.rows[0].double().numpy()
    # the geometric median of few points has slow last digits
    np.testing.assert_allclose(new, rule(whole), atol=2e-5 if name == "geometric_median" else 3e-6)

    samples = setup.data.server_validation

    def worth(members: frozenset[int]) -> float:
        row = rule(whole.of(tuple(sorted(members)))) if members else whole.old
        return -loss_of(setup, row, samples.x, samples.y)

    np.testing.assert_allclose(view.values.per_seat, shapley.exact(worth, M), atol=2e-5)
    assert view.values.metrics.get("value/not_averages", 0.0) == 0.0


@pytest.mark.parametrize("m", [1, 2, 3, 6, 7, 65])
def test_columns_are_sorted(m: int) -> None:
    rows = torch.randn(m, 50, generator=torch.Generator().manual_seed(m))
    before = rows.clone()
    assert torch.equal(sorted_columns(rows), rows.sort(dim=0).values)
    assert torch.equal(rows, before)


def test_moments_stand_only_with_their_row() -> None:
    first, second = rounds_of(world("fedavgm", value="none"), 2)
    before, after = first.state.states["weigh"], second.state.states["weigh"]
    assert before["rows"].tolist() == after["rows"].tolist() == [0]
    view, table = second.view, second.view.table
    withheld = replace(view, settlement=Settlement(withheld=frozenset({0})))
    refused = replace(view, mix=view.mixed.without(table, [0], view.home))
    empty = replace(view, found={})
    for outcome in (withheld, refused, empty):
        assert torch.equal(FedAvgM().learn(outcome, before)["velocity"], before["velocity"])


def test_what_is_no_row_of_w_is_recorded_and_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    def experiment(rounds: int) -> hanse.Experiment:
        mechanism = {"name": "fedavg", "clients_per_round": 3, "weigh": {"name": "fedadam", "of": "median"}}
        return digits(mechanism, 5, rounds, engine={"train": "stacked"})

    whole = hanse.run(experiment(4), out=tmp_path / "whole")
    with pytest.raises(Killed):
        hanse.run(experiment(4), out=tmp_path / "killed", observers=[Watch(1, Killed)])
    hanse.resume(tmp_path / "killed")
    for k in range(4):
        ours, theirs = (np.load(tmp_path / run / "rounds" / f"{k:05d}.npz") for run in ("whole", "killed"))
        assert ours["made_hash"].tolist() == theirs["made_hash"].tolist()
        assert ours["made_row"].tolist() == [0]
        assert ours["made_of"].tolist() == [0, 1, 2]
        assert ours["made_at"].tolist() == [0, 0, 0]
        assert not (ours["W_row"] == 0).any()
    assert ours["made_hash"].tolist() == [row_hash(whole.table.rows[0])]
    [_, check] = audit_run(tmp_path / "killed").checks
    assert check.holds
    last = tmp_path / "killed" / "rounds" / "00003.npz"
    arrays = dict(np.load(last))
    np.savez(last, **{**arrays, "made_hash": np.array(["0" * 40])})  # type: ignore[arg-type]
    [_, check] = audit_run(tmp_path / "killed").checks
    assert not check.holds
    assert arrays["made_hash"][0] in check.said
    seats = [json.loads(line) for line in (tmp_path / "whole" / "clients.jsonl").read_text().splitlines()]
    assert all(line["weight"] is None for line in seats)


class MakesRows(AggregatePart):
    def aggregate(self, group: Group, state: State) -> Aggregate:
        return Aggregate(row=group.old * 2)


@dataclass(frozen=True)
class MakesRowsOfMany(AggregatePart):
    """A rule whose form does not show where it is tried, on three updates."""

    def aggregate(self, group: Group, state: State) -> Aggregate:
        return Aggregate(np.full(3, 1 / 3)) if len(group) == 3 else Aggregate(row=group.updates.mean(dim=0))


def test_a_rule_shows_by_what_it_makes_what_can_value_it() -> None:
    again, chosen = {"reapply"}, {"reapply", "reweighted"}  # path values follow the weights that a rule chose
    wants = {FedAvgM(): {"along"}, FedAvgM(of=Krum()): again, Clipped(of=SamplesOverProbability()): chosen}
    wants |= {MakesRows(): again, Krum(): chosen, BySamples(): set()}
    assert {part: tried(part).beyond_weights for part in wants} == wants  # type: ignore[union-attr]
    setup = world("samples", value="none")
    setup = replace(setup, mechanism=replace(setup.mechanism, weigh=MakesRows()))
    assert torch.equal(play_round(setup, first_state(setup)).state.table.rows, first_state(setup).table.rows * 2)


def test_a_rule_that_shows_only_in_the_round_what_it_makes_is_refused_there() -> None:
    setup = world("samples", value="mixture")
    mechanism = replace(setup.mechanism, weigh=MakesRowsOfMany())
    assert unmet_needs(mechanism, {"clients", "validation"}) == []
    with pytest.raises(PartError, match=r"MixtureValue in mechanism\.value"):
        play_round(replace(setup, mechanism=mechanism), first_state(setup))


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "mixture": ({"weigh": "median", "value": "mixture"}, "mechanism.value: 'mixture' .* 'median' in mechanism.weigh"),
    "path": ({"weigh": "median", "value": "path"}, "mechanism.value: 'path' .* 'median' in mechanism.weigh"),
    "steps": ({"weigh": "krum", "value": {"name": "exact", "game": "increment"}}, "mechanism.value: 'exact' .* 'krum'"),
    "few seats": ({"clients_per_round": 4, "weigh": {"name": "krum", "f": 1}}, r"mechanism.weigh: 'krum' .*needs 5"),
    "no root set": ({"weigh": "fltrust"}, r"mechanism.weigh: 'fltrust' .*data.root"),
    "memory of memory": ({"weigh": {"name": "fedadam", "of": "fedavgm"}}, "mechanism.weigh.of: FedAvgM"),
    "no rule": ({"weigh": {"name": "clipped", "of": "fedamp"}}, "mechanism.weigh.of: FedAMP"),
    "needs of the other rule": ({"weigh": {"name": "clipped", "of": "samples_over_probability"}}, "'clipped' needs"),
    "no groups": ({"name": "local", "weigh": "fedadam"}, "'fedadam' needs groups"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_with_the_reason(case: str) -> None:
    options, line = REFUSED[case]
    with pytest.raises(UserError, match=f"(?s){line}"):
        hanse.run(hanse.Experiment(data={"clients": 6}, mechanism={"name": "fedavg"} | options, run={"rounds": 1}))


def test_the_root_set_is_nobody_elses() -> None:
    """The other sets are cut as without it, and its samples are none of theirs."""
    cut = [build(hanse.Experiment(data={"clients": 4, "root": r}, mechanism={"name": "fedavg"})).data for r in (0, 0.2)]
    plain, rooted = cut
    assert plain.server_root is None
    assert torch.equal(plain.server_validation.x, rooted.server_validation.x)  # type: ignore[union-attr]
    assert len(rooted.server_root) + len(rooted.server_test) == len(plain.server_test)  # type: ignore[arg-type]
    both = torch.cat([rooted.server_root.x, rooted.server_test.x])  # type: ignore[union-attr]
    assert torch.equal(both.flatten(1).sum(1).sort().values, plain.server_test.x.flatten(1).sum(1).sort().values)  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"data\.validation.*1\.1"):
        hanse.Experiment(data={"validation": 0.6, "root": 0.5}, mechanism={"name": "fedavg"})


def test_a_rule_of_a_rule_is_made_of_its_weights() -> None:
    """FedAdam of GTFLAT steps from where GTFLAT's average is."""
    _, second = rounds_of(world({"name": "fedadam", "of": {"name": "clipped", "of": "gtflat", "norm": 1e9}}), 2)
    _, plain = rounds_of(world({"name": "fedadam", "of": "gtflat"}), 2)
    torch.testing.assert_close(second.state.table.rows, plain.state.table.rows)
