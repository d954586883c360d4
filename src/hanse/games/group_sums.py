"""Values of members from values of groups: what can be known of each where only sums of several are seen.

Under secure aggregation a server learns the sum of a group's updates and nothing of its members. A path value
(:mod:`hanse.games.path`) is linear in the update, so the value of a group's sum is the sum of its members' values:

    y_G = <a, sum_{i in G} q_i d_i> = sum_{i in G} phi_i

With groups that are drawn anew every round, members' mean values theta follow from

    y_G = sum_{i in G} theta_i + noise

by least squares over the rounds so far, where the noise is how much members' values change from round to round. A weak
prior, one round of the mean over all members, holds it while there are fewer sums than members. Each round then shares
a group's value among its members by

    phi_i ~ theta_i + (y_G - sum_{j in G} theta_j) / |G|

so that members' values sum to their group's in every round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hanse.games.coalitions import Floats
from hanse.games.gram import Ints

PRIOR = 1.0
"""How many rounds the prior counts as."""
MOST_MEMBERS = 2000
"""Members of which all pairs are counted."""


@dataclass(frozen=True, eq=False)
class Sums:
    """The normal equations of all sums so far, of N members.

    Attributes:
        together: ``[N, N]``, how often two members were in one sum; on the diagonal, how often each was in one.
        totals: ``[N]``, the total of the sums that each was in.
        squares: the sum of the squared sums.
        count: how many sums there were.
        total: the sum of the sums.
    """

    together: Floats
    totals: Floats
    squares: float = 0.0
    count: int = 0
    total: float = 0.0

    @classmethod
    def none(cls, members: int) -> Sums:
        """Return those of no sums."""
        return cls(np.zeros((members, members)), np.zeros(members))

    def and_these(self, groups: Sequence[Ints], sums: Floats) -> Sums:
        """Return the equations with a round's sums added.

        Args:
            groups: the members of each sum.
            sums: the sums, one for each group.
        """
        together, totals = self.together.copy(), self.totals.copy()
        for group, amount in zip(groups, sums, strict=True):
            together[np.ix_(group, group)] += 1.0
            totals[group] += amount
        return Sums(
            together,
            totals,
            self.squares + float(sums @ sums),
            self.count + len(groups),
            self.total + float(sums.sum()),
        )


@dataclass(frozen=True, eq=False)
class Members:
    """What sums tell of members.

    Attributes:
        means: ``[N]``, each member's mean value in a round; the mean of all for who was in no sum.
        errors: ``[N]``, standard errors of the means; NaN while there are too few sums to tell.
        rounds: ``[N]``, in how many sums each member was.
        noise: the standard deviation of a member's value from round to round; NaN while there are too few.
    """

    means: Floats
    errors: Floats
    rounds: Floats
    noise: float


def members(known: Sums, prior: float = PRIOR) -> Members:
    """Return members' mean values by ridge regression towards the mean of all.

    Args:
        known: at least one sum.
        prior: how many rounds the mean of all counts as for each member, above 0.

    Examples:
        Three members, of whom two at a time are summed:

        >>> pairs = [np.array([0, 1]), np.array([1, 2]), np.array([0, 2])]
        >>> known = Sums.none(3).and_these(pairs, np.array([3.0, 5.0, 4.0]))
        >>> members(known, prior=1e-9).means.round(6).tolist()
        [1.0, 2.0, 3.0]
    """
    size = len(known.totals)
    mean = known.total / float(np.trace(known.together))
    inverse = np.linalg.inv(known.together + prior * np.eye(size))
    means = inverse @ (known.totals + prior * mean)
    left = known.squares - 2 * float(means @ known.totals) + float(means @ known.together @ means)
    free = known.count - float(np.sum(inverse * known.together))  # sums less effective parameters
    seats = float(np.trace(known.together)) / known.count
    if free < 1:
        return Members(means, np.full(size, np.nan), np.diag(known.together), math.nan)
    variance = max(left, 0.0) / free  # of a sum of `seats` members
    errors = np.sqrt(variance * np.diag(inverse))
    return Members(means, errors, np.diag(known.together), math.sqrt(variance / seats))


def shares(found: Members, group: Ints, amount: float) -> tuple[Floats, Floats]:
    """Return how a group's value is shared among its members, ``[m]``, and the standard errors ``[m]``.

    A member's errors of all rounds have a part in common, that of its mean. The error given for a round is so large
    that the errors of T rounds, added in squares, are that of T times the mean; for a single round it is too large.
    """
    means = found.means[group]
    worth = means + (amount - float(means.sum())) / len(group)
    return worth, found.errors[group] * np.sqrt(found.rounds[group])
