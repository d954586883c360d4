"""One hostile client among honest ones, with every mechanism: no message of it ends a round, or touches the others."""

import json
import logging
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from arena import LIAR, Arena, N, fuzzed
from flwr.app import Message, RecordDict
from hostile import WORST, Parts

from hanse.core.entry import MINT
from hanse.mechanisms.registry import MECHANISMS
from hanse.runs.checkpoint import LoopState
from hanse.runs.round import Played

PLAYED = sorted(set(MECHANISMS) - {"centralised"})  # which has one client
OPTIONS: dict[str, dict[str, Any]] = {
    "greedyfed": {"clients_per_round": 3},
    "pifl": {"by_contribution": 2, "at_random": 1},
    "tiff": {"by_contribution": 2, "at_random": 1},
    "ipfl": {"eagerness": 5e4},
    "fedgen": {"train": {"generator_steps": 2, "generator_hidden": 8}},
    "gtfedgen": {"train": {"generator_steps": 2, "generator_hidden": 8}},
}


def balanced(state: LoopState) -> bool:
    balances = state.book.balances
    return sum(balances.values()) == 0 and all(units >= 0 for name, units in balances.items() if name != MINT)


def fuzz(name: str, messages: int, seed: int, folder: Path) -> None:
    arena = Arena({"name": name, **OPTIONS.get(name, {})}, folder)
    arena.meddle, said = fuzzed(seed, name)
    wrong: list[str] = []

    def see(played: Played) -> None:
        honest = {c for c, _ in played.view.refusals} - {LIAR}
        seated = set() if played.view.seats is None else set(played.view.seats.client.tolist()) - {LIAR}
        if honest or not seated <= set(played.view.trained.seats.client.tolist()) or not balanced(played.state):
            wrong.append(f"{said}: {played.view.refusals}")

    print(f"seed {seed}")
    while said["messages"] < messages:
        try:
            assert balanced(arena.play(5, see, times=6))
        except Exception as raised:
            raise AssertionError(f"seed {seed}, {name}, {said}") from raised
    assert wrong == []
    for lines in arena.lines.values():
        assert lines
        for line in lines:
            json.loads(line, parse_constant=pytest.fail)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYED)
@pytest.mark.parametrize(("messages", "seed"), [(2000, 18), pytest.param(6000, 1018, marks=pytest.mark.nightly)])
def test_no_message_of_a_hostile_client_ends_a_round_or_touches_the_others(
    messages: int, seed: int, name: str, tmp_path: Path
) -> None:
    fuzz(name, messages // len(PLAYED) + 1, seed, tmp_path)


def test_each_of_the_worst_messages_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each for what is wrong with it, in the first message that has the field in question."""
    arena, left, due = Arena({"name": "tiff", **OPTIONS["tiff"]}, tmp_path), [*WORST], list[str]()

    def meddle(records: RecordDict, request: Message) -> RecordDict:
        for bad in left:
            parts = Parts(records)
            with suppress(LookupError):
                bad[1](parts)
                left.remove(bad)
                due.append(bad[0])
                return parts.records()
        return records

    arena.meddle = meddle
    caplog.set_level(logging.INFO, "hanse.federation")
    while left:
        before = len(left)
        arena.play(2, lambda played: None)
        assert len(left) < before, left
    told = [why for record in caplog.records if (why := record.getMessage().partition("): refused: ")[2])]
    assert all(re.match(said, why) for said, why in zip(due, told, strict=True)), told
    assert "client 0" not in caplog.text


def test_without_a_hostile_client_nobody_is_refused(tmp_path: Path) -> None:
    arena = Arena({"name": "pifl", **OPTIONS["pifl"]}, tmp_path)
    seen: list[Played] = []
    arena.play(3, seen.append)
    assert [played.view.refusals for played in seen] == [()] * 3
    assert [len(played.view.roster) for played in seen] == [N] * 3
