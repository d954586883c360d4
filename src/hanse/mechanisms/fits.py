"""What fits what: one list of words, and the difference of what is needed from what is there.

A part ``needs`` words (:class:`hanse.core.part.Part`). What surrounds it gives them: the experiment, the clients, the
other parts. What a part does (it pays, it makes rows from this round's updates) may be forbidden by a setting around it
(``FORBIDS``), unless the part ``accepts`` it. Settings forbid each other, and the lack of what they have no effect
without, in the same table. Everything is looked at before round 0, by set differences: :func:`unmet_needs` and
:func:`clashes`. ``hanse list words`` prints the list.

To refuse one more combination, add a word or a row here, or a row to a wing's table (``docs/write-a-wing.md`` has
an example). Which rules go with which values, a rule shows by what it makes of a tiny model (:func:`tried`). What
depends on numbers (seats, sizes) is refused by a part's ``unfit``, or in :mod:`hanse.runs.refusals`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from hanse.base.errors import RAISED, UserError, nearest
from hanse.base.pytorch import torch
from hanse.base.wings import Names
from hanse.core.calling import method_of, writers
from hanse.core.part import FINISHED, GROUPS, Aggregate, Context, Mechanism, Part, SettlePart, Size, View, in_slots
from hanse.core.port import ClientInfo, Roster
from hanse.core.table import PER_CLIENT, Seats, Table, Updates
from hanse.mechanisms.registry import PARTS, is_rule, word_of
from hanse.mechanisms.select import Probabilities


@dataclass(frozen=True)
class Word:
    """A word of the list.

    Attributes:
        reason: completes the sentence "The part needs ..."; for a word of "doing", the sentence "The part ...".
        remedy: the setting that helps. Empty, of a word that parts of a slot give: whichever says so (:func:`meaning`).
        by: who gives it. "experiment": its settings and data; "clients": hanse's own clients and training; a slot: the
            part in it. "doing": nobody, since it says what a part does, which what surrounds it may forbid.
    """

    reason: str
    remedy: str = ""
    by: str = "experiment"

    def __str__(self) -> str:
        return f"{self.reason} ({self.remedy})" if self.remedy else self.reason


WORDS: Mapping[str, Word] = {
    "validation": Word("a validation set at the server",
                       "data.validation > 0, but no schema's tables; on a network load_server_data returns it"),
    "client_validation": Word("a validation share at each client", "data.client_validation > 0"),
    "root": Word("a root set at the server, for itself to train on", "data.root > 0"),
    "clients": Word("several clients; with data.partition = 'pooled' there is one", "'centralised' trains it"),
    "pooled": Word("all data at one client", "data.partition = 'pooled'"),
    "head": Word("a classifier that ends in a linear layer, whose input the generator makes",
                 "model.name = 'mlp', or a module whose last layer is nn.Linear"),
    "secure": Word("sums of groups of updates in the place of single ones", "federation.secure"),
    "noise": Word("clients that say how much noise their updates have",
                  "federation.private without federation.secure or late updates"),
    "proofs": Word("members that prove that they train", "evidence.training = {}"),
    "values": Word("a value part", by="value"),
    "bids": Word("an auction that clients bid at", by="settle"),
    "trade": Word("a market of models", by="weigh"),
    "average": Word("a weighted average of the updates, or a rule that it accepts",
                    "'exact', 'gtg', 'monte_carlo', 'leave_one_out' and 'banzhaf' of game 'average' go with it",
                    "weigh"),
    "probabilities": Word("a selector that draws at random and hands on its probabilities", by="select"),
    "schedule": Word("a selector that goes by the bids for each model; here it ignores them", by="select"),
    "groups": Word("groups of several seats with one target row; here every client trains a row of its own",
                   by="train"),
    "sizes": Word("how many samples each client says it has", by="clients"),
    "weights": Word("each update's weight in the new model", by="clients"),
    "losses": Word("each client's training loss", "hanse's own training without federation.private", "clients"),
    "slope": Word("a loss with a gradient", by="clients"),
    "sgd": Word("how many steps of SGD clients took, at train.lr", by="clients"),
    "penalty": Word("training that takes pulls and tilts", by="clients"),
    "batch_loss": Word("training that adds a loss to each batch", by="clients"),
    "kept_rows": Word("clients that keep rows of their own", by="clients"),
    "scores": Word("clients' losses or scores of models", by="clients"),
    "answers": Word("clients' bids", by="clients"),
    "gradients": Word("clients' gradients of a model", by="clients"),
    "labels": Word("clients' label counts", by="clients"),
    "samples": Word("which of several models fits each of a client's samples best", by="clients"),
    "bills": Word("models and bills that stay with the client", by="clients"),
    "questions": Word("answers to questions of its own", by="clients"),
    "server_gradient": Word("the gradient on the server's samples", by="clients"),
    "server_classes": Word("losses, gradients or confusion counts of each class of the server's samples", by="clients"),
    "single": Word("needs single updates, or does not accept sums of groups", by="doing"),
    "pays": Word("pays for updates in the round in which they were ordered, and does not accept late ones", by="doing"),
    "makes": Word("makes rows from this round's updates, and does not accept late ones", by="doing"),
    "draws": Word("weighs by the probabilities of this round's draw, and does not accept late ones", by="doing"),
    "ranks": Word("gives values that sum to zero in each round, and only rank", by="doing"),
    "positive": Word("pays nothing for values of 0 or less", by="doing"),
}  # fmt: skip
DOING = frozenset(name for name, word in WORDS.items() if word.by == "doing")  # nobody gives these
CLIENTS_GIVE = frozenset(name for name, word in WORDS.items() if word.by == "clients") - {"losses"}

LOCAL = ", or use federation.engine = 'local'"
EARLIER = ["train.lr_decay_by", "train.order", "train.statistics/own"]  # they depend on a client's last training
HERE = "it is for clients of this process"
NO_TOKENS = "has no effect: this mechanism moves no tokens"
AT_ONCE = "in a simulation all replies come at once; with a behaviour such as 'speed' they take time"
# By the setting that a line names first: what it does not go with, and why. That is another setting, a word that some
# part needs or does, or with "no" before it one that is not there. "federation.late/network" is the setting on a
# network, "train.loss/weights/balanced" a value in a setting's table. A wing has a table of its own (Wing.names,
# "forbids").
FORBIDS: Mapping[str, Mapping[str, str]] = {
    "federation.late": {
        **dict.fromkeys(("pays", "makes", "draws"), "must be 'drop'"),
        **dict.fromkeys(EARLIER, "it depends on each client's last training, which may be late: must be 'drop'"),
    },
    "federation.late/network": {
        "federation.refuse": f"it sees no late updates on a network; allowed: 'drop'{LOCAL}",
        "kept_rows": f"such rows move in the round in which they were trained; allowed: 'drop'{LOCAL}",
    },
    "run.recomputable": {
        **dict.fromkeys(("federation.enough", "federation.late"), "late updates are not kept; leave it out"),
        "data.root": "an auditor does not have the root set; leave it out",
    },
    "train.loop": {"batch_loss": "your loop does not add it; use hanse's own training"},
    "train.loop/plain": {"penalty": "your loop takes no penalty; must be fit(model, data, round, penalty)"},
    "train.order/by_class": {"train.loop": "your training loop has its own order"},
    "data.augment": {
        "train.loop": "your training loop changes images itself",
        "network": f"samples are trained on as they are; leave it out{LOCAL}",
    },
    "data.client_test_from/classes": {"network": f"all test samples count equally; allowed: 'own', 'server'{LOCAL}"},
    "eval.model": {"network": f"clients test what they hold; allowed: 'deployed'{LOCAL}"},
    "clients.told": {"no valued": f"needs {WORDS['values']} (mechanism.value)"},
    "train.lr_decay_by": {"network": HERE},
    "train.statistics/own": {
        "network": HERE,
        "no one model": "needs a mechanism with one shared model, such as 'fedavg'",
    },
    "train.order": {"network": HERE, "no classes": "needs samples with a class each; must be 'shuffled'"},
}
# The same, of which a run only warns: one file may serve several (all mechanisms of a sweep, or a network).
WARNS: Mapping[str, Mapping[str, str]] = {
    "train.loop": {"sgd": "with another optimiser, a schedule or clipping its formula does not hold"},
    "claimed sizes/network": {
        "weights": "a member's own claim of samples sets it; sizes.proved = true counts them, "
        "mechanism.weigh = 'uniform' asks for none"
    },
    **{key: {"no tokens": NO_TOKENS} for key in ("clients.grant", "clients.vests", "ledger.url", "ledger.floor")},
    "values that rank": {"positive": "about half of clients get nothing, whatever they add; 'path' shares out a gain"},
    "federation.half_precision": {"no network": "has no effect in a simulation, where no model travels"},
    **{key: {"no time": AT_ONCE} for key in ("federation.enough", "federation.late")},
}


@dataclass(frozen=True)
class Unmet:
    """Something that a part needs and does not get.

    Attributes:
        slot: the slot.
        part: what the experiment's file calls the part.
        reason: what the part needs, in words that complete the sentence "The part needs ...".
    """

    slot: str
    part: str
    reason: str

    @property
    def line(self) -> str:
        """The whole line, as a user sees it."""
        return f"mechanism.{self.slot}: {self.part} needs {self.reason}"


def words_of(mechanism: Mechanism) -> Iterator[tuple[str, Part, frozenset[str]]]:
    """Yield each part's slot, the part, and the words of what it needs and does there.

    Of rows, it needs "rows NAME", which the train part must lay out, or "new rows NAME", which some part must fill.
    """
    laid = mechanism.train.blocks(Context.tiny())
    for slot, part in mechanism.slots().items():
        needs, own = said(part, "needs", slot), said(part, "fills", slot) - {GROUPS}
        accepts, fills = (said(part, name, *mechanism.standing(part)) for name in ("accepts", "fills"))
        does = {
            "single": "sums" not in accepts,
            "pays": (slot == "settle" or SettlePart in type(part).__mro__) and "late" not in accepts,
            "makes": slot == "train" and bool(fills) and "late" not in accepts,
            "draws": slot == "weigh" and "probabilities" in needs and "late" not in accepts,
            "average": slot == "value",
            "ranks": slot == "value" and getattr(getattr(part, "measured", None), "ranks", False) is True,
            # a part that is made of another asks that one's
            "questions": method_of(part, "asks") is not None and not is_rule(getattr(part, "of", None)),
            "batch_loss": slot == "train" and method_of(part, "sends") is not None,
            "kept_rows": slot == "train" and any(block.private for block in laid),
            f"rows {min(own, default='')}": bool(own) and own.isdisjoint(block.name for block in laid),
        }
        yield slot, part, needs | {word for word, is_so in does.items() if is_so}


def said(part: Any, name: str, *slots: str) -> frozenset[str]:
    """Return what a part declares under ``name`` ("needs", "gives", "accepts", "fills") for some slots."""
    return in_slots(getattr(part, name, frozenset()), slots)


def tried(rule: Any) -> Aggregate | None:
    """Return what a rule makes of three updates of a model with two parameters: it shows what a value part must accept.

    None: the rule makes no aggregates, or none of such updates. What it makes in a run is looked at again
    (:mod:`hanse.core.calling`).
    """
    if method_of(rule, "aggregate") is None:
        return None
    seats = Seats.at(np.arange(3), np.zeros(3, np.int64))
    judge: Any = SimpleNamespace(  # answers what such rules ask
        trained=lambda row, round, number: row + 1.0,
        score=lambda rows: SimpleNamespace(loss=np.ones(len(rows)), accuracy=np.ones(len(rows))),
        coalitions=lambda *given, **more: SimpleNamespace(many=lambda sets: [0.0] * len(sets)),
    )
    roster = Roster(ClientInfo(client, "", key="", num_samples=1) for client in range(3))
    context, ones = Context.tiny(), np.ones(3)
    try:  # without torch, which a sweep's dry run does not need, nothing can be tried
        models, before = torch.tensor([[1.0, 2.0], [2.0, 1.0], [5.0, 6.0]]), Table.of(torch.zeros(1, 2))
        view = View(
            context, 0, "close", roster, before, np.zeros(3, np.int64), judge, seats=seats,
            updates=Updates(seats, models, ones, ones, ones.astype(int)), found={Probabilities: Probabilities(ones)},
        )  # fmt: skip
        made = rule.aggregate(view.groups()[0], rule.init(context) if hasattr(rule, "init") else {})
    except RAISED:
        return None
    return made if isinstance(made, Aggregate) else None


def unmet_needs(
    mechanism: Mechanism, given: Collection[str], withheld: Mapping[str, str] = MappingProxyType({})
) -> list[Unmet]:
    """Return what the parts of a mechanism need and do not get, each once.

    Args:
        mechanism: the mechanism.
        given: the words that the experiment gives, such as "validation" or "clients". What hanse's own clients give is
            added, but for each client's training loss.
        withheld: words that are withheld, and why: text to go on with.
    """
    slots, blocks, withheld = mechanism.slots(), mechanism.train.blocks(Context.tiny()), dict(withheld)
    made = None if mechanism.value is None else tried(mechanism.weigh)
    rule = f", and {word_of(mechanism.weigh, 'weigh')} in mechanism.weigh"
    if made and (wanted := made.beyond_weights) and wanted.isdisjoint(said(mechanism.value, "accepts", "value")):
        withheld["average"] = f"{rule} is applied again to the updates of each coalition"
    if FINISHED in said(mechanism.weigh, "gives", "weigh"):
        withheld |= dict.fromkeys(("average", "weights"), f"{rule} finishes rows itself")
    there = {*given, *CLIENTS_GIVE, "average", *(f"rows {block.name}" for block in blocks)} - withheld.keys()
    there |= {"values"} if "value" in slots else set()
    there = there.union(*(said(part, "gives", slot) for slot, part in slots.items()))
    for writer in writers(mechanism).values():
        there |= {f"new rows {name}" for name in said(writer, "fills", *mechanism.standing(writer))}
    shared = [block.count for block in blocks if block.initial != "zero" and not block.private]
    there |= {"schedule"} if [count for count in shared if count != PER_CLIENT] == [1] else set()  # no bids to go by
    found: dict[tuple[str, str], Unmet] = {}
    for slot, part, words in words_of(mechanism):
        lacking = words - there - DOING
        for word in sorted(lacking - {"questions"} or lacking):  # a line about what it asks for is enough
            lack = Unmet(slot, word_of(part, slot), _reason(word, slots) + withheld.get(word, ""))
            found.setdefault((lack.part, lack.reason), lack)
    return list(found.values())


def _reason(word: str, slots: Mapping[str, Part]) -> str:
    """Return what a part lacks, for the user. A part of the user's own that should give it is named."""
    kind, _, name = word.rpartition(" ")
    if kind == "rows":
        return f"rows '{name}' ({_parts_with('train', name)})"
    if kind == "new rows":
        return f"rows '{name}' that are made anew ({_parts_with('weigh', name)})"
    if word not in WORDS:
        return f"'{word}', which nothing gives{nearest(word, WORDS)}"
    by = WORDS[word].by
    if word != "average" and by in slots and not type(slots[by]).__module__.startswith("hanse."):
        return f"'{word}', and {type(slots[by]).__name__} in mechanism.{by} does not say that it gives it"
    return meaning(word)


