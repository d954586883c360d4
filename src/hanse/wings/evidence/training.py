"""Proof of training: a member's update must suit the samples that it committed to better than others' samples.

:class:`ProofOfTraining` runs alongside the parts of any mechanism. With its update a member sends the hash of a random
number, its *seal*. Once all updates are in, the members show their numbers, and the hash of all of them is the round's
seed: nobody, the operator included, could choose it. It draws some of the samples that the member committed to
(:mod:`hanse.wings.evidence.proved_sizes`), out of a subset that stays the same for the whole run. The member says how
much its update lowers their loss, in the mean, and how much that differs between them. The server computes the same on
validation samples of its own. (Other members' samples would do, too, but then every member would see all updates,
which in a market are for sale, and would speak against its competitors.) If g is how much a sample's loss fell, C are
the member's samples and R the server's,

    z = (mean_C g - mean_R g) / sqrt(var_C g / |C| + var_R g / |R|),

or 0 if the update is no step at all, which never passes. Whoever trains has z above 0, but on samples like everybody
else's only a little, so rounds are summed up: a member's *credit* begins at 0, and each round adds ``z - least`` to it,
but never leaves it above 0. So nobody can train first and live on it. A member passes while its credit is above
``-slack``. (It is Page's cumulative sum.) Of members whose steps are near copies of each other, only the one with the
highest credit passes, and of equals the one with the highest z. Who does not pass, or does not answer, is in
:class:`hanse.core.part.Unproved`. ``benchmarks/RESULTS.md`` has the shares of honest members and of cheats that pass.

The server is told two numbers a round. Whether they are true, an auditor finds who sees the samples and the models,
as it finds with sizes. A simulation computes them itself.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from typing_extensions import TypedDict

from hanse.base.errors import UserError
from hanse.base.factories import SomeShare, call
from hanse.base.files import table
from hanse.core.declared import Count, Declared, Digest, Figure, UnsoundError
from hanse.core.part import Context, Helper, Most, Now, PostedRound, State, Unproved, View
from hanse.core.port import Answered, Ask, Request
from hanse.core.table import Floats, Ints
from hanse.core.telling import Check
from hanse.data.commitment import SampleCommitment, drawn, sample_bytes
from hanse.data.samples import Samples
from hanse.federation.local import LocalFederation, NoAnswerError
from hanse.learning.job import Engine
from hanse.runs.guards import Guard
from hanse.runs.server_judge import ServerJudge
from hanse.wings.evidence.audits import tag_key
from hanse.wings.evidence.proved_sizes import ProvedSamples

SEAL, NUMBER, GAINS = "training seal", "training number", "training gains"  # the questions
MOST = 4.0  # a z beyond this, to either side, counts as this
Told = tuple[float, float, int]  # a mean, a variance, and of how many samples
SERVERS = 4  # times as many of the server's samples as of a member's are looked at, if it has so many


class Sealed(TypedDict):
    """The answer to SEAL: the hash of the member's random number."""

    seal: Digest


class Numbered(TypedDict):
    """The answer to NUMBER: the random number."""

    number: Digest


class Gained(TypedDict):
    """The answer to GAINS: the mean and the variance of how much the losses of ``samples`` samples fell."""

    mean: Figure
    variance: Annotated[Figure, Field(ge=0)]
    samples: Count


_SEALED, _NUMBERED, _GAINED = Declared[Sealed](Sealed), Declared[Numbered](Numbered), Declared[Gained](Gained)


def seed_of(round: int, numbers: Mapping[int, str]) -> bytes:
    """Return a round's seed: the hash of all numbers (hexadecimal digits) that members have shown, by client."""
    shown = "".join(f" {client}:{number}" for client, number in sorted(numbers.items()))
    return hashlib.sha256(f"hanse training {round}{shown}".encode()).digest()


def seal_of(number: str) -> str:
    """Return the seal of a random number, both in hexadecimal digits."""
    return hashlib.sha256(bytes.fromhex(number)).hexdigest()


def chosen(told: SampleCommitment, audit: bytes, seed: bytes, of: int, samples: int) -> list[int]:
    """Return the leaves of a commitment that a round's seed draws.

    Args:
        told: what the member committed to.
        audit: the public seed of the audit of its size, which draws the subset.
        seed: the round's seed.
        of: the size of the subset.
        samples: how many leaves are drawn of it.
    """
    subset = drawn(told, audit, of)
    return sorted(subset[place] for place in _places(seed + told.root, len(subset), samples).tolist())


