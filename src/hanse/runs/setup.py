"""Builds an experiment's data, model, mechanism, engine and federation, and refuses combinations that do not fit.

It goes in two steps. :func:`build` makes everything but the engine, a :class:`Blueprint`, and collects every mistake
that can be seen with the data at hand, so that a user gets one list and not one error after another.
:func:`settle_engine` then chooses what trains, writes the choice into the experiment, and returns a
:class:`Ready`, with the :class:`hanse.rounds.round.Setup` that rounds are played with.

Most functions here look for one kind of mistake, and return a line for each one found (an error before round 0, or a
warning). To refuse one more thing, add a function like these and call it in :func:`build`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hanse.base.errors import UserError, import_path, named
from hanse.base.factories import call, misspelt
from hanse.base.streams import stream
from hanse.core.calling import method_of
from hanse.core.entry import TOKEN
from hanse.core.part import Context, Mechanism, Size, in_slots
from hanse.core.port import Federation
from hanse.core.telling import MOST_CLIENTS, About, describe
from hanse.data import FederatedData, Samples
from hanse.data import build as build_data
from hanse.data.build import with_own
from hanse.data.choices import OBJECT
from hanse.data.dataset import Dataset
from hanse.data.federated import RemoteData
from hanse.federation.behaviour import Behaviour
from hanse.federation.local import LocalFederation
from hanse.federation.norm_bound import Bounded, build_refusal
from hanse.federation.policy import POLICIES
from hanse.federation.privacy import InState, Privacy, Private
from hanse.federation.profiles import Profile, build_profiles
from hanse.federation.registry import BEHAVIOURS
from hanse.federation.secure_sums import Secured, SecureSums
from hanse.learning.agreement import settle, why_unfit
from hanse.learning.by_name import own_module
from hanse.learning.coalitions import metric_of
from hanse.learning.engines import EngineChoice, choose, pick_device
from hanse.learning.generator import why_no_head
from hanse.learning.job import Engine, Problem
from hanse.learning.loop import WITH_PENALTY, Loop, LoopEngine
from hanse.learning.losses import balanced, build_objective
from hanse.learning.metrics import build_metrics
from hanse.learning.models import Factory, build_problem, structure
from hanse.learning.sequences import is_text
from hanse.learning.sequential import SequentialEngine
from hanse.learning.slopes import why_no_slope
from hanse.mechanisms.feedback import Feedback
from hanse.mechanisms.judging import judged, who_judges
from hanse.mechanisms.registry import REASONS, refuse_late, refuse_sums, rules, unfit, unmet_needs
from hanse.mechanisms.value import GroupPath
from hanse.mechanisms.value import Path as PathValues
from hanse.rounds.arrivals import Waiting
from hanse.rounds.clipping import AdaptiveClip
from hanse.rounds.grants import Vesting
from hanse.rounds.judge import Judge, Root
from hanse.rounds.round import Setup
from hanse.rounds.sizes import ProvedSizes
from hanse.runs.config import Experiment, MechanismSection, ModelSection
from hanse.runs.metrics import missing_metrics, refused_metrics
from hanse.runs.privacy import noised, private_loop, private_of, unfit_private
from hanse.runs.run_record import load_run

_COMPARED = 64  # samples at most on which model and engine are tried before round 0

# clients on a network train themselves: numbers are those of one thread
REMOTE = EngineChoice("sequential", 1, 1, ["clients train on their own machines"])


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """Everything of a run but its engine.

    Attributes:
        asked: the experiment that was asked for.
        experiment: the same, completed with facts from data and a model given as objects.
        data: the samples, split among the clients.
        problem: the model as a module, its loss, and its metrics.
        initial: ``[P]``, the row at which training starts.
        another: ``another(k)`` is the k-th initial model; ``another(0)`` is ``initial``.
        mechanism: its parts, by slot.
        behaviours: deviating behaviours of some clients, in the order of the file.
        policy: the clients' policy.
        profiles: each client's role, costs and eagerness in a market; empty: not given.
        refuse: the rule that refuses outlying updates; None: none.
        secure: the settings of secure sums; None: the server sees every update.
        private: the clients' privacy settings; None: none.
        waiting: when TRAIN ends, and what becomes of late updates.
        device: where the table lies.
        about: descriptions of parts, behaviours and the policy.
        loop: the user's own training loop; None: hanse's.
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
    secure: SecureSums | None
    private: Privacy | None
    waiting: Waiting
    device: torch.device
    about: About = field(default_factory=About)
    loop: Loop | None = None