def meaning(word: str) -> str:
    """Return what a word of the list means, with the setting that helps, or the built-in parts that give it."""
    of, by = WORDS[word], WORDS[word].by
    if of.remedy or by not in PARTS:
        return str(of)
    return f"{of} ({_parts_that(by, lambda part: word == 'values' or word in said(part, 'gives', by))})"


def _parts_that(slot: str, fit: Callable[[Any], bool]) -> str:
    """Return in words which built-in parts fit."""
    *found, last = [f"'{known}'" for known, make in PARTS[slot].items() if fit(make())] or [""]
    names = f"{', '.join(found)} or {last}" if found else last
    return f"mechanism.{slot} = {names}" if names else f"no part of mechanism.{slot} has them"


def _parts_with(slot: str, name: str) -> str:
    """Return in words which built-in parts have a block: those that lay it out (slot train) or fill it (slot weigh)."""
    if slot == "train":
        return _parts_that(slot, lambda part: name in [block.name for block in part.blocks(Context.tiny())])
    return _parts_that(slot, lambda part: name in said(part, "fills", slot))


def _rows(tables: Iterable[Mapping[str, Mapping[str, str]]] = ()) -> list[tuple[str, str, str]]:
    """Return each row of some tables (those of the core and of the wings): a setting, what it forbids, and why."""
    tables = tables or Names({"": FORBIDS}, "forbids").values()
    return [(setting, word, why) for table in tables for setting, what in table.items() for word, why in what.items()]


