"""The projects that a user starts from: the template of ``hanse new`` and the example are whole."""

import importlib.util
import os
import stat
from configparser import ConfigParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import invoke
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from mistaken import mistakes

from hanse.base.errors import UserError
from hanse.core.recipe import Recipe
from hanse.federation.behaviour import Me
from hanse.federation.policy import answer
from hanse.flower.new import new
from hanse.flower.nodes import key_of
from hanse.flower.operator_key import fingerprint, make_operator_key, public_key
from hanse.runs.config import Experiment
from hanse.wings.operate.certificates import make_certificates, make_node_key
from hanse.wings.operate.loopback import Loopback
from hanse.wings.operate.processes import begun

EXAMPLE = Path(__file__).parents[2] / "examples" / "deployment"


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_a_new_project_is_whole(here: Path) -> None:
    said = invoke("new", "harvest")
    assert said.exit_code == 0, said.output
    made = here / "harvest"
    assert {p.name for p in made.iterdir()} == {
        ".gitignore", "Containerfile", "README.md", "client_app.py", "down.sh", "experiment.toml", "node.service",
        "pyproject.toml", "run.sh", "server.service", "server_app.py", "up.sh",
    }  # fmt: skip
    assert (made / "up.sh").stat().st_mode & stat.S_IXUSR
    Experiment.read(made / "experiment.toml")
    for unit in ("server.service", "node.service"):  # what they call is there, with these options
        said = ConfigParser(strict=False)
        said.optionxform = str  # type: ignore[assignment,method-assign]
        said.read(made / unit)
        calls = [value for name, value in said["Service"].items() if name.startswith("Exec")]
        assert {call.split()[1] for call in calls} == {"network"}
        for words in (call.split()[2:] for call in calls):
            shown = invoke("network", words[0], "--help", terminal_width=200).output
            assert [word for word in words if word.startswith("--") and word not in shown] == []
    client = module(made / "client_app.py")
    data = client.load_data(SimpleNamespace(node_config={"partition-id": 1}))
    assert (len(data.train), data.name) == (140, "participant 1")
    mine, me = client.Mine(), Me(1, 3, 0, Recipe(), 5)
    told = {"scores": {"loss": [2.0, 1.0], "accuracy": [0.2, 0.5]}, "price": 10, "balance": 15}
    assert answer(mine, "bid", me, 1, told) == {"tiers": [1]}
    assert answer(mine, "declare", me, 1, {}) == data.profile
    assert answer(mine, "stay", me, 1, {}) == {"stay": True}
    assert mine.authorise(me, 1, {}) == 20_000_000


def test_a_project_of_four_tables_is_for_four_members(here: Path) -> None:
    files = [f"{site}.csv" for site in "abcd"]
    for file in files:
        Path(file).write_text("age,ill\n" + "31.5,yes\n64,no\n" * 10)
    for words in (
        ["schema", *files, "--target", "ill", "--group", "none"],
        ["new", "harvest", "--schema", "schema.toml", *(f"--table={file}" for file in files)],
    ):
        said = invoke(*words)
        assert said.exit_code == 0, said.output
    made = Experiment.read(Path("harvest", "experiment.toml"))
    assert made.data.clients == made.mechanism.table["clients_per_round"] == 4
    for file in ("README.md", "server.service"):
        assert "--members 4 " in Path("harvest", file).read_text()


def test_all_mistakes_of_a_new_project_and_of_joining_are_told_at_once(here: Path) -> None:
    (here / "Harvest").mkdir()
    assert mistakes(new, "Harvest") == (
        "NAME: 'Harvest': must be lower-case letters, digits and '-', starting with a letter",
        "Harvest: exists already",
    )
    words = ["network", "join", "nowhere", "--ca", "ca.crt", "--key", "clinic"]
    said = invoke(*words, "--operator", "operator.pub", "--node-config", "data=one.csv")
    assert isinstance(said.exception, UserError)
    assert [line.split(": ")[0] for line in said.exception.lines] == [
        "HOST:PORT", "--ca", "--key", "--operator", "--node-config 'data=one.csv'",
    ]  # fmt: skip


def test_a_key_that_no_node_can_have_is_refused_before_anything_starts(here: Path) -> None:
    """At the participant's and at the operator's, in a line with the file and how such a key is made."""
    Loopback(here, here, (9100,)).save()
    make_node_key(here / "clinic")
    make_operator_key(here / "certs")
    make_certificates(here / "certs", "test")
    (here / "none").write_bytes(b"\x00")
    for file in ("clinic", "clinic.pub", "certs/operator.key", "certs/ca.crt", "none"):
        for words, half, where in (
            (["join", "localhost:9101", "--ca", "certs/ca.crt", "--key", file], "clinic", f"--key: {file}: "),
            (["admit", ".", file, "--name", "a"], "clinic.pub", f"KEY.pub: {file}: "),
        ):
            if file != half:
                said = invoke("network", *words)
                assert isinstance(said.exception, UserError)
                told = [(line.startswith(where), "ssh-keygen" in line) for line in said.exception.lines]
                assert told == [(True, True)]


