"""A payment rule and a behaviour that nobody knows speak for themselves: in reports, statements and live."""

import html
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from commands import invoke
from experiments import digits
from reports_cases import metric, seat, write_run

import hanse
from hanse.core.entry import TOKEN, Transaction, client, pool
from hanse.core.part import Mechanism, Settlement, SettlePart, State, View
from hanse.core.port import Reply, Request
from hanse.core.telling import (
    About,
    BeforeJoining,
    Conduct,
    Kind,
    PartDescription,
    Plot,
    Telling,
    Terms,
    describe,
    write_about,
)
from hanse.federation.behaviour import BEHAVIOURS, Attacker, Behaviour, Liar, Me, Noisy, OfSome, with_updates
from hanse.mechanisms.baselines import fedavg
from hanse.mechanisms.registry import PARTS
from hanse.reports.groups import group_runs, honest_of
from hanse.reports.part_charts import part_charts, plotted
from hanse.reports.prospect import prospect
from hanse.reports.report import figures
from hanse.reports.statement import statement
from hanse.reports.words import said
from hanse.runs.run_record import load_run, load_runs

FEE = 2 * TOKEN


@dataclass(frozen=True)
class Toll(SettlePart):
    """Whoever trains pays a toll into a pool: a rule that nothing in hanse knows."""

    tokens: float = 2.0

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        if view.stage != "close":
            return Settlement(), state
        units = round(self.tokens * TOKEN)
        payers = np.unique(view.trained.seats.client).tolist()
        paid = tuple(
            Transaction(f"toll/{c}", "toll", ((client(c), -units), (pool("bridge"), units)), "the bridge")
            for c in payers
        )
        metrics = {f"toll/gate {c % 2}/tokens": self.tokens * (1 + view.round) for c in payers}
        worth = {f"calm/client/{c}": 5.0 + c for c in range(view.context.num_clients)}
        return Settlement(transactions=paid, metrics=metrics | worth), state

    def tells(self, slots: frozenset[str]) -> Telling:
        return Telling(
            f"It pays {self.tokens:g} tokens at the bridge whenever it trains.",
            "Whoever trains crosses a bridge & pays its <toll>.",
            "The bridge",
            (Plot("Tolls at each gate", "toll/gate */tokens", "tokens", "gate *", "East and west.", "bars"),),
            (Kind("toll", "tolls at the bridge"),),
        )

    def terms(self, joining: BeforeJoining) -> Terms:
        units = round(self.tokens * TOKEN)
        return Terms((f"A toll in each of {joining.rounds} rounds.",), (), (), units * joining.rounds, units)


@dataclass(frozen=True)
class Sleeper(OfSome):
    """Sends a model of zeros: a behaviour that nothing in hanse knows."""

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        nothing = with_updates(request, reply, lambda task, one: replace(one, row=one.row * 0))
        return nothing if me.id in self.clients else reply

    def tells(self, num_clients: int, seed: int) -> Conduct:
        return Conduct("sleepers", "Sleepers send zeros <b>all night</b>.", self.those(num_clients), cheats=True)


def tolled() -> Mechanism:
    return replace(fedavg(3), name="tolled", settle=Toll())


