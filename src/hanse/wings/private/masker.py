"""A node's side of masked sums: what it answers in each step, and what it refuses.

:class:`Masker` answers the four steps of :mod:`hanse.federation.mask_steps`. It trusts the server for nothing but the
delivery of messages:

* Members know each other by keys that their owners exchanged (:class:`Trusted`). They sign the fresh keys of a round
  together with everything that must be the same for all. The server can therefore neither impersonate a member nor give
  one member another model to train.
* A round's update leaves the node once. If the round is asked for again, the same words are sent under new masks, and
  only for the same group, model and sum. Two different sums with one update would reveal somebody else's update.
* For each member, the node reveals a share of the seed or of the key, never of both. It does so only for a sum of
  enough members, all of which were given shares of the same members.

What the node has done is kept in ``masking.json`` and ``masked.npz`` in the participant's folder, since each message
may meet a fresh process. Simultaneous messages wait for each other.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.base.lock import locked
from hanse.core.declared import Plain
from hanse.core.port import Mask, Masked, Train
from hanse.federation.codec import WireError, pack
from hanse.federation.mask_steps import ASKED, context_of, masked_with, statement
from hanse.federation.node import MEMBERS, private_arrays
from hanse.ledger.note import is_signature
from hanse.ledger.witness import Witness, read_witnesses
from hanse.wings.private import masks
from hanse.wings.private.secure_sums import SecureSums

STATE, WORDS = "masking.json", "masked.npz"
NONE = torch.zeros(0, dtype=torch.int64)
LEAST = 3
FRESH = ("sealing", "masking")  # a member's keys of one round


@dataclass(frozen=True)
class Trusted:
    """The members whose updates may be summed with a participant's own.

    Attributes:
        keys: the public keys of other members (their ``witness.pub``), 32 bytes each.
        least: the smallest number of members in a sum, at least 3.
        same: whether its sums must have the same members in all rounds of a run (``regroup = false`` in the
            experiment), because sums over changing groups reveal mean updates. Then no member may drop out.

    Raises:
        UserError: ``least`` is below 3. In a sum of two, each member would know the other's update.

    Examples:
        Trust in two other members, whose keys were exchanged by telephone, and no sum of fewer than four:

        >>> Path("members.txt").write_text(f"clinic {'1' * 64}" + chr(10) + f"farm {'2' * 64}" + chr(10))
        142
        >>> trusted = Trusted.read(Path("members.txt"), least=4)
        >>> len(trusted.keys), trusted.least
        (2, 4)
    """

    keys: frozenset[bytes]
    least: int = LEAST
    same: bool = False

    def __post_init__(self) -> None:
        if self.least < LEAST:
            raise UserError(f"least: {self.least}: must be at least {LEAST}: in a pair each knows the other's update")

    @staticmethod
    def read(file: Path, least: int = LEAST, same: bool = False) -> Trusted:
        """Return the members that a file names, one name and key per line. The options are those of the class.

        Raises:
            UserError: the file cannot be read, a line is malformed, or a name or a key occurs twice.
        """
        return Trusted(frozenset(read_witnesses(file, "").values()), least, same)

    @staticmethod
    def named_in(home: Path) -> Trusted | None:
        """Return the members named by ``members.txt`` in a participant's folder, or None without that file."""
        return Trusted.read(home / MEMBERS) if (home / MEMBERS).exists() else None


@dataclass
class State:
    """How far a round's masking has come at this node. Bytes are hexadecimal digits.

    Attributes:
        step: the last step that was answered.
        round: the round.
        context: the hash of what the server must have told all members alike
            (:func:`hanse.federation.mask_steps.context_of`).
        clients: the clients that were asked.
        least: the smallest number of members that must answer.
        task: the hash of the training task.
        sealing: the private key for sealing.
        masking: the private key for masks.
        seed: the seed of the node's own mask.
        keys: what each member of the group said, by id.
        shares: the two shares that each member dealt to this node, by id.
        survivors: the members whose updates are in the sum that this node helped to open in step "open".
        sent: the round of the last masked update that left the node; -1 for none.
        sent_context: the context of that round.
        sent_samples: the number of samples stated with that update.
        opened: the survivors of the sum that this node helped to open in round ``sent``. Empty: none.
        group: the keys of all members with which the node has been in a group, if groups must stay the same.
        size: the number of members of the node's first group.
        client: the node's id in this run; -1 before it has masked.
    """

    step: str = ""
    round: int = -1
    context: str = ""
    clients: list[int] = field(default_factory=list)
    least: int = 0
    task: str = ""
    sealing: str = ""
    masking: str = ""
    seed: str = ""
    keys: dict[str, dict[str, str]] = field(default_factory=dict)
    shares: dict[str, list[str]] = field(default_factory=dict)
    survivors: list[int] = field(default_factory=list)
    sent: int = -1
    sent_context: str = ""
    sent_samples: float = 0.0
    opened: list[int] = field(default_factory=list)
    group: list[str] = field(default_factory=list)
    size: int = 0
    client: int = -1


