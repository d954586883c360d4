"""Code blocks of the documentation: found, and run a page at a time as a reader would.

A page is a session: one folder, one Python namespace, blocks in their order.

* ``python`` runs. If its first line is ``# name.py`` it is written to that file, too (``# name.py (goes on)``: added).
* ``toml`` is checked as an experiment; a fragment without a mechanism is completed. ``# name.toml`` writes the file.
* ``bash`` lines that begin with ``hanse`` go through the command line (``demo``, ``reproduce``, ``attack`` and
  ``report`` only in the slow tests); any other command must be marked.
* ``text`` with ``output="above"`` is what the block above it prints.
* ``not-run="why"`` in the fence marks a block that cannot run, ``slow="why"`` one that takes long.
"""

import contextlib
import importlib
import io
import re
import shlex
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from commands import hanse

from hanse.base.wings import absent
from hanse.runs.config import Experiment
from hanse.runs.setup import build

__all__ = ["PAGES", "ROOT", "Block", "Session", "WrongPageError", "blocks"]

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECTIONS = frozenset(Experiment.kinds())
HERE = ("digits", "synthetic", "fedsoft_linear")  # sources that need no file
OWN_MODELS = ("own-data.md", "own-model.md")  # pages whose models are no stacks of known layers
LONG = [["hanse", command] for command in ("attack", "demo", "report", "reproduce")]  # a report draws for seconds
FENCE = re.compile(r"^(?P<indent> *)(?P<mark>`{3,}|~{3,})[ ]*(?P<language>[\w+-]*)[ ]*(?P<options>.*)$")
OPTION = re.compile(r'([\w-]+)="([^"]*)"')
FILE = re.compile(r"^# (?P<name>[\w.-]+\.(?:py|toml))(?P<more> \(goes on\))?$")


@dataclass(frozen=True)
class Block:
    """A fenced block: where, its language, its options, its text."""

    page: str
    line: int
    language: str
    options: dict[str, str]
    text: str

    @property
    def why_not(self) -> str | None:
        """Why it cannot run, if it cannot."""
        return self.options.get("not-run")

    @property
    def place(self) -> str:
        """The page and the line of the fence."""
        return f"{self.page}:{self.line}"


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    found, page, lines = [], path.relative_to(ROOT).as_posix(), path.read_text().splitlines()
    at = 0
    while at < len(lines):
        opened = FENCE.match(lines[at])
        at += 1
        if opened is None:
            continue
        begun, indent, body = at, len(opened["indent"]), []
        while not lines[at].strip().startswith(opened["mark"]):
            body.append(lines[at][indent:])
            at += 1
        at += 1
        options = dict(OPTION.findall(opened["options"]))
        found.append(Block(page, begun, opened["language"], options, "\n".join(body) + "\n"))
    return found


def expanded(word: str) -> list[str]:
    """Return the paths that a shell makes of a word with a star, or the word."""
    found = sorted(str(path) for path in Path().glob(word)) if "/*" in word and not Path(word).is_absolute() else []
    return found or [word]


class WrongPageError(AssertionError):
    """A block that does not do what the page says."""


