"""FedFomo (Zhang et al. 2021): each client mixes the models of others by what they gain on its own data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from hanse.base.factories import Positive, Share
from hanse.core.part import Context, Mechanism, State, TrainPart, View, Weighed, WeighPart, by_slot
from hanse.core.port import Request, Score, Scored
from hanse.core.table import PER_CLIENT, Block, Floats, Ints, Replace, Seats
from hanse.games.gram import distances
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.select import Seated, who
from hanse.mechanisms.train import chosen_seats
from hanse.mechanisms.weigh import Received


def gains(loss_old: Floats, loss_received: Floats, distance: Floats) -> Floats:
    """Return ``(L_i(old_i) - L_i(theta_j)) / |theta_j - old_i|`` ``[m, n]`` of FedFomo, 0 where nothing moved.

    ``loss_old [m]``, ``loss_received [m, n]``, ``distance [m, n]``; a loss that is not finite gains nothing.
    """
    with np.errstate(invalid="ignore"):  # both infinite: not a number, which gains nothing
        fall = np.asarray(loss_old, np.float64)[:, None] - np.asarray(loss_received, np.float64)
    known = np.isfinite(fall) & (np.asarray(distance) > 0)
    return np.divide(fall, distance, out=np.zeros(fall.shape), where=known)


def received_weights(gain: Floats) -> Floats:
    """Return the weights ``[m, n + m]`` on [received; old] of FedFomo: positive gains, normalised; a client that
    nobody helps keeps its old model.
    """
    m, n = gain.shape
    positive = np.maximum(gain, 0.0)
    total = positive.sum(axis=1)
    helped = total > 0
    W = np.zeros((m, n + m))
    W[helped, :n] = positive[helped] / total[helped, None]
    W[~helped, n + np.flatnonzero(~helped)] = 1.0
    return W


@dataclass(frozen=True)
class FedFomo(TrainPart, WeighPart):
    """FedFomo, in the slots train and weigh: each client trains a row "model" of its own, which the server sees. It
    is sent up to ``models`` other clients' updates, measures on its validation share what each
    of them and its own gain over the model it started from, and mixes those that gain.

    Which ones are sent: the largest sums of gains that it reported before; each place goes to a random client instead
    with probability ``exploration - decay t``, at least 0. One exchange of one question a client, after training. Its
    bytes count the old model, its own update and the ones it receives, though a client has the first two already.

    iPFL's comparison runs another form of it (its public code), of which each piece is an option. ``sent = "drawn"``:
    ``models`` of all updates, its own perhaps among them, are drawn without replacement in proportion to 1 plus the
    weights that it gave before, and it mixes these alone. ``share``: whose loss falls, that on its "validation" share
    or on the samples that it "train"s with. ``entry``: distances are ``|theta_j - theta_i + entry|``, from the own
    update, this much added to each difference, so that a weight on the own update is finite (and large).
    """

    needs = by_slot(train={"clients"}, weigh={"clients", "client_validation"})
    reads = by_slot(weigh={"model"})
    fills = by_slot(weigh={"model"})
    models: Positive = 6
    exploration: Share = 0.3
    decay: Annotated[float, Field(ge=0)] = 0.05
    score_samples: Positive | None = None
    sent: Literal["best", "drawn"] = "best"
    share: Literal["validation", "train"] = "validation"
    entry: Annotated[float, Field(gt=0)] | None = None

    def __post_init__(self) -> None:
        if self.share == "train":
            object.__setattr__(self, "needs", by_slot(train={"clients"}, weigh={"clients"}))

    def init(self, context: Context) -> State:
        """Nobody has gained from anybody."""
        n = context.num_clients
        return {"affinity": np.zeros((n, n))}

    def blocks(self) -> Sequence[Block]:
        """Return a row a client, which the server sees."""
        return (Block("model", PER_CLIENT),)

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Seat each chosen client at its row."""
        client = chosen_seats(view).client
        return Seats.at(client, view.at("model", client)), state

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask each client that trained for the losses of its old model, its own update, and the others' it is sent."""
        if view.stage != "close" or "weigh" not in view.context.standing(self):
            return ()
        updates = view.trained
        requests = []
        for s, client in enumerate(updates.seats.client.tolist()):
            old = view.table.rows[int(updates.seats.start[s])]
            received = updates.rows[self._sent(view, state, s)]
            models = torch.cat([old[None], updates.rows[s : s + 1], received])
            requests.append(Request(client, (Score("fedfomo", models, self.share, self.score_samples),)))
        return requests

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return the clients' mixes; who did not say its losses keeps its own update."""
        updates, table = view.trained, view.table
        count, client, start = len(updates), updates.seats.client, updates.seats.start
        gain, heard = self._gain(view, state)
        weights = received_weights(gain)
        models = np.zeros((count, table.size))
        models[np.arange(count), start] = weights[np.arange(count), count + np.arange(count)]
        mixes = Replace(updates.seats.target[heard], weights[heard, :count], models[heard])
        kept = int(weights[heard, count:].sum())
        own = float(np.diag(weights[:, :count])[heard].mean()) if heard.any() else 0.0
        metrics = {"weigh/self_weight": own, "weigh/kept_old": kept, "weigh/heard": int(heard.sum())}
        affinity = state["affinity"].copy()
        affinity[np.ix_(client, client)] += gain if self.sent == "best" else weights[:, :count]
        sent = np.zeros((count, count), np.int8)
        for s in range(count):
            sent[s, self._sent(view, state, s)] = 1
        return Weighed((mixes,), metrics=metrics, found=(Received(client, sent),)), {"affinity": affinity}

    def _sent(self, view: View, state: State, s: int) -> Ints:
        """Return the positions of the updates that seat s's client is sent, ascending; the best are others'."""
        client = view.trained.seats.client
        if self.sent == "drawn":
            chance = 1.0 + state["affinity"][client[s], client]
            draw, most = view.draw("fedfomo", client=int(client[s])), min(self.models, len(client))
            return np.sort(draw.choice(len(client), most, replace=False, p=chance / chance.sum()))
        others = np.delete(np.arange(len(client)), s)
        if len(others) <= self.models:
            return others
        draw = view.draw("fedfomo", client=int(client[s]))
        chance = max(0.0, self.exploration - self.decay * view.round)
        explored = int((draw.random(self.models) < chance).sum())
        # equal affinities (all of them, at first) are in random order
        order = draw.permutation(others)
        order = order[np.argsort(-state["affinity"][client[s], client[order]], kind="stable")]
        best, rest = order[: self.models - explored], order[self.models - explored :]
        return np.sort(np.concatenate([best, draw.choice(rest, explored, replace=False)]))

    def _gain(self, view: View, state: State) -> tuple[Floats, np.ndarray]:
        """Return the gains ``[S, S]``, 0 for models that were not received, and who answered ``[S]``."""
        updates = view.trained
        count = len(updates)
        sent = [np.append(s, self._sent(view, state, s)) for s in range(count)]
        distance = _moved(view, sent) if self.entry is None else _apart(view, sent, self.entry)
        loss_old, loss = np.zeros(count), np.full((count, count), np.inf)
        heard = np.zeros(count, bool)
        for s, client in enumerate(updates.seats.client.tolist()):
            answer = view.answers.get((client, "fedfomo"))
            if isinstance(answer, Scored) and answer.num_samples:
                heard[s] = True
                found = answer.loss.double().cpu().numpy()
                loss_old[s] = found[0]
                first = 1 if self.sent == "drawn" else 0  # then the own update counts only if it was drawn
                loss[s, sent[s][first:]] = found[1 + first :]
        return gains(loss_old, loss, distance), heard


