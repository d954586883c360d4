"""Refuses, before round 0, settings of an experiment that do not fit together.

What goes with what is in the list of :mod:`hanse.mechanisms.fits`: :func:`surroundings` says which of its words an
experiment has. Each other function here looks at numbers, or at the data and the model, and returns a line for each
mistake: the setting, its value and what is allowed. Call a new one in :func:`objections`, or in
:mod:`hanse.runs.setup` if it needs other arguments. Mistakes within one section are refused in
:mod:`hanse.runs.config` (for data: :mod:`hanse.data.spec`).
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from hanse.base.errors import RAISED, UserError, collected, nearest
from hanse.base.factories import OBJECT
from hanse.base.plain_text import quantity
from hanse.base.pytorch import torch
from hanse.base.streams import stream
from hanse.core.part import Context, Mechanism, Size, in_slots
from hanse.core.table import Ints
from hanse.data import FederatedData, Samples
from hanse.data.dataset import Dataset
from hanse.data.federated import RemoteData
from hanse.federation.behaviour import Behaviour
from hanse.federation.local import server_sets
from hanse.learning.agreement import why_unfit
from hanse.learning.coalitions import metric_of
from hanse.learning.generator import why_no_head
from hanse.learning.job import Problem, smallest_batch
from hanse.learning.losses import OF_CLASSES
from hanse.learning.metrics import OF_TEXTS, WHERE, Metric
from hanse.learning.sequences import is_text
from hanse.learning.slopes import why_no_slope
from hanse.mechanisms.fits import WARNS, clashes, said, unfit, words_of
from hanse.mechanisms.mechanism_table import without_effect
from hanse.mechanisms.registry import word_of
from hanse.runs.chance import NAMED
from hanse.runs.config import Experiment
from hanse.runs.guards import GUARDS, asked

if TYPE_CHECKING:
    from hanse.learning.loop import Loop

_COMPARED = 64  # samples at most on which model and engine are tried before round 0
_ONE = 1e-4  # how far the sum of probabilities may be from 1
_TRIED = 256  # samples on which a metric of the user's own is tried


Acting = Mapping[str, Behaviour | None]
"""The behaviours by name. None stands for one that was already refused."""


def objections(
    experiment: Experiment, data: FederatedData, problem: Problem, acting: Acting, tested: Ints
) -> list[str]:
    """Return what is to be said of numbers, data and model before round 0, a line each.

    A line that begins with "warning: " is printed; any other means that the run is refused.

    Args:
        experiment: the experiment.
        data: the data.
        problem: the model and its loss.
        acting: the behaviours.
        tested: the ids ``[n]`` of the clients of this process that test.
    """
    mechanism = experiment.mechanism.built
    seats = mechanism.most_seats(data.num_clients)
    fewest = enough_replies(experiment, seats) or seats
    of_members = experiment.clients.members
    members = data.num_clients - len(of_members) + len({*of_members.values()})
    return [
        *no_utility(data, problem, mechanism),
        *unfit_numbers(experiment, problem, data.num_clients, seats),
        *unfit(mechanism, Size(data.num_clients, seats, fewest, experiment.run.rounds, one_model(mechanism), members)),
        *no_such(acting, data, of_members),
        *undefined_metrics(problem, data, tested),
        *warn_of_probabilities(experiment, problem, data),
        *unused_parts(experiment, mechanism),
        *warn_of_overshooting(experiment, mechanism),
    ]


def surroundings(
    experiment: Experiment, data: FederatedData, problem: Problem, acting: Acting, loop: Loop | None, remote: bool
) -> dict[str, str]:
    """Return the words of what surrounds the mechanism, for :mod:`hanse.mechanisms.fits`.

    Every setting that is not at its default is one. Others say what the experiment gives.

    Args:
        experiment: the experiment.
        data: the data.
        problem: the model and its loss.
        acting: the behaviours.
        loop: the user's own training loop. None: hanse's training is used.
        remote: whether the clients are in other processes.

    Returns:
        What a line about each word begins with, such as "train.epochs: 2".
    """
    around, mechanism = changed(experiment), experiment.mechanism.built
    needed = {word for _, _, words in words_of(mechanism) for word in words}
    federation, layout, given = experiment.federation, problem.layout, experiment.federation.private
    moving = [f"behaviour.{name}" for name, b in acting.items() if b and type(b).holds is not Behaviour.holds]
    there = {
        "validation": bool(data.server_validation),
        "root": data.server_root is not None,
        "pooled" if experiment.data.partition.name == "pooled" else "clients": True,
        "client_validation": experiment.data.client_validation > 0,
        "secure": federation.secure is not None,
        # a late update is not held against the noise that it says
        "noise": given is not None and federation.secure is None and federation.late == "drop",
        "losses": experiment.train.loop is None and given is None,
        "valued": mechanism.value is not None,
        "time": any(b is not None and type(b).takes is not Behaviour.takes for b in acting.values()),
        "one model": one_model(mechanism),
        "classes": data.num_classes is not None and not is_text(data.pool([0])[0]),
        "buffers": layout.size != layout.num_parameters or smallest_batch(problem) > 1,
        "frozen": problem.frozen_columns is not None,
        "head": "head" in needed and _has_head(data, problem),
    }
    around |= {word: "" for word, is_so in there.items() if is_so}
    if loop is not None and not loop.takes_penalty:
        around["train.loop/plain"] = around["train.loop"]
    if "sizes" in needed and "proved sizes" not in around:
        around["claimed sizes"] = "sizes.proved: false"
    if "ranks" in needed:
        around["values that rank"] = f"mechanism.value: {word_of(mechanism.value, 'value')} only ranks"
    if moving:
        around["moving samples"] = ", ".join(moving)
    if remote:
        around |= {f"{word}/network": head for word, head in around.items()} | {"network": ""}
    if isinstance(data, RemoteData):  # on a network, and where a run is played again from what its clients sent
        around["time"] = ""
    return around


def _has_head(data: FederatedData, problem: Problem) -> bool:
    """Say whether the model ends in a linear layer, or cannot take the samples at all, which is refused by itself."""
    if data.num_classes is None or problem.one_output:
        return False
    try:
        return why_no_head(problem.module, problem.layout, data.pool([0])[0].x[:2]) is None
    except RAISED:
        return True


def changed(experiment: Experiment) -> dict[str, str]:
    """Return what a line about each setting that is not at its default begins with, by the setting's name.

    A text, and what is in a table, has names of its own: "federation.engine/ray", "federation.private/unit/sample".
    The word "tokens" is added if the mechanism or the proof of sizes moves some.
    """
    found = {f"behaviour.{name}": f"behaviour.{name}" for name in experiment.behaviour}
    for name, section in experiment:
        if not isinstance(section, BaseModel):
            continue
        plain = section.model_dump(mode="json")
        for key, field in type(section).model_fields.items():
            if getattr(section, key) == field.get_default(call_default_factory=True):
                continue
            value, where = plain[key], f"{name}.{key}"
            table = value if isinstance(value, dict) else {}
            found[where] = where if isinstance(value, dict) else f"{where}: {_toml(value)}"
            found |= {f"{where}/{value}": found[where]} if isinstance(value, str) else {}
            for option, one in table.items():
                names = (f"{where}/{option}", f"{where}/{option}/{one}") if one is not None else ()
                found |= dict.fromkeys(names, f"{where}.{option}: {_toml(one)}")
    for setting in asked(experiment):
        found |= GUARDS[setting](experiment).provides() if setting in GUARDS else {}
    if experiment.mechanism.built.settle is not None:
        found["tokens"] = ""
    return found


def _toml(value: Any) -> str:
    """Return a value as a line shows it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def one_model(mechanism: Mechanism) -> bool:
    """Say whether clients train one shared model."""
    shared = [block for block in mechanism.train.blocks(Context.tiny()) if block.initial != "zero"]
    return len(shared) == 1 and shared[0].count == 1


