"""What leaves a client that has a privacy account, and what a server that wants more can get."""

import dataclasses
import re
import typing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experiments import digits
from mistaken import mistakes
from watching import Watch

import hanse
from hanse.core import port
from hanse.core.port import Ask, Call, Gradient, Reply, Request, Score, Train, Trained
from hanse.core.recipe import Recipe
from hanse.federation.check import refusal
from hanse.federation.codec import pack, unpack
from hanse.federation.node import Assignment, ClientData, Node
from hanse.federation.wrapped import TOO_LONG, Believed
from hanse.learning.loop import Loop, LoopEngine
from hanse.reports.statement import statement
from hanse.runs.chance import told_used_up, used_up
from hanse.runs.rehearsal import rehearse
from hanse.runs.setup import build
from hanse.wings.private.account import AccountFile, Release, spent
from hanse.wings.private.budgets import PrivateGuard
from hanse.wings.private.privacy import NOT_SAID, InState, Privacy, Private, clipped

pytest.importorskip("dp_accounting")

PAGE = Path(__file__).parents[3] / "docs" / "privacy.md"
RECIPE = Recipe(batch_size=10)
RULE = Privacy(clip=1.0, epsilon=8.0, delta=1e-5, noise=2.0)
WIDTH = 20_000
START = torch.linspace(-1, 1, WIDTH)


@dataclass
class Answers:
    """Clients that answer with what they are given, and count what they are asked."""

    results: tuple[port.Result, ...]
    refused: str | None = None
    asked: int = 0

    def exchange(self, call: Call) -> list[Reply]:
        self.asked += len(call.requests)
        return [Reply(r.client, () if self.refused else self.results, self.refused) for r in call.requests]


def door(
    results: tuple[port.Result, ...] = (), rule: Privacy = RULE, accounts: Any = None, **more: Any
) -> tuple[Private, Answers]:
    inner = Answers(results, more.pop("refused", None))
    accounts = InState(rule) if accounts is None else accounts
    return Private(inner, rule, accounts, RECIPE, np.array([40, 50]), 7, **more), inner


NORMAL = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))


def update(step: torch.Tensor, **more: Any) -> Trained:
    return Trained(0, START + step, 33.0, 0.25, 9, **more)


def answer(at: Private, *tasks: port.Task, round: int = 0) -> Reply:
    [reply] = at.exchange(Call(round, [Request(1, tasks)]))
    return reply


def test_an_update_is_clipped_and_has_noise_of_the_size_that_is_charged() -> None:
    step = torch.full((WIDTH,), 3.0)
    at, _ = door((update(step, metrics={"secret": 1.0}),))
    [sent] = answer(at, Train(0, 0, START)).results
    moved = (sent.row - START).double()
    noise = moved - step.double() / torch.linalg.vector_norm(step.double())
    # a sample standard deviation of 20,000 numbers is within 5 of its own standard errors
    assert float(noise.std()) == pytest.approx(2.0, rel=5 / np.sqrt(2 * WIDTH))
    assert abs(float(noise.mean())) < 5 * 2.0 / np.sqrt(WIDTH)
    # nothing else of it is made of samples: the size is the one that it joined with, steps follow from the recipe
    assert (sent.loss, sent.num_samples, sent.steps, dict(sent.extras)) == (None, 50.0, 5, {})
    cost = pytest.approx(spent(((Release(2.0), 1),), 1e-5))
    assert dict(sent.metrics) == {"epsilon": cost, "budget": 8.0, "delta": 1e-5, "noise": 2.0}


@pytest.mark.parametrize(
    ("length", "left"),
    [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (7.0, 1.0), (1e30, 1.0), (float("nan"), 0.0), (float("inf"), 0.0)],
)
def test_a_step_is_shortened_to_the_clip_and_never_made_longer(length: float, left: float) -> None:
    """One that is not finite is no step."""
    step = torch.zeros(50)
    step[3] = length
    assert float(torch.linalg.vector_norm(clipped(step, 1.0))) == pytest.approx(left)


def test_every_answer_is_charged_and_a_spent_budget_sits_out_untrained() -> None:
    at, inner = door((update(torch.ones(WIDTH)),))
    said = [answer(at, Train(0, 0, START), round=n).refused for n in range(20)]
    fits = max(n for n in range(1, 20) if spent(((Release(2.0), n),), 1e-5) <= 8.0)
    assert [one is None for one in said] == [True] * fits + [False] * (20 - fits)
    assert "its privacy budget is used up: epsilon 7.955 of 8 at delta 1e-05" in str(said[-1])
    assert inner.asked == fits  # who sits out does not train


