"""The page in a real browser, with the real service behind it."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image
from playwright.sync_api import Page

from discopatch import Detector
from discopatch.serve.page import CONTENT_SECURITY_POLICY, PAGE
from tests.browser import RecordedPage, needs_browser, opened_browser
from tests.samples import new_detector, one_camera, save_images
from tests.serve.samples import MONITOR, NAME, SCORE, noise, served

TILES = "[...document.querySelectorAll('.tile')].map(each => each.getAttribute('aria-label'))"
HEATMAP = "document.getElementById('heatmap').naturalWidth > 0"
OVERFLOW = """[...document.querySelectorAll("body *")].filter(each => !each.closest(".strip, .unseen, legend")
    && each.getBoundingClientRect().right > innerWidth + 1).map(each => each.outerHTML.slice(0, 200))"""
HOSTILE = "<img src=x onerror=alert(1)>&amp;.png"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A normal image, an odd one, a file that is no image, and an image with a hostile name."""
    folder = tmp_path_factory.mktemp("images")
    (normal,) = save_images(folder, one_camera(1, seed=5, size=256))
    Image.fromarray(noise(256)).save(folder / "noise.png")
    (folder / "notes.png").write_text("no image at all")
    (folder / HOSTILE).write_bytes(normal.read_bytes())
    return {"normal": normal, "odd": folder / "noise.png", "none": folder / "notes.png", "hostile": folder / HOSTILE}


@pytest.fixture
def recorded() -> Iterator[RecordedPage]:
    with opened_browser() as browser:
        yield RecordedPage(browser)


def text(page: Page, element: str) -> str:
    return page.locator(f"#{element}").text_content() or ""


def wait_for_text(recorded: RecordedPage, element: str, part: str) -> None:
    recorded.wait_until(f"document.getElementById('{element}').textContent.includes({json.dumps(part)})")


def test_the_policy_allows_one_script_and_one_style_and_the_script_writes_no_html() -> None:
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none'")
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert CONTENT_SECURITY_POLICY.count("'sha256-") == 2
    assert " style=" not in PAGE
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in PAGE


@needs_browser
@pytest.mark.slow
def test_images_are_scored_explained_kept_and_found_again(
    recorded: RecordedPage, images: dict[str, Path], detector: Detector, detector_file: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"detectors": {NAME: detector_file}, "history": str(tmp_path / "history.sqlite"), "port": port}
    page = recorded.page
    page.add_init_script("window.alerts = 0; window.alert = () => alerts++")
    with served(**settings) as address:
        page.goto(f"{address}/")
        wait_for_text(recorded, "connection", "Live")
        recorded.drop("#drop", images["normal"], images["odd"], images["none"])
        wait_for_text(recorded, "progress", "3 images: 1 flagged, 1 normal, 1 refused.")
        recorded.wait_until(HEATMAP)
        expected = detector.predict([str(images["odd"])])[0]
        assert expected.score is not None
        assert float(text(page, "score")) == pytest.approx(expected.score, rel=0.01)
        assert (text(page, "badge"), text(page, "image-name")) == ("flagged", "noise.png")
        assert page.evaluate("document.querySelectorAll('#components div').length") == len(expected.components)
        significant = page.evaluate("document.querySelectorAll('#components .significant').length")
        assert significant == len(expected.significant) > 0
        recorded.wait_until(
            "document.querySelectorAll('#chart .flagged, #chart .normal, #chart .refused').length === 3"
        )
        assert [text(page, each) for each in ("scored", "flagged", "refused")] == ["2", "1", "1"]

        page.click(".tile.refused")
        wait_for_text(recorded, "said", detector.predict([str(images["none"])])[0].error or "")
        page.keyboard.press("End")
        last = text(page, "image-name")
        page.keyboard.press("ArrowLeft")
        assert text(page, "image-name") != last, "the arrow keys walk through the images"

        page.click("#counts")
        recorded.drop("#drop", images["hostile"])
        recorded.wait_until(f"{TILES}.length === 4")
        recorded.wait_until(HEATMAP)
        assert text(page, "image-name") == HOSTILE
        assert page.evaluate("[alerts, document.querySelectorAll('[onerror]').length]") == [0, 0]
        assert httpx.get(address + MONITOR).json()["images"] == 2, "it was only explained"
        for width in (1280, 320):
            recorded.resize(width)
            assert page.evaluate(OVERFLOW) == []

        httpx.post(address + SCORE, params={"name": "belt.png"}, content=images["odd"].read_bytes())
        recorded.wait_until(f"{TILES}.length === 5")
        assert text(page, "scored") == "3", "images of other clients appear by themselves"
        asked = recorded.requests
        assert any(each.endswith("/events") for each in asked)
        assert all(each.startswith((address, "data:", "blob:")) for each in asked), "nothing comes from elsewhere"
        assert recorded.complaints == []
    wait_for_text(recorded, "connection", "Not connected")
    with served(**settings) as address:
        page.click("#reconnect")
        wait_for_text(recorded, "connection", "Live")
        page.goto(f"{address}/")
        recorded.wait_until(f"{TILES}.length === 4")
        recorded.wait_until(
            "[...document.querySelectorAll('.tile img')].filter(each => each.naturalWidth).length === 3"
        )
        page.click(".tile.flagged")
        assert text(page, "badge") == "flagged"
        for _ in range(60):
            content = images["odd"].read_bytes()
            answer = httpx.post(address + SCORE, content=content, headers={"Content-Type": "image/png"}).json()
            if answer["monitor"]["alarm"]:
                break
        recorded.wait_until("document.getElementById('headline').textContent === 'The stream has changed'")
        recorded.wait_until("document.getElementById('change-facts').children.length > 2")
        number, seen = answer["monitor"]["alarm_at"], answer["monitor"]["images"]
        assert seen < number, "refused images have numbers, too"
        wait_for_text(recorded, "outcome", f"image {number} of {number}.")


