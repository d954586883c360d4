"""What a client's privacy account says of a run, and what privacy costs it (:func:`privacy_of`, :func:`before`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hanse.base.files import table
from hanse.federation.account import Release
from hanse.federation.privacy import Privacy
from hanse.games.jackknife import SURE
from hanse.reports.statement_contributed import Contributed
from hanse.runs.run_record import RunRecord

SAT_OUT = "its privacy budget is used up"
HIDES = {"client": "the client as a whole", "sample": "each single sample"}


def privacy_of(run: RunRecord, client: int, given: Contributed) -> str:
    """Return in a few words what a client has spent of its privacy budget, and what noise did to its value.

    Args:
        run: the run, as :func:`hanse.runs.run_record.load_run` reads it.
        client: the client's number.
        given: what its updates were worth.

    Returns:
        "" if updates left the clients as they were.
    """
    rule = table(run.config, "federation").get("private")
    if not isinstance(rule, Mapping):
        return ""
    rule = {**rule, **_own(rule.get("stricter"), client)}
    mine = [seat for seat in run.clients if seat.client == client]
    said = [seat.epsilon for seat in mine if seat.epsilon is not None]
    out = sum(seat.refused is not None and seat.refused.startswith(SAT_OUT) for seat in mine)
    told = f"epsilon {max(said, default=0.0):.3g} of {_number(rule, 'epsilon'):g} spent in {len(said)} answers"
    told += f", as the client says, at delta {_number(rule, 'delta'):g}"
    told += f"; then it sat out {out} round{'s' * (out != 1)}." if out else "."
    if given.value and given.sampling and given.drawn is not None and given.error is not None and not given.sure:
        valued = sum(seat.value is not None for seat in mine)
        times = (SURE * given.error / abs(given.value)) ** 2
        if valued and times < 1000:
            more = math.ceil(valued * (times - 1))
            lacks = ", for which its budget has nothing left" if out else ""
            told += f" With noise its value is not told from 0; about {more} more rounds would tell it{lacks}."
    return told


def _own(stricter: Any, client: int) -> Mapping[str, Any]:
    """Return what an experiment says of one client's budget; a stranger's file may say anything."""
    given = [one for one in stricter if isinstance(one, Mapping)] if isinstance(stricter, list) else []
    return next((one for one in given if isinstance(one.get("clients"), list) and client in one["clients"]), {})


def _number(rule: Mapping[str, Any], key: str) -> float:
    """Return a number of the experiment's; NaN if a stranger's file has none there."""
    value = rule.get(key)
    return float(value) if isinstance(value, int | float) else math.nan


def before(rule: Privacy, size: int, seats: int, rounds: int, one: Release) -> str:
    """Return what privacy costs a client, said before it joins.

    Args:
        rule: what clients let out, with the noise.
        size: how many numbers a model has.
        seats: how many clients train in a round.
        rounds: of the run.
        one: what one of its updates gives out.
    """
    hides = f"Its updates have noise that hides {HIDES[rule.unit]}, up to epsilon {rule.epsilon:g} at delta"
    told = f"{hides} {rule.delta:g}; then it sits out."
    if rule.noise is None:
        return told
    lasts = max(n for n in range(rounds + 1) if rule.opened().affords([one] * n))
    told += f" The budget lasts for {lasts} of {rounds} rounds."
    if rule.unit == "sample":
        return (
            f"{told} It trains with the noise inside: at each of its {one.steps} steps a round, noise {rule.noise:.3g} "
            "times as long as what one sample may add at most."
        )
    times = rule.noise * math.sqrt(size)
    return (
        f"{told} In an update the noise is {times:.3g} times as long "
        f"as what is learned at most, in the mean of {seats} updates {times / math.sqrt(seats):.3g} times."
    )
