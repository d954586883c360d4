"""What a stranger meets first: help with examples that work, and mistakes told in a line with what is allowed."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import torch
import typer
from commands import run_hanse

import hanse
from hanse.cli import app
from hanse.data.dataset import Dataset
from hanse.data.samples import Samples

Command = tuple[tuple[str, ...], click.Command]


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[Command]:
    """Yield every command below this one, and itself."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, (*path, name))


COMMANDS = dict(walk(typer.main.get_command(app)))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_help_has_an_example_that_the_command_understands(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    assert command.help or path == ()
    head, *examples = (command.epilog or "").split("\n\n")
    assert head in ("Example:", "Examples:")
    examples = [part for line in examples for part in line.split(" && ") if part.startswith("hanse ")]
    assert any(part.split()[1 : len(path) + 1] == list(path) for part in examples)
    for example in examples:
        words = shlex.split(example)[1:]
        called, depth = COMMANDS[()], 0
        while words[depth : depth + 1] and tuple(words[: depth + 1]) in COMMANDS:
            depth += 1
            called = COMMANDS[tuple(words[:depth])]
        assert depth, example
        known = {name for parameter in called.params for name in parameter.opts}
        assert {word for word in words[depth:] if word.startswith("-")} <= known, example
    for parameter in command.params:
        assert not isinstance(parameter, click.Option) or parameter.help or parameter.name == "help", parameter.name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("first")
    (place / "exp.toml").write_text(
        '[data]\nclients = 6\n[mechanism]\nname = "greedyfed"\nclients_per_round = 2\n[run]\nrounds = 1\n'
        '[engine]\ntrain = "stacked"\n'
    )
    (place / "broken.toml").write_text("x = [1")
    hanse.run(hanse.Experiment.read(place / "exp.toml"), out=place / "done")
    return place


def test_a_run_that_exists_is_refused_before_anything_is_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for module in ("hanse.runs.config", "hanse.runs.experiment"):
        monkeypatch.setitem(sys.modules, module, None)  # importing it would fail
    code, _, said = run_hanse("run", "exp.toml", "--out", "done")
    refusal = "--out done: exists already; give another folder, --overwrite, or 'hanse resume done'"
    assert (code, said) == (2, f"hanse: {refusal}\n")


SET = ["run", "exp.toml", "--set"]
MANY = ["data.clients=21", "--set", "mechanism.clients_per_round=21", "--set", "mechanism.value=exact"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([*SET, "data.clients=100000"], "100000"),
        ([*SET, "mechanism.clients_per_round=7"], "6 clients"),
        ([*SET, "federation.min_replies=3"], "federation.min_replies: 3: more than the 2 seats"),
        ([*SET, "engine.device=tpu9"], "engine.device"),
        ([*SET, "engine.precision=bf16"], "computes in float32; allowed: leave it out"),
        ([*SET, "model.batch_norm=False"], "model.batch_norm: 'False'"),
        ([*SET, *MANY], "mechanism.value: all coalitions of 21 updates are 2**21 models; allowed: at most 20 updates"),
        (["resume", "nowhere"], "nowhere"),
        ([*SET, "model.name=cnn"], "model.name: 'cnn': needs larger images than 8 x 8"),
        (["run", "broken.toml"], "broken.toml: not valid TOML: Unclosed array (at end of document)"),
        (["run"], "Missing argument 'EXP.toml' (see 'hanse run --help')"),
        (["rnu"], "No such command 'rnu'. Did you mean 'run'? (see 'hanse --help')"),
        (["value"], "No such command 'value': it is a function of Python, hanse.value (see 'hanse --help')"),
        (["audit"], "a command is missing (see 'hanse audit --help')"),
        (["report", "a:one:b"], "a:one:b: there is no such run directory"),  # not a1️⃣b
        (["report", "done", "--out", "exp.toml"], "exp.toml/figures: not a directory; give another path"),
        (["demo", "--seeds", "0"], "Invalid value for '--seeds': 0 is not in the range x>=1 (see 'hanse demo --help')"),
        (["demo", "--out", "."], "not of an earlier demo; give another folder"),
        (["run", "exp.toml", "--out="], "--out: is empty; must be a word or left out"),
        (["report", ""], "the word after report: is empty"),
        (["new", "../up"], "NAME: '../up': must be lower-case letters, digits and '-', starting with a letter"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_mistakes_name_the_field_the_value_and_what_is_allowed(
    folder: Path, args: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HANSE_DATA", raising=False)  # what is allowed depends on the data that are here
    code, _, said = run_hanse(*args)
    assert code == 2
    assert said.count("\n") == 1, said
    assert said.startswith("hanse: ")
    assert expected in said
    assert not (folder / "runs").exists()


def test_the_version() -> None:
    assert run_hanse("--version")[:2] == (0, "hanse 0.1.0\n")


def test_a_model_with_one_answer_a_sample_is_refused_on_texts() -> None:
    x = torch.arange(320).reshape(40, 8) % 5
    texts = Dataset("texts", Samples(x[:30], x[:30]), Samples(x[30:], x[30:]), 5, (8,))
    with pytest.raises(hanse.UserError, match=r"model\.name: 'mlp': .*tokens"):
        hanse.run(hanse.Experiment(data={"clients": 3, "partition": "iid"}, mechanism="fedavg"), data=texts)


@pytest.mark.parametrize(
    ("args", "missing", "expected"),
    [
        (["run", "exp.toml", "--track", "tensorboard"], "tensorboard", "pip install '.[track]' in a clone of hanse"),
        ([*SET, "federation.engine=ray"], "ray", "pip install '.[ray]' in a clone of hanse"),
        ([*SET, "data.source=fiqa"], "datasets", "pip install '.[llm]' in a clone of hanse"),
    ],
    ids=lambda x: "" if isinstance(x, list) else x,
)
def test_an_extra_that_is_not_installed_is_named(
    folder: Path, args: list[str], missing: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "datasets":
        pytest.importorskip("hanse.wings.language")
    monkeypatch.chdir(folder)
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("sys.meta_path", [Without(missing), *sys.meta_path])
    code, _, said = run_hanse(*args)
    assert (code, said.count("\n")) == (2, 1), said
    assert expected in said


class Without:
    """An importer that finds one library missing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] == self._name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
