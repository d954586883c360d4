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