def test_a_request_that_asks_for_many_things_costs_all_of_them() -> None:
    tasks = (Train(0, 0, START), Gradient("g", START.expand(3, -1)))
    at, _ = door((update(torch.ones(WIDTH)), port.Derived("g", torch.ones(3, WIDTH), 12)))
    reply = answer(at, *tasks)
    assert at.accounts.of(1).releases == ((Release(2.0), 4),)
    # each gradient is clipped to the same norm, and the size of the sample is the one that it joined with
    assert float((reply.results[1].gradients - 1 / WIDTH**0.5).std()) == pytest.approx(2.0, rel=0.03)
    assert reply.results[1].num_samples == 50


def test_private_rows_and_silence_cost_nothing() -> None:
    at, _ = door((update(torch.ones(WIDTH)),))
    [own] = answer(at, Train(0, 0, START, private=True)).results
    assert torch.equal(own.row, START + 1)
    assert own.loss is None
    silent, _ = door(refused="ValueError: patient 17 has no label")
    assert answer(silent, Train(0, 0, START)).refused == "it cannot answer"
    assert at.accounts.of(1).spent == silent.accounts.of(1).spent == 0


@pytest.mark.parametrize("task", [Score("s", START[None]), Ask("bid", {}, START[None])])  # all tasks: below
def test_what_gets_no_noise_is_refused_unasked(task: port.Task) -> None:
    at, inner = door()
    assert answer(at, task).refused == NOT_SAID
    assert answer(at, Train(0, 0, START), task).refused == NOT_SAID  # nor beside training
    assert inner.asked == 0


def test_tests_say_nothing_on_a_network_and_measure_in_a_simulation() -> None:
    tested = port.Tested("t", 0.5, 0.75, 12)
    at, inner = door((tested,))
    assert answer(at, port.Test("t", START)).results == (tested,)
    assert inner.asked == 1
    own, inner = door((tested,), own=True)
    task = port.Test("t", START)
    reply = answer(own, task)
    assert reply.results == (port.Tested("t", None, None, 0),)
    assert refusal(Request(1, (task,)), reply) is None
    assert answer(own, task, Train(0, 0, START)).refused == "a test is asked for alone"
    assert inner.asked == 0


def test_every_type_of_the_port_is_in_the_table_of_the_docs_and_what_gets_no_noise_is_refused() -> None:
    page = PAGE.read_text()
    assert all(f"| `{kind.__name__}` | " in page for kind in typing.get_args(port.Result))
    # whatever may be asked is either refused, or answered by a result that the door changes
    asked = {Train, Gradient, Ask, port.Test}
    for task in typing.get_args(port.Task):
        nothing = dict.fromkeys(f.name for f in dataclasses.fields(task))
        assert RULE.refuses(task(**nothing)) == (task not in asked)


# ---- a participant on a network


@cache
def held() -> ClientData:
    return ClientData.of(rehearse("fedavg").session.data, 1)


def node(
    home: Path, private: Any = None, own: Privacy | None = None, run: str = "mine", clients: int = 4, **train: Any
) -> Node:
    train = {"lr": 0.1, "batch_size": 10} | train
    return Node(held(), Assignment(run, 1, clients, 0, {"name": "logistic"}, train, private=private), home, private=own)


def asked(at: Node, round: int = 0, *, seed: int = 0, tasks: Any = None) -> Reply:
    start = torch.randn(at.problem.layout.size, generator=torch.Generator().manual_seed(seed)) / 10
    tasks = (Train(0, 0, start),) if tasks is None else tasks
    return unpack(at.answer(round, pack(Request(1, tasks))))  # type: ignore[return-value]


GIVEN = {"clip": 1.0, "noise": 2.0, "epsilon": 8.0, "delta": 1e-5}
SAMPLE = GIVEN | {"unit": "sample"}


def counts(home: Path) -> int:
    account = AccountFile(home / "privacy.json").read()
    return 0 if account is None else sum(many for _, many in account.releases)


def test_a_node_keeps_its_account_over_rounds_restarts_and_runs(tmp_path: Path) -> None:
    told = [asked(node(tmp_path, GIVEN, run=f"run{n // 4}"), n).refused for n in range(14)]  # a node anew each time
    assert [one is None for one in told] == [True] * 11 + [False] * 3
    assert "budget is used up" in str(told[-1])
    assert counts(tmp_path) == 11