@dataclass(frozen=True)
class Ready:
    """A run that is ready to be played.

    Attributes:
        experiment: the given experiment with all defaults and the chosen engine.
        setup: the setup of its rounds.
        said: lines to print at the start: why this engine, and warnings.
    """

    experiment: Experiment
    setup: Setup
    said: Sequence[str] = ()


@dataclass(frozen=True)
class Own:
    """Data and model given as Python objects instead of by the experiment.

    Attributes:
        data: in any form that :mod:`hanse.data.own` reads; None: the experiment's source.
        model: a module, or a function ``(input_shape, num_classes, **options)`` that returns one; None: the
            experiment's.
    """

    data: Any = None
    model: nn.Module | Factory | None = None


def build(experiment: Experiment, data: FederatedData | None = None, own: Own = Own()) -> Blueprint:
    """Build data, model, mechanism and behaviours, and refuse what does not fit together.

    Args:
        experiment: what to build.
        data: the data, if already known: on a network, the server's knowledge of them.
        own: data and model given as objects.

    Raises:
        UserError: with a line for each mistake.
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
    misfit = _one_answer(experiment, data) or _unfit(experiment, data, problem, device or torch.device("cpu"))
    lines += [lack.line for lack in unmet_needs(mechanism, _given(experiment, data, problem, mechanism, bool(misfit)))]
    lines += [*_too_many(experiment.mechanism.table, data.num_clients), *misfit]
    lines += _not_remembered(experiment, data, mechanism)
    loop = None if (given := experiment.train.loop) is None else tried(lambda: Loop.of(given, "train.loop"))
    lines += [] if loop is None else _not_for_loops(experiment, mechanism, loop)
    lines += [*refused_metrics(problem, data, _tested(experiment, data, False)), *_no_utility(data, problem, mechanism)]
    lines += [] if misfit else _no_slope(data, problem, mechanism)
    seats = _seats(mechanism, data)
    lines += [*_too_few(experiment, seats), *_by_size(experiment, mechanism, data)[1]]
    lines += [*_unfit_late(experiment, mechanism), *_unfit_sums(experiment, mechanism, seats)]
    lines += [*_no_bonds(experiment), *_not_kept(experiment)]
    secure, private = tried(lambda: _secure(experiment, mechanism)), tried(lambda: private_of(experiment, data.sizes))
    loop = loop if private is None else tried(lambda: private_loop(private, problem, loop))
    waiting = tried(lambda: _waiting(experiment, seats))
    acting = {name: tried(partial(_behaviour, name, options)) for name, options in experiment.behaviour.items()}
    lines += _no_such_clients(acting, data.num_clients)
    lines += unfit_private(experiment, problem, mechanism, acting, loop_lacks(mechanism, "plain"))
    policy = tried(lambda: call(*named(clients.policy, "clients.policy", POLICIES), "clients.policy"))
    profiles = tried(lambda: build_profiles(clients.profiles, data.num_clients, seed))
    refuse = tried(lambda: build_refusal(experiment.federation.refuse))
    if clients.told and mechanism.value is None:
        lines.append(f"clients.told: true: needs {REASONS['values']}")
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
        secure=secure,
        private=private,
        waiting=waiting,
        device=device,
        about=_told(data, mechanism, acting, policy, profiles, seed),
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
    """Return what parts, behaviours and the policy say of themselves, with the clients' names."""
    description = describe(mechanism.slots(), acting, policy, profiles, data.num_clients, seed)
    if len(data.names) > MOST_CLIENTS:
        return description
    return replace(description, names=tuple(name[:80] or "?" for name in data.names))


