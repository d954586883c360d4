"""``[federation] private`` and ``secure``: the noise that a budget needs, what both exclude, and their guards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np

from hanse.base.errors import UserError
from hanse.base.factories import call
from hanse.core.part import in_slots
from hanse.core.port import Federation
from hanse.core.recipe import Recipe
from hanse.core.table import Ints
from hanse.data.federated import FederatedData
from hanse.learning.job import Problem
from hanse.runs.chance import SAT_OUT, clients_named
from hanse.runs.config import Experiment
from hanse.runs.guards import Guard
from hanse.wings.private.account import PrivacyAccount
from hanse.wings.private.clipping import AdaptiveClip
from hanse.wings.private.privacy import InState, Privacy, Private, Stricter
from hanse.wings.private.private_loop import dp_sgd
from hanse.wings.private.secure_sums import Secured, SecureSums

if TYPE_CHECKING:
    from hanse.learning.loop import Loop


def warn_of_sitting_out(accounts: InState, sizes: np.ndarray, recipe: Recipe) -> list[str]:
    """Return a line for each reason why the rest of a privacy budget is too little for even one answer.

    Args:
        accounts: the clients' accounts.
        sizes: ``[N]``, how many samples each client has.
        recipe: how clients train.
    """
    out: dict[str, list[int]] = {}
    for client, size in enumerate(sizes.tolist()):
        account, one = accounts.of(client), accounts.rule.of(client).update(size, recipe)
        if not account.affords(one):
            out.setdefault(account.refuses(one).removeprefix(f"{SAT_OUT} "), []).append(client)
    return [
        f"warning: federation.private.epsilon: {clients_named(who)} will sit out every round: the budget is {why}"
        for why, who in out.items()
    ]


class PrivateGuard(Guard):
    """Clients that let out only what their privacy accounts allow."""

    terms: Privacy
    accounts: InState | None = None

    def provides(self) -> Mapping[str, str]:
        """Return whether it is clients that are hidden, and not single samples."""
        by_sample = (self.experiment.federation.private or {}).get("unit") == "sample"
        return {} if by_sample else {"federation.private/by client": "federation.private"}

    def settle(self, sizes: Ints | None) -> None:
        """Read the settings, and find the noise that a budget needs.

        Raises:
            UserError: an option is wrong; delta is so large that it promises nothing; no noise is enough; or the noise
                depends on sizes that are not known.
        """
        experiment = self.experiment
        rule: Privacy = call(Privacy, experiment.federation.private or {}, "federation.private")
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
        self.terms = self.noise = replace(rule, noise=least, stricter=stricter)
        if self.terms.quantile is not None:
            self.helpers = {"clipping": AdaptiveClip(self.terms)}

    def trains(self, problem: Problem, loop: Loop | None) -> Loop | None:
        """Return the training loop that hides single samples; if whole clients are hidden, ``loop`` itself.

        Raises:
            UserError: Opacus is not installed, or cannot train the model.
        """
        rule = self.terms
        if rule is None or rule.unit == "client" or rule.noise is None:
            return loop
        own = {c: one.get("noise") or rule.noise for one in rule.stricter for c in one["clients"]}
        return dp_sgd(problem, rule.clip, rule.noise, own=own)

    def written(self, experiment: Experiment) -> Experiment:
        """Return the experiment with the settings written in, including noise derived from the budget."""
        section = experiment.federation.model_copy(update={"private": asdict(self.terms)})
        return experiment.model_copy(update={"federation": section})

    def warns(self, sizes: Ints) -> list[str]:
        """Return lines for budgets with which nothing is learned, or which are too small for one answer."""
        fresh = warn_of_sitting_out(InState(self.terms), sizes, self.experiment.train.recipe)
        return [*self.terms.drowned(), *fresh]

    def clients(self, inner: Federation, data: FederatedData) -> Federation:
        """Return the clients under accounts that are a part of the run's state."""
        self.accounts, run = InState(self.terms), self.experiment
        return Private(inner, self.terms, self.accounts, run.train.recipe, data.sizes, run.run.seed)

    def resumed(self, kept: Mapping[int, PrivacyAccount] | None, round: int, sizes: Ints) -> list[str]:
        """Go on from kept accounts. Budgets may change: the lesser one binds.

        Raises:
            UserError: the run began without accounts, or they count otherwise.
        """
        if kept is None and round > 0:
            raise UserError(
                "federation.private: this run began without: what its clients sent had no noise; start another"
            )
        if units := {one.unit for one in (kept or {}).values()} - {self.terms.unit}:
            raise UserError(f"federation.private.unit: '{self.terms.unit}': this run's accounts count by {units.pop()}")
        if self.accounts is None:  # those of a network keep their own
            return []
        self.accounts.accounts = kept or {}
        return warn_of_sitting_out(self.accounts, sizes, self.experiment.train.recipe)


class SecureGuard(Guard):
    """Updates of which the server sees only sums over groups."""

    terms: SecureSums

    def settle(self, sizes: Ints | None) -> None:
        """Read which updates are summed together.

        Groups stay the same unless members' values need changing ones, because sums of changing groups reveal a
        member's mean update.

        Raises:
            UserError: an option is wrong, or a group has more members than train in a round.
        """
        mechanism, given = self.experiment.mechanism.built, self.experiment.federation.secure or {}
        valued = mechanism.value is not None and "secure" in in_slots(mechanism.value.needs, ["value"])
        self.terms = call(SecureSums, {"regroup": valued, **given}, "federation.secure")
        self.groups = self.terms.groups
        if sizes is not None and self.terms.group > (seats := mechanism.most_seats(len(sizes))):
            raise UserError(f"federation.secure.group: {self.terms.group}: above the seats of a round, {seats}")

    def warns(self, sizes: Ints) -> list[str]:
        """Return a warning if groups change, although members' values do not need it."""
        seats = self.experiment.mechanism.built.most_seats(len(sizes))
        if self.terms.regroup or seats >= len(sizes):
            return []
        return [
            f"warning: federation.secure: {seats} of {len(sizes)} clients train in a round, so groups change, and "
            "after about ten rounds their sums reveal each client's mean update (docs/threat-model.md): let all train "
            "in every round"
        ]

    def server(self, inner: Federation) -> Federation:
        """Return the federation whose updates are sums; on a network, of what members send under masks."""
        if not self.remote:
            return Secured(inner, self.terms, self.experiment.run.seed)
        from hanse.wings.private.masked_sums import MaskedSums  # here, since it takes the package cryptography

        return MaskedSums(inner, self.terms, self.experiment.run.seed)
