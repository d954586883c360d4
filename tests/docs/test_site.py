"""The documentation site: built strictly, without a broken link, and without anything from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import PAGES, ROOT

DOCS = sorted(p for p in PAGES if p.is_relative_to(ROOT / "docs"))
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//"""
    r"""|<link\b[^>]*\brel=["']?(?:stylesheet|preconnect|preload|icon)[^>]*\bhref=["']?(?:https?:)?//"""
    r"""|@import\s+(?:url\()?["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
)


pytest.importorskip("hanse_papers", reason="the site has a page on the papers: pip install -e papers")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    # a broken link or anchor is a warning, and warnings fail; with --quiet they are not even counted
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def page(site: Path, source: Path) -> str:
    return (site / source.relative_to(ROOT / "docs").with_suffix(".html")).read_text()


def test_every_page_is_in_the_menu(site: Path) -> None:
    menu = re.findall(r'<a href="([^"]+)" class="md-nav__link', page(site, ROOT / "docs" / "concepts.md"))
    pages = {source.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for source in DOCS}
    assert pages <= {link.removeprefix("./") for link in menu}


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        found = LOADED.search(file.read_text())
        assert found is None, (file, found)


def test_links_out_of_the_site_exist() -> None:
    """Links of README and CONTRIBUTING, which are not part of the site."""
    for source in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", FENCED.sub("", source.read_text())):
            assert target.startswith("https://") or (ROOT / target).exists(), (source, target)
