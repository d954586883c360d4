"""The examples in docstrings run, and the functions that users call most have one."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest
from rotation import rotating

import hanse

# modules that can only be imported by the program that they are made for
LEFT_OUT = ("hanse.flower.template",)


def with_examples() -> list[str]:
    """Return the names of the modules whose text has an example."""
    found = []
    for module in pkgutil.walk_packages(hanse.__path__, "hanse.", onerror=lambda name: None):
        spec = None if module.name.startswith(LEFT_OUT) else module.module_finder.find_spec(module.name, None)
        if spec is not None and (spec.origin or "").endswith(".py") and ">>>" in Path(str(spec.origin)).read_text():
            found.append(module.name)
    return found


@pytest.mark.parametrize("name", rotating(with_examples(), 3))
def test_the_examples_of_a_module_run(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0, capsys.readouterr().out
