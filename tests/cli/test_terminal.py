"""What reaches a terminal: no text of a stranger moves its cursor, colours it or turns its direction of writing."""

import io
import re
import sys
from pathlib import Path

import pytest
from commands import run_hanse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.table import Table

import hanse
from hanse.base.terminal import Terminal, plainly

# drawn here by what they do, not as the code lists them
TURNS = "\u202e\u202a\u2066\u2067\u200f\u2028"
MOVES = [c for c in [*map(chr, range(1, 0xA0)), *TURNS] if c not in "\t\n" and (not c.isprintable())]
PIECES = st.one_of(st.sampled_from(MOVES), st.sampled_from(["[2J", "[31m", "]0;title", "a", "é", "名"]))
NAMES = st.lists(PIECES, min_size=1).map("".join)


def moves(text: str) -> list[str]:
    return [c for c in text.replace("\r\n", "\n") if c in MOVES]


@given(NAMES)
def test_all_that_is_printed_is_cleaned(name: str) -> None:
    stream, console = io.StringIO(), Terminal(file=io.StringIO(), width=200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        with plainly():
            print(name, "é名")
            sys.stdout.writelines([name, "\r\n"])
    assert not moves(stream.getvalue())
    assert "é名" in stream.getvalue()
    table = Table(name)
    table.add_row(name, style="red")
    console.print(table)
    console.print(name, markup=False, style="bold")
    assert not moves(console.file.getvalue())  # type: ignore[attr-defined]
    coloured = Terminal(file=io.StringIO(), force_terminal=True)
    coloured.print("é", style="bold")
    assert "\x1b[" in coloured.file.getvalue()  # type: ignore[attr-defined]


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=NAMES.filter(lambda name: len(name.encode()) < 100))
@pytest.mark.parametrize(
    "words",
    [
        ("run", "exp.toml", "--out", "NAME"), ("compare", "NAME"), ("resume", "NAME"), ("ledger", "verify", "NAME"),
        ("network", "admit", "NAME", "key.pub", "--name", "NAME"), ("report", "NAME"), ("NAME",),
        ("run", "--set", "NAME"), ("network", "expel", "NAME", "NAME"), ("statement", "NAME"),
        ("audit", "run", "NAME"), ("new", "NAME"),
    ],
    ids=lambda words: " ".join(words),
)  # fmt: skip
def test_no_command_passes_a_name_on(words: tuple[str, ...], name: str, here: Path) -> None:
    (here / "exp.toml").write_text("[run]\nrounds = 0\n")
    if words[0] == "compare" and name.strip(".") and "/" not in name:
        (here / name).mkdir(exist_ok=True)  # a directory that somebody sent
        (here / name / "config.toml").write_text("[run]\n")
    _, out, err = run_hanse(*(word.replace("NAME", name) for word in words))
    assert not moves(out + err)


def test_every_console_is_one_that_cleans() -> None:
    root = Path(hanse.__file__).parent
    assert [str(file) for file in root.rglob("*.py") if re.search(r"(?<!\w)Console\(", file.read_text())] == []
