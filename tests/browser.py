"""The Chromium of this machine, driven by Playwright; nothing is downloaded."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
EXECUTABLE = next((path for name in NAMES if (path := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(EXECUTABLE is None, reason=f"needs a browser: one of {', '.join(NAMES)}")


class RecordedPage:
    """A new page, the addresses that it requests, and its errors, warnings and policy violations."""

    def __init__(self, browser: Browser, *, width: int = 1280, scripts: bool = True) -> None:
        page = browser.new_page(viewport={"width": width, "height": 900}, java_script_enabled=scripts)
        self.page, self.requests, self.complaints = page, list[str](), list[str]()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def resize(self, width: int) -> None:
        self.page.set_viewport_size({"width": width, "height": 900})

    def wait_until(self, expression: str) -> None:
        """Returns when the expression is true; Playwright's own function breaks the policy of our pages."""
        deadline = time.monotonic() + 60
        while not self.page.evaluate(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(expression)
            self.page.wait_for_timeout(50)

    def drop(self, selector: str, *files: Path) -> None:
        """Drops files onto the middle of the element."""
        self.page.locator(selector).scroll_into_view_if_needed()
        box = self.page.locator(selector).bounding_box()
        assert box is not None
        place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        session = self.page.context.new_cdp_session(self.page)
        for kind in ("dragEnter", "dragOver", "drop"):
            session.send("Input.dispatchDragEvent", {"type": kind, **place, "data": data})


@contextmanager
def opened_browser() -> Iterator[Browser]:
    """One at a time: within it, no other event loop runs in this thread."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=EXECUTABLE, args=["--no-sandbox"])
        yield browser
        browser.close()