@needs_browser
@pytest.mark.slow
def test_a_token_is_asked_for_and_one_of_several_detectors_is_chosen(
    recorded: RecordedPage, images: dict[str, Path], detector_file: Path, tmp_path: Path
) -> None:
    page, tokens = recorded.page, tmp_path / "tokens"
    tokens.write_text("a-token-that-is-long-enough\n")
    with served(detectors={NAME: detector_file, "camera-4": detector_file}, token_file=tokens) as address:
        page.goto(f"{address}/")
        for given in ("a wrong one", "a-token-that-is-long-enough"):
            recorded.wait_until("document.getElementById('token-dialog').open")
            assert page.evaluate("document.activeElement.id") == "token"
            page.keyboard.type(given)
            page.keyboard.press("Enter")
        wait_for_text(recorded, "connection", "Live")
        recorded.drop("#drop", images["odd"])
        recorded.wait_until("document.querySelector('.tile img')?.naturalWidth > 0")
        page.select_option("#detector", "camera-4")
        recorded.wait_until(f"{TILES}.length === 0 && document.title.includes('camera-4')")


@needs_browser
@pytest.mark.slow
def test_what_a_token_may_not_do_is_disabled_and_says_why(
    recorded: RecordedPage, images: dict[str, Path], detector_file: Path, tmp_path: Path
) -> None:
    page, tokens = recorded.page, tmp_path / "tokens"
    reader, scorer = "a-token-that-reads", "a-token-that-scores"
    tokens.write_text(f"read {reader}\nscore {scorer}\n")
    with served(detectors={NAME: detector_file}, token_file=tokens, rate=0.49) as address:
        content, headers = (
            images["odd"].read_bytes(),
            {"Authorization": f"Bearer {scorer}", "Content-Type": "image/png"},
        )
        while not httpx.post(address + SCORE, content=content, headers=headers).json()["monitor"]["alarm"]:
            pass
        page.goto(f"{address}/")
        recorded.wait_until("document.getElementById('token-dialog').open")
        page.keyboard.type(reader)
        page.keyboard.press("Enter")
        recorded.wait_until(f"{TILES}.length > 0")
        recorded.wait_until("document.querySelector('.tile img').naturalWidth > 0")
        wait_for_text(recorded, "drop-note", "role read, and this needs score")
        assert page.is_disabled("#files")
        assert page.is_disabled("#restart")
        assert "needs admin" in page.inner_text("#restart-note")
        before = httpx.get(address + MONITOR, headers=headers).json()["images"]
        recorded.drop("#drop", images["normal"])
        page.click(".tile")
        assert httpx.get(address + MONITOR, headers=headers).json()["images"] == before
        assert [each for each in recorded.complaints if "401" not in each] == []


@needs_browser
@pytest.mark.slow
def test_a_flagged_image_is_accepted_by_a_button_and_is_normal_from_then_on(
    recorded: RecordedPage, tmp_path: Path
) -> None:
    path, page = tmp_path / "own.safetensors", recorded.page
    new_detector().fit(one_camera(40), workers=1).save(path)
    Image.fromarray(noise(64)).save(tmp_path / "odd.png")
    (normal,) = save_images(tmp_path, one_camera(1, seed=3))
    page.on("dialog", lambda dialog: dialog.accept())
    with served(detectors={NAME: path}) as address:
        page.goto(f"{address}/")
        wait_for_text(recorded, "connection", "Live")
        recorded.drop("#drop", normal)
        wait_for_text(recorded, "progress", "Like the normal images")
        assert page.locator("#accepting").is_hidden(), "of a normal image there is nothing to accept"
        recorded.drop("#drop", tmp_path / "odd.png")
        wait_for_text(recorded, "badge", "flagged")
        page.click("#accept")
        wait_for_text(recorded, "accept-note", "It is normal now")
        recorded.drop("#drop", tmp_path / "odd.png")
        wait_for_text(recorded, "progress", "odd.png: Like the normal images")
    assert [each.name for each in Detector.load(path, device="cpu").accepted_] == ["odd.png"]
    assert recorded.complaints == []