def withheld(experiment: Experiment, data: FederatedData, problem: Problem) -> dict[str, str]:
    """Return needs of parts that something withholds, each with text that says what."""
    found, needed = dict[str, str](), said(experiment.mechanism.built.value, "needs", "value")
    if experiment.federation.private is not None:
        found["losses"] = ", which a privacy account (federation.private) keeps"
    elif experiment.train.loop is not None:
        found["losses"] = ", which a loop of one's own (train.loop) need not tell"
    samples = data.server_validation if "slope" in needed else None
    if samples and (why := why_no_slope(problem, samples)) is not None:
        found["slope"] = f", and {why}; 'exact', 'mixture' and 'gtg' need none"
    return found


def enough_replies(experiment: Experiment, seats: int) -> int | None:
    """Return how many sound replies end a round's training, or None for all.

    A share is taken of the seats and rounded up.
    """
    given = experiment.federation.enough
    return max(1, math.ceil(given * seats - 1e-9)) if isinstance(given, float) else given  # 0.55 of 20 is 11


def unfit_numbers(experiment: Experiment, problem: Problem, num_clients: int, seats: int) -> list[str]:
    """Return a line for each number that is larger than the clients or seats that there are, or than another number;
    and one if batches have fewer samples than the model can train on, as batch norm on one.

    A mechanism's default number of clients per round is not refused: it is reduced.
    """
    table, federation, train = experiment.mechanism.table, experiment.federation, experiment.train
    select = table.get("select")
    of_clients = {
        "mechanism.clients_per_round": table.get("clients_per_round"),
        "mechanism.select.clients_per_round": select.get("clients_per_round") if isinstance(select, dict) else None,
        "eval.clients": experiment.eval.clients,
    }
    of_seats = {"federation.min_replies": federation.min_replies, "federation.enough": federation.enough}
    lines = [
        f"{where}: {count}: more than the {quantity(most, word)}"
        for counts, most, word in ((of_clients, num_clients, "client"), (of_seats, seats, "seat"))
        for where, count in counts.items()
        if isinstance(count, int) and count > most
    ]
    enough, given = enough_replies(experiment, seats), federation.enough
    if enough is not None and enough < federation.min_replies:
        share = f" ({enough} of {quantity(seats, 'seat')})" if isinstance(given, float) else ""
        lines.append(f"federation.enough: {given}{share}: must be at least min_replies, {federation.min_replies}")
    size, least = train.batch_size, smallest_batch(problem)
    if train.loop is None and size is not None and size < least:
        lines.append(f"train.batch_size: {size}: the model has batch norm, which needs at least {least} samples")
    return lines


