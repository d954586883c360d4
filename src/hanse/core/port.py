"""The federation port: what a server may ask of its clients, and all that it may ask.

Everything that crosses is a ``Request`` with tasks or a ``Reply`` with one result a task. Data never crosses. Questions
of one stage travel together, so that a round costs as few exchanges as the mechanism allows.

The fields' types are what a value is held against when it comes from outside (:mod:`hanse.core.declared`), bounds
included: a ``Count`` is a whole number from 0 to 2^53, a ``Loss`` a number that float32 has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag
from torch import Tensor

from hanse.core.declared import (
    LARGEST_COUNT,
    MOST_METRICS,
    Accuracies,
    Accuracy,
    Count,
    Counts,
    Error,
    Figure,
    Loss,
    Losses,
    Metric,
    Name,
    Plain,
    Samples,
    Shaped,
    Units,
)
from hanse.core.payload import Payload


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """A present client: ``id`` 0..N-1 by registration, display name, key, *reported* number of samples, profile."""

    id: int
    name: str
    key: str
    num_samples: int
    profile: Mapping[str, Any] = field(default_factory=dict)


class Roster(tuple[ClientInfo, ...]):
    """The present clients by ascending id. A federation that hands out the same roster again saves its arrays too."""

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        """Client ids ``[n]``."""
        return np.array([c.id for c in self], dtype=np.int64)

    @cached_property
    def num_samples(self) -> NDArray[np.int64]:
        """Reported numbers of samples ``[n]``, in the order of the ids."""
        return np.array([c.num_samples for c in self], dtype=np.int64)


@dataclass(frozen=True)
class Train:
    """Train one seat from ``start [P]``: ``F(theta) + mu/2 |theta - centre|^2 + <tilt, theta>``.

    ``private`` says that the row is the client's own: neither it nor the update leaves the client, so nothing is sent.
    ``seat`` is the seat's position in the round and ``row`` the table row it starts from (it keys the seat's random
    stream). ``work`` replaces the number of local epochs (or of steps, where the recipe counts steps); ``None`` keeps
    it. With a ``payload`` the client's half of that name adds a term to the loss, and the answer has the extras that it
    declares (:mod:`hanse.learning.halves`). ``before`` and ``last`` are the client's optimiser steps so far and the
    last round in which it trained (None: none), for recipes that depend on them (:mod:`hanse.core.history`).
    """

    seat: Count
    row: Count
    start: Tensor
    centre: Tensor | None = None
    mu: float = 0.0
    tilt: Tensor | None = None
    work: Count | None = None
    private: bool = False
    payload: Payload | None = None
    before: Count = 0
    last: Count | None = None


@dataclass(frozen=True)
class OnModels:
    """A question named ``name`` about ``models [C, P]`` on a share: "train", "validation" or "test".

    ``limit`` bounds the samples used (the first ``limit`` of a random order keyed by round and client).
    """

    name: Name
    models: Tensor
    share: Name = "train"
    limit: Count | None = None


class Score(OnModels):
    """Report the loss and accuracy of each of ``models [C, P]``."""


class Nearest(OnModels):
    """Report on how many samples each of ``models [C, P]`` has the lowest loss of all (ties: the first)."""


class Gradient(OnModels):
    """Report the mean loss gradient ``[C, P]`` of ``models [C, P]``."""


class Confusion(OnModels):
    """Report the confusion counts ``[C, classes, classes]`` (true, predicted) of ``models [C, P]``."""


@dataclass(frozen=True)
class Ask:
    """Ask the client's own policy a named question ("bid", "declare", "stay"), with plain values and models.

    Models ``[C, P]`` are scored on the client's own ``share`` (``limit`` as in :class:`OnModels`) before the policy is
    called, and it finds ``told["scores"]``: ``loss`` and ``accuracy`` (lists, one a model) and ``num_samples``. These
    stay with the client.
    """

    name: Name
    values: Mapping[Name, Plain] = field(default_factory=dict)
    models: Tensor | None = None
    share: Name = "train"
    limit: Count | None = None


@dataclass(frozen=True)
class Mixture:
    """A personal model that a client mixes for itself of ``models [k, P]``, weighted by how well each fits its own
    ``share`` of samples (without any there: its train share), the weights ``normalised`` to sum to 1 (PI-FL eq. 4).
    """

    models: Tensor
    share: Name = "validation"
    normalised: bool = True


@dataclass(frozen=True)
class Test:
    """Test the model that the client holds on its own test share. A test is the only task of its request.

    That is ``model [P]`` as it is sent; with ``row`` the client's private row of that number, which began as ``model``;
    with a ``mixture`` the model that the client mixes for itself (``model`` where all weights are 0). Of ``beside [P]``
    the accuracy is reported, too. Unless it is ``scored``, the client makes its mixture and tests nothing.
    """

    __test__ = False  # not one of pytest's

    name: Name
    model: Tensor
    row: Count | None = None
    mixture: Mixture | None = None
    beside: Tensor | None = None
    scored: bool = True


Task = Train | Score | Nearest | Gradient | Confusion | Ask | Test


@dataclass(frozen=True)
class Trained:
    """One seat's update: ``row [P]``, *reported* samples, mean loss of the last epoch (None: a training loop of the
    client's own that does not say), steps, named extras (those that the task's payload declares, no others), and the
    ``metrics`` that such a loop reports.
    """

    seat: Count
    row: Tensor
    num_samples: Samples
    loss: Loss | None
    steps: Count
    extras: Mapping[Name, Tensor] = field(default_factory=dict)
    metrics: Annotated[Mapping[Name, Metric], Field(max_length=MOST_METRICS)] = field(default_factory=dict)


@dataclass(frozen=True)
class Scored:
    """Mean ``loss`` and ``accuracy`` (0 to 1; NaN: there is none) of each model (``[C]``) on ``num_samples`` of its
    samples.
    """

    name: Name
    loss: Losses
    accuracy: Accuracies
    num_samples: Count


@dataclass(frozen=True)
class Counted:
    """Numbers of samples ``[C]`` int64, one a model."""

    name: Name
    counts: Counts


@dataclass(frozen=True)
class Derived:
    """Gradients ``[C, P]`` and the number of samples behind them."""

    name: Name
    gradients: Annotated[Tensor, Shaped(2)]
    num_samples: Count


@dataclass(frozen=True)
class Confused:
    """Confusion counts ``[C, classes, classes]`` int64."""

    name: Name
    counts: Annotated[Tensor, Shaped(3, (torch.int64,), 0, LARGEST_COUNT)]


@dataclass(frozen=True)
class Answered:
    """What the client's policy said: plain values by name."""

    name: Name
    values: Mapping[Name, Plain]