EXPERIMENT = digits(
    {"name": f"{__name__}:tolled", "value": "leave_one_out"}, 6,
    data={"partition": {"alpha": 1.0}, "client_test": 0.2}, behaviour={f"{__name__}:Sleeper": {"clients": [1, 4]}},
    engine={"train": "stacked"}, run={"seed": 2},
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hanse.run(EXPERIMENT, out=tmp_path_factory.mktemp("told") / "run").path


# ---- a rule and a behaviour of somebody's own


def test_their_charts_have_the_recorded_numbers(folder: Path) -> None:
    run = load_run(folder)
    tolls = {chart.key.partition("-")[0]: chart for chart in figures(group_runs([run]))}["told"].marks
    last = {name: run.series(f"toll/{name}/tokens")[1][-1] for name in tolls.labels}
    assert set(last) <= {"gate 0", "gate 1"}
    assert tolls.series[0].values.tolist() == list(last.values())
    assert honest_of(run).tolist() == [0, 2, 3, 5]


def test_a_statement_has_their_words(folder: Path) -> None:
    done = invoke("statement", folder, "--client", "4")
    assert done.exit_code == 0, done.output
    page = (folder / "statements" / "client-4.html").read_text()
    assert "It pays 2 tokens at the bridge whenever it trains." in page
    assert "this client does in this run (sleepers): Sleepers send zeros &lt;b&gt;all night&lt;/b&gt;.</p>" in page
    if statement(folder, 4).money.lines[1:]:
        assert "tolls at the bridge" in page
    other = statement(folder, 0)  # nobody is told what others do
    assert other.told == ("It pays 2 tokens at the bridge whenever it trains.",)
    paid = sum(2 * TOKEN for c in load_run(folder).clients if c.client == 0)
    assert {f.what: f.paid for f in other.money.figures}.get("tolls at the bridge", 0) == paid


def test_values_that_only_rank_are_called_by_their_name_and_not_worth(tmp_path: Path) -> None:
    mechanism = {"name": "fedavg", "value": "first_order_clients"}
    hanse.run(digits(mechanism, 4, 2, data={"client_test": 0.2}, model="mlp"), out=tmp_path / "run")
    done, mine = invoke("statement", tmp_path / "run", "--all"), statement(tmp_path / "run", 0)
    assert done.output.count("Whether joining paid") == 4  # a line each
    told = [said("worth", mine, mine.client), *mine.lines]
    assert told[0].startswith(f"Its {load_run(tmp_path / 'run').about.measure.plural} sum to")
    assert "worth" not in " ".join([*told, done.output])


def test_before_joining_a_rule_says_its_own_terms() -> None:
    found = prospect(EXPERIMENT, 3)
    assert (found.most, found.most_round, found.pays) == (3 * FEE, FEE, ("A toll in each of 3 rounds.",))


# ---- built-in ones


def test_every_built_in_rule_and_behaviour_is_sound() -> None:
    for name, make in PARTS["settle"].items():
        assert describe({"settle": make()}, {}, None, None, 5, 0).parts[0].telling.report, name
    for name, make in BEHAVIOURS.items():
        assert describe({}, {name: make()}, None, None, 5, 0).conducts[0].sentence, name
    assert describe({}, {"noisy": Noisy(sigma=0.0)}, None, None, 5, 0).conducts == ()


def test_whoever_cheats_is_not_honest_whatever_else_clients_do(tmp_path: Path) -> None:
    """Beside noise, of which some send more, nobody was taken for a cheat."""
    acting: dict[str, Behaviour] = {"noisy": Noisy(sigma=0.1), "liar": Liar(clients=(1,)), "attacker": Attacker((3,))}
    path = write_run(tmp_path / "run", [metric(0)], [seat(0, c, 1.0) for c in range(6)])
    write_about(path, describe({}, acting, None, None, 6, 5))
    assert honest_of(load_run(path)).tolist() == [0, 2, 4, 5]


# ---- patterns and charts


def test_a_chart_of_seeds_has_a_band_and_lines_in_natural_order(tmp_path: Path) -> None:
    said = About((PartDescription("settle", "X", Telling(charts=(Plot("T", "t */x", "u", "tier *", factor=100.0),))),))
    paths = []
    for s, rise in enumerate((0.0, 0.2)):
        lines = [metric(r, **{f"t {k}/x": 0.1 * r + rise for k in (10, 2)}) for r in range(3)]
        paths.append(write_run(tmp_path / str(s), lines, (), {"run": {"seed": s}}))
        write_about(paths[-1], said)
    (chart,) = part_charts(group_runs(load_runs(paths)))
    marks = chart.marks
    assert [line.name for line in marks.lines] == ["tier 2", "tier 10"]
    assert marks.lines[0].x.tolist() == [1.0, 2.0, 3.0]
    np.testing.assert_allclose(marks.lines[0].y, [10.0, 20.0, 30.0])
    low, high = marks.lines[0].low, marks.lines[0].high
    np.testing.assert_allclose(high - low, 2 * 100 * np.std([0.0, 0.2], ddof=1))
    (group,) = group_runs(load_runs(paths))
    assert plotted(group, Plot("T", "nothing/*"), "s", "k") is None


# ---- words of strangers


@pytest.mark.usefixtures("undrawn")
def test_words_of_a_stranger_are_text_wherever_they_stand(folder: Path, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    path = shutil.copytree(folder, tmp_path / "run")
    said = Telling(evil, evil, evil, (Plot(evil, "toll/gate */tokens", evil, evil, evil),), (Kind("toll", evil),))
    write_about(path, About((PartDescription("settle", evil, said),), (Conduct(evil, evil, (1,), cheats=True),)))
    done = invoke("report", path, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert evil not in page
    assert html.escape(evil) in page
    assert invoke("statement", path, "--client", "1").exit_code == 0
    assert evil not in (path / "statements" / "client-1.html").read_text()