def no_such(behaviours: Acting, data: FederatedData, members: Mapping[str, str]) -> list[str]:
    """Return a line for each client, or set of samples, that a behaviour names and that does not exist, and for each
    client of a member. On a network nobody knows them before they come.
    """
    there, lines = {"own", *server_sets(data)}, list[str]()
    if not isinstance(data, RemoteData):
        names = data.names or [f"client {k}" for k in range(data.num_clients)]
        lost = [name for name in members if name not in names]
        lines += [f"clients.members: '{name}': there is no such client{nearest(name, names)}" for name in lost]
        both = [name for name in names if name in members.values() and name not in members]
        lines += [f"clients.members: '{name}': is a member, and a client of none: must be listed, too" for name in both]
    allowed = f"there is no such client; allowed: 0 to {data.num_clients - 1}"
    for name, one in behaviours.items():
        numbers = [c for c in getattr(one, "clients", ()) if isinstance(c, int)]
        lines += [f"behaviour.{name}.clients: {c}: {allowed}" for c in numbers if not 0 <= c < data.num_clients]
        if (chosen := getattr(one, "trains_on", "own")) not in there:
            what = f"the server has no such samples; allowed: {', '.join(sorted(there))}"
            lines.append(f"behaviour.{name}.trains_on: '{chosen}': {what}")
    return lines


def no_utility(data: FederatedData, problem: Problem, mechanism: Mechanism) -> list[str]:
    """Return a line if values use a utility that the server's validation set does not have."""
    utility, lines = getattr(mechanism.value, "utility", None), list[str]()
    if isinstance(utility, str) and data.server_validation:
        with collected(lines):
            metric_of(problem, data.server_validation, utility)
    return [f"mechanism.value.utility: {re.sub('^utility(:| is) ', '', line)}" for line in lines]


def unfit_model(experiment: Experiment, data: FederatedData, problem: Problem, device: torch.device) -> list[str]:
    """Return a line if the model cannot take the samples, or its outputs are not what their labels need."""
    few = few_samples(data)
    reason = why_unfit(problem, few, data.num_classes, device) if len(few) else None
    where = f"model.name: {experiment.model.name!r}"
    if experiment.model.name == OBJECT:
        where = f"model: {(experiment.model.model_extra or {}).get('object')}"
    return [] if reason is None else [f"{where}: the model {reason}"]


