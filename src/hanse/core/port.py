"""The federation port: everything that a server may ask of its clients, and what they may answer.

Whatever crosses between server and clients is a :class:`Request` with tasks, or a :class:`Reply` with one result per
task. Data never crosses. The questions of one stage travel together, which keeps the number of exchanges small.
:class:`Federation` is the protocol of whatever is behind the port: clients in this process, or on
Flower's network. Clients' updates are filled in by :mod:`hanse.federation.local`, their answers by
:mod:`hanse.federation.answers`. For clients that lie, :mod:`hanse.federation.behaviour` falsifies both.

Each task has a class for its result: :class:`Train` and :class:`Trained`, :class:`Score` and :class:`Scored`,
:class:`Nearest` and :class:`Counted`, :class:`Gradient` and :class:`Derived`, :class:`Confusion` and :class:`Confused`,
:class:`Ask` and :class:`Answered`, :class:`Test` and :class:`Tested`, :class:`CommitSize` and :class:`SizeCommitted`,
:class:`AuditSize` and :class:`SizeAudited`, :class:`Mask` and :class:`Masked`.

Values from outside are checked against the annotated types of the fields (:mod:`hanse.core.declared`), which include
bounds: a ``Count`` is a whole number from 0 to 2^53, and a ``Loss`` is a number that float32 can represent. In the
shapes, P is the length of a model's row, and C is the number of models that the question is about.

FedGen sends its clients a :class:`Payload` with their training, by which they add a term to the loss of each batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Union, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag
from pydantic_core import PydanticCustomError, core_schema

from hanse.base.factories import Weight
from hanse.base.pytorch import Tensor, torch
from hanse.core.declared import (
    LARGEST_COUNT,
    MOST_METRICS,
    Accuracy,
    Clip,
    Count,
    Digest,
    Error,
    Figure,
    Loss,
    Name,
    Plain,
    Samples,
    Units,
)

CROSSING = ("float32", "float64", "int64")  # the types that a message carries


def _short(dtype: torch.dtype) -> str:
    """Return a type's name without the prefix "torch."."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Shaped:
    """Bounds on a tensor, as an annotation: ``Annotated[Tensor, Shaped(1, low=0, high=1)]``.

    NaN is within all bounds: it marks a number that does not exist, such as the accuracy of a regression.

    Attributes:
        dims: how many dimensions the tensor has.
        dtypes: the types that are allowed.
        low: the least number. None: no bound.
        high: the largest number. None: no bound.
    """

    dims: int
    dtypes: tuple[str, ...] = ("float32", "float64")
    low: float | None = None
    high: float | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Return how pydantic validates it: an instance of a tensor, then :meth:`check`."""
        return core_schema.no_info_after_validator_function(self.check, core_schema.is_instance_schema(Tensor))

    def check(self, tensor: Tensor) -> Tensor:
        """Return the tensor if it is as declared. Raises PydanticCustomError with what is allowed."""
        if tensor.ndim != self.dims or _short(tensor.dtype) not in self.dtypes:
            text = f"must be {' or '.join(self.dtypes)} with {self.dims} dimension{'s' * (self.dims > 1)}"
            raise PydanticCustomError("tensor", "{said}", {"said": text})
        for bound, outside, word in ((self.low, torch.lt, "at least"), (self.high, torch.gt, "at most")):
            if bound is not None and bool(outside(tensor, bound).any()):
                raise PydanticCustomError("tensor", "{said}", {"said": f"must be {word} {bound:g} everywhere"})
        return tensor


# scores may be NaN or infinite, as those of a model that has diverged are: whatever uses them must bear that
Losses = Annotated[Tensor, Shaped(1)]
Accuracies = Annotated[Tensor, Shaped(1, low=0, high=1)]
Counts = Annotated[Tensor, Shaped(1, ("int64",), 0, LARGEST_COUNT)]


_Whole = Annotated[int, Field(ge=1, le=2**31 - 1)]


@dataclass(frozen=True)
class Payload:
    """A generator that the server sends with a training task (FedGen, :mod:`hanse.learning.generator`).

    The client draws latents from it, on which it trains its model's last layer, too, and reports with its update how
    often each label was met, as the extra :data:`MET`.

    Attributes:
        row: the generator's numbers, ``[size]``.
        labels: the probabilities by which a client draws labels, ``[classes]``.
        classes: how many labels there are.
        latent: the width of a latent.
        noise: how many numbers of noise go in.
        hidden: the width between the generator's layers.
        batch: how many latents are drawn at each step.
        alpha: the weight of the term that trains the last layer.
        beta: the weight of the term that pulls the model's answers. With both 0, training is plain.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("fedgen", model={"name": "mlp", "hidden": [8]}, rounds=2).before("train")
        >>> part.sends(view, state).labels.shape
        torch.Size([10])
    """

    row: Annotated[Tensor, Shaped(1, ("float32",))]
    labels: Annotated[Tensor, Shaped(1, ("float64",), 0, 1)]
    classes: _Whole
    latent: _Whole
    noise: _Whole
    hidden: _Whole
    batch: _Whole
    alpha: Weight
    beta: Weight


MET = "label_counts"  # an extra of an update: how often each label was met in training, int64 ``[classes]``


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """A present client.

    Attributes:
        id: the client's id, 0..N-1, in the order of registration.
        name: the client's name in reports.
        key: the client's identity, independent of its name. Accounts and grants belong to the key.
        num_samples: how many samples it *reports*.
        profile: other known properties, such as its cost or role.
    """

    id: int
    name: str
    key: str
    num_samples: int
    profile: Mapping[str, Any] = field(default_factory=dict)

    def member(self, members: Mapping[str, str]) -> str:
        """Return the member that ``members`` names for the client's key or its name, or else the client's own name.

        Names are what clients call themselves; keys are authenticated. So nobody joins a member by calling itself so:
        the client is then a member by its key.
        """
        name = self.name or f"client {self.id}"
        alone = self.key if name in members.values() else name
        return members.get(self.key, members.get(name, alone))


class Roster(tuple[ClientInfo, ...]):
    """The present clients, ascending by id.

    Its arrays are cached, so a federation should return the same object as long as nothing changes.

    Examples:
        >>> here = [ClientInfo(0, "farm", key="", num_samples=20), ClientInfo(2, "mill", key="", num_samples=5)]
        >>> roster = Roster(here)
        >>> roster.ids, roster[1].name  # the second of those that are here
        (array([0, 2]), 'mill')
    """

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        """The client ids, ``[n]`` int64."""
        return _read_only(c.id for c in self)

    @cached_property
    def by_id(self) -> Mapping[int, ClientInfo]:
        """The clients by id."""
        return {c.id: c for c in self}

    @cached_property
    def num_samples(self) -> NDArray[np.int64]:
        """The reported numbers of samples, ``[n]`` int64, in the order of the ids."""
        return _read_only(c.num_samples for c in self)


def _read_only(numbers: Iterable[int]) -> NDArray[np.int64]:
    """Return these numbers as an array that nobody can write into: many parts are shown it."""
    array = np.array(list(numbers), np.int64)
    array.flags.writeable = False
    return array


@dataclass(frozen=True)
class Train:
    """Train one seat: minimise ``F(theta) + mu/2 |theta - centre|^2 + <tilt, theta>``, starting from ``start``.

    Attributes:
        seat: the seat's position in the round.
        row: the table row that the seat starts from. Its number keys the seat's random stream.
        start: ``[P]``, the model to start from.
        centre: ``[P]``, the model that training is pulled to. None: no pull.
        mu: the strength of the pull.
        tilt: ``[P]``, a linear term of the loss. None: no such term.
        work: how many local epochs (or steps, if the recipe counts steps) to train. None: as the recipe says.
        private: whether the row is the client's own. If so, neither the row nor the update leaves the client.
        payload: what adds a term to the loss. The update must then come with the extra :data:`MET`.
        before: the client's optimiser steps so far, for recipes that depend on them (:mod:`hanse.core.recipe`).
        last: the last round in which the client trained. None: it has not.
        clip: the norm to which a client with a privacy account clips its update. None: the account's own.
    """

    seat: Count
    row: Count
    start: Tensor
    centre: Tensor | None = None
    mu: Figure = 0.0
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
        name: the name of the question and of its answer.
        models: ``[C, P]``.
        share: "train", "validation" or "test".
        limit: use at most this many samples, the first in a random order keyed by round and client. None: all.
    """

    name: Name
    models: Tensor
    share: Name = "train"
    limit: Count | None = None


