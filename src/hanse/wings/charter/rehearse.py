"""``hanse charter rehearse``: what a charter does to a consortium, before anybody signs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hanse.base.imports import path_of
from hanse.base.plain_text import quantity
from hanse.core.entry import TOKEN
from hanse.core.entry import client as account
from hanse.core.table import Floats
from hanse.federation.behaviour import BEHAVIOURS
from hanse.reports.alone import alone_experiment
from hanse.reports.text_table import TextTable
from hanse.runs.config import Experiment
from hanse.runs.experiment import run
from hanse.runs.played_run import PlayedRun
from hanse.wings.charter.charter import Charter, charter_of
from hanse.wings.charter.shift import FAR, Shifts

METRICS = ("test/accuracy", "test/loss", "train/loss")  # the first that a run has is shown
CHEATS: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # behaviours, with their options
    "sends ten times the opposite": ("attacker", {"kind": "flip", "scale": 10.0}),
    "sends noise instead": ("attacker", {"kind": "gaussian"}),
    "claims ten times its samples": ("liar", {"size": 10.0}),
}


def rehearsed(experiment: Experiment, most: int) -> tuple[str, list[TextTable]]:
    """Play an experiment under its charter, and return the page's introduction and tables.

    Args:
        experiment: the experiment.
        most: the largest set of members that act together.

    Raises:
        UserError: the experiment has no charter, or cannot be played.
    """
    charter, watch = charter_of(experiment), Shifts(most)
    together = run(experiment, observers=[watch])
    names = together.names or tuple(f"client {k}" for k in range(len(together.home)))
    clients = {member: [names.index(one) for one in charter.clients_of(member)] for member in charter.members}
    settled = together.experiment  # with the number of clients that the data have
    alone = run(alone_experiment(settled)) if together.tests else None
    introduction = (
        f"The charter '{charter.title}' ({charter.hash}), played for {quantity(len(together.metrics), 'round')} with "
        f"{quantity(len(charter.members), 'member')}. A member weighs at most {charter.cap:g}; the longest update is "
        f"{charter.length or 'of any length'} (median over members: 1). Attacks on a round send up to {FAR:g} times "
        f"the honest step. At least {quantity(charter.least, 'member')} must sign an amendment. Of a leaver: "
        f"{', '.join(f'{what} {becomes}' for what, becomes in charter.exit)}."
        f"{f' It {charter.stuck}.' * bool(charter.stuck)}"
    )
    introduction += "" if alone else " Who gains is not known: clients keep no test samples (data.client_test)."
    gains = [_gains(clients, together, alone, watch)] if alone else []
    return introduction, [*gains, _shifts(watch, charter), _attacked(settled, clients, together)]


def _own(tested: Mapping[str, Floats], clients: Sequence[int]) -> float:
    """Return the accuracy on these clients' own test samples (of numbers, the loss), NaN if they have none."""
    mine = np.isin(tested["tested"], clients)
    number, weight = tested.get("test_accuracy", tested["test_loss"])[mine], tested["test_samples"][mine]
    return float(number @ weight / weight.sum()) if weight.sum() > 0 else float("nan")


def _gains(clients: Mapping[str, list[int]], together: PlayedRun, alone: PlayedRun, watch: Shifts) -> TextTable:
    """Return who gains by the charter, and what a leaver at half time would not have."""
    last = max(0, len(together.metrics) // 2 - 1)  # of the first half
    half = max((n for n in together.tests if n <= last), default=last)
    loses_all = together.experiment.clients.leaving.balance == "lost"
    what, way = ("accuracy", 1.0) if "test_accuracy" in together.tested else ("loss", -1.0)
    rows = []
    for member, mine in clients.items():
        end, by_itself = _own(together.tested, mine), _own(alone.tested, mine)
        then = _own(together.tests[half], mine) if half in together.tests else float("nan")
        had, has = (sum(book.balance(account(c)) for c in mine) / TOKEN for book in (watch.books[half], together.book))
        had = 0.0 if loses_all else had
        joins, leaves = (f"{way * (end - other):+.3f}".replace("+nan", "-") for other in (by_itself, then))
        rows.append((member, f"{by_itself:.3f}", f"{end:.3f}", joins, leaves, f"{has:.2f}", f"{has - had:+.2f}"))
    heads = ("member", "alone", "together", "gains by joining", "loses by leaving at half time")
    tokens = ("tokens at the end", "of these lost by leaving")
    title = f"Who gains ({what} on own test samples; one run: 'hanse statement' has intervals; tokens with the grant)"
    return TextTable((*heads, *tokens), tuple(rows), title)


def _shifts(watch: Shifts, charter: Charter) -> TextTable:
    """Return how far sets of members moved a round's model, and how far they could."""
    why = "no length" if charter.length is None else "half of a round, or weights by updates"
    rows = []
    for count, one in sorted(watch.found.items()):
        bounded = (f"{one.bound:.3g}", f"{one.shift / one.bound:.1%}")
        bounded = bounded if np.isfinite(one.bound) else (f"none: {why}", "-")
        rows.append((str(count), one.who, str(one.round), f"{one.shift:.3g}", *bounded))
    title = "Who could capture a round (a row is the round nearest to its bound; in median lengths of its updates)"
    return TextTable(("members together", "the worst", "round", "shift", "bound", "of the bound"), tuple(rows), title)


def _attacked(experiment: Experiment, clients: Mapping[str, list[int]], together: PlayedRun) -> TextTable:
    """Return the server's last test with and without the charter, by what the largest member does, and its tokens."""
    sizes = {one["client"]: one.get("samples", 0.0) for one in together.clients}
    worst = max(clients, key=lambda member: sum(sizes.get(c, 0.0) for c in clients[member]))
    sections, number = experiment.sections(), next(n for n in METRICS if n in together.metrics[-1])
    bare: dict[str, Any] = {name: section for name, section in sections.items() if name != "charter"}
    bare["mechanism"] = {**sections["mechanism"], "weigh": sections["mechanism"]["weigh"]["of"]}
    rows = []
    for does, (behaviour, options) in {"nothing else": ("", {}), **CHEATS}.items():
        # by another name, a behaviour of the experiment's own is kept beside it
        name = path_of(BEHAVIOURS[behaviour]) if behaviour in experiment.behaviour else behaviour
        acts = {name: {"clients": clients[worst], **options}} if name else {}
        under, without = (
            run(Experiment(**{**one, "behaviour": {**one["behaviour"], **acts}})) if acts or one is bare else together
            for one in (sections, bare)
        )
        tokens = sum(under.book.balance(account(c)) for c in clients[worst]) / TOKEN
        ends = [f"{one.metrics[-1][number]:.3f}" for one in (under, without)]
        rows.append((does, *ends, f"{tokens:.2f}"))
    title = f"What {worst} could do ({number} at the end; one run: 'hanse attack EXP --table' has intervals)"
    return TextTable(("it also", "with the charter", "without", "its tokens with it"), tuple(rows), title)
