"""Masked sums: drop-outs at each step, what a lying server or member gets, and what the server has seen."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography", reason="needs the extra 'flower'")

from hanse.core.port import Ask, Call, Mask, Masked, Mixture, Reply, Request, Score, Test, Train, Trained
from hanse.data.samples import Samples
from hanse.federation.codec import WireError, pack, unpack
from hanse.federation.node import Assignment, ClientData, Node
from hanse.ledger.witness import Witness
from hanse.wings.private import masks
from hanse.wings.private.masked_sums import MaskedSums
from hanse.wings.private.masker import Masker, Trusted, digest
from hanse.wings.private.secure_sums import Secured, SecureSums, in_words
from tests.wings.private.test_secure_sums import Answers

P, SEED = 6, 7
START = torch.linspace(-1, 1, P)
STEPS = ("keys", "shares", "sum", "open")


def update(client: int, round: int = 0) -> Reply:
    row = START + torch.randn(P, generator=torch.Generator().manual_seed(100 * round + client))
    return Reply(client, (Trained(client, row, float(client + 1), 0.25 * client, client),))


@dataclass
class Nodes:
    """Members in this process, whose messages go through the codec.

    ``lost`` says in which step a client falls silent; ``twist`` changes what a client answers; ``seen`` is all that the
    server has received.
    """

    maskers: dict[int, Masker]
    lost: dict[int, str] = field(default_factory=dict)
    twist: Callable[[int, Masked], Masked] = lambda client, said: said
    relay: Callable[[int, Request], Request] = lambda client, request: request
    seen: list[Reply] = field(default_factory=list)
    said_to: dict[tuple[int, str], Mask] = field(default_factory=dict)
    trained: list[int] = field(default_factory=list)

    def exchange(self, call: Call) -> list[Reply]:
        found = []
        for request in call.requests:
            client, task = request.client, unpack(pack(self.relay(request.client, request))).tasks[0]
            name = task.name
            self.said_to[client, name] = task
            if client in self.lost and STEPS.index(name) >= STEPS.index(self.lost[client]):
                continue
            try:
                reply = Reply(client, (self.twist(client, self.answer(self.maskers[client], call.round, task)),))
            except WireError as wrong:
                reply = Reply(client, refused=str(wrong))
            try:
                reply = unpack(pack(reply))
            except WireError as wrong:  # as the link does
                reply = Reply(client, refused=str(wrong))
            self.seen.append(reply)
            found.append(reply)
        return found

    def answer(self, masker: Masker, round: int, task: Mask) -> Masked:
        if task.name != "sum":
            return {"keys": masker.keys, "shares": masker.shares, "open": masker.open}[task.name](round, task)
        if not masker.before_sum(round, task):
            return masker.sum(round, task, None, 0)
        self.trained.append(masker.client)
        trained = update(masker.client, round).results[0]
        return masker.sum(round, task, in_words(trained, START), trained.num_samples)


def nodes(folder: Path, clients: int, same: bool = False, **more: Any) -> Nodes:
    witnesses = {c: Witness(folder / str(c)) for c in range(clients)}
    trusted = Trusted(frozenset(w.public for w in witnesses.values()), same=same)
    return Nodes({c: Masker(folder / str(c), w, trusted, "run", "job", c) for c, w in witnesses.items()}, **more)


def asked(clients: int, start: torch.Tensor = START) -> list[Request]:
    return [Request(c, (Train(c, 0, start),)) for c in range(clients)]


def played(here: Nodes, clients: int, round: int = 0, group: int = 3, **more: Any) -> list[Reply]:
    return list(MaskedSums(here, SecureSums(group), SEED).exchange(Call(round, asked(clients, **more))))


def plain(clients: int, without: set[int], round: int = 0, group: int = 3) -> dict[int, torch.Tensor]:
    """What the simulation gives."""
    inner = Answers([update(c, round) for c in range(clients) if c not in without])
    return rows(list(Secured(inner, SecureSums(group), SEED).exchange(Call(round, asked(clients)))))


def rows(replies: Sequence[Reply]) -> dict[int, torch.Tensor]:
    return {r.client: r.results[0].row for r in replies if r.results}  # type: ignore[union-attr]


def refusals(replies: Sequence[Reply]) -> dict[int, str]:
    return {r.client: r.refused for r in replies if r.refused is not None}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("gone", [0, 1, 2, 4, 6])
def test_sums_are_the_plain_ones_with_up_to_six_of_twenty_lost_in_each_step(
    step: str, gone: int, tmp_path: Path
) -> None:
    lost = set(np.random.default_rng(gone).permutation(20)[:gone].tolist())
    got, want = rows(played(nodes(tmp_path, 20, lost=dict.fromkeys(lost, step)), 20)), plain(20, lost)
    if step == "open":  # their updates had come: they are in the sum, if enough of their group open it
        for group in SecureSums(3).groups(SEED, np.arange(20), 0):
            if len(set(group.tolist()) - lost) >= SecureSums(3).least(len(group)):
                mine = plain(20, set(range(20)) - set(group.tolist()))
                assert all(torch.equal(got[c], mine[c]) for c in group.tolist())
            else:
                assert not set(group.tolist()) & set(got)
        return
    assert got.keys() == want.keys()
    assert all(torch.equal(got[c], want[c]) for c in want)


def test_the_server_receives_no_update_and_nothing_that_gives_one(tmp_path: Path) -> None:
    """What came under masks is held against every sum that a member is in, and secrets against all that was said."""
    larger = next(group for group in SecureSums(3).groups(SEED, np.arange(7), 0) if len(group) == 4)
    here = nodes(tmp_path, 7, lost={int(larger[0]): "open"})
    assert len(rows(played(here, 7))) == 7
    words = {r.client: r.results[0].words for r in here.seen if r.results and len(r.results[0].words)}
    assert set(words) == set(range(7))
    singles = {c: in_words(update(c).results[0], START) for c in range(7)}  # type: ignore[arg-type]
    for c, masked in words.items():
        for some in range(1, 8):
            for others in combinations(range(7), some):
                assert not (masked[:-1] == sum(singles[o] for o in others)).any(), (c, others)  # by chance once in 2^64
        bits = np.unpackbits(masked.numpy().view(np.uint8)).mean()
        assert 0.3 < bits < 0.7  # a small number's high bits would be equal
    # both secrets of nobody
    for opening in [r.results[0].values for r in here.seen if r.results and r.results[0].name == "open"]:
        assert not set(opening["seeds"]) & set(opening["keys"])


def test_no_secret_of_a_member_is_said_and_none_is_left(tmp_path: Path) -> None:
    secrets: list[str] = []

    def noted(client: int, request: Request) -> Request:
        if request.tasks[0].name == "open":  # type: ignore[union-attr]
            with here.maskers[client]._changing() as state:
                secrets.extend([state.sealing, state.masking, state.seed])
        return request

    here = nodes(tmp_path, 4, relay=noted)
    assert len(rows(played(here, 4))) == 4
    texts = "".join(str(r) for r in here.seen)
    assert len(set(secrets)) == 12
    assert not any(secret in texts for secret in secrets)
    for c in here.maskers:
        kept = (tmp_path / str(c) / "masking.json").read_text()
        assert not any(secret in kept for secret in secrets)


def lying_views(size: int, least: int) -> set[frozenset[int]]:
    """All sums that a server opens that tells each of ``size`` members another set of who has answered."""
    members, found = range(size), set()
    views = [frozenset(v) for n in range(least, size + 1) for v in combinations(members, n)]
    own = [[v for v in views if i in v] for i in members]
    for told in product(*own):
        inside = [sum(i in v for v in told) for i in members]
        with_seed = {i for i in members if inside[i] >= least}
        with_key = {i for i in members if size - inside[i] >= least}
        assert not with_seed & with_key  # no update can be taken apart
        if len(with_seed | with_key) == size:
            found.add(frozenset(with_seed))
    return found


@pytest.mark.parametrize("size", [3, 4, 5])
def test_no_lie_about_who_has_answered_opens_a_sum_of_fewer_than_three(size: int) -> None:
    sums = lying_views(size, SecureSums(3).least(size))
    assert frozenset(range(size)) in sums
    assert min(map(len, sums)) >= 3


class Crowd(SecureSums):
    """One group of all."""

    def groups(self, seed: int, clients: Any, round: int) -> list[Any]:
        return [np.sort(clients)]


def test_a_server_that_hands_each_member_shares_of_others_opens_nothing(tmp_path: Path) -> None:
    """Member 0 of 8 masks with 3, 4, 6 and 7 alone, whom five others leave out, and all name 0.

    A linear program over all that a server may say found this; nobody gives both secrets of a member.
    """
    dealers = dict.fromkeys(range(8), range(8)) | {0: [0, 3, 4, 6, 7], 2: [0, 1, 2, 3, 4, 6, 7]}
    told = [[0, 3, 4, 6, 7], [0, 1, 2, 3, 5], [0, 1, 2, 6, 7], [0, 1, 2, 3, 5],
            [0, 1, 2, 4, 5], [0, 1, 2, 4, 5], [0, 1, 2, 5, 6], [0, 1, 2, 5, 7]]  # fmt: skip

    def some(client: int, values: dict[str, Any]) -> dict[str, Any]:
        return {what: {i: one for i, one in of.items() if int(i) in dealers[client]} for what, of in values.items()}

    here = nodes(tmp_path, 8, relay=relayed("sum", some), lost=dict.fromkeys(range(8), "open"))
    MaskedSums(here, Crowd(3), SEED).exchange(Call(0, asked(8)))
    assert len(here.trained) == 8
    opened = list[Masked]()
    for client, survivors in enumerate(told):
        with suppress(WireError):  # member 0 was given the shares of those that it is told of
            opened.append(here.maskers[client].open(0, opening(here, survivors)))
    with pytest.raises(WireError, match="same members"):
        here.maskers[1].open(0, opening(here, told[1]))
    for what, member in (("seeds", "0"), ("keys", "3"), ("keys", "4"), ("keys", "6"), ("keys", "7")):
        assert sum(member in one.values[what] for one in opened) < Crowd(3).least(8)


def test_what_was_trained_for_one_group_is_not_summed_by_another_that_trains_nothing(tmp_path: Path) -> None:
    """The server begins the round again, for another model, while a member trains."""
    here = nodes(tmp_path, 3, lost=dict.fromkeys(range(3), "open"))
    again = list[bool]()
    train = here.answer

    def slow(masker: Masker, round: int, task: Mask) -> Masked:
        if task.name == "sum" and masker.client == 0 and not again:
            assert masker.before_sum(round, task)
            again.append(True)
            other = nodes(tmp_path, 3, lost={0: "sum"})  # the same folders, by other processes
            played(other, 3, start=START + 1)
            assert masker.before_sum(round, other.said_to[0, "sum"])
            words = in_words(update(0).results[0], START)  # type: ignore[arg-type]
            return masker.sum(round, task, words, 1.0)
        return train(masker, round, task)

    here.answer = slow  # type: ignore[method-assign]
    played(here, 3)
    assert "begun again" in str([r.refused for r in here.seen if r.refused])


def test_a_node_masks_as_one_client_of_a_run(tmp_path: Path) -> None:
    here = nodes(tmp_path, 6)
    assert len(rows(played(here, 3))) == 3
    here.maskers[3] = replace(here.maskers[0], client=3)  # the same node under another number, for a second sum
    requests = [Request(c, (Train(c, 0, START),)) for c in (3, 4, 5)]
    got = refusals(list(MaskedSums(here, SecureSums(3), SEED).exchange(Call(0, requests))))
    assert got[3] == "client 3: this node is client 0 of the run"
    assert len(got) == 3


def relayed(name: str, change: Callable[[int, dict[str, Any]], dict[str, Any]]) -> Callable[[int, Request], Request]:
    """A server that changes what it says to a client in one step."""

    def relay(client: int, request: Request) -> Request:
        task = request.tasks[0]
        if not isinstance(task, Mask) or task.name != name:
            return request
        return replace(request, tasks=(replace(task, values=change(client, dict(task.values))),))

    return relay


def test_a_member_answers_no_question_about_models_on_its_samples(tmp_path: Path) -> None:
    samples = Samples(torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1]))
    job = Assignment("mine", 0, 4, 0, {"name": "logistic"}, {"lr": 0.1})
    node = Node(ClientData(samples, samples, num_classes=2), job, tmp_path, trusted=Trusted(frozenset()))
    models = torch.zeros(2, node.problem.layout.size)
    told = {"tiers": 2, "price": 1, "balance": 9, "paid": [0.0, 0.0]}
    for task in (
        Train(0, 0, models[0]),
        Score("s", models),
        Ask("bid", told, models),  # which tier it bids for is the one that fits its samples
        Test("t", models[0], mixture=Mixture(models, "train")),  # the loss shows the weights, and these the losses
    ):
        with pytest.raises(WireError, match="questions about"):
            node.answer(0, pack(Request(0, (task,))))
    assert unpack(node.answer(0, pack(Request(0, (Test("t", models[0]),))))).refused is None


def test_a_server_cannot_stand_between_two_members(tmp_path: Path) -> None:
    mine = masks.public(bytes(32)).hex()

    def swapped(client: int, values: dict[str, Any]) -> dict[str, Any]:
        if client == 0:
            values["keys"] = values["keys"] | {"1": values["keys"]["1"] | {"masking": mine}}
        return values

    got = refusals(played(nodes(tmp_path, 3, relay=relayed("shares", swapped)), 3))
    assert "has not signed" in got[0]
    assert len(got) == 3


def test_a_member_that_the_server_made_up_is_not_trusted(tmp_path: Path) -> None:
    here = nodes(tmp_path, 3)
    stranger = Witness(tmp_path / "stranger")
    here.maskers[2] = replace(here.maskers[2], witness=stranger)
    got = refusals(played(here, 3))
    assert f"client 2 has the key {stranger.public.hex()[:16]}..., which is not in members.txt here" in got[0]


@pytest.mark.parametrize("what", ["model", "job"])
def test_a_server_that_gives_one_member_something_else_to_train_gets_no_sum(what: str, tmp_path: Path) -> None:
    """Else the others' updates could be made zero, and the sum be that of one (Pasquini et al. 2022)."""
    here = nodes(tmp_path, 3)
    if what == "job":
        here.maskers[1] = replace(here.maskers[1], job="learning rate 0")
        assert "told something" in refusals(played(here, 3))[0]
        return

    def other(client: int, request: Request) -> Request:
        task = request.tasks[0]
        if client != 1 or not isinstance(task, Mask) or task.train is None:
            return request
        return replace(request, tasks=(replace(task, train=replace(task.train, start=START * 0)),))

    here.relay = other
    assert "training differs" in refusals(played(here, 3))[1]


