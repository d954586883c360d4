"""Makes an experiment ready to be played: :func:`build` returns its :class:`Session`.

Data, model, mechanism, clients and engine are made in one pass. It collects every mistake that can be seen with the
data at hand, so a user gets one list and not one error after another. Only then does it choose what trains, and write
the choice into the experiment. :mod:`hanse.runs.refusals` has what is refused, and what users are warned of.

A :class:`Session` has everything that stays the same over a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from hanse.base.errors import UserError, gated
from hanse.base.factories import OBJECT, call, misspelt
from hanse.base.imports import import_path, named
from hanse.base.pytorch import Tensor, nn, torch
from hanse.base.streams import stream
from hanse.core.calling import method_of
from hanse.core.entry import TOKEN
from hanse.core.part import Context, Helper, Judge, Mechanism, Part, in_slots
from hanse.core.port import Federation
from hanse.core.table import Ints
from hanse.core.telling import MOST_CLIENTS, About, describe
from hanse.data import FederatedData
from hanse.data import build as build_data
from hanse.data.build import with_own
from hanse.federation.behaviour import BEHAVIOURS, Behaviour
from hanse.federation.local import LocalFederation
from hanse.federation.policy import POLICIES, build_profiles
from hanse.federation.wrapped import Believed, Bounded, build_refusal
from hanse.learning.agreement import settle
from hanse.learning.engines import EngineChoice, choose, pick_device
from hanse.learning.job import Engine, Problem
from hanse.learning.loop import Loop, LoopEngine
from hanse.learning.losses import balanced, build_objective
from hanse.learning.metrics import build_metrics
from hanse.learning.models import Factory, build_problem, structure
from hanse.learning.modules import own_module
from hanse.learning.sequences import is_text
from hanse.learning.sequential import SequentialEngine
from hanse.mechanisms.fits import clashes, unmet_needs
from hanse.runs import refusals
from hanse.runs.arrivals import Waiting
from hanse.runs.config import Experiment, MechanismSection, ModelSection
from hanse.runs.guards import Accounts, Guard, guards_of, only
from hanse.runs.helpers import helpers_of, moves_tokens
from hanse.runs.server_judge import ServerJudge


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
        memories: by name, what behaviours keep from round to round. A round begins with what its state has of it.

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
    memories: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "context", replace(self.context, slots=self.mechanism.slots()))

    def parts(self) -> dict[str, Part]:
        """Return everything that asks questions and learns, by the key of its state.

        These are the mechanism's parts, each once, and the helpers.
        """
        return {**self.mechanism.parts(), **self.helpers}

    @cached_property
    def helpers(self) -> dict[str, Helper]:
        """What runs alongside the mechanism's parts, such as vesting and proved sizes, by the key of its state."""
        return helpers_of(self.experiment, self.mechanism, self.guards)

    @property
    def accounts(self) -> Accounts | None:
        """What a simulation's clients keep from round to round. None: nothing."""
        return only(guard.accounts for guard in self.guards.values())

    @property
    def grant(self) -> int:
        """What the mint gives each new client, in units (a millionth of a token)."""
        return round(self.experiment.clients.grant * TOKEN)

    @property
    def recomputable(self) -> bool:
        """Whether the run keeps all answers and commits to its inputs, so that an auditor can replay it."""
        return self.experiment.run.recomputable

    @property
    def books(self) -> bool:
        """Whether anything is posted: payments, bonds of proved sizes, or a commitment."""
        return self.pays or self.recomputable

    @property
    def pays(self) -> bool:
        """Whether clients have accounts."""
        return moves_tokens(self.mechanism, self.guards)


# clients on a network train themselves: numbers are those of one thread
REMOTE = EngineChoice("sequential", 1, 1, ["clients train on their own machines"])


@dataclass(frozen=True)
class Own:
    """Data and model that are given as Python objects instead of by the experiment.

    Attributes:
        data: data in any form that :mod:`hanse.data.own` reads. None: the experiment's source is used.
        model: a module, or a function ``(input_shape, num_classes, **options)`` that returns one. None: the
            experiment's model is used.
    """

    data: Any = None
    model: nn.Module | Factory | None = None


