"""The server's side of masked sums: opens the sums of groups' updates from what the members send.

:class:`MaskedSums` wraps the federation of a network as :class:`hanse.wings.private.secure_sums.Secured` wraps that of
a simulation, and gives a mechanism the same numbers. A training request becomes four exchanges
(:mod:`hanse.federation.mask_steps`). They bring fresh keys, shares of secrets, updates under masks and, once it is
known whose updates came, the shares that open the sum. A member may be lost in each exchange. A group with too few
members left is not opened, and the round continues without it.

:class:`MaskedGroup` has everything that the server gets in these four exchanges.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hanse.core.port import Call, Mask, Masked, Reply, Train
from hanse.federation.check import refusal
from hanse.federation.mask_steps import SAID
from hanse.federation.wrapped import Wrapped
from hanse.wings.private import masks
from hanse.wings.private.masker import FRESH, digest
from hanse.wings.private.secure_sums import OTHER_STARTS, SecureSums, mean_of, odd_sum, to_train, too_few

LOG = logging.getLogger("hanse.federation")
LONGEST_REASON = 1000
STEP_S = 60.0
"""Seconds that a step in which nobody trains may take."""


@dataclass
class MaskedGroup:
    """What the server knows of a group while its sum is made. All secrets are hexadecimal digits.

    Attributes:
        clients: the clients that were asked, ascending.
        least: the smallest number of members that must answer.
        keys: what each member said in "keys", by id.
        shares: the answers to "shares", by the id of the member that gave them.
        masked: ``[P + 6]``, each member's masked update, by id.
        samples: how many samples each member stated.
        signatures: what each member signed with its update.
        openings: the answers to "open", by member.
        refused: why a client is not in the sum.
        failed: why there is no sum; "" while a sum is still possible.
    """

    clients: Sequence[int]
    least: int
    keys: dict[int, Mapping[str, str]] = field(default_factory=dict)
    shares: dict[int, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    masked: dict[int, masks.Words] = field(default_factory=dict)
    samples: dict[int, float] = field(default_factory=dict)
    signatures: dict[int, str] = field(default_factory=dict)
    openings: dict[int, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    failed: str = ""

    def enough(self, left: Mapping[int, Any]) -> bool:
        """Return whether enough members are left for a sum; if not, the group notes the failure."""
        if not self.failed and len(left) < self.least:
            self.failed = too_few(len(left), len(self.clients), self.least)
        return not self.failed


def opened(group: MaskedGroup) -> Tensor | str:
    """Return the sum of a group's words, ``[P + 5]`` int64, or why it cannot be opened.

    Every share is compared with the hash that its maker sent earlier, and every recovered secret with what its owner
    signed about it. Whoever sent something wrong is therefore named, where that can be known.
    """
    survivors, size = sorted(group.masked), len(next(iter(group.masked.values())))
    total = np.zeros(size, np.uint64)
    for words in group.masked.values():
        total = total + words
    for i in group.shares:
        lives = i in group.masked
        secret = _recovered(group, i, "seeds" if lives else "keys")
        if isinstance(secret, str):
            return secret
        if lives:
            total = total - masks.stream(secret, size)
            continue
        for j in survivors:  # what j added for its mask with i, who is gone
            total = total - masks.between(secret, bytes.fromhex(group.keys[j]["masking"]), j, i, size)
    publics = [bytes.fromhex(group.keys[i]["masking"]) for i in group.shares]
    if not np.array_equal(masks.checked(total[:-1], publics), total):
        return f"the masks of its group do not cancel: one of the clients {survivors} sent something else than agreed"
    found = torch.from_numpy(total[:-1].view(np.int64))
    return odd_sum(found, sum(int(group.samples[i]) for i in survivors), survivors) or found


def _recovered(group: MaskedGroup, client: int, kind: Literal["seeds", "keys"]) -> bytes | str:
    """Return a member's seed or mask key from the shares of the others, or why it cannot be had.

    Args:
        group: the group; shares that are not what was dealt are noted in its ``refused``.
        client: the member.
        kind: what of the member is recovered.
    """
    half = slice(0, 64) if kind == "seeds" else slice(64, 128)
    found: dict[int, bytes] = {}
    for holder, opening in group.openings.items():
        share = opening[kind].get(str(client))
        if share is None:
            continue
        if hashlib.sha256(bytes.fromhex(share)).hexdigest() != group.shares[client]["prints"][str(holder)][half]:
            group.refused[holder] = f"the share that it gave for client {client} is not the one that was dealt to it"
        elif len(found) < group.least:
            found[holder] = bytes.fromhex(share)
    if len(found) < group.least:
        wrong = sorted(group.refused)
        named = f" (refused: clients {wrong})" if wrong else ""
        return f"{len(found)} shares of a secret of client {client} came; it takes {group.least}{named}"
    try:
        secret = masks.joined(found)
    except ValueError:
        secret = b""
    known = group.keys[client]["seed" if kind == "seeds" else "masking"]
    fits = secret and known == (hashlib.sha256(secret).digest() if kind == "seeds" else masks.public(secret)).hex()
    return secret if fits else f"client {client} dealt shares that do not give what it had signed"


@dataclass(frozen=True)
class MaskedSums(Wrapped):
    """A federation on a network that shows only sums of its updates over groups.

    Attributes:
        rule: which updates are summed together.
        seed: the run's seed.
    """

    rule: SecureSums
    seed: int

    def exchange(self, call: Call) -> Sequence[Reply]:
        """Return the replies. Those that trained have their group's mean, or a reason why the sum was not opened."""
        return _RoundUnderMasks(self, call).replies() if to_train(call.requests) else self.inner.exchange(call)


