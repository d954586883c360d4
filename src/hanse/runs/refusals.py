"""Refuses, before round 0, settings of an experiment that do not fit together.

Each function looks for one kind of mistake and returns a line for each one found: the setting, its value and what is
allowed. To refuse one more thing, add a function like these. Call it in :func:`misfits`, or in :mod:`hanse.runs.setup`
if it needs other arguments. Mistakes within one section are refused in :mod:`hanse.runs.config` (for data:
:mod:`hanse.data.spec`). What a part cannot do is refused by its ``needs`` and ``unfit``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hanse.base.errors import RAISED, UserError
from hanse.core.calling import method_of
from hanse.core.part import Mechanism, Size, in_slots
from hanse.data import FederatedData, Samples
from hanse.data.choices import OBJECT
from hanse.data.dataset import Dataset
from hanse.data.federated import RemoteData
from hanse.federation.behaviour import Behaviour
from hanse.federation.local import server_sets
from hanse.learning.agreement import why_unfit
from hanse.learning.coalitions import metric_of
from hanse.learning.job import Problem, smallest_batch
from hanse.learning.loop import WITH_PENALTY, Loop
from hanse.learning.losses import OF_CLASSES
from hanse.learning.sequences import is_text
from hanse.learning.slopes import why_no_slope
from hanse.mechanisms.by_value import ByValue
from hanse.mechanisms.registry import REASONS, refuse_late, refuse_sums, rules, unfit, word_of
from hanse.mechanisms.train import SharedModel
from hanse.mechanisms.value import Banzhaf, Exact, few_enough
from hanse.mechanisms.weigh import BySamples
from hanse.runs.config import Experiment

_COMPARED = 64  # samples at most on which model and engine are tried before round 0
_ONE = 1e-4  # how far the sum of probabilities may be from 1


def misfits(experiment: Experiment, data: FederatedData, problem: Problem, mechanism: Mechanism) -> list[str]:
    """Return a line for each setting that does not fit the data, the mechanism or another setting."""
    seats = mechanism.most_seats(data.num_clients)
    return [
        *not_remembered(experiment, data, mechanism),
        *no_utility(data, problem, mechanism),
        *too_few(experiment, seats),
        *lone_samples(experiment, problem),
        *too_many_testers(experiment, data.num_clients),
        *too_many_coalitions(mechanism, seats),
        *by_size(experiment, mechanism, data)[1],
        *unfit_late(experiment, mechanism),
        *unfit_sums(experiment, mechanism, seats),
        *no_bonds(experiment),
        *not_kept(experiment),
    ]


def too_many_coalitions(mechanism: Mechanism, seats: int) -> list[str]:
    """Return a line if a round's updates of one model are too many to evaluate all of their coalitions."""
    if not isinstance(mechanism.value, Exact | Banzhaf) or not isinstance(mechanism.train, SharedModel):
        return []
    try:
        few_enough(seats)
    except UserError as wrong:
        return list(wrong.lines)
    return []


def enough_replies(experiment: Experiment, seats: int) -> int | None:
    """Return how many sound replies end a round's training, or None for all.

    A share is taken of the seats and rounded up.
    """
    given = experiment.federation.enough
    return max(1, math.ceil(given * seats - 1e-9)) if isinstance(given, float) else given  # 0.55 of 20 is 11


def too_few(experiment: Experiment, seats: int) -> list[str]:
    """Return a line for each number of replies that a round cannot have, or that would end it below the minimum."""
    least, enough, given = (
        experiment.federation.min_replies,
        enough_replies(experiment, seats),
        experiment.federation.enough,
    )
    lines = [f"federation.min_replies: {least}: more than the {seats} seats of a round"] if least > seats else []
    if enough is not None and enough > seats:
        lines.append(f"federation.enough: {given}: more than the {seats} seats of a round")
    if enough is not None and enough < least:
        share = f" ({enough} of {seats} seats)" if isinstance(given, float) else ""
        lines.append(f"federation.enough: {given}{share}: must be at least federation.min_replies, {least}")
    return lines


