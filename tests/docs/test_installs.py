"""Nothing in the repository installs hanse by name: whoever registers the name would own the machines that do."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = (".md", ".py", ".toml", ".j2", ".html", ".sh", ".txt", ".cff", ".yml", ".yaml", "")
# an installer's command, up to the end of its line or of a quoted piece of code, in which the name is a word of its own
BY_NAME = re.compile(
    r"\b(?:pip3?|uv|pipx|conda|mamba|poetry|pdm)\b[^\n`;&|]*?\b(?:install|add|run|tool)\b[^\n`;&|]*?"
    r"(?<![\w./-])hanse(?:\[[\w, -]+\])?(?=\s*(?:[=<>~!]=?|['\"`]|$|\s))(?![\w./-])",
    re.MULTILINE,
)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("pip install hanse", True),
        ("pip install 'hanse[flower]'", True),
        ("RUN pip install --no-cache-dir 'hanse[flower]' && useradd node", True),
        ('python -m pip install -U "hanse==0.1.0"', True),
        ("uv add hanse[web]", True),
        ("uv tool install hanse", True),
        ("pip install '.[flower]'", False),
        ("pip install -e '../..[tables]'", False),
        ("pip install ./hanse-0.1.0-cp311-cp311-linux_x86_64.whl", False),
        ("hanse network up", False),
    ],
)
def test_what_counts_as_installing_by_name(line: str, found: bool) -> None:
    assert bool(BY_NAME.search(line)) == found


def test_nothing_installs_hanse_by_name() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("needs a clone")
    files = [ROOT / name for name in listed.stdout.splitlines() if Path(name).suffix in TEXTS]
    said = []
    for file in files:
        if file == Path(__file__) or not file.is_file():
            continue
        # messages end with "in a clone of hanse", which is no name to install
        text = file.read_text(errors="replace").replace("in a clone of hanse", "")
        said += [f"{file.relative_to(ROOT)}: {found[0]}" for found in BY_NAME.finditer(text)]
    assert len(files) > 300
    assert said == []
