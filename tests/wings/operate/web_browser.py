"""Headless Chromium for tests: found on this machine, or, where HANSE_TEST_BROWSER is set, required."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> str:
    """Return Chromium's path. Skips the test where there is none, or fails it where HANSE_TEST_BROWSER is set."""
    wanted = os.environ.get("HANSE_TEST_BROWSER")
    found = wanted or next((path for name in NAMES if (path := shutil.which(name))), None)
    try:
        import axe_playwright_python
        import playwright

        assert axe_playwright_python
        assert playwright
    except ModuleNotFoundError as missing:
        found, why = None, f"{missing.name} is not installed"
    else:
        why = "there is no Chromium; .ci/browser installs it"
    if found is None or not Path(found).is_file():
        if wanted:
            pytest.fail(f"HANSE_TEST_BROWSER is {wanted}: {why}")
        pytest.skip(why)
    return found


@dataclass
class Watch:
    """What a page asked for and what went wrong on it."""

    base: str
    asked: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def follow(self, page: object) -> None:
        page.on("request", lambda r: self.asked.append(r.url))
        page.on("websocket", lambda w: self.asked.append(w.url))
        page.on("pageerror", lambda e: self.wrong.append(f"error: {e}"))
        page.on("dialog", lambda d: (self.wrong.append(f"dialog: {d.message}"), d.dismiss()))
        page.on("console", lambda m: self.wrong.append(m.text) if m.type == "error" else None)

    def elsewhere(self) -> list[str]:
        """Return what was asked of anybody but the page's own server."""
        return [url for url in self.asked if not url.startswith((self.base + "/", "data:"))]