def _settled(
    experiment: Experiment, data: FederatedData | None, own: Own
) -> tuple[Experiment, FederatedData, Callable[[int], tuple[Problem, Tensor]]]:
    """Return the experiment with all that data and model decide written in, the data, and what makes the model: its
    problem and its row ``[P]`` by the row's number.
    """
    if data is None:
        spec, dataset = with_own(experiment.data, own.data)
        _refuse_one_class(dataset)
        experiment = experiment.model_copy(update={"data": spec})
        data = build_data(spec, dataset)
    experiment, another = _modelled(experiment, data, own.model)
    if (chosen := judged(experiment.mechanism.table, experiment.mechanism.built, data.server_validation)) is not None:
        experiment = experiment.model_copy(update={"mechanism": MechanismSection(**chosen)})
    return experiment, data, another


def _seats(mechanism: Mechanism, data: FederatedData) -> int:
    """Return how many clients train in a round, at most."""
    return min(getattr(mechanism.select, "clients_per_round", data.num_clients), data.num_clients)


def _enough(experiment: Experiment, seats: int) -> int | None:
    """Return how many sound replies end a round's training; None: all are waited for. A share is of the seats,
    rounded up.
    """
    given = experiment.federation.enough
    return max(1, math.ceil(given * seats - 1e-9)) if isinstance(given, float) else given  # 0.55 of 20 is 11


def _too_few(experiment: Experiment, seats: int) -> list[str]:
    """Return a line for numbers of replies that a round cannot have, or with which it would end before it may count."""
    least, enough, given = experiment.federation.min_replies, _enough(experiment, seats), experiment.federation.enough
    lines = [f"federation.min_replies: {least}: more than the {seats} seats of a round"] if least > seats else []
    if enough is not None and enough > seats:
        lines.append(f"federation.enough: {given}: more than the {seats} seats of a round")
    if enough is not None and enough < least:
        share = f" ({enough} of {seats} seats)" if isinstance(given, float) else ""
        lines.append(f"federation.enough: {given}{share}: must be at least federation.min_replies, {least}")
    return lines


def _unfit_late(experiment: Experiment, mechanism: Mechanism) -> list[str]:
    """Return a line for each thing that does not go with ``late = "next"``."""
    if experiment.federation.late == "drop":
        return []
    lines = [f"federation.late: 'next': {line}" for line in refuse_late(mechanism)]
    if experiment.train.recipe.remembers:
        name = next(iter(experiment.train.recipe.remembered))
        lines.append(f"federation.late: 'next': train.{name} goes by each client's last training, which may be late")
    return [f"{line}: must be 'drop'" for line in lines]


def _secure(experiment: Experiment, mechanism: Mechanism) -> SecureSums | None:
    """Return which updates are summed together; None: the server sees every update.

    Groups stay the same unless members' values need others: sums of groups that change tell a member's mean update.
    """
    given, regroup = experiment.federation.secure, isinstance(mechanism.value, GroupPath)
    return None if given is None else call(SecureSums, {"regroup": regroup, **given}, "federation.secure")


def _unfit_sums(experiment: Experiment, mechanism: Mechanism, seats: int) -> list[str]:
    """Return a line for each thing that does not go with sums of groups in the place of single updates."""
    section = experiment.federation
    if section.secure is None:
        return []
    lines = [f"federation.secure: {line}" for line in refuse_sums(mechanism)]
    if isinstance(group := section.secure.get("group", 3), int) and group > seats:
        lines.append(f"federation.secure.group: {group}: more than the {seats} seats of a round")
    if section.secure.get("regroup") is False and isinstance(mechanism.value, GroupPath):
        lines.append("federation.secure.regroup: false: 'group_path' tells members apart by groups that change")
    lines += [
        f"federation.{key}: {given!r}: not with federation.secure: {why}"
        for key, given, wrong, why in (
            ("engine", section.engine, section.engine != "local", "virtual nodes hide nothing; 'local' is equal"),
            ("refuse", section.refuse, section.refuse is not None, "it looks at single updates"),
            ("enough", section.enough, section.enough is not None, "a group is summed once all have answered"),
            ("late", section.late, section.late != "drop", "a late update has no group to be summed with"),
            ("replay", section.replay, section.replay is not None, "the order of single updates is not known"),
        )
        if wrong
    ]
    if experiment.sizes.proved:
        lines.append("sizes.proved: true: not with federation.secure, whose sums are weighted by the sizes said")
    if experiment.train.recipe.remembers:
        name = next(iter(experiment.train.recipe.remembered))
        lines.append(f"train.{name}: goes by each client's own last training, and not with federation.secure")
    return lines


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
    return Waiting(_enough(experiment, seats), section.late, section.max_staleness, order)