@dataclass
class Session:
    """A page that is being run in ``folder``; with ``rounds`` no experiment runs for longer than that."""

    folder: Path
    rounds: int | None = None
    slow: bool = False
    module: types.ModuleType = field(default_factory=lambda: types.ModuleType("the_page"))
    printed: str = ""
    engine: str = "stacked"  # quick tests take it where a block names none
    cut: bool = False

    def run(self, page: Path) -> None:
        """Run all blocks of a page. Raises WrongPageError with the place of the one that failed."""
        runners: dict[str, Callable[[Block], None]] = {
            "python": self.python,
            "toml": self.toml,
            "bash": self.bash,
            "text": self.output,
        }
        if page.name in OWN_MODELS:
            self.engine = "auto"
        sys.modules["the_page"] = self.module  # dataclasses look up the module that they are made in
        with contextlib.chdir(self.folder), self.short():
            for block in blocks(page):
                if block.why_not or ("slow" in block.options and not self.slow) or block.language not in runners:
                    continue
                try:
                    runners[block.language](block)
                except WrongPageError:
                    raise
                except (Exception, SystemExit) as wrong:
                    raise WrongPageError(f"{block.place}: {type(wrong).__name__}: {wrong}") from wrong

    @contextlib.contextmanager
    def short(self) -> Iterator[None]:
        """Cut experiments to ``rounds``, and spare them the measuring of engines."""
        real = Experiment.__init__

        def made(experiment: Experiment, **sections: Any) -> None:
            real(experiment, **self.shortened(sections))

        with contextlib.nullcontext() if self.rounds is None else patch.object(Experiment, "__init__", made):
            yield

    def shortened(self, sections: dict[str, Any]) -> dict[str, Any]:
        """Return the sections of an experiment as the quick tests run it."""
        run, mechanism = sections.get("run", {}), sections.get("mechanism", {})
        if isinstance(run, dict) and (run.get("rounds", 20) > (self.rounds or 0)):
            self.cut = True
            sections = sections | {"run": run | {"rounds": self.rounds}}
        if "engine" not in sections and isinstance(mechanism, dict):
            alone = "fedgen" in str(mechanism.get("name")) or "loop" in sections.get("train", {})
            model = sections.get("model", {})
            alone = alone or ":" in str(model if isinstance(model, str) else model.get("name"))
            sections = sections | {"engine": {"train": "sequential" if alone else self.engine, "threads": 1}}
        return sections

    def python(self, block: Block) -> None:
        """Run it, and keep what it prints. A file is imported as the module that it is."""
        name = self.write(block)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            if name is None:
                exec(compile(block.text, block.place, "exec"), vars(self.module))
            else:
                sys.modules.pop(name, None)
                importlib.invalidate_caches()
                vars(self.module).update(vars(importlib.import_module(name)))
        self.printed = out.getvalue()

    def toml(self, block: Block) -> None:
        """Check an experiment, or a part of one; where its data are at hand also that it fits together."""
        self.write(block)
        sections = tomllib.loads(block.text)
        if strange := sections.keys() - SECTIONS:
            raise WrongPageError(f"{block.place}: {', '.join(strange)}: not a section of an experiment{absent()}")
        cut = self.cut
        experiment = Experiment(**({"mechanism": {"name": "fedavg"}} | sections))
        self.cut = cut  # nothing has run
        if "mechanism" in sections and experiment.data.source.name in HERE:
            if experiment.mechanism.name == "pifl" and "data" not in sections:
                return
            build(experiment)

    def bash(self, block: Block) -> None:
        """Run lines that begin with hanse through the command line."""
        for line in block.text.replace("\\\n", " ").splitlines():
            words = [name for word in shlex.split(line, comments=True) for name in expanded(word)]
            if not words or (words[:2] in LONG and not self.slow):
                continue
            if words[0] != "hanse":
                raise WrongPageError(f"{block.place}: {words[0]}: only hanse is run; mark the block with not-run")
            done = hanse(*words[1:], env={})
            if done.returncode:
                said = (done.stderr + done.stdout).strip()
                raise WrongPageError(f"{block.place}: {' '.join(words)}: ended with {done.returncode}: {said}")
            self.printed = done.stdout

    def output(self, block: Block) -> None:
        """Hold what was printed against what the page says; rounds that were cut have other numbers."""
        if block.options.get("output") == "above" and not self.cut and self.printed.strip() != block.text.strip():
            raise WrongPageError(f"{block.place}: the page says\n{block.text}\nbut it prints\n{self.printed}")

    def write(self, block: Block) -> str | None:
        """Write a block that begins with a file's name into that file, and return the name without its ending."""
        named = FILE.match(block.text.partition("\n")[0])
        if named is None:
            return None
        with open(named["name"], "a" if named["more"] else "w") as file:
            file.write(block.text)
        return Path(named["name"]).stem
