"""An environment for each system, outside the repository: ``<user cache>/hanse/peers/<name>``, made once.

What is to be installed stands in ``requirements/<name>.txt``; an environment is made anew when that file changes. Where
its first line is ``# python3.14t``, the environment is made with that Python, which must be on the path.
``HANSE_PEERS`` names another folder; ``HANSE_PEER_<NAME>`` another Python for one system.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

__all__ = ["cache", "pinned", "python_of"]


def cache() -> Path:
    """Return the folder of environments and job files."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hanse" / "peers"
    return Path(os.environ.get("HANSE_PEERS", default))


def python_of(name: str) -> Path:
    """Return the Python of a system's environment, which is made if it is not there. Raises RuntimeError if it cannot
    be made here.
    """
    own = os.environ.get(f"HANSE_PEER_{name.upper()}")
    if own:
        return Path(own)
    wanted = _requirements(name)
    folder = cache() / name
    python, mark = folder / "bin" / "python", folder / "hanse-requirements"
    digest = hashlib.blake2b(wanted.read_bytes(), digest_size=10).hexdigest()
    if python.exists() and mark.exists() and mark.read_text() == digest:
        return python
    base = _base(name, wanted)
    print(f"making the environment of {name} in {folder}", file=sys.stderr, flush=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    first = [line for line in wanted.read_text().splitlines() if line.startswith("torch==")]
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        subprocess.run([base, "-m", "venv", "--clear", str(folder)], check=True, env=bare)
        if first:
            subprocess.run([*pip, *first], check=True, env=bare)  # by itself, so that nothing fetches another build
        subprocess.run([*pip, "-r", wanted.name], cwd=wanted.parent, check=True, env=bare)
    except subprocess.CalledProcessError as wrong:
        raise RuntimeError(f"the environment of {name} could not be made: {wrong}") from wrong
    mark.write_text(digest)
    return python


def pinned(name: str, package: str) -> str:
    """Return the version of a package that an environment has."""
    lines = _requirements(name).read_text().splitlines()
    found = [line.partition("==") for line in lines]
    return next(version for what, _, version in found if what.partition("[")[0] == package)


def _requirements(name: str) -> Path:
    return HERE / "requirements" / f"{name}.txt"


def _base(name: str, wanted: Path) -> str:
    """Return the Python that an environment is made with: this one, or the one that the first line names."""
    first = wanted.read_text().splitlines()[0]
    if not first.startswith("# python"):
        return sys.executable
    asked = first.removeprefix("#").strip()
    found = shutil.which(asked)
    if found is None:
        raise RuntimeError(
            f"{name} needs {asked} on the path (or HANSE_PEER_{name.upper()}: a Python that has all of {wanted.name})"
        )
    return found
