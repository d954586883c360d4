"""The list of words: whatever parts and settings name stands in it, and what has no effect is refused."""

import re
from typing import Any

import pytest
from mistaken import mistakes

import hanse
from hanse.base.wings import Names, Wing, absent
from hanse.core.part import Mechanism
from hanse.mechanisms.fits import FORBIDS, WARNS, WORDS, meaning, said, unmet_needs
from hanse.mechanisms.registry import PARTS, SLOTS, build_mechanism
from hanse.runs.setup import build

# words of what surrounds a mechanism that are no settings
BARE = {"network", "buffers", "frozen", "moving samples", "claimed sizes", "values that rank", "tokens", "time",
        "valued", "one model", "classes"}  # fmt: skip


@pytest.mark.parametrize("slot", SLOTS)
def test_parts_name_words_of_the_list(slot: str) -> None:
    for name, make in PARTS[slot].items():
        words = said(make(), "needs", *SLOTS) | said(make(), "gives", *SLOTS)
        assert {word for word in words if not word.startswith(("rows ", "new rows "))} <= WORDS.keys(), name


def test_what_is_forbidden_or_required_is_a_word_or_a_setting() -> None:
    tables = [*Names({"": FORBIDS}, "forbids").values(), WARNS]
    assert absent() or len(tables) > 2  # those of wings, too
    pairs = [(one, other) for table in tables for one, what in table.items() for other in what]
    words = {word.removeprefix("no ").partition("/")[0] for pair in pairs for word in pair}
    for word in words - WORDS.keys() - BARE:
        section, key = word.split(".")
        kind = hanse.Experiment.kinds().get(section)
        assert section == "behaviour" or (absent() if kind is None else key in kind.model_fields), word


def test_what_a_part_lacks_is_told_with_what_gives_it() -> None:
    for word, of in WORDS.items():
        if of.by in PARTS and not of.remedy:
            names = re.findall(r"'(\w+)'", meaning(word))
            gave = {name for name, make in PARTS[of.by].items() if word in said(make(), "gives", of.by)}
            assert {*names} == (PARTS[of.by].keys() if word == "values" else gave) != set(), word
    paid = build_mechanism({"name": "fedavg", "settle": "pot"})
    [lack] = unmet_needs(paid, {"clients"})
    assert meaning("values") in lack.line


FORBIDDEN = {
    "federation.enough": {"clients.told": "who is told must have been heard"},
    "clients.told": {"validation": "a member that is told has it"},
}


def test_a_wing_forbids_by_a_table_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    wing = Wing("roll_call", names={"forbids": {"roll_call": f"{__name__}:FORBIDDEN"}})
    asked = {"data": {"clients": 4}, "mechanism": "greedyfed", "federation": {"enough": 2}, "clients": {"told": True}}
    build(hanse.Experiment(**asked))
    monkeypatch.setattr("hanse.base.wings._found", lambda: ((wing,), ""))
    lines = mistakes(build, hanse.Experiment(**asked))
    assert {line.partition(":")[0] for line in lines} == FORBIDDEN.keys()
    assert any("mechanism.value" in line and FORBIDDEN["clients.told"]["validation"] in line for line in lines)


@pytest.mark.parametrize(
    ("table", "slot"),
    [
        ({"name": "pifl", "select": "greedy"}, "settle"),  # an auction whose selector ignores bids
        ({"name": "local", "value": "exact"}, "value"),  # a game of one player
    ],
)
def test_what_would_have_no_effect_is_refused(table: dict[str, Any], slot: str) -> None:
    mechanism: Mechanism = build_mechanism(table)
    assert [lack.slot for lack in unmet_needs(mechanism, {"clients", "validation", "losses"})] == [slot]
    with pytest.raises(hanse.UserError, match=f"mechanism[.]{slot}: "):
        hanse.run(hanse.Experiment(mechanism=table, data={"clients": 4}))
