"""The round loop against a scripted federation: what is asked, what is refused, what is mixed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import hanse
from hanse.base.errors import PartError
from hanse.core import part
from hanse.core.entry import MINT, TOKEN, Transaction, grant
from hanse.core.port import Call, ClientInfo, Reply, Request, Roster, Score, Scored, Train, Trained
from hanse.core.recipe import Recipe
from hanse.learning.models import build_problem
from hanse.mechanisms.baselines import fedavg, local
from hanse.mechanisms.by_value import ByValue
from hanse.mechanisms.weigh import BySamples
from hanse.runs.checkpoint import LoopState
from hanse.runs.guards import Guard
from hanse.runs.round import finish, first_state, play_round
from hanse.runs.setup import Session

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

    def exchange(self, call: Call) -> list[Reply]:
        self.asked.append(list(call.requests))
        return [r for request in call.requests for r in self.script(self.answer(request))]

    def answer(self, request: Request) -> Reply:
        results: list[Any] = []
        for task in request.tasks:
            if isinstance(task, Train):
                row = torch.full((P,), float(request.client + 1))
                results.append(Trained(task.seat, row, float(request.client), 0.5, 3))
            if isinstance(task, Score):
                results.append(Scored(task.name, torch.tensor([float(request.client)]), torch.zeros(1), 4))
        return Reply(request.client, tuple(results), bytes_down=8, bytes_up=4)


def setup_of(mechanism: part.Mechanism, scripted: Scripted, of: int = N, **sections: Any) -> Session:
    experiment = hanse.Experiment(**{"mechanism": "fedavg", "clients": {"grant": 0.0}, **sections})
    context = part.Context(of, 10, 0, Recipe(), PROBLEM.layout, lambda k: INITIAL + k, mechanism.slots())
    return Session(experiment, mechanism, scripted, context, *[None] * 6)  # type: ignore[arg-type]


def play(mechanism: part.Mechanism, federation: Scripted, state: LoopState | None = None) -> Any:
    setup = setup_of(mechanism, federation)
    return play_round(setup, state or first_state(setup))


def edit(client: int, **changes: Any) -> Callable[[Reply], Sequence[Reply]]:
    """A script that changes one client's update."""

    def script(reply: Reply) -> Sequence[Reply]:
        if reply.client != client:
            return [reply]
        return [replace(reply, results=tuple(replace(r, **changes) for r in reply.results))]

    return script


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"row": torch.full((P,), float("nan"))}, "update has NaN or infinite entries"),
        ({"num_samples": -1.0}, "Trained.num_samples: -1.0: must be at least 0"),
        ({"seat": 77}, "no update for seat 3"),
    ],
)
def test_a_bad_update_is_refused_with_a_reason_and_never_mixed(changes: dict, reason: str) -> None:
    played = play(fedavg(clients_per_round=N), Scripted(edit(3, **changes)))
    assert played.view.refusals == ((3, reason),)
    assert played.view.trained.seats.client.tolist() == [0, 1, 2, 4]
    assert (played.bytes_down, played.bytes_up, played.state.round) == (8 * N, 4 * N, 1)
    torch.testing.assert_close(played.state.table.rows, torch.full((1, P), (1 * 2 + 2 * 3 + 4 * 5) / 7))


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
    told = {0: "no reply", 1: "too busy", 2: "answered twice", 4: "0 results for 1 task", 99: "was not asked"}
    assert dict(played.view.refusals) == told
    assert played.view.trained.seats.client.tolist() == [2, 3]


@pytest.mark.parametrize(("least", "kept"), [(3, True), (4, False)])
def test_too_few_replies_make_an_empty_round(least: int, kept: bool) -> None:
    federation = Scripted(lambda reply: [] if reply.client in (1, 2) else [reply])
    setup = setup_of(fedavg(clients_per_round=N), federation, federation={"min_replies": least})
    state = first_state(setup)
    played = play_round(setup, state)
    assert (len(played.view.trained) == 3) is kept
    assert torch.equal(played.state.table.rows, state.table.rows) is not kept
    assert len(played.view.refusals) == (2 if kept else 5)
    if not kept:
        assert dict(played.view.refusals)[0] == "the round had 3 sound updates, 4 are needed"


class Beside(part.Helper):
    """Notes who is there when it is called, takes client 0 for gone, turns client 1 away, and says what counts."""

    def gone(self, view: part.View, state: part.State) -> Any:
        return np.array([0])

    def before(self, now: part.Now, state: part.State) -> part.State:
        now.refuse([(1, "no")])
        now.count(Roster(c for c in now.view.roster if c.id != 1))
        now.post([grant(2, 5)])
        return {"seen": f"{now.view.stage} {now.view.present}"}

    def received(self, updates: Any, state: part.State) -> Any:
        return replace(updates, num_samples=np.full(len(updates), 3.0))

    def trained(self, now: part.Now, state: part.State) -> part.State:
        return {"seen": f"{state['seen']}, {now.view.stage} {now.view.trained.num_samples}"}

    def ended(self, now: part.Now, state: part.State) -> part.State:
        return {"seen": f"{state['seen']}, {now.view.stage}"}


