"""What the studies of the service share: a detector, the service as a process, and a client that costs little."""

import asyncio
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from discopatch.images import NamedImage
from discopatch.images.samples import crops, sample_photos

NAME = "camera-3"
SCORE = f"/v1/detectors/{NAME}/score"
N_FITTED = 150
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


def camera(count: int, *, seed: int) -> list[NamedImage]:
    """Squares of a sample photo, as if from one camera."""
    return crops(sample_photos(["temple"]), count, size=256, seed=seed)


def make_export(folder: Path) -> Path:
    """An export of a detector with the default weights; takes a minute or two."""
    from discopatch import Detector

    images = camera(N_FITTED, seed=0)
    detector = Detector(false_alarm_rate=0.05, device="cpu").fit(images)
    detector.export(folder, reference=camera(16, seed=1))
    return folder


def jpeg(image: NamedImage, *, side: int, quality: int = 90) -> bytes:
    """The image as a file of that many pixels along a side."""
    buffer = io.BytesIO()
    Image.fromarray(image.pixels).resize((side, side), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


@dataclass(frozen=True)
class Service:
    """A service that runs, and what it has used so far."""

    process: "subprocess.Popen[str]"
    host: str
    port: int

    @property
    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    @property
    def memory(self) -> int:
        """Bytes that are resident."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE_SIZE


@contextmanager
def served(export: Path, log: Path, *arguments: str) -> Iterator[Service]:
    """`discopatch serve` on a free port, as a user would start it."""
    command = [sys.executable, "-m", "discopatch", "serve", f"{NAME}={export}", "--port", "0", *arguments]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError(f"the service did not start: {log.read_text()}")
        host, _, port = address.removeprefix("http://").rpartition(":")
        yield Service(process, host, int(port))
        process.terminate()
        process.wait(timeout=120)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


class Answer(NamedTuple):
    """What came back, and how long it took from the first byte sent to the last received."""

    status: int
    body: bytes
    seconds: float

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


class Connection:
    """A connection that is kept, for requests whose bytes are ready: a client that takes next to no time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> Answer:
        """The answer; a connection that was closed meanwhile is opened anew."""
        start = time.perf_counter()
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._service.host, self._service.port)
        reader, writer = self._streams
        try:
            writer.write(request)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            headers = head.lower()
            place = headers.index(b"content-length: ") + 16
            body = await reader.readexactly(int(headers[place : headers.index(b"\r", place)]))
        except (OSError, asyncio.IncompleteReadError):
            await self.close()
            raise
        if b"connection: close" in headers:
            await self.close()
        return Answer(int(head[9:12]), body, time.perf_counter() - start)

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def image_request(data: bytes, *, name: str = "image.jpg", path: str = SCORE, headers: str = "") -> bytes:
    """One image as the body of a request."""
    head = f"POST {path}?name={name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n{headers}"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def form_request(files: list[tuple[str, bytes]], *, path: str = SCORE, headers: str = "") -> bytes:
    """Several images as a form."""
    part = '--xyz\r\nContent-Disposition: form-data; name="files"; filename="{}"\r\n\r\n'
    body = b"".join(part.format(name).encode() + data + b"\r\n" for name, data in files) + b"--xyz--\r\n"
    kind = "multipart/form-data; boundary=xyz"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def json_request(path: str, content: object, *, headers: str = "") -> bytes:
    body = json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
