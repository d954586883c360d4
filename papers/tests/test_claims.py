"""Claims as data, their words from kept runs, and the planner: what it chooses, where it stops, how it goes on."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from paper_cases import load_claims
from rich.console import Console
from scipy import stats
from typer.testing import CliRunner

from hanse.base.errors import UserError
from hanse.cli import app
from hanse.lab.job import Job, Step, made
from hanse.lab.kept import KeptFile
from hanse_papers.catalogue import PAPERS
from hanse_papers.claims import judge as judging
from hanse_papers.claims import planner
from hanse_papers.claims.claim import Claim, read_claims
from hanse_papers.claims.judge import Runs, judge, values
from hanse_papers.claims.planner import costs, decide, plan

BASE = """
[[claims]]
name = "a"
says = "GTFLAT is better"
where = "Table 2"
table = "table2-last"
scale = "smoke"
kind = "difference"
arm = "GTFedAvg"
against = ["FedAvg"]
"""
MORE = BASE + "margin = 1.0\n"


def claim_of(text: str = MORE, place: int = 0) -> Claim:
    return read_claims("gtflat", text)[place]


def result(job: Job, accuracy: Callable[[Job, int], float], cpu_seconds: float = 1.0) -> dict[str, Any]:
    tested = list(range(1, job.rounds + 1))
    found = {"key": job.key, "label": job.label, "given": job.sections, "status": "done", "tested": tested}
    found |= {"made": made()}
    curves = {"test/accuracy": [accuracy(job, r) for r in tested]}
    return found | {"experiment": job.experiment.sections(), "curves": curves, "cpu_seconds": cpu_seconds}


def is_gtflat(job: Job) -> bool:
    return "weigh" in job.sections["mechanism"]


def lead(job: Job, round: int) -> float:
    """GTFLAT is ahead by 6 to 9 points, uneven seeds."""
    seed = job.sections["run"]["seed"]
    return 0.5 + 0.01 * seed + 0.02 * round + (0.06 + 0.01 * (seed % 4) if is_gtflat(job) else 0.0)


def no_lead(job: Job, round: int) -> float:
    return 0.5 + 0.01 * (-1) ** job.sections["run"]["seed"] * is_gtflat(job)


def playing(accuracy: Callable[[Job, int], float], asked: list[Job] | None = None) -> Any:
    def work(job: Job, step: Step) -> dict[str, Any]:
        if asked is not None:
            asked.append(job)
        step(job.rounds)
        return result(job, accuracy)

    return work


# ---- the file


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ('arm = "GTFedAv"', "did you mean 'GTFedAvg'"), ('against = ["nobody"]', "against 'nobody'"),
        ('columns = ["alpha=0.5"]', "columns 'alpha=0.5'"), ('groups = ["mars"]', "groups 'mars'"),
        ('table = "table22"', "table22"), ('recipe = "mine"', "recipe 'mine'"), ('kind = "feeling"', "kind 'feel"),
        ('kind = "change"', "columns []"), ('kind = "equal"', "margin, against"), ("margin = 0", "margin 0"),
        ("margin = inf", "margin inf"), ("reading = { mean = [1, 5] }", "rounds 1 to 4"), ("arms = 3", "arms: "),
        ("reading = { mean = [3, 2] }", "rounds 1 to 4"), ('reading = "first"', "reading 'first'"),
        ('says = ""', "says"),
        ('reading = "best"', "control: is missing"), ("colour = 3", "colour: "), ("variants = 3", "variants 3"),
        (f'why = "{"a " * 41}"', "40 words"), ("lower = 1", "lower 1"), ("seen = -1", "seen -1"),
        ('condition = "alive"', "condition 'alive'"), ("condition = { trades = true }", "condition {'trades'"),
        ("later = { first = 20 }", "later {'first': 20}"), ('later = { first = 9, seen = 5, arm = "x" }', "arm 'x'"),
        ('later = { first = 9, seen = 5, kind = "contrast" }', "later: columns []"),
        ("first = 100000000000000000000", "first 1000"), ("margin = -1", "margin -1"), ("margin = nan", "margin nan"),
        ('where = "a\\nb"', "where "), ('says = " "', "says "), ("condition = { trades = 99 }", "condition {'trades'"),
        ('against = ["FedAvg", "FedAvg"]', "against "), ('against = ["GTFedAvg"]', "arm 'GTFedAvg'"),
        ('twin = "GTFedAvg"', "arm 'GTFedAvg'"), ("later = { first = 20, seen = 1000 }", "later: first 20, seen 1000"),
        ("later = { first = 4, seen = 5 }", "later: first 4, seen 5"),
        ('later = { first = 20, seen = 5, name = "b" }', "later {'first': 20"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_claim_is_one_line_with_field_value_and_what_is_allowed(field: str, said: str) -> None:
    key = field.split(" = ")[0]
    lines = [line for line in MORE.splitlines() if not line.startswith(f"{key} =")]
    with pytest.raises(UserError) as wrong:
        read_claims("gtflat", "\n".join([*lines, field]))
    [line] = wrong.value.lines
    assert line.startswith("gtflat/claims.toml: a: ")
    assert said in line


def test_all_mistakes_of_a_file_are_told_together() -> None:
    with pytest.raises(UserError) as wrong:
        read_claims("gtflat", MORE.replace('"GTFedAvg"', '"x"') + MORE.replace('name = "a"', "") + MORE + MORE)
    assert [line.split(": ")[1] for line in wrong.value.lines] == ["a", "claim 2", "a"]
    assert "name a: is there twice" in wrong.value.lines[2]
    wrong_files = {"[[claims]": "cannot be read", "claims = 3": "claims are written as", "x = 1": "x: there is"}
    for text, said in wrong_files.items():
        with pytest.raises(UserError, match=said):
            read_claims("gtflat", text)


def test_a_row_with_several_variants_needs_one_by_name() -> None:
    text = MORE.replace("table2-last", "table1").replace("GTFedAvg", "GreedyFed")
    with pytest.raises(UserError, match=r"variants.GreedyFed: "):
        read_claims("greedyfed", text)
    [claim] = read_claims("greedyfed", text + 'variants = { GreedyFed = "mean" }\n')
    assert {arm.variant.name for setting in claim.arms for arm in setting[:1] if arm.variant} == {"mean"}


def test_printed_effect_margin_twin_and_control() -> None:
    claim = claim_of(BASE.replace("smoke", "paper") + 'groups = ["MNIST"]\n')
    assert claim.printed == pytest.approx((91.01 - 89.65 + 94.27 - 94.11) / 2)
    assert claim.margin == pytest.approx(claim.printed / 2)
    below = BASE.replace("smoke", "paper").replace("GTFedAvg", "FedProx")
    with pytest.raises(UserError, match="margin: is missing"):
        read_claims("gtflat", below + 'groups = ["MNIST"]\ncolumns = ["alpha=1"]')
    both = BASE.replace("smoke", "paper") + 'groups = ["MNIST"]\ntwin = "FedAvg, uniform"\ncontrol = "FedAvg"\n'
    first, twin = read_claims("gtflat", both)  # the control is what it is compared with already
    assert (first.name, first.role, claim.name) == ("a, baseline", "claim", "a")
    assert (twin.name, twin.role, twin.printed, twin.margin) == ("a, twin", "twin", None, first.margin)
    assert [arm.cell.algorithm for arm in twin.arms[0]] == ["GTFedAvg", "FedAvg, uniform"]


# ---- words


def kept_with(tmp_path: Path, claim: Claim, accuracy: Callable[[Job, int], float], seeds: int) -> Runs:
    runs = Runs(tmp_path)
    for seed in range(seeds):
        for job in planner.jobs_of(claim, seed):
            runs.kept.write(job, result(job, accuracy))
    return runs


def test_a_word_comes_from_the_paired_seeds(tmp_path: Path) -> None:
    claim = claim_of()
    [before] = judge([claim], Runs(tmp_path))
    assert (before.judged.word, before.judged.needed) == ("not run", 5)
    runs = kept_with(tmp_path, claim, lead, 3)
    [few] = judge([claim], runs)
    assert (few.judged.word, few.seeds, few.judged.needed) == ("open", 3, 5)
    runs = kept_with(tmp_path / "all", claim, lead, 5)
    [verdict] = judge([claim], runs)
    d = np.array([6.0, 7, 8, 9, 6])
    assert (values(claim, runs)[:, :, 0] - values(claim, runs)[:, :, 1]).mean(axis=1) == pytest.approx(d)
    assert verdict.judged.effect.mean == pytest.approx(d.mean())
    half = stats.t.isf(0.05 * 0.25 / 2, 4) * d.std(ddof=1) / np.sqrt(5)
    assert verdict.judged.low == pytest.approx(d.mean() - half)
    assert verdict.judged.word == "confirmed"
    against = claim_of(MORE.replace('"GTFedAvg"', '"x"').replace('"FedAvg"', '"GTFedAvg"').replace('"x"', '"FedAvg"'))
    assert judge([against], runs)[0].judged.word == "contradicted"


def test_readings(tmp_path: Path) -> None:
    def rising(job: Job, round: int) -> float:
        return [0.10, 0.40, 0.30, 0.20][round - 1] + (0.1 if is_gtflat(job) else 0.0)

    runs = kept_with(tmp_path, claim_of(), rising, 1)
    wanted = {
        'reading = "last"': (30, 20),
        'reading = "best"\ncontrol = "FedAvg"': (50, 40),
        "reading = { mean = [2, 3] }": (45, 35),
        'reading = "window"': (30, 20),  # the last fifth of four rounds is one
        "reading = { rounds = 45.0 }": (2, 5),  # never: one test after the last
        'reading = { rounds = "against" }': (0, -0.0),
    }
    for reading, (ours, theirs) in wanted.items():
        assert values(claim_of(MORE + reading), runs)[0, 0].tolist() == pytest.approx([ours, theirs]), reading
    # GTFLAT is as good as FedAvg's best (40 %, less half a point) after 2 rounds, as FedAvg itself


def on(kind: str, job: Job, accuracy: Callable[[Job, int], float]) -> dict[str, Any]:
    return result(job, accuracy) | {"made": {"commit": None, "processor": "P", "instructions": kind}}


def test_pairs_are_of_one_kind_of_machine_and_a_floor_is_used_where_they_are_not(tmp_path: Path) -> None:
    claim = claim_of()
    runs = Runs(tmp_path)
    for seed in range(5):
        for job in planner.jobs_of(claim, seed):
            runs.kept.write(job, on("A" if is_gtflat(job) else "B", job, lead))
    [verdict] = judge([claim], Runs(tmp_path))
    sd = np.array([6.0, 7, 8, 9, 6]).std(ddof=1)
    assert verdict.floor is None
    assert verdict.judged.effect.error == pytest.approx(2 * sd / np.sqrt(5))
    for job in planner.jobs_of(claim, 0):  # four repeats measure the floor of the whole table
        again = on("C", job, lambda job, r: lead(job, r) + (0.08 if is_gtflat(job) else 0.06))
        runs.kept.write(job, again)
    [verdict] = judge([claim], Runs(tmp_path))
    assert verdict.floor == pytest.approx(np.sqrt((8**2 + 6**2) / 2) / np.sqrt(len(claim.arms)))
    d = np.array([8.0, 7, 8, 9, 6])  # seed 0 is paired on C
    assert verdict.judged.effect.mean == pytest.approx(d.mean())
    assert verdict.judged.effect.error == pytest.approx(max(verdict.floor, d.std(ddof=1)) / np.sqrt(5))
    for seed in range(1, 5):
        for job in (job for job in planner.jobs_of(claim, seed) if is_gtflat(job)):
            runs.kept.write(job, on("B", job, lead))
    assert judge([claim], Runs(tmp_path))[0].floor == 0.0


def test_a_claim_computed_without_chance_is_exact() -> None:
    claims = {claim.name: claim for claim in load_claims("gtflat")}
    [verdict] = judge([claims["Example 1"]], Runs(Path("nowhere")))
    assert (verdict.judged.word, verdict.seeds) == ("confirmed", 0)
    text = BASE.replace("table2-last", "example1").replace("difference", "equal").replace("GTFedAvg", "closed form")
    text = text.replace('against = ["FedAvg"]\n', 'groups = ["X, the final state"]\nmargin = 0.005\nover = "each"\n')
    assert judge(read_claims("gtflat", text), Runs(Path("nowhere")))[0].judged.word == "contradicted"


# ---- the planner


def test_the_plan_takes_first_what_decides_most_for_its_cost(tmp_path: Path) -> None:
    text = MORE + MORE.replace('"a"', '"b"').replace('["FedAvg"]', '["FedAvg, uniform"]')
    text += MORE.replace('"a"', '"dear"').replace('["FedAvg"]', '["FedGen"]')
    claims = read_claims("gtflat", text)
    runs = Runs(tmp_path)
    for seed in range(4):
        for job in planner.jobs_of(claims[0], seed):
            runs.kept.write(job, result(job, lead))
    for job in planner.jobs_of(claims[2], 0):
        if job.sections["mechanism"]["name"] == "fedgen":
            runs.kept.write(job, result(job, lead, cpu_seconds=100.0))
    steps = plan(judge(claims, runs), runs)
    assert [step.claims for step in steps] == [("a",), ("b",), ("dear",)]
    assert [len(step.jobs) for step in steps] == [4, 10, 8]
    assert steps[0].seconds == pytest.approx(4.0)
    assert steps[2].seconds == pytest.approx(800.0)
    assert costs(runs)(steps[0].jobs[0]) == pytest.approx(1.0)


def test_it_plays_until_the_claim_is_decided_and_no_further(tmp_path: Path) -> None:
    claim, asked = claim_of(), list[Job]()
    [verdict], failures = decide({tmp_path: [claim]}, work=playing(lead, asked))
    assert (verdict.judged.word, verdict.seeds, failures) == ("confirmed", 5, {})
    assert len(asked) == len({job.key for job in asked}) == 20  # two arms, two settings, five seeds
    assert decide({tmp_path: [claim]}, work=playing(lead, asked))[0][0].seeds == 5
    assert len(asked) == 20


@pytest.mark.by_turns(3, 0)
def test_it_stops_after_the_last_look_and_says_how_many_seeds_would_do(tmp_path: Path) -> None:
    [verdict], _ = decide({tmp_path: [claim_of(BASE + "margin = 0.1\n")]}, work=playing(no_lead))
    assert (verdict.judged.word, verdict.seeds) == ("open", 20)
    assert verdict.judged.needed > 20
    [wide], _ = decide({tmp_path / "wide": [claim_of(BASE + "margin = 9.0\n")]}, work=playing(no_lead))
    assert (wide.judged.word, wide.seeds) == ("no such effect", 5)


def test_hours_end_it_and_it_goes_on_where_it_was(tmp_path: Path) -> None:
    ticks = iter([0.0, *[0.1 * n for n in range(1, 6)], *[9e9] * 99])
    asked: list[Job] = []
    decide({tmp_path: [claim_of()]}, hours=1, work=playing(lead, asked), clock=lambda: next(ticks))
    assert 0 < len(asked) < 20
    assert len(KeptFile(tmp_path).lines()) == len(asked)
    decide({tmp_path: [claim_of()]}, work=playing(lead, asked))
    assert len(asked) == len({job.key for job in asked}) == 20
    with pytest.raises(UserError, match="--hours 0: must be above 0"):
        decide({tmp_path: [claim_of()]}, hours=0)


def test_a_run_that_fails_is_told_and_its_claim_left(tmp_path: Path) -> None:
    asked: list[Job] = []

    def work(job: Job, step: Step) -> dict[str, Any]:
        asked.append(job)
        bad = is_gtflat(job) and job.sections["run"]["seed"] == 1
        failed = {"key": job.key, "label": job.label, "given": job.sections, "status": "failed", "error": "E: x"}
        return failed if bad else result(job, lead)

    console = Console(file=StringIO(), width=200)
    [verdict], failures = decide({tmp_path: [claim_of()]}, work=work, console=console)
    assert (verdict.judged.word, verdict.seeds) == ("open", 1)
    assert list(failures.values()) == ["E: x"]
    assert ": failed: E: x\n" in console.file.getvalue()  # at once, not only at the end
    assert next(iter(failures)) == asked[-1].label  # no more of its runs is played
    assert all("GTFedAvg, seed 1" in label for label in failures)


def test_what_another_kind_of_machine_played_is_played_again_with_what_it_is_compared_with(tmp_path: Path) -> None:
    claim, runs, asked = claim_of(), Runs(tmp_path), list[Job]()
    for seed in range(2):  # seed 0 is whole on the other machine; of seed 1 one arm is there
        for job in (job for job in planner.jobs_of(claim, seed) if seed == 0 or is_gtflat(job)):
            runs.kept.write(job, on("other", job, lead))
    [step] = plan(judge([claim], runs), runs)
    assert (len(step.jobs), step.again) == (4 * 4, 2)
    [verdict], _ = decide({tmp_path: [claim]}, work=playing(lead, asked))
    assert (verdict.judged.word, verdict.seeds, verdict.floor) == ("confirmed", 5, 0.0)
    assert sum(job.sections["run"]["seed"] == 1 for job in asked) == 4
    assert all(len(Runs(tmp_path).of(job)) == 2 for job in planner.jobs_of(claim, 1) if is_gtflat(job))


def test_a_later_reading_is_decided_by_later_seeds_and_shares_the_alpha(tmp_path: Path) -> None:
    claim, later = read_claims("gtflat", MORE + 'later = { first = 20, seen = 5, reading = "window" }\n')
    assert (later.name, later.role, later.table) == ("a, later reading", "later", claim.table)
    assert (claim.weight, later.weight, list(later.seeds)) == (0.5, 0.375, list(range(20, 40)))
    assert (claim.reading.kind, later.reading.kind, later.margin) == ("last", "window", claim.margin)
    runs = kept_with(tmp_path, claim, lead, 5)
    first, second = judge([claim, later], runs)
    assert (first.seeds, second.seeds, second.judged.word) == (5, 0, "not run")
    assert first.judged.level == pytest.approx(0.05 * 0.5 / 0.875)
    assert {job.sections["run"]["seed"] for job in plan([second], runs)[0].jobs} == set(range(20, 25))


def of_kind(kind: str, more: str = "") -> Claim:
    return claim_of(MORE.replace('"difference"', f'"{kind}"') + more)


def test_harmless_is_not_below_the_margin(tmp_path: Path) -> None:
    def a_bit_less(job: Job, round: int) -> float:
        return 0.5 - (0.002 + 0.001 * (job.sections["run"]["seed"] % 3) if is_gtflat(job) else 0.0)

    runs = kept_with(tmp_path, claim_of(), a_bit_less, 5)
    for margin, word in ((1.0, "confirmed"), (0.1, "contradicted")):
        [verdict] = judge([replace(of_kind("harmless"), margin=margin)], runs)
        assert verdict.judged.word == word
        assert verdict.judged.effect.mean == pytest.approx(-0.28)
        assert (verdict.judged.low > -margin) == (word == "confirmed")


def test_spread_compares_deviations_over_the_seeds(tmp_path: Path) -> None:
    def steadier(job: Job, round: int) -> float:
        return 0.5 + (0.1 if is_gtflat(job) else 1.0) * (0.02 * (job.sections["run"]["seed"] - 4.5))

    [verdict] = judge([of_kind("spread")], kept_with(tmp_path, claim_of(), steadier, 10))
    assert verdict.judged.effect.mean == pytest.approx(0.9 * 5.0)
    assert verdict.judged.word == "confirmed"


def test_a_contrast_is_the_interaction_of_four_columns() -> None:
    four = np.array([[[9.0, 8.0], [2.0, 3.0], [1.0, 2.0], [6.0, 5.0]]])  # [seed, column, arm]
    claim = SimpleNamespace(kind="contrast")
    assert judging._differences(claim, four).tolist() == [[[6.0 - 4.0]]]  # type: ignore[arg-type]


LIE = """
[[claims]]
name = "a"
says = "A lie does not pay"
where = "Table 4"
table = "lies"
recipe = "authors"
scale = "smoke"
kind = "difference"
arm = "honest"
against = ["cost x10"]
columns = ["utility"]
margin = 1
condition = { trades = 0 }
first = 20
"""


def test_a_claim_about_a_dead_market_is_not_testable(tmp_path: Path) -> None:
    [claim] = read_claims("ipfl", LIE)

    def word(alone: Sequence[float], sold: Sequence[int]) -> str:
        runs = Runs(tmp_path / f"{alone} {sold}")
        for seed in claim.seeds[:5]:
            for job in planner.jobs_of(claim, seed):
                last = (9.0 + seed - 5 * ("behaviour" in job.sections)) * (seed in sold)
                curves = {"utility/client/0": [0.0, 0.0, last], "market/isolated": list(alone)}
                runs.kept.write(job, result(job, lead) | {"curves": curves})
        return judge([claim], runs)[0].judged.word

    dead = "not testable at this scale"
    assert word([6.0, 5.0, 5.0], range(20, 25)) != dead  # five of ten clients trade in two of three tested rounds
    assert word([6.0, 6.0, 0.0], range(20, 25)) == dead
    assert word([0.0, 0.0, 0.0], range(20, 23)) == dead  # client 0 trades in three of five seeds
    assert word([0.0, 0.0, 0.0], range(20, 24)) != dead


def test_what_cannot_be_decided_is_not_planned(tmp_path: Path) -> None:
    claim = claim_of(MORE + 'cannot = "the data are not here"\n')
    runs = kept_with(tmp_path, claim, lead, 3)
    [verdict] = judge([claim], runs)
    assert (verdict.judged.word, plan([verdict], runs)) == ("cannot be decided here", [])
    assert judge([claim], kept_with(tmp_path / "more", claim, lead, 5))[0].judged.word == "confirmed"


def test_it_waits_while_there_is_a_pause_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pause, waited, rounds = tmp_path / "pause", list[float](), list[int]()

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        pause.unlink()

    def work(job: Job, step: Step) -> dict[str, Any]:
        step(1)
        pause.touch()
        step(1)
        return {}

    monkeypatch.setattr(planner.time, "sleep", sleep)
    pause.touch()
    planner.play_pausing(planner.jobs_of(claim_of(), 0)[0], rounds.append, pause=pause, work=work)
    assert (len(waited), rounds) == (2, [1, 1])


KILLED = """
import sys
from io import StringIO
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_claims import claim_of, lead, result
from hanse_papers.claims.planner import decide
played = 0
def work(job, step):
    global played
    played += 1
    if played == 4:
        print("ready", flush=True)
        sys.stdin.read()
    return result(job, lead)