def opening(here: Nodes, survivors: Sequence[int]) -> Mask:
    """The question of the last step, with what these members signed in "sum"."""
    sums = {r.client: one for r in here.seen for one in r.results if isinstance(one, Masked) and one.name == "sum"}
    signed = {str(c): sums[c].values["signature"] for c in survivors if c in sums}
    return Mask("open", {"survivors": list(survivors), "signatures": signed})


def test_a_share_is_given_for_one_secret_of_each_member_and_once(tmp_path: Path) -> None:
    here = nodes(tmp_path, 4)
    assert len(rows(played(here, 4))) == 4
    ask = here.maskers[0].open
    assert ask(0, opening(here, [0, 1, 2, 3])).values["keys"] == {}  # the same again is no harm
    for survivors in ([0, 1, 2], [0, 2, 3]):
        with pytest.raises(WireError, match="out of order"):
            ask(0, opening(here, survivors))


@pytest.mark.parametrize(
    ("survivors", "why"),
    [
        ([0, 1, 2, 2], "each once"),
        ([1, 2, 3], "must be of this member"),
        ([0, 1, 9], "must be of this member and others of its group"),
        ([0, 1], "at least 3"),
        ([0, 1, 2], ""),
    ],
)
def test_what_a_member_opens(survivors: list[int], why: str, tmp_path: Path) -> None:
    here = nodes(tmp_path, 4, lost=dict.fromkeys(range(4), "open"))
    played(here, 4)
    if not why:
        said = here.maskers[0].open(0, opening(here, survivors)).values
        assert (set(said["seeds"]), set(said["keys"])) == ({"0", "1", "2"}, {"3"})
        return
    with pytest.raises(WireError, match=why):
        here.maskers[0].open(0, opening(here, survivors))


