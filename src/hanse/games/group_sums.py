"""Values of single members, estimated from values of groups.

Under secure aggregation, a server learns only the sum of a group's updates. A path value (:mod:`hanse.games.path`) is
linear in the update. The value of a group's sum is therefore the sum of its members' values:

    y_G = <a, sum_{i in G} q_i d_i> = sum_{i in G} phi_i

With new random groups every round, members' mean values theta follow from

    y_G = sum_{i in G} theta_i + noise

by least squares over the rounds so far, where the noise is the variation of members' values between rounds. A weak
prior, worth one round of the mean over all members, regularises the fit. Each round then divides a group's value among
its members by

    phi_i ~ theta_i + (y_G - sum_{j in G} theta_j) / |G|

so members' values sum to their group's in every round.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hanse.games.game import Floats
from hanse.games.gram import Ints

PRIOR = 1.0
"""The weight of the prior, in rounds."""
MOST_MEMBERS = 2000
"""The most members for which all pairs are counted."""


@dataclass(frozen=True, eq=False)
class Sums:
    """The normal equations of all sums so far, for N members.

    Attributes:
        together: ``[N, N]``, how often two members were in the same sum. The diagonal says how often each was in any
            sum.
        totals: ``[N]``, for each member, the total of the sums that it was in.
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
        """Return the equations of no sums."""
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
        squares, total = self.squares + float(sums @ sums), self.total + float(sums.sum())
        return Sums(together, totals, squares, self.count + len(groups), total)


@dataclass(frozen=True, eq=False)
class MemberValues:
    """The members' values, as estimated from sums.

    Attributes:
        means: ``[N]``, each member's mean value in a round. Members that were in no sum get the overall mean.
        errors: ``[N]``, standard errors of the means; NaN with too few sums.
        rounds: ``[N]``, the number of sums that each member was in.
        noise: the standard deviation of a member's value from round to round; NaN with too few sums.
    """

    means: Floats
    errors: Floats
    rounds: Floats
    noise: float


def members(known: Sums, prior: float = PRIOR) -> MemberValues:
    """Return members' mean values by ridge regression, which pulls them towards the mean of all members.

    Args:
        known: the normal equations of at least one sum.
        prior: the weight of the overall mean for each member, in rounds, above 0.

    Examples:
        There are three members, and two at a time are summed:

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
        return MemberValues(means, np.full(size, np.nan), np.diag(known.together), math.nan)
    variance = max(left, 0.0) / free  # of a sum of `seats` members
    errors = np.sqrt(variance * np.diag(inverse))
    return MemberValues(means, errors, np.diag(known.together), math.sqrt(variance / seats))


def shares(found: MemberValues, group: Ints, amount: float) -> tuple[Floats, Floats]:
    """Divide a group's value among its members: return the shares ``[m]`` and their standard errors ``[m]``.

    A member's errors in different rounds share the error of its mean. The returned errors are too large for a single
    round. They are chosen such that the errors of T rounds, added in quadrature, give the error of T times the mean.
    """
    means = found.means[group]
    worth = means + (amount - float(means.sum())) / len(group)
    return worth, found.errors[group] * np.sqrt(found.rounds[group])
