import struct
from html.parser import HTMLParser
from pathlib import Path

import pytest
from reports_cases import accuracies, large_run, metric, seat, write_run

from hanse.base.errors import UserError
from hanse.reports.chart import Chart
from hanse.reports.report import write_report
from hanse.reports.statement import render, statement
from hanse.reports.vega import SCALE, DrawingError
from hanse.runs.run_record import load_run

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


class Page(HTMLParser):
    """The elements of a page, what they would fetch, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.text = ""
        self.styled = False
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag
        self.fetched += [str(v) for k, v in attrs if k in ("src", "href", "srcset", "data", "action")]
        assert not any(k.startswith("on") for k, _ in attrs)
        self.styled |= any(k == "style" for k, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data


def pair(folder: Path) -> list[Path]:
    return [
        large_run(folder / f"{m}-{s}", rounds=8, clients=6, per_round=2, mechanism=m, seed=s)
        for m in ("greedyfed", "fedavg")
        for s in (0, 1)
    ]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return write_report(pair(folder), folder / "out")


def test_one_page_that_works_offline(page: Path) -> None:
    text = page.read_text()
    found = Page(text)
    assert all(link.startswith(("#", "data:image/svg+xml;base64,")) for link in found.fetched)
    assert not {"link", "iframe", "script", "object", "base"} & set(found.tags)
    assert "default-src &#39;none&#39;" in text  # the browser would refuse what slipped through
    assert "greedyfed" in found.text
    assert "clients_per_round = 2" in found.text  # the experiment file
    assert page.stat().st_size < 1.5e6


def test_a_png_for_each_figure(page: Path) -> None:
    pictures = sorted((page.parent / "figures").glob("*.png"))
    names = {p.stem for p in pictures}
    assert {"test-accuracy", "contribution-ranking-greedyfed"} <= names
    assert not any("fedavg" in name for name in names)  # it values nobody
    assert Page(page.read_text()).tags.count("figure") == len(pictures)
    for kind in ("svg", "csv"):
        assert {p.stem for p in (page.parent / "figures").glob(f"*.{kind}")} == names
    assert (page.parent / "figures" / "test-accuracy.csv").read_text().startswith("series,rounds played,accuracy")
    for picture in pictures:
        width, height = struct.unpack(">II", picture.read_bytes()[16:24])
        assert 400 * SCALE < width < 800 * SCALE  # the drawing and what stands beside it
        assert 100 < height < 2000


def test_hostile_names_are_text_in_reports_and_statements(tmp_path: Path) -> None:
    seats = [seat(0, 0, 1.0, name=HOSTILE), seat(0, 1, 2.0, name=f"2{HOSTILE}"), seat(0, 2, refused=HOSTILE)]
    path = write_run(
        tmp_path / HOSTILE.replace("/", "_"),
        [metric(0, 0.5, refused=1)],
        seats,
        {"mechanism": {"name": f"a:{HOSTILE}"}, "data": {"source": HOSTILE}, "clients": {"named": True}},
    )
    page = Page(write_report([path], tmp_path / "out").read_text())
    assert page.tags.count("img") == page.tags.count("figure")
    assert page.text.count("alert(1)") >= 2
    for found in (page, *(Page(render(statement(path, client))) for client in range(3))):
        assert "script" not in found.tags
        assert "x" not in found.fetched
    assert load_run(path).client_of(HOSTILE) == 0
    for picture in (tmp_path / "out" / "figures").iterdir():
        assert set(picture.stem) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")


def test_a_run_with_almost_nothing(tmp_path: Path) -> None:
    path = write_run(tmp_path / "bare", [{"round": 0}], changes={"data": {"source": "no.such:data"}})
    page = Page(write_report([path], path).read_text())
    assert "figure" not in page.tags
    assert "1 of 4 rounds" in page.text
    assert (path / "config.toml").exists()


def test_what_cannot_be_reported_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    good = accuracies(tmp_path / "good", [0.1])
    with pytest.raises(UserError, match="not a run directory"):
        write_report([good, tmp_path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_chart_that_cannot_be_drawn_is_named_and_the_others_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(chart: Chart, folder: Path) -> str:
        if "accuracy" in chart.key:
            raise DrawingError("no such font")
        (folder / f"{chart.key}.png").touch()
        return "<svg/>"

    monkeypatch.setattr("hanse.reports.report.save", save)
    page = Page(write_report(pair(tmp_path), tmp_path / "out").read_text())
    drawn = {path.stem for path in (tmp_path / "out" / "figures").glob("*.png")}
    missing = {path.stem for path in (tmp_path / "out" / "figures").glob("*.csv")} - drawn
    assert drawn
    assert missing
    assert page.text.count("Not drawn: no such font.") == len(missing)


@pytest.mark.usefixtures("undrawn")
def test_figures_of_an_earlier_report_do_not_stay_beside_those_of_this_one(tmp_path: Path) -> None:
    greedy, _, fedavg, _ = pair(tmp_path)
    write_report([greedy], tmp_path / "out")
    (tmp_path / "out" / "figures" / "mine.png").write_bytes(b"kept")
    before = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    write_report([fedavg], tmp_path / "out")
    write_report([fedavg], tmp_path / "alone")
    after = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert after != before
    assert after == {path.name for path in (tmp_path / "alone" / "figures").iterdir()} | {"mine.png"}