@pytest.mark.parametrize("name", ["shares", "sum", "open"])
def test_a_step_that_comes_again_or_too_early_is_refused(name: str, tmp_path: Path) -> None:
    sent: list[tuple[int, Mask]] = []

    def noted(client: int, request: Request) -> Request:
        sent.append((client, request.tasks[0]))  # type: ignore[arg-type]
        return request

    here = nodes(tmp_path, 3, relay=noted)
    played(here, 3)
    again = next(task for client, task in sent if client == 0 and task.name == name)
    fresh = replace(here.maskers[0], folder=tmp_path / "other")
    (tmp_path / "other").mkdir()
    for masker in (here.maskers[0], fresh) if name != "open" else (fresh,):
        with pytest.raises(WireError, match="out of order"):
            here.answer(masker, 0, again)


def test_a_round_that_is_asked_for_again_gives_the_same_sum_or_none(tmp_path: Path) -> None:
    here = nodes(tmp_path, 4, lost={3: "open"})
    first = rows(played(here, 4))
    here.lost = {}
    assert all(torch.equal(row, first[c]) for c, row in rows(played(here, 4)).items())
    here.lost = {2: "shares"}  # the second sum would lack an update that is in the first
    got = refusals(played(here, 4))
    assert all("opened already" in got[c] for c in (0, 1, 3))
    here.lost = {}
    other = refusals(played(here, 3))
    assert all("another group" in other[c] for c in range(3))
    other = refusals(played(here, 4, start=START + 1))
    assert all("another group" in other[c] for c in range(4))
    assert len(rows(played(here, 4, round=1))) == 4
    back = refusals(played(here, 4))
    assert all("masked already" in back[c] for c in range(4))