def test_a_guards_helper_is_called_at_its_points_of_a_round() -> None:
    guard = Guard(hanse.Experiment(mechanism="fedavg"))
    guard.helpers = {"beside": Beside()}
    setup = replace(setup_of(fedavg(clients_per_round=N), Scripted()), guards={"a setting": guard})
    played = play_round(setup, first_state(setup))
    assert (played.view.refusals, played.view.book.balance("client/2")) == (((1, "no"),), 5)
    assert finish(setup, played.state).state.states["beside"]["seen"] == "open [2 3 4], close [3. 3. 3.], end"


@dataclass(frozen=True)
class AsksAndPicks(part.SelectPart):
    """Asks clients 1 and 2 for a loss and seats the larger one."""

    def asks(self, view: part.View, state: part.State) -> Sequence[Request]:
        if view.stage != "open":
            return ()
        return [Request(c, (Score("loss", view.table.rows),)) for c in (1, 2)]

    def select(self, view: part.View, state: part.State) -> tuple[part.Choice, part.State]:
        losses = {c: float(view.answers[c, "loss"].loss[0]) for c in (1, 2)}  # type: ignore[union-attr]
        return part.Choice(np.array([max(losses, key=lambda c: losses[c])])), state


def test_questions_are_asked_before_selection_in_one_exchange() -> None:
    federation = Scripted()
    played = play(replace(fedavg(), select=AsksAndPicks()), federation)
    assert [len(stage) for stage in federation.asked] == [2, 1]
    assert played.view.trained.seats.client.tolist() == [2]


@dataclass(frozen=True)
class Withholds(part.SettlePart):
    def settle(self, view: part.View, state: part.State) -> tuple[part.Settlement, part.State]:
        return part.Settlement(frozenset({1} if view.stage == "close" else {})), state


def test_withheld_rows_stay_as_they_were() -> None:
    played = play(replace(local(), settle=Withholds()), Scripted())
    assert played.state.table.rows[0, 0] == 1.0
    assert torch.equal(played.state.table.rows[1], INITIAL)
    assert played.state.table.rows[2, 0] == 3.0


# ---- what a part decides, and hands on


@dataclass(frozen=True)
class Heard:
    """What the settle part hands on: its ``stage``, and how often it was asked."""

    stage: str
    times: int


@dataclass(frozen=True)
class Thrice(part.SettlePart):
    """Counts when it is asked, and mints a unit each time."""

    def init(self, context: part.Context) -> part.State:
        return {"times": 0}

    def settle(self, view: part.View, state: part.State) -> tuple[part.Settlement, part.State]:
        times, stage = state["times"] + 1, view.stage
        minted = Transaction(f"mint/{stage}", "mint", ((MINT, -1), ("client/0", 1)))
        made = part.Settlement(
            withheld=frozenset({0} if stage == "open" else {}),
            transactions=(minted,),
            metrics={f"at {stage}": float(times), "latest": float(times)},
            arrays={stage: np.array([times]), "latest": np.array([times])},
            found=(Heard(stage, times),),
        )
        return made, {"times": times}


@dataclass(frozen=True)
class Listens(part.SelectPart):
    """Everyone sits; its state is what it has heard of, when it selects and when the round is over."""

    def select(self, view: part.View, state: part.State) -> tuple[part.Choice, part.State]:
        heard = view.get(Heard)
        assert view.get(part.Choice) is None  # decisions are in the view, and nobody hands them on
        return part.Choice(view.present, found=("a word",)), {"select": heard.stage}

    def learn(self, outcome: part.View, state: part.State) -> part.State:
        heard, word = outcome.get(Heard), outcome.get(str)
        return {**state, "learn": heard.stage, "word": word}


def test_settling_at_the_start_of_a_round_at_its_close_and_at_the_end() -> None:
    setup = setup_of(replace(fedavg(), select=Listens(), settle=Thrice()), Scripted())
    played = play_round(setup, first_state(setup))
    made = played.view.settlement
    assert dict(made.metrics) == {"at open": 1, "at close": 2, "latest": 2}  # what was recorded at the start stays
    assert {name: array.tolist() for name, array in made.arrays.items()} == {"open": [1], "close": [2], "latest": [2]}
    assert made.withheld == frozenset()  # rows are withheld at the close
    assert [t.step for t in played.view.posted] == ["mint/open", "mint/close"]
    assert played.state.book.balance("client/0") == 2
    assert played.view.get(Heard) == Heard("close", 2)
    assert played.view.get(float) is None
    assert played.state.states == {
        "select": {"select": "open", "learn": "close", "word": "a word"},
        "train": {}, "weigh": {}, "settle": {"times": 2}, "deploy": {},
    }  # fmt: skip
    ended = finish(setup, played.state)
    assert ended.view.stage == "end"
    assert dict(ended.view.settlement.metrics) == {"at end": 3, "latest": 3}
    assert [t.step for t in ended.view.posted] == ["mint/end"]
    assert ended.state.states["settle"] == {"times": 3}
    assert (ended.state.book.balance("client/0"), ended.state.finished, ended.state.round) == (3, True, 1)