class Score(OnModels):
    """Asks for each model's loss and accuracy."""


class Nearest(OnModels):
    """Asks for how many samples each model has the lowest loss. A tie counts for the first model."""


class Gradient(OnModels):
    """Asks for the gradient of each model's mean loss, ``[C, P]``."""


class Confusion(OnModels):
    """Asks for each model's confusion counts, ``[C, classes, classes]`` (true class, predicted class)."""


@dataclass(frozen=True)
class Ask:
    """A question to the client's own policy, such as "bid", "declare" or "stay".

    Any models are scored on the client's own samples before the policy is called. The policy finds the scores in
    ``told["scores"]``: two lists, ``loss`` and ``accuracy``, with one entry per model, and ``num_samples``. The scores
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
        share: which of the client's samples are used ("train", "validation" or "test"). A client that has none of these
            uses its train share.
        normalised: whether the weights are divided by their sum.
    """

    models: Tensor
    share: Name = "validation"
    normalised: bool = True


@dataclass(frozen=True)
class Test:
    """Asks the client to test the model that it holds, on its own test share. It is the only task of its request.

    Attributes:
        model: ``[P]``, the model that the client holds.
        row: the number of the private row, initially ``model``, that the client holds instead. None: it holds
            ``model``.
        mixture: models that the client mixes before the test. If all weights are 0, ``model`` is tested. None: no
            mixture.
        beside: ``[P]``, a second model whose accuracy is also reported. None: no second model.
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
    """Asks to open some leaves of a client's commitment.

    The samples stay where they are, and an auditor inspects them there.

    Attributes:
        root: the root of the commitment that is audited, 64 hexadecimal digits.
        size: how many samples the client claims.
        seed: the seed of the draw of leaves, 64 hexadecimal digits.
        leaves: the places of the leaves.
    """

    name: Name
    root: Digest
    size: Count
    seed: Digest
    leaves: tuple[Count, ...]


@dataclass(frozen=True)
class Mask:
    """A step of masking an update, so only a group's sum is seen (:mod:`hanse.federation.mask_steps`).

    Attributes:
        name: "keys", "shares", "sum" or "open".
        values: what the step needs, by name.
        train: the training whose update is masked, in "sum".
    """

    name: Name
    values: Mapping[Name, Plain]
    train: Train | None = None


Question = Score | Nearest | Gradient | Confusion | Ask | Test | CommitSize | AuditSize | Mask
Task = Train | Question


@dataclass(frozen=True)
class Trained:
    """The update of one seat.

    A new field must also be carried where updates are rebuilt: in privacy and secure sums (``federation``), the
    strategy and ``hanse.valued`` (``deployment``), the table of updates, late arrivals and checkpoints.

    Attributes:
        seat: the seat's position in the round.
        row: ``[P]``, the trained model.
        num_samples: how many samples the client *reports*.
        loss: the mean training loss of the last epoch. None: the client's own training loop reports none.
        steps: the optimiser steps taken.
        extras: tensors by name: :data:`MET` if the task has a payload, else none.
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
        accuracy: ``[C]``, from 0 to 1; NaN if there is no accuracy, as in regression.
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
        num_samples: over how many samples the gradients are averaged.
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
    counts: Annotated[Tensor, Shaped(3, ("int64",), 0, LARGEST_COUNT)]


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
        accuracy: the accuracy, from 0 to 1. None: there is none.
        num_samples: how many test samples the client has; if 0, there are no results.
        loss_error: the standard error of the loss.
        accuracy_beside: the accuracy of the task's second model, ``beside``.
        weights: ``[k]`` float64, the weights of the client's own mixture; known only if client and server share a
            process. On a network they stay with the participant, and a reply that contains them is refused.
        metrics: the experiment's metrics by name, and as "units" the number of units that the samples are of, where
            samples have some (:class:`hanse.data.samples.Samples`).
        gaps: for each metric that is undefined on these samples, the reason.
        without_block: ``[B]`` float64. The samples are divided into B blocks; entry b is the main metric on all samples
            but those of block b, or NaN where it is undefined.
        interval: ``[2]`` float64, the 95 % interval of the main metric; NaN where it is not known.
    """

    __test__ = False  # not one of pytest's

    name: Name
    loss: Loss | None
    accuracy: Accuracy | None
    num_samples: Count
    loss_error: Error | None = None
    accuracy_beside: Accuracy | None = None
    weights: Annotated[Tensor, Shaped(1, ("float64",))] | None = None
    metrics: Mapping[Name, Figure] = field(default_factory=dict)
    gaps: Mapping[Name, Name] = field(default_factory=dict)
    without_block: Annotated[Tensor, Shaped(1, ("float64",))] | None = None
    interval: Annotated[Tensor, Shaped(1, ("float64",))] | None = None


@dataclass(frozen=True)
class SizeCommitted:
    """A client's commitment to its distinct samples.

    Attributes:
        root: the root hash of the tree of the samples' keyed tags, 64 hexadecimal digits.
        size: how many distinct samples there are.
    """

    name: Name
    root: Digest
    size: Count


@dataclass(frozen=True)
class SizeAudited:
    """The Merkle proofs of the requested leaves, without samples, and the signature of the auditor who inspected them.

    Attributes:
        hashes: ``[4 h]`` int64, the tags and proofs (:func:`hanse.data.commitment.packed`).
        auditor: the auditor's public key (Ed25519), 64 hexadecimal digits. Empty in a simulation, which inspects the
            samples itself.
        signature: the auditor's signature, 128 hexadecimal digits.
    """

    name: Name
    hashes: Annotated[Tensor, Shaped(1, ("int64",))]
    auditor: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    signature: Annotated[str, Field(pattern="^([0-9a-f]{128})?$")] = ""


@dataclass(frozen=True)
class Masked:
    """The answer of a group's member in a step of masking.

    Attributes:
        name: the step's name.
        values: the answer's values, by name.
        words: ``[P + 6]`` int64, the member's masked update in step "sum"; empty in other steps.
    """

    name: Name
    values: Mapping[Name, Plain]
    words: Annotated[Tensor, Shaped(1, ("int64",))]


Answer = Scored | Counted | Derived | Confused | Answered | Tested | SizeCommitted | SizeAudited | Masked
Result = Trained | Answer
if TYPE_CHECKING:
    AnyResult = Result
else:  # by its class, so that an error is of that one alone
    _TAGGED = tuple(Annotated[kind, Tag(kind.__name__)] for kind in get_args(Result))
    AnyResult = Annotated[Union[_TAGGED], Discriminator(lambda result: type(result).__name__)]  # noqa: UP007


@dataclass(frozen=True)
class Request:
    """Everything that the server asks of one client at one stage of a round.

    Attributes:
        accepted: for each private row of the client that was ever updated, ``(row, round of the last accepted
            update)``. None: not stated. This matters only if owners keep their private rows.

    Examples:
        >>> Request(0, (Ask("bid", {"price": 3}),)).tasks[0].name
        'bid'

        What a round asks of client 2 to train:

        >>> from hanse.runs.round import training
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
    """When a reply arrived, if not at once.

    Attributes:
        seconds: the virtual time that the client took, in a simulation.
        round: the round whose training request it answers. None: this round.
        open: the client has not answered yet; its reply comes with a later exchange.
    """

    seconds: float = 0.0
    round: Count | None = None
    open: bool = False


