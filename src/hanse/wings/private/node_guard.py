"""A node's side of the wing: what leaves a participant, under its account and masks (:class:`PrivateNodeGuard`)."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.factories import call
from hanse.core.port import Ask, Call, Federation, Mask, OnModels, Reply, Request, Test, Tested, Train, Trained
from hanse.core.recipe import Recipe
from hanse.federation.codec import WireError
from hanse.federation.node import ACCOUNT, MEMBERS, PRIVATE, Assignment, Node
from hanse.learning.job import LOOP, Problem
from hanse.ledger.witness import Witness
from hanse.wings.private.account import AccountFile
from hanse.wings.private.masker import Masker, Trusted
from hanse.wings.private.privacy import InFile, Privacy, Private, answering
from hanse.wings.private.private_loop import dp_sgd
from hanse.wings.private.secure_sums import MOST_SAMPLES, Summand, in_words, summand

if TYPE_CHECKING:
    from hanse.learning.loop import Loop

LOG = logging.getLogger("hanse.federation.node")
NOT_SUMMED = "it has no update that can be summed; its own log says why"


class PrivateNodeGuard:
    """What a participant's account and the members that it trusts allow its node to send.

    Args:
        job: what the server says about the run.
        folder: the participant's folder.
        samples: how many samples it trains on.
        trusted: as for :class:`hanse.federation.node.Node`.
        private: its own privacy settings. None: those of ``job``.

    Raises:
        UserError: the run and the account do not fit together, or ``members.txt`` cannot be read.
    """

    heeds = frozenset({ACCOUNT, MEMBERS, PRIVATE})

    def __init__(
        self, job: Assignment, folder: Path, samples: int, trusted: Trusted | None, private: Privacy | None
    ) -> None:
        self.job, self.folder = job, folder
        self.trusted = trusted or Trusted.named_in(folder)
        rule = answering(AccountFile(folder / ACCOUNT), private, job.private)
        self.rule = None if rule is None else rule.of(job.client).bearing(job.num_clients, samples)

    def trains(self, problem: Problem, recipe: Recipe, loop: Loop | None) -> Loop | None:
        """Return the training loop that hides single samples, if they are what is hidden."""
        rule = self.rule
        if rule is None or rule.noise is None or rule.unit != "sample":
            return loop
        if loop is not None:
            raise UserError("a training loop of one's own is not DP-SGD: leave it out, or take the unit 'client'")
        if recipe.optimizer != "sgd":
            raise UserError(f"train.optimizer: '{recipe.optimizer}': must be 'sgd': DP-SGD steps as SGD")
        return dp_sgd(problem, rule.clip, rule.noise, fresh=True)

    def around(self, inner: Federation, recipe: Recipe, sizes: NDArray[np.int64], secret: bytes) -> Federation:
        """Return the federation of one as it answers under the account, if there are terms for one."""
        if self.rule is None:
            return inner
        account = InFile(AccountFile(self.folder / ACCOUNT), self.rule)
        return Private(inner, self.rule, account, recipe, sizes, self.job.seed, secret, own=True)

    def answers(self, node: Node, round: int, request: Request) -> Reply | None:
        """Return the answer to a step of masking, or to a test by one whose updates leave it in sums alone.

        Raises:
            WireError: the request would release an unmasked update, or this node takes no part in such a sum.
        """
        if self.trusted is not None:
            _refuse_in_the_clear(request)
            if tests := tuple(Tested(task.name, None, None, 0) for task in request.tasks if isinstance(task, Test)):
                return Reply(self.job.client, tests)
        if request.tasks and isinstance(request.tasks[0], Mask):
            return self._masked(node, round, request, request.tasks[0])
        return None

    @staticmethod
    def checked(private: Mapping[str, Any]) -> Privacy:
        """Return the participant's own privacy settings. Raises UserError."""
        found: Privacy = call(Privacy, private, "client_app: private")
        return found

    def _masked(self, node: Node, round: int, request: Request, task: Mask) -> Reply:
        """Answer a step of masking; besides "sum" there may be questions.

        Raises:
            WireError: this node takes no part in such a sum (:mod:`hanse.wings.private.masker`).
        """
        job, others = self.job, request.tasks[1:]
        alike = json.dumps(dataclasses.asdict(dataclasses.replace(job, client=0)))
        masker = Masker(node.folder.parent, Witness(self.folder), self.trusted, job.run, alike, job.client)
        if task.name != "sum":
            simple = {"keys": masker.keys, "shares": masker.shares, "open": masker.open}
            if task.name not in simple or others:
                raise WireError(f"'{task.name}': no step of masking, or one with other questions")
            return Reply(job.client, (simple[task.name](round, task),))
        if node.recipe.remembers:
            raise WireError("training that goes by each member's own last training is not the same for all")
        fresh = masker.before_sum(round, task)
        assert task.train is not None  # before_sum looks
        asked = dataclasses.replace(request, tasks=(task.train, *others) if fresh else others)
        replies, failed = _exchanged(node.federation, round, asked)
        if failed and fresh and others:  # what else was asked is answered as if training had not failed
            replies, _ = _exchanged(node.federation, round, dataclasses.replace(request, tasks=others))
        if not replies and not failed:
            return Reply(job.client, refused="silent")
        reply = dataclasses.replace(
            replies[0] if replies else Reply(job.client), bytes_down=0, bytes_up=0, arrival=None
        )
        if not fresh and reply.refused is None:
            return dataclasses.replace(reply, results=(masker.sum(round, task, None, 0), *reply.results))
        beside = reply.results if failed else reply.results[1:]
        found = failed or reply.refused or summand(asked, reply, None)
        if not isinstance(found, Summand):  # a reason may be made of samples, unless it comes from the account
            LOG.warning("round %d: nothing of this node is summed: %s", round, found)
            if reply.refused is not None:
                return Reply(job.client, refused=found if isinstance(node.federation, Private) else NOT_SUMMED)
            # whether a model makes training fail would tell of samples: nobody but the group learns of it
            said = [one.num_samples for one in reply.results if isinstance(one, Trained)]
            samples = float(said[0] if said and 0 <= said[0] <= MOST_SAMPLES else len(node.data.train))
            if samples > MOST_SAMPLES:
                return Reply(job.client, refused=NOT_SUMMED)
            still = Trained(task.train.seat, task.train.start, samples, None, 0)
            found = Summand(reply, 0, task.train.start, still)
        words = masker.sum(round, task, in_words(found.trained, found.start), found.trained.num_samples)
        return dataclasses.replace(reply, results=(words, *beside))


