"""The table of cheats: its rules and seeds, words and intervals, a table whose gains are known, and what is kept."""

import json
from pathlib import Path
from typing import Any

import attack_cases
import numpy as np
import pytest
from commands import invoke
from scipy import stats

import hanse
from hanse.lab.job import Job, Step, seeded
from hanse.lab.kept import KeptFile
from hanse.wings.attack import cheat_table
from hanse.wings.attack.attack_command import table_sentences
from hanse.wings.attack.cheat_table import CheatCell, CheatColumn, drawn_seeds, judged, play_table, possible, read_rules
from hanse.wings.attack.deviant import Deviant
from hanse.wings.attack.search import KeptOutcomes, Outcome, gained, play_with_outcome, table_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GAINS = {"flat": [0.0] * 4, "same": [0.5] * 4, "short": [0.9, 1.0, 1.1], "good": [0.9, 1.0, 1.1, 1.0]}


def words(*gains: list[float], margin: float = 0.05) -> list[str]:
    return [cell.word for cell in judged([CheatCell("m", str(k), g) for k, g in enumerate(gains)], 4, margin)]


def test_a_word_rests_on_the_interval_and_on_every_seed() -> None:
    assert words(GAINS["good"]) == ["pays"]
    assert words([-g for g in GAINS["good"]]) == ["does not pay"]
    assert words([0.02, 0.021, 0.019, 0.02]) == ["pays"]  # below the margin, but surely a gain
    assert words([0.001, -0.001, 0.001, -0.001]) == ["does not pay"]
    assert words([0.4, -0.3, 0.5, -0.2], GAINS["short"], GAINS["same"], []) == ["open"] * 4
    assert words(GAINS["flat"]) == ["does not pay"]  # a cheat that changes nothing
    failed = judged([CheatCell("m", "c", GAINS["good"], failed="no")], 4, 0.05)
    assert (failed[0].word, failed[0].high) == ("open", None)


def test_intervals_are_corrected_over_all_cells() -> None:
    gains, others = [0.2, 0.9, 1.6, 1.2], [[-1.0, 1.0, -2.0, 3.0]] * 9
    alone = judged([CheatCell("m", "c", gains)], 4, 0.05)[0]
    mean, half = np.mean(gains), stats.t.isf(0.025, 3) * np.std(gains, ddof=1) / 2
    assert (alone.low, alone.high) == pytest.approx((mean - half, mean + half))
    [among, *_] = judged([CheatCell("m", str(k), g) for k, g in enumerate([gains, *others])], 4, 0.05)
    wide = stats.t.isf(0.05 / 10 / 2, 3) * np.std(gains, ddof=1) / 2
    assert (among.low, among.high) == pytest.approx((mean - wide, mean + wide))  # Holm's first step
    assert (alone.word, among.word) == ("pays", "open")


def test_every_cheat_of_the_rules_is_a_deviation_and_can_be_played_somewhere() -> None:
    rules = read_rules()
    columns = [
        cheat_table.column_of(name, rules.columns[name]) for name in ("path values", "ipfl_posted", "ipfl", "pifl")
    ]
    assert {c.members for c in columns} == {8}
    for name, cheat in rules.cheats.items():
        keys = cheat.get("keys", 1)
        assert keys <= cheat_table.MOST_KEYS
        Deviant(**table_of({key: value for key, value in cheat.items() if key != "keys"}, range(keys)))
        # in none of these are clients the judges, as they are in PI-FL as published
        assert any(possible(cheat, column) for column in columns) == ("gradient" not in cheat), name
    by = {c.name: {n for n, cheat in rules.cheats.items() if possible(cheat, c)} for c in columns}
    assert by["pifl"] - by["path values"] == {"never bids", "bids for all"}
    assert by["ipfl"] - by["ipfl_posted"] == {
        "a tenth of its cost", "a tenth of its eagerness", "resells what it bought"
    }  # fmt: skip
    small = read_rules(smoke=True)
    assert set(small.columns) < set(rules.columns)
    assert set(small.cheats) < set(rules.cheats)
    assert {s["run"]["rounds"] for s in small.columns.values()} == {4}
    assert [read_rules(smoke=tiny, seeds=100).seeds for tiny in (False, True)] == [100, 100]


