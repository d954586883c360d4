"""What fits what: one list of words, and the difference of what is needed from what is there.

A part ``needs`` words (:class:`hanse.core.part.Part`). What surrounds it gives them: the experiment, the clients, the
other parts. What a part does (it pays, it makes rows from this round's updates) may be forbidden by a setting around it
(``FORBIDS``), unless the part ``accepts`` it. Settings forbid each other in the same table, and some have no effect
without another word (``REQUIRES``, ``IDLE``). Everything is looked at before round 0, by set differences:
:func:`unmet_needs`, :func:`clashes`, :func:`without`. ``hanse list words`` prints the list.

To refuse one more combination, add a word or a row here; rows of another table of the same form are looked at by
``clashes(mechanism, around, table)``. What depends on numbers (seats, sizes) is refused by a part's ``unfit``, or in
:mod:`hanse.runs.refusals`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hanse.base.errors import UserError, nearest
from hanse.core.calling import method_of
from hanse.core.mixing import writers
from hanse.core.part import GROUPS, Mechanism, Part, SettlePart, Size, in_slots
from hanse.core.recipe import REMEMBERING
from hanse.core.table import PER_CLIENT
from hanse.mechanisms.registry import PARTS, is_rule, word_of


@dataclass(frozen=True)
class Word:
    """A word of the list.

    Attributes:
        reason: completes the sentence "The part needs ..."; for a word of "doing", the sentence "The part ...".
        remedy: the setting that helps. Empty: there is none.
        by: who gives it. "experiment": its settings and data; "clients": hanse's own clients and training; a slot: the
            part in it. "doing": nobody, since it says what a part does, which what surrounds it may forbid.
    """

    reason: str
    remedy: str = ""
    by: str = "experiment"

    def __str__(self) -> str:
        return f"{self.reason} ({self.remedy})" if self.remedy else self.reason


WORDS: Mapping[str, Word] = {
    "validation": Word("a validation set at the server", "data.validation > 0"),
    "client_validation": Word("a validation share at each client", "data.client_validation > 0"),
    "root": Word("a root set at the server, for itself to train on", "data.root > 0"),
    "clients": Word("several clients; with data.partition = 'pooled' there is one", "'centralised' trains it"),
    "pooled": Word("all data at one client", "data.partition = 'pooled'"),
    "head": Word("a classifier that ends in a linear layer, whose input the generator makes"),
    "secure": Word("sums of groups of updates in the place of single ones", "federation.secure"),
    "noise": Word(
        "clients that say how much noise their updates have",
        "federation.private without federation.secure or late updates",
    ),
    "values": Word("a value part", "mechanism.value", "value"),
    "bids": Word("an auction that clients bid at", "mechanism.settle = 'tokens' or 'server_tokens'", "settle"),
    "trade": Word("a market of models", "mechanism.weigh = 'ipfl'", "weigh"),
    "average": Word(
        "a weighted average of the updates (unless it accepts 'again'); the rule in mechanism.weigh is applied again "
        "to the updates of each coalition, and its row is no such mean",
        "'exact', 'gtg', 'monte_carlo', 'leave_one_out' and 'banzhaf' of game 'average' go with it",
        "weigh",
    ),
    "probabilities": Word(
        "a selector that draws at random and hands on its probabilities", "mechanism.select = 's_fedavg'", "select"
    ),
    "schedule": Word(
        "a selector that goes by the bids for each model; here it ignores them",
        "mechanism.select = 'tiers' or 'pretrained_tiers'",
        "select",
    ),
    "groups": Word(
        "groups of several seats with one target row; here every client trains a row of its own", by="train"
    ),
    "sizes": Word("how many samples each client says it has", by="clients"),
    "weights": Word("each update's weight in the new model", by="clients"),
    "losses": Word("each client's training loss", by="clients"),
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
    "server_gradient": Word("the gradient on the server's samples", by="clients"),
    "server_classes": Word("losses, gradients or confusion counts of each class of the server's samples", by="clients"),
    "single": Word("needs single updates, or does not accept sums of groups", by="doing"),
    "pays": Word("pays for updates in the round in which they were ordered, and does not accept late ones", by="doing"),
    "makes": Word("makes rows from this round's updates, and does not accept late ones", by="doing"),
    "draws": Word("weighs by the probabilities of this round's draw, and does not accept late ones", by="doing"),
}  # fmt: skip
CLIENTS_GIVE = frozenset(name for name, word in WORDS.items() if word.by == "clients") - {"losses"}
# what an app's own evaluate function answers once it speaks (:func:`hanse.flower.speaks`)
SPOKEN = ("scores", "answers")

_LOCAL = ", or use federation.engine = 'local'"
_EARLIER = [f"train.{name}" for name in REMEMBERING]  # settings that depend on a client's last training
# By the setting that a line names first: what it does not go with, and why. That is another setting, or a word that
# some part needs or does. "federation.late/network" is the setting on a network, "train.loss/weights/balanced" a value
# in a setting's table.
FORBIDS: Mapping[str, Mapping[str, str]] = {
    "federation.engine": {"federation.secure": "virtual nodes hide nothing; use 'local'"},
    "federation.refuse": {"federation.secure": "it looks at single updates"},
    "federation.enough": {"federation.secure": "a group is summed once all have answered"},
    "federation.replay": {
        "federation.secure": "the order of single updates is not known",
        "network": f"the order of arrival cannot be repeated; leave it out{_LOCAL}",
    },
    "federation.half_precision": {"federation.secure": "members sign the model that was sent; leave it out"},
    "federation.late": {
        **dict.fromkeys(("pays", "makes", "draws"), "must be 'drop'"),
        **dict.fromkeys(_EARLIER, "it depends on each client's last training, which may be late: must be 'drop'"),
        "federation.secure": "a late update has no group to be summed with",
    },
    "federation.late/network": {
        "federation.refuse": f"it sees no late updates on a network; allowed: 'drop'{_LOCAL}",
        "kept_rows": f"such rows move in the round in which they were trained; allowed: 'drop'{_LOCAL}",
    },
    "federation.secure": {"single": "allowed: {accepting}"},
    "federation.secure/regroup/False": {"secure": "in groups that change; leave regroup out"},
    "federation.private": {
        **dict.fromkeys(
            ("scores", "answers", "labels", "samples", "bills"), "made of samples, and no update that could be noised"
        ),
        "buffers": "the model has batch norm or other buffers, which are made of samples and would leave a client "
        "without noise; take group norm or layer norm",
        "behaviour.noisy": "updates have their noise already; leave it out",
        "sizes.proved": "commitments and audits are made of samples; must be false",
        "federation.engine": "its virtual nodes share a folder, in which accounts are kept; must be 'local', or a "
        "network",
        "train.loss/weights/balanced": "they are counts of clients' samples; give numbers",
        **dict.fromkeys(_EARLIER, "what a client did before would show; leave it out"),
    },
    "federation.private/by client": {"frozen": "frozen parameters would get noise; must be model.send = 'trainable'"},
    "federation.private/quantile": {"federation.secure": "what a client says of the clip is in no sum; leave it out"},
    "federation.private/unit/sample": {
        **dict.fromkeys(("penalty", "batch_loss"), "that is no sample's gradient, as DP-SGD takes it"),
        "train.loop": "training is DP-SGD; leave it out",
        "train.optimizer": "DP-SGD steps as SGD; must be 'sgd'",
        "data.augment": "one sample would count several times; leave it out",
    },
    "moving samples": {"federation.private/unit/sample": "each step draws a share of the first samples"},
    "sizes.proved": {"federation.secure": "its sums are weighted by claimed sizes"},
    "sizes.auditors/none": {"network": f"an auditor must inspect the samples: give a public key{_LOCAL}"},
    "run.recomputable": {
        "federation.enough": "late updates are not kept; leave it out",
        "federation.late": "late updates are not kept; leave it out",
        "federation.secure": "secure sums hide single updates; leave it out",
        "data.root": "an auditor does not have the root set; leave it out",
        "sizes.proved": "audits of sizes cannot be replayed; leave it out",
    },
    "train.loop": {"batch_loss": "your loop does not add it; use hanse's own training"},
    "train.loop/plain": {"penalty": "your loop takes no penalty; must be fit(model, data, round, penalty)"},
    "train.order/by_class": {"train.loop": "your training loop has its own order"},
    "data.augment": {
        "train.loop": "your training loop changes images itself",
        "network": f"samples are trained on as they are; leave it out{_LOCAL}",
    },
    "data.client_test_from/classes": {"network": f"all test samples count equally; allowed: 'own', 'server'{_LOCAL}"},
    "eval.model": {"network": f"clients test what they hold; allowed: 'deployed'{_LOCAL}"},
    **{
        name: {
            "federation.secure": "it depends on each client's last training",
            "federation.engine": "it is for clients of this process",
            "network": "it is for clients of this process",
        }
        for name in _EARLIER
    },
}
# The same, of which a run only warns.
WARNS: Mapping[str, Mapping[str, str]] = {
    "train.loop": {"sgd": "with another optimiser, a schedule or clipping its formula does not hold"},
    "claimed sizes/network": {
        "weights": "and a member's own claim of samples sets it; sizes.proved = true counts them, "
        "mechanism.weigh = 'uniform' asks for none"
    },
}
# By setting: the word without which it means nothing, and why. It is refused.
REQUIRES: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("sizes.leaves", "sizes.bond", "sizes.repeats", "sizes.auditors"),
        ("sizes.proved", "has no effect without sizes.proved = true"),
    ),
    "clients.told": ("valued", f"needs {WORDS['values']}"),
    "train.statistics": ("one model", "needs a mechanism with one shared model, such as 'fedavg'"),
    "train.order": ("classes", "needs samples with a class each; must be 'shuffled'"),
}
# The same, but one file may serve several runs (all mechanisms of a sweep, a simulation and a network): a run warns.
IDLE: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("clients.grant", "clients.vests", "ledger.url", "ledger.floor"),
        ("tokens", "has no effect: this mechanism moves no tokens"),
    ),
    "federation.half_precision": ("network", "has no effect in a simulation, where no model travels"),
    **dict.fromkeys(
        ("federation.enough", "federation.late"),
        ("time", "in a simulation all replies come at once; with a behaviour such as 'speed' they take time"),
    ),
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

    Rows have words, too: "rows NAME" must be laid out by the train part, "new rows NAME" filled by some part.
    """
    laid = {block.name for block in mechanism.train.blocks()}
    for slot, part in mechanism.slots().items():
        needs, reads = said(part, "needs", slot), said(part, "reads", slot)
        accepts, fills = (said(part, name, *mechanism.standing(part)) for name in ("accepts", "fills"))
        own = said(part, "fills", slot) - {GROUPS}
        does = {
            "single": "sums" not in accepts,
            "pays": (slot == "settle" or SettlePart in type(part).__mro__) and "late" not in accepts,
            "makes": slot == "train" and bool(fills) and "late" not in accepts,
            "draws": slot == "weigh" and "probabilities" in needs and "late" not in accepts,
            "average": slot == "value" and "again" not in accepts,
            "batch_loss": slot == "train" and method_of(part, "sends") is not None,
            "kept_rows": slot == "train" and any(block.private for block in mechanism.train.blocks()),
        }
        rows = {f"rows {name}" for name in reads} | {f"new rows {name}" for name in reads & laid if slot == "train"}
        if own - reads and not own & laid:
            rows.add(f"rows {min(own - reads)}")
        yield slot, part, needs | rows | {word for word, is_so in does.items() if is_so}


