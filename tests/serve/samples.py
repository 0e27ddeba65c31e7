"""Images as files, a service in a process of its own, and requests as bytes on a socket."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from discopatch.images import NamedImage, Pixels
from tests.export.samples import WITHOUT
from tests.samples import one_camera

NAME = "camera-3"
SCORE = f"/v1/detectors/{NAME}/score"
MAIN = "from discopatch.cli import main\nmain()\n"


def png(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def camera_files(count: int, *, seed: int = 1, size: int = 80) -> list[tuple[str, bytes]]:
    """Names and PNG files of new images of the camera."""
    return [(f"{image.name}.png", png(image.pixels)) for image in one_camera(count, seed=seed, size=size)]


def form(files: Sequence[tuple[str, bytes]]) -> list[tuple[str, tuple[str, bytes]]]:
    """The files as httpx takes them."""
    return [("files", file) for file in files]


def noise(side: int) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)


def named(files: Sequence[tuple[str, bytes]]) -> list[NamedImage]:
    return [NamedImage(name, np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))) for name, data in files]


class Running:
    """A service in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]", address: str, log: Path) -> None:
        self.process, self.address, self._log = process, address, log
        self.host, port = address.removeprefix("http://").rsplit(":", 1)
        self.port = int(port)

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=60, trust_env=False, **options)

    def connect(self) -> socket.socket:
        connection = socket.create_connection((self.host, self.port), timeout=60)
        connection.settimeout(60)
        return connection

    def lines(self) -> list[dict[str, Any]]:
        """The log so far."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


@contextmanager
def running(folder: Path, *arguments: object, without_torch: bool = False, limits: str = "") -> Iterator[Running]:
    """`discopatch serve` with these arguments on a free port; it is killed at the end if it still runs."""
    folder.mkdir(parents=True, exist_ok=True)
    code = (WITHOUT.format(more=()) if without_torch else "import sys\n") + limits + MAIN
    command = [sys.executable, "-c", code, "serve", *map(str, arguments), "--port", "0"]
    log = folder / "log.jsonl"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder / "state")}
    with log.open("a") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, log.read_text()
            yield Running(process, address, log)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def answer(connection: socket.socket) -> bytes:
    """All that comes until the other side closes the connection."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)