def _moved(view: View, sent: Sequence[Ints]) -> Floats:
    """Return the distances ``[S, S]`` from each seat's old model to the updates that it was sent; 0 to the others."""
    updates, width = view.trained, view.context.layout.num_parameters
    count, start = len(sent), updates.seats.start
    if sum(map(len, sent)) * 4 > count * count:  # most pairs: one Gram product gives them all
        old = view.table.rows[start]
        return distances(torch.cat([old[:, :width], updates.rows[:, :width]]))[:count, count:]
    found = np.zeros((count, count))
    for s, whose in enumerate(sent):
        gap = updates.rows[whose, :width] - view.table.rows[int(start[s]), :width]
        found[s, whose] = torch.linalg.vector_norm(gap, dim=1, dtype=torch.float64).cpu().numpy()
    return found


def _apart(view: View, sent: Sequence[Ints], entry: float) -> Floats:
    """Return ``|theta_j - theta_s + entry|`` ``[S, S]`` for the updates j that each seat s was sent; 0 for others."""
    updates, width = view.trained.rows[:, : view.context.layout.num_parameters], len(sent)
    found = np.zeros((width, width))
    for s, whose in enumerate(sent):
        gap = updates[s] - updates[whose] + entry
        found[s, whose] = torch.linalg.vector_norm(gap, dim=1, dtype=torch.float64).cpu().numpy()
    return found


def fedfomo(
    clients_per_round: Seated = None,
    models: Positive = 6,
    sent: Literal["best", "drawn"] = "best",
    share: Literal["validation", "train"] = "validation",
    entry: Annotated[float, Field(gt=0)] | None = None,
    score_samples: Positive | None = None,
) -> Mechanism:
    """FedFomo (Zhang et al. 2021): each client mixes what helps it most of up to ``models`` others' updates."""
    part = FedFomo(models, score_samples=score_samples, sent=sent, share=share, entry=entry)
    return Mechanism("fedfomo", who(clients_per_round), part, part, deploy=ServerModel())
