"""What only looks at a run runs nothing of it, goes nowhere on its word, and says in a line what is wrong with it."""

import contextlib
import shutil
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import commands
import pytest
from experiments import market
from rotation import rotating
from strangers import DAMAGES, LOOKS, PAGES, bait_of, setting

import hanse
from hanse.base.files import write_whole
from hanse.reports.report import _page as real_page
from hanse.reports.report import save as real_save

Hanse = Callable[..., tuple[int, str, str]]
EVIL = "from pathlib import Path\nPath(r'{}').touch()\n\ndef f(*given, **named):\n    raise SystemExit(3)\n"


TRADERS = {"name": "roles", "roles": ["trader"] * 5, "eagerness": [1e4, 2e4]}
MECHANISMS: dict[str, dict[str, Any]] = {
    "trades": {"mechanism": "ipfl", "clients": {"profiles": TRADERS, "grant": 100.0}},
    "auctions": {"mechanism": {"name": "tiff", "by_contribution": 2, "at_random": 1}, "data": {"validation": 0.2}},
    "pays by value": {"mechanism": {"name": "fedavg", "value": "path", "settle": "by_value"},
                      "data": {"validation": 0.2}},
    "private rows": {"mechanism": "ditto"},
}  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs of three rounds with checkpoints and refusals of nobody, some with books and receipts; each is played
    once.
    """
    place = tmp_path_factory.mktemp("sound")

    @cache
    def of(name: str) -> Path:
        own = MECHANISMS[name]
        data = {"client_test": 0.2, "validation": 0.0} | own.get("data", {})
        clients = {"clients": own["clients"]} if "clients" in own else {}
        hanse.run(market(own["mechanism"], 5, 3, data=data, train={"steps": 2}, **clients), out=place / name)
        return place / name

    return of


@pytest.fixture
def folder(request: pytest.FixtureRequest, sound: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of one, that of the market unless another is named, and beside it what must not be touched."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file.txt").write_text("mine")
    return shutil.copytree(sound(getattr(request, "param", "trades")), tmp_path / "run")


@pytest.fixture
def run_hanse(monkeypatch: pytest.MonkeyPatch) -> Hanse:
    def words(given: Mapping[str, Any], *_: Any) -> str:
        return "\n".join(map(str, [*given["doubts"], *given["warnings"]]))

    monkeypatch.setattr("hanse.reports.report.save", lambda chart, folder: "")  # to draw takes seconds
    monkeypatch.setattr("hanse.reports.report._page", words)

    monkeypatch.setattr(sys, "path", list(sys.path))
    return commands.run_hanse


def untouched(folder: Path) -> bool:
    """Say whether nothing outside the run directory was written, and nothing executed."""
    victim = folder.parent / "victim"
    return (
        not bait_of(folder).exists()
        and [p.name for p in victim.iterdir()] == ["file.txt"]
        and (victim / "file.txt").read_text() == "mine"
    )


DRAWN = [name for name, (_, refused_by) in DAMAGES.items() if "report" not in refused_by]


@pytest.mark.parametrize("damage", rotating(list(DAMAGES), 5))
def test_a_damaged_directory_is_one_line_for_every_command_that_looks_and_loaded_or_refused(
    folder: Path, run_hanse: Hanse, damage: str
) -> None:
    """Attacks 10 and 19."""
    spoil, refused_by = DAMAGES[damage]
    spoil(folder)
    looked_at(folder, run_hanse, refused_by)


OF_ANY = [name for name in DAMAGES if not name.startswith("market")]


@pytest.mark.parametrize("folder", [name for name in MECHANISMS if name != "trades"], indirect=True)
@pytest.mark.parametrize("damage", rotating(OF_ANY, 40))
def test_so_is_a_damaged_directory_of_other_mechanisms(folder: Path, run_hanse: Hanse, damage: str) -> None:
    spoil, refused_by = DAMAGES[damage]
    booked = (folder / "ledger.json").exists()
    try:
        spoil(folder)
    except (FileNotFoundError, IndexError):  # who pays nothing has no books, and no part that speaks of itself
        assert not booked
        refused_by = ()
    looked_at(folder, run_hanse, [name for name in refused_by if booked or name in PAGES])


def looked_at(folder: Path, run_hanse: Hanse, refused_by: Collection[str]) -> None:
    """Look at a damaged directory with every command: some must refuse it, each with one line, and none does harm."""
    for name, words in LOOKS.items():
        code, out, err = run_hanse(*(word.format(folder) for word in words))
        assert code in (1, 2) if name in refused_by else code in (0, 1, 2), (name, code, err)
        # what a check finds is its result, which stands where it would otherwise say that all holds
        found = code == 1 and not err and out and name in ("disputes", "audit", "verify")
        warned = code == 0 and err.startswith("warning: ")
        assert found or len(err.splitlines()) == (1 if code or warned else 0), (name, out, err)
        # what must be refused is refused where it is read, with the file's name; the last net is for the rest
        assert name not in refused_by or "do not fit together" not in err, (name, err)
        assert untouched(folder), name
    with contextlib.suppress(hanse.UserError):
        hanse.load(folder).model()
    assert untouched(folder)


@pytest.mark.parametrize("damage", rotating(DRAWN, 10, pytest.mark.slow))
def test_a_report_of_what_is_left_is_drawn(
    folder: Path, run_hanse: Hanse, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr("hanse.reports.report._page", real_page)
    monkeypatch.setattr("hanse.reports.report.save", real_save)
    DAMAGES[damage][0](folder)
    code, _, err = run_hanse("report", folder)
    assert len(err.splitlines()) == (1 if code else 0), err
    assert untouched(folder)


@pytest.mark.parametrize("damage", rotating(list(DAMAGES), 5))
def test_the_live_page_shows_what_is_left_of_a_damaged_directory(folder: Path, damage: str) -> None:
    from hanse.wings.operate.serve import page, runs_in

    DAMAGES[damage][0](folder)
    assert None not in [
        page(folder.parent, name) for name in runs_in(folder.parent)
    ]  # why it cannot be read, or what is left
    assert untouched(folder)


def test_a_sound_directory_is_looked_at_by_every_command(folder: Path, run_hanse: Hanse) -> None:
    for name, words in LOOKS.items():
        code, _, err = run_hanse(*(word.format(folder) for word in words))
        assert (code, err) == (0, ""), (name, err)
    assert (folder / "report.html").exists()
    assert (folder / "statements" / "client-0.html").stat().st_size > 1000


def evil(folder: Path) -> Path:
    """Put a module into the folder that leaves a mark where it is imported."""
    (folder / "evilmod.py").write_text(EVIL.format(bait_of(folder)))
    return bait_of(folder)


NAMED = [
    ("data", 'source = "evilmod:f"'), ("clients", 'profiles = "evilmod:f"'), ("model", 'name = "evilmod:f"'),
    ("clients", 'policy = { name = "evilmod:f" }'), ("mechanism", 'name = "evilmod:f"'),
    ("behaviour", '"evilmod:f" = { clients = [0] }'),
]  # fmt: skip


@pytest.mark.parametrize("named", rotating(NAMED, 3))
def test_nothing_that_a_run_names_is_imported(
    folder: Path, run_hanse: Hanse, monkeypatch: pytest.MonkeyPatch, named: tuple[str, str]
) -> None:
    """Attack 8: `cd STRANGERS_DIR && hanse report .` ran its evilmod.py."""
    section, text = named
    if f"[{section}]" not in (folder / "config.toml").read_text():
        (folder / "config.toml").write_text((folder / "config.toml").read_text() + f"[{section}]\n")
    setting(section, text)(folder)
    mark = evil(folder)
    monkeypatch.chdir(folder)
    for words in LOOKS.values():
        run_hanse(*(word.format(".") for word in words))
        assert not mark.exists(), words
    from hanse.wings.operate.serve import page

    assert page(folder, "/") is not None
    assert not mark.exists()
    assert str(folder) not in sys.path
    assert "evilmod" not in sys.modules
    for words in (
        ["statement", "config.toml", "--dry-run", "--client", "0"],
        ["statement", ".", "--client", "0", "--train-alone"],
        ["audit", "."],
    ):
        code, out, err = run_hanse(*words)
        assert not mark.exists(), words
        if code:
            assert "--trust" in err or section == "mechanism" or "config.toml was edited" in out, err


@pytest.mark.parametrize("place", ["elsewhere", "here"])
def test_with_trust_they_are_imported(
    folder: Path, run_hanse: Hanse, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    setting("data", f'source = "evil_{place}:f"')(folder)
    mark = evil(folder)
    (folder / "evilmod.py").rename(folder / f"evil_{place}.py")
    monkeypatch.chdir(folder if place == "here" else folder.parent)
    code, _, err = run_hanse("report", folder, "--retrain", "--trust")
    assert mark.exists() == (place == "here")
    assert (code, len(err.splitlines())) == (2, 1)  # its SystemExit is a mistake of the module


def test_only_what_runs_experiments_looks_for_modules_in_the_current_folder(here: Path, run_hanse: Hanse) -> None:
    (here / "exp.toml").write_text('[mechanism]\nname = "evilmod:f"\n')
    evil(here)
    code, _, err = run_hanse("statement", "exp.toml", "--dry-run", "--client", "0")
    assert (code, bait_of(here).exists()) == (2, False)
    assert "run code" in err
    code, _, _ = run_hanse("run", "exp.toml")
    assert (code, bait_of(here).exists()) == (2, True)  # a program: it ran, and its exit is a mistake


@pytest.mark.parametrize("words", LOOKS.values(), ids=LOOKS)
def test_nobody_connects_where_a_runs_file_says(folder: Path, run_hanse: Hanse, words: list[str]) -> None:
    """Attack 9: `ledger verify` of a stranger's run opened a connection to its host, with the user's name."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as trap:
        host = f"postgresql://me:secret@127.0.0.1:{trap.getsockname()[1]}/books"
        (folder / "config.toml").write_text(
            (folder / "config.toml").read_text()
            + "[ledger]\n" * ("[ledger]" not in (folder / "config.toml").read_text())
        )
        setting("ledger", f'url = "{host}"')(folder)
        code, out, err = run_hanse(*(word.format(folder) for word in words))
        assert (code, err) == (0, "")
        assert "secret" not in out + err
        trap.settimeout(0)
        with pytest.raises(BlockingIOError):
            trap.accept()


def test_what_is_written_is_whole_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "page").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="regular"):
        write_whole(tmp_path / "page", "theirs")
    with pytest.raises(OSError, match="regular"):
        write_whole(tmp_path, "x")
    write_whole(tmp_path / "new" / "page", "one")
    write_whole(tmp_path / "new" / "page", b"two")
    assert (tmp_path / "new" / "page").read_text() == "two"
    assert (tmp_path / "victim").read_text() == "mine"
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["page"]