@pytest.mark.parametrize(
    ("clients", "least"), [([0, 1, 2], 2), ([0, 1], 2), ([0, 1, 2, 3, 4], 3), ([1, 2, 3], 3), ([0, 0, 1], 3)]
)
def test_a_member_takes_no_part_in_a_group_that_is_too_small(clients: list[int], least: int, tmp_path: Path) -> None:
    here = nodes(tmp_path, 1)
    with pytest.raises(WireError):
        here.maskers[0].keys(0, Mask("keys", {"clients": clients, "least": least, "task": "0" * 64}))


def test_a_members_own_least_counts(tmp_path: Path) -> None:
    here = nodes(tmp_path, 4)
    here.maskers[0] = replace(here.maskers[0], trusted=replace(here.maskers[0].trusted, least=4))  # type: ignore[type-var]
    got = played(here, 4)
    assert "here it takes at least 4" in refusals(got)[0]
    assert set(rows(got)) == {1, 2, 3}


def test_a_member_whose_group_must_stay_the_same_takes_no_other(tmp_path: Path) -> None:
    here = nodes(tmp_path, 5, same=True)
    said = {"least": 3, "task": digest(Train(0, 0, START))}

    def grouped(clients: list[int], round: int) -> str:
        """Return what member 0 says to the keys of a group."""
        keys = {c: here.maskers[c].keys(round, Mask("keys", {"clients": clients, **said})).values for c in clients}
        try:
            here.maskers[0].shares(round, Mask("shares", {"keys": {str(c): k for c, k in keys.items()}}))
        except WireError as wrong:
            return str(wrong)
        return ""

    assert grouped([0, 1, 2], 0) == ""
    assert grouped([0, 1, 2], 1) == ""
    assert "must stay the same" in grouped([0, 1, 3], 2)
    assert "must stay the same" in grouped([0, 1, 2, 3], 3)
    assert grouped([0, 1, 2], 4) == ""


