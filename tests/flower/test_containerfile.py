"""The Containerfile of docs/flower.md builds, and its node joins a SuperLink."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from deployed import TAKEN, network, until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "flower.md").read_text()
LOCK = (ROOT / "requirements-node.txt").read_text()
# the packages by name, each with its lines
LOCKED = {
    m[1]: m[0]
    for m in re.finditer(r"(?m)^([a-z0-9.-]+)(?:\[\w+\])?==\S+ (?:\\\n +--hash=sha256:[0-9a-f]{64} ?)+\n", LOCK)
}
OF_GPUS = re.compile("torch$|triton$|nvidia-|cuda-")
PARTS = ("src", "pyproject.toml", "README.md", "LICENSE")  # of the clone, as far as a wheel is made from them


def engine() -> str | None:
    """Return the command of Docker or Podman, if one of them works here."""
    for name in ("docker", "podman"):
        if shutil.which(name) and subprocess.run([name, "info"], capture_output=True, check=False).returncode == 0:
            return name
    return None


@dataclass
class Built:
    """The steps of a Containerfile, taken on this machine in a new environment."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)

    def take(self, line: str, given: dict[str, str]) -> None:
        what, _, rest = line.partition(" ")
        if what == "ARG":
            self.env[rest] = given[rest]
        elif what == "COPY":  # what is copied lies in the folder
            *names, _ = re.sub(r"\$\{(\w+)\}", lambda found: self.env[found[1]], rest).split()
            assert all((self.folder / name).exists() for name in names)
        elif what == "RUN":
            subprocess.run(["sh", "-ec", rest], cwd=self.folder, env=self.env, check=True)
        elif what == "ENV":
            self.env |= dict(pair.split("=") for pair in rest.split())
        elif what == "ENTRYPOINT":
            self.command = [word.strip('" ') for word in rest.strip("[]").split(",")]
        else:
            assert what in ("FROM", "WORKDIR", "USER", "#")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder with a Containerfile, a wheel and the constraints, and the arguments to build with."""
    folder, clone = tmp_path_factory.mktemp("container"), tmp_path_factory.mktemp("clone")
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("*.so", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, clone)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps", "-w", str(folder)]
    subprocess.run([*pip, str(clone)], check=True)
    lock = folder / "requirements-node.txt"
    lock.write_bytes((ROOT / lock.name).read_bytes())
    if engine() is None:  # in an environment of this machine torch is the one without a GPU, which is not on PyPI
        lock.write_text("".join(text for name, text in LOCKED.items() if not OF_GPUS.match(name)))
    [text] = re.findall(r"```dockerfile\n(.*?)```", PAGE, re.DOTALL)
    (folder / "Containerfile").write_text(text)
    [made] = folder.glob("*.whl")
    sums = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in (("SHA256", made), ("LOCK256", lock))}
    return folder, {"WHEEL": made.name, **sums}


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
    [text] = re.findall(r"```dockerfile\n(.*?)```", PAGE, re.DOTALL)
    installs = [line for line in text.splitlines() if "pip install" in line]
    assert [("--no-deps" in line, "--require-hashes" in line) for line in installs] == [(True, True), (True, False)]
    assert "${WHEEL}" in installs[1]  # whose own hash was compared before
    assert text.index("${SHA256}  ${WHEEL}") < text.index(installs[1])
    assert text.index("${LOCK256}  requirements-node.txt") < text.index(installs[0])


@pytest.mark.slow
@pytest.mark.by_turns(3, 1)
def test_the_containerfile_builds_and_its_node_joins(wheel: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    folder, given = wheel
    net = network(tmp_path / "net", 1)
    name = engine()
    if name is not None:
        values = [f"--build-arg={k}={v}" for k, v in given.items()]
        subprocess.run([name, "build", "-t", "hanse-test", "-f", "Containerfile", *values, "."], cwd=folder, check=True)
        start = [name, "run", "--rm", "--network=host", "-v", f"{net.folder}:{net.folder}:ro", "hanse-test"]
        env = dict(os.environ)
    else:
        built = _steps(folder, given)
        start, env = built.command, built.env
    try:
        net.up(only=[])
        more = ["--ca", str(net.folder / "certs" / "ca.crt"), "--key", str(net.folder / "keys" / "node0")]
        more += ["--operator", str(net.folder / "certs" / "operator.pub")]
        log = tmp_path / "log"
        with log.open("w") as said:
            node = subprocess.Popen([*start, net.door, *more], env=env, cwd=tmp_path, stdout=said, stderr=said)
        try:
            until("the node has joined", lambda: TAKEN in log.read_text() or node.poll() is not None)
            assert TAKEN in log.read_text(), log.read_text()[-2000:]
        finally:
            node.terminate()
            node.wait()
    finally:
        net.down()


def _steps(folder: Path, given: dict[str, str]) -> Built:
    """Take the steps of a Containerfile in a new environment; users of this machine are left as they are."""
    venv.create(folder / "venv", with_pip=True)
    pip = [folder / "venv" / "bin" / "pip", "install", "-q", "--constraint", ROOT / "constraints.txt", "torch"]
    subprocess.run(list(map(str, pip)), check=True)
    (folder / "stand-ins").mkdir()
    (folder / "stand-ins" / "useradd").write_text("#!/bin/sh\n[ $# -gt 0 ]\n")
    (folder / "stand-ins" / "useradd").chmod(0o755)
    paths = [folder / "venv" / "bin", folder / "stand-ins", *os.environ["PATH"].split(os.pathsep)]
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "PATH")}
    built = Built(folder, kept | {"PATH": os.pathsep.join(map(str, paths)), "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    for line in (folder / "Containerfile").read_text().splitlines():
        built.take(line, given)
    built.env["HANSE_HOME"] = str(folder / "keep")
    built.command[0] = str(folder / "venv" / "bin" / built.command[0])
    return built


@pytest.mark.slow
def test_a_wheel_with_another_hash_is_not_installed(wheel: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    folder, given = wheel
    shutil.copytree(folder, tmp_path / "other", ignore=shutil.ignore_patterns("venv", "stand-ins"))
    with pytest.raises(subprocess.CalledProcessError) as wrong:
        _steps(tmp_path / "other", given | {"SHA256": 64 * "0"})
    assert "sha256sum" in wrong.value.cmd[-1]
    assert not (tmp_path / "other" / "venv" / "bin" / "hanse").exists()
