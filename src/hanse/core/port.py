"""The federation port: everything that a server may ask of its clients, and what they may answer.

Whatever crosses between server and clients is a :class:`Request` with tasks, or a :class:`Reply` with one result per
task. Data never crosses. The questions of one stage travel together, so that a round costs as few exchanges as the
mechanism allows. :class:`Federation` is the protocol of what stands behind the port: clients in this process, on
Flower's network, or in its simulation. What a client reports is filled in by :mod:`hanse.federation.local` for updates
and by :mod:`hanse.federation.answers` for questions, and changed by :mod:`hanse.federation.behaviour` where it lies.

The tasks and their results are :class:`Train` and :class:`Trained`, :class:`Score` and :class:`Scored`,
:class:`Nearest` and :class:`Counted`, :class:`Gradient` and :class:`Derived`, :class:`Confusion` and :class:`Confused`,
:class:`Ask` and :class:`Answered`, :class:`Test` and :class:`Tested`, :class:`CommitSize` and :class:`SizeCommitted`,
:class:`AuditSize` and :class:`SizeAudited`, :class:`Mask` and :class:`Masked`.

The annotated types of the fields are what a value from outside is checked against (:mod:`hanse.core.declared`), bounds
included: a ``Count`` is a whole number from 0 to 2^53, a ``Loss`` a number that float32 can represent. In the shapes, P
is the length of a model's row and C the number of models asked about.
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
    Clip,
    Count,
    Counts,
    Digest,
    Error,
    Figure,
    Loss,
    Losses,
    Name,
    Plain,
    Samples,
    Shaped,
    Units,
)
from hanse.core.payload import Payload


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """A present client.

    Attributes:
        id: 0..N-1, in the order of registration.
        name: what it is called in reports.
        key: what identifies it, whatever it calls itself. Accounts and grants belong to the key.
        num_samples: how many samples it *reports*.
        profile: what else is known of it, such as its cost or role.
    """

    id: int
    name: str
    key: str
    num_samples: int
    profile: Mapping[str, Any] = field(default_factory=dict)


class Roster(tuple[ClientInfo, ...]):
    """The present clients, ascending by id.

    A federation that hands out the same roster again saves making its arrays anew.

    Examples:
        >>> here = [ClientInfo(0, "farm", key="", num_samples=20), ClientInfo(2, "mill", key="", num_samples=5)]
        >>> roster = Roster(here)
        >>> roster.ids, roster[1].name  # the second of those that are here
        (array([0, 2]), 'mill')
    """

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        """The client ids, ``[n]`` int64."""
        return np.array([c.id for c in self], dtype=np.int64)

    @cached_property
    def num_samples(self) -> NDArray[np.int64]:
        """The reported numbers of samples, ``[n]`` int64, in the order of the ids."""
        return np.array([c.num_samples for c in self], dtype=np.int64)


@dataclass(frozen=True)
class Train:
    """Train one seat: minimise ``F(theta) + mu/2 |theta - centre|^2 + <tilt, theta>``, starting from ``start``.

    Attributes:
        seat: the seat's position in the round.
        row: the table row that it starts from. It keys the seat's random stream.
        start: ``[P]``, the model to start from.
        centre: ``[P]``, the model that it is pulled to. None: no pull.
        mu: the strength of the pull.
        tilt: ``[P]``, a linear term of the loss. None: no such term.
        work: how many local epochs, or steps where the recipe counts steps, instead of the recipe's number. None: as
            the recipe says.
        private: whether the row is the client's own. Then neither it nor the update leaves the client.
        payload: tensors and numbers for an extra loss term (:mod:`hanse.core.payload`). The client's half of its name
            adds the term, and the answer must have the extras that it declares.
        before: the client's optimiser steps so far, for recipes that depend on them (:mod:`hanse.core.history`).
        last: the last round in which the client trained. None: it has not.
        clip: the length to which a client with a privacy account shortens its update. None: its account's own.
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
    clip: Clip | None = None


@dataclass(frozen=True)
class OnModels:
    """A question about some models on a share of the client's own samples.

    Attributes:
        name: what the question is called; the answer has the same name.
        models: ``[C, P]``.
        share: "train", "validation" or "test".
        limit: the most samples to use: the first ones of a random order keyed by round and client. None: all.
    """

    name: Name
    models: Tensor
    share: Name = "train"
    limit: Count | None = None


