"""A small round for experiments: gives you a :class:`View`, a part's state, a session or a played round.

:func:`rehearse` plays one round of any mechanism with four clients on handwritten digits, in a tenth of a second and
without a directory. The returned :class:`Rehearsal` has one of everything that parts, observers and reports receive.
:meth:`Rehearsal.before` returns what the part in a slot received, and the rest are attributes.

Use it to try your own part, or to call a function that needs a ``View``, ``Group``, ``Context``, ``Session``,
``LoopState`` or ``Played``. For a small :class:`hanse.runs.played_run.PlayedRun` or run directory, use
``hanse.run(rehearse().experiment)``, and ``out=`` for a directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hanse.base.errors import UserError
from hanse.core.calling import HEARS
from hanse.core.part import Context, Group, Mechanism, Part, Stage, State, View
from hanse.data.spec import parse_spec, table_of
from hanse.runs.checkpoint import LoopState
from hanse.runs.config import Experiment
from hanse.runs.round import Played, first_state, play_round
from hanse.runs.setup import Session, build

SMALL: Mapping[str, Mapping[str, Any]] = {
    "data": {"clients": 4, "client_validation": 0.2, "client_test": 0.2},
    "model": {"name": "logistic"},
    "engine": {"train": "sequential", "threads": 1, "device": "cpu"},
    "run": {"rounds": 3},
}
SAMPLES = 30  # of a client, on average
# the methods by which the part in a slot decides
_DECIDES = ("select", "seats", "weigh", "aggregate", "value", "settle", "deploy")  # methods


@dataclass(frozen=True)
class Rehearsal:
    """A played round, with everything that was passed around in it. Make one with :func:`rehearse`.

    Attributes:
        experiment: what was played, with every default settled.
        session: the mechanism, the federation, the data, the engine, the judge and the context of the run.
        start: the state before the round.
        played: the finished round; ``played.state`` is the state after it.
        shown: the arguments ``(view, state)`` of each deciding method, by slot and stage.

    Examples:
        >>> small = rehearse("fedavg")
        >>> small.view.trained.rows.shape  # four updates of a model of 650 numbers
        torch.Size([4, 650])
        >>> small.context.num_clients, small.start.round, small.played.state.round
        (4, 0, 1)
        >>> [len(group) for group in small.groups]  # all four train the shared row
        [4]
    """

    experiment: Experiment
    session: Session
    start: LoopState
    played: Played
    shown: Mapping[tuple[str, Stage], tuple[View, State]]

    @property
    def view(self) -> View:
        """The finished round with all decisions, as ``learn`` gets it."""
        return self.played.view

    @property
    def groups(self) -> list[Group]:
        """The round's groups, one per trained server row, as ``aggregate`` gets them."""
        return self.view.groups()

    @property
    def context(self) -> Context:
        """The context, as ``init`` gets it."""
        return self.session.context

    def before(self, slot: str, stage: Stage | None = None) -> tuple[Part, View, State]:
        """Return the part in a slot, and the view and the state with which the round called it.

        The view has earlier decisions only.

        Args:
            slot: "select", "train", "weigh", "value", "settle" or "deploy".
            stage: the stage, for a part that decides twice in a round. A payment rule settles at "open" and at "close"
                (None: at "close"). A train part that fills rows does so at "close" (``weigh``).

        Raises:
            KeyError: nothing in this slot was called at this stage. The message says what was called.

        Examples:
            >>> part, view, state = rehearse("greedyfed").before("select")
            >>> choice, state = part.select(view, state)
            >>> sorted(choice.clients.tolist())
            [0, 1, 2, 3]
            >>> part, view, state = rehearse("greedyfed").before("value")
            >>> values, state = part.value(view, state)
            >>> values.per_seat.shape
            (4,)
        """
        stage = "close" if stage is None and slot == "settle" else stage
        calls = [key for key in self.shown if key[0] == slot and stage in (None, key[1])]
        if not calls:
            raise KeyError(f"{slot}: was not called; these were: {', '.join(map(' at '.join, self.shown))}")
        return self.session.mechanism.slots()[slot], *self.shown[calls[0]]