@dataclass(frozen=True)
class Closing:
    """When an exchange with training tasks may end before its deadline.

    Attributes:
        enough: end once this many valid replies are in. None: wait for everybody.
        since: the earliest round whose late replies count towards ``enough``.

    Examples:
        Round 5, which may end once three valid replies to its own request are in:

        >>> Closing(enough=3, since=5).enough
        3
    """

    enough: int | None
    since: int


@dataclass(frozen=True)
class Reply:
    """A client's answers, which are untrusted.

    :mod:`hanse.federation.check` refuses what is wrong before anything uses it. The last three fields are set by the
    server's side of the port, never by the client.

    Attributes:
        results: one per task.
        refused: why there are no results. None: there are results.
        authorise: the most that the client agrees to pay this round, in the smallest unit. None: it set no limit.
        bytes_down: how many bytes the request had on the wire.
        bytes_up: how many bytes the reply had.
        arrival: when the reply came. None: at once.

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


@dataclass(frozen=True)
class Call:
    """One exchange with clients: what is asked, and how long their replies are waited for.

    Attributes:
        round: the round that is played.
        requests: at most one per client.
        deadline_s: how many seconds to wait. None: no deadline.
        closing: when the exchange may end earlier. None: when all have answered.

    Examples:
        >>> call = Call(0, [Request(1, (Ask("stay", {}),))])
        >>> list(call.by_client), call.deadline_s
        ([1], None)
    """

    round: int
    requests: Sequence[Request]
    deadline_s: float | None = None
    closing: Closing | None = None

    @property
    def by_client(self) -> dict[int, Request]:
        """The requests by client."""
        return {request.client: request for request in self.requests}


class Federation(Protocol):
    """The clients behind the port: in this process, or on Flower's network.

    Examples:
        The federation of a small experiment, with four clients in this process:

        >>> from hanse.runs.rehearsal import rehearse
        >>> federation = rehearse("fedavg").session.federation
        >>> federation.present(0).ids
        array([0, 1, 2, 3])
        >>> [reply.client for reply in federation.exchange(Call(0, [Request(1, (Ask("stay", {}),))]))]
        [1]
    """

    def present(self, round: int) -> Roster:
        """Return the clients that can be asked this round, ascending by id.

        Clients that are still training are not among them.
        """

    def exchange(self, call: Call) -> Sequence[Reply]:
        """Send the requests, and return the replies that came in time, in any order. Silence is not a reply.

        Without ``call.closing``, the call waits for all clients until the deadline, and later replies are lost. With
        it, a reply may arrive with a later exchange; until then the client is reported as open (see :class:`Arrival`).
        A simulation returns all replies at once, with the time that each took.
        """