def test_the_same_request_again_has_the_same_bytes_and_costs_nothing(tmp_path: Path) -> None:
    first = asked(node(tmp_path, GIVEN))
    again = asked(node(tmp_path, GIVEN))  # a server that lost the answer, a node that was killed after it wrote
    assert torch.equal(first.results[0].row, again.results[0].row)  # type: ignore[union-attr]
    assert counts(tmp_path) == 1


def test_repeated_rounds_and_other_settings_cancel_no_noise_and_cost(tmp_path: Path) -> None:
    def noise(at: Node, **more: Any) -> torch.Tensor:
        return asked(at, **more).results[0].row  # type: ignore[union-attr]

    strong = GIVEN | {"epsilon": 1e5}
    base = noise(node(tmp_path, strong))
    others = [
        noise(node(tmp_path, strong | {"noise": 2.5})),
        noise(node(tmp_path, strong | {"clip": 1.5})),
        noise(node(tmp_path, strong), round=1),
        noise(node(tmp_path, strong, run="another"), seed=1),
    ]
    assert counts(tmp_path) == 5
    for other in others:
        # independent noise: no multiple of the one explains the other
        assert abs(np.corrcoef(base.numpy(), other.numpy())[0, 1]) < 5 / np.sqrt(len(base))


def test_what_a_client_says_of_the_clip_costs_each_time_that_it_is_drawn_anew(tmp_path: Path) -> None:
    """The update has the same bytes, since its noise does not follow from ``bits``; the mean of the bits would tell."""
    told = [asked(node(tmp_path, GIVEN | {"quantile": 0.5, "bits": bits})) for bits in (4.0, 4.0, 5.0)]
    rows = [reply.results[0] for reply in told]
    assert torch.equal(rows[0].row, rows[2].row)  # type: ignore[union-attr]
    assert rows[0].metrics["within"] != rows[2].metrics["within"]  # type: ignore[union-attr]
    assert counts(tmp_path) == 4  # two answers, each with a bit


def test_a_participants_lesser_terms_hold_in_an_account_with_a_larger_budget(tmp_path: Path) -> None:
    assert asked(node(tmp_path, GIVEN)).refused is None
    own = Privacy(clip=1.0, noise=2.0, epsilon=3.0, delta=1e-5)
    told = [asked(node(tmp_path, GIVEN, own), n).refused for n in range(1, 4)]
    assert [one is None for one in told] == [True, False, False]
    assert "of 3 at delta 1e-05" in str(told[1])
    assert AccountFile(tmp_path / "privacy.json").read().epsilon == 8.0
    assert asked(node(tmp_path, GIVEN), 4).refused is None


def test_no_server_turns_an_account_off_or_raises_its_budget(tmp_path: Path) -> None:
    assert asked(node(tmp_path, GIVEN)).refused is None
    with pytest.raises(hanse.UserError, match="under its privacy account"):
        node(tmp_path)
    with pytest.raises(hanse.UserError, match="is not DP-SGD"):
        Node(
            held(), Assignment("own", 1, 4, 0, {"name": "logistic"}, {"lr": 0.1}), tmp_path / "own",
            loop=Loop.of(lambda model, data, round: None, "train"),
            private=Privacy(clip=1.0, epsilon=8.0, delta=1e-5, noise=1.0, unit="sample"),
        )  # fmt: skip
    with pytest.raises(hanse.UserError, match="counts by client"):
        node(tmp_path, GIVEN | {"unit": "sample"})
    rich = node(tmp_path, GIVEN | {"epsilon": 1e5, "noise": 0.5})  # a little noise costs what it costs
    assert "epsilon 1.993 of 8" in str(asked(rich, 1).refused)


def test_what_a_participant_decides_itself_goes_before_the_run(tmp_path: Path) -> None:
    own = Privacy(clip=0.5, noise=4.0, epsilon=3.0, delta=1e-6)
    for given in (None, GIVEN):
        assert asked(node(tmp_path, given, own)).results[0].metrics["noise"] == 2.0  # type: ignore[union-attr]
    account = AccountFile(tmp_path / "privacy.json").read()
    assert (account.epsilon, account.delta) == (3.0, 1e-6)


def test_the_rest_is_spent_by_another_process_while_one_trains(tmp_path: Path) -> None:
    slow, other = node(tmp_path, GIVEN), node(tmp_path, GIVEN)
    inner = slow.federation.inner  # type: ignore[attr-defined]

    @dataclass
    class Meanwhile:
        rounds: list[int] = field(default_factory=list)

        def exchange(self, call: Call) -> Any:
            self.rounds = [asked(other, n).refused is None for n in range(100, 112)]
            return inner.exchange(call)

    object.__setattr__(slow.federation, "inner", Meanwhile())
    assert "budget is used up" in str(asked(slow).refused)
    assert counts(tmp_path) == 11