def said(part: Any, name: str, *slots: str) -> frozenset[str]:
    """Return what a part declares under ``name`` ("needs", "gives", "accepts", "reads", "fills") for some slots."""
    return in_slots(getattr(part, name, frozenset()), slots)


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
    slots = mechanism.slots()
    there = {*given, *CLIENTS_GIVE, *(f"rows {block.name}" for block in mechanism.train.blocks())} - withheld.keys()
    there = there.union(*(said(part, "gives", slot) for slot, part in slots.items()))
    for writer in writers(mechanism).values():
        there |= {f"new rows {name}" for name in said(writer, "fills", *mechanism.standing(writer))}
    again = getattr(mechanism.weigh, "kind", "") == "again" and method_of(mechanism.weigh, "aggregate") is not None
    parted = getattr(mechanism.weigh, "parted", False) and "parted" in said(slots.get("value"), "accepts", "value")
    there |= set() if again and not parted else {"average"}
    shared = [b for b in mechanism.train.blocks() if b.initial != "zero" and b.count != PER_CLIENT and not b.private]
    there |= {"schedule"} if [block.count for block in shared] == [1] else set()  # one model: no bids to go by
    there |= {name for name, word in WORDS.items() if word.by == "doing"}
    found: dict[tuple[str, str], Unmet] = {}
    for slot, part, words in words_of(mechanism):
        for word in sorted(words - there):
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
    return str(WORDS[word]).replace("the rule in", f"{word_of(slots['weigh'], 'weigh')} in", word == "average")


