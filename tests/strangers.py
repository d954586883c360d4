"""Run directories as a stranger could hand them on: damaged, or made to do harm."""

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from forging import restamped

Damage = Callable[[Path], object]
DEEP = "[" * 100_000


class Bait:
    """Makes a file where it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.place,)


def bait_of(folder: Path) -> Path:
    return folder.parent / "executed"


def line(name: str, text: str, at: int = 1) -> Damage:
    """Replace a line of a JSON-lines file."""

    def damage(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines()
        lines[at] = text
        (folder / name).write_text("".join(f"{x}\n" for x in lines))

    return damage


def entry(name: str, /, **changes: Any) -> Damage:
    """Change values of the second line of a JSON-lines file."""

    def damage(folder: Path) -> None:
        line(name, json.dumps(json.loads((folder / name).read_text().splitlines()[1]) | changes))(folder)

    return damage


def content(name: str, data: str | bytes) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())

    return damage


def gone(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def told(**changes: Any) -> Damage:
    """Change what the settle part of the run says of itself."""

    def damage(folder: Path) -> None:
        said = json.loads((folder / "about.json").read_text())
        said["parts"][-1]["telling"] |= changes
        (folder / "about.json").write_text(json.dumps(said))

    return damage


def setting(section: str, text: str) -> Damage:
    """Put a line into a section of config.toml, in the place of what it said of that key."""

    def damage(folder: Path) -> None:
        key = text.partition("=")[0].strip()
        lines, here = [], ""
        for one in (folder / "config.toml").read_text().splitlines():
            here = one if one.startswith("[") else here
            if here == f"[{section}]" and one.partition("=")[0].strip() == key:
                continue
            lines += [one, text] if one == f"[{section}]" else [one]
        (folder / "config.toml").write_text("\n".join(lines) + "\n")

    return damage


def pickled(folder: Path) -> None:
    bait = np.empty(1, object)
    bait[0] = Bait(bait_of(folder))
    np.savez(folder / "rounds" / "00001.npz", market_units=bait, refused=bait, tested=bait)


def raw_pickle(folder: Path) -> None:
    (folder / "rounds" / "00001.npz").write_bytes(pickle.dumps(Bait(bait_of(folder))))


def arrays(**changes: Any) -> Damage:
    """Replace arrays of round 1; None takes one out."""

    def damage(folder: Path) -> None:
        file = folder / "rounds" / "00001.npz"
        with np.load(file) as record:
            kept = {name: record[name] for name in record} | changes
        np.savez(file, **{name: array for name, array in kept.items() if array is not None})

    return damage


def hashed(damage: Damage) -> Damage:
    """Do the damage, and let the metrics name the hash of the round's file as it is then, as a stranger can."""

    def both(folder: Path) -> None:
        damage(folder)
        restamped(folder)

    return both


def _member(file: Path, name: str, header: str, zeros: int) -> None:
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as packed, packed.open(name, "w") as out:
        text = header.encode().ljust(117) + b"\n"
        out.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
        for _ in range(zeros >> 20):
            out.write(bytes(1 << 20))


def _header(kind: str, length: int) -> str:
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({length},)}}"


def huge(*names: str, header: str, zeros: int = 0) -> Damage:
    """A round with arrays of this header, which unpack to so many bytes."""

    def damage(folder: Path) -> None:
        file = folder / "rounds" / "00001.npz"
        file.unlink()
        for name in names:
            _member(file, f"{name}.npy", header, zeros)

    return damage


BOMB = huge("market_units", header=_header("|i1", 288 << 20), zeros=288 << 20)  # 288 MiB from 1.3 MB
BOAST = huge("market_units", "refused", "tested", header=_header("<f8", 1 << 50))  # said to have 8 PiB


def link(name: str) -> Damage:
    """Put a link to another file or folder in the place of one of the run's."""

    def damage(folder: Path) -> None:
        place, victim = folder / name, folder.parent / "victim"
        place.parent.mkdir(exist_ok=True)
        if place.exists():
            place.rename(folder.parent / f"was-{place.name}")
        place.symlink_to(victim / "file.txt" if place.suffix else victim)

    return damage