@pytest.mark.parametrize("fails", [ValueError("patient 17 has no label"), MemoryError()])
def test_training_that_fails_is_a_step_of_zero_and_tells_nothing(
    fails: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that chooses the model for which it fails would see whether some sample is there."""

    def broken(model: Any, data: Any = None, round: Any = None) -> None:
        raise fails

    plain, mine = node(tmp_path / "a", GIVEN), node(tmp_path / "b", GIVEN)
    outer, own = plain.federation.inner, mine.federation.inner  # type: ignore[attr-defined]
    object.__setattr__(outer, "exchange", broken)  # in the engine itself, and in a loop of the participant's own
    object.__setattr__(own, "engine", LoopEngine(own.engine, Loop.of(broken, "train")))
    for at, home in ((plain, tmp_path / "a"), (mine, tmp_path / "b")):
        [sent] = asked(at).results
        start = torch.randn(at.problem.layout.size, generator=torch.Generator().manual_seed(0)) / 10
        assert float((sent.row - start).std()) == pytest.approx(2.0, rel=5 / np.sqrt(2 * len(start)))
        assert counts(home) == 1
    slope = asked(plain, tasks=(Gradient("g", torch.zeros(1, plain.problem.layout.size)),)).results[0]
    assert float(slope.gradients.std()) == pytest.approx(2.0, rel=0.2)  # type: ignore[union-attr]
    assert "patient 17" in caplog.text or isinstance(fails, MemoryError)  # in its own log


def test_a_learning_rate_for_which_dp_sgd_overflows_buys_no_bit(tmp_path: Path) -> None:
    at = node(tmp_path, GIVEN | {"unit": "sample", "clip": 1e6}, lr=1e30)
    # the sign of any step says whether the model is finite
    edge = torch.full((at.problem.layout.size,), torch.finfo(torch.float32).max)
    for n in range(3):
        [sent] = asked(at, n, tasks=(Train(0, 0, edge),)).results
        assert torch.equal(sent.row, edge)  # type: ignore[union-attr]
        assert counts(tmp_path) == n + 1


@pytest.mark.parametrize(
    ("private", "more", "line"),
    [
        (GIVEN | {"delta": 0.4}, {"clients": 2}, r"delta: 0.4.*0.01"),  # which promises nothing
        (GIVEN | {"delta": 0.01}, {"clients": 100}, r"delta: 0.01.*100"),
        # Opacus rounds the factors of 7.1e-46 up to 1.4e-45: twice what the account charges
        (SAMPLE | {"clip": 7.1e-46}, {}, r"private.clip: 7.1e-46.*0.000000001"),
        (SAMPLE, {"lr": float("nan")}, "train.lr: nan: must not be NaN"),
        (SAMPLE, {"optimizer": "adamw"}, "train.optimizer: 'adamw': must be 'sgd': DP-SGD steps as SGD"),
        (SAMPLE, {"loss": {"name": "cross_entropy", "weights": "balanced"}},
         "train.loss.weights: 'balanced': must be numbers here"),
        ([1], {}, "federation.private"),
    ],
)  # fmt: skip
def test_terms_or_a_job_that_no_experiment_could_have_are_refused_in_one_line(
    private: Any, more: Any, line: str, tmp_path: Path
) -> None:
    with pytest.raises(hanse.UserError, match=line) as wrong:
        node(tmp_path, private, **more)
    assert len(wrong.value.lines) == 1
    assert not (tmp_path / "privacy.json").exists()


def test_gradients_of_no_models_are_nothing(tmp_path: Path) -> None:
    at = node(tmp_path, GIVEN)
    [none] = asked(at, tasks=(Gradient("g", torch.zeros(0, at.problem.layout.size)),)).results
    assert len(none.gradients) == 0  # type: ignore[union-attr]
    assert counts(tmp_path) == 0


def test_more_steps_than_can_be_counted_are_never_afforded(tmp_path: Path) -> None:
    at = node(tmp_path, GIVEN | {"unit": "sample", "epsilon": 1e6}, epochs=10**9)
    told = asked(at, tasks=(Train(0, 0, torch.zeros(at.problem.layout.size)),)).refused
    assert "too small for one answer: epsilon 1e+06 at delta 1e-05, and one has no finite cost" in str(told)


# ---- a simulation


def experiment(rounds: int = 4, private: Any = None, mechanism: Any = "fedavg", **more: Any) -> hanse.Experiment:
    federation = {"private": GIVEN if private is None else private or None}
    return digits(mechanism, 4, rounds, data={"validation": 0.2}, federation=federation, **more)


def test_a_run_that_is_resumed_has_the_bits_and_the_accounts_of_one_that_was_not(tmp_path: Path) -> None:
    short = GIVEN | {"epsilon": 4.0}  # lasts for three rounds
    whole = hanse.run(experiment(5, short), out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        hanse.run(experiment(5, short), out=tmp_path / "cut", observers=[Watch(until=1)])
    again = hanse.resume(tmp_path / "cut")
    assert torch.equal(whole.table.rows, again.table.rows)
    refused = [[line["refused"] for line in one.clients if "refused" in line] for one in (whole, again)]
    assert refused[0] == refused[1]
    assert sum("refused" in line for line in whole.clients) == 8
    for run in (whole, again):
        assert max(line.get("fit/epsilon", 0.0) for line in run.clients) <= 4.0


def stopped(folder: Path, private: Any) -> Path:
    """A run of five rounds that was stopped after two; its configuration."""
    with pytest.raises(KeyboardInterrupt):
        hanse.run(experiment(5, private), out=folder, observers=[Watch(until=1)])
    return folder / "config.toml"


@pytest.mark.parametrize(("epsilon", "answers"), [(4.0, 3), (2.0, 2), (100.0, 4)])
def test_the_lesser_budget_binds_a_run_that_is_resumed(epsilon: float, answers: int, tmp_path: Path) -> None:
    config = stopped(tmp_path / "run", GIVEN | {"epsilon": 4.5})
    config.write_text(config.read_text().replace("epsilon = 4.5", f"epsilon = {epsilon}"))
    run = hanse.resume(tmp_path / "run")
    assert [sum("refused" not in line for line in run.clients if line["client"] == c) for c in range(4)] == [
        answers
    ] * 4
    budget = min(epsilon, 4.5)
    said = statement(tmp_path / "run", 0).privacy.fields
    assert f" of {budget:g} at delta 1e-05 is spent" in said["why"]
    assert (said["out"], said["of"]) == (5 - answers, 5)


def test_terms_that_a_run_began_with_bind_clients_that_had_not_answered_yet(tmp_path: Path) -> None:
    begun = GIVEN | {"epsilon": 3.0, "stricter": [{"clients": [3], "epsilon": 2.5}]}
    hanse.run(experiment(1, begun, {"name": "fedavg", "clients_per_round": 1}), out=tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    edited = re.sub("epsilon = (3.0|2.5)", "epsilon = 50.0", config.read_text())
    edited = edited.replace("delta = 1e-05", "delta = 0.01").replace("rounds = 1", "rounds = 12")
    config.write_text(edited)
    run = hanse.resume(tmp_path / "run")
    told = {line["client"]: (line["fit/budget"], line["fit/delta"]) for line in run.clients if "fit/budget" in line}
    assert told == {client: (2.5 if client == 3 else 3.0, 1e-5) for client in range(4)}
    assert all(line["fit/epsilon"] <= line["fit/budget"] for line in run.clients if "fit/budget" in line)


WRITTEN = "private = { clip = 1.0, noise = 2.0, epsilon = 8.0, delta = 1e-5 }"


@pytest.mark.parametrize(
    ("begun", "pattern", "instead", "line"),
    [
        (GIVEN, "(?m)^private = .*$", "", "is missing: clients began this run with privacy accounts, and keep them"),
        (
            {}, r"\[federation\]", f"[federation]\n{WRITTEN}",
            "this run began without: what its clients sent had no noise; start another",
        ),
    ],
)  # fmt: skip
def test_accounts_are_not_turned_on_or_off_on_resume(
    begun: Any, pattern: str, instead: str, line: str, tmp_path: Path
) -> None:
    config = stopped(tmp_path / "run", begun)
    changed, times = re.subn(pattern, instead, config.read_text())
    assert times == 1
    config.write_text(changed)
    assert list(mistakes(hanse.resume, tmp_path / "run")) == [f"federation.private: {line}"]


def test_accounts_count_as_they_did_on_resume() -> None:
    kept = {1: RULE.opened()}
    guard = PrivateGuard(experiment(4, GIVEN))
    guard.terms, guard.accounts = RULE, InState(RULE)
    guard.resumed(kept, 3, np.full(4, 20))
    assert guard.accounts.accounts == kept
    guard.terms = dataclasses.replace(RULE, unit="sample")
    with pytest.raises(hanse.UserError, match="unit: 'sample'"):
        guard.resumed(kept, 3, np.full(4, 20))


def test_a_client_that_answers_again_has_not_used_up_its_budget() -> None:
    out = "its privacy budget is used up: epsilon 1"
    seats = [(c, 0, None) for c in range(9)] + [(c, c, out) for c in range(1, 9)] + [(1, 2, None), (2, 9, "no reply")]
    assert used_up(seats) == {c: c for c in range(2, 9)}
    [line] = told_used_up(used_up(seats))
    assert line.endswith("client 5 from round 5 on, client 6 from round 6 on, others later")


def test_noise_that_is_left_out_follows_from_the_budget_and_the_rounds() -> None:
    given = {"clip": 1.0, "epsilon": 8.0, "delta": 1e-5}
    private = hanse.run(experiment(3, given, {"name": "fedavg", "clients_per_round": 2})).experiment.federation.private
    # two of four clients in three rounds: each is asked in two, rounded up
    assert spent(((Release(private["noise"]), 2),), 1e-5) == pytest.approx(8.0, rel=0.01)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"mechanism": "ifca"}, "'ifca'"),
        ({"mechanism": "pifl"}, "'tokens'"),
        ({"mechanism": "ipfl", "data": {"client_validation": 0.1}}, "'ipfl'"),
        ({"mechanism": "fedgen"}, "label counts"),
        ({"mechanism": "oort"}, "'oort'"),
        ({"behaviour": {"noisy": {}}}, "behaviour.noisy"),
        ({"sizes": {"proved": True}}, "not with sizes.proved"),
        (
            {"train": {"loss": {"name": "cross_entropy", "weights": "balanced"}}},
            "not with train.loss.weights 'balanced'",
        ),
        ({"model": {"name": "tests.wings.private.test_privacy:normed"}}, "batch norm or other buffers"),
        ({"model": {"name": "tests.wings.private.test_privacy:frozen"}}, "model.send = 'trainable'"),
        ({"mechanism": "fedprox", "federation": {"private": SAMPLE}}, "unit: 'sample': mechanism.train: 'proximal'"),
        ({"behaviour": {"drift": {"clients": [0]}}, "federation": {"private": SAMPLE}}, "drift"),
    ],
)
def test_what_does_not_go_with_an_account_is_refused_with_the_reason(sections: Any, said: str) -> None:
    given = {"data": {"source": "digits", "clients": 4}, "mechanism": "fedavg"} | sections
    given["data"] = {"source": "digits", "clients": 4} | given["data"]
    given["federation"] = {"private": GIVEN} | sections.get("federation", {})
    with pytest.raises(hanse.UserError, match=said):
        build(hanse.Experiment(**given, run={"rounds": 1}))


def normed(input_shape: Any, num_classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, num_classes))


def frozen(input_shape: Any, num_classes: int) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.Linear(8, num_classes))
    model[1].requires_grad_(False)
    return model


# ---- clients with a smaller budget, and what the server believes of noise


def test_a_client_with_a_smaller_budget_adds_more_noise_and_stays_within_it(tmp_path: Path) -> None:
    few = {"clip": 1.0, "epsilon": 8.0, "delta": 1e-5, "stricter": [{"clients": [0, 3], "epsilon": 2.0}]}
    run = hanse.run(experiment(3, few), out=tmp_path / "run")
    private = run.experiment.federation.private
    noise = {line["client"]: line["fit/noise"] for line in run.clients}
    assert noise == {c: private["stricter"][0]["noise"] if c in (0, 3) else private["noise"] for c in range(4)}
    said = {c: max(line["fit/epsilon"] for line in run.clients if line["client"] == c) for c in range(4)}
    for client, budget in enumerate((2.0, 8.0, 8.0, 2.0)):
        assert said[client] == pytest.approx(spent(((Release(noise[client]), 3),), 1e-5))
        assert 0.98 * budget < said[client] <= budget
    # the written settings are those of the same run, and the statement knows whose budget is whose
    assert hanse.run(hanse.Experiment.read(tmp_path / "run" / "config.toml")).clients == run.clients
    assert [statement(tmp_path / "run", client).client.budget for client in (0, 1)] == [2, 8]


def test_a_node_keeps_the_smaller_budget_that_the_run_gives_it(tmp_path: Path) -> None:
    given = GIVEN | {"stricter": [{"clients": [1], "epsilon": 3.0, "noise": 4.0}]}
    told = [asked(node(tmp_path, given), n) for n in range(12)]
    fits = max(n for n in range(1, 12) if spent(((Release(4.0), n),), 1e-5) <= 3.0)
    assert [one.refused is None for one in told] == [True] * fits + [False] * (12 - fits)
    account = AccountFile(tmp_path / "privacy.json").read()
    assert (account.epsilon, dict(account.releases)) == (3.0, {Release(4.0): fits})


@pytest.mark.parametrize(
    ("stricter", "line"),
    [
        ({"clients": [0], "epsilon": 9.0}, ": epsilon 9: must be at most 8, the others'"),
        ({"clients": [0], "epsilon": 1.0, "noise": 0.5}, ": noise 0.5: must be at least 2, the others'"),
        ({"clients": [4], "epsilon": 1.0}, ": client 4: allowed: 0 to 3"),
    ],
)
def test_a_smaller_budget_that_is_none_is_one_line(stricter: Any, line: str) -> None:
    assert list(mistakes(hanse.run, experiment(1, GIVEN | {"stricter": [stricter]}))) == [
        f"federation.private.stricter{line}"
    ]


@dataclass
class Says(Answers):
    """Clients that each send a step and say a noise of their own."""

    steps: dict[int, tuple[torch.Tensor, float]] = field(default_factory=dict)

    def exchange(self, call: Call) -> list[Reply]:
        sent = [(r.client, *self.steps[r.client]) for r in call.requests]
        return [Reply(c, (Trained(0, START + step, 33.0, None, 5, metrics={"noise": s}),)) for c, step, s in sent]


def believed(
    rule: Privacy | None = RULE,
    task: Train | None = None,
    weighed: bool = True,
    recipe: Recipe = RECIPE,
    **steps: tuple[torch.Tensor, float],
) -> list[Reply]:
    inner = Says((), steps={int(name[1:]): one for name, one in steps.items()})
    task = Train(0, 0, START) if task is None else task
    asked = [Request(c, (task,)) for c in inner.steps]
    return list(Believed(inner, rule, recipe, WIDTH, weighed=weighed).exchange(Call(0, asked)))


def noises(replies: list[Reply]) -> list[Any]:
    """The noise of each reply that counts, or why it was refused."""
    return [r.results[0].metrics["noise"] if r.results else r.refused for r in replies]  # type: ignore[union-attr]


def test_noise_that_a_client_says_counts_only_if_its_update_can_have_it_and_never_as_less_than_the_runs() -> None:
    unit = torch.ones(WIDTH) / WIDTH**0.5
    replies = believed(
        c0=(unit + 2 * NORMAL, 2.0),  # as the run asks: noise 2, clip 1
        c1=(unit + 5 * NORMAL, 5.0),  # more
        c2=(unit + 5 * NORMAL, 2.0),  # more than it says
        c3=(1e-6 * NORMAL, 1e-6),  # next to none of either: its clip is its own
        c4=(unit + 2 * NORMAL, 9.0),  # less than it says: that costs it weight
        c5=(50 * WIDTH**0.5 * unit, 2.0),  # no clip
    )
    assert noises(replies) == [2.0, 5.0, TOO_LONG, 2.0, 9.0, TOO_LONG]


def test_saying_more_noise_makes_hardly_any_room_where_it_costs_no_weight() -> None:
    replies = believed(
        weighed=False,
        c0=(2 * NORMAL, 2.0),
        c1=(1e5 * NORMAL, 1e6),  # what it says has room for that
        c2=(2 * NORMAL, 9.0),  # a wider interval for its value
    )
    lengths = [float((r.results[0].row - START).norm()) for r in replies]  # type: ignore[union-attr]
    most = 1 + 2 * (WIDTH + 2 * (25 * WIDTH) ** 0.5 + 50) ** 0.5
    assert lengths == pytest.approx([lengths[0], most, lengths[0]], rel=2e-3)
    assert noises(replies) == [2.0, pytest.approx(2 * most / WIDTH**0.5, rel=2e-3), pytest.approx(4.0, rel=0.02)]


def test_without_terms_of_the_run_an_update_has_at_most_the_noise_that_its_length_has_room_for() -> None:
    replies = believed(None, c0=(2 * NORMAL, 2.0), c1=(0.01 * NORMAL, 1e300), c2=(NORMAL, -1.0))
    assert noises(replies) == [2.0, pytest.approx(0.02, rel=0.02), 0.0]


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ({"epsilon": 3.0, "budget": 8.0, "delta": 1e-5}, True),
        ({"epsilon": 0.0, "budget": 1e-12, "delta": 0.01}, True),  # much noise costs nothing at some delta
        ({"epsilon": -3.0, "budget": 8.0, "delta": 1e-5}, False),
        ({"epsilon": 0.0, "budget": 0.0, "delta": 1e-5}, False),
        ({"epsilon": 9.0, "budget": 8.0, "delta": 1e-5}, False),
        ({"epsilon": 3.0, "budget": 1e300, "delta": 1e-5}, False),
        ({"epsilon": 3.0, "budget": 8.0, "delta": 1.0}, False),
        ({"epsilon": 3.0}, False),
    ],
)
def test_what_no_account_can_say_is_not_recorded(said: dict[str, float], kept: bool) -> None:
    sent = Trained(0, START, 33.0, None, 5, metrics={**said, "noise": 2.0, "mine": 1.0})
    [reply] = Believed(Answers((sent,)), RULE, RECIPE, WIDTH).exchange(Call(0, [Request(0, (Train(0, 0, START),))]))
    assert dict(reply.results[0].metrics) == {"noise": 2.0} | (said if kept else {})  # type: ignore[union-attr]


def test_what_a_client_says_counts_as_at_least_its_own_terms_and_never_as_endless() -> None:
    rule = dataclasses.replace(RULE, stricter=({"clients": (0,), "epsilon": 1.0, "noise": 6.0},))
    # client 0 has promised noise 6 and adds it, but says none; without its own terms it would be too long, or light
    replies = believed(rule, c0=(6 * NORMAL, 0.0), c1=(2 * NORMAL, 0.0), c2=(2 * NORMAL, 1e200))
    assert noises(replies) == [6.0, 2.0, 2e6]


def test_an_honest_update_is_never_too_long() -> None:
    for width in (1, 3, 50):
        task = Train(0, 0, torch.zeros(width))
        inner = Answers((Trained(0, torch.ones(width), 33.0, None, 5),))
        at = Believed(Private(inner, RULE, InState(RULE), RECIPE, np.full(3000, 40), 7), RULE, RECIPE, width)
        assert all(r.refused is None for r in at.exchange(Call(0, [Request(c, (task,)) for c in range(3000)])))


@pytest.mark.parametrize("half", [False, True])
def test_rounding_on_the_way_makes_no_honest_update_too_long(half: bool) -> None:
    start = 3000.0 * torch.randn(50, generator=torch.Generator().manual_seed(2))
    sent = start.half().float() if half else start
    door = Private(Answers((Trained(0, sent, 33.0, None, 5),)), RULE, InState(RULE), RECIPE, np.full(500, 40), 7)
    replies = door.exchange(Call(0, [Request(c, (Train(0, 0, sent),)) for c in range(500)]))
    came = [dataclasses.replace(r.results[0], row=r.results[0].row.half().float()) for r in replies]  # type: ignore[union-attr, type-var]
    rows = [r.results[0] for r in replies] if not half else came
    inner = Answers(())
    inner.exchange = lambda *_: [Reply(c, (one,)) for c, one in enumerate(rows)]  # type: ignore[method-assign, assignment]
    at = Believed(inner, RULE, RECIPE, 50, half)
    asked = [Request(c, (Train(0, 0, start),)) for c in range(500)]
    assert all(r.refused is None for r in at.exchange(Call(0, asked)))


def test_dp_sgd_that_is_longer_than_its_steps_and_noise_can_be_is_refused() -> None:
    rule = dataclasses.replace(RULE, unit="sample")
    recipe, task = Recipe(batch_size=11, epochs=2, lr=0.1, momentum=0.5), Train(0, 0, START)
    longest, level = (f(33, recipe, 0.1, task) for f in (rule.longest, rule.level))
    # six steps of at most all 33 samples, three times the mean batch; the k-th from the end counts 2 - 2^(1-k)
    assert longest == pytest.approx(0.1 * 3 * sum(2 - 2 ** (1 - k) for k in range(1, 7)))
    sent = {"c0": (level * NORMAL, 0.0), "c1": (1.5 * level * NORMAL, 0.0), "c2": (level * NORMAL * 5, 5 * level)}
    replies = believed(rule, task, recipe=recipe, **sent)
    assert noises(replies) == [pytest.approx(level), TOO_LONG, pytest.approx(5 * level)]
    assert rule.longest(33, dataclasses.replace(recipe, weight_decay=0.1), 0.1, task) == np.inf


def test_what_a_client_says_follows_the_clip_that_the_server_sent() -> None:
    rule = dataclasses.replace(RULE, quantile=0.5)
    replies = believed(rule, Train(0, 0, START, clip=0.1), c0=(torch.zeros(WIDTH), 0.0))
    assert noises(replies) == [pytest.approx(0.2)]