def lone_samples(experiment: Experiment, problem: Problem) -> list[str]:
    """Return a line if batches have fewer samples than the model can train on, as batch norm on one."""
    size, least = experiment.train.batch_size, smallest_batch(problem)
    if experiment.train.loop is not None or size is None or size >= least:
        return []
    return [f"train.batch_size: {size}: the model has batch norm, which trains on at least {least} samples at a time"]


def unfit_late(experiment: Experiment, mechanism: Mechanism) -> list[str]:
    """Return a line for each setting that cannot be combined with ``late = "next"``."""
    if experiment.federation.late == "drop":
        return []
    lines = [f"federation.late: 'next': {line}" for line in refuse_late(mechanism)]
    if experiment.train.recipe.remembers:
        name = next(iter(experiment.train.recipe.remembered))
        lines.append(f"federation.late: 'next': train.{name} depends on each client's last training, which may be late")
    return [f"{line}: must be 'drop'" for line in lines]


def by_groups(mechanism: Mechanism) -> bool:
    """Say whether members' values are estimated from sums of groups, which must then change from round to round."""
    return mechanism.value is not None and "secure" in in_slots(mechanism.value.needs, ["value"])


def unfit_sums(experiment: Experiment, mechanism: Mechanism, seats: int) -> list[str]:
    """Return a line for each setting that needs single updates although the server sees only sums of groups."""
    section = experiment.federation
    if section.secure is None:
        return []
    lines = [f"federation.secure: {line}" for line in refuse_sums(mechanism)]
    if isinstance(group := section.secure.get("group", 3), int) and group > seats:
        lines.append(f"federation.secure.group: {group}: more than the {seats} seats of a round")
    if section.secure.get("regroup") is False and by_groups(mechanism):
        lines.append("federation.secure.regroup: false: 'group_path' needs groups that change")
    lines += [
        f"federation.{key}: {'true' if given is True else repr(given)}: not with federation.secure: {why}"
        for key, given, wrong, why in (
            ("engine", section.engine, section.engine != "local", "virtual nodes hide nothing; use 'local'"),
            ("refuse", section.refuse, section.refuse is not None, "it looks at single updates"),
            ("enough", section.enough, section.enough is not None, "a group is summed once all have answered"),
            ("late", section.late, section.late != "drop", "a late update has no group to be summed with"),
            ("replay", section.replay, section.replay is not None, "the order of single updates is not known"),
            ("half_precision", True, section.half_precision, "members sign the model that was sent; leave it out"),
        )
        if wrong
    ]
    if experiment.sizes.proved:
        lines.append("sizes.proved: true: not with federation.secure, whose sums are weighted by claimed sizes")
    if experiment.train.recipe.remembers:
        name = next(iter(experiment.train.recipe.remembered))
        lines.append(f"train.{name}: depends on each client's last training: not with federation.secure")
    return lines


def warn_of_changing_groups(experiment: Experiment, data: FederatedData, mechanism: Mechanism) -> list[str]:
    """Return a warning if groups should stay the same and cannot."""
    if experiment.federation.secure is None or by_groups(mechanism) or experiment.federation.secure.get("regroup"):
        return []
    seats = mechanism.most_seats(data.num_clients)
    if seats >= data.num_clients:
        return []
    return [
        f"warning: federation.secure: {seats} of {data.num_clients} clients train in a round, so groups change, and "
        "after about ten rounds their sums reveal each client's mean update (docs/threat-model.md): let all train in "
        "every round"
    ]


def warn_at_once(experiment: Experiment, behaviours: Sequence[Behaviour]) -> list[str]:
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


def no_such_clients(behaviours: Mapping[str, Behaviour | None], num_clients: int) -> list[str]:
    """Return a line for each client that a behaviour names and that does not exist."""
    return [
        f"behaviour.{name}.clients: {c}: there is no such client; allowed: 0 to {num_clients - 1}"
        for name, behaviour in behaviours.items()
        for c in getattr(behaviour, "clients", ())
        if isinstance(c, int) and not 0 <= c < num_clients
    ]