class Score(OnModels):
    """Asks for each model's loss and accuracy."""


class Nearest(OnModels):
    """Asks on how many samples each model has the lowest loss of all; ties count for the first."""


class Gradient(OnModels):
    """Asks for the gradient of each model's mean loss, ``[C, P]``."""


class Confusion(OnModels):
    """Asks for each model's confusion counts, ``[C, classes, classes]`` (true class, predicted class)."""


@dataclass(frozen=True)
class Ask:
    """A question to the client's own policy, such as "bid", "declare" or "stay".

    Models that come with it are scored on the client's own samples before the policy is called. The policy finds the
    scores as ``told["scores"]`` with the lists ``loss`` and ``accuracy`` (one entry a model) and ``num_samples``; they
    stay with the client.

    Attributes:
        name: the question.
        values: plain values for the policy.
        models: ``[C, P]``, models to score first. None: none.
        share: the share of the client's samples to score on.
        limit: the most samples to score on, as in :class:`OnModels`.
    """

    name: Name
    values: Mapping[Name, Plain] = field(default_factory=dict)
    models: Tensor | None = None
    share: Name = "train"
    limit: Count | None = None


@dataclass(frozen=True)
class Mixture:
    """A personal model that a client mixes for itself (PI-FL eq. 4).

    Attributes:
        models: ``[k, P]``, the models to mix, weighted by how well each fits the client's own samples.
        share: the share of these samples; a client without any there takes its train share.
        normalised: whether the weights are divided by their sum.
    """

    models: Tensor
    share: Name = "validation"
    normalised: bool = True


@dataclass(frozen=True)
class Test:
    """Asks to test the model that the client holds on its own test share. It is the only task of its request.

    Attributes:
        model: ``[P]``, the model that the client holds.
        row: the number of a private row that the client holds instead; the row began as ``model``. None: it holds
            ``model``.
        mixture: models that the client mixes, to test the result; ``model`` where all weights are 0. None: no mixture.
        beside: ``[P]``, another model whose accuracy is reported, too. None: no other.
        scored: whether to test at all. If not, the client only makes its mixture.
    """

    __test__ = False  # not one of pytest's

    name: Name
    model: Tensor
    row: Count | None = None
    mixture: Mixture | None = None
    beside: Tensor | None = None
    scored: bool = True


@dataclass(frozen=True)
class CommitSize:
    """Asks for a commitment to the client's distinct samples (:mod:`hanse.data.commitment`)."""

    name: Name


@dataclass(frozen=True)
class AuditSize:
    """Asks to open some leaves of the commitment. Samples do not cross: an auditor looks at them where they are.

    Attributes:
        root: of the commitment that is audited, 64 hexadecimal digits.
        size: how many samples it claims.
        seed: what the leaves were drawn by, 64 hexadecimal digits.
        leaves: the places of the leaves.
    """

    name: Name
    root: Digest
    size: Count
    seed: Digest
    leaves: tuple[Count, ...]


@dataclass(frozen=True)
class Mask:
    """A step of masking an update, so that only a group's sum is seen (:mod:`hanse.federation.masker`).

    Attributes:
        name: "keys", "shares", "sum" or "open".
        values: what the step needs, by name.
        train: the training whose update is masked, in "sum".
    """

    name: Name
    values: Mapping[Name, Plain]
    train: Train | None = None


Task = Train | Score | Nearest | Gradient | Confusion | Ask | Test | CommitSize | AuditSize | Mask


@dataclass(frozen=True)
class Trained:
    """The update of one seat.

    Attributes:
        seat: the seat's position in the round.
        row: ``[P]``, the trained model.
        num_samples: how many samples the client *reports*.
        loss: the mean training loss of the last epoch. None: the client's own training loop does not say.
        steps: the optimiser steps taken.
        extras: tensors by name, exactly those that the task's payload declares.
        metrics: numbers by name that a training loop of the client's own reports.
    """

    seat: Count
    row: Tensor
    num_samples: Samples
    loss: Loss | None
    steps: Count
    extras: Mapping[Name, Tensor] = field(default_factory=dict)
    metrics: Annotated[Mapping[Name, Figure], Field(max_length=MOST_METRICS)] = field(default_factory=dict)