def _at_once(experiment: Experiment, behaviours: Sequence[Behaviour]) -> list[str]:
    """Return a warning if rounds are to end early in a simulation where all replies come at once."""
    section = experiment.federation
    early = section.enough is not None or section.late == "next"
    timed = any(type(b).takes is not Behaviour.takes for b in behaviours) or section.replay is not None
    if not early or timed or section.engine != "local":
        return []
    key = "enough" if section.enough is not None else "late"
    return [
        f"warning: federation.{key}: {getattr(section, key)!r}: in a simulation all replies come at once; a behaviour "
        "such as 'speed' makes clients take time"
    ]


def _no_such_clients(behaviours: Mapping[str, Behaviour | None], num_clients: int) -> list[str]:
    """Return a line for each client that a behaviour names and that does not exist."""
    return [
        f"behaviour.{name}.clients: {c}: there is no such client; allowed: 0 to {num_clients - 1}"
        for name, behaviour in behaviours.items()
        for c in getattr(behaviour, "clients", ())
        if isinstance(c, int) and not 0 <= c < num_clients
    ]


def build_model(
    experiment: Experiment, data: FederatedData, given: nn.Module | Factory | None = None, number: int = 0
) -> tuple[Problem, Tensor]:
    """Return the model with its loss and metrics, and its first row.

    Args:
        experiment: names the model, loss and metrics.
        data: the data, which fix the model's inputs and outputs.
        given: a model given as an object, instead of by name.
        number: which of several initial models; 0 is the usual one.

    Returns:
        The problem (module, layout of a row, loss, metrics) and the row ``[P]``.

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
    """Return the experiment with what is recorded of a model given as an object, and what makes the k-th model and its
    row.

    Raises:
        UserError: the run's model was given as an object and is not given now, or what is given is no model.
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
        record = {"object": type(module).__name__, "fingerprint": structure(module)}
        section = ModelSection(name=OBJECT, **record, **kept)
        experiment = experiment.model_copy(update={"model": section})
    return experiment, made


HOOKS = ("present", "holds", "sees", "claims", "on_request", "on_reply", "takes", "tells")


def _behaviour(name: str, options: dict[str, Any]) -> Behaviour:
    """Return a behaviour by its name or import path.

    Raises:
        UserError: there is none, its options are wrong, or it is a class that would never do anything, such as one with
            a misspelt method.
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


def _by_size(experiment: Experiment, mechanism: Mechanism, data: FederatedData) -> tuple[list[str], list[str]]:
    """Return what the mechanism's parts say against a run of this size: warnings, and lines for which it is refused."""
    seats = _seats(mechanism, data)
    size = Size(data.num_clients, seats, _enough(experiment, seats) or seats, experiment.run.rounds)
    said = unfit(mechanism, size)
    warnings = [line for line in said if line.startswith("warning: ")]
    return warnings, [line for line in said if line not in warnings]


def _too_many(table: dict[str, Any], num_clients: int) -> list[str]:
    """Return a line if more clients a round are asked for than there are clients.

    A mechanism's default number of clients a round is not refused: it becomes smaller by itself.
    """
    select = table.get("select")
    asked = {
        "mechanism": table.get("clients_per_round"),
        "mechanism.select": select.get("clients_per_round") if isinstance(select, dict) else None,
    }
    many = {f"{where}.clients_per_round": m for where, m in asked.items()}
    return [
        f"{name}: {m}: more than the {num_clients} clients that there are"
        for name, m in many.items()
        if isinstance(m, int) and m > num_clients
    ]


