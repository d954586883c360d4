"""Everything that stays the same over a run: :class:`Session`. :func:`hanse.runs.setup.build` makes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hanse.core.entry import TOKEN
from hanse.core.judge import Judge
from hanse.core.part import Context, Mechanism, Part
from hanse.core.port import Federation
from hanse.core.table import Ints
from hanse.core.telling import About
from hanse.data.federated import FederatedData
from hanse.learning.job import Engine, Problem
from hanse.mechanisms.feedback import Feedback
from hanse.runs.arrivals import Waiting
from hanse.runs.config import Experiment
from hanse.runs.grants import Vesting
from hanse.runs.guards import Guard


@dataclass(frozen=True)
class Session:
    """Everything that stays the same over a run: its experiment, the clients behind the port, the judge and the engine.

    Attributes:
        experiment: the experiment with all defaults, the facts that data and model decide, and the chosen engine.
        mechanism: the parts, by slot.
        federation: the port to the clients, in this process or on a network.
        context: what parts may know of the run: number of clients, layout of a model, initial models, recipe.
        judge: scores models on the server's held-out data.
        data: the samples of this process. On a network, these are only the server's sets, and the sizes that clients
            reported.
        problem: the model as a module, its loss, and how a row of numbers becomes its parameters.
        engine: trains seats and scores models.
        device: where the table lies.
        tested_clients: ids ``[n]`` of the clients that test models on their own test shares.
        remote: whether the clients are on a network. Testing the clients then takes requests. A round in which a part
            raises an exception is then undone instead of ending the run.
        waiting: when TRAIN ends, and what becomes of late updates.
        about: descriptions of parts, behaviours and the policy, for reports.
        guards: what wings put around the clients, by the key of the setting that asks for it.
        agreement: the hash of what the clients of a network agreed to. "": there is no agreement.
        said: lines to print at the start: why this engine was chosen, and warnings.

    Examples:
        >>> import hanse
        >>> from hanse.runs.setup import build
        >>> session = build(hanse.Experiment(data={"source": "digits", "clients": 4}, mechanism="fedavg"))
        >>> session.context.num_clients, list(session.parts())
        (4, ['select', 'train', 'weigh', 'deploy'])
    """

    experiment: Experiment
    mechanism: Mechanism
    federation: Federation
    context: Context
    judge: Judge
    data: FederatedData
    problem: Problem
    engine: Engine
    device: torch.device
    tested_clients: Ints
    remote: bool = False
    waiting: Waiting = field(default_factory=Waiting)
    about: About = field(default_factory=About)
    guards: Mapping[str, Guard] = field(default_factory=dict)
    agreement: str = ""
    said: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "context", replace(self.context, slots=self.mechanism.slots()))

    def parts(self) -> dict[str, Part]:
        """Return everything that asks questions and learns, by the key of its state.

        These are the mechanism's parts, each once, and helpers such as vesting and proved sizes.
        """
        feedback = Feedback() if self.experiment.clients.told else None
        beside: dict[str, Part | None] = {
            "feedback": feedback,
            "sizes": self.sizes,
            "training": self.of_guards("training"),
        }
        beside |= {"vesting": self.vesting, "clipping": self.of_guards("clipping")}
        return self.mechanism.parts() | {key: part for key, part in beside.items() if part is not None}

    def of_guards(self, what: str) -> Any:
        """Return the attribute of this name of the first guard that has it ("accounts", "clipping"), or None."""
        return next((found for guard in self.guards.values() if (found := getattr(guard, what)) is not None), None)

    @property
    def sizes(self) -> Any:
        """The part that asks clients to prove their numbers of samples. None: what they claim counts."""
        return self.of_guards("sizes")

    @property
    def grant(self) -> int:
        """What the mint gives each new client, in units (a millionth of a token)."""
        return round(self.experiment.clients.grant * TOKEN)

    @property
    def vesting(self) -> Vesting | None:
        """The part that gives grants in parts. None: they are given at once."""
        parts = self.experiment.clients.vests
        return None if parts == 1 else Vesting(self.grant, parts)

    @property
    def kept(self) -> bool:
        """Whether the run keeps all answers and commits to its inputs, so that an auditor can replay it."""
        return self.experiment.run.recomputable

    @property
    def books(self) -> bool:
        """Whether anything is posted: payments, bonds of proved sizes, or a commitment."""
        return self.pays or self.kept

    @property
    def pays(self) -> bool:
        """Whether clients have accounts."""
        return self.mechanism.settle is not None or self.sizes is not None

    def key(self, slot: str) -> str:
        """Return the key under which the state of this slot's part is kept: the first slot that the part fills."""
        return self.mechanism.standing(self.mechanism.slots()[slot])[0]
