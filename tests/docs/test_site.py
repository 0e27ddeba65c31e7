"""The site as `make docs` builds it: strictly, whole, and from a folder."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from site_commands import commands_page
from site_reference import python_pages

import discopatch
from tests.browser import Browser, Page, find_browser
from tests.docs.blocks import ROOT

RESULTS = ".md-search-result__link"
FETCHED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="?https?://')


def test_the_reference_has_every_public_name() -> None:
    text = "\n".join(python_pages(ROOT / "src" / "discopatch").values())
    for name in discopatch.__all__:
        assert f"discopatch.{name}" in text


def test_the_reference_has_every_command_with_its_options() -> None:
    text = commands_page()
    for expected in ("## discopatch fit", "## discopatch data fetch", "--false-alarm-rate", "--fail-on-ood"):
        assert expected in text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site without a warning: with --quiet none would be counted."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_strictly_and_fetches_nothing(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        assert not FETCHED.search(page.read_text(encoding="utf-8")), page


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="needs chromium")
def test_the_search_finds_a_word_from_a_folder(site: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as page:
        page.open(f"{(site / 'index.html').as_uri()}?q=threshold")
        page.wait_until(f"document.querySelectorAll({RESULTS!r}).length > 3")
        found = page.evaluate(f"[...document.querySelectorAll({RESULTS!r})].map(each => [each.href, each.textContent])")
        addresses = [address for address, text in found if "threshold" in text.lower()]  # others are pages around these
        page.open(addresses[0])
        assert "threshold" in page.evaluate("document.querySelector('article').textContent").lower()


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="needs chromium")
def test_the_report_is_on_the_page_of_the_tutorial(site: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as page:
        page.open(site / "tutorial.html")
        page.evaluate("document.querySelector('iframe.report').scrollIntoView()")
        place = page.evaluate("document.querySelector('iframe.report').src")
        page.open(place)
        assert "4 of 18 images" in page.evaluate("document.body.textContent")


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="needs chromium")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_the_window_in_the_colours_of_the_system(site: Path, tmp_path: Path, width: int, scheme: str) -> None:
    with opened(tmp_path) as page:
        page.resize(width)
        page.prefer(scheme)
        for name in ("index", "tutorial", "how-to/gate", "reference/commands", "reference/discopatch", "results"):
            page.open(site / f"{name}.html")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            shown = page.evaluate("document.body.dataset.mdColorScheme")
            assert shown == {"light": "default", "dark": "slate"}[scheme], name
            assert page.complaints() == [], name


@contextmanager
def opened(folder: Path) -> Iterator[Page]:
    executable = find_browser()
    assert executable is not None
    with Browser(executable, folder / "browser") as browser, browser.page() as page:
        yield page