def build(
    experiment: Experiment,
    data: FederatedData | None = None,
    own: Own = Own(),
    *,
    federation: Federation | None = None,
    agreement: str = "",
) -> Session:
    """Make an experiment ready to be played.

    Args:
        experiment: what to play.
        data: the data, if they are already known. On a network, this is what the server knows of them.
        own: data and model given as objects.
        federation: the port to remote clients, who train themselves: the engine here only scores, with one thread.
            None: the clients are in this process.
        agreement: the hash of what remote clients agreed to.

    Raises:
        UserError: the experiment has mistakes. There is a line for each.
    """
    asked, remote = experiment, federation is not None
    experiment, data, another = _settled(experiment, data, own)
    problem, row = another(0)
    mechanism, federated, seed = experiment.mechanism.built, experiment.federation, experiment.run.seed
    lines = list[str]()

    def tried(make: Callable[[], Any], section: str = "") -> Any:
        """Return the result of ``make``, or None with its errors added to the list."""
        try:
            return make()
        except UserError as wrong:
            lines.extend(section + line for line in wrong.lines)

    device = tried(lambda: pick_device(experiment.engine.device), "engine.") or torch.device("cpu")
    misfit = refusals.unfit_model(experiment, data, problem, device)
    lines += misfit
    loop = None if (given := experiment.train.loop) is None else tried(lambda: Loop.of(given, "train.loop"))
    acting = {name: tried(partial(_behaviour, name, options)) for name, options in experiment.behaviour.items()}
    around = refusals.surroundings(experiment, data, problem, acting, loop, remote)
    withheld = {} if misfit else refusals.withheld(experiment, data, problem)
    lines += [lack.line for lack in unmet_needs(mechanism, around, withheld)]
    lines += clashes(mechanism, around)
    told = refusals.objections(experiment, data, problem, acting, _tested(experiment, data, False))
    warnings = [line for line in told if line.startswith("warning: ")]
    lines += [line for line in told if line not in warnings]
    guards: dict[str, Guard] = tried(lambda: guards_of(experiment, remote)) or {}
    for guard in guards.values():
        tried(partial(guard.settle, data.sizes))
    for guard in guards.values():
        loop = tried(partial(guard.trains, problem, loop))
    policy = tried(lambda: policy_of(experiment))
    profiles = tried(lambda: build_profiles(experiment.clients.profiles, data.num_clients, seed))
    refuse = tried(lambda: build_refusal(federated.refuse))
    if lines:
        raise UserError(*lines)

    experiment, problem, engine, why = _engine(experiment, data, problem, row, device, loop, remote)
    for guard in guards.values():
        experiment = guard.written(experiment)
    said = [
        *asked.mechanism.notes,
        *why,
        *warnings,
        *refusals.idle(asked, around),
        *(line for guard in guards.values() for line in guard.warns(np.asarray(data.sizes))),
        *_who_judges(asked.mechanism.built, mechanism),
    ]

    def initial(k: int) -> Tensor:
        """Return the k-th initial model ``[P]`` on the run's device."""
        return (row if k == 0 else another(k)[1]).to(device)

    recipe, most = experiment.train.recipe, mechanism.most_seats(data.num_clients)
    waiting = Waiting(refusals.enough_replies(experiment, most), federated.late, federated.max_staleness)
    groups = only(guard.groups for guard in guards.values())
    context = Context(
        data.num_clients, experiment.run.rounds, seed, recipe, problem.layout, initial,
        sums=None if groups is None else partial(groups, seed), members=experiment.clients.members,
    )  # fmt: skip
    here = federation if federation is not None else LocalFederation(
        data, problem, engine, recipe, seed,
        behaviours=tuple(acting.values()), policy=policy, profiles=profiles,
    )  # fmt: skip
    behind = _guarded(here, experiment, context, guards, data, refuse, remote)
    workers = (experiment.engine.threads or 1) * (experiment.engine.workers or 1)
    judge = ServerJudge(
        problem, engine, data.server_validation, workers, data.num_classes, data.server_root, device, recipe, seed
    )
    about = describe(mechanism.slots(), acting, policy, profiles, data.num_clients, seed)
    names = tuple(name[:80] or "?" for name in data.names) if len(data.names) <= MOST_CLIENTS else ()
    notes = tuple(one[:600] for one in (*data.warnings, *data.notes)[:100])
    return Session(
        experiment,
        mechanism,
        federation=behind,
        context=context,
        judge=judge,
        data=data,
        problem=problem,
        engine=engine,
        device=device,
        tested_clients=_tested(experiment, data, remote),
        remote=remote,
        waiting=waiting,
        about=replace(about, doubt=data.doubt[:600], names=names, notes=notes),
        guards=guards,
        agreement=next(filter(None, (agreement, *(guard.agreement for guard in guards.values()))), ""),
        said=said,
        memories={name: one.memory for name, one in acting.items() if isinstance(one.memory, dict)},
    )


def policy_of(experiment: Experiment) -> Any:
    """Return the clients' policy. Raises UserError if it does not exist or its options are wrong."""
    return call(*named(experiment.clients.policy, "clients.policy", POLICIES), "clients.policy")