@dataclass(frozen=True)
class Tested:
    """Mean ``loss`` of the model that the client holds, its ``accuracy`` (None: there is none) and the standard error
    of the loss, on ``num_samples`` test samples (0: no figure at all), and the ``accuracy_beside`` of the other model.

    ``metrics`` are the experiment's, by name; of those that its samples cannot have ``gaps`` say why. ``without_block
    [B]`` is the main one with each block of the samples left out (NaN: it has no value then).

    ``weights [k]`` of the client's own mixture are there where it lives in the server's process; on a network they stay
    with the participant, and a reply that has them is refused.
    """

    __test__ = False  # not one of pytest's

    name: Name
    loss: Loss | None
    accuracy: Accuracy | None
    num_samples: Count
    loss_error: Error | None = None
    accuracy_beside: Accuracy | None = None
    weights: Annotated[Tensor, Shaped(1, (torch.float64,))] | None = None
    metrics: Mapping[Name, Figure] = field(default_factory=dict)
    gaps: Mapping[Name, Name] = field(default_factory=dict)
    without_block: Annotated[Tensor, Shaped(1, (torch.float64,))] | None = None


Result = Trained | Scored | Counted | Derived | Confused | Answered | Tested
AnyResult = Annotated[
    Annotated[Trained, Tag("Trained")]
    | Annotated[Scored, Tag("Scored")]
    | Annotated[Counted, Tag("Counted")]
    | Annotated[Derived, Tag("Derived")]
    | Annotated[Confused, Tag("Confused")]
    | Annotated[Answered, Tag("Answered")]
    | Annotated[Tested, Tag("Tested")],
    Discriminator(lambda result: type(result).__name__),
]


@dataclass(frozen=True)
class Request:
    """Everything that the server asks one client at one stage of a round.

    ``accepted`` says what became of the client's private rows: (row, round of its last update that was accepted), rows
    without any left out. None says nothing of them. It is heeded where private rows lie with their owners.
    """

    client: Count
    tasks: tuple[Task, ...]
    accepted: tuple[tuple[Count, Count], ...] | None = None


@dataclass(frozen=True)
class Arrival:
    """How a reply came, where that is not at once: ``seconds`` of virtual time that the client took (in a simulation);
    the ``round`` whose training request it answers (None: this round's). ``open``: the client has not answered yet, and
    its reply comes with a later exchange.
    """

    seconds: float = 0.0
    round: Count | None = None
    open: bool = False


@dataclass(frozen=True)
class Closing:
    """When an exchange with training tasks ends before its deadline: once ``enough`` sound replies are in (None: when
    nobody is left to be waited for). Replies to earlier rounds count too, from round ``since`` on.
    """

    enough: int | None
    since: int


@dataclass(frozen=True)
class Reply:
    """A client's answers. ``refused`` says why there are none; ``authorise`` is the most it agrees to pay this round.

    A reply is untrusted input: :mod:`hanse.federation.check` refuses what is wrong before anything uses it.
    ``bytes_down`` and ``bytes_up`` count what the request and the reply weighed on the wire, ``arrival`` says when it
    came; the server's side of the port writes these, whatever the client says.
    """

    client: Count
    results: Annotated[tuple[AnyResult, ...], Field(max_length=4096)] = ()
    refused: Annotated[str, Field(max_length=1000)] | None = None
    authorise: Units | None = None
    bytes_down: Units = 0
    bytes_up: Units = 0
    arrival: Arrival | None = None


class Federation(Protocol):
    """One engine behind the port: clients in this process, on Flower's network, or in its simulation."""

    def present(self, round: int) -> Roster:
        """Return the clients that can be asked this round, by ascending id: not those that still train."""

    def exchange(
        self, round: int, requests: Sequence[Request], deadline_s: float | None, closing: Closing | None
    ) -> Sequence[Reply]:
        """Send each request, return the replies that came in time, in any order; silence is no reply.

        Without ``closing`` all are waited for, or the deadline, and what comes later is lost. With it an answer may
        come with a later exchange: until then its client is said to be open (see :class:`Arrival`). A simulation, where
        all replies are there at once, says how long each took, and leaves the rest to the loop.
        """