def _exchanged(inner: Federation, round: int, request: Request) -> tuple[Sequence[Reply], str]:
    """Return what the participant's federation of one answers, and why training failed; "" if it did not."""
    try:
        replies = inner.exchange(Call(round, [request]))
    except Exception as wrong:  # of whatever class: a server may choose the model for which it is raised
        if not any(isinstance(task, Train) for task in request.tasks):
            raise
        LOG.warning("round %d: training failed", round, exc_info=True)
        return (), f"{type(wrong).__name__}: {wrong}"
    refused = replies[0].refused if replies else None
    account = isinstance(inner, Private)
    return ((), refused) if refused is not None and refused.startswith(LOOP) and not account else (replies, "")


def _refuse_in_the_clear(request: Request) -> None:
    """Raise WireError if a request would release an unmasked update, or figures that reveal one.

    Bids and the weights of a tested mixture depend on how models score on the client's samples.
    """
    for task in request.tasks:
        scoring = task.models if isinstance(task, Ask) else task.mixture if isinstance(task, Test) else None
        crowded = isinstance(task, Test) and len(request.tasks) > 1
        if isinstance(task, Train | OnModels) or scoring is not None or crowded:
            raise WireError(
                f"{type(task).__name__}: updates of this participant leave it in masked sums alone, and it answers no "
                "questions about models on its samples"
            )
