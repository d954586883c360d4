"""Who is who in a run: what behaviours and policy make of clients, and the roles of their profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hanse.base.errors import UserError
from hanse.base.files import table
from hanse.core.telling import HONEST
from hanse.federation.profiles import build_profiles
from hanse.reports.chart import Ints
from hanse.reports.groups import Group
from hanse.runs.record import RunRecord

__all__ = ["honest_of", "kinds_of", "roles_of", "unknown_roles"]

OTHERS = "the others"


def kinds_of(run: RunRecord, *, cheats: bool = False) -> dict[str, Ints]:
    """Return the ids of clients ``[n]`` by what the run's behaviours and policy make of them, the rest first: "honest"
    if somebody cheats, unless a behaviour calls it otherwise. Empty if all are alike.

    A client with several goes under the one of the lowest rank. ``cheats``: only those that cheat have a name.
    """
    n = run.num_clients
    told = [c for c in run.about.conducts if c.label and (c.cheats or not cheats)]
    taken, kinds = np.zeros(n, bool), dict[str, Ints]()
    for conduct in sorted(told, key=lambda c: c.rank):
        here = np.zeros(n, bool)
        here[[c for c in conduct.clients if c < n]] = True
        found = np.flatnonzero(here & ~taken)
        if len(found):
            kinds[conduct.label] = np.union1d(kinds.get(conduct.label, found), found)
        taken |= here
    rest = np.flatnonzero(~taken)
    if not kinds or not len(rest):
        return {}
    usual = HONEST if any(c.cheats for c in told) else OTHERS
    return {next((c.rest for c in told if c.rest and c.rest != HONEST), usual): rest} | kinds


def honest_of(run: RunRecord) -> Ints | None:
    """Return the ids ``[n]`` of the clients that do not cheat; None if nobody does, or if it is not known who."""
    kinds = kinds_of(run)
    if HONEST not in kinds:
        return None
    cheating = {c.label for c in run.about.conducts if c.cheats}
    return np.sort(np.concatenate([ids for name, ids in kinds.items() if name not in cheating]))


def roles_of(run: RunRecord) -> Mapping[int, str]:
    """Return the clients' roles, as the run's profiles name them; "client" where they name none."""
    try:
        return _roles(run)
    except UserError:  # the roles are only colours; the report says why they are missing
        return dict.fromkeys(range(run.num_clients), "client")


def unknown_roles(groups: Sequence[Group]) -> list[str]:
    """Return why the clients' roles are not known, a line for each experiment of which they are not."""
    found = []
    for run in (group.runs[0] for group in groups):
        try:
            _roles(run)
        except UserError as wrong:
            found.append(f"{run.name}: {wrong.lines[0]}")
    return found


def _roles(run: RunRecord) -> dict[int, str]:
    n, said = run.num_clients, run.about.roles
    if said is not None:
        return dict.fromkeys(range(n), "client") | {c: role.name for role in said for c in role.clients if c < n}
    given = table(run.config, "clients").get("profiles")
    profiles = build_profiles(given, n, table(run.config, "run").get("seed", 0))
    return {i: str(p.get("role", "client")) for i, p in enumerate(profiles)}
