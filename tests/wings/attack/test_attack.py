"""The search for the cheat that pays best: its space, what it finds, its statistics, and going on."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import hanse
from hanse.cli import app
from hanse.core.entry import TOKEN
from hanse.lab.job import Job, Step
from hanse.runs.config import Experiment
from hanse.wings.attack.attack_command import sentences
from hanse.wings.attack.search import (
    Attacked,
    Try,
    _Watched,
    interval,
    search,
    small,
    space_of,
)

SECTIONS = small("ipfl")


def space(mechanism: str) -> dict[str, tuple[Any, ...]]:
    return {knob.key: knob.values for knob in space_of(hanse.Experiment(**small(mechanism)))}


def test_the_space_is_read_off_what_the_mechanism_asks() -> None:
    always = {"sends", "of", "scale", "times.samples", "times.steps", "times.loss", "silent", "since", "leaves"}
    always |= {"adds.copied", "adds.noise", "longer", "trains_on"}
    market = {"times.declare.cost", "times.declare.eagerness", "says.declare.cost", "says.declare.eagerness"}
    scores = {"times.accuracy"}  # each has its own model scored
    spaces = {name: space(name) for name in ("ipfl", "ipfl_posted", "pifl", "fedavg")}
    assert spaces["ipfl"].keys() == always | scores | market | {"start"}
    sale = {"says.offer.sell", "times.offer.least", "says.offer.least", "says.buy.sellers", "times.buy.weights"}
    assert spaces["ipfl_posted"].keys() == always | scores | sale | {"start"}
    assert spaces["ipfl"]["start"] == ("sent",)
    assert spaces["ipfl_posted"]["start"] == ("kept",)  # of the other nothing differs
    assert ["echo" in found["sends"] for found in spaces.values()] == [True, True, False, False]  # who buys models
    assert spaces["pifl"].keys() == always | scores | {"says.bid.tiers"}
    assert spaces["fedavg"].keys() == always
    assert (spaces["fedavg"]["since"], spaces["fedavg"]["leaves"]) == ((1, 4), (1, 4, 7))  # from round 1 on, too
    assert spaces["fedavg"]["trains_on"] == ("judge", "public")
    assert {3.0, 10.0, 50.0} <= set(spaces["fedavg"]["scale"])


def earning(worth: Any, played: list[Job]) -> Any:
    """Return what plays a job without training: what client 0 ends with is ``worth`` of its deviation and the seed."""

    def work(job: Job, step: Step) -> dict[str, Any]:
        played.append(job)
        deviant = job.sections["behaviour"].get("deviant", {})
        earned = worth(deviant, job.sections["run"]["seed"])
        return {
            "key": job.key, "label": job.label, "given": job.sections, "status": "done", "made": {},
            "experiment": job.experiment.sections(), "measure": "utility", "outcome": [earned] + [10.0] * 7,
            "granted": 0.0, "trades_of": {}, "cpu_seconds": 0.1, "tested": [], "curves": {}, "rounds": 8,
        }  # fmt: skip

    return work


def size_pays(deviant: dict[str, Any], seed: int) -> float:
    factor = deviant.get("times", {}).get("samples", 1.0)
    return 10.0 + seed % 2 + (factor - 1 if factor <= 2 else -1) - (deviant.get("sends", "trained") != "trained")


def test_the_best_deviation_is_found_made_simple_and_confirmed(tmp_path: Path) -> None:
    played: list[Job] = []
    found = search(SECTIONS, [0], tmp_path, tries=60, seeds=4, work=earning(size_pays, played))
    assert found.best.deviation == {"times.samples": 2.0}  # nothing that earns nothing is left beside it
    assert found.best.gain(found.fresh) == (1.0, 1.0, 1.0)
    assert found.pays
    assert sentences(found)[0].startswith("Pays: samples times 2.")
    assert not found.idle.contributes
    assert (found.searched, found.fresh) == ([0, 1, 2], [3, 4, 5, 6])
    assert found.scale == pytest.approx(10 + 3 / 7)
    assert len(found.tries) == 60
    # the confirmation's seeds are not the search's: only the two that were chosen, and honesty, were played with them
    fresh = {job.label.rpartition(",")[0] for job in played if job.sections["run"]["seed"] > 2}
    assert fresh == {"honest", found.best.said, found.idle.said}
    again: list[Job] = []
    same = search(SECTIONS, [0], tmp_path, tries=60, seeds=4, work=earning(size_pays, again))
    assert again == []  # everything was kept
    assert [one.deviation for one in same.tries] == [one.deviation for one in found.tries]
    file = next(iter((tmp_path / "jobs").glob("*.json")))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"outcome": [1.0]}))  # damaged: it is played again
    search(SECTIONS, [0], tmp_path, tries=60, seeds=4, work=earning(size_pays, again))
    assert [f"{job.key}.json" for job in again] == [file.name]
    counter = hanse.Experiment.read(tmp_path / "attack.toml")
    assert counter.behaviour["deviant"] == {"clients": [0], "times": {"samples": 2.0}}


def test_luck_is_not_called_a_gain(tmp_path: Path) -> None:
    def lucky(deviant: dict[str, Any], seed: int) -> float:
        return 10.0 + (5.0 if deviant and seed < 3 and deviant.get("silent") else 0.0)

    found = search(SECTIONS, [0], tmp_path, tries=40, work=earning(lucky, []))
    assert found.best.deviation == {"silent": True}
    assert found.best.gain(found.searched)[0] == 5.0
    assert found.best.gain(found.fresh)[0] == 0.0
    assert not found.pays


def test_the_bound_on_the_share_that_pays() -> None:
    tries = [Try({"silent": True}, {0: gain}, uniform=True) for gain in [0.0] * 59 + [9.0]]
    nothing = Attacked([0], 10.0, "utility", tries[:59], tries[0], None, [0], [1], "tries")
    assert nothing.paying_share()[:2] == (0, 59)
    assert nothing.paying_share()[2] == pytest.approx(1 - 0.05 ** (1 / 59))  # the closed form for none of n
    one = Attacked([0], 10.0, "utility", tries, tries[0], None, [0], [1], "tries").paying_share()
    assert one[:2] == (1, 60)
    assert one[2] == pytest.approx(0.0766, abs=2e-4)  # Clopper and Pearson's table
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - 2.4841, 2 + 2.4841), abs=1e-4)


@pytest.mark.slow
def test_the_size_lie_is_found_in_a_real_market(tmp_path: Path) -> None:
    words = ["attack", "ipfl", "--tries", "24", "--seeds", "2", "--workers", "1", "--out", str(tmp_path), "--json"]
    shown = CliRunner().invoke(app, [*words, "--set", "run.rounds=4", "--set", "data.partition.samples_per_client=40"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert found["measure"] == "utility"
    assert found["best"]["deviation"].get("times.samples", 0) > 1
    # the counterexample replays to the gain that was printed
    words = ["attack", str(tmp_path / "attack.toml"), "--replay", "--seeds", "2", "--workers", "1", "--json"]
    shown = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "again")])
    again = json.loads(shown.stdout)
    assert again["best"]["gains"] == {str(s): found["best"]["gains"][str(s)] for s in found["fresh"]}
    assert again["interval"] == found["interval"]
    # an experiment like any other: utility by eq. (1), less what far models take by eq. (8), with honest distances
    seed = found["fresh"][0]
    changes = [f"run.seed={seed}", f"data.seed={seed}"]
    (cheat, bought, _), (honest, before, apart) = [
        trades(Experiment.read(tmp_path / "attack.toml", [*changes, *c]), tmp_path / "run")
        for c in ([], ["behaviour={}"])
    ]
    expected = (cheat - (bought * apart).sum()) - (honest - (before * apart).sum())
    assert found["best"]["gains"][str(seed)] == pytest.approx(expected)


def trades(experiment: Experiment, folder: Path) -> tuple[float, Any, Any]:
    """Return client 0's utility, and from the records, by round: lambda n_j/n_i of its imports, and the distances."""
    run, bought, apart = hanse.run(experiment, out=folder, overwrite=True), [], []
    for file in sorted((folder / "rounds").glob("*.npz")):
        with np.load(file) as record:
            if "market_graph" in record:
                n, graph = record["market_true_size"], record["market_graph"][0] * record["market_paid"][0]
                bought.append(float(record["market_lam"]) * graph * n / n[0])
                apart.append(record["market_distance"][0])
    return float(run.metrics[-1]["utility/client/0"]), np.array(bought), np.array(apart)


