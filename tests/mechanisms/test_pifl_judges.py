"""Who judges contributions in PI-FL: whoever lies about its gradient is paid for it by the paper's way alone."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experiments import digits
from torch.func import functional_call
from torch.nn import functional

import hanse
from hanse.core.part import View
from hanse.core.port import Derived
from hanse.games import tokens
from hanse.mechanisms.value import FirstOrder, FirstOrderAtClients
from hanse.runs.rehearsal import Rehearsal, rehearse
from hanse.runs.setup import build


def rehearsed(judges: str) -> Rehearsal:
    """Return a round in which all of six clients train one tier."""
    table = {"name": "pifl", "tiers": 1, "by_contribution": 6, "value": {"judges": judges}}
    return rehearse(table, data={"clients": 6, "partition": {"samples_per_client": 30}})


def closing(judges: str) -> tuple[FirstOrderAtClients, View]:
    """Return the value part, and the view that it is shown, of such a round."""
    part, view, _ = rehearsed(judges).before("value")
    assert isinstance(part, FirstOrderAtClients)
    assert sorted(view.trained.seats.client.tolist()) == list(range(6))
    return part, view


def valued(part: FirstOrderAtClients, view: View, sent: Mapping[int, Derived | None] = {}) -> np.ndarray:
    """Return the values where some clients have sent something else; None: nothing."""
    answers = dict(view.answers)
    for c, derived in sent.items():
        del answers[c, "gradient 0"]
        answers |= {} if derived is None else {(c, "gradient 0"): derived}
    return part.value(replace(view, answers=answers), {})[0].per_seat


def sending(gradient: Any, samples: int = 30) -> Derived:
    return Derived("gradient 0", torch.as_tensor(np.asarray(gradient), dtype=torch.float32)[None], samples)


def away(view: View, c: int) -> np.ndarray:
    """Return the gradient by which client c's update seems to lower the loss most."""
    rows, weights = view.trained.rows.double(), torch.tensor(view.mixed.W[0, : len(view.trained)])
    moved = rows[view.trained.seats.client.tolist().index(c)] - weights.double() @ rows
    return (-1e6 * moved / moved.norm()).numpy()


def test_by_the_paper_s_way_values_are_eq_2_with_the_gradient_on_the_group_s_own_samples() -> None:
    small, (part, view) = rehearsed("all"), closing("all")
    problem, trained = small.session.problem, view.trained
    pool, index = small.session.data.pool(trained.seats.client.tolist())
    share, here = torch.tensor(trained.num_samples / trained.num_samples.sum()), torch.cat(index)
    mean = (share[:, None] * trained.rows.double()).sum(0).float().requires_grad_()
    out = functional_call(problem.module, dict(problem.layout.unflatten(mean)), (pool.x[here],))
    [gradient] = torch.autograd.grad(functional.cross_entropy(out, pool.y[here]), mean)
    expected = -share * ((trained.rows - mean.detach()).double() @ gradient.double())
    found = part.value(view, {})[0]
    np.testing.assert_allclose(found.per_seat, expected.numpy(), atol=1e-7)
    assert abs(found.per_seat.sum()) < 1e-7  # eq. (2) sums to 0
    assert found.metrics["value/gradients"] == 6


def test_no_gradient_moves_the_place_or_the_pay_of_the_client_that_sends_it() -> None:
    part, view = closing("others")
    draw, honest = np.random.default_rng(0), valued(part, view)
    clients, others_moved = view.trained.seats.client.tolist(), 0
    assert sorted(honest) == pytest.approx([-5 / 12, -3 / 12, -1 / 12, 1 / 12, 3 / 12, 5 / 12])

    def pay(values: np.ndarray) -> dict[int, int]:
        return tokens.rank_rewards(10_000, dict(zip(clients, values, strict=True)), dict.fromkeys(clients, 1))

    for c in clients:
        width = view.trained.rows.shape[1]
        lies = [sending(away(view, c)), sending(-away(view, c)), sending(draw.normal(size=width) * 1e9, 2**53), None]
        for lie in lies:
            lied = valued(part, view, {c: lie})
            assert lied[clients.index(c)] == honest[clients.index(c)]
            assert pay(lied)[c] == pay(honest)[c]
            others_moved += not np.array_equal(lied, honest)
    assert others_moved > 0


