"""``hanse doctor``: what is installed, how fast it can train, which data are at hand, and what each extra would add."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from hanse.cli.options import say

_SHOWN = ("torch", "numpy", "scipy", "scikit-learn", "pandas")
_REQUIREMENT = re.compile(r"^(?P<name>[\w.-]+)(?P<extra>\[[^\]]*\])?[^;]*(?:;.*extra == ['\"](?P<of>[\w-]+)['\"])?")


def doctor() -> None:
    """Print versions, the training engine, the compiler, the data found, and what each extra would add.

    Nothing is changed and nothing is downloaded. Send its output along when you report a problem.

    Examples:
        hanse doctor
    """
    for heading, lines in (("Versions", _versions()), ("Speed", _speed()), ("Data", _data())):
        say(heading, style="bold")
        for line in lines:
            say(f"  {line}", wrap=True)
    say("Extras", style="bold")
    for extra, missing in missing_by_extra().items():
        say(f"  {extra}: {'would add ' * bool(missing)}{', '.join(missing) or 'here'}", wrap=True)
    say("  To add some, in a clone: pip install -e '.[flower,track]'", wrap=True)


def _versions() -> list[str]:
    """Return the versions of hanse, of Python and of the libraries that results depend on."""
    shown = [f"{name} {installed}" for name in _SHOWN if (installed := _installed(name)) is not None]
    here = f"{platform.system()} {platform.machine()}"
    return [f"hanse {version('hanse')} on Python {platform.python_version()}, {here}", ", ".join(shown)]


def _speed() -> list[str]:
    """Return which engines there are, and what is missing for faster ones."""
    import torch

    from hanse.learning.native.engine import library

    compiled = library()
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [
        "compiled engine: " + (compiled if isinstance(compiled, str) else "here; small networks train in it"),
        f"C compiler: {compiler or 'none found; gcc builds the compiled engine when hanse is installed'}",
        f"processors: {os.cpu_count()}, of which PyTorch uses {torch.get_num_threads()}",
        "GPU: " + (", ".join(gpus) if gpus else "none that PyTorch sees; hanse does not need one"),
    ]


def _data() -> list[str]:
    """Return where data sets are looked for, and which are there."""
    from hanse.data.sources import SOURCES, cache_dir, is_here

    named = os.environ.get("HANSE_DATA")
    others = [source for source in SOURCES.own if source != "digits"]
    here = [source for source in others if is_here(source)]
    missing = [source for source in others if source not in here]
    return [
        f"looked for in: {f'{named} (HANSE_DATA), ' if named else ''}{cache_dir()}"
        + ("" if named else " (the variable HANSE_DATA can name another folder)"),
        f"here: {', '.join(['digits (comes with scikit-learn)', *here])}",
        f"not here: {', '.join(missing) or 'none'}",
    ]


def missing_by_extra() -> dict[str, list[str]]:
    """Return the packages that each extra of hanse would add, also those of the extras that it includes.

    Example:
        >>> "flower" in missing_by_extra()
        True
    """
    extras = metadata("hanse").get_all("Provides-Extra") or []
    return {extra: list(dict.fromkeys(_missing("hanse", extra))) for extra in extras}


def _missing(package: str, extra: str) -> Iterator[str]:
    """Yield the packages that an extra of an installed package would add."""
    for requirement in requires(package) or ():
        parts = _REQUIREMENT.match(requirement)
        if parts is None or parts["of"] != extra:
            continue
        if _installed(parts["name"]) is None:
            yield parts["name"]
        else:
            for inner in (parts["extra"] or "[]")[1:-1].split(","):
                yield from _missing(parts["name"], inner.strip()) if inner else ()


def _installed(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
