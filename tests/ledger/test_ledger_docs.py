"""The example of docs/ledger.md, as it stands there."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "ledger.md"


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    said = re.sub(r"^( *)(ledger\.(?:balance|verify).*?) +# (.*)$", r"\1assert \2 == \3", example, flags=re.MULTILINE)
    assert said.count("assert") == 2
    exec(compile(said, "ledger.md", "exec"), {})