class _RoundUnderMasks:
    """The four exchanges of one round."""

    def __init__(self, port: MaskedSums, call: Call) -> None:
        self.port, self.round, self.asked = port, call.round, to_train(call.requests)
        self.others = [request for request in call.requests if request.client not in self.asked]
        self.end = None if call.deadline_s is None else time.monotonic() + call.deadline_s
        self.traffic: dict[int, tuple[int, int]] = {}
        self.rest: dict[int, Reply] = {}  # what came in "sum"
        self.plain: list[Reply] = []  # the replies of those who do not train
        ids = np.array(sorted(self.asked), np.int64)
        groups = port.rule.groups(port.seed, ids, self.round) or [ids]
        self.groups = [MaskedGroup(ids.tolist(), port.rule.least(len(ids))) for ids in groups]
        for group in self.groups:
            self._fitting(group)

    def replies(self) -> list[Reply]:
        """Ask for all steps, and return the replies."""
        self._keys()
        self._shares()
        self._sums()
        self._open()
        return [reply for group in self.groups for reply in self._answers(group)] + self.plain

    def _fitting(self, group: MaskedGroup) -> None:
        """Note why a group cannot be summed, before anything is asked."""
        tasks = {c: [task for task in self.asked[c].tasks if isinstance(task, Train)] for c in group.clients}
        if len(group.clients) < group.least:
            group.failed = too_few(len(group.clients), len(group.clients), group.least)
        elif any(len(mine) > 1 or mine[0].private for mine in tasks.values()):
            group.failed = "it is asked for more than one update, or a private one: sums are of one update per client"
        elif len({digest(mine[0]) for mine in tasks.values()}) > 1:
            group.failed = OTHER_STARTS

    def _train(self, client: int) -> Train:
        """Return what a client is to train."""
        return next(task for task in self.asked[client].tasks if isinstance(task, Train))

    def _keys(self) -> None:
        """Ask for fresh keys."""
        values = {
            c: {"clients": list(group.clients), "least": group.least, "task": digest(self._train(c))}
            for group in self.groups if not group.failed for c in group.clients
        }  # fmt: skip
        for client, said in self._step("keys", values).items():
            if all(masks.is_key(bytes.fromhex(str(said.values[what]))) for what in FRESH):
                self._of(client).keys[client] = said.values  # type: ignore[assignment]
            else:
                self._of(client).refused[client] = "its keys are none, or such that everybody agrees on the same"

    def _shares(self) -> None:
        """Hand the keys around, and ask for shares."""
        values = {
            c: {"keys": {str(i): dict(keys) for i, keys in group.keys.items()}}
            for group in self.groups if group.enough(group.keys) for c in group.keys
        }  # fmt: skip
        for client, said in self._step("shares", values).items():
            group = self._of(client)
            members = {str(i) for i in group.keys}
            if set(said.values["sealed"]) != members - {str(client)} or set(said.values["prints"]) != members:  # type: ignore[arg-type]
                group.refused[client] = "it dealt shares to others than the members of its group"
                continue
            group.shares[client] = said.values  # type: ignore[assignment]

    def _sums(self) -> None:
        """Hand the shares around, and ask for updates under masks; everybody else's questions go out, too."""
        values = {
            c: {part: {str(i): dealt[part][str(c)] for i, dealt in group.shares.items() if i != c}
                for part in ("sealed", "prints")}
            for group in self.groups if group.enough(group.shares) for c in group.shares
        }  # fmt: skip
        for client, said in self._step("sum", values).items():
            group = self._of(client)
            group.masked[client] = said.words.numpy().view(np.uint64)
            group.samples[client] = float(said.values["samples"])  # type: ignore[arg-type]
            group.signatures[client] = str(said.values["signature"])

    def _open(self) -> None:
        """Say whose updates came, and ask for the shares that open their sum."""
        values = {
            c: {"survivors": sorted(group.masked), "signatures": {str(i): s for i, s in group.signatures.items()}}
            for group in self.groups if group.enough(group.masked) for c in group.masked
        }  # fmt: skip
        for client, said in self._step("open", values).items():
            self._of(client).openings[client] = said.values  # type: ignore[assignment]

    def _answers(self, group: MaskedGroup) -> list[Reply]:
        """Return the replies of a group's members: with the mean of its sum, or without results."""
        words = opened(group) if group.enough(group.openings) else group.failed
        found = []
        for client in group.clients:
            down, up = self.traffic.get(client, (0, 0))
            if isinstance(words, str) or client not in group.masked:
                why = group.refused.get(client) or str(words)
                found.append(Reply(client, refused=why[:LONGEST_REASON], bytes_down=down, bytes_up=up))
                continue
            if client in group.refused:
                LOG.warning(
                    "round %d: client %d, whose update is in a sum: %s", self.round, client, group.refused[client]
                )
            task, reply = self._train(client), self.rest[client]
            mean = replace(
                mean_of(words, task.start.cpu(), group.masked), seat=task.seat, num_samples=group.samples[client]
            )
            beside = iter(reply.results[1:])
            results = tuple(mean if isinstance(one, Train) else next(beside) for one in self.asked[client].tasks)
            found.append(replace(reply, results=results, bytes_down=down, bytes_up=up))
        return found

    # ---- one exchange

    def _of(self, client: int) -> MaskedGroup:
        """Return a client's group."""
        return next(group for group in self.groups if client in group.clients)

    def _step(self, name: str, values: Mapping[int, Mapping[str, Any]]) -> dict[int, Masked]:
        """Ask for a step, and return what came of it, by client; note why the others drop out."""
        summing = name == "sum"
        requests = []
        for c, said in values.items():
            rest = [one for one in self.asked[c].tasks if summing and not isinstance(one, Train)]
            mask = Mask(name, said, self._train(c) if summing else None)
            requests.append(replace(self.asked[c], tasks=(mask, *rest)))
        if summing:
            requests += self.others
        if not requests:
            return {}
        left = None if self.end is None else max(1.0, self.end - time.monotonic())
        seconds = left if summing else min(STEP_S, left or STEP_S)
        found: dict[int, Masked] = {}
        mine = {r.client: r for r in requests}
        for reply in self.port.inner.exchange(Call(self.round, requests, seconds)):
            if reply.client not in values:
                self.plain.append(reply)
                continue
            down, up = self.traffic.get(reply.client, (0, 0))
            self.traffic[reply.client] = down + reply.bytes_down, up + reply.bytes_up
            wrong = refusal(mine[reply.client], reply)
            if wrong is not None:
                self._of(reply.client).refused[reply.client] = wrong
            elif reply.client not in found:
                first = reply.results[0]
                assert isinstance(first, Masked)  # refusal looks
                found[reply.client] = replace(first, values=SAID[name].check(dict(first.values)))
                if summing:
                    self.rest[reply.client] = reply
        for client in values.keys() - found.keys():
            self._of(client).refused.setdefault(client, f"no reply in the step '{name}' of masking")
        return found
