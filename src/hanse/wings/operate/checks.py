"""What an operator should know of a network: certificates, processes, nodes, disk, books, backups, each with a state.

:func:`findings` looks at a project, on this machine alone, and changes nothing. ``hanse network check`` shows them on
one page; ``hanse serve PROJECT`` gives them to a monitor (:func:`exposition`).
"""

from __future__ import annotations

import json
import shutil
import ssl
import tempfile
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

from hanse.base.errors import UserError
from hanse.base.files import MEMBERS, going_on, json_lines, read_json, read_text
from hanse.base.lock import in_use
from hanse.base.plain_text import quantity
from hanse.core.entry import KEPT, LEAVE
from hanse.flower.members import LEAVES, Members, Orders
from hanse.wings.operate.clocks import APART_S, NODES, SOON_D, Finding, State, judged
from hanse.wings.operate.loopback import HOST, Loopback

STATES: tuple[State, ...] = ("fine", "warning", "failure")
ONLINE_S = 60.0  # a node asks for work every 3 s, and while it works gives a sign of life every 24 s
FREE = 1 << 30  # bytes below which a disk is warned of
PROBE = 1 << 16  # bytes that are written to see whether a disk takes them
BACKUP = "backup.json"  # in a project: when and where to the last backup went
BACKUP_D = 7  # days after which a backup is old


def findings(network: Loopback, now: datetime) -> list[Finding]:
    """Look at everything.

    Args:
        network: the network of a project.
        now: the time.
    """
    run = network.run
    looks = (judged(network.folder / "certs", now), _agreement(network, now), _processes(network), _nodes(network, run),
             _disks(network, run), _run(network, run), _backup(network, now))  # fmt: skip
    return [found for look in looks for found in look]


def worst(found: list[Finding]) -> State:
    """Return the worst state of all that was asked for."""
    return max((one.state for one in found if one.asked), key=STATES.index, default="fine")


def exposition(found: list[Finding]) -> str:
    """Return findings in Prometheus' text format: ``hanse_state`` (0 fine, 1 warning, 2 failure), and the numbers."""
    values: dict[str, list[str]] = {}
    for one in found:
        about, name = (
            text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for text in (one.about, one.name)
        )
        values.setdefault("hanse_state", []).append(f'{{about="{about}",name="{name}"}} {STATES.index(one.state)}')
        for what, number in one.numbers.items():
            values.setdefault(f"hanse_{one.about}_{what}", []).append(f'{{name="{name}"}} {float(number)!r}')
    lines = [line for name, rows in values.items() for line in (f"# TYPE {name} gauge", *(name + row for row in rows))]
    return "\n".join(lines) + "\n"


def _agreement(network: Loopback, now: datetime) -> Iterator[Finding]:
    """Look whether the agreement lasts, and allows this release of hanse."""
    from hanse.flower.agreement import Agreement
    from hanse.runs.recomputable import code_hash

    if not network.agreement.exists():
        return
    try:
        agreed, _ = Agreement.read(read_text(network.agreement), edited=True)
    except ValueError as wrong:
        yield Finding("agreement", network.agreement.name, "failure", f"is damaged: {wrong}")
        return
    days = (date.fromisoformat(agreed.expires) - now.date()).days
    state: State = "failure" if days < 0 else "warning" if days < SOON_D else "fine"
    yield Finding("agreement", network.agreement.name, state, f"ends on {agreed.expires}", {"days": days})
    here = f"hanse {version('hanse')} ({code_hash()}), Flower {version('flwr')}"
    known = code_hash() in agreed.releases.values()
    said = here if known else f"{here}: this release is not among those agreed ({', '.join(agreed.releases)})"
    yield Finding("agreement", "release", "fine" if known else "failure", said)


def _processes(network: Loopback) -> Iterator[Finding]:
    """Look which processes run of those that were started."""
    for name in network.processes.names():
        pid = network.processes.pid(name)
        remedy = f"has ended: see {network.processes.folder / name}.log; 'hanse network up' starts it"
        yield Finding("process", name, "fine" if pid else "failure", f"runs (pid {pid})" if pid else remedy)
    if not network.processes.names():
        yield Finding("process", "superlink", "warning", "was stopped; 'hanse network up' starts it")


def _nodes(network: Loopback, run: Path | None) -> Iterator[Finding]:
    """Look when each node was last heard of, and at its clock."""
    if network.processes.pid("superlink") is None:
        return
    try:
        heard = asked(network)
    except (OSError, ValueError) as silent:
        yield Finding("process", "superlink", "failure", f"does not answer: {silent}")
        return
    members = Members.read(None if run is None else run / MEMBERS).by_key
    for key in sorted({*heard, *members}):
        name = members[key].name if key in members else f"key {key[:16]}"
        if key in members and members[key].expelled is not None:
            continue
        if key not in heard:
            yield Finding("node", name, "warning", "was not heard of since the SuperLink was started")
            continue
        ago, ahead = heard[key]["ago_s"], heard[key]["ahead_s"]
        lost, wrong = ago > ONLINE_S, abs(ahead) > APART_S
        said = f"was heard of {ago:.0f} s ago" + (f"; its clock is {ahead:+.0f} s off: set it (NTP)" if wrong else "")
        yield Finding("node", name, "warning" if lost or wrong else "fine", said, heard[key])