def no_such_samples(behaviours: Mapping[str, Behaviour | None], data: FederatedData) -> list[str]:
    """Return a line for each behaviour that trains on samples that the server does not have."""
    there = {"own", *server_sets(data)}
    return [
        f"behaviour.{name}.trains_on: '{chosen}': the server has no such samples; allowed: {', '.join(sorted(there))}"
        for name, behaviour in behaviours.items()
        if (chosen := getattr(behaviour, "trains_on", "own")) not in there
    ]


def by_size(experiment: Experiment, mechanism: Mechanism, data: FederatedData) -> tuple[list[str], list[str]]:
    """Return the parts' objections to a run of this size: warnings, and lines that mean that it is refused."""
    seats = mechanism.most_seats(data.num_clients)
    size = Size(data.num_clients, seats, enough_replies(experiment, seats) or seats, experiment.run.rounds)
    said = unfit(mechanism, size)
    warnings = [line for line in said if line.startswith("warning: ")]
    return warnings, [line for line in said if line not in warnings]


def too_many(table: dict[str, Any], num_clients: int) -> list[str]:
    """Return a line if a round asks for more clients than there are.

    A mechanism's default number of clients per round is not refused: it is reduced.
    """
    select = table.get("select")
    asked = {
        "mechanism": table.get("clients_per_round"),
        "mechanism.select": select.get("clients_per_round") if isinstance(select, dict) else None,
    }
    many = {f"{where}.clients_per_round": m for where, m in asked.items()}
    return [
        f"{name}: {m}: more than the {num_clients} clients"
        for name, m in many.items()
        if isinstance(m, int) and m > num_clients
    ]


def too_many_testers(experiment: Experiment, num_clients: int) -> list[str]:
    """Return a line if more clients are to test than there are."""
    wanted = experiment.eval.clients
    many = wanted != "all" and wanted > num_clients
    return [f"eval.clients: {wanted}: more than the {num_clients} clients"] if many else []


def no_utility(data: FederatedData, problem: Problem, mechanism: Mechanism) -> list[str]:
    """Return a line if values use a utility that the server's validation set does not have."""
    utility, samples = getattr(mechanism.value, "utility", None), data.server_validation
    if not isinstance(utility, str) or samples is None or not len(samples):
        return []
    try:
        metric_of(problem, samples, utility)
    except UserError as wrong:
        told = (line.removeprefix("utility is ").removeprefix("utility: ") for line in wrong.lines)
        return [f"mechanism.value.utility: {line}" for line in told]
    return []


def no_slope(data: FederatedData, problem: Problem, mechanism: Mechanism) -> list[str]:
    """Return a line if values follow a gradient that the model does not have."""
    value, samples = mechanism.value, data.server_validation
    if value is None or "slope" not in in_slots(value.needs, ["value"]) or samples is None or not len(samples):
        return []
    why, name = why_no_slope(problem, samples), word_of(value, "value")
    told = f"mechanism.value: {name} needs a loss with a gradient, and {why}; 'exact', 'mixture' and 'gtg' need none"
    return [] if why is None else [told]


def not_remembered(experiment: Experiment, data: FederatedData, mechanism: Mechanism) -> list[str]:
    """Return a line for each training setting that depends on clients' earlier rounds and is impossible here."""
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


def with_cause(line: str, experiment: Experiment) -> str:
    """Return a line about something that a part needs with the setting that withholds it, if one does."""
    if not line.endswith(REASONS["losses"]):
        return line
    if experiment.federation.private is not None:
        return f"{line}, which a privacy account (federation.private) keeps"
    return f"{line}, which a loop of one's own (train.loop) need not tell"