def _no_utility(data: FederatedData, problem: Problem, mechanism: Mechanism) -> list[str]:
    """Return a line if values are asked for in a utility that the server's validation set does not have."""
    utility, samples = getattr(mechanism.value, "utility", None), data.server_validation
    if not isinstance(utility, str) or samples is None or not len(samples):
        return []
    try:
        metric_of(problem, samples, utility)
    except UserError as wrong:
        told = (line.removeprefix("utility is ").removeprefix("utility: ") for line in wrong.lines)
        return [f"mechanism.value.utility: {line}" for line in told]
    return []


def _no_slope(data: FederatedData, problem: Problem, mechanism: Mechanism) -> list[str]:
    """Return a line if values follow a gradient that the model does not have."""
    samples = data.server_validation
    if not isinstance(mechanism.value, PathValues) or samples is None or not len(samples):
        return []
    why = why_no_slope(problem, samples)
    told = f"mechanism.value: Path needs a loss with a gradient, and {why}; 'exact', 'mixture' and 'gtg' need none"
    return [] if why is None else [told]


def _not_remembered(experiment: Experiment, data: FederatedData, mechanism: Mechanism) -> list[str]:
    """Return a line for each training setting that depends on clients' earlier rounds and cannot be met here."""
    recipe, lines = experiment.train.recipe, []
    if recipe.remembers and (experiment.federation.engine != "local" or isinstance(data, RemoteData)):
        changed = [f"{name} = '{getattr(recipe, name)}'" for name in recipe.remembered]
        lines.append(f"train.{changed[0]}: is for clients of this process, not on a network")
    shared = [block for block in mechanism.train.blocks() if block.initial != "zero"]
    if recipe.statistics == "own" and (len(shared) != 1 or shared[0].count != 1):
        lines.append("train.statistics: 'own': needs a mechanism with one shared model, such as 'fedavg'")
    if recipe.order == "by_class" and (data.num_classes is None or is_text(data.pool([0])[0])):
        lines.append("train.order: 'by_class': needs samples with a class each; must be 'shuffled'")
    return lines


def _not_for_loops(experiment: Experiment, mechanism: Mechanism, loop: Loop) -> list[str]:
    """Return a line for each thing that is asked of training and that the user's own ``loop`` does not do."""
    lines, given = [], experiment.sections()["train"]["loop"]
    if (why := loop_lacks(mechanism, "penalty" if loop.takes_penalty else "plain")) is not None:
        lines.append(f"train.loop: '{given}': {why}")
    if experiment.train.order != "shuffled":
        lines.append(f"train.order: '{experiment.train.order}': a training loop of one's own has its own order")
    if experiment.data.augment is not None:
        lines.append(f"data.augment: '{experiment.data.augment}': a training loop of one's own changes images itself")
    return lines


def loop_lacks(mechanism: Mechanism, loop: str | None) -> str | None:
    """Return what a mechanism asks of training that a loop of the user's own does not do; None: it does everything.

    Args:
        mechanism: the mechanism.
        loop: "plain"; "penalty" if the loop takes the pulls and tilts of seats; None: hanse's own training.
    """
    train = mechanism.train
    name = type(train).__name__
    if loop is not None and method_of(train, "sends") is not None:
        return f"does not add the loss that mechanism.train {name} adds to each batch; take hanse's own training"
    if loop == "plain" and "penalty" in in_slots(train.needs, ["train"]):
        return f"takes no penalty, and mechanism.train {name} pulls or tilts what clients train; must be {WITH_PENALTY}"
    return None


def _one_answer(experiment: Experiment, data: FederatedData) -> list[str]:
    """Return a line if the model gives one answer a sample, and the samples (texts) ask for one at each position."""
    name, tested = experiment.model.name, data.server_test or data.server_validation
    samples = data.pool([0])[0] if tested is None else tested
    if name not in ("logistic", "mlp") or not is_text(samples):
        return []
    return [
        f"model.name: '{name}': gives one answer a sample, and data.source '{experiment.data.source.name}' asks for "
        "one at each position: must be 'lstm', 'lora' or an import path"
    ]


