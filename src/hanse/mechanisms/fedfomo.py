"""FedFomo (Zhang et al. 2021): each client mixes in others' models, by how much they improve on its own data.

In each round a client trains its own model and receives some of the other updates. It measures the loss of each on its
own validation data, and moves towards those that lower its loss. :class:`FedFomo` does all this as one part that fills
two slots; :func:`gains` and :func:`received_weights` are its formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hanse.base.factories import Positive, Rate, Share, Weight
from hanse.base.pytorch import torch
from hanse.core.part import Context, Mechanism, Most, State, TrainPart, View, Weighed, WeighPart, by_slot, set_words
from hanse.core.port import Request, Score, Scored
from hanse.core.table import PER_CLIENT, Block, Floats, Ints, Replace, Seats
from hanse.games.gram import distances
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.select import Seated, who
from hanse.mechanisms.train import chosen_seats
from hanse.mechanisms.weigh import Received


def gains(loss_old: Floats, loss_received: Floats, distance: Floats) -> Floats:
    """Return what clients gain from models, ``(L_i(old_i) - L_i(theta_j)) / |theta_j - old_i|``, ``[m, n]``.

    A gain is 0 if the model did not move, or if a loss is not finite.

    Args:
        loss_old: loss ``[m]`` of each client's old model on its own data.
        loss_received: loss ``[m, n]`` of each received model on each client's data.
        distance: distances ``[m, n]`` from each client's old model to the received ones.
    """
    with np.errstate(invalid="ignore"):  # both infinite: not a number, which gains nothing
        fall = np.asarray(loss_old, np.float64)[:, None] - np.asarray(loss_received, np.float64)
    known = np.isfinite(fall) & (np.asarray(distance) > 0)
    return np.divide(fall, distance, out=np.zeros(fall.shape), where=known)


def received_weights(gain: Floats) -> Floats:
    """Return the weights ``[m, n + m]`` on the received and the old models: positive gains, normalised.

    A client that gains from no model keeps its old one.

    Args:
        gain: from :func:`gains`, ``[m, n]``.

    Examples:
        The first client gains from both models, the second from neither:

        >>> received_weights(np.array([[3.0, 1.0], [-1.0, 0.0]]))
        array([[0.75, 0.25, 0.  , 0.  ],
               [0.  , 0.  , 0.  , 1.  ]])
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
    """FedFomo, in the slots train and weigh: the server sees a row "model" for each client, and mixes in others.

    After training, a client receives up to ``models`` of the other clients' updates. It measures by how much each of
    them, and its own update, improves on the model from which it started. It mixes those that improve. All this takes
    one question per client. The counted traffic includes the old model and the client's own update, although the client
    already has both.

    A client receives the updates of the clients with the largest sums of gains that it reported before. In round t,
    each place goes to a random client instead with probability ``exploration - decay t`` (at least 0).

    The public code of iPFL's comparison differs from this. The options ``sent``, ``share`` and ``entry`` choose its
    way.

    Attributes:
        models: how many updates a client receives at most.
        exploration: the probability in round 0 that a place goes to a random client.
        decay: by how much that probability falls with each round.
        score_samples: the most samples on which losses are measured. None: all.
        sent: "best" as above. "drawn": a client gets ``models`` of all updates, perhaps its own among them, and mixes
            only these. They are drawn without replacement, in proportion to 1 plus the weights that the client gave
            them before.
        share: on which of the client's samples losses are measured: its "validation" share or its "train" share.
        entry: a number that is added to every entry of the difference, in the distances ``|theta_i - theta_j + entry|``
            from the client's own update. It gives the client's own update a finite (and large) weight. None: distances
            from the old model.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("fedfomo").before("train")
        >>> seats, state = part.seats(view, state)
        >>> len(seats)
        4
    """

    adds = ()

    needs = by_slot(train={"clients", "scores"}, weigh={"clients", "client_validation", "scores", "rows model"})
    fills = by_slot(weigh={"model"})
    models: Positive = 6
    exploration: Share = 0.3
    decay: Weight = 0.05
    score_samples: Positive | None = None
    sent: Literal["best", "drawn"] = "best"
    share: Literal["validation", "train"] = "validation"
    entry: Rate | None = None

    def __post_init__(self) -> None:
        """Drop the need for validation shares if losses are measured on the training data."""
        if self.share == "train":
            set_words(self, needs=by_slot(train={"clients", "scores"}, weigh={"clients", "scores", "rows model"}))

    def init(self, context: Context) -> State:
        """Return affinities of 0: ``affinity [N, N]`` sums up what each client gained from each other client."""
        n = context.num_clients
        return {"affinity": np.zeros((n, n))}

    def blocks(self, context: Context) -> Sequence[Block]:
        """Return a row "model" for each client."""
        return (Block("model", PER_CLIENT),)

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Return a seat (a training task) for each chosen client, which starts from the client's own row.

        Args:
            view: the round. The method reads ``at``, ``home`` and ``choice``.
            state: as :meth:`init` makes it.
        """
        client = chosen_seats(view).client
        return Seats.at(client, view.at("model", client)), state

    def questions(self, clients: int, rows: int) -> Mapping[str, Most]:
        """Return what :meth:`asks` asks at most."""
        return {"Score": Most(1, clients + 1, self.share, self.score_samples)}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask each client that trained for the losses of its old model, its update, and those it is sent.

        Args:
            view: the round. The method reads ``stage``, ``table`` and ``trained``.
            state: as :meth:`init` makes it.
        """
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
        """Return the clients' mixes. A client that did not report its losses keeps its own update.

        Three figures are recorded: the mean weight of a client's own update, how many kept their old model, and how
        many reported.

        Args:
            view: the round. The method reads ``answers``, ``table`` and ``trained``.
            state: as :meth:`init` makes it.
        """
        updates, table = view.trained, view.table
        count, client, start = len(updates), updates.seats.client, updates.seats.start
        sent = [self._sent(view, state, s) for s in range(count)]  # the same draws as when asking
        gain, heard = self._gain(view, sent)
        weights = received_weights(gain)
        models = np.zeros((count, table.size))
        models[np.arange(count), start] = weights[np.arange(count), count + np.arange(count)]
        mixes = Replace(updates.seats.target[heard], weights[heard, :count], models[heard])
        kept = int(weights[heard, count:].sum())
        own = float(np.diag(weights[:, :count])[heard].mean()) if heard.any() else 0.0
        metrics = {"weigh/self_weight": own, "weigh/kept_old": kept, "weigh/heard": int(heard.sum())}
        affinity = state["affinity"].copy()
        affinity[np.ix_(client, client)] += gain if self.sent == "best" else weights[:, :count]
        received = np.zeros((count, count), np.int8)  # for parts that account for transfers
        for s, whose in enumerate(sent):
            received[s, whose] = 1
        return Weighed((mixes,), metrics=metrics, found=(Received(received),)), {"affinity": affinity}

    def _sent(self, view: View, state: State, s: int) -> Ints:
        """Return which updates the client of seat ``s`` is sent, as positions in ascending order.

        The draw depends only on the round and the client, so the answer is the same whenever it is asked for in a
        round.
        """
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
        # shuffle before the stable sort, so equal affinities (at first, all of them) come in random order
        order = draw.permutation(others)
        order = order[np.argsort(-state["affinity"][client[s], client[order]], kind="stable")]
        best, rest = order[: self.models - explored], order[self.models - explored :]
        return np.sort(np.concatenate([best, draw.choice(rest, explored, replace=False)]))

    def _gain(self, view: View, received: Sequence[Ints]) -> tuple[Floats, np.ndarray]:
        """Return the gains ``[S, S]``, 0 for models that were not ``received``, and which clients answered ``[S]``."""
        updates = view.trained
        count = len(updates)
        sent = [np.append(s, whose) for s, whose in enumerate(received)]
        distance = _moved(view, sent) if self.entry is None else _apart(view, sent, self.entry)
        loss_old, loss = np.zeros(count), np.full((count, count), np.inf)  # an infinite loss gains nothing
        heard = np.zeros(count, bool)
        for s, client in enumerate(updates.seats.client.tolist()):
            answer = view.answers.get((client, "fedfomo"))
            if isinstance(answer, Scored) and answer.num_samples:
                heard[s] = True
                found = answer.loss.double().cpu().numpy()
                loss_old[s] = found[0]
                first = 1 if self.sent == "drawn" else 0  # "drawn": the own update counts only if it was drawn
                loss[s, sent[s][first:]] = found[1 + first :]
        return gains(loss_old, loss, distance), heard


