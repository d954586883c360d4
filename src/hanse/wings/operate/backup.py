"""A copy of a network's project that is consistent though a run goes on, and a project made of it again."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.wings.operate.checks import BACKUP
from hanse.wings.operate.loopback import Loopback

TRIES = 5  # copies that are begun, if each time a round ends meanwhile
# what runs on this machine alone (logs, sockets, Flower's caches), and what is made anew of the log: the books' index
LEFT = ("logs", "proxy", "warm", "keeper.json", "flwr", "lock", "ledger.db*", BACKUP, "__pycache__", ".*.part")
STATE = Path("flwr") / "superlink.db"  # who was admitted


def back_up(network: Loopback, to: Path) -> None:
    """Copy a project: its app, keys, certificates, agreement, orders, and the run's records, checkpoints and books.

    The books get a round's transactions after its checkpoint, and nothing else until the next checkpoint. So a copy
    during which no checkpoint was written is one from which the run goes on, as after a crash.

    Args:
        network: the network of the project.
        to: a folder that is not there yet, outside the project. It is there whole in the end, or not at all.

    Raises:
        UserError: the folder is there, or in the project; the run lies outside it, or rounds end faster than copies.
    """
    if to.exists() or to.resolve().is_relative_to(network.folder):
        raise UserError(f"{to}: is there already, or in the project; a backup gets a folder of its own outside it")
    run, part = network.run, to.with_name(f".{to.name}.part")
    if run is not None and not run.is_relative_to(network.folder):
        raise UserError(f"{run}: lies outside {network.folder}: must be copied by hand, while it is paused")
    with _whole(part, f"{to}: no backup was made"):
        for _ in range(TRIES):
            before = _checkpoints(run)
            shutil.rmtree(part, ignore_errors=True)
            try:
                shutil.copytree(network.folder, part, ignore=shutil.ignore_patterns(*LEFT))
            except shutil.Error as failed:
                if any(Path(one).exists() for one, *_ in failed.args[0]):
                    raise
                continue  # an old checkpoint or a temporary file is gone meanwhile
            if _checkpoints(run) == before:
                break
        else:
            raise UserError(f"{run}: rounds end faster than they are copied; 'hanse network pause {run}' first")
        if (network.folder / STATE).exists():
            (part / STATE).parent.mkdir(mode=0o700)
            with closing(sqlite3.connect(network.folder / STATE)) as old, closing(sqlite3.connect(part / STATE)) as new:
                old.backup(new)
        part.chmod(0o700)  # it holds keys
        part.rename(to)
    write_whole(network.folder / BACKUP, json.dumps({"at": time.time(), "to": str(to.absolute())}))


def restore(backup: Path, folder: Path) -> Loopback:
    """Make a project of a backup, in another folder, and return its network.

    Args:
        backup: the backup's folder.
        folder: the folder of the project, which is not there yet.

    Raises:
        UserError: the folder is there, the backup is none, or its books do not hold.
    """
    from hanse.ledger.run_ledger import has_books, wrong_in

    kept = Loopback.read(backup)
    if folder.exists():
        raise UserError(f"{folder}: is there already; give a new folder")
    with _whole(folder, f"{backup}: nothing was restored"):
        shutil.copytree(backup, folder)
        network = replace(kept, folder=folder, app=folder if kept.app == kept.folder else kept.app)
        network.save()
        mark = network.agreement.with_suffix(".run")
        if mark.exists() and (run := Path(mark.read_text().strip())).is_relative_to(kept.folder):
            write_whole(mark, f"{folder / run.relative_to(kept.folder)}\n")
        else:  # of a run outside the project that has not begun: 'back_up' refuses one that has
            mark.unlink(missing_ok=True)
        if network.run is not None and has_books(network.run) and (wrong := wrong_in(network.run)):
            raise UserError(f"its books do not hold: {wrong}")
    return network


@contextmanager
def _whole(made: Path, what: str) -> Iterator[None]:
    """Remove the folder that the block makes if that fails (a disk is full), and say what was not done and why."""
    try:
        yield
    except (UserError, OSError, sqlite3.Error) as wrong:
        shutil.rmtree(made, ignore_errors=True)
        why = wrong.args[0][0][2] if isinstance(wrong, shutil.Error) else wrong
        raise UserError(f"{what}: {why}") from None


def _checkpoints(run: Path | None) -> Sequence[str]:
    """Return the names of a run's checkpoints."""
    return [] if run is None else sorted(path.name for path in (run / "checkpoints").glob("*"))
