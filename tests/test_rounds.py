"""The round loop against a scripted federation: what is asked, what is refused, what is mixed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from hanse.federation.port import ClientInfo, Reply, Request, Roster, Score, Scored, Train, Trained
from hanse.learning.job import Recipe
from hanse.learning.models import build_problem
from hanse.mechanisms.baselines import fedavg, fedprox, local
from hanse.mechanisms.part import Choice, Context, Mechanism, SelectPart, Settlement, SettlePart, State, Values, View
from hanse.rounds import LoopState, Setup, first_state, play_round

N = 5
PROBLEM, INITIAL = build_problem("logistic", (2,), 3, 0)
P = PROBLEM.layout.size


@dataclass
class Scripted:
    """Client c answers with a constant row of c + 1 and c samples, unless the script says otherwise."""

    script: Callable[[Reply], Sequence[Reply]] = lambda reply: [reply]
    present_ids: tuple[int, ...] = tuple(range(N))

    def __post_init__(self) -> None:
        self.asked: list[list[Request]] = []

    def present(self, round: int) -> Roster:
        return Roster(ClientInfo(c, f"c{c}", f"k{c}", 10 * c) for c in self.present_ids)

    def exchange(self, round: int, requests: Sequence[Request], deadline_s: Any, min_replies: int) -> list[Reply]:
        self.asked.append(list(requests))
        return [r for request in requests for r in self.script(self.answer(request))]

    def answer(self, request: Request) -> Reply:
        results: list[Any] = []
        for task in request.tasks:
            if isinstance(task, Train):
                row = torch.full((P,), float(request.client + 1))
                results.append(Trained(task.seat, row, float(request.client), 0.5, 3))
            if isinstance(task, Score):
                results.append(Scored(task.name, torch.tensor([float(request.client)]), torch.zeros(1), 4))
        return Reply(request.client, tuple(results), bytes_down=8, bytes_up=4)


def setup_of(mechanism: Mechanism, federation: Scripted) -> Setup:
    context = Context(N, 10, 0, Recipe(), PROBLEM.layout, lambda k: INITIAL + k, mechanism.slots())
    return Setup(mechanism, federation, context, *[None] * 6)  # type: ignore[arg-type]


def play(mechanism: Mechanism, federation: Scripted, state: LoopState | None = None) -> Any:
    setup = setup_of(mechanism, federation)
    return play_round(setup, state or first_state(setup))


def edit(client: int, **changes: Any) -> Callable[[Reply], Sequence[Reply]]:
    """A script that changes one client's update."""

    def script(reply: Reply) -> Sequence[Reply]:
        if reply.client != client:
            return [reply]
        return [replace(reply, results=tuple(replace(r, **changes) for r in reply.results))]

    return script


def test_fedavg_mixes_by_reported_samples() -> None:
    played = play(fedavg(clients_per_round=N), Scripted())
    want = sum(c * (c + 1) for c in range(N)) / sum(range(N))
    torch.testing.assert_close(played.state.table.rows, torch.full((1, P), want))
    assert (played.bytes_down, played.bytes_up) == (8 * N, 4 * N)
    assert played.state.round == 1


def test_local_training_keeps_each_update_in_its_own_row() -> None:
    played = play(local(), Scripted())
    assert played.state.table.rows[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert played.state.table.owner.tolist() == list(range(N))
    assert played.state.home.tolist() == list(range(N))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"row": torch.full((P,), float("nan"))}, "update has NaN or infinite entries"),
        ({"row": torch.tensor([float("inf")] + [0.0] * (P - 1))}, "update has NaN or infinite entries"),
        ({"row": torch.zeros(P + 1)}, f"update of shape ({P + 1},) instead of ({P},)"),
        ({"row": torch.zeros(P, dtype=torch.float64)}, "update of type torch.float64 instead of float32"),
        ({"row": torch.full((P,), 3e38)}, f"update of norm {3e38 * P**0.5:.3g}: at most 1e+18"),
        ({"loss": float("nan")}, "Trained.loss: nan: input should be a finite number"),
        ({"loss": 1e39}, "Trained.loss: 1e+39: must be at most 3.40282e+38"),
        ({"num_samples": -1.0}, "Trained.num_samples: -1.0: must be at least 0"),
        ({"num_samples": float("inf")}, "Trained.num_samples: inf: input should be a finite number"),
        ({"num_samples": 1e308}, "Trained.num_samples: 1e+308: must be at most 9.0072e+15"),
        ({"seat": 77}, "no update for seat 3"),
    ],
)
def test_a_bad_update_is_refused_with_a_reason_and_never_mixed(changes: dict, reason: str) -> None:
    played = play(fedavg(clients_per_round=N), Scripted(edit(3, **changes)))
    assert played.view.refusals == ((3, reason),)
    assert played.view.trained.seats.client.tolist() == [0, 1, 2, 4]
    want = (1 * 2 + 2 * 3 + 4 * 5) / 7
    torch.testing.assert_close(played.state.table.rows, torch.full((1, P), want))


def test_an_update_is_not_refused_for_its_size_up_to_a_norm_of_1e18() -> None:
    played = play(fedavg(clients_per_round=N), Scripted(edit(3, row=torch.full((P,), 9e17 / P**0.5))))
    assert played.view.refusals == ()