def test_a_cheat_leaves_somebody_honest() -> None:
    space = cheat_table.column_of("a", read_rules().columns["path values"]).space
    three = {"keys": 3, "second": "mean"}
    assert [possible(three, CheatColumn("a", {}, members, space)) for members in (3, 4)] == [False, True]


def test_a_users_experiment_is_played_under_its_own_mechanism_and_the_others() -> None:
    own = {"mechanism": {"name": "fedavg", "settle": "by_value", "value": "path"}, "run": {"rounds": 3}}
    rules = read_rules(own, smoke=True)
    assert list(rules.columns) == ["yours: fedavg", "path values", "ipfl_posted", "pifl"]
    assert rules.columns["yours: fedavg"] == own
    others = {"run": {"rounds": 3}, "data": {"client_validation": 0.1}}
    assert rules.columns["pifl"] == {"mechanism": {"name": "pifl"}, **others}
    agreed = {"title": "Two", "members": {"client 0": {}, "client 1": {}}}
    markets = read_rules({**own, "charter": agreed}, smoke=True).columns["ipfl_posted"]
    assert "weigh" in str(cheat_table.column_of("a", markets).why)  # which does not go with a charter, and ends nothing
    assert list(read_rules(only="ifca").columns) == ["ifca"]
    with pytest.raises(hanse.UserError, match=r"behaviour.deviant"):
        read_rules({**own, "behaviour": {"deviant": {"clients": [0]}}})


def test_seeds_follow_from_a_commit_and_from_unchanged_rules(tmp_path: Path) -> None:
    rules = read_rules()
    assert drawn_seeds(rules, tmp_path, None) == (list(range(rules.seeds)), None)
    drawn = drawn_seeds(rules, tmp_path / "a", COMMIT)
    assert drawn[1] == COMMIT
    assert len(set(drawn[0])) == rules.seeds
    assert all(0 <= seed < 2**31 for seed in drawn[0])
    assert drawn_seeds(rules, tmp_path / "a", None) == drawn  # the folder says it
    assert drawn_seeds(rules, tmp_path / "b", COMMIT[::-1])[0] != drawn[0]
    for commit, folder, word in (("abc", "c", "40"), (COMMIT[::-1], "a", "drawn")):
        with pytest.raises(hanse.UserError, match=word):
            drawn_seeds(rules, tmp_path / folder, commit)
    (tmp_path / "a" / "drawn.json").write_text(json.dumps({"commit": COMMIT, "rules": "other"}))
    with pytest.raises(hanse.UserError, match="rules"):
        drawn_seeds(rules, tmp_path / "a", None)


RULES = """
seeds = 3
margin = 0.05
[experiment]
data = { source = "digits", clients = 4, client_test = 0.1, client_validation = 0.1 }
model = { name = "logistic" }
train = { steps = 2, batch_size = 8 }
engine = { threads = 1 }
run = { rounds = 2 }
[mechanisms]
"by value" = { mechanism = { name = "fedavg", value = "path", settle = "by_value" } }
unpaid = { mechanism = { name = "fedavg" } }
[cheats]
lies = { times = { samples = 2.0 } }
silent = { silent = true }
pair = { keys = 2, second = "copied" }
buys = { says = { "buy.sellers" = "all" } }
[smoke]
seeds = 2
rounds = 1
mechanisms = ["by value"]
cheats = ["lies", "silent"]
"""


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder, with a file of few rules in the place of hanse's own."""
    (tmp_path / "rules.toml").write_text(RULES)
    monkeypatch.setattr(cheat_table, "RULES", tmp_path / "rules.toml")
    return tmp_path


def known(job: Job, step: Step) -> dict[str, Any]:
    """Play without training: a grant of 100; a lie brings the liar 3 + seed / 10 tokens, silence costs it 1."""
    deviant = job.sections.get("behaviour", {}).get("deviant", {})
    pays = job.sections["mechanism"].get("settle") == "by_value"
    held, seed = np.array([101.0, 99.0, 101.0, 99.0]), job.sections["run"]["seed"]
    if deviant.get("silent") and seed == 2:
        return {"key": job.key, "label": job.label, "given": job.sections, "status": "failed", "error": "no"}
    gain = 3 + seed / 10 if deviant.get("times") else -1.0 if deviant.get("silent") else 0.0
    for c in deviant.get("clients", ()):
        held[c] += gain
    return attack_cases.played(job, held.tolist(), "balance" if pays else "nothing")


