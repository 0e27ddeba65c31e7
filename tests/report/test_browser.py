"""The report in a real browser: it fetches nothing, logs no error, and its controls work."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from discopatch.report import write_report
from tests.browser import RecordedPage, needs_browser, opened_browser

from .samples import HOSTILE, content, realistic, scored

pytestmark = [pytest.mark.slow, needs_browser]

COLUMN = """[...document.querySelectorAll("#images tbody tr")].filter(row => row.offsetParent)
    .map(row => row.cells[{}].dataset.value ?? row.cells[{}].textContent)"""
OVERFLOW = """[...document.querySelectorAll("body *")].filter(each =>
    !each.closest(".scroll") && each.getBoundingClientRect().right > innerWidth + 1).map(each => each.outerHTML)"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "Report of camera 3 #1 & more.html"
    write_report(path, realistic())
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with opened_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, report: Path) -> Page:
    found = RecordedPage(browser).page
    found.goto(report.as_uri())
    return found


def column(page: Page, number: int) -> list[str]:
    shown: list[str] = page.evaluate(COLUMN.format(number, number))
    return shown


def numbers(page: Page, number: int) -> list[float]:
    return [float(text) for text in column(page, number)]


def sorting(page: Page) -> list[str | None]:
    directions: list[str | None] = page.evaluate(
        "[...document.querySelectorAll('#images th')].map(each => each.getAttribute('aria-sort'))"
    )
    return directions


def test_nothing_is_fetched_and_nothing_is_logged(browser: Browser, report: Path) -> None:
    recorded = RecordedPage(browser)
    page = recorded.page
    page.goto(report.as_uri())
    widths = page.evaluate("Promise.all([...document.images].map(e => e.decode().then(() => e.naturalWidth)))")
    assert widths == [256] * 24
    assert HOSTILE in column(page, 0)
    assert page.evaluate("document.querySelectorAll('[onerror]').length") == 0
    assert (recorded.requests, recorded.complaints) == ([report.as_uri()], [])


def test_a_header_sorts_and_sorts_back(page: Page) -> None:
    scores = numbers(page, 1)
    assert scores == sorted(scores, reverse=True)
    assert scores != [float(text) for text in sorted(column(page, 1), reverse=True)], "as text the order is another"
    assert sorting(page) == [None, "descending", None, None, None]
    page.click("#images th:nth-child(2) button")
    assert numbers(page, 1) == sorted(scores)
    assert sorting(page) == [None, "ascending", None, None, None]
    page.click("#images th:nth-child(2) button")
    assert numbers(page, 1) == scores


def test_the_filter_leaves_what_matches(page: Page) -> None:
    page.fill("#filter input", "FLAGGED")
    assert len(column(page, 0)) == 7
    assert page.evaluate("document.querySelector('#filter output').textContent") == "7 of 120 shown"
    page.click("#images th:nth-child(2) button")
    assert len(column(page, 0)) == 7, "sorting keeps the filter"
    page.fill("#filter input", "")
    assert len(column(page, 0)) == 120
    page.fill("#filter input", "no such name")
    assert column(page, 0) == []


def test_an_image_hides_its_heatmap_and_one_button_hides_all(page: Page) -> None:
    page.evaluate("document.head.append(Object.assign(document.createElement('style'),"
                  " {textContent: '* { transition: none !important }'}))")  # fmt: skip
    opacities = "[...document.querySelectorAll('.heatmap')].map(each => Number(getComputedStyle(each).opacity))"
    assert page.evaluate(opacities) == [1] * 12
    page.click(".card:nth-child(2) .view")
    assert page.evaluate(opacities) == [1, 0] + [1] * 10
    page.keyboard.press("Space")
    assert page.evaluate(opacities) == [1] * 12
    page.click("#all-heatmaps")
    assert page.evaluate(opacities) == [0] * 12
    page.click("#all-heatmaps")
    assert page.evaluate(opacities) == [1] * 12


def test_a_script_that_is_not_ours_does_not_run(browser: Browser, report: Path, tmp_path: Path) -> None:
    """Even if a name could become a tag."""
    broken = report.read_text(encoding="utf-8").replace("<main>", "<main><img src=x onerror='window.harm = true'>")
    (tmp_path / "broken.html").write_text(broken, encoding="utf-8")
    recorded = RecordedPage(browser)
    recorded.page.goto((tmp_path / "broken.html").as_uri())
    assert recorded.page.evaluate("window.harm") is None
    assert recorded.page.evaluate("document.querySelectorAll('th button').length") == 5, "ours still does"
    assert "Content Security Policy" in "\n".join(recorded.complaints)


@pytest.mark.parametrize("width", [1280, 320])
def test_the_page_never_scrolls_sideways(browser: Browser, report: Path, tmp_path: Path, width: int) -> None:
    page = RecordedPage(browser, width=width).page
    predictions = [scored("x" * 255, 1.2345e300), scored("y/" * 120, -1e-300), scored("w w" * 50, 123456789.123)]
    endless = content(predictions, title="t" * 200, settings={"s" * 90: "v" * 300}, calibration_scores=np.ones(3))
    write_report(tmp_path / "r.html", endless)
    page.goto((tmp_path / "r.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.goto(report.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width == page.evaluate("innerWidth")
    assert page.evaluate(OVERFLOW) == []
    drawn = page.evaluate(
        "[...document.querySelectorAll('.histogram')].filter(each => each.getBoundingClientRect().width).length"
    )
    assert drawn == 1


def test_everything_is_shown_without_scripts(browser: Browser, report: Path) -> None:
    page = RecordedPage(browser, scripts=False).page
    page.goto(report.as_uri())
    shown = "(selector => [...document.querySelectorAll(selector)].filter(each => each.offsetParent).length)"
    assert page.evaluate(f"{shown}('#images tbody tr')") == 120
    assert page.evaluate(f"{shown}('.card')") == 12
    assert page.evaluate(f"{shown}('button, #filter input')") == 0, "no control that does nothing"
    page.click(".card:nth-child(2) .view")
    assert page.evaluate("document.querySelector('.card:nth-child(2) input').checked") is False
