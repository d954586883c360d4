"""What ``hanse network run`` shows of a run, how it ends, and that it is alone; a script in the place of Flower's."""

import json
import os
import signal
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deployed import until
from mistaken import mistakes
from test_flower_in_process import N, experiment, grid_of
from test_newcomers import run_with

from hanse.base.errors import RunFailedError, UserError
from hanse.flower import server
from hanse.flower.narrator import MARK
from hanse.mechanisms.weigh import BySamples
from hanse.runs.config import Experiment
from hanse.wings.operate import loopback
from hanse.wings.operate.processes import stream

# Each call of "run" starts the next of the runs that runs.json lists; a run prints its lines and has a status. One with
# "until" lasts until that file is there; of one with "cut" the stream breaks off after so many lines
FLOWER = """
import json, sys, time
from pathlib import Path
for words in json.loads(sys.argv[1]):
    place = Path("runs.json")
    runs, count = json.loads(place.read_text()), Path("count")
    if words[0] == "run":
        number = int(count.read_text()) + 1 if count.exists() else 1
        count.write_text(str(number))
        print("Successfully started run", number, flush=True)
    else:
        number = int(words[1] if words[0] == "log" else words[2])
    one = runs[number - 1]
    if words[0] == "list":
        if one.get("gone"):  # as Flower 1.41 and 1.42 print it
            said = "Using SuperLink: here\\n\\nit is unavailable.\\nCheck it."
            print(json.dumps({"success": False, "error-message": said}))
            continue
        done = Path(f"streamed{number}").exists()
        status = one["status"] if done else "running"
        print(json.dumps({"runs": [{"status": status, "status-details": one.get("details", "")}]}))
    else:
        lines = one["lines"][: one.get("cut")] if words[0] == "run" else one["lines"]
        for line in lines:
            print(line, flush=True)
        while "until" in one and not Path(one["until"]).exists():
            time.sleep(0.01)
        if words[0] == "log" or "cut" not in one:
            Path(f"streamed{number}").touch()
        sys.exit(1 if one.get("breaks") else 0)
"""


def network(folder: Path, monkeypatch: pytest.MonkeyPatch, *runs: dict[str, Any]) -> loopback.Loopback:
    monkeypatch.setattr(loopback, "_MANY", FLOWER)
    (folder / "logs").mkdir()
    (folder / "runs.json").write_text(json.dumps(runs))
    return loopback.Loopback(folder, folder, (1, 2))


def test_the_second_of_two_runs_is_refused_and_the_first_has_its_own_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {"lines": ["hanse: round 0"], "status": "finished:completed", "until": "go"}
    second = {"lines": [], "status": "finished:failed", "details": "another server plays this run"}
    net, ends = network(tmp_path, monkeypatch, first, second), list[str]()

    def play() -> None:
        try:
            ends.append(net.play())
        except UserError as wrong:
            ends.append(str(wrong))

    playing = threading.Thread(target=play)
    playing.start()
    until("the first to play", lambda: "round 0" in net.processes.log("run"))
    with pytest.raises(UserError) as refused:
        net.play()
    (tmp_path / "go").touch()
    playing.join()
    assert ends == ["Successfully started run 1\nhanse: round 0\n"]
    assert str(refused.value).startswith(f"{tmp_path / 'logs'}: is in use by process {os.getpid()} on ")
    assert not (tmp_path / "streamed2").exists()


def test_a_stream_that_breaks_off_is_taken_up_again_and_no_line_is_shown_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"hanse: round {i}" for i in range(4)]
    net = network(tmp_path, monkeypatch, {"lines": lines, "status": "finished:completed", "cut": 2, "breaks": True})
    shown: list[str] = []
    net.play(show=shown.append)
    assert shown == [f"round {i}" for i in range(4)]


def test_a_run_that_fails_says_what_the_server_said_and_where_its_log_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = ["hanse: round 0: own accuracy 0.5", "hanse: error: round 1: KeyError: 'x'", "hanse: asked last: client 3"]
    net = network(tmp_path, monkeypatch, {"lines": told, "status": "finished:failed", "details": "ServerApp failed"})
    shown: list[str] = []
    with pytest.raises(RunFailedError) as wrong:
        net.play(show=shown.append)
    assert wrong.value.lines == (
        "the run did not complete (finished:failed)", "error: round 1: KeyError: 'x'", "asked last: client 3",
        f"its log: {tmp_path / 'logs' / 'run.log'}",
    )  # fmt: skip
    assert shown == ["round 0: own accuracy 0.5"]


def test_a_superlink_that_has_gone_is_one_line_with_the_next_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network(tmp_path, monkeypatch, {"lines": ["hanse: round 0"], "breaks": True, "gone": True})
    assert mistakes(net.play) == (
        "the SuperLink is not running (the SuperLink does not say how the run goes: it is unavailable. Check it.)",
        f"its log: {tmp_path / 'logs' / 'superlink.log'}; 'hanse network up {tmp_path}' starts it",
        f"'hanse network run {tmp_path}' goes on after the last finished round",
    )


# ---- what the server says


def test_rounds_in_which_a_part_fails_are_said_with_who_sat_and_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*_: Any) -> Any:
        raise KeyError("a key of its own")

    monkeypatch.setattr(BySamples, "aggregate", breaks)
    given = experiment("fedavg", 5).model_dump()
    exp = Experiment(**given | {"mechanism": {"name": "fedavg", "clients_per_round": N}})
    with pytest.raises(RunFailedError, match="3 rounds in a row failed"):
        run_with(grid_of(exp, tmp_path), exp, tmp_path / "run")
    said = [r.getMessage() for r in caplog.records if r.name == "hanse.network"]
    failed = [s for s in said if "nothing of it counts" in s]
    assert [s.partition(":")[0] for s in failed] == ["round 0", "round 1", "round 2"]
    assert all("KeyError" in s for s in failed)
    assert any(s.startswith("round 0: had a seat: client 4 'client 4', node 104 (key") for s in said)


def test_a_run_in_which_nothing_was_mixed_fails_for_flower_too(monkeypatch: Any, tmp_path: Path, caplog: Any) -> None:
    monkeypatch.setattr(server, "used", lambda path, out: None)
    for why in (None, "No update was mixed in any round (of 2)."):
        monkeypatch.setattr(server, "play", lambda *given, nothing=why, **more: SimpleNamespace(nothing=nothing))
        with nullcontext() if why is None else pytest.raises(RunFailedError):
            server.server_app(experiment("fedavg"), out=tmp_path, members=2)(None, None)  # type: ignore[arg-type]
    assert [record.getMessage() for record in caplog.records if why in record.getMessage()] == [f"error: {why}"]


def test_what_a_command_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    began, heard = time.monotonic(), list[str]()
    words = f"sleep 20 & printf '{MARK}%s\\n{MARK}end' $!; exit 3"
    assert stream(["sh", "-c", words], os.environ, tmp_path, tmp_path / "log", heard.append) == 3
    left, end = heard
    os.kill(int(left), signal.SIGKILL)
    assert end == "end"
    assert time.monotonic() - began < 10
