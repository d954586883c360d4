"""Builds an experiment's data, model, mechanism, engine and federation, and refuses combinations that do not fit.

There are two steps. :func:`build` makes a :class:`Blueprint`, which is everything but the engine. It collects every
mistake that can be seen with the data at hand, so a user gets one list and not one error after another.
:func:`settle_engine` then chooses what trains and writes the choice into the experiment. It returns a :class:`Ready`,
with the :class:`hanse.runs.round.Setup` with which rounds are played.

:mod:`hanse.runs.refusals` has what is refused, and what users are warned of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hanse.base.errors import UserError, gated, import_path, named
from hanse.base.factories import call, misspelt
from hanse.base.streams import stream
from hanse.core.calling import method_of
from hanse.core.entry import TOKEN
from hanse.core.part import Context, Mechanism, in_slots
from hanse.core.port import Federation
from hanse.core.telling import MOST_CLIENTS, About, describe
from hanse.data import FederatedData
from hanse.data import build as build_data
from hanse.data.build import with_own
from hanse.data.choices import OBJECT
from hanse.federation.behaviour import BEHAVIOURS, Behaviour
from hanse.federation.believed import Believed
from hanse.federation.local import LocalFederation
from hanse.federation.norm_bound import Bounded, build_refusal
from hanse.federation.policy import POLICIES
from hanse.federation.profiles import Profile, build_profiles
from hanse.learning.agreement import settle
from hanse.learning.by_name import own_module
from hanse.learning.engines import EngineChoice, choose, pick_device
from hanse.learning.job import Engine, Problem
from hanse.learning.loop import Loop, LoopEngine
from hanse.learning.losses import balanced, build_objective
from hanse.learning.metrics import build_metrics
from hanse.learning.models import Factory, build_problem, structure
from hanse.learning.sequences import is_text
from hanse.learning.sequential import SequentialEngine
from hanse.mechanisms.feedback import Feedback
from hanse.mechanisms.fits import REQUIRES, WARNS, clashes, unmet_needs, without
from hanse.mechanisms.judging import judged, who_judges
from hanse.runs import refusals
from hanse.runs.arrivals import Waiting
from hanse.runs.config import Experiment, MechanismSection, ModelSection
from hanse.runs.grants import Vesting
from hanse.runs.guards import Guard, guards_of
from hanse.runs.judge import Judge, Root
from hanse.runs.metrics import missing_metrics, refused_metrics
from hanse.runs.round import Setup
from hanse.runs.run_record import load_run

# clients on a network train themselves: numbers are those of one thread
REMOTE = EngineChoice("sequential", 1, 1, ["clients train on their own machines"])


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """Everything that a run needs except its engine.

    Attributes:
        asked: the experiment as it was requested.
        experiment: the requested experiment, completed with facts from data and a model given as objects.
        data: the samples, split among the clients.
        problem: the model as a module, its loss, and its metrics.
        initial: ``[P]``, the row at which training starts.
        another: ``another(k)`` is the k-th initial model; ``another(0)`` is ``initial``.
        mechanism: the mechanism's parts, by slot.
        behaviours: deviating behaviours of some clients, in the order of the file.
        policy: the clients' policy.
        profiles: each client's role, costs and eagerness in a market. Empty: not given.
        refuse: the rule that refuses outlying updates. None: there is no such rule.
        guards: what wings put around the clients, by the key of the setting that asks for it.
        waiting: when TRAIN ends, and what becomes of late updates.
        device: where the table lies.
        about: descriptions of parts, behaviours and the policy.
        around: the words of what surrounds the mechanism (:func:`hanse.runs.refusals.surroundings`).
        loop: the user's own training loop. None: hanse's training is used.
    """

    asked: Experiment
    experiment: Experiment
    data: FederatedData
    problem: Problem
    initial: Tensor
    another: Callable[[int], Tensor]
    mechanism: Mechanism
    behaviours: tuple[Behaviour, ...]
    policy: Any
    profiles: Sequence[Profile]
    refuse: Any
    guards: Mapping[str, Guard]
    waiting: Waiting
    device: torch.device
    about: About = field(default_factory=About)
    around: Mapping[str, str] = field(default_factory=dict)
    loop: Loop | None = None


@dataclass(frozen=True)
class Ready:
    """A run that is ready to be played.

    Attributes:
        experiment: the given experiment with all defaults and the chosen engine.
        setup: the setup with which rounds are played.
        said: lines to print at the start: why this engine was chosen, and warnings.
    """

    experiment: Experiment
    setup: Setup
    said: Sequence[str] = ()


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


def build(experiment: Experiment, data: FederatedData | None = None, own: Own = Own()) -> Blueprint:
    """Build data, model, mechanism and behaviours, and refuse what does not fit together.

    Args:
        experiment: what to build.
        data: the data, if they are already known. On a network, this is what the server knows of them.
        own: data and model given as objects.

    Raises:
        UserError: the experiment has mistakes. There is a line for each.
    """
    asked = experiment
    experiment, data, another = _settled(experiment, data, own)
    problem, initial = another(0)
    mechanism = experiment.mechanism.built
    clients, seed, lines = experiment.clients, experiment.run.seed, list[str]()

    def tried(make: Callable[[], Any], section: str = "") -> Any:
        """Return the result of ``make``, or None with its errors added to the list."""
        try:
            return make()
        except UserError as wrong:
            lines.extend(section + line for line in wrong.lines)

    device = tried(lambda: pick_device(experiment.engine.device), "engine.")
    misfit = refusals.one_answer(experiment, data) or refusals.unfit_model(
        experiment, data, problem, device or torch.device("cpu")
    )
    lines += [*refusals.too_many(experiment.mechanism.table, data.num_clients), *misfit]
    loop = None if (given := experiment.train.loop) is None else tried(lambda: Loop.of(given, "train.loop"))
    acting = {name: tried(partial(_behaviour, name, options)) for name, options in experiment.behaviour.items()}
    around = refusals.surroundings(experiment, data, problem, mechanism, acting, loop)
    withheld = {} if misfit else refusals.withheld(experiment, data, problem, mechanism)
    lines += [lack.line for lack in unmet_needs(mechanism, around, withheld)]
    lines += [*clashes(mechanism, around), *without(REQUIRES, around)]
    lines += refused_metrics(problem, data, _tested(experiment, data, False))
    lines += refusals.misfits(experiment, data, problem, mechanism)
    guards: dict[str, Guard] = tried(lambda: guards_of(experiment)) or {}
    for guard in guards.values():
        tried(partial(guard.settle, data.sizes))
    for guard in guards.values():
        loop = tried(partial(guard.trains, problem, loop))
    waiting = tried(lambda: _waiting(experiment, mechanism.most_seats(data.num_clients)))
    lines += refusals.no_such_clients(acting, data.num_clients)
    lines += refusals.no_such_samples(acting, data)
    policy = tried(lambda: call(*named(clients.policy, "clients.policy", POLICIES), "clients.policy"))
    profiles = tried(lambda: build_profiles(clients.profiles, data.num_clients, seed))
    refuse = tried(lambda: build_refusal(experiment.federation.refuse))
    if lines:
        raise UserError(*lines)
    return Blueprint(
        asked=asked,
        experiment=experiment,
        data=data,
        problem=problem,
        initial=initial,
        another=lambda number: another(number)[1],
        mechanism=mechanism,
        behaviours=tuple(acting.values()),
        policy=policy,
        profiles=profiles,
        refuse=refuse,
        guards=guards,
        waiting=waiting,
        device=device,
        about=_told(data, mechanism, acting, policy, profiles, seed),
        around=around,
        loop=loop,
    )


def _told(
    data: FederatedData,
    mechanism: Mechanism,
    acting: Mapping[str, Behaviour],
    policy: Any,
    profiles: Sequence[Profile],
    seed: int,
) -> About:
    """Return the descriptions of parts, behaviours and the policy, with the clients' names and the data's notes."""
    description = describe(mechanism.slots(), acting, policy, profiles, data.num_clients, seed)
    names = tuple(name[:80] or "?" for name in data.names) if len(data.names) <= MOST_CLIENTS else ()
    return replace(description, names=names, notes=tuple(one[:600] for one in (*data.warnings, *data.notes)[:100]))


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
    if (chosen := judged(experiment.mechanism.table, experiment.mechanism.built, data.server_validation)) is not None:
        experiment = experiment.model_copy(update={"mechanism": MechanismSection(**chosen)})
    return experiment, data, another


def _waiting(experiment: Experiment, seats: int) -> Waiting:
    """Return how long a round waits.

    Raises:
        UserError: ``replay`` names an order of arrival that cannot be repeated with this experiment.
    """
    section, rounds, order = experiment.federation, experiment.run.rounds, None
    if section.replay is not None:
        if section.engine != "local":
            raise UserError("federation.replay: is for a simulation with federation.engine = 'local'")
        order = load_run(section.replay).arrivals()
        if missing := sorted(set(range(rounds)) - set(order.present)):
            raise UserError(f"federation.replay: {section.replay}: has no round {missing[0]} of the {rounds} to play")
        late = sorted(n for n, came in order.came.items() if n < rounds and any(since < n for _, since in came))
        if late and section.late == "drop":
            raise UserError(
                f"federation.late: 'drop': round {late[0]} of {section.replay} mixed a late update: must be 'next'"
            )
    return Waiting(refusals.enough_replies(experiment, seats), section.late, section.max_staleness, order)


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
        name,
        data.sample_shape,
        classes,
        experiment.run.seed,
        number=number,
        objective=objective,
        **section.options,
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
    if given is None and section.name == OBJECT:
        what = (section.model_extra or {}).get("object", "?")
        raise UserError(
            f"model.name: 'object': the model is given as an object ({what}): hanse.run(..., model=...) and "
            "hanse.resume(run_dir, model=...) need it; an import path 'module:function' is found by every command"
        )

    if given is not None and not isinstance(given, nn.Module) and not callable(given):
        raise UserError(
            f"model: {given!r}: must be a torch.nn.Module, or a function (input_shape, num_classes, **options) that "
            "returns one"
        )

    made = partial(build_model, experiment, data, given)
    if given is not None:
        kept = section.options
        section = ModelSection(name=OBJECT, **kept)
        module = own_module(made(0)[0].module)
        with gated(f"model: {type(module).__name__}: cannot be described (repr)"):
            record = {"object": type(module).__name__, "fingerprint": structure(module)}
        section = ModelSection(name=OBJECT, **record, **kept)
        experiment = experiment.model_copy(update={"model": section})
    return experiment, made


HOOKS = ("present", "holds", "sees", "studies", "overhears", "claims", "on_request", "on_reply", "takes", "tells")


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
        raise UserError(
            f"behaviour.{name}: {type(behaviour).__name__}: does nothing: must have one of {', '.join(HOOKS)}"
        )
    return behaviour


def settle_engine(blueprint: Blueprint, *, federation: Federation | None = None) -> Ready:
    """Choose the engine, by the rule of ``docs/engines.md`` if it is "auto", and make the setup.

    Args:
        blueprint: the result of :func:`build`.
        federation: the port to remote clients. None: the clients are in this process. Remote clients train themselves,
            and the engine here only scores, with one thread.

    Raises:
        UserError: the experiment needs clients in this process.
    """
    asked, experiment = blueprint.asked, blueprint.experiment
    around = blueprint.around
    if federation is not None:
        refusals.refuse_on_a_network(experiment, blueprint.mechanism)
        around = refusals.on_a_network(around)
    choice = _choose(experiment, blueprint) if federation is None else REMOTE
    compared = (blueprint.initial, refusals.few_samples(blueprint.data), blueprint.device, experiment.engine.precision)
    choice, problem, engine, differs = settle(choice, blueprint.problem, *compared)
    blueprint = replace(blueprint, problem=problem)
    section = experiment.engine.model_copy(
        update={
            "train": choice.engine,
            "threads": choice.threads,
            "workers": choice.workers,
            "device": str(blueprint.device),
            "graphs": choice.graphs if choice.engine == "stacked" and blueprint.device.type == "cuda" else None,
        }
    )
    experiment = experiment.model_copy(update={"engine": section})
    mechanism, guards = blueprint.mechanism, blueprint.guards.values()
    for guard in guards:
        experiment = guard.written(experiment)
    if blueprint.loop is not None and isinstance(engine, SequentialEngine):
        engine = LoopEngine(engine, blueprint.loop)
    said = [
        *asked.mechanism.notes,
        *choice.why,
        *differs,
        *refusals.by_size(experiment, mechanism, blueprint.data)[0],
        *missing_metrics(problem, blueprint.data, _tested(experiment, blueprint.data, False)),
        *refusals.not_held(mechanism),
        *refusals.warn_of_probabilities(experiment, problem, blueprint.data),
        *refusals.never_asked(experiment, mechanism),
        *refusals.idle(asked, around),
        *refusals.of_absent_rounds(experiment, blueprint.behaviours),
        *refusals.warn_of_changing_groups(experiment, blueprint.data, mechanism),
        *(line for guard in guards for line in guard.warns(np.asarray(blueprint.data.sizes))),
        *who_judges(asked.mechanism.built, mechanism),
        *(f"warning: {line}" for line in clashes(mechanism, around, WARNS)),
    ]
    return Ready(experiment, _setup(experiment, blueprint, engine, federation), said)


def _choose(experiment: Experiment, blueprint: Blueprint) -> EngineChoice:
    """Return the engine for this experiment: the one that it names, or what the rule says."""
    section, data, recipe = experiment.engine, blueprint.data, experiment.train.recipe
    pool, index = data.pool([0])
    share = recipe.batch_share or 1 / (recipe.batches_per_epoch or 1)
    size = recipe.batch_size or math.ceil(float(data.sizes.mean()) * share)
    return choose(
        blueprint.problem,
        blueprint.initial,
        recipe,
        pool.take(index[0][:4]),
        seats=blueprint.mechanism.most_seats(data.num_clients),
        batch=min(size, int(data.sizes.max())),
        train=section.train,
        threads=section.threads,
        workers=section.workers,
        device=blueprint.device,
        precision=section.precision,
        payload=method_of(blueprint.mechanism.train, "sends") is not None,
        own_loop=blueprint.loop is not None,
        graphs=section.graphs,
    )


def _setup(experiment: Experiment, blueprint: Blueprint, engine: Engine, remote: Federation | None) -> Setup:
    """Return what rounds are played with, now that the engine is known."""
    data, problem, seed = blueprint.data, blueprint.problem, experiment.run.seed

    def initial(k: int) -> Tensor:
        """Return the k-th initial model ``[P]`` on the run's device."""
        return (blueprint.initial if k == 0 else blueprint.another(k)).to(blueprint.device)

    recipe = experiment.train.recipe
    mechanism, guards = blueprint.mechanism, blueprint.guards
    groups = next((guard.groups for guard in guards.values() if guard.groups is not None), None)
    context = Context(
        data.num_clients, experiment.run.rounds, seed, recipe, problem.layout, initial, mechanism.slots(),
        None if groups is None else partial(groups, seed),
    )  # fmt: skip
    here = LocalFederation(
        data, problem, engine, recipe, seed,
        behaviours=blueprint.behaviours, policy=blueprint.policy, profiles=blueprint.profiles,
    )  # fmt: skip
    federation: Federation = here if remote is None else remote
    for guard in guards.values() if remote is None else ():
        federation = guard.clients(federation, data.sizes)
    if groups is None and ("private" in guards or remote is not None):
        terms = guards["private"].terms if "private" in guards else None
        weighed = "noise" in in_slots(mechanism.weigh.needs, ["weigh"])
        half = experiment.federation.half_precision
        federation = Believed(federation, terms, recipe, problem.layout.size, half, weighed)
    if blueprint.refuse is not None:
        federation = Bounded(federation, blueprint.refuse, problem.layout.size, problem.layout.num_parameters)
    for guard in guards.values():
        federation = guard.server(federation, remote is not None, problem.layout.size)
    workers = (experiment.engine.threads or 1) * (experiment.engine.workers or 1)
    root = None if data.server_root is None else Root(data.server_root, engine, recipe, seed)
    return Setup(
        blueprint.mechanism,
        federation,
        context,
        Judge(problem, engine, data.server_validation, workers, data.num_classes, root, blueprint.device),
        data,
        problem,
        engine,
        blueprint.device,
        _tested(experiment, data, remote is not None),
        remote=remote is not None,
        deadline_s=experiment.federation.deadline_s,
        min_replies=experiment.federation.min_replies,
        waiting=blueprint.waiting,
        feedback=Feedback() if experiment.clients.told else None,
        grant=round(experiment.clients.grant * TOKEN),
        vesting=_vesting(experiment),
        floor=round(experiment.ledger.floor * TOKEN),
        about=blueprint.about,
        guards=tuple(guards.values()),
        kept=experiment.run.recomputable,
    )


def _vesting(experiment: Experiment) -> Vesting | None:
    """Return the object that gives grants in parts; None: they are given at once."""
    parts = experiment.clients.vests
    return None if parts == 1 else Vesting(round(experiment.clients.grant * TOKEN), parts)


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
