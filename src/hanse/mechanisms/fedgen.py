"""FedGen (Zhu, Hong, Zhou 2021): FedAvg with clients that learn from a generator of latents, trained at the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from hanse.base.factories import Count, Positive, Weight
from hanse.base.streams import stream
from hanse.core.part import Context, Mechanism, State, TrainPart, View
from hanse.core.payload import Payload
from hanse.core.table import Block, Floats, Seats
from hanse.learning.generator import Ensemble, FromGenerator, Generator, Head, train_generator
from hanse.learning.threads import intra_op
from hanse.mechanisms.baselines import fedavg
from hanse.mechanisms.gtflat import GTFLAT, Scale
from hanse.mechanisms.train import chosen_seats


@dataclass(frozen=True)
class FedGen(TrainPart):
    """As FedAvg, with a payload for each client: a generator of latents that the server trains on the heads of the
    models that came back, and on the clients' counts of the labels they trained on.

    ``generative_alpha`` and ``generative_beta`` weigh the clients' two extra terms, times ``generative_decay**round``;
    there are none until the generator was trained for the first time. The generator has ``generator_noise`` inputs
    beside the label and ``generator_hidden`` units; it takes ``generator_steps`` of Adam a round on batches of
    ``generator_batch``, at ``generator_lr generative_decay**round``, with ``generator_weight_decay`` and the diversity
    loss times ``diversity`` (eta). Clients draw ``latents`` latents a step. Labels are drawn by their shares of all
    counts so far (``labels = "counts"``, the paper's), or uniformly among those ever met (the published code's).
    The defaults are the published settings for MNIST; for EMNIST ``generator_lr = 1e-4``.
    """

    needs = frozenset({"head"})
    gives = frozenset({"groups"})
    payload = FromGenerator.name
    # names of their own: an option of a mechanism carries over to a replaced part that has one of the same name
    generative_alpha: Weight = 10.0
    generative_beta: Weight = 10.0
    generative_decay: Annotated[float, Field(gt=0, le=1)] = 0.98
    diversity: Weight = 1.0
    generator_lr: Annotated[float, Field(gt=0)] = 3e-4
    generator_steps: Positive = 50
    generator_batch: Annotated[int, Field(ge=2)] = 128
    generator_weight_decay: Weight = 0.01
    generator_noise: Positive = 32
    generator_hidden: Positive = 256
    latents: Positive = 32
    labels: Literal["counts", "uniform"] = "counts"

    def blocks(self) -> Sequence[Block]:
        """Return the one server row."""
        return (Block("server"),)

    def init(self, context: Context) -> State:
        """Draw the generator; no label was met yet."""
        generator = self._generator(context)
        row = generator.initial(stream(context.seed, "generator")).to(context.initial(0).device)
        return {
            "generator": row,
            "moments": row.new_zeros(2, generator.num_parameters),
            "steps": 0,
            "counts": np.zeros(generator.classes),
            "loss": 0.0,
        }

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Seat each chosen client at its home row."""
        return chosen_seats(view), state

    def sends(self, view: View, state: State) -> Payload:
        """Return this round's generator and the weights of the two terms."""
        fade = self.generative_decay**view.round if state["steps"] else 0.0
        return FromGenerator.payload(
            self._generator(view.context),
            state["generator"],
            torch.from_numpy(self._shares(state["counts"])),
            self.generative_alpha * fade,
            self.generative_beta * fade,
            self.latents,
        )

    def learn(self, outcome: View, state: State) -> State:
        """Positive the labels, and train the generator on the heads that came back.

        ``loss`` is the mean over the training's steps. A head whose numbers are so large that the generator would not
        stay finite leaves it as it was, with a NaN as the loss.
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
        weight, bias = Head.of(layout).tensors(layout, updates.rows)
        labels = self._shares(np.where(met > 0, after["counts"], 0.0))
        with intra_op(1):  # the matrices are small, and so the bits do not depend on the machine's threads
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
        head = Head.of(context.layout)
        return Generator(head.classes, head.latent, self.generator_noise, self.generator_hidden)

    def _shares(self, counts: Floats) -> Floats:
        """Return the probabilities of the labels; all the same as long as none was met."""
        weights = (counts > 0).astype(np.float64) if self.labels == "uniform" else counts
        if not weights.any():
            weights = np.ones(len(counts))
        return np.asarray(weights / weights.sum())


def fedgen(
    clients_per_round: Positive = 10,
    generative_alpha: Weight = 10.0,
    generative_beta: Weight = 10.0,
    generator_lr: Annotated[float, Field(gt=0)] = 3e-4,
) -> Mechanism:
    """FedGen (Zhu et al. 2021): FedAvg whose clients are guided by a generator; see :class:`FedGen`."""
    return replace(
        fedavg(clients_per_round),
        name="fedgen",
        train=FedGen(generative_alpha, generative_beta, generator_lr=generator_lr),
    )


def gtfedgen(
    clients_per_round: Positive = 10,
    generative_alpha: Weight = 10.0,
    generative_beta: Weight = 10.0,
    generator_lr: Annotated[float, Field(gt=0)] = 3e-4,
    strength: Weight = 0.8,
    generations: Count = 50,
    population: Positive | None = None,
    scale: Scale = "paper",
) -> Mechanism:
    """GTFedGen: FedGen with GTFLAT's weights."""
    weigh = GTFLAT(strength, generations, population, scale)
    return replace(
        fedgen(clients_per_round, generative_alpha, generative_beta, generator_lr), name="gtfedgen", weigh=weigh
    )