def not_for_loops(experiment: Experiment, mechanism: Mechanism, loop: Loop) -> list[str]:
    """Return a line for each training setting that the user's ``loop`` does not implement."""
    lines, given = [], experiment.sections()["train"]["loop"]
    if (why := loop_lacks(mechanism, "penalty" if loop.takes_penalty else "plain")) is not None:
        lines.append(f"train.loop: '{given}': {why}")
    if experiment.train.order != "shuffled":
        lines.append(f"train.order: '{experiment.train.order}': your training loop has its own order")
    if experiment.data.augment is not None:
        lines.append(f"data.augment: '{experiment.data.augment}': your training loop changes images itself")
    return lines


def loop_lacks(mechanism: Mechanism, loop: str | None) -> str | None:
    """Return what a mechanism requires of training that the user's own loop lacks, or None if it lacks nothing.

    Args:
        mechanism: the mechanism.
        loop: "plain", or "penalty" if the loop takes the pulls and tilts of seats. None: hanse's own training.
    """
    train = mechanism.train
    name = word_of(train, "train")
    if loop is not None and method_of(train, "sends") is not None:
        return f"does not add the loss that mechanism.train {name} adds to each batch; use hanse's own training"
    if loop == "plain" and "penalty" in in_slots(train.needs, ["train"]):
        return f"takes no penalty, and mechanism.train {name} pulls or tilts what clients train; must be {WITH_PENALTY}"
    return None


def one_answer(experiment: Experiment, data: FederatedData) -> list[str]:
    """Return a line if the model gives one answer per sample, but the samples are texts, which need one per
    position."""
    name, tested = experiment.model.name, data.server_test or data.server_validation
    samples = data.pool([0])[0] if tested is None else tested
    if name not in ("logistic", "mlp") or not is_text(samples):
        return []
    return [
        f"model.name: '{name}': gives one answer per sample, and data.source '{experiment.data.source.name}' asks for "
        "one at each position: must be 'lstm', 'lora' or an import path"
    ]


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
    few = few_samples(data)
    module = copy.deepcopy(problem.module).cpu().eval()
    try:
        with torch.no_grad():
            outputs = module(few.x)
            far = [module(few.x * by) for by in (1e3, -1e3)] if problem.one_output else []
    except RAISED:  # whether it can be used at all was looked at before
        return []
    if far and all(float(one.min()) >= 0 and float(one.max()) <= 1 for one in (outputs, *far)):
        return [
            "warning: the model returns probabilities (even for large inputs its output is from 0 to 1), and bce "
            "expects logits, of which all above 0 mean class 1: leave out that last step"
        ]
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


def few_samples(data: FederatedData) -> Samples:
    """Return a few samples that this process can see, to try a model on: the server's, or else the largest client's."""
    tested = data.server_validation or data.server_test
    if not tested:
        pool, [index] = data.pool([int(data.sizes.argmax())])
        tested = pool.take(index[:_COMPARED])
    return Samples(tested.x[:_COMPARED], tested.y[:_COMPARED], tested.inputs)


def refuse_on_a_network(experiment: Experiment, mechanism: Mechanism) -> None:
    """Raise UserError with a line for each setting that needs clients in this process."""
    data, lines = experiment.data, list[str]()
    if experiment.federation.replay is not None:
        lines.append("federation.replay: on a network the order of arrival cannot be repeated; leave it out")
    if experiment.federation.late == "next":
        if experiment.federation.refuse is not None:
            lines.append(
                "federation.late: 'next': federation.refuse sees no late updates on a network; allowed: 'drop'"
            )
        own = [block.name for block in mechanism.train.blocks() if block.private]
        if own:
            lines.append(
                f"federation.late: 'next': the rows '{own[0]}' stay with their owners on a network, and "
                "move in the round in which they were trained; allowed: 'drop'"
            )
    if experiment.sizes.proved and not experiment.sizes.auditors:
        lines.append("sizes.auditors: []: on a network an auditor must inspect the samples: give a public key")
    if experiment.eval.model == "trained":
        lines.append("eval.model: 'trained': on a network clients test what they hold; allowed: 'deployed'")
    if data.client_test_from == "classes":
        lines.append(
            "data.client_test_from: 'classes': on a network all test samples count equally; allowed: 'own', 'server'"
        )
    if data.augment is not None:
        lines.append(f"data.augment: '{data.augment}': on a network samples are trained on as they are; leave it out")
    if lines:
        raise UserError(*(f"{line}, or use federation.engine = 'local'" for line in lines))