def test_by_the_paper_s_way_a_false_gradient_makes_any_client_worth_the_most() -> None:
    part, view = closing("all")
    clients = view.trained.seats.client.tolist()
    for c in clients:
        assert clients[int(valued(part, view, {c: sending(away(view, c))}).argmax())] == c


def test_who_is_better_by_every_gradient_is_first_in_its_half() -> None:
    part, view = closing("others")
    for c in view.trained.seats.client.tolist():
        values = valued(part, view, {j: sending(away(view, c)) for j in range(6)})
        at = view.trained.seats.client.tolist().index(c)
        assert values[at] > 0.2  # first or second of six, by the coin between the halves' firsts
    nobody, none = part.value(replace(view, answers={}), {})[0], valued(part, view, dict.fromkeys(range(6)))
    np.testing.assert_array_equal(nobody.per_seat, none)
    assert sorted(none) == pytest.approx(((np.arange(6) + 0.5) / 6 - 0.5).tolist())  # by lot
    assert nobody.metrics["value/unjudged"] == 6


def test_neither_a_long_gradient_nor_a_claim_of_many_samples_outweighs_the_other_judges() -> None:
    part, view = closing("others")
    sent = {c: view.answers[c, "gradient 0"] for c in range(6)}
    lengths = {c: float(one.gradients.norm()) for c, one in sent.items() if isinstance(one, Derived)}
    longest = max(lengths, key=lengths.__getitem__)
    one = sent[longest]
    honest = valued(part, view)
    np.testing.assert_array_equal(valued(part, view, {longest: replace(one, gradients=1e9 * one.gradients)}), honest)
    many, most = (valued(part, view, {longest: replace(one, num_samples=n)}) for n in (2**53, 64))  # 64 were asked for
    np.testing.assert_array_equal(many, most)


CHOICES: list[tuple[Any, float, type, Any]] = [
    ({"name": "pifl"}, 0.5, FirstOrder, {"name": "first_order", "normalised": True}),
    ({"name": "pifl", "value": {"normalised": False}}, 0.5, FirstOrder, {"name": "first_order", "normalised": False}),
    ({"name": "pifl"}, 0.0, FirstOrderAtClients, {"judges": "others"}),
    ({"name": "pifl", "value": {"samples": 8}}, 0.5, FirstOrderAtClients, {"samples": 8, "judges": "others"}),
    ({"name": "pifl", "value": {"judges": "all"}}, 0.5, FirstOrderAtClients, {"judges": "all"}),
]


@pytest.mark.parametrize(("table", "validation", "kind", "written"), CHOICES)
def test_who_judges_is_chosen_before_the_run_and_written_down(
    table: dict[str, Any], validation: float, kind: type, written: Any, tmp_path: Path
) -> None:
    setup = build(digits(table, 4, 1, data={"partition": {"samples_per_client": 30}, "validation": validation}))
    settled, said = setup.experiment, setup.said
    assert type(setup.mechanism.value) is kind
    assert settled.sections()["mechanism"]["value"] == written
    (tmp_path / "config.toml").write_text(settled.to_toml())
    again = hanse.Experiment.read(tmp_path / "config.toml")
    assert again.mechanism.built.value == setup.mechanism.value
    assert build(again).mechanism.value == setup.mechanism.value  # what is written down is not chosen again
    warned = [line for line in said if line.startswith("warning: mechanism.value.judges: 'all'")]
    assert len(warned) == (written == {"judges": "all"})
    assert sum("judge" in line for line in said) == 1
