"""Guards: what wings put between a run's clients and its server, by the settings that ask for it.

A wing names a :class:`Guard` for a setting as ``Wing(names={"guards": {setting: path}})``: a key of a section, such as
"sizes.proved", or a section of its own. The core knows neither their options nor what they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from hanse.base.errors import UserError
from hanse.base.wings import Names, absent
from hanse.core.calling import States
from hanse.core.part import Helper, Judge, Most
from hanse.core.port import Federation
from hanse.core.table import Ints
from hanse.data.federated import FederatedData
from hanse.federation.wrapped import NoiseTerms
from hanse.learning.job import Problem
from hanse.runs.config import Experiment

if TYPE_CHECKING:
    from hanse.learning.loop import Loop

BY_WINGS = ("federation.private", "federation.secure")  # settings of the core's sections that wings read
T = TypeVar("T")


class Accounts(Protocol):
    """What a simulation's clients keep from round to round.

    Attributes:
        accounts: by client; the loop sets them before a round and takes them after it.
    """

    accounts: Mapping[int, Any]

    def opened(self, clients: int) -> Mapping[int, Any]:
        """Return them before round 0, for so many clients."""


def only(found: Iterable[T | None]) -> T | None:
    """Return the first of these that is not None. Of what guards bring, there is one at most."""
    return next((one for one in found if one is not None), None)


class Guard:
    """What a setting puts around a run's clients. This one changes nothing: override what you need.

    Args:
        experiment: the experiment, which has the setting.
        remote: whether the clients are on a network.

    Attributes:
        terms: the setting's options, checked, once :meth:`settle` has read them.
        noise: the run's terms on noise. None: it has none.
        groups: ``groups(seed, clients, round)`` says whose updates reach the server as one sum. None: it sees each.
        accounts: what a simulation's clients keep from round to round, once :meth:`clients` made it. None: nothing.
        helpers: what runs alongside the mechanism's parts, by the key of its state (:class:`hanse.core.part.Helper`).
        agreement: the hash of what members agreed to, for rounds and receipts of a simulation. "": nothing.
        answers: the kinds of questions that anybody answers, which a node then refuses to go beyond. None: any.
    """

    groups: Callable[[int, Ints, int], list[Ints]] | None = None
    noise: NoiseTerms | None = None
    accounts: Accounts | None = None
    agreement: str = ""
    answers: Sequence[str] | None = None
    helpers: Mapping[str, Helper] = {}

    def __init__(self, experiment: Experiment, remote: bool = False) -> None:
        self.experiment, self.remote = experiment, remote
        self.terms: Any = None

    def provides(self) -> Mapping[str, str]:
        """Return words that hold with the setting, each with what a line about it begins with
        (:mod:`hanse.mechanisms.fits`).
        """
        return {}

    def settle(self, sizes: Ints | None) -> None:
        """Read the options, for clients with so many samples ``[N]`` (None: not known). Raises UserError."""

    def trains(self, problem: Problem, loop: Loop | None) -> Loop | None:
        """Return the training loop; None: hanse's training is used. Raises UserError."""
        return loop

    def written(self, experiment: Experiment) -> Experiment:
        """Return the experiment with the options that follow from others."""
        return experiment

    def warns(self, sizes: Ints) -> list[str]:
        """Return warnings before round 0; ``sizes [N]`` are the clients' numbers of samples."""
        return []

    def clients(self, inner: Federation, data: FederatedData) -> Federation:
        """Return a simulation's clients, which hold ``data``, as they answer: wrapped, next to the clients themselves.

        Raises UserError if the guard does not go with these clients.
        """
        return inner

    def server(self, inner: Federation) -> Federation:
        """Return the federation as the server sees it: wrapped last."""
        return inner

    def judge(self, judge: Judge, round: int) -> Judge:
        """Return who judges a round's models on the server's samples."""
        return judge

    def leaves(self, client: int, states: States) -> tuple[int, States]:
        """Return how many units in escrow a client that leaves gets back, and the parts' states without it. It is asked
        where bonds are returned (``[clients] exit``).
        """
        return 0, states

    def questions(self) -> Sequence[tuple[str, Most]]:
        """Return the most that its helpers ask one client in a round, by kind of question, as
        :meth:`hanse.core.part.Part.questions` does for parts.
        """
        return ()

    def resumed(self, kept: Mapping[int, Any] | None, round: int, sizes: Ints) -> Sequence[str]:
        """Go on from the accounts in a checkpoint, and return warnings. Raises UserError if they do not fit."""
        return ()


GUARDS: Mapping[str, type[Guard]] = Names({}, "guards")
ACCOUNTS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = Names({}, "accounts")
"""By a guard's key, what makes a client's account from its plain values in a checkpoint; it raises UnsoundError."""


def asked(experiment: Experiment) -> list[str]:
    """Return the settings of an experiment for which wings have guards, also where such a wing is missing.

    A guard goes around those before it: a section of a wing's own, such as a charter, around keys of others.
    """

    def given(setting: str) -> bool:
        section, _, key = setting.partition(".")
        value = getattr(experiment, section, None)
        return (getattr(value, key, None) if key else value) not in (None, False)

    settings = sorted({*GUARDS, *BY_WINGS}, key=lambda setting: ("." in setting, setting), reverse=True)
    return [setting for setting in settings if given(setting)]


def guards_of(experiment: Experiment, remote: bool = False) -> dict[str, Guard]:
    """Return the guards that an experiment asks for, by setting; ``remote``: for clients on a network. Raises UserError
    if there is no wing for one of them.
    """
    settings = asked(experiment)
    if lost := [setting for setting in settings if setting not in GUARDS]:
        raise UserError(*(f"{setting}: needs a wing{absent() or ', and none reads it'}" for setting in lost))
    return {setting: GUARDS[setting](experiment, remote) for setting in settings}


def settled(experiment: Experiment, sizes: np.ndarray | None = None) -> dict[str, Guard]:
    """Return the guards of an experiment with their options read. Raises UserError."""
    found = guards_of(experiment)
    for guard in found.values():
        guard.settle(sizes)
    return found


def completed(experiment: Experiment) -> Experiment:
    """Return an experiment as participants are told it, with the options that follow from others."""
    for guard in settled(experiment).values():
        experiment = guard.written(experiment)
    return experiment


def restored(kept: Mapping[str, Any]) -> dict[int, Any]:
    """Return the accounts in a checkpoint by client. Raises UserError if there is no wing for them."""
    if (account := only(ACCOUNTS.values())) is None:
        raise UserError(f"this checkpoint has accounts of clients: needs a wing{absent()}")
    return {int(client): account(one) for client, one in kept.items()}
