"""Load of the service: images a second and latencies, beside the same runtime called in process.

python studies/serving.py

It sends JPEG files of 640 x 640 from 1, 8 and 128 clients, each over a connection of its own; all clients are in one
process. `soak.py` has clients that misbehave.
"""

import asyncio
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from PIL import Image
from rich.console import Console

from common import in_both_orders
from discopatch.demo import crops, sample_photos
from discopatch.images import NamedImage
from discopatch.utils import write_json

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)

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
    from discopatch.export import export_detector

    images = camera(N_FITTED, seed=0)
    detector = Detector(false_alarm_rate=0.05, device="cpu").fit(images)
    export_detector(detector, folder, reference=camera(16, seed=1))
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
    headers: bytes  # in lower case

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
        return Answer(int(head[9:12]), body, time.perf_counter() - start, headers)

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


SIDE, FILES = 640, 48
CLIENTS = (1, 8, 128)
RATE, CPU, CLIENT = "images a second", "CPU an image, ms", "clients' share of CPU"


@app.command()
def load(
    export: Annotated[
        Path | None, typer.Argument(help="An export; default: one of sample photos.", exists=True)
    ] = None,
    seconds: Annotated[float, typer.Option(help="Of each measurement, of which there are two.")] = 20,
    out: Annotated[Path, typer.Option(help="JSON file of the results.")] = Path("docs/results/serve-load.json"),
) -> None:
    """Measures, prints and stores the table."""
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as place:
        folder = export or make_export(Path(place) / "export")
        files = [jpeg(image, side=SIDE) for image in camera(FILES, seed=2)]
        requests = [image_request(data) for data in files]
        runs: dict[str, Callable[[], dict[str, float]]] = {
            "in process, threads": partial(in_process, folder, files, seconds)
        }
        with served(folder, Path(place) / "log", "--no-history") as service:
            runs |= {
                f"{clients} clients": partial(over_http, service, requests, clients, seconds) for clients in CLIENTS
            }
            found: dict[str, list[dict[str, float]]] = {name: [] for name in runs}

            def measure(name: str) -> list[float]:
                result = runs[name]()
                console.print(name, {key: round(value, 3) for key, value in result.items()})
                found[name].append(result)
                return []

            in_both_orders(runs, measure)
    results = {name: {key: statistics.mean(each[key] for each in two) for key in two[0]} for name, two in found.items()}
    content = {"cores": os.cpu_count(), "seconds": seconds, "side": SIDE, "runs": results}
    write_json(out, content)
    print(load_table(content))


def in_process(folder: Path, files: Sequence[bytes], seconds: float) -> dict[str, float]:
    """In a process of its own, as the service is."""
    with get_context("spawn").Pool(1) as pool:
        return dict(pool.apply(score_in_process, (folder, list(files), seconds)))


def score_in_process(folder: Path, files: list[bytes], seconds: float) -> dict[str, float]:
    from discopatch.export.runtime import Runtime

    cores = os.cpu_count() or 1
    runtime = Runtime.load(folder, threads=1)
    runtime.predict(files[:4], workers=1)
    start, used = time.perf_counter(), time.process_time()

    def work(number: int) -> int:
        count = 0
        while time.perf_counter() - start < seconds:
            runtime.predict([files[(number + count) % len(files)]], workers=1)
            count += 1
        return count

    with ThreadPoolExecutor(cores) as pool:
        done = sum(pool.map(work, range(cores)))
    return rates(done, time.perf_counter() - start, time.process_time() - used)


def rates(images: int, seconds: float, cpu_seconds: float) -> dict[str, float]:
    return {RATE: images / seconds, CPU: 1e3 * cpu_seconds / images}


def over_http(service: Service, requests: Sequence[bytes], clients: int, seconds: float) -> dict[str, float]:
    return asyncio.run(send_all(service, requests, clients, seconds))


async def send_all(service: Service, requests: Sequence[bytes], clients: int, seconds: float) -> dict[str, float]:
    """Every client asks, waits for the answer, and asks again; the first tenth of the time does not count."""
    begin = time.perf_counter()
    warm, end = begin + 0.1 * seconds, begin + 1.1 * seconds
    times: list[float] = []
    refused = 0
    used = {"client": 0.0, "service": 0.0}

    async def client(number: int) -> None:
        nonlocal refused
        connection = Connection(service)
        turn = number
        while time.perf_counter() < end:
            answer = await connection.ask(requests[turn % len(requests)])
            turn += 1
            if answer.status == 503:
                refused += 1
                await asyncio.sleep(0.2)
            elif answer.status != 200:
                raise RuntimeError(f"status {answer.status}: {answer.body[:500]!r}")
            elif warm <= time.perf_counter() <= end:
                times.append(answer.seconds)
        await connection.close()

    async def clock() -> None:
        await asyncio.sleep(warm - time.perf_counter())
        start = time.process_time(), service.cpu_seconds
        await asyncio.sleep(end - time.perf_counter())
        used["client"], used["service"] = time.process_time() - start[0], service.cpu_seconds - start[1]

    await asyncio.gather(clock(), *(client(number) for number in range(clients)))
    cores = os.cpu_count() or 1
    p50, p95, p99 = np.percentile(times, (50, 95, 99)) * 1e3
    return {
        **rates(len(times), seconds, used["service"]),
        "p50": float(p50),
        "p95": float(p95),
        "p99": float(p99),
        "refused": float(refused),
        CLIENT: used["client"] / seconds / cores,
    }


def load_table(content: dict[str, Any]) -> str:
    """Rows in the order of measuring, and shares of the rate in process."""
    runs = content["runs"]
    best = runs["in process, threads"][RATE]
    lines = [
        "| | images a second | of in process | p50, ms | p95, ms | p99, ms | CPU an image, ms | clients' CPU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        times = [f"{run[each]:.0f}" if each in run else "" for each in ("p50", "p95", "p99")]
        client = f"{run[CLIENT]:.1%}" if CLIENT in run else ""
        shown = name.replace("1 clients", "1 client") if name.startswith("1 clients") else name
        cells = [shown, f"{run[RATE]:.1f}", f"{run[RATE] / best:.0%}", *times, f"{run[CPU]:.1f}", client]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    app()