def test_a_sum_that_must_stay_the_same_lacks_nobody(tmp_path: Path) -> None:
    """Sums of four of five, another one missing each time, would tell each member's mean update."""
    here = nodes(tmp_path, 4, lost={3: "sum"}, same=True)
    assert "a sum of [0, 1, 2]: this participant's must stay that of 4 members" in refusals(played(here, 4))[0]
    here.lost = {}
    assert len(rows(played(here, 4, round=1))) == 4


def twisted(client: int, name: str, change: Callable[[Masked], Masked]) -> Callable[[int, Masked], Masked]:
    """A member that says something else than it should in one step."""
    return lambda c, said: change(said) if (c, said.name) == (client, name) else said


@pytest.mark.parametrize("what", ["sealing", "masking"])
def test_a_key_on_which_all_agree_alike_is_refused_by_name(what: str, tmp_path: Path) -> None:
    change = twisted(1, "keys", lambda said: replace(said, values={**said.values, what: "00" * 32}))
    got = played(nodes(tmp_path, 4, twist=change), 4)
    assert list(refusals(got)) == [1]
    assert "agrees" in refusals(got)[1]
    assert torch.equal(rows(got)[0], plain(4, {1})[0])


def test_a_mask_that_does_not_cancel_is_found(tmp_path: Path) -> None:
    change = twisted(1, "sum", lambda said: replace(said, words=said.words + torch.tensor([0, 0, 1] + [0] * 9)))
    got = refusals(played(nodes(tmp_path, 4, twist=change), 4))
    assert len(got) == 4
    assert "do not cancel: one of the clients [0, 1, 2, 3]" in got[0]