@dataclass(frozen=True)
class Scored:
    """How good each model is on the client's samples.

    Attributes:
        loss: ``[C]``, the mean losses.
        accuracy: ``[C]``, from 0 to 1; NaN where there is no accuracy, as in a regression.
        num_samples: how many samples were used.
    """

    name: Name
    loss: Losses
    accuracy: Accuracies
    num_samples: Count


@dataclass(frozen=True)
class Counted:
    """A number of samples per model.

    Attributes:
        counts: ``[C]`` int64.
    """

    name: Name
    counts: Counts


@dataclass(frozen=True)
class Derived:
    """Loss gradients.

    Attributes:
        gradients: ``[C, P]``, of the mean loss.
        num_samples: how many samples they are the mean of.
    """

    name: Name
    gradients: Annotated[Tensor, Shaped(2)]
    num_samples: Count


@dataclass(frozen=True)
class Confused:
    """Confusion counts.

    Attributes:
        counts: ``[C, classes, classes]`` int64 (true class, predicted class).
    """

    name: Name
    counts: Annotated[Tensor, Shaped(3, (torch.int64,), 0, LARGEST_COUNT)]


@dataclass(frozen=True)
class Answered:
    """What the client's policy said.

    Attributes:
        values: plain values by name.
    """

    name: Name
    values: Mapping[Name, Plain]