def _unfit(experiment: Experiment, data: FederatedData, problem: Problem, device: torch.device) -> list[str]:
    """Return a line if the model cannot take the samples, or its outputs are not what their labels need."""
    few = _some(data)
    reason = why_unfit(problem, few, data.num_classes, device) if len(few) else None
    where = f"model.name: {experiment.model.name!r}"
    if experiment.model.name == OBJECT:
        where = f"model: {(experiment.model.model_extra or {}).get('object')}"
    return [] if reason is None else [f"{where}: the model {reason}"]


def _refuse_one_class(dataset: Dataset | None) -> None:
    """Raise UserError for data of the user's own whose labels are all the same: there is nothing to learn."""
    if dataset is None or dataset.num_classes is None or not len(dataset.train):
        return
    labels = torch.cat([dataset.train.y, dataset.test.y]) if len(dataset.test) else dataset.train.y
    if int(labels.min()) == int(labels.max()):
        raise UserError(
            f"data: {dataset.name}: all {len(labels)} labels are of one class, so that there is nothing to learn: is "
            "data.source.target the right column?"
        )


_ONE = 1e-4  # how far the sum of probabilities may be from 1


def _probabilities(experiment: Experiment, problem: Problem, data: FederatedData) -> list[str]:
    """Return a warning if a model of the user's own returns probabilities where its loss expects logits."""
    name = experiment.model.name
    if not (name == OBJECT or ":" in name) or problem.objective is not None or problem.regression:
        return []
    few = _some(data)
    module = copy.deepcopy(problem.module).cpu().eval()
    try:
        with torch.no_grad():
            outputs = module(few.x)
    except Exception:  # whether it can be used at all was looked at before
        return []
    if outputs.ndim != 2 or outputs.shape[1] < 2 or not len(outputs) or float(outputs.min()) < 0:
        return []
    if float((outputs.sum(dim=1) - 1).abs().max()) <= _ONE:
        why = "each row sums to 1"
    elif float(outputs.max()) <= 1 and isinstance([*module.modules()][-1], nn.Sigmoid):
        why = "its last layer is a sigmoid"
    else:
        return []
    return [
        f"warning: the model returns probabilities ({why}), and cross-entropy expects logits: it learns "
        "slowly and its loss is wrong; leave out that last step"
    ]


def _some(data: FederatedData) -> Samples:
    """Return a few samples that this process can see, to try a model on: the server's, or else the largest client's."""
    tested = data.server_validation or data.server_test
    if not tested:
        pool, [index] = data.pool([int(data.sizes.argmax())])
        tested = pool.take(index[:_COMPARED])
    return Samples(tested.x[:_COMPARED], tested.y[:_COMPARED], tested.inputs)


def _given(
    experiment: Experiment, data: FederatedData, problem: Problem, mechanism: Mechanism, unfit: bool
) -> frozenset[str]:
    """Return the needs of parts that the experiment meets by itself, such as a validation set at the server.

    Args:
        unfit: the model is refused already, so it is not tried again to see whether it ends in a linear layer.
    """
    quiet = experiment.train.loop is not None or experiment.federation.private is not None
    given = set[str]() if quiet else {"losses"}
    if data.server_validation is not None and len(data.server_validation):
        given.add("validation")
    if data.server_root is not None:
        given.add("root")
    given.add("pooled" if experiment.data.partition.name == "pooled" else "clients")
    if experiment.data.client_validation > 0:
        given.add("client_validation")
    if experiment.federation.secure is not None:
        given.add("secure")
    if (
        any("head" in in_slots(part.needs, [slot]) for slot, part in mechanism.slots().items())
        and data.num_classes is not None
        and not problem.one_output
    ):
        pool, _ = data.pool([0])
        if unfit or why_no_head(problem.module, problem.layout, pool.x[:2]) is None:
            given.add("head")
    return frozenset(given)