def _parts_with(slot: str, name: str) -> str:
    """Return in words which built-in parts have a block: those that lay it out (slot train) or fill it (slot weigh)."""
    made = {known: make() for known, make in PARTS[slot].items()}
    has = {k: [b.name for b in p.blocks()] if slot == "train" else said(p, "fills", slot) for k, p in made.items()}
    found = [f"'{known}'" for known, names in has.items() if name in names]
    return f"mechanism.{slot} = {' or '.join(found)}" if found else f"no part of mechanism.{slot} has them"


def clashes(
    mechanism: Mechanism, around: Mapping[str, str], table: Mapping[str, Mapping[str, str]] = FORBIDS
) -> list[str]:
    """Return a line for each two settings that do not go together, and for each setting that forbids what a part does.

    Args:
        mechanism: the mechanism.
        around: the words of what surrounds it, each with what a line about it begins with.
        table: what forbids what, ``FORBIDS`` or ``WARNS``.
    """
    found: dict[tuple[str, str, str], str] = {}
    for setting in (setting for setting in table if setting in around):
        for word, why in table[setting].items():
            if word in around and word not in WORDS:
                told = "on a network: " if word == "network" else f"not with {_shown(word)}: " if "." in word else ""
                found[setting, word, ""] = f"{around[setting]}: {told}{why}"
            for slot, part, words in words_of(mechanism):
                if word in words:
                    does = str(WORDS[word]) if WORDS[word].by == "doing" else f"needs {WORDS[word]}"
                    fitting = sorted(n for n, make in PARTS[slot].items() if "sums" in said(make, "accepts", slot))
                    because, part_name = why.format(accepting=", ".join(fitting)), word_of(part, slot)
                    line = f"{around[setting]}: mechanism.{slot}: {part_name} {does}: {because}"
                    found.setdefault((setting, word, part_name), line)
    return list(found.values())


