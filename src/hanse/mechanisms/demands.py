"""What the parts of a mechanism ask of clients besides plain training.

A Flower app has a train and an evaluate function. Some mechanisms need more than that: scores of several models, bids,
gradients, a training loss with a pull. :func:`demands_of` finds this out before round 0. :func:`hanse.flower.strategy`
can then refuse what no plain app can do. Where the app's evaluate function is enough, it asks for one line in the
client app (:func:`hanse.flower.speaks`). The tables below list the built-in parts. A user's own part that asks
questions is assumed to ask only what an app can answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hanse.core.calling import method_of
from hanse.core.part import Mechanism, Part, in_slots
from hanse.mechanisms.fedfomo import FedFomo
from hanse.mechanisms.fedgen import FedGen
from hanse.mechanisms.fedsoft import FedSoft
from hanse.mechanisms.ifca import IFCA
from hanse.mechanisms.ipfl import IPFL
from hanse.mechanisms.pifl import OneShot, PretrainedTiers, ServerTokens, Tokens
from hanse.mechanisms.registry import is_rule, word_of
from hanse.mechanisms.select import PowerOfChoice
from hanse.mechanisms.server_steps import QFedAvg
from hanse.mechanisms.set_aware import SetAware
from hanse.mechanisms.value import FirstOrder, FirstOrderAtClients

# Each text completes "asks clients for ..." or "needs ...".
# what an app can answer with its own evaluate function, once it speaks
ANSWERED: dict[type[Part], str] = {
    PowerOfChoice: "the loss of the server's model before it is chosen",
    FedFomo: "the losses of other clients' models",
    IFCA: "the loss of each cluster's model",
    Tokens: "bids, and scores of the tiers' models",
    ServerTokens: "bids",
    OneShot: "a test of the mix of tiers that each client makes for itself",
    QFedAvg: "the loss of the model that it starts from",
}
# what takes the client's samples themselves, and so more than an evaluate function
AT_CLIENTS: dict[type[Part], str] = {
    FedSoft: "which of several models fits each sample best",
    FirstOrderAtClients: "gradients of a model",
    IPFL: "models and bills that stay with the client",
}
# what takes samples at the server; the user's evaluate(arrays) only says what a model is worth
AT_SERVER: dict[type[Part], str] = {
    FirstOrder: "the gradient on the server's samples",
    SetAware: "losses and gradients of each class of the server's samples",
    PretrainedTiers: "confusion counts on the server's samples",
}
INSTEAD = "a plain train or evaluate function does not do that; hanse.flower.client_app does (docs/flower.md)"
OTHERWISE = "; or take a value part that needs no more than models, such as value='gtg'"


@dataclass(frozen=True)
class Demand:
    """What one part asks of a plain app. Exactly one of ``never`` and ``question`` is given.

    Attributes:
        never: a line that says what the part asks; given if no plain app can do that.
        question: a line that says what the part asks; given if an app wrapped by :func:`hanse.flower.speaks` can
            answer.
    """

    never: str | None = None
    question: str | None = None


# what a client with a privacy account answers with noise
NOISED = (FirstOrderAtClients,)


def refuse_private(mechanism: Mechanism) -> list[str]:
    """Return a line for each part that asks clients for something that a privacy account does not release.

    A user's own part that does so is found only when it asks: the clients then refuse to answer.
    """
    lines = []
    for slot, outer in mechanism.parts().items():
        for part in _and_of(outer):
            asked = next((said[type(part)] for said in (ANSWERED, AT_CLIENTS) if type(part) in said), None)
            asked = "label counts" if isinstance(part, FedGen) else asked
            if asked is not None and not isinstance(part, NOISED):
                lines.append(
                    f"mechanism.{slot}: {word_of(part, slot)} asks clients for {asked}: made of samples, and "
                    "no update that could be noised"
                )
    return list(dict.fromkeys(lines))


def demands_of(mechanism: Mechanism) -> list[Demand]:
    """Return what a mechanism asks of clients besides plain training, each demand once."""
    found = list(_of_training(mechanism))
    for slot, part in mechanism.slots().items():
        for one in _and_of(part):
            found += _of_part(slot, one)
    return list(dict.fromkeys(found))


def _of_training(mechanism: Mechanism) -> Iterator[Demand]:
    """Yield what the mechanism asks of training itself."""
    train = mechanism.train
    where = f"mechanism.train: {word_of(train, 'train')}"
    pulls = "penalty" in in_slots(train.needs, ["train"])
    if pulls:
        yield Demand(f"{where} pulls or tilts what clients train: {INSTEAD}")
    if method_of(train, "sends") is not None:
        yield Demand(f"{where} adds a loss to each batch: {INSTEAD}")
    if any(block.private for block in train.blocks()):
        yield Demand(f"{where} has rows that stay with their clients: {INSTEAD}")
    for slot, part in mechanism.slots().items():
        # such parts go by steps of SGD or by the learning rate, which a plain train function does not report
        if "sgd" in in_slots(part.needs, [slot]) and not (slot == "train" and pulls):
            yield Demand(f"mechanism.{slot}: {word_of(part, slot)} reads how many steps of SGD clients took: {INSTEAD}")


def _of_part(slot: str, part: Part) -> Iterator[Demand]:
    """Yield what the part in a slot asks."""
    where, kind = f"mechanism.{slot}: {word_of(part, slot)}", type(part)
    if kind in AT_CLIENTS:
        yield Demand(f"{where} asks clients for {AT_CLIENTS[kind]}: {INSTEAD}{OTHERWISE if slot == 'value' else ''}")
    elif kind in AT_SERVER:
        only = "evaluate says only what a model is worth"
        yield Demand(f"{where} needs {AT_SERVER[kind]}: {only}{OTHERWISE if slot == 'value' else ''}")
    elif kind in ANSWERED:
        yield Demand(question=f"{where} asks clients for {ANSWERED[kind]}")
    # a part that is made of another one asks the questions of that one, which is looked at by itself
    elif method_of(part, "asks") is not None and not hasattr(part, "of"):
        yield Demand(question=f"{where} asks clients questions of its own")


def _and_of(part: Part) -> Iterator[Part]:
    """Yield a part and the parts inside it, such as the one whose average it takes a step along."""
    yield part
    inner: Any = getattr(part, "of", None)
    if is_rule(inner):
        yield from _and_of(inner)