@dataclass(frozen=True)
class Tested:
    """What a test found.

    Attributes:
        loss: the mean loss of the model that the client holds. None: there is none.
        accuracy: from 0 to 1. None: there is none.
        num_samples: how many test samples the client has; with 0 there are no figures.
        loss_error: the standard error of the loss.
        accuracy_beside: the accuracy of the other model of the task.
        weights: ``[k]`` float64, those of the client's own mixture, only where client and server are one process. On a
            network they stay with the participant, and a reply that has them is refused.
        metrics: the experiment's metrics by name.
        gaps: for each metric that these samples cannot have, the reason.
        without_block: ``[B]`` float64, the main metric with each of B blocks of the samples left out; NaN where it has
            no value then.
        interval: ``[2]`` float64, the 95 % interval of the main metric; NaN where it is not known.
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
    interval: Annotated[Tensor, Shaped(1, (torch.float64,))] | None = None


@dataclass(frozen=True)
class SizeCommitted:
    """A client's commitment to its distinct samples.

    Attributes:
        root: the root hash of the tree of their keyed tags, 64 hexadecimal digits.
        size: how many there are.
    """

    name: Name
    root: Digest
    size: Count


@dataclass(frozen=True)
class SizeAudited:
    """The ways to the leaves that were asked for, without samples, and the word of who looked at the samples.

    Attributes:
        hashes: ``[4 h]`` int64, the tags and proofs (:func:`hanse.data.commitment.packed`).
        auditor: the auditor's public key (Ed25519), 64 hexadecimal digits. Empty in a simulation, which looks itself.
        signature: the auditor's, 128 hexadecimal digits.
    """

    name: Name
    hashes: Annotated[Tensor, Shaped(1, (torch.int64,))]
    auditor: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    signature: Annotated[str, Field(pattern="^([0-9a-f]{128})?$")] = ""


@dataclass(frozen=True)
class Masked:
    """What a member of a group says in a step of masking.

    Attributes:
        name: of the step.
        values: what it says, by name.
        words: ``[P + 6]`` int64, its update under masks, in "sum"; empty otherwise.
    """

    name: Name
    values: Mapping[Name, Plain]
    words: Annotated[Tensor, Shaped(1, (torch.int64,))]


Result = Trained | Scored | Counted | Derived | Confused | Answered | Tested | SizeCommitted | SizeAudited | Masked
AnyResult = Annotated[
    Annotated[Trained, Tag("Trained")]
    | Annotated[Scored, Tag("Scored")]
    | Annotated[Counted, Tag("Counted")]
    | Annotated[Derived, Tag("Derived")]
    | Annotated[Confused, Tag("Confused")]
    | Annotated[Answered, Tag("Answered")]
    | Annotated[Tested, Tag("Tested")]
    | Annotated[SizeCommitted, Tag("SizeCommitted")]
    | Annotated[SizeAudited, Tag("SizeAudited")]
    | Annotated[Masked, Tag("Masked")],
    Discriminator(lambda result: type(result).__name__),
]


@dataclass(frozen=True)
class Request:
    """Everything that the server asks of one client at one stage of a round.

    Attributes:
        accepted: for each of the client's private rows that ever took an update,
            ``(row, round of the last update that was accepted)``. None: nothing is said about them. It matters only
            where private rows are kept by their owners.

    Examples:
        >>> Request(0, (Ask("bid", {"price": 3}),)).tasks[0].name
        'bid'

        What a round asks of client 2 to train:

        >>> from hanse.rounds.exchange import training
        >>> from hanse.runs.rehearsal import rehearse
        >>> view = rehearse("fedavg").view
        >>> requests = training(view.seats, view.table, None)
        >>> requests[2].client, [type(task).__name__ for task in requests[2].tasks]
        (2, ['Train'])
    """

    client: Count
    tasks: tuple[Task, ...]
    accepted: tuple[tuple[Count, Count], ...] | None = None


@dataclass(frozen=True)
class Arrival:
    """How a reply came, where it did not come at once.

    Attributes:
        seconds: the virtual time that the client took, in a simulation.
        round: the round whose training request it answers. None: this round's.
        open: the client has not answered yet; its reply comes with a later exchange.
    """

    seconds: float = 0.0
    round: Count | None = None
    open: bool = False


@dataclass(frozen=True)
class Closing:
    """When an exchange with training tasks may end before its deadline.

    Attributes:
        enough: as soon as this many sound replies are in. None: when nobody is left to be waited for.
        since: the earliest round whose late replies count towards that number.

    Examples:
        A round that may end as soon as three sound replies of this round (number 5) are in:

        >>> Closing(enough=3, since=5).enough
        3
    """

    enough: int | None
    since: int


@dataclass(frozen=True)
class Reply:
    """A client's answers, which are untrusted.

    :mod:`hanse.federation.check` refuses what is wrong before anything uses it. The last three fields are written by
    the server's side of the port, whatever the client says.

    Attributes:
        results: one per task.
        refused: why there are no results. None: there are.
        authorise: the most that the client agrees to pay this round, in the smallest unit. None: it set no limit.
        bytes_down: how many bytes the request had on the wire.
        bytes_up: how many bytes the reply had.
        arrival: when it came. None: at once.

    Examples:
        >>> import torch
        >>> trained = Trained(seat=0, row=torch.zeros(3), num_samples=20, loss=0.5, steps=2)
        >>> Reply(1, (trained,)).refused is None
        True
        >>> Reply(2, refused="no samples").results
        ()
    """

    client: Count
    results: Annotated[tuple[AnyResult, ...], Field(max_length=4096)] = ()
    refused: Annotated[str, Field(max_length=1000)] | None = None
    authorise: Units | None = None
    bytes_down: Units = 0
    bytes_up: Units = 0
    arrival: Arrival | None = None


class Federation(Protocol):
    """The clients behind the port: in this process, on Flower's network, or in its simulation.

    Examples:
        That of a small experiment, with four clients in this process:

        >>> from hanse.runs.rehearsal import rehearse
        >>> federation = rehearse("fedavg").setup.federation
        >>> federation.present(0).ids
        array([0, 1, 2, 3])
        >>> [reply.client for reply in federation.exchange(0, [Request(1, (Ask("stay", {}),))], None, None)]
        [1]
    """

    def present(self, round: int) -> Roster:
        """Return the clients that can be asked this round, ascending by id.

        Clients that are still training are not among them.
        """

    def exchange(
        self, round: int, requests: Sequence[Request], deadline_s: float | None, closing: Closing | None
    ) -> Sequence[Reply]:
        """Send the requests, and return the replies that came in time, in any order. Silence is no reply.

        Without ``closing`` all clients are waited for until the deadline, and what comes later is lost. With it, an
        answer may come with a later exchange; until then the client is reported as open (see :class:`Arrival`). A
        simulation has all replies at once: it says how long each took and leaves the rest to the loop.

        Args:
            round: the round that is played.
            requests: at most one per client.
            deadline_s: how many seconds to wait. None: no deadline.
            closing: when the exchange may end earlier. None: when all have answered.
        """
