"""``[federation] private``: the noise that a budget needs, and settings that it excludes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np

from hanse.base.errors import UserError
from hanse.base.factories import call
from hanse.core.recipe import Recipe
from hanse.federation.account import SAT_OUT
from hanse.federation.privacy import InState, Privacy, Stricter
from hanse.learning.job import Problem
from hanse.learning.loop import Loop
from hanse.learning.private_loop import dp_sgd
from hanse.runs.config import Experiment
from hanse.runs.round import LoopState


def private_of(experiment: Experiment, sizes: np.ndarray | None = None) -> Privacy | None:
    """Return the privacy settings with their noise, or None if the clients have none.

    Args:
        experiment: the experiment.
        sizes: ``[N]``, how many samples each client has. None: not known.

    Raises:
        UserError: an option is wrong; delta is so large that it promises nothing; no noise is enough; or the noise
            depends on sizes that are not known.
    """
    given = experiment.federation.private
    if given is None:
        return None
    rule: Privacy = call(Privacy, given, "federation.private")
    clients, recipe = experiment.data.clients if sizes is None else len(sizes), experiment.train.recipe
    rule.bearing(clients, 0 if sizes is None else int(sizes.max(initial=0)))
    share = experiment.mechanism.built.most_seats(clients) / max(1, clients)

    def noise(terms: Privacy, of: Sequence[int], where: str = "federation.private") -> float:
        """Return the noise of some clients' terms, which lasts for whoever of them spends the most."""
        if terms.noise is None and rule.unit == "sample" and sizes is None:
            raise UserError(f"{where}.noise: is required with unit 'sample' on a network")
        held = np.ones(1) if sizes is None else sizes[list(of)]
        # whoever has the fewest samples draws the largest share of them in each step, and spends the most
        one = rule.release(int(held[held > 0].min(initial=2**53)), recipe)
        try:
            return terms.needs(experiment.run.rounds, share, one)
        except UserError as wrong:
            raise UserError(*(f"{where}.{line}" for line in wrong.lines)) from None

    strict = [client for one in rule.stricter for client in one["clients"]]
    if (wrong := max(strict, default=0)) >= clients:
        raise UserError(f"federation.private.stricter: client {wrong}: allowed: 0 to {clients - 1}")
    least = noise(rule, [c for c in range(clients) if c not in strict])
    stricter: list[Stricter] = []
    for at, one in enumerate(rule.stricter):
        terms = replace(rule, epsilon=one["epsilon"], noise=one.get("noise"), stricter=())
        own = noise(terms, one["clients"], f"federation.private.stricter[{at}]")
        stricter.append({**one, "noise": max(least, own)})
    return replace(rule, noise=least, stricter=stricter)


def same_accounting(accounts: InState | None, kept: LoopState) -> None:
    """Check that a simulation that is resumed keeps privacy accounts in the same way as before.

    Budgets may change: the lesser one binds.

    Args:
        accounts: the accounts of the run as its settings are now. None: it has none.
        kept: the run's state.

    Raises:
        UserError: accounts were turned on or off meanwhile, or count otherwise.
    """
    if accounts is None and kept.accounts is not None:
        raise UserError("federation.private: is missing: clients began this run with privacy accounts, and keep them")
    if accounts is not None and kept.accounts is None and kept.round > 0:
        raise UserError("federation.private: this run began without: what its clients sent had no noise; start another")
    units = {one.unit for one in (kept.accounts or {}).values()}
    if accounts is not None and units - {accounts.rule.unit}:
        raise UserError(f"federation.private.unit: '{accounts.rule.unit}': this run's accounts count by {units.pop()}")


def warn_of_budgets(rule: Privacy | None) -> list[str]:
    """Return a line for a budget with which nothing is learned.

    Args:
        rule: the privacy settings with their noise. None: clients have none.
    """
    if rule is None:
        return []
    terms = [(rule.noise, rule.epsilon), *((one.get("noise"), one["epsilon"]) for one in rule.stricter)]
    noise, epsilon = max((noise or 0.0, epsilon) for noise, epsilon in terms)
    if noise <= DROWNED:
        return []
    return [
        f"warning: federation.private.epsilon: {epsilon:g}: adds to each number noise that is {noise:.3g} times as "
        "large as the largest update, so that nothing is learned; 1 is a strong budget already"
    ]


def warn_of_sitting_out(accounts: InState | None, sizes: np.ndarray, recipe: Recipe) -> list[str]:
    """Return a line for each reason why the rest of a privacy budget is too little for even one answer.

    Args:
        accounts: the clients' accounts. None: they have none.
        sizes: ``[N]``, how many samples each client has.
        recipe: how clients train.
    """
    if accounts is None:
        return []
    out: dict[str, list[int]] = {}
    for client, size in enumerate(sizes.tolist()):
        account, one = accounts.of(client), accounts.rule.of(client).update(size, recipe)
        if not account.affords(one):
            out.setdefault(account.refuses(one).removeprefix(f"{SAT_OUT} "), []).append(client)
    return [
        f"warning: federation.private.epsilon: {clients_named(who)} will sit out every round: the budget is {why}"
        for why, who in out.items()
    ]


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


DROWNED = 1e3  # noise, in multiples of the clip


def private_loop(rule: Privacy, problem: Problem, loop: Loop | None) -> Loop | None:
    """Return the training loop that hides single samples; if whole clients are hidden, ``loop`` itself.

    Raises:
        UserError: Opacus is not installed, or cannot train the model.
    """
    if rule.unit == "client" or rule.noise is None:
        return loop
    own = {c: one.get("noise") or rule.noise for one in rule.stricter for c in one["clients"]}
    return dp_sgd(problem, rule.clip, rule.noise, own=own)


def noised(experiment: Experiment, rule: Privacy | None) -> Experiment:
    """Return the experiment with the privacy settings written in, including noise derived from the budget."""
    if rule is None:
        return experiment
    section = experiment.federation.model_copy(update={"private": asdict(rule)})
    return experiment.model_copy(update={"federation": section})
