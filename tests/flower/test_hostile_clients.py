"""One hostile client among honest ones, with every mechanism: no message of it ends a round, or touches the others."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from arena import LIAR, Arena, fuzzed
from flwr.app import Message, RecordDict
from hostile import FILES, Parts

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


BROKEN = "float32", (3,), FILES["PK"]
READ: list[tuple[Callable[[Parts], None], str]] = [  # tests/federation/test_untrusted.py has more of each
    (lambda parts: parts.header["fields"].update(client=LIAR - 1), "not a reply of this client"),
    (lambda parts: parts.header["fields"].update(results=5), "Reply.results: 5: "),
    (lambda parts: setattr(parts, "text", "[" * 100_000), "the header is not JSON"),
    (lambda parts: parts.beside.update(shell="x"), "unknown value 'shell' beside the message"),
    (lambda parts: parts.arrays.update(dict.fromkeys(parts.arrays, BROKEN)), "an array cannot be read: "),
]


def test_each_part_of_a_message_is_read_before_it_counts(tmp_path: Path) -> None:
    arena, seen = Arena({"name": "pifl", **OPTIONS["pifl"]}, tmp_path), list[Played]()
    for change, said in READ:

        def meddle(records: RecordDict, request: Message, change: Any = change) -> RecordDict:
            change(parts := Parts(records))
            return parts.records()

        arena.meddle = meddle
        arena.play(1, seen.append)
        [(client, why)] = seen[-1].view.refusals
        assert (client, why.startswith(said)) == (LIAR, True), why