@pytest.mark.parametrize("commit", [None, COMMIT])
def test_a_table_whose_gains_are_known(commit: str | None, few: Path) -> None:
    told: list[tuple[int, float | None, str]] = []
    table = play_table(read_rules(), few / "out", commit=commit, told=lambda *now: told.append(now), work=known)
    cells = {cell.cheat: cell for cell in table.cells}
    assert {c.name: c.why is None for c in table.columns} == {"by value": True, "unpaid": False}
    assert cells.keys() == {"lies", "silent", "pair"}  # nobody is asked what it buys
    # the yardstick is 1 token, the mean distance from the grant
    assert cells["lies"].gains == pytest.approx([3 + seed / 10 for seed in table.seeds])
    assert (cells["pair"].word, cells["pair"].gains) == ("does not pay", [0.0] * 3)
    if commit is None:
        assert (cells["lies"].word, table.counts["pays"]) == ("pays", 1)
        assert (cells["silent"].word, cells["silent"].failed, len(cells["silent"].gains)) == ("open", "no", 2)
        assert table_sentences(table)[0].startswith("1 cell could not be played.")
    assert told[-1][0] <= told[-1][1]  # the unpaid one is left after its first seed
    assert told[-1][1] == 3 * 4 + 1 * 4
    assert {row[0] for row in table.shown.rows} == {"lies", "silent", "pair"}
    kept = json.loads((few / "out" / "table.json").read_text())
    assert kept == table.as_json()
    assert (few / "out" / "table.md").read_text() == table.shown.markdown()
    played: list[Job] = []

    def again(job: Job, step: Step) -> dict[str, Any]:
        played.append(job)
        return known(job, step)

    assert play_table(read_rules(), few / "out", work=again).as_json() == kept  # the folder says the commit
    assert len(played) == len(table.failed) * (commit is None)  # everything that could be played was kept


def test_a_table_of_four_owners_without_a_number_of_clients(few: Path, owners: Path) -> None:
    owners.write_text(json.dumps([40] * 4))
    (few / "exp.toml").write_text(
        'data.source = { name = "owners_of_a_table:frame", target = "y", client_column = "owner" }\n'
        'mechanism = { name = "fedavg", value = "path", settle = "by_value" }\n'
        "model.name = 'logistic'\ntrain = { steps = 5, batch_size = 8 }\nrun.rounds = 2\n"
    )
    words = f"attack {few}/exp.toml --table --smoke --workers 1 --json --out {few}/out".split()
    shown = invoke(*words)
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert found["not_measured"] == {}
    assert {(c["mechanism"], c["cheat"]) for c in found["cells"]} == {
        (m, c) for m in ("yours: fedavg", "by value") for c in ("lies", "silent")
    }
    assert all(len(cell["gains"]) == 2 for cell in found["cells"])
    files = [json.loads(file.read_text()) for file in (few / "out" / "jobs").glob("*.json")]
    assert {len(one["outcome"]) for one in files} == {4}
    # the second command plays nothing anew, and says the same
    assert json.loads(invoke(*words).stdout) == found


def test_what_a_cheat_buys_is_as_far_as_for_its_honest_self() -> None:
    def outcome(held: float, imports: list[float], apart: list[float]) -> Outcome:
        return Outcome("utility", np.array([held, 5.0]), 0.0, {0: [np.zeros(0), np.array([imports, apart])]})

    honest = outcome(10.0, [0, 1.0], [0, 0.5])
    assert gained(honest, honest, [0]) == 0
    # it bought twice as much, and looked .4 nearer than it is
    assert gained(outcome(12.0, [0, 2.0], [0, 0.1]), honest, [0]) == pytest.approx(2 - 2 * 0.4)
    assert gained(outcome(12.0, [0, 2.0], [0, 0.1]), outcome(10.0, [0, 0], [0, np.nan]), [0]) == pytest.approx(2)


def test_runs_of_a_table_with_drawn_seeds_are_found_again(tmp_path: Path) -> None:
    sections = {**read_rules(smoke=True).columns["path values"], "run": {"rounds": 1}}
    job, store = seeded(sections, 3, "honest"), KeptOutcomes(KeptFile(tmp_path), 8, [0])
    store.write(job, play_with_outcome(job, lambda *step: None))
    assert KeptOutcomes(KeptFile(tmp_path), 8, [0]).read(job)["key"] == job.key
    assert KeptOutcomes(KeptFile(tmp_path), 7, [0]).read(job) is None