def _shown(word: str) -> str:
    """Return how a line names a setting, or a value in its table."""
    setting, *below = word.split("/")
    return setting if len(below) < 2 else f"{setting}.{below[0]} '{below[1]}'"


def without(table: Mapping[str, tuple[str, str]], around: Mapping[str, str]) -> list[str]:
    """Return a line for each setting of ``table`` (``REQUIRES`` or ``IDLE``) whose word is not among those around."""
    return [f"{around[name]}: {why}" for name, (word, why) in table.items() if name in around and word not in around]


def listed() -> list[tuple[str, str, str, str]]:
    """Return the list: each word, who gives it, what it means with its remedy, and which settings forbid it.

    Words of "doing" are in nobody's ``needs``: they say what a part does unless it accepts something.
    """
    found = []
    for name, word in WORDS.items():
        forbidding = dict.fromkeys(_shown(setting) for setting, what in FORBIDS.items() if name in what)
        found.append((name, word.by, str(word), ", ".join(forbidding)))
    return found


def forbidden() -> list[tuple[str, str, str]]:
    """Return each two settings that do not go together, and why."""
    return [(_shown(a), _shown(b), why) for a, what in FORBIDS.items() for b, why in what.items() if b not in WORDS]


def questions_of(mechanism: Mechanism) -> list[str]:
    """Return a line for each part that asks clients something, as an app that speaks to hanse answers it."""
    lines = []
    for slot, part, words in words_of(mechanism):
        asked = [str(WORDS[word]).removeprefix("clients' ") for word in SPOKEN if word in words]
        # a part that is made of another one asks the questions of that one, and has its needs
        if not asked and method_of(part, "asks") is not None and not hasattr(part, "of"):
            asked = ["answers to questions of its own"]
        lines += [f"mechanism.{slot}: {word_of(part, slot)} asks clients for {one}" for one in asked]
    return lines


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