decide({Path(sys.argv[1]): [claim_of()]}, work=work)
"""


@pytest.mark.slow
def test_it_can_be_killed_at_any_time(tmp_path: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(tmp_path), str(Path(__file__).parent)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(UserError, match=f"in use by process {process.pid}"):
            decide({tmp_path: [claim_of()]}, work=playing(lead))
        os.kill(process.pid, signal.SIGKILL)
    asked: list[Job] = []
    [verdict], _ = decide({tmp_path: [claim_of()]}, work=playing(lead, asked))
    assert (verdict.judged.word, len(asked)) == ("confirmed", 17)


# ---- the command


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["reproduce", *words])


@pytest.mark.slow
def test_the_plan_of_all_papers_says_how_each_claim_is_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    out.mkdir()
    for source in ("mnist", "fashion_mnist", "cifar10"):  # a plan asks which files are there and opens none
        (data / f"{source}.train.npz").touch()
    monkeypatch.setenv("HANSE_DATA", str(data))
    shown = call("--plan", "--json", "--out", str(out))
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert found["plan"][0]["seconds"] / found["plan"][0]["worth"] < found["plan"][-1]["seconds"]
    for row in found["claims"]:
        assert row["reading"]
        assert set(row["drawn_anew"]) <= {"split", "start", "order"}
        assert {"condition", "seen", "first", "cannot", "margin"} <= row.keys()
        assert len(row["rows"]) >= (2 if row["role"] in ("twin", "control") else 1)
    assert all(step["worth_an_hour"] == pytest.approx(3600 * step["worth"] / step["seconds"]) for step in found["plan"])
    split = {row["name"]: "split" in row["drawn_anew"] for row in found["claims"]}
    assert (split["the game, baseline"], split["the game, split anew, baseline"]) == (False, True)
    assert {row["paper"] for row in found["claims"]} == set(PAPERS)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("gtflat table2 --decide", "--decide, --plan, --hours"), ("gtflatt --plan", "did you mean 'gtflat'"),
        ("gtflat --decide --hours 0", "--hours 0"), ("gtflat --hours 2", "--decide, --plan, --hours"),
        ("gtflat --plan --decide", "--decide, --plan, --hours"), ("gtflat --plan --seeds 3", "--seeds"),
        ("gtflat --plan --workers 2", "--workers 2"),
        ("gtflat --seeds 3 --workers 2", "--seeds, --workers, --out"),
    ],
)  # fmt: skip
def test_what_the_command_refuses(tmp_path: Path, words: str, said: str) -> None:
    shown = call(*words.split(), "--out", str(tmp_path))
    assert isinstance(shown.exception, UserError)  # which the command line prints, and ends with 2
    assert said in str(shown.exception)


def test_each_setting_is_compared_with_its_own_printed_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def arm(printed: float) -> SimpleNamespace:
        return SimpleNamespace(variant="v", cell=SimpleNamespace(published=SimpleNamespace(mean=printed)))

    asked: list[Any] = []
    monkeypatch.setattr(judging.statistics, "equality", lambda off, margin, floor: asked.append(off.tolist()))
    claim = SimpleNamespace(kind="equal", over="each", lower=False, printed=None, margin=1.0)
    claim.arms = ((arm(88.0),), (arm(53.0),))
    judging.effect_of(claim, np.tile([[[90.0], [50.0]]], (5, 1, 1)), None)  # type: ignore[arg-type]
    assert asked == [[-3.0] * 5, [2.0] * 5]  # the furthest first, which is named where several tie
