"""No attack moves a round's model further than the bound that the charter's page proves."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hanse.core.part import Group
from hanse.mechanisms.robust import lengths
from hanse.mechanisms.weigh import UniformWeights
from hanse.runs.rehearsal import rehearse
from hanse.wings.charter.capped import Capped
from hanse.wings.charter.shift import bound

HERE = rehearse({"name": "fedavg", "clients_per_round": 10}, data={"clients": 10}).groups[0]
SEVERAL = {f"client {k}": f"member {k // 2}" for k in range(6)}  # three members with two keys, four with one
FIXED = {f"client {k}": float(1 + k) for k in range(10)}
CHARTERS: tuple[tuple[Capped, dict[str, str]], ...] = (
    (Capped(cap=0.2, clip=1.0), {}),
    (Capped(cap=0.2, clip=3.0), SEVERAL),
    (Capped(cap=0.15, clip=2.0), SEVERAL),
    (Capped(cap=0.3, clip=1.0, weights=FIXED), {}),
    (Capped(cap=0.25, clip=1.5, of=UniformWeights()), SEVERAL),
)


def sent(rows: torch.Tensor, samples: np.ndarray, at: np.ndarray, of: dict[str, str]) -> Group:
    """The group in which the updates at these places were sent, by clients of these members."""
    trained = replace(HERE.view.trained, rows=rows, num_samples=samples)
    context = replace(HERE.view.context, members=of)
    return replace(HERE, view=replace(HERE.view, updates=trained, context=context), at=at)


def steps(draw: np.random.Generator, n: int) -> torch.Tensor:
    """Steps ``[n, P]`` of very different lengths around a common direction."""
    common, own = draw.standard_normal(HERE.updates.shape[1]), draw.standard_normal((n, HERE.updates.shape[1]))
    found = (common + draw.uniform(0, 3) * own) * draw.lognormal(0, draw.uniform(0, 1.5), (n, 1))
    return torch.from_numpy(found).float()


@pytest.mark.parametrize("number", range(len(CHARTERS)))
def test_no_attack_of_a_thousand_passes_the_bound(number: int) -> None:
    (part, of), draw, shares = CHARTERS[number], np.random.default_rng(number), []
    everybody, silent = np.arange(10), 0
    for _ in range(200):
        rows, samples = HERE.old + steps(draw, 10), draw.integers(1, 1000, 10).astype(float)
        honest = sent(rows, samples, everybody, of)
        members, place = part.places(honest)
        bad = draw.choice(len(members), draw.integers(1, (len(members) + 1) // 2), replace=False)
        theirs = np.flatnonzero(np.isin(place, bad))
        attacked, claimed, came = rows.clone(), samples.copy(), everybody
        match draw.integers(4):
            case 0:  # liars: anything, of any length
                attacked[theirs] = HERE.old + steps(draw, len(theirs)) * 10 ** draw.uniform(-3, 6)
            case 1:  # whales, that also claim to have next to nothing
                claimed[theirs] = 10 ** draw.uniform(-3, 12, len(theirs))
            case 2:  # they collude against the others' step
                good = torch.from_numpy(np.setdiff1d(everybody, theirs))
                attacked[theirs] = HERE.old - (rows[good] - HERE.old).mean(dim=0) * 10 ** draw.uniform(0, 4)
                claimed[theirs] = 1e9
            case _:  # silent, some of them
                came = np.setdiff1d(everybody, draw.choice(theirs, draw.integers(1, len(theirs) + 1), replace=False))
                silent += 1
        group = sent(attacked, claimed, came, of)
        moved = group.made(part.aggregate(group, {})).double() - honest.made(part.aggregate(honest, {})).double()
        limit = bound(lengths(honest), place, bad, part.cap, part.clip)
        shares.append(float(moved[: HERE.num_parameters].norm()) / limit)
    assert max(shares) <= 1 + 1e-5
    assert max(shares) > 0.4  # it is no empty bound
    assert silent > 20


def test_half_of_the_members_are_not_bounded_and_nobody_moves_nothing() -> None:
    length, place = np.ones(4), np.arange(4)
    assert bound(length, place, (0, 1), 0.25, 1.0) == np.inf
    assert bound(length, place, (), 0.25, 1.0) == 0.0
    assert bound(length, place, (0,), 0.25, 1.0) == pytest.approx(0.25 * 2)  # K (clip h + D), all of one length
