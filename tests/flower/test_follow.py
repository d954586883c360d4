"""What ``hanse network run`` shows of a run, how it ends, and that it is alone; a script in the place of Flower's."""

import io
import json
import logging
import os
import textwrap
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from deployed import until
from flwr.app import Message
from test_flower_in_process import N, everyone, experiment, grid_of, swap
from test_letters import After
from test_newcomers import key_of, run_with

from hanse.base.errors import MachineError, RunFailedError, UserError
from hanse.flower import server
from hanse.flower.narrator import MARK, speaking
from hanse.flower.server import server_app
from hanse.mechanisms.weigh import BySamples
from hanse.wings.operate import loopback
from hanse.wings.operate.loopback import Loopback

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


def network(folder: Path, monkeypatch: pytest.MonkeyPatch, *runs: dict[str, Any]) -> Loopback:
    monkeypatch.setattr(loopback, "_MANY", FLOWER)
    (folder / "logs").mkdir()
    (folder / "runs.json").write_text(json.dumps(runs))
    return Loopback(folder, folder, (1, 2))


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


def test_our_lines_are_shown_as_they_come_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["INFO : noise", "hanse: round 0: own accuracy 0.5", "", "hanse: round 1: own accuracy 0.7"]
    net = network(tmp_path, monkeypatch, {"lines": lines, "status": "finished:completed"})
    shown: list[str] = []
    assert net.play(show=shown.append).splitlines()[1:] == lines
    assert shown == ["round 0: own accuracy 0.5", "round 1: own accuracy 0.7"]


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


def test_a_mistake_in_what_was_given_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = ["hanse: mistake: data.clients: 2: must be at least the 3 members"]
    net = network(tmp_path, monkeypatch, {"lines": told, "status": "finished:failed", "details": "ServerApp failed"})
    with pytest.raises(UserError) as wrong:  # exit code 2; a run that fails by itself exits with 1
        net.play()
    assert wrong.value.lines[1] == "mistake: data.clients: 2: must be at least the 3 members"


def test_a_superlink_that_has_gone_is_one_line_with_the_next_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network(tmp_path, monkeypatch, {"lines": ["hanse: round 0"], "breaks": True, "gone": True})
    with pytest.raises(UserError) as wrong:
        net.play()
    assert wrong.value.lines == (
        "the SuperLink is not running (the SuperLink does not say how the run goes: it is unavailable. Check it.)",
        f"its log: {tmp_path / 'logs' / 'superlink.log'}; 'hanse network up {tmp_path}' starts it, with the options "
        "that it was first given",
        f"'hanse network run {tmp_path}' goes on after the last finished round",
    )


def test_an_admitted_key_is_told_in_our_words_and_flowers_box_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def boxed(said: str) -> str:
        """As Flower 1.41 and 1.42 print an error."""
        lines = [line.ljust(76) for line in textwrap.wrap(said, 76)]
        box = "\n".join(("╭─ Error ─╮", *(f"│ {line} │" for line in lines), "╰────╯"))
        return f"import sys; print('Using SuperLink: here'); print({box!r}, file=sys.stderr); sys.exit(1)"

    net = network(tmp_path, monkeypatch)
    monkeypatch.setattr(loopback.Processes, "pid", lambda self, name: 1)
    monkeypatch.setattr(loopback, "_MANY", boxed("[code: 23] Public key already in use."))
    with pytest.raises(UserError) as wrong:
        net.register([("clinic.pub", "the clinic")])
    assert str(wrong.value) == "KEY.pub: clinic.pub: is admitted already; whoever has it can join"
    unavailable = "Connection to the SuperLink is unavailable. Please check your network connection and 'address'."
    monkeypatch.setattr(loopback, "_MANY", boxed(unavailable))
    with pytest.raises(UserError) as wrong:
        net.register([("clinic.pub", "the clinic")])
    assert str(wrong.value) == f"flwr supernode register: failed: {unavailable}"
    monkeypatch.setattr(loopback.Processes, "pid", lambda self, name: None)
    with pytest.raises(UserError) as wrong:
        net.register([("clinic.pub", "the clinic")])
    assert wrong.value.lines[0] == f"the SuperLink is not running (flwr supernode register: failed: {unavailable})"


def test_a_server_app_that_is_not_ours_fails_with_what_flower_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    details = "ServerApp failed with exception: no such file\nand more"
    run = {"lines": ["Traceback"], "status": "finished:failed", "details": details}
    with pytest.raises(RunFailedError) as wrong:
        network(tmp_path, monkeypatch, run).play()
    assert wrong.value.lines[1:-1] == (details.splitlines()[0],)


