"""The pages in headless Chromium: while a run goes on, behind keys, with hostile names, on a phone, for everybody."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rotation import rotating
from web_browser import Watch, find_browser, served
from web_cases import Growing

from hanse.core.entry import TOKEN, Transaction, client, pool
from hanse.reports.report import write_report
from hanse.reports.statement import render, statement
from hanse.runs.config import Experiment
from hanse.runs.experiment import run as play
from hanse.wings.operate.page.keys import make_key, write_keys

pytestmark = pytest.mark.by_turns(3)

EVIL = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>\'"&{{7*7}}'
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
    return Experiment(
        data={"source": "digits", "partition": "cluster", "clients": 6, "client_test": 0.2, "validation": 0.0},
        model={"name": "mlp", "hidden": [8]},
        mechanism={"name": "ipfl"},
        train={"steps": 4, "batch_size": 16, "lr": 0.05},
        clients={"grant": 100.0, "profiles": {"name": "roles", "eagerness": [6e3, 1.2e4]}},
        engine={"train": "stacked", "threads": 1},
        run={"rounds": rounds},
    )


# what a chart of the page has drawn: the rows of one of its data sets, once the drawing is done
DRAWN = """(async (place, name) => {
    const at = document.querySelector(place);
    await at.drawing;
    return at.view.data(name);
})"""


class Audience:
    """Looks at the page after each round of a run, before the run may go on."""

    def __init__(self, page: Any, rounds: int) -> None:
        self.page, self.rounds, self.seen = page, rounds, []

    def on_round(self, metrics: dict[str, Any], played: object) -> None:
        n = metrics["round"] + 1
        if n == 1:
            self.page.goto("/")
        expect(self.page.locator("#rounds")).to_have_text(f"{n} of {self.rounds} rounds")
        if n < self.rounds:
            expect(self.page.locator("#state")).to_have_text(re.compile("running|quiet"))  # on a busy machine
        self.seen.append(self.page.locator("#c-accuracy").get_attribute("aria-label"))


def test_a_market_is_watched_while_it_goes_on(tmp_path: Path, opened: Any) -> None:
    rounds = 4
    with served(tmp_path) as base:
        page, watch = opened(base)
        audience = Audience(page, rounds)
        result = play(market(rounds), out=tmp_path / "town", observers=[audience])
        expect(page.locator("#state")).to_have_text("finished")
        last = result.metrics[-1]
        expect(page.locator("#c-accuracy + .now")).to_contain_text("clients on their own data")
        means = [row["y"] for row in page.evaluate(f"{DRAWN}('#c-accuracy', 'rows')") if "mean" in row["s"]]
        assert means == [line["client/test_accuracy"] for line in result.metrics]
        assert len(set(audience.seen)) == rounds  # the chart changed after every round
        assert f"{last['client/test_accuracy']:.3g}" in audience.seen[-1]
        # the graph and the balances say what the books say
        for account, units in result.book.balances.items():
            if account.startswith("client/"):
                head = page.get_by_role("rowheader", name=account.replace("/", " "), exact=True)
                row = page.locator("#t-balances tbody tr").filter(has=head)
                expect(row.locator("td").first).to_have_text(f"{units / TOKEN:,.2f}")
        paid = sum(line["market/money"] for line in result.metrics if line.get("market/money"))
        assert paid > 0
        shares = [arrow["share"] for arrow in page.evaluate(f"{DRAWN}('#c-market', 'arrows')")]
        assert max(shares) == 1
        page.locator("summary").click()
        shown = [float(t) for t in page.locator("#t-flows tbody td.num").all_inner_texts()]
        assert sum(shown) == pytest.approx(paid, abs=0.01 * len(shown))
        utility = {int(k.rsplit("/", 1)[1]): v for k, v in last.items() if k.startswith("utility/client/")}
        best = max(utility, key=lambda c: utility[c])
        expect(page.locator("#t-clients tbody tr").first).to_contain_text(f"client {best}")
        page.locator("#figure").select_option("market/money")
        expect(page.locator("#c-any")).to_have_attribute("aria-label", re.compile("market/money by round"))
        page.locator("#t-clients a").first.click()
        expect(page).to_have_url(re.compile(f"/statement/[0-9a-f]{{12}}/{best}$"))
        expect(page.locator("h1")).to_contain_text(str(best))
    assert watch.elsewhere() == []
    assert watch.wrong == []


def test_without_its_drawing_library_the_page_says_so_and_numbers_are_there(tmp_path: Path, opened: Any) -> None:
    with served(tmp_path) as base:
        page, watch = opened(base)
        page.route("**/vega.js", lambda route: route.abort())
        play(market(2), out=tmp_path / "town")
        page.goto("/")
        expect(page.locator("#c-accuracy")).to_contain_text("could not be drawn")
        expect(page.locator("#c-accuracy")).to_contain_text("reload the page")
        expect(page.locator("#c-accuracy + .now")).to_contain_text("clients on their own data")
    assert not [line for line in watch.wrong if "ERR_FAILED" not in line]


def test_several_runs_to_choose_and_a_server_that_comes_back(tmp_path: Path, opened: Any) -> None:
    going, over = Growing(tmp_path / "going"), Growing(tmp_path / "over", planned=2)
    for run in (going, over, over):
        run.round()
    with served(tmp_path) as base:
        page, watch = opened(base)
        page.goto("/")
        expect(page.locator("tbody tr")).to_have_count(2)
        expect(page.locator("tbody tr").first).to_contain_text("going")
        page.get_by_role("link", name="over").click()
        expect(page.locator("#state")).to_have_text("finished")
        page.get_by_role("link", name="All runs").click()
        page.get_by_role("link", name="going").click()
        expect(page.locator("#rounds")).to_have_text("1 of 10 rounds")
        assert watch.wrong == []
        port = base.rsplit(":", 1)[1]
    expect(page.locator("#link")).to_contain_text("connection is lost")
    going.round()
    with served(tmp_path, port=int(port)):
        expect(page.locator("#rounds")).to_have_text("2 of 10 rounds")
        expect(page.locator("#link")).to_have_text("Connected again.")
        going.cut(1)
        expect(page.locator("#rounds")).to_have_text("1 of 10 rounds")
    assert watch.elsewhere() == []


def test_a_participant_logs_in_and_sees_only_its_own(tmp_path: Path, opened: Any) -> None:
    for name in ("one", "two"):
        run = Growing(tmp_path / "runs" / name, money=True)
        run.round()
    secret, key = make_key("participant", 3)
    write_keys(tmp_path / "keys", [key])
    with served(tmp_path / "runs", tmp_path / "keys") as base:
        page, watch = opened(base)
        page.goto("/")
        expect(page).to_have_url(f"{base}/login")
        page.get_by_label("Your key").fill("hanse_00000000_" + "A" * 43)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_have_text("This is not a valid key.")
        assert page.context.cookies() == []
        page.get_by_label("Your key").fill(secret)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("h1")).to_have_text("Your statements")
        hrefs = [a.get_attribute("href") for a in page.locator("main a").all()]
        assert len(hrefs) == 2
        assert all(re.fullmatch(r"/statement/[0-9a-f]{12}/3", href) for href in hrefs)
        page.get_by_role("link", name="one").click()
        expect(page.locator("h1")).to_contain_text("3")
        assert page.evaluate("document.cookie") == ""  # out of any script's reach
        id_ = hrefs[0].split("/")[2]
        for path in (f"/statement/{id_}/2", f"/run/{id_}", f"/run/{id_}/events", "/runs.json"):
            answer = page.goto(path)
            assert answer.status == 403, path
            expect(page.locator("h1")).to_have_text("No access")
        page.goto("/")
        page.get_by_role("button", name="Log out").click()
        expect(page).to_have_url(f"{base}/login")
        page.goto(hrefs[0])
        expect(page).to_have_url(f"{base}/login")
    assert watch.elsewhere() == []
    assert not [w for w in watch.wrong if "status of 40" not in w]


def test_hostile_names_are_shown_and_never_run(tmp_path: Path, opened: Any) -> None:
    run = Growing(tmp_path / "a<img src=x onerror=window.pwned=1>", money=True, mechanism="<b>bold</b>")
    (run.folder / "members.json").write_text(json.dumps([{"id": c, "name": EVIL} for c in range(4)]))
    seats = [{"client": 0, "value": 1.0, "name": EVIL}, {"client": 1, "refused": EVIL}]
    run.round(seats, **{EVIL: 1.0, f"{EVIL}/x": 2.0})
    lines = ((client(0), -TOKEN), (pool("<img src=x onerror=window.pwned=1>"), TOKEN))
    run.ledger.post(1, [Transaction("x", EVIL, lines, EVIL)])
    run.round(seats)
    with served(tmp_path) as base:
        page, watch = opened(base)
        page.goto("/")
        expect(page.locator("#rounds")).to_have_text("2 of 10 rounds")
        expect(page.locator("#t-clients")).to_contain_text("<img src=x")
        expect(page.locator("#l-refused")).to_contain_text("<script>window.pwned=1</script>")
        arrows = page.evaluate(f"{DRAWN}('#c-market', 'arrows')")
        assert any("<img src=x" in arrow["told"] for arrow in arrows)
        expect(page.locator("#t-balances")).to_contain_text("<img src=x onerror=window.pwned=1>")
        page.locator("#figure").select_option(EVIL)
        expect(page.locator("#c-any")).to_have_attribute("aria-label", re.compile("pwned"))
        expect(page.locator("h1")).to_have_text("a<img src=x onerror=window.pwned=1>")
        assert page.evaluate("[window.pwned === undefined, document.images.length, document.scripts.length]") == [
            True,
            0,
            4,
        ]
        page.locator("#t-clients a").first.click()
        expect(page.locator("h1")).to_contain_text("0")
        assert page.evaluate("[window.pwned === undefined, document.images.length, document.scripts.length]") == [
            True,
            0,
            0,
        ]
        # even a script that got into the page would not run: neither by markup nor by address
        page.goto("/")
        for attempt in (
            """document.body.innerHTML = '<img src=x onerror="window.pwned=1">'""",
            """document.body.setAttribute("onclick", "window.pwned=1")""",
            """document.body.append(Object.assign(document.createElement("script"), {text: "window.pwned=1"}))""",
        ):
            said = page.evaluate(f"() => {{ try {{ {attempt} }} catch (wrong) {{ return wrong.name; }} }}")
            assert said == "TypeError", attempt
        expect(page.locator("#rounds")).to_have_text("2 of 10 rounds")
        assert page.evaluate("window.pwned") is None
    assert watch.elsewhere() == []
    assert not [w for w in watch.wrong if "dialog" in w]


@pytest.mark.parametrize("size", rotating([*SIZES], 2))
def test_no_serious_fault_for_those_who_see_less(tmp_path: Path, opened: Any, size: str) -> None:
    """axe-core finds nothing serious on any page, and no page is wider than its screen."""
    from axe_playwright_python.sync_playwright import Axe

    for name in ("market", "going on"):
        run = Growing(tmp_path / "runs" / name, clients=20, money=True, planned=10)
        for _ in range(3):
            run.round()
        run.round([{"client": 1, "refused": "NaN"}]) if name == "going on" else None
    operator, participant = make_key("operator"), make_key("participant", 3)
    write_keys(tmp_path / "keys", [operator[1], participant[1]])
    found, pages = {}, 0
    with served(tmp_path / "runs", tmp_path / "keys") as base:
        # axe brings a script of its own, which the page's policy would keep out
        page, watch = opened(base, viewport=SIZES[size], bypass_csp=True)

        def look(name: str) -> None:
            nonlocal pages
            pages += 1
            faults = Axe().run(page).response["violations"]
            found.update(
                {
                    f"{name}: {f['id']}": [n["html"] for n in f["nodes"]]
                    for f in faults
                    if f["impact"] in ("serious", "critical")
                }
            )
            wide, screen = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
            assert wide <= screen, name

        def log_in(secret: str) -> None:
            page.get_by_label("Your key").fill(secret)
            page.get_by_role("button", name="Log in").click()

        page.goto("/")
        look("login")
        log_in("wrong")
        expect(page.get_by_role("alert")).to_be_visible()
        look("login refused")
        log_in(operator[0])
        expect(page.locator("h1")).to_have_text("Runs")
        look("runs")
        for name in ("market", "going on"):
            page.get_by_role("link", name=name).click()
            expect(page.locator("#c-market canvas")).to_be_visible()
            page.get_by_role("button", name="Show all 20").first.click()
            page.locator("summary").click()
            look(name)
            page.get_by_role("link", name="All runs").click()
        page.goto("/run/000000000000")
        look("not found")
        page.goto("/")
        page.get_by_role("button", name="Log out").click()
        log_in(participant[0])
        expect(page.locator("h1")).to_have_text("Your statements")
        look("home")
        page.get_by_role("link", name="market").click()
        expect(page.locator("h1")).to_contain_text("3")
        look("statement")
    assert found == {}
    assert pages == 8
    assert watch.elsewhere() == []


def test_by_keyboard_alone_and_out_again(tmp_path: Path, opened: Any) -> None:
    run = Growing(tmp_path / "runs" / "one")
    run.round()
    secret, key = make_key("operator")
    write_keys(tmp_path / "keys", [key])
    with served(tmp_path / "runs", tmp_path / "keys") as base:
        page, watch = opened(base)
        page.goto("/login")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.type(secret)
        page.keyboard.press("Enter")
        expect(page.locator("#rounds")).to_have_text("1 of 10 rounds")
        assert watch.wrong == []
        # logging out elsewhere ends what is open here
        other = page.context.new_page()
        other.goto("/")
        other.get_by_role("button", name="Log out").click()
        expect(page.locator("#link")).to_contain_text("no longer lets this page follow")


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
    for section in page.locator(".part[id]").all():
        page.locator(f'nav a[href="#{section.get_attribute("id")}"]').click()
        expect(section).to_have_attribute("open", "")
    widths = page.evaluate("Array.from(document.querySelectorAll('.plot canvas'), drawn => drawn.clientWidth)")
    assert len(widths) == page.locator(".plot").count() > 4
    assert set(widths) == {page.locator("figure").first.evaluate("figure => figure.clientWidth")}
    page.goto("about:blank")
    page.set_viewport_size(SIZES["wide"])
    page.goto(report.as_uri())
    expect(page.locator("#results")).to_have_attribute("open", "")
    assert watch.wrong == []
