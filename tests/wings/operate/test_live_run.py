"""What the live page knows of a run: everything, difference by difference, and again after a cut."""

import json
from pathlib import Path
from typing import Any

import pytest
from web_cases import Growing

from hanse.core.entry import MINT, TOKEN
from hanse.ledger.totals import flows_of, net_of
from hanse.runs.arrivals import STILL
from hanse.runs.line_tail import last_line
from hanse.wings.operate.page.live_run import LiveBooks, LiveRun, SparseSeries, encode
from hanse.wings.operate.page.runs import find_runs, summary


def taken(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Put messages together as the page's script does."""
    state: dict[str, Any] = {}
    for message in messages:
        if message["whole"]:
            state = {
                "series": message["series"],
                "clients": {row[0]: row for row in message["clients"]},
                "utility": dict(message["utility"]),
                "accounts": dict(message["books"]["accounts"]) if message["books"] else {},
                "flows": message["books"]["flows"] if message["books"] else [],
            }
        else:
            for key, points in message["points"].items():
                found = state["series"].setdefault(key, SparseSeries().as_json())
                for x, y in points:
                    assert found["stride"] == 1  # these runs are short
                    found["x"].append(x)
                    found["y"].append(y)
                    found["seen"] += 1
                    found["last"] = (x, y)
            state["clients"] |= {row[0]: row for row in message.get("clients", [])}
            state["utility"] |= dict(message.get("utility", []))
            if "books" in message:
                state["accounts"] |= message["books"]["accounts"]
                state["flows"] = message["books"]["flows"]
        state["latest"], state["progress"] = message.get("latest", state.get("latest")), message["progress"]
    return state


def test_differences_add_up_to_the_whole(tmp_path: Path) -> None:
    run = Growing(tmp_path / "run", money=True)
    live = LiveRun(run.folder, "run")
    messages = [live.whole()]
    for n in range(6):
        run.round(**{"utility/client/0": n / 2})
        message = live.look()
        assert not message["whole"]
        messages.append(json.loads(encode(message)))
        assert live.look() is None
    whole, sum_ = taken([live.whole()]), taken(messages)
    assert json.loads(json.dumps(whole["series"])) == json.loads(json.dumps(sum_["series"]))
    for name in ("clients", "accounts", "utility"):
        assert whole[name] == sum_[name]
    assert [list(flow) for flow in whole["flows"]] == sum_["flows"]
    # client c pays c + 1 tokens a round to the next one
    assert whole["accounts"]["client/0"] == [100 * TOKEN + 6 * (4 - 1) * TOKEN, 6 * TOKEN, 24 * TOKEN]
    assert whole["accounts"][MINT][0] == -400 * TOKEN
    assert whole["flows"][0] == ("client/3", "client/0", 24 * TOKEN)
    assert whole["clients"][3] == [3, pytest.approx(0.18), None, None, 6, 0, 5]
    assert whole["utility"] == {0: 2.5}
    assert "utility/client/0" not in whole["series"]


def test_progress_says_how_far_and_how_fast(tmp_path: Path) -> None:
    run = Growing(tmp_path / "run", planned=3)
    live = LiveRun(run.folder, "run")
    assert live.whole()["progress"]["state"] == "waiting"
    run.round()
    run.round(refused=2)
    progress = live.look()["progress"]
    assert (progress["rounds"], progress["planned"], progress["refused"]) == (2, 3, 2)
    assert (progress["state"], progress["pace_s"], progress["seed"]) == ("running", 0.5, 7)
    run.round()
    assert live.look()["progress"]["state"] == "finished"


def test_a_state_that_changes_by_itself_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Growing(tmp_path / "run")
    live = LiveRun(run.folder, "run")
    run.round()
    live.look()
    changed = (run.folder / "metrics.jsonl").stat().st_mtime
    monkeypatch.setattr("hanse.wings.operate.page.live_run.time.time", lambda: changed + 3600)
    assert live.look()["progress"]["state"] == "quiet"
    assert live.look() is None


def test_a_resumed_run_is_told_anew(tmp_path: Path) -> None:
    run = Growing(tmp_path / "run")
    live = LiveRun(run.folder, "run")
    for _ in range(5):
        run.round()
    live.look()
    run.cut(2)
    message = live.look()
    assert message["whole"]
    assert message["progress"]["rounds"] == 2
    whole = live.whole()
    assert whole["series"]["test/accuracy"]["x"] == [0, 1]
    assert [row[4] for row in whole["clients"]] == [2, 2, 2, 2]
    run.round()
    assert live.look()["progress"]["rounds"] == 3


def test_numbers_that_json_does_not_know_stay_out(tmp_path: Path) -> None:
    run = Growing(tmp_path / "run")
    seats = [{"client": 0, "value": float("nan"), "value_error": float("inf")}, {"client": "0"}, {"client": -1}]
    run.round(seats, **{"train/loss": float("nan"), "flag": True, "word": "x", "test/loss": None})
    live = LiveRun(run.folder, "run")
    message = live.look()
    encode(message)
    assert "train/loss" not in message["points"]
    assert "flag" not in message["points"]
    assert message["clients"] == [[0, None, None, None, 1, 0, 0]]
    assert message["progress"]["damaged"] == 2


def test_refusals_and_names_are_told(tmp_path: Path) -> None:
    run = Growing(tmp_path / "run")
    run.round([{"client": 1, "refused": "NaN" * 200}, {"client": 2, "value": 1.0, "cumulative_value": 5.0}])
    (run.folder / "members.json").write_text(json.dumps([{"id": 1, "name": "<b>x</b>"}, {"id": 2, "name": ""}]))
    live = LiveRun(run.folder, "run")
    live.look()
    whole = live.whole()
    assert whole["names"] == [(1, "<b>x</b>")]
    assert whole["refusals"] == [(0, 1, ("NaN" * 200)[:200])]
    assert whole["clients"] == [[1, None, None, None, 0, 1, 0], [2, 1.0, None, 5.0, 1, 0, 0]]
    (run.folder / "members.json").write_text("damaged")
    live.look()
    assert live.whole()["names"] == []


@pytest.mark.parametrize(("late", "refused"), [("next", 0), ("drop", 1)])
def test_who_only_trains_on_is_refused_where_late_updates_are_dropped(late: str, refused: int, tmp_path: Path) -> None:
    run = Growing(tmp_path / "run")
    with (run.folder / "config.toml").open("a") as file:
        file.write(f'\n[federation]\nlate = "{late}"\n')
    run.round([{"client": 1, "refused": STILL}, {"client": 2}], refused=1)
    live = LiveRun(run.folder, "run")
    live.look()
    whole = live.whole()
    assert whole["progress"]["refused"] == refused
    assert len(whole["refusals"]) == refused
    assert whole["clients"] == [[1, None, None, None, 0, refused, 0], [2, None, None, None, 1, 0, 0]]


def test_a_sum_has_the_standard_error_of_a_sum(tmp_path: Path) -> None:
    run = Growing(tmp_path / "run")
    run.round([{"client": 0, "value": 1.0, "value_error": 0.3}])
    run.round([{"client": 0, "value": 2.0, "value_error": 0.4, "cumulative_value": 1.5}])
    run.round([{"client": 0, "value": -1.0, "value_error": None}])
    live = LiveRun(run.folder, "run")
    # an estimate of unknown error is in the sum
    assert live.look()["clients"] == [[0, 2.0, None, 1.5, 3, 0, 2]]
    known = Growing(tmp_path / "known")
    known.round([{"client": 0, "value": 1.0, "value_error": 0.3}])
    known.round([{"client": 0, "value": 2.0, "value_error": 0.4, "cumulative_value": 1.5}])
    assert LiveRun(known.folder, "known").look()["clients"] == [[0, 3.0, pytest.approx(0.5), 1.5, 2, 0, 1]]


def test_books_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    run = Growing(tmp_path / "run")
    run.round()
    (run.folder / "ledger.json").write_text('{"book": "town"}')
    (run.folder / "transactions.jsonl").write_bytes(b"not a log\n" * 100)
    (run.folder / "transactions.heads").write_bytes(b"no heads\n" * 100)
    live = LiveRun(run.folder, "run")
    message = live.look()
    assert "is not a head of a log" in message["books"]["trouble"]
    assert live.look() is None


@pytest.mark.parametrize(
    ("postings", "flows"),
    [
        ((("client/0", -5), ("client/1", 3), ("pool/a", 2)), [("client/0", "client/1", 3), ("client/0", "pool/a", 2)]),
        ((("client/0", -5), ("escrow/0", 5)), []),
        ((("escrow/0", -5), ("pool/a", 5)), [("client/0", "pool/a", 5)]),
        ((("mint", -5), ("client/0", 5)), []),
        ((("pool/a", -9), ("client/0", 4), ("client/1", 5)), [("pool/a", "client/0", 4), ("pool/a", "client/1", 5)]),
        (
            (("client/0", -6), ("client/1", -4), ("client/2", 5), ("client/3", 5)),
            [("client/0", "client/2", 3), ("client/0", "client/3", 3), ("client/1", "client/2", 2),
             ("client/1", "client/3", 2)],
        ),
    ],
)  # fmt: skip
def test_who_paid_whom(postings: tuple[tuple[str, int], ...], flows: list[tuple[str, str, int]]) -> None:
    assert flows_of(net_of(postings)) == flows


def test_books_are_followed_from_where_they_were_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hanse.wings.operate.page.live_run.CHUNK", 3)
    run = Growing(tmp_path / "run", money=True)
    books = LiveBooks(run.folder)
    while books.read():
        pass
    assert books.totals.count == 4
    run.round()
    while books.read():
        pass
    assert (books.totals.count, books.totals.round) == (8, 0)
    assert books.totals.balances == run.ledger.balances()
    assert sum(books.totals.balances.values()) == 0
    assert books.totals.biggest(2) == [("client/3", "client/0", 4 * TOKEN), ("client/2", "client/3", 3 * TOKEN)]
    assert books.totals.traded["client/3"] == (4 * TOKEN, 3 * TOKEN)


def test_runs_are_found_and_summed_up(tmp_path: Path) -> None:
    for name in ("b/one", "a"):
        run = Growing(tmp_path / name, planned=2)
        run.round()
    (tmp_path / "a" / "rounds" / "config.toml").touch()  # not a run: it lies in one's records
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.toml").write_text("[run\n")
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / "config.toml").write_text('[superlink]\ndefault = "here"\n')  # another program's
    found = find_runs(tmp_path)
    assert [f.name for f in found.values()] == ["a", "b/one", "broken"]
    assert all(id_ == f.id and len(id_) == 12 for id_, f in found.items())
    lines = [summary(f, (f.folder / "metrics.jsonl").stat().st_mtime + 2) for f in list(found.values())[:2]]
    assert [(x["rounds"], x["planned"], x["state"], x["clients"]) for x in lines] == [(1, 2, "running", 4)] * 2
    assert lines[0]["figure"] == "accuracy 50.0 %"
    broken = summary(found[next(id_ for id_, f in found.items() if f.name == "broken")], 0.0)
    assert (broken["rounds"], broken["planned"], broken["mechanism"]) == (0, None, "?")
    assert [f.folder for f in find_runs(tmp_path / "a").values()] == [tmp_path / "a"]


def test_the_last_line_is_the_last_whole_one(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    assert last_line(file) == {}
    file.write_text('{"round": 0}\n{"round": 1}\n{"rou')
    assert last_line(file) == {"round": 1}
    file.write_text("3\n")
    assert last_line(file) == {}
