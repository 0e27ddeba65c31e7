"""The site as `make docs` builds it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import RecordedPage, needs_browser, opened_browser
from tests.docs.blocks import ROOT

FETCHED = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="?https?://')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built without a warning."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_fetches_nothing(site: Path) -> None:
    assert not [page for page in site.rglob("*.html") if FETCHED.search(page.read_text(encoding="utf-8"))]
    reference = (site / "reference/discopatch.html").read_text(encoding="utf-8")
    assert 'id="discopatch.Detector.predict"' in reference  # an inherited method
    assert "--false-alarm-rate" in (site / "reference/commands.html").read_text(encoding="utf-8")


@pytest.mark.nightly
@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_window(site: Path, width: int) -> None:
    with opened_browser() as browser:
        page = RecordedPage(browser, width=width).page
        for path in sorted(site.rglob("*.html")):
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            if width == 1280 and "reference" not in path.parts:  # tables do not scroll on a laptop
                wide = "[...document.querySelectorAll('article .table')].filter(e => e.scrollWidth > e.clientWidth)"
                assert page.evaluate(f"{wide}.length") == 0, path
