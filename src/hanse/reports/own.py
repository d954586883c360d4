"""Charts of how single clients fare: the distribution of their own accuracies, and what they earned beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hanse.reports.chart import Chart, Floats, Ints, Line, Lines, even
from hanse.reports.contributions import slug
from hanse.reports.groups import Group
from hanse.reports.market import MOST
from hanse.reports.money import Books
from hanse.reports.who import roles_of
from hanse.runs.record import RunRecord

__all__ = ["last_tested", "own_charts", "utilities"]

_SECTION = "How well it learned"
MOST_POINTS = 2000


def own_charts(groups: Sequence[Group], books: Mapping[str, Books]) -> list[Chart]:
    """Return the charts of the experiments whose clients tested on their own data."""
    cdf = _cdf(groups)
    earned = [chart for group in groups if (chart := _earned(group, books.get(group.label))) is not None]
    return [*([] if cdf is None else [cdf]), *earned]


def last_tested(run: RunRecord) -> tuple[Ints, Floats] | None:
    """Return the clients ``[n]`` of the last test on own data with an accuracy ``[n]``; None if there was no such."""
    tested = [line["round"] for line in run.metrics if line.get("client/test_accuracy") is not None]
    tests = run.own_tests(tested[-1]) if tested else None
    if tests is None:
        return None
    known = np.isfinite(tests.accuracy)
    return (tests.clients[known], tests.accuracy[known]) if known.any() else None


def utilities(run: RunRecord) -> Floats | None:
    """Return each client's utility over a run with a market, ``[N]`` tokens; None if there was no market."""
    if not any("utility/mean" in line for line in run.metrics):
        return None
    total = np.zeros(run.num_clients)
    for line in run.metrics:
        record = run.arrays(int(line["round"]), only=("market_utility", "market_client"))
        if "market_utility" in record:
            total[record["market_client"]] += record["market_utility"]
    return total


def _cdf(groups: Sequence[Group]) -> Chart | None:
    lines = []
    for i, group in enumerate(groups):
        own = [found[1] for run in group.runs if (found := last_tested(run)) is not None]
        if own:
            values = np.sort(np.concatenate(own))
            share = np.arange(1, len(values) + 1) / len(values)
            # from where nobody is below, so that the first step has a foot
            x, y = np.concatenate([values[:1], values]), np.concatenate([[0.0], share])
            kept = even(len(x), MOST_POINTS)
            lines.append(Line(group.label, 100.0 * x[kept], 100.0 * y[kept], look=i))
    if not lines:
        return None
    return Chart(
        "own-accuracy-cdf", _SECTION, "How clients fare on their own test data",
        "For each accuracy across, how many clients got at most that after the last round, all seeds together. A curve "
        "further right is better; a steep one treats everyone alike; a long foot on the left are clients left behind.",
        "accuracy on own test data (%)", "clients (%)", Lines(tuple(lines), steps=True, whole=False),
    )  # fmt: skip


def _earned(group: Group, books: Books | None) -> Chart | None:
    """Return utility (in a market) or tokens (elsewhere) against accuracy, a dot a client of the first run."""
    run = group.runs[0]
    tested, utility = last_tested(run), utilities(run)
    if tested is None or len(tested[0]) < 2:
        return None
    if utility is not None:
        worth, what, axis = utility, "Utility against accuracy", "utility over the run (tokens)"
        told = "its utility up: what the market brought it, less what sharing and the net payments cost"
    elif books is not None:
        worth, what, axis = books.held[-1] - run.grant, "Tokens earned against accuracy", "tokens earned or lost"
        told = "what it holds beyond its grant up"
    else:
        return None
    clients, accuracy = tested
    kept = even(len(clients), MOST_POINTS)
    clients, accuracy = clients[kept], accuracy[kept]
    roles = roles_of(run)
    kinds = [roles.get(c, "client") for c in clients.tolist()]
    lines = []
    for kind in dict.fromkeys(kinds):
        here = np.array([k == kind for k in kinds])
        x, y = 100.0 * accuracy[here], worth[clients[here]]
        few = len(clients) <= MOST
        names = tuple(f"client {run.client_label(c)}" for c in clients[here].tolist()) if few else ()
        lines.append(Line(kind, x, y, dots=True, names=names))
    caption = (
        f"Every dot is one client: its accuracy on its own test data across, {told}. Right and up: it has both a good "
        f"model and a gain. Seed {run.seeds[0]}."
    )
    marks = Lines(tuple(lines), zero=True, whole=False)
    title = f"{what}: {group.label}"
    return Chart(f"earned-{slug(group.label)}", _SECTION, title, caption, "accuracy on own test data (%)", axis, marks)