def _places(words: bytes, size: int, most: int) -> Ints:
    """Return at most so many different numbers below ``size``, which follow from ``words``."""
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(words).digest(), "little")))
    return np.asarray(generator.permutation(size)[:most])


def gains_of(engine: Engine, models: Tensor, pool: Samples, index: Tensor) -> Told:
    """Return by how much the losses of samples fell from the first half of the models to the second: the mean over the
    samples, the variance, and how many they are.
    """
    found = engine.score_each(models, pool, torch.split(index, 1))
    half = len(models) // 2
    fell = np.array([float((one.loss[:half] - one.loss[half:]).sum()) for one in found])
    return float(fell.mean()), float(fell.var(ddof=1)) if len(fell) > 1 else 0.0, len(fell)


def z_of(mine: Told, theirs: Told) -> float:
    """Return the test's z.

    Args:
        mine: of how much the losses of the member's samples fell.
        theirs: of how much those of the server's samples fell.

    Examples:
        >>> round(z_of((2.0, 1.0, 4), (1.0, 2 / 3, 4)), 3)
        1.549
    """
    (mean, variance, n), (mean_there, variance_there, n_there) = mine, theirs
    if n < 2 or n_there < 2:
        return 0.0
    spread = variance / n + variance_there / n_there
    z = (mean - mean_there) / math.sqrt(spread) if spread > 0 else 0.0
    return z if math.isfinite(z) else 0.0


# ---- the member's side


def seals(here: LocalFederation, client: int, task: Ask) -> Answered:
    """Return the seal of a client's random number of this round, which travels with its update."""
    return Answered(SEAL, {"seal": seal_of(_number(here, client, task))})


def numbers(here: LocalFederation, client: int, task: Ask) -> Answered:
    """Return a client's random number of this round."""
    return Answered(NUMBER, {"number": _number(here, client, task)})


def _number(here: LocalFederation, client: int, task: Ask) -> str:
    """Return a client's number of a round, 64 hexadecimal digits: only who knows the client's secret knows it."""
    words = f"training {here.run or here.seed} {client} {task.values['round']}".encode()
    return hmac.digest(here.secret, words, "sha256").hex()


def tells_gains(here: LocalFederation, client: int, task: Ask) -> Answered:
    """Return how much a client's update lowers the losses of the samples that the members' numbers draw.

    Raises NoAnswerError if its own number is not among these, or its samples are not those that it committed to.
    """
    said: Any = task.values
    shown = {int(c): str(number) for c, number in said["numbers"]}
    if shown.get(client) != _number(here, client, task) or task.models is None:
        raise NoAnswerError("its own number has no part in the round's seed")
    told = SampleCommitment(bytes.fromhex(said["root"]), int(said["size"]))
    held = here.claim(client, tag_key(here.secret, here.run or here.seed, client))
    if held.commitment != told:
        raise NoAnswerError("its samples are not those that it committed to")
    seed = seed_of(int(said["round"]), shown)
    leaves = chosen(told, bytes.fromhex(said["audit"]), seed, int(said["of"]), int(said["samples"]))
    pool, [index] = here.data.pool([client])
    places = {one: place for place, one in enumerate(sample_bytes(pool.take(index)))}
    mine = [places[sample] for leaf in leaves if (sample := held.sample(leaf)) in places]
    if not mine:
        raise NoAnswerError("it has none of the samples that were drawn")
    mean, variance, count = gains_of(here.engine, task.models, pool, index[torch.tensor(mine, dtype=torch.int64)])
    return Answered(GAINS, {"mean": mean, "variance": variance, "samples": count})


# ---- the server's side


