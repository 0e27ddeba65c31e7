"""A real browser, driven over two pipes by the DevTools protocol."""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60.0  # seconds for one answer, on a busy machine

# The browser expects its pipes as file descriptors 3 and 4.
_LAUNCH = """
import fcntl, os, sys
reading, writing = (fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3])
os.dup2(reading, 3)
os.dup2(writing, 4)
os.closerange(5, 256)
os.execv(sys.argv[3], sys.argv[3:])
"""

_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A browser that is killed when the `with` block ends."""

    def __init__(self, executable: str, folder: Path) -> None:
        self._arguments = [executable, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self._unread = b""
        self._calls = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        theirs_read, self._write = os.pipe()
        self._read, theirs_write = os.pipe()
        launch = [sys.executable, "-c", _LAUNCH, str(theirs_read), str(theirs_write), *self._arguments]
        self._process = subprocess.Popen(
            launch,
            pass_fds=(theirs_read, theirs_write),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_read)
        os.close(theirs_write)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write)
        os.close(self._read)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its session is its own, so nobody else is in the group
        self._process.wait(timeout=PATIENCE)

    @contextmanager
    def page(self) -> Iterator["Page"]:
        """A new tab that records what it fetches and logs."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        try:
            yield page
        finally:
            self.call("Target.closeTarget", targetId=target)

    def call(self, method: str, *, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer; events that come before it are kept."""
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        self._send(json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while (answer := self._receive(deadline)).get("id") != self._calls:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def wait_for(self, method: str, session: str) -> None:
        """Until the event has come, now or before."""
        deadline = time.monotonic() + PATIENCE
        while not any(event["method"] == method and event.get("sessionId") == session for event in self.events):
            self.events.append(self._receive(deadline))

    def _send(self, message: bytes) -> None:
        while message:
            message = message[os.write(self._write, message) :]

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser sent nothing for {PATIENCE:.0f} s")
            received = os.read(self._read, 2**20)
            if not received:
                raise ConnectionError(f"the browser ended with status {self._process.wait(timeout=PATIENCE)}")
            self._unread += received
        message, self._unread = self._unread.split(b"\0", 1)
        event: dict[str, Any] = json.loads(message)
        return event


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, session=self._session, **params)

    def open(self, place: Path | str) -> Self:
        """Goes to a file or an address, and waits until it has loaded."""
        self._forget()
        self.call("Page.navigate", url=place.as_uri() if isinstance(place, Path) else place)
        self._browser.wait_for("Page.loadEventFired", self._session)
        return self

    def _forget(self) -> None:
        self._browser.events = [each for each in self._browser.events if each.get("sessionId") != self._session]

    def resize(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def disable_scripts(self) -> None:
        self.call("Emulation.setScriptExecutionDisabled", value=True)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Clicks at the middle of the element."""
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def _middle(self, selector: str) -> tuple[float, float]:
        x, y = self.evaluate(
            f"(() => {{ const element = document.querySelector({json.dumps(selector)});"
            " element.scrollIntoView({block: 'center', behavior: 'instant'});"
            " const box = element.getBoundingClientRect();"
            " return [box.left + box.width / 2, box.top + box.height / 2]; })()"
        )
        return x, y

    def press(self, key: str, code: int) -> None:
        text = {"Enter": "\r", " ": " "}.get(key)
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **typed)

    def wait_until(self, expression: str) -> Any:
        """The value of the expression as soon as it is true."""
        deadline = time.monotonic() + PATIENCE
        while not (value := self.evaluate(expression)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {PATIENCE:.0f} s: {expression}")
            time.sleep(0.05)
        return value

    def drop(self, selector: str, *files: Path) -> None:
        """Drops files onto the middle of the element."""
        x, y = self._middle(selector)
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def requests(self) -> list[str]:
        """All addresses that the page requested."""
        return [event["request"]["url"] for event in self._events("Network.requestWillBeSent")]

    def complaints(self) -> list[str]:
        """Errors, warnings and policy violations of the console."""
        said = [json.dumps(event) for event in self._events("Runtime.exceptionThrown")]
        said += [json.dumps(event) for event in self._events("Runtime.consoleAPICalled")]
        said += [event["entry"]["text"] for event in self._events("Log.entryAdded")]
        return said

    def _events(self, method: str) -> list[dict[str, Any]]:
        time.sleep(0.1)  # for events of scripts that are running
        self.evaluate("0")
        return [
            event["params"]
            for event in self._browser.events
            if event["method"] == method and event.get("sessionId") == self._session
        ]

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))
