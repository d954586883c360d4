"""What a person may hand to the functions that ``import hanse`` offers: a result, or a UserError of short lines."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mistaken import mistakes

import hanse
from hanse.flower import server_app, table

ROWS = np.random.default_rng(0).normal(size=(80, 2))
SHOPS = (ROWS, (ROWS.sum(1) > 0).astype(int), np.array(["Bremen", "Visby"] * 40))
OF_DIGITS = hanse.Experiment(data={"source": "digits", "clients": 4}, mechanism="fedavg", run={"rounds": 1})
UPDATES = {"a": np.ones(2), "b": np.zeros(2)}
DOORS: dict[Callable[..., Any], dict[str, Any]] = {
    hanse.run: {"experiment": OF_DIGITS},
    hanse.who_gains: {"data": SHOPS, "rounds": 1, "mechanisms": ["fedavg"]},
    hanse.value: {"updates": UPDATES, "evaluate": lambda w: -float(((w - 1) ** 2).sum()), "start": np.zeros(2)},
    hanse.Experiment: {"mechanism": "fedavg"},
    hanse.shapley: {"worth": len, "names": ["a", "b", "c"]},
}
# what a function of the user's own raises is Python's own error; paths are below
AT = [
    (door, name)
    for door in DOORS
    for name in inspect.signature(door).parameters
    if door is not hanse.Experiment and name not in ("out", "gradient", "evaluate", "worth")
] + [(hanse.Experiment, name) for name in hanse.Experiment.kinds()]
VALUES: list[Any] = [
    None, True, 10**400, -(10**400), float("nan"), float("inf"), -1, 2.5, "", "x" * 3000, "a\nb", b"x", int, 1j, [], {},
    [[]], {1: 2}, {"name": []}, {"name": "path", "a": 10**400}, {"name": "fedavg", 1: 2},
    {"name": "fedavg", "source": {1: 2}, "select": {1: 2}},
]  # fmt: skip


@pytest.mark.by_turns(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("door", "name"), AT)
def test_an_odd_argument_is_taken_or_refused_in_short_lines(door: Callable[..., Any], name: str) -> None:
    lines: list[str] = []
    for odd in VALUES:
        try:
            door(**{**DOORS[door], name: odd})
        except hanse.UserError as refused:
            lines += refused.lines
    assert max(map(len, lines), default=0) <= 2000


def test_what_is_no_run_has_no_facts() -> None:
    for odd in VALUES:
        with pytest.raises(hanse.UserError):
            hanse.facts(odd)


def test_what_is_no_path_is_refused_by_the_name_of_its_argument() -> None:
    doors = [(hanse.load, "path"), (hanse.resume, "path"), (hanse.Experiment.read, "path"), (hanse.run, "out"),
             (hanse.who_gains, "out"), (server_app, "out"), (table, "file")]  # fmt: skip
    others = {server_app: {"experiment": OF_DIGITS, "members": 2}, table: {"schema": __file__}}
    for odd in (b"x", True, 2.5, [], int, {"a": "b"}):
        for door, name in doors:
            [line] = mistakes(door, **{**DOORS.get(door, others.get(door, {})), name: odd})
            assert line.startswith(f"{name}: {odd!r}: ")
