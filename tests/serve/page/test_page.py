"""The page in a real browser, with the real service behind it."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import pytest
from PIL import Image

from discopatch.serve.page import CONTENT_SECURITY_POLICY, page_html
from tests.browser import NAMES, Browser, Page, find_browser
from tests.samples import new_detector, one_camera, save_images
from tests.serve.page.running import Running, running

EXECUTABLE = find_browser()
needs_browser = pytest.mark.skipif(EXECUTABLE is None, reason=f"needs a browser: one of {', '.join(NAMES)}")

TEXT = "document.getElementById({}).textContent"
NOT_SHOWN = "document.getElementById({}).offsetParent === null"
TILES = "[...document.querySelectorAll('.tile')].map(each => each.getAttribute('aria-label'))"
OVERFLOW = """[...document.querySelectorAll("body *")].filter(each => !each.closest(".strip, .unseen, legend")
    && each.getBoundingClientRect().right > innerWidth + 1).map(each => each.outerHTML.slice(0, 200))"""
HOSTILE = "<img src=x onerror=alert(1)>&amp;.png"


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("detectors") / "camera-3.safetensors"
    new_detector(head="components").fit(one_camera(60), workers=1).save(path)
    return path


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A normal image, an odd one, and a file that is none."""
    folder = tmp_path_factory.mktemp("images")
    (normal,) = save_images(folder, one_camera(1, seed=5))
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "noise.png")
    (folder / "notes.png").write_text("no image at all")
    (folder / HOSTILE).write_bytes(normal.read_bytes())
    return {"normal": normal, "odd": folder / "noise.png", "none": folder / "notes.png", "hostile": folder / HOSTILE}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert EXECUTABLE
    with Browser(EXECUTABLE, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.page() as page:
        page.resize(1280)
        yield page


@pytest.fixture
def service(detector: Path) -> Iterator[Running]:
    with running({"camera-3": detector}) as service:
        yield service


def text(page: Page, element: str) -> str:
    found: str = page.evaluate(TEXT.format(json.dumps(element)))
    return found


def wait_for_text(page: Page, element: str, part: str) -> None:
    page.wait_until(f"{TEXT.format(json.dumps(element))}.includes({json.dumps(part)})")


def open_live(page: Page, url: str) -> Page:
    page.open(url)
    wait_for_text(page, "connection", "Live")
    return page


def shown_pixels(page: Page, element: str) -> int:
    width: int = page.evaluate(f"document.getElementById('{element}').naturalWidth")
    return width


def test_the_policy_names_the_one_script_and_the_one_style_and_nothing_inline() -> None:
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert CONTENT_SECURITY_POLICY.count("'sha256-") == 2
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none'")
    assert page_html().count("<style") == 1
    assert " style=" not in page_html()


def test_the_script_writes_no_html() -> None:
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in page_html()


@needs_browser
def test_dropped_images_are_scored_and_the_most_unusual_is_explained(
    page: Page, service: Running, images: dict[str, Path]
) -> None:
    open_live(page, service.url)
    assert text(page, "headline") == "Waiting for the first image"
    page.drop("#drop", images["normal"], images["odd"], images["none"])
    wait_for_text(page, "progress", "3 images: 1 flagged, 1 normal, 1 refused.")
    page.wait_until("document.getElementById('heatmap').naturalWidth > 0")
    expected = service.service.registry["camera-3"].predictor.predict([str(images["odd"])])[0]
    assert expected.score is not None
    assert float(text(page, "score")) == pytest.approx(expected.score, rel=0.01)
    assert text(page, "badge") == "flagged"
    assert text(page, "said").startswith("Unlike the normal images: ")
    assert text(page, "image-name") == "noise.png"
    assert shown_pixels(page, "picture") == shown_pixels(page, "heatmap") == 64
    assert page.evaluate("document.querySelectorAll('#components div').length") == len(expected.components)
    assert page.evaluate("document.querySelectorAll('#components .significant').length") == len(expected.significant)
    page.wait_until("document.querySelectorAll('.tile').length === 3")
    assert [text(page, each) for each in ("scored", "flagged", "refused")] == ["2", "1", "1"]
    assert page.evaluate("document.querySelectorAll('#chart .flagged, #chart .normal, #chart .refused').length") == 3
    assert "3 images" in page.evaluate("document.getElementById('chart').getAttribute('aria-label')")
    assert page.complaints() == []


@needs_browser
def test_an_image_that_is_refused_has_its_error_as_a_sentence(
    page: Page, service: Running, images: dict[str, Path]
) -> None:
    open_live(page, service.url)
    page.choose_files("#files", images["none"])
    wait_for_text(page, "progress", "notes.png: It could not be scored: ")
    assert text(page, "badge") == "refused"
    expected = service.service.registry["camera-3"].predictor.predict([str(images["none"])])[0].error
    assert expected
    assert expected in text(page, "said")
    assert page.evaluate(NOT_SHOWN.format("'numbers'"))
    assert page.complaints() == []


@needs_browser
def test_an_image_may_be_looked_at_apart_from_the_stream(page: Page, service: Running, images: dict[str, Path]) -> None:
    open_live(page, service.url)
    page.click("#counts")
    page.drop("#drop", images["odd"], images["none"])
    wait_for_text(page, "progress", "2 images: 1 flagged, 0 normal, 1 refused.")
    page.wait_until("document.getElementById('heatmap').naturalWidth > 0")
    assert service.service.registry["camera-3"].stream.status.images == 0
    assert text(page, "scored") == "0"
    assert page.evaluate("document.querySelectorAll('#chart .flagged').length") == 0
    assert len(page.evaluate(TILES)) == 2


@needs_browser
def test_an_image_may_be_pasted(page: Page, service: Running, images: dict[str, Path]) -> None:
    open_live(page, service.url)
    page.evaluate(
        f"(() => {{ const file = new File([new Uint8Array({list(images['odd'].read_bytes())})], 'clip.png');"
        " const clipboardData = new DataTransfer(); clipboardData.items.add(file);"
        " dispatchEvent(new ClipboardEvent('paste', {clipboardData})); })()"
    )
    wait_for_text(page, "progress", "clip.png: Unlike the normal images")


@needs_browser
def test_nothing_is_asked_for_elsewhere(page: Page, service: Running, images: dict[str, Path]) -> None:
    open_live(page, service.url)
    page.drop("#drop", images["normal"], images["odd"])
    page.wait_until("document.getElementById('heatmap').naturalWidth > 0")
    asked = page.requests()
    assert any(address.endswith("/events") for address in asked)
    assert all(address.startswith((service.url, "data:", "blob:")) for address in asked)


@needs_browser
def test_a_reload_keeps_images_and_evidence(page: Page, service: Running, images: dict[str, Path]) -> None:
    open_live(page, service.url)
    page.drop("#drop", images["normal"], images["odd"], images["none"])
    wait_for_text(page, "progress", "3 images: ")
    page.wait_until(f"{TILES}.length === 3 && document.querySelector('#chart path.line') !== null")
    before = sorted(page.evaluate(TILES))
    open_live(page, service.url)
    page.wait_until(f"{TILES}.length === 3")
    assert sorted(page.evaluate(TILES)) == before
    page.wait_until("[...document.querySelectorAll('.tile img')].filter(each => each.naturalWidth).length === 2")
    assert page.evaluate("document.querySelector('#chart path.line').getAttribute('d').match(/[ML]/g).length") == 3
    page.click(".tile.flagged")
    assert text(page, "image-name") == "noise.png"
    assert "drop the file here" in text(page, "explaining")
    assert page.complaints() == []


@needs_browser
def test_images_from_elsewhere_appear_by_themselves(page: Page, service: Running, images: dict[str, Path]) -> None:
    open_live(page, service.url)
    address = f"{service.url}v1/detectors/camera-3/score?name=belt.png"
    with urlopen(Request(address, images["odd"].read_bytes(), {"Content-Type": "image/png"})) as answer:
        assert answer.status == 200
    page.wait_until(f"{TILES}.length === 1")
    assert text(page, "scored") == "1"
    page.wait_until("document.querySelector('.tile img').naturalWidth > 0")


@needs_browser
def test_a_service_that_goes_away_is_told_and_found_again(
    page: Page, detector: Path, tmp_path: Path, images: dict[str, Path]
) -> None:
    with running({"camera-3": detector}, history=tmp_path / "history.sqlite") as service:
        open_live(page, service.url)
        page.drop("#drop", images["normal"])
        page.wait_until(f"{TILES}.length === 1 && document.querySelector('#chart path.line') !== null")
        service.stop()
        wait_for_text(page, "connection", "Not connected")
        assert not page.evaluate(NOT_SHOWN.format("'reconnect'"))
        page.drop("#drop", images["odd"])
        wait_for_text(page, "progress", "The server did not answer")
        service.start()
        page.click("#reconnect")
        wait_for_text(page, "connection", "Live")
        page.drop("#drop", images["odd"])
        wait_for_text(page, "progress", "Unlike the normal images")
        page.wait_until("document.getElementById('scored').textContent === '2'")


@needs_browser
def test_a_token_is_asked_for_and_kept_for_the_session(
    page: Page, detector: Path, tmp_path: Path, images: dict[str, Path]
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-that-is-long-enough\n")
    tokens.chmod(0o600)
    with running({"camera-3": detector}, token_file=tokens) as service:
        page.open(service.url)
        for given in ("a wrong one", "a-token-that-is-long-enough"):
            page.wait_until("document.getElementById('token-dialog').open")
            assert page.evaluate("document.activeElement.id") == "token"
            page.type(given)
            page.press("Enter", 13)
        wait_for_text(page, "connection", "Live")
        page.drop("#drop", images["odd"])
        page.wait_until("document.getElementById('heatmap').naturalWidth > 0")
        open_live(page, service.url)
        page.wait_until("document.querySelector('.tile img').naturalWidth > 0")
        assert not page.evaluate("document.getElementById('token-dialog').open")


@needs_browser
def test_one_of_several_detectors_is_chosen(page: Page, detector: Path, images: dict[str, Path]) -> None:
    with running({"camera-3": detector, "camera-4": detector}) as service:
        open_live(page, service.url)
        page.drop("#drop", images["odd"])
        page.wait_until(f"{TILES}.length === 1")
        page.evaluate("(() => { const choice = document.getElementById('detector'); choice.value = 'camera-4';"
                      " choice.dispatchEvent(new Event('change')); })()")  # fmt: skip
        page.wait_until(f"{TILES}.length === 0 && document.title.includes('camera-4')")
        page.open("about:blank")
        open_live(page, f"{service.url}#camera-4")
        assert page.evaluate("document.getElementById('detector').value") == "camera-4"


@needs_browser
def test_the_keyboard_alone_is_enough(page: Page, service: Running, images: dict[str, Path]) -> None:
    open_live(page, service.url)
    page.choose_files("#files", images["normal"], images["odd"])  # what the dialog does after Enter on the drop zone
    wait_for_text(page, "progress", "2 images: ")
    page.wait_until(f"{TILES}.length === 2 && document.getElementById('heatmap').naturalWidth > 0")
    page.evaluate("document.activeElement.blur()")
    reached = []
    for _ in range(12):
        page.press("Tab", 9)
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className.split(' ')[0]"))
        outlined = page.evaluate(
            "[document.activeElement, document.activeElement.parentElement, document.activeElement.nextElementSibling]"
            ".some(each => each && getComputedStyle(each).outlineStyle !== 'none')"
        )
        assert outlined, f"no focus to be seen: {reached}"
        if reached[-1] == "tile":
            page.press("End", 35)
            last = text(page, "image-name")
            page.press("ArrowLeft", 37)
            assert text(page, "image-name") != last
            page.press("ArrowRight", 39)
            assert text(page, "image-name") == last
            page.wait_until("!document.getElementById('show-heatmap').disabled")
        if reached[-1] == "show-heatmap":
            page.press(" ", 32)
            assert page.evaluate("document.getElementById('show-heatmap').checked") is False
            break
    assert [each for each in reached if each in ("files", "counts", "tile", "show-heatmap")] == [
        "files",
        "counts",
        "tile",
        "show-heatmap",
    ]


@needs_browser
@pytest.mark.parametrize("width", [1280, 768, 390, 320])
def test_the_page_never_scrolls_sideways(page: Page, service: Running, images: dict[str, Path], width: int) -> None:
    page.resize(width)
    open_live(page, service.url)
    page.drop("#drop", images["normal"], images["odd"], images["hostile"])
    wait_for_text(page, "progress", "3 images: ")
    page.wait_until("document.getElementById('heatmap').naturalWidth > 0")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERFLOW) == []


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_scheme(page: Page, service: Running, scheme: str) -> None:
    page.prefer(scheme)
    open_live(page, service.url)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    levels = [int(part) for part in background.strip("rgb()").split(",")]
    assert (min(levels) > 200) if scheme == "light" else (max(levels) < 50)


@needs_browser
def test_hostile_names_do_nothing(page: Page, service: Running, images: dict[str, Path]) -> None:
    page.call("Page.addScriptToEvaluateOnNewDocument", source="window.alerts = 0; window.alert = () => alerts++")
    open_live(page, service.url)
    page.drop("#drop", images["hostile"])
    page.wait_until("document.getElementById('heatmap').naturalWidth > 0")
    assert text(page, "image-name") == HOSTILE
    assert page.evaluate("[alerts, document.querySelectorAll('[onerror]').length]") == [0, 0]
    assert page.complaints() == []


@needs_browser
@pytest.mark.slow
def test_a_long_stream_takes_bounded_room(page: Page, service: Running) -> None:
    """And an alarm of the monitor is told."""
    open_live(page, service.url)
    stream = service.service.registry["camera-3"]
    noise = np.random.default_rng(0).integers(0, 256, (400, 64, 64, 3), dtype=np.uint8)
    for predicted in stream.predictor.predict_images(list(noise), workers=1):
        stream.stream.record(predicted)
    page.wait_until("document.getElementById('scored').textContent === '400'")
    page.wait_until("document.getElementById('headline').textContent === 'The stream has changed'")
    assert page.evaluate("document.querySelectorAll('.tile').length") <= 60
    assert page.evaluate("document.querySelectorAll('#chart .marks > g').length") == 300
    page.wait_until("document.getElementById('change-facts').children.length > 2")
    page.wait_until("document.getElementById('alert').textContent")
    assert page.complaints() == []