def test_samples_that_differ_from_those_in_the_sum_are_found(tmp_path: Path) -> None:
    change = twisted(1, "sum", lambda said: replace(said, values={**said.values, "samples": 1000.0}))
    got = refusals(played(nodes(tmp_path, 4, twist=change), 4))
    assert "is of 4 members and 10 samples: 4 and 1008 were said" in got[0]


def wrong_share(said: Masked) -> Masked:
    seeds = dict(said.values["seeds"])  # type: ignore[call-overload]
    return replace(said, values={**said.values, "seeds": seeds | {next(iter(seeds)): "00" * 66}})


@pytest.mark.parametrize("clients", [3, 4])
def test_a_wrong_share_is_named_and_not_used(clients: int, tmp_path: Path) -> None:
    got = played(nodes(tmp_path, clients, twist=twisted(1, "open", wrong_share)), clients)
    if clients == 4:
        assert torch.equal(rows(got)[0], plain(4, set())[0])
        return
    assert "the share that it gave for client 0 is not the one that was dealt to it" in refusals(got)[1]
    assert "2 shares of a secret of client 0 came; it takes 3 (refused: clients [1])" in refusals(got)[0]


def test_shares_that_a_member_deals_wrongly_are_named_by_those_who_hold_them(tmp_path: Path) -> None:
    def change(said: Masked) -> Masked:
        prints = dict.fromkeys(said.values["prints"], "0" * 128)  # type: ignore[union-attr]
        return replace(said, values={**said.values, "prints": prints})

    got = refusals(played(nodes(tmp_path, 4, twist=twisted(2, "shares", change)), 4))
    assert all("the shares of client 2 are not those of which it gave the hashes" in got[c] for c in (0, 1, 3))


def test_shares_that_do_not_give_the_secret_are_the_dealers(tmp_path: Path) -> None:
    here = nodes(tmp_path, 3)
    split = masks.split
    with pytest.MonkeyPatch.context() as patch:
        own = here.maskers[2]
        shares = own.shares

        def dealing(round: int, task: Mask) -> Masked:
            patch.setattr(masks, "split", lambda secret, least, members: split(bytes(32), least, members))
            said = shares(round, task)
            patch.setattr(masks, "split", split)
            return said

        answer = here.answer
        here.answer = lambda m, r, t: dealing(r, t) if (m is own and t.name == "shares") else answer(m, r, t)  # type: ignore[method-assign]
        got = refusals(played(here, 3))
    assert all("2 dealt" in why for why in got.values())


@pytest.mark.parametrize(("place", "word"), [(0, 2**40), (P + 1, -100), (P + 2, 2**62), (P + 3, 4)])
def test_a_sum_beyond_what_members_may_send_is_refused(place: int, word: int, tmp_path: Path) -> None:
    """A member that masks well, but not what it should: the sum shows it, and not whose it was."""
    here = nodes(tmp_path, 3)
    masker = here.maskers[1]

    def answer(one: Masker, round: int, task: Mask) -> Masked:
        if one is not masker or task.name != "sum":
            return Nodes.answer(here, one, round, task)
        one.before_sum(round, task)
        words = in_words(update(1).results[0], START)  # type: ignore[arg-type]
        words[place] = word
        return one.sum(round, task, words, 2.0)

    here.answer = answer  # type: ignore[method-assign]
    why = refusals(played(here, 3))
    assert len(why) == 3
    assert "is beyond what members may send: one of the clients [0, 1, 2]" in why[0]


def test_too_few_for_a_group_are_not_asked(tmp_path: Path) -> None:
    here = nodes(tmp_path, 2)
    assert all("2 of its group of 2 can be summed; it takes 3" in why for why in refusals(played(here, 2)).values())
    assert not here.seen