@dataclass(frozen=True)
class ProofOfTraining(Helper):
    """Asks members to prove that they trained on what they committed to, once the updates of a round are in.

    Attributes:
        samples: how many of a member's samples a round looks at.
        of: how many of its samples these are drawn from, over the whole run. An auditor must see them.
        least: the z at which a member's credit neither rises nor falls.
        slack: how far its credit may fall.
        alike: steps whose cosine is above this are near copies.
    """

    samples: Annotated[int, Field(ge=2, le=100_000)] = 128
    of: Annotated[int, Field(ge=2, le=100_000)] = 256
    least: Annotated[float, Field(ge=0, lt=MOST)] = 0.4
    slack: Annotated[float, Field(gt=0, le=1000)] = 6.0
    alike: SomeShare = 0.99

    def init(self, context: Context) -> State:
        """Return the state before round 0: everybody's credit, ``[N]``, is 0, and nobody is ``unproved [N]``."""
        return {"credit": np.zeros(context.num_clients), "unproved": np.zeros(context.num_clients, bool)}

    def figures(self, state: State) -> dict[str, Floats]:
        """Return the credits, and 1 for who passes, ``[N]`` each."""
        return {"training_credit": state["credit"], "training_proved": 1.0 - state["unproved"]}

    def after(self, credit: Floats, z: Floats) -> Floats:
        """Return credits after a round with these z, in the same shape."""
        return np.minimum(credit + np.clip(z, -MOST, MOST) - self.least, 0.0)

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask for a seal with each update ("train").

        Args:
            view: the round. The method reads ``stage``, ``round`` and ``seats``.
            state: as :meth:`init` makes it.
        """
        if view.stage != "train" or view.seats is None:
            return ()
        return [Request(c, (Ask(SEAL, {"round": view.round}),)) for c in np.unique(view.seats.client).tolist()]

    def trained(self, now: Now, state: State) -> State:
        """Ask for the number behind each seal that came with an update, then each member that showed its own about the
        samples that all numbers together draw. Judge those that trained, and hand on who has not proved it.
        """
        view = now.view
        now.ask([Request(c, (Ask(NUMBER, {"round": view.round}),)) for c in _members(view) if _seal(view, c)])
        now.ask(self._about_gains(now.view))
        found, after = self._judged(now.view, state)
        now.hand_on([found])
        return after

    def _about_gains(self, view: View) -> list[Request]:
        """Return the question to each member that showed its number."""
        shown, known, asked = _shown(view), view.get(ProvedSamples), list[Request]()
        for c in _members(view):
            if c in shown and known is not None:
                told = known.commitments[c]
                said: dict[str, Any] = {
                    "round": view.round, "numbers": [[one, number] for one, number in sorted(shown.items())],
                    "root": told.root.hex(), "size": told.size, "audit": known.seeds[c].hex(),
                    "of": self.of, "samples": self.samples,
                }  # fmt: skip
                asked.append(Request(c, (Ask(GAINS, said, _models(view, c)),)))
        return asked

    def _judged(self, view: View, state: State) -> tuple[Unproved, State]:
        """Return which of the members that trained have not proved it, and the next state."""
        members, judge = _members(view), cast(ServerJudge, view.judge)
        z, said, others = np.zeros(len(members)), np.zeros((len(members), 3)), np.zeros((len(members), 3))
        moved, shown = np.zeros(len(members), bool), _shown(view)
        samples = cast(Samples, judge.validation)
        places = _places(seed_of(view.round, shown), len(samples), SERVERS * self.samples)
        index = torch.from_numpy(np.sort(places))
        for k, c in enumerate(members):
            told, models = _answer(view, c, GAINS, _GAINED), _models(view, c)
            moved[k] = bool(told) and not torch.equal(*models.chunk(2))
            if moved[k]:
                mine: Told = told["mean"], told["variance"], told["samples"]
                theirs = gains_of(judge.engine, models, samples, index)
                said[k], others[k], z[k] = mine, theirs, z_of(mine, theirs)
        clients, credit = np.array(members, np.int64), state["credit"].copy()
        credit[clients] = self.after(credit[clients], z)
        fails = ~moved | (credit[clients] <= -self.slack)
        copies = copies_of(view, members, np.lexsort((-z, -credit[clients], fails)), self.alike)
        unproved = state["unproved"].copy()
        unproved[clients] = fails | copies
        arrays: dict[str, NDArray[Any]] = {
            "training_client": clients, "training_z": z, "training_own": said, "training_server": others,
            "training_moved": moved, "training_copy": copies, "training_unproved": fails | copies,
            "training_seal": np.array([_seal(view, c) for c in members], np.str_),
            "training_number": np.array([shown.get(c, "") for c in members], np.str_),
        }  # fmt: skip
        return Unproved(clients[fails | copies], arrays), {"credit": credit, "unproved": unproved}


def _members(view: View) -> list[int]:
    """Return the clients with a proved size whose updates came and are seen by the server, ascending."""
    seats, known = view.trained.seats, view.get(ProvedSamples)
    seen = np.unique(seats.client[view.table.owner[seats.start] != seats.client]).tolist()
    return [c for c in seen if known is not None and c in known.commitments]


def _models(view: View, client: int) -> Tensor:
    """Return a client's updates, ``[2 s, P]``: what its s seats started from, then what it sent."""
    seats = view.trained.seats
    mine = np.flatnonzero((seats.client == client) & (view.table.owner[seats.start] != seats.client))
    return torch.cat([view.table.rows[seats.start[mine]], view.trained.rows[mine]])


