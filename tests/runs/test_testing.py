"""Testing what clients hold: one task of the port, one place that makes figures of the replies."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from watching import untimed

import hanse
from hanse.base.lock import Hold
from hanse.core.part import Deployment, Helper, OwnMix, State, View
from hanse.core.port import Ask, Call, Mixture, Reply, Request, Test, Tested
from hanse.core.table import SERVER, Table
from hanse.federation.policy import fits
from hanse.learning.scoring import Scorer
from hanse.runs import experiment as loop
from hanse.runs.checkpoint import LoopState, load
from hanse.runs.rehearsal import small_experiment
from hanse.runs.round import first_state, play_round
from hanse.runs.rundir import RunDir
from hanse.runs.setup import Session, build
from hanse.runs.testing import Figures, ask_tests

N = 5


def world(**sections: Any) -> Session:
    data = {"clients": N, "partition": {"samples_per_client": 150}}
    return build(small_experiment({"name": "fedavg", "clients_per_round": 3}, data=data, **sections))


@pytest.fixture(scope="module")
def here() -> Session:
    return world()


def rows_of(here: Session, count: int = 3) -> torch.Tensor:
    return torch.stack([here.context.initial(k) for k in range(count)])


def ask(here: Session, *tasks: Test) -> list[Tested]:
    """Return the results of one task for each of the first clients."""
    replies = here.federation.exchange(Call(0, [Request(c, (task,)) for c, task in enumerate(tasks)]))
    assert [r.client for r in replies] == list(range(len(tasks)))
    return [r.results[0] for r in replies]  # type: ignore[misc]


def scored(here: Session, model: torch.Tensor, client: int, share: str = "test") -> Any:
    pool, index = here.data.pool([client], share)
    return here.engine.score(model[None], pool, index)


def figures(here: Session, table: Table, held: Deployment, clients: Any = None, federation: Any = None,
            remote: bool = False) -> Figures:  # fmt: skip
    clients = np.arange(N) if clients is None else np.array(clients)
    federation = here.federation if federation is None else federation
    asked = replace(here, tested_clients=clients, remote=remote)
    return ask_tests(asked, federation, LoopState(1, table, held.rows, {}), held)


# ---- the client's half


def test_each_client_tests_the_model_that_it_is_sent_and_the_one_beside(here: Session) -> None:
    rows = rows_of(here)
    for c, result in enumerate(ask(here, *[Test("t", rows[c % 3], beside=rows[0]) for c in range(N)])):
        want, other = scored(here, rows[c % 3], c), scored(here, rows[0], c)
        assert (result.name, result.num_samples, result.weights) == ("t", want.count[0], None)
        assert result.loss == pytest.approx(want.loss[0], rel=1e-6)
        assert result.loss_error == pytest.approx(want.loss_error[0], rel=1e-5)
        assert (result.accuracy, result.accuracy_beside) == (want.accuracy[0], other.accuracy[0])


@pytest.mark.parametrize("share", ["validation", "train"])
@pytest.mark.parametrize("normalised", [True, False])
def test_a_client_mixes_by_how_well_each_model_fits_its_samples(here: Session, share: str, normalised: bool) -> None:
    rows = rows_of(here)
    mixture = Mixture(rows, share, normalised)
    for c, result in enumerate(ask(here, *[Test("t", rows[0], mixture=mixture) for _ in range(N)])):
        pool, index = here.data.pool([c], share)
        v = np.array(fits(here.engine.score_each(rows, pool, index)[0]))
        want = v / v.sum() if normalised else v
        np.testing.assert_allclose(result.weights.numpy(), want, atol=1e-12)
        model = (torch.from_numpy(want) @ rows.double()).float()
        assert result.loss == pytest.approx(scored(here, model, c).loss[0], rel=1e-5)


class AsksOne(Helper):
    """A part of one's own that asks a client whether it stays, and keeps no state of it."""

    def asks(self, view: View, state: State) -> Sequence[Request]:
        asked = [Request(2, (Ask("stay", {"times": 2, "mean": -1.0}),))]
        return asked if (view.round, view.stage) == (0, "open") else ()