@pytest.mark.parametrize("least", [3, 5])
def test_shares_give_the_secret_back_from_any_of_them_and_fewer_do_not(least: int) -> None:
    secret = bytes(range(32))
    shares = masks.split(secret, least, [0, 3, 4, 9, 11])
    for some in combinations(shares, least):
        assert masks.joined({i: shares[i] for i in some}) == secret
    for some in combinations(shares, least - 1):
        with pytest.raises(ValueError, match="belong together"):
            masks.joined({i: shares[i] for i in some})


def test_the_key_stream_is_that_of_rfc_8439() -> None:
    """Appendix A.1, test vector 1: a key of zeros, counter and nonce 0."""
    assert masks.stream(bytes(32), 2).tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


def test_two_agree_on_a_key_for_each_purpose_and_a_third_does_not() -> None:
    a, b, c = (bytes([i]) * 32 for i in (1, 2, 3))
    one = masks.agreed(a, masks.public(b), b"x")
    assert one == masks.agreed(b, masks.public(a), b"x")
    assert len({one, masks.agreed(a, masks.public(b), b"y"), masks.agreed(c, masks.public(b), b"x")}) == 3
    with pytest.raises(ValueError, match="shared key"):
        masks.agreed(a, bytes(32), b"x")  # a key with which everybody agrees on zeros


def test_what_is_sealed_cannot_be_changed() -> None:
    sealed = masks.seal(bytes(32), b"two shares")
    assert masks.unseal(bytes(32), sealed) == b"two shares"
    with pytest.raises(ValueError, match="changed on its way"):
        masks.unseal(bytes(32), bytes([sealed[0] ^ 1]) + sealed[1:])


def test_of_two_openings_at_once_one_is_answered(tmp_path: Path) -> None:
    here = nodes(tmp_path, 4, lost=dict.fromkeys(range(4), "open"))
    played(here, 4)
    masker, told = here.maskers[0], [[0, 1, 2], [0, 1, 3], [0, 2, 3], [0, 1, 2, 3]]

    def opens(survivors: list[int]) -> bool:
        try:
            masker.open(0, opening(here, survivors))
        except WireError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(opens, told)) == 1


def mutated(value: Any, rng: np.random.Generator) -> Any:
    """Return a value with one thing in it changed: a text's digit, a key, an entry, its type."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = list(value)[rng.integers(len(value))]
        match rng.integers(4):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return value | {str(rng.integers(6)): value[key]}
            case _:
                return value | {key: mutated(value[key], rng)}
    if isinstance(value, str) and value and rng.random() < 0.8:
        at = int(rng.integers(len(value)))
        return value[:at] + "0123456789abcdef"[rng.integers(16)] + value[at + 1 :]
    others: list[Any] = [None, 0, -1.0, "", "00" * 32, "ff" * 66, {}, [0, 1, 2], [value], 2.0**53, True]
    return others[rng.integers(len(others))]


@pytest.mark.parametrize("seed", range(24))
def test_nothing_that_a_member_or_the_server_says_raises(seed: int, tmp_path: Path) -> None:
    """What a lying member says costs its group at most; what a lying server says is a refusal of one line."""
    rng = np.random.default_rng(seed)
    name = STEPS[seed % 4]

    def lie(client: int, said: Masked) -> Masked:
        if client != 0 or said.name != name or seed % 8 >= 4:
            return said
        if name == "sum" and rng.random() < 0.5:
            return replace(said, words=said.words[:-1] if rng.random() < 0.5 else -said.words)
        return replace(said, values=mutated(dict(said.values), rng))

    def change(client: int, values: dict[str, Any]) -> dict[str, Any]:
        if client != 0 or seed % 8 < 4:
            return values
        changed = mutated(values, rng)
        return changed if isinstance(changed, dict) else {}

    got = played(nodes(tmp_path, 7, twist=lie, relay=relayed(name, change)), 7)
    assert sorted(r.client for r in got) == list(range(7))
    assert all("\n" not in (r.refused or "") for r in got)
    others = [group for group in SecureSums(3).groups(SEED, np.arange(7), 0) if 0 not in group]
    assert {int(c) for group in others for c in group} <= set(rows(got))  # the other group has its sum
