"""Tables by a schema: on a network they give the bits of the rehearsal, and what does not fit stays with its owner."""

import json
import logging
import re
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from commands import invoke
from experiments import digits
from inprocess import InProcessGrid, client_app, play
from mistaken import mistakes
from test_projects import module

import hanse
from hanse.base import toml
from hanse.data.schema import digest
from hanse.flower import table
from hanse.flower.agreement import Agreement, canonical, introduced

SITES = ("Basel", "Kiel", "Visby")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three tables and the schema that the command drafts of them."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for site in SITES:
        lines = ["patient,seen,age,sex,ill"]
        for _ in range(60):
            age = draw.normal(50, 10)
            ill = "yes" if age + draw.normal(0, 4) > 50 else "no"
            gap = draw.random() < 0.1
            lines.append(
                f"{site}{draw.integers(30)},2024-{draw.integers(1, 13):02}-05,{'' if gap else f'{age:.1f}'},"
                f"{draw.choice(['f', 'm'])},{ill}"
            )
        Path(f"{site}.csv").write_text("\n".join(lines))
    words = ["schema", *files(), "--target", "ill", "--group", "patient", "--time", "seen", "--validation", "0.2"]
    said = invoke(*words)
    assert said.exit_code == 0, said.output
    assert digest("schema.toml") in said.output
    return tmp_path


def files() -> list[str]:
    return [f"{site}.csv" for site in SITES]


def experiment(**source: Any) -> hanse.Experiment:
    data = {"source": {"schema": "schema.toml", "files": files(), **source}}
    model = {"name": "mlp", "hidden": [8]}
    engine = {"train": "sequential", "workers": 1, "device": "cpu"}
    return digits("fedavg", 3, 2, data=data, model=model, engine=engine, train={"lr": 0.05}, eval={"every": 1})


def grid(load: Any) -> InProcessGrid:
    return InProcessGrid({100 + i: client_app(lambda context, i=i: load(i), folder=Path(f"node{i}")) for i in range(3)})


def test_the_same_tables_give_the_same_bits_rehearsed_and_on_a_network(folder: Path) -> None:
    exp = experiment()
    local = hanse.run(exp)
    said = invoke("new", "trial", "--schema", "schema.toml", *(f"--table={one}" for one in files()))
    assert said.exit_code == 0, said.output
    made = module(folder / "trial" / "client_app.py")  # what a project's nodes run
    nodes = grid(lambda i: made.load_data(SimpleNamespace(node_config={"partition-id": i})))
    network = play(nodes, exp, folder / "run", data=lambda: (None, None))
    assert torch.equal(local.table.rows, network.table.rows)
    assert local.clients == network.clients
    assert local.names == SITES
    for ours, theirs in zip(local.metrics, network.metrics, strict=True):
        assert ours["client/test_loss"] == pytest.approx(theirs["client/test_loss"], rel=1e-12)
    agreed = canonical(hanse.Experiment.read(folder / "trial" / "experiment.toml"))
    assert agreed["data"] == canonical(exp)["data"] == {"clients": 3, "schema": digest("schema.toml")}
    made_of = Agreement.of(exp, run="a", network="b", operator=bytes(32), day="2026-11-29")
    assert digest("schema.toml") in introduced(made_of)
    config = {"table": str(folder / "Kiel.csv"), "site": "Holstein"}
    assert made.load_data(SimpleNamespace(node_config=config)).name == "Holstein"