def test_silence_refusal_repeats_and_strangers_are_recorded() -> None:
    def script(reply: Reply) -> Sequence[Reply]:
        if reply.client == 0:
            return []
        if reply.client == 1:
            return [Reply(1, refused="too busy")]
        if reply.client == 2:
            return [reply, reply]
        if reply.client == 3:
            return [reply, replace(reply, client=99)]
        return [replace(reply, results=())]

    played = play(fedavg(clients_per_round=N), Scripted(script))
    assert dict(played.view.refusals) == {
        0: "no reply",
        1: "too busy",
        2: "answered twice",
        4: "0 results for 1 tasks",
        99: "was not asked",
    }
    assert played.view.trained.seats.client.tolist() == [2, 3]


def test_a_round_that_nobody_answers_is_empty_and_the_table_stays() -> None:
    setup = setup_of(fedavg(clients_per_round=2), Scripted(lambda reply: []))
    state = first_state(setup)
    played = play_round(setup, state)
    assert len(played.view.trained) == 0
    assert torch.equal(played.state.table.rows, state.table.rows)
    assert played.state.round == 1
    assert len(played.view.refusals) == 2


@pytest.mark.parametrize(("least", "kept"), [(3, True), (4, False)])
def test_too_few_replies_make_an_empty_round(least: int, kept: bool) -> None:
    federation = Scripted(lambda reply: [] if reply.client in (1, 2) else [reply])
    setup = replace(setup_of(fedavg(clients_per_round=N), federation), min_replies=least)
    state = first_state(setup)
    played = play_round(setup, state)
    assert (len(played.view.trained) == 3) is kept
    assert torch.equal(played.state.table.rows, state.table.rows) is not kept
    assert len(played.view.refusals) == (2 if kept else 5)
    if not kept:
        assert dict(played.view.refusals)[0] == "the round had 3 sound updates, 4 are needed"


def test_nobody_present_is_an_empty_round() -> None:
    played = play(fedavg(clients_per_round=2), Scripted(present_ids=()))
    assert len(played.view.trained) == 0
    assert played.view.refusals == ()


def test_only_present_clients_sit() -> None:
    federation = Scripted(present_ids=(1, 4))
    play(fedavg(clients_per_round=4), federation)
    assert [r.client for r in federation.asked[0]] == [1, 4]


def test_fedprox_sends_the_start_row_as_centre_without_a_copy() -> None:
    federation = Scripted()
    play(fedprox(clients_per_round=2, mu=0.7), federation)
    for request in federation.asked[0]:
        [task] = request.tasks
        assert isinstance(task, Train)
        assert task.mu == 0.7
        assert task.centre is not None
        assert task.centre.data_ptr() == task.start.data_ptr()


@dataclass(frozen=True)
class AsksAndPicks(SelectPart):
    """Asks clients 1 and 2 for a loss and seats the larger one."""

    def asks(self, view: View, state: State) -> Sequence[Request]:
        if view.stage != "open":
            return ()
        return [Request(c, (Score("loss", view.table.rows),)) for c in (1, 2)]

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        losses = {c: float(view.answers[c, "loss"].loss[0]) for c in (1, 2)}  # type: ignore[union-attr]
        return Choice(np.array([max(losses, key=lambda c: losses[c])])), state


def test_questions_are_asked_before_selection_in_one_exchange() -> None:
    federation = Scripted()
    played = play(replace(fedavg(), select=AsksAndPicks()), federation)
    assert [len(stage) for stage in federation.asked] == [2, 1]
    assert played.view.trained.seats.client.tolist() == [2]


@dataclass(frozen=True)
class Withholds(SettlePart):
    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        return Settlement(frozenset({1} if view.stage == "close" else {})), state


def test_withheld_rows_stay_as_they_were() -> None:
    played = play(replace(local(), settle=Withholds()), Scripted())
    assert played.state.table.rows[0, 0] == 1.0
    assert torch.equal(played.state.table.rows[1], INITIAL)
    assert played.state.table.rows[2, 0] == 3.0


@dataclass(frozen=True)
class Counts(SelectPart):
    def init(self, context: Context) -> State:
        return {"rounds": 0}

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        return Choice(np.array([state["rounds"] % N])), {"rounds": state["rounds"] + 1}


def test_state_goes_in_and_comes_out() -> None:
    federation = Scripted()
    setup = setup_of(replace(fedavg(), select=Counts()), federation)
    state = first_state(setup)
    for _ in range(3):
        state = play_round(setup, state).state
    assert [stage[0].client for stage in federation.asked] == [0, 1, 2]
    assert state.states["select"] == {"rounds": 3}


@dataclass(frozen=True)
class Fixed:
    needs = frozenset()
    gives = frozenset({"values"})
    reads = frozenset()
    fills = frozenset()

    def init(self, context: Context) -> State:
        return {}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        return ()

    def learn(self, outcome: View, state: State) -> State:
        return state

    def figures(self, state: State) -> dict[str, Any]:
        return {}

    def value(self, view: View, state: State) -> tuple[Values, State]:
        return Values(-view.trained.seats.client.astype(float)), state


def test_a_part_needs_no_base_class() -> None:
    played = play(replace(fedavg(clients_per_round=N), value=Fixed()), Scripted())
    assert played.view.values is not None
    assert played.view.values.per_seat.tolist() == [0.0, -1.0, -2.0, -3.0, -4.0]
