"""The commands that every step is checked by: equal tables, and scores of trials."""

import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("common", "tables", "trials"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import tables
    import trials

    return tables, trials


def row(setting: str, mean: float | None, **more: Any) -> dict[str, Any]:
    return {"setting": setting, "algorithm": "FedAvg", "published": None, "mean": mean, "sd": None, "n": 2} | more


def test_a_table_that_differs_by_a_bit_a_row_or_their_order_is_named(scripts: tuple[Any, Any]) -> None:
    verdict = scripts[0].verdict
    here = [row("a", 0.1 + 0.2), row("b", None)]
    assert verdict({"rows": here}, {"rows": [*here]})[0] == "equal"
    for other in (
        [row("a", 0.3), here[1]],
        here[:1],
        [*here, row("c", 1.0)],
        here[::-1],
        [here[0], row("b", None, n=3)],
    ):
        word, said = verdict({"rows": here}, {"rows": other})
        assert word == "DIFFERS"
        assert len(said) == 1
    assert verdict({"failed": "no peft"}, {"failed": "no peft"}) == ("failed at the base", ["no peft"])
    assert verdict({"rows": here}, {"failed": "no peft"})[0] == "DIFFERS"


def test_an_answer_is_right_by_its_rule_alone(scripts: tuple[Any, Any]) -> None:
    right = scripts[1].right
    number, word, like = {"is": 0.62, "within": 0.01}, {"is": ["yes", "ja"]}, {"like": r"hanse audit \S+"}
    assert [right(number, said) for said in ("0.625", 0.62, "0.64", "much", "nan", None)] == [True, True, *[False] * 4]
    assert [right(word, said) for said in ("Ja ", "yes", "no", "")] == [True, True, False, False]
    assert [right(like, said) for said in (" hanse audit run", "hanse audit", "sudo hanse audit run")] == [
        True,
        False,
        False,
    ]


def test_a_key_counts_only_if_it_is_the_one_whose_hash_was_given(scripts: tuple[Any, Any], tmp_path: Path) -> None:
    trials = scripts[1]
    trials.TRIALS, folder, key = tmp_path, tmp_path / "task", tmp_path / "key.toml"
    folder.mkdir()
    (folder / "task.md").write_text("A task.\n")
    key.write_text('nonce = "x"\nq = { is = 3 }\nr = { is = "a" }\n')
    assert trials.main(["seal", "task", str(key)]) == 0
    trials.main(["note", "task", "me", "--", sys.executable, "-c", "0"])
    trials.main(["answer", "task", "me", "q=3"])
    assert trials.key_of(folder) == (None, "")
    (folder / "key.toml").write_bytes(key.read_bytes())
    asked, wrong = trials.key_of(folder)
    assert (list(asked), wrong) == (["q", "r"], "")
    assert trials.scored(folder / "me.jsonl", asked)[1:] == (1, "1 of 2", ["r"])
    (folder / "key.toml").write_text(key.read_text().replace("3", "4"))
    assert trials.key_of(folder)[0] is None
    assert trials.key_of(folder)[1]
