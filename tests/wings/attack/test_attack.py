"""The search for the cheat that pays best: its space, what it finds, its statistics, and going on."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attack_cases
import numpy as np
import pytest
from commands import invoke

import hanse
from hanse.lab.job import Job, Step
from hanse.wings.attack.attack_command import sentences
from hanse.wings.attack.search import Try, _tried, search, small, space_of

SECTIONS = small("ipfl")


def test_the_space_is_read_off_what_the_mechanism_asks() -> None:
    always = {"sends", "of", "scale", "times.samples", "times.steps", "times.loss", "silent", "since", "leaves"}
    always |= {"adds.copied", "adds.noise", "longer", "trains_on"}
    market = {"times.declare.cost", "times.declare.eagerness", "says.declare.cost", "says.declare.eagerness"}
    scores = {"times.accuracy"}  # each has its own model scored
    spaces = {name: space_of(hanse.Experiment(**small(name))) for name in ("ipfl", "ipfl_posted", "pifl", "fedavg")}
    assert spaces["ipfl"].keys() == always | scores | market | {"start"}
    sale = {"says.offer.sell", "times.offer.least", "says.offer.least", "says.buy.sellers", "times.buy.weights"}
    assert spaces["ipfl_posted"].keys() == always | scores | sale | {"start"}
    assert spaces["ipfl"]["start"] == ("sent",)
    assert spaces["ipfl_posted"]["start"] == ("kept",)  # of the other nothing differs
    assert ["echo" in found["sends"] for found in spaces.values()] == [True, True, False, False]  # who buys models
    assert spaces["pifl"].keys() == always | scores | {"says.bid.tiers"}
    assert spaces["fedavg"].keys() == always
    assert (spaces["fedavg"]["since"], spaces["fedavg"]["leaves"]) == ([1, 4], [1, 4, 7])  # from round 1 on, too
    assert spaces["fedavg"]["trains_on"] == ("judge", "public")
    assert {3.0, 10.0, 50.0} <= set(spaces["fedavg"]["scale"])


def earning(worth: Any, played: list[Job]) -> Any:
    """Return what plays a job without training: what client 0 ends with is ``worth`` of its deviation and the seed."""

    def work(job: Job, step: Step) -> dict[str, Any]:
        played.append(job)
        earned = worth(job.sections["behaviour"].get("deviant", {}), job.sections["run"]["seed"])
        return attack_cases.played(job, [earned] + [10.0] * 7, "utility", granted=0.0)

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
    assert sentences(found)[0].startswith("Pays: times.samples = 2.")
    assert (found.searched, found.fresh) == ([0, 1, 2], [3, 4, 5, 6])
    assert found.scale == pytest.approx(10 + 3 / 7)
    assert len(found.tries) == 60
    # the confirmation's seeds are not the search's: only the one that was chosen, and honesty, were played with them
    fresh = {job.label.rpartition(",")[0] for job in played if job.sections["run"]["seed"] > 2}
    assert fresh == {"honest", found.best.said}
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


def test_a_search_that_ends_with_its_tries_does_not_say_that_everything_was_tried() -> None:
    game: Any = SimpleNamespace(
        honest=len, played_all=lambda tries, seeds: [Try(one.deviation, dict.fromkeys(seeds, 1.0)) for one in tries]
    )
    ends = [_tried(game, {"silent": [True], "longer": [5]}, tries, [0, 1])[1] for tries in (1, 2, 9)]
    assert ends == ["tries", "tries", "space"]


def test_luck_is_not_called_a_gain(tmp_path: Path) -> None:
    def lucky(deviant: dict[str, Any], seed: int) -> float:
        return 10.0 + (5.0 if deviant and seed < 3 and deviant.get("silent") else 0.0)

    found = search(SECTIONS, [0], tmp_path, tries=40, work=earning(lucky, []))
    assert found.best.deviation == {"silent": True}
    assert found.best.gain(found.searched)[0] == 5.0
    assert found.best.gain(found.fresh)[0] == 0.0
    assert not found.pays


def test_the_interval_of_a_gain_is_students() -> None:
    found = Try({"silent": True}, {0: 1.0, 1: 2.0, 2: 3.0}).gain([0, 1, 2])
    assert found == pytest.approx((2.0, 2 - 2.4841, 2 + 2.4841), abs=1e-4)


@pytest.mark.slow
def test_the_size_lie_is_found_in_a_real_market(tmp_path: Path) -> None:
    words = ["attack", "ipfl", "--tries", "24", "--seeds", "2", "--workers", "1", "--out", str(tmp_path), "--json"]
    shown = invoke(*words, "--set", "run.rounds=4", "--set", "data.partition.samples_per_client=40")
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert found["measure"] == "utility"
    assert found["best"]["deviation"].get("times.samples", 0) > 1
    # an experiment like any other: utility by eq. (1), less what far models take by eq. (8), with honest distances
    seed = found["fresh"][0]
    changes = [f"run.seed={seed}", f"data.seed={seed}"]
    (cheat, bought, _), (honest, before, apart) = [
        trades(hanse.Experiment.read(tmp_path / "attack.toml", [*changes, *c]), tmp_path / "run")
        for c in ([], ["behaviour={}"])
    ]
    expected = (cheat - (bought * apart).sum()) - (honest - (before * apart).sum())
    assert found["best"]["gains"][str(seed)] == pytest.approx(expected)


def trades(experiment: hanse.Experiment, folder: Path) -> tuple[float, Any, Any]:
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
        held = [found["outcome"][0], 99.0, *[100.0] * 6]
        return {**found, "measure": "balance", "granted": 100.0, "outcome": held, "cheats": [7]}

    found = search(SECTIONS, [0], tmp_path, tries=40, work=work)
    assert found.scale == pytest.approx(2 / 7)  # one client earned a token, one paid it; of 8 one is not honest
    assert found.best.deviation == {"silent": True}
    assert found.pays  # .1 token is 35 % of that, and .1 % of a balance


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nowhere", "'nowhere'"), ("ipfl --client 9", "--client 9"), ("ipfl --client 7 --pair", "--client 8"),
        ("ipfl --seed -1", "--seed -1"), ("ipfl --tries 0", "--tries 0"),
        ("ipfl --seeds 1", "--seeds 1"), ("--table --seeds 1", "--seeds 1"), ("fedavg --workers 1", "'fedavg'"),
        ("ipfl --smoke", "--smoke: not here"),
        ("ipfl --set behaviour.liar.clients=[0]", "client 0 cheats in the file"),
        ("ipfl --set behaviour.free_rider.fraction=1.0", "client 0 cheats in the file"),
        ("ipfl --set behaviour.deviant.clients=[1]", "behaviour.deviant"), ("ipfl --set run.rounds=0", "run.rounds: 0"),
    ],
)  # fmt: skip
def test_bad_input(words: str, message: str, tmp_path: Path) -> None:
    shown = invoke("attack", *words.split(), "--out", tmp_path / "found")
    assert shown.exit_code != 0
    assert message in str(shown.exception)
