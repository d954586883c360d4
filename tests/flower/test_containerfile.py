"""The Containerfile of a new project installs what is locked, and the lock has all that a node needs."""

import re
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FILE = (ROOT / "src" / "hanse" / "flower" / "template" / "Containerfile.j2").read_text()
LOCK = (ROOT / "requirements-node.txt").read_text()
# the packages by name, each with its lines
LOCKED = {
    m[1]: m[0]
    for m in re.finditer(r"(?m)^([a-z0-9.-]+)(?:\[\w+\])?==\S+ (?:\\\n +--hash=sha256:[0-9a-f]{64} ?)+\n", LOCK)
}


def names(requirements: Iterable[str], extras: Sequence[str] = ("",)) -> set[str]:
    """Return what requirements name here, in the form in which the lock has names."""
    found = [Requirement(text) for text in requirements]
    here = [r for r in found if r.marker is None or any(r.marker.evaluate({"extra": extra}) for extra in extras)]
    return {re.sub(r"[-_.]+", "-", r.name).lower() for r in here}


def test_the_lock_has_every_package_of_a_node_with_hashes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    told = {line.partition("==")[0].rstrip().lower() for line in LOCK.splitlines() if re.match("[a-zA-Z0-9]", line)}
    assert {name.partition("[")[0] for name in told} == set(LOCKED)  # each in one version, with a hash
    needed, seen = names([*project["dependencies"], *project["optional-dependencies"]["flower"]]), set[str]()
    while needed:
        name = needed.pop()
        seen.add(name)
        assert name in LOCKED
        with suppress(PackageNotFoundError):  # such as what only other machines need
            needed |= names(requires(name) or ()) - seen
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for name, version in pinned.items():
        if (plain := re.sub(r"[-_.]+", "-", name).lower()) in LOCKED:
            assert f"=={version} " in LOCKED[plain]


def test_the_containerfile_installs_nothing_without_a_hash() -> None:
    installs = [line for line in FILE.splitlines() if "pip install" in line]
    assert [("--no-deps" in line, "--require-hashes" in line) for line in installs] == [(True, True), (True, False)]
    assert "${WHEEL}" in installs[1]  # whose own hash was compared before
    assert FILE.index("${SHA256}  ${WHEEL}") < FILE.index(installs[1])
    assert FILE.index("${LOCK256}  requirements-node.txt") < FILE.index(installs[0])