def _moved(view: View, sent: Sequence[Ints]) -> Floats:
    """Return the distance from each seat's old model to each update that it was sent, ``[S, S]``; 0 elsewhere."""
    updates, width = view.trained, view.context.layout.num_parameters
    count, start = len(sent), updates.seats.start
    if sum(map(len, sent)) * 4 > count * count:  # many pairs: one Gram product for all of them is faster
        old = view.table.rows[start]
        return distances(torch.cat([old[:, :width], updates.rows[:, :width]]))[:count, count:]
    found = np.zeros((count, count))
    for s, whose in enumerate(sent):
        gap = updates.rows[whose, :width] - view.table.rows[int(start[s]), :width]
        found[s, whose] = torch.linalg.vector_norm(gap, dim=1, dtype=torch.float64).cpu().numpy()
    return found


def _apart(view: View, sent: Sequence[Ints], entry: float) -> Floats:
    """Return ``|theta_s - theta_j + entry|`` for the updates j that each seat s was sent, ``[S, S]``; 0 elsewhere."""
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
    entry: Rate | None = None,
    score_samples: Positive | None = None,
) -> Mechanism:
    """FedFomo (Zhang et al. 2021): each client mixes what helps it most of up to ``models`` other clients' updates.

    Args:
        clients_per_round: how many clients, drawn at random, train in a round. None: all of them.
        models: see :class:`FedFomo`, as for the other options.
        sent: "best" or "drawn".
        share: "validation" or "train".
        entry: a number added to every entry of a difference. None: the distances are as published.
        score_samples: the most samples on which losses are measured. None: all.
    """
    part = FedFomo(models, score_samples=score_samples, sent=sent, share=share, entry=entry)
    return Mechanism("fedfomo", who(clients_per_round), part, part, deploy=ServerModel())
