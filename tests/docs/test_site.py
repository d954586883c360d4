"""The documentation site: built strictly, without a broken link, and without anything from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from doc_pages import PAGES, ROOT

from hanse.learning.models import MODELS
from hanse.mechanisms.registry import MECHANISMS, PARTS
from hanse.runs.config import Experiment

DOCS = sorted(p for p in PAGES if p.is_relative_to(ROOT / "docs"))
FORMULA = re.compile(r"\$\$.+?\$\$|(?<!\\)\$[^\s$](?:[^$\n]*[^\s$])?\$", re.DOTALL)
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
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr  # a broken link or anchor is a warning, and warnings fail
    return folder


def page(site: Path, source: Path) -> str:
    return (site / source.relative_to(ROOT / "docs").with_suffix(".html")).read_text()


def test_every_page_is_in_the_menu(site: Path) -> None:
    menu = re.findall(r'<a href="([^"]+)" class="md-nav__link', page(site, ROOT / "docs" / "concepts.md"))
    pages = {source.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for source in DOCS}
    assert pages <= {link.removeprefix("./") for link in menu}


def test_formulas_are_mathml(site: Path) -> None:
    total = 0
    for source in DOCS:
        text, made = FENCED.sub("", source.read_text()), page(site, source)
        formulas = len(FORMULA.findall(text))
        assert made.count("<math ") == formulas, source
        assert "arithmatex" not in made, source
        total += formulas
        for drawn in re.findall(r"<math .*?</math>", made, re.DOTALL):
            ElementTree.fromstring(drawn)
            assert "\\" not in drawn, (source, drawn)  # an unknown command is left as it was written
    assert total > 80


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        found = LOADED.search(file.read_text())
        assert found is None, (file, found)


def test_docstrings_are_rendered(site: Path) -> None:
    for source in (ROOT / "docs" / "reference").glob("*.md"):
        made = page(site, source)
        assert ":::" not in made, source
        assert not re.search(r":(class|func|mod|meth):", made), source
        for name in re.findall(r"^::: ([\w.]+)", source.read_text(), re.MULTILINE):
            assert f'id="{name}' in made, (source, name)


def test_keys_and_parts_are_the_codes(site: Path) -> None:
    keys = page(site, ROOT / "docs" / "reference" / "experiment.md")
    for section, field in Experiment.model_fields.items():
        assert f'id="{section}"' in keys, section
        names = getattr(field.annotation, "model_fields", {})
        assert section in ("mechanism", "model") or all(f"<code>{name}</code>" in keys for name in names), section
    assert all(f"<td><code>{name}</code></td>" in keys for name in (*MECHANISMS, *MODELS))
    assert "left out: no limit" in keys  # a key's meaning, from the section's docstring
    parts = page(site, ROOT / "docs" / "reference" / "parts.md")
    assert all(f"<td><code>{name}</code></td>" in parts for slot in PARTS.values() for name in slot)
    assert "<code>eps</code> 0.0001: the truncation threshold in units of the utility." in parts  # an option's meaning


def test_differences_of_the_recipes_are_the_codes(site: Path) -> None:
    from hanse_papers.catalogue import PAPERS
    from hanse_papers.tables import differences

    papers = page(site, ROOT / "docs" / "papers.md")
    for line in [line for paper in PAPERS for line in differences(paper)]:
        assert not line["setting"] or f"<td><code>{line['setting']}</code></td>" in papers, line
        assert line["source"] in papers, line


def test_links_out_of_the_site_exist() -> None:
    """Links of README and CONTRIBUTING, which are not part of the site."""
    for source in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", FENCED.sub("", source.read_text())):
            assert target.startswith("https://") or (ROOT / target).exists(), (source, target)