def test_a_table_that_does_not_fit_is_told_to_its_owner_and_its_code_to_the_operator(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Path("Kiel.csv").write_text(Path("Kiel.csv").read_text().replace(",f,", ",secret,"))
    with caplog.at_level(logging.INFO):
        load = partial(table, schema="schema.toml")
        play(grid(lambda i: load(files()[i])), experiment(), folder / "run", data=lambda: (None, None), patience_s=0.1)
    lines = [(record.name, record.getMessage()) for record in caplog.records]
    [owner] = {line for name, line in lines if name == "hanse.flower.client" and line.startswith("load_data")}
    assert all(one in owner for one in ("Kiel.csv", "'sex'", "row 2", "'secret'", "f, m"))
    operator = [line for name, line in lines if name == "hanse.network"]
    assert any("kept out" in line and "(value)" in line for line in operator)
    assert not any(one in line for line in operator for one in ("secret", "sex", "row"))


def test_a_mean_far_from_the_agreed_one_is_told_to_its_owner(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    table("Kiel.csv", "schema.toml")
    assert not caplog.messages
    months = re.sub(r"\d+\.\d", lambda years: f"{12 * float(years[0]):.1f}", Path("Kiel.csv").read_text())
    Path("Kiel.csv").write_text(months)
    table("Kiel.csv", "schema.toml")
    [(name, _, line)] = caplog.record_tuples
    assert (name, "'age'" in line) == ("hanse.flower.client", True)


def test_a_schema_that_was_not_agreed_on_is_refused(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    exp = experiment(sha256=digest("schema.toml"))
    shutil.copy("schema.toml", "other.toml")
    Path("other.toml").write_text(Path("other.toml").read_text().replace("test = 0.2", "test = 0.3"))
    nodes = grid(lambda i: table(files()[i], "other.toml" if i == 1 else "schema.toml"))
    run = play(nodes, exp, folder / "run", data=lambda: (None, None))
    for line in run.metrics:
        assert (line["seats"], line["answered"], line["refused"]) == (3, 2, 1)
    seats = map(json.loads, (folder / "run" / "clients.jsonl").read_text().splitlines())
    [reason] = {seat["refused"] for seat in seats if "refused" in seat}
    assert "schema" in reason
    assert f"by schema {digest('other.toml')}; agreed: {digest('schema.toml')}" in caplog.text


def test_a_run_does_not_go_on_with_other_tables_than_it_began_with(folder: Path) -> None:
    def goes_on(exp: hanse.Experiment) -> hanse.Run:
        by = getattr(exp.data.source, "schema", "schema.toml")
        return play(grid(lambda i: table(files()[i], by)), exp, folder / "run", data=lambda: (None, None))

    began = goes_on(experiment())
    Path("other.toml").write_text(Path("schema.toml").read_text().replace("test = 0.2", "test = 0.3"))
    shutil.copy("schema.toml", "moved.toml")
    assert goes_on(experiment(schema="moved.toml")).metrics == began.metrics
    without = hanse.Experiment(data={"clients": 3}, mechanism="fedavg").data
    for key, changed, values in (
        ("data.source.sha256", experiment(schema="other.toml"), [digest("schema.toml"), digest("other.toml")]),
        ("data.source", experiment().model_copy(update={"data": without}), ["digits", "schema.toml"]),
    ):
        [line] = mistakes(goes_on, changed)
        assert line.startswith(f"{key}: ")
        assert all(value in line for value in values)


def test_the_command_says_what_it_doubts_and_ends_with_2_for_a_mistake(folder: Path) -> None:
    Path("schema.toml").unlink()
    said = invoke("schema", *files(), "--target", "ill", "--leave-out", "patient", "--leave-out", "seen")
    assert (said.exit_code, "warning: " in said.output, "patient" in said.output) == (0, True, True)
    assert "group" not in toml.loads(Path("schema.toml").read_text())["schema"]
    # looked at again: nothing is settled yet
    assert digest("schema.toml") in invoke("schema", "schema.toml", *files(), "--out", "again.toml").output
    assert hanse.run(experiment()).about.doubt
    for words in (
        ["schema", *files(), "--target", "ill"],  # is there already
        ["schema", "none.csv", "--target", "ill", "--out", "x.toml"],
        ["schema", *files(), "--target", "sick", "--out", "x.toml"],
        ["schema", *files(), "--target", "ill", "--statistics", "mine", "--out", "x.toml"],
        ["new", "farm", "--table", "Basel.csv"],
        ["new", "farm", "--schema", "none.toml"],
    ):
        with pytest.raises(hanse.UserError):
            invoke(*words, catch_exceptions=False, standalone_mode=False)
    told = {"--client": "a", "--group": "none", "--leave-out": "seen", "--gap": "n/d", "--statistics": "agreed",
            "--test": "0.2", "--validation": "0"}  # fmt: skip
    for drafts in (["schema.toml", *files()], ["schema.toml", "again.toml"]):
        words = ["schema", *drafts, *(word for pair in told.items() for word in pair), "--out", "x.toml"]
        wrong = mistakes(invoke, *words, catch_exceptions=False, standalone_mode=False)
        assert [line.split(":")[0] for line in wrong] == [*told]
    source, plays = {"schema": "schema.toml", "files": files()}, {"model": "logistic", "mechanisms": "fedavg"}
    odd = {"client": "a", "statistics": "pooled", "cut": "all_clients", "test": 0.2, "splits": 2}
    assert [line.split(":")[0] for line in mistakes(hanse.who_gains, source, **plays, **odd)] == [*odd]
