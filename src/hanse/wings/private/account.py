"""A client's privacy account: what its answers have cost so far, and whether one more fits into the budget.

Every noised answer is a :class:`Release` of the Gaussian mechanism. A :class:`PrivacyAccount` counts releases and says
which epsilon they add up to at its delta. The composition of costs is computed by Google's dp-accounting. Gaussians
compose to one Gaussian, whose epsilon is exact (Balle, Wang 2018, theorem 8). With subsampled ones, the privacy loss
distribution is convolved (PLD). :class:`AccountFile` keeps an account in a participant's folder.

The choice of clients amplifies nothing, because the server makes that choice and knows it. Only samples that a client
itself draws for its steps amplify privacy, because nobody else knows which these are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hanse.base.errors import UserError
from hanse.base.errors import library as optional
from hanse.base.factories import SomeShare
from hanse.base.files import private_folder, write_whole
from hanse.base.lock import locked
from hanse.core.declared import Declared
from hanse.runs.chance import SAT_OUT

GRID = 1e-3
"""Width of the steps of the PLD's privacy losses; epsilon is rounded up by less than that for each composition."""
MOST_NOISE = 1e6
"""The most noise that is looked for, over what is hidden."""
MOST_STEPS = 10**6
"""How many subsampled steps can be accounted for: more take too much memory, and are never afforded."""
KEPT = 64
"""How many digests of answers are kept: the same bytes again cost nothing."""
NEEDS = "needs dp-accounting; pip install '.[private]' in a clone of hanse"

Unit = Literal["client", "sample"]


@dataclass(frozen=True, order=True)
class Release:
    """What a client releases at once.

    Attributes:
        noise: the standard deviation of the noise over what one client (or one sample) can change.
        rate: the share of the samples that each step draws at random. 1: all samples.
        steps: how many such steps there are.
    """

    noise: Annotated[float, Field(gt=0, le=1e9)]
    rate: SomeShare = 1.0
    steps: Annotated[int, Field(ge=1, le=10**9)] = 1


Counted = tuple[tuple[Release, Annotated[int, Field(ge=1, le=10**12)]], ...]


def library() -> Any:
    """Return the module ``dp_accounting``. Raises UserError if it is not installed."""
    return optional("dp_accounting", f"federation.private: {NEEDS}")


@lru_cache(maxsize=4096)
def spent(releases: Counted, delta: float) -> float:
    """Return the epsilon that all releases have cost together, or infinity if no finite epsilon goes with ``delta``.

    Args:
        releases: each release, with how often it was made.
        delta: above 0 and below 1.

    Examples:
        >>> round(spent(((Release(2.0), 10),), 1e-5), 2)  # ten answers with twice the noise of what they hide
        7.51
    """
    dp = library()
    if all(one.rate == 1 for one, _ in releases):
        with np.errstate(divide="ignore"):  # of two terms whose difference is below what a float can hold
            return float(dp.get_epsilon_gaussian(_together(releases) ** -0.5, delta)) if releases else 0.0
    if sum(many * one.steps for one, many in releases if one.rate < 1) > MOST_STEPS:
        return math.inf
    from dp_accounting.pld import PLDAccountant

    return float(PLDAccountant(value_discretization_interval=GRID).compose(_event(releases)).get_epsilon(delta))


def _together(releases: Counted) -> float:
    """Return ``1 / noise^2`` of the one Gaussian that all releases without subsampling are together."""
    return sum(many * one.steps / one.noise**2 for one, many in releases if one.rate == 1)


def _event(releases: Counted) -> Any:
    """Return the releases as an event of dp-accounting."""
    dp = library()
    plain = _together(releases)
    events = [dp.GaussianDpEvent(plain**-0.5)] if plain else []
    for one, many in releases:
        if one.rate < 1:
            sampled = dp.PoissonSampledDpEvent(one.rate, dp.GaussianDpEvent(one.noise))
            events.append(dp.SelfComposedDpEvent(sampled, many * one.steps))
    return dp.ComposedDpEvent(events)