def asked(network: Loopback) -> dict[str, dict[str, float]]:
    """Return what the gate before the SuperLink knows of nodes: by key, seconds since it was heard, and its clock's."""
    from urllib.request import urlopen

    trusted = ssl.create_default_context(cafile=str(network.folder / "certs" / "ca.crt"))
    with urlopen(f"https://{HOST}:{network.ports[0]}{NODES}", timeout=10, context=trusted) as answer:
        found: dict[str, dict[str, float]] = json.load(answer)
    return found


def _disks(network: Loopback, run: Path | None) -> Iterator[Finding]:
    """Look how much space there is, and whether files can be written."""
    for folder in filter(None, (network.folder, run)):
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(PROBE))
            free = shutil.disk_usage(folder).free
        except OSError as wrong:
            yield Finding("disk", str(folder), "failure", f"nothing can be written: {wrong.strerror}", {"free": 0})
        else:
            said = f"{free / 1e9:.1f} GB are free"
            yield Finding("disk", str(folder), "warning" if free < FREE else "fine", said, {"free": free})


def _run(network: Loopback, run: Path | None) -> Iterator[Finding]:
    """Look at a pause, the run's last round and process, clients whose last answer was refused, bonds, and its books.

    A client that has left by the book, or that the operator has expelled, is missed by nobody.
    """
    from hanse.ledger.accounts import BookSums
    from hanse.ledger.log import Record
    from hanse.ledger.run_ledger import has_books, latest_claim, reading, wrong_in
    from hanse.runs.round_record import METRICS, SEATS

    orders = Orders() if run is None else Orders.read(run)
    if orders.paused is not None:
        yield Finding("run", "order", "warning", f"is paused ({orders.paused}); {orders.resume} ends that")
    lines = [] if run is None else list(json_lines(run / METRICS, ("round",)))
    if run is None or not lines:  # the file is there, and empty, while the first round is played
        yield Finding("run", "rounds", "fine", "no round was played yet", {"played": 0})
        return
    records = list[Record]()
    if has_books(run, lines):
        try:
            wrong = wrong_in(run)
            with reading(run) as books:
                records += (one for one in books.history() if one.transaction.kind in (LEAVE, KEPT))
                book = books.as_book()
        except UserError as unread:
            yield Finding("books", "log", "failure", str(unread))
        else:
            said = f"{quantity(book.count, 'transaction')}, head {book.head}" + (f"; {wrong}" if wrong else "")
            yield Finding("books", "log", "failure" if wrong else "fine", said, {"transactions": book.count})
    gone = {*BookSums.of(records).left, *(client for client, why in orders.expelled.items() if why != LEAVES)}
    last, latest = lines[-1], {seat["client"]: seat for seat in json_lines(run / SEATS, ("round", "client"))}
    refused = {client: seat for client, seat in latest.items() if "refused" in seat}
    spared = sum(refused[client]["round"] == last["round"] for client in gone & refused.keys())
    said = f"{quantity(last['round'] + 1, 'is', 'are')} played; in the last one {last['answered']} of "
    said += f"{quantity(last['seats'], 'seat')} answered"
    state: State = "failure" if "failed" in last else "warning" if last["answered"] + spared < last["seats"] else "fine"
    yield Finding("run", "rounds", state, said, {"played": last["round"] + 1, "answered": last["answered"]})
    over = (claim := latest_claim(run)) is not None and claim.finished
    if network.processes.names() and not (in_use(run) or over):
        yield Finding("run", "process", "failure", f"nobody plays it; '{going_on(run)}' goes on")
    for client in sorted(refused.keys() - gone):
        said = f"round {refused[client]['round']}: {refused[client]['refused']}"
        yield Finding("run", f"client {client}", "warning", said)
    for taken in (one for one in records if one.transaction.kind == KEPT):
        client, said = taken.transaction.step.rpartition("/")[2], f"round {taken.round}: lost: {taken.transaction.memo}"
        yield Finding("bond", f"client {client}", "fine" if over else "warning", said)


def _backup(network: Loopback, now: datetime) -> Iterator[Finding]:
    """Look when the last backup was made."""
    file = network.folder / BACKUP
    if not file.exists():
        yield Finding("backup", "last", "warning", "none was made: 'hanse network backup'", asked=False)
        return
    made = read_json(file)
    days = (now - datetime.fromtimestamp(made["at"], UTC)) / timedelta(days=1)
    said = f"{quantity(f'{days:.1f}', 'day')} ago, in {made['to']}"
    yield Finding("backup", "last", "warning" if days > BACKUP_D else "fine", said, {"days": days})
