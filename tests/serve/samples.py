"""Images as files, and a service in a process of its own."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn
from PIL import Image

from discopatch.images import Item, Pixels
from discopatch.results import FittedDetector, as_row
from discopatch.serve.app import create_app
from discopatch.serve.settings import ServeSettings
from tests.export.samples import WITHOUT
from tests.samples import one_camera

NAME = "camera-3"
DETECTOR = f"/v1/detectors/{NAME}"
SCORE, EXPLAIN, RECENT, MONITOR = (f"{DETECTOR}/{each}" for each in ("score", "explain", "recent", "monitor"))
INFER = f"/v2/models/{NAME}/infer"
Files = Sequence[tuple[str, bytes]]


def png(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def camera_files(count: int, *, seed: int = 1, size: int = 80) -> list[tuple[str, bytes]]:
    """Names and PNG files of new images of the camera."""
    return [(f"{image.name}.png", png(image.pixels)) for image in one_camera(count, seed=seed, size=size)]


def noise(side: int) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)


def form(files: Files) -> list[tuple[str, tuple[str, bytes]]]:
    """The files as httpx takes them."""
    return [("files", file) for file in files]


def rows_of(detector: FittedDetector, files: Files) -> list[dict[str, Any]]:
    """The rows of `predict` for the same bytes."""
    found = detector.predict([Item(name, data) for name, data in files])
    return [as_row(each, detector.component_names) for each in found]


def wait_until(condition: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.02)


class Running:
    """A service in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]", address: str, log: Path) -> None:
        self.process, self.address, self._log = process, address, log

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=None, trust_env=False, **options)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", int(self.address.rpartition(":")[2])), timeout=60)

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The lines of the log so far."""
        return [each for each in map(json.loads, self._log.read_text().splitlines()) if each["event"] == event]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


@contextmanager
def running(folder: Path, *arguments: object, port: int | None = 0, without_torch: bool = False) -> Iterator[Running]:
    """`discopatch serve` with these arguments; it is killed at the end if it still runs."""
    folder.mkdir(parents=True, exist_ok=True)
    code = (WITHOUT.format(more=()) if without_torch else "") + "from discopatch.cli import main\nmain()\n"
    command = [
        sys.executable,
        "-c",
        code,
        "serve",
        *map(str, arguments),
        *(() if port is None else ("--port", str(port))),
    ]
    log = folder / "log.jsonl"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder / "state")}
    with log.open("a") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    with process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, log.read_text()
            yield Running(process, address, log)
        finally:
            process.kill()


@contextmanager
def served(*, port: int = 0, **settings: Any) -> Iterator[str]:
    """The address of the service in a thread of this process."""
    app = create_app(ServeSettings(device="cpu", **settings))
    config = uvicorn.Config(app, log_config=None, ws="none", timeout_keep_alive=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_until(lambda: server.started or not thread.is_alive())
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            app.state.service.is_stopping = server.should_exit = True
            thread.join()
