"""Keys, sessions, limits: who is let in, for how long, and how often somebody may try."""

import json
import os
import stat
from pathlib import Path

import pytest

from hanse.base.errors import UserError
from hanse.wings.operate.page import keys as keys_module
from hanse.wings.operate.page.keys import SESSION_S, Key, Sessions, check_key, make_key, read_keys, write_keys


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def filed(folder: Path, *wanted: tuple[str, int | None]) -> tuple[Path, list[str]]:
    made = [make_key(role, client) for role, client in wanted]
    file = folder / "keys.json"
    write_keys(file, [key for _, key in made])
    return file, [secret for secret, _ in made]


def test_a_key_opens_and_a_changed_one_does_not(tmp_path: Path) -> None:
    file, (operator, third) = filed(tmp_path, ("operator", None), ("participant", 3))
    keys = read_keys(file)
    assert (check_key(keys, operator).role, check_key(keys, operator).client) == ("operator", None)
    assert check_key(keys, third).client == 3
    id_, secret = third.split("_", 2)[1:]
    swapped = f"hanse_{operator.split('_', 2)[1]}_{secret}"
    for wrong in ("", "hanse", third[:-1], third + "x", third.swapcase(), swapped, f"hanse_{id_}_{'A' * 43}", "\ud800"):
        assert check_key(keys, wrong) is None


def test_the_file_holds_hashes_and_is_its_owners_alone(tmp_path: Path) -> None:
    file, secrets = filed(tmp_path, ("operator", None), ("participant", 0))
    text = file.read_text()
    assert all(secret not in text and secret.split("_", 2)[2] not in text for secret in secrets)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["keys.json"]
    assert len({make_key("operator")[0] for _ in range(50)}) == 50


def test_what_does_not_fit_is_refused() -> None:
    for role, client, run in (
        ("owner", None, None), ("participant", None, None), ("operator", 3, None), ("participant", -1, None),
        ("operator", None, "run"),
    ):  # fmt: skip
        with pytest.raises(UserError, match="--"):
            make_key(role, client, run)


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", '{"keys": 3}', '{"keys": [{"id": "x"}]}',
        json.dumps({"keys": [{"id": "x", "role": "participant", "hash": "0" * 64}]}),
        json.dumps({"keys": [{"id": "x", "role": "operator", "hash": "0" * 64, "client": 3}]}),
        json.dumps({"keys": [{"id": "x", "role": "operator", "hash": "short"}]}),
        json.dumps({"keys": [{"id": "x", "role": "participant", "hash": "0" * 64, "client": True}]}),
        json.dumps({"keys": [{"id": "x", "role": "operator", "hash": "0" * 64, "more": 1}]}),
    ],
)  # fmt: skip
def test_a_damaged_file_lets_nobody_in(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(text)
    with pytest.raises(UserError, match=r"keys\.json"):
        read_keys(file)


def test_sessions_end_by_age_logout_and_revocation(tmp_path: Path, clock: Clock) -> None:
    file, (secret, other) = filed(tmp_path, ("operator", None), ("participant", 1))
    sessions = Sessions(file, clock)
    key, second = sessions.by_key(secret), sessions.by_key(other)
    assert key is not None
    assert second is not None
    one, two, three = sessions.open_session(key), sessions.open_session(second), sessions.open_session(key)
    assert sessions.by_session(one) == key
    assert sessions.by_session("x") is None
    assert one not in repr(sessions._open)
    sessions.close_session(one)
    assert sessions.by_session(one) is None
    write_keys(file, [key])  # the participant's is gone
    os.utime(file, (1, 1))
    assert sessions.by_session(two) is None
    assert not sessions.still(second)
    assert sessions.by_key(other) is None
    assert sessions.by_session(three) == key
    clock.now += SESSION_S + 1
    assert sessions.by_session(three) is None


def test_a_key_that_now_belongs_to_another_ends_the_session(tmp_path: Path, clock: Clock) -> None:
    file, (secret,) = filed(tmp_path, ("participant", 1))
    sessions = Sessions(file, clock)
    key = sessions.by_key(secret)
    session = sessions.open_session(key)
    write_keys(file, [Key(key.id, "participant", key.hash, 2)])
    os.utime(file, (1, 1))
    assert sessions.by_session(session) is None


def test_a_file_that_is_gone_or_damaged_shuts_the_doors(tmp_path: Path, clock: Clock) -> None:
    file, (secret,) = filed(tmp_path, ("operator", None))
    sessions = Sessions(file, clock)
    text = file.read_text()
    file.write_text("damaged")
    assert sessions.by_key(secret) is None
    file.unlink()
    assert sessions.by_key(secret) is None
    file.write_text(text)
    assert sessions.by_key(secret) is not None


def test_sessions_are_bounded(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "SESSIONS", 3)
    file, (secret,) = filed(tmp_path, ("operator", None))
    sessions = Sessions(file, clock)
    key = sessions.by_key(secret)
    assert key is not None
    opened = [sessions.open_session(key) for _ in range(5)]
    assert [sessions.by_session(s) is not None for s in opened] == [False, False, True, True, True]


def test_a_file_without_keys_is_no_auth(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.json", [])
    with pytest.raises(UserError, match="holds no keys"):
        Sessions(tmp_path / "keys.json")
    with pytest.raises(UserError, match="no such file"):
        Sessions(tmp_path / "none.json")
