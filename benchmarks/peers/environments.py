"""An environment for each system, outside the repository: ``<user cache>/hanse/peers/<name>``, made once.

What is to be installed stands in ``requirements/<name>.txt``; an environment is made anew when that file changes.
``HANSE_PEERS`` names another folder; ``HANSE_PEER_<NAME>`` another Python for one system.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

__all__ = ["cache", "python_of"]


def cache() -> Path:
    """Return the folder of environments and job files."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hanse" / "peers"
    return Path(os.environ.get("HANSE_PEERS", default))


def python_of(name: str) -> Path:
    """Return the Python of a system's environment, which is made if it is not there."""
    own = os.environ.get(f"HANSE_PEER_{name.upper()}")
    if own:
        return Path(own)
    wanted = HERE / "requirements" / f"{name}.txt"
    folder = cache() / name
    python, mark = folder / "bin" / "python", folder / "hanse-requirements"
    digest = hashlib.blake2b(wanted.read_bytes(), digest_size=10).hexdigest()
    if python.exists() and mark.exists() and mark.read_text() == digest:
        return python
    print(f"making the environment of {name} in {folder}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    first = next(line for line in wanted.read_text().splitlines() if line.startswith("torch=="))
    subprocess.run([*pip, first], check=True)  # by itself, so that nothing fetches another build of it
    subprocess.run([*pip, "-r", wanted.name], cwd=wanted.parent, check=True)
    mark.write_text(digest)
    return python
