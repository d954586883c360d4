"""What a client's privacy account says of a run, and what privacy costs it (:func:`privacy_of`, :func:`before`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hanse.base.files import table
from hanse.core.port import Train
from hanse.core.recipe import Recipe
from hanse.core.table import Floats, Ints
from hanse.games.jackknife import SURE
from hanse.reports.statement_contributed import Contributed
from hanse.runs.recorded_seats import Seat
from hanse.runs.run_record import RunRecord
from hanse.runs.sat_out import SAT_OUT, clients_named, told_used_up, used_up

HIDES = {"client": "the client as a whole", "sample": "each single sample"}


def privacy_of(run: RunRecord, client: int, given: Contributed) -> str:
    """Return in a few words what a client has spent of its privacy budget, and what noise did to its value.

    All of it is taken from what the client's account said with its answers and refusals. Budgets may be lowered in the
    course of a run, and a participant may have its own budget.

    Args:
        run: the run, as :func:`hanse.runs.run_record.load_run` reads it.
        client: the client's number.
        given: what its updates were worth.

    Returns:
        "" if updates left the clients as they were.
    """
    if not isinstance(table(run.config, "federation").get("private"), Mapping):
        return ""
    mine = [seat for seat in run.clients if seat.client == client]
    said = [seat for seat in mine if seat.epsilon is not None and seat.budget is not None and seat.delta is not None]
    out = {seat.round: seat.refused for seat in mine if seat.refused is not None and seat.refused.startswith(SAT_OUT)}
    if out:
        many = f"{len(out)} of {len({seat.round for seat in mine})} rounds"
        told = f"{out[max(out)]}. So it sat out {many}, as it says."
    elif said:
        last = said[-1]
        told = f"epsilon {last.epsilon:.3g} of {last.budget:g} spent in {len(said)} answers, as the client says, "
        told += f"at delta {last.delta:g}."
    else:
        return "only the client's own account knows what it has spent."
    if given.value and given.sampling and given.drawn is not None and given.error is not None and not given.sure:
        valued = [seat for seat in mine if seat.value is not None]
        needed = rounds_to_tell(given.value, given.error, [(s.round, s.error or 0.0) for s in valued])
        if needed < 1000 * len(valued):
            more = max(1, math.ceil(needed) - len(valued))
            lacks = ", but its budget is used up" if out else ""
            if not out and _too_little(said, more):
                lacks = ", but its budget is too small for them"
            told += f" With this noise its value cannot be told from 0. About {more} more rounds would suffice{lacks}."
        elif math.isinf(needed):
            told += (
                " Its value cannot be told from 0: noise alone may lower it as much, and more rounds would not help."
            )
    return told


def _too_little(said: Sequence[Seat], more: int) -> bool:
    """Whether a budget surely does not last for so many more answers.

    Epsilon is at least proportional to the root of the number of equal answers, and its square grows with each by at
    least as much as with the one before: the Gaussian mechanism's epsilon is convex in the root (Balle, Wang 2018).
    """
    if len(said) < 2:  # before the first one, other runs may have spent some
        return False
    before, last = (seat.epsilon or 0.0 for seat in said[-2:])
    return last**2 + more * (last**2 - before**2) > (said[-1].budget or 0.0) ** 2


def rounds_to_tell(value: float, error: float, errors: Sequence[tuple[int, float]]) -> float:
    """Return after how many rounds a client's sum of values could be told from 0; infinity if never.

    The sums, and the loss that noise causes in them, grow with the number of rounds t, and chance as its root
    (:func:`hanse.mechanisms.value_noise.together`): ``t^2 v^2 > 1.96^2 (t chance^2 + t^2 worse^2)``.

    Args:
        value: the sum of the client's values.
        error: the standard error of that sum, from all sources.
        errors: of each valued round its number r and the error of its value, whose square is
            ``chance^2 + (2 r + 1) worse^2``.

    Examples:
        >>> rounds_to_tell(2.0, 2.0, [(r, 1.0) for r in range(4)]).__round__(1)  # chance alone: 1.96^2 / .5^2
        15.4
        >>> rounds_to_tell(2.0, 2.0, [(r, (0.25 * (2 * r + 1)) ** 0.5) for r in range(4)])
        inf
    """
    many, odd = len(errors), np.array([2.0 * r + 1 for r, _ in errors])
    squares = np.square([e for _, e in errors])
    varies = float(np.square(odd - odd.mean()).sum()) if many > 1 else 0.0
    worse = max(0.0, float((odd - odd.mean()) @ squares) / varies) if varies else 0.0
    chance = max(0.0, error**2 - worse * float(odd.sum())) / many
    left = (value / many) ** 2 - SURE**2 * worse
    return SURE**2 * chance / left if left > 0 else math.inf


def sitting_out(run: RunRecord) -> list[str]:
    """Return a sentence for each reason why a privacy account kept clients out of all rounds, or of all later ones."""
    asked, out = Counter(seat.client for seat in run.clients), Counter[int]()
    why: dict[int, str] = {}
    for seat in run.clients:
        if seat.refused is not None and seat.refused.startswith(SAT_OUT):
            out[seat.client] += 1
            why[seat.client] = seat.refused
    named: dict[str, list[str]] = {}
    for client in sorted(why):
        if out[client] == asked[client]:
            named.setdefault(why[client], []).append(run.client_label(client))
    since = used_up(
        (seat.client, seat.round, seat.refused) for seat in run.clients if out[seat.client] < asked[seat.client]
    )
    return [
        f"Sat out every round: {clients_named(who)}, each because {reason}."
        if len(who) > 1
        else f"Client {who[0]} sat out every round: {reason}."
        for reason, who in named.items()
    ] + [f"{line[0].upper()}{line[1:]}." for line in told_used_up(since)]


def before(
    rule: Any, client: int, sizes: Ints, size: int, *, seats: int, rounds: int, recipe: Recipe, by_samples: bool
) -> str:
    """Return what privacy costs a client, said before it joins.

    Args:
        rule: what clients let out, with the noise.
        client: the client's number.
        sizes: ``[N]``, how many samples each client has.
        size: P, how many numbers a model has.
        seats: how many clients train in a round.
        rounds: the number of rounds of the run.
        recipe: how clients train.
        by_samples: whether updates weigh by samples. If not, the text says what the noise leaves with equal weights.
    """
    mine = rule.of(client)
    hides = f"Its updates have noise that hides {HIDES[rule.unit]}, up to epsilon {mine.epsilon:g} at delta"
    told = f"{hides} {mine.delta:g}; then it sits out."
    if mine.noise is None:
        return told
    one = mine.update(int(sizes[client]), recipe)
    lasts = max(n for n in range(rounds + 1) if mine.opened().affords(one * n))
    told += f" The budget lasts for {lasts} of {rounds} rounds."
    own, mean = noise_lengths(rule, client, sizes, size, seats, recipe, by_samples)
    if not math.isfinite(own):
        return told
    weights = "weighted by samples" if by_samples else "if all weigh the same"
    return (
        f"{told} The noise in an update is about {own:.3g} times as large as the update itself can be; in the mean of "
        f"{seats} updates ({weights}), {mean:.3g} times."
    )


def noise_lengths(
    rule: Any, client: int, sizes: Ints, size: int, seats: int, recipe: Recipe, by_samples: bool
) -> tuple[float, float]:
    """Return how long the noise is in a client's update, and in the mean of a round's updates.

    Both are divided by the greatest length without noise. NaN: that length has no bound. Noise of the standard
    deviation s at each of P numbers has about the length ``s sqrt(P)``. In a mean with weights w_i the noise has the
    length ``sqrt(P sum w_i^2 s_i^2)``. If a round draws m of N clients, the mean square is taken: N / m of that of all
    clients' shares. Arguments as of :func:`before`.
    """
    task, lr = Train(0, 0, torch.zeros(0)), recipe.lr_at(0)
    given = [(rule.of(c), (int(n), recipe, lr, task)) for c, n in enumerate(sizes)]
    noise: Floats = np.array([terms.level(*one) for terms, one in given])
    learned: Floats = np.array([terms.longest(*one) for terms, one in given])
    counts = sizes if by_samples and sizes.sum() else np.ones(len(sizes))
    shares = counts / counts.sum()
    left = float((shares**2 * noise**2).sum()) * len(sizes) / seats
    own, mean = noise[client] / learned[client], math.sqrt(left) / float(shares @ learned)
    longer = math.sqrt(size) if np.isfinite(learned).all() else math.nan
    return float(own) * longer, mean * longer
