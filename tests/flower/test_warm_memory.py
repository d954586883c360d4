"""What a message's process leaves with the warm process for the next: made once, and anew once its files change."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hanse.data.schema import UnfitTableError
from hanse.flower import warm_memory
from hanse.flower.client import table
from hanse.flower.warm_memory import SOCKET, asked, remembered
from hanse.wings.operate import warm_process

SCHEMA = 'schema = { version = 1, target = "ill", labels = ["no", "yes"] }\n[columns]\nage = { kind = "numbers" }\n'
ROWS = ["age,ill", *(f"{30 + k},{'yes' if k % 3 else 'no'}" for k in range(60))]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """What a warm process keeps, which reads calls until the test is over."""
    found: dict[str, int] = {}
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "keeper"))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    caller, _ = server.accept()
                except OSError:
                    return
                with caller:
                    order, handles = warm_process.read(caller, found)
                for handle in handles:
                    os.close(handle)
                if order.get("end"):
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        monkeypatch.setenv(SOCKET, str(tmp_path / "keeper"))
        yield found
        asked(str(tmp_path / "keeper"), {"end": True})
        thread.join()
    for file in found.values():
        os.close(file)


def test_the_oldest_is_given_up_and_a_key_has_the_last(kept: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_process, "MOST", 2)
    assert [remembered(key, "1", lambda key=key: [key] * 3) for key in "abca"] == [[key] * 3 for key in "abca"]
    assert [*kept] == ["c", "a"]
    assert remembered("c", "1", lambda: pytest.fail("it is made again")) == ["c"] * 3
    assert remembered("c", "2", lambda: ["d"]) == ["d"]  # in the place of the first version
    asked(os.environ[SOCKET], {})  # the calls before are over
    links = [os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()]
    assert sum("/memfd:hanse" in link for link in links) == 2  # the others are closed


def test_what_cannot_be_kept_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = list[int]()
    with socket.socket(socket.AF_UNIX) as deaf:  # it takes calls, and answers none
        deaf.bind(str(tmp_path / "deaf"))
        deaf.listen()
        monkeypatch.setattr(warm_memory, "WAIT_S", 0.0)
        for place in ("deaf", "nobody"):
            monkeypatch.setenv(SOCKET, str(tmp_path / place))
            remembered("a", "1", lambda: made.append(1))
    assert made == [1, 1]


def test_a_table_is_prepared_once_and_anew_when_it_changes(
    kept: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, schema = tmp_path / "a.csv", tmp_path / "s.toml"
    file.write_text("\n".join(ROWS))
    schema.write_text(SCHEMA)
    first, again = table(file, schema), table(file, schema, profile={"cost": 1})
    assert len(kept) == 1
    assert torch.equal(first.train.x, again.train.x)
    assert (first.name, first.schema, again.profile) == (again.name, again.schema, {"cost": 1})
    file.write_text("\n".join(ROWS[:-1]))
    assert len(table(file, schema).train) < len(first.train)
    assert len(kept) == 1  # a row that its owner has deleted is nowhere
    for odd in ([*ROWS, "31,perhaps"], None):  # nor is a table in whose place there is one that does not fit, or none
        file.write_text("\n".join(ROWS))
        assert (len(table(file, schema).train), len(kept)) == (len(first.train), 1)
        file.unlink() if odd is None else file.write_text("\n".join(odd))
        with pytest.raises(UnfitTableError):
            table(file, schema)
        assert not kept
    file.write_text("\n".join(ROWS))
    monkeypatch.setenv(SOCKET, str(tmp_path / "nobody"))
    assert torch.equal(table(file, schema, site="b").train.x, table(file, schema).train.x)