def settle_engine(blueprint: Blueprint, *, federation: Federation | None = None) -> Ready:
    """Choose the engine, by the rule of ``docs/engines.md`` if it is "auto", and make the setup.

    Args:
        blueprint: the result of :func:`build`.
        federation: the port to remote clients; None: clients are in this process. Remote clients train themselves, and
            the engine here only scores, with one thread.

    Raises:
        UserError: the experiment needs clients in this process.
    """
    asked, experiment = blueprint.asked, blueprint.experiment
    if federation is not None:
        refuse_on_a_network(experiment, blueprint.mechanism)
    choice = _choose(experiment, blueprint) if federation is None else REMOTE
    compared = (blueprint.initial, _some(blueprint.data), blueprint.device, experiment.engine.precision)
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
    experiment, mechanism = noised(experiment, blueprint.private), blueprint.mechanism
    if blueprint.loop is not None and isinstance(engine, SequentialEngine):
        engine = LoopEngine(engine, blueprint.loop)
    said = [
        *asked.mechanism.notes,
        *choice.why,
        *differs,
        *_by_size(experiment, mechanism, blueprint.data)[0],
        *missing_metrics(problem, blueprint.data, _tested(experiment, blueprint.data, False)),
        *_not_held(mechanism),
        *_probabilities(experiment, problem, blueprint.data),
        *_never_asked(experiment, mechanism),
        *who_judges(asked.mechanism.built, mechanism),
        *_not_by_steps(mechanism, blueprint.loop),
        *([] if federation is not None else _at_once(experiment, blueprint.behaviours)),
    ]
    return Ready(experiment, _setup(experiment, blueprint, engine, federation), said)


def refuse_on_a_network(experiment: Experiment, mechanism: Mechanism) -> None:
    """Raise UserError with a line for everything in the experiment that only clients of this process can do."""
    data, lines = experiment.data, list[str]()
    if experiment.federation.replay is not None:
        lines.append("federation.replay: on a network updates come when they come; leave it out")
    if experiment.federation.late == "next":
        if experiment.federation.refuse is not None:
            lines.append(
                "federation.late: 'next': federation.refuse sees no late updates on a network; allowed: 'drop'"
            )
        own = [block.name for block in mechanism.train.blocks() if block.private]
        if own:
            lines.append(
                f"federation.late: 'next': the rows '{own[0]}' lie with their owners on a network, and "
                "move in the round in which they were trained; allowed: 'drop'"
            )
    if experiment.federation.secure is not None and experiment.federation.half_precision:
        lines.append(
            "federation.half_precision: true: not with federation.secure: members sign the model that was sent"
        )
    if experiment.sizes.proved and not experiment.sizes.auditors:
        lines.append("sizes.auditors: []: on a network somebody must look at the samples: name a public key")
    if experiment.eval.model == "trained":
        lines.append("eval.model: 'trained': on a network clients test what they hold; allowed: 'deployed'")
    if data.client_test_from == "classes":
        lines.append(
            "data.client_test_from: 'classes': on a network clients' test samples count alike; allowed: 'own', 'server'"
        )
    if data.augment is not None:
        lines.append(f"data.augment: '{data.augment}': on a network samples are trained on as they are; leave it out")
    if lines:
        raise UserError(*(f"{line}, or take federation.engine = 'local'" for line in lines))


def _not_held(mechanism: Mechanism) -> list[str]:
    """Return a warning if clients train rows to hold them, and the deploy part hands out other rows."""
    made = {block.name for block in mechanism.train.blocks() if block.held}
    if not made or mechanism.deploy is None or made & in_slots(mechanism.deploy.reads, ["deploy"]):
        return []
    part, rows = type(mechanism.deploy).__name__, "', '".join(sorted(made))
    return [f"warning: mechanism.deploy: {part} hands out none of the rows '{rows}' that clients train to hold"]


def _never_asked(experiment: Experiment, mechanism: Mechanism) -> list[str]:
    """Return a warning if a weigh part is named that only averages, where every client trains a row of its own."""
    if "weigh" not in experiment.mechanism.table or mechanism.weigh.fills:
        return []
    if "groups" in in_slots(mechanism.train.gives, ["train"]):
        return []
    part, train = type(mechanism.weigh).__name__, type(mechanism.train).__name__
    return [f"warning: mechanism.weigh: {part} is never asked: with {train} every client trains a row of its own"]