@dataclass(frozen=True)
class PrivacyAccount:
    """What a client may spend, and what it has spent.

    Attributes:
        epsilon: the budget.
        delta: the chance with which the budget may be exceeded.
        unit: what is hidden: the whole "client", or one "sample" of the client.
        releases: what was given out so far, each release with how often it was made.
        sent: digests of the last answers.

    Examples:
        >>> mine = PrivacyAccount(epsilon=8.0, delta=1e-5)
        >>> answer = [Release(noise=2.0)]
        >>> mine.affords(answer * 11), mine.affords(answer * 12)
        (True, False)
        >>> round(mine.charged(answer * 11).spent, 2)
        7.96
    """

    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    unit: Unit = "client"
    releases: Counted = ()
    sent: tuple[str, ...] = ()

    @property
    def spent(self) -> float:
        """The epsilon that was spent so far."""
        return spent(self.releases, self.delta)

    def affords(self, releases: Sequence[Release]) -> bool:
        """Return whether these releases fit into what is left."""
        return not releases or self.charged(releases).spent <= self.epsilon

    def charged(self, releases: Sequence[Release], digest: str = "") -> PrivacyAccount:
        """Return the account after these releases.

        Args:
            releases: what is given out.
            digest: the digest of the answer that contains them. If that answer was sent before, nothing is charged.
        """
        if digest and digest in self.sent:
            return self
        counts = dict(self.releases)
        for one in releases:
            counts[one] = counts.get(one, 0) + 1
        sent = (*self.sent, digest)[-KEPT:] if digest else self.sent
        return replace(self, releases=tuple(sorted(counts.items())), sent=sent)

    def within(self, epsilon: float, delta: float) -> PrivacyAccount:
        """Return the account with the lesser of its own terms and these."""
        return replace(self, epsilon=min(self.epsilon, epsilon), delta=min(self.delta, delta))

    def refuses(self, releases: Sequence[Release]) -> str:
        """Return why an answer with these releases, which the account does not afford, is refused."""
        if self.releases:
            return (
                f"{SAT_OUT} used up: epsilon {self.spent:.4g} of {self.epsilon:g} at delta {self.delta:g} is spent, "
                "and one more answer would exceed it"
            )
        cost = self.charged(releases).spent
        costs = f"costs {cost:.4g}" if math.isfinite(cost) else "has no finite cost"
        return (
            f"{SAT_OUT} too small for one answer: epsilon {self.epsilon:g} at delta {self.delta:g}, and one {costs}; "
            "needs more noise, fewer steps a round, or a larger epsilon"
        )


def noise_for(account: PrivacyAccount, releases: Sequence[Release]) -> float:
    """Return, to one part in a thousand, the least noise with which an account can afford these releases.

    Args:
        account: the account, with its budget and its other releases.
        releases: what is to be released. The releases' own noise is not read.

    Raises:
        UserError: no noise up to 1e6 is enough; the line begins with the option's name.

    Examples:
        >>> round(noise_for(PrivacyAccount(8.0, 1e-5), [Release(1.0)] * 10), 2)  # ten answers
        1.9
    """

    def after(noise: float) -> PrivacyAccount:
        return account.charged([replace(one, noise=noise) for one in releases])

    def fits(noise: float) -> bool:
        return after(noise).spent <= account.epsilon

    high = 1.0
    while not fits(high):
        if high == MOST_NOISE:
            raise UserError(
                f"epsilon: {account.epsilon:g}: no noise up to {MOST_NOISE:g} is enough at delta "
                f"{account.delta:g}; must be above {after(MOST_NOISE).spent:.3g}"
            )
        high = min(2 * high, MOST_NOISE)
    while high > 0.01 and fits(high / 2):
        high /= 2
    low = high / 2
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


_ACCOUNT = Declared[PrivacyAccount](PrivacyAccount)


def account_from(kept: Mapping[str, Any]) -> PrivacyAccount:
    """Return the account that plain values describe, as ``dataclasses.asdict`` makes them.

    Raises:
        UnsoundError: the values do not describe an account.
    """
    return _ACCOUNT.read(json.dumps(kept))


@dataclass(frozen=True)
class AccountFile:
    """An account in a participant's own file, which outlives runs, restarts and kills.

    Attributes:
        path: the file. Its lock is a file next to it while it is used.
    """

    path: Path

    def read(self) -> PrivacyAccount | None:
        """Return the account, or None if there is none yet.

        Raises:
            UserError: the file is damaged. Nothing may be answered then, since what was spent is not known.
        """
        if not self.path.exists():
            return None
        return _ACCOUNT.of_file(self.path, says="the privacy account cannot be read: {}")

    def write(self, account: PrivacyAccount) -> None:
        """Write the account, whole and through to the disk, readable by this user alone."""
        write_whole(self.path, json.dumps(asdict(account)), durable=True, private=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from using the account, because two nodes in one folder share its budget."""
        private_folder(self.path.parent)
        with locked(self.path.with_suffix(".lock")):
            yield
