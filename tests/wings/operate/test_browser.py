"""The report, the statement and the live page in headless Chromium: on a phone, on paper, while a run goes on."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from experiments import digits
from web_browser import Watch, find_browser

from hanse.reports.report import write_report
from hanse.reports.statement import render, statement
from hanse.runs.config import Experiment
from hanse.runs.experiment import run as play
from hanse.wings.operate.serve import listen

pytestmark = pytest.mark.by_turns(3)

SIZES = {"wide": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = find_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # a container's root has no sandbox of its own; the pages are our own, on loopback
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any) -> Iterator[Any]:
    """Return a function that opens a new page for a server's address: ``opened(base) -> (page, watch)``."""
    contexts = []

    def open_(base: str, **more: Any) -> tuple[Any, Watch]:
        context = chromium.new_context(**{"viewport": SIZES["wide"], "base_url": base, **more})
        context.set_default_timeout(40_000)
        contexts.append(context)
        watch, page = Watch(base), context.new_page()
        watch.follow(page)
        return page, watch

    yield open_
    for context in contexts:
        context.close()


def expect(thing: Any) -> Any:
    from playwright.sync_api import expect as playwrights

    playwrights.set_options(timeout=40_000)
    return playwrights(thing)


def market(rounds: int) -> Experiment:
    data, model = {"partition": "cluster", "client_test": 0.2, "validation": 0.0}, {"name": "mlp", "hidden": [8]}
    sections = {"data": data, "model": model, "train": {"steps": 4, "batch_size": 16, "lr": 0.05}}
    clients = {"grant": 100.0, "profiles": {"name": "roles", "eagerness": [6e3, 1.2e4]}}
    return digits("ipfl", 6, rounds, **sections, engine={"train": "stacked"}, clients=clients)


class Audience:
    """Looks at the page after each round of a run, before the run may go on."""

    def __init__(self, page: Any, rounds: int) -> None:
        self.page, self.rounds = page, rounds

    def on_round(self, metrics: dict[str, Any], played: object) -> None:
        done = metrics["round"] + 1
        if done == 1:
            self.page.goto("/")
            self.page.get_by_role("link", name="town").click()
        if done < self.rounds:
            expect(self.page.get_by_role("note")).to_contain_text(f"{done} of {self.rounds} rounds")
            self.page.locator(".part:has(> div[id]) > summary").nth(1).click()


@pytest.mark.slow
def test_a_run_is_watched_while_it_goes_on(tmp_path: Path, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page loads itself again after a round, with the sections that were open."""
    monkeypatch.setattr("hanse.wings.operate.serve.REST", 0)  # on a busy machine the first page takes long
    server = listen(tmp_path, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with server:
        page, watch = opened(f"http://127.0.0.1:{server.server_address[1]}")
        play(market(2), out=tmp_path / "town", observers=[Audience(page, 2)])
        expect(page.get_by_role("heading", level=1)).to_contain_text("2 rounds")
        expect(page.locator(".part:has(> div[id])").nth(1)).to_have_attribute("open", "")
        server.shutdown()
    assert watch.elsewhere() == []
    assert watch.wrong == []


@pytest.mark.slow
def test_a_report_and_a_statement_are_short_on_a_phone_and_whole_on_paper(tmp_path: Path, opened: Any) -> None:
    """What is not the answer is folded: a report was 13,800 px long."""
    from axe_playwright_python.sync_playwright import Axe

    play(market(6), out=tmp_path / "run")
    report, page_of = write_report([tmp_path / "run"], tmp_path / "run"), render(statement(tmp_path / "run", 0))
    (tmp_path / "statement.html").write_text(page_of)
    page, watch = opened("", viewport=SIZES["phone"], bypass_csp=True)
    long = "document.documentElement.scrollHeight"
    for file, most in ((tmp_path / "statement.html", 4000), (report, 5000)):
        page.goto(file.as_uri())
        page.wait_for_function("!document.querySelector('.part[open]')")
        assert page.evaluate(long) <= most
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        faults = Axe().run(page).response["violations"]
        assert not [fault["id"] for fault in faults if fault["impact"] in ("serious", "critical")]
        before = page.evaluate(long)
        page.emulate_media(media="print")
        assert page.evaluate(long) > 1.3 * before
        page.emulate_media(media="screen")
    for link in page.locator("nav a").all():
        link.click()
        expect(page.locator(f".part:has(> div{link.get_attribute('href')})")).to_have_attribute("open", "")
    widths = page.evaluate("Array.from(document.querySelectorAll('figure img'), drawn => drawn.clientWidth)")
    assert len(widths) == page.locator("figure").count() > 4
    assert set(widths) == {page.locator("figure").first.evaluate("figure => figure.clientWidth")}
    assert watch.wrong == []