def refuse_one_class(dataset: Dataset | None) -> None:
    """Raise UserError if all labels of the user's own data are the same: there is nothing to learn."""
    if dataset is None or dataset.num_classes is None or not len(dataset.train):
        return
    labels = torch.cat([dataset.train.y, dataset.test.y]) if len(dataset.test) else dataset.train.y
    if int(labels.min()) == int(labels.max()):
        raise UserError(
            f"data: {dataset.name}: all {len(labels)} labels are the same class, so there is nothing to learn: is "
            "data.source.target the right column?"
        )


def warn_of_probabilities(experiment: Experiment, problem: Problem, data: FederatedData) -> list[str]:
    """Return a warning if the user's own model returns probabilities where its loss, one of hanse's, expects logits."""
    name, loss = experiment.model.name, experiment.train.loss
    loss = loss.get("name") if isinstance(loss, Mapping) else loss
    if not (name == OBJECT or ":" in name) or problem.regression or not (loss is None or loss in OF_CLASSES):
        return []
    few, module = few_samples(data), copy.deepcopy(problem.module).cpu().eval()
    why, asks, scales = "each row sums to 1", "cross-entropy", [1.0]
    if problem.one_output:
        why, asks, scales = "even for large inputs its output is from 0 to 1", "bce", [1.0, 1e3, -1e3]
    try:
        with torch.no_grad():
            outputs = [module(few.x if by == 1 else few.x * by) for by in scales]
        likely = all(one.is_floating_point() and one.min() >= 0 and one.max() <= 1 for one in outputs)
        if likely and not problem.one_output:
            [rows] = outputs
            likely = rows.ndim == 2 and rows.shape[1] > 1 and bool((rows.sum(dim=1) - 1).abs().max() <= _ONE)
    except RAISED:  # whether it can be used at all is looked at elsewhere
        return []
    warned = f"warning: the model returns probabilities ({why}), and {asks} expects logits: leave out that last step"
    return [warned] if likely else []


def warn_of_overshooting(experiment: Experiment, mechanism: Mechanism) -> list[str]:
    """Return a warning if each step of SGD throws the parameters beyond the centre to which they are pulled, or beyond
    the 0 to which weight decay pulls them, further than they were before: models then diverge whatever the data are.
    """
    train, adds = experiment.train, dict(mechanism.train.adds)
    pull = train.weight_decay + (float(getattr(mechanism.train, adds["pull"])) if adds.get("pull") else 0.0)
    most = 2 * (1 + train.momentum)  # of lr times the pull: the roots of x^2 - (1 + m - lr mu) x + m reach -1 there
    if train.optimizer != "sgd" or train.loop is not None or not train.lr * pull > most:
        return []
    by = f"{word_of(mechanism.train, 'train')} and weight_decay pull with {pull:.4g}, which throws models ever further"
    return [f"warning: train.lr: {train.lr:g}: {by}: lower it to less than {most / pull:.2g}, or weaken the pull"]


def few_samples(data: FederatedData) -> Samples:
    """Return a few samples that this process can see, to try a model on: the server's, or else the largest client's."""
    tested = data.server_validation or data.server_test
    if not tested:
        pool, [index] = data.pool([int(data.sizes.argmax())])
        tested = pool.take(index[:_COMPARED])
    return Samples(tested.x[:_COMPARED], tested.y[:_COMPARED], tested.inputs)


def unused_parts(experiment: Experiment, mechanism: Mechanism) -> list[str]:
    """Return a warning if clients train rows in order to hold them, but the deploy part gives them other rows; and one
    if a named weigh part only averages groups, but every client trains its own row.
    """
    lines, train = [], word_of(mechanism.train, "train")
    made = {block.name for block in mechanism.train.blocks(Context.tiny()) if block.held}
    read = {word.removeprefix("rows ") for word in said(mechanism.deploy, "needs", "deploy")}
    if made and mechanism.deploy is not None and made.isdisjoint(read):
        part, rows = word_of(mechanism.deploy, "deploy"), "', '".join(sorted(made))
        lines.append(f"warning: mechanism.deploy: {part} hands out none of the rows '{rows}' that clients train")
    grouped = mechanism.weigh.fills or "groups" in in_slots(mechanism.train.gives, ["train"])
    if "weigh" in experiment.mechanism.table and not grouped:
        part = word_of(mechanism.weigh, "weigh")
        lines.append(f"warning: mechanism.weigh: {part} is never used: with {train} every client trains its own row")
    return lines