def _settled(
    experiment: Experiment, data: FederatedData | None, own: Own
) -> tuple[Experiment, FederatedData, Callable[[int], tuple[Problem, Tensor]]]:
    """Return the experiment with all settings that data and model decide, the data, and a function that makes the
    model's problem and row ``[P]`` by number.
    """
    if data is None:
        spec, dataset = with_own(experiment.data, own.data)
        refusals.refuse_one_class(dataset)
        experiment = experiment.model_copy(update={"data": spec})
        data = build_data(spec, dataset)
    experiment, another = _modelled(experiment, data, own.model)
    mechanism, said = experiment.mechanism, experiment.mechanism.table.get("value", {})
    given = {"name": said} if isinstance(said, str) else said
    value = mechanism.built.value
    chosen = None if value is None else value.resolved(given, bool(data.server_validation))
    if chosen is not None:
        settled = MechanismSection(**{**mechanism.table, "value": chosen})
        experiment = experiment.model_copy(update={"mechanism": settled})
    return experiment, data, another


def _who_judges(asked: Mechanism, mechanism: Mechanism) -> list[str]:
    """Return who judges contributions, where that was left open or they are paid for, or it is a warning."""
    if mechanism.value is None or asked.value is None:
        return []
    told, open_ = mechanism.value.judged_by(), asked.value.resolved({}, validation=True) is not None
    return [told] if told and (open_ or mechanism.settle is not None or told.startswith("warning")) else []


def build_model(
    experiment: Experiment, data: FederatedData, given: nn.Module | Factory | None = None, number: int = 0
) -> tuple[Problem, Tensor]:
    """Return the model with its loss and metrics, and its first row.

    Args:
        experiment: the experiment, which names the model, loss and metrics.
        data: the data, which fix the model's inputs and outputs.
        given: a model given as an object, instead of by name.
        number: which one of several initial models to make. 0 is the usual one.

    Returns:
        Two results: the problem (module, layout of a row, loss, metrics) and the row ``[P]``.

    Raises:
        UserError: a model, loss or metric does not exist or does not suit the data.
    """
    section, classes = experiment.model, data.num_classes
    text = is_text(data.pool([0])[0])
    loss: str | Mapping[str, Any] | None = experiment.train.loss
    # "balanced" weights come from the class counts, which are only known here
    if isinstance(loss, dict) and loss.get("weights") == "balanced":
        loss = balanced(loss, classes, data.class_counts())
    objective, name = build_objective(loss, classes, text=text), section.name if given is None else given
    problem, row = build_problem(
        name, data.sample_shape, classes, experiment.run.seed, number=number, objective=objective, **section.options
    )
    text = text or problem.judge is not None
    return replace(problem, metrics=build_metrics(experiment.eval.metrics, classes, text=text)), row


def _modelled(
    experiment: Experiment, data: FederatedData, given: nn.Module | Factory | None
) -> tuple[Experiment, Callable[[int], tuple[Problem, Tensor]]]:
    """Return the experiment with the record of a model given as an object, and a function that makes the k-th model and
    its row.

    Raises:
        UserError: the run's model was given as an object and is not given now, or what is given is not a model.
    """
    section = experiment.model
    made = partial(build_model, experiment, data, given)
    if given is None:
        if section.name == OBJECT:
            what = (section.model_extra or {}).get("object", "?")
            raise UserError(
                f"model.name: 'object': the model is given as an object ({what}): hanse.run(..., model=...) and "
                "hanse.resume(run_dir, model=...) need it; an import path 'module:function' is found by every command"
            )
        return experiment, made
    if not isinstance(given, nn.Module) and not callable(given):
        raise UserError(
            f"model: {given!r}: must be a torch.nn.Module, or a function (input_shape, num_classes, **options) that "
            "returns one"
        )
    module = own_module(made(0)[0].module)
    with gated(f"model: {type(module).__name__}: cannot be described (repr)"):
        record = {"object": type(module).__name__, "fingerprint": structure(module)}
    section = ModelSection(name=OBJECT, **record, **section.options)
    return experiment.model_copy(update={"model": section}), made


HOOKS = tuple(name for name in vars(Behaviour) if not name.startswith("_"))  # the methods that are called


def _behaviour(name: str, options: dict[str, Any]) -> Behaviour:
    """Return a behaviour by its name or import path.

    Raises:
        UserError: it does not exist, its options are wrong, or the class would never do anything, such as one with a
            misspelt method.
    """
    make = BEHAVIOURS.get(name) or import_path(name, "behaviour", BEHAVIOURS)
    behaviour: Behaviour = call(make, options, f"behaviour.{name}")
    if Behaviour not in type(behaviour).__mro__:
        raise UserError(f"behaviour.{name}: {type(behaviour).__name__}: must be a class that inherits from Behaviour")
    if (wrong := misspelt(type(behaviour), HOOKS)) is not None:
        raise UserError(f"behaviour.{name}: {type(behaviour).__name__}: {wrong}")
    if all(getattr(type(behaviour), hook) is getattr(Behaviour, hook) for hook in HOOKS if hook != "tells"):
        raise UserError(f"behaviour.{name}: {type(behaviour).__name__}: does nothing: must have {' or '.join(HOOKS)}")
    return behaviour