def not_held(mechanism: Mechanism) -> list[str]:
    """Return a warning if clients train rows in order to hold them, but the deploy part gives them other rows."""
    made = {block.name for block in mechanism.train.blocks() if block.held}
    if not made or mechanism.deploy is None or made & in_slots(mechanism.deploy.reads, ["deploy"]):
        return []
    part, rows = word_of(mechanism.deploy, "deploy"), "', '".join(sorted(made))
    return [f"warning: mechanism.deploy: {part} hands out none of the rows '{rows}' that clients train to hold"]


def never_asked(experiment: Experiment, mechanism: Mechanism) -> list[str]:
    """Return a warning if a named weigh part only averages groups, but every client trains its own row."""
    if "weigh" not in experiment.mechanism.table or mechanism.weigh.fills:
        return []
    if "groups" in in_slots(mechanism.train.gives, ["train"]):
        return []
    part, train = word_of(mechanism.weigh, "weigh"), word_of(mechanism.train, "train")
    return [f"warning: mechanism.weigh: {part} is never used: with {train} every client trains its own row"]


def paid_by_claims(experiment: Experiment, mechanism: Mechanism) -> list[str]:
    """Return a warning if members are paid for what their updates did, and themselves state how much these weigh."""
    if experiment.sizes.proved or not (
        isinstance(mechanism.settle, ByValue) and isinstance(mechanism.weigh, BySamples)
    ):
        return []
    return [
        "warning: mechanism.settle: by_value pays for what an update did by its weight, and here that goes by how many "
        "samples its sender says it has; sizes.proved = true counts them, mechanism.weigh = 'uniform' asks for none"
    ]


def not_by_steps(mechanism: Mechanism, loop: Loop | None) -> list[str]:
    """Return a warning for each part whose formula assumes SGD steps, because the user's loop may use others."""
    wrong = {"train": "its variates are not mean gradients", "weigh": "its weights are not those of its paper"}
    return [
        f"warning: train.loop: {word_of(part, slot)} assumes SGD steps at train.lr and train.momentum: with "
        f"another optimiser, a schedule or clipping {wrong[slot]}"
        for slot, part in mechanism.slots().items()
        if loop is not None
        and slot in wrong
        and any("sgd" in in_slots(one.needs, [slot]) for one in rules(part))  # fedadam of fednova needs it, too
    ]


def not_kept(experiment: Experiment) -> list[str]:
    """Return a line for each setting that prevents a run from being recomputed."""
    if not experiment.run.recomputable:
        return []
    lines = []
    if experiment.federation.enough is not None or experiment.federation.late == "next":
        lines.append("run.recomputable: true: late updates are not kept; leave out federation.late and enough")
    if experiment.federation.secure is not None:
        lines.append("run.recomputable: true: secure sums hide single updates; leave out federation.secure")
    if experiment.data.root:
        lines.append("run.recomputable: true: an auditor does not have the root set; leave out data.root")
    if experiment.sizes.proved:
        lines.append("run.recomputable: true: audits of sizes cannot be replayed; leave out sizes.proved")
    return lines


def no_bonds(experiment: Experiment) -> list[str]:
    """Return a line for a bond that nobody can pay, and for settings without effect."""
    said, grant = experiment.sizes, experiment.clients.grant / experiment.clients.vests - experiment.ledger.floor
    if not said.proved:
        changed = [name for name, value in said if value != type(said).model_fields[name].get_default()]
        return [f"sizes.{name}: {getattr(said, name)!r}: has no effect without sizes.proved = true" for name in changed]
    if said.bond > grant:
        return [f"sizes.bond: {said.bond:g}: nobody can pay it: must be at most the grant of {grant:g} tokens"]
    return []