# ---- what the server says


def test_rounds_accuracy_and_who_was_refused_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    exp = everyone(run={"rounds": 2}, eval={"every": 1})

    def unwilling(node: int, message: Message, reply: Message) -> Message:
        if node != 101 or message.content["hanse"].get("kind") == "hello":
            return reply
        return Message(swap(reply.content, refused="I do not\nwant to"), reply_to=message)

    run = run_with(grid_of(exp, tmp_path, meddle=unwilling), exp, tmp_path / "run")
    said = [r.getMessage() for r in caplog.records]
    for number, line in enumerate(run.metrics):
        figure = f"own accuracy {line['client/test_accuracy']:.3f}"
        assert any(s.startswith(f"round {number}: {figure}, 4 of 5 seats answered ({number + 1} of 2") for s in said)
    who = f"client 1 (client 1, key {key_of(101)})"
    refused = list(dict.fromkeys(s for s in said if "refused" in s and not s.startswith("round 2")))
    assert refused == [f"round {i}: {who}: refused: I do not?want to" for i in range(2)]
    assert said[0] == f"{tmp_path / 'run'}: 0 of 2 rounds are played; 5 members are here"
    assert f"{tmp_path / 'run'}" in said[-1]


def test_rounds_in_which_a_part_fails_are_said_with_who_sat_and_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(*_: Any) -> Any:
        raise KeyError("a key of its own")

    monkeypatch.setattr(BySamples, "aggregate", breaks)
    exp = everyone(run={"rounds": 5})
    with pytest.raises(RunFailedError, match="3 rounds in a row failed"):
        run_with(grid_of(exp, tmp_path), exp, tmp_path / "run")
    said = [r.getMessage() for r in caplog.records if r.name == "hanse.network"]
    failed = [s for s in said if "nothing of it counts" in s]
    assert [s.partition(":")[0] for s in failed] == ["round 0", "round 1", "round 2"]
    assert all("KeyError" in s for s in failed)
    assert any(s.startswith("round 0: had a seat: client 4 'client 4', node 104 (key") for s in said)


def test_an_error_names_its_round_and_the_clients_that_were_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exp = experiment("fedavg", rounds=3)
    grid = grid_of(exp, tmp_path)

    def broken(messages: Any) -> Any:
        raise RuntimeError("cannot be sent")

    after = After(0, lambda: setattr(grid, "push_messages", broken))
    with pytest.raises(RuntimeError):
        run_with(grid, exp, tmp_path / "run", N, after)
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert said[0] == "error: round 1: RuntimeError: cannot be sent"
    assert len(said) == 4  # three clients a round
    assert all(line.startswith("asked last: client ") and "(key " in line for line in said[1:])


def test_a_run_in_which_nothing_was_mixed_fails_for_flower_too(monkeypatch: Any, tmp_path: Path, caplog: Any) -> None:
    monkeypatch.setattr(server, "used", lambda path, out: None)
    for why in (None, "No update was mixed in any round (of 2)."):
        monkeypatch.setattr(server, "play", lambda *given, nothing=why, **more: SimpleNamespace(nothing=nothing))
        with nullcontext() if why is None else pytest.raises(RunFailedError):
            server_app(experiment("fedavg"), out=tmp_path, members=2)(None, None)  # type: ignore[arg-type]
    assert [record.getMessage() for record in caplog.records if why in record.getMessage()] == [f"error: {why}"]


def test_flowers_log_has_no_traceback_of_what_was_told(capsys: pytest.CaptureFixture[str]) -> None:
    flower, out = logging.getLogger("flwr"), io.StringIO()
    handler = logging.StreamHandler(out)
    flower.addHandler(handler)
    try:
        for wrong in (UserError("members: one", "two"), MachineError("the disk is full"), KeyError("odd")):
            with pytest.raises(type(wrong)), speaking():
                raise wrong
            flower.error("a server app raised an exception", exc_info=wrong)
    finally:
        flower.removeHandler(handler)
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith(MARK)]
    assert told == [f"{MARK}mistake: members: one", f"{MARK}mistake: two", f"{MARK}error: the disk is full"]
    assert (out.getvalue().count("raised"), out.getvalue().count("odd")) == (3, 1)
    assert "disk" not in out.getvalue()
