"""What people (or programs) reach by the documentation alone: scores of kept transcripts (``make trials``).

    python benchmarks/trials.py                                  # the table: task, who, minutes, commands, score
    python benchmarks/trials.py seal TASK KEY.toml               # before: the hash of a key that is kept elsewhere
    python benchmarks/trials.py note TASK WHO [-- COMMAND ...]   # during: run a command and write it down with its time
    python benchmarks/trials.py answer TASK WHO NAME=VALUE ...   # at the end

``trials/TASK/`` has ``task.md`` and ``key.sha256``, committed before anybody tries; ``WHO.jsonl``, one line a command
or answer, and ``key.toml`` are committed after. A key has a ``nonce``, so that its hash cannot be guessed, and a table
a question: ``is`` (a number, a word, or a list of words that all do), ``within`` for numbers, or ``like``, a regular
expression. Checked are the key against its hash, and in the history that task and hash are older than key and
transcript and did not change after. Exit code 1 if either does not hold.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import ROOT, git, markdown, written

TRIALS = Path(__file__).parent / "trials"


def right(rule: Mapping[str, Any], given: Any) -> bool:
    """Return whether an answer, a text, is what a key's rule asks for."""
    if "like" in rule:
        return re.fullmatch(rule["like"], str(given).strip(), re.IGNORECASE) is not None
    wanted = rule["is"]
    if isinstance(wanted, int | float) and not isinstance(wanted, bool):
        try:
            return abs(float(given) - wanted) <= rule.get("within", 0)
        except (TypeError, ValueError):
            return False
    words = wanted if isinstance(wanted, list) else [wanted]
    return str(given).strip().casefold() in [str(word).casefold() for word in words]


def key_of(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """Return a task's questions with their rules (None: not here, or not the key of the hash), and what is wrong."""
    path = folder / "key.toml"
    if not path.exists():
        return None, ""
    if hashlib.sha256(path.read_bytes()).hexdigest() != (folder / "key.sha256").read_text().strip():
        return None, f"{folder.name}: key.toml is not the key whose hash was committed"
    return {name: rule for name, rule in tomllib.loads(path.read_text()).items() if isinstance(rule, dict)}, ""


def commits(path: Path, *options: str) -> list[str]:
    """Return the commits that touched a file, the newest first."""
    return git("log", "--format=%H", *options, "--", str(path.relative_to(ROOT))).split()


def order_of(folder: Path, transcripts: Sequence[Path]) -> str:
    """Return what is wrong with the order of commits; nothing if task and hash stood there as they are now before key
    and transcripts.
    """
    for later in (folder / "key.toml", *transcripts):
        added = commits(later, "--diff-filter=A")
        for sealed in (folder / "task.md", folder / "key.sha256") if added else ():
            line = ["git", "-C", str(ROOT), "show", f"{added[-1]}^:{sealed.relative_to(ROOT)}"]
            before = subprocess.run(line, capture_output=True, check=False)
            if before.returncode or before.stdout != sealed.read_bytes():
                return f"{folder.name}: {sealed.name} was not there, or was another, before {later.name} was committed"
    return ""


def scored(transcript: Path, key: Mapping[str, Any] | None) -> tuple[str, int, str, list[str]]:
    """Return a transcript's minutes, its number of commands, its score, and the questions that were missed."""
    lines = written(transcript)
    times = [datetime.fromisoformat(line["at"]) for line in lines]
    minutes = f"{(times[-1] - times[0]).total_seconds() / 60:.1f}"
    answers = {name: value for line in lines for name, value in line.get("answers", {}).items()}
    missed = [name for name, rule in (key or {}).items() if name not in answers or not right(rule, answers[name])]
    score = f"{len(key) - len(missed)} of {len(key)}" if key else "no key yet"
    return minutes, sum("command" in line for line in lines), score, missed


def table() -> int:
    """Print the table; return the exit code."""
    rows, wrong = [], []
    for folder in sorted(path.parent for path in TRIALS.glob("*/task.md")):
        transcripts = sorted(folder.glob("*.jsonl"))
        key, amiss = key_of(folder)
        wrong += [said for said in (amiss, order_of(folder, transcripts)) if said]
        for path in transcripts:
            minutes, commands, score, missed = scored(path, key)
            rows.append((folder.name, path.stem, minutes, commands, score, ", ".join(missed)))
        if not transcripts:
            rows.append((folder.name, "nobody yet", "", "", "", ""))
    print(markdown(("task", "who", "minutes", "commands", "score", "missed"), rows))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


def add(path: Path, **line: Any) -> None:
    """Write a line with the time into a transcript."""
    with path.open("a") as file:
        file.write(json.dumps({"at": datetime.now(UTC).isoformat(timespec="seconds"), **line}) + "\n")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("seal", "note", "answer"))
    parser.add_argument("task", nargs="?")
    parser.add_argument("who", nargs="?", help="a name for the transcript; for seal: the key's file")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    if given.what is None:
        return table()
    folder = TRIALS / str(given.task)
    if given.who is None or not (folder / "task.md").exists():
        parser.error(f"{folder / 'task.md'}: write the task first, and name the task and who tries it (or its key)")
    if given.what == "seal":
        (folder / "key.sha256").write_text(hashlib.sha256(Path(given.who).read_bytes()).hexdigest() + "\n")
        return 0
    path, words = folder / f"{given.who}.jsonl", [word for word in given.words if word != "--"]
    if given.what == "answer":
        add(path, answers=dict(word.split("=", 1) for word in words))
        return 0
    add(path, begun=" ".join(words))
    code = subprocess.run(words, check=False).returncode if words else 0
    if words:
        add(path, command=" ".join(words), code=code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