def test_an_admitted_key_is_shown_as_the_run_will_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, registered = make_operator_key(tmp_path / "certs"), list[Any]()
    make_node_key(tmp_path / "clinic")
    Loopback(tmp_path, tmp_path, (9100,)).save()
    monkeypatch.setattr(Loopback, "register", lambda self, keys: registered.extend(keys))
    said = invoke("network", "admit", tmp_path, tmp_path / "clinic.pub", "--name", "a")
    assert registered == [(str(tmp_path / "clinic.pub"), "a")]
    node = SimpleNamespace(public_key=public_key_to_bytes(load_ssh_public_key((tmp_path / "clinic.pub").read_bytes())))
    assert said.output.splitlines()[-1].endswith(key_of(node))
    assert fingerprint(public_key(operator)) in said.output  # as 'join' shows it


def test_the_example_is_whole() -> None:
    assert Experiment.read(EXAMPLE / "experiment.toml").ledger.url is not None
    data = module(EXAMPLE / "client_app.py").load_data(SimpleNamespace(node_config={"partition-id": 2}))
    assert len(data.train) > 0
    validation, test = module(EXAMPLE / "server_app.py").load_server_data()
    assert len(validation) > 0
    assert len(test) > 0


def test_commands_say_where_there_is_no_federation(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="brought"):
        Loopback.read(tmp_path)
    (tmp_path / "network.json").write_text("{")
    with pytest.raises(UserError, match=r"network.json: is damaged"):
        Loopback.read(tmp_path)
    result = invoke("network", "up", tmp_path)
    assert isinstance(result.exception, UserError)
    assert "is not a project" in str(result.exception)


def test_a_mistake_in_the_experiment_is_told_before_anything_starts(
    harvest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = list[Path]()
    Loopback(harvest, harvest, (9100, 9101)).save()
    monkeypatch.setattr(Loopback, "_followed", lambda self, command, log, show: played.append(log))
    toml = (harvest / "experiment.toml").read_text()
    (harvest / "experiment.toml").write_text(toml.replace("[mechanism]", '[mechanism]\npay = "by_value"'))
    said = invoke("network", "run", "harvest")
    assert isinstance(said.exception, UserError)
    assert ("mechanism.pay" in str(said.exception), played) == (True, [])
    (harvest / "experiment.toml").write_text(toml)
    assert invoke("network", "run", "harvest").exit_code == 0
    assert len(played) == 1


@pytest.mark.usefixtures("harvest")
def test_an_option_that_up_is_not_given_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hanse.wings.operate.server_access.nginx", lambda: Path("nginx"))
    monkeypatch.setattr(Loopback, "up", lambda self, show: (made.append(self), self.save()))
    made = list[Loopback]()

    def up(*words: str) -> dict[str, Any]:
        before, said = made[-1] if made else None, invoke("network", "up", "harvest", *words)
        assert said.exit_code == 0, said.output
        return {name: value for name, value in vars(made[-1]).items() if before and value != getattr(before, name)}

    assert up() == {}
    assert (made[-1].ports, made[-1].listen) == ((18000, 18101, 18102, 18103), "127.0.0.1:18001")
    assert up("--port", "18300") == {"ports": (18300, 18401, 18402, 18403), "listen": "127.0.0.1:18301"}
    far = ("--nodes", "0", "--members", "3", "--listen", "0.0.0.0:9092", "--host", "fed.example.org")
    up(*far, "--import", "json")
    assert up() == up(*far) == {}
    assert up("--members", "4", "--port", "18600") == {"members": 4, "ports": (18600,)}
    assert made[-1].imports == ("json",)


def test_a_process_that_runs_gets_no_other_address(harvest: Path) -> None:
    """Its end alone can give it one: until then the project names the address at which it answers."""
    Loopback(harvest, harvest, (9100,), listen="127.0.0.1:9101", members=2).save()
    kept = (harvest / "network.json").read_text()
    (harvest / "logs").mkdir()
    for name in ("superlink", "proxy"):
        (harvest / "logs" / f"{name}.process").write_text(f"{os.getpid()} {begun(os.getpid())}\n")
    for words in (["--port", "9200"], ["--listen", "127.0.0.1:9300"], ["--members", "3"]):
        said = invoke("network", "up", "harvest", *words)
        assert isinstance(said.exception, UserError)
        assert " ".join(words) in str(said.exception)
        assert "it runs with --port 9100 --listen 127.0.0.1:9101" in str(said.exception)
    assert (harvest / "network.json").read_text() == kept


def test_what_the_experiment_names_is_beside_it(harvest: Path) -> None:
    """Wherever the command is given."""
    told = list[str]()
    (harvest / "charter.toml").write_text('title = "Two"\n[members.a]\n[members.b]\n')
    with (harvest / "experiment.toml").open("a") as file:
        file.write('[charter]\nfile = "charter.toml"\n')
    agreed = Loopback(harvest, harvest, (9100,)).agree(told.append)
    assert [("a, b" in line, "keys" in line) for line in told] == [(True, True)]  # nodes choose their names
    assert agreed.experiment["charter"]["title"] == "Two"
    assert Path.cwd() == harvest.parent
