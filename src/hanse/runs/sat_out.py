"""Who sits out because its privacy budget is used up, as clients say (``[federation] private``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

SAT_OUT = "its privacy budget is"
"""How the reason begins for which a client sits out."""


def used_up(seats: Iterable[tuple[int, int, str | None]]) -> dict[int, int]:
    """Return since which round each client whose privacy budget is used up has not taken part, as the client says.

    Args:
        seats: for each seat the client, the round, and why there is no update (None: there is one), in the order of
            rounds.
    """
    since: dict[int, int] = {}
    for client, round, refused in seats:
        if refused is not None and refused.startswith(f"{SAT_OUT} used up"):
            since.setdefault(client, round)
        elif refused is None:
            since.pop(client, None)
    return since


def told_used_up(since: Mapping[int, int]) -> list[str]:
    """Return a line that says since when clients have not taken part (:func:`used_up`), unless all do."""
    rounds = sorted(set(since.values()))
    told = [f"{clients_named([c for c in sorted(since) if since[c] == r])} from round {r} on" for r in rounds[:_NAMED]]
    told += ["others later"] if len(rounds) > _NAMED else []
    return [f"privacy budgets are used up: {', '.join(told)}"] if told else []


def clients_named(who: Sequence[object]) -> str:
    """Return the first clients by number or name, and how many more there are."""
    more = f" and {len(who) - _NAMED} more" if len(who) > _NAMED else ""
    return f"client{'s' * (len(who) > 1)} {', '.join(map(str, who[:_NAMED]))}{more}"


_NAMED = 5  # clients, or rounds, that a line names
