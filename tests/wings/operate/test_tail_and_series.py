"""Following a file that grows, is cut, is replaced; and a figure over many rounds in bounded memory."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.runs import line_tail
from hanse.runs.line_tail import LineTail
from hanse.wings.operate.page.live_run import SparseSeries


def test_a_torn_line_waits_until_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    place = LineTail(file)
    assert place.read().lines == []
    file.write_bytes(b'{"a": 1}\n{"a":')
    assert place.read().lines == [{"a": 1}]
    assert place.read().lines == []
    with file.open("ab") as more:
        more.write(b" 2}\n")
    found = place.read()
    assert (found.lines, found.cut, found.left) == ([{"a": 2}], False, 0)


def test_a_file_that_was_cut_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    place = LineTail(file)
    file.write_text('{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    assert len(place.read().lines) == 3
    file.write_text('{"a": 1}\n')
    found = place.read()
    assert found.cut
    assert found.lines == [{"a": 1}]
    assert not place.read().cut


def test_a_file_that_was_cut_and_grew_past_the_place_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    place = LineTail(file)
    file.write_text('{"a": 1, "t": 0.11}\n{"a": 2, "t": 0.22}\n')
    place.read()
    with file.open("r+") as same:  # the same inode, longer, with another second line
        same.write('{"a": 1, "t": 0.11}\n{"a": 2, "t": 0.33}\n{"a": 3, "t": 0.44}\n')
    found = place.read()
    assert found.cut
    assert [line["a"] for line in found.lines] == [1, 2, 3]


def test_a_file_that_was_replaced_or_deleted_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    place = LineTail(file)
    file.write_text('{"a": 1}\n')
    place.read()
    file.unlink()
    assert place.read().cut
    assert not place.read().cut
    (tmp_path / "other").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "other").rename(file)
    assert place.read().lines == [{"a": 1}, {"a": 2}]


def test_damaged_lines_are_counted_and_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b'{"a": 1}\nnot json\n[1]\n\xff\xfe\n{"a": 2}\n' + b"[" * 100_000 + b"\n")
    place = LineTail(file)
    assert place.read().lines == [{"a": 1}, {"a": 2}]
    assert place.damaged == 4


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_tail, "LONGEST", 4096)
    file = tmp_path / "lines"
    file.write_bytes(b"x" * 10_000)
    place = LineTail(file)
    for _ in range(8):
        assert place.read(1024).lines == []
    assert place.place >= 4096
    with file.open("ab") as more:
        more.write(b'\n{"a": 1}\n')
    lines = [line for _ in range(8) for line in place.read(1024).lines]
    assert lines == [{"a": 1}]
    assert place.damaged >= 1


@given(st.lists(st.integers(0, 10**6)), st.integers(16, 200))
@settings(max_examples=50, deadline=None)
def test_pieces_are_as_good_as_the_whole(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], most: int
) -> None:
    file = tmp_path_factory.mktemp("pieces") / "lines"
    file.write_text("".join(json.dumps({"a": n}) + "\n" for n in numbers))
    place, found = LineTail(file), []
    while True:
        grown = place.read(most)
        found += [line["a"] for line in grown.lines]
        if not grown.left:
            break
    assert found == numbers


@given(st.integers(1, 3000), st.integers(2, 64).map(lambda n: 2 * n))
@settings(max_examples=60, deadline=None)
def test_a_long_series_is_thinned_evenly_and_ends_with_the_last(count: int, most: int) -> None:
    series = SparseSeries(most)
    for x in range(count):
        series.add(x, -x)
    points = series.points()
    assert len(points) <= most + 1
    assert points[0] == (0, 0)
    assert points[-1] == (count - 1, 1 - count)
    kept = [x for x, _ in points if x % series.stride == 0]
    assert kept == list(range(0, count, series.stride))
    assert series.stride == 1 or len(kept) > most // 2 - 1
    assert all(y == -x for x, y in points)