def test_a_gain_is_measured_by_what_is_paid_and_not_by_the_grant(tmp_path: Path) -> None:
    def paid(deviant: dict[str, Any], seed: int) -> float:
        return 101.0 + 0.1 * deviant.get("silent", False)

    def work(job: Job, step: Step) -> dict[str, Any]:
        found = earning(paid, [])(job, step)
        rest = [99.0] + [100.0] * 6
        return {**found, "measure": "balance", "granted": 100.0, "outcome": [found["outcome"][0], *rest]}

    found = search(SECTIONS, [0], tmp_path, tries=40, work=work)
    assert found.scale == pytest.approx(2 / 8)  # one client earned a token, one paid it
    assert found.best.deviation == {"silent": True}
    assert found.pays  # .1 token is 40 % of that, and .1 % of a balance
    assert found.best.ahead[3] == pytest.approx(101.1 - 699 / 7)


def test_a_second_key_counts_for_its_owner_without_its_grant(tmp_path: Path) -> None:
    def work(job: Job, step: Step) -> dict[str, Any]:
        deviant = job.sections["behaviour"]["deviant"]
        honest = deviant == {"clients": [1], "leaves": 0}  # the second key never joins
        held = [104.0, 0.0] if honest else [103.0, 107.0 if deviant["second"] == "copied" else 90.0]
        found = earning(lambda *_: 0.0, [])(job, step)
        return {**found, "measure": "balance", "granted": 100.0, "outcome": held + [98.0] * 6}

    found = search(SECTIONS, [0, 1], tmp_path, tries=30, second_key=True, work=work)
    assert found.best.gain(found.fresh) == pytest.approx((6.0, 6.0, 6.0))  # 103 + 107 - 100 - 104
    assert found.best.ahead[3] == pytest.approx(110 - 98)
    kept = hanse.Experiment.read(tmp_path / "attack.toml").behaviour["deviant"]
    assert (kept["clients"], kept["second"]) == ([0, 1], "copied")


