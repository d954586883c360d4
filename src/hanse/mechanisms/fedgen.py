"""FedGen (Zhu, Hong, Zhou 2021): FedAvg whose clients also learn from a generator that the server trains.

The generator makes *latents*, inputs of a classifier's last layer (its head), for given labels. The server trains it
until the returned heads classify its latents correctly. The generator travels to the clients as a payload with the
training tasks and adds two terms to their loss. :class:`FedGen` is the server's half. The generator, its training and
the clients' half are in :mod:`hanse.learning.generator`, which also says where the paper and its published code differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hanse.base.factories import Positive, Rate, SomeShare, Weight
from hanse.base.pytorch import torch
from hanse.base.streams import stream
from hanse.core.part import Context, Mechanism, State, View
from hanse.core.port import Payload
from hanse.core.table import Floats
from hanse.learning.generator import Ensemble, Generator, LastLayer, train_generator
from hanse.learning.threads import intra_op
from hanse.mechanisms.baselines import fedavg
from hanse.mechanisms.gtflat import GTFLAT
from hanse.mechanisms.train import SharedModel


@dataclass(frozen=True)
class FedGen(SharedModel):
    """FedAvg plus learning from a generator of latents, which the server trains on the heads of the clients' models.

    The server trains the generator after each round, on the heads of the accepted updates and on the counts of labels
    that the clients trained on. Clients get no extra terms before the generator has been trained for the first time.
    The defaults are the published settings for MNIST; for EMNIST ``generator_lr`` is 1e-4.

    Attributes:
        generative_alpha: weight of the clients' first extra term, the cross-entropy of their heads on generated
            latents. It is multiplied by ``generative_decay ** round``.
        generative_beta: weight of the clients' second extra term. It pulls a client's outputs towards those for
            generated latents of the same labels, and decays in the same way.
        generative_decay: factor per round of both weights and of the generator's learning rate.
        diversity: weight eta of the diversity loss in the generator's training.
        generator_lr: the learning rate of Adam.
        generator_steps: how many steps the generator is trained in a round.
        generator_batch: latents per step.
        generator_weight_decay: Adam's weight decay.
        generator_noise: number of noise inputs of the generator, besides the label.
        generator_hidden: width of the generator's hidden layer.
        latents: how many latents a client draws in each of its training steps.
        labels: how the labels of latents are drawn: "counts" by their shares of all labels counted so far (as in the
            paper), or "uniform" among those that ever occurred (as in the published code).

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("fedgen").before("train")
        >>> seats, state = part.seats(view, state)
        >>> part.sends(view, state).classes
        10
    """

    adds = (("payload", ""),)

    needs = frozenset({"head", "labels"})
    accepts = frozenset()  # sums of groups of updates have no heads
    # names of their own: an option of a mechanism carries over to a replaced part that has one of the same name
    generative_alpha: Weight = 10.0
    generative_beta: Weight = 10.0
    generative_decay: SomeShare = 0.98
    diversity: Weight = 1.0
    generator_lr: Rate = 3e-4
    generator_steps: Positive = 50
    generator_batch: Annotated[int, Field(ge=2, le=1_000_000)] = 128
    generator_weight_decay: Weight = 0.01
    generator_noise: Positive = 32
    generator_hidden: Positive = 256
    latents: Positive = 32
    labels: Literal["counts", "uniform"] = "counts"

    def init(self, context: Context) -> State:
        """Return a freshly drawn generator, the empty moments of Adam, and label counts of 0."""
        generator = self._generator(context)
        row = generator.initial(stream(context.seed, "generator")).to(context.initial(0).device)
        return {
            "generator": row,
            "moments": row.new_zeros(2, generator.num_parameters),
            "steps": 0,
            "counts": np.zeros(generator.classes),
            "loss": 0.0,
        }

    def sends(self, view: View, state: State) -> Payload:
        """Return the payload of this round: the generator, the labels' probabilities and the terms' weights.

        Args:
            view: the round. The method reads ``round``.
            state: as :meth:`init` makes it.
        """
        fade = self.generative_decay**view.round if state["steps"] else 0.0
        return Payload(
            state["generator"],
            torch.from_numpy(self._shares(state["counts"])),
            **vars(self._generator(view.context)),
            batch=self.latents,
            alpha=self.generative_alpha * fade,
            beta=self.generative_beta * fade,
        )

    def learn(self, outcome: View, state: State) -> State:
        """Count the labels that were trained on, and train the generator on the heads that came back.

        ``loss`` in the state is the mean loss over the steps. A head's numbers may be so large that the generator would
        not stay finite. Then the generator is left as it was, and the loss is NaN.

        Args:
            outcome: the finished round. The method reads ``round``, ``trained`` and ``draw``.
            state: as :meth:`init` makes it.
        """
        updates = outcome.trained
        if len(updates) == 0:
            return state
        reported = updates.extras["label_counts"]
        met = reported.sum(0, dtype=torch.float64).cpu().numpy()
        after = dict(state) | {"counts": state["counts"] + met}
        if not met.any():
            return after
        layout = outcome.context.layout
        weight, bias = LastLayer.of(layout).tensors(layout, updates.rows)
        labels = self._shares(np.where(met > 0, after["counts"], 0.0))  # only labels that some head has just learned
        with intra_op(1):  # one thread: the matrices are small, and the bits must not depend on the number of threads
            schooled = train_generator(
                self._generator(outcome.context),
                state["generator"],
                state["moments"],
                state["steps"],
                Ensemble.of(weight, bias, reported.to(weight.device), labels),
                outcome.draw("generator"),
                steps=self.generator_steps,
                batch=self.generator_batch,
                lr=self.generator_lr * self.generative_decay**outcome.round,
                weight_decay=self.generator_weight_decay,
                eta=self.diversity,
            )
        after["loss"] = float(schooled.losses.mean())
        if bool(torch.isfinite(schooled.row).all() and torch.isfinite(schooled.moments).all()):
            after |= {"generator": schooled.row, "moments": schooled.moments, "steps": schooled.steps}
        return after

    def _generator(self, context: Context) -> Generator:
        """Return the generator's shape for the head of the model at hand. Its weights are in the state."""
        head = LastLayer.of(context.layout)
        return Generator(head.classes, head.latent, self.generator_noise, self.generator_hidden)

    def _shares(self, counts: Floats) -> Floats:
        """Return the probability of each label; all are equal as long as none has occurred."""
        weights = (counts > 0).astype(np.float64) if self.labels == "uniform" else counts
        if not weights.any():
            weights = np.ones(len(counts))
        return np.asarray(weights / weights.sum())


def fedgen(clients_per_round: Positive = 10) -> Mechanism:
    """FedGen (Zhu et al. 2021): FedAvg whose clients also learn from a generator.

    :class:`FedGen` has its options: ``train = { generative_alpha = 5.0 }``.

    Args:
        clients_per_round: how many clients train in a round.
    """
    return replace(fedavg(clients_per_round), name="fedgen", train=FedGen())


def gtfedgen(clients_per_round: Positive = 10) -> Mechanism:
    """GTFedGen: :func:`fedgen` with GTFLAT's weights (:class:`hanse.mechanisms.gtflat.GTFLAT`).

    Args:
        clients_per_round: how many clients train in a round.
    """
    return replace(fedgen(clients_per_round), name="gtfedgen", weigh=GTFLAT())