def test_who_says_that_it_leaves_is_not_tested_whichever_part_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hanse.runs.setup.helpers_of", lambda *given: {"asks": AsksOne()})
    session = world(clients={"policy": "quits"})
    state = first_state(session)
    for _ in range(2):
        state = play_round(session, state).state
        tested = ask_tests(session, session.federation, state, Deployment(state.home)).arrays["tested"]
        assert (state.quit.tolist(), tested.tolist()) == ([2], [0, 1, 3, 4])


def test_behaviours_do_not_touch_tests_and_no_bytes_are_counted(here: Session) -> None:
    away = {"dropout": {"rate": 1.0}, "leaver": {"clients": [0], "at": 0}, "liar": {"clients": [1], "size": 9.0}}
    rows = rows_of(here)
    tasks = [Request(c, (Test("t", rows[0]),)) for c in range(N)]
    both = (session.federation.exchange(Call(1, tasks)) for session in (here, world(behaviour=away)))
    for one, other in zip(*both, strict=True):
        assert one == other
        assert (one.bytes_down, one.bytes_up, one.authorise) == (0, 0, None)


# ---- the figures


def test_means_are_plain_weighted_and_the_worst(here: Session) -> None:
    table = Table.of(rows_of(here))
    found = figures(here, table, Deployment(np.array([0, 1, 2, 0, 1])), [0, 2, 3])
    want = [scored(here, table.rows[k], c) for c, k in ((0, 0), (2, 2), (3, 0))]
    loss, right, count = (np.array([getattr(w, name)[0] for w in want]) for name in ("loss", "accuracy", "count"))
    assert found.arrays["tested"].tolist() == [0, 2, 3]
    assert found.arrays["test_samples"].tolist() == count.tolist()
    np.testing.assert_allclose(found.arrays["test_loss"], loss, rtol=1e-6)
    assert found.metrics["client/test_loss"] == pytest.approx(loss.mean(), rel=1e-6)
    assert found.metrics["client/test_accuracy"] == pytest.approx(right.mean())
    assert found.metrics["client/test_accuracy_weighted"] == pytest.approx((right * count).sum() / count.sum())
    assert found.metrics["client/test_accuracy_min"] == right.min()
    assert "client/test_accuracy_of_row" not in found.metrics
    assert found.personal is None
    server = here.engine.score(table.rows, here.data.server_test)  # type: ignore[arg-type]
    assert found.metrics["test/loss"] == pytest.approx(np.average(server.loss, weights=[2, 2, 1]))


def test_personal_weights_of_all_clients_are_known_in_a_simulation_of_those_that_do_not_test_too(here: Session) -> None:
    table = Table.of(rows_of(here))
    held = Deployment(np.zeros(N, np.int64), own_mix=OwnMix(np.array([0, 2])))
    some, everyone = figures(here, table, held, [1, 4]), figures(here, table, held)
    assert some.personal.shape == (N, 3)
    assert np.array_equal(some.personal, everyone.personal)  # type: ignore[arg-type]
    assert (some.personal[:, 1] == 0).all()
    np.testing.assert_allclose(some.personal.sum(axis=1), 1)
    assert some.arrays["tested"].tolist() == [1, 4]
    of_row = [scored(here, table.rows[0], c).accuracy[0] for c in (1, 4)]
    assert some.metrics["client/test_accuracy_of_row"] == pytest.approx(np.mean(of_row))
    nobody = figures(here, table, held, [])
    assert np.array_equal(nobody.personal, everyone.personal)  # type: ignore[arg-type]
    assert not nobody.arrays


class Elsewhere:
    """Answers with given losses; keeps what was asked."""

    def __init__(self, here: Session, losses: Sequence[Any], **more: Any) -> None:
        self.inner, self.losses, self.more = here.federation, losses, more
        self.asked: list[Request] = []

    def present(self, round: int) -> Any:
        return self.inner.present(round)

    def exchange(self, call: Call) -> list[Reply]:
        self.asked = list(call.requests)
        return [Reply(r.client, (self._tested(self.losses[r.client]),)) for r in call.requests]

    def _tested(self, loss: float | None) -> Tested:
        return Tested("test", loss, None if loss is None else 0.5, 0 if loss is None else 10, **self.more)