def _answer(view: View, client: int, name: str, kind: Declared[Any]) -> dict[str, Any]:
    """Return what a client answered to a question; {} if it did not, or in another form."""
    answer = view.answers.get((client, name))
    try:
        return dict(kind.check(dict(answer.values))) if isinstance(answer, Answered) else {}
    except UnsoundError:
        return {}


def _seal(view: View, client: int) -> str:
    """Return a client's seal, or ""."""
    return str(_answer(view, client, SEAL, _SEALED).get("seal", ""))


def _shown(view: View) -> dict[int, str]:
    """Return the numbers that fit their seals, by client."""
    found = {c: str(_answer(view, c, NUMBER, _NUMBERED).get("number", "")) for c in _members(view)}
    return {c: number for c, number in found.items() if number and seal_of(number) == _seal(view, c)}


def copies_of(view: View, members: Sequence[int], order: Ints, alike: float) -> NDArray[np.bool_]:
    """Return which members' steps are near copies of the step of a member with a better proof, ``[m]``.

    Args:
        view: the round.
        members: the members, ascending.
        order: ``[m]``, the places of the members, the one with the best proof first.
        alike: the cosine above which two steps are near copies.
    """
    width, steps = view.context.layout.num_parameters, list[Tensor]()
    for c in members:
        start, sent = _models(view, c)[:, :width].chunk(2)
        steps.append((sent - start).sum(dim=0))
    if len(steps) < 2:
        return np.zeros(len(steps), bool)
    units = torch.nn.functional.normalize(torch.stack(steps), dim=1)
    near = (units @ units.T).cpu().numpy() > alike
    copies = np.zeros(len(members), bool)
    for at, k in enumerate(order.tolist()):
        if not copies[k]:
            copies[order[at + 1 :]] |= near[k, order[at + 1 :]]
    return copies


class TrainingGuard(Guard):
    """Members that prove that they trained on what they committed to."""

    def provides(self) -> Mapping[str, str]:
        """Return that training is proved."""
        return {"proofs": ""}

    def settle(self, sizes: Ints | None) -> None:
        """Read the options. Raises UserError."""
        if not self.experiment.of_wing("sizes").proved:
            raise UserError("evidence.training: needs sizes.proved = true: it draws of what members committed to")
        options = self.experiment.of_wing("evidence").training or {}
        self.helpers = {"training": call(ProofOfTraining, options, "evidence.training")}

    def questions(self) -> Sequence[tuple[str, Most]]:
        """Return that a member is asked for a seal, its number, and how its own updates do on its samples."""
        seats = self.experiment.mechanism.built.train.seats_each()
        return ("Ask", Most(2)), ("Ask", Most(1, 2 * seats))


def checks(rounds: Iterable[PostedRound], config: Mapping[str, Any]) -> Iterator[Check]:
    """Yield whether the recorded proofs of training follow from what the members said, and were heeded."""
    part = ProofOfTraining(**table(table(config, "evidence"), "training"))
    credits = dict[int, float]()
    wrong = ((r.number, _wrong(part, r, credits)) for r in rounds if "training_client" in r.arrays)
    yield Check.of("training", "who has not proved that it trained follows from the records, and gains nothing", wrong)


def _wrong(part: ProofOfTraining, r: PostedRound, credits: dict[int, float]) -> str:
    """Return what is wrong with a round's record of proofs, or "", and go on with the ``credits`` by client."""
    a = r.arrays
    for k, c in enumerate(a["training_client"].tolist()):
        number, seal = str(a["training_number"][k]), str(a["training_seal"][k])
        if number and seal_of(number) != seal:
            return f"client {c}: its number is not the one that it sealed"
        z = z_of(a["training_own"][k].tolist(), a["training_server"][k].tolist())
        if not np.isclose(z, a["training_z"][k], rtol=1e-9, atol=1e-12):
            return f"client {c}: z was recorded as {a['training_z'][k]:.3g}; by what was said it is {z:.3g}"
        credits[c] = float(part.after(np.array(credits.get(c, 0.0)), np.array(z)))
        passes = a["training_moved"][k] and credits[c] > -part.slack and not a["training_copy"][k]
        if passes == bool(a["training_unproved"][k]):
            return f"client {c}: was {'not ' if passes else ''}said to have proved its training, against the records"
    unproved = a["training_client"][a["training_unproved"]]
    paid = "value" in a and (a["value"][np.isin(a["answered"], unproved)] > 0).any()
    return "an update without proof of training was worth something" if paid else ""