def pipe(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return damage


def checkpoint(notes: Any, length: int | None = None) -> Damage:
    header = json.dumps({"__metadata__": {"notes": json.dumps(notes)}}).encode()
    size = len(header) if length is None else length
    return content("checkpoints/99999.safetensors", struct.pack("<Q", size) + header)


PLOT = {"title": "x", "metric": "market/*", "line": "*" * 80, "factor": 1e12}
LOOKS = {
    "report": ["report", "{}"],
    "compare": ["compare", "{}"],
    "statement": ["statement", "{}", "--client", "0"],
    "disputes": ["ledger", "verify", "{}", "--receipts", "{}/receipts"],
    "audit": ["audit", "{}"],
    "verify": ["ledger", "verify", "{}"],
    "balances": ["ledger", "balances", "{}"],
    "history": ["ledger", "history", "{}"],
    "export": ["ledger", "export", "{}", "-f", "csv"],
}
PAGES = ("report", "compare", "statement")  # what reads lines, and what the parts say
BOOKS = ("disputes", "audit", "verify", "balances", "history", "export")
ALL = tuple(LOOKS)

# what is wrong with the directory, and which commands must refuse it; the others may do without what is damaged
DAMAGES: dict[str, tuple[Damage, tuple[str, ...]]] = {
    "metrics line cut": (line("metrics.jsonl", '{"round": 1, "te'), (*PAGES, "verify")),
    "metrics line deep": (line("metrics.jsonl", DEEP), PAGES),
    "metrics line a list": (line("metrics.jsonl", "[1]"), (*PAGES, "verify")),
    "metrics binary": (content("metrics.jsonl", os.urandom(200).replace(b"\n", b"") + b"\n"), PAGES),
    "metrics without an end": (content("metrics.jsonl", b'{"round": 0'), PAGES),
    "metrics gone": (gone("metrics.jsonl"), PAGES),
    "round huge": (entry("metrics.jsonl", round=10**400), PAGES),
    "figure of 400 digits": (entry("metrics.jsonl", **{"train/loss": 10**400}), ()),
    "accuracy of 400 digits": (entry("metrics.jsonl", **{"test/accuracy": 10**400}), PAGES),
    "figures are text": (entry("metrics.jsonl", **{"refused": "x", "market/money": []}), ()),
    "accuracy is text": (entry("metrics.jsonl", **{"test/accuracy": "x"}), PAGES),
    "client huge": (entry("clients.jsonl", client=10**400), PAGES),
    "client 10^12": (entry("clients.jsonl", client=10**12), PAGES),
    "client negative": (entry("clients.jsonl", client=-1), PAGES),
    "seat of lists": (entry("clients.jsonl", samples={}, name=["x"], refused={}), ()),
    "value of a list": (entry("clients.jsonl", value=[1]), PAGES),
    "clients gone": (gone("clients.jsonl"), ()),
    "config binary": (content("config.toml", b"\x00\xff\xfe[data]"), ALL),
    "config deep": (content("config.toml", f"x = {DEEP}"), ALL),
    "config gone": (gone("config.toml"), ALL),
    "config empty": (content("config.toml", ""), ()),
    "config of other types": (content("config.toml", "data = 5\nrun = []\nmechanism = 'x'\nledger = 2\n"), ()),
    "more clients than can be": (setting("data", f"clients = {10**15}"), PAGES),
    "clients are text": (setting("data", 'clients = "many"'), ()),
    "rounds are huge": (setting("run", f"rounds = {10**30}"), ()),
    "seed is a list": (setting("run", "seed = [1, 2]"), ()),
    "pickled": (hashed(pickled), ("audit", "disputes")),
    "a pickle for a round": (hashed(raw_pickle), ("audit", "disputes")),
    "round cut": (hashed(content("rounds/00001.npz", b"PK\x03\x04 and no more")), ("audit", "disputes")),
    "round of a bomb": (hashed(BOMB), ("audit", "disputes")),
    "round that boasts": (hashed(BOAST), ("audit", "disputes")),
    "round of another name": (content("rounds/x.npz", b"x"), ("audit",)),
    "market of another width": (hashed(arrays(market_client=np.arange(99))), ("audit",)),
    "market of text": (hashed(arrays(market_paid=np.array(["x"] * 5))), ("audit",)),
    "market without a graph": (hashed(arrays(market_graph=None)), ("audit",)),
    "market of NaN": (hashed(arrays(market_distance=np.full((5, 5), np.nan))), ("audit",)),
    "ledger.json deep": (content("ledger.json", DEEP), BOOKS),
    "ledger.json a list": (content("ledger.json", "[]"), BOOKS),
    "ledger.json a number": (content("ledger.json", '{"book": 5}'), BOOKS),
    "ledger.db junk": (content("ledger.db", b"SQLite format 3\x00" + bytes(range(256)) * 40), ("verify",)),
    "ledger.db empty": (content("ledger.db", b""), ("verify",)),
    "ledger.db gone": (gone("ledger.db"), ()),
    "log junk": (content("transactions.jsonl", bytes(range(256)) * 40), BOOKS),
    "log deep": (content("transactions.jsonl", DEEP + "\n"), BOOKS),
    "log empty": (content("transactions.jsonl", b""), BOOKS),
    "log gone": (gone("transactions.jsonl"), BOOKS),
    "heads junk": (content("transactions.heads", bytes(range(256)) * 40), BOOKS),
    "heads without an end": (content("transactions.heads", b"hanse/" + b"x" * 10**7), BOOKS),
    "heads gone": (gone("transactions.heads"), BOOKS),
    "members junk": (content("members.json", DEEP), PAGES),
    "members of text": (content("members.json", '[{"id": "0"}, 7]'), PAGES),
    "about gone": (gone("about.json"), PAGES),
    "about deep": (content("about.json", DEEP), PAGES),
    "about binary": (content("about.json", b"\xff\xfe"), PAGES),
    "about a list": (content("about.json", "[]"), PAGES),
    "about of other types": (content("about.json", '{"parts": [{"slot": 5}], "conducts": {"a": 1}}'), PAGES),
    "about of 40 MiB": (content("about.json", '{"parts": "' + "x" * (40 << 20) + '"}'), PAGES),
    "a sentence of 1 MiB": (told(report="x" * (1 << 20)), PAGES),
    "a sentence of numbers": (told(participant=[1, 2]), PAGES),
    "a thousand charts": (told(charts=[PLOT] * 1000), PAGES),
    "a chart of all figures": (told(charts=[PLOT | {"metric": m} for m in ("*/*", "*", "time/*")]), ()),
    "a chart of infinity": (told(charts=[PLOT | {"factor": 1e300}]), PAGES),
    "a chart drawn as code": (told(charts=[PLOT | {"how": "__import__('os')"}]), PAGES),
    "a worth of no client": (told(worth={"metric": "*/*/*", "label": "x"}), ()),
    "clients that are not there": (
        content("about.json", '{"conducts": [{"label": "x", "clients": [7, 9999999], "cheats": true}]}'),
        (),
    ),
    "clients below zero": (content("about.json", '{"conducts": [{"label": "x", "clients": [-1]}]}'), PAGES),
    "config of numbers": (content("config.toml", "data = 5\nrun = []\nmechanism = 'x'\nbehaviour = 2\n"), ()),
    "mechanism of lists": (setting("mechanism", "settle = [1]"), ()),
    "a policy that cannot be": (setting("clients", 'policy = { name = "free_rider", fraction = "x" }'), ()),
    "checkpoint of 2^60": (checkpoint({}, 1 << 60), ()),
    "checkpoint of lists": (checkpoint([[[]]]), ()),
    "checkpoint of other types": (
        checkpoint({"book": {"peaks": [5], "count": "x"}, "round": 1, "lengths": {"metrics.jsonl": {}}, "pending": 5}),
        (),
    ),
    "receipts deep": (content("receipts/client-0.jsonl", DEEP + "\n"), ("disputes",)),
    **{f"{path} a link": (link(path), ALL) for path in (
        "metrics.jsonl", "config.toml", "rounds/00001.npz", "rounds", "ledger.db", "transactions.jsonl", "report.html",
        "figures", "statements", "statements/client-0.html", "about.json",
    )},
    **{f"{path} a pipe": (pipe(path), ALL) for path in (
        "transactions.jsonl", "about.json", "metrics.jsonl", "config.toml", "ledger.json",
    )},
}  # fmt: skip