def _engine(
    experiment: Experiment,
    data: FederatedData,
    problem: Problem,
    row: Tensor,
    device: torch.device,
    loop: Loop | None,
    remote: bool,
) -> tuple[Experiment, Problem, Engine, list[str]]:
    """Return the experiment with the engine that was chosen, which a resumed run takes again; the problem as it is
    played; the engine; and lines that say why.
    """
    choice = REMOTE if remote else _choose(experiment, data, problem, row, device, loop)
    on_ray = experiment.federation.engine == "ray" and not remote
    if on_ray:
        choice = replace(choice, threads=1, workers=1, graphs=False)
    tried_on, precision = refusals.few_samples(data), experiment.engine.precision
    choice, problem, engine, differs = settle(choice, problem, row, tried_on, device, precision)
    if on_ray:
        from hanse.learning.ray_engine import RayEngine  # here: few runs need it

        engine = RayEngine(engine, problem, choice, device, precision, loop)
    elif loop is not None and isinstance(engine, SequentialEngine):
        engine = LoopEngine(engine, loop)
    chosen = {
        "train": choice.engine,
        "threads": choice.threads,
        "workers": choice.workers,
        "device": str(device),
        "graphs": choice.graphs if choice.engine == "stacked" and device.type == "cuda" else None,
    }
    section = experiment.engine.model_copy(update=chosen)
    return experiment.model_copy(update={"engine": section}), problem, engine, [*choice.why, *differs]


def _choose(
    experiment: Experiment, data: FederatedData, problem: Problem, row: Tensor, device: torch.device, loop: Loop | None
) -> EngineChoice:
    """Return the engine for this experiment: the one that it names, or what the rule of ``docs/engines.md`` says."""
    section, recipe, mechanism = experiment.engine, experiment.train.recipe, experiment.mechanism.built
    pool, index = data.pool([0])
    share = recipe.batch_share or 1 / (recipe.batches_per_epoch or 1)
    size = recipe.batch_size or math.ceil(float(data.sizes.mean()) * share)
    return choose(
        problem,
        row,
        recipe,
        pool.take(index[0][:4]),
        seats=mechanism.most_seats(data.num_clients),
        batch=min(size, int(data.sizes.max())),
        train=section.train,
        threads=section.threads,
        workers=section.workers,
        device=device,
        precision=section.precision,
        payload=method_of(mechanism.train, "sends") is not None,
        own_loop=loop is not None,
        graphs=section.graphs,
    )


def _guarded(
    federation: Federation,
    experiment: Experiment,
    context: Context,
    guards: Mapping[str, Guard],
    data: FederatedData,
    refuse: Any,
    remote: bool,
) -> Federation:
    """Return the clients as the server sees them: behind guards, and behind the rules on what is believed and refused.

    ``refuse`` is the rule that refuses outlying updates, ``data`` is what a simulation's clients hold.
    """
    size = context.layout.size
    for guard in guards.values() if not remote else ():
        federation = guard.clients(federation, data)
    noise = only(guard.noise for guard in guards.values())
    if context.sums is None and (noise is not None or remote):
        weighed = "noise" in in_slots(experiment.mechanism.built.weigh.needs, ["weigh"])
        half = experiment.federation.half_precision
        federation = Believed(federation, noise, context.recipe, size, half, weighed)
    if refuse is not None:
        federation = Bounded(federation, refuse, context.layout.num_parameters)
    for guard in guards.values():
        federation = guard.server(federation)
    return federation


def _tested(experiment: Experiment, data: FederatedData, remote: bool) -> np.ndarray:
    """Return the ids ``[n]`` of the clients that test on their own test shares.

    They are all, or a number of them drawn by the run's seed, or none where there are no such shares. Clients on a
    network are asked whatever ``[data]`` says, since they may hold test samples of their own.
    """
    wanted = experiment.eval.clients
    if not (experiment.data.tested_by_clients or remote) or wanted == 0:
        return np.zeros(0, np.int64)
    if wanted == "all" or wanted >= data.num_clients:
        return np.arange(data.num_clients)
    return np.sort(stream(experiment.run.seed, "tested").choice(data.num_clients, wanted, replace=False))