def test_elsewhere_what_is_not_sound_is_left_out_with_its_reason_and_so_is_who_has_no_samples(here: Session) -> None:
    table = Table.of(rows_of(here, 1))
    federation = Elsewhere(here, [0.5, float("nan"), None, 1.5, 3.0])
    found = figures(here, table, Deployment(np.zeros(N, np.int64)), [0, 1, 2, 3], federation, True)
    assert found.arrays["tested"].tolist() == [0, 3]
    assert found.metrics["client/test_loss"] == 1.0
    assert found.arrays["test_refused"].tolist() == [1]
    assert "Tested.loss: nan" in found.arrays["test_reason"][0]
    leaks = Elsewhere(here, [0.5] * N, weights=torch.ones(1, dtype=torch.float64))
    found = figures(here, table, Deployment(np.zeros(N, np.int64), own_mix=OwnMix(np.array([0]))), None, leaks, True)
    assert found.arrays["test_refused"].tolist() == list(range(N))
    assert found.personal is None


def test_elsewhere_a_private_row_is_tested_by_its_owner_alone_and_not_on_the_servers_set(here: Session) -> None:
    table = Table.of(rows_of(here), np.array([0, 3, -1]))
    federation = Elsewhere(here, [1.0] * N)
    held = Deployment(np.array([0, 0, 2, 1, 2]))  # client 1 holds what is client 0's
    found = figures(here, table, held, None, federation, True)
    asked = {r.client: r.tasks[0] for r in federation.asked}
    assert {c: t.row for c, t in asked.items() if isinstance(t, Test)} == {0: 0, 2: None, 3: 1, 4: None}
    loss = here.engine.score(table.rows[2:], here.data.server_test).loss[0]  # type: ignore[arg-type]
    assert found.metrics["test/loss"] == pytest.approx(loss)
    alone = figures(here, Table.of(rows_of(here, N), np.arange(N)), Deployment(np.arange(N)), None, federation, True)
    assert not any(name.startswith("test/") for name in alone.metrics)


# ---- the server's scores of rows that did not change


def of_ditto(rounds: int = 4, **sections: Any) -> hanse.Experiment:
    """Return a run in which two of six clients' own models change in a round."""
    asked = {"data": {"clients": 6}, "run": {"rounds": rounds}, **sections}
    return small_experiment({"name": "ditto", "clients_per_round": 2}, **asked)


def test_the_server_scores_only_rows_that_changed_and_finds_what_it_would_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[int]()
    real = Scorer.score_some

    def counted(self: Scorer, rows: torch.Tensor, pool: Any, some: Any) -> Any:
        asked.append(len(some))
        return real(self, rows, pool, some)

    monkeypatch.setattr(Scorer, "score_some", counted)
    some = hanse.run(of_ditto())
    assert asked == [2, 2, 2]  # all six in the first round, then those of the two who sat
    monkeypatch.setattr(loop, "still_known", lambda *_: None)
    every = hanse.run(of_ditto())
    assert len(asked) == 3
    for one, other in zip(untimed(some.metrics), untimed(every.metrics), strict=True):
        assert one == pytest.approx(other, rel=1e-6)  # how many models are multiplied at once may show


def test_who_resumes_knows_the_same_scores_and_none_of_other_data(tmp_path: Path) -> None:
    longer, out = of_ditto(4), tmp_path / "run"
    whole = hanse.run(longer)
    hanse.run(of_ditto(2), out=out)
    resumed = hanse.resume(out, rounds=4)
    assert untimed(resumed.metrics) == untimed(whole.metrics)
    state = load(max((out / "checkpoints").glob("*.safetensors")), torch.device("cpu")).state
    own = state.table.owner != SERVER
    assert np.isnan(state.on_server[:, ~own]).all()  # nobody holds the server's row
    assert state.on_server[0, own].mean() == pytest.approx(whole.metrics[-1]["test/loss"], rel=1e-12)
    other = build(of_ditto(4, data={"clients": 6, "client_test": 0.2, "seed": 1})).data
    folder, snapshot, said = RunDir.reopen(replace(build(resumed.experiment), data=other), Hold(out), other_data=True)
    folder.close()
    assert "other data" in said[0]
    assert snapshot.state.on_server is None