def _not_by_steps(mechanism: Mechanism, loop: Loop | None) -> list[str]:
    """Return a warning for each part whose formula takes the number of steps as SGD's, as the user's own loop may step
    otherwise.
    """
    wrong = {"train": "its variates are not mean gradients", "weigh": "its weights are not those of its paper"}
    return [
        f"warning: train.loop: {type(part).__name__} takes its steps for SGD's at train.lr and train.momentum: with "
        f"another optimiser, a schedule or clipping {wrong[slot]}"
        for slot, part in mechanism.slots().items()
        if loop is not None
        and slot in wrong
        and any("sgd" in in_slots(one.needs, [slot]) for one in rules(part))  # fedadam of fednova needs it, too
    ]


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
        seats=_seats(blueprint.mechanism, data),
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
    mechanism = blueprint.mechanism
    secure = blueprint.secure
    context = Context(
        data.num_clients, experiment.run.rounds, seed, recipe, problem.layout, initial, mechanism.slots(),
        None if secure is None else partial(secure.groups, seed),
    )  # fmt: skip
    here = LocalFederation(
        data, problem, engine, recipe, seed,
        behaviours=blueprint.behaviours, policy=blueprint.policy, profiles=blueprint.profiles,
    )  # fmt: skip
    federation: Federation = here if remote is None else remote
    accounts, private = None, blueprint.private
    if private is not None and remote is None:
        accounts = InState(private)
        federation = Private(here, private, accounts, recipe, data.sizes, seed)
    if blueprint.refuse is not None:
        federation = Bounded(federation, blueprint.refuse, problem.layout.size, problem.layout.num_parameters)
    if secure is not None and remote is None:
        federation = Secured(federation, secure, seed, problem.layout.size)
    elif secure is not None:
        from hanse.federation.masked_sums import MaskedSums  # here, since it takes the package cryptography

        federation = MaskedSums(federation, secure, seed, problem.layout.size)
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
        sizes=_proving(experiment, remote is not None),
        grant=round(experiment.clients.grant * TOKEN),
        vesting=_vesting(experiment),
        floor=round(experiment.ledger.floor * TOKEN),
        about=blueprint.about,
        accounts=accounts,
        clipping=None if private is None or private.quantile is None else AdaptiveClip(private),
        kept=experiment.run.recomputable,
    )


def _proving(experiment: Experiment, remote: bool) -> ProvedSizes | None:
    """Return what asks members to prove their sizes; None: what they say counts."""
    settings = experiment.sizes
    if not settings.proved:
        return None
    return ProvedSizes(
        settings.leaves, round(settings.bond * TOKEN), settings.repeats, frozenset(settings.auditors), fresh=remote
    )


def _vesting(experiment: Experiment) -> Vesting | None:
    """Return what gives grants in parts; None: they are given at once."""
    parts = experiment.clients.vests
    return None if parts == 1 else Vesting(round(experiment.clients.grant * TOKEN), parts)


def _not_kept(experiment: Experiment) -> list[str]:
    """Return a line for everything in the experiment that keeps a run from being recomputed."""
    if not experiment.run.recomputable:
        return []
    lines = []
    if experiment.federation.enough is not None or experiment.federation.late == "next":
        lines.append("run.recomputable: true: late updates are not kept; leave out federation.late and enough")
    if experiment.federation.secure is not None:
        lines.append("run.recomputable: true: of secure sums nobody can value an update; leave out federation.secure")
    if experiment.data.root:
        lines.append("run.recomputable: true: an auditor has no root set; leave out data.root")
    if experiment.sizes.proved:
        lines.append("run.recomputable: true: audits of sizes cannot be played again; leave out sizes.proved")
    return lines


def _no_bonds(experiment: Experiment) -> list[str]:
    """Return a line for a bond that nobody can pay, and for what has no effect."""
    said, grant = experiment.sizes, experiment.clients.grant / experiment.clients.vests - experiment.ledger.floor
    if not said.proved:
        changed = [name for name, value in said if value != type(said).model_fields[name].get_default()]
        return [f"sizes.{name}: {getattr(said, name)!r}: of no effect without sizes.proved = true" for name in changed]
    if said.bond > grant:
        return [f"sizes.bond: {said.bond:g}: nobody can pay it: must be at most the grant of {grant:g} tokens"]
    return []


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