def clashes(mechanism: Mechanism, around: Mapping[str, str], *tables: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a line for each two settings that do not go together, and for each setting that forbids what a part does.

    Args:
        mechanism: the mechanism.
        around: the words of what surrounds it, each with what a line about it begins with.
        tables: what forbids what, such as ``WARNS``. Without any: ``FORBIDS`` and the tables of wings.
    """
    found: dict[tuple[str, str, str], str] = {}
    does_what = list(words_of(mechanism))
    for setting, word, why in _rows(tables):
        if setting not in around:
            continue
        if word.startswith("no ") and word[3:] not in around:
            found[setting, word, ""] = f"{around[setting]}: {why}"
        if word in around and word not in WORDS:
            told = "on a network: " if word == "network" else f"not with {_shown(word)}: " if "." in word else ""
            found[setting, word, ""] = f"{around[setting]}: {told}{why}"
        for slot, part, words in does_what:
            if word in words:
                does = meaning(word) if word in DOING else f"needs {meaning(word)}"
                fitting = sorted(n for n, make in PARTS[slot].items() if "sums" in said(make, "accepts", slot))
                because, part_name = why.format(accepting=", ".join(fitting)), word_of(part, slot)
                line = f"{around[setting]}: mechanism.{slot}: {part_name} {does}: {because}"
                found.setdefault((setting, word, part_name), line)
    return list(found.values())


def _shown(word: str) -> str:
    """Return how a line names a setting, or a value in its table."""
    setting, *below = word.split("/")
    return setting if len(below) < 2 else f"{setting}.{below[0]} '{below[1]}'"


def listed() -> list[tuple[str, str, str, str]]:
    """Return the list: each word, who gives it, what it means with its remedy, and which settings forbid it.

    Words of "doing" are in nobody's ``needs``: they say what a part does unless it accepts something.
    """
    found = []
    for name, word in WORDS.items():
        forbidding = dict.fromkeys(_shown(setting) for setting, what, _ in _rows() if what == name)
        found.append((name, word.by, meaning(name), ", ".join(forbidding)))
    return found


def forbidden() -> list[tuple[str, str, str]]:
    """Return each two settings that do not go together, and why."""
    return [(_shown(setting), _shown(word), why) for setting, word, why in _rows() if word not in WORDS]


def unfit(mechanism: Mechanism, size: Size) -> list[str]:
    """Return the objections of a mechanism's parts, and of the rules that they wrap, to a run of this size."""
    found = list[str]()
    for slot, outer in mechanism.parts().items():
        part: Any = outer
        while part is not None:
            lines: Any = () if (method := method_of(part, "unfit")) is None else method(size)
            if not (isinstance(lines, list | tuple) and all(isinstance(line, str) for line in lines)):
                raise UserError(
                    f"mechanism.{slot}: {type(part).__name__}: its unfit returned {lines!r}: must be a list of lines"
                )
            found += (line.replace(f": {type(part).__name__}", f": {word_of(part, slot)}", 1) for line in lines)
            part = of if is_rule(of := getattr(part, "of", None)) else None
    return found