def idle(experiment: Experiment, around: Mapping[str, str] | None = None) -> list[str]:
    """Return a warning for each setting that has no effect, or another than it should.

    Args:
        experiment: the experiment.
        around: the words of what surrounds the mechanism. None: only what the settings alone say.
    """
    table = experiment.mechanism.table
    around = {**changed(experiment), "network": "", "time": ""} if around is None else around
    lines = clashes(experiment.mechanism.built, around, WARNS) + [
        f"mechanism.{option}: {table[option]!r}: has no effect: the part that uses it is replaced"
        for option in without_effect(table)
        # a run's file has the default, or all clients where there are fewer
        if option != "clients_per_round" or table[option] != experiment.data.clients
    ]
    return [f"warning: {line}" for line in lines]


def undefined_metrics(problem: Problem, data: FederatedData, tested: Ints) -> list[str]:
    """Return a line for each metric that is undefined in every test, and a warning if it is in some clients' own.

    It is in every test if the server's test set lacks what the metric needs, if every testing client's share lacks
    it, or if the user's own function fails.

    Args:
        problem: the model with its metrics.
        data: the data with their test sets.
        tested: the ids ``[n]`` of the clients that test.
    """
    lines, own = [], _targets_of(data, tested) if problem.metrics else {}
    server = None if data.server_test is None or not len(data.server_test) else data.server_test.y.cpu().numpy()
    for metric in problem.metrics:
        where = f"{WHERE}: '{metric.key}':"
        gaps = {client: gap for client, y in own.items() if (gap := metric.gap(y))}
        first, why = next(iter(gaps.items()), (-1, ""))
        if data.test_weights is not None and metric.key not in OF_TEXTS:
            reason = "with data.client_test_from = 'classes' test samples count by weights; allowed:"
            lines.append(f"{where} {reason} {', '.join(OF_TEXTS)}")
        elif server is not None and (gap := metric.gap(server)):
            lines.append(f"{where} on the server's test set {gap}")
        elif own and len(gaps) == len(own):
            lines.append(f"{where} no client's own test share can have it: {why}")
        elif not metric.built_in and (wrong := _fails(metric, problem, [*own.values(), server], data.num_classes)):
            given = "numbers [n, d]" if problem.regression else "probabilities [n, k] of k classes"
            lines.append(f"{where} fails on the true targets and predictions of test samples, {given}: {wrong}")
        elif gaps:
            names = [data.called(c) for c in list(gaps)[:NAMED]] + (["others"] if len(gaps) > NAMED else [])
            count = f"{len(gaps)} of {len(own)} clients have no {metric.reading.title} of their own"
            lines.append(f"warning: {where} {count} ({', '.join(names)}): of client {first} {why}")
    return lines


def _targets_of(data: FederatedData, tested: Ints) -> Mapping[int, NDArray[np.generic]]:
    """Return the targets of the test share of each client that tests, by client, of those that have one in this
    process.
    """
    if not len(tested):
        return {}
    pool, index = data.pool(tested.tolist(), "test")
    found = zip(tested.tolist(), index, strict=True)
    return {c: pool.y[own.to(pool.y.device)].cpu().numpy() for c, own in found if len(own)}


def _fails(
    metric: Metric, problem: Problem, targets: Sequence[NDArray[np.generic] | None], num_classes: int | None
) -> str:
    """Return why a function of the user's own fails, or "".

    It is tried on the largest of these targets, at most 256 samples, with made-up predictions.
    """
    largest = max((y for y in targets if y is not None), key=len, default=None)
    if largest is None:
        return ""
    y = torch.from_numpy(largest[:_TRIED].copy())
    width = y.reshape(len(y), -1).shape[1] if num_classes is None else 1 if problem.one_output else num_classes
    outputs = torch.from_numpy(stream(0, "metrics").standard_normal((width, len(y))))
    judged = problem.predictions(y, outputs, torch.zeros(len(y)))
    return metric.of(judged)[1]