@dataclass(frozen=True)
class TooMuch(part.AggregatePart):
    def aggregate(self, group: part.Group, state: part.State) -> part.Aggregate:
        return part.Aggregate(np.full(len(group), 1e39))


def test_a_round_that_is_settled_again_is_settled_once_in_states_and_books() -> None:
    """The mixed row is infinite: the first settlement at the close never was."""
    setup = setup_of(replace(fedavg(clients_per_round=N), weigh=TooMuch(), settle=Thrice()), Scripted())
    state = first_state(setup)
    played = play_round(setup, state)
    assert torch.equal(played.state.table.rows, state.table.rows)
    assert played.state.states["settle"] == {"times": 2}
    assert [t.step for t in played.view.posted] == ["mint/open", "mint/close"]
    assert played.view.get(Heard) == Heard("close", 2)


@dataclass(frozen=True)
class Numbered(part.ValuePart):
    """Client c's update is worth c + 1."""

    def value(self, view: part.View, state: part.State) -> tuple[part.Values, part.State]:
        return part.Values(view.trained.seats.client + 1.0), state


@pytest.mark.parametrize("weigh", [TooMuch(), BySamples()])
def test_a_second_settlement_sees_that_updates_to_rows_that_broke_were_worth_nothing(weigh: Any) -> None:
    mechanism = replace(fedavg(clients_per_round=N), weigh=weigh, value=Numbered(), settle=ByValue(rate=0.1))
    setup = setup_of(mechanism, Scripted(), clients={"grant": 100.0})
    played = play_round(setup, first_state(setup))
    broke = isinstance(weigh, TooMuch) | (played.view.weights == 0)  # of weight 0: nothing
    worth = np.where(broke, 0.0, played.view.trained.seats.client + 1.0)
    np.testing.assert_array_equal(played.view.values.per_seat, worth)
    moved = [played.state.book.balance(f"client/{c}") - 100 * TOKEN for c in range(N)]
    assert moved == pytest.approx(0.1 * TOKEN * (worth - worth.mean()), abs=1)  # nobody is paid for what was undone


@dataclass(frozen=True)
class Both(part.SelectPart, part.SettlePart):
    """One part in two slots: each of its methods sees the state that the one before it has left."""

    def init(self, context: part.Context) -> part.State:
        return {"seen": ""}

    def select(self, view: part.View, state: part.State) -> tuple[part.Choice, part.State]:
        return part.Choice(view.present), {"seen": state["seen"] + "select "}

    def settle(self, view: part.View, state: part.State) -> tuple[part.Settlement, part.State]:
        return part.Settlement(), {"seen": state["seen"] + view.stage + " "}

    def learn(self, outcome: part.View, state: part.State) -> part.State:
        return {"seen": state["seen"] + "learn "}

    def figures(self, state: part.State) -> dict[str, Any]:
        return {"length": np.full(N, float(len(state["seen"])))}


def test_a_part_in_two_slots_has_one_state_and_is_asked_once_a_stage() -> None:
    both = Both()
    setup = setup_of(replace(fedavg(), select=both, settle=both), Scripted())
    state = first_state(setup)
    assert list(state.states) == ["select", "train", "weigh", "deploy"]
    played = play_round(setup, state)
    assert played.state.states["select"] == {"seen": "open select close learn "}
    assert played.figures["length"].tolist() == [24.0] * N
    assert finish(setup, played.state).state.states["select"] == {"seen": "open select close learn end "}
    assert setup.mechanism.key("settle") == setup.mechanism.key("select") == "select"


@dataclass(frozen=True)
class Forgets(part.SelectPart, part.SettlePart, part.AggregatePart):
    """Returns what it is given, where a decision and a state are wanted."""

    said: Any = None

    def select(self, view: part.View, state: part.State) -> Any:
        return self.said

    settle = value = deploy = select


@pytest.mark.parametrize("slot", ["select", "settle", "value", "deploy"])
@pytest.mark.parametrize(
    ("said", "kind"), [(part.Choice(np.arange(2)), "Choice"), (None, "NoneType"), ((1, {}, 2), "tuple")]
)
def test_a_decision_without_a_state_is_refused_by_name(slot: str, said: Any, kind: str) -> None:
    changed: dict[str, Any] = {slot: Forgets(said)}
    with pytest.raises(PartError) as refused:
        play(replace(fedavg(), **changed), Scripted())
    assert str(refused.value).startswith(f"the {slot} part Forgets, round 0: its {slot} returned {kind}: must be ")