def test_what_a_second_key_sells_to_its_owner_is_worth_nothing() -> None:
    watched = _Watched([0], second_key=1)
    arrays = {
        "market_distance": np.full((3, 3), 0.1), "market_lam": np.array(1.0), "market_client": np.arange(3),
        "market_graph": np.array([[0, 1, 0], [1, 0, 1], [1, 0, 0]]), "market_paid": np.array([True, True, True]),
        "market_units": np.array([[0, 5, 0], [4, 0, 2], [3, 0, 0]]) * TOKEN, "market_true_size": np.array([100.0] * 3),
        "market_true_cost": np.array([0.5] * 3), "market_true_eagerness": np.array([1e4] * 3),
    }  # fmt: skip
    watched.on_round({}, SimpleNamespace(state=SimpleNamespace(states={}),
                                         view=SimpleNamespace(settlement=SimpleNamespace(arrays=arrays),
                                                              context=SimpleNamespace(num_clients=3))))  # fmt: skip
    gain = 10 - (1e4 / 200) ** 0.5  # eq. (2) of one import by a real buyer
    # the owner pays 5 to its key for nothing, and sells for 4 + 3 at .5 each; the key has 5 - .5, and pays 4 + 2; the
    # third gains, pays 3, sells for 2 at .5, and loses .1 for the distance
    assert watched.traded == pytest.approx([-5 + 7 - 1, 5 - 0.5 - 6, gain - 3 + 2 - 0.5 - 0.1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nowhere", "'nowhere'"), ("ipfl --client 9", "--client 9"), ("ipfl --client 7 --pair", "--client 8"),
        ("ipfl --pair --second-key", "--second-key"), ("ipfl --seed -1", "--seed -1"), ("ipfl --tries 0", "--tries 0"),
        ("ipfl --seeds 1", "--seeds 1"), ("fedavg --workers 1", "'fedavg'"),
        ("ipfl --replay --tries 3", "--tries: not here"),
        ("ipfl --set behaviour.deviant.clients=[1]", "behaviour.deviant"), ("ipfl --set run.rounds=0", "run.rounds: 0"),
    ],
)  # fmt: skip
def test_bad_input(words: str, message: str, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["attack", *words.split(), "--out", str(tmp_path / "found")])
    assert shown.exit_code != 0
    assert message in str(shown.exception)