def digest(train: Train) -> str:
    """Return the hash of a training task without what differs between members: the seat and its history."""
    message = pack(dataclasses.replace(train, seat=0, before=0, last=None))
    hasher = hashlib.sha256(message.header.encode())
    for _, array in sorted(message.arrays.items()):  # the header's own hashes of them are too short to be signed
        hasher.update(array.tobytes())
    return hasher.hexdigest()


@dataclass(frozen=True)
class Masker:
    """What one participant does in the steps of masking, in one run.

    Attributes:
        folder: the folder of the participant's state in this run.
        witness: the participant's witness. Other members know the participant by the witness's key.
        trusted: the members whose updates may be summed with its own. None: nobody's.
        run: the run's name.
        job: the participant's assignment without its id, as text.
        client: the participant's id.
    """

    folder: Path
    witness: Witness
    trusted: Trusted | None
    run: str
    job: str
    client: int

    def keys(self, round: int, task: Mask) -> Masked:
        """Answer "keys": fresh keys for this round, signed.

        Raises:
            WireError: the node trusts nobody, the group is too small or too easily opened, or the round was already
                masked in another way.
        """
        asked, trusted = self._read(task), self._trusted()
        clients, least = sorted(asked["clients"]), asked["least"]
        if len(set(clients)) < len(clients) or self.client not in clients:
            raise WireError(f"a group of {clients}: must name each member once, and this one")
        most = SecureSums(trusted.least).least(len(clients))
        if not most <= least <= len(clients):
            raise WireError(f"a sum of {least} of a group of {len(clients)}: here it takes at least {most}")
        context = context_of(self.run, self.job, round, asked)
        with self._changing() as state:
            if round < state.sent or (round == state.sent and context != state.sent_context):
                raise WireError(
                    f"round {round}: an update of round {state.sent} was masked already, for another group or model; "
                    "a second sum could be taken apart"
                )
            sealing, masking, seed = (secrets.token_bytes(masks.SECRET) for _ in range(3))
            said = {"sealing": masks.public(sealing).hex(), "masking": masks.public(masking).hex(),
                    "seed": hashlib.sha256(seed).hexdigest()}  # fmt: skip
            said |= {"identity": self.witness.public.hex()}
            said |= {"signature": self.witness.sign(statement(context, self.client, said)).hex()}
            state.step, state.round, state.context, state.clients, state.least = "keys", round, context, clients, least
            state.task, state.sealing, state.masking = asked["task"], sealing.hex(), masking.hex()
            state.seed, state.keys, state.shares, state.survivors = seed.hex(), {str(self.client): said}, {}, []
        return Masked("keys", said, NONE)

    def shares(self, round: int, task: Mask) -> Masked:
        """Answer "shares": make a share of the seed and of the mask key for each member, sealed for that member.

        Raises:
            WireError: a member is not known here, or has not signed its keys for this round, or too few members are
                left.
        """
        keys: dict[str, dict[str, str]] = self._read(task)["keys"]
        with self._changing() as state:
            self._next(state, "keys", round)
            self._known(state, keys)
            members = sorted(int(c) for c in keys)
            dealt = [masks.split(bytes.fromhex(secret), state.least, members) for secret in (state.seed, state.masking)]
            state.step, state.keys = "shares", keys
            own = [shares[self.client] for shares in dealt]
            state.shares = {str(self.client): [share.hex() for share in own]}
            prints = {str(i): "".join(hashlib.sha256(s[i]).hexdigest() for s in dealt) for i in members}
            sealed = {
                str(i): masks.seal(self._sealing(state, self.client, i), dealt[0][i] + dealt[1][i]).hex()
                for i in members
                if i != self.client
            }
        return Masked("shares", {"sealed": sealed, "prints": prints}, NONE)

    def before_sum(self, round: int, task: Mask) -> bool:
        """Take in what comes with "sum", and return whether the update still has to be trained.

        If not, the same words as last time are sent again.

        Raises:
            WireError: shares are not what was sent earlier, too few are left, or the training is not what the group
                agreed on.
        """
        asked = self._read(task)
        if task.train is None:
            raise WireError("a sum without anything to train")
        with self._changing() as state:
            self._next(state, "shares", round)
            if digest(task.train) != state.task:
                raise WireError("the training differs from what the members of the group have signed")
            if set(asked["sealed"]) != set(asked["prints"]) or not set(asked["sealed"]) < set(state.keys):
                raise WireError("shares of others than the members of the group")
            taken = {c: self._share(state, c, sealed, asked["prints"][c]) for c, sealed in asked["sealed"].items()}
            if 1 + len(taken) < state.least:
                raise WireError(f"{1 + len(taken)} of its group have dealt shares; a sum takes {state.least}")
            state.step, state.shares = "ready", state.shares | taken
            return state.sent != round

    def sum(self, round: int, task: Mask, words: Tensor | None, samples: float) -> Masked:
        """Answer "sum" with the update's words (its numbers as integers) under masks.

        Args:
            round: the round.
            task: the task that :meth:`before_sum` took in, after training.
            words: ``[P + 5]`` int64, as :func:`hanse.wings.private.secure_sums.in_words` makes them. None: the words
                that were sent last time.
            samples: the stated number of samples. It is not read if ``words`` is None.

        Raises:
            WireError: the round was meanwhile begun again for something else, or the words that were sent last time are
                lost.
        """
        with self._changing(durable=True) as state:
            self._next(state, "ready", round)
            trained = {"clients": state.clients, "least": state.least, "task": task.train and digest(task.train)}
            if context_of(self.run, self.job, round, trained) != state.context:
                raise WireError(f"round {round}: was begun again for another model while this update was trained")
            if words is None:
                with np.load(self.folder / WORDS, allow_pickle=False) as file:
                    if int(file["round"]) != round:
                        raise WireError(f"round {round}: what went out then is not here any more")
                    plain = file["words"].view(np.uint64)
            else:
                # the words are kept before the state says so: what was never sent may be made again
                private_arrays(self.folder / WORDS, {"words": words.numpy(), "round": np.array(round)})
                plain = words.numpy().view(np.uint64)
                state.sent, state.sent_context, state.sent_samples = round, state.context, samples
                state.opened = []
            state.step = "sum"
            others = [int(c) for c in state.shares if int(c) != self.client]
            publics = [bytes.fromhex(state.keys[c]["masking"]) for c in state.shares]
            masked = masks.checked(plain, publics)
            size, own = len(masked), bytes.fromhex(state.masking)
            masked = masked + masks.stream(bytes.fromhex(state.seed), size)
            for other in others:
                peer = bytes.fromhex(state.keys[str(other)]["masking"])
                masked = masked + masks.between(own, peer, self.client, other, size)
            signature = self.witness.sign(masked_with(state.context, _masking(state)))
            said: dict[str, Plain] = {"samples": state.sent_samples, "signature": signature.hex()}
        return Masked("sum", said, torch.from_numpy(masked.view(np.int64)))

    def open(self, round: int, task: Mask) -> Masked:
        """Answer "open": for each member, reveal a share of its seed if its update is in the sum, else of its mask key.

        Raises:
            WireError: the sum has too few members, or members outside the group; one of them was given shares of other
                members than this node; or this node has already helped to open another sum of the same updates.
        """
        asked = self._read(task)
        survivors = sorted(asked["survivors"])
        with self._changing(durable=True) as state:
            if not (state.step == "open" and state.survivors == survivors and state.round == round):
                self._next(state, "sum", round)
            members = {int(c) for c in state.shares}
            if len(set(survivors)) < len(survivors) or not {self.client} <= set(survivors) <= members:
                raise WireError(f"a sum of {survivors}: must be of this member and others of its group, each once")
            if len(survivors) < max(state.least, self._trusted().least):
                raise WireError(f"a sum of {len(survivors)}: it takes at least {state.least}")
            if self._trusted().same and len(survivors) < state.size:
                raise WireError(f"a sum of {survivors}: this participant's must stay that of {state.size} members")
            self._masked_alike(state, survivors, asked["signatures"])
            if state.opened and state.opened != survivors:
                raise WireError("another sum of these updates was opened already; the two could be taken apart")
            state.step, state.survivors, state.opened = "open", survivors, survivors
            state.sealing = state.masking = state.seed = ""  # nobody finds them here later
            seeds = {str(c): state.shares[str(c)][0] for c in survivors}
            keys = {str(c): state.shares[str(c)][1] for c in sorted(members - set(survivors))}
        return Masked("open", {"seeds": seeds, "keys": keys}, NONE)

    # ---- what all steps need

    def _read(self, task: Mask) -> Any:
        """Return what the server says in a step. Raises WireError if it is of another form."""
        return ASKED[task.name].check(dict(task.values), WireError)

    def _trusted(self) -> Trusted:
        """Return whom this participant sums its updates with. Raises WireError if it named nobody."""
        if self.trusted is None:
            raise WireError(
                f"this participant names no members whose keys it trusts: a file {MEMBERS} in its folder, a name and "
                "the key in their witness.pub a line"
            )
        return self.trusted

    def _next(self, state: State, after: str, round: int) -> None:
        """Raise WireError unless the last step of this very round was ``after``."""
        if (state.step, state.round) != (after, round):
            raise WireError(
                f"a step of round {round} out of order: the last one here was '{state.step or 'none'}' of round "
                f"{state.round}"
            )

    def _known(self, state: State, keys: Mapping[str, Mapping[str, str]]) -> None:
        """Raise WireError unless all keys are of members that are trusted, signed for this round, and enough."""
        trusted, me = self._trusted(), str(self.client)
        if keys.get(me) != state.keys[me]:
            raise WireError("its own keys were not handed on as it sent them")
        if not {int(c) for c in keys} <= set(state.clients) or len(keys) < state.least:
            raise WireError(f"keys of {sorted(map(int, keys))}: must be of at least {state.least} of {state.clients}")
        for c, said in keys.items():
            identity = bytes.fromhex(said["identity"])
            if c != me and identity not in trusted.keys:
                raise WireError(f"client {c} has the key {said['identity'][:16]}..., which is not in {MEMBERS} here")
            signed = statement(state.context, int(c), said)
            if not is_signature(signed, bytes.fromhex(said["signature"]), identity):
                raise WireError(
                    f"client {c} has not signed these keys for this round, group and model: it was told something else"
                )
        if trusted.same:
            state.size = state.size or len(state.clients)
            state.group = sorted({*state.group, *(said["identity"] for said in keys.values())})
            if len(state.group) > state.size:
                raise WireError("another group than in earlier rounds: this participant's must stay the same")
        wrong = [c for c, said in keys.items() for what in FRESH if not masks.is_key(bytes.fromhex(said[what]))]
        if wrong:
            raise WireError(f"client {wrong[0]}: a key with which everybody agrees on the same")
        for what in ("identity", *FRESH):
            if len({said[what] for said in keys.values()}) < len(keys):
                raise WireError(f"two members of the group have the same {what} key")

    def _masked_alike(self, state: State, survivors: list[int], signatures: Mapping[str, str]) -> None:
        """Raise WireError unless all whose updates are in a sum have signed that they masked with the same members."""
        said = masked_with(state.context, _masking(state))
        for c in map(str, survivors):
            identity = bytes.fromhex(state.keys[c]["identity"])
            if not is_signature(said, bytes.fromhex(signatures.get(c, "")), identity):
                raise WireError(f"client {c} has not signed that it was given shares of the same members as this one")

    def _sealing(self, state: State, dealer: int, holder: int) -> bytes:
        """Return the key that seals what one member deals to another; this node is one of the two."""
        peer = state.keys[str(holder if dealer == self.client else dealer)]["sealing"]
        purpose = f"shares {state.context} {dealer} {holder}".encode()
        return masks.agreed(bytes.fromhex(state.sealing), bytes.fromhex(peer), purpose)

    def _share(self, state: State, dealer: str, sealed: str, prints: str) -> list[str]:
        """Return the two shares that a member dealt to this node. Raises WireError if they are not what it said."""
        if dealer == str(self.client):
            raise WireError("its own shares were handed to it as another's")
        try:
            plain = masks.unseal(self._sealing(state, int(dealer), self.client), bytes.fromhex(sealed))
        except ValueError as wrong:
            raise WireError(f"the shares of client {dealer}: {wrong}") from None
        shares = [plain[: masks.SHARE], plain[masks.SHARE :]]
        if "".join(hashlib.sha256(share).hexdigest() for share in shares) != prints:
            raise WireError(f"the shares of client {dealer} are not those of which it gave the hashes")
        return [share.hex() for share in shares]

    @contextmanager
    def _changing(self, durable: bool = False) -> Iterator[State]:
        """Yield the state, alone, and keep it at the end; what raises keeps nothing.

        Args:
            durable: whether it must be on the disk before the step is answered. If a power cut takes the state of the
                other steps away, the node only drops out of the round.
        """
        path = self.folder / STATE
        with locked(path.with_suffix(".lock")):
            try:
                state = State(**json.loads(path.read_text())) if path.exists() else State()
            except (ValueError, TypeError):
                raise WireError(f"{path}: is damaged; nothing is masked in this run any more") from None
            if state.client not in (-1, self.client):
                raise WireError(f"client {self.client}: this node is client {state.client} of the run")
            state.client = self.client
            yield state
            write_whole(path, json.dumps(dataclasses.asdict(state)), durable=durable, private=True)


def _masking(state: State) -> dict[str, str]:
    """Return the masking keys of those with whom the update is masked, this node's own among them, by id."""
    return {c: state.keys[c]["masking"] for c in state.shares}
