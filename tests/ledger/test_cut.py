"""Books that were cut at a head: a run with all its rounds needs its last settlement, whatever else is gone."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hanse
from hanse.core.entry import LOG
from hanse.ledger.log import heads_of
from hanse.runs.rehearsal import small_experiment
from hanse.runs.replay import wrong_books

MECHANISMS: dict[str, dict[str, Any]] = {
    "pifl": {"name": "pifl", "tiers": 2, "by_contribution": 2, "at_random": 1, "invited": "earn"},
    "ipfl": {"name": "ipfl"},
    "by value": {"name": "fedavg", "value": "group_path", "settle": "by_value"},
}
NOTE = re.compile(rb"hanse/[^\n]+\n(\d+)\n\S+\nround \d+\n\n(?:\xe2\x80\x94 [^\n]+\n)*")


@pytest.fixture(scope="module", params=MECHANISMS)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    secure = {"federation": {"secure": {"group": 3}}} if request.param == "by value" else {}
    clients = {"profiles": {"name": "uniform", "cost": 0.2, "eagerness": 1e5}, "grant": 50.0}
    sections = {"data": {"clients": 6}, "clients": clients, "run": {"rounds": 2}, **secure}
    experiment = small_experiment(MECHANISMS[request.param], **sections)
    return hanse.run(experiment, out=tmp_path_factory.mktemp("cut") / "run").path


def cut(folder: Path, notes: int) -> None:
    """Leave the first heads of a book, and the transactions that they are of."""
    heads, log = heads_of(folder / LOG), folder / LOG
    kept = list(NOTE.finditer(heads.read_bytes()))[:notes]
    heads.write_bytes(heads.read_bytes()[: kept[-1].end() if kept else 0])
    count = int(kept[-1][1]) if kept else 0
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:count]))


def cut_anywhere(played: Path, copy: Path, draw: st.DataObject) -> str:
    """Cut a copy at some head, take some checkpoints and the index away; return what is gone."""
    shutil.copytree(played, copy)
    whole = len(NOTE.findall(heads_of(copy / LOG).read_bytes()))
    left = draw.draw(st.integers(1, whole - 1), "heads that are left")
    cut(copy, left)
    checkpoints = sorted((copy / "checkpoints").glob("*.safetensors"))
    for path in draw.draw(st.sampled_from([checkpoints, checkpoints[-1:], []]), "checkpoints that are gone"):
        path.unlink()
    if draw.draw(st.booleans(), "the index is gone"):
        (copy / "ledger.db").unlink(missing_ok=True)
    return f"{left} of {whole}"


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_a_cut_is_found_at_any_head(
    played: Path, draw: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = tmp_path_factory.mktemp("cut") / "copy"
    where = cut_anywhere(played, copy, draw)
    assert wrong_books(copy), where
