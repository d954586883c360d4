"""TOML of strangers: deep keys are refused before they cost anything, and everything else is read as it is."""

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.base import toml
from hanse.base.errors import UserError
from hanse.runs.overrides import apply

PARTS = st.one_of(
    st.text("abz_-09", min_size=1, max_size=5),
    st.text('ab.\\"#=[] é', max_size=5).map(lambda word: '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'),
    st.text('ab."#=[] é', max_size=5).map(lambda word: f"'{word}'"),
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_deep_tables_are_refused_however_they_are_written(data: st.DataObject) -> None:
    parts = data.draw(st.lists(PARTS, min_size=toml.DEEPEST + 1, max_size=60))
    dot = data.draw(st.sampled_from([".", " . ", "\t.", ". "]))
    cut = data.draw(st.integers(1, len(parts) - 1))
    texts = {
        "key": f"{dot.join(parts)} = 1",
        "header": f"[{dot.join(parts)}]",
        "array of tables": f"[[{dot.join(parts)}]]",
        "both": f"[{dot.join(parts[:cut])}]\n{dot.join(parts[cut:])} = 1",
        "inline": f"{'{'.join(f'a{i} = ' for i in range(len(parts)))}1{'}' * (len(parts) - 1)}",
        "list": f"a = {'[' * len(parts)}{']' * len(parts)}",
    }
    with pytest.raises(ValueError, match="deep"):
        toml.loads(texts[data.draw(st.sampled_from(sorted(texts)))])


def refused_by_parts(text: str) -> str:
    """Return how a text is read: as the standard library does, or the error's class."""
    try:
        return repr(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError):
        return "refused"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(PARTS, st.sampled_from([".", "=", "\n", "[", "]", "1.5", "{", "}", "# a.b", '"""', "'''"]))))
def test_all_other_texts_are_read_as_the_standard_library_does(pieces: list[str]) -> None:
    text = "".join(pieces[:30])
    try:
        found = repr(toml.loads(text))
    except ValueError:
        found = "refused"
    assert found == refused_by_parts(text)


@pytest.mark.parametrize("text", ["a" + ".a" * 200_000 + " = 1", '"a".' * 100_000, '\\"' * 200_000, "'" * 200_001])
def test_a_long_text_costs_one_look(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard library, which takes the square of a key's depth, never sees a deep one."""
    seen: list[str] = []
    monkeypatch.setattr(toml.tomllib, "loads", lambda text, **_: seen.append(text) or {})
    try:
        toml.loads(text)
    except ValueError:
        assert not seen


def test_a_deep_key_on_the_command_line_is_refused() -> None:
    with pytest.raises(UserError, match="--set"):
        apply({"train": {}}, ["train" + ".a" * 5000 + "=1"])