def rehearse(mechanism: str | Mechanism | Mapping[str, Any] = "fedavg", rounds: int = 1, **sections: Any) -> Rehearsal:
    """Play a small experiment and return its last round with everything that was passed around.

    Args:
        mechanism: a mechanism's name, its table as in a file, or a :class:`hanse.core.part.Mechanism` that was put
            together in Python and may have a part of your own.
        rounds: how many rounds to play; parts that learn need a few.
        sections: further sections of the experiment, as :class:`hanse.runs.config.Experiment` takes them. Keys of
            ``data``, ``model``, ``engine`` and ``run`` override those of :data:`SMALL`.

    Raises:
        UserError: the experiment does not fit together.

    Examples:
        A robust rule in a round in which client 0 lies:

        >>> from dataclasses import replace
        >>> from hanse.mechanisms.baselines import fedavg
        >>> from hanse.mechanisms.robust import Median
        >>> mechanism = replace(fedavg(), weigh=Median())
        >>> small = rehearse(mechanism, behaviour={"attacker": {"clients": [0], "kind": "flip"}})
        >>> part, view, state = small.before("weigh")
        >>> part.aggregate(view.groups()[0], state).row.shape
        torch.Size([650])

        The state of a part that is in no mechanism comes from its ``init``:

        >>> from hanse.mechanisms.feedback import Feedback
        >>> small = rehearse("greedyfed")
        >>> sorted(Feedback().learn(small.view, Feedback().init(small.context)))
        ['gone', 'last', 'sum', 'times']

        A market's round with payments, and a run directory:

        >>> small = rehearse("ipfl")
        >>> small.view.posted[-1].kind
        'market'
        >>> import hanse, tempfile
        >>> from hanse.runs.run_record import load_run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = hanse.run(small.experiment, out=folder + "/run")
        ...     record = load_run(folder + "/run")
        >>> len(run.metrics), record.num_clients
        (3, 4)
    """
    asked = small_experiment(mechanism, **{**sections, "run": {"rounds": max(rounds, 3), **sections.get("run", {})}})
    session = build(asked)
    state = first_state(session)
    for _ in range(rounds - 1):
        state = play_round(session, state).state
    shown: dict[tuple[str, Stage], tuple[View, State]] = {}

    def heard(slot: str, method: str, view: View, state: State) -> None:
        if method in _DECIDES:
            shown[slot, view.stage] = (view, state)

    hears = HEARS.set(heard)
    try:
        played = play_round(session, state)
    finally:
        HEARS.reset(hears)
    return Rehearsal(session.experiment, session, state, played, shown)


def small_experiment(mechanism: str | Mechanism | Mapping[str, Any] = "fedavg", **sections: Any) -> Experiment:
    """Return the experiment that :func:`rehearse` plays, with these sections overriding :data:`SMALL`.

    Args:
        mechanism: as for :func:`rehearse`.
        sections: as for :func:`rehearse`.

    Raises:
        UserError: with a line for each mistake.

    Examples:
        >>> small_experiment("fedavg", model="mlp", data={"clients": 6}).data.partition.samples_per_client
        30
    """
    laid = {name: _laid(section, sections.pop(name, {})) for name, section in SMALL.items()}
    return Experiment(mechanism=mechanism, **{**laid, "data": _few_samples(laid["data"])}, **sections)


def _few_samples(data: Any) -> Any:
    """Return a data section with :data:`SAMPLES` for a client, where the source or the partition has that option."""
    try:
        spec = parse_spec(data)
    except (UserError, TypeError):  # the experiment's check says what is wrong, together with everything else
        return data
    choices = {"source": spec.source, "partition": spec.partition}
    few = {
        key: {**table_of(choice), "samples_per_client": SAMPLES}
        for key, choice in choices.items()
        if getattr(choice, "samples_per_client", SAMPLES) is None
    }
    return {**data, **few}


def _laid(section: Mapping[str, Any], given: Any) -> Any:
    """Return a section with the given keys over it, or what is given if that is not a table (a model's name)."""
    return {**section, **given} if isinstance(given, Mapping) else given
